//! Which mode serves the node, seen three ways, and what other modes left behind.

use serde::Serialize;

use super::{NodeSnapshot, Store};
use crate::backend::Mode;
use crate::backend::iptables::model::{Match, Rule, Ruleset, Target};
use crate::backend::ipvs::model::{DUMMY, Key};
use crate::backend::software::{hashed, modes_of, set_purpose};
use crate::evidence::Gap;
use crate::net::Family;

/// What is known of the mode.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Modes {
    /// What kube-proxy is configured for.
    pub configured: Result<Mode, Gap>,
    /// What kube-proxy says it runs in.
    pub reported: Result<Mode, Gap>,
    /// What the kernel's state says, by family.
    pub observed: Vec<Observed>,
    /// State of modes that are not the current one, sorted.
    pub leftovers: Vec<Leftover>,
    /// What was not looked at, so that leftovers there would not be seen.
    pub gaps: Vec<Gap>,
}

/// What the kernel's state of one family says.
#[derive(Clone, Debug, Eq, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Observed {
    /// The family.
    pub family: Family,
    /// Modes whose rules lead packets to Services; more than one where modes get in each other's way.
    pub serving: Vec<Mode>,
    /// Modes of which any object is there.
    pub present: Vec<Mode>,
}

/// Objects of one kind that a mode left behind.
#[derive(Clone, Debug, Eq, Ord, PartialEq, PartialOrd, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Leftover {
    /// Whose they are.
    pub mode: Mode,
    /// The family; `None` for an object of both.
    pub family: Option<Family>,
    /// What they are.
    pub kind: Kind,
    /// Their names, sorted: chains as `TABLE NAME`.
    pub names: Vec<String>,
    /// Rules in these chains and jumps to them; members of these sets; 0 for other kinds.
    pub rules: usize,
}

/// A kind of left-over objects.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// iptables chains.
    Chains,
    /// IP sets.
    Sets,
    /// Virtual servers.
    VirtualServers,
    /// Addresses of kube-ipvs0.
    Addresses,
    /// The link kube-ipvs0.
    Link,
    /// The nftables table.
    Table,
}

impl Kind {
    /// Returns what `count` objects of the kind are called.
    pub const fn words(self, count: usize) -> &'static str {
        match (self, count) {
            (Self::Chains, 1) => "chain",
            (Self::Chains, _) => "chains",
            (Self::Sets, 1) => "set",
            (Self::Sets, _) => "sets",
            (Self::VirtualServers, 1) => "virtual server",
            (Self::VirtualServers, _) => "virtual servers",
            (Self::Addresses, 1) => "address",
            (Self::Addresses, _) => "addresses",
            (Self::Link, _) => "link",
            (Self::Table, 1) => "table",
            (Self::Table, _) => "tables",
        }
    }
}

impl Modes {
    /// Returns the mode that leads packets to Services, as the kernel's state has it; `None` if no mode does or several do.
    pub fn observed(&self) -> Option<Mode> {
        let mut serving = self.observed.iter().flat_map(|of| &of.serving);
        let first = *serving.next()?;
        serving.all(|&mode| mode == first).then_some(first)
    }

    /// Returns the mode to hold everything else against: what kube-proxy says, else what is observed, else configured.
    pub fn current(&self) -> Option<Mode> {
        let reported = self.reported.as_ref().ok().copied();
        reported
            .or_else(|| self.observed())
            .or_else(|| self.configured.as_ref().ok().copied())
    }
}

