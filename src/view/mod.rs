//! Views of the live state, joined to the Services it serves: pure functions from a node to typed values.
//!
//! A view has no layout and no columns; `report` prints it. One file per view.

pub(crate) mod addresses;
pub(crate) mod affinity;
pub(crate) mod chains;
pub(crate) mod config;
pub(crate) mod conntrack;
pub(crate) mod did_you_mean;
mod gaps;
pub(crate) mod head;
pub(crate) mod ipvs;
mod known;
pub(crate) mod maps;
pub(crate) mod matrix;
pub(crate) mod mode;
pub(crate) mod modules;
pub(crate) mod nodeports;
pub(crate) mod picture;
pub(crate) mod portals;
pub(crate) mod programmed;
pub(crate) mod service;
pub(crate) mod services;
pub(crate) mod sets;
pub(crate) mod sysctls;
pub(crate) mod tree;

use serde::Serialize;

pub(crate) use gaps::Gaps;

use kpx_judge::check::{Check, Fix, Outcome};
use kpx_judge::trace;
use kpx_judge::verdict::Across;
use kpx_judge::why::Look;
use kpx_node::backend::Mode;
use kpx_node::evidence::{Gap, IPTABLES, Item, join};
use kpx_node::net::Family;
use kpx_node::node::NodeSnapshot;
pub(crate) use kpx_node::node::mode::{Kind, Leftover};
use kpx_node::owner::{Owners, Port, PortName, Source};
use mode::{InForce, Relevant};

/// A view of the live state.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum View {
    /// Services and how the node handles their packets.
    Services,
    /// iptables and nftables chains with their owners.
    Chains,
    /// Virtual servers and their real servers.
    Ipvs,
    /// IP sets, and sets and maps of kube-proxy's nftables table.
    Sets,
    /// Addresses of kube-ipvs0.
    Addresses,
    /// NodePorts.
    Nodeports,
    /// Portals of the userspace mode.
    Portals,
    /// Tracked connections of Services.
    Conntrack,
    /// Clients that session affinity binds to a backend.
    Affinity,
    /// Kernel modules.
    Modules,
    /// Sysctls.
    Sysctls,
    /// kube-proxy's configuration.
    Config,
}

/// The items that tell the mode.
const MODE: &[Item] = &join::<19>(&[
    IPTABLES,
    &[
        Item::ProxyConfig,
        Item::ProxyMode,
        Item::Metrics,
        Item::Addresses,
        Item::Links,
        Item::Modules,
        Item::Nft,
        Item::NftText,
        Item::Ipvs,
        Item::IpvsSave,
        Item::IpvsStats,
        Item::IpvsTimeout,
        Item::Ipset,
    ],
]);

/// The items that name Services and endpoints.
const NAMES: &[Item] = &[Item::Services, Item::EndpointSlices, Item::Nodes];

impl View {
    /// Returns its name on the command line.
    pub(crate) fn name(self) -> String {
        format!("{self:?}").to_lowercase()
    }

    /// Returns the items that the view reads.
    pub fn needs(self) -> Vec<Item> {
        let (own, names): (&[Item], &[Item]) = match self {
            Self::Services | Self::Ipvs | Self::Sets | Self::Addresses | Self::Chains => {
                (&[], NAMES)
            }
            Self::Nodeports | Self::Portals => (
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
            Self::Conntrack => (&[Item::Conntrack, Item::Routes], NAMES),
            Self::Affinity => (&[Item::Recent, Item::IpvsConnections], NAMES),
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
        let all = own.iter().chain(names).chain(MODE);
        match self {
            Self::Services => all
                .chain(trace::NEEDS)
                .chain(trace::NOTES_NEEDS)
                .copied()
                .collect(),
            _ => all.copied().collect(),
        }
    }

    /// Returns whether the view names Services.
    pub(crate) fn joins_names(self) -> bool {
        !matches!(self, Self::Modules | Self::Sysctls | Self::Config)
    }
}

/// A view, and the rows of it to return.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Query<'q> {
    /// The view.
    pub view: View,
    /// Only rows of this Service, chain, set, address or other object.
    pub name: Option<&'q str>,
    /// Only rows of Services in this namespace.
    pub namespace: Option<&'q str>,
    /// Only rows of this family.
    pub family: Option<Family>,
    /// The states of other nodes, to which connections are followed.
    pub across: Option<&'static Across<'static>>,
}

impl Query<'_> {
    /// Returns the items that the view reads for this query.
    pub(crate) fn needs(self) -> Vec<Item> {
        let mut items = self.view.needs();
        if self.may_be_page() {
            let sections = [View::Nodeports, View::Affinity, View::Conntrack];
            items.extend(sections.into_iter().flat_map(View::needs));
        }
        items.sort();
        items.dedup();
        items
    }

