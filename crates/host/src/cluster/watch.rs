//! Watches the Services and EndpointSlices of the cluster.
//!
//! Each collection is listed and then watched from the version of the list. When a watch ends, for example at the API
//! server's time limit, the collection is listed again, so no change is lost. The end of a watch is no change.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::future::{Either, select};
use futures_util::stream::BoxStream;
use kube::core::WatchEvent;
use serde::de::DeserializeOwned;
use tokio::time::{Instant, sleep_until, timeout, timeout_at};

use super::Api;
use super::refusal::RequestError;
use super::retry::Urgency;
use super::session::Session;
use crate::Options;
use kpx_node::cluster::{EndpointSlice, Metadata, Service};
use kpx_node::evidence::{Gap, Item};

/// Requested duration of a watch; a longer silence means that the connection is broken.
const WATCH: Duration = Duration::from_secs(240);

/// Maximum pause within a burst of changes, and maximum duration of a burst.
const PAUSE: Duration = Duration::from_millis(30);
const BURST: Duration = Duration::from_millis(250);

/// First and maximum delay before a retry.
const RETRY: Duration = Duration::from_millis(500);
const RETRY_AT_MOST: Duration = Duration::from_secs(15);

/// Events of a watched collection, or why the watch ended.
type Events<T> = BoxStream<'static, Result<WatchEvent<T>, RequestError>>;

/// A watched cluster.
pub struct Watch {
    api: Arc<Api>,
    services: Collection<Service>,
    slices: Collection<EndpointSlice>,
    /// Whether there are changes that [`Watch::next`] has not returned yet.
    changed: bool,
    retry: Duration,
    /// End of the current burst.
    due: Option<Instant>,
}

impl std::fmt::Debug for Watch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Watch").finish_non_exhaustive()
    }
}

/// A watched object with a name.
trait Object: DeserializeOwned + Clone + Send + 'static {
    const ITEM: Item;
    const PATH: &'static str;
    const WHAT: &'static str;

    fn metadata(&self) -> &Metadata;
}

impl Object for Service {
    const ITEM: Item = Item::Services;
    const PATH: &'static str = "/api/v1/services";
    const WHAT: &'static str = "services";

    fn metadata(&self) -> &Metadata {
        &self.metadata
    }
}

impl Object for EndpointSlice {
    const ITEM: Item = Item::EndpointSlices;
    const PATH: &'static str = "/apis/discovery.k8s.io/v1/endpointslices";
    const WHAT: &'static str = "endpointslices.discovery.k8s.io";

    fn metadata(&self) -> &Metadata {
        &self.metadata
    }
}

impl Watch {
    /// Lists the objects and starts to watch them.
    pub async fn start(options: &Options) -> Result<Self, Gap> {
        let mut watch = Self {
            api: Api::new(options),
            services: Collection::default(),
            slices: Collection::default(),
            changed: false,
            retry: Duration::ZERO,
            due: None,
        };
        watch.resume().await?;
        watch.changed = false;
        Ok(watch)
    }

    /// Returns the Services, sorted by namespace and name.
    pub fn services(&self) -> Vec<Service> {
        self.services.objects.values().cloned().collect()
    }

    /// Returns the EndpointSlices, sorted by namespace and name.
    pub fn slices(&self) -> Vec<EndpointSlice> {
        self.slices.objects.values().cloned().collect()
    }

    /// Waits for a change and the end of its burst, or after an error until the cluster is watched again.
    ///
    /// # Errors
    ///
    /// The cluster cannot be watched at the moment; the next call retries. The future may be dropped at any time: the
    /// next call returns the changes seen so far.
    pub async fn next(&mut self) -> Result<(), Gap> {
        let result = self.change().await;
        // The caller waits for the end of the error.
        self.changed = result.is_err();
        result
    }

    async fn change(&mut self) -> Result<(), Gap> {
        loop {
            if !self.is_watched() {
                // A caller that drops the future and calls again does not wait longer.
                let due = *self.due.get_or_insert_with(|| Instant::now() + self.retry);
                sleep_until(due).await;
                self.due = None;
                self.retry = (self.retry * 2).clamp(RETRY, RETRY_AT_MOST);
                self.resume().await?;
                self.retry = Duration::ZERO;
            }
            if self.changed {
                break;
            }
            self.event().await?;
        }
        let end = Instant::now() + BURST;
        while self.is_watched()
            && let Ok(more) = timeout_at(end.min(Instant::now() + PAUSE), self.event()).await
        {
            more?;
        }
        Ok(())
    }

