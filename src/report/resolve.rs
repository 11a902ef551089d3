//! What `kpx resolve` prints.

use std::net::SocketAddr;

use serde::Serialize;

use super::{CLEAN, FOUND, UNKNOWN};
use crate::dns::{Expected, Records, Variable};
use crate::render::{Page, Report, Tone};

/// A name, as a pod would resolve it.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ResolveReport {
    /// What was asked for.
    pub name: String,
    /// The namespace of the pod that asks.
    pub namespace: String,
    /// The cluster's domain.
    pub domain: String,
    /// The Service of that name, as `NAMESPACE/NAME`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub service: Option<String>,
    /// Namespaces that have a Service of that name, where none of the names that are tried is there.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub elsewhere: Vec<String>,
    /// Who was asked.
    pub asked: Asked,
    /// The names that are tried, in order, as far as a resolver goes.
    pub tried: Vec<Candidate>,
    /// What a container finds of it in its environment, where that was asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub environment: Option<Environment>,
}

/// Who was asked.
#[derive(Clone, Debug, Eq, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Asked {
    /// This server.
    Server(SocketAddr),
    /// Nobody, and why.
    Nobody(String),
}

/// A name that is tried.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Candidate {
    /// The whole name, without the dot at the end.
    pub name: String,
    /// What it should have; nothing where the cluster's objects do not say.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expected: Option<Records>,
    /// Why they do not.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unknown: Option<&'static str>,
    /// What the server said.
    pub answered: Answered,
    /// Whether that is what it should be; nothing where either is not known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub agrees: Option<bool>,
}

/// What the server said.
#[derive(Clone, Debug, Eq, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Answered {
    /// Nobody was asked.
    NotAsked,
    /// These records.
    Records(Records),
    /// There is no such name.
    NoName,
    /// Nothing that helps, and why.
    Failed(String),
}

/// What a container finds in its environment.
#[derive(Clone, Debug, Eq, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Environment {
    /// These variables.
    Variables(Vec<Variable>),
    /// None, and why.
    None(String),
}

impl Candidate {
    /// Returns the look at `name` that found `answered` where `expected` should be.
    pub fn new(name: String, expected: &Expected, answered: Answered) -> Self {
        let (expected, unknown) = match expected {
            Expected::Records(records) => (Some(records.clone()), None),
            Expected::Unknown(why) => (None, Some(*why)),
        };
        let agrees = expected.as_ref().and_then(|expected| match &answered {
            Answered::NotAsked => None,
            Answered::Records(records) => Some(expected.agrees(records)),
            Answered::NoName => Some(expected.is_empty()),
            Answered::Failed(_) => Some(false),
        });
        Self {
            name,
            expected,
            unknown,
            answered,
            agrees,
        }
    }

    /// Returns whether a resolver tries no other name after this one.
    pub fn ends(&self) -> bool {
        match &self.answered {
            Answered::Records(records) => !records.is_empty(),
            Answered::NoName => false,
            Answered::Failed(_) => true,
            Answered::NotAsked => self.expected.as_ref().is_some_and(|of| !of.is_empty()),
        }
    }
}

impl ResolveReport {
    /// Returns the name that ended the search.
    fn found(&self) -> Option<&Candidate> {
        self.tried.last().filter(|tried| tried.ends())
    }

    /// Returns whether the name may be one beyond the cluster, and nobody was asked for it.
    fn is_unknown(&self) -> bool {
        let unasked = |of: &Candidate| of.unknown.is_some() && of.answered == Answered::NotAsked;
        self.found().is_none() && self.elsewhere.is_empty() && self.tried.iter().any(unasked)
    }

