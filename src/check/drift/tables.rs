//! The entries of the checks that read the difference.

use super::{Check, DRIFT, Mode, Severity, When};
use crate::check::excluded::unprotected_servers;
use crate::check::moves::cleared_servers;
use crate::evidence::Item;
use crate::node::desired::NEEDS;

/// What every check here reads.
const ALL: &[&[Item]] = &[NEEDS, DRIFT];

const IPTABLES: &[Mode] = &[Mode::Iptables];
const IPVS_MODE: &[Mode] = &[Mode::Ipvs];
const NFTABLES: &[Mode] = &[Mode::Nftables];
const BOTH: &[Mode] = &[Mode::Iptables, Mode::Ipvs];

const RESTART: &str = "Look again in half a minute, as a change may be on its way. If it stays, restart kube-proxy on \
                       this node: it writes everything anew at its start.";

pub(in crate::check) const RULES: &[Check] = &[
    Check {
        id: "IR01",
        name: "jumps",
        severity: Severity::Error,
        when: When::Now,
        title: "The built-in chains lead to kube-proxy's chains",
        symptom: "No Service answers on this node, or NodePorts and masquerading alone fail.",
        why: "kube-proxy's chains do nothing by themselves: one rule in each built-in chain leads to them. A firewall \
              service that reloads, or somebody's `iptables -F`, takes these rules away with its own. kube-proxy puts \
              them back with its next sync, if it is awake.",
        verify: "PREROUTING and OUTPUT of table nat must lead to KUBE-SERVICES, POSTROUTING to KUBE-POSTROUTING.",
        commands: &[
            "iptables-save | grep -E -- '^-A (PREROUTING|INPUT|FORWARD|OUTPUT|POSTROUTING) .*KUBE-'",
        ],
        fix: RESTART,
        incidents: &[
            "rancher/rke2#10469: a reload of firewalld flushed them",
            "containernetworking/plugins#512",
        ],
        needs: ALL,
        caused_by: &["IB07"],
        run: |facts| facts.drifted("IR01", BOTH, &["rules"]),
    },
    Check {
        id: "IR03",
        name: "service-chains",
        severity: Severity::Error,
        when: When::Now,
        title: "Every Service port has its rules, and none is left over",
        symptom: "One Service does not answer on this node while it does on others.",
        why: "kube-proxy writes a chain for each Service port, and a rule for each of its addresses that leads there. It \
              rewrites only what it knows to have changed, so a rule that is deleted or edited by hand, or an update \
              that it missed, stays wrong until the next full sync, which may take an hour.",
        verify: "Compare with `kpx diff`, or look for the Service's name in the comments of the rules.",
        commands: &["iptables-save -t nat | grep NAMESPACE/NAME", "kpx diff"],
        fix: RESTART,
        incidents: &[
            "kubernetes/kubernetes#28674",
            "kubernetes/kubernetes#76338",
            "kubernetes/kubernetes#67875: missed updates",
        ],
        needs: ALL,
        caused_by: &["IB07"],
        run: |facts| facts.drifted("IR03", IPTABLES, &["rules"]),
    },
    Check {
        id: "IR04",
        name: "endpoint-chains",
        severity: Severity::Error,
        when: When::Now,
        title: "The rules lead to the endpoints there are, and to no others",
        symptom: "A part of the connections to a Service hangs or is refused.",
        why: "Each endpoint has a chain KUBE-SEP that translates to it. If kube-proxy misses a change of an \
              EndpointSlice, connections go to pods that are gone, and new pods get none.",
        verify: "Compare the addresses in the chains with the EndpointSlices.",
        commands: &[
            "iptables-save -t nat | grep NAMESPACE/NAME | grep DNAT",
            "kubectl -n NAMESPACE get endpointslices -l kubernetes.io/service-name=NAME",
        ],
        fix: RESTART,
        incidents: &["kubernetes/kubernetes#70493"],
        needs: ALL,
        caused_by: &["IB07"],
        run: |facts| facts.drifted("IR04", IPTABLES, &["rules"]),
    },
    Check {
        id: "IR05",
        name: "orphan-chains",
        severity: Severity::Info,
        when: When::Now,
        title: "No chain of a Service that is gone is left",
        symptom: "None by itself; the listing of rules is longer than it should be.",
        why: "kube-proxy deletes the chains of a Service with the Service. Above 1000 endpoints it waits with that for \
              the next full sync, which is no finding; elsewhere such a chain shows a sync that did not end, or \
              rules that somebody restored.",
        verify: "The chain's name must belong to a Service port that there is.",
        commands: &["iptables-save -t nat | grep -E '^:KUBE-(SVC|SVL|SEP|EXT|FW)-'"],
        fix: "Leave them to kube-proxy's next full sync, or restart it on this node.",
        incidents: &["kubernetes/kubernetes#110334"],
        needs: ALL,
        caused_by: &["IB07"],
        run: |facts| facts.drifted("IR05", IPTABLES, &["rules"]),
    },
    Check {
        id: "IR07",
        name: "rejects",
        severity: Severity::Error,
        when: When::Now,
        title: "Service ports are rejected exactly where they have no endpoints",
        symptom: "Connections to a Service with endpoints are refused; or, without endpoints, they hang.",
        why: "For a Service port without endpoints kube-proxy rejects at once, so that clients do not wait. Such a rule \
              that stays when endpoints come back refuses everything.",
        verify: "The filter chains KUBE-SERVICES, KUBE-EXTERNAL-SERVICES and KUBE-NODEPORTS may name only Service ports \
                 without endpoints.",
        commands: &["iptables-save -t filter | grep -E 'REJECT|DROP' | grep KUBE-"],
        fix: RESTART,
        incidents: &["kubernetes/kubernetes#102314"],
        needs: ALL,
        caused_by: &["IB07"],
        run: |facts| facts.drifted("IR07", IPTABLES, &["rules"]),
    },
    Check {
        id: "IR08",
        name: "probabilities",
        severity: Severity::Warning,
        when: When::Now,
        title: "The odds in each Service's chain spread connections evenly",
        symptom: "Some endpoints get far more connections than others.",
        why: "Of n endpoints the first rule of the chain takes one connection in n, the second one in n-1 of the rest, and \
              the last takes what is left. A wrong number, or a rule in the wrong place, starves those behind it.",
        verify: "Read the numbers behind --probability from top to bottom: 1/n, 1/(n-1), …, none.",
        commands: &["iptables-save -t nat | grep -- --probability"],
        fix: RESTART,
        incidents: &["seen in tests only: it shows rules that were edited or half written"],
        needs: ALL,
        caused_by: &["IB07"],
        run: |facts| facts.drifted("IR08", IPTABLES, &["rules"]),
    },
    Check {
        id: "IR09",
        name: "masquerade-rules",
        severity: Severity::Error,
        when: When::Now,
        title: "The rules that masquerade Service traffic are whole",
        symptom: "Pods cannot reach a Service that they are behind themselves, or NodePorts answer from some nodes only: \
                  the answers go astray.",
        why: "Packets that must come back through this node are marked, and KUBE-POSTROUTING gives the marked ones this \
              node's address. Without the mark or the rule the endpoint answers the client directly, which drops what \
              it did not ask for.",
        verify: "KUBE-MARK-MASQ must set the bit that KUBE-POSTROUTING tests, 0x4000 unless masqueradeBit says another.",
        commands: &["iptables -t nat -S KUBE-MARK-MASQ; iptables -t nat -S KUBE-POSTROUTING"],
        fix: RESTART,
        incidents: &[
            "kubernetes/kubernetes#133773: the rule came last, half a minute after the others",
            "kubernetes/kubernetes#105208",
        ],
        needs: ALL,
        caused_by: &["IB07"],
        run: |facts| facts.drifted("IR09", BOTH, &["rules"]),
    },
    Check {
        id: "IR11",
        name: "forward-rules",
        severity: Severity::Error,
        when: When::Now,
        title: "The filter rules that let Service traffic pass are whole",
        symptom: "Services work from the node itself but not through it; health checks of load balancers fail.",
        why: "Docker and others set the policy of FORWARD to DROP. KUBE-FORWARD accepts what kube-proxy marked and what \
              belongs to connections that it let in; in ipvs mode KUBE-NODE-PORT accepts health checks.",
        verify: "KUBE-FORWARD must accept marked packets and RELATED,ESTABLISHED ones.",
        commands: &["iptables -S KUBE-FORWARD; iptables -S FORWARD"],
        fix: RESTART,
        incidents: &[
            "kubernetes/kubernetes#59656",
            "cloudnativelabs/kube-router#757: Docker's policy",
        ],
        needs: ALL,
        caused_by: &["IB07"],
        run: |facts| facts.drifted("IR11", BOTH, &["rules"]),
    },
];

