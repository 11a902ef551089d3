//! `kpx reconcile`, also with `--cleanup`, carried out: the state of the node afterwards, the objects of other software,
//! and the state after failures.

use std::fmt::Write as _;
use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::thread;
use std::time::Duration;

use super::netns::{Netns, run};
use super::others;

/// Rules of others that the small kernel of a VM knows, too.
const FOREIGN: &str = "*filter
:CUSTOM-GUARD - [0:0]
-I INPUT 1 -p tcp --dport 10250 -m comment --comment \"admin's own\" -j CUSTOM-GUARD
-A FORWARD -s 198.51.100.0/24 -j DROP
-A CUSTOM-GUARD -s 10.0.0.0/8 -j RETURN
-A CUSTOM-GUARD -j REJECT
COMMIT
*nat
:CNI-HOSTPORT-DNAT - [0:0]
-A PREROUTING -m addrtype --dst-type LOCAL -j CNI-HOSTPORT-DNAT
-A CNI-HOSTPORT-DNAT -p tcp --dport 9999 -j DNAT --to-destination 10.244.1.9:99
-I POSTROUTING 1 -s 10.244.0.0/16 ! -d 10.244.0.0/16 -m comment --comment \"cni masquerade\" -j MASQUERADE
COMMIT
";
const FOREIGN_SET: &str = "create CUSTOM hash:ip\nadd CUSTOM 192.0.2.1\n";

fn recording(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("testdata/nodes")
        .join(name)
}

/// A namespace with the addresses that the recorded nodes have.
pub(crate) fn node() -> Netns {
    let netns = Netns::new();
    let links = "link add eth0 type veth peer name far0
link add cni0 type bridge
addr add 10.0.2.15/24 dev eth0
addr add fd00:10:0:2::15/64 dev eth0 nodad
addr add 10.244.1.1/24 dev cni0
addr add fd00:10:244:1::1/64 dev cni0 nodad
link set eth0 up
link set far0 up
link set cni0 up
route add default via 10.0.2.2
";
    netns.feed("ip -batch -", links);
    netns
}

/// Runs kpx on `netns` with the cluster of the recording `name`, and with `path` in front of where programs are looked for.
#[expect(clippy::disallowed_methods, reason = "the program under test")]
pub(crate) fn kpx_with(netns: &Netns, name: &str, args: &[&str], path: &str) -> Output {
    let options = netns.options();
    Command::new(env!("CARGO_BIN_EXE_kpx"))
        .args(["--netns", options.netns.as_deref().unwrap()])
        .arg("--cluster-from")
        .arg(recording(name))
        .args(["--node", "node1"])
        .args(args)
        .env("PATH", format!("{path}:/usr/sbin:/sbin:/usr/bin:/bin"))
        .output()
        .unwrap()
}

/// Runs kpx, which must exit with `code`; returns its output.
pub(crate) fn kpx(netns: &Netns, name: &str, args: &[&str], code: i32) -> String {
    let output = kpx_with(netns, name, args, "/nonexistent");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    assert_eq!(output.status.code(), Some(code), "{args:?}\n{out}\n{err}");
    out
}

pub(super) fn reconcile(netns: &Netns, name: &str) -> String {
    kpx(netns, name, &["reconcile", "--apply", "--yes"], 0)
}

/// Restores the rules of the recording `name`, but for those that the kernel of the test lacks an object for.
pub(super) fn restore(netns: &Netns, name: &str) {
    for (file, program) in [
        ("iptables-save.txt", "iptables-nft-restore"),
        ("ip6tables-save.txt", "ip6tables-nft-restore"),
    ] {
        if let Ok(rules) = fs::read_to_string(recording(name).join("node").join(file)) {
            netns.feed(program, &without_counters(&rules));
        }
    }
    if let Ok(rules) = fs::read_to_string(recording(name).join("node/nft.txt")) {
        let table = |family: &str| {
            let start = rules.find(&format!("table {family} kube-proxy {{"))?;
            let end = start + rules[start..].find("\n}\n")? + 3;
            Some(&rules[start..end])
        };
        let tables: String = ["ip", "ip6"].into_iter().filter_map(table).collect();
        netns.feed("nft -f -", &tables);
    }
}

