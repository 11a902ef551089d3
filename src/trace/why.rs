//! Why a packet ended as it did, in words, from the rule that ended it.

use super::hop::{Effect, Hop, Outcome, Subsystem, Verdict};
use crate::owner::software::{self, Maker};
use crate::owner::{Endpoint, EndpointState, Owner, Owners, Port};

/// Returns why `outcome` ended as it did; `service` is the Service port it was sent to.
pub fn why(outcome: &Outcome, service: Option<&Port>) -> String {
    let told = match outcome.verdict {
        Verdict::Drop | Verdict::Reject => {
            decisive(outcome).and_then(|hop| by_rule(outcome, hop, service))
        }
        _ => None,
    };
    told.unwrap_or_else(|| outcome.reason.clone())
}

fn decisive(outcome: &Outcome) -> Option<&Hop> {
    let ends = |hop: &&Hop| {
        matches!(
            hop.effect,
            Effect::Drop | Effect::Reject { .. } | Effect::NoServer { .. }
        )
    };
    outcome.hops.iter().rev().map(AsRef::as_ref).find(ends)
}

fn by_rule(outcome: &Outcome, hop: &Hop, service: Option<&Port>) -> Option<String> {
    let name = service.map_or("the Service".to_owned(), |port| port.name.to_string());
    let chain = hop.chain.as_str();
    let nft = hop.subsystem == Subsystem::Nftables && hop.table.ends_with(" kube-proxy");
    if let Effect::NoServer { .. } = hop.effect {
        let ready = |e: &&Endpoint| e.state == Some(EndpointState::Ready);
        let mut ready = service
            .iter()
            .flat_map(|port| &port.endpoints)
            .filter(ready);
        let first = ready.next();
        let here =
            first.is_none_or(|e| e.local != Some(false)) || ready.any(|e| e.local != Some(false));
        return Some(if first.is_some() && !here {
            format!("{name} has no endpoint on this node: its virtual server has no real server")
        } else {
            format!(
                "{name} has no endpoints: its virtual server has no real server that accepts connections"
            )
        });
    }
    let ranges = match hop.subsystem {
        Subsystem::Nftables => nft && chain.starts_with("firewall-"),
        _ => {
            matches!(chain, "KUBE-PROXY-FIREWALL" | "KUBE-SOURCE-RANGES-FIREWALL")
                || chain.starts_with("KUBE-FW-")
        }
    };
    if ranges {
        return Some(format!(
            "the source is outside loadBalancerSourceRanges of {name}"
        ));
    }
    let asked = |what: &str| {
        let mut hops = outcome.hops.iter();
        nft && hops.any(|hop| hop.rule.contains(what))
    };
    if asked("@no-endpoint-") && chain != "cluster-ips-check" {
        return Some(match hop.effect {
            Effect::Drop => no_local(&format!("{name} has no local endpoints")),
            _ => format!("{name} has no endpoints"),
        });
    }
    if nft && chain == "cluster-ips-check" {
        return Some(match hop.effect {
            Effect::Drop => "the address is in the Service range, but no Service has it".to_owned(),
            _ => "the Service with this address does not have this port".to_owned(),
        });
    }
    if chain == "KUBE-IPVS-FILTER" {
        return Some(
            "the address is on kube-ipvs0, but its Service does not have this port".to_owned(),
        );
    }
    let comment = comment(&hop.rule)?;
    let whole = match maker(hop) {
        Maker::KubeProxy | Maker::Both if comment.ends_with("has no local endpoints") => {
            no_local(comment)
        }
        Maker::KubeProxy | Maker::Both if comment.ends_with("has no endpoints") => {
            comment.to_owned()
        }
        _ => format!("{} ({comment:?})", outcome.reason),
    };
    Some(whole)
}

fn no_local(what: &str) -> String {
    format!("{what}, and its traffic policy is Local")
}

/// Returns the comment of a rule as iptables or nft prints it.
pub(crate) fn comment(rule: &str) -> Option<&str> {
    let (_, rest) = rule
        .split_once("--comment ")
        .or_else(|| rule.split_once(" comment "))?;
    match rest.strip_prefix('"') {
        Some(quoted) => quoted.split_once('"').map(|(text, _)| text),
        None => rest.split(' ').next(),
    }
}

/// Returns the owner of a hop's chain.
pub fn owner<'o>(owners: &'o Owners, hop: &Hop) -> Owner<'o> {
    match hop.subsystem {
        Subsystem::Routing | Subsystem::Ipvs => Owner::General,
        Subsystem::Nftables if hop.table.ends_with(" kube-proxy") => owners.nft_chain(&hop.chain),
        Subsystem::Iptables | Subsystem::IptablesOther | Subsystem::Nftables => {
            owners.chain(&hop.chain)
        }
    }
}

/// Returns the software that wrote the rule of a hop: judged by its target in a built-in chain, else by its chain or table.
pub fn maker(hop: &Hop) -> Maker {
    let mut table = hop.table.as_str();
    if hop.subsystem == Subsystem::Nftables {
        (_, table) = table.split_once(' ').unwrap_or_default();
        match software::maker_of_table(table) {
            // It may be one of iptables-nft's.
            Maker::Unknown => {}
            maker => return maker,
        }
    }
    match software::maker_of_chain(table, &hop.chain) {
        // Not a rule, but the kernel's own policy.
        Maker::Kernel if hop.number == 0 => Maker::Kernel,
        Maker::Kernel => match &hop.effect {
            Effect::Jump { to } | Effect::Goto { to } => software::maker_of_chain(table, to),
            _ => Maker::Unknown,
        },
        maker => maker,
    }
}
