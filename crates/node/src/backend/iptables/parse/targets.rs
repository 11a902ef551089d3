//! Targets. `None` means that the options are not ones of the model, and are to be kept word for word.

use std::net::IpAddr;

use super::super::model::{Connmark, Nat, Target, Tproxy};
use super::words::{Options, Word, span};
use crate::net::{Mark, PortRange};

/// Names of targets that are extensions; any other name without options is a chain.
const EXTENSIONS: [&str; 36] = [
    "AUDIT",
    "CHECKSUM",
    "CLASSIFY",
    "CLUSTERIP",
    "CONNMARK",
    "CONNSECMARK",
    "CT",
    "DNAT",
    "DNPT",
    "DSCP",
    "ECN",
    "HL",
    "HMARK",
    "IDLETIMER",
    "LED",
    "LOG",
    "MARK",
    "MASQUERADE",
    "NETMAP",
    "NFLOG",
    "NFQUEUE",
    "NOTRACK",
    "QUEUE",
    "RATEEST",
    "REDIRECT",
    "SECMARK",
    "SET",
    "SNAT",
    "SNPT",
    "SYNPROXY",
    "TCPMSS",
    "TCPOPTSTRIP",
    "TEE",
    "TOS",
    "TRACE",
    "TTL",
];

/// Reads `-j NAME` and its options.
pub(super) fn read<'a>(rule: &'a str, name: Word<'a>, options: Options<'_, 'a>) -> Target<'a> {
    typed(name, options).unwrap_or_else(|| Target::Other {
        name: name.text(),
        options: span(rule, options.words),
    })
}

fn typed<'a>(name: Word<'a>, options: Options<'_, 'a>) -> Option<Target<'a>> {
    let plain = |target| options.words.is_empty().then_some(target);
    let name = name.text();
    match &*name {
        "ACCEPT" => plain(Target::Accept),
        "DROP" => plain(Target::Drop),
        "RETURN" => plain(Target::Return),
        "REJECT" => reject(options),
        "DNAT" => nat(options, "--to-destination").map(Target::Dnat),
        "SNAT" => nat(options, "--to-source").map(Target::Snat),
        "MASQUERADE" => masquerade(options),
        "REDIRECT" => redirect(options),
        "MARK" => set_mark(options).map(Target::Mark),
        "CONNMARK" => connmark(options).map(Target::Connmark),
        "NOTRACK" => plain(Target::Notrack { is_short: true }),
        "CT" => match options.words {
            [word] if word.raw == "--notrack" => Some(Target::Notrack { is_short: false }),
            _ => None,
        },
        "TPROXY" => tproxy(options),
        other if EXTENSIONS.contains(&other) => None,
        _ => plain(Target::Jump(name)),
    }
}

fn reject<'a>(mut options: Options<'_, 'a>) -> Option<Target<'a>> {
    let mut with = None;
    while let Some((mut inverted, name)) = options.next() {
        if name != "--reject-with" || with.is_some() {
            return None;
        }
        with = Some(options.value(&mut inverted)?.text());
        if inverted {
            return None;
        }
    }
    Some(Target::Reject { with })
}

fn nat(mut options: Options<'_, '_>, to: &str) -> Option<Nat> {
    let mut nat = Nat::default();
    let mut given = false;
    while let Some((mut inverted, name)) = options.next() {
        match name {
            "--random" => nat.flags.random = true,
            "--random-fully" => nat.flags.random_fully = true,
            "--persistent" => nat.flags.persistent = true,
            name if name == to && !given => {
                (nat.addrs, nat.ports) = destination(&options.value(&mut inverted)?.text())?;
                given = true;
            }
            _ => return None,
        }
        if inverted {
            return None;
        }
    }
    given.then_some(nat)
}

type Destination = (Option<(IpAddr, IpAddr)>, Option<PortRange>);

