//! What was agreed to, and the stages in their order.

use std::fmt::{self, Display, Formatter};

use serde::{Deserialize, Serialize};

use super::probes::Target;
use crate::backend::Mode;
use crate::cluster::edit::Fields;
use crate::evidence::Time;
use crate::plan::Consent;

/// A move of one node, as it was agreed to.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Journey {
    /// Its name: the folder it is kept in.
    pub id: String,
    /// When it began.
    pub began: Time,
    /// The node, where its name is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
    /// The mode kube-proxy said it ran in.
    pub from: Mode,
    /// What is set in the configuration.
    pub there: Fields,
    /// What is set in it on the way back.
    pub back: Fields,
    /// What becomes of connections meanwhile.
    pub strategy: Strategy,
    /// What may be evicted although something is lost with it, where pods are.
    #[serde(default, skip_serializing_if = "Consent::is_none")]
    pub evict: Consent,
    /// Modules to load first, in order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub modules: Vec<String>,
    /// Whether the configuration is changed, and kube-proxy restarted, by somebody else.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub elsewhere: bool,
    /// What answered before, and so has to afterwards.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub probes: Vec<Target>,
}

impl Journey {
    /// Returns the mode it goes to.
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

    /// Returns the mode that `leg` leads away from, whose things it removes.
    pub const fn source(&self, leg: Leg) -> Mode {
        match leg {
            Leg::There => self.from,
            Leg::Back => self.there.mode,
        }
    }

    /// Returns what `leg` sets in the configuration.
    pub const fn fields(&self, leg: Leg) -> &Fields {
        match leg {
            Leg::There => &self.there,
            Leg::Back => &self.back,
        }
    }
}

/// What becomes of connections while kube-proxy changes its mode.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Strategy {
    /// The modes' own rules take over from each other.
    InPlace,
    /// A table of kpx's own takes new connections meanwhile.
    Bridge,
    /// The node's pods leave it first, and the modes' own rules take over from each other.
    DrainNode,
}

impl Strategy {
    /// All, those first that lose less.
    pub const ALL: [Self; 3] = [Self::Bridge, Self::InPlace, Self::DrainNode];

    /// Returns why [`Strategy::usual`] is what it is between these modes.
    pub const fn why_usual(from: Mode, to: Mode) -> &'static str {
        match (from, to) {
            (_, Mode::Nftables) => {
                "kube-proxy deletes the old mode's rules before its first sync in mode nftables, which may take minutes"
            }
            (Mode::Ipvs, _) => {
                "connections through virtual servers must have ended before these go, and new ones need another way until then"
            }
            _ => "the new mode's rules stand beside the old mode's until its first sync is done",
        }
    }

    /// Returns the one for a move between these modes where none is asked for. Connections of mode ipvs have to be waited
    /// for, and new ones need another way meanwhile; and the first sync of mode nftables may take minutes.
    pub fn usual(from: Mode, to: Mode) -> Self {
        if to == Mode::Nftables || from == Mode::Ipvs {
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

/// The way there, or back.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Leg {
    /// To the new mode.
    There,
    /// To the old mode.
    Back,
}

/// A part of the journey.
#[derive(Clone, Copy, Debug, Deserialize, Eq, Ord, PartialEq, PartialOrd, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Stage {
    /// Writes everything there is into a folder.
    Backup,
    /// Loads modules and sets kernel settings.
    Prepare,
    /// Has a table of kpx's own take new connections.
    BridgeUp,
    /// Keeps new pods away from the node.
    Cordon,
    /// Has the node's pods leave it.
    Evict,
    /// Writes what the mode needs beside what serves, as far as the running kube-proxy leaves it alone.
    Build,
    /// Waits for connections that the removal of virtual servers would break.
    Drain,
    /// Changes kube-proxy's configuration.
    Configure,
    /// Starts kube-proxy again.
    Restart,
    /// Waits until kube-proxy serves in the mode.
    Verify,
    /// Removes the rules of the mode that is left, and keeps what established connections need.
    Unlink,
    /// Removes everything of the mode that is left.
    Clean,
    /// Sets kernel settings back, and unloads modules.
    Unprepare,
    /// Makes sure that all is well, and nothing left.
    Recheck,
    /// Removes the table of kpx's own.
    BridgeDown,
    /// Lets pods come to the node again.
    Uncordon,
}

impl Stage {
    /// Returns what it does, imperative.
    pub const fn title(self) -> &'static str {
        match self {
            Self::Backup => "write a backup",
            Self::Prepare => "prepare the kernel",
            Self::BridgeUp => "put the bridge up",
            Self::Cordon => "cordon the node",
            Self::Evict => "evict the node's pods",
            Self::Build => "build the mode's rules beside those that serve",
            Self::Drain => "wait for connections through virtual servers to end",
            Self::Configure => "change kube-proxy's configuration",
            Self::Restart => "restart kube-proxy",
            Self::Verify => "wait until kube-proxy serves in the mode",
            Self::Unlink => "remove the rules of the mode that is left",
            Self::Clean => "remove what the mode that is left leaves behind",
            Self::Unprepare => "set the kernel back",
            Self::Recheck => "make sure that all is well",
            Self::BridgeDown => "take the bridge down",
            Self::Uncordon => "uncordon the node",
        }
    }

    /// Returns whether it belongs to whoever changes the configuration.
    pub const fn is_configuration(self) -> bool {
        matches!(self, Self::Configure | Self::Restart)
    }
}

/// Returns the stages of the way there, in order.
pub fn there(from: Mode, to: Mode, strategy: Strategy) -> Vec<Stage> {
    let bridge = strategy == Strategy::Bridge;
    let evict = strategy == Strategy::DrainNode;
    // A kube-proxy that starts in mode nftables deletes virtual servers at once; in mode iptables it lets them be.
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

/// How far a journey was gone when it turned back.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
#[expect(clippy::struct_excessive_bools, reason = "each is a fact of its own")]
pub struct Gone {
    /// The bridge may be up.
    pub bridged: bool,
    /// The configuration may have been changed.
    pub configured: bool,
    /// The node may be cordoned.
    pub cordoned: bool,
    /// It was over: clients have come to the new mode since.
    pub settled: bool,
    /// Somebody else puts the configuration back, and restarts kube-proxy, once all is prepared for that.
    pub waits: bool,
}

/// Returns the stages of the way back, in order.
pub fn back(from: Mode, to: Mode, gone: Gone) -> Vec<Stage> {
    let Gone {
        bridged,
        configured,
        cordoned,
        settled,
        waits,
    } = gone;
    // Then mode ipvs is left as on any way out of it; its configuration is what a restart finds meanwhile as before.
    let leaves = settled && to == Mode::Ipvs;
    let drain = configured && !leaves && (to, from) == (Mode::Ipvs, Mode::Iptables);
    let stages = [
        (Stage::BridgeUp, leaves),
        (Stage::Drain, leaves),
        (Stage::Build, configured && waits),
        // Before any other change, or any restart would lead to the new mode again.
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
        // Only now is it a place for pods again.
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
        stages.iter().position(|of| *of == stage).unwrap()
    }

    #[test]
    fn what_carries_connections_goes_only_after_they_are_drained() {
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
    fn on_the_way_back_the_configuration_is_first_and_the_bridge_last() {
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
    fn pods_leave_before_anything_serves_them_otherwise_and_come_when_all_is_well() {
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
