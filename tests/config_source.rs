//! kube-proxy's configuration source: found in recorded clusters, and changed through a fake API server.

mod stores;

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use kpx_host::{Environment, Live, Options, Selection, collect};
use kpx_judge::plan::{CONFIG_NEEDS, ConfigSource, Plan, Undo, Unwritable};
use kpx_node::action::{Action, Field, KubeCommand, Object, Only, Resource};
use kpx_node::apply::{self, Apply as _, StepError};
use kpx_node::backend::Mode;
use kpx_node::cluster::edit::Fields;
use kpx_node::evidence::{Evidence, Item};
use kpx_node::net::Family;
use kpx_node::node::NodeSnapshot;
use serde_json::{Value, json};
use stores::{find, node, typed};
use tempfile::TempDir;

use crate::fake_api::{Api, Fate, Fault, Key, Kubelet, Pod, Pretend, What};
use crate::support::root;

const BOTH: &[&str] = &["node1", "node2"];

fn to(mode: Mode) -> Fields {
    Fields {
        mode,
        scheduler: None,
        strict_arp: None,
    }
}

/// kpx on a machine with credentials for a fake cluster.
struct Here {
    api: Api,
    dir: TempDir,
}

impl Here {
    fn new(recording: &str) -> Self {
        let api = Api::new();
        api.seed(&root().join("testdata/nodes").join(recording), BOTH);
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("run")).unwrap();
        fs::create_dir(dir.path().join("proc")).unwrap();
        fs::write(dir.path().join("kubeconfig"), api.kubeconfig()).unwrap();
        Self { api, dir }
    }

    fn options(&self) -> Options {
        Options {
            netns: None,
            root: self.dir.path().to_owned(),
            node: Some("node1".to_owned()),
            families: Family::BOTH.to_vec(),
            timeout: Duration::from_millis(500),
            kubeconfig: Some(self.dir.path().join("kubeconfig")),
            context: None,
            selection: Selection::default(),
            no_api: false,
            environment: Environment::default(),
        }
    }

    fn live(&self) -> Live {
        Live::new(&self.options()).unwrap()
    }

    async fn store(&self) -> ConfigSource {
        let evidence = collect(CONFIG_NEEDS, &self.options()).await;
        let node = NodeSnapshot::new(&evidence);
        let store = ConfigSource::find(&node, "node1").unwrap();
        store.ready_within(Duration::from_secs(5))
    }

    async fn run(&self, plan: &Plan) -> Result<(), StepError> {
        let ran = apply::run(plan, &mut self.live(), |_| ()).await;
        ran.map_err(|stopped| stopped.error)
    }

    fn map(&self) -> Value {
        self.api.with(|cluster| {
            let map = cluster.get("configmaps", "kube-system", "kube-proxy");
            map.unwrap().clone()
        })
    }

    /// Returns the requests of kube's client that change objects, as `VERB PATH`.
    fn writes(&self) -> Vec<String> {
        let asked = self.api.asked().into_iter();
        asked
            .filter(|request| request.method != "GET")
            .map(|request| format!("{} {}", request.method, request.path))
            .collect()
    }
}

fn config_map() -> Key {
    Key::new("configmaps", "kube-system", "kube-proxy")
}

#[tokio::test]
async fn the_config_map_changes_in_one_line_and_back() {
    let here = Here::new("dual-ipvs");
    let (before, text) = (here.map(), here.api.config());
    let store = here.store().await;
    assert!(store.is_shared());
    assert_eq!(
        store
            .diff(&to(Mode::Nftables))
            .lines()
            .filter(|l| l.starts_with(['-', '+']))
            .collect::<Vec<_>>(),
        [
            "--- ConfigMap kube-system/kube-proxy, key config.conf",
            "+++ ConfigMap kube-system/kube-proxy, key config.conf",
            "-mode: \"ipvs\"",
            "+mode: \"nftables\""
        ]
    );
    let plan = store.configure(&to(Mode::Nftables)).unwrap();
    here.run(&plan).await.unwrap();
    assert_eq!(
        here.api.config(),
        text.replace("mode: \"ipvs\"", "mode: \"nftables\"")
    );
    let kept = &here.map()["metadata"]["annotations"]["kpx.dev/previous-config.conf"];
    assert_eq!(kept, text.as_str());
    // Running it again changes nothing; its undo restores everything.
    here.run(&plan).await.unwrap();
    assert_eq!(here.writes().len(), 1, "{:?}", here.writes());
    assert!(
        apply::undo(&plan, 1, &mut here.live(), |_| ())
            .await
            .is_empty()
    );
    let mut after = here.map();
    after["metadata"]["resourceVersion"] = before["metadata"]["resourceVersion"].clone();
    if after["metadata"]["annotations"] == json!({}) {
        after["metadata"]
            .as_object_mut()
            .unwrap()
            .remove("annotations");
    }
    assert_eq!(after, before);
    // Without changes there are no steps.
    assert!(
        here.store()
            .await
            .configure(&to(Mode::Ipvs))
            .unwrap()
            .steps
            .is_empty()
    );
}