/// Leaves the rules out that count by nfacct, which kube-proxy makes objects for; the rule they belong to is as good
/// without.
fn without_counters(rules: &str) -> String {
    let lines = rules
        .lines()
        .filter(|line| !line.contains("localhost_nps_accepted_pkts"));
    let invalid = " -m nfacct --nfacct-name  ct_state_invalid_dropped_pkts";
    lines.map(|line| line.replace(invalid, "") + "\n").collect()
}

/// The rules, sets and tables of a namespace in a form to compare: counters left out, the order of Services too.
pub(crate) fn state(netns: &Netns) -> Vec<String> {
    let mut lines = Vec::new();
    for program in ["iptables-nft-save", "ip6tables-nft-save"] {
        let text = netns.run(program);
        let mut table = String::new();
        for line in text.lines().filter(|line| !line.starts_with('#')) {
            if let Some(name) = line.strip_prefix('*') {
                name.clone_into(&mut table);
            }
            let line = line.split(" [").next().unwrap();
            // Built-in chains and empty tables are the kernel's.
            if !line.ends_with(" ACCEPT") && line.starts_with(['-', ':']) {
                lines.push(format!("{program} {table} {line}"));
            }
        }
    }
    for family in ["ip", "ip6"] {
        let tables = netns.run(&format!("nft list tables {family}"));
        if tables.contains("kube-proxy") {
            let text = netns.run(&format!("nft -s list table {family} kube-proxy"));
            lines.extend(text.lines().map(|line| format!("{family} {}", line.trim())));
        }
    }
    let sets = netns.run("ipset save");
    // Each set hashes with a number of its own.
    let sets = sets
        .lines()
        .map(|line| line.split(" initval").next().unwrap());
    lines.extend(sets.map(|line| format!("ipset {line}")));
    lines.sort_unstable();
    lines
}

/// Fails with the lines that one side alone has.
pub(crate) fn assert_same(have: &[String], want: &[String], what: &str) {
    let only = |a: &[String], b: &[String]| -> Vec<String> {
        a.iter().filter(|line| !b.contains(line)).cloned().collect()
    };
    assert_eq!(
        (only(have, want), only(want, have)),
        (vec![], vec![]),
        "{what}"
    );
    assert_eq!(have.len(), want.len(), "{what}");
}

#[test]
#[ignore = "needs root and a network namespace"]
fn an_empty_node_gets_all_of_the_mode_and_a_second_run_changes_nothing() {
    for name in [
        "seed-iptables",
        "full-iptables",
        "full-iptables-masqall",
        "dual-iptables",
        "seed-nftables",
        "full-nftables",
        "dual-nftables",
    ] {
        let (recorded, netns) = (node(), node());
        restore(&recorded, name);
        reconcile(&netns, name);
        let after = state(&netns);
        // Recorded objects of other software are not kpx's to write.
        let want: Vec<_> = state(&recorded)
            .into_iter()
            .filter(|line| line.contains("KUBE-") || line.starts_with("ip"))
            // The ranges of cluster IPs are known from the rules alone, and a note says so.
            .filter(|line| !line.contains("unallocated ClusterIPs"))
            .collect();
        assert_same(&after, &want, name);
        kpx(&netns, name, &["diff"], 0);
        let again = reconcile(&netns, name);
        assert!(again.contains("no changes needed"), "{name}: {again}");
        assert_same(&state(&netns), &after, name);
    }
}

