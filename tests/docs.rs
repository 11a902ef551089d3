//! README.md and `docs/`: every command runs, every quoted output is current, every link leads somewhere.

mod bundle;
mod cast;
mod links;
mod run;
pub(crate) mod schema;

use std::fs;
use std::path::PathBuf;

use crate::support::root;

/// Returns the paths of the Markdown files of the repository, from its root.
fn documents() -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut folders = vec![PathBuf::new()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(root().join(&folder)).unwrap() {
            let entry = entry.unwrap();
            let path = folder.join(entry.file_name());
            if entry.file_type().unwrap().is_dir() {
                let skipped = [".git", "target"].map(PathBuf::from);
                if !skipped.contains(&path) {
                    folders.push(path);
                }
            } else if path.extension().is_some_and(|end| end == "md") {
                found.push(path);
            }
        }
    }
    found.sort();
    assert!(found.len() > 20, "{found:?}");
    found
}

/// Whether the tests write what they compare.
#[expect(clippy::disallowed_methods, reason = "the one setting of these tests")]
pub(crate) fn bless() -> bool {
    std::env::var("KPX_BLESS").is_ok()
}

/// Compares `path` with the text that it should have, or writes it.
fn settle(path: &str, have: &str, wanted: &str) {
    if bless() {
        fs::write(root().join(path), wanted).unwrap();
    } else {
        assert!(
            have == wanted,
            "{path} is stale. Run `KPX_BLESS=1 cargo test --test suite docs` and commit the file."
        );
    }
}
