//! What the kernel holds of each mode: which one wrote last, and what another left behind.

use std::net::IpAddr;

use super::{Facts, Proof};
use crate::backend::Mode;
use crate::backend::iptables::model::{Chain, Match, Rule, Ruleset, Target};
use crate::backend::ipvs::model::{DUMMY, Key, VirtualServer};
use crate::evidence::{Gap, Item};
use crate::net::Family;
use crate::node::Store;

/// What [`Facts::observed`] reads.
pub const OBSERVED: &[Item] = &[Item::Iptables4, Item::Iptables6, Item::Nft, Item::NftText];

/// What [`Facts::leftovers`] reads.
pub const LEFTOVERS: &[Item] = &[
    Item::Iptables4,
    Item::Iptables6,
    Item::Nft,
    Item::NftText,
    Item::Ipset,
    Item::Ipvs,
    Item::IpvsSave,
    Item::Addresses,
    Item::Links,
    Item::Services,
    Item::Modules,
];

impl Facts<'_> {
    /// Returns the mode whose rules the kernel holds for `family`; `None` if it holds none.
    ///
    /// The iptables and ipvs modes share the chain KUBE-SERVICES of table nat, and whichever wrote last left its own
    /// content there: jumps to a chain per Service, or matches of IP sets.
    pub fn observed(&self, family: Family) -> Result<Option<Mode>, Gap> {
        let rules = self.node.iptables(Store::InUse, family);
        if let Ok(rules) = rules
            && let Some(chain) = rules.chain("nat", "KUBE-SERVICES")
        {
            return Ok(Some(writer(chain)));
        }
        let ip = match family {
            Family::V4 => "ip",
            Family::V6 => "ip6",
        };
        let nft = self.node.nft();
        if nft.is_ok_and(|nft| nft.table(ip, "kube-proxy").is_some()) {
            return Ok(Some(Mode::Nftables));
        }
        match (self.node.iptables(Store::InUse, family), self.node.nft()) {
            (Ok(_), Ok(_)) => Ok(None),
            (Err(gap), _) | (_, Err(gap)) => Err(gap),
        }
    }

    /// Returns what the mode `of` left in the kernel, on a node that runs in another.
    pub fn leftovers(&self, of: Mode) -> Result<Vec<Proof>, Gap> {
        match of {
            Mode::Iptables => self.chains(of),
            Mode::Ipvs => {
                let mut found = self.chains(of);
                let servers = self.servers();
                let link = self.dummy();
                if let Ok(found) = &mut found {
                    found.extend(servers.iter().flatten().cloned());
                    found.extend(link.iter().flatten().cloned());
                    found.extend(self.sets());
                }
                match found {
                    // What was found is found, whatever else could not be seen.
                    Ok(found) if found.is_empty() => {
                        servers?;
                        link?;
                        Ok(found)
                    }
                    found => found,
                }
            }
            Mode::Nftables => {
                let tables = self.node.nft()?.tables.iter();
                let ours = tables.filter(|table| table.name == "kube-proxy");
                Ok(ours
                    .map(|table| Proof::Object {
                        what: "nft-table",
                        name: format!("{} {}", table.family, table.name),
                    })
                    .collect())
            }
        }
    }

    /// Returns the chains that only the mode `of` uses, and the jumps to them from outside.
    fn chains(&self, of: Mode) -> Result<Vec<Proof>, Gap> {
        let mut found = Vec::new();
        for family in Family::BOTH {
            match self.node.iptables(Store::InUse, family) {
                Ok(rules) => found.extend(chains_of(of, rules, family)),
                // Without ip6tables there are no such chains.
                Err(Gap::Absent(..)) if family == Family::V6 => {}
                Err(gap) => return Err(gap),
            }
        }
        Ok(found)
    }

    /// Returns the virtual servers that kube-proxy made: those of Service addresses and of NodePorts.
    fn servers(&self) -> Result<Vec<Proof>, Gap> {
        let table = match self.node.ipvs() {
            Ok(table) => table,
            Err(_) if self.has_no_ipvs() => return Ok(Vec::new()),
            Err(Gap::Absent(..)) => return Ok(Vec::new()),
            Err(gap) => return Err(gap),
        };
        let addresses = self.node.addresses();
        let local = addresses.iter().flat_map(|a| a.all.iter());
        let (dummy, others): (Vec<_>, Vec<_>) = local.partition(|address| address.link == DUMMY);
        let services = self.node.services();
        let services = || services.iter().flat_map(|all| all.iter());
        let is_services = |addr: IpAddr| {
            dummy.iter().any(|address| address.addr.addr == addr)
                || services()
                    .flat_map(|service| &service.spec.cluster_ips)
                    .any(|ip| ip.parse() == Ok(addr))
        };
        let is_node_port = |addr: IpAddr, port: u16| {
            others.iter().any(|address| address.addr.addr == addr)
                && services()
                    .flat_map(|service| &service.spec.ports)
                    .any(|p| p.node_port == Some(port))
        };
        let ours = |server: &&VirtualServer| match server.key {
            Key::Address { addr, port, .. } => is_services(addr) || is_node_port(addr, port),
            Key::Fwmark { .. } => false,
        };
        let proof = |server: &VirtualServer| match server.key {
            Key::Address { proto, addr, port } => Proof::Object {
                what: "virtual-server",
                name: format!("{proto} {}", std::net::SocketAddr::new(addr, port)),
            },
            Key::Fwmark { mark, .. } => Proof::Object {
                what: "virtual-server",
                name: format!("fwmark {mark}"),
            },
        };
        Ok(table.servers.iter().filter(ours).map(proof).collect())
    }

    /// Whether the kernel cannot hold virtual servers: their module is not loaded, and not built in either.
    fn has_no_ipvs(&self) -> bool {
        let Ok(modules) = self.node.modules() else {
            return false;
        };
        // What is built in cannot need a module, and ip_vs needs nf_conntrack.
        modules.loaded.as_ref().is_some_and(|loaded| {
            !loaded.contains_key("ip_vs") && loaded.contains_key("nf_conntrack")
        })
    }

    fn dummy(&self) -> Result<Vec<Proof>, Gap> {
        let links = self.node.links()?;
        let Some(link) = links.all.iter().find(|link| link.name == DUMMY) else {
            return Ok(Vec::new());
        };
        let addresses = self.node.addresses();
        let on_it: Vec<_> = addresses
            .iter()
            .flat_map(|addresses| addresses.all.iter())
            .filter(|address| address.link == DUMMY && address.scope != "link")
            .map(|address| Proof::Address {
                link: DUMMY.to_owned(),
                address: address.addr.addr,
            })
            .collect();
        let mut found = vec![Proof::Link {
            link: link.name.clone(),
            state: format!("{} addresses", on_it.len()),
        }];
        found.extend(on_it);
        Ok(found)
    }

    /// Returns kube-proxy's sets, where sets could be read: by themselves they do nothing.
    fn sets(&self) -> Vec<Proof> {
        let Ok(sets) = self.node.ipset() else {
            return Vec::new();
        };
        let sets = sets.sets.iter();
        sets.filter(|set| is_set(&set.name))
            .map(|set| Proof::Object {
                what: "ipset",
                name: set.name.to_string(),
            })
            .collect()
    }
}

