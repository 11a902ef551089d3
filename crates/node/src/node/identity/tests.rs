//! Machines that are identified, and machines that are not.

use super::*;
use crate::evidence::Evidence;

/// A cluster of three Nodes, as their kubelets report them.
fn nodes(edit: impl Fn(usize, &mut serde_json::Value)) -> String {
    let one = |at: usize| {
        let mut node = serde_json::json!({
            "metadata": {"name": format!("w{at}"), "labels": {}},
            "spec": {"providerID": format!("aws:///eu-1a/i-0{at}")},
            "status": {
                "addresses": [{"type": "InternalIP", "address": format!("10.0.0.{at}")}],
                "nodeInfo": {
                    "machineID": format!("aa{at}"), "bootID": format!("bb-{at}"), "systemUUID": format!("CC-{at}"),
                },
            },
        });
        edit(at, &mut node);
        node
    };
    serde_json::json!({"items": [one(1), one(2), one(3)]}).to_string()
}

fn evidence(nodes: String, host: &str, address: &str) -> Evidence {
    let mut all = Evidence::default();
    all.insert(Item::Nodes, Ok(nodes));
    all.insert(Item::Host, Ok(host.to_owned()));
    let addresses = format!(
        r#"[{{"ifname": "eth0", "addr_info": [
            {{"family": "inet", "local": "{address}", "prefixlen": 24, "scope": "global"}}]}},
           {{"ifname": "kube-ipvs0", "addr_info": [
            {{"family": "inet", "local": "10.0.0.3", "prefixlen": 32, "scope": "global"}}]}}]"#
    );
    all.insert(Item::Addresses, Ok(addresses));
    all
}

fn known(name: &str, by: Clue) -> Identity {
    let name = name.to_owned();
    Identity::Known { name, by }
}

#[test]
fn each_clue_alone_identifies_one_of_three_nodes() {
    let elsewhere = "192.0.2.1";
    for (host, address, by) in [
        ("", "10.0.0.2", Clue::Address),
        ("system-uuid = cc-2", elsewhere, Clue::SystemUuid),
        ("asset-tag = i-02", elsewhere, Clue::ProviderId),
        ("boot-id = bb-2", elsewhere, Clue::BootId),
        ("machine-id = aa2", elsewhere, Clue::MachineId),
        ("host-name = W2", elsewhere, Clue::HostName),
    ] {
        let all = evidence(nodes(|_, _| ()), host, address);
        assert_eq!(NodeSnapshot::new(&all).identity(), known("w2", by));
    }
}

#[test]
fn kube_proxys_own_name_comes_first_and_its_flag_before_its_file() {
    let mut all = evidence(nodes(|_, _| ()), "", "192.0.2.1");
    let config = "kind: KubeProxyConfiguration\nhostnameOverride: W1\n";
    all.insert(Item::ProxyConfig, Ok(config.to_owned()));
    assert_eq!(
        NodeSnapshot::new(&all).identity(),
        known("w1", Clue::Config)
    );
    let processes = r#"{"processes": [
        {"pid": 1, "name": "kube-proxy", "args": ["kube-proxy", "--hostname-override=other"], "sameNetwork": false},
        {"pid": 2, "name": "kube-proxy", "args": ["kube-proxy", "--hostname-override=w3"], "sameNetwork": true}]}"#;
    all.insert(Item::Processes, Ok(processes.to_owned()));
    assert_eq!(NodeSnapshot::new(&all).identity(), known("w3", Clue::Flag));
    let given = NodeSnapshot::new(&all).called(Some("w2"));
    assert_eq!(given.identity(), known("w2", Clue::Given));
}

