//! The place where a packet enters the node.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::rc::Rc;

use super::branch::{Branch, Phase};
use super::hop::{Hook, Outcome, Path};
use super::packet::{Entry, Flow, Link, Packet};
use super::region::Asked;
use super::route::{Decision, Lookup};
use super::walk::{Follows, Walker};
use kpx_node::net::Family;

impl Walker<'_, '_, '_> {
    /// Puts the packet where it enters.
    pub(super) fn start(
        &self,
        flow: &Flow,
        source_port: Option<u16>,
        follows: Follows,
        outcomes: &mut Vec<Outcome>,
    ) -> Option<(Branch, Phase)> {
        let path = Path::new(matches!(follows, Follows::Hops));
        let mut packet = Box::new(Packet::of(flow));
        packet.source_port = source_port;
        if let Follows::Questions(seen) = follows {
            packet.seen = Some(seen);
        }
        if flow.entry != Entry::Host {
            packet.input = match &flow.carried.input {
                Some(link) => Link::Named(Rc::from(&**link)),
                None => self.input_of(flow.entry, packet.source()),
            };
        }
        let mut branch = Branch {
            packet,
            weight: 1.0,
            when: Vec::new(),
            path,
        };
        if flow.entry != Entry::Host {
            return Some((branch, Phase::Hook(Hook::Prerouting)));
        }
        let packet = &branch.packet;
        let source = packet.source();
        let decision = self.router.decide(Lookup {
            source: flow.source.map(|_| source),
            ..Lookup::of(packet, None)
        });
        if flow.source.is_none() {
            let chosen = match &decision {
                // For a packet to its own address, the kernel uses that address as the source.
                Decision::Local { source } => {
                    Some(source.unwrap_or_else(|| packet.destination().exact()))
                }
                Decision::Out {
                    source: Some(source),
                    ..
                } => Some(*source),
                Decision::Out {
                    device, gateway, ..
                } => self
                    .router
                    .masquerade(self.family, device.as_deref(), *gateway),
                Decision::Nowhere(_) | Decision::Unknown(_) => None,
            };
            let chosen = chosen.unwrap_or(source.shown());
            branch.packet.choose_source(chosen);
        }
        self.route_into(branch, Hook::Output, decision, outcomes)
    }

    /// Returns the link a packet from `source` comes in by.
    fn input_of(&self, entry: Entry, source: Asked<'_, IpAddr>) -> Link {
        let decision = |destination| self.router.decide(Lookup::to(destination));
        let found = match (entry, decision(source)) {
            // An outside client next to the node answers through its own route; a far one through the default route.
            (Entry::Outside, found)
                if !matches!(
                    found,
                    Decision::Out {
                        device: Some(_),
                        ..
                    }
                ) =>
            {
                let far = match self.family {
                    Family::V4 => IpAddr::V4(Ipv4Addr::new(192, 0, 2, 254)),
                    Family::V6 => {
                        IpAddr::V6(Ipv6Addr::new(0x2001, 0xdb8, 0xffff, 0, 0, 0, 0, 0xfe))
                    }
                };
                decision(Asked::new(far, None))
            }
            (_, found) => found,
        };
        let device = match &found {
            Decision::Out {
                device: Some(device),
                ..
            } => Some(device),
            _ => None,
        };
        if entry == Entry::Pod {
            let devices: Vec<&str> = device.iter().map(|device| &***device).collect();
            if let Some(home) = self.router.home(source, &devices) {
                return Link::Named(home.into());
            }
        }
        match device {
            Some(device) => Link::Named(Rc::clone(device)),
            None => Link::Unknown,
        }
    }
}
