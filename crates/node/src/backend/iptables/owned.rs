//! Rules without borrowed text: they outlive the output that they were read from.

use std::borrow::Cow;

use super::model::{Invertible, Match, Physdev, Recent, Rule, Target, Text};

impl Rule<'_> {
    /// Returns the rule without borrowed text and without counters.
    pub fn owned(&self) -> Rule<'static> {
        Rule {
            counters: None,
            matches: self.matches.iter().map(Match::owned).collect(),
            target: self.target.as_ref().map(Target::owned),
        }
    }
}

fn text(text: &Text<'_>) -> Text<'static> {
    Cow::Owned(text.to_string())
}

fn name(of: &Invertible<Text<'_>>) -> Invertible<Text<'static>> {
    Invertible {
        inverted: of.inverted,
        value: text(&of.value),
    }
}

impl Match<'_> {
    /// Returns the match without borrowed text.
    pub fn owned(&self) -> Match<'static> {
        match self {
            Self::Source(cidr) => Match::Source(*cidr),
            Self::Destination(cidr) => Match::Destination(*cidr),
            Self::In(link) => Match::In(name(link)),
            Self::Out(link) => Match::Out(name(link)),
            Self::Protocol(proto) => Match::Protocol(*proto),
            &Self::Ports {
                proto,
                source,
                destination,
            } => Match::Ports {
                proto,
                source,
                destination,
            },
            Self::TcpFlags(flags) => Match::TcpFlags(*flags),
            Self::Multiport { side, ports } => Match::Multiport {
                side: *side,
                ports: ports.clone(),
            },
            Self::Comment(of) => Match::Comment(text(of)),
            &Self::AddrType {
                source,
                destination,
                limit,
            } => Match::AddrType {
                source,
                destination,
                limit,
            },
            &Self::State { states, old } => Match::State { states, old },
            Self::Mark(mark) => Match::Mark(*mark),
            Self::Connmark(mark) => Match::Connmark(*mark),
            Self::Random(chance) => Match::Random(*chance),
            &Self::Nth { every, packet } => Match::Nth { every, packet },
            Self::Set { name: set, sides } => Match::Set {
                name: name(set),
                sides: *sides,
            },
            Self::Recent(recent) => Match::Recent(Box::new(Recent {
                name: text(&recent.name),
                ..**recent
            })),
            Self::Physdev(physdev) => Match::Physdev(Box::new(Physdev {
                input: physdev.input.as_ref().map(name),
                output: physdev.output.as_ref().map(name),
                ..**physdev
            })),
            Self::Nfacct(counter) => Match::Nfacct(text(counter)),
            Self::Ipvs(options) => Match::Ipvs(text(options)),
            Self::Icmp { v6, kind } => Match::Icmp {
                v6: *v6,
                kind: name(kind),
            },
            Self::Limit { hash, options } => Match::Limit {
                hash: *hash,
                options: text(options),
            },
            Self::IpRange(range) => Match::IpRange(range.clone()),
            Self::Owner(options) => Match::Owner(text(options)),
            Self::Rpfilter(options) => Match::Rpfilter(text(options)),
            Self::Socket(options) => Match::Socket(text(options)),
            Self::PktType(kind) => Match::PktType(name(kind)),
            Self::Conntrack(options) => Match::Conntrack(text(options)),
            Self::Policy(options) => Match::Policy(text(options)),
            Self::Rt(options) => Match::Rt(text(options)),
            Self::Unknown(words) => Match::Unknown(text(words)),
        }
    }
}

impl Target<'_> {
    /// Returns the target without borrowed text.
    pub fn owned(&self) -> Target<'static> {
        match self {
            Self::Jump(chain) => Target::Jump(text(chain)),
            Self::Goto(chain) => Target::Goto(text(chain)),
            Self::Accept => Target::Accept,
            Self::Drop => Target::Drop,
            Self::Return => Target::Return,
            Self::Reject { with } => Target::Reject {
                with: with.as_ref().map(text),
            },
            Self::Dnat(to) => Target::Dnat(*to),
            Self::Snat(to) => Target::Snat(*to),
            &Self::Masquerade {
                ports,
                random,
                random_fully,
            } => Target::Masquerade {
                ports,
                random,
                random_fully,
            },
            &Self::Redirect { ports, random } => Target::Redirect { ports, random },
            Self::Mark(mark) => Target::Mark(*mark),
            Self::Connmark(mark) => Target::Connmark(*mark),
            &Self::Notrack { is_short } => Target::Notrack { is_short },
            Self::Tproxy(to) => Target::Tproxy(to.clone()),
            Self::Other { name: of, options } => Target::Other {
                name: text(of),
                options: text(options),
            },
        }
    }
}
