//! `kpx migrate` on a node that serves real traffic, with a stand-in for kube-proxy, in a cluster of the tests' own.

mod page;

use std::fmt::Write as _;
use std::fs;
use std::io::{BufRead as _, BufReader};
use std::net::TcpListener;
use std::os::unix::process::ExitStatusExt as _;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};

use super::others;
use super::reconcile_ipvs::node::{State, rules};
use super::stand_in::KubeProxy;
use super::traffic::{Pace, Report, Traffic, World};
use crate::fake_api::{Api, Fate, Kubelet, Pod};

const KPX: &str = env!("CARGO_BIN_EXE_kpx");

/// A node with the stand-in for kube-proxy's pod.
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
    /// The folders in the place of the machine's own `/var/lib` and `/etc`.
    own: tempfile::TempDir,
    /// The listener behind the Service of the API server.
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

    /// Starts kpx on the node; its standard error is a pipe.
    #[expect(clippy::disallowed_methods, reason = "kpx itself is what is tested")]
    fn start(&self, args: &[&str]) -> Child {
        // Its files on the machine are in the test's own folder.
        const APART: &str = "set -e; mount --bind $0/lib /var/lib; \
            for lock in kpx.lock kpx-bridge-guard.lock; do \
                touch /run/$lock $0/$lock; mount --bind $0/$lock /run/$lock; \
            done; \
            mount -t tmpfs tmpfs $0/memory; mkdir $0/memory/etc $0/memory/work; \
            mount -t overlay overlay -o lowerdir=/etc,upperdir=$0/memory/etc,workdir=$0/memory/work /etc; \
            exec \"$@\"";
        let kubeconfig = self.world.folder.0.join("kubeconfig");
        self.world.network.node.inside(|| {
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
        })
    }

    /// Runs kpx on the node, which must succeed, and calls `on_line` with each line of progress; returns the whole output.
    fn kpx(&self, args: &[&str], on_line: impl FnMut(&str)) -> String {
        let (status, text) = self.ran(args, on_line);
        assert!(status.success(), "{args:?}: {status}\n{text}");
        text
    }

    /// Runs kpx on the node, and calls `on_line` with each line of progress; returns its exit status and the whole output.
    fn ran(&self, args: &[&str], mut on_line: impl FnMut(&str)) -> (ExitStatus, String) {
        let mut child = self.start(args);
        let mut text = String::new();
        for line in BufReader::new(child.stderr.take().unwrap()).lines() {
            let line = line.unwrap();
            on_line(&line);
            text.push_str(&line);
            text.push('\n');
        }
        let output = child.wait_with_output().unwrap();
        text.push_str(std::str::from_utf8(&output.stdout).unwrap());
        (output.status, text)
    }

    /// Runs kpx on the node, and kills it when it prints a line with `moment`.
    fn killed_at(&self, args: &[&str], moment: &str) {
        let mut child = self.start(args);
        let mut text = String::new();
        let lines = BufReader::new(child.stderr.take().unwrap()).lines();
        for line in lines.map(Result::unwrap) {
            writeln!(text, "{line}").unwrap();
            if line.starts_with("kpx: ") && line.contains(moment) {
                // It is kpx itself: what was started became it.
                child.kill().unwrap();
                break;
            }
        }
        let status = child.wait().unwrap();
        assert_eq!(status.signal(), Some(9), "{moment}: {status}\n{text}");
    }

    /// Runs kpx on the node, and sends it `signal` when it prints a line with `moment`. It must then stop and print the next
    /// commands.
    fn asked_at(&self, args: &[&str], moment: &str, signal: Signal) {
        let mut child = self.start(args);
        let mut text = String::new();
        let mut sent = None;
        for line in BufReader::new(child.stderr.take().unwrap()).lines() {
            let line = line.unwrap();
            writeln!(text, "{line}").unwrap();
            if sent.is_none() && line.starts_with("kpx: ") && line.contains(moment) {
                let pid = Pid::from_raw(child.id().cast_signed());
                kill(pid, signal).unwrap();
                sent = Some(Instant::now());
            }
        }
        let output = child.wait_with_output().unwrap();
        text.push_str(std::str::from_utf8(&output.stdout).unwrap());
        let took = sent.expect(&text).elapsed();
        assert_eq!(output.status.code(), Some(4), "{text}");
        assert!(took < Duration::from_secs(10), "{took:?}: {text}");
        for words in [
            "reason: stopped on request",
            "next: kpx migrate resume --kubeconfig ",
            ", or kpx migrate rollback --kubeconfig ",
            " --node node1 --this-node",
        ] {
            assert!(text.contains(words), "{text}");
        }
    }

    /// Kills every guard of the node's bridge.
    fn kill_guard(&self) {
        let kubeconfig = self.world.folder.0.join("kubeconfig");
        let ours = format!("--kubeconfig={}", kubeconfig.display());
        let mut killed = 0;
        for process in fs::read_dir("/proc").unwrap().map(Result::unwrap) {
            let name = process.file_name().into_string().unwrap();
            let (Ok(pid), Ok(line)) = (name.parse(), fs::read(process.path().join("cmdline")))
            else {
                continue;
            };
            let line = String::from_utf8_lossy(&line);
            let words: Vec<&str> = line.split('\0').collect();
            if words.contains(&"guard") && words.contains(&ours.as_str()) {
                kill(Pid::from_raw(pid), Signal::SIGKILL).unwrap();
                killed += 1;
            }
        }
        assert_eq!(killed, 1, "guards");
    }

    /// Waits until the lease of the bridge is over.
    fn wait_expired(&self) {
        let begin = Instant::now();
        let alive = || {
            self.world
                .network
                .node
                .run("nft list set ip kpx-bridge alive")
        };
        while alive().contains("expires") {
            assert!(begin.elapsed() < Duration::from_secs(120), "{}", alive());
            thread::sleep(Duration::from_millis(200));
        }
    }

    fn has_bridge(&self) -> bool {
        let tables = self.world.network.node.run("nft list tables");
        tables.contains("kpx-bridge")
    }

    /// Moves the node to `mode` under traffic, with `options`; returns the fate of the traffic. Connections that stay end by
    /// themselves where kpx waits for that.
    #[expect(
        clippy::print_stdout,
        reason = "the figures, for whoever wants to see them"
    )]
    fn move_to(&self, mode: &str, options: &[&str], pace: Pace) -> Report {
        let traffic = Traffic::start(&self.world, pace);
        let mut args = vec!["migrate", "--to", mode, "--this-node", "--yes"];
        args.extend(options);
        let mut times = String::new();
        self.kpx(&args, |line| {
            // Not where the plan mentions them.
            if line.starts_with("kpx: ") && line.contains("connections open: ") {
                traffic.end_long();
            }
            writeln!(times, "{:6.2} {line}", traffic.elapsed().as_secs_f32()).unwrap();
        });
        thread::sleep(Duration::from_secs(2));
        let drops = self.world.network.node.run("conntrack -S");
        let report = traffic.stop();
        let report = report.about(format!("{args:?}:\n{times}\n{drops}"));
        println!("{report}");
        report
    }
}

