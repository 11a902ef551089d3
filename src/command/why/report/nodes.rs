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
use crate::view::matrix::End;
use kpx_judge::check::Fix;
use kpx_judge::verdict::Fate;
use kpx_judge::why::{Broken, Degree};

/// The answers for one target, the worst first.
#[derive(Debug, Default, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct WhyOfNodes {
    /// The answers: the worst verdict first, then by the number of nodes, fewest first.
    pub answers: Vec<Answered>,
    /// By the fate and the sentences: the fix of each sentence, and the nodes.
    #[serde(skip)]
    found: BTreeMap<Told, (Vec<Option<Fix>>, Nodes)>,
}

/// The fate of the connections, whether that is by design, and the sentences of an answer.
type Told = (Reverse<Fate>, bool, Vec<String>);

/// An answer, and the nodes that give it.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct Answered {
    /// The nodes.
    pub nodes: Nodes,
    /// The fate of the connections.
    pub fate: Fate,
    /// Whether the Service's own settings keep out the clients whose connections fail.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub by_design: bool,
    /// The answer in one sentence, without a full stop.
    pub sentence: String,
    /// The fix of the first cause.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fix: Option<Fix>,
    /// The other causes.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub also: Vec<Also>,
}

/// A cause after the first one.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct Also {
    /// The cause in one sentence, without a full stop.
    pub sentence: String,
    /// Its fix.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fix: Option<Fix>,
}

impl Answered {
    const fn end(&self) -> End {
        if self.by_design {
            End::ByDesign
        } else {
            End::Fate(self.fate)
        }
    }
}

impl Together for WhyOfNodes {
    type Of = WhyReport;
    type Part = (Fate, bool, Vec<(String, Option<Fix>)>);

    fn part(report: WhyReport) -> Self::Part {
        let answer = report.answer;
        // The sentences are those of several nodes.
        let of_several = |sentence: &str| match &answer.node {
            Some(node) => {
                let sentence = sentence.replacen(&format!(" on {node}"), "", 1);
                sentence.replace(&format!("as far as node {node}"), "as far as that node")
            }
            None => sentence.to_owned(),
        };
        let is_cause = |cause: &&Broken| cause.degree == Degree::Breaks && !cause.by_design;
        let further = answer.further().iter().filter(is_cause);
        let also = further.map(|cause| (of_several(&cause.sentence), cause.fix.clone()));
        let first = (of_several(&answer.sentence), answer.fix.clone());
        let causes = [first].into_iter().chain(also).collect();
        (answer.fate, report.by_design, causes)
    }

    fn add(&mut self, node: &Arc<str>, (fate, by_design, causes): Self::Part) {
        let (sentences, fixes): (Vec<String>, Vec<Option<Fix>>) = causes.into_iter().unzip();
        let found = self.found.entry((Reverse(fate), by_design, sentences));
        let (first, nodes) = found.or_insert_with(|| (fixes.clone(), Nodes::default()));
        for (first, fix) in first.iter_mut().zip(fixes) {
            if let (Some(first), Some(fix)) = (first, fix)
                && first.command() != fix.command()
            {
                // It is of one node alone.
                first.advice = None;
            }
        }
        nodes.add(node);
    }

    fn settle(&mut self) {
        let found = std::mem::take(&mut self.found).into_iter();
        let answers = found.filter_map(
            |((Reverse(fate), by_design, sentences), (mut fixes, nodes))| {
                if nodes.len() > 1 {
                    fixes.iter_mut().flatten().for_each(Fix::of_several);
                }
                let mut causes = sentences.into_iter().zip(fixes);
                let (sentence, fix) = causes.next()?;
                Some(Answered {
                    nodes,
                    fate,
                    by_design,
                    sentence,
                    fix,
                    also: causes
                        .map(|(sentence, fix)| Also { sentence, fix })
                        .collect(),
                })
            },
        );
        self.answers = answers.collect();
        self.answers
            .sort_by_key(|answer| (Reverse(answer.fate), answer.nodes.len()));
    }

    fn states(&self) -> Vec<(usize, &'static str)> {
        let count = |end: End| {
            let answers = self.answers.iter().filter(|answer| answer.end() == end);
            answers.map(|answer| answer.nodes.len()).sum()
        };
        let fates = Fate::ALL.into_iter().rev().map(End::Fate);
        let ends = fates.chain([End::ByDesign]);
        ends.map(|end| (count(end), end.name())).collect()
    }

    fn page(&self, read: usize, page: &mut Page) {
        for answer in &self.answers {
            page.line("");
            let nodes = cell(&answer.nodes, read, page);
            let fate = headline(page, answer.end());
            page.line(&format!("{fate} on {nodes}"));
            page.para("  ", &answer.sentence);
            show_fix(answer.fix.as_ref(), page);
            for also in &answer.also {
                page.para("  also: ", &also.sentence);
                show_fix(also.fix.as_ref(), page);
            }
        }
    }
}

fn show_fix(fix: Option<&Fix>, page: &mut Page) {
    let Some(fix) = fix else {
        return;
    };
    let text = fix.text();
    match fix.line() {
        Some(command) => {
            page.line(&format!("  {}: {command}", fix.label()));
            if !text.is_empty() {
                page.para("    ", &text);
            }
        }
        None => page.para("  fix: ", &text),
    }
}
