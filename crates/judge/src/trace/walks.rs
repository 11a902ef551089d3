//! Walks through a world.

use std::cell::RefCell;
use std::rc::Rc;

use super::hop::Outcome;
use super::packet::{Flow, Further, OriginalTuple, Reply};
use super::region::{Region, Seen};
use super::route::Router;
use super::walk::Follows;
use super::world::{Chains, Need, Rules, Stop, World};
use super::{index, walk};
use kpx_node::net::Family;
use kpx_node::node::{IptablesBackend, NodeSnapshot};

impl World<'_, '_> {
    /// Follows the first packet of `flow` to every end it may have, the likeliest first.
    ///
    /// Probabilities add up to 1. A path that depends on something unknown names it in `when`, and shares the
    /// probability evenly with its alternative.
    ///
    /// # Errors
    ///
    /// The chain to read next, where rules are read in parts.
    pub fn walk(&self, flow: &Flow) -> Result<Vec<Outcome>, Need> {
        self.relayed(flow, self.walk_once(flow)?)
    }

    /// Follows a packet after the first one to every end it may have.
    ///
    /// # Errors
    ///
    /// The chain to read next, where rules are read in parts.
    pub(crate) fn further(&self, packet: &Further) -> Result<Vec<Outcome>, Need> {
        let reply = match packet {
            Further::Sent(flow) => return self.walk(flow),
            Further::Reply(reply) => reply,
        };
        let walker = walk::Walker::new(self, Family::of(reply.flow.destination));
        match walker.answer(reply, Follows::Hops) {
            Ok(outcomes) => Ok(outcomes),
            Err(Stop::Need(need)) => Err(need),
            // The outcomes of the first packet say that they are unknown.
            Err(Stop::Broken(_)) => Ok(Vec::new()),
        }
    }

    /// Follows the packet to the ports of kube-proxy's process, and no further.
    pub(super) fn walk_once(&self, flow: &Flow) -> Result<Vec<Outcome>, Need> {
        match walk::Walker::new(self, Family::of(flow.destination)).walk(flow) {
            Ok(outcomes) => Ok(outcomes),
            Err(Stop::Need(need)) => Err(need),
            Err(Stop::Broken(gap)) => {
                let store = IptablesBackend::InUse;
                let rules = Rules::Unknown(gap);
                let unknown = World {
                    node: self.node,
                    chains: vec![Chains { store, rules }],
                    lasting: self.lasting,
                };
                unknown.walk_once(flow)
            }
        }
    }
}

/// A walker of many packets through one world; it keeps the results of look-ups.
#[derive(Debug)]
pub struct Walks<'w, 'n, 'r> {
    pub(super) world: &'w World<'n, 'r>,
    pub(super) walker: walk::Walker<'w, 'n, 'r>,
}

impl<'w, 'n, 'r> Walks<'w, 'n, 'r> {
    /// Returns the node.
    pub(crate) const fn node(&self) -> &'n NodeSnapshot<'n> {
        self.world.node
    }

    /// Returns a walker of packets of `family`.
    pub fn new(world: &'w World<'n, 'r>, family: Family) -> Self {
        let walker = walk::Walker::recording(world, family);
        Self { world, walker }
    }

    /// Follows the first packet of `flow`, as [`World::walk`] does over rules that are read whole.
    pub fn walk(&self, flow: &Flow) -> Vec<Outcome> {
        self.of(flow, self.walker.walk(flow))
    }

    /// Follows the first packet of `flow` to the same ends, without its hops unless it fails to arrive on some way, or leaves with
    /// its last hop.
    pub fn brief(&self, flow: &Flow) -> Vec<Outcome> {
        let ends = self.of(flow, self.walker.ends(flow));
        if ends.iter().all(|end| end.verdict.arrives() && end.ttl > 1) {
            ends
        } else {
            self.walk(flow)
        }
    }

    pub(super) fn of(&self, flow: &Flow, walked: Result<Vec<Outcome>, Stop>) -> Vec<Outcome> {
        match walked {
            Ok(outcomes) => self.world.relayed(flow, outcomes).unwrap_or_default(),
            // A chain that cannot be parsed makes all rules unknown.
            Err(_) => self.world.walk(flow).unwrap_or_default(),
        }
    }
}

/// A walker of many packets that owns its world.
#[derive(Debug)]
pub(crate) struct Kept<'n> {
    pub(super) world: World<'n, 'n>,
    pub(super) family: Family,
    pub(super) router: Rc<Router<'n>>,
    pub(super) index: RefCell<Option<index::Index>>,
}

impl<'n> Kept<'n> {
    /// Returns a walker of packets of `family` through `node`.
    pub(crate) fn new(node: &'n NodeSnapshot<'n>, family: Family) -> Self {
        Self {
            world: World::whole(node, family),
            family,
            router: Rc::new(Router::new(node)),
            index: RefCell::new(Some(index::Index::default())),
        }
    }

    /// Calls `answer` with a walker that has the look-ups of earlier questions, and keeps those that it adds.
    pub(super) fn with<T>(&self, answer: impl FnOnce(&walk::Walker<'_, 'n, 'n>) -> T) -> T {
        let mut walker = walk::Walker::new(&self.world, self.family);
        walker.router = Rc::clone(&self.router);
        walker.index = self.index.take();
        let answered = answer(&walker);
        self.index.replace(walker.index.take());
        answered
    }

    /// Follows the first packet of `flow`, as [`World::walk`] does.
    pub(crate) fn walk(&self, flow: &Flow) -> Vec<Outcome> {
        match self.with(|walker| walker.walk(flow)) {
            Ok(outcomes) => self.world.relayed(flow, outcomes).unwrap_or_default(),
            // A chain that cannot be parsed makes all rules unknown.
            Err(_) => self.world.walk(flow).unwrap_or_default(),
        }
    }

    /// Follows the packet of `flow` to the same ends, with its hops only if it fails to arrive on some way.
    pub(crate) fn brief(&self, flow: &Flow) -> Vec<Outcome> {
        match self.with(|walker| walker.ends(flow)) {
            Ok(ends) if ends.iter().all(|end| end.verdict.arrives()) => ends,
            _ => self.walk(flow),
        }
    }

    /// Follows a reply, as [`World::further`] does.
    pub(crate) fn reply(&self, reply: &Reply) -> Vec<Outcome> {
        // The outcomes of the first packet say what is unknown.
        let answered = self.with(|walker| walker.answer(reply, Follows::Hops));
        answered.unwrap_or_default()
    }

    /// Returns the region of all packets that arrive as the reply does, what they answer if a rule asks for it, and its outcomes, if the
    /// reply arrives under every unknown condition.
    pub(crate) fn replies_arrive(
        &self,
        reply: &Reply,
    ) -> Option<(Region, Option<OriginalTuple>, Vec<Outcome>)> {
        let seen = Rc::new(Seen::new(Region::whole()));
        let follows = Follows::Questions(Rc::clone(&seen));
        let outcomes = self.with(|walker| walker.answer(reply, follows)).ok()?;
        let all_arrive = outcomes.iter().all(|outcome| outcome.verdict.arrives());
        let original = seen.is_original_asked().then_some(reply.original);
        all_arrive.then(|| (seen.region(), original, outcomes))
    }
}
