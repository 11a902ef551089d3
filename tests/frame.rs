//! The program around the commands: streams, statuses, environment.

use std::fs::File;
use std::process::{Command, Stdio};

use crate::support::{kpx, kpx_on, profile, root};

const BIN: &str = env!("CARGO_BIN_EXE_kpx");

/// The binary with nothing of this process's environment.
fn binary(args: &[&str]) -> Command {
    #[expect(
        clippy::disallowed_methods,
        reason = "the program itself is under test"
    )]
    let mut command = Command::new(BIN);
    command
        .env_clear()
        .envs(profile())
        .args(args)
        .stdin(Stdio::null());
    command
}

/// Runs `command`; returns its standard output, standard error and exit status.
fn outcome(command: &mut Command) -> (String, String, i32) {
    let output = command.output().unwrap();
    (
        String::from_utf8(output.stdout).unwrap(),
        String::from_utf8(output.stderr).unwrap(),
        output.status.code().unwrap(),
    )
}

fn node(name: &str) -> String {
    let path = root().join("testdata/nodes").join(name);
    path.to_str().unwrap().to_owned()
}

#[test]
fn a_closed_pipe_is_no_error() {
    // `completions` writes more than a pipe holds; `--help` less, and is written after the reader has gone.
    for args in [&["completions", "bash"][..], &["--help"]] {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let (_, err, code) = outcome(binary(args).stdout(writer).stderr(Stdio::piped()));
        assert_eq!((err.as_str(), code), ("", 0), "{args:?}");
    }
}

#[test]
fn a_full_disk_is_a_failure_with_one_line() {
    for args in [&["completions", "bash"][..], &["--help"], &["--version"]] {
        let mut command = binary(args);
        command.stdout(File::options().write(true).open("/dev/full").unwrap());
        let child = command.stderr(Stdio::piped()).spawn().unwrap();
        let output = child.wait_with_output().unwrap();
        let err = String::from_utf8(output.stderr).unwrap();
        assert_eq!(
            err, "kpx: No space left on device (os error 28)\n",
            "{args:?}"
        );
        assert_eq!(output.status.code(), Some(4));
    }
}

#[test]
fn failures_read_the_same_with_backtraces_on() {
    let args = ["--from", "/nonexistent", "doctor"];
    let plain = outcome(&mut binary(&args));
    assert_eq!(plain.2, 4);
    assert_eq!(
        plain.1,
        "kpx: cannot open bundle /nonexistent\n  \
           because No such file or directory (os error 2)\n  \
           hint: check the path: --from takes a bundle of `kpx snapshot`, a support bundle, or a file with outputs of commands\n"
    );
    let backtrace = outcome(binary(&args).env("RUST_BACKTRACE", "1"));
    assert_eq!(plain, backtrace);
}

#[test]
fn verbosity_decides_how_much_of_an_error_is_printed() {
    let (_, quiet, _) = outcome(&mut binary(&["-q", "--from", "/nonexistent", "doctor"]));
    assert!(!quiet.contains("hint"), "{quiet}");
    let (_, full, code) = outcome(&mut binary(&["-vv", "--from", "/nonexistent", "doctor"]));
    assert!(full.contains("Location") && full.contains("hint"), "{full}");
    assert!(!full.contains('\x1b'), "{full}");
    assert_eq!(code, 4);
}

#[tokio::test(flavor = "current_thread")]
async fn a_wrong_command_line_is_status_2() {
    assert_eq!(kpx(&["no-such-command"]).await.code, 2);
    assert_eq!(kpx(&["doctor", "--no-such-flag"]).await.code, 2);
    assert_eq!(kpx(&["--timeout", "10", "doctor"]).await.code, 2);
    let ran = kpx(&["--from", "/nonexistent", "doctor", "-o", "xml"]).await;
    assert_eq!(ran.code, 2);
    let names = "`kpx doctor` has no format \"xml\": use one of human, wide, json, yaml, short, junit, prom, npd";
    assert!(ran.err.contains(names), "{ran}");
}

#[tokio::test(flavor = "current_thread")]
async fn help_and_version_go_to_standard_output() {
    for args in [
        &["--help"][..],
        &["-h"],
        &["doctor", "--help"],
        &["--version"],
    ] {
        let ran = kpx(args).await;
        assert_eq!((ran.err.as_str(), ran.code), ("", 0), "{args:?}");
    }
    assert!(kpx(&["--help"]).await.out.contains("Exit status:"));
}

