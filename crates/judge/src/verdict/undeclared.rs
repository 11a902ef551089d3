//! Endpoints whose pods declare other ports alone, where their sockets are not known.

use std::collections::BTreeSet;

use super::judge::Judge;
use super::stranger::Stranger;
use super::{Fault, Missing};
use kpx_node::cluster::DeclaredPort;
use kpx_node::net::Proto;
use kpx_node::owner::{Endpoint, Port};
use kpx_node::words::listed;

/// A pod that declares other ports than that of its endpoint.
#[derive(Clone, Debug, PartialEq)]
pub struct Undeclared {
    /// The pod, as `NAMESPACE/NAME`.
    pub pod: String,
    /// The port of the endpoint.
    pub port: u16,
    /// Its protocol.
    pub proto: Proto,
    /// The ports that the pod declares.
    pub declared: Vec<DeclaredPort>,
    /// Whether all pods of the Service do so.
    pub all: bool,
    /// The workload that the Service is for, if the pod is one of another.
    pub stranger: Option<Stranger>,
}

impl Undeclared {
    /// Returns the ports that the pod declares, in words; of another protocol than the endpoint's with their protocol.
    pub fn declares(&self) -> String {
        let words = self.declared.iter().map(|port| {
            if port.proto == self.proto {
                port.number.to_string()
            } else {
                format!("{}/{}", port.number, port.proto)
            }
        });
        listed(&words.collect::<Vec<_>>())
    }

    /// Returns the protocol of which the pod declares the port instead.
    pub fn instead(&self) -> Option<Proto> {
        let mut same = self.declared.iter();
        same.find(|port| port.number == self.port)
            .map(|port| port.proto)
    }
}

impl Judge<'_> {
    /// Returns the doubt about an endpoint of `port` whose pod declares other ports alone. Where the sockets of one of the Service's pods
    /// are read, they tell whether anything listens.
    pub(super) fn undeclared(&self, port: &Port, endpoint: &Endpoint) -> Option<Fault> {
        let pod = self.pod_of(endpoint)?;
        let declared = self.places.declared_ports(pod)?;
        let number = endpoint.addr.port();
        let mut same = port
            .endpoints
            .iter()
            .filter(|endpoint| endpoint.addr.port() == number);
        let proto = port.proto;
        let is_declared = |ports: &BTreeSet<DeclaredPort>| {
            ports.is_empty() || ports.contains(&DeclaredPort { number, proto })
        };
        if is_declared(&declared)
            || same
                .clone()
                .any(|endpoint| self.knows_sockets_of(endpoint.addr.ip()))
        {
            return None;
        }
        let has_it = |other: &Endpoint| {
            let pod = self.pod_of(other);
            pod.is_some_and(|pod| {
                self.places
                    .declared_ports(pod)
                    .as_ref()
                    .is_some_and(is_declared)
            })
        };
        Some(Fault::Unknown(Missing::Undeclared(Box::new(Undeclared {
            pod: pod.to_owned(),
            port: number,
            proto,
            declared: declared.into_iter().collect(),
            all: !same.any(has_it),
            stranger: self.stranger(&port.name, proto, endpoint.addr),
        }))))
    }
}
