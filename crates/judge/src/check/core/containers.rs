//! kube-proxy's containers, and the flags they pass.

use std::collections::BTreeMap;

use crate::check::{Facts, Finding, Proof, Severity, Subject, Verdict};
use kpx_node::cluster::flags::Flags;
use kpx_node::cluster::{Container, DaemonSet, Pod};
use kpx_node::evidence::Gap;

/// Returns every container of kube-proxy on this node, with the name of its pod, and the containers of DaemonSets. If the
/// name of the node is unknown, pods of all nodes count.
pub(in crate::check) fn containers<'a>(
    facts: &Facts<'a>,
) -> Result<Vec<(String, &'a Container)>, Gap> {
    let of_pod = |pod: &'a Pod| {
        let name = format!("pod {}", pod.metadata.name);
        pod.spec.containers.iter().map(move |c| (name.clone(), c))
    };
    let of_set = |set: &'a DaemonSet| {
        let name = format!("DaemonSet {}", set.metadata.name);
        let all = set.spec.template.spec.containers.iter();
        all.map(move |c| (name.clone(), c))
    };
    let name = facts.node_name();
    let is_here = |pod: &&Pod| name.is_none() || pod.spec.node_name == name;
    let (sets, pods) = (facts.node.daemon_sets(), facts.node.pods());
    let all = sets.iter().flat_map(|sets| sets.iter()).flat_map(of_set);
    let here = pods.iter().flat_map(|pods| pods.iter()).filter(is_here);
    let mut found: Vec<_> = all.chain(here.flat_map(of_pod)).collect();
    found.retain(|(_, container)| container.name == "kube-proxy");
    if found.is_empty() {
        pods?;
        sets?;
        let why = "no pod or DaemonSet of kube-proxy is known";
        return Err(Gap::NotApplicable(why.to_owned()));
    }
    Ok(found)
}

/// Returns the flags in the command line of `container`.
pub(in crate::check) fn flags_of(container: &Container) -> Flags {
    let words: Vec<_> = container.command.iter().chain(&container.args).collect();
    Flags::parse(&words)
}

/// Returns a warning for each of `flags` that a container of kube-proxy has, if `ask` accepts its command line.
pub(in crate::check) fn with_flags(
    facts: &Facts<'_>,
    flags: &[&str],
    message: &str,
    ask: impl Fn(&Flags) -> bool,
) -> Verdict {
    let mut by_flag: BTreeMap<String, Vec<Proof>> = BTreeMap::new();
    for (name, container) in containers(facts)? {
        let given = flags_of(container);
        if !ask(&given) {
            continue;
        }
        for flag in flags {
            if let Some(value) = given.value(flag) {
                by_flag
                    .entry(format!("--{flag}"))
                    .or_default()
                    .push(Proof::Setting {
                        source: name.clone(),
                        key: format!("--{flag}"),
                        value: value.to_owned(),
                    });
            }
        }
    }
    Ok(by_flag
        .into_iter()
        .map(|(flag, seen)| {
            Finding::new(Severity::Warning, Subject::setting(flag), message).evidence(seen)
        })
        .collect())
}

/// Returns whether the container mounts `path` of the host, or a directory above it.
pub(in crate::check) fn mounts(container: &Container, path: &str) -> bool {
    let mut paths = container
        .volume_mounts
        .iter()
        .filter_map(|mount| mount.get("mountPath")?.as_str());
    // A directory above it contains it.
    paths.any(|at| path == at || path.starts_with(&format!("{}/", at.trim_end_matches('/'))))
}
