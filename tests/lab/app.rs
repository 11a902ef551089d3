//! The programs in the pods and outside: servers, clients that count failures, a pod's first process and a node's.

use std::collections::BTreeMap;
use std::fs;
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4};
use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use nix::errno::Errno;
use nix::sys::wait::wait;
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream, UdpSocket};
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::{MissedTickBehavior, interval, sleep, timeout};

/// How long a connection may take, answer included.
const PATIENCE: Duration = Duration::from_millis(1500);

/// How many connections each client keeps open to each target of kind `long`.
const LONG: usize = 3;

/// How long a server that was asked to end goes on serving: kube-proxy hears of it within that time.
const LAME_DUCK: Duration = Duration::from_secs(12);

/// Serves HTTP on port 8080, and echoes TCP on port 9000 and UDP on port 9001, until it is asked to end.
pub(crate) fn serve() {
    runtime().block_on(async {
        let host = fs::read_to_string("/etc/hostname").unwrap_or_default();
        let head = format!("HTTP/1.0 200 OK\r\nConnection: close\r\n\r\n{host}");
        let http = TcpListener::bind("0.0.0.0:8080").await.unwrap();
        tokio::spawn(async move {
            loop {
                let Ok((mut stream, _)) = http.accept().await else {
                    continue;
                };
                let head = head.clone();
                tokio::spawn(async move {
                    let mut request = [0; 1024];
                    if timeout(PATIENCE, stream.read(&mut request)).await.is_ok() {
                        // A client that went away is its own affair: it counts what failed.
                        drop(stream.write_all(head.as_bytes()).await);
                        drop(stream.shutdown().await);
                    }
                });
            }
        });
        let echo = TcpListener::bind("0.0.0.0:9000").await.unwrap();
        tokio::spawn(async move {
            loop {
                let Ok((mut stream, _)) = echo.accept().await else {
                    continue;
                };
                tokio::spawn(async move {
                    let mut byte = [0; 1];
                    while stream.read_exact(&mut byte).await.is_ok() {
                        if stream.write_all(&byte).await.is_err() {
                            break;
                        }
                    }
                });
            }
        });
        let datagrams = UdpSocket::bind("0.0.0.0:9001").await.unwrap();
        tokio::spawn(async move {
            let mut text = [0; 2048];
            loop {
                if let Ok((length, from)) = datagrams.recv_from(&mut text).await {
                    drop(datagrams.send_to(&text[..length], from).await);
                }
            }
        });
        asked_to_end().await;
        sleep(LAME_DUCK).await;
    });
}

/// Does nothing until it is asked to end: the container of a pod that holds a place in its network.
pub(crate) fn idle() {
    runtime().block_on(asked_to_end());
}

/// A node's first process: starts `command` and waits for every child that is left to it.
#[expect(clippy::disallowed_methods, reason = "it starts a node")]
pub(crate) fn init(command: &[String]) {
    let child = Command::new(&command[0]).args(&command[1..]).spawn();
    drop(child.unwrap());
    loop {
        if wait() == Err(Errno::ECHILD) {
            thread::sleep(Duration::from_secs(1));
        }
    }
}

/// The results of a client at one target.
#[derive(Clone, Default, Serialize, Deserialize)]
pub(crate) struct Seen {
    pub(crate) new: usize,
    pub(crate) failed: usize,
    /// Connections that were kept open, and were cut.
    pub(crate) broken: usize,
    /// Each with the time, in seconds since 1970.
    pub(crate) failures: Vec<(f64, String)>,
}

/// The results of a client, by target.
pub(crate) type Tally = BTreeMap<String, Seen>;

struct Target {
    name: String,
    address: SocketAddr,
    seen: Mutex<Seen>,
    /// How many datagrams were sent. Each has a source port of its own, from a range that the kernel does not choose from.
    datagrams: AtomicUsize,
}

/// The source ports of datagrams, in turn. A port that is used again soon meets the conntrack entry of its last use, and
/// extends it to two minutes: the range is long enough for more than that, and the first port follows the clock, so that
/// the next client does not begin where the last one did.
const PORTS: (usize, usize) = (10_000, 20_000);

impl Target {
    fn count(&self, result: Result<(), String>) {
        let mut seen = self.seen.lock().unwrap();
        seen.new += 1;
        if let Err(why) = result {
            seen.failed += 1;
            seen.failures.push((now().as_secs_f64(), why));
        }
    }
}

