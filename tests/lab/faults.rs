//! Faults that real connections show: each is injected into the cluster, counted, explained, fixed as printed, and undone.
//!
//! They are in the order of the stages that a packet passes.

use crate::row::Act::{Configure, Kpx, Kubectl, Node, Objects, On};
use crate::row::From::{Host, Pod};
use crate::row::Lost::{All, Nobody, Some as Part};
use crate::row::Mend::Back;
use crate::row::{ROW, Row, Sent};

const W1: crate::row::From = Pod("w1");

/// Finds a program of the pod with address `$1`, one with the argument `$2` if that is given, and runs `$2…` in its network.
macro_rules! in_pod {
    () => {
        "pid_of() { for of in /proc/[0-9]*; do \
             grep -q '^/app' $of/cmdline 2>/dev/null || continue; \
             grep -q -e \"$2\" $of/cmdline || continue; \
             grep -q -e \"-- $1\\$\" $of/net/fib_trie || continue; \
             echo ${of#/proc/}; return; done; return 1; }; \
         in_pod() { pid=$(pid_of $1) || return 1; shift; nsenter --net=/proc/$pid/ns/net \"$@\"; }; "
    };
}

/// Finds the port of the bridge of the pod `$1`.
macro_rules! port_of {
    () => {
        concat!(
            in_pod!(),
            "port_of() { \
                 at=$(in_pod $1 ip -o link show eth0 | sed -n 's/.*eth0@if\\([0-9]*\\):.*/\\1/p'); \
                 ip -o link show | sed -n \"s/^$at: \\([^@]*\\)@.*/\\1/p\"; }; "
        )
    };
}

/// A Service without a selector at 10.96.77.7, with an `EndpointSlice` made by hand.
macro_rules! by_hand {
    ($service_port:literal, $slice_port:literal, $addresses:literal) => {
        concat!(
            "apiVersion: v1\nkind: Service\nmetadata: {name: hand, namespace: demo}\n\
             spec: {clusterIP: 10.96.77.7, ports: [",
            $service_port,
            "]}\n---\n\
             apiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\n\
             metadata: {name: hand, namespace: demo, labels: {kubernetes.io/service-name: hand}}\n\
             addressType: IPv4\nports: [",
            $slice_port,
            "]\nendpoints: [{addresses: [",
            $addresses,
            "], conditions: {ready: true}}]\n"
        )
    };
}

pub(crate) const HAND_AWAY: &[crate::row::Act] = &[Kubectl(
    "delete service/hand endpointslice/hand --ignore-not-found",
)];

