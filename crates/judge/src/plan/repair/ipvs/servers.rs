//! Virtual and real servers: those added before any address leads to them, and those removed.

use std::collections::{HashMap, HashSet};
use std::ops::RangeInclusive;

use super::super::Drain;
use super::super::counted;
use crate::diff::{Change, Delta, Object};
use kpx_node::backend::ipvs::change::Edits;
use kpx_node::backend::ipvs::expect::Expected;
use kpx_node::backend::ipvs::model::{Key, RealServer, Table, VirtualServer};
use kpx_node::backend::ipvs::print;
use kpx_node::evidence::Gap;
use kpx_node::node::NodeSnapshot;

/// The changes of virtual and real servers, in two steps, each with its title.
#[derive(Debug, Default)]
pub(super) struct Servers {
    pub(super) make: (Vec<String>, Edits),
    pub(super) gone: (Vec<String>, Edits),
    /// Whether real servers may stay until their connections end.
    pub(super) drains: bool,
    /// Virtual servers that stay, because another program may have created them.
    pub(super) foreign: Vec<String>,
}

/// Virtual servers by their keys.
type ByKey<'t> = HashMap<Key, &'t VirtualServer>;

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
        let (live, wanted) = (by_key(&have.servers), by_key(&want.servers));
        let mut make = Edits::default();
        let mut gone = Edits::default();
        let mut counts = Counts::default();
        let mut leaving: Vec<Leaving<'_>> = Vec::new();
        let mut foreign: Vec<String> = Vec::new();
        for change in changes {
            match &change.object {
                Object::VirtualServer { key, .. } => match (live.get(key), wanted.get(key)) {
                    (None, Some(want)) => {
                        counts.added += 1;
                        make.add_server(want);
                    }
                    (Some(have), Some(want)) => {
                        counts.changed += 1;
                        make.edit_server(have, want);
                    }
                    (Some(_), None) if !is_ours(node, *key) => foreign.push(print::name(*key)),
                    (Some(have), None) => {
                        counts.deleted += 1;
                        gone.delete_server(have);
                    }
                    (None, None) => {}
                },
                Object::RealServer { server, real, .. } => {
                    match (real, live.get(server), wanted.get(server)) {
                        (Delta::Missing(real), _, Some(server)) => {
                            counts.added_reals += 1;
                            make.add_real(server, real);
                        }
                        (Delta::Differs { have, want }, Some(server), _) => {
                            counts.changed_reals += 1;
                            make.edit_real(server, have, want);
                        }
                        (Delta::Extra(real), Some(server), _) => leaving.push((server, real)),
                        _ => {}
                    }
                }
                _ => {}
            }
        }
        let nothing = make.is_empty() && gone.is_empty() && leaving.is_empty();
        let drained = drained(have, want);
        let ready = drained.iter().any(|(_, real)| is_idle(real));
        // All of them, idle or not, so that the plan stays the same while connections end.
        if ready || !nothing || drain == Drain::No {
            leaving.extend(drained);
        }
        let drains = leave(&mut gone, &leaving, drain);
        counts.leaving = leaving.len();
        Ok(Self {
            make: (counts.made(), make),
            gone: (counts.gone(), gone),
            drains,
            foreign,
        })
    }
}

/// The API server's default range of NodePorts.
const NODE_PORTS: RangeInclusive<u16> = 30000..=32767;

/// Returns whether `key` is kube-proxy's, including a NodePort of a deleted Service.
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

/// Removes real servers; returns whether some may stay until their connections end.
fn leave(edits: &mut Edits, leaving: &[Leaving<'_>], drain: Drain) -> bool {
    let drains = |server: &VirtualServer| drain == Drain::First && server.key.is_tcp();
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
    // All of them first stop taking connections; then idle ones are deleted.
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

/// Returns the real servers that an earlier run, or kube-proxy, set to drain.
fn drained<'t>(have: &'t Table, want: &Expected) -> Vec<Leaving<'t>> {
    let wanted = by_key(&want.servers);
    let mut found = Vec::new();
    for server in have.servers.iter().filter(|server| server.key.is_tcp()) {
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
        let stay: HashSet<_> = want.reals.iter().map(RealServer::socket).collect();
        found.extend(
            closed
                .filter(|real| !stay.contains(&real.socket()))
                .map(|real| (server, real)),
        );
    }
    found
}

fn is_idle(real: &RealServer) -> bool {
    let connections = real.connections;
    connections.is_some_and(|connection| connection.active == 0 && connection.inactive == 0)
}

fn by_key(servers: &[VirtualServer]) -> ByKey<'_> {
    servers.iter().map(|server| (server.key, server)).collect()
}

/// The number of changes, for the titles.
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
        counted(&[
            (self.added, "add", "virtual server"),
            (self.changed, "change", "virtual server"),
            (self.added_reals, "add", "real server"),
            (self.changed_reals, "change", "real server"),
        ])
    }

    fn gone(&self) -> Vec<String> {
        counted(&[
            (self.deleted, "delete", "virtual server"),
            (self.leaving, "remove", "real server"),
        ])
    }
}
