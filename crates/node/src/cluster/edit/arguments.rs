//! Edits kube-proxy's flags in a text: an arguments file or a pod manifest.
//!
//! As with a configuration, the result is parsed again and compared; an edit that would change anything else is
//! refused.

use serde_json::Value;

use super::fields::{EditError, Fields, plain};
use crate::cluster::flags::flag_of;

impl Fields {
    /// Returns the fields as flags without dashes, `name=value`.
    pub fn arguments(&self) -> Vec<String> {
        let fields = self.all().into_iter();
        fields
            .filter_map(|(path, value)| Some(format!("{}={}", flag_of(path)?, plain(&value))))
            .collect()
    }
}

/// Returns `text` with the flags of `fields` set; unchanged if they are set already.
pub fn set(text: &str, fields: &Fields) -> Result<String, EditError> {
    let mut done = text.to_owned();
    for (path, value) in fields.all() {
        let flag = flag_of(path).ok_or(EditError::Unsafe(path))?;
        let wanted = format!("--{flag}={}", plain(&value));
        done = one(&done, flag, &wanted).ok_or(EditError::Unsafe(path))?;
    }
    Ok(done)
}

/// Sets one flag; `None` if the text has no unambiguous place for it.
fn one(text: &str, flag: &str, wanted: &str) -> Option<String> {
    let found: Vec<&str> = words(text)
        .filter(|word| word.trim_start_matches('-').split('=').next() == Some(flag))
        .collect();
    match found.as_slice() {
        [] => add(text, wanted),
        [word] if *word == wanted => Some(text.to_owned()),
        // A value in a word of its own cannot be located reliably.
        [word] if word.contains('=') => replace(text, word, wanted),
        _ => None,
    }
}

/// Iterates over the flags in `text`; a flag ends at a blank or a quote.
fn words(text: &str) -> impl Iterator<Item = &str> {
    text.lines()
        .filter(|line| !line.trim_start().starts_with('#'))
        .flat_map(|line| line.split(|c: char| c.is_whitespace() || "\"',[]".contains(c)))
        .filter(|word| word.starts_with("--"))
}

fn replace(text: &str, word: &str, wanted: &str) -> Option<String> {
    let done = exchanged(text, word, wanted);
    let Some(before) = structure(text) else {
        return Some(done);
    };
    (structure(&done)? == with_words(before, word, wanted)).then_some(done)
}

/// Adds a line with `wanted` after the last line that contains only a flag.
fn add(text: &str, wanted: &str) -> Option<String> {
    let line = text.lines().rfind(|line| {
        let item = line.trim_start().trim_start_matches("- ");
        item.trim_start_matches(['"', '\'']).starts_with("--")
            && words(line).count() == 1
            && !line.trim_end().ends_with([',', '\\'])
    })?;
    let flag = words(line).next()?;
    let new = line.replacen(flag, wanted, 1);
    // The new flag gets its own line, even if the text does not end with a line feed.
    let done = exchanged(text, line, &format!("{line}\n{new}"));
    let Some(before) = structure(text) else {
        return Some(done);
    };
    (structure(&done)? == with_item(before, flag, wanted)).then_some(done)
}

/// Returns `text` with `new` in the place of `part`, a slice of it: the same characters may occur before, in a comment.
fn exchanged(text: &str, part: &str, new: &str) -> String {
    let start = part.as_ptr() as usize - text.as_ptr() as usize;
    format!("{}{new}{}", &text[..start], &text[start + part.len()..])
}

/// Parses a manifest; `None` if the text is not one.
fn structure(text: &str) -> Option<Value> {
    let value: Value = serde_yaml::from_str(text).ok()?;
    value.is_object().then_some(value)
}

/// Returns `value` with `word` replaced in every string.
fn with_words(value: Value, word: &str, wanted: &str) -> Value {
    match value {
        Value::String(text) => Value::String(text.replace(word, wanted)),
        Value::Array(items) => {
            let items = items.into_iter();
            Value::Array(items.map(|item| with_words(item, word, wanted)).collect())
        }
        Value::Object(map) => Value::Object(
            map.into_iter()
                .map(|(key, value)| (key, with_words(value, word, wanted)))
                .collect(),
        ),
        other => other,
    }
}

