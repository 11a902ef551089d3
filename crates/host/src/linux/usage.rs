//! The resources that kpx uses and the free ones: memory, disks, connection table.

use std::fs;
use std::io;
use std::path::Path;

use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::statvfs::statvfs;

use super::context::Context;
use super::{Options, files};
use kpx_node::evidence::{Gap, Item};

/// Returns the resident memory of this process in bytes, if it is known.
pub fn resident_memory() -> Option<u64> {
    let text = fs::read_to_string("/proc/self/status").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib * 1024)
}

/// Returns the most resident memory, in bytes, that any ended child of this process had.
pub fn peak_of_children() -> Option<u64> {
    let usage = getrusage(UsageWho::RUSAGE_CHILDREN).ok()?;
    u64::try_from(usage.max_rss())
        .ok()
        .map(|kib| kib * 1024)
        .filter(|bytes| *bytes > 0)
}

/// Returns how many bytes are free for this user on the file system of `path`, and how many it has.
pub fn free_space(path: &Path) -> io::Result<(u64, u64)> {
    let of = statvfs(path)?;
    let size = of.fragment_size();
    Ok((of.blocks_available() * size, of.blocks() * size))
}

/// Returns the number of entries of the connection table, and its maximum.
pub async fn conntrack_fill(options: &Options) -> Result<(u64, u64), Gap> {
    let item = Item::Sysctl;
    let read = async move |context: std::sync::Arc<Context>| {
        let number = |name: &str| {
            let path = format!("proc/sys/net/netfilter/{name}");
            let text = files::text(item, &context.path(&path))?;
            let number = text.trim().parse();
            number.map_err(|e| Gap::Failed(item, format!("{name}: {e}")))
        };
        Ok((number("nf_conntrack_count")?, number("nf_conntrack_max")?))
    };
    Context::new(options).inside(item, read).await
}
