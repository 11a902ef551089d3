//! The walk over the running kernel's rules: each chain is read when it is first needed.

use std::collections::BTreeSet;

use super::run::unwalked;
use crate::command::shared::failure::Failure;
use crate::command::shared::session::Session;
use kpx_host::{ChainReader, Listing};
use kpx_judge::trace::nearby::{Parts, is_chain, led_to, nearby};
use kpx_judge::trace::question::{Answers, Walked, needs};
use kpx_judge::trace::{self, Chains, Flow, Need, Rules, World};
use kpx_node::backend::iptables::listing;
use kpx_node::evidence::{Gap, IPTABLES, Item};
use kpx_node::net::Family;
use kpx_node::node::{IptablesBackend, NodeSnapshot};

/// Chains, as they were listed.
type Listed = Vec<(Need, Result<Listing, Gap>)>;

/// The chains that every walk needs first, read concurrently with everything else.
pub(super) struct Begun {
    family: Family,
    /// `None` if the whole ruleset must be read.
    reader: Option<ChainReader>,
    listed: Listed,
}

impl Begun {
    /// Reads the built-in chains, and those that they jump to.
    pub(super) async fn read(session: &Session, family: Family) -> Result<Self, Failure> {
        let reader = ChainReader::new(session.machine()?, family).await;
        let mut listed = Listed::new();
        if let Some(reader) = &reader {
            listed = list(reader, trace::base_chains()).await;
            let wanted = match parse(family, &listed) {
                Ok(parts) => led_to(&parts, |chain| chain.policy.is_some()),
                // The walk says so.
                Err(_) => BTreeSet::new(),
            };
            listed.extend(list(reader, wanted).await);
        }
        Ok(Self {
            family,
            reader,
            listed,
        })
    }
}

/// Follows `flows` over this node's rules.
pub(super) async fn walk<'n>(
    session: &Session,
    node: &'n NodeSnapshot<'n>,
    begun: Begun,
    family: Family,
    flows: &[Flow],
    answers: &Answers<'_>,
) -> Result<Walked, Failure> {
    let begun = if begun.family == family {
        begun
    } else {
        Begun::read(session, family).await?
    };
    let walked = match &begun.reader {
        Some(reader) => follow(reader, node, (flows, answers), Parts::new(), &begun.listed).await?,
        None => None,
    };
    match walked {
        Some(walked) => Ok(walked),
        None => whole(session, family, (flows, answers)).await,
    }
}

/// Follows `flows` over `parts` and `listed`, and reads further chains as needed; `None` if the whole ruleset must be read.
async fn follow<'n>(
    reader: &ChainReader,
    node: &'n NodeSnapshot<'n>,
    (flows, answers): (&[Flow], &Answers<'_>),
    mut parts: Parts<'_>,
    listed: &Listed,
) -> Result<Option<Walked>, Failure> {
    let incompatible = |(_, listing): &(_, _)| matches!(listing, Ok(Listing::Incompatible));
    if listed.iter().any(incompatible) {
        return Ok(None);
    }
    let unknown = listed.iter().find_map(|(_, of)| of.as_ref().err());
    let rules = if let Some(gap) = unknown {
        Rules::Unknown(gap.clone())
    } else {
        parts.extend(parse(reader.family(), listed)?);
        // A rule of the kernel never jumps to a missing chain: the rules changed after the jump was read.
        let is_gone = |(need, chain): (&Need, &Option<_>)| chain.is_none() && is_chain(&need.chain);
        if parts.iter().any(is_gone) {
            return Ok(None);
        }
        Rules::Parts(parts)
    };
    let mut world = world(node, rules);
    let need = match Walked::over(&world, flows, answers) {
        // Paths over the only back end with tables.
        Ok(walked) => {
            return Ok(Some(Walked {
                unread: Vec::new(),
                nft_is_other: false,
                ..walked
            }));
        }
        Err(need) => need,
    };
    let Some(Rules::Parts(parts)) = world.chains.pop().map(|chain| chain.rules) else {
        return Ok(None);
    };
    let listed = list(reader, nearby(&parts, need)).await;
    Box::pin(follow(reader, node, (flows, answers), parts, &listed)).await
}

async fn list(reader: &ChainReader, wanted: BTreeSet<Need>) -> Listed {
    let chains = wanted.iter();
    let chains = chains.map(|need| (need.table.clone(), need.chain.clone()));
    let listings = reader.read(chains.collect()).await;
    wanted.into_iter().zip(listings).collect()
}

/// Parses the chains that were listed.
fn parse(family: Family, listed: &Listed) -> Result<Parts<'_>, Gap> {
    let each = listed.iter().filter_map(|(need, listing)| match listing {
        Ok(Listing::Chain(text)) => {
            let chain = listing::chain(Item::iptables(family), text);
            Some(chain.map(|chain| (need.clone(), Some(chain))))
        }
        Ok(Listing::Missing) => Some(Ok((need.clone(), None))),
        Ok(Listing::Incompatible) | Err(_) => None,
    });
    each.collect()
}

fn world<'n, 'r>(node: &'n NodeSnapshot<'n>, rules: Rules<'r>) -> World<'n, 'r> {
    let store = IptablesBackend::InUse;
    World {
        node,
        chains: vec![Chains { store, rules }],
        lasting: false,
    }
}

/// Follows `flows` over all rules, of iptables and of nftables: only the iptables rules show which chains of nftables
/// iptables-nft wrote.
async fn whole(
    session: &Session,
    family: Family,
    (flows, answers): (&[Flow], &Answers<'_>),
) -> Result<Walked, Failure> {
    let of_node = needs().filter(|item| !item.is_of_cluster());
    let items: Vec<_> = of_node.chain(IPTABLES.iter().copied()).collect();
    let evidence = session.gather(&items).await?;
    let node = NodeSnapshot::new(&evidence);
    Walked::over(&World::whole(&node, family), flows, answers).map_err(unwalked)
}
