//! The doctor's formats for other programs are valid.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::PermissionsExt as _;

use crate::support::{chosen, kpx_on};

#[tokio::test]
#[ignore = "takes long: make test-loops"]
async fn every_junit_is_well_formed_and_counts_right() {
    junit_is_right(chosen()).await;
}

pub(crate) async fn junit_is_right(names: Vec<String>) {
    for name in names {
        let ran = kpx_on(&name, &["doctor", "-o", "junit"]).await;
        let counts = elements(&ran.out).unwrap_or_else(|e| panic!("{name}: {e}\n{ran}"));
        let suite = ran.out.lines().find(|l| l.contains("<testsuite ")).unwrap();
        for (attribute, element) in [
            ("tests", "testcase"),
            ("errors", "error"),
            ("skipped", "skipped"),
        ] {
            let stated = suite.split(&format!(" {attribute}=\"")).nth(1).unwrap();
            let stated: usize = stated.split('"').next().unwrap().parse().unwrap();
            let counted = counts.get(element).copied().unwrap_or(0);
            assert_eq!(stated, counted, "{name}: {attribute}");
        }
    }
}

/// Counts the elements of a document; the error is the reason why it is not well-formed.
fn elements(text: &str) -> Result<BTreeMap<String, usize>, String> {
    let (declaration, mut rest) = text.split_once('\n').ok_or("one line")?;
    if declaration != "<?xml version=\"1.0\" encoding=\"UTF-8\"?>" {
        return Err(format!("begins with {declaration}"));
    }
    let mut counts: BTreeMap<String, usize> = BTreeMap::new();
    let mut open = Vec::new();
    while let Some(at) = rest.find('<') {
        let (before, tag) = rest.split_at(at);
        characters(before)?;
        if open.is_empty() && !before.trim().is_empty() {
            return Err(format!("text outside of the root: {before:?}"));
        }
        let end = tag.find('>').ok_or("a tag without end")?;
        let inside = &tag[1..end];
        rest = &tag[end + 1..];
        if let Some(name) = inside.strip_prefix('/') {
            if open.pop().as_deref() != Some(name) {
                return Err(format!("</{name}> closes another"));
            }
            continue;
        }
        let (inside, empty) = match inside.strip_suffix('/') {
            Some(inside) => (inside, true),
            None => (inside, false),
        };
        let (name, mut attributes) = inside.split_once(' ').unwrap_or((inside, ""));
        let mut seen = BTreeSet::new();
        while !attributes.is_empty() {
            let (key, value) = attributes.split_once("=\"").ok_or("no value")?;
            let (value, left) = value.split_once('"').ok_or("no end of a value")?;
            characters(value)?;
            if !key.bytes().all(|b| b.is_ascii_lowercase()) || !seen.insert(key) {
                return Err(format!("attribute {key:?} of {name}"));
            }
            attributes = left.strip_prefix(' ').unwrap_or(left);
        }
        if open.is_empty() && !counts.is_empty() {
            return Err("two roots".to_owned());
        }
        *counts.entry(name.to_owned()).or_default() += 1;
        if !empty {
            open.push(name.to_owned());
        }
    }
    match (open.is_empty(), rest) {
        (true, "\n") => Ok(counts),
        _ => Err(format!("ends in {rest:?} with {open:?} open")),
    }
}

/// Returns an error for characters that are not allowed between tags or in an attribute.
fn characters(text: &str) -> Result<(), String> {
    let odd = |c: char| c == '<' || c == '>' || (c.is_control() && c != '\n' && c != '\t');
    if text.contains(odd) {
        return Err(format!("what XML does not have in {text:?}"));
    }
    for after in text.split('&').skip(1) {
        let known = ["amp;", "lt;", "gt;", "quot;"];
        if !known.iter().any(|name| after.starts_with(name)) {
            return Err(format!("a bare & before {after:?}"));
        }
    }
    Ok(())
}

#[tokio::test]
#[ignore = "takes long: make test-loops"]
async fn every_textfile_is_what_the_collector_takes() {
    textfiles_are_right(chosen()).await;
}

