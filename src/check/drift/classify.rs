//! Which check a change belongs to, and what it is told as.

use std::collections::{BTreeMap, BTreeSet};

use super::{Action, Change, Layer, Mode, Object, Severity};

/// What changes are told about where no Service is known.
type Sorted = Vec<(&'static str, String, Change)>;

/// Returns every change with its check and what it is about; `empty` are the virtual servers without real servers.
pub(super) fn all(mode: Mode, changes: Vec<Change>, empty: &BTreeSet<String>) -> Sorted {
    let mut found: Sorted = changes
        .into_iter()
        // Settings and canaries have checks of their own.
        .filter(|change| {
            change.layer != Layer::Sysctl && !place(&change.object).1.ends_with("-CANARY")
        })
        .map(|change| {
            let id = match change.layer {
                Layer::Nftables => nft(&change),
                Layer::Iptables if mode == Mode::Iptables => iptables(&change),
                Layer::Iptables => ipvs_rules(&change),
                _ => ipvs(&change, empty),
            };
            (id, subject(id, &change), change)
        })
        .collect();
    fold_services(&mut found);
    fold_addresses(&mut found);
    found
}

/// Leaves out rules that differ in their order alone.
///
/// Endpoints are sorted by address, and redacted addresses sort otherwise than those the rules were made from.
pub(super) fn unsort(changes: &mut Vec<Change>) {
    let key = |change: &Change| match &change.object {
        Object::Rule { table, chain, .. } => Some((change.family, table.clone(), chain.clone())),
        _ => None,
    };
    let mut words: BTreeMap<_, [Vec<String>; 2]> = BTreeMap::new();
    for change in changes.iter() {
        let Some(key) = key(change) else {
            continue;
        };
        let sides = words.entry(key).or_default();
        for (side, text) in sides.iter_mut().zip([&change.have, &change.want]) {
            let text = text.as_deref().unwrap_or("");
            // What moved says where to.
            let text = match text.strip_prefix("at ") {
                Some(moved) => moved.split_once(": ").map_or(moved, |(_, rule)| rule),
                None => text,
            };
            let parts = text.split([' ', ',']).filter(|word| !word.is_empty());
            side.extend(parts.map(str::to_owned));
        }
    }
    for sides in words.values_mut() {
        for side in sides {
            side.sort_unstable();
        }
    }
    changes.retain(|change| {
        let sides = key(change).and_then(|key| words.get(&key));
        sides.is_none_or(|[have, want]| have != want)
    });
}

fn subject(id: &str, change: &Change) -> String {
    let object = match &change.object {
        // A rule is told by its chain: the rest is evidence.
        Object::Rule { table, chain, .. } => format!("{table} chain {chain}"),
        Object::RealServer { server, .. } => format!("virtual server {server}"),
        Object::Address { addr, .. } => addr.clone(),
        Object::Member { set, .. } => format!("set {set}"),
        other => other.to_string(),
    };
    match &change.service {
        // What is set in one place for all Services is told by that place.
        Some(_) if ["IR01", "IR09", "IR11", "DV08", "NF01"].contains(&id) => object,
        Some(service) => service.clone(),
        None => object,
    }
}

/// Tells changes of one Service by the worst of them.
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

/// Tells the address and the set members of a virtual server that is missing or left over with that server, and the
/// members for an endpoint with its real server.
fn fold_addresses(found: &mut Sorted) {
    let mut causes: BTreeMap<(Action, String), (&'static str, String)> = BTreeMap::new();
    for (id, subject, change) in found.iter() {
        let key = match &change.object {
            Object::VirtualServer { server } => host(server),
            Object::RealServer { real, .. } => Some(real.clone()),
            _ => None,
        };
        if let Some(key) = key
            && change.action != Action::Differs
        {
            let cause = (*id, subject.clone());
            causes.entry((change.action, key)).or_insert(cause);
        }
    }
    for (id, subject, change) in found.iter_mut() {
        let key = match &change.object {
            Object::Address { addr, .. } => Some(addr.clone()),
            Object::Member { set, member } if set.ends_with("LOOP-BACK") => endpoint(member),
            Object::Member { member, .. } => member.split(',').next().map(str::to_owned),
            _ => None,
        };
        if let Some(key) = key
            && ["DV02", "DV03", "IS03"].contains(id)
            && let Some((cause, of)) = causes.get(&(change.action, key))
        {
            *id = cause;
            subject.clone_from(of);
        }
    }
}

/// Returns the address of `tcp 10.96.0.1:443`.
fn host(server: &str) -> Option<String> {
    let (_, socket) = server.split_once(' ')?;
    let socket: std::net::SocketAddr = socket.parse().ok()?;
    Some(socket.ip().to_string())
}

/// Returns `10.244.1.2:53` for `10.244.1.2,udp:53,10.244.1.2`.
fn endpoint(member: &str) -> Option<String> {
    let mut parts = member.split(',');
    let addr: std::net::IpAddr = parts.next()?.parse().ok()?;
    let (_, port) = parts.next()?.split_once(':')?;
    let socket = std::net::SocketAddr::new(addr, port.parse().ok()?);
    Some(socket.to_string())
}

fn place(object: &Object) -> (&str, &str) {
    match object {
        Object::Chain { table, chain } | Object::Rule { table, chain, .. } => (table, chain),
        _ => ("", ""),
    }
}

fn is_built_in(chain: &str) -> bool {
    chain.bytes().all(|b| b.is_ascii_uppercase())
}

/// What iptables rules have in both modes.
fn shared(chain: &str) -> Option<&'static str> {
    match chain {
        chain if is_built_in(chain) => Some("IR01"),
        "KUBE-MARK-MASQ" | "KUBE-POSTROUTING" => Some("IR09"),
        "KUBE-FORWARD" | "KUBE-FIREWALL" => Some("IR11"),
        _ => None,
    }
}

fn iptables(change: &Change) -> &'static str {
    let (table, chain) = place(&change.object);
    if let Some(id) = shared(chain) {
        return id;
    }
    let text = change.have.iter().chain(&change.want);
    let says = |word: &str| text.clone().any(|text| text.contains(word));
    match (&change.object, table, change.action) {
        (Object::Rule { .. }, "filter", _)
            if chain != "KUBE-PROXY-FIREWALL" && (says("REJECT") || says("DROP")) =>
        {
            "IR07"
        }
        (Object::Chain { .. }, _, Action::Extra) => "IR05",
        (Object::Chain { .. }, _, _) if chain.starts_with("KUBE-SEP-") => "IR04",
        (Object::Rule { .. }, _, Action::Differs)
            if says("--probability") && chain.starts_with("KUBE-SV") =>
        {
            "IR08"
        }
        (Object::Rule { .. }, _, _)
            if chain.starts_with("KUBE-SEP-")
                || (chain.starts_with("KUBE-SV") && says("KUBE-SEP-")) =>
        {
            "IR04"
        }
        _ => "IR03",
    }
}

