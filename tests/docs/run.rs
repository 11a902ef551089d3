//! Runs the commands of the documents on recordings, and compares the quoted outputs.
//!
//! `<!-- recording: NAME -->` chooses the recording for the commands below it; several names are the nodes of one bundle.
//! A command that changes a node runs without the option that changes it, so it prints its plan. What needs a kernel or a
//! cluster is parsed only; see [`live`]. In a quoted output, a line `...` stands for omitted lines.

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::Path;

use tempfile::TempDir;

use super::{bless, documents};
use crate::command_lines::misunderstood;
use crate::nodes::bundle_of;
use crate::page::{Line, lines, words};
use crate::shell::shell;
use crate::support::root;

/// The recording of a page that names none.
const USUAL: &str = "full-iptables";

/// Bundles that a reader has, with their recordings.
const BUNDLES: &[(&str, &str)] = &[
    ("before.tar.gz", "full-iptables"),
    ("after.tar.gz", "leftover-ipvs-to-iptables"),
];

/// Stands for omitted lines of an output.
const OMITTED: &str = "...";

/// Other programs that run.
const SHELL: &[&str] = &["grep ", "printf "];

/// Accepts a man page on its standard input.
const MAN: &str = "#!/bin/sh\n[ \"$*\" = '-l -' ] && grep -q '^.TH kpx-'\n";

/// A document at work.
struct Desk {
    dir: TempDir,
    /// The bundles in use: `KPX_FROM` of each value of `recording`.
    bundles: Vec<(String, String, Option<TempDir>)>,
}

impl Desk {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        for folder in ["bin", "work", "root"] {
            fs::create_dir(dir.path().join(folder)).unwrap();
        }
        symlink(env!("CARGO_BIN_EXE_kpx"), dir.path().join("bin/kpx")).unwrap();
        let man = dir.path().join("bin/man");
        fs::write(&man, MAN).unwrap();
        fs::set_permissions(man, fs::Permissions::from_mode(0o755)).unwrap();
        for part in ["testdata", "deploy", "docs"] {
            symlink(root().join(part), dir.path().join("work").join(part)).unwrap();
        }
        for (name, recording) in BUNDLES {
            let recording = root().join("testdata/nodes").join(recording);
            symlink(recording, dir.path().join("work").join(name)).unwrap();
        }
        Self {
            dir,
            bundles: Vec::new(),
        }
    }

    /// Returns the bundle that `names` describe: one recording, or several as the nodes of a cluster.
    fn bundle(&mut self, names: &str) -> String {
        if let Some((_, path, _)) = self.bundles.iter().find(|(of, ..)| of == names) {
            return path.clone();
        }
        let (path, dir) = if names.contains(' ') {
            let numbered = names.split(' ').enumerate();
            let nodes: Vec<(String, &str)> = numbered
                .map(|(number, name)| (format!("node{}", number + 1), name))
                .collect();
            let nodes = nodes.iter().map(|(of, name)| (of.as_str(), Ok(*name)));
            let (dir, path) = bundle_of(".tar.gz", &nodes.collect::<Vec<_>>());
            (path, Some(dir))
        } else {
            let path = root().join("testdata/nodes").join(names);
            assert!(path.exists(), "no recording {names}");
            (path, None)
        };
        let path = path.to_str().unwrap().to_owned();
        self.bundles.push((names.to_owned(), path.clone(), dir));
        path
    }

    /// Runs `command`; returns its output and its exit status.
    fn run(&mut self, command: &str, recording: &str) -> (String, i32) {
        let from = self.bundle(recording);
        let at = |part: &str| self.dir.path().join(part);
        let variables = [
            ("KPX_FROM", from.as_str()),
            ("LC_ALL", "C.UTF-8"),
            ("HOME", "/nonexistent"),
        ];
        let line = format!("set +e; exec 2>&1; {command}");
        let ran = shell(&line, &at("bin"), &at("work"), &at("root"), &variables);
        let out = String::from_utf8(ran.stdout).unwrap();
        (out, ran.status.code().unwrap())
    }
}

/// Returns why a command of kpx cannot run on a bundle.
fn live(words: &[&str]) -> Option<&'static str> {
    let has = |word: &str| {
        words
            .iter()
            .any(|argument| argument.split('=').next() == Some(word))
    };
    Some(match words {
        _ if has("--node") && !has("--this-node") => "reads through a pod",
        _ if has("--live") || has("--probe") || has("--wait") || has("--watch") => "needs a kernel",
        _ if has("--kubeconfig") || has("access") => "asks the API server",
        _ if has("top") || has("watch") || has("serve") || has("bridge") => "needs a kernel",
        _ if has("mcp") => "needs an MCP client",
        _ if has("migrate") && has("--all-nodes") => "migrates a cluster",
        _ if has("migrate") && !has("--to") && !has("status") => "goes on with a migration",
        _ => return None,
    })
}

/// Returns a command that prints the plan of `command`.
fn planned(command: &str) -> String {
    let mut words: Vec<&str> = command.split(' ').collect();
    words.retain(|word| !["--apply", "--yes", "--load", "--persist"].contains(word));
    let dry = words.contains(&"migrate") && words.contains(&"--to");
    if dry && !words.contains(&"--dry-run") {
        words.push("--dry-run");
    }
    words.join(" ")
}

