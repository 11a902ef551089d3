//! Reads the state of kernel modules: loaded, built in, installed, and configured on the host.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use super::context::{Context, gap};
use super::files;
use kpx_node::evidence::{Gap, Item};

/// Folders of module trees, relative to the host's root.
const TREES: &[&str] = &["lib/modules", "usr/lib/modules"];

/// Folders of configuration, relative to the host's root. A file in an earlier folder replaces one with the same name
/// in a later folder: modules-load.d(5), modprobe.d(5).
const FOLDERS: &[&str] = &["etc", "run", "usr/local/lib", "usr/lib", "lib"];

/// Reads `/proc/modules`.
pub(super) fn loaded(item: Item, context: &Context) -> Result<String, Gap> {
    let path = context.path("proc/modules");
    match fs::exists(&path) {
        Ok(false) => Err(no_modules()),
        _ => files::text(item, &path),
    }
}

/// Reads modules.builtin of the running kernel.
pub(super) fn builtin(item: Item, context: &Context) -> Result<String, Gap> {
    tree_file(item, context, "modules.builtin")
}

/// Reads modules.dep of the running kernel.
pub(super) fn dependencies(item: Item, context: &Context) -> Result<String, Gap> {
    match fs::exists(context.path("proc/modules")) {
        Ok(false) => Err(no_modules()),
        _ => tree_file(item, context, "modules.dep"),
    }
}

/// Reads the modules loaded at boot, one `FILE: LINE` each.
pub(super) fn at_boot(item: Item, context: &Context) -> Result<String, Gap> {
    let mut files = vec![PathBuf::from("etc/modules")];
    files.extend(configuration(item, context, "modules-load.d")?);
    lines(item, context, &files)
}

/// Reads module options, aliases and blacklists, one `FILE: LINE` each.
pub(super) fn modprobe(item: Item, context: &Context) -> Result<String, Gap> {
    let files = configuration(item, context, "modprobe.d")?;
    lines(item, context, &files)
}

/// Returns whether a request that needs `module` would make the kernel load it.
///
/// A read must not change which modules are loaded, and without the module there is nothing to read.
pub(super) fn would_load(context: &Context, module: &str) -> bool {
    let item = Item::Modules;
    let Ok(loaded) = loaded(item, context) else {
        return false;
    };
    let listed = |text: &str| {
        text.lines()
            .filter_map(|line| line.split([' ', ':']).next())
            .filter_map(|path| path.rsplit('/').next())
            .any(|name| name.split('.').next().unwrap_or(name).replace('-', "_") == module)
    };
    if listed(&loaded) || context.path("sys/module").join(module).exists() {
        return false;
    }
    // Without a module tree nothing can be loaded, so the request is harmless.
    let built_in = builtin(item, context).is_ok_and(|text| listed(&text));
    !built_in && dependencies(item, context).is_ok_and(|text| listed(&text))
}

fn no_modules() -> Gap {
    Gap::NotApplicable(
        "this kernel does not support loadable modules: /proc/modules does not exist".to_owned(),
    )
}

fn tree_file(item: Item, context: &Context, name: &str) -> Result<String, Gap> {
    let path = tree_with(item, context, name)?.join(name);
    files::text(item, &context.path(path))
}

/// Returns the folder of the running kernel's modules, relative to the root.
pub(super) fn tree(item: Item, context: &Context) -> Result<PathBuf, Gap> {
    tree_with(item, context, "modules.dep")
}

/// Returns the folder of the running kernel's modules that contains the file `name`, relative to the root.
fn tree_with(item: Item, context: &Context, name: &str) -> Result<PathBuf, Gap> {
    let release = files::kernel_release(item, context)?;
    let folder = |tree: &&str| Path::new(tree).join(release.trim());
    let has = |folder: &PathBuf| context.path(folder).join(name).exists();
    TREES.iter().map(folder).find(has).ok_or_else(|| {
        let first = Path::new("/").join(TREES[0]).join(release.trim());
        Gap::Absent(
            item,
            format!("{} does not exist", first.join(name).display()),
        )
    })
}

/// Returns the `*.conf` files in the folders `name`, relative to the root, sorted by name.
fn configuration(item: Item, context: &Context, name: &str) -> Result<Vec<PathBuf>, Gap> {
    let mut by_name = BTreeMap::new();
    for folder in FOLDERS {
        let folder = Path::new(folder).join(name);
        let entries = match fs::read_dir(context.path(&folder)) {
            Ok(entries) => entries,
            Err(e) if e.kind() == ErrorKind::NotFound => continue,
            Err(e) => return Err(gap(item, folder.display(), &e)),
        };
        for entry in entries {
            let file = entry
                .map_err(|e| gap(item, folder.display(), &e))?
                .file_name();
            if Path::new(&file).extension().is_some_and(|e| e == "conf") {
                let path = folder.join(&file);
                by_name.entry(file).or_insert(path);
            }
        }
    }
    Ok(by_name.into_values().collect())
}

/// Returns the lines of `files`, each prefixed with its file name, without empty lines and comments.
pub(super) fn lines(item: Item, context: &Context, files: &[PathBuf]) -> Result<String, Gap> {
    let mut all = String::new();
    for file in files {
        let path = context.path(file);
        if !path.exists() {
            continue;
        }
        for line in files::text(item, &path)?.lines().map(str::trim) {
            if !line.is_empty() && !line.starts_with(['#', ';']) {
                // Writing to a string cannot fail.
                writeln!(all, "/{}: {line}", file.display()).ok();
            }
        }
    }
    Ok(all)
}
