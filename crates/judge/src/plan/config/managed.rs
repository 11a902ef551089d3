//! Configurations managed by other software, and files that distributions read in addition.

use std::fmt::Write as _;

use super::Place;
use kpx_node::cluster::edit::Fields;
use kpx_node::cluster::{Labels, Metadata, Node};

/// Labels and annotations of objects managed by a distribution or service, with the reason and the command to use
/// instead.
const KEEPERS: &[(&str, &str, &str)] = &[
    (
        "k0s.k0sproject.io/stack",
        "is managed by k0s, which reverts other changes",
        "set spec.network.kubeProxy.mode: MODE in the k0s configuration of the controllers, restart them, then run \
         `kubectl -n kube-system rollout restart daemonset kube-proxy`",
    ),
    ("kubernetes.azure.com/managedby", AKS_WHY, AKS_COMMAND),
    (
        "resources.gardener.cloud/managed-by",
        "is managed by Gardener, which reverts other changes",
        "set spec.kubernetes.kubeProxy.mode of the Shoot to MODE",
    ),
    (
        "addonmanager.kubernetes.io/mode",
        "is managed by the add-on manager, which reverts other changes",
        "set mode: MODE in the add-on's manifest on the control plane",
    ),
];

const AKS_WHY: &str = "is managed by AKS, which reverts other changes";
const AKS_COMMAND: &str = "az aks update --name CLUSTER --resource-group GROUP --kube-proxy-config FILE # with \"mode\": \"MODE\"";

/// Labels of Nodes whose kube-proxy is managed by the provider.
const PROVIDERS: &[(&str, &str, &str)] = &[
    (
        "cloud.google.com/gke-nodepool",
        "is managed by GKE, which does not let users choose the mode",
        "gcloud container node-pools describe POOL # shows the mode; no command sets it",
    ),
    ("kubernetes.azure.com/cluster", AKS_WHY, AKS_COMMAND),
];

/// Labels and annotations of objects that a tool keeps in sync with its sources.
const SOURCES: &[(&str, &str)] = &[
    ("argocd.argoproj.io/instance", "Argo CD"),
    ("argocd.argoproj.io/tracking-id", "Argo CD"),
    ("kustomize.toolkit.fluxcd.io/name", "Flux"),
    ("helm.toolkit.fluxcd.io/name", "Flux"),
    ("meta.helm.sh/release-name", "Helm"),
    (
        "eks.amazonaws.com/component",
        "EKS, where kube-proxy is an add-on (`aws eks update-addon --addon-name kube-proxy --configuration-values` sets it there)",
    ),
];

/// Returns the manager of the object with `metadata`, as the place of `what`.
pub(super) fn keeper(metadata: &Metadata, what: &str) -> Option<Place> {
    let row = KEEPERS
        .iter()
        .find(|(name, ..)| value(metadata, name).is_some_and(|value| value != "EnsureExists"))?;
    Some(elsewhere(what, row.1, row.2))
}

/// Returns the provider that manages kube-proxy on `node`, as a place.
pub(super) fn provider(node: &Node) -> Option<Place> {
    let labels = &node.metadata.labels;
    let row = PROVIDERS
        .iter()
        .find(|(name, ..)| labels.contains_key(*name))?;
    Some(elsewhere("kube-proxy's configuration", row.1, row.2))
}

/// Returns notes on the tools that keep the object with `metadata` in sync.
pub(super) fn sources(metadata: &Metadata, what: &str) -> Vec<String> {
    let rows = SOURCES
        .iter()
        .filter(|(name, _)| value(metadata, name).is_some());
    let mut tools: Vec<&str> = rows.map(|(_, tool)| *tool).collect();
    tools.dedup();
    tools
        .iter()
        .map(|tool| format!("{what} is managed by {tool}: change the mode there as well, or the change is reverted"))
        .collect()
}

/// Returns a place that kpx does not write to.
pub(super) fn elsewhere(what: &str, why: &str, command: &str) -> Place {
    Place::Elsewhere {
        what: what.to_owned(),
        why: why.to_owned(),
        command: command.to_owned(),
    }
}

fn value<'m>(metadata: &'m Metadata, name: &str) -> Option<&'m str> {
    let of = |labels: &'m Labels| labels.get(name).map(String::as_str);
    of(&metadata.labels).or_else(|| of(&metadata.annotations))
}

/// Returns the file that adds kube-proxy's flags to the configuration of k3s or RKE2. The last of two equal flags
/// counts, and `+` appends to the values of other files.
pub(super) fn addition(fields: &Fields) -> String {
    let mut text =
        "# Written by kpx. Adds to the kube-proxy flags of the other files.\nkube-proxy-arg+:\n"
            .to_owned();
    for argument in fields.arguments() {
        // Writing to a String cannot fail.
        writeln!(text, "  - \"{argument}\"").ok();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_tool_that_keeps_an_object_is_named_once() {
        let tools = |marks: &[&str]| {
            let mut metadata = Metadata::default();
            for (at, mark) in marks.iter().enumerate() {
                // Either place counts.
                let marks = if at == 0 {
                    &mut metadata.labels
                } else {
                    &mut metadata.annotations
                };
                marks.insert((*mark).to_owned(), "x".to_owned());
            }
            let notes = sources(&metadata, "ConfigMap a");
            let names = notes.iter().map(|note| {
                let rest = note.strip_prefix("ConfigMap a is managed by ").unwrap();
                rest.split([':', ',']).next().unwrap().to_owned()
            });
            names.collect::<Vec<_>>()
        };
        let argo = [
            "argocd.argoproj.io/instance",
            "argocd.argoproj.io/tracking-id",
        ];
        assert_eq!(tools(&argo), ["Argo CD"]);
        assert_eq!(
            tools(&["meta.helm.sh/release-name", argo[1]]),
            ["Argo CD", "Helm"]
        );
        assert_eq!(tools(&["kustomize.toolkit.fluxcd.io/name"]), ["Flux"]);
        assert_eq!(tools(&["eks.amazonaws.com/component"]), ["EKS"]);
        assert!(tools(&["app.kubernetes.io/name"]).is_empty());
    }
}
