//! Reads queueing disciplines of links and the filters of traffic control, in the format of `tc -j`.
//!
//! Sources: `pkt_cls.h`, `pkt_sched.h` and `tc_act/` of Linux, `tc/` of iproute2. Of a filter, its effect on packets and the
//! matches that kpx uses are printed; of an unknown part, only its kind.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{Ipv4Addr, Ipv6Addr};

use netlink_packet_core::{NLM_F_DUMP, NLM_F_REQUEST};
use serde_json::{Map, Value, json};

use super::context::Context;
use super::links::{link_names, print};
use super::netlink::{Line, attributes, text};
use kpx_node::evidence::{Gap, Item};

/// `RTM_GETQDISC`, `RTM_GETTCLASS` and `RTM_GETTFILTER`.
const GET_QDISC: u16 = 38;
const GET_CLASS: u16 = 42;
const GET_FILTER: u16 = 46;

/// The netlink header.
const HEADER: usize = 16;

/// Size of `struct tcmsg`.
const MESSAGE: usize = 20;

/// The parents of filters: of the qdisc `clsact` or `ingress`, and of the root qdisc.
const HOOKS: &[(&str, u32)] = &[
    ("ingress", 0xffff_fff2),
    ("egress", 0xffff_fff3),
    ("root", 0),
];

/// Root qdiscs that have no filters.
const WITHOUT_FILTERS: &[&str] = &["mq", "noqueue", "pfifo_fast"];

/// `TCA_*`.
mod attribute {
    pub(super) const KIND: u16 = 1;
    pub(super) const OPTIONS: u16 = 2;
    pub(super) const STATS: u16 = 7;
    pub(super) const CHAIN: u16 = 11;
}

/// Root qdiscs with classes that are read.
const WITH_CLASSES: &[&str] = &["cbq", "drr", "hfsc", "htb", "qfq"];

/// Numbers of the attributes with the class to which packets go, by the kind of filter.
const CLASSES: &[(&str, u16)] = &[
    ("basic", 1),
    ("bpf", 3),
    ("flower", 1),
    ("fw", 1),
    ("matchall", 1),
    ("u32", 1),
];

/// Numbers of the attributes with actions, by the kind of filter.
const ACTIONS: &[(&str, u16)] = &[
    ("basic", 3),
    ("bpf", 1),
    ("flower", 3),
    ("fw", 4),
    ("matchall", 2),
    ("u32", 7),
];

/// The effect of an action on a packet, as `tc` prints it.
const CONTROLS: &[(i32, &str)] = &[
    (-1, "continue"),
    (0, "pass"),
    (1, "reclassify"),
    (2, "drop"),
    (3, "pipe"),
    (4, "stolen"),
    (8, "trap"),
];

/// Numbers of the keys of `flower` that kpx prints, with their names; any other is printed as unknown.
mod flower {
    pub(super) const ETH_TYPE: u16 = 8;
    pub(super) const IP_PROTO: u16 = 9;
    /// Address and mask.
    pub(super) const ADDRESSES: [(u16, &str); 4] = [
        (10, "src_ip"),
        (12, "dst_ip"),
        (14, "src_ip"),
        (16, "dst_ip"),
    ];
    pub(super) const PORTS: [(u16, &str); 4] = [
        (18, "src_port"),
        (19, "dst_port"),
        (20, "src_port"),
        (21, "dst_port"),
    ];
    /// Masks of ports, which are printed only if they are not whole.
    pub(super) const PORT_MASKS: [u16; 4] = [35, 36, 37, 38];
    /// The class, actions, flags, and how many packets hardware has matched: no keys.
    pub(super) const NO_KEYS: [u16; 4] = [1, 3, 22, 86];
}

