//! Mode userspace: kube-proxy's process takes a packet that a portal leads to it, and sends its data on to an endpoint.
//!
//! The process opens a connection of its own, so the walk goes on with a new packet of the node. It takes the ready
//! endpoints in turn, whatever the traffic policy, and keeps to one per client with session affinity.

use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;

use super::hop::{Effect, Hook, Hop, Outcome, Subsystem, Verdict, comment};
use super::packet::{AsSent, Carried, Entry, Flow};
use super::{Need, World, ending};
use kpx_node::backend::Mode;
use kpx_node::backend::iptables::portals::PORTALS;
use kpx_node::net::{Family, Proto};
use kpx_node::owner::{Endpoint, EndpointState, Owners, Port, PortName, Source};

/// The answer to a client of a Service without a ready endpoint.
pub(crate) const CLOSED: &str = "a closed connection";

/// The most endpoints that are followed one by one.
const MOST: usize = 1_000;

/// Returns the service port whose portal `hop` is, as its rule names it; `None` if it is no portal.
pub(crate) fn portal(hop: &Hop) -> Option<&str> {
    let translates = matches!(hop.effect, Effect::Dnat { .. });
    let is_portal = translates && hop.table == "nat" && PORTALS.contains(&hop.chain.as_str());
    is_portal.then(|| comment(&hop.rule).unwrap_or_default())
}

/// Returns whether the process refuses the packet at `hop` because it has no endpoint to choose.
pub(super) fn is_closed(hop: &Hop) -> bool {
    match &hop.effect {
        Effect::Drop => true,
        Effect::Reject { with } => with == CLOSED,
        _ => false,
    }
}

impl World<'_, '_> {
    /// Follows the outcomes of `flow` that end at a port of kube-proxy's process to the endpoints that it chooses from.
    pub(crate) fn relayed(
        &self,
        flow: &Flow,
        outcomes: Vec<Outcome>,
    ) -> Result<Vec<Outcome>, Need> {
        let mut owners = None;
        let mut all = Vec::new();
        for outcome in outcomes {
            match self.service_of(&outcome, flow.proto) {
                None => all.push(outcome),
                Some(service) => {
                    let owners = owners.get_or_insert_with(|| {
                        Owners::at_address(self.node, flow.destination, flow.port)
                    });
                    self.relay(flow, outcome, &service, owners, &mut all)?;
                }
            }
        }
        Ok(ending::merge(all))
    }

    /// Returns the service port as its portal names it, if `outcome` ends at a port of the process.
    fn service_of(&self, outcome: &Outcome, proto: Proto) -> Option<String> {
        if outcome.verdict != Verdict::Deliver {
            return None;
        }
        let (addr, port) = outcome.destination;
        let service = match outcome.hops.as_slice() {
            // Not every walk keeps them.
            [] if !outcome.as_sent.port => {
                let ports = self.node.proxy_ports();
                ports.get(&(proto, port)).map(String::as_str)?
            }
            hops => hops.iter().find_map(|hop| portal(hop))?,
        };
        let is_here = |addr: IpAddr| {
            let known = self.node.addresses();
            known.map_or(true, |all| all.all.iter().any(|at| at.addr.addr == addr))
        };
        is_here(addr).then(|| service.to_owned())
    }

    fn relay(
        &self,
        flow: &Flow,
        outcome: Outcome,
        service: &str,
        owners: &Owners,
        all: &mut Vec<Outcome>,
    ) -> Result<(), Need> {
        if let Some(why) = self.unheard(flow.proto, outcome.destination.into()) {
            all.push(ended(outcome, Verdict::Reject, "a refused connection", why));
            return Ok(());
        }
        let named = PortName::parse(service).and_then(|name| owners.named(&name, flow.proto));
        let Some(port) = named.filter(|_| owners.source == Source::Api) else {
            let why = match owners.gaps.first() {
                Some(gap) => format!(
                    "kube-proxy's process chooses an endpoint of {service}, which are not known: {gap}"
                ),
                None => format!("the portal is of {service}, which no Service port is called"),
            };
            all.push(ended(outcome, Verdict::Unknown, "", why));
            return Ok(());
        };
        let ready = ready(port, Family::of(flow.destination));
        if let (true, Err(gap)) = (ready.is_empty(), self.node.slices()) {
            let why = format!("kube-proxy's process chooses an endpoint of {service}: {gap}");
            all.push(ended(outcome, Verdict::Unknown, "", why));
            return Ok(());
        }
        if ready.is_empty() {
            let (verdict, why) = match flow.proto {
                Proto::Udp => (Verdict::Drop, "discards the datagram"),
                _ => (Verdict::Reject, "accepts the connection and closes it"),
            };
            let why = format!("kube-proxy's process {why}: {service} has no ready endpoint");
            all.push(ended(outcome, verdict, CLOSED, why));
            return Ok(());
        }
        let sticky = self.is_sticky(&port.name);
        let share = 1.0 / f64::from(u32::try_from(ready.len()).unwrap_or(u32::MAX));
        for endpoint in ready {
            let addr = endpoint.addr;
            let hop = process(
                Effect::Relay {
                    service: service.to_owned(),
                    address: addr.ip(),
                    port: addr.port(),
                },
                share,
            );
            let next = Flow {
                entry: Entry::Host,
                source: None,
                destination: addr.ip(),
                port: addr.port(),
                mark: 0,
                carried: Carried::default(),
                proto: flow.proto,
                established: flow.established,
            };
            for second in self.walk_once(&next)? {
                let mut joined = joined(&outcome, &hop, second);
                joined.probability *= share;
                joined.sticky = sticky;
                all.push(joined);
            }
        }
        Ok(())
    }

