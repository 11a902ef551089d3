//! Links, routes, sockets, modules, connections.

use std::fs;

use kpx_node::evidence::{Evidence, Gap, ITEMS, Item};
use kpx_node::net::{Family, Proto};
use kpx_node::node::modules::Standing;
use kpx_node::node::{
    IptablesBackend, NodeSnapshot, conntrack, ipvs_connections, links, modules, routes, sockets,
};

use crate::support::{recorded, recordings, root};

#[test]
fn every_recorded_link_and_route_parses() {
    for name in recordings() {
        if let Some(text) = recorded(&name, Item::Addresses.file()) {
            let all = links::addresses(&text).unwrap().all;
            assert_eq!(all.len(), text.matches("\"local\"").count(), "{name}");
        }
        if let Some(text) = recorded(&name, Item::Links.file()) {
            let all = links::links(&text).unwrap().all;
            assert_eq!(all.len(), text.matches("\"ifname\"").count(), "{name}");
            let dummy = all.iter().find(|link| link.name == "kube-ipvs0");
            assert!(dummy.is_none_or(|link| link.kind == "dummy"), "{name}");
        }
        if let Some(text) = recorded(&name, Item::Routes.file()) {
            let all = routes::routes(&text).unwrap().all;
            assert_eq!(all.len(), text.matches("\"dst\"").count(), "{name}");
            assert!(all.iter().any(|r| r.destination.prefix == 0));
        }
        if let Some(text) = recorded(&name, Item::Conntrack.file()) {
            let entries = conntrack::parse(&text).unwrap().entries;
            assert_eq!(entries.len(), text.matches(" use=").count(), "{name}");
        }
    }
}

#[test]
fn every_item_is_parsed() {
    let mut code = String::new();
    let edges = ["host", "redact", "evidence"];
    let mut folders = ["crates/node/src", "crates/judge/src", "src"]
        .map(|folder| root().join(folder))
        .to_vec();
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_stem().unwrap().to_str().unwrap();
            if path.is_dir() && !edges.contains(&name) {
                folders.push(path);
            } else if path.extension().is_some_and(|end| end == "rs") {
                let text = fs::read_to_string(path).unwrap();
                // The row of a check lists items without reading them.
                let mut parts = text.split("needs: ");
                code += parts.next().unwrap_or_default();
                code.extend(parts.filter_map(|part| Some(part.split_once("caused_by:")?.1)));
            }
        }
    }
    for item in ITEMS {
        let name = format!("Item::{item:?}");
        let mut places = code.match_indices(&name);
        let is_used = places.any(|(at, _)| {
            let next = code[at + name.len()..].chars().next();
            !next.is_some_and(char::is_alphanumeric)
        });
        assert!(
            is_used,
            "no code parses {name}: add its parser to crates/node/src/node, and a function to NodeSnapshot"
        );
    }
}

#[test]
fn empty_objects_are_skipped() {
    let text = r#"[{},{"ifindex":2,"ifname":"eth0","flags":["UP"],"mtu":1500,"master":"br0",
        "linkinfo":{"info_slave_kind":"bridge","info_slave_data":{"hairpin":true}},
        "addr_info":[{},{"family":"inet","local":"10.0.0.1","prefixlen":24,"secondary":true,"scope":"global"}]}]"#;
    let link = &links::links(text).unwrap().all[0];
    assert_eq!(
        (link.hairpin, link.master.as_deref()),
        (Some(true), Some("br0"))
    );
    let address = &links::addresses(text).unwrap().all[0];
    assert_eq!(address.addr.to_string(), "10.0.0.1/24");
    assert_eq!(address.flags, ["secondary"]);
    let wrong = r#"[{"ifname":"x","addr_info":[{"local":"10.0.0.1","prefixlen":40}]}]"#;
    let why = "link x: 10.0.0.1 has no usable \"prefixlen\"".to_owned();
    assert_eq!(
        links::addresses(wrong).unwrap_err(),
        Gap::Failed(Item::Addresses, why)
    );
}