fn ipvs_rules(change: &Change) -> &'static str {
    let (table, chain) = place(&change.object);
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

fn ipvs(change: &Change, empty: &BTreeSet<String>) -> &'static str {
    match (&change.object, change.action) {
        (Object::VirtualServer { .. }, Action::Missing) => "VS01",
        (Object::VirtualServer { .. }, Action::Extra) if change.service.is_some() => "VS02",
        (Object::VirtualServer { .. }, Action::Extra) => "VS03",
        (Object::VirtualServer { .. }, Action::Differs) => "VS08",
        (Object::RealServer { server, .. }, Action::Missing) if empty.contains(server) => "VS07",
        (Object::RealServer { .. }, Action::Differs) if has_weight_0(change) => "VS05",
        (Object::RealServer { .. }, _) => "VS04",
        (Object::Set { .. }, Action::Differs) => "IS02",
        (Object::Set { .. }, _) => "IS05",
        (Object::Member { .. }, _) => "IS03",
        (Object::Address { .. }, Action::Extra) => "DV03",
        (Object::Address { .. }, _) => "DV02",
        // The link itself.
        _ => "DV01",
    }
}

fn has_weight_0(change: &Change) -> bool {
    let have = change.have.as_deref().unwrap_or("");
    have.ends_with("-w 0") || have.contains("-w 0 ")
}

fn nft(change: &Change) -> &'static str {
    match &change.object {
        Object::Chain { chain, .. } | Object::Rule { chain, .. } => match chain.split('-').next() {
            Some("service" | "external" | "firewall") if chain.contains('/') => {
                match (&change.object, change.action) {
                    (Object::Rule { .. }, Action::Differs) if !chain.starts_with("firewall") => {
                        "NF03"
                    }
                    _ => "NF02",
                }
            }
            Some("endpoint") if chain.contains('/') => "NF03",
            _ => "NF01",
        },
        Object::Member { set, .. } if set.starts_with("no-endpoint-") => "NF04",
        Object::Member { .. } => "NF02",
        Object::Set { name } if name.starts_with("affinity-") => "NF03",
        _ => "NF01",
    }
}

