//! Nodes that are recordings: kpx in a pod on one answers with what was recorded there.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use kpx::cli::{Cli, Command};
use kpx_host::{self as host, Query};
use kpx_judge::plan::Plan;
use kpx_node::action::COPY;
use kpx_node::apply::{Line, StepError, Stopped};
use kpx_node::evidence::{self, Manifest};
use serde_json::{Value, json};

use super::{Copies, Exec, Fate, Kubelet, Pod, Pretend};

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
    /// The second step of a plan fails.
    Stops,
    /// kpx is killed in the second step of a plan.
    Dies,
}

/// Nodes by their recordings.
#[derive(Clone, Default)]
pub(crate) struct Recordings(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    /// The folder of each node's recording.
    nodes: BTreeMap<String, PathBuf>,
    troubles: BTreeMap<String, Trouble>,
    copies: Copies,
    /// The nodes with the commands that ran on them.
    ran: Vec<(String, Vec<String>)>,
    /// The plans that were carried out, with their node.
    plans: Vec<(String, Plan)>,
    /// The logs of pods that carried a plan out.
    logs: BTreeMap<String, String>,
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

    /// Returns the plans that were carried out, with their node.
    pub(crate) fn plans(&self) -> Vec<(String, Plan)> {
        self.0.lock().unwrap().plans.clone()
    }

    /// Logs what kpx in a pod prints that carries a plan out.
    fn apply(&self, pod: &Pod) -> Fate {
        let mut state = self.0.lock().unwrap();
        let plan = state.copies.plan(pod).unwrap();
        let trouble = state.troubles.get(&pod.node).copied();
        let (mut lines, mut fate) = (Vec::new(), Fate::Ended(0));
        for number in 0..plan.steps.len() {
            lines.push(Line::Begins(number));
            if number == 1 && trouble == Some(Trouble::Stops) {
                lines.push(Line::Undoes(0));
                let error = StepError::Refused("the kernel refuses".to_owned());
                let left = Vec::new();
                let step = 1;
                lines.push(Line::Ended(Some(Stopped { step, error, left })));
                fate = Fate::Ended(4);
                break;
            }
            if number == 1 && trouble == Some(Trouble::Dies) {
                fate = Fate::OutOfMemory;
                break;
            }
        }
        if fate == Fate::Ended(0) {
            lines.push(Line::Ended(None));
        }
        let lines = lines
            .iter()
            .map(|line| serde_json::to_string(line).unwrap() + "\n");
        let log: String = lines.collect();
        state.logs.insert(pod.key.name.clone(), log);
        state.plans.push((pod.node.clone(), plan));
        fate
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
            && args.file.as_deref() == Some(Path::new("-"))
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
        let applies = pod.object["spec"]["containers"][0]["command"].as_array();
        if !pod.reads() && applies.is_some_and(|words| words.contains(&"--apply".into())) {
            return self.apply(pod);
        }
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
        let name = &pod.key.name;
        let log = self.0.lock().unwrap().logs.get(name).cloned();
        log.unwrap_or_else(|| Pretend.log(pod))
    }

    fn at_end_of_input(&self, pod: &Pod) -> Option<u8> {
        let copies = self.0.lock().unwrap().copies.clone();
        copies.at_end_of_input(pod)
    }

    fn finds(&self, pod: &Pod, command: &[String]) -> bool {
        let state = self.0.lock().unwrap();
        command[0] != "sh" || state.troubles.get(&pod.node) != Some(&Trouble::NoShell)
    }

    fn exec(&self, pod: &Pod, command: &[String], input: &[u8]) -> Exec {
        let (trouble, copies) = {
            let mut state = self.0.lock().unwrap();
            state.ran.push((pod.node.clone(), command.to_vec()));
            let trouble = state.troubles.get(&pod.node).copied();
            (trouble, state.copies.clone())
        };
        let mut input = input.to_vec();
        if let (Some(Trouble::Damaged), Some(byte)) = (trouble, input.first_mut()) {
            *byte ^= 1;
        }
        match (command[0].as_str(), trouble) {
            (COPY, Some(Trouble::NotRunnable(why))) if copies.has(pod) => {
                return Exec::NotStarted(why.to_owned());
            }
            // The image contains kpx if its main process is one.
            (OWN, _)
                if command[1] != "pod"
                    && pod.object["spec"]["containers"][0]["command"][0] == OWN =>
            {
                return self.run(pod, command, trouble);
            }
            _ => {}
        }
        match copies.exec(pod, command, &input) {
            Some(done) => done,
            None if command[0] == COPY && copies.has(pod) => self.run(pod, command, trouble),
            None => Exec::Ended(
                127,
                Vec::new(),
                format!("sh: {}: not found\n", command.join(" ")),
            ),
        }
    }
}

impl Recordings {
    fn run(&self, pod: &Pod, command: &[String], trouble: Option<Trouble>) -> Exec {
        let done = match command
            .last()
            .and_then(|word| word.strip_prefix("--query="))
        {
            Some(query) => answer(query),
            None => self.snapshot(&pod.node, command),
        };
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

/// Returns the output of `kpx pod --query` on a node whose connections are answered and whose DNS server is silent.
fn answer(query: &str) -> Exec {
    let answer = match serde_json::from_str(query).unwrap() {
        Query::Probe { .. } => json!({"from": "10.0.2.15:40000", "met": "answered"}),
        Query::Dns { server, .. } => {
            json!({"Err": {"isSilent": true, "why": format!("{server}: no answer")}})
        }
    };
    Exec::Ended(0, answer.to_string().into(), String::new())
}

/// Removes from a report the parts that depend on the time at which a recording is read.
pub(crate) fn remove_times(value: &mut Value) {
    match value {
        Value::Array(all) => all.iter_mut().for_each(remove_times),
        Value::Object(all) => {
            all.retain(|key, _| !["taken", "ageSeconds"].contains(&key.as_str()));
            all.values_mut().for_each(remove_times);
        }
        _ => {}
    }
}
