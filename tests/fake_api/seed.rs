//! Clusters from recordings.

use std::fs;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;

use super::{Api, Key};

/// The objects that `file` of the bundle at `folder` holds.
pub(crate) fn recorded(folder: &Path, file: &str) -> Vec<Value> {
    let text = fs::read_to_string(folder.join("cluster").join(file)).unwrap();
    let mut value: Value = serde_json::from_str(&text).unwrap();
    match value["items"].take() {
        Value::Array(items) => items,
        _ => vec![value],
    }
}

impl Api {
    /// Adds the cluster of the bundle at `folder`, as kubeadm created it, with these nodes, and waits until kube-proxy's pods
    /// are ready. The first node is the recorded one, the others are copies.
    pub(crate) fn seed(&self, folder: &Path, nodes: &[&str]) {
        self.with(|cluster| {
            for (file, kind) in [
                ("configmaps.json", "ConfigMap"),
                ("services.json", "Service"),
                ("endpointslices.json", "EndpointSlice"),
                ("daemonsets.json", "DaemonSet"),
            ] {
                for mut object in recorded(folder, file) {
                    object["kind"] = kind.into();
                    cluster.put(object);
                }
            }
            let node = recorded(folder, "nodes.json").remove(0);
            for name in nodes {
                let mut node = node.clone();
                node["kind"] = "Node".into();
                node["metadata"]["name"] = (*name).into();
                node["metadata"]["labels"]["kubernetes.io/hostname"] = (*name).into();
                node["metadata"]["labels"]["kubernetes.io/os"] = "linux".into();
                node["status"]["conditions"] =
                    serde_json::json!([{"type": "Ready", "status": "True"}]);
                cluster.put(node);
            }
        });
        self.settle();
    }

    /// Waits until every DaemonSet's pods are ready.
    pub(crate) fn settle(&self) {
        let begin = Instant::now();
        let number = |set: &Value, key: &str| set["status"][key].as_u64();
        while !self.with(|cluster| {
            cluster.list("daemonsets").all(|set| {
                number(set, "desiredNumberScheduled") == number(set, "numberReady")
                    && number(set, "desiredNumberScheduled")
                        == number(set, "updatedNumberScheduled")
            })
        }) {
            assert!(begin.elapsed() < Duration::from_secs(60), "never ready");
            thread::sleep(Duration::from_millis(5));
        }
    }

    /// The ConfigMap's `config.conf`, as it is now.
    pub(crate) fn config(&self) -> String {
        self.with(|cluster| {
            let map = cluster.get("configmaps", "kube-system", "kube-proxy");
            let text = map.and_then(|map| map["data"]["config.conf"].as_str());
            text.unwrap().to_owned()
        })
    }

    /// Replaces `from` by `to` in the ConfigMap's `config.conf`.
    pub(crate) fn reconfigure(&self, from: &str, to: &str) {
        let config = self.config();
        assert!(config.contains(from), "{config}");
        let key = Key::new("configmaps", "kube-system", "kube-proxy");
        self.with(|cluster| {
            cluster.edit(&key, |map| {
                map["data"]["config.conf"] = config.replace(from, to).into();
            });
        });
    }

    /// Names of kube-proxy's pods that are not ending, by their nodes.
    pub(crate) fn proxies(&self) -> Vec<(String, String)> {
        self.with(|cluster| {
            let pods = cluster
                .list("pods")
                .filter(|pod| pod["metadata"]["labels"]["k8s-app"] == "kube-proxy");
            let pods = pods.filter(|pod| pod["metadata"]["deletionTimestamp"].is_null());
            let word = |value: &Value| value.as_str().unwrap().to_owned();
            let pods = pods.map(|pod| {
                (
                    word(&pod["spec"]["nodeName"]),
                    word(&pod["metadata"]["name"]),
                )
            });
            let mut pods: Vec<_> = pods.collect();
            pods.sort();
            pods
        })
    }
}
