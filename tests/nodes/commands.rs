//! Commands over all nodes.

use std::fs;
use std::path::Path;

use serde_json::Value;

use super::bundle_of;
use crate::support::{Ran, kpx};

/// Five nodes: three alike, one with faults, and one that was not read.
const CLUSTER: &[(&str, Result<&str, &str>)] = &[
    ("w1", Ok("full-iptables")),
    ("w2", Ok("full-iptables")),
    ("w3", Ok("faults-iptables")),
    ("w4", Ok("full-iptables")),
    ("w5", Err("the node is not ready")),
];

async fn on(path: &Path, line: &str) -> Ran {
    let words = ["--from", path.to_str().unwrap()];
    let line: Vec<&str> = line.split(' ').collect();
    kpx(&[&words, &line[..]].concat()).await
}

/// The output of a command, without the path of the bundle.
async fn printed(path: &Path, line: &str) -> String {
    let ran = on(path, line).await.to_string();
    ran.replace(path.parent().unwrap().to_str().unwrap(), "DIR")
}

#[tokio::test]
#[ignore = "takes long: make test-loops"]
async fn the_odd_node_comes_first() {
    let (_dir, path) = bundle_of(".tar.gz", CLUSTER);
    insta::assert_snapshot!("doctor", printed(&path, "doctor --all-nodes").await);
    insta::assert_snapshot!(
        "doctor_wide",
        printed(&path, "-o wide doctor --all-nodes").await
    );
    insta::assert_snapshot!("diff", printed(&path, "diff --all-nodes").await);
    insta::assert_snapshot!(
        "show_services",
        printed(&path, "show services --all-nodes").await
    );
    insta::assert_snapshot!(
        "trace",
        printed(&path, "trace default/nginx-svc-nodeport --all-nodes").await
    );
    insta::assert_snapshot!(
        "why",
        printed(&path, "why default/nginx-svc-nodeport --all-nodes").await
    );
    insta::assert_snapshot!("reconcile", printed(&path, "reconcile --all-nodes").await);
    insta::assert_snapshot!(
        "preflight",
        printed(&path, "preflight --to ipvs --all-nodes").await
    );
    insta::assert_snapshot!(
        "resolve",
        printed(&path, "resolve kubernetes --all-nodes").await
    );
}

#[tokio::test]
async fn every_view_of_all_nodes_names_what_differs() {
    let nodes = [
        ("w1", Ok("full-ipvs")),
        ("w2", Ok("faults-ipvs")),
        ("w3", Ok("full-ipvs")),
    ];
    let (_dir, path) = bundle_of("", &nodes);
    for view in [
        "services",
        "chains",
        "ipvs",
        "sets",
        "addresses",
        "nodeports",
        "conntrack",
        "modules",
        "sysctls",
        "config",
    ] {
        let ran = on(&path, &format!("show {view} --all-nodes")).await;
        insta::assert_snapshot!(format!("view_{view}"), ran.to_string());
    }
    let ran = on(&path, "show ipvs default/nginx-svc --all-nodes").await;
    assert!(ran.out.contains("on all nodes"), "{ran}");
    let ran = on(&path, "show ipvs default/nothing --all-nodes").await;
    assert!(ran.out.contains("no node has a row of this name"), "{ran}");
    assert_eq!(ran.code, 1);
}

#[tokio::test]
#[ignore = "takes long: make test-loops"]
async fn json_and_yaml_keep_each_node_whole() {
    nodes_are_kept_whole(&["doctor", "resolve kubernetes"]).await;
}

pub(crate) async fn nodes_are_kept_whole(commands: &[&str]) {
    let (_dir, path) = bundle_of(".tar", CLUSTER);
    for command in commands {
        let ran = on(&path, &format!("{command} --all-nodes -o json")).await;
        let all: Value = serde_json::from_str(&ran.out).unwrap_or_else(|e| panic!("{e}: {ran}"));
        assert_eq!(all["kind"], "NodeReports");
        assert_eq!(all["summary"]["nodes"], 5);
        assert_eq!(all["summary"]["read"], 4);
        let nodes = all["nodes"].as_array().unwrap();
        assert_eq!(nodes.len(), 5, "{command}");
        let of = |name: &str| nodes.iter().find(|node| node["node"] == name).unwrap();
        for name in ["w1", "w3"] {
            let one = on(&path, &format!("--node {name} {command} -o json")).await;
            let one: Value = serde_json::from_str(&one.out).unwrap();
            assert_eq!(of(name)["report"], one, "{command} on {name}");
        }
        assert_eq!(of("w5")["error"], "the node is not ready");
        let ran = on(
            &path,
            &format!("{command} --all-nodes --parallel 1 -o yaml"),
        )
        .await;
        assert!(
            ran.out
                .starts_with("apiVersion: kpx/v1\nkind: NodeReports\nnodes:\n- node: w1\n"),
            "{ran}"
        );
        assert_eq!(ran.out.matches("\n- node: ").count(), 5, "{ran}");
        assert!(ran.out.contains("\nsummary:\n"), "{ran}");
    }
}

