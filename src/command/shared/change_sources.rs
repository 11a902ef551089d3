//! Notices that a node or its cluster changed, without reading either as a whole.

use std::future;
use std::hash::BuildHasher as _;

use futures_util::future::join;

use super::session::Session;
use crate::render::Progress;
use kpx_host::{self as host, Watch};
use kpx_judge::history::State;
use kpx_node::evidence::ipvs::Dump;
use kpx_node::evidence::{Gap, Item};
use kpx_node::node::NodeSnapshot;

/// The source of changes of Services and endpoints.
pub(in crate::command) const CLUSTER: &str = "cluster";

/// The sources of changes, which a metric counts.
pub(in crate::command) const SOURCES: [&str; 5] = [CLUSTER, NFTABLES, IPVS, SETTINGS, PROXY];

const NFTABLES: &str = "nftables";
const IPVS: &str = "ipvs";
const SETTINGS: &str = "settings";
const PROXY: &str = "kube-proxy";

/// Data that is read every time, because nothing signals its changes.
const CHEAP: &[Item] = &[
    Item::Addresses,
    Item::Sysctl,
    Item::Processes,
    Item::Healthz,
];

/// The state of a followed node.
pub(in crate::command) struct Notices<'s> {
    session: &'s Session,
    /// The watch of the cluster; `None` if the cluster cannot be watched or comes from a bundle.
    pub(in crate::command) watch: Option<Watch>,
    generation: Option<u32>,
    layout: Option<u64>,
    settings: Option<State>,
    /// Of the processes of service proxies, and whether kube-proxy is healthy.
    proxy: Option<u64>,
}

/// The result of a look at the node.
pub(in crate::command) struct Look {
    /// The number of the rules of nftables and iptables' nft back end, which grows with each change.
    pub(in crate::command) generation: Result<u32, Gap>,
    /// The sources of changes since the look before.
    pub(in crate::command) changed: Vec<&'static str>,
}

impl<'s> Notices<'s> {
    pub(in crate::command) const fn new(session: &'s Session) -> Self {
        Self {
            session,
            watch: None,
            generation: None,
            layout: None,
            settings: None,
            proxy: None,
        }
    }

    /// Starts to watch the cluster, unless it is watched already or a bundle stands for it.
    pub(in crate::command) async fn watch_cluster(&mut self) -> Result<(), Gap> {
        if self.watch.is_none() && self.session.source.cluster_bundle().is_none() {
            self.watch = Some(Watch::start(&self.session.host).await?);
        }
        Ok(())
    }

    /// Waits for a change of the cluster; for ever if it is not watched.
    pub(in crate::command) async fn cluster(&mut self) -> Result<(), Gap> {
        match &mut self.watch {
            Some(watch) => watch.next().await,
            None => future::pending().await,
        }
    }

    /// Looks for changes since the last time; the first time finds none. `layout` is the layout of the virtual servers,
    /// if they were read.
    pub(in crate::command) async fn look(&mut self, layout: Option<u64>) -> Look {
        if self.session.source.is_pod() {
            // Of another machine, a look costs as much as a reading.
            let why = "the node is read through a pod".to_owned();
            return Look {
                generation: Err(Gap::NotApplicable(why)),
                changed: Vec::new(),
            };
        }
        let rules = host::nft_generation(&self.session.host);
        let silent = Progress::silent();
        let cheap = self.session.read(CHEAP, &silent);
        let (generation, cheap) = join(rules, cheap).await;
        let mut changed = Vec::new();
        if let Ok(now) = generation
            && self.generation.replace(now).is_some_and(|was| was != now)
        {
            changed.push(NFTABLES);
        }
        let (mut settings, mut proxy) = (None, None);
        if let Ok(cheap) = &cheap {
            let node = self.session.node(cheap);
            settings = Some(State::of_settings(&node));
            proxy = proxy_of(&node);
        }
        if let (Some(was), Some(now)) = (&self.settings, &settings)
            && !was.changes(now).0.is_empty()
        {
            changed.push(SETTINGS);
        }
        self.settings = settings;
        for (was, now, source) in [
            (&mut self.layout, layout, IPVS),
            (&mut self.proxy, proxy, PROXY),
        ] {
            if now.is_some() && was.is_some() && *was != now {
                changed.push(source);
            }
            *was = now;
        }
        Look {
            generation,
            changed,
        }
    }

    /// Reads the layout of the virtual servers; `None` without IPVS.
    pub(in crate::command) async fn servers(&self) -> Result<Option<u64>, Gap> {
        if self.session.source.is_pod() {
            return Ok(None);
        }
        match host::ipvs_table(&self.session.host).await {
            Ok(table) => Ok(Some(layout(&table))),
            Err(Gap::Absent(..) | Gap::NotApplicable(_)) => Ok(None),
            Err(gap) => Err(gap),
        }
    }

    /// Returns why rules or virtual servers can change without notice, if they can; `look` is the last one, and `servers` is
    /// why the virtual servers were not read for it.
    pub(in crate::command) async fn blind(
        &self,
        look: &Look,
        servers: Option<&Gap>,
    ) -> Option<String> {
        if let Err(gap) = &look.generation {
            return Some(gap.to_string());
        }
        match host::has_legacy_tables(&self.session.host).await {
            Ok(false) => {}
            Ok(true) => {
                return Some("the legacy back end of iptables does not report changes".to_owned());
            }
            Err(gap) => return Some(gap.to_string()),
        }
        servers.map(ToString::to_string)
    }
}

/// Returns a number that changes with the processes of service proxies and with kube-proxy's health; `None` if the processes
/// are unknown.
fn proxy_of(node: &NodeSnapshot<'_>) -> Option<u64> {
    let all = node.processes().ok()?.processes.iter();
    let processes: Vec<_> = all.map(|process| (process.pid, process.started)).collect();
    let is_healthy = node.health().ok().and_then(|health| health.healthy);
    Some(foldhash::fast::FixedState::with_seed(0).hash_one((processes, is_healthy)))
}

/// Returns a number that changes with the virtual servers, but not with their counters or order.
pub(in crate::command) fn layout(table: &Dump) -> u64 {
    let hasher = foldhash::fast::FixedState::with_seed(0);
    let each = table.services.iter().map(|service| {
        let real = service.destinations.iter().map(|real| {
            let key = (real.address, real.port, real.weight);
            hasher.hash_one(key)
        });
        let real = real.fold(0, u64::wrapping_add);
        let key = (
            service.protocol,
            service.address,
            service.port,
            service.fwmark,
            &service.scheduler,
        );
        hasher.hash_one((key, real))
    });
    each.fold(0, u64::wrapping_add)
}
