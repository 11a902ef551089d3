//! Programs and maps of eBPF, and the Services that the maps of Cilium and Calico have.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::{IpAddr, SocketAddr};

use serde::Serialize;

use crate::evidence::bpf::{
    AtCgroup, AtLink, CalicoBackend, CalicoFrontend, CiliumBackend, CiliumService,
    CiliumSourceRange, Content, Dump, Map, Program,
};
use crate::evidence::{Gap, Item};
use crate::net::{Cidr, Family, Proto};

/// A service proxy of eBPF.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd, Serialize)]
#[cfg_attr(feature = "testing", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum Proxy {
    /// Cilium.
    Cilium,
    /// Calico with its eBPF data plane.
    Calico,
}

impl Proxy {
    /// Both.
    pub const ALL: [Self; 2] = [Self::Cilium, Self::Calico];

    /// Returns its name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Cilium => "Cilium",
            Self::Calico => "Calico",
        }
    }

    /// Returns the proxy to which a program belongs, by its name; `None` for other software.
    pub fn of_program(name: &str) -> Option<Self> {
        let has = |prefixes: &[&str]| prefixes.iter().any(|prefix| name.starts_with(prefix));
        // The names of the C functions in both projects.
        if has(&["cil_"]) {
            Some(Self::Cilium)
        } else if has(&["calico_", "cali_"]) {
            Some(Self::Calico)
        } else {
            None
        }
    }
}

impl fmt::Display for Proxy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl fmt::Display for Program {
    /// Writes `NAME (id ID)`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name.as_str() {
            "" => write!(f, "with id {}", self.id),
            name => write!(f, "{name} (id {})", self.id),
        }
    }
}

/// Programs and maps of eBPF. Each part is known or has a [`Gap`].
#[derive(Clone, Debug)]
pub struct Bpf {
    dump: Dump,
    tables: Result<Vec<Read>, Gap>,
}

/// The Services of one proxy and family, or why they were not read.
type Read = (Proxy, Family, Result<Table, Gap>);

/// The Services of one family in the maps of one proxy.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Table {
    /// The proxy.
    pub proxy: Proxy,
    /// The family.
    pub family: Family,
    /// ID of the map with front ends.
    pub map: u32,
    /// Front ends, sorted.
    pub frontends: Vec<Frontend>,
}

/// A destination of packets to a Service, and its backends.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Frontend {
    /// The address.
    pub at: Place,
    /// The port; 0 for an entry that catches all other ports of the address.
    pub port: u16,
    /// The protocol; number 0 for TCP and UDP alike, as Cilium before 1.17 writes it.
    pub proto: Proto,
    /// The clients that it is for.
    pub clients: Clients,
    /// The sources that it is for, if not all.
    pub source: Option<Cidr>,
    /// The kind of address.
    pub kind: Kind,
    /// Whether it drops all packets.
    pub drops: bool,
    /// The source ranges from which it accepts clients outside, if it checks them.
    pub ranges: Option<Ranges>,
    /// Whether an L7 proxy on the node gets its packets instead of the backends.
    pub l7_proxy: bool,
    /// Backends, in their order. A backend may be there twice.
    pub backends: Vec<Backend>,
    /// Number of backends that the front end has and the map of backends has not.
    pub missing: usize,
}

/// Sources of clients outside that a front end lets in.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Ranges {
    /// Whether it drops packets of these instead of those of others.
    pub deny: bool,
    /// The sources; `None` if they were not read.
    pub sources: Option<Vec<Cidr>>,
}

/// A connection to look up among front ends.
#[derive(Clone, Copy, Debug)]
pub struct Sought {
    /// Its destination.
    pub address: IpAddr,
    /// The port.
    pub port: u16,
    /// The protocol.
    pub proto: Proto,
    /// Whether the address is one of this node.
    pub own: bool,
    /// Whether the client is outside the cluster.
    pub outside: bool,
    /// The client's address, if known.
    pub client: Option<IpAddr>,
}

/// The address of a front end.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub enum Place {
    /// This one.
    Address(IpAddr),
    /// Any address of this node, or of another one: a NodePort.
    AnyNode,
}

/// The clients of a front end.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub enum Clients {
    /// All, unless another front end is for those inside the cluster.
    All,
    /// Clients inside the cluster.
    Inside,
}

