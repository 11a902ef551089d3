//! One rule of a node, by its place.

use serde::Serialize;

use super::{Fix, Proof};
use crate::net::Family;
use crate::node::{IptablesBackend, NodeSnapshot};
use crate::owner::software::Maker;
use crate::trace::{Hop, Subsystem, mismatch};

/// The fix of a rule without a known owner.
const DELETE: &str =
    "If the rule is not needed, delete it here and in the configuration that creates it.";

/// The fix of a policy without a known owner.
const ACCEPT: &str = "This lets all packets pass. To keep the policy, add rules to the chain that accept those of pods and \
                      Services.";

/// A command that shows how software is configured.
enum Place {
    /// On the node.
    Node(&'static str),
    /// In the cluster.
    Cluster(&'static str),
}

/// Returns the command that shows the configuration of `who` with the reasons for its rules.
fn configuration(who: &str) -> Option<Place> {
    Some(match who {
        "Docker" => Place::Node("docker ps"),
        "fail2ban" => Place::Node("fail2ban-client status"),
        "firewalld" => Place::Node("firewall-cmd --list-all-zones"),
        "libvirt" => Place::Node("virsh net-list --all"),
        "ufw" => Place::Node("ufw status verbose"),
        "Antrea" | "Calico" | "Cilium" | "kube-router" | "Weave Net" => {
            Place::Cluster("kubectl get networkpolicies -A")
        }
        "host ports" => Place::Cluster("kubectl get pods -A -o wide"),
        _ => return None,
    })
}

/// A rule, by its place.
#[derive(Clone, Debug, Eq, Ord, PartialEq, PartialOrd, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct Rule {
    /// Its IP family; IPv4 for a table of both.
    pub family: Family,
    /// Where it is.
    pub subsystem: Subsystem,
    /// Its table; in nftables with its family.
    pub table: String,
    /// Its chain.
    pub chain: String,
    /// The number in the chain, from 1; 0 for the chain's policy.
    pub number: usize,
    /// The rule in full; empty for a policy.
    pub rule: String,
}

impl Rule {
    /// Returns the rule of `hop`, whose packet is of `family`.
    pub fn of(hop: &Hop, family: Family) -> Self {
        // A table of family inet covers both.
        let covers_both = hop.subsystem == Subsystem::Nftables && hop.table.starts_with("inet ");
        Self {
            family: if covers_both { Family::V4 } else { family },
            subsystem: hop.subsystem,
            table: hop.table.clone(),
            chain: hop.chain.clone(),
            number: hop.number,
            rule: hop.rule.clone(),
        }
    }

    /// Returns whether it is the rule of `hop`.
    pub fn is(&self, hop: &Hop) -> bool {
        let place = (self.subsystem, &self.table, &self.chain, self.number);
        place == (hop.subsystem, &hop.table, &hop.chain, hop.number) && self.rule == hop.rule
    }

    /// Returns whether it matches packets by destination.
    pub(in crate::check) fn is_particular(&self) -> bool {
        mismatch::is_particular(self.number, &self.rule)
    }

    fn is_nft(&self) -> bool {
        self.subsystem == Subsystem::Nftables
    }

    /// Returns the program that lists and changes it.
    fn program(&self, node: &NodeSnapshot<'_>) -> String {
        let holds = |store| node.saved(store, self.family).is_ok();
        let other = self.subsystem == Subsystem::IptablesOther;
        // The other backend's items show which one is in use.
        let back_end = match (
            other,
            holds(IptablesBackend::Legacy),
            holds(IptablesBackend::Nft),
        ) {
            (true, true, _) | (false, _, true) => "-legacy",
            (true, false, true) | (false, true, false) => "-nft",
            (_, false, false) => "",
        };
        match (self.is_nft(), self.family) {
            (true, _) => "nft".to_owned(),
            (false, Family::V4) => format!("iptables{back_end}"),
            (false, Family::V6) => format!("ip6tables{back_end}"),
        }
    }

    /// Returns its name in the output of the tools: `iptables filter FORWARD rule 2`.
    pub(in crate::check) fn name(&self, node: &NodeSnapshot<'_>) -> String {
        let which = match self.number {
            0 => "policy".to_owned(),
            number => format!("rule {number}"),
        };
        let program = self.program(node);
        format!("{program} {} {} {which}", self.table, self.chain)
    }

    /// Returns it as evidence.
    pub(in crate::check) fn proof(&self) -> Proof {
        let rule = match (self.number, self.is_nft()) {
            (0, true) => format!("{} policy drop", self.chain),
            (0, false) => format!("-P {} DROP", self.chain),
            (_, true) => format!("{}: {}", self.chain, self.rule),
            (_, false) => format!("-A {} {}", self.chain, self.rule),
        };
        Proof::rule(self.family, self.table.as_str(), rule)
    }

    /// Returns how to remove it: where `maker` keeps it, or the command that deletes it.
    pub fn removal(&self, node: &NodeSnapshot<'_>, maker: Maker) -> Fix {
        let who = match maker {
            Maker::Other(who) => Some(who),
            Maker::Kubelet => Some("the kubelet"),
            _ => None,
        };
        let Some(who) = who else {
            return match self.deletion(node) {
                Some(command) => Fix::on_node(DELETE, command),
                None if self.number == 0 => Fix::on_node(ACCEPT, self.accepting(node)),
                None => Fix::said(DELETE),
            };
        };
        let text = format!(
            "Change the rule in the configuration of {who}, which would otherwise restore it."
        );
        match configuration(who) {
            Some(Place::Node(command)) => Fix::on_node(text, command),
            Some(Place::Cluster(command)) => Fix::kubectl(text, command),
            None => Fix::on_node(text, self.listing(node)),
        }
    }

    /// Returns the command that makes the policy of its chain accept.
    fn accepting(&self, node: &NodeSnapshot<'_>) -> String {
        let (program, table, chain) = (self.program(node), &self.table, &self.chain);
        if self.is_nft() {
            format!("nft 'chain {table} {chain} {{ policy accept; }}'")
        } else {
            format!("{program} -t {table} -P {chain} ACCEPT")
        }
    }

    /// Returns the command that lists its chain.
    fn listing(&self, node: &NodeSnapshot<'_>) -> String {
        let (program, table, chain) = (self.program(node), &self.table, &self.chain);
        if self.is_nft() {
            format!("nft -a list chain {table} {chain}")
        } else {
            format!("{program} -t {table} -S {chain}")
        }
    }

    /// Returns the command that deletes it.
    fn deletion(&self, node: &NodeSnapshot<'_>) -> Option<String> {
        let at = self.number.checked_sub(1)?;
        if self.is_nft() {
            let (family, name) = self.table.split_once(' ')?;
            let chain = node.nft().ok()?.table(family, name)?.chain(&self.chain)?;
            let handle = chain.rules.get(at)?.handle?;
            return Some(format!(
                "nft delete rule {family} {name} {} handle {handle}",
                self.chain
            ));
        }
        let program = self.program(node);
        Some(format!(
            "{program} -t {} -D {} {}",
            self.table, self.chain, self.rule
        ))
    }
}
