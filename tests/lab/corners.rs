//! Faults of programs, of pods' own settings, of routing policy, and of objects that kube-proxy ignores.

use crate::faults::HAND_AWAY;
use crate::row::Act::{Kubectl, Node, Objects, On};
use crate::row::From::{Host, Pod};
use crate::row::Lost::{All, Nobody, Some as Part};
use crate::row::Mend::Back;
use crate::row::{ROW, Row, Sent};

const W1: crate::row::From = Pod("w1");

pub(crate) const CORNERS: &[Row] = &[
    // The program of an endpoint.
    Row {
        name: "pod-stopped",
        breaks: &[Node(concat!(
            in_pod!(),
            "kill -STOP $(pid_of {near} serve)"
        ))],
        back: &[Node(concat!(
            in_pod!(),
            "kill -CONT $(pid_of {near} serve)"
        ))],
        asked: &["demo/edge:http"],
        sent: Some(Sent(W1, "{edge}:80", Part)),
        open: true,
        says: &["{near}:8080", "wait"],
        mend: Back,
        ..ROW
    },
    // Ports of the bridge.
    Row {
        name: "bridge-flood",
        breaks: &[Node(concat!(
            port_of!(),
            "port=$(port_of {near}); bridge link set dev $port learning off flood off; \
             echo $port >/run/port; bridge fdb show dev $port dynamic | grep -v permanent | while read -r mac rest; do \
             bridge fdb del $mac dev $port master; done; true"
        ))],
        back: &[Node(
            "bridge link set dev $(cat /run/port) learning on flood on",
        )],
        asked: &["demo/edge:http"],
        sent: Some(Sent(W1, "{edge}:80", Part)),
        open: true,
        says: &["learning"],
        mend: Back,
        ..ROW
    },
    // Inside the pod.
    Row {
        name: "pod-address-gone",
        breaks: &[Node(concat!(
            in_pod!(),
            "in_pod {near} ip route show default | head -n 1 >/run/route; pid_of {near} >/run/pid; \
             in_pod {near} ip addr del {near}/24 dev eth0"
        ))],
        back: &[Node(
            "nsenter --net=/proc/$(cat /run/pid)/ns/net ip addr add {near}/24 dev eth0; \
             nsenter --net=/proc/$(cat /run/pid)/ns/net ip route add $(cat /run/route)",
        )],
        asked: &["demo/edge:http"],
        sent: Some(Sent(W1, "{edge}:80", Part)),
        says: &["{near}"],
        mend: Back,
        ..ROW
    },
    // A bridge takes what it translates, whatever its link-layer address is.
    inside!(
        "pod-neighbour-harmless",
        "{client}",
        "ip neigh replace 10.244.1.1 lladdr 02:00:00:00:00:97 dev eth0 nud permanent",
        "ip neigh del 10.244.1.1 dev eth0",
        "demo/web:http",
        "{web}:80",
        Nobody,
        &[]
    ),
    inside!(
        "pod-rule",
        "{client}",
        "ip rule add pref 100 to 10.96.0.0/12 prohibit",
        "ip rule del pref 100",
        "demo/web:http",
        "{web}:80",
        All,
        &["{client}", "prohibit"]
    ),
    inside!(
        "pod-has-service-address",
        "{client}",
        "ip addr add {web}/32 dev lo",
        "ip addr del {web}/32 dev lo",
        "demo/web:http",
        "{web}:80",
        All,
        &["{client}", "{web}"]
    ),
    inside!(
        "pod-arp-off",
        "{near}",
        "ip link set eth0 arp off",
        "ip link set eth0 arp on",
        "demo/edge:http",
        "{edge}:80",
        Part,
        &["{near}", "ARP"]
    ),
    Row {
        open: true,
        ..inside!(
            "pod-one-port",
            "{client}",
            "sysctl -w net.ipv4.ip_local_port_range='45000 45000'",
            "sysctl -w net.ipv4.ip_local_port_range='32768 60999'",
            "demo/web:http",
            "{web}:80",
            Part,
            &["from 45000 to 45000"]
        )
    },
    Row {
        name: "pod-ignores-arp",
        breaks: &[Node(concat!(
            in_pod!(),
            "in_pod {near} sysctl -qw net.ipv4.conf.eth0.arp_ignore=8 && ip neigh flush to {near} dev cni0"
        ))],
        back: &[
            Node(concat!(
                in_pod!(),
                "in_pod {near} sysctl -qw net.ipv4.conf.eth0.arp_ignore=0"
            )),
            Node("ip neigh flush to {near} dev cni0"),
        ],
        asked: &["demo/edge:http"],
        sent: Some(Sent(W1, "{edge}:80", Part)),
        says: &["{near}", "arp_ignore"],
        ..ROW
    },
    // Zones, and fields that rules change.
    Row {
        name: "zone-reply",
        breaks: &[Node(
            "iptables -t raw -I PREROUTING -s {client} -j CT --zone-reply 7",
        )],
        back: &[Node(
            "iptables -t raw -D PREROUTING -s {client} -j CT --zone-reply 7",
        )],
        asked: &["demo/edge:http"],
        sent: Some(Sent(W1, "{edge}:80", All)),
        open: true,
        says: &["put into a conntrack zone by rule 1 of raw PREROUTING"],
        mend: Back,
        ..ROW
    },
    Row {
        name: "other-port",
        breaks: &[Node(
            "nft add table ip guard && nft 'add chain ip guard pre { type filter hook prerouting priority -150; }' && \
             nft add rule ip guard pre ip daddr {edge} tcp dport set 81",
        )],
        back: &[Node("nft delete table ip guard")],
        asked: &["demo/edge:http"],
        sent: Some(Sent(W1, "{edge}:80", All)),
        open: true,
        says: &["guard pre", "tcp dport"],
        mend: Back,
        ..ROW
    },
    Row {
        name: "broadcast-address",
        breaks: &[Node("ip addr add 192.0.2.9/24 brd {far} dev eth0")],
        back: &[Node("ip addr del 192.0.2.9/24 dev eth0")],
        asked: &["demo/edge:http"],
        sent: Some(Sent(W1, "{edge}:80", Part)),
        says: &["{far}", "broadcast address"],
        ..ROW
    },
    Row {
        name: "port-qdisc",
        breaks: &[Node(concat!(
            port_of!(),
            "port=$(port_of {near}); echo $port >/run/port; tc qdisc add dev $port root tbf rate 1mbit burst 40 limit 100"
        ))],
        back: &[Node("tc qdisc del dev $(cat /run/port) root")],
        asked: &["demo/edge:http"],
        sent: Some(Sent(W1, "{edge}:80", Part)),
        says: &["tc qdisc", "loses the packets"],
        ..ROW
    },
    // Sources and ports.
    Row {
        name: "snat-one-port",
        breaks: &[Node(
            "iptables -t nat -I POSTROUTING -p tcp -d 10.244.2.0/24 -j SNAT --to-source 10.210.0.16:41000",
        )],
        back: &[Node(
            "iptables -t nat -D POSTROUTING -p tcp -d 10.244.2.0/24 -j SNAT --to-source 10.210.0.16:41000",
        )],
        asked: &["demo/edge:http"],
        sent: Some(Sent(W1, "{edge}:80", Part)),
        open: true,
        says: &["41000"],
        mend: Back,
        ..ROW
    },
    // Routing policy.
    Row {
        name: "rule-of-user",
        breaks: &[Node(
            "ip rule add pref 90 uidrange 0-0 to 10.96.0.0/12 prohibit",
        )],
        back: &[Node("ip rule del pref 90")],
        asked: &["demo/edge:http"],
        sent: Some(Sent(Host("w1"), "{edge}:80", All)),
        open: true,
        says: &["prohibit"],
        ..ROW
    },
    Row {
        name: "rule-of-source-port",
        breaks: &[Node("ip rule add pref 90 ipproto tcp sport 8080 blackhole")],
        back: &[Node("ip rule del pref 90")],
        asked: &["demo/edge:http"],
        sent: Some(Sent(W1, "{edge}:80", Part)),
        says: &["sport 8080"],
        ..ROW
    },
    Row {
        name: "rule-goto",
        breaks: &[Node(
            "ip rule add pref 40000 blackhole; ip rule add pref 90 to 10.244.2.0/24 goto 40000",
        )],
        back: &[Node("ip rule del pref 90; ip rule del pref 40000")],
        asked: &["demo/edge:http"],
        sent: Some(Sent(W1, "{edge}:80", Part)),
        says: &["goto 40000"],
        ..ROW
    },
    Row {
        name: "rule-suppress",
        breaks: &[Node(
            "ip rule add pref 90 lookup main suppress_prefixlength 24; \
             ip rule add pref 91 to 10.244.2.0/24 unreachable",
        )],
        back: &[Node("ip rule del pref 90; ip rule del pref 91")],
        asked: &["demo/edge:http"],
        sent: Some(Sent(W1, "{edge}:80", Part)),
        says: &["unreachable"],
        ..ROW
    },
    Row {
        name: "nexthop-blackhole",
        breaks: &[Node(
            "ip route show 10.244.2.0/24 >/run/route; ip nexthop add id 5 blackhole; ip route replace 10.244.2.0/24 nhid 5",
        )],
        back: &[Node(
            "ip route replace $(cat /run/route); ip nexthop del id 5",
        )],
        asked: &["demo/edge:http"],
        sent: Some(Sent(W1, "{edge}:80", Part)),
        says: &["blackhole"],
        mend: Back,
        ..ROW
    },
    Row {
        name: "gateway-address-gone",
        breaks: &[Node(concat!(
            in_pod!(),
            "ip addr del 10.244.1.1/24 dev cni0; ip route add 10.244.1.0/24 dev cni0; in_pod {client} ip neigh flush all"
        ))],
        back: &[Node(
            "ip route del 10.244.1.0/24 dev cni0; ip addr add 10.244.1.1/24 dev cni0",
        )],
        asked: &["demo/web:http"],
        sent: Some(Sent(W1, "{web}:80", All)),
        says: &["10.244.1.1"],
        mend: Back,
        ..ROW
    },
    Row {
        name: "local-route-harmless",
        breaks: &[Node("ip route add local {edge}/32 dev lo")],
        back: &[Node("ip route del local {edge}/32 dev lo")],
        asked: &["demo/edge:http"],
        sent: Some(Sent(W1, "{edge}:80", Nobody)),
        mend: Back,
        ..ROW
    },
    Row {
        name: "bridge-down-there",
        breaks: &[On("w2", "ip link set cni0 down")],
        back: &[On("w2", "ip link set cni0 up")],
        asked: &["demo/edge:http"],
        over: true,
        sent: Some(Sent(W1, "{edge}:80", Part)),
        says: &["cni0", "down"],
        ..ROW
    },
    Row {
        name: "bridge-deleted",
        breaks: &[Node(concat!(
            "for p in /sys/class/net/cni0/brif/*; do basename $p; done >/run/ports; ",
            "ip -d link show cni0 | grep -o 'address [0-9a-f:]*' | head -n 1 >/run/mac; ip link del cni0"
        ))],
        back: &[Node(concat!(
            "ip link add cni0 type bridge; ip link set cni0 $(cat /run/mac); ip addr add 10.244.1.1/24 dev cni0; ip link set cni0 up; ",
            "for p in $(cat /run/ports); do ip link set $p master cni0; bridge link set dev $p hairpin on; done"
        ))],
        asked: &["demo/edge:http"],
        sent: Some(Sent(W1, "{edge}:80", All)),
        says: &["the bridge of the pods is gone"],
        mend: Back,
        ..ROW
    },
    Row {
        name: "pods-unrouted",
        breaks: &[Node(
            "ip route show dev cni0 proto kernel | head -n 1 >/run/route; ip route del $(cat /run/route) dev cni0",
        )],
        back: &[Node("ip route replace $(cat /run/route) dev cni0")],
        asked: &["demo/edge:http"],
        sent: Some(Sent(W1, "{edge}:80", All)),
        says: &["by its link cni0"],
        mend: Back,
        ..ROW
    },
    // Limits.
    Row {
        name: "hashlimit-harmless",
        breaks: &[Node(
            "iptables -I FORWARD -p tcp -m hashlimit --hashlimit-above 1000/sec --hashlimit-mode srcip --hashlimit-name guard -j DROP",
        )],
        back: &[Node(
            "iptables -D FORWARD -p tcp -m hashlimit --hashlimit-above 1000/sec --hashlimit-mode srcip --hashlimit-name guard -j DROP",
        )],
        asked: &["demo/edge:http"],
        sent: Some(Sent(W1, "{edge}:80", Nobody)),
        mend: Back,
        ..ROW
    },
    Row {
        name: "connlimit-harmless",
        breaks: &[Node(
            "iptables -I FORWARD -p tcp --syn -m connlimit --connlimit-above 500 -j REJECT --reject-with tcp-reset",
        )],
        back: &[Node(
            "iptables -D FORWARD -p tcp --syn -m connlimit --connlimit-above 500 -j REJECT --reject-with tcp-reset",
        )],
        asked: &["demo/edge:http"],
        sent: Some(Sent(W1, "{edge}:80", Nobody)),
        mend: Back,
        ..ROW
    },
    // A set of addresses.
    Row {
        name: "banned-endpoint",
        breaks: &[Node(
            "nft -f - <<'X'\ntable ip guard {\nset blocked { type ipv4_addr; elements = { {near} }; }\n\
             chain toward { type filter hook forward priority 0; ip daddr @blocked drop; }\n}\nX",
        )],
        back: &[Node("nft delete table ip guard")],
        asked: &["demo/edge:http"],
        sent: Some(Sent(W1, "{edge}:80", Part)),
        says: &["delete element ip guard blocked"],
        ..ROW
    },
    // The pod's own way.
    Row {
        name: "pod-by-other-link",
        breaks: &[Node(concat!(
            in_pod!(),
            "in_pod {client} ip route show default | head -n 1 >/run/route; pid_of {client} >/run/pid; ",
            "in_pod {client} ip link add br-x type bridge; in_pod {client} ip addr add 192.168.77.1/24 dev br-x; ",
            "in_pod {client} ip link set br-x up; in_pod {client} ip route replace default dev br-x"
        ))],
        back: &[Node(concat!(
            "nsenter --net=/proc/$(cat /run/pid)/ns/net ip link del br-x; ",
            "nsenter --net=/proc/$(cat /run/pid)/ns/net ip route add $(cat /run/route)"
        ))],
        asked: &["demo/edge:http"],
        sent: Some(Sent(W1, "{edge}:80", All)),
        says: &["leave by br-x"],
        mend: Back,
        ..ROW
    },
    // Rules.
    Row {
        name: "tproxy",
        breaks: &[Node(
            "iptables -t mangle -I PREROUTING -p tcp -d {edge} --dport 80 -j TPROXY --on-ip 127.0.0.1 --on-port 15001",
        )],
        back: &[Node(
            "iptables -t mangle -D PREROUTING -p tcp -d {edge} --dport 80 -j TPROXY --on-ip 127.0.0.1 --on-port 15001",
        )],
        asked: &["demo/edge:http"],
        sent: Some(Sent(W1, "{edge}:80", All)),
        open: true,
        says: &["TPROXY"],
        mend: Back,
        ..ROW
    },
    Row {
        name: "output-dnat",
        breaks: &[Node(
            "iptables -t nat -I OUTPUT -p tcp -d {edge} -j DNAT --to-destination 10.210.0.16:1",
        )],
        back: &[Node(
            "iptables -t nat -D OUTPUT -p tcp -d {edge} -j DNAT --to-destination 10.210.0.16:1",
        )],
        asked: &["demo/edge:http"],
        sent: Some(Sent(Host("w1"), "{edge}:80", All)),
        says: &["OUTPUT"],
        ..ROW
    },
    Row {
        name: "nft-fib-harmless",
        breaks: &[Node(
            "nft -f - <<'X'\ntable inet guard {\nchain p { type filter hook prerouting priority -290; \
             fib saddr . iif oif missing drop; }\n}\nX",
        )],
        back: &[Node("nft delete table inet guard")],
        asked: &["demo/edge:http"],
        sent: Some(Sent(W1, "{edge}:80", Nobody)),
        mend: Back,
        ..ROW
    },
    Row {
        name: "nft-status-harmless",
        breaks: &[Node(
            "nft -f - <<'X'\ntable inet guard {\nchain f { type filter hook forward priority 10; policy drop; \
             ct state established,related accept; ct status dnat accept; }\n}\nX",
        )],
        back: &[Node("nft delete table inet guard")],
        asked: &["demo/edge:http"],
        sent: Some(Sent(W1, "{edge}:80", Nobody)),
        mend: Back,
        ..ROW
    },
    Row {
        name: "nft-count",
        breaks: &[Node(
            "nft -f - <<'X'\ntable ip guard {\nchain f { type filter hook forward priority 5; ip daddr {near} ct count over 0 drop; }\n}\nX",
        )],
        back: &[Node("nft delete table ip guard")],
        asked: &["demo/edge:http"],
        sent: Some(Sent(W1, "{edge}:80", Part)),
        open: true,
        says: &["guard"],
        mend: Back,
        ..ROW
    },
    // Objects that kube-proxy ignores.
    Row {
        name: "slice-headless",
        breaks: &[
            Objects(by_hand!("{port: 80}", "{port: 8080}", "{near}")),
            Kubectl("label endpointslice hand service.kubernetes.io/headless="),
        ],
        back: HAND_AWAY,
        asked: &["demo/hand"],
        sent: Some(Sent(W1, "10.96.77.7:80", All)),
        says: &["service.kubernetes.io/headless"],
        mend: Back,
        ..ROW
    },
    Row {
        name: "service-other-proxy",
        breaks: &[
            Kubectl("label service edge service.kubernetes.io/service-proxy-name=other"),
            Node("sleep 2"),
        ],
        back: &[Kubectl(
            "label service edge service.kubernetes.io/service-proxy-name-",
        )],
        asked: &["demo/edge:http"],
        sent: Some(Sent(W1, "{edge}:80", All)),
        open: true,
        says: &["service-proxy-name"],
        ..ROW
    },
    Row {
        name: "hints-of-zone",
        breaks: &[
            Kubectl("label node w1 topology.kubernetes.io/zone=a"),
            Objects(
                "apiVersion: v1\nkind: Service\nmetadata: {name: hand, namespace: demo}\n\
                 spec: {clusterIP: 10.96.77.7, trafficDistribution: PreferClose, ports: [{port: 80}]}\n---\n\
                 apiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\n\
                 metadata: {name: hand, namespace: demo, labels: {kubernetes.io/service-name: hand}}\n\
                 addressType: IPv4\nports: [{port: 8080}]\nendpoints: [\
                 {addresses: [{near}], conditions: {ready: true}, hints: {forZones: [{name: b}]}},\
                 {addresses: [10.244.1.250], conditions: {ready: true}, hints: {forZones: [{name: a}]}}]\n",
            ),
        ],
        back: &[
            Kubectl("delete service/hand endpointslice/hand --ignore-not-found"),
            Kubectl("label node w1 topology.kubernetes.io/zone-"),
        ],
        asked: &["demo/hand"],
        sent: Some(Sent(W1, "10.96.77.7:80", All)),
        says: &["10.244.1.250"],
        mend: Back,
        ..ROW
    },
    Row {
        name: "terminating-harmless",
        breaks: &[Objects(
            "apiVersion: v1\nkind: Service\nmetadata: {name: hand, namespace: demo}\n\
             spec: {clusterIP: 10.96.77.7, ports: [{port: 80}]}\n---\n\
             apiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\n\
             metadata: {name: hand, namespace: demo, labels: {kubernetes.io/service-name: hand}}\n\
             addressType: IPv4\nports: [{port: 8080}]\nendpoints: [\
             {addresses: [{near}], conditions: {ready: false, serving: true, terminating: true}},\
             {addresses: [10.244.1.250], conditions: {ready: false, serving: false, terminating: true}}]\n",
        )],
        back: HAND_AWAY,
        asked: &["demo/hand"],
        sent: Some(Sent(W1, "10.96.77.7:80", Nobody)),
        mend: Back,
        ..ROW
    },
];
