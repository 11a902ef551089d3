//! One view of the live state, joined to the Services it serves.

mod addresses;
mod chains;
mod config;
mod conntrack;
mod ipvs;
mod modes;
mod modules;
mod near;
mod nft_tree;
mod nodeports;
mod services;
mod sets;
pub(super) mod sysctls;
mod there;
mod tree;

use serde::Serialize;

use super::{CLEAN, UNKNOWN};
use crate::backend::Mode;
use crate::evidence::{Gap, Item};
use crate::net::Family;
use crate::node::NodeSnapshot;
use crate::owner::{Endpoint, Owners, Port, Source};
use crate::render::{Page, Report};
use modes::{InForce, Relevant};

/// Which view.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum View {
    /// What the node does with each Service.
    Services,
    /// iptables and nftables chains, with whose they are.
    Chains,
    /// Virtual servers and their real servers.
    Ipvs,
    /// IP sets.
    Sets,
    /// Addresses of kube-ipvs0.
    Addresses,
    /// NodePorts.
    Nodeports,
    /// Tracked connections of Services.
    Conntrack,
    /// Kernel modules.
    Modules,
    /// Kernel settings.
    Sysctls,
    /// kube-proxy's configuration.
    Config,
}

/// What tells the mode, whatever the view.
const MODE: &[Item] = &[
    Item::ProxyConfig,
    Item::ProxyMode,
    Item::Metrics,
    Item::Addresses,
    Item::Links,
    Item::Modules,
    Item::Iptables4,
    Item::Iptables6,
    Item::IptablesLegacy4,
    Item::IptablesLegacy6,
    Item::IptablesNft4,
    Item::IptablesNft6,
    Item::Nft,
    Item::NftText,
    Item::Ipvs,
    Item::IpvsSave,
    Item::IpvsStats,
    Item::IpvsTimeout,
    Item::Ipset,
];

/// What tells names.
const NAMES: &[Item] = &[Item::Services, Item::EndpointSlices, Item::Nodes];

impl View {
    /// Returns what has to be read for the view.
    pub fn needs(self) -> Vec<Item> {
        let (own, names): (&[Item], &[Item]) = match self {
            Self::Services | Self::Ipvs | Self::Sets | Self::Addresses | Self::Chains => {
                (&[], NAMES)
            }
            Self::Nodeports => (
                &[
                    Item::Tcp4,
                    Item::Tcp6,
                    Item::Udp4,
                    Item::Udp6,
                    Item::Sockets,
                    Item::Processes,
                ],
                NAMES,
            ),
            Self::Conntrack => (&[Item::Conntrack], NAMES),
            Self::Modules => (
                &[
                    Item::ModulesBuiltin,
                    Item::ModulesDep,
                    Item::ModulesLoad,
                    Item::Modprobe,
                ],
                &[],
            ),
            Self::Sysctls => (&[Item::Sysctl, Item::KernelRelease], &[]),
            Self::Config => (
                &[
                    Item::Configz,
                    Item::Processes,
                    Item::Nodes,
                    Item::DaemonSets,
                    Item::Pods,
                ],
                &[],
            ),
        };
        own.iter().chain(names).chain(MODE).copied().collect()
    }

    /// Returns whether the view names Services.
    fn joins_names(self) -> bool {
        !matches!(self, Self::Modules | Self::Sysctls | Self::Config)
    }
}

/// What was asked for.
#[derive(Clone, Copy, Debug)]
pub struct Asked<'q> {
    /// Which view.
    pub view: View,
    /// Which Service, chain, set, address or other object alone.
    pub name: Option<&'q str>,
    /// Which family alone.
    pub family: Option<Family>,
}

impl Asked<'_> {
    fn families(self) -> impl Iterator<Item = Family> {
        let only = self.family;
        Family::BOTH
            .into_iter()
            .filter(move |&family| only.is_none_or(|only| only == family))
    }

    fn takes(self, family: Family) -> bool {
        self.family.is_none_or(|only| only == family)
    }

    /// Returns whether `port`, or one of `names`, is what was asked for.
    fn wants(self, port: Option<&Port>, names: &[&str]) -> bool {
        self.name.is_none_or(|asked| {
            names.contains(&asked) || port.is_some_and(|port| port.name.answers(asked))
        })
    }
}

/// One view.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ShowReport {
    /// Which.
    pub view: View,
    /// The mode in force.
    mode: InForce,
    /// Where names of Services come from; `null` for a view without names.
    names_from: Option<Source>,
    /// What it shows.
    #[serde(flatten)]
    rows: Rows,
    /// What of it could not be read.
    pub gaps: Vec<Gap>,
    /// Why there is less to show than one might expect.
    notes: Vec<String>,
    #[serde(skip)]
    asked_by_name: bool,
    #[serde(skip)]
    named: Option<Named>,
}

