//! All packets of a node: their actual and their expected fate.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};

use super::difference::{Difference, Differences, Grouping, Harm, Target};
use super::{Fate, Space, Way, classes};
use crate::diff;
use crate::trace::nftables::chain::AFFINITY;
use kpx_node::backend::Mode;
use kpx_node::backend::chain_owner::{self, Maker};
use kpx_node::backend::iptables::model::{Policy, Ruleset, Target as Jumps};
use kpx_node::backend::nftables::model::Table;
use kpx_node::evidence::Gap;
use kpx_node::net::Family;
use kpx_node::node::{IptablesBackend, NodeSnapshot, conntrack};
use kpx_node::owner::Owners;

use crate::trace::{Assumed, Assumption, Carried, Flow, Outcome, Question, Verdict, World};

/// The number of classes at which a comparison gives up; a cluster of 20,000 Services has 640,000.
const MOST: usize = 5_000_000;

/// The same for a comparison that a change waits for, which may take seconds.
const MOST_BEFORE_A_CHANGE: usize = 20_000;

/// The result of a comparison of all packets.
#[derive(Debug, Default)]
pub struct Packets {
    /// Packets whose fate differs, the largest harm first.
    pub differences: Vec<Proved>,
    /// Packets to Services that the rules of other software stop, send elsewhere or change, the largest harm first.
    pub foreign: Vec<Proved>,
    /// The number of classes into which the packets were divided.
    pub classes: usize,
    /// Whether the ranges of Services are unknown, so that addresses in them that no Service has count as any other.
    pub without_ranges: bool,
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

/// Compares the fate of every packet of `families` on `node` with its fate by kube-proxy's desired rules in its mode. Also
/// finds the packets to Services that other software stops, or may stop.
///
/// # Errors
///
/// The missing data that this needs.
pub fn of_node(node: &NodeSnapshot<'_>, mode: Mode, families: &[Family]) -> Result<Packets, Gap> {
    let owners = Owners::new(node);
    let (expected, alone) = (Assumed::new(node, mode)?, Assumed::alone(node, mode)?);
    let node = without_clients(node);
    let families = served(&node, mode, families)?;
    let comparison = Comparison::new(&owners, &families, Grouping::Service);
    if alone.has_rules_of(&expected) {
        drop(alone);
        return comparison.between(&node, &expected.snapshot());
    }
    let sides = [&node, &expected.snapshot(), &alone.snapshot()];
    let ([differences, mut foreign], classes) = comparison.of(sides, [(0, 1), (1, 2)])?;
    foreign.retain(|proved| {
        of_service(&proved.difference)
            && (may_end_elsewhere(&proved.difference) || changes(&proved.difference))
    });
    Ok(Packets {
        differences,
        foreign,
        classes,
        without_ranges: false,
    })
}

/// Compares the fate of every packet of `families` on `node` with the one that it would have in `mode`: the actual side is
/// the other mode, the expected side is now.
///
/// # Errors
///
/// The missing data that this needs.
pub fn in_mode(node: &NodeSnapshot<'_>, mode: Mode, families: &[Family]) -> Result<Packets, Gap> {
    let owners = Owners::new(node);
    let then = Assumed::new(node, mode)?;
    let families = served(node, mode, families)?;
    let (then, now) = (then.snapshot(), without_clients(node));
    let comparison = Comparison::new(&owners, &families, Grouping::Kind);
    let mut packets = comparison.between(&then, &now)?;
    packets.without_ranges = mode == Mode::Nftables && diff::service_cidrs(node).is_empty();
    for proved in &mut packets.differences {
        proved.uses = uses(node, &proved.difference).ok();
    }
    Ok(packets)
}

/// Returns the same as [`in_mode`], or nothing if only kube-proxy and the kubelet have rules, whose KUBE-FIREWALL stops only packets
/// to addresses of the loopback link.
///
/// # Errors
///
/// The missing data that this needs.
pub fn beside_others(
    node: &NodeSnapshot<'_>,
    mode: Mode,
    families: &[Family],
) -> Result<Packets, Gap> {
    if has_rules_of_others(&Assumed::new(node, mode)?.snapshot()) {
        in_mode(node, mode, families)
    } else {
        Ok(Packets::default())
    }
}

/// Returns whether software other than kube-proxy and the kubelet has rules, or a policy that does not accept. Rules that were not
/// read may be such.
fn has_rules_of_others(node: &NodeSnapshot<'_>) -> bool {
    let is_kubernetes = |maker| matches!(maker, Maker::KubeProxy | Maker::Both | Maker::Kubelet);
    let has_own = |rules: &Ruleset<'_>| {
        let chains = rules.tables.iter().flat_map(|table| {
            let chains = table.chains.iter();
            chains.map(move |chain| (table.name.as_ref(), chain))
        });
        let mut chains = chains.filter(|(table, chain)| {
            !is_kubernetes(chain_owner::maker_of_chain(table, &chain.name))
        });
        chains.any(|(table, chain)| {
            let mut rules = chain.rules.iter();
            chain.policy == Some(Policy::Drop)
                || rules.any(|rule| match &rule.target {
                    Some(Jumps::Jump(to) | Jumps::Goto(to)) => {
                        !is_kubernetes(chain_owner::maker_of_chain(table, to))
                    }
                    _ => true,
                })
        })
    };
    let stores = [
        IptablesBackend::InUse,
        IptablesBackend::Legacy,
        IptablesBackend::Nft,
    ];
    let mut all = Family::BOTH
        .into_iter()
        .flat_map(|family| stores.map(|store| node.iptables(store, family)));
    let is_read = Family::BOTH
        .iter()
        .any(|family| node.iptables(IptablesBackend::InUse, *family).is_ok());
    let has_tables = node.nft().is_ok_and(|rules| {
        rules.tables.iter().any(|table| {
            let is_known = is_read && table.is_of_iptables()
                || is_kubernetes(chain_owner::maker_of_table(&table.name));
            !is_known && table.chains.iter().any(|chain| !chain.rules.is_empty())
        })
    });
    // The back end that is not in use has rules only rarely, and older bundles do not have it.
    let is_unread = |gap: &Gap| !matches!(gap, Gap::NotApplicable(_));
    let in_use = |family: &Family| node.iptables(IptablesBackend::InUse, *family);
    has_tables
        || node.nft().as_ref().is_err_and(is_unread)
        || Family::BOTH
            .iter()
            .any(|family| in_use(family).as_ref().is_err_and(is_unread))
        || all.any(|rules| rules.is_ok_and(has_own))
}

