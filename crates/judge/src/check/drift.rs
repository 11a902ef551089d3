//! The checks that compare the live state with the desired state.
//!
//! The comparison is made once. Every change belongs to exactly one check, and changes with one cause
//! are one finding: a Service whose chain is missing is not repeated for each of its endpoints.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::OnceLock;
use std::time::Duration;

use super::core::{Collector, REPLACED, ipv6_fix, ipv6_refusal, is_replaced};
use super::{
    Advice, Facts, Finding, Fix, Line, Proof, Prose, ServiceRef, Severity, Subject, Verdict,
};
use super::{bugs, kube_proxy};
use crate::diff::{self, Change, ChangeKind, Delta, Diff, Layer, Object, Unknown};
use kpx_node::backend::Mode;
use kpx_node::backend::ipvs::model::{DUMMY, Key};
use kpx_node::backend::ipvs::print;
use kpx_node::backend::nftables::expect::TABLE;
use kpx_node::cluster::config::go_duration;
use kpx_node::cluster::{Metadata, Pod};
use kpx_node::desired::DesiredState;
use kpx_node::evidence::{Gap, Item, Time};
use kpx_node::net::{Cidr, Family};
use kpx_node::node::NodeSnapshot;
use kpx_node::node::processes::{kube_proxies, unit};
use kpx_node::owner::PortName;

mod classify;
mod doubt;
mod messages;
mod ties;

use doubt::Doubt;

/// The items that the comparison reads.
pub(super) const DRIFT: &[Item] = &[
    Item::ConfigMaps,
    Item::Processes,
    Item::Iptables4,
    Item::Iptables6,
    Item::Nft,
    Item::NftText,
    Item::Ipset,
    Item::Ipvs,
    Item::IpvsSave,
    Item::IpvsTimeout,
    Item::Links,
    Item::Sysctl,
    Item::Healthz,
    Item::Sockets,
    Item::Tcp4,
    Item::Tcp6,
    Item::Udp4,
    Item::Udp6,
];

/// The difference between live and desired state, computed when a check first asks for it.
#[derive(Debug, Default)]
pub struct Drift(OnceLock<Result<Taken, Gap>>);

/// The findings, by check.
#[derive(Debug, Default)]
struct Taken {
    findings: BTreeMap<&'static str, Vec<Finding>>,
    unknown: Vec<Unknown>,
    /// IP families that were not compared.
    gaps: Vec<Gap>,
    /// Checks whose differences may come from the Node being unknown, and why it is.
    doubtful: BTreeMap<&'static str, Gap>,
}

impl Facts<'_> {
    fn drift(&self) -> Result<&Taken, Gap> {
        let taken = self.drift.0.get_or_init(|| take(self));
        taken.as_ref().map_err(Clone::clone)
    }

    /// Returns whether the rules certainly differ from the cluster's objects.
    pub(super) fn has_drift(&self) -> bool {
        self.drift().is_ok_and(|taken| !taken.findings.is_empty())
    }

    /// Returns the findings of check `id`, about objects of `layer`.
    pub(super) fn drifted(&self, id: &str, modes: &[Mode], layer: Layer) -> Verdict {
        self.only_in(modes)?;
        let taken = self.drift()?;
        let mut all = Collector::default();
        all.add(Ok(taken.findings.get(id).cloned().unwrap_or_default()));
        let unknown = taken.unknown.iter();
        let unknown = unknown.filter(|unknown| unknown.layers.contains(&layer));
        let gaps = unknown
            .map(|unknown| &unknown.gap)
            .chain(taken.doubtful.get(id));
        for gap in gaps.chain(&taken.gaps) {
            all.note(match gap.clone() {
                // Rules of a release that kpx does not know are not compared, and there are some.
                Gap::NotApplicable(why) => Gap::Unsupported(Item::Iptables4, why),
                gap => gap,
            });
        }
        all.verdict()
    }
}

