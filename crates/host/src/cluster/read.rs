//! Reads each item of the API server as one List.

use std::collections::BTreeMap;

use futures_util::future::join_all;
use serde::Deserialize;
use serde_json::Value;

use super::copied_config_map;
use super::refusal::RequestError;
use super::retry::Requester;
use super::rights;
use super::session::{Objects, quote};
use kpx_node::action::READER;
use kpx_node::evidence::{Gap, Item};

/// ConfigMaps of kube-system that may contain kube-proxy's configuration: kubeadm's name, and an alternative.
pub(super) const CONFIG_MAPS: &[&str] = &["kube-proxy", "kube-proxy-config"];

/// DaemonSets of kube-system that run kube-proxy or a replacement.
const DAEMON_SETS: &[&str] = &["kube-proxy", "cilium", "kube-router"];

/// Path of the `ServiceCIDR` objects.
const SERVICE_CIDRS: &str = "/apis/networking.k8s.io/v1/servicecidrs";

/// Number of log lines to read.
const LOG_LINES: u32 = 5000;

/// Reads `item` for node `node`.
pub(super) async fn read(way: Requester<'_>, item: Item, node: &str) -> Result<String, Gap> {
    let session = way.session;
    let list = async |path: &str, what: &str| {
        let read = way.list(path, "").await;
        read.map_err(|trouble| trouble.gap(item, session, "list", what))
    };
    match item {
        Item::Services => list("/api/v1/services", "services").await,
        Item::EndpointSlices => {
            list(
                "/apis/discovery.k8s.io/v1/endpointslices",
                "endpointslices.discovery.k8s.io",
            )
            .await
        }
        Item::Nodes => nodes(way, node).await,
        Item::ConfigMaps => {
            let path = "/api/v1/namespaces/kube-system/configmaps";
            // kube-proxy's configuration is in the first one that has any.
            let copy = copied_config_map::map(way, node).await;
            let names = copy.as_deref().into_iter();
            let names: Vec<&str> = names.chain(CONFIG_MAPS.iter().copied()).collect();
            return named(way, item, path, "configmaps", &names).await;
        }
        Item::DaemonSets => {
            let path = "/apis/apps/v1/namespaces/kube-system/daemonsets";
            return named(way, item, path, "daemonsets.apps", DAEMON_SETS).await;
        }
        Item::Pods => return pods(way, node).await,
        Item::ServiceCidrs => match way.list(SERVICE_CIDRS, "").await {
            Ok(ranges) => Ok(ranges),
            Err(RequestError::Status(404, _)) => {
                let why =
                    "the API server has no ServiceCIDR objects, which require Kubernetes 1.33";
                Err(Gap::NotApplicable(why.to_owned()))
            }
            Err(trouble) => {
                Err(trouble.gap(item, session, "list", "servicecidrs.networking.k8s.io"))
            }
        },
        Item::Access => return rights::read(way, item, node).await,
        other => Err(Gap::NotCollected(other)),
    }
    .map(|objects| document(&objects, &[]))
}

/// Reads all Nodes; if that is forbidden, only this one.
async fn nodes(way: Requester<'_>, node: &str) -> Result<Objects, Gap> {
    let (item, session) = (Item::Nodes, way.session);
    let trouble = match way.list("/api/v1/nodes", "").await {
        Ok(nodes) => return Ok(nodes),
        Err(trouble) if trouble.is_forbidden() => trouble,
        Err(trouble) => return Err(trouble.gap(item, session, "list", "nodes")),
    };
    match way.object(&format!("/api/v1/nodes/{}", quote(node))).await {
        Ok(Some(own)) => Ok(Objects {
            items: vec![own],
            version: String::new(),
        }),
        Err(own) if !own.is_forbidden() => {
            Err(own.gap(item, session, "get", &format!("nodes {node}")))
        }
        Ok(None) | Err(_) => Err(trouble.gap(item, session, "list", "nodes")),
    }
}

/// Reads the objects of kube-system with one of `names`; a missing object is not a gap.
async fn named(
    way: Requester<'_>,
    item: Item,
    path: &str,
    what: &str,
    names: &[&str],
) -> Result<String, Gap> {
    let session = way.session;
    let gets = names
        .iter()
        .map(async |name| (name, way.object(&format!("{path}/{name}")).await));
    let mut found = Objects::default();
    let mut missing = Vec::new();
    let mut forbidden = None;
    for (name, read) in join_all(gets).await {
        match read {
            Ok(object) => found.items.extend(object),
            Err(trouble) => {
                let only = trouble.is_forbidden();
                let one = format!("{what} {name} in namespace kube-system");
                let gap = trouble.gap(item, session, "get", &one);
                if !only {
                    return Err(gap);
                }
                missing.push(format!("{one}: forbidden"));
                forbidden = forbidden.or(Some(gap));
            }
        }
    }
    // A kubelet may only read objects that its pods mount. These include what kube-proxy's pod mounts.
    match forbidden {
        Some(gap) if found.items.is_empty() => Err(gap),
        _ => Ok(document(&found, &missing)),
    }
}

