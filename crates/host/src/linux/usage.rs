//! What kpx itself uses, and what is left: memory, disks, connection table.

use std::fs;
use std::io;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::statvfs::statvfs;
use tokio::process::Command;
use tokio::time::timeout;

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

/// Returns the number of entries of the connection table, and the most that it takes.
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

/// Runs this program with `arguments` for at most `limit`; returns what it prints.
///
/// # Errors
///
/// It failed, with a status above `most`; the error has the first line of what it printed.
pub async fn run_self(arguments: &[String], most: i32, limit: Duration) -> io::Result<Vec<u8>> {
    let mut command = Command::new("/proc/self/exe");
    command
        .args(arguments)
        .stdin(Stdio::null())
        .kill_on_drop(true);
    let output = timeout(limit, command.output()).await;
    let output =
        output.map_err(|_| io::Error::other(format!("it took longer than {limit:?}")))??;
    if output.status.code().is_some_and(|code| code <= most) {
        return Ok(output.stdout);
    }
    let said = String::from_utf8_lossy(&output.stderr);
    let said = said.lines().find(|line| !line.trim().is_empty());
    let said = said.unwrap_or("it said nothing").trim().to_owned();
    Err(io::Error::other(format!("{said} ({})", output.status)))
}
