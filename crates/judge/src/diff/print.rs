//! Changes as text: for reports, never to be read back.

use std::fmt;

use super::change::{Change, Delta, Object, RuleNumber};
use kpx_node::backend::ipset::Set;
use kpx_node::backend::ipvs::model::{DUMMY, VirtualServer};
use kpx_node::backend::nftables::expect::TABLE;
use kpx_node::backend::nftables::model as nftables;
use kpx_node::backend::{iptables, ipvs, nftables::print};
use kpx_node::net::Cidr;

impl fmt::Display for Object {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::IptablesChain { table, chain, .. } => write!(f, "{table} chain {chain}"),
            Self::IptablesRule {
                table, chain, at, ..
            } => write!(f, "{table} chain {chain} rule {}", at.number + 1),
            Self::Portal { chain, at, .. } => write!(f, "nat chain {chain} portal {at}"),
            Self::Set { name, .. } | Self::NftablesSet { name, .. } => write!(f, "set {name}"),
            Self::Member { set, member } => {
                let member = member.both().next().map(|member| member.element.as_ref());
                write!(f, "set {set} member {}", member.unwrap_or(""))
            }
            Self::VirtualServer { key, .. } => {
                write!(f, "virtual server {}", ipvs::print::name(*key))
            }
            Self::RealServer { server, addr, .. } => {
                let server = ipvs::print::name(*server);
                write!(f, "virtual server {server} real server {addr}")
            }
            Self::Link => write!(f, "link {DUMMY}"),
            Self::Address(addr) => {
                write!(f, "link {DUMMY} address ")?;
                addr.both()
                    .next()
                    .map_or(Ok(()), |addr| write!(f, "{addr}"))
            }
            Self::NftablesTable { family, .. } => {
                write!(f, "table {} {TABLE}", family.nft_name())
            }
            Self::NftablesChain { chain, .. } => write!(f, "{TABLE} chain {chain}"),
            Self::NftablesRule { chain, at, .. } => {
                write!(f, "{TABLE} chain {chain} rule {}", at.number + 1)
            }
            Self::NftablesElement { set, element } => {
                let key = element
                    .both()
                    .next()
                    .map(|element| print::expr(&element.key));
                write!(f, "set {set} member {}", key.unwrap_or_default())
            }
            Self::Sysctl { key, .. } => f.write_str(key),
        }
    }
}

impl Change {
    /// Returns the live object as its tool prints it, a line each; `None` if it is missing.
    pub fn have(&self) -> Option<String> {
        self.sides().0
    }

    /// Returns the desired object as its tool prints it, a line each; `None` if there is none.
    pub fn want(&self) -> Option<String> {
        self.sides().1
    }

    fn sides(&self) -> (Option<String>, Option<String>) {
        match &self.object {
            Object::IptablesChain { rules, .. } => sides(rules, |rules| chain(rules)),
            Object::IptablesRule { at, rule, .. } => moved(*at, sides(rule, iptables_rule)),
            Object::Portal { to, .. } => sides(to, String::clone),
            Object::Set {
                set: Delta::Missing(want),
                ..
            } => (None, Some(whole_set(want))),
            Object::Set { set, .. } => sides(set, describe),
            Object::Member {
                member: Delta::Differs { have, want },
                ..
            } => (
                Some(format!("{} {}", have.element, have.options)),
                Some(want.element.to_string()),
            ),
            Object::Member { member, .. } => sides(member, |member| member.element.to_string()),
            Object::VirtualServer {
                server: Delta::Differs { have, want },
                ..
            } => {
                let options = |server: &VirtualServer| Some(ipvs::print::options(server));
                (options(have), options(want))
            }
            Object::VirtualServer { server, .. } => sides(server, whole_server),
            Object::RealServer { real, .. } => sides(real, ipvs::print::real),
            Object::Link => (
                None,
                Some("a dummy link with the Services' addresses".to_owned()),
            ),
            Object::Address(addr) => sides(addr, |&addr| Cidr::host(addr).to_string()),
            Object::NftablesTable { dormant: true, .. } => {
                (Some("dormant".to_owned()), Some("active".to_owned()))
            }
            Object::NftablesTable { chains, sets, .. } => {
                (None, Some(format!("{chains} chains, {sets} sets and maps")))
            }
            Object::NftablesChain {
                of: Delta::Differs { have, want },
                ..
            } => {
                let base = |chain: &nftables::Chain| Some(base(chain.base.as_ref()));
                (base(have), base(want))
            }
            Object::NftablesChain { of, .. } => sides(of, whole_chain),
            Object::NftablesRule { at, rule, .. } => moved(*at, sides(rule, print::rule)),
            Object::NftablesSet {
                set: Delta::Missing(want),
                ..
            } => {
                let elements = want.elements.iter().map(element);
                let lines: Vec<_> = [shape(want)].into_iter().chain(elements).collect();
                (None, Some(lines.join("\n")))
            }
            Object::NftablesSet { set, .. } => sides(set, shape),
            Object::NftablesElement { element: of, .. } => sides(of, element),
            Object::Sysctl { value, .. } => sides(value, String::clone),
        }
    }
}

