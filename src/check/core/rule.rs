//! What is said of one rule: as evidence, and how to remove it.

use super::{Fix, Proof};
use crate::owner::software::Maker;
use crate::trace::Rule;
use crate::verdict::By;

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

/// Returns `rule` as evidence.
pub(in crate::check) fn proof_of(rule: &Rule) -> Proof {
    let text = match (rule.number, rule.is_nft()) {
        (0, true) => format!("{} policy drop", rule.chain),
        (0, false) => format!("-P {} DROP", rule.chain),
        (_, true) => format!("{}: {}", rule.chain, rule.rule),
        (_, false) => format!("-A {} {}", rule.chain, rule.rule),
    };
    Proof::rule(rule.family, rule.table.as_str(), text)
}

/// Returns how to remove the rule: where its maker keeps it, or the command that deletes it.
pub fn rule_fix(by: &By) -> Fix {
    let who = match by.maker {
        Maker::Other(who) => Some(who),
        Maker::Kubelet => Some("the kubelet"),
        _ => None,
    };
    let Some(who) = who else {
        return match &by.undo {
            Some(command) if by.rule.number == 0 => Fix::on_node(ACCEPT, command.clone()),
            Some(command) => Fix::on_node(DELETE, command.clone()),
            None => Fix::said(DELETE),
        };
    };
    let text =
        format!("Change the rule in the configuration of {who}, which would otherwise restore it.");
    match configuration(who) {
        Some(Place::Node(command)) => Fix::on_node(text, command),
        Some(Place::Cluster(command)) => Fix::kubectl(text, command),
        None => Fix::on_node(text, by.listing.clone()),
    }
}
