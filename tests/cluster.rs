//! The live readers of the cluster and of kube-proxy, with servers that work and servers that fail.

use std::collections::HashMap;
use std::fs;
use std::future::ready;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::body::Body;
use axum::response::Response;
use futures_util::stream;
use kpx_host::{Environment, Options, Selection, collect};
use kpx_node::evidence::{Evidence, Gap, Item};
use kpx_node::net::Family;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;
use tokio::time::timeout;

use crate::fake_api::{self, Server, kubeconfig, reply, status};

const CLUSTER: &[Item] = &[
    Item::Services,
    Item::EndpointSlices,
    Item::Nodes,
    Item::ConfigMaps,
    Item::DaemonSets,
    Item::Pods,
];

/// A fake API server whose answers a function computes.
struct Api {
    server: Server,
    url: String,
}

impl Api {
    fn start(
        answers: impl Fn(&str, &HashMap<String, String>) -> (u16, Value) + Send + Sync + 'static,
    ) -> Self {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let server = Server::start(listener, move |request| {
            let (code, body) = answers(&request.path, &request.query);
            Box::pin(ready(reply(code, body)))
        });
        let url = server.url();
        Self { server, url }
    }

    fn asked(&self) -> Vec<String> {
        let asked = self.server.asked();
        asked.into_iter().map(|request| request.uri).collect()
    }
}

/// Answers for a cluster that has every object that kpx reads.
fn well(path: &str, query: &HashMap<String, String>) -> (u16, Value) {
    let object = |name: &str| json!({"metadata": {"name": name, "namespace": "kube-system"}});
    let proxy = json!({"metadata": {"name": "kube-proxy-1", "namespace": "kube-system"}});
    match path {
        "/version" => (200, json!({"gitVersion": "v1.36.2"})),
        "/api/v1/services" | "/apis/discovery.k8s.io/v1/endpointslices" | "/api/v1/nodes" => {
            (200, list(&[object("a"), object("b")]))
        }
        "/api/v1/namespaces/kube-system/pods" => (200, list(&[proxy])),
        "/api/v1/pods" => {
            let node = query.get("fieldSelector").map(String::as_str);
            assert_eq!(node, Some("spec.nodeName=node1"));
            (200, list(&[proxy, object("coredns")]))
        }
        "/api/v1/namespaces/kube-system/pods/kube-proxy-1/log" => (200, "I1120 a\n".into()),
        "/api/v1/namespaces/kube-system/configmaps/kube-proxy" => {
            let config = "kind: KubeProxyConfiguration\nmode: ipvs\n";
            let data = json!({"config.conf": config});
            (
                200,
                json!({"metadata": {"name": "kube-proxy"}, "data": data}),
            )
        }
        "/apis/apps/v1/namespaces/kube-system/daemonsets/kube-proxy" => (200, object("kube-proxy")),
        _ => status(404, "not found"),
    }
}

fn list(items: &[Value]) -> Value {
    fake_api::list(7, items)
}

/// A folder that stands in for a node: its root, and a kubeconfig.
struct Node {
    dir: TempDir,
}

impl Node {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("proc")).unwrap();
        Self { dir }
    }

    fn with(url: &str) -> Self {
        let node = Self::new();
        node.write("kubeconfig", &kubeconfig(url, ""));
        node
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn write(&self, name: &str, text: &str) -> PathBuf {
        let path = self.path(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, text).unwrap();
        path
    }

    /// A process in the node's process table.
    fn process(&self, pid: u32, args: &[&str]) {
        self.write(&format!("proc/{pid}/cmdline"), &(args.join("\0") + "\0"));
    }

    fn options(&self) -> Options {
        Options {
            netns: None,
            root: self.dir.path().to_owned(),
            node: Some("node1".to_owned()),
            families: Family::BOTH.to_vec(),
            timeout: Duration::from_secs(10),
            kubeconfig: Some(self.path("kubeconfig")).filter(|path| path.exists()),
            context: None,
            selection: Selection::default(),
            no_api: false,
            environment: Environment::default(),
        }
    }

    async fn read(&self, items: &[Item]) -> Evidence {
        collect(items, &self.options()).await
    }
}

