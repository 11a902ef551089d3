//! The ignore file: findings that an operator suppresses, with a reason and an expiry date.

use serde::Deserialize;
use serde_yaml::Spanned;
use thiserror::Error;

use crate::check::{Check, Finding, all};
use kpx_node::evidence::Time;

/// An ignore file. It hides only the findings that it names: the consequences of a hidden finding are printed.
#[derive(Clone, Debug, Default)]
pub struct Ignores {
    /// The entries, in the order of the file.
    pub entries: Vec<Entry>,
}

/// One entry of the file, or of the list in kpx's own configuration file.
#[derive(Clone, Debug)]
pub struct Entry {
    /// The check whose findings it hides.
    pub check: &'static Check,
    /// A pattern of subjects, where `*` matches any text; `None` for all.
    pub subject: Option<String>,
    /// The operator's reason, if given.
    pub reason: Option<String>,
    /// The last day on which it applies, as written, if given.
    pub expires: Option<String>,
    /// The end of that day, in UTC.
    pub until: Option<Time>,
    /// Its first line in the file; `None` for an entry of kpx's own configuration file.
    pub line: Option<u64>,
}

/// An invalid ignore file.
#[derive(Debug, Error)]
#[error("line {line}: {what}")]
pub struct Malformed {
    /// The line, from 1.
    pub line: u64,
    /// The invalid part.
    pub what: String,
}

/// An example of an entry, as a hint for an invalid file.
pub const EXAMPLE: &str = "each entry looks like `- {check: DP01, subject: \"mode *\", reason: we move in spring, expires: 2027-03-31}`; \
                           subject is optional";

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Written {
    check: Option<Spanned<String>>,
    subject: Option<String>,
    reason: Option<Spanned<String>>,
    expires: Option<Spanned<String>>,
}

impl Ignores {
    /// Parses the text of an ignore file.
    pub fn parse(text: &str) -> Result<Self, Malformed> {
        let written: Option<Vec<Spanned<Written>>> =
            serde_yaml::from_str(text).map_err(|error| Malformed {
                line: error.location().map_or(1, |at| at.line()),
                what: plain(&error.without_snippet().to_string()),
            })?;
        let entries = written.unwrap_or_default().into_iter();
        let entries = entries.map(|written| {
            let line = written.defined.line();
            let missing = |what: &str| Malformed {
                line,
                what: format!("the entry has no {what}"),
            };
            let entry = entry(written)?;
            if entry.reason.is_none() {
                return Err(missing("reason"));
            }
            if entry.expires.is_none() {
                return Err(missing("expires"));
            }
            Ok(entry)
        });
        Ok(Self {
            entries: entries.collect::<Result<_, _>>()?,
        })
    }

    /// Returns the index of the first entry that hides `finding` of `check` at `now`.
    pub(crate) fn hides(&self, check: &Check, finding: &Finding, now: Time) -> Option<usize> {
        self.entries
            .iter()
            .position(|entry| !entry.is_over(now) && entry.names(check, finding))
    }
}

impl Entry {
    /// Parses an entry of kpx's own configuration file: the id or the name of a check, or a mapping as in an ignore file, in
    /// which only the check is required. The error is one line.
    pub fn of_settings(text: &str) -> Result<Self, String> {
        let text = if text.starts_with('{') {
            text.to_owned()
        } else {
            serde_json::json!({ "check": text }).to_string()
        };
        let written: Spanned<Written> = serde_yaml::from_str(&text)
            .map_err(|error| plain(&error.without_snippet().to_string()))?;
        let entry = entry(written).map_err(|malformed| malformed.what)?;
        Ok(Self {
            line: None,
            ..entry
        })
    }

    /// Returns whether it has expired at `now`.
    pub(crate) fn is_over(&self, now: Time) -> bool {
        self.until.is_some_and(|until| now >= until)
    }

    /// Returns whether it matches `finding` of `check`.
    pub(crate) fn names(&self, check: &Check, finding: &Finding) -> bool {
        let subject = self.subject.as_deref().unwrap_or("*");
        self.check.id == check.id && matches(subject, &finding.subject)
    }
}

/// Returns the message without its position, which is printed before it.
fn plain(error: &str) -> String {
    let first = error.lines().next().unwrap_or(error);
    match first.split_once(" at line ") {
        Some((what, _)) => what.to_owned(),
        None => first.to_owned(),
    }
}

fn entry(written: Spanned<Written>) -> Result<Entry, Malformed> {
    let line = written.defined.line();
    let written = written.value;
    let part = |part: Option<Spanned<String>>| {
        let part = part.map(|part| (part.value.trim().to_owned(), part.defined.line()));
        part.filter(|(text, _)| !text.is_empty())
    };
    let (word, at) = part(written.check).ok_or_else(|| Malformed {
        line,
        what: "the entry has no check".to_owned(),
    })?;
    let is = |check: &&Check| {
        let names = [check.id, check.name];
        names.iter().any(|name| name.eq_ignore_ascii_case(&word))
    };
    let check = all().find(is).ok_or_else(|| Malformed {
        line: at,
        what: format!("no check has the id or name {word:?}"),
    })?;
    let expires = part(written.expires);
    let until = expires.as_ref().map(end_of).transpose()?;
    Ok(Entry {
        check,
        subject: written.subject,
        reason: part(written.reason).map(|(reason, _)| reason),
        expires: expires.map(|(expires, _)| expires),
        until,
        line: Some(line),
    })
}

