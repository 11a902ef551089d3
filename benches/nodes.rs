//! `kpx doctor --all-nodes` on bundles of 5,000 nodes: the recordings dealt to them, and one cluster with as many Node objects;
//! and as many nodes through a pod on each, against a fake API server in this process. Time, and the most memory; the report
//! of each node must be the one that it gets alone. And the other commands with `--all-nodes`, on that cluster and half of it.
//!
//! `cargo bench --bench nodes`, or `cargo bench --bench nodes -- COUNT` with another number of nodes. It prints a table, and
//! fails where a promise is broken.

#![expect(
    clippy::disallowed_methods,
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "a bench runs programs, prints, and stops where it cannot"
)]

#[path = "../tests/fake_api/mod.rs"]
#[expect(dead_code, unused_imports, reason = "the tests use the rest")]
mod fake_api;

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use kpx_node::evidence::{Evidence, ITEMS, Item, Manifest, NodesWriter, load, save};
use serde_json::{Value, json};

use fake_api::{Api, Recordings, objects_of, remove_times};

const TIME: &str = "2026-11-20T14:00:00Z";

/// The time and memory of a run.
struct Cost {
    wall: Duration,
    /// The most memory it held, in KiB.
    memory: u64,
}

fn main() {
    let count = std::env::args().find_map(|arg| arg.parse().ok());
    let count: usize = count.unwrap_or(5_000);
    let dir = tempfile::tempdir().unwrap();
    let recordings = recordings();
    let alone: BTreeMap<&str, Value> = recordings
        .iter()
        .map(|(name, evidence)| (name.as_str(), alone(dir.path(), name, evidence)))
        .collect();

    let few = dir.path().join("few.tar.gz");
    deal(&few, &recordings, count / 2);
    let many = dir.path().join("many.tar.gz");
    let took = deal(&many, &recordings, count);
    let out = dir.path().join("out.json");
    let of_few = doctor(&from(&few), &[], &out);
    let of_many = doctor(&from(&many), &[], &out);
    let checked = compare(&out, |node| {
        let number: usize = node.trim_start_matches('n').parse().unwrap();
        &alone[recordings[number % recordings.len()].0.as_str()]
    });
    assert_eq!(checked, count, "every node has a report");

    let cluster = dir.path().join("cluster.tar.gz");
    let (_, evidence) = recordings
        .iter()
        .find(|(name, _)| name == "full-iptables")
        .unwrap();
    let half = dir.path().join("half.tar.gz");
    let smaller = with_nodes(evidence, count / 2);
    deal(&half, &[("one".to_owned(), smaller)], count / 2);
    let evidence = with_nodes(evidence, count);
    let one = self::alone(dir.path(), "cluster-of-one", &evidence);
    deal(&cluster, &[("one".to_owned(), evidence)], count);
    let of_cluster = doctor(&from(&cluster), &[], &out);
    assert_eq!(compare(&out, |_| &one), count);
    let others = OTHERS.map(|command| {
        let line: Vec<&str> = command.split(' ').collect();
        [&half, &cluster].map(|bundle| run(&from(bundle), &line, &[], &out))
    });

    println!("writing {count} nodes took {:.1} s", took.as_secs_f64());
    let print = |what: String, cost: &Cost| {
        let seconds = cost.wall.as_secs_f64();
        println!("{what:<40} {seconds:>8.1} s {:>9} KiB", cost.memory);
    };
    print(format!("{} nodes, recordings dealt", count / 2), &of_few);
    print(format!("{count} nodes, recordings dealt"), &of_many);
    print(format!("{count} nodes of one cluster"), &of_cluster);
    for (command, [half, whole]) in OTHERS.iter().zip(&others) {
        print(format!("{} nodes, {command}", count / 2), half);
        print(format!("{count} nodes, {command}"), whole);
        let times = whole.wall.as_secs_f64() / half.wall.as_secs_f64();
        assert!(
            times <= 2.6,
            "{command}: twice the nodes, {times:.1} times the time"
        );
        assert!(whole.memory <= 1 << 20, "{command}: more than 1 GiB");
    }
    let grown = of_many.memory.saturating_sub(of_few.memory);
    let nodes = (count - count / 2) as u64;
    println!(
        "{} bytes of memory for each further node",
        grown * 1024 / nodes
    );
    for count in [count / 50, count] {
        let cost = through_pods(dir.path(), count, &out);
        print(format!("{count} nodes, through pods"), &cost);
    }
    // A node has 1 MB of rules on the average; its name and its findings, which are kept, have a few hundred bytes.
    assert!(
        grown <= of_few.memory / 5 + nodes * 8,
        "the memory grows with the nodes"
    );
}

