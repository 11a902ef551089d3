//! A [`Ruleset`] as `iptables-save` prints it, which is also what `iptables-restore` reads.

use std::fmt::{self, Display, Formatter, Write as _};
use std::net::IpAddr;

use super::model::{
    AddrType, Chain, Connmark, Counters, Direction, Invertible, Match, Nat, Physdev, Policy,
    Recent, RecentAction, Rule, Ruleset, Side, States, Table, Target, TcpFlags,
};
use super::parse::PROTOCOLS;
use crate::net::{Mark, PortRange, Proto};

impl Display for Ruleset<'_> {
    /// Writes the tables, with the counters of rules that have them.
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        self.tables.iter().try_for_each(|table| table.fmt(f))
    }
}

impl Display for Table<'_> {
    /// Writes the table from its `*NAME` to its `COMMIT`, with the counters of rules that have them.
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write_table(f, self, true)
    }
}

/// A ruleset that prints like `iptables-save` without `-c`.
#[derive(Debug)]
pub struct WithoutCounters<'r, 'a>(pub &'r Ruleset<'a>);

impl Display for WithoutCounters<'_, '_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let mut tables = self.0.tables.iter();
        tables.try_for_each(|table| write_table(f, table, false))
    }
}

fn write_table(f: &mut Formatter<'_>, table: &Table<'_>, counters: bool) -> fmt::Result {
    writeln!(f, "*{}", table.name)?;
    for chain in &table.chains {
        declare(f, chain)?;
    }
    for chain in &table.chains {
        for rule in &chain.rules {
            if let Some(counted) = rule.counters.filter(|_| counters) {
                write!(f, "{counted} ")?;
            }
            writeln!(f, "-A {}{rule}", chain.name)?;
        }
    }
    writeln!(f, "COMMIT")
}

fn declare(f: &mut Formatter<'_>, chain: &Chain<'_>) -> fmt::Result {
    let policy = match chain.policy {
        Some(Policy::Accept) => "ACCEPT",
        Some(Policy::Drop) => "DROP",
        None => "-",
    };
    writeln!(f, ":{} {policy} {}", chain.name, chain.counters)
}

impl Display for Counters {
    /// Writes `[PACKETS:BYTES]`.
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "[{}:{}]", self.packets, self.bytes)
    }
}

impl Display for Rule<'_> {
    /// Writes the words behind `-A CHAIN`, each with a space before it.
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let mut before: Option<&Match<'_>> = None;
        for m in &self.matches {
            match (m, before) {
                (Match::TcpFlags(flags), Some(ports)) if goes_on(ports) => tcp_flags(f, *flags)?,
                _ => write!(f, "{m}")?,
            }
            before = Some(m);
        }
        self.target.iter().try_for_each(|target| target.fmt(f))
    }
}

/// Returns whether TCP flags behind `m` are options of the same `-m tcp`.
fn goes_on(m: &Match<'_>) -> bool {
    matches!(m, Match::Ports { proto: Proto::Tcp, source, destination }
        if source.is_some() || destination.is_some())
}

