//! The severity and the message of each check that compares.

use super::{Change, ChangeKind, Object, Severity};

/// Returns the severity and message of a finding of check `id` with these changes; `is_gone` if they are of a Service port that does
/// not exist.
pub(super) fn words(id: &str, changes: &[Change], is_gone: bool) -> (Severity, &'static str) {
    use Severity::{Error, Info, Warning};
    let is = |kind| changes.iter().all(|change| change.kind() == kind);
    let missing = is(ChangeKind::Missing);
    let extra = is(ChangeKind::Extra);
    let differs = is(ChangeKind::Differs);
    if let Some(known) = of_set(changes).filter(|_| id == "NF02") {
        return known;
    }
    match id {
        "IR01" if missing => (Error, "the jump to kube-proxy's chain is missing"),
        "IR01" => (Error, "the jump to kube-proxy's chain is wrong"),
        "IR03" if extra && is_gone => (
            Error,
            "rules exist for a Service port that no longer exists",
        ),
        "IR03" if extra => (Error, "the chains of this Service port have extra rules"),
        "IR03" if missing => (Error, "rules for this Service port are missing"),
        "IR03" => (Error, "the rules for this Service port are wrong"),
        "IR04" if missing => (
            Error,
            "rules for an endpoint are missing: it gets no traffic",
        ),
        "IR04" if extra && changes.iter().any(is_of_endpoint) => {
            (Error, "rules lead to an endpoint that no longer exists")
        }
        "IR04" if extra => (
            Error,
            "the chain does not spread connections over the current endpoints",
        ),
        "IR04" => (Error, "the rules do not lead to the current endpoints"),
        "IR05" if is_gone => (Info, "chains of a deleted Service; no rule leads to them"),
        "IR05" => (Info, "chains that the Service does not need any more"),
        "IR07" if extra => (
            Error,
            "traffic is rejected or dropped although the Service has endpoints",
        ),
        // Where the Service's packets are not translated, this is one of NF02's changes.
        "NF04" if extra => (
            Info,
            "the table would reject or drop traffic although the Service has endpoints, but translates it first",
        ),
        "IR07" | "NF04" => (
            Warning,
            "traffic is not rejected although the Service has no endpoints: clients wait",
        ),
        "IR08" => (
            Warning,
            "the load-balancing probabilities do not spread connections evenly",
        ),
        "IR09" => (Error, "the masquerade rules are wrong"),
        "IR11" if changes.iter().all(is_of_firewall) => (
            Error,
            "the rules that keep packets for 127.0.0.0/8 out are wrong",
        ),
        "IR11" => (Error, "the rules that accept Service traffic are wrong"),
        "IR17" if missing => (
            Error,
            "portals are missing: their packets reach no endpoint",
        ),
        "IR17" if extra => (Warning, "portals of an address or port that no Service has"),
        "IR17" => (
            Error,
            "portals lead to a port on which kube-proxy does not listen",
        ),
        "VS01" => (Error, "the virtual server of this Service port is missing"),
        "VS02" => (
            Warning,
            "virtual server of a port that the Service no longer has",
        ),
        "VS03" => (Warning, "virtual server of no Service"),
        "VS04" if missing => (
            Error,
            "real servers are missing: their endpoints get no traffic",
        ),
        "VS04" if extra => (
            Error,
            "some real servers are not endpoints, or are endpoints that the traffic policy excludes",
        ),
        "VS04" => (Error, "the real servers do not match the endpoints"),
        "VS05" => (
            Error,
            "a real server has weight 0 while its endpoint is ready: it gets no new connections",
        ),
        "VS07" => (
            Error,
            "the virtual server has no real servers although the Service has endpoints",
        ),
        "VS08" => (
            Warning,
            "scheduler or persistence differs from the configuration",
        ),
        "VS16" => (
            Warning,
            "the rules that protect load-balancer addresses are wrong",
        ),
        "DV02" => (
            Error,
            "the address is missing on kube-ipvs0: packets to it bypass IPVS",
        ),
        "DV03" => (
            Warning,
            "the address is on kube-ipvs0 but no Service has it: packets to it end on this node",
        ),
        "DV08" => (
            Warning,
            "the rules that protect the host's own sockets from traffic to Service addresses are incomplete",
        ),
        "IS02" => (Error, "the set has the wrong type or size"),
        "IS03" if missing => (Error, "members of an IP set are missing"),
        "IS03" if extra => (Warning, "an IP set has extra members"),
        "IS03" => (Error, "members of an IP set are wrong"),
        "IS05" => (Error, "an IP set of kube-proxy is missing"),
        "NF01" if missing => (Error, "a common part of kube-proxy's table is missing"),
        "NF01" => (Error, "a common part of kube-proxy's table is wrong"),
        "NF02" if missing => (Error, "no map element or rule leads to this Service port"),
        "NF02" if extra && is_gone => (
            Error,
            "the table has entries for a Service port that no longer exists",
        ),
        "NF02" if extra => (Error, "the table has extra entries for this Service port"),
        "NF02" => (Error, "the table's entries for this Service port are wrong"),
        "NF03" if extra => (
            Warning,
            "chains or sets of an endpoint that no longer exists",
        ),
        "NF03" if differs => (
            Error,
            "the chain does not spread connections over the current endpoints",
        ),
        "NF03" => (Error, "the chains do not lead to the current endpoints"),
        _ => (Error, "differs from the desired state"),
    }
}

/// Returns whether a change is one of the chain that the kubelet and kube-proxy share.
fn is_of_firewall(change: &Change) -> bool {
    let chain = change.object.iptables_chain();
    chain.is_some_and(|(_, chain)| chain == "KUBE-FIREWALL")
}

/// Returns whether a change is one of a rule or a chain of an endpoint.
fn is_of_endpoint(change: &Change) -> bool {
    let chain = change.object.iptables_chain();
    chain.is_some_and(|(_, chain)| chain.starts_with("KUBE-SEP-"))
}

/// Returns the severity and message of changes that are all elements of one set which leads to no Service port.
fn of_set(changes: &[Change]) -> Option<(Severity, &'static str)> {
    use Severity::{Info, Warning};
    let set = |change: &Change| match &change.object {
        Object::NftablesElement { set, .. } => Some(set.clone()),
        _ => None,
    };
    let first = set(changes.first()?)?;
    let is_same = |change: &Change| set(change).as_ref() == Some(&first);
    if !changes.iter().all(is_same) {
        return None;
    }
    let missing = changes
        .iter()
        .all(|change| change.kind() == ChangeKind::Missing);
    Some(match (first.as_str(), missing) {
        ("hairpin-connections", true) => (
            Severity::Error,
            "a pod does not reach a Service through itself: its connections to its own endpoint are not masqueraded",
        ),
        ("hairpin-connections", false) => (
            Info,
            "the table masquerades the connections to themselves of pods that are no endpoints here",
        ),
        ("cluster-ips", true) => (
            Warning,
            "the table does not reject connections to ports that the Service does not have: clients wait",
        ),
        ("cluster-ips", false) => (
            Info,
            "the table rejects connections to an address of no Service",
        ),
        ("nodeport-ips", true) => (
            Severity::Error,
            "the table does not serve NodePorts at an address of the node",
        ),
        ("nodeport-ips", false) => (
            Warning,
            "the table serves NodePorts at an address that the configuration does not name",
        ),
        _ => return None,
    })
}
