//! Which service proxies run on the node.

use super::{Collector, by_family};
use crate::check::{Facts, Finding, Proof, Severity, Subject, Verdict};
use kpx_node::cluster::Pod;
use kpx_node::evidence::{Gap, Item};
use kpx_node::node::bpf::Bpf;
use kpx_node::node::processes::kube_proxies;

/// Returns whether kube-proxy runs here, alone or inside a distribution's process.
pub(in crate::check) fn runs_here(facts: &Facts<'_>) -> Result<bool, Gap> {
    Ok(kube_proxies(facts.node.processes()?).next().is_some())
}

/// Other service proxies: the names of a link and of a process that show them.
const OTHERS: [(&str, &str, &str); 3] = [
    // Felix, Calico's agent, creates this link only for its eBPF data plane.
    ("Calico", "bpfin.cali", ""),
    ("Cilium", "cilium_host", "cilium-agent"),
    (KUBE_ROUTER, "kube-dummy-if", "kube-router"),
];

const KUBE_ROUTER: &str = "kube-router";

/// Returns the names of the other service proxies that links and processes show.
fn others(facts: &Facts<'_>) -> Vec<&'static str> {
    let (links, processes) = (facts.node.links(), facts.node.processes());
    let mut found = OTHERS.to_vec();
    found.retain(|(_, link, process)| {
        let mut links = links.iter().flat_map(|links| &links.all);
        let mut processes = processes.iter().flat_map(|all| &all.processes);
        links.any(|of| of.name == *link) || processes.any(|of| of.name == *process)
    });
    found.into_iter().map(|(name, ..)| name).collect()
}

/// Returns the name of the network plugin that serves Services with eBPF on the node instead of kube-proxy.
pub(in crate::check) fn ebpf_proxy(facts: &Facts<'_>) -> Result<Option<&'static str>, Gap> {
    let mut others = others(facts).into_iter();
    let found = others.find(|name| *name != KUBE_ROUTER);
    if found.is_none() {
        facts.node.links()?;
    }
    Ok(found)
}

/// Returns programs and maps of eBPF. Where they were not read, a check of them applies only if a link or a process shows such a
/// service proxy.
pub(in crate::check) fn bpf_of<'f>(facts: &'f Facts<'_>) -> Result<&'f Bpf, Gap> {
    let read = facts.node.bpf();
    if read.is_err() && ebpf_proxy(facts)?.is_none() {
        let why = "no link or process of an eBPF service proxy is on this node";
        return Err(Gap::NotApplicable(why.to_owned()));
    }
    read
}

/// Why a check of kube-proxy does not apply on a node of another service proxy.
pub(in crate::check) const REPLACED: &str = "another service proxy runs here instead of kube-proxy";

/// The items that [`is_replaced`] reads.
pub(in crate::check) const REPLACEMENT: &[Item] = &[
    Item::Processes,
    Item::Links,
    Item::Pods,
    Item::Nodes,
    Item::Addresses,
    Item::ProxyConfig,
];

/// Returns whether another service proxy runs here, and no kube-proxy.
pub(in crate::check) fn is_replaced(facts: &Facts<'_>) -> Result<bool, Gap> {
    if others(facts).is_empty() {
        // Each of them has its link.
        facts.node.links()?;
        return Ok(false);
    }
    match facts.node.processes() {
        Ok(all) => Ok(kube_proxies(all).next().is_none()),
        Err(gap) => {
            let here = facts.node_name();
            let pods = facts.node.pods().map_err(|_| gap)?;
            let mut pods = pods.iter().filter(|pod| pod.spec.node_name == here);
            let is_proxy = |pod: &Pod| pod.spec.containers.iter().any(|of| of.name == "kube-proxy");
            Ok(!pods.any(is_proxy))
        }
    }
}

/// Returns a warning about `about` if the kernel has rules of kube-proxy: modes whose rules lead packets to Services, by IP family.
pub(in crate::check) fn still_held(facts: &Facts<'_>, about: Subject, message: &str) -> Verdict {
    let mut all = Collector::default();
    let serving = by_family(facts, &mut all, |family| facts.node.serving(family));
    let seen: Vec<_> = serving
        .into_iter()
        .flat_map(|(family, modes)| {
            let source = format!("kernel, {family}");
            let modes = modes.into_iter();
            modes.map(move |mode| Proof::setting(source.as_str(), "rules of mode", mode))
        })
        .collect();
    if !seen.is_empty() {
        all.push(
            Finding::new(Severity::Warning, about, message)
                .called("kube-proxy")
                .evidence(seen),
        );
    }
    all.verdict()
}
