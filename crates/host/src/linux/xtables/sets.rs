//! Names of IP sets: rules contain their indexes.

use std::collections::HashMap;

use crate::linux::netlink::{self, append, attributes, text};
use crate::linux::nf_tables::wire::Odd;
use kpx_node::evidence::{Gap, Item};

/// `NFNL_SUBSYS_IPSET` and `IPSET_CMD_LIST`.
const LIST: u16 = 6 << 8 | 7;

/// Version of the protocol since which the kernel returns indexes (Linux 4.20).
const PROTOCOL: u8 = 7;

/// `IPSET_ATTR_*`.
mod attribute {
    pub(super) const PROTOCOL: u16 = 1;
    pub(super) const NAME: u16 = 2;
    pub(super) const FLAGS: u16 = 6;
    pub(super) const INDEX: u16 = 11;
    /// `NLA_F_NET_BYTEORDER`.
    pub(super) const BIG_ENDIAN: u16 = 1 << 14;
}

/// `IPSET_FLAG_LIST_HEADER`: sets without their entries.
const HEADERS_ONLY: u32 = 1 << 2;

/// Names of sets by index, read when first needed.
#[derive(Debug)]
pub(super) struct Sets {
    item: Item,
    names: Option<Result<HashMap<u16, String>, Gap>>,
}

impl Sets {
    pub(super) const fn new(item: Item) -> Self {
        Self { item, names: None }
    }

    /// Returns the name of set `index`. Blocks.
    pub(super) fn name(&mut self, index: u16) -> Result<&str, Odd> {
        let item = self.item;
        let names = self.names.get_or_insert_with(|| list(item));
        let names = names.as_ref().map_err(ToString::to_string)?;
        let name = names.get(&index).map(String::as_str);
        name.ok_or_else(|| format!("names unknown set {index}"))
    }
}

#[cfg(fuzzing)]
impl Sets {
    /// The names of some sets, without asking the kernel.
    pub(super) fn some() -> Self {
        let names = (0..4).map(|index| (index, format!("KUBE-SET-{index}")));
        Self {
            item: Item::Iptables4,
            names: Some(Ok(names.collect())),
        }
    }
}

fn list(item: Item) -> Result<HashMap<u16, String>, Gap> {
    let mut body = Vec::new();
    append(&mut body, attribute::PROTOCOL, &[PROTOCOL]);
    append(
        &mut body,
        attribute::FLAGS | attribute::BIG_ENDIAN,
        &HEADERS_ONLY.to_be_bytes(),
    );
    netlink::list(item, LIST, 0, &body, |names: &mut HashMap<_, _>, _, set| {
        let (index, name) = header(set)?;
        names.insert(index, name);
        Ok(())
    })
}

fn header(set: &[u8]) -> Result<(u16, String), Odd> {
    let (mut index, mut name) = (None, None);
    for attribute in attributes(set) {
        let (kind, value) = attribute?;
        match kind {
            attribute::NAME => name = Some(text(value)?.to_owned()),
            attribute::INDEX => {
                let bytes = value.try_into().map_err(|_| "an index has a wrong size")?;
                index = Some(u16::from_be_bytes(bytes));
            }
            _ => {}
        }
    }
    Ok((index.ok_or("no index")?, name.ok_or("no name")?))
}
