//! What `kpx trace` found.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};

use serde::Serialize;

use super::{CLEAN, UNKNOWN};
use crate::backend::Mode;
use crate::net::Proto;
use crate::owner::software::{self, Maker};
use crate::owner::{Owners, State};
use crate::render::{Page, Report};
use crate::trace::{Effect, Hook, Hop, Layer, Outcome, Verdict};

/// Backends listed before the rest is counted.
const MOST_SHOWN: usize = 10;

/// The outcome of `kpx trace`: the first source, and all of them where there are several.
#[derive(Debug, Serialize)]
pub struct TraceReport {
    /// The mode the node is in, where that is known.
    pub mode: Option<Mode>,
    /// The Service port behind the target.
    pub service: Option<ServiceRow>,
    /// The first source's trace.
    #[serde(flatten)]
    pub first: SourceTrace,
    /// Every source's trace; empty when there is one.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub sources: Vec<SourceTrace>,
}

/// The trace from one source.
#[derive(Clone, Debug, Serialize)]
pub struct SourceTrace {
    /// `pod`, `host` or `outside`, with the address.
    pub from: String,
    /// The packet.
    pub packet: PacketRow,
    /// How it ends.
    pub verdict: Verdict,
    /// Each way it may end, the likeliest first.
    pub outcomes: Vec<OutcomeRow>,
    /// What happens on the way, for every outcome.
    pub hops: Vec<HopRow>,
    /// What is odd, or not known.
    pub notes: Vec<String>,
}

/// The packet, as it is sent.
#[derive(Clone, Debug, Eq, PartialEq, Serialize)]
pub struct PacketRow {
    /// The source address.
    pub source: IpAddr,
    /// The destination address.
    pub destination: IpAddr,
    /// The destination port.
    pub port: u16,
    /// `tcp`, `udp` or `sctp`.
    pub protocol: Proto,
}

/// A Service port.
#[derive(Clone, Debug, Eq, PartialEq, Serialize)]
pub struct ServiceRow {
    /// The namespace.
    pub namespace: String,
    /// The name.
    pub name: String,
    /// The port's name; empty for an unnamed port.
    pub port: String,
}

/// One way a packet may end.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct OutcomeRow {
    /// How.
    pub verdict: Verdict,
    /// How likely: 0 to 1.
    pub probability: f64,
    /// Where it goes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub backend: Option<BackendRow>,
    /// Whether the source is rewritten on the way out.
    pub masquerade: bool,
    /// Why it ends so.
    pub reason: String,
    /// What was assumed where something is not known.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub when: Vec<String>,
}

/// A backend.
#[derive(Clone, Debug, Eq, PartialEq, Serialize)]
pub struct BackendRow {
    /// The address.
    pub address: IpAddr,
    /// The port.
    pub port: u16,
    /// The pod, as `NAMESPACE/NAME`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pod: Option<String>,
    /// The node it runs on.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
    /// Whether the API calls it ready.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ready: Option<bool>,
}

/// One thing that happens on the way.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct HopRow {
    /// The hook.
    pub hook: Hook,
    /// The layer.
    pub layer: Layer,
    /// The table.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub table: String,
    /// The chain.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub chain: String,
    /// Which rule of the chain, from 1; 0 for its policy.
    pub number: usize,
    /// The rule in full.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub rule: String,
    /// Packets it counted.
    pub packets: Option<u64>,
    /// Whose it is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub owner: Option<String>,
    /// What it does.
    pub effect: Effect,
    /// How likely, once the packet is here.
    pub probability: f64,
    /// Positions in `outcomes` of those that pass here; absent when all do.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub outcomes: Option<BTreeSet<usize>>,
}

impl SourceTrace {
    /// Puts together what a walk found.
    pub fn new(
        from: String,
        packet: PacketRow,
        outcomes: &[Outcome],
        notes: Vec<String>,
        owners: &Owners,
    ) -> Self {
        let proto = packet.protocol;
        let rows = outcomes.iter().map(|outcome| OutcomeRow {
            verdict: outcome.verdict,
            probability: outcome.probability,
            backend: (outcome.verdict == Verdict::Deliver)
                .then(|| backend(owners, outcome.destination, proto)),
            masquerade: outcome.masquerade,
            reason: outcome.reason.clone(),
            when: outcome.when.clone(),
        });
        Self {
            from,
            packet,
            verdict: overall(outcomes),
            outcomes: rows.collect(),
            hops: together(outcomes, owners),
            notes,
        }
    }
}

