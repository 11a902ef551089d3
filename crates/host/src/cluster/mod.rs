//! Reads the cluster's objects from the API server.
//!
//! Objects are kept as the server wrote them, because a later kpx may use more of their fields. Secrets are never read,
//! and only those ConfigMaps that configure kube-proxy.

mod access;
mod change;
mod client;
mod copied_config_map;
mod exec;
mod plugin;
mod proxy;
mod read;
mod refusal;
mod retry;
mod review;
mod rights;
mod session;
mod socks;
mod tls;
mod token;
mod watch;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use serde::Deserialize;
use serde_json::Value;
use tokio::sync::Mutex;

use super::Options;
pub use access::{Environment, Selection};
pub(super) use exec::{CONTAINER, Ended, Held};
use kpx_node::access::Request;
use kpx_node::action::{KubeCommand, Object, Resource};
use kpx_node::apply::StepError;
use kpx_node::cluster::Pod;
use kpx_node::cluster::config::ORIGIN;
use kpx_node::evidence::{Gap, Item};
#[cfg(fuzzing)]
pub use plugin::fuzz;
use read::{CONFIG_MAPS, Name};
use refusal::Refusal;
pub(super) use refusal::{is_by_admission, refused_pod};
pub(super) use retry::Urgency;
use retry::{Patience, Requester};
pub use rights::Reviewed;
use session::Session;
use token::TokenSource;
pub use watch::Watch;

/// Reason if no API server is configured.
const NONE: &str = "no cluster is configured";

/// The API server; connected once for all items.
#[derive(Debug, Default)]
pub(super) struct Cluster {
    sessions: Mutex<Option<Result<Arc<[Session]>, Refusal>>>,
}

/// A connection to the API server for several collections with the same options; opened by the first that needs it.
#[derive(Clone, Debug, Default)]
pub struct Connection(pub(super) Arc<Cluster>);

/// The API server that options select.
#[derive(Debug)]
pub(super) struct Api {
    /// Its connections.
    pub(super) cluster: Arc<Cluster>,
    /// The options.
    pub(super) options: Options,
}

impl Api {
    /// Returns the API server that `options` select.
    pub(super) fn new(options: &Options) -> Arc<Self> {
        Arc::new(Self {
            cluster: Arc::default(),
            options: options.clone(),
        })
    }
}

impl Cluster {
    /// Reads `item` for node `node`, as one List.
    pub(super) async fn read(
        &self,
        item: Item,
        node: &str,
        options: &Options,
        urgency: Urgency,
    ) -> Result<String, Gap> {
        let look = async |way: Requester<'_>| read::read(way, item, node).await;
        self.look(item, options, urgency, look).await
    }

    /// Returns kube-proxy's configuration from its ConfigMap, after a comment with its origin.
    pub(super) async fn proxy_config(&self, node: &str, options: &Options) -> Result<String, Gap> {
        #[derive(Deserialize)]
        struct List {
            items: Vec<ConfigMap>,
        }
        #[derive(Deserialize)]
        struct ConfigMap {
            metadata: Name,
            data: Option<BTreeMap<String, String>>,
        }
        let item = Item::ProxyConfig;
        let text = self.read(Item::ConfigMaps, node, options, Urgency::Look);
        let text = text.await;
        let text = text.map_err(|gap| gap.about(item))?;
        let list: List = serde_json::from_str(&text)
            .map_err(|e| Gap::Failed(item, format!("cannot parse the ConfigMaps: {e}")))?;
        for map in list.items {
            for (key, value) in map.data.unwrap_or_default() {
                if value.contains("KubeProxyConfiguration") {
                    return Ok(format!(
                        "{ORIGIN}ConfigMap kube-system/{}, key {key}; the node has no configuration file.\n{value}",
                        map.metadata.name
                    ));
                }
            }
        }
        let why = format!(
            "no ConfigMap {} in kube-system contains a KubeProxyConfiguration",
            CONFIG_MAPS.join(" or ")
        );
        Err(Gap::Absent(item, why))
    }

    /// Returns the end of the log of the kube-proxy pod on `node`.
    pub(super) async fn proxy_log(&self, node: &str, options: &Options) -> Result<String, Gap> {
        let item = Item::ProxyLog;
        let look = async |way: Requester<'_>| read::log(way, item, node).await;
        self.look(item, options, Urgency::Look, look).await
    }

    /// Runs `command` with the first credentials that are allowed to.
    pub(super) async fn change(
        &self,
        command: &KubeCommand,
        options: &Options,
    ) -> Result<(), StepError> {
        let work = async |way: Requester<'_>| change::carry_out(way, command).await;
        self.with_each(options, work).await
    }

