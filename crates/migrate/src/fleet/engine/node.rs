//! The tasks on one node: restarts, checks and the rollback of its kube-proxy.

use std::pin::pin;
use std::time::Duration;

use futures_util::future::{Either, select};

use super::{Cluster, Engine, Event, REBOOT, TICK, TaskError};
use crate::fleet::pod::Job;
use crate::fleet::staged;
use crate::fleet::state::{Fleet, NodeState};
use crate::fleet::task::Task;
use crate::log;
use kpx_node::action::{Action, COPY_LABEL, KubeCommand, Object, Only, PROXY_LABEL, Resource};
use kpx_node::apply::{Apply as _, StepError};
use kpx_node::cluster::Pod;
use kpx_node::cluster::edit::Fields;
use kpx_node::evidence::Item;
use kpx_node::node::NodeSnapshot;

/// How often the configuration is read while a node waits for kube-proxy, in seconds.
pub(super) const LOOK: u64 = 2;

/// How long a rollback waits for the guard's pod, in seconds.
const GUARD: u64 = 10;

impl<C: Cluster> Engine<'_, C> {
    /// Returns kube-proxy's pods on `node`.
    pub(super) async fn pods(&mut self, node: &str) -> Result<Vec<Pod>, TaskError> {
        let evidence = self.read(&[Item::Pods], node).await;
        let snapshot = NodeSnapshot::new(&evidence);
        let here = |pod: &&Pod| {
            let label = pod.metadata.labels.get(PROXY_LABEL.0);
            pod.spec.node_name.as_deref() == Some(node)
                && label.is_some_and(|label| label == PROXY_LABEL.1)
        };
        Ok(snapshot.pods()?.iter().filter(here).cloned().collect())
    }

    /// Replaces `node`'s kube-proxy by one with the configuration of `task`.
    pub(super) async fn restart(
        &mut self,
        fleet: &mut Fleet,
        node: &str,
        task: &Task,
    ) -> Result<(), TaskError> {
        let pods = self.pods(node).await?;
        if fleet.before.is_some() && self.is_outdated(fleet, task, &pods).await {
            fleet.before = None;
        }
        if fleet.before.is_none() {
            fleet.before = Some(pods.iter().map(|pod| pod.metadata.uid.clone()).collect());
            self.save(fleet).await?;
        }
        let before = fleet.before.clone().unwrap_or_default();
        fleet.old.clone_from(&before);
        let label = match task {
            Task::Move(_) => fleet.copies.as_deref(),
            _ => None,
        };
        // If the label changes, the DaemonSets replace the pod.
        let relabelled = fleet.copies.is_some() && self.relabel(node, label).await?;
        if !relabelled {
            for pod in pods.iter().filter(|pod| before.contains(&pod.metadata.uid)) {
                let command = KubeCommand::Delete {
                    object: Object::of_system(Resource::Pod, &pod.metadata.name),
                    only: Only::Uid(pod.metadata.uid.clone()),
                };
                self.apply(command).await?;
            }
        }
        let command = KubeCommand::AwaitProxy {
            node: node.to_owned(),
            after: before,
            limit: Duration::from_secs(fleet.plan.ready),
            unpulled: pods.iter().any(Pod::is_unpulled),
        };
        let action = Action::Kube { command };
        let (began, mut awaited) = (self.cluster.now(), false);
        loop {
            let Err(error) = self.await_proxy(fleet, node, task, &action).await? else {
                return Ok(());
            };
            let waited = self.cluster.now().since(began).as_secs();
            if !self.is_awaited(node, waited, &mut awaited).await {
                return Err(error.into());
            }
            self.cluster.pause(TICK).await;
        }
    }

    /// Returns whether kube-proxy in `pods`, which an earlier run restarted for `task`, has to be restarted again: it started with
    /// another configuration, which was changed afterwards, or does not start without its image.
    async fn is_outdated(&mut self, fleet: &Fleet, task: &Task, pods: &[Pod]) -> bool {
        let before = fleet.before.as_deref().unwrap_or_default();
        let (set, mut outdated) = (fields(fleet, task), false);
        for pod in pods {
            let metadata = &pod.metadata;
            if metadata.deletion_timestamp.is_some() || before.contains(&metadata.uid) {
                continue;
            }
            // A new pod is pulled for at once, not after the kubelet's pause.
            if pod.is_unpulled() {
                return true;
            }
            let text = self.cluster.log(&metadata.name).await;
            outdated |= text.is_ok_and(|text| log::objection(&log::said(&text), set).is_some());
        }
        outdated
    }

    /// Waits for `node`'s kube-proxy with `action`, and keeps the guard of the node's bridge meanwhile.
    async fn await_proxy(
        &mut self,
        fleet: &Fleet,
        node: &str,
        task: &Task,
        action: &Action,
    ) -> Result<Result<(), StepError>, TaskError> {
        let mut beside = self.cluster.beside();
        let mut ready = pin!(beside.apply(action));
        let began = self.cluster.now();
        let mut looked = began;
        loop {
            ready = match select(ready, pin!(self.cluster.pause(TICK))).await {
                Either::Left((done, _)) => return Ok(done),
                Either::Right(((), ready)) => ready,
            };
            if self.stop.get() {
                return Err(TaskError::StopRequested);
            }
            let waited = self.cluster.now().since(began).as_secs();
            self.waits(node, "its new kube-proxy", waited, fleet.plan.ready);
            if self.cluster.now().since(looked).as_secs() >= LOOK {
                looked = self.cluster.now();
                self.refuse_set_back(fleet).await?;
            }
            // A node that returns to the first DaemonSet has no bridge any more.
            if !matches!(task, Task::Return(_)) {
                self.restore_guard(fleet, node).await?;
            }
        }
    }

    /// Sets the label of `node`; returns whether it changed.
    pub(super) async fn relabel(
        &mut self,
        node: &str,
        to: Option<&str>,
    ) -> Result<bool, TaskError> {
        let object = self.there(&Object::node(node)).await?;
        let from = object["metadata"]["labels"][COPY_LABEL].as_str();
        if from == to {
            return Ok(false);
        }
        self.apply(staged::label(node, from, to)).await?;
        Ok(true)
    }

    /// Checks the mode in the log of the node's kube-proxy.
    pub(super) async fn check(&mut self, fleet: &Fleet, node: &str) -> Result<(), TaskError> {
        let pods = self.pods(node).await?;
        let Some(pod) = new(fleet, &pods).next() else {
            return Err(TaskError::Failed("its kube-proxy pod is gone".to_owned()));
        };
        let text = self.log_of(fleet, node, &pod.metadata.name).await?;
        match log::objection(&log::said(&text), &fleet.plan.there) {
            Some(why) => self
                .refuse_set_back(fleet)
                .await
                .and(Err(TaskError::Failed(format!(
                    "pod {}: {why}",
                    pod.metadata.name
                )))),
            None => Ok(()),
        }
    }

    /// Returns the log of `pod` on `node`; the kubelet of a node that has just started has none yet.
    async fn log_of(&mut self, fleet: &Fleet, node: &str, pod: &str) -> Result<String, TaskError> {
        let (began, mut awaited) = (self.cluster.now(), false);
        loop {
            let error = match self.cluster.log(pod).await {
                Ok(text) => return Ok(text),
                Err(error @ StepError::Denied(_)) => return Err(error.into()),
                Err(error) => error,
            };
            let waited = self.cluster.now().since(began).as_secs();
            let waits =
                waited < fleet.plan.ready || self.is_awaited(node, waited, &mut awaited).await;
            if self.stop.get() || !waits {
                return Err(error.into());
            }
            let limit = if awaited { REBOOT } else { fleet.plan.ready };
            self.waits(
                node,
                &format!("the log of pod {pod} ({error})"),
                waited,
                limit,
            );
            self.cluster.pause(TICK).await;
        }
    }

    /// Watches the node's kube-proxy for the soak time: its pod must stay, and stay ready.
    pub(super) async fn soak(&mut self, fleet: &Fleet, node: &str) -> Result<(), TaskError> {
        let began = self.cluster.now();
        let first = self.pods(node).await?;
        let first: Vec<Pod> = new(fleet, &first).cloned().collect();
        loop {
            let now = self.pods(node).await?;
            if let Some(why) = unwell(&first, &now) {
                return Err(TaskError::Failed(why));
            }
            let waited = self.cluster.now().since(began).as_secs();
            if waited >= fleet.plan.soak {
                return Ok(());
            }
            let what = "the end of the time to watch it";
            self.waits(node, what, waited, fleet.plan.soak);
            if self.stop.get() {
                return Err(TaskError::StopRequested);
            }
            self.cluster.pause(TICK).await;
        }
    }

    pub(super) async fn revert(&mut self, fleet: &mut Fleet, node: &str) -> Result<(), TaskError> {
        if !fleet.has_touched(node) {
            self.unguard(fleet, node).await?;
            fleet.nodes.insert(node.to_owned(), NodeState::RolledBack);
            return Ok(());
        }
        let moved = fleet.began(&Task::Move(node.to_owned()));
        if fleet.plan.image.is_none() {
            // kube-proxy deletes the new mode's rules when it starts, so the operator builds the old mode's first.
            if moved {
                self.on_node(fleet, node, Job::RollbackUntilRestart).await?;
                self.restart(fleet, node, &Task::Revert(node.to_owned()))
                    .await?;
            }
        } else {
            // A command that still runs there must end first.
            self.remove(fleet, node, Job::Prepare).await?;
            self.remove(fleet, node, Job::Finish).await?;
        }
        // The rollback continues without a guard.
        match self.guarded(fleet, node, GUARD.min(fleet.plan.ready)).await {
            Err(error @ (TaskError::Failed(_) | TaskError::Step(_))) => {
                (self.on_event)(Event::Reports(node, &error.to_string()));
            }
            done => done?,
        }
        let by_hand = fleet.plan.image.is_none() && moved;
        let last = if by_hand { Job::Finish } else { Job::Rollback };
        self.on_node(fleet, node, last).await?;
        self.unguard(fleet, node).await?;
        fleet.nodes.insert(node.to_owned(), NodeState::RolledBack);
        Ok(())
    }
}

