//! `kpx trace` on recorded nodes.

mod answers;
mod node;
mod recorded;
mod routes;
mod rules;

use std::collections::BTreeSet;
use std::fs;
use std::net::IpAddr;

use kpx_judge::trace::{Assumed, Carried, Entry, Flow, Outcome, Verdict, World};
use kpx_node::backend::Mode;
use kpx_node::evidence::{self, Evidence, Item};
use kpx_node::net::Family;
use kpx_node::node::NodeSnapshot;
use kpx_node::owner::Owners;
use serde_json::Value;
use tempfile::TempDir;

use crate::support::{HEALTHY, Ran, broken, chosen, kpx, kpx_on, recordings, root};

const MODES: [&str; 3] = ["iptables", "ipvs", "nftables"];

async fn trace(name: &str, args: &[&str]) -> Ran {
    let mut all = vec!["trace"];
    all.extend_from_slice(args);
    let ran = kpx_on(name, &all).await;
    fits(&ran, name, args);
    ran
}

fn fits(ran: &Ran, name: &str, args: &[&str]) {
    if args.contains(&"-o") {
        return;
    }
    // Commands are not cut.
    let lines = ran.out.lines().filter(|line| !line.starts_with("next: "));
    for line in lines {
        assert!(line.chars().count() <= 80, "{name} {args:?}: {line}");
    }
}

/// The traces of a report, by source.
async fn traces(name: &str, target: &str, more: &[&str]) -> (u8, Value, Vec<Value>) {
    let mut args = vec!["trace", target, "-o", "json"];
    args.extend_from_slice(more);
    let ran = kpx_on(name, &args).await;
    let report: Value =
        serde_json::from_str(&ran.out).unwrap_or_else(|e| panic!("{name} {target}: {e}: {ran}"));
    let all = match report["sources"].as_array() {
        Some(all) => all.clone(),
        None => vec![report.clone()],
    };
    (ran.code, report, all)
}

fn verdict(trace: &Value) -> &str {
    trace["verdict"].as_str().unwrap()
}

fn outcomes(trace: &Value) -> &[Value] {
    trace["outcomes"].as_array().unwrap()
}

fn backends(trace: &Value) -> BTreeSet<String> {
    let backends = outcomes(trace).iter().filter_map(|o| o.get("backend"));
    backends
        .map(|b| format!("{}:{}", b["address"].as_str().unwrap(), b["port"]))
        .collect()
}

fn masqueraded(trace: &Value) -> Vec<bool> {
    let all = outcomes(trace).iter();
    all.map(|o| o["masquerade"].as_bool().unwrap()).collect()
}

fn reason(trace: &Value) -> &str {
    outcomes(trace)[0]["reason"].as_str().unwrap()
}

#[tokio::test]
async fn the_tutorials_service_gives_each_pod_a_third() {
    for mode in MODES {
        let name = format!("seed-{mode}");
        let (code, report, all) = traces(&name, "10.97.54.248:80", &[]).await;
        assert_eq!(code, 0);
        assert_eq!(report["service"]["name"], "nginx-svc");
        assert_eq!(all.len(), 3);
        for trace in &all {
            assert_eq!(verdict(trace), "deliver", "{name}");
            let pods = ["10.244.1.14:80", "10.244.1.16:80", "10.244.1.17:80"];
            assert_eq!(backends(trace), BTreeSet::from(pods.map(str::to_owned)));
            for outcome in outcomes(trace) {
                let share = outcome["probability"].as_f64().unwrap();
                assert!((share - 1.0 / 3.0).abs() < 1e-6, "{name}: {share}");
            }
        }
        // Pods keep their address, but for a pod that reaches itself; others would not be answered.
        let kept: Vec<_> = all[..2].iter().map(masqueraded).collect();
        assert_eq!(kept, [[false; 3], [true; 3]], "{name}");
        let itself = &all[2];
        let from = itself["from"].as_str().unwrap();
        assert!(
            from.starts_with("a pod of the Service (10.244.1.14, "),
            "{from}"
        );
        for outcome in outcomes(itself) {
            let is_itself = outcome["backend"]["address"] == "10.244.1.14";
            assert_eq!(outcome["masquerade"], is_itself, "{name}: {outcome}");
        }
    }
}

