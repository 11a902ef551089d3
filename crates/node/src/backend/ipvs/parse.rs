//! Netlink records or ipvsadm's output to a [`Table`].

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::str::SplitAsciiWhitespace;

use super::model::{
    Connections, Flags, Forwarding, Info, Key, RealServer, Stats, Table, Timeouts, VirtualServer,
};
use crate::evidence::ipvs::{Dump, Service};
use crate::evidence::{Evidence, Gap, Item};
use crate::net::{Family, Proto};

/// Reads `ipvs.json` if there is one, else `ipvsadm`'s output.
pub fn table(evidence: &Evidence) -> Result<Table, Gap> {
    match (evidence.text(Item::Ipvs), evidence.text(Item::IpvsSave)) {
        (Ok(json), _) => records(json),
        (Err(_), Ok(save)) => {
            let mut table = saved(save)?;
            // Counters and timeouts decide no path: without them, the table is known.
            if let Ok(text) = evidence.text(Item::IpvsStats)
                && let Ok(counted) = counted(table.clone(), text)
            {
                table = counted;
            }
            table.timeouts = separate_timeouts(evidence).ok();
            Ok(table)
        }
        (Err(Gap::NotCollected(_)), Err(gap)) | (Err(gap), Err(_)) => Err(gap),
    }
}

/// Reads `ipvs.json`.
pub fn records(text: &str) -> Result<Table, Gap> {
    let fail = |why| Gap::Failed(Item::Ipvs, why);
    let dump: Dump = serde_json::from_str(text).map_err(|e| Gap::of_json(Item::Ipvs, text, &e))?;
    let servers = dump.services.into_iter().map(server);
    Ok(Table {
        servers: servers.collect::<Result<_, _>>().map_err(fail)?,
        timeouts: dump.timeouts,
        info: dump.info,
        partial: dump.partial,
    })
}

fn server(service: Service) -> Result<VirtualServer, String> {
    let key = match service {
        Service {
            fwmark: Some(mark),
            family,
            ..
        } => Key::Fwmark { mark, family },
        Service {
            protocol: Some(proto),
            address: Some(addr),
            port: Some(port),
            ..
        } => Key::Address { proto, addr, port },
        _ => return Err("a service has neither a mark nor protocol, address and port".to_owned()),
    };
    let persistent = service.flags & Flags::PERSISTENT != 0;
    let reals = service.destinations.into_iter().map(|d| RealServer {
        addr: d.address,
        port: d.port,
        weight: d.weight,
        forwarding: d.forwarding,
        upper: d.upper,
        lower: d.lower,
        connections: Some(Connections {
            active: d.active,
            inactive: d.inactive,
            persistent: d.persistent,
        }),
        stats: d.stats,
    });
    Ok(VirtualServer {
        key,
        scheduler: service.scheduler,
        flags: Flags(service.flags & !Flags::HASHED),
        timeout: if persistent { service.timeout } else { 0 },
        prefix: service.prefix,
        engine: service.engine,
        reals: reals.collect(),
        order: service.order,
        stats: service.stats,
    })
}

/// Reads `ipvsadm -Sn`.
pub fn saved(text: &str) -> Result<Table, Gap> {
    let mut table = Table::default();
    let mut by_key = HashMap::new();
    for (number, line) in (1..).zip(text.lines()) {
        let fail = |why: String| Gap::Failed(Item::IpvsSave, format!("line {number}: {why}"));
        let mut words = line.split_ascii_whitespace();
        match words.next() {
            None => {}
            Some("-A") => {
                let server = virtual_server(words).map_err(fail)?;
                by_key.insert(server.key, table.servers.len());
                table.servers.push(server);
            }
            Some("-a") => {
                let (key, real) = real_server(words).map_err(fail)?;
                let at = by_key.get(&key).ok_or("a real server of no virtual server");
                let at = *at.map_err(|why| fail(why.to_owned()))?;
                table.servers[at].reals.push(real);
            }
            Some(other) => return Err(fail(format!("expected -A or -a, found {other:?}"))),
        }
    }
    Ok(table)
}

/// Takes the value of `option`.
fn value<'a>(words: &mut SplitAsciiWhitespace<'a>, option: &str) -> Result<&'a str, String> {
    words
        .next()
        .ok_or_else(|| format!("{option} without a value"))
}

fn number(words: &mut SplitAsciiWhitespace<'_>, option: &str) -> Result<u32, String> {
    let text = value(words, option)?;
    text.parse()
        .map_err(|_| format!("{option} {text:?} is not a number"))
}

/// Reads a mark, which ipvsadm prints as a signed number.
fn mark(text: &str) -> Result<u32, String> {
    let signed = || text.parse().map(i32::cast_unsigned);
    text.parse()
        .or_else(|_| signed())
        .map_err(|_| format!("{text:?} is not a mark"))
}

fn socket(text: &str) -> Result<(IpAddr, u16), String> {
    // Port 0 may be omitted.
    let whole = text.parse::<SocketAddr>().map(|at| (at.ip(), at.port()));
    whole
        .or_else(|_| text.trim_matches(['[', ']']).parse().map(|addr| (addr, 0)))
        .map_err(|_| format!("{text:?} is not an address and a port"))
}

