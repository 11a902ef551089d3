//! What the iptables mode writes, in the form `iptables-save` prints.
//!
//! Source: `syncProxyRules` in kube-proxy's `pkg/proxy/iptables/proxier.go`. The order of service ports, which is
//! random in kube-proxy, is that of their names here.

mod chains;

use std::net::IpAddr;

use super::build::{
    TableBuilder, comment, flip_mark, jump, jumps, marked, masquerade, ports, protocol, reject,
    rule, ruleset, set_mark, states, to, to_local,
};
use super::model::{Chain, Invertible, Match, Rule, Ruleset, States, Target, Text};
use super::names;
use crate::cluster::release::Change;
use crate::desired::{DesiredState, FamilyState, ServicePort};
use crate::evidence::Gap;
use crate::net::{Family, Proto};

/// The nfacct counter of dropped packets in no valid state.
pub const COUNT_INVALID: &str = "ct_state_invalid_dropped_pkts";
/// The nfacct counter of packets to NodePorts on localhost.
pub const COUNT_LOCALHOST: &str = "localhost_nps_accepted_pkts";
/// The comment of the rules that lead to NodePorts.
pub const TAIL: &str =
    "kubernetes service nodeports; NOTE: this must be the last rule in this chain";
/// The chain whose absence shows kube-proxy that its rules were flushed.
pub const CANARY: &str = "KUBE-PROXY-CANARY";

/// The jumps from built-in chains: table, from, to, whether only for new connections, comment.
pub const JUMPS: &[(&str, &str, &str, bool, &str)] = &[
    (
        "filter",
        "INPUT",
        "KUBE-EXTERNAL-SERVICES",
        true,
        "kubernetes externally-visible service portals",
    ),
    (
        "filter",
        "FORWARD",
        "KUBE-EXTERNAL-SERVICES",
        true,
        "kubernetes externally-visible service portals",
    ),
    (
        "filter",
        "INPUT",
        "KUBE-NODEPORTS",
        false,
        "kubernetes health check service ports",
    ),
    (
        "filter",
        "FORWARD",
        "KUBE-SERVICES",
        true,
        "kubernetes service portals",
    ),
    (
        "filter",
        "OUTPUT",
        "KUBE-SERVICES",
        true,
        "kubernetes service portals",
    ),
    (
        "filter",
        "FORWARD",
        "KUBE-FORWARD",
        false,
        "kubernetes forwarding rules",
    ),
    (
        "filter",
        "INPUT",
        "KUBE-PROXY-FIREWALL",
        true,
        "kubernetes load balancer firewall",
    ),
    (
        "filter",
        "OUTPUT",
        "KUBE-PROXY-FIREWALL",
        true,
        "kubernetes load balancer firewall",
    ),
    (
        "filter",
        "FORWARD",
        "KUBE-PROXY-FIREWALL",
        true,
        "kubernetes load balancer firewall",
    ),
    (
        "nat",
        "OUTPUT",
        "KUBE-SERVICES",
        false,
        "kubernetes service portals",
    ),
    (
        "nat",
        "PREROUTING",
        "KUBE-SERVICES",
        false,
        "kubernetes service portals",
    ),
    (
        "nat",
        "POSTROUTING",
        "KUBE-POSTROUTING",
        false,
        "kubernetes postrouting rules",
    ),
    ("filter", "INPUT", "KUBE-FIREWALL", false, ""),
    ("filter", "OUTPUT", "KUBE-FIREWALL", false, ""),
];

/// The names of the chains of one family's service ports.
#[derive(Clone, Debug, Default)]
pub struct Names {
    ports: Vec<PortNames>,
}

/// The names of the chains of one service port.
#[derive(Clone, Debug)]
pub struct PortNames {
    /// For endpoints of the whole cluster.
    pub svc: String,
    /// For endpoints of this node.
    pub svl: String,
    /// For traffic from outside.
    pub ext: String,
    /// For source ranges.
    pub fw: String,
    /// One per endpoint, at its position; empty for an endpoint that is not used.
    pub seps: Vec<String>,
}

