//! Services of the host that write rules or take care of links: what matters of their files.

use std::fmt::Write as _;
use std::fs;
use std::io::ErrorKind;
use std::path::Path;

use super::context::{Context, gap};
use super::files;
use crate::evidence::{Gap, Item};

/// Files of firewall services, below the host's root, with the beginning of the lines that matter.
const FIREWALLS: &[(&str, &str)] = &[
    ("etc/firewalld/firewalld.conf", "FlushAllOnReload="),
    ("etc/nftables.conf", "flush ruleset"),
    ("etc/sysconfig/nftables.conf", "flush ruleset"),
];

/// The services themselves.
const UNITS: &[&str] = &["firewalld.service", "nftables.service"];

/// Where network managers tell of each link, by its number, with the lines that matter.
const MANAGERS: &[(&str, &str)] = &[
    ("run/NetworkManager/devices", "managed="),
    ("run/systemd/netif/links", "ADMIN_STATE="),
];

/// Reads what firewall services are set to do, and which of them are enabled.
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
            // A link of the host's: where it leads is of no interest.
            if fs::symlink_metadata(context.path(&link)).is_ok() {
                writeln!(all, "/{}: enabled", link.display()).ok();
            }
        }
    }
    Ok(all)
}

/// Reads which links network managers take care of.
pub(super) fn link_managers(item: Item, context: &Context) -> Result<String, Gap> {
    if context.options.netns.is_some() {
        let why = "network managers take care of the host's own network namespace alone";
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

/// Returns the names in `folder`, sorted; none where it does not exist.
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

/// Adds the lines of `file` that begin with `start`, each behind the file's name.
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
