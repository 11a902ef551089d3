//! The pod that does on a node what only can be done there: kpx itself, for as long as one command takes.

use serde::Deserialize;
use serde_json::{Value, json};

use super::digest;
use super::state::FleetPlan;
use crate::action::{KubeCommand, OURS, Object, Only, Resource};
use crate::migrate::outlook::{Outlook, Sight};

/// The label with the name of the migration.
pub const MIGRATION: &str = "kpx.dev/migration";

/// Where the node's root is in the pod.
const ROOT: &str = "/host";

/// What a pod does.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Job {
    /// Builds the new mode.
    Prepare,
    /// Verifies it, and removes the old one.
    Finish,
    /// Goes back.
    Rollback,
    /// Goes back as far as can be before kube-proxy is restarted; somebody else restarts it, and then it is finished.
    RollbackUntilRestart,
    /// Says what stands in the way, and what a move costs.
    Look,
    /// Keeps the bridge up to date whenever no other kpx on the node does: it is there before the first that sets a bridge
    /// up, and ends when there is none any more.
    Guard,
}

impl Job {
    const fn word(self) -> &'static str {
        match self {
            Self::Prepare => "prepare",
            Self::Finish => "finish",
            Self::Rollback | Self::RollbackUntilRestart => "rollback",
            Self::Look => "look",
            Self::Guard => "guard",
        }
    }
}

/// How a pod ended.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Ended {
    /// As it should.
    Well,
    /// There was nothing to do: the node is in the new mode.
    Already,
    /// Otherwise, and why.
    Badly(String),
}

/// What kpx prints at the end, and on its way.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Line {
    kind: String,
    outcome: String,
    why: Option<String>,
    outlook: Option<Outlook>,
    event: String,
    stage: String,
    title: String,
    words: String,
}

/// Returns the arguments of kpx for `job`, as people type them on the node.
pub fn arguments(plan: &FleetPlan, job: Job) -> Vec<String> {
    if job == Job::Guard {
        // Until what sets the bridge up has had its time.
        let awaits = format!("{}s", plan.limit);
        let words = ["bridge", "guard", "--await", &awaits, "--mode"];
        let mut all: Vec<String> = words.map(str::to_owned).into();
        all.push(plan.from.name().to_owned());
        let mut given = plan.arguments.iter();
        if given.any(|word| word == "--lease")
            && let Some(lease) = given.next()
        {
            all.extend(["--lease".to_owned(), lease.clone()]);
        }
        return all;
    }
    let word = if job == Job::Look {
        Job::Prepare.word()
    } else {
        job.word()
    };
    let mut all = vec!["migrate".to_owned(), word.to_owned()];
    if matches!(job, Job::Prepare | Job::Look) {
        all.extend(["--to".to_owned(), plan.there.mode.name().to_owned()]);
        if let Some(scheduler) = &plan.there.scheduler {
            all.extend(["--scheduler".to_owned(), scheduler.clone()]);
        }
        all.extend(plan.there.strict_arp.map(|on| format!("--strict-arp={on}")));
        // A node whose kube-proxy went there by itself has as much to be rid of as the others.
        all.extend(["--left".to_owned(), plan.from.name().to_owned()]);
        if let Some(strategy) = plan.strategy {
            all.extend(["--strategy".to_owned(), strategy.to_string()]);
        }
        for (flag, is) in [
            ("--delete-bare-pods", plan.evict.bare),
            ("--delete-emptydir-data", plan.evict.empty_dir),
        ] {
            all.extend(is.then(|| flag.to_owned()));
        }
        if !plan.skip.is_empty() {
            all.extend(["--skip".to_owned(), plan.skip.join(",")]);
        }
    }
    if job == Job::RollbackUntilRestart {
        all.push("--until-restart".to_owned());
    }
    all.extend(plan.arguments.iter().cloned());
    if job == Job::Look {
        all.extend(["--dry-run", "--brief"].map(str::to_owned));
    } else {
        all.push("--yes".to_owned());
    }
    all
}

/// Returns what people type on the node for `job`.
pub fn command(plan: &FleetPlan, job: Job) -> String {
    format!("kpx {}", arguments(plan, job).join(" "))
}

/// Returns the pod for `job` on `node`.
pub fn object(plan: &FleetPlan, node: &str, job: Job) -> Object {
    // A node's name may be as long as a pod's.
    let short = digest(&format!("{} {node}", plan.id));
    Object::of_system(Resource::Pod, format!("kpx-{}-{short}", job.word()))
}