#[tokio::test]
async fn the_doctors_own_formats_name_the_node_or_are_refused() {
    let (_dir, path) = bundle_of(".tar", CLUSTER);
    let ran = on(
        &path,
        "doctor --only IR01 --all-nodes --parallel 1 -o short",
    )
    .await;
    assert_eq!(
        ran.out,
        "w3: error IR01 nat chain PREROUTING: the jump to kube-proxy's chain is missing\n\
         unread w5: the node is not ready\n"
    );
    let ran = on(
        &path,
        "doctor --only IR01 --all-nodes --parallel 1 -o junit",
    )
    .await;
    assert_eq!(ran.out.matches("<testsuite ").count(), 5, "{ran}");
    assert_eq!(ran.out.matches("<testsuites>").count(), 1);
    assert!(
        ran.out
            .contains("<testsuite name=\"kpx doctor on w3\" tests=\"1\" failures=\"1\""),
        "{ran}"
    );
    assert!(
        ran.out
            .contains("<error type=\"unread\" message=\"the node is not ready\"/>"),
        "{ran}"
    );
    assert!(ran.out.ends_with("</testsuites>\n"));
    for line in ["doctor --all-nodes -o prom", "trace a/b --all-nodes -o dot"] {
        let ran = on(&path, line).await;
        assert_eq!(ran.code, 2, "{ran}");
        assert!(
            ran.err.contains("is for one node: pass --node NAME"),
            "{ran}"
        );
    }
}

/// A node, with its recording or the reason why it was not read.
type Node<'a> = (&'a str, Result<&'a str, &'a str>);