/// Shows the figures of `report`, in which nothing may have failed.
#[expect(
    clippy::print_stdout,
    reason = "the figures, for whoever wants to see them"
)]
fn judge(report: &Report) {
    println!("{report}");
    report.unharmed();
}

/// The time added to a first sync.
const FIRST_SYNC: Duration = Duration::from_secs(30);

const IN_PLACE: &[&str] = &["--strategy", "in-place"];
const BRIDGE: &[&str] = &["--strategy", "bridge"];

/// From iptables to nftables and back: nothing is lost, and nothing is left.
fn by_nftables(options: &[&str]) {
    let machine = Machine::new("iptables", FIRST_SYNC);
    let before = picture(&machine);
    machine.move_to("nftables", options, Pace::FULL).unharmed();
    let left = machine.world.network.node.run("iptables-save");
    assert!(!left.contains("KUBE-SERVICES"), "{left}");
    machine.move_to("iptables", options, Pace::FULL).unharmed();
    assert_eq!(picture(&machine), before);
}

/// A first sync of those that are cut short.
const SHORT_SYNC: Duration = Duration::from_secs(12);

const THERE: &[&str] = &["migrate", "--to", "nftables", "--this-node", "--yes"];
const RESUME: &[&str] = &["migrate", "resume", "--yes"];
const ROLLBACK: &[&str] = &["migrate", "rollback", "--yes"];

/// Where kpx is killed: the bridge is up; the configuration is about to be changed, and was; kube-proxy has no rules.
const MOMENTS: [&str; 4] = [
    "build the mode's rules",
    "set mode nftables in",
    "restart kube-proxy",
    "no sync of IPv4 is done yet",
];

/// Leaves the migration alone for a while: only the guard runs.
fn leave_alone() {
    thread::sleep(Duration::from_secs(4));
}

