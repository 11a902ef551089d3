//! A node, its pods, and what is outside, as network namespaces.
//!
//! Nothing but the node answers: connection requests are dropped where they arrive, so that an answer does not change
//! what conntrack says about them.

use std::collections::HashSet;
use std::fmt::Write as _;
use std::net::{IpAddr, SocketAddr, TcpListener, UdpSocket};

use kpx_judge::trace::Entry;
use socket2::{Domain, Socket, Type};

use super::recording::{Recording, Target, is_pod};
use crate::kernel::netns::{Netns, run};

/// Drops connection requests before routing, wherever they go.
const MUTE: &str = "table inet mute {
    chain arriving {
        type filter hook prerouting priority -300
        tcp flags & (syn|ack) == syn drop
        meta l4proto { udp, sctp } drop
    }
}";

/// The namespaces.
pub(crate) struct Network {
    pub(crate) node: Netns,
    /// All pods that are backends.
    pods: Netns,
    /// A pod that is none.
    client: Netns,
    outside: Netns,
    /// Whether iptables sees what goes from pod to pod of this node.
    bridged: bool,
    listeners: (Vec<TcpListener>, Vec<UdpSocket>),
}

/// Who sends.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub(crate) enum Place {
    Host,
    Client,
    Backend,
    Outside,
}

/// The source of a packet.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Source {
    pub(crate) place: Place,
    pub(crate) addr: Option<IpAddr>,
}

impl Source {
    /// The node, from the address it chooses.
    pub(crate) fn host() -> Self {
        Self {
            place: Place::Host,
            addr: None,
        }
    }

    pub(crate) fn entry(self) -> Entry {
        match self.place {
            Place::Host => Entry::Host,
            Place::Client | Place::Backend => Entry::Pod,
            Place::Outside => Entry::Outside,
        }
    }
}

impl Network {
    pub(crate) fn new(recording: &Recording, bridged: bool) -> Self {
        let [node, pods, client, outside] = [(); 4].map(|()| Netns::new());
        let this = std::process::id().to_string();
        run(&["prlimit", "--pid", &this, "--nofile=20000:20000"], "");
        for netns in [&node, &pods, &client, &outside] {
            netns.feed("sysctl -q -p -", SETTINGS);
        }
        // Kernels before 6.11 have one limit for all namespaces.
        for key in ["icmp_msgs_per_sec", "icmp_msgs_burst"] {
            let line = format!("net.ipv4.{key}=1000000");
            node.run(&format!("sysctl -q -e -w {line}"));
            if node.run(&format!("sysctl -e -n net.ipv4.{key}")).is_empty() {
                run(&["sysctl", "-q", "-w", &line], "");
            }
        }
        for netns in [&pods, &client, &outside] {
            netns.feed("nft -f -", MUTE);
        }
        let dual = recording.is_dual();
        let name = |netns: &Netns| netns.options().netns.unwrap();
        let mut links = "link add cni0 type bridge mcast_snooping 0\n".to_owned();
        for (link, peer, netns) in [
            ("eth0", "up0", &outside),
            ("pods0", "up1", &pods),
            ("client0", "up2", &client),
        ] {
            writeln!(links, "link add {link} type veth peer name {peer}").unwrap();
            writeln!(links, "link set {peer} netns {}", name(netns)).unwrap();
        }
        for link in ["pods0", "client0"] {
            writeln!(links, "link set {link} master cni0").unwrap();
            writeln!(links, "link set {link} type bridge_slave hairpin on").unwrap();
        }
        for link in ["cni0", "eth0", "pods0", "client0"] {
            writeln!(links, "link set {link} up").unwrap();
        }
        links.push_str(NODE);
        if dual {
            links.push_str(NODE6);
        }
        node.feed("ip -batch -", &links);

        let mut addresses = "link set up1 up\n".to_owned();
        for addr in recording.pod_addresses() {
            let (prefix, nodad) = if addr.is_ipv4() {
                (24, "")
            } else {
                (64, "nodad")
            };
            writeln!(addresses, "addr add {addr}/{prefix} dev up1 {nodad}").unwrap();
        }
        addresses.push_str("route add default via 10.244.1.1\n");
        if dual {
            addresses.push_str("route add default via fd00:10:244:1::1\n");
        }
        pods.feed("ip -batch -", &addresses);
        client.feed("ip -batch -", CLIENT);
        outside.feed("ip -batch -", OUTSIDE);
        if dual {
            client.feed("ip -batch -", CLIENT6);
            outside.feed("ip -batch -", OUTSIDE6);
        }

        let localnet = recording.sysctl("net.ipv4.conf.all.route_localnet");
        let call = u8::from(bridged);
        node.feed(
            "sysctl -q -p -",
            &format!(
                "net.ipv4.ip_forward = 1\n\
                 net.ipv6.conf.all.forwarding = 1\n\
                 net.ipv4.conf.all.route_localnet = {}\n\
                 net.bridge.bridge-nf-call-iptables = {call}\n\
                 net.bridge.bridge-nf-call-ip6tables = {call}\n",
                localnet.unwrap()
            ),
        );
        node.feed("sysctl -q -e -p -", TIMEOUTS);
        let listeners = listen(&node, &recording.targets());
        Self {
            node,
            pods,
            client,
            outside,
            bridged,
            listeners,
        }
    }

