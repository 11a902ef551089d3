//! Addresses, links, routes and routing policy rules, from the texts of `ip`, `ifconfig` and `route`, as `ip -j` writes them.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use serde_json::{Map, Value, json};

use crate::net::{Cidr, Family};

/// Reads `ip addr`, `ip link`, each with or without `-d`, and `ip -br addr` and `ip -o addr`.
pub(super) fn addresses(lines: &[String]) -> Vec<Value> {
    let mut all: Vec<Map<String, Value>> = Vec::new();
    for line in lines {
        // With -o, the line continues after a backslash.
        for part in line.split('\\') {
            link_line(part, &mut all);
        }
    }
    all.into_iter().map(Value::Object).collect()
}

/// Returns whether `line` begins a link of `ip addr` or `ip link`.
pub(super) fn is_link(line: &str) -> bool {
    head(line.trim()).is_some() || oneline(line.trim()).is_some()
}

/// Returns whether `line` may be in a listing of links.
pub(super) fn is_of_links(line: &str) -> bool {
    let first = line.split_whitespace().next().unwrap_or_default();
    is_link(line)
        || first.starts_with("link/")
        || [
            "inet",
            "inet6",
            "valid_lft",
            "altname",
            "RX:",
            "TX:",
            "alias",
        ]
        .contains(&first)
        || line.starts_with("    ") && !line.trim().is_empty()
}

/// Returns whether `line`, after `before`, is the beginning of a link or of an address of `ip addr`.
pub(super) fn is_half_link(before: &str, line: &str) -> bool {
    let words: Vec<&str> = line.split_whitespace().collect();
    let number = words.first().and_then(|word| word.strip_suffix(':'));
    let begins_link = number.is_some_and(|number| number.parse::<u32>().is_ok());
    let begins_address = words.first().is_some_and(|word| word.starts_with("inet"));
    let is_whole = ["scope", "link/ether", "link/loopback"]
        .iter()
        .any(|word| words.contains(word));
    is_of_links(before) && (begins_link || begins_address) && !is_whole
}

/// Returns whether `line`, after `before`, is the beginning of a route.
pub(super) fn is_half_route(before: &str, line: &str) -> bool {
    const ALONE: [&str; 4] = ["unreachable", "blackhole", "prohibit", "throw"];
    let words: Vec<&str> = line.split_whitespace().collect();
    let first = words.first().copied().unwrap_or_default();
    let begins = first == "default"
        || TYPES.contains(&first)
        || first.parse::<Cidr>().is_ok()
        || first.parse::<IpAddr>().is_ok();
    let is_whole = is_of_routes(line) && (words.contains(&"dev") || ALONE.contains(&first));
    is_route(before) && begins && !is_whole
}

/// Reads `3: kube-ipvs0: <BROADCAST,NOARP> mtu 1500 …`; returns the number, the name, its peer, and the rest.
fn head(line: &str) -> Option<(u32, &str, Option<&str>, &str)> {
    let (index, rest) = line.split_once(": ")?;
    let index = index.parse().ok()?;
    let (name, rest) = rest.split_once(": <")?;
    let (name, peer) = match name.split_once('@') {
        Some((name, peer)) => (name, Some(peer)),
        None => (name, None),
    };
    (!name.is_empty() && !name.contains(' ')).then_some((index, name, peer, rest))
}

/// Reads `3: kube-ipvs0    inet 10.96.0.1/32 …`.
fn oneline(line: &str) -> Option<(u32, &str, &str)> {
    let (index, rest) = line.split_once(": ")?;
    let index = index.parse().ok()?;
    let (name, rest) = rest.trim_start().split_once(char::is_whitespace)?;
    let rest = rest.trim_start();
    (rest.starts_with("inet ") || rest.starts_with("inet6 ")).then_some((index, name, rest))
}