/// Returns whether `real` is `quoted`, in which a line `...` stands for any lines.
fn fits(quoted: &str, real: &str) -> bool {
    let mut rest: Vec<&str> = real.lines().collect();
    let quoted: Vec<&str> = quoted.lines().collect();
    let pieces: Vec<&[&str]> = quoted.split(|line| *line == OMITTED).collect();
    for (number, piece) in pieces.iter().enumerate() {
        let at = match (number, number + 1 == pieces.len()) {
            (0, true) => (rest == *piece).then_some(0),
            (0, false) => rest.starts_with(piece).then_some(0),
            (_, true) => rest.ends_with(piece).then(|| rest.len() - piece.len()),
            (_, false) if piece.is_empty() => Some(0),
            (_, false) => rest
                .windows(piece.len())
                .position(|window| window == *piece),
        };
        let Some(at) = at else { return false };
        rest.drain(..at + piece.len());
    }
    rest.is_empty() || quoted.last() == Some(&OMITTED)
}

/// The result of a page.
#[derive(Default)]
struct Done {
    /// Commands that ran.
    ran: usize,
    /// Commands of kpx that were only parsed.
    parsed: usize,
    /// Quoted outputs that were compared.
    compared: usize,
    wrong: Vec<String>,
    /// The text with current outputs.
    text: String,
}

/// Runs the commands of a page.
fn page(text: &str) -> Done {
    let mut desk = Desk::new();
    let mut done = Done {
        text: text.to_owned(),
        ..Done::default()
    };
    for line in lines(text) {
        let Line {
            command, output, ..
        } = line;
        let command = command.strip_prefix("cargo run -- ").map_or_else(
            || command.to_owned(),
            |arguments| format!("kpx {arguments}"),
        );
        let is_shell = SHELL.iter().any(|tool| command.starts_with(tool));
        let Some(arguments) = command.strip_prefix("kpx ").or(is_shell.then_some("")) else {
            // Files of the repository exist.
            for word in words(&command) {
                let ours = ["deploy/", "docs/", "testdata/"];
                if ours.iter().any(|folder| word.starts_with(folder))
                    && !root().join(&word).exists()
                {
                    done.wrong.push(format!("{command}: no {word}"));
                }
            }
            if output.is_empty() {
                continue;
            }
            done.wrong
                .push(format!("{command}: its output is not held"));
            continue;
        };
        let ends = [" | ", " > ", "; ", " && "];
        let end = ends.iter().filter_map(|end| arguments.find(end)).min();
        let own = format!("kpx {}", &arguments[..end.unwrap_or(arguments.len())]);
        let own = words(&own);
        let own: Vec<&str> = own.iter().map(String::as_str).collect();
        if let Some(why) = live(&own).filter(|_| !is_shell) {
            done.parsed += 1;
            if !output.is_empty() {
                done.wrong
                    .push(format!("{command}: {why}; its output is not held"));
            }
            done.wrong.extend(misunderstood(&own.join(" ")));
            continue;
        }
        done.ran += 1;
        let recording = line.recording.unwrap_or(USUAL);
        let (real, code) = desk.run(&planned(&command), recording);
        if ![0, 1, 3].contains(&code) {
            done.wrong
                .push(format!("{command} on {recording}: {code}: {real}"));
        } else if !output.is_empty() {
            done.compared += 1;
            if !fits(output, &real) {
                done.wrong.push(format!(
                    "{command} on {recording} prints\n{real}--- quoted ---\n{output}"
                ));
                if !output.lines().any(|line| line == OMITTED) {
                    done.text = done.text.replacen(output, &real, 1);
                }
            }
        }
    }
    done
}

#[test]
#[ignore = "takes long: make test-loops"]
fn every_command_of_every_document_runs() {
    let (mut all, mut wrong) = (Done::default(), Vec::new());
    for file in documents() {
        // Pages of providers have a model of each provider, in the test `providers`.
        if file.starts_with("docs/migrate") || file.starts_with("tests") {
            continue;
        }
        let text = fs::read_to_string(root().join(&file)).unwrap();
        let done = page(&text);
        if bless() && done.text != text {
            fs::write(root().join(&file), &done.text).unwrap();
        }
        let name = |why: String| format!("{}: {why}", file.display());
        wrong.extend(done.wrong.into_iter().map(name));
        if file.starts_with("docs/runbooks") && !file.ends_with("README.md") {
            assert!(done.ran > done.parsed, "{}", file.display());
            assert!(done.compared > 1, "{} quotes nothing", file.display());
        }
        all.ran += done.ran;
        all.parsed += done.parsed;
        all.compared += done.compared;
    }
    assert!(wrong.is_empty() || bless(), "{}", wrong.join("\n\n"));
    let Done { ran, compared, .. } = all;
    assert!(ran > 40 && compared > 1, "{ran} ran, {compared} compared");
}

#[test]
fn wrong_pages_are_found() {
    let right = "<!-- recording: seed-ipvs -->\n```console\n$ kpx doctor --only MX -o short\n```\n";
    let quoted = |output: &str| right.replace("short\n", &format!("short\n{output}"));
    let wrong = |text: &str| page(text).wrong.len();
    assert_eq!(wrong(right), 0);
    assert_eq!(wrong(&quoted("...\n")), 0);
    assert_eq!(wrong(&quoted("no such line\n")), 1);
    assert_eq!(wrong(&right.replace("doctor", "doctors")), 1);
    assert_eq!(wrong("```console\n$ kpx top --nosuch\n```\n"), 1);
    assert_eq!(
        wrong("```console\n$ kubectl apply -f deploy/nosuch.yaml\n```\n"),
        1
    );
    assert_eq!(wrong("```console\n$ kpx reconcile --apply\n```\n"), 0);
    assert_eq!(page(right).ran, 1);
    assert!(fits("a\n...\nc\n", "a\nb\nc\n") && fits("...\nb\n...\n", "a\nb\nc\n"));
    assert!(
        !fits("a\n...\nb\n", "a\nb\nc\n") && !fits("a\n", "a\nb\n") && !fits("b\n...\n", "a\nb\n")
    );
    assert!(Path::new(&Desk::new().bundle("seed-ipvs seed-iptables")).exists());
}