#[tokio::test]
async fn other_changes_of_the_object_are_kept() {
    let here = Here::new("dual-ipvs");
    let plan = here.store().await.configure(&to(Mode::Iptables)).unwrap();
    let other = What::Meanwhile(Arc::new(|cluster| {
        cluster.edit(&config_map(), |map| {
            map["data"]["other"] = json!(format!("{}+", map["data"]["other"]));
        });
    }));
    here.api
        .fault(Fault::of("patch", "configmaps", other).times(2));
    here.run(&plan).await.unwrap();
    assert_eq!(here.map()["data"]["other"], "\"null+\"+");
    assert!(here.api.config().contains("mode: \"iptables\""));
    assert_eq!(here.writes().len(), 3);
}

#[tokio::test]
async fn a_configuration_that_moved_is_not_overwritten() {
    let here = Here::new("dual-ipvs");
    let plan = here.store().await.configure(&to(Mode::Iptables)).unwrap();
    let text = here.api.config();
    let theirs = text.replace("mode: \"ipvs\"", "mode: \"nftables\"");
    let text = theirs.clone();
    let meanwhile = What::Meanwhile(Arc::new(move |cluster| {
        let text = text.clone();
        cluster.edit(&config_map(), |map| {
            map["data"]["config.conf"] = text.into();
        });
    }));
    here.api
        .fault(Fault::of("patch", "configmaps", meanwhile).times(1));
    let moved = here.run(&plan).await.unwrap_err();
    let expected = "data.config.conf of ConfigMap kube-system/kube-proxy was changed by another writer since it was read";
    assert_eq!(moved, StepError::Moved(expected.to_owned()));
    assert_eq!(here.api.config(), theirs);
    // A plan from the new content can be applied.
    let plan = here.store().await.configure(&to(Mode::Iptables)).unwrap();
    here.run(&plan).await.unwrap();
    // A deleted ConfigMap is reported as well.
    here.api.with(|cluster| cluster.remove(&config_map()));
    let gone = here.run(&plan).await.unwrap_err();
    assert_eq!(
        gone,
        StepError::Moved("ConfigMap kube-system/kube-proxy no longer exists".to_owned())
    );
}

#[tokio::test]
async fn endless_conflicts_stop_the_change() {
    let here = Here::new("dual-ipvs");
    let plan = here.store().await.configure(&to(Mode::Iptables)).unwrap();
    here.api.fault(Fault::of(
        "patch",
        "configmaps",
        What::Status(409, "modified"),
    ));
    let error = here.run(&plan).await.unwrap_err();
    assert!(
        matches!(&error, StepError::Moved(why) if why.contains("keeps changing")),
        "{error:?}"
    );
    assert!(here.api.config().contains("mode: \"ipvs\""));
}

#[tokio::test]
async fn a_missing_permission_is_named_with_the_roles_that_grant_it() {
    for (verb, resource) in [
        ("patch", "configmaps"),
        ("get", "configmaps"),
        ("delete", "pods"),
        ("list", "pods"),
    ] {
        let here = Here::new("dual-ipvs");
        let store = here.store().await;
        let configure = store.configure(&to(Mode::Iptables)).unwrap();
        let restart = store.restart("node1").unwrap();
        here.api.fault(Fault::forbidden(verb, resource));
        let plan = if resource == "pods" {
            restart
        } else {
            configure
        };
        let error = here.run(&plan).await.unwrap_err();
        let StepError::Denied(why) = &error else {
            panic!("{error:?}")
        };
        assert!(why.starts_with(&format!("{verb} {resource} ")), "{why}");
        assert!(why.contains("not for you (credentials: "), "{why}");
        assert!(
            why.ends_with("apply deploy/rbac-migrate.yaml, which has the roles and their bindings, to allow it"),
            "{why}"
        );
    }
}