    /// Returns `object`, with the first credentials that are allowed to read it; `None` if it does not exist.
    pub(super) async fn object(
        &self,
        object: &Object,
        options: &Options,
    ) -> Result<Option<Value>, StepError> {
        let look = async |way: Requester<'_>| change::get(way, object).await;
        self.with_each(options, look).await
    }

    /// Returns the whole log of the pod `name` in kube-system, with the first credentials that are allowed to read it.
    pub(super) async fn log_of(&self, name: &str, options: &Options) -> Result<String, StepError> {
        let look = async |way: Requester<'_>| change::log(way, name).await;
        self.with_each(options, look).await
    }

    /// Returns kube-proxy's pods on Node `node`, with the first credentials that are allowed to read them.
    pub(super) async fn proxy_pods(
        &self,
        node: &str,
        options: &Options,
    ) -> Result<Vec<Pod>, StepError> {
        let look = async |way: Requester<'_>| proxy::pods(way, node).await;
        self.with_each(options, look).await
    }

    /// Returns the last log line of `container` in kube-proxy's pod `pod` before it ended.
    #[cfg(target_os = "linux")]
    pub(super) async fn last_line(
        &self,
        pod: &str,
        container: &str,
        options: &Options,
    ) -> Result<Option<String>, StepError> {
        let look =
            async |way: Requester<'_>| Ok(proxy::last_line(way.session, pod, container).await);
        self.with_each(options, look).await
    }

    /// Returns the objects of kube-system with `label`, with the first credentials that are allowed to read them.
    pub(super) async fn labelled(
        &self,
        resource: Resource,
        label: (&str, &str),
        options: &Options,
    ) -> Result<Vec<Value>, StepError> {
        let look = async |way: Requester<'_>| change::labelled(way, resource, label).await;
        self.with_each(options, look).await
    }

    /// Returns the newest message of a warning about `object`, with the first credentials that are allowed to read its
    /// events; `None` if there is none.
    pub(super) async fn warning(
        &self,
        object: &Object,
        options: &Options,
    ) -> Result<Option<String>, StepError> {
        let look = async |way: Requester<'_>| change::warning(way.session, object).await;
        self.with_each(options, look).await
    }

