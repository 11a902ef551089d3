//! Targets of `x_tables`, by name and revision, in the spelling of `iptables-save`.

use std::net::IpAddr;

use super::bytes::Fields;
use super::words::{only, quoted};
use crate::linux::nf_tables::wire::{Odd, address, put};
use kpx_node::net::Family;

/// `NF_NAT_RANGE_*`.
const MAP_IPS: u32 = 1;
const PORTS: u32 = 1 << 1;
const RANDOM: u32 = 1 << 2;
const PERSISTENT: u32 = 1 << 3;
const RANDOM_FULLY: u32 = 1 << 4;
const OFFSET: u32 = 1 << 5;

/// Addresses and ports to translate to.
#[derive(Debug)]
struct Range {
    flags: u32,
    addresses: (IpAddr, IpAddr),
    ports: (u16, u16),
    base: u16,
}

/// Appends ` -j NAME` and the options of the target `name`, whose structure is `info`.
pub(super) fn write(
    to: &mut String,
    family: Family,
    name: &str,
    revision: u32,
    info: &[u8],
) -> Result<(), Odd> {
    if name != "CT" {
        put!(to, " -j {name}");
    }
    let mut written = || match (name, revision) {
        ("DNAT", 0..=2) => {
            let range = range(family, revision, info)?;
            only(
                range.flags,
                MAP_IPS | PORTS | RANDOM | PERSISTENT | RANDOM_FULLY | OFFSET,
            )?;
            to.push_str(" --to-destination ");
            range.write(to);
            modes(to, range.flags, &[RANDOM, PERSISTENT])
        }
        ("SNAT", 0..=2) => {
            let range = range(family, revision, info)?;
            to.push_str(" --to-source ");
            range.write(to);
            modes(to, range.flags, &[RANDOM, RANDOM_FULLY, PERSISTENT])
        }
        ("MASQUERADE", 0) => {
            let range = range(family, revision, info)?;
            range.to_ports(to)?;
            modes(to, range.flags, &[RANDOM, RANDOM_FULLY])
        }
        ("REDIRECT", 0) => {
            let range = range(family, revision, info)?;
            range.to_ports(to)?;
            modes(to, range.flags & !MAP_IPS, &[RANDOM])
        }
        ("MARK", 2) => {
            let info = Fields::new(info, 8)?;
            put!(to, " --set-xmark 0x{:x}/0x{:x}", info.u32(0)?, info.u32(4)?);
            Ok(())
        }
        ("CONNMARK", 1) => connmark(to, Fields::new(info, 13)?, 12),
        ("CONNMARK", 2) => {
            let info = Fields::new(info, 16)?;
            if info.u8(13)? != 0 {
                return Err("shifts bits".to_owned());
            }
            connmark(to, info, 14)
        }
        ("REJECT", 0) => {
            let with = Fields::new(info, 4)?.u32(0)?;
            let name = rejection(family, with).ok_or_else(|| format!("rejects with {with}"))?;
            put!(to, " --reject-with {name}");
            Ok(())
        }
        ("CT", 1 | 2) => notrack(to, info),
        ("TPROXY", 1) => {
            let info = Fields::new(info, 28)?;
            put!(to, " --on-port {} --on-ip ", info.be16(24)?);
            address(to, info.address(8, family)?);
            let (mask, value) = (info.u32(0)?, info.u32(4)?);
            put!(to, " --tproxy-mark 0x{value:x}/0x{mask:x}");
            Ok(())
        }
        ("LOG", 0) => log(to, Fields::new(info, 32)?),
        ("TCPMSS", 0) => {
            match Fields::new(info, 2)?.u16(0)? {
                u16::MAX => to.push_str(" --clamp-mss-to-pmtu"),
                size => put!(to, " --set-mss {size}"),
            }
            Ok(())
        }
        _ => Err("is unknown".to_owned()),
    };
    written().map_err(|why| format!("target {name} revision {revision} {why}"))
}

/// Reads `nf_nat_ipv4_multi_range_compat`, `nf_nat_range` or `nf_nat_range2`.
fn range(family: Family, revision: u32, info: &[u8]) -> Result<Range, Odd> {
    if (family, revision) == (Family::V4, 0) {
        let info = Fields::new(info, 20)?;
        if info.u32(0)? != 1 {
            return Err("has more than one range".to_owned());
        }
        return Ok(Range {
            flags: info.u32(4)?,
            addresses: (info.address(8, family)?, info.address(12, family)?),
            ports: (info.be16(16)?, info.be16(18)?),
            base: 0,
        });
    }
    let is_second = revision == 2;
    let info = Fields::new(info, if is_second { 44 } else { 40 })?;
    Ok(Range {
        flags: info.u32(0)?,
        addresses: (info.address(4, family)?, info.address(20, family)?),
        ports: (info.be16(36)?, info.be16(38)?),
        base: if is_second { info.be16(40)? } else { 0 },
    })
}