#[tokio::test]
async fn snapshots_of_the_tutorial() {
    for mode in MODES {
        let name = format!("seed-{mode}");
        let shown = |what: &str| format!("{what}-{mode}");
        insta::assert_snapshot!(
            shown("nginx-svc"),
            trace(&name, &["default/nginx-svc"]).await
        );
        insta::assert_snapshot!(
            shown("nodeport"),
            trace(&name, &["nodeport:31082", "--source", "outside"]).await
        );
        insta::assert_snapshot!(
            shown("hairpin"),
            trace(&name, &["10.97.54.248:80", "--source", "10.244.1.14"]).await
        );
    }
    insta::assert_snapshot!(
        "wide",
        trace(
            "seed-iptables",
            &["default/nginx-svc", "--source", "host", "-o", "wide"]
        )
        .await
    );
    insta::assert_snapshot!(
        "json",
        trace(
            "seed-iptables",
            &["default/nginx-svc", "--source", "host", "-o", "json"]
        )
        .await
    );
}

#[tokio::test]
async fn a_pod_that_reaches_itself_gets_another_source() {
    for mode in MODES {
        let (_, _, all) = traces(
            &format!("seed-{mode}"),
            "default/nginx-svc",
            &["--source", "default/nginx-6799fc88d8-8jnxd"],
        )
        .await;
        for outcome in outcomes(&all[0]) {
            let itself = outcome["backend"]["address"] == "10.244.1.14";
            assert_eq!(outcome["masquerade"], itself, "{mode}: {outcome}");
        }
    }
}

#[tokio::test]
async fn a_nodeport_is_masqueraded_unless_its_policy_is_local() {
    for mode in MODES {
        let name = format!("seed-{mode}");
        let (_, _, all) = traces(&name, "nodeport:31082", &["--source", "outside"]).await;
        assert_eq!(verdict(&all[0]), "deliver", "{name}");
        assert_eq!(masqueraded(&all[0]), [true; 3], "{name}");
        let name = format!("full-{mode}");
        let (_, _, all) = traces(&name, "203.0.113.12:80", &["--source", "outside"]).await;
        assert_eq!(verdict(&all[0]), "deliver", "{name}");
        assert!(masqueraded(&all[0]).iter().all(|m| !m), "{name}");
    }
}

#[tokio::test]
async fn a_service_without_endpoints_rejects_with_the_reason() {
    for mode in MODES {
        let name = format!("full-{mode}");
        for source in ["host", "outside", "10.244.1.200"] {
            let (_, _, all) = traces(&name, "shop/empty", &["--source", source]).await;
            assert_eq!(verdict(&all[0]), "reject", "{name} {source}");
            let why = reason(&all[0]);
            assert!(why.starts_with("shop/empty:http has no endpoints"), "{why}");
        }
    }
}

#[tokio::test]
async fn a_local_policy_without_local_endpoints_is_the_reason() {
    for mode in MODES {
        let (_, _, all) = traces(
            &format!("full-{mode}"),
            "shop/agent-remote",
            &["--source", "host"],
        )
        .await;
        let (verdicts, words) = match mode {
            "ipvs" => ("reject", "has no endpoint on this node"),
            _ => (
                "drop",
                "has no local endpoints, and its traffic policy is Local",
            ),
        };
        assert_eq!(verdict(&all[0]), verdicts, "{mode}");
        assert!(reason(&all[0]).contains(words), "{}", reason(&all[0]));
    }
}

