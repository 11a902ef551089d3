//! kube-proxy's syncs, from its metrics.

use crate::check::Proof;
use crate::net::Family;
use crate::node::runtime::Metrics;

/// Returns the subject of metrics of `family`.
pub(in crate::check) fn family_or_proxy(family: Option<Family>) -> String {
    family.map_or_else(|| "kube-proxy".to_owned(), |family| family.to_string())
}

/// Slow syncs.
#[derive(Debug)]
pub(in crate::check) struct SlowSyncs {
    /// Their share of all syncs, from 0 to 1.
    pub(in crate::check) share: f64,
    /// The metric as evidence.
    pub(in crate::check) proof: Proof,
}

/// Returns, by family, the syncs that took longer than the highest bound of the histogram that is at most `seconds`.
pub(in crate::check) fn slower_than(
    metrics: &Metrics<'_>,
    seconds: f64,
) -> Vec<(Option<Family>, SlowSyncs)> {
    const NAME: &str = "kubeproxy_sync_proxy_rules_duration_seconds";
    // Fewer syncs show only the start.
    const FEW: f64 = 20.0;
    let mut all = Vec::new();
    for (family, count) in metrics.by_family(&format!("{NAME}_count")) {
        if count < FEW {
            continue;
        }
        let name = format!("{NAME}_bucket");
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
                NAME,
                format_args!("{} of {count} took more than {bound:.0} s", count - quick),
            ),
        };
        all.push((family, slow));
    }
    all
}
