//! The walk over the running kernel's rules: each chain is read when it is first needed.

use std::collections::{BTreeMap, BTreeSet};

use super::{Walked, needs};
use crate::backend::iptables::listing;
use crate::backend::iptables::model::Target;
use crate::backend::iptables::names;
use crate::cmd::shared::failure::Failure;
use crate::cmd::shared::session::Session;
use crate::evidence::{Gap, IPTABLES, Item};
use crate::host::{ChainReader, Listing};
use crate::net::Family;
use crate::node::{IptablesBackend, NodeSnapshot};
use crate::trace::{self, Chains, Flow, Need, Outcome, Rules, World};

/// Follows `flows` over this node's rules.
pub(super) async fn walk<'n>(
    session: &Session,
    node: &'n NodeSnapshot<'n>,
    family: Family,
    flows: &[Flow],
) -> Result<Walked, Failure> {
    let Some(reader) = ChainReader::new(session.machine()?, family).await else {
        return whole(session, family, flows).await;
    };
    let mut saved: BTreeMap<Need, Option<String>> = BTreeMap::new();
    let mut wanted = trace::base_chains();
    loop {
        let chains = wanted
            .iter()
            .map(|need| (need.table.clone(), need.chain.clone()));
        let listings = reader.read(chains.collect()).await;
        for (need, listing) in wanted.into_iter().zip(listings) {
            let text = match listing {
                Ok(Listing::Chain(text)) => Some(text),
                Ok(Listing::Missing) => None,
                Ok(Listing::Incompatible) => return whole(session, family, flows).await,
                Err(gap) => {
                    let walks = super::walk(&world(node, Rules::Unknown(gap)), flows)?;
                    return Ok(walked(walks));
                }
            };
            saved.insert(need, text);
        }
        let parts = saved.iter().map(|(need, text)| {
            let text = text.as_deref();
            let chain = text.map(|text| listing::chain(Item::iptables(family), text));
            Ok((need.clone(), chain.transpose()?))
        });
        let parts = Rules::Parts(parts.collect::<Result<_, Gap>>()?);
        let world = world(node, parts);
        match flows.iter().map(|flow| world.walk(flow)).collect() {
            Ok(walks) => return Ok(walked(walks)),
            Err(need) => wanted = nearby(&world, &need),
        }
    }
}

/// Paths over the only back end with tables.
const fn walked(walks: Vec<Vec<Outcome>>) -> Walked {
    Walked {
        walks,
        unread: Vec::new(),
        nft_is_other: false,
    }
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
async fn whole(session: &Session, family: Family, flows: &[Flow]) -> Result<Walked, Failure> {
    let of_node = needs().filter(|item| !item.is_of_cluster());
    let items: Vec<_> = of_node.chain(IPTABLES.iter().copied()).collect();
    let evidence = session.gather(&items).await?;
    let node = NodeSnapshot::new(&evidence);
    Walked::over(&World::whole(&node, family), flows)
}

/// Returns `need` and the chains that are likely to be needed next: those that built-in chains jump to and, if `need` is an
/// endpoint, the other endpoints of its Service. Reading many chains at once takes hardly longer than reading one.
fn nearby(world: &World<'_, '_>, need: &Need) -> Vec<Need> {
    let mut wanted = BTreeSet::from([need.clone()]);
    let endpoint = need.chain.starts_with(names::SEP);
    for chains in &world.chains {
        let Rules::Parts(parts) = &chains.rules else {
            continue;
        };
        for (at, chain) in parts {
            let Some(chain) = chain else { continue };
            let leads = chain.rules.iter().filter_map(|rule| match &rule.target {
                // Targets of modules, which are no chains, have no dash.
                Some(Target::Jump(to) | Target::Goto(to)) if to.contains('-') => Some(to),
                _ => None,
            });
            let leads: Vec<_> = leads.collect();
            let beside = endpoint && leads.iter().any(|to| ***to == *need.chain);
            if chain.policy.is_none() && !beside {
                continue;
            }
            let more = leads.into_iter().map(|to| Need {
                table: at.table.clone(),
                chain: to.to_string(),
            });
            wanted.extend(more.filter(|need| !parts.contains_key(need)));
        }
    }
    wanted.into_iter().collect()
}