/// Reads qdiscs and filters of every link.
pub(super) fn read(item: Item, _context: &Context) -> Result<String, Gap> {
    let names = link_names(item)?;
    let mut socket = Line::route(item)?;
    let all: Vec<Vec<u8>> = ask(&mut socket, item, GET_QDISC, 0, 0)?;
    let mut qdiscs = Vec::new();
    let mut asked: BTreeSet<(u32, usize)> = BTreeSet::new();
    let mut shaped: BTreeSet<u32> = BTreeSet::new();
    for body in &all {
        let of = Object::read(body).map_err(|why| undecodable(item, &why))?;
        let is_gate = matches!(of.kind, "clsact" | "ingress");
        for (at, (hook, _)) in HOOKS.iter().enumerate() {
            let has_filters = match *hook {
                "root" => of.parent == u32::MAX && !WITHOUT_FILTERS.contains(&of.kind),
                "egress" => of.kind == "clsact",
                _ => is_gate,
            };
            if has_filters {
                asked.insert((of.link, at));
            }
        }
        let mut qdisc = Map::new();
        qdisc.insert("kind".to_owned(), json!(of.kind));
        qdisc.insert("dev".to_owned(), json!(name(&names, of.link)));
        if of.parent == u32::MAX {
            qdisc.insert("root".to_owned(), json!(true));
            if WITH_CLASSES.contains(&of.kind) {
                shaped.insert(of.link);
                qdisc.insert(
                    "handle".to_owned(),
                    json!(format!("{:x}:", of.handle >> 16)),
                );
            }
        }
        match of.kind {
            "htb" | "hfsc" => {
                qdisc.insert("options".to_owned(), default_class(of.kind, of.options));
            }
            "netem" => {
                qdisc.insert("options".to_owned(), netem(of.options));
            }
            "tbf" => {
                qdisc.insert("options".to_owned(), tbf(of.options));
            }
            _ => {}
        }
        qdiscs.push(Value::Object(qdisc));
    }
    let mut filters = Vec::new();
    for (link, at) in asked {
        let (hook, parent) = HOOKS[at];
        let of_link: Vec<Vec<u8>> = ask(&mut socket, item, GET_FILTER, link, parent)?;
        let all: Result<Vec<Value>, String> = of_link
            .iter()
            .filter_map(|body| filter(body, &names).transpose())
            .collect();
        let all = all.map_err(|why| undecodable(item, &why))?;
        if !all.is_empty() {
            filters.push(json!({"dev": name(&names, link), "hook": hook, "filters": all}));
        }
    }
    let mut classes = Vec::new();
    for link in shaped {
        let of_link: Vec<Vec<u8>> = ask(&mut socket, item, GET_CLASS, link, 0)?;
        let all: Result<Vec<Value>, String> = of_link.iter().map(|body| class(body)).collect();
        let all = all.map_err(|why| undecodable(item, &why))?;
        classes.push(json!({"dev": name(&names, link), "classes": all}));
    }
    let mut read = json!({"qdiscs": qdiscs, "filters": filters});
    if !classes.is_empty() {
        read["classes"] = classes.into();
    }
    Ok(print(&read))
}

/// Returns the handle of a class: `MAJOR:MINOR`.
fn handle(of: u32) -> String {
    format!("{:x}:{:x}", of >> 16, of & 0xffff)
}

/// Returns the default class of an `htb` (`struct tc_htb_glob`) or an `hfsc` (`struct tc_hfsc_qopt`), as its minor number.
fn default_class(kind: &str, options: Option<&[u8]>) -> Value {
    let options = options.unwrap_or_default();
    let minor = if kind == "hfsc" {
        let bytes = options.get(..2).and_then(|bytes| bytes.try_into().ok());
        bytes.map(|bytes| u32::from(u16::from_ne_bytes(bytes)))
    } else {
        let mut parts = attributes(options);
        parts.find_map(|part| match part {
            Ok((2, numbers)) => number(numbers, 8),
            _ => None,
        })
    };
    minor.map_or_else(
        || json!({}),
        |minor| json!({ "default": format!("{minor:#x}") }),
    )
}

/// Returns a class: its handle, its rates in bytes per second, and the number of its drops.
fn class(body: &[u8]) -> Result<Value, String> {
    let of = Object::read(body)?;
    let mut printed = Map::new();
    printed.insert("class".to_owned(), json!(of.kind));
    printed.insert("handle".to_owned(), json!(handle(of.handle)));
    let parts: Vec<(u16, &[u8])> =
        attributes(of.options.unwrap_or_default()).collect::<Result<_, _>>()?;
    let part = |number: u16| {
        let found = parts.iter().find(|(kind, _)| *kind == number);
        found.map(|(_, value)| *value)
    };
    let long = |number: u16| {
        let bytes = part(number)?.get(..8)?;
        Some(u64::from_ne_bytes(bytes.try_into().ok()?))
    };
    let short = |kind: u16, at: usize| Some(u64::from(number(part(kind)?, at)?));
    match of.kind {
        // `struct tc_htb_opt` has two `struct tc_ratespec`; rates above 32 bits are in attributes of their own.
        "htb" => {
            for (name, at, large) in [("rate", 8, 6), ("ceil", 20, 7)] {
                if let Some(rate) = long(large).or_else(|| short(1, at)) {
                    printed.insert(name.to_owned(), json!(rate));
                }
            }
        }
        // `struct tc_service_curve`: real time, link sharing, and the upper limit, which is the last number of each. Without a limit,
        // a class with a share gets what others leave.
        "hfsc" => {
            let has_share = part(2).is_some();
            let rate = short(3, 8).or_else(|| short(1, 8).filter(|_| !has_share));
            if let Some(rate) = rate {
                printed.insert("rate".to_owned(), json!(rate));
            }
        }
        _ => {}
    }
    if let Some(drops) = of.drops {
        printed.insert("stats".to_owned(), json!({ "drops": drops }));
    }
    Ok(Value::Object(printed))
}

