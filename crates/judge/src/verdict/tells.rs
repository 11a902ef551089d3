//! Rules of other software that treat packets of an established connection differently from the first one, or set marks.

use std::cell::LazyCell;

use crate::trace::packet::tcp_flags;
use crate::trace::{fits_state, tells_data};
use kpx_node::backend::iptables::model::{Connmark, Match, Rule, States, Target};
use kpx_node::backend::iptables::parse::Saved;
use kpx_node::backend::nftables::model::{Expr, Statement};
use kpx_node::evidence::Gap;
use kpx_node::net::Family;
use kpx_node::node::{IptablesBackend, NodeSnapshot};

/// Returns whether rules of other software may treat packets of an established connection worse than first packets.
pub(super) fn tells(node: &NodeSnapshot<'_>, family: Family) -> bool {
    // Rules that are read in parts may have such conditions.
    let in_use = node.saved(IptablesBackend::InUse, family);
    // The nat chains of kube-proxy set this bit on first packets only. Few nodes have rules that ask for it.
    let bit = LazyCell::new(|| {
        let mode = node.configured_mode().ok();
        let desired = mode.and_then(|mode| node.desired(mode).ok());
        desired.map_or(0, |desired| desired.mark)
    });
    let asks_for_mark = |rule: &Rule<'_>| {
        let ends = !matches!(rule.target, None | Some(Target::Accept | Target::Return));
        ends && rule
            .matches
            .iter()
            .any(|matched| matches!(matched, Match::Mark(mark) if mark.value.mask & *bit != 0))
    };
    let asks = |statement: &Statement| matches!(statement, Statement::Match { left, .. } if is_of_mark(left));
    matches!(in_use, Err(Gap::NotCollected(_)))
        || any_of_others(
            node,
            family,
            |rule| tells_rule(rule) || asks_for_mark(rule),
            |statement| asks_which(statement) || asks(statement) && *bit != 0,
        )
}

/// Returns whether nft compares the mark of the packet.
fn is_of_mark(of: &Expr) -> bool {
    match of {
        Expr::Meta(key) => key == "mark",
        Expr::Bits { left, .. } => is_of_mark(left),
        _ => false,
    }
}

/// Returns whether rules of other software may set the mark of packets of `family`.
pub(super) fn sets_marks(node: &NodeSnapshot<'_>, family: Family) -> bool {
    let marks = |rule: &Rule<'_>| {
        matches!(
            rule.target,
            Some(Target::Mark(_) | Target::Connmark(Connmark::Restore { .. }))
        )
    };
    any_of_others(
        node,
        family,
        marks,
        |statement| matches!(statement, Statement::Mangle { key: Expr::Meta(key), .. } if key == "mark"),
    )
}

/// Returns whether `of_iptables` holds for a rule of iptables of other software, in either back end, or `of_nft` for a statement of nft.
fn any_of_others(
    node: &NodeSnapshot<'_>,
    family: Family,
    of_iptables: impl Fn(&Rule<'_>) -> bool,
    of_nft: impl Fn(&Statement) -> bool,
) -> bool {
    let stores = [
        IptablesBackend::InUse,
        IptablesBackend::Legacy,
        IptablesBackend::Nft,
    ];
    let others = |saved: &Saved<'_>| {
        let mut chains = saved.chains(|name| !name.starts_with("KUBE-"));
        chains.any(|chain| chain.rules.iter().any(&of_iptables))
    };
    let ruleset = node.nft().ok();
    let tables = ruleset.iter().flat_map(|all| &all.tables);
    let mut tables = tables.filter(|table| !table.is_of_iptables() && table.name != "kube-proxy");
    stores
        .iter()
        .any(|store| node.saved(*store, family).is_ok_and(others))
        || tables.any(|table| {
            let rules = table.chains.iter().flat_map(|chain| &chain.rules);
            rules.flat_map(|rule| &rule.statements).any(&of_nft)
        })
}

/// Returns whether a statement of nft decides by the state, the mark or the packets of the connection, by the flags of TCP or by the size, or
/// writes data that later packets find.
fn asks_which(statement: &Statement) -> bool {
    fn is_asked(of: &Expr) -> bool {
        match of {
            Expr::Ct { key, .. } => matches!(
                key.as_str(),
                "state" | "status" | "mark" | "packets" | "bytes"
            ),
            Expr::Payload { protocol, field } => matches!(
                (protocol.as_str(), field.as_str()),
                ("tcp", "flags") | ("ip" | "ip6", "length")
            ),
            Expr::Meta(key) => key == "length",
            Expr::Concat(all) => all.iter().any(is_asked),
            Expr::Bits { left, .. } => is_asked(left),
            _ => false,
        }
    }
    match statement {
        Statement::Match { left, .. } => is_asked(left),
        Statement::Vmap { key, .. } => is_asked(key),
        Statement::Mangle { value, .. } => is_asked(value),
        // Later packets find in a set what the first one adds to it.
        Statement::SetOp { .. } => true,
        _ => false,
    }
}

/// Returns whether a rule matches only one of first and later packets, and may be worse for later ones.
fn tells_rule(rule: &Rule<'_>) -> bool {
    let holds = |matched: &Match<'_>, state: u8, flags: u8| match matched {
        Match::State { states, .. } => (states.value.0 & state != 0) != states.inverted,
        Match::TcpFlags(matched) => {
            (flags & matched.value.mask == matched.value.set) != matched.inverted
        }
        Match::Conntrack(options) => fits_state(options, state == States::LATER),
        _ => true,
    };
    let all = |state, flags| {
        rule.matches
            .iter()
            .all(|matched| holds(matched, state, flags))
    };
    let first = all(States::NEW, tcp_flags(true, false));
    let later = all(States::LATER, tcp_flags(false, false));
    let Some(target) = &rule.target else {
        return false;
    };
    let is_good = matches!(target, Target::Accept | Target::Return);
    let leads_to_kube_proxy = matches!(target, Target::Jump(name) if name.starts_with("KUBE-"));
    // State that earlier packets left may stop later ones.
    let is_asked = |matched: &Match<'_>| match matched {
        Match::Connmark(_) => true,
        Match::Unknown(text) => tells_data(text),
        _ => false,
    };
    let by_mark = matches!(target, Target::Connmark(Connmark::Restore { .. }))
        || matches!(target, Target::Other { name, .. } if name == "SET");
    let by_more = by_mark || rule.matches.iter().any(is_asked);
    (by_more || first != later && is_good == first) && !leads_to_kube_proxy
}
