//! The ways of a packet through one node: probabilities, hooks, virtual servers, other modes, and the notes on them.

use std::fmt::Write as _;
use std::fs;
use std::net::{IpAddr, SocketAddr};

use kpx_judge::trace::{Assumed, Effect, Entry, Flow, Hop, Outcome, choose};
use kpx_node::backend::Mode;
use kpx_node::backend::ipvs::parse;
use kpx_node::evidence::{Evidence, Gap, Item};
use kpx_node::node::NodeSnapshot;
use serde_json::{Value, json};
use tempfile::TempDir;

use super::rules::nftables::nftables;
use super::rules::{flow, iptables};
use super::{
    RULES, backends, broken, masqueraded, outcomes, reason, recording, trace, traced_in, traces,
    verdict, walk,
};
use crate::support::{Change, without};

const SLICES: &str = "cluster/endpointslices.json";
const ROUTES: &str = "node/ip-route.json";
const SERVERS: &str = "node/ipvsadm-save.txt";

fn from_host() -> Flow {
    Flow {
        entry: Entry::Host,
        source: None,
        ..flow(false)
    }
}

/// From outside to `destination`.
fn to(destination: &str) -> Flow {
    let at: SocketAddr = destination.parse().unwrap();
    Flow {
        destination: at.ip(),
        port: at.port(),
        ..flow(false)
    }
}

fn walked(evidence: &Evidence, flow: &Flow) -> Vec<Outcome> {
    walk(&NodeSnapshot::new(evidence), flow)
}

/// The verdict, the destination and the probability of each outcome, the likeliest first.
fn ends(outcomes: &[Outcome]) -> Vec<String> {
    let end = |of: &Outcome| {
        let (verdict, at) = (of.verdict, SocketAddr::from(of.destination));
        format!("{verdict:?} {at} {:.3}", of.probability)
    };
    outcomes.iter().map(end).collect()
}

fn hops(outcomes: &[Outcome]) -> impl Iterator<Item = &Hop> {
    outcomes
        .iter()
        .flat_map(|outcome| &outcome.hops)
        .map(AsRef::as_ref)
}

/// The recording `name` with `more` at the end of the file of `item`.
fn with(name: &str, item: Item, more: &str) -> Evidence {
    let mut evidence = recording(name);
    let text = format!("{}\n{more}", evidence.text(item).unwrap());
    evidence.insert(item, Ok(text));
    evidence
}

const PODS: [&str; 3] = [
    "Deliver 10.244.1.14:80 0.333",
    "Deliver 10.244.1.16:80 0.333",
    "Deliver 10.244.1.17:80 0.333",
];

#[test]
fn a_rule_that_may_match_has_half_the_probability() {
    const MAYBE: &str = "-m made-up --option";
    let half = [
        "Drop 10.97.54.248:80 0.500",
        "Deliver 10.244.1.14:80 0.167",
        "Deliver 10.244.1.16:80 0.167",
        "Deliver 10.244.1.17:80 0.167",
    ];
    let marks = "-j MARK --set-xmark 0x1/0x1";
    for rules in [
        format!("{MAYBE} -j DROP"),
        format!("{MAYBE} {marks}\n-m mark --mark 0x1/0x1 -j DROP"),
    ] {
        let outcomes = walked(&iptables(&rules), &flow(false));
        assert_eq!(ends(&outcomes), half, "{rules}");
        assert!(
            outcomes.iter().all(|outcome| outcome.when.len() == 1),
            "{rules}"
        );
        let when = hops(&outcomes[..1]).find_map(|hop| hop.when.as_deref());
        assert_eq!(when, Some("whether `-m made-up --option` holds"), "{rules}");
    }
    // Ways that end alike are one, without the rule that makes no difference.
    for rules in [
        format!("{MAYBE} -j ACCEPT"),
        format!("{MAYBE} -j LOG"),
        format!("{MAYBE} {marks}\n-m made-up --other -j LOG"),
    ] {
        let outcomes = walked(&iptables(&rules), &flow(false));
        assert_eq!(ends(&outcomes), PODS, "{rules}");
        assert!(
            outcomes.iter().all(|outcome| outcome.when.is_empty()),
            "{rules}"
        );
        let logs = |hop: &Hop| matches!(&hop.effect, Effect::Other { what } if what == "LOG");
        assert!(!hops(&outcomes).any(logs), "{rules}");
    }
}

#[test]
fn a_mark_of_the_connection_is_shown_once_it_is_restored() {
    let rules = "-j CONNMARK --set-xmark 0x8/0xffffffff\n\
                 -j CONNMARK --restore-mark --nfmask 0xffffffff --ctmask 0xffffffff";
    let outcomes = walked(&iptables(rules), &flow(false));
    let effects: Vec<_> = hops(&outcomes[..1]).map(|hop| &hop.effect).collect();
    let keeps = Effect::Other {
        what: "CONNMARK".to_owned(),
    };
    assert_eq!(effects[..2], [&keeps, &Effect::Mark { from: 0, to: 8 }]);
}

