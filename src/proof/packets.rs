//! The packets of a node, as they are treated and as they should be.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};

use super::difference::{Difference, Differences, Grouping, Harm, Target};
use super::{Fate, Space, Walks, classes};
use crate::backend::Mode;
use crate::backend::nftables::model::Table;
use crate::evidence::Gap;
use crate::net::Family;
use crate::node::{NodeSnapshot, conntrack};
use crate::owner::Owners;
use crate::trace::nftables::chain::AFFINITY;
use crate::trace::region::Coordinate as _;
use crate::trace::walk::Walker;
use crate::trace::{Assumed, Entry, Outcome, World};

/// The number of classes at which a comparison gives up; a cluster of 20,000 Services has 640,000.
const MOST: usize = 5_000_000;

/// The same for a comparison that a change waits for, which may take seconds.
const MOST_BEFORE_A_CHANGE: usize = 20_000;

/// The result of a comparison of all packets.
#[derive(Debug, Default)]
pub struct Packets {
    /// Packets whose fate differs, the largest harm first.
    pub differences: Vec<Proved>,
    /// Packets to Services that the rules of other software stop or send elsewhere, the largest harm first.
    pub foreign: Vec<Proved>,
    /// The number of classes into which the packets were divided.
    pub classes: usize,
}

/// A difference whose witness was traced again.
#[derive(Debug)]
pub struct Proved {
    /// The difference.
    pub difference: Difference,
    /// The outcomes of the witness on both sides.
    pub traces: [Vec<Outcome>; 2],
    /// Whether the trace confirms the fate on both sides; if not, that is a bug in kpx.
    pub confirmed: bool,
    /// The number of connections now whose first packet is one of these, if it was counted.
    pub uses: Option<usize>,
}

/// Compares the fate of every packet of `families` on `node` with the one that kube-proxy's rules in its mode give it, and
/// finds the packets to Services that other software stops.
///
/// # Errors
///
/// What has to be known for that, and is not.
pub fn of_node(node: &NodeSnapshot<'_>, mode: Mode, families: &[Family]) -> Result<Packets, Gap> {
    let owners = Owners::new(node);
    let (expected, alone) = (Assumed::new(node, mode)?, Assumed::alone(node, mode)?);
    let node = without_clients(node);
    let node = &node;
    if alone.has_rules_of(&expected) {
        let families = served(node, mode, families)?;
        return between(
            node,
            &expected.snapshot(),
            &owners,
            &families,
            Grouping::Service,
        );
    }
    let (expected, alone) = (expected.snapshot(), alone.snapshot());
    let mut packets = Packets::default();
    for family in served(node, mode, families)? {
        let worlds = (
            World::whole(node, family),
            World::whole(&expected, family),
            World::whole(&alone, family),
        );
        let walkers = (
            Walker::recording(&worlds.0, family),
            Walker::recording(&worlds.1, family),
            Walker::recording(&worlds.2, family),
        );
        let sides: [&dyn Walks; 3] = [&walkers.0, &walkers.1, &walkers.2];
        let mut differences = Differences::new(node, &owners, Grouping::Service);
        let mut foreign = Differences::new(node, &owners, Grouping::Service);
        classes(sides, &Space::of(node, family)?, MOST, |class| {
            differences.add(&class, 0, 1);
            foreign.add(&class, 1, 2);
        })?;
        packets.classes += differences.classes;
        packets.add(differences.finish(), &worlds.0, &worlds.1);
        let foreign = foreign.finish().into_iter().filter(ends_elsewhere);
        let foreign = foreign.map(|found| Proved::new(found, &worlds.1, &worlds.2));
        packets.foreign.extend(foreign);
    }
    packets.sort();
    Ok(packets)
}

/// Compares the fate of every packet of `families` on `node` with the one that it would have in `mode`: what is, is the other
/// mode, and what should be is now.
///
/// # Errors
///
/// What has to be known for that, and is not.
pub fn in_mode(node: &NodeSnapshot<'_>, mode: Mode, families: &[Family]) -> Result<Packets, Gap> {
    let owners = Owners::new(node);
    let then = Assumed::new(node, mode)?;
    let families = served(node, mode, families)?;
    let node = without_clients(node);
    let node = &node;
    let mut packets = between(&then.snapshot(), node, &owners, &families, Grouping::Kind)?;
    for proved in &mut packets.differences {
        proved.uses = uses(node, &proved.difference).ok();
    }
    Ok(packets)
}

/// Returns a packet to a Service that `tables` in the place of kube-proxy's rules would send elsewhere than `mode`, as text;
/// `None` if there is no such packet.
///
/// # Errors
///
/// What has to be known for that, and is not.
pub fn served_otherwise(
    node: &NodeSnapshot<'_>,
    tables: Vec<Table>,
    mode: Mode,
    families: &[Family],
) -> Result<Option<String>, Gap> {
    let owners = Owners::new(node);
    let (is, should) = (Assumed::served_by(node, tables)?, Assumed::new(node, mode)?);
    let families = served(node, mode, families)?;
    let packets = up_to(
        MOST_BEFORE_A_CHANGE,
        &is.snapshot(),
        &should.snapshot(),
        &owners,
        &families,
        Grouping::Service,
    )?;
    let found = packets.differences.iter().map(|of| &of.difference);
    let mut found = found.filter(|of| ends_elsewhere(of));
    Ok(found.next().map(|of| {
        let to = SocketAddr::new(of.witness.destination, of.witness.port);
        let [is, should] = &of.fates;
        format!("{} ({to}): {is}, instead of {should}", of.target)
    }))
}

