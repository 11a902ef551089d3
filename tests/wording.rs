//! The words of the program: doc comments name the thing, and no text uses a banned word.

use std::fs;
use std::path::{Path, PathBuf};

use crate::support::root;

/// Modules whose texts follow the rules. Every other module joins as soon as its texts do.
const MODULES: &[&str] = &[
    "backend",
    "check",
    "cli",
    "cluster",
    "desired",
    "diff",
    "dns",
    "evidence",
    "host",
    "net",
    "node",
    "owner",
    "redact",
    "render",
    "requirements",
    "trace",
    "view",
    "words",
];

/// Banned words, with the words to use instead.
const BANNED: &[(&str, &str)] = &[
    ("asked nobody", "not queried"),
    ("be rid of", "remove"),
    ("by itself", "automatically"),
    ("go over", "check"),
    ("heed", "follow, or block"),
    ("hold against", "compare with"),
    ("holds against", "compares with"),
    ("in the way", "blocks"),
    ("is left out", "is missing"),
    ("is no way", "do not use"),
    ("leaves out", "omits"),
    ("mend", "fix"),
    ("nobody", "the user or program that cannot"),
    ("odds", "probability"),
    ("take back", "undo"),
    ("take home", "record"),
    ("taken back", "undone"),
    ("told", "reported"),
    ("what is there", "the live state"),
];

/// Doc comments that do not name the thing.
const EMPTY_DOCS: &[&str] = &[
    "Which.",
    "Where.",
    "Whose.",
    "The name.",
    "Its name.",
    "What it says.",
    "Why.",
    "Why not.",
    "How.",
];

#[test]
fn texts_follow_the_rules() {
    let mut wrong = Vec::new();
    let mut checked = 0;
    for path in sources() {
        let source = fs::read_to_string(&path).unwrap();
        for (number, line) in source.lines().enumerate() {
            let Some(text) = text(line) else { continue };
            checked += 1;
            let at = || format!("{}:{}", path.display(), number + 1);
            let doc = line.trim_start().strip_prefix("///").map(str::trim);
            if let Some(doc) = doc.filter(|doc| EMPTY_DOCS.contains(doc)) {
                wrong.push(format!("{}: {doc:?} does not name the thing", at()));
            }
            for (banned, better) in BANNED {
                if has(&text, banned) {
                    wrong.push(format!("{}: {banned:?}: use {better:?}", at()));
                }
            }
        }
    }
    assert!(checked > 1000, "{checked} lines with text");
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
}

/// Returns the comment in `line`, or the contents of its string literals; a continued literal has no quote at its
/// beginning. `None` for code.
fn text(line: &str) -> Option<String> {
    let line = line.trim();
    if line.starts_with("//") {
        return Some(line.to_lowercase());
    }
    let parts: Vec<_> = line.split('"').collect();
    let literals: Vec<_> = match parts.as_slice() {
        [whole] if line.ends_with('\\') => vec![*whole],
        [_] => return None,
        parts => parts.iter().skip(1).step_by(2).copied().collect(),
    };
    Some(literals.join(" ").to_lowercase())
}

/// Returns whether `text` contains `words` at word boundaries.
fn has(text: &str, words: &str) -> bool {
    text.match_indices(words).any(|(at, _)| {
        let before = text[..at].chars().next_back();
        let after = text[at + words.len()..].chars().next();
        !before.is_some_and(char::is_alphanumeric) && !after.is_some_and(char::is_alphanumeric)
    })
}

#[test]
fn banned_words_are_found_in_comments_and_literals_only() {
    let line = r#"    told(&config, "nobody is told", 1);"#;
    let found = text(line).unwrap();
    assert!(has(&found, "told") && has(&found, "nobody"));
    assert_eq!(text("    let told = 1;"), None);
    assert!(has(&text("/// Nobody knows.").unwrap(), "nobody"));
    assert!(!has(
        &text("// It is retold; a mended rule.").unwrap(),
        "told"
    ));
}

fn sources() -> Vec<PathBuf> {
    fn walk(folder: &Path, found: &mut Vec<PathBuf>) {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                walk(&path, found);
            } else if path.extension().is_some_and(|end| end == "rs") {
                found.push(path);
            }
        }
    }
    let mut found = Vec::new();
    for module in MODULES {
        let path = root().join("src").join(module);
        if path.is_dir() {
            walk(&path, &mut found);
        } else {
            found.push(path.with_extension("rs"));
        }
    }
    found
}
