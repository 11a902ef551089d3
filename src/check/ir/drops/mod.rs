//! IR16: rules of other software that drop traffic to Services.
//!
//! The effect of a rule on a packet depends on every rule before it. So the check traces packets like `kpx trace`: for
//! each Service one from a pod, one from the node and one from outside.

mod foreign;

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};

use crate::check::core::{by_family, if_recorded};
use crate::check::{Check, Facts, Finding, Proof, Severity, Verdict, When};
use crate::evidence::{Gap, IPTABLES, Item};
use crate::net::Family;
use crate::node::{IptablesBackend, NodeSnapshot};
use crate::owner::software::Maker;
use crate::owner::{EndpointState, Owners, Port, Role};
use crate::trace::sources::{self, Pods, Source};
use crate::trace::{self, Effect, Entry, Flow, Hop, Layer, Outcome, World, target};
use foreign::{ForeignRules, is_foreign, is_foreign_table};

/// Maximum of traced Service ports; those that a rule names come first.
const MOST: usize = 100;

/// Services that a finding names; it counts the others.
const FEW: usize = 3;

pub(super) const CHECKS: &[Check] = &[Check {
    id: "IR16",
    name: "foreign-drops",
    severity: Severity::Error,
    when: When::Now,
    title: "No rule of other software drops traffic to Services",
    symptom: "Connections to a Service time out or are refused, although every rule of kube-proxy exists and the \
          endpoints are ready.",
    why: "A packet to a Service passes through every rule on its path, not only kube-proxy's: before translation with \
          the Service's address, then with the endpoint's. A firewall, a script or the other iptables backend can \
          drop it at any hook, and an accept in one table does not cancel a drop in another.",
    verify: "Trace a packet to the Service; the last step names the rule.",
    commands: &[
        "kpx trace NAMESPACE/SERVICE",
        "iptables-nft-save -c | grep -E 'DROP|REJECT'; iptables-legacy-save -c | grep -E 'DROP|REJECT'",
        "nft list ruleset | grep -E 'drop|reject'",
    ],
    fix: "Delete the rule, or change it in the configuration of its software so that it does not match Service \
          traffic.",
    incidents: &[
        "kubernetes/kubernetes#40182: Docker 1.13 sets the policy of FORWARD to DROP",
        "kubernetes/kubernetes#39823: pods do not reach Services under such a policy",
    ],
    needs: &[
        IPTABLES,
        &[
            Item::Nft,
            Item::NftText,
            Item::Ipset,
            Item::Ipvs,
            Item::IpvsSave,
            Item::IpvsStats,
            Item::Addresses,
            Item::Links,
            Item::Routes,
            Item::Rules,
            Item::Sysctl,
            Item::ProxyConfig,
            Item::Services,
            Item::EndpointSlices,
            Item::Nodes,
            Item::Pods,
        ],
    ],
    caused_by: &[],
    run: foreign_drops,
}];

/// The position of a rule.
#[derive(Clone, Debug, Eq, Ord, PartialEq, PartialOrd)]
struct Position {
    family: Family,
    /// Whether it is in the iptables backend that is not in use.
    other: bool,
    nft: bool,
    table: String,
    chain: String,
    /// From 1; 0 for the chain's policy.
    number: usize,
    rule: String,
}

/// The effects of a rule on traced packets.
#[derive(Debug)]
struct Effects {
    rejects: bool,
    maker: Maker,
    services: BTreeSet<String>,
    /// Packets that are certainly lost: by kind of source, the first source and its destination.
    certain: BTreeMap<&'static str, (String, SocketAddr)>,
    /// Unknown conditions that a drop depends on.
    open: BTreeSet<String>,
}

fn foreign_drops(facts: &Facts<'_>) -> Verdict {
    let node = facts.node;
    node.services()?;
    node.slices()?;
    if_recorded(node.routes())?;
    if_recorded(node.addresses())?;
    if_recorded(node.nft().map(|_| ()).or_else(|gap| match gap {
        // Without nftables it has no rules.
        Gap::Absent(..) | Gap::NotApplicable(_) => Ok(()),
        gap => Err(gap),
    }))?;
    let mut effects = BTreeMap::new();
    let (mut owners, mut gap) = (None, None);
    for (family, foreign) in by_family(|family| ForeignRules::of(node, family))? {
        if foreign.any {
            let owners = owners.get_or_insert_with(|| Owners::new(node));
            try_family(node, family, owners, &foreign, &mut effects);
        }
        gap = gap.or(foreign.gap);
    }
    match gap {
        Some(gap) if effects.is_empty() => Err(gap),
        _ => Ok(effects
            .iter()
            .map(|(position, effect)| finding(node, position, effect))
            .collect()),
    }
}

