//! Nodes on which Cilium serves Services with eBPF: recorded states of one node, as Cilium 1.20.0-pre left it.
//!
//! `healthy-cilium-replacement` is Cilium alone, `healthy-cilium-beside` is kube-proxy with a Cilium that does not replace it,
//! `kp17-cilium-beside` is both at once, and `cn13-orphaned-programs` is the first with the programs and maps of an agent that ended.

use kpx_judge::check::{self, Facts, Finding, Outcome, Severity};
use kpx_judge::plan;
use kpx_judge::redact::Redactor;
use kpx_judge::verdict::{Client, Fate, Surveyed, survey};
use kpx_node::backend::Mode;
use kpx_node::evidence::{self, Evidence, Gap, ITEMS, Item};
use kpx_node::net::Family;
use kpx_node::net::Proto;
use kpx_node::node::NodeSnapshot;
use kpx_node::node::bpf::{Proxy, Sought};
use kpx_node::owner::Owners;
use serde_json::{Value, json};

use crate::support::{kpx, root};

fn load(name: &str) -> Evidence {
    evidence::load(&root().join("testdata/nodes").join(name), ITEMS).unwrap()
}

/// Returns `node/bpf.json` after `edit`.
fn edited(evidence: &Evidence, edit: impl FnOnce(&mut Value)) -> Evidence {
    let mut value: Value = serde_json::from_str(evidence.text(Item::Bpf).unwrap()).unwrap();
    edit(&mut value);
    let mut evidence = evidence.clone();
    evidence.insert(Item::Bpf, Ok(value.to_string()));
    evidence
}

/// Returns the entries of the map with this layout.
fn entries<'v>(value: &'v mut Value, layout: &str) -> &'v mut Vec<Value> {
    let maps = value["maps"].as_array_mut().unwrap().iter_mut();
    let mut found = maps.filter_map(|map| {
        let content = map.get_mut("content")?;
        (content["layout"] == layout).then(|| content["entries"].as_array_mut().unwrap())
    });
    found.next().unwrap()
}

fn surveyed(evidence: &Evidence) -> Vec<Surveyed> {
    let node = NodeSnapshot::new(evidence);
    let owners = Owners::new(&node);
    survey(&node, owners.ports(), &Family::BOTH, None)
}

/// Returns the fate of each connection to `address` from a client, and why.
fn fates(evidence: &Evidence, address: &str, client: Client) -> Vec<(Fate, String)> {
    let all = surveyed(evidence);
    let cells = all.iter().flat_map(|port| &port.cells);
    let cells = cells.filter(|cell| cell.to.to_string() == address && cell.client == client);
    cells
        .map(|cell| {
            let why = cell
                .fault
                .as_ref()
                .map_or_else(String::new, ToString::to_string);
            (cell.fate, why)
        })
        .collect()
}

fn outcome(evidence: &Evidence, id: &str) -> Outcome {
    let node = NodeSnapshot::new(evidence);
    let facts = Facts::new(&node, None);
    let check = check::all().find(|check| check.id == id).unwrap();
    check::run(check, &facts)
}

/// Returns the messages of a check that fails.
fn messages(evidence: &Evidence, id: &str) -> Vec<String> {
    match outcome(evidence, id) {
        Outcome::Fail(findings) => findings
            .iter()
            .map(|finding| finding.message.clone())
            .collect(),
        other => panic!("{id}: {other:?}"),
    }
}

#[test]
fn the_proxy_that_serves_sockets_and_its_services_are_known() {
    for (name, serving, frontends) in [
        ("healthy-cilium-replacement", &[Proxy::Cilium][..], 19),
        ("kp17-cilium-beside", &[Proxy::Cilium], 19),
        // Cilium fills its maps without serving sockets, too.
        ("healthy-cilium-beside", &[], 13),
    ] {
        let evidence = load(name);
        let node = NodeSnapshot::new(&evidence);
        let bpf = node.bpf().unwrap();
        let found = node.ebpf().iter().filter(|ebpf| ebpf.serves == Ok(true));
        assert!(found.map(|ebpf| &ebpf.proxy).eq(serving), "{name}");
        let table = bpf.table(Proxy::Cilium, Family::V4).unwrap().unwrap();
        assert_eq!(table.frontends.len(), frontends, "{name}");
        assert!(
            table.frontends.iter().all(|frontend| frontend.missing == 0),
            "{name}"
        );
        assert!(bpf.table(Proxy::Calico, Family::V4).unwrap().is_none());
    }
}