    fn is_watched(&self) -> bool {
        self.services.is_watched() && self.slices.is_watched()
    }

    /// Lists and watches the collections that are not watched.
    async fn resume(&mut self) -> Result<(), Gap> {
        let cluster = &self.api.cluster;
        let sessions = cluster
            .sessions(&self.api.options, Urgency::Look)
            .await
            .map_err(|why| why.gap(Item::Services))?;
        let mut denied = None;
        for session in sessions.iter() {
            let resumed = async {
                self.changed |= self.services.resume(session).await?;
                self.changed |= self.slices.resume(session).await?;
                Ok::<_, Gap>(())
            };
            match resumed.await {
                Err(gap) if gap.is_denial() => denied = denied.or(Some(gap)),
                other => return other,
            }
        }
        let none = || Gap::NotApplicable("no cluster is configured".to_owned());
        Err(denied.unwrap_or_else(none))
    }

    /// Waits for one event of either collection.
    async fn event(&mut self) -> Result<(), Gap> {
        let services = std::pin::pin!(self.services.event());
        let slices = std::pin::pin!(self.slices.event());
        let is_change = match select(services, slices).await {
            Either::Left((event, _)) | Either::Right((event, _)) => event?,
        };
        self.changed |= is_change;
        Ok(())
    }
}

/// Watched objects of one kind.
struct Collection<T> {
    objects: BTreeMap<(String, String), T>,
    events: Option<Events<T>>,
}

impl<T> Default for Collection<T> {
    fn default() -> Self {
        Self {
            objects: BTreeMap::new(),
            events: None,
        }
    }
}

impl<T: Object> Collection<T> {
    fn is_watched(&self) -> bool {
        self.events.is_some()
    }

    /// Lists and watches the objects if they are not watched; returns whether any of them changed meanwhile.
    async fn resume(&mut self, session: &Session) -> Result<bool, Gap> {
        if self.is_watched() {
            return Ok(false);
        }
        let gap = |verb: &str, trouble: RequestError| trouble.gap(T::ITEM, session, verb, T::WHAT);
        let list = session.list(T::PATH, "").await;
        let list = list.map_err(|trouble| gap("list", trouble))?;
        let mut objects = BTreeMap::new();
        for item in &list.items {
            let object: T = serde_json::from_str(item.get())
                .map_err(|e| Gap::Failed(T::ITEM, format!("an object of the list: {e}")))?;
            objects.insert(key(&object), object);
        }
        let path = format!(
            "{}?watch=1&resourceVersion={}&timeoutSeconds={}",
            T::PATH,
            list.version,
            WATCH.as_secs()
        );
        let events = session.watch(&path).await;
        self.events = Some(events.map_err(|trouble| gap("watch", trouble))?);
        let is_same = |(a, b): (&T, &T)| {
            let (a, b) = (a.metadata(), b.metadata());
            a.uid == b.uid && a.resource_version == b.resource_version
        };
        let is_changed = objects.len() != self.objects.len()
            || !objects.values().zip(self.objects.values()).all(is_same);
        self.objects = objects;
        Ok(is_changed)
    }

    /// Waits for an event and applies it; returns whether it is a change. A watch that ended or failed is closed, because
    /// later changes are unknown.
    async fn event(&mut self) -> Result<bool, Gap> {
        let Some(events) = &mut self.events else {
            return Err(Gap::NotCollected(T::ITEM));
        };
        let why = match timeout(WATCH + WATCH / 4, events.next()).await {
            Ok(Some(Ok(WatchEvent::Added(object) | WatchEvent::Modified(object)))) => {
                self.objects.insert(key(&object), object);
                return Ok(true);
            }
            Ok(Some(Ok(WatchEvent::Deleted(object)))) => {
                self.objects.remove(&key(&object));
                return Ok(true);
            }
            Ok(Some(Ok(WatchEvent::Bookmark(_)))) => return Ok(false),
            // The watch reached its time limit.
            Ok(None) => None,
            Ok(Some(Ok(WatchEvent::Error(status)))) => Some(status.message.clone()),
            Ok(Some(Err(trouble))) => Some(trouble.words()),
            Err(_) => Some("the API server sent nothing for too long".to_owned()),
        };
        self.events = None;
        match why {
            None => Ok(false),
            Some(why) => Err(Gap::Failed(T::ITEM, format!("watch {}: {why}", T::WHAT))),
        }
    }
}

fn key(object: &impl Object) -> (String, String) {
    let metadata = object.metadata();
    (metadata.namespace.clone(), metadata.name.clone())
}
