//! State of kube-proxy's pod on one node, from the API server.

use std::time::Duration;

use serde_json::value::RawValue;
use tokio::time::{Instant, sleep};

use super::refusal::{Refusal, RequestError};
use super::retry::Requester;
use super::session::{Session, quote};
use kpx_node::action::PROXY_LABEL;
use kpx_node::apply::StepError;
use kpx_node::cluster::Pod;
use kpx_node::cluster::pod::{self, Restarts};
use kpx_node::evidence::Time;

/// Path of the pods of kube-system.
pub(super) const PODS: &str = "/api/v1/namespaces/kube-system/pods";

/// First interval between two checks; it doubles up to the longest.
const FIRST: Duration = Duration::from_millis(10);
const LONGEST: Duration = Duration::from_secs(1);

/// Number of log lines to read for the last one that is not empty.
const LAST_LINES: u32 = 5;

/// Waits until the kube-proxy pod on `node` that is not in `after` is ready. With `unpulled`, an image that cannot be pulled ends the
/// wait.
pub(super) async fn wait(
    way: Requester<'_>,
    node: &str,
    after: &[String],
    limit: Duration,
    unpulled: bool,
) -> Result<(), StepError> {
    let (session, end) = (way.session, Instant::now() + limit);
    let mut pause = FIRST;
    let mut restarts = Restarts::default();
    loop {
        let seen = match look(way, end, node, after, unpulled, &mut restarts).await {
            Ok(PodState::Ready) => return Ok(()),
            Ok(PodState::Lost(why)) => return Err(StepError::Refused(why)),
            Ok(PodState::Waits(why)) => why,
            Err(trouble) if trouble.is_passing() => refused(session, trouble).to_string(),
            Err(trouble) => return Err(refused(session, trouble)),
        };
        if Instant::now() + pause >= end {
            return Err(StepError::Refused(format!(
                "kube-proxy on node {node} is not ready after {}s: {seen}",
                limit.as_secs_f64()
            )));
        }
        sleep(pause).await;
        pause = (pause * 2).min(LONGEST);
    }
}

/// State of a new pod that is not ready.
enum PodState {
    Ready,
    /// Not ready yet; the reason.
    Waits(String),
    /// It will not become ready; the reason.
    Lost(String),
}

fn refused(session: &Session, trouble: RequestError) -> StepError {
    let what = "pods of kube-proxy in namespace kube-system";
    let refusal: Refusal = trouble.refusal(session, "list", what, super::change::ROLES);
    refusal.step()
}

async fn look(
    way: Requester<'_>,
    end: Instant,
    node: &str,
    after: &[String],
    unpulled: bool,
    restarts: &mut Restarts,
) -> Result<PodState, RequestError> {
    let session = way.session;
    let mut patience = way.patience().until(end);
    let all = async || on(session, node).await;
    let pods = session.persist(&mut patience, "list", PODS, all).await?;
    let new = pods.iter().find(|pod| {
        !after.contains(&pod.metadata.uid) && pod.metadata.deletion_timestamp.is_none()
    });
    let Some(pod) = new else {
        return absent(session, node, &pods).await;
    };
    let name = &pod.metadata.name;
    let Some(trouble) = pod.unready().map(|unready| unready.to_string()) else {
        return Ok(PodState::Ready);
    };
    if unpulled && pod.is_unpulled() {
        let why = format!("kube-proxy on node {node} does not start: pod {name}: {trouble}");
        return Ok(PodState::Lost(why));
    }
    // A new pod's container has only ended because of its own failure.
    let crashes = restarts.crash_loop(std::slice::from_ref(pod), Some(Time { seconds: 0 }));
    if let Some(mut found) = crashes {
        found.last_line = last_line(session, name, &found.container).await;
        let why = format!("kube-proxy on node {node} does not start: {found}");
        return Ok(PodState::Lost(why));
    }
    let ran = pod
        .status
        .container_statuses
        .iter()
        .find(|container_status| ran(container_status));
    let line = match ran {
        Some(container) => last_line(session, name, &container.name).await,
        None => None,
    };
    let line = line.map_or(String::new(), |line| format!("; its log ends: {line}"));
    Ok(PodState::Waits(format!("pod {name}: {trouble}{line}")))
}

fn ran(status: &kpx_node::cluster::ContainerStatus) -> bool {
    status.restart_count > 0 || status.state.terminated.is_some()
}

/// Returns kube-proxy's pods on `node`, without retries: the caller polls.
pub(super) async fn pods(way: Requester<'_>, node: &str) -> Result<Vec<Pod>, StepError> {
    let pods = on(way.session, node).await;
    pods.map_err(|trouble| refused(way.session, trouble))
}

/// Returns kube-proxy's pods on `node`.
async fn on(session: &Session, node: &str) -> Result<Vec<Pod>, RequestError> {
    let label = quote(&format!("{}={}", PROXY_LABEL.0, PROXY_LABEL.1));
    let field = quote(&format!("spec.nodeName={node}"));
    let query = format!("labelSelector={label}&fieldSelector={field}");
    let found = session.list(PODS, &query).await?;
    let pods = found.items.iter().map(|raw| parse(raw));
    pods.collect()
}

fn parse(raw: &RawValue) -> Result<Pod, RequestError> {
    serde_json::from_str(raw.get()).map_err(|e| RequestError::Answer(format!("a pod: {e}")))
}

/// Returns the reason why there is no new pod.
async fn absent(session: &Session, node: &str, old: &[Pod]) -> Result<PodState, RequestError> {
    let path = format!("/api/v1/nodes/{}", quote(node));
    let object = session.object(&path).await;
    match object {
        Ok(None) => {
            let why = format!("node {node} no longer exists, so kube-proxy cannot start on it");
            return Ok(PodState::Lost(why));
        }
        Ok(Some(raw)) => {
            let node: kpx_node::cluster::Node =
                serde_json::from_str(raw.get()).map_err(|e| RequestError::Answer(e.to_string()))?;
            let conditions = &node.status.conditions;
            if let Some(ready) = conditions
                .iter()
                .find(|c| c.kind == "Ready" && c.status != "True")
            {
                let why = format!("the node is not ready: {}", ready.message);
                return Ok(PodState::Waits(why));
            }
        }
        // A denied request gives no reason.
        Err(RequestError::Status(403, _)) => {}
        Err(trouble) => return Err(trouble),
    }
    Ok(PodState::Waits(match old.first() {
        Some(pod) => format!("its old pod {} still exists", pod.metadata.name),
        None => "its DaemonSet has not created a pod".to_owned(),
    }))
}

/// Returns the last log line of `container` in pod `name` before its last restart or, without a restart, the last one
/// at all.
pub(super) async fn last_line(session: &Session, name: &str, container: &str) -> Option<String> {
    for previous in ["true", "false"] {
        let path = format!(
            "{PODS}/{}/log?container={}&tailLines={LAST_LINES}&previous={previous}",
            quote(name),
            quote(container)
        );
        // Without the log, the reason is still reported.
        if let Ok(text) = session.get(&path).await
            && let Some(line) = pod::last_line(&text)
            // The kubelet's own words, where the container is gone.
            && !line.starts_with("unable to retrieve container logs")
        {
            return Some(line);
        }
    }
    None
}
