//! What must be true before a stage counts as done.

use std::fmt::{self, Display, Formatter};

use serde::Serialize;

use super::journal::Proxy;
use super::log;
use crate::backend::Mode;
use crate::cluster::edit::Fields;
use crate::cluster::pod::CrashLoop;
use crate::diff::{self, Change};
use crate::evidence::{Gap, Item};
use crate::net::Family;
use crate::node::NodeSnapshot;
use crate::node::runtime::Metrics;
use crate::plan;

/// A condition, and how it stands.
#[derive(Clone, Debug, Eq, PartialEq, Serialize)]
pub struct Gate {
    /// Which.
    pub name: Name,
    /// How it stands.
    pub status: Status,
    /// Why, where it is not passed.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub reason: String,
}

/// A condition.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Name {
    /// kube-proxy is another process than before.
    Restarted,
    /// It runs with what was set.
    Configuration,
    /// It says that it runs in the mode.
    Mode,
    /// It has written the rules of every family since it started.
    Synced,
    /// It fails no more to write rules.
    Failures,
    /// What is there is what should be.
    Desired,
    /// Nothing of the mode that was left is there.
    Leftovers,
    /// Its log says the same.
    Log,
    /// Services answer.
    Probes,
    /// kube-proxy's container does not end again and again.
    Running,
}

/// How a condition stands.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Status {
    /// It holds.
    Passed,
    /// It does not hold, and may yet.
    Waiting,
    /// Whether it holds cannot be told.
    Unknown,
    /// The same, and others tell as much: it is said, and not waited for.
    Skipped,
}

impl Gate {
    /// Returns whether it has to be waited for.
    pub fn is_open(&self) -> bool {
        !matches!(self.status, Status::Passed | Status::Skipped)
    }
}

impl Display for Name {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Restarted => "restarted",
            Self::Configuration => "configuration",
            Self::Mode => "mode",
            Self::Synced => "synced",
            Self::Failures => "failures",
            Self::Desired => "desired",
            Self::Leftovers => "leftovers",
            Self::Log => "log",
            Self::Probes => "probes",
            Self::Running => "running",
        })
    }
}

/// What is expected of the node.
#[derive(Clone, Copy, Debug)]
pub struct Expected<'e> {
    /// What was set.
    pub fields: &'e Fields,
    /// The kube-proxy that ran before, where it was restarted.
    pub before: Option<Proxy>,
    /// The mode of which nothing may be left.
    pub cleaned: Option<Mode>,
}

/// What an earlier look saw, to tell what passes from what stays.
#[derive(Clone, Debug, Default)]
pub struct Seen {
    failures: Option<f64>,
    changes: Vec<Change>,
}

/// What the conditions on kube-proxy itself are read from.
pub const PROXY_NEEDS: &[Item] = &[
    Item::Processes,
    Item::ProxyMode,
    Item::ProxyConfig,
    Item::Configz,
    Item::Metrics,
    Item::Healthz,
];

/// Returns what the conditions on the kernel's state are read from.
pub fn state_needs(expected: Expected<'_>) -> Vec<Item> {
    let mut items = diff::needs(expected.fields.mode);
    items.extend(PROXY_NEEDS);
    items.push(Item::ProxyLog);
    // To list the rules of a large iptables mode takes nft ten times as long as iptables-save.
    if expected.cleaned == Some(Mode::Nftables) {
        items.extend([Item::Nft, Item::NftText]);
    }
    items.sort();
    items.dedup();
    items
}

/// Returns what tells the kube-proxy of `node` from another one.
pub fn proxy(node: &NodeSnapshot<'_>) -> Proxy {
    let process = plan::kube_proxy(node).ok().flatten();
    let told = || node.metrics().ok().and_then(Metrics::process_start);
    Proxy {
        pid: process.map(|process| process.pid),
        started: process
            .and_then(|process| i64::try_from(process.started?).ok())
            .or_else(told),
    }
}

/// Judges what kube-proxy says of itself.
pub fn of_proxy(node: &NodeSnapshot<'_>, expected: Expected<'_>, seen: &mut Seen) -> Vec<Gate> {
    let mut gates = Vec::new();
    if let Some(before) = expected.before {
        gates.push(restarted(node, before));
    }
    gates.push(gate(Name::Mode, mode(node, expected.fields.mode)));
    gates.push(gate(
        Name::Configuration,
        configuration(node, expected.fields),
    ));
    match node.metrics() {
        Ok(metrics) => {
            gates.push(gate(Name::Synced, synced(metrics)));
            gates.push(gate(Name::Failures, failures(metrics, seen)));
        }
        Err(gap) => gates.push(gate(Name::Synced, Err(Hold::Gap(gap)))),
    }
    gates
}

