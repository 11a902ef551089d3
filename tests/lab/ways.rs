//! Faults of a third node on the way, of routes that hide others, of limits, of lists of those who may pass, and of selectors.

use crate::row::Act::{Kubectl, Node, On};
use crate::row::From::{Host, Pod};
use crate::row::Lost::{All, Nobody, Some as Part};
use crate::row::Mend::Back;
use crate::row::{ROW, Row, Sent};

const W1: crate::row::From = Pod("w1");

/// Keeps the route to the pods of a node, and changes it to lead by another one.
macro_rules! by_third {
    ($node:literal, $pod:literal) => {
        On(
            $node,
            concat!(
                "ip route show match ",
                $pod,
                " | grep -v default | head -n 1 >/run/route; \
                 ip route replace $(cut -d' ' -f1 /run/route) via {cp1}"
            ),
        )
    };
}

/// A limit on new connections in a chain of its own, before everything else in FORWARD.
macro_rules! limit {
    ($name:literal, $limit:literal, $lost:expr, $says:expr) => {
        Row {
            name: $name,
            breaks: &[Node(concat!(
                "iptables -N flood && iptables -A flood ",
                $limit,
                " -j RETURN && iptables -A flood -j DROP && iptables -I FORWARD -p tcp --syn -j flood"
            ))],
            back: &[Node(
                "iptables -D FORWARD -p tcp --syn -j flood; iptables -F flood; iptables -X flood",
            )],
            asked: &["demo/edge:http"],
            sent: Some(Sent(W1, "{edge}:80", $lost)),
            says: $says,
            ..ROW
        }
    };
}

pub(crate) const WAYS: &[Row] = &[
    // A node that sees one direction alone.
    Row {
        name: "third-node",
        mode: Some("iptables"),
        breaks: &[by_third!("w1", "{far}")],
        back: &[Node("ip route replace $(cat /run/route)")],
        asked: &["demo/edge:http"],
        sent: Some(Sent(W1, "{edge}:80", Part)),
        says: &["{cp1}"],
        open: true,
        ..ROW
    },
    Row {
        name: "third-node-replies",
        mode: Some("iptables"),
        breaks: &[by_third!("w2", "{client}")],
        back: &[On("w2", "ip route replace $(cat /run/route)")],
        asked: &["demo/edge:http"],
        over: true,
        sent: Some(Sent(W1, "{edge}:80", Part)),
        says: &["{cp1}"],
        open: true,
        mend: Back,
        ..ROW
    },
    Row {
        name: "third-node-outside",
        mode: Some("iptables"),
        breaks: &[Node("ip route add {w2}/32 via {cp1}")],
        back: &[Node("ip route del {w2}/32 via {cp1}")],
        asked: &["nodeport:30080", "--source", "{w2}"],
        sent: Some(Sent(Host("w2"), "{w1}:30080", All)),
        says: &["{cp1}"],
        ..ROW
    },
    // A route that hides the one of the network plugin.
    Row {
        name: "hidden-route",
        breaks: &[Node("ip route add {far}/32 via 10.210.0.222")],
        back: &[Node("ip route del {far}/32")],
        asked: &["demo/edge:http"],
        sent: Some(Sent(W1, "{edge}:80", Part)),
        says: &["{far}", "hides"],
        ..ROW
    },
    // The client's port of the bridge.
    Row {
        name: "client-port-without-bridge",
        breaks: &[Node(concat!(
            port_of!(),
            "port_of {client} >/run/port; ip link set $(cat /run/port) nomaster"
        ))],
        back: &[Node("ip link set $(cat /run/port) master cni0")],
        asked: &["demo/web:http"],
        sent: Some(Sent(W1, "{web}:80", All)),
        says: &["{client}"],
        mend: Back,
        ..ROW
    },
    Row {
        name: "client-port-down",
        breaks: &[Node(concat!(
            port_of!(),
            "port_of {client} >/run/port; ip link set $(cat /run/port) down"
        ))],
        back: &[Node("ip link set $(cat /run/port) up")],
        asked: &["demo/web:http"],
        sent: Some(Sent(W1, "{web}:80", All)),
        says: &["{client}"],
        ..ROW
    },
    // Limits.
    limit!(
        "syn-limit",
        "-m limit --limit 1/s --limit-burst 3",
        Part,
        &["flood", "limit"]
    ),
    Row {
        mend: Back,
        ..limit!(
            "syn-limit-harmless",
            "-m limit --limit 5000/s --limit-burst 5000",
            Nobody,
            &[]
        )
    },
    limit!(
        "source-limit",
        "-m hashlimit --hashlimit-upto 1/sec --hashlimit-burst 3 --hashlimit-mode srcip --hashlimit-name one",
        Part,
        &["flood", "hashlimit"]
    ),
    // Lists of those who may pass.
    Row {
        name: "list-of-link",
        breaks: &[Node(
            "iptables -N list && iptables -A list -i eth0 -p tcp --dport 22 -j ACCEPT && \
             iptables -A list -i eth0 -j DROP && iptables -I FORWARD -j list",
        )],
        back: &[Node(
            "iptables -D FORWARD -j list; iptables -F list; iptables -X list",
        )],
        asked: &["demo/edge:http"],
        sent: Some(Sent(W1, "{edge}:80", Part)),
        says: &["rule 2 of chain list"],
        ..ROW
    },
    Row {
        name: "list-in-pod",
        breaks: &[Node(concat!(
            in_pod!(),
            "in_pod {near} iptables -A INPUT -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT && \
             in_pod {near} iptables -A INPUT -p tcp --dport 22 -j ACCEPT && in_pod {near} iptables -P INPUT DROP"
        ))],
        back: &[Node(concat!(
            in_pod!(),
            "in_pod {near} iptables -P INPUT ACCEPT; in_pod {near} iptables -F INPUT"
        ))],
        asked: &["demo/edge:http"],
        sent: Some(Sent(W1, "{edge}:80", Part)),
        says: &["{near}", "INPUT"],
        ..ROW
    },
    // Pods of another workload.
    Row {
        name: "selector-of-two",
        breaks: &[
            Kubectl("label pods -l 'app in (edge, client)' tier=x"),
            Kubectl(
                "patch service edge -p '{\"spec\":{\"selector\":{\"app\":null,\"tier\":\"x\"}}}'",
            ),
            Node("sleep 3"),
        ],
        back: &[
            Kubectl(
                "patch service edge -p '{\"spec\":{\"selector\":{\"app\":\"edge\",\"tier\":null}}}'",
            ),
            Kubectl("label pods -l 'app in (edge, client)' tier-"),
            Node("sleep 3"),
        ],
        asked: &["demo/edge:http"],
        sent: Some(Sent(W1, "{edge}:80", Part)),
        says: &["selector", "DaemonSet client"],
        mend: Back,
        ..ROW
    },
];
