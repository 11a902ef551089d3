//! Plans that evict pods, clean up after a mode, and load the bridge, from recordings that were changed.

use std::net::IpAddr;
use std::time::Duration;

use kpx_judge::bridge::{self, Lease};
use kpx_judge::plan::{
    self, Consent, Plan, Refusal, Served, Undo, bridge_up, cleanup, evicted_addresses,
    evicted_count,
};
use kpx_node::action::{Action, OURS};
use kpx_node::backend::Mode;
use kpx_node::evidence::{Evidence, Gap, ITEMS, Item, load};
use kpx_node::net::Family;
use kpx_node::node::NodeSnapshot;
use serde_json::{Value, json};

use crate::support::{root, without};

fn evidence(name: &str) -> Evidence {
    load(&root().join("testdata/nodes").join(name), ITEMS).unwrap()
}

/// Changes the text of `item` in `evidence`.
fn edit(evidence: &mut Evidence, item: Item, change: impl Fn(&str) -> String) {
    let text = change(evidence.text(item).unwrap());
    evidence.insert(item, Ok(text));
}

fn titles(plan: &Plan) -> Vec<&str> {
    plan.steps.iter().map(|step| step.title.as_str()).collect()
}

#[test]
fn the_pods_that_leave_are_counted_with_their_addresses() {
    let pod = |namespace: &str, name: &str, node: &str, label: (&str, &str), host: bool| {
        json!({
            "metadata": {
                "namespace": namespace, "name": name, "uid": name, "labels": {(label.0): label.1},
                "ownerReferences": [{"kind": "ReplicaSet", "name": "owner", "controller": true}],
            },
            "spec": {"nodeName": node, "hostNetwork": host},
            "status": {"phase": "Running", "podIPs": [{"ip": format!("10.244.1.{}", name.len())}]},
        })
    };
    let app = ("app", "web");
    let pods = json!({"items": [
        pod("shop", "w", "node1", app, false),
        pod("shop", "of-host", "node1", app, true),
        pod("shop", "far", "node2", app, false),
        pod("kube-system", "dn", "node1", app, false),
        pod("shop", "their", "node1", OURS, false),
        pod("kube-system", "helper", "node1", OURS, false),
    ]});
    let mut evidence = Evidence::default();
    evidence.insert(Item::Pods, Ok(pods.to_string()));
    let node = NodeSnapshot::new(&evidence).called(Some("node1"));
    let plan = plan::evict(&node, Consent::default(), &[]).unwrap();
    assert_eq!(
        titles(&plan),
        [
            "evict pod kube-system/dn of ReplicaSet owner",
            "evict pod shop/of-host of ReplicaSet owner",
            "evict pod shop/their of ReplicaSet owner",
            "evict pod shop/w of ReplicaSet owner",
        ]
    );
    assert_eq!(evicted_count(&node), Ok(4));
    let addresses = evicted_addresses(&node).unwrap();
    let want = ["10.244.1.1", "10.244.1.2", "10.244.1.5"];
    assert_eq!(addresses, want.map(|addr| addr.parse::<IpAddr>().unwrap()));
}

#[test]
fn the_mode_that_serves_the_node_is_not_cleaned_up() {
    let mut evidence = evidence("seed-iptables");
    let refused = |evidence: &Evidence, mode: Mode| {
        let plan = cleanup(&NodeSnapshot::new(evidence), mode, &Family::BOTH, false);
        match plan {
            Ok(_) => None,
            Err(Refusal::Serves { how, .. }) => Some(how),
            Err(Refusal::Unknown(gap)) => panic!("{gap}"),
        }
    };
    for (missing, how) in [
        (&[][..], "kube-proxy reports it"),
        (&[Item::ProxyMode], "its rules lead packets to Services"),
        (
            &[Item::Iptables4, Item::Iptables6, Item::Nft],
            "kube-proxy is configured for it",
        ),
    ] {
        for &item in missing {
            let none = match item {
                Item::Nft => "{\"nftables\": []}",
                _ => "",
            };
            evidence.insert(item, Ok(none.to_owned()));
        }
        assert_eq!(refused(&evidence, Mode::Iptables), Some(how));
        assert_eq!(refused(&evidence, Mode::Userspace), None, "{how}");
    }
}

