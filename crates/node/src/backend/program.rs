//! A desired state as text that the standard tools load.

use std::fmt::Write as _;

use super::iptables::expect::Names;
use super::iptables::model::Ruleset;
use super::ipvs::model::DUMMY;
use super::requirements::{By, Setup};
use super::{Mode, iptables, ipvs, nftables};
use crate::desired::DesiredState;
use crate::evidence::Gap;
use crate::net::{Cidr, Family};

/// A part of what a mode programs, for one tool.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub enum Part {
    /// Kernel settings.
    Sysctl,
    /// kube-ipvs0 and its addresses.
    Addresses,
    /// IP sets.
    Ipset,
    /// The rules of one family.
    Iptables(Family),
    /// Virtual and real servers.
    Ipvs,
    /// The tables of nftables mode.
    Nftables,
}

impl Part {
    /// Returns the parts that `mode` has for `families`, in the order to load them.
    pub fn of(mode: Mode, families: &[Family]) -> Vec<Self> {
        let rules = || families.iter().map(|&family| Self::Iptables(family));
        match mode {
            Mode::Iptables => rules().chain([Self::Sysctl]).collect(),
            Mode::Ipvs => [Self::Sysctl, Self::Addresses, Self::Ipset]
                .into_iter()
                .chain(rules())
                .chain([Self::Ipvs])
                .collect(),
            Mode::Nftables => vec![Self::Nftables],
            Mode::Userspace => Vec::new(),
        }
    }

    /// Returns the name that `kpx render --part PART` takes.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Sysctl => "sysctl",
            Self::Addresses => "link",
            Self::Ipset => "ipset",
            Self::Iptables(_) => "iptables",
            Self::Ipvs => "ipvs",
            Self::Nftables => "nftables",
        }
    }

    /// Returns the command that loads it from standard input.
    pub const fn tool(self) -> &'static str {
        match self {
            Self::Sysctl => "sysctl -p -",
            Self::Addresses => "ip -batch -",
            Self::Ipset => "ipset restore",
            Self::Iptables(Family::V4) => "iptables-restore --noflush",
            Self::Iptables(Family::V6) => "ip6tables-restore --noflush",
            Self::Ipvs => "ipvsadm --restore",
            Self::Nftables => "nft -f -",
        }
    }
}

/// Returns `part` of `desired` as text, for `families`.
///
/// `service_cidrs` are the prefixes that cluster IPs come from, as far as they are known.
pub fn text(
    desired: &DesiredState,
    part: Part,
    families: &[Family],
    service_cidrs: &[Cidr],
) -> Result<String, Gap> {
    let states = || {
        let all = desired.families.iter();
        all.filter(|state| families.contains(&state.family))
    };
    let mut text = String::new();
    for state in states() {
        match part {
            Part::Iptables(family) if family != state.family => {}
            Part::Iptables(_) if desired.mode == Mode::Ipvs => {
                let sets = ipvs::expect::expect(desired, state)?;
                let rules = ipvs::rules::expect(desired, state, &sets);
                write_rules(&mut text, &rules);
            }
            Part::Iptables(_) => {
                let names = Names::of(state);
                let rules = iptables::expect::expect(desired, state, &names)?;
                write_rules(&mut text, &rules);
            }
            Part::Addresses => {
                if text.is_empty() {
                    line(&mut text, format_args!("link add {DUMMY} type dummy"));
                }
                for addr in ipvs::expect::expect(desired, state)?.addresses {
                    let addr = Cidr::host(addr);
                    line(&mut text, format_args!("addr add {addr} dev {DUMMY}"));
                }
            }
            Part::Ipset => write_sets(
                &mut text,
                &ipvs::expect::expect(desired, state)?.sets(state.family),
            ),
            Part::Ipvs => {
                for server in ipvs::expect::expect(desired, state)?.servers {
                    let (key, options) =
                        (ipvs::print::key(server.key), ipvs::print::options(&server));
                    line(&mut text, format_args!("-A {key} {options}"));
                    for real in &server.reals {
                        line(
                            &mut text,
                            format_args!("-a {key} {}", ipvs::print::real(real)),
                        );
                    }
                }
            }
            Part::Nftables => {
                let table = nftables::expect::expect(desired, state, service_cidrs)?;
                text.push_str(&nftables::print::table(&table));
            }
            Part::Sysctl => {}
        }
    }
    if part == Part::Sysctl && families.contains(&Family::V4) {
        for (key, value) in sysctls(desired) {
            line(&mut text, format_args!("{key} = {value}"));
        }
    }
    Ok(text)
}

/// Returns the sysctls that kube-proxy's proxier writes in the mode of `desired`, with their values, sorted.
pub fn sysctls(desired: &DesiredState) -> Vec<(&'static str, String)> {
    let v4 = desired.family(Family::V4);
    let own = match desired.mode {
        Mode::Iptables => {
            iptables::requirements::sysctls(v4.is_some_and(|state| state.node_ports.localhost))
        }
        Mode::Ipvs => ipvs::requirements::sysctls(&Setup {
            config: Some(&desired.config),
            kernel: desired.facts.kernel,
            localhost_node_ports: false,
            ipv6: false,
            bridge: false,
        }),
        Mode::Nftables | Mode::Userspace => Vec::new(),
    };
    let written = own.into_iter().filter(|sysctl| sysctl.by == By::KubeProxy);
    let mut all: Vec<_> = written
        .map(|written| (written.key, written.want.to_string()))
        .collect();
    all.sort_unstable();
    all
}

/// Writes rules for `iptables-restore --noflush`: whole chains of kube-proxy, and jumps before the rules of others.
fn write_rules(text: &mut String, rules: &Ruleset<'_>) {
    for table in &rules.tables {
        line(text, format_args!("*{}", table.name));
        for chain in table.chains.iter().filter(|chain| chain.policy.is_none()) {
            line(text, format_args!(":{} - [0:0]", chain.name));
        }
        for chain in &table.chains {
            if chain.policy.is_some() {
                // Each is inserted before the previous ones.
                for rule in chain.rules.iter().rev() {
                    line(text, format_args!("-I {}{rule}", chain.name));
                }
            } else {
                for rule in &chain.rules {
                    line(text, format_args!("-A {}{rule}", chain.name));
                }
            }
        }
        line(text, format_args!("COMMIT"));
    }
}

fn write_sets(text: &mut String, sets: &super::ipset::Sets<'_>) {
    for set in &sets.sets {
        line(
            text,
            format_args!("create {} {} {} -exist", set.name, set.kind, set.options),
        );
        for member in &set.members {
            line(
                text,
                format_args!("add {} {} -exist", set.name, member.element),
            );
        }
    }
}

fn line(text: &mut String, what: std::fmt::Arguments<'_>) {
    writeln!(text, "{what}").expect("writing to a String does not fail");
}
