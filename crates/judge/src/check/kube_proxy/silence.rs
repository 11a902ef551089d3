//! KP05: a missing, stopped or hung kube-proxy is one error, and checks that need its answers are folded into it.

use super::log::{configured_server, server_fix, without_node};
use super::log_fixes::NAME;
use crate::check::core::{REPLACED, containers, is_replaced, runs_here, still_held};
use crate::check::node_port::{is_proxys, socket_proof};
use crate::check::{
    Advice, Check, Facts, Finding, Fix, Line, Outcome, ProcessState, Proof, Severity, Subject,
    Unknown, Verdict,
};
use kpx_node::cluster::{Container, DaemonSet, Misplaced, Pod, Unready};
use kpx_node::evidence::{Gap, Item};
use kpx_node::net::Proto;
use kpx_node::node::processes::Process;

/// Items that only a running kube-proxy can provide.
const ANSWERS: &[Item] = &[
    Item::Healthz,
    Item::ProxyMode,
    Item::Metrics,
    Item::Configz,
    Item::ProxyTools,
];

/// Returns the error for a kube-proxy that does not answer, or else `gap`, the reason why its health is unknown.
pub(super) fn silent(facts: &Facts<'_>, gap: Gap) -> Verdict {
    let switches = facts.target().is_some();
    let Ok(processes) = facts.node.processes() else {
        return if switches {
            Err(gap)
        } else {
            without_pod(facts, gap)
        };
    };
    let proxies = || processes.kube_proxies();
    // One that does not run yet can be configured for any mode.
    if switches && proxies().next().is_none() {
        return Err(gap);
    }
    // kube-proxy cannot be reached from another network namespace.
    if proxies().any(|proxy| proxy.same_network == Some(false)) {
        return Err(gap);
    }
    let seen = Proof::Note(gap.to_string());
    let stopped = proxies().find(|proxy| matches!(proxy.state.as_deref(), Some("T" | "t")));
    if let Some(Process { pid, .. }) = stopped {
        let message =
            format!("process {pid} is stopped (state T): its rules are no longer updated");
        let finding = error(ProcessState::Stopped, message).evidence([seen]);
        return Ok(vec![finding.fix(Fix::on_node(
            "Continue the process, and find out what stopped it.",
            format!("kill -CONT {pid}"),
        ))]);
    }
    let here = facts.node_name();
    if runs_here(facts)? {
        if let Some(found) = health_port_taken(facts) {
            return Ok(vec![found]);
        }
        let metrics = facts.node.evidence().text(Item::Metrics).err();
        if !gap.is_silence() || !metrics.is_some_and(|metric| metric.is_silence()) {
            return Err(gap);
        }
        let which = proxies()
            .next()
            .map_or_else(String::new, |proxy| format!("process {} ", proxy.pid));
        if let Some((asked, own)) = configured_server(facts) {
            let message = format!(
                "{which}runs but does not answer: it waits for an API server at {asked}, which its kubeconfig has, and the API server is at \
                 {own}"
            );
            let finding = error(ProcessState::Silent, message).evidence([seen]);
            return Ok(vec![finding.fix(server_fix(asked, own))]);
        }
        if let Some(why) = without_node(facts) {
            let message = format!(
                "{which}runs but does not answer: it waits for its Node, which it does not find: {why}"
            );
            let finding = error(ProcessState::Silent, message).evidence([seen]);
            return Ok(vec![finding.fix(NAME)]);
        }
        let message =
            format!("{which}runs but does not answer: it hangs, or listens on another address");
        let finding = error(ProcessState::Silent, message).evidence([seen]);
        return Ok(vec![match pod(facts, here.as_deref()) {
            Some(pod) => finding.fix(Fix::kubectl(
                "Read the end of its log, then delete the pod: its DaemonSet creates another one.",
                format!("kubectl -n kube-system delete pod {pod}"),
            )),
            None => finding.fix("Read the end of its log, then restart kube-proxy."),
        }]);
    }
    if is_replaced(facts)? {
        return Err(Gap::NotApplicable(REPLACED.to_owned()));
    }
    // A missing kube-proxy is a fault only if a DaemonSet, a pod or its rules show that it should run here.
    let has_rules = || still_held(facts, Subject::Proxy, "").is_ok_and(|found| !found.is_empty());
    if containers(facts).is_err() && !has_rules() {
        return Err(gap);
    }
    if let Some((why, fix)) = kept_off(facts) {
        return Ok(vec![absent(&why, fix).evidence([seen])]);
    }
    if let Ok(found) = without_pod(facts, gap) {
        return Ok(found);
    }
    let message = "kube-proxy does not run on this node: its rules are no longer updated";
    let finding = error(ProcessState::Absent, message).evidence([seen]);
    let list = "kubectl -n kube-system describe pods -l k8s-app=kube-proxy --field-selector spec.nodeName=";
    let line = match here {
        Some(node) => Line::from(format!("{list}{node}")),
        None => Line::with(format!("{list}NODE"), &["NODE"]),
    };
    Ok(vec![finding.fix(Fix::kubectl(
        "Find out why its pod does not run: its state and its events say it. Without a pod, the DaemonSet's events do.",
        line,
    ))])
}

