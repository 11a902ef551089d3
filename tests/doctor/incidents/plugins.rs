//! What plugins and switches leave, and what a trace remarks.

use kpx_node::evidence::Item;
use serde_json::Value;

use super::{copy, findings, is_silent, load, texts, write};
use crate::doctor::case::{append, edit, replace};
use crate::support::kpx;

/// Adds a pod like calico-node's, or changes that one.
fn agent(name: &'static str, image: &'static str, is_new: bool) -> impl Fn(&str) -> String {
    move |text| {
        let mut list: Value = serde_json::from_str(text).unwrap();
        let pods = list["items"].as_array_mut().unwrap();
        let is_agent = |of: &&mut Value| {
            of["metadata"]["name"]
                .as_str()
                .unwrap()
                .starts_with("calico-node")
        };
        let agent = pods.iter_mut().find(is_agent).unwrap();
        let mut new = agent.clone();
        new["metadata"]["name"] = name.into();
        new["spec"]["containers"][0]["image"] = image.into();
        if is_new {
            pods.push(new);
        } else {
            *agent = new;
        }
        list.to_string()
    }
}

async fn left_over(dir: &tempfile::TempDir) -> Vec<(String, String)> {
    let from = dir.path().to_str().unwrap();
    let ran = kpx(&["--from", from, "doctor", "--only", "CN12", "-o", "json"]).await;
    let report: Value = serde_json::from_str(&ran.out).unwrap();
    let text = |of: &Value| of.as_str().unwrap().to_owned();
    findings(&report["findings"])
        .map(|finding| (text(&finding["subject"]), text(&finding["severity"])))
        .collect()
}

#[tokio::test]
async fn a_plugin_whose_agent_is_there_leaves_nothing_over() {
    const CASE: &str = "rules-16-flannel-postrtg-left";
    let of = |name: &str, severity: &str| (name.to_owned(), severity.to_owned());
    // Canal is flannel and Calico together.
    let dir = copy(CASE);
    write(
        &dir,
        "cluster/pods.json",
        agent("kube-flannel-ds-1", "flannel/flannel:v0.26", true),
    );
    assert_eq!(left_over(&dir).await, []);
    // k3s contains flannel, unless its arguments say otherwise.
    let dir = copy(CASE);
    let k3s = |args: &'static str| {
        move |text: &str| {
            let mut list: Value = serde_json::from_str(text).unwrap();
            for node in list["items"].as_array_mut().unwrap() {
                node["status"]["nodeInfo"]["kubeletVersion"] = "v1.33.2+k3s1".into();
                node["metadata"]["annotations"] = serde_json::json!({"k3s.io/node-args": args});
            }
            list.to_string()
        }
    };
    write(&dir, "cluster/nodes.json", k3s("[\"server\"]"));
    assert_eq!(left_over(&dir).await, []);
    write(
        &dir,
        "cluster/nodes.json",
        k3s("[\"server\",\"--flannel-backend\",\"none\"]"),
    );
    assert_eq!(left_over(&dir).await, [of("flannel", "error")]);
    // After another change, both plugins are left.
    let dir = copy(CASE);
    write(
        &dir,
        "cluster/pods.json",
        agent("cilium-x", "quay.io/cilium/cilium:v1.17", false),
    );
    let both = [of("Calico", "error"), of("flannel", "error")];
    assert_eq!(left_over(&dir).await, both);
    // Links alone have no effect on other packets.
    let dir = copy(CASE);
    write(&dir, "node/iptables-save.txt", |text| {
        let lines = text.lines().filter(|line| !line.contains("FLANNEL"));
        lines.collect::<Vec<_>>().join("\n") + "\n"
    });
    assert_eq!(left_over(&dir).await, []);
    write(&dir, "node/ip-link.json", |text| {
        text.replace("vxlan.calico", "flannel.1")
    });
    assert_eq!(left_over(&dir).await, [of("flannel", "warning")]);
}

#[tokio::test]
async fn a_trace_remarks_on_a_pod_whose_address_another_pod_does_not_see() {
    let dir = "testdata/cases/rules-16-flannel-postrtg-left";
    let trace = [
        "--from",
        dir,
        "trace",
        "shop/api",
        "--source",
        "shop/client",
    ];
    let ran = kpx(&trace).await;
    let note = "rule 3 of chain FLANNEL-POSTRTG in table nat (flannel) replaces the source";
    assert!(ran.out.contains(note), "{ran}");
}

#[tokio::test]
async fn a_trace_names_the_filter_that_a_node_port_bypasses() {
    let dir = copy("rules-12-talos-firewall-nodeport");
    let from = dir.path().to_str().unwrap();
    let trace = [
        "--from",
        from,
        "trace",
        "nodeport:30080",
        "--source",
        "external",
        "-o",
        "json",
    ];
    let notes = |ran: &crate::support::Ran| {
        let report: Value = serde_json::from_str(&ran.out).unwrap();
        report
            .to_string()
            .matches("does not apply: the packet is translated")
            .count()
    };
    let ran = kpx(&trace).await;
    assert!(notes(&ran) > 0, "{ran}");
    // From a pod of the node, no packet passes the chains at input.
    let inside = kpx(&["--from", from, "trace", "shop/cart", "-o", "json"]).await;
    assert_eq!(notes(&inside), 0, "{inside}");
    // A table that filters before packets are translated does.
    write(&dir, "node/nft.txt", |text| {
        let early = "\tchain early {\n\t\ttype filter hook prerouting priority -110; policy accept;\n\t\ttcp dport 30080 drop\n\t}\n";
        let table = "table inet talos {\n";
        text.replacen(table, &format!("{table}{early}"), 1)
    });
    let ran = kpx(&trace).await;
    assert_eq!(notes(&ran), 0, "{ran}");
}

