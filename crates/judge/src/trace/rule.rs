//! One rule of a node, by its place.

mod edit;
mod text;

use std::collections::BTreeSet;
use std::fmt;
use std::net::SocketAddr;

use serde::Serialize;
use text::{conditions, rest};

use super::{Hop, Subsystem, mismatch};
use kpx_node::backend::iptables::model::{Chain, Match, Rule as Iptables, Target};
use kpx_node::backend::nftables::model::{Rule as Native, Statement};
use kpx_node::net::{Family, Proto};
use kpx_node::node::{IptablesBackend, NodeSnapshot};
use kpx_node::owner::chain_owner::{self, Maker};

/// The range of the pods in a command, where it is not known.
pub const PODS: &str = "PODS";

/// Firewalls whose last rule or policy does not have their name, and whether they only set policies.
const FIREWALLS: &[(&str, bool)] = &[
    ("firewalld", false),
    ("ufw", false),
    (chain_owner::CSF, false),
    ("Docker", true),
];

/// A rule, by its place.
#[derive(Clone, Debug, Eq, Ord, PartialEq, PartialOrd, Serialize)]
#[cfg_attr(feature = "testing", derive(schemars::JsonSchema))]
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

/// Packets that a rule of a firewall is to accept.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Accepted {
    /// Packets of [pods](PODS).
    FromPods,
    /// Packets to pods.
    ToPods,
    /// Packets to this address and port.
    To(SocketAddr, Proto),
    /// Packets after the first one of a connection.
    Established,
}

/// Where a command puts a rule before another one.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Insertion {
    /// The command without what the new rule matches: `iptables -t filter -I INPUT 3`.
    head: String,
    is_nft: bool,
}

impl Insertion {
    /// Returns the command that accepts the packets which match `iptables`, or `nft` in nftables.
    pub fn accept(&self, iptables: &str, nft: &str) -> String {
        let head = &self.head;
        if self.is_nft {
            format!("{head} {nft} accept")
        } else {
            format!("{head} {iptables} -j ACCEPT")
        }
    }
}

impl Rule {
    /// Returns the rule of `hop`, whose packet is of `family`.
    pub fn of(hop: &Hop, family: Family) -> Self {
        let mut rule = Self {
            family,
            subsystem: hop.subsystem,
            table: hop.table.clone(),
            chain: hop.chain.clone(),
            number: hop.number,
            rule: hop.rule.clone(),
        };
        if rule.covers_both() {
            rule.family = Family::V4;
        }
        rule
    }

    /// Returns whether it is the rule of `hop`.
    pub fn is(&self, hop: &Hop) -> bool {
        let place = (self.subsystem, &self.table, &self.chain, self.number);
        place == (hop.subsystem, &hop.table, &hop.chain, hop.number) && self.rule == hop.rule
    }

    /// Returns whether it matches packets by destination.
    pub fn is_particular(&self) -> bool {
        mismatch::is_particular(self.number, &self.rule)
    }

    /// Returns its table in words; one of arptables with the program, as iptables has tables of the same names.
    pub fn named_table(&self) -> String {
        match self.subsystem {
            Subsystem::Arptables => format!("{} of arptables-legacy", self.table),
            _ => self.table.clone(),
        }
    }

    /// Returns whether it is one of nftables.
    pub fn is_nft(&self) -> bool {
        self.subsystem == Subsystem::Nftables
    }

    /// Returns how many packets have met it, if its counter is shown.
    pub fn counter(&self, node: &NodeSnapshot<'_>) -> Option<u64> {
        if self.is_nft() {
            let mut statements = self.native(node)?.statements.iter();
            return statements.find_map(|statement| match statement {
                Statement::Counter { packets, .. } => Some(*packets),
                _ => None,
            });
        }
        Some(self.with_those_before(node)?.0.counters?.packets)
    }

    /// Returns the program that lists and changes it.
    pub fn program(&self, node: &NodeSnapshot<'_>) -> String {
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
        match (self.subsystem, self.family) {
            (Subsystem::Nftables, _) => "nft".to_owned(),
            (Subsystem::Arptables, _) => "arptables-legacy".to_owned(),
            (_, Family::V4) => format!("iptables{back_end}"),
            (_, Family::V6) => format!("ip6tables{back_end}"),
        }
    }