#[test]
fn a_path_may_be_of_many_rules() {
    let outcomes = walked(&iptables(&"-j LOG\n".repeat(100_000)), &flow(false));
    assert!(outcomes[0].hops.len() > 100_000);
}

#[test]
#[ignore = "takes long: make test-loops"]
fn a_walk_of_too_many_ways_is_given_up() {
    let rule = "-A PREROUTING -p tcp -m statistic --mode random --probability 0.00001000000 \
                -j DNAT --to-destination 10.9.9.9:80\n";
    let mut evidence = recording("seed-iptables");
    let rules = evidence.text(Item::Iptables4).unwrap();
    let jump = "[0:0] -A PREROUTING";
    let rules = rules.replacen(jump, &format!("{}{jump}", rule.repeat(100_100)), 1);
    evidence.insert(Item::Iptables4, Ok(rules));
    for outcome in walked(&evidence, &flow(false)) {
        assert_eq!(outcome.reason, "too many possible paths to follow");
    }
}

/// `nf_nat_inet_fn`: once a nat chain has translated the destination, the next ones are not asked.
#[test]
fn the_first_nat_chain_that_translates_decides() {
    let table = "table ip other {\n\tchain first {\n\t\ttype nat hook prerouting priority 0; policy accept;\n\
                 \t\ttcp dport 80 dnat to 10.9.9.9\n\t}\n}\n";
    let mut evidence = with("seed-iptables", Item::NftText, table);
    evidence.insert(Item::Nft, Err(Gap::NotCollected(Item::Nft)));
    assert_eq!(ends(&walked(&evidence, &flow(false))), PODS);
    let elsewhere = walked(&evidence, &to("10.5.5.5:80"));
    assert_eq!(ends(&elsewhere), ["Deliver 10.9.9.9:80 1.000"]);
}

#[test]
fn an_untracked_packet_is_not_translated() {
    let raw = "*raw\n:PREROUTING ACCEPT [0:0]\n-A PREROUTING -j CT --notrack\nCOMMIT\n";
    let evidence = with("seed-iptables", Item::Iptables4, raw);
    let outcomes = walked(&evidence, &flow(false));
    assert_eq!(ends(&outcomes), ["Unmatched 10.97.54.248:80 1.000"]);
}

/// IPVS tracks connections only if `net.ipv4.vs.conntrack` is 1, and nat masquerades only tracked ones.
#[test]
fn only_tracked_connections_of_ipvs_are_masqueraded() {
    for (conntrack, source) in [(1, "10.0.2.15"), (0, "198.18.0.1")] {
        let setting = format!("net.ipv4.vs.conntrack = {conntrack}\n");
        let evidence = with("seed-ipvs", Item::Sysctl, &setting);
        let outcomes = walked(&evidence, &flow(false));
        assert_eq!(ends(&outcomes), PODS, "{conntrack}");
        for outcome in &outcomes {
            assert_eq!(outcome.masquerade, conntrack == 1, "{conntrack}");
            assert_eq!(outcome.source.to_string(), source, "{conntrack}");
        }
    }
}

/// `ip_vs_nat_xmit`: a packet to a real server on another host is sent out through OUTPUT, one to this host stays in INPUT.
#[test]
fn ipvs_sends_only_what_leaves_the_host_through_output() {
    let of = |verdict: &str, host: &str| format!("{verdict} {host}:9100 0.500");
    for (dropped, verdicts) in [
        ("10.0.2.15", ["Deliver"; 2]),
        ("10.0.2.16", ["Deliver", "Drop"]),
    ] {
        let rules =
            format!("*mangle\n:OUTPUT ACCEPT [0:0]\n-A OUTPUT -d {dropped}/32 -j DROP\nCOMMIT\n");
        let evidence = with("full-ipvs", Item::Iptables4, &rules);
        let outcomes = walked(&evidence, &to("10.100.1.10:9100"));
        let both = [of(verdicts[0], "10.0.2.15"), of(verdicts[1], "10.0.2.16")];
        assert_eq!(ends(&outcomes), both, "{dropped}");
    }
}

/// The weight of a real server, and its active and inactive connections.
type Real = (u32, u32, u32);

/// The evidence of a virtual server for 10.97.54.248:80.
fn balancer(scheduler: &str, flags: u32, reals: &[Real]) -> Evidence {
    let real = |(n, &(weight, active, inactive)): (u8, &_)| {
        json!({
            "address": format!("10.244.1.{n}"), "port": 80, "forwarding": "masq",
            "weight": weight, "active": active, "inactive": inactive,
        })
    };
    let reals: Vec<Value> = (1..).zip(reals).map(real).collect();
    let order: Vec<usize> = (0..reals.len()).collect();
    let servers = json!({"services": [{
        "family": "IPv4", "protocol": "tcp", "address": "10.97.54.248", "port": 80,
        "scheduler": scheduler, "flags": flags, "prefix": 32, "destinations": reals, "order": order,
    }]});
    let mut evidence = recording("seed-ipvs");
    evidence.insert(Item::Ipvs, Ok(servers.to_string()));
    evidence
}

