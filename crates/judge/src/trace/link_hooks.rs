//! Hooks of nftables on links and bridges: families netdev and bridge, and ingress of inet.
//!
//! A packet of a pod on a bridge comes in by one of its ports, which is known if the pod's network was read.

use std::collections::BTreeMap;
use std::rc::Rc;

use smallvec::smallvec;

use super::World;
use super::branch::{Branch, End, Ends, Phase};
use super::hop::{Hook, Hop, Path};
use super::packet::{Flow, Link, OriginalTuple, Packet};
use super::walk::Walker;
use kpx_node::backend::nftables::model::{Base, Chain, Ruleset, Table};
use kpx_node::net::Family;
use kpx_node::node::NodeSnapshot;
use kpx_node::node::links::Links;

/// The priority at which a bridge passes packets to the rules of IP (`NF_BR_PRI_BRNF`). Of hooks with the same priority, the
/// last registered runs first.
const RULES_OF_IP: i32 = 0;

const fn always(_priority: i32) -> bool {
    true
}

/// Base chains on links and bridges, by priority.
#[derive(Debug, Default)]
pub(super) struct LinkHooks<'w> {
    chains: Vec<(&'w Base, &'w Table, &'w Chain)>,
    /// The ports of each bridge.
    bridges: BTreeMap<&'w str, Vec<&'w str>>,
}

impl<'w> LinkHooks<'w> {
    pub(super) fn new(rules: Option<&'w Ruleset>, links: Option<&'w Links>) -> Self {
        let mut this = Self::default();
        for table in rules.into_iter().flat_map(|rules| &rules.tables) {
            for chain in &table.chains {
                let Some(base) = &chain.base else {
                    continue;
                };
                if is_on_link(table, base) {
                    this.chains.push((base, table, chain));
                }
            }
        }
        this.chains.sort_by_key(|(base, ..)| base.priority);
        if this.chains.is_empty() {
            return this;
        }
        for link in links.into_iter().flat_map(|links| &links.all) {
            if link.kind == "bridge" {
                this.bridges.entry(&link.name).or_default();
            }
            if let Some(bridge) = &link.master {
                this.bridges.entry(bridge).or_default().push(&link.name);
            }
        }
        this
    }

    fn is_empty(&self) -> bool {
        self.chains.is_empty()
    }

    /// Returns the ports of `link`, if it is a bridge.
    fn ports(&self, link: &Link) -> Option<&[&'w str]> {
        match link {
            Link::Named(name) => self.bridges.get(&**name).map(Vec::as_slice),
            Link::None | Link::Unknown => None,
        }
    }
}

/// Returns whether a base chain of `table` is on links or bridges.
fn is_on_link(table: &Table, base: &Base) -> bool {
    match table.family.as_str() {
        "bridge" | "netdev" => true,
        "inet" => base.hook == "ingress",
        _ => false,
    }
}

/// Returns whether any chain of `rules` is on links or bridges.
pub(crate) fn any(rules: &Ruleset) -> bool {
    rules.tables.iter().any(|table| {
        let mut bases = table.chains.iter().filter_map(|chain| chain.base.as_ref());
        bases.any(|base| is_on_link(table, base))
    })
}

