//! What an operator chose not to be told, for a reason and for a time.

use serde::Deserialize;
use serde_yaml::Spanned;
use thiserror::Error;

use super::{Check, Finding, all};
use crate::evidence::Time;

/// A file of what to ignore. It hides what it names and nothing else: what a hidden finding would have explained is told.
#[derive(Clone, Debug, Default)]
pub struct Ignores {
    /// The entries, in the order of the file.
    pub entries: Vec<Entry>,
}

/// One entry of the file.
#[derive(Clone, Debug)]
pub struct Entry {
    /// The check whose findings it hides.
    pub check: &'static Check,
    /// Which subjects, `*` standing for any text; all without it.
    pub subject: Option<String>,
    /// Why.
    pub reason: String,
    /// The last day it counts, as written.
    pub expires: String,
    /// When it stops to count: the end of that day, in UTC.
    pub until: Time,
    /// Where it begins.
    pub line: u64,
}

/// A file that cannot be used.
#[derive(Debug, Error)]
#[error("line {line}: {what}")]
pub struct Malformed {
    /// Where.
    pub line: u64,
    /// What is wrong there.
    pub what: String,
}

/// What an entry looks like, for those whose file cannot be used.
pub const EXAMPLE: &str = "each entry looks like `- {check: DP01, subject: \"mode *\", reason: we move in spring, expires: 2027-03-31}`; \
                           only subject may be left out";

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Written {
    check: Option<Spanned<String>>,
    subject: Option<String>,
    reason: Option<Spanned<String>>,
    expires: Option<Spanned<String>>,
}

impl Ignores {
    /// Reads the file's text.
    pub fn parse(text: &str) -> Result<Self, Malformed> {
        let written: Option<Vec<Spanned<Written>>> =
            serde_yaml::from_str(text).map_err(|error| Malformed {
                line: error.location().map_or(1, |at| at.line()),
                what: plain(&error.without_snippet().to_string()),
            })?;
        let entries = written.unwrap_or_default().into_iter().map(entry);
        Ok(Self {
            entries: entries.collect::<Result<_, _>>()?,
        })
    }

    /// Returns the place of the first entry that hides `finding` of `check` at `now`.
    pub fn hides(&self, check: &Check, finding: &Finding, now: Time) -> Option<usize> {
        self.entries
            .iter()
            .position(|entry| !entry.is_over(now) && entry.names(check, finding))
    }
}

impl Entry {
    /// Returns whether it no longer counts at `now`.
    pub fn is_over(&self, now: Time) -> bool {
        now >= self.until
    }

    /// Returns whether it is about `finding` of `check`.
    pub fn names(&self, check: &Check, finding: &Finding) -> bool {
        let subject = self.subject.as_deref().unwrap_or("*");
        self.check.id == check.id && matches(subject, &finding.subject)
    }
}

/// Leaves out where it is, which is told before it.
fn plain(message: &str) -> String {
    let message = message.lines().next().unwrap_or(message);
    match message.split_once(" at line ") {
        Some((what, _)) => what.to_owned(),
        None => message.to_owned(),
    }
}

fn entry(written: Spanned<Written>) -> Result<Entry, Malformed> {
    let line = written.defined.line();
    let written = written.value;
    let part = |name: &str, part: Option<Spanned<String>>| {
        let part = part.map(|part| (part.value.trim().to_owned(), part.defined.line()));
        part.filter(|(text, _)| !text.is_empty())
            .ok_or_else(|| Malformed {
                line,
                what: format!("the entry says nothing for {name}"),
            })
    };
    let (word, at) = part("check", written.check)?;
    let is = |check: &&Check| {
        let names = [check.id, check.name];
        names.iter().any(|name| name.eq_ignore_ascii_case(&word))
    };
    let check = all().find(is).ok_or_else(|| Malformed {
        line: at,
        what: format!("there is no check with the id or name {word:?}"),
    })?;
    let (reason, _) = part("reason", written.reason)?;
    let (expires, at) = part("expires", written.expires)?;
    let last: Option<Time> = format!("{expires}T23:59:59Z").parse().ok();
    // A day that the calendar does not have comes back as another.
    let last = last
        .filter(|last| last.to_string().starts_with(&expires))
        .ok_or_else(|| Malformed {
            line: at,
            what: format!("{expires:?} is not a day such as 2027-03-31"),
        })?;
    Ok(Entry {
        check,
        subject: written.subject,
        reason,
        expires,
        until: Time {
            seconds: last.seconds + 1,
        },
        line,
    })
}

