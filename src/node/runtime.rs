//! What a running kube-proxy says of itself: health and metrics.

use std::collections::BTreeMap;

use serde::Deserialize;

use crate::evidence::{Gap, Item};

/// `/healthz` of kube-proxy.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Health {
    /// When rules were last written, RFC 3339.
    pub last_updated: Option<String>,
    /// kube-proxy's clock, RFC 3339.
    pub current_time: Option<String>,
    /// Whether the node may get load-balancer traffic.
    pub node_eligible: Option<bool>,
    /// Whether all families are healthy (newer releases).
    pub healthy: Option<bool>,
    /// By family: `IPv4`, `IPv6` (newer releases).
    pub status: BTreeMap<String, FamilyHealth>,
}

/// The health of one family.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct FamilyHealth {
    /// When rules were last written, RFC 3339.
    pub last_updated: Option<String>,
    /// Whether they are up to date.
    pub healthy: bool,
}

/// Reads `/healthz`.
pub fn health(text: &str) -> Result<Health, Gap> {
    serde_json::from_str(text).map_err(|e| Gap::Failed(Item::Healthz, e.to_string()))
}

/// Metrics in the Prometheus text format.
#[derive(Clone, Debug, Default)]
pub struct Metrics<'a> {
    /// Samples in the order written.
    pub samples: Vec<Sample<'a>>,
}

/// One sample.
#[derive(Clone, Debug, PartialEq)]
pub struct Sample<'a> {
    /// The metric's name.
    pub name: &'a str,
    /// The labels as written between the braces; may be empty.
    pub labels: &'a str,
    /// The value.
    pub value: f64,
}

impl<'a> Metrics<'a> {
    /// Reads the samples; comments and lines that are no sample are passed over.
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

    /// Iterates over the samples of `name`.
    pub fn of(&self, name: &str) -> impl Iterator<Item = &Sample<'a>> {
        self.samples
            .iter()
            .filter(move |sample| sample.name == name)
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
}
