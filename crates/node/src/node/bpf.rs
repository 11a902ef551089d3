//! Programs and maps of eBPF, and the Services that the maps of Cilium and Calico have.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::{IpAddr, SocketAddr};

use serde::Serialize;

use crate::evidence::bpf::{
    AtCgroup, AtLink, CalicoBackend, CalicoFrontend, CiliumBackend, CiliumService, Content, Dump,
    Map, Program,
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
        let has = |prefixes: &[&str]| prefixes.iter().any(|of| name.starts_with(of));
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
    tables: Result<Vec<Table>, Gap>,
}

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
    /// The protocol.
    pub proto: Proto,
    /// Which clients it is for.
    pub clients: Clients,
    /// The sources that it is for, if not all.
    pub source: Option<Cidr>,
    /// The kind of address.
    pub kind: Kind,
    /// Whether it drops all packets.
    pub drops: bool,
    /// Whether an L7 proxy on the node gets its packets instead of the backends.
    pub l7_proxy: bool,
    /// Backends, in their order. A backend may be there twice.
    pub backends: Vec<Backend>,
    /// Number of backends that the front end has and the map of backends has not.
    pub missing: usize,
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
    /// Those inside the cluster.
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
    /// Whether it gets new connections: it is neither terminating nor quarantined nor in maintenance.
    pub active: bool,
    /// Whether only clients that may use backends of other nodes get it.
    pub remote_only: bool,
}

impl Frontend {
    /// Returns the backends that get new connections.
    pub fn active(&self) -> impl Iterator<Item = &Backend> {
        self.backends.iter().filter(|of| of.active)
    }

    /// Returns whether it catches all other ports of its address.
    pub const fn is_wildcard(&self) -> bool {
        self.port == 0
    }
}

impl Table {
    /// Returns the front end that a connection of a client inside the cluster gets; `None` if the map has none for it.
    ///
    /// `own` says whether the address is one of this node.
    pub fn lookup(&self, address: IpAddr, port: u16, proto: Proto, own: bool) -> Option<&Frontend> {
        let at = |place: Place, clients: Clients| {
            let mut all = self.frontends.iter();
            all.find(|of| {
                (of.at, of.port, of.proto, of.clients) == (place, port, proto, clients)
                    && of.source.is_none()
            })
        };
        let of = |place| at(place, Clients::Inside).or_else(|| at(place, Clients::All));
        of(Place::Address(address)).or_else(|| own.then(|| of(Place::AnyNode)).flatten())
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
        all.find(|of| of.id == id)
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
        let of_hook = all.filter(|of| of.attach_type == hook && of.cgroup == "/");
        Ok(of_hook.map(|of| of.program).collect())
    }

    /// Returns the proxies that translate connections of the node's own processes: their programs are at a hook for connections of
    /// the control group that contains all processes.
    pub fn socket_proxies(&self) -> Result<BTreeSet<Proxy>, Gap> {
        let mut found = BTreeSet::new();
        for hook in ["cgroup_inet4_connect", "cgroup_inet6_connect"] {
            let ids = self.at_root(hook)?;
            if ids.is_empty() {
                continue;
            }
            // Without their names, whose they are is not known.
            self.programs()?;
            let programs = ids.iter().filter_map(|id| self.program(*id));
            found.extend(programs.filter_map(|of| Proxy::of_program(&of.name)));
        }
        Ok(found)
    }

    /// Returns the Services in the maps, one table for each proxy and family that has any map of them.
    pub fn tables(&self) -> Result<&[Table], Gap> {
        self.tables.as_deref().map_err(Clone::clone)
    }

    /// Returns the Services of `family` in the maps of `proxy`.
    pub fn table(&self, proxy: Proxy, family: Family) -> Result<Option<&Table>, Gap> {
        let mut all = self.tables()?.iter();
        Ok(all.find(|of| (of.proxy, of.family) == (proxy, family)))
    }
}

/// Parses what kpx records of programs and maps.
pub fn parse(text: &str) -> Result<Bpf, Gap> {
    let dump: Dump =
        serde_json::from_str(text).map_err(|e| Gap::Failed(Item::Bpf, e.to_string()))?;
    let tables = tables(&dump);
    Ok(Bpf { dump, tables })
}