/// Returns what is known of the backend at `addr`.
fn backend(owners: &Owners, (address, port): (IpAddr, u16), proto: Proto) -> BackendRow {
    let found = owners.endpoint(SocketAddr::new(address, port), proto);
    let known = found.map(|(_, endpoint)| endpoint);
    BackendRow {
        address,
        port,
        pod: known.and_then(|endpoint| endpoint.pod.as_deref().map(str::to_owned)),
        node: known.and_then(|endpoint| endpoint.node.as_deref().map(str::to_owned)),
        ready: known
            .and_then(|endpoint| endpoint.state)
            .map(|state| state == State::Ready),
    }
}

/// Returns whose the chain of a hop is: a Service's, or other software's; `None` for kube-proxy's own and the kernel's.
fn owner(owners: &Owners, hop: &Hop) -> Option<String> {
    let owner = match hop.layer {
        Layer::Iptables | Layer::IptablesOther => owners.chain(&hop.chain),
        Layer::Nftables => owners.nft_chain(&hop.chain),
        Layer::Ipvs | Layer::Routing => return None,
    };
    if let Some(port) = owner.port() {
        return Some(port.name.to_string());
    }
    let maker = match hop.layer {
        Layer::Nftables => {
            software::maker_of_table(hop.table.split_once(' ').map_or("", |(_, name)| name))
        }
        _ => software::maker_of_chain(&hop.table, &hop.chain),
    };
    match maker {
        Maker::Other(who) => Some(who.to_owned()),
        Maker::Kubelet => Some("the kubelet".to_owned()),
        Maker::Unknown => Some("not kube-proxy's".to_owned()),
        Maker::KubeProxy | Maker::Both | Maker::Kernel => None,
    }
}

/// One verdict for all outcomes: theirs, if they agree; unknown, if something not known decides; else mixed.
fn overall(outcomes: &[Outcome]) -> Verdict {
    let mut verdicts = outcomes.iter().map(|outcome| outcome.verdict);
    let Some(first) = verdicts.next() else {
        return Verdict::Unknown;
    };
    let unsure = outcomes
        .iter()
        .any(|o| o.verdict == Verdict::Unknown || !o.when.is_empty());
    match (verdicts.all(|verdict| verdict == first), unsure) {
        (true, _) => first,
        (false, true) => Verdict::Unknown,
        (false, false) => Verdict::Mixed,
    }
}

/// The hops of every outcome in one list; each is there once.
fn together(outcomes: &[Outcome], owners: &Owners) -> Vec<HopRow> {
    let mut hops: Vec<(&Hop, BTreeSet<usize>)> = Vec::new();
    for (which, outcome) in outcomes.iter().enumerate() {
        let mut at = 0;
        for hop in &outcome.hops {
            let same = |(other, _): &(&Hop, BTreeSet<usize>)| *other == hop.as_ref();
            match hops[at..].iter().position(same) {
                Some(found) => {
                    at += found;
                    hops[at].1.insert(which);
                }
                None => hops.insert(at, (hop, BTreeSet::from([which]))),
            }
            at += 1;
        }
    }
    let row = |(hop, passing): (&Hop, BTreeSet<usize>)| HopRow {
        hook: hop.hook,
        layer: hop.layer,
        table: hop.table.clone(),
        chain: hop.chain.clone(),
        number: hop.number,
        rule: hop.rule.clone(),
        packets: hop.packets,
        owner: owner(owners, hop),
        effect: hop.effect.clone(),
        probability: hop.chance,
        outcomes: (passing.len() < outcomes.len()).then_some(passing),
    };
    hops.into_iter().map(row).collect()
}

impl Report for TraceReport {
    const KIND: &'static str = "TraceReport";

    fn page(&self, page: &mut Page) {
        let all: Vec<&SourceTrace> = if self.sources.is_empty() {
            vec![&self.first]
        } else {
            self.sources.iter().collect()
        };
        let groups = alike(&all);
        for (at, group) in groups.iter().enumerate() {
            if at > 0 {
                page.line("");
            }
            let from: Vec<_> = group.iter().map(|trace| trace.from.as_str()).collect();
            let trace = group[0];
            page.line(&format!(
                "{}: {}",
                word(trace.verdict),
                self.sentence(trace)
            ));
            let shown = if from.len() > 1 {
                "; this is the way of the first"
            } else {
                ""
            };
            page.line(&format!("  from {}{shown}", from.join(", ")));
            Self::hops(page, trace);
        }
        let mut said = BTreeSet::new();
        for trace in &all {
            for note in &trace.notes {
                if said.insert(note) {
                    if said.len() == 1 {
                        page.line("");
                    }
                    page.line(&format!("! {note}"));
                }
            }
        }
    }

