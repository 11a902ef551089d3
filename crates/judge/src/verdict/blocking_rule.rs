//! A rule that stops packets, and how to let packets pass it.

use std::net::SocketAddr;

use crate::trace::{Accepted, Hop, Insertion, Rule, why};
use kpx_node::evidence::Item;
use kpx_node::net::{Cidr, Family, Proto};
use kpx_node::node::NodeSnapshot;
use kpx_node::node::agents::Agent;
use kpx_node::node::processes::{kube_proxies, unit};
use kpx_node::owner::chain_owner::Maker;

/// A rule that stops packets.
#[expect(clippy::struct_excessive_bools, reason = "each is a fact of its own")]
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct By {
    /// The rule.
    pub rule: Rule,
    /// Its maker.
    pub maker: Maker,
    /// Whether that is a network plugin whose agent runs here; `None` if it is none, or if that is not known.
    pub agent: Option<Agent>,
    /// The network plugin's agent, if the rule ends packets of pods unknown to the plugin.
    pub behind: Option<PluginAgent>,
    /// The NetworkPolicies that apply where it holds packets back, as `NAMESPACE/NAME`; `None` if it is of no policy that is in force.
    pub policies: Option<Vec<String>>,
    /// The pod that uses the host's network and whose policies it applies to the whole node, as `NAMESPACE/NAME`; empty if its name is
    /// not known.
    pub pod_of_host: Option<String>,
    /// The pod that uses the host's network and for which a service mesh wrote the rule there, as `NAMESPACE/NAME`.
    pub meshed_pod: Option<String>,
    /// The command that removes it, if it is not a policy.
    pub undo: Option<String>,
    /// Where a command puts a rule before it.
    pub insertion: Insertion,
    /// The command that lists its chain.
    pub listing: String,
    /// The command that lets the cluster's own networks pass, if it drops a range of sources.
    pub sparing: Option<String>,
    /// The command that restricts it to packets for the node's own addresses, if it translates all packets to a port.
    pub localized: Option<String>,
    /// The command that leaves packets to pods out of it, if it replaces the source of packets.
    pub excepting: Option<String>,
    /// The command that makes it use the node's own address, if it replaces the source of packets by one that the node does not have.
    pub masquerading: Option<String>,
    /// The program that changes rules of its back end and family: `ip6tables-legacy`.
    pub program: String,
    /// The command that takes addresses of the cluster out of the set whose members it stops.
    pub release: Option<String>,
    /// The command that lists the set by which a rule before it accepts packets, if it drops the others.
    pub allowed: Option<String>,
    /// Whether another rule fills that set.
    pub is_filled: bool,
    /// Whether it ends all packets that reach it, or all of a link, to an address or to a port: rules before it accept some.
    pub closes: bool,
    /// Whether it is one of firewalld, which forwards only translated packets that it has translated itself (`StrictForwardPorts`).
    pub is_strict: bool,
    /// Whether packets to the node itself pass its chain.
    pub is_of_input: bool,
    /// How to accept the packets that it stops, one for each of their families.
    pub passes: Vec<Pass>,
}

/// How to accept packets of one family before a rule.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Pass {
    /// The family.
    pub family: Family,
    /// The packets.
    pub packets: Accepted,
    /// The command that accepts packets before the rule: packets of [pods](crate::trace::PODS), or the packets that it
    /// stops.
    pub before: String,
    /// The range of the pods, if kube-proxy's configuration has it.
    pub pods: Option<Cidr>,
}

impl Pass {
    pub(super) fn new(
        rule: &Rule,
        family: Family,
        packets: Accepted,
        node: &NodeSnapshot<'_>,
    ) -> Self {
        let config = node.proxy_config().ok();
        Self {
            family,
            packets,
            before: rule.before(node, family, packets),
            pods: config.and_then(|config| config.cluster_cidr(family)),
        }
    }
}

/// Returns how to accept the packets of pods before `rule`; in a chain of forwarded packets, also the packets to pods.
pub(super) fn passes(rule: &Rule, family: Family, node: &NodeSnapshot<'_>) -> Vec<Pass> {
    let packets = if rule.is_of_forward(node) {
        &[Accepted::FromPods, Accepted::ToPods][..]
    } else {
        &[Accepted::FromPods]
    };
    let all = packets.iter();
    all.map(|accepted| Pass::new(rule, family, *accepted, node))
        .collect()
}

/// Returns whether `rule` holds back packets that no NetworkPolicy allows. A rule that a network plugin has left behind is no policy,
/// nor is one that applies a pod's policies to the whole node.
pub(super) fn is_of_policy(rule: &Rule, maker: Maker, node: &NodeSnapshot<'_>) -> bool {
    rule.is_of_policy(node)
        && node.agent_of(rule.maker(node, maker)) != Some(Agent::Gone)
        && rule.pod_of_host(node).is_none()
}

/// Labels and annotations of pods to which service meshes add their proxy, and the mesh.
pub(super) const MESHED: &[(&str, &str)] = &[
    ("Linkerd", "linkerd.io/control-plane-ns"),
    ("Linkerd", "linkerd.io/proxy-version"),
    ("Istio", "security.istio.io/tlsMode"),
    ("Istio", "sidecar.istio.io/status"),
];