#[tokio::test]
async fn a_switch_that_breaks_connections_is_blocked_by_class() {
    for (case, class, words) in [
        (
            "ipvs-03b-hostport-before-switch-to-ipvs",
            "pod-to-cluster-ip",
            "connections from pods to cluster IPs of default/kubernetes",
        ),
        (
            "ipvs-03b-hostport-before-switch-to-ipvs",
            "host-to-cluster-ip",
            "reach another program: rule 6 of chain CNI-DN-",
        ),
        (
            "ipvs-04b-k3s-servicelb-before-switch",
            "host-to-cluster-ip",
            "are refused",
        ),
    ] {
        let dir = format!("testdata/cases/{case}");
        let ran = kpx(&["--from", &dir, "preflight", "--to", "ipvs", "-o", "json"]).await;
        assert_eq!(ran.code, 1, "{case}");
        let report: Value = serde_json::from_str(&ran.out).unwrap();
        let is_it = |of: &&Value| of["id"] == "MX12" && of["about"]["class"] == class;
        let found = findings(&report["assessment"]["findings"]).find(is_it);
        let found = found.unwrap_or_else(|| panic!("{case}: {ran}"));
        assert_eq!(found["severity"], "error");
        let message = found["message"].as_str().unwrap();
        assert!(message.contains(words), "{message}");
        let fix = found["fix"]["text"].as_str().unwrap();
        assert!(fix.contains(&format!("--accept-loss {class}")), "{fix}");
    }
    // A switch to the same mode breaks nothing.
    let dir = "testdata/cases/ipvs-03b-hostport-before-switch-to-ipvs";
    let ran = kpx(&["--from", dir, "doctor", "--to", "iptables", "-o", "json"]).await;
    assert!(is_silent(&serde_json::from_str(&ran.out).unwrap(), "MX12"));
}

/// A firewall at input stops one prefix of pods, of which no example is judged: in mode ipvs, their packets to Services pass it.
#[tokio::test]
async fn packets_of_a_few_senders_that_the_new_mode_loses_block_the_switch() {
    let dir = crate::support::broken(
        "seed-iptables",
        &[("node/iptables-save.txt", &|text: &str| {
            let filter = text.find("*filter").unwrap();
            let end = filter + text[filter..].find("COMMIT").unwrap();
            let rule = "-A INPUT -s 10.244.1.128/28 -p tcp -m tcp --dport 80 -j DROP\n";
            format!("{}{rule}{}", &text[..end], &text[end..])
        })],
    );
    let found = |mode: &'static str| {
        let from = dir.path().to_str().unwrap().to_owned();
        async move {
            let ran = kpx(&["--from", &from, "doctor", "--to", mode, "-o", "json"]).await;
            let report: Value = serde_json::from_str(&ran.out).unwrap();
            let all = findings(&report["findings"]).filter(|finding| finding["id"] == "MX12");
            let messages = all.map(|finding| finding["message"].as_str().unwrap().to_owned());
            messages.collect::<Vec<_>>()
        }
    };
    let ipvs = found("ipvs").await.join("\n");
    let words = "connections from pods to cluster IPs of default/nginx-svc";
    assert!(ipvs.contains(words), "{ipvs}");
    assert!(ipvs.contains("of chain INPUT in table filter"), "{ipvs}");
    assert_eq!(found("nftables").await, [""; 0]);
}

#[test]
fn host_ports_of_pods_that_are_gone_are_found_and_those_of_living_ones_are_not() {
    let mut evidence = load("seen-05-portmap-duplicate");
    edit(&mut evidence, Item::Pods, |all| {
        let all = all["items"].as_array_mut().unwrap();
        all.retain(|pod| pod["status"]["podIP"] != "10.244.1.51");
    });
    let left = texts(&evidence, "CN06");
    assert_eq!(left.len(), 2, "{left:?}");
    assert!(
        left[0].contains("10.244.1.50, which no pod on this node has"),
        "{left:?}"
    );
    let mut evidence = load("seen-05-portmap-duplicate");
    replace(&mut evidence, Item::Iptables4, "10.244.1.50", "10.244.1.51");
    assert_eq!(texts(&evidence, "CN06"), Vec::<String>::new());

    let mut evidence = load("seen-09-hostport-udp-stale");
    append(
        &mut evidence,
        Item::Conntrack,
        "udp 17 29 src=10.244.1.30 dst=8.8.8.8 sport=4583 dport=53 src=8.8.8.8 dst=192.168.50.11 sport=53 dport=4583 mark=0 use=1",
    );
    assert_eq!(texts(&evidence, "CT02").len(), 1);
    replace(&mut evidence, Item::Conntrack, "10.244.1.60", "10.244.1.61");
    assert_eq!(texts(&evidence, "CT02"), Vec::<String>::new());
}