#[tokio::test(flavor = "current_thread")]
async fn programs_get_one_document() {
    let json = kpx_on("full-ipvs", &["doctor", "-o", "json"]).await;
    let json: serde_json::Value = serde_json::from_str(&json.out).unwrap();
    assert_eq!(json["apiVersion"], "kpx/v1");
    assert_eq!(json["kind"], "DoctorReport");
}

#[test]
fn options_come_from_variables_too() {
    let from = node("full-ipvs");
    let mut by_flag = outcome(&mut binary(&["--from", &from, "-o", "json", "doctor"]));
    // The next command gets the bundle by the variable as well; otherwise its line names it.
    let named = format!("--from {from} ");
    assert!(by_flag.0.contains(&named), "{}", by_flag.0);
    by_flag.0 = by_flag.0.replace(&named, "");
    let mut command = binary(&["doctor"]);
    command.env("KPX_FROM", &from).env("KPX_OUTPUT", "json");
    let by_variable = outcome(&mut command);
    assert_eq!(by_flag, by_variable);
    assert!(by_flag.0.starts_with('{'), "{}", by_flag.0);

    let (_, err, code) = outcome(binary(&["doctor"]).env("KPX_COLOR", "sometimes"));
    assert!(err.contains("sometimes"), "{err}");
    assert_eq!(code, 2);
}

#[test]
fn colour_is_for_terminals_or_on_request() {
    let from = node("leftover-iptables-to-ipvs");
    let escapes = |args: &[&str], variable: (&str, &str)| {
        let mut all = vec!["--from", &from, "doctor"];
        all.extend_from_slice(args);
        let (out, ..) = outcome(binary(&all).env(variable.0, variable.1));
        out.contains('\x1b')
    };
    assert!(!escapes(&[], ("TERM", "xterm")));
    assert!(!escapes(&["--color", "never"], ("CLICOLOR_FORCE", "1")));
    assert!(!escapes(&[], ("NO_COLOR", "1")));
}

#[test]
fn a_locale_without_utf_8_gets_ascii_only() {
    let from = node("leftover-iptables-to-ipvs");
    for locale in ["C", "de_DE.ISO-8859-1"] {
        let (out, err, _) = outcome(binary(&["--from", &from, "doctor"]).env("LC_ALL", locale));
        assert!(out.is_ascii() && err.is_ascii(), "{out}{err}");
    }
}

#[test]
#[ignore = "takes long: make test-loops"]
fn nothing_is_drawn_without_a_terminal() {
    let (_, err, _) = outcome(&mut binary(&[
        "--from",
        &node("scale-2000x10-iptables"),
        "doctor",
    ]));
    assert_eq!(err, "");
}

#[test]
fn a_mistyped_namespace_is_one_failure() {
    let args = ["--no-api", "--netns", "kpx-no-such-one", "doctor"];
    let (out, err, code) = outcome(&mut binary(&args));
    assert_eq!((out.as_str(), code), ("", 4));
    let lines: Vec<_> = err.lines().collect();
    let why = "kpx: cannot open network namespace /run/netns/kpx-no-such-one: No such file or directory (os error 2)";
    assert_eq!(lines[0], why);
    assert!(lines[1].starts_with("  hint: "), "{err}");
    assert_eq!(lines.len(), 2, "{err}");
}

#[test]
fn the_cluster_of_a_bundle_is_joined_to_this_node() {
    let bundle = node("seed-ipvs");
    let args = ["--cluster-from", &bundle, "--no-api", "-o", "json"];
    let (out, err, code) = outcome(binary(&args).args(["show", "services"]));
    assert!(out.contains("\"default/nginx-svc\""), "{out} {err}");
    assert!(matches!(code, 0 | 3), "{code}: {err}");
    // The bundle replaces only the cluster, not this node.
    let (out, err, _) = outcome(binary(&args).args(["doctor", "--only", "SY01"]));
    let report: serde_json::Value = serde_json::from_str(&out).unwrap_or_else(|_| panic!("{err}"));
    let kernel = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    assert_eq!(report["node"]["kernel"], kernel.trim());
}
