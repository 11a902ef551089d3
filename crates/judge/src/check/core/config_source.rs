//! The ConfigMap of this node's kube-proxy, and whether the kubelet has written it to the node.
//!
//! The kubelet writes an edit of a ConfigMap to the node within about 90 seconds. Until then the file on the node differs
//! from the ConfigMap.

use crate::check::Facts;
use kpx_node::cluster::config::{ORIGIN, ProxyConfig, written};
use kpx_node::cluster::{ConfigMap, Pod};
use kpx_node::evidence::Item;

/// Seconds within which the kubelet writes an edit: its sync period and the delay of its cache.
const SOON: u64 = 120;

/// The prefix of the copies that kpx makes for nodes in a migration.
pub(in crate::check) const COPY: &str = "kube-proxy-kpx-";

/// The source of the configuration of this node's kube-proxy.
pub(in crate::check) enum Source<'a> {
    /// This ConfigMap, with the configuration in it.
    Map { map: &'a ConfigMap, text: &'a str },
    /// A ConfigMap of this name that was not collected.
    Unread(String),
    /// Unknown.
    Unknown,
}

/// Returns the names of the ConfigMaps that `pod` mounts.
pub(in crate::check) fn mounted(pod: &Pod) -> impl Iterator<Item = &str> {
    let volumes = pod.spec.volumes.iter();
    volumes.filter_map(|volume| volume.get("configMap")?.get("name")?.as_str())
}

/// Returns the configuration in `map`.
pub(in crate::check) fn text_of(map: &ConfigMap) -> Option<&str> {
    // `config` is the key on EKS.
    let text = map
        .data
        .get("config.conf")
        .or_else(|| map.data.get("config"));
    text.map(String::as_str)
}

impl<'a> Facts<'a> {
    /// Returns the source of the configuration, from the volumes of this node's kube-proxy pod.
    pub(in crate::check) fn source(&self) -> Source<'a> {
        let node = self.node;
        let (Ok(pods), Ok(maps), Some(here)) = (node.pods(), node.config_maps(), self.node_name())
        else {
            return Source::Unknown;
        };
        let mut pods = pods.iter();
        let Some(pod) = pods.find(|pod| {
            pod.spec.node_name.as_ref() == Some(&here)
                && pod
                    .spec
                    .containers
                    .iter()
                    .any(|container| container.name == "kube-proxy")
        }) else {
            return Source::Unknown;
        };
        let map = |name: &str| {
            let mut maps = maps.iter().filter(|map| map.metadata.name == name);
            maps.find_map(|map| {
                let text = text_of(map)?;
                Some(Source::Map { map, text })
            })
        };
        match mounted(pod).find_map(map) {
            Some(source) => source,
            None => mounted(pod)
                .find(|name| name.starts_with("kube-proxy"))
                .map_or(Source::Unknown, |name| Source::Unread(name.to_owned())),
        }
    }

    /// Returns the name of the ConfigMap with the configuration, as far as it is known: kubeadm's otherwise.
    pub(in crate::check) fn map_name(&self) -> String {
        match self.source() {
            Source::Map { map, .. } => map.metadata.name.clone(),
            Source::Unread(name) => name,
            Source::Unknown => "kube-proxy".to_owned(),
        }
    }

    /// Returns the seconds since `map`, which contains the configuration `text`, was edited, if the kubelet has not written
    /// the edit to the node yet.
    pub(in crate::check) fn pending(&self, map: &ConfigMap, text: &str) -> Option<u64> {
        let age = self.now?.since(map.metadata.last_edit()?).as_secs();
        let file = self.file()?;
        let stale = written(file).ok()? != written(text).ok()?;
        (stale && age < SOON).then_some(age)
    }

    /// Returns the configuration file on the node, if the configuration was read from it.
    pub(in crate::check) fn file(&self) -> Option<&'a str> {
        let text = self.node.evidence().text(Item::ProxyConfig).ok()?;
        (!text.starts_with(ORIGIN)).then_some(text)
    }

    /// Returns the seconds since this node's ConfigMap was set to `mode`, if the kubelet has not written the edit yet.
    pub(in crate::check) fn pending_to(&self, mode: kpx_node::backend::Mode) -> Option<u64> {
        let Source::Map { map, text } = self.source() else {
            return None;
        };
        let asked = ProxyConfig::parse(text).ok()?.mode_asked();
        self.pending(map, text).filter(|_| asked == Some(mode))
    }
}