/// Traces packets to Services of `family`, and records the effects of other software's rules.
fn try_family<'n>(
    node: &'n NodeSnapshot<'n>,
    family: Family,
    owners: &Owners,
    foreign: &ForeignRules,
    effects: &mut BTreeMap<Position, Effects>,
) {
    let ready = |port: &&Port| {
        let serves = |state| {
            matches!(
                state,
                Some(EndpointState::Ready | EndpointState::ServingTerminating)
            )
        };
        let mut all = port.endpoints.iter();
        port.left_to.is_none()
            && all.any(|of| serves(of.state) && Family::of(of.addr.ip()) == family)
    };
    let mut ports: Vec<_> = owners.ports().iter().filter(ready).collect();
    ports.sort_by_key(|port| !foreign.name(port));
    let sources = Sources::of(node, family);
    let world = World::whole(node, family);
    for port in ports.into_iter().take(MOST) {
        for (source, to) in sources.flows(port, family) {
            let flow = Flow {
                entry: source.entry,
                source: source.addr,
                destination: to.ip(),
                port: to.port(),
                proto: port.proto,
                established: false,
            };
            // A trace over complete rules needs no further chains.
            let Ok(outcomes) = world.walk(&flow) else {
                continue;
            };
            for outcome in &outcomes {
                let open = open(outcome, &outcomes);
                note(outcome, open, family, source, to, port, effects);
            }
        }
    }
}

fn is_lost(outcome: &Outcome) -> bool {
    use trace::Verdict::{Drop, Reject};
    matches!(outcome.verdict, Drop | Reject)
}

/// Returns the unknown conditions of `outcome`: those that lead to it, and those that would avoid the loss.
fn open<'o>(outcome: &'o Outcome, all: &[Outcome]) -> Vec<&'o str> {
    let matters = |when: &&str| {
        let Some(question) = when.strip_suffix(": no") else {
            return true;
        };
        let opposite = format!("{question}: yes");
        let mut others = all.iter().filter(|other| other.when.contains(&opposite));
        others.any(|other| !is_lost(other))
    };
    outcome
        .when
        .iter()
        .map(String::as_str)
        .filter(matters)
        .collect()
}

/// Records the rule that ends `outcome`, if it belongs to other software.
fn note(
    outcome: &Outcome,
    open: Vec<&str>,
    family: Family,
    source: &Source,
    to: SocketAddr,
    port: &Port,
    effects: &mut BTreeMap<Position, Effects>,
) {
    if !is_lost(outcome) {
        return;
    }
    let Some(hop) = outcome.hops.last().filter(|hop| is_foreign_drop(hop)) else {
        return;
    };
    // Rules do not show whether the route back uses the same link; healthy nodes have such rules.
    if open.iter().any(|when| when.contains("rpfilter")) {
        return;
    }
    let position = Position {
        // A table of family inet covers both.
        family: if hop.layer == Layer::Nftables && hop.table.starts_with("inet ") {
            Family::V4
        } else {
            family
        },
        other: hop.layer == Layer::IptablesOther,
        nft: hop.layer == Layer::Nftables,
        table: hop.table.clone(),
        chain: hop.chain.clone(),
        number: hop.number,
        rule: hop.rule.clone(),
    };
    let effect = effects.entry(position).or_insert_with(|| Effects {
        rejects: outcome.verdict == trace::Verdict::Reject,
        maker: trace::why::maker(hop),
        services: BTreeSet::new(),
        certain: BTreeMap::new(),
        open: BTreeSet::new(),
    });
    effect
        .services
        .insert(format!("{}/{}", port.name.namespace, port.name.name));
    if open.is_empty() {
        let kind = match source.entry {
            Entry::Pod => "pod",
            Entry::Host => "host",
            Entry::Outside => "outside",
        };
        let from = match source.entry {
            Entry::Pod => outcome.sent_from.to_string(),
            Entry::Host => "host".to_owned(),
            Entry::Outside => "external".to_owned(),
        };
        effect.certain.entry(kind).or_insert((from, to));
    } else {
        effect.open.extend(open.into_iter().map(str::to_owned));
    }
}

