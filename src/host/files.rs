//! Files of the host.

use std::fs;
use std::path::Path;

use super::context::{Context, gap};
use crate::evidence::{Gap, Item};

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
