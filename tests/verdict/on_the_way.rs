//! What stops connections on their way beside rules.

use kpx_judge::verdict::{Brief, Fate};
use kpx_node::evidence::{self, Evidence, Gap, Item};
use kpx_node::node::NodeSnapshot;
use serde_json::Value;

use super::{briefs, says, surveyed};
use crate::support::{kpx_on, root};

#[test]
fn a_program_on_the_way_is_named_and_nothing_works_through_it() {
    let dir = root().join("testdata/nodes/full-iptables");
    let mut evidence = evidence::load(&dir, evidence::ITEMS).unwrap();
    let works = |evidence: &Evidence| {
        let node = NodeSnapshot::new(evidence);
        let all = surveyed(&node);
        let cells = all.iter().flat_map(|port| &port.cells);
        let named = cells.clone().filter(|cell| {
            let text = cell.fault.as_ref().map(ToString::to_string);
            text.is_some_and(|text| {
                text.starts_with("XDP program drop_all (id 7) on eth0 may drop")
            })
        });
        let works = cells.clone().filter(|cell| cell.fate == Fate::Works);
        (works.count(), named.count())
    };
    let (before, _) = works(&evidence);
    let text = evidence.text(Item::Links).unwrap();
    let mut links: Value = serde_json::from_str(text).unwrap();
    for link in links.as_array_mut().unwrap() {
        if link["ifname"] == "eth0" {
            link["xdp"] = serde_json::json!({"mode": 2, "prog": {"id": 7, "name": "drop_all"}});
        }
    }
    evidence.insert(Item::Links, Ok(links.to_string()));
    let (after, named) = works(&evidence);
    assert!(named > 10 && after < before, "{before} {after} {named}");
}

#[test]
#[ignore = "takes long: make test-loops"]
fn neighbours_that_do_not_answer_or_were_set_by_hand_are_named() {
    let dir = root().join("testdata/nodes/full-iptables");
    let recorded = evidence::load(&dir, evidence::ITEMS).unwrap();
    let entry = |address: &str, state: &str| serde_json::json!({"dst": address, "dev": "eth0", "lladdr": "02:00:00:00:00:99", "state": [state]});
    let counted = |entries: &[Value], links: Option<&str>, words: &str| {
        let mut evidence = recorded.clone();
        let text = Value::from(entries.to_vec()).to_string();
        evidence.insert(Item::NeighbourTable, Ok(text));
        if let Some(more) = links {
            let text = format!("{}\n{more}", evidence.text(Item::Links).unwrap());
            evidence.insert(Item::Links, Ok(text));
        }
        let cells = briefs(&evidence);
        let works = cells.iter().filter(|cell| cell.fate == Fate::Works);
        let named = cells.iter().filter(|cell| says(cell, words));
        (works.count(), named.count())
    };
    let (healthy, _) = counted(&[entry("10.0.2.2", "STALE")], None, "none");
    assert_eq!(counted(&[], None, "none").0, healthy);
    let learnt = entry("10.0.2.3", "REACHABLE");
    for (state, words) in [
        ("FAILED", "10.0.2.2 did not answer on eth0"),
        ("INCOMPLETE", "10.0.2.2 has not answered on eth0 yet"),
        (
            "PERMANENT",
            "a static neighbour entry sends packets for 10.0.2.2 on eth0 to 02:00:00:00:00:99",
        ),
    ] {
        let (works, named) = counted(&[entry("10.0.2.2", state), learnt.clone()], None, words);
        assert!(named > 5 && works < healthy, "{state}: {works} {named}");
    }
    // Entries of other nodes, entries that a program writes, and entries where nothing shows that the others are
    // learnt.
    let set = entry("10.0.2.2", "PERMANENT");
    let cilium = r#"[{"ifindex": 9, "ifname": "cilium_host"}]"#;
    for (entries, links) in [
        (vec![entry("10.0.2.9", "FAILED"), learnt.clone()], None),
        (vec![set.clone(), learnt.clone()], Some(cilium)),
        (vec![set.clone()], None),
        (vec![set, learnt, entry("10.0.2.4", "PERMANENT")], None),
    ] {
        let (before, _) = counted(&[], links, "neighbour");
        let (works, named) = counted(&entries, links, "neighbour");
        assert_eq!((works, named), (before, 0), "{entries:?}");
    }
}

