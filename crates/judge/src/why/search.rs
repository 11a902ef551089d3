//! The cause by repair: the smallest set of repairs with which the connection works.
//!
//! An object whose repair changes nothing is no cause, however broken it looks.

use super::Path;
use super::candidates::{Candidate, What, failing, is_of_range};
use super::look::Look;
use crate::repair::{self, Edit, Repair};
use crate::trace::Effect;
use crate::verdict::{Cell, Fate, Fault, Missing, Obstacle, Question, Target};
use kpx_node::cluster::Service;
use kpx_node::net::Family;
use kpx_node::owner::{Owners, Port};

/// The most repairs of one candidate that are tried one by one, to omit needless ones.
const MOST_SHRUNK: usize = 512;

/// How many times candidates are searched again after the first ones are repaired.
const MOST_ROUNDS: usize = 3;

/// Candidates of which pairs are tried.
const MOST_IN_PAIRS: usize = 10;

/// The sets of candidates with which the connections work; each set alone suffices.
pub(super) type Sets = Vec<Vec<Candidate>>;

impl Look<'_> {
    /// Returns the smallest sets of repairs with which the connections of `cell` no longer fail; `known` are sets that repaired
    /// other connections of the Service.
    pub(super) fn search(
        &self,
        service: &Service,
        port: &Port,
        cell: &Cell,
        known: &[Sets],
    ) -> Sets {
        for sets in known {
            if !sets.is_empty() && sets.iter().all(|set| self.repaired(port, cell, set)) {
                let works = |set: &[Candidate]| self.repaired(port, cell, set);
                let sets = sets.iter().map(|set| fewest(set.clone(), works));
                return sets.map(|set| self.smallest(port, cell, set)).collect();
            }
        }
        let all = self.candidates(service, port, cell);
        let found = self.among(port, cell, &all);
        let family = Family::of(cell.flow.destination);
        if !found.is_empty() {
            return found;
        }
        let mut more = Self::drift(port, &self.guessed(family), family);
        if more.is_empty() {
            return found;
        }
        more.extend(all);
        self.among(port, cell, &more)
    }

    /// Returns the smallest sets of `all` with which the connections of `cell` no longer fail.
    fn among(&self, port: &Port, cell: &Cell, all: &[Candidate]) -> Sets {
        let works = |set: &[Candidate]| self.repaired(port, cell, set);
        let tried = all.iter().filter_map(|candidate| {
            let set = vec![candidate.clone()];
            let repaired = self.judged(port, cell, &repairs_of(&set));
            let helps = self.no_longer_fails(cell, &repaired);
            helps.then_some((set, repaired.verdict.fate == Fate::Works))
        });
        let mut tried: Vec<_> = tried.collect();
        // What leaves other connections unknown is less than the cause.
        if tried.iter().any(|(_, works)| *works) {
            tried.retain(|(_, works)| *works);
        }
        let singles = tried
            .into_iter()
            .map(|(set, _)| self.smallest(port, cell, set));
        let singles: Sets = singles.collect();
        // After an edit, kube-proxy would also write the rules that differ now; with another name, it would write other rules.
        let is_rightly_named = self.misnamed().is_none();
        if is_rightly_named && singles.iter().all(|set| set.iter().all(is_edit)) {
            let rules = all.iter().filter(|candidate| candidate.what == What::Rules);
            let rules: Vec<Candidate> = rules.cloned().collect();
            if !singles.is_empty() && !rules.is_empty() && works(&rules) {
                return vec![self.smallest(port, cell, fewest(rules, works))];
            }
        }
        if !singles.is_empty() {
            let sets = self.without_other_marks(singles);
            return distinct(sets, is_rightly_named, cell.verdict.fate);
        }
        if all.len() <= MOST_IN_PAIRS {
            let pairs = (0..all.len()).flat_map(|a| (a + 1..all.len()).map(move |b| (a, b)));
            let pairs = pairs.map(|(a, b)| vec![all[a].clone(), all[b].clone()]);
            let pairs: Sets = pairs.filter(|set| works(set)).collect();
            if !pairs.is_empty() {
                let first = pairs.into_iter().take(1);
                return first.map(|set| self.smallest(port, cell, set)).collect();
            }
        }
        let alone = all.iter().map(|candidate| vec![candidate.clone()]);
        let mut starts = alone.chain(std::iter::once(all.to_vec()));
        if let Some(set) = starts.find_map(|some| self.deeper(port, cell, some)) {
            return vec![self.smallest(port, cell, fewest(set, works))];
        }
        // A rule that leads to the chains of other software is a cause if no rule in them is.
        let is_jump = |effect: &Effect| matches!(effect, Effect::Jump { .. });
        let jumps = self.foreign_rules(cell, &failing(cell), is_jump);
        let helpful = jumps
            .into_iter()
            .map(|jump| vec![jump])
            .find(|set| works(set));
        helpful.into_iter().collect()
    }

    /// Returns `sets` without rules that set other marks, if a rule among them clears kube-proxy's mark: the others only have it matched.
    fn without_other_marks(&self, mut sets: Sets) -> Sets {
        let mode = self.node.configured_mode().ok();
        let desired = mode.and_then(|mode| self.node.desired(mode).ok());
        let bit = desired.map_or(0, |desired| desired.mark);
        let marks = |set: &Vec<Candidate>, is_it: &dyn Fn(u32, u32) -> bool| {
            set.iter().all(|candidate| match &candidate.what {
                What::Foreign(hop) => match hop.effect {
                    Effect::Mark { from, to } => is_it(from, to),
                    _ => false,
                },
                _ => false,
            })
        };
        let clears = |from: u32, to: u32| from & bit != 0 && to & bit == 0;
        if sets.iter().any(|set| marks(set, &clears)) {
            sets.retain(|set| marks(set, &clears) || !marks(set, &|_, _| true));
        }
        sets
    }

    /// Returns `all` with the candidates that a packet meets after these repairs, if the connections of `cell` work
    /// with all of them.
    fn deeper(&self, port: &Port, cell: &Cell, mut all: Vec<Candidate>) -> Option<Vec<Candidate>> {
        for _ in 0..MOST_ROUNDS {
            let repaired = self.judged(port, cell, &repairs_of(&all));
            if self.no_longer_fails(cell, &repaired) {
                return Some(all);
            }
            let mut more = self.on_the_way(&repaired, Vec::new());
            more.retain(|candidate| all.iter().all(|known| known.repairs != candidate.repairs));
            if more.is_empty() {
                return None;
            }
            // With what needs no repair, the connections may fail for the repair.
            let with_one = |one: &Candidate| [&all[..], std::slice::from_ref(one)].concat();
            let mut single = more.iter().map(with_one);
            if let Some(set) = single.find(|set| self.repaired(port, cell, set)) {
                return Some(set);
            }
            all.extend(more);
        }
        None
    }

    /// Returns `set` with only the repairs of each candidate that are needed.
    fn smallest(&self, port: &Port, cell: &Cell, set: Vec<Candidate>) -> Vec<Candidate> {
        let all = set.iter().enumerate();
        let all =
            all.flat_map(|(at, of)| of.repairs.iter().map(move |repair| (at, repair.clone())));
        let all: Vec<(usize, Repair)> = all.collect();
        if all.len() > MOST_SHRUNK || all.len() == set.len() {
            return set;
        }
        let works = |some: &[(usize, Repair)]| {
            let repairs: Vec<&Repair> = some.iter().map(|(_, repair)| repair).collect();
            self.works(port, cell, &repairs)
        };
        let kept = fewest(all, works);
        let with = |(at, of): (usize, Candidate)| {
            let ours = kept.iter().filter(|(of, _)| *of == at);
            let repairs: Vec<Repair> = ours.map(|(_, repair)| repair.clone()).collect();
            (!repairs.is_empty()).then_some(Candidate { repairs, ..of })
        };
        set.into_iter().enumerate().filter_map(with).collect()
    }

    /// Returns whether the connections of `path` no longer fail with these repairs.
    pub fn works_with(&self, path: &Path, repairs: &[&Repair]) -> bool {
        let is_it =
            |port: &&Port| port.name.to_string() == path.service && port.proto == path.protocol;
        let owners = Owners::new(self.node);
        let port = owners.ports().iter().find(is_it);
        port.is_some_and(|port| self.works(port, &path.cell, repairs))
    }

    fn repaired(&self, port: &Port, cell: &Cell, set: &[Candidate]) -> bool {
        self.works(port, cell, &repairs_of(set))
    }

    /// Returns whether the connections of `cell` no longer fail with these repairs.
    fn works(&self, port: &Port, cell: &Cell, repairs: &[&Repair]) -> bool {
        self.no_longer_fails(cell, &self.judged(port, cell, repairs))
    }

    /// Returns whether the connections of `repaired` work, except for conditions that were unknown for `cell` before, or that were not
    /// read on this node.
    fn no_longer_fails(&self, cell: &Cell, repaired: &Cell) -> bool {
        let family = Family::of(repaired.flow.destination);
        let verdict = &repaired.verdict;
        let is_known_gap = |fault: &&Fault| match fault {
            Fault::Unknown(missing @ Missing::Gap { .. }) => self.judge.lacks(missing, family),
            Fault::Unknown(
                Missing::Undeclared(_)
                | Missing::Unmodelled(_)
                | Missing::Thinned { .. }
                | Missing::External { .. },
            ) => true,
            _ => false,
        };
        // A repair does not make unknown data known.
        let fails = cell.verdict.fate != Fate::Unknown;
        let before = cell.verdict.faults();
        let mut faults = verdict.faults().into_iter();
        verdict.fate == Fate::Works
            || verdict.fate == Fate::Unknown
                && faults.all(|fault| is_known_gap(&fault) || fails && before.contains(&fault))
    }

    /// Returns the connections of `cell` with these repairs.
    pub(super) fn judged(&self, port: &Port, cell: &Cell, repairs: &[&Repair]) -> Cell {
        let family = Family::of(cell.flow.destination);
        let edits = |edit| {
            repairs
                .iter()
                .any(|repair| matches!(repair, Repair::Edit(edited) if edited.what == edit))
        };
        let port = if edits(Edit::Endpoint) {
            self.with_endpoint(port, family)
        } else {
            port.clone()
        };
        let known = (self.node, self.judge.others.as_ref());
        repair::with(known, repairs, family, |judge, world| {
            let target = Target {
                port: &port,
                kind: cell.kind,
                at: cell.to(),
            };
            let question = Question {
                flow: &cell.flow,
                port: target.asked(),
            };
            if let Some(arrival) = &cell.arrival {
                let (outcomes, verdict, arrival) = judge.arrived_in(world, question, arrival);
                return Cell {
                    outcomes,
                    verdict,
                    arrival: Some(arrival),
                    ..cell.clone()
                };
            }
            let (outcomes, verdict) = judge.judge_in(world, question);
            Cell {
                outcomes,
                verdict,
                ..cell.clone()
            }
        })
    }
}

