//! The userspace mode of kube-proxy up to 1.25, on nodes that are made from the forms of its rules.

use kpx_judge::diff::{self, ChangeKind};
use kpx_judge::trace::{Carried, Effect, Entry, Flow, Outcome, Subsystem, Verdict, World};
use kpx_node::backend::Mode;
use kpx_node::evidence::{self, Evidence, Gap, ITEMS, Item};
use kpx_node::net::{Family, Proto};
use kpx_node::node::NodeSnapshot;
use kpx_node::owner::{Owners, PortName, Role, Source};
use serde_json::Value;

use crate::support::{broken, kpx, kpx_on, root};

const NODE: &str = "userspace-1.25";
const LEFT: &str = "mx11-userspace-leftovers";
const RULES: &str = "node/iptables-save.txt";

fn load(name: &str) -> Evidence {
    evidence::load(&root().join("testdata/nodes").join(name), ITEMS).unwrap()
}

fn flow(to: &str, entry: Entry, proto: Proto) -> Flow {
    let to: std::net::SocketAddr = to.parse().unwrap();
    let source = match entry {
        Entry::Host => None,
        Entry::Pod => Some("10.244.1.200".parse().unwrap()),
        Entry::Outside => Some("198.18.0.1".parse().unwrap()),
    };
    Flow {
        entry,
        source,
        destination: to.ip(),
        port: to.port(),
        mark: 0,
        carried: Carried::default(),
        proto,
        established: false,
    }
}

fn walk(evidence: &Evidence, flow: &Flow) -> Vec<Outcome> {
    let node = NodeSnapshot::new(evidence);
    World::whole(&node, Family::V4).walk(flow).unwrap()
}

fn ends(outcomes: &[Outcome]) -> Vec<(Verdict, String)> {
    let ends = outcomes.iter().map(|outcome| {
        let (addr, port) = outcome.destination;
        (outcome.verdict, format!("{addr}:{port}"))
    });
    ends.collect()
}

#[tokio::test]
async fn the_mode_is_seen_in_three_views() {
    let ran = kpx_on(NODE, &["doctor", "-o", "json"]).await;
    let report: Value = serde_json::from_str(&ran.out).unwrap();
    let mode = &report["mode"];
    for view in ["configured", "reported", "observed"] {
        assert_eq!(mode[view], "userspace", "{view}: {mode}");
    }
    let node = load(NODE);
    let modes = NodeSnapshot::new(&node).modes();
    assert_eq!(modes.observed(), Some(Mode::Userspace));
    assert!(modes.leftovers.is_empty(), "{:?}", modes.leftovers);
    let ran = kpx_on(NODE, &["doctor"]).await;
    insta::assert_snapshot!("doctor", ran);
    let ran = kpx_on(NODE, &["show", "config"]).await;
    assert!(ran.out.contains("IPv4: userspace"), "{ran}");
    assert!(ran.out.contains("udpIdleTimeout"), "{ran}");
    assert!(!ran.out.contains("nodePortAddresses"), "{ran}");
}

#[tokio::test]
async fn portals_are_shown_with_the_port_of_the_process() {
    insta::assert_snapshot!("portals", kpx_on(NODE, &["show", "portals"]).await);
    let wide = ["show", "portals", "default/edge", "-o", "wide"];
    insta::assert_snapshot!("portals-wide", kpx_on(NODE, &wide).await);
    let ran = kpx_on(
        "ir17-portals",
        &["show", "portals", "default/service-test1"],
    )
    .await;
    assert!(
        ran.out.contains("port 44509, where kube-proxy does not"),
        "{ran}"
    );
    let ran = kpx_on("seed-iptables", &["show", "portals"]).await;
    assert!(ran.out.contains("no rows"), "{ran}");
    // Connections end at the process: its port is no stale endpoint.
    let ran = kpx_on(NODE, &["show", "conntrack", "default/nginx-svc"]).await;
    assert!(ran.out.contains("10.0.2.15:42316  kube-proxy"), "{ran}");
    assert!(!ran.out.contains("STALE"), "{ran}");
}

