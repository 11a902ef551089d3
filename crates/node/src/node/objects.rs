//! Kernel objects that identify a mode, because only that mode writes them.

use std::collections::HashSet;
use std::net::{IpAddr, SocketAddr};

use super::{IptablesBackend, NodeSnapshot};
use crate::backend::Mode;
use crate::backend::chain_owner::{hashed, modes_of, set_purpose};
use crate::backend::iptables::model::{Match, Ruleset};
use crate::backend::iptables::portals::portals;
use crate::backend::ipvs::model::{DUMMY, Key};
use crate::backend::nftables::model::TABLE;
use crate::evidence::{Gap, Item};
use crate::net::{Family, Proto};

/// An object and its owner.
#[derive(Clone, Copy, Debug)]
pub struct Found<'n> {
    /// Mode that writes it; iptables if both iptables and ipvs mode write it.
    pub mode: Mode,
    /// Whether only this mode writes it.
    pub only: bool,
    /// IP family; `None` for an object of both families.
    pub family: Option<Family>,
    /// The object itself.
    pub object: Object<'n>,
}

impl Found<'_> {
    /// Returns whether a node in `mode` needs it.
    pub fn serves(&self, mode: Mode) -> bool {
        self.mode == mode || !self.only && mode != Mode::Nftables
    }
}

/// A kernel object.
#[derive(Clone, Copy, Debug)]
pub enum Object<'n> {
    /// An iptables chain.
    Chain {
        /// Table of the chain.
        table: &'n str,
        /// Name of the chain.
        chain: &'n str,
        /// Number of rules.
        rules: usize,
    },
    /// A rule that jumps from another software's chain to one of kube-proxy's.
    Jump {
        /// Table of the rule.
        table: &'n str,
        /// Chain that contains the rule.
        chain: &'n str,
        /// Target chain.
        to: &'n str,
    },
    /// An IP set.
    Set {
        /// Name of the set.
        name: &'n str,
        /// Number of members.
        members: usize,
    },
    /// A virtual server.
    Server {
        /// Transport protocol.
        proto: Proto,
        /// Address and port.
        at: SocketAddr,
    },
    /// The link kube-ipvs0.
    Link,
    /// An address of kube-ipvs0.
    Address(IpAddr),
    /// An nftables table.
    Table {
        /// Family in nft's spelling.
        family: &'static str,
        /// Number of rules.
        rules: usize,
    },
}

