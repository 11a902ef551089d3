//! Routing decisions, as the kernel's `fib_rules` and `fib_lookup` make them.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::net::{Cidr, Family};
use crate::node::NodeSnapshot;
use crate::node::routes::{PolicyRule, Route};

/// A routing decision.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) enum Decision {
    /// To this host; the address to answer from.
    Local { source: Option<IpAddr> },
    /// Out through a link.
    Out {
        device: Option<String>,
        gateway: Option<IpAddr>,
        source: Option<IpAddr>,
    },
    /// No way out: the type of the route, such as `unreachable`, `prohibit` or `blackhole`; `None` for no route.
    Nowhere(Option<String>),
    /// The routes are not known.
    Unknown(String),
}

/// The packet's fields that a routing decision depends on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Lookup<'a> {
    pub(crate) destination: IpAddr,
    pub(crate) source: Option<IpAddr>,
    pub(crate) mark: u32,
    pub(crate) input: Option<&'a str>,
}

/// The node's routing, or its substitute where the routes are unknown.
#[derive(Debug)]
pub(crate) struct Router<'a> {
    node: &'a NodeSnapshot<'a>,
}

impl<'a> Router<'a> {
    pub(crate) fn new(node: &'a NodeSnapshot<'a>) -> Self {
        Self { node }
    }

    /// Returns the routing decision for a packet.
    pub(crate) fn decide(&self, lookup: Lookup<'_>) -> Decision {
        let routes = match self.node.routes() {
            Ok(routes) => &routes.all,
            Err(gap) => return self.without_routes(lookup.destination, &gap.to_string()),
        };
        let family = Family::of(lookup.destination);
        let defaults = default_rules(family);
        let rules = match self.node.rules() {
            Ok(rules) if rules.all.iter().any(|rule| rule.family == family) => &rules.all,
            _ => &defaults,
        };
        for rule in rules.iter().filter(|rule| rule.family == family) {
            if !applies(rule, lookup) {
                continue;
            }
            let Some(table) = &rule.table else {
                return Decision::Nowhere(Some(rule.action.clone()));
            };
            let found = best(routes, table, lookup.destination);
            let Some(route) = found else { continue };
            let short = |length| u32::from(route.destination.prefix) <= length;
            match route.kind.as_str() {
                "throw" => {}
                // Only what leads somewhere is passed over: fib_rules_lookup asks for errors first.
                "unicast" | "" | "local" | "broadcast" | "multicast" | "anycast"
                    if rule.suppress_prefix.is_some_and(short) => {}
                "unicast" | "" => return out(route),
                "local" | "broadcast" | "multicast" | "anycast" => {
                    return Decision::Local {
                        source: route.source,
                    };
                }
                other => return Decision::Nowhere(Some(other.to_owned())),
            }
        }
        Decision::Nowhere(None)
    }

    /// Returns the link whose address `addr` is (empty if unknown), or `None` if it is not this host's.
    ///
    /// As `inet_addr_type` does, this asks the local table alone.
    pub(crate) fn local_device(&self, addr: IpAddr) -> Result<Option<String>, String> {
        if let Ok(routes) = self.node.routes() {
            let found = best(&routes.all, "local", addr).filter(|route| route.kind == "local");
            if found.is_some() || routes.all.iter().any(|route| route.table == "local") {
                return Ok(found.map(|route| route.device.clone().unwrap_or_default()));
            }
        }
        if addr.is_loopback() {
            return Ok(Some("lo".to_owned()));
        }
        let addresses = self.node.addresses().map_err(|gap| gap.to_string())?;
        Ok(addresses
            .all
            .iter()
            .find(|a| a.addr.addr == addr)
            .map(|a| a.link.clone()))
    }