/// `ip_vs_dest_conn_overhead`: an active connection counts as much as 256 inactive ones.
#[test]
fn each_scheduler_chooses_by_its_own_measure() {
    let cases: [(&str, &[Real], &str); 16] = [
        ("rr", &[(1, 0, 0), (3, 9, 0)], "0.500 0.500"),
        ("wrr", &[(1, 0, 0), (3, 9, 0)], "0.250 0.750"),
        ("lc", &[(1, 1, 0), (1, 0, 200)], "0.000 1.000"),
        ("lc", &[(1, 1, 0), (1, 0, 300)], "1.000 0.000"),
        ("lc", &[(1, 1, 5), (1, 1, 0)], "0.000 1.000"),
        ("lc", &[(1, 2, 0), (8, 2, 0)], "0.500 0.500"),
        ("wlc", &[(1, 2, 0), (4, 4, 0)], "0.000 1.000"),
        ("wlc", &[(1, 1, 0), (4, 8, 0)], "1.000 0.000"),
        ("wlc", &[(1, 0, 0), (4, 0, 1)], "1.000 0.000"),
        ("sed", &[(1, 0, 0), (4, 2, 0)], "0.000 1.000"),
        ("sed", &[(1, 0, 0), (2, 2, 0)], "1.000 0.000"),
        ("nq", &[(1, 0, 7), (8, 1, 0)], "1.000 0.000"),
        ("nq", &[(1, 1, 0), (2, 2, 0)], "0.000 1.000"),
        ("sh", &[(1, 0, 0), (0, 0, 0)], "1.000 0.000"),
        ("mh", &[(1, 0, 0), (0, 0, 0)], "1.000 0.000"),
        ("dh", &[(1, 0, 0)], "1.000"),
    ];
    for (scheduler, reals, expected) in cases {
        // As `sh-port`: without it, `sh` chooses one server for the client.
        let outcomes = walked(&balancer(scheduler, 0x10, reals), &flow(false));
        let share = |n| {
            let at = format!("10.244.1.{n}").parse::<IpAddr>().unwrap();
            let mut of = outcomes
                .iter()
                .filter(|outcome| outcome.destination.0 == at);
            format!(
                "{:.3}",
                of.next().map_or(0.0, |outcome| outcome.probability)
            )
        };
        let shares: Vec<_> = (1..=reals.len()).map(share).collect();
        assert_eq!(shares.join(" "), expected, "{scheduler} {reals:?}");
    }
}

#[test]
fn a_scheduler_that_hashes_chooses_one_server_unless_it_hashes_ports() {
    for (flags, servers) in [(0, 1), (0x10, 3)] {
        let evidence = balancer("sh", flags, &[(1, 0, 0); 3]);
        assert_eq!(walked(&evidence, &flow(false)).len(), servers, "{flags}");
    }
}

/// The ports of the real servers that clients are sent to, by their weights; `None` if the choice is unknown.
fn chosen(scheduler: &str, weights: &[u32]) -> Option<Vec<Option<u16>>> {
    let mut text = format!("-A -u 10.96.0.50:5060 -s {scheduler}\n");
    for (n, weight) in weights.iter().enumerate() {
        writeln!(
            text,
            "-a -u 10.96.0.50:5060 -r 10.244.1.{n}:{n} -m -w {weight}"
        )
        .unwrap();
    }
    let mut server = parse::saved(&text).unwrap().servers.remove(0);
    server.order = (0..weights.len()).collect();
    let clients = (0..512_u16).map(|n| {
        let [high, low] = n.to_be_bytes();
        SocketAddr::from(([10, 9, high, low], 1))
    });
    let chosen = clients.map(|client| choose(&server, client, [10, 96, 0, 50].into()));
    chosen
        .map(|real| Some(real?.map(|real| real.port)))
        .collect()
}

/// `ip_vs_sh_hashkey`: the words of an address of IPv6 are combined.
#[test]
fn a_client_of_ipv6_is_hashed_by_the_exclusive_or_of_its_words() {
    let server = "-A -u 10.96.0.50:53 -s sh\n-a -u 10.96.0.50:53 -r 10.244.1.5:1 -m -w 1\n\
                  -a -u 10.96.0.50:53 -r 10.244.1.6:2 -m -w 1\n";
    let mut server = parse::saved(server).unwrap().servers.remove(0);
    server.order = vec![0, 1];
    let chosen = |client: IpAddr| {
        let real = choose(&server, SocketAddr::new(client, 1), [10, 96, 0, 50].into());
        real.unwrap().unwrap().port
    };
    for n in 0..64 {
        let v6 = format!("2001:db8:7:9:2001:db8:a0e:{:x}", 0xb ^ 0x9 ^ n);
        let v4 = format!("10.9.0.{}", 0xb ^ n);
        assert_eq!(
            chosen(v6.parse().unwrap()),
            chosen(v4.parse().unwrap()),
            "{n}"
        );
    }
}