/// The kind of a front end's address.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub enum Kind {
    /// A cluster IP, or unknown.
    ClusterIp,
    /// An external IP.
    ExternalIp,
    /// The address of a load balancer.
    LoadBalancer,
    /// A NodePort.
    NodePort,
    /// The `hostPort` of a pod.
    HostPort,
    /// A redirection to backends on the node.
    LocalRedirect,
}

/// A backend.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub struct Backend {
    /// Address and port.
    pub addr: SocketAddr,
    /// Whether it gets new connections. Terminating backends do if there are no others.
    pub active: bool,
    /// Whether only clients that may use backends of other nodes get it.
    pub remote_only: bool,
}

impl Frontend {
    /// Returns the backends that get new connections.
    pub fn active(&self) -> impl Iterator<Item = &Backend> {
        self.backends.iter().filter(|backend| backend.active)
    }

    /// Returns whether it serves `proto`.
    pub fn is_for(&self, proto: Proto) -> bool {
        self.proto == proto || self.is_for_any()
    }

    /// Returns whether it serves all protocols alike.
    pub fn is_for_any(&self) -> bool {
        self.proto.number() == 0
    }

    /// Returns whether it catches all other ports of its address.
    pub const fn is_wildcard(&self) -> bool {
        self.port == 0
    }

    /// Returns whether it lets in packets of a client outside; `None` if that is unknown.
    pub fn admits(&self, client: Option<IpAddr>) -> Option<bool> {
        let Some(ranges) = &self.ranges else {
            return Some(true);
        };
        let (client, sources) = (client?, ranges.sources.as_ref()?);
        let is_in = sources.iter().any(|source| source.contains(client));
        Some(is_in != ranges.deny)
    }
}

impl Table {
    /// Returns the front end that a connection gets; `None` if the map has none for it. That of a client outside may be one that
    /// drops packets to all other ports of the address.
    pub fn lookup(&self, of: &Sought) -> Option<&Frontend> {
        let clients: &[Clients] = if of.outside {
            &[Clients::All]
        } else {
            &[Clients::Inside, Clients::All]
        };
        // Packets from outside are looked up by the address that they have.
        let any = (of.own && !of.outside).then_some(Place::AnyNode);
        let mut places = [Some(Place::Address(of.address)), any]
            .into_iter()
            .flatten();
        let found = places.find_map(|place| {
            let mut clients = clients.iter();
            clients.find_map(|clients| self.at(place, *clients, of))
        });
        let mut all = self.frontends.iter();
        let wildcard = |front: &&Frontend| {
            front.at == Place::Address(of.address) && front.is_wildcard() && of.outside
        };
        found.or_else(|| all.find(wildcard))
    }

    fn at(&self, place: Place, clients: Clients, of: &Sought) -> Option<&Frontend> {
        let all = self.frontends.iter().filter(|front| {
            let is_from = |range: Cidr| of.client.is_some_and(|client| range.contains(client));
            (front.at, front.port, front.clients) == (place, of.port, clients)
                && front.is_for(of.proto)
                && front.source.is_none_or(is_from)
        });
        // The exact protocol is looked up first; of sources, the longest prefix counts.
        all.max_by_key(|front| {
            (
                front.proto == of.proto,
                front.source.map(|source| source.prefix),
            )
        })
    }
}

impl Bpf {
    /// Returns the programs attached to control groups.
    pub fn cgroups(&self) -> Result<&[AtCgroup], Gap> {
        self.dump.cgroups.get()
    }

    /// Returns the programs attached to links without a qdisc.
    pub fn links(&self) -> Result<&[AtLink], Gap> {
        self.dump.links.get()
    }

    /// Returns all programs.
    pub fn programs(&self) -> Result<&[Program], Gap> {
        self.dump.programs.get()
    }

    /// Returns all maps.
    pub fn maps(&self) -> Result<&[Map], Gap> {
        self.dump.maps.get()
    }

    /// Returns the paths of the files in bpffs.
    pub fn pins(&self) -> Result<&[String], Gap> {
        self.dump.pins.get()
    }

    /// Returns the program with this ID.
    pub fn program(&self, id: u32) -> Option<&Program> {
        let mut all = self.programs().unwrap_or_default().iter();
        all.find(|program| program.id == id)
    }

    /// Returns the name of a program for texts: `NAME (id ID)`, or its ID alone.
    pub fn called(&self, id: u32) -> String {
        self.program(id)
            .map_or_else(|| format!("with id {id}"), ToString::to_string)
    }

