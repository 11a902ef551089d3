//! Which service proxies run on the node.

use super::{Collector, by_family};
use crate::check::{Facts, Finding, Proof, Severity, Subject, Verdict};
use kpx_node::cluster::Pod;
use kpx_node::evidence::{Gap, Item};
use kpx_node::node::bpf::Proxy;
use kpx_node::node::ebpf::EBPF_NEEDS;
use kpx_node::node::processes::{Process, kube_proxies};

/// Returns whether kube-proxy runs here, alone or inside a distribution's process.
pub(in crate::check) fn runs_here(facts: &Facts<'_>) -> Result<bool, Gap> {
    Ok(kube_proxies(facts.node.processes()?).next().is_some())
}

/// Returns the name of the service proxy other than kube-proxy whose programs or rules serve Services here.
fn other_serving(facts: &Facts<'_>) -> Result<Option<&'static str>, Gap> {
    let mut all = facts.node.ebpf().iter();
    if let Some(of) = all.find(|ebpf| ebpf.serves == Ok(true)) {
        return Ok(Some(of.proxy.name()));
    }
    let (links, processes) = (facts.node.links(), facts.node.processes());
    let mut found = links.iter().flat_map(|links| &links.all);
    let mut running = processes.iter().flat_map(|all| &all.processes);
    if found.any(|link| link.name == KUBE_ROUTER_LINK) || running.any(is_kube_router) {
        return Ok(Some("kube-router"));
    }
    if let Some(name) = facts.node.open_vswitch_proxy(false) {
        return Ok(Some(name));
    }
    let unread = facts
        .node
        .ebpf()
        .iter()
        .find_map(|ebpf| ebpf.serves.clone().err());
    unread.map_or_else(|| links.map(|_| None), Err)
}

/// kube-router's link for Service addresses.
pub(in crate::check) const KUBE_ROUTER_LINK: &str = "kube-dummy-if";

/// Returns whether `process` is a kube-router that serves Services.
pub(in crate::check) fn is_kube_router(process: &Process) -> bool {
    process.name == "kube-router"
        && !process
            .args
            .iter()
            .any(|arg| arg == "--run-service-proxy=false")
}

/// Why another check reports leftovers of kube-proxy.
pub(in crate::check) fn left_to(proxy: Proxy) -> String {
    format!("{proxy} serves Services here: see CN04")
}

/// Why a check of kube-proxy does not apply on a node of another service proxy.
pub(in crate::check) const REPLACED: &str = "another service proxy runs here instead of kube-proxy";

/// The items that [`is_replaced`] reads.
pub(in crate::check) const REPLACEMENT: &[Item] = EBPF_NEEDS;

/// Returns whether another service proxy serves here, and no kube-proxy runs.
pub(in crate::check) fn is_replaced(facts: &Facts<'_>) -> Result<bool, Gap> {
    let found = other_serving(facts);
    if found == Ok(None) {
        return Ok(false);
    }
    let runs = match facts.node.processes() {
        Ok(all) => kube_proxies(all).next().is_some(),
        Err(gap) => {
            let here = facts.node_name();
            let pods = facts.node.pods().map_err(|_| gap)?;
            let mut pods = pods.iter().filter(|pod| pod.spec.node_name == here);
            let is_proxy = |pod: &Pod| {
                pod.spec
                    .containers
                    .iter()
                    .any(|container| container.name == "kube-proxy")
            };
            pods.any(is_proxy)
        }
    };
    if runs { Ok(false) } else { found.map(|_| true) }
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
