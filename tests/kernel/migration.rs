//! `kpx migrate` on a node that serves real traffic, with a stand-in for kube-proxy, in a cluster of the tests' own.

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::net::TcpListener;
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use super::reconcile_ipvs::node::{State, rules};
use super::stand_in::KubeProxy;
use super::traffic::{Pace, Report, Traffic, World};
use crate::fake_api::{Api, Fate, Kubelet, Pod};

const KPX: &str = env!("CARGO_BIN_EXE_kpx");

/// What runs kube-proxy's pod on the node: the stand-in.
struct Node {
    world: Arc<World>,
    proxy: Mutex<Option<KubeProxy>>,
    first_sync: Mutex<Duration>,
}

impl Kubelet for Arc<Node> {
    fn start(&self, pod: &Pod) -> Fate {
        let config = pod.config.as_ref().unwrap();
        fs::write(self.world.folder.config(), config).unwrap();
        let first_sync = *self.first_sync.lock().unwrap();
        let proxy = self.world.proxy(first_sync);
        *self.proxy.lock().unwrap() = Some(proxy);
        Fate::Ready
    }

    fn stop(&self, _: &Pod) {
        let proxy = self.proxy.lock().unwrap().take();
        proxy.unwrap().stop();
    }

    fn log(&self, _: &Pod) -> String {
        let proxy = self.proxy.lock().unwrap();
        proxy.as_ref().map_or(String::new(), KubeProxy::log)
    }
}

/// A node in a cluster.
struct Machine {
    world: Arc<World>,
    node: Arc<Node>,
    api: Api,
    /// What stands for the machine's own `/var/lib` and `/etc`.
    own: tempfile::TempDir,
    /// Where the Service of the API server leads to.
    _listener: TcpListener,
}

impl Machine {
    /// A node whose kube-proxy has synced in `mode`; later ones take `first_sync` longer for their first sync.
    fn new(mode: &str, first_sync: Duration) -> Self {
        let world = Arc::new(World::new(mode));
        let cluster = world.folder.0.join("cluster/configmaps.json");
        let maps = fs::read_to_string(&cluster).unwrap();
        let recorded = r#"mode: \"iptables\""#;
        assert!(maps.contains(recorded));
        fs::write(
            &cluster,
            maps.replace(recorded, &format!(r#"mode: \"{mode}\""#)),
        )
        .unwrap();

        let inside = || TcpListener::bind("127.0.0.1:6443").unwrap();
        let api = Api::at(world.network.node.inside(inside));
        fs::write(world.folder.0.join("kubeconfig"), api.kubeconfig()).unwrap();
        let node = Arc::new(Node {
            world: Arc::clone(&world),
            proxy: Mutex::new(None),
            first_sync: Mutex::new(Duration::ZERO),
        });
        api.kubelet(Arc::clone(&node));
        api.seed(&world.folder.0, &["node1"]);
        let own = tempfile::tempdir().unwrap();
        for folder in ["lib", "memory"] {
            fs::create_dir(own.path().join(folder)).unwrap();
        }
        let listener = || TcpListener::bind("10.0.2.2:6443").unwrap();
        let machine = Self {
            _listener: world.network.outside.inside(listener),
            world,
            node,
            api,
            own,
        };
        machine.synced();
        *machine.node.first_sync.lock().unwrap() = first_sync;
        machine
    }

    fn synced(&self) {
        let mut proxy = self.node.proxy.lock().unwrap();
        proxy.as_mut().unwrap().wait_synced(1);
    }

    fn state(&self) -> State {
        State::of(&self.world.network.node)
    }

    /// Runs kpx on the node, which must succeed, and calls `told` with each line it says on the way; returns all it said.
    #[expect(clippy::disallowed_methods, reason = "kpx itself is what is tested")]
    fn kpx(&self, args: &[&str], mut told: impl FnMut(&str)) -> String {
        // What it keeps on the machine is the test's own.
        const APART: &str = "set -e; mount --bind $0/lib /var/lib; \
            touch /run/kpx.lock $0/lock; mount --bind $0/lock /run/kpx.lock; \
            mount -t tmpfs tmpfs $0/memory; mkdir $0/memory/etc $0/memory/work; \
            mount -t overlay overlay -o lowerdir=/etc,upperdir=$0/memory/etc,workdir=$0/memory/work /etc; \
            exec \"$@\"";
        let kubeconfig = self.world.folder.0.join("kubeconfig");
        let mut child = self.world.network.node.inside(|| {
            Command::new("unshare")
                .args(["--mount", "sh", "-c", APART])
                .arg(self.own.path())
                .args([KPX, "--node", "node1", "--timeout", "60s", "--kubeconfig"])
                .arg(&kubeconfig)
                .args(args)
                .stdin(Stdio::null())
                .stdout(Stdio::piped())
                .stderr(Stdio::piped())
                .spawn()
                .unwrap()
        });
        let mut text = String::new();
        for line in BufReader::new(child.stderr.take().unwrap()).lines() {
            let line = line.unwrap();
            told(&line);
            text.push_str(&line);
            text.push('\n');
        }
        let output = child.wait_with_output().unwrap();
        text.push_str(std::str::from_utf8(&output.stdout).unwrap());
        assert!(
            output.status.success(),
            "{args:?}: {}\n{text}",
            output.status
        );
        text
    }

    /// Moves the node to `mode` under traffic, with `options`; returns what became of the traffic. Connections that stay end
    /// by themselves where kpx waits for that.
    #[expect(
        clippy::print_stdout,
        reason = "the figures, for whoever wants to see them"
    )]
    fn move_to(&self, mode: &str, options: &[&str], pace: Pace) -> Report {
        let traffic = Traffic::start(&self.world, pace);
        let mut args = vec!["migrate", "--to", mode, "--this-node", "--yes"];
        args.extend(options);
        let said = self.kpx(&args, |line| {
            if line.contains("connections are open") {
                traffic.end_long();
            }
        });
        thread::sleep(Duration::from_secs(2));
        let report = traffic.stop().about(format!("{args:?}:\n{said}"));
        println!("{report}");
        report
    }
}

