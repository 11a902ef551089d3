//! The cluster's objects, from the API server.
//!
//! Objects are kept as the server wrote them: what kpx does not know today may matter to whoever reads the bundle
//! tomorrow. Secrets are never asked for, and of ConfigMaps only those that configure kube-proxy.

mod access;
mod change;
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
use crate::action::{KubeCommand, Object};
use crate::apply::StepError;
use crate::cluster::Pod;
use crate::evidence::{Gap, Item};
pub use access::Environment;
pub(super) use patience::Urgency;
use patience::{Patience, Way};
pub use watch::Watch;

use session::{Objects, Session, quote};

/// ConfigMaps of kube-system that may hold kube-proxy's configuration: kubeadm's, and what others call it.
const CONFIG_MAPS: &[&str] = &["kube-proxy", "kube-proxy-config"];

/// DaemonSets of kube-system that run a service proxy: kube-proxy, and what replaces it.
const DAEMON_SETS: &[&str] = &["kube-proxy", "cilium", "kube-router"];

/// The ranges that cluster IPs come from.
const SERVICE_CIDRS: &str = "/apis/networking.k8s.io/v1/servicecidrs";

/// Why nobody can be asked.
const NONE: &str = "no cluster is configured";

/// How much of a log is asked for.
const LOG_LINES: u32 = 5000;

/// The API server, reached once for all items.
#[derive(Debug, Default)]
pub(super) struct Cluster {
    sessions: Mutex<Option<Result<Arc<[Session]>, Refusal>>>,
}

/// Why the API server cannot be asked at all.
#[derive(Clone, Debug)]
enum Refusal {
    NotApplicable(String),
    Denied(String),
    Failed(String),
    /// The server is away, or starts.
    Away(String),
}

/// Why a request failed.
#[derive(Debug)]
enum Trouble {
    /// The server answered with this status.
    Status(u16, String),
    /// The server answered with this status, and said when to ask again.
    Busy(u16, String, Duration),
    /// The server did not answer in time.
    Late,
    /// The way to the server broke.
    Transport(String),
    /// The answer makes no sense.
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

impl Trouble {
    /// Returns the gap for having tried to `verb` `what`.
    fn gap(self, item: Item, session: &Session, verb: &str, what: &str) -> Gap {
        self.refusal(session, verb, what, "deploy/rbac.yaml")
            .gap(item)
    }

