//! What IPVS does with a packet.
//!
//! Sources: `ip_vs_in_hook`, `ip_vs_service_find`, `ip_vs_schedule` and the schedulers of Linux 5.10 to 6.18.

mod hash;

use std::net::SocketAddr;

use smallvec::smallvec;

use super::branch::{Branch, End, Ends};
use super::hop::{Effect, Hook, Hop, Subsystem};
use super::index::Part;
use super::packet::Packet;
use super::route::{Decision, Lookup};
use super::walk::Walker;
use kpx_node::backend::ipvs::model::{Flags, Forwarding, Key, RealServer, VirtualServer};
use kpx_node::evidence::{Gap, Item};
use kpx_node::net::Proto;

pub use hash::choose;

impl Walker<'_, '_, '_> {
    /// Gives the packet to a virtual server, if there is one for it.
    pub(crate) fn ipvs(&self, branch: Branch, hook: Hook) -> Ends {
        if branch.packet.virtual_server.is_some() || !branch.packet.has_ports() {
            return smallvec![(branch, End::Accept)];
        }
        let table = match self.world.node.ipvs() {
            Ok(table) => table,
            // No IPVS in the kernel, or none recorded.
            Err(Gap::Absent(..) | Gap::NotApplicable(_) | Gap::NotCollected(_)) => {
                return smallvec![(branch, End::Accept)];
            }
            Err(gap) => {
                return smallvec![(
                    branch,
                    End::Unknown(format!("the virtual servers are unknown: {gap}")),
                )];
            }
        };
        match self.find(&table.servers, &branch.packet) {
            None if self
                .world
                .node
                .evidence()
                .missing_part(Item::IpvsSave)
                .is_some() =>
            {
                let why = "the evidence shows only some virtual servers".to_owned();
                smallvec![(branch, End::Unknown(why))]
            }
            None => smallvec![(branch, End::Accept)],
            Some(server) => self.schedule(branch, hook, server),
        }
    }

    fn schedule(&self, mut branch: Branch, hook: Hook, server: &VirtualServer) -> Ends {
        let packet = &branch.packet;
        // A recorded walk is for all clients.
        let hashes = packet.seen.is_none() && !hashes_ports(server);
        let chosen = hashes.then(|| {
            let client = SocketAddr::new(packet.source().exact(), 0);
            choose(server, client, packet.destination().exact())
        });
        let (addr, port) = packet.target();
        let key = (packet.shown_proto(), addr, port);
        let shares = match chosen.flatten() {
            Some(chosen) => chosen.map(|real| (real, 1.0)).into_iter().collect(),
            None => shares(server),
        };
        let scheduled = server.stats.map(|stats| stats.conns);
        if shares.is_empty() {
            record(
                &mut branch,
                hook,
                scheduled,
                Effect::NoServer {
                    server: shown(key),
                    idle: server.reals.len(),
                },
                1.0,
            );
            return smallvec![(
                branch,
                End::Reject(
                    "the virtual server has no real server that accepts connections".to_owned(),
                ),
            )];
        }
        let port_zero = matches!(
            server.key,
            Key::Fwmark { .. } | Key::Address { port: 0, .. }
        );
        let mut ends = Ends::new();
        for (real, share) in shares {
            let mut branch = branch.clone();
            branch.weight *= share;
            branch.packet.virtual_server = Some(key);
            branch.packet.sticky = is_sticky(server);
            branch.packet.set_destination(real.addr);
            if !(port_zero && real.port == 0) {
                branch.packet.set_port(real.port);
            }
            let (_, port) = branch.packet.target();
            branch.packet.bound[0] = true;
            // Without vs.conntrack the translated packet is not tracked, and no nat rule sees it.
            let tracks = self.tracks();
            branch.packet.untracked = tracks == Ok(false);
            let effect = Effect::Balance {
                server: shown(key),
                scheduler: server.scheduler.clone(),
                address: real.addr,
                port,
            };
            record(
                &mut branch,
                hook,
                real.stats.map(|stats| stats.conns),
                effect,
                share,
            );
            if !matches!(real.forwarding, Forwarding::Masq | Forwarding::Local) {
                let reason = format!(
                    "real server {} gets packets that are not translated (its forwarding method is not -m): whether it has the \
                     address {addr} itself is unknown",
                    SocketAddr::new(real.addr, real.port),
                );
                ends.push((branch, End::Unknown(reason)));
                continue;
            }
            if let Err(gap) = tracks {
                let reason = format!("whether IPVS connections are tracked is unknown: {gap}");
                ends.push((branch, End::Unknown(reason)));
                continue;
            }
            ends.push(self.send(branch, hook));
        }
        ends
    }

    /// A packet to a real server on this host continues here; any other is sent out through `LOCAL_OUT`.
    fn send(&self, mut branch: Branch, hook: Hook) -> (Branch, End) {
        let decision = self.router.decide(Lookup::of(&branch.packet, None));
        if matches!(decision, Decision::Local { .. }) && hook == Hook::Input {
            return (branch, End::Accept);
        }
        branch.packet.input = super::packet::Link::None;
        branch.packet.output = super::packet::Link::None;
        self.leave(branch, decision, End::Stolen)
    }

    /// Finds the virtual server of a packet: by mark, then by address and port, then by address with port 0.
    fn find<'t>(&self, servers: &'t [VirtualServer], packet: &Packet) -> Option<&'t VirtualServer> {
        let by_mark = servers.iter().find(|server| match server.key {
            Key::Fwmark { mark, family } => {
                family == packet.family() && mark != 0 && mark == packet.mark().exact()
            }
            Key::Address { .. } => false,
        });
        if by_mark.is_some() {
            return by_mark;
        }
        if let Some(index) = &self.index {
            let servers_by_key = index.servers(servers, packet.family());
            let at = |port| {
                let (addr, proto) = (packet.destination(), packet.proto());
                servers_by_key.find(&[Part::Addr(addr), Part::Proto(proto), port])
            };
            let found = at(Part::Port(packet.port())).or_else(|| at(Part::Number(0)));
            return found.map(|at| &servers[at]);
        }
        let (addr, port) = packet.target();
        let proto = packet.shown_proto();
        let at = |port| {
            let key = Key::Address { proto, addr, port };
            servers.iter().find(move |server| server.key == key)
        };
        at(port).or_else(|| at(0))
    }

    /// Returns whether translated packets are tracked, as kube-proxy has it set, unless the node's settings say otherwise.
    fn tracks(&self) -> Result<bool, Gap> {
        let key = "net.ipv4.vs.conntrack";
        let sysctl = self.world.node.sysctl();
        match sysctl.and_then(|all| all.known(key)) {
            Ok(Some(value)) => Ok(value != "0"),
            Ok(None) => Err(Gap::Absent(Item::Sysctl, format!("it has no {key}"))),
            Err(_) => Ok(true),
        }
    }
}

