//! What is in the repository belongs there.

use std::fs;
use std::path::{Path, PathBuf};

use crate::support::root;

/// The places of a build machine, which get in by a backtrace, a snapshot of one, or a script.
#[test]
fn nothing_names_a_path_of_the_machine_it_was_made_on() {
    const PLACES: &[&str] = &["/work/", "/home/", ".cargo/registry", ".rustup/toolchains"];
    let mut seen = 0;
    for file in files(&root()) {
        if file.ends_with(file!()) {
            continue;
        }
        let bytes = fs::read(&file).unwrap();
        // What is compressed is a recording of another machine.
        let Ok(text) = String::from_utf8(bytes) else {
            continue;
        };
        seen += 1;
        for (number, line) in text.lines().enumerate() {
            for place in PLACES {
                assert!(
                    !line.contains(place),
                    "{}:{} names a path of some machine: {place}",
                    file.display(),
                    number + 1
                );
            }
        }
    }
    assert!(seen > 100, "{seen}");
}

/// Every file below `folder`, but for what git keeps and cargo builds.
fn files(folder: &Path) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(folder) else {
        return Vec::new();
    };
    let mut files = Vec::new();
    for entry in entries {
        let entry = entry.unwrap();
        let path = entry.path();
        let ours = path != root().join(".git") && path != root().join("target");
        match entry.file_type().unwrap() {
            kind if kind.is_dir() && ours => files.append(&mut self::files(&path)),
            kind if kind.is_file() && ours => files.push(path),
            _ => {}
        }
    }
    files
}
