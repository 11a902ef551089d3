//! Programs and maps of eBPF in `node/bpf.json`, recorded as JSON because the system call's answers are not readable.
//!
//! Words for types and attach types are those of bpftool.

mod calico;
mod cilium;
#[cfg(test)]
mod tests;

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use serde::{Deserialize, Serialize};

use super::Gap;
use crate::net::{Cidr, Family, Proto};

/// Number of characters that the kernel keeps of a name.
pub const KEPT: usize = 15;

/// Content of `node/bpf.json`.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Dump {
    /// Programs attached to control groups; programs of one hook are in the order in which they run.
    pub cgroups: Part<AtCgroup>,
    /// Programs attached to links without a qdisc (tcx, netkit); programs of one hook are in the order in which they
    /// run.
    pub links: Part<AtLink>,
    /// Every program that the kernel has loaded.
    pub programs: Part<Program>,
    /// Every map, and the entries of those with Services.
    pub maps: Part<Map>,
    /// Paths of the files in bpffs, which keep programs, maps and links loaded.
    pub pins: Part<String>,
}

/// Returns why parts of a recorded dump were not read; `None` if all were.
pub fn unread(text: &str) -> Option<String> {
    let dump: Dump = serde_json::from_str(text).ok()?;
    let parts = [
        dump.cgroups.get().err(),
        dump.links.get().err(),
        dump.programs.get().err(),
        dump.maps.get().err(),
        dump.pins.get().err(),
    ];
    let maps = dump.maps.get().unwrap_or_default();
    let contents = maps.iter().filter_map(|map| map.unread.clone());
    let mut reasons: Vec<String> = Vec::new();
    let gaps = parts.into_iter().flatten().chain(contents);
    for gap in gaps.filter(|gap| !gap.is_absence()) {
        let reason = gap.reason().map_or_else(|| gap.to_string(), str::to_owned);
        if !reasons.contains(&reason) {
            reasons.push(reason);
        }
    }
    (!reasons.is_empty()).then(|| reasons.join("; "))
}

/// A list, or the reason why it was not read.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(untagged)]
pub enum Part<T> {
    /// The list.
    Read(Vec<T>),
    /// It was not read.
    Unread {
        /// The reason.
        unread: Gap,
    },
}

impl<T> Part<T> {
    /// Returns the list, or the reason why it was not read.
    pub fn get(&self) -> Result<&[T], Gap> {
        match self {
            Self::Read(list) => Ok(list),
            Self::Unread { unread } => Err(unread.clone()),
        }
    }
}

impl<T> From<Result<Vec<T>, Gap>> for Part<T> {
    fn from(read: Result<Vec<T>, Gap>) -> Self {
        match read {
            Ok(list) => Self::Read(list),
            Err(unread) => Self::Unread { unread },
        }
    }
}

/// A program attached to a control group.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct AtCgroup {
    /// Path of the control group in its hierarchy; `/` contains all processes.
    pub cgroup: String,
    /// bpftool's word for the hook, such as `cgroup_inet4_connect`.
    pub attach_type: String,
    /// ID of the program.
    pub program: u32,
}

/// A program attached to a link.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct AtLink {
    /// Name of the link.
    pub dev: String,
    /// `tcx_ingress`, `tcx_egress`, `netkit_primary` or `netkit_peer`.
    pub attach_type: String,
    /// ID of the program.
    pub program: u32,
}

/// A loaded program.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Program {
    /// ID, which the kernel does not use again.
    pub id: u32,
    /// bpftool's word for its type, or its number.
    pub r#type: String,
    /// Name, of which the kernel keeps 15 characters.
    pub name: String,
    /// Hash of its instructions.
    pub tag: String,
    /// Time at which it was loaded, in seconds since the epoch; unset if unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub loaded_at: Option<u64>,
    /// User that loaded it.
    pub uid: u32,
    /// IDs of the maps that it uses itself, without the maps of the programs that it calls.
    pub maps: Vec<u32>,
}

/// A map.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Map {
    /// ID, which the kernel does not use again.
    pub id: u32,
    /// bpftool's word for its type, or its number.
    pub r#type: String,
    /// Name, of which the kernel keeps 15 characters.
    pub name: String,
    /// Size of a key in bytes.
    pub key_size: u32,
    /// Size of a value in bytes.
    pub value_size: u32,
    /// The most entries that it may have.
    pub max_entries: u32,
    /// Its entries, if it is one with Services.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub content: Option<Content>,
    /// Why its entries were not read, if they should have been.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unread: Option<Gap>,
}

/// The entries of a map with Services, in the order of their keys.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case", tag = "layout", content = "entries")]
pub enum Content {
    /// `cilium_lb4_services_v2` and `cilium_lb6_services_v2`.
    CiliumServices(Vec<CiliumService>),
    /// `cilium_lb4_backends_v3` and `cilium_lb6_backends_v3`.
    CiliumBackends(Vec<CiliumBackend>),
    /// `cilium_lb4_reverse_nat` and `cilium_lb6_reverse_nat`.
    CiliumReverseNat(Vec<CiliumReverseNat>),
    /// `cilium_lb4_affinity` and `cilium_lb6_affinity`.
    CiliumAffinity(Vec<CiliumAffinity>),
    /// `cilium_lb4_source_range` and `cilium_lb6_source_range`.
    CiliumSourceRanges(Vec<CiliumSourceRange>),
    /// `cali_v4_nat_fe` and `cali_v6_nat_fe`.
    CalicoFrontends(Vec<CalicoFrontend>),
    /// `cali_v4_nat_be` and `cali_v6_nat_be`.
    CalicoBackends(Vec<CalicoBackend>),
}

