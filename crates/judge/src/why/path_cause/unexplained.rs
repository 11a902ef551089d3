//! Connections that fail although no repair in the simulation helps.

use std::net::{IpAddr, SocketAddr};

use crate::check::{Outcome as CheckOutcome, ServiceRef, Severity, Subject, Writer};
use crate::diff::Change;
use crate::repair::Repair;
use crate::trace::sources::own_address;
use crate::trace::userspace::CLOSED;
use crate::trace::why::{self, lacks_by_rules};
use crate::trace::{Effect, Outcome, Subsystem};
use crate::verdict::{Cell, Fault, Kind, Obstacle, Target};
use crate::why::Cause;
use crate::why::blame::Blame;
use crate::why::candidates::failing;
use crate::why::endpoints::slices_of;
use crate::why::look::Look;
use crate::why::unserved::other_family;
use kpx_node::backend::Mode;
use kpx_node::cluster::Service;
use kpx_node::net::Family;
use kpx_node::owner::{self, Port};

impl Look<'_> {
    /// Returns why the connections of `cell` fail although no repair in the simulation helps: the simulation does not cover
    /// how kube-proxy's process handles connections, and on which ports it listens.
    pub(super) fn without_repair(
        &self,
        service: &Service,
        target: Target<'_>,
        cell: &Cell,
    ) -> Vec<Blame> {
        let (port, family) = (target.port, target.family());
        let known = self
            .shared(service, target)
            .or_else(|| other_family(service, target))
            .or_else(|| self.on_loopback(target, cell))
            .or_else(|| self.left_out(target));
        if let Some(cause) = known {
            return vec![Blame::breaks(cause)];
        }
        let is_lacking = self.lacks_endpoints(port, family);
        let lacking = || self.lacking(service, port, family);
        if is_lacking && is_for_want_of_endpoints(cell) {
            return vec![lacking()];
        }
        let ends = ends_at_process(cell);
        if is_lacking && ends.iter().all(|end| *end == Some(AtProcess::Closed)) {
            return vec![lacking()];
        }
        if !ends.iter().all(|end| *end == Some(AtProcess::Unheard)) {
            // Without its mode, the rules of kube-proxy are unknown.
            if is_lacking && self.node.configured_mode().is_err() {
                return vec![lacking()];
            }
            return vec![Blame::breaks(self.unexplained(service, target.port, cell))];
        }
        let guessed = self.guessed(family);
        let known = if guessed.is_empty() {
            self.compared()
        } else {
            &guessed
        };
        let drift = Self::drift(port, known, family);
        let changes = drift.iter().flat_map(|drift| &drift.repairs);
        let changes: Vec<&Change> = changes
            .filter_map(|repair| match repair {
                Repair::Program(change) => Some(change.as_ref()),
                _ => None,
            })
            .collect();
        let rules = self.rules(&changes, family);
        let rules = rules.unwrap_or_else(|| unexplained(cell));
        let mut blames = vec![Blame::breaks(rules)];
        blames.extend(is_lacking.then(lacking));
        blames
    }

    /// Returns the cause of connections to `port` that no known repair helps.
    pub(super) fn unexplained(&self, service: &Service, port: &Port, cell: &Cell) -> Cause {
        let is_unserved = |fault: &Fault| matches!(fault, Fault::Untranslated { again: false, .. });
        let faults = cell.verdict.faults();
        if service.is_labelled_headless() {
            return Cause::HeadlessLabel;
        }
        // If the rules cannot be compared, a rule that leads to no endpoint dates from before kube-proxy stopped
        // writing.
        let is_outdated = |fault: &Fault| {
            self.diff.is_err() && matches!(fault, Fault::NoEndpoint { .. } | Fault::NoPod { .. })
        };
        if faults
            .first()
            .is_some_and(|fault| is_unserved(fault) || is_outdated(fault))
            && let Some(idle) = self.idle(Family::of(cell.flow.destination))
        {
            return Cause::Idle(idle);
        }
        let dead = |fault: &&Fault| match fault {
            Fault::NoPod { address } => {
                let (slice, writer) = self.slice_with(service, *address)?;
                Some(Cause::NoPod {
                    backend: *address,
                    slice,
                    writer,
                })
            }
            Fault::NothingListens { address, .. }
            | Fault::Untranslated {
                address,
                again: true,
                ..
            } => {
                let (slice, writer) = self.slice_with(service, *address)?;
                let mut ports = self
                    .services
                    .iter()
                    .flat_map(|service| owner::ports_of(service, &[], None));
                let serves = |other: &Port| {
                    let mut addresses = other.addresses.iter();
                    other.proto == port.proto
                        && (other.node_port == Some(address.port())
                            || other.port == Some(address.port())
                                && addresses.any(|(_, at)| *at == address.ip()))
                };
                let other = ports.find(serves)?;
                Some(Cause::Twice {
                    backend: *address,
                    other: other.name.to_string(),
                    slice,
                    writer,
                })
            }
            _ => None,
        };
        let first = faults.first().and_then(dead);
        let is_explained = matches!(faults.first(), Some(Fault::Obstacle(_)));
        first
            .or_else(|| self.found(service, cell).filter(|_| !is_explained))
            .unwrap_or_else(|| unexplained(cell))
    }

    /// Returns the error of the doctor that is about the destination of `cell`, or about an address to which its packets are translated,
    /// or the known bug that it finds at `service`.
    pub(super) fn found(&self, service: &Service, cell: &Cell) -> Option<Cause> {
        let ends = cell.outcomes.iter().map(|outcome| outcome.destination.0);
        let addresses: Vec<IpAddr> = ends.chain([cell.flow.destination]).collect();
        let of_service = ServiceRef::from(service);
        // The kubelet's chain drops what has a mark.
        let is_marked = cell.outcomes.iter().any(|outcome| {
            let hop = why::decisive(outcome).filter(|_| !outcome.verdict.arrives());
            hop.is_some_and(|hop| hop.chain == "KUBE-FIREWALL")
        });
        let all = self
            .outcomes
            .iter()
            .filter_map(|(check, outcome)| match outcome {
                CheckOutcome::Fail(findings) => {
                    Some(findings.iter().map(|finding| (*check, finding)))
                }
                _ => None,
            });
        let mut errors = all
            .flatten()
            .filter(|(_, of)| of.severity == Severity::Error);
        let (check, finding) = errors.find(|(check, of)| {
            let mut services = of.services.iter();
            let about = of.about.address();
            about.is_some_and(|address| addresses.contains(&address))
                || is_marked && matches!(of.about, Subject::Mark { .. })
                || check.group() == "bugs"
                    && services.any(|service| service.is_same_service(&of_service))
        })?;
        Some(Cause::Finding {
            check: check.id,
            reason: finding.message.clone(),
            fix: Box::new(Some(
                finding.fix.clone().unwrap_or_else(|| check.fix.into()),
            )),
        })
    }

    /// Returns the slice of `service` that lists `endpoint`, and who writes it.
    pub(super) fn slice_with(
        &self,
        service: &Service,
        endpoint: SocketAddr,
    ) -> Option<(String, Writer)> {
        let address = endpoint.ip().to_string();
        let mut slices = slices_of(service, self.slices);
        let slice = slices.find(|slice| {
            let mut all = slice
                .endpoints
                .iter()
                .flat_map(|endpoint| &endpoint.addresses);
            all.any(|own_address| *own_address == address)
        })?;
        Some((
            slice.metadata.name.clone(),
            Writer::of(slice, Some(service)),
        ))
    }

    /// Returns that another Service has the address and port of `target`, too: kube-proxy's rules serve one of them.
    pub(super) fn shared(&self, service: &Service, target: Target<'_>) -> Option<Cause> {
        let Kind::Address(own) = target.kind else {
            return None;
        };
        let meta = &service.metadata;
        let is_other = |service: &&Service| {
            service.metadata.name != meta.name || service.metadata.namespace != meta.namespace
        };
        let others = self.services.iter().filter(is_other);
        let mut ports = others.flat_map(|service| owner::ports_of(service, &[], None));
        ports.find_map(|port| {
            let has_port = port.port == Some(target.at.port()) && port.proto == target.port.proto;
            let mut addresses = port.addresses.iter().filter(|_| has_port);
            let (role, _) = addresses.find(|(_, at)| *at == target.at.ip())?;
            Some(Cause::SharedAddress {
                address: target.at,
                role: own,
                other: format!("{}/{}", port.name.namespace, port.name.name),
                other_role: *role,
            })
        })
    }

    /// Returns that kube-proxy serves no NodePort on the loopback address of `target`.
    pub(super) fn on_loopback(&self, target: Target<'_>, cell: &Cell) -> Option<Cause> {
        let faults = cell.verdict.faults();
        let why = faults.iter().find_map(|fault| match fault {
            Fault::NotOnLoopback { why, .. } => Some(*why),
            _ => None,
        })?;
        let own = own_address(self.node, target.family());
        Some(Cause::OnLoopback {
            address: target.at,
            why,
            instead: own.map(|own| SocketAddr::new(own, target.at.port())),
        })
    }

    /// Returns that kube-proxy's configuration omits the address of the NodePort, which the machine has.
    pub(super) fn left_out(&self, target: Target<'_>) -> Option<Cause> {
        if target.at.ip().is_loopback() || !self.is_own(target.at.ip()) {
            return None;
        }
        let ranges = &self.node.proxy_config().ok()?.node_port_addresses;
        let mode = self.node.configured_mode().ok()?;
        let desired = self.node.desired(mode).ok()?;
        let listed = desired
            .family(target.family())?
            .node_port_addresses(&desired.facts, true);
        // Without ranges, mode nftables serves the node's primary address alone.
        let is_out = target.kind == Kind::NodePort
            && (!ranges.is_empty() || mode == Mode::Nftables)
            && !listed.ok()?.contains(&target.at.ip());
        is_out.then(|| Cause::NodePortAddresses {
            ranges: ranges.clone(),
            address: target.at.ip(),
        })
    }
}