/// Opens a connection `every` so often to each of `targets` (`NAME=http|udp|long=ADDRESS:PORT`) until it is asked to end, and writes a [`Tally`] to
/// `out`.
pub(crate) fn client(out: PathBuf, every: Duration, targets: &[String]) {
    runtime().block_on(async {
        let mut all = Vec::new();
        let mut flights = Vec::new();
        let first = usize::try_from(now().as_millis() / every.as_millis()).unwrap();
        for (number, text) in targets.iter().enumerate() {
            let mut parts = text.splitn(3, '=');
            let mut next = || parts.next().unwrap_or_else(|| panic!("no target: {text}"));
            let (name, kind, address) = (next(), next(), next());
            let target = Arc::new(Target {
                name: name.to_owned(),
                address: address.parse().unwrap(),
                seen: Mutex::default(),
                datagrams: AtomicUsize::new(first),
            });
            all.push(Arc::clone(&target));
            if kind == "long" {
                for _ in 0..LONG {
                    flights.push(tokio::spawn(stay(Arc::clone(&target))));
                }
                continue;
            }
            let http = kind == "http";
            assert!(http || kind == "udp", "no kind of target: {kind}");
            flights.push(tokio::spawn(async move {
                sleep(Duration::from_millis(3) * u32::try_from(number).unwrap()).await;
                let mut beat = interval(every);
                beat.set_missed_tick_behavior(MissedTickBehavior::Skip);
                loop {
                    beat.tick().await;
                    let target = Arc::clone(&target);
                    tokio::spawn(async move {
                        let connected = Mutex::new(None);
                        let one = async {
                            if http {
                                get(target.address, &connected).await
                            } else {
                                let sent = target.datagrams.fetch_add(1, Ordering::Relaxed);
                                let (lowest, count) = PORTS;
                                ask(target.address, lowest + sent % count).await
                            }
                        };
                        let result = timeout(PATIENCE, one).await;
                        let late = |_| {
                            Err(match *connected.lock().unwrap() {
                                Some(port) => format!("no answer to port {port} in time"),
                                None => "timed out".to_owned(),
                            })
                        };
                        target.count(result.unwrap_or_else(late));
                    });
                }
            }));
        }
        asked_to_end().await;
        for flight in flights {
            flight.abort();
        }
        // Connections under way are waited for, and counted.
        sleep(PATIENCE + Duration::from_millis(300)).await;
        let seen: Tally = all
            .iter()
            .map(|target| (target.name.clone(), target.seen.lock().unwrap().clone()))
            .collect();
        fs::write(out, serde_json::to_string(&seen).unwrap()).unwrap();
    });
}

/// Opens `count` connections to `address`, one after the other without waiting for their answers, keeps them open, and prints
/// how many failed and what was said first.
#[expect(clippy::print_stdout, reason = "that is its answer")]
pub(crate) fn connect(count: usize, address: SocketAddr) {
    runtime().block_on(async {
        let mut flights = Vec::new();
        for _ in 0..count {
            flights.push(tokio::spawn(async move {
                let answer = timeout(PATIENCE, answered(address, |_| ())).await;
                answer.unwrap_or_else(|_| Err("timed out".to_owned()))
            }));
            sleep(Duration::from_millis(10)).await;
        }
        let (mut open, mut failed) = (Vec::new(), Vec::new());
        for flight in flights {
            match flight.await.unwrap() {
                Ok(stream) => open.push(stream),
                Err(why) => failed.push(why),
            }
        }
        let first = failed.first().map_or("", String::as_str);
        println!("{} {first}", failed.len());
    });
}

async fn get(address: SocketAddr, connected: &Mutex<Option<u16>>) -> Result<(), String> {
    let tell = |stream: &TcpStream| {
        *connected.lock().unwrap() = stream.local_addr().ok().map(|address| address.port());
    };
    answered(address, tell).await.map(drop)
}

/// Returns a connection that got its answer; `tell` hears of it before.
async fn answered(address: SocketAddr, tell: impl Fn(&TcpStream)) -> Result<TcpStream, String> {
    let said = |error: std::io::Error| error.to_string();
    let mut stream = TcpStream::connect(address).await.map_err(said)?;
    tell(&stream);
    let request = b"GET / HTTP/1.0\r\n\r\n";
    stream.write_all(request).await.map_err(said)?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).await.map_err(said)?;
    if !answer.starts_with(b"HTTP/1.0 200 OK") {
        return Err(format!("answered {:?}", String::from_utf8_lossy(&answer)));
    }
    Ok(stream)
}

async fn ask(address: SocketAddr, port: usize) -> Result<(), String> {
    let said = |error: std::io::Error| error.to_string();
    let here = SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, u16::try_from(port).unwrap());
    let socket = UdpSocket::bind(here).await.map_err(said)?;
    socket.connect(address).await.map_err(said)?;
    socket.send(b"x").await.map_err(said)?;
    socket.recv(&mut [0; 16]).await.map_err(said)?;
    Ok(())
}

/// Keeps one connection open, and opens another where it was cut.
async fn stay(target: Arc<Target>) {
    loop {
        let Ok(Ok(mut stream)) = timeout(PATIENCE, TcpStream::connect(target.address)).await else {
            target.count(Err("a long connection could not be opened".to_owned()));
            sleep(Duration::from_millis(500)).await;
            continue;
        };
        target.count(Ok(()));
        let echo = async |stream: &mut TcpStream| {
            stream.write_all(b"y").await?;
            stream.read_exact(&mut [0; 1]).await
        };
        let begun = Instant::now();
        loop {
            let why = match timeout(Duration::from_secs(5), echo(&mut stream)).await {
                Ok(Ok(_)) => {
                    sleep(Duration::from_millis(100)).await;
                    continue;
                }
                Ok(Err(error)) => error.to_string(),
                Err(_) => "timed out".to_owned(),
            };
            let mut seen = target.seen.lock().unwrap();
            seen.broken += 1;
            let after = begun.elapsed().as_secs();
            seen.failures
                .push((now().as_secs_f64(), format!("cut after {after} s: {why}")));
            break;
        }
    }
}

async fn asked_to_end() {
    let mut terminate = signal(SignalKind::terminate()).unwrap();
    let mut interrupt = signal(SignalKind::interrupt()).unwrap();
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
}

fn runtime() -> tokio::runtime::Runtime {
    let mut builder = tokio::runtime::Builder::new_current_thread();
    builder.enable_all().build().unwrap()
}

#[expect(
    clippy::disallowed_methods,
    reason = "failures are found by their time"
)]
fn now() -> Duration {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    since.unwrap()
}