/// Breaks a node in many ways at once.
const DAMAGE: &[&str] = &[
    "iptables-nft -t nat -F KUBE-POSTROUTING",
    "iptables-nft -t nat -D PREROUTING 1",
    "iptables-nft -t nat -N KUBE-SVC-AAAAAAAAAAAAAAAA",
    "iptables-nft -t nat -A KUBE-SVC-AAAAAAAAAAAAAAAA -j KUBE-MARK-MASQ",
    "iptables-nft -t nat -I KUBE-SERVICES 1 -d 10.96.0.99/32 -p tcp -m tcp --dport 80 -j KUBE-SVC-AAAAAAAAAAAAAAAA",
    "iptables-nft -t filter -D KUBE-FORWARD 2",
    "iptables-nft -t filter -D OUTPUT -m conntrack --ctstate NEW -m comment --comment portals -j KUBE-SERVICES",
    "ip6tables-nft -t nat -F KUBE-MARK-MASQ",
];

pub(super) fn damage(netns: &Netns) {
    for line in DAMAGE {
        // The comment has spaces, which a line split at spaces cannot say.
        if line.contains("--comment portals") {
            let text = "*filter\n-D OUTPUT -m conntrack --ctstate NEW -m comment --comment \
                        \"kubernetes service portals\" -j KUBE-SERVICES\nCOMMIT\n";
            netns.feed("iptables-nft-restore --noflush", text);
        } else {
            netns.run(line);
        }
    }
}

#[test]
#[ignore = "needs root and a network namespace"]
fn damage_is_mended_and_what_others_wrote_stays() {
    let name = "full-iptables";
    let netns = node();
    reconcile(&netns, name);
    others::add(&netns);
    let (whole, foreign) = (state(&netns), others::state(&netns));
    damage(&netns);
    kpx(&netns, name, &["diff"], 1);
    reconcile(&netns, name);
    assert_same(&state(&netns), &whole, "mended");
    others::assert_same(&netns, &foreign);
    kpx(&netns, name, &["diff"], 0);
}

#[test]
#[ignore = "needs root and a network namespace"]
fn damage_to_the_nftables_mode_is_mended() {
    let name = "full-nftables";
    let netns = node();
    reconcile(&netns, name);
    others::add(&netns);
    let (whole, foreign) = (state(&netns), others::state(&netns));
    for line in [
        "nft flush chain ip kube-proxy masquerading",
        "nft flush map ip kube-proxy service-ips",
        "nft flush map ip kube-proxy no-endpoint-services",
        "nft add chain ip kube-proxy service-AAAAAAAA-x/y/tcp/z",
        "nft add rule ip kube-proxy service-AAAAAAAA-x/y/tcp/z drop",
        "nft flush set ip kube-proxy cluster-ips",
    ] {
        netns.run(line);
    }
    kpx(&netns, name, &["diff"], 1);
    reconcile(&netns, name);
    assert_same(&state(&netns), &whole, "mended");
    others::assert_same(&netns, &foreign);
    netns.run("nft delete table ip6 kube-proxy");
    reconcile(&netns, name);
    assert_same(&state(&netns), &whole, "the table is back");
}

/// A folder with programs of these names, which run `script` with the real program as `$REAL`.
pub(super) fn programs(names: &[&str], script: &str) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    for name in names {
        let path = dir.path().join(name);
        fs::write(
            &path,
            format!("#!/bin/sh\nREAL=/usr/sbin/{name}\n{script}\n"),
        )
        .unwrap();
        run(&["chmod", "+x", path.to_str().unwrap()], "");
    }
    dir
}

/// Returns a node of the recording `name` with damaged rules, and its state.
pub(super) fn broken(name: &str) -> (Netns, Vec<String>) {
    let netns = node();
    reconcile(&netns, name);
    damage(&netns);
    let state = state(&netns);
    (netns, state)
}

