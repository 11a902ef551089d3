//! Faults of the ipvs mode.

use super::{Fault, Findings, Node, findings, printed, through};
use crate::kernel::ipvs::unload;
use crate::kernel::netns::run;
use crate::kernel::trace::recording::Recording;

/// Checks that fail on the recorded cluster, its configuration, the mode, and a default kernel.
const HEALTHY: &[&str] = &[
    "AP01", "AP04", "AP06", "AP07", "DP01", "DP08", "IS01", "KP09", "KP12", "KP21", "SY11",
];

const FAULTS: &[Fault] = &[
    Fault {
        name: "a virtual server is gone",
        broken_by: "ipvsadm -D -t 10.97.54.248:80",
        id: "VS01",
        also: &[],
        undone_by: "grep 10.97.54.248:80 $R/node/ipvsadm-save.txt | ipvsadm --restore",
    },
    Fault {
        name: "a virtual server that its Service does not ask for",
        broken_by: "ipvsadm -A -t 10.97.54.248:8081 -s rr",
        id: "VS02",
        also: &[],
        undone_by: "ipvsadm -D -t 10.97.54.248:8081",
    },
    Fault {
        name: "a virtual server without a Service",
        broken_by: "ipvsadm -A -t 192.0.2.5:80 -s rr",
        id: "VS03",
        also: &[],
        undone_by: "ipvsadm -D -t 192.0.2.5:80",
    },
    Fault {
        name: "a real server is gone",
        broken_by: "ipvsadm -d -t 10.97.54.248:80 -r 10.244.1.16:80",
        id: "VS04",
        also: &[],
        undone_by: "",
    },
    Fault {
        name: "a real server that is no endpoint",
        broken_by: "ipvsadm -a -t 10.97.54.248:80 -r 10.244.1.99:80 -m -w 1",
        id: "VS04",
        also: &[],
        undone_by: "",
    },
    Fault {
        name: "a real server has weight 0",
        broken_by: "ipvsadm -e -t 10.97.54.248:80 -r 10.244.1.16:80 -m -w 0",
        id: "VS05",
        also: &[],
        undone_by: "",
    },
    Fault {
        name: "a virtual server has no real server",
        broken_by: "for n in 14 16 17; do ipvsadm -d -t 10.97.54.248:80 -r 10.244.1.$n:80; done",
        id: "VS07",
        also: &[],
        undone_by: "grep -e '-a -t 10.97.54.248:80' $R/node/ipvsadm-save.txt | ipvsadm --restore",
    },
    Fault {
        name: "another scheduler",
        broken_by: "ipvsadm -E -t 10.97.54.248:80 -s lc",
        id: "VS08",
        also: &[],
        undone_by: "ipvsadm -E -t 10.97.54.248:80 -s rr",
    },
    Fault {
        name: "client affinity is gone",
        broken_by: "ipvsadm -E -t 10.100.1.1:8080 -s rr",
        id: "VS08",
        also: &[],
        undone_by: "ipvsadm -E -t 10.100.1.1:8080 -s rr -p 600",
    },
    Fault {
        name: "the rules of source ranges are gone",
        broken_by: "iptables-nft -F KUBE-SOURCE-RANGES-FIREWALL",
        id: "VS16",
        also: &[],
        undone_by: "rules",
    },
    Fault {
        name: "kube-ipvs0 is gone",
        broken_by: "ip link del kube-ipvs0",
        id: "DV01",
        also: &[],
        undone_by: "{ echo link add kube-ipvs0 type dummy; cat $D/addresses; } | ip -batch -",
    },
    Fault {
        name: "a Service address is missing on kube-ipvs0",
        broken_by: "ip addr del 10.97.54.248/32 dev kube-ipvs0",
        id: "DV02",
        also: &[],
        undone_by: "",
    },
    Fault {
        name: "an address of no Service is on kube-ipvs0",
        broken_by: "ip addr add 10.100.99.99/32 dev kube-ipvs0",
        id: "DV03",
        also: &[],
        undone_by: "",
    },
    Fault {
        name: "an address of a node is on kube-ipvs0",
        broken_by: "ip addr add 10.0.2.15/32 dev kube-ipvs0",
        id: "DV04",
        also: &["DV03"],
        undone_by: "ip addr del 10.0.2.15/32 dev kube-ipvs0",
    },
    Fault {
        name: "NodeLocal DNS has an address of kube-ipvs0",
        broken_by: "ip link add nodelocaldns type dummy; ip addr add 10.96.0.10/32 dev nodelocaldns",
        id: "DV05",
        // Every address of the node is one for NodePorts.
        also: &["VS01"],
        undone_by: "ip link del nodelocaldns",
    },
    Fault {
        name: "kube-ipvs0 takes part in ARP",
        broken_by: "ip link set kube-ipvs0 arp on",
        id: "DV07",
        also: &[],
        undone_by: "",
    },
    Fault {
        name: "nothing keeps Service addresses from the host's sockets",
        broken_by: "iptables-nft -F KUBE-IPVS-FILTER",
        id: "DV08",
        also: &[],
        undone_by: "rules",
    },
    Fault {
        name: "a member of a set is gone",
        broken_by: "ipset del KUBE-CLUSTER-IP 10.97.54.248,tcp:80",
        id: "IS03",
        also: &[],
        undone_by: "",
    },
    Fault {
        name: "a member of a set that nothing asks for",
        broken_by: "ipset add KUBE-CLUSTER-IP 10.100.99.99,tcp:80",
        id: "IS03",
        also: &[],
        undone_by: "",
    },
    Fault {
        name: "a set is of another size",
        broken_by: "ipset save KUBE-CLUSTER-IP | sed 's/KUBE-CLUSTER-IP/other/; s/maxelem 65536/maxelem 1024/' | ipset restore
                    ipset swap other KUBE-CLUSTER-IP",
        id: "IS02",
        also: &[],
        undone_by: "ipset swap other KUBE-CLUSTER-IP; ipset destroy other",
    },
    Fault {
        name: "a set is gone, with the rule that uses it",
        broken_by: "iptables-nft -t nat -D KUBE-POSTROUTING 1; ipset save KUBE-LOOP-BACK >$D/set; ipset destroy KUBE-LOOP-BACK",
        id: "IS05",
        also: &["IR09"],
        undone_by: "ipset restore <$D/set; rules",
    },
    Fault {
        name: "a jump from a built-in chain is gone",
        broken_by: "iptables-nft -t nat -F PREROUTING",
        id: "IR01",
        also: &[],
        undone_by: "rules",
    },
    Fault {
        name: "nothing is marked for masquerading",
        broken_by: "iptables-nft -t nat -F KUBE-MARK-MASQ",
        id: "IR09",
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
        name: "what the iptables mode left behind",
        broken_by: "iptables-nft -t nat -N KUBE-SVC-AAAAAAAAAAAAAAAA",
        id: "MX01",
        also: &[],
        undone_by: "iptables-nft -t nat -X KUBE-SVC-AAAAAAAAAAAAAAAA",
    },
    Fault {
        name: "IPVS keeps its connections to itself",
        broken_by: "sysctl -qw net.ipv4.vs.conntrack=0",
        id: "SY02",
        also: &[],
        undone_by: "",
    },
    Fault {
        name: "IPVS reuses connections in a way that is slow",
        broken_by: "sysctl -qw net.ipv4.vs.conn_reuse_mode=0",
        id: "SY03",
        also: &[],
        undone_by: "",
    },
    Fault {
        name: "IPVS keeps connections to pods that are gone",
        broken_by: "sysctl -qw net.ipv4.vs.expire_nodest_conn=0",
        id: "SY04",
        also: &[],
        undone_by: "",
    },
    Fault {
        name: "IPVS keeps affinity to pods that are gone",
        broken_by: "sysctl -qw net.ipv4.vs.expire_quiescent_template=0",
        id: "SY05",
        also: &[],
        undone_by: "",
    },
];