    /// Returns its name in the output of the tools: `iptables filter FORWARD rule 2`.
    pub fn name(&self, node: &NodeSnapshot<'_>) -> String {
        let which = match self.number {
            0 => "policy".to_owned(),
            number => format!("rule {number}"),
        };
        let program = self.program(node);
        format!("{program} {} {} {which}", self.table, self.chain)
    }

    /// Returns who made it; `known` is the maker that its own name and content show. If a built-in chain jumps to chains of a
    /// firewall, its last rule or its policy belongs to that firewall. A rule that ends packets behind a jump, once the jump
    /// has returned, belongs to the maker of the jump.
    pub fn maker(&self, node: &NodeSnapshot<'_>, known: Maker) -> Maker {
        let is_open = matches!(known, Maker::Unknown | Maker::Kernel);
        if is_open && let Some(to) = self.ends_rest_of(node) {
            return chain_owner::maker_of_chain(&self.table, to);
        }
        if !is_open || self.is_nft() || !self.is_last() {
            return known;
        }
        let stores = match self.subsystem {
            Subsystem::Arptables => &[][..],
            Subsystem::IptablesOther => &[IptablesBackend::Legacy, IptablesBackend::Nft][..],
            _ => &[IptablesBackend::InUse],
        };
        let rules = stores
            .iter()
            .filter_map(|store| node.iptables(*store, self.family).ok());
        let tables: Vec<_> = rules.filter_map(|rules| rules.table(&self.table)).collect();
        let enters = |chain: &str| -> Vec<Maker> {
            let chains = tables.iter().filter_map(|table| table.chain(chain));
            let targets = chains.flat_map(|chain| chain.rules.iter().map(|rule| &rule.target));
            targets
                .filter_map(|target| match target {
                    Some(Target::Jump(to) | Target::Goto(to)) => {
                        Some(chain_owner::maker_of_chain(&self.table, to))
                    }
                    _ => None,
                })
                .collect()
        };
        let is_policy = self.number == 0;
        let of = |makers: &[Maker], with_policies: bool| {
            let mut firewalls = FIREWALLS.iter();
            let found = firewalls.find(|(name, only_policy)| {
                makers.contains(&Maker::Other(name)) && (with_policies || !only_policy)
            });
            found.map(|(name, _)| Maker::Other(name))
        };
        // A firewall sets the policies of chains that it does not use, too.
        let of_table = || {
            let chains = ["INPUT", "FORWARD", "OUTPUT"].into_iter();
            let makers: Vec<Maker> = chains.flat_map(enters).collect();
            of(&makers, false)
        };
        of(&enters(&self.chain), is_policy)
            .or_else(|| is_policy.then(of_table).flatten())
            .unwrap_or(known)
    }

    /// Returns whether it holds back packets that no NetworkPolicy allows: a rule of Calico's, kube-router's, Weave Net's or
    /// Azure's chain for the policies of a pod, or the last rule of Weave Net's chain.
    pub fn is_of_policy(&self, node: &NodeSnapshot<'_>) -> bool {
        let chain = policy_name(&self.chain);
        let is_of = |names: &[&str]| names.iter().any(|name| chain.starts_with(name));
        self.blocks()
            && !self.is_of_unknown_pod(node)
            && (own_policies(&self.chain).is_some_and(|words| self.rule.contains(words))
                || self.ends_rest_of(node) == Some("WEAVE-NPC")
                || is_of(&[
                    "cali-pi-",
                    "cali-po-",
                    "KUBE-NWPLCY-",
                    "WEAVE-NPC",
                    "AZURE-NPM-",
                ]))
    }

