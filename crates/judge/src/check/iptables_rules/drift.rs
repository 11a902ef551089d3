//! Rules that differ from the cluster's Services.

use crate::check::bugs::LOST_UPDATE;
use crate::check::core::{DRIFT_NEEDS, RESTART};
use crate::check::{Because, Check, Example, Severity, Text, When};
use crate::diff::Layer;
use kpx_node::backend::Mode;

pub(super) const CHECKS: &[Check] = &[
    Check {
        id: "IR01",
        name: "jumps",
        severity: Severity::Error,
        when: When::Now,
        title: "The built-in chains lead to kube-proxy's chains",
        symptom: "No Service answers on this node, or only NodePorts and masquerading fail.",
        why: "kube-proxy's chains have an effect only through one rule in each built-in chain that jumps to them. A \
              reload of a firewall service, or `iptables -F`, removes these rules with its own. A running kube-proxy \
              restores them with its next sync.",
        verify: "PREROUTING and OUTPUT of table nat must lead to KUBE-SERVICES, POSTROUTING to KUBE-POSTROUTING.",
        commands: &[Example::on_node(
            "iptables-save | grep -E -- '^-A (PREROUTING|INPUT|FORWARD|OUTPUT|POSTROUTING) .*KUBE-'",
        )],
        fix: RESTART,
        incidents: &[
            "rancher/rke2#10469: a reload of firewalld flushed them",
            "containernetworking/plugins#512",
        ],
        needs: DRIFT_NEEDS,
        caused_by: &[Because::In("IB07"), Because::Outdated],
        run: |facts| facts.drifted("IR01", &[Mode::Iptables, Mode::Ipvs], Layer::Iptables),
    },
    Check {
        id: "IR03",
        name: "service-chains",
        severity: Severity::Error,
        when: When::Now,
        title: "Every Service port has its rules, and none is left over",
        symptom: "One Service does not answer on this node, although it does on others.",
        why: "kube-proxy writes a chain for each Service port, and a rule for each of its addresses that jumps to it. \
              It rewrites only what it knows to have changed, so a rule that was deleted or edited manually, or a \
              missed update, stays wrong until the next full sync, which may take an hour.",
        verify: "Compare with `kpx diff`, or search the comments of the rules for the Service's name.",
        commands: &[
            Example::on_node("iptables-save -t nat | grep NAMESPACE/NAME")
                .with(&["NAMESPACE", "NAME"]),
            Example::kpx(&["diff"]),
        ],
        fix: RESTART,
        incidents: &[
            "kubernetes/kubernetes#28674",
            "kubernetes/kubernetes#76338",
            "kubernetes/kubernetes#67875: missed updates",
        ],
        needs: DRIFT_NEEDS,
        caused_by: &[
            Because::In("IB07"),
            Because::Services("KP11"),
            Because::Bug("KB01", LOST_UPDATE),
            Because::Outdated,
        ],
        run: |facts| facts.drifted("IR03", &[Mode::Iptables], Layer::Iptables),
    },
    Check {
        id: "IR04",
        name: "endpoint-chains",
        severity: Severity::Error,
        when: When::Now,
        title: "The rules lead to the current endpoints, and to no others",
        symptom: "Some connections to a Service hang or are refused.",
        why: "Each endpoint has a chain KUBE-SEP that translates to it. If kube-proxy misses a change of an \
              EndpointSlice, connections go to pods that no longer exist, and new pods get none.",
        verify: "Compare the addresses in the chains with the EndpointSlices.",
        commands: &[
            Example::on_node("iptables-save -t nat | grep NAMESPACE/NAME | grep DNAT")
                .with(&["NAMESPACE", "NAME"]),
            Example::anywhere(
                "kubectl -n NAMESPACE get endpointslices -l kubernetes.io/service-name=NAME",
            )
            .with(&["NAMESPACE", "NAME"]),
        ],
        fix: RESTART,
        incidents: &["kubernetes/kubernetes#70493"],
        needs: DRIFT_NEEDS,
        caused_by: &[
            Because::In("IB07"),
            Because::Services("KP11"),
            Because::Bug("KB01", LOST_UPDATE),
            Because::Outdated,
        ],
        run: |facts| facts.drifted("IR04", &[Mode::Iptables], Layer::Iptables),
    },
    Check {
        id: "IR05",
        name: "orphan-chains",
        severity: Severity::Info,
        when: When::Now,
        title: "No chain of a deleted Service is left over",
        symptom: "None; the list of rules is longer than necessary.",
        why: "kube-proxy deletes the chains of a Service with the Service. Above 1000 endpoints it delays that until \
              the next full sync, which is not reported; otherwise such a chain means that a sync did not finish, or \
              that rules were restored from a saved state.",
        verify: "The chain's name must belong to an existing Service port.",
        commands: &[Example::on_node(
            "iptables-save -t nat | grep -E '^:KUBE-(SVC|SVL|SEP|EXT|FW)-'",
        )],
        fix: Text::plain("Wait for kube-proxy's next full sync, or restart it on this node."),
        incidents: &["kubernetes/kubernetes#110334"],
        needs: DRIFT_NEEDS,
        caused_by: &[],
        run: |facts| facts.drifted("IR05", &[Mode::Iptables], Layer::Iptables),
    },
    Check {
        id: "IR07",
        name: "rejects",
        severity: Severity::Error,
        when: When::Now,
        title: "Service ports are rejected only if they have no endpoints",
        symptom: "Connections to a Service with endpoints are refused; or, without endpoints, they hang.",
        why: "For a Service port without endpoints kube-proxy rejects connections at once, so that clients do not \
              wait. If such a rule stays when endpoints return, it rejects everything.",
        verify: "The filter chains KUBE-SERVICES, KUBE-EXTERNAL-SERVICES and KUBE-NODEPORTS may name only Service \
              ports without endpoints.",
        commands: &[Example::on_node(
            "iptables-save -t filter | grep -E 'REJECT|DROP' | grep KUBE-",
        )],
        fix: RESTART,
        incidents: &["kubernetes/kubernetes#102314"],
        needs: DRIFT_NEEDS,
        caused_by: &[Because::In("IB07"), Because::Outdated],
        run: |facts| facts.drifted("IR07", &[Mode::Iptables], Layer::Iptables),
    },
    Check {
        id: "IR17",
        name: "portals",
        severity: Severity::Error,
        when: When::Now,
        title: "In userspace mode, portals of every Service port lead to kube-proxy",
        symptom: "One Service does not answer on this node: connections hang or are refused.",
        why: "Up to Kubernetes 1.25, kube-proxy can run in userspace mode. Its process listens on a random port for \
              each port of a Service, and rules called portals lead packets there: KUBE-PORTALS-CONTAINER and \
              KUBE-PORTALS-HOST those to addresses of Services, KUBE-NODEPORT-CONTAINER and KUBE-NODEPORT-HOST those \
              to NodePorts. The process accepts each connection and opens another one to the next endpoint in turn. \
              It never removes a portal that it does not know, and a portal to a port on which it does not listen \
              refuses every connection.",
        verify: "Compare the ports in the portals with those on which kube-proxy listens.",
        commands: &[
            Example::kpx(&["show", "portals"]),
            Example::on_node("iptables-save -t nat | grep -E -- '-A KUBE-(PORTALS|NODEPORT)-'"),
            Example::on_node("ss -lntup | grep kube-proxy"),
        ],
        fix: Text::plain(
            "Restart kube-proxy on this node: it flushes the portals and writes all of them again.",
        ),
        incidents: &[
            "kubernetes/kubernetes#103860: the userspace mode is deprecated, and removed in 1.26",
        ],
        needs: DRIFT_NEEDS,
        caused_by: &[],
        run: |facts| facts.drifted("IR17", &[Mode::Userspace], Layer::Iptables),
    },
    Check {
        id: "IR08",
        name: "probabilities",
        severity: Severity::Warning,
        when: When::Now,
        title: "Load-balancing probabilities spread connections evenly",
        symptom: "Some endpoints get far more connections than others.",
        why: "With n endpoints the first rule of the chain takes 1/n of the connections, the second one 1/(n-1) of \
              the rest, and the last one takes the remainder. A wrong number, or a rule in the wrong place, starves \
              the endpoints behind it.",
        verify: "Read the numbers behind --probability from top to bottom: 1/n, 1/(n-1), …, none.",
        commands: &[Example::on_node(
            "iptables-save -t nat | grep -- --probability",
        )],
        fix: RESTART,
        incidents: &["seen only in tests, with edited or incomplete rules"],
        needs: DRIFT_NEEDS,
        caused_by: &[],
        run: |facts| facts.drifted("IR08", &[Mode::Iptables], Layer::Iptables),
    },
    Check {
        id: "IR09",
        name: "masquerade-rules",
        severity: Severity::Error,
        when: When::Now,
        title: "The rules that masquerade Service traffic are complete",
        symptom: "Pods cannot reach a Service whose endpoint they are, or NodePorts answer only from some nodes: \
              replies are lost.",
        why: "Packets whose replies must return through this node are marked, and KUBE-POSTROUTING replaces the \
              source address of marked ones with the node's. Without the mark or the rule the endpoint replies \
              directly to the client, which drops the unexpected packet.",
        verify: "KUBE-MARK-MASQ must set the bit that KUBE-POSTROUTING tests: 0x4000 unless masqueradeBit sets \
              another.",
        commands: &[Example::on_node(
            "iptables -t nat -S KUBE-MARK-MASQ; iptables -t nat -S KUBE-POSTROUTING",
        )],
        fix: RESTART,
        incidents: &[
            "kubernetes/kubernetes#133773: the rule came last, half a minute after the others",
            "kubernetes/kubernetes#105208",
        ],
        needs: DRIFT_NEEDS,
        caused_by: &[Because::In("IB07"), Because::Outdated],
        run: |facts| facts.drifted("IR09", &[Mode::Iptables, Mode::Ipvs], Layer::Iptables),
    },
    Check {
        id: "IR11",
        name: "forward-rules",
        severity: Severity::Error,
        when: When::Now,
        title: "The filter rules that accept Service traffic are complete",
        symptom: "Services work from the node itself but not through it; health checks of load balancers fail.",
        why: "Docker and other software set the policy of FORWARD to DROP. KUBE-FORWARD accepts packets that \
              kube-proxy marked and packets of established connections; in ipvs mode KUBE-NODE-PORT accepts health \
              checks.",
        verify: "KUBE-FORWARD must accept marked packets and RELATED,ESTABLISHED ones.",
        commands: &[Example::on_node(
            "iptables -S KUBE-FORWARD; iptables -S FORWARD",
        )],
        fix: RESTART,
        incidents: &[
            "kubernetes/kubernetes#59656",
            "cloudnativelabs/kube-router#757: Docker's policy",
        ],
        needs: DRIFT_NEEDS,
        caused_by: &[Because::In("IB07"), Because::In("IB04"), Because::Outdated],
        run: |facts| facts.drifted("IR11", &[Mode::Iptables, Mode::Ipvs], Layer::Iptables),
    },
];