/// A node with all that the recording has.
fn node() -> Node {
    // The bridge's address would be one for NodePorts, which the recorded node did not have.
    let node = Node::new("full-ipvs", "modprobe ip_vs; ip addr flush dev cni0");
    Recording::named("full-ipvs").restore(&node.netns);
    // Settings of IPVS exist only once it is loaded.
    node.bash("the settings", &node.settings());
    node.bash(
        "what is restored",
        "ip -o addr show dev kube-ipvs0 | awk '{ print \"addr add \" $4 \" dev kube-ipvs0\" }' >$D/addresses",
    );
    node
}

#[test]
#[ignore = "needs root, ip_vs and dummy links"]
fn vm_every_fault_of_the_ipvs_mode_is_found_until_it_is_fixed() {
    through(&node(), HEALTHY, FAULTS);
}

#[test]
#[ignore = "needs root, and modules to load"]
fn vm_a_module_that_may_not_be_loaded_explains_what_lacks() {
    unload();
    let node = Node::new("full-ipvs", "ipset restore <$R/node/ipset-save.txt");
    node.bash(
        "block",
        "echo install ip_vs /bin/false >/etc/modprobe.d/kpx-test.conf",
    );
    let report = node.doctor();
    let findings = report["findings"].as_array().unwrap();
    let errors: Vec<_> = findings
        .iter()
        .filter(|f| f["severity"] == "error")
        .collect();
    assert_eq!(errors.len(), 1, "{errors:#?}");
    assert_eq!(errors[0]["id"], "KM01", "{errors:#?}");
    assert!(errors[0]["consequences"].is_array(), "{errors:#?}");
    node.bash("fix", "rm /etc/modprobe.d/kpx-test.conf; modprobe ip_vs");
    let report = node.doctor();
    let mut ids = report["findings"]
        .as_array()
        .unwrap()
        .iter()
        .map(|f| &f["id"]);
    assert!(ids.all(|id| id != "KM01"), "{report:#}");
}

#[test]
#[ignore = "needs root, and the one limit of connections that all namespaces share"]
fn vm_a_nearly_full_table_of_connections_is_found_until_it_is_fixed() {
    let limit = "net.netfilter.nf_conntrack_max";
    let node = Node::new("full-ipvs", "");
    let most = run(&["sysctl", "-n", limit], "");
    // Room is left for the doctor's own connections to kube-proxy.
    run(&["sysctl", "-qw", &format!("{limit}=300")], "");
    node.bash(
        "fill",
        "for n in $(seq 280); do
            echo \"-A -t 300 -u SEEN_REPLY,ASSURED -s 10.244.1.200 -d 192.0.2.1 -r 192.0.2.1 -q 10.244.1.200 \\
                -p tcp --sport $((4000 + n)) --dport 80 --reply-port-src 80 --reply-port-dst $((4000 + n)) --state ESTABLISHED\"
        done >$D/flows
        conntrack -R $D/flows >/dev/null",
    );
    let report = node.doctor_with(&["--fail-on", "never", "--only", "conntrack"]);
    let commands = printed(&report, "CT01", &Findings::new());
    assert_eq!(commands.len(), 1, "{report:#}");
    // The limit is the machine's own: it is set outside of the namespace.
    run(&["bash", "-c", &commands[0]], "");
    let report = node.doctor_with(&["--fail-on", "never", "--only", "conntrack"]);
    run(&["sysctl", "-qw", &format!("{limit}={}", most.trim())], "");
    assert!(
        findings(&report).iter().all(|(id, _, _)| id != "CT01"),
        "{report:#}"
    );
}
