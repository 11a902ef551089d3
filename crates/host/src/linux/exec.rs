//! Runs other programs and reads their output.

use std::fs;
use std::io::{self, ErrorKind};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::process::Stdio;
use std::sync::Arc;

use futures_util::future::join;
use nix::errno::Errno;
use nix::sched::{CloneFlags, unshare};
use nix::sys::signal::{Signal, killpg};
use nix::unistd::{Pid, chroot};
use tokio::io::AsyncWriteExt as _;
use tokio::process::Command;
use tokio::time::timeout;

use super::context::{Context, SYSTEM_PROGRAMS, denied, gap};
use super::root_path;
use kpx_node::apply::StepError;
use kpx_node::evidence::{Gap, Item};
use kpx_node::words::number_of;

/// Packages of the programs, by their names in Debian and Fedora.
const PACKAGES: &[(&str, &str)] = &[
    ("arptables-legacy", "arptables or arptables-legacy"),
    ("conntrack", "conntrack or conntrack-tools"),
    ("dmesg", "util-linux"),
    ("ip6tables", "iptables"),
    ("ip6tables-legacy-restore", "iptables or iptables-legacy"),
    ("ip6tables-legacy-save", "iptables or iptables-legacy"),
    ("ip6tables-nft-restore", "iptables or iptables-nft"),
    ("ip6tables-nft-save", "iptables or iptables-nft"),
    ("ip6tables-restore", "iptables"),
    ("ip6tables-save", "iptables"),
    ("ipset", "ipset"),
    ("iptables", "iptables"),
    ("iptables-legacy-restore", "iptables or iptables-legacy"),
    ("iptables-legacy-save", "iptables or iptables-legacy"),
    ("iptables-nft-restore", "iptables or iptables-nft"),
    ("iptables-nft-save", "iptables or iptables-nft"),
    ("iptables-restore", "iptables"),
    ("iptables-save", "iptables"),
    ("nft", "nftables"),
    ("systemctl", "systemd"),
];

/// A program that was found.
#[derive(Clone, Debug)]
struct Program {
    path: PathBuf,
    /// Root that it belongs to, if not kpx's own.
    root: Option<PathBuf>,
}

/// Runs `program` in the network namespace and returns its output.
pub(super) async fn run(
    context: &Arc<Context>,
    item: Item,
    program: &'static str,
    args: &'static [&'static str],
) -> Result<String, Gap> {
    let args = args.iter().map(|&arg| arg.to_owned()).collect();
    run_with(context, item, program, args).await
}

/// Like [`run`], with arguments that are not constant.
pub(super) async fn run_with(
    context: &Arc<Context>,
    item: Item,
    program: &'static str,
    args: Vec<String>,
) -> Result<String, Gap> {
    let found = find(context, program).ok_or_else(|| {
        let advice = advice(program);
        Gap::Absent(item, format!("program `{program}` not found{advice}"))
    })?;
    let line = [&[program.to_owned()], args.as_slice()].concat().join(" ");
    let what = format!("`{line}`");
    let work = async move |_: Arc<Context>| {
        if let Some(root) = &found.root {
            enter_root(root).map_err(|errno| {
                let what = format!("cannot enter the root {}: {errno}", root.display());
                match errno {
                    Errno::EPERM => denied(item, &what),
                    _ => Gap::Failed(item, what),
                }
            })?;
        }
        output(item, &line, &found.path, &args).await
    };
    context.inside_as(item, &what, work).await
}

/// Time limit of a program that changes something, as a multiple of the limit of a read: enough for the largest rulesets,
/// for the xtables lock, and for a kube-proxy that ends slowly.
const CHANGE: u32 = 30;