#[expect(
    clippy::similar_names,
    reason = "a line has a link, and a list has links"
)]
fn link_line(line: &str, all: &mut Vec<Map<String, Value>>) {
    let text = line.trim();
    if let Some((index, name, peer, rest)) = head(text) {
        let mut link = Map::new();
        link.insert("ifindex".into(), json!(index));
        link.insert("ifname".into(), json!(name));
        if let Some(number) = peer
            .and_then(|peer| peer.strip_prefix("if"))
            .and_then(|number| number.parse::<u32>().ok())
        {
            link.insert("link_index".into(), json!(number));
        } else if let Some(peer) = peer.filter(|peer| *peer != "NONE") {
            link.insert("link".into(), json!(peer));
        }
        let (flags, rest) = rest.split_once('>').unwrap_or((rest, ""));
        let flags: Vec<&str> = flags.split(',').filter(|flag| !flag.is_empty()).collect();
        link.insert("flags".into(), json!(flags));
        let words: Vec<&str> = rest.split_whitespace().collect();
        for pair in words.windows(2) {
            match pair {
                ["mtu", value] => drop(link.insert(
                    "mtu".into(),
                    json!(value.parse::<u32>().unwrap_or_default()),
                )),
                ["qdisc", value] => drop(link.insert("qdisc".into(), json!(value))),
                ["state", value] => drop(link.insert("operstate".into(), json!(value))),
                ["master", value] => drop(link.insert("master".into(), json!(value))),
                _ => {}
            }
        }
        link.insert("addr_info".into(), json!([]));
        all.push(link);
        return;
    }
    if let Some((index, name, rest)) = oneline(text) {
        if all.last().and_then(|link| link.get("ifindex")) != Some(&json!(index)) {
            let mut link = Map::new();
            link.insert("ifindex".into(), json!(index));
            link.insert("ifname".into(), json!(name));
            link.insert("addr_info".into(), json!([]));
            all.push(link);
        }
        address_line(rest, all);
        return;
    }
    address_line(text, all);
}

fn address_line(text: &str, all: &mut [Map<String, Value>]) {
    let Some(link) = all.last_mut() else {
        return;
    };
    let words: Vec<&str> = text.split_whitespace().collect();
    match words.as_slice() {
        [kind, address, ..] if kind.starts_with("link/") => {
            link.insert("link_type".into(), json!(&kind[5..]));
            if address.contains(':') {
                link.insert("address".into(), json!(address));
            }
        }
        [family @ ("inet" | "inet6"), address, rest @ ..] => {
            if let Some(info) = info(family, address, rest, link) {
                let list = link.entry("addr_info").or_insert_with(|| json!([]));
                if let Value::Array(list) = list {
                    list.push(info);
                }
            }
        }
        // The line of details begins with the kind.
        [kind, ..] if words.contains(&"addrgenmode") || words.contains(&"numtxqueues") => {
            if kind
                .chars()
                .all(|c| c.is_ascii_lowercase() || c.is_ascii_digit())
                && *kind != "addrgenmode"
                && *kind != "numtxqueues"
            {
                link.insert("linkinfo".into(), json!({"info_kind": kind}));
            }
            link.insert("detailed".into(), json!(true));
        }
        _ if words.contains(&"promiscuity") => {}
        _ => {}
    }
}

fn info(family: &str, address: &str, rest: &[&str], link: &Map<String, Value>) -> Option<Value> {
    let mut address = address;
    let mut rest = rest;
    let mut local = None;
    if let ["peer", peer, more @ ..] = rest {
        // `inet LOCAL peer PEER/LENGTH`: the length is the peer's.
        local = Some(address);
        (address, rest) = (peer, more);
    }
    let (addr, prefix) = match address.split_once('/') {
        Some((addr, prefix)) => (addr, prefix.parse::<u8>().ok()?),
        None => (address, if address.contains(':') { 128 } else { 32 }),
    };
    let addr: IpAddr = local.unwrap_or(addr).parse().ok()?;
    if prefix > Family::of(addr).bits() {
        return None;
    }
    let mut info = Map::new();
    info.insert("family".into(), json!(family));
    info.insert("local".into(), json!(addr.to_string()));
    info.insert("prefixlen".into(), json!(prefix));
    let mut words = rest.iter();
    while let Some(word) = words.next() {
        match *word {
            "brd" => {
                let broadcast = words.next().and_then(|word| word.parse::<IpAddr>().ok());
                if let Some(broadcast) = broadcast {
                    info.insert("broadcast".into(), json!(broadcast.to_string()));
                }
            }
            "scope" => drop(info.insert("scope".into(), json!(words.next()?))),
            "metric" => {
                words.next();
            }
            "proto" => drop(info.insert("protocol".into(), json!(words.next()?))),
            "secondary" | "temporary" | "dynamic" | "noprefixroute" | "deprecated"
            | "tentative" | "dadfailed" | "nodad" | "home" | "mngtmpaddr" | "optimistic"
            | "autojoin" => drop(info.insert((*word).to_owned(), json!(true))),
            "valid_lft" => break,
            label => {
                let name = link
                    .get("ifname")
                    .and_then(Value::as_str)
                    .unwrap_or_default();
                if label.starts_with(name) {
                    info.insert("label".into(), json!(label));
                }
            }
        }
    }
    Some(Value::Object(info))
}

