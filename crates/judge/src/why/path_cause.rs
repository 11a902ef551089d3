//! The causes of connections that fail: from the sets of repairs that make them work.

mod foreign;
mod lacking;
mod rules;
mod unexplained;

use std::net::SocketAddr;

use super::Cause;
use super::blame::Blame;
use super::candidates::{Candidate, What};
use super::look::Look;
use super::paths::Path;
use super::search::Sets;
use super::there::{failing_there, fails_here};
use crate::check::{Finding, Outcome as CheckOutcome, room_fix};
use crate::diff::Change;
use crate::repair::{Edit, Repair};
use crate::trace::{Effect, why};
use crate::verdict::{Cell, Fault, Missing, Target};
use kpx_node::backend::Mode;
use kpx_node::cluster::Service;
use kpx_node::owner::Port;
use kpx_node::owner::chain_owner::Maker;
use unexplained::{obstacle_cause, pod_route, unexplained};

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
            .filter_map(|candidate| {
                let repairs: Vec<&Repair> = candidate.repairs.iter().collect();
                let repaired = self.judged(target.port, cell, &repairs);
                let left = failing(&repaired);
                // Packets that fail in another way instead are not repaired.
                let is_better = repaired.verdict.failing() < cell.verdict.failing()
                    && left.len() < faults.len()
                    && left.iter().all(|of| faults.contains(of));
                is_better.then_some((candidate, left))
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
            What::Tracked => stale_connections(cell, &faults)?,
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
            What::Tracked => stale_connections(&path.cell, &path.cell.verdict.faults()),
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

    /// Returns the first finding of the check `id`, if it failed.
    fn failed(&self, id: &str) -> Option<&Finding> {
        let mut all = self.outcomes.iter().filter(|(check, _)| check.id == id);
        all.find_map(|(_, outcome)| match outcome {
            CheckOutcome::Fail(findings) => findings.first(),
            _ => None,
        })
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

/// Returns that tracked connections take the packets of `cell` past the rules, if one of `faults` says so.
fn stale_connections(cell: &Cell, faults: &[&Fault]) -> Option<Blame> {
    let (count, backends) = faults.iter().find_map(|fault| match fault {
        Fault::Stale { count, backends } => Some((*count, backends.clone())),
        _ => None,
    })?;
    Some(Blame::breaks(Cause::StaleConnections {
        count,
        address: cell.to(),
        protocol: cell.flow.proto.to_string(),
        end: crate::trace::end_tracked(&cell.flow, &backends),
        backends,
    }))
}
