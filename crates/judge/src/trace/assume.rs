//! The node with kube-proxy in another mode: kube-proxy's objects are replaced by those of that mode, and everything
//! else stays.

use std::collections::HashMap;

use serde_json::{Value, json};

use crate::diff;
use kpx_node::backend::iptables::model::{Chain, Policy, Rule, Ruleset, Table, Target};
use kpx_node::backend::iptables::portals::unknown_ports;
use kpx_node::backend::ipvs::model::DUMMY;
use kpx_node::backend::program::{self, Part};
use kpx_node::backend::{Mode, iptables, ipvs, nftables};
use kpx_node::desired::{DesiredState, FamilyState};
use kpx_node::evidence::{Evidence, Gap, IPTABLES, Item};
use kpx_node::net::Family;
use kpx_node::node::{IptablesBackend, NodeSnapshot};
use kpx_node::owner::chain_owner::{self, Maker};

/// The state of a node in another mode, as far as it is known.
#[derive(Debug)]
pub struct Assumed {
    evidence: Evidence,
    nftables: Result<nftables::model::Ruleset, Gap>,
}

impl Assumed {
    /// Returns `node` with kube-proxy in `mode`.
    ///
    /// # Errors
    ///
    /// The missing data that this needs.
    pub fn new(node: &NodeSnapshot<'_>, mode: Mode) -> Result<Self, Gap> {
        Self::beside(node, mode, Others::Stay)
    }

    /// Returns `node` with kube-proxy in `mode`, and without the rules of other software.
    ///
    /// # Errors
    ///
    /// The missing data that this needs.
    pub fn alone(node: &NodeSnapshot<'_>, mode: Mode) -> Result<Self, Gap> {
        Self::beside(node, mode, Others::Go)
    }

    /// Returns `node` without kube-proxy's objects, and with these nftables tables instead.
    ///
    /// # Errors
    ///
    /// The missing data that this needs.
    pub fn served_by(
        node: &NodeSnapshot<'_>,
        tables: Vec<nftables::model::Table>,
    ) -> Result<Self, Gap> {
        let mut assumed = Self::beside(node, Mode::Nftables, Others::Stay)?;
        // Rules of mode nftables itself may be unknown: kube-proxy may be too old for it.
        let mut rules = others_tables(node, Mode::Nftables, Others::Stay)?;
        rules.tables.extend(tables);
        assumed.nftables = Ok(rules);
        Ok(assumed)
    }

    fn beside(node: &NodeSnapshot<'_>, mode: Mode, others: Others) -> Result<Self, Gap> {
        if mode == Mode::Userspace {
            return Err(unknown_ports());
        }
        let desired = node.desired(mode)?;
        let families: Vec<_> = desired.families.iter().map(|state| state.family).collect();
        let mut evidence = node.evidence().clone();
        for family in Family::BOTH {
            let state = desired.family(family);
            iptables_rules(node, &mut evidence, desired, family, state, others)?;
        }
        let text = |part| program::text(desired, part, &families, &diff::service_cidrs(node));
        let old = evidence.text(Item::Ipset).map(others_sets);
        let ours = |what: &str| Gap::NotApplicable(format!("not used in mode {mode}: {what}"));
        if mode == Mode::Ipvs {
            let sets = text(Part::Ipset)?.replace(" -exist\n", "\n");
            let old = old.or_else(none)?;
            evidence.insert(Item::Ipset, Ok(old + &sets));
            evidence.insert(Item::IpvsSave, Ok(text(Part::Ipvs)?));
        } else {
            if let Ok(old) = old {
                evidence.insert(Item::Ipset, Ok(old));
            }
            evidence.insert(Item::IpvsSave, Err(ours("virtual servers")));
        }
        for item in [Item::Ipvs, Item::IpvsStats] {
            evidence.insert(item, Err(Gap::NotCollected(item)));
        }
        for item in [Item::Conntrack, Item::IpvsConnections] {
            evidence.insert(item, Err(ours("connections of its own yet")));
        }
        dummy(&mut evidence, desired)?;
        let settings = text(Part::Sysctl)?;
        if let Ok(old) = evidence.text(Item::Sysctl) {
            // If a sysctl is listed twice, the last one counts.
            let all = format!("{old}\n{settings}");
            match evidence.missing_part(Item::Sysctl).map(str::to_owned) {
                Some(why) => evidence.insert_part(Item::Sysctl, all, why),
                None => evidence.insert(Item::Sysctl, Ok(all)),
            }
        }
        Ok(Self {
            evidence,
            nftables: nftables_rules(node, desired, others),
        })
    }

    /// Returns whether `other` has the same rules.
    pub fn has_rules_of(&self, other: &Self) -> bool {
        let same = |item: &Item| self.evidence.text(*item).ok() == other.evidence.text(*item).ok();
        IPTABLES.iter().all(same) && self.nftables.as_ref().ok() == other.nftables.as_ref().ok()
    }