fn key(option: &str, words: &mut SplitAsciiWhitespace<'_>) -> Result<Option<Key>, String> {
    let proto = match option {
        "-t" => Proto::Tcp,
        "-u" => Proto::Udp,
        "--sctp-service" => Proto::Sctp,
        "-f" => {
            let mark = mark(value(words, option)?)?;
            let family = Family::V4;
            return Ok(Some(Key::Fwmark { mark, family }));
        }
        _ => return Ok(None),
    };
    let (addr, port) = socket(value(words, option)?)?;
    Ok(Some(Key::Address { proto, addr, port }))
}

fn virtual_server(mut words: SplitAsciiWhitespace<'_>) -> Result<VirtualServer, String> {
    let mut found = None;
    let mut server = VirtualServer {
        key: Key::Fwmark {
            mark: 0,
            family: Family::V4,
        },
        scheduler: "wlc".to_owned(),
        flags: Flags::default(),
        timeout: 0,
        prefix: 0,
        engine: None,
        reals: Vec::new(),
        order: Vec::new(),
        stats: None,
    };
    let mut mask = None;
    while let Some(option) = words.next() {
        if take_key(option, &mut words, &mut found)? {
            continue;
        }
        match option {
            "-s" => value(&mut words, option)?.clone_into(&mut server.scheduler),
            "-p" => {
                server.flags.0 |= Flags::PERSISTENT;
                server.timeout = number(&mut words, option)?;
            }
            "-M" => mask = Some(value(&mut words, option)?),
            "-o" => server.flags.0 |= Flags::ONE_PACKET,
            "--pe" => server.engine = Some(value(&mut words, option)?.to_owned()),
            "-b" => {
                for flag in value(&mut words, option)?.split(',') {
                    server.flags.0 |= match flag {
                        "flag-1" | "sh-fallback" | "mh-fallback" => Flags::SCHED1,
                        "flag-2" | "sh-port" | "mh-port" => Flags::SCHED2,
                        "flag-3" => Flags::SCHED3,
                        _ => return Err(format!("{flag:?} is not a scheduler flag")),
                    };
                }
            }
            _ => return Err(format!("{option:?} is not an option of a virtual server")),
        }
    }
    server.key = found.ok_or("a virtual server without an address")?;
    let family = match server.key {
        Key::Address { addr, .. } => Family::of(addr),
        Key::Fwmark { family, .. } => family,
    };
    server.prefix = match mask {
        None => family.bits(),
        Some(mask) if mask.contains('.') => mask
            .parse::<std::net::Ipv4Addr>()
            .ok()
            .and_then(|mask| u8::try_from(mask.to_bits().leading_ones()).ok())
            .ok_or_else(|| format!("-M {mask:?} is not a mask"))?,
        Some(mask) => {
            let length = mask.parse().ok().filter(|length| *length <= family.bits());
            length.ok_or_else(|| format!("-M {mask:?} is not a prefix length"))?
        }
    };
    Ok(server)
}

/// Takes an option that names a virtual server into `found`; returns whether it was one.
fn take_key(
    option: &str,
    words: &mut SplitAsciiWhitespace<'_>,
    found: &mut Option<Key>,
) -> Result<bool, String> {
    if matches!(option, "-6" | "--ipv6") {
        if let Some(Key::Fwmark { family, .. }) = found {
            *family = Family::V6;
        }
        return Ok(true);
    }
    let key = key(option, words)?;
    let is_key = key.is_some();
    *found = key.or(*found);
    Ok(is_key)
}

fn real_server(mut words: SplitAsciiWhitespace<'_>) -> Result<(Key, RealServer), String> {
    let mut found = None;
    let mut at = None;
    let (mut weight, mut upper, mut lower) = (1, 0, 0);
    let mut forwarding = Forwarding::Route;
    while let Some(option) = words.next() {
        if take_key(option, &mut words, &mut found)? {
            continue;
        }
        match option {
            "-r" => at = Some(socket(value(&mut words, option)?)?),
            "-m" => forwarding = Forwarding::Masq,
            "-g" => forwarding = Forwarding::Route,
            "-i" => forwarding = Forwarding::Tunnel,
            "-w" => weight = number(&mut words, option)?,
            "-x" => upper = number(&mut words, option)?,
            "-y" => lower = number(&mut words, option)?,
            "--tun-nocsum" | "--tun-csum" | "--tun-remcsum" => {}
            option if option.starts_with("--tun-") => {
                let _: &str = value(&mut words, option)?;
            }
            _ => return Err(format!("{option:?} is not an option of a real server")),
        }
    }
    let (addr, port) = at.ok_or("a real server without an address")?;
    let key = found.ok_or("a real server without its virtual server")?;
    Ok((
        key,
        RealServer {
            addr,
            port,
            weight,
            forwarding,
            upper,
            lower,
            connections: None,
            stats: None,
        },
    ))
}