pub(crate) async fn textfiles_are_right(names: Vec<String>) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("kpx.prom");
    for name in names {
        let file = path.to_str().unwrap();
        let ran = kpx_on(&name, &["doctor", "-o", "json", "--textfile", file]).await;
        let text = fs::read_to_string(&path).unwrap();
        let printed = kpx_on(&name, &["doctor", "-o", "prom"]).await;
        assert_eq!(text, printed.out, "{name}");
        let samples = samples(&text).unwrap_or_else(|e| panic!("{name}: {e}\n{text}"));
        let report: serde_json::Value = serde_json::from_str(&ran.out).unwrap();
        let findings = |severity: &str| -> f64 {
            let label = format!("severity=\"{severity}\"");
            let ours = samples
                .iter()
                .filter(|(series, _)| series.starts_with("kpx_doctor_findings{"));
            ours.filter(|(series, _)| series.contains(&label))
                .map(|(_, value)| value)
                .sum()
        };
        for (severity, key) in [
            ("error", "errors"),
            ("warning", "warnings"),
            ("info", "infos"),
        ] {
            assert_eq!(
                Some(findings(severity)),
                report["summary"][key].as_f64(),
                "{name}"
            );
        }
        let unknown = "kpx_doctor_checks{status=\"unknown\"}";
        assert_eq!(
            samples.get(unknown).copied(),
            report["summary"]["unknown"].as_f64()
        );
    }
    let mode = fs::metadata(&path).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o644);
    let left: Vec<_> = fs::read_dir(dir.path()).unwrap().collect();
    assert_eq!(left.len(), 1, "{left:?}");
}

#[tokio::test]
async fn a_textfile_that_cannot_be_written_leaves_the_old_one() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("none/kpx.prom");
    let args = [
        "doctor",
        "--only",
        "SY01",
        "--textfile",
        path.to_str().unwrap(),
    ];
    let ran = kpx_on("seed-ipvs", &args).await;
    assert_eq!((ran.code, ran.out.as_str()), (4, ""), "{ran}");
    assert!(ran.err.contains("none/kpx.prom"), "{ran}");
    // A folder has the name: nothing else is left beside it.
    let path = dir.path().join("kpx.prom");
    fs::create_dir(&path).unwrap();
    let args = [
        "doctor",
        "--only",
        "SY01",
        "--textfile",
        path.to_str().unwrap(),
    ];
    assert_eq!(kpx_on("seed-ipvs", &args).await.code, 4);
    let left: Vec<_> = fs::read_dir(dir.path()).unwrap().collect();
    assert_eq!(left.len(), 1, "{left:?}");
}

/// Returns the value of each series; the error names the line that is not valid in the text format of Prometheus.
fn samples(text: &str) -> Result<BTreeMap<String, f64>, String> {
    if !text.ends_with('\n') {
        return Err("no end of the last line".to_owned());
    }
    let mut found = BTreeMap::new();
    let mut done = BTreeSet::new();
    let (mut helped, mut current) = (String::new(), String::new());
    for line in text.lines() {
        if let Some(help) = line.strip_prefix("# HELP ") {
            let (name, _) = help.split_once(' ').ok_or("no help")?;
            name.clone_into(&mut helped);
        } else if let Some(kind) = line.strip_prefix("# TYPE ") {
            let (name, kind) = kind.split_once(' ').ok_or("no type")?;
            if name != helped || kind != "gauge" || !done.insert(name.to_owned()) {
                return Err(line.to_owned());
            }
            name.clone_into(&mut current);
        } else {
            let (series, value) = line.rsplit_once(' ').ok_or("no value")?;
            let (name, labels) = match series.split_once('{') {
                Some((name, labels)) => (name, labels.strip_suffix('}').ok_or("no }")?),
                None => (series, ""),
            };
            let word = |text: &str| {
                let mut bytes = text.bytes();
                bytes.next().is_some_and(|b| b.is_ascii_alphabetic())
                    && bytes.all(|b| b.is_ascii_alphanumeric() || b == b'_')
            };
            // A timestamp would stand behind the value; the collector refuses files that have one.
            if name != current || !word(name) {
                return Err(format!("{line}: not below its own heading"));
            }
            for label in labels.split(',').filter(|label| !label.is_empty()) {
                let (key, value) = label.split_once('=').ok_or("no label")?;
                let value = value.strip_prefix('"').and_then(|v| v.strip_suffix('"'));
                let value = value.ok_or_else(|| format!("{line}: {key} is not quoted"))?;
                if !word(key) || value.contains(['"', '\\']) {
                    return Err(line.to_owned());
                }
            }
            let value: f64 = value.parse().map_err(|_| format!("{line}: no number"))?;
            if found.insert(series.to_owned(), value).is_some() {
                return Err(format!("{line}: twice"));
            }
        }
    }
    Ok(found)
}