    /// Returns the node as it would be.
    pub fn snapshot(&self) -> NodeSnapshot<'_> {
        NodeSnapshot::new(&self.evidence).with_nft(self.nftables.clone())
    }
}

/// Whether the rules of other software stay.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Others {
    Stay,
    Go,
}

/// An absent object counts as empty; any other gap remains.
fn none<T: Default>(gap: Gap) -> Result<T, Gap> {
    match gap {
        Gap::NotCollected(_) | Gap::Absent(..) | Gap::NotApplicable(_) => Ok(T::default()),
        gap => Err(gap),
    }
}

/// Sets the rules of one family: the rules of other software, and in the back end in use the rules that kube-proxy
/// would write.
fn iptables_rules(
    node: &NodeSnapshot<'_>,
    evidence: &mut Evidence,
    desired: &DesiredState,
    family: Family,
    state: Option<&FamilyState>,
    others: Others,
) -> Result<(), Gap> {
    let others_rules = |have: &Ruleset<'_>| match others {
        Others::Stay => others_rules(have).to_string(),
        Others::Go => String::new(),
    };
    for store in [IptablesBackend::Legacy, IptablesBackend::Nft] {
        if let Ok(have) = node.iptables(store, family) {
            evidence.insert(store.item(family), Ok(others_rules(have)));
        }
    }
    let have = match others {
        Others::Stay => node
            .iptables(IptablesBackend::InUse, family)
            .map(self::others_rules),
        Others::Go => Ok(Ruleset::default()),
    };
    let mut merged = have.or_else(none)?;
    let places = node
        .iptables(IptablesBackend::InUse, family)
        .map_or_else(|_| Places::new(), places);
    let names;
    let expected;
    let want = match (state, desired.mode) {
        (None, _) | (_, Mode::Nftables | Mode::Userspace) => None,
        (Some(state), Mode::Iptables) => {
            names = iptables::expect::Names::of(state);
            Some(iptables::expect::expect(desired, state, &names)?)
        }
        (Some(state), Mode::Ipvs) => {
            expected = ipvs::expect::expect(desired, state)?;
            Some(ipvs::rules::expect(desired, state, &expected))
        }
    };
    for table in want.iter().flat_map(|want| &want.tables) {
        add(&mut merged, table, &places);
    }
    evidence.insert(Item::iptables(family), Ok(merged.to_string()));
    Ok(())
}

/// How many rules of other software come before each jump to a chain of kube-proxy, by table, chain and target.
type Places = HashMap<(String, String, String), usize>;

fn places(have: &Ruleset<'_>) -> Places {
    let mut places = Places::new();
    for table in &have.tables {
        for chain in &table.chains {
            let mut others = 0;
            for rule in &chain.rules {
                match jump(&table.name, rule) {
                    Some(to) => {
                        let key = (
                            table.name.to_string(),
                            chain.name.to_string(),
                            to.to_owned(),
                        );
                        places.entry(key).or_insert(others);
                    }
                    None => others += 1,
                }
            }
        }
    }
    places
}

/// Returns the chain of kube-proxy that `rule` of `table` leads to.
fn jump<'r>(table: &str, rule: &'r Rule<'_>) -> Option<&'r str> {
    match &rule.target {
        Some(Target::Jump(to) | Target::Goto(to)) => Some(to.as_ref()),
        _ => None,
    }
    .filter(|to| chain_owner::maker_of_chain(table, to) == Maker::KubeProxy)
}

/// Returns the rules that are not kube-proxy's.
fn others_rules<'a>(have: &Ruleset<'a>) -> Ruleset<'a> {
    let tables = have.tables.iter().map(|table| {
        let ours =
            |chain: &str| chain_owner::maker_of_chain(&table.name, chain) == Maker::KubeProxy;
        let chains = table.chains.iter().filter(|chain| !ours(&chain.name));
        let chains = chains.cloned().map(|mut chain| {
            chain.rules.retain(|rule| jump(&table.name, rule).is_none());
            chain
        });
        Table::new(table.name.clone(), chains.collect())
    });
    Ruleset {
        tables: tables.collect(),
        ..Ruleset::default()
    }
}

