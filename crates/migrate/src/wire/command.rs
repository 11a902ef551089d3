//! The command lines that kpx composes for kpx on a node.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::migration::Strategy;
use kpx_judge::plan::Consent;
use kpx_judge::verdict::LossClass;
use kpx_node::backend::Mode;

/// A command for kpx on a node.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum NodeCommand {
    /// Reports what blocks a migration and what it costs.
    Preview(Start),
    /// Builds the new mode, up to the change of the configuration.
    Prepare(Start),
    /// Verifies the new mode and removes the old one.
    Finish(Timeouts),
    /// Rolls back; with `until_restart`, up to the change of the configuration.
    Rollback {
        /// Whether the configuration is restored, and kube-proxy restarted, externally.
        until_restart: bool,
        /// How long to wait.
        timeouts: Timeouts,
    },
    /// Keeps the bridge while no other kpx on the node does.
    Guard {
        /// The mode that the bridge serves as.
        mode: Mode,
        /// How long to wait for a bridge, in seconds.
        awaits: u64,
        /// The bridge's lease in seconds; `None` for the default.
        lease: Option<u64>,
    },
}

/// Options that begin a migration.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Start {
    /// The new mode.
    pub to: Mode,
    /// The mode whose leftovers are removed if kube-proxy already runs in the new mode.
    pub left: Mode,
    /// `ipvs.scheduler`, if it is to be set.
    pub scheduler: Option<String>,
    /// `ipvs.strictARP`, if it is to be set.
    pub strict_arp: Option<bool>,
    /// The strategy; `None` for the default between these modes.
    pub strategy: Option<Strategy>,
    /// The pods that may be evicted although data is lost.
    pub evict: Consent,
    /// Ids of checks that do not block.
    pub skip: Vec<String>,
    /// The classes of packets that the new mode may lose.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub accepts: Vec<LossClass>,
    /// How long to wait.
    pub timeouts: Timeouts,
}

/// How long a kpx on a node waits, in whole seconds.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Timeouts {
    /// For kube-proxy to serve in the new mode.
    pub confirm: u64,
    /// For connections to end and for evicted pods to leave.
    pub drain: u64,
    /// The bridge's lease; `None` for the default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lease: Option<u64>,
    /// Whether connections that do not end in time may break.
    #[serde(default)]
    pub accept_loss: bool,
}

impl NodeCommand {
    /// Returns the name of the command, which is part of a pod's name: it distinguishes kpx's pods on a node.
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Preview(_) => "preview",
            Self::Prepare(_) => "prepare",
            Self::Finish(_) => "finish",
            Self::Rollback { .. } => "rollback",
            Self::Guard { .. } => "guard",
        }
    }

    /// Returns the command line as an operator types it on the node.
    pub fn arguments(&self) -> Vec<String> {
        let mut line = CommandLine::default();
        match self {
            Self::Preview(start) => {
                line.words(&["migrate", "prepare"]);
                line.start(start);
                line.words(&["--dry-run", "--brief"]);
            }
            Self::Prepare(start) => {
                line.words(&["migrate", "prepare"]);
                line.start(start);
                line.words(&["--yes"]);
            }
            Self::Finish(timeouts) => {
                line.words(&["migrate", "finish"]);
                line.timeouts(*timeouts);
                line.words(&["--yes"]);
            }
            Self::Rollback {
                until_restart,
                timeouts,
            } => {
                line.words(&["migrate", "rollback"]);
                line.flag("--until-restart", *until_restart);
                line.timeouts(*timeouts);
                line.words(&["--yes"]);
            }
            Self::Guard {
                mode,
                awaits,
                lease,
            } => {
                line.words(&["bridge", "guard"]);
                line.seconds("--await", Some(*awaits));
                line.option("--mode", Some(mode.name()));
                line.seconds("--lease", *lease);
            }
        }
        line.0
    }

    /// Returns the command line for a pod on the Node called `node`, whose file system is mounted at `root`: it prints
    /// [`Line`](super::Line)s, and a pod that is created again repeats no work.
    pub fn pod_arguments(&self, root: &str, node: &str) -> Vec<String> {
        let mut line = CommandLine(self.arguments());
        match self {
            Self::Guard { .. } => {}
            Self::Preview(_) => line.option("--output", Some("json")),
            Self::Prepare(_) | Self::Finish(_) | Self::Rollback { .. } => {
                line.option("--output", Some("json"));
                line.words(&["--again"]);
            }
        }
        line.option("--root", Some(root));
        line.option("--node", Some(node));
        line.0
    }
}

impl Timeouts {
    /// Returns whole seconds of these durations; `lease` is `None` where it is the default.
    pub const fn new(
        confirm: Duration,
        drain: Duration,
        lease: Option<Duration>,
        accept_loss: bool,
    ) -> Self {
        Self {
            confirm: confirm.as_secs(),
            drain: drain.as_secs(),
            lease: match lease {
                Some(lease) => Some(lease.as_secs()),
                None => None,
            },
            accept_loss,
        }
    }
}

/// A command line that grows.
#[derive(Default)]
struct CommandLine(Vec<String>);

impl CommandLine {
    fn words(&mut self, words: &[&str]) {
        self.0.extend(words.iter().map(|&word| word.to_owned()));
    }

    fn option(&mut self, name: &str, value: Option<&str>) {
        if let Some(value) = value {
            self.words(&[name, value]);
        }
    }

    fn seconds(&mut self, name: &str, value: Option<u64>) {
        let value = value.map(|seconds| format!("{seconds}s"));
        self.option(name, value.as_deref());
    }

    fn flag(&mut self, name: &str, is_set: bool) {
        if is_set {
            self.words(&[name]);
        }
    }

    fn start(&mut self, start: &Start) {
        self.option("--to", Some(start.to.name()));
        self.option("--scheduler", start.scheduler.as_deref());
        // Its value is optional, so it follows an equals sign.
        self.0
            .extend(start.strict_arp.map(|on| format!("--strict-arp={on}")));
        self.option("--old-mode", Some(start.left.name()));
        let strategy = start.strategy.map(|strategy| strategy.to_string());
        self.option("--strategy", strategy.as_deref());
        self.flag("--delete-bare-pods", start.evict.bare);
        self.flag("--delete-emptydir-data", start.evict.empty_dir);
        if !start.skip.is_empty() {
            self.option("--skip", Some(&start.skip.join(",")));
        }
        if !start.accepts.is_empty() {
            let classes: Vec<String> = start.accepts.iter().map(ToString::to_string).collect();
            self.option("--accept-loss", Some(&classes.join(",")));
        }
        self.timeouts(start.timeouts);
    }

    fn timeouts(&mut self, timeouts: Timeouts) {
        self.seconds("--confirm-timeout", Some(timeouts.confirm));
        self.seconds("--drain-timeout", Some(timeouts.drain));
        self.seconds("--lease", timeouts.lease);
        self.flag("--accept-loss", timeouts.accept_loss);
    }
}