/// Returns whether `line` is of `ip -br addr`.
pub(super) fn is_brief(line: &str) -> bool {
    let words: Vec<&str> = line.split_whitespace().collect();
    matches!(words.as_slice(), [_, "UP" | "DOWN" | "UNKNOWN" | "LOWERLAYERDOWN", rest @ ..]
        if !rest.is_empty() && rest.iter().all(|word| word.parse::<Cidr>().is_ok()))
}

/// Reads `ip -br addr`.
pub(super) fn brief(lines: &[String]) -> Vec<Value> {
    let lines = lines.iter().filter(|line| is_brief(line));
    let of = |line: &String| {
        let mut words = line.split_whitespace();
        let name = words.next()?.split('@').next()?;
        let state = words.next()?;
        let addresses = words.filter_map(|word| {
            let cidr: Cidr = word.parse().ok()?;
            let family = if cidr.family() == Family::V4 { "inet" } else { "inet6" };
            let scope = if cidr.addr.is_loopback() { "host" } else { scope_of(cidr.addr) };
            Some(json!({"family": family, "local": cidr.addr.to_string(), "prefixlen": cidr.prefix, "scope": scope}))
        });
        let addresses: Vec<Value> = addresses.collect();
        Some(json!({"ifname": name, "operstate": state, "addr_info": addresses}))
    };
    lines.filter_map(of).collect()
}

fn scope_of(addr: IpAddr) -> &'static str {
    match addr {
        IpAddr::V6(addr) if addr.segments()[0] & 0xffc0 == 0xfe80 => "link",
        IpAddr::V4(addr) if addr.is_link_local() => "link",
        _ => "global",
    }
}

/// Returns whether `line` begins a link of `ifconfig`, in any language.
pub(super) fn is_ifconfig(line: &str) -> bool {
    let mut words = line.split_whitespace();
    let name = words.next().unwrap_or_default();
    // `Link encap:Ethernet  HWaddr …`, and its translations.
    let is_old = || {
        let of = |text: &str| text.contains("encap:") || text.contains("\u{5c01}\u{88c5}");
        of(line) && name.starts_with(|c: char| c.is_ascii_alphabetic()) && !name.contains('=')
    };
    !line.starts_with(char::is_whitespace) && (line.contains(": flags=") || is_old())
}

/// Reads `ifconfig`, which shows one IPv4 address of each link. Its words are translated, its values are not.
pub(super) fn ifconfig(lines: &[String]) -> Vec<Value> {
    let mut all: Vec<Value> = Vec::new();
    for line in lines {
        if is_ifconfig(line) {
            let name = line.split_whitespace().next().unwrap_or_default();
            // `eth0:1` is a label.
            let name = name.trim_end_matches(':').split(':').next();
            all.push(json!({"ifname": name, "addr_info": []}));
        }
        let words: Vec<&str> = line.split_whitespace().collect();
        let of_inet = words.iter().take(2).find(|word| word.starts_with("inet"));
        let info = match of_inet {
            Some(word) if word.starts_with("inet6") => six(&words),
            Some(_) => four(&words),
            None => None,
        };
        let list = all
            .last_mut()
            .and_then(|link| link.get_mut("addr_info"))
            .and_then(Value::as_array_mut);
        if let (Some(info), Some(list)) = (info, list) {
            list.push(info);
        }
    }
    all
}

/// Reads `inet 10.0.0.1  netmask 255.255.255.0` or `inet addr:10.0.0.1  Mask:255.255.255.0`.
fn four(words: &[&str]) -> Option<Value> {
    let value = |word: &&str| -> Option<Ipv4Addr> {
        let text = word.rsplit([':', '\u{ff1a}']).next().unwrap_or(word);
        text.parse().ok()
    };
    let mut values = words.iter().filter_map(value);
    let addr = values.next()?;
    // An address in between is the far end or the broadcast address; a mask begins with ones.
    let is_mask = |addr: &Ipv4Addr| {
        let bits = addr.to_bits();
        bits.leading_ones() >= 8 && bits.leading_ones() + bits.trailing_zeros() == 32
    };
    let masks: Vec<Ipv4Addr> = values.filter(|value| is_mask(value)).collect();
    let prefix = masks
        .last()
        .map_or(32, |mask| mask.to_bits().leading_ones());
    let scope = if addr.is_loopback() { "host" } else { "global" };
    let local = addr.to_string();
    Some(json!({"family": "inet", "local": local, "prefixlen": prefix, "scope": scope}))
}

