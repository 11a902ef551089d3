//! The answers of `kpx diff` and `kpx why` from texts alone: certain faults, and unknown parts.

use std::fs;

use super::{flat, zip};
use crate::support::{Ran, kpx, recorded};

fn file(name: &str, path: &str) -> String {
    recorded(name, path).unwrap_or_else(|| panic!("{name} has no {path}"))
}

/// Returns the outputs of commands on node1, each a command and what it prints.
fn session(outputs: &[(&str, String)]) -> String {
    let of = |(command, text): &(&str, String)| {
        format!("root@node1:~# {command}\n{}\n", text.trim_end())
    };
    outputs.iter().map(of).collect()
}

/// Returns the Services and slices of a recording, as kubectl prints them.
fn objects(name: &str) -> (&'static str, String) {
    let parts = ["cluster/services.json", "cluster/endpointslices.json"];
    let text = parts.map(|path| file(name, path)).join("\n");
    ("kubectl get svc,endpointslices -A -o json", text)
}

/// Runs kpx on `text`.
pub(super) async fn ask(text: &str, command: &[&str]) -> Ran {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("paste.txt");
    fs::write(&path, text).unwrap();
    let path = path.display().to_string();
    let args = [&["--from", &path][..], command].concat();
    kpx(&args).await
}

/// Returns the rules of a mode, as their tools print them.
fn rules(name: &str) -> Vec<(&'static str, String)> {
    if name.contains("nftables") {
        return vec![("nft list ruleset", file(name, "node/nft.txt"))];
    }
    let mut all = vec![("iptables-save", file(name, "node/iptables-save.txt"))];
    if name.contains("ipvs") {
        all.push(("ipvsadm -Sn", file(name, "node/ipvsadm-save.txt")));
        all.push(("ipset save", file(name, "node/ipset-save.txt")));
        all.push(("ip -j addr", file(name, "node/ip-addr.json")));
    }
    all
}

#[tokio::test]
async fn rules_and_services_are_compared_without_a_configuration() {
    compared_without_a_configuration(&[
        ("seed-iptables", "-A KUBE-SERVICES -d "),
        ("seed-nftables", " : goto service-"),
        ("seed-ipvs", "-a -t "),
    ])
    .await;
}

/// Names of recordings, and what the line begins with that is lost.
pub(crate) async fn compared_without_a_configuration(nodes: &[(&str, &str)]) {
    for &(name, lost) in nodes {
        let all = [rules(name), vec![objects(name)]].concat();
        let whole = session(&all);
        let ran = ask(&whole, &["diff"]).await;
        assert!(ran.out.contains("no difference"), "{name}: {ran}");
        assert!(
            flat(&ran.out)
                .contains("configuration is assumed: it is not in the text; the rules show mode"),
            "{ran}"
        );
        // Without one rule, member or real server.
        let first = whole.lines().find(|line| line.contains(lost)).unwrap();
        let broken = match lost {
            " : goto service-" => {
                let element = first
                    .trim()
                    .trim_end_matches(',')
                    .replace("elements = { ", "");
                whole.replacen(&element, "10.255.255.1 . tcp . 1 : goto service-X", 1)
            }
            _ => whole.replacen(&format!("{first}\n"), "", 1),
        };
        let ran = ask(&broken, &["diff"]).await;
        assert!(ran.out.contains("missing"), "{name}: {first}: {ran}");
        assert_eq!(ran.code, 1, "{name}: {ran}");
    }
}

#[tokio::test]
async fn what_other_rules_cannot_avert_is_certain_without_the_nftables_rules() {
    let name = "seed-iptables";
    let lines = file(name, "node/iptables-save.txt");
    let services = file(name, "cluster/services.json");
    let services: serde_json::Value = serde_json::from_str(&services).unwrap();
    let web = services["items"]
        .as_array()
        .unwrap()
        .iter()
        .find(|service| {
            lines.contains(&format!(
                "-A KUBE-SERVICES -d {}/32",
                service["spec"]["clusterIP"].as_str().unwrap()
            ))
        })
        .unwrap();
    let address = web["spec"]["clusterIP"].as_str().unwrap();
    let service = format!(
        "{}/{}",
        web["metadata"]["namespace"].as_str().unwrap(),
        web["metadata"]["name"].as_str().unwrap()
    );
    let without = lines
        .lines()
        .filter(|line| !line.contains(&format!("-A KUBE-SERVICES -d {address}/32")));
    let without = without.fold(String::new(), |all, line| all + line + "\n");
    let ran = ask(
        &session(&[("iptables-save", without), objects(name)]),
        &["why", &service],
    )
    .await;
    assert_eq!(ran.code, 1, "{ran}");
    let page = flat(&ran.out);
    assert!(
        page.contains("is missing") && page.contains("owner of the rule: kube-proxy"),
        "{ran}"
    );
    assert!(
        page.contains("unknown: the nftables rules are unknown"),
        "{ran}"
    );
    // A connection that works by the shown rules may fail in others.
    let ran = ask(
        &session(&[("iptables-save", lines), objects(name)]),
        &["why", &service],
    )
    .await;
    assert_eq!(ran.code, 3, "{ran}");
    assert!(
        flat(&ran.out).contains("the nftables rules are unknown"),
        "{ran}"
    );
}

