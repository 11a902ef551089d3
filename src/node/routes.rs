//! Routes and routing policy rules.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use crate::evidence::{Gap, Item};
use crate::net::{Cidr, Family, Mark, NounError};

/// Routes of every table and family.
#[derive(Clone, Debug, Default)]
pub struct Routes {
    /// Routes, in the order of the list.
    pub all: Vec<Route>,
}

/// A route.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Route {
    /// IP family.
    pub family: Family,
    /// `unicast`, `local`, `broadcast`, `multicast`, `anycast`, `blackhole`, `unreachable`, `prohibit`, `throw`.
    pub kind: String,
    /// The table: `main`, `local`, `default` or a number.
    pub table: String,
    /// Destination prefix.
    pub destination: Cidr,
    /// Next hop; `None` for a directly connected destination.
    pub gateway: Option<IpAddr>,
    /// Outgoing link.
    pub device: Option<String>,
    /// Origin: `kernel`, `boot`, `static`, … or a number; `None` if unknown.
    pub protocol: Option<String>,
    /// Metric; the lowest is preferred.
    pub metric: u32,
    /// Preferred source address.
    pub source: Option<IpAddr>,
    /// `link`, `host`, `global`.
    pub scope: Option<String>,
    /// Next hops of a multipath route: gateway and link.
    pub nexthops: Vec<(Option<IpAddr>, Option<String>)>,
    /// `linkdown`, `dead`, `onlink`.
    pub flags: Vec<String>,
}

impl Route {
    /// Returns the links by which it goes out, of each of its next hops.
    pub fn devices(&self) -> Vec<&str> {
        if self.nexthops.is_empty() {
            return self.device.as_deref().into_iter().collect();
        }
        let all = self.nexthops.iter();
        all.filter_map(|(_, device)| device.as_deref()).collect()
    }
}

/// Routing policy rules of both families.
#[derive(Clone, Debug, Default)]
pub struct Rules {
    /// Rules, sorted by priority.
    pub all: Vec<PolicyRule>,
}

/// A routing policy rule.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct PolicyRule {
    /// IP family.
    pub family: Family,
    /// Priority; the lowest is evaluated first.
    pub priority: u32,
    /// Source prefix; `None` for all.
    pub from: Option<Cidr>,
    /// Destination prefix; `None` for all.
    pub to: Option<Cidr>,
    /// Firewall mark; `None` for all.
    pub mark: Option<Mark>,
    /// Incoming link; `None` for all.
    pub iif: Option<String>,
    /// Outgoing link; `None` for all.
    pub oif: Option<String>,
    /// Whether the rule is inverted.
    pub not: bool,
    /// Table that an ordinary rule looks up.
    pub table: Option<String>,
    /// `blackhole`, `unreachable`, `prohibit`; empty for a table look-up.
    pub action: String,
    /// Routes with at most this prefix length are ignored (`suppress_prefixlength`).
    pub suppress_prefix: Option<u32>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct RawRoute {
    #[serde(rename = "type")]
    kind: Option<String>,
    dst: String,
    gateway: Option<String>,
    via: Option<RawVia>,
    dev: Option<String>,
    table: Option<Value>,
    scope: Option<String>,
    protocol: Option<String>,
    prefsrc: Option<String>,
    metric: u32,
    /// Router preference; only IPv6 routes have it.
    pref: Option<String>,
    flags: Vec<String>,
    nexthops: Vec<RawHop>,
}

