//! Reading for a command: from a bundle, from this node, or from another through its pod.

use std::sync::PoisonError;

use futures_util::future::join;

use super::complete::complete;
use super::failure::Failure;
use super::session::{Session, unreached, unreadable};
use crate::evidence::{self, Evidence, Gap, Item, Privilege};
use crate::host;
use crate::render::Progress;

impl Session {
    /// Reads `items`: from the bundle of `--from`, or from this node, with the cluster's from that of `--cluster-from`.
    /// Reports progress while it takes long.
    pub(in crate::command) async fn gather(&self, items: &[Item]) -> Result<Evidence, Failure> {
        if self.from.is_none() || self.completes {
            self.log_in(items).await;
        }
        self.read(items, &self.progress(items)).await
    }

    /// Reads `items` like [`Session::gather`], and reports to `progress`.
    pub(in crate::command) async fn read(
        &self,
        items: &[Item],
        progress: &Progress,
    ) -> Result<Evidence, Failure> {
        if let Some(evidence) = &self.evidence {
            return Ok(evidence.only(items));
        }
        let load = |path, items: &[Item]| {
            evidence::load_node(path, self.name(), items).map_err(unreadable)
        };
        if let Some(path) = &self.from {
            let mut evidence = load(path, items)?;
            if self.completes {
                complete(self, path, &mut evidence, items, progress).await?;
            }
            return Ok(evidence);
        }
        let Some(path) = &self.cluster_from else {
            return match &self.remote {
                None => self.collect(items, progress).await,
                Some(node) => Box::pin(self.reach(node, items, progress)).await,
            };
        };
        let (cluster, node): (Vec<Item>, Vec<Item>) =
            items.iter().partition(|item| item.is_of_cluster());
        let cluster = load(path, &cluster)?;
        let mut evidence = match &self.remote {
            None => self.collect(&node, progress).await?,
            Some(remote) => Box::pin(self.reach(remote, &node, progress)).await?,
        };
        evidence.extend(cluster);
        Ok(evidence)
    }

    /// Reads `items` of `node`: through its pod, and objects of the cluster from the API.
    async fn reach(
        &self,
        node: &host::RemoteNode,
        items: &[Item],
        progress: &Progress,
    ) -> Result<Evidence, Failure> {
        let shared = self.shared.only(items);
        let left = items.iter().filter(|item| !shared.has(**item));
        let (api, own): (Vec<Item>, Vec<Item>) = left.partition(|item| item.is_object());
        let own = async {
            let read = node.read(&own, self.families()).await.map_err(unreached)?;
            for item in &own {
                progress.done(item.file());
            }
            Ok::<_, Failure>(read)
        };
        let (api, own) = join(self.collect(&api, progress), own).await;
        let (api, mut own): (_, Evidence) = (api?, own?);
        for item in [Item::ProxyConfig, Item::ProxyLog] {
            // Where the node does not have it, the API may.
            if items.contains(&item)
                && own.text(item).is_err()
                && let Ok(text) = node.from_api(item).await
            {
                own.insert(item, Ok(text));
            }
        }
        own.extend(api);
        own.extend(shared);
        Ok(own)
    }

    /// Reads `items` from this node.
    async fn collect(&self, items: &[Item], progress: &Progress) -> Result<Evidence, Failure> {
        let options = self.machine()?;
        let (api, nodes) = self.take_ahead(items);
        let new = items.iter().copied();
        let new: Vec<Item> = match &nodes {
            Some(_) => new.filter(|item| *item != Item::Nodes).collect(),
            None => new.collect(),
        };
        let done = |item: Item| progress.done(item.file());
        let mut evidence = host::collect_over(&api, &new, options, done).await;
        if let Some(nodes) = nodes {
            done(Item::Nodes);
            evidence.insert(Item::Nodes, nodes);
        }
        Ok(evidence)
    }

    /// Reads the Nodes before the command does: its first read of them gets the same.
    pub(in crate::command) async fn nodes_ahead(&self) -> Result<Evidence, Failure> {
        let items = [Item::Nodes];
        if self.cluster_from.is_some() {
            return self.gather(&items).await;
        }
        self.log_in(&items).await;
        let (api, progress) = (host::Connection::default(), self.progress(&items));
        let done = |item: Item| progress.done(item.file());
        let evidence = host::collect_over(&api, &items, self.machine()?, done).await;
        let nodes = evidence.text(Item::Nodes).map(str::to_owned);
        *self.ahead.lock().unwrap_or_else(PoisonError::into_inner) = Some((api, nodes));
        Ok(evidence)
    }

    /// Returns the connection that was opened before the command, and the Nodes if `items` has them.
    fn take_ahead(&self, items: &[Item]) -> (host::Connection, Option<Result<String, Gap>>) {
        let mut ahead = self.ahead.lock().unwrap_or_else(PoisonError::into_inner);
        if items.contains(&Item::Nodes) {
            let (api, nodes) = ahead.take().unzip();
            return (api.unwrap_or_default(), nodes);
        }
        let api = ahead.as_ref().map(|(api, _)| api.clone());
        (api.unwrap_or_default(), None)
    }

    /// Lets a credential plugin ask for input before progress is drawn.
    async fn log_in(&self, items: &[Item]) {
        let asks_api = |item: &Item| item.is_of_cluster() || item.privilege() == Privilege::Api;
        if self.progress && items.iter().any(asks_api) {
            host::log_in(&self.host).await;
        }
    }

    /// Reports what is being read, after half a second.
    fn progress(&self, items: &[Item]) -> Progress {
        if !self.progress {
            return Progress::silent();
        }
        let pending = match &self.from {
            Some(path) => vec![path.display().to_string()],
            None => items.iter().map(|item| item.file().to_owned()).collect(),
        };
        Progress::start(pending, self.style.ascii)
    }
}
