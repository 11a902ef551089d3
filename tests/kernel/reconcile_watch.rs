//! `kpx reconcile --watch`: the rules of a node whose cluster changes, without a kube-proxy.

use std::collections::BTreeSet;
use std::fs;
use std::io::{BufRead as _, BufReader, Read as _};
use std::net::TcpListener;
use std::process::{Child, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::json;

use super::bridge::follow::{Node, set, slice};
use super::netns::get;
use super::others;
use crate::fake_api::{self, Key};
use crate::random::Dice;

/// Longest wait for a change; how long one takes is measured, not tested.
const PATIENCE: Duration = Duration::from_secs(20);

/// Addresses that no other Service of the recording has.
const POOL: [&str; 5] = [
    "10.244.1.200",
    "10.244.1.201",
    "10.244.1.202",
    "10.244.1.203",
    "10.244.1.204",
];

fn start(node: &Node, mode: &str) -> Child {
    node.kpx(&[
        "reconcile",
        "--watch",
        "--apply",
        "--yes",
        "-q",
        "--mode",
        mode,
    ])
    .stdout(Stdio::piped())
    .stderr(Stdio::piped())
    .spawn()
    .unwrap()
}

/// Waits for the line of the first sync; returns later lines.
fn first_sync(child: &mut Child) -> Receiver<String> {
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let Some(first) = lines.next() else {
        panic!("{}", ended(child).1);
    };
    let first = first.unwrap();
    assert!(first.contains(" start: "), "{first}");
    let (sender, later) = channel();
    thread::spawn(move || lines.for_each(|line| sender.send(line.unwrap()).unwrap_or_default()));
    later
}

/// Waits for the end; returns the exit status and what was printed on stderr.
fn ended(child: &mut Child) -> (Option<i32>, String) {
    let begin = Instant::now();
    while child.try_wait().unwrap().is_none() {
        if begin.elapsed() > PATIENCE {
            child.kill().unwrap();
        }
        thread::sleep(Duration::from_millis(20));
    }
    let mut text = String::new();
    let mut err = child.stderr.take().unwrap();
    err.read_to_string(&mut text).unwrap();
    (child.wait().unwrap().code(), text)
}

/// Returns the addresses of the pool that the rules translate to.
fn served(node: &Node, mode: &str) -> BTreeSet<&'static str> {
    let rules = match mode {
        "iptables" => node.netns.run("iptables-save -t nat"),
        "ipvs" => node.netns.run("ipvsadm-save -n"),
        _ => node.netns.run("nft list table ip kube-proxy"),
    };
    let to = rules.lines().filter(|line| match mode {
        "iptables" => line.contains("DNAT"),
        "ipvs" => !line.contains(" -w 0"),
        _ => true,
    });
    let to: Vec<&str> = to.collect();
    let is_target = |addr: &&str| {
        to.iter().any(|line| {
            line.contains(&format!("{addr}:80")) || line.contains(&format!("{addr} . 80"))
        })
    };
    POOL.into_iter().filter(is_target).collect()
}

/// Changes an object of the cluster in one of many ways.
fn change(node: &Node, dice: &mut Dice) {
    let number = dice.below(4);
    let name = format!("late-{number}");
    let exists = node
        .api
        .with(|cluster| cluster.get("services", "default", &name).is_some());
    if exists && dice.below(4) == 0 {
        let key = Key::new("services", "default", &name);
        node.api.with(|cluster| cluster.remove(&key));
        return;
    }
    let proto = ["TCP", "UDP"][usize::try_from(dice.below(2)).unwrap()];
    if dice.below(2) == 0 || !exists {
        let mut spec = json!({
            "type": "LoadBalancer", "clusterIP": format!("10.98.7.{number}"), "clusterIPs": [format!("10.98.7.{number}")],
            "ipFamilies": ["IPv4"], "externalTrafficPolicy": "Cluster",
            "ports": [{"port": 80 + dice.below(3), "protocol": proto, "targetPort": 80, "nodePort": 30100 + number}],
        });
        if dice.below(2) == 0 {
            spec["externalTrafficPolicy"] = "Local".into();
            spec["healthCheckNodePort"] = (31100 + number).into();
        }
        if dice.below(3) == 0 {
            spec["sessionAffinity"] = "ClientIP".into();
            spec["sessionAffinityConfig"] = json!({"clientIP": {"timeoutSeconds": 60}});
        }
        if dice.below(3) == 0 {
            spec["loadBalancerSourceRanges"] = json!(["10.1.0.0/16"]);
        }
        let ingress = json!({"ip": format!("203.0.113.{number}")});
        node.api.with(|cluster| {
            cluster.put(json!({
                "kind": "Service", "apiVersion": "v1", "metadata": {"name": name, "namespace": "default"},
                "spec": spec, "status": {"loadBalancer": {"ingress": [ingress]}},
            }));
        });
    }
    let count = dice.below(4);
    let endpoints = (0..count).map(|at| {
        let ready = dice.below(4) > 0;
        let on = format!("node{}", 1 + dice.below(2));
        json!({"addresses": [format!("10.244.{number}.{at}")], "nodeName": on, "conditions": {"ready": ready}})
    });
    let endpoints: Vec<_> = endpoints.collect();
    node.api.with(|cluster| {
        cluster.put(json!({
            "kind": "EndpointSlice", "apiVersion": "discovery.k8s.io/v1", "addressType": "IPv4",
            "metadata": {"name": format!("{name}-1"), "namespace": "default",
                "labels": {"kubernetes.io/service-name": name}},
            "endpoints": endpoints, "ports": [{"name": "", "port": 80, "protocol": proto}],
        }));
    });
}

