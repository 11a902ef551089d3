//! `kpx snapshot`: the bundle, its redaction, and the script that needs no kpx.

use std::collections::BTreeSet;
use std::fs;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};

use kpx_judge::redact::Redactor;
use kpx_node::backend::iptables::names::{endpoint_hash, service_hash};
use kpx_node::evidence::{Evidence, Forbidden, Gap, ITEMS, Item, load};
use kpx_node::net::Proto;
use serde_json::Value;
use tempfile::TempDir;

use crate::support::{chosen, kpx, kpx_on, root};

/// Recordings that together contain everything that is redacted.
const NODES: &[&str] = &[
    "full-iptables",
    "full-ipvs",
    "full-nftables",
    "dual-iptables",
    "dual-ipvs",
    "dual-nftables",
    "leftover-iptables-to-nftables",
];

fn node(name: &str) -> PathBuf {
    root().join("testdata/nodes").join(name)
}

fn redacted(name: &str) -> (Evidence, Evidence) {
    let before = load(&node(name), ITEMS).unwrap();
    let after = Redactor::new([42; 32], &before).evidence(&before);
    (before, after)
}

/// Returns every address in `text`, whatever characters surround it.
fn addresses(text: &str) -> BTreeSet<IpAddr> {
    let is_part = |c: char| c.is_ascii_hexdigit() || c == '.' || c == ':';
    let mut found = BTreeSet::new();
    for run in text.split(|c| !is_part(c)) {
        for run in [run, run.trim_matches(['.', ':'])] {
            found.extend(run.parse::<IpAddr>());
            found.extend(run.parse::<SocketAddr>().map(|socket| socket.ip()));
        }
    }
    found
}

/// Addresses that mean the same in every cluster.
fn is_everybodys(addr: IpAddr) -> bool {
    match addr {
        IpAddr::V4(v4) => {
            v4.is_loopback()
                || v4.is_unspecified()
                || v4.is_link_local()
                || v4.octets()[0] >= 224
                || v4.octets()[..3] == [198, 51, 100]
                // A version number that parses as an address.
                || v4.octets()[0] == 0
        }
        IpAddr::V6(v6) => {
            v6.is_loopback()
                || v6.is_unspecified()
                || v6.is_multicast()
                || v6.segments()[1..] == [0; 7]
        }
    }
}