/// Returns the real servers that take a new connection, with the share of each.
///
/// For schedulers that choose by address (`sh`, `dh`, `mh`, `lblc`), the share over all clients is by weight.
fn shares(server: &VirtualServer) -> Vec<(&RealServer, f64)> {
    let takes = |real: &&RealServer| real.weight > 0 && !is_full(real);
    let reals: Vec<_> = server.reals.iter().filter(takes).collect();
    let load = |real: &RealServer, active: u64, inactive: u64| {
        let connections = real.connections.unwrap_or_default();
        u64::from(connections.active) * active + u64::from(connections.inactive) * inactive
    };
    let least = |cost: &dyn Fn(&RealServer) -> f64| {
        let lowest = reals
            .iter()
            .map(|real| cost(real))
            .fold(f64::INFINITY, f64::min);
        let chosen: Vec<_> = reals
            .iter()
            .filter(|real| cost(real) <= lowest)
            .copied()
            .collect();
        even(chosen)
    };
    #[expect(
        clippy::cast_precision_loss,
        reason = "connection counts stay far below 2^52"
    )]
    match server.scheduler.as_str() {
        "rr" => even(reals),
        // ip_vs_dest_conn_overhead: (active << 8) + inactive.
        "lc" | "lblcr" => least(&|real| load(real, 256, 1) as f64),
        "wlc" => least(&|real| load(real, 256, 1) as f64 / f64::from(real.weight)),
        "sed" => least(&|real| (load(real, 1, 0) + 1) as f64 / f64::from(real.weight)),
        "nq" => {
            let idle: Vec<_> = reals
                .iter()
                .filter(|real| load(real, 1, 0) == 0)
                .copied()
                .collect();
            if idle.is_empty() {
                least(&|real| (load(real, 1, 0) + 1) as f64 / f64::from(real.weight))
            } else {
                even(idle)
            }
        }
        "fo" => even(heaviest(reals)),
        "ovf" => {
            let has_room = |real: &&RealServer| load(real, 1, 0) <= real.weight.into();
            even(heaviest(reals.into_iter().filter(has_room).collect()))
        }
        // wrr, sh, dh, mh, twos, lblc and schedulers of newer kernels.
        _ => {
            let all: f64 = reals.iter().map(|real| f64::from(real.weight)).sum();
            reals
                .into_iter()
                .map(|real| (real, f64::from(real.weight) / all))
                .collect()
        }
    }
}

