//! Other service proxies on the node.

use thiserror::Error;

use kpx_node::backend::Mode;
use kpx_node::evidence::Gap;
use kpx_node::node::NodeSnapshot;
use kpx_node::node::processes::{Process, is_here, kube_proxies};

/// Network plug-ins that replace kube-proxy, unless a kube-proxy runs.
const REPLACEMENTS: &[&str] = &[
    "antrea-agent",
    "calico-felix",
    "calico-node",
    "cilium-agent",
    "ovnkube",
];

/// Another service proxy serves the node.
#[derive(Debug, Error)]
#[error(
    "{name} (pid {pid}) serves this node's Services: rules written by kpx would conflict with its own"
)]
pub struct OtherProxy {
    name: String,
    pid: u32,
}

/// Returns an error if another service proxy serves the node.
pub fn refuse_other(node: &NodeSnapshot<'_>) -> Result<(), OtherProxy> {
    let Ok(processes) = node.processes() else {
        // Reported by `running`.
        return Ok(());
    };
    let has_proxy = kube_proxies(processes).next().is_some();
    let mut here = processes.processes.iter().filter(|p| is_here(p));
    let owner = here.find(|p| match p.name.as_str() {
        "kpng" => true,
        "kube-router" => !p.args.iter().any(|arg| arg == "--run-service-proxy=false"),
        name => REPLACEMENTS.contains(&name) && !has_proxy,
    });
    match owner {
        None => Ok(()),
        Some(process) => Err(OtherProxy {
            name: process.name.clone(),
            pid: process.pid,
        }),
    }
}

/// Returns kube-proxy's process in this node's network, or the program that embeds it; `None` if none runs.
pub fn kube_proxy<'n>(node: &'n NodeSnapshot<'_>) -> Result<Option<&'n Process>, Gap> {
    Ok(kube_proxies(node.processes()?).next())
}

/// Returns why the running kube-proxy `process` of `node` cannot serve: it is stopped, does not answer in time, or reports
/// itself that its rules are outdated. `None` if it works, or if that is unknown.
pub fn hangs(node: &NodeSnapshot<'_>, process: &Process) -> Option<String> {
    if let Some(state @ ("T" | "t")) = process.state.as_deref() {
        return Some(format!("it is stopped (state {state})"));
    }
    match node.health() {
        // A kube-proxy that has just started refuses connections; one that hangs accepts them and does not answer.
        Err(Gap::Late(_, why)) => Some(format!("it does not answer: {why}")),
        Err(_) => None,
        Ok(health) => {
            let outdated = health.healthy == Some(false)
                || health.status.values().any(|family| !family.healthy);
            outdated.then(|| "it reports that its rules are not up to date".to_owned())
        }
    }
}

/// Returns a note on how a running kube-proxy, or its absence, affects a plan that programs `mode`.
pub fn running(node: &NodeSnapshot<'_>, mode: Mode) -> String {
    let found = match kube_proxy(node) {
        Ok(found) => found,
        Err(Gap::Absent(_, why)) => {
            return format!("cannot tell whether kube-proxy runs: {why}");
        }
        Err(gap) => return format!("cannot tell whether kube-proxy runs: {gap}"),
    };
    let Some(process) = found else {
        return format!(
            "no kube-proxy runs on this node: the rules of mode {mode} will not follow later changes of Services"
        );
    };
    let who = format!("{} runs (pid {})", process.name, process.pid);
    match node.reported_mode() {
        Ok(its) if its == mode => format!(
            "{who} in mode {mode}: it fixes drift when it next syncs a Service, and all of it when it restarts; \
             if drift comes back after this plan, run `kpx doctor`"
        ),
        Ok(its) => format!(
            "{who} in mode {its}, so nothing updates the rules of mode {mode} that this plan writes; \
             remove them with `kpx reconcile --cleanup {mode}`"
        ),
        Err(gap) => format!("{who}, but its mode is unknown: {gap}"),
    }
}
