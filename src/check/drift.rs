//! The checks that compare the kernel with what the cluster's objects ask for.
//!
//! The difference is taken once. Every change in it belongs to exactly one check, and changes that one cause explains
//! are one finding: a Service whose chain is gone is not told again for each of its endpoints.

use std::cell::OnceCell;
use std::collections::{BTreeMap, BTreeSet};

use super::{Facts, Finding, Fix, Proof, Severity, Verdict};
use crate::backend::Mode;
use crate::backend::ipvs::print;
use crate::diff::{self, Action, Change, Diff, Layer, Object};
use crate::evidence::{Gap, Item};
use crate::net::Family;
use crate::node::NodeSnapshot;

mod classify;

/// What the comparison reads.
pub(super) const DRIFT: &[Item] = &[
    Item::ConfigMaps,
    Item::Iptables4,
    Item::Iptables6,
    Item::Nft,
    Item::NftText,
    Item::Ipset,
    Item::Ipvs,
    Item::IpvsSave,
    Item::IpvsTimeout,
    Item::Links,
    Item::Healthz,
];

/// The difference between the kernel and the cluster's objects, taken when a check first asks for it.
#[derive(Debug, Default)]
pub struct Drift(OnceCell<Result<Taken, Gap>>);

/// What was found, sorted to checks.
#[derive(Debug)]
struct Taken {
    findings: BTreeMap<&'static str, Vec<Finding>>,
    unknown: Vec<(String, Gap)>,
}

impl Facts<'_> {
    fn drift(&self) -> Result<&Taken, Gap> {
        let taken = self.drift.0.get_or_init(|| take(self));
        taken.as_ref().map_err(Clone::clone)
    }

    /// Returns what the difference holds for the check `id`; `parts` are the words of what could stay unknown.
    pub(super) fn drifted(&self, id: &str, modes: &[Mode], parts: &[&str]) -> Verdict {
        self.only_in(modes)?;
        let taken = self.drift()?;
        if let Some(found) = taken.findings.get(id) {
            return Ok(found.clone());
        }
        // A part called after a family alone is all of it.
        let of = |what: &str| {
            Family::BOTH.iter().any(|f| what == f.to_string())
                || parts.iter().any(|part| what.contains(part))
        };
        match taken.unknown.iter().find(|(what, _)| of(what)) {
            Some((_, gap)) => Err(gap.clone()),
            None => Ok(Vec::new()),
        }
    }
}

