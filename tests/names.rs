//! Services named as for kubectl, and the line that says whose node a page is about.

use serde_json::{Value, json};

use crate::nodes::bundle_of;
use crate::support::{Ran, broken, kpx, kpx_on};

/// The output for the full name, which each of the other words must have, too.
async fn same(command: &[&str], full: &[&str], others: &[&[&str]]) {
    let on = async |words: &[&str]| kpx_on("seed-ipvs", &[command, words].concat()).await;
    let expected = on(full).await;
    assert!(matches!(expected.code, 0 | 1 | 3), "{expected}");
    for words in others {
        let ran = on(words).await;
        assert_eq!(
            (ran.code, &ran.out),
            (expected.code, &expected.out),
            "{words:?}: {ran}"
        );
    }
}

#[tokio::test]
async fn a_service_has_the_names_that_kubectl_knows() {
    let all: &[&[&str]] = &[
        &["nginx-svc"],
        &["svc/nginx-svc"],
        &["service/nginx-svc"],
        &["service", "nginx-svc"],
        &["SVC", "nginx-svc"],
        &["svc/default/nginx-svc"],
        &["nginx-svc", "-n", "default"],
        &["default/nginx-svc", "--namespace", "default"],
    ];
    for command in ["why", "trace"] {
        same(&[command], &["default/nginx-svc"], all).await;
    }
    same(&["show", "services"], &["default/nginx-svc"], all).await;
    same(
        &["show", "chains"],
        &["default/nginx-svc"],
        &[&["svc/nginx-svc"], &["svc", "nginx-svc"]],
    )
    .await;
    same(
        &["resolve"],
        &["nginx-svc.default"],
        &[&["svc/nginx-svc"], &["default/nginx-svc"]],
    )
    .await;
    same(
        &["why"],
        &["default/nginx-svc:80"],
        &[&["nginx-svc:80"], &["svc/nginx-svc:80"]],
    )
    .await;
}

#[tokio::test]
async fn views_have_the_names_that_kubectl_knows() {
    let expected = kpx_on("seed-ipvs", &["show", "services"]).await;
    for view in ["svc", "service", "ep", "endpoints", "endpointslices"] {
        let ran = kpx_on("seed-ipvs", &["show", view]).await;
        assert_eq!(ran.out, expected.out, "{view}: {ran}");
    }
    let ran = kpx_on("seed-ipvs", &["show", "svcs"]).await;
    assert_eq!(ran.code, 2, "{ran}");
}

#[track_caller]
fn refused(ran: &Ran, parts: &[&str]) {
    fails(ran, 2, parts);
}

#[track_caller]
fn fails(ran: &Ran, code: u8, parts: &[&str]) {
    assert_eq!(ran.code, code, "{ran}");
    for part in parts {
        assert!(ran.err.contains(part), "{part}: {ran}");
    }
}

#[tokio::test]
async fn a_wrong_name_gets_similar_ones_and_a_name_of_several_all() {
    for command in [&["why"][..], &["trace"], &["show", "svc"]] {
        let on = async |words: &[&str]| kpx_on("seed-ipvs", &[command, words].concat()).await;
        let ran = on(&["ngnix-svc"]).await;
        fails(
            &ran,
            1,
            &[
                "no Service is named ngnix-svc",
                "did you mean default/nginx-svc",
            ],
        );
        let ran = on(&["nginx-svc", "-n", "kube-system"]).await;
        fails(
            &ran,
            1,
            &[
                "namespace kube-system has no Service nginx-svc",
                "did you mean default/nginx-svc?",
            ],
        );
        let ran = on(&["default/nginx-svc", "-n", "kube-system"]).await;
        refused(&ran, &["default/nginx-svc is not in namespace kube-system"]);
        let ran = on(&["pod", "nginx-svc"]).await;
        refused(&ran, &["unexpected argument \"nginx-svc\""]);
    }
    let ran = kpx_on("seed-ipvs", &["why", "10.96.0.1", "-n", "default"]).await;
    refused(&ran, &["10.96.0.1 has no namespace"]);

    let twice = |text: &str| {
        let mut list: Value = serde_json::from_str(text).unwrap();
        let items = list["items"].as_array_mut().unwrap();
        let is_it = |of: &&Value| of["metadata"]["name"] == "nginx-svc";
        let mut copy = items.iter().find(is_it).unwrap().clone();
        copy["metadata"]["namespace"] = "other".into();
        items.push(copy);
        list.to_string()
    };
    let bundle = broken("seed-ipvs", &[("cluster/services.json", &twice)]);
    let from = bundle.path().to_str().unwrap();
    let ran = kpx(&["--from", from, "why", "nginx-svc"]).await;
    refused(
        &ran,
        &["2 Services are named nginx-svc: default/nginx-svc, other/nginx-svc"],
    );
    let ran = kpx(&["--from", from, "why", "nginx-svc", "-n", "other"]).await;
    assert!(ran.out.contains("other/nginx-svc"), "{ran}");
}