pub(super) const APPLY: &[&str] = &["reconcile", "--apply", "--yes"];
pub(super) const CLEANUP: &[&str] = &["reconcile", "--cleanup", "iptables", "--apply", "--yes"];
/// A node in mode nftables that has what mode iptables left.
const LEFT: &str = "leftover-iptables-to-nftables";

/// Runs kpx with `programs` in the place of the real ones, so that it must stop part-way; returns its output.
pub(super) fn stopped(
    netns: &Netns,
    name: &str,
    args: &[&str],
    programs: &tempfile::TempDir,
) -> String {
    let output = kpx_with(netns, name, args, programs.path().to_str().unwrap());
    let out = String::from_utf8_lossy(&output.stdout).into_owned();
    assert_eq!(output.status.code(), Some(4), "{out}");
    out
}

#[test]
#[ignore = "needs root and a network namespace"]
fn a_step_that_fails_leaves_the_node_as_it_was() {
    let name = "full-iptables";
    let (netns, broken) = broken(name);
    // All that comes before IPv6's rules is done by then.
    let refusing = programs(
        &["ip6tables-nft-restore"],
        "cat >/dev/null; echo 'ip6tables-restore: line 3 failed: No space left on device' >&2; exit 4",
    );
    let out = stopped(&netns, name, APPLY, &refusing);
    assert!(out.contains("stopped at step "), "{out}");
    assert!(out.contains("all changes were rolled back"), "{out}");
    assert!(out.contains("No space left on device"), "{out}");
    assert_same(&state(&netns), &broken, "unwound");
}

#[test]
#[ignore = "needs root and a network namespace"]
fn a_rule_that_the_kernel_refuses_leaves_the_node_as_it_was() {
    let name = "full-iptables";
    let netns = node();
    let before = state(&netns);
    // The kernel's own no, in the middle of the table: there is no such set.
    let spoiling = programs(
        &["iptables-nft-restore", "iptables-restore"],
        "sed '/^-A KUBE-MARK-MASQ/s/ -j/ -m set --match-set NOSUCH dst -j/' | $REAL \"$@\"",
    );
    let out = stopped(&netns, name, APPLY, &spoiling);
    assert!(out.contains("NOSUCH"), "{out}");
    assert_same(&state(&netns), &before, "unwound");
}

/// The tools that write rules in both families, whatever the host's plain names stand for.
pub(super) const RESTORES: [&str; 4] = [
    "iptables-nft-restore",
    "iptables-restore",
    "ip6tables-restore",
    "ip6tables-nft-restore",
];

/// Runs kpx on nodes that `start` makes, with `args`, and kills it before and after each of its `steps`; the same command
/// must then end in `whole`.
fn kill_at_each_step(
    name: &str,
    args: &[&str],
    steps: u32,
    whole: &[String],
    start: fn() -> Netns,
) {
    for step in 1..=steps {
        for when in ["before", "after"] {
            let netns = start();
            let count = tempfile::NamedTempFile::new().unwrap();
            let script = format!(
                "echo x >> {file}\n[ $(wc -l < {file}) = {step} ] || exec $REAL \"$@\"\n\
                 [ {when} = before ] || $REAL \"$@\"\nkill -9 $PPID",
                file = count.path().display()
            );
            let dir = programs(&RESTORES, &script);
            let output = kpx_with(&netns, name, args, dir.path().to_str().unwrap());
            assert_eq!(output.status.code(), None, "{when} step {step}: not killed");
            kpx(&netns, name, args, 0);
            assert_same(&state(&netns), whole, &format!("{when} step {step}"));
        }
    }
}

#[test]
#[ignore = "needs root and a network namespace"]
fn long_killed_at_any_step_the_same_command_ends_in_the_same_state() {
    let netns = node();
    reconcile(&netns, "full-iptables");
    kill_at_each_step("full-iptables", APPLY, 6, &state(&netns), node);
}

