//! NF: kube-proxy's tables in nftables.

use crate::check::core::{DRIFT_NEEDS, RESTART};
use crate::check::{Because, Check, Example, Severity, Text, When};
use crate::diff::Layer;
use kpx_node::backend::Mode;

pub(super) const CHECKS: &[Check] = &[
    Check {
        id: "NF01",
        name: "nft-frame",
        severity: Severity::Error,
        when: When::Now,
        title: "kube-proxy's table has its hooks and common chains",
        symptom: "No Service answers on this node, or only masquerading or rejecting fails.",
        why: "In nftables mode everything is in one table for each IP family, with base chains at the hooks and a few \
              chains that all Services share. kube-proxy writes those when it starts and does not check them again.",
        verify: "The table must exist for each family, with hooks for prerouting, output, postrouting, input and \
              forward.",
        commands: &[
            Example::on_node("nft list table ip kube-proxy | less"),
            Example::on_node("nft list hooks"),
        ],
        fix: Text::plain(
            "Restart kube-proxy on this node: it writes these chains only when it starts.",
        ),
        incidents: &["kubernetes/kubernetes#136786"],
        needs: DRIFT_NEEDS,
        caused_by: &[Because::Outdated],
        run: |facts| facts.drifted("NF01", &[Mode::Nftables], Layer::Nftables),
    },
    Check {
        id: "NF02",
        name: "nft-services",
        severity: Severity::Error,
        when: When::Now,
        title: "The table leads to every Service port, and to no deleted one",
        symptom: "One Service does not answer on this node, although it does on others.",
        why: "Maps lead from an address and port to the Service's chain: service-ips, service-nodeports and \
              firewall-ips. kube-proxy writes only what it knows to have changed; elements that other software \
              deletes are missing until kube-proxy restarts or the Service changes.",
        verify: "Look up the address in the maps, or run `kpx diff`.",
        commands: &[
            Example::on_node("nft list map ip kube-proxy service-ips"),
            Example::kpx(&["diff"]),
        ],
        fix: RESTART,
        incidents: &[
            "kubernetes/kubernetes#139513: a first sync that took minutes",
            "kubernetes/kubernetes#135639",
        ],
        needs: DRIFT_NEEDS,
        caused_by: &[Because::Node("KP11"), Because::Outdated],
        run: |facts| facts.drifted("NF02", &[Mode::Nftables], Layer::Nftables),
    },
    Check {
        id: "NF03",
        name: "nft-endpoints",
        severity: Severity::Error,
        when: When::Now,
        title: "The table's chains lead to the current endpoints",
        symptom: "Some connections to a Service hang or are refused.",
        why: "A Service's chain draws a random number and jumps to the chain of one endpoint. If its map does not \
              contain the current endpoints, connections go to pods that no longer exist, and new pods get none.",
        verify: "Compare the endpoints in the Service's chain with the EndpointSlices.",
        commands: &[
            Example::on_node(
                "nft list table ip kube-proxy | grep -A8 'chain service-.*NAMESPACE/NAME'",
            )
            .with(&["NAMESPACE", "NAME"]),
            Example::anywhere(
                "kubectl -n NAMESPACE get endpointslices -l kubernetes.io/service-name=NAME",
            )
            .with(&["NAMESPACE", "NAME"]),
        ],
        fix: RESTART,
        incidents: &["kubernetes/kubernetes#70493: the same in other modes"],
        needs: DRIFT_NEEDS,
        caused_by: &[Because::Services("KP11"), Because::Outdated],
        run: |facts| facts.drifted("NF03", &[Mode::Nftables], Layer::Nftables),
    },
    Check {
        id: "NF04",
        name: "nft-rejects",
        severity: Severity::Error,
        when: When::Now,
        title: "The table rejects only Service ports without endpoints",
        symptom: "Connections to a Service with endpoints are refused; or, without endpoints, they hang.",
        why: "The maps no-endpoint-services and no-endpoint-nodeports list ports whose connections are rejected or \
              dropped at once. If an element stays when endpoints return, it rejects everything.",
        verify: "The maps may contain only Service ports without endpoints.",
        commands: &[Example::on_node(
            "nft list map ip kube-proxy no-endpoint-services",
        )],
        fix: RESTART,
        incidents: &["kubernetes/kubernetes#102314: the same with rules of iptables"],
        needs: DRIFT_NEEDS,
        caused_by: &[Because::Services("KP11"), Because::Outdated],
        run: |facts| facts.drifted("NF04", &[Mode::Nftables], Layer::Nftables),
    },
];
