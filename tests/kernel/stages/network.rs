//! Two nodes with pods that answer: a node with two pods on a bridge, and another node that forwards to a pod of its own.

use std::fmt::Write as _;
use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

use kpx_judge::check::Fix;
use kpx_judge::verdict::{Client, Fate, Kind};
use kpx_judge::why::{Answer, Asked, Look};
use kpx_node::backend::Mode;
use kpx_node::evidence::{Evidence, Item};
use kpx_node::net::Family;
use kpx_node::node::NodeSnapshot;
use serde_json::{Value, json};

use crate::kernel::netns::Netns;
use crate::kernel::render;

/// The items that are read live.
const ITEMS: &[Item] = &[
    Item::KernelRelease,
    Item::IptablesVersion,
    Item::Iptables4,
    Item::Iptables6,
    Item::IptablesLegacy4,
    Item::IptablesLegacy6,
    Item::IptablesNft4,
    Item::IptablesNft6,
    Item::Nft,
    Item::Ipset,
    Item::Ipvs,
    Item::Addresses,
    Item::Links,
    Item::Routes,
    Item::Rules,
    Item::NeighbourTable,
    Item::XfrmPolicies,
    Item::Tc,
    Item::Sockets,
    Item::Conntrack,
    Item::Sysctl,
];

/// How long a client waits for its answer.
const PATIENCE: Duration = Duration::from_millis(700);

/// The Service with an endpoint on this node, and the one with an endpoint on the other node.
pub(super) const NEAR: &str = "demo/near";
pub(super) const FAR: &str = "demo/far";

pub(super) struct Network {
    pub(super) node: Netns,
    pub(super) client: Netns,
    pub(super) near: Netns,
    pub(super) other: Netns,
    /// A pod of the other node, which nothing but its address is known of.
    _far: Netns,
    objects: Evidence,
    /// Whether the networks of pods, which are networks of processes, are read.
    pub(super) reads_pods: bool,
    /// A machine outside the cluster, behind the other node.
    outside: Option<Netns>,
    /// The family of all addresses.
    family: Family,
}

impl Network {
    pub(super) fn new() -> Self {
        Self::in_mode(Mode::Iptables)
    }

    /// Returns nodes of which the first one has kube-proxy's rules of `mode`.
    pub(super) fn in_mode(mode: Mode) -> Self {
        Self::of(mode, Family::V4)
    }

    /// Returns the same with addresses of `family`.
    pub(super) fn of(mode: Mode, family: Family) -> Self {
        let words = |text: &str| in_family(text, family);
        let [node, client, near, other, far] = [(); 5].map(|()| Netns::new());
        let name = |netns: &Netns| netns.options().netns.unwrap();
        for netns in [&node, &client, &near, &other, &far] {
            netns.feed("sysctl -q -p -", &settings(family));
        }
        let node_links = words(NODE)
            .replace("CLIENT", &name(&client))
            .replace("NEAR", &name(&near))
            .replace("OTHER", &name(&other));
        node.feed("ip -batch -", &node_links);
        other.feed("ip -batch -", &words(OTHER).replace("FAR", &name(&far)));
        for (netns, addr, gateway) in [
            (&client, "10.244.1.5", "10.244.1.1"),
            (&near, "10.244.1.6", "10.244.1.1"),
            (&far, "10.244.2.7", "10.244.2.1"),
        ] {
            netns.feed(
                "ip -batch -",
                &words(&format!(
                    "link set up0 up\naddr add {addr}/24 dev up0\nroute add default via {gateway}\n"
                )),
            );
        }
        for netns in [&node, &other] {
            netns.run(&words("sysctl -q -w net.ipv4.ip_forward=1"));
        }
        node.run(&words("sysctl -q -w net.bridge.bridge-nf-call-iptables=1"));
        for netns in [&near, &far] {
            serve(netns);
        }
        let mut objects = objects(mode, family);
        render::load(&node, &mut objects, mode);
        Self {
            node,
            client,
            near,
            other,
            _far: far,
            objects,
            reads_pods: false,
            outside: None,
            family,
        }
    }

    /// Returns `text`, which is about IPv4, with the addresses and tools of the family.
    pub(super) fn words(&self, text: &str) -> String {
        in_family(text, self.family)
    }

