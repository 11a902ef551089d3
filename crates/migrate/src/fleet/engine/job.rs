//! Runs commands of kpx on a node: each in a pod, which is created again if it is lost, or by an operator's hand.

use serde_json::Value;

use super::node::LOOK;
use super::{Cluster, Engine, Event, Pace, REBOOT, TaskError};
use crate::fleet::pod::{self, Job, Phase};
use crate::fleet::state::Fleet;
use crate::fleet::task::Task;
use kpx_node::action::Object;
use kpx_node::apply::StepError;
use kpx_node::evidence::Time;

/// How often a lost pod is created again.
const LOST: u32 = 3;

/// How long a pod may exceed its own deadline, in seconds.
const GRACE: u64 = 60;

impl<C: Cluster> Engine<'_, C> {
    /// Runs `job` on `node`: in a pod, or by an operator's hand.
    pub(super) async fn on_node(
        &mut self,
        fleet: &mut Fleet,
        node: &str,
        job: Job,
    ) -> Result<pod::Ended, TaskError> {
        let untouched = (job == Job::Prepare)
            .then(|| fleet.untouched.take_if(|name| name.as_str() == node))
            .flatten();
        if untouched.is_some() {
            self.save(fleet).await?;
        }
        let Some(image) = fleet.plan.image.clone() else {
            let command = pod::command_line(&fleet.plan, job);
            let done = self.cluster.by_hand(node, &command).await;
            return done.map(|()| pod::Ended::Done).map_err(TaskError::Failed);
        };
        let object = pod::object(&fleet.plan, node, job);
        // A pod that failed before this run is replaced, and one that is being deleted does not count.
        let useless = |old: &Value| {
            pod::is_ending(old)
                || matches!(pod::phase(old), Phase::Over(code, _) if code != Some(0))
        };
        let old = self.cluster.object(&object).await?;
        if old.as_ref().is_some_and(useless) {
            self.remove(fleet, node, job).await?;
        }
        if old.as_ref().is_none_or(useless) {
            let created = self
                .apply(pod::create(&fleet.plan, &image, node, job))
                .await;
            if matches!(created, Err(StepError::Denied(_) | StepError::Refused(_))) {
                fleet.untouched = untouched;
            }
            created?;
        }
        let began = self.cluster.now();
        let over = self.follow(fleet, node, job, began).await;
        self.remove(fleet, node, job).await?;
        let over = over?;
        if let Some(loss) = pod::observed_loss(&over) {
            // The node's journal has the sum of all its jobs.
            fleet.observed.insert(node.to_owned(), loss);
        }
        if job != Job::Guard {
            for note in pod::notes(&over) {
                (self.on_event)(Event::Reports(node, &note));
            }
        }
        match pod::ended(&over) {
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
        let mut awaited = false;
        while self.cluster.object(&object).await?.is_some() {
            let waited = self.cluster.now().since(began).as_secs();
            if waited >= GRACE && !self.is_awaited(node, waited, &mut awaited).await {
                let why =
                    format!("cannot delete {object}: the kubelet of node {node} does not end it");
                return Err(TaskError::Failed(why));
            }
            let limit = if awaited { REBOOT } else { GRACE };
            self.waits(node, &format!("the end of {object}"), waited, limit);
            self.cluster.pause(pace.next()).await;
        }
        Ok(())
    }

    /// Returns whether `node`, for which the engine has waited for `waited` seconds, is not ready and may still become ready, and
    /// reports that unless it is `reported`.
    pub(super) async fn is_awaited(
        &mut self,
        node: &str,
        waited: u64,
        reported: &mut bool,
    ) -> bool {
        if self.stop.get() || waited >= REBOOT {
            return false;
        }
        let NodeCondition::NotReady(message) = self.node(node).await else {
            return false;
        };
        let words = format!("node {node} is not ready: {message}; waiting at most {REBOOT} s");
        if !std::mem::replace(reported, true) {
            (self.on_event)(Event::Reports(node, &words));
        }
        true
    }

    /// Copies kpx into the running `pod` if that is needed; returns why a new pod is needed.
    pub(super) async fn copy_kpx(
        &mut self,
        fleet: &Fleet,
        node: &str,
        pod: &Value,
    ) -> Result<Option<String>, TaskError> {
        if !fleet.plan.copies {
            return Ok(None);
        }
        match self.cluster.copy_kpx(node, pod).await {
            Err(StepError::Held(why)) => Ok(Some(why)),
            copied => Ok(copied.map(|()| None)?),
        }
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
        let (mut uid, mut reported, mut awaited, mut unread) = (None, false, false, None);
        let mut looked = began;
        loop {
            let Some(pod) = self.cluster.object(&object).await? else {
                return Ok(Followed::Lost("it was deleted".to_owned()));
            };
            // A pod that replaced it has a log of its own.
            if *uid.get_or_insert_with(|| pod::uid(&pod)) != pod::uid(&pod) {
                return Ok(Followed::Lost("it was replaced".to_owned()));
            }
            let phase = pod::phase(&pod);
            if phase == Phase::Runs
                && let Some(why) = self.copy_kpx(fleet, node, &pod).await?
            {
                return Ok(Followed::Lost(why));
            }
            let mut unlogged = None;
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
                (Err(error), Phase::Waits(_) | Phase::Runs) => {
                    unlogged = Some(format!("the log of {object} ({error})"));
                    String::new()
                }
                (Err(error), Phase::Over(..)) => {
                    if self.cluster.object(&object).await?.is_none() {
                        continue;
                    }
                    // The kubelet of a node that has just started has no logs yet.
                    let now = self.cluster.now();
                    let since = now.since(*unread.get_or_insert(now)).as_secs();
                    if since >= fleet.plan.ready
                        && !self.is_awaited(node, since, &mut awaited).await
                    {
                        return Ok(Followed::Lost(format!("its log cannot be read: {error}")));
                    }
                    if self.stop.get() {
                        return Err(error.into());
                    }
                    let limit = if awaited { REBOOT } else { fleet.plan.ready };
                    self.waits(
                        node,
                        &format!("the log of {object} ({error})"),
                        since,
                        limit,
                    );
                    self.cluster.pause(pace.next()).await;
                    continue;
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
            if !over && !matches!(job, Job::Preview | Job::Guard) {
                self.restore_guard(fleet, node).await?;
            }
            if !restarted && (over || pod::awaits_restart(&text)) {
                restarted = true;
                self.restart(fleet, node, &Task::Revert(node.to_owned()))
                    .await?;
            }
            let now = self.cluster.now();
            if job == Job::Finish && !over && now.since(looked).as_secs() >= LOOK {
                looked = now;
                self.refuse_set_back(fleet).await?;
            }
            let waited = now.since(began).as_secs();
            match phase {
                Phase::Over(code, reason) => {
                    return Ok(Followed::Finished(pod::Finished {
                        code,
                        reason,
                        log: text,
                    }));
                }
                Phase::Waits(why)
                    if pod::is_hopeless(&pod)
                        || waited >= fleet.plan.ready
                            && (job == Job::Preview
                                || !self.is_awaited(node, waited, &mut awaited).await) =>
                {
                    let why = format!("kpx's pod does not start: {why}");
                    return Err(TaskError::Failed(self.with_node(node, why).await));
                }
                _ if waited >= fleet.plan.limit + GRACE => {
                    let why = format!("{object} timed out after {waited} s");
                    return Err(TaskError::Failed(self.with_node(node, why).await));
                }
                _ => {
                    self.report_image(fleet, node, &pod, fleet.plan.ready, &mut reported);
                    if let Phase::Waits(why) = &phase {
                        let limit = if awaited { REBOOT } else { fleet.plan.ready };
                        let what = format!("the start of {object} ({why})");
                        self.waits(node, &what, waited, limit);
                    } else if let Some(log) = unlogged {
                        self.waits(node, &log, waited, fleet.plan.limit + GRACE);
                    }
                    self.cluster.pause(pace.next()).await;
                }
            }
        }
    }

    /// Reports that the image of `pod` cannot be pulled, unless that is already `reported`; kpx waits until `limit` seconds have
    /// passed.
    pub(super) fn report_image(
        &mut self,
        fleet: &Fleet,
        node: &str,
        pod: &Value,
        limit: u64,
        reported: &mut bool,
    ) {
        if *reported {
            return;
        }
        if let (Some(image), Some(reason)) = (&fleet.plan.image, pod::not_pulled(pod)) {
            let words = format!("cannot pull image {image} ({reason}); waiting at most {limit} s");
            (self.on_event)(Event::Reports(node, &words));
            *reported = true;
        }
    }

    /// Returns `why`, with the problem of the Node, if it has one.
    async fn with_node(&mut self, node: &str, why: String) -> String {
        match self.node(node).await {
            NodeCondition::NotReady(message) => {
                format!("{why}; node {node} is not ready: {message}")
            }
            NodeCondition::Deleted => format!("{why}; node {node} was deleted"),
            NodeCondition::Ready => why,
        }
    }

    async fn node(&mut self, node: &str) -> NodeCondition {
        let found = match self.cluster.object(&Object::node(node)).await {
            Ok(Some(found)) => found,
            Ok(None) => return NodeCondition::Deleted,
            Err(_) => return NodeCondition::Ready,
        };
        let conditions = found["status"]["conditions"].as_array();
        let mut conditions = conditions.into_iter().flatten();
        match conditions.find(|condition| condition["type"] == "Ready") {
            Some(ready) if ready["status"] != "True" => {
                let message = ready["message"].as_str().unwrap_or_default();
                NodeCondition::NotReady(message.to_owned())
            }
            _ => NodeCondition::Ready,
        }
    }
}

/// The condition of a Node.
enum NodeCondition {
    /// It is ready, or that is unknown.
    Ready,
    /// It is not ready, with the message of its condition.
    NotReady(String),
    /// It does not exist.
    Deleted,
}

/// How a pod that was followed ended.
enum Followed {
    /// It finished.
    Finished(pod::Finished),
    /// It was deleted or ended from outside, and why: its job is not done.
    Lost(String),
}