/// Joins front ends with their backends.
fn tables(dump: &Dump) -> Result<Vec<Table>, Gap> {
    let maps = dump.maps.get()?;
    if let Some(gap) = maps.iter().find_map(|of| of.unread.clone()) {
        return Err(gap);
    }
    let mut all = Vec::new();
    for proxy in Proxy::ALL {
        for family in Family::BOTH {
            let of = |role| {
                let of_role = move |map: &&Map| role_of(map) == Some((proxy, family, role));
                maps.iter().filter(of_role)
            };
            let Some(fronts) = in_use(dump, of(Role::Frontends), None) else {
                continue;
            };
            let backs = in_use(dump, of(Role::Backends), Some(fronts.id));
            let frontends = match (&fronts.content, backs.and_then(|of| of.content.as_ref())) {
                (Some(Content::CiliumServices(fronts)), backs) => {
                    let backs = match backs {
                        Some(Content::CiliumBackends(all)) => all.as_slice(),
                        _ => &[],
                    };
                    cilium(fronts, backs)
                }
                (Some(Content::CalicoFrontends(fronts)), backs) => {
                    let backs = match backs {
                        Some(Content::CalicoBackends(all)) => all.as_slice(),
                        _ => &[],
                    };
                    calico(fronts, backs)
                }
                _ => continue,
            };
            all.push(Table {
                proxy,
                family,
                map: fronts.id,
                frontends,
            });
        }
    }
    Ok(all)
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Role {
    Frontends,
    Backends,
}

fn role_of(map: &Map) -> Option<(Proxy, Family, Role)> {
    let role = match map.content.as_ref()? {
        Content::CiliumServices(_) | Content::CalicoFrontends(_) => Role::Frontends,
        Content::CiliumBackends(_) | Content::CalicoBackends(_) => Role::Backends,
        Content::CiliumReverseNat(_)
        | Content::CiliumAffinity(_)
        | Content::CiliumSourceRanges(_) => return None,
    };
    let proxy = if map.name.starts_with("cilium_") {
        Proxy::Cilium
    } else {
        Proxy::Calico
    };
    let is_v6 = map.name.starts_with("cilium_lb6") || map.name.starts_with("cali_v6");
    let family = if is_v6 { Family::V6 } else { Family::V4 };
    Some((proxy, family, role))
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
        let cgroups = cgroups.map(|of| of.program);
        cgroups.chain(links.map(|of| of.program)).collect()
    };
    maps.max_by_key(|map| {
        let mut users = programs.iter().filter(|of| of.maps.contains(&map.id));
        let together = beside.is_some_and(|id| users.clone().any(|of| of.maps.contains(&id)));
        // The newest program, if several are attached.
        let newest = users
            .by_ref()
            .filter(|of| attached.contains(&of.id))
            .map(|of| of.id)
            .max();
        (together, newest, map.id)
    })
}

/// Flags of Cilium's front ends; those of the second byte are `flags2`.
mod flag {
    pub(super) const EXTERNAL_IP: u16 = 1;
    pub(super) const NODE_PORT: u16 = 1 << 1;
    pub(super) const HOST_PORT: u16 = 1 << 3;
    pub(super) const LOAD_BALANCER: u16 = 1 << 5;
    pub(super) const LOCAL_REDIRECT: u16 = 1 << 8;
    pub(super) const L7_PROXY: u16 = 1 << 10;
    pub(super) const QUARANTINED: u16 = 1 << 14;
}

fn cilium(entries: &[CiliumService], backends: &[CiliumBackend]) -> Vec<Frontend> {
    let by_id: BTreeMap<u32, &CiliumBackend> = backends.iter().map(|of| (of.id, of)).collect();
    let key = |of: &CiliumService| (of.address, of.port, of.protocol.number(), of.internal);
    let mut slots: BTreeMap<_, Vec<&CiliumService>> = BTreeMap::new();
    for entry in entries.iter().filter(|of| of.slot > 0) {
        slots.entry(key(entry)).or_default().push(entry);
    }
    let fronts = entries.iter().filter(|of| of.slot == 0);
    let all = fronts.map(|front| {
        let has = |flag: u16| front.flags & flag != 0;
        let own = slots.get(&key(front)).map_or(&[][..], Vec::as_slice);
        let (mut found, mut missing) = (Vec::new(), 0);
        // Behind the active ones are those that are quarantined; any other slot is not used.
        let count = usize::from(front.count) + usize::from(front.quarantined);
        for slot in 1..=count {
            let entry = own.iter().find(|of| usize::from(of.slot) == slot);
            let Some(backend) = entry.and_then(|of| by_id.get(&of.value)) else {
                missing += 1;
                continue;
            };
            let is_quarantined = entry.is_some_and(|of| of.flags & flag::QUARANTINED != 0);
            found.push(Backend {
                addr: SocketAddr::new(backend.address, backend.port),
                active: backend.state == 0 && slot <= usize::from(front.count) && !is_quarantined,
                remote_only: false,
            });
        }
        let is_any = front.address.is_unspecified();
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
            drops: false,
            l7_proxy: has(flag::L7_PROXY),
            backends: found,
            missing,
        }
    });
    let mut all: Vec<Frontend> = all.collect();
    all.sort_by_key(|of| (of.at, of.port, of.proto.number(), of.clients));
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
        let used = own.iter().filter(|of| of.ordinal < count);
        let found: Vec<Backend> = used
            .map(|of| Backend {
                addr: SocketAddr::new(of.address, of.port),
                active: true,
                // Those on the node come first.
                remote_only: front.flags & 0b10 != 0 && of.ordinal >= front.local,
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
            l7_proxy: false,
            missing: usize::try_from(count).map_or(0, |count| count.saturating_sub(found.len())),
            backends: found,
        }
    });
    let mut all: Vec<Frontend> = all.collect();
    all.sort_by_key(|of| (of.at, of.port, of.proto.number(), of.source));
    all
}
