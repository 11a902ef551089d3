//! The causes of connections that fail on other nodes.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::rc::Rc;

use super::blame::Blame;
use super::endpoints::Unprobed;
use super::look::{Elsewhere, Look};
use super::search::Sets;
use crate::verdict::{Across, Cell, Far, Fault, Onward, Target};
use kpx_node::cluster::{Pod, Service};
use kpx_node::net::Family;
use kpx_node::node::NodeSnapshot;
use kpx_node::owner::Port;

/// The other nodes, each read once for any number of connections.
#[derive(Debug)]
pub(super) struct There<'s> {
    across: &'s Across<'s>,
    families: Vec<Family>,
    looks: RefCell<BTreeMap<String, Rc<Look<'s>>>>,
    /// The repairs that were found on each node.
    known: RefCell<BTreeMap<String, Vec<Sets>>>,
}

impl<'s> There<'s> {
    pub(super) fn new(across: &'s Across<'s>, families: &[Family]) -> Self {
        Self {
            across,
            families: families.to_vec(),
            looks: RefCell::default(),
            known: RefCell::default(),
        }
    }

    /// Returns a look at the node `name`, if its state is given.
    fn look(&self, name: &str) -> Option<Rc<Look<'s>>> {
        if let Some(known) = self.looks.borrow().get(name) {
            return Some(Rc::clone(known));
        }
        let node = self.across.node(name)?;
        let look = Rc::new(Look {
            judge: self.across.witnessed(node),
            ..Look::new(node, &self.families, &[]).ok()?
        });
        let mut all = self.looks.borrow_mut();
        all.insert(name.to_owned(), Rc::clone(&look));
        Some(look)
    }

    /// Returns why connections fail on the node of `far` itself.
    fn on_node(&self, far: &Far) -> Vec<Blame> {
        let Some(look) = self.look(&far.node) else {
            return Vec::new();
        };
        let nobody = Port::nobody(far.cell.flow.port, far.cell.flow.proto);
        let port = far.port.as_ref().unwrap_or(&nobody);
        let name = &port.name;
        let mut services = look.services.iter();
        let service = services.find(|service| {
            *service.metadata.name == *name.name && *service.metadata.namespace == *name.namespace
        });
        let none = Service::default();
        let target = Target {
            port,
            kind: far.cell.kind,
            at: far.cell.to(),
        };
        let mut all = self.known.borrow_mut();
        let known = all.entry(far.node.clone()).or_default();
        let (blames, _) = look.causes(service.unwrap_or(&none), target, &far.cell, known);
        let blames = blames.into_iter().map(|blame| Blame {
            there: Some(far.node.clone()),
            ..blame
        });
        blames.collect()
    }
}

impl Elsewhere for There<'_> {
    fn causes(&self, far: &Far) -> Vec<Blame> {
        let mut blames = Vec::new();
        if fails_here(&far.cell) {
            blames = self.on_node(far);
        }
        blames.extend(failing_there(&far.cell).flat_map(|far| self.causes(far)));
        blames
    }

    fn pods(&self) -> Vec<&Pod> {
        let nodes = self
            .across
            .names()
            .filter_map(|name| self.across.node(name));
        let read = nodes.filter_map(|node| node.pods().ok());
        read.flatten().collect()
    }

    fn has_all(&self, node: &NodeSnapshot<'_>) -> bool {
        let own = node.name().ok();
        let is_read = |name: &String| {
            let known = self.across.node(name);
            own.as_ref() == Some(name) || known.is_some_and(|node| node.pods().is_ok())
        };
        node.nodes()
            .is_ok_and(|all| all.iter().all(|of| is_read(&of.metadata.name)))
    }

    fn unprobed(&self, name: &str, pod: &Pod, address: IpAddr, port: u16) -> Option<Unprobed> {
        match self.look(name)?.unprobed(pod, address, port)? {
            Unprobed::Stopped(reason, fix) => {
                let reason = format!("on {name}, {reason}");
                Some(Unprobed::Stopped(reason, fix.map(|fix| fix.at(name))))
            }
            silent @ Unprobed::Silent => Some(silent),
        }
    }
}

/// Returns whether connections of `cell` fail on the node that is asked, and not only on others.
pub(super) fn fails_here(cell: &Cell) -> bool {
    let verdict = &cell.verdict;
    let is_there = |fault: &Fault| matches!(fault, Fault::There { .. });
    let mut faults = verdict.ways.iter().filter_map(|way| way.fault.as_ref());
    verdict.beside.is_some()
        || failing_there(cell).next().is_none()
        || faults.any(|fault| fault.fate().fails() && !is_there(fault))
}

/// Iterates over the other nodes on which connections of `cell` fail, or do so unless the network knows more routes than the node.
pub(super) fn failing_there(cell: &Cell) -> impl Iterator<Item = &Far> {
    cell.verdict
        .ways
        .iter()
        .filter_map(|way| match (&way.fault, &way.onward) {
            (Some(fault @ Fault::There { fate, .. }), Some(Onward::Far(far)))
                if fate.fails() || fault.astray().is_some() =>
            {
                Some(far.as_ref())
            }
            _ => None,
        })
}

impl<'n> Look<'n> {
    /// Returns this view with the other nodes in `across`, to which it follows connections.
    #[must_use]
    pub fn beside<'s: 'n>(self, across: &'s Across<'s>) -> Self {
        Self {
            judge: across.judge(self.node),
            there: Some(Rc::new(There::new(across, &self.families))),
            ..self
        }
    }
}