impl Display for Match<'_> {
    /// Writes the match with a space before each word.
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::Source(cidr) => write!(f, "{} -s {}", Not(cidr), cidr.value),
            Self::Destination(cidr) => write!(f, "{} -d {}", Not(cidr), cidr.value),
            Self::In(link) => option(f, link, "-i"),
            Self::Out(link) => option(f, link, "-o"),
            Self::Protocol(proto) => {
                write!(f, "{} -p ", Not(proto))?;
                let names = PROTOCOLS.iter();
                let known = names.copied().find(|&(_, n)| n == proto.value.number());
                match known {
                    Some((name, _)) => f.write_str(name),
                    None => proto.value.fmt(f),
                }
            }
            Self::Ports {
                proto,
                source,
                destination,
            } => {
                write!(f, " -m {proto}")?;
                if let Some(ports) = source {
                    write!(f, "{} --sport {}", Not(ports), ports.value)?;
                }
                if let Some(ports) = destination {
                    write!(f, "{} --dport {}", Not(ports), ports.value)?;
                }
                Ok(())
            }
            Self::TcpFlags(flags) => {
                f.write_str(" -m tcp")?;
                tcp_flags(f, *flags)
            }
            Self::Multiport { side, ports } => {
                let name = match side {
                    Side::Source => "sports",
                    Side::Destination => "dports",
                    Side::Either => "ports",
                };
                write!(f, " -m multiport{} --{name} ", Not(ports))?;
                list(f, ports.value.iter())
            }
            Self::Comment(text) => {
                f.write_str(" -m comment --comment ")?;
                quoted(f, text)
            }
            Self::AddrType {
                source,
                destination,
                limit,
            } => {
                f.write_str(" -m addrtype")?;
                for (kinds, name) in [(source, "src-type"), (destination, "dst-type")] {
                    if let Some(kinds) = kinds {
                        write!(f, "{} --{name} ", Not(kinds))?;
                        bits(f, kinds.value.0, &AddrType::NAMES)?;
                    }
                }
                f.write_str(match limit {
                    Some(Direction::In) => " --limit-iface-in",
                    Some(Direction::Out) => " --limit-iface-out",
                    None => "",
                })
            }
            Self::State { states, old } => {
                let (module, name) = if *old {
                    ("state", "state")
                } else {
                    ("conntrack", "ctstate")
                };
                write!(f, " -m {module}{} --{name} ", Not(states))?;
                bits(f, states.value.0.into(), &States::NAMES)
            }
            Self::Mark(mark) => write!(f, " -m mark{} --mark {}", Not(mark), mark.value),
            Self::Connmark(mark) => write!(f, " -m connmark{} --mark {}", Not(mark), mark.value),
            Self::Random(chance) => write!(
                f,
                " -m statistic --mode random{} --probability {:.11}",
                Not(chance),
                f64::from(chance.value) / f64::from(1_u32 << 31)
            ),
            Self::Nth { every, packet } => write!(
                f,
                " -m statistic --mode nth{} --every {} --packet {packet}",
                Not(every),
                every.value
            ),
            Self::Set { name, sides } => {
                f.write_str(" -m set")?;
                option(f, name, "--match-set")?;
                f.write_char(' ')?;
                list(
                    f,
                    sides.iter().map(|side| match side {
                        Side::Source => "src",
                        Side::Destination | Side::Either => "dst",
                    }),
                )
            }
            Self::Recent(it) => recent(f, it),
            Self::Physdev(it) => physdev(f, it),
            Self::Nfacct(name) => {
                // With two spaces, as libxt_nfacct prints it.
                f.write_str(" -m nfacct --nfacct-name  ")?;
                word(f, name)
            }
            Self::Ipvs(options) => extension(f, " -m ipvs", options),
            Self::Icmp { v6: false, kind } => {
                f.write_str(" -m icmp")?;
                option(f, kind, "--icmp-type")
            }
            Self::Icmp { v6: true, kind } => {
                f.write_str(" -m icmp6")?;
                option(f, kind, "--icmpv6-type")
            }
            Self::Limit { hash, options } => {
                let module = if *hash { " -m hashlimit" } else { " -m limit" };
                extension(f, module, options)
            }
            Self::IpRange(it) => {
                f.write_str(" -m iprange")?;
                for (range, name) in [(it.source, "src-range"), (it.destination, "dst-range")] {
                    if let Some(range) = range {
                        let (first, last) = range.value;
                        write!(f, "{} --{name} {first}-{last}", Not(&range))?;
                    }
                }
                Ok(())
            }
            Self::Owner(options) => extension(f, " -m owner", options),
            Self::Rpfilter(options) => extension(f, " -m rpfilter", options),
            Self::Socket(options) => extension(f, " -m socket", options),
            Self::PktType(kind) => {
                f.write_str(" -m pkttype")?;
                option(f, kind, "--pkt-type")
            }
            Self::Conntrack(options) => extension(f, " -m conntrack", options),
            Self::Policy(options) => extension(f, " -m policy", options),
            Self::Rt(options) => extension(f, " -m rt", options),
            Self::Unknown(text) => write!(f, " {text}"),
        }
    }
}

fn tcp_flags(f: &mut Formatter<'_>, flags: Invertible<TcpFlags>) -> fmt::Result {
    write!(f, "{} --tcp-flags ", Not(&flags))?;
    let names = |f: &mut Formatter<'_>, flags: u8| match flags {
        0 => f.write_str("NONE"),
        flags => bits(f, flags.into(), &TcpFlags::NAMES),
    };
    names(f, flags.value.mask)?;
    f.write_char(' ')?;
    names(f, flags.value.set)
}