#[test]
fn a_link_without_a_carrier_carries_nothing() {
    let dir = root().join("testdata/nodes/full-iptables");
    let recorded = evidence::load(&dir, evidence::ITEMS).unwrap();
    let named = |flags: &[&str], words: &str| {
        let mut evidence = recorded.clone();
        let text = evidence.text(Item::Links).unwrap();
        let mut links: Value = serde_json::from_str(text).unwrap();
        for link in links.as_array_mut().unwrap() {
            if link["ifname"] == "eth0" {
                link["flags"] = serde_json::json!(flags);
            }
        }
        evidence.insert(Item::Links, Ok(links.to_string()));
        let cells = briefs(&evidence);
        let named = cells.iter().filter(|cell| says(cell, words));
        assert!(
            named
                .clone()
                .all(|cell| cell.fate.fails() || cell.fate == Fate::Partly)
        );
        named.count()
    };
    assert_eq!(named(&["UP", "LOWER_UP"], "eth0"), 0);
    assert_eq!(named(&[], "eth0"), 0);
    assert!(named(&["NO-CARRIER", "UP"], "eth0 has no carrier") > 10);
    assert!(named(&["BROADCAST"], "eth0 is down") > 10);
}

#[test]
fn an_endpoint_of_a_node_that_no_longer_reports_is_in_doubt() {
    let dir = root().join("testdata/nodes/full-iptables");
    let recorded = evidence::load(&dir, evidence::ITEMS).unwrap();
    let with_nodes = |edit: &dyn Fn(&mut Vec<Value>)| {
        let mut evidence = recorded.clone();
        let mut nodes: Value = serde_json::from_str(evidence.text(Item::Nodes).unwrap()).unwrap();
        edit(nodes["items"].as_array_mut().unwrap());
        evidence.insert(Item::Nodes, Ok(nodes.to_string()));
        briefs(&evidence)
    };
    let in_doubt = |cells: &[Brief], words: &str| {
        let named = cells.iter().filter(|cell| says(cell, words));
        assert!(
            named.clone().all(|cell| cell.fate == Fate::Unknown),
            "{words}"
        );
        named.count()
    };
    let ready = |status: &'static str| {
        with_nodes(&move |nodes| {
            nodes[1]["status"]["conditions"] = serde_json::json!([
                {"type": "Ready", "status": status, "lastTransitionTime": "2026-11-20T12:00:00Z"}
            ]);
        })
    };
    let since = "the kubelet of its node node2 has not reported since 2026-11-20T12:00:00Z";
    assert!(in_doubt(&ready("Unknown"), since) > 5);
    assert_eq!(in_doubt(&ready("False"), "has not reported"), 0);
    let gone = with_nodes(&|nodes| nodes[1]["metadata"]["name"] = "node3".into());
    assert!(in_doubt(&gone, "the cluster has no Node node2") > 5);
}

#[test]
fn an_endpoint_whose_pod_has_ended_is_lost() {
    let dir = root().join("testdata/nodes/full-iptables");
    let mut evidence = evidence::load(&dir, evidence::ITEMS).unwrap();
    let slices: Value = serde_json::from_str(evidence.text(Item::EndpointSlices).unwrap()).unwrap();
    let endpoints = slices["items"].as_array().unwrap().iter();
    let mut endpoints =
        endpoints.flat_map(|slice| slice["endpoints"].as_array().into_iter().flatten());
    let ends = endpoints
        .find(|endpoint| endpoint["nodeName"] == "node1" && endpoint["targetRef"]["kind"] == "Pod")
        .unwrap();
    let mut pods: Value = serde_json::from_str(evidence.text(Item::Pods).unwrap()).unwrap();
    pods["items"].as_array_mut().unwrap().push(serde_json::json!({
        "metadata": {"namespace": ends["targetRef"]["namespace"], "name": ends["targetRef"]["name"]},
        "spec": {"nodeName": "node1", "containers": []},
        "status": {"phase": "Failed"},
    }));
    let name = ends["targetRef"]["name"].as_str().unwrap();
    let before = briefs(&evidence);
    evidence.insert(Item::Pods, Ok(pods.to_string()));
    let words = format!(
        "/{name} of endpoint {}",
        ends["addresses"][0].as_str().unwrap()
    );
    let after = briefs(&evidence);
    let lost: Vec<_> = after.iter().filter(|cell| says(cell, &words)).collect();
    assert!(!lost.is_empty() && !before.iter().any(|cell| says(cell, &words)));
    assert!(
        lost.iter()
            .all(|cell| cell.fate == Fate::Partly || cell.fate.fails())
    );
}

#[tokio::test(flavor = "current_thread")]
async fn only_the_host_has_a_way_to_its_loopback_addresses() {
    let ran = kpx_on("full-iptables", &["why", "127.0.0.1:31082", "-o", "json"]).await;
    let said: Value = serde_json::from_str(&ran.out).unwrap();
    let paths = said["paths"].as_array().unwrap();
    assert!(!paths.is_empty());
    assert!(
        paths.iter().all(|path| path["client"] == "host"),
        "{paths:?}"
    );
}

