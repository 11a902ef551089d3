//! What a check may look at, and what many of them ask first.

use super::drift::Drift;
use crate::backend::Mode;
use crate::cluster::config::ProxyConfig;
use crate::cluster::{ConfigMap, Node};
use crate::evidence::{Gap, Item, Time};
use crate::net::Family;
use crate::node::NodeSnapshot;

/// What [`Facts::mode`] reads.
pub const MODE: &[Item] = &[Item::ProxyMode, Item::ProxyConfig, Item::ConfigMaps];

/// What a check may look at.
#[derive(Debug)]
pub struct Facts<'a> {
    /// The node under examination.
    pub node: &'a NodeSnapshot<'a>,
    /// When the node was looked at, where that is known.
    pub now: Option<Time>,
    /// The difference between the kernel and the cluster's objects.
    pub drift: Drift,
    /// The mode the node is to be moved to, where that is the question.
    pub target: Option<Mode>,
}

/// Where the configured mode was read.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum ModeSource {
    /// The file kube-proxy runs with.
    File,
    /// The ConfigMap.
    ConfigMap,
}

impl ModeSource {
    /// Returns what to call it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::File => "kube-proxy's config.conf",
            Self::ConfigMap => "ConfigMap kube-system/kube-proxy",
        }
    }
}

impl<'a> Facts<'a> {
    /// Returns what there is to know of `node`, which was looked at at `now`.
    pub fn new(node: &'a NodeSnapshot<'a>, now: Option<Time>) -> Self {
        Self {
            node,
            now,
            drift: Drift::default(),
            target: None,
        }
    }

    /// Asks what a move of the node to the mode `target` would meet, instead of how the node is.
    #[must_use]
    pub fn before(mut self, target: Option<Mode>) -> Self {
        self.target = target;
        self
    }
}

impl Facts<'_> {
    /// Returns the mode that the question is about: the one the node is to be moved to, or else the current one.
    pub fn mode(&self) -> Result<Mode, Gap> {
        self.target.map_or_else(|| self.current(), Ok)
    }

    /// Returns the mode kube-proxy runs in: what it reports, or what it is configured for when it does not answer.
    pub fn current(&self) -> Result<Mode, Gap> {
        self.reported().or_else(|_| Ok(self.configured()?.0))
    }

    /// Returns the mode kube-proxy reports.
    pub fn reported(&self) -> Result<Mode, Gap> {
        self.node.reported_mode()
    }

    /// Returns the mode kube-proxy is configured for, and where that is written.
    pub fn configured(&self) -> Result<(Mode, ModeSource), Gap> {
        match self.node.proxy_config() {
            Ok(_) => Ok((self.node.configured_mode()?, ModeSource::File)),
            Err(gap) => match self.config_map() {
                Ok(config) => {
                    let mode = config.mode_asked().ok_or_else(|| {
                        let what =
                            format!("{:?} is not a mode of kube-proxy on Linux", config.mode);
                        Gap::Failed(Item::ConfigMaps, what)
                    });
                    Ok((mode?, ModeSource::ConfigMap))
                }
                Err(_) => Err(gap),
            },
        }
    }

    /// Returns the configuration in kube-proxy's ConfigMap.
    pub fn config_map(&self) -> Result<ProxyConfig, Gap> {
        let text = self.config_map_text()?;
        ProxyConfig::parse(text).map_err(|gap| Gap::Failed(Item::ConfigMaps, gap.to_string()))
    }

    /// Returns the file in kube-proxy's ConfigMap.
    pub fn config_map_text(&self) -> Result<&str, Gap> {
        let maps = self.node.config_maps()?;
        let text = maps
            .iter()
            .filter(|map: &&ConfigMap| map.metadata.name.starts_with("kube-proxy"))
            // `config` is the key on EKS.
            .find_map(|map| {
                map.data
                    .get("config.conf")
                    .or_else(|| map.data.get("config"))
            });
        text.map(String::as_str).ok_or_else(|| {
            let none = "no ConfigMap of kube-proxy holds a configuration";
            Gap::Absent(Item::ConfigMaps, none.to_owned())
        })
    }

    /// Returns the name of this Node, where it can be told.
    pub fn node_name(&self) -> Option<String> {
        self.node.name().ok()
    }

    /// Returns this node's Node object.
    pub fn this_node(&self) -> Result<&Node, Gap> {
        let nodes = self.node.nodes()?;
        let name = self.node_name();
        let none = || {
            let which = name.as_deref().unwrap_or("this node");
            Gap::Absent(Item::Nodes, format!("there is no Node for {which}"))
        };
        nodes
            .iter()
            .find(|node| Some(&node.metadata.name) == name.as_ref())
            .ok_or_else(none)
    }

    /// Returns the version of kube-proxy.
    pub fn version(&self) -> Result<crate::cluster::version::ProxyVersion, Gap> {
        self.node.proxy_version(self.node_name().as_deref())
    }

    /// Returns which families Services or pods use here.
    pub fn families(&self) -> Result<Vec<Family>, Gap> {
        let services = self.node.services();
        let mut found = match self.pod_families() {
            Ok(found) => found,
            Err(gap) if services.is_err() => return Err(gap),
            Err(_) => Vec::new(),
        };
        let services = services.iter().flat_map(|all| all.iter());
        found.extend(families_of(
            services.flat_map(|service| &service.spec.cluster_ips),
        ));
        found.sort_unstable();
        found.dedup();
        Ok(found)
    }

    /// Returns which families pods use here.
    pub fn pod_families(&self) -> Result<Vec<Family>, Gap> {
        let node = self.this_node();
        let config = self.node.proxy_config();
        if let (Err(gap), Err(_)) = (&node, &config) {
            return Err(gap.clone());
        }
        let pods = node.iter().flat_map(|node| node.spec.pod_cidrs.iter());
        Ok(families_of(
            pods.chain(config.iter().map(|config| &config.cluster_cidr)),
        ))
    }
}

/// Returns the families that `texts`, addresses or prefixes, are of.
fn families_of<'a>(texts: impl Iterator<Item = &'a String>) -> Vec<Family> {
    let texts: Vec<_> = texts.collect();
    // Only IPv6 addresses have colons.
    let uses = |family: &Family| {
        texts.iter().any(|text| match family {
            Family::V4 => text.contains('.'),
            Family::V6 => text.contains(':'),
        })
    };
    Family::BOTH.into_iter().filter(uses).collect()
}
