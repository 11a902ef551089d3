//! The mode in force, and the sections that matter in it: an unread section of another mode is not a gap.

use serde::Serialize;

use super::Gaps;
use kpx_node::backend::Mode;
use kpx_node::backend::iptables::model::Ruleset;
use kpx_node::backend::ipvs::model::{DUMMY, Table};
use kpx_node::backend::nftables;
use kpx_node::evidence::Gap;
use kpx_node::net::Family;
use kpx_node::node::mode::Modes;
use kpx_node::node::modules::Standing;
use kpx_node::node::{IptablesBackend, NodeSnapshot};

/// The mode in force.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub(crate) struct InForce {
    /// The mode; `null` if unknown.
    pub(crate) mode: Option<Mode>,
    /// The source of `mode`; `null` if the mode is unknown.
    pub(crate) mode_from: Option<ModeSource>,
    /// Other modes that left objects behind, sorted.
    pub(crate) leftovers: Vec<Mode>,
}

/// The source of the mode in force.
#[derive(Clone, Copy, Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub(crate) enum ModeSource {
    /// kube-proxy's `/proxyMode`.
    KubeProxy,
    /// The rules in the kernel.
    KernelState,
    /// kube-proxy's configuration.
    Configuration,
}

/// The sections that matter on this node.
pub(crate) struct Relevant {
    pub(crate) modes: Modes,
    ipvs: bool,
}

impl Relevant {
    pub(crate) fn new(node: &NodeSnapshot<'_>) -> Self {
        let modes = node.modes();
        let on = |mode| match modes.current() {
            None => true,
            Some(current) => current == mode || modes.configured == Ok(mode),
        };
        let dummy = node
            .addresses()
            .is_ok_and(|all| all.all.iter().any(|at| at.link == DUMMY))
            || node
                .links()
                .is_ok_and(|all| all.all.iter().any(|link| link.name == DUMMY));
        let module = node
            .modules()
            .is_ok_and(|all| all.standing("ip_vs") == Standing::Loaded);
        let ipvs = on(Mode::Ipvs) || dummy || module;
        Self { modes, ipvs }
    }

    pub(crate) fn current(&self) -> Option<Mode> {
        self.modes.current()
    }

    /// Returns a section that was read. A section that does not matter is a gap only if reading it failed.
    fn take<T>(matters: bool, read: Result<T, Gap>, gaps: &mut Gaps) -> Option<T> {
        match read {
            Ok(read) => Some(read),
            Err(Gap::NotApplicable(_)) => None,
            Err(Gap::NotCollected(_) | Gap::Absent(..)) if !matters => None,
            Err(gap) => {
                gaps.add(gap);
                None
            }
        }
    }

    pub(crate) fn iptables<'n, 'a>(
        &self,
        node: &'n NodeSnapshot<'a>,
        family: Family,
        gaps: &mut Gaps,
    ) -> Option<&'n Ruleset<'a>> {
        let matters = self.current() != Some(Mode::Nftables);
        Self::take(matters, node.iptables(IptablesBackend::InUse, family), gaps)
    }

    pub(crate) fn nft<'n>(
        &self,
        node: &'n NodeSnapshot<'_>,
        gaps: &mut Gaps,
    ) -> Option<&'n nftables::model::Ruleset> {
        let matters = self.current().is_none_or(|mode| mode == Mode::Nftables);
        Self::take(matters, node.nft(), gaps)
    }

    pub(crate) fn ipvs<'n>(
        &self,
        node: &'n NodeSnapshot<'_>,
        gaps: &mut Gaps,
    ) -> Option<&'n Table> {
        Self::take(self.ipvs, node.ipvs(), gaps)
    }

    pub(crate) fn in_force(&self) -> InForce {
        let modes = &self.modes;
        let mode = modes.current();
        let mode_from = if modes.reported.is_ok() {
            Some(ModeSource::KubeProxy)
        } else if modes.observed().is_some() {
            Some(ModeSource::KernelState)
        } else {
            mode.map(|_| ModeSource::Configuration)
        };
        let mut leftovers: Vec<Mode> = modes
            .leftovers
            .iter()
            .map(|leftover| leftover.mode)
            .collect();
        leftovers.sort();
        leftovers.dedup();
        InForce {
            mode,
            mode_from,
            leftovers,
        }
    }
}
