//! Sends a DNS query, for `kpx resolve`.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpStream, UdpSocket};
use tokio::time::timeout;

use super::Options;
use super::context::Context;
use super::probe::any;
use crate::evidence::{Gap, Item};

/// Time limit for an answer before the query is sent again, as resolvers do.
const PATIENCE: Duration = Duration::from_secs(2);

/// Number of attempts.
const TRIES: u32 = 2;

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
) -> Result<Vec<u8>, Gap> {
    let context = Context::new(options);
    let work = async move |_| {
        let met = async {
            let answer = by_udp(server, &question).await?;
            if is_truncated(&answer) {
                by_tcp(server, &question).await
            } else {
                Ok(answer)
            }
        };
        let met: io::Result<Vec<u8>> = met.await;
        met.map_err(|e| Gap::Failed(Item::Services, format!("{server}: {e}")))
    };
    context
        .inside_as(Item::Services, "the question", work)
        .await
}

async fn by_udp(server: SocketAddr, question: &[u8]) -> io::Result<Vec<u8>> {
    let mut answer = vec![0; LARGEST];
    for _ in 0..TRIES {
        // A new socket for each attempt, so that a late reply to the first one is not taken for a reply to the second.
        let socket = UdpSocket::bind(any(server)).await?;
        socket.connect(server).await?;
        socket.send(question).await?;
        if let Ok(met) = timeout(PATIENCE, socket.recv(&mut answer)).await {
            answer.truncate(met?);
            return Ok(answer);
        }
    }
    Err(silence("by UDP"))
}

async fn by_tcp(server: SocketAddr, question: &[u8]) -> io::Result<Vec<u8>> {
    let met = timeout(PATIENCE, async {
        let mut stream = TcpStream::connect(server).await?;
        let length = u16::try_from(question.len()).map_err(io::Error::other)?;
        stream.write_all(&length.to_be_bytes()).await?;
        stream.write_all(question).await?;
        let length = stream.read_u16().await?;
        let mut answer = vec![0; usize::from(length)];
        stream.read_exact(&mut answer).await?;
        Ok(answer)
    });
    met.await.unwrap_or_else(|_| Err(silence("by TCP")))
}

fn silence(how: &str) -> io::Error {
    io::Error::new(io::ErrorKind::TimedOut, format!("no answer {how}"))
}