impl Names {
    /// Names the chains of `family`'s service ports.
    pub fn of(family: &FamilyState) -> Self {
        let ports = family.ports.iter().map(|port| {
            let hash = names::service_hash(&port.spn, port.proto);
            let mut seps = vec![String::new(); port.endpoints.len()];
            for &at in port.reachable_at() {
                let endpoint = &port.endpoints[at as usize];
                let hash = names::endpoint_hash(&port.spn, port.proto, endpoint.addr);
                seps[at as usize] = format!("{}{hash}", names::SEP);
            }
            PortNames {
                svc: format!("{}{hash}", names::SVC),
                svl: format!("{}{hash}", names::SVL),
                ext: format!("{}{hash}", names::EXT),
                fw: format!("{}{hash}", names::FW),
                seps,
            }
        });
        Self {
            ports: ports.collect(),
        }
    }

    /// Iterates over the names, in the order of the service ports.
    pub fn iter(&self) -> impl Iterator<Item = &PortNames> {
        self.ports.iter()
    }
}

/// Returns the rules of `family`.
pub fn expect<'a>(
    state: &'a DesiredState,
    family: &'a FamilyState,
    names: &'a Names,
) -> Result<Ruleset<'a>, Gap> {
    let mut own = Vec::new();
    let mut rules = each(state, family, names, &mut |chain| own.push(chain))?;
    let nat = rules.tables.iter_mut().find(|table| table.name == "nat");
    if let Some(nat) = nat {
        nat.chains.append(&mut own);
        nat.index();
    }
    Ok(rules)
}

/// Hands every chain that serves one service port to `take`, each as soon as it is written, and returns the others.
///
/// All chains of a large cluster at once would take more time and memory than one after the other. Chains that serve
/// one service port are in table nat.
pub fn each<'a>(
    state: &'a DesiredState,
    family: &'a FamilyState,
    names: &'a Names,
    take: &mut dyn FnMut(Chain<'a>),
) -> Result<Ruleset<'a>, Gap> {
    let mut writer = Writer::new(state, family, take);
    for (port, names) in family.ports.iter().zip(&names.ports) {
        writer.port(port, names);
    }
    writer.tail()?;
    let mut mangle = TableBuilder::default();
    mangle.chain(CANARY);
    Ok(ruleset(vec![
        ("mangle", mangle),
        ("filter", writer.filter),
        ("nat", writer.nat),
    ]))
}

struct Writer<'a, 't> {
    state: &'a DesiredState,
    family: &'a FamilyState,
    /// Takes the chains of service ports.
    take: &'t mut dyn FnMut(Chain<'a>),
    filter: TableBuilder<'a>,
    nat: TableBuilder<'a>,
    reject_internal: usize,
    reject_external: usize,
    health: usize,
    firewall: usize,
    services: usize,
    node_ports: usize,
}