/// Returns the first server with the greatest weight; none if there are no servers.
fn heaviest(mut reals: Vec<&RealServer>) -> Vec<&RealServer> {
    let most = reals.iter().map(|real| real.weight).max();
    reals.retain(|real| Some(real.weight) == most);
    reals.truncate(1);
    reals
}

fn even(reals: Vec<&RealServer>) -> Vec<(&RealServer, f64)> {
    #[expect(
        clippy::cast_precision_loss,
        reason = "a virtual server has few real servers"
    )]
    let share = 1.0 / reals.len() as f64;
    reals.into_iter().map(|real| (real, share)).collect()
}

/// Returns whether a real server has as many connections as its upper threshold allows.
fn is_full(real: &RealServer) -> bool {
    let connections = real.connections.unwrap_or_default();
    real.upper > 0 && connections.active + connections.inactive >= real.upper
}

/// Returns whether the scheduler chooses by the client's port, too.
pub(crate) fn hashes_ports(server: &VirtualServer) -> bool {
    let hashes = matches!(server.scheduler.as_str(), "sh" | "mh");
    hashes && server.flags.0 & Flags::SCHED2 != 0
}

/// Returns whether one client always reaches the same real server.
pub(crate) fn is_sticky(server: &VirtualServer) -> bool {
    server.flags.0 & Flags::PERSISTENT != 0
}

fn record(branch: &mut Branch, hook: Hook, packets: Option<u64>, effect: Effect, chance: f64) {
    branch.path.push(|| Hop {
        packets,
        chance,
        ..Hop::without_rule(hook, Subsystem::Ipvs, effect)
    });
}

/// Returns the virtual server's key as ipvsadm writes it.
fn shown(key: (Proto, std::net::IpAddr, u16)) -> String {
    let (proto, addr, port) = key;
    format!("{proto} {}", SocketAddr::new(addr, port))
}

#[cfg(test)]
mod tests {
    use super::*;
    use kpx_node::backend::ipvs::model::Connections;

    /// A virtual server with real servers of these weights and active connections.
    fn server(scheduler: &str, reals: &[(u32, u32)]) -> VirtualServer {
        let real = |(at, &(weight, active)): (usize, &(u32, u32))| RealServer {
            addr: format!("10.244.1.{at}").parse().unwrap(),
            port: 80,
            weight,
            forwarding: Forwarding::Masq,
            upper: 0,
            lower: 0,
            connections: Some(Connections {
                active,
                ..Connections::default()
            }),
            stats: None,
        };
        VirtualServer {
            key: Key::Fwmark {
                mark: 1,
                family: kpx_node::net::Family::V4,
            },
            scheduler: scheduler.to_owned(),
            flags: Flags(0),
            timeout: 0,
            prefix: 32,
            engine: None,
            reals: reals.iter().enumerate().map(real).collect(),
            order: Vec::new(),
            stats: None,
        }
    }

    /// The indexes of the real servers that take a new connection.
    fn chosen(scheduler: &str, reals: &[(u32, u32)]) -> Vec<usize> {
        let server = server(scheduler, reals);
        let is_chosen = |real: &RealServer| {
            let mut shares = shares(&server).into_iter();
            shares.any(|(of, _)| of.addr == real.addr)
        };
        let all = server.reals.iter().enumerate();
        all.filter(|(_, real)| is_chosen(real))
            .map(|(at, _)| at)
            .collect()
    }

    #[test]
    fn a_real_server_without_weight_or_room_is_not_chosen() {
        for scheduler in ["rr", "wrr", "lc", "wlc", "sed", "nq", "fo", "ovf", "sh"] {
            assert_eq!(chosen(scheduler, &[(0, 0), (1, 0)]), [1], "{scheduler}");
        }
        let mut server = server("rr", &[(1, 4), (1, 5), (1, 6), (1, 7)]);
        for (real, upper) in server.reals.iter_mut().zip([5, 5, 5, 0]) {
            real.upper = upper;
        }
        let taking = shares(&server);
        let shares: Vec<_> = taking.iter().map(|(_, share)| *share).collect();
        assert_eq!(shares, [0.5, 0.5]);
        let first = &server.reals[0];
        assert!(taking.iter().any(|(real, _)| real.addr == first.addr));
    }

    #[test]
    fn fo_chooses_the_heaviest() {
        assert_eq!(chosen("fo", &[(1, 0), (3, 9), (3, 0)]), [1]);
    }

    #[test]
    fn ovf_chooses_the_heaviest_with_no_more_active_connections_than_its_weight() {
        assert_eq!(chosen("ovf", &[(1, 0), (3, 3), (3, 0)]), [1]);
        assert_eq!(chosen("ovf", &[(1, 0), (3, 4), (2, 0)]), [2]);
        assert_eq!(chosen("ovf", &[(1, 2), (3, 4)]), [] as [usize; 0]);
    }
}