    /// Gives the Services node ports, for a machine outside the cluster.
    pub(super) fn add_outside(&mut self, mode: Mode) {
        let outside = Netns::new();
        outside.feed("sysctl -q -p -", &settings(self.family));
        let link = format!(
            "link add out0 type veth peer name up0 netns {}\nlink set out0 up\naddr add 192.0.2.1/24 dev out0\n",
            outside.name()
        );
        self.other.feed("ip -batch -", &self.words(&link));
        let own =
            "link set up0 up\naddr add 192.0.2.10/24 dev up0\nroute add default via 192.0.2.1\n";
        outside.feed("ip -batch -", &self.words(own));
        self.outside = Some(outside);
        let mut all = [service("near", "10.96.0.10"), service("far", "10.96.0.11")];
        for (of, port) in all.iter_mut().zip([30010, 30011]) {
            of["spec"]["type"] = json!("NodePort");
            of["spec"]["ports"][0]["nodePort"] = json!(port);
        }
        let all = self.words(&list(&all));
        self.objects.insert(Item::Services, Ok(all));
        if mode == Mode::Nftables {
            self.shell("nft delete table ip kube-proxy; nft delete table ip6 kube-proxy");
        }
        render::load(&self.node, &mut self.objects, mode);
    }

    /// Adds the object of a pod on the node.
    pub(super) fn add_pod(&mut self, name: &str, addr: &str) {
        let mut all = pods();
        all.push(pod(name, addr));
        self.objects.insert(Item::Pods, Ok(list(&all)));
    }

    /// Gives the Node of the other machine its address by eth1, too.
    pub(super) fn announce_both(&mut self) {
        let both = &["10.0.2.16", "10.0.3.16"];
        let nodes = [
            node("node1", &["10.0.2.15"], "10.244.1.0/24"),
            node("node2", both, "10.244.2.0/24"),
        ];
        self.objects.insert(Item::Nodes, Ok(list(&nodes)));
    }

    /// Runs a command line of a shell on the node.
    pub(super) fn shell(&self, line: &str) {
        self.node.feed("sh -e", line);
    }

    /// Returns whether the client of this kind gets an answer from `service`.
    pub(super) fn answers(&self, client: Client, service: &str) -> bool {
        let at = match (client, service) {
            (Client::Outside, NEAR) => "10.0.2.15:30010",
            (Client::Outside, _) => "10.0.2.15:30011",
            (_, NEAR) => "10.96.0.10:80",
            _ => "10.96.0.11:80",
        };
        let at: SocketAddr = self.words(at).parse().unwrap();
        let ask = || -> std::io::Result<String> {
            let mut stream = TcpStream::connect_timeout(&at, PATIENCE)?;
            stream.set_read_timeout(Some(PATIENCE))?;
            let mut text = String::new();
            stream.read_to_string(&mut text)?;
            Ok(text)
        };
        let netns = match client {
            Client::Host => &self.node,
            Client::Outside => self.outside.as_ref().unwrap(),
            _ => &self.client,
        };
        netns.inside(|| ask().is_ok_and(|text| text == "pong"))
    }

    /// Returns the evidence of the node as it is now.
    pub(super) async fn evidence(&self) -> Evidence {
        let mut evidence = self.objects.clone();
        let mut items = ITEMS.to_vec();
        items.extend(self.reads_pods.then_some(Item::PodNetworks));
        evidence.extend(self.node.collect(&items).await);
        if !self.reads_pods {
            evidence.insert(Item::PodNetworks, Ok(String::new()));
        }
        evidence
    }

    /// Explains `service` on the node as it is now.
    pub(super) async fn why(&self, service: &str) -> Answer {
        let evidence = self.evidence().await;
        let node = NodeSnapshot::new(&evidence).called(Some("node1"));
        let look = Look::new(&node, &[self.family], &[]).unwrap();
        look.why(&Asked::parse(service).unwrap(), None).unwrap()
    }

    /// Fails unless kpx says of both Services what the kernel does to their clients.
    pub(super) async fn agree(&self, about: &str) {
        for service in [NEAR, FAR] {
            let answer = self.why(service).await;
            for client in [Client::Pod, Client::Host] {
                let fate = fate(&answer, client);
                let works = self.answers(client, service);
                assert_eq!(
                    fate == Fate::Works,
                    works,
                    "{about}: {service} from {client:?}: {fate}: {}\n{:#?}",
                    answer.sentence,
                    answer.unknown
                );
            }
        }
    }

    /// Makes a fault with which `service` fails. The answer of kpx must have `words`, and its fix, as printed, must
    /// help.
    pub(super) async fn fails(&self, about: &str, fault: &str, service: &str, words: &[&str]) {
        self.agree(&format!("before {about}")).await;
        self.shell(fault);
        self.agree(about).await;
        let answer = self.why(service).await;
        let fate = fate(&answer, Client::Pod);
        assert!(fate.fails(), "{about}: {fate}: {}", answer.sentence);
        let fix = answer.fix.as_ref().and_then(Fix::command);
        let fix = fix.unwrap_or_else(|| panic!("{about}: no fix: {}", answer.sentence));
        for of in words {
            assert!(answer.sentence.contains(of), "{about}: {}", answer.sentence);
        }
        self.shell(&fix);
        self.agree(&format!("{about}, after the fix {fix}")).await;
    }
}

