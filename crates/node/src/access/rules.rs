//! The list of permissions.

use super::{Level, Rule};

/// Commands that send requests to the API server, in the order of the help.
pub const COMMANDS: &[&str] = &[
    "doctor",
    "resolve",
    "diff",
    "snapshot",
    "report",
    "show",
    "top",
    "watch",
    "serve",
    "trace",
    "why",
    "render",
    "preflight",
    "reconcile",
    "bridge",
    "migrate",
];

const SYSTEM: Option<&str> = Some("kube-system");

const NONE: &[&str] = &[];

/// All permissions, by level.
pub const RULES: &[Rule] = &[
    Rule {
        purpose: "the nodes, and which one a machine is",
        commands: COMMANDS,
        ..read("", "nodes", &["list"])
    },
    Rule {
        purpose: "one node, and whether its kube-proxy has a copied configuration",
        commands: NODE,
        remote: &["resolve"],
        preflight: &["get"],
        ..read("", "nodes", &["get"])
    },
    Rule {
        purpose: "the Services",
        commands: COMMANDS,
        preflight: &["list"],
        ..read("", "services", &["list"])
    },
    Rule {
        purpose: "changes of Services, while a bridge or the rules are kept up to date, or changes or traffic are watched",
        commands: WATCHES,
        ..read("", "services", &["watch"])
    },
    Rule {
        purpose: "the endpoints",
        commands: ENDPOINTS,
        preflight: &["list"],
        ..read("discovery.k8s.io", "endpointslices", &["list"])
    },
    Rule {
        purpose: "changes of endpoints, while a bridge or the rules are kept up to date, or changes or traffic are watched",
        commands: WATCHES,
        ..read("discovery.k8s.io", "endpointslices", &["watch"])
    },
    Rule {
        purpose: "the ranges of cluster IPs; without it, check AP09 and what mode nftables does with other addresses are unknown",
        commands: &[
            "doctor",
            "diff",
            "snapshot",
            "report",
            "show",
            "trace",
            "watch",
            "serve",
            "why",
            "preflight",
            "migrate",
        ],
        remote: &["resolve"],
        ..read("networking.k8s.io", "servicecidrs", &["list"])
    },
    Rule {
        purpose: "names of endpoints and sources, and kube-proxy's pods; without it, names are missing and some checks are unknown",
        commands: NODE,
        remote: &["resolve"],
        ..read("", "pods", &["list"])
    },
    Rule {
        namespace: SYSTEM,
        names: &["kube-proxy", "kube-proxy-config"],
        purpose: "kube-proxy's configuration",
        commands: NODE,
        remote: &["resolve"],
        preflight: &["get"],
        ..read("", "configmaps", &["get"])
    },
    Rule {
        namespace: SYSTEM,
        names: &["kube-proxy", "cilium", "kube-router"],
        purpose: "the DaemonSet of the service proxy",
        commands: DAEMONSETS,
        remote: &["resolve", "trace"],
        preflight: &["get"],
        ..read("apps", "daemonsets", &["get"])
    },
    Rule {
        namespace: SYSTEM,
        purpose: "kube-proxy's log, if it is not on the node's disk; the mode in it, during a migration; the log of a pod with --apply",
        commands: LOG,
        remote: &["reconcile"],
        ..read("", "pods/log", &["get"])
    },
    Rule {
        purpose: "the Job of a pod, which deletes the pod when kpx ends",
        ..nodes("batch", "jobs", &["create", "get", "list", "delete"])
    },
    Rule {
        purpose: "the state of the pod",
        ..nodes("", "pods", &["list"])
    },
    Rule {
        purpose: "the pod's standard input, which kpx holds open, so that the pod ends with kpx",
        ..nodes("", "pods/attach", &["create", "get"])
    },
    Rule {
        purpose: "kpx copies itself into the pod and runs there",
        ..nodes("", "pods/exec", &["create", "get"])
    },
    Rule {
        purpose: "the reason if the pod is refused; without it, the reason is missing",
        ..nodes("", "events", &["list"])
    },
    Rule {
        namespace: None,
        purpose: "a label on each node that migrates, with --staged; cordon and uncordon, with --strategy drain-node",
        preflight: &["patch"],
        ..migrate("", "nodes", &["patch"])
    },
    Rule {
        namespace: None,
        purpose: "the eviction of the node's pods within their PodDisruptionBudgets, with --strategy drain-node",
        ..migrate("", "pods/eviction", &["create"])
    },
    Rule {
        purpose: "kube-proxy's configuration; kube-system/kpx-migrate with the plan and the state of each node; a copy of kube-proxy's ConfigMap, with --staged",
        preflight: &["create", "patch"],
        ..migrate("", "configmaps", WRITES)
    },
    Rule {
        purpose: "kube-proxy's DaemonSet, and a copy of it, with --staged",
        preflight: &["create", "patch"],
        ..migrate("apps", "daemonsets", WRITES)
    },
    Rule {
        purpose: "kube-proxy's pods, which are replaced; a privileged pod of kpx on each node, without --by-hand",
        preflight: &["create", "delete"],
        ..migrate("", "pods", &["get", "create", "delete"])
    },
    Rule {
        purpose: "the standard input of a pod of kpx, which kpx holds open while it copies itself into the pod, without --image",
        ..migrate("", "pods/attach", &["create", "get"])
    },
    Rule {
        purpose: "kpx copies itself into its pods, without --image",
        ..migrate("", "pods/exec", &["create", "get"])
    },
    Rule {
        purpose: "Lease kube-system/kpx-migrate, so that only one kpx migrates the cluster at a time",
        preflight: &["create"],
        ..migrate("coordination.k8s.io", "leases", &["get", "create", "patch"])
    },
];