/// Returns whether all connections of `cell` that fail are refused because the Service has no endpoints.
pub(super) fn is_for_want_of_endpoints(cell: &Cell) -> bool {
    let failing = failing(cell);
    !failing.is_empty() && failing.iter().all(|outcome| lacks_by_rules(outcome))
}

/// Returns the cause of connections that no known repair helps: their worst fault.
pub(super) fn unexplained(cell: &Cell) -> Cause {
    let faults = cell.verdict.faults();
    // Nothing on this node removes it.
    if let Some(Fault::Obstacle(what)) = faults.first() {
        return obstacle_cause(what);
    }
    let no_route = faults.iter().find_map(|fault| match fault {
        Fault::NoRoute { to, reason, .. } => Some((*to, reason.clone())),
        _ => None,
    });
    match no_route {
        Some((backend, reason)) => Cause::NoRoute {
            is_service: cell.kind != Kind::Endpoint && backend == cell.to(),
            backend,
            reason,
        },
        None => Cause::Unexplained {
            reason: faults.first().map_or_else(String::new, ToString::to_string),
            backend: SocketAddr::from(
                cell.outcomes
                    .first()
                    .map_or((cell.flow.destination, cell.flow.port), |outcome| {
                        outcome.destination
                    }),
            ),
        },
    }
}

