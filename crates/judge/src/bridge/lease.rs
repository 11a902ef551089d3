//! The lease of the bridge: the kernel itself stops using a bridge that no process renews.
//!
//! A set of the bridge's table holds the protocols that the bridge translates, each with a timeout. The first rule of every
//! base chain skips packets whose protocol is not in the set. The process that keeps the bridge up to date renews the
//! elements long before they expire; without it, new connections take kube-proxy's rules. conntrack keeps the connections
//! that the bridge has translated.

use std::fmt::Write as _;
use std::time::Duration;

use serde::Serialize;

use super::TABLE;
use kpx_node::backend::nftables::build::{differs, meta, named, protocol};
use kpx_node::backend::nftables::model::{Element, Set, Statement, Table, Verdict};
use kpx_node::backend::nftables::print;
use kpx_node::net::Proto;

/// The name of the set.
pub const SET: &str = "alive";

/// Every protocol that the bridge translates.
const PROTOCOLS: [Proto; 3] = [Proto::Tcp, Proto::Udp, Proto::Sctp];

/// The duration of the lease, and the process that renews it.
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

    /// Returns the same lease, kept by `keeper`; the comments of the elements name it.
    #[must_use]
    pub fn kept_by(mut self, keeper: &str) -> Self {
        let allowed = |c: &char| c.is_ascii_alphanumeric() || " -_.,()".contains(*c);
        self.keeper = Some(keeper.chars().filter(allowed).collect());
        self
    }

    /// Returns the interval of renewals: three may fail in a row.
    pub const fn beat(&self) -> Duration {
        Duration::from_millis(self.seconds.saturating_mul(250))
    }

    /// Returns the set with a fresh lease.
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
            conditions: Vec::new(),
        };
        PROTOCOLS.into_iter().map(element).collect()
    }

    /// Returns the input of `nft -f` that renews the lease in the bridge's tables of `families`, as one transaction.
    pub fn renewal(&self, families: &[&str]) -> String {
        let elements: Vec<_> = self.elements().iter().map(print::element).collect();
        let elements = elements.join(", ");
        let mut text = String::new();
        for family in families {
            // Deleting an expired element fails, and adding an existing one keeps its old time.
            writeln!(
                text,
                "flush set {family} {TABLE} {SET}\nadd element {family} {TABLE} {SET} {{ {elements} }}"
            )
            .expect("writing to a String does not fail");
        }
        text
    }
}

/// Returns the rule that skips packets when the lease has expired.
///
/// The rule looks the protocol up twice: in kernels before 6.17, a look-up during a renewal may miss both the old element and
/// the new one. The second look-up finds the new one.
pub(super) fn rule() -> Vec<Statement> {
    let expired = || differs(meta("l4proto"), named(SET));
    vec![expired(), expired(), Statement::Verdict(Verdict::Return)]
}

/// The remaining lease of a bridge.
#[derive(Clone, Debug, Eq, Ord, PartialEq, PartialOrd, Serialize)]
#[cfg_attr(feature = "testing", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum Held {
    /// It has expired: new connections take kube-proxy's rules.
    Expired,
    /// It expires later.
    Left {
        /// The remaining time, in seconds.
        seconds: u64,
        /// The duration of the lease, in seconds.
        of: u64,
        /// The process that renewed it last, if the elements name one.
        keeper: Option<String>,
    },
    /// The bridge has no lease: it serves until it is removed.
    Endless,
}

impl Held {
    /// Returns the remaining lease of `table`, one of the bridge's.
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
        // Expired elements are not listed; the bridge then serves the other protocols.
        set.elements.iter().map(left).min().unwrap_or(Self::Expired)
    }

    /// Returns the remaining lease in words.
    pub fn in_words(&self) -> String {
        match self {
            Self::Expired => {
                "expired: kube-proxy's rules, not the loaded bridge, serve new connections"
                    .to_owned()
            }
            Self::Endless => {
                "none: the loaded bridge serves until it is removed, even when it is out of date"
                    .to_owned()
            }
            Self::Left {
                seconds,
                of,
                keeper,
            } => {
                let keeper = keeper.as_ref().map_or_else(
                    || "not renewed since the bridge was loaded".to_owned(),
                    |keeper| format!("kept by {keeper}"),
                );
                format!("{seconds} s left of {of} s, {keeper}")
            }
        }
    }

    /// Returns whether a keeper renews the lease: at least half of it remains.
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
    use kpx_node::backend::nftables::parse;

    fn table(elements: &str) -> Table {
        let text = format!(
            "table ip kpx-bridge {{\n\tset alive {{\n\t\ttype inet_proto\n\t\tflags timeout\n{elements}\t}}\n}}\n"
        );
        parse::text(&text).unwrap().tables.remove(0)
    }

    #[test]
    fn the_remaining_lease_is_read_from_nft() {
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
    fn a_renewal_is_one_small_transaction_long_before_the_end() {
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
