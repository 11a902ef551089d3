//! The verdicts of two modes side by side: the fate of connections if kube-proxy switches.

use std::net::SocketAddr;

use serde::Serialize;

use super::cell::{Cell, targets};
use super::survey::{Brief, Surveyed, Tally, survey};
use super::{Client, Fate, Fault, Judge, LossClass};
use crate::trace::{Assumed, Effect, Hop, Outcome, Subsystem, Walks, World, why};
use kpx_node::backend::Mode;
use kpx_node::evidence::Gap;
use kpx_node::net::Family;
use kpx_node::node::NodeSnapshot;
use kpx_node::owner::Port;
use kpx_node::owner::chain_owner::Maker;

/// The verdict on the Services in another mode, and the connections that are worse there.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(feature = "testing", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct Outlook {
    /// The other mode.
    pub mode: Mode,
    /// The verdict on the Services there.
    pub services: Tally,
    /// The connections that are worse there.
    pub worse: Vec<Worse>,
}

/// Connections that are worse in another mode.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(feature = "testing", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct Worse {
    /// The Service port, as `NAMESPACE/NAME:PORT`.
    pub service: String,
    /// The address and port.
    pub to: SocketAddr,
    /// The client.
    pub client: Client,
    /// The class of their packets.
    pub class: LossClass,
    /// Their fate now.
    pub now: Fate,
    /// Their fate in the other mode.
    pub then: Fate,
    /// Why they fail there.
    pub reason: Option<String>,
    /// The same, as a type.
    #[serde(skip)]
    pub fault: Option<Fault>,
    /// The rule of other software that decides it there.
    #[serde(skip)]
    pub rule: Option<Box<Hop>>,
}

/// Connections of which the deciding rule is looked for: the rules of the others are the same ones.
const MOST_WALKED: usize = 64;

impl Outlook {
    /// Judges the connections to `ports` on `node` as it is and with kube-proxy in `mode`.
    ///
    /// # Errors
    ///
    /// The missing data that this needs.
    pub fn of<'n>(node: &'n NodeSnapshot<'n>, ports: &[Port], mode: Mode) -> Result<Self, Gap> {
        let families = &Family::BOTH;
        let assumed = Assumed::new(node, mode)?;
        let name = node.name().ok();
        let other = assumed.snapshot().called(name.as_deref());
        let now = survey(node, ports, families, None);
        let then = survey(&other, ports, families, None);
        let pairs = now.iter().zip(&then);
        let worse = pairs.flat_map(|(now, then)| worse_cells(now, then));
        let mut worse: Vec<Worse> = worse.collect();
        find_rules(&other, ports, &mut worse);
        Ok(Self {
            mode,
            services: Tally::of(&then),
            worse,
        })
    }
}

/// Finds the rules of other software that decide what happens to `worse` on `node`.
fn find_rules<'n>(node: &'n NodeSnapshot<'n>, ports: &[Port], worse: &mut [Worse]) {
    if worse.is_empty() {
        return;
    }
    let judge = Judge::new(node);
    let worlds = Family::BOTH.map(|family| World::whole(node, family));
    for of in worse.iter_mut().take(MOST_WALKED) {
        let family = Family::of(of.to.ip());
        let walks = Walks::new(&worlds[usize::from(family == Family::V6)], family);
        let mut all = ports
            .iter()
            .filter(|port| port.name.to_string() == of.service);
        of.rule = all.find_map(|port| {
            let mut targets = targets(node, port, family).into_iter();
            let target = targets.find(|target| target.at == of.to)?;
            let cells = judge.cells(&walks, target, None).ok()?;
            let cell = cells.into_iter().find(|cell| cell.client == of.client)?;
            deciding(&cell).cloned().map(Box::new)
        });
    }
}

/// Returns the first rule or policy of other software that ends packets of `cell` or leads them elsewhere.
fn deciding(cell: &Cell) -> Option<&Hop> {
    let ways = cell.outcomes.iter().zip(&cell.verdict.ways);
    let failing = ways.filter(|(_, way)| way.fate().fails());
    foreign_end(failing.map(|(outcome, _)| outcome))
}

/// Returns the first rule or policy of other software that ends packets of `outcomes` or leads them elsewhere.
pub fn foreign_end<'o>(outcomes: impl IntoIterator<Item = &'o Outcome>) -> Option<&'o Hop> {
    let mut hops = outcomes
        .into_iter()
        .flat_map(|outcome| outcome.hops.iter().map(AsRef::as_ref));
    hops.find(|hop: &&Hop| {
        let is_foreign = match why::maker(hop) {
            Maker::Other(_) | Maker::Unknown | Maker::Kubelet => true,
            Maker::Kernel => hop.number == 0,
            Maker::KubeProxy | Maker::Both => false,
        };
        let is_rule = matches!(
            hop.subsystem,
            Subsystem::Iptables | Subsystem::IptablesOther | Subsystem::Nftables
        );
        is_rule
            && is_foreign
            && matches!(
                hop.effect,
                Effect::Drop | Effect::Reject { .. } | Effect::Dnat { .. }
            )
    })
}

fn worse_cells<'s>(now: &'s Surveyed, then: &'s Surveyed) -> impl Iterator<Item = Worse> + 's {
    then.cells.iter().filter_map(|cell| {
        let is_same = |brief: &&Brief| brief.to == cell.to && brief.client == cell.client;
        let before = now.cells.iter().find(is_same)?;
        let is_worse = cell.fate.fails() && before.fate < cell.fate;
        is_worse.then(|| Worse {
            service: then.name.to_string(),
            to: cell.to,
            client: cell.client,
            class: LossClass::new(cell.client, cell.kind),
            now: before.fate,
            then: cell.fate,
            reason: cell.fault.as_ref().map(ToString::to_string),
            fault: cell.fault.clone(),
            rule: None,
        })
    })
}
