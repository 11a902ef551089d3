//! Watches of the cluster: what wakes the commands that follow it.

use std::path::PathBuf;
use std::time::Duration;

use kpx::host::{Environment, Options, Selection, Watch};
use kpx::net::Family;
use serde_json::json;
use tokio::time::timeout;

use crate::fake_api::{Api, Cluster};

/// Longer than a burst of changes and the first retry.
const LONG: Duration = Duration::from_secs(2);
const PATIENCE: Duration = Duration::from_secs(20);

fn service(name: &str) -> serde_json::Value {
    json!({
        "apiVersion": "v1", "kind": "Service",
        "metadata": {"namespace": "default", "name": name},
        "spec": {"type": "ClusterIP", "clusterIP": "10.96.0.9", "ports": [{"port": 80, "protocol": "TCP"}]},
    })
}

#[tokio::test]
async fn the_end_of_a_watch_is_no_change_and_hides_none() {
    let api = Api::new();
    let folder = tempfile::tempdir().unwrap();
    let config = folder.path().join("kubeconfig");
    std::fs::write(&config, api.kubeconfig()).unwrap();
    api.with(|cluster| cluster.put(service("first")));
    let options = Options {
        netns: None,
        root: PathBuf::from("/"),
        node: None,
        families: Family::BOTH.to_vec(),
        timeout: Duration::from_secs(5),
        kubeconfig: Some(config),
        context: None,
        selection: Selection::default(),
        no_api: false,
        environment: Environment::default(),
    };
    let mut watch = Watch::start(&options).await.unwrap();
    // The API server ends watches after some minutes.
    api.with(Cluster::cut_watches);
    let woken = timeout(LONG, watch.next()).await;
    assert!(woken.is_err(), "{woken:?}");
    // A change at the end of a watch.
    api.with(|cluster| {
        cluster.cut_watches();
        cluster.put(service("second"));
    });
    timeout(PATIENCE, watch.next()).await.unwrap().unwrap();
    assert_eq!(watch.services().len(), 2);
    // The end of an error is returned, also without a change.
    api.with(|cluster| {
        cluster.set_away(true);
        cluster.cut_watches();
    });
    timeout(PATIENCE, watch.next()).await.unwrap().unwrap_err();
    api.with(|cluster| cluster.set_away(false));
    let back = async { while watch.next().await.is_err() {} };
    timeout(PATIENCE, back).await.unwrap();
    let woken = timeout(LONG, watch.next()).await;
    assert!(woken.is_err(), "{woken:?}");
}
