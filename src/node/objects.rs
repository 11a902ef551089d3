//! The objects in the kernel that tell a mode: what only that mode writes.

use std::net::{IpAddr, SocketAddr};

use super::{NodeSnapshot, Store};
use crate::backend::Mode;
use crate::backend::iptables::model::{Match, Ruleset};
use crate::backend::ipvs::model::{DUMMY, Key};
use crate::backend::software::{hashed, modes_of, set_purpose};
use crate::evidence::{Gap, Item};
use crate::net::{Family, Proto};

/// One object, and whose it is.
#[derive(Clone, Copy, Debug)]
pub struct Found<'n> {
    /// The mode that writes it; the iptables mode for what the ipvs mode writes, too.
    pub mode: Mode,
    /// Whether no other mode writes it.
    pub only: bool,
    /// The family; `None` for an object of both.
    pub family: Option<Family>,
    /// The object.
    pub object: Object<'n>,
}

impl Found<'_> {
    /// Whether a node that runs in `mode` needs it.
    pub fn serves(&self, mode: Mode) -> bool {
        self.mode == mode || !self.only && mode != Mode::Nftables
    }
}

/// An object of one of the kernel's tables.
#[derive(Clone, Copy, Debug)]
pub enum Object<'n> {
    /// A chain of iptables.
    Chain {
        /// Its table.
        table: &'n str,
        /// Its name.
        chain: &'n str,
        /// How many rules it holds.
        rules: usize,
    },
    /// A rule that leads from a chain of others to one of kube-proxy's.
    Jump {
        /// The table.
        table: &'n str,
        /// The chain that holds the rule.
        chain: &'n str,
        /// The chain it leads to.
        to: &'n str,
    },
    /// An IP set.
    Set {
        /// Its name.
        name: &'n str,
        /// How many members it holds.
        members: usize,
    },
    /// A virtual server.
    Server {
        /// The protocol.
        proto: Proto,
        /// The address and port.
        at: SocketAddr,
    },
    /// The link kube-ipvs0.
    Link,
    /// An address of that link.
    Address(IpAddr),
    /// A table of nftables.
    Table {
        /// Its family, as nft names it.
        family: &'static str,
        /// How many rules it holds.
        rules: usize,
    },
}