#[tokio::test(flavor = "current_thread")]
async fn services_are_shown_with_what_the_map_has() {
    let from = root().join("testdata/nodes/healthy-cilium-replacement");
    let ran = kpx(&["--from", from.to_str().unwrap(), "show", "services"]).await;
    insta::assert_snapshot!("ebpf_services", ran.to_string());
    let from = root().join("testdata/nodes/cn13-orphaned-programs");
    let ran = kpx(&["--from", from.to_str().unwrap(), "show", "services"]).await;
    insta::assert_snapshot!("ebpf_stale_services", ran.to_string());
    let ran = kpx(&[
        "--from",
        from.to_str().unwrap(),
        "show",
        "services",
        "demo/np",
    ])
    .await;
    assert!(
        ran.out.contains("Cilium: NodePort 30080 (IPv4) → "),
        "{ran}"
    );
}

/// The entries of the map are reported; nothing works or fails because of a program whose code is not read.
#[test]
fn connections_are_judged_by_the_map_and_no_further() {
    let healthy = load("healthy-cilium-replacement");
    for of in surveyed(&healthy)
        .iter()
        .flat_map(|surveyed| &surveyed.cells)
    {
        assert_eq!(of.fate, Fate::Unknown, "{of:?}");
    }
    for (client, place) in [
        (Client::Host, "cil_sock4_conne (id "),
        (Client::Pod, "cil_sock4_conne (id "),
        (Client::Outside, "cil_from_netdev"),
    ] {
        for (fate, why) in fates(&healthy, "10.96.0.40:80", client) {
            assert_eq!(fate, Fate::Unknown, "{why}");
            assert!(why.contains(place), "{client:?}: {why}");
            let leads =
                "the map of Cilium leads 10.96.0.40:80 to 10.244.1.38:8080, 10.244.1.237:8080";
            assert!(why.contains(leads), "{client:?}: {why}");
        }
    }
    // Without a backend, connect() of the node's own processes fails at once.
    let without = edited(&healthy, |value| {
        let all = entries(value, "cilium-services");
        all.retain(|entry| entry["address"] != "10.96.0.40" || entry["slot"] == 0);
        let front = all
            .iter_mut()
            .find(|entry| entry["address"] == "10.96.0.40" && entry["port"] == 80);
        front.unwrap()["count"] = 0.into();
    });
    let all = fates(&without, "10.96.0.40:80", Client::Host);
    assert!(!all.is_empty());
    for (fate, why) in all {
        assert_eq!(fate, Fate::Refused, "{why}");
        assert!(why.contains("refuses connect() with EPERM"), "{why}");
    }
    for (fate, why) in fates(&without, "10.96.0.40:80", Client::Outside) {
        assert_eq!(fate, Fate::Unknown, "{why}");
        assert!(why.contains("has no backend for 10.96.0.40:80"), "{why}");
    }
    // Two programs, one after the other: the map of neither decides.
    let orphaned = load("cn13-orphaned-programs");
    for (fate, why) in fates(&orphaned, "10.96.0.20:80", Client::Host) {
        assert_eq!(fate, Fate::Unknown, "{why}");
        assert!(
            why.contains("2 programs run one after the other at connect()"),
            "{why}"
        );
    }
    // Backends of which none is an endpoint.
    let stale = edited(&healthy, |value| {
        for of in entries(value, "cilium-backends") {
            of["port"] = 9.into();
        }
    });
    for (fate, why) in fates(&stale, "10.96.0.20:80", Client::Host) {
        assert_eq!(fate, Fate::Lost, "{why}");
        assert!(why.contains("which is no endpoint of the Service"), "{why}");
    }
    // A program of other software at connect().
    let other = edited(&healthy, |value| {
        for of in value["programs"].as_array_mut().unwrap() {
            if of["name"] == "cil_sock4_conne" {
                of["name"] = "guard".into();
            }
        }
    });
    for (fate, why) in fates(&other, "10.96.0.20:80", Client::Host) {
        assert_eq!(fate, Fate::Unknown, "{why}");
        assert!(why.contains("program guard (id "), "{why}");
    }
}

