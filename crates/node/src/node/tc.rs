//! Queueing disciplines of links, and the filters of traffic control.

use std::collections::BTreeMap;
use std::fmt;

use serde::Deserialize;
use serde_json::{Map, Value};

use crate::evidence::{Gap, Item};
use crate::net::{Cidr, Proto};

/// The places where packets meet filters.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub enum Side {
    /// Packets that come in by the link.
    Ingress,
    /// Packets that leave by it, at the clsact or at the root qdisc.
    Egress,
}

/// Queueing disciplines and filters that may keep packets.
#[derive(Clone, Debug, Default)]
pub struct Tc {
    /// Filters by link; filters of one side are in the order in which packets meet them.
    pub filters: BTreeMap<String, Vec<Filter>>,
    /// Links whose qdisc loses packets for other reasons than a full queue.
    pub losses: BTreeMap<String, Loss>,
    /// Links whose root qdisc shares their rate out between classes.
    pub shapers: BTreeMap<String, Shaper>,
}

/// A root qdisc with classes of packets.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Shaper {
    /// `htb`, `hfsc`, …
    pub kind: String,
    /// The class of packets that no filter leads to one, as `MAJOR:MINOR`; `None` if that is not known.
    pub default: Option<String>,
    /// The classes by their names; `None` if they were not read.
    pub classes: Option<BTreeMap<String, Class>>,
}

/// A class of packets.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Class {
    /// The highest rate of its packets in bytes per second, if it is known.
    pub rate: Option<u64>,
    /// How many packets it dropped, if that is known.
    pub drops: Option<u64>,
}

impl Shaper {
    /// Returns whether it drops packets that neither a filter nor the default leads to a class.
    pub fn drops_others(&self) -> bool {
        match self.kind.as_str() {
            "drr" | "qfq" => true,
            "hfsc" => {
                let named = self.default.as_ref().zip(self.classes.as_ref());
                named.is_some_and(|(class, classes)| !classes.contains_key(class))
            }
            _ => false,
        }
    }
}

impl Class {
    /// Returns whether even a few connections are slower in it than their clients wait.
    pub fn is_slow(&self) -> bool {
        self.rate.is_some_and(|rate| rate < SLOW)
    }
}

/// The packets that a qdisc loses.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Loss {
    /// All.
    All,
    /// A share of them: 0 to 1.
    Share(f64),
    /// Some.
    Some,
}

impl fmt::Display for Loss {
    /// Writes how many: `30 %`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::All => f.write_str("all"),
            Self::Share(share) => write!(f, "{} %", (share * 1000.0).round() / 10.0),
            Self::Some => f.write_str("some"),
        }
    }
}

/// The program of a filter.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct FilterProgram {
    /// Its name, if it has one.
    pub name: Option<String>,
    /// Its number, if known.
    pub id: Option<u64>,
}

impl fmt::Display for FilterProgram {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.name, self.id) {
            (Some(name), Some(id)) => write!(f, "{name} (id {id})"),
            (Some(name), None) => f.write_str(name),
            (None, Some(id)) => write!(f, "with id {id}"),
            (None, None) => f.write_str("without a name"),
        }
    }
}

/// A filter.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Filter {
    /// Its side.
    pub side: Side,
    /// The word of `tc` for its parent: `ingress`, `egress` or `root`.
    pub hook: String,
    /// `ip`, `ipv6`, `all`, …
    pub protocol: String,
    /// The priority.
    pub pref: u32,
    /// `bpf`, `flower`, `matchall`, `u32`, …
    pub kind: String,
    /// The program that it runs, if it has a name or a number.
    pub program: Option<FilterProgram>,
    /// The packets that it matches.
    pub keys: Keys,
    /// Its effect on packets.
    pub does: Does,
    /// The class of the qdisc to which it leads packets, as `MAJOR:MINOR`, if it leads them to one.
    pub class: Option<String>,
}

/// The match of a filter: all parts together.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Keys {
    /// The sources.
    pub source: Option<Cidr>,
    /// The destinations.
    pub destination: Option<Cidr>,
    /// The protocol.
    pub proto: Option<Proto>,
    /// The source port.
    pub source_port: Option<u16>,
    /// The destination port.
    pub destination_port: Option<u16>,
    /// Whether it has other matches, which kpx does not read.
    pub others: bool,
}