#[tokio::test]
#[ignore = "takes long: make test-loops"]
async fn a_restarting_server_is_waited_for_and_a_lost_answer_is_requested_again() {
    for what in [
        What::Broken,
        What::AnswerLost,
        What::Status(503, "starting"),
        What::Status(429, "later"),
    ] {
        let here = Here::new("dual-ipvs");
        let store = here.store().await;
        let mut plan = store.configure(&to(Mode::Iptables)).unwrap();
        plan.steps.extend(store.restart("node1").unwrap().steps);
        let before = here.api.proxies();
        here.api
            .fault(Fault::of("patch", "configmaps", what.clone()).times(2));
        here.api
            .fault(Fault::of("get", "configmaps", what.clone()).times(2));
        here.api
            .fault(Fault::of("delete", "pods", what.clone()).times(2));
        here.api.fault(Fault::of("list", "pods", what).times(2));
        here.run(&plan).await.unwrap();
        assert!(here.api.config().contains("mode: \"iptables\""));
        let after = here.api.proxies();
        assert_ne!(before[0], after[0]);
        assert_eq!(before[1], after[1]);
    }
    // A server that stays away is reported.
    let here = Here::new("dual-ipvs");
    let plan = here.store().await.configure(&to(Mode::Iptables)).unwrap();
    here.api.fault(Fault::of(
        "patch",
        "configmaps",
        What::Status(503, "starting"),
    ));
    let error = here.run(&plan).await.unwrap_err();
    let StepError::Refused(why) = &error else {
        panic!("{error:?}")
    };
    assert!(why.ends_with("answered 503: starting"), "{why}");
}

#[tokio::test]
async fn a_node_gets_a_new_pod_with_the_new_configuration() {
    let here = Here::new("dual-ipvs");
    let store = here.store().await;
    let before = here.api.proxies();
    here.run(&store.configure(&to(Mode::Iptables)).unwrap())
        .await
        .unwrap();
    let plan = store.restart("node2").unwrap();
    assert_eq!(
        plan.steps.iter().map(|step| step.action.to_string()).collect::<Vec<_>>(),
        [
            format!(
                "kubectl -n kube-system delete pod {} --wait=false # uid {}",
                before[1].1,
                here.api.with(|c| c.get("pods", "kube-system", &before[1].1).unwrap()["metadata"]["uid"].as_str().unwrap().to_owned())
            ),
            "kubectl -n kube-system wait pod -l k8s-app=kube-proxy --field-selector spec.nodeName=node2 \
             --for condition=Ready --timeout 5s".to_owned(),
        ]
    );
    here.run(&plan).await.unwrap();
    let after = here.api.proxies();
    assert_eq!(before[0], after[0]);
    assert_ne!(before[1], after[1]);
    // The same plan again deletes nothing: that pod is gone.
    here.run(&plan).await.unwrap();
    assert_eq!(here.api.proxies(), after);
    let none = store.restart("node9").unwrap_err();
    assert!(matches!(none, Unwritable::NoProxy(why) if why.contains("node9")));
}

/// Nodes whose kube-proxy never becomes ready.
struct Never;

impl Kubelet for Never {
    fn start(&self, _: &Pod) -> Fate {
        Fate::NotReady
    }

    fn stop(&self, pod: &Pod) {
        Pretend.stop(pod);
    }

    fn log(&self, _: &Pod) -> String {
        "can't use the IPVS proxier: ipvs not supported\n".to_owned()
    }
}