    /// Returns whether the answer is the page of a Service, if the name is a Service's.
    pub(crate) fn may_be_page(self) -> bool {
        self.view == View::Services && self.name.is_some()
    }

    fn families(self) -> impl Iterator<Item = Family> {
        Family::BOTH
            .into_iter()
            .filter(move |&family| self.takes(family))
    }

    fn takes(self, family: Family) -> bool {
        self.family.is_none_or(|only| only == family)
    }

    /// Returns whether the query names `port` or one of `names`, or names nothing.
    fn wants(self, port: Option<&Port>, names: &[&str]) -> bool {
        port.is_some_and(|port| self.is_of(&port.name))
            || self.name.is_some_and(|asked| names.contains(&asked))
            || self.name.is_none() && self.namespace.is_none()
    }

    /// Returns whether the query names `service`.
    fn is_of(self, service: &PortName) -> bool {
        self.name.is_some_and(|asked| service.answers(asked))
            || self
                .namespace
                .is_some_and(|only| *service.namespace == *only)
    }
}

/// The input of every view.
#[derive(Clone, Copy)]
pub(crate) struct Joined<'j, 'e> {
    pub(crate) node: &'e NodeSnapshot<'e>,
    pub(crate) owners: &'j Owners,
    pub(crate) query: Query<'j>,
    pub(crate) relevant: &'j Relevant,
}

/// The rows of a view.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub(crate) enum Rows {
    Services(Vec<services::Row>),
    Chains(Vec<chains::Row>),
    Tree(Vec<tree::Node>),
    Servers(Vec<ipvs::Row>),
    Sets(Vec<sets::Row>),
    Addresses(Vec<addresses::Row>),
    NodePorts(Vec<nodeports::Row>),
    Portals(Vec<portals::Row>),
    Connections(Vec<conntrack::Row>),
    Affinity(Vec<affinity::Row>),
    Modules(Vec<modules::Row>),
    Sysctls(Vec<sysctls::Row>),
    Config(Box<config::Config>),
}

/// A view of a node.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub(crate) struct Shown {
    /// The view.
    pub(crate) view: View,
    /// The mode in force.
    #[serde(flatten)]
    pub(crate) mode: InForce,
    /// Where the names of Services come from; `null` for a view without names.
    names_from: Option<Source>,
    #[serde(flatten)]
    pub(crate) rows: Rows,
    /// The connections of the Service in the query by backend.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) by_backend: Vec<conntrack::Count>,
    /// More of the Service in the query.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) service: Option<service::Page>,
    /// Why parts of the view are unknown, sorted.
    pub(crate) gaps: Vec<Gap>,
    /// Why the view has fewer rows or columns than expected.
    pub(crate) notes: Vec<String>,
    /// The command that explains the first Service that fails.
    #[serde(skip)]
    pub(crate) next: Option<String>,
    /// Whether the query named an object.
    #[serde(skip)]
    pub(crate) named: bool,
    #[serde(skip)]
    unmatched: Option<Unmatched>,
}

/// A name in the query that matches no row.
#[derive(Debug)]
struct Unmatched {
    /// Whether it is the name of a Service.
    service: bool,
    /// The most similar names.
    near: Vec<String>,
}

