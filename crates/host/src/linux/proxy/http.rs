//! Sends one GET over plain HTTP, with limits of time and size.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::timeout;

/// Larger than kube-proxy's metrics, which reach a few megabytes in the largest clusters.
const MAX_ANSWER: usize = 16 << 20;

/// Response of a server.
#[derive(Debug, Eq, PartialEq)]
pub(super) struct Answer {
    /// Status code.
    pub(super) status: u16,
    /// Body, for any status.
    pub(super) body: String,
}

/// Why there is no response.
#[derive(Debug)]
pub(super) enum NoResponse {
    /// There was no connection.
    Unreachable(io::Error),
    /// The connection or the answer did not come within the time limit.
    Late(String),
    /// The connection failed later.
    Broken(String),
}

/// Requests `path` from the server at `address`.
pub(super) async fn get(
    address: SocketAddr,
    path: &str,
    limit: Duration,
) -> Result<Answer, NoResponse> {
    let late = |what: &str| NoResponse::Late(format!("{what} within {limit:?}"));
    let mut stream = match timeout(limit, TcpStream::connect(address)).await {
        Ok(stream) => stream.map_err(NoResponse::Unreachable)?,
        Err(_) => return Err(late("no connection")),
    };
    let request = format!(
        "GET {path} HTTP/1.1\r\nHost: {address}\r\nUser-Agent: kpx\r\nAccept: */*\r\nConnection: close\r\n\r\n"
    );
    let answer = timeout(limit, async {
        stream.write_all(request.as_bytes()).await?;
        read(&mut stream).await
    });
    match answer.await {
        Ok(answer) => answer.map_err(|e| NoResponse::Broken(e.to_string())),
        Err(_) => Err(late("no complete answer")),
    }
}

async fn read(stream: &mut TcpStream) -> io::Result<Answer> {
    let mut bytes = Vec::new();
    loop {
        let end = stream.read_buf(&mut bytes).await? == 0;
        if let Some(answer) = parse(&bytes, end)? {
            return Ok(answer);
        }
        if end {
            return Err(wrong("the answer is truncated"));
        }
        if bytes.len() > MAX_ANSWER {
            return Err(wrong(&format!(
                "the answer is longer than {} MiB",
                MAX_ANSWER >> 20
            )));
        }
    }
}

/// Parses the response in `bytes`; `None` if it is not complete. `end` means that no more data will come.
fn parse(bytes: &[u8], end: bool) -> io::Result<Option<Answer>> {
    let Some(split) = find(bytes, b"\r\n\r\n") else {
        return Ok(None);
    };
    let head = std::str::from_utf8(&bytes[..split]).map_err(|_| wrong("the answer is not HTTP"))?;
    let body = &bytes[split + 4..];
    let mut lines = head.split("\r\n");
    let status = lines
        .next()
        .filter(|line| line.starts_with("HTTP/1."))
        .and_then(|line| line.split(' ').nth(1))
        .and_then(|code| code.parse().ok())
        .ok_or_else(|| wrong("the answer is not HTTP"))?;
    let header = |name: &str| {
        let mut headers = head.split("\r\n").skip(1);
        headers.find_map(|line| {
            let (key, value) = line.split_once(':')?;
            key.eq_ignore_ascii_case(name).then(|| value.trim())
        })
    };
    let whole = if header("transfer-encoding").is_some_and(|v| v.eq_ignore_ascii_case("chunked")) {
        // Decoding after every read would take quadratic time.
        if !end && !bytes.ends_with(b"\r\n\r\n") {
            return Ok(None);
        }
        chunks(body)?
    } else if let Some(length) = header("content-length") {
        let length: usize = length
            .parse()
            .map_err(|_| wrong("the answer's length is not a number"))?;
        body.get(..length).map(<[u8]>::to_vec)
    } else {
        end.then(|| body.to_vec())
    };
    let Some(whole) = whole else {
        return Ok(None);
    };
    let body = String::from_utf8(whole).map_err(|_| wrong("the answer is not UTF-8"))?;
    Ok(Some(Answer { status, body }))
}

/// Joins the chunks of `rest`; `None` if the last one is missing.
fn chunks(mut rest: &[u8]) -> io::Result<Option<Vec<u8>>> {
    let mut whole = Vec::new();
    loop {
        let Some(split) = find(rest, b"\r\n") else {
            return Ok(None);
        };
        let size = std::str::from_utf8(&rest[..split]).ok();
        // Extensions may follow the size.
        let size = size.and_then(|line| line.split(';').next());
        let size = size.and_then(|text| usize::from_str_radix(text.trim(), 16).ok());
        let size = size.ok_or_else(|| wrong("a chunk of the answer has no size"))?;
        rest = &rest[split + 2..];
        if size == 0 {
            return Ok(Some(whole));
        }
        let after = size.checked_add(2);
        let (Some(chunk), Some(next)) = (rest.get(..size), after.and_then(|at| rest.get(at..)))
        else {
            return Ok(None);
        };
        whole.extend_from_slice(chunk);
        rest = next;
    }
}

fn find(bytes: &[u8], what: &[u8]) -> Option<usize> {
    bytes.windows(what.len()).position(|window| window == what)
}

fn wrong(why: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, why.to_owned())
}

/// Parses any response, for the fuzzer.
#[cfg(fuzzing)]
pub fn fuzz(bytes: &[u8]) {
    parse(bytes, true).ok();
    parse(bytes, false).ok();
}

#[cfg(test)]
mod tests {
    use super::*;

    fn whole(text: &str) -> Answer {
        // The response is the same however it is split, and incomplete before its end.
        let bytes = text.as_bytes();
        let answer = parse(bytes, true).unwrap().unwrap();
        for cut in 0..bytes.len() {
            if let Some(early) = parse(&bytes[..cut], false).unwrap() {
                assert_eq!(early, answer);
            }
        }
        answer
    }

    #[test]
    fn bodies_in_all_three_framings_are_parsed() {
        let sized = whole("HTTP/1.1 503 Service Unavailable\r\ncontent-length: 4\r\n\r\nbusy");
        assert_eq!((sized.status, sized.body.as_str()), (503, "busy"));
        let chunked = whole(
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4;x=y\r\n\r\n\r\n\r\n1\r\nb\r\n0\r\n\r\n",
        );
        assert_eq!(chunked.body, "\r\n\r\nb");
        let closed = parse(b"HTTP/1.0 200 OK\r\n\r\nipvs", true).unwrap();
        assert_eq!(closed.unwrap().body, "ipvs");
    }

    #[test]
    fn what_is_not_http_is_an_error() {
        for text in [
            "SSH-2.0-OpenSSH\r\n\r\n",
            "HTTP/1.1 200 OK\r\ncontent-length: many\r\n\r\n",
            "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n\r\n",
        ] {
            assert!(parse(text.as_bytes(), true).is_err(), "{text}");
        }
    }
}