/// Returns the command that makes the pod for `job` on `node`, of `image`.
pub fn create(plan: &FleetPlan, image: &str, node: &str, job: Job) -> KubeCommand {
    let object = object(plan, node, job);
    let mut command = vec!["kpx".to_owned()];
    command.extend(arguments(plan, job));
    if job != Job::Guard {
        command.extend(["--output", "json"].map(str::to_owned));
        // A look takes up nothing that was begun.
        command.extend((job != Job::Look).then(|| "--again".to_owned()));
    }
    command.extend(["--root", ROOT, "--node", node].map(str::to_owned));
    let mut body = json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": object.name,
            "namespace": "kube-system",
            "labels": {(OURS.0): OURS.1, (MIGRATION): plan.id},
        },
        "spec": {
            "nodeName": node,
            "hostNetwork": true,
            "hostPID": true,
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": 5,
            "priorityClassName": "system-node-critical",
            "serviceAccountName": plan.service_account,
            "tolerations": [{"operator": "Exists"}],
            "containers": [{
                "name": "kpx",
                "image": image,
                "command": command,
                "securityContext": {"privileged": true},
                "volumeMounts": [{"name": "host", "mountPath": ROOT, "mountPropagation": "HostToContainer"}],
            }],
            "volumes": [{"name": "host", "hostPath": {"path": "/"}}],
        },
    });
    if job == Job::Guard {
        // It ends with the bridge, and not before.
        body["spec"]["restartPolicy"] = json!("OnFailure");
    } else {
        body["spec"]["activeDeadlineSeconds"] = json!(plan.limit);
    }
    KubeCommand::Create { object, body }
}

/// Returns the command that deletes the pod for `job` on `node`.
pub fn delete(plan: &FleetPlan, node: &str, job: Job) -> KubeCommand {
    KubeCommand::Delete {
        object: object(plan, node, job),
        only: Only::Ours,
    }
}

/// Where a pod stands.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Phase {
    /// It has not started, and why.
    Waits(String),
    /// It runs.
    Runs,
    /// It is over: with this exit status, where it is known, and what the kubelet says.
    Over(Option<i64>, String),
}

/// Returns where `pod` stands.
pub fn phase(pod: &Value) -> Phase {
    let status = &pod["status"];
    let state = &status["containerStatuses"][0]["state"];
    let word = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    match status["phase"].as_str() {
        Some("Succeeded" | "Failed") => {
            let said = [
                &status["reason"],
                &status["message"],
                &state["terminated"]["reason"],
            ];
            let said: Vec<String> = said
                .into_iter()
                .map(word)
                .filter(|s| !s.is_empty())
                .collect();
            Phase::Over(state["terminated"]["exitCode"].as_i64(), said.join(": "))
        }
        Some("Running") => Phase::Runs,
        other => {
            let waiting = &state["waiting"];
            let reason = match word(&waiting["reason"]) {
                none if none.is_empty() => other.unwrap_or("Pending").to_owned(),
                reason => reason,
            };
            let message = word(&waiting["message"]);
            let colon = if message.is_empty() { "" } else { ": " };
            Phase::Waits(format!("{reason}{colon}{message}"))
        }
    }
}

/// Reasons of a pod that was ended from outside: by the kubelet, or with its node.
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

/// Exit statuses of a process that was ended by SIGKILL or SIGTERM, and of one whose end nobody saw.
const SIGNALS: &[i64] = &[137, 143, 255];

/// Reasons of a container that never starts, however long it is waited for.
const HOPELESS: &[&str] = &[
    "InvalidImageName",
    "ErrImageNeverPull",
    "CreateContainerConfigError",
];

/// Returns the unique id of `pod`.
pub fn uid(pod: &Value) -> String {
    let uid = pod["metadata"]["uid"].as_str();
    uid.unwrap_or_default().to_owned()
}

/// Returns whether `pod` is being deleted.
pub fn is_ending(pod: &Value) -> bool {
    !pod["metadata"]["deletionTimestamp"].is_null()
}

/// Returns whether `pod` waits for what does not come.
pub fn is_hopeless(pod: &Value) -> bool {
    let waiting = &pod["status"]["containerStatuses"][0]["state"]["waiting"];
    let reason = waiting["reason"].as_str();
    reason.is_some_and(|reason| HOPELESS.contains(&reason))
}

