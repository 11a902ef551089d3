//! Virtual servers, kube-ipvs0 and sets compared with the desired ones.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::net::IpAddr;

use super::change::{Change, Delta, Object};
use super::iptables::Scope;
use super::owners::Owners;
use kpx_node::backend::ipset::{ElementKey, Member, Set, Sets};
use kpx_node::backend::iptables::model::{Match, Rule};
use kpx_node::backend::ipvs::expect::Expected;
use kpx_node::backend::ipvs::model::{Flags, Key, Table, VirtualServer};
use kpx_node::desired::FamilyState;
use kpx_node::net::{Cidr, Family, Proto};

/// Addresses whose virtual servers kube-proxy leaves to other software.
pub(super) struct Left {
    /// `excludeCIDRs`.
    pub(super) excluded: Vec<Cidr>,
    /// The addresses of Services.
    pub(super) of_services: Vec<IpAddr>,
}

impl Left {
    /// Returns whether a virtual server at `addr` is other software's. In a range that has addresses of Services, it is one of a deleted
    /// Service, unless its address alone is excluded.
    fn has(&self, addr: IpAddr) -> bool {
        let mut excluded = self.excluded.iter().filter(|cidr| cidr.contains(addr));
        excluded
            .any(|cidr| cidr.is_host() || !self.of_services.iter().any(|used| cidr.contains(*used)))
    }
}

/// The desired state of one family in ipvs mode.
pub(super) struct Ipvs<'a> {
    state: &'a FamilyState,
    want: &'a Expected,
    left: Left,
    owners: Owners<'a>,
}

impl<'a> Ipvs<'a> {
    pub(super) fn new(state: &'a FamilyState, want: &'a Expected, left: Left) -> Self {
        Self {
            state,
            want,
            left,
            owners: Owners::of(state),
        }
    }

    fn family(&self) -> Family {
        self.state.family
    }

    fn server_owner(&self, key: Key) -> Option<String> {
        match key {
            Key::Address { proto, addr, port } => self.owners.of_port(addr, proto, port),
            Key::Fwmark { .. } => None,
        }
    }

    /// Returns what `member` of the set called `name` for IPv4 serves.
    fn member_owner(&self, name: &str, member: &Member<'_>) -> Option<String> {
        match member.key()? {
            ElementKey::Port(number) if name == "KUBE-HEALTH-CHECK-NODE-PORT" => {
                self.owners.of_health_check(number)
            }
            ElementKey::Port(number) => {
                let udp = name.ends_with("UDP");
                let proto = if udp { Proto::Udp } else { Proto::Tcp };
                self.owners.of_node_port(proto, number)
            }
            ElementKey::Address(addr) => self.owners.of_addr(addr),
            ElementKey::Socket { proto, addr } if name == "KUBE-LOOP-BACK" => {
                self.owners.of_endpoint(addr.ip(), proto, addr.port())
            }
            ElementKey::Socket { proto, addr } => {
                self.owners.of_port(addr.ip(), proto, addr.port())
            }
        }
    }

    fn change(&self, object: Object, service: Option<String>) -> Change {
        Change {
            family: Some(self.family()),
            service,
            object,
        }
    }

    fn server_change(&self, key: Key, server: Delta<VirtualServer>) -> Change {
        let object = Object::VirtualServer { key, server };
        self.change(object, self.server_owner(key))
    }

    /// Compares virtual and real servers.
    pub(super) fn servers(&self, have: &Table) -> Vec<Change> {
        let mut changes = Vec::new();
        let live: HashMap<Key, &VirtualServer> = have.servers.iter().map(|s| (s.key, s)).collect();
        let mut wanted = HashSet::with_capacity(self.want.servers.len());
        for want in &self.want.servers {
            wanted.insert(want.key);
            let Some(server) = live.get(&want.key) else {
                changes.push(self.server_change(want.key, Delta::missing(want.clone())));
                continue;
            };
            let mut read = server.without_reals();
            if have.partial {
                // Flags that could not be read count as desired.
                read.flags.0 |= want.flags.0 & UNREAD;
            }
            if !read.has_options_of(want) {
                let delta = Delta::differs(read, want.without_reals());
                changes.push(self.server_change(want.key, delta));
            }
            self.reals(server, want, &mut changes);
        }
        for have in &have.servers {
            let Key::Address { addr, .. } = have.key else {
                continue;
            };
            let ours = Family::of(addr) == self.family() && !wanted.contains(&have.key);
            if ours && !self.left.has(addr) {
                let delta = Delta::extra(have.without_counters());
                changes.push(self.server_change(have.key, delta));
            }
        }
        changes
    }