/// Reads `inet6 fe80::1  prefixlen 64` or `inet6 addr: fe80::1/64`.
fn six(words: &[&str]) -> Option<Value> {
    let (at, addr, length) = words.iter().enumerate().find_map(|(at, word)| {
        let (addr, length) = match word.split_once('/') {
            Some((addr, length)) => (addr, Some(length)),
            None => (*word, None),
        };
        Some((at, addr.parse::<Ipv6Addr>().ok()?, length))
    })?;
    let length = length.or_else(|| words.get(at + 2).copied());
    let length: u8 = length?.parse().ok().filter(|length| *length <= 128)?;
    let scope = if addr.is_loopback() {
        "host"
    } else {
        scope_of(addr.into())
    };
    let local = addr.to_string();
    Some(json!({"family": "inet6", "local": local, "prefixlen": length, "scope": scope}))
}

/// Types of routes that `ip route` writes first.
const TYPES: [&str; 9] = [
    "unicast",
    "local",
    "broadcast",
    "unreachable",
    "blackhole",
    "prohibit",
    "throw",
    "multicast",
    "anycast",
];

/// Reads a line of `ip route`.
fn route_line(line: &str) -> Option<Map<String, Value>> {
    let mut words = line.split_whitespace().peekable();
    let mut route = Map::new();
    if let Some(kind) = words.next_if(|word| TYPES.contains(word)) {
        route.insert("type".into(), json!(kind));
    }
    let dst = words.next()?;
    if dst != "default" && dst.parse::<Cidr>().is_err() {
        return None;
    }
    route.insert("dst".into(), json!(dst));
    let mut flags = Vec::new();
    let mut any = false;
    while let Some(word) = words.next() {
        let key = match word {
            "via" => "gateway",
            "dev" => "dev",
            "table" => "table",
            "proto" => "protocol",
            "scope" => "scope",
            "src" => "prefsrc",
            "metric" => "metric",
            "pref" => "pref",
            "onlink" | "linkdown" | "dead" | "pervasive" | "offload" | "notify" | "trap" => {
                flags.push(word);
                continue;
            }
            "mtu" | "advmss" | "error" | "expires" | "hoplimit" | "nhid" | "from" | "rto_min"
            | "initcwnd" | "weight" | "encap" => {
                words.next();
                any = true;
                continue;
            }
            _ => continue,
        };
        let mut value = words.next()?;
        if value == "inet6" || value == "inet" {
            value = words.next()?;
        }
        any = true;
        if key == "metric" {
            route.insert(key.into(), json!(value.parse::<u32>().ok()?));
        } else {
            if ["gateway", "prefsrc"].contains(&key) && value.parse::<IpAddr>().is_err() {
                return None;
            }
            route.insert(key.into(), json!(value));
        }
    }
    (any || route.contains_key("type") || dst != "default" && line.trim() == dst).then_some(())?;
    route.insert("flags".into(), json!(flags));
    Some(route)
}

/// Returns whether `line` is of `ip route`.
pub(super) fn is_route(line: &str) -> bool {
    let words: Vec<&str> = line.split_whitespace().collect();
    words.first() == Some(&"nexthop")
        || words.len() > 2 && route_line(line).is_some()
        || words.len() == 2 && TYPES.contains(&words[0]) && route_line(line).is_some()
}

/// Returns whether `line` may go on a list of routes.
pub(super) fn is_of_routes(line: &str) -> bool {
    is_route(line) || line.split_whitespace().count() == 1 && line.trim().parse::<Cidr>().is_ok()
}

