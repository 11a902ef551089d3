//! Pods that ask the resolver of their node.

use super::cause::Cause;
use kpx_node::cluster::Pod;
use kpx_node::node::NodeSnapshot;

/// Controllers of pods with a template that can be changed.
const WITH_TEMPLATE: [&str; 3] = ["Deployment", "DaemonSet", "StatefulSet"];

/// Returns the cause if `source`, as `NAMESPACE/POD`, is a pod that asks the resolver of its node for `name`.
pub fn node_resolver(node: &NodeSnapshot<'_>, source: &str, name: &str) -> Option<Cause> {
    let (namespace, own) = source.split_once('/')?;
    let mut pods = node.pods().ok()?.iter();
    let is_it = |pod: &&Pod| pod.metadata.namespace == *namespace && pod.metadata.name == *own;
    let pod = pods.find(is_it)?;
    if pod.asks_node_resolver() != Some(true) {
        return None;
    }
    let workload = pod
        .workload()
        .filter(|of| WITH_TEMPLATE.contains(&&*of.kind));
    Some(Cause::NodeResolver {
        name: name.to_owned(),
        pod: source.to_owned(),
        host_network: pod.spec.host_network && pod.spec.dns_policy != "Default",
        workload: workload.map(|of| format!("{}/{}", of.kind.to_lowercase(), of.name)),
    })
}
