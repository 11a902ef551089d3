//! Gates: conditions that must hold before a migration counts as done.

use std::fmt::{self, Display, Formatter};

use serde::{Deserialize, Serialize};

use super::journal::Proxy;
use super::log;
use kpx_judge::diff::{self, Change};
use kpx_judge::plan;
use kpx_node::backend::Mode;
use kpx_node::cluster::config::ProxyConfig;
use kpx_node::cluster::edit::Fields;
use kpx_node::cluster::pod::CrashLoop;
use kpx_node::evidence::{Gap, Item};
use kpx_node::net::Family;
use kpx_node::node::NodeSnapshot;
use kpx_node::node::runtime::Metrics;

/// A condition with its status.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[cfg_attr(feature = "testing", derive(schemars::JsonSchema))]
pub struct Gate {
    /// The condition.
    pub name: Name,
    /// Its status.
    pub status: Status,
    /// Why it is not passed.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub reason: String,
}

/// A condition.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[cfg_attr(feature = "testing", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum Name {
    /// kube-proxy was restarted.
    Restarted,
    /// It runs with the configuration that was set.
    Configuration,
    /// It reports the mode.
    Mode,
    /// It has written the rules of every family since it started.
    Synced,
    /// Its syncs no longer fail.
    Failures,
    /// The live rules match the desired ones.
    Desired,
    /// There are no leftovers of the previous mode.
    Leftovers,
    /// Its log has the mode and the scheduler that were set.
    Log,
    /// Services answer.
    Probes,
    /// kube-proxy's container is not in a crash loop.
    Running,
}

/// The status of a condition.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[cfg_attr(feature = "testing", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum Status {
    /// It holds.
    Passed,
    /// It does not hold yet.
    Waiting,
    /// It does not hold, and an operator has to act.
    Failing,
    /// It cannot be checked, because data is missing.
    Unknown,
    /// It cannot be checked, and other gates are enough: it is not waited for.
    Skipped,
}

impl Gate {
    /// Returns whether it keeps the migration waiting.
    pub fn is_blocking(&self) -> bool {
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

/// The state that is expected of the node.
#[derive(Clone, Copy, Debug)]
pub struct Expected<'e> {
    /// The fields that were set.
    pub fields: &'e Fields,
    /// The kube-proxy before the restart, if there was one.
    pub before: Option<Proxy>,
    /// The mode that must have no leftovers.
    pub cleaned: Option<Mode>,
}

/// The result of the previous check: a difference that persists is an error, one that changes is not.
#[derive(Clone, Debug, Default)]
pub struct Previous {
    failures: Option<f64>,
    changes: Vec<Change>,
}

/// The items of the gates on kube-proxy itself.
pub const PROXY_NEEDS: &[Item] = &[
    Item::Processes,
    Item::ProxyMode,
    Item::ProxyConfig,
    Item::Configz,
    Item::Metrics,
    Item::Healthz,
];

/// Returns the items of the gates on the kernel's state.
pub fn state_needs(expected: Expected<'_>) -> Vec<Item> {
    let mut items = diff::needs(expected.fields.mode);
    items.extend(PROXY_NEEDS);
    items.push(Item::ProxyLog);
    // With many iptables rules, nft takes ten times as long as iptables-save.
    if expected.cleaned == Some(Mode::Nftables) {
        items.extend([Item::Nft, Item::NftText]);
    }
    items.sort();
    items.dedup();
    items
}

/// Returns what identifies the running kube-proxy of `node`.
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

/// Checks the gates on what kube-proxy reports.
pub fn of_proxy(
    node: &NodeSnapshot<'_>,
    expected: Expected<'_>,
    previous: &mut Previous,
) -> Vec<Gate> {
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
            gates.push(match expected.fields.mode {
                Mode::Userspace => Gate {
                    name: Name::Synced,
                    status: Status::Skipped,
                    reason: "kube-proxy in mode userspace does not report its syncs".to_owned(),
                },
                _ => gate(Name::Synced, synced(metrics)),
            });
            gates.push(gate(Name::Failures, failures(metrics, previous)));
        }
        Err(gap) => gates.push(gate(Name::Synced, Err(Unmet::Gap(gap)))),
    }
    gates
}

