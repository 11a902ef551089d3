//! Parsers of option values.

use std::ffi::OsStr;
use std::time::Duration;

use clap::builder::{PossibleValue, PossibleValuesParser, StringValueParser, TypedValueParser};
use clap::error::ErrorKind;
use clap::{Arg, Command, Error};

use super::change::Part;
use crate::pages;
use crate::view::View;
use kpx_judge::check;
use kpx_judge::diff::Layer;
use kpx_migrate::accept::AcceptedLoss;
use kpx_migrate::migration::Strategy;
use kpx_node::backend::Mode;
use kpx_node::cluster::release::Goal;
use kpx_node::evidence::Item;
use kpx_node::net::{Family, Mark, Proto};

/// A parser of a fixed list of words: each word, its value and its line of help.
#[derive(Clone, Copy)]
pub(crate) struct Choice<T: 'static>(pub(crate) &'static [(&'static str, T, &'static str)]);

impl<T> Choice<T> {
    fn values(&self) -> impl Iterator<Item = PossibleValue> + use<T> {
        let words = self.0.iter();
        words.map(|(word, _, help)| PossibleValue::new(word).help(help))
    }
}

impl<T: Clone + Send + Sync + 'static> TypedValueParser for Choice<T> {
    type Value = T;

    fn parse_ref(&self, command: &Command, arg: Option<&Arg>, value: &OsStr) -> Result<T, Error> {
        let words: Vec<_> = self.values().collect();
        let word = PossibleValuesParser::new(words).parse_ref(command, arg, value)?;
        let found = self.0.iter().find(|(name, ..)| *name == word);
        let (_, value, _) =
            found.ok_or_else(|| Error::raw(ErrorKind::InvalidValue, format!("{word:?}\n")))?;
        Ok(value.clone())
    }

    fn possible_values(&self) -> Option<Box<dyn Iterator<Item = PossibleValue> + '_>> {
        Some(Box::new(self.values()))
    }
}

/// Parses a loss that an operator accepts.
pub(crate) fn accepted_loss(word: &str) -> Result<AcceptedLoss, String> {
    word.parse()
}

/// Parses an item of evidence: its file in a bundle.
pub(crate) fn item(word: &str) -> Result<Item, String> {
    Item::of_file(word).ok_or_else(|| "a bundle has no such file".to_owned())
}

/// Parses a mark, of which a mask is no part.
pub(crate) fn mark(word: &str) -> Result<u32, String> {
    match word.parse() {
        Ok(Mark {
            value,
            mask: u32::MAX,
        }) => Ok(value),
        _ => Err("a mark is a number such as 0x80, without a mask".to_owned()),
    }
}

const MODES: [(&str, Mode, &str); 3] = [
    ("iptables", Mode::Iptables, "KUBE-* chains and rules"),
    (
        "ipvs",
        Mode::Ipvs,
        "virtual servers, IP sets and a few rules",
    ),
    ("nftables", Mode::Nftables, "the nftables table kube-proxy"),
];

/// Parses a mode that kube-proxy can be switched to.
pub(crate) const fn mode() -> Choice<Mode> {
    Choice(&MODES)
}

/// Parses a mode that kube-proxy may run or have run in.
pub(crate) const fn any_mode() -> Choice<Mode> {
    const USERSPACE: (&str, Mode, &str) = (
        "userspace",
        Mode::Userspace,
        "portals that lead to kube-proxy, up to 1.25",
    );
    const ALL: [(&str, Mode, &str); 4] = [MODES[0], MODES[1], MODES[2], USERSPACE];
    Choice(&ALL)
}

/// Parses an IP family.
pub(crate) const fn family() -> Choice<Family> {
    Choice(&[("4", Family::V4, "IPv4"), ("6", Family::V6, "IPv6")])
}

/// Parses a part of the objects of a mode.
pub(crate) const fn part() -> Choice<Layer> {
    Choice(&[
        ("iptables", Layer::Iptables, "chains and rules"),
        ("ipset", Layer::Ipset, "IP sets"),
        ("ipvs", Layer::Ipvs, "virtual and real servers"),
        ("link", Layer::Link, "kube-ipvs0 and its addresses"),
        ("nftables", Layer::Nftables, "the nftables table"),
        ("sysctl", Layer::Sysctl, "kernel settings"),
    ])
}

