//! `kpx trace` of the running kernel: the same answer as over a snapshot of it.

use std::fs;
use std::path::Path;

use serde_json::Value;

use super::netns::{Netns, run, run_to};

const BIN: &str = env!("CARGO_BIN_EXE_kpx");

fn recording(name: &str) -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("testdata/nodes")
        .join(name)
}

/// A namespace with the rules of the node with every kind of Service in a back end, but for counters it has no objects for.
fn node(backend: &str) -> Netns {
    let netns = Netns::new();
    netns.run("ip link add eth0 type veth peer name far0");
    netns.run("ip addr add 10.0.2.15/24 dev eth0");
    netns.run("ip link set eth0 up");
    netns.run("ip link set far0 up");
    netns.run("ip route add default via 10.0.2.2");
    netns.run("sysctl -qw net.ipv4.ip_forward=1");
    let rules = fs::read_to_string(recording("full-iptables").join("node/iptables-save.txt"));
    let rules = rules.unwrap();
    let lines = rules.lines().filter(|line| !line.contains("nfacct"));
    let rules: String = lines.flat_map(|line| [line, "\n"]).collect();
    netns.feed(&format!("iptables-{backend}-restore -c"), &rules);
    if backend == "nft" {
        // Only a tool can read this chain, so a tool that runs shows that more than the chains on the way were read.
        for table in ["nat", "filter"] {
            netns.run(&format!("iptables-nft -t {table} -N APART"));
            netns.run(&format!(
                "iptables-nft -t {table} -A APART -m length --length 100"
            ));
        }
    }
    netns
}

/// A folder with `iptables-nft` and its kin in front of the real ones, each of which notes what it is asked.
fn noted(dir: &Path) -> String {
    let notes = dir.join("asked");
    for name in [
        "iptables-nft",
        "ip6tables-nft",
        "iptables-legacy",
        "iptables-legacy-save",
        "iptables-save",
        "iptables-nft-save",
        "ip6tables-nft-save",
        "nft",
    ] {
        let script = format!(
            "#!/bin/sh\necho {name} \"$@\" >> {}\nPATH=/usr/sbin:/sbin:/usr/bin:/bin exec {name} \"$@\"\n",
            notes.display()
        );
        let path = dir.join(name);
        fs::write(&path, script).unwrap();
        run(&["chmod", "+x", path.to_str().unwrap()], "");
    }
    format!("PATH={}:/usr/sbin:/sbin:/usr/bin:/bin", dir.display())
}

fn trace(before: &[&str], target: &str, path: &str) -> Value {
    let mut line = vec!["env", path, BIN];
    line.extend_from_slice(before);
    line.extend_from_slice(&["trace", target, "-o", "json"]);
    // Connections that fail are exit status 1, those that are unknown 3.
    let mut report = serde_json::from_str(&run_to(&line, "", &[0, 1, 3])).unwrap();
    uncount(&mut report);
    report
}

/// Takes counters out: the namespace has packets of its own.
fn uncount(value: &mut Value) {
    match value {
        Value::Object(map) => {
            map.remove("packets");
            // One is of the node, the other of a snapshot.
            map.remove("origin");
            map.values_mut().for_each(uncount);
        }
        Value::Array(all) => {
            // Commands name what was read.
            let is_fix = |text: &str| text.starts_with("fix: ") || text.starts_with("look: ");
            all.retain(|of| !of.as_str().is_some_and(is_fix));
            all.iter_mut().for_each(uncount);
        }
        Value::String(text) if text.contains("counter packets ") => {
            let words = text.split(' ').filter(|word| word.parse::<u64>().is_err());
            *text = words.collect::<Vec<_>>().join(" ");
        }
        _ => {}
    }
}

/// The view of a node: live, or over a snapshot of it.
struct Look {
    netns: Netns,
    scratch: tempfile::TempDir,
    path: String,
}

impl Look {
    fn at(netns: Netns) -> Self {
        let scratch = tempfile::tempdir().unwrap();
        let path = noted(scratch.path());
        Self {
            netns,
            scratch,
            path,
        }
    }