fn take(facts: &Facts<'_>) -> Result<Taken, Gap> {
    let mode = facts.current()?;
    let (families, gaps) = families(facts, mode)?;
    let Diff {
        changes,
        pending,
        mut unknown,
        ..
    } = diff::compare(facts.node, mode, &families)?;
    let no_node = facts.this_node().err();
    let doubt = match &no_node {
        Some(_) => Some(Doubt::of(facts.node.desired(mode)?)),
        None => None,
    };
    let empty = empty_servers(facts.node);
    let mut parts: BTreeMap<(&'static str, String), (Subject, Vec<Change>)> = BTreeMap::new();
    for (id, place, change) in classify::all(mode, changes, &empty) {
        let part = parts.entry((id, place.name));
        let (_, part) = part.or_insert_with(|| (place.about, Vec::new()));
        part.push(change);
    }
    let only = parts.len() == 1;
    let mut findings: BTreeMap<_, Vec<_>> = BTreeMap::new();
    let mut doubtful = BTreeMap::new();
    for (gap, changes) in pending {
        let changes = classify::all(mode, changes, &empty).into_iter();
        doubtful.extend(changes.map(|(id, ..)| (id, gap.clone())));
        unknown.retain(|unknown| unknown.gap != gap);
    }
    for ((id, name), (about, changes)) in parts {
        if let (Some(gap), Some(doubt)) = (&no_node, &doubt)
            && changes.iter().all(|change| doubt.covers(change))
        {
            doubtful.insert(id, gap.clone());
            continue;
        }
        let (severity, mut message) = messages::words(id, &changes, is_gone(facts, &changes));
        let refused =
            id == "DV02" && ipv6_refusal(facts.node).is_some() && changes.iter().all(is_of_ipv6);
        if refused {
            message = "the address is missing on kube-ipvs0, at which IPv6 is off: packets to it bypass IPVS";
        }
        let services = services(facts, &changes);
        let queued = awaited(facts, &changes);
        let unheard = unheard(facts, &changes, &services);
        let (severity, message) = match (queued, unheard) {
            (Some(asked), _) => (
                severity.min(Severity::Warning),
                format!(
                    "{message}: kube-proxy has queued a change at {asked} and not written it yet"
                ),
            ),
            (
                None,
                Some(Unheard {
                    changed,
                    last,
                    synced,
                }),
            ) => (
                severity,
                match synced {
                    None => format!(
                        "{message}: kube-proxy has not received the change of {changed}; the last one that it received was at {last}"
                    ),
                    Some(synced) => format!(
                        "{message}: kube-proxy has not received the change of {changed}, although it last wrote its rules at {synced}"
                    ),
                },
            ),
            (None, None) => (severity, message.to_owned()),
        };
        let mut finding = Finding::new(severity, about, message)
            .called(name)
            .services(services)
            .through(ties::places(&changes))
            .through(unserved(facts, id, &changes));
        finding.ties.is_loss = changes
            .iter()
            .all(|change| change.kind() == ChangeKind::Missing);
        finding.evidence = changes.iter().map(proof).collect();
        finding.ties.queued = queued;
        finding.ties.unheard = unheard.is_some();
        finding.fix = match mode {
            _ if queued.is_some() => Some(await_fix(facts)),
            _ if refused => Some(ipv6_fix(DUMMY)),
            _ if unheard.is_some() => Some(restart_fix(facts.node, DEAF)),
            Mode::Userspace => Some(rewriting_fix(facts.node)),
            _ => fix(facts.node, id, &changes, only),
        };
        findings.entry(id).or_default().push(finding);
    }
    Ok(Taken {
        findings,
        unknown,
        gaps,
        doubtful,
    })
}

/// Returns the families whose rules can be compared, at least one, and why the other families with Services cannot.
fn families(facts: &Facts<'_>, mode: Mode) -> Result<(Vec<Family>, Vec<Gap>), Gap> {
    let (mut families, mut gaps, mut none) = (Vec::new(), Vec::new(), None);
    for state in &facts.node.desired(mode)?.families {
        let Err(gap) = facts.written_for(mode, state.family) else {
            families.push(state.family);
            continue;
        };
        if state.ports.is_empty() && matches!(gap, Gap::Absent(..)) {
            // Without Services, few rules are expected, which do not show the mode.
            none = none.or(Some(gap));
        } else {
            gaps.push(gap);
        }
    }
    if families.is_empty() {
        if facts.reported().is_err() && is_replaced(facts)? {
            return Err(Gap::NotApplicable(REPLACED.to_owned()));
        }
        let gap = gaps.into_iter().next().or(none);
        let why = "kube-proxy serves no IP family".to_owned();
        return Err(gap.unwrap_or(Gap::NotApplicable(why)));
    }
    Ok((families, gaps))
}

/// The longest `minSyncPeriod` that one waits for.
const SOON: Duration = Duration::from_secs(60);

/// Returns the fix of differences that a queued sync may repair.
fn await_fix(facts: &Facts<'_>) -> Fix {
    let least = || {
        let config = facts.configuration().ok()?;
        let (least, _) = config.periods_of(facts.current().ok()?);
        go_duration(least).filter(|least| *least > SOON)?;
        Some(least.to_owned())
    };
    match least() {
        Some(least) => restart_fix(
            facts.node,
            format!(
                "Set minSyncPeriod to 1s in kube-proxy's configuration, and restart kube-proxy on this node: its first sync is at once. \
                 minSyncPeriod is {least}, so changes reach the node once in that time."
            ),
        ),
        None => Fix::said(
            "Wait for kube-proxy's next sync, and check again: it begins at the latest minSyncPeriod after the last one. A shorter \
             minSyncPeriod in kube-proxy's configuration lets changes reach the node sooner.",
        ),
    }
}

/// Returns when kube-proxy queued the sync that may repair `changes`, if each concerns one Service, and none an object that
/// Services share.
fn awaited(facts: &Facts<'_>, changes: &[Change]) -> Option<Time> {
    let queued = |change: &Change| {
        let is_of_service = change.service.is_some() || change.object.hairpin().is_some();
        kube_proxy::queued_sync(facts, change.family).filter(|_| is_of_service)
    };
    let all: Option<Vec<Time>> = changes.iter().map(queued).collect();
    all?.into_iter().max()
}

/// The fix of a change that kube-proxy has not received.
const DEAF: &str = "Restart kube-proxy on this node: its watch of the API server hangs, so it receives no changes, although it runs. Its log \
                    has the time of the last one.";

/// The longest time that a change of the cluster takes to reach kube-proxy.
const ARRIVES: Duration = Duration::from_secs(120);

/// A change of the cluster that kube-proxy has not received: it keeps the old rules.
#[derive(Clone, Copy, Debug)]
struct Unheard {
    changed: Time,
    /// When kube-proxy last queued a change.
    last: Time,
    /// When it last wrote its rules, if that was since the change.
    synced: Option<Time>,
}

/// Returns the last change of one of `services` that kube-proxy has not received, if so.
fn unheard(
    facts: &Facts<'_>,
    drift: &[Change],
    services: &BTreeSet<ServiceRef>,
) -> Option<Unheard> {
    let family = drift.first()?.family;
    let metrics = facts.node.metrics().ok()?;
    let mut queued = metrics.last_queued();
    let (_, last) = queued.find(|(of, _)| family.is_none() || *of == family)?;
    let last = Time::from_epoch(last).filter(|_| last > 0.0)?;
    let is_ours = |meta: &Metadata, name: &str| {
        let mut all = services.iter();
        all.any(|service| *service.namespace == *meta.namespace && *service.name == *name)
    };
    let slices = facts.node.slices().ok()?.iter();
    let of_slices = slices.filter_map(|slice| {
        let (_, service) = slice.service()?;
        let is_of = |family: Family| slice.address_type == family.to_string();
        let is_it = is_ours(&slice.metadata, service) && family.is_none_or(is_of);
        slice.metadata.last_change().filter(|_| is_it)
    });
    let of_services = facts.node.services().ok()?.iter();
    let of_services = of_services.filter(|object| is_ours(&object.metadata, &object.metadata.name));
    let changed = of_slices
        .chain(of_services.filter_map(|object| object.metadata.last_change()))
        .max()?;
    let is_old = |at: Time| changed < at.before(ARRIVES);
    if last < changed.before(ARRIVES) {
        let synced = None;
        return is_old(facts.now?).then_some(Unheard {
            changed,
            last,
            synced,
        });
    }
    // It has received later changes, and would have written this one with them. A rule that another program deletes or
    // adds is only missing or only extra.
    let is = |kind| drift.iter().any(|change| change.kind() == kind);
    let is_of_before = is(ChangeKind::Extra) && is(ChangeKind::Missing);
    let mut syncs = metrics.last_sync();
    let (_, synced) = syncs.find(|(of, _)| family.is_none() || *of == family)?;
    let synced = Time::from_epoch(synced).filter(|synced| *synced >= last && is_old(*synced))?;
    // When it starts, it reads all objects.
    let started = metrics.of("process_start_time_seconds").next();
    let started = started.and_then(|sample| Time::from_epoch(sample.value));
    let has_read = started.is_some_and(|started| started > changed);
    (is_of_before && !has_read).then_some(Unheard {
        changed,
        last,
        synced: Some(synced),
    })
}

/// Returns whether `change` concerns an IPv6 address.
fn is_of_ipv6(change: &Change) -> bool {
    matches!(&change.object, Object::Address(Delta::Missing(addr)) if addr.is_ipv6())
}

/// Returns the node's addresses at which this release serves no NodePort, if all missing virtual servers are there.
fn unserved(facts: &Facts<'_>, id: &str, changes: &[Change]) -> Vec<Subject> {
    if id != "VS01" || !bugs::has(facts, bugs::NODE_PORTS) {
        return Vec::new();
    }
    let shared = bugs::shared_addresses(facts).unwrap_or_default();
    let mut places = Vec::new();
    for change in changes {
        match &change.object {
            Object::VirtualServer {
                key: Key::Address { addr, .. },
                ..
            } if shared.contains(addr) => places.push(Subject::from(*addr)),
            _ => return Vec::new(),
        }
    }
    places.dedup();
    places
}

/// Returns the Services that `changes` concern; none if one of them concerns the whole node.
fn services(facts: &Facts<'_>, changes: &[Change]) -> BTreeSet<ServiceRef> {
    let of = |change: &Change| match change.service.as_deref() {
        Some(name) => Some(vec![PortName::parse(name)?.into()]),
        None => of_endpoint(facts, change),
    };
    let all: Option<Vec<Vec<ServiceRef>>> = changes.iter().map(of).collect();
    all.into_iter().flatten().flatten().collect()
}

/// Returns whether the cluster has none of the Service ports of `changes`.
fn is_gone(facts: &Facts<'_>, changes: &[Change]) -> bool {
    let services = facts.node.services().map_or(&[][..], Vec::as_slice);
    let exists = |name: &PortName| {
        services.iter().any(|service| {
            *service.metadata.namespace == *name.namespace
                && *service.metadata.name == *name.name
                && service
                    .spec
                    .ports
                    .iter()
                    .any(|port| *port.name == *name.port)
        })
    };
    let mut names = changes
        .iter()
        .filter_map(|change| change.service.as_deref());
    !names.any(|name| PortName::parse(name).as_ref().is_some_and(exists))
}

/// Returns the Services that share the endpoint of `change`, if it is an element for an endpoint.
fn of_endpoint(facts: &Facts<'_>, change: &Change) -> Option<Vec<ServiceRef>> {
    let (proto, addr) = change.object.hairpin()?;
    let ports = facts.owners().ports().iter();
    let ours = ports.filter(|port| {
        port.proto == proto && port.endpoints.iter().any(|endpoint| endpoint.addr == addr)
    });
    Some(ours.map(|port| ServiceRef::from(&port.name)).collect())
}

/// Returns the virtual servers that have no real servers.
fn empty_servers(node: &NodeSnapshot<'_>) -> HashSet<Key> {
    let table = node.ipvs();
    let servers = table.iter().flat_map(|table| &table.servers);
    servers
        .filter(|server| server.reals.is_empty())
        .map(|server| server.key)
        .collect()
}

fn proof(change: &Change) -> Proof {
    let line = |text: Option<String>| text.map(|text| text.replace('\n', "; "));
    Proof::Difference {
        action: match change.kind() {
            ChangeKind::Missing => "missing",
            ChangeKind::Extra => "extra",
            ChangeKind::Differs => "differs",
        },
        family: change.family,
        object: match &change.object {
            Object::NftablesChain { chain, .. } | Object::NftablesRule { chain, .. } => {
                format!("{TABLE} {chain}")
            }
            object => match object.iptables_chain() {
                Some((table, chain)) => format!("{table} {chain}"),
                None => object.to_string(),
            },
        },
        have: line(change.have()),
        want: line(change.want()),
    }
}

/// Returns whether kpx can write the rules that kube-proxy should have on `node`.
pub fn is_repairable(node: &NodeSnapshot<'_>) -> bool {
    let mode = node.configured_mode();
    mode.and_then(|mode| node.desired(mode))
        .map_or(true, DesiredState::is_whole)
}

/// Returns the fix of rules that kpx cannot compute: kube-proxy writes them.
pub fn rewriting_fix(node: &NodeSnapshot<'_>) -> Fix {
    restart_fix(
        node,
        "Restart kube-proxy on this node: it writes all its rules again. kpx cannot compute all rules of this release or mode.",
    )
}

/// Returns the fix that restarts kube-proxy, for the reason in `text`: its service, or its pod.
pub fn restart_fix(node: &NodeSnapshot<'_>, text: impl Into<Prose>) -> Fix {
    let mut proxies = node.processes().into_iter().flat_map(kube_proxies);
    if let Some(unit) = proxies.find_map(unit) {
        return Fix::on_node(text, format!("systemctl restart {unit}"));
    }
    let name = node.name().ok();
    let pod = node.proxy_pod(name.as_deref());
    if pod.is_some_and(Pod::is_static) {
        // The kubelet starts the container again.
        return Fix::on_node(text, "crictl stop $(crictl ps -q --name kube-proxy)");
    }
    let delete = "kubectl -n kube-system delete pod";
    let line = match (pod, &name) {
        (Some(pod), _) => format!("{delete} {}", pod.metadata.name).into(),
        (None, Some(name)) => {
            format!("{delete} -l k8s-app=kube-proxy --field-selector spec.nodeName={name}").into()
        }
        (None, None) => Line::with(
            format!("{delete} -l k8s-app=kube-proxy --field-selector spec.nodeName=NODE"),
            &["NODE"],
        ),
    };
    Fix::kubectl(text, line)
}

/// Returns the command that repairs every difference.
pub(super) fn repair() -> Advice {
    Advice::kpx(["reconcile", "--apply"])
}

/// Returns the fix of `changes`, which are one of several findings of drift unless they are the `only` ones: a command of a
/// standard tool for a single object, or the repair of all differences; `None` for the check's own fix.
fn fix(node: &NodeSnapshot<'_>, id: &str, changes: &[Change], only: bool) -> Option<Fix> {
    if ["IR05", "IS02", "VS03"].contains(&id) {
        return None;
    }
    let single = match changes {
        [change] if only => command(id, change),
        _ => None,
    };
    Some(match single {
        Some(line) => Fix::on_node(
            "Repair it by hand. If it comes back, restart kube-proxy on this node and read its log.",
            line,
        ),
        None if !is_repairable(node) => rewriting_fix(node),
        None => Fix::new(
            "Check again in 30 s: a sync may be running. If it persists, repair it; if it comes back, restart kube-proxy on \
             this node and read its log.",
            repair(),
        ),
    })
}

fn command(id: &str, change: &Change) -> Option<String> {
    match (id, &change.object) {
        ("VS04" | "VS05", Object::RealServer { server, real, .. }) => {
            let key = print::key(*server);
            let verb = match (id, real) {
                ("VS05", Delta::Differs { want, .. }) => format!("-e {key} {}", print::real(want)),
                ("VS04", Delta::Missing(want)) => format!("-a {key} {}", print::real(want)),
                ("VS04", Delta::Extra(have)) => format!("-d {key} {}", print::real_key(have)),
                _ => return None,
            };
            Some(format!("ipvsadm {verb}"))
        }
        ("DV02", Object::Address(Delta::Missing(addr))) => {
            Some(format!("ip addr add {} dev {DUMMY}", Cidr::host(**addr)))
        }
        ("DV03", Object::Address(Delta::Extra(addr))) => {
            Some(format!("ip addr del {} dev {DUMMY}", Cidr::host(**addr)))
        }
        ("IS03", Object::Member { set, member }) => match member {
            Delta::Missing(member) => Some(format!("ipset add {set} {}", member.element)),
            Delta::Extra(member) => Some(format!("ipset del {set} {}", member.element)),
            Delta::Differs { .. } => None,
        },
        _ => None,
    }
}