/// Parses a part that `kpx reconcile` changes.
pub(crate) const fn repaired() -> Choice<Part> {
    Choice(&[
        ("iptables", Part::Layer(Layer::Iptables), "chains and rules"),
        ("ipset", Part::Layer(Layer::Ipset), "IP sets"),
        ("ipvs", Part::Layer(Layer::Ipvs), "virtual and real servers"),
        (
            "link",
            Part::Layer(Layer::Link),
            "kube-ipvs0 and its addresses",
        ),
        (
            "nftables",
            Part::Layer(Layer::Nftables),
            "the nftables table",
        ),
        ("sysctl", Part::Layer(Layer::Sysctl), "kernel settings"),
        (
            "conntrack",
            Part::Conntrack,
            "conntrack entries of dead endpoints; only if named",
        ),
    ])
}

/// Parses a strategy of a migration.
pub(crate) const fn strategy() -> Choice<Strategy> {
    Choice(&[
        (
            "bridge",
            Strategy::Bridge,
            "kpx's own table serves new connections; connections through ipvs are drained first",
        ),
        (
            "in-place",
            Strategy::InPlace,
            "the new mode's rules are built before the old mode's are removed",
        ),
        (
            "drain-node",
            Strategy::DrainNode,
            "the node is drained first, then as in-place, then uncordoned",
        ),
    ])
}

/// kubectl's words for the objects of a view, in addition to the view's name.
const AS_FOR_KUBECTL: [(&str, &str); 7] = [
    ("service", "services"),
    ("svc", "services"),
    ("endpoint", "services"),
    ("endpoints", "services"),
    ("ep", "services"),
    ("endpointslice", "services"),
    ("endpointslices", "services"),
];

/// Parses a view of `kpx show`, by its name or by kubectl's word for its objects.
#[derive(Clone, Copy)]
pub(crate) struct ViewParser;

impl TypedValueParser for ViewParser {
    type Value = View;

    fn parse_ref(
        &self,
        command: &Command,
        arg: Option<&Arg>,
        value: &OsStr,
    ) -> Result<View, Error> {
        let known = AS_FOR_KUBECTL.iter().find(|(word, _)| *word == value);
        let name = known.map_or(value, |(_, name)| OsStr::new(name));
        view().parse_ref(command, arg, name)
    }

    fn possible_values(&self) -> Option<Box<dyn Iterator<Item = PossibleValue> + '_>> {
        Some(Box::new(view().values()))
    }
}

const fn view() -> Choice<View> {
    Choice(&[
        (
            "services",
            View::Services,
            "how the node handles each Service",
        ),
        ("chains", View::Chains, "chains, with their owners"),
        ("ipvs", View::Ipvs, "virtual servers and their real servers"),
        (
            "sets",
            View::Sets,
            "IP sets, and sets and maps of nftables, with their purpose",
        ),
        (
            "addresses",
            View::Addresses,
            "addresses of kube-ipvs0, with the reason for each",
        ),
        (
            "nodeports",
            View::Nodeports,
            "NodePorts, with the processes that listen there",
        ),
        (
            "portals",
            View::Portals,
            "portals of the userspace mode, up to 1.25",
        ),
        (
            "conntrack",
            View::Conntrack,
            "tracked connections of Services",
        ),
        (
            "affinity",
            View::Affinity,
            "clients that session affinity binds to a backend",
        ),
        (
            "modules",
            View::Modules,
            "kernel modules, with the modes that need them",
        ),
        (
            "sysctls",
            View::Sysctls,
            "kernel settings, with the recommended values",
        ),
        (
            "config",
            View::Config,
            "kube-proxy's configuration and mode",
        ),
    ])
}

/// Parses the protocol of a packet: tcp, udp, sctp, or icmp for an echo request.
pub(crate) fn protocol(text: &str) -> Result<Proto, String> {
    match text.parse() {
        Ok(proto @ (Proto::Tcp | Proto::Udp | Proto::Sctp | Proto::Icmp | Proto::Icmpv6)) => {
            Ok(proto)
        }
        _ => Err("expected tcp, udp, sctp or icmp".to_owned()),
    }
}

/// Parses a release of Kubernetes, or a version of it: `1.40`, `1.36.2`.
pub(crate) fn goal(text: &str) -> Result<Goal, String> {
    text.parse()
        .map_err(|_| "expected a release such as 1.40, or a version such as 1.36.2".to_owned())
}