#[test]
fn a_shared_clue_is_narrowed_by_the_next_one() {
    // Nodes in containers on one cloned machine.
    let shared = nodes(|_, node| {
        node["status"]["nodeInfo"]["bootID"] = "bb".into();
        node["status"]["nodeInfo"]["machineID"] = "aa".into();
    });
    let host = "machine-id = aa\nboot-id = bb\n";
    let all = evidence(shared.clone(), host, "192.0.2.1");
    let ambiguous = NodeSnapshot::new(&all).identity();
    assert!(
        matches!(&ambiguous, Identity::Ambiguous { names, by: Clue::BootId } if names.len() == 3),
        "{ambiguous:?}"
    );
    let text = ambiguous.name().unwrap_err().to_string();
    assert!(text.contains("w1, w2, w3") && text.contains("--node NAME"));
    let all = evidence(shared, &format!("{host}host-name = w3\n"), "192.0.2.1");
    let identity = NodeSnapshot::new(&all).identity();
    assert_eq!(identity, known("w3", Clue::HostName));
    // No clue matches; a single Node needs no clue.
    let all = evidence(nodes(|_, _| ()), "host-name = laptop", "192.0.2.1");
    let identity = NodeSnapshot::new(&all).identity();
    assert!(matches!(identity, Identity::Unknown(_)), "{identity:?}");
    let mut all = all;
    let only = r#"{"items": [{"metadata": {"name": "a"}}]}"#;
    all.insert(Item::Nodes, Ok(only.to_owned()));
    assert_eq!(NodeSnapshot::new(&all).identity(), known("a", Clue::Only));
}

/// Removes kube-proxy's link.
fn without_link(mut all: Evidence) -> Evidence {
    let text = all.text(Item::Addresses).unwrap();
    let mut links: serde_json::Value = serde_json::from_str(text).unwrap();
    links.as_array_mut().unwrap().truncate(1);
    all.insert(Item::Addresses, Ok(links.to_string()));
    all
}

/// Adds kube-proxy's process of Node `name`.
fn with_proxy(mut all: Evidence, name: &str, same_network: Option<bool>) -> Evidence {
    let process = serde_json::json!({
        "pid": 71, "name": "kube-proxy", "sameNetwork": same_network,
        "args": ["kube-proxy", format!("--hostname-override={name}")],
    });
    let text = serde_json::json!({ "processes": [process] }).to_string();
    all.insert(Item::Processes, Ok(text));
    all
}