    /// Returns whether it ends the packets of pods of which the network plugin knows nothing: Calico's rule for links without rules,
    /// kube-router's rule for a pod without any policy, not even the default one, or the last rule of Weave Net's chain where no
    /// NetworkPolicy applies to any pod.
    pub fn is_of_unknown_pod(&self, node: &NodeSnapshot<'_>) -> bool {
        let applies_none = || {
            let rules = node.iptables(IptablesBackend::InUse, self.family).ok()?;
            let of_policies = rules.table(&self.table)?.chain("WEAVE-NPC-INGRESS")?;
            Some(of_policies.rules.is_empty())
        };
        let asks_none = || {
            // Older releases have no default one.
            let rules = node.iptables(IptablesBackend::InUse, self.family).ok()?;
            rules.table(&self.table)?.chain("KUBE-NWPLCY-DEFAULT")?;
            let chain = self.chain_of(node)?;
            let mut targets = chain.rules.iter().filter_map(|rule| rule.target.as_ref());
            let is_policy =
                |to: &Target<'_>| matches!(to, Target::Jump(to) if to.starts_with("KUBE-NWPLCY-"));
            Some(!targets.any(is_policy))
        };
        let is_of_pod = self.chain.starts_with("KUBE-POD-FW-");
        let dispatches = ["cali-to-wl-dispatch", "cali-from-wl-dispatch"];
        let is_calicos = dispatches.iter().any(|name| self.chain.contains(name));
        self.blocks() && (is_calicos || is_of_pod && asks_none() == Some(true))
            || self.ends_rest_of(node) == Some("WEAVE-NPC") && applies_none() == Some(true)
    }