impl<'a, 't> Writer<'a, 't> {
    fn new(
        state: &'a DesiredState,
        family: &'a FamilyState,
        take: &'t mut dyn FnMut(Chain<'a>),
    ) -> Self {
        let mut filter = TableBuilder::default();
        let mut nat = TableBuilder::default();
        for (name, table) in [("filter", &mut filter), ("nat", &mut nat)] {
            let known = move |to| to != "KUBE-FIREWALL" || state.has(Change::KubeFirewall);
            let rows = JUMPS
                .iter()
                .filter(move |row| row.0 == name && known(row.2));
            jumps(
                table,
                &rows.map(|&(_, from, to, new, text)| (from, jump_rule(to, new, text))),
            );
        }
        let reject_internal = filter.chain("KUBE-SERVICES");
        let reject_external = filter.chain("KUBE-EXTERNAL-SERVICES");
        let forward = filter.chain("KUBE-FORWARD");
        let health = filter.chain("KUBE-NODEPORTS");
        let firewall = filter.chain("KUBE-PROXY-FIREWALL");
        let martians = state
            .has(Change::KubeFirewall)
            .then(|| filter.chain("KUBE-FIREWALL"));
        filter.chain(CANARY);
        let services = nat.chain("KUBE-SERVICES");
        let node_ports = nat.chain("KUBE-NODEPORTS");
        let postrouting = nat.chain("KUBE-POSTROUTING");
        let mark_masq = nat.chain("KUBE-MARK-MASQ");
        nat.chain(CANARY);

        let mark = state.mark;
        if state.drops_invalid() {
            let mut matches = vec![states(States::INVALID)];
            if state.facts.count_invalid {
                matches.push(Match::Nfacct(COUNT_INVALID.into()));
            }
            filter.push(forward, rule(matches, Target::Drop));
        }
        forwarding(&mut filter, forward, mark);
        if let Some(martians) = martians.filter(|_| family.node_ports.localhost) {
            let loopback = Family::V4.loopback();
            let inverted = States::RELATED | States::ESTABLISHED | States::DNAT;
            let matches = vec![
                Match::Source(Invertible::inverted(loopback)),
                Match::Destination(Invertible::plain(loopback)),
                comment("block incoming localnet connections"),
                Match::State {
                    states: Invertible::inverted(States(inverted)),
                    old: false,
                },
            ];
            filter.push(martians, rule(matches, Target::Drop));
        }
        masquerading(&mut nat, postrouting, mark, state.facts.random_fully);
        nat.push(mark_masq, rule(Vec::new(), set_mark(mark)));
        Self {
            state,
            family,
            take,
            filter,
            nat,
            reject_internal,
            reject_external,
            health,
            firewall,
            services,
            node_ports,
        }
    }

    fn port(&mut self, port: &'a ServicePort, names: &'a PortNames) {
        let spn = &port.spn;
        let ext = names.ext.as_str();
        let fw = port.has_endpoints && port.has_firewall();
        let internal = if port.internal_local {
            &names.svl
        } else {
            &names.svc
        };
        let nobody = if port.has_endpoints {
            format!("{spn} has no local endpoints")
        } else {
            format!("{spn} has no endpoints")
        };
        let refuse = || {
            if port.has_endpoints {
                Target::Drop
            } else {
                reject(self.family.family)
            }
        };
        let cluster_ip = format!("{spn} cluster IP");
        if port.has_internal() {
            let to = dispatch(port, Some(port.cluster_ip), cluster_ip.clone());
            self.nat
                .push(self.services, rule(to, jump(internal.as_str())));
        } else {
            let to = dispatch(port, Some(port.cluster_ip), nobody.clone());
            self.filter.push(self.reject_internal, rule(to, refuse()));
        }
        for (addr, kind, target) in external(port, ext, if fw { &names.fw } else { ext }) {
            if port.has_endpoints {
                let to = dispatch(port, Some(addr), format!("{spn} {kind}"));
                self.nat.push(self.services, rule(to, jump(target)));
            }
            if !port.has_external() {
                let to = dispatch(port, Some(addr), nobody.clone());
                self.filter.push(self.reject_external, rule(to, refuse()));
            }
        }
        if fw {
            for &vip in &port.lb_ips {
                let text = format!("{spn} traffic not accepted by {}", names.fw);
                let to = dispatch(port, Some(vip), text);
                self.filter.push(self.firewall, rule(to, Target::Drop));
            }
        }
        if let Some(number) = port.node_port {
            if port.has_endpoints {
                self.node_port(port, number, ext);
            }
            if !port.has_external() {
                let matches = vec![
                    protocol(port.proto),
                    comment(nobody),
                    to_local(),
                    ports(port.proto, Some(number)),
                ];
                self.filter
                    .push(self.reject_external, rule(matches, refuse()));
            }
        }
        if let Some(number) = port.health_check {
            let matches = vec![
                protocol(Proto::Tcp),
                comment(format!("{spn} health check node port")),
                ports(Proto::Tcp, Some(number)),
            ];
            self.filter.push(self.health, rule(matches, Target::Accept));
        }
        self.chains(port, names, cluster_ip, fw);
    }

    fn node_port(&mut self, port: &'a ServicePort, number: u16, ext: &'a str) {
        let plain = vec![
            protocol(port.proto),
            comment(port.spn.as_str()),
            ports(port.proto, Some(number)),
        ];
        if self.family.node_ports.localhost && self.state.facts.count_localhost {
            let mut matches = plain.clone();
            let loopback = Family::V4.loopback();
            matches.insert(0, Match::Destination(Invertible::plain(loopback)));
            matches.push(Match::Nfacct(COUNT_LOCALHOST.into()));
            self.nat.push(self.node_ports, rule(matches, jump(ext)));
        }
        self.nat.push(self.node_ports, rule(plain, jump(ext)));
    }

    /// Writes the rules that lead to NodePorts.
    fn tail(&mut self) -> Result<(), Gap> {
        let node_ports = &self.family.node_ports;
        if !node_ports.all {
            let addresses = self
                .family
                .node_port_addresses(&self.state.facts, node_ports.localhost)?;
            for addr in addresses {
                let matches = vec![to(addr), comment(TAIL)];
                self.nat
                    .push(self.services, rule(matches, jump("KUBE-NODEPORTS")));
            }
            return Ok(());
        }
        let mut matches = vec![comment(TAIL), to_local()];
        let loopback = self.family.family.loopback();
        if !node_ports.localhost {
            matches.insert(0, Match::Destination(Invertible::inverted(loopback)));
        }
        self.nat
            .push(self.services, rule(matches, jump("KUBE-NODEPORTS")));
        Ok(())
    }
}

