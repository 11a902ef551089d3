//! The known providers.

use super::clue::Clue::{Annotation, File, Label, Object, OsImage, Process, StaticPod, Version};
use super::entry::Provider;

/// Text of `docs/migrate/README.md`: the choice of a page, and the cost of each switch.
pub const INDEX: &str = include_str!("../../docs/migrate/README.md");

/// Known providers, in the order of the index.
pub const PROVIDERS: &[Provider] = &[
    Provider {
        id: "kubeadm",
        name: "kubeadm",
        text: include_str!("../../docs/migrate/kubeadm.md"),
        clues: &[
            Annotation("kubeadm.alpha.kubernetes.io/cri-socket"),
            Object("kubeadm.kubernetes.io/component-config.hash"),
        ],
        builds_on: None,
        clouds: &[],
    },
    Provider {
        id: "kubespray",
        name: "kubespray",
        text: include_str!("../../docs/migrate/kubespray.md"),
        // Its load balancer of the API server, on each worker.
        clues: &[StaticPod("nginx-proxy-"), StaticPod("haproxy-")],
        builds_on: Some("kubeadm"),
        clouds: &[],
    },
    Provider {
        id: "kubeone",
        name: "KubeOne",
        text: include_str!("../../docs/migrate/kubeone.md"),
        clues: &[Object("kubeone.io/addon")],
        builds_on: Some("kubeadm"),
        clouds: &[],
    },
    Provider {
        id: "k3s",
        name: "k3s",
        text: include_str!("../../docs/migrate/k3s.md"),
        clues: &[
            Version("+k3s"),
            Annotation("k3s.io/node-args"),
            Process("k3s-server"),
            Process("k3s-agent"),
        ],
        builds_on: None,
        clouds: &[],
    },
    Provider {
        id: "rke2",
        name: "RKE2",
        text: include_str!("../../docs/migrate/rke2.md"),
        clues: &[
            Version("+rke2"),
            Annotation("rke2.io/node-args"),
            Process("rke2"),
        ],
        builds_on: None,
        clouds: &[],
    },
    Provider {
        id: "microk8s",
        name: "MicroK8s",
        text: include_str!("../../docs/migrate/microk8s.md"),
        clues: &[
            Label("microk8s.io/cluster"),
            Process("kubelite"),
            File("/var/snap/microk8s/current/args/kube-proxy"),
        ],
        builds_on: None,
        clouds: &[],
    },
    Provider {
        id: "talos",
        name: "Talos Linux",
        text: include_str!("../../docs/migrate/talos.md"),
        clues: &[OsImage("Talos (")],
        builds_on: None,
        clouds: &[],
    },
    Provider {
        id: "kops",
        name: "kOps",
        text: include_str!("../../docs/migrate/kops.md"),
        clues: &[Label("kops.k8s.io/instancegroup")],
        builds_on: None,
        clouds: &[],
    },
    Provider {
        id: "eks",
        name: "Amazon EKS",
        text: include_str!("../../docs/migrate/eks.md"),
        clues: &[
            Version("-eks-"),
            Label("eks.amazonaws.com/nodegroup"),
            Object("eks.amazonaws.com/component"),
        ],
        builds_on: None,
        clouds: &["aws", "eks-hybrid"],
    },
    Provider {
        id: "aks",
        name: "Azure AKS",
        text: include_str!("../../docs/migrate/aks.md"),
        clues: &[
            Label("kubernetes.azure.com/cluster"),
            Object("kubernetes.azure.com/managedby"),
        ],
        builds_on: None,
        clouds: &["azure"],
    },
    Provider {
        id: "gke",
        name: "Google GKE",
        text: include_str!("../../docs/migrate/gke.md"),
        clues: &[Version("-gke."), Label("cloud.google.com/gke-nodepool")],
        builds_on: None,
        clouds: &["gce"],
    },
    Provider {
        id: "openshift",
        name: "OpenShift",
        text: include_str!("../../docs/migrate/openshift.md"),
        clues: &[
            Label("node.openshift.io/os_id"),
            Annotation("machineconfiguration.openshift.io/currentConfig"),
        ],
        builds_on: None,
        clouds: &[],
    },
];