#[tokio::test]
async fn a_name_alone_is_looked_up_in_the_namespace_of_the_context() {
    let twice = |text: &str| {
        let mut list: Value = serde_json::from_str(text).unwrap();
        let items = list["items"].as_array_mut().unwrap();
        let is_it = |of: &&Value| of["metadata"]["name"] == "nginx-svc";
        let mut copy = items.iter().find(is_it).unwrap().clone();
        copy["metadata"]["namespace"] = "other".into();
        copy["spec"]["clusterIP"] = "10.97.54.249".into();
        copy["spec"]["clusterIPs"] = json!(["10.97.54.249"]);
        items.push(copy);
        list.to_string()
    };
    let bundle = broken("seed-ipvs", &[("cluster/services.json", &twice)]);
    let kubeconfig = bundle.path().join("kubeconfig");
    let contexts = ["default", "other", "none"].map(|namespace| {
        json!({"name": namespace, "context": {"cluster": "c", "user": "u", "namespace": namespace}})
    });
    let config = json!({
        "contexts": contexts,
        "clusters": [{"name": "c", "cluster": {"server": "http://127.0.0.1:9"}}],
        "users": [{"name": "u", "user": {"token": "t"}}],
    });
    std::fs::write(&kubeconfig, config.to_string()).unwrap();
    let (path, kubeconfig) = (
        bundle.path().to_str().unwrap(),
        kubeconfig.to_str().unwrap(),
    );
    let on = async |context: &str, more: &[&str]| {
        // The node is read live: an empty folder as its root.
        let node = ["--cluster-from", path, "--root", path];
        let cluster = ["--kubeconfig", kubeconfig, "--context", context];
        kpx(&[&node[..], &cluster, &["trace", "nginx-svc"], more].concat()).await
    };
    for (context, more, found) in [
        (
            "default",
            &[][..],
            "default/nginx-svc (10.97.54.248:80/tcp)",
        ),
        ("other", &[], "other/nginx-svc (10.97.54.249:80/tcp)"),
        (
            "other",
            &["-n", "default"],
            "default/nginx-svc (10.97.54.248:80/tcp)",
        ),
    ] {
        let ran = on(context, more).await;
        assert!(ran.out.contains(found), "{context} {more:?}: {ran}");
    }
    // A namespace without such a Service decides nothing.
    let ran = on("none", &[]).await;
    let several = "2 Services are named nginx-svc: default/nginx-svc, other/nginx-svc";
    refused(&ran, &[several]);
}

#[tokio::test]
async fn a_bundle_of_all_nodes_has_the_services_once() {
    let (_dir, path) = bundle_of(
        ".tar",
        &[("a", Ok("seed-ipvs")), ("b", Ok("seed-iptables"))],
    );
    let from = path.to_str().unwrap();
    let short = kpx(&["--from", from, "why", "nginx-svc", "--all-nodes"]).await;
    let full = kpx(&["--from", from, "why", "default/nginx-svc", "--all-nodes"]).await;
    assert_eq!((short.code, &short.out), (full.code, &full.out), "{short}");
    assert!(full.out.starts_with("2 nodes, recording"), "{full}");
}

#[tokio::test]
async fn the_first_line_says_whose_node_it_is() {
    for line in [
        "doctor",
        "doctor -v",
        "why default/nginx-svc",
        "trace default/nginx-svc",
        "show services",
        "show chains",
        "show config",
        "diff",
        "reconcile",
        "reconcile --cleanup iptables",
        "preflight --to nftables",
        "resolve nginx-svc",
        "explain SY01",
    ] {
        let words: Vec<&str> = line.split(' ').collect();
        let ran = kpx_on("seed-ipvs", &words).await;
        let first = ran.out.lines().next().unwrap_or_default();
        let is_of_a_node = !line.starts_with("explain");
        assert_eq!(
            first == "node1, recording of 20 Nov 2026 12:44 UTC, ipvs",
            is_of_a_node,
            "{line}: {ran}"
        );
        if line == "doctor -v" {
            continue;
        }
        let ran = kpx_on("seed-ipvs", &[&words[..], &["-o", "json"]].concat()).await;
        let report: Value = serde_json::from_str(&ran.out).unwrap();
        let expected = serde_json::json!({
            "node": "node1", "source": "recording", "time": "2026-11-20T12:44:31Z", "mode": "ipvs"
        });
        let expected = if is_of_a_node { expected } else { Value::Null };
        assert_eq!(report["origin"], expected, "{line}: {ran}");
    }
}

#[tokio::test]
async fn commands_for_another_machine_name_it() {
    let ran = kpx_on("sy01-ip-forward-off", &["doctor"]).await;
    for part in [
        "\n  fix   on node1: sysctl -w net.ipv4.ip_forward=1\n",
        "\nnext: on node1: sysctl -w net.ipv4.ip_forward=1\n",
    ] {
        assert!(ran.out.contains(part), "{part}: {ran}");
    }
    let ran = kpx_on("sy01-ip-forward-off", &["doctor", "-o", "json"]).await;
    let report: Value = serde_json::from_str(&ran.out).unwrap();
    assert_eq!(report["next"], "sysctl -w net.ipv4.ip_forward=1", "{ran}");
    assert_eq!(report["nextMachine"], "node1", "{ran}");
    let fix = &report["findings"][0]["fix"];
    assert_eq!(
        (&fix["command"], &fix["machine"]),
        (&report["next"], &report["nextMachine"])
    );
}
