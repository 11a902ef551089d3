//! Checked access to the attributes and C structures of netlink and x_tables.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::net::Family;

/// Why something cannot be decoded.
pub(super) type Odd = String;

/// `NLA_TYPE_MASK`.
const TYPE: u16 = 0x3fff;

/// Length of the header of an attribute.
const HEADER: usize = 4;

/// Attributes of a netlink message: type and value.
#[derive(Clone, Debug)]
pub(super) struct Attributes<'a>(pub(super) &'a [u8]);

impl<'a> Iterator for Attributes<'a> {
    type Item = Result<(u16, &'a [u8]), Odd>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.0.is_empty() {
            return None;
        }
        let rest = std::mem::take(&mut self.0);
        let header = rest.first_chunk::<HEADER>();
        let Some([l0, l1, t0, t1]) = header.copied() else {
            return Some(Err("an attribute is cut off".to_owned()));
        };
        let length = usize::from(u16::from_ne_bytes([l0, l1]));
        let Some(value) = rest.get(HEADER..length) else {
            return Some(Err("an attribute has a wrong length".to_owned()));
        };
        self.0 = rest
            .get(length.next_multiple_of(HEADER)..)
            .unwrap_or_default();
        Some(Ok((u16::from_ne_bytes([t0, t1]) & TYPE, value)))
    }
}

/// Reads a number of a netlink attribute.
pub(super) fn be32(value: &[u8]) -> Result<u32, Odd> {
    let bytes = value.try_into().map_err(|_| "a number has a wrong size")?;
    Ok(u32::from_be_bytes(bytes))
}

/// Reads a long number of a netlink attribute.
pub(super) fn be64(value: &[u8]) -> Result<u64, Odd> {
    let bytes = value.try_into().map_err(|_| "a number has a wrong size")?;
    Ok(u64::from_be_bytes(bytes))
}

/// Reads text up to its first NUL.
pub(super) fn text(value: &[u8]) -> Result<&str, Odd> {
    let end = value.iter().position(|byte| *byte == 0);
    let value = value.get(..end.unwrap_or(value.len())).unwrap_or_default();
    std::str::from_utf8(value).map_err(|_| "a name is not UTF-8".to_owned())
}

/// A C structure of x_tables, read by offset. Numbers are in the machine's byte order unless a method says otherwise.
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

    pub(super) fn text(self, at: usize, length: usize) -> Result<&'a str, Odd> {
        text(self.bytes(at, length)?)
    }
}
