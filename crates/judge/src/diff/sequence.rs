//! The comparison of two lists of rules: missing, extra, changed and misplaced ones.

use std::collections::HashMap;

use super::change::{Delta, RuleNumber};

/// One difference between two lists, by position.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Edit {
    /// `want[_]` is missing.
    Missing(usize),
    /// `have[_]` is extra.
    Extra(usize),
    /// `have[_]` is in the place of `want[_]`.
    Differs(usize, usize),
    /// `have[_]` is `want[_]`, but in the wrong order.
    Moved(usize, usize),
}

impl Edit {
    /// Returns the place of the edit, and the items it is about.
    pub(super) fn delta<'t, T>(self, have: &'t [T], want: &'t [T]) -> (RuleNumber, Delta<&'t T>) {
        let place = |number| RuleNumber {
            number,
            moved_to: None,
        };
        match self {
            Self::Missing(at) => (place(at), Delta::missing(&want[at])),
            Self::Extra(at) => (place(at), Delta::extra(&have[at])),
            Self::Differs(at, to) => (place(at), Delta::differs(&have[at], &want[to])),
            Self::Moved(at, to) => {
                let place = RuleNumber {
                    number: at,
                    moved_to: Some(to),
                };
                (place, Delta::differs(&have[at], &want[to]))
            }
        }
    }
}

/// Compares `have` with `want`, where the order counts.
///
/// `key` is equal for equal items; `same` decides.
pub(super) fn ordered<T>(
    have: &[T],
    want: &[T],
    key: impl Fn(&T) -> u64,
    same: impl Fn(&T, &T) -> bool,
) -> Vec<Edit> {
    let front = have
        .iter()
        .zip(want)
        .take_while(|(have, want)| same(have, want))
        .count();
    if front == have.len() && front == want.len() {
        return Vec::new();
    }
    let back = have[front..]
        .iter()
        .rev()
        .zip(want[front..].iter().rev())
        .take_while(|(have, want)| same(have, want))
        .count();
    let have_end = have.len() - back;
    let want_end = want.len() - back;
    let pairs = pair(&have[front..have_end], &want[front..want_end], key, same);
    let kept = longest_rising(&pairs);
    let mut edits = Vec::new();
    let mut in_place = vec![false; pairs.len()];
    for &at in &kept {
        in_place[at] = true;
    }
    let mut used = vec![false; have_end - front];
    for at in pairs.iter().flatten() {
        used[*at] = true;
    }
    // Between two rules in place, missing rules are paired with extra ones.
    let mut have_from = 0;
    let mut lost = Vec::new();
    let mut close = |have_to: usize, lost: &mut Vec<usize>, edits: &mut Vec<Edit>| {
        let mut extra = (have_from..have_to).filter(|&at| !used[at]);
        for want in lost.drain(..) {
            edits.push(match extra.next() {
                Some(have) => Edit::Differs(front + have, front + want),
                None => Edit::Missing(front + want),
            });
        }
        edits.extend(extra.map(|have| Edit::Extra(front + have)));
        have_from = have_to;
    };
    for (want, pair) in pairs.iter().enumerate() {
        match *pair {
            None => lost.push(want),
            Some(have) if in_place[want] => close(have, &mut lost, &mut edits),
            Some(have) => edits.push(Edit::Moved(front + have, front + want)),
        }
    }
    close(have_end - front, &mut lost, &mut edits);
    edits
}

/// Pairs each of `want` with a different equal item in `have`.
fn pair<T>(
    have: &[T],
    want: &[T],
    key: impl Fn(&T) -> u64,
    same: impl Fn(&T, &T) -> bool,
) -> Vec<Option<usize>> {
    let mut by_key: HashMap<u64, Vec<usize>> = HashMap::with_capacity(have.len());
    // In reverse, so that the first is taken first.
    for (at, item) in have.iter().enumerate().rev() {
        by_key.entry(key(item)).or_default().push(at);
    }
    want.iter()
        .map(|item| {
            let found = by_key.get_mut(&key(item))?;
            let at = found.iter().rposition(|&at| same(&have[at], item))?;
            Some(found.remove(at))
        })
        .collect()
}