/// Reads `A`, `A:P`, `A-B:P-Q`, `[A]:P`, `[A-B]:P`, `[A]-[B]:P` or `:P`.
fn destination(text: &str) -> Option<Destination> {
    let (addrs, ports) = if let Some(end) = text.rfind(']') {
        let ports = match &text[end + 1..] {
            "" => None,
            behind => Some(behind.strip_prefix(':')?),
        };
        (&text[..=end], ports)
    } else {
        match text.split_once(':') {
            Some((_, rest)) if rest.contains(':') => (text, None),
            Some((addrs, ports)) => (addrs, Some(ports)),
            None => (text, None),
        }
    };
    let ports = match ports {
        Some(ports) => Some(ports.parse().ok()?),
        None => None,
    };
    let addr = |text: &str| text.trim_matches(['[', ']']).parse::<IpAddr>().ok();
    let addrs = match addrs.split_once('-') {
        _ if addrs.is_empty() => None,
        Some((first, last)) => Some((addr(first)?, addr(last)?)),
        None => Some((addr(addrs)?, addr(addrs)?)),
    };
    Some((addrs, ports))
}

fn masquerade<'a>(mut options: Options<'_, 'a>) -> Option<Target<'a>> {
    let (mut ports, mut random, mut random_fully) = (None, false, false);
    while let Some((mut inverted, name)) = options.next() {
        match name {
            "--to-ports" if ports.is_none() => ports = Some(options.parse(&mut inverted)?),
            "--random" => random = true,
            "--random-fully" => random_fully = true,
            _ => return None,
        }
        if inverted {
            return None;
        }
    }
    Some(Target::Masquerade {
        ports,
        random,
        random_fully,
    })
}

fn redirect<'a>(mut options: Options<'_, 'a>) -> Option<Target<'a>> {
    let (mut ports, mut random) = (None, false);
    while let Some((mut inverted, name)) = options.next() {
        match name {
            "--to-ports" if ports.is_none() => ports = Some(options.parse(&mut inverted)?),
            "--random" => random = true,
            _ => return None,
        }
        if inverted {
            return None;
        }
    }
    Some(Target::Redirect { ports, random })
}

fn set_mark(mut options: Options<'_, '_>) -> Option<Mark> {
    let (mut inverted, name) = options.next()?;
    let Mark { value, mask } = options.parse(&mut inverted)?;
    if inverted || !options.words.is_empty() {
        return None;
    }
    Some(match name {
        "--set-xmark" => Mark { value, mask },
        // Of libxt_MARK: the bits of the value are cleared as well.
        "--set-mark" => Mark {
            value,
            mask: mask | value,
        },
        "--or-mark" => Mark { value, mask: value },
        "--xor-mark" => Mark { value, mask: 0 },
        "--and-mark" => Mark {
            value: 0,
            mask: !value,
        },
        _ => return None,
    })
}

fn connmark(mut options: Options<'_, '_>) -> Option<Connmark> {
    let whole = options;
    let (inverted, name) = options.next()?;
    if inverted || !matches!(name, "--save-mark" | "--restore-mark") {
        return set_mark(whole).map(Connmark::Set);
    }
    let (mut packet, mut connection) = (u32::MAX, u32::MAX);
    while let Some((mut inverted, name)) = options.next() {
        let mark: Mark = options.parse(&mut inverted)?;
        if inverted || mark.mask != u32::MAX {
            return None;
        }
        match name {
            "--nfmask" => packet = mark.value,
            "--ctmask" => connection = mark.value,
            "--mask" => (packet, connection) = (mark.value, mark.value),
            _ => return None,
        }
    }
    Some(if name == "--save-mark" {
        Connmark::Save { packet, connection }
    } else {
        Connmark::Restore { packet, connection }
    })
}

fn tproxy<'a>(mut options: Options<'_, 'a>) -> Option<Target<'a>> {
    let mut tproxy = Tproxy {
        port: 0,
        addr: None,
        mark: Mark { value: 0, mask: 0 },
    };
    while let Some((mut inverted, name)) = options.next() {
        match name {
            "--on-port" => tproxy.port = options.parse(&mut inverted)?,
            "--on-ip" => {
                let addr: IpAddr = options.parse(&mut inverted)?;
                tproxy.addr = (!addr.is_unspecified()).then_some(addr);
            }
            "--tproxy-mark" => tproxy.mark = options.parse(&mut inverted)?,
            _ => return None,
        }
        if inverted {
            return None;
        }
    }
    Some(Target::Tproxy(Box::new(tproxy)))
}