impl NodeSnapshot<'_> {
    /// Returns what is known of the mode.
    pub fn modes(&self) -> Modes {
        let reported = self.proxy_mode().and_then(|name| {
            Mode::named(name).ok_or_else(|| {
                let what = format!("kube-proxy says {name:?}, which is not a mode on Linux");
                Gap::Failed(crate::evidence::Item::ProxyMode, what)
            })
        });
        let mut modes = Modes {
            configured: self.configured_mode(),
            reported,
            observed: Vec::new(),
            leftovers: Vec::new(),
            gaps: Vec::new(),
        };
        let mut found = Vec::new();
        for family in Family::BOTH {
            let seen = self.objects(family, &mut found, &mut modes.gaps);
            modes.observed.push(seen);
        }
        if let Some(current) = modes.current() {
            let left = found.into_iter().filter(|of| !of.serves(current));
            modes.leftovers = left.map(|of| of.left).collect();
            modes.leftovers.sort();
        }
        modes
    }

    fn objects(&self, family: Family, found: &mut Vec<Found>, gaps: &mut Vec<Gap>) -> Observed {
        let mut serving = Vec::new();
        let from = found.len();
        match self.iptables(Store::InUse, family) {
            Ok(rules) => {
                chains(rules, family, found);
                serving.extend(dispatching(rules));
            }
            Err(gap) => note(gap, gaps),
        }
        for store in [Store::Legacy, Store::Nft] {
            // Most nodes have one store alone; a second one is looked at if it is there.
            if let Ok(rules) = self.iptables(store, family) {
                chains(rules, family, found);
                serving.extend(dispatching(rules));
            }
        }
        self.ipvs_objects(family, found, gaps);
        match self.nft() {
            Ok(nft) => {
                let of = if family == Family::V4 { "ip" } else { "ip6" };
                if let Some(table) = nft.table(of, "kube-proxy") {
                    let chain = table.chain("nat-prerouting");
                    if chain.is_some_and(|chain| !chain.rules.is_empty()) {
                        serving.push(Mode::Nftables);
                    }
                    let rules = table.chains.iter().map(|chain| chain.rules.len()).sum();
                    let names = vec![format!("{of} kube-proxy")];
                    let of = Found::new(Mode::Nftables, Some(family), Kind::Table, names, rules);
                    found.push(of);
                }
            }
            Err(gap) => note(gap, gaps),
        }
        let mut present: Vec<Mode> = found[from..]
            .iter()
            .filter(|of| of.only)
            .map(|of| of.left.mode)
            .chain(serving.iter().copied())
            .collect();
        present.sort();
        present.dedup();
        serving.sort();
        serving.dedup();
        Observed {
            family,
            serving,
            present,
        }
    }

    fn ipvs_objects(&self, family: Family, found: &mut Vec<Found>, gaps: &mut Vec<Gap>) {
        let of_family = Some(family);
        match self.ipset() {
            Ok(sets) => {
                let ours = sets.sets.iter().filter(|set| {
                    set.name.starts_with("KUBE-6-") == (family == Family::V6)
                        && set_purpose(&set.name).is_some()
                });
                let (mut names, mut members) = (Vec::new(), 0);
                for set in ours {
                    names.push(set.name.to_string());
                    members += set.members.len();
                }
                found.extend(Found::some(
                    Mode::Ipvs,
                    of_family,
                    Kind::Sets,
                    names,
                    members,
                ));
            }
            Err(gap) => note(gap, gaps),
        }
        match self.ipvs() {
            Ok(table) => {
                let servers = table.servers.iter().filter(|server| match server.key {
                    Key::Address { addr, .. } => Family::of(addr) == family,
                    // kube-proxy makes no virtual server for a mark.
                    Key::Fwmark { .. } => false,
                });
                let names = servers.filter_map(|server| match server.key {
                    Key::Address { proto, addr, port } => {
                        let to = std::net::SocketAddr::new(addr, port);
                        Some(format!("{proto} {to}"))
                    }
                    Key::Fwmark { .. } => None,
                });
                let names = names.collect();
                let kind = Kind::VirtualServers;
                found.extend(Found::some(Mode::Ipvs, of_family, kind, names, 0));
            }
            Err(gap) => note(gap, gaps),
        }
        match self.addresses() {
            Ok(addresses) => {
                let on = addresses.all.iter().filter(|at| {
                    at.link == DUMMY && at.addr.family() == family && at.scope != "link"
                });
                let names = on.map(|at| at.addr.addr.to_string()).collect();
                let kind = Kind::Addresses;
                found.extend(Found::some(Mode::Ipvs, of_family, kind, names, 0));
            }
            Err(gap) => note(gap, gaps),
        }
        if family == Family::V4
            && let Ok(links) = self.links()
            && links.all.iter().any(|link| link.name == DUMMY)
        {
            let names = vec![DUMMY.to_owned()];
            found.push(Found::new(Mode::Ipvs, None, Kind::Link, names, 0));
        }
    }
}