/// Returns how bad changes of the check `id` about one thing are, and what to say of them.
pub(super) fn words(id: &str, changes: &[Change]) -> (Severity, &'static str) {
    use Severity::{Error, Info, Warning};
    let is = |action| changes.iter().all(|change| change.action == action);
    let missing = is(Action::Missing);
    let extra = is(Action::Extra);
    let differs = is(Action::Differs);
    match id {
        "IR01" if missing => (Error, "no rule leads from here to kube-proxy's chain"),
        "IR01" => (
            Error,
            "the rule that leads from here to kube-proxy's chain is another than it should be",
        ),
        "IR03" if extra => (
            Error,
            "rules are there for a Service port that is not, or no longer",
        ),
        "IR03" if missing => (Error, "rules for this Service port are missing"),
        "IR03" => (
            Error,
            "the rules for this Service port are not what they should be",
        ),
        "IR04" if missing => (
            Error,
            "rules for an endpoint are missing: it gets no traffic",
        ),
        "IR04" if extra => (
            Error,
            "rules lead to an endpoint that is not there any more",
        ),
        "IR04" => (Error, "the rules do not lead to the endpoints there are"),
        "IR05" => (
            Info,
            "chains of a Service that is not there any more; nothing leads to them",
        ),
        "IR07" | "NF04" if extra => (
            Error,
            "traffic is rejected or dropped, though there are endpoints",
        ),
        "IR07" | "NF04" => (
            Warning,
            "traffic without endpoints is not rejected as it should be: clients wait",
        ),
        "IR08" => (
            Warning,
            "the odds in the chain do not spread connections evenly",
        ),
        "IR09" => (
            Error,
            "the rules that masquerade are not what they should be",
        ),
        "IR11" => (
            Error,
            "the rules that let Service traffic pass are not what they should be",
        ),
        "VS01" => (Error, "no virtual server answers for this Service port"),
        "VS02" => (
            Warning,
            "a virtual server that the Service does not ask for (any more)",
        ),
        "VS03" => (
            Warning,
            "a virtual server that no Service asks for and excludeCIDRs does not name",
        ),
        "VS04" if missing => (
            Error,
            "real servers are missing: their endpoints get no traffic",
        ),
        "VS04" if extra => (
            Error,
            "real servers take traffic for endpoints that are not there any more",
        ),
        "VS04" => (Error, "the real servers are not the endpoints there are"),
        "VS05" => (
            Error,
            "a real server has weight 0 while its endpoint is ready: it gets no new connections",
        ),
        "VS07" => (
            Error,
            "the virtual server has no real server at all, though there are endpoints",
        ),
        "VS08" => (Warning, "scheduler or persistence is not as configured"),
        "VS16" => (
            Warning,
            "the rules that guard load-balancer addresses are not what they should be",
        ),
        "DV02" => (
            Error,
            "the address is missing on kube-ipvs0: packets for it pass IPVS by",
        ),
        "DV03" => (
            Warning,
            "the address is on kube-ipvs0, and no Service has it: packets for it end here",
        ),
        "DV08" => (
            Warning,
            "the rules that keep Service addresses from the host's own sockets are not whole",
        ),
        "IS02" => (
            Error,
            "the set is of another type or size than the rules need",
        ),
        "IS03" if missing => (Error, "members of an IP set are missing"),
        "IS03" if extra => (
            Warning,
            "members of an IP set are there that nothing asks for",
        ),
        "IS03" => (Error, "members of an IP set are not what they should be"),
        "IS05" => (
            Error,
            "an IP set of kube-proxy is missing, with what it should hold",
        ),
        "NF01" if missing => (
            Error,
            "a part of kube-proxy's table that every Service needs is missing",
        ),
        "NF01" => (
            Error,
            "a part of kube-proxy's table that every Service needs is not what it should be",
        ),
        "NF02" if missing => (Error, "nothing in the table leads to this Service port"),
        "NF02" if extra => (
            Error,
            "the table has entries for a Service port that is not, or no longer",
        ),
        "NF02" => (
            Error,
            "the table's entries for this Service port are not what they should be",
        ),
        "NF03" if extra => (
            Warning,
            "chains or sets of an endpoint that is not there any more",
        ),
        "NF03" if differs => (
            Error,
            "the chain spreads connections over other endpoints than there are",
        ),
        "NF03" => (Error, "the chains do not lead to the endpoints there are"),
        _ => (Error, "it is not what it should be"),
    }
}
