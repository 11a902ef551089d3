//! Which sections say something on this node: what a mode not in force would have made is no gap.

use serde::Serialize;

use super::Gaps;
use crate::backend::Mode;
use crate::backend::iptables::model::Ruleset;
use crate::backend::ipvs::model::{DUMMY, Table};
use crate::backend::nftables;
use crate::evidence::Gap;
use crate::net::Family;
use crate::node::mode::Modes;
use crate::node::modules::Standing;
use crate::node::{NodeSnapshot, Store};

/// The mode in force, as far as a view has to say.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct InForce {
    mode: Option<Mode>,
    /// What says so.
    from: Option<Says>,
    /// Modes that left something.
    leftovers: Vec<Mode>,
}

#[derive(Clone, Copy, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
enum Says {
    KubeProxy,
    KernelState,
    Configuration,
}

/// What matters on this node.
pub(super) struct Relevant {
    pub(super) modes: Modes,
    ipvs: bool,
}

impl Relevant {
    pub(super) fn new(node: &NodeSnapshot<'_>) -> Self {
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

    pub(super) fn current(&self) -> Option<Mode> {
        self.modes.current()
    }

    /// Returns what was read of a section that `matters`; one that does not is worth a word only where reading it failed.
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

    pub(super) fn iptables<'n, 'a>(
        &self,
        node: &'n NodeSnapshot<'a>,
        family: Family,
        gaps: &mut Gaps,
    ) -> Option<&'n Ruleset<'a>> {
        let matters = self.current() != Some(Mode::Nftables);
        Self::take(matters, node.iptables(Store::InUse, family), gaps)
    }

    pub(super) fn nft<'n>(
        &self,
        node: &'n NodeSnapshot<'_>,
        gaps: &mut Gaps,
    ) -> Option<&'n nftables::model::Ruleset> {
        let matters = self.current().is_none_or(|mode| mode == Mode::Nftables);
        Self::take(matters, node.nft(), gaps)
    }

    pub(super) fn ipvs<'n>(
        &self,
        node: &'n NodeSnapshot<'_>,
        gaps: &mut Gaps,
    ) -> Option<&'n Table> {
        Self::take(self.ipvs, node.ipvs(), gaps)
    }

    pub(super) fn in_force(&self) -> InForce {
        let modes = &self.modes;
        let mode = modes.current();
        let from = if modes.reported.is_ok() {
            Some(Says::KubeProxy)
        } else if modes.observed().is_some() {
            Some(Says::KernelState)
        } else {
            mode.map(|_| Says::Configuration)
        };
        let mut leftovers: Vec<Mode> = modes.leftovers.iter().map(|of| of.mode).collect();
        leftovers.sort();
        leftovers.dedup();
        InForce {
            mode,
            from,
            leftovers,
        }
    }
}

impl InForce {
    /// Returns the mode, if it is known.
    pub(super) fn mode(&self) -> Option<Mode> {
        self.mode
    }

    /// Returns the mode in force in a line.
    pub(super) fn words(&self) -> String {
        let from = match self.from {
            Some(Says::KubeProxy) => ", says kube-proxy",
            Some(Says::KernelState) => ", as the kernel's state has it",
            Some(Says::Configuration) => ", as configured",
            None => "",
        };
        let mode = self.mode.map_or("not known", Mode::name);
        let names: Vec<&str> = self.leftovers.iter().map(|mode| mode.name()).collect();
        let left = if names.is_empty() {
            String::new()
        } else {
            format!("; left over from {}", names.join(" and "))
        };
        format!("{mode}{from}{left}")
    }
}