#[derive(Deserialize)]
struct RawVia {
    host: String,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct RawHop {
    gateway: Option<String>,
    via: Option<RawVia>,
    dev: Option<String>,
}

/// Parses each document as a list of `T`.
fn documents<T: DeserializeOwned>(item: Item, text: &str) -> Result<Vec<Vec<T>>, Gap> {
    let documents = serde_json::Deserializer::from_str(text).into_iter();
    documents
        .map(|list| list.map_err(|e| Gap::Failed(item, e.to_string())))
        .collect()
}

/// Parses `ip -j route show table all`; the output of both families may be two documents.
pub fn routes(text: &str) -> Result<Routes, Gap> {
    let mut all = Vec::new();
    for (place, document) in documents::<RawRoute>(Item::Routes, text)?
        .into_iter()
        .enumerate()
    {
        let document: Vec<_> = document.into_iter().filter(|r| !r.dst.is_empty()).collect();
        // A default route on a link contains no address: its family is that of the other routes in the document.
        let around = document.iter().find_map(|r| r.dst.parse::<Cidr>().ok());
        let family = around.map_or(if place == 0 { Family::V4 } else { Family::V6 }, |cidr| {
            cidr.family()
        });
        for raw in document {
            let dst = raw.dst.clone();
            let route = route(raw, family)
                .map_err(|why| Gap::Failed(Item::Routes, format!("route to {dst}: {why}")))?;
            all.push(route);
        }
    }
    Ok(Routes { all })
}

fn route(raw: RawRoute, around: Family) -> Result<Route, String> {
    let gateway = hop(raw.gateway, raw.via.as_ref())?;
    let source = ip(raw.prefsrc)?;
    let mut nexthops = Vec::new();
    for next in raw.nexthops {
        nexthops.push((hop(next.gateway, next.via.as_ref())?, next.dev));
    }
    let destination = match raw.dst.as_str() {
        "default" => {
            let first = nexthops.iter().find_map(|(gateway, _)| *gateway);
            // `via` may name a gateway of the other family, so the source decides first.
            let family = match source.or(gateway.filter(|_| raw.via.is_none())).or(first) {
                Some(addr) => Family::of(addr),
                None if raw.pref.is_some() => Family::V6,
                None => around,
            };
            Cidr {
                addr: match family {
                    Family::V4 => Ipv4Addr::UNSPECIFIED.into(),
                    Family::V6 => Ipv6Addr::UNSPECIFIED.into(),
                },
                prefix: 0,
            }
        }
        dst => dst.parse().map_err(|e: NounError| e.to_string())?,
    };
    Ok(Route {
        family: destination.family(),
        kind: raw.kind.unwrap_or_else(|| "unicast".to_owned()),
        table: raw.table.as_ref().map_or_else(|| "main".to_owned(), word),
        destination,
        gateway,
        device: raw.dev,
        protocol: raw.protocol,
        metric: raw.metric,
        source,
        scope: raw.scope,
        nexthops,
        flags: raw.flags,
    })
}

fn hop(gateway: Option<String>, via: Option<&RawVia>) -> Result<Option<IpAddr>, String> {
    ip(gateway.or_else(|| via.map(|via| via.host.clone())))
}

fn ip(text: Option<String>) -> Result<Option<IpAddr>, String> {
    text.map(|text| {
        text.parse()
            .map_err(|_| format!("{text:?} is not an address"))
    })
    .transpose()
}

/// Returns a name or number as text.
fn word(value: &Value) -> String {
    value
        .as_str()
        .map_or_else(|| value.to_string(), str::to_owned)
}

/// Parses `ip -j rule`; the output of both families may be two documents.
pub fn rules(text: &str) -> Result<Rules, Gap> {
    let mut all = Vec::new();
    for (place, document) in documents::<Map<String, Value>>(Item::Rules, text)?
        .into_iter()
        .enumerate()
    {
        // A rule without addresses does not show its family: the first document is IPv4.
        let family = if place == 0 { Family::V4 } else { Family::V6 };
        for raw in document.into_iter().filter(|raw| !raw.is_empty()) {
            let rule = rule(&raw, family).map_err(|why| {
                let priority = raw.get("priority").map_or_else(|| "?".to_owned(), word);
                Gap::Failed(Item::Rules, format!("rule {priority}: {why}"))
            })?;
            all.push(rule);
        }
    }
    all.sort_by_key(|rule| rule.priority);
    Ok(Rules { all })
}

fn rule(raw: &Map<String, Value>, around: Family) -> Result<PolicyRule, String> {
    let text = |key: &str| raw.get(key).filter(|value| !value.is_null()).map(word);
    let number = |key: &str| -> Result<Option<u32>, String> {
        let mark = text(key).map(|text| text.parse::<Mark>().map(|mark| mark.value));
        mark.transpose().map_err(|e| format!("{key}: {e}"))
    };
    let cidr = |key: &str, len: &str| match text(key).as_deref() {
        None | Some("all") => Ok(None),
        Some(addr) => {
            let full = text(len).map_or_else(|| addr.to_owned(), |len| format!("{addr}/{len}"));
            full.parse().map(Some).map_err(|e: NounError| e.to_string())
        }
    };
    let mask = number("fwmask")?.unwrap_or(u32::MAX);
    let (from, to): (Option<Cidr>, Option<Cidr>) = (cidr("src", "srclen")?, cidr("dst", "dstlen")?);
    Ok(PolicyRule {
        family: from.or(to).map_or(around, |cidr| cidr.family()),
        priority: number("priority")?.unwrap_or(0),
        from,
        to,
        mark: number("fwmark")?.map(|value| Mark { value, mask }),
        iif: text("iif"),
        oif: text("oif"),
        // Printed as `"not": null`.
        not: raw
            .get("not")
            .is_some_and(|value| *value != Value::Bool(false)),
        table: text("table"),
        action: text("action").unwrap_or_default(),
        suppress_prefix: number("suppress_prefixlen")?,
    })
}