#[tokio::test]
async fn the_exit_status_is_that_of_the_worst_node() {
    let healthy = ("a", Ok("full-iptables"));
    let cases: &[(&[Node<'_>], u8)] = &[
        (&[healthy], 0),
        (&[healthy, ("b", Err("gone"))], 3),
        (&[healthy, ("b", Ok("faults-iptables"))], 1),
        (
            &[healthy, ("b", Ok("faults-iptables")), ("c", Err("gone"))],
            1,
        ),
        (&[("b", Err("gone"))], 3),
    ];
    for (nodes, code) in cases {
        let (_dir, path) = bundle_of(".tar", nodes);
        let ran = on(&path, "doctor --only IR01 --all-nodes").await;
        assert_eq!(ran.code, *code, "{ran}");
    }
}

#[tokio::test]
async fn a_truncated_bundle_is_no_healthy_cluster() {
    let nodes = [("a", Ok("full-iptables")), ("b", Ok("full-iptables"))];
    let (_dir, path) = bundle_of(".tar", &nodes);
    let whole = fs::read(&path).unwrap();
    fs::write(&path, &whole[..whole.len() - 30_000]).unwrap();
    let ran = on(&path, "doctor --only IR01 --all-nodes").await;
    assert!(
        ran.out
            .contains("nodes are missing: the archive is truncated"),
        "{ran}"
    );
    assert_eq!(ran.code, 3);
    // An empty list of nodes is an error.
    let (_dir, path) = bundle_of(".tar", &[]);
    let ran = on(&path, "doctor --all-nodes").await;
    assert_eq!(ran.code, 2, "{ran}");
    assert!(ran.err.contains("there are no nodes"), "{ran}");
}

#[tokio::test]
async fn a_selector_selects_nodes_by_their_labels() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("all.tar");
    let mut bundle = kpx_node::evidence::NodesWriter::create(&path).unwrap();
    let object = |name: &str, zone: &str| {
        format!(r#"{{"metadata":{{"name":"{name}","labels":{{"zone":"{zone}"}}}}}}"#)
    };
    let objects = [object("w1", "a"), object("w2", "b"), object("w3", "b")].join(",");
    let mut evidence = kpx_node::evidence::Evidence::default();
    let nodes = kpx_node::evidence::Item::Nodes;
    evidence.insert(nodes, Ok(format!(r#"{{"items":[{objects}]}}"#)));
    let manifest = kpx_node::evidence::Manifest::of(&evidence, super::TIME.to_owned(), None);
    for name in ["w1", "w2"] {
        bundle.node(name, &evidence, &manifest).unwrap();
    }
    bundle.unread("w3", "gone".to_owned());
    bundle.finish(super::TIME.to_owned()).unwrap();
    let named = async |labels: &str| {
        let line = format!("show config -l {labels} -o json --parallel 1");
        let ran = on(&path, &line).await;
        let all: Value = serde_json::from_str(&ran.out).unwrap_or_else(|e| panic!("{e}: {ran}"));
        let nodes = all["nodes"].as_array().unwrap().iter();
        let names: Vec<_> = nodes
            .map(|node| node["node"].as_str().unwrap().to_owned())
            .collect();
        names.join(" ")
    };
    assert_eq!(named("zone=a").await, "w1");
    assert_eq!(named("zone!=a").await, "w2 w3");
    assert_eq!(named("zone").await, "w1 w2 w3");
    let ran = on(&path, "show config -l zone=c").await;
    assert_eq!(ran.code, 2, "{ran}");
    assert!(ran.err.contains("no node has the labels zone=c"), "{ran}");
    let ran = on(&path, "show config -l zone,,").await;
    assert!(
        ran.err.contains("\"\" is not a requirement on a label"),
        "{ran}"
    );
    let ran = on(&path, "show config --all-nodes --node w1").await;
    assert!(ran.err.contains("use one of them"), "{ran}");
    let (_dir, none) = bundle_of(".tar", &[("a", Ok("mx04-no-kube-proxy"))]);
    let ran = on(&none, "show config -l zone").await;
    assert_ne!(ran.code, 0, "{ran}");
}

#[tokio::test]
#[ignore = "takes long: make test-loops"]
async fn a_bundle_of_all_nodes_can_be_written_again_and_redacted() {
    let (dir, path) = bundle_of(".tar", CLUSTER);
    let again = dir.path().join("again.tar.gz");
    let ran = on(
        &path,
        &format!("snapshot --all-nodes --file {}", again.display()),
    )
    .await;
    let text = ran.to_string().replace(dir.path().to_str().unwrap(), "DIR");
    insta::assert_snapshot!("snapshot", text);
    for command in ["doctor", "diff"] {
        let before = on(&path, &format!("{command} --all-nodes")).await;
        let after = on(&again, &format!("{command} --all-nodes")).await;
        assert_eq!(before.to_string(), after.to_string());
    }
    let ran = on(
        &path,
        &format!("snapshot --all-nodes --file {}", again.display()),
    )
    .await;
    assert!(ran.err.contains("does not overwrite"), "{ran}");

    let redacted = dir.path().join("redacted");
    let line = format!(
        "snapshot --all-nodes --parallel 1 --redact --file {}",
        redacted.display()
    );
    let ran = on(&path, &line).await;
    assert_eq!(ran.err, "", "{ran}");
    let counts = async |path: &Path| {
        let ran = on(path, "doctor --only IR01,IR03 --all-nodes -o json").await;
        let all: Value = serde_json::from_str(&ran.out).unwrap();
        let summary = all["summary"].clone();
        let ids = summary["findings"]
            .as_array()
            .unwrap()
            .iter()
            .map(|summary| {
                (
                    summary["id"].clone(),
                    summary["nodes"].as_array().unwrap().len(),
                )
            });
        let ids: Vec<_> = ids.collect();
        (summary["errors"].clone(), summary["healthy"].clone(), ids)
    };
    assert_eq!(counts(&path).await, counts(&redacted).await);
    // Each node has its own name, and the objects of the cluster are still written once.
    let nodes = fs::read_dir(redacted.join("nodes")).unwrap();
    let mut names: Vec<_> = nodes.map(|node| node.unwrap().file_name()).collect();
    names.sort();
    assert_eq!(names.len(), 4);
    let own = |name| {
        redacted
            .join("nodes")
            .join(name)
            .join("cluster/services.json")
    };
    assert_eq!(names.iter().filter(|name| own(*name).exists()).count(), 1);
    let list = fs::read_to_string(redacted.join("kpx-nodes.json")).unwrap();
    assert!(!list.contains("\"w"), "{list}");
}

#[tokio::test]
async fn several_nodes_without_a_bundle_of_all_nodes_are_refused() {
    let one = super::recorded("seed-iptables");
    let ran = on(&one, "doctor --all-nodes").await;
    assert_eq!(ran.code, 4, "{ran}");
    assert!(
        ran.err
            .contains("is a bundle of one node, not of all nodes"),
        "{ran}"
    );
    let (_dir, all) = bundle_of(".tar", CLUSTER);
    let ran = on(&all, "snapshot --all-nodes --file -").await;
    assert_eq!(ran.code, 2, "{ran}");
    let ran = on(&all, "doctor").await;
    assert_eq!(ran.code, 4, "{ran}");
    assert!(
        ran.err
            .contains("is a bundle of all nodes: w1, w2, w3, w4, w5"),
        "{ran}"
    );
    assert!(
        ran.err
            .contains("--node NAME, or read all with --all-nodes"),
        "{ran}"
    );
}
