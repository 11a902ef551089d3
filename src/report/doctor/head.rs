//! The head of the doctor's report: what was looked at.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::backend::Mode;
use crate::check::Facts;
use crate::cluster::version::ProxyVersion;
use crate::evidence::{Gap, Item, Time};
use crate::net::Family;

/// What the head reads in every run: all of it is cheap.
pub const HEAD: &[Item] = &[
    Item::KernelRelease,
    Item::ProxyConfig,
    Item::ProxyMode,
    Item::Healthz,
    Item::Metrics,
];

/// What the head also reads when all checks run.
pub const HEAD_WHOLE: &[Item] = &[
    Item::Nodes,
    Item::ConfigMaps,
    Item::Services,
    Item::EndpointSlices,
];

/// What was looked at.
#[derive(Debug, Serialize)]
pub struct Head {
    /// The machine.
    pub node: NodeHead,
    /// The mode, three ways.
    pub mode: ModeHead,
    /// The cluster's objects, where they were read.
    pub cluster: Option<ClusterHead>,
    /// When rules were last written, by family.
    pub sync: Vec<Sync>,
}

/// The machine.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeHead {
    /// The Node's name.
    pub name: Option<String>,
    /// The kernel's release.
    pub kernel: Option<String>,
    /// kube-proxy's version.
    pub kube_proxy_version: Option<String>,
    /// What says so.
    #[serde(skip)]
    pub version: Option<ProxyVersion>,
}

/// The mode, three ways.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ModeHead {
    /// What kube-proxy is configured for.
    pub configured: Option<Mode>,
    /// What it says it runs in.
    pub reported: Option<Mode>,
    /// What the kernel's state amounts to.
    pub observed: Option<Mode>,
    /// The same by family; unset where the kernel holds no rules.
    pub observed_by_family: BTreeMap<String, Option<Mode>>,
    /// Modes that left something behind.
    pub leftovers: Vec<Mode>,
}

/// The cluster's objects.
#[derive(Debug, Serialize)]
pub struct ClusterHead {
    /// Services.
    pub services: usize,
    /// Endpoints of all slices; `None` when those were not read.
    pub endpoints: Option<usize>,
}

/// When rules were last written.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Sync {
    /// The family; unset before 1.33, which does not tell them apart.
    pub family: Option<Family>,
    /// When; unset if it never was.
    pub last: Option<Time>,
    /// Seconds from then until the node was looked at.
    pub age_seconds: Option<u64>,
}

impl Head {
    pub(super) fn of(facts: &Facts<'_>) -> Self {
        let version = facts.version().ok();
        let observed: BTreeMap<_, _> = Family::BOTH
            .into_iter()
            .filter_map(|family| Some((family.to_string(), facts.observed(family).ok()?)))
            .collect();
        Self {
            node: NodeHead {
                name: facts.node_name(),
                kernel: facts.node.kernel_release().ok().map(str::to_owned),
                kube_proxy_version: version.map(|found| found.version.to_string()),
                version,
            },
            mode: ModeHead {
                configured: facts.configured().ok().map(|(mode, _)| mode),
                reported: facts.reported().ok(),
                observed: observed.values().flatten().next().copied(),
                observed_by_family: observed,
                leftovers: leftovers(facts),
            },
            cluster: cluster(facts).ok(),
            sync: sync(facts),
        }
    }
}

/// Returns the modes that left something behind, as far as that can be told.
fn leftovers(facts: &Facts<'_>) -> Vec<Mode> {
    let Ok(mode) = facts.mode() else {
        return Vec::new();
    };
    let others = Mode::ALL.into_iter().filter(|other| *other != mode);
    others
        .filter(|other| facts.leftovers(*other).is_ok_and(|found| !found.is_empty()))
        .collect()
}

fn cluster(facts: &Facts<'_>) -> Result<ClusterHead, Gap> {
    let services = facts.node.services()?.len();
    let slices = facts.node.slices().ok();
    let endpoints = slices.map(|all| all.iter().map(|slice| slice.endpoints.len()).sum());
    Ok(ClusterHead {
        services,
        endpoints,
    })
}

fn sync(facts: &Facts<'_>) -> Vec<Sync> {
    let Ok(metrics) = facts.node.metrics() else {
        return Vec::new();
    };
    let mut all: Vec<_> = metrics
        .last_sync()
        .map(|(family, at)| {
            let last = (at > 0.0).then(|| Time::from_epoch(at)).flatten();
            let age = last.zip(facts.now).map(|(last, now)| now.since(last));
            Sync {
                family,
                last,
                age_seconds: age.map(|age| age.as_secs()),
            }
        })
        .collect();
    all.sort_by_key(|sync| sync.family);
    all
}
