//! Real traffic through a node while the node is changed, and the fate of each connection.
//!
//! ```text
//! let world = World::new("iptables");                 // namespaces, backends, the folder of a kube-proxy
//! let mut proxy = world.proxy(Duration::ZERO);         // a stand-in for kube-proxy, inside the node
//! proxy.wait_synced(1);
//! let traffic = Traffic::start(&world, Pace::FULL);     // returns once everything gets through
//! … something is done to the node …
//! let report = traffic.stop();
//! report.unharmed();                                   // or a look at report.lines
//! ```
//!
//! Clients are a pod of the node, the node itself, and one outside; each goes to the `ClusterIP`, the `NodePort` and the
//! load balancer's address of one Service, by TCP and UDP, IPv4 and IPv6: with new connections as fast as its pace lets it,
//! with one TCP connection that stays, and with one UDP socket that stays. Two backends are pods of the node, a third is
//! one of another node. The recorded cluster's other Services answer, too.

mod backend;
mod bridged;
mod client;
mod network;
mod report;
mod tests;

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::{Child, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::netns::run;
use super::stand_in::{Folder, KubeProxy, recorded, replace, with_mode};
use backend::Backend;
pub(crate) use backend::NAME;
pub(crate) use client::{Kind, Pace};
use network::Network;
pub(crate) use report::{Line, Report};

/// The Service's pods: their addresses, and their node.
const PODS: [(&str, &str, &str); 3] = [
    ("10.244.1.21", "fd00:10:244:1::21", "node1"),
    ("10.244.1.22", "fd00:10:244:1::22", "node1"),
    ("10.244.2.21", "fd00:10:244:2::21", "node2"),
];

/// The targets of clients: their kind, and their addresses.
const TARGETS: [(&str, &str, &str); 3] = [
    ("ClusterIP", "10.100.9.1:80", "[fd00:10:96::901]:80"),
    ("NodePort", "10.0.2.15:30980", "[fd00:10:0:2::15]:30980"),
    ("external", "203.0.113.90:80", "[2001:db8:99::90]:80"),
];

/// The places of clients.
const PLACES: [&str; 3] = ["pod", "host", "outside"];

/// A process; ended when dropped.
pub(crate) struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

/// A node with what is around it.
pub(crate) struct World {
    pub(crate) network: Network,
    pub(crate) folder: Folder,
    /// Of each pod, while it lives.
    backends: [Option<Backend>; 3],
    /// Of the recorded cluster's pods.
    _others: [Backend; 2],
    _scratch: tempfile::TempDir,
}

impl World {
    /// A node without rules, whose kube-proxy is configured for `mode`.
    pub(crate) fn new(mode: &str) -> Self {
        let network = Network::new();
        let scratch = tempfile::tempdir().unwrap();
        let folder = recorded("dual-iptables", mode, scratch.path());
        let [a, b, c] = PODS.map(|(v4, v6, node)| {
            let netns = match node {
                "node1" => &network.pods,
                _ => &network.outside,
            };
            Some(Backend::start(netns, &[v4, v6], &[8080]))
        });
        // Neighbours are found only at the link they ask; another node's pods are routed to.
        let nodes = [
            (&network.pods, "node1", "up0"),
            (&network.outside, "node2", "lo"),
        ];
        let others = nodes.map(|(netns, node, link)| {
            let addresses = pods_of(&folder.0, node);
            let addresses: Vec<&str> = addresses.iter().map(String::as_str).collect();
            network::add_pods(netns, link, &addresses);
            Backend::start(netns, &addresses, &[53, 80, 8080, 8443])
        });
        let world = Self {
            network,
            folder,
            backends: [a, b, c],
            _others: others,
            _scratch: scratch,
        };
        append(&world.folder.0, "services.json", [service()].into());
        world.endpoints(&[0, 1, 2]);
        world
    }

    /// Starts a stand-in for kube-proxy on the node, whose first sync takes `first_sync` longer.
    pub(crate) fn proxy(&self, first_sync: Duration) -> KubeProxy {
        KubeProxy::start(&self.network.node, &self.folder, first_sync)
    }

    /// Starts a process in the network of the pod that is a client, which kpx finds by it.
    pub(crate) fn client_process(&self) -> Process {
        Process(self.network.client.start(&["sleep", "600"], Stdio::null()))
    }

    /// Configures kube-proxy for `mode`, for its next start.
    pub(crate) fn configure(&self, mode: &str) {
        let config = fs::read_to_string(self.folder.config()).unwrap();
        fs::write(self.folder.config(), with_mode(&config, mode)).unwrap();
    }

    /// Runs kpx on the node, with the cluster of its kube-proxy; it must succeed.
    pub(crate) fn kpx(&self, args: &[&str]) -> String {
        let netns = self.network.node.options().netns.unwrap();
        let cluster = self.folder.0.to_str().unwrap();
        let mut line = vec![env!("CARGO_BIN_EXE_kpx"), "--netns", &netns];
        line.extend([
            "--node",
            "node1",
            "--timeout",
            "60s",
            "--cluster-from",
            cluster,
        ]);
        line.extend(args);
        run(&line, "")
    }

    /// Makes these pods, by their number from 0, the endpoints of the Service.
    pub(crate) fn endpoints(&self, pods: &[usize]) {
        let slices = ["IPv4", "IPv6"].map(|family| slice(family, pods));
        append(&self.folder.0, "endpointslices.json", slices.into());
    }

    /// Ends what listens in the pod number `pod`.
    pub(crate) fn kill(&mut self, pod: usize) {
        self.backends[pod] = None;
    }
}

/// Addresses of the pods that run on `node` in the cluster at `folder`.
fn pods_of(folder: &Path, node: &str) -> BTreeSet<String> {
    let text = fs::read_to_string(folder.join("cluster/endpointslices.json")).unwrap();
    let list: Value = serde_json::from_str(&text).unwrap();
    let slices = list["items"].as_array().unwrap().iter();
    let endpoints = slices.flat_map(|slice| slice["endpoints"].as_array().unwrap());
    let here = endpoints.filter(|endpoint| endpoint["nodeName"] == node);
    here.map(|endpoint| endpoint["addresses"][0].as_str().unwrap().to_owned())
        .collect()
}

fn service() -> Value {
    let port = |name: &str| json!({"name": name.to_lowercase(), "protocol": name, "port": 80, "targetPort": 8080, "nodePort": 30980});
    json!({
        "apiVersion": "v1", "kind": "Service",
        "metadata": {"name": "web", "namespace": "demo"},
        "spec": {
            "type": "LoadBalancer",
            "clusterIP": "10.100.9.1", "clusterIPs": ["10.100.9.1", "fd00:10:96::901"],
            "ipFamilies": ["IPv4", "IPv6"], "ipFamilyPolicy": "RequireDualStack",
            "externalTrafficPolicy": "Cluster", "internalTrafficPolicy": "Cluster",
            "sessionAffinity": "None",
            "ports": [port("TCP"), port("UDP")],
        },
        "status": {"loadBalancer": {"ingress": [
            {"ip": "203.0.113.90", "ipMode": "VIP"}, {"ip": "2001:db8:99::90", "ipMode": "VIP"},
        ]}},
    })
}

fn slice(family: &str, pods: &[usize]) -> Value {
    let endpoints = pods.iter().map(|&pod| {
        let (v4, v6, node) = PODS[pod];
        let address = if family == "IPv4" { v4 } else { v6 };
        json!({"addresses": [address], "nodeName": node, "conditions": {"ready": true, "serving": true, "terminating": false}})
    });
    let port = |name: &str| json!({"name": name.to_lowercase(), "protocol": name, "port": 8080});
    json!({
        "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": family,
        "metadata": {
            "name": format!("web-{}", family.to_lowercase()), "namespace": "demo",
            "labels": {"kubernetes.io/service-name": "web"},
        },
        "ports": [port("TCP"), port("UDP")],
        "endpoints": endpoints.collect::<Vec<_>>(),
    })
}

/// Puts objects into a list of the cluster at `folder`, in place of those of the same names.
fn append(folder: &Path, file: &str, objects: Vec<Value>) {
    let file = folder.join("cluster").join(file);
    let mut list: Value = serde_json::from_str(&fs::read_to_string(&file).unwrap()).unwrap();
    let items = list["items"].as_array_mut().unwrap();
    let name = |object: &Value| object["metadata"]["name"].clone();
    items.retain(|item| objects.iter().all(|object| name(object) != name(item)));
    items.extend(objects);
    replace(&file, &list.to_string());
}

/// The clients that must end.
#[derive(Debug, Default)]
struct Ends {
    all: AtomicBool,
    long: AtomicBool,
}

/// Clients at work.
pub(crate) struct Traffic {
    begin: Instant,
    ends: Arc<Ends>,
    threads: Vec<JoinHandle<(Vec<Line>, usize)>>,
}

impl Traffic {
    /// Starts all clients, and waits until each has been served once.
    pub(crate) fn start(world: &World, pace: Pace) -> Self {
        let ends = Arc::new(Ends::default());
        let begin = Instant::now();
        let network = &world.network;
        let netns = [&network.client, &network.node, &network.outside];
        let served = Arc::new(AtomicUsize::new(0));
        let mut count = 0;
        let mut places = PLACES.into_iter();
        let threads = netns.map(|netns| {
            let lines = lines(places.next().unwrap());
            count += lines.len();
            let (ends, served) = (Arc::clone(&ends), Arc::clone(&served));
            netns.start_thread(move || {
                let before = report::clashes();
                let lines = client::run(lines, pace, begin, &ends, &served);
                (lines, report::clashes() - before)
            })
        });
        while served.load(Ordering::Relaxed) < count {
            let served = served.load(Ordering::Relaxed);
            assert!(
                begin.elapsed() < Duration::from_secs(60),
                "only {served} of {count} clients are served"
            );
            thread::sleep(Duration::from_millis(20));
        }
        Self {
            begin,
            ends,
            threads: threads.into(),
        }
    }

    /// Returns the time since the clients began; the failures of a report have the same clock.
    pub(crate) fn elapsed(&self) -> Duration {
        self.begin.elapsed()
    }

    /// Ends the connections that stay, as a client does that needs its one no more.
    pub(crate) fn end_long(&self) {
        self.ends.long.store(true, Ordering::Relaxed);
    }

    /// Ends all clients; returns the fate of their connections.
    pub(crate) fn stop(self) -> Report {
        self.ends.all.store(true, Ordering::Relaxed);
        let threads = self.threads.into_iter();
        let (lines, clashes): (Vec<_>, Vec<_>) =
            threads.map(|thread| thread.join().unwrap()).unzip();
        Report {
            about: String::new(),
            lines: lines.concat(),
            clashes: clashes.iter().sum(),
        }
    }
}

/// Everything that is done from one place.
fn lines(from: &'static str) -> Vec<Line> {
    let mut lines = Vec::new();
    for (to, v4, v6) in TARGETS {
        for address in [v4, v6] {
            for kind in Kind::ALL {
                lines.push(Line::new(from, to, address.parse().unwrap(), kind));
            }
        }
    }
    lines
}