/// What is not there cannot hold leftovers; only what could not be looked at is worth a note.
fn note(gap: Gap, gaps: &mut Vec<Gap>) {
    if !matches!(gap, Gap::Absent(..) | Gap::NotApplicable(_)) && !gaps.contains(&gap) {
        gaps.push(gap);
    }
}

/// Objects of one mode, or of iptables and ipvs mode alike.
struct Found {
    left: Leftover,
    /// Whether no other mode writes them.
    only: bool,
}

impl Found {
    fn new(
        mode: Mode,
        family: Option<Family>,
        kind: Kind,
        mut names: Vec<String>,
        rules: usize,
    ) -> Self {
        names.sort();
        Self {
            left: Leftover {
                mode,
                family,
                kind,
                names,
                rules,
            },
            only: true,
        }
    }

    fn some(
        mode: Mode,
        family: Option<Family>,
        kind: Kind,
        names: Vec<String>,
        rules: usize,
    ) -> Option<Self> {
        (!names.is_empty()).then(|| Self::new(mode, family, kind, names, rules))
    }

    fn serves(&self, current: Mode) -> bool {
        self.left.mode == current || !self.only && current != Mode::Nftables
    }
}

fn chains(rules: &Ruleset<'_>, family: Family, found: &mut Vec<Found>) {
    let mut by_mode = [const { (Vec::new(), 0) }; 3];
    let slot = |table: &str, chain: &str| match modes_of(table, chain) {
        [] => None,
        [Mode::Iptables] => Some(0),
        [_] => Some(1),
        _ => Some(2),
    };
    for table in &rules.tables {
        for chain in &table.chains {
            if let Some(slot) = slot(&table.name, &chain.name) {
                let (names, count): &mut (Vec<String>, usize) = &mut by_mode[slot];
                names.push(format!("{} {}", table.name, chain.name));
                *count += chain.rules.len();
            } else {
                // A jump from a chain that is not kube-proxy's goes with the chain it leads to.
                for rule in &chain.rules {
                    let to = leads_to(rule).and_then(|to| slot(&table.name, to));
                    if let Some(slot) = to {
                        by_mode[slot].1 += 1;
                    }
                }
            }
        }
    }
    let [iptables, ipvs, both] = by_mode;
    let (of, kind) = (Some(family), Kind::Chains);
    found.extend(Found::some(
        Mode::Iptables,
        of,
        kind,
        iptables.0,
        iptables.1,
    ));
    found.extend(Found::some(Mode::Ipvs, of, kind, ipvs.0, ipvs.1));
    // Both modes write these; without either, they are told as those of iptables mode.
    found.extend(
        Found::some(Mode::Iptables, of, kind, both.0, both.1).map(|found| Found {
            only: false,
            ..found
        }),
    );
}

fn leads_to<'r>(rule: &'r Rule<'_>) -> Option<&'r str> {
    match &rule.target {
        Some(Target::Jump(to) | Target::Goto(to)) => Some(to),
        _ => None,
    }
}

/// Returns the modes whose rules nat `KUBE-SERVICES` has: both modes rewrite it whole, so the last to write shows.
fn dispatching(rules: &Ruleset<'_>) -> Vec<Mode> {
    let chain = rules.chain("nat", "KUBE-SERVICES");
    let rules = chain.map_or(&[][..], |chain| &chain.rules);
    let iptables = rules.iter().any(|rule| {
        leads_to(rule).is_some_and(|to| to == "KUBE-NODEPORTS" || hashed(to).is_some())
    });
    let ipvs = rules.iter().any(|rule| {
        rule.matches
            .iter()
            .any(|of| matches!(of, Match::Set { name, .. } if set_purpose(&name.is).is_some()))
    });
    let mut modes = Vec::new();
    modes.extend(iptables.then_some(Mode::Iptables));
    modes.extend(ipvs.then_some(Mode::Ipvs));
    modes
}
