//! The rules and objects of each mode in the kernel.

use crate::check::{Facts, Proof};
use kpx_node::backend::Mode;
use kpx_node::backend::ipvs::model::DUMMY;
use kpx_node::evidence::{Gap, Item};
use kpx_node::net::Family;
use kpx_node::node::IptablesBackend;
use kpx_node::node::objects::{Found, Object};
use kpx_node::words::number_of;

/// The items that [`Facts::observed`] reads.
pub const OBSERVED: &[Item] = &[Item::Iptables4, Item::Iptables6, Item::Nft, Item::NftText];

/// The items that [`Facts::written`] reads in addition to [`OBSERVED`].
pub(in crate::check) const FAMILIES: &[Item] = &[
    Item::Services,
    Item::Nodes,
    Item::Addresses,
    Item::ProxyConfig,
];

/// The items that [`Facts::leftovers`] reads.
pub const LEFTOVERS: &[Item] = &[
    Item::Iptables4,
    Item::Iptables6,
    Item::Nft,
    Item::NftText,
    Item::Ipset,
    Item::Ipvs,
    Item::IpvsSave,
    Item::Addresses,
    Item::Links,
    Item::Services,
    Item::Modules,
];

impl Facts<'_> {
    /// Returns the mode whose rules the kernel has for `family`; `None` if it has none.
    ///
    /// If rules of several modes lead packets to Services, the result is the current mode if it is one of them.
    pub fn observed(&self, family: Family) -> Result<Option<Mode>, Gap> {
        let serving = self.node.serving(family)?;
        let current = self.current().ok().filter(|mode| serving.contains(mode));
        Ok(current.or(serving.first().copied()))
    }

    /// Returns an error if the kernel has no rules of `mode` for an IP family that Services or pods use: a check of these
    /// rules has nothing to judge.
    pub fn written(&self, mode: Mode) -> Result<(), Gap> {
        for family in self.families()? {
            self.written_for(mode, family)?;
        }
        Ok(())
    }

    /// Returns an error if the kernel has no rules of `mode` for `family`.
    pub fn written_for(&self, mode: Mode, family: Family) -> Result<(), Gap> {
        let observed = self.observed(family);
        if observed == Ok(Some(mode)) {
            return Ok(());
        }
        let (item, own) = match mode {
            Mode::Nftables => (Item::Nft, self.node.nft().map(|_| ())),
            Mode::Iptables | Mode::Ipvs | Mode::Userspace => {
                let rules = self.node.iptables(IptablesBackend::InUse, family);
                (Item::iptables(family), rules.map(|_| ()))
            }
        };
        // Rules of other modes are elsewhere.
        if own.is_err() {
            observed?;
        }
        let why = format!("the kernel has no {family} rules of mode {mode}: see KP01");
        Err(Gap::Absent(item, why))
    }

    /// Returns the leftovers of the mode `of` on a node in another mode.
    pub fn leftovers(&self, of: Mode) -> Result<Vec<Proof>, Gap> {
        let found = self.node.objects_of(of)?;
        if found.is_empty() && of == Mode::Ipvs && !self.node.has_no_ip_sets() {
            self.node.ipset_or_none()?;
        }
        let is_address = |found: &&Found<'_>| matches!(found.object, Object::Address(_));
        let addresses = found.iter().filter(is_address).count();
        let proofs = found.iter().map(|leftover| proof(*leftover, addresses));
        Ok(proofs.collect())
    }
}

fn proof(of: Found<'_>, addresses: usize) -> Proof {
    let family = of.family.unwrap_or(Family::V4);
    let object = |what, name| Proof::Object { what, name };
    match of.object {
        Object::Chain {
            table,
            chain,
            rules,
        } => Proof::Chain {
            family,
            table: table.to_owned(),
            chain: chain.to_owned(),
            rules,
        },
        Object::Jump { table, chain, to } => Proof::Rule {
            family,
            table: table.to_owned(),
            rule: format!("{chain} -j {to}"),
        },
        Object::Set { name, .. } => object("ipset", name.to_owned()),
        Object::Server { proto, at } => object("virtual-server", format!("{proto} {at}")),
        Object::Address(address) => Proof::Address {
            link: DUMMY.to_owned(),
            address,
        },
        Object::Link => Proof::Link {
            link: DUMMY.to_owned(),
            state: number_of(addresses, "address"),
        },
        Object::Table { family, .. } => object("nft-table", format!("{family} kube-proxy")),
    }
}
