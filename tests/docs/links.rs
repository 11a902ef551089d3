//! Links between the files of the repository.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Component, Path, PathBuf};

use super::documents;
use crate::support::root;

/// Returns the text outside of blocks and of code between backticks.
fn prose(text: &str) -> String {
    let mut inside = false;
    let mut out = String::new();
    for line in text.lines() {
        if line.starts_with("```") {
            inside = !inside;
        } else if !inside {
            let code = |(at, part): (usize, &str)| (at % 2 == 0).then(|| part.to_owned());
            out.extend(line.split('`').enumerate().filter_map(code));
            out.push('\n');
        }
    }
    out
}

/// Returns the targets of the links in `text`.
fn targets(text: &str) -> Vec<String> {
    let prose = prose(text);
    let after = prose.split("](").skip(1);
    after
        .filter_map(|rest| rest.split_once(')'))
        .map(|(target, _)| target.to_owned())
        .collect()
}

/// Returns the anchors of the headings in `text`, as a forge makes them.
fn anchors(text: &str) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    let mut inside = false;
    for line in text.lines() {
        inside ^= line.starts_with("```");
        if inside || !line.starts_with('#') {
            continue;
        }
        let heading = line.trim_start_matches('#').trim().to_lowercase();
        let kept = heading
            .chars()
            .filter(|letter| letter.is_alphanumeric() || matches!(letter, ' ' | '-' | '_'));
        let anchor = kept.collect::<String>().replace(' ', "-");
        let again = (1..).map(|number| format!("{anchor}-{number}"));
        let mut names = std::iter::once(anchor.clone()).chain(again);
        let free = names.find(|name| !found.contains(name));
        found.extend(free);
    }
    found
}

/// Returns `path` without `..`; `None` if it leaves the repository.
fn plain(path: &Path) -> Option<PathBuf> {
    let mut out = PathBuf::new();
    for part in path.components() {
        match part {
            Component::Normal(name) => out.push(name),
            Component::ParentDir => {
                if !out.pop() {
                    return None;
                }
            }
            Component::CurDir => {}
            _ => return None,
        }
    }
    Some(out)
}

/// Returns why the link from `file` to `target` leads nowhere.
fn dead(file: &Path, target: &str) -> Option<String> {
    if target.contains("://") {
        return None;
    }
    let (path, anchor) = target.split_once('#').unwrap_or((target, ""));
    let of = if path.is_empty() {
        Some(file.to_owned())
    } else {
        plain(&file.parent().unwrap().join(path))
    };
    let Some(of) = of else {
        return Some(format!("{target} leaves the repository"));
    };
    if !root().join(&of).exists() {
        return Some(format!("{target} does not exist"));
    }
    if anchor.is_empty() {
        return None;
    }
    let text = fs::read_to_string(root().join(&of)).unwrap_or_default();
    let known = anchors(&text);
    (!known.contains(anchor)).then(|| format!("{target}: no such heading; there are {known:?}"))
}

#[test]
fn every_link_leads_to_a_file_and_a_heading() {
    let (mut seen, mut wrong) = (0, Vec::new());
    for file in documents() {
        let text = fs::read_to_string(root().join(&file)).unwrap();
        for target in targets(&text) {
            seen += 1;
            let why = dead(&file, &target);
            wrong.extend(why.map(|why| format!("{}: {why}", file.display())));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(seen > 40, "{seen} links");
}

#[test]
fn dead_links_are_found() {
    let file = Path::new("docs/migrate/eks.md");
    for target in [
        "nowhere.md",
        "README.md#no-such-heading",
        "#no-such-heading",
        "../../../outside.md",
    ] {
        assert!(dead(file, target).is_some(), "{target}");
    }
    for target in ["README.md#cost", "#cost", "../../README.md", "../migrate"] {
        assert_eq!(dead(file, target), None);
    }
    let text = "# A b\n[x](y.md) `[no](code)`\n```\n[no](block)\n# no\n```\n## A b\n## C: `d_e`!\n";
    assert_eq!(targets(text), ["y.md"]);
    let wanted = ["a-b", "a-b-1", "c-d_e"].map(str::to_owned);
    assert_eq!(anchors(text), BTreeSet::from(wanted));
}

/// A page to which no link leads is not read.
#[test]
fn every_document_is_reached_from_the_readme() {
    let mut reached = BTreeSet::from([PathBuf::from("README.md")]);
    let mut next: Vec<PathBuf> = reached.iter().cloned().collect();
    while let Some(file) = next.pop() {
        let text = fs::read_to_string(root().join(&file)).unwrap_or_default();
        for target in targets(&text) {
            let path = target.split('#').next().unwrap_or_default();
            let path = plain(&file.parent().unwrap().join(path));
            let is_page = |path: &PathBuf| path.extension().is_some_and(|end| end == "md");
            if let Some(path) = path.filter(is_page)
                && reached.insert(path.clone())
            {
                next.push(path);
            }
        }
    }
    for file in documents() {
        let ours = !file.starts_with("docs") || reached.contains(&file);
        assert!(ours, "no link leads to {}", file.display());
    }
}
