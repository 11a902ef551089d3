//! One real connection, for `kpx trace --probe` and the gates of a migration: the only thing here that sends traffic.

use std::io::{self, ErrorKind};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use tokio::net::{TcpSocket, UdpSocket};
use tokio::time::timeout;

use super::Options;
use super::context::Context;
use crate::evidence::{Gap, Item};
use crate::net::Proto;

/// How long to wait for an answer to a datagram, which need not come.
const ANSWER: Duration = Duration::from_secs(1);

/// What a connection met.
#[derive(Clone, Debug)]
pub struct Probed {
    /// Where it came from; `None` where it did not leave.
    pub from: Option<SocketAddr>,
    /// How it went.
    pub met: Met,
}

/// How a connection went.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Met {
    /// Somebody answered.
    Answered,
    /// It was refused.
    Refused,
    /// Nobody answered in time.
    Silence,
    /// It could not be sent, or was sent back.
    Unreachable(String),
}

/// Opens one TCP connection to `target`, or sends it one UDP datagram that holds `question`, and closes it again.
pub async fn probe(
    options: &Options,
    target: SocketAddr,
    proto: Proto,
    question: &'static [u8],
) -> Result<Probed, Gap> {
    // An answer that does not come must not count as a reader that is late.
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

async fn connection(target: SocketAddr, limit: Duration) -> io::Result<Probed> {
    let socket = match target {
        SocketAddr::V4(_) => TcpSocket::new_v4()?,
        SocketAddr::V6(_) => TcpSocket::new_v6()?,
    };
    // Bound first, so that its port is known whatever becomes of it.
    let any = any(target);
    socket.bind(any)?;
    let port = socket.local_addr()?.port();
    let bound = Some(SocketAddr::new(any.ip(), port));
    match timeout(limit, socket.connect(target)).await {
        Err(_) => Ok(Probed {
            from: bound,
            met: Met::Silence,
        }),
        Ok(Ok(stream)) => Ok(Probed {
            from: stream.local_addr().ok(),
            met: Met::Answered,
        }),
        Ok(Err(e)) => Ok(Probed {
            from: bound,
            met: met(&e),
        }),
    }
}

async fn datagram(target: SocketAddr, question: &[u8], limit: Duration) -> io::Result<Probed> {
    let socket = UdpSocket::bind(any(target)).await?;
    let sent = async {
        socket.connect(target).await?;
        socket.send(question).await
    };
    if let Err(e) = sent.await {
        return Ok(Probed {
            from: None,
            met: met(&e),
        });
    }
    let met = match timeout(limit, socket.recv(&mut [0; 1])).await {
        Err(_) => Met::Silence,
        Ok(Ok(_)) => Met::Answered,
        Ok(Err(e)) => met(&e),
    };
    Ok(Probed {
        from: socket.local_addr().ok(),
        met,
    })
}

/// Returns what to bind a socket to that is to reach `target`.
pub(super) fn any(target: SocketAddr) -> SocketAddr {
    match target {
        SocketAddr::V4(_) => (Ipv4Addr::UNSPECIFIED, 0).into(),
        SocketAddr::V6(_) => (Ipv6Addr::UNSPECIFIED, 0).into(),
    }
}

fn met(error: &io::Error) -> Met {
    match error.kind() {
        ErrorKind::ConnectionRefused => Met::Refused,
        _ => Met::Unreachable(error.to_string()),
    }
}
