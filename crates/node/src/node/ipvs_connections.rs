//! IPVS connection table.

use std::net::{IpAddr, SocketAddr};

use crate::evidence::{Gap, Item};
use crate::net::Proto;

/// Connections forwarded by IPVS.
#[derive(Clone, Debug, Default)]
pub struct IpvsConnections {
    /// Connections, in the order of the list.
    pub all: Vec<IpvsConnection>,
}

/// A connection, or a persistence template, whose client port is 0.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct IpvsConnection {
    /// TCP, UDP or SCTP; number 0 in a template of a firewall mark.
    pub proto: Proto,
    /// Address and port of the client.
    pub client: SocketAddr,
    /// Address and port of the virtual server.
    pub server: SocketAddr,
    /// Address and port of the real server.
    pub real: SocketAddr,
    /// `ESTABLISHED`, `TIME_WAIT`, `NONE`, …
    pub state: String,
    /// Seconds until the entry expires.
    pub expires: u32,
}

/// Parses `/proc/net/ip_vs_conn`.
pub fn parse(text: &str) -> Result<IpvsConnections, Gap> {
    let mut all = Vec::new();
    for (number, line) in (1..).zip(text.lines()) {
        let words: Vec<_> = line.split_ascii_whitespace().collect();
        if matches!(words.first(), None | Some(&"Pro")) {
            continue;
        }
        let connection = connection(&words).ok_or_else(|| {
            let why = format!("line {number}: {:?} is not a connection", line.trim());
            Gap::Failed(Item::IpvsConnections, why)
        })?;
        all.push(connection);
    }
    Ok(IpvsConnections { all })
}

fn connection(words: &[&str]) -> Option<IpvsConnection> {
    let &[
        proto,
        from,
        from_port,
        to,
        to_port,
        real,
        real_port,
        state,
        expires,
        ..,
    ] = words
    else {
        return None;
    };
    Some(IpvsConnection {
        proto: match proto {
            "IP" => Proto::Other(0),
            name => name.parse().ok()?,
        },
        client: end(from, from_port)?,
        server: end(to, to_port)?,
        real: end(real, real_port)?,
        state: state.to_owned(),
        expires: expires.parse().ok()?,
    })
}

/// Parses `0A600001` or `fd00:0010:…`, and a hexadecimal port.
fn end(addr: &str, port: &str) -> Option<SocketAddr> {
    let addr = if addr.contains(':') {
        addr.trim_matches(['[', ']']).parse().ok()?
    } else {
        IpAddr::from(u32::from_str_radix(addr, 16).ok()?.to_be_bytes())
    };
    Some(SocketAddr::new(addr, u16::from_str_radix(port, 16).ok()?))
}
