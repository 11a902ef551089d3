//! `kpx top` beside traffic whose rate is known.

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;

use super::netns::{Netns, run};
use super::probe::{PODS, node, node_in};

const SERVICE: &str = "10.97.54.248:80";

/// Connections per second.
const RATE: u32 = 100;

/// Connections that stay open.
const HELD: u32 = 12;

/// Connections to the Service, at a steady rate.
struct Traffic {
    ends: Arc<AtomicBool>,
    listeners: Vec<thread::JoinHandle<()>>,
    /// Returns the connections per second, as they were made.
    client: thread::JoinHandle<f64>,
    /// Connections that each pod took.
    taken: Arc<[AtomicU32; 3]>,
}

impl Traffic {
    fn start(node: &Netns) -> Self {
        let ends = Arc::new(AtomicBool::new(false));
        let taken: Arc<[AtomicU32; 3]> = Arc::default();
        let sockets = node.inside(|| PODS.map(|pod| TcpListener::bind((pod, 80)).unwrap()));
        let listeners = sockets.into_iter().enumerate().map(|(at, listener)| {
            let taken = Arc::clone(&taken);
            thread::spawn(move || {
                let mut held = Vec::new();
                while let Ok((mut stream, _)) = listener.accept() {
                    let mut byte = [0];
                    if stream.read(&mut byte).unwrap() == 0 {
                        return;
                    }
                    taken[at].fetch_add(1, Ordering::Relaxed);
                    stream.write_all(&byte).unwrap();
                    if byte == *b"h" {
                        held.push(stream);
                    }
                }
            })
        });
        let listeners = listeners.collect();
        let ended = Arc::clone(&ends);
        let client = node.start_thread(move || {
            let held: Vec<_> = (0..HELD).map(|_| ask(*b"h")).collect();
            let begin = Instant::now();
            let mut made = 0;
            while !ended.load(Ordering::Relaxed) {
                ask(*b"x");
                made += 1;
                let due = begin + Duration::from_secs(1) * made / RATE;
                thread::sleep(due.saturating_duration_since(Instant::now()));
            }
            let rate = f64::from(made) / begin.elapsed().as_secs_f64();
            drop(held);
            rate
        });
        Self {
            ends,
            listeners,
            client,
            taken,
        }
    }

    /// Ends it; returns the connections per second, and how many each pod took.
    fn end(self, node: &Netns) -> (f64, [f64; 3]) {
        let taken = [0, 1, 2].map(|at: usize| f64::from(self.taken[at].load(Ordering::Relaxed)));
        self.ends.store(true, Ordering::Relaxed);
        let rate = self.client.join().unwrap();
        // A connection without a byte ends a listener.
        node.inside(|| PODS.map(|pod| drop(TcpStream::connect((pod, 80)))));
        for thread in self.listeners {
            thread.join().unwrap();
        }
        (rate, taken)
    }
}

fn ask(byte: [u8; 1]) -> TcpStream {
    let mut stream = TcpStream::connect(SERVICE).unwrap();
    stream.write_all(&byte).unwrap();
    stream.read_exact(&mut [0]).unwrap();
    stream
}

