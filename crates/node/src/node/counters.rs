//! Counters of the kernel, per processor.

use std::collections::BTreeMap;

use crate::evidence::{Gap, Item};

/// Columns of a file in `/proc/net/stat`: the values of each processor, by column name.
#[derive(Clone, Debug)]
pub struct Counters {
    item: Item,
    columns: BTreeMap<String, Vec<u64>>,
}

impl Counters {
    /// Returns the counter `name`, summed over all processors: its value since boot.
    ///
    /// # Errors
    ///
    /// [`Gap::NotApplicable`] if the kernel does not have it.
    pub fn sum(&self, name: &str) -> Result<u64, Gap> {
        Ok(self
            .column(name)?
            .iter()
            .fold(0, |sum, value| sum.saturating_add(*value)))
    }

    /// Returns the column `name` of the last processor: its value now, in a column that repeats one value.
    ///
    /// # Errors
    ///
    /// [`Gap::NotApplicable`] if the kernel does not have it.
    pub fn last(&self, name: &str) -> Result<u64, Gap> {
        Ok(self.column(name)?.last().copied().unwrap_or(0))
    }

    fn column(&self, name: &str) -> Result<&[u64], Gap> {
        let missing = || Gap::NotApplicable(format!("{} has no counter {name}", self.item));
        self.columns
            .get(name)
            .map(Vec::as_slice)
            .ok_or_else(missing)
    }
}

/// Parses a file of `/proc/net/stat`: a line of names, then a line of hexadecimal numbers per processor.
pub(crate) fn parse(item: Item, text: &str) -> Result<Counters, Gap> {
    let bad = |why: String| Gap::Failed(item, why);
    let mut lines = (1..).zip(text.lines());
    let head = lines.next().map_or("", |(_, line)| line);
    let mut columns: Vec<(&str, Vec<u64>)> = head
        .split_ascii_whitespace()
        .map(|name| (name, Vec::new()))
        .collect();
    for (number, line) in lines {
        let mut words = line.split_ascii_whitespace();
        for (name, values) in &mut columns {
            let word = words
                .next()
                .ok_or_else(|| bad(format!("line {number} has no value of {name}")))?;
            let value = u64::from_str_radix(word, 16).map_err(|_| {
                bad(format!(
                    "line {number}: {word:?} is not a hexadecimal number"
                ))
            })?;
            values.push(value);
        }
    }
    if columns.iter().all(|(_, values)| values.is_empty()) {
        return Err(bad("it has no counters".to_owned()));
    }
    let named = columns.into_iter();
    Ok(Counters {
        item,
        columns: named.map(|(name, all)| (name.to_owned(), all)).collect(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_are_summed_over_processors() {
        let parse = |text| parse(Item::ConntrackStat, text);
        let text = "entries  found insert_failed drop\n0000000a 00000000 0000000f 00000001\n0000000a 00000000 00000001 00000000\n";
        let stat = parse(text).unwrap();
        assert_eq!(stat.sum("insert_failed"), Ok(16));
        assert_eq!(stat.sum("drop"), Ok(1));
        assert_eq!(stat.last("entries"), Ok(10));
        let missing = "node/nf_conntrack-stat.txt has no counter none".to_owned();
        assert_eq!(stat.sum("none"), Err(Gap::NotApplicable(missing)));
        for text in ["", "a b\n", "a b\n1 x\n", "a b\n1\n"] {
            assert!(parse(text).is_err(), "{text:?}");
        }
    }
}
