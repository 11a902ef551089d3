//! `kpx diff`

use std::mem::ManuallyDrop;

use super::args::DiffArgs;
use super::report::DiffReport;
use super::report::nodes::DiffOfNodes;
use crate::command::shared::READABLE;
use crate::command::shared::failure::Failure;
use crate::command::shared::identity;
use crate::command::shared::io::Io;
use crate::command::shared::nodes;
use crate::command::shared::session::Session;
use crate::command::watch::run as watch;
use crate::render::Report as _;
use crate::report::packets::PacketsReport;
use crate::report::{FOUND, UNKNOWN};
use kpx_judge::check::Next;
use kpx_judge::diff;
use kpx_judge::proof::difference::Difference;
use kpx_judge::proof::{self, Proved};
use kpx_judge::trace::{self, Verdict};
use kpx_judge::verdict::Judge;
use kpx_node::backend::Mode;
use kpx_node::evidence::{IPTABLES, Item};
use kpx_node::node::NodeSnapshot;

pub(in crate::command) async fn run(
    session: &Session,
    io: &mut Io<'_>,
    args: &DiffArgs,
) -> Result<u8, Failure> {
    if args.nodes.are_several() {
        let (mode, nodes) = (args.mode, args.nodes.clone());
        let next = NextCommands::of(session, args);
        let work = async move |session: Session| {
            let (mut report, is_other) = compare_with(&session, mode).await?;
            report.next = next.after(report.exit(), is_other);
            Ok(report)
        };
        return nodes::report::<DiffOfNodes>(session, io, &nodes, &[], work).await;
    }
    if let Some(before) = args.bundles.first() {
        let (later, report) = watch::compare(session, before, args.bundles.get(1)).await?;
        return later.finish(io, &report);
    }
    if args.packets {
        let mut report = packets(session, args).await?;
        report.next = match report.foreign.first() {
            Some(foreign) if report.differences.is_empty() => foreign.shown_by.first().cloned(),
            _ => NextCommands::of(session, args).after(report.exit(), report.is_other_mode),
        };
        return session.finish(io, &report);
    }
    let (mut report, is_other) = compare_with(session, args.mode).await?;
    // The evidence names the node of a bundle.
    report.next = NextCommands::of(session, args).after(report.exit(), is_other);
    session.finish(io, &report)
}

/// Compares the node with the desired state of `mode`; returns also whether that is another mode than the node's own.
async fn compare_with(
    session: &Session,
    mode: Option<Mode>,
) -> Result<(DiffReport, bool), Failure> {
    let report = compare(session, mode).await?;
    let own = match mode {
        Some(_) => session.current(None).await?.ok(),
        None => None,
    };
    Ok((report, own.is_some_and(|own| Some(own) != mode)))
}

/// The commands to run after a comparison.
struct NextCommands {
    /// Repairs the differences from the node's own mode.
    repair: String,
    /// Plans the switch to another mode that was compared with.
    switch: Option<String>,
    /// Reads what could not be compared, of one node.
    read: Option<String>,
}

impl NextCommands {
    fn of(session: &Session, args: &DiffArgs) -> Self {
        let several = args.nodes.words();
        let line = |words: &[&str]| {
            let words = words.iter().map(|&word| word.to_owned());
            identity::next_command(session, words.chain(several.clone()))
        };
        let to = args.mode.filter(|mode| *mode != Mode::Userspace);
        let read = || identity::next_line(session, &Next::Read);
        Self {
            repair: line(&["reconcile", "--apply"]),
            switch: to.map(|to| line(&["doctor", "--to", to.name()])),
            read: several.is_empty().then(read),
        }
    }

    /// Returns the command after a comparison with this exit status, with another mode than the node's own if `is_other`.
    fn after(&self, exit: u8, is_other: bool) -> Option<String> {
        match exit {
            FOUND if is_other => self.switch.clone(),
            FOUND => Some(self.repair.clone()),
            UNKNOWN => self.read.clone(),
            _ => None,
        }
    }
}

/// Compares the fate of every packet.
async fn packets(session: &Session, args: &DiffArgs) -> Result<PacketsReport, Failure> {
    let current = session.current(None).await?;
    let mode = match args.mode.map_or(current.clone(), Ok) {
        Ok(mode) => mode,
        Err(gap) => return Ok(PacketsReport::nothing(None, gap, "pass `--mode MODE`")),
    };
    let mut items = diff::needs(mode);
    items.extend(packets_need());
    items.sort();
    items.dedup();
    let evidence = session.gather(&items).await?;
    let node = session.node(&evidence);
    let is_other = current.is_ok_and(|current| current != mode);
    Ok(proof_of(session, &node, mode, is_other))
}

/// Items that [`proof_of`] reads, in addition to those of a difference of rules.
pub(in crate::command) fn packets_need() -> impl Iterator<Item = Item> {
    let all = trace::NEEDS.iter().chain(IPTABLES).copied();
    all.chain([Item::Conntrack, Item::Sockets])
}

/// Compares the fate of every packet on `node` with that in `mode`.
pub(in crate::command) fn proof_of(
    session: &Session,
    node: &NodeSnapshot<'_>,
    mode: Mode,
    is_other: bool,
) -> PacketsReport {
    let compared = if is_other {
        proof::in_mode(node, mode, session.families())
    } else {
        proof::of_node(node, mode, session.families())
    };
    match compared {
        Ok(mut packets) => {
            let again = NodeSnapshot::new(node.evidence());
            let judge = Judge::new(&again);
            packets
                .foreign
                .retain(|proved| !is_of_node_dns(&judge, proved));
            let program = identity::program_to_read(session);
            PacketsReport::new(mode, is_other, &packets, &program)
        }
        Err(gap) => PacketsReport::nothing(Some(mode), gap, READABLE),
    }
}

/// Returns whether `NodeLocal` DNS answers these packets on the node itself: its rules make them bypass kube-proxy's.
fn is_of_node_dns(judge: &Judge<'_>, proved: &Proved) -> bool {
    let Difference { witness, fates, .. } = &proved.difference;
    fates[0]
        .ways
        .iter()
        .all(|way| way.verdict == Verdict::Local)
        && judge.is_served_by_node_local_dns(witness)
}

/// Compares the node with the desired state of its configured mode.
pub(in crate::command) async fn of_node(session: &Session) -> Result<DiffReport, Failure> {
    compare(session, None).await
}

async fn compare(session: &Session, mode: Option<Mode>) -> Result<DiffReport, Failure> {
    let mode = match session.current(mode).await? {
        Ok(mode) => mode,
        Err(gap) => return Ok(DiffReport::nothing(None, gap, "pass `--mode MODE`")),
    };
    let evidence = session.gather(&diff::needs(mode)).await?;
    // Freeing a large cluster object by object takes a tenth of the time, and after one node the process ends.
    let evidence = ManuallyDrop::new(evidence);
    let node = ManuallyDrop::new(session.node(&evidence));
    let report = match diff::compare(&node, mode, session.families()) {
        Ok(mut found) => {
            found.notes.extend(node.evidence().note_added());
            DiffReport::new(mode, found)
        }
        Err(gap) => DiffReport::nothing(Some(mode), gap, READABLE),
    };
    if session.one_of_several {
        drop(ManuallyDrop::into_inner(node));
        drop(ManuallyDrop::into_inner(evidence));
    }
    Ok(report)
}