/// Reads the pods of kube-proxy on all nodes, and all pods of this node.
async fn pods(way: Requester<'_>, node: &str) -> Result<String, Gap> {
    let (item, session) = (Item::Pods, way.session);
    // Without the pod through which kpx reads the node.
    let here = format!(
        "fieldSelector={}&labelSelector={}",
        quote(&format!("spec.nodeName={node}")),
        quote(&format!("!{READER}"))
    );
    let (proxies, here) = tokio::join!(
        way.list(
            "/api/v1/namespaces/kube-system/pods",
            "labelSelector=k8s-app%3Dkube-proxy"
        ),
        way.list("/api/v1/pods", &here)
    );
    let mut merged = here.map_err(|trouble| {
        let what = format!("pods of node {node}");
        trouble.gap(item, session, "list", &what)
    })?;
    let mut missing = Vec::new();
    match proxies {
        Ok(proxies) => merged.items.extend(proxies.items),
        // A kubelet may only read the pods of its own node, which include that node's kube-proxy.
        Err(trouble) if trouble.is_forbidden() => {
            missing.push("pods of kube-proxy on other nodes: forbidden".to_owned());
        }
        Err(trouble) => {
            let what = "pods of kube-proxy in namespace kube-system";
            return Err(trouble.gap(item, session, "list", what));
        }
    }
    let mut by_name = BTreeMap::new();
    for pod in merged.items {
        let Named { metadata } = serde_json::from_str(pod.get())
            .map_err(|e| Gap::Failed(item, format!("a pod without a name: {e}")))?;
        by_name.insert((metadata.namespace, metadata.name), pod);
    }
    let merged = Objects {
        items: by_name.into_values().collect(),
        version: merged.version,
    };
    Ok(document(&merged, &missing))
}

/// Returns the end of the log of the kube-proxy pod on `node`.
pub(super) async fn log(way: Requester<'_>, item: Item, node: &str) -> Result<String, Gap> {
    let session = way.session;
    let pods = "/api/v1/namespaces/kube-system/pods";
    let field = quote(&format!("spec.nodeName={node}"));
    let query = format!("labelSelector=k8s-app%3Dkube-proxy&fieldSelector={field}");
    let found = way
        .list(pods, &query)
        .await
        .map_err(|trouble| trouble.gap(item, session, "list", "pods of kube-proxy"))?;
    let Some(pod) = found.items.first() else {
        let why = format!("no pod with the label k8s-app=kube-proxy runs on node {node}");
        return Err(Gap::Absent(item, why));
    };
    let pod: Named = serde_json::from_str(pod.get())
        .map_err(|e| Gap::Failed(item, format!("a pod without a name: {e}")))?;
    let name = pod.metadata.name;
    let path = format!("{pods}/{}/log?tailLines={LOG_LINES}", quote(&name));
    way.get(&path)
        .await
        .map_err(|trouble| trouble.gap(item, session, "get", &format!("pods/log {name}")))
}

#[derive(Deserialize)]
struct Named {
    metadata: Name,
}

#[derive(Default, Deserialize)]
#[serde(default)]
pub(super) struct Name {
    pub(super) name: String,
    namespace: String,
}

/// Returns one List with one object per line; `missing` lists the objects that could not be read.
pub(super) fn document(objects: &Objects, missing: &[String]) -> String {
    let quoted = |text: &str| Value::from(text).to_string();
    let size = objects
        .items
        .iter()
        .map(|item| item.get().len() + 2)
        .sum::<usize>();
    let mut text = String::with_capacity(size + 200);
    text += r#"{"apiVersion":"v1","kind":"List","metadata":{"resourceVersion":"#;
    text += &quoted(&objects.version);
    if !missing.is_empty() {
        let missing: Vec<_> = missing.iter().map(|why| quoted(why)).collect();
        text += r#","missing":["#;
        text += &missing.join(",");
        text.push(']');
    }
    text += "},\"items\":[";
    for (index, object) in objects.items.iter().enumerate() {
        text += if index == 0 { "\n" } else { ",\n" };
        text += object.get();
    }
    text += "\n]}\n";
    text
}