#[test]
fn a_real_server_is_full_of_active_and_inactive_connections() {
    for (inactive, servers) in [(1, 2), (2, 1)] {
        let mut evidence = balancer("rr", 0, &[(1, 2, inactive), (2, 9, 9)]);
        let text = evidence.text(Item::Ipvs).unwrap();
        let text = text.replacen("\"weight\":1", "\"weight\":1,\"upper\":4", 1);
        evidence.insert(Item::Ipvs, Ok(text));
        assert_eq!(walked(&evidence, &flow(false)).len(), servers, "{inactive}");
    }
}

#[test]
fn sh_falls_back_to_the_next_server_that_takes_connections() {
    let chosen = chosen("sh -b sh-fallback", &[0, 0, 1, 0, 0]).unwrap();
    assert!(chosen.iter().all(|port| *port == Some(2)), "{chosen:?}");
}

/// `ip_vs_mh_gcd_weight` and `ip_vs_mh_shift_weight`: weights count by their ratio, with 6 bits at most.
#[test]
#[ignore = "takes long: make test-loops"]
fn mh_divides_weights_by_what_they_have_in_common() {
    for (weights, as_if) in [
        ([2, 4, 6], [1, 2, 3]),
        ([64, 128, 64], [1, 2, 1]),
        ([128, 1, 1], [32, 1, 1]),
    ] {
        assert_eq!(chosen("mh", &weights), chosen("mh", &as_if), "{weights:?}");
    }
    assert_ne!(chosen("mh", &[1, 2, 3]), chosen("mh", &[3, 2, 1]));
    // The table has the weights from before they became 0.
    assert_eq!(chosen("mh", &[1, 0, 1]), None);
}

#[test]
fn the_choice_of_a_server_with_a_limit_is_unknown() {
    let mut server =
        parse::saved("-A -u 10.96.0.50:53 -s sh\n-a -u 10.96.0.50:53 -r 10.244.1.5:53 -m -w 1\n")
            .unwrap()
            .servers
            .remove(0);
    server.order = vec![0];
    let mut limited = server.clone();
    limited.reals[0].upper = 9;
    for (server, known) in [(server, true), (limited, false)] {
        let client = SocketAddr::from(([10, 9, 0, 11], 1));
        assert_eq!(
            choose(&server, client, [10, 96, 0, 50].into()).is_some(),
            known
        );
    }
}

#[test]
fn rules_of_another_mode_are_others() {
    let evidence = recording("seed-iptables");
    let node = NodeSnapshot::new(&evidence);
    let of = |mode| Assumed::new(&node, mode).unwrap();
    let nftables = of(Mode::Nftables);
    assert!(nftables.has_rules_of(&of(Mode::Nftables)));
    // They differ in rules of nftables alone, and in rules of iptables alone.
    let nothing = Assumed::served_by(&node, Vec::new()).unwrap();
    assert!(!nftables.has_rules_of(&nothing));
    assert!(!of(Mode::Iptables).has_rules_of(&of(Mode::Ipvs)));
}

#[test]
fn another_mode_is_not_simulated_beside_sets_that_cannot_be_read() {
    let mut evidence = recording("seed-iptables");
    let gap = Gap::Failed(Item::Ipset, "permission denied".to_owned());
    evidence.insert(Item::Ipset, Err(gap.clone()));
    let node = NodeSnapshot::new(&evidence);
    assert_eq!(Assumed::new(&node, Mode::Ipvs).unwrap_err(), gap);
    assert!(Assumed::new(&node, Mode::Iptables).is_ok());
}

#[test]
fn rules_of_others_stay_where_they_are_in_another_mode() {
    const JUMP: &str = "[0:0] -A PREROUTING";
    const ACCEPT: &str = "-A PREROUTING -d 10.97.54.248/32 -j ACCEPT";
    let rules = recording("seed-iptables");
    let rules = rules.text(Item::Iptables4).unwrap();
    let jump = rules.lines().find(|line| line.starts_with(JUMP)).unwrap();
    for (first, second, expected) in [
        (ACCEPT, jump, &["Unmatched 10.97.54.248:80 1.000"][..]),
        (jump, ACCEPT, &PODS),
    ] {
        let mut evidence = recording("seed-iptables");
        let rules = rules.replacen(jump, &format!("{first}\n{second}"), 1);
        evidence.insert(Item::Iptables4, Ok(rules));
        let node = NodeSnapshot::new(&evidence);
        let assumed = Assumed::new(&node, Mode::Iptables).unwrap();
        assert_eq!(ends(&walk(&assumed.snapshot(), &flow(false))), expected);
    }
    let evidence = nftables("drop");
    let node = NodeSnapshot::new(&evidence);
    let there = Assumed::new(&node, Mode::Nftables).unwrap();
    assert_eq!(
        ends(&walk(&there.snapshot(), &flow(false))),
        ["Drop 10.97.54.248:80 1.000"]
    );
    let alone = Assumed::alone(&node, Mode::Nftables).unwrap();
    assert_eq!(ends(&walk(&alone.snapshot(), &flow(false))), PODS);
}