/// Without the rights to read programs, everything stays unknown, with the reason.
#[test]
fn what_is_not_read_stays_unknown() {
    let mut evidence = load("healthy-cilium-replacement");
    let denied = Gap::Denied(Item::Bpf, "CAP_NET_ADMIN is required".to_owned());
    evidence.insert(Item::Bpf, Err(denied.clone()));
    for of in surveyed(&evidence)
        .iter()
        .flat_map(|surveyed| &surveyed.cells)
    {
        assert_eq!(of.fate, Fate::Unknown, "{of:?}");
    }
    for id in ["CN13", "CN14"] {
        match outcome(&evidence, id) {
            Outcome::Unknown(gap) => assert!(gap.to_string().contains("CAP_NET_ADMIN"), "{gap}"),
            other => panic!("{id}: {other:?}"),
        }
    }
    // Each part of it is known, or not.
    let part = edited(&load("healthy-cilium-replacement"), |value| {
        value["maps"] = serde_json::json!({ "unread": denied });
    });
    let node = NodeSnapshot::new(&part);
    assert!(node.bpf().unwrap().tables().is_err() && node.bpf().unwrap().cgroups().is_ok());
    assert!(matches!(outcome(&part, "CN14"), Outcome::Unknown(_)));
    assert!(matches!(outcome(&part, "CN13"), Outcome::Pass));
}

#[test]
fn healthy_nodes_stay_quiet_and_faults_are_found() {
    for name in ["healthy-cilium-replacement", "healthy-cilium-beside"] {
        let evidence = load(name);
        for id in ["CN04", "CN13", "CN14", "KP17"] {
            let outcome = outcome(&evidence, id);
            assert!(
                matches!(outcome, Outcome::Pass | Outcome::Skip(_)),
                "{name} {id}: {outcome:?}"
            );
        }
    }
    let both = load("kp17-cilium-beside");
    assert_eq!(
        messages(&both, "KP17"),
        ["another service proxy runs next to kube-proxy"]
    );
    let orphaned = load("cn13-orphaned-programs");
    let found = messages(&orphaned, "CN13");
    assert!(found[0].ends_with("its agent does not run"), "{found:?}");
    assert!(found[1].contains("run one after the other"), "{found:?}");
    assert_eq!(found.len(), 2);
    let found = messages(&orphaned, "CN14");
    let has = |text: &str| {
        found
            .iter()
            .filter(|message| message.contains(text))
            .count()
    };
    assert!(has("has no front end for 10.96.0.40:80") == 1, "{found:?}");
    assert!(
        has("to 10.244.1.99:8080, which no endpoint has") > 1,
        "{found:?}"
    );
    assert!(has("does not lead") > 1, "{found:?}");
}

#[test]
fn redacted_programs_and_maps_are_judged_the_same() {
    for name in ["healthy-cilium-replacement", "cn13-orphaned-programs"] {
        let before = load(name);
        let after = Redactor::new([7; 32], &before).evidence(&before);
        let text = after.text(Item::Bpf).unwrap();
        for secret in [
            "10.96.0.",
            "10.244.1.",
            "172.31.9.",
            "203.0.113.5",
            "198.51.100",
        ] {
            assert!(!text.contains(secret), "{name}: {secret}");
        }
        let fates = |evidence: &Evidence| {
            let all = surveyed(evidence);
            let mut fates: Vec<Fate> = all
                .iter()
                .flat_map(|port| &port.cells)
                .map(|cell| cell.fate)
                .collect();
            fates.sort_unstable();
            fates
        };
        assert_eq!(fates(&before), fates(&after), "{name}");
        let kinds = |evidence: &Evidence| {
            ["CN13", "CN14", "KP17"].map(|id| match outcome(evidence, id) {
                Outcome::Fail(found) => found.len(),
                _ => 0,
            })
        };
        assert_eq!(kinds(&before), kinds(&after), "{name}");
    }
}