/// How the name that was asked for stands.
#[derive(Debug)]
struct Named {
    /// Whether a Service is called so.
    service: bool,
    /// What the name may have been meant to be.
    near: Vec<String>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
enum Rows {
    Services(Vec<services::Row>),
    Chains(Vec<chains::Row>),
    Tree(Vec<tree::Node>),
    Servers(Vec<ipvs::Row>),
    Sets(Vec<sets::Row>),
    Addresses(Vec<addresses::Row>),
    NodePorts(Vec<nodeports::Row>),
    Connections(Vec<conntrack::Row>),
    Modules(Vec<modules::Row>),
    Sysctls(Vec<sysctls::Row>),
    Config(Box<config::Config>),
}

/// Collects reasons why a part is not known or not there, each once.
#[derive(Debug, Default)]
struct Gaps {
    unknown: Vec<Gap>,
    notes: Vec<String>,
}

impl Gaps {
    /// Returns what was read; notes why it was not.
    fn take<T>(&mut self, read: Result<T, Gap>) -> Option<T> {
        read.map_err(|gap| self.add(gap)).ok()
    }

    fn add(&mut self, gap: Gap) {
        match gap {
            Gap::NotApplicable(why) => self.note(why),
            gap if !self.unknown.contains(&gap) => self.unknown.push(gap),
            _ => {}
        }
    }

    /// Notes what is known, and yet not to be seen from the rows.
    fn note(&mut self, why: String) {
        if !self.notes.contains(&why) {
            self.notes.push(why);
        }
    }
}

impl ShowReport {
    /// Returns the view of `node` that was `asked` for.
    pub fn new(node: &NodeSnapshot<'_>, asked: Asked<'_>) -> Self {
        let mut gaps = Gaps::default();
        let owners = Owners::new(node);
        let relevant = Relevant::new(node);
        let rows = rows(node, &owners, asked, &relevant, &mut gaps);
        let joins = asked.view.joins_names();
        if joins {
            // Addresses and NodePorts are joined to Services alone; what lacks there is of endpoints.
            let endpoints = !matches!(asked.view, View::Addresses | View::Nodeports);
            let lacking = owners.gaps.iter();
            lacking
                .filter(|_| endpoints || owners.source == Source::Rules)
                .for_each(|gap| gaps.add(gap.clone()));
            let of_ipvs = matches!(asked.view, View::Ipvs | View::Addresses | View::Sets)
                || relevant.current() == Some(Mode::Ipvs);
            if owners.source == Source::Rules && of_ipvs && !rows.is_empty() {
                let why = "nothing that ipvs mode makes names a Service (\"?\"); only the cluster's objects do";
                gaps.note(why.to_owned());
            }
        }
        let named = asked.name.filter(|_| rows.is_empty()).map(|name| {
            let all = Asked {
                name: None,
                ..asked
            };
            let there = self::rows(node, &owners, all, &relevant, &mut Gaps::default());
            let services = owners.ports().iter().filter(|_| joins);
            let whole = name.contains(':');
            let services = services.map(|port| match port.name.to_string() {
                text if whole => text,
                text => text.split(':').next().unwrap_or_default().to_owned(),
            });
            Named {
                service: joins && owners.ports().iter().any(|port| port.name.answers(name)),
                near: near::nearest(name, services.chain(there.names())),
            }
        });
        if let (Some(name), Some(Named { service: true, .. })) = (asked.name, &named) {
            gaps.note(nothing_for(name, asked.view, relevant.current()));
        }
        gaps.unknown.sort_by_key(ToString::to_string);
        Self {
            view: asked.view,
            mode: relevant.in_force(),
            names_from: joins.then_some(owners.source),
            rows,
            gaps: gaps.unknown,
            notes: gaps.notes,
            asked_by_name: asked.name.is_some(),
            named,
        }
    }