    /// Returns the refusal for having tried to `verb` `what`, which the roles in `roles` allow.
    fn refusal(self, session: &Session, verb: &str, what: &str, roles: &str) -> Refusal {
        let Session { origin, server, .. } = session;
        match self {
            Self::Status(401, _) => session.unauthorized(),
            Self::Status(403, message) => Refusal::Denied(format!(
                "{verb} {what}: {message} (credentials: {origin}); {roles} allows it"
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

    /// Returns why, for people who know what was asked.
    fn words(self) -> String {
        match self {
            Self::Status(code, message) | Self::Busy(code, message, _) => {
                format!("answered {code}: {message}")
            }
            Self::Late => "no answer in time".to_owned(),
            Self::Transport(why) | Self::Answer(why) => why,
        }
    }

    fn is_forbidden(&self) -> bool {
        matches!(self, Self::Status(403, _))
    }

    /// Returns whether the same request may succeed in a while: the server is away, starting, or has too much to do.
    fn is_passing(&self) -> bool {
        match self {
            Self::Status(code, _) => matches!(code, 429 | 500 | 502 | 503 | 504),
            Self::Late | Self::Transport(_) | Self::Busy(..) => true,
            Self::Answer(_) => false,
        }
    }
}

impl Cluster {
    /// Reads `item` for the node called `node`, as one List.
    pub(super) async fn read(
        &self,
        item: Item,
        node: &str,
        options: &Options,
        urgency: Urgency,
    ) -> Result<String, Gap> {
        let look = async |way: Way<'_>| read(way, item, node).await;
        self.look(item, options, urgency, look).await
    }

    /// Returns kube-proxy's configuration from its ConfigMap, behind a comment that says so.
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
            .map_err(|e| Gap::Failed(item, format!("ConfigMaps cannot be read: {e}")))?;
        for map in list.items {
            for (key, value) in map.data.unwrap_or_default() {
                if value.contains("KubeProxyConfiguration") {
                    return Ok(format!(
                        "# From ConfigMap kube-system/{}, key {key}; the node's own file was not found.\n{value}",
                        map.metadata.name
                    ));
                }
            }
        }
        let why = format!(
            "no ConfigMap {} in kube-system holds a KubeProxyConfiguration",
            CONFIG_MAPS.join(" or ")
        );
        Err(Gap::Absent(item, why))
    }

    /// Returns the end of the log of `node`'s kube-proxy pod.
    pub(super) async fn proxy_log(&self, node: &str, options: &Options) -> Result<String, Gap> {
        let item = Item::ProxyLog;
        let look = async |way: Way<'_>| log(way, item, node).await;
        self.look(item, options, Urgency::Look, look).await
    }

    /// Carries `command` out, with the first credentials that may.
    pub(super) async fn change(
        &self,
        command: &KubeCommand,
        options: &Options,
    ) -> Result<(), StepError> {
        let work = async |way: Way<'_>| change::carry_out(way, command).await;
        self.with_each(options, work).await
    }

    /// Returns `object`, with the first credentials that may see it; `None` where there is none.
    pub(super) async fn object(
        &self,
        object: &Object,
        options: &Options,
    ) -> Result<Option<Value>, StepError> {
        let look = async |way: Way<'_>| change::get(way, object).await;
        self.with_each(options, look).await
    }

    /// Returns the whole log of the pod `name` of kube-system, with the first credentials that may see it.
    pub(super) async fn log_of(&self, name: &str, options: &Options) -> Result<String, StepError> {
        let look = async |way: Way<'_>| change::log(way, name).await;
        self.with_each(options, look).await
    }

    /// Returns kube-proxy's pods on the Node called `node`, with the first credentials that may see them.
    pub(super) async fn proxy_pods(
        &self,
        node: &str,
        options: &Options,
    ) -> Result<Vec<Pod>, StepError> {
        let look = async |way: Way<'_>| proxy::pods(way, node).await;
        self.with_each(options, look).await
    }

    /// Returns the last line that `container` of kube-proxy's pod `pod` logged before it ended.
    pub(super) async fn last_line(
        &self,
        pod: &str,
        container: &str,
        options: &Options,
    ) -> Result<Option<String>, StepError> {
        let look = async |way: Way<'_>| Ok(proxy::last_line(way.session, pod, container).await);
        self.with_each(options, look).await
    }

    /// Returns the pods of kube-system that kpx made, with the first credentials that may see them.
    pub(super) async fn own_pods(&self, options: &Options) -> Result<Vec<Value>, StepError> {
        self.with_each(options, change::own_pods).await
    }

    /// Does `work` with the first credentials that are not refused.
    async fn with_each<T>(
        &self,
        options: &Options,
        work: impl AsyncFn(Way<'_>) -> Result<T, StepError>,
    ) -> Result<T, StepError> {
        let urgency = Urgency::Change;
        let sessions = self.sessions(options, urgency).await;
        let sessions = sessions.map_err(Refusal::step)?;
        let denied = |done: &Result<T, StepError>| matches!(done, Err(StepError::Denied(_)));
        let done = with_each(&sessions, urgency, denied, work).await;
        done.unwrap_or_else(|| Err(StepError::Absent(NONE.to_owned())))
    }

    /// Reads `item` with the first credentials that are not refused: a kubelet may see less than an admin.
    async fn look(
        &self,
        item: Item,
        options: &Options,
        urgency: Urgency,
        work: impl AsyncFn(Way<'_>) -> Result<String, Gap>,
    ) -> Result<String, Gap> {
        let sessions = self.sessions(options, urgency).await;
        let sessions = sessions.map_err(|why| why.gap(item))?;
        let denied = |read: &Result<String, Gap>| matches!(read, Err(Gap::Denied(..)));
        let read = with_each(&sessions, urgency, denied, work).await;
        read.unwrap_or_else(|| Err(Gap::NotApplicable(NONE.to_owned())))
    }

    /// Returns the clients that reached the API server. One that was away is tried again where a change depends on it.
    async fn sessions(
        &self,
        options: &Options,
        urgency: Urgency,
    ) -> Result<Arc<[Session]>, Refusal> {
        let mut kept = self.sessions.lock().await;
        // As long as one answer may take: a server that is simply not there is said soon.
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

/// Does `work` with one session after the other, as long as it is `denied`; returns the first denial if all are, and
/// `None` where there are none. A denial is looked into only where all are denied.
async fn with_each<T>(
    sessions: &[Session],
    urgency: Urgency,
    denied: impl Fn(&T) -> bool,
    work: impl AsyncFn(Way<'_>) -> T,
) -> Option<T> {
    let mut first = None;
    for others in [true, false] {
        if others && sessions.len() < 2 {
            continue;
        }
        first = None;
        for session in sessions {
            let way = Way {
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

/// Tries every way to the API server at once; returns those that work.
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

async fn read(way: Way<'_>, item: Item, node: &str) -> Result<String, Gap> {
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
            Err(Trouble::Status(404, _)) => {
                let why =
                    "the API server has no ServiceCIDR objects: they came with Kubernetes 1.33";
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

/// Reads all Nodes; where that is forbidden, this one.
async fn nodes(way: Way<'_>, node: &str) -> Result<Objects, Gap> {
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

/// Reads the objects of kube-system that have one of `names`; one that does not exist is no gap.
async fn named(
    way: Way<'_>,
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
    // A kubelet may get only what its pods mount. What kube-proxy's pod mounts is what is looked for.
    match forbidden {
        Some(gap) if found.items.is_empty() => Err(gap),
        _ => Ok(document(&found, &missing)),
    }
}

/// Reads kube-proxy's pods, on all nodes, and those of this node.
async fn pods(way: Way<'_>, node: &str) -> Result<String, Gap> {
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
        // A kubelet may see its own pods and no others: kube-proxy's of this node is among them.
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

async fn log(way: Way<'_>, item: Item, node: &str) -> Result<String, Gap> {
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

/// Returns one List, an object per line; `missing` says which of them could not be read.
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