#[tokio::test]
async fn source_ranges_accept_and_drop_clients() {
    for mode in MODES {
        let name = format!("full-{mode}");
        let lb = "203.0.113.11:443";
        let (_, _, inside) = traces(&name, lb, &["--source", "198.51.100.7"]).await;
        assert_eq!(verdict(&inside[0]), "deliver", "{name}");
        // As for `why`, a client that the Service lets in stands for all outside.
        let (_, _, outside) = traces(&name, lb, &["--source", "outside"]).await;
        assert_eq!(verdict(&outside[0]), "deliver", "{name}");
        let (_, _, outside) = traces(&name, lb, &["--source", "198.18.0.1"]).await;
        assert_eq!(verdict(&outside[0]), "drop", "{name}");
        assert_eq!(
            reason(&outside[0]),
            "the source is outside loadBalancerSourceRanges of edge/web-restricted:https"
        );
    }
}

#[tokio::test]
async fn snapshots_of_every_kind_of_service() {
    let cases: [(&str, &str, &[&str]); 15] = [
        ("no-endpoints", "full-iptables", &["shop/empty"]),
        ("no-endpoints-nftables", "full-nftables", &["shop/empty"]),
        ("no-local", "full-iptables", &["shop/agent-remote"]),
        ("no-local-ipvs", "full-ipvs", &["shop/agent-remote"]),
        ("ranges", "full-nftables", &["203.0.113.11:443"]),
        (
            "affinity",
            "full-iptables",
            &["shop/cart", "--source", "host"],
        ),
        (
            "affinity-ipvs",
            "full-ipvs",
            &["shop/cart", "--source", "host"],
        ),
        ("external-ip", "full-iptables", &["edge/ext"]),
        (
            "udp",
            "full-nftables",
            &["edge/syslog", "--source", "outside"],
        ),
        (
            "sctp",
            "full-ipvs",
            &["edge/sigtran", "--source", "outside"],
        ),
        (
            "terminating",
            "full-iptables",
            &["shop/draining", "--source", "host"],
        ),
        (
            "left-to-other",
            "full-iptables",
            &["shop/meshed", "--source", "host"],
        ),
        (
            "as-ipvs",
            "full-nftables",
            &["shop/cart", "--source", "host", "--mode", "ipvs"],
        ),
        (
            "no-such-port",
            "full-nftables",
            &["10.100.1.1:9999", "--source", "host"],
        ),
        (
            "leftover",
            "leftover-iptables-to-ipvs",
            &["edge/web:http", "--source", "outside"],
        ),
    ];
    for (shown, name, args) in cases {
        insta::assert_snapshot!(shown, trace(name, args).await);
    }
    let v6 = ["--family", "6", "trace"];
    for name in ["dual-iptables", "dual-ipvs", "dual-nftables"] {
        let mut args = v6.to_vec();
        args.extend(["shop/front:http", "--source", "outside"]);
        let ran = kpx_on(name, &args).await;
        fits(&ran, name, &args);
        insta::assert_snapshot!(format!("v6-{name}"), ran);
    }
}

#[tokio::test]
async fn errors_name_the_next_step() {
    let mut all = String::new();
    for args in [
        &["shop/nothing"][..],
        &["shop/multi:grpc"],
        &["10.0.0.1"],
        &["www.example.com:80"],
        &["default/nginx-svc", "--source", "nobody"],
        &["default/nginx-svc", "--source", "fd00::1"],
        &["default/nginx-svc", "-o", "image"],
        &["shop/legacy-db"],
        &["default/nginx-svc", "--probe"],
    ] {
        let ran = trace("full-iptables", args).await;
        assert!(ran.out.is_empty(), "{ran}");
        all.extend([
            "$ kpx trace ",
            &args.join(" "),
            "\n",
            &ran.to_string(),
            "\n\n",
        ]);
    }
    insta::assert_snapshot!("errors", all);
}

/// A recorded node, read whole.
fn recording(name: &str) -> Evidence {
    let dir = root().join("testdata/nodes").join(name);
    evidence::load(&dir, evidence::ITEMS).unwrap()
}