/// The rules of iptables, the tables of nftables, and the configuration.
fn picture(machine: &Machine) -> ([Vec<String>; 2], String, String) {
    let netns = &machine.world.network.node;
    let saved = ["iptables-save", "ip6tables-save"].map(|tool| rules(&netns.run(tool)));
    (saved, netns.run("nft list tables"), machine.api.config())
}

/// The annotations of the ConfigMap.
fn annotations(machine: &Machine) -> Vec<String> {
    machine.api.with(|cluster| {
        let map = cluster.get("configmaps", "kube-system", "kube-proxy");
        let all = map.and_then(|map| map["metadata"]["annotations"].as_object());
        all.into_iter()
            .flatten()
            .map(|annotation| format!("{annotation:?}"))
            .collect()
    })
}

#[test]
#[ignore = "needs root and network namespaces"]
fn long_killed_at_several_moments_it_is_resumed_and_nothing_is_lost() {
    let machine = Machine::new("iptables", SHORT_SYNC);
    let printed = machine.kpx(THERE, |_| {});
    // With --yes, kpx prints a short plan and, at the end, the time that the migration took.
    for words in [": --dry-run shows them\n", "\ntook "] {
        assert!(printed.contains(words), "{printed}");
    }
    assert!(!printed.contains("undo: "), "{printed}");
    let after = picture(&machine);
    let printed = machine.kpx(ROLLBACK, |_| {});
    let end = "node1: rolled back from mode nftables to mode iptables\n";
    assert!(printed.contains(end), "{printed}");
    let traffic = Traffic::start(&machine.world, Pace::FULL);
    let mut args = THERE;
    for moment in MOMENTS {
        machine.killed_at(args, moment);
        leave_alone();
        args = RESUME;
    }
    assert!(machine.has_bridge());
    machine.kpx(RESUME, |_| {});
    thread::sleep(Duration::from_secs(1));
    judge(&traffic.stop());
    assert_eq!(picture(&machine), after);
}

#[test]
#[ignore = "needs root and network namespaces"]
fn long_killed_at_several_moments_it_is_rolled_back_and_nothing_is_lost() {
    let machine = Machine::new("iptables", SHORT_SYNC);
    // As kubeadm writes it.
    machine.api.reconfigure("mode: \"iptables\"", "mode: \"\"");
    let (before, notes) = (picture(&machine), annotations(&machine));
    let traffic = Traffic::start(&machine.world, Pace::FULL);
    for moment in MOMENTS {
        machine.killed_at(THERE, moment);
        leave_alone();
        machine.kpx(ROLLBACK, |_| {});
        assert_eq!(picture(&machine), before, "{moment}");
        assert_eq!(annotations(&machine), notes, "{moment}");
    }
    // A rollback that was killed is resumed as a rollback.
    machine.killed_at(THERE, MOMENTS[3]);
    machine.killed_at(ROLLBACK, "no sync of IPv4 is done yet");
    leave_alone();
    assert!(machine.has_bridge());
    machine.kpx(RESUME, |_| {});
    assert_eq!(picture(&machine), before);
    judge(&traffic.stop());
}

#[test]
#[ignore = "needs root and network namespaces"]
fn long_killed_with_its_guard_kube_proxy_serves_and_a_bridge_that_expired_is_loaded_anew() {
    const LEASE: &[&str] = &["--lease", "20s"];
    let machine = Machine::new("iptables", SHORT_SYNC);
    let before = picture(&machine);
    let traffic = Traffic::start(&machine.world, Pace::FULL);
    let begun = [THERE, LEASE].concat();
    // A rollback removes the expired bridge; a resume loads it again first.
    for back in [ROLLBACK, RESUME] {
        machine.killed_at(&begun, MOMENTS[0]);
        machine.kill_guard();
        machine.wait_expired();
        assert!(machine.has_bridge());
        // kube-proxy's rules of the old mode serve.
        thread::sleep(Duration::from_secs(3));
        machine.kpx(back, |_| {});
        assert!(!machine.has_bridge());
        if back == ROLLBACK {
            assert_eq!(picture(&machine), before);
        }
    }
    thread::sleep(Duration::from_secs(1));
    judge(&traffic.stop());
    let left = machine.world.network.node.run("iptables-save");
    assert!(!left.contains("KUBE-SERVICES"), "{left}");
}

