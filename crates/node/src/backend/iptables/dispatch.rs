//! The destination that a rule of a dispatch chain such as KUBE-SERVICES matches.

use std::net::IpAddr;

use super::model::{Match, Rule};
use crate::net::Proto;

/// The destination of the packets that a rule matches; each part is `None` if the rule does not match one value of it.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Destination {
    /// The protocol.
    pub proto: Option<Proto>,
    /// The address; `None` for a NodePort.
    pub addr: Option<IpAddr>,
    /// The port.
    pub port: Option<u16>,
}

impl Rule<'_> {
    /// Returns the destination that the rule matches.
    pub fn destination(&self) -> Destination {
        let mut to = Destination::default();
        for of in &self.matches {
            match of {
                Match::Protocol(proto) if !proto.inverted => to.proto = Some(proto.value),
                Match::Destination(addr) if !addr.inverted && addr.value.is_host() => {
                    to.addr = Some(addr.value.addr);
                }
                Match::Ports {
                    destination: Some(ports),
                    ..
                } if !ports.inverted => to.port = Some(ports.value.first),
                _ => {}
            }
        }
        to
    }
}
