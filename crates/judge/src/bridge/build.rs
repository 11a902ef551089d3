//! The elements of each service port, and the chains they lead to.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};

use super::TABLE;
use super::lease::Lease;
use super::mark::Marks;
use kpx_node::backend::nftables::build::{
    address, by_index, detected, differs, dnat_by, goto, local, meta, named, number, payload,
    prefix, protocol, random, set_mark, socket,
};
use kpx_node::backend::nftables::expect::address_type;
use kpx_node::backend::nftables::model::{Datum, Expr, Set, Statement, Table, Verdict};
use kpx_node::backend::nftables::table_builder::Draft;
use kpx_node::backend::nftables::{affinity, names};
use kpx_node::desired::{DesiredState, Detector, FamilyState, ServicePort};
use kpx_node::evidence::Gap;
use kpx_node::net::Proto;

/// Returns the table of `family` that serves `state`, with `marks` for masquerading, for the duration of `lease`.
pub(super) fn table(
    state: &DesiredState,
    family: &FamilyState,
    marks: Marks,
    lease: &Lease,
) -> Result<Table, Gap> {
    let mut writer = Writer {
        state,
        family,
        marks,
        draft: Draft::new(
            family.family,
            TABLE,
            "serves Services while kube-proxy changes its mode; by kpx",
        ),
        owners: HashMap::new(),
    };
    writer.statics(lease);
    let node_ports = &family.node_ports;
    if !node_ports.all {
        for addr in family.node_port_addresses(&state.facts, node_ports.localhost)? {
            writer
                .draft
                .add("node-ips", vec![address(addr)], None, None);
        }
    }
    for (number, port) in family.ports.iter().enumerate() {
        writer.serve(number, port);
    }
    for (number, port) in family.ports.iter().enumerate() {
        writer.refuse(number, port);
    }
    Ok(writer.draft.finish())
}

/// The kinds of key by which ports of Services are looked up.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub(super) enum Scope {
    /// An address and a port.
    Service,
    /// A port of the node.
    NodePort,
}

impl Scope {
    /// The map of ports that are served.
    pub(super) const fn served(self) -> &'static str {
        match self {
            Self::Service => "service-ips",
            Self::NodePort => "node-ports",
        }
    }

    /// The map of ports that are rejected or dropped.
    pub(super) const fn refused(self) -> &'static str {
        match self {
            Self::Service => "refused-ips",
            Self::NodePort => "refused-node-ports",
        }
    }

    /// The types of its keys, with `addr` for addresses.
    pub(super) fn key(self, addr: &str) -> Vec<String> {
        let addr = match self {
            Self::Service => Some(addr),
            Self::NodePort => None,
        };
        let all = addr.into_iter().chain(["inet_proto", "inet_service"]);
        all.map(str::to_owned).collect()
    }

    pub(super) const fn prefix(self) -> &'static str {
        match self {
            Self::Service => "",
            Self::NodePort => "node-",
        }
    }
}

/// A key: an address and port, or a node port, of a Service.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
struct Key {
    addr: Option<IpAddr>,
    proto: Proto,
    port: u16,
}

impl Key {
    const fn scope(self) -> Scope {
        match self.addr {
            Some(_) => Scope::Service,
            None => Scope::NodePort,
        }
    }

    fn parts(self) -> Vec<Expr> {
        let addr = self.addr.map(address).into_iter();
        addr.chain([protocol(self.proto), number(self.port)])
            .collect()
    }
}

/// The endpoints of one policy.
struct Pool<'p> {
    name: &'static str,
    at: &'p [u32],
}

pub(super) struct Writer<'a> {
    pub(super) state: &'a DesiredState,
    pub(super) family: &'a FamilyState,
    pub(super) marks: Marks,
    pub(super) draft: Draft,
    /// Claims a key; the first of two service ports gets it.
    owners: HashMap<Key, usize>,
}

