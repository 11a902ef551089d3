//! Parses `/proc/net/ip_vs`, which any user may read, but which has no counters, thresholds and IPVS timeouts.

use std::fs;
use std::net::{IpAddr, Ipv4Addr};
use std::path::Path;

use kpx_node::evidence::ipvs::{Destination, Dump, Forwarding, Info, Service};
use kpx_node::net::Family;

/// `IP_VS_SVC_F_PERSISTENT`.
const PERSISTENT: u32 = 0x1;
/// `IP_VS_SVC_F_ONEPACKET`.
const ONE_PACKET: u32 = 0x4;

/// Returns the kernel's ticks per second from the running kernel's build configuration, if available.
pub(super) fn ticks(root: &Path) -> Option<u32> {
    let release = fs::read_to_string(root.join("proc/sys/kernel/osrelease")).ok()?;
    let release = release.trim();
    let places = [
        format!("boot/config-{release}"),
        format!("lib/modules/{release}/config"),
    ];
    places.iter().find_map(|place| {
        let config = fs::read_to_string(root.join(place)).ok()?;
        let line = config.lines().find_map(|l| l.strip_prefix("CONFIG_HZ="))?;
        line.parse().ok()
    })
}

/// Returns the table in `text`, or why it cannot be parsed. The text gives persistence in ticks, `ticks` per second.
pub(super) fn parse(text: &str, ticks: Option<u32>) -> Result<Dump, String> {
    let mut dump = Dump {
        partial: true,
        ..Dump::default()
    };
    for line in text.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        let bad = || format!("has a line {line:?}");
        match words[..] {
            [] | ["Prot", ..] | ["->", "RemoteAddress:Port", ..] => {}
            ["IP", "Virtual", "Server", "version", version, size] => {
                dump.info = Some(info(version, size).ok_or_else(bad)?);
            }
            ["->", server, ref rest @ ..] => {
                let service = dump.services.last_mut().ok_or_else(bad)?;
                let destination = destination(server, rest).ok_or_else(bad)?;
                if service.fwmark.is_some() {
                    // The text does not show the family of a firewall mark; its real servers do.
                    service.family = Family::of(destination.address);
                    service.prefix = service.prefix.max(service.family.bits());
                }
                service.destinations.push(destination);
            }
            [kind, server, scheduler, ref flags @ ..] => {
                let service = service(kind, server, scheduler).ok_or_else(bad)?;
                dump.services.push(with_flags(service, flags, ticks)?);
            }
            _ => return Err(bad()),
        }
    }
    Ok(dump)
}

fn info(version: &str, size: &str) -> Option<Info> {
    let parts: Vec<u32> = version
        .split('.')
        .map(|part| part.parse().ok())
        .collect::<Option<_>>()?;
    let &[major, minor, patch] = parts.as_slice() else {
        return None;
    };
    let size = size.strip_prefix("(size=")?.strip_suffix(')')?;
    Some(Info {
        version: major << 16 | minor << 8 | patch,
        conn_tab_size: size.parse().ok()?,
    })
}

fn service(kind: &str, server: &str, scheduler: &str) -> Option<Service> {
    let mut service = Service {
        family: Family::V4,
        protocol: None,
        address: None,
        port: None,
        fwmark: None,
        scheduler: scheduler.to_owned(),
        flags: 0,
        timeout: 0,
        prefix: Family::V4.bits(),
        engine: None,
        stats: None,
        destinations: Vec::new(),
        order: Vec::new(),
    };
    if kind == "FWM" {
        service.fwmark = Some(u32::from_str_radix(server, 16).ok()?);
    } else {
        let (address, port) = socket(server)?;
        service.protocol = Some(kind.parse().ok()?);
        service.family = Family::of(address);
        service.prefix = service.family.bits();
        service.address = Some(address);
        service.port = Some(port);
    }
    Some(service)
}

