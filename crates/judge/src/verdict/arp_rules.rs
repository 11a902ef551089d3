//! Rules that drop ARP messages: those of nftables in family arp and of bridges, and those of arptables.

use std::net::IpAddr;

use crate::trace::{Rule, Subsystem};
use kpx_node::backend::nftables::model::{Chain, Expr, Statement, Table, Verdict};
use kpx_node::net::{Cidr, Family};
use kpx_node::node::NodeSnapshot;

/// How deep chains are followed.
const DEEPEST: u8 = 8;

/// The sysctl by which messages that pass a bridge pass the chain FORWARD of arptables.
const BRIDGED: &str = "net.bridge.bridge-nf-call-arptables";

/// The numbers of a request and of an answer.
const REQUEST: u64 = 1;
const ANSWER: u64 = 2;

/// An ARP message.
#[derive(Clone, Debug)]
pub(super) struct Message<'m> {
    /// The hooks that it passes, of both families.
    hooks: &'static [&'static str],
    /// The link by which it comes in or goes out: for a bridge, the bridge.
    link: &'m str,
    operation: u64,
    /// The addresses of which it has one as its sender, and one as its target; none if they are not known.
    sender: &'m [IpAddr],
    target: &'m [IpAddr],
}

impl<'m> Message<'m> {
    /// Returns the messages by which a node with the addresses `own` on `link` and its neighbour `there` find each other: first those
    /// by which the node finds the neighbour.
    pub(super) fn of_neighbours(
        link: &'m str,
        own: &'m [IpAddr],
        there: &'m [IpAddr],
    ) -> [Self; 4] {
        const OUT: &[&str] = &["output", "postrouting"];
        const IN: &[&str] = &["prerouting", "input"];
        let sent = |operation| Self {
            hooks: OUT,
            link,
            operation,
            sender: own,
            target: there,
        };
        let got = |operation| Self {
            hooks: IN,
            link,
            operation,
            sender: there,
            target: own,
        };
        [sent(REQUEST), got(ANSWER), got(REQUEST), sent(ANSWER)]
    }

    /// Returns the messages by which two pods on the bridge `link` find each other.
    pub(super) fn of_bridge(link: &'m str, one: &'m [IpAddr], other: &'m [IpAddr]) -> [Self; 4] {
        const THROUGH: &[&str] = &["prerouting", "forward", "postrouting"];
        let passing = |operation, sender, target| Self {
            hooks: THROUGH,
            link,
            operation,
            sender,
            target,
        };
        [
            passing(REQUEST, one, other),
            passing(ANSWER, other, one),
            passing(REQUEST, other, one),
            passing(ANSWER, one, other),
        ]
    }
}

/// Returns the rule of `node` that drops one of `messages`, and whether it certainly does.
pub(super) fn dropping(node: &NodeSnapshot<'_>, messages: &[Message<'_>]) -> Option<(Rule, bool)> {
    let tables = node.nft().map_or(&[][..], |all| &all.tables).iter();
    let tables =
        tables.filter(|table| matches!(&*table.family, "arp" | "bridge") && !table.dormant);
    let tables = tables.map(|table| (Subsystem::Nftables, table));
    let legacy = node.arptables().ok();
    let tables = tables.chain(legacy.map(|table| (Subsystem::Arptables, table)));
    let passes_bridges = || {
        let sysctl = node.sysctl().ok();
        sysctl.and_then(|all| all.get(BRIDGED)) == Some("1")
    };
    let chains = tables.flat_map(|(subsystem, table)| {
        let chains = table.chains.iter();
        chains.filter_map(move |chain| Some((subsystem, table, chain, chain.base.as_ref()?)))
    });
    let chains = chains.filter(|(subsystem, _, _, base)| {
        *subsystem == Subsystem::Nftables || base.hook != "forward" || passes_bridges()
    });
    let found = chains.flat_map(|(subsystem, table, chain, base)| {
        let passing = messages
            .iter()
            .filter(|message| message.hooks.contains(&&*base.hook));
        passing.filter_map(move |message| {
            let mut walk = Walk {
                subsystem,
                table,
                message,
                is_sure: true,
                possible: None,
            };
            let end = walk.end(chain, DEEPEST);
            match end {
                Some(End::Dropped(rule)) => return Some((rule, true)),
                None if base.policy == "drop" && walk.is_sure && walk.possible.is_none() => {
                    return Some((walk.rule(chain, 0), true));
                }
                // What bridges let pass besides is not followed.
                None if base.policy == "drop" && table.family == "arp" => {
                    let policy = walk.rule(chain, 0);
                    walk.possible.get_or_insert(policy);
                }
                _ => {}
            }
            walk.possible.map(|rule| (rule, false))
        })
    });
    found.max_by_key(|(_, is_certain)| *is_certain)
}

