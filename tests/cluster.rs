//! The live readers of the cluster and of kube-proxy, with servers that work and servers that fail.

mod credentials;
mod proxy;

use std::collections::HashMap;
use std::fs;
use std::future::ready;
use std::net::SocketAddr;
use std::path::PathBuf;
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
        assert!(
            why.ends_with(
                "; apply deploy/rbac.yaml, which has the roles and their bindings, to allow it"
            ),
            "{why}"
        );
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