/// Returns whether `text` is as `pattern` says, `*` standing for any text.
fn matches(pattern: &str, text: &str) -> bool {
    let Some((head, rest)) = pattern.split_once('*') else {
        return pattern == text;
    };
    let Some(text) = text.strip_prefix(head) else {
        return false;
    };
    // The shortest match of each part leaves most for those that follow.
    let ends = text.char_indices().map(|(at, _)| at).chain([text.len()]);
    ends.into_iter().any(|at| matches(rest, &text[at..]))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::Severity;

    fn refused(text: &str) -> String {
        Ignores::parse(text).unwrap_err().to_string()
    }

    #[test]
    fn an_entry_hides_what_it_names_until_its_day_is_over() {
        let text = "# why\n- check: ip-forward\n  subject: net.*.forwarding\n  reason: a router\n  expires: 2027-03-31\n\
                    - {check: dp01, reason: soon, expires: 2026-01-01}\n";
        let ignores = Ignores::parse(text).unwrap();
        let lines: Vec<_> = ignores.entries.iter().map(|entry| entry.line).collect();
        assert_eq!(lines, [2, 6]);
        let check = |id: &str| all().find(|check| check.id == id).unwrap();
        let hides = |id: &str, subject: &str, now: &str| {
            let finding = Finding::new(Severity::Error, subject, "is wrong");
            ignores.hides(check(id), &finding, now.parse().unwrap())
        };
        let key = "net.ipv6.conf.all.forwarding";
        assert_eq!(hides("SY01", key, "2027-03-31T23:59:59Z"), Some(0));
        assert_eq!(hides("SY01", key, "2027-04-01T00:00:00Z"), None);
        assert_eq!(
            hides("SY01", "net.ipv4.ip_forward", "2026-01-01T00:00:00Z"),
            None
        );
        assert_eq!(hides("SY02", key, "2026-01-01T00:00:00Z"), None);
        assert_eq!(hides("DP01", "mode ipvs", "2026-01-01T12:00:00Z"), Some(1));
    }

    #[test]
    fn a_file_without_entries_hides_nothing() {
        for text in ["", "\n# nothing yet\n", "[]"] {
            assert!(Ignores::parse(text).unwrap().entries.is_empty(), "{text:?}");
        }
    }

    #[test]
    fn what_is_wrong_is_told_with_its_line() {
        let good = "- {check: DP01, reason: soon, expires: 2027-01-01}\n";
        for (text, line, what) in [
            (
                "- {check: DP1, reason: x, expires: 2027-01-01}",
                2,
                "no check with the id or name \"DP1\"",
            ),
            ("- reason: x", 2, "nothing for check"),
            ("- check: DP01\n  reason: x\n", 2, "nothing for expires"),
            (
                "- check: DP01\n  expires: 2027-01-01\n",
                2,
                "nothing for reason",
            ),
            (
                "- check: DP01\n  reason: ''\n  expires: 2027-01-01\n",
                2,
                "nothing for reason",
            ),
            (
                "- check: DP01\n  reason: x\n  expires: soon\n",
                4,
                "\"soon\" is not a day",
            ),
            (
                "- check: DP01\n  reason: x\n  expires: 2027-02-31\n",
                4,
                "is not a day",
            ),
            (
                "- check: DP01\n  reason: x\n  expires: 2027-01-01\n  until: x\n",
                5,
                "until",
            ),
            ("- check: DP01\n reason: x\n", 3, ""),
        ] {
            let told = refused(&format!("{good}{text}"));
            assert!(
                told.starts_with(&format!("line {line}: ")),
                "{text:?}: {told}"
            );
            assert!(told.contains(what), "{text:?}: {told}");
            assert!(!told.contains('\n'), "{text:?}: {told}");
        }
        assert!(refused("ignore: nothing").starts_with("line 1: "));
    }
}
