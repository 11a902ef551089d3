//! The destination that an element of a dispatch map such as `service-ips` matches.

use std::net::{IpAddr, SocketAddr};

use super::model::{Element, Expr};
use crate::net::Proto;

/// The destination of the packets that an element matches.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Destination {
    /// The protocol.
    pub proto: Proto,
    /// The address; `None` for a NodePort.
    pub addr: Option<IpAddr>,
    /// The port.
    pub port: u16,
}

impl Element {
    /// Returns the destination of a key `ADDRESS . PROTOCOL . PORT` or `PROTOCOL . PORT`; `None` for any other key.
    pub fn destination(&self) -> Option<Destination> {
        let Expr::Concat(parts) = &self.key else {
            return None;
        };
        let (addr, proto, port) = match parts.as_slice() {
            [addr, proto, port] => (Some(word(addr)?.parse().ok()?), proto, port),
            [proto, port] => (None, proto, port),
            _ => return None,
        };
        Some(Destination {
            proto: word(proto)?.parse().ok()?,
            addr,
            port: number(port)?,
        })
    }
}

/// Returns the socket address of `ADDRESS . PORT`.
pub fn socket_addr(expr: &Expr) -> Option<SocketAddr> {
    let Expr::Concat(parts) = expr else {
        return None;
    };
    let [addr, port] = parts.as_slice() else {
        return None;
    };
    Some(SocketAddr::new(word(addr)?.parse().ok()?, number(port)?))
}

/// Returns the text of a word.
pub(crate) fn word(expr: &Expr) -> Option<&str> {
    match expr {
        Expr::Word(word) => Some(word),
        _ => None,
    }
}

/// Returns the port that a number or a word stands for.
fn number(expr: &Expr) -> Option<u16> {
    match expr {
        Expr::Number(number) => u16::try_from(*number).ok(),
        Expr::Word(word) => word.parse().ok(),
        _ => None,
    }
}