/// Runs `program` in the network namespace with `input`, to change something. A program that hangs is killed.
pub(super) async fn feed(
    context: &Arc<Context>,
    program: &'static str,
    args: Vec<String>,
    input: String,
) -> Result<(), StepError> {
    let found = find(context, program).ok_or_else(|| {
        StepError::Absent(format!("program `{program}` not found{}", advice(program)))
    })?;
    let line = [&[program.to_owned()], args.as_slice()].concat().join(" ");
    let limit = context.options.timeout * CHANGE;
    let work = async move |_: Arc<Context>| {
        let refused = |e: io::Error| StepError::Refused(format!("`{line}`: {e}"));
        if let Some(root) = &found.root {
            enter_root(root).map_err(|errno| refused(errno.into()))?;
        }
        let mut child = command(&found.path)
            .args(&args)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            // Ctrl-C is for kpx only: the program runs to its end.
            .process_group(0)
            .spawn()
            .map_err(refused)?;
        let group = child
            .id()
            .and_then(|id| id.try_into().ok())
            .map(Pid::from_raw);
        let stdin = child.stdin.take();
        let feeding = async {
            if let Some(mut stdin) = stdin {
                // A program that stops reading reports the reason on standard error.
                stdin.write_all(input.as_bytes()).await.ok();
            }
        };
        let mut ended = pin!(join(feeding, child.wait_with_output()));
        let in_time = timeout(limit, &mut ended).await.ok();
        let is_late = in_time.is_none();
        let ((), output) = if let Some(output) = in_time {
            output
        } else {
            if let Some(group) = group {
                killpg(group, Signal::SIGKILL).ok();
            }
            // After a suspension of kpx, the program may have ended.
            ended.await
        };
        let output = output.map_err(refused)?;
        let said = said(&output.stderr);
        if output.status.success() {
            return Ok(());
        }
        let what = match said.as_str() {
            _ if is_late => format!("`{line}` was killed: it took longer than {limit:?}"),
            "" => format!("`{line}` failed ({})", output.status),
            said => format!("`{line}` failed: {said}"),
        };
        Err(if is_refusal(&said) {
            StepError::Denied(what)
        } else {
            StepError::Refused(what)
        })
    };
    context.change(work).await
}

/// Returns the command of a tool, without kpx's environment: a variable such as `XTABLES_LIBDIR` would change its effect.
fn command(path: &Path) -> Command {
    let mut command = Command::new(path);
    let programs = SYSTEM_PROGRAMS.join(":");
    command.env_clear().env("PATH", programs).env("LC_ALL", "C");
    command
}

/// Returns which package contains `program`, as the end of a sentence.
fn advice(program: &str) -> String {
    let package = PACKAGES.iter().find(|(name, _)| *name == program);
    package.map_or(String::new(), |(_, p)| format!("; install the package {p}"))
}

/// Returns a program's error message in one line. nft quotes each statement of an input that it refuses as a whole: only the first
/// error counts.
fn said(stderr: &[u8]) -> String {
    const ERROR: &str = "Error: ";
    let said = String::from_utf8_lossy(stderr);
    let mut errors = said
        .lines()
        .filter_map(|line| line.find(ERROR).map(|at| &line[at..]));
    let first = errors.next().unwrap_or(&said);
    let words = first.split_whitespace().collect::<Vec<_>>().join(" ");
    match errors.count() {
        0 => words,
        more => format!("{words} (and {})", number_of(more, "more error")),
    }
}

/// Finds `program`: first below the host's root, whose tools fit its kernel, then among kpx's own.
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
        // Tools are often absolute links by way of /etc/alternatives.
        let root = found.root.as_deref().unwrap_or(Path::new("/"));
        let path = root_path::resolve(root, &found.path).and_then(fs::metadata);
        path.is_ok_and(|m| m.is_file() && m.permissions().mode() & 0o111 != 0)
    })
}

/// Changes the root of this thread only.
fn enter_root(root: &Path) -> nix::Result<()> {
    unshare(CloneFlags::CLONE_FS)?;
    chroot(root)?;
    nix::unistd::chdir("/")
}

