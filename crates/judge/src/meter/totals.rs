//! Counters by service port, of the busiest ones; all others count as one.
//!
//! The counts of a service port from its time among the busiest are kept, so its counters never go down, and the sum of
//! all counters is right.

use std::collections::{BTreeSet, HashMap};

use kpx_node::net::Proto;
use kpx_node::owner::PortName;

/// A service port.
pub type Key = (PortName, Proto);

/// The counted objects.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Total {
    /// Open connections, now.
    pub open: u64,
    /// New connections.
    pub new: u64,
    /// Packets of both directions.
    pub packets: u64,
    /// Bytes of both directions.
    pub bytes: u64,
    /// Refused packets.
    pub refused: u64,
}

impl Total {
    fn add(&mut self, more: &Self) {
        self.open += more.open;
        self.new += more.new;
        self.packets += more.packets;
        self.bytes += more.bytes;
        self.refused += more.refused;
    }
}

/// A service port that was seen.
#[derive(Debug, Default)]
struct Seen {
    total: Total,
    /// Its activity: new connections and packets, older ones weighing less.
    busy: f64,
}

/// The counters.
#[derive(Debug, Default)]
pub struct Totals {
    /// How many service ports have counters of their own.
    most: usize,
    seen: HashMap<Key, Seen>,
    busiest: BTreeSet<Key>,
    other: Total,
}

/// The factor of the old weight at every reading.
const PAST: f64 = 0.8;

/// The bonus of the current busiest ones, so that equal ones do not take turns.
const STAYS: f64 = 1.5;

impl Totals {
    /// Counts the `most` busiest service ports each.
    pub fn new(most: usize) -> Self {
        Self {
            most,
            ..Self::default()
        }
    }

    /// Adds the counts since the last reading. Forgets service ports that are no longer `known`.
    pub fn add(&mut self, counted: &HashMap<Key, Total>, known: impl Fn(&Key) -> bool) {
        self.seen.retain(|key, _| known(key));
        for seen in self.seen.values_mut() {
            seen.total.open = 0;
            seen.busy *= PAST;
        }
        self.other.open = 0;
        for (key, total) in counted {
            #[expect(clippy::cast_precision_loss, reason = "counts are far below 2^52")]
            let weight = (total.new + total.packets + total.open + total.refused) as f64;
            self.seen.entry(key.clone()).or_default().busy += weight;
        }
        let mut ranks: Vec<_> = self.seen.iter().collect();
        let rank = |key: &Key, seen: &Seen| {
            seen.busy
                * if self.busiest.contains(key) {
                    STAYS
                } else {
                    1.0
                }
        };
        ranks.sort_by(|(a, of_a), (b, of_b)| {
            rank(b, of_b)
                .total_cmp(&rank(a, of_a))
                .then_with(|| a.cmp(b))
        });
        let busiest = ranks.iter().take(self.most);
        self.busiest = busiest.map(|(key, _)| (*key).clone()).collect();
        for (key, total) in counted {
            if self.busiest.contains(key)
                && let Some(seen) = self.seen.get_mut(key)
            {
                seen.total.add(total);
            } else {
                self.other.add(total);
            }
        }
    }

    /// Returns the busiest service ports with their counters, and the sum of all others.
    pub fn each(&self) -> (Vec<(&Key, Total)>, Total) {
        let of = |key| Some((key, self.seen.get(key)?.total));
        (self.busiest.iter().filter_map(of).collect(), self.other)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(name: &str) -> Key {
        (PortName::parse(name).unwrap(), Proto::Tcp)
    }

    fn counted(of: &[(&str, u64)]) -> HashMap<Key, Total> {
        let one = |&(name, new): &(&str, u64)| {
            let total = Total {
                open: new,
                new,
                ..Total::default()
            };
            (key(name), total)
        };
        of.iter().map(one).collect()
    }

    #[test]
    fn nothing_is_lost_when_the_busiest_change_and_no_counter_goes_down() {
        let mut totals = Totals::new(1);
        let mut sum = 0;
        let mut before = HashMap::new();
        for (a, b) in [(10, 1), (0, 50), (30, 0), (7, 7), (900, 2)] {
            totals.add(&counted(&[("x/a", a), ("x/b", b)]), |_| true);
            sum += a + b;
            let (each, other) = totals.each();
            assert_eq!(each.len(), 1);
            assert_eq!(each[0].1.open + other.open, a + b);
            for (name, new) in [
                (each[0].0.0.to_string(), each[0].1.new),
                ("other".to_owned(), other.new),
            ] {
                assert!(before.insert(name, new).unwrap_or(0) <= new);
            }
        }
        assert_eq!(before.values().sum::<u64>(), sum);
        assert_eq!(totals.each().0[0].0, &key("x/a"));
    }

    #[test]
    fn a_service_that_is_gone_is_forgotten() {
        let mut totals = Totals::new(5);
        totals.add(&counted(&[("x/a", 1), ("x/b", 1)]), |_| true);
        totals.add(&HashMap::new(), |key| *key.0.name == *"b");
        let (each, _) = totals.each();
        assert_eq!(each.len(), 1);
        assert_eq!(
            each[0].1,
            Total {
                new: 1,
                ..Total::default()
            }
        );
    }
}
