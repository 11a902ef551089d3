//! The plan from one desired state to the next, for a node with the rules of the first.

use super::backend;
use crate::diff::{self, Change};
use crate::plan::draft::Draft;
use kpx_node::action::{Backend, Plan};
use kpx_node::backend::iptables::expect::Names;
use kpx_node::backend::{Mode, iptables, nftables};
use kpx_node::desired::{DesiredState, FamilyState};
use kpx_node::evidence::Gap;
use kpx_node::net::{Cidr, Family, Proto};
use kpx_node::node::NodeSnapshot;

/// A desired state whose rules are in the kernel.
#[derive(Clone, Debug)]
pub struct Programmed {
    state: DesiredState,
    /// Back end of each family's iptables.
    backends: [(Family, Backend); 2],
    /// Service IP ranges in the rules of mode nftables.
    cidrs: Vec<Cidr>,
}

impl Programmed {
    /// Returns `state`, which was just compared with the live rules of `node` and repaired there.
    ///
    /// `None` in mode ipvs: real servers drain, so its objects do not match one single state; and in mode userspace,
    /// whose rules cannot be computed.
    pub fn new(node: &NodeSnapshot<'_>, state: DesiredState) -> Option<Self> {
        (!matches!(state.mode, Mode::Ipvs | Mode::Userspace)).then(|| Self {
            backends: Family::BOTH.map(|family| (family, backend(node, family))),
            cidrs: match state.mode {
                Mode::Nftables => diff::service_cidrs(node),
                Mode::Iptables | Mode::Ipvs | Mode::Userspace => Vec::new(),
            },
            state,
        })
    }

    /// Returns `state`, whose rules replaced those of this one.
    #[must_use]
    pub fn at(self, state: DesiredState) -> Self {
        Self { state, ..self }
    }

    /// Returns whether `to` differs in UDP ports of Services, or in their endpoints.
    pub fn changes_udp(&self, to: &DesiredState) -> bool {
        let udp = |state: &DesiredState| {
            let ports = state.families.iter().flat_map(|family| &family.ports);
            let ports = ports.filter(|port| port.proto == Proto::Udp).cloned();
            ports.collect::<Vec<_>>()
        };
        udp(&self.state) != udp(to)
    }

    /// Returns the steps from the rules of this state to those of `to`, for `families`; no live rules are read.
    pub fn advance(&self, to: &DesiredState, families: &[Family]) -> Result<Plan, Gap> {
        let mut draft = Draft::default();
        for state in &to.families {
            let family = state.family;
            let Some(old) = self
                .state
                .family(family)
                .filter(|_| families.contains(&family))
            else {
                continue;
            };
            match to.mode {
                Mode::Iptables => self.iptables(&mut draft, old, to, state)?,
                Mode::Nftables => self.nftables(&mut draft, old, to, state)?,
                Mode::Ipvs | Mode::Userspace => {}
            }
        }
        Ok(draft.plan)
    }

    fn iptables(
        &self,
        draft: &mut Draft,
        old: &FamilyState,
        to: &DesiredState,
        new: &FamilyState,
    ) -> Result<(), Gap> {
        let (old_names, new_names) = (Names::of(old), Names::of(new));
        let have = iptables::expect::expect(&self.state, old, &old_names)?;
        let want = iptables::expect::expect(to, new, &new_names)?;
        let changes = diff::iptables_rules(&have, &want, new, &new_names);
        let changes: Vec<&Change> = changes.iter().collect();
        let of = |(family, _): &&(Family, Backend)| *family == new.family;
        let backend = self.backends.iter().find(of);
        let backend = backend.map_or(Backend::Plain, |(_, backend)| *backend);
        draft.edits(&have, &want, &changes, backend, new.family);
        Ok(())
    }

    fn nftables(
        &self,
        draft: &mut Draft,
        old: &FamilyState,
        to: &DesiredState,
        new: &FamilyState,
    ) -> Result<(), Gap> {
        let have = nftables::expect::expect(&self.state, old, &self.cidrs)?;
        let want = nftables::expect::expect(to, new, &self.cidrs)?;
        let changes = diff::nftables_table(&have, &want, new);
        let changes: Vec<&Change> = changes.iter().collect();
        if !changes.is_empty() {
            draft.nft_table(Some(&have), &want, &changes, new.family);
        }
        Ok(())
    }
}
