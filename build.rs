//! Names the commit that is built, for `kpx version`: without git, and without an error where there is none.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-env-changed=KPX_COMMIT");
    let given = env::var_os("KPX_COMMIT").and_then(|commit| commit.into_string().ok());
    let given = given.filter(|commit| !commit.is_empty());
    let root = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").unwrap_or_default());
    if let Some(commit) = given
        .or_else(|| of_package(&root))
        .or_else(|| of_checkout(&root))
    {
        println!("cargo::rustc-env=KPX_COMMIT={commit}");
    }
}

/// Returns the commit of a package that cargo has made of a checkout.
fn of_package(root: &Path) -> Option<String> {
    let text = fs::read_to_string(root.join(".cargo_vcs_info.json")).ok()?;
    let (_, rest) = text.split_once("\"sha1\"")?;
    commit(rest.split('"').nth(1)?)
}

/// Returns the commit of a checkout.
fn of_checkout(root: &Path) -> Option<String> {
    let mut git = root.join(".git");
    // In a worktree or a submodule, it is a file that names the folder.
    if git.is_file() {
        let text = fs::read_to_string(&git).ok()?;
        git = root.join(text.strip_prefix("gitdir:")?.trim());
    }
    let common = match fs::read_to_string(git.join("commondir")) {
        Ok(path) => git.join(path.trim()),
        Err(_) => git.clone(),
    };
    let head = read(&git.join("HEAD"))?;
    let Some(name) = head.trim().strip_prefix("ref: ") else {
        return commit(&head);
    };
    let own = read(&common.join(name));
    let packed = || {
        let all = read(&common.join("packed-refs"))?;
        let line = all
            .lines()
            .find(|line| line.ends_with(&format!(" {name}")))?;
        Some(line.split(' ').next()?.to_owned())
    };
    commit(&own.or_else(packed)?)
}

/// Returns the text of the file at `path`, whose changes are changes of the commit.
fn read(path: &Path) -> Option<String> {
    let text = fs::read_to_string(path).ok()?;
    println!("cargo::rerun-if-changed={}", path.display());
    Some(text)
}

fn commit(text: &str) -> Option<String> {
    let text = text.trim();
    let is_one = text.len() >= 40 && text.bytes().all(|b| b.is_ascii_hexdigit());
    is_one.then(|| text.to_owned())
}
