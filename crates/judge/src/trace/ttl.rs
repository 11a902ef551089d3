//! The time to live: a packet that is forwarded with one of 1 or less is dropped (`ip_forward`, `ip6_forward`, `decrement_ttl` of
//! `ip_vs_xmit.c`).

use super::branch::Branch;
use super::hop::{Effect, Hook, Outcome, Verdict};
use super::packet::Link;

/// Returns the effect of a target `TTL` or `HL` on a packet with time to live `ttl`; `None` if its options are not known.
pub(super) fn target(ttl: u8, options: &str) -> Option<Effect> {
    let mut words = options.split_ascii_whitespace();
    let (option, number) = (words.next()?, words.next()?.parse::<u8>().ok()?);
    let to = match option {
        "--ttl-set" | "--hl-set" => number,
        "--ttl-dec" | "--hl-dec" => ttl.saturating_sub(number),
        "--ttl-inc" | "--hl-inc" => ttl.saturating_add(number),
        _ => return None,
    };
    Some(Effect::Ttl { to })
}

/// Why a packet has no way, if its time to live ends.
const ENDS: &str = "the TTL ends";

/// Returns whether a packet with this effect ends as its time to live does.
pub(super) fn is_end(effect: &Effect) -> bool {
    matches!(effect, Effect::Nowhere { why } if why == ENDS)
}

/// Takes one from the time to live of a packet that is forwarded; returns `None` if that ends it.
pub(super) fn forwarded(mut branch: Branch, outcomes: &mut Vec<Outcome>) -> Option<Branch> {
    // A bridge passes packets on as they are, and the node's own are not forwarded.
    if branch.packet.bridged || branch.packet.input == Link::None {
        return Some(branch);
    }
    if branch.packet.ttl > 1 {
        branch.packet.ttl -= 1;
        return Some(branch);
    }
    super::routing::hop(&mut branch, Hook::Forward, || Effect::Nowhere {
        why: ENDS.to_owned(),
    });
    let reason = "the TTL ends, so the node does not forward the packet";
    outcomes.push(super::ending::outcome(branch, Verdict::Drop, reason));
    None
}
