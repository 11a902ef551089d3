//! Prints how a pod resolves a name.

pub(crate) mod nodes;

use std::net::SocketAddr;

use serde::Serialize;

use crate::render::{Page, Report, Tone};
use crate::report::{CLEAN, FOUND, UNKNOWN};
use kpx_node::dns::{DnsFailure, Expected, Records, Variable};

/// The outcome of `kpx resolve`.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub(crate) struct ResolveReport {
    /// The name to resolve.
    pub name: String,
    /// The namespace of the pod that resolves it.
    pub namespace: String,
    /// The cluster's domain.
    pub domain: String,
    /// The Service of that name, as `NAMESPACE/NAME`; absent if there is none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub service: Option<String>,
    /// Other namespaces with a Service of that name; empty if the name resolves.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub elsewhere: Vec<String>,
    /// The DNS server.
    pub server: DnsServer,
    /// The names that a resolver tries, in order, up to the first that exists.
    pub tried: Vec<Candidate>,
    /// The variables of the Service in a container's environment; absent without `--env`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub environment: Option<Environment>,
}

/// The DNS server that was queried.
#[derive(Clone, Debug, Eq, PartialEq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub(crate) enum DnsServer {
    /// Its address.
    Address(SocketAddr),
    /// None was queried, for this reason.
    NotQueried(String),
}

/// A name that a resolver tries.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub(crate) struct Candidate {
    /// The full name, without the final dot.
    pub name: String,
    /// The records, computed from the cluster's objects; absent if these do not decide them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expected: Option<Records>,
    /// Why the cluster's objects do not decide them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unknown: Option<&'static str>,
    /// The server's answer.
    pub answer: Answer,
    /// Whether the answer has the expected records; absent if either is unknown.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub agrees: Option<bool>,
}

/// The answer of a DNS server.
#[derive(Clone, Debug, Eq, PartialEq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub(crate) enum Answer {
    /// No server was queried.
    NotQueried,
    /// These records.
    Records(Records),
    /// The name does not exist.
    NoName,
    /// No answer, or an error.
    Failed(DnsFailure),
}

/// The variables of a Service in a container's environment.
#[derive(Clone, Debug, Eq, PartialEq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub(crate) enum Environment {
    /// These variables.
    Variables(Vec<Variable>),
    /// None, for this reason.
    None(String),
}

impl Candidate {
    /// Compares the answer for `name` with the expected records.
    pub(crate) fn new(name: String, expected: &Expected, answer: Answer) -> Self {
        let (expected, unknown) = match expected {
            Expected::Records(records) => (Some(records.clone()), None),
            Expected::Unknown(why) => (None, Some(*why)),
        };
        let agrees = expected.as_ref().and_then(|expected| match &answer {
            Answer::NotQueried => None,
            Answer::Records(records) => Some(expected.agrees(records)),
            Answer::NoName => Some(expected.is_empty()),
            Answer::Failed(_) => Some(false),
        });
        Self {
            name,
            expected,
            unknown,
            answer,
            agrees,
        }
    }

    /// Returns whether a resolver stops at this name.
    pub(crate) fn ends(&self) -> bool {
        match &self.answer {
            Answer::Records(records) => !records.is_empty(),
            Answer::NoName => false,
            Answer::Failed(_) => true,
            Answer::NotQueried => self
                .expected
                .as_ref()
                .is_some_and(|records| !records.is_empty()),
        }
    }
}

impl ResolveReport {
    /// Returns the name at which a resolver stops.
    fn found(&self) -> Option<&Candidate> {
        self.tried.last().filter(|tried| tried.ends())
    }

    /// Returns whether the name may exist outside the cluster, and no server was queried.
    fn is_unknown(&self) -> bool {
        let unasked = |candidate: &Candidate| {
            candidate.unknown.is_some() && candidate.answer == Answer::NotQueried
        };
        self.found().is_none() && self.elsewhere.is_empty() && self.tried.iter().any(unasked)
    }

