//! Resolves paths in a file system whose root is mounted elsewhere.
//!
//! An absolute link below `/host` or `/proc/PID/root` refers to a file below it, but the kernel would follow it to
//! kpx's own root. So links are resolved here.

use std::collections::VecDeque;
use std::ffi::OsString;
use std::fs;
use std::io;
use std::path::{Component, Path, PathBuf};

/// Number of links that the kernel follows before it returns ELOOP.
const MAX_LINKS: usize = 40;

/// Returns the path, for this process, of `path` in the file system with the root `root`. The last component need not
/// exist.
pub(super) fn resolve(root: &Path, path: &Path) -> io::Result<PathBuf> {
    let mut rest: VecDeque<OsString> = parts(path);
    let mut done: Vec<OsString> = Vec::new();
    let mut links = 0;
    while let Some(part) = rest.pop_front() {
        if part == ".." {
            done.pop();
            continue;
        }
        let here = root.join(done.iter().collect::<PathBuf>()).join(&part);
        // A path that is not a link, or does not exist, is kept; opening it reports errors.
        let Ok(target) = fs::read_link(&here) else {
            done.push(part);
            continue;
        };
        links += 1;
        if links > MAX_LINKS {
            let text = format!("too many links in {}", path.display());
            return Err(io::Error::other(text));
        }
        if target.is_absolute() {
            done.clear();
        }
        for part in parts(&target).into_iter().rev() {
            rest.push_front(part);
        }
    }
    Ok(root.join(done.iter().collect::<PathBuf>()))
}

fn parts(path: &Path) -> VecDeque<OsString> {
    let named = path.components().filter_map(|component| match component {
        Component::Normal(name) => Some(name.to_owned()),
        Component::ParentDir => Some(OsString::from("..")),
        Component::RootDir | Component::CurDir | Component::Prefix(_) => None,
    });
    named.collect()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn links_are_resolved_below_the_root() {
        let root = tempfile::tempdir().unwrap();
        let dir = root.path();
        fs::create_dir_all(dir.join("var/lib/pki")).unwrap();
        fs::write(dir.join("var/lib/pki/2026.pem"), "").unwrap();
        symlink("/var/lib/pki/2026.pem", dir.join("var/lib/pki/current.pem")).unwrap();
        symlink("../../../../../var/lib", dir.join("lib")).unwrap();
        let found = resolve(dir, Path::new("/lib/pki/current.pem")).unwrap();
        assert_eq!(found, dir.join("var/lib/pki/2026.pem"));
    }

    #[test]
    fn a_cycle_of_links_is_an_error() {
        let root = tempfile::tempdir().unwrap();
        symlink("/b", root.path().join("a")).unwrap();
        symlink("/a", root.path().join("b")).unwrap();
        assert!(resolve(root.path(), Path::new("/a")).is_err());
    }
}
