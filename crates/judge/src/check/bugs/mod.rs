//! KB: known bugs of kube-proxy's releases.

mod known;
mod seen;

use super::conntrack::FLOWS;
use super::core::{Collector, FAMILIES, IDLE, MODE, VERSION};
use super::drift::DRIFT;
use super::{
    Because, Check, Example, Facts, Finding, Fix, Proof, Prose, ServiceRef, Severity, Subject,
    Text, Verdict, When,
};
pub(super) use known::{BUGS, HOST_SERVICES, LOST_UPDATE, NODE_PORTS};
use kpx_node::backend::Mode;
use kpx_node::cluster::release::{Goal, Span};
use kpx_node::cluster::version::Version;
use kpx_node::evidence::{Gap, Item};
use kpx_node::node::desired::NEEDS;
pub(super) use seen::shared_addresses;

/// Returns whether `finding` is that the nft of kube-proxy's image cannot read the sets of a newer one.
pub(super) fn is_of_newer_sets(check: &Check, finding: &Finding) -> bool {
    check.id == "KB01" && finding.subject == "nftables-newer-sets"
}

/// The items that the known bugs are recognized by.
const SEEN: &[Item] = &[
    Item::Metrics,
    Item::NftVersion,
    Item::KernelLog,
    Item::ProxyTools,
    Item::ServiceCidrs,
    Item::Ipset,
    Item::Ipvs,
    Item::IpvsSave,
];

pub(super) const CHECKS: &[Check] = &[Check {
    id: "KB01",
    name: "known-bugs",
    severity: Severity::Error,
    when: When::Now,
    title: "No known bug of this kube-proxy release shows on the node",
    symptom: "Services behave as another check says, or kube-proxy is slow, until it is upgraded or restarted.",
    why: "Each release of kube-proxy has bugs that later versions fix. Some of them are in a table, each with its \
          versions, its modes, and what it leaves on a node. A bug is reported only if all of these fit.",
    verify: "Compare the version with the thread that the finding names.",
    commands: &[Example::on_node(
        "curl -s http://127.0.0.1:10249/metrics | grep kubernetes_build_info",
    )],
    fix: Text::plain("Upgrade kube-proxy to a version without the bug."),
    incidents: &[
        "kubernetes/kubernetes#104755",
        "kubernetes/kubernetes#114815",
        "kubernetes/kubernetes#117613",
        "kubernetes/kubernetes#117723",
        "kubernetes/kubernetes#121362",
        "kubernetes/kubernetes#121909",
        "kubernetes/kubernetes#125467",
        "kubernetes/kubernetes#129982",
        "kubernetes/kubernetes#131765",
        "kubernetes/kubernetes#134024",
        "kubernetes/kubernetes#135266",
        "kubernetes/kubernetes#135323",
        "kubernetes/kubernetes#135639",
        "kubernetes/kubernetes#136786",
        "kubernetes/kubernetes#137085",
        "kubernetes/kubernetes#139513",
        "kubernetes/kubernetes#139628",
        "kubernetes/kubernetes#141371",
        "kubernetes/kubernetes#142183",
    ],
    needs: &[MODE, VERSION, NEEDS, DRIFT, FAMILIES, FLOWS, IDLE, SEEN],
    caused_by: &[Because::In("DV04")],
    run: known_bugs,
}];

/// The arguments of kpx that show which known bugs the node has.
pub(super) const SHOWS: [&str; 3] = ["doctor", "--only", "KB01"];

/// Bugs that a Service does not meet with externalTrafficPolicy Cluster.
const OF_LOCAL_POLICY: [&str; 2] = ["ipvs-local-external-ip", "nftables-local-load-balancer"];

/// A known bug of some versions of kube-proxy.
#[derive(Debug)]
pub(super) struct Bug {
    /// A kebab-case name; never reused.
    pub(super) key: &'static str,
    /// The versions that have it: spans such as `1.32.0..1.32.3`, separated by spaces.
    pub(super) versions: &'static str,
    /// The modes that have it.
    pub(super) modes: &'static [Mode],
    /// The severity of its finding.
    pub(super) severity: Severity,
    /// The fault of kube-proxy, without a full stop.
    pub(super) what: &'static str,
    /// Workaround until the upgrade: a sentence.
    pub(super) workaround: Text,
    /// Issue or pull request: `OWNER/REPOSITORY#NUMBER`; empty if it was measured only.
    pub(super) thread: &'static str,
    /// Returns the signs of the bug on the node; empty if there are none.
    pub(super) seen: fn(&Facts<'_>) -> Result<Shown, Gap>,
}

/// The signs of a bug on a node.
#[derive(Debug, Default)]
pub(super) struct Shown {
    /// The facts; empty if the node shows no sign of the bug.
    pub(super) proofs: Vec<Proof>,
    /// The Services that it concerns; none if it concerns the whole node.
    pub(super) services: Vec<ServiceRef>,
    /// The objects of another check without which the bug has no sign.
    pub(super) within: Vec<Subject>,
}

impl Bug {
    /// Iterates over the spans of versions that have it.
    fn spans(&self) -> impl Iterator<Item = Span> {
        let spans = self.versions.split(' ');
        spans.filter_map(|text| text.parse().ok())
    }

