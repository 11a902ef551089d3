//! Lists of rules with differences applied.

use crate::diff::{Delta, RuleNumber};

/// Returns the rules `have` with the edits applied: each with its place and the rule itself.
pub(super) fn edited<'t, T: Clone + 't>(
    have: &[T],
    edits: impl IntoIterator<Item = (RuleNumber, &'t Delta<T>)>,
) -> Vec<T> {
    let mut kept: Vec<Option<T>> = have.iter().cloned().map(Some).collect();
    let mut added: Vec<(usize, T)> = Vec::new();
    for (at, delta) in edits {
        let place = kept.get_mut(at.number);
        match (delta, at.moved_to, place) {
            (Delta::Missing(want), ..) => added.push((at.number, T::clone(want))),
            (Delta::Extra(_), _, Some(rule)) => *rule = None,
            (Delta::Differs { want, .. }, Some(to), Some(rule)) => {
                *rule = None;
                added.push((to, T::clone(want)));
            }
            (Delta::Differs { want, .. }, None, Some(rule)) => *rule = Some(T::clone(want)),
            (Delta::Extra(_) | Delta::Differs { .. }, _, None) => {}
        }
    }
    let mut rules: Vec<T> = kept.into_iter().flatten().collect();
    added.sort_by_key(|(at, _)| *at);
    for (at, rule) in added {
        rules.insert(at.min(rules.len()), rule);
    }
    rules
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_are_removed_replaced_moved_and_added() {
        let place = |number, moved_to| RuleNumber { number, moved_to };
        let differs = |have, want| Delta::Differs {
            have: Box::new(have),
            want: Box::new(want),
        };
        let edits = [
            (place(0, None), Delta::Extra(Box::new('a'))),
            (place(1, None), differs('b', 'B')),
            (place(2, Some(0)), differs('c', 'c')),
            (place(9, None), Delta::Missing(Box::new('e'))),
        ];
        let edits = edits.iter().map(|(at, delta)| (*at, delta));
        assert_eq!(edited(&['a', 'b', 'c', 'd'], edits), ['c', 'B', 'd', 'e']);
    }
}
