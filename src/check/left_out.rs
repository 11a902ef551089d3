//! What the catalogue of incidents has and no check asks, with the reason.

/// Ids that are kept free, what they would ask, and why a look at one node cannot tell.
pub const LEFT_OUT: &[(&str, &str, &str)] = &[
    (
        "AP02",
        "whether something listens behind a Service's target port",
        "it takes a look into each pod's network namespace",
    ),
    (
        "AP05",
        "whether load balancers send to nodes without endpoints",
        "only the load balancer knows where it sends",
    ),
    (
        "CN05",
        "whether the network plug-in's vendor rules the mode out",
        "it is in the vendor's documentation alone",
    ),
    (
        "DP02",
        "whether the vendor drops the mode earlier than upstream",
        "it is in the vendor's schedule alone",
    ),
    (
        "IS06",
        "IPv6 sets that the ipvs mode left",
        "MX02 tells them with everything else it left",
    ),
    (
        "KP18",
        "whether the next kubeadm upgrade sets the mode back",
        "it depends on the options that kubeadm will be called with",
    ),
    (
        "KP20",
        "whether this node alone is behind the API server",
        "it takes another node's state beside this one's",
    ),
    (
        "SY07",
        "strictARP beside Antrea's Egress",
        "it takes Antrea's own objects",
    ),
    (
        "SY14",
        "settings that changed since the node was last well",
        "it takes an older look: compare two bundles",
    ),
    (
        "VS13",
        "Local traffic that goes to remote endpoints",
        "only the load balancer knows whether it sends here",
    ),
    (
        "VS15",
        "virtual servers of the second family",
        "VS01 tells what is missing in either family",
    ),
];
