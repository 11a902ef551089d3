//! The tasks on one node: its kube-proxy replaced, and what kpx does there itself.

use std::time::Duration;

use super::{Cluster, Engine, Event, Pace, TICK, Trouble};
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

/// How often a pod that is lost is made again.
const LOST: u32 = 3;

/// How much longer than it may take itself the end of a pod is waited for, in seconds.
const GRACE: u64 = 60;

/// How long the pod that keeps the bridge is waited for on the way back, in seconds.
const GUARD: u64 = 10;

impl<C: Cluster> Engine<'_, C> {
    /// Returns kube-proxy's pods on `node`.
    pub(super) async fn pods(&mut self, node: &str) -> Result<Vec<Pod>, Trouble> {
        let evidence = self.read(&[Item::Pods], node).await;
        let snapshot = NodeSnapshot::new(&evidence);
        let here = |pod: &&Pod| {
            let label = pod.metadata.labels.get(PROXY_LABEL.0);
            pod.spec.node_name.as_deref() == Some(node)
                && label.is_some_and(|label| label == PROXY_LABEL.1)
        };
        Ok(snapshot.pods()?.iter().filter(here).cloned().collect())
    }

    /// Puts another kube-proxy in the place of `node`'s, with the configuration that `task` is for.
    pub(super) async fn restart(
        &mut self,
        fleet: &mut Fleet,
        node: &str,
        task: &Task,
    ) -> Result<(), Trouble> {
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
        // Where the label changes, the DaemonSets do the rest.
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

    /// Sets the label of `node`, and returns whether that changed it.
    pub(super) async fn relabel(&mut self, node: &str, to: Option<&str>) -> Result<bool, Trouble> {
        let object = self.there(&Object::node(node)).await?;
        let from = object["metadata"]["labels"][staged::LABEL].as_str();
        if from == to {
            return Ok(false);
        }
        self.apply(staged::label(node, from, to)).await?;
        Ok(true)
    }

    /// Looks at what the node's kube-proxy says of its mode.
    pub(super) async fn check(&mut self, fleet: &Fleet, node: &str) -> Result<(), Trouble> {
        let pods = self.pods(node).await?;
        let Some(pod) = new(fleet, &pods).next() else {
            return Err(Trouble::Failed("its kube-proxy is gone".to_owned()));
        };
        let text = self.cluster.log(&pod.metadata.name).await?;
        match log::objection(&log::said(&text), &fleet.plan.there) {
            Some(why) => Err(Trouble::Failed(format!("pod {}: {why}", pod.metadata.name))),
            None => Ok(()),
        }
    }

    /// Watches the node's kube-proxy: it must stay the one it is, and ready.
    pub(super) async fn soak(&mut self, fleet: &Fleet, node: &str) -> Result<(), Trouble> {
        let began = self.cluster.now();
        let first = self.pods(node).await?;
        let first: Vec<Pod> = new(fleet, &first).cloned().collect();
        loop {
            let now = self.pods(node).await?;
            if let Some(why) = unwell(&first, &now) {
                return Err(Trouble::Failed(why));
            }
            if self.cluster.now().since(began).as_secs() >= fleet.plan.soak {
                return Ok(());
            }
            if self.stop.get() {
                return Err(Trouble::Asked);
            }
            self.cluster.pause(TICK).await;
        }
    }

    pub(super) async fn revert(&mut self, fleet: &mut Fleet, node: &str) -> Result<(), Trouble> {
        let moved = fleet.began(&Task::Move(node.to_owned()));
        if fleet.plan.image.is_none() {
            // The node's new kube-proxy removes what serves: whoever is there builds the old mode beside it first.
            if moved {
                self.on_node(fleet, node, Job::RollbackUntilRestart).await?;
                self.restart(fleet, node, &Task::Revert(node.to_owned()))
                    .await?;
            }
        } else {
            // Whatever still goes there is not to go on.
            self.remove(fleet, node, Job::Prepare).await?;
            self.remove(fleet, node, Job::Finish).await?;
        }
        // A node whose guard does not start is not to stay where it is for that.
        match self.guarded(fleet, node, GUARD.min(fleet.plan.ready)).await {
            Err(Trouble::Failed(why)) => (self.tell)(Event::Says(node, &why)),
            done => done?,
        }
        let by_hand = fleet.plan.image.is_none() && moved;
        let last = if by_hand { Job::Finish } else { Job::Rollback };
        self.on_node(fleet, node, last).await?;
        self.unguard(fleet, node).await?;
        fleet.nodes.insert(node.to_owned(), NodeState::RolledBack);
        Ok(())
    }

    /// Has a pod of its own keep the node's bridge while nothing else of kpx runs there: one that is gone, or over, is made
    /// again. Returns its object, where there is one.
    pub(super) async fn guard(
        &mut self,
        fleet: &Fleet,
        node: &str,
    ) -> Result<Option<Object>, Trouble> {
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

    /// Has a pod of its own keep the node's bridge, and waits at most `limit` seconds until it runs.
    pub(super) async fn guarded(
        &mut self,
        fleet: &Fleet,
        node: &str,
        limit: u64,
    ) -> Result<(), Trouble> {
        let Some(object) = self.guard(fleet, node).await? else {
            return Ok(());
        };
        let (began, mut pace) = (self.cluster.now(), Pace::new());
        loop {
            let Some(pod) = self.cluster.object(&object).await? else {
                return Err(Trouble::Failed(format!("{object} is gone")));
            };
            let Phase::Waits(why) = pod::phase(&pod) else {
                return Ok(());
            };
            if self.cluster.now().since(began).as_secs() >= limit {
                let why = format!("{object} does not start: {why}");
                return Err(Trouble::Failed(why));
            }
            self.cluster.pause(pace.next()).await;
        }
    }

    pub(super) async fn unguard(&mut self, fleet: &Fleet, node: &str) -> Result<(), Trouble> {
        if fleet.plan.image.is_some() && fleet.plan.bridges() {
            self.remove(fleet, node, Job::Guard).await?;
        }
        Ok(())
    }

    /// Does `job` on `node`, or has it done.
    pub(super) async fn on_node(
        &mut self,
        fleet: &mut Fleet,
        node: &str,
        job: Job,
    ) -> Result<pod::Ended, Trouble> {
        let Some(image) = fleet.plan.image.clone() else {
            let command = pod::command(&fleet.plan, job);
            let done = self.cluster.by_hand(node, &command).await;
            return done.map(|()| pod::Ended::Well).map_err(Trouble::Failed);
        };
        let object = pod::object(&fleet.plan, node, job);
        // One that failed before this run is tried again, and one that is being deleted is not taken for a new one.
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
            pod::Ended::Badly(why) => Err(Trouble::Failed(why)),
            ended => Ok(ended),
        }
    }

    /// Follows the pod for `job` to its end. One that is lost on the way is made again, and goes on from the node's journal.
    pub(super) async fn follow(
        &mut self,
        fleet: &mut Fleet,
        node: &str,
        job: Job,
        mut began: Time,
    ) -> Result<pod::Over, Trouble> {
        let mut lost = 0;
        loop {
            let why = match self.over(fleet, node, job, began).await? {
                Followed::Over(over) => return Ok(over),
                Followed::Lost(why) => why,
            };
            let object = pod::object(&fleet.plan, node, job);
            if lost == LOST {
                let why = format!(
                    "{object} was lost {} times; the last reason: {why}",
                    lost + 1
                );
                return Err(Trouble::Failed(why));
            }
            lost += 1;
            let words =
                format!("{object} was lost ({why}); a new pod resumes from the node's journal");
            (self.tell)(Event::Says(node, &words));
            self.remove(fleet, node, job).await?;
            if let Some(image) = fleet.plan.image.clone() {
                self.apply(pod::create(&fleet.plan, &image, node, job))
                    .await?;
            }
            began = self.cluster.now();
        }
    }

    /// Deletes the pod for `job`, and waits until it is gone.
    pub(super) async fn remove(
        &mut self,
        fleet: &Fleet,
        node: &str,
        job: Job,
    ) -> Result<(), Trouble> {
        self.apply(pod::delete(&fleet.plan, node, job)).await?;
        let object = pod::object(&fleet.plan, node, job);
        let (began, mut pace) = (self.cluster.now(), Pace::new());
        while self.cluster.object(&object).await?.is_some() {
            if self.cluster.now().since(began).as_secs() >= GRACE {
                let why = format!("{object} does not go away: node {node} does not end it");
                return Err(Trouble::Failed(why));
            }
            self.cluster.pause(pace.next()).await;
        }
        Ok(())
    }

    /// Follows one pod for `job`, which was made at `began`, until it is over or lost.
    async fn over(
        &mut self,
        fleet: &mut Fleet,
        node: &str,
        job: Job,
        began: Time,
    ) -> Result<Followed, Trouble> {
        let object = pod::object(&fleet.plan, node, job);
        let restarts = job == Job::Rollback && fleet.began(&Task::Move(node.to_owned()));
        let (mut told, mut restarted, mut pace) = (0, !restarts, Pace::new());
        let mut uid = None;
        loop {
            let Some(pod) = self.cluster.object(&object).await? else {
                return Ok(Followed::Lost("it was deleted".to_owned()));
            };
            // One that somebody else made meanwhile has a log of its own.
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
                // It may not have a log yet; at the end it counts.
                (Err(_), Phase::Waits(_) | Phase::Runs) => String::new(),
                (Err(error), Phase::Over(..)) => {
                    if self.cluster.object(&object).await?.is_none() {
                        continue;
                    }
                    return Err(error.into());
                }
            };
            for line in text.lines().skip(told) {
                match pod::told(line) {
                    Some(pod::Told::Says(words)) => (self.tell)(Event::Says(node, &words)),
                    Some(pod::Told::Waits(words)) => (self.tell)(Event::Waits(node, &words)),
                    None => {}
                }
            }
            told = told.max(text.lines().count());
            let over = matches!(phase, Phase::Over(..));
            if !restarted && (over || pod::awaits_restart(&text)) {
                restarted = true;
                self.restart(fleet, node, &Task::Revert(node.to_owned()))
                    .await?;
            }
            let waited = self.cluster.now().since(began).as_secs();
            match phase {
                Phase::Over(code, said) => {
                    return Ok(Followed::Over(pod::Over {
                        code,
                        said,
                        log: text,
                    }));
                }
                Phase::Waits(why) if waited >= fleet.plan.ready || pod::is_hopeless(&pod) => {
                    let node = self.unready(node).await.unwrap_or_default();
                    let why = format!("the pod of kpx does not start: {why}{node}");
                    return Err(Trouble::Failed(why));
                }
                _ if waited >= fleet.plan.limit + GRACE => {
                    let node = self.unready(node).await.unwrap_or_default();
                    let why = format!("{object} has not ended after {waited} s{node}");
                    return Err(Trouble::Failed(why));
                }
                _ => self.cluster.pause(pace.next()).await,
            }
        }
    }

    /// Returns why the Node is not ready, for the end of a sentence.
    async fn unready(&mut self, node: &str) -> Option<String> {
        let Ok(found) = self.cluster.object(&Object::node(node)).await else {
            return None;
        };
        let Some(found) = found else {
            return Some(format!("; there is no node {node} any more"));
        };
        let conditions = found["status"]["conditions"].as_array()?;
        let ready = conditions.iter().find(|of| of["type"] == "Ready")?;
        let message = ready["message"].as_str().unwrap_or_default();
        (ready["status"] != "True").then(|| format!("; node {node} is not ready {message}"))
    }
}

/// What became of a pod that was followed.
enum Followed {
    /// It came to its end.
    Over(pod::Over),
    /// It is gone, or was ended from outside, and why: what it was to do is not done.
    Lost(String),
}

/// Returns those of kube-proxy's `pods` that are not on their way out: neither deleted, nor replaced by the last restart.
fn new<'p>(fleet: &Fleet, pods: &'p [Pod]) -> impl Iterator<Item = &'p Pod> {
    let here = pods.iter().filter(|pod| {
        let metadata = &pod.metadata;
        metadata.deletion_timestamp.is_none() && !fleet.old.contains(&metadata.uid)
    });
    let here: Vec<&Pod> = here.collect();
    here.into_iter()
}

/// Returns why kube-proxy's pods `now` are not those that were there at `first`, and well.
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
            return Some(format!("pod {name} is not ready any more"));
        }
    }
    first
        .is_empty()
        .then(|| "it has no pod of kube-proxy".to_owned())
}