#[tokio::test]
async fn an_address_that_kube_ipvs0_lacks_is_certain_without_any_rules() {
    let name = "seed-ipvs";
    let addresses = file(name, "node/ip-addr.json");
    let services = file(name, "cluster/services.json");
    let services: serde_json::Value = serde_json::from_str(&services).unwrap();
    let web = &services["items"]
        .as_array()
        .unwrap()
        .iter()
        .find(|service| {
            service["metadata"]["name"] != "kubernetes" && service["spec"]["clusterIP"] != "None"
        })
        .unwrap();
    let address = web["spec"]["clusterIP"].as_str().unwrap();
    let service = format!(
        "{}/{}",
        web["metadata"]["namespace"].as_str().unwrap(),
        web["metadata"]["name"].as_str().unwrap()
    );
    let mut links: serde_json::Value = serde_json::from_str(&addresses).unwrap();
    for link in links.as_array_mut().unwrap() {
        if let Some(all) = link["addr_info"].as_array_mut() {
            all.retain(|info| info["local"] != address);
        }
    }
    let text = session(&[
        ("ipvsadm -Sn", file(name, "node/ipvsadm-save.txt")),
        ("ip -j addr", links.to_string()),
        objects(name),
    ]);
    let ran = ask(&text, &["why", &service]).await;
    assert!(
        flat(&ran.out).contains(&format!("link kube-ipvs0 address {address} is missing")),
        "{ran}"
    );
}

const PAYMENTS: &str = "$ kubectl get svc payments -n shop\nNAME TYPE CLUSTER-IP EXTERNAL-IP PORT(S) AGE\n\
                        payments ClusterIP 10.43.201.9 <none> 8080/TCP 4s\n";

#[tokio::test]
async fn no_endpoints_are_the_answer_whatever_the_rules_are() {
    for shown in [
        "$ kubectl get ep payments -n shop\nNAME ENDPOINTS AGE\npayments <none> 4s\n",
        "$ kubectl get endpointslices -n shop\nNAME ADDRESSTYPE PORTS ENDPOINTS AGE\npayments-x7k2p IPv4 <unset> <unset> 4s\n",
    ] {
        let ran = ask(&format!("{PAYMENTS}{shown}"), &["why", "shop/payments"]).await;
        assert_eq!(ran.code, 1, "{ran}");
        assert!(
            flat(&ran.out).contains("REFUSED: shop/payments has no endpoints"),
            "{ran}"
        );
    }
    // Whether pods that are not ready exist, these forms do not say.
    let described = "$ kubectl describe svc payments -n shop\nName: payments\nNamespace: shop\nSelector: app=payments\n\
                     Type: ClusterIP\nIP: 10.43.201.9\nPort: grpc 8080/TCP\nTargetPort: grpc/TCP\nEndpoints:\n";
    let ran = ask(described, &["why", "shop/payments"]).await;
    assert_eq!(ran.code, 1, "{ran}");
    assert!(
        flat(&ran.out).contains(
            "has no ready endpoint; whether pods match its selector app=payments is not shown"
        ),
        "{ran}"
    );
    // The endpoints of another Service say nothing of this one.
    let other = "$ kubectl get ep cart -n shop\nNAME ENDPOINTS AGE\ncart 10.42.1.23:8080 4s\n";
    let ran = ask(&format!("{PAYMENTS}{other}"), &["why", "shop/payments"]).await;
    assert_eq!(ran.code, 3, "{ran}");
    assert!(!ran.out.contains("no endpoints"), "{ran}");
}

/// Returns the files of a sysdump with the agents of nodes w1 and w2.
fn sysdump(rules: &str) -> Vec<(&'static str, String)> {
    let address = |addr: &str| {
        format!(
            "# ip a\n\n```\n2: eth0: <BROADCAST,UP> mtu 1500 state UP\n    inet {addr}/24 scope global eth0\n```\n"
        )
    };
    let node = |name: &str, addr: &str| {
        format!(
            "- apiVersion: v1\n  kind: Node\n  metadata: {{name: {name}}}\n  status:\n    addresses: [{{type: InternalIP, address: {addr}}}]\n"
        )
    };
    let list = |items: String| format!("apiVersion: v1\nkind: List\nitems:\n{items}");
    vec![
        ("s/cilium-bugtool-cilium-abcde-20261103-102231/cmd/ip-a.md", address("192.0.2.11")),
        ("s/cilium-bugtool-cilium-fghij-20261103-102231/cmd/ip-a.md", address("192.0.2.12")),
        ("s/cilium-bugtool-cilium-abcde-20261103-102231/cmd/iptables-save--c.md", rules.to_owned()),
        ("s/k8s-nodes-20261103-102231.yaml", list(node("w1", "192.0.2.11") + &node("w2", "192.0.2.12"))),
        (
            "s/k8s-services-20261103-102231.yaml",
            list(
                "- apiVersion: v1\n  kind: Service\n  metadata: {name: cart, namespace: shop}\n  spec:\n    clusterIP: 10.43.120.7\n    \
                 clusterIPs: [10.43.120.7]\n    ports: [{name: http, port: 80, protocol: TCP}]\n"
                    .to_owned(),
            ),
        ),
    ]
}

