//! A migration as it was confirmed, and its stages in order.

use std::fmt::{self, Display, Formatter};

use serde::{Deserialize, Serialize};

use super::probes::Target;
use kpx_judge::plan::Consent;
use kpx_node::backend::Mode;
use kpx_node::cluster::edit::Fields;
use kpx_node::evidence::Time;

/// A migration of one node, as it was confirmed.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Migration {
    /// Its id: the name of its folder.
    pub id: String,
    /// When it began.
    pub began: Time,
    /// The node, where its name is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
    /// The old mode, as kube-proxy reported it.
    pub from: Mode,
    /// The fields that are set in the configuration.
    pub there: Fields,
    /// The fields that a rollback sets.
    pub back: Fields,
    /// The strategy.
    pub strategy: Strategy,
    /// The pods that may be evicted although data is lost.
    #[serde(default, skip_serializing_if = "Consent::is_none")]
    pub evict: Consent,
    /// Modules to load first, in order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub modules: Vec<String>,
    /// Whether the configuration is changed, and kube-proxy restarted, externally.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub external: bool,
    /// The Services that answered before the migration, and must answer after it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub probes: Vec<Target>,
}

impl Migration {
    /// Returns the new mode.
    pub const fn to(&self) -> Mode {
        self.there.mode
    }

    /// Returns the mode that `leg` leads to.
    pub const fn target(&self, leg: Leg) -> Mode {
        match leg {
            Leg::There => self.there.mode,
            Leg::Back => self.from,
        }
    }

    /// Returns the mode that `leg` leads away from, whose rules it removes.
    pub const fn source(&self, leg: Leg) -> Mode {
        match leg {
            Leg::There => self.from,
            Leg::Back => self.there.mode,
        }
    }

    /// Returns the fields that `leg` sets in the configuration.
    pub const fn fields(&self, leg: Leg) -> &Fields {
        match leg {
            Leg::There => &self.there,
            Leg::Back => &self.back,
        }
    }
}

/// How connections are served while kube-proxy changes its mode.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[cfg_attr(feature = "testing", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum Strategy {
    /// The rules of the modes take over from each other.
    InPlace,
    /// kpx's own nftables table serves new connections until kube-proxy serves in the new mode.
    Bridge,
    /// The node's pods are evicted first; then the rules of the modes take over from each other.
    DrainNode,
}

impl Strategy {
    /// All strategies, the ones with less loss first.
    pub const ALL: [Self; 3] = [Self::Bridge, Self::InPlace, Self::DrainNode];

    /// Returns why [`Strategy::usual`] is what it is between these modes.
    pub const fn why_usual(from: Mode, to: Mode) -> &'static str {
        match (from, to) {
            (_, Mode::Nftables) => {
                "kube-proxy deletes the old mode's rules before its first sync in mode nftables, which may take minutes"
            }
            (Mode::Userspace, _) => {
                "the rules of mode userspace lead to ports of the old process, which close with it: the bridge serves new \
                 connections until kube-proxy's first sync in the new mode"
            }
            (Mode::Ipvs, _) => {
                "connections through virtual servers must end before these are removed, and the bridge serves new ones until then"
            }
            _ => "the old mode's rules serve until the new mode's first sync is done",
        }
    }

    /// Returns the default strategy between these modes. Away from ipvs, connections through virtual servers are drained,
    /// and the bridge serves new connections until then; to nftables, the first sync may take minutes; in mode userspace, the
    /// process itself serves, and ends.
    pub fn usual(from: Mode, to: Mode) -> Self {
        if to == Mode::Nftables || matches!(from, Mode::Ipvs | Mode::Userspace) {
            Self::Bridge
        } else {
            Self::InPlace
        }
    }
}

impl Display for Strategy {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::InPlace => "in-place",
            Self::Bridge => "bridge",
            Self::DrainNode => "drain-node",
        })
    }
}

/// The direction of a migration.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[cfg_attr(feature = "testing", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum Leg {
    /// To the new mode.
    There,
    /// To the old mode: the rollback.
    Back,
}

