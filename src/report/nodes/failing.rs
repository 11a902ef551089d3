//! Services whose connections fail, with the nodes where they do.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::Serialize;

use super::names::Nodes;
use super::{cell, title};
use crate::render::Page;
use kpx_judge::verdict::{Client, Failing, Fate, client_names};

/// A Service whose connections fail, with the nodes where they do.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct FailingService {
    /// The Service, as `NAMESPACE/NAME`.
    pub service: String,
    /// The fate of its connections.
    pub fate: Fate,
    /// The clients whose connections fail.
    pub clients: Vec<Client>,
    /// The nodes.
    pub nodes: Nodes,
}

/// The Services of several nodes.
#[derive(Debug, Default)]
pub(crate) struct Failures(BTreeMap<(String, Fate, Vec<Client>), Nodes>);

impl Failures {
    /// Adds the Services that fail on a node.
    pub(crate) fn add(&mut self, node: &Arc<str>, failing: Vec<Failing>) {
        for of in failing {
            let key = (of.service, of.fate, of.clients);
            self.0.entry(key).or_default().add(node);
        }
    }

    /// Returns the Services, by name.
    pub(crate) fn into_services(self) -> Vec<FailingService> {
        let all = self.0.into_iter();
        all.map(|((service, fate, clients), nodes)| FailingService {
            service,
            fate,
            clients,
            nodes,
        })
        .collect()
    }
}

/// Adds the Services whose connections fail.
pub(crate) fn page(failing: &[FailingService], read: usize, page: &mut Page) {
    if failing.is_empty() {
        return;
    }
    title(page, "Services that fail");
    let rows = failing.iter().map(|failure| {
        vec![
            failure.service.clone(),
            cell(&failure.nodes, read, page),
            format!("{}{}", failure.fate, client_names(&failure.clients)),
        ]
    });
    let rows: Vec<_> = rows.collect();
    page.grid(&[("SERVICE", 0), ("NODES", 0), ("VERDICT", 0)], &rows);
}