/// Returns whether `hop` drops by a rule that belongs neither to kube-proxy nor to a network policy.
fn is_foreign_drop(hop: &Hop) -> bool {
    if !matches!(hop.effect, Effect::Drop | Effect::Reject { .. }) {
        return false;
    }
    let table = match hop.layer {
        Layer::Nftables => hop.table.split_once(' ').map_or("", |(_, name)| name),
        Layer::Iptables | Layer::IptablesOther => "",
        Layer::Ipvs | Layer::Routing => return false,
    };
    is_foreign_table(table) && is_foreign(trace::why::maker(hop))
}

/// The sources of traced packets.
struct Sources {
    /// Pods of this node; the second is for Services whose endpoint is the first.
    pods: Vec<Source>,
    host: Option<Source>,
    outside: Option<Source>,
    /// The node's own address, for NodePorts.
    own: Option<IpAddr>,
}

impl Sources {
    fn of(node: &NodeSnapshot<'_>, family: Family) -> Self {
        let name = node.name().ok();
        let nodes = node.nodes().ok();
        let mut nodes = nodes.iter().flat_map(|nodes| nodes.iter());
        let this = nodes.find(|of| Some(&of.metadata.name) == name.as_ref());
        let known = Pods {
            node: this,
            pods: node.pods().map_or(&[], Vec::as_slice),
            slices: node.slices().map_or(&[], Vec::as_slice),
        };
        let nobody = match family {
            Family::V4 => IpAddr::from([0, 0, 0, 0]),
            Family::V6 => IpAddr::from([0_u16; 8]),
        };
        let mut found = Self {
            pods: Vec::new(),
            host: None,
            outside: None,
            own: this
                .and_then(|this| target::node_address(this, family))
                .or_else(|| sources::uplink(node, family)),
        };
        let mut taken = Vec::new();
        for _ in 0..2 {
            for source in sources::usual(nobody, &taken, node, known) {
                match source.entry {
                    Entry::Pod => found.pods.push(source),
                    Entry::Host => found.host = Some(source),
                    Entry::Outside => found.outside = Some(source),
                }
            }
            taken.extend(found.pods.iter().filter_map(|of| of.addr));
        }
        found
    }

    /// Returns the sources and destinations to trace for `port`.
    fn flows(&self, port: &Port, family: Family) -> Vec<(&Source, SocketAddr)> {
        let mut flows = Vec::new();
        let behind = |of: &Source| {
            port.endpoints
                .iter()
                .any(|at| Some(at.addr.ip()) == of.addr)
        };
        let pod = self.pods.iter().find(|of| !behind(of));
        let addresses = port
            .addresses
            .iter()
            .filter(|(_, at)| Family::of(*at) == family);
        for &(role, addr) in addresses {
            let Some(number) = port.port else { continue };
            let to = SocketAddr::new(addr, number);
            if role == Role::ClusterIp {
                flows.extend(pod.into_iter().chain(&self.host).map(|of| (of, to)));
            } else {
                flows.extend(self.outside.iter().map(|of| (of, to)));
            }
        }
        if let (Some(number), Some(own)) = (port.node_port, self.own) {
            let to = SocketAddr::new(own, number);
            flows.extend(self.outside.iter().map(|of| (of, to)));
        }
        flows
    }
}

