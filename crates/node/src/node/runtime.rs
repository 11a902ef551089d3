//! Health and metrics of a running kube-proxy.

use std::collections::BTreeMap;

use serde::Deserialize;

use crate::evidence::{Gap, Item, Time};
use crate::net::Family;

/// `/healthz` of kube-proxy.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Health {
    /// Time of the last sync, RFC 3339; the current time while kube-proxy is healthy.
    pub last_updated: Option<String>,
    /// Current time of kube-proxy, RFC 3339.
    pub current_time: Option<String>,
    /// Whether the node may receive load-balancer traffic.
    pub node_eligible: Option<bool>,
    /// Whether all families are healthy (newer releases).
    pub healthy: Option<bool>,
    /// Health by family: `IPv4`, `IPv6` (newer releases).
    pub status: BTreeMap<String, FamilyHealth>,
}

/// Health of one family.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct FamilyHealth {
    /// Time of the last sync, RFC 3339.
    pub last_updated: Option<String>,
    /// Whether the rules are up to date.
    pub healthy: bool,
}

/// Parses `/healthz`.
pub(crate) fn health(text: &str) -> Result<Health, Gap> {
    serde_json::from_str(text).map_err(|e| Gap::of_json(Item::Healthz, text, &e))
}

/// Metrics in the Prometheus text format.
#[derive(Clone, Debug, Default)]
pub struct Metrics<'a> {
    /// Samples, in the order of the text.
    pub samples: Vec<Sample<'a>>,
}

/// A sample of a metric.
#[derive(Clone, Debug, PartialEq)]
pub struct Sample<'a> {
    /// Name of the metric.
    pub name: &'a str,
    /// Labels as written between the braces; may be empty.
    pub labels: &'a str,
    /// Value of the sample.
    pub value: f64,
}

impl<'a> Metrics<'a> {
    /// Parses the samples; comments and invalid lines are ignored.
    pub fn parse(text: &'a str) -> Self {
        let samples = text
            .lines()
            .filter(|line| !line.starts_with('#'))
            .filter_map(|line| {
                let (head, value) = line.rsplit_once(' ')?;
                let (name, labels) = match head.split_once('{') {
                    Some((name, rest)) => (name, rest.strip_suffix('}')?),
                    None => (head, ""),
                };
                Some(Sample {
                    name,
                    labels,
                    value: value.parse().ok()?,
                })
            });
        Self {
            samples: samples.collect(),
        }
    }

    /// Parses the samples. A text without any was not read.
    pub(crate) fn read(text: &'a str) -> Result<Self, Gap> {
        let metrics = Self::parse(text);
        if metrics.samples.is_empty() {
            return Err(Gap::Failed(Item::Metrics, "it has no metrics".to_owned()));
        }
        Ok(metrics)
    }

