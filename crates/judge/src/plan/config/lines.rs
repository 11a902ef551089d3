//! Difference of two texts line by line, in the format of `diff -u`.

use std::fmt::Write as _;

/// Number of unchanged lines shown around a change.
const AROUND: usize = 2;

/// Whether a line is kept, removed or added.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Fate {
    Stays,
    Goes,
    Comes,
}

/// Returns the difference between `old` and `new`, both named `name`; empty if they are equal.
pub(super) fn diff(name: &str, old: &str, new: &str) -> String {
    let script = script(
        &old.split_inclusive('\n').collect::<Vec<_>>(),
        &new.split_inclusive('\n').collect::<Vec<_>>(),
    );
    let changed = |(fate, _): &(Fate, &str)| *fate != Fate::Stays;
    let near = |at: usize| {
        let from = at.saturating_sub(AROUND);
        let to = (at + AROUND + 1).min(script.len());
        script[from..to].iter().any(changed)
    };
    let mut text = String::new();
    if script.iter().any(changed) {
        writeln!(text, "--- {name}\n+++ {name}").ok();
    }
    let (mut before, mut after) = (1, 1);
    let mut shown = false;
    for (at, (fate, line)) in script.iter().enumerate() {
        if near(at) {
            if !shown {
                writeln!(text, "@@ -{before} +{after} @@").ok();
            }
            let mark = match fate {
                Fate::Stays => ' ',
                Fate::Goes => '-',
                Fate::Comes => '+',
            };
            writeln!(text, "{mark}{}", line.trim_end_matches('\n')).ok();
            if !line.ends_with('\n') {
                text.push_str("\\ No newline at end of file\n");
            }
        }
        shown = near(at);
        before += usize::from(*fate != Fate::Comes);
        after += usize::from(*fate != Fate::Goes);
    }
    text
}

/// Returns all lines of both texts with their fate, based on the longest common subsequence.
fn script<'t>(old: &[&'t str], new: &[&'t str]) -> Vec<(Fate, &'t str)> {
    let width = new.len() + 1;
    let mut common = vec![0_u32; (old.len() + 1) * width];
    for (i, a) in old.iter().enumerate().rev() {
        for (j, b) in new.iter().enumerate().rev() {
            common[i * width + j] = if a == b {
                common[(i + 1) * width + j + 1] + 1
            } else {
                common[(i + 1) * width + j].max(common[i * width + j + 1])
            };
        }
    }
    let (mut i, mut j) = (0, 0);
    let mut script = Vec::new();
    loop {
        match (old.get(i), new.get(j)) {
            (Some(a), Some(b)) if a == b => {
                script.push((Fate::Stays, *a));
                i += 1;
                j += 1;
            }
            (Some(a), b)
                if b.is_none() || common[(i + 1) * width + j] >= common[i * width + j + 1] =>
            {
                script.push((Fate::Goes, *a));
                i += 1;
            }
            (_, Some(b)) => {
                script.push((Fate::Comes, *b));
                j += 1;
            }
            (_, None) => return script,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changed_lines_are_shown_with_context() {
        let old = "a\nb\nc\nmode: \"\"\nd\ne\nf\ng\nh\nz";
        let new = "a\nb\nc\nmode: ipvs\nd\ne\nf\ng\nh\nz\nipvs:\n  strictARP: true\n";
        assert_eq!(
            diff("x", old, new),
            "--- x\n+++ x\n@@ -2 +2 @@\n b\n c\n-mode: \"\"\n+mode: ipvs\n d\n e\n@@ -8 +8 @@\n g\n h\n-z\n\
             \\ No newline at end of file\n+z\n+ipvs:\n+  strictARP: true\n"
        );
        assert_eq!(diff("x", old, old), "");
    }
}
