//! One node, read once for any number of questions.

use std::fmt;
use std::net::IpAddr;
use std::rc::Rc;

use thiserror::Error;

use super::blame::Blame;
use super::cause::At;
use super::endpoints::Unprobed;
use crate::check::{Check, Outcome};
use crate::diff::{self, Diff};
use crate::trace::sources::SourceError;
use crate::trace::{self, Walks, World};
use crate::verdict::{Far, Judge};
use kpx_node::backend::Mode;
use kpx_node::cluster::{EndpointSlice, Pod, Service};
use kpx_node::evidence::{Gap, Item};
use kpx_node::net::Family;
use kpx_node::node::NodeSnapshot;

/// Finds causes on other nodes.
pub(super) trait Elsewhere: fmt::Debug {
    /// Returns why connections fail on the node of `far`, or after it.
    fn causes(&self, far: &Far) -> Vec<Blame>;
    /// Returns the pods that other nodes read.
    fn pods(&self) -> Vec<&Pod>;
    /// Returns whether every other Node of the cluster of `node` read its pods.
    fn has_all(&self, node: &NodeSnapshot<'_>) -> bool;
    /// Returns why nothing answers the readiness probe of `pod`, which runs on the node `name`.
    fn unprobed(&self, name: &str, pod: &Pod, address: IpAddr, port: u16) -> Option<Unprobed>;
}

/// A question that cannot be answered.
#[derive(Debug, Error)]
pub enum Unanswered {
    /// The cluster's objects are unknown.
    #[error("cannot look up Services and their endpoints: {0}")]
    Objects(Gap),
    /// The source is invalid.
    #[error(transparent)]
    Source(#[from] SourceError),
}

/// One node, read once for any number of questions.
#[derive(Debug)]
pub struct Look<'n> {
    pub(super) node: &'n NodeSnapshot<'n>,
    pub(super) name: Option<String>,
    pub(super) families: Vec<Family>,
    pub(super) services: &'n [Service],
    /// The reason why the Services are not read, if they are not.
    pub(super) unread: Option<Gap>,
    pub(super) slices: &'n [EndpointSlice],
    pub(super) worlds: [World<'n, 'n>; 2],
    pub(super) judge: Judge<'n>,
    pub(super) diff: Result<Diff, Gap>,
    pub(super) outcomes: Vec<(&'static Check, Outcome)>,
    /// The other nodes, if their states are given.
    pub(super) there: Option<Rc<dyn Elsewhere + 'n>>,
}

/// Returns the items that an answer reads, in addition to those of the doctor's checks.
pub fn needs() -> Vec<Item> {
    let modes = Mode::ALL;
    let mut items: Vec<Item> = modes.into_iter().flat_map(diff::needs).collect();
    items.extend(trace::NEEDS);
    items.extend(trace::NOTES_NEEDS);
    items.push(Item::Recent);
    items.extend(kpx_node::evidence::IPTABLES);
    items
}

impl<'n> Look<'n> {
    /// Reads `node`, with the outcomes of the doctor's checks on it.
    pub fn new(
        node: &'n NodeSnapshot<'n>,
        families: &[Family],
        outcomes: &[(&'static Check, Outcome)],
    ) -> Result<Self, Unanswered> {
        let services = node.services().map_err(Unanswered::Objects)?;
        Ok(Self::read(node, families, outcomes, services, None))
    }

    /// Reads `node`. Its Services need not be read: the names in its rules take their place.
    pub fn of_rules(
        node: &'n NodeSnapshot<'n>,
        families: &[Family],
        outcomes: &[(&'static Check, Outcome)],
    ) -> Self {
        match node.services() {
            Ok(services) => Self::read(node, families, outcomes, services, None),
            Err(gap) => Self::read(node, families, outcomes, &[], Some(gap)),
        }
    }

    pub(super) fn read(
        node: &'n NodeSnapshot<'n>,
        families: &[Family],
        outcomes: &[(&'static Check, Outcome)],
        services: &'n [Service],
        unread: Option<Gap>,
    ) -> Self {
        // Without the slices, the effect of the rules can still be judged.
        let slices = node.slices().map_or(&[][..], Vec::as_slice);
        // Data that is shown in part cannot be compared.
        let compared = [
            Item::Services,
            Item::EndpointSlices,
            Item::Iptables4,
            Item::Iptables6,
            Item::IpvsSave,
            Item::Ipset,
        ];
        let part = compared
            .into_iter()
            .find_map(|item| node.evidence().part(item));
        let mode = part.map_or_else(|| node.configured_mode(), Err);
        let diff = mode.and_then(|mode| diff::compare(node, mode, families));
        Self {
            node,
            name: node.name().ok(),
            families: families.to_vec(),
            services,
            unread,
            slices,
            worlds: Family::BOTH.map(|family| World::whole(node, family)),
            judge: Judge::new(node),
            diff,
            outcomes: outcomes.to_vec(),
            there: None,
        }
    }

    /// Returns the differences between the live and the desired state of the node.
    pub const fn diff(&self) -> Result<&Diff, &Gap> {
        self.diff.as_ref()
    }

    pub(super) fn is_own(&self, addr: IpAddr) -> bool {
        let known = self.node.addresses();
        addr.is_loopback() || known.is_ok_and(|all| all.all.iter().any(|a| a.addr.addr == addr))
    }

    /// Returns a walker of packets of `family`.
    pub(super) fn walks(&self, family: Family) -> Walks<'_, 'n, 'n> {
        Walks::new(&self.worlds[usize::from(family == Family::V6)], family)
    }

    pub(super) fn at(&self, subject: String) -> At {
        At {
            subject,
            node: self.name.clone(),
            ..At::default()
        }
    }

    pub(super) fn at_service(&self, service: &Service, subject: String) -> At {
        At {
            service: Some(service.into()),
            ..self.at(subject)
        }
    }
}