/// Judges what the kernel holds, and what kube-proxy's log says.
pub fn of_state(node: &NodeSnapshot<'_>, expected: Expected<'_>, seen: &mut Seen) -> Vec<Gate> {
    let mut gates = vec![
        logged(node, expected.fields),
        gate(Name::Desired, live(node, expected.fields.mode, seen)),
    ];
    if let Some(cleaned) = expected.cleaned {
        gates.push(gate(Name::Leftovers, leftovers(node, cleaned)));
    }
    gates
}

/// Holds kube-proxy's log against what was set. Where there is none, or it does not tell, what kube-proxy answers at
/// `/proxyMode` and its configuration have to do.
fn logged(node: &NodeSnapshot<'_>, set: &Fields) -> Gate {
    let (status, reason) = match node.evidence().text(Item::ProxyLog) {
        Err(gap) => (Status::Skipped, gap.to_string()),
        Ok(text) => {
            let said = log::said(text);
            match (log::objection(&said, set), said.mode) {
                (Some(why), _) => (Status::Waiting, why),
                (None, Some(_)) => (Status::Passed, String::new()),
                (None, None) => {
                    let why = "kube-proxy's log does not say which mode it uses";
                    (Status::Skipped, why.to_owned())
                }
            }
        }
    };
    Gate {
        name: Name::Log,
        status,
        reason,
    }
}

/// Judges what became of probes: `silent` are those that had no answer, each with what they met.
pub fn of_probes(silent: &[String]) -> Gate {
    let met = match silent {
        [] => Ok(()),
        some => Err(Hold::Not(some.join("; "))),
    };
    gate(Name::Probes, met)
}

/// Says that kube-proxy's container ends again and again.
pub fn of_crash(found: &CrashLoop) -> Gate {
    gate(Name::Running, Err(Hold::Not(found.to_string())))
}

/// Why a condition does not hold.
enum Hold {
    Not(String),
    Gap(Gap),
}

impl From<Gap> for Hold {
    fn from(gap: Gap) -> Self {
        Self::Gap(gap)
    }
}

fn gate(name: Name, met: Result<(), Hold>) -> Gate {
    let (status, reason) = match met {
        Ok(()) => (Status::Passed, String::new()),
        Err(Hold::Not(why)) => (Status::Waiting, why),
        Err(Hold::Gap(gap)) => (Status::Unknown, gap.to_string()),
    };
    Gate {
        name,
        status,
        reason,
    }
}

fn restarted(node: &NodeSnapshot<'_>, before: Proxy) -> Gate {
    let now = proxy(node);
    let not = |why: &str| Err(Hold::Not(why.to_owned()));
    let met = match now.differs(before) {
        Some(true) => Ok(()),
        Some(false) => not("kube-proxy is the process that ran before"),
        None if now == Proxy::default() => not("no kube-proxy is seen"),
        None => Err(Hold::Gap(Gap::Absent(
            Item::Processes,
            "neither its process nor its metrics tell whether kube-proxy was restarted".to_owned(),
        ))),
    };
    gate(Name::Restarted, met)
}

fn mode(node: &NodeSnapshot<'_>, wanted: Mode) -> Result<(), Hold> {
    let told = node.reported_mode()?;
    if told == wanted {
        return Ok(());
    }
    Err(Hold::Not(format!("kube-proxy says {told}")))
}

fn configuration(node: &NodeSnapshot<'_>, wanted: &Fields) -> Result<(), Hold> {
    let config = node.proxy_config()?;
    let scheduler = wanted.scheduler.as_deref();
    let checks = [
        (config.mode_asked() == Some(wanted.mode), "mode"),
        (
            scheduler.is_none_or(|name| config.scheduler() == effective(name)),
            "ipvs.scheduler",
        ),
        (
            wanted
                .strict_arp
                .is_none_or(|on| config.ipvs.strict_arp == on),
            "ipvs.strictARP",
        ),
    ];
    let wrong: Vec<_> = checks
        .iter()
        .filter(|(is, _)| !is)
        .map(|(_, name)| *name)
        .collect();
    if wrong.is_empty() {
        return Ok(());
    }
    Err(Hold::Not(format!(
        "it does not have the {} that was set",
        wrong.join(", ")
    )))
}

/// The scheduler that an empty name stands for.
fn effective(name: &str) -> &str {
    if name.is_empty() { "rr" } else { name }
}

