//! The table of known bugs. Versions are from the release notes; a span ends before the version that fixes the bug.

use super::{Bug, seen};
use crate::check::{Example, Severity, Text};
use kpx_node::backend::Mode;

const IPTABLES: &[Mode] = &[Mode::Iptables];
const IPVS: &[Mode] = &[Mode::Ipvs];
const NFTABLES: &[Mode] = &[Mode::Nftables];

/// The key of the bug that the node's own ports are blocked at an address of a Service.
pub(in crate::check) const HOST_SERVICES: &str = "ipvs-host-services";

/// The key of the bug that NodePorts are missing at an address of the node.
pub(in crate::check) const NODE_PORTS: &str = "ipvs-node-port-address";

/// The key of the bug that loses a change that arrives during a sync.
pub(in crate::check) const LOST_UPDATE: &str = "iptables-lost-update";

/// The known bugs, by mode and release.
pub(in crate::check) const BUGS: &[Bug] = &[
    Bug {
        key: "udp-stale-endpoint",
        versions: "1.26.0..1.32.0",
        modes: &Mode::ALL,
        severity: Severity::Info,
        what: "it ends UDP flows of removed endpoints only when it sees the change, and never again",
        workaround: Text::with(
            "Delete the flows with {}.",
            &[Example::kpx(&[
                "reconcile",
                "--part",
                "conntrack",
                "--apply",
            ])],
        ),
        thread: "kubernetes/kubernetes#125467",
        seen: seen::stale_udp,
    },
    Bug {
        key: "conntrack-memory",
        versions: "1.32.0..1.32.3",
        modes: &Mode::ALL,
        severity: Severity::Error,
        what: "each change of a UDP endpoint costs gigabytes of memory while it cleans up conntrack",
        workaround: Text::plain("Raise or remove the memory limit of kube-proxy's container."),
        thread: "kubernetes/kubernetes#129982",
        seen: seen::memory,
    },
    Bug {
        key: "conntrack-slow",
        versions: "1.32.0..1.36.0",
        modes: &Mode::ALL,
        severity: Severity::Warning,
        what: "it deletes UDP flows one by one before the next sync, so the size of conntrack delays every change",
        workaround: Text::plain(
            "Send less UDP through Services, for example DNS through a cache on each node.",
        ),
        thread: "kubernetes/kubernetes#135323",
        seen: seen::slow_conntrack,
    },
    Bug {
        key: "udp-last-endpoint",
        versions: "1.32.0..1.37.0",
        modes: &Mode::ALL,
        severity: Severity::Warning,
        what: "it does not end UDP flows to a Service that lost its last endpoint",
        workaround: Text::with(
            "Delete the flows with {}.",
            &[Example::kpx(&[
                "reconcile",
                "--part",
                "conntrack",
                "--apply",
            ])],
        ),
        thread: "kubernetes/kubernetes#139628",
        seen: seen::udp_without_endpoints,
    },
    Bug {
        key: "udp-deleted-service",
        versions: "1.32.0..1.38.0",
        modes: &Mode::ALL,
        severity: Severity::Warning,
        what: "it does not end UDP flows to a Service that was deleted: they reach whichever pod has the address now",
        workaround: Text::plain("Delete the flows with `conntrack -D -p udp --orig-dst ADDRESS`."),
        thread: "kubernetes/kubernetes#141371",
        seen: seen::udp_of_deleted_service,
    },
    Bug {
        key: "pod-address-reused",
        versions: "1.26.0..1.36.0",
        modes: &Mode::ALL,
        severity: Severity::Error,
        what: "it ignores a ready endpoint whose address a terminating pod still has",
        workaround: Text::plain(
            "Delete the terminating pod with `kubectl delete pod POD --force --grace-period=0`.",
        ),
        thread: "kubernetes/kubernetes#135266",
        seen: seen::reused_address,
    },
    Bug {
        key: "iptables-lost-update",
        versions: "1.27.0..1.27.11 1.28.0..1.28.7 1.29.0..1.29.2",
        modes: IPTABLES,
        severity: Severity::Error,
        what: "a change that arrives during a sync can be lost, and its rules stay missing",
        workaround: Text::plain(
            "Restart kube-proxy on this node: its first sync writes every rule.",
        ),
        thread: "kubernetes/kubernetes#121362",
        seen: seen::missing_rules,
    },
    Bug {
        key: "iptables-hourly-sync",
        versions: "1.34.0..1.34.8 1.35.0..1.35.5 1.36.0..1.36.1",
        modes: IPTABLES,
        severity: Severity::Warning,
        what: "it rewrites every rule once an hour in a large cluster too, and changes wait meanwhile",
        workaround: Text::plain(
            "Plan the switch to the nftables mode, or expect the delay once an hour.",
        ),
        thread: "kubernetes/kubernetes#137085",
        seen: seen::slow_full_sync_of_large_cluster,
    },
    Bug {
        key: "ipvs-sctp-source",
        versions: "1.12.0..1.23.0",
        modes: IPVS,
        severity: Severity::Warning,
        what: "it masquerades SCTP to NodePorts before it looks for externalTrafficPolicy Local: pods see an address of the node instead of \
               the client's",
        workaround: Text::plain(
            "Let clients use the address of the load balancer, or a pod's hostPort.",
        ),
        thread: "kubernetes/kubernetes#104755",
        seen: seen::sctp_source_replaced,
    },
    Bug {
        key: "ipvs-node-port-address",
        versions: "1.23.0..1.27.2",
        modes: IPVS,
        severity: Severity::Error,
        what: "it serves no NodePort at an address of the node that a Service has as well, and removes those that are added",
        workaround: Text::plain(
            "Remove the node's address from the Service's externalIPs or load balancer, or use the NodePorts at another address.",
        ),
        thread: "kubernetes/kubernetes#114815",
        seen: seen::node_ports_missing,
    },
    Bug {
        key: "ipvs-host-services",
        versions: "1.26.0..1.27.2",
        modes: IPVS,
        severity: Severity::Error,
        what: "it blocks the node's own ports at an address that a Service has as well",
        workaround: Text::plain(
            "Remove the node's address from the Service's externalIPs or load balancer.",
        ),
        thread: "kubernetes/kubernetes#117613",
        seen: seen::own_address_in_set,
    },
    Bug {
        key: "ipvs-health-check-port",
        versions: "1.26.0..1.26.5 1.27.0..1.27.2",
        modes: IPVS,
        severity: Severity::Error,
        what: "it rejects the load balancer's health checks at the load balancer's own address",
        workaround: Text::plain("Let the load balancer check the node's address."),
        thread: "kubernetes/kubernetes#117723",
        seen: seen::health_checks_rejected,
    },
    Bug {
        key: "ipvs-local-external-ip",
        versions: "1.26.0..1.30.0",
        modes: IPVS,
        severity: Severity::Error,
        what: "it rejects connections to externalIPs of Services with externalTrafficPolicy Local",
        workaround: Text::plain(
            "Set externalTrafficPolicy to Cluster. Later patch versions of 1.28 and 1.29 have the fix as well.",
        ),
        thread: "kubernetes/kubernetes#121909",
        seen: seen::local_external_ips_rejected,
    },
    Bug {
        key: "nftables-newer-sets",
        versions: "1.29.0..1.37.0",
        modes: NFTABLES,
        severity: Severity::Error,
        what: "the nft in its image crashes on sets that the node's newer nft wrote, and every sync fails",
        workaround: Text::plain(
            "Remove the sets of other software, or install an nft older than 1.1.2 on the node.",
        ),
        thread: "kubernetes/kubernetes#136786",
        seen: seen::newer_sets,
    },
    Bug {
        key: "nftables-soft-lockup",
        versions: "1.29.0..1.36.0",
        modes: NFTABLES,
        severity: Severity::Error,
        what: "with very many endpoints, nft keeps a processor in the kernel for minutes",
        workaround: Text::with(
            "Switch to the iptables mode with {}.",
            &[Example::kpx(&["migrate", "--to", "iptables"])],
        ),
        thread: "kubernetes/kubernetes#135639",
        seen: seen::soft_lockup,
    },
    Bug {
        key: "nftables-local-load-balancer",
        versions: "1.29.0..1.33.6",
        modes: NFTABLES,
        severity: Severity::Error,
        what: "it drops pods' traffic to a load balancer's address if the policy is Local and the endpoints are elsewhere",
        workaround: Text::plain(
            "Set externalTrafficPolicy to Cluster, or let pods use the cluster IP.",
        ),
        thread: "kubernetes/kubernetes#131765",
        seen: seen::local_load_balancer_dropped,
    },
    Bug {
        key: "nftables-interface-name",
        versions: "1.29.0..1.33.6 1.34.0..1.34.2",
        modes: NFTABLES,
        severity: Severity::Error,
        what: "it looks pods' links up by index, so with this detectLocalMode nft refuses its rules or they match none",
        workaround: Text::plain("Set detectLocalMode to ClusterCIDR or NodeCIDR."),
        thread: "kubernetes/kubernetes#134024",
        seen: seen::local_by_interface,
    },
    Bug {
        key: "nftables-full-sync",
        versions: "1.33.0..1.37.0",
        modes: NFTABLES,
        severity: Severity::Warning,
        what: "with tens of thousands of Services the hourly full sync takes minutes, and changes wait meanwhile",
        workaround: Text::plain(
            "Changes made since a full sync began are not on this node: wait for its end.",
        ),
        thread: "kubernetes/kubernetes#139513",
        seen: seen::slow_full_sync,
    },
    Bug {
        key: "nftables-protocol-names",
        versions: "1.36.0..1.37.0",
        modes: NFTABLES,
        severity: Severity::Error,
        what: "without /etc/protocols in its image it takes its own map elements for leftovers and deletes them at each start",
        workaround: Text::plain(
            "Add /etc/protocols to the image, for example from the node with a hostPath volume, and restart \
             kube-proxy.",
        ),
        thread: "",
        seen: seen::no_protocols,
    },
    Bug {
        key: "nftables-localhost-restart",
        versions: "1.37.0..",
        modes: NFTABLES,
        severity: Severity::Warning,
        what: "after localhost was added to nodePortAddresses, a restart does not open existing NodePorts on it",
        workaround: Text::plain(
            "Delete kube-proxy's table with `nft delete table ip kube-proxy` and restart kube-proxy; Services on \
             the node fail in between.",
        ),
        thread: "kubernetes/kubernetes#142183",
        seen: seen::localhost_closed,
    },
];