/// Returns the end of the day `expires`, which is on this line.
fn end_of((expires, line): &(String, u64)) -> Result<Time, Malformed> {
    let last: Option<Time> = format!("{expires}T23:59:59Z").parse().ok();
    // A day that does not exist is parsed as another day.
    let last = last.filter(|last| last.to_string().starts_with(expires));
    let last = last.ok_or_else(|| Malformed {
        line: *line,
        what: format!("{expires:?} is not a date such as 2027-03-31"),
    })?;
    Ok(Time {
        seconds: last.seconds + 1,
    })
}

/// Returns whether `text` matches `pattern`, where `*` matches any text.
fn matches(pattern: &str, text: &str) -> bool {
    let Some((head, rest)) = pattern.split_once('*') else {
        return pattern == text;
    };
    let Some(text) = text.strip_prefix(head) else {
        return false;
    };
    // Try the shortest match of each part first.
    let ends = text.char_indices().map(|(at, _)| at).chain([text.len()]);
    ends.into_iter().any(|at| matches(rest, &text[at..]))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::{Severity, Subject};

    fn refused(text: &str) -> String {
        Ignores::parse(text).unwrap_err().to_string()
    }

    #[test]
    fn an_entry_hides_its_findings_until_it_expires() {
        let text = "# why\n- check: ip-forward\n  subject: net.*.forwarding\n  reason: a router\n  expires: 2027-03-31\n\
                    - {check: dp01, reason: soon, expires: 2026-01-01}\n";
        let ignores = Ignores::parse(text).unwrap();
        let lines: Vec<_> = ignores.entries.iter().map(|entry| entry.line).collect();
        assert_eq!(lines, [Some(2), Some(6)]);
        let check = |id: &str| all().find(|check| check.id == id).unwrap();
        let hides = |id: &str, subject: &str, now: &str| {
            let finding = Finding::new(Severity::Error, Subject::setting(subject), "is wrong");
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
    fn an_entry_of_the_settings_needs_only_a_check() {
        let entry = Entry::of_settings("ip-forward").unwrap();
        assert_eq!((entry.check.id, entry.line), ("SY01", None));
        assert!(!entry.is_over("2099-01-01T00:00:00Z".parse().unwrap()));
        let text = r#"{"check": "dp01", "subject": "mode *", "expires": "2026-01-01"}"#;
        let entry = Entry::of_settings(text).unwrap();
        assert_eq!(entry.subject.as_deref(), Some("mode *"));
        assert!(entry.is_over("2027-01-01T00:00:00Z".parse().unwrap()));
        for (text, why) in [
            ("DP1", "no check has the id or name \"DP1\""),
            (r#"{"subject": "a"}"#, "the entry has no check"),
            (
                r#"{"check": "DP01", "expires": "soon"}"#,
                "\"soon\" is not a date",
            ),
            (r#"{"check": "DP01", "until": "soon"}"#, "until"),
        ] {
            let error = Entry::of_settings(text).unwrap_err();
            assert!(
                error.contains(why) && !error.contains('\n'),
                "{text}: {error}"
            );
        }
    }

    #[test]
    fn a_file_without_entries_hides_nothing() {
        for text in ["", "\n# nothing yet\n", "[]"] {
            assert!(Ignores::parse(text).unwrap().entries.is_empty(), "{text:?}");
        }
    }

    #[test]
    fn an_invalid_file_is_reported_with_the_line() {
        let good = "- {check: DP01, reason: soon, expires: 2027-01-01}\n";
        for (text, line, what) in [
            (
                "- {check: DP1, reason: x, expires: 2027-01-01}",
                2,
                "no check has the id or name \"DP1\"",
            ),
            ("- reason: x", 2, "has no check"),
            ("- check: DP01\n  reason: x\n", 2, "has no expires"),
            ("- check: DP01\n  expires: 2027-01-01\n", 2, "has no reason"),
            (
                "- check: DP01\n  reason: ''\n  expires: 2027-01-01\n",
                2,
                "has no reason",
            ),
            (
                "- check: DP01\n  reason: x\n  expires: soon\n",
                4,
                "\"soon\" is not a date",
            ),
            (
                "- check: DP01\n  reason: x\n  expires: 2027-02-31\n",
                4,
                "is not a date",
            ),
            (
                "- check: DP01\n  reason: x\n  expires: 2027-01-01\n  until: x\n",
                5,
                "until",
            ),
            ("- check: DP01\n reason: x\n", 3, ""),
        ] {
            let error = refused(&format!("{good}{text}"));
            assert!(
                error.starts_with(&format!("line {line}: ")),
                "{text:?}: {error}"
            );
            assert!(error.contains(what), "{text:?}: {error}");
            assert!(!error.contains('\n'), "{text:?}: {error}");
        }
        assert!(refused("ignore: nothing").starts_with("line 1: "));
    }
}
