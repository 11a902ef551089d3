//! Each piece of evidence alone, and evidence that does not fit together.

use serde_json::{Value, json};

use super::*;
use kpx_node::evidence::Evidence;

/// Returns evidence with this Node and these objects; items that are null were not collected.
fn evidence(node: &Value, more: &[(Item, Value)]) -> Evidence {
    let mut evidence = Evidence::default();
    for item in NEEDS {
        evidence.insert(*item, Err(Gap::NotCollected(*item)));
    }
    evidence.insert(Item::Nodes, Ok(json!({"items": [node]}).to_string()));
    for (item, text) in more {
        evidence.insert(*item, Ok(text.to_string()));
    }
    evidence
}

fn found(evidence: &Evidence) -> Result<(&'static str, Vec<String>), Gap> {
    let found = recognise(&NodeSnapshot::new(evidence), "node1")?;
    Ok((found.provider.id, found.evidence))
}

fn node(labels: &[&str], annotations: &[&str], version: &str, os: &str) -> Value {
    let map = |keys: &[&str]| {
        keys.iter()
            .map(|key| ((*key).to_owned(), json!("x")))
            .collect()
    };
    let [labels, annotations] = [labels, annotations].map(|keys| Value::Object(map(keys)));
    json!({
        "metadata": {"name": "node1", "labels": labels, "annotations": annotations},
        "status": {"nodeInfo": {"kubeletVersion": version, "osImage": os}},
    })
}

fn object(name: &str, key: &str) -> Value {
    json!({"items": [{"metadata": {"name": name, "namespace": "kube-system", "labels": {(key): "x"}}}]})
}

fn static_pod(name: &str, node: &str, annotation: &str) -> Value {
    json!({"items": [{
        "metadata": {"name": name, "namespace": "kube-system", "annotations": {(annotation): "x"}},
        "spec": {"nodeName": node},
    }]})
}

fn process(name: &str, same_network: bool) -> Value {
    json!({"processes": [{"pid": 7, "name": name, "args": [name], "sameNetwork": same_network}]})
}

#[test]
fn one_piece_of_evidence_is_enough() {
    const MIRROR: &str = "kubernetes.io/config.mirror";
    let plain = || node(&[], &[], "v1.36.2", "Debian GNU/Linux 12 (bookworm)");
    let label = |key| node(&[key], &[], "v1.36.2", "");
    let annotation = |key| node(&[], &[key], "v1.36.2", "");
    let version = |version| node(&[], &[], version, "");
    let alone = [
        (
            annotation("kubeadm.alpha.kubernetes.io/cri-socket"),
            "kubeadm",
        ),
        (version("v1.30.5+k3s1"), "k3s"),
        (annotation("k3s.io/node-args"), "k3s"),
        (version("v1.30.5+rke2r1"), "rke2"),
        (annotation("rke2.io/node-args"), "rke2"),
        (label("microk8s.io/cluster"), "microk8s"),
        (node(&[], &[], "v1.36.2", "Talos (v1.11.2)"), "talos"),
        (label("kops.k8s.io/instancegroup"), "kops"),
        (version("v1.29.0-eks-a5ec690"), "eks"),
        (label("eks.amazonaws.com/nodegroup"), "eks"),
        (label("kubernetes.azure.com/cluster"), "aks"),
        (version("v1.32.4-gke.1012000"), "gke"),
        (label("cloud.google.com/gke-nodepool"), "gke"),
        (label("node.openshift.io/os_id"), "openshift"),
        (
            annotation("machineconfiguration.openshift.io/currentConfig"),
            "openshift",
        ),
    ];
    for (node, id) in alone {
        let (seen, evidence) = found(&evidence(&node, &[])).unwrap();
        assert_eq!((seen, evidence.len()), (id, 1), "{node}");
    }
    let hash = "kubeadm.kubernetes.io/component-config.hash";
    let beside = [
        (Item::ConfigMaps, object("kube-proxy", hash), "kubeadm"),
        (
            Item::DaemonSets,
            object("cilium", "kubeone.io/addon"),
            "kubeone",
        ),
        (
            Item::ConfigMaps,
            object("kube-proxy-config", "eks.amazonaws.com/component"),
            "eks",
        ),
        (
            Item::DaemonSets,
            object("kube-proxy", "kubernetes.azure.com/managedby"),
            "aks",
        ),
        (
            Item::Pods,
            static_pod("nginx-proxy-node1", "node1", MIRROR),
            "kubespray",
        ),
        (
            Item::Pods,
            static_pod("haproxy-node1", "node1", MIRROR),
            "kubespray",
        ),
        (Item::Processes, process("k3s-agent", true), "k3s"),
        (Item::Processes, process("rke2", true), "rke2"),
        (Item::Processes, process("kubelite", true), "microk8s"),
        (
            Item::ProxyFiles,
            json!({"files": [{"path": "/var/snap/microk8s/current/args/kube-proxy", "text": ""}]}),
            "microk8s",
        ),
    ];
    for (item, text, id) in beside {
        let (seen, evidence) = found(&evidence(&plain(), &[(item, text.clone())])).unwrap();
        assert_eq!((seen, evidence.len()), (id, 1), "{text}");
    }
    // Neither a pod of another node or of a controller, nor a process in another network namespace.
    for (item, text) in [
        (Item::Pods, static_pod("nginx-proxy-node2", "node2", MIRROR)),
        (Item::Pods, static_pod("nginx-proxy-1", "node1", "other")),
        (Item::Processes, process("k3s-agent", false)),
    ] {
        let none = found(&evidence(&plain(), &[(item, text)])).unwrap_err();
        let why = "node node1 has no evidence of a provider that kpx knows";
        assert_eq!(none, Gap::Absent(Item::Nodes, why.to_owned()));
    }
}