/// Runs the program at `path` to its end; errors quote it as `line`. It is killed when the future is dropped.
async fn output(item: Item, line: &str, path: &Path, args: &[String]) -> Result<String, Gap> {
    let output = command(path)
        .args(args)
        .stdin(Stdio::null())
        .process_group(0)
        .kill_on_drop(true)
        .output()
        .await
        .map_err(|e| match e.kind() {
            ErrorKind::NotFound => {
                Gap::Failed(item, format!("`{}` cannot start: {e}", path.display()))
            }
            _ => gap(item, format!("the output of `{line}`"), &e),
        })?;
    let said = said(&output.stderr);
    if !output.status.success() {
        let what = match said.as_str() {
            "" => format!("`{line}` failed ({})", output.status),
            said => format!("`{line}` failed: {said}"),
        };
        return Err(if is_refusal(&said) {
            denied(item, &what)
        } else if is_unsupported(&said) {
            Gap::Unsupported(item, what)
        } else {
            Gap::Failed(item, what)
        });
    }
    String::from_utf8(output.stdout)
        .map_err(|e| Gap::Failed(item, format!("`{line}` did not print UTF-8: {e}")))
}

/// Returns whether an error message is about missing privileges.
fn is_refusal(said: &str) -> bool {
    // Messages of the C library for EPERM and EACCES under LC_ALL=C, and iptables' addition.
    [
        "Operation not permitted",
        "Permission denied",
        "must be root",
    ]
    .iter()
    .any(|words| said.contains(words))
}