fn undecodable(item: Item, why: &str) -> Gap {
    Gap::Failed(item, format!("cannot decode a netlink answer: {why}"))
}

fn name(names: &BTreeMap<u32, String>, link: u32) -> String {
    let name = names.get(&link);
    name.map_or_else(|| format!("if{link}"), Clone::clone)
}

/// Returns the bodies of all answers.
fn ask(
    socket: &mut Line,
    item: Item,
    kind: u16,
    link: u32,
    parent: u32,
) -> Result<Vec<Vec<u8>>, Gap> {
    let asks = |sequence: u32| {
        let length = u32::try_from(HEADER + MESSAGE).unwrap_or_default();
        let mut bytes = Vec::with_capacity(HEADER + MESSAGE);
        bytes.extend(length.to_ne_bytes());
        bytes.extend(kind.to_ne_bytes());
        bytes.extend((NLM_F_REQUEST | NLM_F_DUMP).to_ne_bytes());
        bytes.extend(sequence.to_ne_bytes());
        bytes.extend([0; 8]);
        bytes.extend(link.to_ne_bytes());
        bytes.extend([0; 4]);
        bytes.extend(parent.to_ne_bytes());
        bytes.extend([0; 4]);
        bytes
    };
    socket.stream(asks, |found: &mut Vec<Vec<u8>>, answer| {
        let body = answer.get(HEADER..);
        let body = body.ok_or_else(|| undecodable(item, "it is cut off"))?;
        found.push(body.to_owned());
        Ok(())
    })
}

/// A qdisc or a filter.
struct Object<'b> {
    link: u32,
    handle: u32,
    parent: u32,
    info: u32,
    kind: &'b str,
    options: Option<&'b [u8]>,
    chain: u32,
    drops: Option<u32>,
}

impl<'b> Object<'b> {
    fn read(body: &'b [u8]) -> Result<Self, String> {
        let number = |at: usize| number(body, at).ok_or_else(|| "it is cut off".to_owned());
        let mut this = Self {
            link: number(4)?,
            handle: number(8)?,
            parent: number(12)?,
            info: number(16)?,
            kind: "",
            options: None,
            chain: 0,
            drops: None,
        };
        for part in attributes(body.get(MESSAGE..).unwrap_or_default()) {
            match part? {
                (attribute::KIND, value) => this.kind = text(value)?,
                (attribute::OPTIONS, value) => this.options = Some(value),
                // `struct gnet_stats_queue`: the third number.
                (attribute::STATS, value) => {
                    let mut parts = attributes(value);
                    this.drops = parts.find_map(|part| match part {
                        Ok((3, queue)) => self::number(queue, 8),
                        _ => None,
                    });
                }
                (attribute::CHAIN, value) => {
                    this.chain = self::number(value, 0).unwrap_or_default();
                }
                _ => {}
            }
        }
        Ok(this)
    }
}

fn number(bytes: &[u8], at: usize) -> Option<u32> {
    let bytes = bytes.get(at..at + 4)?;
    Some(u32::from_ne_bytes(bytes.try_into().ok()?))
}

