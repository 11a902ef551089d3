//! Reads tracked connections over netlink, in the format of `conntrack -L`.
//!
//! A busy node has hundreds of thousands of connections. Each answer of the kernel is converted to lines immediately,
//! and only the text is kept.

mod entry;

use std::sync::Arc;

use netlink_sys::protocols::NETLINK_NETFILTER;

use super::Options;
use super::context::Context;
use super::modules;
use super::netlink::stream;
use kpx_node::evidence::{Gap, Item, Tracked};
use kpx_node::net::Family;

/// `NFNL_SUBSYS_CTNETLINK` and `IPCTNL_MSG_CT_GET` of `linux/netfilter/nfnetlink*.h`.
const GET: u16 = 1 << 8 | 1;

/// `NLM_F_REQUEST | NLM_F_DUMP`.
const DUMP: u16 = 0x301;

/// `AF_UNSPEC`: the connections of every family.
const UNSPECIFIED: u8 = 0;

/// Size of the netlink and nfnetlink headers.
const HEADERS: usize = 16 + 4;

/// Reads the tracked connections of the selected families, IPv4 first.
pub(super) async fn read(item: Item, context: &Arc<Context>) -> Result<String, Gap> {
    each(item, context, |text: &mut String, attributes| {
        entry::write(attributes, text)
    })
    .await
    .map(|texts| texts.concat())
}

/// Passes each tracked TCP, UDP and SCTP connection of this node to `take`; returns its result for each family.
pub async fn connections<T: Default + Send + 'static>(
    options: &Options,
    take: fn(&mut T, &Tracked),
) -> Result<Vec<T>, Gap> {
    let context = Context::new(options);
    each(Item::Conntrack, &context, move |all, attributes| {
        entry::tracked(attributes, |one| take(all, one))
    })
    .await
}

/// Passes the attributes of each tracked connection to `take`, which returns `None` if it cannot read them.
async fn each<T: Default + Send + 'static>(
    item: Item,
    context: &Arc<Context>,
    take: impl Fn(&mut T, &[u8]) -> Option<()> + Send + 'static,
) -> Result<Vec<T>, Gap> {
    if !context.path("proc/sys/net/netfilter").exists()
        || modules::would_load(context, "nf_conntrack_netlink")
    {
        return Err(Gap::NotApplicable(
            "there is no list of tracked connections: nf_conntrack or nf_conntrack_netlink is not loaded".to_owned(),
        ));
    }
    let families = context.options.families.clone();
    let list = async move |_: Arc<Context>| list(item, &families, take);
    context.inside(item, list).await
}

/// Returns the result of `take` on the tracked connections of each of `families`. Blocks.
///
/// The kernel searches its table of all network namespaces for each list, so there is one for both families.
fn list<T: Default>(
    item: Item,
    families: &[Family],
    take: impl Fn(&mut T, &[u8]) -> Option<()>,
) -> Result<Vec<T>, Gap> {
    let wanted: Vec<u8> = families.iter().map(|family| number(*family)).collect();
    let asked = match wanted[..] {
        [family] => family,
        _ => UNSPECIFIED,
    };
    let asks = |sequence| request(asked, sequence);
    let mut found = stream(item, NETLINK_NETFILTER, asks, |all: &mut Vec<T>, bytes| {
        all.resize_with(wanted.len(), T::default);
        let family = bytes.get(HEADERS - 4);
        let Some(at) = wanted.iter().position(|number| Some(number) == family) else {
            return Ok(());
        };
        let attributes = bytes.get(HEADERS..).unwrap_or_default();
        take(&mut all[at], attributes).ok_or_else(|| {
            let why = "cannot decode a tracked connection in a netlink answer";
            Gap::Failed(item, why.to_owned())
        })
    })?;
    found.resize_with(wanted.len(), T::default);
    Ok(found)
}

/// Returns `AF_INET` or `AF_INET6`.
const fn number(family: Family) -> u8 {
    match family {
        Family::V4 => 2,
        Family::V6 => 10,
    }
}

/// Returns the request for all tracked connections of `family`: `struct nlmsghdr`, then `struct nfgenmsg`.
fn request(family: u8, sequence: u32) -> Vec<u8> {
    let length: u32 = 20;
    let mut bytes = Vec::with_capacity(HEADERS);
    bytes.extend(length.to_ne_bytes());
    bytes.extend(GET.to_ne_bytes());
    bytes.extend(DUMP.to_ne_bytes());
    bytes.extend(sequence.to_ne_bytes());
    bytes.extend([0; 4]);
    bytes.extend([family, 0, 0, 0]);
    bytes
}

/// Decodes any messages, for the fuzzer; `None` if they are not known.
#[cfg(fuzzing)]
pub fn fuzz(bytes: &[u8]) -> Option<String> {
    let mut text = String::new();
    for (_, message) in super::netlink::messages(bytes) {
        let attributes = message.get(HEADERS..)?;
        entry::tracked(attributes, |_| ());
        entry::write(attributes, &mut text)?;
    }
    Some(text)
}