/// How a message ends in a chain.
enum End {
    /// It passes, or it is not known which of the rules before ended it.
    Over,
    /// The rule drops it.
    Dropped(Rule),
}

/// The way of a message through the chains of one hook.
struct Walk<'w> {
    subsystem: Subsystem,
    table: &'w Table,
    message: &'w Message<'w>,
    /// Whether no rule may have ended it so far.
    is_sure: bool,
    /// A rule that may drop it.
    possible: Option<Rule>,
}

impl Walk<'_> {
    fn rule(&self, chain: &Chain, number: usize) -> Rule {
        Rule {
            family: Family::V4,
            subsystem: self.subsystem,
            table: match self.subsystem {
                Subsystem::Arptables => self.table.name.clone(),
                _ => format!("{} {}", self.table.family, self.table.name),
            },
            chain: chain.name.clone(),
            number,
            rule: String::new(),
        }
    }

    /// Returns how the message ends in `chain`; `None` if it may leave it again.
    fn end(&mut self, chain: &Chain, depth: u8) -> Option<End> {
        for (at, rule) in chain.rules.iter().enumerate() {
            let mut holds = Some(true);
            let mut names_arp = self.table.family == "arp";
            for statement in &rule.statements {
                match statement {
                    Statement::Match { left, op, right } => {
                        names_arp |= is_of_arp(left, right);
                        let is_inverted = op == "!=";
                        let found = match op.as_str() {
                            "==" | "!=" | "in" => self.holds(left, right, is_inverted),
                            _ => None,
                        };
                        holds = both(holds, found);
                    }
                    Statement::Counter { .. } => {}
                    Statement::Verdict(Verdict::Drop) => {
                        let rule = self.rule(chain, at + 1);
                        match holds {
                            Some(true) if self.is_sure => return Some(End::Dropped(rule)),
                            Some(true) => {
                                self.possible.get_or_insert(rule);
                                return Some(End::Over);
                            }
                            None if names_arp => {
                                self.possible.get_or_insert(rule);
                            }
                            Some(false) | None => {}
                        }
                        break;
                    }
                    Statement::Verdict(Verdict::Jump(name) | Verdict::Goto(name)) => {
                        if holds == Some(false) {
                            break;
                        }
                        self.is_sure &= holds == Some(true);
                        let to = self.table.chain(name).filter(|_| depth > 0);
                        self.is_sure &= to.is_some();
                        let end = to.and_then(|to| self.end(to, depth - 1));
                        match end {
                            Some(end) if holds == Some(true) => return Some(end),
                            Some(_) => self.is_sure = false,
                            None => {}
                        }
                        if holds == Some(true)
                            && matches!(statement, Statement::Verdict(Verdict::Goto(_)))
                        {
                            return None;
                        }
                        break;
                    }
                    Statement::Verdict(Verdict::Continue) => break,
                    Statement::Verdict(verdict) => match holds {
                        Some(false) => break,
                        Some(true) if *verdict == Verdict::Return => return None,
                        Some(true) => return Some(End::Over),
                        None => {
                            self.is_sure = false;
                            break;
                        }
                    },
                    // What iptables-nft wrote, and what may hold or not.
                    _ if holds == Some(false) => break,
                    _ => {
                        holds = None;
                        self.is_sure = false;
                    }
                }
            }
        }
        None
    }

    /// Returns whether the message has the value `right` in the field `left`; `None` if that is not known.
    fn holds(&self, left: &Expr, right: &Expr, is_inverted: bool) -> Option<bool> {
        let message = self.message;
        let of = |is_it: &dyn Fn(&Expr) -> Option<bool>| {
            self.any(right, is_it).map(|holds| holds != is_inverted)
        };
        let number = |wanted: u64, names: &'static [&'static str]| {
            of(&|right| match right {
                Expr::Number(number) => Some(*number == wanted),
                Expr::Word(word) => Some(names.contains(&word.as_str())),
                _ => None,
            })
        };
        let is_out = message.hooks.contains(&"output");
        let is_in = message.hooks.contains(&"input");
        let link = |is_passed: bool| {
            is_passed
                .then(|| {
                    of(&|right| match right {
                        Expr::Word(word) => Some(match word.strip_suffix('*') {
                            Some(prefix) => message.link.starts_with(prefix),
                            None => word == message.link,
                        }),
                        _ => None,
                    })
                })
                .flatten()
        };
        match left {
            Expr::Meta(key) => match key.as_str() {
                "protocol" => number(0x0806, &["arp"]),
                // On bridges, these are the ports.
                "iif" | "iifname" if self.table.family == "arp" => link(is_in),
                "oif" | "oifname" if self.table.family == "arp" => link(is_out),
                "ibrname" => link(!is_out),
                "obrname" => link(!is_in),
                "l4proto" | "nfproto" => Some(false),
                _ => None,
            },
            Expr::Payload { protocol, field } => match (protocol.as_str(), field.as_str()) {
                ("ether", "type") => number(0x0806, &["arp"]),
                ("arp", "operation") if message.operation == REQUEST => {
                    number(REQUEST, &["request"])
                }
                ("arp", "operation") => number(ANSWER, &["reply"]),
                ("arp", "htype") => number(1, &["ether"]),
                ("arp", "ptype") => number(0x0800, &["ip"]),
                ("arp", "hlen") => number(6, &[]),
                ("arp", "plen") => number(4, &[]),
                ("arp", "saddr ip") => self.has(message.sender, right, is_inverted),
                ("arp", "daddr ip") => self.has(message.target, right, is_inverted),
                ("arp" | "ether" | "vlan", _) => None,
                // The packet has no such header.
                _ => Some(false),
            },
            _ => None,
        }
    }

    /// Returns whether each of `addresses` is one of `right`, or none; `None` if some are, or if there is none.
    fn has(&self, addresses: &[IpAddr], right: &Expr, is_inverted: bool) -> Option<bool> {
        let is_it = |address: IpAddr| {
            let found = self.any(right, &|right| is_address(address, right));
            found.map(|holds| holds != is_inverted)
        };
        let mut all = addresses.iter().map(|address| is_it(*address));
        let first = all.next()??;
        all.all(|other| other == Some(first)).then_some(first)
    }

    /// Returns whether `is_it` holds for one of the values in `right`.
    fn any(&self, right: &Expr, is_it: &dyn Fn(&Expr) -> Option<bool>) -> Option<bool> {
        let one_of = |all: &mut dyn Iterator<Item = &Expr>| {
            let mut found = Some(false);
            for value in all {
                match self.any(value, is_it) {
                    Some(true) => return Some(true),
                    Some(false) => {}
                    None => found = None,
                }
            }
            found
        };
        match right {
            Expr::Set(values) => one_of(&mut values.iter()),
            Expr::Named(name) => {
                let set = self.table.set(name)?;
                let changes = set.flags.iter().any(|flag| flag == "dynamic") || set.has_timeouts();
                if changes {
                    return None;
                }
                one_of(&mut set.elements.iter().map(|element| &element.key))
            }
            value => is_it(value),
        }
    }
}