/// Returns why `pod`, which printed `log`, was ended from outside before it had done its work, if it was.
pub fn lost(pod: &Value, log: &str) -> Option<String> {
    let Phase::Over(code, said) = phase(pod) else {
        return None;
    };
    let status = &pod["status"];
    let ended = &status["containerStatuses"][0]["state"]["terminated"];
    let is = |value: &Value, of: &[&str]| value.as_str().is_some_and(|word| of.contains(&word));
    let outside = is_ending(pod)
        || is(&status["reason"], ENDED)
        || is(&ended["reason"], KILLED)
        || code.is_some_and(|code| SIGNALS.contains(&code));
    let told = report(log);
    let done = code == Some(0) || matches!(told.outcome.as_str(), "reverted" | "planned");
    if !outside || done {
        return None;
    }
    let code = code.map(|code| format!("exit status {code}"));
    let said = [Some(said), code].into_iter().flatten();
    let said: Vec<String> = said.filter(|part| !part.is_empty()).collect();
    Some(if said.is_empty() {
        "it was deleted".to_owned()
    } else {
        said.join("; ")
    })
}

/// A pod that is over.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Over {
    /// Its exit status, where it is known.
    pub code: Option<i64>,
    /// What the kubelet says.
    pub said: String,
    /// What it printed.
    pub log: String,
}

fn report(log: &str) -> Line {
    let mut lines = log.lines().rev().map(line);
    let report = lines.find(|line| line.kind == "MigrateReport");
    report.unwrap_or_default()
}

/// Returns what a look came to, by what the pod printed.
pub fn seen(over: &Over) -> Sight {
    let Over { code, said, log } = over;
    let report = report(log);
    match report.outlook {
        Some(outlook) => Sight::Seen(outlook),
        None if report.outcome == "already" => Sight::Already,
        None => Sight::Failed(last_words(*code, said, log)),
    }
}

/// Returns how the pod ended, by its exit status and what it printed.
pub fn ended(over: &Over) -> Ended {
    let Over { code, said, log } = over;
    let code = *code;
    let report = report(log);
    match (code, report.outcome.as_str()) {
        (Some(0), "already") => Ended::Already,
        (Some(0), "prepared" | "migrated" | "rolled-back" | "reverted") => Ended::Well,
        _ => Ended::Badly(report.why.unwrap_or_else(|| last_words(code, said, log))),
    }
}

fn last_words(code: Option<i64>, said: &str, log: &str) -> String {
    let code = code.map_or(String::new(), |code| format!("exit status {code}"));
    let words = log.lines().filter(|text| line(text).kind.is_empty());
    let words: Vec<&str> = words
        .map(str::trim)
        .filter(|text| !text.is_empty())
        .collect();
    let from = words.len().saturating_sub(5);
    let parts = [code.as_str(), said, &words[from..].join(" ")];
    let parts: Vec<&str> = parts.into_iter().filter(|part| !part.is_empty()).collect();
    match parts.as_slice() {
        [] => "it ended without a word".to_owned(),
        parts => parts.join("; "),
    }
}

/// Returns whether, on its way back, kpx waits for a kube-proxy in the old mode: what comes before is done.
pub fn awaits_restart(log: &str) -> bool {
    let here =
        |of: &Line| of.event == "begins" && matches!(of.stage.as_str(), "restart" | "verify");
    log.lines().map(line).any(|of| here(&of))
}

/// What a line that kpx printed tells people.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Told {
    /// What begins.
    Says(String),
    /// How far it is, or what is waited for.
    Waits(String),
}

/// Returns what `text`, a line that kpx printed, tells people of what it does.
pub fn told(text: &str) -> Option<Told> {
    let line = line(text);
    match line.event.as_str() {
        "begins" if !line.title.is_empty() => Some(Told::Says(line.title)),
        // Who keeps a pod on the node, and a kube-proxy that does not start, are for people to act on.
        "evict" if !line.words.is_empty() => Some(Told::Says(line.words)),
        "gates" if line.words.contains("crash loop") => Some(Told::Says(line.words)),
        "step" | "undo" | "gates" | "drain" if !line.words.is_empty() => {
            Some(Told::Waits(line.words))
        }
        _ => None,
    }
}

