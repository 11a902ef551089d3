//! The fake API server answers the real client as a real one does. Tests of migrations rely on it.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use futures_util::{StreamExt as _, TryStreamExt as _};
use kpx_host::{Environment, Options, Selection, collect};
use kpx_node::evidence::Item;
use kpx_node::net::Family;
use kube::api::{
    DeleteParams, ListParams, Patch, PatchParams, PostParams, Preconditions, WatchParams,
};
use kube::core::{ApiResource, DynamicObject, GroupVersionKind, WatchEvent};
use serde_json::{Value, json};

use crate::fake_api::{Api, Cluster, Fate, Fault, Key, Kubelet, Pod, Pretend, What};
use crate::support::root;

fn seeded(nodes: &[&str]) -> Api {
    let api = Api::new();
    api.seed(&folder(), nodes);
    api
}

fn folder() -> PathBuf {
    root().join("testdata/nodes/dual-ipvs")
}

fn client(api: &Api) -> kube::Client {
    let mut config = kube::Config::new(api.url().parse().unwrap());
    config.root_cert = Some(Vec::new());
    config.default_retry = false;
    kube::Client::try_from(config).unwrap()
}

/// Returns the real client's interface to objects of one kind in kube-system.
fn objects(api: &Api, version: &str, kind: &str) -> kube::Api<DynamicObject> {
    let (group, version) = version.split_once('/').unwrap_or(("", version));
    let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, kind));
    kube::Api::namespaced_with(client(api), "kube-system", &resource)
}

fn code(result: Result<DynamicObject, kube::Error>) -> u16 {
    match result {
        Err(kube::Error::Api(status)) => status.code,
        other => panic!("{other:?}"),
    }
}

fn eventually(what: &str, holds: impl Fn() -> bool) {
    let begin = Instant::now();
    while !holds() {
        assert!(begin.elapsed() < Duration::from_secs(20), "{what}");
        thread::sleep(Duration::from_millis(5));
    }
}

#[tokio::test]
async fn a_write_with_an_old_resource_version_is_a_conflict() {
    let api = seeded(&["node1"]);
    let maps = objects(&api, "v1", "ConfigMap");
    let old = maps.get("kube-proxy").await.unwrap();
    api.reconfigure("mode: \"ipvs\"", "mode: \"iptables\"");
    let version = &old.metadata.resource_version;
    let patch = json!({"metadata": {"resourceVersion": version}, "data": {"config.conf": "x"}});
    let params = PatchParams::default();
    let patched = maps
        .patch("kube-proxy", &params, &Patch::Merge(&patch))
        .await;
    assert_eq!(code(patched), 409);
    let replaced = maps
        .replace("kube-proxy", &PostParams::default(), &old)
        .await;
    assert_eq!(code(replaced), 409);
    assert!(api.config().contains("mode: \"iptables\""));
    let new = maps.get("kube-proxy").await.unwrap();
    let patch = json!({"metadata": {"resourceVersion": new.metadata.resource_version, "annotations": {"a": "b"}}});
    let patched = maps
        .patch("kube-proxy", &params, &Patch::Merge(&patch))
        .await
        .unwrap();
    assert_ne!(
        patched.metadata.resource_version,
        new.metadata.resource_version
    );
    assert_eq!(patched.data["data"], new.data["data"]);
    assert_eq!(patched.metadata.labels, new.metadata.labels);
}

#[tokio::test]
async fn objects_are_created_replaced_and_deleted() {
    let api = seeded(&["node1"]);
    let leases = objects(&api, "coordination.k8s.io/v1", "Lease");
    assert_eq!(code(leases.get("lock").await), 404);
    let lease: DynamicObject = serde_json::from_value(json!({
        "apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
        "metadata": {"name": "lock"}, "spec": {"holderIdentity": "me"},
    }))
    .unwrap();
    let params = PostParams::default();
    let mut made = leases.create(&params, &lease).await.unwrap();
    assert_eq!(code(leases.create(&params, &lease).await), 409);
    made.data["spec"]["holderIdentity"] = json!("you");
    let held = leases.replace("lock", &params, &made).await.unwrap();
    assert_eq!(code(leases.replace("lock", &params, &made).await), 409);
    let other = Preconditions {
        uid: Some("other".to_owned()),
        resource_version: None,
    };
    let delete = DeleteParams::default().preconditions(other);
    let refused = leases.delete("lock", &delete).await.unwrap_err();
    assert!(matches!(refused, kube::Error::Api(status) if status.code == 409));
    let mine = Preconditions {
        uid: held.metadata.uid,
        resource_version: None,
    };
    let delete = DeleteParams::default().preconditions(mine);
    leases.delete("lock", &delete).await.unwrap();
    assert_eq!(code(leases.get("lock").await), 404);
}

