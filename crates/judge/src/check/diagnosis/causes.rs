//! Causes of findings: each finding alone follows from another one, or does not.

use std::collections::{BTreeMap, BTreeSet};

use super::{Check, Consequence, Diagnosed, Finding, Outcome};
use crate::check::{Fix, Weight};

/// The findings of failed checks, by id.
pub(super) struct Found(BTreeMap<&'static str, (&'static Check, Vec<Finding>)>);

/// A finding: its check, and its position among the findings of that.
type Place = (&'static str, usize);

/// The last cause of each finding that has one, and the number of findings of each check.
pub(super) struct Causes {
    of: BTreeMap<Place, Place>,
    counts: BTreeMap<&'static str, usize>,
}

/// Returns the cause of `finding`, one of `check`: its check, and its position among the findings of that.
fn cause<'o>(
    check: &Check,
    finding: &Finding,
    findings: impl Fn(&str) -> Option<(&'static Check, &'o [Finding])>,
) -> Option<(&'static Check, usize)> {
    check.caused_by.iter().find_map(|because| {
        because.checks().iter().find_map(|id| {
            let (cause, causes) = findings(id)?;
            Some((cause, because.explain(causes, finding)?))
        })
    })
}

/// Returns the last cause of `finding`, one of `check`, among `outcomes`.
pub fn root<'o>(
    outcomes: &'o [(&'static Check, Outcome)],
    check: &'static Check,
    finding: &Finding,
) -> Option<(&'static Check, &'o Finding)> {
    let of = |id: &str| {
        outcomes.iter().find_map(|(check, outcome)| match outcome {
            Outcome::Fail(findings) if check.id == id => Some((*check, &**findings)),
            _ => None,
        })
    };
    let mut passed = BTreeSet::new();
    let (mut last, mut at) = cause(check, finding, of)?;
    loop {
        let (_, findings) = of(last.id)?;
        if !passed.insert((last.id, at)) {
            return None;
        }
        match cause(last, &findings[at], of) {
            Some(next) => (last, at) = next,
            None => return Some((last, &findings[at])),
        }
    }
}

impl Found {
    pub(super) fn new(outcomes: Vec<(&'static Check, Outcome)>) -> Self {
        let failed = outcomes.into_iter().filter_map(|(check, outcome)| {
            let Outcome::Fail(findings) = outcome else {
                return None;
            };
            Some((check.id, (check, findings)))
        });
        Self(failed.collect())
    }

    /// Returns the findings of the check `id`.
    pub(super) fn of(&self, id: &str) -> &[Finding] {
        self.0.get(id).map_or(&[], |(_, findings)| findings)
    }

    /// Keeps the findings for which `is_kept` holds.
    pub(super) fn retain(&mut self, mut is_kept: impl FnMut(&'static Check, &Finding) -> bool) {
        for (check, findings) in self.0.values_mut() {
            findings.retain(|finding| is_kept(check, finding));
        }
        self.0.retain(|_, (_, findings)| !findings.is_empty());
    }

    /// Finds the last cause of each finding.
    pub(super) fn causes(&self) -> Causes {
        let places = self.0.iter().flat_map(|(id, (_, findings))| {
            let numbers = 0..findings.len();
            numbers.map(|number| (*id, number))
        });
        Causes {
            of: places
                .filter_map(|place| Some((place, self.last_cause(place)?)))
                .collect(),
            counts: self.0.iter().map(|(id, of)| (*id, of.1.len())).collect(),
        }
    }

    /// Follows the causes of the finding at `place` to the last one.
    fn last_cause(&self, place: Place) -> Option<Place> {
        let mut passed = BTreeSet::from([place]);
        let mut last = self.cause(place)?;
        while passed.insert(last)
            && let Some(next) = self.cause(last)
        {
            last = next;
        }
        (last != place).then_some(last)
    }

    fn cause(&self, (id, number): Place) -> Option<Place> {
        let (check, findings) = self.0.get(id)?;
        let (cause, number) = cause(check, &findings[number], |id| {
            self.0
                .get(id)
                .map(|(check, findings)| (*check, &**findings))
        })?;
        Some((cause.id, number))
    }

    /// Returns the findings that have no cause, each with its consequences, by severity.
    pub(super) fn diagnosed(self, causes: &Causes) -> Vec<Diagnosed> {
        let mut below: BTreeMap<Place, Vec<Consequence>> = BTreeMap::new();
        let mut last = Vec::new();
        for (id, (check, findings)) in self.0 {
            for (number, finding) in findings.into_iter().enumerate() {
                match causes.of.get(&(id, number)) {
                    Some(cause) => {
                        let consequences = below.entry(*cause).or_default();
                        consequences.push(Consequence { check, finding });
                    }
                    None => last.push(((id, number), check, finding)),
                }
            }
        }
        let mut all: Vec<Diagnosed> = last
            .into_iter()
            .map(|(place, check, finding)| {
                let consequences = below.remove(&place).unwrap_or_default();
                Diagnosed::new(check, finding, consequences)
            })
            .collect();
        all.sort_by(|a, b| {
            let key = |diagnosed: &Diagnosed| {
                let is_later = diagnosed.finding.ties.weight != Weight::First;
                (
                    std::cmp::Reverse(diagnosed.severity),
                    is_later,
                    diagnosed.check.id,
                )
            };
            key(a)
                .cmp(&key(b))
                .then_with(|| a.finding.subject.cmp(&b.finding.subject))
        });
        all
    }
}

impl Diagnosed {
    fn new(
        check: &'static Check,
        mut finding: Finding,
        mut consequences: Vec<Consequence>,
    ) -> Self {
        consequences.sort_by(|a, b| {
            let key = |consequence: &Consequence| (consequence.check.id, consequence.check.name);
            let text = |finding: &Finding| (finding.subject.clone(), finding.message.clone());
            key(a)
                .cmp(&key(b))
                .then_with(|| text(&a.finding).cmp(&text(&b.finding)))
        });
        let worst = consequences
            .iter()
            .map(|consequence| consequence.finding.severity)
            .max();
        let severity = worst.map_or(finding.severity, |worst| worst.max(finding.severity));
        // A finding that alone is no fault has no command until Services fail because of it.
        if severity > finding.severity {
            let has_command = |fix: &&Fix| fix.advice.is_some();
            let same = consequences.iter().map(|consequence| &consequence.finding);
            let same = same.filter(|consequence| consequence.about == finding.about);
            let fix = same
                .filter_map(|consequence| consequence.fix.as_ref())
                .find(has_command);
            if let Some(fix) =
                fix.filter(|_| !finding.fix.as_ref().is_some_and(|fix| has_command(&fix)))
            {
                finding.fix = Some(fix.clone());
            }
        }
        Self {
            check,
            finding,
            severity,
            consequences,
        }
    }
}

impl Causes {
    /// Returns the ids of the checks that explain all findings of `check`; `Some(None)` if one of them has no cause, and
    /// `None` if it has no findings.
    #[expect(
        clippy::option_option,
        reason = "no findings, or no cause of one of them"
    )]
    pub(super) fn of(&self, check: &Check) -> Option<Option<Vec<&'static str>>> {
        let count = *self.counts.get(check.id)?;
        let causes = (0..count).map(|number| self.of.get(&(check.id, number)));
        let ids: Option<BTreeSet<&'static str>> =
            causes.map(|cause| cause.map(|(id, _)| *id)).collect();
        Some(ids.map(|ids| ids.into_iter().collect()))
    }
}
