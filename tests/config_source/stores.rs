//! Where the configuration of each distribution is kept.

use kpx_judge::plan::{ConfigSource, Place, Plan, Undo, Unwritable};
use kpx_node::backend::Mode;
use kpx_node::evidence::{Evidence, Gap, Item};
use kpx_node::node::NodeSnapshot;
use serde_json::{Value, json};

use super::{cluster, to};
use crate::support::{recorded, recordings};

#[test]
fn every_recorded_cluster_has_its_store() {
    let mut count = 0;
    for name in recordings() {
        let mut evidence = Evidence::default();
        for item in [Item::ConfigMaps, Item::DaemonSets, Item::Pods, Item::Nodes] {
            let text = recorded(&name, item.file());
            evidence.insert(item, text.ok_or(Gap::NotCollected(item)));
        }
        let Ok(store) = ConfigSource::find(&NodeSnapshot::new(&evidence), "node1") else {
            continue;
        };
        let Place::ConfigMap { name: map, key, .. } = store.place() else {
            panic!("{name}: {:?}", store.place());
        };
        assert_eq!((map.as_str(), key.as_str()), ("kube-proxy", "config.conf"));
        for mode in Mode::ALL {
            store.configure(&to(mode)).unwrap();
        }
        count += 1;
    }
    assert!(count > 15, "{count} clusters");
}

/// Evidence of a node with these processes and files, and an empty cluster.
pub(super) fn node(processes: &Value, files: &Value) -> Evidence {
    let mut evidence = Evidence::default();
    let list = json!({"kind": "List", "items": []}).to_string();
    for item in [Item::ConfigMaps, Item::DaemonSets, Item::Pods, Item::Nodes] {
        evidence.insert(item, Ok(list.clone()));
    }
    evidence.insert(
        Item::Processes,
        Ok(json!({ "processes": processes }).to_string()),
    );
    evidence.insert(Item::ProxyFiles, Ok(json!({ "files": files }).to_string()));
    evidence
}

pub(super) fn find(evidence: &Evidence) -> ConfigSource {
    ConfigSource::find(&NodeSnapshot::new(evidence), "node1").unwrap()
}

pub(super) fn typed(plan: &Plan) -> Vec<String> {
    let steps = plan.steps.iter();
    let lines = steps.map(|step| match &step.undo {
        Undo::Do(undo) => format!("{} || {undo}", step.action),
        Undo::Never(_) => step.action.to_string(),
    });
    lines.collect()
}

#[test]
fn a_service_of_the_host_is_changed_in_its_file() {
    let evidence = node(
        &json!([{"name": "kube-proxy", "args": ["/usr/bin/kube-proxy", "--config=/etc/kp.yaml"], "cgroup": "/system.slice/kube-proxy.service"}]),
        &json!([{"path": "/etc/kp.yaml", "text": "kind: KubeProxyConfiguration\nmode: iptables # old\n"}]),
    );
    let store = find(&evidence);
    assert!(!store.is_shared());
    assert_eq!(
        typed(&store.configure(&to(Mode::Ipvs)).unwrap()),
        [
            "cat > /etc/kp.yaml <<'EOF'\nkind: KubeProxyConfiguration\nmode: ipvs # old\nEOF || \
          cat > /etc/kp.yaml <<'EOF'\nkind: KubeProxyConfiguration\nmode: iptables # old\nEOF"
        ]
    );
    assert_eq!(
        typed(&store.restart("node1").unwrap()),
        ["systemctl restart kube-proxy.service"]
    );
}

