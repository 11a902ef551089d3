//! What a client does, again and again, and what it notes.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use socket2::SockRef;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpStream, UdpSocket};
use tokio::time::{sleep, timeout};

use super::Ends;
use super::backend::NAME;
use super::report::Line;

/// What is done.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Kind {
    /// A TCP connection, and another one.
    NewTcp,
    /// A datagram and its answer from a new port, and again.
    NewUdp,
    /// One TCP connection that stays; another one only when it breaks.
    LongTcp,
    /// Datagrams and their answers from one port.
    LongUdp,
}

impl Kind {
    pub(super) const ALL: [Self; 4] = [Self::NewTcp, Self::NewUdp, Self::LongTcp, Self::LongUdp];

    /// Whether it is about what begins, and not about what is there.
    pub(crate) fn is_new(self) -> bool {
        matches!(self, Self::NewTcp | Self::NewUdp)
    }
}

/// How fast clients are.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pace {
    /// Between one new connection and the next.
    pause: Duration,
    /// Between two exchanges of a connection that stays.
    interval: Duration,
    /// After which something has failed.
    patience: Duration,
}

impl Pace {
    /// For a machine as it is.
    pub(crate) const FULL: Self = Self {
        pause: Duration::from_millis(5),
        interval: Duration::from_millis(50),
        patience: Duration::from_secs(3),
    };

    /// For an emulated machine.
    pub(crate) const EMULATED: Self = Self {
        pause: Duration::from_millis(150),
        interval: Duration::from_millis(400),
        patience: Duration::from_secs(8),
    };
}

/// Works at all `lines` until they are to end; counts those that were `served` once.
pub(super) fn run(
    lines: Vec<Line>,
    pace: Pace,
    begin: Instant,
    ends: &Ends,
    served: &AtomicUsize,
) -> Vec<Line> {
    let client = Client {
        pace,
        begin,
        ends,
        served,
    };
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = runtime.enable_all().build().unwrap();
    runtime.block_on(join_all(lines.into_iter().map(|line| client.work(line))))
}

struct Client<'a> {
    pace: Pace,
    begin: Instant,
    ends: &'a Ends,
    served: &'a AtomicUsize,
}

impl Client<'_> {
    fn is_over(&self, kind: Kind) -> bool {
        let long = !kind.is_new() && self.ends.long.load(Ordering::Relaxed);
        long || self.ends.all.load(Ordering::Relaxed)
    }

    async fn work(&self, mut line: Line) -> Line {
        let mut tcp = None;
        let mut udp = None;
        let mut served = false;
        while !self.is_over(line.kind) {
            let start = Instant::now();
            let attempt = async {
                match line.kind {
                    Kind::NewTcp => connect(line.target).await.map(drop),
                    Kind::NewUdp => ask(&socket(line.target).await?).await,
                    Kind::LongTcp => {
                        if tcp.is_none() {
                            tcp = Some(connect(line.target).await?);
                        }
                        echo(tcp.as_mut().unwrap()).await
                    }
                    Kind::LongUdp => {
                        if udp.is_none() {
                            udp = Some(socket(line.target).await?);
                        }
                        ask(udp.as_ref().unwrap()).await
                    }
                }
            };
            let ended = timeout(self.pace.patience, attempt).await;
            let ended = ended.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()));
            if ended.is_err() {
                tcp = None;
            }
            // What fails before it was there is not broken: the rules may be on their way.
            if served || ended.is_ok() {
                line.note(start - self.begin, start.elapsed(), ended);
            }
            if !served && line.attempts > 0 {
                served = true;
                self.served.fetch_add(1, Ordering::Relaxed);
            }
            sleep(if line.kind.is_new() {
                self.pace.pause
            } else {
                self.pace.interval
            })
            .await;
        }
        line
    }
}

/// Connects, and waits for the other's name.
async fn connect(target: SocketAddr) -> io::Result<TcpStream> {
    let mut stream = TcpStream::connect(target).await?;
    // Ends with a reset, without leaving anything behind.
    SockRef::from(&stream).set_linger(Some(Duration::ZERO))?;
    stream.set_nodelay(true)?;
    stream.read_exact(&mut [0; NAME]).await?;
    Ok(stream)
}

async fn echo(stream: &mut TcpStream) -> io::Result<()> {
    stream.write_all(b"still there?").await?;
    let mut answer = [0; 12];
    stream.read_exact(&mut answer).await?;
    assert_eq!(&answer, b"still there?");
    Ok(())
}

async fn socket(target: SocketAddr) -> io::Result<UdpSocket> {
    let any = match target {
        SocketAddr::V4(_) => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
        SocketAddr::V6(_) => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
    };
    let socket = UdpSocket::bind((any, 0)).await?;
    socket.connect(target).await?;
    Ok(socket)
}

async fn ask(socket: &UdpSocket) -> io::Result<()> {
    socket.send(b"?").await?;
    socket.recv(&mut [0; NAME]).await?;
    Ok(())
}