    /// Returns the result in a line.
    fn result(&self) -> String {
        if let Some(of) = self
            .tried
            .iter()
            .find(|attempt| attempt.agrees == Some(false))
        {
            return match &of.answer {
                Answer::Failed(failure) => format!(
                    "cluster DNS does not answer: {}; next: kpx trace kube-system/kube-dns:dns",
                    failure.why
                ),
                _ => format!(
                    "{} differs from the cluster's objects; next: kubectl -n kube-system logs -l k8s-app=kube-dns",
                    of.name
                ),
            };
        }
        match self.found() {
            None if !self.elsewhere.is_empty() => format!(
                "name not found; a pod in namespace {} reaches the Service as {}",
                self.namespace,
                self.elsewhere
                    .iter()
                    .map(|namespace| format!("{}.{namespace}", self.name))
                    .collect::<Vec<_>>()
                    .join(" or ")
            ),
            None if self.is_unknown() => {
                "name not found in the cluster; names outside the cluster were not queried"
                    .to_owned()
            }
            None => "name not found".to_owned(),
            Some(of) => {
                let before = self.tried.len() - 1;
                let searched = match before {
                    0 => String::new(),
                    1 => ", after 1 name that does not exist".to_owned(),
                    count => format!(
                        ", after {count} names that do not exist; end the name with a dot to skip these"
                    ),
                };
                match &of.answer {
                    Answer::Failed(failure) => failure.why.clone(),
                    Answer::NotQueried => format!("should resolve as {}{searched}", of.name),
                    _ => format!("resolves as {}{searched}", of.name),
                }
            }
        }
    }
}

impl Report for ResolveReport {
    const KIND: &'static str = "ResolveReport";

    fn page(&self, page: &mut Page) {
        let of = match &self.service {
            Some(service) => format!(" (Service {service})"),
            None => String::new(),
        };
        let title = format!(
            "{} from a pod in namespace {}{of}",
            self.name, self.namespace
        );
        page.line(&page.paint(Tone::Strong, &title));
        let server = match &self.server {
            DnsServer::Address(server) => format!("{server}, from this node"),
            DnsServer::NotQueried(why) => format!("not queried: {why}"),
        };
        page.para("DNS server  ", &server);
        page.line("");
        let rows: Vec<Vec<String>> = self.tried.iter().map(row).collect();
        page.grid(
            &[("NAME", 0), ("EXPECTED", 0), ("ANSWER", 0), ("", 0)],
            &rows,
        );
        if let Some(environment) = &self.environment {
            page.line("");
            match environment {
                Environment::None(why) => page.para("environment  ", &format!("none: {why}")),
                Environment::Variables(all) => {
                    page.line(
                        "environment of a container that started after the Service was created:",
                    );
                    for variable in all {
                        page.line(&format!("  {}={}", variable.name, variable.value));
                    }
                }
            }
        }
        page.line("");
        page.para("", &self.result());
    }

    fn exit(&self) -> u8 {
        let differs = self
            .tried
            .iter()
            .any(|attempt| attempt.agrees == Some(false));
        match (differs, self.found()) {
            (true, _) => FOUND,
            (_, None) if self.is_unknown() => UNKNOWN,
            (_, None) => FOUND,
            (_, Some(of)) if matches!(of.answer, Answer::Failed(_)) => UNKNOWN,
            _ => CLEAN,
        }
    }
}

fn row(of: &Candidate) -> Vec<String> {
    let expected = match (&of.expected, of.unknown) {
        (Some(records), _) => words(records),
        (None, why) => format!("({})", why.unwrap_or_default()),
    };
    let answer = match &of.answer {
        Answer::NotQueried => String::new(),
        Answer::Records(records) => words(records),
        Answer::NoName => "name not found".to_owned(),
        Answer::Failed(_) => "no answer".to_owned(),
    };
    let verdict = if of.agrees == Some(false) {
        "differs"
    } else {
        ""
    };
    vec![of.name.clone(), expected, answer, verdict.to_owned()]
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
        .map(|server| format!("{}:{}", server.host, server.port));
    let all: Vec<String> = alias.chain(addresses).chain(servers).collect();
    if all.is_empty() {
        "no records".to_owned()
    } else {
        all.join(" ")
    }
}