#[test]
#[ignore = "needs root and a network namespace"]
fn long_killed_at_any_step_a_cleanup_ends_in_the_same_state() {
    let start = || {
        let netns = node();
        restore(&netns, LEFT);
        netns.feed("iptables-nft-restore --noflush", FOREIGN);
        netns
    };
    let netns = start();
    kpx(&netns, LEFT, CLEANUP, 0);
    let whole = state(&netns);
    assert!(whole.iter().any(|line| line.contains("CUSTOM-GUARD")));
    kill_at_each_step(LEFT, CLEANUP, 2, &whole, start);
}

#[test]
#[ignore = "needs root and a network namespace"]
fn a_step_that_the_kernel_does_not_permit_leaves_the_node_as_it_was() {
    let netns = node();
    restore(&netns, LEFT);
    let before = state(&netns);
    let powerless = programs(
        &["ip6tables-nft-restore", "ip6tables-restore"],
        "exec setpriv --bounding-set=-net_admin --inh-caps=-net_admin $REAL \"$@\"",
    );
    let out = stopped(&netns, LEFT, CLEANUP, &powerless);
    assert!(
        out.contains("Operation not permitted") || out.contains("Permission denied"),
        "{out}"
    );
    assert!(out.contains("all changes were rolled back"), "{out}");
    assert_same(&state(&netns), &before, "unwound");
}

#[test]
#[ignore = "needs root and a network namespace"]
fn only_one_kpx_changes_a_node() {
    let netns = node();
    let slow = programs(
        &["iptables-nft-restore", "iptables-restore"],
        "sleep 3; exec $REAL \"$@\"",
    );
    let path = slow.path().to_str().unwrap();
    thread::scope(|scope| {
        let first = scope.spawn(|| kpx_with(&netns, "seed-iptables", APPLY, path));
        thread::sleep(Duration::from_secs(2));
        let second = kpx_with(&netns, "seed-iptables", APPLY, "/nonexistent");
        let err = String::from_utf8_lossy(&second.stderr);
        assert_eq!(second.status.code(), Some(4), "{err}");
        assert!(err.contains("another kpx is changing this node"), "{err}");
        assert_eq!(first.join().unwrap().status.code(), Some(0));
    });
}

#[test]
#[ignore = "needs root and a network namespace"]
fn without_a_terminal_a_change_needs_yes() {
    let netns = node();
    let output = kpx_with(
        &netns,
        "seed-iptables",
        &["reconcile", "--apply"],
        "/nonexistent",
    );
    let err = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(4), "{err}");
    assert!(err.contains("pass --yes"), "{err}");
    assert!(state(&netns).is_empty());
}

/// Connects from inside `netns`, and tells whether anybody answers.
pub(crate) fn answers(netns: &Netns, to: &str) -> bool {
    let to: SocketAddr = to.parse().unwrap();
    netns.inside(|| {
        let Ok(mut stream) = TcpStream::connect_timeout(&to, Duration::from_secs(5)) else {
            return false;
        };
        stream
            .set_read_timeout(Some(Duration::from_secs(5)))
            .unwrap();
        let mut said = String::new();
        stream.read_to_string(&mut said).is_ok() && said == "pod"
    })
}

/// A pod's namespace on the bridge of `node`, with `addrs` as its own.
pub(crate) fn pod(node: &Netns, name: &str, addrs: &[&str]) -> Netns {
    let netns = Netns::new();
    let of = |netns: &Netns| netns.options().netns.unwrap();
    let links = format!(
        "link add {name} type veth peer name up-{name}\nlink set up-{name} netns {}\n\
         link set {name} master cni0\nlink set {name} up\n",
        of(&netns)
    );
    node.feed("ip -batch -", &links);
    let mut own = format!("link set up-{name} up\n");
    for addr in addrs {
        writeln!(own, "addr add {addr}/16 dev up-{name}").unwrap();
    }
    own.push_str("route add default via 10.244.1.1\n");
    netns.feed("ip -batch -", &own);
    netns
}