/// A stage of a migration.
#[derive(Clone, Copy, Debug, Deserialize, Eq, Ord, PartialEq, PartialOrd, Serialize)]
#[cfg_attr(feature = "testing", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum Stage {
    /// Writes a bundle of the node into the migration's folder.
    Backup,
    /// Loads kernel modules and sets sysctls.
    Prepare,
    /// Loads the bridge: kpx's own nftables table.
    BridgeUp,
    /// Cordons the node.
    Cordon,
    /// Evicts the node's pods.
    Evict,
    /// Writes the mode's rules beside the live ones, as far as the running kube-proxy does not remove them.
    Build,
    /// Waits for connections that the removal of virtual servers would break.
    Drain,
    /// Changes kube-proxy's configuration.
    Configure,
    /// Restarts kube-proxy.
    Restart,
    /// Waits until kube-proxy serves in the mode.
    Verify,
    /// Removes the previous mode's rules that established connections do not need.
    Unlink,
    /// Removes all leftovers of the previous mode.
    Clean,
    /// Restores sysctls and unloads kernel modules.
    Unprepare,
    /// Checks the gates again, and that there are no leftovers.
    Recheck,
    /// Removes the bridge.
    BridgeDown,
    /// Uncordons the node.
    Uncordon,
}

impl Stage {
    /// Returns the stage in words, imperative.
    pub const fn title(self) -> &'static str {
        match self {
            Self::Backup => "back up the node's state",
            Self::Prepare => "load kernel modules and set sysctls",
            Self::BridgeUp => "load the bridge",
            Self::Cordon => "cordon the node",
            Self::Evict => "evict the node's pods",
            Self::Build => "build the mode's rules beside the live ones",
            Self::Drain => "drain connections through virtual servers",
            Self::Configure => "change kube-proxy's configuration",
            Self::Restart => "restart kube-proxy",
            Self::Verify => "wait until kube-proxy serves in the mode",
            Self::Unlink => "remove the previous mode's rules",
            Self::Clean => "remove the previous mode's leftovers",
            Self::Unprepare => "restore sysctls and kernel modules",
            Self::Recheck => "check the result",
            Self::BridgeDown => "remove the bridge",
            Self::Uncordon => "uncordon the node",
        }
    }

    /// Returns whether it can be external: the change of the configuration, or the restart after it.
    pub const fn is_configuration(self) -> bool {
        matches!(self, Self::Configure | Self::Restart)
    }
}

/// Returns the stages towards the new mode, in order.
pub fn there(from: Mode, to: Mode, strategy: Strategy) -> Vec<Stage> {
    let bridge = strategy == Strategy::Bridge;
    let evict = strategy == Strategy::DrainNode;
    // A kube-proxy that starts in mode nftables deletes virtual servers at once; in mode iptables it keeps them.
    let drain_first = bridge && from == Mode::Ipvs;
    let drain_last = !bridge && (from, to) == (Mode::Ipvs, Mode::Iptables);
    let stages = [
        (Stage::Backup, true),
        (Stage::Prepare, true),
        (Stage::BridgeUp, bridge),
        (Stage::Cordon, evict),
        (Stage::Evict, evict),
        (Stage::Drain, drain_first),
        (Stage::Build, true),
        (Stage::Configure, true),
        (Stage::Restart, true),
        (Stage::Verify, true),
        (Stage::Unlink, drain_last),
        (Stage::Drain, drain_last),
        (Stage::Clean, true),
        (Stage::Recheck, true),
        (Stage::BridgeDown, bridge),
        (Stage::Uncordon, evict),
    ];
    chosen(&stages)
}

/// The progress of a migration when it turned to its rollback.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
#[expect(clippy::struct_excessive_bools, reason = "each is a fact of its own")]
pub struct Gone {
    /// The bridge may be loaded.
    pub bridged: bool,
    /// The configuration may have been changed.
    pub configured: bool,
    /// The node may be cordoned.
    pub cordoned: bool,
    /// It had ended: clients have used the new mode since.
    pub settled: bool,
    /// The configuration is restored, and kube-proxy restarted, externally, after everything is prepared.
    pub waits: bool,
}