/// Returns a packet to a Service that `tables` in the place of kube-proxy's rules would send elsewhere than `mode`, as text;
/// `None` if there is no such packet.
///
/// # Errors
///
/// The missing data that this needs.
pub fn served_otherwise(
    node: &NodeSnapshot<'_>,
    tables: Vec<Table>,
    mode: Mode,
    families: &[Family],
) -> Result<Option<String>, Gap> {
    let owners = Owners::new(node);
    let (is, should) = (Assumed::served_by(node, tables)?, Assumed::new(node, mode)?);
    let families = served(node, mode, families)?;
    let comparison = Comparison {
        most: MOST_BEFORE_A_CHANGE,
        ..Comparison::new(&owners, &families, Grouping::Service)
    };
    let packets = comparison.between(&is.snapshot(), &should.snapshot())?;
    let found = packets
        .differences
        .iter()
        .map(|difference| &difference.difference);
    let mut found = found.filter(|difference| ends_elsewhere(difference));
    Ok(found.next().map(|difference| {
        let to = SocketAddr::new(difference.witness.destination, difference.witness.port);
        let [is, should] = &difference.fates;
        format!("{} ({to}): {is}, instead of {should}", difference.target)
    }))
}

/// How states of a node are compared.
#[derive(Clone, Copy, Debug)]
pub struct Comparison<'o> {
    owners: &'o Owners,
    families: &'o [Family],
    grouping: Grouping,
    most: usize,
}

impl<'o> Comparison<'o> {
    /// Returns a comparison of the packets of `families`, whose Services `owners` knows.
    pub const fn new(owners: &'o Owners, families: &'o [Family], grouping: Grouping) -> Self {
        Self {
            owners,
            families,
            grouping,
            most: MOST,
        }
    }

