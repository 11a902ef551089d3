//! Expressions that count or limit: in rules, with elements of sets, and as objects of their own.

use crate::linux::netlink::{wide, word};
use crate::linux::nf_tables::wire::{Odd, needed, numbered, put};

/// Appends an expression that counts; `with_state`: whether to print the counts.
pub(super) fn stateful(
    to: &mut String,
    name: &str,
    data: &[u8],
    with_state: bool,
) -> Result<(), Odd> {
    match name {
        "counter" if !with_state => to.push_str("{\"counter\": null}"),
        "counter" => {
            to.push_str("{\"counter\": {");
            counter(to, data)?;
            to.push_str("}}");
        }
        "limit" => {
            to.push_str("{\"limit\": {");
            limit(to, data, true)?;
            to.push_str("}}");
        }
        "quota" => {
            let (bytes, used, is_over) = quota(data)?;
            let (value, unit) = scaled(bytes);
            put!(
                to,
                "{{\"quota\": {{\"val\": {value}, \"val_unit\": \"{unit}\""
            );
            if is_over {
                to.push_str(", \"inv\": true");
            }
            if with_state && used != 0 {
                let (value, unit) = scaled(used);
                put!(to, ", \"used\": {value}, \"used_unit\": \"{unit}\"");
            }
            to.push_str("}}");
        }
        "connlimit" => {
            let [count, flags] = numbered::<2>(data)?;
            let count = word(needed(count)?)?;
            put!(to, "{{\"ct count\": {{\"val\": {count}");
            match flags.map_or(Ok(0), word)? {
                0 => {}
                1 => to.push_str(", \"inv\": true"),
                other => return Err(format!("connlimit flags {other:#x} are unknown")),
            }
            to.push_str("}}");
        }
        other => return Err(format!("expression {other} of an element is not decoded")),
    }
    Ok(())
}

/// Appends packets and bytes.
pub(super) fn counter(to: &mut String, data: &[u8]) -> Result<(), Odd> {
    let [bytes, packets] = numbered::<2>(data)?;
    let (packets, bytes) = (wide(needed(packets)?)?, wide(needed(bytes)?)?);
    put!(to, "\"packets\": {packets}, \"bytes\": {bytes}");
    Ok(())
}

/// Returns limit, use, and whether it is inverted.
pub(super) fn quota(data: &[u8]) -> Result<(u64, u64, bool), Odd> {
    let [bytes, flags, _, used] = numbered::<4>(data)?;
    let flags = flags.map_or(Ok(0), word)?;
    // NFT_QUOTA_F_DEPLETED is the kernel's own.
    if flags & !3 != 0 {
        return Err(format!("quota flags {flags:#x} are unknown"));
    }
    let used = used.map_or(Ok(0), wide)?;
    Ok((wide(needed(bytes)?)?, used, flags & 1 != 0))
}

/// Returns a number of bytes in the unit that `nft` prints.
fn scaled(bytes: u64) -> (u64, &'static str) {
    match bytes {
        0 => (0, "bytes"),
        _ if bytes.is_multiple_of(1 << 20) => (bytes >> 20, "mbytes"),
        _ if bytes.is_multiple_of(1 << 10) => (bytes >> 10, "kbytes"),
        _ => (bytes, "bytes"),
    }
}

/// Appends a rate; `is_statement` is whether it is one of a rule, whose order of words differs from an object's.
pub(super) fn limit(to: &mut String, data: &[u8], is_statement: bool) -> Result<(), Odd> {
    let [rate, unit, burst, kind, flags] = numbered::<5>(data)?;
    let (rate, burst) = (wide(needed(rate)?)?, u64::from(burst.map_or(Ok(0), word)?));
    let per = match wide(needed(unit)?)? {
        1 => "second",
        60 => "minute",
        3600 => "hour",
        86400 => "day",
        604_800 => "week",
        other => return Err(format!("a rate per {other} s")),
    };
    let ((rate, rate_unit), (burst, burst_unit)) = match kind.map_or(Ok(0), word)? {
        0 => ((rate, None), (burst, None)),
        1 => {
            let ((rate, unit), (burst, of_burst)) = (scaled(rate), scaled(burst));
            ((rate, Some(unit)), (burst, Some(of_burst)))
        }
        other => return Err(format!("limit {other} is unknown")),
    };
    put!(to, "\"rate\": {rate}");
    if is_statement {
        put!(to, ", \"burst\": {burst}");
    }
    put!(to, ", \"per\": \"{per}\"");
    match flags.map_or(Ok(0), word)? {
        0 => {}
        1 => to.push_str(", \"inv\": true"),
        other => return Err(format!("limit flags {other:#x} are unknown")),
    }
    if let Some(unit) = rate_unit {
        put!(to, ", \"rate_unit\": \"{unit}\"");
    }
    if !is_statement && burst != 0 {
        put!(to, ", \"burst\": {burst}");
    }
    if let Some(unit) = burst_unit.filter(|_| is_statement || burst != 0) {
        put!(to, ", \"burst_unit\": \"{unit}\"");
    }
    Ok(())
}
