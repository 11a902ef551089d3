//! A finding of a check, and its evidence.

use std::fmt;
use std::net::IpAddr;

use serde::ser::SerializeStruct as _;
use serde::{Serialize, Serializer};

use super::advice::Fix;
use super::subject::{ServiceRef, Subject};
use crate::check::Severity;
use kpx_node::evidence::Time;
use kpx_node::net::Family;
use kpx_node::words::number_of;

/// One fact that breaks a check.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Finding {
    /// How bad it is.
    pub severity: Severity,
    /// The object that the finding is about.
    pub about: Subject,
    /// The name of that object, for people and ignore files.
    pub subject: String,
    /// All Services that it concerns, sorted; none if it concerns the whole node.
    pub services: Vec<ServiceRef>,
    /// The problem. Findings of a check with the same message are printed together.
    pub message: String,
    /// The facts that show it.
    pub evidence: Vec<Proof>,
    /// How to fix it; the check's own fix if unset.
    pub fix: Option<Fix>,
    /// The properties that it may share with its cause.
    pub ties: Ties,
}

/// How a finding counts beside others of its severity.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum Weight {
    /// As its severity says.
    #[default]
    Usual,
    /// It comes before others: no connection to its Services works, that is unknown, or packets of all are lost now.
    First,
    /// It stops connections only under some conditions: where all Services work, it is no error.
    Conditional,
}

/// The parts that a finding may share with its cause, besides its object and its Services.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Ties {
    /// Its IP family, if its object does not tell.
    pub family: Option<Family>,
    /// How it counts beside others of its severity.
    pub weight: Weight,
    /// The places of all missing objects: tables, links, modules, or objects that packets pass.
    pub places: Vec<Subject>,
    /// Whether it says that something is missing, and nothing else.
    pub is_loss: bool,
    /// The time when kube-proxy queued a change of the cluster that it has not written yet, if this alone may explain
    /// the difference.
    pub queued: Option<Time>,
    /// Whether kube-proxy has not received the change of the cluster that it lacks.
    pub unheard: bool,
}

impl Finding {
    /// Returns a finding about `about`, without evidence; it concerns the Service that this names.
    pub fn new(severity: Severity, about: impl Into<Subject>, message: impl Into<String>) -> Self {
        let about = about.into();
        Self {
            severity,
            subject: about.to_string(),
            services: about.named_service().into_iter().cloned().collect(),
            about,
            message: message.into(),
            evidence: Vec::new(),
            fix: None,
            ties: Ties::default(),
        }
    }

    /// Says that it stops connections only under some conditions: where all Services work, it is no error.
    #[must_use]
    pub const fn may_stop(mut self) -> Self {
        self.ties.weight = Weight::Conditional;
        self
    }

    /// Sets the IP family that it is about, if its object does not have one.
    #[must_use]
    pub const fn of_family(mut self, family: Family) -> Self {
        self.ties.family = Some(family);
        self
    }

    /// Says that no connection to its Services works, that this is unknown, or that packets of all are lost now: it comes before others of its
    /// severity.
    #[must_use]
    pub const fn first(mut self) -> Self {
        self.ties.weight = Weight::First;
        self
    }

    /// Says that something is missing, and that nothing else is wrong.
    #[must_use]
    pub const fn loss(mut self) -> Self {
        self.ties.is_loss = true;
        self
    }

    /// Says that something is missing which belongs in `places`, and that nothing else is wrong.
    #[must_use]
    pub fn lost_in(self, places: impl IntoIterator<Item = Subject>) -> Self {
        self.through(places).loss()
    }

    /// Says that its packets pass through `places`.
    #[must_use]
    pub fn through(mut self, places: impl IntoIterator<Item = Subject>) -> Self {
        self.ties.places.extend(places);
        self
    }

    /// Sets another name of the object.
    #[must_use]
    pub fn called(mut self, subject: impl Into<String>) -> Self {
        self.subject = subject.into();
        self
    }

    /// Adds Services that it concerns.
    #[must_use]
    pub fn services<S: Into<ServiceRef>>(mut self, services: impl IntoIterator<Item = S>) -> Self {
        self.services.extend(services.into_iter().map(Into::into));
        self.services.sort();
        self.services.dedup();
        self
    }

    /// Adds evidence.
    #[must_use]
    pub fn evidence(mut self, evidence: impl IntoIterator<Item = Proof>) -> Self {
        self.evidence.extend(evidence);
        self
    }

