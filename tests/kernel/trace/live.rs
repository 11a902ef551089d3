//! The kernel's own traces of packets, beside the computed paths.

use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use kpx_host as host;
use kpx_judge::trace::World;
use kpx_judge::trace::observed::{self, Line, Means};
use kpx_node::evidence::traced::{InLegacy, Wanted};
use kpx_node::net::{Family, Proto};
use kpx_node::node::NodeSnapshot;
use serde_json::Value;

use super::judge::{Judge, flow, shown};
use super::log_to_netlink;
use super::network::{Network, Place, Source};
use super::recording::{Recording, Store, Target};
use super::send::{Order, Sender};
use crate::kernel::netns::run;

impl Judge<'_> {
    /// Lets the kernel trace one packet of every flow, each of which must go one of the ways that were computed; returns how
    /// many there were.
    pub(crate) async fn traced(&self) -> usize {
        let snapshot = NodeSnapshot::new(&self.evidence);
        let worlds = Family::BOTH.map(|family| World::whole(&snapshot, family));
        let mut steps = 0;
        let orders = self.orders();
        for order in &orders {
            let target = &order.target;
            let outcomes = worlds[usize::from(target.addr.is_ipv6())]
                .walk(&flow(order))
                .unwrap();
            let wanted = Wanted {
                destination: SocketAddr::new(target.addr, target.port),
                proto: target.proto,
                source: order.source.addr,
                from_host: order.source.place == Place::Host,
                from_links: order.source.place != Place::Host,
                established: false,
            };
            let options = self.network.node.options();
            let limit = Duration::from_secs(3);
            let sending = async {
                Sender::new(self.network).send(&[Order {
                    count: 1,
                    ..order.clone()
                }]);
            };
            let traced =
                host::trace_packets(&options, wanted, limit, observed::is_complete, sending).await;
            let (traced, _) = traced.unwrap();
            assert!(!traced.lost && !traced.changed, "{}", shown(order));
            let unknown = matches!(traced.legacy, InLegacy::Unknown(_));
            assert!(!unknown, "{}: {:?}", shown(order), traced.legacy);
            let packet = observed::observed(&traced);
            let packet = packet.unwrap_or_else(|| panic!("{}: {traced:?}", shown(order)));
            let means = Means {
                traced: &traced,
                numbered: true,
                from_the_beginning: target.proto == Proto::Tcp,
                nft_is_other: false,
            };
            let compared = observed::compare(&outcomes, &packet, &means).unwrap();
            assert!(
                compared.agrees(),
                "{}{}: {compared:#?}\n{packet:#?}",
                self.name,
                shown(order)
            );
            let both = |line: &&Line| matches!(line, Line::Both(_));
            steps += compared.lines.iter().filter(both).count();
        }
        assert!(steps > 3 * orders.len(), "{steps} in {}", orders.len());
        orders.len()
    }
}

const BIN: &str = env!("CARGO_BIN_EXE_kpx");

/// `kpx trace` in the node's namespace, with the objects of the recording.
#[expect(clippy::disallowed_methods, reason = "the program under test")]
fn command(network: &Network, recording: &str, args: &[&str]) -> Command {
    let cluster = Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata/nodes");
    let options = network.node.options();
    let mut command = Command::new(BIN);
    command
        .args(["--netns", options.netns.as_deref().unwrap()])
        .arg("--cluster-from")
        .arg(cluster.join(recording))
        .args(["--node", "node1", "trace"])
        .args(args)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command
}

fn finished(child: Child) -> (Option<i32>, Value, String) {
    let output = child.wait_with_output().unwrap();
    let errors = String::from_utf8(output.stderr).unwrap();
    let report = serde_json::from_slice(&output.stdout);
    let report = report.unwrap_or_else(|e| panic!("{e}: {errors}"));
    (output.status.code(), report, errors)
}

fn tables(network: &Network) -> String {
    network.node.run("nft list tables")
}

/// Waits until kpx traces packets.
fn wait_for_table(network: &Network) {
    let begin = Instant::now();
    while !tables(network).contains("kpx-trace") {
        assert!(begin.elapsed() < Duration::from_secs(20));
        thread::sleep(Duration::from_millis(20));
    }
}