fn with_flags(mut service: Service, flags: &[&str], ticks: Option<u32>) -> Result<Service, String> {
    let mut words = flags.iter();
    while let Some(&word) = words.next() {
        match word {
            "ops" => service.flags |= ONE_PACKET,
            "persistent" => {
                let bad = || "has a persistent virtual server without a timeout".to_owned();
                let time: u32 = words.next().and_then(|w| w.parse().ok()).ok_or_else(bad)?;
                let mask = words.next().and_then(|w| u32::from_str_radix(w, 16).ok());
                let mask = mask.ok_or_else(bad)?;
                let ticks = ticks.filter(|&t| t > 0).ok_or(
                    "gives the persistence timeout in ticks of unknown length: no kernel build configuration found",
                )?;
                service.flags |= PERSISTENT;
                service.timeout = time / ticks;
                // An IPv6 prefix length is printed with its bytes swapped, like a mask.
                service.prefix = match service.family {
                    Family::V4 => u8::try_from(mask.leading_ones()).unwrap_or(32),
                    Family::V6 => u8::try_from(mask.swap_bytes()).unwrap_or(128),
                };
            }
            other => return Err(format!("has an unknown flag {other:?}")),
        }
    }
    Ok(service)
}

fn destination(server: &str, rest: &[&str]) -> Option<Destination> {
    let &[forwarding, weight, active, inactive] = rest else {
        return None;
    };
    let (address, port) = socket(server)?;
    Some(Destination {
        address,
        port,
        weight: weight.parse().ok()?,
        forwarding: match forwarding {
            "Masq" => Forwarding::Masq,
            "Local" => Forwarding::Local,
            "Tunnel" => Forwarding::Tunnel,
            "Route" => Forwarding::Route,
            _ => return None,
        },
        upper: 0,
        lower: 0,
        active: active.parse().ok()?,
        inactive: inactive.parse().ok()?,
        persistent: 0,
        stats: None,
    })
}

/// Parses `0A600001:01BB` or `[2001:0db8:…:0001]:01BB`.
fn socket(text: &str) -> Option<(IpAddr, u16)> {
    let (address, port) = text.rsplit_once(':')?;
    let port = u16::from_str_radix(port, 16).ok()?;
    let address = match address.strip_prefix('[') {
        Some(v6) => IpAddr::V6(v6.strip_suffix(']')?.parse().ok()?),
        None => IpAddr::V4(Ipv4Addr::from_bits(u32::from_str_radix(address, 16).ok()?)),
    };
    Some((address, port))
}

#[cfg(test)]
mod tests {
    use super::*;
    use kpx_node::net::Proto;

    const TABLE: &str = "\
IP Virtual Server version 1.2.1 (size=4096)
Prot LocalAddress:Port Scheduler Flags
  -> RemoteAddress:Port Forward Weight ActiveConn InActConn
TCP  0A600001:01BB rr persistent 2700000 FFFFFF00
  -> 0A00020F:192B      Masq    1      2          3
UDP  [fd00:0010:0096:0000:0000:0000:0000:000a]:0035 wrr
FWM  00000007 lc ops
  -> [fd00:0010:0096:0000:0000:0000:0000:000b]:0035      Route   0      0          0
";

    #[test]
    fn the_text_is_parsed() {
        let dump = parse(TABLE, Some(250)).unwrap();
        assert_eq!(dump.info.unwrap().version, 0x0001_0201);
        assert_eq!(dump.timeouts, None);
        let [tcp, udp, mark] = &dump.services[..] else {
            panic!("{dump:?}");
        };
        assert_eq!((tcp.flags, tcp.timeout, tcp.prefix), (1, 10800, 24));
        assert_eq!(tcp.destinations[0].inactive, 3);
        assert_eq!((udp.protocol, udp.port), (Some(Proto::Udp), Some(53)));
        assert_eq!(
            (mark.fwmark, mark.flags, mark.family),
            (Some(7), 4, Family::V6)
        );
        assert_eq!((mark.prefix, mark.destinations[0].weight), (128, 0));
    }

    #[test]
    fn persistence_in_ticks_of_unknown_length_is_an_error() {
        assert!(parse(TABLE, None).unwrap_err().contains("ticks"));
        assert!(parse("TCP  0A600001:01BB rr new", Some(250)).is_err());
        assert!(parse("  -> 0A600001:01BB Masq 1 0 0", Some(250)).is_err());
    }
}
