//! Faults of the nftables mode.

use super::{Fault, Node, some, through};

/// Checks that fail on the recorded cluster and its configuration.
const HEALTHY: &[&str] = &[
    "AP01", "AP04", "AP06", "AP07", "DP08", "KP09", "KP12", "KP21",
];

const FAULTS: &[Fault] = &[
    Fault {
        name: "a table of others drops a Service's packets before translation",
        broken_by: "nft add table ip corp; nft add chain ip corp first '{ type filter hook prerouting priority -300; }'
                    nft add rule ip corp first ip daddr 10.97.54.248 drop",
        id: "IR16",
        also: &[],
        undone_by: "",
    },
    Fault {
        name: "iptables drops what is forwarded to an endpoint",
        broken_by: "iptables-nft -I FORWARD -d 10.244.1.16/32 -j DROP",
        id: "IR16",
        also: &[],
        undone_by: "",
    },
    Fault {
        name: "the element of a Service is gone",
        broken_by: "nft delete element ip kube-proxy service-ips '{ 10.97.54.248 . tcp . 80 }'",
        id: "NF02",
        also: &[],
        undone_by: "tables",
    },
    Fault {
        name: "an element leads to a Service that is not there",
        broken_by: "nft add element ip kube-proxy service-ips '{ 10.100.99.99 . tcp . 80 : goto service-O4TPQO6D-default/nginx-svc/tcp/ }'",
        id: "NF02",
        also: &[],
        undone_by: "tables",
    },
    Fault {
        name: "an element leads to another Service",
        broken_by: "nft delete element ip kube-proxy service-ips '{ 10.97.54.248 . tcp . 80 }'
                    nft add element ip kube-proxy service-ips '{ 10.97.54.248 . tcp . 80 : goto service-ME6DTSPU-edge/np-local/tcp/http }'",
        id: "NF02",
        also: &[],
        undone_by: "tables",
    },
    Fault {
        name: "the element of a NodePort is gone",
        broken_by: "nft delete element ip kube-proxy service-nodeports '{ tcp . 31082 }'",
        id: "NF02",
        also: &[],
        undone_by: "tables",
    },
    Fault {
        name: "a Service address is not known as one",
        broken_by: "nft delete element ip kube-proxy cluster-ips '{ 10.97.54.248 }'",
        id: "NF02",
        also: &[],
        undone_by: "tables",
    },
    Fault {
        name: "the source range of a Service is not held",
        broken_by: "nft flush chain ip kube-proxy firewall-ECWQDEPV-edge/web-restricted/tcp/https",
        id: "NF02",
        also: &[],
        undone_by: "tables",
    },
    Fault {
        name: "the chain of a Service is empty",
        broken_by: "nft flush chain ip kube-proxy service-O4TPQO6D-default/nginx-svc/tcp/",
        id: "NF02",
        also: &[],
        undone_by: "tables",
    },
    Fault {
        name: "an endpoint gets no share of the connections",
        broken_by: "chain=service-O4TPQO6D-default/nginx-svc/tcp/
                    rule=$(nft -a list chain ip kube-proxy $chain | grep numgen)
                    new=$(sed -E 's/ # handle.*//; s/mod 3/mod 2/; s/, 2 : [0-9.]+ . 80 / /' <<<$rule)
                    nft replace rule ip kube-proxy $chain handle ${rule##* } $new",
        id: "NF03",
        also: &[],
        undone_by: "tables",
    },
    Fault {
        name: "the chain of an endpoint is empty",
        broken_by: "nft flush chain ip kube-proxy endpoint-EBQUYVBC-shop/cart/tcp/http__10.244.1.30/8080",
        id: "NF03",
        also: &[],
        undone_by: "tables",
    },
    Fault {
        name: "a Service without endpoints is not rejected",
        broken_by: "nft delete element ip kube-proxy no-endpoint-services '{ 10.100.1.2 . tcp . 80 }'",
        id: "NF04",
        also: &[],
        undone_by: "tables",
    },
    Fault {
        name: "a Service with endpoints is rejected",
        broken_by: "nft add element ip kube-proxy no-endpoint-services '{ 10.97.54.248 . tcp . 80 : goto reject-chain }'",
        id: "NF04",
        also: &[],
        undone_by: "tables",
    },
    Fault {
        name: "no Service is looked up",
        broken_by: "nft flush chain ip kube-proxy services",
        id: "NF01",
        also: &["AP12"],
        undone_by: "tables",
    },
    Fault {
        name: "a hook is gone",
        broken_by: "nft flush chain ip kube-proxy nat-prerouting; nft delete chain ip kube-proxy nat-prerouting",
        id: "NF01",
        also: &[],
        undone_by: "tables",
    },
    Fault {
        name: "nothing is masqueraded",
        broken_by: "nft flush chain ip kube-proxy masquerading",
        id: "NF01",
        also: &[],
        undone_by: "tables",
    },
    Fault {
        name: "the table is gone",
        broken_by: "nft delete table ip kube-proxy",
        id: "KP01",
        also: &["AP12"],
        undone_by: "tables",
    },
    Fault {
        name: "a bridge whose keeper is gone",
        broken_by: "for family in ip ip6; do
                        nft add table $family kpx-bridge
                        nft add set $family kpx-bridge alive '{ type inet_proto; flags timeout; elements = { tcp timeout 1s }; }'
                    done
                    while nft list set ip6 kpx-bridge alive | grep expires >/dev/null; do sleep 0.1; done",
        id: "MX09",
        also: &[],
        undone_by: "",
    },
    Fault {
        name: "a route of the bridge is left",
        broken_by: "ip route prepend local 10.97.54.248 dev eth0 table local proto 107 scope host src 10.0.2.15",
        id: "MX09",
        also: &[],
        undone_by: "",
    },
    Fault {
        name: "what the iptables mode left behind",
        broken_by: "R=${R%nftables}iptables; rules",
        id: "MX01",
        also: &[],
        undone_by: "tables",
    },
];

fn node() -> Node {
    let tables = "sysctl -qw net.ipv4.conf.all.route_localnet=0; tables";
    Node::new("full-nftables", tables)
}

#[test]
#[ignore = "needs root and a network namespace"]
fn some_faults_of_the_nftables_mode_are_found_until_they_are_fixed() {
    through(&node(), HEALTHY, &some(FAULTS));
}

#[test]
#[ignore = "needs root and a network namespace; takes minutes"]
fn long_every_fault_of_the_nftables_mode_is_found_until_it_is_fixed() {
    through(&node(), HEALTHY, FAULTS);
}
