//! The bit of the packet mark that requests masquerading.

use thiserror::Error;

use super::TABLE;
use kpx_node::backend::Mode;
use kpx_node::backend::iptables::model::{Connmark, Match, Ruleset, Target};
use kpx_node::backend::nftables::model::{Datum, Expr, Statement, Table};
use kpx_node::desired::DesiredState;
use kpx_node::evidence::Gap;
use kpx_node::net::{Family, Mark};
use kpx_node::node::{IptablesBackend, NodeSnapshot};

/// The bits to try, in this order: the first ones are used by no known CNI plugin or VPN. Bit 13 is that of the portmap
/// plugin, bits 8 to 11 and from 16 on are used by Cilium, Calico, Weave and Tailscale; 14 and 15 are kube-proxy's and
/// the kubelet's.
const BITS: &[u32] = &[12, 6, 5, 4, 3, 2, 1, 0, 7, 13, 8, 9, 10, 11];

/// The bits that the bridge marks packets with.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Marks {
    /// The bit that requests masquerading.
    pub masquerade: u32,
    /// All bits that are set: kube-proxy's among them, if its rules forward marked packets only.
    pub set: u32,
}

/// Other rules use every bit.
#[derive(Clone, Copy, Debug, Error)]
#[error("no bit of the packet mark is free for the bridge: rules on this node use {0:#x}")]
pub struct NoBit(u32);

impl Marks {
    /// Returns bits that no rule on `node` uses, except the bridge's and kube-proxy's own.
    pub fn free(node: &NodeSnapshot<'_>, state: &DesiredState) -> Result<Result<Self, NoBit>, Gap> {
        let used = used(node)? | state.mark;
        let bit = BITS.iter().map(|bit| 1 << bit).find(|bit| used & bit == 0);
        let Some(masquerade) = bit else {
            return Ok(Err(NoBit(used)));
        };
        // KUBE-FORWARD accepts marked packets even if the policy of FORWARD drops packets.
        let forwarded = match state.mode {
            Mode::Iptables | Mode::Ipvs => state.mark,
            Mode::Nftables | Mode::Userspace => 0,
        };
        Ok(Ok(Self {
            masquerade,
            set: masquerade | forwarded,
        }))
    }
}

/// Returns the bits of packet and connection marks that rules on `node` match or set.
fn used(node: &NodeSnapshot<'_>) -> Result<u32, Gap> {
    let mut bits = 0;
    for family in Family::BOTH {
        for store in [
            IptablesBackend::InUse,
            IptablesBackend::Legacy,
            IptablesBackend::Nft,
        ] {
            bits |= known(node.iptables(store, family))?.map_or(0, of_iptables);
        }
    }
    if let Some(rules) = known(node.nft())? {
        let others = rules.tables.iter().filter(|table| table.name != TABLE);
        bits |= others.map(of_nftables).fold(0, |all, bits| all | bits);
    }
    if let Some(rules) = known(node.rules())? {
        let marks = rules.all.iter().filter_map(|rule| rule.mark);
        bits |= marks.map(of_mark).fold(0, |all, bits| all | bits);
    }
    Ok(bits)
}

/// An absent ruleset uses no bits; one that could not be read might use any bit. A live node is always read completely; a ruleset
/// that is not in a bundle counts as empty.
fn known<T>(read: Result<T, Gap>) -> Result<Option<T>, Gap> {
    match read {
        Ok(of) => Ok(Some(of)),
        Err(Gap::Absent(..) | Gap::NotApplicable(_) | Gap::NotCollected(_)) => Ok(None),
        Err(gap) => Err(gap),
    }
}

/// In a match on all bits, only the bits that are 1 count as used.
const fn of_mark(mark: Mark) -> u32 {
    if mark.mask == u32::MAX {
        mark.value
    } else {
        mark.mask
    }
}

const fn of_mask(mask: u32) -> u32 {
    if mask == u32::MAX { 0 } else { mask }
}