    fn exit(&self) -> u8 {
        let unknown = |trace: &SourceTrace| trace.verdict == Verdict::Unknown;
        if unknown(&self.first) || self.sources.iter().any(unknown) {
            UNKNOWN
        } else {
            CLEAN
        }
    }
}

/// Groups sources whose packets end alike.
fn alike<'t>(all: &[&'t SourceTrace]) -> Vec<Vec<&'t SourceTrace>> {
    let mut groups: Vec<Vec<&SourceTrace>> = Vec::new();
    for &trace in all {
        let same = |group: &&mut Vec<&SourceTrace>| group[0].outcomes == trace.outcomes;
        match groups.iter_mut().find(same) {
            Some(group) => group.push(trace),
            None => groups.push(vec![trace]),
        }
    }
    groups
}

const fn word(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Deliver => "DELIVERED",
        Verdict::Reject => "REJECTED",
        Verdict::Drop => "DROPPED",
        Verdict::Local => "LOCAL",
        Verdict::Unmatched => "UNMATCHED",
        Verdict::Unknown => "UNKNOWN",
        Verdict::Mixed => "MIXED",
    }
}

impl TraceReport {
    /// The answer in one sentence.
    fn sentence(&self, trace: &SourceTrace) -> String {
        let packet = &trace.packet;
        let target = format!(
            "{}/{}",
            SocketAddr::new(packet.destination, packet.port),
            packet.protocol
        );
        let service = self.service.as_ref().map_or(target.clone(), |service| {
            let port = if service.port.is_empty() {
                String::new()
            } else {
                format!(":{}", service.port)
            };
            format!("{}/{}{port} ({target})", service.namespace, service.name)
        });
        let first = trace.outcomes.first();
        let reason = first.map_or("nothing is known of it", |outcome| outcome.reason.as_str());
        match trace.verdict {
            Verdict::Deliver => {
                let kept = match (
                    trace.outcomes.iter().all(|o| o.masquerade),
                    trace.outcomes.iter().any(|o| o.masquerade),
                ) {
                    (true, _) => "its source is rewritten",
                    (false, true) => "its source is rewritten for some",
                    (false, false) => "its source is kept",
                };
                let count = trace.outcomes.len();
                let to = if count == 1 {
                    "its one backend".to_owned()
                } else {
                    format!("one of {count} backends")
                };
                format!("{service} reaches {to}; {kept}")
            }
            Verdict::Mixed => {
                let share = |verdict| -> f64 {
                    trace
                        .outcomes
                        .iter()
                        .filter(|o| o.verdict == verdict)
                        .map(|o| o.probability)
                        .sum()
                };
                let parts: Vec<_> = [
                    Verdict::Deliver,
                    Verdict::Reject,
                    Verdict::Drop,
                    Verdict::Local,
                    Verdict::Unmatched,
                ]
                .into_iter()
                .filter(|verdict| share(*verdict) > 0.0)
                .map(|verdict| {
                    format!(
                        "{} {}",
                        percent(share(verdict)),
                        word(verdict).to_ascii_lowercase()
                    )
                })
                .collect();
                format!("{service}: {}", parts.join(", "))
            }
            _ => format!("{service}: {reason}"),
        }
    }

    fn hops(page: &mut Page, trace: &SourceTrace) {
        let style = page.style();
        let several = trace.outcomes.len() > 1;
        let mut number = 0;
        let mut split = false;
        let mut last_hook = None;
        for (at, hop) in trace.hops.iter().enumerate() {
            if !style.wide && comes_to_nothing(hop, trace.hops.get(at + 1)) {
                continue;
            }
            if hop.outcomes.is_some() && several {
                if !split {
                    split = true;
                    backends(page, trace);
                }
                if !style.wide {
                    continue;
                }
            }
            number += 1;
            let hook = if last_hook == Some(hop.hook) {
                ""
            } else {
                hop.hook.name()
            };
            last_hook = Some(hop.hook);
            let packets = hop
                .packets
                .map(|n| format!("  [{n} packets]"))
                .unwrap_or_default();
            let owner = hop
                .owner
                .as_ref()
                .map(|o| format!("  ({o})"))
                .unwrap_or_default();
            page.line(&format!(
                "{number:>3} {hook:<12} {}{}",
                place(hop),
                arrow(hop, style.ascii)
            ));
            let more = format!("{packets}{owner}");
            if !more.is_empty() && style.wide {
                page.line(&format!("                {}", more.trim_start()));
            }
            if style.wide && !hop.rule.is_empty() {
                page.line(&format!("                {}", hop.rule));
            }
        }
        if !several {
            backends(page, trace);
        }
    }
}