    /// The trace of the running kernel, and the programs that were run for it.
    fn live(&self, target: &str) -> (Value, String) {
        let asked = self.scratch.path().join("asked");
        fs::remove_file(&asked).ok();
        let options = self.netns.options();
        let cluster = recording("full-iptables");
        let live = trace(
            &[
                "--netns",
                options.netns.as_deref().unwrap(),
                "--cluster-from",
                cluster.to_str().unwrap(),
                "--node",
                "node1",
            ],
            target,
            &self.path,
        );
        // There is no file if no program was run.
        (live, fs::read_to_string(&asked).unwrap_or_default())
    }

    /// The traces of a snapshot.
    fn whole<const N: usize>(&self, targets: [&str; N]) -> [Value; N] {
        let options = self.netns.options();
        let name = options.netns.as_deref().unwrap();
        let cluster = recording("full-iptables");
        let cluster = cluster.to_str().unwrap();
        let scratch = tempfile::tempdir().unwrap();
        let bundle = scratch.path().join("bundle");
        let bundle = bundle.to_str().unwrap();
        let mut words = vec!["env", &self.path, BIN, "--netns", name];
        words.extend(["--cluster-from", cluster, "--node", "node1"]);
        words.extend(["snapshot", "--file", bundle]);
        run(&words, "");
        targets.map(|target| trace(&["--from", bundle, "--node", "node1"], target, &self.path))
    }
}

#[test]
#[ignore = "needs root and a network namespace"]
fn long_a_live_trace_is_that_of_a_snapshot_and_reads_only_the_chains_on_its_way() {
    for backend in ["nft", "legacy"] {
        same_as_a_snapshot(backend);
    }
}

fn same_as_a_snapshot(backend: &str) {
    let look = Look::at(node(backend));
    let targets = [
        "default/nginx-svc",
        "shop/empty",
        "shop/cart",
        "nodeport:31082",
        "203.0.113.11:443",
        "10.0.0.1:80",
    ];
    let wholes = look.whole(targets);
    for (target, whole) in targets.into_iter().zip(wholes) {
        let (live, asked) = look.live(target);
        assert!(live == whole, "{backend} {target}\n{live:#}\n{whole:#}");
        // To explain a failure, the trace compares all rules with the desired state.
        let fails = ["lost", "refused", "misled", "partly"]
            .iter()
            .any(|fate| live.to_string().contains(&format!("\"fate\":\"{fate}\"")));
        let odd = backend == "nft" && fails;
        assert_eq!(
            asked.contains("-save"),
            odd,
            "{backend} {target}: {asked}\n{live:#}"
        );
        assert!(!asked.contains("nft -j"), "{backend} {target}: {asked}");
    }
}

/// Rules that another program added with `nft` to tables of iptables.
#[test]
#[ignore = "needs root and a network namespace"]
fn long_native_chains_and_rules_in_tables_of_iptables_are_not_passed_over() {
    let look = Look::at(node("nft"));
    let target = "10.97.54.250:80";
    let ends = |trace: &Value| {
        let backend = &trace["outcomes"][0]["backend"];
        (
            backend["address"].clone(),
            trace["outcomes"].as_array().unwrap().len(),
        )
    };
    // Beside iptables' chains: iptables shows its own, nft the other.
    look.netns.feed(
        "nft -f -",
        "table ip nat { chain first {
            type nat hook prerouting priority -101;
            ip daddr 10.97.54.250 tcp dport 80 dnat to 10.244.1.99:8080; }; }",
    );
    let (live, asked) = look.live(target);
    assert_eq!(ends(&live), ("10.244.1.99".into(), 1), "{live:#}");
    // No endpoint has the address: to explain that, the trace compares all rules with the desired state.
    assert!(asked.contains("iptables-nft-save"), "{asked}");
    assert!(!asked.contains("nft -j"), "{asked}");
    let [whole] = look.whole([target]);
    assert!(live == whole, "{live:#}\n{whole:#}");

    // Within one: iptables shows nothing of the table.
    look.netns.run("nft delete chain ip nat first");
    look.netns.run("nft insert rule ip nat KUBE-SERVICES ip daddr 10.97.54.250 tcp dport 80 numgen random mod 1 0 dnat to 10.244.1.98:8080");
    let (live, asked) = look.live(target);
    assert_eq!(ends(&live), ("10.244.1.98".into(), 1), "{live:#}");
    assert!(asked.contains("iptables-nft-save"), "{asked}");
    let [whole] = look.whole([target]);
    assert!(live == whole, "{live:#}\n{whole:#}");
}
