//! One rule of a node, by its place.

use std::collections::BTreeSet;
use std::fmt;
use std::net::{IpAddr, SocketAddr};

use serde::Serialize;

use super::{Hop, Subsystem, mismatch, why};
use kpx_node::backend::Mode;
use kpx_node::backend::iptables::model::{Chain, Match, Rule as Iptables, Target};
use kpx_node::backend::nftables::model::{Rule as Native, Statement};
use kpx_node::backend::nftables::print;
use kpx_node::cluster::Pod;
use kpx_node::net::{Cidr, Family, Proto};
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
        match (self.is_nft(), self.family) {
            (true, _) => "nft".to_owned(),
            (false, Family::V4) => format!("iptables{back_end}"),
            (false, Family::V6) => format!("ip6tables{back_end}"),
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

    /// Returns the command that accepts these packets of `family` before it.
    pub fn before(&self, node: &NodeSnapshot<'_>, family: Family, packets: Accepted) -> String {
        let (program, table, chain) = (self.program(node), &self.table, &self.chain);
        let number = match self.number {
            0 => String::new(),
            number => format!(" {number}"),
        };
        // A packet of the node itself has an address of the node.
        let packets = match packets {
            Accepted::FromPods if self.is_of("OUTPUT", node) => Accepted::ToPods,
            others => others,
        };
        if self.is_nft() {
            let ip = family.nft_name();
            let what = match packets {
                Accepted::FromPods => format!("{ip} saddr {PODS}"),
                Accepted::ToPods => format!("{ip} daddr {PODS}"),
                Accepted::To(at, proto) => {
                    format!("{ip} daddr {} {proto} dport {}", at.ip(), at.port())
                }
                Accepted::Established => "ct state established,related".to_owned(),
            };
            format!("nft insert rule {table} {chain} {what} accept")
        } else {
            let what = match packets {
                Accepted::FromPods => {
                    format!("-s {PODS}{}{}", address(&self.rule), ports(&self.rule))
                }
                Accepted::ToPods => format!("-d {PODS}{}", ports(&self.rule)),
                Accepted::To(at, proto) => {
                    format!("-d {} -p {proto} --dport {}", at.ip(), at.port())
                }
                Accepted::Established => "-m conntrack --ctstate RELATED,ESTABLISHED".to_owned(),
            };
            format!("{program} -t {table} -I {chain}{number} {what} -j ACCEPT")
        }
    }

    /// Returns the command that deletes it, if it is not a policy.
    pub fn undo(&self, node: &NodeSnapshot<'_>) -> Option<String> {
        match self.number {
            0 => None,
            _ => self.deletion(node),
        }
    }

    /// Returns the command that lists its chain.
    pub fn listing(&self, node: &NodeSnapshot<'_>) -> String {
        let (program, table, chain) = (self.program(node), &self.table, &self.chain);
        if self.is_nft() {
            format!("nft -a list chain {table} {chain}")
        } else {
            format!("{program} -t {table} -S {chain}")
        }
    }

    /// Returns the kind and the name of the set or map of a lookup in it, and whether it matches packets outside of the set.
    fn set(&self) -> Option<(&'static str, &str, bool)> {
        let words: Vec<&str> = self.rule.split_ascii_whitespace().collect();
        let is_set = |word: &&str| {
            if self.is_nft() {
                word.starts_with('@')
            } else {
                *word == "--match-set"
            }
        };
        let at = words.iter().position(is_set)?;
        let before = at.checked_sub(1).map(|at| words[at]);
        if !self.is_nft() {
            return Some(("set", words.get(at + 1)?, before == Some("!")));
        }
        let kind = match before {
            Some("vmap" | "map") => "map",
            _ => "set",
        };
        Some((kind, &words[at][1..], before == Some("!=")))
    }

    /// Returns whether another rule adds packets' addresses to the set that it looks up: a removed address returns with the next packet.
    pub fn is_of_filled_set(&self, node: &NodeSnapshot<'_>) -> bool {
        let Some(("set", name, false)) = self.set() else {
            return false;
        };
        if !self.is_nft() {
            let adds = format!("--add-set {name} ");
            let families = Family::BOTH.into_iter();
            let mut saved =
                families.filter_map(|family| node.saved(IptablesBackend::InUse, family).ok());
            return saved.any(|saved| {
                let others = saved.chains(|name| !name.starts_with("KUBE-"));
                let mut rules = others.flat_map(|chain| &chain.rules);
                rules.any(|rule| rule.to_string().contains(&adds))
            });
        }
        let table = self.table.split_once(' ').and_then(|(family, table)| {
            let rules = node.nft().ok()?;
            rules.table(family, table)
        });
        let chains = table.into_iter().flat_map(|table| &table.chains);
        let rules = chains.flat_map(|chain| &chain.rules);
        let mut statements = rules.flat_map(|rule| &rule.statements);
        statements.any(|statement| {
            matches!(statement, Statement::SetOp { op, set, .. } if set == name && op != "delete")
        })
    }

    /// Returns the command that lists the set or map of a lookup in it, and whether it matches packets outside of the set.
    pub fn listing_of_set(&self) -> Option<(String, bool)> {
        let (kind, name, inverted) = self.set()?;
        let listing = if self.is_nft() {
            format!("nft list {kind} {} {name}", self.table)
        } else {
            format!("ipset list {name}")
        };
        Some((listing, inverted))
    }

    /// Returns the command that removes addresses of the cluster from the set whose members it stops, if they are members of their
    /// own, not parts of a range.
    pub fn release(&self, node: &NodeSnapshot<'_>) -> Option<String> {
        let ("set", name, false) = self.set()? else {
            return None;
        };
        let members: Vec<String> = if self.is_nft() {
            let (family, table) = self.table.split_once(' ')?;
            let table = node.nft().ok()?.table(family, table)?;
            let set = table.sets.iter().find(|set| set.name == name)?;
            let keys = set.elements.iter().map(|element| print::expr(&element.key));
            keys.collect()
        } else {
            let set = node.ipset_or_none().ok()?.set(name)?;
            set.members
                .iter()
                .map(|member| member.element.to_string())
                .collect()
        };
        let addresses = members.iter().filter_map(|member| member.parse().ok());
        let stopped: BTreeSet<IpAddr> = addresses.collect();
        if stopped.is_empty() {
            return None;
        }
        let pods = node.pods().into_iter().flatten().flat_map(Pod::addresses);
        let nodes = node.nodes().into_iter().flatten();
        let nodes = nodes
            .flat_map(|node| &node.status.addresses)
            .map(|address| &address.address);
        let services = node.services().into_iter().flatten();
        let services = services.flat_map(|service| &service.spec.cluster_ips);
        let others = nodes.chain(services).filter_map(|text| text.parse().ok());
        let own: BTreeSet<IpAddr> = pods
            .chain(others)
            .filter(|pod| stopped.contains(pod))
            .collect();
        let own: Vec<String> = own.iter().map(ToString::to_string).collect();
        if own.is_empty() {
            return None;
        }
        if self.is_nft() {
            let all = own.join(", ");
            return Some(format!(
                "nft 'delete element {} {name} {{ {all} }}'",
                self.table
            ));
        }
        let commands: Vec<String> = own
            .iter()
            .map(|entry| format!("ipset del {name} {entry}"))
            .collect();
        Some(commands.join(" && "))
    }

    /// Returns the command that lets the cluster's own networks pass a rule of iptables that drops a range of sources by a link.
    pub fn sparing(&self, node: &NodeSnapshot<'_>) -> Option<String> {
        let is_it = self.blocks() && !self.is_nft();
        let (own, _) = self.with_those_before(node).filter(|_| is_it)?;
        let (mut range, mut link) = (None, None);
        for of in conditions(own) {
            match of {
                Match::Source(of) if !of.inverted && !of.value.is_host() => range = Some(of.value),
                Match::In(of) if !of.inverted => link = Some(&*of.value),
                Match::State { .. } => {}
                _ => return None,
            }
        }
        let range = range.filter(|range| range.prefix > 0)?;
        let of_links = node.addresses().map_or(&[][..], |all| &all.all).iter();
        let of_links = of_links
            .filter(|address| {
                link.is_none_or(|link| address.link == link) && !address.addr.is_host()
            })
            .map(|address| address.addr.normal());
        let config = node.proxy_config().ok();
        let pods = config.and_then(|config| config.cluster_cidr(self.family));
        let own: BTreeSet<Cidr> = of_links
            .chain(pods)
            .filter(|network| network.prefix >= range.prefix && range.contains(network.addr))
            .collect();
        let by = link.map_or_else(String::new, |link| format!("-i {link} "));
        let (program, table, chain, number) =
            (self.program(node), &self.table, &self.chain, self.number);
        let commands: Vec<String> = own
            .iter()
            .map(|network| {
                format!("{program} -t {table} -I {chain} {number} {by}-s {network} -j ACCEPT")
            })
            .collect();
        (!commands.is_empty()).then(|| commands.join(" && "))
    }

    /// Returns the command that restricts a rule which translates all packets to a port, whatever their address is, to packets for
    /// the node's own addresses. In mode ipvs, addresses of Services are among them.
    pub fn localized(&self, node: &NodeSnapshot<'_>) -> Option<String> {
        if node.configured_mode().ok() == Some(Mode::Ipvs) {
            return None;
        }
        if self.is_nft() {
            let handle = self.native(node)?.handle?;
            let mut words = self.rule.split(' ');
            let is_open = |word: &str| {
                !matches!(
                    word,
                    "daddr" | "saddr" | "iif" | "iifname" | "fib" | "mark" | "ct" | "vmap"
                ) && !word.starts_with('@')
            };
            let translates = ["dnat", "redirect"]
                .iter()
                .any(|word| self.rule.contains(word));
            return (translates && words.all(is_open)).then(|| {
                format!(
                    "nft 'replace rule {} {} handle {handle} fib daddr type local {}'",
                    self.table, self.chain, self.rule
                )
            });
        }
        let (own, _) = self.with_those_before(node)?;
        let is_port = |matched: &&Match<'_>| {
            matches!(
                matched,
                Match::Protocol(_) | Match::Ports { .. } | Match::Multiport { .. }
            )
        };
        let translates = matches!(own.target, Some(Target::Dnat(_) | Target::Redirect { .. }));
        let (asked, target) = self.rule.split_once("-j ")?;
        (translates && conditions(own).iter().all(is_port)).then(|| {
            format!(
                "{} -t {} -R {} {} {asked}-m addrtype --dst-type LOCAL -j {target}",
                self.program(node),
                self.table,
                self.chain,
                self.number
            )
        })
    }

    /// Returns whether it replaces the source of packets.
    pub fn replaces_source(&self) -> bool {
        let mut words = self.rule.split(' ');
        words.any(|word| matches!(word, "MASQUERADE" | "SNAT" | "masquerade" | "snat"))
    }

    /// Returns the command that leaves packets to [pods](PODS) out of it, if it replaces the source of packets and asks for no destination.
    pub fn excepting(&self, node: &NodeSnapshot<'_>) -> Option<String> {
        self.number
            .checked_sub(1)
            .filter(|_| self.replaces_source())?;
        if self.is_nft() {
            let handle = self.native(node)?.handle?;
            let family = match self.family {
                Family::V4 => "ip",
                Family::V6 => "ip6",
            };
            let asks = self.rule.contains("daddr") || self.covers_both();
            return (!asks).then(|| {
                format!(
                    "nft 'replace rule {} {} handle {handle} {family} daddr != {PODS} {}'",
                    self.table, self.chain, self.rule
                )
            });
        }
        let asks = self.rule.split(' ').any(|word| word == "-d");
        (!asks).then(|| {
            format!(
                "{} -t {} -R {} {} ! -d {PODS} {}",
                self.program(node),
                self.table,
                self.chain,
                self.number,
                self.rule
            )
        })
    }

    /// Returns the command that deletes it.
    pub(crate) fn deletion(&self, node: &NodeSnapshot<'_>) -> Option<String> {
        self.number.checked_sub(1)?;
        if self.is_nft() {
            let handle = self.native(node)?.handle?;
            return Some(format!(
                "nft delete rule {} {} handle {handle}",
                self.table, self.chain
            ));
        }
        let program = self.program(node);
        // iptables of the nft backend does not find a rule with this match by its text.
        let rule = if self.rule.contains("-m recent ") {
            self.number.to_string()
        } else {
            self.rule.clone()
        };
        Some(format!(
            "{program} -t {} -D {} {rule}",
            self.table, self.chain
        ))
    }
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let program = match (self.subsystem, self.family) {
            (Subsystem::Nftables, _) => "nft",
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

/// Returns the matches of a rule, without comments.
fn conditions<'r>(rule: &'r Iptables<'_>) -> Vec<&'r Match<'r>> {
    let all = rule.matches.iter();
    all.filter(|condition| !matches!(condition, Match::Comment(_)))
        .collect()
}