/// Reads `ip route`; returns the routes of both families, and the number of lines that are none.
pub(super) fn routes(lines: &[String]) -> ([Vec<Value>; 2], usize) {
    let mut all: Vec<(Family, Map<String, Value>)> = Vec::new();
    let mut around = Family::V4;
    let mut odd = 0;
    for line in lines.iter().filter(|line| !line.trim().is_empty()) {
        let words: Vec<&str> = line.split_whitespace().collect();
        if words[0] == "nexthop" {
            let of = |word: &str| {
                let at = words.iter().position(|own_word| *own_word == word)?;
                words
                    .get(at + 1)
                    .filter(|next| **next != "inet6")
                    .or_else(|| words.get(at + 2))
                    .copied()
            };
            let mut hop = Map::new();
            if let Some(gateway) = of("via").filter(|gateway| gateway.parse::<IpAddr>().is_ok()) {
                hop.insert("gateway".into(), json!(gateway));
            }
            if let Some(dev) = of("dev") {
                hop.insert("dev".into(), json!(dev));
            }
            if let Some((_, route)) = all.last_mut() {
                let hops = route.entry("nexthops").or_insert_with(|| json!([]));
                if let Value::Array(hops) = hops {
                    hops.push(Value::Object(hop));
                }
            }
            continue;
        }
        let Some(route) = route_line(line) else {
            odd += 1;
            continue;
        };
        let of = |key: &str| route.get(key).and_then(Value::as_str);
        let six = |text: &str| text.contains(':');
        let family = match of("dst") {
            Some("default") => match of("prefsrc").or_else(|| of("gateway")) {
                Some(addr) => {
                    if six(addr) {
                        Family::V6
                    } else {
                        Family::V4
                    }
                }
                None if route.contains_key("pref") => Family::V6,
                None => around,
            },
            Some(dst) => {
                if six(dst) {
                    Family::V6
                } else {
                    Family::V4
                }
            }
            None => around,
        };
        around = family;
        all.push((family, route));
    }
    let mut split = [Vec::new(), Vec::new()];
    for (family, route) in all {
        split[usize::from(family == Family::V6)].push(Value::Object(route));
    }
    (split, odd)
}

/// Returns whether `line` is of `ip rule`.
pub(super) fn is_rule(line: &str) -> bool {
    rule_line(line).is_some()
}

/// Reads `9: from all fwmark 0x10/0xff lookup 100`.
fn rule_line(line: &str) -> Option<Map<String, Value>> {
    let (priority, rest) = line.trim().split_once(':')?;
    let mut rule = Map::new();
    rule.insert("priority".into(), json!(priority.parse::<u32>().ok()?));
    let mut words = rest.split_whitespace().peekable();
    if words.next_if_eq(&"not").is_some() {
        rule.insert("not".into(), Value::Null);
    }
    (words.next()? == "from").then_some(())?;
    let prefix = |rule: &mut Map<String, Value>, key: &str, value: &str| -> Option<()> {
        if value == "all" {
            rule.insert(key.into(), json!("all"));
            return Some(());
        }
        let cidr: Cidr = value.parse().ok()?;
        rule.insert(key.into(), json!(cidr.addr.to_string()));
        rule.insert(format!("{key}len"), json!(cidr.prefix));
        Some(())
    };
    prefix(&mut rule, "src", words.next()?)?;
    while let Some(word) = words.next() {
        match word {
            "to" => prefix(&mut rule, "dst", words.next()?)?,
            "fwmark" => {
                let (value, mask) = words
                    .next()
                    .map(|mark| mark.split_once('/').unwrap_or((mark, "")))?;
                rule.insert("fwmark".into(), json!(value));
                if !mask.is_empty() {
                    rule.insert("fwmask".into(), json!(mask));
                }
            }
            "iif" | "oif" | "goto" => drop(rule.insert(word.into(), json!(words.next()?))),
            "lookup" | "table" => drop(rule.insert("table".into(), json!(words.next()?))),
            "suppress_prefixlength" => {
                rule.insert(word.into(), json!(words.next()?.parse::<u32>().ok()?));
            }
            "blackhole" | "unreachable" | "prohibit" | "nop" => {
                drop(rule.insert("action".into(), json!(word)));
            }
            "proto" | "uidrange" | "ipproto" | "sport" | "dport" | "tos" | "suppress_ifgroup" => {
                words.next();
            }
            _ => {}
        }
    }
    Some(rule)
}

/// Reads `ip rule`.
pub(super) fn rules(lines: &[String]) -> Vec<Value> {
    lines
        .iter()
        .filter_map(|line| rule_line(line))
        .map(Value::Object)
        .collect()
}