/// Commands over all nodes, beside the doctor.
const OTHERS: [&str; 8] = [
    "diff",
    "show services",
    "trace default/nginx-svc",
    "why default/nginx-svc",
    "reconcile",
    "reconcile --cleanup ipvs",
    "preflight --to nftables",
    "resolve nginx-svc",
];

fn recordings() -> Vec<(String, Evidence)> {
    let all = Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata/nodes");
    let mut names: Vec<_> = fs::read_dir(&all)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
        .into_iter()
        .map(|name| (name.clone(), load(&all.join(name), ITEMS).unwrap()))
        .collect()
}

/// The manifest of a recording: its own, or one without a name of the node.
fn manifest(evidence: &Evidence) -> Manifest {
    let own = evidence.manifest().cloned();
    own.unwrap_or_else(|| Manifest::of(evidence, TIME.to_owned(), None))
}

/// The doctor's report on a recording alone.
fn alone(dir: &Path, name: &str, evidence: &Evidence) -> Value {
    let path = dir.join(name);
    save(evidence, &manifest(evidence), &path).unwrap();
    let ran = Command::new(env!("CARGO_BIN_EXE_kpx"))
        .args(["--from", path.to_str().unwrap(), "doctor", "-o", "json"])
        .output()
        .unwrap();
    serde_json::from_slice(&ran.stdout).unwrap()
}

/// Writes a bundle of `count` nodes that have these recordings in turn; returns the time it took.
fn deal(path: &Path, recordings: &[(String, Evidence)], count: usize) -> Duration {
    let start = Instant::now();
    let mut bundle = NodesWriter::create(path).unwrap();
    for (number, (_, evidence)) in recordings.iter().cycle().take(count).enumerate() {
        let name = format!("n{number}");
        bundle.node(&name, evidence, &manifest(evidence)).unwrap();
    }
    bundle.finish(TIME.to_owned()).unwrap();
    start.elapsed()
}

/// Adds Node objects, as a cluster of `count` nodes has them.
fn with_nodes(evidence: &Evidence, count: usize) -> Evidence {
    let mut list: Value = serde_json::from_str(evidence.text(Item::Nodes).unwrap()).unwrap();
    let nodes = list["items"].as_array_mut().unwrap();
    let first = nodes[0].clone();
    for number in 0..count {
        let mut node = first.clone();
        node["metadata"]["name"] = json!(format!("another-{number}"));
        node["status"]["addresses"] = json!([
            { "type": "InternalIP", "address": format!("10.77.{}.{}", number / 250, number % 250) }
        ]);
        nodes.push(node);
    }
    let mut evidence = evidence.clone();
    evidence.insert(Item::Nodes, Ok(list.to_string()));
    evidence
}

/// More than the default, since most of the time is spent waiting for pods.
const PARALLEL: [&str; 2] = ["--parallel", "50"];

/// The recording of every tenth node; the others have the first.
const DEALT: [&str; 3] = ["seed-iptables", "seed-nftables", "seed-ipvs"];

