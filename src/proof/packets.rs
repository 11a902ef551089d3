//! The packets of a node, as they are treated and as they should be.

use super::difference::{Difference, Differences};
use super::{Fate, Space, Walks, classes};
use crate::evidence::Gap;
use crate::net::Family;
use crate::node::NodeSnapshot;
use crate::owner::Owners;
use crate::trace::walk::Walker;
use crate::trace::{Outcome, World};

/// The result of a comparison of all packets.
#[derive(Debug, Default)]
pub struct Packets {
    /// Packets whose fate differs, the largest harm first, each with the outcomes of its witness on both sides.
    pub differences: Vec<Proved>,
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
}

/// Compares the fate of every packet of `families` at `is` with its fate at `should`, two states of one node.
///
/// # Errors
///
/// What has to be known about either, and is not.
pub fn compare<'a, 'b>(
    is: &'a NodeSnapshot<'a>,
    should: &'b NodeSnapshot<'b>,
    owners: &Owners,
    families: &[Family],
) -> Result<Packets, Gap> {
    let mut packets = Packets::default();
    for &family in families {
        let worlds = (World::whole(is, family), World::whole(should, family));
        let walkers = (
            Walker::recording(&worlds.0, family),
            Walker::recording(&worlds.1, family),
        );
        let space = Space::of(is, family)?;
        let mut differences = Differences::new(is, owners);
        let sides: [&dyn Walks; 2] = [&walkers.0, &walkers.1];
        classes(sides, &space, |class| differences.add(&class, 0, 1))?;
        packets.classes += differences.classes;
        for difference in differences.finish() {
            let flow = &difference.witness;
            let traces = [worlds.0.walk(flow), worlds.1.walk(flow)].map(Result::unwrap_or_default);
            let same = |(fate, trace): (&Fate, &Vec<Outcome>)| *fate == Fate::of(trace);
            let confirmed = difference.fates.iter().zip(&traces).all(same);
            packets.differences.push(Proved {
                difference,
                traces,
                confirmed,
            });
        }
    }
    packets
        .differences
        .sort_by_key(|of| (of.difference.harm, of.difference.target.clone()));
    Ok(packets)
}