    /// Returns why no process takes the packet at `addr`, if that is known.
    fn unheard(&self, proto: Proto, addr: SocketAddr) -> Option<String> {
        if let Ok(mode) = self.node.reported_mode()
            && mode != Mode::Userspace
        {
            return Some(format!(
                "the portal is a leftover: kube-proxy runs in mode {mode} and does not listen on port {}",
                addr.port()
            ));
        }
        let sockets = self.node.sockets().ok()?;
        let heard = sockets.taking(proto, addr.ip(), addr.port()).next();
        (heard.is_none() && sockets.gaps.is_empty()).then(|| {
            format!(
                "kube-proxy does not listen on port {} of its portal",
                addr.port()
            )
        })
    }

    fn is_sticky(&self, name: &PortName) -> bool {
        let services = self.node.services().into_iter().flatten();
        let mut of = services.filter(|service| {
            *service.metadata.namespace == *name.namespace && *service.metadata.name == *name.name
        });
        of.any(|service| service.spec.session_affinity.as_deref() == Some("ClientIP"))
    }
}

/// Returns the endpoints that the process takes in turn.
fn ready(port: &Port, family: Family) -> Vec<&Endpoint> {
    let ready = port.endpoints.iter().filter(|endpoint| {
        endpoint.state == Some(EndpointState::Ready) && Family::of(endpoint.addr.ip()) == family
    });
    ready.take(MOST).collect()
}

/// Returns the hop at the process.
fn process(effect: Effect, chance: f64) -> Rc<Hop> {
    Rc::new(Hop {
        chance,
        ..Hop::without_rule(Hook::Input, Subsystem::Process, effect)
    })
}

/// Returns `outcome` with another end, at the process.
fn ended(mut outcome: Outcome, verdict: Verdict, with: &str, reason: String) -> Outcome {
    outcome.verdict = verdict;
    outcome.reason = reason;
    match verdict {
        Verdict::Reject => {
            let with = with.to_owned();
            outcome.hops.push(process(Effect::Reject { with }, 1.0));
        }
        Verdict::Drop => outcome.hops.push(process(Effect::Drop, 1.0)),
        _ => {}
    }
    outcome
}

/// Returns the way of a packet to the process, then the way of `second`, which the process sends.
fn joined(first: &Outcome, hop: &Rc<Hop>, second: Outcome) -> Outcome {
    let (verdict, reason) = match second.verdict {
        // No rule has to translate a packet to an endpoint.
        Verdict::Unmatched | Verdict::Local | Verdict::Deliver => (
            Verdict::Deliver,
            "kube-proxy's process sends it to an endpoint".to_owned(),
        ),
        other => (other, second.reason),
    };
    let mut hops = first.hops.clone();
    hops.push(Rc::clone(hop));
    hops.extend(second.hops);
    let mut when = first.when.clone();
    when.extend(second.when);
    Outcome {
        verdict,
        probability: first.probability * second.probability,
        destination: second.destination,
        masquerade: true,
        sticky: false,
        sent_from: first.sent_from,
        source: second.source,
        as_sent: AsSent {
            destination: false,
            port: false,
            source: false,
        },
        when,
        reason,
        hops,
        output: second.output,
        gateway: second.gateway,
        ttl: second.ttl,
        carried: second.carried,
        bridged: false,
    }
}