/// Parses a duration: a number with the unit `ms`, `s`, `m` or `h`.
pub(crate) fn duration(text: &str) -> Result<Duration, String> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let number: f64 = digits
        .parse()
        .map_err(|_| "expected a number with a unit, such as 10s or 500ms".to_owned())?;
    let seconds = match &text[digits.len()..] {
        "ms" => number / 1000.0,
        "s" => number,
        "m" => number * 60.0,
        "h" => number * 3600.0,
        _ => return Err("expected a unit: ms, s, m or h, such as 5s or 2m".to_owned()),
    };
    Duration::try_from_secs_f64(seconds).map_err(|_| "the duration is out of range".to_owned())
}

/// Parses a size in bytes, with a unit.
pub(crate) fn size(text: &str) -> Result<u64, String> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let number: u64 = digits
        .parse()
        .map_err(|_| "expected a whole number with a unit, such as 500MiB".to_owned())?;
    let unit = match &text[digits.len()..] {
        "KiB" | "Ki" => 1 << 10,
        "MiB" | "Mi" => 1 << 20,
        "GiB" | "Gi" => 1 << 30,
        _ => return Err("expected a unit: KiB, MiB or GiB, such as 500MiB".to_owned()),
    };
    number
        .checked_mul(unit)
        .ok_or_else(|| "the size is out of range".to_owned())
}

/// Parses a part of a processor in percent.
pub(crate) fn percent(text: &str) -> Result<f64, String> {
    match text.trim_end_matches('%').parse() {
        Ok(number) if (0.01..=100.0).contains(&number) => Ok(number),
        _ => Err("expected a number from 0.01 to 100".to_owned()),
    }
}

/// Parses the lease of the bridge: 10 s to 1 h, long enough for a restart of its keeper, and short enough to limit an
/// outage.
pub(crate) fn lease(text: &str) -> Result<Duration, String> {
    let allowed = Duration::from_secs(10)..=Duration::from_secs(3600);
    let time = duration(text)?;
    if allowed.contains(&time) {
        Ok(time)
    } else {
        Err("expected 10s to 1h".to_owned())
    }
}

/// A parser that offers values and accepts any word. `--output` in front of the command is parsed before the command is
/// known: `Session` refuses what the command does not have. Checks also have names and groups.
#[derive(Clone)]
pub(crate) enum Offered {
    Words(Vec<&'static str>),
    /// Computed on demand: every command line is parsed, and few are completed.
    Made(fn() -> Vec<PossibleValue>),
}

impl Offered {
    /// Returns the parser that offers `words`.
    pub(crate) fn of(words: &[&'static str]) -> Self {
        Self::Words(words.to_vec())
    }
}

/// Parses a check, and offers the ids.
pub(crate) fn check() -> Offered {
    Offered::Made(|| checks().collect())
}

/// Parses an argument of `kpx explain`, and offers the checks and the pages.
pub(crate) fn explained() -> Offered {
    Offered::Made(|| {
        let pages = pages::all().map(|page| PossibleValue::new(page.word).help(page.subject));
        checks().chain(pages).collect()
    })
}

fn checks() -> impl Iterator<Item = PossibleValue> {
    check::all().map(|check| PossibleValue::new(check.id).help(check.title))
}

impl TypedValueParser for Offered {
    type Value = String;

    fn parse_ref(
        &self,
        command: &Command,
        arg: Option<&Arg>,
        value: &OsStr,
    ) -> Result<String, Error> {
        StringValueParser::new().parse_ref(command, arg, value)
    }

    fn possible_values(&self) -> Option<Box<dyn Iterator<Item = PossibleValue> + '_>> {
        let values = match self {
            Self::Words(words) => words.iter().map(PossibleValue::new).collect(),
            Self::Made(make) => make(),
        };
        (!values.is_empty()).then(|| Box::new(values.into_iter()) as Box<dyn Iterator<Item = _>>)
    }
}

/// Parses any word as the value of each kind of option, for the fuzzer.
#[cfg(fuzzing)]
pub(crate) fn fuzz(word: &str) {
    duration(word).ok();
    lease(word).ok();
    size(word).ok();
    percent(word).ok();
    mark(word).ok();
    item(word).ok();
    protocol(word).ok();
    goal(word).ok();
}
