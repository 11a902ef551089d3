//! The tasks on the configuration: changed for all nodes, or in copies for some.

use serde_json::Value;

use super::{Cluster, Engine, Pace, TaskError};
use crate::fleet::staged::{self, Copies};
use crate::fleet::state::{Configured, Fleet};
use crate::gates;
use crate::migration::Leg;
use kpx_judge::plan::{ConfigSource, Place, Undo};
use kpx_node::action::{Action, KubeCommand, Object, Only, Resource};
use kpx_node::apply::StepError;
use kpx_node::evidence::Item;
use kpx_node::node::NodeSnapshot;

/// How often the configuration is read again because it changed before the write.
const TRIES: u32 = 3;

impl<C: Cluster> Engine<'_, C> {
    /// Returns the store of kube-proxy's configuration.
    pub(super) async fn store(&mut self, fleet: &Fleet) -> Result<ConfigSource, TaskError> {
        let node = fleet.plan.nodes.first().map_or("", String::as_str);
        let items = [Item::ConfigMaps, Item::DaemonSets, Item::Pods];
        let evidence = self.read(&items, node).await;
        Ok(ConfigSource::find(&NodeSnapshot::new(&evidence), node)?)
    }

    pub(super) async fn configure(&mut self, fleet: &mut Fleet) -> Result<(), TaskError> {
        let mut tries = 0;
        loop {
            tries += 1;
            let plan = self.store(fleet).await?.configure(&fleet.plan.there)?;
            let Some(step) = plan.steps.first() else {
                return Ok(());
            };
            let (Action::Kube { command: set }, Undo::Do(Action::Kube { command: back })) =
                (&step.action, &step.undo)
            else {
                let why = "the configuration is no longer in the cluster".to_owned();
                return Err(TaskError::Failed(why));
            };
            fleet.configured = Some(Configured {
                set: set.clone(),
                back: back.clone(),
            });
            self.save(fleet).await?;
            match self.apply(set.clone()).await {
                // Planned again from the new text.
                Err(StepError::Moved(_)) if tries < TRIES => {}
                done => return Ok(done?),
            }
        }
    }

    /// Fails if another program set the configuration back after this migration changed it.
    pub(super) async fn refuse_set_back(&mut self, fleet: &Fleet) -> Result<(), TaskError> {
        let (Leg::There, Some(Configured { set, .. })) = (fleet.leg, &fleet.configured) else {
            return Ok(());
        };
        let KubeCommand::Set { object, fields } = set else {
            return Ok(());
        };
        let Ok(Some(now)) = self.cluster.object(object).await else {
            return Ok(());
        };
        for field in fields {
            if let [data, key] = field.path.as_slice()
                && data == "data"
                && let Some(text) = now["data"][key].as_str()
                && let Some(why) = gates::set_back(&object.to_string(), text, fleet.plan.there.mode)
            {
                return Err(TaskError::SetBack(why));
            }
        }
        Ok(())
    }

    /// Restores the configuration: the exact old text, if it was not changed since. If another program changed it before this
    /// migration could, the old mode is set.
    pub(super) async fn unconfigure(&mut self, fleet: &Fleet) -> Result<(), TaskError> {
        let action = |command: &KubeCommand| Action::Kube {
            command: command.clone(),
        };
        let store;
        let plan = if let Some(Configured { set, back }) = &fleet.configured {
            match self.apply(back.clone()).await {
                Err(StepError::Moved(_)) => {}
                done => return Ok(done?),
            }
            store = self.store(fleet).await?;
            store.put_back(&fleet.plan.back, &[(&action(set), &action(back))])?
        } else {
            store = self.store(fleet).await?;
            if gates::mode_in(store.text()) != Some(fleet.plan.there.mode) {
                return Ok(());
            }
            store.put_back(&fleet.plan.back, &[])?
        };
        for step in &plan.steps {
            self.cluster.apply(&step.action).await?;
        }
        Ok(())
    }

    pub(super) async fn copy(&mut self, fleet: &mut Fleet) -> Result<(), TaskError> {
        let store = self.store(fleet).await?;
        let Place::ConfigMap { name, key, .. } = store.place() else {
            let why = format!("{} cannot be copied", store.place());
            return Err(TaskError::Failed(why));
        };
        let map = self
            .there(&Object::of_system(Resource::ConfigMap, name))
            .await?;
        let mut set = self.there(&first_set()).await?;
        let text = store.text_with(&fleet.plan.there)?;
        let copies = Copies::of(&map, &staged::original(&set), key, &text);
        // Copies of an older text are useless, and so is the label that the first DaemonSet excludes for them.
        if fleet
            .copies
            .as_ref()
            .is_some_and(|name| *name != copies.name)
        {
            self.end_copies(fleet, &set).await?;
            set = self.there(&first_set()).await?;
        }
        fleet.copies = Some(copies.name.clone());
        self.save(fleet).await?;
        self.apply(copies.create_map()).await?;
        if let Some(command) = staged::narrow(&set, &copies.name) {
            self.apply(command).await?;
        }
        self.apply(copies.create_set()).await?;
        Ok(())
    }

    /// Restores the first DaemonSet, `set`, and deletes the copies.
    async fn end_copies(&mut self, fleet: &Fleet, set: &Value) -> Result<(), TaskError> {
        if let Some(command) = staged::widen(set) {
            self.apply(command).await?;
        }
        self.delete_copies(fleet).await
    }

    pub(super) async fn merge(&mut self, fleet: &Fleet) -> Result<(), TaskError> {
        let set = self.there(&first_set()).await?;
        self.end_copies(fleet, &set).await?;
        // The DaemonSet replaces its pods one at a time.
        let nodes = u64::try_from(fleet.plan.nodes.len()).unwrap_or(u64::MAX);
        let limit = fleet.plan.ready.saturating_mul(nodes);
        let (began, mut pace) = (self.cluster.now(), Pace::new());
        loop {
            let set = self.there(&first_set()).await?;
            if staged::is_rolled_out(&set) {
                return Ok(());
            }
            if self.stop.get() {
                return Err(TaskError::StopRequested);
            }
            let waited = self.cluster.now().since(began).as_secs();
            if waited >= limit {
                let why = format!("the rollout of {} timed out after {limit} s", first_set());
                return Err(TaskError::Failed(why));
            }
            let node = &fleet.plan.nodes[0];
            self.waits(
                node,
                &format!("the rollout of {}", first_set()),
                waited,
                limit,
            );
            self.cluster.pause(pace.next()).await;
        }
    }

    pub(super) async fn delete_copies(&mut self, fleet: &Fleet) -> Result<(), TaskError> {
        let Some(name) = &fleet.copies else {
            return Ok(());
        };
        for resource in [Resource::DaemonSet, Resource::ConfigMap] {
            let command = KubeCommand::Delete {
                object: Object::of_system(resource, name),
                only: Only::Ours,
            };
            self.apply(command).await?;
        }
        Ok(())
    }
}

fn first_set() -> Object {
    Object::of_system(Resource::DaemonSet, "kube-proxy")
}