impl Shown {
    /// Adds the problems of the Service of a page; `outcomes` are those of the doctor's checks on `node`.
    pub(crate) fn assess<'n>(
        &mut self,
        node: &'n NodeSnapshot<'n>,
        families: &[Family],
        outcomes: &'n [(&'static Check, Outcome)],
    ) {
        if let (Some(page), Rows::Services(rows)) = (&mut self.service, &self.rows) {
            page.assess(node, rows, families, outcomes);
        }
    }

    /// Adds the next command to the page of a Service, or to the view of Services of which one fails; `command` makes it of the Service's
    /// name.
    pub(crate) fn lead(&mut self, command: impl FnOnce(String) -> String) {
        let Rows::Services(rows) = &self.rows else {
            return;
        };
        let (row, next) = match &mut self.service {
            Some(page) => (rows.first(), &mut page.next),
            None => (rows.iter().find(|row| row.fails()), &mut self.next),
        };
        let name = row.map(|row| &row.service);
        *next = name.map(|name| command(format!("{}/{}", name.namespace, name.name)));
    }

    /// Adds the causes of connections that fail to the rows of Services.
    pub(crate) fn explain(&mut self, look: &Look<'_>) {
        if let Rows::Services(rows) = &mut self.rows {
            services::explain(rows, look);
        }
    }

    /// Returns whether connections to any of the Services fail.
    pub(crate) fn has_failing(&self) -> bool {
        matches!(&self.rows, Rows::Services(rows) if rows.iter().any(services::Row::fails))
    }

    /// Returns whether the cluster's objects name the Services.
    pub(crate) fn has_objects(&self) -> bool {
        self.names_from == Some(Source::Api)
    }

    /// Returns whether data is missing.
    pub(crate) fn is_unknown(&self) -> bool {
        let page = self.service.as_ref();
        let assessed = page.and_then(|page| page.assessed.as_ref());
        !self.gaps.is_empty() || assessed.is_some_and(service::assessed::Assessed::is_unknown)
    }

    /// Returns the fixes of the findings.
    pub(crate) fn fixes_mut(&mut self) -> impl Iterator<Item = &mut Fix> {
        let page = self.service.as_mut();
        let assessed = page.and_then(|page| page.assessed.as_mut());
        let found = assessed.and_then(|assessed| assessed.findings.found.as_mut());
        let found = found.into_iter().flatten();
        found.filter_map(|finding| finding.fix.as_mut())
    }

    /// Returns similar names if the name in the query matches nothing; `None` if it matches.
    pub(crate) fn not_found(&self) -> Option<&[String]> {
        let unmatched = self.unmatched.as_ref()?;
        (!unmatched.service).then_some(&unmatched.near)
    }
}

/// Returns the view of `node` that `query` asks for.
pub(crate) fn show<'n>(node: &'n NodeSnapshot<'n>, query: Query<'_>) -> Shown {
    let mut gaps = Gaps::default();
    let owners = Owners::new(node);
    let relevant = Relevant::new(node);
    let joined = Joined {
        node,
        owners: &owners,
        query,
        relevant: &relevant,
    };
    let rows = rows(joined, &mut gaps);
    let service = match &rows {
        Rows::Services(rows) => service::page(joined, rows, &mut gaps),
        _ => None,
    };
    let by_backend = match &rows {
        Rows::Connections(rows) if query.name.is_some() => conntrack::counts(joined, rows),
        _ => Vec::new(),
    };
    let joins = query.view.joins_names();
    if joins {
        gaps_of_names(&owners, query.view, &mut gaps);
        let of_ipvs = matches!(query.view, View::Ipvs | View::Addresses | View::Sets)
            || relevant.current() == Some(Mode::Ipvs);
        if owners.source == Source::Rules && of_ipvs && !rows.is_empty() {
            let why =
                "Service names are shown as \"?\": in ipvs mode they come only from the API server";
            gaps.note(why.to_owned());
        }
    }
    let unmatched = query.name.filter(|_| rows.is_empty());
    let unmatched = unmatched.map(|name| unmatched_name(joined, name));
    if let (Some(name), Some(Unmatched { service: true, .. })) = (query.name, &unmatched) {
        gaps.note(nothing_for(name, query.view, relevant.current()));
    }
    if let Some(note) = node.evidence().note_added() {
        gaps.note(note);
    }
    let (gaps, notes) = gaps.sorted();
    Shown {
        view: query.view,
        mode: relevant.in_force(),
        names_from: joins.then_some(owners.source),
        rows,
        by_backend,
        service,
        gaps,
        notes,
        next: None,
        named: query.name.is_some(),
        unmatched,
    }
}

/// Adds why names are not known. Addresses and NodePorts do not need the gaps of endpoints.
fn gaps_of_names(owners: &Owners, view: View, gaps: &mut Gaps) {
    let endpoints = !matches!(view, View::Addresses | View::Nodeports);
    if endpoints || owners.source == Source::Rules {
        owners.gaps.iter().for_each(|gap| gaps.add(gap.clone()));
    }
}

fn unmatched_name(joined: Joined<'_, '_>, name: &str) -> Unmatched {
    let all = Query {
        name: None,
        namespace: None,
        ..joined.query
    };
    let there = rows(
        Joined {
            query: all,
            ..joined
        },
        &mut Gaps::default(),
    );
    let joins = joined.query.view.joins_names();
    let whole = name.contains(':');
    let services = joined.owners.ports().iter().filter(|_| joins);
    let services = services.map(|port| match port.name.to_string() {
        text if whole => text,
        text => text.split(':').next().unwrap_or_default().to_owned(),
    });
    Unmatched {
        service: joins
            && joined
                .owners
                .ports()
                .iter()
                .any(|port| port.name.answers(name)),
        near: did_you_mean::nearest(name, services.chain(there.names())),
    }
}

