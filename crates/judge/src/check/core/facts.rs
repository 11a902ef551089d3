//! The input of a check, and the values that many checks read first.

use std::sync::OnceLock;

use crate::check::core::text_of;
use crate::check::drift::Drift;
use crate::check::{Check, Outcome, Question, Verdict};
use crate::verdict::{Across, Outlook, Surveyed, survey};
use kpx_node::backend::Mode;
use kpx_node::cluster::config::ProxyConfig;
use kpx_node::cluster::version::{ProxyVersion, Source};
use kpx_node::cluster::{ConfigMap, Node};
use kpx_node::evidence::{Gap, Item, Time};
use kpx_node::net::Family;
use kpx_node::node::NodeSnapshot;
use kpx_node::node::processes::kube_proxies;
use kpx_node::owner::Owners;

/// The items that [`Facts::mode`] reads.
pub const MODE: &[Item] = &[Item::ProxyMode, Item::ProxyConfig, Item::ConfigMaps];

/// The items that show who listens.
pub(in crate::check) const SOCKETS: &[Item] = &[
    Item::Sockets,
    Item::Tcp4,
    Item::Tcp6,
    Item::Udp4,
    Item::Udp6,
];

/// The input of a check.
#[derive(Debug)]
pub struct Facts<'a> {
    /// The node.
    pub node: &'a NodeSnapshot<'a>,
    /// When the evidence was collected, if known.
    pub now: Option<Time>,
    /// The difference between the kernel and the cluster's objects.
    pub drift: Drift,
    /// The question to answer: a switch or an upgrade is examined instead of the current state.
    pub question: Question,
    owners: OnceLock<Owners>,
    /// The states of other nodes, to which connections are followed.
    across: Option<&'static Across<'static>>,
    surveyed: OnceLock<Vec<Surveyed>>,
    outlook: OnceLock<Result<Outlook, Gap>>,
    explain: Option<Explain>,
    said: OnceLock<Vec<(&'static Check, Outcome)>>,
}

/// Returns the findings on Services that fail for a reason that no other check names.
pub type Explain = fn(&Facts<'_>, &[(&'static Check, Outcome)]) -> Verdict;

/// Programs that contain both the kubelet and kube-proxy.
const ONE_PROGRAM: [&str; 4] = ["k3s", "k3s-agent", "k3s-server", "kubelite"];

/// The source of the configured mode.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum ModeSource {
    /// kube-proxy's configuration file.
    File,
    /// The ConfigMap.
    ConfigMap,
}

impl ModeSource {
    /// Returns its name as text.
    pub const fn name(self) -> &'static str {
        match self {
            Self::File => "kube-proxy's config.conf",
            Self::ConfigMap => "ConfigMap kube-system/kube-proxy",
        }
    }
}

impl<'a> Facts<'a> {
    /// Returns the facts of `node`, collected at `now`.
    pub fn new(node: &'a NodeSnapshot<'a>, now: Option<Time>) -> Self {
        Self {
            node,
            now,
            drift: Drift::default(),
            question: Question::Now,
            owners: OnceLock::new(),
            across: None,
            surveyed: OnceLock::new(),
            outlook: OnceLock::new(),
            explain: None,
            said: OnceLock::new(),
        }
    }

    /// Sets the question.
    #[must_use]
    pub fn before(mut self, question: impl Into<Question>) -> Self {
        self.question = question.into();
        self
    }

    /// Sets the states of other nodes, to which connections are followed.
    #[must_use]
    pub const fn beside(mut self, across: Option<&'static Across<'static>>) -> Self {
        self.across = across;
        self
    }

    /// Sets the function that explains Services that fail for a reason that no other check names.
    #[must_use]
    pub const fn explained_by(mut self, explain: Explain) -> Self {
        self.explain = Some(explain);
        self
    }
}

