//! More faults: of links, of pods, of routes, and conditions of rules that packets after the first meet.

use crate::row::Act::{Kubectl, Node, Objects};
use crate::row::From::{Host, Pod};
use crate::row::Lost::{All, Nobody, Some as Part};
use crate::row::Mend::Back;
use crate::row::{ROW, Row, Sent};

const W1: crate::row::From = Pod("w1");

/// A rule of iptables at the head of FORWARD, until `-D` takes it away.
macro_rules! forward {
    ($name:literal, $rule:literal, $lost:expr, $says:expr) => {
        Row {
            name: $name,
            breaks: &[Node(concat!("iptables -I FORWARD ", $rule))],
            back: &[Node(concat!("iptables -D FORWARD ", $rule))],
            asked: &["demo/edge:http"],
            sent: Some(Sent(W1, "{edge}:80", $lost)),
            says: $says,
            ..ROW
        }
    };
    (open $name:literal, $rule:literal, $lost:expr, $says:expr) => {
        Row {
            open: true,
            mend: Back,
            ..forward!($name, $rule, $lost, $says)
        }
    };
}

/// A rule of nft in a forward chain of its own.
macro_rules! nft_forward {
    ($name:literal, $rules:literal, $lost:expr, $says:expr) => {
        Row {
            name: $name,
            breaks: &[Node(concat!(
                "nft -f - <<'X'\ntable ip guard {\n",
                $rules,
                "\n}\nX"
            ))],
            back: &[Node("nft delete table ip guard")],
            asked: &["demo/edge:http"],
            sent: Some(Sent(W1, "{edge}:80", $lost)),
            says: $says,
            ..ROW
        }
    };
    (open $name:literal, $rules:literal, $lost:expr, $says:expr) => {
        Row {
            open: true,
            mend: Back,
            ..nft_forward!($name, $rules, $lost, $says)
        }
    };
}

/// A command in the network of a pod, and the one that takes it back.
macro_rules! inside {
    ($name:literal, $pod:literal, $breaks:literal, $back:literal, $asked:literal, $to:literal, $lost:expr, $says:expr) => {
        Row {
            name: $name,
            breaks: &[Node(concat!(in_pod!(), "in_pod ", $pod, " ", $breaks))],
            back: &[Node(concat!(in_pod!(), "in_pod ", $pod, " ", $back))],
            asked: &[$asked],
            sent: Some(Sent(W1, $to, $lost)),
            says: $says,
            mend: Back,
            ..ROW
        }
    };
}