/// Runs the doctor through a pod on each of `count` nodes, and compares the reports with those of the same recordings alone.
fn through_pods(dir: &Path, count: usize, out: &Path) -> Cost {
    let all = Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata/nodes");
    let folder = |name: &str| all.join(name);
    let (api, nodes) = (Api::new(), Recordings::default());
    api.kubelet(nodes.clone());
    let first = folder(DEALT[0]);
    let processor = if cfg!(target_arch = "aarch64") {
        "amd64"
    } else {
        "arm64"
    };
    let recording = |number: usize| match number % 10 {
        9 => DEALT[number / 10 % DEALT.len()],
        _ => DEALT[0],
    };
    api.with(|cluster| {
        for (file, kind) in [
            ("configmaps.json", "ConfigMap"),
            ("services.json", "Service"),
            ("endpointslices.json", "EndpointSlice"),
        ] {
            for mut object in objects_of(&first, file) {
                object["kind"] = kind.into();
                cluster.put(object);
            }
        }
        let mut node = objects_of(&first, "nodes.json").remove(0);
        node["kind"] = json!("Node");
        node["status"]["nodeInfo"]["architecture"] = json!(processor);
        for number in 0..count {
            let name = named(number);
            nodes.deal(&name, &folder(recording(number)));
            node["metadata"]["name"] = json!(name);
            cluster.put(node.clone());
            cluster.put(json!({
                "kind": "Pod",
                "metadata": {
                    "namespace": "kube-system", "name": format!("kube-proxy-{name}"), "labels": {"k8s-app": "kube-proxy"},
                },
                "spec": {"nodeName": name, "containers": [{"name": "kube-proxy", "image": "kube-proxy:v1.36.2"}]},
                "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]},
            }));
        }
    });
    let config = dir.join("kubeconfig");
    fs::write(&config, api.kubeconfig()).unwrap();
    fs::write(
        dir.join(format!("kpx-linux-{processor}")),
        "a program".repeat(10_000),
    )
    .unwrap();
    let reach = [
        "--kubeconfig",
        config.to_str().unwrap(),
        "--programs",
        dir.to_str().unwrap(),
    ];
    // Names of nodes differ, and only for one node does the text of a fix say where its command belongs.
    let anonymous = |report: &Value| {
        let mut report = report.clone();
        remove_times(&mut report);
        let text = report.to_string();
        let mut parts = text.split(SIMULATED);
        let first = parts.next().unwrap_or_default().to_owned();
        let text = parts.fold(first, |text, part| text + "NODE" + &part[DIGITS..]);
        text.replace(" Run the command on NODE.", "")
    };
    let alone: BTreeMap<&str, String> = (0..count.min(10 * DEALT.len()))
        .filter(|number| *number == 0 || number % 10 == 9)
        .map(|number| {
            let name = named(number);
            let ran = Command::new(env!("CARGO_BIN_EXE_kpx"))
                .args(reach)
                .args(["--node", &name, "doctor", "-o", "json"])
                .output()
                .unwrap();
            let report = serde_json::from_slice(&ran.stdout)
                .unwrap_or_else(|e| panic!("{e}: {}", String::from_utf8_lossy(&ran.stderr)));
            (recording(number), anonymous(&report))
        })
        .collect();
    let cost = doctor(&reach, &PARALLEL, out);
    let mut compared = 0;
    each_report(out, |node, report| {
        let number: usize = node.rsplit('-').next().unwrap().parse().unwrap();
        assert_eq!(
            anonymous(report),
            alone[recording(number)],
            "{node} differs"
        );
        compared += 1;
    });
    assert_eq!(compared, count, "every node has a report");
    cost
}

/// The begin of the names of nodes, which is in no other text, and the number of digits behind it.
const SIMULATED: &str = "simulated-";
const DIGITS: usize = 5;

fn named(number: usize) -> String {
    format!("{SIMULATED}{number:0DIGITS$}")
}

fn from(bundle: &Path) -> [&str; 2] {
    ["--from", bundle.to_str().unwrap()]
}

/// Runs the doctor on all nodes that the options `reach` reach.
fn doctor(reach: &[&str], more: &[&str], out: &Path) -> Cost {
    run(reach, &["doctor"], more, out)
}

/// Runs a command on all nodes that the options `reach` reach.
fn run(reach: &[&str], command: &[&str], more: &[&str], out: &Path) -> Cost {
    let start = Instant::now();
    let mut child = Command::new(env!("CARGO_BIN_EXE_kpx"))
        .args(reach)
        .args(command)
        .args(["--all-nodes", "-o", "json"])
        .args(more)
        .stdout(Stdio::from(File::create(out).unwrap()))
        .spawn()
        .unwrap();
    let status = format!("/proc/{}/status", child.id());
    let mut memory = 0;
    let code = loop {
        if let Some(code) = child.try_wait().unwrap() {
            break code;
        }
        // The high-water mark, as last seen before the end.
        let text = fs::read_to_string(&status).unwrap_or_default();
        let peak = text.lines().find_map(|line| line.strip_prefix("VmHWM:"));
        let peak = peak.and_then(|rest| rest.trim().split(' ').next()?.parse().ok());
        memory = memory.max(peak.unwrap_or(0));
        thread::sleep(Duration::from_millis(5));
    };
    assert!(code.code().is_some_and(|code| code <= 3), "{code}");
    Cost {
        wall: start.elapsed(),
        memory,
    }
}

/// Compares the report of each node with the expected one; returns the number of nodes.
fn compare<'v>(out: &Path, expected: impl Fn(&str) -> &'v Value) -> usize {
    let mut count = 0;
    each_report(out, |node, report| {
        assert!(report == expected(node), "{node} differs");
        count += 1;
    });
    count
}

/// Calls `visit` with the name and the report of each node.
fn each_report(out: &Path, mut visit: impl FnMut(&str, &Value)) {
    let lines = BufReader::new(File::open(out).unwrap()).lines();
    let entries = lines
        .map(Result::unwrap)
        .filter(|line| line.starts_with("{\"node\":"));
    for entry in entries {
        let entry: Value = serde_json::from_str(entry.trim_end_matches(',')).unwrap();
        visit(entry["node"].as_str().unwrap(), &entry["report"]);
    }
}