/// Waits until `kpx diff` finds no difference.
fn in_sync(node: &Node, child: &mut Child, lines: &Receiver<String>, mode: &str, what: &str) {
    let begin = Instant::now();
    loop {
        let output = node.kpx(&["diff", "--mode", mode]).output().unwrap();
        if output.status.success() {
            return;
        }
        if begin.elapsed() > PATIENCE {
            child.kill().unwrap();
            let text = String::from_utf8_lossy(&output.stdout).into_owned();
            let lines: Vec<_> = lines.try_iter().collect();
            panic!("{what}: {text}\n{}\n{}", lines.join("\n"), ended(child).1);
        }
    }
}

fn follows(mode: &str) {
    let node = Node::new("seed-iptables");
    // The small kernel of a VM does not know all of it.
    let foreign = (mode != "ipvs").then(|| {
        others::add(&node.netns);
        others::state(&node.netns)
    });
    let mut child = start(&node, mode);
    let lines = first_sync(&mut child);
    let slice = slice(&node.api);
    let mut dice = Dice::new(9);
    for round in 0..30 {
        match round {
            6 | 20 => node.api.with(fake_api::Cluster::cut_watches),
            // Objects that the API server has forgotten are listed again.
            12 => node.api.with(|cluster| {
                cluster.forget();
                cluster.cut_watches();
            }),
            16 => node.api.with(|cluster| cluster.set_away(true)),
            _ => {}
        }
        let want: BTreeSet<&str> = POOL.into_iter().filter(|_| dice.below(2) == 0).collect();
        let addresses: Vec<&str> = want.iter().copied().collect();
        set(&node, &slice, &addresses);
        change(&node, &mut dice);
        if round == 16 {
            thread::sleep(Duration::from_millis(700));
            node.api.with(|cluster| cluster.set_away(false));
        }
        in_sync(&node, &mut child, &lines, mode, &format!("round {round}"));
        assert_eq!(served(&node, mode), want, "round {round}");
    }
    // Another program removes rules: the next change fails, or the next full sync sees it.
    if mode == "nftables" {
        node.netns.run("nft delete table ip kube-proxy");
        set(&node, &slice, &["10.244.1.200"]);
        in_sync(&node, &mut child, &lines, mode, "a table that went");
    }
    let second = node.kpx(&["reconcile", "--apply", "--yes", "--mode", mode]);
    let second = { second }.output().unwrap();
    assert_eq!(second.status.code(), Some(4));
    assert!(String::from_utf8_lossy(&second.stderr).contains("another kpx"));
    let before = served(&node, mode);
    node.netns.run(&format!("kill -TERM {}", child.id()));
    let (code, text) = ended(&mut child);
    assert_eq!(code, Some(0), "{text}");
    assert!(
        text.contains("stopped by a signal; the rules stay"),
        "{text}"
    );
    assert_eq!(served(&node, mode), before);
    if let Some(foreign) = foreign {
        others::assert_same(&node.netns, &foreign);
    }
    node.done(&["diff", "--mode", mode]);
}

#[test]
#[ignore = "needs root and a network namespace"]
fn rules_of_iptables_follow_random_changes() {
    follows("iptables");
}

#[test]
#[ignore = "needs root and a network namespace"]
fn long_rules_of_nftables_follow_random_changes() {
    follows("nftables");
}

#[test]
#[ignore = "needs root and ip_vs"]
fn vm_virtual_servers_follow_random_changes() {
    follows("ipvs");
}

