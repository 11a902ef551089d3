//! The head of the doctor's report: the node, its mode and its cluster.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};

use serde::Serialize;

use kpx_judge::check::Facts;
use kpx_judge::trace;
use kpx_judge::verdict::{Outlook, Tally};
use kpx_node::backend::Mode;
use kpx_node::evidence::{Gap, IPTABLES, Item, Time};
use kpx_node::net::Family;

/// The items that the head reads in every run; all are cheap.
pub(crate) const HEAD: &[Item] = &[
    Item::KernelRelease,
    Item::ProxyConfig,
    Item::ProxyMode,
    Item::Healthz,
    Item::Metrics,
];

/// The items that the head also reads if all checks run.
pub(crate) const HEAD_WHOLE: &[Item] = &[
    Item::Nodes,
    Item::ConfigMaps,
    Item::Services,
    Item::EndpointSlices,
];

/// Returns the items that the verdict on all Services reads.
pub(crate) fn judged() -> impl Iterator<Item = Item> {
    let rules = trace::NEEDS
        .iter()
        .chain(trace::NOTES_NEEDS)
        .chain(IPTABLES);
    rules.copied().chain([Item::Modules])
}

/// Returns the verdict on all Services of the node, unless they are unknown.
pub(crate) fn tally(facts: &Facts<'_>) -> Option<Tally> {
    ask(|| Ok(Tally::of(facts.surveyed()?)))
}

/// Returns the verdict on all Services of the node in `mode`, unless they are unknown.
pub(crate) fn outlook(facts: &Facts<'_>, mode: Mode) -> Option<Outlook> {
    ask(|| facts.outlook(mode).cloned())
}

/// The node, its mode and its cluster.
#[derive(Debug, Default, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct Head {
    /// The node.
    pub node: NodeHead,
    /// The mode from three sources.
    pub mode: ModeHead,
    /// The cluster's objects, if collected.
    pub cluster: Option<ClusterHead>,
    /// The verdict on the Services, if all checks ran and the cluster's objects are known.
    pub services: Option<Tally>,
    /// The same in the mode of a planned switch.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub outlook: Option<Outlook>,
    /// The evidence of connections that was not read, if all checks ran.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub unseen: Vec<&'static str>,
    /// The last sync of each IP family.
    pub sync: Vec<Sync>,
    /// Items that the API server added to the bundle.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub added: Vec<Item>,
}

/// The node.
#[derive(Debug, Default, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub(crate) struct NodeHead {
    /// The Node's name.
    pub name: Option<String>,
    /// The kernel's release.
    pub kernel: Option<String>,
    /// kube-proxy's version.
    pub kube_proxy_version: Option<String>,
}

/// The mode from three sources.
#[derive(Debug, Default, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub(crate) struct ModeHead {
    /// The configured mode.
    pub configured: Option<Mode>,
    /// The mode that kube-proxy reports.
    pub reported: Option<Mode>,
    /// The mode of the kernel's rules.
    pub observed: Option<Mode>,
    /// The same by IP family; null if the kernel has no rules.
    pub observed_by_family: BTreeMap<String, Option<Mode>>,
    /// Modes with leftovers.
    pub leftovers: Vec<Mode>,
}

/// The cluster's objects.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct ClusterHead {
    /// The number of Services.
    pub services: usize,
    /// The number of endpoints of all slices; `None` if they were not collected.
    pub endpoints: Option<usize>,
}

/// The last sync.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub(crate) struct Sync {
    /// The IP family; unset before 1.33, which reports one time for both.
    pub family: Option<Family>,
    /// Its time; unset if there was none.
    pub last: Option<Time>,
    /// Seconds from then until the evidence was collected.
    pub age_seconds: Option<u64>,
}

/// Returns the answer, or `None` if it is unknown or its parser panics; checks report such a panic.
fn ask<T>(question: impl FnOnce() -> Result<T, Gap>) -> Option<T> {
    catch_unwind(AssertUnwindSafe(question)).ok()?.ok()
}

impl Head {
    /// Returns the head for `facts`.
    pub(crate) fn of(facts: &Facts<'_>) -> Self {
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
            },
            mode: ModeHead {
                configured: ask(|| facts.configured()).map(|(mode, _)| mode),
                reported: ask(|| facts.reported()),
                observed: observed.values().flatten().next().copied(),
                observed_by_family: observed,
                leftovers: leftovers(facts),
            },
            cluster: ask(|| cluster(facts)),
            services: None,
            outlook: None,
            unseen: Vec::new(),
            sync: ask(|| sync(facts)).unwrap_or_default(),
            added: facts.node.evidence().added(),
        }
    }
}

/// Returns the modes with leftovers, as far as known.
fn leftovers(facts: &Facts<'_>) -> Vec<Mode> {
    let Some(mode) = ask(|| facts.current()) else {
        return Vec::new();
    };
    let others = Mode::EVER.into_iter().filter(|other| *other != mode);
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
