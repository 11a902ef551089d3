//! The answer: its verdict, sentence and fix, derived from the causes.

use std::net::SocketAddr;

use serde::Serialize;

use super::cause::{At, Cause, Degree};
use super::endpoints::EndpointRow;
use super::findings::Related;
use super::paths::{Client, Path};
use crate::check::{Fix, ServiceRef};
use crate::evidence::Time;
use crate::owner::EndpointState;
use crate::words::number_of;

/// What no evidence of a node shows.
pub const UNSEEN: &[&str] = &[
    "MTU",
    "the network plugin's own path",
    "NetworkPolicies",
    "the application",
    "other nodes",
];

/// The answer to why a Service does not work, seen from one node.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct Answer {
    /// Name of the node, if known.
    pub node: Option<String>,
    /// The Service, as `NAMESPACE/NAME`; `None` if there is none.
    pub service: Option<String>,
    /// The same, as a type.
    #[serde(skip)]
    pub found: Option<ServiceRef>,
    /// The verdict.
    pub verdict: Verdict,
    /// The answer in one sentence, without a full stop.
    pub sentence: String,
    /// The fix of the first cause.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fix: Option<Fix>,
    /// The causes, in the order in which a packet meets them.
    pub causes: Vec<Broken>,
    /// Restrictions that keep some clients out, as configured.
    pub limits: Vec<Broken>,
    /// Packets from each client to each address.
    pub paths: Vec<Path>,
    /// Endpoints of the Service.
    pub endpoints: Vec<EndpointRow>,
    /// Findings of the doctor that concern the Service.
    pub findings: Vec<Related>,
    /// Data that is missing.
    pub unknown: Vec<String>,
    /// What no evidence of a node shows.
    pub unseen: &'static [&'static str],
}

/// The verdict on a Service; a greater one is worse.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    /// Every path that kpx sees leads to an endpoint.
    Works,
    /// kube-proxy does not serve it.
    NotServed,
    /// Data is missing.
    Unknown,
    /// The rules are right, but something else probably breaks it.
    Suspect,
    /// It is broken.
    Broken,
}

/// A cause, with the packets that it breaks.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct Broken {
    /// The cause.
    #[serde(flatten)]
    pub cause: Cause,
    /// How sure it is.
    pub degree: Degree,
    /// The Service port, or the Service if several ports are affected.
    pub subject: String,
    /// The clients whose packets fail.
    pub from: Vec<Client>,
    /// The addresses at which they fail.
    pub to: Vec<String>,
    /// Time since when it is so, if known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub since: Option<Time>,
    /// Owner of the rules at fault.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub owner: Option<String>,
    /// The cause as one sentence.
    pub sentence: String,
    /// The fix.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fix: Option<Fix>,
}

impl Answer {
    /// Returns every fix.
    pub fn fixes_mut(&mut self) -> impl Iterator<Item = &mut Fix> {
        let broken = self.causes.iter_mut().chain(&mut self.limits);
        let broken = broken.filter_map(|of| of.fix.as_mut());
        let related = self.findings.iter_mut().filter_map(|of| of.fix.as_mut());
        self.fix.iter_mut().chain(broken).chain(related)
    }
}

impl Broken {
    pub(super) fn new(cause: Cause, degree: Degree, at: At) -> Self {
        Self {
            degree,
            owner: cause.owner().map(str::to_owned),
            sentence: cause.sentence(&at),
            fix: cause.fix(&at),
            subject: at.subject,
            from: at.from,
            to: at.to,
            since: at.since,
            cause,
        }
    }

    /// Returns the key that causes are sorted by: those that surely break the Service first, then the earliest.
    pub(super) fn rank(&self) -> (Degree, u8) {
        (self.degree, self.cause.stage())
    }
}

impl Answer {
    /// Adds a cause that was found later, such as one of a real connection.
    pub fn add(&mut self, cause: Cause) {
        let subject = match self.paths.first() {
            Some(first) if self.paths.iter().all(|path| path.service == first.service) => {
                first.service.clone()
            }
            _ => self.service.clone().unwrap_or_default(),
        };
        let at = At {
            subject: subject.clone(),
            service: self.found.clone(),
            node: self.node.clone(),
            ..At::default()
        };
        self.causes.push(Broken::new(cause, Degree::Breaks, at));
        self.settle_as(&subject);
    }

    pub(super) fn settle(&mut self) {
        let subject = self.service.clone().unwrap_or_default();
        self.settle_as(&subject);
    }

    /// Derives the verdict, the sentence and the fix from the causes.
    pub(super) fn settle_as(&mut self, subject: &str) {
        self.causes.sort_by_key(Broken::rank);
        let first = self.causes.first();
        let is_open = self.paths.iter().any(|path| path.works.is_none());
        self.verdict = match first.map(|of| of.degree) {
            Some(Degree::Breaks) => Verdict::Broken,
            Some(Degree::Suspect) => Verdict::Suspect,
            Some(Degree::NotServed) => Verdict::NotServed,
            Some(Degree::Limit) | None if is_open || self.paths.is_empty() => Verdict::Unknown,
            Some(Degree::Limit) | None => Verdict::Works,
        };
        self.sentence = match first {
            Some(first) => first.sentence.clone(),
            None => self.without_cause(subject),
        };
        self.fix = first.and_then(|of| of.fix.clone());
    }

    /// Returns the sentence for a Service without a cause.
    fn without_cause(&self, subject: &str) -> String {
        let node = self.node.as_deref().unwrap_or("this node");
        if self.verdict == Verdict::Unknown {
            let reason = self
                .unknown
                .first()
                .map_or("nothing to trace", String::as_str);
            return format!("kpx cannot tell whether {subject} works on {node}: {reason}");
        }
        let ready = self.endpoints.iter().filter(|of| {
            matches!(
                of.state,
                Some(EndpointState::Ready | EndpointState::ServingTerminating)
            )
        });
        let mut ready: Vec<SocketAddr> = ready.map(|of| of.address).collect();
        ready.sort_unstable();
        ready.dedup();
        let fine = self.paths.iter().filter(|path| path.works == Some(true));
        let from: Vec<Client> = fine.map(|path| path.client).collect();
        let endpoints = number_of(ready.len(), "endpoint");
        let [head @ .., last] = UNSEEN else {
            return String::new();
        };
        format!(
            "{subject} works on {node} as far as kpx can see: packets{} reach {endpoints}; kpx cannot see {} or {last}",
            Client::list(&from),
            head.join(", ")
        )
    }
}