fn rows(of: Joined<'_, '_>, gaps: &mut Gaps) -> Rows {
    match of.query.view {
        View::Services => Rows::Services(services::rows(of, gaps)),
        View::Chains => match tree::tree(of, gaps) {
            Some(tree) => Rows::Tree(tree),
            None => Rows::Chains(chains::rows(of, gaps)),
        },
        View::Ipvs => Rows::Servers(ipvs::rows(of, gaps)),
        View::Sets => Rows::Sets(sets::rows(of, gaps)),
        View::Addresses => Rows::Addresses(addresses::rows(of, gaps)),
        View::Nodeports => Rows::NodePorts(nodeports::rows(of, gaps)),
        View::Portals => Rows::Portals(portals::rows(of, gaps)),
        View::Conntrack => Rows::Connections(conntrack::rows(of, gaps)),
        View::Affinity => Rows::Affinity(affinity::rows(of, gaps)),
        View::Modules => Rows::Modules(modules::rows(of, gaps)),
        View::Sysctls => Rows::Sysctls(sysctls::rows(of, gaps)),
        View::Config => Rows::Config(Box::new(config::config(of.node, of.relevant, gaps))),
    }
}

/// Explains why a view has no row for an existing Service.
fn nothing_for(name: &str, view: View, mode: Option<Mode>) -> String {
    match (view, mode) {
        (View::Chains, Some(Mode::Ipvs)) => format!(
            "in ipvs mode a Service has no chains; run `kpx show ipvs {name}` or `kpx show sets {name}`"
        ),
        (View::Chains, _) => format!("{name} has no chain, rule or map element"),
        (View::Ipvs, _) => format!("{name} has no virtual server"),
        (View::Sets, _) => format!("{name} is not in any set"),
        (View::Addresses, _) => format!("no address of {name} is on kube-ipvs0"),
        (View::Nodeports, _) => format!("{name} has no NodePort"),
        (View::Portals, Some(Mode::Userspace)) => format!("{name} has no portal"),
        (View::Portals, _) => {
            format!("{name} has no portal: only the userspace mode has any, up to Kubernetes 1.25")
        }
        (View::Conntrack, _) => format!("{name} has no tracked connection"),
        (View::Affinity, _) => format!("session affinity binds no client of {name} now"),
        (View::Services, _) => format!("{name} has no address of this family"),
        (View::Modules | View::Sysctls | View::Config, _) => format!("no row for {name}"),
    }
}

impl Rows {
    pub(crate) fn is_empty(&self) -> bool {
        match self {
            Self::Services(rows) => rows.is_empty(),
            Self::Chains(rows) => rows.is_empty(),
            Self::Tree(rows) => rows.is_empty(),
            Self::Servers(rows) => rows.is_empty(),
            Self::Sets(rows) => rows.is_empty(),
            Self::Addresses(rows) => rows.is_empty(),
            Self::NodePorts(rows) => rows.is_empty(),
            Self::Portals(rows) => rows.is_empty(),
            Self::Connections(rows) => rows.is_empty(),
            Self::Affinity(rows) => rows.is_empty(),
            Self::Modules(rows) => rows.is_empty(),
            Self::Sysctls(rows) => rows.is_empty(),
            Self::Config(_) => false,
        }
    }

    /// Returns the names that a query can select rows by, in addition to names of Services.
    fn names(&self) -> Vec<String> {
        match self {
            Self::Chains(rows) => rows.iter().map(|row| row.chain.clone()).collect(),
            Self::Servers(rows) => rows.iter().map(|row| row.server.clone()).collect(),
            Self::Sets(rows) => rows.iter().map(|row| row.set.clone()).collect(),
            Self::Addresses(rows) => rows.iter().map(|row| row.address.to_string()).collect(),
            Self::NodePorts(rows) => rows.iter().map(|row| row.node_port.to_string()).collect(),
            Self::Portals(rows) => rows.iter().map(|row| row.proxy_port.to_string()).collect(),
            Self::Modules(rows) => rows.iter().map(|row| row.module.clone()).collect(),
            Self::Sysctls(rows) => rows.iter().map(|row| row.sysctl.to_owned()).collect(),
            Self::Config(config) => {
                let settings = config.settings.iter();
                settings.map(|setting| setting.name.to_owned()).collect()
            }
            Self::Affinity(rows) => rows.iter().map(|row| row.client.to_string()).collect(),
            Self::Services(_) | Self::Tree(_) | Self::Connections(_) => Vec::new(),
        }
    }
}