/// Returns the mode that wrote the chain KUBE-SERVICES of table nat.
fn writer(chain: &Chain<'_>) -> Mode {
    let of_ipvs = |rule: &Rule<'_>| {
        let set = rule.matches.iter().any(|m| matches!(m, Match::Set { .. }));
        let jump = jump(rule).is_some_and(|to| is_chain(Mode::Ipvs, "nat", to));
        set || jump
    };
    if chain.rules.iter().any(of_ipvs) {
        Mode::Ipvs
    } else {
        Mode::Iptables
    }
}

fn chains_of(of: Mode, rules: &Ruleset<'_>, family: Family) -> Vec<Proof> {
    let mut found = Vec::new();
    for table in &rules.tables {
        for chain in &table.chains {
            if is_chain(of, &table.name, &chain.name) {
                found.push(Proof::Chain {
                    family,
                    table: table.name.to_string(),
                    chain: chain.name.to_string(),
                    rules: chain.rules.len(),
                });
            }
            // Only a built-in chain has a policy.
            if chain.policy.is_none() {
                continue;
            }
            for rule in &chain.rules {
                if let Some(to) = jump(rule)
                    && is_chain(of, &table.name, to)
                {
                    found.push(Proof::Rule {
                        family,
                        table: table.name.to_string(),
                        rule: format!("{} -j {to}", chain.name),
                    });
                }
            }
        }
    }
    found
}

fn jump<'a>(rule: &'a Rule<'_>) -> Option<&'a str> {
    match &rule.target {
        Some(Target::Jump(to) | Target::Goto(to)) => Some(to),
        _ => None,
    }
}

/// Whether `chain` of `table` is one that the mode `of` uses and no other does.
///
/// Canaries are left out: they are empty. So is KUBE-FIREWALL, which the kubelet writes, too.
fn is_chain(of: Mode, table: &str, chain: &str) -> bool {
    match (of, table) {
        (Mode::Iptables, "nat") => chain == "KUBE-NODEPORTS" || is_hashed(chain),
        (Mode::Iptables, "filter") => {
            ["KUBE-SERVICES", "KUBE-EXTERNAL-SERVICES", "KUBE-NODEPORTS"].contains(&chain)
        }
        (Mode::Ipvs, "nat") => ["KUBE-NODE-PORT", "KUBE-LOAD-BALANCER"].contains(&chain),
        (Mode::Ipvs, "filter") => [
            "KUBE-NODE-PORT",
            "KUBE-SOURCE-RANGES-FIREWALL",
            "KUBE-IPVS-FILTER",
            "KUBE-IPVS-OUT-FILTER",
        ]
        .contains(&chain),
        _ => false,
    }
}

/// Whether `chain` is one of a Service or endpoint: a known prefix and 16 characters of base 32.
fn is_hashed(chain: &str) -> bool {
    use crate::backend::iptables::names::{EXT, FW, SEP, SVC, SVL, XLB};
    let hash = [SVC, SVL, EXT, FW, SEP, XLB]
        .iter()
        .find_map(|prefix| chain.strip_prefix(prefix));
    hash.is_some_and(|hash| {
        hash.len() == 16 && hash.bytes().all(|b| matches!(b, b'A'..=b'Z' | b'2'..=b'7'))
    })
}

/// How the names of the ipvs mode's sets begin, behind `KUBE-` or `KUBE-6-`.
const SETS: [&str; 8] = [
    "LOOP-BACK",
    "CLUSTER-IP",
    "EXTERNAL-IP",
    "LOAD-BALANCER",
    "NODE-PORT",
    "HEALTH-CHECK-NODE-PORT",
    "HLTH-CHK-NODE-PORT",
    "IPVS-IPS",
];

/// Whether kube-proxy's ipvs mode makes a set of that name, for either family.
fn is_set(name: &str) -> bool {
    let bare = name.strip_prefix("KUBE-6-").or(name.strip_prefix("KUBE-"));
    bare.is_some_and(|bare| SETS.iter().any(|known| bare.starts_with(known)))
}
