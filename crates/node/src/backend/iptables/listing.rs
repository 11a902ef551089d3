//! One chain of a saved table to a [`Chain`].

use super::model::Chain;
use super::parse;
use crate::evidence::{Gap, Item};

/// Reads the one chain of a saved table; `item` names it in errors.
pub fn chain(item: Item, saved: &str) -> Result<Chain<'_>, Gap> {
    let mut rules = parse::ruleset(item, saved)?;
    let chain = rules
        .tables
        .first_mut()
        .and_then(|table| table.chains.pop());
    chain.ok_or_else(|| Gap::Failed(item, "a listing without a chain".to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_one_chain_is_read_with_its_counters() {
        let saved = "*filter\n:INPUT ACCEPT [5:300]\n[3:180] -A INPUT -j DROP\nCOMMIT\n";
        let chain = chain(Item::Iptables4, saved).unwrap();
        assert_eq!(chain.rules.len(), 1);
        assert_eq!(chain.rules[0].counters.map(|c| c.packets), Some(3));
    }
}
