//! Containers into which kpx copies itself.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};

use kpx_host as host;
use kpx_judge::plan::Plan;
use kpx_node::action::{COPY, START};
use kpx_node::apply::SentPlan;
use serde_json::json;

use super::{Exec, Pod};

/// The copies in all pods, by the uid of the pod.
#[derive(Clone, Default)]
pub(crate) struct Copies(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    copies: BTreeMap<String, Vec<u8>>,
    started: BTreeSet<String>,
    /// The plans that arrived, by the uid of the pod.
    plans: BTreeMap<String, SentPlan>,
    /// Why no copy runs.
    broken: Option<&'static str>,
}

impl Copies {
    /// Whether a copy of kpx is in the container of `pod`.
    pub(crate) fn has(&self, pod: &Pod) -> bool {
        self.0.lock().unwrap().copies.contains_key(&uid(pod))
    }

    /// From now on no copy runs: the message of the runtime.
    pub(crate) fn never_run(&self, why: &'static str) {
        self.0.lock().unwrap().broken = Some(why);
    }

    /// Runs `command` if it belongs to the copy.
    pub(crate) fn exec(&self, pod: &Pod, command: &[String], input: &[u8]) -> Option<Exec> {
        let done = |code, out: &str| Some(Exec::Ended(code, out.into(), String::new()));
        let words: Vec<&str> = command.iter().map(String::as_str).collect();
        let mut state = self.0.lock().unwrap();
        let uid = uid(pod);
        if let (COPY, Some(why)) = (words[0], state.broken)
            && state.copies.contains_key(&uid)
        {
            return Some(Exec::NotStarted(why.to_owned()));
        }
        match words.as_slice() {
            ["sh", "-c", "chmod 755 /kpx"] => done(0, ""),
            ["sh", "-c", script] if *script == format!("[ -e {START} ]") => {
                done(u8::from(!state.started.contains(&uid)), "")
            }
            ["sh", "-c", script] if script.starts_with(&format!("cat > {COPY} &&")) => {
                state.copies.insert(uid, input.to_vec());
                done(0, "")
            }
            ["sh", "-c", script] if *script == format!(": > {START}") => {
                assert!(state.copies.contains_key(&uid), "there is no copy");
                assert!(state.started.insert(uid), "it is started twice");
                Some(Exec::Starts(Box::new(inner(pod))))
            }
            [COPY | "kpx", "pod", "--keep-plan"] => {
                let plan = serde_json::from_slice(input).unwrap();
                state.plans.insert(uid.clone(), plan);
                assert!(state.started.insert(uid), "it is started twice");
                Some(Exec::Starts(Box::new(inner(pod))))
            }
            [COPY, "version", "--digest"] => match state.copies.get(&uid) {
                Some(copy) => done(0, &(host::sha256(copy) + "\n")),
                None => Some(Exec::NotStarted(Exec::absent(command))),
            },
            _ => None,
        }
    }

    /// Returns the plan that arrived in `pod`.
    pub(crate) fn plan(&self, pod: &Pod) -> Option<Plan> {
        let sent = self.0.lock().unwrap().plans.get(&uid(pod)).cloned();
        sent.map(Plan::from)
    }

    /// Returns with which status the container ends when its standard input does; `None` if it runs on.
    pub(crate) fn at_end_of_input(&self, pod: &Pod) -> Option<u8> {
        if self.0.lock().unwrap().started.contains(&uid(pod)) {
            return None;
        }
        let script = pod.object["spec"]["containers"][0]["command"][2].as_str();
        let status = script.and_then(|script| {
            let (_, rest) = script.split_once("|| exit ")?;
            rest.split(';').next()?.parse().ok()
        });
        Some(status.unwrap_or(0))
    }
}

fn uid(pod: &Pod) -> String {
    pod.object["metadata"]["uid"].to_string()
}

/// Returns the pod with the command that its shell runs in the end.
fn inner(pod: &Pod) -> Pod {
    let mut inner = pod.clone();
    let container = &mut inner.object["spec"]["containers"][0];
    let mut words = container["command"].as_array().unwrap().clone();
    if words[0] == "sh" {
        words.drain(..4);
        assert_eq!(words[0], COPY);
        words[0] = json!("kpx");
    }
    container["command"] = json!(words);
    container["stdin"] = json!(false);
    inner
}
