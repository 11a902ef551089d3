//! Drift of a live node that kube-proxy's next sync removes: it is not reported.
//!
//! kube-proxy programs a change of the cluster after a delay, and a node that is read in between has drift. The doctor
//! reads it again a little later, and only drift that persists is a finding.

use std::time::Duration;

use super::run::Outcome;
use crate::check::drift::DRIFT;
use crate::check::{Check, Facts, ServiceRef, Severity, Weight};
use kpx_node::cluster::config::go_duration;
use kpx_node::evidence::Evidence;
use kpx_node::node::runtime::Metrics;

/// The assumed time of a sync if kube-proxy does not report how long its syncs take.
const SYNC: Duration = Duration::from_secs(2);

/// The time in which a change of the cluster reaches kube-proxy.
const ARRIVES: Duration = Duration::from_millis(200);

/// The default of `minSyncPeriod` in modes iptables and nftables.
const LEAST: Duration = Duration::from_secs(1);

/// The longest pause before the second reading.
const LONGEST: Duration = Duration::from_secs(30);

/// Returns those of `outcomes`' checks that found drift.
pub fn drifted(outcomes: &[(&'static Check, Outcome)]) -> Vec<&'static Check> {
    let found = outcomes
        .iter()
        .filter(|(check, outcome)| check.needs.contains(&DRIFT) && is_fail(outcome));
    found.map(|(check, _)| *check).collect()
}

const fn is_fail(outcome: &Outcome) -> bool {
    matches!(outcome, Outcome::Fail(_))
}

/// Returns whether `later` has every item of the comparison that `first` has.
pub fn is_as_complete(first: &Evidence, later: &Evidence) -> bool {
    let has = |evidence: &Evidence, item| evidence.text(item).is_ok();
    DRIFT
        .iter()
        .all(|&item| has(later, item) || !has(first, item))
}

/// Removes from `outcomes` the findings of drift that the outcomes of a later, equally complete reading do not have.
pub fn keep_persistent(
    outcomes: &mut [(&'static Check, Outcome)],
    later: Vec<(&'static Check, Outcome)>,
) {
    for (check, later) in later {
        let first = outcomes.iter_mut().find(|(of, _)| of.id == check.id);
        let Some((_, outcome)) = first else {
            continue;
        };
        match (&*outcome, later) {
            (Outcome::Fail(before), Outcome::Fail(mut now)) => {
                now.retain(|finding| {
                    before
                        .iter()
                        .any(|earlier| earlier.subject == finding.subject)
                });
                *outcome = if now.is_empty() {
                    Outcome::Pass
                } else {
                    Outcome::Fail(now)
                };
            }
            (_, Outcome::Unknown(_)) => {}
            (_, later) => *outcome = later,
        }
    }
}

/// Turns errors of drift, and of what stops connections only under some conditions, into warnings if all Services that they concern
/// work, according to `works`; `all_work` tells whether all Services do.
pub fn temper(
    outcomes: &mut [(&'static Check, Outcome)],
    works: impl Fn(&ServiceRef) -> bool,
    all_work: bool,
) {
    for (check, outcome) in outcomes {
        let Outcome::Fail(findings) = outcome else {
            continue;
        };
        let is_drift = check.needs.contains(&DRIFT);
        let mut is_tempered = false;
        for finding in &mut *findings {
            let may_stop = finding.ties.weight == Weight::Conditional;
            let is_harmless = match finding.services.as_slice() {
                [] => may_stop && all_work,
                services => (is_drift || may_stop) && services.iter().all(&works),
            };
            if is_harmless {
                finding.severity = finding.severity.min(Severity::Warning);
                is_tempered = true;
            }
        }
        if is_tempered {
            findings.sort_by_key(|finding| std::cmp::Reverse(finding.severity));
        }
    }
}

impl Facts<'_> {
    /// Returns the time after which kube-proxy has programmed a change: its shortest time between two syncs, and twice the
    /// average time of its syncs.
    pub fn settles_after(&self) -> Duration {
        let least = || {
            let config = self.configuration().ok()?;
            go_duration(config.periods_of(self.current().ok()?).0)
        };
        let average = self.node.metrics().ok().and_then(Metrics::any_sync);
        let sync = average.and_then(|average| Duration::try_from_secs_f64(2.0 * average).ok());
        let wait = least().unwrap_or(LEAST) + sync.map_or(SYNC, |sync| sync + ARRIVES);
        wait.min(LONGEST)
    }
}
