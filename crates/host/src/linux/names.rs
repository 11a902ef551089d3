//! Resolves host names as the C library does with `hosts: files dns`.
//!
//! The C library itself is of no use: its name service switch loads modules at run time, which a static program cannot do.

use std::fs;
use std::hash::{BuildHasher as _, Hasher as _, RandomState};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use futures_util::future::join;
use nix::unistd::gethostname;
use thiserror::Error;

use super::dns::exchange;
use super::root_path;
use kpx_node::dns::{self, Question, Reply, ResolvConf};

/// A name that cannot be resolved.
#[derive(Debug, Error)]
#[error("cannot resolve {name}: {why}")]
pub(crate) struct Unresolved {
    name: String,
    why: String,
}

/// How names are resolved.
#[derive(Clone, Debug)]
pub(crate) struct Names {
    /// Root file systems whose hosts files are read, in order.
    roots: Vec<PathBuf>,
    /// Time limit of a name.
    limit: Duration,
}

impl Names {
    /// Returns the resolver for names in files of the file system `root`: its hosts file precedes the one of this process.
    pub(crate) fn below(root: &Path, limit: Duration) -> Self {
        let mut roots = vec![root.to_owned()];
        if root != Path::new("/") {
            roots.push(PathBuf::from("/"));
        }
        Self { roots, limit }
    }

    /// Returns the addresses of `name`, IPv4 first; at least one.
    pub(crate) async fn lookup(&self, name: &str) -> Result<Vec<IpAddr>, Unresolved> {
        for root in &self.roots {
            let mut found = dns::in_hosts(&read(root, "etc/hosts"), name);
            if !found.is_empty() {
                found.sort_by_key(IpAddr::is_ipv6);
                return Ok(found);
            }
        }
        if is_localhost(name) {
            return Ok(vec![Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into()]);
        }
        let hostname = gethostname().unwrap_or_default();
        let text = read(Path::new("/"), "etc/resolv.conf");
        let conf = ResolvConf::parse(&text, &hostname.to_string_lossy(), interface);
        query(conf, name, self.limit).await
    }
}

