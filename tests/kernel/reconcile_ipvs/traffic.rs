//! Connections through what kpx programmed, and while it does.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Read as _, Write as _};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use serde_json::Value;

use super::node::{Node, data};
use crate::kernel::netns::Netns;
use crate::kernel::stand_in;

const SERVICE: &str = "10.97.54.248:80";
const NODE_PORT: &str = "10.0.2.15:31082";
const PODS: [&str; 4] = ["10.244.1.14", "10.244.1.16", "10.244.1.17", "10.244.1.18"];
const WAIT: Duration = Duration::from_secs(20);

/// A node with a pod that is a client, and one that answers for all others.
struct Cluster {
    node: Node,
    client: Netns,
    _bundle: tempfile::TempDir,
}

impl Cluster {
    fn new() -> Self {
        let bundle = tempfile::tempdir().unwrap();
        copy(&data("seed-ipvs"), bundle.path());
        let node = Node::from(bundle.path(), false);
        let [pods, client] = [(); 2].map(|()| Netns::new());
        let name = |netns: &Netns| netns.options().netns.unwrap();
        node.netns.run("sysctl -qw net.ipv4.ip_forward=1");
        let addresses = PODS
            .map(|pod| format!("addr add {pod}/25 dev eth0\n"))
            .concat();
        for (link, netns, gateway, addresses) in [
            ("pods0", &pods, "10.244.1.1", addresses.as_str()),
            (
                "client0",
                &client,
                "10.244.1.129",
                "addr add 10.244.1.200/25 dev eth0\n",
            ),
        ] {
            node.netns.feed(
                "ip -batch -",
                &format!(
                    "link add {link} type veth peer name eth0 netns {}\n\
                     addr add {gateway}/25 dev {link}\nlink set {link} up\n",
                    name(netns)
                ),
            );
            let rest = format!("link set eth0 up\n{addresses}route add default via {gateway}\n");
            netns.feed("ip -batch -", &rest);
        }
        let listener = pods.inside(|| TcpListener::bind("0.0.0.0:80").unwrap());
        thread::spawn(move || {
            // The namespace lives as long as it is listened in.
            let _pods = pods;
            for stream in listener.incoming() {
                thread::spawn(move || answer(stream.unwrap()));
            }
        });
        Self {
            node,
            client,
            _bundle: bundle,
        }
    }

    /// Makes `pods` the endpoints of the Service.
    fn endpoints(&self, pods: &[&str]) {
        let file = self.node.recording.join("cluster/endpointslices.json");
        let mut slices: Value = serde_json::from_str(&fs::read_to_string(&file).unwrap()).unwrap();
        for slice in slices["items"].as_array_mut().unwrap() {
            if slice["metadata"]["name"]
                .as_str()
                .unwrap()
                .starts_with("nginx-svc")
            {
                let all = slice["endpoints"].as_array_mut().unwrap();
                let like = all[0].clone();
                *all = pods
                    .iter()
                    .map(|pod| {
                        let mut endpoint = like.clone();
                        endpoint["addresses"] = Value::from(vec![*pod]);
                        endpoint
                    })
                    .collect();
            }
        }
        stand_in::replace(&file, &slices.to_string());
    }

    /// Connects from the client's pod, and learns which pod answers.
    fn connect(&self, to: &str) -> io::Result<(TcpStream, IpAddr)> {
        let to: SocketAddr = to.parse().unwrap();
        self.client.inside(|| open(to))
    }
}

fn open(to: SocketAddr) -> io::Result<(TcpStream, IpAddr)> {
    let mut stream = TcpStream::connect_timeout(&to, WAIT)?;
    stream.set_read_timeout(Some(WAIT))?;
    let mut said = [0; 16];
    stream.read_exact(&mut said)?;
    let pod = std::str::from_utf8(&said).unwrap().trim().parse().unwrap();
    Ok((stream, pod))
}

/// Sends the name of its pod, in 16 bytes, and sends back what it gets.
fn answer(mut stream: TcpStream) {
    let pod = stream.local_addr().unwrap().ip().to_string();
    if stream.write_all(format!("{pod:<16}").as_bytes()).is_err() {
        return;
    }
    let mut byte = [0];
    while matches!(stream.read(&mut byte), Ok(1)) && stream.write_all(&byte).is_ok() {}
}

