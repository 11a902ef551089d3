//! A node of a recording, and what the standard tools say of it.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{self, Stdio};

use kpx_host::{self as host, Live};
use kpx_judge::diff::{self, Layer};
use kpx_judge::plan::{self, Drain, Plan};
use kpx_node::action::Action;
use kpx_node::apply::{self, Apply, StepError, Stopped};
use kpx_node::backend::Mode;
use kpx_node::evidence;
use kpx_node::net::Family;
use kpx_node::node::NodeSnapshot;
use serde_json::Value;

use crate::kernel::netns::Netns;

const BIN: &str = env!("CARGO_BIN_EXE_kpx");

/// Returns the path of the bundle `recording`.
pub(crate) fn data(recording: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("testdata/nodes")
        .join(recording)
}

/// The output of a run of kpx, and its exit status.
pub(crate) struct Ran {
    pub(crate) text: String,
    pub(crate) code: Option<i32>,
}

/// A node of a recording, with nothing of kube-proxy.
pub(crate) struct Node {
    pub(crate) netns: Netns,
    pub(crate) recording: PathBuf,
}

impl Node {
    pub(crate) fn new(recording: &str) -> Self {
        Self::from(&data(recording), recording.starts_with("dual"))
    }

    /// The same with the cluster of the bundle at `recording`.
    pub(crate) fn from(recording: &Path, dual: bool) -> Self {
        let netns = Netns::new();
        let mut links =
            "link add eth0 type dummy\nlink set eth0 up\naddr add 10.0.2.15/24 dev eth0\n"
                .to_owned();
        links.push_str("addr add fec0::5054:ff:fe12:3456/64 dev eth0 nodad\n");
        if dual {
            links.push_str("addr add fd00:10:0:2::15/64 dev eth0 nodad\n");
        }
        netns.feed("ip -batch -", &links);
        Self {
            netns,
            recording: recording.to_owned(),
        }
    }

    #[expect(clippy::disallowed_methods, reason = "kpx itself is what is tested")]
    pub(crate) fn command(&self, what: &str, args: &[&str]) -> process::Command {
        let mut command = process::Command::new(BIN);
        let name = self.netns.options().netns.unwrap();
        command.args(["--netns", &name, "--timeout", "60s", "--cluster-from"]);
        command.arg(&self.recording);
        command.args(["reconcile", what, "ipvs"]).args(args);
        command.stdin(Stdio::null());
        command
    }

    fn ran(&self, what: &str, args: &[&str]) -> Ran {
        let output = self.command(what, args).output().unwrap();
        Ran {
            text: String::from_utf8([output.stdout, output.stderr].concat()).unwrap(),
            code: output.status.code(),
        }
    }

    pub(crate) fn reconcile(&self, args: &[&str]) -> Ran {
        self.ran("--mode", args)
    }

    pub(crate) fn apply(&self) {
        let ran = self.reconcile(&["--apply", "--yes"]);
        assert_eq!(ran.code, Some(0), "{}", ran.text);
    }

    /// Removes what the mode has.
    pub(crate) fn cleanup(&self) {
        let ran = self.ran("--cleanup", &["--force", "--apply", "--yes"]);
        assert_eq!(ran.code, Some(0), "{}", ran.text);
    }

    /// The plan that brings the node to mode ipvs, made in this process.
    pub(crate) async fn plan(&self) -> Plan {
        let (cluster, live): (Vec<_>, Vec<_>) = diff::needs(Mode::Ipvs)
            .into_iter()
            .partition(|item| item.is_of_cluster());
        let mut evidence = host::collect(&live, &self.netns.options()).await;
        evidence.extend(evidence::load(&self.recording, &cluster).unwrap());
        let node = NodeSnapshot::new(&evidence);
        let found = diff::compare(&node, Mode::Ipvs, &Family::BOTH).unwrap();
        assert!(found.unknown.is_empty(), "{:?}", found.unknown);
        plan::repair(
            &node,
            Mode::Ipvs,
            &Family::BOTH,
            &found,
            LAYERS,
            Drain::First,
        )
        .unwrap()
    }

    /// Carries `plan` out.
    pub(crate) async fn run(&self, plan: &Plan) -> Result<(), Stopped> {
        let mut live = Live::new(&self.netns.options()).unwrap();
        apply::run(plan, &mut live, |_| {}).await
    }

    /// Carries `plan` out up to step `at`, from 0, which fails after half of it is done; `then` decides whether the steps are
    /// undone.
    pub(crate) async fn fail_at(&self, plan: &Plan, at: usize, then: Then) -> Option<Stopped> {
        let mut failing = Failing {
            live: Live::new(&self.netns.options()).unwrap(),
            at: Some(at),
        };
        match then {
            Then::Undo => apply::run(plan, &mut failing, |_| {}).await.err(),
            Then::Nothing => {
                for step in &plan.steps[..at] {
                    failing.live.apply(&step.action).await.unwrap();
                }
                failing.half(&plan.steps[at].action).await;
                None
            }
        }
    }

    /// Everything that the ipvs mode writes, by the standard tools, in one order.
    pub(crate) fn state(&self) -> State {
        State::of(&self.netns)
    }