#[test]
fn routes_in_two_documents_have_the_right_family() {
    let text = r#"[{"dst":"default","dev":"ppp0","flags":[]},{"dst":"10.0.0.0/24","dev":"eth0","flags":[]}]
        [{"dst":"default","dev":"tun0","metric":1024,"flags":["linkdown"],"pref":"medium"},
         {"type":"unreachable","dst":"fd00::/8","table":"100","flags":[]},
         {"dst":"default","nexthops":[{"gateway":"fe80::1","dev":"a","weight":1,"flags":[]},{"via":{"family":"inet6","host":"fe80::2"},"dev":"b"}],"flags":[]}]"#;
    let all = routes::routes(text).unwrap().all;
    let families: Vec<_> = all.iter().map(|route| route.family).collect();
    assert_eq!(
        families,
        [Family::V4, Family::V4, Family::V6, Family::V6, Family::V6]
    );
    assert_eq!(all[3].kind, "unreachable");
    assert_eq!(all[3].table, "100");
    assert_eq!(all[4].nexthops.len(), 2);
}

#[test]
fn both_spellings_of_routing_rules_are_read() {
    let text = r#"[{"priority":0,"src":"all","table":"local"},
        {"not":null,"priority":100,"src":"10.244.0.0","srclen":16,"fwmark":"0x200","fwmask":"0xf00","iif":"eth0","table":2004},
        {"priority":50,"src":"all","dst":"10.0.0.1","suppress_prefixlen":0,"action":"unreachable"}]"#;
    let all = routes::rules(text).unwrap().all;
    assert_eq!(all[1].action, "unreachable");
    assert_eq!(all[1].suppress_prefix, Some(0));
    let marked = &all[2];
    assert_eq!(marked.family, Family::V4);
    assert!(marked.not);
    assert_eq!(marked.from.unwrap().to_string(), "10.244.0.0/16");
    assert_eq!(marked.mark.unwrap().to_string(), "0x200/0xf00");
    assert_eq!(marked.table.as_deref(), Some("2004"));
}

#[test]
fn routing_rules_have_the_family_of_their_address_or_document() {
    let text = r#"[{"priority":0,"src":"all","table":"local"}]
        [{"priority":1,"src":"all","table":"100"},{"priority":2,"src":"10.0.0.1","table":"main"}]"#;
    let all = routes::rules(text).unwrap().all;
    let families: Vec<_> = all.iter().map(|rule| rule.family).collect();
    assert_eq!(families, [Family::V4, Family::V6, Family::V4]);
}

#[test]
fn both_listings_of_sockets_agree() {
    for name in recordings() {
        let mut ss = Evidence::default();
        let mut proc = Evidence::default();
        for item in [Item::Sockets, Item::Tcp4, Item::Tcp6, Item::Udp4] {
            let Some(text) = recorded(&name, item.file()) else {
                continue;
            };
            let to = if item == Item::Sockets {
                &mut ss
            } else {
                &mut proc
            };
            to.insert(item, Ok(text));
        }
        if ss.text(Item::Sockets).is_err() {
            continue;
        }
        let ss = sockets::parse(&ss).unwrap();
        let proc = sockets::parse(&proc).unwrap();
        let ends = |s: &sockets::Sockets| {
            let all = s.listening.iter();
            all.map(|s| (s.proto, s.local)).collect::<Vec<_>>()
        };
        assert_eq!(ends(&ss), ends(&proc), "{name}");
        assert_eq!(proc.gaps, [Gap::NotCollected(Item::Udp6)]);
        assert!(ss.listening.iter().all(|s| !s.processes.is_empty()));
    }
}

