//! Faults of the iptables mode.

use super::{Fault, Node, some, through};

/// Checks that fail on the recorded cluster and its configuration.
const HEALTHY: &[&str] = &[
    "AP01", "AP04", "AP06", "AP07", "DP08", "KP09", "KP12", "KP21",
];

const FAULTS: &[Fault] = &[
    Fault {
        name: "a rule of others drops what is forwarded to an endpoint",
        broken_by: "iptables-nft -I FORWARD -d 10.244.1.16/32 -j DROP",
        id: "IR16",
        also: &[],
        undone_by: "",
    },
    Fault {
        name: "a rule of others drops a Service's packets before translation",
        broken_by: "iptables-nft -t raw -I PREROUTING -d 10.97.54.248/32 -p tcp -m comment --comment 'old address' --dport 80 -j DROP",
        id: "IR16",
        also: &[],
        undone_by: "",
    },
    Fault {
        name: "a rule of others rejects what the node sends to an endpoint",
        broken_by: "iptables-nft -A OUTPUT -d 10.244.1.16/32 -p tcp --dport 80 -j REJECT",
        id: "IR16",
        also: &[],
        undone_by: "",
    },
    Fault {
        name: "a table of nftables drops what is forwarded to an endpoint",
        broken_by: "nft add table inet corp; nft add chain inet corp forward '{ type filter hook forward priority 5; }'
                    nft add rule inet corp forward ip daddr 10.244.1.16 tcp dport 80 counter drop",
        id: "IR16",
        also: &[],
        undone_by: "",
    },
    Fault {
        name: "the legacy back end drops what is forwarded to an endpoint",
        broken_by: "iptables-legacy -I FORWARD -d 10.244.1.16/32 -j DROP",
        id: "IR16",
        also: &[],
        undone_by: "",
    },
    Fault {
        name: "a jump from a built-in chain is gone",
        broken_by: "iptables-nft -t nat -F PREROUTING",
        id: "IR01",
        also: &[],
        undone_by: "rules",
    },
    Fault {
        name: "a jump is there twice",
        broken_by: "eval \"iptables-nft -t nat $(rule nat OUTPUT KUBE-SERVICES)\"",
        id: "IB08",
        also: &[],
        undone_by: "rules",
    },
    Fault {
        name: "the rule of a Service is gone",
        broken_by: "delete nat KUBE-SERVICES 10.97.54.248/32",
        id: "IR03",
        also: &[],
        undone_by: "rules",
    },
    Fault {
        name: "a rule leads to a Service that is not there",
        broken_by: "iptables-nft -t nat -A KUBE-SERVICES -d 10.100.99.99/32 -p tcp -m comment --comment 'shop/gone:http cluster IP' --dport 80 -j KUBE-SVC-HL5LMXD5JFHQZ6LN",
        id: "IR03",
        also: &[],
        undone_by: "rules",
    },
    Fault {
        name: "the rule of a NodePort is gone",
        broken_by: "delete nat KUBE-NODEPORTS '--dport 31082 -j'",
        id: "IR03",
        also: &[],
        undone_by: "rules",
    },
    Fault {
        name: "the way to all NodePorts is gone",
        broken_by: "delete nat KUBE-SERVICES '-j KUBE-NODEPORTS'",
        id: "IR03",
        also: &[],
        undone_by: "rules",
    },
    Fault {
        name: "the rule of a source range is gone",
        broken_by: "iptables-nft -t nat -F KUBE-FW-3MCWVUC7CWOIFNSX",
        id: "IR03",
        also: &[],
        undone_by: "rules",
    },
    Fault {
        name: "the rule of an endpoint is gone",
        broken_by: "delete nat KUBE-SVC-HL5LMXD5JFHQZ6LN 10.244.1.16:80",
        id: "IR04",
        also: &[],
        undone_by: "rules",
    },
    Fault {
        name: "an endpoint's chain translates to another address",
        broken_by: "rewrite nat KUBE-SEP-DUL3TOEKR4Q7XNNH DNAT s/10.244.1.16:80/10.244.1.99:80/",
        id: "IR04",
        also: &[],
        undone_by: "rules",
    },
    Fault {
        name: "an endpoint's chain is empty",
        broken_by: "iptables-nft -t nat -F KUBE-SEP-DUL3TOEKR4Q7XNNH",
        id: "IR04",
        also: &[],
        undone_by: "rules",
    },
    Fault {
        name: "client affinity is gone",
        broken_by: "delete nat KUBE-SVC-I5LIAMPLWKMBJ54B --rcheck",
        id: "IR04",
        also: &[],
        undone_by: "rules",
    },
    Fault {
        name: "a probability is wrong",
        broken_by: "rewrite nat KUBE-SVC-HL5LMXD5JFHQZ6LN 10.244.1.16:80 's/0.5[0-9]*/0.9/'",
        id: "IR08",
        also: &[],
        undone_by: "rules",
    },
    Fault {
        name: "the last endpoint comes first",
        broken_by: "r=$(rule nat KUBE-SVC-HL5LMXD5JFHQZ6LN 10.244.1.17:80); delete nat KUBE-SVC-HL5LMXD5JFHQZ6LN 10.244.1.17:80
                    eval \"iptables-nft -t nat ${r/-A KUBE-SVC-HL5LMXD5JFHQZ6LN/-I KUBE-SVC-HL5LMXD5JFHQZ6LN 2}\"",
        id: "IR04",
        also: &[],
        undone_by: "rules",
    },
    Fault {
        name: "another mark is set for masquerading",
        broken_by: "iptables-nft -t nat -R KUBE-MARK-MASQ 1 -j MARK --or-mark 0x8000",
        id: "IR09",
        also: &[],
        undone_by: "rules",
    },
    Fault {
        name: "nothing is masqueraded",
        broken_by: "iptables-nft -t nat -F KUBE-POSTROUTING",
        id: "IR09",
        also: &[],
        undone_by: "rules",
    },
    Fault {
        name: "the mark is not taken off again",
        broken_by: "iptables-nft -t nat -D KUBE-POSTROUTING 2",
        id: "IR09",
        also: &[],
        undone_by: "rules",
    },
    Fault {
        name: "a Service with endpoints is rejected",
        broken_by: "iptables-nft -A KUBE-SERVICES -d 10.97.54.248/32 -p tcp -m comment --comment 'default/nginx-svc has no endpoints' --dport 80 -j REJECT",
        id: "IR07",
        also: &[],
        undone_by: "rules",
    },
    Fault {
        name: "a Service without endpoints is not rejected",
        broken_by: "delete filter KUBE-SERVICES 10.100.1.2/32",
        id: "IR07",
        also: &[],
        undone_by: "rules",
    },
    Fault {
        name: "forwarded Service traffic is not let pass",
        broken_by: "iptables-nft -F KUBE-FORWARD",
        id: "IR11",
        also: &[],
        undone_by: "rules",
    },
    Fault {
        name: "forwarded Service traffic is not let pass, in IPv6",
        broken_by: "ip6tables-nft -F KUBE-FORWARD",
        id: "IR11",
        also: &[],
        undone_by: "rules",
    },
    Fault {
        name: "nothing guards the loopback addresses",
        broken_by: "iptables-nft -F KUBE-FIREWALL",
        id: "SY08",
        also: &["IR11"],
        undone_by: "rules",
    },
    Fault {
        name: "a chain of a Service that is gone",
        broken_by: "iptables-nft -t nat -N KUBE-SVC-AAAAAAAAAAAAAAAA",
        id: "IR05",
        also: &[],
        undone_by: "rules",
    },
    Fault {
        name: "a canary is gone",
        broken_by: "iptables-nft -t mangle -X KUBE-PROXY-CANARY",
        id: "IB07",
        also: &[],
        undone_by: "rules",
    },
    Fault {
        name: "legacy rules beside those of nft",
        broken_by: "grep -v nfacct $R/node/iptables-save.txt | iptables-legacy-restore",
        id: "IB01",
        also: &[],
        undone_by: "for table in nat filter mangle; do iptables-legacy -t $table -F; iptables-legacy -t $table -X; done",
    },
    Fault {
        name: "what the nftables mode left behind",
        broken_by: "nft -f ${R%iptables}nftables/node/nft.txt",
        id: "MX03",
        also: &[],
        undone_by: "",
    },
    Fault {
        name: "what the ipvs mode left behind",
        broken_by: "ipset create KUBE-CLUSTER-IP hash:ip,port; ipset add KUBE-CLUSTER-IP 10.96.0.1,tcp:443",
        id: "MX02",
        also: &[],
        undone_by: "ipset destroy KUBE-CLUSTER-IP",
    },
    Fault {
        name: "a rule of others accepts before Services are looked up",
        broken_by: "iptables-nft -t nat -I PREROUTING 1 -j ACCEPT",
        id: "IR02",
        also: &["IR16"],
        undone_by: "rules",
    },
    Fault {
        name: "a rule of others drops what is forwarded",
        broken_by: "iptables-nft -I FORWARD 1 -j DROP",
        id: "IR02",
        also: &["IR16"],
        undone_by: "rules",
    },
    Fault {
        name: "a rule of others rejects what is forwarded, in IPv6",
        broken_by: "ip6tables-nft -I FORWARD 1 -j REJECT",
        id: "IR02",
        also: &[],
        undone_by: "rules",
    },
    Fault {
        name: "others route by the bit that marks for masquerading",
        broken_by: "ip rule add fwmark 0x4000/0x4000 lookup main",
        id: "IR10",
        also: &[],
        undone_by: "ip rule del fwmark 0x4000/0x4000 lookup main",
    },
    Fault {
        name: "a rule of kube-proxy's is there twice",
        broken_by: "eval \"iptables-nft $(rule filter KUBE-FORWARD 0x4000/0x4000)\"",
        id: "IR12",
        also: &["IR11"],
        undone_by: "rules",
    },
    Fault {
        name: "all rules are flushed",
        broken_by: "nft flush ruleset",
        id: "KP01",
        also: &["AP12", "SY08"],
        undone_by: "rules",
    },
];

#[test]
#[ignore = "needs root and a network namespace"]
fn long_some_faults_of_the_iptables_mode_are_found_until_they_are_fixed() {
    through(&Node::new("full-iptables", "rules"), HEALTHY, &some(FAULTS));
}

#[test]
#[ignore = "needs root and a network namespace; takes minutes"]
fn long_every_fault_of_the_iptables_mode_is_found_until_it_is_fixed() {
    through(&Node::new("full-iptables", "rules"), HEALTHY, FAULTS);
}
