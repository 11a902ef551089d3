//! The tasks on one node: restarts of its kube-proxy, and commands of kpx in pods.

use std::time::Duration;

use super::{Cluster, Engine, Event, Pace, TICK, TaskError};
use crate::action::{KubeCommand, Object, Only, PROXY_LABEL, Resource};
use crate::apply::StepError;
use crate::cluster::Pod;
use crate::evidence::{Item, Time};
use crate::migrate::fleet::pod::{self, Job, Phase};
use crate::migrate::fleet::staged;
use crate::migrate::fleet::state::{Fleet, NodeState};
use crate::migrate::fleet::task::Task;
use crate::migrate::log;
use crate::node::NodeSnapshot;

/// How often a lost pod is created again.
const LOST: u32 = 3;

/// How long a pod may exceed its own deadline, in seconds.
const GRACE: u64 = 60;

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
        };
        Ok(self.apply(command).await?)
    }

    /// Sets the label of `node`; returns whether it changed.
    pub(super) async fn relabel(
        &mut self,
        node: &str,
        to: Option<&str>,
    ) -> Result<bool, TaskError> {
        let object = self.there(&Object::node(node)).await?;
        let from = object["metadata"]["labels"][staged::LABEL].as_str();
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
        let text = self.cluster.log(&pod.metadata.name).await?;
        match log::objection(&log::said(&text), &fleet.plan.there) {
            Some(why) => Err(TaskError::Failed(format!(
                "pod {}: {why}",
                pod.metadata.name
            ))),
            None => Ok(()),
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
            if self.cluster.now().since(began).as_secs() >= fleet.plan.soak {
                return Ok(());
            }
            if self.stop.get() {
                return Err(TaskError::StopRequested);
            }
            self.cluster.pause(TICK).await;
        }
    }

    pub(super) async fn revert(&mut self, fleet: &mut Fleet, node: &str) -> Result<(), TaskError> {
        let moved = fleet.began(&Task::Move(node.to_owned()));
        if fleet.plan.image.is_none() {
            // kube-proxy deletes the new mode's rules when it starts, so the operator builds the old mode's first.
            if moved {
                self.on_node(fleet, node, Job::RollbackUntilRestart).await?;
                self.restart(fleet, node, &Task::Revert(node.to_owned()))
                    .await?;
            }
        } else {
            // A command that still runs there must not go on.
            self.remove(fleet, node, Job::Prepare).await?;
            self.remove(fleet, node, Job::Finish).await?;
        }
        // The rollback goes on without a guard.
        match self.guarded(fleet, node, GUARD.min(fleet.plan.ready)).await {
            Err(TaskError::Failed(why)) => (self.on_event)(Event::Reports(node, &why)),
            done => done?,
        }
        let by_hand = fleet.plan.image.is_none() && moved;
        let last = if by_hand { Job::Finish } else { Job::Rollback };
        self.on_node(fleet, node, last).await?;
        self.unguard(fleet, node).await?;
        fleet.nodes.insert(node.to_owned(), NodeState::RolledBack);
        Ok(())
    }

    /// Creates the guard's pod on the node, or creates it again if it has ended. Returns the pod; `None` if there is no
    /// bridge to guard.
    pub(super) async fn guard(
        &mut self,
        fleet: &Fleet,
        node: &str,
    ) -> Result<Option<Object>, TaskError> {
        let Some(image) = fleet.plan.image.clone().filter(|_| fleet.plan.bridges()) else {
            return Ok(None);
        };
        let object = pod::object(&fleet.plan, node, Job::Guard);
        if let Some(old) = self.cluster.object(&object).await?
            && (matches!(pod::phase(&old), Phase::Over(..)) || pod::is_ending(&old))
        {
            self.remove(fleet, node, Job::Guard).await?;
        }
        self.apply(pod::create(&fleet.plan, &image, node, Job::Guard))
            .await?;
        Ok(Some(object))
    }

    /// Creates the guard's pod on the node, and waits at most `limit` seconds until it runs.
    pub(super) async fn guarded(
        &mut self,
        fleet: &Fleet,
        node: &str,
        limit: u64,
    ) -> Result<(), TaskError> {
        let Some(object) = self.guard(fleet, node).await? else {
            return Ok(());
        };
        let (began, mut pace) = (self.cluster.now(), Pace::new());
        loop {
            let Some(pod) = self.cluster.object(&object).await? else {
                return Err(TaskError::Failed(format!("{object} is gone")));
            };
            let Phase::Waits(why) = pod::phase(&pod) else {
                return Ok(());
            };
            if self.cluster.now().since(began).as_secs() >= limit {
                let why = format!("{object} does not start: {why}");
                return Err(TaskError::Failed(why));
            }
            self.cluster.pause(pace.next()).await;
        }
    }

    /// Creates the guard's pod again if it was evicted or deleted while another job runs on the node.
    async fn restore_guard(
        &mut self,
        fleet: &Fleet,
        node: &str,
        job: Job,
    ) -> Result<(), TaskError> {
        let guarded = fleet.plan.image.is_some() && fleet.plan.bridges();
        if !guarded || matches!(job, Job::Preview | Job::Guard) {
            return Ok(());
        }
        let object = pod::object(&fleet.plan, node, Job::Guard);
        let why = match self.cluster.object(&object).await? {
            None => "it was deleted".to_owned(),
            Some(pod) if pod::is_ending(&pod) => return Ok(()),
            Some(pod) => match pod::lost(&pod, "") {
                Some(why) => why,
                None => return Ok(()),
            },
        };
        let words = format!("{object} was lost ({why}); creating it again");
        (self.on_event)(Event::Reports(node, &words));
        match self.guard(fleet, node).await {
            // The job goes on without a guard.
            Err(TaskError::Failed(why)) => (self.on_event)(Event::Reports(node, &why)),
            created => drop(created?),
        }
        Ok(())
    }

    pub(super) async fn unguard(&mut self, fleet: &Fleet, node: &str) -> Result<(), TaskError> {
        if fleet.plan.image.is_some() && fleet.plan.bridges() {
            self.remove(fleet, node, Job::Guard).await?;
        }
        Ok(())
    }

    /// Runs `job` on `node`: in a pod, or by an operator's hand.
    pub(super) async fn on_node(
        &mut self,
        fleet: &mut Fleet,
        node: &str,
        job: Job,
    ) -> Result<pod::Ended, TaskError> {
        let Some(image) = fleet.plan.image.clone() else {
            let command = pod::command_line(&fleet.plan, job);
            let done = self.cluster.by_hand(node, &command).await;
            return done.map(|()| pod::Ended::Done).map_err(TaskError::Failed);
        };
        let object = pod::object(&fleet.plan, node, job);
        // A pod that failed before this run is replaced, and one that is being deleted does not count.
        if let Some(old) = self.cluster.object(&object).await?
            && (pod::is_ending(&old)
                || matches!(pod::phase(&old), Phase::Over(code, _) if code != Some(0)))
        {
            self.remove(fleet, node, job).await?;
        }
        self.apply(pod::create(&fleet.plan, &image, node, job))
            .await?;
        let began = self.cluster.now();
        let over = self.follow(fleet, node, job, began).await;
        self.remove(fleet, node, job).await?;
        match pod::ended(&over?) {
            pod::Ended::Failed(why) => Err(TaskError::Failed(why)),
            ended => Ok(ended),
        }
    }

    /// Follows the pod for `job` to its end. A lost pod is created again and resumes from the node's journal.
    pub(super) async fn follow(
        &mut self,
        fleet: &mut Fleet,
        node: &str,
        job: Job,
        mut began: Time,
    ) -> Result<pod::Finished, TaskError> {
        let mut lost = 0;
        loop {
            let why = match self.over(fleet, node, job, began).await? {
                Followed::Finished(finished) => return Ok(finished),
                Followed::Lost(why) => why,
            };
            let object = pod::object(&fleet.plan, node, job);
            if lost == LOST {
                let why = format!(
                    "{object} was lost {} times; the last reason: {why}",
                    lost + 1
                );
                return Err(TaskError::Failed(why));
            }
            lost += 1;
            let words =
                format!("{object} was lost ({why}); a new pod resumes from the node's journal");
            (self.on_event)(Event::Reports(node, &words));
            self.remove(fleet, node, job).await?;
            if let Some(image) = fleet.plan.image.clone() {
                self.apply(pod::create(&fleet.plan, &image, node, job))
                    .await?;
            }
            began = self.cluster.now();
        }
    }

    /// Deletes the pod for `job` and waits until it is gone.
    pub(super) async fn remove(
        &mut self,
        fleet: &Fleet,
        node: &str,
        job: Job,
    ) -> Result<(), TaskError> {
        self.apply(pod::delete(&fleet.plan, node, job)).await?;
        let object = pod::object(&fleet.plan, node, job);
        let (began, mut pace) = (self.cluster.now(), Pace::new());
        while self.cluster.object(&object).await?.is_some() {
            if self.cluster.now().since(began).as_secs() >= GRACE {
                let why =
                    format!("cannot delete {object}: the kubelet of node {node} does not end it");
                return Err(TaskError::Failed(why));
            }
            self.cluster.pause(pace.next()).await;
        }
        Ok(())
    }

    /// Follows one pod for `job`, created at `began`, until it ends or is lost.
    async fn over(
        &mut self,
        fleet: &mut Fleet,
        node: &str,
        job: Job,
        began: Time,
    ) -> Result<Followed, TaskError> {
        let object = pod::object(&fleet.plan, node, job);
        let restarts = job == Job::Rollback && fleet.began(&Task::Move(node.to_owned()));
        let (mut read, mut restarted, mut pace) = (0, !restarts, Pace::new());
        let mut uid = None;
        loop {
            let Some(pod) = self.cluster.object(&object).await? else {
                return Ok(Followed::Lost("it was deleted".to_owned()));
            };
            // A pod that replaced it has a log of its own.
            if *uid.get_or_insert_with(|| pod::uid(&pod)) != pod::uid(&pod) {
                return Ok(Followed::Lost("it was replaced".to_owned()));
            }
            let phase = pod::phase(&pod);
            let text = match phase {
                Phase::Waits(_) => Ok(String::new()),
                Phase::Runs | Phase::Over(..) => self.cluster.log(&object.name).await,
            };
            if let Some(why) = pod::lost(&pod, text.as_deref().unwrap_or_default()) {
                return Ok(Followed::Lost(why));
            }
            let text = match (text, &phase) {
                (Ok(text), _) => text,
                (Err(error @ StepError::Denied(_)), _) => return Err(error.into()),
                // A log may be missing at first; at the end it is needed.
                (Err(_), Phase::Waits(_) | Phase::Runs) => String::new(),
                (Err(error), Phase::Over(..)) => {
                    if self.cluster.object(&object).await?.is_none() {
                        continue;
                    }
                    return Err(error.into());
                }
            };
            for line in text.lines().skip(read) {
                match pod::progress(line) {
                    Some(pod::Progress::Reports(words)) => {
                        (self.on_event)(Event::Reports(node, &words));
                    }
                    Some(pod::Progress::Waits(words)) => {
                        (self.on_event)(Event::Waits(node, &words));
                    }
                    None => {}
                }
            }
            read = read.max(text.lines().count());
            let over = matches!(phase, Phase::Over(..));
            if !over {
                self.restore_guard(fleet, node, job).await?;
            }
            if !restarted && (over || pod::awaits_restart(&text)) {
                restarted = true;
                self.restart(fleet, node, &Task::Revert(node.to_owned()))
                    .await?;
            }
            let waited = self.cluster.now().since(began).as_secs();
            match phase {
                Phase::Over(code, reason) => {
                    return Ok(Followed::Finished(pod::Finished {
                        code,
                        reason,
                        log: text,
                    }));
                }
                Phase::Waits(why) if waited >= fleet.plan.ready || pod::is_hopeless(&pod) => {
                    let node = self.unready(node).await.unwrap_or_default();
                    let why = format!("kpx's pod does not start: {why}{node}");
                    return Err(TaskError::Failed(why));
                }
                _ if waited >= fleet.plan.limit + GRACE => {
                    let node = self.unready(node).await.unwrap_or_default();
                    let why = format!("{object} timed out after {waited} s{node}");
                    return Err(TaskError::Failed(why));
                }
                _ => self.cluster.pause(pace.next()).await,
            }
        }
    }

    /// Returns why the Node is not ready, for the end of an error.
    async fn unready(&mut self, node: &str) -> Option<String> {
        let Ok(found) = self.cluster.object(&Object::node(node)).await else {
            return None;
        };
        let Some(found) = found else {
            return Some(format!("; node {node} was deleted"));
        };
        let conditions = found["status"]["conditions"].as_array()?;
        let ready = conditions.iter().find(|of| of["type"] == "Ready")?;
        let message = ready["message"].as_str().unwrap_or_default();
        (ready["status"] != "True").then(|| format!("; node {node} is not ready: {message}"))
    }
}

/// How a pod that was followed ended.
enum Followed {
    /// It finished.
    Finished(pod::Finished),
    /// It was deleted or ended from outside, and why: its job is not done.
    Lost(String),
}

/// Returns those of kube-proxy's `pods` that are neither being deleted nor replaced by the last restart.
fn new<'p>(fleet: &Fleet, pods: &'p [Pod]) -> impl Iterator<Item = &'p Pod> {
    let here = pods.iter().filter(|pod| {
        let metadata = &pod.metadata;
        metadata.deletion_timestamp.is_none() && !fleet.old.contains(&metadata.uid)
    });
    let here: Vec<&Pod> = here.collect();
    here.into_iter()
}

/// Returns why kube-proxy's pods `now` are not those of `first`, or not healthy; `None` if they are.
fn unwell(first: &[Pod], now: &[Pod]) -> Option<String> {
    let restarts = |pod: &Pod| -> u32 {
        let containers = pod.status.container_statuses.iter();
        containers.map(|container| container.restart_count).sum()
    };
    for pod in first {
        let name = &pod.metadata.name;
        let Some(same) = now.iter().find(|of| of.metadata.uid == pod.metadata.uid) else {
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