/// A family counts from when kube-proxy asks for its first sync: it does so for each family that it serves, at its start.
fn synced(metrics: &Metrics<'_>) -> Result<(), Hold> {
    let done = |family: Option<Family>| {
        let mut all = metrics.last_sync();
        all.any(|(of, at)| of == family && at > 0.0)
    };
    let mut asked: Vec<_> = metrics.last_queued().map(|(family, _)| family).collect();
    asked.extend(metrics.last_sync().map(|(family, _)| family));
    asked.dedup();
    if asked.is_empty() {
        return Err(Hold::Not("no sync was begun".to_owned()));
    }
    match asked.into_iter().find(|&family| !done(family)) {
        None => Ok(()),
        Some(Some(family)) => Err(Hold::Not(format!("no sync of {family} is done yet"))),
        Some(None) => Err(Hold::Not("no sync is done yet".to_owned())),
    }
}

/// What counts syncs that failed.
const FAILURES: &[&str] = &[
    "kubeproxy_sync_proxy_rules_iptables_restore_failures_total",
    "kubeproxy_sync_proxy_rules_nftables_sync_failures_total",
];

fn failures(metrics: &Metrics<'_>, seen: &mut Seen) -> Result<(), Hold> {
    let samples = FAILURES.iter().flat_map(|name| metrics.of(name));
    let count: f64 = samples.map(|sample| sample.value).sum();
    let before = seen.failures.replace(count);
    // Counted from the process's start, so what an earlier look saw is no new one.
    if count == 0.0 || before == Some(count) {
        return Ok(());
    }
    Err(Hold::Not(format!("{count} syncs failed since it started")))
}

fn live(node: &NodeSnapshot<'_>, mode: Mode, seen: &mut Seen) -> Result<(), Hold> {
    let found = diff::compare(node, mode, &Family::BOTH)?;
    if let Some((_, gap)) = found.unknown.into_iter().next() {
        return Err(Hold::Gap(gap));
    }
    // In a cluster that changes, what differs at one moment is on its way: what stays is wrong.
    let before = std::mem::replace(&mut seen.changes, found.changes);
    let stays = seen
        .changes
        .iter()
        .filter(|change| before.is_empty() || before.contains(change));
    let stays: Vec<_> = stays.collect();
    match stays.as_slice() {
        [] => Ok(()),
        [first, rest @ ..] => {
            let others = match rest.len() {
                0 => String::new(),
                count => format!(", and {count} more"),
            };
            let kind = match first.kind() {
                diff::ChangeKind::Missing => "is missing",
                diff::ChangeKind::Extra => "is left",
                diff::ChangeKind::Differs => "differs",
            };
            Err(Hold::Not(format!("{} {kind}{others}", first.object)))
        }
    }
}

fn leftovers(node: &NodeSnapshot<'_>, cleaned: Mode) -> Result<(), Hold> {
    let modes = node.modes();
    let mut left = modes.leftovers.iter().filter(|of| of.mode == cleaned);
    if let Some(first) = left.next() {
        let (count, kind) = (first.names.len(), first.kind.words(first.names.len()));
        return Err(Hold::Not(format!(
            "{count} {kind} of mode {cleaned} are left"
        )));
    }
    let asked = |gap: &Gap| !matches!(gap, Gap::NotCollected(_));
    match modes.gaps.into_iter().find(asked) {
        None => Ok(()),
        Some(gap) => Err(gap.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_family_that_asked_for_a_sync_must_have_had_one() {
        let of = |text: &str| synced(&Metrics::parse(text)).is_ok();
        let queued = "kubeproxy_sync_proxy_rules_last_queued_timestamp_seconds{ip_family=\"IPv4\"} 5\n\
            kubeproxy_sync_proxy_rules_last_queued_timestamp_seconds{ip_family=\"IPv6\"} 5\n";
        let four = "kubeproxy_sync_proxy_rules_last_timestamp_seconds{ip_family=\"IPv4\"} 6\n";
        let six = "kubeproxy_sync_proxy_rules_last_timestamp_seconds{ip_family=\"IPv6\"} 6\n";
        assert!(!of(""));
        assert!(!of(queued));
        assert!(!of(&format!("{queued}{four}")));
        assert!(of(&format!("{queued}{four}{six}")));
        assert!(of("kubeproxy_sync_proxy_rules_last_timestamp_seconds 6\n"));
        assert!(!of("kubeproxy_sync_proxy_rules_last_timestamp_seconds 0\n"));
    }

    #[test]
    fn failures_count_until_they_stop() {
        let text = |count: u32| {
            format!(
                "kubeproxy_sync_proxy_rules_iptables_restore_failures_total{{ip_family=\"IPv4\"}} {count}\n"
            )
        };
        let mut seen = Seen::default();
        let mut look = |count| failures(&Metrics::parse(&text(count)), &mut seen).is_ok();
        assert!(look(0));
        assert!(!look(1));
        assert!(!look(2));
        assert!(look(2));
    }
}