    /// Sets the fix.
    #[must_use]
    pub fn fix(mut self, fix: impl Into<Fix>) -> Self {
        self.fix = Some(fix.into());
        self
    }
}

/// Returns `subject` as the lead of `message`, or nothing if the message names it.
pub fn lead(subject: &str, message: &str) -> String {
    let is_part = |c: char| c.is_alphanumeric() || "-/_".contains(c);
    let is_named = message.match_indices(subject).any(|(at, _)| {
        let (before, after) = (&message[..at], &message[at + subject.len()..]);
        // A stop may also end a sentence.
        let goes_on = after.trim_start_matches(['.', ':']);
        !before.ends_with(|c| is_part(c) || ".:".contains(c)) && !goes_on.starts_with(is_part)
    });
    if is_named {
        String::new()
    } else {
        format!("{subject}: ")
    }
}

/// Returns `message` behind `subject`, unless it names it.
pub fn stated(subject: &str, message: &str) -> String {
    lead(subject, message) + message
}

/// One fact that shows a finding: a text for people, and named parts in JSON.
#[derive(Clone, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub enum Proof {
    /// A chain of iptables.
    Chain {
        /// Its IP family.
        family: Family,
        /// Its table.
        table: String,
        /// Name of the chain.
        chain: String,
        /// The number of its rules.
        rules: usize,
    },
    /// A rule of iptables.
    Rule {
        /// Its IP family.
        family: Family,
        /// Its table.
        table: String,
        /// The rule as `iptables-save` prints it.
        rule: String,
    },
    /// An object of one of the kernel's tables.
    Object {
        /// `virtual-server`, `ipset`, `nft-table`, ….
        what: &'static str,
        /// Name of the object.
        name: String,
    },
    /// An address of a link.
    Address {
        /// The link.
        link: String,
        /// The address.
        address: IpAddr,
    },
    /// A link that exists or is missing.
    Link {
        /// Name of the link.
        link: String,
        /// Its kind and state, or that it is missing.
        state: String,
    },
    /// A sysctl.
    Sysctl {
        /// The key.
        key: String,
        /// The value.
        value: String,
    },
    /// A kernel module.
    Module {
        /// Name of the module.
        module: String,
        /// Whether it is loaded, missing or blocked.
        standing: String,
    },
    /// A setting of kube-proxy.
    Setting {
        /// Its source: a file, an object, an endpoint.
        source: String,
        /// The setting.
        key: String,
        /// The value.
        value: String,
    },
    /// A difference between the kernel and the cluster's objects.
    Difference {
        /// `missing`, `extra` or `differs`.
        action: &'static str,
        /// Its IP family, if it has one.
        family: Option<Family>,
        /// The object.
        object: String,
        /// Its state in the kernel.
        have: Option<String>,
        /// Its desired state.
        want: Option<String>,
    },
    /// A socket, with the process behind it.
    Socket {
        /// The protocol and the address.
        socket: String,
        /// The process, or that it is unknown.
        process: String,
    },
    /// A tracked connection.
    Connection(String),
    /// A line of a log.
    Log(String),
    /// Any other fact.
    Note(String),
}

impl Proof {
    /// Returns an object of one of the kernel's tables, or of the cluster.
    pub fn object(what: &'static str, name: impl Into<String>) -> Self {
        let name = name.into();
        Self::Object { what, name }
    }

    /// Returns a setting of kube-proxy, its pod or its node.
    pub fn setting(
        source: impl Into<String>,
        key: impl Into<String>,
        value: impl fmt::Display,
    ) -> Self {
        Self::Setting {
            source: source.into(),
            key: key.into(),
            value: format!("{value}"),
        }
    }

    /// Returns a kernel module and its state.
    pub fn module(module: impl Into<String>, standing: impl Into<String>) -> Self {
        Self::Module {
            module: module.into(),
            standing: standing.into(),
        }
    }

    /// Returns `rule`, as `iptables-save` prints it.
    pub fn rule(family: Family, table: impl Into<String>, rule: impl Into<String>) -> Self {
        Self::Rule {
            family,
            table: table.into(),
            rule: rule.into(),
        }
    }