    /// Returns whether `version` in `mode` has it.
    pub(super) fn is_in(&self, version: Version, mode: Mode) -> bool {
        self.modes.contains(&mode) && self.spans().any(|span| span.contains(version))
    }

    /// Returns the version to upgrade to from `version`; `None` if there is none yet.
    fn fixed_after(&self, version: Version) -> Option<Version> {
        self.spans().find(|span| span.contains(version))?.fixed
    }

    /// Returns the address of its thread.
    pub(super) fn thread(&self) -> Option<Proof> {
        let (repository, number) = self.thread.split_once('#')?;
        Some(Proof::Note(format!(
            "https://github.com/{repository}/issues/{number}"
        )))
    }

    /// Returns the fix for kube-proxy `version`, with the command of the workaround if it changes one of `services`.
    fn fix(&self, version: Version, services: &[ServiceRef]) -> Fix {
        let upgrade = match self.fixed_after(version) {
            Some(fixed) => format!("Upgrade kube-proxy to {fixed} or newer. Workaround: "),
            None => "No known version fixes it. ".to_owned(),
        };
        let text = Prose::from(upgrade).then(self.workaround);
        match services
            .first()
            .filter(|_| OF_LOCAL_POLICY.contains(&self.key))
        {
            None => Fix::said(text),
            Some(ServiceRef {
                namespace, name, ..
            }) => Fix::kubectl(
                text,
                format!(
                    "kubectl -n {namespace} patch service {name} -p '{{\"spec\":{{\"externalTrafficPolicy\":\"Cluster\"}}}}'"
                ),
            ),
        }
    }
}

fn known_bugs(facts: &Facts<'_>) -> Verdict {
    let found = facts.version()?;
    let mut findings = Collector::default();
    // A release without known bugs passes.
    findings.add(Ok(Vec::new()));
    for bug in here(facts)? {
        let shown = findings.read((bug.seen)(facts));
        let Some(shown) = shown.filter(|shown| !shown.proofs.is_empty()) else {
            continue;
        };
        let version = Proof::setting(found.source.to_string(), "version", found.version);
        let message = format!("known bug of kube-proxy {}: {}", found.version, bug.what);
        findings.push(
            Finding::new(bug.severity, Subject::bug(bug.key), message)
                .fix(bug.fix(found.version, &shown.services))
                .services(shown.services)
                .through(shown.within)
                .evidence(shown.proofs)
                .evidence([version])
                .evidence(bug.thread()),
        );
    }
    findings.verdict()
}

/// Iterates over the known bugs of the running version in its mode.
pub(super) fn here(facts: &Facts<'_>) -> Result<impl Iterator<Item = &'static Bug>, Gap> {
    let (version, mode) = (facts.version()?.version, facts.current()?);
    Ok(BUGS.iter().filter(move |bug| bug.is_in(version, mode)))
}

/// Returns whether the running version has the bug `key` in its mode.
pub(super) fn has(facts: &Facts<'_>, key: &str) -> bool {
    here(facts).is_ok_and(|mut bugs| bugs.any(|bug| bug.key == key))
}

/// Iterates over the known bugs that kube-proxy has after the upgrade to `goal` in `mode`.
pub(super) fn after(goal: Goal, mode: Mode) -> impl Iterator<Item = &'static Bug> {
    let version = goal.version();
    BUGS.iter().filter(move |bug| bug.is_in(version, mode))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn keys_are_unique_and_every_span_can_be_read() {
        let keys: BTreeSet<_> = BUGS.iter().map(|bug| bug.key).collect();
        assert_eq!(keys.len(), BUGS.len());
        assert!(BUGS.len() >= 15);
        for bug in BUGS {
            let spans = bug.versions.split(' ').count();
            assert_eq!(bug.spans().count(), spans, "{}: {}", bug.key, bug.versions);
            assert!(
                bug.workaround.to_string().ends_with('.') && !bug.what.ends_with('.'),
                "{}",
                bug.key
            );
            assert!(!bug.modes.is_empty(), "{}", bug.key);
        }
    }

    #[test]
    fn bugs_that_other_checks_ask_for_are_in_the_table() {
        for key in [HOST_SERVICES, LOST_UPDATE, NODE_PORTS] {
            assert!(BUGS.iter().any(|bug| bug.key == key), "{key}");
        }
    }

    #[test]
    fn the_check_names_the_thread_of_every_bug() {
        let named: BTreeSet<_> = CHECKS[0].incidents.iter().copied().collect();
        let threads = BUGS.iter().map(|bug| bug.thread);
        let threads: BTreeSet<_> = threads.filter(|thread| !thread.is_empty()).collect();
        assert_eq!(named, threads);
    }

    #[test]
    fn the_fix_names_the_version_of_the_same_release() {
        let bug = BUGS.iter().find(|bug| bug.key == LOST_UPDATE);
        let of = |minor, patch| bug.unwrap().fixed_after(Version::new(1, minor, patch));
        assert_eq!(of(27, 3), Some(Version::new(1, 27, 11)));
        assert_eq!(of(28, 6), Some(Version::new(1, 28, 7)));
        assert_eq!(of(28, 7), None);
    }
}
