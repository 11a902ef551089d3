//! The check that each change belongs to.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::net::{IpAddr, SocketAddr};

use super::{Change, ChangeKind, Delta, Layer, Mode, Object, Subject};
use kpx_node::backend::ipset::{ElementKey, Member};
use kpx_node::backend::iptables::model::{Match, Rule, Target};
use kpx_node::backend::iptables::names::SEP;
use kpx_node::backend::ipvs::model::{DUMMY, Key};
use kpx_node::backend::ipvs::print;
use kpx_node::backend::nftables::expect::TABLE;
use kpx_node::owner::PortName;

/// Changes, each with its check and its subject: a Service, or the object where no Service is known.
type Sorted = Vec<(&'static str, Place, Change)>;

/// The subject of a finding, with its name.
#[derive(Clone, Debug)]
pub(super) struct Place {
    /// The subject.
    pub(super) about: Subject,
    /// Its name: changes of a check with the same name are one finding.
    pub(super) name: String,
}

impl From<Subject> for Place {
    fn from(about: Subject) -> Self {
        let name = about.to_string();
        Self { about, name }
    }
}

/// Returns every change with its check and subject; `empty` are the virtual servers without real servers.
pub(super) fn all(mode: Mode, changes: Vec<Change>, empty: &HashSet<Key>) -> Sorted {
    let mut found: Sorted = changes
        .into_iter()
        // Settings and canaries have checks of their own.
        .filter(|change| change.layer() != Layer::Sysctl && !is_canary(&change.object))
        .map(|change| {
            let id = match change.layer() {
                Layer::Nftables => of_nftables(&change.object),
                Layer::Iptables if mode == Mode::Iptables => of_iptables(&change.object),
                Layer::Iptables if mode == Mode::Userspace => "IR17",
                Layer::Iptables => of_ipvs_rules(&change.object),
                _ => of_ipvs(&change, empty),
            };
            (id, subject(id, &change), change)
        })
        .collect();
    fold_services(&mut found);
    fold_addresses(&mut found);
    found
}

fn subject(id: &str, change: &Change) -> Place {
    let service = change.service.as_deref().and_then(PortName::parse);
    match service {
        // An object that is configured in one place for all Services has that place as its subject.
        Some(_) if ["IR01", "IR09", "IR11", "DV08", "NF01"].contains(&id) => place(&change.object),
        Some(service) => Subject::service(service).into(),
        None => place(&change.object),
    }
}

/// Returns the place of `object`: the chain of a rule, the virtual server of a real server, the set of a member.
fn place(object: &Object) -> Place {
    let about = match object {
        Object::IptablesRule { table, chain, .. } | Object::IptablesChain { table, chain, .. } => {
            Subject::chain(None, table, chain)
        }
        Object::NftablesRule { chain, .. } | Object::NftablesChain { chain, .. } => {
            Subject::chain(None, TABLE, chain)
        }
        Object::NftablesTable { family, .. } => {
            Subject::table(None, format!("{} {TABLE}", family.nft_name()))
        }
        Object::Member { set, .. } | Object::NftablesElement { set, .. } => Subject::set(set),
        Object::Set { name, .. } | Object::NftablesSet { name, .. } => Subject::set(name),
        Object::Address(addr) => match addr.both().next() {
            Some(addr) => Subject::from(*addr),
            None => Subject::link(DUMMY),
        },
        Object::Sysctl { key, .. } => Subject::sysctl(*key),
        Object::RealServer { server, .. } | Object::VirtualServer { key: server, .. } => {
            return Place {
                about: Subject::server(*server),
                name: format!("virtual server {}", print::name(*server)),
            };
        }
        Object::Portal { chain, .. } => {
            return Place {
                about: Subject::chain(None, "nat", chain),
                name: object.to_string(),
            };
        }
        Object::Link => {
            return Place {
                about: Subject::link(DUMMY),
                name: object.to_string(),
            };
        }
    };
    about.into()
}

/// Gives all changes of one Service the check of the worst of them.
fn fold_services(found: &mut Sorted) {
    // The first explains the others; each list is one family of checks.
    const ORDER: [&[&str]; 3] = [
        &["IR03", "IR04", "IR07", "IR08", "IR05"],
        &["VS07", "VS04", "VS05"],
        &["NF02", "NF03", "NF04"],
    ];
    let mut worst: BTreeMap<(usize, String), usize> = BTreeMap::new();
    let place = |id: &str| {
        let list = ORDER.iter().position(|list| list.contains(&id))?;
        let at = ORDER[list].iter().position(|known| *known == id)?;
        Some((list, at))
    };
    for (id, _, change) in found.iter() {
        if let (Some((list, at)), Some(service)) = (place(id), &change.service) {
            let worst = worst.entry((list, service.clone())).or_insert(at);
            *worst = at.min(*worst);
        }
    }
    for (id, _, change) in found.iter_mut() {
        if let (Some((list, _)), Some(service)) = (place(id), &change.service)
            && let Some(&at) = worst.get(&(list, service.clone()))
        {
            *id = ORDER[list][at];
        }
    }
}

/// The address of a virtual server or of a real server.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
enum Cause {
    VirtualServer(IpAddr),
    RealServer(SocketAddr),
}

/// Moves findings together: the address and the set members of a missing or leftover virtual server into the server's
/// finding, and the members for an endpoint into its real server's.
fn fold_addresses(found: &mut Sorted) {
    let mut causes: HashMap<(ChangeKind, Cause), (&'static str, Place)> = HashMap::new();
    for (id, subject, change) in found.iter() {
        let cause = match &change.object {
            Object::VirtualServer { key, .. } => {
                key.socket().map(|addr| Cause::VirtualServer(addr.ip()))
            }
            Object::RealServer { addr, .. } => Some(Cause::RealServer(*addr)),
            _ => None,
        };
        if let Some(cause) = cause
            && change.kind() != ChangeKind::Differs
        {
            let of = (*id, subject.clone());
            causes.entry((change.kind(), cause)).or_insert(of);
        }
    }
    for (id, subject, change) in found.iter_mut() {
        let cause = match &change.object {
            Object::Address(addr) => addr.both().next().map(|&addr| Cause::VirtualServer(addr)),
            Object::Member { set, member } => {
                let key = member.both().next().and_then(Member::key);
                match key {
                    Some(ElementKey::Socket { addr, .. }) if set.ends_with("LOOP-BACK") => {
                        Some(Cause::RealServer(addr))
                    }
                    Some(ElementKey::Socket { addr, .. }) => Some(Cause::VirtualServer(addr.ip())),
                    Some(ElementKey::Address(addr)) => Some(Cause::VirtualServer(addr)),
                    Some(ElementKey::Port(_)) | None => None,
                }
            }
            _ => None,
        };
        if let Some(cause) = cause
            && ["DV02", "DV03", "IS03"].contains(id)
            && let Some((check, of)) = causes.get(&(change.kind(), cause))
        {
            *id = check;
            subject.clone_from(of);
        }
    }
}

fn is_canary(object: &Object) -> bool {
    let chain = object.iptables_chain().map(|(_, chain)| chain);
    let chain = chain.or_else(|| object.nftables_chain());
    chain.is_some_and(|chain| chain.ends_with("-CANARY"))
}

fn is_built_in(chain: &str) -> bool {
    chain.bytes().all(|b| b.is_ascii_uppercase())
}

/// The parts of iptables rules that both modes have.
fn shared(chain: &str) -> Option<&'static str> {
    match chain {
        chain if is_built_in(chain) => Some("IR01"),
        "KUBE-MARK-MASQ" | "KUBE-POSTROUTING" => Some("IR09"),
        "KUBE-FORWARD" | "KUBE-FIREWALL" => Some("IR11"),
        _ => None,
    }
}

fn of_iptables(object: &Object) -> &'static str {
    let Some((table, chain)) = object.iptables_chain() else {
        return "IR03";
    };
    if let Some(id) = shared(chain) {
        return id;
    }
    let rule = match object {
        Object::IptablesRule { rule, .. } => rule,
        Object::IptablesChain {
            rules: Delta::Extra(_),
            ..
        } => return "IR05",
        _ if chain.starts_with(SEP) => return "IR04",
        _ => return "IR03",
    };
    let of_endpoints = chain.starts_with("KUBE-SV");
    let any = |is: fn(&Rule<'_>) -> bool| rule.both().any(|rule| is(rule));
    if table == "filter" && chain != "KUBE-PROXY-FIREWALL" && any(refuses) {
        "IR07"
    } else if rule.kind() == ChangeKind::Differs && of_endpoints && any(is_random) {
        "IR08"
    } else if chain.starts_with(SEP) || (of_endpoints && any(leads_to_endpoint)) {
        "IR04"
    } else {
        "IR03"
    }
}

fn refuses(rule: &Rule<'_>) -> bool {
    matches!(rule.target, Some(Target::Reject { .. } | Target::Drop))
}

fn is_random(rule: &Rule<'_>) -> bool {
    rule.matches.iter().any(|m| matches!(m, Match::Random(_)))
}

/// Returns whether the rule leads to the chain of an endpoint, or asks for its clients.
fn leads_to_endpoint(rule: &Rule<'_>) -> bool {
    let mut matches = rule.matches.iter();
    rule.leads_to().is_some_and(|chain| chain.starts_with(SEP))
        || matches.any(|m| matches!(m, Match::Recent(recent) if recent.name.starts_with(SEP)))
}

fn of_ipvs_rules(object: &Object) -> &'static str {
    let (table, chain) = object.iptables_chain().unwrap_or_default();
    if let Some(id) = shared(chain) {
        return id;
    }
    match (table, chain) {
        (_, "KUBE-IPVS-FILTER") => "DV08",
        (_, "KUBE-SOURCE-RANGES-FIREWALL" | "KUBE-IPVS-OUT-FILTER" | "KUBE-PROXY-FIREWALL") => {
            "VS16"
        }
        ("filter", _) => "IR11",
        _ => "IR09",
    }
}

