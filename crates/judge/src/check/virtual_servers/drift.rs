//! Virtual servers that differ from the cluster's Services.

use crate::check::core::{DRIFT_NEEDS, RESTART};
use crate::check::{Because, Check, Example, Severity, Text, When};
use crate::diff::Layer;
use kpx_node::backend::Mode;

pub(super) const CHECKS: &[Check] = &[
    Check {
        id: "VS01",
        name: "missing-virtual-servers",
        severity: Severity::Error,
        when: When::Now,
        title: "Every Service port has its virtual servers",
        symptom: "Connections to a Service address are refused by the node itself, or a NodePort does not answer.",
        why: "In ipvs mode each address and port of a Service is a virtual server. The address is local because of \
              kube-ipvs0, so without the virtual server the node handles the packet itself and refuses it.",
        verify: "Look for the address and port in the list of virtual servers.",
        commands: &[
            Example::on_node("ipvsadm -Ln -t ADDRESS:PORT").with(&["ADDRESS", "PORT"]),
            Example::kpx(&["diff"]),
        ],
        fix: RESTART,
        incidents: &[
            "kubernetes/kubernetes#129147: all NodePorts vanished when the node's addresses could not be listed once",
            "kubernetes/kubeadm#2205",
            "k3s-io/k3s#5031",
        ],
        needs: DRIFT_NEEDS,
        caused_by: &[
            Because::Node("KM15"),
            Because::Outdated,
            Because::Services("KP21"),
            Because::In("DV04"),
        ],
        run: |facts| facts.drifted("VS01", &[Mode::Ipvs], Layer::Ipvs),
    },
    Check {
        id: "VS02",
        name: "stale-virtual-servers",
        severity: Severity::Warning,
        when: When::Now,
        title: "No virtual server is left over from an old version of a Service",
        symptom: "An old port or NodePort of a Service still answers.",
        why: "With each sync kube-proxy deletes virtual servers that are no longer needed. If one stays, a sync does \
              not finish, or the release does not check (1.34.0).",
        verify: "Compare the ports of the Service with the virtual servers at its addresses.",
        commands: &[
            Example::on_node("ipvsadm -Ln"),
            Example::anywhere("kubectl get services -A -o wide"),
        ],
        fix: RESTART,
        incidents: &[
            "kubernetes/kubernetes#78421",
            "kubernetes/kubernetes#134147",
        ],
        needs: DRIFT_NEEDS,
        caused_by: &[Because::Node("KM15"), Because::Outdated],
        run: |facts| facts.drifted("VS02", &[Mode::Ipvs], Layer::Ipvs),
    },
    Check {
        id: "VS04",
        name: "real-servers",
        severity: Severity::Error,
        when: When::Now,
        title: "The real servers are the current endpoints, and no others",
        symptom: "Some connections to a Service hang or are refused, or a new pod gets no traffic.",
        why: "Each endpoint that the traffic policies allow is a real server of weight 1. If kube-proxy did not \
              remove one, it takes connections to a pod that no longer exists; if it did not add one, the endpoint \
              gets none. A TCP real server of weight 0 that is being drained is no fault.",
        verify: "Compare the real servers with the EndpointSlices.",
        commands: &[
            Example::on_node("ipvsadm -Ln -t ADDRESS:PORT").with(&["ADDRESS", "PORT"]),
            Example::anywhere(
                "kubectl -n NAMESPACE get endpointslices -l kubernetes.io/service-name=NAME",
            )
            .with(&["NAMESPACE", "NAME"]),
        ],
        fix: RESTART,
        incidents: &[
            "kubernetes/kubernetes#70493",
            "kubernetes/kubernetes#72270",
            "kubernetes/kubernetes#71071",
        ],
        needs: DRIFT_NEEDS,
        caused_by: &[Because::Node("KM15"), Because::Outdated],
        run: |facts| facts.drifted("VS04", &[Mode::Ipvs], Layer::Ipvs),
    },
    Check {
        id: "VS05",
        name: "weights",
        severity: Severity::Error,
        when: When::Now,
        title: "No ready endpoint has weight 0",
        symptom: "A ready pod gets no new connections through its Service.",
        why: "kube-proxy sets the weight of a real server to 0 when its endpoint goes, and removes it when its last \
              connection ends. If the endpoint returned before that with the same address, old releases left the \
              weight at 0.",
        verify: "Look for weight 0 and compare with the EndpointSlice.",
        commands: &[Example::on_node("ipvsadm -Ln | awk '/->/ && $4 == 0'")],
        fix: Text::plain("Set the weight to 1 with `ipvsadm -e`: this is safe on a running node."),
        incidents: &[
            "kubernetes/kubernetes#92019",
            "kubernetes/kubernetes#108319",
        ],
        needs: DRIFT_NEEDS,
        caused_by: &[Because::Node("KM15"), Because::Outdated],
        run: |facts| facts.drifted("VS05", &[Mode::Ipvs], Layer::Ipvs),
    },
    Check {
        id: "VS07",
        name: "empty-virtual-servers",
        severity: Severity::Error,
        when: When::Now,
        title: "No virtual server is empty if the Service has endpoints",
        symptom: "Connections to the Service are refused, and the kernel log contains \"no destination available\".",
        why: "A virtual server without real servers answers no client. This is right for a Service without endpoints; \
              with endpoints it means that kube-proxy stopped in the middle of a sync.",
        verify: "Look for a virtual server without lines below it.",
        commands: &[
            Example::on_node("ipvsadm -Ln"),
            Example::on_node("dmesg | grep 'no destination available'"),
        ],
        fix: RESTART,
        incidents: &["cloudnativelabs/kube-router#415"],
        needs: DRIFT_NEEDS,
        caused_by: &[Because::Node("KM15"), Because::Outdated],
        run: |facts| facts.drifted("VS07", &[Mode::Ipvs], Layer::Ipvs),
    },
    Check {
        id: "VS08",
        name: "scheduler-and-persistence",
        severity: Severity::Warning,
        when: When::Now,
        title: "Virtual servers have the configured scheduler and affinity",
        symptom: "Connections of one client go to different pods in spite of sessionAffinity, or are not spread as \
              configured.",
        why: "The scheduler comes from ipvs.scheduler, persistence from the Service's sessionAffinity. kube-proxy \
              compares them with each sync, so a persistent difference means that a sync does not finish.",
        verify: "Compare scheduler and `persistent` with the configuration and the Service.",
        commands: &[Example::on_node("ipvsadm -Sn | grep -- '^-A'")],
        fix: RESTART,
        incidents: &["kubernetes/kubernetes#114669"],
        needs: DRIFT_NEEDS,
        caused_by: &[
            Because::In("KM02"),
            Because::Node("KM15"),
            Because::Outdated,
        ],
        run: |facts| facts.drifted("VS08", &[Mode::Ipvs], Layer::Ipvs),
    },
    Check {
        id: "VS16",
        name: "source-ranges",
        severity: Severity::Warning,
        when: When::Now,
        title: "The rules for load balancer source ranges are complete",
        symptom: "Source ranges of load balancers do not apply: clients reach a Service that they should not, or the \
              other way round.",
        why: "In ipvs mode KUBE-PROXY-FIREWALL and KUBE-SOURCE-RANGES-FIREWALL enforce source ranges with IP sets, \
              together with KUBE-IPVS-OUT-FILTER since 1.28.",
        verify: "The chains must exist, and FORWARD, INPUT and OUTPUT must lead to them.",
        commands: &[Example::on_node(
            "iptables-save -t filter | grep -E 'KUBE-(PROXY-FIREWALL|SOURCE-RANGES|IPVS-OUT)'",
        )],
        fix: RESTART,
        incidents: &["kubernetes/kubernetes#119656"],
        needs: DRIFT_NEEDS,
        caused_by: &[],
        run: |facts| facts.drifted("VS16", &[Mode::Ipvs], Layer::Iptables),
    },
];