    fn reals(&self, have: &VirtualServer, want: &VirtualServer, changes: &mut Vec<Change>) {
        let mut push = |addr, real| {
            let object = Object::RealServer {
                server: want.key,
                addr,
                real,
            };
            changes.push(self.change(object, self.server_owner(want.key)));
        };
        let live: HashMap<_, _> = have.reals.iter().map(|r| (r.socket(), r)).collect();
        let mut wanted = HashSet::with_capacity(want.reals.len());
        for real in &want.reals {
            let addr = real.socket();
            wanted.insert(addr);
            match live.get(&addr) {
                None => push(addr, Delta::missing(real.clone())),
                Some(have) if have.has_options_of(real) => {}
                Some(have) => push(addr, Delta::differs(have.without_counters(), real.clone())),
            }
        }
        for real in &have.reals {
            // A TCP server of weight 0 takes no new connections and stays until its last one ends.
            let drains = want.key.is_tcp() && real.weight == 0;
            if !drains && !wanted.contains(&real.socket()) {
                push(real.socket(), Delta::extra(real.without_counters()));
            }
        }
    }

    /// Compares the addresses of kube-ipvs0.
    pub(super) fn addresses(&self, have: &[IpAddr]) -> Vec<Change> {
        let ours = |addr: &IpAddr| {
            let link_local = matches!(addr, IpAddr::V6(v6) if v6.is_unicast_link_local());
            Family::of(*addr) == self.family() && !link_local && !addr.is_loopback()
        };
        let live: BTreeSet<_> = have.iter().copied().filter(ours).collect();
        let wanted: BTreeSet<_> = self.want.addresses.iter().copied().collect();
        let change = |addr, delta| self.change(Object::Address(delta), self.owners.of_addr(addr));
        let missing = wanted.difference(&live);
        let missing = missing.map(|&addr| change(addr, Delta::missing(addr)));
        let extra = live.difference(&wanted);
        let extra = extra.map(|&addr| change(addr, Delta::extra(addr)));
        missing.chain(extra).collect()
    }

    /// Compares sets and their members.
    pub(super) fn sets(&self, have: &Sets<'_>) -> Vec<Change> {
        let mut changes = Vec::new();
        let live: HashMap<&str, &Set<'_>> =
            have.sets.iter().map(|s| (s.name.as_ref(), s)).collect();
        let want = self.want.sets(self.family());
        for (want, kind) in want.sets.iter().zip(kpx_node::backend::ipvs::expect::SETS) {
            let object = |set| Object::Set {
                name: want.name.to_string(),
                set,
            };
            let Some(have) = live.get(want.name.as_ref()) else {
                changes.push(self.change(object(Delta::missing(want.owned())), None));
                continue;
            };
            if have.kind != want.kind || have.shape() != want.shape() {
                let bare = |set: &Set<'_>| Set {
                    members: Vec::new(),
                    ..set.owned()
                };
                changes.push(self.change(object(Delta::differs(bare(have), bare(want))), None));
            }
            self.members(kind.name, have, want, &mut changes);
        }
        changes
    }

    fn members(&self, kind: &str, have: &Set<'_>, want: &Set<'_>, changes: &mut Vec<Change>) {
        let full = match self.family() {
            Family::V4 => "/32",
            Family::V6 => "/128",
        };
        let live: HashMap<&str, &Member<'_>> = have
            .members
            .iter()
            .map(|m| {
                let element = m.element.as_ref();
                (element.strip_suffix(full).unwrap_or(element), m)
            })
            .collect();
        // The element without the prefix length of a single address, as in the desired form.
        let read = |element: &str, member: &Member<'_>| Member {
            element: element.to_owned().into(),
            options: member.options.to_string().into(),
        };
        let mut push = |member: Delta<Member<'static>>| {
            let owner = member.both().next();
            let owner = owner.and_then(|member| self.member_owner(kind, member));
            let object = Object::Member {
                set: want.name.to_string(),
                member,
            };
            changes.push(self.change(object, owner));
        };
        let mut wanted = HashSet::with_capacity(want.members.len());
        for member in &want.members {
            let element = member.element.as_ref();
            wanted.insert(element);
            match live.get(element) {
                None => push(Delta::missing(member.owned())),
                Some(have) if have.options.split(' ').any(|word| word == "nomatch") => {
                    push(Delta::differs(read(element, have), member.owned()));
                }
                Some(_) => {}
            }
        }
        for (element, member) in live
            .iter()
            .filter(|(element, _)| !wanted.contains(*element))
        {
            push(Delta::extra(read(element, member)));
        }
    }
}

/// Flags that `ipvsadm` does not list with what a partial table is read from.
const UNREAD: u32 = Flags::SCHED1 | Flags::SCHED2 | Flags::SCHED3;

impl Scope for Ipvs<'_> {
    fn family(&self) -> Family {
        self.state.family
    }

    fn is_free(&self, _table: &str, chain: &str) -> bool {
        chain == "KUBE-IPVS-OUT-FILTER"
    }

    fn owner_of(&self, rule: &Rule<'_>) -> Option<&str> {
        let options = rule.matches.iter().find_map(|m| match m {
            Match::Ipvs(options) => Some(options),
            _ => None,
        })?;
        let mut words = options.split_ascii_whitespace();
        words.find(|&word| word == "--vaddr")?;
        let addr: IpAddr = words.next()?.parse().ok()?;
        self.owners.service(addr)
    }
}