    /// Iterates over the samples of `name`.
    pub fn of(&self, name: &str) -> impl Iterator<Item = &Sample<'a>> {
        self.samples
            .iter()
            .filter(move |sample| sample.name == name)
    }

    /// Returns whether they are metrics of kube-proxy.
    pub fn are_of_kube_proxy(&self) -> bool {
        let mut samples = self.samples.iter();
        samples.any(|sample| sample.name.starts_with("kubeproxy_"))
    }

    /// Returns the version from `kubernetes_build_info`.
    pub fn git_version(&self) -> Option<&'a str> {
        self.of("kubernetes_build_info")
            .find_map(|sample| sample.label("git_version"))
    }

    /// Returns the start time of the process, in whole seconds since the epoch.
    pub fn process_start(&self) -> Option<i64> {
        let start = self.of("process_start_time_seconds").next()?;
        Some(Time::from_epoch(start.value)?.seconds)
    }

    /// Returns the average duration of a full sync, in seconds; the slowest family counts.
    pub fn full_sync(&self) -> Option<f64> {
        // Releases without partial syncs have one metric for all syncs.
        self.average("kubeproxy_sync_full_proxy_rules_duration_seconds")
            .or_else(|| self.any_sync())
    }

    /// Returns the average duration of all syncs, full and partial, in seconds; the slowest family counts.
    pub fn any_sync(&self) -> Option<f64> {
        self.average("kubeproxy_sync_proxy_rules_duration_seconds")
    }

    /// Returns the average of the histogram `name`; the largest of the families counts.
    pub fn average(&self, name: &str) -> Option<f64> {
        let values = |end: &str| self.by_family(&format!("{name}_{end}")).collect::<Vec<_>>();
        let (sums, counts) = (values("sum"), values("count"));
        let each = sums.iter().filter_map(|(family, sum)| {
            let (_, count) = counts.iter().find(|(other, _)| other == family)?;
            (*count > 0.0).then_some(sum / count)
        });
        each.reduce(f64::max)
    }

    /// Iterates over the values of `name` by family; before 1.33 there is one value for both families, with `None`.
    pub fn by_family(&self, name: &str) -> impl Iterator<Item = (Option<Family>, f64)> {
        self.of(name).map(|sample| (sample.family(), sample.value))
    }

    /// Iterates over the times of the last sync, in seconds since the epoch; 0 means never.
    pub fn last_sync(&self) -> impl Iterator<Item = (Option<Family>, f64)> {
        self.by_family("kubeproxy_sync_proxy_rules_last_timestamp_seconds")
    }

    /// Returns whether the rules of all `families` were synced since the process started; `None` if the start time is
    /// unknown.
    pub fn has_synced(&self, families: &[Family]) -> Option<bool> {
        let start = self.of("process_start_time_seconds").next()?.value;
        let mut families = families.iter();
        Some(families.all(|family| {
            let mut syncs = self.last_sync();
            syncs.any(|(of, at)| of.is_none_or(|sync_family| sync_family == *family) && at > start)
        }))
    }

    /// Iterates over the times when the last sync was requested, in seconds since the epoch; 0 means never.
    pub fn last_queued(&self) -> impl Iterator<Item = (Option<Family>, f64)> {
        self.by_family("kubeproxy_sync_proxy_rules_last_queued_timestamp_seconds")
    }
}

impl<'a> Sample<'a> {
    /// Returns the value of the label `key`.
    pub fn label(&self, key: &str) -> Option<&'a str> {
        self.labels.split("\",").find_map(|pair| {
            let (name, value) = pair.split_once("=\"")?;
            (name.trim() == key).then(|| value.trim_end_matches('"'))
        })
    }

    /// Returns the value of the label `ip_family`.
    pub fn family(&self) -> Option<Family> {
        self.label("ip_family")?.parse().ok()
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn recorded(name: &str, file: &str) -> String {
        let root = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");
        fs::read_to_string(format!("{root}/testdata/nodes/{name}/kube-proxy/{file}")).unwrap()
    }

    #[test]
    fn a_recent_release_reports_each_family() {
        let text = recorded("full-ipvs", "metrics.txt");
        let metrics = Metrics::parse(&text);
        assert_eq!(metrics.git_version(), Some("v1.36.2"));
        let synced: Vec<_> = metrics.last_sync().collect();
        let (v4, v6) = (1.795_176_703_122_966_5e9, 1.795_176_704_595_993e9);
        assert_eq!(synced, [(Some(Family::V4), v4), (Some(Family::V6), v6)]);
        assert_eq!(metrics.last_queued().count(), 2);
        let health = health(&recorded("full-ipvs", "healthz.json")).unwrap();
        assert_eq!(health.healthy, Some(true));
        assert!(health.status["IPv6"].healthy);
    }

    #[test]
    fn an_older_release_reports_one_value_for_both_families() {
        let text = recorded("full-ipvs-v1.30", "metrics.txt");
        let metrics = Metrics::parse(&text);
        assert_eq!(metrics.git_version(), Some("v1.30.5"));
        assert!(
            metrics
                .last_sync()
                .all(|(family, at)| family.is_none() && at > 0.0)
        );
        assert_eq!(metrics.last_sync().count(), 1);
        let health = health(&recorded("full-ipvs-v1.30", "healthz.json")).unwrap();
        assert_eq!((health.node_eligible, health.healthy), (Some(true), None));
    }
}