fn of_ipvs(change: &Change, empty: &HashSet<Key>) -> &'static str {
    match &change.object {
        Object::VirtualServer { server, .. } => match server {
            Delta::Missing(_) => "VS01",
            Delta::Extra(_) if change.service.is_some() => "VS02",
            Delta::Extra(_) => "VS03",
            Delta::Differs { .. } => "VS08",
        },
        Object::RealServer { server, real, .. } => match real {
            Delta::Missing(_) if empty.contains(server) => "VS07",
            Delta::Differs { have, .. } if have.weight == 0 => "VS05",
            _ => "VS04",
        },
        Object::Set { set, .. } => match set {
            Delta::Differs { .. } => "IS02",
            _ => "IS05",
        },
        Object::Member { .. } => "IS03",
        Object::Address(Delta::Extra(_)) => "DV03",
        Object::Address(_) => "DV02",
        // The link itself.
        _ => "DV01",
    }
}

fn of_nftables(object: &Object) -> &'static str {
    if let Some(chain) = object.nftables_chain() {
        let is_rule = matches!(object, Object::NftablesRule { .. });
        let differs = matches!(
            object,
            Object::NftablesRule {
                rule: Delta::Differs { .. },
                ..
            }
        );
        return match chain.split('-').next() {
            Some("service" | "external") if chain.contains('/') && differs => "NF03",
            // It leads to endpoints alone.
            Some("local") if chain.contains('/') && is_rule => "NF03",
            Some("service" | "external" | "local" | "firewall") if chain.contains('/') => "NF02",
            Some("endpoint") if chain.contains('/') => "NF03",
            _ => "NF01",
        };
    }
    match object {
        Object::NftablesElement { set, .. } if set.starts_with("no-endpoint-") => "NF04",
        Object::NftablesElement { .. } => "NF02",
        Object::NftablesSet { name, .. } if name.starts_with("affinity-") => "NF03",
        _ => "NF01",
    }
}