#[tokio::test]
async fn a_pod_that_does_not_become_ready_times_out_with_its_reason() {
    let here = Here::new("dual-ipvs");
    let store = here.store().await.ready_within(Duration::from_millis(1200));
    here.api.kubelet(Never);
    let error = here
        .run(&store.restart("node1").unwrap())
        .await
        .unwrap_err();
    let StepError::Refused(why) = &error else {
        panic!("{error:?}")
    };
    assert!(
        why.starts_with("kube-proxy on node node1 is not ready after 1.2s: pod kube-proxy-"),
        "{why}"
    );

    // A crash loop ends the wait early and is reported with the last line of the log.
    let here = Here::new("dual-ipvs");
    let store = here.store().await.ready_within(Duration::from_secs(60));
    here.api.kubelet(Never);
    let plan = store.restart("node1").unwrap();
    let crash = What::Meanwhile(Arc::new(|cluster| {
        let pods: Vec<_> = cluster.list("pods").map(Key::of).collect();
        for pod in pods {
            cluster.edit(&pod, |pod| {
                pod["status"]["containerStatuses"] = json!([{
                    "name": "kube-proxy", "restartCount": 3,
                    "state": {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 40s"}},
                    "lastState": {"terminated": {"exitCode": 1}},
                }]);
            });
        }
    }));
    here.api.fault(Fault::of("list", "pods", crash).after(1));
    let error = here.run(&plan).await.unwrap_err();
    let StepError::Refused(why) = &error else {
        panic!("{error:?}")
    };
    assert!(
        why.contains("does not start: crash loop: container kube-proxy ended with exit status 1 (pod kube-proxy-x")
            && why.contains(", restarted 3 times, CrashLoopBackOff)"),
        "{why}"
    );
    assert!(
        why.ends_with("its log ends: can't use the IPVS proxier: ipvs not supported"),
        "{why}"
    );
}

#[tokio::test]
async fn a_node_that_vanishes_is_named() {
    let here = Here::new("dual-ipvs");
    let store = here.store().await.ready_within(Duration::from_millis(800));
    let plan = store.restart("node1").unwrap();
    here.api.with(|cluster| cluster.vanish("node1"));
    let error = here.run(&plan).await.unwrap_err();
    assert!(
        error.to_string().contains("the node is not ready"),
        "{error}"
    );
    here.api
        .with(|cluster| cluster.remove(&Key::new("nodes", "", "node1")));
    let error = here.run(&plan).await.unwrap_err();
    let expected = "node node1 no longer exists, so kube-proxy cannot start on it";
    assert_eq!(error, StepError::Refused(expected.to_owned()));
}

#[tokio::test]
async fn kpx_deletes_only_objects_that_it_created() {
    let here = Here::new("dual-ipvs");
    let object = Object::of_system(Resource::ConfigMap, "kube-proxy-kpx-1");
    let body = json!({
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {"name": "kube-proxy-kpx-1", "namespace": "kube-system", "labels": {"app.kubernetes.io/managed-by": "kpx"}},
        "data": {"config.conf": "a"},
    });
    let act = async |command: KubeCommand| here.live().apply(&Action::Kube { command }).await;
    let create = KubeCommand::Create {
        object: object.clone(),
        body: body.clone(),
    };
    act(create.clone()).await.unwrap();
    act(create.clone()).await.unwrap();
    let mut other = body.clone();
    other["data"]["config.conf"] = json!("b");
    let moved = act(KubeCommand::Create {
        object: object.clone(),
        body: other,
    })
    .await;
    assert!(matches!(moved, Err(StepError::Moved(_))), "{moved:?}");
    let delete = KubeCommand::Delete {
        object,
        only: Only::Ours,
    };
    act(delete.clone()).await.unwrap();
    act(delete).await.unwrap();
    let theirs = Object::of_system(Resource::ConfigMap, "kube-proxy");
    let refused = act(KubeCommand::Delete {
        object: theirs,
        only: Only::Ours,
    })
    .await;
    assert!(matches!(refused, Err(StepError::Refused(_))), "{refused:?}");
    here.map();
}

#[tokio::test]
async fn a_label_goes_to_its_node() {
    let here = Here::new("dual-ipvs");
    let path = ["metadata", "labels", "kpx.dev/proxy"];
    let command = KubeCommand::Set {
        object: Object::node("node2"),
        fields: vec![Field::new(&path, None, Some(json!("new")))],
    };
    here.live().apply(&Action::Kube { command }).await.unwrap();
    let label = |name: &str| {
        here.api.with(|c| {
            c.get("nodes", "", name).unwrap()["metadata"]["labels"]["kpx.dev/proxy"].clone()
        })
    };
    assert_eq!(
        (label("node1"), label("node2")),
        (Value::Null, json!("new"))
    );
}

#[test]
fn a_text_too_long_for_an_annotation_is_kept_elsewhere() {
    let mut evidence = node(&json!([]), &json!([]));
    let folder = root().join("testdata/nodes/dual-ipvs");
    for (item, file) in [
        (Item::DaemonSets, "daemonsets.json"),
        (Item::ConfigMaps, "configmaps.json"),
    ] {
        let text = fs::read_to_string(Path::new(&folder).join("cluster").join(file)).unwrap();
        evidence.insert(item, Ok(text));
    }
    let mut maps: Value = serde_json::from_str(evidence.text(Item::ConfigMaps).unwrap()).unwrap();
    maps["items"][0]["metadata"]["annotations"] = json!({"a": "x".repeat(261_000)});
    evidence.insert(Item::ConfigMaps, Ok(maps.to_string()));
    let plan = find(&evidence).configure(&to(Mode::Iptables)).unwrap();
    assert!(
        !plan.steps[0]
            .action
            .to_string()
            .contains("kpx.dev/previous")
    );
    assert!(
        plan.notes
            .iter()
            .any(|note| note.contains("too large for a backup annotation")),
        "{:?}",
        plan.notes
    );
}

/// Applies the fields that `action` sets to the ConfigMap in `evidence`.
fn carry_out(evidence: &mut Evidence, action: &Action) {
    let Action::Kube {
        command: KubeCommand::Set { fields, .. },
    } = action
    else {
        panic!("{action}");
    };
    let mut maps: Value = serde_json::from_str(evidence.text(Item::ConfigMaps).unwrap()).unwrap();
    for field in fields {
        assert_eq!(field.of(&maps["items"][0]), field.from.as_ref());
        let mut place = &mut maps["items"][0];
        for key in &field.path {
            place = &mut place[key.as_str()];
        }
        *place = field.to.clone().unwrap_or_default();
    }
    // Like the API server: a null removes the field.
    let annotations = maps["items"][0]["metadata"]["annotations"].as_object_mut();
    annotations.unwrap().retain(|_, value| !value.is_null());
    evidence.insert(Item::ConfigMaps, Ok(maps.to_string()));
}

#[test]
fn the_config_map_is_restored_exactly() {
    let mut evidence = node(&json!([]), &json!([]));
    for (item, file) in [
        (Item::DaemonSets, "daemonsets.json"),
        (Item::ConfigMaps, "configmaps.json"),
    ] {
        let path = root()
            .join("testdata/nodes/dual-iptables/cluster")
            .join(file);
        evidence.insert(item, Ok(fs::read_to_string(path).unwrap()));
    }
    // As kubeadm writes it.
    let mut maps: Value = serde_json::from_str(evidence.text(Item::ConfigMaps).unwrap()).unwrap();
    let text = maps["items"][0]["data"]["config.conf"].as_str().unwrap();
    let text = text.replace("mode: \"iptables\"", "mode: \"\"");
    assert!(text.contains("\nmode: \"\"\n"), "{text}");
    maps["items"][0]["data"]["config.conf"] = json!(text);
    maps["items"][0]["metadata"]["annotations"] = json!({"example.com/a": "b"});
    evidence.insert(Item::ConfigMaps, Ok(maps.to_string()));
    let before = maps;
    let read = |evidence: &Evidence| -> Value {
        serde_json::from_str(evidence.text(Item::ConfigMaps).unwrap()).unwrap()
    };

    let written = find(&evidence).configure(&to(Mode::Nftables)).unwrap();
    let step = &written.steps[0];
    let Undo::Do(undo) = &step.undo else {
        panic!();
    };
    let ours = [(&step.action, undo)];
    carry_out(&mut evidence, &step.action);
    let kept = |maps: &Value| maps["items"][0]["metadata"]["annotations"].clone();
    assert!(kept(&read(&evidence))["kpx.dev/previous-config.conf"].is_string());
    let there = evidence.clone();

    let back = find(&evidence)
        .put_back(&to(Mode::Iptables), &ours)
        .unwrap();
    assert!(back.notes.is_empty(), "{:?}", back.notes);
    carry_out(&mut evidence, &back.steps[0].action);
    assert_eq!(read(&evidence), before);
    // A second plan has no steps.
    let again = find(&evidence)
        .put_back(&to(Mode::Iptables), &ours)
        .unwrap();
    assert!(again.steps.is_empty());

    // Another line was changed after kpx wrote: that change is kept, and the mode is restored.
    let mut evidence = there;
    let mut edited = read(&evidence);
    let text = edited["items"][0]["data"]["config.conf"].as_str().unwrap();
    let changed = text.replace("masqueradeAll: false", "masqueradeAll: true");
    assert!(changed != *text);
    edited["items"][0]["data"]["config.conf"] = json!(changed);
    evidence.insert(Item::ConfigMaps, Ok(edited.to_string()));
    let back = find(&evidence)
        .put_back(&to(Mode::Iptables), &ours)
        .unwrap();
    assert!(
        back.notes[0].contains("changed after kpx wrote it"),
        "{:?}",
        back.notes
    );
    carry_out(&mut evidence, &back.steps[0].action);
    let text = changed.replace("mode: \"nftables\"", "mode: \"\"");
    let now = read(&evidence);
    assert_eq!(now["items"][0]["data"]["config.conf"], json!(text));
    assert_eq!(kept(&now), json!({"example.com/a": "b"}));
}

/// Evidence of a DaemonSet whose container mounts `volume` at `at` and reads the file `config`, and of a ConfigMap.
fn cluster(volume: &Value, at: &str, config: &str, map: &Value) -> Evidence {
    let mut evidence = node(&json!([]), &json!([]));
    let mut volume = volume.clone();
    volume["name"] = json!("config");
    let pod = json!({
        "containers": [{
            "name": "kube-proxy",
            "command": ["/usr/local/bin/kube-proxy", format!("--config={config}")],
            "volumeMounts": [{"name": "config", "mountPath": at}],
        }],
        "volumes": [volume],
    });
    let set = json!({"metadata": {"name": "kube-proxy"}, "spec": {"template": {"spec": pod}}});
    evidence.insert(Item::DaemonSets, Ok(json!({"items": [set]}).to_string()));
    evidence.insert(Item::ConfigMaps, Ok(json!({"items": [map]}).to_string()));
    evidence
}

/// The same with the key `key` of a ConfigMap that has `text` and `annotations`.
fn of_map(key: &str, text: &str, annotations: &Value) -> Evidence {
    let map = json!({
        "metadata": {"name": "kube-proxy", "annotations": annotations}, "data": {key: text},
    });
    let volume = json!({"configMap": {"name": "kube-proxy"}});
    cluster(&volume, "/etc/kp", &format!("/etc/kp/{key}"), &map)
}

#[test]
fn an_annotation_keeps_a_text_as_large_as_the_api_server_accepts() {
    let text = "kind: KubeProxyConfiguration\nmode: iptables\n";
    let name = "kpx.dev/previous-config.conf";
    let most = (256 << 10) - name.len() - text.len() - "note".len();
    for (key, length, is_kept) in [
        ("config.conf".to_owned(), most, true),
        ("config.conf".to_owned(), most + 1, false),
        ("k".repeat(63 - "previous-".len()), 1, true),
        ("k".repeat(64 - "previous-".len()), 1, false),
    ] {
        let evidence = of_map(&key, text, &json!({"note": "x".repeat(length)}));
        let plan = find(&evidence).configure(&to(Mode::Ipvs)).unwrap();
        let [step] = plan.steps.as_slice() else {
            panic!("{plan:?}");
        };
        let kept = step.action.to_string().contains("kpx.dev/previous-");
        assert_eq!(kept, is_kept, "{key} {length}");
        assert_eq!(plan.notes.is_empty(), is_kept, "{:?}", plan.notes);
    }
}

#[test]
fn a_restart_replaces_the_pods_of_kube_proxy_only() {
    let mut evidence = of_map("config.conf", "", &json!({}));
    let pod = |namespace: &str, name: &str, label: &str, value: &str| {
        json!({
            "metadata": {"namespace": namespace, "name": name, "uid": name, "labels": {label: value}},
            "spec": {"nodeName": "node1"},
        })
    };
    let pods = json!({"items": [
        pod("kube-system", "coredns", "k8s-app", "kube-dns"),
        pod("default", "copy", "k8s-app", "kube-proxy"),
        pod("kube-system", "kube-proxy-1", "k8s-app", "kube-proxy"),
        pod("kube-system", "kube-proxy-2", "component", "kube-proxy"),
    ]});
    evidence.insert(Item::Pods, Ok(pods.to_string()));
    let plan = find(&evidence).restart("node1").unwrap();
    let titles: Vec<_> = plan.steps.iter().map(|step| step.title.as_str()).collect();
    assert_eq!(
        titles,
        [
            "delete pod kube-proxy-1 of node node1",
            "delete pod kube-proxy-2 of node node1",
            "wait for the new kube-proxy of node node1, at most 3 min"
        ]
    );
}

#[test]
fn the_shortest_difference_is_shown() {
    let path = "/etc/rancher/k3s/config.yaml.d/99-kpx.yaml";
    let [head, key, mode] = [
        "# Written by kpx. Adds to the kube-proxy flags of the other files.\n",
        "kube-proxy-arg+:\n",
        "  - \"proxy-mode=ipvs\"\n",
    ];
    let text = [head, head, mode, head, mode].concat();
    let k3s = node(
        &json!([{"name": "k3s", "args": ["k3s", "agent"], "cgroup": "/system.slice/k3s.service"}]),
        &json!([{"path": path, "text": text}]),
    );
    assert_eq!(
        find(&k3s).diff(&to(Mode::Ipvs)),
        format!("--- {path}\n+++ {path}\n@@ -1 +1 @@\n {head}-{head}-{mode}-{head}+{key} {mode}")
    );
    let service = node(
        &json!([{"name": "kube-proxy", "args": ["kube-proxy", "--config=/kp"], "cgroup": "/kp.service"}]),
        &json!([{"path": "/kp", "text": "kind: KubeProxyConfiguration\nmode: iptables\n#\n#\n"}]),
    );
    assert_eq!(
        find(&service).diff(&to(Mode::Ipvs)),
        "--- /kp\n+++ /kp\n@@ -1 +1 @@\n kind: KubeProxyConfiguration\n-mode: iptables\n+mode: ipvs\n #\n #\n"
    );
}

#[test]
fn a_file_that_kpx_created_is_removed_and_one_of_others_is_edited() {
    let processes =
        json!([{"name": "k3s", "args": ["k3s", "agent"], "cgroup": "/system.slice/k3s.service"}]);
    let before = find(&node(&processes, &json!([])));
    let plan = before.configure(&to(Mode::Ipvs)).unwrap();
    let [step] = plan.steps.as_slice() else {
        panic!("{plan:?}");
    };
    let (Action::WriteFile { path, text }, Undo::Do(undo)) = (&step.action, &step.undo) else {
        panic!("{step:?}");
    };
    let after = find(&node(&processes, &json!([{"path": path, "text": text}])));
    let back = |store: &ConfigSource, action: &Action| {
        let plan = store.put_back(&to(Mode::Iptables), &[(action, undo)]);
        typed(&plan.unwrap())
    };
    let file = path.display();
    assert_eq!(
        back(&after, &step.action),
        [format!("rm {file} || cat > {file} <<'EOF'\n{text}EOF")]
    );
    assert_eq!(back(&before, &step.action), [""; 0]);
    let other = Action::WriteFile {
        path: "/etc/kp.yaml".into(),
        text: text.clone(),
    };
    let edited = text.replace("ipvs", "iptables");
    assert_eq!(
        back(&after, &other),
        [format!(
            "cat > {file} <<'EOF'\n{edited}EOF || cat > {file} <<'EOF'\n{text}EOF"
        )]
    );
}

#[test]
fn the_text_of_another_config_map_is_not_restored() {
    let text = "kind: KubeProxyConfiguration\nmode: nftables # kept\n";
    let mut evidence = of_map("config.conf", text, &json!({}));
    let other = Action::Kube {
        command: KubeCommand::Set {
            object: Object::of_system(Resource::ConfigMap, "kube-proxy-kpx-1"),
            fields: vec![Field::new(
                &["data", "config.conf"],
                Some(json!("mode: ipvs\n")),
                Some(json!(text)),
            )],
        },
    };
    let plan = find(&evidence).put_back(&to(Mode::Iptables), &[(&other, &other)]);
    let plan = plan.unwrap();
    assert_eq!(plan.notes, [""; 0]);
    carry_out(&mut evidence, &plan.steps[0].action);
    let kept = text.replace("nftables", "iptables");
    assert_eq!(find(&evidence).text(), kept);
}