#[test]
fn distributions_pass_flags_on() {
    for (name, args, unit) in [
        ("k3s-server", "/usr/local/bin/k3s server", "k3s.service"),
        ("rke2", "/usr/local/bin/rke2 agent", "rke2-agent.service"),
    ] {
        let distribution = &name[..name.len().min(if name == "rke2" { 4 } else { 3 })];
        let path = format!("/etc/rancher/{distribution}/config.yaml.d/99-kpx.yaml");
        let processes =
            json!([{"name": name, "args": [args], "cgroup": format!("/system.slice/{unit}")}]);
        let store = find(&node(&processes, &json!([])));
        let text = "# Written by kpx. Adds to the kube-proxy flags of the other files.\nkube-proxy-arg+:\n  \
                    - \"proxy-mode=ipvs\"\n";
        assert_eq!(
            typed(&store.configure(&to(Mode::Ipvs)).unwrap()),
            [format!("cat > {path} <<'EOF'\n{text}EOF || rm {path}")]
        );
        assert_eq!(
            typed(&store.restart("node1").unwrap()),
            [format!("systemctl restart {unit}")]
        );
        // A file that kpx wrote earlier is restored, not removed.
        let store = find(&node(&processes, &json!([{"path": path, "text": text}])));
        assert!(store.configure(&to(Mode::Ipvs)).unwrap().steps.is_empty());
        let plan = store.configure(&to(Mode::Iptables)).unwrap();
        assert!(typed(&plan)[0].ends_with(&format!(" || cat > {path} <<'EOF'\n{text}EOF")));
    }
    let microk8s = node(
        &json!([{"name": "kubelite", "args": ["/snap/microk8s/1/kubelite"], "cgroup": "/system.slice/snap.microk8s.daemon-kubelite.service"}]),
        &json!([{"path": "/var/snap/microk8s/current/args/kube-proxy", "text": "--v=1\n--proxy-mode=iptables\n"}]),
    );
    let plan = find(&microk8s).configure(&to(Mode::Ipvs)).unwrap();
    assert!(typed(&plan)[0].contains("--v=1\n--proxy-mode=ipvs\nEOF || "));
}

#[test]
fn a_static_pod_is_changed_in_its_manifest() {
    let mut evidence = node(
        &json!([{"name": "kube-proxy", "args": ["kube-proxy", "--proxy-mode=iptables"], "cgroup": "/kubepods/pod1/2"}]),
        &json!([{"path": "/etc/kubernetes/manifests/kube-proxy.manifest",
                 "text": "kind: Pod\nspec:\n  containers:\n  - args:\n    - --proxy-mode=iptables\n"}]),
    );
    let pod = json!({"metadata": {"name": "kube-proxy-node1", "namespace": "kube-system", "uid": "1",
        "labels": {"k8s-app": "kube-proxy"}, "annotations": {"kubernetes.io/config.mirror": "x"}},
        "spec": {"nodeName": "node1"}});
    evidence.insert(Item::Pods, Ok(json!({"items": [pod]}).to_string()));
    let store = find(&evidence);
    let plan = store.configure(&to(Mode::Ipvs)).unwrap();
    assert!(typed(&plan)[0].contains("    - --proxy-mode=ipvs\nEOF || "));
    let restart = store.restart("node1").unwrap();
    assert!(restart.steps.is_empty() && restart.notes[0].contains("automatically"));
}

