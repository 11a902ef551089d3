//! Loads a bundle from a folder.

use std::collections::BTreeSet;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use super::super::{ITEMS, Item, files};
use super::member::{self, Found, Member, Packing, Refusal};
use super::nodes::{FOLDER, Loaded, MOST_NODES, is_name};
use super::{BundleError, ERRORS, Limits, MANIFEST, NODES, not_one};

/// Loads `items` and the manifest from the folder `path`, or from the only bundle folder in it: of the bundle and, in a
/// bundle of all nodes, of `node`.
pub(super) fn load(
    path: &Path,
    node: Option<&str>,
    items: &[Item],
    limits: Limits,
) -> Result<Loaded, BundleError> {
    let root = base(path)?;
    let names = names(&root);
    let of_node = node.filter(|node| names.contains(*node));
    Ok(Loaded {
        bundle: members(&root, items, limits),
        node: of_node.map_or_else(Found::default, |node| {
            members(&root.join(FOLDER).join(node), items, limits)
        }),
        names,
    })
}

/// Loads `items`, the manifest and the list of nodes from the folder `root` itself.
pub(super) fn members(root: &Path, items: &[Item], limits: Limits) -> Found {
    let mut found = Found::default();
    let wanted = items.iter().map(|&item| (Member::Item(item), item.file()));
    let others = [
        (Member::Manifest, MANIFEST),
        (Member::Errors, ERRORS),
        (Member::Index, NODES),
    ];
    for (member, file) in wanted.chain(others) {
        for (packing, suffix) in [(Packing::Plain, ""), (Packing::Gzip, ".gz")] {
            let space = found.room(limits);
            if let Some(read) = read(root, &format!("{file}{suffix}"), packing, space) {
                found.insert(member, read);
            }
        }
    }
    found
}

/// Returns the names of the nodes whose folders are in the bundle `root`; links are not followed.
pub(super) fn names(root: &Path) -> BTreeSet<String> {
    let folder = root.join(FOLDER);
    let is_dir = |path: &Path| {
        path.symlink_metadata()
            .is_ok_and(|metadata| metadata.is_dir())
    };
    let entries = is_dir(&folder)
        .then(|| fs::read_dir(&folder).ok())
        .flatten();
    entries
        .into_iter()
        .flatten()
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
        .filter(|name| is_name(name) && is_dir(&folder.join(name)))
        .take(MOST_NODES)
        .collect()
}

/// Returns the folder with the bundle's files: `path` itself, or one folder in it.
pub(super) fn base(path: &Path) -> Result<PathBuf, BundleError> {
    if is_bundle(path) {
        return Ok(path.to_owned());
    }
    let listing = fs::read_dir(path).map_err(|source| BundleError::Open {
        path: path.to_owned(),
        source,
    })?;
    let mut inner: Vec<PathBuf> = listing
        .filter_map(Result::ok)
        .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()))
        .map(|entry| entry.path())
        .filter(|dir| is_bundle(dir))
        .collect();
    inner.sort();
    match inner.as_slice() {
        [] => Err(not_one(path, "the folder contains no file of a bundle")),
        [one] => Ok(one.clone()),
        several => Err(BundleError::Several {
            path: path.to_owned(),
            tops: several
                .iter()
                .filter_map(|dir| dir.file_name())
                .map(|name| name.to_string_lossy().into_owned())
                .collect(),
        }),
    }
}

fn is_bundle(dir: &Path) -> bool {
    let files = ITEMS
        .iter()
        .map(|item| item.file())
        .chain([MANIFEST, NODES]);
    files
        .flat_map(|file| [file.to_owned(), format!("{file}.gz")])
        .any(|file| dir.join(file).symlink_metadata().is_ok())
}

/// Reads `file` below `root`; `None` if it does not exist.
fn read(root: &Path, file: &str, packing: Packing, space: u64) -> Option<Result<String, Refusal>> {
    let path = root.join(file);
    let linked = path
        .parent()
        .filter(|parent| *parent != root)
        .and_then(|parent| parent.symlink_metadata().ok())
        .is_some_and(|metadata| metadata.is_symlink());
    if linked {
        return path.symlink_metadata().is_ok().then(|| {
            Err(Refusal::Other(
                "refused: its folder is a symbolic link".to_owned(),
            ))
        });
    }
    let metadata = match path.symlink_metadata() {
        Ok(metadata) => metadata,
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {
            return None;
        }
        Err(error) => return Some(Err(error.into())),
    };
    let refused = |what| Some(Err(Refusal::Other(format!("refused: it is {what}"))));
    if metadata.is_symlink() {
        return refused("a symbolic link");
    }
    if metadata.is_dir() {
        return refused("a folder");
    }
    if !metadata.is_file() {
        return refused("a device, pipe or socket");
    }
    if files::links(&metadata) > 1 {
        return refused("a hard link to a file outside the bundle; copy the bundle with cp -r");
    }
    Some(open(&path, packing, space))
}

fn open(path: &Path, packing: Packing, space: u64) -> Result<String, Refusal> {
    let mut file = files::open_unlinked(path)?;
    // The file may have been replaced in the meantime.
    let metadata = file.metadata()?;
    if !metadata.is_file() {
        return Err(Refusal::Other("refused: it is not a file".to_owned()));
    }
    member::read(&mut file, packing, metadata.len(), space)
}