#[test]
fn sockets_with_scopes_names_and_without_processes_are_read() {
    let mut evidence = Evidence::default();
    let text = "udp UNCONN 0 0 127.0.0.53%lo:53 0.0.0.0:* users:((\"a b\",pid=1,fd=2),(\"c\",pid=3,fd=4))\n\
        tcp LISTEN 0 128 [::]:22 [::]:*\n\
        udp UNCONN 0 0 [fe80::1]%eth0:546 *:*\n\
        tcp ESTAB 0 0 10.0.0.1:22 10.0.0.2:5555\n\
        sctp LISTEN 0 128 *:2905 *:*\n";
    evidence.insert(Item::Sockets, Ok(text.to_owned()));
    let all = sockets::parse(&evidence).unwrap().listening;
    assert_eq!(all.len(), 4);
    assert_eq!((all[0].local.port(), all[0].v6_only), (22, Some(true)));
    assert_eq!(all[1].device.as_deref(), Some("lo"));
    assert_eq!(
        (all[1].processes[0].name.as_str(), all[1].processes[1].pid),
        ("a b", 3)
    );
    assert_eq!(all[2].device.as_deref(), Some("eth0"));
    assert_eq!((all[3].proto, all[3].v6_only), (Proto::Sctp, Some(false)));
    evidence.insert(Item::Sockets, Ok("tcp LISTEN 0 128 *:ssh *:*".to_owned()));
    let Gap::Failed(_, why) = sockets::parse(&evidence).unwrap_err() else {
        panic!("not a failure");
    };
    assert!(why.starts_with("line 1: \"*:ssh\""), "{why}");
}

#[test]
fn connections_of_every_protocol_are_read() {
    let text = "ipv4     2 icmp     1 29 src=10.0.0.1 dst=10.0.0.2 type=8 code=0 id=7 [UNREPLIED] src=10.0.0.2 dst=10.0.0.1 type=0 code=0 id=7 mark=3 zone=5 use=1\n\
        sctp     132 10 ESTABLISHED src=fd00::1 dst=fd00::2 sport=1 dport=2 src=fd00::2 dst=fd00::1 sport=2 dport=1 [ASSURED] mark=0 delta-time=3 use=2\n\
        tcp      6 src=10.0.0.1 dst=10.96.0.1 sport=1 dport=443 packets=4 bytes=5 src=10.244.0.2 dst=10.0.0.1 sport=6443 dport=1 [OFFLOAD] mark=0 use=2\n\
        unknown  2 597 src=10.0.0.1 dst=224.0.0.22 [UNREPLIED] src=224.0.0.22 dst=10.0.0.1 mark=0 zone=7 use=1\n\
        conntrack v1.4.7 (conntrack-tools): 4 flow entries have been shown.\n";
    let entries = conntrack::parse(text).unwrap().entries;
    assert_eq!(entries.len(), 4);
    assert!(entries[0].unreplied && entries[0].mark == 3);
    assert_eq!(entries[1].state.as_deref(), Some("ESTABLISHED"));
    assert_eq!(entries[2].timeout, None);
    assert_eq!(entries[2].reply.source.port(), 6443);
    assert_eq!(entries[3].proto, Proto::Other(2));
    assert_eq!((entries[0].zone, entries[3].zone), (5, 7));
    assert!(conntrack::parse("tcp 6 10 src=10.0.0.1\n").is_err());
}

#[test]
fn ipvs_connections_are_read() {
    let text = "Pro FromIP   FPrt ToIP     TPrt DestIP   DPrt State       Expires PEName PEData\n\
        TCP 0A000001 C350 0A600001 0050 0AF40101 1F90 ESTABLISHED     899\n\
        UDP fd00:0000:0000:0000:0000:0000:0000:0001 0001 fd00:0000:0000:0000:0000:0000:0000:0002 0035 fd00:0000:0000:0000:0000:0000:0000:0003 0035 UDP             5\n";
    let all = ipvs_connections::parse(text).unwrap().all;
    assert_eq!(all[0].client.to_string(), "10.0.0.1:50000");
    assert_eq!(all[0].real.to_string(), "10.244.1.1:8080");
    assert_eq!(all[1].server.to_string(), "[fd00::2]:53");
}