#[test]
#[ignore = "needs root and network namespaces"]
fn long_asked_to_stop_it_stops_and_a_guard_keeps_what_is_prepared() {
    let machine = Machine::new("iptables", SHORT_SYNC);
    let before = picture(&machine);
    let traffic = Traffic::start(&machine.world, Pace::FULL);
    machine.asked_at(THERE, MOMENTS[0], Signal::SIGINT);
    machine.asked_at(RESUME, MOMENTS[3], Signal::SIGTERM);
    machine.kpx(ROLLBACK, |_| {});
    assert_eq!(picture(&machine), before);

    machine.kpx(&["migrate", "prepare", "--to", "nftables", "--yes"], |_| {});
    // Mode iptables is whole all the while.
    for _ in 0..8 {
        thread::sleep(Duration::from_secs(1));
        assert!(machine.has_bridge());
    }
    machine.kpx(ROLLBACK, |_| {});
    assert!(!machine.has_bridge());
    assert_eq!(picture(&machine), before);
    judge(&traffic.stop());
}

/// Leads a pod's packets to a Service to a process of the node, behind the bridge and before kube-proxy's rules.
const HIJACK: &str = "table ip hijack {
    chain prerouting {
        type nat hook prerouting priority -105;
        iifname client0 ip daddr 10.100.3.14 tcp dport 53 dnat to 10.0.2.15:9053
    }
}";

#[test]
#[ignore = "needs root and network namespaces"]
fn a_service_that_something_else_answers_behind_the_bridge_is_misled_and_rolled_back() {
    let machine = Machine::new("iptables", Duration::ZERO);
    let netns = &machine.world.network.node;
    let process = machine.world.client_process();
    let pod = json!({
        "kind": "Pod", "apiVersion": "v1",
        "metadata": {"name": "client-0", "namespace": "demo"},
        "spec": {"nodeName": "node1", "containers": []},
        "status": {"phase": "Running", "podIP": "10.244.1.200", "podIPs": [{"ip": "10.244.1.200"}]},
    });
    machine.api.with(|cluster| cluster.put(pod));
    let impostor = netns.inside(|| TcpListener::bind("10.0.2.15:9053").unwrap());
    let before = picture(&machine);
    let confirm = ["--confirm-timeout", "4s"];
    let (status, text) = machine.ran(&[THERE, &confirm].concat(), |line| {
        if line.ends_with("Z restart kube-proxy") {
            netns.feed("nft -f -", HIJACK);
        } else if line.contains("rolling back to the old mode") {
            netns.run("nft delete table ip hijack");
        }
    });
    assert!(!status.success(), "{text}");
    for words in [
        "shop/dns:dns-tcp (tcp 10.100.3.14:53) from pod 10.244.1.200",
        ": misled: 10.0.2.15:9053 answered, which is no endpoint of the Service",
        "rolled back",
    ] {
        assert!(text.contains(words), "{words}: {text}");
    }
    assert_eq!(picture(&machine), before);
    let links = netns.run("ip -br link");
    assert!(
        !links.lines().any(|line| line.starts_with("kpx")),
        "{links}"
    );
    drop((process, impostor));
}

/// The state that the coordinator of a cluster's migration keeps, once the node is prepared for mode nftables.
fn kept() -> Value {
    let fields = |mode| json!({"mode": mode, "scheduler": null, "strictArp": null});
    let fleet = json!({
        "plan": {
            "id": "20260101t000000z-iptables-nftables", "began": "2026-01-01T00:00:00Z", "from": "iptables",
            "there": fields("nftables"), "back": fields("iptables"), "nodes": ["node1"], "whole": true, "staged": false,
            "serviceAccount": "kpx", "soak": 1, "ready": 60, "timeouts": {"confirm": 60, "drain": 60}, "limit": 600,
        },
        "leg": "there", "done": 1, "reached": 1, "requested": false, "nodes": {"node1": "prepared"}, "ended": false,
    });
    json!({
        "kind": "ConfigMap", "apiVersion": "v1",
        "metadata": {"name": "kpx-migrate", "namespace": "kube-system"},
        "data": {"state": fleet.to_string()},
    })
}