/// Returns `evidence` with exactly these processes.
fn running(evidence: &Evidence, names: &[&str]) -> Evidence {
    let of = |name: &&str| json!({"pid": 800, "name": name, "args": [name], "sameNetwork": true});
    let all: Vec<Value> = names.iter().map(of).collect();
    let mut evidence = evidence.clone();
    let text = json!({ "processes": all }).to_string();
    evidence.insert(Item::Processes, Ok(text));
    // Pods would show the same.
    evidence.insert(Item::Pods, Err(Gap::NotCollected(Item::Pods)));
    evidence
}

/// Returns the item after `edit`.
fn changed(evidence: &Evidence, item: Item, edit: impl FnOnce(&mut Value)) -> Evidence {
    let mut value: Value = serde_json::from_str(evidence.text(item).unwrap()).unwrap();
    edit(&mut value);
    let mut evidence = evidence.clone();
    evidence.insert(item, Ok(value.to_string()));
    evidence
}

fn findings(evidence: &Evidence, id: &str) -> Vec<Finding> {
    match outcome(evidence, id) {
        Outcome::Fail(found) => found,
        other => panic!("{id}: {other:?}"),
    }
}

fn is_quiet(outcome: &Outcome) -> bool {
    matches!(outcome, Outcome::Pass | Outcome::Skip(_))
}

/// Returns a node on which Calico serves without programs at `connect()`: by its programs at links with these names, and by maps with
/// the front ends of `addresses`.
fn calico(links: &[&str], addresses: &[&str]) -> Evidence {
    let mut evidence = running(&load("healthy-cilium-replacement"), &["calico-node"]);
    let filter = |dev: &&str, hook: &str, id: u32| {
        json!({"dev": dev, "hook": hook, "filters": [{"protocol": "all", "pref": 1, "kind": "bpf", "chain": 0,
            "options": {"bpf_name": "cali_tc_preambl", "prog": {"id": id, "name": "cali_tc_preambl"}}}]})
    };
    let filters: Vec<Value> = links
        .iter()
        .flat_map(|dev| [filter(dev, "ingress", 110), filter(dev, "egress", 111)])
        .collect();
    let tc = json!({"qdiscs": [], "filters": filters}).to_string();
    evidence.insert(Item::Tc, Ok(tc));
    let program = |id: u32| json!({"id": id, "type": "sched_cls", "name": "cali_tc_preambl", "tag": "01", "uid": 0, "maps": [200, 201]});
    let front = |address: &&str| json!({"address": address, "port": 80, "protocol": "tcp", "id": 1, "count": 1, "local": 1, "affinity": 0, "flags": 0});
    let fronts: Vec<Value> = addresses.iter().map(front).collect();
    let map = |id: u32, name: &str, content: Value| json!({"id": id, "type": "hash", "name": name, "keySize": 16, "valueSize": 20, "maxEntries": 9, "content": content});
    let dump = json!({
        "cgroups": [], "links": [], "pins": [],
        "programs": [program(110), program(111)],
        "maps": [
            map(200, "cali_v4_nat_fe3", json!({"layout": "calico-frontends", "entries": fronts})),
            map(201, "cali_v4_nat_be", json!({"layout": "calico-backends", "entries": [
                {"id": 1, "ordinal": 0, "address": "10.244.1.38", "port": 8080}]})),
        ],
    });
    evidence.insert(Item::Bpf, Ok(dump.to_string()));
    let evidence = changed(&evidence, Item::Links, |value| {
        for (index, name) in [(90, "bpfin.cali"), (91, "bpfout.cali")] {
            let link = json!({"ifindex": index, "ifname": name, "flags": ["UP", "LOWER_UP"], "mtu": 1500,
                "operstate": "UP", "link_type": "ether", "linkinfo": {"info_kind": "veth"}});
            value.as_array_mut().unwrap().push(link);
        }
        let all = value.as_array_mut().unwrap();
        all.retain(|link| link["ifname"] != "cilium_host");
    });
    changed(&evidence, Item::Routes, |value| {
        for address in addresses {
            let route = json!({"dst": address, "dev": "bpfin.cali", "scope": "link", "flags": []});
            value.as_array_mut().unwrap().push(route);
        }
    })
}