/// The rules of a recording in the legacy back end, whose traces a program can receive.
fn legacy(name: &str) -> Network {
    let recording = Recording::named(name);
    let network = Network::new(&recording, false);
    recording.restore_iptables(&network.node, Store::Legacy);
    log_to_netlink(&network.node);
    network
}

fn restored(name: &str) -> Network {
    let recording = Recording::named(name);
    let network = Network::new(&recording, false);
    recording.restore(&network.node);
    network
}

#[test]
#[ignore = "needs root and network namespaces"]
fn a_connection_of_kpx_goes_as_predicted() {
    goes_as_predicted("full-iptables", &restored("full-iptables"));
    goes_as_predicted("full-iptables", &legacy("full-iptables"));
    goes_as_predicted("full-nftables", &restored("full-nftables"));
}

/// In place of the initial network namespace, which is not the tests' own.
#[test]
#[ignore = "needs root, network namespaces, and a kernel of its own"]
fn vm_a_connection_of_kpx_is_followed_in_the_log_of_the_kernel() {
    let modules = ["br_netfilter", "nf_log_syslog", "nfnetlink_log"];
    for module in modules {
        run(&["modprobe", module], "");
    }
    run(
        &["sysctl", "-q", "-w", "net.netfilter.nf_log_all_netns=1"],
        "",
    );
    let network = legacy("full-iptables");
    network
        .node
        .run("sysctl -q -w net.netfilter.nf_log.2=nf_log_ipv4");
    goes_as_predicted("full-iptables", &network);
    differs_first("legacy", &network);
}

fn goes_as_predicted(name: &str, network: &Network) {
    let before = network.node.run("nft list ruleset");
    let args = ["10.97.54.248:80", "--live", "--probe", "-o", "json"];
    let child = command(network, name, &args).spawn().unwrap();
    let (status, report, errors) = finished(child);
    let live = &report["live"];
    assert_eq!(status, Some(0), "{live:#} {errors}");
    assert_eq!(live["result"], "agrees");
    assert_eq!(live["packet"]["destination"], "10.97.54.248:80");
    let both = live["steps"].as_array().unwrap().iter();
    let both: Vec<_> = both.filter(|step| step["path"] == "both").collect();
    assert!(both.len() > 4, "{live:#}");
    let count = |rules: &str| rules.lines().filter(|l| !l.contains("counter")).count();
    let after = network.node.run("nft list ruleset");
    assert_eq!(count(&before), count(&after));
}

#[test]
#[ignore = "needs root and network namespaces"]
fn a_rule_that_does_not_belong_there_is_the_first_difference() {
    differs_first("nft", &restored("full-iptables"));
}

#[test]
#[ignore = "needs root and network namespaces"]
fn a_legacy_rule_that_does_not_belong_there_is_the_first_difference() {
    differs_first("legacy", &legacy("full-iptables"));
}

/// Plants a rule that drops in a back end.
fn differs_first(backend: &str, network: &Network) {
    network.node.run(&format!(
        "iptables-{backend} -I KUBE-FORWARD 1 -d 10.244.0.0/16 -j DROP"
    ));
    let args = [
        "default/nginx-svc",
        "--live=20s",
        "--mode",
        "iptables",
        "-o",
        "json",
    ];
    let child = command(network, "full-iptables", &args).spawn().unwrap();
    wait_for_table(network);
    let recording = Recording::named("full-iptables");
    let to: SocketAddr = "10.97.54.248:80".parse().unwrap();
    let target = recording.targets().into_iter().find(|target: &Target| {
        (target.addr, target.port, target.proto) == (to.ip(), to.port(), Proto::Tcp)
    });
    let source = Source {
        place: Place::Client,
        addr: Some("10.244.1.200".parse().unwrap()),
    };
    Sender::new(network).send(&[Order {
        source,
        target: target.unwrap(),
        count: 1,
    }]);
    let (status, report, errors) = finished(child);
    let live = &report["live"];
    assert_eq!(status, Some(1), "{live:#} {errors}");
    assert_eq!(live["result"], "differs");
    let first = usize::try_from(live["firstDifference"].as_u64().unwrap()).unwrap();
    let step = &live["steps"][first];
    assert_eq!(step["path"], "observed");
    assert_eq!(step["observed"]["chain"], "KUBE-FORWARD");
    assert_eq!(step["observed"]["number"], 1);
    assert_eq!(live["packet"]["end"]["kind"], "dropped");
}