/// A kubelet that reports each start and end of a pod.
struct Reporting(Mutex<mpsc::Sender<String>>);

impl Kubelet for Reporting {
    fn start(&self, pod: &Pod) -> Fate {
        let config = pod.config.as_deref().unwrap_or_default();
        let mode = config.lines().find(|line| line.starts_with("mode:"));
        let event = format!("start {} {}", pod.node, mode.unwrap_or_default());
        self.0.lock().unwrap().send(event).unwrap();
        Fate::NotReady
    }

    fn stop(&self, pod: &Pod) {
        let event = format!("stop {}", pod.node);
        self.0.lock().unwrap().send(event).unwrap();
    }

    fn log(&self, pod: &Pod) -> String {
        Pretend.log(pod)
    }
}

#[tokio::test]
async fn a_deleted_pod_is_created_again_with_the_current_configuration() {
    let api = seeded(&["node1", "node2"]);
    let (sender, events) = mpsc::channel();
    api.kubelet(Reporting(Mutex::new(sender)));
    api.reconfigure("mode: \"ipvs\"", "mode: \"nftables\"");
    let before = api.proxies();
    let (node, name) = before[1].clone();
    let pods = objects(&api, "v1", "Pod");
    let old = pods.get(&name).await.unwrap();
    assert_eq!(old.data["status"]["conditions"][0]["status"], "True");
    pods.delete(&name, &DeleteParams::default()).await.unwrap();
    let wait = Duration::from_secs(20);
    assert_eq!(events.recv_timeout(wait).unwrap(), format!("stop {node}"));
    let started = format!("start {node} mode: \"nftables\"");
    assert_eq!(events.recv_timeout(wait).unwrap(), started);
    assert_eq!(code(pods.get(&name).await), 404);
    let list = ListParams::default()
        .labels("k8s-app=kube-proxy")
        .fields(&format!("spec.nodeName={node}"));
    let new = pods.list(&list).await.unwrap().items.remove(0);
    assert_ne!(new.metadata.uid, old.metadata.uid);
    assert_eq!(new.data["status"]["conditions"][0]["status"], "False");
    let name = new.metadata.name.unwrap();
    let uri = format!("/api/v1/namespaces/kube-system/pods/{name}/log");
    let request = http::Request::get(uri).body(Vec::new()).unwrap();
    let log = client(&api).request_text(request).await.unwrap();
    assert!(log.contains("Using nftables Proxier"), "{log}");
    // The pod of the other node was not replaced.
    assert_eq!(api.proxies()[0], before[0]);
}

#[tokio::test]
async fn pods_follow_their_templates_and_the_labels_of_nodes() {
    let api = seeded(&["node1", "node2"]);
    let before = api.proxies();
    let sets = objects(&api, "apps/v1", "DaemonSet");
    let patch = json!({"spec": {"template": {"spec": {"affinity": {"nodeAffinity": {
        "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [
            {"matchExpressions": [{"key": "moved", "operator": "DoesNotExist"}]},
        ]},
    }}}}}});
    let params = PatchParams::default();
    sets.patch("kube-proxy", &params, &Patch::Merge(&patch))
        .await
        .unwrap();
    eventually("both pods are replaced", || {
        let now = api.proxies();
        now.len() == 2 && now.iter().all(|pod| !before.contains(pod))
    });
    api.settle();
    let nodes: kube::Api<DynamicObject> = kube::Api::all_with(
        client(&api),
        &ApiResource::from_gvk(&GroupVersionKind::gvk("", "v1", "Node")),
    );
    let label = json!({"metadata": {"labels": {"moved": "yes"}}});
    nodes
        .patch("node1", &params, &Patch::Merge(&label))
        .await
        .unwrap();
    eventually(
        "the labelled node has no pod",
        || matches!(api.proxies().as_slice(), [(node, _)] if node == "node2"),
    );
    api.with(|cluster| cluster.remove(&Key::new("daemonsets", "kube-system", "kube-proxy")));
    eventually("pods are deleted with their DaemonSet", || {
        api.proxies().is_empty()
    });
}

