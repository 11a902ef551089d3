//! Where a packet enters the node.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::hop::{Hook, Outcome, Path};
use super::packet::{Entry, Flow, Link, Packet};
use super::route::{Decision, Lookup};
use super::walk::{Branch, Phase, Walker};
use crate::net::Family;

impl Walker<'_, '_, '_> {
    /// Puts the packet where it enters.
    pub(super) fn start(
        &self,
        flow: &Flow,
        outcomes: &mut Vec<Outcome>,
    ) -> Option<(Branch, Phase)> {
        let mut packet = Packet::of(flow);
        if flow.entry != Entry::Host {
            packet.input = self.input_of(flow.entry, packet.source);
            let branch = Branch {
                packet,
                weight: 1.0,
                when: Vec::new(),
                path: Path::default(),
            };
            return Some((branch, Phase::Hook(Hook::Prerouting)));
        }
        let mut branch = Branch {
            packet,
            weight: 1.0,
            when: Vec::new(),
            path: Path::default(),
        };
        let decision = self.router.decide(Lookup {
            destination: flow.destination,
            source: flow.source,
            mark: 0,
            input: None,
        });
        if flow.source.is_none() {
            branch.packet.source = match &decision {
                // The kernel talks to its own addresses from the address itself.
                Decision::Local { source } => source.unwrap_or(flow.destination),
                Decision::Out {
                    source: Some(source),
                    ..
                } => *source,
                Decision::Out {
                    device, gateway, ..
                } => self
                    .router
                    .masquerade(self.family, device.as_deref(), *gateway)
                    .unwrap_or(branch.packet.source),
                Decision::Nowhere(_) | Decision::Unknown(_) => branch.packet.source,
            };
            branch.packet.original_source = branch.packet.source;
        }
        self.route_into(branch, Hook::Output, decision, outcomes)
    }

    /// Returns the link a packet from `source` comes in by.
    fn input_of(&self, entry: Entry, source: IpAddr) -> Link {
        let toward = match entry {
            Entry::Outside => match self.family {
                Family::V4 => IpAddr::V4(Ipv4Addr::new(192, 0, 2, 254)),
                Family::V6 => IpAddr::V6(Ipv6Addr::new(0x2001, 0xdb8, 0xffff, 0, 0, 0, 0, 0xfe)),
            },
            Entry::Pod | Entry::Host => source,
        };
        let decision = |destination| {
            self.router.decide(Lookup {
                destination,
                source: None,
                mark: 0,
                input: None,
            })
        };
        // An outside client next to the node answers through its own route; a far one through the default route.
        let found = match entry {
            Entry::Outside => match decision(source) {
                found @ Decision::Out {
                    device: Some(_), ..
                } => found,
                _ => decision(toward),
            },
            Entry::Pod | Entry::Host => decision(toward),
        };
        match found {
            Decision::Out {
                device: Some(device),
                ..
            } => Link::Named(device),
            _ => Link::Unknown,
        }
    }
}
