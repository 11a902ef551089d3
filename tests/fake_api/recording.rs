//! Nodes that are recordings: kpx in a pod on one answers with what was recorded there.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use kpx::cli::{Cli, Command};
use kpx::evidence::{self, Manifest};
use kpx::host;

use super::{Exec, Fate, Kubelet, Pod, Pretend};

/// kpx in a pod into which it was copied.
const COPY: &str = "/kpx/kpx";

/// kpx in an image that contains it.
const OWN: &str = "kpx";

/// Time from the creation of a pod until it runs.
const START: Duration = Duration::from_millis(30);

/// Time limit of a command that never ends, so that its thread does.
const NEVER: Duration = Duration::from_secs(120);

/// The trouble with a pod on a node.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Trouble {
    /// Its container waits: a reason, and a message.
    Waits(&'static str, &'static str),
    /// It has no shell.
    NoShell,
    /// A byte of the copy differs.
    Damaged,
    /// The copy does not start: the message of the shell or runtime.
    NotRunnable(&'static str),
    /// kpx in it fails, with this exit status and message.
    Fails(u8, &'static str),
    /// The answer of kpx in it is cut.
    Cut,
    /// The pod is killed while kpx reads.
    Killed,
    /// kpx in it never ends.
    Hangs,
}

/// Nodes by their recordings.
#[derive(Clone, Default)]
pub(crate) struct Recordings(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    /// The folder of each node's recording.
    nodes: BTreeMap<String, PathBuf>,
    troubles: BTreeMap<String, Trouble>,
    /// The program that was copied, by the uid of the pod.
    copies: BTreeMap<String, Vec<u8>>,
    /// The nodes with the commands that ran on them.
    ran: Vec<(String, Vec<String>)>,
    /// Nodes on which pods were started, in their order.
    started: Vec<String>,
}

impl Recordings {
    /// The node `name` is the recording in `folder` from now on.
    pub(crate) fn deal(&self, name: &str, folder: &Path) {
        let mut state = self.0.lock().unwrap();
        state.nodes.insert(name.to_owned(), folder.to_owned());
    }

    /// From now on there is `trouble` with pods on the node `name`.
    pub(crate) fn trouble(&self, name: &str, trouble: Trouble) {
        let mut state = self.0.lock().unwrap();
        state.troubles.insert(name.to_owned(), trouble);
    }

    /// Returns the nodes with the commands that ran on them.
    pub(crate) fn ran(&self) -> Vec<(String, Vec<String>)> {
        self.0.lock().unwrap().ran.clone()
    }

    /// Returns the nodes on which a pod that reads standard input was started.
    pub(crate) fn started(&self) -> Vec<String> {
        self.0.lock().unwrap().started.clone()
    }

    /// Returns what `/kpx/kpx snapshot` prints on the node `name`.
    fn snapshot(&self, name: &str, command: &[String]) -> Exec {
        let refuse = |why: &str| Exec::Ended(2, Vec::new(), format!("error: {why}\n"));
        let words: Vec<OsString> = command.iter().map(OsString::from).collect();
        let cli = match Cli::parse_from_words(&words) {
            Ok(cli) => cli,
            Err(why) => return refuse(&why.to_string()),
        };
        let Command::Snapshot(args) = &cli.command else {
            return Exec::NotStarted(Exec::absent(command));
        };
        let global = &cli.global;
        let is_here = global.root.as_deref() == Some(Path::new("/host"))
            && global.no_api
            && global.nodes == [name]
            && global.output.as_deref() == Some("-")
            && !args.items.is_empty();
        if !is_here {
            return refuse("this is no command for a pod on a node");
        }
        let Some(folder) = self.0.lock().unwrap().nodes.get(name).cloned() else {
            return refuse("the node has no recording");
        };
        let read = evidence::load(&folder, &args.items).unwrap();
        let time = host::clock::now().to_string();
        let manifest = Manifest::of(&read, time, Some(name.to_owned()));
        let mut out = Vec::new();
        evidence::write_to(&read, &manifest, &mut out).unwrap();
        Exec::Ended(0, out, String::new())
    }
}

impl Kubelet for Recordings {
    fn start(&self, pod: &Pod) -> Fate {
        if !pod.reads() {
            return Pretend.start(pod);
        }
        thread::sleep(START);
        let mut state = self.0.lock().unwrap();
        state.started.push(pod.node.clone());
        match state.troubles.get(&pod.node).copied() {
            Some(Trouble::Waits(reason, message)) => Fate::Waits(reason, message),
            _ => Fate::Ready,
        }
    }

    fn stop(&self, _: &Pod) {}

    fn log(&self, pod: &Pod) -> String {
        Pretend.log(pod)
    }

    fn finds(&self, pod: &Pod, command: &[String]) -> bool {
        let state = self.0.lock().unwrap();
        command[0] != "sh" || state.troubles.get(&pod.node) != Some(&Trouble::NoShell)
    }

    fn exec(&self, pod: &Pod, command: &[String], input: &[u8]) -> Exec {
        let uid = pod.object["metadata"]["uid"].to_string();
        let (trouble, copy) = {
            let mut state = self.0.lock().unwrap();
            state.ran.push((pod.node.clone(), command.to_vec()));
            let trouble = state.troubles.get(&pod.node).copied();
            (trouble, state.copies.get(&uid).cloned())
        };
        let words: Vec<&str> = command.iter().map(String::as_str).collect();
        match words.as_slice() {
            ["sh", "-c", "chmod 755 /kpx"] => Exec::Ended(0, Vec::new(), String::new()),
            ["sh", "-c", script] if script.starts_with(&format!("cat > {COPY} &&")) => {
                let mut copy = input.to_vec();
                if trouble == Some(Trouble::Damaged) {
                    copy[0] ^= 1;
                }
                self.0.lock().unwrap().copies.insert(uid, copy);
                Exec::Ended(0, Vec::new(), String::new())
            }
            // The image contains kpx if its main process is one.
            [OWN, ..] if pod.object["spec"]["containers"][0]["command"][0] == OWN => {
                self.run(pod, command, trouble)
            }
            [COPY, rest @ ..] => {
                let Some(copy) = copy else {
                    return Exec::NotStarted(Exec::absent(command));
                };
                if let Some(Trouble::NotRunnable(why)) = trouble {
                    return Exec::NotStarted(why.to_owned());
                }
                if *rest == ["version", "--digest"] {
                    let digest = host::sha256(&copy) + "\n";
                    return Exec::Ended(0, digest.into(), String::new());
                }
                self.run(pod, command, trouble)
            }
            _ => Exec::Ended(
                127,
                Vec::new(),
                format!("sh: {}: not found\n", words.join(" ")),
            ),
        }
    }
}

impl Recordings {
    fn run(&self, pod: &Pod, command: &[String], trouble: Option<Trouble>) -> Exec {
        let done = self.snapshot(&pod.node, command);
        match (trouble, done) {
            (Some(Trouble::Fails(code, why)), _) => Exec::Ended(code, Vec::new(), why.to_owned()),
            (Some(Trouble::Cut), Exec::Ended(code, mut out, err)) => {
                out.truncate(out.len() / 2);
                Exec::Ended(code, out, err)
            }
            (Some(Trouble::Killed), _) => Exec::Killed,
            (Some(Trouble::Hangs), _) => {
                let begin = Instant::now();
                while begin.elapsed() < NEVER {
                    thread::sleep(Duration::from_millis(20));
                }
                Exec::Killed
            }
            (_, done) => done,
        }
    }
}
