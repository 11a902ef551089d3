//! Connections to addresses of no Service, or of a Service that was not read: only the rules and routes decide about
//! them.

use std::net::SocketAddr;

use super::answer::Answer;
use super::cause::{Cause, Degree};
use super::endpoints::EndpointRow;
use super::gaps::unknown_ends;
use super::group::Blamed;
use super::look::{Look, Unanswered};
use super::target::{self, Asked};
use super::{Broken, Path};
use crate::verdict::{self, Fault, Kind, Target};
use kpx_node::backend::ipvs::print;
use kpx_node::evidence::Gap;
use kpx_node::net::{Family, Proto};
use kpx_node::node::IptablesBackend;
use kpx_node::owner::{self, Owners, Port};

impl Look<'_> {
    /// Returns that `at` is an address of another node, and what the port is there.
    pub(super) fn of_node(&self, at: SocketAddr) -> Option<Cause> {
        let other = self.judge.node_at(at.ip())?;
        let mut services = self.services.iter();
        let node_port = services.find(|service| {
            let mut ports = service.spec.ports.iter();
            ports.any(|port| port.node_port == Some(at.port()))
                && service.has_family(Family::of(at.ip()))
        });
        let mut pods = self.node.pods().into_iter().flatten();
        let mut host_port = || {
            pods.find(|pod| {
                pod.spec.node_name.as_ref() == Some(&other) && pod.has_host_port(at.port())
            })
        };
        let is = node_port
            .map(|service| format!("the NodePort of {}", target::full(service)))
            .or_else(|| {
                let meta = &host_port()?.metadata;
                Some(format!(
                    "a hostPort of pod {}/{}",
                    meta.namespace, meta.name
                ))
            });
        Some(Cause::OfNode { at, other, is })
    }

    /// Explains `asked` by the names in the rules, if the Services were not read; `gap` is the reason.
    pub(super) fn by_rules(
        &self,
        asked: &Asked,
        gap: &Gap,
        source: Option<&str>,
    ) -> Result<Answer, Unanswered> {
        let mut answer = self.empty();
        let owners = Owners::new(self.node);
        let ports: Vec<&Port> = owners
            .ports()
            .iter()
            .filter(|port| asked.names(port))
            .collect();
        let service = ports
            .first()
            .map(|port| format!("{}/{}", port.name.namespace, port.name.name));
        let mut blames = Vec::new();
        for port in &ports {
            let name = port.name.to_string();
            answer.endpoints.extend(EndpointRow::all(port));
            for family in &self.families {
                let mut targets = verdict::targets(self.node, port, *family);
                targets.retain(|target| match asked {
                    Asked::Service { .. } => true,
                    Asked::Address(addr, ..) => target.at.ip() == *addr,
                    Asked::NodePort(_) => target.kind == Kind::NodePort,
                });
                for target in targets {
                    blames.extend(self.plain_to(target, source, &name, &mut answer)?);
                }
            }
        }
        let subject = match (&service, self.address(asked)) {
            (Some(service), _) => match ports.as_slice() {
                [only] => only.name.to_string(),
                _ => service.clone(),
            },
            (None, Some(at)) => {
                blames =
                    self.plain(at, proto_asked(asked), source, &at.to_string(), &mut answer)?;
                at.to_string()
            }
            (None, None) => return Err(Unanswered::Objects(gap.clone())),
        };
        self.add_causes(blames, &subject, None, &mut answer);
        if let Some(name) = service.as_ref().filter(|_| self.leads_nowhere(&ports)) {
            answer.notes.push(format!(
                "no rule of KUBE-SERVICES leads to the chains of {name}: its rules are missing there, or kube-proxy has left the chains of \
                 a deleted Service"
            ));
        }
        answer.service = service;
        unknown_ends(&mut answer);
        answer.unknown.push(format!(
            "which Services and endpoints there should be: {gap}"
        ));
        answer.settle_as(&subject);
        Ok(answer)
    }

    /// Returns whether the rules, which were read, have chains for `ports` and nothing that leads to them.
    fn leads_nowhere(&self, ports: &[&Port]) -> bool {
        let is_read = Family::BOTH.iter().any(|family| {
            let saved = self.node.saved(IptablesBackend::InUse, *family);
            saved.is_ok_and(|saved| matches!(saved.chain("nat", "KUBE-SERVICES"), Ok(Some(_))))
        });
        let mut all = ports.iter();
        is_read && all.all(|port| port.addresses.is_empty() && port.node_port.is_none())
    }

    /// Explains what happens to a connection to a target that no Service has.
    pub(super) fn without_service(
        &self,
        asked: &Asked,
        cause: Cause,
        source: Option<&str>,
    ) -> Result<Answer, Unanswered> {
        let mut answer = self.empty();
        let name = match asked {
            Asked::Address(addr, Some(port), _) => SocketAddr::new(*addr, *port).to_string(),
            _ => String::new(),
        };
        if let Some(at) = self.address(asked) {
            let blames = self.plain(at, proto_asked(asked), source, &name, &mut answer)?;
            if !matches!(
                cause,
                Cause::NoPort {
                    is_health: false,
                    ..
                }
            ) {
                self.add_causes(blames, &name, None, &mut answer);
            }
            unknown_ends(&mut answer);
        }
        if let Cause::NoPort {
            is_health: true,
            service,
            port,
            ..
        } = &cause
        {
            answer.notes.push(format!("port {port} is the healthCheckNodePort of {service}: kube-proxy itself answers there"));
            answer.settle_as(&name);
            return Ok(answer);
        }
        // Rules that are left at the address say more.
        if answer.paths.iter().any(is_left) {
            answer.settle_as(&name);
            return Ok(answer);
        }
        let degree = match cause {
            Cause::NoService {
                unread: Some(_), ..
            }
            | Cause::OfNode { .. } => Degree::Suspect,
            Cause::NoAddress { .. } if !answer.paths.iter().any(is_free) => Degree::Suspect,
            _ => Degree::Breaks,
        };
        answer
            .notes
            .extend(self.address(asked).and_then(|at| self.left_server(at)));
        match cause {
            // The state of the other node says more.
            Cause::OfNode { at, other, is } if self.there.is_some() => {
                let note = is.map(|is| format!("{at} is {is} on {other}"));
                answer.notes.extend(note);
            }
            cause => {
                let place = self.at(name.clone());
                answer.causes.push(Broken::new(cause, degree, place));
            }
        }
        answer.settle_as(&name);
        Ok(answer)
    }

    /// Returns that the node has a virtual server at `at`, which no Service needs.
    fn left_server(&self, at: SocketAddr) -> Option<String> {
        let mut servers = self.node.ipvs().ok()?.servers.iter();
        let key = servers.find(|server| server.key.socket() == Some(at))?.key;
        Some(format!(
            "the node has virtual server {}, which no Service needs: `kpx explain VS03` says why it may be left",
            print::name(key)
        ))
    }

    /// Returns the address and port that are asked about, if they are given or are those of a Service.
    fn address(&self, asked: &Asked) -> Option<SocketAddr> {
        match asked {
            Asked::Address(addr, port, _) => Some(SocketAddr::new(*addr, (*port)?)),
            Asked::Service {
                namespace,
                name,
                port,
            } => {
                let mut services = self.services.iter();
                let service = services.find(|service| {
                    service.metadata.namespace == *namespace && service.metadata.name == *name
                })?;
                let all = owner::addresses(service);
                let mut ours = all.iter().map(|(_, addr)| *addr);
                let addr = ours.find(|addr| self.families.contains(&Family::of(*addr)))?;
                Some(SocketAddr::new(addr, port.as_deref()?.parse().ok()?))
            }
            Asked::NodePort(_) => None,
        }
    }

    /// Judges connections to an address and port that no Service has, and returns why they fail.
    pub(super) fn plain(
        &self,
        at: SocketAddr,
        proto: Proto,
        source: Option<&str>,
        name: &str,
        answer: &mut Answer,
    ) -> Result<Vec<Blamed>, Unanswered> {
        let nobody = Port::nobody(at.port(), proto);
        let mut addresses = self.services.iter().flat_map(owner::addresses);
        let role = addresses.find(|(_, addr)| *addr == at.ip());
        let target = Target {
            port: &nobody,
            kind: role.map_or(Kind::Endpoint, |(role, _)| Kind::Address(role)),
            at,
        };
        self.plain_to(target, source, name, answer)
    }

    /// Adds the connections to `target`, and returns why they fail.
    fn plain_to(
        &self,
        target: Target<'_>,
        source: Option<&str>,
        name: &str,
        answer: &mut Answer,
    ) -> Result<Vec<Blamed>, Unanswered> {
        let mut blames = Vec::new();
        for (client, source) in self.judge.clients(target, source)? {
            let walks = self.walks(target.family());
            let cell = self.judge.cell(&walks, target, client, &source);
            let mut path = Path::new(name.to_owned(), cell);
            path.by_design = verdict::is_by_design(self.node, None, target.port, &path.cell);
            if path.fate.fails() && !is_free(&path) {
                for blame in self.plain_causes(target.port, &path) {
                    blames.push(Blamed {
                        share: path.share(),
                        by_design: path.by_design,
                        client: Some(path.client),
                        to: Some(path.target()),
                        ..Blamed::of(name, blame)
                    });
                }
            }
            answer.paths.push(path);
        }
        Ok(blames)
    }
}

/// Returns the protocol that is asked about: TCP if none is named.
fn proto_asked(asked: &Asked) -> Proto {
    match asked {
        Asked::Address(_, _, Some(proto)) => *proto,
        _ => Proto::Tcp,
    }
}

/// Returns whether connections fail because no Service has the address, which is in the Service range.
fn is_free(path: &Path) -> bool {
    let faults = path.cell.verdict.faults();
    faults.iter().any(|fault| {
        matches!(
            fault,
            Fault::Untranslated {
                service: None,
                again: false,
                ..
            }
        )
    })
}

/// Returns whether rules that kube-proxy left behind take the packets of `path`.
fn is_left(path: &Path) -> bool {
    let faults = path.cell.verdict.faults();
    let mut faults = faults.iter();
    faults.any(|fault| matches!(fault, Fault::Leftover { .. }))
}