#[test]
fn a_module_is_loaded_built_in_loadable_blocked_or_missing() {
    let mut evidence = Evidence::default();
    assert!(modules::parse(&evidence).is_err());
    for (item, text) in [
        (
            Item::Modules,
            "ip_vs 16384 2 ip_vs_rr, Live 0x0\nnf-odd 1 - - Live 0x0\n",
        ),
        (
            Item::ModulesBuiltin,
            "kernel/net/netfilter/nf-conntrack.ko\n",
        ),
        (
            Item::ModulesDep,
            "kernel/net/ip_vs_sh.ko.xz: kernel/net/ip-vs.ko.xz\nkernel/net/bad-one.ko.zst:\n",
        ),
        (
            Item::ModulesLoad,
            "/etc/modules: # none\n/etc/modules-load.d/k.conf: ip-vs\n",
        ),
        (
            Item::Modprobe,
            "/etc/modprobe.d/a.conf: install bad-one /bin/false\n/etc/modprobe.d/a.conf: options x y=1\n\
             /etc/modprobe.d/a.conf: install quiet /bin/true\n/etc/modprobe.d/b.conf: blacklist ip-vs-sh\n",
        ),
    ] {
        evidence.insert(item, Ok(text.to_owned()));
    }
    let modules = modules::parse(&evidence).unwrap();
    for (name, standing) in [
        ("ip-vs", Standing::Loaded),
        ("nf_odd", Standing::Loaded),
        ("nf_conntrack", Standing::BuiltIn),
        // A blacklist forbids loading by alias, and kube-proxy loads by name.
        ("ip_vs_sh", Standing::Loadable),
        ("bad_one", Standing::Blocked),
        ("quiet", Standing::Blocked),
        ("none", Standing::Missing),
    ] {
        assert_eq!(modules.standing(name), standing, "{name}");
    }
    let available = modules.available.unwrap();
    assert_eq!(available["ip_vs_sh"].needs, ["ip_vs"]);
    assert_eq!(
        modules.persisted.unwrap()["ip_vs"],
        "/etc/modules-load.d/k.conf"
    );
}

#[test]
fn an_empty_listing_is_unknown_if_nft_lists_rules_of_iptables() {
    let table = |chain: &str, rule: &str| {
        let base = r#""type": "nat", "hook": "prerouting", "prio": -100, "policy": "accept""#;
        format!(
            r#"{{"nftables": [
                {{"table": {{"family": "ip", "name": "nat", "handle": 1}}}},
                {{"chain": {{"family": "ip", "table": "nat", "name": "{chain}", "handle": 1, {base}}}}}
                {rule}
            ]}}"#
        )
    };
    let rule = |chain: &str| {
        format!(
            r#", {{"rule": {{"family": "ip", "table": "nat", "chain": "{chain}", "handle": 2, "expr": [{{"accept": null}}]}}}}"#
        )
    };
    for (nft, is_known) in [
        (table("PREROUTING", &rule("PREROUTING")), false),
        (table("PREROUTING", ""), true),
        (table("prerouting", &rule("prerouting")), true),
        (table("KUBE-SERVICES", ""), false),
    ] {
        let mut evidence = Evidence::default();
        evidence.insert(Item::Iptables4, Ok(String::new()));
        evidence.insert(Item::Nft, Ok(nft.clone()));
        let node = NodeSnapshot::new(&evidence);
        assert_eq!(
            node.saved(IptablesBackend::InUse, Family::V4).is_ok(),
            is_known,
            "{nft}"
        );
        evidence.insert(Item::IptablesNft4, Ok("*nat\nCOMMIT\n".to_owned()));
        let node = NodeSnapshot::new(&evidence);
        assert!(
            node.saved(IptablesBackend::InUse, Family::V4).is_ok(),
            "{nft}"
        );
    }
}