#[test]
#[ignore = "needs root and a network namespace"]
fn a_kube_proxy_that_hangs_is_accepted_and_one_that_runs_is_not() {
    let node = Node::new("seed-iptables");
    let program = node.root.path().join("kube-proxy");
    fs::copy("/bin/sleep", &program).unwrap();
    let line = [program.to_str().unwrap(), "600"];
    let mut proxy = node.netns.start(&line, Stdio::null());
    let (code, text) = ended(&mut start(&node, "iptables"));
    let rules = node.netns.run("iptables-save -t nat");
    assert_eq!(code, Some(4), "{text}");
    assert!(text.contains("runs and is not known to hang"), "{text}");
    assert!(!rules.contains("KUBE-"), "{rules}");

    node.netns.run(&format!("kill -STOP {}", proxy.id()));
    let mut child = start(&node, "iptables");
    first_sync(&mut child);
    assert!(node.netns.run("iptables-save -t nat").contains("KUBE-SVC-"));
    // It continues.
    node.netns.run(&format!("kill -CONT {}", proxy.id()));
    let (code, text) = ended(&mut child);
    assert_eq!(code, Some(4), "{text}");
    assert!(text.contains("hangs: it is stopped"), "{text}");
    assert!(text.contains("runs: stopped; the rules stay"), "{text}");
    proxy.kill().unwrap();
    proxy.wait().unwrap();

    let mut child = start(&node, "iptables");
    first_sync(&mut child);
    let mut proxy = node.netns.start(&line, Stdio::null());
    let (code, text) = ended(&mut child);
    assert_eq!(code, Some(4), "{text}");
    assert!(text.contains("runs: stopped; the rules stay"), "{text}");
    proxy.kill().unwrap();
    proxy.wait().unwrap();
}

/// Asks for `path` at `address` in the node's network; returns the status and the whole text.
fn ask(node: &Node, address: &str, path: &str) -> (u16, String) {
    // A connection that is refused, or reset by a server that ends, is no answer yet.
    let text = node.netns.inside(|| get(address, path)).unwrap_or_default();
    let status = text.split(' ').nth(1).and_then(|code| code.parse().ok());
    (status.unwrap_or(0), text)
}

fn answers(node: &Node, address: &str, path: &str, status: u16) -> String {
    let begin = Instant::now();
    loop {
        let seen = ask(node, address, path);
        if seen.0 == status {
            return seen.1;
        }
        assert!(begin.elapsed() < PATIENCE, "{address}{path}: {seen:?}");
        thread::sleep(Duration::from_millis(50));
    }
}

#[test]
#[ignore = "needs root and a network namespace"]
fn health_checks_are_served_as_kube_proxy_serves_them() {
    let node = Node::new("seed-iptables");
    let mut child = start(&node, "nftables");
    first_sync(&mut child);
    let text = answers(&node, "127.0.0.1:10256", "/healthz", 200);
    assert!(
        text.contains("\"nodeEligible\":true,\"healthy\":true"),
        "{text}"
    );
    answers(&node, "127.0.0.1:10256", "/livez", 200);
    answers(&node, "127.0.0.1:10256", "/other", 404);
    let put = |endpoints: serde_json::Value| {
        node.api.with(|cluster| {
            cluster.put(json!({
                "kind": "EndpointSlice", "apiVersion": "discovery.k8s.io/v1", "addressType": "IPv4",
                "metadata": {"name": "edge-1", "namespace": "default", "labels": {"kubernetes.io/service-name": "edge"}},
                "endpoints": endpoints, "ports": [{"name": "", "port": 80, "protocol": "TCP"}],
            }));
        });
    };
    let pod = |addr: &str, node: &str| json!({"addresses": [addr], "nodeName": node, "conditions": {"ready": true}});
    put(json!([pod("10.244.2.9", "node2")]));
    node.api.with(|cluster| {
        cluster.put(json!({
            "kind": "Service", "apiVersion": "v1", "metadata": {"name": "edge", "namespace": "default"},
            "spec": {"type": "LoadBalancer", "clusterIP": "10.98.7.7", "clusterIPs": ["10.98.7.7"], "ipFamilies": ["IPv4"],
                "externalTrafficPolicy": "Local", "healthCheckNodePort": 31199,
                "ports": [{"port": 80, "protocol": "TCP", "targetPort": 80, "nodePort": 30199}]},
        }));
    });
    let text = answers(&node, "10.0.2.15:31199", "/", 503);
    assert!(
        text.contains("x-load-balancing-endpoint-weight: 0"),
        "{text}"
    );
    put(json!([
        pod("10.244.2.9", "node2"),
        pod("10.244.1.9", "node1"),
        pod("10.244.1.8", "node1")
    ]));
    let text = answers(&node, "10.0.2.15:31199", "/", 200);
    assert!(
        text.contains("x-load-balancing-endpoint-weight: 2"),
        "{text}"
    );
    node.api
        .with(|cluster| cluster.remove(&Key::new("services", "default", "edge")));
    answers(&node, "10.0.2.15:31199", "/", 0);
    node.netns.run(&format!("kill -TERM {}", child.id()));
    assert_eq!(ended(&mut child).0, Some(0));

    // Another program has the port.
    let taken = node
        .netns
        .inside(|| TcpListener::bind("0.0.0.0:10256").unwrap());
    thread::spawn(move || taken.incoming().for_each(drop));
    let mut child = start(&node, "nftables");
    first_sync(&mut child);
    thread::sleep(Duration::from_millis(500));
    node.netns.run(&format!("kill -TERM {}", child.id()));
    let (code, text) = ended(&mut child);
    assert_eq!(code, Some(0), "{text}");
    assert!(
        text.contains("not served: /healthz at 0.0.0.0:10256"),
        "{text}"
    );
    assert!(text.contains("in use"), "{text}");
}