/// Returns what happens to the connections of the client that is a pod, or of another kind of client.
pub(super) fn fate(answer: &Answer, client: Client) -> Fate {
    let clients = ["(10.244.1.5,", "(fd00:10:244:1::5,"];
    let is_client = |path: &&kpx_judge::why::Path| clients.iter().any(|of| path.from.contains(of));
    let is_apart = |path: &&kpx_judge::why::Path| path.client == Client::Single && is_client(path);
    let has_apart = client == Client::Pod && answer.paths.iter().any(|path| is_apart(&path));
    let of = answer.paths.iter().filter(|path| {
        if (path.kind == Kind::NodePort) != (client == Client::Outside) {
            false
        } else if has_apart {
            is_apart(path)
        } else {
            path.client == client
        }
    });
    Fate::of_all(of.map(|path| path.fate))
}

/// Returns what happens to the connections of this kind of client, whichever pods it is.
pub(super) fn fate_of_kind(answer: &Answer, client: Client) -> Fate {
    let of = answer.paths.iter().filter(|path| path.client == client);
    Fate::of_all(of.map(|path| path.fate))
}

/// Answers each connection with `pong`.
fn serve(netns: &Netns) {
    let listener = netns.inside(|| TcpListener::bind("[::]:8080").unwrap());
    std::thread::spawn(move || {
        while let Ok((mut stream, _)) = listener.accept() {
            stream.write_all(b"pong").ok();
        }
    });
}

fn service(name: &str, ip: &str) -> Value {
    json!({
        "metadata": {"namespace": "demo", "name": name, "uid": name},
        "spec": {
            "type": "ClusterIP", "clusterIP": ip, "clusterIPs": [ip], "ipFamilies": ["IPv4"],
            "selector": {"app": name},
            "ports": [{"name": "http", "port": 80, "protocol": "TCP", "targetPort": 8080}],
        },
    })
}

fn slice(name: &str, addr: &str, node: &str) -> Value {
    json!({
        "metadata": {
            "namespace": "demo", "name": format!("{name}-x"),
            "labels": {"kubernetes.io/service-name": name},
        },
        "addressType": "IPv4",
        "ports": [{"name": "http", "port": 8080, "protocol": "TCP"}],
        "endpoints": [{
            "addresses": [addr], "nodeName": node, "conditions": {"ready": true},
            "targetRef": {"kind": "Pod", "namespace": "demo", "name": format!("{name}-0")},
        }],
    })
}

fn pod(name: &str, addr: &str) -> Value {
    json!({
        "metadata": {"namespace": "demo", "name": name, "labels": {}},
        "spec": {"nodeName": "node1", "containers": [{"name": "c", "ports": [{"containerPort": 8080}]}]},
        "status": {"phase": "Running", "podIP": addr, "podIPs": [{"ip": addr}]},
    })
}

fn node(name: &str, addrs: &[&str], pods: &str) -> Value {
    let internal = |addr: &&str| json!({"type": "InternalIP", "address": addr});
    let addresses: Vec<Value> = addrs.iter().map(internal).collect();
    json!({
        "metadata": {"name": name},
        "spec": {"podCIDR": pods, "podCIDRs": [pods]},
        "status": {"addresses": addresses},
    })
}

fn pods() -> Vec<Value> {
    vec![pod("client-0", "10.244.1.5"), pod("near-0", "10.244.1.6")]
}

fn list(items: &[Value]) -> String {
    json!({"kind": "List", "apiVersion": "v1", "items": items}).to_string()
}

/// The objects of the cluster.
fn objects(mode: Mode, family: Family) -> Evidence {
    let mut evidence = Evidence::default();
    let all = [
        (
            Item::Services,
            vec![service("near", "10.96.0.10"), service("far", "10.96.0.11")],
        ),
        (
            Item::EndpointSlices,
            vec![
                slice("near", "10.244.1.6", "node1"),
                slice("far", "10.244.2.7", "node2"),
            ],
        ),
        (Item::Pods, pods()),
        (
            Item::Nodes,
            vec![
                node("node1", &["10.0.2.15"], "10.244.1.0/24"),
                node("node2", &["10.0.2.16"], "10.244.2.0/24"),
            ],
        ),
    ];
    for (item, items) in all {
        evidence.insert(item, Ok(in_family(&list(&items), family)));
    }
    let config = in_family(CONFIG, family);
    evidence.insert(Item::ProxyConfig, Ok(format!("{config}mode: {mode}\n")));
    evidence
}