fn take(facts: &Facts<'_>) -> Result<Taken, Gap> {
    let mode = facts.current()?;
    let held = |family: &Family| facts.observed(*family).is_ok_and(|held| held == Some(mode));
    let families: Vec<_> = Family::BOTH.into_iter().filter(held).collect();
    if families.is_empty() {
        for family in Family::BOTH {
            facts.observed(family)?;
        }
        let why = format!("the kernel does not hold the rules of mode {mode}: KP01 tells");
        return Err(Gap::NotApplicable(why));
    }
    let Diff {
        mut changes,
        unknown,
        ..
    } = diff::compare(facts.node, mode, &families)?;
    let manifest = facts.node.evidence().manifest();
    if manifest.is_some_and(|manifest| manifest.redacted) {
        classify::unsort(&mut changes);
    }
    let empty = empty_servers(facts.node);
    let mut parts: BTreeMap<(&'static str, String), Vec<Change>> = BTreeMap::new();
    for (id, subject, change) in classify::all(mode, changes, &empty) {
        parts.entry((id, subject)).or_default().push(change);
    }
    let restart = restart(facts);
    let mut findings: BTreeMap<_, Vec<_>> = BTreeMap::new();
    for ((id, subject), changes) in parts {
        let (severity, message) = classify::words(id, &changes);
        let mut finding = Finding::new(severity, subject, message);
        finding.evidence = changes.iter().map(proof).collect();
        finding.fix = fix(id, &changes, restart.as_ref());
        findings.entry(id).or_default().push(finding);
    }
    Ok(Taken { findings, unknown })
}

/// Returns the virtual servers that have no real servers.
fn empty_servers(node: &NodeSnapshot<'_>) -> BTreeSet<String> {
    let table = node.ipvs();
    let servers = table.iter().flat_map(|table| &table.servers);
    servers
        .filter(|server| server.reals.is_empty())
        .map(|server| print::name(server.key))
        .collect()
}

fn proof(change: &Change) -> Proof {
    let line = |text: &Option<String>| text.clone().map(|text| text.replace('\n', "; "));
    Proof::Difference {
        action: match change.action {
            Action::Missing => "missing",
            Action::Extra => "extra",
            Action::Differs => "differs",
        },
        family: change.family,
        object: match &change.object {
            Object::Rule { table, chain, .. } | Object::Chain { table, chain } => {
                format!("{table} {chain}")
            }
            other => other.to_string(),
        },
        have: line(&change.have),
        want: line(&change.want),
    }
}

/// Returns the command that makes kube-proxy write everything again.
fn restart(facts: &Facts<'_>) -> Option<String> {
    let name = facts.node_name()?;
    let sets = facts.node.daemon_sets().ok()?;
    let ours = sets.iter().find(|set| set.metadata.name == "kube-proxy")?;
    let label = ours.spec.template.metadata.labels.get("k8s-app")?;
    Some(format!(
        "kubectl -n kube-system delete pod -l k8s-app={label} --field-selector spec.nodeName={name}"
    ))
}

/// Returns what mends `changes`: the one object, where a command of a standard tool does it safely, or a restart;
/// `None` where the check's own words say it better.
fn fix(id: &str, changes: &[Change], restart: Option<&String>) -> Option<Fix> {
    if ["IR05", "IS02", "VS03"].contains(&id) {
        return None;
    }
    let single = match changes {
        [only] => command(id, only),
        _ => None,
    };
    Some(match single {
        Some(_) => Fix {
            text:
                "Put it right by hand; if it comes back, restart kube-proxy here and read its log."
                    .to_owned(),
            command: single,
        },
        None => Fix {
            text:
                "Look again in half a minute; if it is still so, restart kube-proxy on this node."
                    .to_owned(),
            command: restart.cloned(),
        },
    })
}

fn command(id: &str, change: &Change) -> Option<String> {
    match (id, change.action, &change.object) {
        ("VS05", _, Object::RealServer { server, .. }) => Some(format!(
            "ipvsadm -e {} {}",
            service_option(server)?,
            change.want.as_deref()?
        )),
        ("DV02", Action::Missing, Object::Address { link, .. }) => {
            let addr = change.want.as_deref()?;
            Some(format!("ip addr add {addr} dev {link}"))
        }
        ("DV03", Action::Extra, Object::Address { link, .. }) => {
            let addr = change.have.as_deref()?;
            Some(format!("ip addr del {addr} dev {link}"))
        }
        ("IS03", Action::Missing, Object::Member { set, member }) => {
            Some(format!("ipset add {set} {member}"))
        }
        ("IS03", Action::Extra, Object::Member { set, member }) => {
            Some(format!("ipset del {set} {member}"))
        }
        ("VS04", Action::Missing, Object::RealServer { server, .. }) => Some(format!(
            "ipvsadm -a {} {}",
            service_option(server)?,
            change.want.as_deref()?
        )),
        ("VS04", Action::Extra, Object::RealServer { server, real }) => {
            Some(format!("ipvsadm -d {} -r {real}", service_option(server)?))
        }
        _ => None,
    }
}

/// Returns `-t 10.96.0.1:443` for `tcp 10.96.0.1:443`.
fn service_option(server: &str) -> Option<String> {
    let (proto, addr) = server.split_once(' ')?;
    let option = match proto {
        "tcp" => "-t",
        "udp" => "-u",
        "sctp" => "--sctp-service",
        _ => return None,
    };
    Some(format!("{option} {addr}"))
}