fn echo(stream: &mut TcpStream) -> io::Result<()> {
    stream.write_all(b"x")?;
    stream.read_exact(&mut [0])
}

pub(super) fn copy(from: &Path, to: &Path) {
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let target = to.join(entry.file_name());
        if entry.path().is_dir() {
            fs::create_dir(&target).unwrap();
            copy(&entry.path(), &target);
        } else {
            fs::copy(entry.path(), &target).unwrap();
        }
    }
}

#[test]
#[ignore = "needs root and ip_vs"]
fn vm_connections_go_through_and_those_to_pods_that_stay_go_on() {
    let cluster = Cluster::new();
    let before = &PODS[..3];
    let after = [PODS[0], PODS[1], PODS[3]];
    assert!(cluster.connect(NODE_PORT).is_err());
    cluster.node.apply();
    for to in [SERVICE, NODE_PORT] {
        let mut seen: Vec<String> = (0..3)
            .map(|_| cluster.connect(to).unwrap().1.to_string())
            .collect();
        seen.sort();
        assert_eq!(seen, before, "{to}");
    }
    // Opened before, used to the end.
    let mut long: Vec<_> = (0..3).map(|_| cluster.connect(SERVICE).unwrap()).collect();

    let stop = AtomicBool::new(false);
    let to: SocketAddr = SERVICE.parse().unwrap();
    let (counts, failures) = thread::scope(|scope| {
        let clients: Vec<_> = (0..3)
            .map(|_| {
                scope.spawn(|| {
                    cluster.client.inside(|| {
                        let mut counts: BTreeMap<IpAddr, u32> = BTreeMap::new();
                        let mut failures = Vec::new();
                        while !stop.load(Ordering::Relaxed) {
                            match open(to) {
                                Ok((mut stream, pod)) => {
                                    *counts.entry(pod).or_default() += 1;
                                    for _ in 0..5 {
                                        thread::sleep(Duration::from_millis(20));
                                        if let Err(e) = echo(&mut stream) {
                                            failures.push(format!("{pod}: {e}"));
                                            break;
                                        }
                                    }
                                }
                                Err(e) => failures.push(e.to_string()),
                            }
                        }
                        (counts, failures)
                    })
                })
            })
            .collect();
        for pods in [&after[..], before, &after[..]] {
            cluster.endpoints(pods);
            cluster.node.apply();
        }
        stop.store(true, Ordering::Relaxed);
        let ended = clients.into_iter().map(|client| client.join().unwrap());
        ended.fold(
            (BTreeMap::new(), Vec::new()),
            |(mut all, mut failed), (counts, more)| {
                for (pod, count) in counts {
                    *all.entry(pod.to_string()).or_insert(0) += count;
                }
                failed.extend(more);
                (all, failed)
            },
        )
    });
    assert_eq!(failures, Vec::<String>::new(), "{counts:?}");
    for pod in PODS {
        assert!(
            counts.get(pod).is_some_and(|count| *count > 0),
            "{counts:?}"
        );
    }
    for (stream, pod) in &mut long {
        echo(stream).unwrap_or_else(|e| panic!("{pod}: {e}"));
    }
    // The pod that is gone has a connection, and gets no other.
    let real = format!("-a -t {SERVICE} -r {}:80 -m -w 0", PODS[2]);
    assert!(
        cluster.node.state().servers.contains(&real),
        "{:?}",
        cluster.node.state().servers
    );
    let gone: IpAddr = PODS[2].parse().unwrap();
    for _ in 0..6 {
        assert_ne!(cluster.connect(SERVICE).unwrap().1, gone);
    }
    let again = cluster.node.reconcile(&["--apply", "--yes"]);
    assert!(again.text.contains("no changes needed"), "{}", again.text);
    // Unless it is to go with them.
    let ran = cluster.node.reconcile(&["--no-drain", "--apply", "--yes"]);
    assert_eq!(ran.code, Some(0), "{}", ran.text);
    let servers = cluster.node.state().servers;
    assert!(
        !servers.iter().any(|line| line.contains(PODS[2])),
        "{servers:?}"
    );
}
