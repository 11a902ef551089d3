//! Opens a real connection, for `kpx trace TARGET --probe` and the probes of a migration: the only code that sends traffic.

use std::fmt;
use std::io::{self, ErrorKind};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use tokio::net::{TcpSocket, UdpSocket};
use tokio::time::timeout;

use super::change::outside::Outside;
use super::change::renew;
use super::context::Context;
use super::{Options, Probe, ProbeOutcome, ProbeResult, pod_networks};
use kpx_node::evidence::{Gap, Item};
use kpx_node::net::{Family, Proto, Vantage};

/// Time limit for an answer to a datagram; many programs send none.
const ANSWER: Duration = Duration::from_secs(1);

/// Opens one TCP connection, or sends one UDP datagram, and closes it again.
pub async fn probe(options: &Options, probe: Probe) -> Result<ProbeResult, Gap> {
    let Probe { target, proto, .. } = probe;
    // A missing answer must not count as a timeout of the reader.
    let limit = options.timeout * 9 / 10;
    let context = match probe.from {
        Vantage::Node | Vantage::Outside => Context::new(options),
        Vantage::Pod(addr) => pod_networks::of(options, addr).await?,
    };
    let outside = (probe.from == Vantage::Outside).then(Outside::new);
    let enters = outside.clone();
    let work = async move |_| {
        if let Some(outside) = enters {
            let entered = outside.enter(Family::of(target.ip())).await;
            entered.map_err(|e| failed(&e))?;
        }
        open(target, proto).map_err(|e| failed(&e))
    };
    let opened = context.inside_as(ITEM, "the probe", work).await?;
    let probed = async {
        if let (Some(before), Some(from)) = (probe.before, opened.from) {
            let loaded = renew(options, &before(from, proto)).await;
            loaded.map_err(|e| failed(&e))?;
        }
        let answered = match opened.socket {
            Ok(Socket::Tcp(socket)) => connect(socket, target, opened.from, limit).await,
            Ok(Socket::Udp(socket)) => ask(socket, probe.question, limit.min(ANSWER)).await,
            Err(met) => Ok(ProbeResult { from: None, met }),
        };
        answered.map_err(|e| failed(&e))
    };
    let probed = probed.await;
    if let Some(outside) = outside {
        // Without it, the kernel removes the network a moment after its last socket.
        outside.remove(&Context::new(options)).await.ok();
    }
    probed
}

const ITEM: Item = Item::Conntrack;

fn failed(error: &dyn fmt::Display) -> Gap {
    Gap::Failed(ITEM, format!("cannot probe: {error}"))
}

/// A socket in the network that it was opened in, whichever thread uses it.
enum Socket {
    Tcp(TcpSocket),
    Udp(std::net::UdpSocket),
}

/// A socket before anything is sent, and its address.
struct Opened {
    socket: Result<Socket, ProbeOutcome>,
    from: Option<SocketAddr>,
}

/// Opens a socket in the network namespace of the calling thread.
fn open(target: SocketAddr, proto: Proto) -> io::Result<Opened> {
    // Connecting a UDP socket sends nothing, and shows the source address.
    let udp = std::net::UdpSocket::bind(any(target))?;
    let routed = udp.connect(target);
    if proto == Proto::Udp {
        udp.set_nonblocking(true)?;
        return Ok(match routed {
            Ok(()) => Opened {
                from: Some(udp.local_addr()?),
                socket: Ok(Socket::Udp(udp)),
            },
            Err(e) => Opened {
                from: None,
                socket: Err(met(&e)),
            },
        });
    }
    let source = match routed {
        Ok(()) => udp.local_addr()?.ip(),
        Err(_) => any(target).ip(),
    };
    let tcp = match target {
        SocketAddr::V4(_) => TcpSocket::new_v4()?,
        SocketAddr::V6(_) => TcpSocket::new_v6()?,
    };
    // Bound first, so that the source port is known in any case.
    tcp.bind(any(target))?;
    let port = tcp.local_addr()?.port();
    Ok(Opened {
        from: Some(SocketAddr::new(source, port)),
        socket: Ok(Socket::Tcp(tcp)),
    })
}

async fn connect(
    socket: TcpSocket,
    target: SocketAddr,
    from: Option<SocketAddr>,
    limit: Duration,
) -> io::Result<ProbeResult> {
    Ok(match timeout(limit, socket.connect(target)).await {
        Err(_) => ProbeResult {
            from,
            met: ProbeOutcome::Silence,
        },
        Ok(Ok(stream)) => ProbeResult {
            from: stream.local_addr().ok(),
            met: ProbeOutcome::Answered,
        },
        Ok(Err(e)) => ProbeResult { from, met: met(&e) },
    })
}

async fn ask(
    socket: std::net::UdpSocket,
    question: &[u8],
    limit: Duration,
) -> io::Result<ProbeResult> {
    let socket = UdpSocket::from_std(socket)?;
    let from = socket.local_addr().ok();
    if let Err(e) = socket.send(question).await {
        return Ok(ProbeResult {
            from: None,
            met: met(&e),
        });
    }
    let met = match timeout(limit, socket.recv(&mut [0; 1])).await {
        Err(_) => ProbeOutcome::Silence,
        Ok(Ok(_)) => ProbeOutcome::Answered,
        Ok(Err(e)) => met(&e),
    };
    Ok(ProbeResult { from, met })
}

/// Returns the local address to bind a socket to for reaching `target`.
pub(super) fn any(target: SocketAddr) -> SocketAddr {
    match target {
        SocketAddr::V4(_) => (Ipv4Addr::UNSPECIFIED, 0).into(),
        SocketAddr::V6(_) => (Ipv6Addr::UNSPECIFIED, 0).into(),
    }
}

fn met(error: &io::Error) -> ProbeOutcome {
    match error.kind() {
        ErrorKind::ConnectionRefused => ProbeOutcome::Refused,
        _ => ProbeOutcome::Unreachable(error.to_string()),
    }
}