    /// Returns the programs at `hook`, such as `cgroup_inet4_connect`, of the control group that contains all processes, in their
    /// order.
    pub fn at_root(&self, hook: &str) -> Result<Vec<u32>, Gap> {
        let all = self.cgroups()?.iter();
        let of_hook =
            all.filter(|attachment| attachment.attach_type == hook && attachment.cgroup == "/");
        Ok(of_hook.map(|attachment| attachment.program).collect())
    }

    /// Returns the Services in the maps, one table for each proxy and family that has any map of them; a gap if one was not read.
    pub fn tables(&self) -> Result<Vec<&Table>, Gap> {
        let all = self.tables.as_ref().map_err(Clone::clone)?.iter();
        all.map(|(.., table)| table.as_ref().map_err(Clone::clone))
            .collect()
    }

    /// Returns the Services of `family` in the maps of `proxy`.
    pub fn table(&self, proxy: Proxy, family: Family) -> Result<Option<&Table>, Gap> {
        let mut all = self.tables.as_ref().map_err(Clone::clone)?.iter();
        let found = all.find(|table| (table.0, table.1) == (proxy, family));
        found
            .map(|(.., table)| table.as_ref().map_err(Clone::clone))
            .transpose()
    }
}

/// Parses what kpx records of programs and maps.
pub fn parse(text: &str) -> Result<Bpf, Gap> {
    let dump: Dump = serde_json::from_str(text).map_err(|e| Gap::of_json(Item::Bpf, text, &e))?;
    let tables = tables(&dump);
    Ok(Bpf { dump, tables })
}

/// Joins front ends with their backends.
fn tables(dump: &Dump) -> Result<Vec<Read>, Gap> {
    let maps = dump.maps.get()?;
    let mut all = Vec::new();
    for proxy in Proxy::ALL {
        for family in Family::BOTH {
            let of = |role| {
                let of_role = move |map: &&Map| role_of(map) == Some((proxy, family, role));
                maps.iter().filter(of_role)
            };
            if let Some(fronts) = in_use(dump, of(Role::Frontends), None) {
                let beside = |role| in_use(dump, of(role), Some(fronts.id));
                let table = content(fronts)
                    .and_then(|content| {
                        joined(content, beside(Role::Backends), beside(Role::Ranges), proxy)
                    })
                    .map(|frontends| Table {
                        proxy,
                        family,
                        map: fronts.id,
                        frontends,
                    });
                all.push((proxy, family, table));
            }
        }
    }
    Ok(all)
}

/// Joins the entries of a map with front ends with the entries of the maps beside it.
fn joined(
    fronts: &Content,
    backends: Option<&Map>,
    ranges: Option<&Map>,
    proxy: Proxy,
) -> Result<Vec<Frontend>, Gap> {
    let has_backends = match fronts {
        Content::CiliumServices(all) => all
            .iter()
            .any(|service| service.slot == 0 && service.count > 0),
        Content::CalicoFrontends(all) => all
            .iter()
            .any(|frontend| frontend.count > 0 && frontend.count < u32::MAX),
        _ => false,
    };
    let backends = match backends {
        Some(map) => Some(content(map)?),
        None if has_backends => {
            let what = format!("no map with backends of {proxy} was read");
            return Err(Gap::Failed(Item::Bpf, what));
        }
        None => None,
    };
    Ok(match fronts {
        Content::CiliumServices(fronts) => {
            let backs = match backends {
                Some(Content::CiliumBackends(all)) => all.as_slice(),
                _ => &[],
            };
            let ranges = match ranges.and_then(|range| range.content.as_ref()) {
                Some(Content::CiliumSourceRanges(all)) => Some(all.as_slice()),
                _ => None,
            };
            cilium(fronts, backs, ranges)
        }
        Content::CalicoFrontends(fronts) => {
            let backs = match backends {
                Some(Content::CalicoBackends(all)) => all.as_slice(),
                _ => &[],
            };
            calico(fronts, backs)
        }
        _ => Vec::new(),
    })
}