impl Range {
    fn write(&self, to: &mut String) {
        let has_ports = self.flags & PORTS != 0;
        if self.flags & MAP_IPS != 0 {
            let (first, last) = self.addresses;
            let brackets = has_ports && first.is_ipv6();
            if brackets {
                to.push('[');
            }
            address(to, first);
            if last != first {
                to.push('-');
                address(to, last);
            }
            if brackets {
                to.push(']');
            }
        }
        if has_ports {
            to.push(':');
            self.write_ports(to);
            if self.flags & OFFSET != 0 {
                put!(to, "/{}", self.base);
            }
        }
    }

    fn write_ports(&self, to: &mut String) {
        let (first, last) = self.ports;
        super::words::range(to, first, last, '-');
    }

    /// Appends ` --to-ports` for a target without addresses.
    fn to_ports(&self, to: &mut String) -> Result<(), Odd> {
        only(self.flags, PORTS | RANDOM | RANDOM_FULLY | MAP_IPS)?;
        if self.flags & PORTS != 0 {
            to.push_str(" --to-ports ");
            self.write_ports(to);
        }
        Ok(())
    }
}

/// Appends the options of `flags` in the order of `known`.
fn modes(to: &mut String, flags: u32, known: &[u32]) -> Result<(), Odd> {
    let mut left = flags & !(MAP_IPS | PORTS | OFFSET);
    for bit in known.iter().filter(|bit| flags & **bit != 0) {
        left &= !bit;
        to.push_str(match *bit {
            RANDOM => " --random",
            RANDOM_FULLY => " --random-fully",
            _ => " --persistent",
        });
    }
    only(left, 0)
}

/// `struct xt_connmark_tginfo1`, and the second revision, which has the mode in another place.
fn connmark(to: &mut String, info: Fields<'_>, mode: usize) -> Result<(), Odd> {
    let (mark, connection, packet) = (info.u32(0)?, info.u32(4)?, info.u32(8)?);
    match info.u8(mode)? {
        0 => put!(to, " --set-xmark 0x{mark:x}/0x{connection:x}"),
        1 => put!(
            to,
            " --save-mark --nfmask 0x{packet:x} --ctmask 0x{connection:x}"
        ),
        2 => put!(
            to,
            " --restore-mark --nfmask 0x{packet:x} --ctmask 0x{connection:x}"
        ),
        other => return Err(format!("has mode {other}")),
    }
    Ok(())
}

fn rejection(family: Family, with: u32) -> Option<&'static str> {
    let names: &[&str] = match family {
        Family::V4 => &[
            "icmp-net-unreachable",
            "icmp-host-unreachable",
            "icmp-proto-unreachable",
            "icmp-port-unreachable",
            "",
            "icmp-net-prohibited",
            "icmp-host-prohibited",
            "tcp-reset",
            "icmp-admin-prohibited",
        ],
        Family::V6 => &[
            "icmp6-no-route",
            "icmp6-adm-prohibited",
            "",
            "icmp6-addr-unreachable",
            "icmp6-port-unreachable",
            "",
            "tcp-reset",
            "icmp6-policy-fail",
            "icmp6-reject-route",
        ],
    };
    let name = names.get(usize::try_from(with).ok()?)?;
    (!name.is_empty()).then_some(*name)
}

/// `struct xt_ct_target_info_v1`: only `--notrack`.
fn notrack(to: &mut String, info: &[u8]) -> Result<(), Odd> {
    let info = Fields::new(info, 72)?;
    if info.bytes(2, 62)?.iter().any(|byte| *byte != 0) {
        return Err("has more than --notrack".to_owned());
    }
    // Bit 1 is for the name of the target.
    match info.u16(0)? {
        1 => to.push_str(" -j CT --notrack"),
        3 => to.push_str(" -j NOTRACK"),
        other => return Err(format!("has flags {other:#x}")),
    }
    Ok(())
}

fn log(to: &mut String, info: Fields<'_>) -> Result<(), Odd> {
    let (level, flags) = (info.u8(0)?, info.u8(1)?);
    let prefix = info.text(2, 30)?;
    if !prefix.is_empty() {
        to.push_str(" --log-prefix");
        quoted(to, prefix);
    }
    if level != 4 {
        put!(to, " --log-level {level}");
    }
    only(flags.into(), 0x2f)?;
    let options = [
        (1, "--log-tcp-sequence"),
        (2, "--log-tcp-options"),
        (4, "--log-ip-options"),
        (8, "--log-uid"),
        (0x20, "--log-macdecode"),
    ];
    for (_, option) in options.iter().filter(|(bit, _)| flags & bit != 0) {
        put!(to, " {option}");
    }
    Ok(())
}