/// A network plugin that only runs is no reason to remove the rules that serve.
#[test]
fn a_plugin_that_does_not_serve_leaves_the_rules_in_use() {
    let beside = load("healthy-cilium-beside");
    let alone = running(&beside, &["cilium-agent"]);
    let only_link = edited(&running(&beside, &[]), |value| {
        for part in ["cgroups", "links", "programs", "maps", "pins"] {
            value[part] = json!([]);
        }
    });
    for evidence in [alone, only_link] {
        let node = NodeSnapshot::new(&evidence);
        assert_eq!(node.served_by_ebpf(), Ok(None));
        assert!(is_quiet(&outcome(&evidence, "CN04")));
        assert!(messages(&evidence, "MX04")[0].contains("no kube-proxy runs"));
        let serving = node.modes().observed().unwrap();
        assert!(plan::cleanup(&node, serving, &Family::BOTH, false).is_err());
    }
}

/// Objects that nothing updates are removed; kube-proxy stays.
#[test]
fn programs_without_an_agent_are_no_second_proxy() {
    let both = load("kp17-cilium-beside");
    let left = running(&both, &["kube-proxy"]);
    assert!(is_quiet(&outcome(&left, "KP17")));
    let found = findings(&left, "CN13");
    assert_eq!(found.len(), 1);
    assert!(
        format!("{found:?}").contains("kube-proxy serves beside them"),
        "{found:?}"
    );
    assert!(
        format!("{:?}", found[0].fix).contains("kube-proxy serves alone"),
        "{found:?}"
    );
    // Calico's agent runs without eBPF, too: then it does not update programs at connect().
    let calico = edited(&running(&both, &["kube-proxy", "calico-node"]), |value| {
        value["links"] = json!([]);
        for of in value["programs"].as_array_mut().unwrap() {
            let name = if of["name"] == "cil_sock4_conne" {
                "calico_connect_"
            } else {
                "other"
            };
            of["name"] = name.into();
        }
        value["pins"] = json!([]);
    });
    let calico = changed(&calico, Item::Links, |value| {
        value
            .as_array_mut()
            .unwrap()
            .retain(|item| item["ifname"] != "cilium_host");
    });
    let mut calico = calico;
    calico.insert(
        Item::Tc,
        Ok(json!({"qdiscs": [], "filters": []}).to_string()),
    );
    assert!(is_quiet(&outcome(&calico, "KP17")));
    assert!(messages(&calico, "CN13")[0].contains("of Calico"));
}

#[test]
fn addresses_of_the_ipvs_mode_are_left_over_and_can_be_removed() {
    let healthy = load("healthy-cilium-replacement");
    let left = changed(&healthy, Item::Addresses, |value| {
        let address = |local: &str| json!({"family": "inet", "local": local, "prefixlen": 32, "scope": "global"});
        let link = json!({"ifindex": 77, "ifname": "kube-ipvs0", "flags": ["BROADCAST", "NOARP"],
            "addr_info": [address("10.96.0.1"), address("10.96.0.40")]});
        value.as_array_mut().unwrap().push(link);
    });
    let left = changed(&left, Item::Links, |value| {
        let link = json!({"ifindex": 77, "ifname": "kube-ipvs0", "flags": ["BROADCAST", "NOARP"], "mtu": 1500,
            "operstate": "DOWN", "link_type": "ether", "linkinfo": {"info_kind": "dummy"}});
        value.as_array_mut().unwrap().push(link);
    });
    let mut left = left;
    for item in [Item::Ipvs, Item::IpvsSave] {
        left.insert(
            item,
            Err(Gap::Absent(
                item,
                "the module ip_vs is not loaded".to_owned(),
            )),
        );
    }
    let found = findings(&left, "CN04");
    let ipvs = found
        .iter()
        .find(|finding| finding.message.contains("mode ipvs"))
        .unwrap();
    assert_eq!(ipvs.severity, Severity::Error);
    assert!(
        ipvs.message
            .ends_with("2 addresses of Services are the node's own"),
        "{ipvs:?}"
    );
    let node = NodeSnapshot::new(&left);
    let plan = plan::cleanup(&node, Mode::Ipvs, &Family::BOTH, false).unwrap();
    assert!(!plan.steps.is_empty());
}

