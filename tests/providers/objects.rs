//! The objects, processes and files of a node, in the shape that each provider gives them.

use serde_json::{Value, json};

/// Returns what a Node of provider `id` has, as a merge patch.
pub(super) fn node(id: &str) -> Value {
    let kubeadm = json!({"kubeadm.alpha.kubernetes.io/cri-socket": "unix:///var/run/containerd/containerd.sock"});
    let of = |labels: Value,
              annotations: Value,
              provider_id: Option<&str>,
              version: &str,
              os: &str| {
        json!({
            "metadata": {"labels": labels, "annotations": annotations},
            "spec": {"providerID": provider_id},
            "status": {"nodeInfo": {"kubeletVersion": version, "osImage": os, "kernelVersion": "6.1.0"}},
        })
    };
    let none = || json!({});
    let debian = "Debian GNU/Linux 12 (bookworm)";
    let ubuntu = "Ubuntu 24.04.3 LTS";
    match id {
        "kubeadm" | "kubespray" | "kubeone" => of(none(), kubeadm, None, "v1.36.2", debian),
        "k3s" => of(
            json!({"node.kubernetes.io/instance-type": "k3s"}),
            json!({"k3s.io/hostname": "node1", "k3s.io/internal-ip": "10.0.2.15", "k3s.io/node-args": "[\"server\"]"}),
            Some("k3s://node1"),
            "v1.36.2+k3s1",
            ubuntu,
        ),
        "rke2" => of(
            json!({"node.kubernetes.io/instance-type": "rke2"}),
            json!({"rke2.io/hostname": "node1", "rke2.io/internal-ip": "10.0.2.15", "rke2.io/node-args": "[\"server\"]"}),
            Some("rke2://node1"),
            "v1.36.2+rke2r1",
            ubuntu,
        ),
        "microk8s" => of(
            json!({"microk8s.io/cluster": "true", "node.kubernetes.io/microk8s-controlplane": "microk8s-controlplane"}),
            none(),
            None,
            "v1.36.2",
            ubuntu,
        ),
        "talos" => of(
            none(),
            json!({"networking.talos.dev/self-ips": "10.0.2.15"}),
            None,
            "v1.36.2",
            "Talos (v1.13.0)",
        ),
        "kops" => of(
            json!({"kops.k8s.io/instancegroup": "nodes-eu-west-1a", "node-role.kubernetes.io/node": ""}),
            none(),
            Some("aws:///eu-west-1a/i-0123456789abcdef0"),
            "v1.36.2",
            ubuntu,
        ),
        "eks" => of(
            json!({"eks.amazonaws.com/nodegroup": "workers", "eks.amazonaws.com/capacityType": "ON_DEMAND"}),
            none(),
            Some("aws:///eu-west-1a/i-0123456789abcdef0"),
            "v1.36.2-eks-94953ac",
            "Amazon Linux 2023.9.20260101",
        ),
        "aks" => of(
            json!({"kubernetes.azure.com/cluster": "MC_group_cluster_westeurope", "kubernetes.azure.com/agentpool": "nodepool1"}),
            none(),
            Some(
                "azure:///subscriptions/0/resourceGroups/mc_group/providers/Microsoft.Compute/virtualMachineScaleSets/aks-nodepool1-1-vmss/virtualMachines/0",
            ),
            "v1.36.2",
            "Ubuntu 22.04.5 LTS",
        ),
        "gke" => of(
            json!({"cloud.google.com/gke-nodepool": "default-pool"}),
            none(),
            Some("gce://project/europe-west1-b/gke-cluster-default-pool-1"),
            "v1.36.2-gke.1012000",
            "Container-Optimized OS from Google",
        ),
        "openshift" => of(
            json!({"node.openshift.io/os_id": "rhel", "node-role.kubernetes.io/worker": ""}),
            json!({"machineconfiguration.openshift.io/currentConfig": "rendered-worker-1"}),
            None,
            "v1.36.2",
            "Red Hat Enterprise Linux CoreOS 9.6",
        ),
        _ => panic!("{id}"),
    }
}

/// Returns what provider `id` adds to kube-proxy's DaemonSet and ConfigMap.
pub(super) fn marks(id: &str) -> Value {
    match id {
        "eks" => json!({"metadata": {"labels": {"eks.amazonaws.com/component": "kube-proxy"}}}),
        "aks" => json!({"metadata": {"labels": {"kubernetes.azure.com/managedby": "aks"}}}),
        _ => json!({}),
    }
}

