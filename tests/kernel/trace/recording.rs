//! The parts of a recording: rules to restore, and addresses to send to.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs;
use std::net::IpAddr;
use std::path::PathBuf;

use kpx_node::net::Proto;
use serde_json::Value;

use crate::kernel::netns::Netns;

/// A recorded node.
pub(crate) struct Recording {
    name: String,
    dir: PathBuf,
}

/// The iptables that restores the rules.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Store {
    Nft,
    Legacy,
}

/// Somewhere to send packets to.
#[derive(Clone, Debug)]
pub(crate) struct Target {
    pub(crate) addr: IpAddr,
    pub(crate) port: u16,
    pub(crate) proto: Proto,
    /// A pod of this node that is a backend of it.
    pub(crate) backend: Option<IpAddr>,
    /// Whether a client stays with its backend.
    pub(crate) sticky: bool,
}

/// Node addresses that NodePorts may be reached at.
const NODE: [&str; 5] = [
    "10.0.2.15",
    "10.0.2.115",
    "127.0.0.1",
    "fd00:10:0:2::15",
    "::1",
];

/// Destinations of no Service: unused ports, addresses, pods themselves.
const OTHERS: &[(&str, u16, Proto)] = &[
    ("10.96.0.1", 9999, Proto::Tcp),
    ("10.96.0.10", 9999, Proto::Udp),
    ("10.100.99.99", 80, Proto::Tcp),
    ("10.0.2.15", 22, Proto::Tcp),
    ("10.0.2.15", 30999, Proto::Tcp),
    ("10.0.2.115", 30999, Proto::Udp),
    ("127.0.0.1", 30999, Proto::Tcp),
    ("10.244.1.1", 30080, Proto::Tcp),
    ("10.244.1.14", 80, Proto::Tcp),
    ("10.244.2.50", 8080, Proto::Tcp),
    ("203.0.113.200", 443, Proto::Tcp),
    ("fd00:10:96::30a", 9999, Proto::Tcp),
    ("fd00:10:96::999", 80, Proto::Tcp),
    ("fd00:10:0:2::15", 30999, Proto::Tcp),
    ("fd00:10:244:1::1", 31080, Proto::Tcp),
    ("fd00:10:244:2::a", 80, Proto::Udp),
];

impl Recording {
    pub(crate) fn named(name: &str) -> Self {
        let root = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
        Self {
            name: name.to_owned(),
            dir: root.join("testdata/nodes").join(name),
        }
    }

    pub(crate) fn text(&self, file: &str) -> String {
        fs::read_to_string(self.dir.join(file)).unwrap()
    }

    /// Whether IPv6 is in use.
    pub(crate) fn is_dual(&self) -> bool {
        self.name.starts_with("dual")
    }

    /// The value of a setting, where it was recorded.
    pub(crate) fn sysctl(&self, key: &str) -> Option<String> {
        let text = self.text("node/sysctl.txt");
        let value = text
            .lines()
            .find_map(|l| l.strip_prefix(key)?.strip_prefix(" = "));
        value.map(str::to_owned)
    }

    /// The rules of both families, as their own restore command takes them.
    pub(crate) fn iptables(&self) -> [String; 2] {
        ["node/iptables-save.txt", "node/ip6tables-save.txt"].map(|file| self.text(file))
    }

    pub(crate) fn restore_iptables(&self, node: &Netns, store: Store) {
        let [v4, v6] = self.iptables();
        restore(node, store, [&v4, &v6]);
    }

    /// Loads the rules of the mode the recording is named for.
    pub(crate) fn restore(&self, node: &Netns) {
        if self.name.ends_with("nftables") {
            node.feed("nft -f -", &self.text("node/nft.txt"));
        } else {
            if self.name.ends_with("ipvs") {
                self.restore_ipvs(node);
            }
            self.restore_iptables(node, Store::Nft);
        }
    }

    /// Makes IP sets, the link kube-ipvs0, and virtual servers.
    fn restore_ipvs(&self, node: &Netns) {
        node.feed("ipset restore", &self.text("node/ipset-save.txt"));
        let links: Value = serde_json::from_str(&self.text("node/ip-addr.json")).unwrap();
        let mut addresses = "link add kube-ipvs0 type dummy\n".to_owned();
        let dummy = list(&links).iter().find(|l| l["ifname"] == "kube-ipvs0");
        for addr in list(&dummy.unwrap()["addr_info"]) {
            let (local, prefix) = (word(&addr["local"]), &addr["prefixlen"]);
            writeln!(addresses, "addr add {local}/{prefix} dev kube-ipvs0").unwrap();
        }
        node.feed("ip -batch -", &addresses);
        node.feed("ipvsadm --restore", &self.text("node/ipvsadm-save.txt"));
        for key in ["conntrack", "conn_reuse_mode", "expire_nodest_conn"] {
            let key = format!("net.ipv4.vs.{key}");
            let value = self.sysctl(&key).unwrap();
            node.run(&format!("sysctl -q -w {key}={value}"));
        }
    }