/// Returns the text of the file `path` below `root`. As for the C library, a file that cannot be read is empty.
fn read(root: &Path, path: &str) -> String {
    let path = root_path::resolve(root, Path::new(path));
    let bytes = path.and_then(fs::read).unwrap_or_default();
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Returns whether `name` means this machine, whatever DNS says: RFC 6761, section 6.3.
fn is_localhost(name: &str) -> bool {
    let name = name.trim_end_matches('.').to_ascii_lowercase();
    name == "localhost" || name.ends_with(".localhost")
}

/// Returns the number of the network interface `name`.
fn interface(name: &str) -> Option<u32> {
    let text = fs::read_to_string(format!("/sys/class/net/{name}/ifindex"));
    text.ok()?.trim().parse().ok()
}

/// Asks the servers of `conf` for the addresses of `name`. The time limits of the queries are shortened so that each server is
/// asked within `limit`.
async fn query(
    mut conf: ResolvConf,
    name: &str,
    limit: Duration,
) -> Result<Vec<IpAddr>, Unresolved> {
    let unresolved = |why| Unresolved {
        name: name.to_owned(),
        why,
    };
    let asked: u32 = conf.servers.len().try_into().unwrap_or(1);
    let patience = conf.patience.min(limit / (asked * conf.attempts));
    let queries = conf.queries(name);
    let mut failure = None;
    for full in &queries {
        match query_all(&mut conf, full, patience).await {
            Ok(found) if found.is_empty() => {}
            Ok(found) => return Ok(found),
            // No server is worth another query.
            Err(NoReply::Silence(why)) => return Err(unresolved(why)),
            Err(NoReply::Failure(why)) => failure = failure.or(Some(why)),
        }
    }
    Err(unresolved(failure.unwrap_or_else(|| {
        let server = conf.servers.first().map(shown).unwrap_or_default();
        format!(
            "it is not in /etc/hosts, and the DNS server {server} has no address for {}",
            queries.join(" or ")
        )
    })))
}

/// Why no server returned addresses, each server with its reason.
enum NoReply {
    /// No server replied.
    Silence(String),
    /// A server replied with an error.
    Failure(String),
}

/// Asks one server after the other for `name`. A server that answers becomes the first one to be asked.
async fn query_all(
    conf: &mut ResolvConf,
    name: &str,
    patience: Duration,
) -> Result<Vec<IpAddr>, NoReply> {
    let mut reasons = Vec::new();
    let mut replied = false;
    for last in (1..=conf.attempts).map(|attempt| attempt == conf.attempts) {
        for (at, &server) in conf.servers.iter().enumerate() {
            match addresses(server, name, patience).await {
                Ok(found) => {
                    conf.servers.rotate_left(at);
                    return Ok(found);
                }
                Err(e) => {
                    replied |= e.replied;
                    if last {
                        reasons.push(format!("{} {}", shown(&server), e.why));
                    }
                }
            }
        }
    }
    let why = format!("DNS server {}", reasons.join("; DNS server "));
    Err(if replied {
        NoReply::Failure(why)
    } else {
        NoReply::Silence(why)
    })
}

/// Why a server returned no addresses.
struct Failed {
    /// Whether there was a reply.
    replied: bool,
    /// Reason, as a predicate of the server.
    why: String,
}

/// Returns the addresses of `name` from `server`; empty if it has none.
async fn addresses(
    server: SocketAddr,
    name: &str,
    patience: Duration,
) -> Result<Vec<IpAddr>, Failed> {
    let ask = |question| ask(server, question, name, patience);
    match join(ask(Question::A), ask(Question::Aaaa)).await {
        (Ok(four), Ok(six)) => Ok([four, six].concat()),
        // Some servers do not answer queries for IPv6 addresses.
        (Ok(found), Err(_)) | (Err(_), Ok(found)) if !found.is_empty() => Ok(found),
        (Err(e), _) | (_, Err(e)) => Err(e),
    }
}

async fn ask(
    server: SocketAddr,
    question: Question,
    name: &str,
    patience: Duration,
) -> Result<Vec<IpAddr>, Failed> {
    let failed = |replied, why| Failed { replied, why };
    // Each new state hashes differently.
    let [high, low, ..] = RandomState::new().build_hasher().finish().to_ne_bytes();
    let id = u16::from_ne_bytes([high, low]);
    let message = question.ask(name, id);
    let message = message.map_err(|e| failed(true, format!("is not asked: {e}")))?;
    let reply = exchange(server, &message, patience, dns::is_truncated).await;
    let reply = reply.map_err(|e| failed(false, format!("does not reply: {e}")))?;
    match Reply::read(&reply, id) {
        Ok(Reply::Records(records)) => Ok(records.addresses.into_iter().collect()),
        Ok(Reply::NoName) => Ok(Vec::new()),
        Ok(Reply::Failed(code)) => Err(failed(true, format!("answers {code}"))),
        Err(e) => Err(failed(true, format!("sends an invalid reply: {e}"))),
    }
}

/// Returns `server` without the usual port.
fn shown(server: &SocketAddr) -> String {
    if server.port() == 53 {
        server.ip().to_string()
    } else {
        server.to_string()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use tokio::net::UdpSocket;

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    /// Type of an A record.
    const A: u16 = 1;

    /// Answer of a DNS server: addresses, or a response code.
    type Zone = fn(&str) -> Result<Vec<IpAddr>, u8>;

    /// Response codes.
    const SERVER_FAILURE: u8 = 2;
    const NO_NAME: u8 = 3;

    /// A DNS server on loopback.
    struct DnsServer {
        address: SocketAddr,
        asked: Arc<Mutex<Vec<String>>>,
    }

    impl DnsServer {
        /// Starts a server that answers queries of the types `kinds` only.
        async fn start(zone: Zone, kinds: &'static [u16]) -> Self {
            let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
            let address = socket.local_addr().unwrap();
            let asked = Arc::new(Mutex::new(Vec::new()));
            let seen = Arc::clone(&asked);
            tokio::spawn(async move {
                let mut query = [0; 512];
                loop {
                    let (length, from) = socket.recv_from(&mut query).await.unwrap();
                    let (name, kind) = question(&query[..length]);
                    seen.lock().unwrap().push(name.clone());
                    if kinds.contains(&kind) {
                        let reply = reply(&query[..length], kind, zone(&name));
                        socket.send_to(&reply, from).await.unwrap();
                    }
                }
            });
            Self { address, asked }
        }

        async fn of(zone: Zone) -> Self {
            Self::start(zone, &[A, 28]).await
        }

        /// Starts a server that never answers.
        async fn silent() -> Self {
            Self::start(|_| Ok(Vec::new()), &[]).await
        }

        fn asked(&self) -> Vec<String> {
            let mut asked = self.asked.lock().unwrap().clone();
            asked.dedup();
            asked
        }
    }

    /// Returns the name and the type of the query `message`.
    fn question(message: &[u8]) -> (String, u16) {
        let mut at = 12;
        let mut labels = Vec::new();
        while message[at] != 0 {
            let end = at + 1 + usize::from(message[at]);
            labels.push(String::from_utf8_lossy(&message[at + 1..end]).into_owned());
            at = end;
        }
        let kind = u16::from_be_bytes([message[at + 1], message[at + 2]]);
        (labels.join("."), kind)
    }

    /// Returns the reply to `query` with the addresses of the type `kind`.
    fn reply(query: &[u8], kind: u16, answer: Result<Vec<IpAddr>, u8>) -> Vec<u8> {
        let code = *answer.as_ref().err().unwrap_or(&0);
        let mut all = answer.unwrap_or_default();
        all.retain(|ip| ip.is_ipv4() == (kind == A));
        let mut reply = query.to_vec();
        reply[2..4].copy_from_slice(&[0x81, 0x80 | code]);
        reply[7] = u8::try_from(all.len()).unwrap();
        for ip in all {
            let bytes = match ip {
                IpAddr::V4(ip) => ip.octets().to_vec(),
                IpAddr::V6(ip) => ip.octets().to_vec(),
            };
            // The name of the question, its type and class, a time to live.
            reply.extend([0xc0, 12]);
            reply.extend(kind.to_be_bytes());
            reply.extend([0, 1, 0, 0, 0, 5, 0, u8::try_from(bytes.len()).unwrap()]);
            reply.extend(bytes);
        }
        reply
    }

    fn conf(servers: &[&DnsServer]) -> ResolvConf {
        let mut conf = ResolvConf::parse("search corp.example", "", |_| None);
        conf.servers = servers.iter().map(|server| server.address).collect();
        conf
    }

    fn shown_all(found: &[IpAddr]) -> Vec<String> {
        found.iter().map(ToString::to_string).collect()
    }

    #[tokio::test]
    async fn a_server_that_does_not_reply_is_asked_once() {
        let zone: Zone = |name| match name {
            "api" => Ok(vec![
                "fd00::7".parse().unwrap(),
                "10.0.0.7".parse().unwrap(),
            ]),
            _ => Err(NO_NAME),
        };
        let (silent, server) = (DnsServer::silent().await, DnsServer::of(zone).await);
        let found = query(conf(&[&silent, &server]), "api", SECOND).await;
        assert_eq!(shown_all(&found.unwrap()), ["10.0.0.7", "fd00::7"]);
        assert_eq!(server.asked(), ["api.corp.example", "api"]);
        assert_eq!(silent.asked(), ["api.corp.example"]);
    }

    #[tokio::test]
    async fn a_failure_in_a_search_domain_does_not_hide_the_name() {
        let zone: Zone = |name| match name {
            "api" => Ok(vec!["10.0.0.7".parse().unwrap()]),
            _ => Err(SERVER_FAILURE),
        };
        let server = DnsServer::of(zone).await;
        let found = query(conf(&[&server]), "api", SECOND).await;
        assert_eq!(shown_all(&found.unwrap()), ["10.0.0.7"]);
    }

    #[tokio::test]
    async fn ipv4_addresses_are_enough() {
        let zone: Zone = |_| Ok(vec!["10.0.0.7".parse().unwrap()]);
        let server = DnsServer::start(zone, &[A]).await;
        let found = query(conf(&[&server]), "api.", SECOND).await;
        assert_eq!(shown_all(&found.unwrap()), ["10.0.0.7"]);
    }

    #[tokio::test]
    async fn an_error_names_the_servers() {
        let failing = DnsServer::of(|_| Err(SERVER_FAILURE)).await;
        let unaware = DnsServer::of(|_| Err(NO_NAME)).await;
        let silent = DnsServer::silent().await;
        let why = async |servers: &[&DnsServer]| {
            let found = query(conf(servers), "api", SECOND).await;
            found.unwrap_err().to_string()
        };
        let (at, other) = (failing.address, silent.address);
        assert_eq!(
            why(&[&unaware]).await,
            format!(
                "cannot resolve api: it is not in /etc/hosts, and the DNS server {} has no address for \
                 api.corp.example or api",
                unaware.address
            )
        );
        assert_eq!(
            why(&[&failing, &silent]).await,
            format!(
                "cannot resolve api: DNS server {at} answers ServerFailure; DNS server {other} does not reply: \
                 no answer by UDP"
            )
        );
        assert_eq!(
            why(&[&silent]).await,
            format!("cannot resolve api: DNS server {other} does not reply: no answer by UDP")
        );
    }

    #[tokio::test]
    async fn the_hosts_file_below_the_root_comes_first() {
        let root = tempfile::tempdir().unwrap();
        fs::create_dir(root.path().join("etc")).unwrap();
        let text = "fd00::7 api.test localhost\n10.0.0.7 api.test\n";
        fs::write(root.path().join("etc/hosts"), text).unwrap();
        let names = Names::below(root.path(), SECOND);
        let found = names.lookup("API.test").await.unwrap();
        assert_eq!(shown_all(&found), ["10.0.0.7", "fd00::7"]);
        assert_eq!(
            shown_all(&names.lookup("localhost").await.unwrap()),
            ["fd00::7"]
        );
        let found = names.lookup("x.localhost.").await.unwrap();
        assert_eq!(shown_all(&found), ["127.0.0.1", "::1"]);
    }
}
