//! `kpx trace` of the running kernel: the same answer as over a snapshot of it, from a handful of chains.

use std::fs;
use std::path::Path;

use serde_json::Value;

use super::netns::{Netns, run};

const BIN: &str = env!("CARGO_BIN_EXE_kpx");

fn recording(name: &str) -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("testdata/nodes")
        .join(name)
}

/// A namespace with the rules of the node with every kind of Service, but for counters it has no objects for.
fn node() -> Netns {
    let netns = Netns::new();
    netns.run("ip link add eth0 type veth peer name far0");
    netns.run("ip addr add 10.0.2.15/24 dev eth0");
    netns.run("ip link set eth0 up");
    netns.run("ip link set far0 up");
    netns.run("ip route add default via 10.0.2.2");
    let rules = fs::read_to_string(recording("full-iptables").join("node/iptables-save.txt"));
    let rules = rules.unwrap();
    let lines = rules.lines().filter(|line| !line.contains("nfacct"));
    let rules: String = lines.flat_map(|line| [line, "\n"]).collect();
    netns.feed("iptables-nft-restore -c", &rules);
    netns
}

/// A folder with `iptables-nft` and its kin in front of the real ones, each of which notes what it is asked.
fn noted(dir: &Path) -> String {
    let notes = dir.join("asked");
    for name in ["iptables-nft", "iptables-save", "iptables-nft-save", "nft"] {
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
    let mut report = serde_json::from_str(&run(&line, "")).unwrap();
    uncount(&mut report);
    report
}

/// Takes counters out: the namespace has packets of its own.
fn uncount(value: &mut Value) {
    match value {
        Value::Object(map) => {
            map.remove("packets");
            map.values_mut().for_each(uncount);
        }
        Value::Array(all) => all.iter_mut().for_each(uncount),
        _ => {}
    }
}

#[test]
#[ignore = "needs root and a network namespace"]
fn a_live_trace_is_that_of_a_snapshot_and_lists_only_the_chains_on_its_way() {
    let netns = node();
    let options = netns.options();
    let name = options.netns.as_deref().unwrap();
    let cluster = recording("full-iptables");
    let cluster = cluster.to_str().unwrap();
    let scratch = tempfile::tempdir().unwrap();
    let path = noted(scratch.path());
    let here = [
        "--netns",
        name,
        "--cluster-from",
        cluster,
        "--node",
        "node1",
    ];

    let bundle = scratch.path().join("bundle");
    let bundle = bundle.to_str().unwrap();
    let mut words = vec!["env", &path, BIN];
    words.extend_from_slice(&here);
    words.extend_from_slice(&["snapshot", "-o", bundle]);
    run(&words, "");
    let asked = scratch.path().join("asked");
    assert!(fs::read_to_string(&asked).unwrap().contains("-save"));

    for target in [
        "default/nginx-svc",
        "shop/empty",
        "shop/cart",
        "nodeport:31082",
        "203.0.113.11:443",
        "10.0.0.1:80",
    ] {
        fs::remove_file(&asked).ok();
        let live = trace(&here, target, &path);
        let listed = fs::read_to_string(&asked).unwrap();
        let whole = trace(&["--from", bundle, "--node", "node1"], target, &path);
        assert!(live == whole, "{target}\n{live:#}\n{whole:#}");

        // `iptables-nft-save` runs once all the same: the reader of nftables tells native tables from iptables' by it.
        let services = |text: &str| {
            let names = [
                "KUBE-SVC-",
                "KUBE-SVL-",
                "KUBE-SEP-",
                "KUBE-EXT-",
                "KUBE-FW-",
            ];
            let lines = text.lines();
            lines
                .filter(|line| names.iter().any(|name| line.contains(name)))
                .count()
        };
        let all = run(&["ip", "netns", "exec", name, "iptables-nft-save"], "");
        let declared = all.lines().filter(|line| line.starts_with(':'));
        let declared = declared.collect::<Vec<_>>().join("\n");
        let (some, all) = (services(&listed), services(&declared));
        assert!(some < all / 5, "{target}: {some} of {all} chains: {listed}");
    }
}