/// Returns the stages of a rollback, in order.
pub fn back(from: Mode, to: Mode, gone: Gone) -> Vec<Stage> {
    let Gone {
        bridged,
        configured,
        cordoned,
        settled,
        waits,
    } = gone;
    // Then the bridge and a drain are needed, as for any migration away from ipvs.
    let leaves = settled && to == Mode::Ipvs;
    let drain = configured && !leaves && (to, from) == (Mode::Ipvs, Mode::Iptables);
    let stages = [
        (Stage::BridgeUp, leaves),
        (Stage::Drain, leaves),
        (Stage::Build, configured && waits),
        // Before any other change, or a restart would change to the new mode again.
        (Stage::Configure, configured),
        (Stage::Build, configured && !waits),
        (Stage::Restart, configured),
        (Stage::Verify, configured),
        (Stage::Unlink, drain),
        (Stage::Drain, drain),
        (Stage::Clean, true),
        (Stage::Unprepare, true),
        (Stage::Recheck, true),
        (Stage::BridgeDown, bridged || leaves),
        // Pods return only after everything is checked.
        (Stage::Uncordon, cordoned),
    ];
    chosen(&stages)
}

fn chosen(stages: &[(Stage, bool)]) -> Vec<Stage> {
    let chosen = stages.iter().filter(|(_, is)| *is);
    chosen.map(|(stage, _)| *stage).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(stages: &[Stage], stage: Stage) -> usize {
        stages
            .iter()
            .position(|own_stage| *own_stage == stage)
            .unwrap()
    }

    #[test]
    fn virtual_servers_are_removed_only_after_the_drain() {
        for to in Mode::ALL {
            for strategy in [Strategy::InPlace, Strategy::Bridge, Strategy::DrainNode] {
                let stages = there(Mode::Ipvs, to, strategy);
                let flush = if to == Mode::Nftables {
                    Stage::Restart
                } else {
                    Stage::Clean
                };
                if strategy == Strategy::Bridge || to == Mode::Iptables {
                    assert!(
                        at(&stages, Stage::Drain) < at(&stages, flush),
                        "{to} {stages:?}"
                    );
                }
            }
        }
        let gone = Gone {
            configured: true,
            ..Gone::default()
        };
        let stages = back(Mode::Iptables, Mode::Ipvs, gone);
        assert!(at(&stages, Stage::Drain) < at(&stages, Stage::Clean));
        let settled = Gone {
            settled: true,
            ..gone
        };
        for from in [Mode::Iptables, Mode::Nftables] {
            let stages = back(from, Mode::Ipvs, settled);
            assert!(at(&stages, Stage::BridgeUp) < at(&stages, Stage::Drain));
            assert!(at(&stages, Stage::Drain) < at(&stages, Stage::Configure));
            assert_eq!(stages.last(), Some(&Stage::BridgeDown));
        }
    }

    #[test]
    fn a_rollback_begins_with_the_configuration_and_ends_with_the_bridge() {
        let gone = Gone {
            bridged: true,
            configured: true,
            ..Gone::default()
        };
        let stages = back(Mode::Iptables, Mode::Nftables, gone);
        assert_eq!(stages.first(), Some(&Stage::Configure));
        assert_eq!(stages.last(), Some(&Stage::BridgeDown));
        let stages = back(Mode::Iptables, Mode::Nftables, Gone::default());
        assert_eq!(stages, [Stage::Clean, Stage::Unprepare, Stage::Recheck]);
    }

    #[test]
    fn pods_leave_before_the_build_and_return_after_the_check() {
        for from in Mode::ALL {
            for to in Mode::ALL {
                let stages = there(from, to, Strategy::DrainNode);
                assert!(at(&stages, Stage::Cordon) < at(&stages, Stage::Evict));
                assert!(at(&stages, Stage::Evict) < at(&stages, Stage::Build));
                assert_eq!(stages.last(), Some(&Stage::Uncordon));
                let cordoned = Gone {
                    cordoned: true,
                    ..Gone::default()
                };
                assert_eq!(back(from, to, cordoned).last(), Some(&Stage::Uncordon));
            }
        }
    }
}
