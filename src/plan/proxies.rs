//! Who else programs this node.

use thiserror::Error;

use crate::backend::Mode;
use crate::evidence::Gap;
use crate::node::NodeSnapshot;
use crate::node::processes::{Process, is_here, kube_proxies};

/// Network plug-ins that serve Services themselves where kube-proxy does not run, and leave them to it where it does.
const REPLACEMENTS: &[&str] = &[
    "antrea-agent",
    "calico-felix",
    "calico-node",
    "cilium-agent",
    "ovnkube",
];

/// Another service proxy owns the node.
#[derive(Debug, Error)]
#[error(
    "{name} (pid {pid}) serves this node's Services: what kpx wrote would stand beside its rules, or be removed by it"
)]
pub struct OtherProxy {
    name: String,
    pid: u32,
}

/// Refuses a node that another service proxy owns.
pub fn refuse_other(node: &NodeSnapshot<'_>) -> Result<(), OtherProxy> {
    let Ok(processes) = node.processes() else {
        // Said by `running`.
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

/// Returns the kube-proxy that works on this node's network, or the program that it is a part of; `None` if none runs.
pub fn kube_proxy<'n>(node: &'n NodeSnapshot<'_>) -> Result<Option<&'n Process>, Gap> {
    Ok(kube_proxies(node.processes()?).next())
}

/// Returns what a running kube-proxy, or none, means for a plan that programs `mode`.
pub fn running(node: &NodeSnapshot<'_>, mode: Mode) -> String {
    let found = match kube_proxy(node) {
        Ok(found) => found,
        Err(Gap::Absent(_, why)) => {
            return format!("whether kube-proxy runs cannot be told: {why}");
        }
        Err(gap) => return format!("whether kube-proxy runs cannot be told: {gap}"),
    };
    let Some(process) = found else {
        return format!(
            "no kube-proxy runs here: what mode {mode} has after this stays as it is, whatever becomes of the Services"
        );
    };
    let who = format!("{} runs (pid {})", process.name, process.pid);
    match node.reported_mode() {
        Ok(its) if its == mode => format!(
            "{who} in mode {mode}: it writes its own differences with its next sync of each Service, and all of them \
             when it restarts; what this plan mends and comes back is worth a `kpx doctor`"
        ),
        Ok(its) => format!(
            "{who} in mode {its}: it does not follow the Services in mode {mode}, so what this plan writes grows stale; \
             `kpx cleanup --mode {mode}` removes it again"
        ),
        Err(gap) => format!("{who}, and in which mode cannot be told: {gap}"),
    }
}