#[test]
#[ignore = "needs root and network namespaces"]
fn without_a_packet_nothing_is_claimed() {
    let network = restored("full-nftables");
    let args = ["default/nginx-svc", "--live=200ms", "-o", "json"];
    let child = command(&network, "full-nftables", &args).spawn().unwrap();
    let (status, report, errors) = finished(child);
    assert_eq!(status, Some(3), "{errors}");
    assert_eq!(report["live"]["result"], "not-seen");
    assert!(!tables(&network).contains("kpx-trace"));
}

#[test]
#[ignore = "needs root and network namespaces"]
fn without_a_logger_for_programs_legacy_hops_are_unknown() {
    let network = legacy("full-iptables");
    let setting = "net.netfilter.nf_log.2";
    let look = || {
        let args = ["10.97.54.248:80", "--live", "--probe", "-o", "json"];
        let child = command(&network, "full-iptables", &args).spawn().unwrap();
        let (_, report, errors) = finished(child);
        let live = report["live"].clone();
        let paths: Vec<_> = live["steps"].as_array().unwrap().iter().collect();
        assert!(
            paths.iter().all(|step| step["path"] == "untraced"),
            "{live:#} {errors}"
        );
        let notes = live["notes"].as_array().unwrap().iter();
        let note = notes
            .filter_map(|note| note.as_str())
            .find(|note| note.starts_with("the legacy tables of iptables are not observed: "));
        note.unwrap_or_else(|| panic!("{live:#}")).to_owned()
    };
    for logger in ["NONE", "nf_log_ipv4"] {
        network
            .node
            .run(&format!("sysctl -q -w {setting}={logger}"));
        let note = look();
        assert!(note.contains(logger) && note.contains(setting), "{note}");
        assert_eq!(
            network.node.run(&format!("sysctl -n {setting}")).trim(),
            logger
        );
    }
    // Another program receives them.
    network
        .node
        .run(&format!("sysctl -q -w {setting}=nfnetlink_log"));
    let bound = network.node.inside(log_group_0);
    let note = look();
    assert!(note.contains("another program"), "{note}");
    drop(bound);
}

/// Receives the messages of group 0 of the kernel's log, as ulogd does.
fn log_group_0() -> netlink_sys::Socket {
    let mut socket = netlink_sys::Socket::new(netlink_sys::protocols::NETLINK_NETFILTER).unwrap();
    socket.bind_auto().unwrap();
    let mut request = vec![28, 0, 0, 0, 1, 4, 5, 0, 1, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0];
    request.extend([5, 0, 1, 0, 1, 0, 0, 0]);
    socket.send(&request, 0).unwrap();
    let (answer, _) = socket.recv_from_full().unwrap();
    assert_eq!(answer[16..20], [0; 4]);
    socket
}

#[test]
#[ignore = "needs root and network namespaces"]
fn a_killed_kpx_leaves_nothing() {
    for (name, network) in [
        ("full-nftables", restored("full-nftables")),
        ("full-iptables", legacy("full-iptables")),
    ] {
        let legacy = network.node.run("iptables-legacy-save");
        let listeners = || network.node.run("cat /proc/net/netfilter/nfnetlink_log");
        let mut child = command(&network, name, &["default/nginx-svc", "--live=60s"])
            .spawn()
            .unwrap();
        wait_for_table(&network);
        assert_eq!(listeners().is_empty(), legacy.is_empty());
        child.kill().unwrap();
        child.wait().unwrap();
        let begin = Instant::now();
        while tables(&network).contains("kpx-trace") || !listeners().is_empty() {
            assert!(begin.elapsed() < Duration::from_secs(5));
            thread::sleep(Duration::from_millis(20));
        }
        let rules = |text: &str| {
            text.lines()
                .filter(|line| !line.starts_with(['#', ':']))
                .count()
        };
        let after = network.node.run("iptables-legacy-save");
        assert_eq!(rules(&after), rules(&legacy));
    }
}