    /// Returns the kind, and the parts for JSON.
    fn parts(&self) -> (&'static str, Vec<(&'static str, String)>) {
        match self {
            Self::Chain {
                family,
                table,
                chain,
                rules,
            } => (
                "chain",
                vec![
                    ("family", family.to_string()),
                    ("table", table.clone()),
                    ("chain", chain.clone()),
                    ("rules", rules.to_string()),
                ],
            ),
            Self::Rule {
                family,
                table,
                rule,
            } => (
                "rule",
                vec![
                    ("family", family.to_string()),
                    ("table", table.clone()),
                    ("rule", rule.clone()),
                ],
            ),
            Self::Object { what, name } => (what, vec![("name", name.clone())]),
            Self::Address { link, address } => (
                "address",
                vec![("link", link.clone()), ("address", address.to_string())],
            ),
            Self::Link { link, state } => (
                "link",
                vec![("link", link.clone()), ("state", state.clone())],
            ),
            Self::Sysctl { key, value } => (
                "sysctl",
                vec![("key", key.clone()), ("value", value.clone())],
            ),
            Self::Module { module, standing } => (
                "module",
                vec![("module", module.clone()), ("standing", standing.clone())],
            ),
            Self::Setting { source, key, value } => (
                "setting",
                vec![
                    ("source", source.clone()),
                    ("key", key.clone()),
                    ("value", value.clone()),
                ],
            ),
            Self::Difference {
                action,
                family,
                object,
                have,
                want,
            } => {
                let mut parts = vec![("action", (*action).to_owned()), ("object", object.clone())];
                parts.extend(family.map(|family| ("family", family.to_string())));
                parts.extend(have.clone().map(|have| ("have", have)));
                parts.extend(want.clone().map(|want| ("want", want)));
                ("difference", parts)
            }
            Self::Socket { socket, process } => (
                "socket",
                vec![("socket", socket.clone()), ("process", process.clone())],
            ),
            Self::Connection(_) => ("connection", Vec::new()),
            Self::Log(_) => ("log", Vec::new()),
            Self::Note(_) => ("note", Vec::new()),
        }
    }
}

impl fmt::Display for Proof {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Chain {
                family,
                table,
                chain,
                rules,
            } => {
                let rules = number_of(*rules, "rule");
                write!(f, "{family} {table} {chain} ({rules})")
            }
            Self::Rule {
                family,
                table,
                rule,
            } => write!(f, "{family} {table} {rule}"),
            Self::Object { what, name } => write!(f, "{what} {name}"),
            Self::Address { link, address } => write!(f, "{address} on {link}"),
            Self::Link { link, state } => write!(f, "{link}: {state}"),
            Self::Sysctl { key, value } => write!(f, "{key} = {value}"),
            Self::Module { module, standing } => write!(f, "module {module}: {standing}"),
            Self::Setting { source, key, value } => write!(f, "{source}: {key}: {value}"),
            Self::Difference {
                action,
                family,
                object,
                have,
                want,
            } => {
                let family = family.map_or_else(String::new, |family| format!("{family} "));
                let have = have.as_deref().map(terse);
                let want = want.as_deref().map(terse);
                match (have, want) {
                    (Some(have), Some(want)) => {
                        write!(f, "{family}{object}: {have}, not {want}")
                    }
                    // The value adds nothing if the object's name contains it.
                    (Some(text), None) | (None, Some(text))
                        if text.starts_with("-j") || !names(object, &text) =>
                    {
                        write!(f, "{action}: {family}{object}: {text}")
                    }
                    _ => write!(f, "{action}: {family}{object}"),
                }
            }
            Self::Socket { socket, process } => write!(f, "{socket}: {process}"),
            Self::Connection(text) | Self::Log(text) | Self::Note(text) => f.write_str(text),
        }
    }
}

/// Returns `rule` without its comment, which is long and redundant.
fn terse(rule: &str) -> String {
    const COMMENT: &str = "-m comment --comment \"";
    let mut rest = rule;
    let mut text = String::with_capacity(rule.len());
    while let Some((before, after)) = rest.split_once(COMMENT) {
        text.push_str(before);
        rest = after
            .split_once('"')
            .map_or("", |(_, after)| after.trim_start());
    }
    text.push_str(rest);
    text
}

/// Returns whether `text` contains the last word of `object`, such as a server or an address.
fn names(object: &str, text: &str) -> bool {
    let last = object.rsplit(' ').next().unwrap_or(object);
    text.split([' ', '/']).any(|word| word == last)
}

impl Serialize for Proof {
    /// Writes `{"kind": …, "text": …}` and the parts.
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let (kind, parts) = self.parts();
        let mut object = serializer.serialize_struct("Proof", 2 + parts.len())?;
        object.serialize_field("kind", kind)?;
        object.serialize_field("text", &self.to_string())?;
        for (name, value) in &parts {
            object.serialize_field(name, value)?;
        }
        object.end()
    }
}