/// Answers `pod` on `ports` of all addresses of `netns`, for as long as the test runs.
pub(crate) fn serve(netns: &Netns, ports: &[u16]) {
    for &port in ports {
        let listener = netns.inside(|| TcpListener::bind(("::", port)).unwrap());
        thread::spawn(move || {
            for stream in listener.incoming() {
                let mut stream = stream.unwrap();
                stream.write_all(b"pod").ok();
            }
        });
    }
}

#[test]
#[ignore = "needs root and a network namespace"]
fn traffic_flows_through_a_node_that_was_empty() {
    for name in ["seed-iptables", "seed-nftables"] {
        let node = node();
        node.run("sysctl -q -w net.ipv4.ip_forward=1");
        let pods = pod(
            &node,
            "pods",
            &["10.244.1.14", "10.244.1.16", "10.244.1.17"],
        );
        let client = pod(&node, "client", &["10.244.1.200"]);
        serve(&pods, &[80]);
        let (cluster, port) = ("10.97.54.248:80", "10.0.2.15:31082");
        assert!(!answers(&client, cluster), "{name}: nothing is there yet");
        assert!(!answers(&client, port), "{name}: nothing is there yet");
        reconcile(&node, name);
        for _ in 0..6 {
            assert!(answers(&client, cluster), "{name}: pod to ClusterIP");
            assert!(answers(&client, port), "{name}: pod to NodePort");
            assert!(answers(&node, cluster), "{name}: host to ClusterIP");
        }
    }
}

#[test]
#[ignore = "needs root and a network namespace"]
fn ipv6_traffic_flows_through_a_node_that_was_empty() {
    for name in ["dual-iptables", "dual-nftables"] {
        let node = node();
        node.run("sysctl -q -w net.ipv6.conf.all.forwarding=1");
        node.run("ip route add fd00:10:244::/48 dev cni0");
        node.run("ip route add default via fd00:10:0:2::2");
        let on_bridge = |name: &str, own: &str, addrs: &[&str]| {
            let netns = pod(&node, name, &[own]);
            for addr in addrs {
                netns.run(&format!("ip addr add {addr}/48 dev up-{name} nodad"));
            }
            netns.run("ip route add default via fd00:10:244:1::1");
            netns
        };
        let pods = on_bridge(
            "pods",
            "10.244.1.14",
            &["fd00:10:244:1::a", "fd00:10:244:2::a"],
        );
        let client = on_bridge("client", "10.244.1.200", &["fd00:10:244:1::c8"]);
        serve(&pods, &[8080]);
        let (cluster, port) = ("[fd00:10:96::30a]:80", "[fd00:10:0:2::15]:31080");
        assert!(!answers(&client, cluster), "{name}: nothing is there yet");
        assert!(!answers(&client, port), "{name}: nothing is there yet");
        reconcile(&node, name);
        for _ in 0..6 {
            assert!(answers(&client, cluster), "{name}: pod to ClusterIP");
            assert!(answers(&client, port), "{name}: pod to NodePort");
            assert!(answers(&node, cluster), "{name}: host to ClusterIP");
        }
    }
}

/// Puts the sets, virtual servers and kube-ipvs0 of the recording `name` in place: before its rules, which match the sets.
fn restore_ipvs(netns: &Netns, name: &str) {
    let read = |file: &str| fs::read_to_string(recording(name).join("node").join(file)).unwrap();
    netns.feed("ipset restore", &read("ipset-save.txt"));
    netns.feed("ipvsadm --restore", &read("ipvsadm-save.txt"));
    let links: serde_json::Value = serde_json::from_str(&read("ip-addr.json")).unwrap();
    let mut links = links.as_array().unwrap().iter();
    let Some(dummy) = links.find(|link| link["ifname"] == "kube-ipvs0") else {
        return;
    };
    let mut batch = "link add kube-ipvs0 type dummy arp off\n".to_owned();
    for addr in dummy["addr_info"].as_array().unwrap() {
        let (addr, prefix) = (addr["local"].as_str().unwrap(), &addr["prefixlen"]);
        writeln!(batch, "addr add {addr}/{prefix} dev kube-ipvs0").unwrap();
    }
    netns.feed("ip -batch -", &batch);
}

