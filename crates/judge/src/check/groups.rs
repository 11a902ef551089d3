//! The groups of checks, and the choice of checks by question, name and need.

use std::collections::BTreeSet;

use super::core::Facts;
use super::diagnosis::Because;
use super::row::{CONFIG_MAP, Check, Question};
use super::{
    api, bugs, cni, conntrack, deprecation, drift, dummy_device, ipset, iptables_backend,
    iptables_rules, kernel, kube_proxy, mixed_modes, nftables_rules, node_port, services, sysctl,
    upgrade, virtual_servers,
};
use kpx_node::evidence::Item;

impl Check {
    /// Returns the name of its group.
    pub fn group(&self) -> &'static str {
        let letters = self.id.get(..2).unwrap_or(self.id);
        let known = GROUPS.iter().find(|group| group.code == letters);
        known.map_or("other", |group| group.name)
    }
}

/// A group of checks.
#[derive(Debug)]
pub struct Group {
    /// The first two letters of its checks' ids.
    pub code: &'static str,
    /// A kebab-case name.
    pub name: &'static str,
    /// The subject of its checks.
    pub about: &'static str,
    /// The tables of its checks, one per file.
    pub(super) checks: &'static [&'static [Check]],
}

impl Group {
    pub(super) const fn new(
        code: &'static str,
        name: &'static str,
        about: &'static str,
        checks: &'static [&'static [Check]],
    ) -> Self {
        Self {
            code,
            name,
            about,
            checks,
        }
    }

    /// Iterates over the checks of the group.
    pub fn checks(&self) -> impl Iterator<Item = &'static Check> + use<> {
        self.checks.iter().copied().flatten()
    }
}

/// The groups, in the order in which the doctor runs and prints them.
pub const GROUPS: &[Group] = &[
    Group::new(
        "MX",
        "mixed-modes",
        "leftovers of another mode",
        mixed_modes::CHECKS,
    ),
    Group::new(
        "KP",
        "kube-proxy",
        "kube-proxy's configuration and health",
        kube_proxy::CHECKS,
    ),
    Group::new(
        "KB",
        "bugs",
        "known bugs of kube-proxy's release",
        &[bugs::CHECKS],
    ),
    Group::new("KM", "kernel", "the kernel and its modules", kernel::CHECKS),
    Group::new("SY", "sysctl", "sysctls", sysctl::CHECKS),
    Group::new(
        "IB",
        "iptables-backend",
        "the backends of iptables",
        iptables_backend::CHECKS,
    ),
    Group::new(
        "IR",
        "iptables-rules",
        "rules of iptables",
        iptables_rules::CHECKS,
    ),
    Group::new(
        "NF",
        "nftables-rules",
        "kube-proxy's tables in nftables",
        &[nftables_rules::CHECKS],
    ),
    Group::new(
        "VS",
        "virtual-servers",
        "virtual servers of IPVS",
        virtual_servers::CHECKS,
    ),
    Group::new(
        "DV",
        "dummy-device",
        "the link kube-ipvs0",
        dummy_device::CHECKS,
    ),
    Group::new("IS", "ipset", "IP sets", &[ipset::CHECKS]),
    Group::new(
        "NP",
        "node-port",
        "NodePorts and sockets",
        node_port::CHECKS,
    ),
    Group::new("CT", "conntrack", "connection tracking", conntrack::CHECKS),
    Group::new("AP", "api", "objects of the cluster", api::CHECKS),
    Group::new("CN", "cni", "the network plugin", cni::CHECKS),
    Group::new(
        "DP",
        "deprecation",
        "what later releases remove",
        &[deprecation::CHECKS],
    ),
    Group::new("SV", "services", "Services that fail", &[services::CHECKS]),
    Group::new(
        "UP",
        "upgrade",
        "what an upgrade of kube-proxy changes",
        &[upgrade::CHECKS],
    ),
];

/// Returns the known names of this node, of kube-proxy's pod on it and of its ConfigMap, by the words that stand for them in
/// commands.
pub fn names(facts: &Facts<'_>) -> Vec<(&'static str, String)> {
    let node = facts.node_name();
    let pod = node
        .as_deref()
        .and_then(|node| kube_proxy::pod(facts, Some(node)));
    let map = Some(facts.map_name()).filter(|name| name != "kube-proxy");
    let map = map.map(|name| format!("configmap {name}"));
    let names = [("NODE", node), ("POD", pod), (CONFIG_MAP, map)];
    names
        .into_iter()
        .filter_map(|(word, name)| Some((word, name?)))
        .collect()
}

/// Iterates over every check, group by group.
pub fn all() -> impl Iterator<Item = &'static Check> {
    GROUPS.iter().flat_map(Group::checks)
}

/// Returns the checks that answer `question`.
pub fn asked(question: impl Into<Question>) -> Vec<&'static Check> {
    let question = question.into();
    all().filter(|check| check.is_asked(question)).collect()
}

/// Returns the checks of the current state, except those that judge every Service.
pub fn beside_the_verdict() -> Vec<&'static Check> {
    let mut checks = asked(None);
    checks.retain(|check| !sysctl::judges(check) && !explains(check));
    checks
}

/// Returns whether `check` needs the outcomes of all others first.
pub fn explains(check: &Check) -> bool {
    services::explains(check)
}

/// Returns the checks that say why kube-proxy does not program the node, the checks of their causes, and the checks of objects that
/// kube-proxy has not programmed.
pub fn of_proxy() -> Vec<&'static Check> {
    let ids = kube_proxy::OF_PROXY.into_iter();
    let ids = ids.chain(
        all()
            .filter(|check| kube_proxy::OF_PROXY.contains(&check.id))
            .flat_map(|check| {
                let causes = check.caused_by.iter();
                causes.flat_map(Because::checks).copied()
            }),
    );
    let ids: BTreeSet<&str> = ids.collect();
    asked(None)
        .into_iter()
        .filter(|check| ids.contains(check.id) || check.needs.contains(&drift::DRIFT))
        .collect()
}

/// Returns the checks that `word` names, ignoring case: an id, a name, or the name or code of a group.
pub fn named(word: &str) -> Vec<&'static Check> {
    let is = |name: &str| name.eq_ignore_ascii_case(word);
    let group = |check: &Check| is(check.group()) || is(&check.id[..2]);
    all()
        .filter(|check| is(check.id) || is(check.name) || group(check))
        .collect()
}

/// Returns the items that `checks` read.
pub fn needs(checks: &[&Check]) -> BTreeSet<Item> {
    checks.iter().flat_map(|check| check.items()).collect()
}