fn names(evidence: &Evidence) -> BTreeSet<String> {
    // The last three are words of ports and comments, too.
    let kept = [
        "default",
        "kube-system",
        "kubernetes",
        "kube-dns",
        "kube-proxy",
        "dns",
        "local",
        "lb",
    ];
    let mut found = BTreeSet::new();
    for item in [
        Item::Services,
        Item::EndpointSlices,
        Item::Nodes,
        Item::Pods,
    ] {
        let list: Value =
            serde_json::from_str(evidence.text(item).unwrap_or(r#"{"items":[]}"#)).unwrap();
        for object in list["items"].as_array().unwrap() {
            for name in ["name", "namespace"] {
                found.extend(object["metadata"][name].as_str().map(str::to_owned));
            }
            let endpoints = object["endpoints"].as_array().into_iter().flatten();
            for endpoint in endpoints {
                found.extend(endpoint["targetRef"]["name"].as_str().map(str::to_owned));
                found.extend(endpoint["zone"].as_str().map(str::to_owned));
            }
        }
    }
    // A byte of a MAC or an address may look like a short name.
    found.retain(|name| name.len() > 2 || !name.bytes().all(|b| b.is_ascii_hexdigit()));
    found.retain(|name| !kept.contains(&name.as_str()));
    found
}

/// The words of an item; names of sysctls are whole ones.
fn words(item: Item, text: &str) -> BTreeSet<&str> {
    let is_part = |c: char| c == '-' || c == '_' && item == Item::Sysctl;
    text.split(|c: char| !c.is_ascii_alphanumeric() && !is_part(c))
        .collect()
}

#[test]
#[ignore = "takes long: make test-loops"]
fn nothing_of_the_cluster_is_left_after_redaction() {
    let few = chosen()
        .into_iter()
        .chain(NODES.iter().map(ToString::to_string));
    redaction_leaves_nothing(&few.collect::<Vec<_>>());
}

/// Fails if a name or an address of the cluster is left.
pub(crate) fn redaction_leaves_nothing(recorded: &[String]) {
    for name in recorded.iter().map(String::as_str) {
        let is_full = NODES.contains(&name);
        let (before, after) = redacted(name);
        let names = names(&before);
        assert!(names.len() > 10 || !is_full, "{name}");
        let mut gone = BTreeSet::new();
        for (_, read) in before.iter() {
            gone.extend(read.map(addresses).unwrap_or_default());
        }
        gone.retain(|addr| !is_everybodys(*addr));
        assert!(gone.len() > 20 || !is_full, "{name}");
        for (item, read) in after.iter() {
            let Ok(text) = read else { continue };
            let left: Vec<_> = addresses(text).intersection(&gone).copied().collect();
            assert_eq!(left, Vec::<IpAddr>::new(), "{name} {item}");
            let words = words(item, text);
            let left: Vec<_> = names
                .iter()
                .filter(|n| words.contains(n.as_str()))
                .collect();
            assert_eq!(left, Vec::<&String>::new(), "{name} {item}");
            for mac in ["52:54:00:12:34:56", "fe12:3456"] {
                assert!(!text.contains(mac), "{name} {item}");
            }
        }
    }
}

#[test]
fn redaction_keeps_the_relations_between_items() {
    let (mut services, mut endpoints) = (0, 0);
    for name in ["full-iptables", "dual-iptables"] {
        let (_, after) = redacted(name);
        for item in [Item::Iptables4, Item::Iptables6] {
            for line in after.text(item).unwrap().lines() {
                let Some((_, comment)) = line.split_once("--comment \"") else {
                    continue;
                };
                let spn = comment.split(['"', ' ']).next().unwrap();
                let word = |flag: &str| {
                    let (_, rest) = line.split_once(flag)?;
                    rest.split(' ').next()
                };
                let Some(proto) = word("-p ").and_then(|p| p.parse::<Proto>().ok()) else {
                    continue;
                };
                if let Some(hash) = word("-j KUBE-SVC-") {
                    assert_eq!(service_hash(spn, proto), hash, "{line}");
                    services += 1;
                }
                if let (Some(hash), Some(to)) = (word("-A KUBE-SEP-"), word("--to-destination ")) {
                    assert_eq!(
                        endpoint_hash(spn, proto, to.parse().unwrap()),
                        hash,
                        "{line}"
                    );
                    endpoints += 1;
                }
            }
        }
    }
    assert!(services > 40 && endpoints > 40, "{services} {endpoints}");
}

#[test]
fn versions_survive_redaction() {
    let mut before = Evidence::default();
    let versions = [
        (Item::KernelRelease, "6.1.0-13-amd64\n"),
        (Item::IptablesVersion, "iptables v1.8.9 (nf_tables)\n"),
        (
            Item::ConntrackVersion,
            "conntrack v1.4.7 (conntrack-tools)\n",
        ),
        (Item::IpsetVersion, "ipset v7.17, protocol version: 7\n"),
        (Item::NftVersion, "nftables v1.0.6 (Lester Gooch #5)\n"),
    ];
    for (item, text) in versions {
        before.insert(item, Ok(text.to_owned()));
    }
    let after = Redactor::new([42; 32], &before).evidence(&before);
    assert!(before.iter().eq(after.iter()), "{after:?}");
}

#[test]
fn the_user_of_a_refused_request_is_redacted() {
    for (user, kept) in [
        ("system:node:worker-1", "system:node:"),
        ("system:serviceaccount:shop:till", "system:serviceaccount:"),
        ("ann@example.org", ""),
    ] {
        let refused = Forbidden {
            why: format!("list nodes: User \"{user}\" cannot list resource \"nodes\""),
            user: user.to_owned(),
            verb: "list".to_owned(),
            resource: "nodes".to_owned(),
            credentials: "/etc/kubernetes/kubelet.conf".to_owned(),
        };
        let mut before = Evidence::default();
        let gap = Gap::Forbidden(Item::Nodes, Box::new(refused.clone()));
        before.insert(Item::Nodes, Err(gap));
        let after = Redactor::new([42; 32], &before).evidence(&before);
        let Err(Gap::Forbidden(Item::Nodes, new)) = after.text(Item::Nodes) else {
            panic!("{after:?}");
        };
        assert!(new.user.starts_with(kept) && new.user != user, "{new:?}");
        assert_eq!(new.why, refused.why.replace(user, &new.user));
        assert_eq!(
            (&new.verb, &new.resource),
            (&refused.verb, &refused.resource)
        );
        for secret in ["worker-1", "shop", "till", "example.org"] {
            assert!(!format!("{new:?}").contains(secret), "{new:?}");
        }
    }
}

#[tokio::test(flavor = "current_thread")]
#[ignore = "takes long: make test-loops"]
async fn a_redacted_bundle_gets_the_same_diagnosis() {
    let scratch = tempfile::tempdir().unwrap();
    for name in NODES {
        let path = scratch.path().join(format!("{name}.tar.gz"));
        let path = path.to_str().unwrap();
        let ran = kpx_on(name, &["snapshot", "--redact", "--file", path]).await;
        assert_eq!(ran.code, 0, "{ran}");
        let verdicts = |text: &str| -> Vec<(String, String, usize)> {
            let report: Value = serde_json::from_str(text).unwrap();
            let finding = |id: &str| {
                let all = report["findings"].as_array().unwrap();
                all.iter().filter(|finding| finding["id"] == id).count()
            };
            let checks = report["checks"].as_array().unwrap().iter().map(|check| {
                let text = |key: &str| check[key].as_str().unwrap().to_owned();
                (text("id"), text("status"), finding(&text("id")))
            });
            checks.collect()
        };
        let before = kpx_on(name, &["doctor", "-o", "json"]).await;
        let after = kpx(&["--from", path, "doctor", "-o", "json"]).await;
        assert_eq!(verdicts(&before.out), verdicts(&after.out), "{name}");
    }
}

#[tokio::test(flavor = "current_thread")]
async fn a_snapshot_of_a_bundle_is_that_bundle() {
    let scratch = tempfile::tempdir().unwrap();
    let path = scratch.path().join("copy.tgz");
    let path = path.to_str().unwrap();
    let ran = kpx_on("full-ipvs", &["snapshot", "--file", path]).await;
    assert_eq!(ran.code, 0, "{ran}");
    assert!(
        ran.out.contains(&format!("\nWrote {path}: 31 items")),
        "{ran}"
    );
    let before = load(&node("full-ipvs"), ITEMS).unwrap();
    let after = load(Path::new(path), ITEMS).unwrap();
    assert!(before.iter().eq(after.iter()));
    let manifest = after.manifest().unwrap();
    assert_eq!(manifest.node.as_deref(), Some("node1"));
    assert_eq!(manifest.time, "2026-11-20T12:11:57Z");

    let again = kpx_on("full-ipvs", &["snapshot", "--file", path]).await;
    assert_eq!(again.code, 4);
    assert!(again.err.contains("kpx does not overwrite"), "{again}");
}

/// Items without a standard tool, or with one that not every cluster supports: only kpx reads them.
const ONLY_KPX: &[Item] = &[
    Item::Ipvs,
    Item::HeldSockets,
    // bpftool shows neither the order of programs nor, in older releases, tcx.
    Item::Bpf,
    Item::Processes,
    Item::ProxyFiles,
    Item::Migration,
    Item::ProxyLog,
    Item::ServiceCidrs,
    Item::Access,
];

#[test]
fn the_script_reads_every_item_that_standard_tools_can_read() {
    let script = fs::read_to_string(root().join("src/command/snapshot/snapshot.sh")).unwrap();
    // Some file names contain the variable of a loop.
    let loops = [
        ("${ip}", &["ip", "ip6"][..]),
        ("$table", &["tcp", "tcp6", "udp", "udp6"]),
    ];
    let mut text = script.clone();
    for (variable, values) in loops {
        text.extend(values.iter().map(|value| script.replace(variable, value)));
    }
    for &item in ITEMS {
        assert_eq!(
            text.contains(item.file()),
            !ONLY_KPX.contains(&item),
            "{item:?}: read {item} in src/command/snapshot/snapshot.sh, or list it in ONLY_KPX"
        );
    }
}

#[tokio::test(flavor = "current_thread")]
async fn the_script_prints_itself_and_nothing_else() {
    let ran = kpx(&["snapshot", "--script"]).await;
    assert_eq!((ran.code, ran.err.as_str()), (0, ""));
    assert!(ran.out.starts_with("#!/bin/sh\n"));
    let ran = kpx(&["snapshot", "--script", "--file", "x.sh"]).await;
    assert_eq!(ran.code, 2, "{ran}");
}

/// On a machine where every tool fails, the script still writes a bundle with the reasons.
#[test]
fn the_script_makes_a_bundle_without_any_tool() {
    let scratch = TempDir::new().unwrap();
    let tools = scratch.path().join("bin");
    fs::create_dir(&tools).unwrap();
    for tool in [
        "cat", "date", "dirname", "basename", "find", "grep", "gzip", "head", "mkdir", "rm", "sed",
        "tail", "sh", "tar", "tr", "uname",
    ] {
        let real = ["/bin", "/usr/bin"].map(|dir| Path::new(dir).join(tool));
        let real = real.iter().find(|path| path.exists()).unwrap();
        std::os::unix::fs::symlink(real, tools.join(tool)).unwrap();
    }
    // The script adds the system's folders to the path, where the real tools may be.
    let script = fs::read_to_string(root().join("src/command/snapshot/snapshot.sh")).unwrap();
    let script = script.replace("PATH=$PATH:/usr/local/sbin:/usr/sbin:/sbin\n", "");
    let file = scratch.path().join("snapshot.sh");
    fs::write(&file, script).unwrap();
    #[expect(clippy::disallowed_methods, reason = "the script is under test")]
    let output = std::process::Command::new(tools.join("sh"))
        .arg(&file)
        .arg(scratch.path().join("node1"))
        .env_clear()
        .env("PATH", &tools)
        .output()
        .unwrap();
    let err = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{err}");
    assert!(
        err.contains("node/ipset-save.txt: ipset is not installed") || err.contains("ip_set"),
        "{err}"
    );
    assert!(
        err.contains("cluster/services.json: kubectl is not installed"),
        "{err}"
    );
    let add = format!(
        "  kpx --from {}/node1.tar.gz --kubeconfig FILE snapshot --file complete.tar.gz\n",
        scratch.path().display()
    );
    assert!(
        err.starts_with("missing from the bundle:\n") && err.contains(&add),
        "{err}"
    );
    let bundle = load(&scratch.path().join("node1.tar.gz"), ITEMS).unwrap();
    let why = bundle.text(Item::Services).unwrap_err().to_string();
    assert!(
        why.contains("not in the bundle (kubectl is not installed)"),
        "{why}"
    );
    assert!(bundle.text(Item::KernelRelease).is_ok());
    assert!(bundle.text(Item::Tcp4).is_ok());
    assert!(bundle.text(Item::Services).is_err());
}
