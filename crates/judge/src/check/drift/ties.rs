//! What a finding of drift may share with its cause: the tables, links and modules whose loss explains all of its changes.

use super::{Change, ChangeKind, DUMMY, Delta, Object, Subject};
use kpx_node::backend::ipvs::model::{Flags, VirtualServer};

/// Returns the places of `changes`; none if one of them has no place, so that nothing else explains it.
pub(super) fn places(changes: &[Change]) -> Vec<Subject> {
    let mut places = Vec::new();
    for change in changes {
        match place(change) {
            None => return Vec::new(),
            Some(place) if places.contains(&place) => {}
            Some(place) => places.push(place),
        }
    }
    places
}

/// Returns the place of a missing object, the chain of a rule that is extra or differs, or the module that a virtual server of another
/// scheduler needs.
fn place(change: &Change) -> Option<Subject> {
    match &change.object {
        Object::VirtualServer {
            server: Delta::Differs { have, want },
            ..
        } if have.scheduler != want.scheduler => {
            // Each scheduler has flags of its own.
            const OF_SCHEDULER: u32 = Flags::SCHED1 | Flags::SCHED2 | Flags::SCHED3;
            let of = |server: &VirtualServer| VirtualServer {
                scheduler: String::new(),
                flags: Flags(server.flags.0 & !OF_SCHEDULER),
                ..server.without_reals()
            };
            let module = format!("ip_vs_{}", want.scheduler);
            (of(have) == of(want)).then(|| Subject::module(module))
        }
        Object::IptablesRule { table, chain, .. } if change.kind() != ChangeKind::Missing => {
            Some(Subject::chain(change.family?, table, chain))
        }
        _ if change.kind() != ChangeKind::Missing => None,
        Object::Address(_) => Some(Subject::link(DUMMY)),
        object => {
            let (table, _) = object.iptables_chain()?;
            Some(Subject::table(change.family?, table))
        }
    }
}
