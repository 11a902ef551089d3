//! Virtual servers, kube-ipvs0 and sets against what they should be.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::net::{IpAddr, SocketAddr};

use super::owners::Owners;
use super::rules::Scope;
use super::{Action, Change, Layer, Object};
use crate::backend::ipset::{Set, Sets};
use crate::backend::iptables::model::{Match, Rule};
use crate::backend::ipvs::expect::Expected;
use crate::backend::ipvs::model::{DUMMY, Flags, Key, RealServer, Table, VirtualServer};
use crate::backend::ipvs::print;
use crate::desired::FamilyState;
use crate::net::{Cidr, Family, Proto};

/// What one family of the ipvs mode is compared with.
pub(super) struct Scene<'a> {
    pub(super) state: &'a FamilyState,
    pub(super) want: &'a Expected,
    pub(super) excluded: Vec<Cidr>,
    owners: Owners<'a>,
}

impl<'a> Scene<'a> {
    pub(super) fn new(state: &'a FamilyState, want: &'a Expected, excluded: Vec<Cidr>) -> Self {
        Self {
            state,
            want,
            excluded,
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

    /// Returns what the member `element` of the set called `name` for IPv4 serves.
    fn member_owner(&self, name: &str, element: &str) -> Option<String> {
        let mut parts = element.split(',');
        let first = parts.next()?;
        if let Ok(number) = first.parse::<u16>() {
            let udp = name.ends_with("UDP");
            let proto = if udp { Proto::Udp } else { Proto::Tcp };
            return if name == "KUBE-HEALTH-CHECK-NODE-PORT" {
                self.owners.of_health_check(number)
            } else {
                self.owners.of_node_port(proto, number)
            };
        }
        let addr: IpAddr = first.parse().ok()?;
        let Some((proto, port)) = parts.next().and_then(|part| part.split_once(':')) else {
            return self.owners.of_addr(addr);
        };
        let (proto, port) = (proto.parse().ok()?, port.parse().ok()?);
        if name == "KUBE-LOOP-BACK" {
            self.owners.of_endpoint(addr, proto, port)
        } else {
            self.owners.of_port(addr, proto, port)
        }
    }

    fn change(
        &self,
        action: Action,
        layer: Layer,
        object: Object,
        service: Option<String>,
        have: Option<String>,
        want: Option<String>,
    ) -> Change {
        Change {
            action,
            layer,
            family: Some(self.family()),
            object,
            service,
            have,
            want,
        }
    }

    /// Compares virtual and real servers.
    pub(super) fn servers(&self, have: &Table) -> Vec<Change> {
        let mut changes = Vec::new();
        let partial = have.partial;
        let there: HashMap<Key, &VirtualServer> = have.servers.iter().map(|s| (s.key, s)).collect();
        let mut wanted = HashSet::with_capacity(self.want.servers.len());
        for want in &self.want.servers {
            wanted.insert(want.key);
            let object = Object::VirtualServer {
                server: print::name(want.key),
            };
            let owner = || self.server_owner(want.key);
            let Some(have) = there.get(&want.key) else {
                let text = Some(whole(want));
                changes.push(self.change(
                    Action::Missing,
                    Layer::Ipvs,
                    object,
                    owner(),
                    None,
                    text,
                ));
                continue;
            };
            // What could not be read is taken to be as wanted.
            let unread = Flags::SCHED1 | Flags::SCHED2 | Flags::SCHED3;
            let mut seen = (*have).clone();
            if partial {
                seen.flags.0 |= want.flags.0 & unread;
            }
            let (a, b) = (print::options(&seen), print::options(want));
            // Persistence is what options show of timeout and prefix: without it they say nothing.
            if a != b {
                let (a, b) = (Some(a), Some(b));
                changes.push(self.change(Action::Differs, Layer::Ipvs, object, owner(), a, b));
            }
            self.reals(have, want, &mut changes);
        }
        for have in &have.servers {
            let Key::Address { addr, .. } = have.key else {
                continue;
            };
            let ours = Family::of(addr) == self.family() && !wanted.contains(&have.key);
            if ours && !self.excluded.iter().any(|cidr| cidr.contains(addr)) {
                let object = Object::VirtualServer {
                    server: print::name(have.key),
                };
                let owner = self.server_owner(have.key);
                let text = Some(whole(have));
                changes.push(self.change(Action::Extra, Layer::Ipvs, object, owner, text, None));
            }
        }
        changes
    }

    fn reals(&self, have: &VirtualServer, want: &VirtualServer, changes: &mut Vec<Change>) {
        let server = || print::name(want.key);
        let object = |real: &RealServer| Object::RealServer {
            server: server(),
            real: SocketAddr::new(real.addr, real.port).to_string(),
        };
        let there: HashMap<_, _> = have.reals.iter().map(|r| ((r.addr, r.port), r)).collect();
        let mut wanted = HashSet::with_capacity(want.reals.len());
        for real in &want.reals {
            wanted.insert((real.addr, real.port));
            let text = print::real(real);
            let (action, a) = match there.get(&(real.addr, real.port)) {
                None => (Action::Missing, None),
                Some(have) => match print::real(have) {
                    same if same == text => continue,
                    other => (Action::Differs, Some(other)),
                },
            };
            let owner = self.server_owner(want.key);
            changes.push(self.change(action, Layer::Ipvs, object(real), owner, a, Some(text)));
        }
        let tcp = matches!(
            want.key,
            Key::Address {
                proto: Proto::Tcp,
                ..
            }
        );
        for real in &have.reals {
            // A TCP server that takes no new connections is there for the old ones, until they end.
            let drains = tcp && real.weight == 0;
            if !drains && !wanted.contains(&(real.addr, real.port)) {
                let owner = self.server_owner(want.key);
                let text = Some(print::real(real));
                changes.push(self.change(
                    Action::Extra,
                    Layer::Ipvs,
                    object(real),
                    owner,
                    text,
                    None,
                ));
            }
        }
    }

    /// Compares the addresses of kube-ipvs0.
    pub(super) fn addresses(&self, have: &[IpAddr]) -> Vec<Change> {
        let ours = |addr: &IpAddr| {
            let link_local = matches!(addr, IpAddr::V6(v6) if v6.is_unicast_link_local());
            Family::of(*addr) == self.family() && !link_local && !addr.is_loopback()
        };
        let there: BTreeSet<_> = have.iter().copied().filter(ours).collect();
        let wanted: BTreeSet<_> = self.want.addresses.iter().copied().collect();
        let change = |action, addr: IpAddr| {
            let text = Some(Cidr::host(addr).to_string());
            let (a, b) = match action {
                Action::Missing => (None, text.clone()),
                Action::Extra | Action::Differs => (text.clone(), None),
            };
            let object = Object::Address {
                link: DUMMY.to_owned(),
                addr: addr.to_string(),
            };
            self.change(action, Layer::Link, object, self.owners.of_addr(addr), a, b)
        };
        let missing = wanted.difference(&there);
        let missing = missing.map(|&addr| change(Action::Missing, addr));
        let extra = there.difference(&wanted);
        missing
            .chain(extra.map(|&addr| change(Action::Extra, addr)))
            .collect()
    }

    /// Compares sets and their members.
    pub(super) fn sets(&self, have: &Sets<'_>) -> Vec<Change> {
        let mut changes = Vec::new();
        let there: HashMap<&str, &Set<'_>> =
            have.sets.iter().map(|s| (s.name.as_ref(), s)).collect();
        let want = self.want.sets(self.family());
        for (want, kind) in want.sets.iter().zip(crate::backend::ipvs::expect::SETS) {
            let object = Object::Set {
                name: want.name.to_string(),
            };
            let describe = |set: &Set<'_>| format!("{} {}", set.kind, shape(set));
            let Some(have) = there.get(want.name.as_ref()) else {
                let members = want.members.iter().map(|m| m.element.to_string());
                let lines: Vec<_> = [describe(want)].into_iter().chain(members).collect();
                let text = Some(lines.join("\n"));
                changes.push(self.change(Action::Missing, Layer::Ipset, object, None, None, text));
                continue;
            };
            if describe(have) != describe(want) {
                let (a, b) = (Some(describe(have)), Some(describe(want)));
                changes.push(self.change(Action::Differs, Layer::Ipset, object, None, a, b));
            }
            self.members(kind.name, have, want, &mut changes);
        }
        changes
    }

    fn members(&self, kind: &str, have: &Set<'_>, want: &Set<'_>, changes: &mut Vec<Change>) {
        let full = if self.family() == Family::V4 {
            "/32"
        } else {
            "/128"
        };
        let there: HashMap<&str, &str> = have
            .members
            .iter()
            .map(|m| {
                let element = m.element.as_ref();
                let element = element.strip_suffix(full).unwrap_or(element);
                (element, m.options.as_ref())
            })
            .collect();
        let change = |action, member: &str, a: Option<String>, b: Option<String>| {
            let object = Object::Member {
                set: want.name.to_string(),
                member: member.to_owned(),
            };
            self.change(
                action,
                Layer::Ipset,
                object,
                self.member_owner(kind, member),
                a,
                b,
            )
        };
        let mut wanted = HashSet::with_capacity(want.members.len());
        for member in &want.members {
            let element = member.element.as_ref();
            wanted.insert(element);
            match there.get(element) {
                None => changes.push(change(Action::Missing, element, None, Some(element.into()))),
                Some(options) if options.split(' ').any(|word| word == "nomatch") => {
                    let there = Some(format!("{element} {options}"));
                    changes.push(change(
                        Action::Differs,
                        element,
                        there,
                        Some(element.into()),
                    ));
                }
                Some(_) => {}
            }
        }
        for element in there.keys().filter(|&element| !wanted.contains(element)) {
            changes.push(change(
                Action::Extra,
                element,
                Some((*element).into()),
                None,
            ));
        }
    }
}

/// The options of a set that decide what it can hold; sizes follow from use.
fn shape(set: &Set<'_>) -> String {
    let of = |name| set.option(name).map(|value| format!("{name} {value}"));
    let parts: Vec<_> = ["family", "range", "maxelem"]
        .into_iter()
        .filter_map(of)
        .collect();
    parts.join(" ")
}

fn whole(server: &VirtualServer) -> String {
    let lines = [format!(
        "{} {}",
        print::key(server.key),
        print::options(server)
    )];
    let mut lines: Vec<_> = lines.into_iter().collect();
    lines.extend(server.reals.iter().map(print::real));
    lines.join("\n")
}

impl Scope for Scene<'_> {
    fn family(&self) -> Family {
        self.state.family
    }

    fn is_free(&self, _table: &str, chain: &str) -> bool {
        chain == "KUBE-IPVS-OUT-FILTER"
    }

    fn is_extra(&self, _table: &str, _chain: &str) -> bool {
        false
    }

    fn is_shared(&self, _table: &str, _chain: &str) -> bool {
        false
    }

    fn owner(&self, _chain: &str) -> Option<&str> {
        None
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
