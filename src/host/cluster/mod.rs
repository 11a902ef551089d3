//! Reads the cluster's objects from the API server.
//!
//! Objects are kept as the server wrote them, because a later kpx may use more of their fields. Secrets are never read,
//! and only those ConfigMaps that configure kube-proxy.

mod access;
mod change;
mod exec;
mod patience;
mod proxy;
mod rights;
mod session;
mod watch;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use serde::Deserialize;
use serde_json::Value;
use tokio::sync::Mutex;

use super::Options;
use crate::action::{KubeCommand, Object, Resource};
use crate::apply::StepError;
use crate::cluster::Pod;
use crate::evidence::{Gap, Item};
pub use access::Environment;
pub(super) use exec::{CONTAINER, Ended, Held};
pub(super) use patience::Urgency;
use patience::{Patience, Requester};
pub use watch::Watch;

use session::{Objects, Session, quote};

/// ConfigMaps of kube-system that may contain kube-proxy's configuration: kubeadm's name, and an alternative.
const CONFIG_MAPS: &[&str] = &["kube-proxy", "kube-proxy-config"];

/// DaemonSets of kube-system that run kube-proxy or a replacement.
const DAEMON_SETS: &[&str] = &["kube-proxy", "cilium", "kube-router"];

/// Path of the `ServiceCIDR` objects.
const SERVICE_CIDRS: &str = "/apis/networking.k8s.io/v1/servicecidrs";

/// Reason if no API server is configured.
const NONE: &str = "no cluster is configured";

/// Number of log lines to read.
const LOG_LINES: u32 = 5000;

/// The API server; connected once for all items.
#[derive(Debug, Default)]
pub(super) struct Cluster {
    sessions: Mutex<Option<Result<Arc<[Session]>, Refusal>>>,
}

/// Why the API server cannot be used at all.
#[derive(Clone, Debug)]
enum Refusal {
    NotApplicable(String),
    Denied(String),
    Failed(String),
    /// The server is not available or is starting.
    Away(String),
}

/// Why a request failed.
#[derive(Debug)]
enum RequestError {
    /// The server answered with this status code and message.
    Status(u16, String),
    /// The server answered with this status code and message, and a time to retry after.
    Busy(u16, String, Duration),
    /// The server did not answer within the time limit.
    Late,
    /// The connection to the server failed.
    Transport(String),
    /// The answer is not valid.
    Answer(String),
}

impl Refusal {
    fn step(self) -> StepError {
        match self {
            Self::NotApplicable(why) => StepError::Absent(why),
            Self::Denied(why) => StepError::Denied(why),
            Self::Failed(why) | Self::Away(why) => StepError::Refused(why),
        }
    }

    fn gap(&self, item: Item) -> Gap {
        match self {
            Self::NotApplicable(why) => Gap::NotApplicable(why.clone()),
            Self::Denied(why) => Gap::Denied(item, why.clone()),
            Self::Failed(why) | Self::Away(why) => Gap::Failed(item, why.clone()),
        }
    }
}

impl RequestError {
    /// Returns the gap for a failed attempt to `verb` `what`.
    fn gap(self, item: Item, session: &Session, verb: &str, what: &str) -> Gap {
        self.refusal(session, verb, what, "deploy/rbac.yaml")
            .gap(item)
    }

    /// Returns the refusal for a failed attempt to `verb` `what`, which the manifest `roles` allows.
    fn refusal(self, session: &Session, verb: &str, what: &str, roles: &str) -> Refusal {
        let Session { origin, server, .. } = session;
        match self {
            Self::Status(401, _) => session.unauthorized(),
            Self::Status(403, message) => Refusal::Denied(format!(
                "{verb} {what}: {message} (credentials: {origin}); apply {roles} to allow it"
            )),
            Self::Status(code, message) | Self::Busy(code, message, _) => Refusal::Failed(format!(
                "{verb} {what}: {server} answered {code}: {message}"
            )),
            Self::Late => Refusal::Failed(format!("{verb} {what}: {server}: {}", session.late())),
            Self::Transport(why) | Self::Answer(why) => {
                Refusal::Failed(format!("{verb} {what}: {server}: {why}"))
            }
        }
    }

    /// Returns the reason without the request.
    fn words(self) -> String {
        match self {
            Self::Status(code, message) | Self::Busy(code, message, _) => {
                format!("answered {code}: {message}")
            }
            Self::Late => "no answer within the time limit".to_owned(),
            Self::Transport(why) | Self::Answer(why) => why,
        }
    }

