//! Sends DNS queries.

use std::io::{self, ErrorKind::TimedOut};
use std::net::SocketAddr;
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpStream, UdpSocket};
use tokio::time::timeout;

use super::Options;
use super::context::Context;
use super::probe::any;
use kpx_node::dns::DnsFailure;
use kpx_node::evidence::{Gap, Item};

/// Time limit for an answer before the query is sent again, as resolvers do.
const PATIENCE: Duration = Duration::from_secs(2);

/// Number of attempts.
const TRIES: usize = 2;

/// Maximum size of a datagram.
const LARGEST: usize = 65_535;

/// Sends `question`, a complete DNS message, to `server` and returns the reply: over UDP, or over TCP if `is_truncated`
/// returns true for the UDP reply.
///
/// # Errors
///
/// Returns a [`Gap`] of the Services item if there is no reply.
pub async fn ask(
    options: &Options,
    server: SocketAddr,
    question: Vec<u8>,
    is_truncated: fn(&[u8]) -> bool,
) -> Result<Vec<u8>, DnsFailure> {
    let context = Context::new(options);
    let work = async move |_| {
        let mut met = exchange(server, &question, PATIENCE, is_truncated).await;
        for _ in 1..TRIES {
            if met.as_ref().is_err_and(|e| e.kind() == TimedOut) {
                met = exchange(server, &question, PATIENCE, is_truncated).await;
            }
        }
        Ok(met.map_err(|e| DnsFailure {
            is_silent: e.kind() == TimedOut,
            why: format!("{server}: {e}"),
        }))
    };
    let answer = context.inside_as(Item::Services, "the question", work);
    answer.await.unwrap_or_else(|gap| {
        Err(DnsFailure {
            is_silent: matches!(gap, Gap::Late(..)),
            why: gap.to_string(),
        })
    })
}

/// Sends `question` to `server` once and returns the reply: over UDP, or over TCP if `is_truncated` returns true for the
/// UDP reply. Each of the two may take as long as `patience`.
pub(super) async fn exchange(
    server: SocketAddr,
    question: &[u8],
    patience: Duration,
    is_truncated: fn(&[u8]) -> bool,
) -> io::Result<Vec<u8>> {
    let answer = timeout(patience, by_udp(server, question)).await;
    let answer = answer.unwrap_or_else(|_| Err(silence("by UDP")))?;
    if !is_truncated(&answer) {
        return Ok(answer);
    }
    let answer = timeout(patience, by_tcp(server, question)).await;
    answer.unwrap_or_else(|_| Err(silence("by TCP")))
}

/// A new socket for each query, so that a late reply to an earlier query is not mistaken for its reply.
async fn by_udp(server: SocketAddr, question: &[u8]) -> io::Result<Vec<u8>> {
    let socket = UdpSocket::bind(any(server)).await?;
    socket.connect(server).await?;
    socket.send(question).await?;
    let mut answer = vec![0; LARGEST];
    let length = socket.recv(&mut answer).await?;
    answer.truncate(length);
    Ok(answer)
}

async fn by_tcp(server: SocketAddr, question: &[u8]) -> io::Result<Vec<u8>> {
    let mut stream = TcpStream::connect(server).await?;
    let length = u16::try_from(question.len()).map_err(io::Error::other)?;
    stream.write_all(&length.to_be_bytes()).await?;
    stream.write_all(question).await?;
    let length = stream.read_u16().await?;
    let mut answer = vec![0; usize::from(length)];
    stream.read_exact(&mut answer).await?;
    Ok(answer)
}

fn silence(how: &str) -> io::Error {
    io::Error::new(TimedOut, format!("no answer {how}"))
}