/// Returns positions in `pairs` whose values rise, as many as possible.
fn longest_rising(pairs: &[Option<usize>]) -> Vec<usize> {
    // ends[n] is the position whose value is the lowest that ends a rising row of n + 1.
    let mut ends: Vec<usize> = Vec::new();
    let mut before = vec![usize::MAX; pairs.len()];
    for (at, value) in pairs.iter().enumerate() {
        let Some(value) = value else { continue };
        let length = ends.partition_point(|&end| pairs[end].is_some_and(|v| v < *value));
        if length > 0 {
            before[at] = ends[length - 1];
        }
        if length == ends.len() {
            ends.push(at);
        } else {
            ends[length] = at;
        }
    }
    let mut row = Vec::with_capacity(ends.len());
    let mut at = ends.last().copied().unwrap_or(usize::MAX);
    while at != usize::MAX {
        row.push(at);
        at = before[at];
    }
    row.reverse();
    row
}

/// Compares `have` with `want`, where items of different groups may be in any order.
///
/// Missing items are paired with extra ones of the same group; the order does not count.
pub(super) fn grouped<'t, T>(
    have: &'t [T],
    want: &'t [T],
    key: impl Fn(&T) -> u64,
    same: impl Fn(&T, &T) -> bool,
    group: impl Fn(&'t T) -> &'t str,
) -> Vec<Edit> {
    let pairs = pair(have, want, key, same);
    let mut used = vec![false; have.len()];
    for at in pairs.iter().flatten() {
        used[*at] = true;
    }
    let mut extra: HashMap<&str, Vec<usize>> = HashMap::new();
    for at in (0..have.len()).rev().filter(|&at| !used[at]) {
        extra.entry(group(&have[at])).or_default().push(at);
    }
    let mut edits = Vec::new();
    for (want_at, _) in pairs.iter().enumerate().filter(|(_, p)| p.is_none()) {
        let other = extra.get_mut(group(&want[want_at])).and_then(Vec::pop);
        edits.push(match other {
            Some(have_at) => Edit::Differs(have_at, want_at),
            None => Edit::Missing(want_at),
        });
    }
    let mut rest: Vec<_> = extra.into_values().flatten().collect();
    rest.sort_unstable();
    edits.extend(rest.into_iter().map(Edit::Extra));
    edits
}

#[cfg(test)]
mod tests {
    use super::*;

    fn edits(have: &str, want: &str) -> Vec<Edit> {
        let have: Vec<char> = have.chars().collect();
        let want: Vec<char> = want.chars().collect();
        ordered(&have, &want, |&c| u64::from(c), |a, b| a == b)
    }

    #[test]
    fn each_kind_of_difference_is_told_apart() {
        assert_eq!(edits("abc", "abc"), []);
        assert_eq!(edits("ac", "abc"), [Edit::Missing(1)]);
        assert_eq!(edits("abxc", "abc"), [Edit::Extra(2)]);
        assert_eq!(edits("axc", "abc"), [Edit::Differs(1, 1)]);
        assert_eq!(edits("bcda", "abcd"), [Edit::Moved(3, 0)]);
        assert_eq!(edits("", "ab"), [Edit::Missing(0), Edit::Missing(1)]);
        assert_eq!(edits("ab", ""), [Edit::Extra(0), Edit::Extra(1)]);
        assert_eq!(edits("aab", "ab"), [Edit::Extra(1)]);
        assert_eq!(edits("ab", "aab"), [Edit::Missing(1)]);
        assert_eq!(edits("xbca", "abc"), [Edit::Moved(3, 0), Edit::Extra(0)]);
        assert_eq!(
            edits("xydbca", "xyabcd"),
            [Edit::Moved(5, 2), Edit::Moved(2, 5)]
        );
    }

    #[test]
    fn groups_may_stand_in_any_order() {
        let compare = |have: &[&'static str], want: &[&'static str]| {
            let key = |item: &&str| item.bytes().fold(7u64, |k, b| k * 31 + u64::from(b));
            let (have, want) = (have.to_vec(), want.to_vec());
            grouped(&have, &want, key, |a, b| a == b, |item| &item[..1])
        };
        assert_eq!(compare(&["b1", "a1"], &["a1", "b1"]), []);
        assert_eq!(compare(&["b1", "a2"], &["a1", "b1"]), [Edit::Differs(1, 0)]);
        assert_eq!(
            compare(&["c1"], &["a1"]),
            [Edit::Missing(0), Edit::Extra(0)]
        );
    }
}
