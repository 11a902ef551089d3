//! A network namespace of one test.

use std::fs::File;
use std::io::{self, Read as _, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::{self, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::Duration;

use kpx_host as host;
use kpx_node::evidence::{Evidence, Item};
use kpx_node::net::Family;

static NUMBER: AtomicU32 = AtomicU32::new(0);

/// Returns the number of the namespace of this process's id: processes of two tests have the same ids in theirs.
pub(crate) fn processes() -> u64 {
    std::fs::metadata("/proc/self/ns/pid").unwrap().ino()
}

/// A network namespace with its loopback link up; deleted when dropped.
pub(crate) struct Netns(String);

impl Netns {
    pub(crate) fn new() -> Self {
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let netns = Self(format!("kpx-test-{}-{number}", process::id()));
        run(&["ip", "netns", "add", &netns.0], "");
        netns.run("ip link set lo up");
        netns
    }

    /// Runs `command`, split at spaces, inside; returns what it printed.
    pub(crate) fn run(&self, command: &str) -> String {
        self.feed(command, "")
    }

    /// Runs `command`, split at spaces, inside, with `input`; returns what it printed.
    pub(crate) fn feed(&self, command: &str, input: &str) -> String {
        let mut line = vec!["ip", "netns", "exec", &self.0];
        line.extend(command.split(' '));
        run(&line, input)
    }

    /// Runs a script of a shell inside, as far as it goes; returns what it printed.
    pub(crate) fn run_any(&self, script: &str) -> String {
        let line = ["ip", "netns", "exec", &self.0, "sh"];
        run_to(&line, &format!("exec 2>&1\n{script}\nexit 0\n"), &[0])
    }

    /// Returns its name.
    pub(crate) fn name(&self) -> &str {
        &self.0
    }

    /// Does `work` on a thread inside.
    pub(crate) fn inside<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        let file = File::open(Path::new("/run/netns").join(&self.0)).unwrap();
        thread::scope(|scope| {
            let thread = scope.spawn(|| {
                nix::sched::setns(file, nix::sched::CloneFlags::CLONE_NEWNET).unwrap();
                work()
            });
            thread.join().unwrap()
        })
    }

    /// Starts a thread inside that goes on.
    pub(crate) fn start_thread<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> thread::JoinHandle<T> {
        let file = File::open(Path::new("/run/netns").join(&self.0)).unwrap();
        thread::spawn(|| {
            nix::sched::setns(file, nix::sched::CloneFlags::CLONE_NEWNET).unwrap();
            work()
        })
    }

    /// Starts a program inside that goes on, and prints to `output`.
    pub(crate) fn start(&self, line: &[&str], output: Stdio) -> process::Child {
        self.start_with(line, output, Stdio::inherit())
    }

    /// Starts a program inside, with its output and errors.
    #[expect(clippy::disallowed_methods, reason = "a program that goes on")]
    pub(crate) fn start_with(&self, line: &[&str], output: Stdio, errors: Stdio) -> process::Child {
        self.inside(|| {
            process::Command::new(line[0])
                .args(&line[1..])
                .stdout(output)
                .stderr(errors)
                .spawn()
                .unwrap()
        })
    }

    /// Reads `items` live, inside.
    pub(crate) async fn collect(&self, items: &[Item]) -> Evidence {
        host::collect(items, &self.options()).await
    }

    /// How to read inside.
    pub(crate) fn options(&self) -> host::Options {
        host::Options {
            netns: Some(self.0.clone()),
            root: PathBuf::from("/"),
            node: None,
            families: vec![Family::V4, Family::V6],
            timeout: Duration::from_secs(60),
            kubeconfig: None,
            context: None,
            selection: host::Selection::default(),
            no_api: true,
            environment: host::Environment::default(),
        }
    }
}

impl Drop for Netns {
    fn drop(&mut self) {
        run(&["ip", "netns", "del", &self.0], "");
    }
}

/// Asks for `path` at `address` by HTTP; returns the whole answer, or why the connection was refused or reset.
pub(crate) fn get(address: impl ToSocketAddrs, path: &str) -> io::Result<String> {
    let mut stream = TcpStream::connect(address)?;
    write!(stream, "GET {path} HTTP/1.1\r\nHost: node\r\n\r\n")?;
    let mut text = String::new();
    stream.read_to_string(&mut text)?;
    Ok(text)
}

/// Runs a command that must succeed; returns what it printed.
pub(crate) fn run(line: &[&str], input: &str) -> String {
    run_to(line, input, &[0])
}

/// Runs a program as [`run`] does, with one of these exit codes.
#[expect(
    clippy::disallowed_methods,
    reason = "the real tools are what kpx is compared with"
)]
pub(crate) fn run_to(line: &[&str], input: &str, codes: &[i32]) -> String {
    let mut child = process::Command::new(line[0])
        .args(&line[1..])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap_or_else(|e| panic!("cannot run {line:?}: {e}"));
    child
        .stdin
        .take()
        .unwrap()
        .write_all(input.as_bytes())
        .unwrap();
    let output = child.wait_with_output().unwrap();
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(
        output
            .status
            .code()
            .is_some_and(|code| codes.contains(&code)),
        "{line:?}: {} {error}",
        output.status
    );
    String::from_utf8(output.stdout).unwrap()
}
