//! Opens a real connection, for `kpx trace TARGET --probe` and the probes of a migration: the only code that sends traffic.

use std::io::{self, ErrorKind};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use tokio::net::{TcpSocket, UdpSocket};
use tokio::time::timeout;

use super::context::Context;
use super::{Options, ProbeOutcome, ProbeResult};
use kpx_node::evidence::{Gap, Item};
use kpx_node::net::Proto;

/// Time limit for an answer to a datagram; many programs send none.
const ANSWER: Duration = Duration::from_secs(1);

/// Opens one TCP connection to `target`, or sends one UDP datagram that contains `question`, and closes it again.
pub async fn probe(
    options: &Options,
    target: SocketAddr,
    proto: Proto,
    question: &'static [u8],
) -> Result<ProbeResult, Gap> {
    // A missing answer must not count as a late reader.
    let limit = options.timeout * 9 / 10;
    let context = Context::new(options);
    let work = async move |_| {
        let failed = |e: io::Error| Gap::Failed(Item::Conntrack, format!("cannot probe: {e}"));
        match proto {
            Proto::Udp => datagram(target, question, limit.min(ANSWER)).await,
            _ => connection(target, limit).await,
        }
        .map_err(failed)
    };
    context.inside_as(Item::Conntrack, "the probe", work).await
}

async fn connection(target: SocketAddr, limit: Duration) -> io::Result<ProbeResult> {
    let socket = match target {
        SocketAddr::V4(_) => TcpSocket::new_v4()?,
        SocketAddr::V6(_) => TcpSocket::new_v6()?,
    };
    // Bound first, so that the source port is known in any case.
    let any = any(target);
    socket.bind(any)?;
    let port = socket.local_addr()?.port();
    let bound = Some(SocketAddr::new(any.ip(), port));
    match timeout(limit, socket.connect(target)).await {
        Err(_) => Ok(ProbeResult {
            from: bound,
            met: ProbeOutcome::Silence,
        }),
        Ok(Ok(stream)) => Ok(ProbeResult {
            from: stream.local_addr().ok(),
            met: ProbeOutcome::Answered,
        }),
        Ok(Err(e)) => Ok(ProbeResult {
            from: bound,
            met: met(&e),
        }),
    }
}

async fn datagram(target: SocketAddr, question: &[u8], limit: Duration) -> io::Result<ProbeResult> {
    let socket = UdpSocket::bind(any(target)).await?;
    let sent = async {
        socket.connect(target).await?;
        socket.send(question).await
    };
    if let Err(e) = sent.await {
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
    Ok(ProbeResult {
        from: socket.local_addr().ok(),
        met,
    })
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
