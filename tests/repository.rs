//! Files that must not be in the repository, and files that must be used.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use crate::support::root;

/// Paths of a build machine get into the repository with backtraces, snapshots and scripts.
#[test]
fn nothing_names_a_path_of_the_machine_it_was_made_on() {
    const PLACES: &[&str] = &["/work/", "/home/", ".cargo/registry", ".rustup/toolchains"];
    let mut seen = 0;
    for file in files(&root()) {
        if file.ends_with(file!()) {
            continue;
        }
        let bytes = fs::read(&file).unwrap();
        // Compressed files are recordings of other machines.
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

/// A test file that no `mod` declares is not compiled, and its tests never run.
#[test]
fn every_file_of_tests_is_compiled() {
    let tests = root().join("tests");
    let mut compiled = BTreeSet::new();
    for (crate_root, folder) in [("suite.rs", ""), ("kernel.rs", ""), ("lab/main.rs", "lab")] {
        declared(&tests.join(crate_root), &tests.join(folder), &mut compiled);
    }
    let all = files(&tests).into_iter();
    let forgotten: Vec<_> = all
        .filter(|path| path.extension().is_some_and(|extension| extension == "rs"))
        .filter(|path| !compiled.contains(path))
        .collect();
    assert!(forgotten.is_empty(), "no `mod` declares {forgotten:#?}");
    assert!(compiled.len() > 100, "{}", compiled.len());
}

/// Adds `file` and the files of the modules that it declares; those without a path of their own are in `folder`.
fn declared(file: &Path, folder: &Path, compiled: &mut BTreeSet<PathBuf>) {
    let text = fs::read_to_string(file).unwrap_or_else(|e| panic!("{}: {e}", file.display()));
    compiled.insert(file.to_owned());
    // The names of the inline modules around a declaration.
    let mut inside: Vec<&str> = Vec::new();
    let mut path = None;
    for line in text.lines() {
        let line = line.trim();
        if let Some(named) = line.strip_prefix("#[path = \"") {
            path = named.strip_suffix("\"]");
            continue;
        }
        let words = line
            .trim_start_matches("pub(crate) ")
            .trim_start_matches("pub(super) ")
            .trim_start_matches("pub ");
        let Some(module) = words.strip_prefix("mod ") else {
            if line == "}" && file.file_name().is_some_and(|name| name == "kernel.rs") {
                inside.pop();
            }
            continue;
        };
        if let Some(name) = module.strip_suffix(" {") {
            // An inline module of tests declares no files.
            if file.file_name().is_some_and(|name| name == "kernel.rs") {
                inside.push(name);
            }
            continue;
        }
        let Some(name) = module.strip_suffix(';') else {
            continue;
        };
        let here = inside
            .iter()
            .fold(folder.to_owned(), |at, name| at.join(name));
        let (flat, nested) = (
            here.join(format!("{name}.rs")),
            here.join(name).join("mod.rs"),
        );
        let found = match path.take() {
            Some(path) => file.parent().unwrap().join(path),
            None if nested.exists() => nested,
            None => flat,
        };
        let below = if found.ends_with("mod.rs") {
            found.parent().unwrap().to_owned()
        } else {
            found.with_extension("")
        };
        declared(&found, &below, compiled);
    }
}

/// Returns every file below `folder`, except those of git and the build.
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
