//! The path of one packet through the node, computed from the parsed state.
//!
//! The walk does no I/O. Over a whole snapshot it always finishes; over rules that are read chain by chain it returns the
//! chain it needs next, and runs again once that chain is read. A repeated walk costs less than starting a process.

pub mod affinity;
mod assume;
mod ending;
mod enter;
mod forwarding;
mod home;
pub(crate) mod hop;
mod index;
mod iptables;
mod ipvs;
pub(crate) mod link_hooks;
mod link_layer;
pub mod mismatch;
pub mod nearby;
pub(crate) mod nftables;
mod notes;
pub mod observed;
mod opening;
mod order;
pub(crate) mod packet;
pub mod question;
pub mod region;
pub(crate) mod route;
mod routing;
mod rule;
pub mod sources;
mod stage;
mod tail;
pub mod target;
mod tos;
mod ttl;
pub(crate) mod userspace;
pub(crate) mod walk;
pub mod why;

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use kpx_node::backend::iptables::model::{Chain, Match, RecentAction, Ruleset};
use kpx_node::backend::iptables::parse::Saved;
use kpx_node::evidence::{Gap, Item};
use kpx_node::net::Family;
use kpx_node::node::{IptablesBackend, NodeSnapshot};
use region::{Region, Seen};
use route::Router;
use walk::Follows;

pub use assume::Assumed;
pub use ending::overall;
pub use forwarding::{forwarded, not_forwarding};
pub use hop::{Assumption, Effect, Hook, Hop, Outcome, Pace, Question, Subsystem, Verdict};
pub(crate) use iptables::{fits_state, tells_data};
pub use ipvs::choose;
pub use notes::{Tracked, end_tracked, knows_endpoints, notes, tracked, unread};
pub(crate) use packet::SENT_TTL;
pub use packet::{Carried, Entry, Flow, Follow, Further, Reply};
pub(crate) use rule::own_policies;
pub use rule::{Accepted, PODS, Rule};
pub(crate) use why::end;
pub use why::why;

/// Items that decide the path of a packet, apart from the rules of iptables.
pub const NEEDS: &[Item] = &[
    Item::Nft,
    Item::NftText,
    Item::Ipset,
    Item::Ipvs,
    Item::IpvsSave,
    Item::IpvsStats,
    Item::Addresses,
    Item::Links,
    Item::Routes,
    Item::Rules,
    Item::Sysctl,
    Item::ProxyConfig,
    Item::Services,
    Item::EndpointSlices,
    Item::Nodes,
    Item::Pods,
    Item::ServiceCidrs,
];

/// Further items that the notes of a trace use.
pub const NOTES_NEEDS: &[Item] = &[
    Item::IptablesVersion,
    Item::Sockets,
    Item::Tcp4,
    Item::Tcp6,
    Item::Udp4,
    Item::Udp6,
    Item::Conntrack,
    Item::NeighbourTable,
    Item::XfrmPolicies,
    Item::Tc,
    Item::Bpf,
    Item::PodNetworks,
    Item::Processes,
    Item::IpvsConnections,
    Item::ProxyMode,
];

/// A chain the walk needs and does not have.
#[derive(Clone, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub struct Need {
    /// The table.
    pub table: String,
    /// The chain.
    pub chain: String,
}

/// The state that a walk reads.
#[derive(Debug)]
pub struct World<'n, 'r> {
    /// The node: routes, addresses, sets, virtual servers, nftables, settings.
    pub node: &'n NodeSnapshot<'n>,
    /// The iptables rules, the back end in use first.
    pub chains: Vec<Chains<'r>>,
    /// Whether the answer must stay valid: then the contents of sets with timeouts are left open, except those of session
    /// affinity.
    pub lasting: bool,
}

/// The iptables rules of one back end and family.
#[derive(Debug)]
pub struct Chains<'a> {
    /// The back end.
    pub store: IptablesBackend,
    /// The rules.
    pub rules: Rules<'a>,
}

impl Chains<'_> {
    /// Returns whether a rule looks clients up in the list of `-m recent` called `name`, so that clients in it are
    /// treated differently; true if not all rules were read.
    pub(crate) fn looks_up(&self, name: &str) -> bool {
        let asks = |matched: &Match<'_>| {
            matches!(matched, Match::Recent(recent)
            if matches!(recent.action.value, RecentAction::Check | RecentAction::Update) && &*recent.name == name)
        };
        match &self.rules {
            Rules::Saved(saved) | Rules::Parsed(saved, _) => saved.looks_up(name),
            Rules::Edited(saved, chains) => {
                let edited = chains.values().flatten().flat_map(|chain| &chain.rules);
                saved.looks_up(name) || edited.flat_map(|rule| &rule.matches).any(asks)
            }
            Rules::Parts(_) | Rules::Unknown(_) => true,
        }
    }
}

