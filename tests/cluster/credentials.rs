//! Kubeconfigs and credentials, and the ways to the API server.

use std::fs;
use std::future::ready;
use std::net::SocketAddr;
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use kpx_host::{Environment, Options, collect};
use kpx_node::evidence::{Gap, Item};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;

use super::{Api, CLUSTER, Node, gap, names, nowhere, well};
use crate::fake_api::{Server, kubeconfig, reply, status};

#[tokio::test]
async fn a_kubelets_rights_give_its_own_node_and_pods() {
    let api = Api::start(|path, query| match path {
        "/api/v1/nodes/node1" => (200, json!({"metadata": {"name": "node1"}})),
        "/api/v1/nodes"
        | "/api/v1/namespaces/kube-system/pods"
        | "/api/v1/namespaces/kube-system/configmaps/kube-proxy-config" => status(403, "no"),
        _ => well(path, query),
    });
    let node = Node::with(&api.url);
    let evidence = node.read(CLUSTER).await;
    assert_eq!(names(&evidence, Item::Nodes), ["node1"]);
    assert_eq!(names(&evidence, Item::ConfigMaps), ["kube-proxy"]);
    let pods: Value = serde_json::from_str(evidence.text(Item::Pods).unwrap()).unwrap();
    let missing = &pods["metadata"]["missing"][0];
    assert_eq!(missing, "pods of kube-proxy on other nodes: forbidden");
}

#[tokio::test]
async fn an_admins_kubeconfig_is_used_if_the_kubelets_is_refused() {
    let kubelet = Api::start(|path, query| match path {
        "/apis/discovery.k8s.io/v1/endpointslices" => status(403, "no"),
        _ => well(path, query),
    });
    let admin = Api::start(well);
    let node = Node::new();
    node.write("etc/kubernetes/kubelet.conf", &kubeconfig(&kubelet.url, ""));
    node.write("etc/kubernetes/admin.conf", &kubeconfig(&admin.url, ""));
    let evidence = node.read(&[Item::Services, Item::EndpointSlices]).await;
    assert_eq!(names(&evidence, Item::EndpointSlices), ["a", "b"]);
    // The admin's credentials are used only for the requests that the kubelet's are not allowed.
    assert!(!admin.asked().iter().any(|path| path.contains("services")));
}

#[tokio::test]
async fn kube_proxys_credentials_are_used_if_the_kubelets_are_refused() {
    let api = Server::start(
        std::net::TcpListener::bind("127.0.0.1:0").unwrap(),
        |request| {
            // With its service account, whose token is in a file of its own.
            let proxy = request.authorization == "Bearer proxy";
            let (code, body) = match request.path.as_str() {
                "/apis/discovery.k8s.io/v1/endpointslices" if !proxy => status(403, "no"),
                path => well(path, &request.query),
            };
            Box::pin(ready(reply(code, body)))
        },
    );
    let node = Node::new();
    node.write("etc/kubernetes/kubelet.conf", &kubeconfig(&api.url(), ""));
    let evidence = node.read(&[Item::EndpointSlices]).await;
    assert!(matches!(
        gap(&evidence, Item::EndpointSlices),
        Gap::Denied(..)
    ));
    node.process(
        71,
        &[
            "/usr/local/bin/kube-proxy",
            "--config=/var/lib/kube-proxy/config.conf",
        ],
    );
    let lib = "proc/71/root/var/lib/kube-proxy";
    let config = "kind: KubeProxyConfiguration\nclientConnection:\n  kubeconfig: /var/lib/kube-proxy/kubeconfig.conf\n";
    node.write(&format!("{lib}/config.conf"), config);
    let account = "/var/run/secrets/kubernetes.io/serviceaccount/token";
    let text = kubeconfig(&api.url(), "").replace("token: abc", &format!("tokenFile: {account}"));
    node.write(&format!("{lib}/kubeconfig.conf"), &text);
    // With a newline at its end, as an editor writes it.
    node.write(&format!("proc/71/root{account}"), "proxy\n");
    let mut options = node.options();
    options.selection.proxy_credentials = true;
    let evidence = collect(&[Item::EndpointSlices], &options).await;
    assert_eq!(names(&evidence, Item::EndpointSlices), ["a", "b"]);
}

#[tokio::test]
async fn a_missing_plugin_for_credentials_is_named_with_its_hint() {
    let api = Api::start(well);
    let node = Node::new();
    let exec = "exec: {apiVersion: client.authentication.k8s.io/v1, command: kubectl-no-such-plugin, \
                interactiveMode: Never, installHint: get it from example.org}";
    let text = kubeconfig(&api.url, "").replace("token: abc", exec);
    node.write("kubeconfig", &text);
    let why = gap(&node.read(&[Item::Services]).await, Item::Services).to_string();
    let tells = "cannot start the credential plugin \"kubectl-no-such-plugin\": No such file or directory (os error 2); \
                 its kubeconfig says: get it from example.org";
    assert!(why.contains(tells), "{why}");
}

