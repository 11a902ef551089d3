//! Reads relevant settings of systemd services that write rules or manage links.

use std::fmt::Write as _;
use std::fs;
use std::io::ErrorKind;
use std::path::Path;

use super::context::{Context, gap};
use super::files;
use kpx_node::evidence::{Gap, Item};

/// Configuration files of firewall services, relative to the host's root, with the beginning of relevant lines.
const FIREWALLS: &[(&str, &str)] = &[
    ("etc/firewalld/firewalld.conf", "FlushAllOnReload="),
    ("etc/firewalld/firewalld.conf", "StrictForwardPorts="),
    ("etc/nftables.conf", "flush ruleset"),
    ("etc/sysconfig/nftables.conf", "flush ruleset"),
];

/// Units of the firewall services.
const UNITS: &[&str] = &["firewalld.service", "nftables.service"];

/// Folders where network managers keep the state of each link by index, with the beginning of relevant lines.
const MANAGERS: &[(&str, &str)] = &[
    ("run/NetworkManager/devices", "managed="),
    ("run/systemd/netif/links", "ADMIN_STATE="),
];

/// Reads the settings of firewall services, and which of them are enabled.
pub(super) fn firewalls(item: Item, context: &Context) -> Result<String, Gap> {
    let mut all = String::new();
    for (file, start) in FIREWALLS {
        lines(item, context, Path::new(file), start, &mut all)?;
    }
    let wants = Path::new("etc/systemd/system");
    for folder in names(item, context, wants)? {
        if Path::new(&folder)
            .extension()
            .is_none_or(|end| end != "wants")
        {
            continue;
        }
        for unit in UNITS {
            let link = wants.join(&folder).join(unit);
            // The target of the link does not matter.
            if fs::symlink_metadata(context.path(&link)).is_ok() {
                writeln!(all, "/{}: enabled", link.display()).ok();
            }
        }
    }
    Ok(all)
}

/// Reads which links are managed by network managers.
pub(super) fn link_managers(item: Item, context: &Context) -> Result<String, Gap> {
    if context.options.netns.is_some() {
        let why = "network managers manage only the host's own network namespace";
        return Err(Gap::NotApplicable(why.to_owned()));
    }
    let mut all = String::new();
    for (folder, start) in MANAGERS {
        let folder = Path::new(folder);
        for name in names(item, context, folder)? {
            lines(item, context, &folder.join(name), start, &mut all)?;
        }
    }
    Ok(all)
}

/// Returns the sorted names in `folder`; empty if it does not exist.
fn names(item: Item, context: &Context, folder: &Path) -> Result<Vec<String>, Gap> {
    let entries = match fs::read_dir(context.path(folder)) {
        Ok(entries) => entries,
        Err(e) if e.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        Err(e) => return Err(gap(item, folder.display(), &e)),
    };
    let mut names = Vec::new();
    for entry in entries {
        let entry = entry.map_err(|e| gap(item, folder.display(), &e))?;
        names.extend(entry.file_name().into_string());
    }
    names.sort();
    Ok(names)
}

/// Adds the lines of `file` that begin with `start`, each prefixed with the file name.
fn lines(
    item: Item,
    context: &Context,
    file: &Path,
    start: &str,
    all: &mut String,
) -> Result<(), Gap> {
    let path = context.path(file);
    if !path.is_file() {
        return Ok(());
    }
    for line in files::text(item, &path)?.lines().map(str::trim) {
        if line.starts_with(start) {
            // Writing to a string cannot fail.
            writeln!(all, "/{}: {line}", file.display()).ok();
        }
    }
    Ok(())
}