impl Facts<'_> {
    /// Indexes the service ports, on a thread of its own.
    pub fn index_owners(&self) {
        self.owners();
    }

    /// Returns the service ports.
    pub fn owners(&self) -> &Owners {
        self.owners.get_or_init(|| Owners::new(self.node))
    }

    /// Returns the verdict on all Services, which is computed once.
    pub fn surveyed(&self) -> Result<&[Surveyed], Gap> {
        self.node.services()?;
        let all = self.surveyed.get_or_init(|| {
            let ports = self.owners().ports();
            survey(self.node, ports, &Family::BOTH, self.across)
        });
        Ok(all)
    }

    /// Returns the states of other nodes, to which connections are followed.
    pub const fn across(&self) -> Option<&'static Across<'static>> {
        self.across
    }

    /// Notes the outcomes of the other checks, for the check that runs last and explains the rest.
    pub fn hear(&self, outcomes: Vec<(&'static Check, Outcome)>) {
        // They are heard once.
        self.said.set(outcomes).ok();
    }

    /// Returns the findings on Services that fail for a reason that no other check reports.
    pub(in crate::check) fn unexplained(&self) -> Verdict {
        let unasked = || Gap::NotApplicable("the causes are not asked for".to_owned());
        let explain = self.explain.ok_or_else(unasked)?;
        explain(self, self.said.get().map_or(&[], Vec::as_slice))
    }

    /// Returns the verdict on all Services in the mode of a planned switch, which is computed once.
    pub fn outlook(&self, mode: Mode) -> Result<&Outlook, Gap> {
        self.node.services()?;
        let outlook = self
            .outlook
            .get_or_init(|| Outlook::of(self.node, self.owners().ports(), mode));
        outlook.as_ref().map_err(Clone::clone)
    }

    /// Returns the target mode of a planned switch.
    pub const fn target(&self) -> Option<Mode> {
        self.question.target()
    }

    /// Returns the target mode, or the current mode without one.
    pub fn mode(&self) -> Result<Mode, Gap> {
        self.target().map_or_else(|| self.current(), Ok)
    }

    /// Returns the current mode: the reported one, or the configured one if kube-proxy does not answer.
    pub fn current(&self) -> Result<Mode, Gap> {
        self.reported().or_else(|_| Ok(self.configured()?.0))
    }

    /// Returns the mode that kube-proxy reports.
    pub fn reported(&self) -> Result<Mode, Gap> {
        self.node.reported_mode()
    }

    /// Returns the configured mode, and its source.
    pub fn configured(&self) -> Result<(Mode, ModeSource), Gap> {
        match self.node.proxy_config() {
            Ok(_) => Ok((self.node.configured_mode()?, ModeSource::File)),
            Err(gap @ Gap::Failed(..)) => Err(gap),
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

    /// Returns the mode if it is one of `modes`; the check does not apply to others.
    pub(in crate::check) fn only_in(&self, modes: &[Mode]) -> Result<Mode, Gap> {
        let mode = self.mode()?;
        if modes.contains(&mode) {
            Ok(mode)
        } else {
            Err(Gap::NotApplicable(format!("the mode is {mode}")))
        }
    }

    /// Returns kube-proxy's configuration from its file, or else from the ConfigMap. A file that was read, and is empty or
    /// invalid, is a gap: kube-proxy reads it, not the ConfigMap.
    pub fn configuration(&self) -> Result<ProxyConfig, Gap> {
        match self.node.proxy_config() {
            Ok(config) => Ok(config.clone()),
            Err(gap @ Gap::Failed(..)) => Err(gap),
            Err(gap) => self.config_map().map_err(|_| gap),
        }
    }

    /// Returns the configuration in kube-proxy's ConfigMap.
    pub fn config_map(&self) -> Result<ProxyConfig, Gap> {
        let config = ProxyConfig::parse(self.config_map_text()?);
        config.map_err(|gap| {
            let gap = gap.about(Item::ConfigMaps);
            gap.reworded(|what| format!("kube-proxy's configuration: {what}"))
        })
    }

    /// Returns the file in kube-proxy's ConfigMap.
    pub fn config_map_text(&self) -> Result<&str, Gap> {
        let maps = self.node.config_maps()?;
        let text = maps
            .iter()
            .filter(|map: &&ConfigMap| map.metadata.name.starts_with("kube-proxy"))
            .find_map(text_of);
        text.ok_or_else(|| {
            let none = "no ConfigMap of kube-proxy contains a configuration";
            Gap::Absent(Item::ConfigMaps, none.to_owned())
        })
    }

    /// Returns the name of this node's Node object, if known.
    pub fn node_name(&self) -> Option<String> {
        self.called().ok()
    }

    /// Returns the name of this node's Node object. If kube-proxy uses a name that no Node has, it is the Node that matches this
    /// machine.
    pub fn called(&self) -> Result<String, Gap> {
        self.node.object_name()
    }

    /// Returns this node's Node object.
    pub fn this_node(&self) -> Result<&Node, Gap> {
        let nodes = self.node.nodes()?;
        let name = self.node_name();
        let none = || {
            let which = name.as_deref().unwrap_or("this node");
            Gap::Absent(Item::Nodes, format!("no Node object for {which}"))
        };
        nodes
            .iter()
            .find(|node| Some(&node.metadata.name) == name.as_ref())
            .ok_or_else(none)
    }

    /// Returns the version of kube-proxy. The kubelet's version does not count: it may be three releases away.
    pub fn version(&self) -> Result<ProxyVersion, Gap> {
        let found = self.node.proxy_version(self.node_name().as_deref())?;
        match found.source {
            Source::Metrics | Source::PodImage | Source::DaemonSetImage => Ok(found),
            Source::Node | Source::Kubelet if self.is_one_program() => Ok(found),
            Source::Node | Source::Kubelet => {
                let known = format!("only the kubelet's version is known, {}", found.version);
                let unread = self.node.evidence().text(Item::Metrics).err();
                Err(unread.unwrap_or(Gap::Absent(Item::Metrics, known)))
            }
        }
    }

    /// Returns whether the kubelet and kube-proxy are one program here, as in k3s and `MicroK8s`: then they have one version.
    fn is_one_program(&self) -> bool {
        let processes = self.node.processes();
        let mut here = processes.iter().flat_map(|all| kube_proxies(all));
        here.any(|process| ONE_PROGRAM.contains(&process.name.as_str()))
    }

    /// Returns the IP families that Services or pods use; a gap if nothing that was read has any.
    pub fn families(&self) -> Result<Vec<Family>, Gap> {
        let (pods, services) = (self.pod_families(), self.node.services());
        let mut found: Vec<_> = pods.iter().flatten().copied().collect();
        let all = services.iter().flat_map(|all| all.iter());
        found.extend(families_of(
            all.flat_map(|service| &service.spec.cluster_ips),
        ));
        found.sort_unstable();
        found.dedup();
        match (pods, services) {
            (Err(gap), _) if found.is_empty() => Err(gap),
            (_, Err(gap)) if found.is_empty() => Err(gap),
            _ => Ok(found),
        }
    }

    /// Returns the IP families that pods use; a gap if nothing that was read has any.
    pub fn pod_families(&self) -> Result<Vec<Family>, Gap> {
        let node = self.this_node();
        let config = self.node.proxy_config();
        let pods = node.iter().flat_map(|node| node.spec.pod_cidrs.iter());
        let found = families_of(pods.chain(config.iter().map(|config| &config.cluster_cidr)));
        match (node, config) {
            (Err(gap), _) if found.is_empty() => Err(gap),
            (_, Err(gap)) if found.is_empty() => Err(gap),
            _ => Ok(found),
        }
    }
}

/// Returns the IP families of `texts`, which are addresses or prefixes.
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