    fn is_forbidden(&self) -> bool {
        matches!(self, Self::Status(403, _))
    }

    /// Returns whether the request may succeed later: the server is not available, starting or overloaded.
    fn is_passing(&self) -> bool {
        match self {
            Self::Status(code, _) => matches!(code, 429 | 500 | 502 | 503 | 504),
            Self::Late | Self::Transport(_) | Self::Busy(..) => true,
            Self::Answer(_) => false,
        }
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
        let look = async |way: Requester<'_>| read(way, item, node).await;
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
                        "# From ConfigMap kube-system/{}, key {key}; the node has no configuration file.\n{value}",
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
        let look = async |way: Requester<'_>| log(way, item, node).await;
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

    /// Returns the newest message of a warning about `object`; `None` if there is none or it cannot be read.
    pub(super) async fn warning(&self, object: &Object, options: &Options) -> Option<String> {
        let look = async |way: Requester<'_>| Ok(change::warning(way.session, object).await);
        self.with_each(options, look).await.ok().flatten()
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
        let denied = |read: &Result<String, Gap>| matches!(read, Err(Gap::Denied(..)));
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

/// Tries every way to access the API server in parallel; returns those that work.
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

async fn read(way: Requester<'_>, item: Item, node: &str) -> Result<String, Gap> {
    let session = way.session;
    let list = async |path: &str, what: &str| {
        let read = way.list(path, "").await;
        read.map_err(|trouble| trouble.gap(item, session, "list", what))
    };
    match item {
        Item::Services => list("/api/v1/services", "services").await,
        Item::EndpointSlices => {
            list(
                "/apis/discovery.k8s.io/v1/endpointslices",
                "endpointslices.discovery.k8s.io",
            )
            .await
        }
        Item::Nodes => nodes(way, node).await,
        Item::ConfigMaps => {
            let path = "/api/v1/namespaces/kube-system/configmaps";
            return named(way, item, path, "configmaps", CONFIG_MAPS).await;
        }
        Item::DaemonSets => {
            let path = "/apis/apps/v1/namespaces/kube-system/daemonsets";
            return named(way, item, path, "daemonsets.apps", DAEMON_SETS).await;
        }
        Item::Pods => return pods(way, node).await,
        Item::ServiceCidrs => match way.list(SERVICE_CIDRS, "").await {
            Ok(ranges) => Ok(ranges),
            Err(RequestError::Status(404, _)) => {
                let why =
                    "the API server has no ServiceCIDR objects, which require Kubernetes 1.33";
                Err(Gap::NotApplicable(why.to_owned()))
            }
            Err(trouble) => {
                Err(trouble.gap(item, session, "list", "servicecidrs.networking.k8s.io"))
            }
        },
        Item::Access => return rights::read(way, item, node).await,
        other => Err(Gap::NotCollected(other)),
    }
    .map(|objects| document(&objects, &[]))
}

/// Reads all Nodes; if that is forbidden, only this one.
async fn nodes(way: Requester<'_>, node: &str) -> Result<Objects, Gap> {
    let (item, session) = (Item::Nodes, way.session);
    let trouble = match way.list("/api/v1/nodes", "").await {
        Ok(nodes) => return Ok(nodes),
        Err(trouble) if trouble.is_forbidden() => trouble,
        Err(trouble) => return Err(trouble.gap(item, session, "list", "nodes")),
    };
    match way.object(&format!("/api/v1/nodes/{}", quote(node))).await {
        Ok(Some(own)) => Ok(Objects {
            items: vec![own],
            version: String::new(),
        }),
        Err(own) if !own.is_forbidden() => {
            Err(own.gap(item, session, "get", &format!("nodes {node}")))
        }
        Ok(None) | Err(_) => Err(trouble.gap(item, session, "list", "nodes")),
    }
}

/// Reads the objects of kube-system with one of `names`; a missing object is not a gap.
async fn named(
    way: Requester<'_>,
    item: Item,
    path: &str,
    what: &str,
    names: &[&str],
) -> Result<String, Gap> {
    let session = way.session;
    let gets = names
        .iter()
        .map(async |name| (name, way.object(&format!("{path}/{name}")).await));
    let mut found = Objects::default();
    let mut missing = Vec::new();
    let mut forbidden = None;
    for (name, read) in join_all(gets).await {
        match read {
            Ok(object) => found.items.extend(object),
            Err(trouble) => {
                let only = trouble.is_forbidden();
                let one = format!("{what} {name} in namespace kube-system");
                let gap = trouble.gap(item, session, "get", &one);
                if !only {
                    return Err(gap);
                }
                missing.push(format!("{one}: forbidden"));
                forbidden = forbidden.or(Some(gap));
            }
        }
    }
    // A kubelet may only read objects that its pods mount. These include what kube-proxy's pod mounts.
    match forbidden {
        Some(gap) if found.items.is_empty() => Err(gap),
        _ => Ok(document(&found, &missing)),
    }
}

/// Reads the pods of kube-proxy on all nodes, and all pods of this node.
async fn pods(way: Requester<'_>, node: &str) -> Result<String, Gap> {
    let (item, session) = (Item::Pods, way.session);
    let here = format!("fieldSelector={}", quote(&format!("spec.nodeName={node}")));
    let (proxies, here) = tokio::join!(
        way.list(
            "/api/v1/namespaces/kube-system/pods",
            "labelSelector=k8s-app%3Dkube-proxy"
        ),
        way.list("/api/v1/pods", &here)
    );
    let mut merged = here.map_err(|trouble| {
        let what = format!("pods of node {node}");
        trouble.gap(item, session, "list", &what)
    })?;
    let mut missing = Vec::new();
    match proxies {
        Ok(proxies) => merged.items.extend(proxies.items),
        // A kubelet may only read the pods of its own node, which include that node's kube-proxy.
        Err(trouble) if trouble.is_forbidden() => {
            missing.push("pods of kube-proxy on other nodes: forbidden".to_owned());
        }
        Err(trouble) => {
            let what = "pods of kube-proxy in namespace kube-system";
            return Err(trouble.gap(item, session, "list", what));
        }
    }
    let mut by_name = BTreeMap::new();
    for pod in merged.items {
        let Named { metadata } = serde_json::from_str(pod.get())
            .map_err(|e| Gap::Failed(item, format!("a pod without a name: {e}")))?;
        by_name.insert((metadata.namespace, metadata.name), pod);
    }
    let merged = Objects {
        items: by_name.into_values().collect(),
        version: merged.version,
    };
    Ok(document(&merged, &missing))
}

async fn log(way: Requester<'_>, item: Item, node: &str) -> Result<String, Gap> {
    let session = way.session;
    let pods = "/api/v1/namespaces/kube-system/pods";
    let field = quote(&format!("spec.nodeName={node}"));
    let query = format!("labelSelector=k8s-app%3Dkube-proxy&fieldSelector={field}");
    let found = way
        .list(pods, &query)
        .await
        .map_err(|trouble| trouble.gap(item, session, "list", "pods of kube-proxy"))?;
    let Some(pod) = found.items.first() else {
        let why = format!("no pod with the label k8s-app=kube-proxy runs on node {node}");
        return Err(Gap::Absent(item, why));
    };
    let pod: Named = serde_json::from_str(pod.get())
        .map_err(|e| Gap::Failed(item, format!("a pod without a name: {e}")))?;
    let name = pod.metadata.name;
    let path = format!("{pods}/{}/log?tailLines={LOG_LINES}", quote(&name));
    way.get(&path)
        .await
        .map_err(|trouble| trouble.gap(item, session, "get", &format!("pods/log {name}")))
}

#[derive(Deserialize)]
struct Named {
    metadata: Name,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Name {
    name: String,
    namespace: String,
}

/// Returns one List with one object per line; `missing` lists the objects that could not be read.
fn document(objects: &Objects, missing: &[String]) -> String {
    let quoted = |text: &str| Value::from(text).to_string();
    let size = objects
        .items
        .iter()
        .map(|item| item.get().len() + 2)
        .sum::<usize>();
    let mut text = String::with_capacity(size + 200);
    text += r#"{"apiVersion":"v1","kind":"List","metadata":{"resourceVersion":"#;
    text += &quoted(&objects.version);
    if !missing.is_empty() {
        let missing: Vec<_> = missing.iter().map(|why| quoted(why)).collect();
        text += r#","missing":["#;
        text += &missing.join(",");
        text.push(']');
    }
    text += "},\"items\":[";
    for (index, object) in objects.items.iter().enumerate() {
        text += if index == 0 { "\n" } else { ",\n" };
        text += object.get();
    }
    text += "\n]}\n";
    text
}