    /// Compares the fate of every packet at `is` with its fate at `should`, two states of a node.
    ///
    /// # Errors
    ///
    /// Missing data about either node.
    pub fn between<'n>(
        &self,
        is: &'n NodeSnapshot<'n>,
        should: &'n NodeSnapshot<'n>,
    ) -> Result<Packets, Gap> {
        let ([differences], classes) = self.of([is, should], [(0, 1)])?;
        Ok(Packets {
            differences,
            foreign: Vec::new(),
            classes,
            without_ranges: false,
        })
    }

    /// Returns for each of `pairs` of `sides` (actual, expected) the packets whose fates differ, and the number of classes.
    fn of<'n, const N: usize, const P: usize>(
        &self,
        sides: [&'n NodeSnapshot<'n>; N],
        pairs: [(usize, usize); P],
    ) -> Result<([Vec<Proved>; P], usize), Gap> {
        let mut proved = [const { Vec::new() }; P];
        let mut count = 0;
        for &family in self.families {
            let worlds = sides.map(|node| World {
                lasting: true,
                ..World::whole(node, family)
            });
            let gather = || {
                (
                    pairs.map(|_| Differences::new(sides[1], self.owners, self.grouping)),
                    0,
                )
            };
            let space = Space::of(sides[1], self.owners, family)?;
            let parts = classes(
                worlds.each_ref(),
                &space,
                self.most,
                gather,
                |(found, count), class| {
                    *count += 1;
                    for (found, (is, should)) in found.iter_mut().zip(pairs) {
                        found.add(&class, is, should);
                    }
                },
            )?;
            let mut all = gather();
            for (found, classes) in parts {
                all.1 += classes;
                for (all, found) in all.0.iter_mut().zip(found) {
                    all.join(found);
                }
            }
            count += all.1;
            for ((proved, found), (is, should)) in proved.iter_mut().zip(all.0).zip(pairs) {
                let found = found.finish().into_iter();
                proved.extend(found.map(|found| Proved::new(found, &worlds[is], &worlds[should])));
            }
        }
        for found in &mut proved {
            found.sort_by_key(|proved| (proved.difference.harm, proved.difference.target.clone()));
        }
        Ok((proved, count))
    }
}

/// Returns the node as new clients see it: without the clients that session affinity remembers.
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
            Family::of(from) == *family
                && region.contains(&Flow {
                    entry: *place,
                    source: (!local).then_some(from),
                    destination: to.ip(),
                    port: to.port(),
                    mark: 0,
                    carried: Carried::default(),
                    proto: entry.proto,
                    established: false,
                })
        })
    };
    Ok(node
        .conntrack()?
        .entries
        .iter()
        .filter(|entry| is_one(entry))
        .count())
}

/// Returns whether packets to a Service are stopped, let through or sent elsewhere. Those to loopback addresses depend on a
/// sysctl more than on rules.
fn ends_elsewhere(found: &Difference) -> bool {
    of_service(found) && found.harm != Harm::Unsure && may_end_elsewhere(found)
}

fn of_service(found: &Difference) -> bool {
    matches!(found.target, Target::Service(..) | Target::NodePort(_))
}

/// Returns whether packets are, or may be, stopped, let through or sent elsewhere. Whether they come in by the link of their
/// return route is no condition of a node that is set up well.
fn may_end_elsewhere(found: &Difference) -> bool {
    let ways = found.fates.iter().flat_map(|fate| &fate.ways);
    let open = |way: &Way| {
        let is_route_back = |assumption: &Assumption| {
            let Assumption::Answer { question, .. } = assumption else {
                return false;
            };
            matches!(question, Question::RouteBack { .. })
        };
        way.verdict == Verdict::Unknown || !way.when.iter().all(is_route_back)
    };
    match found.harm {
        Harm::Lost | Harm::Misled | Harm::Open => true,
        Harm::Unsure => ways.into_iter().any(open),
        Harm::Rerouted | Harm::Source | Harm::Affinity | Harm::Uneven | Harm::Ends => false,
    }
}

/// Returns whether packets reach the same backends with another source, by another way or with another affinity.
const fn changes(found: &Difference) -> bool {
    matches!(found.harm, Harm::Rerouted | Harm::Source | Harm::Affinity)
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