/// Returns the finding on another program that listens at kube-proxy's health port.
pub(super) fn health_port_taken(facts: &Facts<'_>) -> Option<Finding> {
    let bind = facts.node.proxy_config().ok()?.healthz_bind()?;
    let sockets = facts.node.sockets().ok()?;
    let mut taking = sockets.taking(Proto::Tcp, bind.ip(), bind.port());
    let socket = taking.find(|socket| !socket.processes.is_empty() && !is_proxys(socket))?;
    let message = format!(
        "another program listens at port {}, kube-proxy's health port: load balancers that ask there get its answer",
        bind.port()
    );
    let finding = Finding::new(Severity::Warning, Subject::Proxy, message);
    let fix = "Stop the program, or set healthzBindAddress in kube-proxy's configuration to a free port; then restart kube-proxy.";
    Some(finding.evidence([socket_proof(socket)]).fix(fix))
}

/// Returns the error for a node without a pod of kube-proxy, although it runs in pods in this cluster; or else `gap`.
fn without_pod(facts: &Facts<'_>, gap: Gap) -> Verdict {
    let (Some(here), Ok(pods)) = (facts.node_name(), facts.node.pods()) else {
        return Err(gap);
    };
    let is_proxy = |container: &Container| container.name == "kube-proxy";
    // The pods of other nodes show that all are listed.
    let is_elsewhere = |pod: &&Pod| pod.spec.node_name.as_deref() != Some(&here);
    let mut elsewhere = pods.iter().filter(is_elsewhere);
    let runs_in_pods = elsewhere.any(|pod| pod.spec.containers.iter().any(is_proxy));
    let runs = |pod: &Pod| !matches!(pod.status.phase.as_str(), "Pending" | "Failed");
    if !runs_in_pods || facts.node.proxy_pod(Some(&here)).is_some_and(runs) {
        return Err(gap);
    }
    let (why, fix) = kept_off(facts).unwrap_or_else(|| {
        let fix = Fix::kubectl(
            "Find out why its DaemonSet has no pod on this node: the events of the DaemonSet say it.",
            "kubectl -n kube-system describe daemonset kube-proxy",
        );
        ("other nodes have a pod of it, this node has none".to_owned(), fix)
    });
    let seen = Proof::Note(gap.to_string());
    Ok(vec![absent(&why, fix).evidence([seen])])
}

/// Returns why kube-proxy's pod does not run on this node, and the fix: its pod waits, or its DaemonSet may have none here.
fn kept_off(facts: &Facts<'_>) -> Option<(String, Fix)> {
    let here = facts.node_name()?;
    if let Some(pod) = facts.node.proxy_pod(Some(&here)) {
        let (name, why) = (&pod.metadata.name, pod.unready()?);
        return Some((format!("pod {name}: {why}"), pod_fix(facts, pod, &why)));
    }
    let mut nodes = facts.node.nodes().ok()?.iter();
    let node = nodes.find(|node| node.metadata.name == here)?;
    let all: Vec<(&DaemonSet, Misplaced)> = proxy_sets(facts)
        .map(|set| Some((set, set.misplaced(node)?)))
        .collect::<Option<_>>()?;
    let (set, misplaced) = all.first()?;
    let of_set = || edit_of(set);
    let (why, fix) = match misplaced {
        Misplaced::Taint(taint) => (
            format!("its DaemonSet does not tolerate taint {taint} of the node"),
            Fix::new(
                "Let its pods tolerate every taint: tolerations with `operator: Exists` alone.",
                of_set(),
            ),
        ),
        Misplaced::Selector(label) => (
            format!("its DaemonSet asks for nodes with label {label}, which this one lacks"),
            Fix::kubectl(
                "Give the node the label, or correct the nodeSelector of the DaemonSet.",
                format!("kubectl label node {here} {label}"),
            ),
        ),
        Misplaced::Affinity => (
            "the node affinity of its DaemonSet does not match the labels of the node".to_owned(),
            Fix::new(
                "Correct the node affinity, or the labels of the node.",
                of_set(),
            ),
        ),
    };
    Some((why, fix))
}

/// Returns the DaemonSets of kube-proxy.
pub(super) fn proxy_sets<'a>(facts: &Facts<'a>) -> impl Iterator<Item = &'a DaemonSet> {
    let sets = facts.node.daemon_sets().ok().into_iter().flatten();
    sets.filter(|set| {
        let mut containers = set.spec.template.spec.containers.iter();
        containers.any(|container| container.name == "kube-proxy")
    })
}

/// Returns the edit of `set`.
pub(super) fn edit_of(set: &DaemonSet) -> Advice {
    Advice::Edit {
        resource: "daemonset",
        namespace: set.metadata.namespace.clone(),
        name: set.metadata.name.clone(),
    }
}