/// Returns the fields of the configuration with which kube-proxy starts in `task`.
const fn fields<'f>(fleet: &'f Fleet, task: &Task) -> &'f Fields {
    match task {
        Task::Revert(_) => &fleet.plan.back,
        _ => &fleet.plan.there,
    }
}

/// Returns kube-proxy's `pods` that are neither being deleted nor replaced by the last restart.
fn new<'p>(fleet: &Fleet, pods: &'p [Pod]) -> impl Iterator<Item = &'p Pod> {
    let here = pods.iter().filter(|pod| {
        let metadata = &pod.metadata;
        metadata.deletion_timestamp.is_none() && !fleet.old.contains(&metadata.uid)
    });
    let here: Vec<&Pod> = here.collect();
    here.into_iter()
}

/// Returns why kube-proxy's pods `now` differ from `first`, or are not healthy; `None` if they are the same and
/// healthy.
fn unwell(first: &[Pod], now: &[Pod]) -> Option<String> {
    let restarts = |pod: &Pod| -> u32 {
        let containers = pod.status.container_statuses.iter();
        containers.map(|container| container.restart_count).sum()
    };
    for pod in first {
        let name = &pod.metadata.name;
        let Some(same) = now.iter().find(|now| now.metadata.uid == pod.metadata.uid) else {
            return Some(format!("pod {name} is gone"));
        };
        if restarts(same) > restarts(pod) {
            return Some(format!("pod {name} was restarted"));
        }
        let ready = same.status.conditions.iter().find(|c| c.kind == "Ready");
        if ready.is_none_or(|ready| ready.status != "True") {
            return Some(format!("pod {name} is no longer ready"));
        }
    }
    first
        .is_empty()
        .then(|| "it has no kube-proxy pod".to_owned())
}
