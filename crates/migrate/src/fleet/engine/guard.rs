//! The guard's pod, which keeps the bridge while a node migrates.

use super::{Cluster, Engine, Event, Pace, REBOOT, TaskError};
use crate::fleet::pod::{self, Job, Phase};
use crate::fleet::state::Fleet;
use kpx_node::action::Object;

impl<C: Cluster> Engine<'_, C> {
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
        match self.cluster.object(&object).await? {
            None => {}
            Some(old) if matches!(pod::phase(&old), Phase::Over(..)) || pod::is_ending(&old) => {
                self.remove(fleet, node, Job::Guard).await?;
            }
            // Whether kpx may create another one does not matter.
            Some(_) => return Ok(Some(object)),
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
        let (mut told, mut awaited) = (false, false);
        loop {
            let Some(pod) = self.cluster.object(&object).await? else {
                return Err(TaskError::Failed(format!("{object} is gone")));
            };
            let waited = self.cluster.now().since(began).as_secs();
            let why = match pod::phase(&pod) {
                Phase::Waits(why) => why,
                Phase::Over(..) => return Ok(()),
                Phase::Runs => match self.copy_kpx(fleet, node, &pod).await? {
                    None => return Ok(()),
                    Some(why) => {
                        self.replace_guard(fleet, node, &object, &why).await?;
                        why
                    }
                },
            };
            if pod::is_hopeless(&pod)
                || waited >= limit && !self.is_awaited(node, waited, &mut awaited).await
            {
                let why = format!("{object} does not start: {why}");
                return Err(TaskError::Failed(why));
            }
            self.report_image(fleet, node, &pod, limit, &mut told);
            let most = if awaited { REBOOT } else { limit };
            self.waits(
                node,
                &format!("the start of {object} ({why})"),
                waited,
                most,
            );
            self.cluster.pause(pace.next()).await;
        }
    }

    /// Creates the guard's pod again after it was lost, and why.
    async fn replace_guard(
        &mut self,
        fleet: &Fleet,
        node: &str,
        object: &Object,
        why: &str,
    ) -> Result<(), TaskError> {
        let words = format!("{object} was lost ({why}); creating it again");
        (self.on_event)(Event::Reports(node, &words));
        if self.cluster.object(object).await?.is_some() {
            self.remove(fleet, node, Job::Guard).await?;
        }
        self.guard(fleet, node).await.map(drop)
    }

    /// Creates the guard's pod again if it was evicted or deleted while the node's bridge is needed.
    pub(super) async fn restore_guard(
        &mut self,
        fleet: &Fleet,
        node: &str,
    ) -> Result<(), TaskError> {
        if fleet.plan.image.is_none() || !fleet.plan.bridges() {
            return Ok(());
        }
        let object = pod::object(&fleet.plan, node, Job::Guard);
        let why = match self.cluster.object(&object).await? {
            None => "it was deleted".to_owned(),
            Some(pod) if pod::is_ending(&pod) => return Ok(()),
            Some(pod) => match (pod::lost(&pod, ""), pod::phase(&pod)) {
                (Some(why), _) => why,
                (None, Phase::Runs) => match self.copy_kpx(fleet, node, &pod).await? {
                    Some(why) => why,
                    None => return Ok(()),
                },
                (None, _) => return Ok(()),
            },
        };
        match self.replace_guard(fleet, node, &object, &why).await {
            // The job continues without a guard.
            Err(TaskError::Failed(why)) => {
                (self.on_event)(Event::Reports(node, &why));
                Ok(())
            }
            replaced => replaced,
        }
    }

    pub(super) async fn unguard(&mut self, fleet: &Fleet, node: &str) -> Result<(), TaskError> {
        if fleet.plan.image.is_some() && fleet.plan.bridges() {
            self.remove(fleet, node, Job::Guard).await?;
        }
        Ok(())
    }
}
