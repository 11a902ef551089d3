//! A separate network for a probe: a network namespace with one link, whose other end is on the node.
//!
//! Its address belongs neither to the node nor to a pod, so the node treats it as a client outside the cluster. It has no process:
//! the kernel deletes it, with the link, when its last socket is closed, however kpx ends.

use std::fs::File;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::AsRawFd as _;
use std::process;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use netlink_packet_route::address::AddressHeaderFlags;
use netlink_packet_route::link::{InfoData, InfoVeth};
use netlink_packet_route::route::RouteScope;
use nix::sched::{CloneFlags, unshare};
use rtnetlink::{Error, Handle, LinkUnspec, LinkVeth, RouteMessageBuilder};

use super::super::context::Context;
use super::link::{self, connected, index, io_error, refused};
use kpx_node::action::LinkCommand;
use kpx_node::apply::StepError;
use kpx_node::net::Family;

/// The name of the link inside.
const INSIDE: &str = "probe";

/// The link-layer addresses of its two ends, set statically: with strict ARP, some requests would get no answer.
const ON_NODE: [u8; 6] = [0x02, 0x6b, 0x70, 0x78, 0, 1];
const OWN: [u8; 6] = [0x02, 0x6b, 0x70, 0x78, 0, 2];

/// The number of networks that this process made.
static COUNT: AtomicU8 = AtomicU8::new(0);

/// A network, before and after it is made.
#[derive(Clone, Debug)]
pub(in crate::linux) struct Outside {
    /// The name of the node's end of the link.
    link: String,
    number: u8,
}

impl Outside {
    pub(in crate::linux) fn new() -> Self {
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        Self {
            // Interface names have up to 15 characters.
            link: format!("kpx{:x}p{number}", process::id()),
            number,
        }
    }

    /// Returns its address and its gateway: addresses for documentation (RFC 5737, RFC 3849), and of the link alone.
    fn addresses(&self, family: Family) -> (IpAddr, IpAddr) {
        match family {
            Family::V4 => (
                Ipv4Addr::new(198, 51, 100, self.number).into(),
                Ipv4Addr::new(169, 254, 1, 1).into(),
            ),
            Family::V6 => (
                Ipv6Addr::new(0x2001, 0xdb8, 0x6b70, 0x78, 0, 0, 0, self.number.into()).into(),
                Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 1).into(),
            ),
        }
    }

    /// Makes it beside the network namespace of the calling thread, and moves the thread into it.
    pub(in crate::linux) async fn enter(&self, family: Family) -> Result<(), StepError> {
        let (addr, gateway) = self.addresses(family);
        connected(async |node: Handle| {
            unshare(CloneFlags::CLONE_NEWNET)
                .map_err(|e| refused("cannot make a network namespace", &e.into()))?;
            let namespace = File::open("/proc/thread-self/ns/net")
                .map_err(|e| refused("cannot open the new network namespace", &e))?;
            connected(async |own: Handle| {
                self.join(&node, &namespace).await?;
                let end = found(&node, &self.link).await?;
                let inside = found(&own, INSIDE).await?;
                arrive(&own, inside, addr, gateway).await.map_err(done)?;
                lead(&node, end, addr).await.map_err(done)
            })
            .await
        })
        .await
    }

    /// Adds the link between the node and `namespace`.
    async fn join(&self, node: &Handle, namespace: &File) -> Result<(), StepError> {
        let inside = LinkUnspec::new_with_name(INSIDE)
            .address(OWN.to_vec())
            .setns_by_fd(namespace.as_raw_fd())
            .build();
        let pair = LinkVeth::new(&self.link, INSIDE)
            .set_info_data(InfoData::Veth(InfoVeth::Peer(inside)))
            .address(ON_NODE.to_vec())
            .build();
        node.link().add(pair).execute().await.map_err(done)
    }

    /// Removes it from the node.
    pub(in crate::linux) async fn remove(&self, context: &Arc<Context>) -> Result<(), StepError> {
        let name = self.link.clone();
        let work = async move |_| link::change(&[LinkCommand::Delete { name }]).await;
        context.change(work).await
    }
}

/// Sets up the end of the link inside.
async fn arrive(own: &Handle, link: u32, addr: IpAddr, gateway: IpAddr) -> Result<(), Error> {
    up(own, link).await?;
    let bits = Family::of(addr).bits();
    let mut adding = own.address().add(link, addr, bits);
    // No other machine on the link can have it.
    adding.message_mut().header.flags |= AddressHeaderFlags::Nodad;
    adding.execute().await?;
    meet(own, link, gateway, &ON_NODE).await?;
    let route = match gateway {
        IpAddr::V4(gateway) => RouteMessageBuilder::<Ipv4Addr>::new()
            .output_interface(link)
            .gateway(gateway)
            .onlink()
            .build(),
        IpAddr::V6(gateway) => RouteMessageBuilder::<Ipv6Addr>::new()
            .output_interface(link)
            .gateway(gateway)
            .onlink()
            .build(),
    };
    own.route().add(route).execute().await
}

/// Sets up the node's end of the link, and routes packets for `addr` there.
async fn lead(node: &Handle, link: u32, addr: IpAddr) -> Result<(), Error> {
    up(node, link).await?;
    meet(node, link, addr, &OWN).await?;
    let bits = Family::of(addr).bits();
    let route = match addr {
        IpAddr::V4(addr) => RouteMessageBuilder::<Ipv4Addr>::new()
            .output_interface(link)
            .destination_prefix(addr, bits)
            .scope(RouteScope::Link)
            .build(),
        IpAddr::V6(addr) => RouteMessageBuilder::<Ipv6Addr>::new()
            .output_interface(link)
            .destination_prefix(addr, bits)
            .build(),
    };
    node.route().add(route).execute().await
}

async fn up(handle: &Handle, link: u32) -> Result<(), Error> {
    let up = LinkUnspec::new_with_index(link).up().build();
    handle.link().set(up).execute().await
}

/// Adds a permanent neighbour.
async fn meet(handle: &Handle, link: u32, addr: IpAddr, at: &[u8]) -> Result<(), Error> {
    let adding = handle.neighbours().add(link, addr);
    adding.link_layer_address(at).execute().await
}

async fn found(handle: &Handle, name: &str) -> Result<u32, StepError> {
    let gone = || StepError::Absent(format!("link {name} does not exist"));
    index(handle, name).await?.ok_or_else(gone)
}

#[expect(clippy::needless_pass_by_value, reason = "for `map_err`")]
fn done(error: Error) -> StepError {
    refused("cannot connect a network for the probe", &io_error(&error))
}
