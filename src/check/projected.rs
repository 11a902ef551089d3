//! The ConfigMap that this node's kube-proxy has, and how far the kubelet has got with it.
//!
//! The kubelet writes an edit of a ConfigMap to the node within about a minute and a half. Until then the file that
//! kube-proxy would read is not what the API server has.

use super::Facts;
use crate::cluster::config::{ProxyConfig, written};
use crate::cluster::{ConfigMap, Pod};
use crate::evidence::Item;

/// Seconds within which the kubelet writes an edit: its sync period, and what its cache may be late.
const SOON: u64 = 120;

/// How the names of the copies begin that kpx makes for nodes that are moved.
pub(super) const COPY: &str = "kube-proxy-kpx-";

/// Where the configuration of this node's kube-proxy comes from.
pub(super) enum Source<'a> {
    /// This ConfigMap.
    Map(&'a ConfigMap),
    /// A ConfigMap of this name, which was not read.
    Unread(String),
    /// Not known.
    Unknown,
}

/// Returns the names of the ConfigMaps that `pod` mounts.
pub(super) fn mounted(pod: &Pod) -> impl Iterator<Item = &str> {
    let volumes = pod.spec.volumes.iter();
    volumes.filter_map(|volume| volume.get("configMap")?.get("name")?.as_str())
}

/// Returns the configuration in `map`.
pub(super) fn text_of(map: &ConfigMap) -> Option<&str> {
    // `config` is the key on EKS.
    let text = map
        .data
        .get("config.conf")
        .or_else(|| map.data.get("config"));
    text.map(String::as_str)
}

impl<'a> Facts<'a> {
    /// Returns where this node's kube-proxy has its configuration from, by the pod that runs here.
    pub(super) fn source(&self) -> Source<'a> {
        let node = self.node;
        let (Ok(pods), Ok(maps), Some(here)) = (node.pods(), node.config_maps(), self.node_name())
        else {
            return Source::Unknown;
        };
        let mut pods = pods.iter();
        let Some(pod) = pods.find(|pod| {
            pod.spec.node_name.as_ref() == Some(&here)
                && pod.spec.containers.iter().any(|of| of.name == "kube-proxy")
        }) else {
            return Source::Unknown;
        };
        let map = |name: &str| {
            let mut maps = maps.iter();
            maps.find(|map| map.metadata.name == name && text_of(map).is_some())
        };
        match mounted(pod).find_map(map) {
            Some(map) => Source::Map(map),
            None => mounted(pod)
                .find(|name| name.starts_with("kube-proxy"))
                .map_or(Source::Unknown, |name| Source::Unread(name.to_owned())),
        }
    }

    /// Returns how many seconds ago `map` was edited, where the kubelet has not written that edit to the node yet.
    pub(super) fn pending(&self, map: &ConfigMap) -> Option<u64> {
        let age = self.now?.since(map.metadata.last_edit()?).as_secs();
        let file = self.file()?;
        let stale = written(file).ok()? != written(text_of(map)?).ok()?;
        (stale && age < SOON).then_some(age)
    }

    /// Returns the file on the node, where that is what was read as the configuration.
    pub(super) fn file(&self) -> Option<&'a str> {
        let text = self.node.evidence().text(Item::ProxyConfig).ok()?;
        // Other sources say so in their first line.
        (!text.starts_with("# From ")).then_some(text)
    }

    /// Returns the seconds since the ConfigMap of this node's kube-proxy was edited to `mode`, where the kubelet has not
    /// written that to the node yet.
    pub(super) fn pending_to(&self, mode: crate::backend::Mode) -> Option<u64> {
        let Source::Map(map) = self.source() else {
            return None;
        };
        let asked = ProxyConfig::parse(text_of(map)?).ok()?.mode_asked();
        self.pending(map).filter(|_| asked == Some(mode))
    }
}
