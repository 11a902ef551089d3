//! Watches of the cluster: what wakes the commands that follow it.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use futures_util::future::join;
use kpx_host::{Environment, Options, Selection, Watch};
use kpx_node::net::Family;
use serde_json::json;
use tokio::time::{sleep, timeout};

use crate::fake_api::{Api, Cluster, Fault, Key, What};
use crate::remote::{NODE, World};
use crate::support::kpx;

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
#[ignore = "takes long: make test-loops"]
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
    // The server has forgotten the version of the list.
    let expired = What::Status(410, "too old resource version");
    api.fault(Fault::of("watch", "services", expired).times(1));
    api.with(|cluster| {
        cluster.cut_watches();
        cluster.put(service("third"));
    });
    let why = timeout(PATIENCE, watch.next()).await.unwrap().unwrap_err();
    assert!(
        why.to_string().contains("too old resource version"),
        "{why}"
    );
    timeout(PATIENCE, watch.next()).await.unwrap().unwrap();
    assert_eq!(watch.services().len(), 3);
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

/// Returns how often the Nodes were listed, which each reading of a whole node does once.
fn readings(world: &World) -> usize {
    let asked = world.api.asked();
    let nodes = asked
        .iter()
        .filter(|request| request.path == "/api/v1/nodes");
    nodes.count()
}

#[tokio::test]
#[ignore = "takes long: make test-loops"]
async fn a_quiet_node_is_read_once_and_a_change_of_endpoints_is_reported() {
    let world = World::new();
    let root = world.path("empty");
    std::fs::create_dir(&root).unwrap();
    let options = world.options();
    let mut line: Vec<&str> = options.iter().map(String::as_str).collect();
    line.extend(["--root", root.to_str().unwrap(), "--node", NODE, "watch"]);
    line.extend(["--interval", "100ms", "--count", "2", "-v"]);
    let watched = kpx(&line);
    let meanwhile = async {
        while readings(&world) == 0 {
            sleep(Duration::from_millis(50)).await;
        }
        // The first reading ends, with its checks.
        sleep(LONG * 2).await;
        let begun = readings(&world);
        sleep(LONG).await;
        assert_eq!(readings(&world), begun);
        let changed = world.api.with(|cluster| {
            let mut slices = cluster.list("endpointslices");
            let slice = slices.find(|slice| {
                let of = &slice["metadata"]["labels"]["kubernetes.io/service-name"];
                *of == json!("cart")
            });
            let key = Key::of(slice.unwrap());
            drop(slices);
            cluster.remove(&key);
            Instant::now()
        });
        (begun, changed)
    };
    let (ran, (begun, changed)) = join(watched, meanwhile).await;
    // Long before a reading is due.
    assert!(changed.elapsed() < PATIENCE, "{ran}");
    assert_eq!(ran.code, 0, "{ran}");
    assert!(readings(&world) > begun, "{ran}");
    let gone = ran
        .out
        .lines()
        .filter(|line| line.contains("shop/cart:http"));
    assert!(gone.count() > 0, "{ran}");
    let why: Vec<_> = ran
        .err
        .lines()
        .filter(|line| line.contains("reading the node"))
        .collect();
    assert_eq!(why, ["kpx: reading the node: cluster changed"], "{ran}");
}

#[tokio::test]
async fn a_program_that_cannot_be_run_is_refused_before_anything_is_read() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("page");
    std::fs::write(&file, "no program").unwrap();
    for (program, why) in [
        (
            "/no/such/program",
            "--exec /no/such/program: no such program",
        ),
        ("no-such-program", "--exec no-such-program: no such program"),
        (file.to_str().unwrap(), "page: it is not executable"),
    ] {
        let ran = kpx(&["--no-api", "watch", "--count", "1", "--exec", program]).await;
        assert_eq!(ran.code, 2, "{ran}");
        assert!(ran.err.contains(why), "{ran}");
    }
}
