//! The causes of connections that fail: from the sets of repairs that make them work.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};

use super::candidates::{Candidate, What, failing};
use super::endpoints::{
    Compared, Lack, Objects, Waits, lack, last_change, slices_of, unready, usable,
};
use super::paths::Path;
use super::search::Sets;
use super::there::{failing_there, fails_here};
use super::{Cause, Degree, Idle, Look};
use crate::check::{
    Finding, Fix, Outcome as CheckOutcome, ServiceRef, Severity, Subject, Writer, drifted, flushed,
    idle_proxy, ipv6_fix, ipv6_refusal, is_repairable, lost_conditions, rewriting_fix, room_fix,
    root,
};
use crate::diff::{Change, Delta, Object};
use crate::repair::{Edit, Repair};
use crate::trace::sources::own_address;
use crate::trace::userspace::CLOSED;
use crate::trace::why::{self, Refusal};
use crate::trace::{Effect, Entry, Hop, Outcome, Rule, Subsystem, mismatch};
use crate::verdict::{self, By, Cell, Fault, Kind, Missing, Obstacle, Target, Which};
use kpx_node::backend::Mode;
use kpx_node::backend::ipvs::model::DUMMY;
use kpx_node::cluster::{Pod, Service};
use kpx_node::desired::Detector;
use kpx_node::evidence::proxy_log;
use kpx_node::evidence::{Item, Time};
use kpx_node::net::{Cidr, Family};
use kpx_node::node::routes::Route;
use kpx_node::owner::chain_owner::Maker;
use kpx_node::owner::{self, Endpoint, EndpointState, Port};

/// A cause on one path.
#[derive(Clone, Debug)]
pub(super) struct Blame {
    pub(super) cause: Cause,
    pub(super) degree: Degree,
    pub(super) since: Option<Time>,
    /// The node of the cause, if it is not the node that is asked.
    pub(super) there: Option<String>,
}

impl Blame {
    pub(super) fn breaks(cause: Cause) -> Self {
        Self {
            cause,
            degree: Degree::Breaks,
            since: None,
            there: None,
        }
    }

    pub(super) fn suspects(cause: Cause) -> Self {
        Self {
            degree: Degree::Suspect,
            ..Self::breaks(cause)
        }
    }
}

