//! The lease of the bridge: a dead man's switch that the kernel holds.
//!
//! A set of the bridge's table has the protocols that the bridge translates, each with a timeout. The first rule of every
//! chain that begins something lets packets pass whose protocol is not in the set. Whoever keeps the bridge up to date
//! renews the elements long before they expire; when nobody does any more, new connections take kube-proxy's own rules.
//! Connections that began by the bridge are known to conntrack, and go on.

use std::fmt::Write as _;
use std::time::Duration;

use super::TABLE;
use crate::backend::nftables::build::{differs, meta, named, protocol};
use crate::backend::nftables::model::{Element, Set, Statement, Table, Verdict};
use crate::backend::nftables::print;
use crate::net::Proto;

/// The name of the set.
pub const SET: &str = "alive";

/// Every protocol that the bridge translates.
const PROTOCOLS: [Proto; 3] = [Proto::Tcp, Proto::Udp, Proto::Sctp];

/// How long the bridge serves after it was renewed last, and who renews it.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Lease {
    seconds: u64,
    keeper: Option<String>,
}

impl Lease {
    /// Returns a lease of `time`, in whole seconds and at least one.
    pub fn of(time: Duration) -> Self {
        Self {
            seconds: time.as_secs().max(1),
            keeper: None,
        }
    }

    /// Returns the same lease, kept by `keeper`, which the elements name.
    #[must_use]
    pub fn kept_by(mut self, keeper: &str) -> Self {
        let allowed = |c: &char| c.is_ascii_alphanumeric() || " -_.,()".contains(*c);
        self.keeper = Some(keeper.chars().filter(allowed).collect());
        self
    }

    /// Returns how long it is.
    pub const fn time(&self) -> Duration {
        Duration::from_secs(self.seconds)
    }

    /// Returns how often to renew it: three times may fail.
    pub const fn beat(&self) -> Duration {
        Duration::from_millis(self.seconds.saturating_mul(250))
    }

    /// Returns the set, with all of the lease left.
    pub(super) fn set(&self) -> Set {
        Set {
            name: SET.to_owned(),
            key: vec!["inet_proto".to_owned()],
            flags: vec!["timeout".to_owned()],
            elements: self.elements(),
            ..Set::default()
        }
    }

    fn elements(&self) -> Vec<Element> {
        let element = |proto| Element {
            key: protocol(proto),
            value: None,
            comment: self.keeper.clone(),
            timeout: Some(self.seconds),
            expires: None,
        };
        PROTOCOLS.into_iter().map(element).collect()
    }

    /// Returns what `nft -f` reads to renew the lease of the bridge's tables of `families`, as one transaction.
    pub fn renewal(&self, families: &[&str]) -> String {
        let elements: Vec<_> = self.elements().iter().map(print::element).collect();
        let elements = elements.join(", ");
        let mut text = String::new();
        for family in families {
            // To delete an element that has expired fails, and an element that is there keeps its time.
            writeln!(
                text,
                "flush set {family} {TABLE} {SET}\nadd element {family} {TABLE} {SET} {{ {elements} }}"
            )
            .expect("writing to a String does not fail");
        }
        text
    }
}

/// Returns the rule that lets packets pass when the lease is over.
///
/// It asks twice. In kernels before 6.17, a look-up while a transaction renews the elements may come too late for the old
/// element and too early for the new one; one that begins after that finds the new one.
pub(super) fn rule() -> Vec<Statement> {
    let expired = || differs(meta("l4proto"), named(SET));
    vec![expired(), expired(), Statement::Verdict(Verdict::Return)]
}

/// How long a bridge serves, if nobody renews its lease.
#[derive(Clone, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub enum Held {
    /// Not any more: new connections take kube-proxy's rules.
    Expired,
    /// For a while.
    Left {
        /// For how many seconds.
        seconds: u64,
        /// Of how many.
        of: u64,
        /// Who renewed it last, where that is told.
        keeper: Option<String>,
    },
    /// Until it is removed: it has no lease.
    Endless,
}

impl Held {
    /// Returns how long `table`, which is the bridge's, serves.
    pub fn of(table: &Table) -> Self {
        let Some(set) = table.set(SET) else {
            return Self::Endless;
        };
        let left = |element: &Element| {
            let (Some(seconds), Some(of)) = (element.expires, element.timeout) else {
                return Self::Endless;
            };
            Self::Left {
                seconds,
                of,
                keeper: element.comment.clone(),
            }
        };
        // What has expired is not listed; without one of its protocols, the bridge serves the others.
        set.elements.iter().map(left).min().unwrap_or(Self::Expired)
    }

    /// Returns whether somebody has renewed the lease lately, as a keeper does.
    pub const fn is_kept(&self) -> bool {
        match self {
            Self::Left { seconds, of, .. } => seconds.saturating_mul(2) >= *of,
            Self::Expired | Self::Endless => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::nftables::parse;

    fn table(elements: &str) -> Table {
        let text = format!(
            "table ip kpx-bridge {{\n\tset alive {{\n\t\ttype inet_proto\n\t\tflags timeout\n{elements}\t}}\n}}\n"
        );
        parse::text(&text).unwrap().tables.remove(0)
    }

    #[test]
    fn how_long_it_serves_is_read_from_what_nft_lists() {
        let of = |elements: &str| Held::of(&table(elements));
        assert_eq!(of(""), Held::Expired);
        let left = of(
            "\t\telements = { tcp timeout 1m expires 43s120ms comment \"kpx migrate (pid 7)\",\n\t\t\t     udp timeout 1m expires 44s }\n",
        );
        let keeper = Some("kpx migrate (pid 7)".to_owned());
        let (seconds, of_all) = (43, 60);
        assert_eq!(
            left,
            Held::Left {
                seconds,
                of: of_all,
                keeper
            }
        );
        assert!(left.is_kept());
        assert!(!of("\t\telements = { tcp timeout 1m expires 29s900ms }\n").is_kept());
        assert!(!of("\t\telements = { tcp timeout 1s expires 900ms }\n").is_kept());
        assert_eq!(of("\t\telements = { tcp }\n"), Held::Endless);
        assert_eq!(Held::of(&Table::default()), Held::Endless);
    }

    #[test]
    fn it_is_renewed_by_one_small_transaction_long_before_its_end() {
        let lease = Lease::of(Duration::from_secs(60)).kept_by("kpx \"x\" (pid 7)");
        assert_eq!(lease.beat(), Duration::from_secs(15));
        let element = |proto| format!("{proto} timeout 60s comment \"kpx x (pid 7)\"");
        let all = ["tcp", "udp", "sctp"].map(element).join(", ");
        assert_eq!(
            lease.renewal(&["ip", "ip6"]),
            ["ip", "ip6"]
                .map(|family| format!(
                    "flush set {family} kpx-bridge alive\nadd element {family} kpx-bridge alive {{ {all} }}\n"
                ))
                .concat()
        );
    }
}