/// Returns whether a hop is a jump into a chain where nothing happens.
fn comes_to_nothing(hop: &HopRow, next: Option<&HopRow>) -> bool {
    let Effect::Jump { to } = &hop.effect else {
        return false;
    };
    next.is_none_or(|next| next.chain != *to || next.hook != hop.hook)
}

/// Where a hop is: `nat KUBE-SERVICES:3`.
fn place(hop: &HopRow) -> String {
    match hop.layer {
        Layer::Routing => "route".to_owned(),
        Layer::Ipvs => "ipvs".to_owned(),
        Layer::IptablesOther => format!(
            "{} {}:{} (other back end)",
            hop.table, hop.chain, hop.number
        ),
        Layer::Iptables | Layer::Nftables if hop.number == 0 => {
            format!("{} {} policy", hop.table, hop.chain)
        }
        Layer::Iptables | Layer::Nftables => format!("{} {}:{}", hop.table, hop.chain, hop.number),
    }
}

/// What a hop does, in words.
fn arrow(hop: &HopRow, ascii: bool) -> String {
    let to = if ascii { "->" } else { "→" };
    let addr = |address: &Option<IpAddr>| {
        address.map_or("an address that is not known".to_owned(), |a| a.to_string())
    };
    let text = match &hop.effect {
        Effect::Jump { to: chain } | Effect::Goto { to: chain } => format!("{to} {chain}"),
        Effect::Return => "returns".to_owned(),
        Effect::Accept => "accepts".to_owned(),
        Effect::Drop => "drops".to_owned(),
        Effect::Reject { with } => format!("rejects with {with}"),
        Effect::Dnat { address, port } => {
            format!("translates to {}", SocketAddr::new(*address, *port))
        }
        Effect::Snat { address } => format!("rewrites the source to {}", addr(address)),
        Effect::Masquerade { address } => format!("masquerades as {}", addr(address)),
        Effect::Mark { from, to: mark } => format!("marks {from:#x} {to} {mark:#x}"),
        Effect::Untrack => "takes it out of conntrack".to_owned(),
        Effect::Balance {
            server,
            scheduler,
            address,
            port,
        } => {
            format!(
                "{server} ({scheduler}) {to} {}",
                SocketAddr::new(*address, *port)
            )
        }
        Effect::NoServer { server } => format!("{server} has no real server"),
        Effect::ToHost => "to this host".to_owned(),
        Effect::Out { device, gateway } => {
            let device = device.as_deref().unwrap_or("a link that is not known");
            gateway.map_or(format!("out by {device}"), |gateway| {
                format!("out by {device} via {gateway}")
            })
        }
        Effect::Nowhere { why } => why.clone(),
        Effect::Other { what } => what.clone(),
    };
    let chance = if (hop.probability - 1.0).abs() < 1e-9 {
        String::new()
    } else {
        format!("  {}", percent(hop.probability))
    };
    format!("  {text}{chance}")
}

/// The outcomes, one a line.
fn backends(page: &mut Page, trace: &SourceTrace) {
    let style = page.style();
    let most = if style.wide || style.verbose > 0 {
        usize::MAX
    } else {
        MOST_SHOWN
    };
    for outcome in trace.outcomes.iter().take(most) {
        let mut text = match &outcome.backend {
            Some(backend) => {
                let mut text = SocketAddr::new(backend.address, backend.port).to_string();
                if let Some(pod) = &backend.pod {
                    text.extend(["  ", pod]);
                }
                if backend.ready == Some(false) {
                    text.push_str("  NOT READY");
                }
                text
            }
            None => format!(
                "{}: {}",
                word(outcome.verdict).to_ascii_lowercase(),
                outcome.reason
            ),
        };
        if outcome.masquerade && trace.outcomes.iter().any(|o| !o.masquerade) {
            text.push_str("  (source rewritten)");
        }
        page.line(&format!("    {:>6}  {text}", percent(outcome.probability)));
        for when in &outcome.when {
            page.line(&format!("            if {when}"));
        }
    }
    if trace.outcomes.len() > most {
        page.line(&format!(
            "            and {} more; -v shows all",
            trace.outcomes.len() - most
        ));
    }
}

/// `33.3%`, without a needless fraction.
fn percent(probability: f64) -> String {
    let text = format!("{:.1}", probability * 100.0);
    format!("{}%", text.strip_suffix(".0").unwrap_or(&text))
}
