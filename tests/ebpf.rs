//! Nodes on which Cilium serves Services with eBPF: recorded states of one node, as Cilium 1.20.0-pre left it.
//!
//! `healthy-cilium-replacement` is Cilium alone, `healthy-cilium-beside` is kube-proxy with a Cilium that does not replace it,
//! `kp17-cilium-beside` is both at once, and `cn13-orphaned-programs` is the first with the programs and maps of an agent that ended.

use kpx_judge::check::{self, Facts, Outcome};
use kpx_judge::redact::Redactor;
use kpx_judge::verdict::{Client, Fate, Surveyed, survey};
use kpx_node::evidence::{self, Evidence, Gap, ITEMS, Item};
use kpx_node::net::Family;
use kpx_node::node::NodeSnapshot;
use kpx_node::node::bpf::Proxy;
use kpx_node::owner::Owners;
use serde_json::Value;

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
    let cells = all.iter().flat_map(|of| &of.cells);
    let cells = cells.filter(|of| of.to.to_string() == address && of.client == client);
    cells
        .map(|of| {
            let why = of
                .fault
                .as_ref()
                .map_or_else(String::new, ToString::to_string);
            (of.fate, why)
        })
        .collect()
}

fn outcome(evidence: &Evidence, id: &str) -> Outcome {
    let node = NodeSnapshot::new(evidence);
    let facts = Facts::new(&node, None);
    let check = check::all().find(|of| of.id == id).unwrap();
    check::run(check, &facts)
}

/// Returns the messages of a check that fails.
fn messages(evidence: &Evidence, id: &str) -> Vec<String> {
    match outcome(evidence, id) {
        Outcome::Fail(findings) => findings.iter().map(|of| of.message.clone()).collect(),
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
        assert!(bpf.socket_proxies().unwrap().iter().eq(serving), "{name}");
        let table = bpf.table(Proxy::Cilium, Family::V4).unwrap().unwrap();
        assert_eq!(table.frontends.len(), frontends, "{name}");
        assert!(table.frontends.iter().all(|of| of.missing == 0), "{name}");
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

/// What the map decides is said; nothing works or fails because of a program whose code is not read.
#[test]
fn connections_are_judged_by_the_map_and_no_further() {
    let healthy = load("healthy-cilium-replacement");
    for of in surveyed(&healthy).iter().flat_map(|of| &of.cells) {
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
        all.retain(|of| of["address"] != "10.96.0.40" || of["slot"] == 0);
        let front = all
            .iter_mut()
            .find(|of| of["address"] == "10.96.0.40" && of["port"] == 80);
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
    for of in surveyed(&evidence).iter().flat_map(|of| &of.cells) {
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
    let has = |text: &str| found.iter().filter(|of| of.contains(text)).count();
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
                .flat_map(|of| &of.cells)
                .map(|of| of.fate)
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