fn gap(evidence: &Evidence, item: Item) -> Gap {
    evidence.text(item).unwrap_err()
}

fn names(evidence: &Evidence, item: Item) -> Vec<String> {
    let list: Value = serde_json::from_str(evidence.text(item).unwrap()).unwrap();
    assert_eq!(list["kind"], "List");
    let items = list["items"].as_array().unwrap().iter();
    items
        .map(|item| item["metadata"]["name"].as_str().unwrap().to_owned())
        .collect()
}

#[tokio::test]
async fn a_cluster_is_read_without_other_requests() {
    let api = Api::start(well);
    let node = Node::with(&api.url);
    let evidence = node.read(CLUSTER).await;
    assert_eq!(names(&evidence, Item::Services), ["a", "b"]);
    assert_eq!(names(&evidence, Item::Nodes), ["a", "b"]);
    assert_eq!(names(&evidence, Item::ConfigMaps), ["kube-proxy"]);
    assert_eq!(names(&evidence, Item::DaemonSets), ["kube-proxy"]);
    // kube-proxy's pod of this node is in both lists.
    assert_eq!(names(&evidence, Item::Pods), ["coredns", "kube-proxy-1"]);
    let mut asked = api.asked();
    asked.sort();
    let expected = [
        "/api/v1/namespaces/kube-system/configmaps/kube-proxy",
        "/api/v1/namespaces/kube-system/configmaps/kube-proxy-config",
        "/api/v1/namespaces/kube-system/pods?labelSelector=k8s-app%3Dkube-proxy&limit=500",
        "/api/v1/nodes/node1",
        "/api/v1/nodes?limit=500",
        "/api/v1/pods?fieldSelector=spec.nodeName%3Dnode1&labelSelector=%21kpx.dev%2Freader&limit=500",
        "/api/v1/services?limit=500",
        "/apis/apps/v1/namespaces/kube-system/daemonsets/cilium",
        "/apis/apps/v1/namespaces/kube-system/daemonsets/kube-proxy",
        "/apis/apps/v1/namespaces/kube-system/daemonsets/kube-router",
        "/apis/discovery.k8s.io/v1/endpointslices?limit=500",
        "/version",
    ];
    assert_eq!(asked, expected);
}

#[tokio::test]
async fn a_node_that_migrates_by_a_label_has_the_copy_of_the_config_map() {
    let maps = "/api/v1/namespaces/kube-system/configmaps";
    let copy = "kube-proxy-kpx-0123456789";
    let api = Api::start(move |path, query| match path {
        "/api/v1/nodes/node1" => {
            let labels = json!({"kpx.dev/kube-proxy": copy});
            (
                200,
                json!({"metadata": {"name": "node1", "labels": labels}}),
            )
        }
        _ if path == format!("{maps}/{copy}") => {
            let data = json!({"config.conf": "kind: KubeProxyConfiguration\nmode: nftables\n"});
            (200, json!({"metadata": {"name": copy}, "data": data}))
        }
        _ => well(path, query),
    });
    let node = Node::with(&api.url);
    let evidence = node.read(&[Item::ConfigMaps, Item::ProxyConfig]).await;
    assert_eq!(names(&evidence, Item::ConfigMaps), [copy, "kube-proxy"]);
    // The node has no configuration file: its kube-proxy reads the copy.
    let config = evidence.text(Item::ProxyConfig).unwrap();
    let origin = format!("# From ConfigMap kube-system/{copy}, key config.conf;");
    assert!(config.starts_with(&origin), "{config}");
    assert!(config.ends_with("mode: nftables\n"), "{config}");
}

