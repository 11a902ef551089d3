//! Edits the text of a `KubeProxyConfiguration` and preserves everything else: comments, order, quotes.
//!
//! The result is parsed again and compared. Text that cannot be edited safely is refused.

mod arguments;
mod fields;

use std::str::FromStr as _;

use serde_json::Value;
use yaml_edit::{Document, Mapping, ScalarValue, YamlNode};

use super::config::yaml;
use fields::plain;

pub use arguments::set as set_arguments;
pub use fields::{EditError, Fields};

/// Returns `text` with `fields` set; unchanged if they are set already.
pub fn set(text: &str, fields: &Fields) -> Result<String, EditError> {
    set_all(text, fields.all())
}

/// Returns `text` with the mode exactly as `former` has it and the other `fields` set; all other changes since `former`
/// are kept. If `former` has no mode, the mode becomes empty, which means the same.
pub fn put_back(text: &str, former: &str, fields: &Fields) -> Result<String, EditError> {
    let mode = read(former)?["mode"]
        .as_str()
        .unwrap_or_default()
        .to_owned();
    let mut all = fields.all();
    for (path, value) in &mut all {
        if *path == "mode" {
            *value = Value::from(mode.as_str());
        }
    }
    set_all(text, all)
}

fn set_all(text: &str, fields: Vec<(&'static str, Value)>) -> Result<String, EditError> {
    let mut want = read(text)?;
    let mut done = text.to_owned();
    for (path, value) in fields {
        let (section, name) = match path.split_once('.') {
            Some((section, name)) => (Some(section), name),
            None => (None, path),
        };
        let place = match section {
            None => &mut want,
            Some(section) => &mut want[section],
        };
        if place.is_null() {
            *place = Value::Object(serde_json::Map::new());
        }
        let Value::Object(place) = place else {
            return Err(EditError::Unsafe(path));
        };
        if place.get(name) == Some(&value) {
            continue;
        }
        place.insert(name.to_owned(), value.clone());
        let before = done;
        done = one(&before, section, name, &value).ok_or(EditError::Unsafe(path))?;
        // Only the field may change, and only its own line or the line of its new section.
        let lines = 1 + usize::from(section.is_some());
        if read(&done).as_ref() != Ok(&want) || changed(&before, &done) > lines {
            return Err(EditError::Unsafe(path));
        }
    }
    Ok(done)
}

/// Parses `text`, which must be one mapping of the right kind.
fn read(text: &str) -> Result<Value, EditError> {
    let value: Value = yaml(text).map_err(EditError::Unreadable)?;
    let Value::Object(fields) = &value else {
        return Err(EditError::Foreign("it is not a mapping".to_owned()));
    };
    match fields.get("kind").and_then(Value::as_str) {
        Some("KubeProxyConfiguration") => Ok(value),
        Some(kind) => Err(EditError::Foreign(format!("its kind is {kind}"))),
        None => Err(EditError::Foreign("it has no kind".to_owned())),
    }
}

/// Sets one field; `None` if the text has no unambiguous place for it.
fn one(text: &str, section: Option<&str>, name: &str, value: &Value) -> Option<String> {
    // The library ends the lines that it adds with LF only.
    let dos = text.contains("\r\n");
    if dos && text.replace("\r\n", "").contains('\n') {
        return None;
    }
    let unix = text.replace("\r\n", "\n");
    let document = Document::from_str(&unix).ok()?;
    let top = document.as_mapping()?;
    let done = match section {
        None => {
            put(&top, name, value);
            document.to_string()
        }
        Some(section) => match top.get(section) {
            Some(YamlNode::Mapping(inner)) => {
                put(&inner, name, value);
                document.to_string()
            }
            // A section without a value gets it on lines of its own.
            None => {
                let end = if unix.ends_with('\n') { "" } else { "\n" };
                format!("{unix}{end}{section}:\n  {name}: {}\n", plain(value))
            }
            Some(_) => return None,
        },
    };
    Some(if dos {
        done.replace('\n', "\r\n")
    } else {
        done
    })
}

/// Sets a field of a mapping and keeps its quotes.
fn put(mapping: &Mapping, name: &str, value: &Value) {
    let quote = mapping
        .get(name)
        .and_then(|old| old.to_string().trim().chars().next());
    let text = plain(value);
    match quote {
        Some('"') if value.is_string() => mapping.set(name, ScalarValue::double_quoted(text)),
        Some('\'') if value.is_string() => mapping.set(name, ScalarValue::single_quoted(text)),
        _ => match value {
            Value::Bool(flag) => mapping.set(name, *flag),
            // Without quotes an empty value would be null.
            _ if text.is_empty() => mapping.set(name, ScalarValue::double_quoted(text)),
            _ => mapping.set(name, text.as_str()),
        },
    }
}

/// Returns the number of lines between the common beginning and the common end of both texts.
fn changed(old: &str, new: &str) -> usize {
    let (old, new): (Vec<_>, Vec<_>) = (old.lines().collect(), new.lines().collect());
    let same = old.iter().zip(&new).take_while(|(a, b)| a == b).count();
    let (old, new) = (&old[same..], &new[same..]);
    let ends = old.iter().rev().zip(new.iter().rev());
    let same = ends.take_while(|(a, b)| a == b).count();
    (old.len() - same).max(new.len() - same)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::config::Mode;

    const HEAD: &str =
        "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\n";

    fn to(mode: Mode) -> Fields {
        Fields {
            mode,
            scheduler: None,
            strict_arp: None,
        }
    }

    fn all() -> Fields {
        Fields {
            mode: Mode::Ipvs,
            scheduler: Some("lc".to_owned()),
            strict_arp: Some(true),
        }
    }

    #[track_caller]
    fn becomes(rest: &str, fields: &Fields, want: &str) {
        let (text, want) = (format!("{HEAD}{rest}"), format!("{HEAD}{want}"));
        assert_eq!(set(&text, fields).as_deref(), Ok(want.as_str()));
        // Setting the same fields again changes nothing.
        assert_eq!(set(&want, fields).as_deref(), Ok(want.as_str()));
    }

    #[track_caller]
    fn refuses(text: &str) -> EditError {
        set(text, &to(Mode::Ipvs)).unwrap_err()
    }

    #[test]
    fn quotes_comments_and_order_are_kept() {
        let ipvs = to(Mode::Ipvs);
        becomes("mode: iptables\n", &ipvs, "mode: ipvs\n");
        becomes("mode: \"iptables\"\n", &ipvs, "mode: \"ipvs\"\n");
        becomes("mode: 'iptables'\n", &ipvs, "mode: 'ipvs'\n");
        becomes("mode: \"\"\n", &ipvs, "mode: \"ipvs\"\n");
        becomes(
            "# the mode\nmode: iptables  # since 2019\nclusterCIDR: 10.0.0.0/8 # pods\n",
            &ipvs,
            "# the mode\nmode: ipvs  # since 2019\nclusterCIDR: 10.0.0.0/8 # pods\n",
        );
        becomes(
            "portRange: \"\"\nmode: \"\"\nwinkernel: null\n",
            &ipvs,
            "portRange: \"\"\nmode: \"ipvs\"\nwinkernel: null\n",
        );
    }

    #[test]
    fn putting_back_an_empty_mode_keeps_other_changes() {
        let back = to(Mode::Iptables);
        for (former, text, want) in [
            (
                "mode: \"\"\n",
                "mode: \"ipvs\"\na: 1\n",
                "mode: \"\"\na: 1\n",
            ),
            ("mode: ''\n", "a: 1\nmode: 'ipvs'\n", "a: 1\nmode: ''\n"),
            ("", "mode: ipvs # kpx\na: 1\n", "mode: \"\" # kpx\na: 1\n"),
            (
                "mode: iptables\n",
                "mode: ipvs\na: 1\n",
                "mode: iptables\na: 1\n",
            ),
        ] {
            let [former, text, want] = [former, text, want].map(|rest| format!("{HEAD}{rest}"));
            assert_eq!(put_back(&text, &former, &back), Ok(want));
        }
    }

    #[test]
    fn a_field_that_is_missing_is_added() {
        becomes(
            "metricsBindAddress: \"\"\n",
            &to(Mode::Nftables),
            "metricsBindAddress: \"\"\nmode: nftables\n",
        );
        becomes(
            "mode: ipvs\n",
            &all(),
            "mode: ipvs\nipvs:\n  scheduler: lc\n  strictARP: true\n",
        );
        becomes(
            "ipvs:\n  excludeCIDRs: null\n  scheduler: \"\"\n  strictARP: false\nmode: \"\"\n",
            &all(),
            "ipvs:\n  excludeCIDRs: null\n  scheduler: \"lc\"\n  strictARP: true\nmode: \"ipvs\"\n",
        );
    }

    #[test]
    fn the_mode_of_another_section_is_kept() {
        becomes(
            "logging:\n  mode: text\n  format: text\ndetectLocalMode: \"\"\nmode: iptables\n",
            &to(Mode::Ipvs),
            "logging:\n  mode: text\n  format: text\ndetectLocalMode: \"\"\nmode: ipvs\n",
        );
    }

    #[test]
    fn line_ends_are_kept() {
        let text = format!("{HEAD}mode: iptables\nclusterCIDR: x\n").replace('\n', "\r\n");
        let want = format!("{HEAD}mode: ipvs\nclusterCIDR: x\n").replace('\n', "\r\n");
        assert_eq!(set(&text, &to(Mode::Ipvs)), Ok(want));
        let text = format!("{HEAD}mode: iptables");
        assert_eq!(set(&text, &to(Mode::Ipvs)), Ok(format!("{HEAD}mode: ipvs")));
    }

    /// Broken or unusual texts: either edited as requested or refused, never corrupted.
    #[test]
    fn hostile_texts_are_edited_correctly_or_refused() {
        let hostile = [
            format!("{HEAD}mode:\tiptables\n"),
            format!("{HEAD}mode: iptables\nmode: ipvs\n"),
            format!("{HEAD}mode: &m iptables\nipvs:\n  scheduler: *m\n"),
            format!("{HEAD}x: &m iptables\nmode: *m\n"),
            format!("{HEAD}mode: null\n"),
            format!("{HEAD}mode:\n"),
            format!("{HEAD}mode: ~\n"),
            format!("{HEAD}mode: >-\n  iptables\n"),
            format!("{HEAD}mode: |\n  iptables\n"),
            format!("{HEAD}\"mode\": iptables\n"),
            format!("{HEAD}? mode\n: iptables\n"),
            format!("{HEAD}mode: !!str iptables\n"),
            format!("{HEAD}mode: [iptables]\n"),
            format!("{HEAD}mode: iptables\n---\nmode: x\n"),
            format!("---\n{HEAD}mode: iptables\n...\n"),
            format!("\u{feff}{HEAD}mode: iptables\n"),
            format!("{HEAD}mode: iptables\r\nclusterCIDR: x\n"),
            format!("{HEAD}ipvs: {{scheduler: rr, strictARP: false}}\nmode: iptables\n"),
            format!("{HEAD}ipvs: null\nmode: iptables\n"),
            format!("{HEAD}ipvs: {{}}\nmode: iptables\n"),
            format!("{HEAD}ipvs: rr\nmode: iptables\n"),
            format!("{HEAD}  mode: iptables\n"),
            format!("{HEAD}<<: {{mode: iptables}}\n"),
            "{\"apiVersion\": \"kubeproxy.config.k8s.io/v1alpha1\", \"kind\": \"KubeProxyConfiguration\", \"mode\": \"iptables\"}\n".to_owned(),
            "{\n  \"kind\": \"KubeProxyConfiguration\",\n  \"mode\": \"iptables\"\n}\n".to_owned(),
            "kind: KubeletConfiguration\nmode: iptables\n".to_owned(),
            "- mode: iptables\n".to_owned(),
            "mode: iptables\n".to_owned(),
            String::new(),
            "kind: KubeProxyConfiguration\nmode: \"iptables\n".to_owned(),
        ];
        let (mut changed, mut refused) = (0, 0);
        for text in hostile {
            for fields in [to(Mode::Ipvs), all()] {
                let Ok(done) = set(&text, &fields) else {
                    refused += 1;
                    continue;
                };
                changed += 1;
                let (mut want, have) = (read(&text).unwrap(), read(&done).unwrap());
                want["mode"] = "ipvs".into();
                if fields.scheduler.is_some() {
                    if want["ipvs"].is_null() {
                        want["ipvs"] = serde_json::json!({});
                    }
                    want["ipvs"]["scheduler"] = "lc".into();
                    want["ipvs"]["strictARP"] = true.into();
                }
                assert_eq!(have, want, "{text}\n{done}");
            }
        }
        assert!(
            changed >= 20 && refused >= 20,
            "{changed} changed, {refused} refused"
        );
    }

    #[test]
    fn a_refusal_gives_the_reason() {
        let cut = format!("{HEAD}mode: [\n");
        assert!(matches!(refuses(&cut), EditError::Unreadable(_)));
        let foreign = refuses("kind: KubeletConfiguration\nmode: iptables\n");
        let why =
            "the configuration is not a KubeProxyConfiguration: its kind is KubeletConfiguration";
        assert_eq!(foreign.to_string(), why);
        let shared = format!("{HEAD}mode: &m iptables\nx: *m\n");
        assert_eq!(refuses(&shared), EditError::Unsafe("mode"));
    }
}
