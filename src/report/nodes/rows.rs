//! Rows of several nodes: the equal ones are counted, the others kept with their nodes.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::Serialize;

use super::names::Nodes;

/// Rows of several nodes, by name. A value that most nodes have is kept once, without their names: the memory grows with the
/// differences.
#[derive(Debug, Default)]
pub(crate) struct Rows {
    nodes: Nodes,
    /// The nodes of which parts are unknown: a row that they do not have is unknown.
    partial: Nodes,
    by_name: BTreeMap<String, Row>,
}

/// The values of one row.
#[derive(Debug, Default)]
struct Row {
    /// The value of all nodes that `others` lacks; `None` if they do not have the row.
    common: Option<String>,
    others: BTreeMap<Option<String>, Nodes>,
}

/// A row that differs between nodes.
#[derive(Clone, Debug, Eq, PartialEq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct Differing {
    /// The row's name.
    pub row: String,
    /// Its values, the rarest first.
    pub values: Vec<ValueOf>,
}

/// A value of a row.
#[derive(Clone, Debug, Eq, PartialEq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct ValueOf {
    /// The value; `null` if these nodes do not have the row, `?` if it is unknown.
    pub value: Option<String>,
    /// The nodes.
    pub nodes: Nodes,
}

impl Rows {
    /// Adds the rows of a node; `partial` if more rows may exist.
    pub(crate) fn add(
        &mut self,
        node: &Arc<str>,
        mut rows: BTreeMap<String, String>,
        partial: bool,
    ) {
        let before = self.nodes.len();
        self.nodes.add(node);
        let unknown = || partial.then(|| "?".to_owned());
        for (name, row) in &mut self.by_name {
            row.add(node, rows.remove(name).or_else(unknown), &self.nodes);
        }
        for (name, value) in rows {
            let mut row = Row::default();
            if before == 0 {
                row.common = Some(value);
            } else {
                if !self.partial.is_empty() {
                    let unknown = Some("?".to_owned());
                    row.others.insert(unknown, self.partial.clone());
                }
                row.add(node, Some(value), &self.nodes);
            }
            self.by_name.insert(name, row);
        }
        if partial {
            self.partial.add(node);
        }
    }

    /// Returns the number of rows that are equal on all nodes.
    pub(crate) fn equal(&self) -> usize {
        self.by_name
            .values()
            .filter(|row| row.others.is_empty())
            .count()
    }

    /// Returns the rows that differ: those of the fewest nodes first.
    pub(crate) fn differing(&self) -> Vec<Differing> {
        let differing = self
            .by_name
            .iter()
            .filter(|(_, row)| !row.others.is_empty());
        let mut all: Vec<_> = differing
            .map(|(name, row)| {
                let common = ValueOf {
                    value: row.common.clone(),
                    nodes: self.nodes.without(row.others.values()),
                };
                let others = row.others.iter().map(|(value, nodes)| ValueOf {
                    value: value.clone(),
                    nodes: nodes.clone(),
                });
                let mut values: Vec<_> = others.chain([common]).collect();
                values.retain(|value| !value.nodes.is_empty());
                values.sort_by(|a, b| (a.nodes.len(), &a.value).cmp(&(b.nodes.len(), &b.value)));
                Differing {
                    row: name.clone(),
                    values,
                }
            })
            .collect();
        all.sort_by(|a, b| {
            let odd = |differing: &Differing| {
                let rare = differing.values.iter().rev().skip(1);
                rare.map(|value| value.nodes.len()).sum::<usize>()
            };
            (odd(a), &a.row).cmp(&(odd(b), &b.row))
        });
        all
    }
}

impl Row {
    fn add(&mut self, node: &Arc<str>, value: Option<String>, all: &Nodes) {
        if value == self.common {
            return;
        }
        let nodes = self.others.entry(value.clone()).or_default();
        nodes.add(node);
        if nodes.len() * 2 > all.len() {
            // Most nodes have this value now.
            let rest = all.without(self.others.values());
            self.others.remove(&value);
            let before = std::mem::replace(&mut self.common, value);
            if !rest.is_empty() {
                self.others.insert(before, rest);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn add(rows: &mut Rows, node: &str, values: &[(&str, &str)]) {
        let values = values
            .iter()
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        rows.add(&Arc::from(node), values.collect(), node.starts_with('p'));
    }

    fn text(rows: &Rows) -> Vec<String> {
        let value = |entry: &ValueOf| {
            let value = entry.value.as_deref().unwrap_or("none");
            format!("{value} on {}", entry.nodes.all())
        };
        let row = |differing: &Differing| {
            let values: Vec<_> = differing.values.iter().map(value).collect();
            format!("{}: {}", differing.row, values.join("; "))
        };
        rows.differing().iter().map(row).collect()
    }

    #[test]
    fn the_rarest_value_comes_first_whatever_the_order_of_nodes() {
        let odd: &[(&str, &str)] = &[("a", "2"), ("c", "1")];
        let usual: &[(&str, &str)] = &[("a", "1"), ("b", "1"), ("c", "1")];
        for order in [[0, 1, 2, 3], [3, 2, 1, 0], [1, 0, 3, 2], [2, 3, 0, 1]] {
            let mut rows = Rows::default();
            for at in order {
                add(
                    &mut rows,
                    &format!("n{at}"),
                    if at == 2 { odd } else { usual },
                );
            }
            assert_eq!(
                text(&rows),
                ["a: 2 on n2; 1 on n[0,1,3]", "b: none on n2; 1 on n[0,1,3]"],
                "{order:?}"
            );
            assert_eq!(rows.equal(), 1);
            // The nodes of the usual value are not listed.
            let kept = rows.by_name.values().flat_map(|row| row.others.values());
            assert!(kept.map(Nodes::len).sum::<usize>() <= 2);
        }
    }

    #[test]
    fn a_row_that_a_later_node_adds_is_missing_on_the_others() {
        let mut rows = Rows::default();
        add(&mut rows, "n1", &[]);
        add(&mut rows, "n2", &[("a", "1")]);
        add(&mut rows, "n3", &[]);
        assert_eq!(text(&rows), ["a: 1 on n2; none on n[1,3]"]);
    }

    #[test]
    fn a_row_that_a_partly_known_node_does_not_have_is_unknown() {
        let mut rows = Rows::default();
        add(&mut rows, "p1", &[("a", "1")]);
        add(&mut rows, "n2", &[("a", "1"), ("b", "1")]);
        add(&mut rows, "p3", &[("b", "1")]);
        assert_eq!(
            text(&rows),
            ["a: ? on p3; 1 on n2, p1", "b: ? on p1; 1 on n2, p3"]
        );
    }
}