#[tokio::test]
async fn ranges_of_cluster_ips_are_read_where_the_server_has_them() {
    let path = "/apis/networking.k8s.io/v1/servicecidrs";
    let item = Item::ServiceCidrs;
    let api = Api::start(move |asked, query| match asked {
        _ if asked == path => {
            let range =
                json!({"metadata": {"name": "kubernetes"}, "spec": {"cidrs": ["10.96.0.0/16"]}});
            (200, list(&[range]))
        }
        _ => well(asked, query),
    });
    let evidence = Node::with(&api.url).read(&[item]).await;
    assert_eq!(names(&evidence, item), ["kubernetes"]);
    // Kubernetes before 1.33 has no such objects.
    let api = Api::start(well);
    let evidence = Node::with(&api.url).read(&[item]).await;
    assert!(matches!(gap(&evidence, item), Gap::NotApplicable(_)));
    let api = Api::start(move |asked, query| match asked {
        "/version" => well(asked, query),
        "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews" => {
            (201, json!({"status": {"allowed": false}}))
        }
        _ => status(403, "not for you"),
    });
    let evidence = Node::with(&api.url).read(&[item]).await;
    let why = gap(&evidence, item).to_string();
    assert!(
        why.contains("list servicecidrs.networking.k8s.io: not for you"),
        "{why}"
    );
}

#[tokio::test]
async fn each_permission_is_reviewed_on_its_own() {
    let path = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews";
    let api = Api::start(move |asked, query| match asked {
        _ if asked == path => {
            let review =
                json!({"kind": "SelfSubjectAccessReview", "spec": {}, "status": {"allowed": true}});
            (201, review)
        }
        _ => well(asked, query),
    });
    let evidence = Node::with(&api.url).read(&[Item::Access]).await;
    let list: Value = serde_json::from_str(evidence.text(Item::Access).unwrap()).unwrap();
    let items = list["items"].as_array().unwrap();
    assert!(items.len() > 1, "{list}");
    assert!(items.iter().all(|item| item["status"]["allowed"] == true));
    let asked = api.asked().into_iter().filter(|asked| asked == path);
    assert_eq!(asked.count(), items.len());

    let api = Api::start(well);
    let evidence = Node::with(&api.url).read(&[Item::Access]).await;
    let gap = evidence.text(Item::Access).unwrap_err();
    assert!(matches!(gap, Gap::Failed(Item::Access, _)), "{gap:?}");
}

