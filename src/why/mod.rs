//! Why a Service does not work: its name, addresses, rules, endpoints, policies and connections, seen from one node.
//!
//! Packets are traced to every address of the Service from every kind of client. Every path that does not lead to an endpoint
//! has a typed cause; the cause that a packet meets first is the answer.

mod answer;
mod asked;
mod blame;
mod cause;
mod endpoints;
mod findings;
mod fix;
mod group;
mod merge;
mod paths;

use std::net::IpAddr;

use thiserror::Error;

pub use answer::{Answer, Broken, UNSEEN, Verdict};
pub use asked::{Asked, NotATarget};
pub use cause::{Cause, Degree};
pub use endpoints::{EndpointRow, Lack};
pub use findings::Related;
pub use merge::{Merged, OnNodes, merge};
pub use paths::{Client, Kind, Path};

use asked::Found;
use blame::Blame;
use cause::At;
use group::{Blamed, groups};

use crate::check::{self, Check, Facts, Outcome, Severity};
use crate::cluster::{EndpointSlice, Service};
use crate::desired::DesiredState;
use crate::diff::{self, Diff};
use crate::evidence::{Gap, Item};
use crate::net::Family;
use crate::node::NodeSnapshot;
use crate::owner::{self, Port};
use crate::trace::sources::SourceError;
use crate::trace::{self, Assumption, World};

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
    slices: &'n [EndpointSlice],
    worlds: [World<'n, 'n>; 2],
    desired: Option<&'n DesiredState>,
    diff: Result<Diff, Gap>,
    pod_network: bool,
    outcomes: &'n [(&'static Check, Outcome)],
}

/// Returns the items that an answer reads, beside those of the doctor's checks.
pub fn needs() -> Vec<Item> {
    let modes = crate::backend::Mode::ALL;
    let mut items: Vec<Item> = modes.into_iter().flat_map(diff::needs).collect();
    items.extend(trace::NEEDS);
    items.extend(trace::NOTES_NEEDS);
    items.extend(crate::evidence::IPTABLES);
    items
}

/// Explains `asked` on one node; `outcomes` are those of the doctor's checks, and `source` limits the clients.
pub fn why<'n>(
    node: &'n NodeSnapshot<'n>,
    asked: &Asked,
    families: &[Family],
    source: Option<&str>,
    outcomes: &'n [(&'static Check, Outcome)],
) -> Result<Answer, Unanswered> {
    Look::new(node, families, outcomes)?.why(asked, source)
}

