//! Virtual and real servers: what comes before addresses lead to it, and what goes.

use std::collections::{HashMap, HashSet};
use std::net::SocketAddr;
use std::ops::RangeInclusive;

use super::super::Drain;
use super::words;
use crate::backend::ipvs::change::Edits;
use crate::backend::ipvs::expect::Expected;
use crate::backend::ipvs::model::{Key, RealServer, Table, VirtualServer};
use crate::backend::ipvs::print;
use crate::diff::{Action, Change, Object};
use crate::evidence::Gap;
use crate::net::Proto;
use crate::node::NodeSnapshot;

/// What is done to virtual and real servers, in two steps, each with its title.
#[derive(Debug, Default)]
pub(super) struct Servers {
    pub(super) make: (Vec<String>, Edits),
    pub(super) gone: (Vec<String>, Edits),
    /// Whether real servers may stay until their connections end.
    pub(super) drains: bool,
    /// Virtual servers that stay, for nothing says that kube-proxy made them.
    pub(super) foreign: Vec<String>,
}

/// Virtual servers by what people call them.
type ByName<'t> = HashMap<String, &'t VirtualServer>;

/// A virtual server and a real server that it should not have.
type Leaving<'t> = (&'t VirtualServer, &'t RealServer);

impl Servers {
    pub(super) fn new(
        node: &NodeSnapshot<'_>,
        want: &Expected,
        changes: &[&Change],
        drain: Drain,
    ) -> Result<Self, Gap> {
        let have = node.ipvs_or_none()?;
        let (there, wanted) = (by_name(&have.servers), by_name(&want.servers));
        let mut make = Edits::default();
        let mut gone = Edits::default();
        let mut counts = Counts::default();
        let mut leaving: Vec<Leaving<'_>> = Vec::new();
        let mut foreign: Vec<&str> = Vec::new();
        for change in changes {
            match &change.object {
                Object::VirtualServer { server } => match (there.get(server), wanted.get(server)) {
                    (None, Some(want)) => {
                        counts.added += 1;
                        make.add_server(want);
                    }
                    (Some(have), Some(want)) => {
                        counts.changed += 1;
                        make.edit_server(have, want);
                    }
                    (Some(have), None) if !is_ours(node, have.key) => foreign.push(server),
                    (Some(have), None) => {
                        counts.deleted += 1;
                        gone.delete_server(have);
                    }
                    (None, None) => {}
                },
                Object::RealServer { server, real } => {
                    let (have, want) = (
                        real_of(&there, server, real),
                        real_of(&wanted, server, real),
                    );
                    match (change.action, have, want) {
                        (Action::Missing, _, Some((server, want))) => {
                            counts.added_reals += 1;
                            make.add_real(server, want);
                        }
                        (Action::Differs, Some((server, have)), Some((_, want))) => {
                            counts.changed_reals += 1;
                            make.edit_real(server, have, want);
                        }
                        (Action::Extra, Some(have), _) => leaving.push(have),
                        _ => {}
                    }
                }
                _ => {}
            }
        }
        let nothing = make.is_empty() && gone.is_empty() && leaving.is_empty();
        let drained = drained(have, want);
        let ready = drained.iter().any(|(_, real)| is_idle(real));
        // All of them, so that the plan stays the same while connections end.
        if ready || !nothing || drain == Drain::No {
            leaving.extend(drained);
        }
        let drains = leave(&mut gone, &leaving, drain);
        counts.leaving = leaving.len();
        Ok(Self {
            make: (counts.made(), make),
            gone: (counts.gone(), gone),
            drains,
            foreign: foreign.into_iter().map(str::to_owned).collect(),
        })
    }
}

/// Ports that the API server gives to NodePorts, where it is not told otherwise.
const NODE_PORTS: RangeInclusive<u16> = 30000..=32767;

/// Returns whether `key` is kube-proxy's: also a NodePort's whose Service is gone.
fn is_ours(node: &NodeSnapshot<'_>, key: Key) -> bool {
    let Key::Address { addr, port, .. } = key else {
        return false;
    };
    let is_here = |addr| {
        let addresses = node.addresses();
        addresses.is_ok_and(|all| all.all.iter().any(|at| at.addr.addr == addr))
    };
    node.owns_server(addr, port) || (NODE_PORTS.contains(&port) && is_here(addr))
}

/// Takes real servers away; returns whether some may stay until their connections end.
fn leave(edits: &mut Edits, leaving: &[Leaving<'_>], drain: Drain) -> bool {
    let drains = |server: &VirtualServer| drain == Drain::First && is_tcp(server.key);
    for (server, real) in leaving {
        if !drains(server) {
            edits.delete_real(server, real);
        } else if real.weight > 0 {
            let closed = RealServer {
                weight: 0,
                ..(*real).clone()
            };
            edits.edit_real(server, real, &closed);
        }
    }
    // Not before each of them is closed.
    let mut draining = leaving
        .iter()
        .filter(|(server, _)| drains(server))
        .peekable();
    let some = draining.peek().is_some();
    for (server, real) in draining {
        edits.retire_real(server, real);
    }
    some
}

/// Returns real servers that a run before, or kube-proxy, closed and left to their connections.
fn drained<'t>(have: &'t Table, want: &Expected) -> Vec<Leaving<'t>> {
    let wanted: HashMap<Key, &VirtualServer> = want.servers.iter().map(|s| (s.key, s)).collect();
    let mut found = Vec::new();
    for server in have.servers.iter().filter(|server| is_tcp(server.key)) {
        let Some(want) = wanted.get(&server.key) else {
            continue;
        };
        let mut closed = server
            .reals
            .iter()
            .filter(|real| real.weight == 0)
            .peekable();
        if closed.peek().is_none() {
            continue;
        }
        let stay: HashSet<_> = want
            .reals
            .iter()
            .map(|real| (real.addr, real.port))
            .collect();
        found.extend(
            closed
                .filter(|real| !stay.contains(&(real.addr, real.port)))
                .map(|real| (server, real)),
        );
    }
    found
}

fn is_idle(real: &RealServer) -> bool {
    let connections = real.connections;
    connections.is_some_and(|of| of.active == 0 && of.inactive == 0)
}

const fn is_tcp(key: Key) -> bool {
    matches!(
        key,
        Key::Address {
            proto: Proto::Tcp,
            ..
        }
    )
}

fn by_name(servers: &[VirtualServer]) -> ByName<'_> {
    servers
        .iter()
        .map(|server| (print::name(server.key), server))
        .collect()
}

fn real_of<'t>(servers: &ByName<'t>, server: &str, real: &str) -> Option<Leaving<'t>> {
    let addr: SocketAddr = real.parse().ok()?;
    let server = servers.get(server)?;
    let mut reals = server.reals.iter();
    let real = reals.find(|real| real.addr == addr.ip() && real.port == addr.port())?;
    Some((server, real))
}

/// How much there is to do, for the titles.
#[derive(Debug, Default)]
struct Counts {
    added: usize,
    changed: usize,
    deleted: usize,
    added_reals: usize,
    changed_reals: usize,
    leaving: usize,
}

impl Counts {
    fn made(&self) -> Vec<String> {
        words(&[
            (self.added, "add", "virtual server"),
            (self.changed, "change", "virtual server"),
            (self.added_reals, "add", "real server"),
            (self.changed_reals, "change", "real server"),
        ])
    }

    fn gone(&self) -> Vec<String> {
        words(&[
            (self.deleted, "delete", "virtual server"),
            (self.leaving, "remove", "real server"),
        ])
    }
}