fn line(text: &str) -> Line {
    serde_json::from_str(text).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ended(code: Option<i64>, said: &str, log: &str) -> Ended {
        super::ended(&Over {
            code,
            said: said.to_owned(),
            log: log.to_owned(),
        })
    }

    #[test]
    fn a_look_is_told_by_its_report_or_its_last_words() {
        let over = |code, log: &str| Over {
            code: Some(code),
            said: String::new(),
            log: log.to_owned(),
        };
        let log = r#"{"kind":"MigrateReport","outcome":"planned","outlook":{"blockers":["KM01: x"],"loss":"none"}}"#;
        let Sight::Seen(outlook) = seen(&over(1, log)) else {
            panic!();
        };
        assert_eq!(
            (&outlook.blockers[..], outlook.loss.as_str()),
            (&["KM01: x".to_owned()][..], "none")
        );
        let log = r#"{"kind":"MigrateReport","outcome":"already"}"#;
        assert_eq!(seen(&over(0, log)), Sight::Already);
        let why = "exit status 4; kpx: no".to_owned();
        assert_eq!(seen(&over(4, "kpx: no\n")), Sight::Failed(why));
    }

    #[test]
    fn how_it_ended_is_told_by_its_report_and_its_status() {
        let report = |outcome: &str, why: &str| {
            format!(
                "{{\"kind\":\"MigrateEvent\",\"event\":\"begins\",\"stage\":\"build\",\"title\":\"x\"}}\n{{\"kind\":\"MigrateReport\",\"outcome\":\"{outcome}\"{why}}}\n"
            )
        };
        assert_eq!(ended(Some(0), "", &report("prepared", "")), Ended::Well);
        assert_eq!(ended(Some(0), "", &report("already", "")), Ended::Already);
        let why = ",\"why\":\"no ip_vs\"";
        assert_eq!(
            ended(Some(4), "", &report("stopped", why)),
            Ended::Badly("no ip_vs".to_owned())
        );
        // A status alone is not enough, nor is a report.
        let log = "kpx: cannot open\n  because x\n";
        assert_eq!(
            ended(Some(4), "", log),
            Ended::Badly("exit status 4; kpx: cannot open because x".to_owned())
        );
        assert!(matches!(ended(Some(0), "", log), Ended::Badly(_)));
        assert!(matches!(
            ended(Some(137), "OOMKilled", &report("migrated", "")),
            Ended::Badly(_)
        ));
        let deadline = ended(None, "DeadlineExceeded", "");
        assert_eq!(deadline, Ended::Badly("DeadlineExceeded".to_owned()));
    }

    #[test]
    fn a_guard_is_there_until_the_bridge_is_gone() {
        let fields = |mode| json!({"mode": mode, "scheduler": null, "strictArp": null});
        let plan: FleetPlan = serde_json::from_value(json!({
            "id": "x", "began": "2026-01-01T00:00:00Z", "from": "ipvs", "there": fields("nftables"),
            "back": fields("ipvs"), "nodes": ["worker1"], "whole": true, "staged": false,
            "serviceAccount": "kpx", "soak": 1, "ready": 1, "arguments": [], "limit": 60,
        }))
        .unwrap();
        let pod = |job| match create(&plan, "kpx:1", "worker1", job) {
            KubeCommand::Create { body, .. } => body["spec"].clone(),
            other => panic!("{other:?}"),
        };
        let (guard, prepare) = (pod(Job::Guard), pod(Job::Prepare));
        assert_eq!(guard["restartPolicy"], "OnFailure");
        assert!(guard["activeDeadlineSeconds"].is_null(), "{guard}");
        assert_eq!(prepare["restartPolicy"], "Never");
        assert_eq!(prepare["activeDeadlineSeconds"], plan.limit);
    }

    #[test]
    fn a_log_tells_how_far_it_is() {
        let begins = |stage: &str| {
            format!(
                "{{\"kind\":\"MigrateEvent\",\"event\":\"begins\",\"leg\":\"back\",\"stage\":\"{stage}\",\"title\":\"t\"}}\n"
            )
        };
        assert!(!awaits_restart(&begins("build")));
        assert!(awaits_restart(&(begins("build") + &begins("verify"))));
        assert_eq!(
            told(begins("build").trim()),
            Some(Told::Says("t".to_owned()))
        );
        let gates = r#"{"event":"gates","gates":[],"words":"waiting: sync: none yet"}"#;
        let waits = "waiting: sync: none yet".to_owned();
        assert_eq!(told(gates), Some(Told::Waits(waits)));
        assert_eq!(told("kpx: x"), None);
    }
}
