//! All possible first packets on a node.

use std::collections::BTreeSet;
use std::net::IpAddr;

use crate::trace::Entry;
use crate::trace::region::{Coordinate as _, Field, Ranges, Region};
use crate::trace::sources::Pods;
use kpx_node::evidence::Gap;
use kpx_node::net::{Cidr, Family, Proto};
use kpx_node::node::NodeSnapshot;
use kpx_node::owner::Owners;

/// The first packets of one family.
#[derive(Clone, Debug)]
pub struct Space {
    /// The family.
    pub family: Family,
    /// The packets that enter at each place, in parts.
    pub(super) parts: Vec<(Entry, Region)>,
}

impl Space {
    /// Returns the packets of `family` that pods of `node` send, the node itself, and clients outside: TCP, UDP, SCTP and echo
    /// requests to every unicast address, without a mark or with one that rules look for although no rule sets it.
    ///
    /// Pods have the addresses of the node's pod prefixes, or else those that the API names; the host has the address that the
    /// node chooses; clients outside have all others.
    ///
    /// # Errors
    ///
    /// The node's addresses are not known.
    pub fn of(node: &NodeSnapshot<'_>, owners: &Owners, family: Family) -> Result<Self, Gap> {
        let prefix = |addr: IpAddr, prefix| Cidr { addr, prefix };
        let never = match family {
            Family::V4 => [
                prefix(IpAddr::from([0, 0, 0, 0]), 8),
                prefix(IpAddr::from([224, 0, 0, 0]), 3),
            ],
            Family::V6 => [
                prefix(IpAddr::from([0; 8]), 128),
                prefix(IpAddr::from([0xff00, 0, 0, 0, 0, 0, 0, 0]), 8),
            ],
        };
        let loopback = family.loopback();
        let all = match family {
            Family::V4 => Ranges::between(0, u32::MAX.into()),
            Family::V6 => Ranges::between(0, u128::MAX),
        };
        let without = |from: &Ranges, nets: &[Cidr]| {
            let mut rest = from.clone();
            for net in nets {
                rest.subtract(&Ranges::prefix(*net));
            }
            rest
        };
        let unicast = without(&all, &never);
        let addresses = node.addresses()?.all.iter().map(|at| at.addr.addr);
        let own: Vec<Cidr> = addresses
            .filter(|addr| Family::of(*addr) == family)
            .map(Cidr::host)
            .collect();
        let slices = node.slices().map_or(&[][..], Vec::as_slice);
        // No client has a broadcast address.
        let routes = node.routes().into_iter().flat_map(|routes| &routes.all);
        let broadcast: Vec<Cidr> = routes
            .filter(|route| route.kind == "broadcast")
            .map(|route| route.destination)
            .filter(|addr| addr.family() == family)
            .collect();
        let pods = without(&Pods::of(node, slices).here(family), &own);
        let pods = without(&pods, &broadcast);
        let mut outside = without(&without(&unicast, &own), &[loopback]);
        outside = without(&outside, &broadcast);
        outside.subtract(&pods);
        let protos = [Proto::Tcp, Proto::Udp, Proto::Sctp, family.echo()].map(Proto::number);
        let protos = Ranges::of(protos.map(|n| (n.into(), n.into())).to_vec());
        let marks = super::marks::entering(node, family);
        let marks = marks.into_iter().map(|mark| (mark.into(), mark.into()));
        let marks = Ranges::of(marks.collect());
        let region = |destination: Ranges, source: Ranges| {
            let ports = Ranges::between(0, u16::MAX.into());
            Region::new([destination, protos.clone(), ports, source, marks.clone()])
        };
        let entries = [
            (Entry::Pod, region(without(&unicast, &[loopback]), pods)),
            (Entry::Host, region(unicast.clone(), Ranges::between(0, 0))),
            (Entry::Outside, region(unicast, outside)),
        ];
        let services = parts(owners, family);
        let parts = entries.iter().flat_map(|(entry, region)| {
            services.iter().map(|(first, last)| {
                let mut part = region.clone();
                part.of_mut(Field::Destination).keep(*first, *last);
                (*entry, part)
            })
        });
        Ok(Self {
            family,
            parts: parts.collect(),
        })
    }
}

impl Space {
    /// Returns those of the packets that enter at one of `entries` and are sent to one of `destinations`.
    #[must_use]
    pub(crate) fn only(mut self, entries: &[Entry], destinations: &Ranges) -> Self {
        self.parts.retain_mut(|(entry, region)| {
            region.of_mut(Field::Destination).intersect(destinations);
            entries.contains(entry)
        });
        self
    }
}

/// The number of addresses of Services in one part of the packets.
const OF_A_PART: usize = 256;

/// Divides all addresses of `family` into ranges with about as many addresses of Services each.
fn parts(owners: &Owners, family: Family) -> Vec<(u128, u128)> {
    let addresses = owners.ports().iter().flat_map(|port| &port.addresses);
    let addresses: BTreeSet<u128> = addresses
        .filter(|(_, addr)| Family::of(*addr) == family)
        .map(|(_, addr)| addr.number())
        .collect();
    let mut first = 0;
    let mut parts = Vec::new();
    for &end in addresses.iter().skip(OF_A_PART).step_by(OF_A_PART) {
        parts.push((first, end - 1));
        first = end;
    }
    parts.push((first, u128::MAX));
    parts
}