#[tokio::test]
async fn a_trace_goes_on_from_the_process_to_ready_endpoints() {
    insta::assert_snapshot!("trace", kpx_on(NODE, &["trace", "default/nginx-svc"]).await);
    let external = ["trace", "default/edge", "--source", "outside"];
    insta::assert_snapshot!("trace-sticky", kpx_on(NODE, &external).await);
    let evidence = load(NODE);
    let service = flow("10.97.54.248:80", Entry::Pod, Proto::Tcp);
    let outcomes = walk(&evidence, &service);
    assert_eq!(outcomes.len(), 3, "{:?}", ends(&outcomes));
    for outcome in &outcomes {
        assert!((outcome.probability - 1.0 / 3.0).abs() < 1e-9);
        let redirect = outcome.hops.iter().any(|hop| {
            hop.chain == "KUBE-PORTALS-CONTAINER"
                && matches!(hop.effect, Effect::Dnat { port: 42316, .. })
        });
        assert!(redirect && outcome.masquerade && !outcome.sticky);
    }
    let host = walk(&evidence, &flow("10.96.20.7:80", Entry::Host, Proto::Tcp));
    assert!(
        host.iter().all(|outcome| outcome.sticky),
        "{:?}",
        ends(&host)
    );
    let chains: Vec<_> = host[0].hops.iter().map(|hop| hop.chain.as_str()).collect();
    assert!(chains.contains(&"KUBE-PORTALS-HOST"), "{chains:?}");
    let dns = walk(&evidence, &flow("10.96.0.10:53", Entry::Host, Proto::Udp));
    let both = ["10.244.1.2:53", "10.244.2.3:53"];
    let both = both.map(|at| (Verdict::Deliver, at.to_owned()));
    assert_eq!(ends(&dns), both);
}

#[test]
fn a_trace_ends_at_the_process_without_an_endpoint() {
    let mut evidence = load(NODE);
    let idle = walk(&evidence, &flow("10.96.20.8:80", Entry::Host, Proto::Tcp));
    assert_eq!(
        ends(&idle),
        [(Verdict::Reject, "10.0.2.15:40854".to_owned())]
    );
    assert!(
        idle[0]
            .reason
            .ends_with("default/idle has no ready endpoint")
    );
    // Without the cluster's objects, the endpoints are unknown.
    let gap = || Err(Gap::NotCollected(Item::Services));
    evidence.insert(Item::Services, gap());
    let service = flow("10.97.54.248:80", Entry::Host, Proto::Tcp);
    let outcomes = walk(&evidence, &service);
    assert_eq!(
        ends(&outcomes),
        [(Verdict::Unknown, "10.0.2.15:42316".to_owned())]
    );
    let mut evidence = load(NODE);
    let gap = Gap::NotCollected(Item::EndpointSlices);
    evidence.insert(Item::EndpointSlices, Err(gap));
    let outcomes = walk(&evidence, &service);
    assert_eq!(outcomes[0].verdict, Verdict::Unknown);
    // A port on which nothing listens refuses.
    let mut evidence = load("ir17-portals");
    let dead = flow("10.106.71.137:80", Entry::Host, Proto::Tcp);
    let outcomes = walk(&evidence, &dead);
    assert_eq!(outcomes[0].verdict, Verdict::Reject);
    assert_eq!(
        outcomes[0].reason,
        "kube-proxy does not listen on port 44509 of its portal"
    );
    evidence.insert(Item::Sockets, Err(Gap::NotCollected(Item::Sockets)));
    assert_eq!(walk(&evidence, &dead)[0].verdict, Verdict::Deliver);
}

/// The evidence of the node with `change` applied to the endpoints of kube-dns.
fn with_dns(change: impl Fn(&mut Value)) -> Evidence {
    let mut evidence = load(NODE);
    let text = evidence.text(Item::EndpointSlices).unwrap();
    let mut slices: Value = serde_json::from_str(text).unwrap();
    for slice in slices["items"].as_array_mut().unwrap() {
        if slice["metadata"]["name"] == "kube-dns-abcde" {
            change(&mut slice["endpoints"]);
        }
    }
    evidence.insert(Item::EndpointSlices, Ok(slices.to_string()));
    evidence
}

