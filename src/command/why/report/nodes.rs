//! Why a Service does not work, on several nodes.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::sync::Arc;

use serde::Serialize;

use super::WhyReport;
use crate::render::Page;
use crate::report::fate::headline;
use crate::report::nodes::names::Nodes;
use crate::report::nodes::{Together, cell};
use kpx_judge::check::Fix;
use kpx_judge::verdict::Fate;

/// The answers for one target, the worst first.
#[derive(Debug, Default, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct WhyOfNodes {
    /// The answers: the worst verdict first, then by the number of nodes, fewest first.
    pub answers: Vec<Answered>,
    #[serde(skip)]
    found: BTreeMap<(Reverse<Fate>, String), (Option<Fix>, Nodes)>,
}

/// An answer, and the nodes that give it.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct Answered {
    /// The nodes.
    pub nodes: Nodes,
    /// The fate of the connections.
    pub fate: Fate,
    /// The answer in one sentence, without a full stop.
    pub sentence: String,
    /// The fix of the first cause.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fix: Option<Fix>,
}

impl Together for WhyOfNodes {
    type Of = WhyReport;
    type Part = (Fate, String, Option<Fix>);

    fn part(report: WhyReport) -> Self::Part {
        let answer = report.answer;
        // The sentence is that of several nodes.
        let sentence = match &answer.node {
            Some(node) => {
                let sentence = answer.sentence.replacen(&format!(" on {node}"), "", 1);
                sentence.replace(&format!("as far as node {node}"), "as far as that node")
            }
            None => answer.sentence,
        };
        (answer.fate, sentence, answer.fix)
    }

    fn add(&mut self, node: &Arc<str>, (fate, sentence, fix): Self::Part) {
        let found = self.found.entry((Reverse(fate), sentence));
        let (first, nodes) = found.or_insert_with(|| (fix.clone(), Nodes::default()));
        if let (Some(first), Some(fix)) = (first, fix)
            && first.command() != fix.command()
        {
            // It is of one node alone.
            first.advice = None;
        }
        nodes.add(node);
    }

    fn settle(&mut self) {
        let found = std::mem::take(&mut self.found).into_iter();
        let answers = found.map(|((Reverse(fate), sentence), (mut fix, nodes))| {
            if let Some(fix) = fix.as_mut().filter(|_| nodes.len() > 1) {
                fix.of_several();
            }
            Answered {
                nodes,
                fate,
                sentence,
                fix,
            }
        });
        self.answers = answers.collect();
        self.answers
            .sort_by_key(|answer| (Reverse(answer.fate), answer.nodes.len()));
    }

    fn states(&self) -> Vec<(usize, &'static str)> {
        let count = |fate: Fate| {
            let answers = self.answers.iter().filter(|answer| answer.fate == fate);
            answers.map(|answer| answer.nodes.len()).sum()
        };
        let mut states = Fate::ALL;
        states.reverse();
        let counted = states.map(|fate| (count(fate), fate.name()));
        counted.into()
    }

    fn page(&self, read: usize, page: &mut Page) {
        for answer in &self.answers {
            page.line("");
            let nodes = cell(&answer.nodes, read, page);
            let fate = headline(page, answer.fate);
            page.line(&format!("{fate} on {nodes}"));
            page.para("  ", &answer.sentence);
            match answer.fix.as_ref().map(|fix| (fix.line(), fix)) {
                Some((Some(command), fix)) => {
                    page.line(&format!("  {}: {command}", fix.label()));
                }
                Some((None, fix)) => page.para("  fix: ", &fix.text()),
                None => {}
            }
        }
    }
}