/// Checks the gates on the kernel's state and on kube-proxy's log.
pub fn of_state(
    node: &NodeSnapshot<'_>,
    expected: Expected<'_>,
    previous: &mut Previous,
) -> Vec<Gate> {
    let mut gates = vec![
        logged(node, expected.fields),
        gate(Name::Desired, live(node, expected.fields.mode, previous)),
    ];
    if let Some(cleaned) = expected.cleaned {
        gates.push(gate(Name::Leftovers, leftovers(node, cleaned)));
    }
    gates
}

/// Compares kube-proxy's log with the fields that were set. Without a log, `/proxyMode` and the configuration decide.
fn logged(node: &NodeSnapshot<'_>, set: &Fields) -> Gate {
    let (status, reason) = match node.evidence().text(Item::ProxyLog) {
        Err(gap) => (Status::Skipped, gap.to_string()),
        Ok(text) => {
            let said = log::said(text);
            match (log::objection(&said, set), said.mode) {
                (Some(why), _) => (Status::Waiting, why),
                (None, Some(_)) => (Status::Passed, String::new()),
                (None, None) => {
                    let why = "kube-proxy's log does not name its mode";
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

/// The probes that were not answered by their Service.
#[derive(Clone, Debug, Default)]
pub struct Unserved {
    /// Probes without an answer, and probes that something else than an endpoint answered, each with the reason.
    pub failed: Vec<String>,
    /// Probes with an answer of unknown origin, each with the reason.
    pub unknown: Vec<String>,
}

/// Checks the gate on probes.
pub fn of_probes(unserved: &Unserved) -> Gate {
    let (status, reason) = match (&*unserved.failed, &*unserved.unknown) {
        ([], []) => (Status::Passed, String::new()),
        ([], unknown) => (Status::Unknown, unknown.join("; ")),
        (failed, _) => (Status::Waiting, failed.join("; ")),
    };
    Gate {
        name: Name::Probes,
        status,
        reason,
    }
}

/// Returns that the configuration in `place`, now `text`, no longer has the mode that was `set`, if so.
pub fn set_back(place: &str, text: &str, set: Mode) -> Option<String> {
    let mode = mode_in(text)?;
    (mode != set).then(|| {
        format!("{place} has mode {mode}, not {set}, again: another program, such as GitOps, set it back")
    })
}

/// Returns the mode that the configuration `text` asks for.
pub fn mode_in(text: &str) -> Option<Mode> {
    ProxyConfig::parse(text).ok()?.mode_asked()
}

/// Returns whether `gates` wait for kube-proxy's configuration.
pub fn awaits_configuration(gates: &[Gate]) -> bool {
    let mut gates = gates.iter();
    gates.any(|gate| gate.name == Name::Configuration && gate.status == Status::Waiting)
}

/// Returns why the running kube-proxy is older than its configuration, if `gates` show that: the file has what was set, and
/// kube-proxy another mode.
pub fn outdated(gates: &[Gate]) -> Option<String> {
    let of = |name, status| {
        let mut gates = gates.iter();
        gates.find(move |gate| gate.name == name && gate.status == status)
    };
    let mode = of(Name::Mode, Status::Waiting)?;
    of(Name::Configuration, Status::Passed)?;
    Some(format!("{}, and its configuration another", mode.reason))
}

/// Returns the gate on a crash loop of kube-proxy's container.
pub fn of_crash(found: &CrashLoop) -> Gate {
    Gate {
        name: Name::Running,
        status: Status::Failing,
        reason: found.to_string(),
    }
}

/// Why a condition does not hold.
enum Unmet {
    Not(String),
    Gap(Gap),
    /// Nothing can check it.
    Uncheckable(String),
}

impl From<Gap> for Unmet {
    fn from(gap: Gap) -> Self {
        Self::Gap(gap)
    }
}

fn gate(name: Name, met: Result<(), Unmet>) -> Gate {
    let (status, reason) = match met {
        Ok(()) => (Status::Passed, String::new()),
        Err(Unmet::Not(why)) => (Status::Waiting, why),
        Err(Unmet::Gap(gap)) => (Status::Unknown, gap.to_string()),
        Err(Unmet::Uncheckable(why)) => (Status::Skipped, why),
    };
    Gate {
        name,
        status,
        reason,
    }
}

fn restarted(node: &NodeSnapshot<'_>, before: Proxy) -> Gate {
    let now = proxy(node);
    let not = |why: &str| Err(Unmet::Not(why.to_owned()));
    let met = match now.differs(before) {
        Some(true) => Ok(()),
        Some(false) => not("kube-proxy was not restarted"),
        None if now == Proxy::default() => match plan::kube_proxy(node) {
            Ok(_) => not("kube-proxy is not running"),
            Err(gap) => Err(Unmet::Gap(gap)),
        },
        None => Err(Unmet::Gap(Gap::Absent(
            Item::Processes,
            "neither its process nor its metrics show whether kube-proxy was restarted".to_owned(),
        ))),
    };
    gate(Name::Restarted, met)
}

fn mode(node: &NodeSnapshot<'_>, wanted: Mode) -> Result<(), Unmet> {
    let reported = node.reported_mode()?;
    if reported == wanted {
        return Ok(());
    }
    Err(Unmet::Not(format!("kube-proxy reports mode {reported}")))
}

fn configuration(node: &NodeSnapshot<'_>, wanted: &Fields) -> Result<(), Unmet> {
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
    Err(Unmet::Not(format!(
        "kube-proxy does not run with the {} that was set",
        wrong.join(", ")
    )))
}

/// The scheduler that an empty name stands for.
fn effective(name: &str) -> &str {
    if name.is_empty() { "rr" } else { name }
}

/// Checks the syncs of every family that kube-proxy serves: it queues a first sync of each when it starts.
fn synced(metrics: &Metrics<'_>) -> Result<(), Unmet> {
    let done = |family: Option<Family>| {
        let mut all = metrics.last_sync();
        all.any(|(of, at)| of == family && at > 0.0)
    };
    let mut asked: Vec<_> = metrics.last_queued().map(|(family, _)| family).collect();
    asked.extend(metrics.last_sync().map(|(family, _)| family));
    asked.dedup();
    if asked.is_empty() {
        return Err(Unmet::Not("no sync has begun".to_owned()));
    }
    match asked.into_iter().find(|&family| !done(family)) {
        None => Ok(()),
        Some(Some(family)) => Err(Unmet::Not(format!("no sync of {family} is done yet"))),
        Some(None) => Err(Unmet::Not("no sync is done yet".to_owned())),
    }
}

/// Counters of failed syncs.
const FAILURES: &[&str] = &[
    "kubeproxy_sync_proxy_rules_iptables_restore_failures_total",
    "kubeproxy_sync_proxy_rules_nftables_sync_failures_total",
];

fn failures(metrics: &Metrics<'_>, previous: &mut Previous) -> Result<(), Unmet> {
    let samples = FAILURES.iter().flat_map(|name| metrics.of(name));
    let count: f64 = samples.map(|sample| sample.value).sum();
    let before = previous.failures.replace(count);
    // The counter runs from the start of the process: only an increase is a new failure.
    if count == 0.0 || before == Some(count) {
        return Ok(());
    }
    Err(Unmet::Not(format!(
        "{count} syncs have failed since kube-proxy started"
    )))
}

fn live(node: &NodeSnapshot<'_>, mode: Mode, previous: &mut Previous) -> Result<(), Unmet> {
    let found = diff::compare(node, mode, &Family::BOTH)?;
    let desired = node.desired(mode)?;
    if desired.is_older() && found.changes.is_empty() {
        return Err(Unmet::Uncheckable(format!(
            "kpx does not know all rules of kube-proxy {}",
            desired.version
        )));
    }
    if let Some(unknown) = found.unknown.into_iter().next() {
        return Err(Unmet::Gap(unknown.gap));
    }
    // In a busy cluster, every check finds some differences: only persistent ones are errors.
    let before = std::mem::replace(&mut previous.changes, found.changes);
    let stays = previous
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
                diff::ChangeKind::Extra => "is extra",
                diff::ChangeKind::Differs => "differs",
            };
            Err(Unmet::Not(format!("{} {kind}{others}", first.object)))
        }
    }
}

fn leftovers(node: &NodeSnapshot<'_>, cleaned: Mode) -> Result<(), Unmet> {
    let modes = node.modes();
    let mut left = modes
        .leftovers
        .iter()
        .filter(|leftover| leftover.mode == cleaned);
    if let Some(first) = left.next() {
        let (count, kind) = (first.names.len(), first.kind.words(first.names.len()));
        return Err(Unmet::Not(format!(
            "{count} {kind} of mode {cleaned} are leftovers"
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
    fn every_family_that_queued_a_sync_must_have_had_one() {
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
        let mut previous = Previous::default();
        let mut look = |count| failures(&Metrics::parse(&text(count)), &mut previous).is_ok();
        assert!(look(0));
        assert!(!look(1));
        assert!(!look(2));
        assert!(look(2));
    }
}
