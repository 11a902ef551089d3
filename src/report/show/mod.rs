//! One view of the live state, joined to the Services it serves.

mod chains;
mod config;
mod ipvs;
mod kernel;
mod services;
mod traffic;

use serde::Serialize;

use super::{CLEAN, UNKNOWN};
use crate::evidence::{Gap, Item};
use crate::net::Family;
use crate::node::NodeSnapshot;
use crate::owner::{Endpoint, Owners, Port};
use crate::render::{Page, Report};

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

/// What tells names and modes, whatever the view.
const CONTEXT: &[Item] = &[
    Item::Services,
    Item::EndpointSlices,
    Item::Nodes,
    Item::ProxyConfig,
    Item::ProxyMode,
    Item::Addresses,
    Item::Iptables4,
    Item::Iptables6,
    Item::Nft,
    Item::NftText,
];

impl View {
    /// Returns what has to be read for the view.
    pub fn needs(self) -> Vec<Item> {
        let ipvs = [
            Item::Ipvs,
            Item::IpvsSave,
            Item::IpvsStats,
            Item::IpvsTimeout,
            Item::Ipset,
            Item::Links,
        ];
        let own: &[Item] = match self {
            Self::Services | Self::Ipvs | Self::Sets | Self::Addresses | Self::Chains => &ipvs,
            Self::Nodeports => &[
                Item::Ipvs,
                Item::IpvsSave,
                Item::IpvsStats,
                Item::IpvsTimeout,
                Item::Tcp4,
                Item::Tcp6,
                Item::Udp4,
                Item::Udp6,
                Item::Sockets,
            ],
            Self::Conntrack => &[Item::Conntrack],
            Self::Modules => &[
                Item::Modules,
                Item::ModulesBuiltin,
                Item::ModulesDep,
                Item::ModulesLoad,
                Item::Modprobe,
                Item::KernelRelease,
            ],
            Self::Sysctls => &[Item::Sysctl],
            Self::Config => &[
                Item::Metrics,
                Item::DaemonSets,
                Item::Pods,
                Item::Ipvs,
                Item::IpvsSave,
                Item::IpvsStats,
                Item::IpvsTimeout,
                Item::Ipset,
                Item::Links,
            ],
        };
        let context: &[Item] = match self {
            Self::Modules | Self::Sysctls => &[Item::ProxyConfig, Item::ProxyMode],
            _ => CONTEXT,
        };
        own.iter().chain(context).copied().collect()
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
    /// What it shows.
    #[serde(flatten)]
    rows: Rows,
    /// What of it could not be read.
    pub gaps: Vec<Gap>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
enum Rows {
    Services(Vec<services::Row>),
    Chains(Vec<chains::Row>),
    Tree(Vec<chains::Node>),
    Servers(Vec<ipvs::Server>),
    Sets(Vec<ipvs::SetRow>),
    Addresses(Vec<ipvs::AddressRow>),
    NodePorts(Vec<traffic::NodePortRow>),
    Connections(Vec<traffic::Connection>),
    Modules(Vec<kernel::ModuleRow>),
    Sysctls(Vec<kernel::SysctlRow>),
    Config(Box<config::Config>),
}

/// Collects reasons why a part is not known, each once.
#[derive(Debug, Default)]
struct Gaps(Vec<Gap>);

impl Gaps {
    /// Returns what was read; notes why it was not.
    fn take<T>(&mut self, read: Result<T, Gap>) -> Option<T> {
        read.map_err(|gap| self.add(gap)).ok()
    }

    fn add(&mut self, gap: Gap) {
        let there = matches!(gap, Gap::NotApplicable(_) | Gap::Absent(..));
        if !there && !self.0.contains(&gap) {
            self.0.push(gap);
        }
    }
}

impl ShowReport {
    /// Returns the view of `node` that was `asked` for.
    pub fn new(node: &NodeSnapshot<'_>, asked: Asked<'_>) -> Self {
        let mut gaps = Gaps::default();
        let owners = Owners::new(node);
        let (of, gap) = (&owners, &mut gaps);
        let rows = match asked.view {
            View::Services => Rows::Services(services::rows(node, of, asked, gap)),
            View::Chains => match chains::tree(node, of, asked, gap) {
                Some(tree) => Rows::Tree(tree),
                None => Rows::Chains(chains::rows(node, of, asked, gap)),
            },
            View::Ipvs => Rows::Servers(ipvs::servers(node, of, asked, gap)),
            View::Sets => Rows::Sets(ipvs::sets(node, of, asked, gap)),
            View::Addresses => Rows::Addresses(ipvs::addresses(node, of, asked, gap)),
            View::Nodeports => Rows::NodePorts(traffic::node_ports(node, of, asked, gap)),
            View::Conntrack => Rows::Connections(traffic::connections(node, of, asked, gap)),
            View::Modules => Rows::Modules(kernel::modules(node, asked, gap)),
            View::Sysctls => Rows::Sysctls(kernel::sysctls(node, asked, gap)),
            View::Config => Rows::Config(Box::new(config::config(node, gap))),
        };
        gaps.0.sort_by_key(ToString::to_string);
        Self {
            view: asked.view,
            rows,
            gaps: gaps.0,
        }
    }

    /// Returns whether there is nothing to show.
    pub fn is_empty(&self) -> bool {
        match &self.rows {
            Rows::Services(rows) => rows.is_empty(),
            Rows::Chains(rows) => rows.is_empty(),
            Rows::Tree(rows) => rows.is_empty(),
            Rows::Servers(rows) => rows.is_empty(),
            Rows::Sets(rows) => rows.is_empty(),
            Rows::Addresses(rows) => rows.is_empty(),
            Rows::NodePorts(rows) => rows.is_empty(),
            Rows::Connections(rows) => rows.is_empty(),
            Rows::Modules(rows) => rows.is_empty(),
            Rows::Sysctls(rows) => rows.is_empty(),
            Rows::Config(_) => false,
        }
    }
}

impl Report for ShowReport {
    const KIND: &'static str = "ShowReport";

    fn page(&self, page: &mut Page) {
        for gap in &self.gaps {
            page.para("not known: ", &gap.to_string());
        }
        match &self.rows {
            _ if self.is_empty() && self.gaps.is_empty() => page.line("nothing to show"),
            _ if self.is_empty() => {}
            Rows::Services(rows) => services::page(rows, page),
            Rows::Chains(rows) => chains::page(rows, page),
            Rows::Tree(roots) => chains::page_tree(roots, page),
            Rows::Servers(rows) => ipvs::page_servers(rows, page),
            Rows::Sets(rows) => ipvs::page_sets(rows, page),
            Rows::Addresses(rows) => ipvs::page_addresses(rows, page),
            Rows::NodePorts(rows) => traffic::page_node_ports(rows, page),
            Rows::Connections(rows) => traffic::page_connections(rows, page),
            Rows::Modules(rows) => kernel::page_modules(rows, page),
            Rows::Sysctls(rows) => kernel::page_sysctls(rows, page),
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