pub(crate) const FAULTS: &[Row] = &[
    // The link of the client and of the endpoint.
    Row {
        name: "bridge-drop",
        breaks: &[Node(
            "nft add table bridge guard && \
             nft 'add chain bridge guard out { type filter hook postrouting priority 0; }' && \
             nft add rule bridge guard out ip daddr {near} drop",
        )],
        back: &[Node("nft delete table bridge guard")],
        asked: &["demo/edge:http"],
        sent: Some(Sent(W1, "{edge}:80", Part)),
        says: &["bridge guard"],
        ..ROW
    },
    Row {
        name: "netdev-drop",
        breaks: &[Node(
            "nft add table netdev guard && \
             nft 'add chain netdev guard in { type filter hook ingress device eth0 priority 0; }' && \
             nft add rule netdev guard in ip saddr {far} drop",
        )],
        back: &[Node("nft delete table netdev guard")],
        asked: &["demo/edge:http"],
        sent: Some(Sent(W1, "{edge}:80", Part)),
        says: &["netdev guard"],
        ..ROW
    },
    Row {
        name: "tc-drop",
        breaks: &[Node(
            "tc qdisc add dev eth0 clsact && set -- $(echo {far} | tr . ' ') && tc filter add dev eth0 egress protocol ip \
             bpf da bytecode \"4,32 0 0 30,21 0 1 $((($1 << 24) + ($2 << 16) + ($3 << 8) + $4)),6 0 0 2,6 0 0 4294967295\"",
        )],
        back: &[Node("tc qdisc del dev eth0 clsact")],
        asked: &["demo/edge:http"],
        sent: Some(Sent(W1, "{edge}:80", Part)),
        says: &["a tc program on eth0", "kpx does not read its code"],
        open: true,
        mend: Back,
        ..ROW
    },
    Row {
        name: "isolated-ports",
        breaks: &[Node(concat!(
            port_of!(),
            "for at in {client} {near}; do bridge link set dev $(port_of $at) isolated on; done"
        ))],
        back: &[Node(
            "for port in $(ls /sys/class/net/cni0/brif); do bridge link set dev $port isolated off; done",
        )],
        asked: &["demo/edge:http"],
        sent: Some(Sent(W1, "{edge}:80", Part)),
        says: &["isolated"],
        ..ROW
    },
    Row {
        name: "link-forwarding",
        breaks: &[Node("sysctl -w net.ipv4.conf.cni0.forwarding=0")],
        back: &[Node("sysctl -w net.ipv4.conf.cni0.forwarding=1")],
        asked: &["demo/edge:http"],
        sent: Some(Sent(W1, "{edge}:80", All)),
        says: &["net.ipv4.conf.cni0.forwarding"],
        ..ROW
    },
    // Ingress.
    Row {
        name: "rp-filter",
        breaks: &[Node(
            "sysctl -w net.ipv4.conf.cni0.rp_filter=1 && ip route add {client}/32 via {w2}",
        )],
        back: &[
            Node("ip route del {client}/32"),
            Node("sysctl -w net.ipv4.conf.cni0.rp_filter=0"),
        ],
        asked: &["demo/web:http"],
        sent: Some(Sent(W1, "{web}:80", All)),
        says: &["{client}"],
        ..ROW
    },
    // One pod of the node alone.
    Row {
        name: "single-drop",
        breaks: &[Node("iptables -I FORWARD -s {client} -j DROP")],
        back: &[Node("iptables -D FORWARD -s {client} -j DROP")],
        asked: &["demo/web:http"],
        sent: Some(Sent(W1, "{web}:80", All)),
        says: &["{client}", "FORWARD"],
        ..ROW
    },
    Row {
        name: "single-reply",
        breaks: &[Node("iptables -t mangle -I FORWARD -d {client} -j DROP")],
        back: &[Node("iptables -t mangle -D FORWARD -d {client} -j DROP")],
        asked: &["demo/web:http"],
        sent: Some(Sent(W1, "{web}:80", All)),
        says: &["{client}"],
        ..ROW
    },
    Row {
        name: "single-nft",
        breaks: &[Node(
            "nft add table inet quarantine && nft 'add chain inet quarantine in { type filter hook prerouting priority -50; }' && nft add rule inet quarantine in ip saddr {client} drop",
        )],
        back: &[Node("nft delete table inet quarantine")],
        asked: &["demo/web:http"],
        sent: Some(Sent(W1, "{web}:80", All)),
        says: &["quarantine"],
        ..ROW
    },
    Row {
        name: "single-rule",
        breaks: &[Node("ip rule add from {client} prohibit priority 905")],
        back: &[Node("ip rule del priority 905")],
        asked: &["demo/web:http"],
        sent: Some(Sent(W1, "{web}:80", All)),
        says: &["{client}", "prohibit"],
        ..ROW
    },
    Row {
        name: "single-taken",
        breaks: &[Node("ip address add {client}/32 dev lo")],
        back: &[Node("ip address del {client}/32 dev lo")],
        asked: &["demo/web:http"],
        sent: Some(Sent(W1, "{web}:80", All)),
        says: &["{client}", "lo"],
        ..ROW
    },
    Row {
        name: "notrack",
        breaks: &[Node(
            "nft add table ip guard && nft 'add chain ip guard early { type filter hook prerouting priority -300; }' && \
             nft add rule ip guard early ip daddr {web} notrack",
        )],
        back: &[Node("nft delete table ip guard")],
        asked: &["demo/web:http"],
        sent: Some(Sent(W1, "{web}:80", All)),
        says: &["ip guard", "notrack"],
        ..ROW
    },
    Row {
        name: "ttl",
        breaks: &[Node(
            "iptables -t mangle -I PREROUTING -d {edge} -j TTL --ttl-set 1",
        )],
        back: &[Node(
            "iptables -t mangle -D PREROUTING -d {edge} -j TTL --ttl-set 1",
        )],
        asked: &["demo/edge:http"],
        sent: Some(Sent(W1, "{edge}:80", Part)),
        says: &["TTL"],
        ..ROW
    },
    // The order of nat.
    Row {
        name: "nft-dnat-same",
        breaks: &[Node(
            "nft add table ip guard && nft 'add chain ip guard pre { type nat hook prerouting priority -100; }' && \
             nft add rule ip guard pre ip daddr {web} tcp dport 80 dnat to 10.244.2.250:80",
        )],
        back: &[Node("nft delete table ip guard")],
        asked: &["demo/web:http"],
        sent: Some(Sent(W1, "{web}:80", All)),
        says: &["ip guard", "10.244.2.250"],
        ..ROW
    },
    Row {
        // No connection of it is tracked: it ends in the bridge.
        name: "nft-dnat-open",
        breaks: &[Node(
            "nft add table ip guard && nft 'add chain ip guard pre { type nat hook prerouting priority -100; }' && \
             nft add rule ip guard pre ip daddr {web} tcp dport 80 dnat to 10.244.1.250:80",
        )],
        back: &[Node("nft delete table ip guard")],
        asked: &["demo/web:http"],
        sent: Some(Sent(W1, "{web}:80", All)),
        open: true,
        says: &["ip guard", "10.244.1.250", "priority -100"],
        ..ROW
    },
    Row {
        name: "nft-dnat-before",
        breaks: &[Node(
            "nft add table ip guard && nft 'add chain ip guard pre { type nat hook prerouting priority -110; }' && \
             nft add rule ip guard pre ip daddr {web} tcp dport 80 dnat to 10.244.1.250:80",
        )],
        back: &[Node("nft delete table ip guard")],
        asked: &["demo/web:http"],
        sent: Some(Sent(W1, "{web}:80", All)),
        says: &["ip guard", "10.244.1.250"],
        ..ROW
    },
    Row {
        name: "nft-dnat-behind",
        breaks: &[Node(
            "nft add table ip guard && nft 'add chain ip guard pre { type nat hook prerouting priority -90; }' && \
             nft add rule ip guard pre ip daddr {web} tcp dport 80 dnat to 10.244.1.250:80",
        )],
        back: &[Node("nft delete table ip guard")],
        asked: &["demo/web:http"],
        sent: Some(Sent(W1, "{web}:80", Nobody)),
        mend: Back,
        ..ROW
    },
    Row {
        name: "two-proxies",
        mode: Some("iptables"),
        breaks: &[
            Node(
                "timeout 10 kube-proxy --kubeconfig={lab}/pki/admin.conf --proxy-mode=nftables --hostname-override=w1 \
                 --healthz-bind-address=127.0.0.1:10299 --metrics-bind-address=127.0.0.1:10298 \
                 --conntrack-max-per-core=0 --conntrack-min=0 >/var/log/other-proxy.log 2>&1; \
                 nft list table ip kube-proxy >/dev/null",
            ),
            Kubectl("delete pod -l app=api --grace-period=1"),
            Kubectl("rollout status deployment/api --timeout=60s"),
        ],
        back: &[Node(
            "nft delete table ip kube-proxy; nft delete table ip6 kube-proxy",
        )],
        asked: &["demo/api:http"],
        sent: Some(Sent(W1, "{api}:80", All)),
        says: &["ip kube-proxy"],
        ..ROW
    },
    Row {
        name: "inet-redirect-before",
        breaks: &[Node(
            "nft add table inet guard && nft 'add chain inet guard pre { type nat hook prerouting priority -150; }' && \
             nft add rule inet guard pre ip daddr {web} tcp dport 80 redirect to :1",
        )],
        back: &[Node("nft delete table inet guard")],
        asked: &["demo/web:http"],
        sent: Some(Sent(W1, "{web}:80", All)),
        says: &["inet guard"],
        ..ROW
    },
    Row {
        name: "nft-output-same",
        breaks: &[Node(
            "nft add table ip guard && nft 'add chain ip guard out { type nat hook output priority -100; }' && \
             nft add rule ip guard out ip daddr {web} tcp dport 80 dnat to 10.244.2.250:80",
        )],
        back: &[Node("nft delete table ip guard")],
        asked: &["demo/web:http", "--source", "host"],
        sent: Some(Sent(Host("w1"), "{web}:80", All)),
        says: &["ip guard", "10.244.2.250"],
        ..ROW
    },
    Row {
        // Nothing shows when the chains of the legacy back end were registered. They stay registered: a table of mode nftables is newer.
        name: "legacy-dnat",
        mode: Some("iptables"),
        breaks: &[Node(
            "iptables-legacy -t nat -A PREROUTING -d {web} -p tcp --dport 80 -j DNAT --to-destination 10.244.2.250:80",
        )],
        back: &[Node("iptables-legacy -t nat -F PREROUTING")],
        asked: &["demo/web:http"],
        sent: Some(Sent(W1, "{web}:80", All)),
        open: true,
        says: &["iptables-legacy", "10.244.2.250"],
        ..ROW
    },
    Row {
        name: "dormant-drop",
        breaks: &[Node(
            "nft add table ip guard '{ flags dormant; }' && \
             nft 'add chain ip guard pre { type filter hook prerouting priority -300; }' && \
             nft add rule ip guard pre ip daddr {web} drop",
        )],
        back: &[Node("nft delete table ip guard")],
        asked: &["demo/web:http"],
        sent: Some(Sent(W1, "{web}:80", Nobody)),
        mend: Back,
        ..ROW
    },
    Row {
        name: "filter-dormant",
        breaks: &[Node("nft add table ip filter '{ flags dormant; }'")],
        back: &[Node("nft add table ip filter")],
        asked: &["demo/web:http"],
        sent: Some(Sent(W1, "{web}:80", Nobody)),
        mend: Back,
        ..ROW
    },
    Row {
        name: "nat-dormant",
        mode: Some("iptables"),
        breaks: &[Node("nft add table ip nat '{ flags dormant; }'")],
        back: &[Node("nft add table ip nat")],
        asked: &["demo/web:http"],
        sent: Some(Sent(W1, "{web}:80", All)),
        says: &["dormant"],
        ..ROW
    },
    // Postrouting.
    Row {
        name: "foreign-snat",
        breaks: &[Node(
            "iptables -t nat -I POSTROUTING -d {far} -j SNAT --to-source 10.210.0.250",
        )],
        back: &[Node(
            "iptables -t nat -D POSTROUTING -d {far} -j SNAT --to-source 10.210.0.250 || iptables -t nat -D POSTROUTING -d {far} -j MASQUERADE",
        )],
        asked: &["demo/edge:http"],
        sent: Some(Sent(W1, "{edge}:80", Part)),
        says: &["10.210.0.250", "POSTROUTING"],
        ..ROW
    },
    // Routing.
    Row {
        name: "nft-snat-other-node",
        breaks: &[Node(
            "nft add table ip guard && nft 'add chain ip guard post { type nat hook postrouting priority 90; }' && \
             nft add rule ip guard post ip daddr {far} snat to {cp1}",
        )],
        back: &[Node("nft delete table ip guard")],
        asked: &["demo/edge:http"],
        sent: Some(Sent(W1, "{edge}:80", Part)),
        says: &["ip guard", "{cp1}"],
        ..ROW
    },
    Row {
        name: "snat-own",
        breaks: &[Node(
            "iptables -t nat -I POSTROUTING -d {far} -j SNAT --to-source {w1}",
        )],
        back: &[Node(
            "iptables -t nat -D POSTROUTING -d {far} -j SNAT --to-source {w1}",
        )],
        asked: &["demo/edge:http"],
        sent: Some(Sent(W1, "{edge}:80", Nobody)),
        mend: Back,
        ..ROW
    },
    Row {
        name: "rule-action",
        breaks: &[Node(
            "ip rule add from 10.244.1.0/24 to {far} prohibit priority 900",
        )],
        back: &[Node("ip rule del priority 900")],
        asked: &["demo/edge:http"],
        sent: Some(Sent(W1, "{edge}:80", Part)),
        says: &["from 10.244.1.0/24", "prohibit"],
        ..ROW
    },
    Row {
        name: "rule-input-link",
        breaks: &[Node(
            "ip route add unreachable {far}/32 table 203 && ip rule add iif cni0 lookup 203 priority 901",
        )],
        back: &[
            Node("ip rule del priority 901"),
            Node("ip route flush table 203"),
        ],
        asked: &["demo/edge:http"],
        sent: Some(Sent(W1, "{edge}:80", Part)),
        says: &["iif cni0", "203"],
        ..ROW
    },
    Row {
        name: "rule-prohibit",
        breaks: &[Node(
            "ip route add prohibit default table 200 && ip rule add from 10.244.1.0/24 lookup 200 priority 1000",
        )],
        back: &[
            Node("ip rule del priority 1000"),
            Node("ip route flush table 200"),
        ],
        asked: &["demo/web:http"],
        sent: Some(Sent(W1, "{web}:80", All)),
        says: &["from 10.244.1.0/24", "table 200"],
        ..ROW
    },
    Row {
        name: "mark-blackhole",
        breaks: &[Node(
            "ip route add blackhole default table 201 && ip rule add fwmark 0x4000/0x4000 lookup 201 priority 1001",
        )],
        back: &[
            Node("ip rule del priority 1001"),
            Node("ip route flush table 201"),
        ],
        asked: &["nodeport:30080"],
        sent: Some(Sent(W1, "{w1}:30080", All)),
        says: &["fwmark 0x4000", "table 201"],
        ..ROW
    },
    Row {
        name: "blackhole-services",
        breaks: &[Node("ip route add blackhole 10.96.0.0/12")],
        back: &[Node("ip route del blackhole 10.96.0.0/12")],
        asked: &["demo/web:http", "--source", "host"],
        sent: Some(Sent(Host("w1"), "{web}:80", All)),
        says: &["blackhole route to 10.96.0.0/12"],
        ..ROW
    },
    Row {
        name: "missing-route",
        breaks: &[Node("ip route del 10.244.2.0/24")],
        back: &[Node("ip route add 10.244.2.0/24 via {w2}")],
        asked: &["demo/edge:http"],
        sent: Some(Sent(W1, "{edge}:80", Part)),
        open: true,
        says: &["10.244.2.0/24", "{w2}"],
        ..ROW
    },
    Row {
        name: "rule-other-link",
        breaks: &[Node(
            "ip route add default dev cni0 table 202 && ip rule add to 10.244.2.0/24 lookup 202 priority 1002",
        )],
        back: &[
            Node("ip rule del priority 1002"),
            Node("ip route flush table 202"),
        ],
        asked: &["demo/edge:http"],
        sent: Some(Sent(W1, "{edge}:80", Part)),
        open: true,
        says: &["table 202", "cni0"],
        ..ROW
    },
    // Policies of xfrm, neighbours.
    Row {
        name: "xfrm-block",
        breaks: &[Node(
            "ip xfrm policy add src 10.244.1.0/24 dst {far}/32 dir fwd action block && \
             ip xfrm policy add src 10.244.1.0/24 dst {far}/32 dir out action block",
        )],
        back: &[Node("ip xfrm policy flush")],
        asked: &["demo/edge:http"],
        sent: Some(Sent(W1, "{edge}:80", Part)),
        says: &["xfrm"],
        ..ROW
    },
    Row {
        name: "neighbour",
        breaks: &[Node(
            "ip neigh replace {near} lladdr 02:00:00:00:00:99 dev cni0 nud permanent",
        )],
        back: &[Node("ip neigh del {near} dev cni0")],
        asked: &["demo/edge:http"],
        sent: Some(Sent(W1, "{edge}:80", Part)),
        says: &["02:00:00:00:00:99", "ip neigh del"],
        open: true,
        mend: Back,
        ..ROW
    },
    Row {
        name: "assigned-here",
        breaks: &[Node("ip addr add {far}/32 dev eth0")],
        back: &[Node("ip addr del {far}/32 dev eth0")],
        asked: &["demo/edge:http"],
        sent: Some(Sent(W1, "{edge}:80", Part)),
        says: &["{far}", "eth0"],
        ..ROW
    },
    // The other node.
    Row {
        name: "input-there",
        breaks: &[
            Objects(
                "apiVersion: v1\nkind: Pod\nmetadata: {name: on-host, namespace: demo, labels: {app: on-host}}\n\
                 spec: {nodeName: w1, hostNetwork: true, terminationGracePeriodSeconds: 1, containers: \
                 [{name: app, image: \"lab.local/app:1\", imagePullPolicy: IfNotPresent, args: [serve], ports: \
                 [{containerPort: 8080}]}]}\n---\n\
                 apiVersion: v1\nkind: Service\nmetadata: {name: on-host, namespace: demo}\n\
                 spec: {clusterIP: 10.96.77.8, selector: {app: on-host}, ports: [{port: 80, targetPort: 8080}]}\n",
            ),
            Kubectl("wait pod/on-host --for=condition=Ready --timeout=30s"),
            Node("iptables -I INPUT -p tcp --dport 8080 -j DROP"),
        ],
        back: &[
            Node("iptables -D INPUT -p tcp --dport 8080 -j DROP"),
            Kubectl("delete service/on-host pod/on-host --wait=false"),
        ],
        node: "w2",
        asked: &["demo/on-host"],
        over: true,
        sent: Some(Sent(Pod("w2"), "10.96.77.8:80", All)),
        cause: Some("foreign-rule"),
        says: &["because of node w1", "chain INPUT"],
        ..ROW
    },
    Row {
        name: "forward-there",
        breaks: &[On(
            "w2",
            "iptables -I FORWARD -s {client}/24 -d {far} -j DROP",
        )],
        back: &[On(
            "w2",
            "iptables -D FORWARD -s {client}/24 -d {far} -j DROP",
        )],
        asked: &["demo/edge:http"],
        over: true,
        sent: Some(Sent(W1, "{edge}:80", Part)),
        cause: Some("foreign-rule"),
        says: &["because of node w2", "chain FORWARD"],
        ..ROW
    },
    Row {
        name: "link-forwarding-there",
        breaks: &[On("w2", "sysctl -qw net.ipv4.conf.eth0.forwarding=0")],
        back: &[On("w2", "sysctl -qw net.ipv4.conf.eth0.forwarding=1")],
        asked: &["demo/edge:http"],
        over: true,
        sent: Some(Sent(W1, "{edge}:80", Part)),
        cause: Some("obstacle"),
        says: &["because of node w2", "net.ipv4.conf.eth0.forwarding"],
        ..ROW
    },
    Row {
        name: "no-way-back-there",
        breaks: &[On(
            "w2",
            "ip route add prohibit $(echo {client} | sed 's|[0-9]*$|0/25|')",
        )],
        back: &[On(
            "w2",
            "ip route del prohibit $(echo {client} | sed 's|[0-9]*$|0/25|')",
        )],
        asked: &["demo/edge:http"],
        over: true,
        sent: Some(Sent(W1, "{edge}:80", Part)),
        says: &["because of node w2", "prohibit"],
        ..ROW
    },
    Row {
        // Rules of mode iptables alone drop what is invalid.
        name: "notrack-there",
        mode: Some("iptables"),
        breaks: &[On(
            "w2",
            "iptables -t raw -I PREROUTING -s {client}/24 -d {far} -j CT --notrack",
        )],
        back: &[On(
            "w2",
            "iptables -t raw -D PREROUTING -s {client}/24 -d {far} -j CT --notrack",
        )],
        asked: &["demo/edge:http"],
        over: true,
        sent: Some(Sent(W1, "{edge}:80", Part)),
        open: true,
        mend: Back,
        ..ROW
    },
    Row {
        // The pod answers by its own node, which translates the reply back.
        name: "source-there-harmless",
        breaks: &[On(
            "w2",
            "iptables -t nat -I POSTROUTING -s {client}/24 -d {far} -j SNAT --to-source 203.0.113.9",
        )],
        back: &[On(
            "w2",
            "iptables -t nat -D POSTROUTING -s {client}/24 -d {far} -j SNAT --to-source 203.0.113.9",
        )],
        asked: &["demo/edge:http"],
        over: true,
        sent: Some(Sent(W1, "{edge}:80", Nobody)),
        mend: Back,
        ..ROW
    },
    Row {
        name: "source-there",
        breaks: &[On(
            "w2",
            "iptables -t nat -I POSTROUTING -s {client}/24 -d {far} -j SNAT --to-source 10.244.2.250",
        )],
        back: &[On(
            "w2",
            "iptables -t nat -D POSTROUTING -s {client}/24 -d {far} -j SNAT --to-source 10.244.2.250 || \
             iptables -t nat -D POSTROUTING -s {client}/24 -d {far} -j MASQUERADE",
        )],
        asked: &["demo/edge:http"],
        over: true,
        sent: Some(Sent(W1, "{edge}:80", Part)),
        cause: Some("foreign-rule"),
        says: &["because of node w2", "10.244.2.250"],
        ..ROW
    },
    // The end.
    Row {
        name: "slice-wrong-port",
        breaks: &[Objects(by_hand!(
            "{port: 80, targetPort: 8081}",
            "{port: 8081}",
            "\"{near-web}\""
        ))],
        back: HAND_AWAY,
        asked: &["demo/hand"],
        sent: Some(Sent(W1, "10.96.77.7:80", All)),
        open: true,
        says: &["8081", "8080"],
        mend: Back,
        ..ROW
    },
    Row {
        name: "slice-no-pod",
        breaks: &[Objects(by_hand!(
            "{port: 80, targetPort: 8080}",
            "{port: 8080}",
            "10.244.1.250"
        ))],
        back: HAND_AWAY,
        asked: &["demo/hand"],
        sent: Some(Sent(W1, "10.96.77.7:80", All)),
        says: &["10.244.1.250", "no pod"],
        mend: Back,
        ..ROW
    },
    Row {
        name: "slice-no-pod-there",
        breaks: &[Objects(by_hand!(
            "{port: 80, targetPort: 8080}",
            "{port: 8080}",
            "10.244.2.250"
        ))],
        back: HAND_AWAY,
        asked: &["demo/hand"],
        sent: Some(Sent(W1, "10.96.77.7:80", All)),
        open: true,
        says: &["10.244.2.250", "names no pod"],
        mend: Back,
        ..ROW
    },
    Row {
        name: "slice-without-port-name",
        breaks: &[Objects(by_hand!(
            "{name: http, port: 80, targetPort: 8080}",
            "{port: 8080}",
            "\"{near}\""
        ))],
        back: HAND_AWAY,
        asked: &["demo/hand"],
        sent: Some(Sent(W1, "10.96.77.7:80", All)),
        says: &["EndpointSlice", "without a name", "named http"],
        mend: Back,
        ..ROW
    },
    Row {
        name: "slice-other-protocol",
        breaks: &[Objects(by_hand!(
            "{name: http, port: 80, targetPort: 8080}",
            "{name: http, port: 8080, protocol: UDP}",
            "\"{near}\""
        ))],
        back: HAND_AWAY,
        asked: &["demo/hand"],
        sent: Some(Sent(W1, "10.96.77.7:80", All)),
        says: &["EndpointSlice", "UDP"],
        mend: Back,
        ..ROW
    },
    Row {
        name: "slice-port-name",
        breaks: &[Objects(by_hand!(
            "{name: http, port: 80, targetPort: 8080}",
            "{name: web, port: 8080}",
            "\"{near}\""
        ))],
        back: HAND_AWAY,
        asked: &["demo/hand"],
        sent: Some(Sent(W1, "10.96.77.7:80", All)),
        says: &["EndpointSlice", "named web", "named http"],
        mend: Back,
        ..ROW
    },
    Row {
        name: "not-ready-published",
        breaks: &[
            Objects(
                "apiVersion: v1\nkind: Pod\nmetadata: {name: early, namespace: demo, labels: {app: early}}\n\
                 spec: {nodeName: w1, terminationGracePeriodSeconds: 1, containers: [{name: app, image: \"lab.local/app:1\", \
                 imagePullPolicy: IfNotPresent, args: [idle], readinessProbe: {tcpSocket: {port: 8080}}}]}\n---\n\
                 apiVersion: v1\nkind: Service\nmetadata: {name: early, namespace: demo}\n\
                 spec: {clusterIP: 10.96.77.9, publishNotReadyAddresses: true, selector: {app: early}, \
                 ports: [{port: 80, targetPort: 8080}]}\n",
            ),
            Kubectl("wait pod/early --for=jsonpath='{.status.phase}'=Running --timeout=30s"),
        ],
        back: &[Kubectl("delete service/early pod/early --wait=false")],
        asked: &["demo/early"],
        sent: Some(Sent(W1, "10.96.77.9:80", All)),
        open: true,
        says: &["demo/early", "nothing in the pod listens"],
        mend: Back,
        ..ROW
    },
    Row {
        name: "pod-firewall",
        breaks: &[Node(concat!(
            in_pod!(),
            "in_pod {near} iptables -I INPUT -p tcp --dport 8080 -j DROP"
        ))],
        back: &[Node(concat!(
            in_pod!(),
            "in_pod {near} iptables -D INPUT -p tcp --dport 8080 -j DROP"
        ))],
        asked: &["demo/edge:http"],
        sent: Some(Sent(W1, "{edge}:80", Part)),
        says: &["{near}", "INPUT"],
        ..ROW
    },
    Row {
        name: "pod-nft-policy",
        breaks: &[Node(concat!(
            in_pod!(),
            "in_pod {near} nft add table inet own && \
             in_pod {near} nft 'add chain inet own out { type filter hook output priority 0; policy drop; }' && \
             in_pod {near} nft add rule inet own out ct state new accept"
        ))],
        back: &[Node(concat!(
            in_pod!(),
            "in_pod {near} nft delete table inet own"
        ))],
        asked: &["demo/edge:http"],
        sent: Some(Sent(W1, "{edge}:80", Part)),
        says: &["{near}", "reply"],
        ..ROW
    },
    Row {
        name: "client-firewall",
        breaks: &[Node(concat!(
            in_pod!(),
            "in_pod {client} iptables -I OUTPUT -d {web} -j REJECT"
        ))],
        back: &[Node(concat!(
            in_pod!(),
            "in_pod {client} iptables -D OUTPUT -d {web} -j REJECT"
        ))],
        asked: &["demo/web:http"],
        sent: Some(Sent(W1, "{web}:80", All)),
        says: &["{client}", "OUTPUT"],
        ..ROW
    },
    Row {
        name: "pod-redirect",
        breaks: &[Node(concat!(
            in_pod!(),
            "in_pod {near} iptables -t nat -I PREROUTING -p tcp --dport 8080 -j REDIRECT --to-ports 15006"
        ))],
        back: &[Node(concat!(
            in_pod!(),
            "in_pod {near} iptables -t nat -D PREROUTING -p tcp --dport 8080 -j REDIRECT --to-ports 15006"
        ))],
        asked: &["demo/edge:http"],
        sent: Some(Sent(W1, "{edge}:80", Part)),
        says: &["{near}", "nothing"],
        mend: Back,
        ..ROW
    },
    Row {
        name: "target-port",
        breaks: &[Kubectl(
            "patch service edge --type=json -p '[{\"op\": \"replace\", \"path\": \"/spec/ports/0/targetPort\", \"value\": 9090}]'",
        )],
        back: &[Kubectl(
            "patch service edge --type=json -p '[{\"op\": \"replace\", \"path\": \"/spec/ports/0/targetPort\", \"value\": 8080}]'",
        )],
        asked: &["demo/edge:http"],
        over: true,
        sent: Some(Sent(W1, "{edge}:80", All)),
        says: &["9090"],
        mend: Back,
        ..ROW
    },
    // The rules of the node stop replies.
    Row {
        name: "reply-port",
        breaks: &[Node(
            "iptables -I FORWARD -s {near} -p tcp --sport 8080 -j DROP",
        )],
        back: &[Node(
            "iptables -D FORWARD -s {near} -p tcp --sport 8080 -j DROP",
        )],
        asked: &["demo/edge:http"],
        sent: Some(Sent(W1, "{edge}:80", Part)),
        says: &["FORWARD", "reply"],
        ..ROW
    },
    Row {
        name: "reply-raw",
        breaks: &[Node("iptables -t raw -I PREROUTING -s {far} -j DROP")],
        back: &[Node("iptables -t raw -D PREROUTING -s {far} -j DROP")],
        asked: &["demo/edge:http"],
        sent: Some(Sent(W1, "{edge}:80", Part)),
        says: &["raw", "reply"],
        ..ROW
    },
    Row {
        name: "reply-state",
        breaks: &[Node(
            "nft add table inet strict && \
             nft 'add chain inet strict back { type filter hook forward priority -10; }' && \
             nft add rule inet strict back ct state established ct direction reply drop",
        )],
        back: &[Node("nft delete table inet strict")],
        asked: &["demo/web:http"],
        sent: Some(Sent(W1, "{web}:80", All)),
        says: &["strict", "reply"],
        ..ROW
    },
    Row {
        name: "reply-to-host",
        breaks: &[Node("iptables -I INPUT -p tcp --sport 8080 -j REJECT")],
        back: &[Node("iptables -D INPUT -p tcp --sport 8080 -j REJECT")],
        asked: &["demo/web:http", "--source", "host"],
        sent: Some(Sent(Host("w1"), "{web}:80", All)),
        says: &["INPUT", "reply"],
        ..ROW
    },
    Row {
        name: "reply-harmless",
        breaks: &[Node(
            "iptables -I FORWARD -s {far} -p tcp --sport 9999 -j DROP",
        )],
        back: &[Node(
            "iptables -D FORWARD -s {far} -p tcp --sport 9999 -j DROP",
        )],
        asked: &["demo/edge:http"],
        sent: Some(Sent(W1, "{edge}:80", Nobody)),
        mend: Back,
        ..ROW
    },
    Row {
        name: "ephemeral-ports",
        breaks: &[Node("sysctl -w net.ipv4.ip_local_port_range='40000 40001'")],
        back: &[Node("sysctl -w net.ipv4.ip_local_port_range='32768 60999'")],
        asked: &["demo/web:http", "--source", "host"],
        sent: Some(Sent(Host("w1"), "{web}:80", Part)),
        says: &["ip_local_port_range"],
        ..ROW
    },
    // Objects.
    Row {
        name: "external-cluster-ip",
        breaks: &[Objects(
            "apiVersion: v1\nkind: Service\nmetadata: {name: thief, namespace: demo}\n\
             spec: {selector: {app: edge}, externalIPs: [\"{web}\"], ports: [{port: 80, targetPort: 8080}]}\n",
        )],
        back: &[Kubectl("delete service thief")],
        asked: &["demo/web:http"],
        sent: Some(Sent(W1, "{web}:80", Nobody)),
        misled: true,
        says: &["demo/thief"],
        mend: Back,
        ..ROW
    },
    Row {
        name: "external-external-ip",
        breaks: &[Objects(
            "apiVersion: v1\nkind: Service\nmetadata: {name: thief, namespace: demo}\n\
             spec: {selector: {app: edge}, externalIPs: [10.210.0.77], ports: [{port: 80, targetPort: 8080}]}\n",
        )],
        back: &[Kubectl("delete service thief")],
        asked: &["demo/api:http"],
        sent: Some(Sent(W1, "10.210.0.77:80", Nobody)),
        misled: true,
        says: &["demo/thief"],
        mend: Back,
        ..ROW
    },
    // Names.
    Row {
        name: "dns-refuses",
        breaks: &[Objects(
            "apiVersion: v1\nkind: Service\nmetadata: {name: kube-dns, namespace: kube-system}\n\
             spec: {clusterIP: 10.96.0.10, selector: {k8s-app: kube-dns}, ports: [{name: dns, port: 53, protocol: UDP}, \
             {name: dns-tcp, port: 53}]}\n",
        )],
        back: &[Kubectl("-n kube-system delete service kube-dns")],
        asked: &["web.demo.svc.cluster.local"],
        sent: Some(Sent(W1, "10.96.0.10:53", All)),
        says: &["cluster DNS"],
        mend: Back,
        ..ROW
    },
    // Configuration.
    Row {
        name: "nodeport-addresses",
        breaks: &[Configure("nodePortAddresses", "[192.0.2.0/24]")],
        back: &[Configure("nodePortAddresses", "null")],
        asked: &["nodeport:30080"],
        sent: Some(Sent(W1, "{w1}:30080", All)),
        says: &["nodePortAddresses", "192.0.2.0/24"],
        mend: Back,
        ..ROW
    },
    Row {
        name: "cluster-cidr",
        breaks: &[Configure("clusterCIDR", "172.20.0.0/16")],
        back: &[Configure("clusterCIDR", "10.244.0.0/16")],
        asked: &["demo/web:http"],
        sent: Some(Sent(W1, "{web}:80", Nobody)),
        says: &["clusterCIDR", "172.20.0.0/16"],
        mend: Back,
        ..ROW
    },
    // Rules that look alike.
    Row {
        // The rules of mode nftables are in a table of their own.
        name: "return-before",
        mode: Some("iptables"),
        breaks: &[Node(
            "iptables -t nat -I PREROUTING -s {client}/24 -d {web} -j RETURN",
        )],
        back: &[Node(
            "iptables -t nat -D PREROUTING -s {client}/24 -d {web} -j RETURN",
        )],
        asked: &["demo/web:http"],
        sent: Some(Sent(W1, "{web}:80", All)),
        says: &["PREROUTING"],
        ..ROW
    },
    Row {
        name: "drop-mark-harmless",
        breaks: &[Node(
            "iptables -t mangle -I PREROUTING -d {web} -j MARK --set-mark 0x8000",
        )],
        back: &[Node(
            "iptables -t mangle -D PREROUTING -d {web} -j MARK --set-mark 0x8000",
        )],
        asked: &["demo/web:http"],
        sent: Some(Sent(W1, "{web}:80", Nobody)),
        mend: Back,
        ..ROW
    },
    Row {
        name: "reply-syn-ack",
        breaks: &[Node(
            "iptables -I FORWARD -p tcp --tcp-flags SYN,ACK SYN,ACK -j DROP",
        )],
        back: &[Node(
            "iptables -D FORWARD -p tcp --tcp-flags SYN,ACK SYN,ACK -j DROP",
        )],
        asked: &["demo/web:http"],
        sent: Some(Sent(W1, "{web}:80", All)),
        says: &["FORWARD", "reply"],
        ..ROW
    },
    Row {
        name: "nodeport-input-harmless",
        breaks: &[Node("iptables -I INPUT -p tcp --dport 30080 -j DROP")],
        back: &[Node("iptables -D INPUT -p tcp --dport 30080 -j DROP")],
        asked: &["nodeport:30080"],
        sent: Some(Sent(W1, "{w1}:30080", Nobody)),
        mend: Back,
        ..ROW
    },
    Row {
        name: "nodeport-raw",
        breaks: &[Node(
            "iptables -t raw -I PREROUTING -p tcp --dport 30080 -j DROP",
        )],
        back: &[Node(
            "iptables -t raw -D PREROUTING -p tcp --dport 30080 -j DROP",
        )],
        asked: &["nodeport:30080"],
        sent: Some(Sent(W1, "{w1}:30080", All)),
        says: &["raw"],
        ..ROW
    },
    Row {
        // The reply of the other node's pod comes by another link, in another zone.
        name: "zone",
        breaks: &[Node("iptables -t raw -I PREROUTING -i cni0 -j CT --zone 5")],
        back: &[Node("iptables -t raw -D PREROUTING -i cni0 -j CT --zone 5")],
        asked: &["demo/edge:http"],
        sent: Some(Sent(W1, "{edge}:80", Part)),
        open: true,
        says: &["zone"],
        mend: Back,
        ..ROW
    },
    Row {
        name: "notrack-reply",
        breaks: &[Node(
            "iptables -t raw -I PREROUTING -s {far} -j CT --notrack",
        )],
        back: &[Node(
            "iptables -t raw -D PREROUTING -s {far} -j CT --notrack",
        )],
        asked: &["demo/edge:http"],
        sent: Some(Sent(W1, "{edge}:80", Part)),
        says: &["raw", "reply"],
        ..ROW
    },
    // Rules of routing with ports, and before translation.
    Row {
        name: "rule-services-harmless",
        breaks: &[Node("ip rule add to 10.96.0.0/12 blackhole priority 906")],
        back: &[Node("ip rule del priority 906")],
        asked: &["demo/web:http"],
        sent: Some(Sent(W1, "{web}:80", Nobody)),
        mend: Back,
        ..ROW
    },
    Row {
        name: "rule-services-host",
        breaks: &[Node("ip rule add to 10.96.0.0/12 blackhole priority 906")],
        back: &[Node("ip rule del priority 906")],
        asked: &["demo/web:http", "--source", "host"],
        sent: Some(Sent(Host("w1"), "{web}:80", All)),
        says: &["blackhole"],
        ..ROW
    },
    Row {
        name: "rule-port",
        breaks: &[Node(
            "ip rule add iif cni0 ipproto tcp dport 8080 prohibit priority 907",
        )],
        back: &[Node("ip rule del priority 907")],
        asked: &["demo/web:http"],
        sent: Some(Sent(W1, "{web}:80", All)),
        says: &["dport 8080", "prohibit"],
        ..ROW
    },
    Row {
        name: "no-default-host",
        breaks: &[Node(
            "ip route show default | head -n 1 >/run/route; ip route del default",
        )],
        back: &[Node("ip route add $(cat /run/route)")],
        asked: &["demo/web:http", "--source", "host"],
        sent: Some(Sent(Host("w1"), "{web}:80", All)),
        says: &["no route"],
        mend: Back,
        ..ROW
    },
    Row {
        name: "route-of-pod",
        breaks: &[Node("ip route add {near}/32 via {w2} dev eth0")],
        back: &[Node("ip route del {near}/32")],
        asked: &["demo/edge:http"],
        sent: Some(Sent(W1, "{edge}:80", Part)),
        open: true,
        says: &["{near}", "eth0"],
        mend: Back,
        ..ROW
    },
    // Links of pods.
    Row {
        name: "port-down",
        breaks: &[Node(concat!(
            port_of!(),
            "port_of {near} >/run/port; ip link set $(cat /run/port) down"
        ))],
        back: &[Node("ip link set $(cat /run/port) up")],
        asked: &["demo/edge:http"],
        sent: Some(Sent(W1, "{edge}:80", Part)),
        says: &["{near}", "down"],
        ..ROW
    },
    Row {
        name: "port-without-bridge",
        breaks: &[Node(concat!(
            port_of!(),
            "port_of {near} >/run/port; ip link set $(cat /run/port) nomaster"
        ))],
        back: &[Node(
            "ip link set $(cat /run/port) master cni0; bridge link set dev $(cat /run/port) hairpin on",
        )],
        asked: &["demo/edge:http"],
        sent: Some(Sent(W1, "{edge}:80", Part)),
        says: &["{near}", "cni0"],
        mend: Back,
        ..ROW
    },
    Row {
        name: "port-blocked",
        breaks: &[Node(concat!(
            port_of!(),
            "port_of {near} >/run/port; bridge link set dev $(cat /run/port) state 0"
        ))],
        back: &[Node("bridge link set dev $(cat /run/port) state 3")],
        asked: &["demo/edge:http"],
        sent: Some(Sent(W1, "{edge}:80", Part)),
        says: &["{near}", "state"],
        mend: Back,
        ..ROW
    },
    Row {
        name: "bridge-nf-off",
        breaks: &[Node("sysctl -w net.bridge.bridge-nf-call-iptables=0")],
        back: &[Node("sysctl -w net.bridge.bridge-nf-call-iptables=1")],
        asked: &["demo/edge:http"],
        sent: Some(Sent(W1, "{edge}:80", Part)),
        says: &["bridge-nf-call-iptables"],
        ..ROW
    },
    Row {
        name: "neighbour-node",
        breaks: &[Node(
            "ip neigh replace {w2} lladdr 02:00:00:00:00:98 dev eth0 nud permanent",
        )],
        back: &[Node("ip neigh del {w2} dev eth0")],
        asked: &["demo/edge:http"],
        sent: Some(Sent(W1, "{edge}:80", Part)),
        open: true,
        says: &["02:00:00:00:00:98"],
        mend: Back,
        ..ROW
    },
    // Inside the pod.
    Row {
        name: "client-no-route",
        breaks: &[Node(concat!(
            in_pod!(),
            "in_pod {client} ip route show default | head -n 1 >/run/route; in_pod {client} ip route del default; ",
            "in_pod {client} ip route show >/run/routes; \
             while read -r of; do case $of in 10.244.0.0/16*) in_pod {client} ip route del $of;; esac; done </run/routes"
        ))],
        back: &[Node(concat!(
            in_pod!(),
            "in_pod {client} ip route add $(cat /run/route)"
        ))],
        asked: &["demo/web:http"],
        sent: Some(Sent(W1, "{web}:80", All)),
        says: &["{client}", "route"],
        mend: Back,
        ..ROW
    },
    Row {
        name: "pod-link-down",
        breaks: &[Node(concat!(
            in_pod!(),
            "in_pod {near} ip route show default | head -n 1 >/run/route; in_pod {near} ip link set eth0 down"
        ))],
        back: &[Node(concat!(
            in_pod!(),
            "in_pod {near} ip link set eth0 up; in_pod {near} ip route add $(cat /run/route)"
        ))],
        asked: &["demo/edge:http"],
        sent: Some(Sent(W1, "{edge}:80", Part)),
        says: &["{near}", "down"],
        mend: Back,
        ..ROW
    },
    Row {
        name: "pod-reply-blackhole",
        breaks: &[Node(concat!(
            in_pod!(),
            "in_pod {near} ip route add blackhole {client}/32"
        ))],
        back: &[Node(concat!(
            in_pod!(),
            "in_pod {near} ip route del blackhole {client}/32"
        ))],
        asked: &["demo/edge:http"],
        sent: Some(Sent(W1, "{edge}:80", Part)),
        says: &["{near}", "blackhole"],
        mend: Back,
        ..ROW
    },
    // Policies of Services.
    Row {
        name: "internal-local",
        breaks: &[
            Objects(
                "apiVersion: v1\nkind: Pod\nmetadata: {name: lone, namespace: demo, labels: {app: lone}}\n\
                 spec: {nodeName: w2, terminationGracePeriodSeconds: 1, containers: [{name: app, image: \"lab.local/app:1\", \
                 imagePullPolicy: IfNotPresent, args: [serve], ports: [{containerPort: 8080}]}]}\n---\n\
                 apiVersion: v1\nkind: Service\nmetadata: {name: lone, namespace: demo}\n\
                 spec: {clusterIP: 10.96.77.6, internalTrafficPolicy: Local, selector: {app: lone}, \
                 ports: [{port: 80, targetPort: 8080}]}\n",
            ),
            Kubectl("wait pod/lone --for=condition=Ready --timeout=30s"),
        ],
        back: &[Kubectl("delete service/lone pod/lone --wait=false")],
        asked: &["demo/lone"],
        sent: Some(Sent(W1, "10.96.77.6:80", All)),
        says: &["internalTrafficPolicy"],
        mend: Back,
        ..ROW
    },
    // Mode nftables on node w1.
    Row {
        name: "nft-dormant",
        mode: Some("iptables"),
        breaks: &[
            On("w1", "iptables-save >/var/log/before.rules"),
            Kpx("migrate --to nftables --yes"),
            Node("nft add table ip kube-proxy '{ flags dormant; }'"),
        ],
        back: &[Node("nft add table ip kube-proxy")],
        asked: &["demo/web:http"],
        sent: Some(Sent(W1, "{web}:80", All)),
        says: &["dormant"],
        ..ROW
    },
    Row {
        name: "two-proxies-nft",
        mode: Some("iptables"),
        breaks: &[
            Node("iptables-restore --noflush </var/log/before.rules"),
            Kubectl("delete pod -l app=api --grace-period=1"),
            Kubectl("rollout status deployment/api --timeout=60s"),
        ],
        back: &[Kpx("migrate rollback --yes")],
        asked: &["demo/api:http"],
        sent: Some(Sent(W1, "{api}:80", Nobody)),
        mend: Back,
        ..ROW
    },
];
