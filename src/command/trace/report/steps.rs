//! The steps of a trace that are shown: the hops that matter, and the branch into several paths.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};

use super::{HopRow, OutcomeRow, SourceTrace};
use kpx_judge::trace::{Effect, Hook, Subsystem, Verdict};

/// A step that is shown.
pub(super) enum Step<'t> {
    /// A hop, with the outcomes that pass it if not all do.
    Hop(&'t HopRow),
    /// A branch: at this hop, the path splits into all outcomes.
    Branch(&'t HopRow),
}

/// Returns the steps of `trace`; `all` includes hops of single paths and hops without effect.
pub(super) fn steps(trace: &SourceTrace, all: bool) -> Vec<Step<'_>> {
    let mut steps = Vec::new();
    let mut split = false;
    let several = trace.outcomes.len() > 1;
    let mut hops = trace.hops.iter().enumerate();
    while let Some((at, hop)) = hops.next() {
        if !all && comes_to_nothing(&trace.hops, at) {
            continue;
        }
        if !all && returns_at_once(&trace.hops, at) {
            hops.next();
            continue;
        }
        if hop.outcomes.is_some() && several {
            if !split {
                split = true;
                steps.push(Step::Branch(hop));
            }
            if !all && !decides(&hop.effect) {
                continue;
            }
        }
        steps.push(Step::Hop(hop));
    }
    steps
}

/// Returns whether an effect is shown even if only some of the paths have it.
fn decides(effect: &Effect) -> bool {
    matches!(
        effect,
        Effect::Drop
            | Effect::Reject { .. }
            | Effect::NoServer { .. }
            | Effect::Nowhere { .. }
            | Effect::Snat { .. }
            | Effect::Masquerade { .. }
            | Effect::Out { .. }
            | Effect::ToHost
    )
}

/// Returns whether the hop at `at` is a jump into a chain where nothing happens.
fn comes_to_nothing(hops: &[HopRow], at: usize) -> bool {
    let hop = &hops[at];
    let Effect::Jump { to } = &hop.effect else {
        return false;
    };
    hops.get(at + 1)
        .is_none_or(|next| next.chain != *to || next.hook != hop.hook)
}

/// Returns whether the hop at `at` is a jump into a chain that only sends the packet back, to keep its source.
fn returns_at_once(hops: &[HopRow], at: usize) -> bool {
    if hops[at].hook != Hook::Postrouting {
        return false;
    }
    let Effect::Jump { to } = &hops[at].effect else {
        return false;
    };
    hops.get(at + 1)
        .is_some_and(|next| next.chain == *to && next.effect == Effect::Return)
}

/// Returns the place of a hop: `nat KUBE-SERVICES:3`.
pub(super) fn place(hop: &HopRow) -> String {
    match hop.subsystem {
        Subsystem::Routing => "route".to_owned(),
        Subsystem::Ipvs => "ipvs".to_owned(),
        Subsystem::Process => "kube-proxy".to_owned(),
        Subsystem::IptablesOther => format!(
            "{} {}:{} (other back end)",
            hop.table, hop.chain, hop.number
        ),
        Subsystem::Iptables | Subsystem::Nftables | Subsystem::Arptables if hop.number == 0 => {
            format!("{} {} policy", hop.table, hop.chain)
        }
        Subsystem::Iptables | Subsystem::Nftables | Subsystem::Arptables => {
            format!("{} {}:{}", hop.table, hop.chain, hop.number)
        }
    }
}

/// Returns the effect of a hop, in words, with `arrow` before the chain that it leads to.
pub(super) fn effect(hop: &HopRow, arrow: &str) -> String {
    let addr = |address: &Option<IpAddr>| {
        address.map_or("an unknown address".to_owned(), |a| a.to_string())
    };
    let text = match &hop.effect {
        Effect::Jump { to } | Effect::Goto { to } => format!("{arrow} {to}"),
        Effect::Return => "returns".to_owned(),
        Effect::Accept => "accepts".to_owned(),
        Effect::Drop => "drops".to_owned(),
        Effect::Reject { with } => format!("rejects with {with}"),
        Effect::Dnat { address, port } => {
            format!("translates to {}", SocketAddr::new(*address, *port))
        }
        Effect::Snat { address } => format!("rewrites the source to {}", addr(address)),
        Effect::Masquerade { address } => format!("masquerades as {}", addr(address)),
        Effect::Mark { from, to } => format!("marks {from:#x} {arrow} {to:#x}"),
        Effect::Ttl { to } => format!("sets the TTL to {to}"),
        Effect::Queue => "queues it for a program".to_owned(),
        Effect::Untrack => "excludes it from conntrack".to_owned(),
        Effect::Zone { zone } => format!("puts it into conntrack zone {zone}"),
        Effect::Balance {
            server,
            scheduler,
            address,
            port,
        } => {
            let real = SocketAddr::new(*address, *port);
            format!("{server} ({scheduler}) {arrow} {real}")
        }
        Effect::Relay {
            service,
            address,
            port,
        } => {
            let endpoint = SocketAddr::new(*address, *port);
            format!("the process serves {service} (round robin) {arrow} {endpoint}")
        }
        Effect::NoServer { server, idle: 0 } => format!("{server} has no real server"),
        Effect::NoServer { server, .. } => format!("{server}: no real server takes connections"),
        Effect::ToHost => "to this host".to_owned(),
        Effect::Out { device, gateway } => {
            let device = device.as_deref().unwrap_or("an unknown link");
            gateway.map_or(format!("out by {device}"), |gateway| {
                format!("out by {device} via {gateway}")
            })
        }
        Effect::Nowhere { why } => why.clone(),
        Effect::Other { what } => what.clone(),
    };
    match &hop.when {
        Some(when) => format!("{text} (if {when})"),
        None if (hop.probability - 1.0).abs() < 1e-9 => text,
        None => format!("{text} ({})", percent(hop.probability)),
    }
}

