//! Paths of a file system whose root is mounted elsewhere.
//!
//! An absolute link below `/host` or `/proc/PID/root` means a file below it, but the kernel follows it to kpx's own root.
//! So links are followed here.

use std::collections::VecDeque;
use std::ffi::OsString;
use std::fs;
use std::io;
use std::path::{Component, Path, PathBuf};

/// As many links as the kernel follows before it answers ELOOP.
const MAX_LINKS: usize = 40;

/// Returns where `path`, as seen with `root` as the root, is for this process. The last part need not exist.
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
        // What is not a link, or not there, stays: whoever opens the result will tell.
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
    fn links_stay_below_the_root() {
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
    fn a_circle_of_links_is_an_error() {
        let root = tempfile::tempdir().unwrap();
        symlink("/b", root.path().join("a")).unwrap();
        symlink("/a", root.path().join("b")).unwrap();
        assert!(resolve(root.path(), Path::new("/a")).is_err());
    }
}