    fn items(&self, file: &str) -> Vec<Value> {
        let list: Value = serde_json::from_str(&self.text(file)).unwrap();
        list["items"].as_array().unwrap().clone()
    }

    /// Addresses of pods of this node, by Service.
    fn pods(&self) -> BTreeMap<(String, String), BTreeSet<IpAddr>> {
        let mut pods: BTreeMap<_, BTreeSet<_>> = BTreeMap::new();
        for slice in self.items("cluster/endpointslices.json") {
            let meta = &slice["metadata"];
            let label = word(&meta["labels"]["kubernetes.io/service-name"]);
            let here = pods.entry((word(&meta["namespace"]), label)).or_default();
            for endpoint in list(&slice["endpoints"]) {
                let addrs = list(&endpoint["addresses"]);
                here.extend(addrs.iter().map(addr).filter(|a| is_pod(*a)));
            }
        }
        pods
    }

    /// Every address of a pod of this node.
    pub(crate) fn pod_addresses(&self) -> BTreeSet<IpAddr> {
        let pods = self.pods().into_values().flatten();
        pods.filter(|a| a.is_ipv4() || self.is_dual()).collect()
    }

    /// Everything a Service offers, and more.
    pub(crate) fn targets(&self) -> Vec<Target> {
        let pods = self.pods();
        let mut targets = Vec::new();
        for service in self.items("cluster/services.json") {
            let (meta, spec) = (&service["metadata"], &service["spec"]);
            let backends = pods.get(&(word(&meta["namespace"]), word(&meta["name"])));
            let mut add = |addr: IpAddr, port: u16, proto: Proto| {
                let fits = |a: &&IpAddr| a.is_ipv4() == addr.is_ipv4();
                targets.push(Target {
                    addr,
                    port,
                    proto,
                    backend: backends.and_then(|all| all.iter().find(fits)).copied(),
                    sticky: spec["sessionAffinity"] == "ClientIP",
                });
            };
            let ingress = list(&service["status"]["loadBalancer"]["ingress"]);
            let addrs: Vec<_> = list(&spec["clusterIPs"])
                .iter()
                .chain(list(&spec["externalIPs"]))
                .chain(ingress.iter().map(|i| &i["ip"]))
                .filter(|a| *a != "None")
                .map(addr)
                .collect();
            for port in list(&spec["ports"]) {
                let proto: Proto = word(&port["protocol"]).to_lowercase().parse().unwrap();
                for &addr in &addrs {
                    add(addr, number(&port["port"]).unwrap(), proto);
                }
                if let Some(port) = number(&port["nodePort"]) {
                    for addr in NODE {
                        add(addr.parse().unwrap(), port, proto);
                    }
                }
            }
            if let Some(port) = number(&spec["healthCheckNodePort"]) {
                add("10.0.2.15".parse().unwrap(), port, Proto::Tcp);
            }
        }
        targets.extend(OTHERS.iter().map(|&(addr, port, proto)| Target {
            addr: addr.parse().unwrap(),
            port,
            proto,
            backend: None,
            sticky: false,
        }));
        // Rules of Services are for ports; what has none they must let be, or refuse.
        let addrs: BTreeSet<_> = targets.iter().map(|t| t.addr).collect();
        targets.extend(addrs.into_iter().map(|addr| Target {
            addr,
            port: 0,
            proto: if addr.is_ipv4() {
                Proto::Icmp
            } else {
                Proto::Icmpv6
            },
            backend: None,
            sticky: false,
        }));
        targets.retain(|t| t.addr.is_ipv4() || self.is_dual());
        targets
    }
}

/// Loads the rules of both families, with the objects their counters need.
pub(crate) fn restore(node: &Netns, store: Store, rules: [&str; 2]) {
    let objects = [
        "ct_state_invalid_dropped_pkts",
        "localhost_nps_accepted_pkts",
    ];
    let known = node.run("nfacct list");
    for object in objects.iter().filter(|object| !known.contains(**object)) {
        node.run(&format!("nfacct add {object}"));
    }
    let commands = match store {
        Store::Nft => ["iptables-nft-restore", "ip6tables-nft-restore"],
        Store::Legacy => ["iptables-legacy-restore", "ip6tables-legacy-restore"],
    };
    for (command, rules) in commands.into_iter().zip(rules) {
        if rules.contains("COMMIT") {
            node.feed(command, rules);
        }
    }
}

/// Whether `addr` is of this node's pods.
pub(crate) fn is_pod(addr: IpAddr) -> bool {
    let text = addr.to_string();
    text.starts_with("10.244.1.") || text.starts_with("fd00:10:244:1:")
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

fn word(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

fn number(value: &Value) -> Option<u16> {
    Some(u16::try_from(value.as_u64()?).unwrap())
}

fn addr(value: &Value) -> IpAddr {
    value.as_str().unwrap().parse().unwrap()
}