/// Returns `value` with `wanted` added after each list item `flag`.
fn with_item(value: Value, flag: &str, wanted: &str) -> Value {
    match value {
        Value::Array(items) => Value::Array(
            items
                .into_iter()
                .flat_map(|item| {
                    let new = (item == flag).then(|| Value::from(wanted));
                    std::iter::once(with_item(item, flag, wanted)).chain(new)
                })
                .collect(),
        ),
        Value::Object(map) => Value::Object(
            map.into_iter()
                .map(|(key, value)| (key, with_item(value, flag, wanted)))
                .collect(),
        ),
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::config::Mode;

    fn to(mode: Mode) -> Fields {
        Fields {
            mode,
            scheduler: None,
            strict_arp: None,
        }
    }

    #[test]
    fn other_lines_of_an_arguments_file_are_kept() {
        let text = "--kubeconfig=/a/b\n# --proxy-mode=x\n--proxy-mode=iptables\n--v=2\n";
        assert_eq!(
            set(text, &to(Mode::Ipvs)).unwrap(),
            "--kubeconfig=/a/b\n# --proxy-mode=x\n--proxy-mode=ipvs\n--v=2\n"
        );
        let fields = Fields {
            mode: Mode::Ipvs,
            scheduler: Some("lc".to_owned()),
            strict_arp: Some(true),
        };
        assert_eq!(
            set("--v=2", &fields).unwrap(),
            "--v=2\n--proxy-mode=ipvs\n--ipvs-scheduler=lc\n--ipvs-strict-arp=true"
        );
        assert_eq!(set(text, &to(Mode::Iptables)).unwrap(), text);
    }

    #[test]
    fn the_same_characters_in_a_comment_or_another_flag_are_kept() {
        let text = "# once --proxy-mode=ipvs\n--proxy-mode=ipvs\n";
        assert_eq!(
            set(text, &to(Mode::Iptables)).unwrap(),
            "# once --proxy-mode=ipvs\n--proxy-mode=iptables\n"
        );
        let text = "# not --v=2\n--v=25 # more\n--v=2\n";
        assert_eq!(
            set(text, &to(Mode::Ipvs)).unwrap(),
            "# not --v=2\n--v=25 # more\n--v=2\n--proxy-mode=ipvs\n"
        );
    }

    #[test]
    fn only_the_arguments_of_a_manifest_change() {
        let text = "kind: Pod\nspec:\n  containers:\n  - name: kube-proxy\n    command:\n    - kube-proxy\n    \
                    - --cluster-cidr=10.0.0.0/8\n    - \"--proxy-mode=iptables\" # the mode\n    image: x\n";
        assert_eq!(
            set(text, &to(Mode::Nftables)).unwrap(),
            text.replace("=iptables", "=nftables")
        );
        let without = text.replace("    - \"--proxy-mode=iptables\" # the mode\n", "");
        assert_eq!(
            set(&without, &to(Mode::Ipvs)).unwrap(),
            without.replace("10.0.0.0/8\n", "10.0.0.0/8\n    - --proxy-mode=ipvs\n")
        );
        let shell = "kind: Pod\nspec: {containers: [{command: [sh, -c, 'exec kube-proxy --proxy-mode=ipvs --v=2 2>&1']}]}\n";
        assert_eq!(
            set(shell, &to(Mode::Iptables)).unwrap(),
            shell.replace("=ipvs", "=iptables")
        );
    }

    #[test]
    fn ambiguous_texts_are_refused() {
        for text in [
            "--proxy-mode=ipvs\n--proxy-mode=iptables\n",
            "--proxy-mode\niptables\n",
            "kind: Pod\nspec: {containers: [{command: [kube-proxy]}]}\n",
            "kind: Pod\nmetadata: {annotations: {a: --proxy-mode=ipvs}}\nspec: {command: [--proxy-mode=ipvs]}\n",
        ] {
            let refused = set(text, &to(Mode::Nftables));
            assert_eq!(refused, Err(EditError::Unsafe("mode")), "{text}");
        }
    }
}
