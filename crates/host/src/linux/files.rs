//! Files of the host.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use super::context::{Context, gap};
use kpx_node::evidence::{Gap, Item};

/// Returns the text of the file at `path`.
pub(super) fn text(item: Item, path: &Path) -> Result<String, Gap> {
    let bytes = fs::read(path).map_err(|e| gap(item, path.display(), &e))?;
    String::from_utf8(bytes)
        .map_err(|e| Gap::Failed(item, format!("{} is not UTF-8: {e}", path.display())))
}

/// Reads the release of the running kernel.
pub(super) fn kernel_release(item: Item, context: &Context) -> Result<String, Gap> {
    text(item, &context.path("proc/sys/kernel/osrelease"))
}

/// Files with the machine ID; like the kubelet, kpx uses the first that is not empty.
const MACHINE_IDS: &[&str] = &["etc/machine-id", "var/lib/dbus/machine-id"];

/// Reads identifying properties of the machine, one `name = value` per line; unreadable ones are omitted.
pub(super) fn host(item: Item, context: &Context) -> Result<String, Gap> {
    let read = |path: &str| {
        let text = fs::read_to_string(context.path(path)).ok()?;
        let text = text.trim();
        (!text.is_empty()).then(|| text.to_owned())
    };
    let name = super::proxy::host_name(&context.options.root);
    let facts = [
        ("host-name", Some(name).filter(|name| !name.is_empty())),
        ("machine-id", MACHINE_IDS.iter().find_map(|path| read(path))),
        ("boot-id", read("proc/sys/kernel/random/boot_id")),
        ("system-uuid", read("sys/class/dmi/id/product_uuid")),
        ("asset-tag", read("sys/class/dmi/id/board_asset_tag")),
    ];
    let mut text = String::new();
    for (key, value) in facts {
        if let Some(value) = value {
            // Writing to a String does not fail.
            writeln!(text, "{key} = {value}").ok();
        }
    }
    if text.is_empty() {
        let why = "the host name and all IDs of this machine are unreadable";
        return Err(Gap::Absent(item, why.to_owned()));
    }
    Ok(text)
}