/// Returns whether `line` is the title of `route -n` or `netstat -rn`.
pub(super) fn is_route_title(line: &str) -> bool {
    let line = line.trim();
    line == "Kernel IP routing table"
        || line.starts_with("Destination") && line.contains("Gateway") && line.contains("Genmask")
}

/// Returns whether `line` can only be a row of `route -n` or `netstat -rn`, since their titles may be translated.
pub(super) fn is_plain_route_row(line: &str) -> bool {
    let words: Vec<&str> = line.split_whitespace().collect();
    let is_flag = |c: char| "UGHDMRCA!Icn".contains(c);
    matches!(words.as_slice(), [_, gateway, _, flags, _, _, _, _]
        if flags.starts_with(['U', '!']) && flags.chars().all(is_flag)
            && (*gateway == "*" || gateway.parse::<Ipv4Addr>().is_ok()))
        && route_row(line).is_some()
}

/// Returns whether `line` is a row of `route -n`.
pub(super) fn is_route_row(line: &str) -> bool {
    is_route_title(line) || route_row(line).is_some()
}

fn route_row(line: &str) -> Option<Map<String, Value>> {
    let words: Vec<&str> = line.split_whitespace().collect();
    let [dst, gateway, mask, flags, .., dev] = words.as_slice() else {
        return None;
    };
    let addr: Ipv4Addr = if *dst == "default" {
        Ipv4Addr::UNSPECIFIED
    } else {
        dst.parse().ok()?
    };
    let mask: Ipv4Addr = mask.parse().ok()?;
    let prefix = mask.to_bits().leading_ones();
    let mut route = Map::new();
    route.insert(
        "dst".into(),
        json!(if prefix == 0 {
            "default".to_owned()
        } else {
            format!("{addr}/{prefix}")
        }),
    );
    match (flags.contains('!'), *dev) {
        (true, _) => drop(route.insert("type".into(), json!("unreachable"))),
        (_, "*") => drop(route.insert("type".into(), json!("blackhole"))),
        (_, dev) => drop(route.insert("dev".into(), json!(dev))),
    }
    if flags.contains('G') {
        gateway.parse::<IpAddr>().ok()?;
        route.insert("gateway".into(), json!(gateway));
    }
    if let Some(metric) = words
        .get(4)
        .and_then(|word| word.parse::<u32>().ok())
        .filter(|_| words.len() == 8)
    {
        route.insert("metric".into(), json!(metric));
    }
    route.insert("flags".into(), json!([]));
    Some(route)
}

/// Reads `route -n`: the main table of IPv4.
pub(super) fn route_table(lines: &[String]) -> Vec<Value> {
    lines
        .iter()
        .filter_map(|line| route_row(line))
        .map(Value::Object)
        .collect()
}

/// Returns the addresses that `local` routes have: every local one of the node.
pub(super) fn local(routes: &[Value]) -> Vec<Value> {
    let mut all: Vec<Value> = Vec::new();
    for route in routes {
        let of = |key: &str| route.get(key).and_then(Value::as_str);
        let (Some("local"), Some(dst), Some(dev)) = (of("type"), of("dst"), of("dev")) else {
            continue;
        };
        let Ok(addr) = dst.parse::<IpAddr>() else {
            continue;
        };
        // Its prefix is that of the route of its link.
        let near = routes.iter().filter_map(|route| {
            let of = |key: &str| route.get(key).and_then(Value::as_str);
            let is_near =
                of("dev") == Some(dev) && of("protocol") == Some("kernel") && of("type").is_none();
            of("dst")
                .filter(|_| is_near)?
                .parse::<Cidr>()
                .ok()
                .filter(|cidr| cidr.contains(addr))
        });
        let prefix = near
            .map(|cidr| cidr.prefix)
            .max()
            .unwrap_or_else(|| Family::of(addr).bits());
        let family = if addr.is_ipv4() { "inet" } else { "inet6" };
        let scope = if addr.is_loopback() {
            "host"
        } else {
            scope_of(addr)
        };
        let info = json!({"family": family, "local": addr.to_string(), "prefixlen": prefix, "scope": scope});
        let link = all
            .iter_mut()
            .find(|link| link.get("ifname").and_then(Value::as_str) == Some(dev));
        if let Some(list) = link
            .and_then(|link| link.get_mut("addr_info"))
            .and_then(Value::as_array_mut)
        {
            list.push(info);
        } else {
            all.push(json!({"ifname": dev, "addr_info": [info]}));
        }
    }
    all
}