#[test]
#[ignore = "takes long: make test-loops"]
fn policies_of_ipsec_block_what_they_match_and_leave_the_rest_alone() {
    let dir = root().join("testdata/nodes/full-iptables");
    let recorded = evidence::load(&dir, evidence::ITEMS).unwrap();
    let counted = |read: Option<Result<String, Gap>>| {
        let mut evidence = recorded.clone();
        if let Some(read) = read {
            evidence.insert(Item::XfrmPolicies, read);
        }
        let cells = briefs(&evidence);
        let count = |is: &dyn Fn(&Brief) -> bool| cells.iter().filter(|cell| is(cell)).count();
        [
            count(&|cell| cell.fate == Fate::Works),
            count(&|cell| cell.fate.fails() && says(cell, "xfrm polic")),
            count(&|cell| cell.fate == Fate::Unknown && says(cell, "through IPsec")),
            count(&|cell| cell.fate == Fate::Unknown && says(cell, "may block the packets")),
            count(&|cell| says(cell, "the policies of IPsec are unknown")),
        ]
    };
    let text = |policy: &str| Some(Ok(policy.to_owned()));
    let healthy = counted(None);
    assert_eq!(healthy[1..], [0; 4]);
    for same in [
        text(""),
        text("src 100.64.9.0/24 dst 0.0.0.0/0 \n\tdir out action block priority 0 ptype main \n"),
        text("src 0.0.0.0/0 dst 0.0.0.0/0 \n\tsocket out action block priority 0 ptype main \n"),
        text("src 0.0.0.0/0 dst 0.0.0.0/0 \n\tdir out priority 0 ptype main \n"),
        text(
            "src 0.0.0.0/0 dst 0.0.0.0/0 proto sctp sport 3\n\tdir out action block priority 0 \n\tif_id 0x3\n",
        ),
        Some(Err(Gap::NotCollected(Item::XfrmPolicies))),
        Some(Err(Gap::NotApplicable("no module".to_owned()))),
    ] {
        assert_eq!(counted(same.clone()), healthy, "{same:?}");
    }
    let block = "src 0.0.0.0/0 dst 0.0.0.0/0 \n\tdir out action block priority 5 ptype main \n";
    let both = format!("{block}{}", block.replace("0.0.0.0/0", "::/0"));
    let [works, blocked, ..] = counted(text(&both));
    assert!(blocked > 50 && works < healthy[0], "{works} {blocked}");
    let tunnel = "src 0.0.0.0/0 dst 0.0.0.0/0 \n\tdir out priority 0 ptype main \n\ttmpl src 10.0.2.15 dst 10.0.2.16\n\t\tproto esp reqid 1 mode tunnel\n";
    let [works, _, unsure, ..] = counted(text(tunnel));
    assert!(unsure > 50 && works < healthy[0], "{works} {unsure}");
    let marked = format!("{block}\tmark 0x100/0x100 \n");
    let [works, blocked, _, unsure, _] = counted(text(&marked));
    assert!(
        blocked == 0 && unsure > 50 && works < healthy[0],
        "{works} {unsure}"
    );
    // Items that should have been read and were not are named.
    let denied = Gap::Denied(Item::XfrmPolicies, "needs CAP_NET_ADMIN".to_owned());
    let [works, .., unknown] = counted(Some(Err(denied)));
    assert!(unknown > 50 && works < healthy[0], "{works} {unknown}");
}