    /// Returns the chain of the node in which it is, if it is of iptables in use.
    // A live trace reads no more rules than it needs.
    fn chain_of<'n>(&self, node: &'n NodeSnapshot<'_>) -> Option<&'n Chain<'n>> {
        if self.subsystem != Subsystem::Iptables {
            return None;
        }
        let rules = node.iptables(IptablesBackend::InUse, self.family).ok()?;
        rules.table(&self.table)?.chain(&self.chain)
    }

    /// Returns it as it is in its chain, if it is of nftables.
    fn native<'n>(&self, node: &'n NodeSnapshot<'_>) -> Option<&'n Native> {
        let at = self.number.checked_sub(1)?;
        let (family, name) = self.table.split_once(' ')?;
        let chain = node.nft().ok()?.table(family, name)?.chain(&self.chain)?;
        chain.rules.get(at)
    }

    /// Returns it as it is in its chain, and the rules before it there, if it is of iptables in use.
    pub(crate) fn with_those_before<'n>(
        &self,
        node: &'n NodeSnapshot<'_>,
    ) -> Option<(&'n Iptables<'n>, &'n [Iptables<'n>])> {
        let at = self.number.checked_sub(1)?;
        let rules = self.chain_of(node)?.rules.as_slice();
        Some((rules.get(at)?, &rules[..at]))
    }

    /// Returns the chain whose rest it ends: other software's, to which a rule before it leads for the same packets.
    fn ends_rest_of<'n>(&self, node: &'n NodeSnapshot<'_>) -> Option<&'n str> {
        if !self.blocks() {
            return None;
        }
        let (own, before) = self.with_those_before(node)?;
        let asked = conditions(own);
        let mut leading = before
            .iter()
            .filter(|rule| !asked.is_empty() && conditions(rule) == asked)
            .filter_map(Iptables::leads_to);
        leading.find(|to| {
            let maker = chain_owner::maker_of_chain(&self.table, to);
            matches!(maker, Maker::Other(_))
        })
    }

    /// Returns the pod, as `NAMESPACE/NAME`, with the policies in its chain, if this pod uses the host's network: kube-router
    /// then applies them to the whole node, because the pod's address is the node's.
    pub fn pod_of_host(&self, node: &NodeSnapshot<'_>) -> Option<String> {
        own_policies(&self.chain)?;
        let rules = node.iptables(IptablesBackend::InUse, self.family).ok()?;
        let own = &node.addresses().ok()?.all;
        let is_own = |rule: &&Iptables<'_>| {
            rule.matches.iter().any(|matched| match matched {
                Match::Source(matched) | Match::Destination(matched) => {
                    let it = matched.value;
                    !matched.inverted
                        && it.is_host()
                        && own.iter().any(|at| at.addr.addr == it.addr)
                }
                _ => false,
            })
        };
        let all = rules.table(&self.table)?.chains.iter();
        let mut all = all.flat_map(|chain| &chain.rules);
        let jump = all.find(|rule| rule.leads_to() == Some(self.chain.as_str()) && is_own(rule))?;
        let words: Vec<&str> = jump.comment().unwrap_or_default().split(' ').collect();
        let name = words.iter().find_map(|word| word.strip_prefix("name:"));
        let at = words.iter().position(|word| *word == "namespace:");
        let namespace = at.and_then(|at| words.get(at + 1));
        Some(match (namespace, name) {
            (Some(namespace), Some(name)) => format!("{namespace}/{name}"),
            _ => String::new(),
        })
    }

    /// Returns the NetworkPolicies, as `NAMESPACE/NAME`, that the comments of its chain, and of those that it leads to, name.
    pub fn policies(&self, node: &NodeSnapshot<'_>) -> Vec<String> {
        let rules = node.iptables(IptablesBackend::InUse, self.family);
        let Some(table) = rules.ok().and_then(|rules| rules.table(&self.table)) else {
            return Vec::new();
        };
        let comments = |chain: &str| {
            let rules = table
                .chain(chain)
                .into_iter()
                .flat_map(|table| &table.rules);
            let comments = rules.filter_map(|rule| rule.comment().map(str::to_owned));
            comments.collect::<Vec<_>>()
        };
        let mut all = comments(&self.chain);
        let jumps = table
            .chain(&self.chain)
            .into_iter()
            .flat_map(|table| &table.rules);
        for rule in jumps {
            if let Some(Target::Jump(to) | Target::Goto(to)) = &rule.target {
                all.extend(comments(to));
            }
        }
        // Calico: "Policy NAMESPACE/knp.default.NAME egress".
        let names = all.iter().filter_map(|comment| {
            let policy = comment.strip_prefix("Policy ")?.split(' ').next()?;
            let (namespace, name) = policy.split_once("/knp.default.")?;
            Some(format!("{namespace}/{name}"))
        });
        let names: BTreeSet<String> = names.collect();
        names.into_iter().collect()
    }

    /// Returns whether it ends packets.
    fn blocks(&self) -> bool {
        let ends = ["DROP", "REJECT", "drop", "reject"];
        self.number == 0 || self.rule.split(' ').any(|word| ends.contains(&word))
    }

    /// Returns whether it ends all packets that reach it: only a comment, a counter or the state of connections restrict it.
    pub fn is_last(&self) -> bool {
        self.blocks() && rest(&self.rule).next().is_none()
    }

    /// Returns whether it is a closing rule: it ends all packets that reach it, all of a link, or those that rules before it do not
    /// accept.
    pub fn closes(&self, node: &NodeSnapshot<'_>) -> bool {
        self.is_last() || self.ends_link() || self.ends_list(node)
    }

    /// Returns whether it ends all packets of a link that reach it.
    fn ends_link(&self) -> bool {
        const LINKS: &[&str] = &["-i", "-o", "iifname", "oifname", "iif", "oif"];
        let words: Vec<&str> = rest(&self.rule)
            .filter(|word| !matches!(*word, "!" | "!="))
            .collect();
        let mut pairs = words.chunks(2);
        self.blocks()
            && !words.is_empty()
            && pairs.all(|pair| pair.len() == 2 && LINKS.contains(&pair[0]))
    }

    /// Returns whether it ends a list of permitted clients of an address, a port or a link: rules before it in its chain accept some
    /// of the packets to the same address or ports, or from the same link.
    fn ends_list(&self, node: &NodeSnapshot<'_>) -> bool {
        let Some((own, before)) = self.with_those_before(node).filter(|_| self.blocks()) else {
            return false;
        };
        let asked = conditions(own);
        let is_about = |matched: &&Match<'_>| match matched {
            Match::Destination(_) | Match::In(_) | Match::Multiport { .. } => true,
            Match::Ports { destination, .. } => destination.is_some(),
            _ => false,
        };
        let is_wide = |condition: &&Match<'_>| {
            is_about(condition)
                || matches!(
                    condition,
                    Match::Protocol(_) | Match::Out(_) | Match::State { .. }
                )
        };
        asked.iter().all(is_wide)
            && before.iter().any(|rule| {
                let lets = matches!(rule.target, Some(Target::Accept | Target::Return));
                let others = conditions(rule);
                let mut about = asked.iter().filter(|condition| is_about(condition));
                lets && about.any(|about| others.contains(about))
                    && others.iter().any(|condition| !asked.contains(condition))
            })
    }

    /// Returns whether packets to the node itself pass its chain.
    pub fn is_of_input(&self, node: &NodeSnapshot<'_>) -> bool {
        self.is_of("INPUT", node)
    }

    /// Returns whether forwarded packets pass its chain.
    pub fn is_of_forward(&self, node: &NodeSnapshot<'_>) -> bool {
        self.is_of("FORWARD", node)
    }

    /// Returns whether its chain belongs to the hook `name`, as iptables writes it.
    fn is_of(&self, name: &str, node: &NodeSnapshot<'_>) -> bool {
        if !self.is_nft() {
            return self.chain == name;
        }
        let parts = self.table.split_once(' ');
        let table = parts.and_then(|(family, name)| node.nft().ok()?.table(family, name));
        let chain = table.and_then(|table| table.chain(&self.chain));
        let base = chain.and_then(|chain| chain.base.as_ref());
        base.is_some_and(|base| base.hook.eq_ignore_ascii_case(name))
    }

    /// Returns whether packets of both families pass it: its table is of family inet.
    pub fn covers_both(&self) -> bool {
        self.is_nft() && self.table.starts_with("inet ")
    }
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let program = match (self.subsystem, self.family) {
            (Subsystem::Nftables, _) => "nft",
            (Subsystem::Arptables, _) => "arptables-legacy",
            (_, Family::V4) => "iptables",
            (_, Family::V6) => "ip6tables",
        };
        write!(f, "{program} {} {} ", self.table, self.chain)?;
        match self.number {
            0 => f.write_str("policy"),
            number => write!(f, "rule {number}"),
        }
    }
}

