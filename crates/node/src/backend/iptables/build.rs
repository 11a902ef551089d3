//! Rules from parts, in the form `iptables-save` prints: for `expect` in the modes that write them.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use super::model::{
    AddrType, Chain, Invertible, Match, Nat, NatFlags, Policy, Recent, RecentAction, Rule, Ruleset,
    Side, States, Table, Target, Text,
};
use crate::desired::Detector;
use crate::net::{Cidr, Family, Mark, PortRange, Proto};

/// A rule of `matches` with `target`.
pub fn rule<'a>(matches: Vec<Match<'a>>, target: impl Into<Option<Target<'a>>>) -> Rule<'a> {
    Rule {
        counters: None,
        matches,
        target: target.into(),
    }
}

/// `-j CHAIN`.
pub fn jump<'a>(chain: impl Into<Text<'a>>) -> Target<'a> {
    Target::Jump(chain.into())
}

/// `-m comment --comment TEXT`.
pub fn comment<'a>(text: impl Into<Text<'a>>) -> Match<'a> {
    Match::Comment(text.into())
}

pub(crate) fn from(addr: IpAddr) -> Match<'static> {
    Match::Source(Invertible::plain(Cidr::host(addr)))
}

pub(crate) fn to(addr: IpAddr) -> Match<'static> {
    Match::Destination(Invertible::plain(Cidr::host(addr)))
}

pub(crate) fn protocol(proto: Proto) -> Match<'static> {
    Match::Protocol(Invertible::plain(proto))
}

/// `-m tcp --dport PORT`, or without a port `-m tcp`.
pub(crate) fn ports(proto: Proto, port: Option<u16>) -> Match<'static> {
    Match::Ports {
        proto,
        source: None,
        destination: port.map(|port| Invertible::plain(PortRange::one(port))),
    }
}

pub(crate) fn states(states: u8) -> Match<'static> {
    Match::State {
        states: Invertible::plain(States(states)),
        old: false,
    }
}

/// `-m addrtype --dst-type LOCAL`.
pub fn to_local() -> Match<'static> {
    Match::AddrType {
        source: None,
        destination: Some(Invertible::plain(AddrType::LOCAL)),
        limit: None,
    }
}

pub(crate) fn from_local() -> Match<'static> {
    Match::AddrType {
        source: Some(Invertible::plain(AddrType::LOCAL)),
        destination: None,
        limit: None,
    }
}

/// Matches packets with the bit `mark`, or with `inverted` those without it.
pub(crate) fn marked(mark: u32, inverted: bool) -> Match<'static> {
    let value = Mark {
        value: mark,
        mask: mark,
    };
    Match::Mark(Invertible { inverted, value })
}

/// Matches traffic of local pods, or with `inverted` all other traffic.
pub(crate) fn detected(detector: &Detector, inverted: bool) -> Match<'_> {
    match detector {
        Detector::Cidr(cidr) => Match::Source(Invertible {
            inverted,
            value: *cidr,
        }),
        Detector::Interface(name) => Match::In(Invertible {
            inverted,
            value: name.as_str().into(),
        }),
        Detector::Prefix(prefix) => Match::In(Invertible {
            inverted,
            value: format!("{prefix}+").into(),
        }),
    }
}

pub(crate) fn reject(family: Family) -> Target<'static> {
    let with = match family {
        Family::V4 => "icmp-port-unreachable",
        Family::V6 => "icmp6-port-unreachable",
    };
    Target::Reject {
        with: Some(with.into()),
    }
}

pub(crate) fn masquerade(random_fully: bool) -> Target<'static> {
    Target::Masquerade {
        ports: None,
        random: false,
        random_fully,
    }
}

/// `--or-mark`.
pub(crate) fn set_mark(mark: u32) -> Target<'static> {
    Target::Mark(Mark {
        value: mark,
        mask: mark,
    })
}

/// `--xor-mark`.
pub(crate) fn flip_mark(mark: u32) -> Target<'static> {
    Target::Mark(Mark {
        value: mark,
        mask: 0,
    })
}

pub(crate) fn dnat(to: SocketAddr) -> Target<'static> {
    Target::Dnat(Nat {
        addrs: Some((to.ip(), to.ip())),
        ports: Some(PortRange::one(to.port())),
        flags: NatFlags::default(),
    })
}

