//! Other programs, run for what they print.

use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;

use nix::sched::{CloneFlags, unshare};
use nix::unistd::chroot;
use tokio::process::Command;

use super::context::{Context, denied, gap};
use super::rooted;
use crate::evidence::{Gap, Item};

/// Each program with the package that brings it, by the names Debian and Fedora use.
const PACKAGES: &[(&str, &str)] = &[
    ("conntrack", "conntrack or conntrack-tools"),
    ("ip6tables", "iptables"),
    ("ip6tables-legacy-save", "iptables or iptables-legacy"),
    ("ip6tables-nft-save", "iptables or iptables-nft"),
    ("ip6tables-save", "iptables"),
    ("ipset", "ipset"),
    ("iptables", "iptables"),
    ("iptables-legacy-save", "iptables or iptables-legacy"),
    ("iptables-nft-save", "iptables or iptables-nft"),
    ("iptables-save", "iptables"),
    ("nft", "nftables"),
];

/// A program that was found.
#[derive(Clone, Debug)]
struct Program {
    path: PathBuf,
    /// The root it belongs to, when that is not kpx's own.
    root: Option<PathBuf>,
}

/// Runs `program` inside the network namespace and returns what it printed.
pub(super) async fn run(
    context: &Arc<Context>,
    item: Item,
    program: &'static str,
    args: &'static [&'static str],
) -> Result<String, Gap> {
    let args = args.iter().map(|&arg| arg.to_owned()).collect();
    run_with(context, item, program, args).await
}

/// Runs `program` with arguments made up on the way; otherwise like [`run`].
pub(super) async fn run_with(
    context: &Arc<Context>,
    item: Item,
    program: &'static str,
    args: Vec<String>,
) -> Result<String, Gap> {
    let found = find(context, program).ok_or_else(|| {
        let package = PACKAGES.iter().find(|(name, _)| *name == program);
        let advice = package.map_or(String::new(), |(_, p)| format!("; install the package {p}"));
        Gap::Absent(item, format!("there is no program `{program}`{advice}"))
    })?;
    context
        .inside(item, async move |_| {
            if let Some(root) = &found.root {
                enter_root(item, root)?;
            }
            output(item, program, &found.path, &args).await
        })
        .await
}

/// Finds `program`: below the host's root first, since those tools fit its kernel, then among kpx's own.
fn find(context: &Context, program: &str) -> Option<Program> {
    let root = &context.options.root;
    let apart = root != Path::new("/");
    let hosts = context
        .programs
        .iter()
        .filter(|_| apart)
        .map(|dir| Program {
            path: dir.join(program),
            root: Some(root.clone()),
        });
    let own = context.programs.iter().map(|dir| Program {
        path: dir.join(program),
        root: None,
    });
    hosts.chain(own).find(|found| {
        // Tools are often links, by way of /etc/alternatives, and those are absolute.
        let root = found.root.as_deref().unwrap_or(Path::new("/"));
        let path = rooted::resolve(root, &found.path).and_then(fs::metadata);
        path.is_ok_and(|m| m.is_file() && m.permissions().mode() & 0o111 != 0)
    })
}

/// Makes `root` this thread's root, and leaves the other threads theirs.
fn enter_root(item: Item, root: &Path) -> Result<(), Gap> {
    let entered = unshare(CloneFlags::CLONE_FS)
        .and_then(|()| chroot(root))
        .and_then(|()| nix::unistd::chdir("/"));
    entered.map_err(|errno| {
        let what = format!("cannot enter the root {}: {errno}", root.display());
        match errno {
            nix::errno::Errno::EPERM => denied(item, &what),
            _ => Gap::Failed(item, what),
        }
    })
}

/// Runs the program at `path` to its end. It is killed when the future is dropped.
async fn output(item: Item, program: &str, path: &Path, args: &[String]) -> Result<String, Gap> {
    let line = || [&[program.to_owned()], args].concat().join(" ");
    let output = Command::new(path)
        .args(args)
        .env("LC_ALL", "C")
        .stdin(Stdio::null())
        .kill_on_drop(true)
        .output()
        .await
        .map_err(|e| match e.kind() {
            ErrorKind::NotFound => {
                Gap::Failed(item, format!("`{}` cannot start: {e}", path.display()))
            }
            _ => gap(item, format!("the output of `{}`", line()), &e),
        })?;
    let said = String::from_utf8_lossy(&output.stderr);
    let said = said.split_whitespace().collect::<Vec<_>>().join(" ");
    if !output.status.success() {
        let what = match said.as_str() {
            "" => format!("`{}` failed ({})", line(), output.status),
            said => format!("`{}` failed: {said}", line()),
        };
        return Err(if is_refusal(&said) {
            denied(item, &what)
        } else {
            Gap::Failed(item, what)
        });
    }
    String::from_utf8(output.stdout)
        .map_err(|e| Gap::Failed(item, format!("`{}` did not print UTF-8: {e}", line())))
}

/// Tells whether a program's complaint is about privilege.
fn is_refusal(said: &str) -> bool {
    // The C library's words for EPERM and EACCES under LC_ALL=C, and what iptables adds to them.
    [
        "Operation not permitted",
        "Permission denied",
        "must be root",
    ]
    .iter()
    .any(|words| said.contains(words))
}
