//! A check over several sources: the findings of those that were read, and the gaps of the others.
//!
//! A finding stays a finding if another source is missing; the missing source is noted with it. Without a finding, the first
//! missing source makes the check unknown.

use crate::check::{Finding, Proof, Verdict};
use kpx_node::evidence::Gap;

/// The results of the sources of a check so far.
#[derive(Debug, Default)]
pub(crate) struct Collector {
    findings: Vec<Finding>,
    /// Sources that were not read.
    gaps: Vec<Gap>,
    /// Why a source does not apply.
    not_applicable: Option<Gap>,
    /// Whether a source was read.
    any: bool,
}

impl Collector {
    /// Returns the value that was read; otherwise notes the gap.
    pub(crate) fn read<T>(&mut self, read: Result<T, Gap>) -> Option<T> {
        match read {
            Ok(value) => {
                self.any = true;
                Some(value)
            }
            Err(gap) => {
                self.note(gap);
                None
            }
        }
    }

    /// Notes a source that was not read, or does not apply.
    pub(crate) fn note(&mut self, gap: Gap) {
        if matches!(gap, Gap::NotApplicable(_)) {
            self.not_applicable.get_or_insert(gap);
        } else if !self.gaps.contains(&gap) {
            self.gaps.push(gap);
        }
    }

    /// Adds the findings of a source, or notes its gap.
    pub(crate) fn add(&mut self, verdict: Verdict) {
        let findings = self.read(verdict);
        self.findings.extend(findings.into_iter().flatten());
    }

    /// Adds a finding.
    pub(crate) fn push(&mut self, finding: Finding) {
        self.any = true;
        self.findings.push(finding);
    }

    /// Adds findings.
    pub(crate) fn extend(&mut self, findings: impl IntoIterator<Item = Finding>) {
        findings.into_iter().for_each(|finding| self.push(finding));
    }

    /// Returns the findings; the worst one notes the gaps. Without findings, returns the first gap; without gaps, why
    /// nothing applies.
    pub(crate) fn verdict(self) -> Verdict {
        let Self {
            mut findings,
            gaps,
            not_applicable,
            any,
        } = self;
        if findings.is_empty() {
            let unread = gaps.into_iter().next();
            let why = unread.or_else(|| not_applicable.filter(|_| !any));
            return why.map_or_else(|| Ok(Vec::new()), Err);
        }
        let worst = findings.iter().map(|finding| finding.severity).max();
        if let Some(first) = findings
            .iter_mut()
            .find(|finding| Some(finding.severity) == worst)
        {
            let unread = gaps.iter();
            let unread = unread.map(|gap| Proof::Note(format!("not checked: {gap}")));
            first.evidence.extend(unread);
        }
        Ok(findings)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::{Severity, Subject};
    use kpx_node::evidence::Item;

    fn finding(severity: Severity) -> Finding {
        Finding::new(severity, Subject::Proxy, "is wrong")
    }

    #[test]
    fn a_finding_stays_one_and_names_what_was_not_read() {
        let mut all = Collector::default();
        assert_eq!(all.read(Err::<(), _>(Gap::NotCollected(Item::Nft))), None);
        all.push(finding(Severity::Info));
        all.add(Ok(vec![finding(Severity::Error)]));
        all.add(Err(Gap::NotCollected(Item::Nft)));
        let found = all.verdict().unwrap();
        let note = Proof::Note("not checked: node/nft.json was not collected".to_owned());
        let evidence: Vec<_> = found
            .iter()
            .map(|finding| finding.evidence.as_slice())
            .collect();
        assert_eq!(evidence, [&[][..], &[note]]);
    }

    #[test]
    fn without_a_finding_the_first_gap_is_the_answer() {
        let mut all = Collector::default();
        assert_eq!(all.read(Ok(1)), Some(1));
        all.note(Gap::NotApplicable("not here".to_owned()));
        all.note(Gap::NotCollected(Item::Nft));
        all.note(Gap::NotCollected(Item::Ipvs));
        assert_eq!(all.verdict(), Err(Gap::NotCollected(Item::Nft)));
    }

    #[test]
    fn a_source_that_does_not_apply_decides_only_alone() {
        let gap = Gap::NotApplicable("not here".to_owned());
        let mut all = Collector::default();
        all.note(gap.clone());
        assert_eq!(all.verdict(), Err(gap.clone()));
        let mut all = Collector::default();
        all.note(gap);
        all.add(Ok(Vec::new()));
        assert_eq!(all.verdict(), Ok(Vec::new()));
    }
}