#[tokio::test]
async fn agents_of_cilium_are_the_nodes_of_their_pods_or_addresses() {
    let dir = tempfile::tempdir().unwrap();
    let from = |name: &str, files: &[(&str, String)]| {
        let path = dir.path().join(name);
        zip(&path, files);
        path.display().to_string()
    };
    let save = "# iptables-save -c\n\n```\n*filter\n:INPUT ACCEPT [0:0]\n:FORWARD ACCEPT [0:0]\n:OUTPUT ACCEPT [0:0]\nCOMMIT\n```\n";
    let mut files = sysdump(save);
    let by_address = from("address.zip", &files);
    files.push((
        "s/k8s-pods-20261103-102231.yaml",
        "apiVersion: v1\nkind: List\nitems:\n\
         - {apiVersion: v1, kind: Pod, metadata: {name: cilium-abcde, namespace: kube-system}, spec: {nodeName: w1}}\n\
         - {apiVersion: v1, kind: Pod, metadata: {name: cilium-fghij, namespace: kube-system}, spec: {nodeName: w2}}\n"
            .to_owned(),
    ));
    let by_pod = from("pods.zip", &files);
    let unnamed = sysdump(save);
    let unnamed: Vec<_> = unnamed
        .into_iter()
        .filter(|(path, _)| !path.contains("k8s-nodes"))
        .collect();
    let unnamed = from("unnamed.zip", &unnamed);
    for (path, names) in [
        (&by_address, ["w1", "w2"]),
        (&by_pod, ["w1", "w2"]),
        (&unnamed, ["cilium-abcde", "cilium-fghij"]),
    ] {
        let ran = kpx(&["--from", path, "doctor"]).await;
        assert!(ran.err.contains(&format!("node {}", names[0])), "{ran}");
        assert!(ran.err.contains(&format!("--node: {}", names[1])), "{ran}");
        assert_ne!(ran.code, 2, "{ran}");
        let ran = kpx(&["--from", path, "--node", names[1], "why", "shop/cart"]).await;
        assert_ne!(ran.code, 2, "{ran}");
    }
    // Its programs serve: what no rule translates is no fault.
    let mut replaced = sysdump(save);
    replaced.push((
        "s/cilium-bugtool-cilium-abcde-20261103-102231/cmd/cilium-dbg-service-list.md",
        "# cilium-dbg service list\n\n```\nID   Frontend             Service Type   Backend\n\
         1    10.43.120.7:80/TCP   ClusterIP      1 => 10.42.1.23:8080/TCP (active)\n```\n"
            .to_owned(),
    ));
    let ran = kpx(&[
        "--from",
        &from("replaced.zip", &replaced),
        "why",
        "shop/cart",
    ])
    .await;
    assert_eq!(ran.code, 3, "{ran}");
    let page = flat(&ran.out);
    assert!(
        page.contains("`cilium-dbg service list` shows 1 front end of Cilium"),
        "{ran}"
    );
}

#[tokio::test]
async fn endpoints_that_are_not_shown_are_not_gone() {
    let name = "seed-iptables";
    let text = session(&[
        ("iptables-save", file(name, "node/iptables-save.txt")),
        (
            "kubectl get svc -A",
            "NAMESPACE NAME TYPE CLUSTER-IP EXTERNAL-IP PORT(S) AGE\nshop web ClusterIP 10.96.0.99 <none> 80/TCP 1d\n".to_owned(),
        ),
    ]);
    let ran = ask(&text, &["show", "service", "shop/web"]).await;
    assert!(
        !ran.out.contains("gone") && !ran.out.contains("managed by hand"),
        "{ran}"
    );
    let listed = "$ ifconfig\neth0: flags=4163<UP>  mtu 1500\n        inet 192.0.2.11  netmask 255.255.255.0\n";
    let ran = ask(listed, &["show", "addresses"]).await;
    assert!(ran.out.contains("kube-ipvs0 is not shown"), "{ran}");
    let cut = "$ ipset list\nName: KUBE-CLUSTER-IP\nType: hash:ip,port\nRevision: 7\nHeader: family inet\nSize in memory: 1\n\
               References: 1\nNumber of entries: 3\nMembers:\n10.43.0.1,tcp:443\n...\n";
    let ran = ask(cut, &["show", "sets"]).await;
    assert!(ran.out.contains("no IP set is shown completely"), "{ran}");
}