/// Returns words of the rule against packets that no policy allows, if `chain` is for the policies of a single pod:
/// Calico's or kube-router's.
pub(crate) fn own_policies(chain: &str) -> Option<&'static str> {
    let chain = policy_name(chain);
    if chain.starts_with("cali-tw-") || chain.starts_with("cali-fw-") {
        return Some("no policies passed");
    }
    chain.starts_with("KUBE-POD-FW-").then_some("")
}

/// Returns the name of a chain in iptables: Calico's tables of nftables have it behind the name of a table.
fn policy_name(chain: &str) -> &str {
    chain.trim_start_matches("filter-")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_last_rule_ends_all_packets() {
        let rule = |chain: &str, rule: &str| Rule {
            family: Family::V4,
            subsystem: Subsystem::Iptables,
            table: "filter".to_owned(),
            chain: chain.to_owned(),
            number: usize::from(!rule.is_empty()),
            rule: rule.to_owned(),
        };
        for text in [
            "",
            "-j DROP",
            "-j REJECT --reject-with icmp-host-prohibited",
            "-m comment --comment \"the rest\" -j DROP",
            "-m conntrack --ctstate NEW -j REJECT",
        ] {
            assert!(rule("INPUT", text).is_last(), "{text}");
        }
        for text in [
            "-i eth0 -j DROP",
            "! -i lo -m conntrack --ctstate NEW -j REJECT",
            "iifname \"eth0\" counter packets 1 bytes 60 drop",
        ] {
            assert!(rule("INPUT", text).ends_link(), "{text}");
        }
        for text in [
            "-j DROP",
            "-i eth0 -s 10.0.0.1/32 -j DROP",
            "-i eth0 -j ACCEPT",
        ] {
            assert!(!rule("INPUT", text).ends_link(), "{text}");
        }
        for text in [
            "-s 10.244.1.0/24 -j DROP",
            "-i eth0 -j DROP",
            "-p tcp --dport 80 -j REJECT",
            "-m mark --mark 0x8000 -j DROP",
            "-j ACCEPT",
        ] {
            assert!(!rule("INPUT", text).is_last(), "{text}");
        }
    }
}