/// Returns the loss of a `netem`: the third number of its options.
fn netem(options: Option<&[u8]>) -> Value {
    let loss = options
        .and_then(|bytes| number(bytes, 8))
        .unwrap_or_default();
    // A model of losses is an attribute behind the numbers, and has one.
    let models = options.and_then(|bytes| bytes.get(24..));
    let mut parts = attributes(models.unwrap_or_default());
    let has_model = parts.any(|part| matches!(part, Ok((5, _))));
    match (has_model, loss) {
        (true, _) => json!({"loss-state": {}}),
        (false, 0) => json!({}),
        (false, loss) => {
            json!({"loss-random": {"loss": f64::from(loss) / f64::from(u32::MAX)}})
        }
    }
}

/// Returns the rate of a `tbf` in bytes per second, and its burst in bytes: the kernel says how long it takes to send it at the rate, in
/// units of 64 ns (`struct tc_tbf_qopt`).
fn tbf(options: Option<&[u8]>) -> Value {
    let mut parts = attributes(options.unwrap_or_default());
    let numbers = parts.find_map(|part| match part {
        Ok((1, numbers)) => Some(numbers),
        _ => None,
    });
    let at = |offset| Some(u64::from(number(numbers?, offset)?));
    match at(8).zip(at(28)) {
        Some((rate, ticks)) => {
            json!({"rate": rate, "burst": rate * ticks * 64 / 1_000_000_000})
        }
        None => json!({}),
    }
}

/// Returns a filter; `None` for the head of several.
fn filter(body: &[u8], names: &BTreeMap<u32, String>) -> Result<Option<Value>, String> {
    let of = Object::read(body)?;
    let Some(options) = of.options else {
        return Ok(None);
    };
    // The head of all filters of one priority has no handle.
    if of.handle == 0 && of.kind != "cgroup" {
        return Ok(None);
    }
    let [low, high, ..] = of.info.to_ne_bytes();
    let protocol = match u16::from_be_bytes([low, high]) {
        0x0003 => "all".to_owned(),
        0x0800 => "ip".to_owned(),
        0x86dd => "ipv6".to_owned(),
        0x0806 => "arp".to_owned(),
        0x8100 => "802.1Q".to_owned(),
        other => format!("[{other}]"),
    };
    let mut printed = Map::new();
    let found: Vec<(u16, &[u8])> = attributes(options).collect::<Result<_, _>>()?;
    let part = |kind: u16| {
        found
            .iter()
            .find(|(of, _)| *of == kind)
            .map(|(_, value)| *value)
    };
    match of.kind {
        "bpf" => {
            if let Some(name) = part(7) {
                printed.insert("bpf_name".to_owned(), json!(text(name)?));
            }
            let flags = part(8).and_then(|part| number(part, 0)).unwrap_or_default();
            if flags & 1 != 0 {
                printed.insert("direct-action".to_owned(), json!(true));
            }
            if let Some(id) = part(11).and_then(|part| number(part, 0)) {
                printed.insert("prog".to_owned(), json!({ "id": id }));
            }
        }
        "flower" => {
            printed.insert("keys".to_owned(), Value::Object(keys(&found)));
        }
        "u32" => {
            // A table of filters, or a link to one.
            if part(4).is_some() {
                return Ok(None);
            }
            if part(3).is_some() {
                printed.insert("link".to_owned(), json!(true));
            }
            if let Some(selector) = part(5) {
                printed.insert("match".to_owned(), matches(selector));
            }
        }
        _ => {}
    }
    let of_kind = CLASSES.iter().find(|(kind, _)| *kind == of.kind);
    let class = of_kind.and_then(|(_, attribute)| number(part(*attribute)?, 0));
    if let Some(class) = class.filter(|class| *class != 0) {
        printed.insert("flowid".to_owned(), json!(handle(class)));
    }
    let of_kind = ACTIONS.iter().find(|(kind, _)| *kind == of.kind);
    if let Some(list) = of_kind.and_then(|(_, number)| part(*number)) {
        let mut all = Vec::new();
        for one in attributes(list) {
            all.push(action(one?.1, names)?);
        }
        printed.insert("actions".to_owned(), all.into());
    }
    Ok(Some(json!({
        "protocol": protocol,
        "pref": of.info >> 16,
        "kind": of.kind,
        "chain": of.chain,
        "options": printed,
    })))
}