#[test]
fn a_clean_up_needs_the_rules_of_ipv4() {
    let evidence = evidence("leftover-iptables-to-nftables");
    let cleaned = |item| {
        let mut evidence = evidence.clone();
        evidence.insert(item, Err(Gap::NotCollected(item)));
        let node = NodeSnapshot::new(&evidence);
        cleanup(&node, Mode::Iptables, &Family::BOTH, false)
    };
    let unknown = cleaned(Item::Iptables4).unwrap_err();
    assert_eq!(
        unknown.to_string(),
        "node/iptables-save.txt was not collected"
    );
    let plan = cleaned(Item::Iptables6).unwrap();
    assert!(
        titles(&plan).iter().all(|title| !title.contains("IPv6")),
        "{plan:?}"
    );
}

#[test]
fn packets_to_localhost_stay_blocked_while_the_firewall_chain_is_deleted() {
    const LOCALNET: &str = "set net.ipv4.conf.all.route_localnet to 0, which is unsafe without the rule that the next step deletes";
    let [v4, v6] = ["IPv4", "IPv6"]
        .map(|family| format!("{family} table filter: delete 1 chain, delete 2 rules"));
    let cleaned = |change: &dyn Fn(&mut Evidence)| {
        let mut evidence = evidence("leftover-iptables-to-nftables");
        change(&mut evidence);
        let node = NodeSnapshot::new(&evidence);
        cleanup(&node, Mode::Iptables, &Family::BOTH, false).unwrap()
    };
    let plan = cleaned(&|_| {});
    assert_eq!(titles(&plan), [LOCALNET, &v4, &v6]);
    assert_eq!(plan.notes, [""; 0]);
    let off = cleaned(&|evidence| {
        edit(evidence, Item::Sysctl, |text| {
            text.replace("conf.all.route_localnet = 1", "conf.all.route_localnet = 0")
        });
    });
    assert_eq!(titles(&off), [&v4, &v6]);
    let of_kubelet = cleaned(&|evidence| {
        edit(evidence, Item::Iptables4, |text| {
            text.replacen("*mangle\n", "*mangle\n:KUBE-KUBELET-CANARY - [0:0]\n", 1)
        });
    });
    assert_eq!(titles(&of_kubelet), [&v6]);
    assert_eq!(
        of_kubelet.notes,
        ["IPv4: chain KUBE-FIREWALL is kept: the kubelet on this node also writes it"]
    );
}

#[test]
fn the_canaries_of_mode_iptables_are_deleted_with_it() {
    let evidence = evidence("seed-leftover-iptables-to-ipvs");
    let node = NodeSnapshot::new(&evidence);
    let plan = cleanup(&node, Mode::Iptables, &[Family::V4], false).unwrap();
    for table in ["mangle", "nat", "filter"] {
        let head = format!("IPv4 table {table}: ");
        let step = plan.steps.iter().find(|step| step.title.starts_with(&head));
        let action = step.unwrap().action.to_string();
        assert!(action.contains("\n-X KUBE-PROXY-CANARY\n"), "{action}");
    }
}