#[test]
#[ignore = "needs root and network namespaces"]
fn long_a_node_that_has_lost_its_journal_goes_back_as_the_cluster_knows() {
    let machine = Machine::new("iptables", SHORT_SYNC);
    let before = picture(&machine);
    let traffic = Traffic::start(&machine.world, Pace::FULL);
    machine.kpx(&["migrate", "prepare", "--to", "nftables", "--yes"], |_| {});
    fs::remove_dir_all(machine.own.path().join("lib/kpx")).unwrap();
    machine.api.with(|cluster| cluster.put(kept()));
    let mut bridged = false;
    let text = machine.kpx(ROLLBACK, |line| {
        bridged |= line.contains("remove the bridge");
    });
    assert!(bridged, "{text}");
    assert!(text.contains("lost this migration"), "{text}");
    assert!(text.contains("observed loss: unknown"), "{text}");
    assert!(!machine.has_bridge());
    assert_eq!(picture(&machine), before);
    judge(&traffic.stop());
}

#[test]
#[ignore = "needs root and network namespaces"]
fn long_into_nftables_and_back_by_a_bridge_nothing_is_lost_or_left() {
    by_nftables(BRIDGE);
}

#[test]
#[ignore = "needs root and network namespaces"]
fn long_into_nftables_and_back_in_place_nothing_is_lost_or_left() {
    by_nftables(IN_PLACE);
}

/// Without traffic: other software does not let it through.
#[test]
#[ignore = "needs root and network namespaces"]
fn long_what_other_software_has_on_the_node_is_unchanged() {
    let machine = Machine::new("iptables", SHORT_SYNC);
    let netns = &machine.world.network.node;
    others::add(netns);
    // Probes of Services that answer now would be waited for, and these rules let some through by chance.
    for (tool, pods) in [
        ("iptables", "10.244.0.0/16"),
        ("ip6tables", "fd00:10:244::/48"),
    ] {
        netns.run(&format!("{tool}-nft -I OUTPUT -d {pods} -j DROP"));
    }
    let foreign = others::state(netns);
    for mode in ["nftables", "iptables"] {
        let args = ["migrate", "--to", mode, "--this-node", "--yes"];
        machine.kpx(&[&args, IN_PLACE].concat(), |_| {});
        others::assert_same(netns, &foreign);
    }
}

/// From `mode` to ipvs and back, with the default strategies: no packet is lost, and no leftover stays.
fn by_ipvs(mode: &str) {
    let machine = Machine::new(mode, FIRST_SYNC);
    let tables = || {
        let all = ["ip", "ip6"].map(|family| format!("nft -s list table {family} kube-proxy"));
        let texts =
            all.map(|list| (mode == "nftables").then(|| machine.world.network.node.run(&list)));
        let words = texts.map(|text| {
            let text = text.unwrap_or_default();
            let split = text.split([',', '\n']);
            let mut words: Vec<_> = split.map(|word| word.trim().to_owned()).collect();
            words.sort();
            words
        });
        // Tables of iptables are made by its tools, which leave them when they are empty; their rules are compared
        // separately.
        let names = machine.world.network.node.run("nft list tables");
        let ours = names
            .lines()
            .filter(|name| name.contains("kube-proxy") || name.contains("kpx"));
        (words, ours.map(str::to_owned).collect::<Vec<_>>())
    };
    let state = || {
        let mut state = machine.state();
        // A jump that both modes have stays where it is, and kube-proxy puts those it misses in front of it.
        for rules in &mut state.rules {
            let (mut jumps, others): (Vec<_>, Vec<_>) = std::mem::take(rules)
                .into_iter()
                .partition(|rule| rule.starts_with("FORWARD "));
            jumps.sort();
            *rules = [jumps, others].concat();
        }
        // They are there as long as ip_vs is loaded, as kube-proxy set them, and are about virtual servers alone.
        state
            .sysctls
            .retain(|line| !line.starts_with("net.ipv4.vs."));
        (state, tables(), machine.api.config())
    };
    let before = state();
    // In mode ipvs, the host has the addresses of load balancers itself.
    let accepted = ["--accept-loss", "host-to-load-balancer-ip"];
    let moved = machine.move_to("ipvs", &accepted, Pace::EMULATED);
    moved.unharmed();
    let servers = machine.state().servers;
    assert!(servers.len() > 20, "{servers:?}");
    machine.move_to(mode, &[], Pace::EMULATED).unharmed();
    assert_eq!(state(), before);
}

#[test]
#[ignore = "needs root and ip_vs"]
fn vm_from_iptables_to_ipvs_and_back_nothing_is_lost_or_left() {
    by_ipvs("iptables");
}

#[test]
#[ignore = "needs root and ip_vs"]
fn vm_from_nftables_to_ipvs_and_back_nothing_is_lost_or_left() {
    by_ipvs("nftables");
}