impl Walker<'_, '_, '_> {
    /// Lets a packet that comes in by a link pass the hooks of links first, if any exist.
    pub(super) fn by_link(&self, next: (Branch, Phase)) -> (Branch, Phase) {
        match next {
            (branch, Phase::Hook(Hook::Prerouting)) if !self.link_hooks.is_empty() => {
                (branch, Phase::Link)
            }
            next => next,
        }
    }

    /// Runs the hooks of the link by which a packet comes in.
    pub(super) fn come_in(&self, branch: Branch) -> Ends {
        let link = branch.packet.input.clone();
        let ends: Ends = smallvec![(branch, End::Accept)];
        if self.link_hooks.ports(&link).is_none() {
            return self.at_device(ends, "ingress", &link);
        }
        let ends = self.at_ports(ends, "ingress", &link);
        // With br_netfilter, the rules of IP come in between.
        if self.is_bridge_of_rules(&link) {
            return self.at_bridge(ends, "prerouting", Hook::Prerouting, |at| at <= RULES_OF_IP);
        }
        let ends = self.at_bridge(ends, "prerouting", Hook::Prerouting, always);
        let ends = self.at_bridge(ends, "input", Hook::Prerouting, always);
        self.at_device(ends, "ingress", &link)
    }

    /// Runs the hooks of a bridge that follow those of IP, once a packet is routed.
    pub(super) fn behind_bridge(&self, branch: Branch) -> Ends {
        let link = branch.packet.input.clone();
        let bridged = branch.packet.bridged;
        let ends: Ends = smallvec![(branch, End::Accept)];
        if self.link_hooks.is_empty() || !self.is_bridge_of_rules(&link) {
            return ends;
        }
        let ends = self.at_bridge(ends, "prerouting", Hook::Forward, |at| at > RULES_OF_IP);
        if bridged {
            return self.at_bridge(ends, "forward", Hook::Forward, always);
        }
        let ends = self.at_bridge(ends, "input", Hook::Forward, always);
        self.at_device(ends, "ingress", &link)
    }

    /// Runs the hooks of the link by which a packet goes out, if it got through those of IP.
    pub(super) fn go_by_link(&self, mut branch: Branch, hook: Hook, end: End) -> Ends {
        let link = branch.packet.output.clone();
        let bridged = branch.packet.bridged;
        let passes = matches!(end, End::Return | End::Accept);
        if self.link_hooks.is_empty() || hook != Hook::Postrouting || !passes {
            return smallvec![(branch, end)];
        }
        // nat has given a reply the address that the client asked.
        let answered = branch.packet.answers.filter(|_| branch.packet.translated);
        if let Some(original) = answered.filter(|_| !bridged) {
            branch.packet.set_source(original.destination);
            branch.packet.source_port = branch.packet.source_port.map(|_| original.port);
        }
        let mut ends: Ends = smallvec![(branch, end)];
        if !bridged {
            ends = self.at_device(ends, "egress", &link);
        }
        if self.link_hooks.ports(&link).is_none() {
            return ends;
        }
        if !bridged {
            ends = self.at_bridge(ends, "output", Hook::Postrouting, always);
        }
        ends = self.at_bridge(ends, "postrouting", Hook::Postrouting, always);
        self.at_ports(ends, "egress", &link)
    }

    fn is_bridge_of_rules(&self, link: &Link) -> bool {
        matches!(link, Link::Named(name) if self.bridges.iter().any(|bridge| **bridge == **name))
    }

    /// Runs the chains of a bridge at `hook` with these priorities, which see ports instead of the bridge.
    fn at_bridge(
        &self,
        mut ends: Ends,
        hook: &str,
        shown: Hook,
        is_due: impl Fn(i32) -> bool,
    ) -> Ends {
        let chains = &self.link_hooks.chains;
        let here = chains
            .iter()
            .filter(|(base, table, _)| table.family == "bridge" && base.hook == hook)
            .filter(|(base, ..)| is_due(base.priority));
        for (_, table, chain) in here {
            let mut next = Ends::new();
            for (mut branch, end) in ends {
                if !matches!(end, End::Return | End::Accept) {
                    next.push((branch, end));
                    continue;
                }
                let links = (branch.packet.input.clone(), branch.packet.output.clone());
                let packet = &mut branch.packet;
                packet.bridge = match (hook, &links) {
                    ("output" | "postrouting", (_, Link::Named(bridge)))
                    | (_, (Link::Named(bridge), _)) => Some(Rc::clone(bridge)),
                    _ => None,
                };
                let from = self.router.port_of(packet.original_source());
                let to = self.router.port_of(packet.destination());
                (packet.input, packet.output) = match hook {
                    "prerouting" | "input" => (from, Link::None),
                    "output" => (Link::None, to),
                    _ if packet.bridged => (from, to),
                    _ => (Link::Unknown, to),
                };
                for (mut branch, end) in self.nftables(branch, shown, table, chain) {
                    (branch.packet.input, branch.packet.output) = links.clone();
                    branch.packet.bridge = None;
                    next.push((branch, end));
                }
            }
            ends = next;
        }
        ends
    }

    /// Runs the chains at `hook` of `link` itself.
    fn at_device(&self, ends: Ends, hook: &str, link: &Link) -> Ends {
        let Link::Named(name) = link else {
            return ends;
        };
        self.at_some(ends, hook, |base| {
            has(base, name).then_some((!base.devices.is_empty(), &**name))
        })
    }

    /// Runs the chains at `hook` of the ports of bridge `link`. Unless the chains are on all ports, or the port of the pod is
    /// known, it is unknown whether a packet passes them.
    fn at_ports(&self, ends: Ends, hook: &str, link: &Link) -> Ends {
        let ports = self.link_hooks.ports(link).unwrap_or_default();
        let packet = ends.first().map(|(branch, _)| &branch.packet);
        let port = packet.map(|packet| match hook {
            "ingress" => self.router.port_of(packet.original_source()),
            _ => self.router.port_of(packet.destination()),
        });
        let port = match port {
            Some(Link::Named(name)) => ports.iter().copied().find(|port| **port == *name),
            _ => None,
        };
        self.at_some(ends, hook, |base| {
            if let Some(port) = port {
                return has(base, port).then_some((!base.devices.is_empty(), port));
            }
            let first = ports.iter().copied().find(|port| has(base, port))?;
            let certain = !base.devices.is_empty() && ports.iter().all(|port| has(base, port));
            Some((certain, first))
        })
    }

    /// Runs the chains at `hook` that `passed` selects: it returns whether packets certainly pass their link, and the link.
    fn at_some<'l>(
        &self,
        mut ends: Ends,
        hook: &str,
        passed: impl Fn(&Base) -> Option<(bool, &'l str)>,
    ) -> Ends {
        let shown = match hook {
            "ingress" => Hook::Prerouting,
            _ => Hook::Postrouting,
        };
        let chains = &self.link_hooks.chains;
        let here = chains.iter().filter(|(base, ..)| base.hook == hook);
        for (base, table, chain) in here {
            let Some((certain, on)) = passed(base) else {
                continue;
            };
            let mut next = Ends::new();
            for (branch, end) in ends {
                if !matches!(end, End::Return | End::Accept) {
                    next.push((branch, end));
                    continue;
                }
                let before = branch.clone();
                let ran = self.nftables(branch, shown, table, chain);
                let goes_on = |(_, end): &(Branch, End)| matches!(end, End::Return | End::Accept);
                if certain || ran.iter().all(goes_on) {
                    next.extend(ran);
                } else {
                    let reason = format!(
                        "chain {} in table {} {} may drop the packet: whether it passes {on} is unknown",
                        chain.name, table.family, table.name
                    );
                    next.push((before, End::Unknown(reason)));
                }
            }
            ends = next;
        }
        ends
    }

    /// Runs the hooks of links on the way of a reply: from `back` to the client behind `link`, both of this node.
    fn reply(&self, mut branch: Branch, back: &Link, link: &Link) -> Ends {
        branch.packet.input = back.clone();
        let bridged = self.is_bridge_of_rules(back) && back == link;
        branch.packet.bridged = bridged;
        let mut done = Ends::new();
        let mut live = self.come_in(branch);
        for step in 0..2 {
            let mut next = Ends::new();
            for (mut branch, end) in live {
                if !matches!(end, End::Return | End::Accept) {
                    done.push((branch, end));
                    continue;
                }
                branch.packet.output = link.clone();
                if step == 1 && !bridged {
                    branch.packet.translate_back();
                }
                next.extend(match step {
                    0 => self.behind_bridge(branch),
                    _ => self.go_by_link(branch, Hook::Postrouting, end),
                });
            }
            live = next;
        }
        done.extend(live);
        done
    }
}

