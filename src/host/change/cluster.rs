//! Access to the cluster for a kpx that does not change the machine it runs on.

use std::sync::Arc;

use futures_util::future::join_all;
use serde_json::Value;

use super::super::Options;
use super::super::cluster::Urgency;
use super::super::context::Context;
use crate::action::{Action, OURS, Object, Resource};
use crate::apply::{Apply, StepError};
use crate::evidence::{Evidence, Item};

/// The cluster, changed through its API server. Clones refer to the same cluster.
#[derive(Clone, Debug)]
pub struct LiveCluster {
    context: Arc<Context>,
}

impl LiveCluster {
    /// Returns the cluster that `options` select.
    pub fn new(options: &Options) -> Self {
        Self {
            context: Context::new(options),
        }
    }

    /// Returns the cluster of `context`.
    pub(in crate::host) fn of(context: &Arc<Context>) -> Self {
        Self {
            context: Arc::clone(context),
        }
    }

    /// Reads `items` of the cluster; items of a single node are those of `node`.
    pub async fn read(&self, items: &[Item], node: &str) -> Evidence {
        let context = &self.context;
        let reads = items.iter().map(async |&item| {
            let (cluster, options) = (&context.cluster, &context.options);
            let read = cluster.read(item, node, options, Urgency::Change).await;
            (item, read)
        });
        let mut evidence = Evidence::default();
        for (item, read) in join_all(reads).await {
            evidence.insert(item, read);
        }
        evidence
    }

    /// Returns an object from the API server; `None` if it does not exist.
    pub async fn object(&self, object: &Object) -> Result<Option<Value>, StepError> {
        let context = &self.context;
        context.cluster.object(object, &context.options).await
    }

    /// Returns the pods of kube-system that kpx created.
    pub async fn own_pods(&self) -> Result<Vec<Value>, StepError> {
        let context = &self.context;
        let pods = context
            .cluster
            .labelled(Resource::Pod, OURS, &context.options);
        pods.await
    }

    /// Returns the whole log of the pod `name` of kube-system.
    pub async fn log(&self, name: &str) -> Result<String, StepError> {
        let context = &self.context;
        context.cluster.log_of(name, &context.options).await
    }
}

impl Apply for LiveCluster {
    async fn apply(&mut self, action: &Action) -> Result<(), StepError> {
        let context = &self.context;
        match action {
            Action::Kube { command } => context.cluster.change(command, &context.options).await,
            action => Err(StepError::Refused(format!(
                "not a change of the cluster: {action}"
            ))),
        }
    }
}