/// Returns the finding for a rule.
fn finding(node: &NodeSnapshot<'_>, position: &Position, effect: &Effects) -> Finding {
    let verb = if effect.rejects { "rejects" } else { "drops" };
    let named: Vec<_> = effect
        .services
        .iter()
        .take(FEW)
        .map(String::as_str)
        .collect();
    let more = match effect.services.len().saturating_sub(FEW) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    let services = format!("{}{more}", named.join(", "));
    let only_outside = effect.certain.keys().all(|kind| *kind == "outside");
    let (severity, message) = match (effect.certain.is_empty(), only_outside) {
        (true, _) => (
            Severity::Info,
            format!(
                "a rule of other software may {} traffic to {services}",
                &verb[..verb.len() - 1]
            ),
        ),
        // A firewall may close the node to the outside on purpose.
        (false, true) if !position.is_particular() => (
            Severity::Info,
            format!("the node's firewall {verb} traffic from outside to {services}"),
        ),
        (false, _) => (
            Severity::Error,
            format!("a rule of other software {verb} traffic to {services}"),
        ),
    };
    let mut seen = vec![position.proof()];
    seen.extend(effect.certain.iter().map(|(kind, (_, to))| {
        let from = match *kind {
            "pod" => "a pod of this node",
            "host" => "the node",
            _ => "outside",
        };
        Proof::Note(format!("a packet from {from} to {to} ends here"))
    }));
    if effect.certain.is_empty() {
        let open = effect
            .open
            .iter()
            .map(|when| Proof::Note(format!("depends on: {when}")));
        seen.extend(open);
    }
    let see = effect.certain.values().next().map_or_else(
        || "Trace a packet with `kpx trace NAMESPACE/SERVICE`.".to_owned(),
        |(from, to)| format!("Trace a packet with `kpx trace {to} --source {from}`."),
    );
    let finding = Finding::new(severity, position.subject(node), message).evidence(seen);
    if effect.certain.is_empty() {
        let text = "Compare the counter of the rule with the clients' errors; keep the rule if it is intended.";
        return finding.fix(text);
    }
    let command = position
        .deletion(node)
        .filter(|_| severity == Severity::Error);
    match (effect.maker, command) {
        (Maker::Other(who), _) => finding.fix(format!(
            "Change the rule in the configuration of {who}, which would otherwise restore it. {see}"
        )),
        (_, Some(command)) => finding.fix_with(
            format!("If the rule is not needed, delete it here and in the configuration that creates it. {see}"),
            command,
        ),
        (_, None) if position.number == 0 => finding.fix(format!(
            "Add a rule to the chain that accepts traffic of pods and Services. {see}"
        )),
        (_, None) => finding.fix(format!(
            "If the rule is not needed, delete it here and in the configuration that creates it. {see}"
        )),
    }
}

impl Position {
    /// Returns whether the rule matches packets by destination.
    fn is_particular(&self) -> bool {
        const WORDS: [&str; 6] = ["-d ", "--dport", "--dst", "daddr", "dport", "match-set"];
        self.number > 0 && WORDS.iter().any(|word| self.rule.contains(word))
    }

    /// Returns the program that lists and changes the rule.
    fn program(&self, node: &NodeSnapshot<'_>) -> String {
        let holds = |store| node.saved(store, self.family).is_ok();
        // The other backend's items show which one is in use.
        let back_end = match (
            self.other,
            holds(IptablesBackend::Legacy),
            holds(IptablesBackend::Nft),
        ) {
            (true, true, _) | (false, _, true) => "-legacy",
            (true, false, true) | (false, true, false) => "-nft",
            (_, false, false) => "",
        };
        match (self.nft, self.family) {
            (true, _) => "nft".to_owned(),
            (false, Family::V4) => format!("iptables{back_end}"),
            (false, Family::V6) => format!("ip6tables{back_end}"),
        }
    }

    fn subject(&self, node: &NodeSnapshot<'_>) -> String {
        let which = match self.number {
            0 => "policy".to_owned(),
            number => format!("rule {number}"),
        };
        let program = self.program(node);
        format!("{program} {} {} {which}", self.table, self.chain)
    }

    fn proof(&self) -> Proof {
        let rule = match (self.number, self.nft) {
            (0, true) => format!("{} policy drop", self.chain),
            (0, false) => format!("-P {} DROP", self.chain),
            (_, true) => format!("{}: {}", self.chain, self.rule),
            (_, false) => format!("-A {} {}", self.chain, self.rule),
        };
        Proof::rule(self.family, self.table.as_str(), rule)
    }

    /// Returns the command that deletes the rule.
    fn deletion(&self, node: &NodeSnapshot<'_>) -> Option<String> {
        let at = self.number.checked_sub(1)?;
        if self.nft {
            let (family, name) = self.table.split_once(' ')?;
            let chain = node.nft().ok()?.table(family, name)?.chain(&self.chain)?;
            let handle = chain.rules.get(at)?.handle?;
            return Some(format!(
                "nft delete rule {family} {name} {} handle {handle}",
                self.chain
            ));
        }
        let program = self.program(node);
        Some(format!(
            "{program} -t {} -D {} {}",
            self.table, self.chain, self.rule
        ))
    }
}
