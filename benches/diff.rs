//! `kpx diff`, of rules and of every packet, on a recorded node with 2,000 Services of 10 endpoints, beside what the standard tools need for the same
//! rules; and how its time grows from 2,000 Services to ten times as many.
//!
//! Run as root: `cargo bench --bench diff`. It prints a table, and fails where a promise is broken.

#![expect(
    clippy::disallowed_methods,
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "a bench runs programs, prints, and stops where it cannot"
)]

use std::fmt::Write as _;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use kpx_judge::diff;
use kpx_node::backend::Mode;
use kpx_node::backend::iptables::expect::{Names, expect};
use kpx_node::backend::iptables::model::Chain;
use kpx_node::backend::iptables::print::WithoutCounters;
use kpx_node::evidence::{Evidence, Item};
use kpx_node::node::NodeSnapshot;
use serde_json::{Value, json};

/// The time and memory of a program.
#[derive(Clone, Copy)]
struct Cost {
    wall: Duration,
    /// The most memory it held, in KiB.
    memory: u64,
}

fn main() {
    let dir = tempfile::tempdir().unwrap();
    let node = recorded(dir.path());
    let small = bundle(dir.path(), 2_000);
    let large = bundle(dir.path(), 20_000);
    let kpx = env!("CARGO_BIN_EXE_kpx");
    let compare = |bundle: &Path, times| {
        let bundle = bundle.to_str().unwrap();
        best(times, &[kpx, "--from", bundle, "diff"], None)
    };
    let prove = |bundle: &Path| {
        let bundle = bundle.to_str().unwrap();
        best(2, &[kpx, "--from", bundle, "diff", "--packets"], None)
    };
    // The counting object of this one rule is not in the namespace.
    let rules = dir.path().join("rules");
    let text = fs::read_to_string(node.join("node/iptables-save.txt")).unwrap();
    let lines = text.split_inclusive('\n');
    let lines: String = lines.filter(|line| !line.contains("nfacct")).collect();
    fs::write(&rules, lines).unwrap();
    let check = ["unshare", "-n", "iptables-nft-restore", "--test"];
    let save = format!(
        "iptables-nft-restore < {} && exec iptables-nft-save -c",
        rules.display()
    );
    let restore = best(5, &check, Some(&rules));
    let of_node = compare(&node, 5);
    let save = best(2, &["unshare", "-n", "sh", "-c", &save], None);
    let of_small = compare(&small, 5);
    let of_large = compare(&large, 5);
    let packets = prove(&node);
    let packets_of_small = prove(&small);
    let packets_of_large = prove(&large);

    for (what, cost) in [
        ("iptables-nft-restore --test, recorded node", restore),
        ("iptables-nft-save -c after it (memory only)", save),
        ("kpx diff, recorded node", of_node),
        ("kpx diff, 2,000 Services", of_small),
        ("kpx diff, 20,000 Services", of_large),
        ("kpx diff --packets, recorded node", packets),
        ("kpx diff --packets, 2,000 Services", packets_of_small),
        ("kpx diff --packets, 20,000 Services", packets_of_large),
    ] {
        let seconds = cost.wall.as_secs_f64();
        println!("{what:<45} {seconds:>8.3} s {:>9} KiB", cost.memory);
    }
    let ratio = of_large.wall.as_secs_f64() / of_small.wall.as_secs_f64();
    println!("ten times the cluster costs {ratio:.1} times the time");
    assert!(
        of_node.wall <= restore.wall,
        "slower than iptables-nft-restore --test"
    );
    assert!(
        of_node.memory <= 3 * save.memory,
        "more than three times iptables-save's memory"
    );
    assert!(ratio <= 11.0, "not in proportion");
    assert!(
        packets.wall <= Duration::from_secs(5) && packets.memory <= 1 << 20,
        "packets: more than 5 s or 1 GiB"
    );
    let ratio = packets_of_large.wall.as_secs_f64() / packets_of_small.wall.as_secs_f64();
    println!("ten times the cluster costs {ratio:.1} times the time for packets");
    assert!(ratio <= 11.0, "packets: not in proportion");
}

/// Unpacks the recorded node.
fn recorded(dir: &Path) -> PathBuf {
    let from = Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata/nodes/scale-2000x10-iptables");
    let mut evidence = kpx_node::evidence::load(&from, &diff::needs(Mode::Iptables)).unwrap();
    evidence.extend(network());
    write(&evidence, dir.join("recorded"))
}

/// Links, addresses and routes of another recorded node, which decide on packets.
fn network() -> Evidence {
    let from = Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata/nodes/seed-iptables");
    let items = [Item::Links, Item::Addresses, Item::Routes, Item::Rules];
    let evidence = kpx_node::evidence::load(&from, &items).unwrap();
    evidence.only(&items)
}

