//! The loop of a client, and its notes.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::atomic::{AtomicU16, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use socket2::{Domain, SockRef, Socket, Type};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpSocket, TcpStream, UdpSocket};
use tokio::time::{sleep, timeout};

use super::backend::NAME;
use super::report::Line;
use super::{Ends, PLACES, TARGETS};

/// The kind of traffic of a client.
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

    /// Returns whether it opens new connections, rather than using an established one.
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
        let ports = Ports::of(&line);
        let mut tcp = None;
        let mut udp = None;
        let mut served = false;
        while !self.is_over(line.kind) {
            let start = Instant::now();
            let attempt = async {
                match line.kind {
                    Kind::NewTcp => connect(&ports, line.target).await.map(drop),
                    Kind::NewUdp => ask(&socket(&ports, line.target).await?).await,
                    Kind::LongTcp => {
                        if tcp.is_none() {
                            tcp = Some(connect(&ports, line.target).await?);
                        }
                        echo(tcp.as_mut().unwrap()).await
                    }
                    Kind::LongUdp => {
                        if udp.is_none() {
                            udp = Some(socket(&ports, line.target).await?);
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
            // A connection that fails before it was established is not broken: the rules may be on their way.
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

/// The ports that one client connects from, in turn, and no other: IPVS tells answers apart by the client's port and the
/// backend alone (`ip_vs_conn_out_get`), so that one port at two addresses of a Service may get the answers of the other;
/// and of two clients that are masqueraded at one moment, and ask for one port, one loses its packet. Neither have them
/// the kernel, which gives higher ones, and servers of the node.
struct Ports {
    first: u16,
    count: u16,
    next: &'static AtomicU16,
}

/// The index of the port that each client takes next. A client of the next run goes on where the last one ended,
/// because the node still remembers the ports before: conntrack leads a datagram to the endpoint of its predecessor for
/// 30 s, and when IPVS forgets a connection, conntrack is made to forget whatever is by then between the same addresses
/// and ports (`ip_vs_conn_drop_conntrack`), ten seconds after the end of the old one.
static NEXT: [AtomicU16; PLACES.len() * TARGETS.len() * Kind::ALL.len() * 2] =
    [const { AtomicU16::new(0) }; _];

impl Ports {
    fn of(line: &Line) -> Self {
        let target = TARGETS.iter().position(|(to, _, _)| *to == line.to);
        let place = PLACES.iter().position(|from| *from == line.from);
        let number = place.unwrap() * TARGETS.len() + target.unwrap();
        let client = (number * Kind::ALL.len() + line.kind as usize) * 2;
        let number = u16::try_from(number).unwrap();
        let (first, count) = if line.is_new() {
            (11_000 + number * 2000, 2000)
        } else {
            (29_000 + number * 100, 100)
        };
        Self {
            first,
            count,
            next: &NEXT[client + usize::from(line.target.is_ipv6())],
        }
    }

    /// A socket with the next port that is free.
    fn socket(&self, target: SocketAddr, kind: Type) -> io::Result<Socket> {
        let any: IpAddr = match target {
            SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
            SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
        };
        for _ in 0..self.count {
            // A counter past the end of u16 begins anew, somewhere in the middle.
            let port = self.first + self.next.fetch_add(1, Ordering::Relaxed) % self.count;
            let socket = Socket::new(Domain::for_address(target), kind.nonblocking(), None)?;
            if target.is_ipv6() {
                socket.set_only_v6(true)?;
            }
            match socket.bind(&SocketAddr::new(any, port).into()) {
                Err(error) if error.kind() == io::ErrorKind::AddrInUse => {}
                bound => return bound.map(|()| socket),
            }
        }
        Err(io::ErrorKind::AddrInUse.into())
    }
}

/// Connects, and waits for the other's name.
async fn connect(ports: &Ports, target: SocketAddr) -> io::Result<TcpStream> {
    let socket = ports.socket(target, Type::STREAM)?;
    let mut stream = TcpSocket::from_std_stream(socket.into())
        .connect(target)
        .await?;
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

async fn socket(ports: &Ports, target: SocketAddr) -> io::Result<UdpSocket> {
    let socket = ports.socket(target, Type::DGRAM)?;
    let socket = UdpSocket::from_std(socket.into())?;
    socket.connect(target).await?;
    Ok(socket)
}

async fn ask(socket: &UdpSocket) -> io::Result<()> {
    socket.send(b"?").await?;
    socket.recv(&mut [0; NAME]).await?;
    Ok(())
}
