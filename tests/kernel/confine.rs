//! Commands that read bundles alone give up what they do not need: on a kernel with Landlock, since Linux 6.7.

use std::fs;
use std::io::ErrorKind;
use std::net::{TcpListener, TcpStream};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use kpx_host::confine;
use nix::sys::stat::Mode;
use nix::unistd::mkfifo;

const BUNDLE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/testdata/nodes/full-iptables");

#[expect(
    clippy::disallowed_methods,
    reason = "what is started is what is tested"
)]
fn program(path: &str) -> Command {
    Command::new(path)
}

fn kpx(args: &[&str]) -> Command {
    let mut command = program(env!("CARGO_BIN_EXE_kpx"));
    command.args(["--from", BUNDLE]).args(args);
    command
}

#[test]
#[ignore = "needs Landlock"]
fn nothing_is_started_reached_or_written_outside_of_the_folder() {
    let [ours, other] = [0, 1].map(|_| tempfile::tempdir().unwrap());
    let old = other.path().join("old");
    fs::write(&old, "old").unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    // The thread ends with the test.
    let work = || {
        assert!(confine(&[ours.path().to_owned()]).unwrap(), "no Landlock");
        let refused = [
            fs::write(other.path().join("new"), "new").err(),
            fs::write(&old, "new").err(),
            fs::remove_file(&old).err(),
            program("true").status().err(),
            TcpStream::connect(address).err(),
            TcpListener::bind("127.0.0.1:0").err(),
        ];
        let (one, two) = (ours.path().join("one"), ours.path().join("two"));
        fs::write(&one, "new").unwrap();
        fs::rename(&one, &two).unwrap();
        assert_eq!(fs::read_to_string(&old).unwrap(), "old");
        refused
    };
    for error in thread::scope(|scope| scope.spawn(work).join().unwrap()) {
        assert_eq!(error.unwrap().kind(), ErrorKind::PermissionDenied);
    }
}

#[test]
#[ignore = "needs Landlock"]
fn the_rights_are_given_up_before_anything_is_read() {
    let folder = tempfile::tempdir().unwrap();
    let ignored = folder.path().join("ignored");
    mkfifo(&ignored, Mode::S_IRWXU).unwrap();
    let mut child = kpx(&["doctor", "--ignore-file"])
        .arg(&ignored)
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    // It waits for the entries.
    let status = format!("/proc/{}/status", child.id());
    let begin = Instant::now();
    while !fs::read_to_string(&status)
        .unwrap()
        .contains("NoNewPrivs:\t1")
    {
        assert!(begin.elapsed() < Duration::from_secs(20));
        assert!(child.try_wait().unwrap().is_none());
        thread::sleep(Duration::from_millis(10));
    }
    child.kill().unwrap();
    child.wait().unwrap();
}

/// A confined command can still write its own files.
#[test]
#[ignore = "needs Landlock"]
fn each_command_that_writes_a_file_from_a_bundle_still_does() {
    let folder = tempfile::tempdir().unwrap();
    for (args, file) in [
        (
            &["snapshot", "--file", "bundle.tar.gz"][..],
            "bundle.tar.gz",
        ),
        (&["snapshot", "--redact", "--file", "bundle"], "bundle"),
        (&["report", "--file", "page.html"], "page.html"),
        (&["doctor", "--textfile", "kpx.prom"], "kpx.prom"),
    ] {
        let output = kpx(args).current_dir(folder.path()).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(folder.path().join(file).exists(), "{args:?}: {said}");
    }
}
