//! What the ipvs mode writes: virtual servers, kube-ipvs0 and its addresses, sets, rules and kernel settings.
//!
//! Source: `syncProxyRules` in kube-proxy's `pkg/proxy/ipvs/proxier.go`, and `ipset.go` beside it.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::net::{IpAddr, SocketAddr};

use super::model::{DUMMY, Flags, Forwarding, Key, RealServer, VirtualServer};
use crate::backend::ipset::{Member, Set, Sets};
use crate::cluster::release::Change;
use crate::desired::{DesiredState, FamilyState, ServicePort};
use crate::evidence::Gap;
use crate::net::{Cidr, Family, Proto};

/// The objects of one family in ipvs mode, except its rules.
#[derive(Clone, Debug, Default)]
pub struct Expected {
    /// Virtual servers with their real servers, sorted.
    pub servers: Vec<VirtualServer>,
    /// Addresses of kube-ipvs0, sorted.
    pub addresses: Vec<IpAddr>,
    /// Members of each of [`SETS`], sorted.
    pub members: BTreeMap<&'static str, BTreeSet<String>>,
    /// Load-balancer addresses that this node itself may not use.
    pub closed: BTreeSet<(IpAddr, Proto, u16)>,
}

/// A set: its name for IPv4, its type and its comment.
#[derive(Clone, Copy, Debug)]
pub struct SetKind {
    /// The name for IPv4.
    pub name: &'static str,
    /// `hash:ip,port` and the like.
    pub kind: &'static str,
    /// The comment of rules that match it.
    pub comment: &'static str,
}

const fn set(name: &'static str, kind: &'static str, comment: &'static str) -> SetKind {
    SetKind {
        name,
        kind,
        comment,
    }
}

/// Every set of the ipvs mode.
pub const SETS: &[SetKind] = &[
    set(
        "KUBE-LOOP-BACK",
        "hash:ip,port,ip",
        "Kubernetes endpoints dst ip:port, source ip for solving hairpin purpose",
    ),
    set(
        "KUBE-CLUSTER-IP",
        "hash:ip,port",
        "Kubernetes service cluster ip + port for masquerade purpose",
    ),
    set(
        "KUBE-EXTERNAL-IP",
        "hash:ip,port",
        "Kubernetes service external ip + port for masquerade and filter purpose",
    ),
    set(
        "KUBE-EXTERNAL-IP-LOCAL",
        "hash:ip,port",
        "Kubernetes service external ip + port with externalTrafficPolicy=local",
    ),
    set(
        "KUBE-LOAD-BALANCER",
        "hash:ip,port",
        "Kubernetes service lb portal",
    ),
    set(
        "KUBE-LOAD-BALANCER-FW",
        "hash:ip,port",
        "Kubernetes service load balancer ip + port for load balancer with sourceRange",
    ),
    set(
        "KUBE-LOAD-BALANCER-LOCAL",
        "hash:ip,port",
        "Kubernetes service load balancer ip + port with externalTrafficPolicy=local",
    ),
    set(
        "KUBE-LOAD-BALANCER-SOURCE-IP",
        "hash:ip,port,ip",
        "Kubernetes service load balancer ip + port + source IP for packet filter purpose",
    ),
    set(
        "KUBE-LOAD-BALANCER-SOURCE-CIDR",
        "hash:ip,port,net",
        "Kubernetes service load balancer ip + port + source cidr for packet filter purpose",
    ),
    set(
        "KUBE-NODE-PORT-TCP",
        "bitmap:port",
        "Kubernetes nodeport TCP port for masquerade purpose",
    ),
    set(
        "KUBE-NODE-PORT-LOCAL-TCP",
        "bitmap:port",
        "Kubernetes nodeport TCP port with externalTrafficPolicy=local",
    ),
    set(
        "KUBE-NODE-PORT-UDP",
        "bitmap:port",
        "Kubernetes nodeport UDP port for masquerade purpose",
    ),
    set(
        "KUBE-NODE-PORT-LOCAL-UDP",
        "bitmap:port",
        "Kubernetes nodeport UDP port with externalTrafficPolicy=local",
    ),
    set(
        "KUBE-NODE-PORT-SCTP-HASH",
        "hash:ip,port",
        "Kubernetes nodeport SCTP port for masquerade purpose with type 'hash ip:port'",
    ),
    set(
        "KUBE-NODE-PORT-LOCAL-SCTP-HASH",
        "hash:ip,port",
        "Kubernetes nodeport SCTP port with externalTrafficPolicy=local with type 'hash ip:port'",
    ),
    set(
        "KUBE-HEALTH-CHECK-NODE-PORT",
        "bitmap:port",
        "Kubernetes health check node port",
    ),
    set(
        "KUBE-IPVS-IPS",
        "hash:ip",
        "Addresses on the ipvs interface",
    ),
];