    /// The same of the recording.
    pub(crate) fn recorded(&self) -> State {
        let read = |name: &str| fs::read_to_string(self.recording.join("node").join(name)).unwrap();
        let all = read("sysctl.txt");
        let sysctls = all.lines().filter(|line| {
            let key = line.split(" = ").next().unwrap();
            SYSCTLS.contains(&key)
        });
        let links: Vec<Value> = serde_json::from_str(&read("ip-addr.json")).unwrap();
        State {
            rules: ["iptables-save.txt", "ip6tables-save.txt"].map(|name| rules(&read(name))),
            sets: sets(&read("ipset-save.txt")),
            servers: lines(&read("ipvsadm-save.txt")),
            addresses: addresses(&links),
            sysctls: sysctls.map(str::to_owned).collect(),
        }
    }
}

const SYSCTLS: &[&str] = &[
    "net.ipv4.ip_forward",
    "net.ipv4.vs.conntrack",
    "net.ipv4.vs.expire_nodest_conn",
    "net.ipv4.vs.expire_quiescent_template",
    "net.ipv4.conf.all.arp_announce",
    "net.ipv4.conf.all.arp_ignore",
];

#[derive(Debug, Eq, PartialEq)]
pub(crate) struct State {
    pub(crate) rules: [Vec<String>; 2],
    pub(crate) sets: BTreeSet<String>,
    pub(crate) servers: BTreeSet<String>,
    pub(crate) addresses: BTreeSet<String>,
    pub(crate) sysctls: BTreeSet<String>,
}

impl State {
    /// Reads the state of `netns`.
    pub(crate) fn of(netns: &Netns) -> Self {
        let sysctls: String = SYSCTLS
            .iter()
            .map(|key| netns.run(&format!("sysctl -e {key}")))
            .collect();
        let links: Vec<Value> = serde_json::from_str(&netns.run("ip -j addr")).unwrap();
        Self {
            rules: ["iptables-save", "ip6tables-save"].map(|tool| rules(&netns.run(tool))),
            sets: sets(&netns.run("ipset save")),
            servers: lines(&netns.run("ipvsadm -Sn")),
            addresses: addresses(&links),
            sysctls: lines(&sysctls),
        }
    }
}

fn lines(text: &str) -> BTreeSet<String> {
    text.lines().map(|line| line.trim().to_owned()).collect()
}

/// Rules chain by chain in their order, without counters, policies and comments.
pub(crate) fn rules(text: &str) -> Vec<String> {
    let lines = text.lines().map(|line| {
        let line = line.split_once("] -A ").map_or(line, |(_, rule)| rule);
        let line = line.strip_prefix("-A ").unwrap_or(line);
        line.split(" [").next().unwrap().to_owned()
    });
    let mut lines: Vec<_> = lines
        .filter(|line| {
            !line.starts_with(['#']) && !line.ends_with(" ACCEPT") || line.contains("-j")
        })
        // A table without anything in it may be there or not.
        .filter(|line| !line.starts_with('*') && line != "COMMIT")
        .collect();
    lines.sort_by_key(|line| line.split(' ').next().unwrap().to_owned());
    lines
}

/// Sets and members, without what the kernel chose.
fn sets(text: &str) -> BTreeSet<String> {
    let lines = text.lines().map(|line| {
        let line = line.split(" bucketsize ").next().unwrap();
        line.split(" initval ").next().unwrap().to_owned()
    });
    lines.collect()
}

/// Each address of kube-ipvs0, as `ip` shows it, and the link's flags.
fn addresses(links: &[Value]) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for link in links.iter().filter(|link| link["ifname"] == "kube-ipvs0") {
        found.insert(format!("{} {}", link["flags"], link["operstate"]));
        found.extend(
            link["addr_info"]
                .as_array()
                .unwrap()
                .iter()
                .map(Value::to_string),
        );
    }
    found
}

const LAYERS: &[Layer] = &[
    Layer::Iptables,
    Layer::Ipset,
    Layer::Ipvs,
    Layer::Link,
    Layer::Sysctl,
];

/// The events after a step that fails.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Then {
    /// kpx takes back what it did.
    Undo,
    /// kpx is dead.
    Nothing,
}

/// A node on which one step fails when half of it is done.
struct Failing {
    live: Live,
    /// How many steps go well before.
    at: Option<usize>,
}

impl Failing {
    async fn half(&mut self, action: &Action) {
        let half = match action {
            Action::Ipvs { commands } => Action::Ipvs {
                commands: commands[..commands.len() / 2].to_vec(),
            },
            Action::Link { commands } => Action::Link {
                commands: commands[..commands.len() / 2].to_vec(),
            },
            Action::Ipset { input } => {
                let lines: Vec<_> = input.split_inclusive('\n').collect();
                Action::Ipset {
                    input: lines[..lines.len() / 2].concat(),
                }
            }
            Action::LoadModules { names } => Action::LoadModules {
                names: names[..1].to_vec(),
            },
            other => {
                assert!(other.is_atomic(), "{other}");
                return;
            }
        };
        self.live.apply(&half).await.unwrap();
    }
}

impl Apply for Failing {
    async fn apply(&mut self, action: &Action) -> Result<(), StepError> {
        if self.at == Some(0) {
            self.at = None;
            self.half(action).await;
            return Err(StepError::Denied("Operation not permitted".to_owned()));
        }
        self.at = self.at.map(|left| left - 1);
        self.live.apply(action).await
    }
}
