//! Access to the cluster for a kpx that does not change the machine it runs on.

use std::sync::Arc;

use futures_util::future::join_all;
use serde_json::Value;

use super::Options;
use super::cluster::{Api, Urgency};
use kpx_node::action::{Action, OURS, Object, Resource};
use kpx_node::apply::{Apply, StepError};
use kpx_node::evidence::{Evidence, Item};

/// The cluster, changed through its API server. Clones refer to the same cluster.
#[derive(Clone, Debug)]
pub struct LiveCluster {
    api: Arc<Api>,
}

impl LiveCluster {
    /// Returns the cluster that `options` select.
    pub fn new(options: &Options) -> Self {
        Self {
            api: Api::new(options),
        }
    }

    /// Returns the cluster of `api`.
    pub(super) fn of(api: &Arc<Api>) -> Self {
        Self {
            api: Arc::clone(api),
        }
    }

    /// Reads `items` of the cluster; items of a single node are for `node`.
    pub async fn read(&self, items: &[Item], node: &str) -> Evidence {
        let api = &self.api;
        let reads = items.iter().map(async |&item| {
            let (cluster, options) = (&api.cluster, &api.options);
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
        let api = &self.api;
        api.cluster.object(object, &api.options).await
    }

    /// Returns the pods of kube-system that kpx created.
    pub async fn own_pods(&self) -> Result<Vec<Value>, StepError> {
        let api = &self.api;
        let pods = api.cluster.labelled(Resource::Pod, OURS, &api.options);
        pods.await
    }

    /// Returns the whole log of the pod `name` of kube-system.
    pub async fn log(&self, name: &str) -> Result<String, StepError> {
        let api = &self.api;
        api.cluster.log_of(name, &api.options).await
    }
}

impl Apply for LiveCluster {
    async fn apply(&mut self, action: &Action) -> Result<(), StepError> {
        let api = &self.api;
        match action {
            Action::Kube { command } => api.cluster.change(command, &api.options).await,
            action => Err(StepError::Refused(format!(
                "not a change of the cluster: {action}"
            ))),
        }
    }
}