#[test]
fn a_configuration_managed_elsewhere_is_read_only_and_has_a_command() {
    let set = |labels: Value, command: Value| {
        json!({"items": [{"metadata": {"name": "kube-proxy", "labels": labels},
            "spec": {"template": {"spec": {"containers": [{"name": "kube-proxy", "command": command}]}}}}]})
        .to_string()
    };
    let file = json!(["kube-proxy", "--config=/a/b"]);
    let mut cases = Vec::new();
    for (labels, command, tells) in [
        (
            json!({"k0s.k0sproject.io/stack": "kubeproxy"}),
            &file,
            "spec.network.kubeProxy.mode: ipvs",
        ),
        (
            json!({"kubernetes.azure.com/managedby": "aks"}),
            &file,
            "az aks update",
        ),
        (
            json!({}),
            &json!(["kube-proxy", "--proxy-mode=iptables"]),
            "--proxy-mode=ipvs",
        ),
    ] {
        let mut evidence = node(&json!([]), &json!([]));
        evidence.insert(Item::DaemonSets, Ok(set(labels, command.clone())));
        cases.push((evidence, tells));
    }
    let mut gke = node(&json!([]), &json!([]));
    let gke_node = json!({"items": [{"metadata": {"name": "node1", "labels": {"cloud.google.com/gke-nodepool": "a"}}}]});
    gke.insert(Item::Nodes, Ok(gke_node.to_string()));
    cases.push((gke, "gcloud"));
    cases.push((
        node(
            &json!([{"name": "k3s-server", "args": ["k3s", "server", "--kube-proxy-arg=proxy-mode=iptables"], "cgroup": "/k3s.service"}]),
            &json!([]),
        ),
        "--kube-proxy-arg=proxy-mode=ipvs",
    ));
    cases.push((
        node(
            &json!([{"name": "kube-proxy", "args": ["kube-proxy", "--proxy-mode=iptables"], "cgroup": "/system.slice/kube-proxy.service"}]),
            &json!([]),
        ),
        "systemctl edit --full kube-proxy.service",
    ));
    for (evidence, tells) in cases {
        let store = find(&evidence);
        let refused = store.configure(&to(Mode::Ipvs)).unwrap_err();
        let Unwritable::ReadOnly { command, .. } = &refused else {
            panic!("{refused:?}")
        };
        assert!(command.contains(tells), "{command}");
        assert!(
            refused
                .to_string()
                .starts_with("kpx does not change this configuration: "),
            "{refused}"
        );
        assert_eq!(store.diff(&to(Mode::Ipvs)), "");
        assert!(matches!(
            store.restart("node1"),
            Err(Unwritable::ReadOnly { .. })
        ));
    }
}

#[test]
fn a_file_of_the_node_that_a_daemon_set_reads_is_named() {
    for (volume, at, config, file) in [
        ("/etc/kube/", "/cfg", "/cfg/kp.yaml", "/etc/kube/kp.yaml"),
        (
            "/etc/kp.yaml",
            "/cfg/kp.yaml",
            "/cfg/kp.yaml",
            "/etc/kp.yaml",
        ),
    ] {
        let volume = json!({"hostPath": {"path": volume}});
        let evidence = cluster(&volume, at, config, &json!({}));
        let Err(Unwritable::ReadOnly { what, .. }) = find(&evidence).configure(&to(Mode::Ipvs))
        else {
            panic!("{file}");
        };
        assert_eq!(what, file);
    }
}

#[test]
fn a_process_is_known_by_its_name_or_by_its_command_line() {
    for (name, command) in [("kube-proxy", "/opt/proxy"), ("exe", "/usr/bin/kube-proxy")] {
        let evidence = node(
            &json!([{"name": name, "args": [command, "--config=/etc/kp.yaml"], "cgroup": "/system.slice/kp.service"}]),
            &json!([{"path": "/etc/kp.yaml", "text": "mode: iptables\n"}]),
        );
        assert_eq!(
            find(&evidence).place(),
            &Place::File("/etc/kp.yaml".into()),
            "{name}"
        );
    }
}

#[test]
fn a_container_outside_kubernetes_is_not_a_service_of_its_runtime() {
    for cgroup in [
        "/system.slice/docker.service/1a2b",
        "/machine.slice/podman.service/libpod-1a2b",
    ] {
        let process =
            json!({"name": "kube-proxy", "args": ["kube-proxy", "--config=/a"], "cgroup": cgroup});
        let refused = find(&node(&json!([process]), &json!([]))).configure(&to(Mode::Ipvs));
        let why = refused.unwrap_err().to_string();
        let want = "belongs to a container that neither a kubelet nor systemd started";
        assert!(why.ends_with(want), "{cgroup}: {why}");
    }
}
