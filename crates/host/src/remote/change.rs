//! Changes a node through a privileged pod on it.
//!
//! The pod waits for a plan and then carries it out, whether the kpx that sent the plan still runs or not: a change that
//! stops part-way is worse than one without a reader. Without a plan, the pod ends with kpx.

use std::time::Duration;

use serde_json::Value;
use tokio::time::{Instant, sleep};

use super::job::{Purpose, STARTS};
use super::{RemoteNode, Unreached};
use kpx_node::action::{READER, Resource};
use kpx_node::apply::{Line, SentPlan, StepError, Stopped};

/// Pause between two reads of the pod's log.
const PAUSE: Duration = Duration::from_millis(500);

/// Time after its end that a Job of a change exists, in seconds, for a reader of its log.
pub(super) const KEPT: u32 = 600;

/// A pod on a node that waits for a plan.
#[derive(Debug)]
pub struct NodeChange(RemoteNode);

impl RemoteNode {
    /// Starts a privileged pod on the node, which waits for a plan.
    pub async fn change(&self) -> Result<NodeChange, Unreached> {
        let pod = self.pod.remote.start_pod(&self.name, Purpose::Change);
        pod.await.map(NodeChange)
    }
}

impl NodeChange {
    /// Carries `plan` out, and reports each line of the pod to `on_line`. Returns why the plan stopped, if it did.
    ///
    /// Fails if the outcome is unknown.
    pub async fn carry_out(
        self,
        plan: &SentPlan,
        mut on_line: impl FnMut(&Line),
    ) -> Result<Result<(), Stopped>, Unreached> {
        let Self(mut node) = self;
        let name = node.name.clone();
        let failed = |why: &str| Unreached::Failed(name.clone(), why.to_owned());
        let text = serde_json::to_vec(plan).map_err(|e| failed(&e.to_string()))?;
        let words = [node.program, "pod", "--keep-plan"].map(str::to_owned);
        let mut arrived = node.pod.run(&words, Some(&text)).await;
        if let Ok(kept) = &arrived
            && kept.code.is_some_and(|code| code != 0)
        {
            arrived = Err(failed(kept.stderr.trim()));
        }
        // Without an exit status, the plan may be on its way. A pod that has ended by then has a log.
        let end = Instant::now() + node.pod.remote.api.options.timeout;
        while matches!(&arrived, Ok(kept) if kept.code.is_none())
            && !node.pod.is_started().await.unwrap_or(true)
        {
            if Instant::now() > end {
                arrived = Err(failed("the plan did not arrive"));
            }
            sleep(PAUSE).await;
        }
        // The main process reads its standard input to the end.
        node.held = None;
        let outcome = follow(&node, &mut on_line).await;
        // The outcome matters; the Job is deleted some time after its end in any case.
        node.close().await.ok();
        match (outcome, arrived) {
            // The pod had no plan. With a plan, it may have ended before the answer arrived.
            (Err(Unreached::Failed(_, words)), Err(why)) if words.is_empty() => Err(why),
            (outcome, _) => outcome,
        }
    }

    /// Deletes the pod, which has no plan.
    pub async fn close(&self) -> Result<(), StepError> {
        self.0.close().await
    }
}

/// Follows the log of the pod until its plan has ended.
async fn follow(
    node: &RemoteNode,
    on_line: &mut impl FnMut(&Line),
) -> Result<Result<(), Stopped>, Unreached> {
    let api = &node.pod.remote.api;
    let (cluster, options) = (&api.cluster, &api.options);
    let limit = options.timeout * STARTS;
    let mut answered = Instant::now();
    let (mut read, mut step) = (0, 0);
    loop {
        // The pod is read first: a log that is read after its end is complete.
        let pods = cluster
            .labelled(Resource::Pod, (READER, &node.job.name), options)
            .await;
        let log = cluster.log_of(&node.pod.name, options).await;
        if let Ok(log) = &log {
            answered = Instant::now();
            for line in log.lines().skip(read) {
                match serde_json::from_str(line) {
                    Ok(Line::Ended(None)) => return Ok(Ok(())),
                    Ok(Line::Ended(Some(stopped))) => return Ok(Err(stopped)),
                    Ok(line) => {
                        step += usize::from(matches!(line, Line::Begins(_)));
                        on_line(&line);
                    }
                    Err(_) => {}
                }
            }
            read = log.lines().count();
        }
        let over = pods
            .as_ref()
            .is_ok_and(|pods| pods.first().is_none_or(is_over));
        if let (true, Ok(log)) = (over, &log) {
            // Without the line of its end, the log has the error.
            let words = log.lines().filter(|line| !line.starts_with('{'));
            let words: Vec<&str> = words.collect();
            let name = node.name.clone();
            return Err(match step {
                0 => Unreached::Failed(name, words.join("; ")),
                step => Unreached::Killed(name, step),
            });
        }
        if answered.elapsed() > limit {
            let why = match (pods, log) {
                (Err(why), _) | (_, Err(why)) => why.to_string(),
                _ => "its log has no end".to_owned(),
            };
            return Err(Unreached::Outcome(node.name.clone(), why));
        }
        sleep(PAUSE).await;
    }
}

fn is_over(pod: &Value) -> bool {
    matches!(
        pod["status"]["phase"].as_str(),
        Some("Succeeded" | "Failed")
    )
}