/// Cilium before 1.17 does not write protocols.
#[test]
fn entries_without_a_protocol_serve_all() {
    let old = edited(&load("healthy-cilium-replacement"), |value| {
        for layout in ["cilium-services", "cilium-backends"] {
            for of in entries(value, layout) {
                of["protocol"] = "0".into();
            }
        }
    });
    assert!(
        is_quiet(&outcome(&old, "CN14")),
        "{:?}",
        outcome(&old, "CN14")
    );
    for of in surveyed(&old).iter().flat_map(|surveyed| &surveyed.cells) {
        assert_eq!(of.fate, Fate::Unknown, "{of:?}");
    }
}

#[test]
fn a_local_redirect_leads_to_pods_that_are_no_endpoints() {
    const LOCAL_REDIRECT: u64 = 1 << 8;
    let redirected = edited(&load("healthy-cilium-replacement"), |value| {
        let all = entries(value, "cilium-services").iter_mut();
        for of in all.filter(|entry| entry["address"] == "10.96.0.20" && entry["slot"] == 0) {
            of["flags"] = LOCAL_REDIRECT.into();
        }
        for of in entries(value, "cilium-backends") {
            of["port"] = 9.into();
        }
    });
    for (fate, why) in fates(&redirected, "10.96.0.20:80", Client::Host) {
        assert_eq!(fate, Fate::Unknown, "{why}");
        assert!(why.contains("a CiliumLocalRedirectPolicy"), "{why}");
    }
    let found = messages(&redirected, "CN14");
    assert!(
        !found.iter().any(|message| message.contains("demo/sticky")),
        "{found:?}"
    );
}

/// Where programs were not read and something hints at a proxy, no connection is lost.
#[test]
fn without_its_programs_a_node_of_such_a_proxy_is_unknown() {
    let healthy = load("healthy-cilium-replacement");
    let mut none = healthy.clone();
    none.insert(Item::Bpf, Err(Gap::NotCollected(Item::Bpf)));
    let unnamed = edited(&healthy, |value| {
        let denied = Gap::Denied(Item::Bpf, "CAP_SYS_ADMIN is required".to_owned());
        value["programs"] = json!({ "unread": denied });
        value["maps"] = json!({ "unread": denied });
        value["cgroups"] = json!([]);
    });
    let mut calico = calico(&["eth0"], &[]);
    let denied = Gap::Denied(Item::Bpf, "CAP_NET_ADMIN is required".to_owned());
    calico.insert(Item::Bpf, Err(denied));
    for evidence in [none, unnamed, calico] {
        let all = surveyed(&evidence);
        assert!(!all.is_empty());
        for of in all.iter().flat_map(|port| &port.cells) {
            assert!(!of.fate.fails(), "{of:?}");
        }
        assert!(matches!(outcome(&evidence, "CN14"), Outcome::Unknown(_)));
    }
}

#[test]
fn calico_serves_at_links_without_programs_at_connect() {
    let links = ["lo", "bpfout.cali", "eth0"];
    let addresses = ["10.96.0.20", "10.96.0.30", "10.96.0.40"];
    let healthy = calico(&links, &addresses);
    let node = NodeSnapshot::new(&healthy);
    assert_eq!(node.served_by_ebpf(), Ok(Some(Proxy::Calico)));
    for address in addresses {
        for (fate, why) in fates(&healthy, &format!("{address}:80"), Client::Host) {
            assert_eq!(fate, Fate::Unknown, "{address}: {why}");
            assert!(why.contains("the map of Calico leads"), "{why}");
        }
    }
    // A Service that is missing in its map, kube-proxy beside it, and its programs without it.
    let missing = calico(&links, &addresses[..2]);
    let found = messages(&missing, "CN14");
    assert!(
        found
            .iter()
            .any(|message| message.contains("no front end for 10.96.0.40:80")),
        "{found:?}"
    );
    let both = running(&healthy, &["calico-node", "kube-proxy"]);
    assert!(format!("{:?}", findings(&both, "KP17")).contains("deletes kube-proxy's rules"));
    let dead = running(&healthy, &[]);
    assert!(messages(&dead, "CN13")[0].contains("6 programs of Calico"));
}

