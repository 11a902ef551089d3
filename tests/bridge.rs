//! `kpx bridge` on recorded nodes: its rules, and its errors when data is missing.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::Duration;

use kpx_judge::bridge::{self, Lease, Unbuildable};
use kpx_judge::diff;
use kpx_judge::plan::{self, Undo};
use kpx_node::action::Action;
use kpx_node::backend::Mode;
use kpx_node::backend::nftables::model::Table;
use kpx_node::backend::nftables::{parse, print};
use kpx_node::evidence::{self, Evidence, Gap, Item};
use kpx_node::net::Family;
use kpx_node::node::NodeSnapshot;

use serde_json::{Value, json};

use crate::support::{kpx_on, root};

fn recorded(name: &str) -> Evidence {
    let path = root().join("testdata/nodes").join(name);
    let mut items = diff::needs(Mode::Nftables);
    items.push(Item::Routes);
    evidence::load(Path::new(&path), &items).unwrap()
}

fn lease() -> Lease {
    Lease::of(Duration::from_secs(60))
}

/// Returns the bit of the packet mark that the bridge of `evidence` uses.
fn bit(evidence: &Evidence) -> Result<u32, Unbuildable> {
    let node = NodeSnapshot::new(evidence);
    let state = node.desired(Mode::Iptables).unwrap();
    bridge::marks(&node, state).map(|marks| marks.masquerade)
}

/// Returns the tables of the bridge of `evidence`.
fn tables(evidence: &Evidence) -> Vec<Table> {
    let node = NodeSnapshot::new(evidence);
    let state = node.desired(Mode::Iptables).unwrap();
    let marks = bridge::marks(&node, state).unwrap();
    bridge::tables(state, &Family::BOTH, marks, &lease()).unwrap()
}

/// Returns the elements of a set or map of the bridge for IPv4, as nft lists them.
fn elements(evidence: &Evidence, set: &str) -> Vec<String> {
    let table = &tables(evidence)[0];
    let elements = &table.set(set).unwrap().elements;
    elements.iter().map(print::element).collect()
}

/// Rules that use a mark, twice.
fn mangle(rule: &str) -> String {
    format!("*mangle\n:FORWARD ACCEPT [0:0]\n{rule}\n{rule}\nCOMMIT\n")
}

#[tokio::test]
async fn the_bridge_of_the_tutorial() {
    insta::assert_snapshot!(kpx_on("seed-iptables", &["bridge", "show"]).await);
}

#[tokio::test]
async fn a_bundle_is_not_changed() {
    let ran = kpx_on("seed-iptables", &["bridge", "up", "--apply", "--yes"]).await;
    assert_eq!(ran.code, 2, "{ran}");
}