/// Returns the place of the branch at `hop`, and the number of paths in words.
pub(super) fn branch(hop: &HopRow, trace: &SourceTrace) -> (String, String) {
    let place = match &hop.effect {
        Effect::Balance { server, .. } => format!("ipvs {server}"),
        // iptables has a rule for each path, nftables one for all.
        _ if hop.subsystem == Subsystem::Iptables && hop.when.is_none() => {
            format!("{} {}", hop.table, hop.chain)
        }
        _ => place(hop),
    };
    let count = trace.outcomes.len();
    let text = match &hop.effect {
        _ if hop.when.is_some() => "unknown whether it matches; both results".to_owned(),
        Effect::Relay { .. } => format!("the process chooses one of {count} in turn"),
        Effect::Balance { scheduler, .. } => format!("{scheduler} chooses one of {count}"),
        _ => format!("one of {count} paths"),
    };
    (place, text)
}

/// Returns the outcomes whose packets pass a hop, in words, if not all do.
pub(super) fn for_whom(passing: &BTreeSet<usize>, trace: &SourceTrace) -> String {
    let of: Vec<_> = passing
        .iter()
        .filter_map(|at| trace.outcomes.get(*at))
        .collect();
    match of.as_slice() {
        [
            OutcomeRow {
                backend: Some(one), ..
            },
        ] => format!("for {}", SocketAddr::new(one.address, one.port)),
        of if of.iter().any(|outcome| outcome.is_open) => "for some packets".to_owned(),
        of => {
            let share: f64 = of.iter().map(|outcome| outcome.probability).sum();
            format!("for {}", percent(share))
        }
    }
}

/// Returns the name of an outcome: its backend with the pod, or how it ends.
pub(super) fn ending(outcome: &OutcomeRow, trace: &SourceTrace) -> String {
    let Some(backend) = &outcome.backend else {
        return format!("{}: {}", past(outcome.verdict), outcome.reason);
    };
    let mut text = SocketAddr::new(backend.address, backend.port).to_string();
    match (&backend.pod, &backend.node) {
        (Some(pod), _) => text.extend(["  ", pod]),
        (None, Some(node)) => text.extend(["  on ", node]),
        (None, None) => {}
    }
    if backend.address == trace.packet.source {
        text.push_str("  (itself)");
    }
    if let Some(state) = backend.condition.filter(|_| backend.ready == Some(false)) {
        text.extend(["  (", &state.to_string(), ")"]);
    }
    if outcome.fate.fails() && outcome.verdict == Verdict::Deliver {
        text.extend(["  (", outcome.fate.name(), ")"]);
    }
    if outcome.masquerade && trace.outcomes.iter().any(|o| !o.masquerade) {
        text.push_str("  (source rewritten)");
    }
    text
}

/// Returns a verdict as a past participle.
pub(super) const fn past(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Deliver => "delivered",
        Verdict::Reject => "rejected",
        Verdict::Drop => "dropped",
        Verdict::Local => "local",
        Verdict::Unmatched => "unmatched",
        Verdict::Unknown => "unknown",
        Verdict::Mixed => "mixed",
    }
}

/// Returns the share of the packets that take the way of `outcome`: `33.3%`, or `maybe` if an assumption leaves that open.
pub(super) fn share(outcome: &OutcomeRow) -> String {
    if outcome.is_open {
        "maybe".to_owned()
    } else {
        percent(outcome.probability)
    }
}

/// Returns `33.3%`, without a needless fraction.
pub(super) fn percent(probability: f64) -> String {
    let text = format!("{:.1}", probability * 100.0);
    format!("{}%", text.strip_suffix(".0").unwrap_or(&text))
}