    /// Returns what may have been meant, if the name that was asked for is nowhere to be found.
    pub fn not_found(&self) -> Option<&[String]> {
        let named = self.named.as_ref()?;
        (!named.service).then_some(&named.near)
    }
}

fn rows(
    node: &NodeSnapshot<'_>,
    owners: &Owners,
    asked: Asked<'_>,
    relevant: &Relevant,
    gaps: &mut Gaps,
) -> Rows {
    let of = owners;
    match asked.view {
        View::Services => Rows::Services(services::rows(node, of, asked, relevant, gaps)),
        View::Chains => match tree::tree(node, of, asked, relevant, gaps) {
            Some(tree) => Rows::Tree(tree),
            None => Rows::Chains(chains::rows(node, of, asked, relevant, gaps)),
        },
        View::Ipvs => Rows::Servers(ipvs::rows(node, of, asked, relevant, gaps)),
        View::Sets => Rows::Sets(sets::rows(node, of, asked, gaps)),
        View::Addresses => Rows::Addresses(addresses::rows(node, of, asked, relevant, gaps)),
        View::Nodeports => Rows::NodePorts(nodeports::rows(node, of, asked, relevant, gaps)),
        View::Conntrack => Rows::Connections(conntrack::rows(node, of, asked, gaps)),
        View::Modules => Rows::Modules(modules::rows(node, asked, relevant, gaps)),
        View::Sysctls => Rows::Sysctls(sysctls::rows(node, asked, relevant, gaps)),
        View::Config => Rows::Config(Box::new(config::config(node, relevant, gaps))),
    }
}

/// Says why a view has nothing for a Service that is there.
fn nothing_for(name: &str, view: View, mode: Option<Mode>) -> String {
    match (view, mode) {
        (View::Chains, Some(Mode::Ipvs)) => format!(
            "in ipvs mode a Service has no chains of its own; `kpx show ipvs {name}` and `kpx show sets {name}` show \
             what it has"
        ),
        (View::Chains, _) => format!("no chain, rule or map element is there for {name}"),
        (View::Ipvs, _) => format!("{name} has no virtual server"),
        (View::Sets, _) => format!("{name} is in no IP set"),
        (View::Addresses, _) => format!("no address of {name} is on kube-ipvs0"),
        (View::Nodeports, _) => format!("{name} has no NodePort"),
        (View::Conntrack, _) => format!("no tracked connection goes to {name}"),
        (View::Services, _) => format!("{name} has no address of the family asked for"),
        (View::Modules | View::Sysctls | View::Config, _) => format!("nothing is there for {name}"),
    }
}

impl Rows {
    fn is_empty(&self) -> bool {
        match self {
            Self::Services(rows) => rows.is_empty(),
            Self::Chains(rows) => rows.is_empty(),
            Self::Tree(rows) => rows.is_empty(),
            Self::Servers(rows) => rows.is_empty(),
            Self::Sets(rows) => rows.is_empty(),
            Self::Addresses(rows) => rows.is_empty(),
            Self::NodePorts(rows) => rows.is_empty(),
            Self::Connections(rows) => rows.is_empty(),
            Self::Modules(rows) => rows.is_empty(),
            Self::Sysctls(rows) => rows.is_empty(),
            Self::Config(_) => false,
        }
    }

    /// Returns what its rows can be asked for by.
    fn names(&self) -> Vec<String> {
        match self {
            Self::Chains(rows) => rows.iter().map(|row| row.chain.clone()).collect(),
            Self::Servers(rows) => rows.iter().map(|row| row.server.clone()).collect(),
            Self::Sets(rows) => rows.iter().map(|row| row.set.clone()).collect(),
            Self::Addresses(rows) => rows.iter().map(|row| row.address.to_string()).collect(),
            Self::NodePorts(rows) => rows.iter().map(|row| row.node_port.to_string()).collect(),
            Self::Modules(rows) => rows.iter().map(|row| row.module.clone()).collect(),
            Self::Sysctls(rows) => rows.iter().map(|row| row.sysctl.to_owned()).collect(),
            Self::Config(config) => config
                .settings
                .iter()
                .map(|of| of.name.to_owned())
                .collect(),
            Self::Services(_) | Self::Tree(_) | Self::Connections(_) => Vec::new(),
        }
    }
}

impl Report for ShowReport {
    const KIND: &'static str = "ShowReport";

    fn page(&self, page: &mut Page) {
        let current = self.mode.mode();
        let named = self.asked_by_name;
        if self.view != View::Config {
            page.para("mode ", &self.mode.words());
        }
        for gap in &self.gaps {
            page.para("not known: ", &gap.to_string());
        }
        for note in &self.notes {
            page.para("note: ", note);
        }
        match &self.rows {
            rows if rows.is_empty() => {
                if self.gaps.is_empty() && self.notes.is_empty() {
                    page.line("nothing to show");
                }
            }
            Rows::Services(rows) => services::page(rows, page),
            Rows::Chains(rows) => chains::page(rows, page),
            Rows::Tree(roots) => tree::page(roots, page),
            Rows::Servers(rows) => ipvs::page(rows, page),
            Rows::Sets(rows) => sets::page(rows, page),
            Rows::Addresses(rows) => addresses::page(rows, page),
            Rows::NodePorts(rows) => nodeports::page(rows, page),
            Rows::Connections(rows) => conntrack::page(rows, page),
            Rows::Modules(rows) => modules::page(rows, current, named, page),
            Rows::Sysctls(rows) => sysctls::page(rows, current, named, page),
            Rows::Config(config) => config::page(config, page),
        }
    }

    fn exit(&self) -> u8 {
        if self.gaps.is_empty() { CLEAN } else { UNKNOWN }
    }
}

/// Returns who an endpoint is, for people: the pod, or nothing.
fn who(endpoint: &Endpoint) -> String {
    let pod = endpoint.pod.as_deref().unwrap_or_default();
    match endpoint.state {
        None | Some(crate::owner::State::Ready) => pod.to_owned(),
        Some(state) => format!("{pod} ({state})").trim_start().to_owned(),
    }
}
