//! `kpx doctor --all-nodes` on bundles of 5,000 nodes: the recordings dealt to them, and one cluster with as many Node objects.
//! Time, and the most memory; the report of each node must be the one that it gets alone.
//!
//! `cargo bench --bench nodes`, or `cargo bench --bench nodes -- COUNT` with another number of nodes. It prints a table, and
//! fails where a promise is broken.

#![expect(
    clippy::disallowed_methods,
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "a bench runs programs, prints, and stops where it cannot"
)]

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use kpx::evidence::{Evidence, ITEMS, Item, Manifest, NodesWriter, load, save};
use serde_json::{Value, json};

const TIME: &str = "2026-11-20T14:00:00Z";

/// What a run needed.
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
    deal(&few, &recordings, count / 10);
    let many = dir.path().join("many.tar.gz");
    let took = deal(&many, &recordings, count);
    let out = dir.path().join("out.json");
    let of_few = doctor(&few, &out);
    let of_many = doctor(&many, &out);
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
    let evidence = with_nodes(evidence, count);
    let one = self::alone(dir.path(), "cluster-of-one", &evidence);
    deal(&cluster, &[("one".to_owned(), evidence)], count);
    let of_cluster = doctor(&cluster, &out);
    assert_eq!(compare(&out, |_| &one), count);

    println!("writing {count} nodes took {:.1} s", took.as_secs_f64());
    for (what, cost) in [
        (format!("{} nodes, recordings dealt", count / 10), &of_few),
        (format!("{count} nodes, recordings dealt"), &of_many),
        (format!("{count} nodes of one cluster"), &of_cluster),
    ] {
        let seconds = cost.wall.as_secs_f64();
        println!("{what:<40} {seconds:>8.1} s {:>9} KiB", cost.memory);
    }
    let grown = of_many.memory.saturating_sub(of_few.memory);
    let nodes = (count - count / 10) as u64;
    println!(
        "{} bytes of memory for each further node",
        grown * 1024 / nodes
    );
    // The largest recording has 10 MB of rules; a node's name and its findings are a few hundred bytes each.
    assert!(
        grown <= of_few.memory / 2 + nodes * 8,
        "the memory grows with the nodes"
    );
}

fn recordings() -> Vec<(String, Evidence)> {
    let all = Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata/nodes");
    let mut names: Vec<_> = fs::read_dir(&all)
        .unwrap()
        .map(|of| of.unwrap().file_name().into_string().unwrap())
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

/// Runs the doctor on all nodes of `bundle`.
fn doctor(bundle: &Path, out: &Path) -> Cost {
    let start = Instant::now();
    let bundle = bundle.to_str().unwrap();
    let mut child = Command::new(env!("CARGO_BIN_EXE_kpx"))
        .args(["--from", bundle, "doctor", "--all-nodes", "-o", "json"])
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
    let lines = BufReader::new(File::open(out).unwrap()).lines();
    let entries = lines
        .map(Result::unwrap)
        .filter(|line| line.starts_with("{\"node\":"));
    let mut count = 0;
    for entry in entries {
        let entry: Value = serde_json::from_str(entry.trim_end_matches(',')).unwrap();
        let node = entry["node"].as_str().unwrap();
        assert!(entry["report"] == *expected(node), "{node} differs");
        count += 1;
    }
    count
}