/// Returns the entries of a map with Services, or why there are none.
fn content(map: &Map) -> Result<&Content, Gap> {
    map.content.as_ref().ok_or_else(|| {
        let unknown = || {
            let what = format!(
                "kpx does not know the layout of map {} (id {}, keys of {} bytes, values of {})",
                map.name, map.id, map.key_size, map.value_size
            );
            Gap::Unsupported(Item::Bpf, what)
        };
        map.unread.clone().unwrap_or_else(unknown)
    })
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Role {
    Frontends,
    Backends,
    Ranges,
}

/// Returns the contents of a map, by its name, of which the kernel keeps 15 characters.
fn role_of(map: &Map) -> Option<(Proxy, Family, Role)> {
    const ROLES: &[(&str, Proxy, Family, Role)] = &[
        (
            "cilium_lb4_serv",
            Proxy::Cilium,
            Family::V4,
            Role::Frontends,
        ),
        (
            "cilium_lb6_serv",
            Proxy::Cilium,
            Family::V6,
            Role::Frontends,
        ),
        ("cilium_lb4_back", Proxy::Cilium, Family::V4, Role::Backends),
        ("cilium_lb6_back", Proxy::Cilium, Family::V6, Role::Backends),
        ("cilium_lb4_sour", Proxy::Cilium, Family::V4, Role::Ranges),
        ("cilium_lb6_sour", Proxy::Cilium, Family::V6, Role::Ranges),
        ("cali_v4_nat_fe", Proxy::Calico, Family::V4, Role::Frontends),
        ("cali_v6_nat_fe", Proxy::Calico, Family::V6, Role::Frontends),
        ("cali_v4_nat_be", Proxy::Calico, Family::V4, Role::Backends),
        ("cali_v6_nat_be", Proxy::Calico, Family::V6, Role::Backends),
    ];
    let mut all = ROLES.iter();
    let found = all.find(|(name, ..)| map.name.starts_with(name))?;
    Some((found.1, found.2, found.3))
}

/// Returns the map of several with one name that is in use: the one that a program uses together with `beside`, else the one of an
/// attached program, else the newest.
fn in_use<'d>(
    dump: &'d Dump,
    maps: impl Iterator<Item = &'d Map>,
    beside: Option<u32>,
) -> Option<&'d Map> {
    let programs = dump.programs.get().unwrap_or_default();
    let attached: BTreeSet<u32> = {
        let cgroups = dump.cgroups.get().unwrap_or_default().iter();
        let links = dump.links.get().unwrap_or_default().iter();
        let cgroups = cgroups.map(|cgroup| cgroup.program);
        cgroups.chain(links.map(|link| link.program)).collect()
    };
    maps.max_by_key(|map| {
        let mut users = programs
            .iter()
            .filter(|program| program.maps.contains(&map.id));
        let together = beside.is_some_and(|id| users.clone().any(|user| user.maps.contains(&id)));
        // The newest program, if several are attached.
        let newest = users
            .by_ref()
            .filter(|user| attached.contains(&user.id))
            .map(|user| user.id)
            .max();
        (together, newest, map.content.is_some(), map.id)
    })
}

/// Flags of Cilium's front ends; `flags2` is the second byte.
mod flag {
    pub(super) const EXTERNAL_IP: u16 = 1;
    pub(super) const NODE_PORT: u16 = 1 << 1;
    pub(super) const HOST_PORT: u16 = 1 << 3;
    pub(super) const LOAD_BALANCER: u16 = 1 << 5;
    pub(super) const SOURCE_RANGE: u16 = 1 << 7;
    pub(super) const LOCAL_REDIRECT: u16 = 1 << 8;
    pub(super) const L7_PROXY: u16 = 1 << 10;
    /// Of a backend.
    pub(super) const QUARANTINED: u16 = 1 << 14;
    /// Of a front end.
    pub(super) const SOURCE_RANGE_DENY: u16 = 1 << 14;
}