fn of_iptables(rules: &Ruleset<'_>) -> u32 {
    let chains = rules.tables.iter().flat_map(|table| &table.chains);
    chains.flat_map(|chain| &chain.rules).fold(0, |all, rule| {
        let matched = rule.matches.iter().map(|matched| match matched {
            Match::Mark(mark) | Match::Connmark(mark) => of_mark(mark.value),
            _ => 0,
        });
        let set = match &rule.target {
            Some(Target::Mark(mark) | Target::Connmark(Connmark::Set(mark))) => of_mark(*mark),
            Some(Target::Tproxy(to)) => of_mark(to.mark),
            Some(Target::Connmark(
                Connmark::Save { packet, connection } | Connmark::Restore { packet, connection },
            )) => of_mask(*packet) | of_mask(*connection),
            _ => 0,
        };
        matched.fold(all | set, |all, bits| all | bits)
    })
}

fn of_nftables(table: &Table) -> u32 {
    let rules = table.chains.iter().flat_map(|chain| &chain.rules);
    let rules = rules.flat_map(|rule| &rule.statements).map(of_statement);
    let sets = table.sets.iter().filter(|set| {
        let mut types = set.key.iter().chain(set.data.iter().flatten());
        types.any(|kind| kind == "mark")
    });
    let elements = sets
        .flat_map(|set| &set.elements)
        .map(|element| numbers(&element.key) | element.value.as_ref().map_or(0, of_datum));
    rules.chain(elements).fold(0, |all, bits| all | bits)
}

fn of_statement(statement: &Statement) -> u32 {
    let exprs = match statement {
        // A bit more makes the mark greater.
        Statement::Match { left, op, .. } if op.starts_with('>') && is_of_mark(left) => {
            return u32::MAX;
        }
        Statement::Match { left, right, .. } => [Some(left), Some(right)],
        Statement::Vmap { key, data } => [Some(key), Some(data)],
        Statement::Mangle { key, value } => [Some(key), Some(value)],
        Statement::Nat { addr, port, .. } => [addr.as_ref(), port.as_ref()],
        Statement::Masquerade { port, .. } | Statement::Redirect { port, .. } => {
            [port.as_ref(), None]
        }
        _ => return 0,
    };
    let exprs = exprs.into_iter().flatten();
    if exprs.clone().any(is_of_mark) {
        exprs.map(numbers).fold(0, |all, bits| all | bits)
    } else {
        0
    }
}

fn is_of_mark(expr: &Expr) -> bool {
    match expr {
        Expr::Meta(key) | Expr::Ct { key, .. } => key == "mark",
        Expr::Bits { left, right, .. } => is_of_mark(left) || is_of_mark(right),
        Expr::Lookup { key, .. } => is_of_mark(key),
        Expr::Concat(parts) => parts.iter().any(is_of_mark),
        _ => false,
    }
}

/// Returns the bits of every number in `expr`; those of a mask that keeps most bits are the ones it clears. A shift, or an
/// expression that kpx does not understand, can have every bit.
fn numbers(expr: &Expr) -> u32 {
    match expr {
        Expr::Number(number) => of_number(*number),
        Expr::Bits { op, .. } if op == "<<" || op == ">>" => u32::MAX,
        Expr::Other(_) => u32::MAX,
        Expr::Bits { left, right, .. } => numbers(left) | numbers(right),
        Expr::Range(first, last) => of_range(numbers(first), numbers(last)),
        Expr::Numgen {
            modulus, offset, ..
        } => of_range(*offset, offset.saturating_add(modulus.saturating_sub(1))),
        Expr::Lookup { data, .. } => numbers(data),
        Expr::Concat(parts) | Expr::Set(parts) => {
            parts.iter().map(numbers).fold(0, |all, bits| all | bits)
        }
        Expr::Map(pairs) => pairs
            .iter()
            .fold(0, |all, (key, value)| all | numbers(key) | of_datum(value)),
        _ => 0,
    }
}

/// A number of the range can have every bit up to the highest in which its ends differ.
fn of_range(first: u32, last: u32) -> u32 {
    let below = u32::MAX.checked_shr((first ^ last).leading_zeros());
    first | below.unwrap_or(0)
}

fn of_number(number: u64) -> u32 {
    let bits = u32::try_from(number).unwrap_or(u32::MAX);
    if bits.count_ones() > u32::BITS / 2 {
        !bits
    } else {
        bits
    }
}

fn of_datum(datum: &Datum) -> u32 {
    match datum {
        Datum::Data(expr) => numbers(expr),
        Datum::Verdict(_) => 0,
    }
}