impl NodeSnapshot<'_> {
    /// Adds the chains of `family` in `store`, and the jumps to them, to `found`.
    pub(super) fn chains_of<'n>(
        &'n self,
        store: Store,
        family: Family,
        found: &mut Vec<Found<'n>>,
    ) -> Result<(), Gap> {
        chains(self.iptables(store, family)?, family, found);
        Ok(())
    }

    /// Returns the modes whose rules of `family` in `store` lead packets to Services.
    pub(super) fn dispatching(&self, store: Store, family: Family) -> Vec<Mode> {
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

    /// Adds the virtual servers of `family` that kube-proxy made to `found`: those of Service addresses and of NodePorts.
    pub(super) fn servers_of(&self, family: Family, found: &mut Vec<Found<'_>>) -> Result<(), Gap> {
        let table = match self.ipvs() {
            Ok(table) => table,
            Err(_) if self.has_no_ipvs() => return Ok(()),
            Err(gap) => return Err(gap),
        };
        found.extend(table.servers.iter().filter_map(|server| {
            // kube-proxy makes no virtual server for a mark.
            let Key::Address { proto, addr, port } = server.key else {
                return None;
            };
            let ours = Family::of(addr) == family && self.owns_server(addr, port);
            let at = SocketAddr::new(addr, port);
            ours.then(|| of(Mode::Ipvs, Some(family), Object::Server { proto, at }))
        }));
        Ok(())
    }

    /// Returns whether a virtual server at `addr` and `port` is kube-proxy's: at an address of a Service, or a NodePort.
    pub fn owns_server(&self, addr: IpAddr, port: u16) -> bool {
        let local = self.addresses();
        let local = || local.iter().flat_map(|addresses| &addresses.all);
        let (dummy, others) = (
            || local().filter(|at| at.link == DUMMY),
            || local().filter(|at| at.link != DUMMY),
        );
        let services = self.services();
        let specs = || {
            services
                .iter()
                .flat_map(|all| all.iter().map(|service| &service.spec))
        };
        // Without Services there is nothing to tell keepalived's servers from kube-proxy's by.
        let known = services.is_ok() || dummy().next().is_some();
        let is_cluster_ip =
            || specs().any(|spec| spec.cluster_ips.iter().any(|ip| ip.parse() == Ok(addr)));
        let is_node_port =
            || specs().any(|spec| spec.ports.iter().any(|p| p.node_port == Some(port)));
        !known
            || dummy().any(|at| at.addr.addr == addr)
            || is_cluster_ip()
            || (others().any(|at| at.addr.addr == addr) && is_node_port())
    }

    /// Returns whether the kernel cannot hold virtual servers: their module is not loaded, and not built in either.
    pub fn has_no_ipvs(&self) -> bool {
        let Ok(modules) = self.modules() else {
            return false;
        };
        // What is built in cannot need a module, and ip_vs needs nf_conntrack.
        modules.loaded.as_ref().is_some_and(|loaded| {
            !loaded.contains_key("ip_vs") && loaded.contains_key("nf_conntrack")
        })
    }

    /// Adds the addresses of kube-ipvs0 of `family` to `found`.
    pub(super) fn dummy_addresses(
        &self,
        family: Family,
        found: &mut Vec<Found<'_>>,
    ) -> Result<(), Gap> {
        let all = self.addresses()?.all.iter();
        // The kernel gives every link an address of scope link.
        let on =
            all.filter(|at| at.link == DUMMY && at.addr.family() == family && at.scope != "link");
        found.extend(on.map(|at| of(Mode::Ipvs, Some(family), Object::Address(at.addr.addr))));
        Ok(())
    }

    /// Adds the link kube-ipvs0 to `found`, if it is there.
    pub(super) fn dummy(&self, found: &mut Vec<Found<'_>>) -> Result<(), Gap> {
        if self.links()?.all.iter().any(|link| link.name == DUMMY) {
            found.push(of(Mode::Ipvs, None, Object::Link));
        }
        Ok(())
    }

    /// Adds kube-proxy's nftables table of `family` to `found`; returns whether it leads packets to Services.
    pub(super) fn table_of(&self, family: Family, found: &mut Vec<Found<'_>>) -> Result<bool, Gap> {
        let name = match family {
            Family::V4 => "ip",
            Family::V6 => "ip6",
        };
        let Some(table) = self.nft()?.table(name, "kube-proxy") else {
            return Ok(false);
        };
        let object = Object::Table {
            family: name,
            rules: table.chains.iter().map(|chain| chain.rules.len()).sum(),
        };
        found.push(of(Mode::Nftables, Some(family), object));
        // One of the two is enough: what lacks is the other's.
        let mut entries = ["nat-prerouting", "nat-output"].into_iter();
        Ok(entries.any(|name| {
            let chain = table.chain(name);
            chain.is_some_and(|chain| !chain.rules.is_empty())
        }))
    }

    /// Returns the modes whose rules of `family` lead packets to Services, in the iptables back end in use and in
    /// nftables.
    pub fn serving(&self, family: Family) -> Result<Vec<Mode>, Gap> {
        let mut serving = self.dispatching(Store::InUse, family);
        let table = self.table_of(family, &mut Vec::new());
        serving.extend(matches!(table, Ok(true)).then_some(Mode::Nftables));
        if serving.is_empty() {
            self.iptables(Store::InUse, family)?;
            table?;
        }
        Ok(serving)
    }

    /// Returns what `mode` wrote that no other mode does, in the iptables back end in use.
    ///
    /// What is found is found, whatever else could not be seen; that nothing is found is known only if all was seen.
    pub fn objects_of(&self, mode: Mode) -> Result<Vec<Found<'_>>, Gap> {
        let mut found = Vec::new();
        let mut unseen = None;
        for family in Family::BOTH {
            let reads = match mode {
                Mode::Iptables => [self.chains_of(Store::InUse, family, &mut found), Ok(())],
                Mode::Ipvs => {
                    let chains = self.chains_of(Store::InUse, family, &mut found);
                    // By themselves sets do nothing, so it is no loss if they could not be read.
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
                    // Nothing to run it is nothing there: no ip6tables, no IPVS.
                    Err(Gap::Absent(item, _)) if item != Item::Iptables4 => {}
                    Err(gap) => unseen = unseen.or(Some(gap)),
                }
            }
        }
        if mode == Mode::Ipvs
            && let Err(gap) = self.dummy(&mut found)
        {
            unseen = unseen.or(Some(gap));
        }
        found.retain(|of| of.mode == mode && of.only);
        match unseen {
            Some(gap) if found.is_empty() => Err(gap),
            _ => Ok(found),
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
            // A jump from a chain that is not kube-proxy's goes with the chain it leads to.
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

/// Returns the modes whose rules nat `KUBE-SERVICES` has: both modes rewrite it whole, so the last to write shows.
fn dispatching(rules: &Ruleset<'_>) -> Vec<Mode> {
    let chain = rules.chain("nat", "KUBE-SERVICES");
    let rules = chain.map_or(&[][..], |chain| &chain.rules);
    let iptables = rules.iter().any(|rule| {
        rule.leads_to()
            .is_some_and(|to| to == "KUBE-NODEPORTS" || hashed(to).is_some())
    });
    let ipvs = rules.iter().any(|rule| {
        rule.matches
            .iter()
            .any(|of| matches!(of, Match::Set { name, .. } if set_purpose(&name.value).is_some()))
    });
    let mut modes = Vec::new();
    modes.extend(iptables.then_some(Mode::Iptables));
    modes.extend(ipvs.then_some(Mode::Ipvs));
    modes
}