    /// Returns the address masquerading gives on `device` towards `gateway`, as `inet_select_addr` does.
    pub(crate) fn masquerade(
        &self,
        family: Family,
        device: Option<&str>,
        gateway: Option<IpAddr>,
    ) -> Option<IpAddr> {
        let addresses = &self.node.addresses().ok()?.all;
        let usable = || {
            addresses.iter().filter(move |a| {
                a.addr.family() == family
                    && a.scope == "global"
                    && !a
                        .flags
                        .iter()
                        .any(|f| f == "secondary" || f == "deprecated")
            })
        };
        let on = |name: &str| {
            let mut here = usable().filter(|a| a.link == name);
            let near = gateway.and_then(|g| {
                usable()
                    .filter(|a| a.link == name)
                    .find(|a| a.addr.contains(g))
            });
            near.or_else(|| here.next()).map(|a| a.addr.addr)
        };
        device
            .and_then(on)
            .or_else(|| usable().map(|a| a.addr.addr).next())
    }

    fn without_routes(&self, destination: IpAddr, gap: &str) -> Decision {
        match self.local_device(destination) {
            Ok(Some(_)) => {
                return Decision::Local {
                    source: Some(destination),
                };
            }
            Err(reason) => return Decision::Unknown(reason),
            Ok(None) => {}
        }
        let connected = self.node.addresses().ok().and_then(|addresses| {
            addresses
                .all
                .iter()
                .find(|a| a.addr.contains(destination) && !a.addr.is_host())
                .cloned()
        });
        match connected {
            Some(address) => Decision::Out {
                device: Some(address.link),
                gateway: None,
                source: Some(address.addr.addr),
            },
            None => Decision::Unknown(gap.to_owned()),
        }
    }
}

fn out(route: &Route) -> Decision {
    let (gateway, device) = match route.nexthops.first() {
        Some((gateway, device)) => (*gateway, device.clone()),
        None => (route.gateway, route.device.clone()),
    };
    Decision::Out {
        device,
        gateway,
        source: route.source,
    }
}

/// The best route of `table` to `destination`: the longest prefix, then the lowest metric.
fn best<'r>(routes: &'r [Route], table: &str, destination: IpAddr) -> Option<&'r Route> {
    let family = Family::of(destination);
    let fits = |route: &&Route| {
        route.family == family
            && same_table(&route.table, table)
            && route.destination.contains(destination)
            && !route.flags.iter().any(|f| f == "dead")
    };
    let rank = |route: &&Route| (std::cmp::Reverse(route.destination.prefix), route.metric);
    routes.iter().filter(fits).min_by_key(rank)
}

fn same_table(a: &str, b: &str) -> bool {
    fn number(name: &str) -> &str {
        match name {
            "local" => "255",
            "main" | "" => "254",
            "default" => "253",
            other => other,
        }
    }
    number(a) == number(b)
}

fn applies(rule: &PolicyRule, lookup: Lookup<'_>) -> bool {
    let any = |addr: Ipv4Addr| IpAddr::V4(addr);
    let source = lookup
        .source
        .unwrap_or(match Family::of(lookup.destination) {
            Family::V4 => any(Ipv4Addr::UNSPECIFIED),
            Family::V6 => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
        });
    let holds = rule.from.is_none_or(|p: Cidr| p.contains(source))
        && rule.to.is_none_or(|p| p.contains(lookup.destination))
        && rule.mark.is_none_or(|m| m.matches(lookup.mark))
        && rule
            .iif
            .as_deref()
            .is_none_or(|i| lookup.input.unwrap_or("lo") == i)
        && rule.oif.is_none();
    holds != rule.not
}

/// The rules every kernel starts with.
fn default_rules(family: Family) -> Vec<PolicyRule> {
    [(0, "local"), (32766, "main"), (32767, "default")]
        .map(|(priority, table)| PolicyRule {
            family,
            priority,
            from: None,
            to: None,
            mark: None,
            iif: None,
            oif: None,
            not: false,
            table: Some(table.to_owned()),
            action: String::new(),
            suppress_prefix: None,
        })
        .to_vec()
}