/// Returns a pod of this node that uses the host's network and has the proxy of `maker`, a service mesh.
pub(super) fn meshed_pod(maker: Maker, node: &NodeSnapshot<'_>) -> Option<String> {
    let Maker::Other(mesh) = maker else {
        return None;
    };
    let signs = || {
        MESHED
            .iter()
            .filter(|(of, _)| *of == mesh)
            .map(|(_, sign)| *sign)
    };
    signs().next()?;
    let here = node.name().ok()?;
    let mut pods = node.pods().ok()?.iter();
    let pod = pods.find(|pod| {
        let meta = &pod.metadata;
        let is_signed =
            |sign| meta.labels.contains_key(sign) || meta.annotations.contains_key(sign);
        pod.spec.host_network
            && pod.spec.node_name.as_deref() == Some(here.as_str())
            && signs().any(is_signed)
    })?;
    Some(format!("{}/{}", pod.metadata.namespace, pod.metadata.name))
}

/// Returns whether firewalld is configured to forward only translated packets that it has translated itself.
pub(super) fn has_strict_ports(node: &NodeSnapshot<'_>) -> bool {
    let text = node.evidence().text(Item::Firewalls).unwrap_or_default();
    let mut values = text
        .lines()
        .filter_map(|line| line.split_once("StrictForwardPorts="));
    values.any(|(_, value)| matches!(value.trim().to_lowercase().as_str(), "yes" | "true"))
}

/// What runs the agent of a network plugin on the node.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum PluginAgent {
    /// A pod.
    Pod {
        /// The pod's namespace.
        namespace: String,
        /// The pod's name.
        name: String,
    },
    /// A unit of systemd.
    Unit(String),
    /// It is not known.
    Unknown,
}

impl By {
    /// Returns `rule` of `node`; by its name and content, `maker` made it.
    pub fn new(rule: Rule, maker: Maker, node: &NodeSnapshot<'_>) -> Self {
        let maker = rule.maker(node, maker);
        Self {
            agent: node.agent_of(maker),
            behind: rule.is_of_unknown_pod(node).then(|| {
                let pod = node.agent_pod(maker).map(|pod| &pod.metadata);
                let mut processes = node.processes().into_iter().flat_map(kube_proxies);
                match pod {
                    Some(pod) => PluginAgent::Pod {
                        namespace: pod.namespace.clone(),
                        name: pod.name.clone(),
                    },
                    // k3s contains kube-router, too.
                    None => processes
                        .find_map(unit)
                        .map_or(PluginAgent::Unknown, |unit| {
                            PluginAgent::Unit(unit.to_owned())
                        }),
                }
            }),
            policies: is_of_policy(&rule, maker, node).then(|| rule.policies(node)),
            pod_of_host: rule.pod_of_host(node),
            meshed_pod: meshed_pod(maker, node),
            undo: rule.undo(node),
            listing: rule.listing(node),
            release: rule.release(node),
            allowed: rule.allowed(node),
            is_filled: rule.is_of_filled_set(node),
            program: rule.program(node),
            sparing: rule.sparing(node),
            localized: rule.localized(node),
            excepting: rule.excepting(node),
            masquerading: rule.masquerading(node),
            closes: rule.closes(node),
            is_strict: maker == Maker::Other("firewalld") && has_strict_ports(node),
            is_of_input: rule.is_of_input(node),
            insertion: rule.insertion(node),
            passes: passes(&rule, rule.family, node),
            maker,
            rule,
        }
    }

    /// Returns the same for packets of `families`, if packets of both pass the rule.
    #[must_use]
    pub fn of_families(
        mut self,
        families: impl IntoIterator<Item = Family>,
        node: &NodeSnapshot<'_>,
    ) -> Self {
        if self.rule.covers_both() {
            let families = families.into_iter();
            self.passes = families
                .flat_map(|family| passes(&self.rule, family, node))
                .collect();
        }
        self
    }

    /// Returns the same for packets of the node itself, which go to pods.
    #[must_use]
    pub fn from_host(self, family: Family, node: &NodeSnapshot<'_>) -> Self {
        Self {
            passes: vec![Pass::new(&self.rule, family, Accepted::ToPods, node)],
            ..self
        }
    }

    /// Returns the same for packets from outside to `at`.
    #[must_use]
    pub fn from_outside(self, at: SocketAddr, proto: Proto, node: &NodeSnapshot<'_>) -> Self {
        let packets = if self.is_of_input {
            Accepted::To(at, proto)
        } else {
            Accepted::ToPods
        };
        let family = Family::of(at.ip());
        Self {
            passes: vec![Pass::new(&self.rule, family, packets, node)],
            ..self
        }
    }

    /// Returns the same, also for packets of `family` after the first one of a connection: a rule that closes more lets these pass.
    #[must_use]
    pub(super) fn of_further(mut self, family: Family, node: &NodeSnapshot<'_>) -> Self {
        if self.closes {
            let pass = Pass::new(&self.rule, family, Accepted::Established, node);
            self.passes.insert(0, pass);
        }
        self
    }

    /// Returns whether `other` is the same rule; then this one is for the packets of both.
    pub(crate) fn joins(&mut self, other: &Self) -> bool {
        let is_same = self.rule == other.rule && self.maker == other.maker;
        if is_same {
            let mut new: Vec<Pass> = other.passes.clone();
            new.retain(|pass| !self.passes.contains(pass));
            self.passes.extend(new);
        }
        is_same
    }

    /// Returns the rule of `hop`, if it is not kube-proxy's.
    pub(super) fn foreign(hop: &Hop, family: Family, node: &NodeSnapshot<'_>) -> Option<Box<Self>> {
        let maker = why::maker(hop);
        let is_foreign = !matches!(maker, Maker::KubeProxy | Maker::Both);
        is_foreign.then(|| {
            let by = Self::new(Rule::of(hop, family), maker, node);
            Box::new(by.of_families([family], node))
        })
    }
}