/// How a connection ends at kube-proxy's process.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum AtProcess {
    /// The process has no endpoint for it.
    Closed,
    /// The process does not listen on the port.
    Unheard,
}

/// Returns how each way of `cell` that fails ends at kube-proxy's process; `None` for one that ends elsewhere.
pub(super) fn ends_at_process(cell: &Cell) -> Vec<Option<AtProcess>> {
    let end = |outcome: &&Outcome| {
        let hop = outcome.hops.last()?;
        match &hop.effect {
            _ if hop.subsystem != Subsystem::Process => None,
            Effect::Reject { with } if with != CLOSED => Some(AtProcess::Unheard),
            Effect::Reject { .. } | Effect::Drop => Some(AtProcess::Closed),
            _ => None,
        }
    };
    failing(cell).iter().map(end).collect()
}

pub(super) fn obstacle_cause(what: &Obstacle) -> Cause {
    let mut what = what.clone();
    // It is one cause, whether the client gets an error or not.
    if let Obstacle::HomeGone { refused, .. } | Obstacle::Wayless { refused, .. } = &mut what {
        *refused = false;
    }
    Cause::Obstacle {
        text: what.to_string(),
        what: Box::new(what),
    }
}

/// Returns the cause of a wrong or missing route to this node's pods.
pub(super) fn pod_route(fault: &Fault) -> Option<Cause> {
    match fault {
        Fault::WrongWay { address, way, home } => Some(Cause::WrongNode {
            backend: *address,
            way: way.clone(),
            home: home.clone(),
        }),
        Fault::NoRoute { to, reason, .. } => Some(Cause::NoRoute {
            backend: *to,
            reason: reason.clone(),
            is_service: false,
        }),
        _ => None,
    }
}
