//! A node's evidence, parsed on first use.

pub mod agents;
pub mod arptables;
pub mod bpf;
mod branch;
pub mod conntrack;
pub mod counters;
pub mod crowd;
pub mod desired;
pub mod ebpf;
pub mod identity;
pub mod ipvs_connections;
pub mod links;
pub(crate) mod migration;
pub mod mode;
pub mod modules;
pub mod neighbours;
pub mod objects;
mod open_vswitch;
mod pod_network;
pub mod pod_networks;
mod portals;
pub mod processes;
pub mod recent;
pub mod routes;
pub mod runtime;
pub mod sockets;
pub mod sysctl;
mod taken_ports;
pub mod tc;
pub mod xfrm;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, OnceLock};

use crate::backend::ipset::Sets;
use crate::backend::{Mode, ipset, iptables, ipvs, nftables};
use crate::cluster::config::ProxyConfig;
use crate::cluster::version::{self, ProxyVersion};
use crate::cluster::{ConfigMap, DaemonSet, EndpointSlice, Node, Pod, Service, ServiceCidr};
use crate::desired::DesiredState;
use crate::evidence::proxy_log::{self, ProxyLog};
use crate::evidence::{Evidence, Gap, Item, Kernel, NotAKernel, Time};
use crate::net::{Family, Proto};

use bpf::Bpf;
use conntrack::Conntrack;
use counters::Counters;
use ipvs_connections::IpvsConnections;
use links::{Addresses, Links};
use migration::Migration;
use modules::Modules;
use neighbours::Neighbours;
use pod_networks::PodNetwork;
use processes::{Processes, ProxyFiles};
use recent::Recent;
use routes::{Connection, Routes, Rules};
use runtime::{Health, Metrics};
use sockets::{Connected, Sockets};
use sysctl::Sysctl;
use tc::Tc;
use xfrm::{Policies, State};

type Section<T> = OnceLock<Result<T, Gap>>;

