//! The namespaces: a node between its pods and what is outside.

use crate::kernel::netns::Netns;

/// The namespaces. A pod of another node is outside.
pub(crate) struct Network {
    pub(crate) node: Netns,
    /// The node's pods that are backends.
    pub(super) pods: Netns,
    /// One that is a client.
    pub(super) client: Netns,
    pub(crate) outside: Netns,
}

impl Network {
    pub(super) fn new() -> Self {
        let [node, pods, client, outside] = [(); 4].map(|()| Netns::new());
        for netns in [&node, &pods, &client, &outside] {
            netns.feed("sysctl -q -p -", SETTINGS);
        }
        for (link, netns, commands) in [
            ("pods0", &pods, POD),
            ("client0", &client, CLIENT),
            ("eth0", &outside, OUTSIDE),
        ] {
            let name = netns.options().netns.unwrap();
            node.run(&format!(
                "ip link add {link} type veth peer name up0 netns {name}"
            ));
            netns.feed("ip -batch -", commands);
        }
        node.feed("ip -batch -", NODE);
        node.feed("nft -f -", CNI);
        node.feed("sysctl -q -p -", NODE_SETTINGS);
        Self {
            node,
            pods,
            client,
            outside,
        }
    }
}

/// Gives the pods of a namespace their addresses; routes to them lead there already.
pub(super) fn add_pods(netns: &Netns, link: &str, addresses: &[&str]) {
    let lines = addresses.iter().map(|address| {
        let nodad = if address.contains(':') { " nodad" } else { "" };
        format!("addr add {address} dev {link}{nodad}\n")
    });
    netns.feed("ip -batch -", &lines.collect::<Vec<_>>().concat());
}

const SETTINGS: &str = "\
net.ipv6.conf.default.accept_dad = 0
net.ipv6.conf.all.accept_dad = 0
net.ipv6.conf.default.accept_ra = 0
net.ipv4.conf.all.rp_filter = 0
net.ipv4.conf.default.rp_filter = 0
";

/// Connections that are over are forgotten soon: there are many.
const NODE_SETTINGS: &str = "\
net.ipv4.ip_forward = 1
net.ipv6.conf.all.forwarding = 1
net.netfilter.nf_conntrack_tcp_timeout_close = 2
net.netfilter.nf_conntrack_udp_timeout = 5
";

/// A rule of every CNI: pods leave the cluster under the node's address. Without a rule like this, the kernel stops to
/// translate established connections of IPv6 when kube-proxy's own rules go: nothing else there asks for tracking.
const CNI: &str = "
table inet cni {
    chain postrouting {
        type nat hook postrouting priority 110
        ip saddr 10.244.0.0/16 ip daddr != { 10.244.0.0/16, 10.0.2.0/24 } masquerade
        ip6 saddr fd00:10:244::/48 ip6 daddr != { fd00:10:244::/48, fd00:10:0:2::/64 } masquerade
    }
}";

const NODE: &str = "\
link set pods0 up
link set client0 up
link set eth0 up
addr add 10.0.2.15/24 dev eth0
addr add 10.244.1.1/25 dev pods0
addr add 10.244.1.129/25 dev client0
route add default via 10.0.2.2
route add 10.244.2.0/24 via 10.0.2.2
addr add fd00:10:0:2::15/64 dev eth0 nodad
addr add fd00:10:244:1::1/80 dev pods0 nodad
addr add fd00:10:244:1:ffff::1/80 dev client0 nodad
route add default via fd00:10:0:2::2
route add fd00:10:244:2::/64 via fd00:10:0:2::2
";

const POD: &str = "\
link set up0 up
addr add 10.244.1.21/25 dev up0
addr add 10.244.1.22/25 dev up0
route add default via 10.244.1.1
addr add fd00:10:244:1::21/80 dev up0 nodad
addr add fd00:10:244:1::22/80 dev up0 nodad
route add default via fd00:10:244:1::1
";

const CLIENT: &str = "\
link set up0 up
addr add 10.244.1.200/25 dev up0
route add default via 10.244.1.129
addr add fd00:10:244:1:ffff::200/80 dev up0 nodad
route add default via fd00:10:244:1:ffff::1
";

const OUTSIDE: &str = "\
link set up0 up
addr add 10.0.2.2/24 dev up0
addr add 10.244.2.21/32 dev lo
route add default via 10.0.2.15
addr add fd00:10:0:2::2/64 dev up0 nodad
addr add fd00:10:244:2::21/128 dev lo nodad
route add default via fd00:10:0:2::15
";
