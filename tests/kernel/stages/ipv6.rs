//! Faults that IPv6 has of its own, and next hops that nothing knows.

use kpx_judge::verdict::{Client, Fate};
use kpx_node::backend::Mode;
use kpx_node::net::Family;

use super::inside::Inside;
use super::network::{FAR, NEAR, Network, fate};

/// Faults, as of IPv4, and whether connections to the near endpoint still work from the pod, and from the host.
const FAULTS: &[(&str, [bool; 2])] = &[
    // Messages of neighbour discovery ask for policies of IPsec, and pass the rules.
    (
        "ip xfrm policy add dir in src 10.0.0.0/8 dst 0.0.0.0/0 action block",
        [false, false],
    ),
    (
        "ip xfrm policy add dir out src 0.0.0.0/0 dst 10.244.1.0/24 action block",
        [false, false],
    ),
    (
        "ip6tables -t mangle -I INPUT -p icmpv6 -j HL --hl-set 64",
        [false, false],
    ),
    // The answer to the client's question goes by its entry.
    (
        "ip neigh replace 10.244.1.5 lladdr 02:00:00:00:00:99 dev cni0 nud permanent",
        [false, true],
    ),
    // There is no rule 32767: the rule decides nothing.
    (
        "ip rule add ipproto tcp dport 8080 priority 100 goto 32767",
        [true, true],
    ),
    // The node's own packets ask the rule, and no replies.
    (
        "ip route add 10.0.0.0/8 dev eth0 table 100; ip rule add iif lo priority 5 lookup 100",
        [true, false],
    ),
    // The kernel filters no sources; the bridge carries the replies.
    (
        "ip link add link eth0 name mac7 type macvlan mode bridge; ip link set mac7 up; ip addr add 10.244.1.5/32 dev mac7",
        [true, true],
    ),
];

#[tokio::test]
#[ignore = "needs root, for network namespaces"]
async fn neighbour_discovery_and_rules_of_ipv6_decide() {
    for (fault, works) in FAULTS {
        let mut network = Network::of(Mode::Iptables, Family::V6);
        network.reads_pods = true;
        let _inside = [&network.client, &network.near].map(Inside::new);
        network.shell(&network.words(fault));
        let answer = network.why(NEAR).await;
        for (client, works) in [Client::Pod, Client::Host].into_iter().zip(works) {
            let fate = fate(&answer, client);
            let said = (fate == Fate::Works, network.answers(client, NEAR));
            assert_eq!(
                said,
                (*works, *works),
                "{fault}: {client:?}: {}",
                answer.sentence
            );
        }
    }
}

#[tokio::test]
#[ignore = "needs root, for network namespaces"]
async fn a_next_hop_that_nothing_knows_is_unknown() {
    for fault in [
        "ip route replace 10.244.2.0/24 via 10.0.2.99",
        "ip route replace 10.244.2.0/24 via 10.244.1.6",
        "ip route replace 10.244.2.0/24 dev eth1",
        "ip route replace 10.244.2.0/24 nexthop via 10.0.2.16 nexthop via 10.0.2.99",
    ] {
        for family in Family::BOTH {
            let network = Network::of(Mode::Iptables, family);
            network.agree("before").await;
            network.shell(&network.words(fault));
            let answer = network.why(FAR).await;
            let fate = fate(&answer, Client::Pod);
            assert_eq!(
                fate,
                Fate::Unknown,
                "{fault} ({family}): {}",
                answer.sentence
            );
            let is_named = answer.sentence.contains("the route");
            assert!(is_named, "{fault} ({family}): {}", answer.sentence);
        }
    }
}
