//! Why a Service does not work: its name, addresses, rules, endpoints, policies and connections, seen from one node.
//!
//! [`crate::verdict`] judges the connections to every address of the Service from every kind of client. The cause of a failure
//! is the object whose repair, in a simulation, makes the connections work; it is typed, and has an owner and a fix.

mod answer;
mod balancer;
mod brief;
mod candidates;
mod cause;
mod endpoints;
mod findings;
mod fix;
mod group;
mod merge;
mod obstacle;
mod path_cause;
mod paths;
mod plain;
mod rest;
mod search;
mod sentence;
mod target;
mod there;

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;

use thiserror::Error;

pub use answer::{Answer, Beside, Broken, lacking, unseen_balancers};
pub use cause::{Cause, Degree, Idle};
pub use endpoints::{EndpointRow, Lack};
pub use findings::Related;
pub use merge::{Merged, OnNodes, merge};
pub use paths::Path;
pub use rest::rest;
pub use target::{Asked, NotATarget};

use cause::{At, is_address};
use group::{Blamed, groups};
use path_cause::Blame;
use search::Sets;
use target::{At as AskedAt, Found};
use there::{Elsewhere, There};

use crate::check::{Check, Outcome};
use crate::diff::{self, Diff};
use crate::trace::mismatch::listed;
use crate::trace::sources::{SourceError, is_any_outside};
use crate::trace::{self, Carried, Entry, Flow, Walks, World};
use crate::verdict::{
    self, Across, Cell, Client, Fate, Fault, Judge, Kind, Missing, Onward, Target,
};
use kpx_node::backend::Mode;
use kpx_node::cluster::{EndpointSlice, Service};
use kpx_node::desired::Hint;
use kpx_node::evidence::{Gap, Item};
use kpx_node::net::{Family, Proto};
use kpx_node::node::NodeSnapshot;
use kpx_node::owner::{self, Port};
use kpx_node::words::number_of;

/// A question that cannot be answered.
#[derive(Debug, Error)]
pub enum Unanswered {
    /// The cluster's objects are unknown.
    #[error("cannot look up Services and their endpoints: {0}")]
    Objects(Gap),
    /// The source is invalid.
    #[error(transparent)]
    Source(#[from] SourceError),
}

/// One node, read once for any number of questions.
#[derive(Debug)]
pub struct Look<'n> {
    node: &'n NodeSnapshot<'n>,
    name: Option<String>,
    families: Vec<Family>,
    services: &'n [Service],
    /// The reason why the Services are not read, if they are not.
    unread: Option<Gap>,
    slices: &'n [EndpointSlice],
    worlds: [World<'n, 'n>; 2],
    judge: Judge<'n>,
    diff: Result<Diff, Gap>,
    outcomes: Vec<(&'static Check, Outcome)>,
    /// The other nodes, if their states are given.
    there: Option<Rc<dyn Elsewhere + 'n>>,
}

/// Returns the items that an answer reads, in addition to those of the doctor's checks.
pub fn needs() -> Vec<Item> {
    let modes = Mode::ALL;
    let mut items: Vec<Item> = modes.into_iter().flat_map(diff::needs).collect();
    items.extend(trace::NEEDS);
    items.extend(trace::NOTES_NEEDS);
    items.push(Item::Recent);
    items.extend(kpx_node::evidence::IPTABLES);
    items
}

/// Returns the nodes that have the endpoints of `asked`, or an address that it names, from the objects of the cluster.
pub fn touched<'n>(cluster: &'n NodeSnapshot<'n>, asked: &Asked) -> BTreeSet<String> {
    let (Ok(services), Ok(slices)) = (cluster.services(), cluster.slices()) else {
        return BTreeSet::new();
    };
    let judge = Judge::new(cluster);
    let of = |addr: IpAddr| judge.node_of(addr);
    let mut touched = BTreeSet::new();
    if let Asked::Address(addr, ..) = asked {
        touched.extend(of(*addr));
    }
    let found = target::find(asked, services, slices, |addr| of(addr).is_some());
    let Ok(found) = found else {
        return touched;
    };
    for endpoint in endpoints::slices_of(found.service, slices).flat_map(|slice| &slice.endpoints) {
        if let Some(name) = &endpoint.node_name {
            touched.insert(name.clone());
        } else {
            let addresses = endpoint.addresses.iter().filter_map(|at| at.parse().ok());
            touched.extend(addresses.filter_map(of));
        }
    }
    touched
}

