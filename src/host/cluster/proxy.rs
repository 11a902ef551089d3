//! kube-proxy's pod on one node, as the API server tells of it.

use std::time::Duration;

use serde_json::value::RawValue;
use tokio::time::{Instant, sleep};

use super::patience::Way;
use super::session::{Session, quote};
use super::{Refusal, Trouble};
use crate::action::PROXY_LABEL;
use crate::apply::StepError;
use crate::cluster::Pod;
use crate::cluster::pod::{self, Restarts};
use crate::evidence::Time;

/// How long between the first two looks; it doubles, up to the longest.
const FIRST: Duration = Duration::from_millis(10);
const LONGEST: Duration = Duration::from_secs(1);

/// How many lines of a log are read to find its last one that says something.
const LAST_LINES: u32 = 5;

const PODS: &str = "/api/v1/namespaces/kube-system/pods";

/// Waits until the pod of kube-proxy on `node` that is none of `after` is ready.
pub(super) async fn wait(
    way: Way<'_>,
    node: &str,
    after: &[String],
    limit: Duration,
) -> Result<(), StepError> {
    let (session, end) = (way.session, Instant::now() + limit);
    let mut pause = FIRST;
    let mut restarts = Restarts::default();
    loop {
        let seen = match look(way, end, node, after, &mut restarts).await {
            Ok(State::Ready) => return Ok(()),
            Ok(State::Lost(why)) => return Err(StepError::Refused(why)),
            Ok(State::Waits(why)) => why,
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

/// What becomes of a pod.
enum State {
    Ready,
    /// Not yet, and why.
    Waits(String),
    /// It will not be, and why.
    Lost(String),
}

fn refused(session: &Session, trouble: Trouble) -> StepError {
    let what = "pods of kube-proxy in namespace kube-system";
    let refusal: Refusal = trouble.refusal(session, "list", what, super::change::ROLES);
    refusal.step()
}

async fn look(
    way: Way<'_>,
    end: Instant,
    node: &str,
    after: &[String],
    restarts: &mut Restarts,
) -> Result<State, Trouble> {
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
    let Some(trouble) = unready(pod) else {
        return Ok(State::Ready);
    };
    // A pod that was not there before has ended only by itself.
    let crashes = restarts.crash_loop(std::slice::from_ref(pod), Some(Time { seconds: 0 }));
    if let Some(mut found) = crashes {
        found.last_line = last_line(session, name, &found.container).await;
        let why = format!("kube-proxy on node {node} does not start: {found}");
        return Ok(State::Lost(why));
    }
    let ran = pod.status.container_statuses.iter().find(|of| ran(of));
    let line = match ran {
        Some(container) => last_line(session, name, &container.name).await,
        None => None,
    };
    let line = line.map_or(String::new(), |line| format!("; its log ends: {line}"));
    Ok(State::Waits(format!("pod {name}: {trouble}{line}")))
}

fn ran(status: &crate::cluster::ContainerStatus) -> bool {
    status.restart_count > 0 || status.state.terminated.is_some()
}

/// Returns kube-proxy's pods on `node`, as far as the API server answers now: whoever asks looks again soon.
pub(super) async fn pods(way: Way<'_>, node: &str) -> Result<Vec<Pod>, StepError> {
    let pods = on(way.session, node).await;
    pods.map_err(|trouble| refused(way.session, trouble))
}

/// Returns kube-proxy's pods on `node`.
async fn on(session: &Session, node: &str) -> Result<Vec<Pod>, Trouble> {
    let label = quote(&format!("{}={}", PROXY_LABEL.0, PROXY_LABEL.1));
    let field = quote(&format!("spec.nodeName={node}"));
    let query = format!("labelSelector={label}&fieldSelector={field}");
    let found = session.list(PODS, &query).await?;
    let pods = found.items.iter().map(|raw| parse(raw));
    pods.collect()
}

fn parse(raw: &RawValue) -> Result<Pod, Trouble> {
    serde_json::from_str(raw.get()).map_err(|e| Trouble::Answer(format!("a pod: {e}")))
}

/// Returns why there is no new pod.
async fn absent(session: &Session, node: &str, old: &[Pod]) -> Result<State, Trouble> {
    let path = format!("/api/v1/nodes/{}", quote(node));
    let object = session.object(&path).await;
    match object {
        Ok(None) => {
            let why = format!("there is no node {node} any more, so no kube-proxy comes up on it");
            return Ok(State::Lost(why));
        }
        Ok(Some(raw)) => {
            let node: crate::cluster::Node =
                serde_json::from_str(raw.get()).map_err(|e| Trouble::Answer(e.to_string()))?;
            let conditions = &node.status.conditions;
            if let Some(ready) = conditions
                .iter()
                .find(|c| c.kind == "Ready" && c.status != "True")
            {
                let why = format!("the node is not ready: {}", ready.message);
                return Ok(State::Waits(why));
            }
        }
        // What may not be seen says nothing.
        Err(Trouble::Status(403, _)) => {}
        Err(trouble) => return Err(trouble),
    }
    Ok(State::Waits(match old.first() {
        Some(pod) => format!("its old pod {} is still there", pod.metadata.name),
        None => "no pod was made for it".to_owned(),
    }))
}

/// Returns what keeps `pod` from being ready.
fn unready(pod: &Pod) -> Option<String> {
    let status = &pod.status;
    for container in &status.container_statuses {
        let name = &container.name;
        let times = match container.restart_count {
            0 => String::new(),
            count => format!(" after {count} restarts"),
        };
        if let Some(waiting) = &container.state.waiting {
            let reason = waiting.reason.as_deref().unwrap_or("no reason given");
            let message = waiting.message.as_deref().unwrap_or_default();
            let colon = if message.is_empty() { "" } else { ": " };
            return Some(format!(
                "container {name} waits{times} ({reason}{colon}{message})"
            ));
        }
        if let Some(ended) = &container.state.terminated {
            return Some(format!(
                "container {name} ended with exit status {}{times}",
                ended.exit_code
            ));
        }
    }
    let ready = status.conditions.iter().find(|c| c.kind == "Ready");
    match ready {
        Some(ready) if ready.status == "True" && !status.container_statuses.is_empty() => None,
        Some(ready) if !ready.message.is_empty() => Some(ready.message.clone()),
        _ => Some(format!("its phase is {}", status.phase)),
    }
}

/// Returns the last line that `container` of the pod `name` logged before its last restart, or, without one, at all.
pub(super) async fn last_line(session: &Session, name: &str, container: &str) -> Option<String> {
    for previous in ["true", "false"] {
        let path = format!(
            "{PODS}/{}/log?container={}&tailLines={LAST_LINES}&previous={previous}",
            quote(name),
            quote(container)
        );
        // Without it the reason is still told.
        if let Ok(text) = session.get(&path).await
            && let Some(line) = pod::last_line(&text)
        {
            return Some(line);
        }
    }
    None
}
