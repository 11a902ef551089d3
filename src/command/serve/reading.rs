//! One reading of the whole node: all checks, the three views of the mode, drift and rules.
//!
//! It is made in a separate process, `kpx serve --reading`, which prints it as JSON.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::command::doctor::examine::{Asked, examine_case};
use crate::command::shared::failure::Failure;
use crate::command::shared::io::Io;
use crate::command::shared::session::Session;
use crate::report::CLEAN;
use kpx_judge::check::{self, Severity};
use kpx_judge::diff;
use kpx_node::backend::ipvs::model::Key;
use kpx_node::backend::nftables::expect::TABLE;
use kpx_node::evidence::Gap;
use kpx_node::net::Family;
use kpx_node::node::{IptablesBackend, NodeSnapshot};

/// The types of Services, and `none` for objects that serve no Service.
const TYPES: [&str; 5] = [
    "ClusterIP",
    "NodePort",
    "LoadBalancer",
    "ExternalName",
    NONE,
];
const NONE: &str = "none";

/// A reading.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub(super) struct Reading {
    /// Name of the Node, if it is known.
    pub(super) node: Option<String>,
    /// The doctor's metrics, as text.
    pub(super) doctor: String,
    /// Findings of severity error, a line each.
    pub(super) errors: Vec<String>,
    /// Modes: view, family, mode.
    pub(super) modes: Vec<[String; 3]>,
    /// The mode that the node is in.
    pub(super) mode: Option<String>,
    /// Rules: back end, family, number.
    pub(super) rules: Vec<(String, String, usize)>,
    /// Virtual servers by family.
    pub(super) servers: Vec<(String, usize)>,
    /// Differences by type of Service.
    pub(super) drift: BTreeMap<String, usize>,
    /// The unknown parts, with the reasons.
    pub(super) unknown: BTreeMap<String, String>,
}

/// Makes a reading and prints it.
pub(super) async fn run(session: &Session, io: &mut Io<'_>) -> Result<u8, Failure> {
    let asked = Asked::everything(session)?;
    let (report, case, last) = examine_case(session, &asked, &[]).await?;
    let mut reading = Reading {
        node: report.head.node.name.clone(),
        doctor: report.prom(),
        ..Reading::default()
    };
    let errors = report.findings.iter();
    let errors = errors.filter(|error| error.severity == Severity::Error);
    let errors = errors.map(|error| {
        let stated = check::stated(&error.subject, &error.message);
        format!("{} {stated}", error.id)
    });
    reading.errors = errors.collect();
    let node = session.node(&case.evidence).called(case.name.as_deref());
    reading.modes(&node);
    reading.rules(&node);
    let last = session.node(&last.evidence).called(last.name.as_deref());
    reading.drift(&last, session.families());
    serde_json::to_writer(&mut *io.out, &reading)?;
    Ok(CLEAN)
}

impl Reading {
    /// Returns a reading as it was printed.
    pub(super) fn parse(text: &[u8]) -> Result<Self, String> {
        serde_json::from_slice(text).map_err(|e| format!("cannot read the answer: {e}"))
    }

    /// Notes a gap, unless the item does not apply to the node.
    fn gap(&mut self, what: &str, gap: &Gap) {
        if !matches!(gap, Gap::NotApplicable(_)) {
            self.unknown.insert(what.to_owned(), gap.to_string());
        }
    }

    /// Notes a gap, unless the node does not have the item: a module that is not loaded, or a tool that nothing needs.
    fn gap_unless_absent(&mut self, what: &str, gap: &Gap) {
        if !matches!(gap, Gap::Absent(..)) {
            self.gap(what, gap);
        }
    }

    fn modes(&mut self, node: &NodeSnapshot<'_>) {
        let modes = node.modes();
        self.mode = modes.current().map(|mode| mode.to_string());
        for (view, mode) in [
            ("configured", &modes.configured),
            ("reported", &modes.reported),
        ] {
            match mode {
                Ok(mode) => self.mode_of(view, "both", mode.name()),
                Err(gap) => self.gap(&format!("mode-{view}"), gap),
            }
        }
        for of in &modes.observed {
            let family = of.family.to_string();
            for mode in &of.serving {
                self.mode_of("observed", &family, mode.name());
            }
            if of.serving.is_empty() && modes.gaps.is_empty() {
                self.mode_of("observed", &family, NONE);
            }
        }
        if let Some(gap) = modes.gaps.first() {
            self.gap("mode-observed", gap);
        }
    }

    fn mode_of(&mut self, view: &str, family: &str, mode: &str) {
        let labels = [view, family, mode].map(str::to_owned);
        self.modes.push(labels);
    }

    fn rules(&mut self, node: &NodeSnapshot<'_>) {
        for family in Family::BOTH {
            match node.iptables(IptablesBackend::InUse, family) {
                Ok(rules) => {
                    let chains = rules.tables.iter().flat_map(|table| &table.chains);
                    let count = chains.map(|chain| chain.rules.len()).sum();
                    let row = ("iptables".to_owned(), family.to_string(), count);
                    self.rules.push(row);
                }
                Err(gap) => self.gap_unless_absent("rules-iptables", &gap),
            }
            match node.nft() {
                Ok(rules) => {
                    let table = rules.table(family.nft_name(), TABLE);
                    let chains = table.iter().flat_map(|table| &table.chains);
                    let count = chains.map(|chain| chain.rules.len()).sum();
                    let row = ("nftables".to_owned(), family.to_string(), count);
                    self.rules.push(row);
                }
                Err(gap) => self.gap_unless_absent("rules-nftables", &gap),
            }
        }
        match node.ipvs() {
            Ok(table) => {
                for family in Family::BOTH {
                    let all = table.servers.iter();
                    let count = all
                        .filter(|server| family_of(&server.key) == family)
                        .count();
                    self.servers.push((family.to_string(), count));
                }
            }
            Err(gap) => self.gap_unless_absent("virtual-servers", &gap),
        }
    }

    fn drift(&mut self, node: &NodeSnapshot<'_>, families: &[Family]) {
        let Some(mode) = node.modes().current() else {
            let why = "the mode is not known".to_owned();
            self.unknown.insert("drift".to_owned(), why);
            return;
        };
        let found = match diff::compare(node, mode, families) {
            Ok(found) => found,
            Err(gap) => return self.gap_unless_absent("drift", &gap),
        };
        if let Some(of) = found.unknown.first() {
            let why = format!("{}: {}", of.what, of.gap);
            self.unknown.insert("drift".to_owned(), why);
            return;
        }
        let services = node.services().into_iter().flatten();
        let kinds: BTreeMap<_, _> = services
            .map(|service| {
                let name = format!("{}/{}", service.metadata.namespace, service.metadata.name);
                (name, service.spec.kind.as_str())
            })
            .collect();
        self.drift = TYPES.map(|kind| (kind.to_owned(), 0)).into();
        for change in &found.changes {
            let name = change.service.as_deref().unwrap_or_default();
            let service = name.split(':').next().unwrap_or_default();
            let kind = match kinds.get(service) {
                Some(&"") => "ClusterIP",
                Some(kind) => kind,
                // It is gone, or serves none.
                None => NONE,
            };
            *self.drift.entry(kind.to_owned()).or_default() += 1;
        }
    }
}

fn family_of(key: &Key) -> Family {
    match key {
        Key::Address { addr, .. } => Family::of(*addr),
        Key::Fwmark { family, .. } => *family,
    }
}
