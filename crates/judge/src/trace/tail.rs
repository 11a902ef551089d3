//! The rest of the way of packets that all later rules treat alike.
//!
//! Once translated, packets differ in their endpoint, which most later rules ignore: the questions of a walk about the destination
//! show for which other endpoints its ends are the same.

use std::net::IpAddr;
use std::rc::Rc;

use super::Stop;
use super::branch::{Branch, Phase};
use super::hop::{Outcome, Path};
use super::packet::Packet;
use super::region::{Coordinate as _, Field, Ranges, Region, Seen};
use super::walk::Walker;

/// The ends of packets that differ in their destination address alone.
#[derive(Debug)]
pub(super) struct Tail {
    phase: Phase,
    /// The packet that was followed, or another one with the same ends.
    packet: Packet,
    /// The destination of the one that was followed.
    to: (IpAddr, u16),
    /// The destinations of packets with the same ends.
    destinations: Ranges,
    ends: Vec<Outcome>,
}

impl Walker<'_, '_, '_> {
    /// Follows `branch` from `phase`, unless `tails` has the ends of a packet that is treated alike.
    pub(super) fn share(
        &self,
        branch: &Branch,
        phase: Phase,
        tails: &mut Vec<Tail>,
        outcomes: &mut Vec<Outcome>,
    ) -> Result<(), Stop> {
        let to = branch.packet.target();
        let is_of = |tail: &mut Tail| {
            tail.phase == phase
                && tail.destinations.has(to.0)
                && tail.packet.is_like(&branch.packet)
        };
        let known = tails.iter_mut().position(is_of);
        if known.is_none() {
            tails.push(self.tail(&branch.packet, phase)?);
        }
        let tail = &tails[known.unwrap_or(tails.len() - 1)];
        outcomes.extend(tail.ends.iter().map(|end| {
            let is_kept = end.destination == tail.to;
            Outcome {
                probability: branch.weight * end.probability,
                destination: if is_kept { to } else { end.destination },
                when: branch.when.iter().chain(&end.when).cloned().collect(),
                ..end.clone()
            }
        }));
        Ok(())
    }

    fn tail(&self, packet: &Packet, phase: Phase) -> Result<Tail, Stop> {
        let seen = Rc::new(Seen::new(Region::whole()));
        let mut followed = packet.clone();
        followed.alike = Some(Rc::clone(&seen));
        let branch = Branch {
            packet: Box::new(followed),
            weight: 1.0,
            when: Vec::new(),
            path: Path::new(false),
        };
        let mut ends = Vec::new();
        self.go_on(vec![Some((branch, phase))], None, &mut ends)?;
        let to = packet.target();
        let destinations = if ends.iter().all(|end| end.destination == to) {
            seen.region().of(Field::Destination).clone()
        } else {
            Ranges::between(to.0.number(), to.0.number())
        };
        Ok(Tail {
            phase,
            packet: packet.clone(),
            to,
            destinations,
            ends,
        })
    }
}
