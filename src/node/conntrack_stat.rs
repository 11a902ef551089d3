//! Counters of connection tracking.

use std::collections::BTreeMap;

use crate::evidence::{Gap, Item};

/// Counters since boot, summed over all processors, by column name.
#[derive(Clone, Debug, Default)]
pub struct ConntrackStat(BTreeMap<String, u64>);

impl ConntrackStat {
    /// Returns the counter `name`; 0 if the kernel does not have it.
    pub fn sum(&self, name: &str) -> u64 {
        self.0.get(name).copied().unwrap_or(0)
    }
}

/// Parses `/proc/net/stat/nf_conntrack`: a line of names, then a line of hexadecimal numbers per processor.
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
    fn counters_are_summed_over_processors() {
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
