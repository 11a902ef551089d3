//! The state that a walk reads.

use std::collections::BTreeMap;

use kpx_node::backend::iptables::model::{Chain, Match, RecentAction, Ruleset};
use kpx_node::backend::iptables::parse::Saved;
use kpx_node::evidence::{Gap, Item};
use kpx_node::net::Family;
use kpx_node::node::{IptablesBackend, NodeSnapshot};

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
    Item::Arptables,
    Item::Sockets,
    Item::Tcp4,
    Item::Tcp6,
    Item::Udp4,
    Item::Udp6,
    Item::Conntrack,
    Item::NeighbourTable,
    Item::Neighbours4,
    Item::Neighbours6,
    Item::XfrmPolicies,
    Item::XfrmStates,
    Item::Tc,
    Item::Bpf,
    Item::PodNetworks,
    Item::Processes,
    Item::IpvsConnections,
    Item::KernelLog,
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

impl<'a> Chains<'a> {
    /// Returns whether `chain` of `table` may exist although the rules, of which only a part is shown, do not have it.
    pub(super) fn is_unseen(&self, table: &str, chain: &str) -> Result<bool, Stop> {
        let whole = match &self.rules {
            Rules::Saved(saved) | Rules::Parsed(saved, _) | Rules::Edited(saved, _) => {
                saved.is_whole(table)
            }
            Rules::Parts(_) | Rules::Unknown(_) => true,
        };
        Ok(!whole && self.chain(table, chain)?.is_none())
    }

    /// Returns `chain` of `table`; `None` where there is none.
    pub(super) fn chain(&self, table: &str, chain: &str) -> Result<Option<&Chain<'a>>, Stop> {
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