/// [`state`] with virtual servers and kube-ipvs0.
fn whole_state(netns: &Netns) -> Vec<String> {
    let mut lines = state(netns);
    let servers = netns.run("ipvsadm -Sn");
    let addresses = netns.run("ip -o addr show");
    let ours = addresses.lines().filter(|line| line.contains("kube-ipvs0"));
    let ours = ours.filter_map(|line| line.split_whitespace().nth(3));
    lines.extend(servers.lines().map(|line| format!("ipvsadm {line}")));
    lines.extend(ours.map(|addr| format!("kube-ipvs0 {addr}")));
    lines.sort_unstable();
    lines
}

#[test]
#[ignore = "needs root and a network namespace"]
fn what_iptables_mode_left_on_a_node_in_nftables_mode_is_removed_and_nothing_else() {
    let netns = node();
    restore(&netns, LEFT);
    others::add(&netns);
    netns.run("sysctl -q -w net.ipv4.conf.all.route_localnet=1");
    let foreign = others::state(&netns);
    kpx(&netns, LEFT, CLEANUP, 0);

    let alone = node();
    restore(&alone, "full-nftables");
    others::add(&alone);
    assert_same(&state(&netns), &state(&alone), "cleaned");
    others::assert_same(&netns, &foreign);
    assert_eq!(
        netns.run("sysctl -n net.ipv4.conf.all.route_localnet"),
        "0\n"
    );
    let again = kpx(&netns, LEFT, CLEANUP, 0);
    assert!(again.contains("no changes needed"), "{again}");
}

#[test]
#[ignore = "needs root and a network namespace"]
fn what_iptables_mode_left_in_the_legacy_back_end_is_removed_from_there() {
    let netns = node();
    restore(&netns, "full-nftables");
    let rules = saved_rules("full-iptables");
    others::add_legacy(&netns);
    let (before, foreign) = ((state(&netns), legacy(&netns)), others::state(&netns));
    netns.feed("iptables-legacy-restore --noflush", &rules);
    assert!(legacy(&netns).len() > before.1.len() + 100);
    kpx(&netns, "full-nftables", CLEANUP, 0);
    assert_eq!((state(&netns), legacy(&netns)), before);
    others::assert_same(&netns, &foreign);
}

/// The IPv4 rules of the recording `name`, without the policies of built-in chains.
pub(super) fn saved_rules(name: &str) -> String {
    let rules = fs::read_to_string(recording(name).join("node/iptables-save.txt"));
    let rules = without_counters(&rules.unwrap());
    let lines = rules.lines().filter(|line| !line.contains(" ACCEPT ["));
    lines.flat_map(|line| [line, "\n"]).collect()
}

/// The chains and rules of the legacy back end.
pub(super) fn legacy(netns: &Netns) -> Vec<String> {
    let text = netns.run("iptables-legacy-save");
    let lines = text.lines().filter(|line| line.starts_with(['-', ':']));
    let lines = lines.map(|line| line.split(" [").next().unwrap().to_owned());
    let mut lines: Vec<_> = lines.filter(|line| !line.ends_with(" ACCEPT")).collect();
    lines.sort_unstable();
    lines
}