impl NodeSnapshot<'_> {
    /// Adds the chains of `family` in `store`, and the jumps to them, to `found`.
    pub(super) fn chains_of<'n>(
        &'n self,
        store: IptablesBackend,
        family: Family,
        found: &mut Vec<Found<'n>>,
    ) -> Result<(), Gap> {
        chains(self.iptables(store, family)?, family, found);
        Ok(())
    }

    /// Returns the modes whose rules of `family` in `store` lead packets to Services.
    pub fn dispatching(&self, store: IptablesBackend, family: Family) -> Vec<Mode> {
        self.iptables(store, family)
            .map_or_else(|_| Vec::new(), dispatching)
    }

    /// Adds the sets of `family` to `found`.
    pub(super) fn sets_of<'n>(
        &'n self,
        family: Family,
        found: &mut Vec<Found<'n>>,
    ) -> Result<(), Gap> {
        let ours = self.ipset()?.sets.iter().filter(|set| {
            set.name.starts_with("KUBE-6-") == (family == Family::V6)
                && set_purpose(&set.name).is_some()
        });
        found.extend(ours.map(|set| {
            let object = Object::Set {
                name: &set.name,
                members: set.members.len(),
            };
            of(Mode::Ipvs, Some(family), object)
        }));
        Ok(())
    }

    /// Adds kube-proxy's virtual servers of `family` to `found`: those at Service addresses and NodePorts.
    pub(super) fn servers_of(&self, family: Family, found: &mut Vec<Found<'_>>) -> Result<(), Gap> {
        let table = match self.ipvs() {
            Ok(table) => table,
            Err(_) if self.has_no_ipvs() => return Ok(()),
            Err(gap) => return Err(gap),
        };
        if !table.servers.is_empty() && !self.served().is_known {
            // Without Services, they cannot be distinguished from those of other software.
            self.services()?;
        }
        found.extend(table.servers.iter().filter_map(|server| {
            // kube-proxy creates no virtual server for a firewall mark.
            let Key::Address { proto, addr, port } = server.key else {
                return None;
            };
            let ours = Family::of(addr) == family && self.owns_server(addr, port);
            let at = SocketAddr::new(addr, port);
            ours.then(|| of(Mode::Ipvs, Some(family), Object::Server { proto, at }))
        }));
        Ok(())
    }

    /// Returns whether a virtual server at `addr` and `port` belongs to kube-proxy: at a Service address or NodePort.
    pub fn owns_server(&self, addr: IpAddr, port: u16) -> bool {
        let of = self.served();
        !of.is_known
            || of.services.contains(&addr)
            || (of.local.contains(&addr) && of.node_ports.contains(&port))
    }

    fn served(&self) -> &Served {
        self.served.get_or_init(|| Served::of(self))
    }

    /// Returns whether the kernel cannot have virtual servers: `ip_vs` is neither loaded nor built in.
    pub fn has_no_ipvs(&self) -> bool {
        self.lacks("ip_vs", "nf_conntrack")
    }

    /// Returns whether the kernel cannot have IP sets: `ip_set` is neither loaded nor built in.
    pub fn has_no_ip_sets(&self) -> bool {
        self.lacks("ip_set", "nfnetlink")
    }

    /// Returns whether `module`, which depends on `other`, is neither loaded nor built in.
    fn lacks(&self, module: &str, other: &str) -> bool {
        let Ok(modules) = self.modules() else {
            return false;
        };
        // A built-in module cannot depend on a loaded one.
        modules
            .loaded
            .as_ref()
            .is_some_and(|loaded| !loaded.contains_key(module) && loaded.contains_key(other))
    }

    /// Adds the addresses of kube-ipvs0 of `family` to `found`.
    pub(super) fn dummy_addresses(
        &self,
        family: Family,
        found: &mut Vec<Found<'_>>,
    ) -> Result<(), Gap> {
        let all = self.addresses()?.all.iter();
        // Link-scope addresses come from the kernel.
        let on =
            all.filter(|at| at.link == DUMMY && at.addr.family() == family && at.scope != "link");
        found.extend(on.map(|at| of(Mode::Ipvs, Some(family), Object::Address(at.addr.addr))));
        Ok(())
    }

    /// Adds the link kube-ipvs0 to `found`, if it exists.
    pub(super) fn dummy(&self, found: &mut Vec<Found<'_>>) -> Result<(), Gap> {
        if self.links()?.all.iter().any(|link| link.name == DUMMY) {
            found.push(of(Mode::Ipvs, None, Object::Link));
        }
        Ok(())
    }

    /// Adds kube-proxy's nftables table of `family` to `found`; returns whether it leads packets to Services.
    pub(super) fn table_of(&self, family: Family, found: &mut Vec<Found<'_>>) -> Result<bool, Gap> {
        let name = family.nft_name();
        let table = self.nft()?.table(name, TABLE);
        let Some(table) = table.filter(|table| !table.is_others()) else {
            return Ok(false);
        };
        let object = Object::Table {
            family: name,
            rules: table.chains.iter().map(|chain| chain.rules.len()).sum(),
        };
        found.push(of(Mode::Nftables, Some(family), object));
        // One of them is enough: the other base chain may be missing.
        let mut entries = ["nat-prerouting", "nat-output"].into_iter();
        Ok(entries.any(|name| {
            let chain = table.chain(name);
            chain.is_some_and(|chain| !chain.rules.is_empty())
        }))
    }

    /// Returns the modes whose rules of `family` lead packets to Services, in the iptables back end in use and in
    /// nftables.
    pub fn serving(&self, family: Family) -> Result<Vec<Mode>, Gap> {
        let mut serving = self.dispatching(IptablesBackend::InUse, family);
        let table = self.table_of(family, &mut Vec::new());
        serving.extend(matches!(table, Ok(true)).then_some(Mode::Nftables));
        if serving.is_empty() {
            self.iptables(IptablesBackend::InUse, family)?;
            match table {
                // Without nftables, the kernel has no table.
                Ok(_) | Err(Gap::NotApplicable(_)) => {}
                Err(gap) => return Err(gap),
            }
        }
        Ok(serving)
    }

    /// Returns whether the rules of `mode`, and of no other mode, lead packets to Services, for an IP family of any Service.
    pub fn is_served_by(&self, mode: Mode) -> bool {
        let services = self.services();
        let has = |family: Family| {
            let Ok(services) = services else {
                return true;
            };
            let mut addresses = services
                .iter()
                .flat_map(|service| &service.spec.cluster_ips);
            addresses.any(|ip| ip.parse().is_ok_and(|ip| Family::of(ip) == family))
        };
        let mut families = Family::BOTH.into_iter().filter(|family| has(*family));
        families.any(|family| self.serving(family).is_ok_and(|all| all == [mode]))
    }

    /// Returns the objects that only `mode` writes, in the iptables back end in use.
    ///
    /// Objects found count even if other data is missing; an empty result is returned only if all data was read.
    pub fn objects_of(&self, mode: Mode) -> Result<Vec<Found<'_>>, Gap> {
        let mut found = Vec::new();
        let mut unseen = None;
        for family in Family::BOTH {
            let reads = match mode {
                Mode::Iptables | Mode::Userspace => [
                    self.chains_of(IptablesBackend::InUse, family, &mut found),
                    Ok(()),
                ],
                Mode::Ipvs => {
                    let chains = self.chains_of(IptablesBackend::InUse, family, &mut found);
                    // Sets alone have no effect, so unreadable sets do not matter.
                    self.sets_of(family, &mut found).ok();
                    let servers = self.servers_of(family, &mut found);
                    self.dummy_addresses(family, &mut found).ok();
                    [chains, servers]
                }
                Mode::Nftables => [self.table_of(family, &mut found).map(|_| ()), Ok(())],
            };
            for read in reads {
                match read {
                    Ok(()) => {}
                    // Without IPv6 or IPVS there are no objects.
                    Err(Gap::Absent(Item::Iptables6, _)) if self.has_no_ipv6() => {}
                    Err(Gap::Absent(item, _)) if !item.is_iptables() => {}
                    Err(gap) => unseen = unseen.or(Some(gap)),
                }
            }
        }
        if mode == Mode::Ipvs
            && let Err(gap) = self.dummy(&mut found)
        {
            unseen = unseen.or(Some(gap));
        }
        found.retain(|owned_object| owned_object.mode == mode && owned_object.only);
        match unseen {
            Some(gap) if found.is_empty() => Err(gap),
            _ => Ok(found),
        }
    }
}