/// A packet to every address and NodePort of every service port, from a pod, the host and outside.
fn flows(owners: &Owners) -> Vec<(String, Flow)> {
    let mut flows = Vec::new();
    for port in owners.ports() {
        let number = port.port.into_iter();
        let mut targets: Vec<(IpAddr, u16)> = number
            .flat_map(|number| port.addresses.iter().map(move |(_, addr)| (*addr, number)))
            .collect();
        let hosts = ["10.0.2.15", "fd00:10:0:2::15"].map(|ip| ip.parse().unwrap());
        targets.extend(port.node_port.iter().flat_map(|n| hosts.map(|ip| (ip, *n))));
        for (destination, number) in targets {
            let (pod, outside) = match destination {
                IpAddr::V4(_) => ("10.244.1.200", "198.18.0.1"),
                IpAddr::V6(_) => ("fd00:10:244:1::200", "2001:2::1"),
            };
            for (entry, source) in [
                (Entry::Pod, Some(pod)),
                (Entry::Host, None),
                (Entry::Outside, Some(outside)),
            ] {
                let what = format!("{} {destination} {number} {entry:?}", port.name);
                let flow = Flow {
                    entry,
                    source: source.map(|ip| ip.parse().unwrap()),
                    destination,
                    port: number,
                    mark: 0,
                    carried: Carried::default(),
                    proto: port.proto,
                    established: false,
                };
                flows.push((what, flow));
            }
        }
    }
    flows
}

fn walk<'a>(node: &'a NodeSnapshot<'a>, flow: &Flow) -> Vec<Outcome> {
    let world = World::whole(node, Family::of(flow.destination));
    world.walk(flow).unwrap()
}

#[test]
#[ignore = "takes long: make test-loops"]
fn probabilities_add_up_and_healthy_nodes_leave_nothing_unknown() {
    let mut count = 0;
    for name in recordings() {
        if name.starts_with("scale-") {
            continue;
        }
        let evidence = recording(&name);
        let node = NodeSnapshot::new(&evidence);
        let healthy = HEALTHY.contains(&name.as_str());
        for (what, flow) in flows(&Owners::new(&node)) {
            let outcomes = walk(&node, &flow);
            let sum: f64 = outcomes.iter().map(|o| o.probability).sum();
            assert!((sum - 1.0).abs() < 1e-9, "{name} {what}: {sum}");
            for outcome in &outcomes {
                let sure = outcome.verdict != Verdict::Unknown && outcome.when.is_empty();
                assert!(sure || !healthy, "{name} {what}: {outcome:?}");
            }
            count += 1;
        }
    }
    assert!(count > 2000, "{count} traces");
}

#[test]
#[ignore = "takes long: make test-loops"]
fn another_mode_is_simulated() {
    let ends = |outcomes: Vec<Outcome>| {
        let end = |o: &Outcome| {
            let share = (o.probability * 1000.0).round();
            let to = (o.verdict == Verdict::Deliver).then_some(o.destination);
            format!("{:?} {to:?} {share} {}", o.verdict, o.masquerade)
        };
        let mut ends: Vec<_> = outcomes.iter().map(end).collect();
        ends.sort();
        ends
    };
    for cluster in ["full", "dual"] {
        let all = MODES.map(|mode| recording(&format!("{cluster}-{mode}")));
        let nodes = all.each_ref().map(NodeSnapshot::new);
        for (there, want) in MODES.iter().zip(&nodes) {
            let mode = Mode::named(there).unwrap();
            let owners = Owners::new(want);
            for (here, node) in MODES.iter().zip(&nodes) {
                let assumed = Assumed::new(node, mode).unwrap();
                let have = assumed.snapshot();
                for (what, flow) in flows(&owners) {
                    // Only rules of mode nftables contain the prefix of cluster IPs; without it, packets to unused cluster IPs pass.
                    let stray = owners.at(flow.destination, flow.port, flow.proto);
                    if *there != *here && stray.is_some_and(|(port, _)| port.left_to.is_some()) {
                        continue;
                    }
                    assert_eq!(
                        ends(walk(&have, &flow)),
                        ends(walk(want, &flow)),
                        "{cluster}-{here} as {there}: {what}"
                    );
                }
            }
        }
    }
}