#[test]
fn the_bit_is_one_that_no_rule_uses() {
    let mut evidence = recorded("seed-iptables");
    assert_eq!(bit(&evidence).unwrap(), 0x1000);
    for (item, text) in [
        (
            Item::IptablesLegacy4,
            mangle("-A FORWARD -m mark --mark 0x1000/0x1000 -j ACCEPT"),
        ),
        (
            Item::Iptables6,
            mangle("-A FORWARD -j CONNMARK --set-xmark 0x40/0x60"),
        ),
        (
            Item::NftText,
            ["vpn", "other"]
                .map(|table| format!("table inet {table} {{\n\tchain c {{\n\t\tmeta mark set meta mark & 0xffffffef\n\t}}\n}}\n"))
                .concat(),
        ),
        (
            Item::Rules,
            ["9", "10"]
                .map(|priority| format!(r#"[{{"priority":{priority},"src":"all","fwmark":"0x8","fwmask":"0xc","table":"100"}}]"#))
                .concat(),
        ),
    ] {
        evidence.insert(item, Ok(text));
    }
    evidence.insert(Item::Nft, Err(Gap::NotCollected(Item::Nft)));
    assert_eq!(bit(&evidence).unwrap(), 0x2);
    let all = mangle("-A FORWARD -j MARK --set-xmark 0x0/0xfffff");
    evidence.insert(Item::Iptables6, Ok(all));
    assert!(matches!(bit(&evidence), Err(Unbuildable::NoBit(_))));
    let denied = Gap::Denied(Item::Iptables6, "run kpx as root".to_owned());
    evidence.insert(Item::Iptables6, Err(denied));
    assert!(matches!(bit(&evidence), Err(Unbuildable::Unknown(_))));
}

#[test]
fn the_bit_of_kube_proxy_is_taken_wherever_it_is() {
    let mut evidence = recorded("seed-iptables");
    let rules = evidence.text(Item::Iptables4).unwrap();
    let rules = rules.replace("0x4000", "0x1000");
    evidence.insert(Item::Iptables4, Ok(rules));
    let config = "mode: iptables\nclusterCIDR: 10.244.0.0/16\niptables:\n  masqueradeBit: 12\n";
    evidence.insert(Item::ProxyConfig, Ok(config.to_owned()));
    let node = NodeSnapshot::new(&evidence);
    let state = node.desired(Mode::Iptables).unwrap();
    assert_eq!(state.mark, 0x1000);
    assert_eq!(bit(&evidence).unwrap(), 0x40);
}

/// A set or map of nftables, as nft lists it.
fn set(name: &str, types: &str, elements: &str) -> String {
    format!("\t{name} {{\n\t\ttype {types}\n\t\telements = {{ {elements} }}\n\t}}\n")
}

/// A chain of nftables with one rule.
fn chain(name: &str, rule: &str) -> String {
    format!("\tchain {name} {{\n\t\t{rule}\n\t}}\n")
}

#[test]
fn a_mark_is_in_use_wherever_nftables_has_it() {
    const FIRST: Option<u32> = Some(0x1000);
    let with = |table: &str| {
        let mut evidence = recorded("seed-iptables");
        let text = format!("table inet vpn {{\n{table}}}\n");
        evidence.insert(Item::NftText, Ok(text));
        evidence.insert(Item::Nft, Err(Gap::NotCollected(Item::Nft)));
        bit(&evidence).ok()
    };
    let rule = |text: &str| with(&chain("c", text));
    for used in [
        "meta mark 0x1000 accept",
        "meta mark 0x1000 counter\n\t\tmeta mark 0x1000 accept",
        "meta mark & 0x1000 == 0x0 accept",
        "meta mark { 0x1000, 0x1001 } accept",
        "meta mark 0xfff-0x2001 accept",
        "meta mark 0x1000-0x1001 accept",
        "meta mark 0x1-0x1000 accept",
        "meta mark 0x1001-0x2000 accept",
        "meta mark 0x1000 / 0x1000 accept",
        "meta mark vmap { 0x1000 : accept }",
        "meta mark vmap { 0x1000 : accept, 0x1001 : drop }",
        "meta mark set 0x1000",
        "meta mark set meta mark | 0x1000",
        "meta mark set meta mark & 0xffffefff | 0x1000",
        "meta mark set meta mark map { 0x1000 : 0x1000 }",
        "meta mark set ip saddr map { 10.0.0.1 : 0x1000 }",
        "meta priority set meta mark map { 0x1000 : 0x10 }",
        "ct mark 0x1000 accept",
        "ct mark set meta mark & 0x1000",
        "ip saddr . meta mark { 10.0.0.1 . 0x1000 } accept",
        "meta mark >= 0x800 accept",
        "meta mark set numgen random mod 2 offset 4096",
        "dnat to meta mark map { 0x1000 : 10.0.0.1 }",
        "meta l4proto tcp redirect to :meta mark map { 0x1000 : 80 }",
        "meta l4proto tcp masquerade to :meta mark map { 0x1000 : 80 }",
        "tcp dport 1 tproxy to :80 meta mark set 0x1000 accept",
    ] {
        assert_ne!(rule(used), FIRST, "{used}");
    }
    for unused in [
        "meta mark 0x2000 accept",
        "meta mark 0x2000-0x2001 accept",
        "meta mark & 0xffff0000 == 0x10000 accept",
        "tcp dport 4096 accept",
        "ip length vmap { 4096 : drop }",
        "meta mark < 0x800 accept",
        "tcp dport 1 tproxy ip to 127.0.0.1:4096 meta mark set 0x1 accept",
        "meta mark set numgen random mod 2 offset 8192",
        "dnat to ip saddr map { 10.0.0.1 : 10.0.0.2 }",
    ] {
        assert_eq!(rule(unused), FIRST, "{unused}");
    }
    // These can set any bit.
    for unknown in [
        "meta mark set jhash ip saddr mod 2 offset 4096",
        "meta mark set meta mark << 4",
    ] {
        assert_eq!(rule(unknown), None, "{unknown}");
    }
    assert_ne!(with(&set("set s", "mark", "0x1000")), FIRST);
    for (types, element) in [
        ("ipv4_addr : mark", "10.0.0.1 : 0x1000"),
        ("mark : mark", "0x1000 : 0x1000"),
    ] {
        assert_ne!(with(&set("map m", types, element)), FIRST, "{types}");
    }
    assert_eq!(with(&set("set s", "inet_service", "4096")), FIRST);
}

#[test]
fn a_mark_is_in_use_wherever_iptables_has_it() {
    for (rule, is_used) in [
        ("-m mark --mark 0x1000/0x1000 -j ACCEPT", true),
        ("-m connmark --mark 0x1000/0x1000 -j ACCEPT", true),
        ("-j MARK --set-xmark 0x1000/0x1000", true),
        ("-j CONNMARK --set-xmark 0x1000/0x1000", true),
        (
            "-j CONNMARK --save-mark --nfmask 0x1000 --ctmask 0x2000",
            true,
        ),
        (
            "-j CONNMARK --restore-mark --nfmask 0x2000 --ctmask 0x1000",
            true,
        ),
        (
            "-j CONNMARK --restore-mark --nfmask 0xffffffff --ctmask 0xffffffff",
            false,
        ),
        (
            "-p tcp -j TPROXY --on-port 1 --on-ip 0.0.0.0 --tproxy-mark 0x1000/0x1000",
            true,
        ),
        ("-p tcp -m tcp --dport 4096 -j ACCEPT", false),
        ("-m mark --mark 0x2000/0x2000 -j ACCEPT", false),
    ] {
        let mut evidence = recorded("seed-iptables");
        let rules = mangle(&format!("-A FORWARD {rule}"));
        evidence.insert(Item::IptablesLegacy4, Ok(rules));
        let first = bit(&evidence).unwrap() == 0x1000;
        assert_ne!(first, is_used, "{rule}");
    }
}

#[test]
fn every_verdict_leads_to_a_chain_of_the_bridge() {
    let text = bridge::text(&tables(&recorded("full-iptables")));
    let words: Vec<_> = text.split_whitespace().collect();
    let chains = words.windows(2).filter(|pair| pair[0] == "chain");
    let chains: BTreeSet<_> = chains.map(|pair| pair[1]).collect();
    let to = words
        .windows(2)
        .filter(|pair| ["goto", "jump"].contains(&pair[0]))
        .map(|pair| pair[1].trim_end_matches(','));
    let missing: Vec<_> = to.filter(|chain| !chains.contains(chain)).collect();
    assert_eq!(missing, [] as [&str; 0]);
}

#[test]
fn packets_that_no_endpoint_may_take_are_refused() {
    let evidence = recorded("full-iptables");
    assert_eq!(
        elements(&evidence, "refused-ips"),
        [
            "203.0.113.13 . tcp . 80 : goto refuse-outside",
            "10.100.1.5 . tcp . 8126 : goto refuse-drop",
            "10.100.1.2 . tcp . 80 : goto refuse-reject",
            "10.100.1.3 . tcp . 80 : goto refuse-reject",
        ]
    );
    assert_eq!(
        elements(&evidence, "refused-node-ports"),
        [
            "tcp . 30082 : goto node-refuse-outside",
            "tcp . 30555 : goto node-refuse-reject",
        ]
    );
}

#[test]
fn session_affinity_and_source_ranges_have_chains_of_their_service() {
    let evidence = recorded("full-iptables");
    // The names end as those of kube-proxy's chains.
    assert_eq!(
        elements(&evidence, "firewalls"),
        ["203.0.113.11 . tcp . 443 : jump firewall-ECWQDEPV-edge/web-restricted/tcp/https"]
    );
    let served = elements(&evidence, "service-ips");
    let sticky = "10.100.1.1 . tcp . 8080 : goto cluster-242WI43H-shop/cart/tcp/http";
    assert!(served.iter().any(|served| served == sticky), "{served:#?}");
}

#[test]
fn an_address_that_two_services_share_leads_to_the_one_with_endpoints() {
    let mut evidence = recorded("full-iptables");
    let mut services: Value = serde_json::from_str(evidence.text(Item::Services).unwrap()).unwrap();
    let items = services["items"].as_array_mut().unwrap();
    let empty = items
        .iter_mut()
        .find(|service| service["metadata"]["name"] == "empty");
    let spec = &mut empty.unwrap()["spec"];
    spec["externalIPs"] = json!(["192.0.2.77", "192.0.2.78"]);
    spec["ports"][0]["port"] = json!(9000);
    evidence.insert(Item::Services, Ok(services.to_string()));
    let about = |set: &str| {
        let mut found = elements(&evidence, set);
        found.retain(|element| element.starts_with("192.0.2.7"));
        found
    };
    let served = "192.0.2.77 . tcp . 9000 : goto external-2";
    assert_eq!(about("service-ips"), [served]);
    let refused = "192.0.2.78 . tcp . 9000 : goto refuse-reject";
    assert_eq!(about("refused-ips"), [refused]);
}

#[test]
fn equal_tables_need_no_change() {
    let tables = tables(&recorded("full-iptables"));
    assert_eq!(tables.len(), 2);
    for table in &tables {
        assert_eq!(bridge::change(table, table), "");
    }
}

#[test]
fn a_change_touches_what_differs_alone() {
    let table = |parts: &str| {
        let text = format!("table ip b {{\n{parts}}}\n");
        parse::text(&text).unwrap().tables.remove(0)
    };
    let (same, stays) = (
        chain("same", "accept"),
        set("set stays", "inet_service", "9"),
    );
    let have = [
        set("set s", "inet_service", "1, 2"),
        set("set old", "inet_service", "4"),
        stays.clone(),
        chain("changed", "tcp dport @old drop"),
        chain("gone", "drop"),
        same.clone(),
    ];
    let want = [
        set("set s", "inet_service", "2, 3"),
        set("set new", "inet_service", "5"),
        stays.clone(),
        chain("changed", "goto added"),
        chain("added", "tcp dport @new accept"),
        same.clone(),
    ];
    let (have, want) = (table(&have.concat()), table(&want.concat()));
    insta::assert_snapshot!(bridge::change(&have, &want));
    // New objects are added also where they are only a chain, or only a set.
    for part in [chain("new", "accept"), set("set new", "inet_service", "5")] {
        let change = bridge::change(&table(&same), &table(&[&*same, &*part].concat()));
        assert!(change.contains("new"), "{change}");
    }
    // The type of a set cannot change: the whole is loaded again.
    let other = table(&set("set s", "ipv4_addr", "10.0.0.1"));
    let whole = bridge::change(&have, &other);
    assert!(whole.starts_with("add table ip b"), "{whole}");
    assert!(whole.contains("delete table ip b"), "{whole}");
}

#[test]
fn a_loaded_bridge_is_removed_and_the_undo_loads_it() {
    let mut evidence = recorded("full-iptables");
    let built = |evidence: &Evidence| bridge::text(&tables(evidence));
    let down = |evidence: &Evidence| {
        plan::bridge_down(&NodeSnapshot::new(evidence), &Family::BOTH).unwrap()
    };
    assert_eq!(down(&evidence).steps, []);
    let text = built(&evidence);
    let verbs = ["add table", "delete table"];
    let lines = text.lines();
    let lines = lines.filter(|line| !verbs.iter().any(|verb| line.starts_with(verb)));
    let listed: Vec<_> = lines.collect();
    evidence.insert(Item::Nft, Err(Gap::NotCollected(Item::Nft)));
    evidence.insert(Item::NftText, Ok(listed.join("\n")));
    let steps = down(&evidence).steps;
    let [step] = steps.as_slice() else {
        panic!("{steps:?}");
    };
    let input = "delete table ip kpx-bridge\ndelete table ip6 kpx-bridge\n".to_owned();
    assert_eq!(step.action, Action::Nft { input });
    assert_eq!(
        step.undo,
        Undo::Do(Action::Nft {
            input: text.clone()
        })
    );
    // The bit it uses is its own.
    assert_eq!(built(&evidence), text);
}

/// Returns `evidence` with `routes` of the table local.
fn with_routes(evidence: &Evidence, routes: &[Value]) -> Evidence {
    let mut evidence = evidence.clone();
    evidence.insert(Item::Routes, Ok(Value::from(routes).to_string()));
    evidence
}

/// Returns the route to `addr` that the kernel makes for kube-ipvs0, or kpx's.
fn route(addr: &str, kernels: bool) -> Value {
    let source = if addr.contains(':') {
        "fd00:10:0:2::15"
    } else {
        "10.0.2.15"
    };
    let (device, protocol) = if kernels {
        ("kube-ipvs0", "kernel")
    } else {
        ("eth0", "107")
    };
    json!({
        "type": "local", "dst": addr, "dev": device, "table": "local", "protocol": protocol, "prefsrc": source,
    })
}

/// Returns the commands of the only step.
fn lines(plan: &plan::Plan) -> Vec<String> {
    let [step] = plan.steps.as_slice() else {
        panic!("{:?}", plan.steps);
    };
    step.action.to_string().lines().map(str::to_owned).collect()
}

#[test]
fn host_processes_send_from_the_nodes_address_despite_kube_ipvs0() {
    let evidence = recorded("dual-ipvs");
    let addresses: Vec<_> = NodeSnapshot::new(&evidence)
        .addresses()
        .unwrap()
        .all
        .iter()
        .filter(|at| at.link == "kube-ipvs0")
        .map(|at| at.addr.addr.to_string())
        .collect();
    let of_v6 = |addr: &&String| addr.contains(':');
    let v6 = addresses.iter().filter(of_v6).count();
    assert!(v6 > 2 && addresses.len() - v6 > 2, "{addresses:?}");
    let served = {
        let node = NodeSnapshot::new(&evidence);
        plan::Served::of(node.desired(Mode::Ipvs).unwrap())
    };
    let up = |evidence: &Evidence| {
        plan::routes_up(&NodeSnapshot::new(evidence), &served, &Family::BOTH).unwrap()
    };
    let kernels: Vec<_> = addresses.iter().map(|addr| route(addr, true)).collect();
    let before = with_routes(&evidence, &kernels);
    let commands = lines(&up(&before));
    assert_eq!(commands.len(), addresses.len() + v6, "{commands:?}");
    for line in [
        "ip route prepend local 10.96.0.1/32 dev eth0 table local proto 107 scope host src 10.0.2.15",
        "ip -6 route add local fd00:10:96::30a/128 dev eth0 table local proto 107 src fd00:10:0:2::15",
        "ip -6 route delete local fd00:10:96::30a/128 dev kube-ipvs0 table local proto kernel",
    ] {
        assert!(
            commands.iter().any(|command| command == line),
            "{line}: {commands:#?}"
        );
    }
    // A route of the kernel is deleted only after kpx's route to the address is added.
    let first = commands
        .iter()
        .position(|line| line.contains("delete"))
        .unwrap();
    assert!(commands[first..].iter().all(|line| line.contains("delete")));

    let hidden = addresses.iter().filter(|addr| !of_v6(addr));
    let ours = addresses.iter().map(|addr| route(addr, false));
    // The kernel's other route to such an address is left alone.
    let mut in_main = route("fd00:10:96::30a", true);
    in_main["table"] = json!("main");
    in_main["type"] = json!("unicast");
    let all: Vec<_> = hidden
        .map(|addr| route(addr, true))
        .chain(ours.clone())
        .chain([in_main])
        .collect();
    let standing = with_routes(&evidence, &all);
    assert_eq!(up(&standing).steps, []);
    let down = plan::routes_down(&NodeSnapshot::new(&standing), &Family::BOTH).unwrap();
    let commands = lines(&down);
    assert_eq!(commands.len(), addresses.len() + 2 * v6, "{commands:#?}");
    let none = plan::routes_down(&NodeSnapshot::new(&before), &Family::BOTH).unwrap();
    assert_eq!(none.steps, []);

    // The link is gone: routes to addresses of Services stay, the others are deleted.
    let mut gone = with_routes(
        &evidence,
        &ours.chain([route("10.96.77.7", false)]).collect::<Vec<_>>(),
    );
    let links = gone
        .text(Item::Addresses)
        .unwrap()
        .replace("kube-ipvs0", "other0");
    gone.insert(Item::Addresses, Ok(links));
    let stale = "ip route delete local 10.96.77.7/32 dev eth0 table local proto 107";
    assert_eq!(lines(&up(&gone)), [stale]);
}

#[test]
fn data_that_is_missing_is_reported() {
    let evidence = recorded("dual-ipvs");
    let mut evidence = with_routes(&evidence, &[]);
    let links = evidence.text(Item::Addresses).unwrap();
    let links = links.replace("fd00:10:0:2::15", "fd00:10:0:2::16");
    evidence.insert(Item::Addresses, Ok(links));
    let node = NodeSnapshot::new(&evidence);
    let served = plan::Served::of(node.desired(Mode::Ipvs).unwrap());
    let plan = plan::routes_up(&node, &served, &Family::BOTH).unwrap();
    assert!(
        lines(&plan)
            .iter()
            .all(|line| line.starts_with("ip route prepend"))
    );
    let [said] = plan.notes.as_slice() else {
        panic!("{:?}", plan.notes);
    };
    assert!(said.contains("over IPv6 use the"), "{said}");
    let unread = recorded("dual-ipvs");
    let mut unread = unread.clone();
    unread.insert(Item::Routes, Err(Gap::NotCollected(Item::Routes)));
    let ended = plan::routes_up(&NodeSnapshot::new(&unread), &served, &Family::BOTH);
    assert_eq!(ended, Err(Gap::NotCollected(Item::Routes)));
}