/// Returns the name of the set `name` in `family`. IPv6 names are cut where the kernel would refuse them.
pub fn set_name(name: &'static str, family: Family) -> Cow<'static, str> {
    match family {
        Family::V4 => name.into(),
        Family::V6 => {
            let mut long = name.replacen("KUBE-", "KUBE-6-", 1);
            long.truncate(31);
            long.into()
        }
    }
}

/// Returns what `family` needs.
pub fn expect(state: &DesiredState, family: &FamilyState) -> Result<Expected, Gap> {
    let mut writer = Writer::new(state, family)?;
    for port in &family.ports {
        writer.port(port);
    }
    let mut found = writer.found;
    let bound: Vec<_> = writer.bound.into_iter().collect();
    for addr in &bound {
        found.add("KUBE-IPVS-IPS", addr.to_string());
    }
    found.addresses = bound;
    found.servers.sort_by_key(|server| server.key);
    Ok(found)
}

impl Expected {
    /// Returns whether the set `name` has members.
    pub fn fills(&self, name: &'static str) -> bool {
        self.members.get(name).is_some_and(|all| !all.is_empty())
    }

    /// Returns the sets as `ipset save` would list them.
    pub fn sets(&self, family: Family) -> Sets<'_> {
        let sets = SETS.iter().map(|set| {
            let members = self.members.get(set.name).into_iter().flatten();
            Set {
                name: set_name(set.name, family),
                kind: set.kind.into(),
                options: match (set.kind, family) {
                    ("bitmap:port", _) => "range 0-65535".into(),
                    (_, Family::V4) => "family inet hashsize 1024 maxelem 65536".into(),
                    (_, Family::V6) => "family inet6 hashsize 1024 maxelem 65536".into(),
                },
                members: members
                    .map(|element| Member {
                        element: element.as_str().into(),
                        options: "".into(),
                    })
                    .collect(),
            }
        });
        Sets {
            sets: sets.collect(),
        }
    }

    fn add(&mut self, set: &'static str, element: String) {
        self.members.entry(set).or_default().insert(element);
    }
}

struct Writer<'a> {
    state: &'a DesiredState,
    family: &'a FamilyState,
    /// Addresses on links other than kube-ipvs0.
    elsewhere: HashSet<IpAddr>,
    node_ips: Vec<IpAddr>,
    bound: BTreeSet<IpAddr>,
    /// Virtual servers so far: the first of two Services that claim one has it.
    keys: HashSet<Key>,
    found: Expected,
}

impl<'a> Writer<'a> {
    fn new(state: &'a DesiredState, family: &'a FamilyState) -> Result<Self, Gap> {
        let all = state.facts.addresses.as_ref().map_err(Clone::clone)?;
        let ours = all
            .iter()
            .filter(|at| at.link != DUMMY && Family::of(at.addr) == family.family);
        let elsewhere: HashSet<_> = ours
            .map(|at| at.addr)
            .filter(|addr| !addr.is_loopback() && !is_link_local(*addr))
            .collect();
        let node_ips = if family.node_ports.all {
            let mut all: Vec<_> = elsewhere.iter().copied().collect();
            all.sort_unstable();
            all
        } else {
            family.node_port_addresses(&state.facts, false)?
        };
        let mut found = Expected::default();
        for set in SETS {
            found.members.insert(set.name, BTreeSet::new());
        }
        Ok(Self {
            state,
            family,
            elsewhere,
            node_ips,
            bound: BTreeSet::new(),
            keys: HashSet::new(),
            found,
        })
    }

    fn port(&mut self, port: &ServicePort) {
        let proto = port.proto;
        for endpoint in port.endpoints.iter().filter(|e| e.local) {
            let (ip, number) = (endpoint.addr.ip(), endpoint.addr.port());
            self.found
                .add("KUBE-LOOP-BACK", format!("{ip},{proto}:{number},{ip}"));
        }
        let entry = |addr: IpAddr| format!("{addr},{proto}:{}", port.port);
        self.found.add("KUBE-CLUSTER-IP", entry(port.cluster_ip));
        self.server(port, port.cluster_ip, port.port, port.internal_local);
        self.bound.insert(port.cluster_ip);
        for &addr in &port.external_ips {
            let set = if port.external_local {
                "KUBE-EXTERNAL-IP-LOCAL"
            } else {
                "KUBE-EXTERNAL-IP"
            };
            self.found.add(set, entry(addr));
            self.server(port, addr, port.port, port.external_local);
            self.bind(addr);
        }
        for &addr in &port.lb_ips {
            self.found.add("KUBE-LOAD-BALANCER", entry(addr));
            if port.external_local {
                self.found.add("KUBE-LOAD-BALANCER-LOCAL", entry(addr));
            }
            if port.has_firewall() {
                self.restrict(port, addr, &entry(addr));
            }
            self.server(port, addr, port.port, port.external_local);
            self.bind(addr);
        }
        if let Some(number) = port.node_port {
            if self.node_ips.is_empty() {
                // kube-proxy skips the rest of this service port, its health check included.
                return;
            }
            self.node_port(port, number);
        }
        if let Some(number) = port.health_check {
            self.found
                .add("KUBE-HEALTH-CHECK-NODE-PORT", number.to_string());
        }
    }