/// Writes what was read, and returns where to.
fn write(evidence: &Evidence, path: PathBuf) -> PathBuf {
    for (item, read) in evidence.iter() {
        if let Ok(text) = read {
            let file = path.join(item.file());
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(file, text).unwrap();
        }
    }
    path
}

/// Runs `line` several times; returns the least it took.
fn best(times: u32, line: &[&str], input: Option<&Path>) -> Cost {
    let costs = (0..times).map(|_| cost(line, input));
    costs
        .reduce(|a, b| Cost {
            wall: a.wall.min(b.wall),
            memory: a.memory.max(b.memory),
        })
        .unwrap()
}

fn cost(line: &[&str], input: Option<&Path>) -> Cost {
    let start = Instant::now();
    let mut child = Command::new(line[0])
        .args(&line[1..])
        .stdin(input.map_or_else(Stdio::null, |path| File::open(path).unwrap().into()))
        .stdout(Stdio::null())
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
        thread::sleep(Duration::from_millis(1));
    };
    let wall = start.elapsed();
    assert!(code.success(), "{line:?}: {code}");
    Cost { wall, memory }
}

/// Writes the bundle of a node with `count` Services of ten endpoints each, every fourth with a NodePort.
fn bundle(dir: &Path, count: u32) -> PathBuf {
    let mut evidence = Evidence::default();
    let (mut services, mut slices) = (Vec::new(), Vec::new());
    for number in 0..count {
        let (service, slice) = service(number);
        services.push(service);
        slices.push(slice);
    }
    let config = "mode: iptables\nclusterCIDR: 10.128.0.0/9\nhostnameOverride: node1\n";
    let node = json!({ "items": [{ "metadata": { "name": "node1" } }] });
    for (item, text) in [
        (Item::ProxyConfig, config.to_owned()),
        (Item::Nodes, node.to_string()),
        (Item::Services, json!({ "items": services }).to_string()),
        (Item::EndpointSlices, json!({ "items": slices }).to_string()),
    ] {
        evidence.insert(item, Ok(text));
    }
    let mut texts = Vec::new();
    {
        let node = NodeSnapshot::new(&evidence);
        let desired = node.desired(Mode::Iptables).unwrap();
        for state in &desired.families {
            let names = Names::of(state);
            let mut rules = expect(desired, state, &names).unwrap();
            for table in &mut rules.tables {
                // As iptables-nft lists them: a Service's chains are far from one another.
                let of = |chain: &Chain<'_>| (chain.policy.is_none(), chain.name.to_string());
                table.chains.sort_by_cached_key(of);
                table.index();
            }
            let mut text = String::new();
            write!(text, "{}", WithoutCounters(&rules)).unwrap();
            texts.push((Item::iptables(state.family), text));
        }
    }
    for (item, text) in texts {
        evidence.insert(item, Ok(text));
    }
    evidence.extend(network());
    write(&evidence, dir.join(count.to_string()))
}

fn service(number: u32) -> (Value, Value) {
    let (high, low) = (number / 250, number % 250 + 1);
    let name = format!("service-{number}");
    let namespace = format!("namespace-{}", number % 40);
    let mut port = json!({ "name": "http", "protocol": "TCP", "port": 80, "targetPort": 8080 });
    if number.is_multiple_of(4) && number < 8_000 {
        port["nodePort"] = json!(30_000 + number / 4);
    }
    let service = json!({
        "metadata": { "name": name, "namespace": namespace },
        "spec": {
            "type": if number.is_multiple_of(4) { "NodePort" } else { "ClusterIP" },
            "clusterIP": format!("10.{}.{}.{low}", 96 + high / 250, high % 250),
            "ports": [port],
        },
    });
    let endpoints = (0..10).map(|at| {
        let number = number * 10 + at;
        let addr = format!(
            "10.{}.{}.{}",
            128 + number / 62_500,
            number / 250 % 250,
            number % 250 + 1
        );
        json!({
            "addresses": [addr],
            "nodeName": format!("node{}", number % 100),
            "conditions": { "ready": true, "serving": true, "terminating": false },
        })
    });
    let slice = json!({
        "metadata": {
            "name": format!("{name}-abcde"),
            "namespace": namespace,
            "labels": { "kubernetes.io/service-name": name },
        },
        "addressType": "IPv4",
        "endpoints": endpoints.collect::<Vec<_>>(),
        "ports": [{ "name": "http", "protocol": "TCP", "port": 8080 }],
    });
    (service, slice)
}