/// Returns a minimal subset of `all` that suffices.
fn fewest<T: Clone>(all: Vec<T>, works: impl Fn(&[T]) -> bool) -> Vec<T> {
    let mut set = all;
    let mut step = set.len().div_ceil(2);
    loop {
        let before = set.len();
        let mut at = 0;
        while at < set.len() && set.len() > 1 {
            let mut fewer = set.clone();
            fewer.drain(at..(at + step).min(set.len()));
            if !fewer.is_empty() && works(&fewer) {
                set = fewer;
            } else {
                at += step;
            }
        }
        // An omission may make an earlier repair needless.
        match step {
            0 | 1 if set.len() == before => return set,
            0 | 1 => {}
            _ => step /= 2,
        }
    }
}

/// Returns whether `candidate` is an edit of the Service, its endpoints or kube-proxy's configuration.
const fn is_edit(candidate: &Candidate) -> bool {
    matches!(candidate.what, What::Edit(_))
}

/// Returns whether `candidate` is an obstacle that is there because of kube-proxy's configuration.
const fn is_consequence(candidate: &Candidate) -> bool {
    match &candidate.what {
        What::Obstacle(what) => is_of_range(what),
        _ => false,
    }
}

/// Returns whether `candidate` is a rule of other software that changes nothing: it accepts packets, or returns them.
const fn is_pass(candidate: &Candidate) -> bool {
    match &candidate.what {
        What::Foreign(hop) => matches!(hop.effect, Effect::Accept | Effect::Return),
        _ => false,
    }
}

