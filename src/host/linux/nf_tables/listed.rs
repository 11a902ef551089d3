//! Whether chains that were listed without rules have none.
//!
//! While the kernel replaces a table by one with the same name, it lists each of its chains without rules, and an empty list
//! has no generation of the ruleset. So such chains are listed again, and so is one that has rules: before, until the kernel
//! lists them, and behind.

use std::thread;
use std::time::Duration;

/// Number of attempts to list the rules of the chain that has some, and the pause behind each.
const WAITS: u32 = 100;
const PAUSE: Duration = Duration::from_millis(1);

/// Chains whose rules were listed, by table.
#[derive(Debug, Default)]
pub(super) struct Listed(Vec<Chains>);

#[derive(Debug)]
struct Chains {
    /// `NFPROTO_*`.
    family: u8,
    table: String,
    empty: Vec<String>,
    /// The chain with the fewest rules, and their number.
    shortest: Option<(usize, String)>,
}

impl Listed {
    /// Notes how many rules were listed of a chain.
    pub(super) fn note(&mut self, family: u8, table: &str, chain: &str, rules: usize) {
        let chains = self.of(family, table);
        if rules == 0 {
            chains.empty.push(chain.to_owned());
        } else if chains.is_shorter(rules) {
            chains.shortest = Some((rules, chain.to_owned()));
        }
    }

    /// Adds what another reader noted.
    pub(super) fn join(&mut self, other: Self) {
        for mut more in other.0 {
            let chains = self.of(more.family, &more.table);
            chains.empty.append(&mut more.empty);
            if more
                .shortest
                .as_ref()
                .is_some_and(|(rules, _)| chains.is_shorter(*rules))
            {
                chains.shortest = more.shortest;
            }
        }
    }

    fn of(&mut self, family: u8, table: &str) -> &mut Chains {
        let is_it = |of: &Chains| of.family == family && of.table == table;
        let at = self.0.iter().position(is_it).unwrap_or_else(|| {
            self.0.push(Chains {
                family,
                table: table.to_owned(),
                empty: Vec::new(),
                shortest: None,
            });
            self.0.len() - 1
        });
        &mut self.0[at]
    }

    /// Returns whether the chains without rules have none, and no table was replaced meanwhile. `has_rules` asks the kernel
    /// about a chain of a table. A table none of whose chains has rules stays in doubt, and counts as whole.
    pub(super) fn is_whole<E>(
        &self,
        mut has_rules: impl FnMut(u8, &str, &str) -> Result<bool, E>,
    ) -> Result<bool, E> {
        for chains in self.0.iter().filter(|chains| !chains.empty.is_empty()) {
            let Some((_, full)) = &chains.shortest else {
                continue;
            };
            let mut has_rules = |chain: &str| has_rules(chains.family, &chains.table, chain);
            let mut waits = 0;
            while !has_rules(full)? {
                waits += 1;
                if waits == WAITS {
                    return Ok(false);
                }
                thread::sleep(PAUSE);
            }
            for chain in &chains.empty {
                if has_rules(chain)? {
                    return Ok(false);
                }
            }
            if !has_rules(full)? {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

impl Chains {
    fn is_shorter(&self, rules: usize) -> bool {
        self.shortest
            .as_ref()
            .is_none_or(|(other, _)| rules < *other)
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use super::*;

    /// Returns what the chains `a`, which has rules, and `b`, of which none were listed, come to, with the kernel's answers.
    fn judged(answers: &[(&str, bool)]) -> bool {
        let mut listed = Listed::default();
        listed.note(2, "t", "long", 9);
        listed.note(2, "t", "b", 0);
        let mut other = Listed::default();
        other.note(2, "t", "a", 1);
        listed.join(other);
        let mut answers = answers.iter();
        let is_whole = listed.is_whole(|family, table, chain| {
            let (of, has_rules) = answers.next().unwrap();
            assert_eq!((family, table, chain), (2, "t", *of));
            Ok::<_, Infallible>(*has_rules)
        });
        assert_eq!(answers.next(), None);
        is_whole.unwrap()
    }

    #[test]
    fn an_empty_chain_is_asked_about_when_the_kernel_lists_rules_again() {
        assert!(judged(&[("a", true), ("b", false), ("a", true)]));
        assert!(judged(&[
            ("a", false),
            ("a", true),
            ("b", false),
            ("a", true)
        ]));
        assert!(!judged(&[("a", true), ("b", true)]));
        assert!(!judged(&[("a", true), ("b", false), ("a", false)]));
        assert!(!judged(&[("a", false); WAITS as usize]));
    }
}