/// Returns a DaemonSet of kube-system beside kube-proxy's, if kpx reads one.
pub(super) fn another_set(id: &str) -> Option<Value> {
    (id == "kubeone").then(|| {
        json!({
            "metadata": {"name": "cilium", "namespace": "kube-system", "labels": {"kubeone.io/addon": "cni-cilium"}},
            "spec": {"template": {"spec": {"containers": [{"name": "cilium-agent", "command": ["cilium-agent"]}]}}},
        })
    })
}

/// Returns the kube-proxy container's command where the DaemonSet has flags and no configuration file.
pub(super) fn flags(mode: &str) -> Value {
    json!([
        "/usr/local/bin/kube-proxy",
        "--cluster-cidr=10.244.0.0/16",
        "--conntrack-max-per-core=0",
        "--hostname-override=$(NODE_NAME)",
        "--kubeconfig=/etc/kubernetes/kubeconfig",
        format!("--proxy-mode={mode}"),
    ])
}

/// Returns the mirror of a static pod.
fn mirror(name: &str, app: &str) -> Value {
    json!({
        "metadata": {
            "name": format!("{name}-node1"), "namespace": "kube-system", "uid": format!("uid-{name}"),
            "labels": {"k8s-app": app}, "annotations": {"kubernetes.io/config.mirror": "1"},
        },
        "spec": {"nodeName": "node1", "hostNetwork": true, "containers": [{"name": name, "image": "image"}]},
        "status": {"phase": "Running"},
    })
}

/// Returns static pods of the node.
pub(super) fn static_pods(id: &str) -> Vec<Value> {
    match id {
        "kubespray" => vec![mirror("nginx-proxy", "kube-nginx")],
        "rke2" | "kops" | "gke" => vec![mirror("kube-proxy", "kube-proxy")],
        _ => Vec::new(),
    }
}

/// Returns the processes of the node; `None` if they were not recorded.
pub(super) fn processes(id: &str) -> Option<Value> {
    let (name, line, unit) = match id {
        "k3s" => ("k3s-server", "/usr/local/bin/k3s server", "k3s.service"),
        "rke2" => ("rke2", "/usr/local/bin/rke2 server", "rke2-server.service"),
        "microk8s" => (
            "kubelite",
            "/snap/microk8s/1/kubelite",
            "snap.microk8s.daemon-kubelite.service",
        ),
        "openshift" => ("ovnkube", "/usr/bin/ovnkube", "crio-1.scope"),
        _ => return None,
    };
    Some(json!({"processes": [{
        "pid": 100, "name": name, "args": [line], "started": 1, "sameNetwork": true,
        "cgroup": format!("/system.slice/{unit}"),
    }]}))
}

/// Returns whether kube-proxy runs in a pod of a DaemonSet.
pub(super) fn has_set(id: &str) -> bool {
    !["k3s", "rke2", "microk8s", "kops", "gke", "openshift"].contains(&id)
}

/// kube-proxy's manifest as nodeup writes it: without a flag for the default mode.
pub(super) const MANIFEST: &str = "\
apiVersion: v1
kind: Pod
metadata:
  labels:
    k8s-app: kube-proxy
    kubernetes.io/managed-by: nodeup
  name: kube-proxy
  namespace: kube-system
spec:
  containers:
  - args:
    - --log-file=/var/log/kube-proxy.log
    - --also-stdout
    - /usr/local/bin/kube-proxy
    - --cluster-cidr=10.244.0.0/16
    - --kubeconfig=/var/lib/kube-proxy/kubeconfig
    - --oom-score-adj=-998
    - --v=2
    command:
    - /go-runner
    image: registry.k8s.io/kube-proxy:v1.36.2
    name: kube-proxy
  hostNetwork: true
";

/// Returns that manifest with `mode`.
pub(super) fn manifest(mode: &str) -> String {
    match mode {
        "iptables" => MANIFEST.to_owned(),
        mode => MANIFEST.replace(
            "    - --v=2\n",
            &format!("    - --proxy-mode={mode}\n    - --v=2\n"),
        ),
    }
}

/// Merges `patch` into `object`, as RFC 7396 says.
pub(super) fn merge(object: &mut Value, patch: &Value) {
    let Value::Object(patch) = patch else {
        *object = patch.clone();
        return;
    };
    if !object.is_object() {
        *object = json!({});
    }
    for (key, value) in patch {
        if value.is_null() {
            object.as_object_mut().unwrap().remove(key);
        } else {
            merge(&mut object[key.as_str()], value);
        }
    }
}
