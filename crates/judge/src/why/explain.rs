//! The answer: its paths, causes and gaps.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};

use super::answer::{Answer, Broken};
use super::blame::Blame;
use super::cause::{At, Cause, Degree, is_address};
use super::endpoints::EndpointRow;
use super::gaps::{open, unknown_ends};
use super::group::{Blamed, groups};
use super::look::{Look, Unanswered};
use super::paths::Path;
use super::search::Sets;
use super::target::{Asked, At as AskedAt, Found};
use super::unserved::{headless_port, headless_ports, no_tcp, not_served, other_family};
use super::{answer, balancer, findings, target};
use crate::trace::sources::is_any_outside;
use crate::verdict::{self, Cell, Client, Fate, Fault, Kind, Missing, Onward, Target};
use kpx_node::cluster::Service;
use kpx_node::evidence::Item;
use kpx_node::net::Family;
use kpx_node::owner::{self, Port};

impl Look<'_> {
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

    pub(super) fn empty(&self) -> Answer {
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
            lacks_pod_network: !self.judge.has_pod_network(),
            unasked: None,
            nodes: Vec::new(),
            unseen: answer::unseen(self.node),
        }
    }

    pub(super) fn explain(
        &self,
        found: &Found<'_>,
        source: Option<&str>,
    ) -> Result<Answer, Unanswered> {
        let service = found.service;
        let name = target::full(service);
        let mut answer = self.empty();
        answer.service = Some(name.clone());
        answer.found = Some(service.into());
        answer.findings = findings::related(&self.outcomes, service);
        if let Some(cause) = not_served(found, self.services) {
            let degree = match cause {
                Cause::NoClusterIp => Degree::Breaks,
                Cause::ExternalName {
                    ref target,
                    ref lacks_port,
                    ..
                } if is_address(target) || lacks_port.is_some() => Degree::Breaks,
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
                let words = verdict::hidden_balancer_words(service, &names);
                answer.unknown.push(words);
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
        if source.is_none() && answer.paths.iter().all(|path| !path.fate.fails()) {
            answer.notes.extend(self.unsteady(&ports));
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
        match headless_port(found, &ports) {
            Some(cause) => answer.add(cause, Fate::Refused),
            None => answer.notes.extend(headless_ports(service, &ports)),
        }
        Ok(answer)
    }

    /// Explains the NodePort of a Service at `addr`, whose family the Service does not have.
    pub(super) fn in_other_family(
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
            if let Some(cause) = other_family(found.service, target) {
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
    pub(super) fn add_causes(
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
        drop_repeated(&mut answer.causes);
    }

    /// Adds the reason why kube-proxy does not program the node, if its rules are unknown.
    pub(super) fn idle_causes(&self, service: &Service, answer: &mut Answer) {
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
                let to = path.target().to_string();
                if !at.to.contains(&to) {
                    at.to.push(to);
                }
            }
            let broken = Broken::new(Cause::Idle(idle), Degree::Suspect, at);
            answer.causes.push(broken);
        }
    }

    /// Adds the connections to one port in one family, and returns the causes of those that fail.
    pub(super) fn port(
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
                        share: path.share(),
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
        let doubt = |path: &Path| {
            let faults = path.cell.verdict.faults();
            faults.into_iter().find_map(|fault| match fault {
                Fault::Unknown(Missing::Undeclared(of)) if path.service == name => Some(of.clone()),
                _ => None,
            })
        };
        if let Some(of) = answer.paths.iter().find_map(doubt) {
            let cause = Cause::UndeclaredPort {
                port: of.port,
                declared: of.declared.iter().map(|port| port.number).collect(),
                of,
            };
            blames.push(Blamed::of(&name, Blame::suspects(cause)));
        }
        blames
    }

    /// Returns that rules of another node stop packets for the address that this node put in the place of the client's.
    pub(super) fn not_the_client(&self, cell: &Cell) -> Option<String> {
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
}

/// Drops differences in rules for a reason that is itself a cause of the same connections.
fn drop_repeated(causes: &mut Vec<Broken>) {
    let reasons: Vec<(&'static str, Vec<String>)> = causes
        .iter()
        .filter_map(|broken| match &broken.cause {
            Cause::Idle(idle) if broken.degree == Degree::Breaks => {
                Some((idle.check, broken.to.clone()))
            }
            _ => None,
        })
        .collect();
    causes.retain(|broken| {
        let Cause::Rules {
            proxy: Some(idle), ..
        } = &broken.cause
        else {
            return true;
        };
        let is_told = |(check, to): &(&'static str, Vec<String>)| {
            *check == idle.check && broken.to.iter().all(|at| to.contains(at))
        };
        !reasons.iter().any(is_told)
    });
}

/// Drops connections from elsewhere to addresses that their own node translates, unless these are the only ones.
pub(super) fn keep_ways(paths: &mut Vec<(Target<'_>, Cell)>) {
    let has_way = |(target, cell): &(Target<'_>, Cell)| {
        !target.kind.is_internal() || !matches!(cell.client, Client::Elsewhere | Client::Outside)
    };
    if paths.iter().any(has_way) {
        paths.retain(has_way);
    }
}