/// Returns the keys of a `flower`.
fn keys(found: &[(u16, &[u8])]) -> Map<String, Value> {
    let mut keys = Map::new();
    let mask = |kind: u16| {
        found
            .iter()
            .find(|(of, _)| *of == kind + 1)
            .map(|(_, value)| *value)
    };
    let masks = flower::ADDRESSES.map(|(kind, _)| kind + 1);
    for (kind, value) in found {
        let address = flower::ADDRESSES.iter().find(|(of, _)| of == kind);
        let port = flower::PORTS.iter().find(|(of, _)| of == kind);
        let short = <[u8; 2]>::try_from(*value).map(u16::from_be_bytes);
        match (kind, address, port, short) {
            (_, Some((_, name)), ..) => {
                let text = prefix(value, mask(*kind));
                keys.insert((*name).to_owned(), json!(text));
            }
            (_, _, Some((_, name)), Ok(port)) => {
                keys.insert((*name).to_owned(), json!(port));
            }
            (&flower::ETH_TYPE, _, _, Ok(kind)) => {
                let name = match kind {
                    0x0800 => "ipv4".to_owned(),
                    0x86dd => "ipv6".to_owned(),
                    other => format!("{other:04x}"),
                };
                keys.insert("eth_type".to_owned(), json!(name));
            }
            (&flower::IP_PROTO, ..) => {
                let name = match value.first() {
                    Some(6) => "tcp".to_owned(),
                    Some(17) => "udp".to_owned(),
                    Some(132) => "sctp".to_owned(),
                    Some(other) => format!("{other:02x}"),
                    None => String::new(),
                };
                keys.insert("ip_proto".to_owned(), json!(name));
            }
            (kind, ..) if flower::NO_KEYS.contains(kind) || masks.contains(kind) => {}
            (kind, ..) if flower::PORT_MASKS.contains(kind) && **value == [0xff; 2] => {}
            (kind, ..) => {
                keys.insert(format!("key_{kind}"), json!(true));
            }
        }
    }
    keys
}

/// Returns an address with its mask, as a prefix if it is one.
fn prefix(value: &[u8], mask: Option<&[u8]>) -> String {
    let address = match (<[u8; 4]>::try_from(value), <[u8; 16]>::try_from(value)) {
        (Ok(v4), _) => Ipv4Addr::from(v4).to_string(),
        (_, Ok(v6)) => Ipv6Addr::from(v6).to_string(),
        _ => return String::new(),
    };
    let Some(mask) = mask else {
        return address;
    };
    let ones: u32 = mask.iter().map(|byte| byte.leading_ones()).sum();
    let set: u32 = mask.iter().map(|byte| byte.count_ones()).sum();
    let is_prefix = ones == set
        && mask
            .iter()
            .zip(mask.iter().skip(1))
            .all(|(one, next)| *one == 0xff || *next == 0);
    if is_prefix {
        format!("{address}/{ones}")
    } else {
        format!("{address}/mask")
    }
}

/// Returns the keys of a `u32`: `struct tc_u32_sel` with one `struct tc_u32_key` after the other.
fn matches(selector: &[u8]) -> Value {
    let keys = selector.get(16..).unwrap_or_default();
    let keys = keys.chunks_exact(16).map(|key| {
        let big = |at: usize| {
            let bytes = key.get(at..at + 4).and_then(|part| part.try_into().ok());
            bytes.map_or(0, u32::from_be_bytes)
        };
        let signed = |at: usize| number(key, at).unwrap_or_default().cast_signed();
        json!({
            "value": format!("{:x}", big(4)),
            "mask": format!("{:x}", big(0)),
            "offmask": if signed(12) == 0 { "" } else { "nexthdr+" },
            "off": signed(8),
        })
    });
    keys.collect()
}