pub(in crate::check) const IPVS: &[Check] = &[
    Check {
        id: "VS01",
        name: "missing-virtual-servers",
        severity: Severity::Error,
        when: When::Now,
        title: "Every Service port has its virtual servers",
        symptom: "Connections to a Service address are refused by the node itself, or a NodePort does not answer.",
        why: "In ipvs mode each address and port of a Service is a virtual server. The address is local by kube-ipvs0, \
              so without the virtual server the node takes the packet for its own and refuses it.",
        verify: "Look for the address and port among the virtual servers.",
        commands: &["ipvsadm -Ln -t ADDRESS:PORT", "kpx diff"],
        fix: RESTART,
        incidents: &[
            "kubernetes/kubernetes#129147: all NodePorts vanished when the node's addresses could not be listed once",
            "kubernetes/kubeadm#2205",
            "k3s-io/k3s#5031",
        ],
        needs: ALL,
        caused_by: &["DV01", "KM01"],
        run: |facts| facts.drifted("VS01", IPVS_MODE, &["virtual servers"]),
    },
    Check {
        id: "VS02",
        name: "stale-virtual-servers",
        severity: Severity::Warning,
        when: When::Now,
        title: "No virtual server is left that its Service no longer asks for",
        symptom: "An old port or NodePort of a Service still answers.",
        why: "kube-proxy deletes virtual servers that it no longer wants with each sync. One that stays shows a sync that \
              does not end, or a release that did not look (1.34.0).",
        verify: "Compare the ports of the Service with the virtual servers at its addresses.",
        commands: &["ipvsadm -Ln", "kubectl get services -A -o wide"],
        fix: RESTART,
        incidents: &[
            "kubernetes/kubernetes#78421",
            "kubernetes/kubernetes#134147",
        ],
        needs: ALL,
        caused_by: &["DV01", "KM01"],
        run: |facts| facts.drifted("VS02", IPVS_MODE, &["virtual servers"]),
    },
    Check {
        id: "VS03",
        name: "foreign-virtual-servers",
        severity: Severity::Error,
        when: When::NowAndFor(&[Mode::Ipvs, Mode::Nftables]),
        title: "Virtual servers of others are named in excludeCIDRs",
        symptom: "A load balancer beside Kubernetes (keepalived, LVS) loses its virtual servers when kube-proxy syncs, or \
                  a deleted Service still answers.",
        why: "kube-proxy takes every virtual server for its own that it does not want, unless ipvs.excludeCIDRs names \
              its address; and its clean-up at a change of mode clears the whole table, with or without that.",
        verify: "Each virtual server must be of a Service, or its address in excludeCIDRs.",
        commands: &[
            "ipvsadm -Ln",
            "kubectl -n kube-system get configmap kube-proxy -o yaml | grep -A3 excludeCIDRs",
        ],
        fix: "If it belongs to other software, name its address in ipvs.excludeCIDRs and restart kube-proxy. If nobody \
              knows it, it is of a Service that is gone: restart kube-proxy on this node.",
        incidents: &[
            "kubernetes/kube-proxy#6",
            "kubernetes/kubernetes#59507",
            "kubernetes/kubernetes#76267",
            "kubernetes/kubernetes#85799",
        ],
        needs: &[NEEDS, DRIFT, &[Item::Modules, Item::Pods, Item::ConfigMaps]],
        caused_by: &["DV01", "KM01"],
        run: |facts| match facts.target {
            Some(Mode::Ipvs) => unprotected_servers(facts),
            Some(_) => cleared_servers(facts),
            None => facts.drifted("VS03", IPVS_MODE, &["virtual servers"]),
        },
    },
    Check {
        id: "VS04",
        name: "real-servers",
        severity: Severity::Error,
        when: When::Now,
        title: "The real servers are the endpoints there are, and no others",
        symptom: "A part of the connections to a Service hangs or is refused, or a new pod gets no traffic.",
        why: "Each endpoint that the traffic policies allow is a real server of weight 1. One that kube-proxy did not \
              remove takes connections to a pod that is gone; one that it did not add gets none. A TCP real server of \
              weight 0 that is on its way out is no fault.",
        verify: "Compare the real servers with the EndpointSlices.",
        commands: &[
            "ipvsadm -Ln -t ADDRESS:PORT",
            "kubectl -n NAMESPACE get endpointslices -l kubernetes.io/service-name=NAME",
        ],
        fix: RESTART,
        incidents: &[
            "kubernetes/kubernetes#70493",
            "kubernetes/kubernetes#72270",
            "kubernetes/kubernetes#71071",
        ],
        needs: ALL,
        caused_by: &["DV01", "KM01"],
        run: |facts| facts.drifted("VS04", IPVS_MODE, &["virtual servers"]),
    },
    Check {
        id: "VS05",
        name: "weights",
        severity: Severity::Error,
        when: When::Now,
        title: "No endpoint that is ready has weight 0",
        symptom: "A pod that is ready gets no new connections over its Service.",
        why: "kube-proxy sets the weight of a real server to 0 when its endpoint goes, and takes it away when its last \
              connection ends. If the endpoint comes back before that, under the same address, old releases left the \
              weight at 0.",
        verify: "Look for weight 0 and compare with the EndpointSlice.",
        commands: &["ipvsadm -Ln | awk '/->/ && $4 == 0'"],
        fix: "Set the weight to 1: it is safe on a running node.",
        incidents: &[
            "kubernetes/kubernetes#92019",
            "kubernetes/kubernetes#108319",
        ],
        needs: ALL,
        caused_by: &["DV01", "KM01"],
        run: |facts| facts.drifted("VS05", IPVS_MODE, &["virtual servers"]),
    },
    Check {
        id: "VS07",
        name: "empty-virtual-servers",
        severity: Severity::Error,
        when: When::Now,
        title: "No virtual server is empty while there are endpoints",
        symptom: "Connections to the Service are refused, and the kernel log says \"no destination available\".",
        why: "A virtual server without real servers answers nobody. It is right where a Service has no endpoints; with \
              endpoints it shows that kube-proxy stopped half-way.",
        verify: "Look for a virtual server without lines below it.",
        commands: &["ipvsadm -Ln", "dmesg | grep 'no destination available'"],
        fix: RESTART,
        incidents: &["cloudnativelabs/kube-router#415"],
        needs: ALL,
        caused_by: &["DV01", "KM01"],
        run: |facts| facts.drifted("VS07", IPVS_MODE, &["virtual servers"]),
    },
    Check {
        id: "VS08",
        name: "scheduler-and-persistence",
        severity: Severity::Warning,
        when: When::Now,
        title: "Virtual servers have the scheduler and affinity asked for",
        symptom: "Connections of one client go to different pods in spite of sessionAffinity, or are spread otherwise \
                  than configured.",
        why: "The scheduler comes from ipvs.scheduler, persistence from the Service's sessionAffinity. kube-proxy \
              compares them with each sync, so a difference that stays is a sync that does not end.",
        verify: "Compare scheduler and `persistent` with the configuration and the Service.",
        commands: &["ipvsadm -Sn | grep -- '^-A'"],
        fix: RESTART,
        incidents: &["kubernetes/kubernetes#114669"],
        needs: ALL,
        caused_by: &["KM02", "DV01", "KM01"],
        run: |facts| facts.drifted("VS08", IPVS_MODE, &["virtual servers"]),
    },
    Check {
        id: "VS16",
        name: "source-ranges",
        severity: Severity::Warning,
        when: When::Now,
        title: "The rules that guard load-balancer addresses are whole",
        symptom: "Source ranges of load balancers are not kept: clients that should not reach a Service do, or the other way \
                  round.",
        why: "In ipvs mode source ranges are kept by KUBE-PROXY-FIREWALL and KUBE-SOURCE-RANGES-FIREWALL with IP sets, \
              and, since 1.28, KUBE-IPVS-OUT-FILTER.",
        verify: "The chains must be there and FORWARD, INPUT and OUTPUT must lead to them.",
        commands: &[
            "iptables-save -t filter | grep -E 'KUBE-(PROXY-FIREWALL|SOURCE-RANGES|IPVS-OUT)'",
        ],
        fix: RESTART,
        incidents: &["kubernetes/kubernetes#119656"],
        needs: ALL,
        caused_by: &["IB07"],
        run: |facts| facts.drifted("VS16", IPVS_MODE, &["rules"]),
    },
    Check {
        id: "DV02",
        name: "missing-addresses",
        severity: Severity::Error,
        when: When::Now,
        title: "Every Service address is on kube-ipvs0",
        symptom: "A timeout, or \"No route to host\", for one Service on this node, while its virtual server is there.",
        why: "IPVS sees only packets whose destination the kernel takes for local. An address that is not on kube-ipvs0 \
              leaves the node by the default route instead.",
        verify: "Each Service address must be on the link.",
        commands: &["ip -br addr show dev kube-ipvs0", "ip route get ADDRESS"],
        fix: RESTART,
        incidents: &["cloudnativelabs/kube-router#425: the same on kube-dummy-if"],
        needs: ALL,
        caused_by: &["DV01", "KM01"],
        run: |facts| facts.drifted("DV02", IPVS_MODE, &["addresses"]),
    },
    Check {
        id: "DV03",
        name: "stale-addresses",
        severity: Severity::Warning,
        when: When::Now,
        title: "kube-ipvs0 has no address that no Service has",
        symptom: "Something outside the cluster that has the address cannot be reached from this node.",
        why: "What is on kube-ipvs0 is local: packets for an address that moved elsewhere never leave the node. \
              kube-proxy deletes addresses it no longer wants with each sync, but has missed some.",
        verify: "Each address on the link must be one of a Service.",
        commands: &[
            "ip -br addr show dev kube-ipvs0",
            "kubectl get services -A -o wide",
        ],
        fix: "Delete the address from the link, or restart kube-proxy on this node.",
        incidents: &["kubernetes/kubernetes#78421"],
        needs: ALL,
        caused_by: &["DV04", "DV05", "DV01", "KM01"],
        run: |facts| facts.drifted("DV03", IPVS_MODE, &["addresses"]),
    },
    Check {
        id: "DV08",
        name: "host-filter",
        severity: Severity::Warning,
        when: When::Now,
        title: "Service addresses do not lead to the node's own sockets",
        symptom: "A daemon of the node that listens on all addresses (ssh, say) answers on every Service address.",
        why: "Service addresses are local in ipvs mode, so a socket on 0.0.0.0 takes connections to any port that is no \
              virtual server. KUBE-IPVS-FILTER rejects those by the set KUBE-IPVS-IPS.",
        verify: "INPUT must lead to KUBE-IPVS-FILTER, and the set must hold the Service addresses.",
        commands: &["iptables -S KUBE-IPVS-FILTER; ipset list KUBE-IPVS-IPS"],
        fix: RESTART,
        incidents: &[
            "kubernetes/kubernetes#72236",
            "kubernetes/kubernetes#108460: the filter",
        ],
        needs: ALL,
        caused_by: &["IB07"],
        run: |facts| facts.drifted("DV08", IPVS_MODE, &["rules"]),
    },
    Check {
        id: "IS02",
        name: "set-types",
        severity: Severity::Error,
        when: When::Now,
        title: "kube-proxy's IP sets are of the type that its rules need",
        symptom: "kube-proxy logs that it cannot sync a set, and the Services in it are not masqueraded or not reached.",
        why: "A set keeps the type it was made with. A release that wants another type cannot change it while rules use \
              it, and fails with every sync.",
        verify: "Compare the types with those of a node that works.",
        commands: &["ipset list -t | grep -E '^(Name|Type|Header)'"],
        fix: "Delete the rules that use the set, destroy the set, and restart kube-proxy on this node.",
        incidents: &["kubernetes/kubernetes#77265: the sets for SCTP changed type"],
        needs: ALL,
        caused_by: &["KM01"],
        run: |facts| facts.drifted("IS02", IPVS_MODE, &["sets"]),
    },
    Check {
        id: "IS03",
        name: "set-members",
        severity: Severity::Error,
        when: When::Now,
        title: "kube-proxy's IP sets hold what they should, and nothing else",
        symptom: "A pod cannot reach itself over its Service, a NodePort is not masqueraded, or source ranges are not \
                  kept.",
        why: "In ipvs mode the rules are few and fixed; which addresses and ports they apply to stands in sets. \
              A member that is missing leaves its Service without the mark for masquerading, mostly.",
        verify: "Compare the members with the Services, or use `kpx diff`.",
        commands: &["ipset list KUBE-CLUSTER-IP", "kpx diff"],
        fix: RESTART,
        incidents: &[
            "kubernetes/kubernetes#134884: an entry of KUBE-LOOP-BACK was missing",
            "kubernetes/kubernetes#85877",
        ],
        needs: ALL,
        caused_by: &["KM01"],
        run: |facts| facts.drifted("IS03", IPVS_MODE, &["sets"]),
    },
    Check {
        id: "IS05",
        name: "sets-exist",
        severity: Severity::Error,
        when: When::Now,
        title: "Every IP set that kube-proxy's rules use is there",
        symptom: "kube-proxy cannot write its rules: iptables-restore fails with \"Set … doesn't exist\".",
        why: "A rule can name a set only if the set is there. Rules and sets that were restored or deleted in the wrong \
              order leave kube-proxy unable to sync.",
        verify: "Each set that a rule names must be listed.",
        commands: &[
            "iptables-save | grep -o 'match-set [^ ]*' | sort -u",
            "ipset list -n",
        ],
        fix: RESTART,
        incidents: &["kubernetes/kubernetes#67292"],
        needs: ALL,
        caused_by: &["KM01"],
        run: |facts| facts.drifted("IS05", IPVS_MODE, &["sets"]),
    },
];