/// The effect of a filter on the packets that it matches.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Does {
    /// They pass, and later filters see them, too.
    Nothing,
    /// They pass the filters behind it, too.
    Pass,
    /// They are dropped.
    Drop,
    /// They go to this link instead.
    Redirect(String),
    /// Something else, in words: they may be dropped, changed or redirected.
    Other(String),
}

impl fmt::Display for Filter {
    /// Writes the filter in the words with which `tc filter` finds it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            hook,
            protocol,
            pref,
            kind,
            ..
        } = self;
        write!(f, "{hook} protocol {protocol} pref {pref} {kind}")
    }
}

#[derive(Deserialize)]
struct Raw {
    qdiscs: Vec<RawQdisc>,
    filters: Vec<RawLink>,
    #[serde(default)]
    classes: Vec<RawClasses>,
}

/// The classes of one link.
#[derive(Deserialize)]
struct RawClasses {
    dev: String,
    classes: Vec<RawClass>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct RawClass {
    handle: String,
    ceil: Option<u64>,
    rate: Option<u64>,
    stats: RawStats,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct RawStats {
    drops: Option<u64>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct RawQdisc {
    kind: String,
    handle: String,
    dev: String,
    root: bool,
    options: Map<String, Value>,
}

#[derive(Deserialize)]
struct RawLink {
    dev: String,
    hook: String,
    filters: Vec<RawFilter>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct RawFilter {
    protocol: String,
    pref: u32,
    kind: String,
    chain: u32,
    options: Option<Map<String, Value>>,
}

/// Parses what `tc -j qdisc` and `tc -j filter` print of every link.
pub fn parse(text: &str) -> Result<Tc, Gap> {
    let raw: Raw = serde_json::from_str(text).map_err(|e| Gap::of_json(Item::Tc, text, &e))?;
    let mut tc = Tc::default();
    for qdisc in raw.qdiscs {
        if let Some(loss) = loss(&qdisc) {
            tc.losses.insert(qdisc.dev.clone(), loss);
        }
        if qdisc.root && qdisc.kind == "tbf" {
            // All packets are in its one class.
            let only = Class {
                rate: qdisc.options.get("rate").and_then(Value::as_u64),
                drops: None,
            };
            let shaper = Shaper {
                default: Some(String::new()),
                kind: qdisc.kind,
                classes: Some([(String::new(), only)].into()),
            };
            tc.shapers.insert(qdisc.dev, shaper);
        } else if qdisc.root && SHAPERS.contains(&&*qdisc.kind) {
            let shaper = Shaper {
                default: default_class(&qdisc),
                kind: qdisc.kind,
                classes: None,
            };
            tc.shapers.insert(qdisc.dev, shaper);
        }
    }
    for of in raw.classes {
        let Some(shaper) = tc.shapers.get_mut(&of.dev) else {
            continue;
        };
        let read = |class: RawClass| {
            let known = Class {
                rate: class.ceil.or(class.rate),
                drops: class.stats.drops,
            };
            (class.handle, known)
        };
        let classes = shaper.classes.get_or_insert_default();
        classes.extend(of.classes.into_iter().map(read));
    }
    for of in raw.filters {
        let side = if of.hook == "ingress" {
            Side::Ingress
        } else {
            Side::Egress
        };
        for filter in of.filters {
            // The head of several has no options; the options of other chains are reached from one of the first chains.
            let is_table = |option: &Map<String, Value>| option.contains_key("ht_divisor");
            let options = filter
                .options
                .filter(|option| filter.chain == 0 && !is_table(option));
            let Some(options) = options else {
                continue;
            };
            let list = tc.filters.entry(of.dev.clone()).or_default();
            list.push(Filter {
                side,
                hook: of.hook.clone(),
                pref: filter.pref,
                program: program(&options),
                keys: keys(&filter.kind, &options),
                does: does(&filter.kind, &options),
                class: class(&options),
                protocol: filter.protocol,
                kind: filter.kind,
            });
        }
    }
    for list in tc.filters.values_mut() {
        list.sort_by_key(|filter| (filter.hook == "root", filter.pref));
    }
    Ok(tc)
}

/// Qdiscs that share the rate of their link out between classes.
const SHAPERS: &[&str] = &["cbq", "drr", "hfsc", "htb", "qfq"];

/// Returns the class of packets that no filter leads to one.
fn default_class(qdisc: &RawQdisc) -> Option<String> {
    let default = qdisc.options.get("default")?;
    let minor = match default.as_str() {
        Some(text) => u32::from_str_radix(text.trim_start_matches("0x"), 16).ok()?,
        None => u32::try_from(default.as_u64()?).ok()?,
    };
    let major = qdisc.handle.trim_end_matches(':');
    (!major.is_empty()).then(|| format!("{major}:{minor:x}"))
}

/// Bytes of the first packet of a connection over TCP, with its Ethernet header.
const SYN: u64 = 74;

/// Returns what a qdisc loses.
fn loss(qdisc: &RawQdisc) -> Option<Loss> {
    match qdisc.kind.as_str() {
        "blackhole" => Some(Loss::All),
        // It drops what is larger than its burst.
        "tbf" => {
            let burst = qdisc.options.get("burst")?.as_u64()?;
            (burst < SYN).then_some(Loss::All)
        }
        "netem" => {
            let share = |value: &Value| value.as_f64().or_else(|| value.get("loss")?.as_f64());
            let mut models = qdisc.options.iter();
            let (key, value) = models.find(|(key, _)| key.starts_with("loss"))?;
            match share(value).filter(|_| key == "loss-random" || key == "loss") {
                Some(share) if share <= 0.0 => None,
                Some(share) if share >= 1.0 => Some(Loss::All),
                Some(share) => Some(Loss::Share(share)),
                None => Some(Loss::Some),
            }
        }
        _ => None,
    }
}

fn text<'o>(of: &'o Map<String, Value>, key: &str) -> Option<&'o str> {
    of.get(key)?.as_str().filter(|text| !text.is_empty())
}

/// Returns the class to which a filter leads packets.
fn class(options: &Map<String, Value>) -> Option<String> {
    let class = text(options, "flowid").or_else(|| text(options, "classid"));
    class.map(str::to_owned)
}

fn program(options: &Map<String, Value>) -> Option<FilterProgram> {
    let prog = options.get("prog").and_then(Value::as_object);
    let name = text(options, "bpf_name").or_else(|| text(prog?, "name"));
    let id = prog.and_then(|prog| prog.get("id")?.as_u64());
    (name.is_some() || id.is_some()).then(|| FilterProgram {
        name: name.map(str::to_owned),
        id,
    })
}

fn keys(kind: &str, options: &Map<String, Value>) -> Keys {
    match kind {
        "matchall" => Keys::default(),
        "flower" => flower(options),
        "u32" => u32_keys(options),
        _ => Keys {
            others: true,
            ..Keys::default()
        },
    }
}

fn flower(options: &Map<String, Value>) -> Keys {
    let mut keys = Keys::default();
    let Some(all) = options.get("keys").and_then(Value::as_object) else {
        keys.others = true;
        return keys;
    };
    for (name, value) in all {
        let address = || value.as_str().and_then(|text| text.parse::<Cidr>().ok());
        let port = || value.as_u64().and_then(|port| u16::try_from(port).ok());
        let is_read = match name.as_str() {
            // The protocol of the filter says the same.
            "eth_type" => matches!(value.as_str(), Some("ipv4" | "ipv6")),
            "ip_proto" => {
                keys.proto = value.as_str().and_then(|text| text.parse().ok());
                keys.proto.is_some()
            }
            "src_ip" => {
                keys.source = address();
                keys.source.is_some()
            }
            "dst_ip" => {
                keys.destination = address();
                keys.destination.is_some()
            }
            "src_port" => {
                keys.source_port = port();
                keys.source_port.is_some()
            }
            "dst_port" => {
                keys.destination_port = port();
                keys.destination_port.is_some()
            }
            _ => false,
        };
        keys.others |= !is_read;
    }
    keys
}

/// Reads the match of a `u32`: the addresses of IPv4, and nothing else.
fn u32_keys(options: &Map<String, Value>) -> Keys {
    let mut keys = Keys::default();
    let one;
    let all: &[Value] = match options.get("match") {
        Some(Value::Array(list)) => {
            // `tc` prints each with the same name, so that the last one is left of several.
            list
        }
        Some(of) => {
            keys.others = true;
            one = [of.clone()];
            &one
        }
        None => {
            keys.others = true;
            &[]
        }
    };
    keys.others |= options.contains_key("link");
    for key in all {
        let word = |name: &str| {
            let text = key.get(name)?.as_str()?;
            u32::from_str_radix(text.trim_start_matches("0x"), 16).ok()
        };
        let off = key.get("off").and_then(Value::as_i64);
        let is_relative = key.get("offmask").and_then(Value::as_str) != Some("");
        let range = match (word("value"), word("mask")) {
            (_, Some(0)) => continue,
            (Some(value), Some(mask)) if mask.leading_ones() == mask.count_ones() => Some(Cidr {
                addr: std::net::Ipv4Addr::from(value).into(),
                prefix: u8::try_from(mask.count_ones()).unwrap_or(32),
            }),
            _ => None,
        };
        match (off, range) {
            (Some(12), Some(range)) if !is_relative => keys.source = Some(range),
            (Some(16), Some(range)) if !is_relative => keys.destination = Some(range),
            _ => keys.others = true,
        }
    }
    keys
}

fn does(kind: &str, options: &Map<String, Value>) -> Does {
    if kind == "bpf" {
        let name = program(options);
        let name = name.map_or_else(
            || "a tc program".to_owned(),
            |name| format!("tc program {name}"),
        );
        return Does::Other(name);
    }
    let actions = options.get("actions").and_then(Value::as_array);
    // Without an action, it chooses a class of the qdisc.
    let Some(actions) = actions.filter(|all| !all.is_empty()) else {
        return Does::Pass;
    };
    let mut last = Does::Nothing;
    for action in actions.iter().filter_map(Value::as_object) {
        last = one(action);
        if matches!(last, Does::Drop | Does::Redirect(_) | Does::Other(_)) {
            return last;
        }
    }
    last
}

/// Kinds of actions that neither drop nor change packets by themselves: later actions decide.
const HARMLESS: &[&str] = &["gact", "police", "sample", "simple", "skbedit"];

/// Bytes per second below which even a few connections are slower than their clients wait.
const SLOW: u64 = 8_000;

/// Returns what an action does.
fn one(action: &Map<String, Value>) -> Does {
    let kind = text(action, "kind").unwrap_or_default();
    let control = action.get("control_action").and_then(Value::as_object);
    let control = control
        .and_then(|control| text(control, "type"))
        .unwrap_or("unknown");
    let other = |what: &str| Does::Other(format!("action {kind} {what}"));
    let random = action
        .get("prob")
        .and_then(|action| action.get("random_type")?.as_str());
    if kind == "gact" && random.is_some_and(|random| random != "none") {
        return other("by chance");
    }
    if kind == "skbedit" && action.contains_key("mark") {
        return other("mark");
    }
    if kind == "mirred" && text(action, "mirred_action") != Some("mirror") {
        let to = text(action, "to_dev").unwrap_or_default();
        return Does::Redirect(to.to_owned());
    }
    match control {
        // Only above its rate, like a full queue.
        "drop" | "shot" if kind == "police" => match action.get("rate").and_then(Value::as_u64) {
            Some(rate) if rate < SLOW => other(&format!("beyond {rate} bytes/s")),
            _ => Does::Nothing,
        },
        _ if kind != "mirred" && !HARMLESS.contains(&kind) => other(control),
        "drop" | "shot" => Does::Drop,
        "continue" | "pipe" | "reclassify" => Does::Nothing,
        "pass" | "ok" => Does::Pass,
        _ => other(control),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = r#"{"qdiscs":[
        {"kind":"noqueue","handle":"0:","dev":"lo","root":true,"refcnt":2,"options":{}},
        {"kind":"tbf","handle":"1:","dev":"veth0","root":true,"options":{"rate":125000,"burst":1500,"lat":25000}},
        {"kind":"tbf","handle":"1:","dev":"small","root":true,"options":{"rate":1000,"burst":50,"lat":25000}},
        {"kind":"netem","handle":"2:","dev":"slow","root":true,"options":{"limit":1000,"delay":{"delay":0.1}}},
        {"kind":"netem","handle":"2:","dev":"bad","root":true,"options":{"limit":1000,"loss-random":{"loss":0.25,"correlation":0}}},
        {"kind":"netem","handle":"2:","dev":"gone","root":true,"options":{"limit":1000,"loss-random":{"loss":1}}},
        {"kind":"netem","handle":"2:","dev":"model","root":true,"options":{"limit":1000,"loss-state":{"p13":0.1}}}],
        "filters":[
        {"dev":"eth0","hook":"egress","filters":[
            {"protocol":"ip","pref":7,"kind":"bpf","chain":0},
            {"protocol":"ip","pref":7,"kind":"bpf","chain":0,"options":{"handle":"0x1","bpf_name":"cil_to_netdev","direct-action":true,"prog":{"id":42,"name":"cil_to_netdev"}}},
            {"protocol":"ip","pref":3,"kind":"flower","chain":0,"options":{"handle":1,"keys":{"eth_type":"ipv4","ip_proto":"tcp","dst_ip":"10.1.1.1","dst_port":80},"not_in_hw":true,"actions":[{"order":1,"kind":"gact","control_action":{"type":"drop"},"prob":{"random_type":"none","control_action":{"type":"pass"},"val":0},"index":1,"ref":1,"bind":1}]}},
            {"protocol":"ip","pref":2,"kind":"flower","chain":0,"options":{"keys":{"ct_state":"+trk"}}},
            {"protocol":"ip","pref":9,"kind":"matchall","chain":1,"options":{"actions":[{"kind":"gact","control_action":{"type":"drop"}}]}}]},
        {"dev":"veth0","hook":"ingress","filters":[
            {"protocol":"all","pref":1,"kind":"u32","chain":0,"options":{"fh":"800::800","match":{"value":"0","mask":"0","offmask":"","off":0},"actions":[{"order":1,"kind":"mirred","mirred_action":"redirect","direction":"egress","to_dev":"bwp1","control_action":{"type":"stolen"}}]}},
            {"protocol":"all","pref":2,"kind":"matchall","chain":0,"options":{"actions":[{"kind":"skbedit","control_action":{"type":"pipe"}},{"kind":"mirred","mirred_action":"mirror","to_dev":"d1","control_action":{"type":"pipe"}}]}},
            {"protocol":"all","pref":4,"kind":"matchall","chain":0,"options":{"actions":[{"kind":"police","control_action":{"type":"drop"},"rate":1000}]}},
            {"protocol":"all","pref":5,"kind":"matchall","chain":0,"options":{"actions":[{"kind":"police","control_action":{"type":"drop"},"rate":125000}]}},
            {"protocol":"all","pref":3,"kind":"u32","chain":0,"options":{"match":[{"value":"a010000","mask":"ffff0000","offmask":"","off":12}],"actions":[{"kind":"gact","control_action":{"type":"pass"},"prob":{"random_type":"netrand"}}]}}]}]}"#;

    #[test]
    fn filters_and_losses_are_parsed_as_tc_prints_them() {
        let tc = parse(TEXT).unwrap();
        let losses: Vec<_> = tc
            .losses
            .iter()
            .map(|(link, of)| (link.as_str(), *of))
            .collect();
        assert_eq!(
            losses,
            [
                ("bad", Loss::Share(0.25)),
                ("gone", Loss::All),
                ("model", Loss::Some),
                ("small", Loss::All)
            ]
        );
        let of = |link: &str| -> Vec<String> {
            let all = tc.filters[link].iter();
            all.map(|filter| format!("{filter}: {:?}, others {}", filter.does, filter.keys.others))
                .collect()
        };
        assert_eq!(
            of("eth0"),
            [
                "egress protocol ip pref 2 flower: Pass, others true",
                "egress protocol ip pref 3 flower: Drop, others false",
                "egress protocol ip pref 7 bpf: Other(\"tc program cil_to_netdev (id 42)\"), others true",
            ]
        );
        assert_eq!(
            of("veth0"),
            [
                "ingress protocol all pref 1 u32: Redirect(\"bwp1\"), others true",
                "ingress protocol all pref 2 matchall: Nothing, others false",
                "ingress protocol all pref 3 u32: Other(\"action gact by chance\"), others false",
                "ingress protocol all pref 4 matchall: Other(\"action police beyond 1000 bytes/s\"), others false",
                "ingress protocol all pref 5 matchall: Nothing, others false",
            ]
        );
        let keys = &tc.filters["eth0"][1].keys;
        assert_eq!(
            (keys.destination_port, keys.proto),
            (Some(80), Some(Proto::Tcp))
        );
        assert_eq!(
            tc.filters["veth0"][2].keys.source,
            "10.1.0.0/16".parse().ok()
        );
        assert!(parse("[]").is_err() && parse("{}").is_err());
        let none = parse(r#"{"qdiscs":[],"filters":[]}"#).unwrap();
        assert!(none.filters.is_empty() && none.losses.is_empty());
    }
}