    /// Runs `command` in the node pod `pod` with `input`; `quiet` limits the time without an answer.
    pub(super) async fn exec(
        &self,
        pod: &str,
        command: &[String],
        input: Option<&[u8]>,
        quiet: Duration,
        options: &Options,
    ) -> Result<Ended, StepError> {
        let work = async |way: Requester<'_>| {
            let done = way.session.exec(pod, command, input, quiet).await;
            done.map_err(|trouble| exec::failed(way.session, "pods/exec", pod, trouble))
        };
        self.with_each(options, work).await
    }

    /// Keeps the standard input of the node pod `pod` open.
    pub(super) async fn hold(&self, pod: &str, options: &Options) -> Result<Held, StepError> {
        let work = async |way: Requester<'_>| {
            let held = way.session.hold(pod).await;
            held.map_err(|trouble| exec::failed(way.session, "pods/attach", pod, trouble))
        };
        self.with_each(options, work).await
    }

    /// Returns the sources of the credentials, and whether `requests` are allowed to one of them.
    async fn review(
        &self,
        requests: &[Request],
        options: &Options,
    ) -> Result<(Vec<String>, Vec<Reviewed>), Refusal> {
        let sessions = self.sessions(options, Urgency::Look).await?;
        let origins = sessions.iter().map(|session| session.origin.clone());
        let reviewed = rights::query(&sessions, requests).await;
        Ok((origins.collect(), reviewed))
    }

    /// Runs `work` with the first credentials that are allowed to.
    async fn with_each<T>(
        &self,
        options: &Options,
        work: impl AsyncFn(Requester<'_>) -> Result<T, StepError>,
    ) -> Result<T, StepError> {
        let urgency = Urgency::Change;
        let sessions = self.sessions(options, urgency).await;
        let sessions = sessions.map_err(Refusal::step)?;
        let denied = |done: &Result<T, StepError>| matches!(done, Err(StepError::Denied(_)));
        let done = with_each(&sessions, urgency, denied, work).await;
        done.unwrap_or_else(|| Err(StepError::Absent(NONE.to_owned())))
    }

    /// Reads `item` with the first credentials that are allowed to: a kubelet may see less than an admin.
    async fn look(
        &self,
        item: Item,
        options: &Options,
        urgency: Urgency,
        work: impl AsyncFn(Requester<'_>) -> Result<String, Gap>,
    ) -> Result<String, Gap> {
        let sessions = self.sessions(options, urgency).await;
        let sessions = sessions.map_err(|why| why.gap(item))?;
        let denied = |read: &Result<String, Gap>| read.as_ref().is_err_and(Gap::is_denial);
        let read = with_each(&sessions, urgency, denied, work).await;
        read.unwrap_or_else(|| Err(Gap::NotApplicable(NONE.to_owned())))
    }

    /// Returns the clients that reached the API server. A change retries a server that is not available.
    async fn sessions(
        &self,
        options: &Options,
        urgency: Urgency,
    ) -> Result<Arc<[Session]>, Refusal> {
        let mut kept = self.sessions.lock().await;
        // No longer than one request, so that a missing server is reported soon.
        let mut patience = Patience::new(Urgency::Look, options.timeout);
        loop {
            match &*kept {
                Some(Ok(sessions)) => return Ok(Arc::clone(sessions)),
                Some(Err(why @ Refusal::Away(_)))
                    if urgency == Urgency::Look || !patience.wait().await =>
                {
                    return Err(why.clone());
                }
                None | Some(Err(Refusal::Away(_))) => {}
                Some(Err(why)) => return Err(why.clone()),
            }
            *kept = Some(open(options).await.map(Arc::from));
        }
    }
}

/// The answers to access reviews.
#[derive(Clone, Debug)]
pub struct Reviews {
    /// Sources of the credentials.
    pub credentials: Vec<String>,
    /// The answers, in the order of the requests.
    pub answers: Vec<Reviewed>,
}

/// Queries whether `requests` are allowed, with access reviews.
///
/// # Errors
///
/// The reason why the API server cannot be used.
pub async fn review(requests: &[Request], options: &Options) -> Result<Reviews, String> {
    let reviewed = Cluster::default().review(requests, options).await;
    let (credentials, answers) = reviewed.map_err(|why| why.step().to_string())?;
    Ok(Reviews {
        credentials,
        answers,
    })
}

/// Returns the namespace of the kubeconfig's context, as kubectl uses it; `None` without access to a cluster.
pub(super) async fn context_namespace(options: &Options) -> Option<String> {
    let access = access::find(options).await.ok()?;
    Some(access.first()?.config.default_namespace.clone())
}

/// Returns the names of the contexts in the kubeconfig of `options`.
pub(super) fn contexts(options: &Options) -> Vec<String> {
    access::contexts(options)
}

/// Returns why the kubeconfig of `options` cannot be used.
pub(super) async fn unusable_kubeconfig(options: &Options) -> Option<String> {
    match access::find(options).await {
        Err(Refusal::Failed(why) | Refusal::Denied(why)) => Some(why),
        _ => None,
    }
}

/// Runs credential plugins of the kubeconfig that may ask for input.
pub(super) async fn log_in(options: &Options) {
    for access in access::find(options).await.into_iter().flatten() {
        if let Some(TokenSource::Plugin(plugin)) = &access.token
            && plugin::may_ask(plugin)
        {
            drop(plugin::credential(plugin, options.timeout).await);
        }
    }
}

/// Runs `work` with one session after the other while it is `denied`; returns the first denial if all are denied, and
/// `None` without sessions. Only if all are denied is the denial confirmed by access reviews.
async fn with_each<T>(
    sessions: &[Session],
    urgency: Urgency,
    denied: impl Fn(&T) -> bool,
    work: impl AsyncFn(Requester<'_>) -> T,
) -> Option<T> {
    let mut first = None;
    for others in [true, false] {
        if others && sessions.len() < 2 {
            continue;
        }
        first = None;
        for session in sessions {
            let way = Requester {
                session,
                urgency,
                others,
            };
            let done = work(way).await;
            if !denied(&done) {
                return Some(done);
            }
            first = first.or(Some(done));
        }
    }
    first
}

/// Tries every way to access the API server in parallel; returns the ways that work.
async fn open(options: &Options) -> Result<Vec<Session>, Refusal> {
    let ways = access::find(options).await?;
    let tries = ways
        .into_iter()
        .map(|access| Session::open(access, options.timeout));
    let mut sessions = Vec::new();
    let mut refusal = None;
    for tried in join_all(tries).await {
        match tried {
            Ok(session) => sessions.push(session),
            Err(why) => refusal = refusal.or(Some(why)),
        }
    }
    match refusal {
        Some(why) if sessions.is_empty() => Err(why),
        _ => Ok(sessions),
    }
}