/// Parsed view of a node and its cluster. Each section is known or has a [`Gap`].
#[derive(Debug)]
pub struct NodeSnapshot<'a> {
    evidence: &'a Evidence,
    iptables: [Section<iptables::model::Ruleset<'a>>; 2],
    iptables_legacy: [Section<iptables::model::Ruleset<'a>>; 2],
    iptables_nft: [Section<iptables::model::Ruleset<'a>>; 2],
    saved: [[Section<iptables::parse::Saved<'a>>; 2]; 3],
    nft: Section<nftables::model::Ruleset>,
    arptables: Section<nftables::model::Table>,
    ipset: Section<Sets<'a>>,
    ipvs: Section<ipvs::model::Table>,
    ipvs_connections: Section<IpvsConnections>,
    recent: Section<Recent>,
    addresses: Section<Addresses>,
    links: Section<Links>,
    routes: Section<Routes>,
    connected: Section<Vec<Connection>>,
    rules: Section<Rules>,
    sockets: Section<Sockets>,
    held_sockets: Section<Vec<Connected>>,
    sysctl: Section<Sysctl<'a>>,
    modules: Section<Modules<'a>>,
    conntrack: Section<Conntrack>,
    conntrack_stat: Section<Counters>,
    neighbour_table: Section<Neighbours>,
    xfrm: Section<Policies>,
    xfrm_states: Section<Vec<State>>,
    tc: Section<Tc>,
    bpf: Section<Bpf>,
    ebpf: OnceLock<[ebpf::EbpfProxy; 2]>,
    pod_networks: Section<Vec<PodNetwork>>,
    neighbours: [Section<Counters>; 2],
    processes: Section<Processes>,
    proxy_files: Section<ProxyFiles>,
    proxy_log: Section<ProxyLog>,
    migration: Section<Migration>,
    proxy_config: Section<ProxyConfig>,
    health: Section<Health>,
    metrics: Section<Metrics<'a>>,
    services: Section<Arc<Vec<Service>>>,
    slices: Section<Arc<Vec<EndpointSlice>>>,
    nodes: Section<Arc<Vec<Node>>>,
    config_maps: Section<Arc<Vec<ConfigMap>>>,
    daemon_sets: Section<Arc<Vec<DaemonSet>>>,
    service_cidrs: Section<Arc<Vec<ServiceCidr>>>,
    pods: Section<Arc<Vec<Pod>>>,
    proxy_ports: OnceLock<BTreeMap<(Proto, u16), String>>,
    served: OnceLock<objects::Served>,
    named: Option<String>,
    desired: Box<[Section<DesiredState>; Mode::EVER.len()]>,
}

macro_rules! sections {
    ($($(#[$doc:meta])+ $name:ident: $type:ty = |$evidence:ident| $parse:expr;)+) => {
        impl<'a> NodeSnapshot<'a> {
            $($(#[$doc])+
            pub fn $name(&self) -> Result<&$type, Gap> {
                let $evidence = self.evidence;
                self.$name.get_or_init(|| $parse).as_ref().map_err(Clone::clone)
            })+
        }
    };
}

/// Lists of the cluster's objects: nodes that share the text share the list.
macro_rules! objects {
    ($($(#[$doc:meta])+ $name:ident: $type:ty = $item:expr;)+) => {
        impl NodeSnapshot<'_> {
            $($(#[$doc])+
            pub fn $name(&self) -> Result<&$type, Gap> {
                let evidence = self.evidence;
                let parse = || evidence.parsed($item, || crate::cluster::list(evidence, $item));
                self.$name.get_or_init(parse).as_deref().map_err(Clone::clone)
            })+
        }
    };
}

sections! {
    /// Returns the nftables ruleset, from nft's JSON or else from its text.
    nft: nftables::model::Ruleset = |e| nft(e);
    /// Returns the rules of arptables in the legacy back end, as a table of nftables.
    arptables: nftables::model::Table = |e| e.text(Item::Arptables).and_then(arptables::parse);
    /// Returns the IP sets.
    ipset: Sets<'a> = |e| ipset(e);
    /// Returns the IPVS table, from netlink or from ipvsadm's output.
    ipvs: ipvs::model::Table = |e| ipvs::parse::table(e);
    /// Returns the connections forwarded by IPVS.
    ipvs_connections: IpvsConnections = |e| e.text(Item::IpvsConnections).and_then(ipvs_connections::parse);
    /// Returns the clients in lists of `xt_recent`.
    recent: Recent = |e| e.text(Item::Recent).and_then(recent::parse);
    /// Returns the addresses of every link.
    addresses: Addresses = |e| e.text(Item::Addresses).and_then(links::addresses);
    /// Returns the links.
    links: Links = |e| e.text(Item::Links).and_then(links::links);
    /// Returns the routes of every table.
    routes: Routes = |e| e.text(Item::Routes).and_then(routes::routes);
    /// Returns the networks of links that routes show, even if only some routes were read.
    connected: Vec<Connection> = |e| e.with_all_parts().text(Item::Routes).and_then(routes::connected);
    /// Returns the routing policy rules.
    rules: Rules = |e| e.text(Item::Rules).and_then(routes::rules);
    /// Returns the neighbours on every link.
    neighbour_table: Neighbours = |e| e.text(Item::NeighbourTable).and_then(neighbours::parse);
    /// Returns the policies of IPsec.
    xfrm: Policies = |e| e.text(Item::XfrmPolicies).and_then(xfrm::parse);
    /// Returns the security associations of IPsec.
    xfrm_states: Vec<State> = |e| e.text(Item::XfrmStates).and_then(xfrm::states);
    /// Returns the queueing disciplines and filters of links.
    tc: Tc = |e| e.text(Item::Tc).and_then(tc::parse);
    /// Returns programs and maps of eBPF.
    bpf: Bpf = |e| e.text(Item::Bpf).and_then(bpf::parse);
    /// Returns the networks of pods, as far as they are read.
    pod_networks: Vec<PodNetwork> = |e| e.text(Item::PodNetworks).and_then(pod_networks::parse);
    /// Returns the listening sockets, with their processes where known.
    sockets: Sockets = |e| sockets::parse(e);
    /// Returns the connected sockets whose source is an address of kube-ipvs0 or of a kpx route.
    held_sockets: Vec<Connected> = |e| e.text(Item::HeldSockets).and_then(sockets::connected);
    /// Returns the kernel settings.
    sysctl: Sysctl<'a> = |e| Sysctl::read(e);
    /// Returns the state of kernel modules.
    modules: Modules<'a> = |e| modules::parse(e);
    /// Returns the tracked connections.
    conntrack: Conntrack = |e| e.text(Item::Conntrack).and_then(conntrack::parse);
    /// Returns the counters of connection tracking.
    conntrack_stat: Counters = |e| counters_of(e, Item::ConntrackStat);
    /// Returns the processes of service proxies.
    processes: Processes = |e| e.text(Item::Processes).and_then(processes::parse);
    /// Returns the files of the node that configure kube-proxy.
    proxy_files: ProxyFiles = |e| e.text(Item::ProxyFiles).and_then(processes::files);
    /// Returns what kube-proxy's log reports.
    proxy_log: ProxyLog = |e| e.text(Item::ProxyLog).map(proxy_log::parse);
    /// Returns the last migration that kpx started on the node.
    migration: Migration = |e| e.text(Item::Migration).and_then(migration::parse);
    /// Returns the configuration of the running kube-proxy.
    proxy_config: ProxyConfig = |e| e.text(Item::ProxyConfig).and_then(ProxyConfig::parse);
    /// Returns kube-proxy's health.
    health: Health = |e| e.text(Item::Healthz).and_then(runtime::health);
    /// Returns kube-proxy's metrics.
    metrics: Metrics<'a> = |e| e.text(Item::Metrics).and_then(Metrics::read);
}

objects! {
    /// Returns the Services.
    services: Vec<Service> = Item::Services;
    /// Returns the EndpointSlices.
    slices: Vec<EndpointSlice> = Item::EndpointSlices;
    /// Returns the Node objects.
    nodes: Vec<Node> = Item::Nodes;
    /// Returns the ConfigMaps.
    config_maps: Vec<ConfigMap> = Item::ConfigMaps;
    /// Returns the DaemonSets.
    daemon_sets: Vec<DaemonSet> = Item::DaemonSets;
    /// Returns the ranges of cluster IPs.
    service_cidrs: Vec<ServiceCidr> = Item::ServiceCidrs;
    /// Returns the Pods.
    pods: Vec<Pod> = Item::Pods;
}

/// IPVS table of a kernel without IPVS loaded.
static NO_TABLE: ipvs::model::Table = ipvs::model::Table {
    servers: Vec::new(),
    timeouts: None,
    info: None,
    partial: false,
};

/// IP sets of a kernel without `ip_set` loaded.
static NO_SETS: Sets<'static> = Sets { sets: Vec::new() };

impl<'a> NodeSnapshot<'a> {
    /// Returns the IPVS table; empty if `ip_vs` is not loaded.
    pub fn ipvs_or_none(&self) -> Result<&ipvs::model::Table, Gap> {
        match self.ipvs() {
            Err(Gap::Absent(Item::Ipvs, _)) => Ok(&NO_TABLE),
            // A bundle made by hand has no file for a table that the kernel does not have.
            Err(Gap::NotCollected(_)) if self.lacks_ip_vs() => Ok(&NO_TABLE),
            read => read,
        }
    }

    /// Returns whether the evidence shows that the node does not use IPv6: no link has an address of it.
    pub fn has_no_ipv6(&self) -> bool {
        self.addresses()
            .is_ok_and(|all| all.all.iter().all(|at| at.addr.family() == Family::V4))
    }

    /// Returns whether the evidence shows that IPVS is not loaded: no loaded module and none of its settings.
    fn lacks_ip_vs(&self) -> bool {
        let loaded = self.modules().ok().and_then(|all| all.loaded.as_ref());
        let settings = self.sysctl().and_then(Sysctl::whole).ok();
        loaded.is_some_and(|all| !all.contains_key("ip_vs"))
            && settings
                .is_some_and(|all| !all.iter().any(|(key, _)| key.starts_with("net.ipv4.vs.")))
    }

    /// Returns the IP sets; empty if `ip_set` is not loaded.
    pub fn ipset_or_none(&self) -> Result<&Sets<'a>, Gap> {
        match self.ipset() {
            Err(Gap::NotApplicable(_)) => Ok(&NO_SETS),
            read => read,
        }
    }
}

/// Functions that edit a section of a copy. A section that the node does not have begins empty; an unknown one stays
/// unknown.
macro_rules! edits {
    ($($(#[$doc:meta])+ $name:ident: $section:ident: $type:ty;)+) => {
        impl<'a> NodeSnapshot<'a> {
            $($(#[$doc])+
            pub fn $name(&mut self, edit: impl FnOnce(&mut $type)) {
                // It is parsed first.
                if self.$section().is_err_and(|gap| gap.is_absence()) {
                    self.$section = OnceLock::from(Ok(Default::default()));
                }
                if let Some(Ok(section)) = self.$section.get_mut() {
                    edit(section);
                }
            })+
        }
    };
}

edits! {
    /// Edits the nftables ruleset.
    edit_nft: nft: nftables::model::Ruleset;
    /// Edits the IP sets.
    edit_ipset: ipset: Sets<'a>;
    /// Edits the addresses.
    edit_addresses: addresses: Addresses;
    /// Edits the links.
    edit_links: links: Links;
    /// Edits the routes.
    edit_routes: routes: Routes;
    /// Edits the routing policy rules.
    edit_rules: rules: Rules;
    /// Edits the kernel settings.
    edit_sysctl: sysctl: Sysctl<'a>;
    /// Edits the policies of IPsec.
    edit_xfrm: xfrm: Policies;
    /// Edits the queueing disciplines and filters of links.
    edit_tc: tc: Tc;
    /// Edits the networks of pods.
    edit_pod_networks: pod_networks: Vec<PodNetwork>;
    /// Edits the tracked connections.
    edit_conntrack: conntrack: Conntrack;
}

impl NodeSnapshot<'_> {
    /// Edits the IPVS table of a copy.
    pub fn edit_ipvs(&mut self, edit: impl FnOnce(&mut ipvs::model::Table)) {
        if self.ipvs().is_err() && self.ipvs_or_none().is_ok() {
            self.ipvs = OnceLock::from(Ok(NO_TABLE.clone()));
        }
        if let Some(Ok(table)) = self.ipvs.get_mut() {
            edit(table);
        }
    }
}

fn counters_of(evidence: &Evidence, item: Item) -> Result<Counters, Gap> {
    counters::parse(item, evidence.text(item)?)
}

fn nft(evidence: &Evidence) -> Result<nftables::model::Ruleset, Gap> {
    match (evidence.text(Item::Nft), evidence.text(Item::NftText)) {
        (Ok(json), _) => nftables::parse::json(json),
        (Err(_), Ok(text)) => nftables::parse::text(text),
        // JSON is the preferred source, so its gap is the one to report.
        (Err(gap), Err(_)) => Err(gap),
    }
}

/// Reads the IP sets. The kernel keeps a set as long as a rule asks for it, so a listing without it was cut short.
fn ipset(evidence: &Evidence) -> Result<Sets<'_>, Gap> {
    const ASKS: &str = " --match-set ";
    let text = evidence.text(Item::Ipset)?;
    let cut = |why: String| Gap::Failed(Item::Ipset, format!("cut short: {why}"));
    if evidence.missing_part(Item::Ipset).is_some() {
        return ipset::parse(text);
    }
    if !text.is_empty() && !text.ends_with('\n') {
        return Err(cut("its last line has no end".to_owned()));
    }
    let sets = ipset::parse(text)?;
    for family in Family::BOTH {
        let rules = evidence.text(IptablesBackend::InUse.item(family));
        let rules = rules.unwrap_or_default();
        let asked = rules.match_indices(ASKS).filter_map(|(at, _)| {
            let rest = &rules[at + ASKS.len()..];
            rest.split_ascii_whitespace().next()
        });
        let asked = asked.map(|name| name.trim_matches('"'));
        let missing: BTreeSet<&str> = asked.filter(|name| sets.set(name).is_none()).collect();
        // One set that was recreated at that moment says nothing about the others.
        if let [name, _, ..] = missing.iter().collect::<Vec<_>>().as_slice() {
            return Err(cut(format!(
                "it lacks set {name} and {} more, for which rules of iptables ask",
                missing.len() - 1
            )));
        }
    }
    Ok(sets)
}

/// Returns why `text`, which `iptables-save` printed, is only some of the rules: kube-proxy and the kubelet write a chain of their own to
/// each of three tables, and `iptables-save -t nat` prints one table alone.
fn only_table(item: Item, text: &str) -> Option<Gap> {
    const OWN: [&str; 2] = [":KUBE-PROXY-CANARY ", ":KUBE-KUBELET-CANARY "];
    let after = text.match_indices("\n*").map(|(at, _)| at + 2);
    let mut tables = text.starts_with('*').then_some(1).into_iter().chain(after);
    let only = &text[tables.next()?..];
    // The chain in mangle is the first one, which is there before any rule.
    if tables.next().is_some() || only.starts_with("mangle") {
        return None;
    }
    let is_of_kubernetes = OWN.iter().any(|chain| text.contains(chain));
    let is_shown_in_part = text.contains(iptables::model::IN_PART) || text.contains("# Table `");
    (is_of_kubernetes && !is_shown_in_part).then(|| {
        let table = only.lines().next().unwrap_or_default().trim_end();
        let why = format!("it has table {table} alone; record iptables-save without -t");
        Gap::Failed(item, why)
    })
}

/// iptables back end that rules were read from.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum IptablesBackend {
    /// The back end in use on the node.
    InUse,
    /// The legacy back end, if it is not the one in use.
    Legacy,
    /// The nft back end, if it is not the one in use.
    Nft,
}

impl IptablesBackend {
    /// Returns the item that holds the rules of `family`.
    pub const fn item(self, family: Family) -> Item {
        match (self, family) {
            (Self::InUse, Family::V4) => Item::Iptables4,
            (Self::InUse, Family::V6) => Item::Iptables6,
            (Self::Legacy, Family::V4) => Item::IptablesLegacy4,
            (Self::Legacy, Family::V6) => Item::IptablesLegacy6,
            (Self::Nft, Family::V4) => Item::IptablesNft4,
            (Self::Nft, Family::V6) => Item::IptablesNft6,
        }
    }
}

impl<'a> NodeSnapshot<'a> {
    /// Returns the time of a bundle: from its manifest, or else from kube-proxy's clock.
    pub fn taken(&self) -> Option<Time> {
        let manifest = self.evidence().manifest();
        let manifest = manifest.map(|manifest| manifest.time.as_str());
        let health = self.health().ok();
        let health = health.and_then(|health| health.current_time.as_deref());
        manifest.or(health)?.parse().ok()
    }

    /// Returns whether every EndpointSlice is known: only then is an address that none of them has no endpoint.
    pub fn has_all_slices(&self) -> bool {
        self.slices().is_ok() && self.evidence().part(Item::EndpointSlices).is_none()
    }

    /// Returns a view with these Services and EndpointSlices instead of the evidence's own.
    #[must_use]
    pub fn with_services(mut self, services: Vec<Service>, slices: Vec<EndpointSlice>) -> Self {
        self.services = OnceLock::from(Ok(Arc::new(services)));
        self.slices = OnceLock::from(Ok(Arc::new(slices)));
        self
    }

    /// Returns a view of `evidence`. Sections are parsed on first use.
    pub fn new(evidence: &'a Evidence) -> Self {
        Self {
            evidence,
            iptables: Default::default(),
            iptables_legacy: Default::default(),
            iptables_nft: Default::default(),
            saved: Default::default(),
            nft: OnceLock::new(),
            arptables: OnceLock::new(),
            ipset: OnceLock::new(),
            ipvs: OnceLock::new(),
            ipvs_connections: OnceLock::new(),
            recent: OnceLock::new(),
            addresses: OnceLock::new(),
            links: OnceLock::new(),
            routes: OnceLock::new(),
            connected: OnceLock::new(),
            rules: OnceLock::new(),
            sockets: OnceLock::new(),
            held_sockets: OnceLock::new(),
            sysctl: OnceLock::new(),
            modules: OnceLock::new(),
            conntrack: OnceLock::new(),
            conntrack_stat: OnceLock::new(),
            neighbour_table: OnceLock::new(),
            xfrm: OnceLock::new(),
            xfrm_states: OnceLock::new(),
            tc: OnceLock::new(),
            bpf: OnceLock::new(),
            ebpf: OnceLock::new(),
            pod_networks: OnceLock::new(),
            neighbours: Default::default(),
            processes: OnceLock::new(),
            proxy_files: OnceLock::new(),
            proxy_log: OnceLock::new(),
            migration: OnceLock::new(),
            proxy_config: OnceLock::new(),
            health: OnceLock::new(),
            metrics: OnceLock::new(),
            services: OnceLock::new(),
            slices: OnceLock::new(),
            nodes: OnceLock::new(),
            config_maps: OnceLock::new(),
            daemon_sets: OnceLock::new(),
            service_cidrs: OnceLock::new(),
            pods: OnceLock::new(),
            proxy_ports: OnceLock::new(),
            served: OnceLock::new(),
            named: None,
            desired: Box::default(),
        }
    }

    /// Returns a copy that can be edited. It shares the cluster's objects, and parses the rest of the evidence again.
    pub fn fork<'c>(&self) -> NodeSnapshot<'c>
    where
        'a: 'c,
    {
        NodeSnapshot {
            services: self.services.clone(),
            slices: self.slices.clone(),
            nodes: self.nodes.clone(),
            pods: self.pods.clone(),
            service_cidrs: self.service_cidrs.clone(),
            nft: self.nft.clone(),
            ipvs: self.ipvs.clone(),
            proxy_config: self.proxy_config.clone(),
            named: self.named.clone(),
            ..NodeSnapshot::new(self.evidence)
        }
    }

    /// Sets the name of the node, which overrides its configuration.
    #[must_use]
    pub fn called(mut self, name: Option<&str>) -> Self {
        self.named = name.map(str::to_owned);
        self
    }

    /// Returns the timeouts of IPVS.
    pub fn ipvs_timeouts(&self) -> Result<ipvs::model::Timeouts, Gap> {
        let known = self.ipvs()?.timeouts;
        known.map_or_else(|| ipvs::parse::separate_timeouts(self.evidence), Ok)
    }

    /// Returns the version of IPVS and the size of its hash table.
    pub fn ipvs_info(&self) -> Result<ipvs::model::Info, Gap> {
        let table = self.ipvs()?;
        let lacks = || ipvs::parse::lacks_info(table, self.evidence);
        table.info.ok_or_else(lacks)
    }

    /// Replaces the addresses of the evidence.
    #[must_use]
    pub fn with_addresses(mut self, addresses: Addresses) -> Self {
        self.addresses = OnceLock::from(Ok(addresses));
        self
    }

    /// Replaces kube-proxy's configuration.
    #[must_use]
    pub fn with_proxy_config(mut self, config: ProxyConfig) -> Self {
        self.proxy_config = OnceLock::from(Ok(config));
        self
    }

    /// Replaces the nftables rules of the evidence.
    #[must_use]
    pub fn with_nft(mut self, rules: Result<nftables::model::Ruleset, Gap>) -> Self {
        self.nft = OnceLock::from(rules);
        self
    }

    /// Returns the underlying evidence.
    pub fn evidence(&self) -> &'a Evidence {
        self.evidence
    }

    /// Returns the rules of `family` in `store`.
    pub fn iptables(
        &self,
        store: IptablesBackend,
        family: Family,
    ) -> Result<&iptables::model::Ruleset<'a>, Gap> {
        let sections = match store {
            IptablesBackend::InUse => &self.iptables,
            IptablesBackend::Legacy => &self.iptables_legacy,
            IptablesBackend::Nft => &self.iptables_nft,
        };
        let item = store.item(family);
        let parse = || {
            let text = self.evidence.text(item)?;
            self.is_listing(store, family, text)?;
            iptables::parse::ruleset(item, text)
        };
        let section = &sections[usize::from(family == Family::V6)];
        section.get_or_init(parse).as_ref().map_err(Clone::clone)
    }

    /// Returns an error if `text` lists only some tables of `family` in `store`, or none of the tables that nft lists.
    fn is_listing(&self, store: IptablesBackend, family: Family, text: &str) -> Result<(), Gap> {
        if store == IptablesBackend::InUse && text.trim().is_empty() {
            return self.is_empty(family);
        }
        let lists = |name: &str| {
            let tables = self.nft().map_or(&[][..], |rules| &rules.tables);
            let is_it = |table: &&nftables::model::Table| {
                table.family == family.nft_name() && table.name == name
            };
            tables
                .iter()
                .find(is_it)
                .is_some_and(|table| !table.chains.is_empty())
        };
        let mut left_out = iptables::parse::left_out(text);
        if let Some(name) =
            left_out.find(|name| ["nat", "filter", "mangle"].contains(name) && !lists(name))
        {
            let why = format!(
                "iptables cannot list table {name}, which has native rules of nftables; record what nft lists"
            );
            return Err(Gap::Failed(store.item(family), why));
        }
        let Some(gap) = only_table(store.item(family), text) else {
            return Ok(());
        };
        // Where nft lists the tables of iptables, one that it lacks does not exist.
        let is_so = self.nft().is_ok_and(|rules| {
            let names = ["mangle", "nat", "filter"];
            let is_of_iptables = |table: &&nftables::model::Table| {
                table.family == family.nft_name() && names.contains(&table.name.as_str())
            };
            rules.tables.iter().filter(is_of_iptables).count() == 1
        });
        if is_so && store == IptablesBackend::InUse {
            Ok(())
        } else {
            Err(gap)
        }
    }

    /// Returns an error if nft lists chains of Kubernetes, or rules, in tables of iptables, of which no item has the rules.
    fn is_empty(&self, family: Family) -> Result<(), Gap> {
        let other = self.evidence.text(IptablesBackend::Nft.item(family));
        let Ok(rules) = self.nft() else {
            return Ok(());
        };
        // Chains of mode nftables, and most chains that nft itself makes, have names in small letters.
        let tables = rules.tables.iter();
        let tables = tables.filter(|table| table.family == family.nft_name());
        let mut chains = tables.flat_map(|table| {
            let has_rules = table.chains.iter().any(|chain| !chain.rules.is_empty());
            let chains = table.chains.iter();
            chains.filter(move |chain| {
                let is_of_iptables =
                    chain.base.is_some() && chain.name == chain.name.to_ascii_uppercase();
                chain.name.starts_with("KUBE-") || has_rules && is_of_iptables
            })
        });
        match chains.next() {
            Some(chain) if other.is_err() => {
                let why = format!(
                    "it is empty, but nft lists chain {}; record iptables-nft-save",
                    chain.name
                );
                Err(Gap::Failed(IptablesBackend::InUse.item(family), why))
            }
            _ => Ok(()),
        }
    }

    /// Parses the rules in use, for a thread beside the one that asks for them and for the desired rules.
    pub fn parse_rules(&self) {
        // A parse error is reported where the section is used.
        for family in Family::BOTH {
            self.iptables(IptablesBackend::InUse, family).ok();
        }
        self.nft().ok();
    }

    /// Returns the rules of `family` in `store`; each chain is parsed on first use.
    pub fn saved(
        &self,
        store: IptablesBackend,
        family: Family,
    ) -> Result<&iptables::parse::Saved<'a>, Gap> {
        let section = &self.saved[store as usize][usize::from(family == Family::V6)];
        let item = store.item(family);
        let find = || {
            let text = self.evidence.text(item)?;
            self.is_listing(store, family, text)?;
            iptables::parse::Saved::new(item, text)
        };
        section.get_or_init(find).as_ref().map_err(Clone::clone)
    }

    /// Returns the counters of the neighbour table of `family`, which all network namespaces share.
    pub fn neighbours(&self, family: Family) -> Result<&Counters, Gap> {
        let item = match family {
            Family::V4 => Item::Neighbours4,
            Family::V6 => Item::Neighbours6,
        };
        let section = &self.neighbours[usize::from(family == Family::V6)];
        section
            .get_or_init(|| counters_of(self.evidence, item))
            .as_ref()
            .map_err(Clone::clone)
    }

    /// Returns kube-proxy's Pods on all nodes, or why some of them are unknown.
    pub fn all_pods(&self) -> Result<&[Pod], Gap> {
        let pods = self.pods()?;
        match crate::cluster::missing(self.evidence, Item::Pods)?.as_slice() {
            [] => Ok(pods),
            missing => Err(Gap::Denied(Item::Pods, missing.join("; "))),
        }
    }

    /// Returns the running kernel's release, trimmed.
    pub fn kernel_release(&self) -> Result<&'a str, Gap> {
        self.evidence.text(Item::KernelRelease).map(str::trim)
    }

    /// Returns the running kernel's release as numbers.
    pub fn kernel(&self) -> Result<Kernel, Gap> {
        let release = self.kernel_release()?;
        let kernel = release.parse();
        kernel.map_err(|e: NotAKernel| Gap::Failed(Item::KernelRelease, e.to_string()))
    }

    /// Returns the mode reported by kube-proxy, trimmed.
    pub fn proxy_mode(&self) -> Result<&'a str, Gap> {
        self.evidence.text(Item::ProxyMode).map(str::trim)
    }

    /// Returns kube-proxy's version on Node `node`, with its source.
    pub fn proxy_version(&self, node: Option<&str>) -> Result<ProxyVersion, Gap> {
        version::find(&version::Clues {
            node,
            build: self.metrics().map(Metrics::git_version),
            pods: self.pods().map(Vec::as_slice),
            daemon_sets: self.daemon_sets().map(Vec::as_slice),
            nodes: self.nodes().map(Vec::as_slice),
        })
    }
}