#[tokio::test]
async fn a_picture_has_every_backend_and_reads_as_its_language() {
    let cases = [
        ("seed-iptables", "default/nginx-svc"),
        ("full-nftables", "203.0.113.11:443"),
        ("full-ipvs", "shop/multi:http"),
    ];
    for (name, target) in cases {
        let (_, _, all) = traces(name, target, &[]).await;
        let dot = trace(name, &[target, "-o", "dot"]).await.out;
        let mermaid = trace(name, &[target, "-o", "mermaid"]).await.out;
        for addr in all.iter().flat_map(backends) {
            assert!(dot.contains(&addr) && mermaid.contains(&addr), "{addr}");
        }
        graphviz(&dot);
        flowchart(&mermaid);
    }
    let picture = async |format| {
        let args = ["default/nginx-svc", "--source", "host", "-o", format];
        trace("seed-iptables", &args).await
    };
    insta::assert_snapshot!("mermaid", picture("mermaid").await);
    insta::assert_snapshot!("dot", picture("dot").await);
    insta::assert_snapshot!("svg", picture("svg").await);
}

/// The text of each node of `document` that has the class `class`, at any depth.
fn classed(document: &str, class: &str) -> Vec<String> {
    let parsed = roxmltree::Document::parse(document).unwrap_or_else(|e| panic!("{e}: {document}"));
    let of = parsed.descendants();
    let of = of.filter(|node| node.attribute("class").is_some_and(|c| c == class));
    let text = |node: roxmltree::Node<'_, '_>| {
        let texts = node.descendants().filter(roxmltree::Node::is_text);
        texts
            .filter_map(|node| node.text())
            .collect::<Vec<_>>()
            .join(" ")
    };
    of.map(text).collect()
}

#[tokio::test]
async fn a_drop_is_red_in_the_picture_and_named_with_its_rule() {
    let drawn = trace("ir16-foreign-drops", &["default/nginx-svc", "-o", "svg"]).await;
    let red = classed(&drawn.out, "bad");
    let rule = "raw PREROUTING rule 1 drops owner: unknown (not kube-proxy)";
    assert!(red.iter().any(|text| text == rule), "{red:?}");
    assert!(red.iter().any(|text| text == "LOST:"), "{red:?}");
    assert!(
        drawn.out.contains(".bad .step{fill:#fdeceb;stroke:#b3261e"),
        "{drawn}"
    );
    // The host's packets are delivered: not everything is red.
    assert!(!classed(&drawn.out, "good").is_empty());
    let healthy = trace("seed-iptables", &["default/nginx-svc", "-o", "svg"]).await;
    assert_eq!(classed(&healthy.out, "bad"), [""; 0]);
}

#[tokio::test]
async fn each_box_of_a_picture_is_joined_to_another() {
    for name in ["seed-iptables", "full-nftables", "ir16-foreign-drops"] {
        let target = if name.starts_with("full") {
            "203.0.113.11:443"
        } else {
            "default/nginx-svc"
        };
        // Forwarding is off: every path ends behind its branch.
        let off = |text: &str| text.replace("ip_forward = 1", "ip_forward = 0");
        let dir = broken(name, &[("node/sysctl.txt", &off)]);
        let args = [
            "--from",
            dir.path().to_str().unwrap(),
            "trace",
            target,
            "-o",
            "dot",
        ];
        let dot = kpx(&args).await.out;
        let nodes = dot.lines().filter(|line| !line.contains(" -> "));
        let nodes =
            nodes.filter_map(|line| line.trim().split_once(" [label=")?.0.strip_prefix('n'));
        for node in nodes {
            let arrow = |line: &str| {
                line.contains(" -> ")
                    && line
                        .split([' ', ';'])
                        .any(|word| word == format!("n{node}"))
            };
            assert!(dot.lines().any(arrow), "{name}: n{node} in {dot}");
        }
        let svg = kpx(&[&args[..5], &["svg"]].concat()).await.out;
        let parsed = roxmltree::Document::parse(&svg).unwrap();
        let of = |class: &'static str| {
            let all = parsed.descendants();
            all.filter(move |node| {
                let classes = node.attribute("class").unwrap_or_default();
                classes.split(' ').next() == Some(class)
            })
        };
        let left = of("step").map(|node| node.attribute("x").unwrap().parse::<usize>().unwrap());
        let clients = left.clone().filter(|x| Some(*x) == left.clone().min());
        // A wire leads to each box but those of clients.
        assert_eq!(
            of("edge").count() + clients.count(),
            of("step").count(),
            "{name}: {svg}"
        );
    }
}