#[test]
fn mode_ipvs_has_the_addresses_of_services_on_a_link() {
    let evidence = recording("seed-iptables");
    let assumed = Assumed::new(&NodeSnapshot::new(&evidence), Mode::Ipvs).unwrap();
    let node = assumed.snapshot();
    assert_eq!(ends(&walk(&node, &flow(false))), PODS);
    assert_eq!(ends(&walk(&node, &from_host())), PODS);
}

#[tokio::test]
async fn a_target_without_a_name_or_a_port_is_refused() {
    for typed in ["default/nginx-svc:", ".default:80", "nginx-svc..svc:80"] {
        let ran = trace("seed-iptables", &[typed]).await;
        let refused = format!("kpx: {typed:?} is not a target");
        assert!(ran.err.starts_with(&refused), "{ran}");
    }
}

#[tokio::test]
async fn a_nodeport_is_traced_with_the_protocol_of_its_service() {
    for (port, protocol) in [("30514", "udp"), ("31082", "tcp")] {
        let target = format!("nodeport:{port}");
        let (_, _, all) = traces("full-iptables", &target, &["--source", "outside"]).await;
        assert_eq!(all[0]["packet"]["protocol"], protocol, "{port}");
        assert_eq!(verdict(&all[0]), "deliver", "{port}");
    }
}

fn notes(trace: &Value) -> Vec<&str> {
    let notes = trace["notes"].as_array().into_iter().flatten();
    notes.map(|note| note.as_str().unwrap()).collect()
}

/// Changes the rules of iptables of a recording.
fn with_rules(name: &str, change: Change<'_>) -> TempDir {
    broken(name, &[(RULES, change)])
}

#[tokio::test]
async fn a_backend_that_is_not_ready_is_named_with_the_cause() {
    let unready = |text: &str| {
        text.replace("\"ready\": true", "\"ready\": false")
            .replace("\"serving\": true", "\"serving\": false")
    };
    let dir = broken("seed-iptables", &[(SLICES, &unready)]);
    let trace = traced_in(&dir, "default/nginx-svc", "host").await;
    let notes = notes(&trace);
    assert_eq!(trace["fate"], "lost", "{trace:#}");
    let still = "the rules lead to endpoint 10.244.1.14:80, which is not ready";
    assert_eq!(trace["fault"], still, "{trace:#}");
    let why = "why: default/nginx-svc has no ready endpoint: none of 3 (";
    assert!(notes[0].starts_with(why), "{notes:#?}");
    assert!(
        notes[1].starts_with("look: kubectl -n default describe pod "),
        "{notes:#?}"
    );
}

#[tokio::test]
async fn a_packet_that_reaches_every_endpoint_needs_no_cause() {
    let lost = |text: &str| without(text, "-A KUBE-NODEPORTS");
    let dir = with_rules("seed-iptables", &lost);
    for (target, explained) in [
        ("default/nginx-svc-nodeport", false),
        ("10.0.2.15:31082", true),
    ] {
        let trace = traced_in(&dir, target, "host").await;
        let why = |note: &&str| note.starts_with("why: ");
        assert_eq!(notes(&trace).iter().any(why), explained, "{trace:#}");
    }
}

#[tokio::test]
async fn a_policy_that_drops_is_of_the_kernel_and_a_rule_has_its_comment() {
    let policy = |text: &str| {
        text.replace(
            ":FORWARD ACCEPT [0:0]\n:OUTPUT ACCEPT [0:0]\n:KUBE",
            ":FORWARD DROP [0:0]\n:OUTPUT ACCEPT [0:0]\n:KUBE",
        )
    };
    let dir = with_rules("seed-iptables", &policy);
    let trace = traced_in(&dir, "10.5.5.5:80", "external").await;
    assert_eq!(reason(&trace), "dropped by the policy of filter FORWARD");
    let last = trace["hops"].as_array().unwrap().last().unwrap();
    assert_eq!((&last["number"], &last["owner"]), (&json!(0), &Value::Null));
    let trace = traced_in(&dir, "127.0.0.1:9999", "external").await;
    assert_eq!(
        reason(&trace),
        "dropped by rule 1 of filter KUBE-FIREWALL (\"block incoming localnet connections\")"
    );
}