#[tokio::test]
async fn a_watch_sends_events_until_it_is_closed_or_its_version_has_expired() {
    let api = seeded(&["node1"]);
    let slices: kube::Api<DynamicObject> = kube::Api::all_with(
        client(&api),
        &ApiResource::from_gvk(&GroupVersionKind::gvk(
            "discovery.k8s.io",
            "v1",
            "EndpointSlice",
        )),
    );
    let listed = slices.list(&ListParams::default()).await.unwrap();
    let version = listed.metadata.resource_version.unwrap();
    assert!(listed.items.len() > 5);
    let params = WatchParams::default();
    let mut events = slices.watch(&params, &version).await.unwrap().boxed();
    let slice = json!({"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "metadata": {"name": "new", "namespace": "shop"}, "endpoints": []});
    api.with(|cluster| cluster.put(slice));
    let key = Key::new("endpointslices", "shop", "new");
    api.with(|cluster| {
        cluster.edit(&key, |slice| {
            slice["endpoints"] = json!([{"addresses": ["10.1.1.1"]}]);
        });
    });
    api.with(|cluster| cluster.remove(&key));
    let mut seen = Vec::new();
    for _ in 0..3 {
        let (kind, object) = match events.try_next().await.unwrap().unwrap() {
            WatchEvent::Added(object) => ("added", object),
            WatchEvent::Modified(object) => ("modified", object),
            WatchEvent::Deleted(object) => ("deleted", object),
            other => panic!("{other:?}"),
        };
        assert_eq!(object.metadata.name.as_deref(), Some("new"));
        seen.push((kind, object.data["endpoints"].as_array().unwrap().len()));
    }
    assert_eq!(seen, [("added", 0), ("modified", 1), ("deleted", 1)]);
    api.with(Cluster::cut_watches);
    assert!(events.try_next().await.unwrap().is_none());
    api.with(Cluster::forget);
    let mut events = slices.watch(&params, &version).await.unwrap().boxed();
    let event = events.try_next().await.unwrap().unwrap();
    assert!(matches!(event, WatchEvent::Error(status) if status.code == 410));
}

#[tokio::test]
async fn a_fault_applies_as_often_as_it_was_requested() {
    let api = seeded(&["node1"]);
    let maps = objects(&api, "v1", "ConfigMap");
    let params = PatchParams::default();
    let patch = |text: &str| Patch::Merge(json!({"data": {"x": text}}));
    let x = || {
        api.with(|cluster| {
            cluster
                .get("configmaps", "kube-system", "kube-proxy")
                .unwrap()["data"]["x"]
                .clone()
        })
    };

    api.fault(Fault::forbidden("patch", "configmaps"));
    assert_eq!(
        code(maps.patch("kube-proxy", &params, &patch("1")).await),
        403
    );
    let review = json!({"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview",
        "spec": {"resourceAttributes": {"verb": "patch", "resource": "configmaps"}}});
    let request = || {
        let uri = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews";
        let body = serde_json::to_vec(&review).unwrap();
        http::Request::post(uri)
            .header("content-type", "application/json")
            .body(body)
            .unwrap()
    };
    let answer: Value = client(&api).request(request()).await.unwrap();
    assert_eq!(answer["status"]["allowed"], false);
    api.heal();
    let answer: Value = client(&api).request(request()).await.unwrap();
    assert_eq!(answer["status"]["allowed"], true);
    assert_eq!(x(), Value::Null);

    api.fault(
        Fault::of("get", "configmaps", What::Status(500, "etcd is away"))
            .named("kube-proxy")
            .after(1)
            .times(1),
    );
    for expected in [true, false, true] {
        assert_eq!(maps.get("kube-proxy").await.is_ok(), expected);
    }
    for (what, done) in [(What::Broken, Value::Null), (What::AnswerLost, json!("2"))] {
        api.fault(Fault::of("patch", "configmaps", what).times(1));
        let error = maps
            .patch("kube-proxy", &params, &patch("2"))
            .await
            .unwrap_err();
        assert!(!matches!(error, kube::Error::Api(_)), "{error:?}");
        assert_eq!(x(), done);
    }
    api.fault(Fault::of("get", "configmaps", What::Slow(Duration::from_secs(60))).times(1));
    let slow = tokio::time::timeout(Duration::from_millis(100), maps.get("kube-proxy")).await;
    assert!(slow.is_err());
    // A write by another client after the read is a conflict.
    let edit = |cluster: &mut Cluster| {
        let key = Key::new("configmaps", "kube-system", "kube-proxy");
        cluster.edit(&key, |map| map["data"]["x"] = json!("theirs"));
    };
    api.fault(Fault::of("patch", "configmaps", What::Meanwhile(Arc::new(edit))).times(1));
    let old = maps
        .get("kube-proxy")
        .await
        .unwrap()
        .metadata
        .resource_version;
    let patch = Patch::Merge(json!({"metadata": {"resourceVersion": old}, "data": {"x": "3"}}));
    assert_eq!(code(maps.patch("kube-proxy", &params, &patch).await), 409);
    assert_eq!(x(), "theirs");

    api.with(|cluster| cluster.set_away(true));
    assert!(maps.get("kube-proxy").await.is_err());
    api.with(|cluster| cluster.set_away(false));
    maps.get("kube-proxy").await.unwrap();
}

#[tokio::test]
async fn a_node_that_is_down_neither_ends_nor_starts_pods() {
    let api = seeded(&["node1", "node2"]);
    api.with(|cluster| cluster.vanish("node2"));
    let name = api.proxies()[1].1.clone();
    let pods = objects(&api, "v1", "Pod");
    pods.delete(&name, &DeleteParams::default()).await.unwrap();
    let alone = api.proxies();
    thread::sleep(Duration::from_millis(50));
    assert!(
        pods.get(&name)
            .await
            .unwrap()
            .metadata
            .deletion_timestamp
            .is_some()
    );
    assert_eq!((alone.len(), api.proxies()), (1, alone));
}

#[tokio::test]
async fn a_pod_without_a_daemon_set_runs_to_its_end() {
    let api = seeded(&["node1"]);
    let pods = objects(&api, "v1", "Pod");
    let pod: DynamicObject = serde_json::from_value(json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"generateName": "kpx-"},
        "spec": {"nodeName": "node1", "containers": [{"name": "kpx", "image": "kpx"}]},
    }))
    .unwrap();
    let made = pods.create(&PostParams::default(), &pod).await.unwrap();
    let name = made.metadata.name.unwrap();
    assert!(name.starts_with("kpx-") && name.len() > 4);
    let phase = || {
        api.with(|cluster| {
            cluster
                .get("pods", "kube-system", &name)
                .map(|pod| pod["status"]["phase"].clone())
        })
    };
    eventually("the pod ends", || phase() == Some(json!("Succeeded")));
    pods.delete(&name, &DeleteParams::default()).await.unwrap();
    eventually("the pod is deleted", || phase().is_none());
}

#[tokio::test]
async fn kpx_reads_the_fake_api_server() {
    let api = seeded(&["node1", "node2"]);
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), api.kubeconfig()).unwrap();
    let options = Options {
        netns: None,
        root: PathBuf::from("/"),
        node: Some("node1".to_owned()),
        families: Family::BOTH.to_vec(),
        timeout: Duration::from_secs(10),
        kubeconfig: Some(file.path().to_owned()),
        context: None,
        selection: Selection::default(),
        no_api: false,
        environment: Environment::default(),
    };
    let items = [Item::Services, Item::ConfigMaps, Item::Pods];
    let evidence = collect(&items, &options).await;
    let read = |item| serde_json::from_str::<Value>(evidence.text(item).unwrap()).unwrap();
    let services = read(Item::Services)["items"].as_array().unwrap().len();
    assert_eq!(
        services,
        api.with(|cluster| cluster.list("services").count())
    );
    let map = &read(Item::ConfigMaps)["items"][0];
    assert_eq!(map["data"]["config.conf"], api.config());
    assert_eq!(read(Item::Pods)["items"].as_array().unwrap().len(), 2);
    assert!(api.asked().iter().all(|request| request.method == "GET"));
}