/// `-m recent --name NAME` with `--set`, or with `--rcheck --seconds N --reap`.
pub(crate) fn recent(name: &str, family: Family, check: Option<u32>) -> Match<'_> {
    let mask = match family {
        Family::V4 => Ipv4Addr::BROADCAST.into(),
        Family::V6 => Ipv6Addr::from_bits(u128::MAX).into(),
    };
    Match::Recent(Box::new(Recent {
        action: Invertible::plain(match check {
            Some(_) => RecentAction::Check,
            None => RecentAction::Set,
        }),
        seconds: check,
        reap: check.is_some(),
        hitcount: None,
        rttl: false,
        name: name.into(),
        mask: Some(mask),
        side: Side::Source,
    }))
}

/// `-m statistic --mode random` with a chance of one in `count`.
///
/// kube-proxy writes ten digits, of which iptables keeps 31 bits.
pub(crate) fn one_in(count: usize) -> Match<'static> {
    #[expect(
        clippy::cast_precision_loss,
        reason = "endpoints are far fewer than 2^52"
    )]
    let share = (1e10 / count as f64).round_ties_even() / 1e10;
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "between 0 and 2^31"
    )]
    let chance = (share * f64::from(1u32 << 31)).round() as u32;
    Match::Random(Invertible::plain(chance))
}

/// Chains of one table, under construction.
#[derive(Debug, Default)]
pub(crate) struct TableBuilder<'a> {
    chains: Vec<Chain<'a>>,
}

impl<'a> TableBuilder<'a> {
    /// Adds the user chain `name`, and returns where it is.
    pub(crate) fn chain(&mut self, name: impl Into<Text<'a>>) -> usize {
        self.add(name.into(), None)
    }

    /// Adds the built-in chain `name`.
    pub(crate) fn built_in(&mut self, name: &'static str) -> usize {
        self.add(name.into(), Some(Policy::Accept))
    }

    fn add(&mut self, name: Text<'a>, policy: Option<Policy>) -> usize {
        self.chains.push(Chain {
            policy,
            ..Chain::user(name)
        });
        self.chains.len() - 1
    }

    /// Adds `rule` at the end of the chain at `chain`.
    pub(crate) fn push(&mut self, chain: usize, rule: Rule<'a>) {
        self.chains[chain].rules.push(rule);
    }

    fn finish(self, name: &'static str) -> Table<'a> {
        Table::new(name, self.chains)
    }
}

/// The built-in chains that kube-proxy jumps from, with those jumps in the order of a node where they were all missing.
pub(crate) fn jumps<'a>(
    table: &mut TableBuilder<'a>,
    rows: &(impl DoubleEndedIterator<Item = (&'static str, Rule<'a>)> + Clone),
) {
    let mut from: Vec<&'static str> = rows.clone().map(|(from, _)| from).collect();
    from.sort_unstable();
    from.dedup();
    for name in from {
        let at = table.built_in(name);
        // Each is inserted before the previous ones.
        for (_, rule) in rows.clone().rev().filter(|(from, _)| *from == name) {
            table.push(at, rule);
        }
    }
}

/// Returns the rules of `tables`.
pub(crate) fn ruleset<'a>(tables: Vec<(&'static str, TableBuilder<'a>)>) -> Ruleset<'a> {
    let tables = tables
        .into_iter()
        .map(|(name, table)| table.finish(name))
        .collect();
    Ruleset {
        tables,
        ..Ruleset::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chances_have_the_ten_digits_that_kube_proxy_writes() {
        for count in 1..=10_000u32 {
            let digits = format!("{:.10}", 1.0 / f64::from(count));
            let share: f64 = digits.parse().unwrap();
            #[expect(
                clippy::cast_possible_truncation,
                clippy::cast_sign_loss,
                reason = "between 0 and 2^31"
            )]
            let chance = (share * f64::from(1u32 << 31)).round() as u32;
            let expected = Match::Random(Invertible::plain(chance));
            assert_eq!(one_in(count as usize), expected, "{count}");
        }
    }

    #[test]
    fn chances_are_those_the_kernel_keeps() {
        let saved = |count| match one_in(count) {
            Match::Random(chance) => {
                format!("{:.11}", f64::from(chance.value) / f64::from(1u32 << 31))
            }
            _ => String::new(),
        };
        assert_eq!(saved(2), "0.50000000000");
        assert_eq!(saved(3), "0.33333333349");
        assert_eq!(saved(6), "0.16666666651");
        assert_eq!(saved(7), "0.14285714272");
        assert_eq!(saved(11), "0.09090909082");
        assert_eq!(saved(999), "0.00100100087");
        assert_eq!(saved(1000), "0.00100000016");
    }
}