/// Returns whether an error message is about a program that is too old, or was built without a feature.
fn is_unsupported(said: &str) -> bool {
    // Messages of ipset, for sets that a newer one created, and of nft.
    ["not supported by userspace", "JSON support not compiled-in"]
        .iter()
        .any(|words| said.contains(words))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tempfile::TempDir;
    use tokio::sync::Mutex;

    use super::*;
    use crate::{Environment, Options, Selection};
    use kpx_node::net::Family;

    const ITEM: Item = Item::Ipset;

    static TURN: Mutex<()> = Mutex::const_new(());

    /// Returns a folder in which `ipset` is the shell script `script`.
    fn ipset(script: &str) -> TempDir {
        let dir = TempDir::new().expect("a folder for the script");
        let path = dir.path().join("ipset");
        fs::write(&path, format!("#!/bin/sh\n{script}\n")).expect("a script");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("its mode");
        dir
    }

    /// Waits until the process whose id is in the file `pid` has ended.
    async fn ended(pid: &Path) {
        let pid = fs::read_to_string(pid).expect("the script wrote its id");
        let status = PathBuf::from(format!("/proc/{}", pid.trim()));
        for _ in 0..1000 {
            if !status.exists() {
                return;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        panic!("{} is still there", status.display());
    }

    /// Runs `ipset save`, replaced by the shell script `script`, with a time limit of two seconds.
    async fn save(script: &str) -> Result<String, Gap> {
        // A file that is open for writing cannot be executed, and a child of another test may inherit it.
        let _turn = TURN.lock().await;
        let dir = ipset(script);
        let seconds = if script.contains("sleep") { 2 } else { 60 };
        let timeout = Duration::from_secs(seconds);
        run(
            &context(vec![dir.path().to_owned()], timeout),
            ITEM,
            "ipset",
            &["save"],
        )
        .await
    }

    fn context(programs: Vec<PathBuf>, timeout: Duration) -> Arc<Context> {
        let options = Options {
            netns: None,
            root: PathBuf::from("/"),
            node: None,
            families: Family::BOTH.to_vec(),
            timeout,
            kubeconfig: None,
            context: None,
            selection: Selection::default(),
            no_api: true,
            environment: Environment::default(),
        };
        let mut context = Context::new(&options);
        Arc::get_mut(&mut context)
            .expect("the only reference")
            .programs = programs;
        context
    }

    #[tokio::test]
    async fn the_output_of_a_program_is_the_item() {
        assert_eq!(
            save("echo \"$@ in $LC_ALL\"").await,
            Ok("save in C\n".to_owned())
        );
    }

    #[tokio::test]
    async fn a_program_gets_no_variable_of_kpx() {
        // Cargo and the shell set others.
        assert!(std::env::vars_os().count() > 3);
        let text = save("env").await.expect("the output");
        let mut names: Vec<_> = text
            .lines()
            .filter_map(|line| line.split('=').next())
            .collect();
        names.retain(|name| !["_", "PWD", "OLDPWD", "SHLVL"].contains(name));
        names.sort_unstable();
        assert_eq!(names, ["LC_ALL", "PATH"]);
    }

    #[tokio::test]
    async fn large_output_is_complete() {
        let text = save("seq 300000; seq 100000 >&2")
            .await
            .expect("the output");
        assert_eq!(text.lines().count(), 300_000);
    }

    #[tokio::test]
    async fn a_missing_program_is_reported_with_its_package() {
        let context = context(Vec::new(), Duration::from_secs(60));
        let gap = run(&context, ITEM, "ipset", &["save"]).await;
        let what = "program `ipset` not found; install the package ipset";
        assert_eq!(gap, Err(Gap::Absent(ITEM, what.to_owned())));
    }

    #[tokio::test]
    async fn the_message_of_a_failed_program_is_reported() {
        let gap = save("echo 'ipset v7.17: no such thing' >&2; exit 1").await;
        let what = "`ipset save` failed: ipset v7.17: no such thing";
        assert_eq!(gap, Err(Gap::Failed(ITEM, what.to_owned())));
        let gap = save("exit 3").await;
        let what = "`ipset save` failed (exit status: 3)";
        assert_eq!(gap, Err(Gap::Failed(ITEM, what.to_owned())));
    }

    #[tokio::test]
    async fn a_refusal_names_the_privilege() {
        let gap = save("echo 'Kernel error received: Operation not permitted' >&2; exit 1").await;
        let Err(Gap::Denied(ITEM, what)) = gap else {
            panic!("{gap:?}");
        };
        assert!(what.contains("CAP_NET_ADMIN"), "{what}");
    }

    #[tokio::test]
    async fn a_program_that_is_too_old_is_recognized() {
        let said = "ipset v6.29: Kernel and userspace incompatible: settype hash:ip,port with revision 6 not supported by \
                    userspace.";
        let gap = save(&format!("echo '{said}' >&2; exit 1")).await;
        let what = format!("`ipset save` failed: {said}");
        assert_eq!(gap, Err(Gap::Unsupported(ITEM, what)));
    }

    #[test]
    fn of_the_errors_of_nft_only_the_first_is_quoted() {
        let one = "/dev/stdin:1:1-20: Error: Could not process rule: Operation not permitted\n\
                   add chain ip kube-proxy test\n             ^^^^^^^^^^\n";
        let first = "Error: Could not process rule: Operation not permitted";
        assert_eq!(said(one.as_bytes()), first);
        let all = one.repeat(240);
        assert_eq!(
            said(all.as_bytes()),
            format!("{first} (and 239 more errors)")
        );
        assert_eq!(
            said(b"ipset v7.17: Error in line 1:\n  no set\n"),
            "ipset v7.17: Error in line 1: no set"
        );
    }

    #[tokio::test]
    async fn a_program_that_hangs_is_killed() {
        let dir = TempDir::new().expect("a folder");
        let pid = dir.path().join("pid");
        let script = format!("echo $$ > {}; exec sleep 600", pid.display());
        let gap = save(&script).await;
        let what = "`ipset save` took longer than 2s; increase --timeout";
        assert_eq!(gap, Err(Gap::Late(ITEM, what.to_owned())));
        ended(&pid).await;
    }

    #[tokio::test]
    async fn a_change_that_hangs_is_killed_with_its_children() {
        let _turn = TURN.lock().await;
        let folder = TempDir::new().expect("a folder");
        let pid = folder.path().join("pid");
        let dir = ipset(&format!("sleep 600 & echo $! > {}; wait", pid.display()));
        let context = context(vec![dir.path().to_owned()], Duration::from_millis(50));
        let done = feed(&context, "ipset", vec!["restore".to_owned()], String::new()).await;
        let what = "`ipset restore` was killed: it took longer than 1.5s";
        assert_eq!(done, Err(StepError::Refused(what.to_owned())));
        ended(&pid).await;
    }

    #[tokio::test]
    async fn output_that_is_not_utf_8_is_a_gap() {
        let gap = save("printf '\\377'").await;
        let Err(Gap::Failed(ITEM, what)) = gap else {
            panic!("{gap:?}");
        };
        assert!(
            what.starts_with("`ipset save` did not print UTF-8"),
            "{what}"
        );
    }
}