#[tokio::test]
async fn pages_are_joined_and_unknown_fields_are_kept_as_written() {
    let api = Api::start(|path, query| {
        match (path, query.get("continue")) {
        ("/api/v1/services", None) => (
            200,
            r#"{"metadata":{"continue":"a/b+c=","resourceVersion":"7"},"items":[{"metadata":{"name":"a"},"z":1.50,"a":9007199254740993}]}"#.into(),
        ),
        ("/api/v1/services", Some(token)) if token == "a/b+c=" => (
            200,
            json!({"metadata": {"continue": "", "resourceVersion": "7"}, "items": [{"metadata": {"name": "b"}}]}),
        ),
        // Go writes an empty list as null.
        ("/apis/discovery.k8s.io/v1/endpointslices", _) => (200, json!({"metadata": {}, "items": null})),
        _ => well(path, query),
    }
    });
    let node = Node::with(&api.url);
    let evidence = node.read(&[Item::Services, Item::EndpointSlices]).await;
    assert_eq!(names(&evidence, Item::Services), ["a", "b"]);
    let text = evidence.text(Item::Services).unwrap();
    assert!(text.contains(r#"{"metadata":{"name":"a"},"z":1.50,"a":9007199254740993}"#));
    assert!(text.contains(r#""resourceVersion":"7""#));
    assert!(names(&evidence, Item::EndpointSlices).is_empty());
}

#[tokio::test]
async fn a_list_that_the_server_forgot_is_read_again_as_a_whole() {
    let api = Api::start(
        |path, query| match (path, query.get("limit"), query.get("continue")) {
            ("/api/v1/services", Some(_), None) => (
                200,
                json!({"metadata": {"continue": "x"}, "items": [{"metadata": {"name": "old"}}]}),
            ),
            ("/api/v1/services", Some(_), Some(_)) => status(410, "too old resource version"),
            _ => well(path, query),
        },
    );
    let evidence = Node::with(&api.url).read(&[Item::Services]).await;
    assert_eq!(names(&evidence, Item::Services), ["a", "b"]);
}

#[tokio::test]
async fn endless_pages_are_an_error() {
    let api = Api::start(|path, query| match path {
        "/api/v1/services" => (200, json!({"metadata": {"continue": "x"}, "items": []})),
        _ => well(path, query),
    });
    let evidence = Node::with(&api.url).read(&[Item::Services]).await;
    let Gap::Failed(Item::Services, why) = gap(&evidence, Item::Services) else {
        panic!("{evidence:?}");
    };
    assert!(why.contains("the same continue token twice"), "{why}");
}

#[tokio::test]
async fn a_refusal_names_verb_and_resource_of_each_item() {
    let api = Api::start(|path, query| match path {
        "/version" => well(path, query),
        _ => status(403, "not for you"),
    });
    let node = Node::with(&api.url);
    let options = Options {
        timeout: Duration::from_secs(1),
        ..node.options()
    };
    let evidence = collect(CLUSTER, &options).await;
    for (item, what) in [
        (Item::Services, "list services: not for you"),
        (
            Item::EndpointSlices,
            "list endpointslices.discovery.k8s.io: not for you",
        ),
        (Item::Nodes, "list nodes: not for you"),
        (Item::ConfigMaps, "get configmaps kube-proxy in namespace"),
        (Item::DaemonSets, "get daemonsets.apps kube-proxy in"),
        (Item::Pods, "list pods of node node1: not for you"),
    ] {
        let gap = gap(&evidence, item);
        let Gap::Denied(told, why) = &gap else {
            panic!("{gap:?}");
        };
        assert_eq!(*told, item);
        assert!(why.starts_with(what), "{why}");
        assert!(why.ends_with("apply deploy/rbac.yaml to allow it"), "{why}");
    }
}

#[tokio::test]
async fn a_server_that_has_just_started_is_asked_again() {
    let asked = Mutex::new(HashMap::new());
    let api = Api::start(move |path, query| {
        let mut asked = asked.lock().unwrap();
        let count = asked.entry(path.to_owned()).or_insert(0);
        *count += 1;
        match (path, *count) {
            ("/version", _) => well(path, query),
            // At first it has not loaded any roles and refuses even self-reviews.
            ("/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", _) | (_, 1) => {
                status(403, "forbidden: RBAC: clusterrole not found")
            }
            (_, 2) => status(503, "starting"),
            _ => well(path, query),
        }
    });
    let evidence = Node::with(&api.url).read(CLUSTER).await;
    assert_eq!(names(&evidence, Item::Services), ["a", "b"]);
    assert_eq!(names(&evidence, Item::Pods), ["coredns", "kube-proxy-1"]);
}

#[tokio::test]
async fn a_confirmed_permission_is_not_reviewed_again() {
    let api = Api::start(|path, query| match path {
        "/version" => well(path, query),
        "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews" => {
            (201, json!({"status": {"allowed": false}}))
        }
        _ => status(403, "not for you"),
    });
    let evidence = Node::with(&api.url).read(&[Item::Services]).await;
    assert!(matches!(gap(&evidence, Item::Services), Gap::Denied(..)));
    let asked = api.asked();
    let services = asked.iter().filter(|path| path.contains("services?"));
    assert_eq!(services.count(), 1, "{asked:?}");
}

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

/// Starts a server that answers the first `times` requests for Services with `answer`, and all others well.
fn at_first(times: usize, answer: fn() -> Response) -> Server {
    let left = Mutex::new(times);
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    Server::start(listener, move |request| {
        let mut left = left.lock().unwrap();
        if request.path == "/api/v1/services" && *left > 0 {
            *left -= 1;
            return Box::pin(ready(answer()));
        }
        let (code, body) = well(&request.path, &request.query);
        Box::pin(ready(reply(code, body)))
    })
}

/// Two items of a list, the second of which is not complete.
fn cut_off() -> Response {
    fake_api::broken("{\"metadata\":{},\"items\":[{\"metadata\":{\"name\":\"a\"}},{\"metadata\":{")
}

fn busy() -> Response {
    let mut answer = reply(429, "Too many requests".into());
    answer.headers_mut().insert("retry-after", 1.into());
    answer
}

/// A byte from time to time, without an end.
fn trickle() -> Response {
    let bytes = stream::unfold((), async |()| {
        tokio::time::sleep(Duration::from_millis(20)).await;
        Some((Ok::<_, std::io::Error>(" "), ()))
    });
    Response::new(Body::from_stream(bytes))
}

#[tokio::test]
async fn an_answer_that_breaks_off_and_a_busy_server_are_asked_again() {
    for answer in [cut_off, busy] {
        let api = at_first(2, answer);
        let evidence = Node::with(&api.url()).read(&[Item::Services]).await;
        assert_eq!(names(&evidence, Item::Services), ["a", "b"]);
    }
}

#[tokio::test]
#[ignore = "takes long: make test-loops"]
async fn an_answer_that_never_comes_whole_is_a_gap_in_time() {
    // A busy machine takes long for the first answer, too.
    for (answer, timeout_of, reason) in [
        (
            cut_off as fn() -> Response,
            3000,
            "connection closed before message completed",
        ),
        (busy, 3000, "429"),
        (trickle, 500, "no answer within 500ms"),
    ] {
        let api = at_first(usize::MAX, answer);
        let node = Node::with(&api.url());
        let options = Options {
            timeout: Duration::from_millis(timeout_of),
            ..node.options()
        };
        let evidence = timeout(
            Duration::from_secs(30),
            collect(&[Item::Services], &options),
        );
        let evidence = evidence.await.unwrap();
        let why = gap(&evidence, Item::Services).to_string();
        assert!(why.contains(reason), "{why}");
    }
}

/// An address where nothing listens.
async fn nowhere() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    listener.local_addr().unwrap()
}

/// A server that accepts and counts connections, and never answers.
async fn hangs() -> (SocketAddr, Arc<Mutex<usize>>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let calls = Arc::new(Mutex::new(0));
    let counted = Arc::clone(&calls);
    tokio::spawn(async move {
        let mut held = Vec::new();
        loop {
            held.push(listener.accept().await.unwrap());
            *counted.lock().unwrap() += 1;
        }
    });
    (address, calls)
}

#[tokio::test]
async fn a_server_that_is_away_is_called_once_for_all_items() {
    let url = format!("http://{}", nowhere().await);
    let evidence = Node::with(&url).read(CLUSTER).await;
    for &item in CLUSTER {
        let Gap::Failed(_, why) = gap(&evidence, item) else {
            panic!("{evidence:?}");
        };
        let start = format!("cannot reach the API server {url} (configured by /");
        assert!(why.starts_with(&start), "{why}");
        assert!(why.ends_with("Connection refused (os error 111)"), "{why}");
    }

    let (address, calls) = hangs().await;
    let node = Node::with(&format!("http://{address}"));
    let options = Options {
        timeout: Duration::from_millis(300),
        ..node.options()
    };
    let evidence = collect(CLUSTER, &options).await;
    for &item in CLUSTER {
        let why = gap(&evidence, item).to_string();
        assert!(why.ends_with("no answer within 300ms"), "{why}");
    }
    assert_eq!(*calls.lock().unwrap(), 1);
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
                "cluster::proxy_variables_of_the_environment_are_ignored",
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

/// A server that sends `answer` to every client and closes the connection.
async fn says(answer: String) -> SocketAddr {
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
