//! The head of the doctor's report: what was looked at.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};

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
#[derive(Debug, Default, Serialize)]
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
#[derive(Debug, Default, Serialize)]
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
#[derive(Debug, Default, Serialize)]
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

/// Answers a question of the head; what panics is not known, as a check that panics is not: it has told so already.
fn ask<T>(question: impl FnOnce() -> Result<T, Gap>) -> Option<T> {
    catch_unwind(AssertUnwindSafe(question)).ok()?.ok()
}

impl Head {
    /// Returns the head for `facts`.
    pub fn of(facts: &Facts<'_>) -> Self {
        let version = ask(|| facts.version());
        let observed: BTreeMap<_, _> = Family::BOTH
            .into_iter()
            .filter_map(|family| Some((family.to_string(), ask(|| facts.observed(family))?)))
            .collect();
        Self {
            node: NodeHead {
                name: ask(|| Ok(facts.node_name())).flatten(),
                kernel: ask(|| facts.node.kernel_release()).map(str::to_owned),
                kube_proxy_version: version.map(|found| found.version.to_string()),
                version,
            },
            mode: ModeHead {
                configured: ask(|| facts.configured()).map(|(mode, _)| mode),
                reported: ask(|| facts.reported()),
                observed: observed.values().flatten().next().copied(),
                observed_by_family: observed,
                leftovers: leftovers(facts),
            },
            cluster: ask(|| cluster(facts)),
            sync: ask(|| sync(facts)).unwrap_or_default(),
        }
    }
}

/// Returns the modes that left something behind, as far as that can be told.
fn leftovers(facts: &Facts<'_>) -> Vec<Mode> {
    let Some(mode) = ask(|| facts.current()) else {
        return Vec::new();
    };
    let others = Mode::ALL.into_iter().filter(|other| *other != mode);
    others
        .filter(|other| ask(|| facts.leftovers(*other)).is_some_and(|found| !found.is_empty()))
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

fn sync(facts: &Facts<'_>) -> Result<Vec<Sync>, Gap> {
    let mut all: Vec<_> = facts
        .node
        .metrics()?
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
    Ok(all)
}
