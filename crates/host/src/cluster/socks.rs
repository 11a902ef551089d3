//! Connections through a SOCKS5 proxy, which resolves the server's name: RFC 1928, with the passwords of RFC 1929.

use std::io;
use std::net::IpAddr;

use http::Uri;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};

/// Version of the protocol.
const VERSION: u8 = 5;

/// Methods of authentication.
const NO_LOGIN: u8 = 0;
const PASSWORD: u8 = 2;

/// Version of the authentication by password.
const PASSWORD_VERSION: u8 = 1;

/// The command that opens a connection.
const CONNECT: u8 = 1;

/// Types of addresses.
const IPV4: u8 = 1;
const NAME: u8 = 3;
const IPV6: u8 = 4;

/// Reasons for a refusal, from code 1.
const REASONS: [&str; 8] = [
    "general failure",
    "not allowed by its rules",
    "network unreachable",
    "host unreachable",
    "connection refused",
    "time to live exceeded",
    "command not supported",
    "address type not supported",
];

/// Asks the proxy at the other end of `stream` to connect it with `server`. `login` is a user name and a password.
pub(super) async fn join<S>(
    stream: &mut S,
    server: &Uri,
    login: Option<&(String, String)>,
) -> io::Result<()>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let method = if login.is_some() { PASSWORD } else { NO_LOGIN };
    stream.write_all(&[VERSION, 1, method]).await?;
    let chosen = read::<_, 2>(stream).await?;
    if chosen[0] != VERSION {
        return Err(refused("its answer is not SOCKS5"));
    }
    if chosen[1] != method {
        return Err(refused(match login {
            Some(_) => "it does not accept a user name and password",
            None => "it wants a user name and password: add them to the proxy-url",
        }));
    }
    if let Some((user, password)) = login {
        let mut message = vec![PASSWORD_VERSION];
        message.extend(sized(user)?);
        message.extend(sized(password)?);
        stream.write_all(&message).await?;
        if read::<_, 2>(stream).await?[1] != 0 {
            return Err(refused("it does not accept the user name and password"));
        }
    }
    stream.write_all(&request(server)?).await?;
    let [_, code, _, kind] = read::<_, 4>(stream).await?;
    if code != 0 {
        let reason = REASONS.get(usize::from(code) - 1).copied();
        return Err(refused(reason.unwrap_or("no reason given")));
    }
    // The address and port of the proxy's own connection follow.
    let length = match kind {
        IPV4 => 4,
        IPV6 => 16,
        NAME => read::<_, 1>(stream).await?[0],
        _ => return Err(refused("its answer is not SOCKS5")),
    };
    stream
        .read_exact(&mut vec![0; usize::from(length) + 2])
        .await?;
    Ok(())
}

/// Returns the request for a connection with `server`.
fn request(server: &Uri) -> io::Result<Vec<u8>> {
    let host = server.host().unwrap_or_default();
    let host = host.trim_start_matches('[').trim_end_matches(']');
    let usual = if server.scheme_str() == Some("http") {
        80
    } else {
        443
    };
    let mut message = vec![VERSION, CONNECT, 0];
    match host.parse() {
        Ok(IpAddr::V4(ip)) => {
            message.push(IPV4);
            message.extend(ip.octets());
        }
        Ok(IpAddr::V6(ip)) => {
            message.push(IPV6);
            message.extend(ip.octets());
        }
        Err(_) => {
            message.push(NAME);
            message.extend(sized(host)?);
        }
    }
    message.extend(server.port_u16().unwrap_or(usual).to_be_bytes());
    Ok(message)
}

/// Returns `text` after its length.
fn sized(text: &str) -> io::Result<Vec<u8>> {
    let length = u8::try_from(text.len())
        .map_err(|_| refused("a name or password is longer than 255 bytes"))?;
    Ok([&[length], text.as_bytes()].concat())
}

async fn read<S, const N: usize>(stream: &mut S) -> io::Result<[u8; N]>
where
    S: AsyncRead + Unpin,
{
    let mut bytes = [0; N];
    stream.read_exact(&mut bytes).await?;
    Ok(bytes)
}

fn refused(why: &str) -> io::Error {
    io::Error::other(format!("cannot connect through the SOCKS5 proxy: {why}"))
}

#[cfg(test)]
mod tests {
    use tokio::io::duplex;

    use super::*;

    /// Joins `server` through a proxy that sends `answers`; returns the bytes that it receives.
    async fn met(
        server: &str,
        login: Option<(&str, &str)>,
        answers: &[u8],
    ) -> Result<Vec<u8>, String> {
        let (mut ours, mut proxy) = duplex(1024);
        proxy.write_all(answers).await.unwrap();
        let login = login.map(|(user, password)| (user.to_owned(), password.to_owned()));
        let server: Uri = server.parse().unwrap();
        let joined = join(&mut ours, &server, login.as_ref()).await;
        joined.map_err(|e| e.to_string())?;
        drop(ours);
        let mut sent = Vec::new();
        proxy.read_to_end(&mut sent).await.unwrap();
        Ok(sent)
    }

    #[tokio::test]
    async fn names_and_addresses_are_sent_to_the_proxy() {
        let fine = [5, 0, 5, 0, 0, 1, 127, 0, 0, 1, 0, 80];
        assert_eq!(
            met("https://api.test/", None, &fine).await.unwrap(),
            b"\x05\x01\x00\x05\x01\x00\x03\x08api.test\x01\xbb"
        );
        assert_eq!(
            met("http://10.0.0.7/", None, &fine).await.unwrap(),
            b"\x05\x01\x00\x05\x01\x00\x01\x0a\x00\x00\x07\x00\x50"
        );
        let sent = met("https://[fd00::7]:6443/", None, &fine).await.unwrap();
        assert_eq!(sent[..9], *b"\x05\x01\x00\x05\x01\x00\x04\xfd\x00");
        assert_eq!(sent[22..], *b"\x07\x19\x2b");
    }

    #[tokio::test]
    async fn a_password_precedes_the_request() {
        let fine = [5, 2, 1, 0, 5, 0, 0, 3, 1, b'p', 0, 80];
        let sent = met("https://a:1/", Some(("me", "secret")), &fine).await;
        assert_eq!(
            sent.unwrap(),
            b"\x05\x01\x02\x01\x02me\x06secret\x05\x01\x00\x03\x01a\x00\x01"
        );
    }

    #[tokio::test]
    async fn a_refusal_has_its_reason() {
        let refused = async |login, answers: &[u8]| {
            let why = met("https://a:1/", login, answers).await.unwrap_err();
            why.split_once("proxy: ").unwrap().1.to_owned()
        };
        let login = Some(("me", "secret"));
        assert_eq!(
            refused(None, &[5, 0, 5, 5, 0, 1]).await,
            "connection refused"
        );
        assert_eq!(refused(None, &[5, 0, 5, 99, 0, 1]).await, "no reason given");
        assert!(refused(None, &[5, 255]).await.contains("proxy-url"));
        assert!(refused(login, &[5, 255]).await.contains("does not accept"));
        assert!(refused(login, &[5, 2, 1, 1]).await.contains("user name"));
        assert!(refused(None, b"HT").await.contains("not SOCKS5"));
    }
}