/// The rules, as far as they are read.
#[derive(Debug)]
pub enum Rules<'a> {
    /// All of them, as they were saved.
    Saved(&'a Saved<'a>),
    /// All of them, as they were saved, and each chain read already.
    Parsed(&'a Saved<'a>, &'a Ruleset<'a>),
    /// All of them, with some chains replaced; `None` for a chain that does not exist.
    Edited(&'a Saved<'a>, BTreeMap<Need, Option<Chain<'a>>>),
    /// The chains read so far, by table and chain; `None` for a chain that does not exist.
    Parts(BTreeMap<Need, Option<Chain<'a>>>),
    /// Unknown.
    Unknown(Gap),
}

/// Returns the built-in chains: every walk begins with some of them.
pub fn base_chains() -> BTreeSet<Need> {
    let hooks = [
        Hook::Prerouting,
        Hook::Input,
        Hook::Forward,
        Hook::Output,
        Hook::Postrouting,
    ];
    let of = |hook: Hook| {
        let tables = stage::tables(hook);
        tables.map(move |table| Need {
            table: table.to_owned(),
            chain: hook.chain().to_owned(),
        })
    };
    hooks.into_iter().flat_map(of).collect()
}

/// The reason why a walk stops.
#[derive(Debug)]
pub(crate) enum Stop {
    /// A chain is not read yet.
    Need(Need),
    /// A chain cannot be parsed.
    Broken(Gap),
}

impl<'n> World<'n, 'n> {
    /// Returns the world of a snapshot that holds all rules of `family`.
    pub fn whole(node: &'n NodeSnapshot<'n>, family: Family) -> Self {
        let of = |store| match node.saved(store, family) {
            Ok(saved) => Some(Rules::Saved(saved)),
            // An absent back end has no rules; only the one in use has to be known.
            Err(Gap::NotCollected(_) | Gap::Absent(..) | Gap::NotApplicable(_)) => None,
            Err(gap) => Some(Rules::Unknown(gap)),
        };
        let stores = [
            IptablesBackend::InUse,
            IptablesBackend::Legacy,
            IptablesBackend::Nft,
        ];
        let chains = stores.into_iter().filter_map(|store| {
            let rules = of(store)?;
            Some(Chains { store, rules })
        });
        Self {
            node,
            chains: chains.collect(),
            lasting: false,
        }
    }

    /// Returns the same world for walks through most of its chains: they are read at once, unless some cannot be.
    pub(crate) fn parsed(node: &'n NodeSnapshot<'n>, family: Family) -> Self {
        let mut world = Self::whole(node, family);
        for chains in &mut world.chains {
            if chains.store == IptablesBackend::InUse
                && let Rules::Saved(saved) = chains.rules
                && let Ok(rules) = node.iptables(chains.store, family)
            {
                chains.rules = Rules::Parsed(saved, rules);
            }
        }
        world
    }
}

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
    fn walk_once(&self, flow: &Flow) -> Result<Vec<Outcome>, Need> {
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
    world: &'w World<'n, 'r>,
    walker: walk::Walker<'w, 'n, 'r>,
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

    fn of(&self, flow: &Flow, walked: Result<Vec<Outcome>, Stop>) -> Vec<Outcome> {
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
    world: World<'n, 'n>,
    family: Family,
    router: Rc<Router<'n>>,
    index: RefCell<Option<index::Index>>,
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
    fn with<T>(&self, answer: impl FnOnce(&walk::Walker<'_, 'n, 'n>) -> T) -> T {
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

    /// Returns the region of all packets that arrive as the reply does, with its outcomes, if the reply arrives under every
    /// unknown condition.
    pub(crate) fn replies_arrive(&self, reply: &Reply) -> Option<(Region, Vec<Outcome>)> {
        let seen = Rc::new(Seen::new(Region::whole()));
        let follows = Follows::Questions(Rc::clone(&seen));
        let outcomes = self.with(|walker| walker.answer(reply, follows)).ok()?;
        let all_arrive = outcomes.iter().all(|outcome| outcome.verdict.arrives());
        all_arrive.then(|| (seen.region(), outcomes))
    }
}

impl<'a> Chains<'a> {
    /// Returns whether `chain` of `table` may exist although the rules, of which only a part is shown, do not have it.
    fn is_unseen(&self, table: &str, chain: &str) -> Result<bool, Stop> {
        let whole = match &self.rules {
            Rules::Saved(saved) | Rules::Parsed(saved, _) | Rules::Edited(saved, _) => {
                saved.is_whole(table)
            }
            Rules::Parts(_) | Rules::Unknown(_) => true,
        };
        Ok(!whole && self.chain(table, chain)?.is_none())
    }

    /// Returns `chain` of `table`; `None` where there is none.
    fn chain(&self, table: &str, chain: &str) -> Result<Option<&Chain<'a>>, Stop> {
        match &self.rules {
            Rules::Saved(saved) => saved.chain(table, chain).map_err(Stop::Broken),
            Rules::Parsed(_, rules) => Ok(rules.chain(table, chain)),
            Rules::Edited(saved, chains) => {
                let need = Need {
                    table: table.to_owned(),
                    chain: chain.to_owned(),
                };
                match chains.get(&need) {
                    Some(found) => Ok(found.as_ref()),
                    None => saved.chain(table, chain).map_err(Stop::Broken),
                }
            }
            Rules::Parts(parts) => {
                let need = Need {
                    table: table.to_owned(),
                    chain: chain.to_owned(),
                };
                match parts.get(&need) {
                    Some(found) => Ok(found.as_ref()),
                    None => Err(Stop::Need(need)),
                }
            }
            Rules::Unknown(_) => Ok(None),
        }
    }
}