/// Returns how to let `pod`, which does not run for the reason `why`, run.
fn pod_fix(facts: &Facts<'_>, pod: &Pod, why: &Unready) -> Fix {
    let meta = &pod.metadata;
    let events = format!("kubectl -n {} describe pod {}", meta.namespace, meta.name);
    match why {
        Unready::Ended(_) => Fix::kubectl(
            "Free what the node is short of, if the pod was evicted, and delete the pod: its DaemonSet creates another one. Pods of \
             priorityClassName system-node-critical are evicted last.",
            format!("kubectl -n {} delete pod {}", meta.namespace, meta.name),
        ),
        Unready::Unscheduled(says) if says.contains("Insufficient") => Fix::kubectl(
            "Set priorityClassName of the DaemonSet to system-node-critical, so that its pods displace others; or lower its requests.",
            events,
        ),
        Unready::Unscheduled(says) if says.contains("taint") => {
            let text =
                "Let its pods tolerate every taint: tolerations with `operator: Exists` alone.";
            match proxy_sets(facts).next() {
                Some(set) => Fix::new(text, edit_of(set)),
                None => Fix::kubectl(text, events),
            }
        }
        _ => Fix::kubectl("The events of the pod say more.", events),
    }
}

/// Returns the finding that kube-proxy does not run, for the reason `why`.
fn absent(why: &str, fix: Fix) -> Finding {
    let message =
        format!("kube-proxy does not run on this node, so nothing updates its rules: {why}");
    error(ProcessState::Absent, message).fix(fix)
}

fn error(state: ProcessState, message: impl Into<String>) -> Finding {
    Finding::new(Severity::Error, Subject::ProxyProcess { state }, message)
}

/// Returns the name of kube-proxy's pod on the node called `here`.
pub(in crate::check) fn pod(facts: &Facts<'_>, here: Option<&str>) -> Option<String> {
    let pod = facts.node.proxy_pod(here)?;
    Some(pod.metadata.name.clone())
}

/// Returns whether an outcome says that kube-proxy does not answer `/healthz`.
fn says_silent((check, outcome): &(&'static Check, Outcome)) -> bool {
    match outcome {
        Outcome::Unknown(Unknown::Gap(gap)) => {
            gap.item() == Some(Item::Healthz) && gap.is_silence()
        }
        Outcome::Fail(found) => {
            let is_process =
                |finding: &Finding| matches!(finding.about, Subject::ProxyProcess { .. });
            check.id == ABSENCE[0] && found.iter().any(is_process)
        }
        Outcome::Skip(why) => check.id == ABSENCE[0] && why == REPLACED,
        Outcome::Pass | Outcome::Unknown(_) => false,
    }
}

/// Items that no kube-proxy provides where another service proxy serves.
const CONFIGURATION: &[Item] = &[Item::ProxyConfig, Item::ConfigMaps, Item::ProxyLog];

/// The checks whose errors say that kube-proxy does not run, the most telling first.
const ABSENCE: [&str; 2] = ["KP05", "KP02"];

/// Replaces checks that are unknown because kube-proxy does not answer by the one error that says so. If another service
/// proxy runs instead, these checks do not apply.
pub fn fold(outcomes: &mut [(&'static Check, Outcome)]) {
    if !outcomes.iter().any(says_silent) {
        return;
    }
    let find = |id: &str| outcomes.iter().position(|(check, _)| check.id == id);
    let is_error = |at: &usize| match &outcomes[*at].1 {
        // A warning of KP02 is about a kube-proxy that runs again.
        Outcome::Fail(found) => {
            outcomes[*at].0.id != "KP02"
                || found
                    .iter()
                    .any(|finding| finding.severity == Severity::Error)
        }
        _ => false,
    };
    let replaced = || {
        let of = |at: &usize| matches!(&outcomes[*at].1, Outcome::Skip(why) if why == REPLACED);
        find("KP05").filter(of)
    };
    let error = ABSENCE.into_iter().filter_map(find).find(is_error);
    let Some(reason) = error.or_else(replaced) else {
        return;
    };
    let why = match error {
        Some(error) => format!("kube-proxy does not answer: see {}", outcomes[error].0.id),
        None => REPLACED.to_owned(),
    };
    let mut folded = Vec::new();
    for (check, outcome) in outcomes.iter_mut() {
        if let Outcome::Unknown(Unknown::Gap(gap)) = outcome
            && !gap.is_denial()
            && gap.item().is_some_and(|item| {
                ANSWERS.contains(&item)
                    || error.is_none() && gap.is_absence() && CONFIGURATION.contains(&item)
            })
        {
            *outcome = Outcome::Skip(why.clone());
            folded.push(check.id);
        }
    }
    let count = match folded.len() {
        0 => return,
        1 => "1 check needs".to_owned(),
        count => format!("{count} checks need"),
    };
    let note = format!("{count} kube-proxy's answers: {}", folded.join(", "));
    if let (_, Outcome::Fail(found)) = &mut outcomes[reason] {
        for finding in found {
            finding.evidence.push(Proof::Note(note.clone()));
        }
    }
}
