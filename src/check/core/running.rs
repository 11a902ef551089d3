//! Which service proxies run on the node.

use super::{by_family, if_recorded};
use crate::check::{Facts, Finding, Proof, Severity, Subject, Verdict};
use crate::cluster::Pod;
use crate::evidence::Gap;
use crate::node::processes::{Processes, kube_proxies};

/// Returns whether kube-proxy runs here, alone or inside a distribution's process.
pub(in crate::check) fn runs_here(facts: &Facts<'_>) -> Result<bool, Gap> {
    let processes = if_recorded(facts.node.processes())?;
    Ok(kube_proxies(processes).next().is_some())
}

/// Returns the name of the network plugin that serves Services with eBPF on the node instead of kube-proxy.
pub(in crate::check) fn ebpf_proxy(facts: &Facts<'_>) -> Result<Option<&'static str>, Gap> {
    let links = facts.node.links()?.all.iter();
    let names: Vec<_> = links.map(|link| link.name.as_str()).collect();
    // Felix, Calico's agent, creates this link only for its eBPF data plane.
    if names.contains(&"bpfin.cali") {
        return Ok(Some("Calico"));
    }
    let processes = &if_recorded(facts.node.processes())?.processes;
    let is_cilium =
        names.contains(&"cilium_host") || processes.iter().any(|of| of.name == "cilium-agent");
    Ok(is_cilium.then_some("Cilium"))
}

/// Why a check of kube-proxy does not apply on a node of another service proxy.
pub(in crate::check) const REPLACED: &str = "another service proxy runs here instead of kube-proxy";

/// Returns whether another service proxy runs here, and no kube-proxy.
pub(in crate::check) fn is_replaced(facts: &Facts<'_>) -> Result<bool, Gap> {
    let processes = facts.node.processes();
    let is_router = |all: &&Processes| all.processes.iter().any(|of| of.name == "kube-router");
    let other =
        ebpf_proxy(facts).is_ok_and(|of| of.is_some()) || processes.as_ref().is_ok_and(is_router);
    match (other, processes) {
        (false, _) => Ok(false),
        (true, Ok(all)) => Ok(kube_proxies(all).next().is_none()),
        (true, Err(gap)) => {
            let here = facts.node_name();
            let pods = facts.node.pods().map_err(|_| gap)?;
            let mut pods = pods.iter().filter(|pod| pod.spec.node_name == here);
            let is_proxy = |pod: &Pod| pod.spec.containers.iter().any(|of| of.name == "kube-proxy");
            Ok(!pods.any(is_proxy))
        }
    }
}

/// Returns the modes whose rules lead packets to Services, by IP family.
fn held(facts: &Facts<'_>) -> Result<Vec<Proof>, Gap> {
    let mut seen = Vec::new();
    for (family, modes) in by_family(|family| facts.node.serving(family))? {
        seen.extend(
            modes
                .into_iter()
                .map(|mode| Proof::setting(format!("kernel, {family}"), "rules of mode", mode)),
        );
    }
    Ok(seen)
}

/// Returns a warning about `about` if the kernel has rules of kube-proxy.
pub(in crate::check) fn still_held(facts: &Facts<'_>, about: Subject, message: &str) -> Verdict {
    let seen = held(facts)?;
    if seen.is_empty() {
        return Ok(Vec::new());
    }
    Ok(vec![
        Finding::new(Severity::Warning, about, message)
            .called("kube-proxy")
            .evidence(seen),
    ])
}