#[tokio::test]
async fn many_backends_share_a_box_in_the_picture_and_no_text_leaves_its_box() {
    let wide = ["team-00/svc-00000", "--source", "host", "-o", "svg"];
    let drawn = trace("scale-2000x10-iptables", &wide).await.out;
    // The recording has no rules of nftables, so the end of the packets is unknown.
    let ends = classed(&drawn, "unclear");
    assert!(
        ends.iter()
            .any(|text| text.starts_with("10.") && text.contains(" and 6 more")),
        "{drawn}"
    );
    let parsed = roxmltree::Document::parse(&drawn).unwrap();
    let number = |node: roxmltree::Node<'_, '_>, name: &str| -> usize {
        node.attribute(name).unwrap().parse().unwrap()
    };
    let page = number(parsed.root_element(), "width");
    assert!(page < 1280, "{page}");
    let steps = parsed
        .descendants()
        .filter(|node| node.attribute("class") == Some("step"));
    for step in steps {
        let (x, width) = (number(step, "x"), number(step, "width"));
        assert!(x + width <= page, "{drawn}");
        let lines = step
            .parent()
            .unwrap()
            .children()
            .filter(|node| node.has_tag_name("text"));
        for line in lines {
            let text = line.text().unwrap();
            assert!(
                number(line, "x") + text.chars().count() * 8 <= x + width,
                "{text}"
            );
        }
    }
}

/// Splits a line of Graphviz's language into names, numbers, marks, and strings in quotes.
fn graphviz(text: &str) {
    let lines: Vec<_> = text.lines().collect();
    assert_eq!(lines.first(), Some(&"digraph trace {"));
    assert_eq!(lines.last(), Some(&"}"));
    let mut nodes = BTreeSet::new();
    for line in &lines[1..lines.len() - 1] {
        let statement = line.trim().strip_suffix(';').unwrap();
        let mut plain = String::new();
        let mut chars = statement.chars();
        let mut quoted = false;
        while let Some(c) = chars.next() {
            match (c, quoted) {
                ('\\', true) => assert!(matches!(chars.next(), Some('"' | '\\' | 'n')), "{line}"),
                ('"', _) => quoted = !quoted,
                (_, true) => {}
                (c, false) => plain.push(c),
            }
        }
        assert!(!quoted, "{line}");
        let fits = |c: char| c.is_ascii_alphanumeric() || " =->[],".contains(c);
        assert!(plain.chars().all(fits), "{line}");
        let (subject, _) = plain.split_once('[').unwrap_or((&plain, ""));
        for name in subject.split("->").map(str::trim).filter(|n| *n != "node") {
            if subject.contains("->") {
                assert!(nodes.contains(name), "{line}: no node {name}");
            } else {
                nodes.insert(name.to_owned());
            }
        }
    }
    assert!(nodes.len() > 2);
}

