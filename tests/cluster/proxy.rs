//! What a running kube-proxy answers, and its configuration.

use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use kpx_host::{Options, collect};
use kpx_node::evidence::{Gap, Item};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;

use super::{Api, Node, gap, hangs, names, nowhere, well};
use crate::fake_api::kubeconfig;

/// A server that sends `answer` to every client and closes the connection.
pub(super) async fn says(answer: String) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        loop {
            let (mut stream, _) = listener.accept().await.unwrap();
            let answer = answer.clone();
            tokio::spawn(async move {
                let mut request = [0; 4096];
                let length = stream.read(&mut request).await.unwrap();
                assert!(request[..length].starts_with(b"GET /"));
                // The client may close the connection early.
                stream.write_all(answer.as_bytes()).await.ok();
            });
        }
    });
    address
}

/// A node whose kube-proxy serves at the addresses `metrics` and `healthz`.
fn proxied(metrics: SocketAddr, healthz: SocketAddr) -> Node {
    let node = Node::new();
    node.process(
        71,
        &["/usr/local/bin/kube-proxy", "--config=/etc/kp/config.conf"],
    );
    let text = format!(
        "kind: KubeProxyConfiguration\nmode: ipvs\nhostnameOverride: Node1\n\
         metricsBindAddress: {metrics}\nhealthzBindAddress: {healthz}\n"
    );
    node.write("proc/71/root/etc/kp/real.conf", &text);
    // As in a container: the link is absolute, and leads to a file of the container.
    let link = node.path("proc/71/root/etc/kp/config.conf");
    std::os::unix::fs::symlink(Path::new("/etc/kp/real.conf"), link).unwrap();
    node
}

#[tokio::test]
async fn a_running_kube_proxy_is_read_at_its_configured_addresses() {
    let metrics = says(
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nipv\r\n1\r\ns\r\n0\r\n\r\n"
            .to_owned(),
    )
    .await;
    let body = r#"{"nodeEligible":true,"healthy":false}"#;
    let healthz = says(format!(
        "HTTP/1.1 503 Service Unavailable\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    ))
    .await;
    let node = proxied(metrics, healthz);
    let items = [
        Item::ProxyConfig,
        Item::ProxyMode,
        Item::Healthz,
        Item::Metrics,
    ];
    let evidence = node.read(&items).await;
    assert!(
        evidence
            .text(Item::ProxyConfig)
            .unwrap()
            .contains("mode: ipvs")
    );
    assert_eq!(evidence.text(Item::ProxyMode), Ok("ipvs"));
    assert_eq!(evidence.text(Item::Metrics), Ok("ipvs"));
    assert_eq!(evidence.text(Item::Healthz), Ok(body));
}

#[tokio::test]
async fn an_endless_answer_is_cut_off() {
    let metrics = says("HTTP/1.1 200 OK\r\n\r\n".to_owned() + &"x".repeat(17 << 20)).await;
    let node = proxied(metrics, metrics);
    let evidence = node.read(&[Item::Metrics]).await;
    let why = gap(&evidence, Item::Metrics).to_string();
    assert!(why.ends_with("the answer is longer than 16 MiB"), "{why}");
}

#[tokio::test]
async fn a_silent_kube_proxy_and_no_kube_proxy_are_different_gaps() {
    let (hanging, _) = hangs().await;
    let away = nowhere().await;
    let node = proxied(hanging, away);
    let options = Options {
        timeout: Duration::from_millis(300),
        ..node.options()
    };
    let evidence = collect(&[Item::Metrics, Item::Healthz], &options).await;
    let Gap::Late(_, why) = gap(&evidence, Item::Metrics) else {
        panic!("{evidence:?}");
    };
    assert!(why.contains("no complete answer within"), "{why}");
    let Gap::Unreachable(_, why) = gap(&evidence, Item::Healthz) else {
        panic!("{evidence:?}");
    };
    let expected = format!(
        "no answer from {away}: Connection refused (os error 111); kube-proxy (process 71) runs"
    );
    assert_eq!(why, expected);
}

#[tokio::test]
async fn the_node_has_the_name_that_kube_proxy_gives_it() {
    let api = Api::start(well);
    let away = nowhere().await;
    let node = proxied(away, away);
    node.write("kubeconfig", &kubeconfig(&api.url, ""));
    node.write("etc/hostname", "Other\n");
    let options = Options {
        node: None,
        ..node.options()
    };
    let evidence = collect(&[Item::Pods], &options).await;
    assert_eq!(names(&evidence, Item::Pods), ["coredns", "kube-proxy-1"]);
    fs::remove_dir_all(node.path("proc/71")).unwrap();
    let evidence = collect(&[Item::ProxyLog], &options).await;
    assert!(evidence.text(Item::ProxyLog).is_ok());
    let asked = api.asked();
    assert!(
        asked
            .iter()
            .any(|path| path.contains("spec.nodeName%3Dother")),
        "{asked:?}"
    );
}

#[tokio::test]
async fn flags_stand_in_for_a_file() {
    let node = Node::new();
    node.process(9, &["kube-proxy", "--proxy-mode=ipvs", "--ipvs-strict-arp"]);
    let evidence = node.read(&[Item::ProxyConfig]).await;
    let text = evidence.text(Item::ProxyConfig).unwrap();
    assert!(text.starts_with("# From the command line of kube-proxy (process 9)"));
    assert!(text.contains("mode: \"ipvs\"\n") && text.contains("strictARP: true\n"));
}

#[tokio::test]
async fn the_configuration_and_the_log_come_from_the_cluster_where_the_node_has_none() {
    let api = Api::start(well);
    let node = Node::with(&api.url);
    // With a configured address, the test does not reach a kube-proxy of its own machine.
    let away = nowhere().await;
    node.process(
        9,
        &[
            "k3s",
            "agent",
            &format!("--kube-proxy-arg=metrics-bind-address={away}"),
        ],
    );
    let evidence = node.read(&[Item::ProxyConfig, Item::ProxyLog]).await;
    let text = evidence.text(Item::ProxyConfig).unwrap();
    assert!(
        text.starts_with("# From ConfigMap kube-system/kube-proxy, key config.conf"),
        "{text}"
    );
    assert!(text.ends_with("mode: ipvs\n"));
    assert_eq!(evidence.text(Item::ProxyLog), Ok("I1120 a\n"));
}

#[tokio::test]
async fn without_a_cluster_and_a_kube_proxy_both_are_named() {
    let node = Node::new();
    let away = nowhere().await;
    node.process(
        9,
        &[
            "k3s",
            "agent",
            &format!("--kube-proxy-arg=metrics-bind-address={away}"),
        ],
    );
    let evidence = node.read(&[Item::ProxyConfig]).await;
    let Gap::Absent(Item::ProxyConfig, why) = gap(&evidence, Item::ProxyConfig) else {
        panic!("{evidence:?}");
    };
    assert!(
        why.contains("process 9") && why.contains("no cluster is configured"),
        "{why}"
    );
}