fn cilium(
    entries: &[CiliumService],
    backends: &[CiliumBackend],
    ranges: Option<&[CiliumSourceRange]>,
) -> Vec<Frontend> {
    let by_id: BTreeMap<u32, &CiliumBackend> = backends
        .iter()
        .map(|backend| (backend.id, backend))
        .collect();
    let key = |service: &CiliumService| {
        (
            service.address,
            service.port,
            service.protocol.number(),
            service.internal,
        )
    };
    let mut slots: BTreeMap<_, Vec<&CiliumService>> = BTreeMap::new();
    for entry in entries.iter().filter(|entry| entry.slot > 0) {
        slots.entry(key(entry)).or_default().push(entry);
    }
    let fronts = entries.iter().filter(|entry| entry.slot == 0);
    let all = fronts.map(|front| {
        let has = |flag: u16| front.flags & flag != 0;
        let own = slots.get(&key(front)).map_or(&[][..], Vec::as_slice);
        let (mut found, mut missing) = (Vec::new(), 0);
        // After the active ones come the quarantined ones; other slots are not used.
        let count = usize::from(front.count) + usize::from(front.quarantined);
        for slot in 1..=count {
            let entry = own.iter().find(|entry| usize::from(entry.slot) == slot);
            let Some(backend) = entry.and_then(|entry| by_id.get(&entry.value)) else {
                missing += 1;
                continue;
            };
            let is_quarantined = entry.is_some_and(|entry| entry.flags & flag::QUARANTINED != 0);
            found.push(Backend {
                addr: SocketAddr::new(backend.address, backend.port),
                // Programs choose among the first ones, whatever the backend's state is.
                active: slot <= usize::from(front.count) && !is_quarantined,
                remote_only: false,
            });
        }
        let is_any = front.address.is_unspecified();
        let sources = ranges.map(|all| {
            let own = all
                .iter()
                .filter(|range| range.reverse_nat == front.reverse_nat);
            own.map(|range| range.source).collect()
        });
        Frontend {
            at: if is_any {
                Place::AnyNode
            } else {
                Place::Address(front.address)
            },
            port: front.port,
            proto: front.protocol,
            clients: if front.internal {
                Clients::Inside
            } else {
                Clients::All
            },
            source: None,
            kind: if has(flag::NODE_PORT) {
                Kind::NodePort
            } else if has(flag::HOST_PORT) {
                Kind::HostPort
            } else if has(flag::LOAD_BALANCER) {
                Kind::LoadBalancer
            } else if has(flag::EXTERNAL_IP) {
                Kind::ExternalIp
            } else if has(flag::LOCAL_REDIRECT) {
                Kind::LocalRedirect
            } else {
                Kind::ClusterIp
            },
            drops: front.port == 0,
            ranges: has(flag::SOURCE_RANGE).then(|| Ranges {
                deny: has(flag::SOURCE_RANGE_DENY),
                sources,
            }),
            l7_proxy: has(flag::L7_PROXY),
            backends: found,
            missing,
        }
    });
    let mut all: Vec<Frontend> = all.collect();
    all.sort_by_key(|frontend| {
        (
            frontend.at,
            frontend.port,
            frontend.proto.number(),
            frontend.clients,
        )
    });
    all
}

fn calico(entries: &[CalicoFrontend], backends: &[CalicoBackend]) -> Vec<Frontend> {
    let mut by_id: BTreeMap<u32, Vec<&CalicoBackend>> = BTreeMap::new();
    for backend in backends {
        by_id.entry(backend.id).or_default().push(backend);
    }
    let all = entries.iter().map(|front| {
        let drops = front.count == u32::MAX;
        let count = if drops { 0 } else { front.count };
        let own = by_id.get(&front.id).map_or(&[][..], Vec::as_slice);
        let used = own.iter().filter(|backend| backend.ordinal < count);
        let found: Vec<Backend> = used
            .map(|backend| Backend {
                addr: SocketAddr::new(backend.address, backend.port),
                active: true,
                // The backends on the node come first.
                remote_only: front.flags & 0b10 != 0 && backend.ordinal >= front.local,
            })
            .collect();
        let is_any = match front.address {
            IpAddr::V4(ip) => ip.is_broadcast(),
            IpAddr::V6(ip) => ip.to_bits() == u128::MAX,
        };
        Frontend {
            at: if is_any {
                Place::AnyNode
            } else {
                Place::Address(front.address)
            },
            port: front.port,
            proto: front.protocol,
            clients: Clients::All,
            source: front.source,
            // Its map does not tell them apart.
            kind: if is_any {
                Kind::NodePort
            } else {
                Kind::ClusterIp
            },
            drops,
            ranges: None,
            l7_proxy: false,
            missing: usize::try_from(count).map_or(0, |count| count.saturating_sub(found.len())),
            backends: found,
        }
    });
    let mut all: Vec<Frontend> = all.collect();
    all.sort_by_key(|frontend| {
        (
            frontend.at,
            frontend.port,
            frontend.proto.number(),
            frontend.source,
        )
    });
    all
}