/// Removes kube-proxy's link and processes.
fn without_proxy(all: Evidence) -> Evidence {
    let mut all = without_link(all);
    all.insert(Item::Processes, Ok(r#"{"processes": []}"#.to_owned()));
    all
}

#[test]
fn a_machine_is_a_stranger_only_by_positive_evidence() {
    let laptop = "host-name = laptop\nmachine-id = ff\nboot-id = ff";
    let stranger = |all: &Evidence| NodeSnapshot::new(all).stranger();
    let plain = || evidence(nodes(|_, _| ()), laptop, "192.0.2.1");
    let found = stranger(&without_proxy(plain())).unwrap();
    assert_eq!(found.nodes, ["w1", "w2", "w3"]);
    assert_eq!(found.container, None);
    // Unknown processes, a kube-proxy, and its link are no evidence.
    assert_eq!(stranger(&without_link(plain())), None);
    let mut linked = without_proxy(plain());
    linked.insert(
        Item::Addresses,
        plain().text(Item::Addresses).map(str::to_owned),
    );
    assert_eq!(stranger(&linked), None);
    assert_eq!(
        stranger(&without_link(with_proxy(plain(), "w9", Some(true)))),
        None
    );
    assert_eq!(
        stranger(&without_link(with_proxy(plain(), "w9", None))),
        None
    );
    // Any clue makes it a Node.
    for (host, address) in [
        (laptop, "10.0.0.2"),
        ("machine-id = aa2", "192.0.2.1"),
        ("boot-id = bb-2", "192.0.2.1"),
        ("host-name = w2", "192.0.2.1"),
    ] {
        let all = without_proxy(evidence(nodes(|_, _| ()), host, address));
        assert_eq!(stranger(&all), None, "{host} {address}");
    }
    // A Node without known properties may be this machine.
    let unknown = nodes(|at, node| {
        if at == 2 {
            node["status"] = serde_json::json!({});
        }
    });
    let all = without_proxy(evidence(unknown, laptop, "192.0.2.1"));
    assert_eq!(stranger(&all), None);
    let all = without_proxy(evidence(r#"{"items": []}"#.to_owned(), laptop, "192.0.2.1"));
    assert_eq!(stranger(&all), None);
}

#[test]
fn nodes_in_containers_of_this_machine_are_others() {
    let shared = nodes(|_, node| node["status"]["nodeInfo"]["bootID"] = "ff".into());
    let laptop = "host-name = laptop\nmachine-id = ff\nboot-id = ff";
    for same_network in [Some(false), None] {
        let all = evidence(shared.clone(), laptop, "192.0.2.1");
        let all = without_link(with_proxy(all, "w2", same_network));
        let node = NodeSnapshot::new(&all);
        assert_eq!(node.stranger().unwrap().container, Some(71));
        assert!(node.name().is_err(), "{same_network:?}");
    }
}

#[test]
fn the_only_node_is_not_a_machine_that_differs_from_it() {
    let only = |_: usize, _: &mut serde_json::Value| ();
    let mut list: serde_json::Value = serde_json::from_str(&nodes(only)).unwrap();
    list["items"].as_array_mut().unwrap().truncate(1);
    let all = evidence(list.to_string(), "host-name = laptop", "192.0.2.1");
    let identity = NodeSnapshot::new(&all).identity();
    assert_eq!(identity, known("w1", Clue::Only));
    let all = without_proxy(all);
    assert!(NodeSnapshot::new(&all).name().is_err());
    assert_eq!(NodeSnapshot::new(&all).stranger().unwrap().nodes, ["w1"]);
}

#[test]
fn only_positive_evidence_contradicts_a_node_name() {
    let said = |host: &str, address: &str, name: &str| {
        let all = evidence(nodes(|_, _| ()), host, address);
        NodeSnapshot::new(&all).contradiction(name)
    };
    assert_eq!(said("", "10.0.0.2", "w2"), None);
    assert_eq!(
        said("", "10.0.0.2", "w1").as_deref(),
        Some("no interface has 10.0.0.1 of w1, but an interface has 10.0.0.2 of w2")
    );
    let stranger = said("", "10.0.0.2", "w9").unwrap();
    assert!(
        stranger.starts_with("the Node does not exist, but an interface has 10.0.0.2"),
        "{stranger}"
    );
    // A machine behind a translated address may be any Node.
    assert_eq!(said("", "192.0.2.1", "w1"), None);
    let other = said("machine-id = aa9", "192.0.2.1", "w1").unwrap();
    assert!(
        other.contains("its machine ID is aa1") && other.ends_with("is aa9"),
        "{other}"
    );
    assert_eq!(
        said("machine-id = aa9\nboot-id = bb-1", "192.0.2.1", "w1"),
        None
    );
    assert_eq!(said("machine-id = aa9", "10.0.0.1", "w1"), None);
}

/// Gives kube-proxy the name of Node w3 in its configuration.
fn called_w3(mut all: Evidence) -> Evidence {
    let config = "kind: KubeProxyConfiguration\nhostnameOverride: w3\n";
    all.insert(Item::ProxyConfig, Ok(config.to_owned()));
    all
}

/// Puts the machine's kube-proxy into its pod of Node `name`, one of three.
fn with_pod(mut all: Evidence, name: &str) -> Evidence {
    let uid = |at: usize| format!("0f4b9c1e-6a0d-4d43-9c83-2a9d7b8f6e1{at}");
    let pods = (1..=3).map(|at| {
        serde_json::json!({"metadata": {"name": format!("kube-proxy-{at}"), "uid": uid(at)}, "spec": {"nodeName": format!("w{at}")}})
    });
    let pods = serde_json::json!({ "items": pods.collect::<Vec<_>>() }).to_string();
    all.insert(Item::Pods, Ok(pods));
    let at: usize = name[1..].parse().unwrap();
    let group = uid(at).replace('-', "_");
    let process = serde_json::json!({
        "pid": 7, "name": "kube-proxy", "args": ["kube-proxy"], "sameNetwork": true,
        "cgroup": format!("/kubepods.slice/kubepods-pod{group}.slice/cri-containerd-abc.scope"),
    });
    let text = serde_json::json!({ "processes": [process] }).to_string();
    all.insert(Item::Processes, Ok(text));
    all
}

/// Gives each Node a range of pod addresses.
fn with_ranges() -> String {
    nodes(|at, node| node["spec"]["podCIDR"] = format!("10.244.{at}.0/24").into())
}

#[test]
fn a_configured_name_of_another_node_is_not_believed() {
    let elsewhere = "192.0.2.1";
    for (all, by) in [
        (evidence(nodes(|_, _| ()), "", "10.0.0.2"), Clue::Address),
        (
            with_pod(evidence(nodes(|_, _| ()), "", elsewhere), "w2"),
            Clue::ProxyPod,
        ),
        (
            evidence(nodes(|_, _| ()), "machine-id = aa2", elsewhere),
            Clue::MachineId,
        ),
        (evidence(with_ranges(), "", "10.244.2.1"), Clue::PodNetwork),
    ] {
        let all = called_w3(all);
        let node = NodeSnapshot::new(&all);
        assert_eq!(node.identity(), known("w2", by));
        assert!(node.contradiction("w3").is_some(), "{by}");
        assert_eq!(node.contradiction("w2"), None, "{by}");
    }
    // The evidence is of the configured Node, or of none.
    for (address, by) in [("10.0.0.3", Clue::Config), (elsewhere, Clue::Config)] {
        let all = called_w3(evidence(nodes(|_, _| ()), "", address));
        assert_eq!(NodeSnapshot::new(&all).identity(), known("w3", by));
    }
    // A range of pods that is only a part of a link's network is none.
    let all = called_w3(evidence(with_ranges(), "", "10.244.2.1"));
    let wide = all.text(Item::Addresses).unwrap().replace(": 24", ": 16");
    let mut all = all;
    all.insert(Item::Addresses, Ok(wide));
    assert_eq!(
        NodeSnapshot::new(&all).identity(),
        known("w3", Clue::Config)
    );
}

#[test]
fn a_recording_is_not_of_another_node() {
    let of = |all: &Evidence, name: &str| {
        let found = NodeSnapshot::new(all).mismatch(name);
        found.map(|Mismatch { of, .. }| of.join(" "))
    };
    let all = evidence(nodes(|_, _| ()), "", "10.0.0.2");
    assert_eq!(of(&all, "w2"), None);
    for other in ["w1", "help", "10.0.0.2", "w2.example.com"] {
        assert_eq!(of(&all, other).as_deref(), Some("w2"), "{other}");
    }
    // Nothing tells the Nodes of the cluster apart.
    let unknown = evidence(nodes(|_, _| ()), "", "192.0.2.1");
    assert_eq!(of(&unknown, "w1"), None);
    assert_eq!(of(&unknown, "help").as_deref(), Some("w1 w2 w3"));
    // All nodes may share the configuration.
    assert_eq!(of(&called_w3(unknown), "w1"), None);
    // Without Nodes, the names of the machine count, and then the word of the operator.
    let mut alone = Evidence::default();
    assert_eq!(of(&alone, "w1"), None);
    alone.insert(Item::ProxyConfig, Ok("hostnameOverride: w3\n".to_owned()));
    assert_eq!(of(&alone, "w1").as_deref(), Some("w3"));
    assert_eq!(of(&alone, "w3"), None);
}

#[test]
fn without_nodes_a_machine_proves_its_name_by_the_names_that_it_has() {
    let mut all = Evidence::default();
    let why = Gap::NotApplicable("--no-api".to_owned());
    all.insert(Item::Nodes, Err(why));
    all.insert(Item::Host, Ok("host-name = w1\n".to_owned()));
    let claim = |all: &Evidence, name: &str| NodeSnapshot::new(all).claim(name);
    assert_eq!(claim(&all, "w1"), Claim::Same);
    assert!(matches!(claim(&all, "w2"), Claim::Unknown(_)));
    let all = with_proxy(all, "w2", Some(true));
    assert_eq!(claim(&all, "w2"), Claim::Same);
    assert!(matches!(claim(&all, "w3"), Claim::Unknown(_)));
}
