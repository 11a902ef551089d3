//! Routes and routing policy rules.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use crate::evidence::{Gap, Item};
use crate::net::{Cidr, Family, Mark, NounError, Proto};

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

    /// Returns whether it is in the main table, whose number is 254.
    pub fn is_main(&self) -> bool {
        matches!(self.table.as_str(), "main" | "254")
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
    /// The protocol; `None` for all.
    pub proto: Option<Proto>,
    /// Source ports, both ends included; `None` for all.
    pub source_ports: Option<(u16, u16)>,
    /// Destination ports, both ends included; `None` for all.
    pub ports: Option<(u16, u16)>,
    /// User IDs of the sending process, both ends included; `None` for all. Forwarded packets have 0.
    pub users: Option<(u32, u32)>,
    /// Type of service; 0 for all.
    pub tos: u8,
    /// Whether the rule is inverted.
    pub not: bool,
    /// The priority at which evaluation goes on (`goto`).
    pub goto: Option<u32>,
    /// Table that an ordinary rule looks up.
    pub table: Option<String>,
    /// `blackhole`, `unreachable`, `prohibit`; empty for a table look-up.
    pub action: String,
    /// Routes with at most this prefix length are ignored (`suppress_prefixlength`).
    pub suppress_prefix: Option<u32>,
}

impl fmt::Display for Route {
    /// Writes the route as `ip route` takes it, without its table: `blackhole 10.0.0.0/8`, `default via 10.0.0.1 dev eth0`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.kind != "unicast" {
            write!(f, "{} ", self.kind)?;
        }
        match self.destination.prefix {
            0 => f.write_str("default")?,
            _ => write!(f, "{}", self.destination)?,
        }
        if let Some(gateway) = self.gateway {
            write!(f, " via {gateway}")?;
        }
        if let Some(device) = self.device.as_ref().filter(|_| self.kind == "unicast") {
            write!(f, " dev {device}")?;
        }
        Ok(())
    }
}

impl Route {
    /// Returns the program that made it, which makes it again when it is deleted: its protocol, unless anything may have that.
    pub fn daemon(&self) -> Option<&str> {
        let who = self.protocol.as_deref()?;
        (!["boot", "static", "kernel", "unspec"].contains(&who)).then_some(who)
    }

    /// Returns the command that removes it.
    pub fn removal(&self) -> String {
        format!("{} route del {self}{}", program(self.family), self.place())
    }

    /// Returns the command that sets it, whatever route to its destination there is.
    pub fn replacement(&self) -> String {
        format!(
            "{} route replace {self}{}",
            program(self.family),
            self.place()
        )
    }

    /// Returns the command that gives packets by the route another source, in a shell.
    pub fn with_source(&self, source: IpAddr) -> String {
        let ip = program(self.family);
        format!("{ip} route replace {self} src {source}{}", self.place())
    }

    /// Returns the options of its table and metric, each after a blank.
    fn place(&self) -> String {
        let table = match self.table.as_str() {
            "main" => String::new(),
            table => format!(" table {table}"),
        };
        match self.metric {
            0 => table,
            metric => format!("{table} metric {metric}"),
        }
    }
}

impl fmt::Display for PolicyRule {
    /// Writes the rule as `ip rule` takes it, without its priority: `from 10.244.1.0/24 lookup 200`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.not {
            f.write_str("not ")?;
        }
        match self.from {
            Some(from) => write!(f, "from {from}")?,
            None => f.write_str("from all")?,
        }
        if let Some(to) = self.to {
            write!(f, " to {to}")?;
        }
        if let Some(mark) = self.mark {
            write!(f, " fwmark {:#x}/{:#x}", mark.value, mark.mask)?;
        }
        if let Some(link) = &self.iif {
            write!(f, " iif {link}")?;
        }
        if let Some(link) = &self.oif {
            write!(f, " oif {link}")?;
        }
        if self.tos != 0 {
            write!(f, " tos {:#x}", self.tos)?;
        }
        if let Some(proto) = self.proto {
            write!(f, " ipproto {proto}")?;
        }
        for (name, ports) in [("sport", self.source_ports), ("dport", self.ports)] {
            match ports {
                Some((first, last)) if first == last => write!(f, " {name} {first}")?,
                Some((first, last)) => write!(f, " {name} {first}-{last}")?,
                None => {}
            }
        }
        if let Some((first, last)) = self.users {
            write!(f, " uidrange {first}-{last}")?;
        }
        match (self.action.as_str(), &self.table, self.goto) {
            (_, _, Some(goto)) => write!(f, " goto {goto}")?,
            ("", Some(table), _) => write!(f, " lookup {table}")?,
            (action, ..) => write!(f, " {action}")?,
        }
        match self.suppress_prefix {
            Some(most) => write!(f, " suppress_prefixlength {most}"),
            None => Ok(()),
        }
    }
}

impl PolicyRule {
    /// Returns the kernel's own rule of `family` that looks up table main.
    pub fn main(family: Family) -> Self {
        Self {
            family,
            priority: 32766,
            from: None,
            to: None,
            mark: None,
            iif: None,
            oif: None,
            proto: None,
            source_ports: None,
            ports: None,
            users: None,
            tos: 0,
            not: false,
            goto: None,
            table: Some("main".to_owned()),
            action: String::new(),
            suppress_prefix: None,
        }
    }

    /// Returns the rule before this one with which packets to `range` look up table main, if this one leads to a table.
    pub fn bypass(&self, range: Cidr) -> Option<Self> {
        let leads_to_table = self.action.is_empty() && self.table.is_some();
        (leads_to_table && self.priority > 1).then(|| Self {
            priority: self.priority - 1,
            to: Some(range),
            ..Self::main(self.family)
        })
    }