#[test]
fn the_process_takes_ready_endpoints_alone() {
    let unready = |endpoint: &mut Value| endpoint["conditions"]["ready"] = false.into();
    let query = flow("10.96.0.10:53", Entry::Host, Proto::Udp);
    let evidence = with_dns(|endpoints| unready(&mut endpoints[0]));
    let first = (Verdict::Deliver, "10.244.2.3:53".to_owned());
    assert_eq!(ends(&walk(&evidence, &query)), [first]);
    // There is no answer to a datagram.
    let evidence = with_dns(|endpoints| {
        endpoints
            .as_array_mut()
            .unwrap()
            .iter_mut()
            .for_each(unready);
    });
    let outcomes = walk(&evidence, &query);
    assert_eq!(outcomes[0].verdict, Verdict::Drop);
    assert_eq!(
        outcomes[0].reason,
        "kube-proxy's process discards the datagram: kube-system/kube-dns:dns has no ready endpoint"
    );
    let last = outcomes[0].hops.last().unwrap();
    assert_eq!(
        (last.subsystem, &last.effect),
        (Subsystem::Process, &Effect::Drop)
    );
}

/// Rules of others in the chains of portals lead nowhere.
#[test]
fn a_rule_that_logs_among_the_portals_is_no_portal() {
    let mut evidence = load(NODE);
    let rules = evidence.text(Item::Iptables4).unwrap();
    let first = "[0:0] -A KUBE-PORTALS-HOST -d 10.96.20.7/32";
    let log = "-A KUBE-PORTALS-HOST -m comment --comment \"for the audit\" -j LOG";
    let rules = rules.replacen(first, &format!("{log}\n{first}"), 1);
    evidence.insert(Item::Iptables4, Ok(rules));
    let outcomes = walk(&evidence, &flow("10.97.54.248:80", Entry::Host, Proto::Tcp));
    assert_eq!(outcomes.len(), 3, "{:?}", ends(&outcomes));
}

#[test]
fn a_portal_to_another_node_is_not_followed() {
    let mut evidence = load(NODE);
    let rules = evidence.text(Item::Iptables4).unwrap();
    let rules = rules.replace("10.0.2.15:42316", "10.0.2.16:42316");
    evidence.insert(Item::Iptables4, Ok(rules));
    let outcomes = walk(&evidence, &flow("10.97.54.248:80", Entry::Host, Proto::Tcp));
    assert_eq!(
        ends(&outcomes),
        [(Verdict::Deliver, "10.0.2.16:42316".to_owned())]
    );
}

#[test]
fn a_rule_that_may_stop_the_process_has_half_the_probability_of_each_endpoint() {
    let mut evidence = load(NODE);
    let rules = evidence.text(Item::Iptables4).unwrap();
    let chain = ":OUTPUT ACCEPT [0:0]\n";
    let maybe = format!("{chain}-A OUTPUT -m made-up --option -j DROP\n");
    let rules = rules.replacen(chain, &maybe, 1);
    evidence.insert(Item::Iptables4, Ok(rules));
    let outcomes = walk(&evidence, &flow("10.97.54.248:80", Entry::Pod, Proto::Tcp));
    assert_eq!(outcomes.len(), 6, "{:?}", ends(&outcomes));
    for outcome in &outcomes {
        assert!((outcome.probability - 1.0 / 6.0).abs() < 1e-9);
    }
}

#[test]
fn a_leftover_portal_leads_to_a_closed_port() {
    let mut evidence = load(LEFT);
    let kept = evidence.text(Item::Iptables4).unwrap().lines();
    let kept = kept.filter(|line| !line.contains("-A KUBE-SERVICES -d 10.100.0.11/32"));
    let rules: String = kept.flat_map(|line| [line, "\n"]).collect();
    evidence.insert(Item::Iptables4, Ok(rules));
    let outcomes = walk(
        &evidence,
        &flow("10.100.0.11:6379", Entry::Host, Proto::Tcp),
    );
    assert_eq!(
        ends(&outcomes),
        [(Verdict::Reject, "10.0.2.15:43778".to_owned())]
    );
    let why = "the portal is a leftover: kube-proxy runs in mode iptables";
    assert!(
        outcomes[0].reason.starts_with(why),
        "{}",
        outcomes[0].reason
    );
}

#[test]
fn portals_name_services_without_the_cluster() {
    let mut evidence = load(NODE);
    evidence.insert(Item::Services, Err(Gap::NotCollected(Item::Services)));
    let owners = Owners::new(&NodeSnapshot::new(&evidence));
    assert_eq!(owners.source, Source::Rules);
    let name = PortName::parse("default/edge:http").unwrap();
    let edge = owners.named(&name, Proto::Tcp).unwrap();
    assert_eq!((edge.port, edge.node_port), (Some(80), Some(30090)));
    let external = (Role::ExternalIp, "203.0.113.10".parse().unwrap());
    let cluster = (Role::ClusterIp, "10.96.20.7".parse().unwrap());
    assert!(edge.addresses.contains(&external) && edge.addresses.contains(&cluster));
}

