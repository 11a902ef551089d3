//! Names of nodes, shortened.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde::{Serialize, Serializer};

use crate::render::Style;

/// The names of some nodes.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub(crate) struct Nodes(BTreeSet<Arc<str>>);

/// The longest text of names in a table, in columns.
const ROOM: usize = 40;

impl Nodes {
    /// Adds a node.
    pub(crate) fn add(&mut self, node: &Arc<str>) {
        self.0.insert(Arc::clone(node));
    }

    /// Returns whether `node` is one of the nodes.
    pub(crate) fn contains(&self, node: &str) -> bool {
        self.0.contains(node)
    }

    /// Returns the number of nodes.
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns whether there is no node.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the first name.
    pub(crate) fn first(&self) -> Option<&Arc<str>> {
        self.0.first()
    }

    /// Returns the names that are not in any of `others`.
    #[must_use]
    pub(crate) fn without<'n>(&self, others: impl Iterator<Item = &'n Self>) -> Self {
        let mut rest = self.0.clone();
        for other in others {
            for name in &other.0 {
                rest.remove(name);
            }
        }
        Self(rest)
    }

    /// Returns all names: `w[1-3,7], x`.
    pub(crate) fn all(&self) -> String {
        self.within(usize::MAX)
    }

    /// Returns the first names and the number of the others; all with `-o wide` or `-v`.
    pub(crate) fn in_short(&self, style: Style) -> String {
        if style.wide || style.verbose > 0 {
            self.all()
        } else {
            self.within(ROOM)
        }
    }

    /// Returns the first names, about `room` columns long, and the number of the others.
    fn within(&self, room: usize) -> String {
        let (mut text, mut shown) = (String::new(), 0);
        for family in self.families() {
            if text.len() >= room {
                break;
            }
            if shown > 0 {
                text.push_str(", ");
            }
            text.push_str(family.before);
            let brackets = family.runs.len() > 1 || family.runs.iter().any(|(_, count)| *count > 1);
            let (open, close) = if brackets { ("[", "]") } else { ("", "") };
            text.push_str(open);
            for (at, (run, count)) in family.runs.iter().enumerate() {
                if at > 0 && text.len() + run.len() > room {
                    break;
                }
                if at > 0 {
                    text.push(',');
                }
                text.push_str(run);
                shown += count;
            }
            text.push_str(close);
            text.push_str(family.after);
        }
        match self.len() - shown {
            0 => text,
            rest => format!("{text} and {rest} more"),
        }
    }

    /// Returns the names, joined where only their last number differs.
    fn families(&self) -> Vec<Family<'_>> {
        let mut numbers: BTreeMap<(&str, usize, &str), Vec<u64>> = BTreeMap::new();
        let mut families = Vec::new();
        for name in &self.0 {
            match split(name) {
                Some((before, digits, number, after)) => {
                    let family = numbers.entry((before, digits, after)).or_default();
                    family.push(number);
                }
                None => families.push(Family {
                    before: name,
                    runs: vec![(String::new(), 1)],
                    after: "",
                }),
            }
        }
        for ((before, digits, after), mut numbers) in numbers {
            numbers.sort_unstable();
            let number = |number: u64| format!("{number:0digits$}");
            let runs = numbers.chunk_by(|a, b| a + 1 == *b);
            let runs = runs.map(|run| match run {
                [first, last] => (format!("{},{}", number(*first), number(*last)), 2),
                [first, .., last] => (format!("{}-{}", number(*first), number(*last)), run.len()),
                only => (only.iter().copied().map(number).collect(), 1),
            });
            families.push(Family {
                before,
                runs: runs.collect(),
                after,
            });
        }
        families.sort_by(|a, b| (a.before, &a.runs).cmp(&(b.before, &b.runs)));
        families
    }
}

/// Names that differ in one number.
struct Family<'n> {
    before: &'n str,
    /// Runs of numbers, each with its length.
    runs: Vec<(String, usize)>,
    after: &'n str,
}

/// Splits a name at the last number of its first label: before, the number of digits if it has leading zeros, the number,
/// after.
fn split(name: &str) -> Option<(&str, usize, u64, &str)> {
    let label = name.split('.').next().unwrap_or(name);
    let is_digit = |c: char| c.is_ascii_digit();
    let end = label.rfind(is_digit)? + 1;
    let begin = label[..end].trim_end_matches(is_digit).len();
    let digits = &label[begin..end];
    // Numbers with leading zeros have one width; others have none, so that 9 and 10 are neighbours.
    let width = if digits.starts_with('0') && digits.len() > 1 || digits.len() > 18 {
        digits.len()
    } else {
        0
    };
    Some((&name[..begin], width, digits.parse().ok()?, &name[end..]))
}

impl Serialize for Nodes {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.0.iter().map(|name| &**name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nodes(names: &[&str]) -> Nodes {
        Nodes(names.iter().map(|name| Arc::from(*name)).collect())
    }

    #[test]
    fn neighbours_are_joined() {
        for (names, text) in [
            (&["w1", "w2", "w3"][..], "w[1-3]"),
            (&["w9", "w10", "w11", "x"], "w[9-11], x"),
            (&["w1", "w2", "w7"], "w[1,2,7]"),
            (&["w01", "w02", "w03", "w3"], "w[01-03], w3"),
            (&["control", "w5"], "control, w5"),
            (
                &["a-1.example.org", "a-2.example.org", "a-3.example.com"],
                "a-[1,2].example.org, a-3.example.com",
            ),
            (
                &["ip-10-0-1-5.ec2.internal", "ip-10-0-1-6.ec2.internal"],
                "ip-10-0-1-[5,6].ec2.internal",
            ),
            (
                &["n123456789012345678901234567890"],
                "n123456789012345678901234567890",
            ),
            (&[], ""),
        ] {
            assert_eq!(nodes(names).all(), text);
        }
    }

    #[test]
    fn many_names_are_counted() {
        let style = Style {
            width: 80,
            color: false,
            ascii: false,
            wide: false,
            verbose: 0,
            program: "kpx",
        };
        let names: Vec<String> = (0..30)
            .map(|at| format!("node-{}-of-a-rack", at * 3))
            .collect();
        let some: Vec<&str> = names.iter().map(String::as_str).collect();
        let text = nodes(&[
            "alpha-of-the-first-zone",
            "beta-of-the-second-zone",
            "gamma",
        ])
        .in_short(style);
        assert_eq!(
            text,
            "alpha-of-the-first-zone, beta-of-the-second-zone and 1 more"
        );
        let text = nodes(&some).in_short(style);
        assert_eq!(
            text,
            "node-[0,3,6,9,12,15,18,21,24,27,30,33,36]-of-a-rack and 17 more"
        );
    }
}