/// Returns whether a match is of ARP alone.
fn is_of_arp(left: &Expr, right: &Expr) -> bool {
    let is_arp = match right {
        Expr::Word(word) => word == "arp",
        Expr::Number(number) => *number == 0x0806,
        _ => false,
    };
    match left {
        Expr::Payload { protocol, field } => {
            protocol == "arp" || (protocol.as_str(), field.as_str()) == ("ether", "type") && is_arp
        }
        Expr::Meta(key) => key == "protocol" && is_arp,
        _ => false,
    }
}

fn is_address(address: IpAddr, right: &Expr) -> Option<bool> {
    match right {
        Expr::Word(word) => Some(word.parse::<IpAddr>().ok()? == address),
        Expr::Prefix { addr, len } => match addr.as_ref() {
            Expr::Word(word) => {
                let range = Cidr {
                    addr: word.parse().ok()?,
                    prefix: *len,
                };
                Some(range.contains(address))
            }
            _ => None,
        },
        Expr::Range(first, last) => match (first.as_ref(), last.as_ref()) {
            (Expr::Word(first), Expr::Word(last)) => {
                let (first, last): (IpAddr, IpAddr) = (first.parse().ok()?, last.parse().ok()?);
                Some((first..=last).contains(&address))
            }
            _ => None,
        },
        _ => None,
    }
}

const fn both(one: Option<bool>, other: Option<bool>) -> Option<bool> {
    match (one, other) {
        (Some(false), _) | (_, Some(false)) => Some(false),
        (Some(true), Some(true)) => Some(true),
        _ => None,
    }
}