/// Checks the lines of a Mermaid flowchart: `nN["…"]`, `nN(["…"])`, `nN --> nM`, `nN -->|"…"| nM`.
fn flowchart(text: &str) {
    let mut lines = text.lines();
    assert_eq!(lines.next(), Some("flowchart TD"));
    let name = |text: &str| {
        let digits = text.strip_prefix('n').unwrap_or("");
        !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit())
    };
    for line in lines {
        let line = line.trim();
        if let Some((from, to)) = line.split_once(" --> ") {
            assert!(name(from) && name(to), "{line}");
        } else if let Some((from, rest)) = line.split_once(" -->|\"") {
            let (label, to) = rest.split_once("\"| ").unwrap();
            assert!(
                name(from) && name(to) && !label.contains(['"', '|']),
                "{line}"
            );
        } else {
            let (node, rest) = line.split_once(['[', '(']).unwrap();
            let label = rest.trim_start_matches('[').strip_prefix('"').unwrap();
            let label = label
                .trim_end_matches([']', ')'])
                .strip_suffix('"')
                .unwrap();
            assert!(name(node) && !label.contains('"'), "{line}");
        }
    }
}

async fn trace_in(dir: &TempDir, args: &[&str]) -> Ran {
    let mut all = vec!["--from", dir.path().to_str().unwrap(), "trace"];
    all.extend_from_slice(args);
    let ran = kpx(&all).await;
    fits(&ran, "a broken copy", args);
    ran
}

const RULES: &str = "node/iptables-save.txt";

/// Returns the JSON of the trace from `source`.
async fn traced_in(dir: &TempDir, target: &str, source: &str) -> Value {
    let ran = trace_in(dir, &[target, "--source", source, "-o", "json"]).await;
    serde_json::from_str(&ran.out).unwrap()
}

/// Every `elements = { … }` of the lease in what `kpx bridge show` prints.
const LEASE: &str = "\t\telements = { tcp timeout 60s,\n\t\t             udp timeout 60s,\n\t\t             sctp timeout 60s }\n";

#[tokio::test]
async fn the_bridge_is_passed_through_as_long_as_its_lease_lasts() {
    let shown = kpx_on("seed-iptables", &["bridge", "show"]).await.out;
    let verbs = ["add table", "delete table", "#"];
    let lines = shown.lines();
    let lines = lines.filter(|line| !verbs.iter().any(|verb| line.starts_with(verb)));
    let stale = "10.97.54.248 . tcp . 80 : 10.244.1.14 . 80";
    let alive = lines
        .flat_map(|line| [line, "\n"])
        .collect::<String>()
        .replace(stale, "10.97.54.248 . tcp . 80 : 10.244.1.99 . 80");
    assert_eq!(alive.matches(LEASE).count(), 2, "{alive}");
    assert!(alive.contains("10.244.1.99"), "{alive}");
    let expired = alive.replace(LEASE, "");
    for (text, pods) in [
        (
            alive,
            ["10.244.1.16:80", "10.244.1.17:80", "10.244.1.99:80"],
        ),
        (
            expired,
            ["10.244.1.14:80", "10.244.1.16:80", "10.244.1.17:80"],
        ),
    ] {
        let dir = broken("seed-iptables", &[]);
        // Without the JSON, the text is read.
        fs::remove_file(dir.path().join("node/nft.json")).ok();
        fs::write(dir.path().join(Item::NftText.file()), &text).unwrap();
        let report = traced_in(&dir, "10.97.54.248:80", "host").await;
        let all = report["sources"].as_array().cloned();
        let trace = all.map_or(report, |mut all| all.remove(0));
        assert_eq!(
            backends(&trace),
            BTreeSet::from(pods.map(str::to_owned)),
            "{trace:#}"
        );
    }
}

#[tokio::test]
async fn a_packet_that_the_node_does_not_forward_is_dropped_with_the_reason() {
    for name in ["seed-iptables", "seed-nftables"] {
        let args = ["trace", "default/nginx-svc", "-o", "json"];
        let off = |text: &str| text.replace("ip_forward = 1", "ip_forward = 0");
        let dir = broken(name, &[("node/sysctl.txt", &off)]);
        let from = ["--from", dir.path().to_str().unwrap()];
        let ran = kpx(&[&from[..], &args].concat()).await;
        let report: Value = serde_json::from_str(&ran.out).unwrap();
        for trace in report["sources"].as_array().unwrap() {
            let is_host = trace["from"].as_str().unwrap().starts_with("the host");
            let wanted = if is_host { "deliver" } else { "drop" };
            assert_eq!(verdict(trace), wanted, "{name}: {trace}");
            let rules = trace["hops"].as_array().unwrap().iter();
            let mut rules =
                rules.filter(|hop| hop["hook"] == "forward" && hop["subsystem"] != "routing");
            assert!(is_host || rules.next().is_none(), "{name}: {trace}");
        }
        let ran = kpx(&[&from[..], &args[..2]].concat()).await;
        assert_eq!(ran.code, 1, "{ran}");
        assert!(ran.out.contains("\nLOST: "), "{ran}");
        assert!(ran.out.contains("net.ipv4.ip_forward is 0"), "{ran}");
    }
}