/// Adds the counters of `ipvsadm -Ln --stats`, and the version in its head.
fn counted(mut table: Table, text: &str) -> Result<Table, Gap> {
    let places = table.servers.iter().enumerate();
    let by_key: HashMap<_, _> = places.map(|(at, server)| (server.key, at)).collect();
    let mut here = None;
    for (number, line) in (1..).zip(text.lines()) {
        let fail = |why: String| Gap::Failed(Item::IpvsStats, format!("line {number}: {why}"));
        let words: Vec<_> = line.split_ascii_whitespace().collect();
        let proto = match words.first() {
            None | Some(&"Prot") => continue,
            Some(&"IP") => {
                table.info = info(line);
                continue;
            }
            Some(&"->") if words.get(1) == Some(&"RemoteAddress:Port") => continue,
            Some(&"->") => {
                let (name, stats) = row(&words).map_err(fail)?;
                let (addr, port) = socket(name).map_err(fail)?;
                let reals = here.map(|at: usize| table.servers[at].reals.iter_mut());
                let real =
                    reals.and_then(|mut reals| reals.find(|r| (r.addr, r.port) == (addr, port)));
                // A real server that came between the two listings is in the later one alone.
                if let Some(real) = real {
                    real.stats = Some(stats);
                }
                continue;
            }
            Some(&proto) => proto,
        };
        let (name, stats) = row(&words).map_err(fail)?;
        let key = if proto == "FWM" {
            let mark = mark(name).map_err(fail)?;
            let family = if words.contains(&"IPv6") {
                Family::V6
            } else {
                Family::V4
            };
            Key::Fwmark { mark, family }
        } else {
            let proto = proto.parse().map_err(|e| fail(format!("{e}")))?;
            let (addr, port) = socket(name).map_err(fail)?;
            Key::Address { proto, addr, port }
        };
        here = by_key.get(&key).copied();
        if let Some(at) = here {
            table.servers[at].stats = Some(stats);
        }
    }
    Ok(table)
}

/// Reads the name in the second column and the counters in the last five.
fn row<'a>(words: &[&'a str]) -> Result<(&'a str, Stats), String> {
    let (Some(name), Some((_, counters))) = (words.get(1), words.split_last_chunk::<5>()) else {
        return Err("expected a name and five counters".to_owned());
    };
    let [conns, packets_in, packets_out, bytes_in, bytes_out] = counters.map(count);
    let stats = || {
        Some(Stats {
            conns: conns?,
            packets_in: packets_in?,
            packets_out: packets_out?,
            bytes_in: bytes_in?,
            bytes_out: bytes_out?,
        })
    };
    let stats = stats().ok_or_else(|| format!("the counters of {name} are not numbers"))?;
    Ok((name, stats))
}

/// Reads a counter; without `--exact`, ipvsadm shortens large ones to thousands and more.
fn count(text: &str) -> Option<u64> {
    let scale = match text.as_bytes().last()? {
        b'K' => 1_000,
        b'M' => 1_000_000,
        b'G' => 1_000_000_000,
        b'T' => 1_000_000_000_000,
        _ => return text.parse().ok(),
    };
    text[..text.len() - 1]
        .parse::<u64>()
        .ok()?
        .checked_mul(scale)
}

/// Reads `IP Virtual Server version 1.2.1 (size=4096)`.
fn info(line: &str) -> Option<Info> {
    let (version, size) = line.split_once("version ")?.1.split_once(" (size=")?;
    let mut parts = version.split('.').map(|part| part.parse::<u8>().ok());
    let mut part = || parts.next().flatten().map(u32::from);
    Some(Info {
        version: part()? << 16 | part()? << 8 | part()?,
        conn_tab_size: size.trim_end().trim_end_matches(')').parse().ok()?,
    })
}

/// Reads the timeouts that `ipvsadm` printed.
pub fn separate_timeouts(evidence: &Evidence) -> Result<Timeouts, Gap> {
    evidence.text(Item::IpvsTimeout).and_then(timeouts)
}

/// Returns why the size of the hash table of `table` is not known.
pub fn lacks_info(table: &Table, evidence: &Evidence) -> Gap {
    let stats = evidence.text(Item::IpvsStats);
    let unreadable = stats.and_then(|text| counted(table.clone(), text)).err();
    let unreadable = unreadable.filter(|gap| !matches!(gap, Gap::NotCollected(_)));
    unreadable.unwrap_or_else(|| {
        let why = "ipvsadm does not print the number of buckets";
        Gap::Absent(Item::Ipvs, why.to_owned())
    })
}

/// Reads `Timeout (tcp tcpfin udp): 900 120 300`.
fn timeouts(text: &str) -> Result<Timeouts, Gap> {
    let read = || {
        let (_, numbers) = text.split_once("):")?;
        let mut numbers = numbers.split_ascii_whitespace().map(|n| n.parse().ok());
        Some(Timeouts {
            tcp: numbers.next()??,
            tcp_fin: numbers.next()??,
            udp: numbers.next()??,
        })
    };
    read().ok_or_else(|| {
        let why = format!(
            "expected three timeouts in seconds, found {:?}",
            text.trim()
        );
        Gap::Failed(Item::IpvsTimeout, why)
    })
}
