//! The type of service: how targets and statements of rules change its byte.

use super::packet::Packet;

/// The bits of ECN, below the six bits of DSCP.
const ECN: u8 = 0b11;

/// Returns the byte `tos` after a target `TOS` or `DSCP`; `None` if it, or an option, is not known.
pub(super) fn target(tos: Option<u8>, options: &str) -> Option<u8> {
    let (option, value) = options.split_once(' ')?;
    let (value, mask) = value.split_once('/').unwrap_or((value, "0xff"));
    match option {
        "--set-tos" => Some((tos? & !number(mask)?) ^ number(value)?),
        "--set-dscp" => with_dscp(tos, number(value)?),
        _ => None,
    }
}

/// Returns the byte `tos` with these six bits of DSCP.
pub(super) fn with_dscp(tos: Option<u8>, dscp: u8) -> Option<u8> {
    Some(tos? & ECN | dscp << 2)
}

/// Returns whether a packet has the value that `--tos` or `--dscp` asks for; `None` if it is not known.
pub(super) fn matches(packet: &Packet, option: &str, value: &str) -> Option<bool> {
    let (value, mask) = value.split_once('/').unwrap_or((value, "0xff"));
    match option {
        "--tos" => Some(packet.tos? & number(mask)? == number(value)?),
        "--dscp" => Some(packet.tos? >> 2 == number(value)?),
        _ => None,
    }
}

/// Returns a number, written as one of base 10 or 16.
fn number(text: &str) -> Option<u8> {
    match text.strip_prefix("0x") {
        Some(digits) => u8::from_str_radix(digits, 16).ok(),
        None => text.parse().ok(),
    }
}
