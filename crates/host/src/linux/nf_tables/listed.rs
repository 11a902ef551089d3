//! Whether chains that were listed without rules really have none.
//!
//! While the kernel replaces a table by one with the same name, it lists each of its chains without rules, and an empty list
//! has no generation of the ruleset. So such chains are listed again, and a chain that has rules is listed before them,
//! until the kernel lists its rules, and after them. That chain is one with listed rules, or a base chain whose own entry,
//! of the new table, counts rules.

use std::thread;
use std::time::Duration;

use super::{Chain, Header, family_number};

/// Number of attempts to list the rules of a chain that has some, and the pause after each.
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
    pub(super) fn note(&mut self, header: &Header, rules: usize) {
        if rules == 0 {
            let chains = self.of_chain(&header.chain);
            chains.empty.push(header.chain.name.clone());
            self.note_base(header);
        } else {
            self.note_rules(&header.chain, rules);
        }
    }

    /// Notes how many rules a base chain has.
    pub(super) fn note_base(&mut self, header: &Header) {
        if header.chain.base.is_some() && header.uses > 0 {
            let rules = usize::try_from(header.uses).unwrap_or(usize::MAX);
            self.note_rules(&header.chain, rules);
        }
    }

    fn note_rules(&mut self, chain: &Chain, rules: usize) {
        let chains = self.of_chain(chain);
        if chains.is_shorter(rules) {
            chains.shortest = Some((rules, chain.name.clone()));
        }
    }

    fn of_chain(&mut self, chain: &Chain) -> &mut Chains {
        self.of(family_number(chain.family), &chain.table)
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
        let is_it = |chains: &Chains| chains.family == family && chains.table == table;
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

    use super::super::Base;
    use super::*;

    fn header(name: &str, base: Option<Base>, uses: u32) -> Header {
        Header {
            uses,
            ..Header::new(Chain {
                family: "ip",
                table: "t".to_owned(),
                name: name.to_owned(),
                base,
            })
        }
    }

    /// Returns the result for `listed`, with the kernel's answers.
    fn judged(listed: &Listed, answers: &[(&str, bool)]) -> bool {
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
        let mut listed = Listed::default();
        listed.note(&header("long", None, 9), 9);
        listed.note(&header("b", None, 1), 0);
        let mut other = Listed::default();
        other.note(&header("a", None, 2), 1);
        listed.join(other);
        let judged = |answers: &[_]| judged(&listed, answers);
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

    #[test]
    fn a_base_chain_tells_how_many_rules_it_has() {
        let base = Base {
            kind: "nat".to_owned(),
            hook: 0,
            priority: -100,
        };
        // Of its one rule, none is listed.
        let mut listed = Listed::default();
        listed.note(&header("a", Some(base.clone()), 1), 0);
        assert!(!judged(&listed, &[("a", true), ("a", true)]));
        let mut listed = Listed::default();
        listed.note(&header("b", None, 1), 0);
        listed.note_base(&header("a", Some(base.clone()), 1));
        assert!(judged(&listed, &[("a", true), ("b", false), ("a", true)]));
        // None has rules.
        let mut listed = Listed::default();
        listed.note(&header("b", None, 1), 0);
        listed.note_base(&header("a", Some(base), 0));
        assert!(judged(&listed, &[]));
    }
}