/// In the order of `recent_save` in iptables.
fn recent(f: &mut Formatter<'_>, it: &Recent<'_>) -> fmt::Result {
    let action = match it.action.value {
        RecentAction::Set => "set",
        RecentAction::Check => "rcheck",
        RecentAction::Update => "update",
        RecentAction::Remove => "remove",
    };
    write!(f, " -m recent{} --{action}", Not(&it.action))?;
    if let Some(seconds) = it.seconds {
        write!(f, " --seconds {seconds}")?;
    }
    if it.reap {
        f.write_str(" --reap")?;
    }
    if let Some(hitcount) = it.hitcount {
        write!(f, " --hitcount {hitcount}")?;
    }
    if it.rttl {
        f.write_str(" --rttl")?;
    }
    f.write_str(" --name ")?;
    word(f, &it.name)?;
    if let Some(mask) = &it.mask {
        write!(f, " --mask {mask}")?;
    }
    f.write_str(match it.side {
        Side::Source | Side::Either => " --rsource",
        Side::Destination => " --rdest",
    })
}

/// In the order of `physdev_save` in iptables.
fn physdev(f: &mut Formatter<'_>, it: &Physdev<'_>) -> fmt::Result {
    let flag = |f: &mut Formatter<'_>, flag: &Option<Invertible<()>>, name| {
        let mut flag = flag.iter();
        flag.try_for_each(|flag| write!(f, "{} --{name}", Not(flag)))
    };
    f.write_str(" -m physdev")?;
    flag(f, &it.is_in, "physdev-is-in")?;
    if let Some(link) = &it.input {
        option(f, link, "--physdev-in")?;
    }
    flag(f, &it.is_out, "physdev-is-out")?;
    if let Some(link) = &it.output {
        option(f, link, "--physdev-out")?;
    }
    flag(f, &it.is_bridged, "physdev-is-bridged")
}

impl Display for Target<'_> {
    /// Writes the target with a space before each word.
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::Jump(chain) => {
                f.write_str(" -j ")?;
                word(f, chain)
            }
            Self::Goto(chain) => {
                f.write_str(" -g ")?;
                word(f, chain)
            }
            Self::Accept => f.write_str(" -j ACCEPT"),
            Self::Drop => f.write_str(" -j DROP"),
            Self::Return => f.write_str(" -j RETURN"),
            Self::Reject { with: None } => f.write_str(" -j REJECT"),
            Self::Reject { with: Some(with) } => write!(f, " -j REJECT --reject-with {with}"),
            Self::Dnat(to) => {
                f.write_str(" -j DNAT --to-destination ")?;
                nat(f, to)
            }
            Self::Snat(to) => {
                f.write_str(" -j SNAT --to-source ")?;
                nat(f, to)
            }
            Self::Masquerade {
                ports,
                random,
                random_fully,
            } => {
                f.write_str(" -j MASQUERADE")?;
                if let Some(range) = ports {
                    f.write_str(" --to-ports ")?;
                    write_ports(f, *range)?;
                }
                f.write_str(if *random { " --random" } else { "" })?;
                f.write_str(if *random_fully { " --random-fully" } else { "" })
            }
            Self::Redirect { ports, random } => {
                f.write_str(" -j REDIRECT")?;
                if let Some(range) = ports {
                    f.write_str(" --to-ports ")?;
                    write_ports(f, *range)?;
                }
                f.write_str(if *random { " --random" } else { "" })
            }
            Self::Mark(mark) => write!(f, " -j MARK --set-xmark {}", Xmark(*mark)),
            Self::Connmark(Connmark::Set(mark)) => {
                write!(f, " -j CONNMARK --set-xmark {}", Xmark(*mark))
            }
            Self::Connmark(Connmark::Save { packet, connection }) => write!(
                f,
                " -j CONNMARK --save-mark --nfmask {packet:#x} --ctmask {connection:#x}"
            ),
            Self::Connmark(Connmark::Restore { packet, connection }) => write!(
                f,
                " -j CONNMARK --restore-mark --nfmask {packet:#x} --ctmask {connection:#x}"
            ),
            Self::Notrack { is_short: false } => f.write_str(" -j CT --notrack"),
            Self::Notrack { is_short: true } => f.write_str(" -j NOTRACK"),
            Self::Tproxy(to) => {
                write!(f, " -j TPROXY --on-port {}", to.port)?;
                if let Some(addr) = to.addr {
                    write!(f, " --on-ip {addr}")?;
                }
                write!(f, " --tproxy-mark {}", Xmark(to.mark))
            }
            Self::Other { name, options } => {
                f.write_str(" -j ")?;
                word(f, name)?;
                extension(f, "", options)
            }
        }
    }
}