/// An HTTP proxy that connects each client to the host that it requests, and counts the clients.
async fn joins() -> (SocketAddr, Arc<Mutex<usize>>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let calls = Arc::new(Mutex::new(0));
    let counted = Arc::clone(&calls);
    tokio::spawn(async move {
        loop {
            let (mut client, _) = listener.accept().await.unwrap();
            *counted.lock().unwrap() += 1;
            tokio::spawn(async move {
                let mut head = Vec::new();
                while !head.ends_with(b"\r\n\r\n") {
                    head.push(client.read_u8().await.unwrap());
                }
                let head = String::from_utf8(head).unwrap();
                let host = head.strip_prefix("CONNECT ").unwrap();
                let host = host.split(' ').next().unwrap();
                let mut server = tokio::net::TcpStream::connect(host).await.unwrap();
                let fine = b"HTTP/1.1 200 OK\r\n\r\n";
                client.write_all(fine).await.unwrap();
                tokio::io::copy_bidirectional(&mut client, &mut server)
                    .await
                    .ok();
            });
        }
    });
    (address, calls)
}

#[tokio::test]
async fn the_proxy_of_a_kubeconfig_is_used() {
    let api = Api::start(well);
    let (proxy, calls) = joins().await;
    let node = Node::new();
    let with = |proxy: &str| {
        let cluster = format!("server: \"{}\", proxy-url: \"{proxy}\"", api.url);
        kubeconfig(&api.url, "").replace(&format!("server: \"{}\"", api.url), &cluster)
    };
    node.write("kubeconfig", &with(&format!("http://{proxy}")));
    let evidence = node.read(&[Item::Services]).await;
    assert_eq!(names(&evidence, Item::Services), ["a", "b"]);
    assert!(*calls.lock().unwrap() > 0);
    let away = nowhere().await;
    node.write("kubeconfig", &with(&format!("http://{away}")));
    let why = gap(&node.read(&[Item::Services]).await, Item::Services).to_string();
    assert!(
        why.contains(&format!("through the proxy {away} (configured by /")),
        "{why}"
    );
    node.write("kubeconfig", &with("gopher://x"));
    let why = gap(&node.read(&[Item::Services]).await, Item::Services).to_string();
    assert!(
        why.contains("proxy-url \"gopher://x\" is not supported"),
        "{why}"
    );
}

/// A SOCKS5 proxy with a password, which joins everything with `server` and remembers the host that it is asked for.
async fn socks(server: SocketAddr) -> (SocketAddr, Arc<Mutex<String>>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let asked = Arc::new(Mutex::new(String::new()));
    let kept = Arc::clone(&asked);
    tokio::spawn(async move {
        loop {
            let (mut client, _) = listener.accept().await.unwrap();
            let kept = Arc::clone(&kept);
            tokio::spawn(async move {
                let mut head = [0; 3];
                client.read_exact(&mut head).await.unwrap();
                assert_eq!(head, [5, 1, 2]);
                client.write_all(&[5, 2]).await.unwrap();
                let mut login = [0; 10];
                client.read_exact(&mut login).await.unwrap();
                assert_eq!(login, *b"\x01\x02me\x05p@ss!");
                client.write_all(&[1, 0]).await.unwrap();
                let mut request = [0; 5];
                client.read_exact(&mut request).await.unwrap();
                assert_eq!(request[..4], [5, 1, 0, 3]);
                let mut host = vec![0; usize::from(request[4]) + 2];
                client.read_exact(&mut host).await.unwrap();
                host.truncate(host.len() - 2);
                *kept.lock().unwrap() = String::from_utf8(host).unwrap();
                let mut server = tokio::net::TcpStream::connect(server).await.unwrap();
                let fine = [5, 0, 0, 1, 0, 0, 0, 0, 0, 0];
                client.write_all(&fine).await.unwrap();
                tokio::io::copy_bidirectional(&mut client, &mut server)
                    .await
                    .ok();
            });
        }
    });
    (address, asked)
}

