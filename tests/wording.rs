//! The words of the program and of its tests: doc comments name the thing, and no text uses a banned word.

use std::fs;
use std::path::{Path, PathBuf};

use crate::support::root;

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
    ("somebody", "the user or program"),
    ("take back", "undo"),
    ("take home", "record"),
    ("taken back", "undone"),
    ("told", "reported"),
    ("what becomes of", "what happens to"),
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
    for (folder, text) in [
        ("src", text as Text),
        ("crates", text),
        ("benches", text),
        ("tests", prose),
    ] {
        for path in sources(folder) {
            let source = fs::read_to_string(root().join(&path)).unwrap();
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
    }
    assert!(checked > 10_000, "{checked} lines with text");
    assert!(
        wrong.is_empty(),
        "rewrite these sentences, see \"Words\" in CONTRIBUTING.md:\n{}",
        wrong.join("\n")
    );
}

/// Returns the words of a line that are checked; `None` if there are none.
type Text = fn(&str) -> Option<String>;

/// Returns the comment in `line`, or the title of a test as words. Other literals of tests are data.
fn prose(line: &str) -> Option<String> {
    let line = line.trim();
    if line.starts_with("//") {
        return text(line);
    }
    let function = line.trim_start_matches("async ").strip_prefix("fn ")?;
    let (title, _) = function.split_once("()")?;
    Some(title.replace('_', " "))
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
    assert!(has(
        &prose("    async fn the_user_is_told() {").unwrap(),
        "told"
    ));
    assert_eq!(prose("    let text = \"nobody\";"), None);
}

/// Returns the path of every source file below `folder`, from the root of the repository. This file has the banned words.
fn sources(folder: &str) -> Vec<PathBuf> {
    fn walk(folder: &Path, found: &mut Vec<PathBuf>) {
        for entry in fs::read_dir(root().join(folder)).unwrap() {
            let entry = entry.unwrap();
            let path = folder.join(entry.file_name());
            if entry.path().is_dir() {
                walk(&path, found);
            } else if path.extension().is_some_and(|end| end == "rs") && path != Path::new(file!())
            {
                found.push(path);
            }
        }
    }
    let mut found = Vec::new();
    walk(Path::new(folder), &mut found);
    found
}