impl Look<'_> {
    /// Returns why the connections of `cell` fail, in path order, and the repairs of this node; `known` are the repairs found for
    /// other connections.
    pub(super) fn causes(
        &self,
        service: &Service,
        target: Target<'_>,
        cell: &Cell,
        known: &mut Vec<Sets>,
    ) -> (Vec<Blame>, Vec<Vec<Repair>>) {
        let (mut blames, repairs) = if fails_here(cell) {
            self.causes_here(service, target, cell, known)
        } else {
            (Vec::new(), Vec::new())
        };
        for far in failing_there(cell) {
            let of_node = self.there.iter().flat_map(|there| there.causes(far));
            for blame in of_node {
                let is_same =
                    |known: &Blame| known.cause == blame.cause && known.there == blame.there;
                if !blames.iter().any(is_same) {
                    blames.push(blame);
                }
            }
        }
        (blames, repairs)
    }

    /// Returns why the connections of `cell` fail on this node.
    fn causes_here(
        &self,
        service: &Service,
        target: Target<'_>,
        cell: &Cell,
        known: &mut Vec<Sets>,
    ) -> (Vec<Blame>, Vec<Vec<Repair>>) {
        if cell.verdict.faults() == [&Fault::NoEndpoints] {
            let cause = self.lacking(service, target.port, target.family());
            return (vec![cause], Vec::new());
        }
        let sets = self.search(service, target.port, cell, known);
        if sets.is_empty() {
            let each = self.of_each(service, target, cell);
            let blames = each.unwrap_or_else(|| self.without_repair(service, target, cell));
            return (blames, Vec::new());
        }
        let repairs = sets.iter().map(|set| {
            set.iter()
                .flat_map(|candidate| candidate.repairs.clone())
                .collect()
        });
        let repairs = repairs.collect();
        let mut blames = Vec::new();
        for set in &sets {
            for blame in self.of_set(service, target, cell, set) {
                if blames
                    .iter()
                    .all(|other: &Blame| other.cause != blame.cause)
                {
                    blames.push(blame);
                }
            }
        }
        if !known.iter().any(|other| same(other, &sets)) {
            known.push(sets);
        }
        (blames, repairs)
    }

    /// Returns the cause of each fault of `cell` on this node, if it has several of which the simulation repairs some: a repair is the
    /// cause of the fault that it removes.
    fn of_each(&self, service: &Service, target: Target<'_>, cell: &Cell) -> Option<Vec<Blame>> {
        let failing = |cell: &Cell| -> Vec<Fault> {
            let faults = cell.verdict.faults().into_iter();
            let here = faults
                .filter(|fault| fault.fate().fails() && !matches!(fault, Fault::There { .. }));
            here.cloned().collect()
        };
        let faults = failing(cell);
        if faults.len() < 2 {
            return None;
        }
        let candidates = self.candidates(service, target.port, cell);
        let left: Vec<(&Candidate, Vec<Fault>)> = candidates
            .iter()
            .map(|candidate| {
                let repairs: Vec<&Repair> = candidate.repairs.iter().collect();
                (
                    candidate,
                    failing(&self.judged(target.port, cell, &repairs)),
                )
            })
            .filter(|(_, left)| {
                left.len() < faults.len() && left.iter().all(|of| faults.contains(of))
            })
            .collect();
        if left.is_empty() {
            return None;
        }
        let mut blames: Vec<Blame> = Vec::new();
        for fault in &faults {
            let removes = left.iter().find(|(_, left)| !left.contains(fault));
            let of_fault = match removes {
                Some((candidate, _)) => self.of_set(service, target, cell, &[(*candidate).clone()]),
                None => self.without_repair(service, target, &of_fault(cell, fault)),
            };
            for blame in of_fault {
                if blames.iter().all(|other| other.cause != blame.cause) {
                    blames.push(blame);
                }
            }
        }
        Some(blames)
    }

    /// Returns why the connections of `cell` fail although no repair in the simulation helps: the simulation does not cover
    /// how kube-proxy's process handles connections, and on which ports it listens.
    fn without_repair(&self, service: &Service, target: Target<'_>, cell: &Cell) -> Vec<Blame> {
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
    fn unexplained(&self, service: &Service, port: &Port, cell: &Cell) -> Cause {
        let is_unserved = |fault: &Fault| matches!(fault, Fault::Untranslated { again: false, .. });
        let faults = cell.verdict.faults();
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
            Fault::NothingListens { address }
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
    fn found(&self, service: &Service, cell: &Cell) -> Option<Cause> {
        let ends = cell.outcomes.iter().map(|outcome| outcome.destination.0);
        let addresses: Vec<IpAddr> = ends.chain([cell.flow.destination]).collect();
        let of_service = ServiceRef::from(service);
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
    fn slice_with(&self, service: &Service, endpoint: SocketAddr) -> Option<(String, Writer)> {
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
    fn shared(&self, service: &Service, target: Target<'_>) -> Option<Cause> {
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
    fn on_loopback(&self, target: Target<'_>, cell: &Cell) -> Option<Cause> {
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
    fn left_out(&self, target: Target<'_>) -> Option<Cause> {
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

    /// Returns the causes that a set of repairs removes.
    fn of_set(
        &self,
        service: &Service,
        target: Target<'_>,
        cell: &Cell,
        set: &[Candidate],
    ) -> Vec<Blame> {
        let mut blames = Vec::new();
        let changes: Vec<&Change> = set
            .iter()
            .filter(|set| set.what == What::Rules)
            .flat_map(|set| &set.repairs)
            .filter_map(|repair| match repair {
                Repair::Program(change) => Some(change.as_ref()),
                _ => None,
            })
            .collect();
        let is_rules = |of: &Candidate| of.what == What::Rules;
        if let Some(cause) = self.rules(&changes, target.family()) {
            let kept = self.kept(target, cell, set, &is_rules);
            blames.push((kept, Blame::breaks(cause)));
        }
        for candidate in set {
            if let Some(blame) = self.of_candidate(service, target, cell, candidate) {
                let kept = self.kept(target, cell, set, &|of| of.repairs == candidate.repairs);
                blames.push((kept, blame));
            }
        }
        // What stops most comes first; where that is the same, in the order of the way.
        blames.sort_by(|(kept, blame), (other_kept, other)| {
            let by_way = || blame.cause.stage().cmp(&other.cause.stage());
            other_kept.total_cmp(kept).then_with(by_way)
        });
        blames.into_iter().map(|(_, blame)| blame).collect()
    }

    /// Returns the percentage of the connections of `cell` that fail with all of `set` repaired but what `is_left`.
    fn kept(
        &self,
        target: Target<'_>,
        cell: &Cell,
        set: &[Candidate],
        is_left: &dyn Fn(&Candidate) -> bool,
    ) -> f64 {
        let others = set.iter().filter(|candidate| !is_left(candidate));
        let repairs: Vec<&Repair> = others.flat_map(|other| &other.repairs).collect();
        if repairs.is_empty() {
            return 100.0;
        }
        let failing = self.judged(target.port, cell, &repairs).verdict.failing();
        (failing * 100.0).round()
    }

    fn of_candidate(
        &self,
        service: &Service,
        target: Target<'_>,
        cell: &Cell,
        candidate: &Candidate,
    ) -> Option<Blame> {
        let faults = cell.verdict.faults();
        Some(match &candidate.what {
            // They are one cause.
            What::Rules => return None,
            What::Foreign(hop) => Blame::breaks(self.foreign(hop, cell)),
            What::Leftover(hop, mode) => Blame::breaks(Cause::Leftover {
                mode: *mode,
                object: format!(
                    "rule {} of chain {} in table {}",
                    hop.number, hop.chain, hop.table
                ),
            }),
            What::LeftAddress(addr) => Blame::breaks(Cause::Leftover {
                mode: Mode::Ipvs,
                object: format!("address {addr} of kube-ipvs0"),
            }),
            What::Sysctl(key) => {
                let bridge = faults.iter().find_map(|fault| match fault {
                    Fault::BypassedReply { bridge, key: of } if of == key => Some(bridge.clone()),
                    _ => None,
                });
                Blame::breaks(match bridge {
                    Some(bridge) => Cause::BypassedReply { bridge, key },
                    None => Cause::ForwardingOff { key },
                })
            }
            What::Dormant(table) => Blame::breaks(Cause::Dormant {
                table: table.clone(),
            }),
            What::Route(route, backend, fix) => Blame::breaks(Cause::Route {
                route: route.clone(),
                backend: *backend,
                fix: fix.clone(),
            }),
            What::RouteThere(missing) => match missing {
                Missing::PodRoute {
                    address,
                    way,
                    there,
                } => Blame::breaks(Cause::PodRoute {
                    tunnel: there.tunnel.clone(),
                    backend: *address,
                    range: there.range,
                    other: there.node.clone(),
                    by: there.by,
                    own: there.own.clone(),
                    odd: there.odd.clone(),
                    way: match self.ending_route(there.range) {
                        Some(kind) => format!("end at its {kind} route"),
                        None => format!("leave by {way}"),
                    },
                }),
                _ => return None,
            },
            What::PodRoute(fault) => {
                let cause = pod_route(fault)?;
                // The way to an assumed endpoint is no cause to report: the endpoint does not exist.
                let assumed = self.new_endpoint(target.family());
                let is_assumed = |backend: &SocketAddr| backend.ip() == assumed;
                match &cause {
                    Cause::NoRoute { backend, .. } | Cause::WrongNode { backend, .. }
                        if is_assumed(backend) =>
                    {
                        return None;
                    }
                    _ => Blame::breaks(cause),
                }
            }
            What::Table(count, most) => {
                let crowd = self.node.crowd();
                Blame::breaks(Cause::TableFull {
                    count: *count,
                    most: *most,
                    mostly: crowd.as_ref().map(ToString::to_string),
                    fix: room_fix(*most, crowd.as_ref()),
                })
            }
            What::Tracked => {
                let (count, backends) = faults.iter().find_map(|fault| match fault {
                    Fault::Stale { count, backends } => Some((*count, backends.clone())),
                    _ => None,
                })?;
                Blame::breaks(Cause::StaleConnections {
                    count,
                    address: cell.to(),
                    protocol: cell.flow.proto.to_string(),
                    end: crate::trace::end_tracked(&cell.flow, &backends),
                    backends,
                })
            }
            What::Obstacle(what) => Blame::breaks(obstacle_cause(what)),
            What::Hairpin(bridge) => Blame::breaks(Cause::HairpinPort {
                bridge: bridge.clone(),
            }),
            What::Edit(Edit::Endpoint) => self.lacking(service, target.port, target.family()),
            What::Edit(Edit::Policies) => self.not_local(service, target, cell),
            What::Edit(Edit::SourceRanges) => Blame {
                since: service.metadata.unedited_since(),
                ..Blame::breaks(Cause::SourceRanges {
                    ranges: service.spec.load_balancer_source_ranges.clone(),
                })
            },
            What::Edit(Edit::ClusterCidr) => Blame::breaks(Cause::NotMasqueraded {
                reply: faults.first()?.to_string(),
            }),
        })
    }

    /// Returns why connections to `port`, of no Service that is read, fail.
    pub(super) fn plain_causes(&self, port: &Port, path: &Path) -> Vec<Blame> {
        let sets = self.search(&Service::default(), port, &path.cell, &[]);
        let foreign = sets.iter().flatten().filter_map(|set| match &set.what {
            What::Foreign(hop) => Some(Blame::breaks(self.foreign(hop, &path.cell))),
            What::Obstacle(what) => Some(Blame::breaks(obstacle_cause(what))),
            _ => None,
        });
        let found: Vec<_> = foreign.collect();
        // A translation to an address that cannot answer fails with the rule; without the rule the result is unknown.
        let translation = path
            .cell
            .outcomes
            .iter()
            .flat_map(|outcome| &outcome.hops)
            .find(|hop| {
                matches!(hop.effect, Effect::Dnat { .. })
                    && matches!(why::maker(hop), Maker::Other(_) | Maker::Unknown)
            });
        match (found.is_empty(), translation) {
            (false, _) => found,
            (true, Some(hop)) => vec![Blame::breaks(self.foreign(hop, &path.cell))],
            (true, None) => {
                let cause = self.leftover(&path.cell);
                let cause = cause.or_else(|| self.found(&Service::default(), &path.cell));
                vec![Blame::breaks(
                    cause.unwrap_or_else(|| unexplained(&path.cell)),
                )]
            }
        }
    }

    /// Returns the rules that kube-proxy left behind at an address and port that no Service has.
    fn leftover(&self, cell: &Cell) -> Option<Cause> {
        let faults = cell.verdict.faults();
        let left = faults
            .iter()
            .find(|fault| matches!(fault, Fault::Leftover { .. }))?;
        let flow = &cell.flow;
        let known = self.node.addresses().ok()?;
        let is_own = known
            .all
            .iter()
            .any(|own| own.addr.addr == flow.destination && own.link != DUMMY);
        let is_it = |addr: Option<IpAddr>, port: Option<u16>| {
            port == Some(flow.port) && addr.map_or(is_own, |addr| addr == flow.destination)
        };
        let names = |change: &&Change| match &change.object {
            Object::IptablesRule {
                rule: Delta::Extra(rule),
                ..
            } => {
                let to = rule.destination();
                is_it(to.addr, to.port)
            }
            Object::VirtualServer {
                key,
                server: Delta::Extra(_),
            } => key.socket() == Some(SocketAddr::new(flow.destination, flow.port)),
            Object::Address(Delta::Extra(addr)) => **addr == flow.destination,
            Object::NftablesElement {
                element: Delta::Extra(element),
                ..
            } => element
                .destination()
                .is_some_and(|to| is_it(to.addr, Some(to.port))),
            _ => false,
        };
        let changes: Vec<&Change> = self.diff().ok()?.changes.iter().filter(names).collect();
        match self.rules(&changes, Family::of(flow.destination))? {
            Cause::Rules {
                object,
                common,
                synced,
                proxy,
                fix,
                ..
            } => Some(Cause::Rules {
                difference: left.to_string(),
                more: 0,
                object,
                common,
                synced,
                proxy,
                fix,
            }),
            _ => None,
        }
    }

    fn not_local(&self, service: &Service, target: Target<'_>, cell: &Cell) -> Blame {
        let family = target.family();
        let here = usable(target.port, family).any(|usable| usable.local == Some(true));
        if let Some(misnamed) = here.then(|| self.misnamed()).flatten() {
            return Blame::breaks(Cause::Idle(misnamed));
        }
        if let Some(detector) = verdict::undetected(self.node, cell) {
            return Blame::breaks(self.undetected(cell, detector));
        }
        // The policy leaves the endpoint here, so it is no reason to refuse or drop packets.
        let leaves = |fault: &&Fault| {
            matches!(
                fault,
                Fault::DirectReply { .. } | Fault::SharedSource { .. }
            )
        };
        let own = self.node.name().ok();
        let unnamed = verdict::unnamed(self.node, target.port, family);
        if here && unnamed.is_empty() && !cell.verdict.faults().iter().any(leaves) {
            return Blame::breaks(self.unexplained(service, target.port, cell));
        }
        // The endpoints may have moved since.
        let moved = last_change(service, family, self.slices);
        let since = service.metadata.unedited_since().zip(moved);
        let policy = if target.kind.is_internal() {
            "internalTrafficPolicy"
        } else {
            "externalTrafficPolicy"
        };
        let nodes: BTreeSet<String> = usable(target.port, family)
            .filter_map(|usable| usable.node.as_deref().map(str::to_owned))
            .collect();
        Blame {
            since: since.map(|(service, moved)| service.max(moved)),
            ..Blame::breaks(Cause::NoLocalEndpoints {
                policy,
                here: here && unnamed.is_empty(),
                fields: local_fields(service),
                nodes: nodes.into_iter().collect(),
                unnamed,
                writer: slices_of(service, self.slices)
                    .find(|slice| {
                        slice
                            .endpoints
                            .iter()
                            .any(|endpoint| endpoint.node_name != own)
                    })
                    .map(|slice| Writer::of(slice, Some(service))),
                ending: of_state(target, EndpointState::Terminating)
                    .map(called)
                    .collect(),
                unready: of_state(target, EndpointState::NotReady)
                    .map(|endpoint| self.waits(endpoint))
                    .collect(),
            })
        }
    }

    /// Returns why `endpoint` is not ready.
    fn waits(&self, endpoint: &Endpoint) -> Waits {
        let name = called(endpoint);
        let is_it = |pod: &&Pod| {
            name.split_once('/') == Some((&*pod.metadata.namespace, &*pod.metadata.name))
        };
        let pod = self
            .node
            .pods()
            .ok()
            .and_then(|pods| pods.iter().find(is_it));
        let listens = |address, port| self.judge.listens_inside(address, port);
        pod.and_then(|pod| Waits::of(pod, &listens))
            .unwrap_or(Waits {
                pod: name,
                reason: "not ready".to_owned(),
                crashed: None,
            })
    }

    /// Returns that kube-proxy takes the pod that `cell` asks for a machine outside, because of `detector`.
    fn undetected(&self, cell: &Cell, detector: &Detector) -> Cause {
        let setting = match detector {
            Detector::Cidr(range) => match cell.flow.source {
                Some(pod) => format!(
                    "the range of pods in its configuration, {range}, does not contain {pod}"
                ),
                None => format!("the range of pods in its configuration is {range}"),
            },
            Detector::Interface(name) => {
                format!(
                    "bridgeInterface in its configuration is {name}, a link that the node does not have"
                )
            }
            Detector::Prefix(start) => format!(
                "interfaceNamePrefix in its configuration is {start}, with which no link of the node begins"
            ),
        };
        let found = self.failed("KP10").and_then(|finding| finding.fix.clone());
        Cause::Idle(Idle {
            check: "KP10",
            reason: format!(
                "kube-proxy takes pods of this node for machines outside, to which a Local policy offers endpoints of the node alone: \
                 {setting}"
            ),
            lasts: true,
            fix: found.or_else(|| {
                let text =
                    "Correct the setting in kube-proxy's configuration, and restart kube-proxy.";
                Some(Fix::said(text))
            }),
        })
    }

    /// Returns the first finding of the check `id`, if it failed.
    fn failed(&self, id: &str) -> Option<&Finding> {
        let mut all = self.outcomes.iter().filter(|(check, _)| check.id == id);
        all.find_map(|(_, outcome)| match outcome {
            CheckOutcome::Fail(findings) => findings.first(),
            _ => None,
        })
    }

    /// Returns the doctor's finding that kube-proxy runs with a name that is not its Node's, so that no endpoint is local to it.
    pub(super) fn misnamed(&self) -> Option<Idle> {
        let finding = self.failed("KP11")?;
        Some(Idle {
            check: "KP11",
            reason: match &finding.about {
                Subject::Node { name: Some(name) }
                    if self.node.by_clues().name().ok().as_ref() != Some(name) =>
                {
                    format!(
                        "kube-proxy runs with the name {name}, which is not that of this Node, so no endpoint is local to it"
                    )
                }
                _ => finding.message.clone(),
            },
            lasts: true,
            fix: finding.fix.clone(),
        })
    }

    /// Returns the same if `change` follows from it: an object that kube-proxy writes for local endpoints alone.
    fn misnamed_for(&self, change: &Change) -> Option<Idle> {
        let services = &self.failed("KP11")?.services;
        let is_of = |name: &str| services.iter().any(|service| service.to_string() == name);
        let follows = change.object.hairpin().is_some()
            || change.object.is_of_node()
            || change.service.as_deref().is_some_and(is_of);
        let idle = follows.then(|| self.misnamed()).flatten()?;
        // Its next sync removes what kpx writes.
        Some(Idle {
            lasts: false,
            ..idle
        })
    }

    /// Returns the type of the route to just `range` that ends packets, if there is one.
    fn ending_route(&self, range: Cidr) -> Option<&str> {
        let routes = &self.node.routes().ok()?.all;
        let ends = |route: &&Route| {
            let kinds = ["blackhole", "unreachable", "prohibit"];
            route.destination.normal() == range.normal() && kinds.contains(&route.kind.as_str())
        };
        routes.iter().find(ends).map(|route| route.kind.as_str())
    }

    /// Returns why `port` has no usable endpoint of `family`.
    pub(super) fn lacking(&self, service: &Service, port: &Port, family: Family) -> Blame {
        let mut ports = service.spec.ports.iter();
        let of_service = ports.find(|service_port| service_port.name == *port.name.port);
        let target = of_service.and_then(|object| object.target_port.as_ref());
        let objects = Objects {
            services: self.services,
            slices: self.slices,
            pods: self.node.pods().ok().map(Vec::as_slice),
            listens: &|address, port| self.judge.listens_inside(address, port),
        };
        let (lack, since) = lack(service, &port.name.port, target, family, objects);
        let in_part = self.node.evidence().part(Item::Services).is_some();
        let pods = objects.pods.unwrap_or_default();
        let unready = || unready(&service.metadata.namespace, pods);
        let lack = match lack {
            Lack::NoSelector { .. } if in_part => Lack::SelectorUnread { unready: unready() },
            Lack::NoPods {
                selector,
                compared: Compared::All,
                but_for: None,
            } if self.are_states_unread(service) => Lack::StatesUnread {
                selector,
                unready: unready(),
            },
            known => known,
        };
        let others = Family::BOTH
            .into_iter()
            .filter(|other_family| *other_family != family);
        let has_others = others
            .into_iter()
            .any(|other_family| usable(port, other_family).next().is_some());
        Blame {
            since,
            ..Blame::breaks(Cause::NoEndpoints {
                lack,
                family: has_others.then_some(family),
            })
        }
    }

    /// Returns whether the slices of `service` are made of a table or a description, which leave out endpoints that are not ready.
    fn are_states_unread(&self, service: &Service) -> bool {
        let mut slices = slices_of(service, self.slices).peekable();
        slices.peek().is_some() && slices.all(|slice| slice.in_part)
    }

    fn rules(&self, changes: &[&Change], family: Family) -> Option<Cause> {
        let first = changes.first()?;
        // The time of both families is the time of the answer as long as kube-proxy is healthy.
        let health = self.node.health().ok();
        let own = health.and_then(|health| health.status.get(&family.to_string()));
        let synced = own.and_then(|own| own.last_updated.as_deref()?.parse().ok());
        let (reason, known_fix) = self.known_cause(first).unwrap_or_default();
        // The doctor's reason explains all differences, and when kube-proxy last wrote.
        let is_explained = reason.is_some();
        Some(Cause::Rules {
            difference: reason.unwrap_or_else(|| mismatch::in_words(first)),
            object: (first.object.to_string(), first.kind()),
            more: if is_explained { 0 } else { changes.len() - 1 },
            common: first.service.is_none(),
            synced: synced.filter(|_| !is_explained),
            proxy: self
                .idle(family)
                .or_else(|| self.unopened(first, family))
                .or_else(|| self.misnamed_for(first)),
            fix: setting_fix(first)
                .or_else(|| self.refused_address(first))
                .or_else(|| self.portal_fix(first))
                .or(known_fix)
                .or_else(|| {
                    let is_known = self.compared().contains(first) && is_repairable(self.node);
                    (!is_known).then(|| rewriting_fix(self.node))
                })
                .map(Box::new),
        })
    }

    /// Returns why kube-proxy does not write rules of `family`, if the doctor found that.
    pub(super) fn idle(&self, family: Family) -> Option<Idle> {
        let (check, reason, fix) = idle_proxy(&self.outcomes, family)?;
        // It writes its outdated Services again and again, or rules of another mode.
        let takes_back = [proxy_log::Kind::Watch, proxy_log::Kind::Fallback];
        let is_vain = self
            .node
            .proxy_log()
            .is_ok_and(|log| log.has(&takes_back) || log.refuses_all())
            || check.id == "KP17";
        // Modules that the kernel lacks, kpx lacks, too.
        let lacks_modules = self
            .outcomes
            .iter()
            .any(|(check, outcome)| check.id == "KM10" && matches!(outcome, CheckOutcome::Fail(_)));
        let is_of_kernel = check.id.starts_with("KM");
        Some(Idle {
            check: check.id,
            reason,
            lasts: !lacks_modules && !is_of_kernel && !is_vain,
            fix,
        })
    }

    /// Returns the doctor's finding that kube-proxy cannot open the port of the rule in `change`: it then writes none for it.
    fn unopened(&self, change: &Change, family: Family) -> Option<Idle> {
        let (name, want) = (change.service.as_deref()?, change.want()?);
        let is_it = |finding: &&Finding| {
            let number = match &finding.about {
                Subject::NodePort { number, .. } => Some(*number),
                Subject::ServiceAddress { port, .. } => *port,
                _ => None,
            };
            let is_of = finding
                .ties
                .family
                .is_none_or(|own_family| own_family == family);
            let is_port = number.is_some_and(|number| want.contains(&number.to_string()));
            is_of
                && is_port
                && finding
                    .services
                    .iter()
                    .any(|service| service.to_string() == *name)
        };
        let mut logs = self.outcomes.iter().filter(|(check, _)| check.id == "KP21");
        let (check, finding) = logs.find_map(|(check, outcome)| match outcome {
            CheckOutcome::Fail(findings) => Some((check, findings.iter().find(is_it)?)),
            _ => None,
        })?;
        Some(Idle {
            check: check.id,
            reason: finding.message.clone(),
            // Its next sync removes them again.
            lasts: false,
            fix: finding.fix.clone(),
        })
    }

    /// Returns the doctor's cause of `change`, in words if they are better than the difference itself, and its fix: kube-proxy is
    /// about to write the change, has a bug that loses it, or another tool has broken the rule.
    fn known_cause(&self, change: &Change) -> Option<(Option<String>, Option<Fix>)> {
        if let Object::IptablesRule {
            table, chain, rule, ..
        } = &change.object
            && let Delta::Extra(rule) | Delta::Differs { have: rule, .. } = rule
            && let Some(family) = change.family.filter(|_| table == "filter")
            && let Some((reason, fix)) = lost_conditions(family, chain, rule)
        {
            return Some((Some(reason), Some(fix)));
        }
        // A kube-proxy that writes nothing explains that there are none.
        if let Some(family) = change.family
            && self.idle(family).is_none()
            && let Some(flushed) = flushed(&self.outcomes, family)
        {
            return Some((Some(flushed.message.clone()), flushed.fix.clone()));
        }
        let name = change.service.as_ref()?;
        let is_it = |finding: &&Finding| {
            finding
                .services
                .iter()
                .any(|service| service.to_string() == **name)
        };
        drifted(&self.outcomes).into_iter().find_map(|check| {
            let (_, outcome) = self.outcomes.iter().find(|(of, _)| of.id == check.id)?;
            let CheckOutcome::Fail(findings) = outcome else {
                return None;
            };
            findings.iter().filter(is_it).find_map(|finding| {
                if finding.ties.queued.is_some() {
                    return Some((None, finding.fix.clone()));
                }
                if finding.ties.unheard {
                    return Some((Some(finding.message.clone()), finding.fix.clone()));
                }
                let (cause, of) = root(&self.outcomes, check, finding)?;
                match cause.id {
                    "KB01" => Some((None, of.fix.clone())),
                    // The program that removed it would remove it again.
                    "DV06" => Some((Some(of.message.clone()), of.fix.clone())),
                    _ => None,
                }
            })
        })
    }

    /// Returns how to let the kernel take the address of kube-ipvs0 that is missing: it refuses those of IPv6 where that is off.
    fn refused_address(&self, change: &Change) -> Option<Fix> {
        let Object::Address(Delta::Missing(addr)) = &change.object else {
            return None;
        };
        (addr.is_ipv6() && ipv6_refusal(self.node).is_some()).then(|| ipv6_fix(DUMMY))
    }

    /// Returns the fix of the doctor's finding on a portal: kpx cannot compute its rule.
    fn portal_fix(&self, change: &Change) -> Option<Fix> {
        let mut findings = self
            .outcomes
            .iter()
            .filter(|(check, _)| check.id == "IR17")
            .filter_map(|(_, outcome)| match outcome {
                CheckOutcome::Fail(findings) => Some(findings),
                _ => None,
            });
        let is_it = |finding: &&Finding| {
            change
                .service
                .as_ref()
                .is_none_or(|name| finding.subject == *name)
        };
        findings.find_map(|all| all.iter().find(is_it)?.fix.clone())
    }

    fn foreign(&self, hop: &Hop, cell: &Cell) -> Cause {
        let faults = cell.verdict.faults();
        // `hop` is a jump if several rules behind it end packets: the first of these rules says more.
        let is_jump = matches!(hop.effect, Effect::Jump { .. } | Effect::Goto { .. });
        let mut ways = cell.outcomes.iter().zip(&cell.verdict.ways);
        let hop = ways
            .find_map(|(outcome, way)| match way.fault {
                Some(Fault::Stopped { hop, .. }) => outcome.hops.get(hop),
                _ => None,
            })
            .filter(|_| is_jump)
            .map_or(hop, |ended| &**ended);
        let family = Family::of(cell.flow.destination);
        let rule_of = Rule::of(hop, family);
        let software = match rule_of.maker(self.node, why::maker(hop)) {
            Maker::Other(who) => Some(who.to_owned()),
            Maker::Kubelet => Some("the kubelet".to_owned()),
            _ => None,
        };
        let rule = mismatch::short(&hop.rule);
        let is_on = |outcome: &Outcome| outcome.hops.iter().any(|other| **other == *hop);
        let there = cell.arrival.iter().flat_map(|arrival| &arrival.replies);
        let here = cell
            .verdict
            .ways
            .iter()
            .filter_map(|way| way.lost.as_deref());
        let which = faults.iter().find_map(|fault| match fault {
            Fault::Obstacle(what) => match **what {
                Obstacle::Further { which, .. } => Some(which),
                _ => None,
            },
            _ => None,
        });
        let is_first = cell.outcomes.iter().any(is_on);
        let which = match which {
            _ if is_first => None,
            Some(which @ (Which::Sent | Which::Datagram)) => Some(which),
            which => here
                .chain(there)
                .any(is_on)
                .then(|| which.unwrap_or(Which::Reply)),
        };
        let by = By::new(rule_of, why::maker(hop), self.node);
        let mut by = by.of_families([family], self.node);
        // A rule behind another one that ends packets is on no way yet.
        let next = cell.outcomes.first().filter(|_| which.is_none());
        let first = cell.outcomes.iter().find(|outcome| is_on(outcome));
        if let Some(first) = first.or(next) {
            by = match cell.flow.entry {
                Entry::Outside => {
                    by.from_outside(first.destination.into(), cell.flow.proto, self.node)
                }
                Entry::Host => by.from_host(family, self.node),
                Entry::Pod => by,
            };
        }
        Cause::ForeignRule {
            table: hop.table.clone(),
            chain: hop.chain.clone(),
            number: hop.number,
            rule,
            effect: hop.effect.verb(),
            software,
            other_back_end: hop.subsystem == Subsystem::IptablesOther,
            which,
            then: faults.iter().find_map(|fault| follows(hop, fault)),
            by: Box::new(by),
        }
    }
}

/// Iterates over the endpoints of `target` on this node that are in `state`.
fn of_state(target: Target<'_>, state: EndpointState) -> impl Iterator<Item = &Endpoint> {
    let all = target.port.endpoints.iter();
    all.filter(move |endpoint| {
        endpoint.local == Some(true)
            && endpoint.state == Some(state)
            && Family::of(endpoint.addr.ip()) == target.family()
    })
}

/// Returns the pod of `endpoint` as `NAMESPACE/NAME`, or its address.
fn called(endpoint: &Endpoint) -> String {
    let pod = endpoint.pod.as_deref();
    pod.map_or_else(|| endpoint.addr.to_string(), str::to_owned)
}

/// Returns the fix of a sysctl that is not as kube-proxy sets it when it starts.
fn setting_fix(change: &Change) -> Option<Fix> {
    let Object::Sysctl { key, value } = &change.object else {
        return None;
    };
    let text = "Set the sysctl again, and find out what changed it: kube-proxy writes it only when it starts.";
    Some(Fix::on_node(
        text,
        format!("sysctl -w {key}={}", value.want()?),
    ))
}

/// Returns that `service` does not have the family of `target`.
pub(super) fn other_family(service: &Service, target: Target<'_>) -> Option<Cause> {
    let role = match target.kind {
        Kind::Address(role) => Some(role),
        Kind::NodePort => None,
        Kind::Endpoint => return None,
    };
    let has = |family: &Family| service.has_family(*family);
    (!has(&target.family())).then(|| Cause::OtherFamily {
        address: target.at.ip(),
        role,
        families: Family::BOTH.into_iter().filter(has).collect(),
    })
}

/// Returns whether all connections of `cell` that fail are refused because the Service has no endpoints.
fn is_for_want_of_endpoints(cell: &Cell) -> bool {
    let is_it = |outcome: &&Outcome| {
        let reason = why::decisive(outcome).and_then(|hop| why::refusal(outcome, hop));
        matches!(reason, Some(Refusal::NoEndpoints | Refusal::NoRealServer))
    };
    let failing = failing(cell);
    !failing.is_empty() && failing.iter().all(is_it)
}

/// Returns what happens to packets behind `hop`, which lets them pass.
fn follows(hop: &Hop, fault: &Fault) -> Option<String> {
    if matches!(hop.effect, Effect::Drop | Effect::Reject { .. }) {
        return None;
    }
    if let (Effect::Ttl { .. }, Fault::Stopped { reason, .. }) = (&hop.effect, fault) {
        return Some(format!("({reason})"));
    }
    match fault {
        Fault::Stopped { .. } | Fault::Untranslated { again: false, .. } => None,
        Fault::Untranslated {
            address,
            service,
            again: true,
        } => {
            let owner = service.as_ref().map_or_else(
                || "in the Service range".to_owned(),
                |name| format!("an address of Service {name}"),
            );
            Some(format!(
                "to {address}, {owner}: a connection is translated once, so kube-proxy's rules no longer apply"
            ))
        }
        Fault::NoEndpoint { address, .. } => {
            Some(format!("to {address}, which is no endpoint of the Service"))
        }
        other => Some(format!("({other})")),
    }
}

/// Returns the fields of `service` that are Local.
fn local_fields(service: &Service) -> Vec<&'static str> {
    let spec = &service.spec;
    let fields = [
        ("internalTrafficPolicy", &spec.internal_traffic_policy),
        ("externalTrafficPolicy", &spec.external_traffic_policy),
    ];
    let local = fields
        .into_iter()
        .filter(|(_, of)| of.as_deref() == Some("Local"));
    local.map(|(name, _)| name).collect()
}

fn obstacle_cause(what: &Obstacle) -> Cause {
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
fn pod_route(fault: &Fault) -> Option<Cause> {
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

/// Returns `cell` with only the ways that have `fault`.
fn of_fault(cell: &Cell, fault: &Fault) -> Cell {
    let mut of = cell.clone();
    let mut ways = cell.verdict.ways.iter();
    let mut has_fault = || {
        ways.next()
            .is_some_and(|way| way.fault.as_ref() == Some(fault))
    };
    of.outcomes.retain(|_| has_fault());
    of.verdict
        .ways
        .retain(|way| way.fault.as_ref() == Some(fault));
    of
}

/// Returns the cause of connections that no known repair helps: their worst fault.
fn unexplained(cell: &Cell) -> Cause {
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
enum AtProcess {
    /// The process has no endpoint for it.
    Closed,
    /// The process does not listen on the port.
    Unheard,
}

/// Returns how each way of `cell` that fails ends at kube-proxy's process; `None` for one that ends elsewhere.
fn ends_at_process(cell: &Cell) -> Vec<Option<AtProcess>> {
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

/// Returns whether two lists of sets make the same repairs.
fn same(a: &Sets, b: &Sets) -> bool {
    let repairs = |sets: &Sets| -> Vec<Repair> {
        sets.iter()
            .flatten()
            .flat_map(|set| set.repairs.clone())
            .collect()
    };
    a.len() == b.len() && repairs(a) == repairs(b)
}
