//! kube-proxy's syncs, from its metrics.

use crate::check::{Facts, Proof, Subject};
use kpx_node::backend::Mode;
use kpx_node::evidence::{Gap, Item};
use kpx_node::net::Family;
use kpx_node::node::runtime::Metrics;

/// Returns the subject of metrics of `family`.
pub(in crate::check) fn family_or_proxy(family: Option<Family>) -> Subject {
    family.map_or(Subject::Proxy, Subject::from)
}

/// Slow syncs.
#[derive(Debug)]
pub(in crate::check) struct SlowSyncs {
    /// Their share of all syncs, from 0 to 1.
    pub(in crate::check) share: f64,
    /// The metric as evidence.
    pub(in crate::check) proof: Proof,
}

/// Returns kube-proxy's metrics, if they have some of its own.
pub(in crate::check) fn proxy_metrics<'f>(facts: &'f Facts<'_>) -> Result<&'f Metrics<'f>, Gap> {
    let metrics = facts.node.metrics()?;
    let mut samples = metrics.samples.iter();
    if samples.any(|sample| sample.name.starts_with("kubeproxy_")) {
        return Ok(metrics);
    }
    let why = "it has no metrics of kube-proxy's rules";
    Err(Gap::Absent(Item::Metrics, why.to_owned()))
}

/// Returns the times when syncs of `metrics` were requested: at least one.
pub(in crate::check) fn queued(metrics: &Metrics<'_>) -> Result<Vec<(Option<Family>, f64)>, Gap> {
    let all: Vec<_> = metrics.last_queued().collect();
    if all.is_empty() {
        let why = "it has no time when kube-proxy queued a sync";
        return Err(Gap::Absent(Item::Metrics, why.to_owned()));
    }
    Ok(all)
}

/// Returns, by family, the syncs of kube-proxy that took longer than `seconds`, as [`slower_than`] does.
pub(in crate::check) fn syncs_slower_than(
    facts: &Facts<'_>,
    seconds: f64,
) -> Result<Vec<(Option<Family>, SlowSyncs)>, Gap> {
    let metrics = facts.node.metrics()?;
    // Right after kube-proxy's start, there is none yet.
    if metrics.of(&format!("{DURATION}_count")).next().is_none() && !metrics.are_of_kube_proxy() {
        let why = "it has no duration of kube-proxy's syncs";
        return Err(Gap::Absent(Item::Metrics, why.to_owned()));
    }
    Ok(slower_than(metrics, seconds))
}

/// The histogram of the duration of syncs.
const DURATION: &str = "kubeproxy_sync_proxy_rules_duration_seconds";

/// Returns, by family, the syncs that took longer than the highest bound of the histogram that is at most `seconds`.
fn slower_than(metrics: &Metrics<'_>, seconds: f64) -> Vec<(Option<Family>, SlowSyncs)> {
    // Fewer syncs show only the start.
    const FEW: f64 = 20.0;
    let mut all = Vec::new();
    for (family, count) in metrics.by_family(&format!("{DURATION}_count")) {
        if count < FEW {
            continue;
        }
        let name = format!("{DURATION}_bucket");
        let bounds = metrics
            .of(&name)
            .filter(|sample| sample.family() == family)
            .filter_map(|sample| Some((sample.label("le")?.parse::<f64>().ok()?, sample.value)))
            .filter(|(bound, _)| *bound <= seconds);
        let (bound, quick) =
            bounds.fold((0.0, 0.0), |a: (f64, f64), b| if b.0 > a.0 { b } else { a });
        let slow = SlowSyncs {
            share: (count - quick) / count,
            proof: Proof::setting(
                "kube-proxy's metrics",
                DURATION,
                format_args!("{} of {count} took more than {bound:.0} s", count - quick),
            ),
        };
        all.push((family, slow));
    }
    all
}

/// Returns about how many seconds the first sync of mode `to` takes for so many endpoints, on a machine that is not slow.
///
/// Fitted to measurements: in iptables mode 32 s for 20,000 endpoints; in nftables mode 2 s for those, and 795 s for
/// 250,011 (kubernetes/kubernetes#135639); in ipvs mode an entry of a set takes a process of its own
/// (kubernetes/kubernetes#133773), except for entries that exist already.
pub fn first_sync_seconds(endpoints: u32, to: Mode) -> f64 {
    let count = f64::from(endpoints);
    match to {
        Mode::Iptables | Mode::Userspace => count * 1.6e-3,
        Mode::Ipvs => count * 1e-3,
        // A power law through both measurements; linear for few endpoints.
        Mode::Nftables => (count * 1e-4).max(795.0 * (count / 250_011.0).powf(2.37)),
    }
}