#[tokio::test]
async fn portals_are_compared_with_the_services_and_the_sockets() {
    let evidence = load(NODE);
    let node = NodeSnapshot::new(&evidence);
    let same = diff::compare(&node, Mode::Userspace, &Family::BOTH).unwrap();
    assert!(
        same.changes.is_empty() && same.unknown.is_empty(),
        "{same:?}"
    );
    assert!(same.notes.is_empty(), "{:?}", same.notes);
    insta::assert_snapshot!("diff", kpx_on("ir17-portals", &["diff"]).await);
    let only = ["doctor", "--only", "IR17"];
    insta::assert_snapshot!("ir17", kpx_on("ir17-portals", &only).await);
    // Without the sockets, the ports are unknown, and the portals are not.
    let mut evidence = load("ir17-portals");
    evidence.insert(Item::Sockets, Err(Gap::NotCollected(Item::Sockets)));
    let node = NodeSnapshot::new(&evidence);
    let found = diff::compare(&node, Mode::Userspace, &Family::BOTH).unwrap();
    assert_eq!(found.unknown.len(), 1, "{:?}", found.unknown);
    let kinds: Vec<_> = found.changes.iter().map(diff::Change::kind).collect();
    assert_eq!(kinds, [ChangeKind::Missing, ChangeKind::Extra]);
    // A jump that is missing is a rule.
    let dir = broken(
        NODE,
        &[(RULES, &|text: &str| {
            let kept = text
                .lines()
                .filter(|line| !line.contains("-A OUTPUT -m comment"));
            kept.flat_map(|line| [line, "\n"]).collect()
        })],
    );
    let ran = kpx(&["--from", dir.path().to_str().unwrap(), "diff"]).await;
    assert!(
        ran.out.contains("1 difference from mode userspace"),
        "{ran}"
    );
    assert!(ran.out.contains("-j KUBE-PORTALS-HOST"), "{ran}");
    for args in [&["render"][..], &["reconcile"]] {
        let ran = kpx_on("ir17-portals", args).await;
        assert!(ran.err.contains("kpx cannot compute its rules"), "{ran}");
    }
}

#[tokio::test]
async fn leftovers_are_found_and_removed_and_nothing_else() {
    let ran = kpx_on(LEFT, &["doctor", "--only", "MX11"]).await;
    insta::assert_snapshot!("mx11", ran);
    let input = removal(
        &kpx_on(LEFT, &["reconcile", "--cleanup", "userspace", "-o", "json"])
            .await
            .out,
    );
    let gone = |verb: &str| {
        let lines = input.iter().filter(|line| line.starts_with(verb));
        lines.cloned().collect::<Vec<_>>()
    };
    let mut chains = gone("-X ");
    chains.sort();
    assert_eq!(
        chains,
        [
            "-X KUBE-NODEPORT-CONTAINER",
            "-X KUBE-NODEPORT-HOST",
            "-X KUBE-NODEPORT-NON-LOCAL",
            "-X KUBE-PORTALS-CONTAINER",
            "-X KUBE-PORTALS-HOST",
        ]
    );
    let jumps = gone("-D ");
    assert_eq!(jumps.len(), 5, "{jumps:?}");
    assert!(
        jumps
            .iter()
            .all(|jump| jump.contains("-j KUBE-PORTALS-") || jump.contains("-j KUBE-NODEPORT-"))
    );
    // Chains of others with similar names stay, and so do those that others jump to.
    let dir = broken(
        LEFT,
        &[(RULES, &|text: &str| {
            text.replace(
                ":KUBE-PORTALS-HOST - [0:0]\n",
                ":KUBE-PORTALS-HOST - [0:0]\n:KUBE-PORTALS-MINE - [0:0]\n:MINE - [0:0]\n",
            )
            .replace(
                "[0:0] -A KUBE-PORTALS-HOST -d 10.96.0.1/32",
                "[0:0] -A MINE -j KUBE-PORTALS-HOST\n[0:0] -A KUBE-PORTALS-HOST -d 10.96.0.1/32",
            )
        })],
    );
    let from = dir.path().to_str().unwrap();
    let ran = kpx(&[
        "--from",
        from,
        "reconcile",
        "--cleanup",
        "userspace",
        "-o",
        "json",
    ])
    .await;
    let input = removal(&ran.out);
    assert!(!input.iter().any(|line| line.contains("MINE")), "{input:?}");
    assert!(
        !input.iter().any(|line| line == "-X KUBE-PORTALS-HOST"),
        "{input:?}"
    );
    assert!(
        ran.out.contains("a rule in chain MINE jumps to it"),
        "{ran}"
    );
    // The mode in use is not removed.
    let ran = kpx_on(NODE, &["reconcile", "--cleanup", "userspace"]).await;
    assert!(ran.err.contains("mode userspace serves this node"), "{ran}");
    // The kubelet of that time writes chains that the iptables mode writes, too.
    let ran = kpx_on(NODE, &["reconcile", "--cleanup", "iptables", "-o", "json"]).await;
    assert_eq!(removal(&ran.out), Vec::<String>::new(), "{ran}");
}