    /// Returns the command that adds it.
    pub fn addition(&self) -> String {
        format!(
            "{} rule add {self} priority {}",
            program(self.family),
            self.priority
        )
    }

    /// Returns the command that removes it.
    pub fn removal(&self) -> String {
        format!(
            "{} rule del {self} priority {}",
            program(self.family),
            self.priority
        )
    }
}

/// Returns the beginning of the commands of `family`.
pub const fn program(family: Family) -> &'static str {
    match family {
        Family::V4 => "ip",
        Family::V6 => "ip -6",
    }
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
        .map(|list| list.map_err(|e| Gap::of_json(item, text, &e)))
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
        // A default route on a link contains no address: it has the family of the other routes in the document.
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

/// A network that a link is connected to.
#[derive(Clone, Debug)]
pub struct Connection {
    /// Name of the link.
    pub link: String,
    /// The network.
    pub network: Cidr,
    /// The node's own address in it.
    pub own: IpAddr,
}

/// Returns the networks to which the kernel itself has added a route, when the node got its address there.
pub fn connected(text: &str) -> Result<Vec<Connection>, Gap> {
    let all = routes(text)?.all.into_iter();
    let found = all.filter_map(|route| {
        let is_kernels = route.protocol.as_deref() == Some("kernel")
            && route.scope.as_deref() == Some("link")
            && route.gateway.is_none();
        Some(Connection {
            link: route.device.filter(|_| is_kernels)?,
            network: route.destination,
            own: route.source?,
        })
    });
    Ok(found.collect())
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
    let ports = |key: &str| -> Result<Option<(u16, u16)>, String> {
        let port = |key: &str| {
            let number = number(key)?.map(u16::try_from).transpose();
            number.map_err(|_| format!("{key} is no port"))
        };
        // A single port has one key of its own; a range has two with either name.
        let first = port(key)?.or(port(&format!("{key}_start"))?);
        let last = port(&format!("{key}_end"))?.or(first);
        Ok(first.zip(last))
    };
    let mask = number("fwmask")?.unwrap_or(u32::MAX);
    let (from, to): (Option<Cidr>, Option<Cidr>) = (cidr("src", "srclen")?, cidr("dst", "dstlen")?);
    let action = text("action");
    Ok(PolicyRule {
        family: from.or(to).map_or(around, |cidr| cidr.family()),
        priority: number("priority")?.unwrap_or(0),
        from,
        to,
        mark: number("fwmark")?.map(|value| Mark { value, mask }),
        iif: text("iif"),
        oif: text("oif"),
        proto: text("ipproto")
            .map(|name| {
                let name = name.strip_prefix("ipproto-").unwrap_or(&name);
                name.parse().map_err(|e: NounError| e.to_string())
            })
            .transpose()?,
        source_ports: ports("sport")?,
        ports: ports("dport")?,
        users: number("uid_start")?.zip(number("uid_end")?),
        tos: number("tos")?
            .and_then(|tos| u8::try_from(tos).ok())
            .unwrap_or(0),
        goto: number("goto")?,
        // Printed as `"not": null`.
        not: raw
            .get("not")
            .is_some_and(|value| *value != Value::Bool(false)),
        // A rule that ends packets looks nothing up, whatever table it was given.
        table: text("table").filter(|_| action.is_none()),
        action: action.unwrap_or_default(),
        suppress_prefix: number("suppress_prefixlen")?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn routes_and_rules_are_removed_by_what_they_are_added_with() {
        let routes = routes(
            r#"[{"type": "blackhole", "dst": "10.96.0.0/12", "flags": []},
                {"dst": "default", "gateway": "10.0.2.2", "dev": "eth0", "table": "202", "metric": 100, "flags": []}]"#,
        );
        let removals: Vec<String> = routes.unwrap().all.iter().map(Route::removal).collect();
        assert_eq!(
            removals,
            [
                "ip route del blackhole 10.96.0.0/12",
                "ip route del default via 10.0.2.2 dev eth0 table 202 metric 100",
            ]
        );
        let rules = rules(
            r#"[{"priority": 1000, "src": "10.244.1.0", "srclen": 24, "table": "200"},
                {"priority": 1001, "src": "all", "fwmark": "0x4000", "fwmask": "0x4000", "table": "201"},
                {"priority": 1002, "src": "all", "dst": "10.244.2.0", "dstlen": 24, "action": "prohibit"},
                {"priority": 1003, "src": "all", "iif": "cni0", "ipproto": "tcp", "dport": 8080, "action": "prohibit"},
                {"priority": 1004, "src": "all", "ipproto": "udp", "sport_start": 53, "sport_end": 54, "uid_start": 0, "uid_end": 9, "goto": 2000}]"#,
        );
        let removals: Vec<String> = rules.unwrap().all.iter().map(PolicyRule::removal).collect();
        assert_eq!(
            removals,
            [
                "ip rule del from 10.244.1.0/24 lookup 200 priority 1000",
                "ip rule del from all fwmark 0x4000/0x4000 lookup 201 priority 1001",
                "ip rule del from all to 10.244.2.0/24 prohibit priority 1002",
                "ip rule del from all iif cni0 ipproto tcp dport 8080 prohibit priority 1003",
                "ip rule del from all ipproto udp sport 53-54 uidrange 0-9 goto 2000 priority 1004",
            ]
        );
    }
}
