//! What an answer does not know.

use super::answer::Answer;
use super::look::Look;
use super::paths::Path;
use crate::trace;
use crate::trace::mismatch::listed;
use crate::verdict::{self, Client, Fate, Fault, Missing};

impl Look<'_> {
    /// Adds the data that is missing.
    pub(super) fn unknown(&self, answer: &mut Answer) {
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
        if answer.lacks_pod_network {
            answer.unknown.push(
                "no pod network is set up on this node: routes to pods were not checked".to_owned(),
            );
        }
        for family in &self.families {
            // A certain failure follows from data that was read.
            let unread = self.judge.unread(*family);
            let lacking =
                unread.filter(|unread| !answer.paths.iter().any(|path| names(path, unread)));
            answer.unknown.extend(lacking.map(ToString::to_string));
        }
        if let Err(gap) = self.node.conntrack() {
            answer.unknown.push(format!("tracked connections: {gap}"));
        }
    }
}

/// Returns whether `missing` is why the fate of connections of `path` is unknown.
fn names(path: &Path, missing: &Missing) -> bool {
    let mut faults = path.cell.verdict.faults().into_iter();
    matches!(path.fate, Fate::Unknown | Fate::Partly)
        && faults.any(|fault| matches!(fault, Fault::Unknown(of) if of == missing))
}

/// Returns the condition under which the connections of `path` fail, if it is the order of nat chains, or routes beyond the
/// node.
pub(super) fn open(path: &Path) -> Option<String> {
    if path.fate != Fate::Unknown {
        return None;
    }
    let faults = path.cell.verdict.faults();
    let mut beyond = faults.iter().filter_map(|fault| match fault.astray() {
        Some(Missing::PodRoute { way, there, .. }) => Some((way, &there.node)),
        _ => None,
    });
    if let Some((way, first)) = beyond.next() {
        let mut nodes = vec![first.clone()];
        for (_, node) in beyond.filter(|(other, _)| *other == way) {
            if !nodes.contains(node) {
                nodes.push(node.clone());
            }
        }
        return Some(format!(
            "whether the way by {way} leads to the pods of {}",
            listed(&nodes)
        ));
    }
    let whens = path.cell.outcomes.iter().flat_map(|outcome| &outcome.when);
    let mut orders = whens.filter_map(|when| match when {
        trace::Assumption::Answer {
            question: question @ trace::Question::Order(_),
            ..
        } => Some(question.text()),
        _ => None,
    });
    orders.next().filter(|_| path.failing > 0.0)
}

/// Adds why the end of connections is unknown.
pub(super) fn unknown_ends(answer: &mut Answer) {
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
            let of = (path.client, path.target().to_string());
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