impl<'n> Look<'n> {
    /// Reads `node`, with the outcomes of the doctor's checks on it.
    pub fn new(
        node: &'n NodeSnapshot<'n>,
        families: &[Family],
        outcomes: &[(&'static Check, Outcome)],
    ) -> Result<Self, Unanswered> {
        let services = node.services().map_err(Unanswered::Objects)?;
        Ok(Self::read(node, families, outcomes, services, None))
    }

    /// Reads `node`. Its Services need not be read: the names in its rules take their place.
    pub fn of_rules(
        node: &'n NodeSnapshot<'n>,
        families: &[Family],
        outcomes: &[(&'static Check, Outcome)],
    ) -> Self {
        match node.services() {
            Ok(services) => Self::read(node, families, outcomes, services, None),
            Err(gap) => Self::read(node, families, outcomes, &[], Some(gap)),
        }
    }

    fn read(
        node: &'n NodeSnapshot<'n>,
        families: &[Family],
        outcomes: &[(&'static Check, Outcome)],
        services: &'n [Service],
        unread: Option<Gap>,
    ) -> Self {
        // Without the slices, the effect of the rules can still be judged.
        let slices = node.slices().map_or(&[][..], Vec::as_slice);
        // Data that is shown in part cannot be compared.
        let compared = [
            Item::Services,
            Item::EndpointSlices,
            Item::Iptables4,
            Item::Iptables6,
            Item::IpvsSave,
            Item::Ipset,
        ];
        let part = compared
            .into_iter()
            .find_map(|item| node.evidence().part(item));
        let mode = part.map_or_else(|| node.configured_mode(), Err);
        let diff = mode.and_then(|mode| diff::compare(node, mode, families));
        Self {
            node,
            name: node.name().ok(),
            families: families.to_vec(),
            services,
            unread,
            slices,
            worlds: Family::BOTH.map(|family| World::whole(node, family)),
            judge: Judge::new(node),
            diff,
            outcomes: outcomes.to_vec(),
            there: None,
        }
    }

    /// Returns this view with the other nodes in `across`, to which it follows connections.
    #[must_use]
    pub fn beside<'s: 'n>(self, across: &'s Across<'s>) -> Self {
        Self {
            judge: across.judge(self.node),
            there: Some(Rc::new(There::new(across, &self.families))),
            ..self
        }
    }

    /// Returns the differences between the live and the desired state of the node.
    pub const fn diff(&self) -> Result<&Diff, &Gap> {
        self.diff.as_ref()
    }

    /// Explains `asked`; `source` limits the clients, as that of `kpx trace` does.
    pub fn why(&self, asked: &Asked, source: Option<&str>) -> Result<Answer, Unanswered> {
        if let Some(gap) = &self.unread {
            return self.by_rules(asked, gap, source);
        }
        let local = |addr| self.is_own(addr);
        match target::find(asked, self.services, self.slices, local) {
            Ok(found) => self.explain(&found, source),
            Err(Cause::NoService {
                namespace,
                name,
                elsewhere,
                ..
            }) => {
                let part = self.node.evidence().part(Item::Services);
                let cause = Cause::NoService {
                    namespace,
                    name,
                    elsewhere,
                    unread: part.map(|gap| gap.to_string()),
                };
                self.without_service(asked, cause, source)
            }
            Err(Cause::NoAddress {
                address,
                port: Some(port),
            }) => {
                let at = SocketAddr::new(address, port);
                let cause = self.of_node(at);
                let cause = cause.unwrap_or(Cause::NoAddress {
                    address,
                    port: Some(port),
                });
                self.without_service(asked, cause, source)
            }
            Err(cause) => self.without_service(asked, cause, source),
        }
    }

    fn is_own(&self, addr: IpAddr) -> bool {
        let known = self.node.addresses();
        addr.is_loopback() || known.is_ok_and(|all| all.all.iter().any(|a| a.addr.addr == addr))
    }

    /// Returns a walker of packets of `family`.
    fn walks(&self, family: Family) -> Walks<'_, 'n, 'n> {
        Walks::new(&self.worlds[usize::from(family == Family::V6)], family)
    }

    fn at(&self, subject: String) -> At {
        At {
            subject,
            node: self.name.clone(),
            ..At::default()
        }
    }

    fn at_service(&self, service: &Service, subject: String) -> At {
        At {
            service: Some(service.into()),
            ..self.at(subject)
        }
    }

    fn empty(&self) -> Answer {
        Answer {
            found: None,
            node: self.name.clone(),
            service: None,
            fate: Fate::Unknown,
            sentence: String::new(),
            fix: None,
            causes: Vec::new(),
            paths: Vec::new(),
            endpoints: Vec::new(),
            findings: Vec::new(),
            notes: Vec::new(),
            unknown: Vec::new(),
            unasked: None,
            nodes: Vec::new(),
            unseen: answer::unseen(self.node),
        }
    }

    fn explain(&self, found: &Found<'_>, source: Option<&str>) -> Result<Answer, Unanswered> {
        let service = found.service;
        let name = target::full(service);
        let mut answer = self.empty();
        answer.service = Some(name.clone());
        answer.found = Some(service.into());
        answer.findings = findings::related(&self.outcomes, service);
        if let Some(cause) = not_served(service) {
            let degree = match cause {
                Cause::NoClusterIp => Degree::Breaks,
                Cause::ExternalName { ref target } if is_address(target) => Degree::Breaks,
                _ => Degree::NotServed,
            };
            answer.causes.push(Broken::new(
                cause,
                degree,
                self.at_service(service, name.clone()),
            ));
            answer.settle_as(&name);
            return Ok(answer);
        }
        if let AskedAt::NodePort(Some(addr)) = found.at
            && !self.families_of(service).contains(&Family::of(addr))
        {
            return self.in_other_family(found, addr, source, answer);
        }
        let ports = self.ports(found);
        answer.notes.extend(no_tcp(found, &ports));
        let mut blames = Vec::new();
        let mut known: Vec<Sets> = Vec::new();
        let mut left_out = BTreeSet::new();
        let served = self.families_of(service);
        let families: Vec<_> = served
            .iter()
            .map(|family| (*family, self.walks(*family)))
            .collect();
        for port in &ports {
            answer.endpoints.extend(EndpointRow::all(port));
            answer.notes.extend(self.left_out_by_hints(port, &served));
            answer.notes.extend(self.needs_helper(port));
            for (family, walks) in &families {
                let family = *family;
                let targets = self.targets(port, family, found);
                let mut paths = Vec::new();
                for target in &targets {
                    let cells = self.judge.cells(walks, *target, source)?;
                    let is_outside = |cell: &Cell| cell.client == Client::Outside;
                    if cells.iter().any(is_outside) && source.is_none_or(is_any_outside) {
                        left_out.extend(self.judge.left_out(*target));
                    }
                    paths.extend(cells.into_iter().map(|cell| (*target, cell)));
                }
                if found.at == AskedAt::All {
                    keep_ways(&mut paths);
                    if source.is_none() {
                        for cell in self.judge.failing_arrivals(walks, port, family) {
                            let target = Target {
                                port,
                                kind: cell.kind,
                                at: cell.to(),
                            };
                            paths.push((target, cell));
                        }
                    }
                }
                blames.extend(self.port(service, port, family, paths, &mut known, &mut answer));
            }
        }
        if let AskedAt::Address(addr) = found.at
            && owner::addresses(service).iter().all(|(_, at)| *at != addr)
        {
            let family = Family::of(addr);
            let why = if service.has_family(family) {
                "ipMode Proxy".to_owned()
            } else {
                format!("the Service has no {family}")
            };
            answer.unknown.push(format!(
                "{addr} is an address of the load balancer that kube-proxy does not serve ({why}): no evidence of a node shows what the \
                 load balancer does"
            ));
        }
        if found.at == AskedAt::All
            && source.is_none()
            && Fate::of_all(answer.paths.iter().map(|path| path.fate)) == Fate::Works
        {
            findings::temper(&mut answer.findings, &self.outcomes);
        }
        self.unknown(&mut answer);
        self.add_causes(blames, &name, Some(service), &mut answer);
        self.idle_causes(service, &mut answer);
        if found.at == AskedAt::All
            && let Some(cause) = balancer::unseen(service)
        {
            let paths = answer.paths.iter();
            if Fate::of_all(paths.map(|path| path.fate)) == Fate::Works {
                let at = self.at_service(service, name.clone());
                answer.causes.push(Broken::new(cause, Degree::Suspect, at));
            } else if let Cause::Balancer { names, .. } = cause {
                answer.unknown.push(verdict::hidden_balancer_words(&names));
            }
        }
        if found.at == AskedAt::All
            && let Some(cause) = balancer::pending(service)
        {
            let at = self.at_service(service, name.clone());
            answer.causes.push(Broken::new(cause, Degree::Suspect, at));
        }
        let mut paths = answer.paths.iter();
        if found.at == AskedAt::All && paths.all(|path| path.fate != Fate::Unknown) {
            answer
                .notes
                .extend(self.judge.unannounced_addresses(service));
        }
        let subject = match ports.as_slice() {
            [only] => only.name.to_string(),
            _ => name,
        };
        if source.is_none() {
            let clients = answer.paths.iter().map(|path| path.client);
            answer.unasked = verdict::unasked(self.node, clients);
            answer.unseen.extend(self.judge.restricted());
        }
        answer.unseen.extend(answer::beyond_limits(&answer.paths));
        answer.unseen.extend(left_out);
        answer.settle_as(&subject);
        if let Some(cause) = headless_port(found, &ports) {
            answer.add(cause, Fate::Refused);
        }
        Ok(answer)
    }

    /// Explains the NodePort of a Service at `addr`, whose family the Service does not have.
    fn in_other_family(
        &self,
        found: &Found<'_>,
        addr: IpAddr,
        source: Option<&str>,
        mut answer: Answer,
    ) -> Result<Answer, Unanswered> {
        let mut subject = target::full(found.service);
        for port in self.ports(found) {
            let Some(number) = port.node_port else {
                continue;
            };
            subject = port.name.to_string();
            let target = Target {
                port: &port,
                kind: Kind::NodePort,
                at: SocketAddr::new(addr, number),
            };
            self.plain(target.at, target.port.proto, source, &subject, &mut answer)?;
            if let Some(cause) = path_cause::other_family(found.service, target) {
                let mut at = self.at_service(found.service, subject.clone());
                let failing = answer.paths.iter().filter(|path| path.fate.fails());
                at.from = failing.map(|path| path.client).collect();
                at.to.push(target.at.to_string());
                // The Service does not ask for a NodePort in the other family.
                at.by_design = true;
                answer.causes.push(Broken::new(cause, Degree::Breaks, at));
            }
        }
        unknown_ends(&mut answer);
        answer.settle_as(&subject);
        Ok(answer)
    }

    /// Adds the causes in `blames`; causes of several ports are about `whole`.
    fn add_causes(
        &self,
        blames: Vec<Blamed>,
        whole: &str,
        service: Option<&Service>,
        answer: &mut Answer,
    ) {
        for group in groups(blames) {
            let subject = match group.ports.as_slice() {
                [only] => only.clone(),
                _ => whole.to_owned(),
            };
            let is_sticky = service.is_some_and(|service| service.spec.affinity().is_some());
            let at = At {
                service: service.map(Into::into),
                from: group.from,
                to: group.to,
                failed: group.failed,
                by_design: group.by_design,
                sticky: is_sticky && group.cause.is_of_ends(),
                open: group.open,
                since: group.since,
                there: group.there,
                ..self.at(subject)
            };
            let broken = Broken::new(group.cause, group.degree, at);
            answer.causes.push(broken);
        }
    }

    /// Adds the reason why kube-proxy does not program the node, if its rules are unknown.
    fn idle_causes(&self, service: &Service, answer: &mut Answer) {
        if answer.paths.iter().any(|path| path.fate.fails()) {
            return;
        }
        for family in Family::BOTH {
            let unread = answer.paths.iter().filter_map(|path| {
                let faults = path.cell.verdict.faults();
                let gap = faults
                    .iter()
                    .find(|fault| matches!(fault, Fault::Unknown(Missing::Gap { .. })))?;
                (Family::of(path.to.ip()) == family).then(|| (path, gap.to_string()))
            });
            let unread: Vec<_> = unread.collect();
            let Some(((first, question), idle)) = unread.first().zip(self.idle(family)) else {
                continue;
            };
            let mut at = At {
                open: Some(question.clone()),
                ..self.at_service(service, first.service.clone())
            };
            for (path, _) in &unread {
                if !at.from.contains(&path.client) {
                    at.from.push(path.client);
                }
                if !at.to.contains(&path.target()) {
                    at.to.push(path.target());
                }
            }
            let broken = Broken::new(Cause::Idle(idle), Degree::Suspect, at);
            answer.causes.push(broken);
        }
    }

    /// Returns whether `port` is known to have no usable endpoint of `family`.
    fn lacks_endpoints(&self, port: &Port, family: Family) -> bool {
        verdict::lacks_endpoints(self.node, port, family)
    }

    /// Returns the ports that are asked for.
    fn ports(&self, found: &Found<'_>) -> Vec<Port> {
        let slices = endpoints::slices_of(found.service, self.slices);
        let slices: Vec<_> = slices
            .filter(|slice| endpoints::is_read(found.service, slice))
            .collect();
        let mut ports = owner::ports_of(found.service, &slices, self.name.as_deref());
        ports.retain(|port| {
            found.only.as_ref().is_none_or(|only| {
                let number = port.port.unwrap_or_default();
                let endpoints = port.endpoints.iter().map(|endpoint| endpoint.addr);
                only.selects(&port.name.port, number, port.node_port, endpoints)
            })
        });
        ports
    }

    /// Returns which ready endpoints of `port` kube-proxy omits because of topology hints.
    fn left_out_by_hints(&self, port: &Port, families: &[Family]) -> Option<String> {
        let desired = self.node.desired(self.node.configured_mode().ok()?).ok()?;
        let name = port.name.to_string();
        families.iter().find_map(|family| {
            let mut all = desired.family(*family)?.ports.iter();
            let of = all.find(|desired_port| desired_port.spn == name && desired_port.proto == port.proto)?;
            let used: BTreeSet<usize> = of.cluster_at().iter().map(|at| *at as usize).collect();
            let ready = of.endpoints.iter().enumerate().filter(|(_, of)| of.ready);
            let (kept, left): (Vec<_>, Vec<_>) = ready.partition(|(at, _)| used.contains(at));
            let by_node = kept.iter().all(|(_, of)| of.node == Hint::Us);
            let by_zone = kept.iter().all(|(_, of)| of.zone == Hint::Us);
            if kept.is_empty() || left.is_empty() || !by_node && !by_zone {
                return None;
            }
            let place = if by_node { "node" } else { "zone" };
            let left: Vec<String> = left.iter().map(|(_, of)| of.text.clone()).collect();
            Some(format!(
                "the topology hints of {name} leave {} of {} to this {place} (not {}): without trafficDistribution and \
                 the annotation service.kubernetes.io/topology-mode of the Service, connections reach all",
                kept.len(),
                number_of(kept.len() + left.len(), "endpoint"),
                listed(&left)
            ))
        })
    }

    /// Returns the needs of `port` in addition to kube-proxy's rules, if its protocol opens connections that the rules do
    /// not translate.
    fn needs_helper(&self, port: &Port) -> Option<String> {
        let (helper, what) = match (port.port, port.proto) {
            (Some(69), Proto::Udp) => ("tftp", "TFTP answers from a port of its own"),
            (Some(21), Proto::Tcp) => ("ftp", "FTP opens a further connection for data"),
            _ => return None,
        };
        let evidence = self.node.evidence();
        let has_helper = |item| {
            let rules = evidence.text(item);
            rules.is_ok_and(|rules| rules.contains(&format!("--helper {helper}")))
        };
        let is_there = [Item::Iptables4, Item::Iptables6]
            .into_iter()
            .any(has_helper);
        (!is_there).then(|| {
            format!(
                "{}: {what}, which passes a translated address only with the kernel's helper: modules nf_conntrack_{helper} and \
                 nf_nat_{helper}, and a rule of table raw with `-j CT --helper {helper}`",
                port.name
            )
        })
    }

    /// Returns the addresses that are asked for.
    fn targets<'p>(&self, port: &'p Port, family: Family, found: &Found<'_>) -> Vec<Target<'p>> {
        let mut all = verdict::targets(self.node, port, family);
        match found.at {
            AskedAt::All => {}
            AskedAt::Address(addr) => {
                all.retain(|target| target.at.ip() == addr && target.kind != Kind::NodePort);
            }
            AskedAt::NodePort(addr) => {
                all.retain(|target| target.kind == Kind::NodePort);
                if let Some(addr) = addr {
                    for of in &mut all {
                        of.at.set_ip(addr);
                    }
                }
                all.retain(|target| Family::of(target.at.ip()) == family);
            }
            AskedAt::Endpoint(addr) => {
                let its = endpoints::usable(port, family).filter(|usable| usable.addr.ip() == addr);
                all = its
                    .map(|endpoint| Target {
                        port,
                        kind: Kind::Endpoint,
                        at: endpoint.addr,
                    })
                    .collect();
            }
        }
        all
    }

    /// Returns the families in which `service` has addresses or, if it is headless, endpoints.
    fn families_of(&self, service: &Service) -> Vec<Family> {
        let spec = &service.spec;
        let mut found: Vec<Family> = owner::addresses(service)
            .iter()
            .map(|(_, addr)| Family::of(*addr))
            .collect();
        found.extend(spec.ip_families.iter().filter_map(|text| {
            let mut both = Family::BOTH.into_iter();
            both.find(|family| family.to_string() == *text)
        }));
        if found.is_empty() {
            let slices = endpoints::slices_of(service, self.slices);
            let kinds: Vec<_> = slices.map(|slice| slice.address_type.clone()).collect();
            let both = Family::BOTH.into_iter();
            found = both
                .filter(|family| kinds.contains(&family.to_string()))
                .collect();
        }
        if found.is_empty() {
            found.push(Family::V4);
        }
        let mut families = self.families.clone();
        families.retain(|family| found.contains(family));
        families
    }

    /// Adds the connections to one port in one family, and returns the causes of those that fail.
    fn port(
        &self,
        service: &Service,
        port: &Port,
        family: Family,
        cells: Vec<(Target<'_>, Cell)>,
        known: &mut Vec<Sets>,
        answer: &mut Answer,
    ) -> Vec<Blamed> {
        let name = port.name.to_string();
        let mut blames: Vec<Blamed> = Vec::new();
        for blame in self.stale(port, family) {
            blames.push(Blamed::of(&name, blame));
        }
        // Without addresses there is nothing to judge: a headless Service without endpoints.
        if cells.is_empty() && self.lacks_endpoints(port, family) {
            blames.push(Blamed::of(&name, self.lacking(service, port, family)));
        }
        for (target, cell) in cells {
            let mut path = Path::new(name.clone(), cell);
            let open = open(&path);
            if path.fate.fails() || open.is_some() {
                let (causes, repairs) = self.causes(service, target, &path.cell, known);
                path.by_design = verdict::is_by_design(self.node, Some(service), port, &path.cell);
                path.repairs = repairs;
                for mut blame in causes {
                    if open.is_some() {
                        blame.degree = Degree::Suspect;
                    }
                    blames.push(Blamed {
                        port: name.clone(),
                        share: (path.fate == Fate::Partly).then_some(path.failing),
                        by_design: path.by_design,
                        client: Some(path.client),
                        to: Some(path.target()),
                        open: open.clone(),
                        blame,
                    });
                }
            }
            let note = self.not_the_client(&path.cell);
            let is_new = |note: &String| !answer.notes.contains(note);
            let note = note.filter(is_new);
            answer.notes.extend(note);
            answer.paths.push(path);
        }
        let pods = self.node.pods().map_or(&[][..], Vec::as_slice);
        let is_doubt = |path: &Path| {
            let faults = path.cell.verdict.faults();
            let mut faults = faults.iter();
            path.service == name
                && faults.any(|fault| matches!(fault, Fault::Unknown(Missing::Undeclared { .. })))
        };
        if answer.paths.iter().any(is_doubt)
            && let Some((port, declared)) = endpoints::undeclared(port, family, pods)
        {
            let cause = Cause::UndeclaredPort { port, declared };
            blames.push(Blamed::of(&name, Blame::suspects(cause)));
        }
        blames
    }

    /// Returns that rules of another node stop packets for the address that this node put in the place of the client's.
    fn not_the_client(&self, cell: &Cell) -> Option<String> {
        let far = cell.verdict.ways.iter().find_map(|way| match &way.onward {
            Some(Onward::Far(far)) if far.admits_client => Some(far),
            _ => None,
        })?;
        let source = far.cell.flow.source?;
        let here = self.name.as_deref().unwrap_or("this node");
        Some(format!(
            "the rules of {} get the packets from {source}, which {here} puts in the place of the client's address: they would let the \
             client itself through. Let them allow the nodes' addresses, too, or let {here} keep the client's address: by \
             externalTrafficPolicy Local, or with a clusterCIDR that has the pods",
            far.node
        ))
    }

    /// Adds the data that is missing.
    fn unknown(&self, answer: &mut Answer) {
        unknown_ends(answer);
        match &self.diff {
            Ok(diff) => {
                let gaps = diff.unknown.iter();
                let gaps = gaps.map(|gap| format!("{} were not compared: {}", gap.what, gap.gap));
                answer.unknown.extend(gaps);
            }
            Err(gap) => answer.unknown.push(format!(
                "the rules were not compared with the cluster's Services: {gap}"
            )),
        }
        if !self.judge.has_pod_network() {
            answer.unknown.push(
                "no pod network is set up on this node: routes to pods were not checked".to_owned(),
            );
        }
        for family in &self.families {
            // A certain failure follows from data that was read.
            let unread = self.judge.unread(*family).map(ToString::to_string);
            let lacking = unread.filter(|unread| {
                let mut named = answer.unknown.iter();
                !named.any(|line| line.ends_with(unread.as_str()))
            });
            answer.unknown.extend(lacking);
        }
        if let Err(gap) = self.node.conntrack() {
            answer.unknown.push(format!("tracked connections: {gap}"));
        }
    }

    /// Returns the tracked connections of TCP and SCTP to the addresses of `port` that go to addresses which are no endpoints, or that
    /// are not translated: new connections are not affected.
    fn stale(&self, port: &Port, family: Family) -> Vec<Blame> {
        let mut blames = Vec::new();
        if port.proto == Proto::Udp {
            return blames;
        }
        for target in verdict::targets(self.node, port, family) {
            let flow = Flow {
                entry: Entry::Host,
                source: None,
                destination: target.at.ip(),
                port: target.at.port(),
                mark: 0,
                carried: Carried::default(),
                proto: port.proto,
                established: true,
            };
            // In mode ipvs, IPVS translates the packets of such an entry.
            let is_by_rules = matches!(
                self.node.configured_mode(),
                Ok(Mode::Iptables | Mode::Nftables)
            );
            let is_open = |entry: &kpx_node::node::conntrack::Entry| {
                entry.state.as_deref() == Some("ESTABLISHED")
                    && (entry.reply.source != target.at || entry.unreplied && is_by_rules)
                    && port
                        .endpoints
                        .iter()
                        .all(|endpoint| endpoint.addr != entry.reply.source)
            };
            let Ok(tracked) = trace::tracked(self.node, &flow, None, Some(port), is_open) else {
                return blames;
            };
            if target.kind == Kind::Endpoint || tracked.stale.is_empty() {
                continue;
            }
            blames.push(Blame::suspects(Cause::StaleConnections {
                count: tracked.count,
                address: target.at,
                protocol: port.proto.to_string(),
                end: trace::end_tracked(&flow, &tracked.stale),
                backends: tracked.stale,
            }));
        }
        blames
    }
}

/// Returns the condition under which the connections of `path` fail, if it is the order of nat chains, or routes beyond the
/// node.
fn open(path: &Path) -> Option<String> {
    if path.fate != Fate::Unknown {
        return None;
    }
    let faults = path.cell.verdict.faults();
    let beyond = faults.iter().find_map(|fault| match fault.astray() {
        Some(Missing::PodRoute { way, there, .. }) => Some(format!(
            "whether the way by {way} leads to the pods of {}",
            there.node
        )),
        _ => None,
    });
    if beyond.is_some() {
        return beyond;
    }
    let whens = path.cell.outcomes.iter().flat_map(|outcome| &outcome.when);
    let mut orders = whens.filter_map(|when| match when {
        trace::Assumption::Answer {
            question: trace::Question::Order(text),
            ..
        } => Some(text.clone()),
        _ => None,
    });
    orders.next().filter(|_| path.failing > 0.0)
}

/// Adds why the end of connections is unknown.
fn unknown_ends(answer: &mut Answer) {
    let unknown = answer
        .paths
        .iter()
        .filter(|path| matches!(path.fate, Fate::Unknown | Fate::Partly));
    let mut reasons: Vec<(String, Vec<(Client, String)>)> = Vec::new();
    for path in unknown {
        // Some connections certainly fail; others may be unknown.
        let is_partly = path.fate == Fate::Partly;
        let whens = path.cell.outcomes.iter().filter(|_| !is_partly);
        let whens = whens.flat_map(|outcome| &outcome.when);
        let whens = whens.map(|when| match when {
            trace::Assumption::Answer { question, .. } => question.to_string(),
            trace::Assumption::Address { .. } | trace::Assumption::Port { .. } => when.to_string(),
            trace::Assumption::Unseen { tables } => {
                format!(
                    "the evidence does not show all chains of {}",
                    tables.join(", ")
                )
            }
        });
        let ways = path.cell.outcomes.iter().zip(&path.cell.verdict.ways);
        let faults = ways.filter_map(|(outcome, way)| {
            let is_open = |fault: &&Fault| !is_partly || fault.fate() == Fate::Unknown;
            let fault = way.fault.as_ref().filter(is_open)?;
            Some(format!("{fault}{}", verdict::conditions(&outcome.when)))
        });
        let beside = path.cell.verdict.beside.iter().filter(|_| !is_partly);
        let beside = beside.map(ToString::to_string);
        for reason in faults.chain(beside).chain(whens) {
            let at = reasons.iter().position(|(of, _)| *of == reason);
            let at = at.unwrap_or_else(|| {
                reasons.push((reason, Vec::new()));
                reasons.len() - 1
            });
            let of = (path.client, path.target());
            if !reasons[at].1.contains(&of) {
                reasons[at].1.push(of);
            }
        }
    }
    for (reason, all) in reasons {
        // The addresses with the same clients.
        let mut by_clients: Vec<(Vec<Client>, Vec<String>)> = Vec::new();
        let mut targets: Vec<&String> = Vec::new();
        for (_, target) in &all {
            if targets.contains(&target) {
                continue;
            }
            targets.push(target);
            let of = all.iter().filter(|(_, to)| to == target);
            let clients: Vec<Client> = of.map(|(client, _)| *client).collect();
            match by_clients.iter_mut().find(|(of, _)| *of == clients) {
                Some((_, targets)) => targets.push(target.clone()),
                None => by_clients.push((clients, vec![target.clone()])),
            }
        }
        let ways = by_clients.iter().map(|(clients, targets)| {
            let from = verdict::client_names(clients);
            format!("{} to {}", from.trim_start(), listed(targets))
        });
        let ways: Vec<String> = ways.collect();
        let text = format!("connections {}: {reason}", ways.join(", and "));
        if !answer.unknown.contains(&text) {
            answer.unknown.push(text);
        }
    }
}

/// Drops connections from elsewhere to addresses that their own node translates, unless these are the only ones.
fn keep_ways(paths: &mut Vec<(Target<'_>, Cell)>) {
    let has_way = |(target, cell): &(Target<'_>, Cell)| {
        !target.kind.is_internal() || !matches!(cell.client, Client::Elsewhere | Client::Outside)
    };
    if paths.iter().any(has_way) {
        paths.retain(has_way);
    }
}

/// Returns that an address and port that are asked about without a protocol take no connections of TCP.
fn no_tcp(found: &Found<'_>, ports: &[Port]) -> Option<String> {
    let is_asked = matches!(found.at, AskedAt::Address(_) | AskedAt::NodePort(_));
    let first = ports.first()?;
    let is_other = ports.iter().all(|port| port.proto != Proto::Tcp);
    (is_asked && is_other).then(|| {
        let proto = first.proto.to_string().to_uppercase();
        format!(
            "{} is a port of {proto} alone: connections of TCP to it fail",
            first.name
        )
    })
}

/// Returns why clients of a headless Service do not reach the port with this number: names lead them to the pods, which have other
/// ports.
fn headless_port(found: &Found<'_>, ports: &[Port]) -> Option<Cause> {
    let Some(target::Only::Named(word)) = &found.only else {
        return None;
    };
    let port: u16 = word.parse().ok()?;
    if found.service.spec.cluster_ip != "None" {
        return None;
    }
    let endpoints = ports.iter().flat_map(|port| &port.endpoints);
    let targets: BTreeSet<u16> = endpoints.map(|endpoint| endpoint.addr.port()).collect();
    let is_other = !targets.is_empty() && !targets.contains(&port);
    is_other.then(|| Cause::HeadlessPort {
        port,
        targets: targets.into_iter().collect(),
    })
}

/// Returns why kube-proxy does not serve `service` at all.
fn not_served(service: &Service) -> Option<Cause> {
    let spec = &service.spec;
    if spec.kind == "ExternalName" {
        let target = spec.external_name.clone().unwrap_or_default();
        return Some(Cause::ExternalName { target });
    }
    let labels = &service.metadata.labels;
    if let Some(proxy) = labels.get("service.kubernetes.io/service-proxy-name") {
        let proxy = proxy.clone();
        return Some(Cause::OtherProxy { proxy });
    }
    let has_none = spec.cluster_ip.is_empty() && spec.cluster_ips.is_empty();
    has_none.then_some(Cause::NoClusterIp)
}