#[tokio::test]
async fn a_reply_that_ipvs_loses_with_a_local_policy_is_the_fault() {
    let note = "externalTrafficPolicy is Local and node1 has no endpoint";
    for (name, source, fate, fault) in [
        (
            "full-ipvs",
            "external",
            "lost",
            "sees the client's own address",
        ),
        (
            "full-ipvs",
            "host",
            "lost",
            "with source 203.0.113.13, which every node has",
        ),
        ("full-iptables", "host", "works", ""),
        (
            "full-iptables",
            "external",
            "lost",
            "its traffic policy is Local",
        ),
    ] {
        let args = ["--source", source];
        let (code, _, all) = traces(name, "203.0.113.13:80", &args).await;
        assert_eq!(
            (&all[0]["fate"], code == 0),
            (&fate.into(), fate == "works"),
            "{:#}",
            all[0]
        );
        let said = all[0]["fault"].as_str().unwrap_or_default();
        assert!(said.contains(fault), "{:#}", all[0]);
        let noted = all[0]["notes"].to_string().contains(note);
        assert_eq!(noted, fate == "lost", "{:#}", all[0]);
    }
}

#[tokio::test]
async fn a_mistyped_service_is_answered_with_similar_names() {
    for typed in ["default/ngnix-svc", "nginx-svcs:80", "defualt/nginx-svc"] {
        let ran = trace("seed-iptables", &[typed]).await;
        assert!(ran.err.contains("did you mean default/nginx-svc"), "{ran}");
    }
    let ran = trace("seed-iptables", &["default/zzzzzzzz"]).await;
    assert!(!ran.err.contains("did you mean"), "{ran}");
}

#[tokio::test]
async fn the_first_word_is_the_fate_in_json() {
    first_words_are_fates(chosen()).await;
}

/// Fails if the first word of a trace is not the fate of its JSON, on which the exit status depends.
pub(crate) async fn first_words_are_fates(names: Vec<String>) {
    let (mut compared, mut mixed) = (0, 0);
    for name in names {
        let dir = root().join("testdata/nodes").join(&name);
        let evidence = evidence::load(&dir, &[Item::Services]).unwrap();
        let node = NodeSnapshot::new(&evidence);
        for service in node.services().into_iter().flatten().take(12) {
            let target = format!("{}/{}", service.metadata.namespace, service.metadata.name);
            let [page, json] = [&["trace", &target][..], &["trace", &target, "-o", "json"]];
            let (page, json) = (kpx_on(&name, page).await, kpx_on(&name, json).await);
            let Ok(report) = serde_json::from_str::<Value>(&json.out) else {
                continue;
            };
            let fate = report["fate"].as_str().unwrap();
            let word = page.out.split(": ").next().unwrap();
            let word = word.lines().last().unwrap().to_lowercase();
            assert_eq!(word, fate, "{name} {target}: {page}");
            let status = match fate {
                "works" => 0,
                "unknown" => 3,
                _ => 1,
            };
            assert_eq!([page.code, json.code], [status; 2], "{name} {target}");
            compared += 1;
            let sources = report["sources"].as_array().into_iter().flatten();
            mixed += usize::from(sources.into_iter().any(|source| source["fate"] != fate));
        }
    }
    assert!(compared > 20 && mixed > 2, "{compared}, {mixed}");
}