#[test]
fn a_clean_up_counts_the_connections_that_break() {
    let real = |active: u32| {
        json!({
            "address": format!("10.244.1.{}", active + 1), "port": 80, "weight": 1, "forwarding": "masq",
            "upper": 0, "lower": 0, "active": active, "inactive": 5,
        })
    };
    let server = |address: &str, reals: &[Value]| {
        json!({
            "family": "IPv4", "protocol": "tcp", "address": address, "port": 80, "scheduler": "rr", "prefix": 32,
            "destinations": reals,
        })
    };
    for (active, notes) in [
        (
            [3, 0, 4],
            &[
                "7 connections use these virtual servers and break when they are deleted; see `ipvsadm -Lnc`",
            ][..],
        ),
        (
            [1, 0, 0],
            &[
                "1 connection uses these virtual servers and breaks when they are deleted; see `ipvsadm -Lnc`",
            ],
        ),
        ([0, 0, 0], &[]),
    ] {
        let mut evidence = evidence("leftover-ipvs-to-iptables");
        let [a, b, c] = active.map(real);
        let table =
            json!({"services": [server("203.0.113.10", &[a, b]), server("203.0.113.11", &[c])]});
        evidence.insert(Item::Ipvs, Ok(table.to_string()));
        let node = NodeSnapshot::new(&evidence);
        let plan = cleanup(&node, Mode::Ipvs, &[Family::V4], false).unwrap();
        assert!(
            titles(&plan).contains(&"delete 2 virtual servers"),
            "{plan:?}"
        );
        let found: Vec<_> = plan
            .notes
            .iter()
            .filter(|note| note.contains("connection"))
            .collect();
        assert_eq!(found, notes);
    }
}

fn lease() -> Lease {
    Lease::of(Duration::from_secs(60))
}

/// Adds the tables of a loaded bridge for `families`, kept by a process, to `evidence`; returns what loads them again.
fn load_bridge(evidence: &mut Evidence, families: &[Family]) -> String {
    let text = |lease: &Lease| {
        let node = NodeSnapshot::new(evidence);
        let state = node.desired(Mode::Iptables).unwrap();
        let marks = bridge::marks(&node, state).unwrap();
        bridge::text(&bridge::tables(state, families, marks, lease).unwrap())
    };
    let (kept, again) = (text(&lease().kept_by("kpx, pid 7")), text(&lease()));
    assert!(kept.contains("kpx, pid 7"), "{kept}");
    let listed = without(&without(&kept, "add table"), "delete table");
    evidence.insert(Item::Nft, Err(Gap::NotCollected(Item::Nft)));
    evidence.insert(Item::NftText, Ok(listed));
    again
}

#[test]
fn the_undo_of_a_bridge_restores_the_loaded_one() {
    let [v4, v6] = ["ip", "ip6"].map(|family| format!("delete table {family} kpx-bridge\n"));
    for (loaded, verb, deleted) in [
        (&[][..], "load", &*format!("{v4}{v6}")),
        (&[Family::V4], "replace", &*v6),
        (&Family::BOTH, "replace", ""),
    ] {
        let mut evidence = evidence("dual-iptables");
        let mut undo = String::new();
        if !loaded.is_empty() {
            undo = load_bridge(&mut evidence, loaded);
        }
        undo.push_str(deleted);
        let node = NodeSnapshot::new(&evidence);
        let plan = bridge_up(&node, Mode::Iptables, &Family::BOTH, &lease()).unwrap();
        let [step] = plan.steps.as_slice() else {
            panic!("{plan:?}");
        };
        assert!(
            step.title.starts_with(&format!("{verb} the bridge for ")),
            "{}",
            step.title
        );
        assert_eq!(step.undo, Undo::Do(Action::Nft { input: undo }));
    }
}