/// Filters, XDP programs and files in bpffs without an agent.
#[test]
fn what_an_agent_left_at_links_and_in_bpffs_is_found() {
    let beside = running(&load("kp17-cilium-beside"), &["kube-proxy"]);
    let none = edited(&beside, |value| {
        for part in ["cgroups", "links", "programs", "maps", "pins"] {
            value[part] = json!([]);
        }
    });
    assert!(
        is_quiet(&outcome(&none, "CN13")),
        "{:?}",
        outcome(&none, "CN13")
    );
    let mut clsact = none.clone();
    let filter = json!({"protocol": "all", "pref": 1, "kind": "bpf", "chain": 0,
        "options": {"bpf_name": "cil_from_netdev", "prog": {"id": 1137, "name": "cil_from_netdev"}}});
    let tc =
        json!({"qdiscs": [], "filters": [{"dev": "eth0", "hook": "ingress", "filters": [filter]}]});
    clsact.insert(Item::Tc, Ok(tc.to_string()));
    let found = messages(&clsact, "CN13");
    assert!(
        found[0].starts_with("1 program of Cilium translates"),
        "{found:?}"
    );
    let xdp = changed(&none, Item::Links, |value| {
        let mut all = value.as_array_mut().unwrap().iter_mut();
        let eth0 = all.find(|link| link["ifname"] == "eth0").unwrap();
        eth0["xdp"] = json!({"mode": 1, "prog": {"id": 7, "name": "cil_xdp_entry"}});
    });
    assert!(messages(&xdp, "CN13")[0].contains("1 program of Cilium"));
    let pinned = edited(&none, |value| {
        value["pins"] = json!([
            "/sys/fs/bpf/tc/globals/cilium_lb4_services_v2",
            "/sys/fs/bpf/other"
        ]);
    });
    let found = findings(&pinned, "CN13");
    assert_eq!(found[0].severity, Severity::Warning);
    assert!(
        found[0].message.starts_with("1 file of Cilium in bpffs"),
        "{found:?}"
    );
}

/// Clients outside get what the map has for them.
#[test]
fn clients_outside_get_their_own_front_end() {
    let healthy = load("healthy-cilium-replacement");
    let sought = |address: &str, port, outside| Sought {
        address: address.parse().unwrap(),
        port,
        proto: Proto::Tcp,
        own: true,
        outside,
        client: None,
    };
    let table_of = |evidence: &Evidence, sought: &Sought| {
        let node = NodeSnapshot::new(evidence);
        let bpf = node.bpf().unwrap();
        let table = bpf.table(Proxy::Cilium, Family::V4).unwrap().unwrap();
        table
            .lookup(sought)
            .map(|lookup| (lookup.active().count(), lookup.drops))
    };
    // Only the entry for any address of the node is left: programs at links do not look it up.
    let without = edited(&healthy, |value| {
        entries(value, "cilium-services")
            .retain(|entry| entry["address"] != "172.31.9.1" || entry["port"] != 30081);
    });
    assert_eq!(
        table_of(&without, &sought("172.31.9.1", 30081, false)),
        Some((2, false))
    );
    assert_eq!(table_of(&without, &sought("172.31.9.1", 30081, true)), None);
    let found = messages(&without, "CN14");
    assert!(
        found
            .iter()
            .any(|message| message.contains("no front end for 172.31.9.1:30081")),
        "{found:?}"
    );
    // An entry with port 0 drops packets to all other ports.
    assert_eq!(
        table_of(&healthy, &sought("10.96.0.40", 81, true)),
        Some((0, true))
    );
    assert_eq!(table_of(&healthy, &sought("10.96.0.40", 81, false)), None);
    // Of two scopes, that for clients outside has no backend.
    let local = edited(&healthy, |value| {
        let all = entries(value, "cilium-services");
        let at = |of: &Value| of["address"] == "10.96.0.40" && of["port"] == 80;
        let inside: Vec<Value> = all.iter().filter(|entry| at(entry)).cloned().collect();
        all.retain(|entry| !at(entry) || entry["slot"] == 0);
        for of in all.iter_mut().filter(|entry| at(entry)) {
            of["count"] = 0.into();
        }
        all.extend(inside.into_iter().map(|mut of| {
            of["internal"] = true.into();
            of
        }));
    });
    for (fate, why) in fates(&local, "10.96.0.40:80", Client::Outside) {
        assert_eq!(fate, Fate::Unknown, "{why}");
        assert!(
            why.contains("no backend for 10.96.0.40:80 for clients outside"),
            "{why}"
        );
    }
    for (_, why) in fates(&local, "10.96.0.40:80", Client::Host) {
        assert!(
            why.contains("leads 10.96.0.40:80 to 10.244.1.38:8080"),
            "{why}"
        );
    }
    // A source range without the client.
    let ranged = edited(&healthy, |value| {
        let all = entries(value, "cilium-services").iter_mut();
        for of in all.filter(|entry| entry["address"] == "10.96.0.40" && entry["port"] == 80) {
            of["flags"] = (of["flags"].as_u64().unwrap() | 1 << 7).into();
            of["reverseNat"] = 99.into();
        }
        let map = json!({"id": 9999, "type": "lpm_trie", "name": "cilium_lb4_sour", "keySize": 12, "valueSize": 1,
            "maxEntries": 9, "content": {"layout": "cilium-source-ranges", "entries": [{"reverseNat": 99, "source": "198.18.0.0/24"}]}});
        let maps = value["maps"].as_array_mut().unwrap();
        maps.retain(|map| map["name"] != "cilium_lb4_sour");
        maps.push(map);
    });
    for (_, why) in fates(&ranged, "10.96.0.40:80", Client::Outside) {
        assert!(why.contains("its source ranges"), "{why}");
    }
}