/// Returns `sets` without those that repair the same things, and without edits where kube-proxy's rules alone suffice and `are_its`:
/// with the right rules, the connections work with the current settings.
fn distinct(mut sets: Sets, are_its: bool, fate: Fate) -> Sets {
    let mut distinct: Sets = Vec::new();
    // If a rule that only accepts packets is removed, a later rule may happen to help.
    let is_bystander = |set: &Vec<Candidate>| set.iter().all(is_pass);
    if !sets.iter().all(is_bystander) {
        sets.retain(|set| !is_bystander(set));
    }
    // A filter that the right range of pods makes harmless is its consequence.
    let is_of_pods = |candidate: &Candidate| candidate.what == What::Edit(Edit::ClusterCidr);
    if sets.iter().any(|set| set.iter().all(is_of_pods)) {
        sets.retain(|set| !set.iter().all(is_consequence));
    }
    let is_rules = |set: &[Candidate]| set.iter().all(|set| set.what == What::Rules);
    if are_its && sets.iter().any(|set| is_rules(set)) {
        sets.retain(|set| !set.iter().all(is_edit));
    }
    // Where packets certainly go astray, a way that may lead to an endpoint says less than the rule or route that leads them there.
    let may_lead =
        |set: &[Candidate]| matches!(set, [one] if matches!(one.what, What::RouteThere(_)));
    if fate != Fate::Unknown {
        sets.sort_by_key(|set| may_lead(set));
    }
    // So does the lack of a better route.
    let leads = |set: &[Candidate]| set.iter().all(|one| is_lead(&one.what));
    let lacks = |set: &[Candidate]| set.iter().all(|one| matches!(one.what, What::PodRoute(_)));
    if sets.iter().any(|set| leads(set)) {
        sets.retain(|set| !lacks(set));
    }
    for set in sets {
        // Of several differences that each explain it, and of several descriptions of one repair, the first one is reported.
        let is_known = |other: &Vec<Candidate>| {
            is_rules(&set) && is_rules(other) || repairs_of(&set) == repairs_of(other)
        };
        if !distinct.iter().any(is_known) {
            distinct.push(set);
        }
    }
    distinct
}

/// Returns whether `what` is a rule or route that leads packets astray.
fn is_lead(what: &What) -> bool {
    match what {
        What::Route(..) => true,
        What::Obstacle(of) => {
            matches!(**of, Obstacle::Detour { .. } | Obstacle::HiddenRoute { .. })
        }
        _ => false,
    }
}

fn repairs_of(set: &[Candidate]) -> Vec<&Repair> {
    set.iter()
        .flat_map(|candidate| &candidate.repairs)
        .collect()
}