/// The addresses of kube-proxy's virtual servers.
#[derive(Debug)]
pub(super) struct Served {
    /// Whether they can be distinguished from those of keepalived.
    is_known: bool,
    /// Cluster IPs, and the addresses of kube-ipvs0.
    services: HashSet<IpAddr>,
    /// Addresses of the other links.
    local: HashSet<IpAddr>,
    node_ports: HashSet<u16>,
}

impl Served {
    fn of(node: &NodeSnapshot<'_>) -> Self {
        let addresses = node.addresses();
        let addresses = addresses.iter().flat_map(|addresses| &addresses.all);
        let (dummy, others): (Vec<_>, Vec<_>) = addresses.partition(|at| at.link == DUMMY);
        let services = node.services();
        let specs = || {
            services
                .iter()
                .flat_map(|all| all.iter())
                .map(|service| &service.spec)
        };
        let cluster_ips = specs().flat_map(|spec| &spec.cluster_ips);
        let cluster_ips = cluster_ips.filter_map(|ip| ip.parse().ok());
        Self {
            is_known: services.is_ok() || !dummy.is_empty(),
            services: dummy
                .iter()
                .map(|at| at.addr.addr)
                .chain(cluster_ips)
                .collect(),
            local: others.iter().map(|at| at.addr.addr).collect(),
            node_ports: specs()
                .flat_map(|spec| &spec.ports)
                .filter_map(|port| port.node_port)
                .collect(),
        }
    }
}

fn of(mode: Mode, family: Option<Family>, object: Object<'_>) -> Found<'_> {
    Found {
        mode,
        only: true,
        family,
        object,
    }
}

fn chains<'n>(rules: &'n Ruleset<'_>, family: Family, found: &mut Vec<Found<'n>>) {
    let owned = |table: &str, chain: &str, object| {
        let modes = modes_of(table, chain);
        Some(Found {
            only: modes.len() == 1,
            ..of(*modes.first()?, Some(family), object)
        })
    };
    for table in &rules.tables {
        for chain in &table.chains {
            let object = Object::Chain {
                table: &table.name,
                chain: &chain.name,
                rules: chain.rules.len(),
            };
            if let Some(chain) = owned(&table.name, &chain.name, object) {
                found.push(chain);
                continue;
            }
            // A jump from another software's chain belongs to its target chain.
            found.extend(chain.rules.iter().filter_map(|rule| {
                let to = rule.leads_to()?;
                let object = Object::Jump {
                    table: &table.name,
                    chain: &chain.name,
                    to,
                };
                owned(&table.name, to, object)
            }));
        }
    }
}

/// Returns the modes whose rules lead packets to Services. Modes iptables and ipvs both rewrite nat `KUBE-SERVICES`
/// completely, so the last writer shows; mode userspace has portals.
fn dispatching(rules: &Ruleset<'_>) -> Vec<Mode> {
    let userspace = portals(rules).next().is_some();
    let chain = rules.chain("nat", "KUBE-SERVICES");
    let rules = chain.map_or(&[][..], |chain| &chain.rules);
    let iptables = rules.iter().any(|rule| {
        rule.leads_to()
            .is_some_and(|to| to == "KUBE-NODEPORTS" || hashed(to).is_some())
    });
    let ipvs = rules.iter().any(|rule| {
        rule.matches
            .iter()
            .any(|matched| matches!(matched, Match::Set { name, .. } if set_purpose(&name.value).is_some()))
    });
    let mut modes = Vec::new();
    modes.extend(iptables.then_some(Mode::Iptables));
    modes.extend(ipvs.then_some(Mode::Ipvs));
    modes.extend(userspace.then_some(Mode::Userspace));
    modes
}