#[tokio::test]
async fn a_socks_proxy_resolves_the_name_of_the_server() {
    let api = Api::start(well);
    let (proxy, asked) = socks(api.url.strip_prefix("http://").unwrap().parse().unwrap()).await;
    let node = Node::new();
    let cluster =
        format!("server: \"http://api.invalid\", proxy-url: \"socks5://me:p%40ss!@{proxy}\"");
    let text = kubeconfig(&api.url, "").replace(&format!("server: \"{}\"", api.url), &cluster);
    node.write("kubeconfig", &text);
    let evidence = node.read(&[Item::Services]).await;
    assert_eq!(names(&evidence, Item::Services), ["a", "b"]);
    assert_eq!(*asked.lock().unwrap(), "api.invalid");
}

#[tokio::test]
async fn a_nodes_hosts_file_has_the_server_of_its_kubeconfig() {
    let api = Api::start(well);
    let node = Node::new();
    let url = api.url.replace("127.0.0.1", "API.test");
    node.write("etc/kubernetes/kubelet.conf", &kubeconfig(&url, ""));
    node.write(
        "etc/hosts",
        "127.0.0.1 localhost api.test # the control plane\n",
    );
    let evidence = node.read(&[Item::Services]).await;
    assert_eq!(names(&evidence, Item::Services), ["a", "b"]);
}

#[tokio::test]
async fn a_name_that_cannot_be_resolved_is_named() {
    let node = Node::with("http://api.invalid:6443");
    let options = Options {
        timeout: Duration::from_millis(500),
        ..node.options()
    };
    let through = |proxy: &str| {
        let cluster = format!("server: \"http://api.test:6443\", proxy-url: \"{proxy}\"");
        kubeconfig("x", "").replace("server: \"x\"", &cluster)
    };
    for (text, name) in [
        (kubeconfig("http://api.invalid:6443", ""), "api.invalid"),
        (through("http://proxy.invalid:3128"), "proxy.invalid"),
        (through("socks5://proxy.invalid:1080"), "proxy.invalid"),
    ] {
        node.write("kubeconfig", &text);
        let evidence = collect(&[Item::Services], &options).await;
        let why = gap(&evidence, Item::Services).to_string();
        assert!(
            why.contains("cannot reach the API server http://api."),
            "{why}"
        );
        assert!(why.contains(&format!(": cannot resolve {name}: ")), "{why}");
        assert!(why.contains("DNS server "), "{why}");
    }
}

#[tokio::test]
async fn rejected_credentials_and_a_broken_server_are_different_errors() {
    let api = Api::start(|_, _| status(401, "Unauthorized"));
    let evidence = Node::with(&api.url).read(CLUSTER).await;
    for &item in CLUSTER {
        let gap = gap(&evidence, item);
        assert!(matches!(gap, Gap::Denied(told, _) if told == item));
        assert!(gap.to_string().contains("401"), "{gap}");
    }
    assert_eq!(api.asked(), ["/version"]);

    let api = Api::start(|_, _| status(500, "etcd is away"));
    let node = Node::with(&api.url);
    let options = Options {
        timeout: Duration::from_millis(300),
        ..node.options()
    };
    let evidence = collect(&[Item::Services], &options).await;
    let Gap::Failed(_, why) = gap(&evidence, Item::Services) else {
        panic!("{evidence:?}");
    };
    let expected = format!("list services: {} answered 500: etcd is away", api.url);
    assert_eq!(why, expected);

    let api = Api::start(|_, _| (200, "<html>".into()));
    let evidence = Node::with(&api.url).read(&[Item::Services]).await;
    let why = gap(&evidence, Item::Services).to_string();
    assert!(why.contains("the answer is not a list"), "{why}");
}

#[tokio::test]
async fn a_context_is_chosen_by_name() {
    let (away, api) = (nowhere().await, Api::start(well));
    let node = Node::new();
    let other = format!(
        "- name: there\n  context: {{cluster: d, user: u}}\n\
         clusters:\n- name: c\n  cluster: {{server: \"http://{away}\"}}\n\
         - name: d\n  cluster: {{server: \"{}\"}}",
        api.url
    );
    let text = kubeconfig("x", &other).replacen(
        "clusters:\n- name: c\n  cluster: {server: \"x\"}\n",
        "",
        1,
    );
    let path = node.write("config", &text);
    let mut options = Options {
        kubeconfig: Some(path),
        context: Some("there".to_owned()),
        ..node.options()
    };
    let evidence = collect(&[Item::Services], &options).await;
    assert_eq!(names(&evidence, Item::Services), ["a", "b"]);
    options.context = Some("elsewhere".to_owned());
    let evidence = collect(&[Item::Services], &options).await;
    let why = gap(&evidence, Item::Services).to_string();
    assert!(
        why.ends_with("config has no context \"elsewhere\"; available: here, there"),
        "{why}"
    );
}