/// Runs `kpx top` with `more`, and returns its lines.
fn top(node: &Netns, more: &[&str]) -> Vec<Value> {
    let options = node.options();
    let name = options.netns.as_deref().unwrap();
    let cluster = Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata/nodes/seed-iptables");
    let mut line = vec![env!("CARGO_BIN_EXE_kpx"), "--netns", name, "--cluster-from"];
    line.extend([
        cluster.to_str().unwrap(),
        "--node",
        "node1",
        "top",
        "-o",
        "json",
    ]);
    line.extend_from_slice(more);
    let text = run(&line, "");
    crate::schema::hold(&text);
    text.lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

fn number(value: &Value) -> f64 {
    value.as_f64().unwrap_or_else(|| panic!("{value}"))
}

#[test]
#[ignore = "needs root and a network namespace"]
fn rates_are_those_of_the_traffic() {
    let node = node();
    let traffic = Traffic::start(&node);
    let without = &top(&node, &["--count", "1", "--interval", "500ms"])[0];
    assert_eq!(without["services"][0]["bytesPerSecond"], Value::Null);
    assert!(
        without["notes"].to_string().contains("nf_conntrack_acct"),
        "{without}"
    );
    node.run("sysctl -q -w net.netfilter.nf_conntrack_acct=1");
    let some = &top(&node, &["--count", "1", "--interval", "500ms"])[0];
    assert!(number(&some["services"][0]["bytesPerSecond"]) > 0.0);
    assert!(
        some["notes"]
            .to_string()
            .contains("accounting was off when they began"),
        "{some}"
    );
    traffic.end(&node);
    node.run("conntrack -F");
    let traffic = Traffic::start(&node);
    let lines = top(
        &node,
        &["default/nginx-svc", "--count", "3", "--interval", "2s"],
    );
    let (rate, taken) = traffic.end(&node);
    assert_eq!(lines.len(), 3);
    let (mut new, mut packets, mut seconds) = (0.0, 0.0, 0.0);
    for line in &lines {
        assert_eq!(line["kind"], "TopReport");
        let [service] = line["services"].as_array().unwrap().as_slice() else {
            panic!("{line}");
        };
        let length = number(&line["seconds"]);
        seconds += length;
        new += number(&service["newPerSecond"]) * length;
        packets += number(&service["packetsPerSecond"]) * length;
        // One more may be in between.
        let open = number(&service["open"]);
        assert!((0.0..=2.0).contains(&(open - f64::from(HELD))), "{line}");
    }
    let measured = new / seconds;
    assert!(
        (measured / rate - 1.0).abs() < 0.03,
        "{measured} instead of {rate}"
    );
    // Three packets to open it, two with a byte and their acknowledgements, and the end.
    let each = packets / new;
    assert!(
        (9.0..12.0).contains(&each),
        "{each} packets of a connection"
    );
    let backends = &lines[2]["services"][0]["backends"];
    for (pod, taken) in PODS.iter().zip(taken) {
        let mut all = backends.as_array().unwrap().iter();
        let backend = all
            .find(|backend| backend["backend"] == format!("{pod}:80"))
            .unwrap();
        let promised = number(&backend["promised"]);
        assert!((promised - 1.0 / 3.0).abs() < 1e-9, "{promised}");
        let counted = number(&backend["newConnections"]);
        // Connections before the first reading are not counted.
        assert!(counted > 0.0 && counted <= taken, "{counted} of {taken}");
    }
}

#[test]
#[ignore = "needs root and a network namespace"]
fn refused_packets_are_counted_by_service() {
    for backend in ["nft", "legacy"] {
        count_refused(&node_in(backend), backend);
    }
}

fn count_refused(node: &Netns, backend: &str) {
    let ends = Arc::new(AtomicBool::new(false));
    let ended = Arc::clone(&ends);
    // Like kube-proxy's rule for a Service without endpoints; kube-dns has some, so its packets are translated by then.
    node.run(&format!(
        "iptables-{backend} -t filter -I KUBE-SERVICES -p udp --dport 53 -m comment --comment \
         kube-system/kube-dns:dns -j REJECT"
    ));
    let sender = node.start_thread(move || {
        let mut sent = 0_u32;
        let begin = Instant::now();
        while !ended.load(Ordering::Relaxed) {
            let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
            socket.connect("10.96.0.10:53").unwrap();
            // A rejected packet is an error of the sender.
            socket.send(b"x").unwrap_err();
            sent += 1;
            let due = begin + Duration::from_millis(10) * sent;
            thread::sleep(due.saturating_duration_since(Instant::now()));
        }
        f64::from(sent) / begin.elapsed().as_secs_f64()
    });
    let lines = top(node, &["--count", "2", "--sort", "refused"]);
    ends.store(true, Ordering::Relaxed);
    let rate = sender.join().unwrap();
    for line in &lines {
        let first = &line["services"][0];
        assert_eq!(first["service"], "kube-system/kube-dns:dns", "{line}");
        let refused = number(&first["refusedPerSecond"]);
        assert!(
            (refused / rate - 1.0).abs() < 0.03,
            "{refused} instead of {rate}"
        );
    }
}