fn sides<T>(of: &Delta<T>, text: impl Fn(&T) -> String) -> (Option<String>, Option<String>) {
    (of.have().map(&text), of.want().map(&text))
}

/// Adds the places of a rule in the wrong order.
fn moved(
    at: RuleNumber,
    (have, want): (Option<String>, Option<String>),
) -> (Option<String>, Option<String>) {
    let Some(to) = at.moved_to else {
        return (have, want);
    };
    let placed =
        |text: Option<String>, at: usize| text.map(|text| format!("at {}: {text}", at + 1));
    (placed(have, at.number), placed(want, to))
}

fn chain(rules: &[iptables::model::Rule<'_>]) -> String {
    lines(rules.iter().map(iptables_rule))
}

fn iptables_rule(rule: &iptables::model::Rule<'_>) -> String {
    // Every word has a space before it.
    rule.to_string().trim_start().to_owned()
}

fn lines(all: impl Iterator<Item = String>) -> String {
    let all: Vec<_> = all.collect();
    if all.is_empty() {
        "an empty chain".to_owned()
    } else {
        all.join("\n")
    }
}

fn describe(set: &Set<'_>) -> String {
    format!("{} {}", set.kind, set.shape())
}

fn whole_set(set: &Set<'_>) -> String {
    let members = set.members.iter().map(|m| m.element.to_string());
    let lines: Vec<_> = [describe(set)].into_iter().chain(members).collect();
    lines.join("\n")
}

fn whole_server(server: &VirtualServer) -> String {
    let first = format!(
        "{} {}",
        ipvs::print::key(server.key),
        ipvs::print::options(server)
    );
    let reals = server.reals.iter().map(ipvs::print::real);
    let lines: Vec<_> = [first].into_iter().chain(reals).collect();
    lines.join("\n")
}

fn base(base: Option<&nftables::Base>) -> String {
    base.map_or("not at a hook".to_owned(), |base| {
        format!(
            "type {} hook {} priority {} policy {}",
            base.kind, base.hook, base.priority, base.policy
        )
    })
}

fn whole_chain(chain: &nftables::Chain) -> String {
    let head = chain.base.as_ref().map(|b| base(Some(b)));
    lines(head.into_iter().chain(chain.rules.iter().map(print::rule)))
}

/// The properties of a set that every nft lists.
pub(super) fn shape(set: &nftables::Set) -> String {
    let mut text = set.key.join(" . ");
    for data in set.data.iter().flatten() {
        text.push_str(" : ");
        text.push_str(data);
    }
    let timeout = set.timeout.map(|seconds| format!(" timeout {seconds}s"));
    text.extend(timeout);
    if set.flags.iter().any(|flag| flag == "interval") {
        text.push_str(" interval");
    }
    text
}

/// An element without comments and times.
pub(super) fn element(element: &nftables::Element) -> String {
    let key = print::expr(&element.key);
    match &element.value {
        Some(value) => format!("{key} : {}", print::datum(value)),
        None => key,
    }
}