/// Returns an action: its kind, its verdict, and its other effects.
fn action(list: &[u8], names: &BTreeMap<u32, String>) -> Result<Value, String> {
    let (mut kind, mut options) = ("", None);
    for part in attributes(list) {
        match part? {
            (attribute::KIND, value) => kind = text(value)?,
            (attribute::OPTIONS, value) => options = Some(value),
            _ => {}
        }
    }
    let mut printed = Map::new();
    printed.insert("kind".to_owned(), json!(kind));
    let parts: Vec<(u16, &[u8])> =
        attributes(options.unwrap_or_default()).collect::<Result<_, _>>()?;
    let part = |number: u16| {
        parts
            .iter()
            .find(|(of, _)| *of == number)
            .map(|(_, value)| *value)
    };
    // `struct tc_gen`, which the parameters of most actions begin with: the third number is the verdict.
    let parameters = part(if kind == "police" { 1 } else { 2 });
    let at = if kind == "police" { 4 } else { 8 };
    if let Some(control) = parameters.and_then(|parameter| number(parameter, at)) {
        let control = control.cast_signed();
        let name = CONTROLS.iter().find(|(of, _)| *of == control);
        let name = match (name, control >> 28) {
            (Some((_, name)), _) => (*name).to_owned(),
            (None, 1) => "jump".to_owned(),
            (None, 2) => "goto".to_owned(),
            (None, _) => control.to_string(),
        };
        printed.insert("control_action".to_owned(), json!({ "type": name }));
    }
    match kind {
        // Of some packets, something else is made.
        "gact" if part(3).is_some() => {
            printed.insert("prob".to_owned(), json!({"random_type": "some"}));
        }
        "mirred" => {
            let (does, link) = (
                parameters.and_then(|parameter| number(parameter, 20)),
                parameters.and_then(|parameter| number(parameter, 24)),
            );
            let (what, direction) = match does {
                Some(1) => ("redirect", "egress"),
                Some(2) => ("mirror", "egress"),
                Some(3) => ("redirect", "ingress"),
                Some(4) => ("mirror", "ingress"),
                _ => ("unknown", "unknown"),
            };
            printed.insert("mirred_action".to_owned(), json!(what));
            printed.insert("direction".to_owned(), json!(direction));
            let link = link.map(|link| name(names, link)).unwrap_or_default();
            printed.insert("to_dev".to_owned(), json!(link));
        }
        "skbedit" => {
            if let Some(mark) = part(5).and_then(|part| number(part, 0)) {
                printed.insert("mark".to_owned(), json!(mark));
            }
        }
        "bpf" => {
            if let Some(name) = part(6) {
                printed.insert("bpf_name".to_owned(), json!(text(name)?));
            }
        }
        _ => {}
    }
    Ok(Value::Object(printed))
}

/// Returns the filters in answers of the kernel, as those of one link.
#[cfg(fuzzing)]
pub fn fuzz(bytes: &[u8]) -> String {
    let names = BTreeMap::new();
    let all = super::netlink::messages(bytes);
    let all = all.filter_map(|(_, message)| filter(message.get(HEADER..)?, &names).ok().flatten());
    let all: Vec<Value> = all.collect();
    json!({"qdiscs": [], "filters": [{"dev": "lo", "hook": "ingress", "filters": all}]}).to_string()
}

#[cfg(test)]
mod tests {
    use super::super::netlink::{append, nested};
    use super::*;

    /// A filter of link 7 at priority 9 for IPv4, with the attributes that `add` appends as its options.
    fn body(kind: &str, add: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
        let mut bytes = vec![0; MESSAGE];
        bytes[4..8].copy_from_slice(&7u32.to_ne_bytes());
        bytes[8..12].copy_from_slice(&1u32.to_ne_bytes());
        bytes[16..20].copy_from_slice(&(9u32 << 16 | u32::from(0x0800u16.to_be())).to_ne_bytes());
        append(&mut bytes, attribute::KIND, format!("{kind}\0").as_bytes());
        let mut options = Vec::new();
        add(&mut options);
        nested(&mut bytes, attribute::OPTIONS, &options);
        bytes
    }

    /// An action of this kind whose parameters have these numbers.
    fn made(kind: &str, parameters: &[u32]) -> Vec<u8> {
        let bytes: Vec<u8> = parameters
            .iter()
            .flat_map(|parameter| parameter.to_ne_bytes())
            .collect();
        let (mut list, mut of, mut options) = (Vec::new(), Vec::new(), Vec::new());
        append(&mut options, 2, &bytes);
        append(&mut of, attribute::KIND, format!("{kind}\0").as_bytes());
        nested(&mut of, attribute::OPTIONS, &options);
        nested(&mut list, 1, &of);
        list
    }

    fn names() -> BTreeMap<u32, String> {
        BTreeMap::from([(7, "eth0".to_owned()), (8, "ifb0".to_owned())])
    }