pub(in crate::check) const NFT: &[Check] = &[
    Check {
        id: "NF01",
        name: "nft-frame",
        severity: Severity::Error,
        when: When::Now,
        title: "kube-proxy's table has its hooks and common chains",
        symptom: "No Service answers on this node, or masquerading or rejecting alone fails.",
        why: "In nftables mode everything is in one table for each family, with base chains at the hooks and a few chains \
              that all Services share. kube-proxy writes those at its start and does not look at them again.",
        verify: "The table must be there for each family, with hooks for prerouting, output, postrouting, input and \
                 forward.",
        commands: &["nft list table ip kube-proxy | less", "nft list hooks"],
        fix: "Restart kube-proxy on this node: it writes these only at its start.",
        incidents: &["kubernetes/kubernetes#136786"],
        needs: ALL,
        caused_by: &[],
        run: |facts| facts.drifted("NF01", NFTABLES, &["table"]),
    },
    Check {
        id: "NF02",
        name: "nft-services",
        severity: Severity::Error,
        when: When::Now,
        title: "The table leads to every Service port, and to none that is gone",
        symptom: "One Service does not answer on this node while it does on others.",
        why: "Maps lead from an address and port to the Service's chain: service-ips, service-nodeports and \
              firewall-ips. kube-proxy writes only what it knows to have changed; what others delete or flush stays \
              away until it restarts or the Service changes.",
        verify: "Look the address up in the maps, or use `kpx diff`.",
        commands: &["nft list map ip kube-proxy service-ips", "kpx diff"],
        fix: RESTART,
        incidents: &[
            "kubernetes/kubernetes#139513: a first sync that took minutes",
            "kubernetes/kubernetes#135639",
        ],
        needs: ALL,
        caused_by: &[],
        run: |facts| facts.drifted("NF02", NFTABLES, &["table"]),
    },
    Check {
        id: "NF03",
        name: "nft-endpoints",
        severity: Severity::Error,
        when: When::Now,
        title: "The table's chains lead to the endpoints there are",
        symptom: "A part of the connections to a Service hangs or is refused.",
        why: "A Service's chain draws a number and goes to the chain of one endpoint. If that map does not name the \
              endpoints there are, connections go to pods that are gone, and new pods get none.",
        verify: "Compare the endpoints in the Service's chain with the EndpointSlices.",
        commands: &[
            "nft list table ip kube-proxy | grep -A8 'chain service-.*NAMESPACE/NAME'",
            "kubectl -n NAMESPACE get endpointslices -l kubernetes.io/service-name=NAME",
        ],
        fix: RESTART,
        incidents: &["kubernetes/kubernetes#70493: the same in other modes"],
        needs: ALL,
        caused_by: &[],
        run: |facts| facts.drifted("NF03", NFTABLES, &["table"]),
    },
    Check {
        id: "NF04",
        name: "nft-rejects",
        severity: Severity::Error,
        when: When::Now,
        title: "The table rejects exactly the Service ports without endpoints",
        symptom: "Connections to a Service with endpoints are refused; or, without endpoints, they hang.",
        why: "The maps no-endpoint-services and no-endpoint-nodeports name what is rejected or dropped at once. An entry \
              that stays when endpoints come back refuses everything.",
        verify: "The maps may name only Service ports without endpoints.",
        commands: &["nft list map ip kube-proxy no-endpoint-services"],
        fix: RESTART,
        incidents: &["kubernetes/kubernetes#102314: the same with rules of iptables"],
        needs: ALL,
        caused_by: &[],
        run: |facts| facts.drifted("NF04", NFTABLES, &["table"]),
    },
];