#[test]
fn an_installer_that_uses_kubeadm_is_named_instead_of_it() {
    let kubeadm = node(
        &[],
        &["kubeadm.alpha.kubernetes.io/cri-socket"],
        "v1.36.2",
        "",
    );
    for (set, id) in [("kubeone.io/addon", "kubeone"), ("other", "kubeadm")] {
        let sets = [(Item::DaemonSets, object("cilium", set))];
        assert_eq!(found(&evidence(&kubeadm, &sets)).unwrap().0, id);
    }
}

#[test]
fn evidence_of_two_providers_names_neither() {
    let both = node(
        &["microk8s.io/cluster"],
        &["k3s.io/node-args"],
        "v1.36.2+k3s1",
        "",
    );
    let Err(Gap::Failed(Item::Nodes, why)) = found(&evidence(&both, &[])) else {
        panic!();
    };
    assert_eq!(
        why,
        "evidence of several providers: k3s (kubelet v1.36.2+k3s1, the Node's annotation k3s.io/node-args); \
         MicroK8s (the Node's label microk8s.io/cluster)"
    );
}

#[test]
fn a_machine_of_another_cloud_contradicts_a_cloud_service() {
    for (id, scheme, fits) in [
        ("aws:///eu-west-1a/i-1", "aws", true),
        ("eks-hybrid:///eu-west-1/c/mi-1", "eks-hybrid", true),
        ("gce://project/zone/name", "gce", false),
        ("no scheme", "", true),
    ] {
        let mut eks = node(&[], &[], "v1.36.2-eks-1", "");
        eks["spec"] = json!({"providerID": id});
        match found(&evidence(&eks, &[])) {
            Ok((seen, _)) => assert!(fits && seen == "eks", "{id}"),
            Err(gap) => {
                let why = format!(
                    "Amazon EKS (kubelet v1.36.2-eks-1), but the node's providerID begins with {scheme}://"
                );
                assert_eq!((fits, gap), (false, Gap::Failed(Item::Nodes, why)));
            }
        }
    }
    // Other providers run on any machine.
    let mut kops = node(&["kops.k8s.io/instancegroup"], &[], "v1.36.2", "");
    kops["spec"] = json!({"providerID": "gce://project/zone/name"});
    assert_eq!(found(&evidence(&kops, &[])).unwrap().0, "kops");
}

#[test]
fn without_nodes_other_evidence_counts_and_nothing_is_unknown() {
    let mut without = evidence(&json!({}), &[(Item::Processes, process("kubelite", true))]);
    without.insert(Item::Nodes, Err(Gap::NotCollected(Item::Nodes)));
    assert_eq!(found(&without).unwrap().0, "microk8s");
    without.insert(Item::Processes, Ok(process("kube-proxy", true).to_string()));
    assert_eq!(found(&without), Err(Gap::NotCollected(Item::Nodes)));
}