const WRITES: &[&str] = &["get", "create", "patch", "delete"];

/// Commands that follow changes of Services.
const WATCHES: &[&str] = &[
    "doctor",
    "top",
    "watch",
    "serve",
    "reconcile",
    "bridge",
    "migrate",
];

/// Commands that read a node.
const NODE: &[&str] = &[
    "doctor",
    "diff",
    "snapshot",
    "report",
    "show",
    "top",
    "watch",
    "serve",
    "trace",
    "why",
    "render",
    "preflight",
    "reconcile",
    "bridge",
    "migrate",
];

const ENDPOINTS: &[&str] = &[
    "doctor",
    "resolve",
    "diff",
    "snapshot",
    "report",
    "show",
    "top",
    "watch",
    "serve",
    "trace",
    "why",
    "render",
    "preflight",
    "reconcile",
    "bridge",
    "migrate",
];

const DAEMONSETS: &[&str] = &[
    "doctor",
    "diff",
    "snapshot",
    "report",
    "show",
    "top",
    "watch",
    "serve",
    "why",
    "render",
    "preflight",
    "reconcile",
    "bridge",
    "migrate",
];

const LOG: &[&str] = &[
    "doctor",
    "snapshot",
    "report",
    "show",
    "watch",
    "serve",
    "why",
    "preflight",
    "migrate",
];

/// Commands that read another node through a pod on it.
const REMOTE: &[&str] = &[
    "doctor",
    "resolve",
    "diff",
    "snapshot",
    "report",
    "show",
    "trace",
    "why",
    "preflight",
    "reconcile",
];

/// Returns a permission for the whole cluster, to read its objects.
const fn read(group: &'static str, resource: &'static str, verbs: &'static [&'static str]) -> Rule {
    Rule {
        level: Level::Read,
        namespace: None,
        group,
        resource,
        names: NONE,
        verbs,
        purpose: "",
        commands: NONE,
        remote: NONE,
        preflight: NONE,
    }
}

/// Returns a permission in kube-system, to read nodes through pods.
const fn nodes(
    group: &'static str,
    resource: &'static str,
    verbs: &'static [&'static str],
) -> Rule {
    Rule {
        level: Level::Nodes,
        namespace: SYSTEM,
        group,
        resource,
        names: NONE,
        verbs,
        purpose: "",
        commands: REMOTE,
        remote: NONE,
        preflight: NONE,
    }
}

/// Returns a permission in kube-system, to migrate nodes.
const fn migrate(
    group: &'static str,
    resource: &'static str,
    verbs: &'static [&'static str],
) -> Rule {
    Rule {
        level: Level::Migrate,
        namespace: SYSTEM,
        group,
        resource,
        names: NONE,
        verbs,
        purpose: "",
        commands: &["migrate"],
        remote: NONE,
        preflight: NONE,
    }
}