    fn restrict(&mut self, port: &ServicePort, addr: IpAddr, entry: &str) {
        self.found.add("KUBE-LOAD-BALANCER-FW", entry.to_owned());
        for &range in &port.source_ranges {
            self.found.add(
                "KUBE-LOAD-BALANCER-SOURCE-CIDR",
                format!("{entry},{}", bare(range)),
            );
        }
        if port.admits(self.family.node_ip) {
            self.found
                .add("KUBE-LOAD-BALANCER-SOURCE-IP", format!("{entry},{addr}"));
        } else {
            self.found.closed.insert((addr, port.proto, port.port));
        }
    }

    fn node_port(&mut self, port: &ServicePort, number: u16) {
        let (all, local) = match port.proto {
            Proto::Udp => ("KUBE-NODE-PORT-UDP", "KUBE-NODE-PORT-LOCAL-UDP"),
            Proto::Sctp => ("KUBE-NODE-PORT-SCTP-HASH", "KUBE-NODE-PORT-LOCAL-SCTP-HASH"),
            _ => ("KUBE-NODE-PORT-TCP", "KUBE-NODE-PORT-LOCAL-TCP"),
        };
        let entries: Vec<_> = if port.proto == Proto::Sctp {
            let each = self.node_ips.iter();
            each.map(|ip| format!("{ip},sctp:{number}")).collect()
        } else {
            vec![number.to_string()]
        };
        for entry in entries {
            if port.external_local {
                self.found.add(local, entry.clone());
            }
            self.found.add(all, entry);
        }
        for ip in self.node_ips.clone() {
            self.server(port, ip, number, port.external_local);
        }
    }

    fn bind(&mut self, addr: IpAddr) {
        if !(self.state.has(Change::SkipsBoundAddresses) && self.elsewhere.contains(&addr)) {
            self.bound.insert(addr);
        }
    }

    fn server(&mut self, port: &ServicePort, addr: IpAddr, number: u16, local: bool) {
        let key = Key::Address {
            proto: port.proto,
            addr,
            port: number,
        };
        if !self.keys.insert(key) {
            return;
        }
        let scheduler = self.state.config.scheduler();
        let mut flags = 0;
        if port.affinity.is_some() {
            flags |= Flags::PERSISTENT;
        }
        if scheduler == "mh" && self.state.has(Change::MaglevPort) {
            flags |= Flags::SCHED2;
        }
        // Without endpoints of this node, traffic goes to endpoints of other nodes rather than nowhere.
        let positions = if local && !port.local_at().is_empty() {
            port.local_at()
        } else {
            port.cluster_at()
        };
        let mut reals: Vec<_> = positions
            .iter()
            .map(|&at| real(port.endpoints[at as usize].addr))
            .collect();
        reals.sort_by_key(|real| (real.addr, real.port));
        self.found.servers.push(VirtualServer {
            key,
            scheduler: scheduler.to_owned(),
            flags: Flags(flags),
            timeout: port.affinity.unwrap_or(0),
            prefix: self.family.family.bits(),
            engine: None,
            reals,
            order: Vec::new(),
            stats: None,
        });
    }
}

fn real(addr: SocketAddr) -> RealServer {
    RealServer {
        addr: addr.ip(),
        port: addr.port(),
        weight: 1,
        forwarding: Forwarding::Masq,
        upper: 0,
        lower: 0,
        connections: None,
        stats: None,
    }
}

/// A prefix as `ipset save` prints it: without the length of a single address.
fn bare(cidr: Cidr) -> String {
    if cidr.is_host() {
        cidr.addr.to_string()
    } else {
        cidr.to_string()
    }
}

fn is_link_local(addr: IpAddr) -> bool {
    matches!(addr, IpAddr::V6(v6) if v6.is_unicast_link_local())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_ipv6_sets_are_cut_as_kube_proxy_cuts_them() {
        let of = |name| set_name(name, Family::V6).into_owned();
        assert_eq!(
            of("KUBE-LOAD-BALANCER-SOURCE-CIDR"),
            "KUBE-6-LOAD-BALANCER-SOURCE-CID"
        );
        assert_eq!(
            of("KUBE-NODE-PORT-LOCAL-SCTP-HASH"),
            "KUBE-6-NODE-PORT-LOCAL-SCTP-HAS"
        );
        assert_eq!(of("KUBE-LOOP-BACK"), "KUBE-6-LOOP-BACK");
    }
}