/// Returns the lines of the input of every step of a plan.
fn removal(json: &str) -> Vec<String> {
    let report: Value = serde_json::from_str(json).unwrap();
    let steps = report["steps"].as_array().unwrap().iter();
    let inputs = steps.filter_map(|step| step["action"].as_str());
    inputs.flat_map(str::lines).map(str::to_owned).collect()
}

#[tokio::test]
#[ignore = "takes long: make test-loops"]
async fn a_migration_away_names_the_loss_and_removes_the_portals() {
    let ran = kpx_on(NODE, &["migrate", "--to", "iptables", "--dry-run"]).await;
    insta::assert_snapshot!("migrate", ran);
    for to in ["ipvs", "nftables"] {
        let ran = kpx_on(NODE, &["migrate", "--to", to, "--dry-run"]).await;
        let mode = format!("+mode: \"{to}\"");
        for words in ["-mode: \"userspace\"", &mode, "removes 5 chains, 5 rules"] {
            assert!(ran.out.contains(words), "{to}: {words}: {ran}");
        }
        assert!(ran.out.contains("2 established connections"), "{to}: {ran}");
    }
    let ran = kpx_on(NODE, &["migrate", "--to", "userspace", "--dry-run"]).await;
    assert_eq!(ran.code, 2, "{ran}");
}

#[tokio::test]
async fn a_service_that_fails_has_its_cause_and_a_fix() {
    let ran = kpx_on(NODE, &["why", "default/nginx-svc"]).await;
    assert!(ran.out.contains("\nWORKS"), "{ran}");
    let ran = kpx_on(NODE, &["why", "default/idle"]).await;
    assert!(
        ran.out
            .contains("\nREFUSED: default/idle has no EndpointSlice: of the pods on node1, no pod"),
        "{ran}"
    );
    assert!(!ran.out.contains("also:"), "{ran}");
    let ran = kpx_on("ir17-portals", &["why", "default/service-test1"]).await;
    insta::assert_snapshot!("why", ran);
}

#[tokio::test]
async fn a_refusal_of_the_process_is_for_its_endpoints_and_any_other_for_the_portal() {
    let unready = |text: &str| text.replace("\"ready\": true", "\"ready\": false");
    for (name, service, fate, cause) in [
        (
            NODE,
            "kube-system/kube-dns:dns",
            "LOST",
            "kube-system/kube-dns:dns has no ready endpoint",
        ),
        (
            "ir17-portals",
            "default/service-test1",
            "REFUSED",
            "default/service-test1:http does not work on node1",
        ),
    ] {
        let dir = broken(name, &[("cluster/endpointslices.json", &unready)]);
        let ran = kpx(&["--from", dir.path().to_str().unwrap(), "why", service]).await;
        assert!(ran.out.contains(&format!("\n{fate}: {cause}")), "{ran}");
        let also = ran.out.contains("also:");
        assert_eq!(also, name != NODE, "{ran}");
    }
}

#[tokio::test]
async fn packets_of_the_userspace_mode_reach_the_endpoints_of_other_modes() {
    let ran = kpx_on(NODE, &["diff", "--packets", "--mode", "iptables"]).await;
    for words in [
        "lost ",
        "misled   ports of Services at a cluster IP",
        "misled   NodePorts",
    ] {
        assert!(!ran.out.contains(words), "{words}: {ran}");
    }
    insta::assert_snapshot!("packets", ran);
}
