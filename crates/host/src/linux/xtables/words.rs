//! Words of a rule in the spelling of `iptables-save`.

use std::net::IpAddr;

use crate::linux::nf_tables::wire::{Odd, address, put};

/// Unit of the rate of the match `limit`, per second (`XT_LIMIT_SCALE`).
pub(super) const SCALE: u64 = 10_000;

/// Returns ` !` for an inverted match.
pub(super) fn not(inverted: bool) -> &'static str {
    if inverted { " !" } else { "" }
}

/// Returns the name `value`, if a rule that contains it is read as it was written: iptables does not quote names.
pub(super) fn name(value: &str) -> Result<&str, Odd> {
    let is_plain = |c: char| !c.is_whitespace() && !matches!(c, '"' | '\'' | '\\');
    if value.is_empty() || value.starts_with(['-', '!']) || !value.chars().all(is_plain) {
        return Err(format!("{value:?} is no name"));
    }
    Ok(value)
}

/// Ends the line that begins at `from`.
pub(super) fn end_line(to: &mut String, from: usize) -> Result<(), Odd> {
    if to[from..].bytes().any(|byte| byte.is_ascii_control()) {
        return Err("a rule contains a control character".to_owned());
    }
    to.push('\n');
    Ok(())
}

/// Appends a space and `value`, quoted if needed (`xtables_save_string`).
pub(super) fn quoted(to: &mut String, value: &str) {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-');
    to.push(' ');
    if !value.is_empty() && value.bytes().all(is_plain) {
        to.push_str(value);
        return;
    }
    to.push('"');
    for c in value.chars() {
        if matches!(c, '"' | '\\' | '\'') {
            to.push('\\');
        }
        to.push(c);
    }
    to.push('"');
}

/// Appends `/` and a mask: its length, or the mask itself if its bits have gaps.
pub(super) fn mask(to: &mut String, mask: IpAddr) {
    to.push('/');
    let (bits, width) = match mask {
        IpAddr::V4(mask) => (u128::from(mask.to_bits()) << 96, 32),
        IpAddr::V6(mask) => (mask.to_bits(), 128),
    };
    let length = bits.leading_ones();
    if bits.count_ones() == length && length <= width {
        put!(to, "{length}");
    } else {
        address(to, mask);
    }
}

/// Appends the `names` of set bits, separated by commas; other bits are an error.
pub(super) fn bits(to: &mut String, set: u16, names: &[(u16, &str)]) -> Result<(), Odd> {
    let mut left = set;
    let mut separator = "";
    for (bit, name) in names.iter().filter(|(bit, _)| set & bit != 0) {
        left &= !bit;
        put!(to, "{separator}{name}");
        separator = ",";
    }
    if left != 0 {
        return Err(format!("has unknown bits {left:#x}"));
    }
    Ok(())
}

/// Appends `FIRST` or `FIRST:LAST`.
pub(super) fn range(to: &mut String, first: u16, last: u16, separator: char) {
    if first == last {
        put!(to, "{first}");
    } else {
        put!(to, "{first}{separator}{last}");
    }
}

/// Returns an error if `flags` has bits other than `known`.
pub(super) fn only(flags: u32, known: u32) -> Result<(), Odd> {
    match flags & !known {
        0 => Ok(()),
        more => Err(format!("has unknown flags {more:#x}")),
    }
}

/// Appends the options of the match `limit`: a packet each `every` parts of a second, [`SCALE`] of which are one.
pub(super) fn limit(to: &mut String, every: u64, burst: u32) -> Result<(), Odd> {
    if !(1..=i32::MAX as u64).contains(&every) {
        return Err("a rate is out of range".to_owned());
    }
    let mut shown = (24 * 60 * 60 * SCALE, "day");
    for (scale, name) in [
        (60 * 60 * SCALE, "hour"),
        (60 * SCALE, "min"),
        (SCALE, "sec"),
    ] {
        if every > scale || scale / every < scale % every {
            break;
        }
        shown = (scale, name);
    }
    put!(to, " --limit {}/{}", shown.0 / every, shown.1);
    if burst != 5 {
        put!(to, " --limit-burst {burst}");
    }
    Ok(())
}

/// Appends ` -p PROTOCOL`, by the name that `iptables-save` has for it without the system's list.
pub(super) fn protocol(to: &mut String, inverted: bool, number: u8) {
    let name = match number {
        1 => "icmp",
        6 => "tcp",
        17 => "udp",
        50 => "esp",
        51 => "ah",
        58 => "ipv6-icmp",
        132 => "sctp",
        135 => "ipv6-mh",
        136 => "udplite",
        _ => {
            let not = not(inverted);
            put!(to, "{not} -p {number}");
            return;
        }
    };
    let not = not(inverted);
    put!(to, "{not} -p {name}");
}