#[tokio::test]
async fn kubeconfigs_are_looked_for_in_order() {
    let (first, second, third) = (Api::start(well), Api::start(well), Api::start(well));
    let node = Node::new();
    let env = node.write("env", &kubeconfig(&first.url, ""));
    node.write("home/.kube/config", &kubeconfig(&second.url, ""));
    node.write("etc/kubernetes/admin.conf", &kubeconfig(&third.url, ""));
    let mut options = node.options();
    let missing = node.path("missing");
    options.environment = Environment {
        kubeconfig: Some(format!("{}:{}", missing.display(), env.display()).into()),
        home: Some(node.path("home")),
        // A pod without a service account's token is not in-cluster.
        service_host: Some("10.96.0.1".to_owned()),
        service_port: Some("443".to_owned()),
    };
    for api in [&first, &second, &third] {
        let evidence = collect(&[Item::Services], &options).await;
        assert!(evidence.text(Item::Services).is_ok(), "{evidence:?}");
        assert_eq!(api.asked().len(), 2);
        if options.environment.kubeconfig.take().is_none() {
            options.environment.home = None;
        }
    }
    fs::remove_file(node.path("etc/kubernetes/admin.conf")).unwrap();
    let evidence = collect(&[Item::Services], &options).await;
    assert!(matches!(
        gap(&evidence, Item::Services),
        Gap::NotApplicable(_)
    ));
    options.no_api = true;
    options.kubeconfig = Some(env);
    let evidence = collect(&[Item::Services], &options).await;
    let why = gap(&evidence, Item::Services).to_string();
    assert!(why.contains("--no-api"), "{why}");
    assert_eq!(first.asked().len(), 2);
}

#[tokio::test]
async fn an_invalid_kubeconfig_is_named_with_the_reason() {
    let node = Node::new();
    for (text, reason) in [
        ("{", "is not a kubeconfig"),
        ("clusters: 7", "is not a kubeconfig"),
        ("kind: Config", "sets no current context"),
    ] {
        let path = node.write("bad", text);
        let options = Options {
            kubeconfig: Some(path.clone()),
            ..node.options()
        };
        let evidence = collect(&[Item::Services], &options).await;
        let why = gap(&evidence, Item::Services).to_string();
        assert!(why.contains(reason) && why.contains("/bad"), "{why}");
    }
    let options = Options {
        kubeconfig: Some(node.path("missing")),
        ..node.options()
    };
    let evidence = collect(&[Item::Services], &options).await;
    let why = gap(&evidence, Item::Services).to_string();
    assert!(
        why.contains("cannot read") && why.contains("No such file"),
        "{why}"
    );
}

#[tokio::test]
async fn a_credential_plugin_that_hangs_is_aborted() {
    let api = Api::start(well);
    let node = Node::new();
    let exec = "exec: {apiVersion: client.authentication.k8s.io/v1, command: sleep, args: ['2'], interactiveMode: Never}";
    let text = kubeconfig(&api.url, "").replace("token: abc", exec);
    let path = node.write("kubeconfig", &text);
    let options = Options {
        timeout: Duration::from_millis(200),
        ..node.options()
    };
    let evidence = collect(&[Item::Services, Item::KernelRelease], &options).await;
    let Gap::Failed(_, why) = gap(&evidence, Item::Services) else {
        panic!("{evidence:?}");
    };
    let expected = format!(
        "cannot use the credentials of {}: its credential plugin",
        path.display()
    );
    assert!(why.starts_with(&expected), "{why}");
}

/// The client library reads proxies from the environment of the process, so this test runs itself in another one.
#[tokio::test]
#[expect(clippy::disallowed_methods, reason = "a test may start itself")]
async fn proxy_variables_of_the_environment_are_ignored() {
    const INNER: &str = "KPX_TEST_PROXIED";
    if std::env::var_os(INNER).is_some() {
        let api = Api::start(well);
        let evidence = Node::with(&api.url).read(&[Item::Services]).await;
        assert_eq!(names(&evidence, Item::Services), ["a", "b"]);
        return;
    }
    let run = || {
        Command::new(std::env::current_exe().unwrap())
            .args([
                "--exact",
                "cluster::credentials::proxy_variables_of_the_environment_are_ignored",
            ])
            .env(INNER, "1")
            .env("HTTPS_PROXY", "not a proxy at all")
            .env("https_proxy", "http://127.0.0.1:1")
            .output()
    };
    let ran = tokio::task::spawn_blocking(run).await.unwrap().unwrap();
    let text = String::from_utf8_lossy(&ran.stdout);
    assert!(text.contains("1 passed"), "{text}");
}