#[tokio::test]
async fn a_rule_of_a_service_that_has_moved_is_explained_by_its_comment() {
    let moved = |text: &str| text.replace("\"10.100.1.2\"", "\"10.100.1.222\"");
    let dir = broken("full-iptables", &[("cluster/services.json", &moved)]);
    let trace = traced_in(&dir, "10.100.1.2:80", "host").await;
    assert_eq!(verdict(&trace), "reject", "{trace:#}");
    assert_eq!(reason(&trace), "shop/empty:http has no endpoints");
}

#[tokio::test]
async fn a_route_by_an_address_of_the_node_leads_to_its_own_pods() {
    for (gateway, away) in [("10.0.2.15", false), ("10.0.2.9", true)] {
        let route =
            format!(r#"[{{"dst":"10.244.1.0/24","gateway":"{gateway}","dev":"eth0","flags":[]}},"#);
        let change = |text: &str| text.replacen('[', &route, 1);
        let dir = broken("seed-iptables", &[(ROUTES, &change)]);
        let trace = traced_in(&dir, "default/nginx-svc", "host").await;
        let fate = if away { "lost" } else { "works" };
        assert_eq!(trace["fate"], fate, "{trace:#}");
        let fault = trace["fault"].as_str().unwrap_or_default();
        let leads_off = "the route leads off the node, by eth0 via 10.0.2.9";
        assert_eq!(fault.contains(leads_off), away, "{trace:#}");
        let cause = |note: &&str| note.starts_with("why: ") && note.contains("via 10.0.2.9");
        assert_eq!(notes(&trace).iter().any(cause), away, "{trace:#}");
    }
}

/// nat of a new connection comes after mangle, which ACCEPT leaves.
#[tokio::test]
async fn a_rule_that_accepts_before_nat_does_not_take_the_packet() {
    let change = |text: &str| {
        let text = without(text, "-A KUBE-SERVICES -d 10.97.54.248/32");
        let chain = ":POSTROUTING ACCEPT [0:0]\n";
        text.replacen(chain, &format!("{chain}-A PREROUTING -j ACCEPT\n"), 1)
    };
    let dir = with_rules("seed-iptables", &change);
    let trace = traced_in(&dir, "default/nginx-svc", "external").await;
    let notes = notes(&trace);
    let lost = "nat chain KUBE-SERVICES rule 2 is missing: -d 10.97.54.248/32";
    assert!(notes[0].starts_with("why: "), "{notes:#?}");
    assert!(notes[0].contains(lost), "{notes:#?}");
    let taken = |note: &&str| note.contains("PREROUTING");
    assert!(!notes.iter().any(taken), "{notes:#?}");
}

#[tokio::test]
async fn a_rule_that_takes_the_packet_is_named_with_its_table() {
    let (_, _, all) = traces(
        "ir16-foreign-drops",
        "default/nginx-svc",
        &["--source", "outside"],
    )
    .await;
    assert_eq!(all[0]["fate"], "lost", "{:#}", all[0]);
    assert_eq!(
        all[0]["fault"], "dropped by rule 1 of raw PREROUTING",
        "{:#}",
        all[0]
    );
    let drops = "why: default/nginx-svc does not work on node1 from outside (10.97.54.248:80/tcp): rule 1 of chain PREROUTING \
                 in table raw drops the packets; owner of the rule: unknown (not kube-proxy)";
    assert!(notes(&all[0]).contains(&drops), "{:#}", all[0]);
    // In a chain that kube-proxy did not write, which a chain of others leads to.
    let change = |text: &str| {
        let chain = "KUBE-SVC-AAAAAAAAAAAAAAAA";
        let text = text.replacen(
            "*nat\n",
            &format!("*nat\n:MINE - [0:0]\n:{chain} - [0:0]\n"),
            1,
        );
        let rules = format!(
            "-A PREROUTING -d 10.100.1.1/32 -j MINE\n-A MINE -j {chain}\n\
             -A {chain} -p tcp -j DNAT --to-destination 10.9.9.9:80\n[0:0] -A PREROUTING"
        );
        text.replacen("[0:0] -A PREROUTING", &rules, 1)
    };
    let dir = with_rules("full-iptables", &change);
    let trace = traced_in(&dir, "shop/cart", "external").await;
    assert_eq!(trace["fate"], "misled", "{trace:#}");
    let stolen = "why: shop/cart:http does not work on node1 from outside (10.100.1.1:8080/tcp): rule 1 of chain PREROUTING \
                  in table nat takes the packets to 10.9.9.9:80, which is no endpoint of the Service; owner of the rule: \
                  unknown (not kube-proxy)";
    assert!(notes(&trace).contains(&stolen), "{trace:#}");
}

#[tokio::test]
async fn a_client_address_that_is_kept_has_the_policy_as_its_cause_only_if_it_is_local() {
    let remote = |text: &str| text.replace("\"nodeName\": \"node1\"", "\"nodeName\": \"node2\"");
    let kept = |text: &str| without(text, "requiring SNAT");
    let dir = broken("full-ipvs", &[(SLICES, &remote), (RULES, &kept)]);
    for (target, local) in [("203.0.113.10:80", false), ("203.0.113.12:80", true)] {
        let trace = traced_in(&dir, target, "external").await;
        assert_eq!(verdict(&trace), "deliver", "{trace:#}");
        assert!(
            masqueraded(&trace).iter().all(|masqueraded| !masqueraded),
            "{trace:#}"
        );
        assert_eq!(trace["fate"], "lost", "{trace:#}");
        let fault = trace["fault"].as_str().unwrap();
        assert!(fault.contains("sees the client's own address"), "{trace:#}");
        let why = notes(&trace)[0];
        assert!(why.starts_with("why: edge/web"), "{trace:#}");
        let policy = why.contains("externalTrafficPolicy is Local");
        assert_eq!(policy, local, "{trace:#}");
        assert_eq!(why.contains("requiring SNAT"), !local, "{trace:#}");
    }
}

#[tokio::test]
async fn what_decides_the_path_and_is_unknown_is_noted_once() {
    let change = |text: &str| {
        let chain = ":POSTROUTING ACCEPT [0:0]\n";
        let rule = "-A PREROUTING -m made-up --option -j DROP\n";
        text.replacen(chain, &format!("{chain}{rule}"), 1)
    };
    let dir = with_rules("seed-iptables", &change);
    let trace = traced_in(&dir, "default/nginx-svc", "external").await;
    assert_eq!(outcomes(&trace).len(), 4, "{trace:#}");
    assert_eq!(verdict(&trace), "unknown", "{trace:#}");
    let unknown = "unknown: `-m made-up --option` holds; both results are shown, with half the probability each";
    let count = notes(&trace)
        .iter()
        .filter(|note| **note == unknown)
        .count();
    assert_eq!(count, 1, "{trace:#}");
}

#[tokio::test]
async fn affinity_of_a_virtual_server_is_noted_if_the_packet_meets_it() {
    let affinity = |trace: &Value| {
        let mut notes = notes(trace).into_iter();
        notes.any(|note| note.starts_with("session affinity: "))
    };
    for (target, noted) in [("shop/cart", true), ("shop/hostnet", false)] {
        let (_, _, all) = traces("full-ipvs", target, &["--source", "host"]).await;
        assert_eq!(affinity(&all[0]), noted, "{:#}", all[0]);
    }
    // The rules of iptables translate the packet before.
    let persistent = |text: &str| text.replace(" -s rr\n", " -s rr -p 10800\n");
    let dir = broken("leftover-ipvs-to-iptables", &[(SERVERS, &persistent)]);
    let trace = traced_in(&dir, "default/nginx-svc", "host").await;
    assert_eq!(verdict(&trace), "deliver", "{trace:#}");
    assert!(!affinity(&trace), "{trace:#}");
}

#[tokio::test]
async fn the_process_that_takes_a_packet_to_the_host_is_named() {
    let nothing = "the packet ends at the node itself, where nothing listens on 10.0.2.15:9999";
    for (port, code, fault, note) in [
        ("9999", 1, json!(nothing), None),
        (
            "10256",
            0,
            Value::Null,
            Some("kube-proxy (pid 141) listens on it"),
        ),
    ] {
        let target = format!("10.0.2.15:{port}");
        let ran = traces("seed-iptables", &target, &["--source", "outside"]).await;
        let (exit, _, all) = ran;
        assert_eq!(exit, code, "{port}");
        assert_eq!(verdict(&all[0]), "local", "{port}");
        assert_eq!(all[0]["fault"], fault, "{port}: {:#}", all[0]);
        assert_eq!(notes(&all[0]), Vec::from_iter(note), "{port}: {:#}", all[0]);
    }
    let dir = broken("seed-iptables", &[]);
    for file in [
        "ss.txt",
        "proc-net-tcp.txt",
        "proc-net-tcp6.txt",
        "proc-net-udp.txt",
    ] {
        fs::remove_file(dir.path().join("node").join(file)).unwrap();
    }
    let trace = traced_in(&dir, "10.0.2.15:9999", "external").await;
    assert_eq!(trace["fate"], "unknown", "{trace:#}");
    let unknown = "whether something listens on the node is unknown: ";
    assert!(
        trace["fault"].as_str().unwrap().starts_with(unknown),
        "{trace:#}"
    );
}

#[tokio::test]
async fn what_is_not_in_the_bundle_is_noted() {
    let dir = broken("seed-iptables", &[]);
    for file in [
        "ip-route.json",
        "nft.json",
        "nft.txt",
        "sysctl.txt",
        "conntrack.txt",
    ] {
        fs::remove_file(dir.path().join("node").join(file)).unwrap();
    }
    let missing = [
        "routes are not used, only the node's addresses: ",
        "nftables rules are not used: ",
        "sysctls such as ip_forward are not used: ",
        "tracked connections are not used: ",
    ];
    for (source, sysctl) in [("outside", true), ("host", false)] {
        let trace = traced_in(&dir, "default/nginx-svc", source).await;
        let all = notes(&trace);
        for what in missing {
            let noted = all.iter().any(|note| note.starts_with(what));
            assert_eq!(
                noted,
                sysctl || !what.contains("sysctl"),
                "{what} {trace:#}"
            );
        }
    }
}

#[tokio::test]
async fn a_port_that_a_service_lacks_is_the_reason_of_each_mode() {
    for (mode, verdicts, why) in [
        (
            "iptables",
            "unmatched",
            "no rule translates it; it is routed unchanged",
        ),
        (
            "ipvs",
            "reject",
            "10.100.1.1 is on kube-ipvs0, and no Service with that address has port 9999",
        ),
        (
            "nftables",
            "reject",
            "the Service with this address does not have this port",
        ),
    ] {
        let name = format!("full-{mode}");
        let (_, _, all) = traces(&name, "10.100.1.1:9999", &["--source", "host"]).await;
        assert_eq!(
            (verdict(&all[0]), reason(&all[0])),
            (verdicts, why),
            "{mode}"
        );
    }
}

/// A virtual server without real servers, by the nodes of the endpoints of its Service.
#[tokio::test]
async fn a_virtual_server_lacks_real_servers_for_a_local_policy_only_if_all_endpoints_are_remote() {
    for (nodes, local) in [
        (["node1", "node2"], false),
        (["node2", "node1"], false),
        (["node2", "node2"], true),
    ] {
        let placed = |text: &str| {
            let mut slices: Value = serde_json::from_str(text).unwrap();
            for slice in slices["items"].as_array_mut().unwrap() {
                if slice["metadata"]["name"] == "ext-abcde" {
                    for (endpoint, node) in slice["endpoints"]
                        .as_array_mut()
                        .unwrap()
                        .iter_mut()
                        .zip(nodes)
                    {
                        endpoint["nodeName"] = node.into();
                    }
                }
            }
            slices.to_string()
        };
        let empty = |text: &str| without(text, "-a -t 10.100.2.6:9000");
        let dir = broken("full-ipvs", &[(SLICES, &placed), (SERVERS, &empty)]);
        let trace = traced_in(&dir, "edge/ext", "host").await;
        assert_eq!(verdict(&trace), "reject", "{nodes:?} {trace:#}");
        let why = if local {
            "edge/ext:api has no endpoint on this node, and its traffic policy is Local: its virtual server has no real server"
        } else {
            "edge/ext:api has no endpoints: its virtual server has no real server that accepts connections"
        };
        assert_eq!(reason(&trace), why, "{nodes:?}");
    }
}

/// Copies a recording of mode nftables without JSON, with `change` applied to the text.
fn with_nftables(change: Change<'_>) -> TempDir {
    let dir = broken("seed-nftables", &[("node/nft.txt", change)]);
    fs::remove_file(dir.path().join("node/nft.json")).unwrap();
    dir
}

#[tokio::test]
async fn a_rule_added_to_kube_proxys_table_has_no_reason_of_kube_proxy() {
    let added = |text: &str| {
        text.replacen(
            "chain services {\n",
            "chain services {\n\t\tip daddr 10.97.54.248 drop\n",
            1,
        )
    };
    let trace = traced_in(&with_nftables(&added), "default/nginx-svc", "external").await;
    assert_eq!(verdict(&trace), "drop", "{trace:#}");
    assert_eq!(reason(&trace), "dropped by rule 1 of kube-proxy services");
}

#[tokio::test]
async fn a_chain_of_nftables_is_of_a_service_in_kube_proxys_table_alone() {
    const CHAIN: &str = "service-O4TPQO6D-default/nginx-svc/tcp/";
    let foreign = |text: &str| {
        format!(
            "{text}table inet vpn {{\n\tchain {CHAIN} {{\n\t\tip daddr 10.97.54.248 accept\n\t}}\n\
             \tchain first {{\n\t\ttype filter hook prerouting priority -300; policy accept;\n\t\tjump {CHAIN}\n\t}}\n}}\n"
        )
    };
    let trace = traced_in(&with_nftables(&foreign), "default/nginx-svc", "external").await;
    assert_eq!(backends(&trace).len(), 3, "{trace:#}");
    for (table, owner) in [
        ("inet vpn", "not kube-proxy's"),
        ("ip kube-proxy", "default/nginx-svc"),
    ] {
        let mut hops = trace["hops"].as_array().unwrap().iter();
        let hop = hops.find(|hop| hop["table"] == table && hop["chain"] == CHAIN);
        assert_eq!(hop.unwrap()["owner"], owner, "{trace:#}");
    }
}
