//! Checked access to the C structures of `x_tables`.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::linux::netlink::text;
use crate::linux::nf_tables::wire::Odd;
use kpx_node::net::Family;

/// A C structure of `x_tables`, read by offset. Numbers are in the machine's byte order unless a method says otherwise.
#[derive(Clone, Copy, Debug)]
pub(super) struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    /// Returns the structure in `info` of `size` bytes, which the kernel pads to a multiple of eight.
    pub(super) fn new(info: &'a [u8], size: usize) -> Result<Self, Odd> {
        let padded = size.next_multiple_of(8);
        if info.len() != padded {
            return Err(format!("has {} bytes instead of {padded}", info.len()));
        }
        Ok(Self(info))
    }

    /// Returns `length` bytes at `at`.
    pub(super) fn bytes(self, at: usize, length: usize) -> Result<&'a [u8], Odd> {
        let bytes = self.0.get(at..).and_then(|rest| rest.get(..length));
        bytes.ok_or_else(|| "is too short".to_owned())
    }

    fn array<const N: usize>(self, at: usize) -> Result<[u8; N], Odd> {
        let chunk = self.0.get(at..).and_then(|rest| rest.first_chunk());
        chunk.copied().ok_or_else(|| "is too short".to_owned())
    }

    pub(super) fn u8(self, at: usize) -> Result<u8, Odd> {
        self.array::<1>(at).map(|[byte]| byte)
    }

    pub(super) fn u16(self, at: usize) -> Result<u16, Odd> {
        self.array(at).map(u16::from_ne_bytes)
    }

    pub(super) fn u32(self, at: usize) -> Result<u32, Odd> {
        self.array(at).map(u32::from_ne_bytes)
    }

    pub(super) fn u64(self, at: usize) -> Result<u64, Odd> {
        self.array(at).map(u64::from_ne_bytes)
    }

    /// Reads a number in network byte order.
    pub(super) fn be16(self, at: usize) -> Result<u16, Odd> {
        self.array(at).map(u16::from_be_bytes)
    }

    /// Reads a `union nf_inet_addr`.
    pub(super) fn address(self, at: usize, family: Family) -> Result<IpAddr, Odd> {
        Ok(match family {
            Family::V4 => Ipv4Addr::from(self.array::<4>(at)?).into(),
            Family::V6 => Ipv6Addr::from(self.array::<16>(at)?).into(),
        })
    }

    /// Reads text up to its first zero byte.
    pub(super) fn text(self, at: usize, length: usize) -> Result<&'a str, Odd> {
        let bytes = self.bytes(at, length)?;
        let end = bytes.iter().position(|byte| *byte == 0);
        text(&bytes[..end.unwrap_or(length)])
    }
}