/// Adds kube-proxy's chains of a table, and its jumps: each at its old place, or else at the beginning of the built-in
/// chain.
fn add<'a>(merged: &mut Ruleset<'a>, table: &Table<'a>, places: &Places) {
    let at = merged.tables.iter().position(|t| t.name == table.name);
    let at = at.unwrap_or_else(|| {
        merged
            .tables
            .push(Table::new(table.name.clone(), Vec::new()));
        merged.tables.len() - 1
    });
    let there = &mut merged.tables[at];
    there.index();
    for chain in &table.chains {
        // Added chains have other names than existing ones.
        let found = there.position(&chain.name);
        match found.map(|at| &mut there.chains[at]) {
            Some(old) if chain.policy.is_some() => {
                let place = |rule: &Rule<'_>| {
                    let to = jump(&table.name, rule)?.to_owned();
                    let key = (table.name.to_string(), chain.name.to_string(), to);
                    places.get(&key).copied()
                };
                // The kubelet may have written the same jump.
                let is_there = |rule: &Rule<'_>| {
                    old.rules
                        .iter()
                        .any(|old_rule| old_rule.target == rule.target)
                };
                let ours = chain.rules.iter().filter(|rule| !is_there(rule));
                let ours = ours.map(|rule| (place(rule).unwrap_or(0), rule));
                let mut ours: Vec<_> = ours.collect();
                ours.sort_by_key(|(place, _)| *place);
                for (place, rule) in ours.into_iter().rev() {
                    old.rules.insert(place.min(old.rules.len()), rule.clone());
                }
            }
            // The kubelet writes it too; its rules stay.
            Some(_) => {}
            None => there.chains.push(Chain {
                policy: chain.policy.map(|_| Policy::Accept),
                ..chain.clone()
            }),
        }
    }
    there.index();
}

/// Returns the lines of `ipset save` about other software's sets.
fn others_sets(saved: &str) -> String {
    let foreign = |line: &&str| {
        let name = line.split_ascii_whitespace().nth(1).unwrap_or_default();
        chain_owner::maker_of_set(name) != Maker::KubeProxy
    };
    let lines = saved.lines().filter(foreign);
    lines.flat_map(|line| [line, "\n"]).collect()
}

/// Takes kube-ipvs0 away, and in ipvs mode puts it there with the Services' addresses and their routes.
fn dummy(evidence: &mut Evidence, desired: &DesiredState) -> Result<(), Gap> {
    let mut addresses = Vec::new();
    if desired.mode == Mode::Ipvs {
        for state in &desired.families {
            addresses.extend(ipvs::expect::expect(desired, state)?.addresses);
        }
    }
    let links = match desired.mode {
        Mode::Ipvs => vec![
            json!({"ifindex": 0, "ifname": DUMMY, "flags": ["BROADCAST", "NOARP"], "operstate": "DOWN"}),
        ],
        Mode::Iptables | Mode::Nftables | Mode::Userspace => Vec::new(),
    };
    let infos: Vec<Value> = addresses
        .iter()
        .map(
            |addr| json!({"local": addr, "prefixlen": Family::of(*addr).bits(), "scope": "global"}),
        )
        .collect();
    let holder = json!({"ifname": DUMMY, "addr_info": infos});
    let routes: Vec<Value> = addresses
        .iter()
        .map(|addr| json!({"type": "local", "dst": addr, "dev": DUMMY, "table": "local", "scope": "host", "prefsrc": addr, "flags": []}))
        .collect();
    for (item, key, more) in [
        (Item::Links, "ifname", links),
        (Item::Addresses, "ifname", vec![holder]),
        (Item::Routes, "dev", routes),
    ] {
        let Ok(text) = evidence.text(item) else {
            continue;
        };
        let mut all = String::new();
        let documents = serde_json::Deserializer::from_str(text).into_iter::<Vec<Value>>();
        for document in documents {
            let mut document = document.map_err(|e| Gap::Failed(item, e.to_string()))?;
            document.retain(|entry| entry[key] != DUMMY);
            all.push_str(&Value::from(document).to_string());
        }
        all.push_str(&Value::from(more).to_string());
        evidence.insert(item, Ok(all));
    }
    Ok(())
}

/// Returns the nftables rules of other software; in nftables mode, none if nftables was not read.
fn others_tables(
    node: &NodeSnapshot<'_>,
    mode: Mode,
    others: Others,
) -> Result<nftables::model::Ruleset, Gap> {
    let mut rules = match node.nft() {
        Ok(rules) => rules.clone(),
        Err(gap) if mode == Mode::Nftables => none(gap)?,
        Err(gap) => return Err(gap),
    };
    rules
        .tables
        .retain(|table| others == Others::Stay && table.name != "kube-proxy");
    Ok(rules)
}

/// Returns the nftables rules of other software, and in nftables mode kube-proxy's tables.
fn nftables_rules(
    node: &NodeSnapshot<'_>,
    desired: &DesiredState,
    others: Others,
) -> Result<nftables::model::Ruleset, Gap> {
    let mut rules = others_tables(node, desired.mode, others)?;
    if desired.mode == Mode::Nftables {
        let cidrs = diff::service_cidrs(node);
        for state in &desired.families {
            rules
                .tables
                .push(nftables::expect::expect(desired, state, &cidrs)?);
        }
    }
    Ok(rules)
}