impl<'n> Look<'n> {
    /// Reads `node`, with the outcomes of the doctor's checks on it.
    pub fn new(
        node: &'n NodeSnapshot<'n>,
        families: &[Family],
        outcomes: &'n [(&'static Check, Outcome)],
    ) -> Result<Self, Unanswered> {
        let services = node.services().map_err(Unanswered::Objects)?;
        let slices = node.slices().map_err(Unanswered::Objects)?;
        let mode = node.configured_mode();
        let desired = mode.as_ref().ok().and_then(|mode| node.desired(*mode).ok());
        let diff = mode.and_then(|mode| diff::compare(node, mode, families));
        Ok(Self {
            node,
            name: node.name().ok(),
            families: families.to_vec(),
            services,
            slices,
            worlds: Family::BOTH.map(|family| World::whole(node, family)),
            desired,
            diff,
            pod_network: check::has_pod_network(&Facts::new(node, None)),
            outcomes,
        })
    }

    /// Returns the differences between the live and the desired state of the node.
    pub const fn diff(&self) -> Result<&Diff, &Gap> {
        self.diff.as_ref()
    }

    /// Explains `asked`; `source` limits the clients, as that of `kpx trace` does.
    pub fn why(&self, asked: &Asked, source: Option<&str>) -> Result<Answer, Unanswered> {
        let local = |addr| self.is_own(addr);
        match asked::find(asked, self.services, self.slices, local) {
            Ok(found) => self.explain(&found, source),
            Err(cause) => {
                let mut answer = self.empty();
                let at = self.at(String::new());
                answer.causes.push(Broken::new(cause, Degree::Breaks, at));
                answer.settle();
                Ok(answer)
            }
        }
    }

    fn is_own(&self, addr: IpAddr) -> bool {
        let known = self.node.addresses();
        addr.is_loopback() || known.is_ok_and(|all| all.all.iter().any(|a| a.addr.addr == addr))
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
            verdict: Verdict::Unknown,
            sentence: String::new(),
            fix: None,
            causes: Vec::new(),
            limits: Vec::new(),
            paths: Vec::new(),
            endpoints: Vec::new(),
            findings: Vec::new(),
            unknown: Vec::new(),
            unseen: UNSEEN,
        }
    }

    fn explain(&self, found: &Found<'_>, source: Option<&str>) -> Result<Answer, Unanswered> {
        let service = found.service;
        let name = asked::full(service);
        let mut answer = self.empty();
        answer.service = Some(name.clone());
        answer.found = Some(service.into());
        answer.findings = findings::related(self.outcomes, service);
        if let Some(cause) = not_served(service) {
            let degree = match cause {
                Cause::NoClusterIp => Degree::Breaks,
                _ => Degree::NotServed,
            };
            answer
                .causes
                .push(Broken::new(cause, degree, self.at_service(service, name)));
            answer.settle();
            return Ok(answer);
        }
        let slices: Vec<_> = endpoints::slices_of(service, self.slices).collect();
        let mut ports = owner::ports_of(service, &slices, self.name.as_deref());
        ports.retain(|port| {
            found.only.as_ref().is_none_or(|only| {
                let number = port.port.unwrap_or_default();
                let endpoints = port.endpoints.iter().map(|of| of.addr);
                only.selects(&port.name.port, number, port.node_port, endpoints)
            })
        });
        let mut blames = Vec::new();
        for port in &ports {
            answer.endpoints.extend(endpoints::rows(port));
            for family in self.families_of(service) {
                self.port(service, port, family, source, &mut answer, &mut blames)?;
            }
        }
        self.unknown(&mut answer);
        for group in groups(blames) {
            let subject = match group.ports.as_slice() {
                [only] => only.clone(),
                _ => name.clone(),
            };
            let at = At {
                from: group.from,
                to: group.to,
                partly: group.partly,
                since: group.since,
                ..self.at_service(service, subject)
            };
            let broken = Broken::new(group.cause, group.degree, at);
            match group.degree {
                Degree::Limit => answer.limits.push(broken),
                _ => answer.causes.push(broken),
            }
        }
        let subject = match ports.as_slice() {
            [only] => only.name.to_string(),
            _ => name,
        };
        self.suspects(service, &subject, &mut answer);
        answer.settle_as(&subject);
        Ok(answer)
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
            let kinds: Vec<_> = slices.map(|of| of.address_type.clone()).collect();
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

    /// Traces the packets to one port in one family, and adds what breaks them.
    fn port(
        &self,
        service: &Service,
        port: &Port,
        family: Family,
        source: Option<&str>,
        answer: &mut Answer,
        blames: &mut Vec<Blamed>,
    ) -> Result<(), Unanswered> {
        let name = port.name.to_string();
        for blame in self.stale(port, family) {
            blames.push(Blamed::of(&name, blame));
        }
        let paths = self.paths(service, port, family, source)?;
        // Without addresses there is nothing to trace: a headless Service without endpoints.
        if paths.is_empty() && endpoints::usable(port, family).next().is_none() {
            blames.push(Blamed::of(&name, self.lacking_of(service, port, family)));
        }
        for (path, found) in paths {
            let reaches = |to| endpoints::usable(port, family).any(|of| of.addr == to);
            let partly = path.backends.iter().any(|to| reaches(*to));
            for blame in found {
                blames.push(Blamed {
                    port: name.clone(),
                    // Forwarding concerns every packet.
                    partly: partly && !matches!(blame.cause, Cause::ForwardingOff { .. }),
                    client: Some(path.client),
                    to: Some(path.target()),
                    blame,
                });
            }
            answer.paths.push(path);
        }
        let pods = self.node.pods().map_or(&[][..], Vec::as_slice);
        if let Some((port, declared)) = endpoints::undeclared(port, family, pods) {
            let cause = Cause::UndeclaredPort { port, declared };
            let degree = Degree::Suspect;
            let since = None;
            blames.push(Blamed::of(
                &name,
                Blame {
                    cause,
                    degree,
                    since,
                },
            ));
        }
        Ok(())
    }

    /// Adds the data that is missing.
    fn unknown(&self, answer: &mut Answer) {
        for path in answer.paths.iter().filter(|path| path.works.is_none()) {
            let whens = path.outcomes.iter().flat_map(|of| &of.when);
            let whens = whens.map(|when| match when {
                Assumption::Answer { question, .. } => question.to_string(),
                Assumption::Address { .. } => when.to_string(),
            });
            let reasons = path
                .outcomes
                .iter()
                .filter(|of| of.verdict == trace::Verdict::Unknown)
                .map(|of| of.reason.clone());
            for reason in whens.chain(reasons) {
                let client = path.client.name();
                let text = format!("packets from {client} to {}: {reason}", path.target());
                if !answer.unknown.contains(&text) {
                    answer.unknown.push(text);
                }
            }
        }
        match &self.diff {
            Ok(diff) => {
                let gaps = diff.unknown.iter();
                let gaps = gaps.map(|of| format!("{} were not compared: {}", of.what, of.gap));
                answer.unknown.extend(gaps);
            }
            Err(gap) => answer.unknown.push(format!(
                "the rules were not compared with the cluster's Services: {gap}"
            )),
        }
        if !self.pod_network {
            answer.unknown.push(
                "no pod network is set up on this node: routes to pods were not checked".to_owned(),
            );
        }
        if let Err(gap) = self.node.conntrack() {
            answer.unknown.push(format!("tracked connections: {gap}"));
        }
    }

    /// Adds findings that a trace cannot show, if nothing else explains why the Service does not work.
    fn suspects(&self, service: &Service, subject: &str, answer: &mut Answer) {
        let is_hairpin = |of: &&Related| of.id == "CN07";
        let calls_itself = answer.paths.iter().any(|of| of.client == Client::Itself);
        let mut causes = Vec::new();
        for (check, outcome) in self.outcomes {
            if check.id == "CN07"
                && calls_itself
                && let Outcome::Fail(findings) = outcome
            {
                causes.extend(findings.iter().map(|of| Cause::HairpinPort {
                    bridge: of.subject.clone(),
                }));
            }
        }
        if answer.causes.is_empty() {
            let errors = answer.findings.iter();
            let errors = errors.filter(|of| of.severity == Severity::Error && !is_hairpin(of));
            causes.extend(errors.map(|of| Cause::Finding {
                id: of.id,
                object: of.subject.clone(),
                message: of.message.clone(),
                fix: of.fix.clone(),
            }));
        }
        let broken = causes.into_iter().map(|cause| {
            let at = self.at_service(service, subject.to_owned());
            Broken::new(cause, Degree::Suspect, at)
        });
        answer.causes.extend(broken);
    }
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