/// Returns whether the chain may be of `link`: nft 1.0 does not list the links in JSON.
fn has(base: &Base, link: &str) -> bool {
    base.devices.is_empty() || base.devices.iter().any(|device| device == link)
}

/// Why a reply does not certainly pass the hooks of links.
#[derive(Clone, Debug)]
pub(crate) struct Stopped {
    /// Whether all replies end.
    pub(crate) certainly: bool,
    /// The reason, in words.
    pub(crate) reason: String,
    /// The rule that ends them.
    pub(crate) rule: Option<Rc<Hop>>,
}

/// Returns why replies of `flow`, whose source answers `original`, do not pass the hooks of links on their way from link `back` to link
/// `link`; `None` for a client that is the node itself.
pub(crate) fn reply<'n>(
    node: &'n NodeSnapshot<'n>,
    flow: &Flow,
    original: OriginalTuple,
    back: &str,
    link: Option<&str>,
) -> Option<Stopped> {
    let world = World {
        node,
        chains: Vec::new(),
        lasting: false,
    };
    let walker = Walker::new(&world, Family::of(flow.destination));
    if walker.link_hooks.is_empty() {
        return None;
    }
    let mut packet = Packet::of(flow);
    packet.answers = Some(original);
    packet.back = Some(original.source);
    packet.translated = true;
    let branch = Branch {
        packet: Box::new(packet),
        weight: 1.0,
        when: Vec::new(),
        path: Path::new(true),
    };
    let to = link.map_or(Link::None, |link| Link::Named(link.into()));
    let ends = walker.reply(branch, &Link::Named(back.into()), &to);
    let is_stopped = |(_, end): &&(Branch, End)| !matches!(end, End::Return | End::Accept);
    let (branch, end) = ends.iter().find(is_stopped)?;
    let certainly = branch.when.is_empty() && ends.len() == 1;
    let (certainly, reason) = match end {
        End::Drop(reason) | End::Reject(reason) => (certainly, reason),
        End::Unknown(reason) => (false, reason),
        End::Return | End::Accept | End::Stolen => return None,
    };
    Some(Stopped {
        certainly,
        reason: reason.clone(),
        rule: branch.path.hops().pop(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trace::{Carried, Entry, Verdict};
    use kpx_node::evidence::{Evidence, Item};
    use kpx_node::net::Proto;

    const LINKS: &str = r#"[{"ifindex": 2, "ifname": "eth0"}, {"ifindex": 3, "ifname": "eth1"}]"#;
    const ROUTES: &str =
        r#"[{"dst": "192.0.2.0/24", "dev": "eth0"}, {"dst": "198.51.100.0/24", "dev": "eth1"}]"#;

    /// Returns how a packet ends that comes in by eth0 and leaves by eth1, with these rules.
    fn end(item: Item, rules: &str) -> Verdict {
        let mut evidence = Evidence::default();
        evidence.insert(item, Ok(rules.to_owned()));
        evidence.insert(Item::Links, Ok(LINKS.to_owned()));
        evidence.insert(Item::Routes, Ok(ROUTES.to_owned()));
        let node = NodeSnapshot::new(&evidence);
        let flow = Flow {
            entry: Entry::Outside,
            source: Some([192, 0, 2, 7].into()),
            destination: [198, 51, 100, 7].into(),
            port: 80,
            mark: 0,
            carried: Carried::default(),
            proto: Proto::Tcp,
            established: false,
        };
        let world = World::whole(&node, Family::V4);
        crate::trace::overall(&world.walk(&flow).unwrap())
    }

    #[test]
    fn a_chain_stops_what_passes_its_links() {
        for (place, wanted) in [
            ("hook ingress device \"eth0\"", Verdict::Drop),
            ("hook ingress devices = { eth1, eth0 }", Verdict::Drop),
            ("hook ingress device \"eth1\"", Verdict::Unmatched),
            ("hook egress device \"eth1\"", Verdict::Drop),
            ("hook ingress", Verdict::Unknown),
        ] {
            let rules = format!(
                "table netdev low {{\n\tchain some {{\n\t\ttype filter {place} priority filter; policy accept;\n\
                 \t\tip daddr 198.51.100.7 drop\n\t}}\n}}\n"
            );
            assert_eq!(end(Item::NftText, &rules), wanted, "{place}");
        }
    }

    #[test]
    fn links_of_a_chain_are_read_from_json() {
        for (devices, wanted) in [
            (r#""dev": "eth0","#, Verdict::Drop),
            (r#""dev": ["eth1", "eth0"],"#, Verdict::Drop),
            (r#""dev": "eth1","#, Verdict::Unmatched),
            ("", Verdict::Unknown),
        ] {
            let rules = format!(
                r#"{{"nftables": [{{"table": {{"family": "netdev", "name": "low"}}}},
                {{"chain": {{"family": "netdev", "table": "low", "name": "some", "type": "filter", "hook": "ingress",
                 {devices} "prio": 0, "policy": "drop"}}}}]}}"#
            );
            assert_eq!(end(Item::Nft, &rules), wanted, "{devices}");
        }
    }
}