    /// Takes what the node got since the last time: who sent the datagrams.
    pub(crate) fn drain(&self) -> HashSet<SocketAddr> {
        let (tcp, udp) = &self.listeners;
        for listener in tcp {
            while listener.accept().is_ok() {}
        }
        let mut senders = HashSet::new();
        for socket in udp {
            while let Ok((_, from)) = socket.recv_from(&mut []) {
                senders.insert(SocketAddr::new(from.ip().to_canonical(), from.port()));
            }
        }
        senders
    }

    pub(crate) fn at(&self, place: Place) -> &Netns {
        match place {
            Place::Host => &self.node,
            Place::Client => &self.client,
            Place::Backend => &self.pods,
            Place::Outside => &self.outside,
        }
    }

    /// From where packets are sent to `target`.
    pub(crate) fn sources(&self, target: &Target) -> Vec<Source> {
        let four = target.addr.is_ipv4();
        let (client, bridge, outside): (_, _, &[_]) = if four {
            let outside = &["192.0.2.10", "192.0.2.200", "198.51.100.7"];
            ("10.244.1.200", "10.244.1.1", outside)
        } else {
            (
                "fd00:10:244:1::200",
                "fd00:10:244:1::1",
                &["2001:db8:1::7", "2001:db8:2::7"],
            )
        };
        let source = |place, addr| Source { place, addr };
        let mut sources = vec![source(Place::Host, None)];
        if target.addr.is_loopback() {
            return sources;
        }
        let parse = |text: &str| Some(text.parse().unwrap());
        sources.push(source(Place::Host, parse(bridge)));
        // From pod to pod of this node, the bridge alone may do.
        if self.bridged || !is_pod(target.addr) {
            sources.push(source(Place::Client, parse(client)));
        }
        if target.backend.is_some() {
            sources.push(source(Place::Backend, target.backend));
        }
        sources.extend(
            outside
                .iter()
                .map(|addr| source(Place::Outside, parse(addr))),
        );
        sources
    }
}

/// Takes connections on every port that is sent to, so that the node's own TCP does not refuse them.
fn listen(node: &Netns, targets: &[Target]) -> (Vec<TcpListener>, Vec<UdpSocket>) {
    let ports = targets.iter().map(|t| t.port).filter(|port| *port != 0);
    let mut ports: Vec<_> = ports.collect();
    ports.sort_unstable();
    ports.dedup();
    let at = |port: u16| SocketAddr::from(([0; 16], port));
    let tcp = |port: &u16| {
        let socket = Socket::new(Domain::IPV6, Type::STREAM, None).unwrap();
        socket.set_nonblocking(true).unwrap();
        socket.bind(&at(*port).into()).unwrap();
        socket.listen(4096).unwrap();
        TcpListener::from(socket)
    };
    let udp = |port: &u16| {
        let socket = UdpSocket::bind(at(*port)).unwrap();
        socket.set_nonblocking(true).unwrap();
        socket
    };
    node.inside(|| {
        (
            ports.iter().map(tcp).collect(),
            ports.iter().map(udp).collect(),
        )
    })
}

/// No link looks for duplicates, no answer is held back.
const SETTINGS: &str = "\
net.ipv6.conf.default.accept_dad = 0
net.ipv6.conf.all.accept_dad = 0
net.ipv6.conf.default.accept_ra = 0
net.ipv4.conf.all.rp_filter = 0
net.ipv4.conf.default.rp_filter = 0
net.ipv4.icmp_ratelimit = 0
net.ipv6.icmp.ratelimit = 0
net.core.somaxconn = 4096
";

/// How long conntrack remembers what was not answered: longer than a slow machine takes to ask.
const TIMEOUTS: &str = "\
net.netfilter.nf_conntrack_tcp_timeout_syn_sent = 600
net.netfilter.nf_conntrack_tcp_timeout_close = 600
net.netfilter.nf_conntrack_udp_timeout = 600
net.netfilter.nf_conntrack_sctp_timeout_closed = 600
net.netfilter.nf_conntrack_sctp_timeout_cookie_wait = 600
";

const NODE: &str = "\
addr add 10.0.2.15/24 dev eth0
addr add 10.0.2.115/24 dev eth0
addr add 10.244.1.1/24 dev cni0
route add default via 10.0.2.2
route add 10.244.2.0/24 via 10.0.2.16
";

const NODE6: &str = "\
addr add fd00:10:0:2::15/64 dev eth0 nodad
addr add fd00:10:244:1::1/64 dev cni0 nodad
route add default via fd00:10:0:2::2
route add fd00:10:244:2::/64 via fd00:10:0:2::16
";

const CLIENT: &str = "\
link set up2 up
addr add 10.244.1.200/24 dev up2
route add default via 10.244.1.1
";

const CLIENT6: &str = "\
addr add fd00:10:244:1::200/64 dev up2 nodad
route add default via fd00:10:244:1::1
";

const OUTSIDE: &str = "\
link set up0 up
addr add 10.0.2.2/24 dev up0
addr add 10.0.2.16/24 dev up0
addr add 192.0.2.10/32 dev lo
addr add 192.0.2.200/32 dev lo
addr add 198.51.100.7/32 dev lo
route add default via 10.0.2.15
";

const OUTSIDE6: &str = "\
addr add fd00:10:0:2::2/64 dev up0 nodad
addr add fd00:10:0:2::16/64 dev up0 nodad
addr add 2001:db8:1::7/128 dev lo nodad
addr add 2001:db8:2::7/128 dev lo nodad
route add default via fd00:10:0:2::15
";