pub(crate) const MORE: &[Row] = &[
    // Links.
    Row {
        name: "fdb-static",
        breaks: &[Node(concat!(
            port_of!(),
            "port_of {client} >/run/other; \
             in_pod {near} ip -o link show eth0 | sed -n 's/.*link.ether \\([^ ]*\\).*/\\1/p' >/run/mac; \
             bridge fdb replace $(cat /run/mac) dev $(cat /run/other) master static"
        ))],
        back: &[Node(
            "bridge fdb del $(cat /run/mac) dev $(cat /run/other) master static",
        )],
        asked: &["demo/edge:http"],
        sent: Some(Sent(W1, "{edge}:80", Part)),
        says: &["{near}"],
        mend: Back,
        ..ROW
    },
    Row {
        name: "arp-ignore",
        breaks: &[Node(concat!(
            in_pod!(),
            "sysctl -w net.ipv4.conf.cni0.arp_ignore=8; in_pod {client} ip neigh flush all"
        ))],
        back: &[Node("sysctl -w net.ipv4.conf.cni0.arp_ignore=0")],
        asked: &["demo/web:http"],
        sent: Some(Sent(W1, "{web}:80", All)),
        says: &["arp_ignore"],
        ..ROW
    },
    Row {
        name: "nft-arp",
        breaks: &[Node(concat!(
            in_pod!(),
            "nft add table arp guard && \
             nft 'add chain arp guard in { type filter hook input priority 0; }' && \
             nft add rule arp guard in iifname cni0 drop && in_pod {client} ip neigh flush all"
        ))],
        back: &[Node("nft delete table arp guard")],
        asked: &["demo/web:http"],
        sent: Some(Sent(W1, "{web}:80", All)),
        says: &["arp guard"],
        ..ROW
    },
    Row {
        name: "bridge-noarp",
        breaks: &[Node(concat!(
            in_pod!(),
            "ip link set cni0 arp off; ip neigh flush dev cni0; in_pod {client} ip neigh flush all"
        ))],
        back: &[Node("ip link set cni0 arp on")],
        asked: &["demo/web:http"],
        sent: Some(Sent(W1, "{web}:80", All)),
        says: &["cni0", "ARP"],
        ..ROW
    },
    // Inside the client's and the endpoint's pod.
    inside!(
        "client-gateway-mac-harmless",
        "{client}",
        "sh -c \"ip neigh replace $(ip -4 -o addr show cni0 | sed 's/.*inet \\([0-9.]*\\).*/\\1/') lladdr 02:00:00:00:00:97 dev eth0 nud permanent\"",
        "ip neigh flush dev eth0 nud permanent",
        "demo/web:http",
        "{web}:80",
        Nobody,
        &[]
    ),
    inside!(
        "client-gateway-wrong",
        "{client}",
        "sh -c 'ip route show default >/run/route; ip route replace default via 10.244.1.250 onlink dev eth0'",
        "sh -c 'ip route replace $(cat /run/route)'",
        "demo/web:http",
        "{web}:80",
        All,
        &["{client}", "10.244.1.250"]
    ),
    inside!(
        "client-ttl",
        "{client}",
        "sysctl -w net.ipv4.ip_default_ttl=1",
        "sysctl -w net.ipv4.ip_default_ttl=64",
        "demo/edge:http",
        "{edge}:80",
        Part,
        &["ip_default_ttl"]
    ),
    inside!(
        "reply-ttl-harmless",
        "{near}",
        "sysctl -w net.ipv4.ip_default_ttl=1",
        "sysctl -w net.ipv4.ip_default_ttl=64",
        "demo/edge:http",
        "{edge}:80",
        Nobody,
        &[]
    ),
    Row {
        name: "loopback-listener",
        breaks: &[
            Objects(by_hand!(
                "{name: http, port: 80}",
                "{name: http, port: 10249}",
                "{w1}"
            )),
            Node("sleep 2"),
        ],
        back: &[Kubectl(
            "delete service/hand endpointslice/hand --ignore-not-found",
        )],
        asked: &["demo/hand"],
        sent: Some(Sent(W1, "10.96.77.7:80", All)),
        says: &["10249"],
        mend: Back,
        ..ROW
    },
    Row {
        name: "external-endpoint",
        breaks: &[
            Objects(by_hand!(
                "{name: http, port: 80}",
                "{name: http, port: 10249}",
                "10.210.0.2"
            )),
            Node("sleep 2"),
        ],
        back: &[Kubectl(
            "delete service/hand endpointslice/hand --ignore-not-found",
        )],
        asked: &["demo/hand"],
        sent: Some(Sent(W1, "10.96.77.7:80", All)),
        says: &["10.210.0.2:10249", "outside of the cluster"],
        open: true,
        mend: Back,
        ..ROW
    },
    // Routes.
    Row {
        name: "throw-route",
        breaks: &[Node(
            "ip route show match {far} | grep -v default | head -n 1 >/run/route; ip route del $(cat /run/route); \
             ip route add throw $(cut -d' ' -f1 /run/route)",
        )],
        back: &[Node(
            "ip route del throw $(cut -d' ' -f1 /run/route); ip route add $(cat /run/route)",
        )],
        asked: &["demo/edge:http"],
        sent: Some(Sent(W1, "{edge}:80", Part)),
        says: &["{far}"],
        mend: Back,
        ..ROW
    },
    Row {
        name: "multipath-dead",
        breaks: &[Node(
            "ip route show match {far} | grep -v default | head -n 1 >/run/route; \
             ip route replace $(cut -d' ' -f1 /run/route) nexthop via {w2} weight 1 nexthop via 10.210.0.222 weight 255",
        )],
        back: &[Node("ip route replace $(cat /run/route)")],
        asked: &["demo/edge:http"],
        sent: Some(Sent(W1, "{edge}:80", Part)),
        says: &["10.210.0.222"],
        mend: Back,
        ..ROW
    },
    Row {
        name: "vpn-takes-pods",
        breaks: &[Node(
            "ip tuntap add dev vpn0 mode tun && ip addr add 100.101.22.7/32 dev vpn0 && ip link set vpn0 up && \
             ip route add default dev vpn0 table 52 && ip route add throw 10.210.0.0/24 table 52 && ip rule add priority 5270 lookup 52",
        )],
        back: &[Node(
            "ip rule del priority 5270; while ip rule del priority 5269; do :; done; ip link del vpn0; ip route flush table 52",
        )],
        asked: &["demo/edge:http"],
        sent: Some(Sent(W1, "{edge}:80", All)),
        says: &["vpn0"],
        ..ROW
    },
    Row {
        name: "route-source-harmless",
        breaks: &[Node(
            "ip link add void type veth peer name devoid && ip addr add 192.0.2.9/32 dev void && ip link set void up; \
             ip route show match {far} | grep -v default | head -n 1 >/run/route; \
             ip route replace $(cat /run/route) src 192.0.2.9",
        )],
        back: &[Node("ip route replace $(cat /run/route); ip link del void")],
        asked: &["demo/edge:http"],
        sent: Some(Sent(Host("w1"), "{edge}:80", Nobody)),
        mend: Back,
        ..ROW
    },
    Row {
        name: "pod-route",
        breaks: &[Node("ip route add {near}/32 via {w2}")],
        back: &[Node("ip route del {near}/32")],
        asked: &["demo/edge:http"],
        sent: Some(Sent(W1, "{edge}:80", Part)),
        says: &["{near}"],
        ..ROW
    },
    Row {
        name: "host-ttl",
        breaks: &[Node("sysctl -w net.ipv4.ip_default_ttl=1")],
        back: &[Node("sysctl -w net.ipv4.ip_default_ttl=64")],
        asked: &["demo/edge:http"],
        sent: Some(Sent(Host("w1"), "{edge}:80", Part)),
        says: &["ip_default_ttl"],
        ..ROW
    },
    // Conditions of rules.
    forward!(
        "nth",
        "-d {near} -m statistic --mode nth --every 2 --packet 0 -j DROP",
        Part,
        &["FORWARD"]
    ),
    forward!(
        open "time",
        "-d {near} -m time --timestart 00:00 --timestop 23:59:59 -j DROP",
        Part,
        &["FORWARD"]
    ),
    forward!(
        open "nfqueue",
        "-d {near} -j NFQUEUE --queue-num 7",
        Part,
        &["queued by rule 1"]
    ),
    forward!(
        open "nfqueue-bypass-harmless",
        "-d {near} -j NFQUEUE --queue-num 7 --queue-bypass",
        Nobody,
        &[]
    ),
    forward!(
        open "connlimit",
        "-d {near} -p tcp -m connlimit --connlimit-above 0 -j REJECT",
        Part,
        &["connlimit"]
    ),
    forward!(
        open "length",
        "-d {near} -m length --length 40:64 -j DROP",
        Part,
        &["length"]
    ),
    forward!(
        "established",
        "-d {near} -m conntrack --ctstate ESTABLISHED -j DROP",
        Part,
        &["FORWARD"]
    ),
    forward!(
        "psh",
        "-d {near} -p tcp --tcp-flags PSH,ACK PSH,ACK -j DROP",
        Part,
        &["FORWARD"]
    ),
    forward!(
        open "string",
        "-d {near} -p tcp -m string --string GET --algo bm -j DROP",
        Part,
        &["string"]
    ),
    forward!(
        "reply-data",
        "-s {near} -p tcp --tcp-flags SYN,ACK ACK -j DROP",
        Part,
        &["FORWARD"]
    ),
    forward!(
        open "mss-harmless",
        "-p tcp --tcp-flags SYN,RST SYN -j TCPMSS --set-mss 500",
        Nobody,
        &[]
    ),
    Row {
        name: "owner-host",
        breaks: &[Node(
            "iptables -I OUTPUT -d {edge} -m owner --uid-owner 0 -j REJECT",
        )],
        back: &[Node(
            "iptables -D OUTPUT -d {edge} -m owner --uid-owner 0 -j REJECT",
        )],
        asked: &["demo/edge:http"],
        sent: Some(Sent(Host("w1"), "{edge}:80", Nobody)),
        mend: Back,
        ..ROW
    },
    Row {
        name: "owner-host-endpoint",
        breaks: &[Node(
            "iptables -I OUTPUT -d {near} -m owner --uid-owner 0 -j REJECT",
        )],
        back: &[Node(
            "iptables -D OUTPUT -d {near} -m owner --uid-owner 0 -j REJECT",
        )],
        asked: &["demo/edge:http"],
        sent: Some(Sent(Host("w1"), "{edge}:80", Part)),
        says: &["--uid-owner"],
        open: true,
        mend: Back,
        ..ROW
    },
    Row {
        name: "ipset",
        breaks: &[Node(
            "ipset create blocked hash:ip timeout 600 && ipset add blocked {near} && \
             iptables -I FORWARD -m set --match-set blocked dst -j DROP",
        )],
        back: &[Node(
            "iptables -D FORWARD -m set --match-set blocked dst -j DROP; ipset destroy blocked",
        )],
        asked: &["demo/edge:http"],
        sent: Some(Sent(W1, "{edge}:80", Part)),
        says: &["blocked"],
        ..ROW
    },
    nft_forward!(
        "nft-vmap",
        "chain f { type filter hook forward priority 5; ip daddr vmap { {near} : drop }; }",
        Part,
        &["guard"]
    ),
    nft_forward!(
        open "nft-limit",
        "chain f { type filter hook forward priority 5; ip daddr {near} limit rate over 1/hour burst 1 packets drop; }",
        Part,
        &["guard"]
    ),
    nft_forward!(
        open "nft-quota",
        "chain f { type filter hook forward priority 5; ip daddr {near} quota over 1 bytes drop; }",
        Part,
        &["guard"]
    ),
    nft_forward!(
        open "nft-maxseg",
        "chain f { type filter hook forward priority 5; ip daddr {near} tcp option maxseg size > 500 drop; }",
        Part,
        &["guard"]
    ),
    nft_forward!(
        "nft-established",
        "chain f { type filter hook forward priority 5; policy drop; ip daddr != {near} accept; ct state new accept; }",
        Part,
        &["guard"]
    ),
    nft_forward!(
        "nft-timeout-set",
        "set s { type ipv4_addr; flags timeout; elements = { {near} timeout 1h } }\nchain f { type filter hook forward priority 5; ip daddr @s drop; }",
        Part,
        &["guard"]
    ),
    // Objects and kube-proxy.
    Row {
        name: "policy-harmless",
        breaks: &[Objects(
            "apiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {name: none, namespace: demo}\n\
             spec: {podSelector: {}, policyTypes: [Ingress]}\n",
        )],
        back: &[Kubectl("delete networkpolicy none")],
        asked: &["demo/edge:http"],
        sent: Some(Sent(W1, "{edge}:80", Nobody)),
        mend: Back,
        ..ROW
    },
    Row {
        name: "proxy-stopped",
        breaks: &[
            Node("pkill -STOP -x kube-proxy"),
            Kubectl("delete pod -l app=api --grace-period=1"),
            Kubectl("rollout status deployment/api --timeout=60s"),
            Node("sleep 14"),
        ],
        back: &[Node("pkill -CONT -x kube-proxy; sleep 3")],
        asked: &["demo/api:http"],
        sent: Some(Sent(W1, "{api}:80", All)),
        says: &["kube-proxy"],
        mend: Back,
        ..ROW
    },
];
