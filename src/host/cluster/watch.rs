//! The Services and EndpointSlices of the cluster, kept as they are now.
//!
//! Each collection is listed and then watched from the version of the list on. Whatever ends a watch, the API server's
//! own limit included, is followed by a new list: what was missed cannot matter.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::future::{Either, select};
use futures_util::stream::BoxStream;
use kube::core::WatchEvent;
use serde::de::DeserializeOwned;
use tokio::time::{Instant, sleep_until, timeout, timeout_at};

use super::Trouble;
use super::patience::Urgency;
use super::session::Session;
use crate::cluster::{EndpointSlice, Metadata, Service};
use crate::evidence::{Gap, Item};
use crate::host::Options;
use crate::host::context::Context;

/// How long the API server is asked to keep a watch open; a silence that is longer is a connection that broke.
const WATCH: Duration = Duration::from_secs(240);

/// Changes come in bursts: how long a burst may pause, and how long it is waited for altogether.
const PAUSE: Duration = Duration::from_millis(30);
const BURST: Duration = Duration::from_millis(250);

/// How long to wait before the API server is asked again, at first and at most.
const RETRY: Duration = Duration::from_millis(500);
const RETRY_AT_MOST: Duration = Duration::from_secs(15);

/// A change of a collection as it is watched, or why the watch ended.
type Events<T> = BoxStream<'static, Result<WatchEvent<T>, Trouble>>;

/// The cluster, watched.
pub struct Watch {
    context: Arc<Context>,
    services: Collection<Service>,
    slices: Collection<EndpointSlice>,
    /// Whether there was a change that was not told yet.
    changed: bool,
    retry: Duration,
    /// When that is over.
    due: Option<Instant>,
}

impl std::fmt::Debug for Watch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Watch").finish_non_exhaustive()
    }
}

/// An object that has a name.
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
    /// Lists what there is, and begins to watch it.
    pub async fn start(options: &Options) -> Result<Self, Gap> {
        let mut watch = Self {
            context: Context::new(options),
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

    /// Waits for a change, and for the end of the burst it came in.
    ///
    /// # Errors
    ///
    /// When the cluster cannot be watched just now; the next call tries again. It may be dropped at any time: what was
    /// seen is told by the next call.
    pub async fn next(&mut self) -> Result<(), Gap> {
        if !self.services.is_watched() || !self.slices.is_watched() {
            // Whoever drops this, and asks again, does not wait anew.
            let due = *self.due.get_or_insert_with(|| Instant::now() + self.retry);
            sleep_until(due).await;
            self.due = None;
            self.retry = (self.retry * 2).clamp(RETRY, RETRY_AT_MOST);
            self.resume().await?;
            self.retry = Duration::ZERO;
        }
        if !self.changed {
            self.event().await?;
        }
        let end = Instant::now() + BURST;
        while let Ok(more) = timeout_at(end.min(Instant::now() + PAUSE), self.event()).await {
            more?;
        }
        self.changed = false;
        Ok(())
    }

    /// Lists and watches what is not watched.
    async fn resume(&mut self) -> Result<(), Gap> {
        let cluster = &self.context.cluster;
        let sessions = cluster
            .sessions(&self.context.options, Urgency::Look)
            .await
            .map_err(|why| why.gap(Item::Services))?;
        let mut denied = None;
        for session in sessions.iter() {
            let resumed = async {
                self.services.resume(session).await?;
                self.slices.resume(session).await
            };
            match resumed.await {
                Err(gap @ Gap::Denied(..)) => denied = denied.or(Some(gap)),
                Ok(()) => {
                    self.changed = true;
                    return Ok(());
                }
                Err(gap) => return Err(gap),
            }
        }
        let none = || Gap::NotApplicable("no cluster is configured".to_owned());
        Err(denied.unwrap_or_else(none))
    }

    /// Waits for one event of either collection.
    async fn event(&mut self) -> Result<(), Gap> {
        let services = std::pin::pin!(self.services.event());
        let slices = std::pin::pin!(self.slices.event());
        let ended = match select(services, slices).await {
            Either::Left((ended, _)) | Either::Right((ended, _)) => ended,
        };
        self.changed = true;
        ended
    }
}

/// The objects of one kind, and their changes.
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

    async fn resume(&mut self, session: &Session) -> Result<(), Gap> {
        if self.is_watched() {
            return Ok(());
        }
        let gap = |verb: &str, trouble: Trouble| trouble.gap(T::ITEM, session, verb, T::WHAT);
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
        self.objects = objects;
        Ok(())
    }

    /// Waits for an event, and applies it. A watch that ended is over: what came after it is not known.
    async fn event(&mut self) -> Result<(), Gap> {
        let Some(events) = &mut self.events else {
            return Err(Gap::NotCollected(T::ITEM));
        };
        let why = match timeout(WATCH + WATCH / 4, events.next()).await {
            Ok(Some(Ok(WatchEvent::Added(object) | WatchEvent::Modified(object)))) => {
                self.objects.insert(key(&object), object);
                return Ok(());
            }
            Ok(Some(Ok(WatchEvent::Deleted(object)))) => {
                self.objects.remove(&key(&object));
                return Ok(());
            }
            Ok(Some(Ok(WatchEvent::Bookmark(_)))) => return Ok(()),
            // Its time was up.
            Ok(None) => None,
            Ok(Some(Ok(WatchEvent::Error(status)))) => Some(status.message.clone()),
            Ok(Some(Err(trouble))) => Some(trouble.words()),
            Err(_) => Some("the API server fell silent".to_owned()),
        };
        self.events = None;
        match why {
            None => Ok(()),
            Some(why) => Err(Gap::Failed(T::ITEM, format!("watch {}: {why}", T::WHAT))),
        }
    }
}

fn key(object: &impl Object) -> (String, String) {
    let metadata = object.metadata();
    (metadata.namespace.clone(), metadata.name.clone())
}