/// How much longer than it takes by itself a first sync takes.
const FIRST_SYNC: Duration = Duration::from_secs(30);

const IN_PLACE: &[&str] = &["--strategy", "in-place"];
const BRIDGE: &[&str] = &["--strategy", "bridge"];

/// From iptables to nftables and back: nothing is lost, and nothing is left.
fn by_nftables(options: &[&str]) {
    let machine = Machine::new("iptables", FIRST_SYNC);
    let netns = &machine.world.network.node;
    let state = || {
        let saved = ["iptables-save", "ip6tables-save"].map(|tool| rules(&netns.run(tool)));
        (saved, netns.run("nft list tables"), machine.api.config())
    };
    let before = state();
    machine.move_to("nftables", options, Pace::FULL).unharmed();
    let left = netns.run("iptables-save");
    assert!(!left.contains("KUBE-SERVICES"), "{left}");
    machine.move_to("iptables", options, Pace::FULL).unharmed();
    assert_eq!(state(), before);
}

#[test]
#[ignore = "needs root and network namespaces"]
fn into_nftables_and_back_by_a_bridge_nothing_is_lost_or_left() {
    by_nftables(BRIDGE);
}

#[test]
#[ignore = "needs root and network namespaces"]
fn into_nftables_and_back_in_place_nothing_is_lost_or_left() {
    by_nftables(IN_PLACE);
}

#[test]
#[ignore = "needs root and ip_vs"]
fn vm_into_ipvs_in_place_nothing_is_lost_or_left() {
    let machine = Machine::new("iptables", Duration::ZERO);
    machine.move_to("ipvs", IN_PLACE, Pace::EMULATED).unharmed();
    let state = machine.state();
    assert!(state.servers.len() > 20, "{state:?}");
    let left = [
        "KUBE-SVC-",
        "KUBE-SEP-",
        "KUBE-NODEPORTS",
        "KUBE-EXTERNAL-SERVICES",
    ];
    let rules = state.rules.concat();
    let left = rules
        .iter()
        .filter(|rule| left.iter().any(|name| rule.contains(name)));
    assert_eq!(left.collect::<Vec<_>>(), [""; 0]);
}
