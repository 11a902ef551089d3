//! Counters of connection tracking.

use std::collections::BTreeMap;

use crate::evidence::{Gap, Item};

/// Counters since boot, each the sum over all processors, by the name of its column.
#[derive(Clone, Debug, Default)]
pub struct ConntrackStat(BTreeMap<String, u64>);

impl ConntrackStat {
    /// Returns the counter called `name`; 0 where the kernel has none.
    pub fn sum(&self, name: &str) -> u64 {
        self.0.get(name).copied().unwrap_or(0)
    }
}

/// Reads `/proc/net/stat/nf_conntrack`: a line of names, then one line of hexadecimal numbers for each processor.
pub fn parse(text: &str) -> Result<ConntrackStat, Gap> {
    let bad = |why: String| Gap::Failed(Item::ConntrackStat, why);
    let mut lines = text.lines();
    let names: Vec<_> = lines
        .next()
        .ok_or_else(|| bad("it is empty".to_owned()))?
        .split_ascii_whitespace()
        .collect();
    let mut sums = BTreeMap::new();
    for (number, line) in (2..).zip(lines) {
        for (name, word) in names.iter().zip(line.split_ascii_whitespace()) {
            let count = u64::from_str_radix(word, 16).map_err(|_| {
                bad(format!(
                    "line {number}: {word:?} is not a hexadecimal number"
                ))
            })?;
            *sums.entry((*name).to_owned()).or_insert(0) += count;
        }
    }
    Ok(ConntrackStat(sums))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processors_add_up() {
        let text = "entries  found insert_failed drop\n0000000a 00000000 0000000f 00000001\n0000000a 00000000 00000001 00000000\n";
        let stat = parse(text).unwrap();
        assert_eq!(
            (
                stat.sum("insert_failed"),
                stat.sum("drop"),
                stat.sum("none")
            ),
            (16, 1, 0)
        );
        assert!(parse("a b\n1 x\n").is_err());
    }
}
