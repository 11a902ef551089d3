//! The paths of the host that kube-proxy's pod mounts.

use super::{Area, Need, Status};
use crate::check::Facts;
use kpx_node::backend::Mode;
use kpx_node::evidence::Gap;

/// Paths of the host that kube-proxy's pod mounts, with the modes and the purpose.
const MOUNTS: &[(&str, &[Mode], &str)] = &[
    (
        "/run/xtables.lock",
        &[Mode::Iptables, Mode::Ipvs],
        "the lock that all iptables users share",
    ),
    ("/lib/modules", &[Mode::Ipvs], "lets kube-proxy load ip_vs"),
];

pub(super) fn needs(facts: &Facts<'_>, to: Mode) -> Vec<Need> {
    let sets = match facts.node.daemon_sets() {
        Ok(sets) => sets,
        // Without a cluster there is no pod.
        Err(Gap::NotApplicable(_)) => return Vec::new(),
        Err(gap) => return vec![Need::unknown(Area::Mount, "DaemonSet", gap.to_string())],
    };
    let set = sets
        .iter()
        .find(|set| set.metadata.name.starts_with("kube-proxy"));
    let Some(set) = set else {
        return Vec::new();
    };
    let volumes = &set.spec.template.spec.volumes;
    let mounts = |path: &str| {
        let mut paths = volumes
            .iter()
            .filter_map(|volume| volume.pointer("/hostPath/path")?.as_str());
        paths.any(|mounted| mounted == path || format!("/var{path}") == mounted)
    };
    let rows = MOUNTS.iter().filter(|(_, modes, _)| modes.contains(&to));
    let rows = rows.map(|(path, _, purpose)| {
        let (status, state) = if mounts(path) {
            (Status::Ready, "mounted")
        } else {
            (Status::Risk, "not mounted")
        };
        Need::new(Area::Mount, *path, status, state, "").purpose(purpose)
    });
    rows.collect()
}