/// Compares the fate of every packet of `families` at `is` with its fate at `should`, two states of a node.
///
/// # Errors
///
/// What has to be known about either, and is not.
pub fn between<'a, 'b>(
    is: &'a NodeSnapshot<'a>,
    should: &'b NodeSnapshot<'b>,
    owners: &Owners,
    families: &[Family],
    grouping: Grouping,
) -> Result<Packets, Gap> {
    up_to(MOST, is, should, owners, families, grouping)
}

fn up_to<'a, 'b>(
    most: usize,
    is: &'a NodeSnapshot<'a>,
    should: &'b NodeSnapshot<'b>,
    owners: &Owners,
    families: &[Family],
    grouping: Grouping,
) -> Result<Packets, Gap> {
    let mut packets = Packets::default();
    for &family in families {
        let worlds = (World::whole(is, family), World::whole(should, family));
        let walkers = (
            Walker::recording(&worlds.0, family),
            Walker::recording(&worlds.1, family),
        );
        let sides: [&dyn Walks; 2] = [&walkers.0, &walkers.1];
        let mut differences = Differences::new(should, owners, grouping);
        classes(sides, &Space::of(should, family)?, most, |class| {
            differences.add(&class, 0, 1);
        })?;
        packets.classes += differences.classes;
        packets.add(differences.finish(), &worlds.0, &worlds.1);
    }
    packets.sort();
    Ok(packets)
}

/// Returns the node as it is for clients that were not seen before: without those that session affinity remembers.
fn without_clients<'s, 'n: 's>(node: &NodeSnapshot<'n>) -> NodeSnapshot<'s> {
    let rules = node.nft().map(|rules| {
        let mut rules = rules.clone();
        let sets = rules.tables.iter_mut().flat_map(|table| &mut table.sets);
        for set in sets.filter(|set| set.name.starts_with(AFFINITY)) {
            set.elements.clear();
        }
        rules
    });
    let name = node.name().ok();
    NodeSnapshot::new(node.evidence())
        .with_nft(rules)
        .called(name.as_deref())
}

/// Returns those of `families` that kube-proxy serves in `mode`.
fn served(node: &NodeSnapshot<'_>, mode: Mode, families: &[Family]) -> Result<Vec<Family>, Gap> {
    let served = node
        .desired(mode)?
        .families
        .iter()
        .map(|state| state.family);
    Ok(served.filter(|family| families.contains(family)).collect())
}

/// Counts the tracked connections whose first packet is one of those that differ.
fn uses(node: &NodeSnapshot<'_>, difference: &Difference) -> Result<usize, Gap> {
    let own: BTreeSet<IpAddr> = node
        .addresses()?
        .all
        .iter()
        .map(|at| at.addr.addr)
        .collect();
    let is_one = |entry: &conntrack::Entry| {
        let (from, to) = (entry.original.source.ip(), entry.original.destination);
        let local = own.contains(&from) || from.is_loopback();
        let mut regions = difference.regions.iter();
        regions.any(|(place, family, region)| {
            let source = if *place == Entry::Host {
                0
            } else {
                from.number()
            };
            local == (*place == Entry::Host)
                && Family::of(from) == *family
                && region.contains([
                    to.ip().number(),
                    entry.proto.number().into(),
                    to.port().into(),
                    source,
                ])
        })
    };
    Ok(node
        .conntrack()?
        .entries
        .iter()
        .filter(|entry| is_one(entry))
        .count())
}

impl Packets {
    fn add(&mut self, found: Vec<Difference>, is: &World<'_, '_>, should: &World<'_, '_>) {
        let found = found.into_iter();
        let proved = found.map(|found| Proved::new(found, is, should));
        self.differences.extend(proved);
    }

    fn sort(&mut self) {
        let order = |of: &Proved| (of.difference.harm, of.difference.target.clone());
        self.differences.sort_by_key(order);
        self.foreign.sort_by_key(order);
    }
}

/// Returns whether packets to a Service are stopped, let through or sent elsewhere. Those to loopback addresses depend on a
/// sysctl more than on rules.
fn ends_elsewhere(found: &Difference) -> bool {
    matches!(found.target, Target::Service(..) | Target::NodePort(_))
        && matches!(found.harm, Harm::Lost | Harm::Misled | Harm::Open)
}

impl Proved {
    fn new(difference: Difference, is: &World<'_, '_>, should: &World<'_, '_>) -> Self {
        let flow = &difference.witness;
        let traces = [is.walk(flow), should.walk(flow)].map(Result::unwrap_or_default);
        let same = |(fate, trace): (&Fate, &Vec<Outcome>)| *fate == Fate::of(trace);
        let confirmed = difference.fates.iter().zip(&traces).all(same);
        Self {
            difference,
            traces,
            confirmed,
            uses: None,
        }
    }
}