#[test]
fn a_bridge_is_proved_for_the_addresses_that_serve_node_ports() {
    for (name, mode, addresses) in [
        ("dual-iptables", Mode::Iptables, "[]"),
        ("dual-nftables", Mode::Nftables, "[]"),
        ("dual-nftables", Mode::Nftables, "[192.0.2.0/24]"),
        ("dual-ipvs", Mode::Ipvs, "[10.0.2.0/24]"),
    ] {
        let mut evidence = evidence(name);
        edit(&mut evidence, Item::Addresses, |text| {
            let mut links: Value = serde_json::from_str(text).unwrap();
            let more = json!({"family": "inet", "local": "192.0.2.200", "prefixlen": 24, "scope": "global"});
            links[1]["addr_info"].as_array_mut().unwrap().push(more);
            links.to_string()
        });
        edit(&mut evidence, Item::ProxyConfig, |text| {
            format!("{text}\nnodePortAddresses: {addresses}\n")
        });
        let node = NodeSnapshot::new(&evidence);
        let plan = bridge_up(&node, mode, &Family::BOTH, &lease()).unwrap();
        let unproved: Vec<_> = plan.notes.iter().collect();
        assert_eq!(unproved, [""; 0], "{name} {addresses}");
    }
}

#[test]
#[ignore = "takes long: make test-loops"]
fn a_bridge_of_many_ports_or_among_many_rules_is_not_proved() {
    let mut large = evidence("scale-2000x10-iptables");
    large.insert(Item::Nft, Ok(r#"{"nftables": []}"#.to_owned()));
    large.insert(Item::Routes, Ok("[]".to_owned()));
    let mut crowded = evidence("seed-iptables");
    edit(&mut crowded, Item::Iptables4, |text| {
        let sources = (0..1000_u16).map(|number| {
            let [high, low] = number.to_be_bytes();
            format!("-A PREROUTING -s 198.18.{high}.{low}/32 -j ACCEPT\n")
        });
        let rules: String = sources.collect();
        text.replacen("COMMIT", &format!("{rules}COMMIT"), 1)
    });
    for (evidence, why) in [
        (
            large,
            "with more than 200 ports of Services that would take long",
        ),
        (
            crowded,
            "the rules divide packets of IPv4 into more than 20000 classes",
        ),
    ] {
        let node = NodeSnapshot::new(&evidence);
        let plan = bridge_up(&node, Mode::Iptables, &Family::BOTH, &lease()).unwrap();
        let expected = format!(
            "not proved that the bridge sends every packet where mode iptables would: {why}"
        );
        assert!(plan.notes.contains(&expected), "{why}: {:?}", plan.notes);
    }
}

/// Evidence of mode ipvs with these routes of the table local.
fn with_routes(routes: &[Value]) -> Evidence {
    let mut evidence = evidence("dual-ipvs");
    evidence.insert(Item::Routes, Ok(Value::from(routes).to_string()));
    evidence
}

#[test]
fn a_title_tells_which_routes_change() {
    let route = |addr: &str, table: &str| {
        json!({
            "type": "local", "dst": addr, "dev": "eth0", "table": table, "protocol": "107", "prefsrc": "10.0.2.15",
        })
    };
    let title = |routes: &[Value], is_gone: bool| {
        let mut evidence = with_routes(routes);
        let served = {
            let node = NodeSnapshot::new(&evidence);
            Served::of(node.desired(Mode::Ipvs).unwrap())
        };
        if is_gone {
            edit(&mut evidence, Item::Addresses, |text| {
                text.replace("kube-ipvs0", "other0")
            });
        }
        let node = NodeSnapshot::new(&evidence);
        let plan = plan::routes_up(&node, &served, &[Family::V4]).unwrap();
        let all: Vec<_> = plan.steps.into_iter().map(|step| step.title).collect();
        all.concat()
    };
    assert_eq!(
        title(&[], false),
        "use source 10.0.2.15 for host connections to 9 addresses of kube-ipvs0"
    );
    assert_eq!(
        title(&[route("10.96.77.7", "local")], true),
        "remove kpx's routes to 1 address that no Service has"
    );
    // A route that another program has in a table of its own.
    let theirs = with_routes(&[route("10.96.77.7", "100")]);
    let node = NodeSnapshot::new(&theirs);
    assert_eq!(plan::has_routes(&node), Ok(false));
    assert_eq!(plan::routes_down(&node, &Family::BOTH).unwrap().steps, []);
}