/// What differs between texts about IPv4 and about IPv6, but for addresses.
const OF_IPV6: &[(&str, &str)] = &[
    ("iptables", "ip6tables"),
    ("IPv4", "IPv6"),
    ("net.ipv4.ip_forward", "net.ipv6.conf.all.forwarding"),
    ("net.ipv4.conf", "net.ipv6.conf"),
    ("net.ipv4.neigh", "net.ipv6.neigh"),
    ("ip route", "ip -6 route"),
    ("ip rule", "ip -6 rule"),
    ("ip neigh", "ip -6 neigh"),
    ("ip saddr", "ip6 saddr"),
    ("ip daddr", "ip6 daddr"),
    ("ip ttl", "ip6 hoplimit"),
    ("ether type ip ", "ether type ip6 "),
    ("meta protocol ip ", "meta protocol ip6 "),
    ("protocol ip ", "protocol ipv6 "),
    ("match ip ", "match ip6 "),
    ("table ip ", "table ip6 "),
    ("chain ip ", "chain ip6 "),
    ("rule ip ", "rule ip6 "),
    ("-m ttl --ttl", "-m hl --hl"),
    ("TTL --ttl", "HL --hl"),
];

/// Returns `text`, which is about IPv4, about `family`: `10.0.2.15/24` becomes `fd00:10:0:2::15/64`.
fn in_family(text: &str, family: Family) -> String {
    if family == Family::V4 {
        return text.to_owned();
    }
    let mut new = String::new();
    let mut rest = text;
    while let Some(at) = rest.find(|c: char| c.is_ascii_digit()) {
        let (before, from) = rest.split_at(at);
        new += before;
        let is_part = |c: char| c.is_ascii_digit() || c == '.';
        let end = from.find(|c: char| !is_part(c)).unwrap_or(from.len());
        let (word, after) = from.split_at(end);
        rest = after;
        let Ok(address) = word.parse::<Ipv4Addr>() else {
            new += word;
            continue;
        };
        let [a, b, c, d] = address.octets();
        let end = match d {
            0 => String::new(),
            end => end.to_string(),
        };
        let mut address = match a {
            0 => "::".to_owned(),
            _ => format!("fd00:{a}:{b}:{c}::{end}"),
        };
        let length = rest.strip_prefix('/').and_then(|rest| {
            let length: String = rest.chars().take_while(char::is_ascii_digit).collect();
            Some((length.len() + 1, length.parse::<u8>().ok()?))
        });
        if let Some((written, length)) = length {
            let length = match length {
                0 => 0,
                1..=8 => 32,
                9..=16 => 48,
                17..=24 => 64,
                _ => 128,
            };
            write!(address, "/{length}").unwrap();
            rest = &rest[written..];
        } else if rest.starts_with(':') && rest[1..].starts_with(|c: char| c.is_ascii_digit()) {
            address = format!("[{address}]");
        }
        new += &address;
    }
    new += rest;
    for (of_ipv4, of_ipv6) in OF_IPV6 {
        new = new.replace(of_ipv4, of_ipv6);
    }
    new
}

const CONFIG: &str = "\
apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
clusterCIDR: 10.244.0.0/16
hostnameOverride: node1
";

const SETTINGS: &str = "\
net.ipv4.conf.all.rp_filter = 0
net.ipv4.conf.default.rp_filter = 0
net.ipv6.conf.default.accept_dad = 0
";

/// Returns the settings of each network; without IPv6 if that is not the family.
fn settings(family: Family) -> String {
    let is_off = u8::from(family == Family::V4);
    let off =
        ["all", "default"].map(|link| format!("net.ipv6.conf.{link}.disable_ipv6 = {is_off}\n"));
    SETTINGS.to_owned() + &off.concat()
}

const NODE: &str = "\
link add cni0 type bridge mcast_snooping 0
link add veth0 type veth peer name up0 netns CLIENT
link add veth1 type veth peer name up0 netns NEAR
link add eth0 type veth peer name eth0 netns OTHER
link add eth1 type veth peer name eth1 netns OTHER
link set veth0 master cni0
link set veth1 master cni0
link set veth0 type bridge_slave hairpin on
link set veth1 type bridge_slave hairpin on
link set cni0 up
link set veth0 up
link set veth1 up
link set eth0 up
link set eth1 up
addr add 10.244.1.1/24 dev cni0
addr add 10.0.2.15/24 dev eth0
addr add 10.0.3.15/24 dev eth1
route add default via 10.0.2.16
route add 10.244.2.0/24 via 10.0.2.16
";

const OTHER: &str = "\
link add veth0 type veth peer name up0 netns FAR
link set veth0 up
link set eth0 up
link set eth1 up
addr add 10.0.2.16/24 dev eth0
addr add 10.0.3.16/24 dev eth1
addr add 10.244.2.1/24 dev veth0
route add 10.244.1.0/24 via 10.0.2.15
";
