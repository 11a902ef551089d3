//! Label selectors, as `kubectl get -l` takes them.
//!
//! Source: <https://kubernetes.io/docs/concepts/overview/working-with-objects/labels/#label-selectors>

use super::Labels;

/// A label selector: all of its requirements hold.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Selector(Vec<Requirement>);

/// A requirement on one label.
#[derive(Clone, Debug, Eq, PartialEq)]
enum Requirement {
    /// The label has one of these values.
    In(String, Vec<String>),
    /// The label has none of these values, or does not exist.
    NotIn(String, Vec<String>),
    /// The label exists.
    Exists(String),
    /// The label does not exist.
    Absent(String),
}

impl Selector {
    /// Parses a selector such as `a=b,c!=d,e in (f,g),!h`. The error is the part that is not a requirement.
    pub fn parse(text: &str) -> Result<Self, String> {
        let mut parts = Vec::new();
        let (mut depth, mut begin) = (0_usize, 0);
        for (at, c) in text.char_indices() {
            match c {
                '(' => depth += 1,
                ')' => depth = depth.saturating_sub(1),
                ',' if depth == 0 => {
                    parts.push(&text[begin..at]);
                    begin = at + 1;
                }
                _ => {}
            }
        }
        parts.push(&text[begin..]);
        let requirements = parts.into_iter().map(|part| {
            let part = part.trim();
            Requirement::parse(part).ok_or_else(|| part.to_owned())
        });
        requirements.collect::<Result<_, _>>().map(Self)
    }

    /// Returns whether an object with `labels` is selected.
    pub fn matches(&self, labels: &Labels) -> bool {
        self.0.iter().all(|requirement| match requirement {
            Requirement::In(key, values) => {
                labels.get(key).is_some_and(|label| values.contains(label))
            }
            Requirement::NotIn(key, values) => {
                labels.get(key).is_none_or(|label| !values.contains(label))
            }
            Requirement::Exists(key) => labels.contains_key(key),
            Requirement::Absent(key) => !labels.contains_key(key),
        })
    }
}

impl Requirement {
    fn parse(part: &str) -> Option<Self> {
        let key = |text: &str| {
            let text = text.trim();
            let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_./".contains(c);
            (!text.is_empty() && text.chars().all(is_plain)).then(|| text.to_owned())
        };
        let value = |text: &str| {
            let text = text.trim();
            (text.is_empty() || key(text).is_some()).then(|| text.to_owned())
        };
        if let Some(list) = part.strip_suffix(')') {
            let (head, values) = list.split_once('(')?;
            let values = values.split(',').map(value).collect::<Option<_>>()?;
            let (name, operator) = head.trim().rsplit_once(char::is_whitespace)?;
            return match operator {
                "in" => Some(Self::In(key(name)?, values)),
                "notin" => Some(Self::NotIn(key(name)?, values)),
                _ => None,
            };
        }
        if let Some(name) = part.strip_prefix('!') {
            return Some(Self::Absent(key(name)?));
        }
        for (operator, is_equal) in [("!=", false), ("==", true), ("=", true)] {
            if let Some((name, text)) = part.split_once(operator) {
                let (name, values) = (key(name)?, vec![value(text)?]);
                return Some(if is_equal {
                    Self::In(name, values)
                } else {
                    Self::NotIn(name, values)
                });
            }
        }
        Some(Self::Exists(key(part)?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_selector_selects_what_kubectl_selects() {
        let labels: Labels = [("zone", "a"), ("node-role.kubernetes.io/worker", "")]
            .map(|(key, value)| (key.to_owned(), value.to_owned()))
            .into();
        for (text, matches) in [
            ("zone=a", true),
            ("zone==a", true),
            ("zone = b", false),
            ("zone!=b", true),
            ("zone!=a", false),
            ("arch!=arm64", true),
            ("zone in (a, b)", true),
            ("zone notin (a,b)", false),
            ("arch notin (arm64)", true),
            ("arch in (arm64)", false),
            ("node-role.kubernetes.io/worker", true),
            ("node-role.kubernetes.io/worker=", true),
            ("!node-role.kubernetes.io/worker", false),
            ("!arch,zone in (a,b),zone", true),
            ("zone=a,arch", false),
        ] {
            assert_eq!(
                Selector::parse(text).unwrap().matches(&labels),
                matches,
                "{text}"
            );
        }
        for (text, part) in [
            ("", ""),
            ("a=b,", ""),
            ("a=b,c d", "c d"),
            ("a in b", "a in b"),
            ("a near (b)", "a near (b)"),
            ("=b", "=b"),
            ("a=b=c", "a=b=c"),
            ("a in (b", "a in (b"),
        ] {
            assert_eq!(Selector::parse(text), Err(part.to_owned()), "{text}");
        }
    }
}