impl Writer<'_> {
    pub(super) fn saddr(&self) -> Expr {
        payload(self.family.family.nft_name(), "saddr")
    }

    pub(super) fn daddr(&self) -> Expr {
        payload(self.family.family.nft_name(), "daddr")
    }

    pub(super) fn detected(&self, detector: &Detector, not: bool) -> Statement {
        detected(self.family.family, detector, not, false)
    }

    pub(super) fn mark(&self) -> Statement {
        set_mark("|", self.marks.set)
    }

    fn serve(&mut self, number: usize, port: &ServicePort) {
        let cluster_ips = vec![address(port.cluster_ip)];
        self.draft.add("cluster-ips", cluster_ips, None, None);
        let cluster = Pool {
            name: "cluster",
            at: port.cluster_at(),
        };
        let local = Pool {
            name: "local",
            at: port.local_at(),
        };
        if port.has_internal() {
            let pool = if port.internal_local {
                &local
            } else {
                &cluster
            };
            let key = internal(port);
            if self.claim(number, key) {
                let chain = self.pool(port, key, pool);
                self.lead(key, chain);
            }
        }
        for key in external(port) {
            if let Some(addr) = key.addr {
                self.draft
                    .add("external-ips", vec![address(addr)], None, None);
            }
            if port.has_endpoints && self.claim(number, key) {
                let chain = self.external(port, key, &cluster, &local);
                self.lead(key, chain);
            }
        }
        self.hairpins(port);
    }

    fn claim(&mut self, number: usize, key: Key) -> bool {
        *self.owners.entry(key).or_insert(number) == number
    }

    fn lead(&mut self, key: Key, chain: String) {
        let to = Some(Datum::Verdict(Verdict::Goto(chain)));
        let map = key.scope().served();
        self.draft.add(map, key.parts(), to, None);
    }

    /// Returns the chain that sends packets to `key` to the endpoints of `pool`, which is not empty.
    fn pool(&mut self, port: &ServicePort, key: Key, pool: &Pool<'_>) -> String {
        let endpoints = pool.at.iter().map(|&at| port.endpoints[at as usize].addr);
        if port.affinity.is_some() {
            return self.sticky(port, pool, endpoints);
        }
        let scope = key.scope();
        let prefix = format!("{}{}", scope.prefix(), pool.name);
        let mut picks = Vec::new();
        for (index, addr) in endpoints.enumerate() {
            let map = format!("{prefix}-endpoints-{index}");
            let chain = format!("{prefix}-endpoint-{index}");
            if self.draft.chain(&chain, None) {
                self.pick(scope, &chain, &map);
            }
            let to = Some(Datum::Data(socket(addr)));
            self.draft.add(&map, key.parts(), to, None);
            picks.push(chain);
        }
        if picks.len() == 1 {
            return picks.remove(0);
        }
        let chain = format!("{prefix}-{}", picks.len());
        if self.draft.chain(&chain, None) {
            let any = Statement::Vmap {
                key: random(picks.len()),
                data: by_index(picks.into_iter(), |chain| {
                    Datum::Verdict(Verdict::Goto(chain))
                }),
            };
            self.draft.rule(&chain, vec![any], None);
        }
        chain
    }

    /// Adds the map of the endpoints at one position of their lists, and the rule of `chain` that translates to them.
    fn pick(&mut self, scope: Scope, chain: &str, map: &str) {
        let family = self.family.family;
        let addr = address_type(family);
        self.draft.set(Set {
            name: map.to_owned(),
            key: scope.key(addr),
            data: Some(vec![addr.to_owned(), "inet_service".to_owned()]),
            ..Set::default()
        });
        let by = match scope {
            Scope::Service => Some(self.daddr()),
            Scope::NodePort => None,
        };
        let rest = [meta("l4proto"), payload("th", "dport")];
        let key = Expr::Concat(by.into_iter().chain(rest).collect());
        let translate = dnat_by(family, key, named(map));
        self.draft.rule(chain, vec![translate], None);
    }

    /// Returns the chain for session affinity: each port has its own, because affinity is kept by port.
    fn sticky(
        &mut self,
        port: &ServicePort,
        pool: &Pool<'_>,
        endpoints: impl ExactSizeIterator<Item = SocketAddr> + Clone,
    ) -> String {
        let family = self.family.family;
        let chain = format!("{}-{}", pool.name, base(port));
        if !self.draft.chain(&chain, None) {
            return chain;
        }
        for addr in endpoints.clone() {
            let (of, _) = affinity::chain_and_set(port, addr);
            if self.draft.chain(&of, None) {
                affinity::endpoint(&mut self.draft, family, port, addr);
            }
        }
        for rule in affinity::choice(family, port, endpoints) {
            self.draft.rule(&chain, rule, None);
        }
        chain
    }

    /// Returns the chain for packets to `key` from outside the cluster.
    fn external(
        &mut self,
        port: &ServicePort,
        key: Key,
        cluster: &Pool<'_>,
        local: &Pool<'_>,
    ) -> String {
        let to_cluster = (!cluster.at.is_empty()).then(|| self.pool(port, key, cluster));
        if !port.external_local {
            let name = Self::own(port, key, "external", &[cluster]);
            if self.draft.chain(&name, None) {
                self.marked(&name, to_cluster.as_deref());
            }
            return name;
        }
        let to_local = (!local.at.is_empty()).then(|| self.pool(port, key, local));
        let name = Self::own(port, key, "outside", &[cluster, local]);
        if self.draft.chain(&name, None) {
            self.short_circuits(&name, to_cluster.as_deref());
            if let Some(to) = &to_local {
                self.draft.rule(&name, vec![goto(to)], None);
            }
        }
        name
    }

    /// Returns the name of a chain that leads to `pools`. Ports without session affinity share it if their pools have the
    /// same sizes.
    fn own(port: &ServicePort, key: Key, what: &str, pools: &[&Pool<'_>]) -> String {
        if port.affinity.is_some() {
            return format!("{what}-{}", base(port));
        }
        let counts = pools.iter().map(|pool| format!("-{}", pool.at.len()));
        let counts: String = counts.collect();
        format!("{}{what}{counts}", key.scope().prefix())
    }

    fn marked(&mut self, chain: &str, to: Option<&str>) {
        self.draft.rule(chain, vec![self.mark()], None);
        if let Some(to) = to {
            self.draft.rule(chain, vec![goto(to)], None);
        }
    }

    /// Sends packets of pods and of the node itself to all endpoints, not only to those on this node.
    fn short_circuits(&mut self, chain: &str, to: Option<&str>) {
        let Some(to) = to else {
            return;
        };
        if let Some(detector) = &self.family.detector {
            let rule = vec![self.detected(detector, false), goto(to)];
            self.draft.rule(chain, rule, None);
        }
        let rule = vec![local("saddr"), self.mark(), goto(to)];
        self.draft.rule(chain, rule, None);
    }

    /// Masquerades packets of an endpoint to itself: it must not see its own address as the source.
    fn hairpins(&mut self, port: &ServicePort) {
        for &at in port.reachable_at() {
            let endpoint = &port.endpoints[at as usize];
            if endpoint.local {
                let ip = || address(endpoint.addr.ip());
                let key = vec![
                    ip(),
                    ip(),
                    protocol(port.proto),
                    number(endpoint.addr.port()),
                ];
                self.draft.add("hairpins", key, None, None);
            }
        }
    }

    fn refuse(&mut self, number: usize, port: &ServicePort) {
        if port.has_firewall() {
            self.firewall(port);
        }
        let to = |chain: &'static str| if port.has_endpoints { chain } else { REJECT };
        if !port.has_internal() && self.claim(number, internal(port)) {
            self.refused(internal(port), to(DROP));
        }
        if !port.has_external() {
            for key in external(port) {
                if self.claim(number, key) {
                    self.refused(key, to(OUTSIDE));
                }
            }
        }
    }

    fn refused(&mut self, key: Key, chain: &str) {
        let scope = key.scope();
        let chain = format!("{}{chain}", scope.prefix());
        let to = Some(Datum::Verdict(Verdict::Goto(chain)));
        self.draft.add(scope.refused(), key.parts(), to, None);
    }

    fn firewall(&mut self, port: &ServicePort) {
        let chain = format!("firewall-{}", base(port));
        for &addr in &port.lb_ips {
            let key = Key {
                addr: Some(addr),
                ..internal(port)
            };
            let to = Some(Datum::Verdict(Verdict::Jump(chain.clone())));
            self.draft.add("firewalls", key.parts(), to, None);
        }
        let ranges = port.source_ranges.iter().map(|&cidr| prefix(cidr));
        let mut allowed: Vec<_> = ranges.collect();
        if port.admits(self.family.node_ip) {
            allowed.extend(port.lb_ips.iter().map(|&addr| address(addr)));
        }
        let others = differs(self.saddr(), Expr::Set(allowed));
        if self.draft.chain(&chain, None) {
            let rule = vec![others, Statement::Verdict(Verdict::Drop)];
            self.draft.rule(&chain, rule, None);
        }
    }
}

fn base(port: &ServicePort) -> String {
    names::service(&port.namespace, &port.service, port.proto, &port.port_name)
}

fn internal(port: &ServicePort) -> Key {
    Key {
        addr: Some(port.cluster_ip),
        proto: port.proto,
        port: port.port,
    }
}

fn external(port: &ServicePort) -> impl Iterator<Item = Key> {
    let of = |addr, number| Key {
        addr,
        proto: port.proto,
        port: number,
    };
    let addresses = port.external_ips.iter().chain(&port.lb_ips);
    let addresses = addresses.map(move |&addr| of(Some(addr), port.port));
    addresses.chain(port.node_port.map(|number| of(None, number)))
}

/// Chains that refuse packets: reject all, drop all, and drop those that come from neither the node nor its pods.
pub(super) const REJECT: &str = "refuse-reject";

pub(super) const DROP: &str = "refuse-drop";

pub(super) const OUTSIDE: &str = "refuse-outside";
