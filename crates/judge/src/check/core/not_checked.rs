//! Faults in the catalogue of incidents that have no check, with the reason.

/// Reserved ids: id, the question, and why one node's evidence cannot answer it.
pub const NOT_CHECKED: &[(&str, &str, &str)] = &[
    (
        "AP02",
        "whether a process listens on a Service's target port",
        "requires access to each pod's network namespace",
    ),
    (
        "AP05",
        "whether load balancers send traffic to nodes without endpoints",
        "only the load balancer knows its targets",
    ),
    (
        "CN05",
        "whether the network plugin's vendor supports the mode",
        "only the vendor's documentation states it",
    ),
    (
        "DP02",
        "whether the vendor removes the mode earlier than upstream",
        "only the vendor's schedule states it",
    ),
    (
        "IS06",
        "leftover IPv6 sets of the ipvs mode",
        "MX02 reports them with its other leftovers",
    ),
    (
        "KP18",
        "whether the next kubeadm upgrade resets the mode",
        "depends on the options of that future command",
    ),
    (
        "KP20",
        "whether only this node lags behind the API server",
        "requires the state of another node",
    ),
    (
        "SY07",
        "strictARP together with Antrea's Egress",
        "requires Antrea's own objects",
    ),
    (
        "SY14",
        "sysctls that changed since the node last worked",
        "requires older evidence: compare two bundles",
    ),
    (
        "VS13",
        "traffic with policy Local that reaches remote endpoints",
        "only the load balancer knows whether it sends traffic here",
    ),
    (
        "VS15",
        "virtual servers of the second IP family",
        "VS01 reports missing ones of both families",
    ),
];