    /// The last line: how it came out.
    fn last(&self) -> String {
        if let Some(of) = self.tried.iter().find(|of| of.agrees == Some(false)) {
            return match &of.answered {
                Answered::Failed(why) => format!(
                    "cluster DNS does not answer: {why}; next: kpx trace kube-system/kube-dns:dns"
                ),
                _ => format!(
                    "{} is not what the cluster's objects say; next: look at what CoreDNS logs",
                    of.name
                ),
            };
        }
        match self.found() {
            None if !self.elsewhere.is_empty() => format!(
                "there is no such name; a pod in namespace {} reaches the Service as {}",
                self.namespace,
                self.elsewhere
                    .iter()
                    .map(|namespace| format!("{}.{namespace}", self.name))
                    .collect::<Vec<_>>()
                    .join(" or ")
            ),
            None if self.is_unknown() => {
                "it is no name of the cluster's; whether there is one beyond it was not asked"
                    .to_owned()
            }
            None => "there is no such name".to_owned(),
            Some(of) => {
                let before = self.tried.len() - 1;
                let searched = match before {
                    0 => String::new(),
                    1 => ", after 1 name that is not there".to_owned(),
                    count => format!(
                        ", after {count} names that are not there; a dot at the end of the name spares these"
                    ),
                };
                match &of.answered {
                    Answered::Failed(why) => why.clone(),
                    Answered::NotAsked => format!("it should resolve, as {}{searched}", of.name),
                    _ => format!("it resolves, as {}{searched}", of.name),
                }
            }
        }
    }
}

impl Report for ResolveReport {
    const KIND: &'static str = "ResolveReport";

    fn page(&self, page: &mut Page) {
        let of = match &self.service {
            Some(service) => format!(", Service {service}"),
            None => String::new(),
        };
        let title = format!(
            "{}, asked for by a pod in namespace {}{of}",
            self.name, self.namespace
        );
        page.line(&page.paint(Tone::Strong, &title));
        let by = match &self.asked {
            Asked::Server(server) => format!("{server}, from this node"),
            Asked::Nobody(why) => format!("nobody: {why}"),
        };
        page.para("asked   ", &by);
        page.line("");
        let rows: Vec<Vec<String>> = self.tried.iter().map(row).collect();
        page.grid(&[("name", 0), ("should be", 0), ("is", 0), ("", 0)], &rows);
        if let Some(environment) = &self.environment {
            page.line("");
            match environment {
                Environment::None(why) => page.para("environment  ", &format!("none: {why}")),
                Environment::Variables(all) => {
                    page.line("environment, where the pod was started after the Service was made:");
                    for variable in all {
                        page.line(&format!("  {}={}", variable.name, variable.value));
                    }
                }
            }
        }
        page.line("");
        page.para("", &self.last());
    }

    fn exit(&self) -> u8 {
        let differs = self.tried.iter().any(|of| of.agrees == Some(false));
        match (differs, self.found()) {
            (true, _) => FOUND,
            (_, None) if self.is_unknown() => UNKNOWN,
            (_, None) => FOUND,
            (_, Some(of)) if matches!(of.answered, Answered::Failed(_)) => UNKNOWN,
            _ => CLEAN,
        }
    }
}

fn row(of: &Candidate) -> Vec<String> {
    let should = match (&of.expected, of.unknown) {
        (Some(records), _) => words(records),
        (None, why) => format!("({})", why.unwrap_or_default()),
    };
    let is = match &of.answered {
        Answered::NotAsked => String::new(),
        Answered::Records(records) => words(records),
        Answered::NoName => "no such name".to_owned(),
        Answered::Failed(_) => "no answer".to_owned(),
    };
    let verdict = if of.agrees == Some(false) {
        "differs"
    } else {
        ""
    };
    vec![of.name.clone(), should, is, verdict.to_owned()]
}

fn words(records: &Records) -> String {
    let alias = records
        .alias
        .iter()
        .map(|alias| format!("alias of {alias}"));
    let addresses = records.addresses.iter().map(ToString::to_string);
    let servers = records
        .servers
        .iter()
        .map(|of| format!("{}:{}", of.host, of.port));
    let all: Vec<String> = alias.chain(addresses).chain(servers).collect();
    if all.is_empty() {
        "nothing".to_owned()
    } else {
        all.join(" ")
    }
}