/// Returns the words of a rule that ends packets, but for its verdict, comments, counters and the state of connections.
fn rest(rule: &str) -> impl Iterator<Item = &str> {
    const KNOWN: &[&str] = &[
        "-m",
        "comment",
        "--comment",
        "conntrack",
        "state",
        "--ctstate",
        "--state",
        "counter",
        "packets",
        "bytes",
        "ct",
        "-j",
        "NEW",
        "new",
        "DROP",
        "drop",
    ];
    let comment = why::comment(rule);
    let (before, after) = comment
        .and_then(|comment| rule.split_once(comment))
        .unwrap_or((rule, ""));
    let end = |text: &str| {
        let ends = ["REJECT", "reject"].into_iter();
        ends.filter_map(|end| text.find(end)).min()
    };
    let (before, after) = match (end(before), end(after)) {
        (Some(at), _) => (&before[..at], ""),
        (None, Some(at)) => (before, &after[..at]),
        (None, None) => (before, after),
    };
    let is_number = |word: &str| word.bytes().all(|byte| byte.is_ascii_digit());
    let words = before.split_whitespace().chain(after.split_whitespace());
    let words = words.filter(|word| *word != "\"");
    words.filter(move |word| !KNOWN.contains(word) && !is_number(word))
}

/// Returns the address to which a rule of iptables is restricted, as an option, after a blank.
fn address(rule: &str) -> String {
    let words: Vec<&str> = rule.split_ascii_whitespace().collect();
    let mut pairs = words.windows(3);
    let found = pairs
        .find(|pair| pair[1] == "-d" && pair[0] != "!")
        .map(|pair| pair[2]);
    let first = (words.first() == Some(&"-d"))
        .then(|| words.get(1).copied())
        .flatten();
    first
        .or(found)
        .map_or_else(String::new, |destination| format!(" -d {destination}"))
}

/// Returns the protocol and the destination ports that a rule of iptables asks for, as its options, each after a blank.
fn ports(rule: &str) -> String {
    let words: Vec<&str> = rule.split_ascii_whitespace().collect();
    let asks = |option: &str, value: &str| match option {
        "-p" | "--dport" | "--dports" => true,
        "-m" => matches!(value, "tcp" | "udp" | "sctp" | "multiport"),
        _ => false,
    };
    let pairs = words.windows(2).filter(|pair| asks(pair[0], pair[1]));
    let mut text = String::new();
    for word in pairs.flatten() {
        text.push(' ');
        text.push_str(word);
    }
    if text.contains("--dport") {
        text
    } else {
        String::new()
    }
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