/// An entry of Cilium's service map: a front end (slot 0), or one of its backends.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct CiliumService {
    /// Address of the front end; unspecified for a NodePort on any address of the node.
    pub address: IpAddr,
    /// Port; 0 for an entry that catches all other ports of the address.
    pub port: u16,
    /// Protocol; 0 with port 0.
    pub protocol: Proto,
    /// Whether it is for clients inside the cluster alone.
    #[serde(default, skip_serializing_if = "is_false")]
    pub internal: bool,
    /// Number of the backend; 0 for the front end itself.
    pub slot: u16,
    /// Of a front end: algorithm (8 bits) and affinity timeout in seconds (24 bits), or the port of the L7 proxy. Of a backend: its
    /// ID.
    pub value: u32,
    /// Of a front end: number of its backends.
    pub count: u16,
    /// ID in the map of reverse translations.
    pub reverse_nat: u16,
    /// `SVC_FLAG_*`, the second byte of which is `flags2`.
    pub flags: u16,
    /// Of a front end: number of its backends that are quarantined.
    pub quarantined: u16,
}

/// A backend of Cilium.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct CiliumBackend {
    /// ID.
    pub id: u32,
    /// Address.
    pub address: IpAddr,
    /// Port.
    pub port: u16,
    /// Protocol.
    pub protocol: Proto,
    /// 0 for an active one, 1 for a terminating, 2 for a quarantined one, 3 for one in maintenance.
    pub state: u8,
}

/// A reverse translation of Cilium.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct CiliumReverseNat {
    /// ID.
    pub id: u16,
    /// Address of the front end.
    pub address: IpAddr,
    /// Port of the front end.
    pub port: u16,
}

/// A client that Cilium's session affinity binds to a backend.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct CiliumAffinity {
    /// Address of the client; unset for a network namespace of this node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub client: Option<IpAddr>,
    /// ID of the front end in the map of reverse translations.
    pub reverse_nat: u16,
    /// ID of the backend.
    pub backend: u32,
}

/// A range of sources for which Cilium checks the clients of a front end.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct CiliumSourceRange {
    /// ID of the front end in the map of reverse translations.
    pub reverse_nat: u16,
    /// The range.
    pub source: Cidr,
}

/// A front end of Calico.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct CalicoFrontend {
    /// Address; all bits set for a NodePort on an address of another node.
    pub address: IpAddr,
    /// Port.
    pub port: u16,
    /// Protocol.
    pub protocol: Proto,
    /// The sources that it is for; unset for all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<Cidr>,
    /// ID in the map of backends.
    pub id: u32,
    /// Number of its backends; `u32::MAX` drops the packets.
    pub count: u32,
    /// Number of its backends on this node, which come first.
    pub local: u32,
    /// Timeout of session affinity in seconds; 0 without it.
    pub affinity: u32,
    /// Bit 0: local backends for clients outside alone; bit 1: for those inside.
    pub flags: u32,
}

/// A backend of a front end of Calico.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct CalicoBackend {
    /// ID of the front end.
    pub id: u32,
    /// Number of the backend, from 0.
    pub ordinal: u32,
    /// Address.
    pub address: IpAddr,
    /// Port.
    pub port: u16,
}

/// Keys and values of a map.
pub type Pairs = Vec<(Vec<u8>, Vec<u8>)>;

/// A layout of a map: makes the content of its keys and values, if they have the right sizes.
pub type Layout = fn(&[(Vec<u8>, Vec<u8>)]) -> Option<Content>;

/// Returns the layout of a map with Services by its name, of which the kernel keeps 15 characters, and its sizes; `None` for any
/// other map.
pub fn layout(name: &str, key_size: u32, value_size: u32) -> Option<Layout> {
    cilium::layout(name, key_size, value_size)
        .or_else(|| calico::layout(name, key_size, value_size))
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes references")]
fn is_false(value: &bool) -> bool {
    !value
}

/// Reads the fields of a key or a value, in their order.
struct Fields<'b>(&'b [u8]);

impl Fields<'_> {
    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (head, rest) = self.0.split_first_chunk::<N>()?;
        self.0 = rest;
        Some(*head)
    }

    fn byte(&mut self) -> Option<u8> {
        self.take::<1>().map(|[byte]| byte)
    }

    /// Reads a number in network byte order.
    fn be16(&mut self) -> Option<u16> {
        self.take().map(u16::from_be_bytes)
    }

    /// Reads a number in the byte order of the machine.
    fn own16(&mut self) -> Option<u16> {
        self.take().map(u16::from_ne_bytes)
    }

    /// Reads a number in the byte order of the machine.
    fn own32(&mut self) -> Option<u32> {
        self.take().map(u32::from_ne_bytes)
    }

    fn address(&mut self, family: Family) -> Option<IpAddr> {
        Some(match family {
            Family::V4 => Ipv4Addr::from(self.take::<4>()?).into(),
            Family::V6 => Ipv6Addr::from(self.take::<16>()?).into(),
        })
    }
}

/// Makes an entry of each key and value.
fn each<T>(
    pairs: &[(Vec<u8>, Vec<u8>)],
    entry: impl Fn(&mut Fields<'_>, &mut Fields<'_>) -> Option<T>,
) -> Option<Vec<T>> {
    let all = pairs
        .iter()
        .map(|(key, value)| entry(&mut Fields(key), &mut Fields(value)));
    all.collect()
}

/// Returns a range of sources; `None` if it has more bits than an address.
fn range(address: IpAddr, prefix: u32) -> Option<Cidr> {
    let prefix = u8::try_from(prefix).ok()?;
    let fits = prefix <= Family::of(address).bits();
    fits.then_some(Cidr {
        addr: address,
        prefix,
    })
}