/// The matches of a rule for one address and port of a Service.
fn dispatch<'a>(
    port: &ServicePort,
    addr: Option<IpAddr>,
    text: impl Into<Text<'a>>,
) -> Vec<Match<'a>> {
    let mut matches = Vec::with_capacity(5);
    matches.extend(addr.map(to));
    matches.push(protocol(port.proto));
    matches.push(comment(text));
    matches.push(ports(port.proto, Some(port.port)));
    matches
}

/// External addresses of `port`, their names in comments, and where they lead.
fn external<'a>(
    port: &ServicePort,
    ext: &'a str,
    balancer: &'a str,
) -> impl Iterator<Item = (IpAddr, &'static str, &'a str)> {
    let external = port.external_ips.iter();
    let external = external.map(move |&addr| (addr, "external IP", ext));
    let vips = port.lb_ips.iter();
    external.chain(vips.map(move |&addr| (addr, "loadbalancer IP", balancer)))
}

fn jump_rule(to: &'static str, new: bool, text: &'static str) -> Rule<'static> {
    let mut matches = Vec::new();
    if new {
        matches.push(states(States::NEW));
    }
    if !text.is_empty() {
        matches.push(comment(text));
    }
    rule(matches, jump(to))
}

/// The rules of KUBE-FORWARD that the iptables and ipvs modes share.
pub(crate) fn forwarding(filter: &mut TableBuilder<'_>, chain: usize, mark: u32) {
    let matches = vec![comment("kubernetes forwarding rules"), marked(mark, false)];
    filter.push(chain, rule(matches, Target::Accept));
    let matches = vec![
        comment("kubernetes forwarding conntrack rule"),
        states(States::RELATED | States::ESTABLISHED),
    ];
    filter.push(chain, rule(matches, Target::Accept));
}

/// The rules of KUBE-POSTROUTING that the iptables and ipvs modes share.
pub(crate) fn masquerading(
    nat: &mut TableBuilder<'_>,
    chain: usize,
    mark: u32,
    random_fully: bool,
) {
    nat.push(chain, rule(vec![marked(mark, true)], Target::Return));
    nat.push(chain, rule(Vec::new(), flip_mark(mark)));
    let text = comment("kubernetes service traffic requiring SNAT");
    nat.push(chain, rule(vec![text], masquerade(random_fully)));
}
