//! The status of a pod, from the API server.

use serde_json::Value;

use super::reply::report;
use super::word;
use crate::wire::Outcome;
use kpx_node::cluster::NOT_PULLED;

/// The phase of a pod.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Phase {
    /// It has not started, and why.
    Waits(String),
    /// It runs.
    Runs,
    /// It has ended: its exit status, where that is known, and the kubelet's reason.
    Over(Option<i64>, String),
}

/// A pod that has ended.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Finished {
    /// Its exit status, where that is known.
    pub code: Option<i64>,
    /// The kubelet's reason; empty if there is none.
    pub reason: String,
    /// Its log.
    pub log: String,
}

/// Returns the phase of `pod`.
pub fn phase(pod: &Value) -> Phase {
    let status = &pod["status"];
    let state = &status["containerStatuses"][0]["state"];
    match status["phase"].as_str() {
        Some("Succeeded" | "Failed") => {
            let reasons = [
                &status["reason"],
                &status["message"],
                &state["terminated"]["reason"],
            ];
            let reasons = reasons.map(word).into_iter();
            // The exit status says it already.
            let said = ["", "Error", "Completed"];
            let reasons: Vec<&str> = reasons.filter(|reason| !said.contains(reason)).collect();
            Phase::Over(state["terminated"]["exitCode"].as_i64(), reasons.join(": "))
        }
        Some("Running") => Phase::Runs,
        other => {
            let waiting = &state["waiting"];
            let reason = match word(&waiting["reason"]) {
                "" => other.unwrap_or("Pending"),
                reason => reason,
            };
            let message = word(&waiting["message"]);
            let colon = if message.is_empty() { "" } else { ": " };
            Phase::Waits(format!("{reason}{colon}{message}"))
        }
    }
}

/// Reasons of a pod that the kubelet or the loss of its node ended.
const ENDED: &[&str] = &[
    "Evicted",
    "NodeLost",
    "NodeShutdown",
    "Preempting",
    "Shutdown",
    "Terminated",
    "UnexpectedAdmissionError",
];

/// Reasons of a container that was ended from outside.
const KILLED: &[&str] = &["OOMKilled", "ContainerStatusUnknown"];

/// Exit statuses of SIGKILL and SIGTERM, and of a container whose end was not observed.
const SIGNALS: &[i64] = &[137, 143, 255];

/// Reasons of a container that never starts.
const HOPELESS: &[&str] = &[
    "InvalidImageName",
    "ErrImageNeverPull",
    "CreateContainerConfigError",
];

/// Reasons of a container whose image the kubelet cannot pull, and tries to pull again.
/// Returns the unique id of `pod`.
pub fn uid(pod: &Value) -> String {
    word(&pod["metadata"]["uid"]).to_owned()
}

/// Returns whether `pod` is being deleted.
pub fn is_ending(pod: &Value) -> bool {
    !pod["metadata"]["deletionTimestamp"].is_null()
}

/// Returns whether the container of `pod` never starts.
pub fn is_hopeless(pod: &Value) -> bool {
    HOPELESS.contains(&waiting(pod))
}

/// Returns why the image of `pod` has not been pulled; `None` if the kubelet has not failed to pull it.
pub fn not_pulled(pod: &Value) -> Option<&str> {
    Some(waiting(pod)).filter(|reason| NOT_PULLED.contains(reason))
}

/// Returns the reason why the container of `pod` waits; empty if it does not.
fn waiting(pod: &Value) -> &str {
    word(&pod["status"]["containerStatuses"][0]["state"]["waiting"]["reason"])
}

/// Returns why `pod`, which printed `log`, was ended from outside before its job was done; `None` if it was not.
pub fn lost(pod: &Value, log: &str) -> Option<String> {
    let Phase::Over(code, reason) = phase(pod) else {
        return None;
    };
    let status = &pod["status"];
    let terminated = &status["containerStatuses"][0]["state"]["terminated"];
    let outside = is_ending(pod)
        || ENDED.contains(&word(&status["reason"]))
        || KILLED.contains(&word(&terminated["reason"]))
        || code.is_some_and(|code| SIGNALS.contains(&code));
    let outcome = report(log).map(|report| report.outcome);
    let done = code == Some(0) || matches!(outcome, Some(Outcome::Reverted | Outcome::Planned));
    if !outside || done {
        return None;
    }
    let code = code.map(|code| format!("exit status {code}"));
    let parts = [Some(reason), code].into_iter().flatten();
    let parts: Vec<String> = parts.filter(|part| !part.is_empty()).collect();
    Some(if parts.is_empty() {
        "it was deleted".to_owned()
    } else {
        parts.join("; ")
    })
}
