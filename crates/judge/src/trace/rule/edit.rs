//! Commands that list a rule, remove it, or let packets pass it.

use std::collections::BTreeSet;
use std::net::IpAddr;

use super::text::{address, conditions, ports};
use super::{Accepted, Insertion, PODS, Rule, Subsystem};
use kpx_node::backend::Mode;
use kpx_node::backend::iptables::model::{Match, Target};
use kpx_node::backend::nftables::model::{self as nft, Expr, Statement, Verdict};
use kpx_node::backend::nftables::print;
use kpx_node::cluster::Pod;
use kpx_node::net::{Cidr, Family};
use kpx_node::node::{IptablesBackend, NodeSnapshot};

impl Rule {
    /// Returns where a command puts a rule before it.
    pub fn insertion(&self, node: &NodeSnapshot<'_>) -> Insertion {
        let (program, table, chain) = (self.program(node), &self.table, &self.chain);
        let number = match self.number {
            0 => String::new(),
            number => format!(" {number}"),
        };
        let is_nft = self.is_nft();
        let head = if is_nft {
            format!("nft insert rule {table} {chain}")
        } else {
            format!("{program} -t {table} -I {chain}{number}")
        };
        Insertion { head, is_nft }
    }

    /// Returns the command that accepts these packets of `family` before it.
    pub fn before(&self, node: &NodeSnapshot<'_>, family: Family, packets: Accepted) -> String {
        // A packet of the node itself has an address of the node.
        let packets = match packets {
            Accepted::FromPods if self.is_of("OUTPUT", node) => Accepted::ToPods,
            others => others,
        };
        let ip = family.nft_name();
        let (iptables, nft) = match packets {
            Accepted::FromPods => (
                format!("-s {PODS}{}{}", address(&self.rule), ports(&self.rule)),
                format!("{ip} saddr {PODS}"),
            ),
            Accepted::ToPods => (
                format!("-d {PODS}{}", ports(&self.rule)),
                format!("{ip} daddr {PODS}"),
            ),
            Accepted::To(at, proto) => (
                format!("-d {} -p {proto} --dport {}", at.ip(), at.port()),
                format!("{ip} daddr {} {proto} dport {}", at.ip(), at.port()),
            ),
            Accepted::Established => (
                "-m conntrack --ctstate RELATED,ESTABLISHED".to_owned(),
                "ct state established,related".to_owned(),
            ),
        };
        self.insertion(node).accept(&iptables, &nft)
    }

    /// Returns the command of `program` by which packets to `range` leave its chain before it.
    pub fn spare(&self, program: &str, range: &str) -> String {
        let (table, chain) = (&self.table, &self.chain);
        if self.is_nft() {
            let ip = if range.contains(':') { "ip6" } else { "ip" };
            return format!("nft insert rule {table} {chain} {ip} daddr {range} return");
        }
        format!("{program} -t {table} -I {chain} -d {range} -j RETURN")
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
        match self.subsystem {
            Subsystem::Nftables => format!("nft -a list chain {table} {chain}"),
            Subsystem::Arptables => format!("{program} -n --line-numbers -L {chain}"),
            _ => format!("{program} -t {table} -S {chain}"),
        }
    }

    /// Returns the kind and the name of the set or map of a lookup in it, and whether it matches packets outside of the set.
    pub(super) fn set(&self) -> Option<(&'static str, &str, bool)> {
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

    /// Returns the command that lists the named set by which an earlier rule of its chain accepts packets, if it drops packets without
    /// naming a set itself.
    pub fn allowed(&self, node: &NodeSnapshot<'_>) -> Option<String> {
        if !self.is_nft() || self.number == 0 || self.set().is_some() {
            return None;
        }
        let (family, name) = self.table.split_once(' ')?;
        let table = node.nft().ok()?.table(family, name)?;
        let rules = &table.chain(&self.chain)?.rules;
        let drops = |rule: &nft::Rule| {
            let last = rule.statements.last();
            matches!(
                last,
                Some(Statement::Verdict(Verdict::Drop) | Statement::Reject { .. })
            )
        };
        let accepts_by = |rule: &nft::Rule| {
            let is_accepted = matches!(
                rule.statements.last(),
                Some(Statement::Verdict(Verdict::Accept))
            );
            rule.statements
                .iter()
                .find_map(|statement| match statement {
                    Statement::Match {
                        op,
                        right: Expr::Named(set),
                        ..
                    } if op == "==" && is_accepted => Some(set.clone()),
                    _ => None,
                })
        };
        let own = rules.get(self.number - 1).filter(|rule| drops(rule))?;
        let names_one = own.statements.iter().any(|statement| {
            matches!(
                statement,
                Statement::Match {
                    right: Expr::Named(_),
                    ..
                }
            )
        });
        let set = rules[..self.number - 1].iter().find_map(accepts_by);
        set.filter(|_| !names_one)
            .map(|set| format!("nft list set {} {set}", self.table))
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

    /// Returns the command that makes it use the address of the link by which packets leave, if it replaces their source by an address
    /// that the node does not have.
    pub fn masquerading(&self, node: &NodeSnapshot<'_>) -> Option<String> {
        let words: Vec<&str> = self.rule.split(' ').collect();
        let at = words
            .iter()
            .position(|word| matches!(*word, "SNAT" | "snat"))?;
        let address: IpAddr = words[at..].iter().find_map(|word| word.parse().ok())?;
        let own = &node.addresses().ok()?.all;
        if self.number == 0
            || self.is_of_input(node)
            || own.iter().any(|own| own.addr.addr == address)
        {
            return None;
        }
        let (table, chain, asked) = (&self.table, &self.chain, words[..at].join(" "));
        Some(if self.is_nft() {
            let handle = self.native(node)?.handle?;
            format!("nft 'replace rule {table} {chain} handle {handle} {asked} masquerade'")
        } else {
            let (program, number) = (self.program(node), self.number);
            format!("{program} -t {table} -R {chain} {number} {asked} MASQUERADE")
        })
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
        // iptables of the nft backend does not find a rule with this match by its text; the text of one of arptables is not kept.
        let is_by_number = self.subsystem == Subsystem::Arptables;
        let rule = if is_by_number || self.rule.contains("-m recent ") {
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