#[test]
#[ignore = "needs root and a network namespace"]
fn the_mode_that_serves_the_node_is_not_removed() {
    let netns = node();
    reconcile(&netns, "full-iptables");
    let before = state(&netns);
    kpx(&netns, "full-iptables", CLEANUP, 4);
    assert_same(&state(&netns), &before, "refused");
    // If that is wanted, only others' rules are left.
    others::add(&netns);
    let foreign = others::state(&netns);
    let args = [
        "reconcile",
        "--cleanup",
        "iptables",
        "--force",
        "--apply",
        "--yes",
    ];
    kpx(&netns, "full-iptables", &args, 0);
    let left: Vec<_> = state(&netns)
        .into_iter()
        .filter(|line| line.contains("KUBE-"))
        .collect();
    assert_eq!(left, Vec::<String>::new());
    others::assert_same(&netns, &foreign);
}

#[test]
#[ignore = "needs root and a network namespace"]
fn the_kubelets_chains_stay_and_so_does_what_others_refer_to() {
    let netns = node();
    reconcile(&netns, "full-iptables");
    let others = "*mangle\n:KUBE-KUBELET-CANARY - [0:0]\n:KUBE-IPTABLES-HINT - [0:0]\nCOMMIT\n\
                  *nat\n:CUSTOM - [0:0]\n-A CUSTOM -j KUBE-MARK-MASQ\nCOMMIT\n";
    netns.feed("iptables-nft-restore --noflush", others);
    let firewall = netns.run("iptables-nft -t filter -S KUBE-FIREWALL");
    let args = [
        "reconcile",
        "--cleanup",
        "iptables",
        "--force",
        "--apply",
        "--yes",
    ];
    let said = kpx(&netns, "full-iptables", &args, 0);
    assert!(said.contains("the kubelet on this node"), "{said}");
    assert!(said.contains("chain KUBE-MARK-MASQ is kept"), "{said}");
    assert_eq!(
        netns.run("iptables-nft -t filter -S KUBE-FIREWALL"),
        firewall
    );
    let nat = netns.run("iptables-nft -t nat -S");
    assert!(nat.contains("-A CUSTOM -j KUBE-MARK-MASQ"), "{nat}");
    assert!(nat.contains("-A KUBE-MARK-MASQ -j MARK"), "{nat}");
    assert!(!nat.contains("KUBE-SERVICES"), "{nat}");
    let mangle = netns.run("iptables-nft -t mangle -S");
    assert!(mangle.contains("-N KUBE-KUBELET-CANARY"), "{mangle}");
    assert!(!mangle.contains("KUBE-PROXY-CANARY"), "{mangle}");
}

#[test]
#[ignore = "needs root and ip_vs"]
fn vm_cleanup_turns_each_leftover_into_the_mode_alone() {
    for (left, mode, alone) in [
        ("seed-leftover-iptables-to-ipvs", "iptables", "seed-ipvs"),
        ("leftover-ipvs-to-iptables", "ipvs", "full-iptables"),
        // Where kube-proxy learnt the node's zone late, its rules are not those of another start.
        (
            "leftover-ipvs-to-nftables",
            "ipvs",
            "leftover-ipvs-to-nftables",
        ),
    ] {
        let load = |name: &str, ipvs: bool| {
            let netns = node();
            if ipvs {
                restore_ipvs(&netns, name);
            }
            restore(&netns, name);
            netns.feed("iptables-nft-restore --noflush", FOREIGN);
            netns.feed("ipset restore", FOREIGN_SET);
            netns.run("ipvsadm -A -t 198.51.100.77:8443 -s wrr");
            netns.run("ipvsadm -a -t 198.51.100.77:8443 -r 198.51.100.78:8443 -g -w 3");
            netns.run("ip addr add 198.51.100.77/32 dev lo");
            netns
        };
        let (netns, want) = (load(left, true), load(alone, alone.ends_with("ipvs")));
        let others = netns.run("ip -o addr show dev lo");
        kpx(
            &netns,
            left,
            &["reconcile", "--cleanup", mode, "--apply", "--yes"],
            0,
        );
        assert_same(&whole_state(&netns), &whole_state(&want), left);
        assert_eq!(netns.run("ip -o addr show dev lo"), others, "{left}");
    }
}