    fn bodies() -> Vec<Vec<u8>> {
        vec![
            body("matchall", |to| {
                nested(to, 2, &made("gact", &[1, 0, 2, 1, 1]));
            }),
            body("flower", |to| {
                append(to, 8, &[8, 0]);
                append(to, 9, &[6]);
                append(to, 12, &[10, 1, 0, 0]);
                append(to, 13, &[255, 255, 0, 0]);
                append(to, 19, &[0, 80]);
                append(to, 36, &[255, 255]);
                append(to, 99, &[1]);
                nested(to, 3, &made("mirred", &[1, 0, 4, 1, 1, 1, 8]));
            }),
            body("u32", |to| {
                let mut selector = vec![0; 16];
                selector.extend([255, 255, 255, 255, 10, 2, 2, 2]);
                selector.extend(16u32.to_ne_bytes());
                selector.extend([0; 4]);
                append(to, 5, &selector);
                nested(to, 7, &made("gact", &[1, 0, 0x2000_0001, 1, 1]));
            }),
            body("bpf", |to| {
                append(to, 7, b"cil_from_netdev\0");
                append(to, 8, &1u32.to_ne_bytes());
                append(to, 11, &42u32.to_ne_bytes());
            }),
        ]
    }

    #[test]
    fn filters_are_printed_as_tc_prints_them() {
        let all: Vec<Value> = bodies()
            .iter()
            .map(|body| filter(body, &names()).unwrap().unwrap())
            .collect();
        for (of, options) in all.iter().zip([
            json!({"actions": [{"kind": "gact", "control_action": {"type": "drop"}}]}),
            json!({
                "keys": {
                    "eth_type": "ipv4", "ip_proto": "tcp", "dst_ip": "10.1.0.0/16", "dst_port": 80, "key_99": true,
                },
                "actions": [{
                    "kind": "mirred", "control_action": {"type": "stolen"}, "mirred_action": "redirect",
                    "direction": "egress", "to_dev": "ifb0",
                }],
            }),
            json!({
                "match": [{"value": "a020202", "mask": "ffffffff", "offmask": "", "off": 16}],
                "actions": [{"kind": "gact", "control_action": {"type": "goto"}}],
            }),
            json!({"bpf_name": "cil_from_netdev", "direct-action": true, "prog": {"id": 42}}),
        ]) {
            assert_eq!(of["options"], options);
            assert_eq!((&of["protocol"], &of["pref"], &of["chain"]), (&json!("ip"), &json!(9), &json!(0)));
        }
    }

    /// A class of `htb` with these rates, which has dropped 7 packets.
    fn shaped(rate: u32, ceil: u32) -> Vec<u8> {
        let mut body = body("htb", |to| {
            let mut numbers = [0; 44];
            numbers[8..12].copy_from_slice(&rate.to_ne_bytes());
            numbers[20..24].copy_from_slice(&ceil.to_ne_bytes());
            append(to, 1, &numbers);
        });
        body[8..12].copy_from_slice(&0x0001_0020_u32.to_ne_bytes());
        let (mut stats, mut queue) = (Vec::new(), [0; 20]);
        queue[8..12].copy_from_slice(&7u32.to_ne_bytes());
        append(&mut stats, 3, &queue);
        nested(&mut body, attribute::STATS, &stats);
        body
    }

    #[test]
    fn classes_are_printed_as_tc_prints_them() {
        let wanted = json!({"class": "htb", "handle": "1:20", "rate": 125, "ceil": 250, "stats": {"drops": 7}});
        assert_eq!(class(&shaped(125, 250)), Ok(wanted));
        let glob = [3u32, 10, 0x20, 0, 0].map(u32::to_ne_bytes).concat();
        let mut options = Vec::new();
        append(&mut options, 2, &glob);
        assert_eq!(
            default_class("htb", Some(&options)),
            json!({"default": "0x20"})
        );
        assert_eq!(
            default_class("hfsc", Some(&[3, 0, 0, 0])),
            json!({"default": format!("{:#x}", u16::from_ne_bytes([3, 0]))})
        );
        assert_eq!(default_class("htb", None), json!({}));
        let led = body("u32", |to| append(to, 1, &0x0001_0020_u32.to_ne_bytes()));
        let led = filter(&led, &names()).unwrap().unwrap();
        assert_eq!(led["options"]["flowid"], "1:20");
    }

    #[test]
    fn no_bytes_cause_a_panic() {
        for body in bodies() {
            for at in 0..body.len() {
                drop(filter(&body[..at], &names()));
                for byte in [0, 1, 4, 127, 255] {
                    let mut changed = body.clone();
                    changed[at] = byte;
                    drop(filter(&changed, &names()));
                    drop(netem(Some(&changed)));
                    drop(class(&changed));
                    drop(default_class("htb", Some(&changed)));
                }
            }
        }
    }
}
