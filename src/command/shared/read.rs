//! Reading for a command: from a bundle, from this node, or from another through its pod.

use futures_util::future::join;

use super::complete_bundle::complete;
use super::failure::Failure;
use super::origin;
use super::session::{Session, unreached, unreadable};
use super::source::NodeSource;
use crate::render::Progress;
use kpx_host as host;
use kpx_node::evidence::{self, Evidence, Item, Privilege};

impl Session {
    /// Reads `items`: from the bundle of `--from`, or from this node, with the cluster's items from the bundle of
    /// `--cluster-from`. Reports progress while it takes long.
    pub(in crate::command) async fn gather(&self, items: &[Item]) -> Result<Evidence, Failure> {
        if !self.source.is_bundle() || self.source.is_completed() {
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
        let load = |path, items: &[Item]| {
            evidence::load_node(path, self.name(), items).map_err(unreadable)
        };
        match &self.source.node {
            NodeSource::Memory { evidence, .. } => {
                if self.origin().is_none() {
                    self.note(&evidence.only(origin::NEEDS));
                }
                let evidence = evidence.only(items);
                return Ok(self.parts.in_evidence(&evidence));
            }
            NodeSource::Bundle(path) => {
                let mut all = items.to_vec();
                if self.origin().is_none() {
                    all.extend(origin::NEEDS.iter().filter(|item| !items.contains(item)));
                }
                let mut evidence = load(path, &all)?;
                self.note(&evidence);
                evidence.keep(items);
                let mut evidence = self.parts.in_evidence(&evidence);
                if self.source.is_completed() {
                    complete(self, path, &mut evidence, items, progress).await?;
                }
                return Ok(evidence);
            }
            NodeSource::Machine | NodeSource::Pod(_) => {}
        }
        let Some(path) = self.source.cluster_bundle() else {
            let evidence = self.read_machine(items, progress).await?;
            self.note(&evidence);
            return Ok(evidence);
        };
        let (cluster, node): (Vec<Item>, Vec<Item>) =
            items.iter().partition(|item| item.is_of_cluster());
        let cluster = load(path, &cluster)?;
        let mut evidence = self.read_machine(&node, progress).await?;
        evidence.extend(cluster);
        self.note(&evidence);
        Ok(evidence)
    }

    /// Reads `items` of this machine, or of another one through its pod.
    async fn read_machine(&self, items: &[Item], progress: &Progress) -> Result<Evidence, Failure> {
        match self.source.pod() {
            None => self.collect(items, progress).await,
            Some(node) => Box::pin(self.reach(node, items, progress)).await,
        }
    }

    /// Reads `items` of `node`: through its pod, and objects of the cluster from the API.
    async fn reach(
        &self,
        node: &host::RemoteNode,
        items: &[Item],
        progress: &Progress,
    ) -> Result<Evidence, Failure> {
        let shared = self.source.shared(items);
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
            // If the node does not have it, the API may.
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
        let (api, nodes) = self.source.take_ahead(items);
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
        if self.source.cluster_bundle().is_some() {
            return self.gather(&items).await;
        }
        self.log_in(&items).await;
        let (api, progress) = (host::Connection::default(), self.progress(&items));
        let done = |item: Item| progress.done(item.file());
        let evidence = host::collect_over(&api, &items, self.machine()?, done).await;
        let nodes = evidence.text(Item::Nodes).map(str::to_owned);
        self.source.keep_ahead(api, nodes);
        Ok(evidence)
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
        let pending = match self.source.bundle() {
            Some(path) => vec![path.display().to_string()],
            None => items.iter().map(|item| item.file().to_owned()).collect(),
        };
        Progress::start(pending, self.style.ascii)
    }
}