#[test]
fn backends_are_those_from_which_a_program_chooses() {
    let healthy = load("healthy-cilium-replacement");
    // Only terminating ones are used.
    let terminating = edited(&healthy, |value| {
        for of in entries(value, "cilium-backends") {
            of["state"] = 1.into();
        }
    });
    for (_, why) in fates(&terminating, "10.96.0.40:80", Client::Host) {
        assert!(
            why.contains("leads 10.96.0.40:80 to 10.244.1.38:8080"),
            "{why}"
        );
    }
    // Without a layout that kpx knows, nothing is known of backends; an unread map that is not used is no gap.
    let unknown = edited(&healthy, |value| {
        for map in value["maps"].as_array_mut().unwrap() {
            if map["content"]["layout"] == "cilium-backends" {
                map["valueSize"] = 8.into();
                map.as_object_mut().unwrap().remove("content");
            }
        }
    });
    match outcome(&unknown, "CN14") {
        Outcome::Unknown(gap) => assert!(
            gap.to_string().contains("does not know the layout"),
            "{gap}"
        ),
        other => panic!("{other:?}"),
    }
    let affinity = edited(&healthy, |value| {
        for map in value["maps"].as_array_mut().unwrap() {
            if map["content"]["layout"] == "cilium-affinity" {
                map.as_object_mut().unwrap().remove("content");
                map["unread"] = json!(Gap::Denied(Item::Bpf, "made up".to_owned()));
            }
        }
    });
    assert!(is_quiet(&outcome(&affinity, "CN14")));
}

#[test]
fn services_that_the_proxy_leaves_alone_are_no_fault() {
    let without = edited(&load("healthy-cilium-replacement"), |value| {
        entries(value, "cilium-services").retain(|entry| entry["address"] != "10.96.0.20");
    });
    assert!(!is_quiet(&outcome(&without, "CN14")));
    for key in [
        "projectcalico.org/natExcludeService",
        "io.cilium/global-service",
    ] {
        let left = changed(&without, Item::Services, |value| {
            let mut all = value["items"].as_array_mut().unwrap().iter_mut();
            let of = all
                .find(|service| service["metadata"]["name"] == "sticky")
                .unwrap();
            of["metadata"]["annotations"] = json!({ key: "true" });
        });
        assert!(is_quiet(&outcome(&left, "CN14")), "{key}");
    }
}