#[test]
#[ignore = "takes long: make test-loops"]
fn filters_and_qdiscs_on_the_way_drop_or_leave_open() {
    let dir = root().join("testdata/nodes/full-iptables");
    let recorded = evidence::load(&dir, evidence::ITEMS).unwrap();
    let counted = |read: Option<Result<String, Gap>>| {
        let mut evidence = recorded.clone();
        let ifb = r#"[{"ifindex": 9, "ifname": "bwp1", "linkinfo": {"info_kind": "ifb"}}]"#;
        let links = format!("{}\n{ifb}", evidence.text(Item::Links).unwrap());
        evidence.insert(Item::Links, Ok(links));
        if let Some(read) = read {
            evidence.insert(Item::Tc, read);
        }
        let cells = briefs(&evidence);
        let count = |is: &dyn Fn(&Brief) -> bool| cells.iter().filter(|cell| is(cell)).count();
        [
            count(&|cell| cell.fate == Fate::Works),
            count(&|cell| cell.fate.fails() && says(cell, "the tc ")),
            count(&|cell| {
                let is_named = says(cell, "tc ") && says(cell, "eth0");
                cell.fate == Fate::Unknown && is_named
            }),
            count(&|cell| says(cell, "the filters of links are unknown")),
        ]
    };
    let healthy = counted(None);
    assert_eq!(healthy[1..], [0; 3]);
    let filter = |dev: &str, hook: &str, kind: &str, options: &str| {
        format!(
            r#"{{"qdiscs":[],"filters":[{{"dev":"{dev}","hook":"{hook}","filters":[{{"protocol":"all","pref":3,"kind":"{kind}","chain":0}},{{"protocol":"all","pref":3,"kind":"{kind}","chain":0,"options":{options}}}]}}]}}"#
        )
    };
    let qdisc = |dev: &str, kind: &str, options: &str| {
        format!(
            r#"{{"qdiscs":[{{"kind":"{kind}","dev":"{dev}","root":true,"options":{options}}}],"filters":[]}}"#
        )
    };
    let gact = |what: &str| {
        format!(r#"{{"actions":[{{"kind":"gact","control_action":{{"type":"{what}"}}}}]}}"#)
    };
    let drops = gact("drop");
    let redirect = |to: &str| {
        format!(
            r#"{{"actions":[{{"kind":"mirred","mirred_action":"redirect","to_dev":"{to}","control_action":{{"type":"stolen"}}}}]}}"#
        )
    };
    let keyed = |keys: &str| {
        format!(
            r#"{{"keys":{{{keys}}},"actions":[{{"kind":"gact","control_action":{{"type":"drop"}}}}]}}"#
        )
    };
    let mirror = r#"{"actions":[{"kind":"skbedit","control_action":{"type":"pipe"}},{"kind":"mirred","mirred_action":"mirror","to_dev":"x","control_action":{"type":"pipe"}}]}"#;
    let police = r#"{"actions":[{"kind":"police","control_action":{"type":"drop"}}]}"#;
    for harmless in [
        r#"{"qdiscs":[],"filters":[]}"#.to_owned(),
        qdisc(
            "eth0",
            "tbf",
            r#"{"rate":1250000,"burst":15000,"lat":50000}"#,
        ),
        qdisc("eth0", "netem", r#"{"limit":1000,"delay":{"delay":0.1}}"#),
        filter("eth0", "egress", "matchall", &gact("pass")),
        filter("eth0", "egress", "matchall", mirror),
        filter("eth0", "ingress", "matchall", police),
        filter("eth0", "ingress", "u32", &redirect("bwp1")),
        filter("eth1", "egress", "matchall", &drops),
        filter(
            "eth0",
            "egress",
            "flower",
            &keyed(r#""eth_type":"ipv4","dst_ip":"100.64.9.1","dst_port":9"#),
        ),
        filter(
            "eth0",
            "egress",
            "flower",
            &keyed(r#""dst_ip":"100.64.9.0/24","ct_state":"+trk""#),
        ),
        filter("eth0", "egress", "u32", r#"{"fh":"800:","ht_divisor":1}"#),
    ] {
        assert_eq!(counted(Some(Ok(harmless.clone()))), healthy, "{harmless}");
    }
    for gap in [
        Gap::NotCollected(Item::Tc),
        Gap::Absent(Item::Tc, "no tc".to_owned()),
    ] {
        assert_eq!(counted(Some(Err(gap))), healthy);
    }
    for fault in [
        filter("eth0", "egress", "matchall", &drops),
        filter("eth0", "ingress", "matchall", &drops),
        filter("eth0", "root", "flower", &keyed(r#""ip_proto":"tcp""#)),
        qdisc("eth0", "blackhole", "{}"),
        qdisc(
            "eth0",
            "netem",
            r#"{"loss-random":{"loss":1,"correlation":0}}"#,
        ),
    ] {
        let [works, fails, ..] = counted(Some(Ok(fault.clone())));
        assert!(fails > 5 && works < healthy[0], "{works} {fails} {fault}");
    }
    for open in [
        filter(
            "eth0",
            "egress",
            "u32",
            r#"{"match":{"value":"0","mask":"ff","offmask":"","off":0},"actions":[{"kind":"gact","control_action":{"type":"shot"}}]}"#,
        ),
        filter("eth0", "egress", "flower", &keyed(r#""ct_state":"+trk""#)),
        filter(
            "eth0",
            "ingress",
            "bpf",
            r#"{"bpf_name":"cil_from_netdev","direct-action":true,"prog":{"id":7}}"#,
        ),
        filter("eth0", "ingress", "matchall", &redirect("eth1")),
        filter("eth0", "egress", "matchall", &gact("goto")),
        qdisc("eth0", "netem", r#"{"loss-random":{"loss":0.25}}"#),
        qdisc("eth0", "netem", r#"{"loss-state":{"p13":0.1}}"#),
    ] {
        let [works, fails, named, _] = counted(Some(Ok(open.clone())));
        assert!(
            fails == 0 && named > 5 && works < healthy[0],
            "{works} {fails} {named} {open}"
        );
    }
    let failed = Gap::Failed(Item::Tc, "a netlink error".to_owned());
    let [works, _, _, unknown] = counted(Some(Err(failed)));
    assert!(unknown > 50 && works < healthy[0], "{works} {unknown}");
}