fn nat(f: &mut Formatter<'_>, nat: &Nat) -> fmt::Result {
    if let Some((first, last)) = nat.addrs {
        let bracket = matches!(first, IpAddr::V6(_)) && nat.ports.is_some();
        f.write_str(if bracket { "[" } else { "" })?;
        first.fmt(f)?;
        if last != first {
            write!(f, "-{last}")?;
        }
        f.write_str(if bracket { "]" } else { "" })?;
    }
    if let Some(ports) = nat.ports {
        f.write_char(':')?;
        write_ports(f, ports)?;
    }
    let flags = nat.flags;
    f.write_str(if flags.random { " --random" } else { "" })?;
    f.write_str(if flags.random_fully {
        " --random-fully"
    } else {
        ""
    })?;
    f.write_str(if flags.persistent {
        " --persistent"
    } else {
        ""
    })
}

/// Writes `80` or `80-90`, as targets do.
fn write_ports(f: &mut Formatter<'_>, ports: PortRange) -> fmt::Result {
    write!(f, "{}", ports.first)?;
    if ports.first != ports.last {
        write!(f, "-{}", ports.last)?;
    }
    Ok(())
}

/// A mark with its mask, also where that is all ones.
struct Xmark(Mark);

impl Display for Xmark {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}/{:#x}", self.0.value, self.0.mask)
    }
}

/// ` !` for an inverted option.
struct Not<'m, T>(&'m Invertible<T>);

impl<T> Display for Not<'_, T> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.inverted { " !" } else { "" })
    }
}

fn option<T: AsRef<str>>(f: &mut Formatter<'_>, value: &Invertible<T>, name: &str) -> fmt::Result {
    write!(f, "{} {name} ", Not(value))?;
    word(f, value.value.as_ref())
}

fn extension(f: &mut Formatter<'_>, head: &str, options: &str) -> fmt::Result {
    f.write_str(head)?;
    if options.is_empty() {
        return Ok(());
    }
    write!(f, " {options}")
}

fn list(f: &mut Formatter<'_>, items: impl Iterator<Item = impl Display>) -> fmt::Result {
    for (i, item) in items.enumerate() {
        f.write_str(if i == 0 { "" } else { "," })?;
        item.fmt(f)?;
    }
    Ok(())
}

fn bits(f: &mut Formatter<'_>, bits: u16, names: &[&str]) -> fmt::Result {
    list(
        f,
        names
            .iter()
            .enumerate()
            .filter(|(bit, _)| bits & (1 << bit) != 0)
            .map(|(_, name)| name),
    )
}

/// Writes a name, in quotes only where it would not be one word otherwise.
fn word(f: &mut Formatter<'_>, text: &str) -> fmt::Result {
    let is_special = |c: char| c.is_ascii_whitespace() || matches!(c, '"' | '\\');
    if text.is_empty() || text.contains(is_special) {
        return quote(f, text);
    }
    f.write_str(text)
}

/// Writes text as `xtables_save_string` does: in quotes unless it has letters, digits, `-` and `_` alone.
fn quoted(f: &mut Formatter<'_>, text: &str) -> fmt::Result {
    let plain = |b: u8| b.is_ascii_alphanumeric() || b == b'-' || b == b'_';
    if !text.is_empty() && text.bytes().all(plain) {
        return f.write_str(text);
    }
    quote(f, text)
}

fn quote(f: &mut Formatter<'_>, text: &str) -> fmt::Result {
    f.write_char('"')?;
    for c in text.chars() {
        if matches!(c, '"' | '\\' | '\'') {
            f.write_char('\\')?;
        }
        f.write_char(c)?;
    }
    f.write_char('"')
}
