//! The report of `kpx access`: permissions at the API server.

use serde::Serialize;

use crate::render::{Page, Report, Tone};
use crate::report::{CLEAN, FOUND, UNKNOWN};
use kpx_node::access::{Level, Request, Rule, Selection};
use kpx_node::words::number_of;

/// The outcome of `kpx access`.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub(crate) struct AccessReport {
    /// The command that needs the permissions; absent for all commands.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) command: Option<String>,
    /// Whether reading nodes through pods is included.
    pub(crate) nodes: bool,
    /// Sources of the credentials; empty if the API server cannot be used.
    pub(crate) credentials: Vec<String>,
    /// The permissions by level: each level needs those before it.
    pub(crate) levels: Vec<LevelAccess>,
    /// Number of permissions that are missing.
    pub(crate) missing: usize,
    /// Number of permissions that are unknown.
    pub(crate) unknown: usize,
    /// Why they are unknown.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) reasons: Vec<String>,
}

/// The permissions of a level.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub(crate) struct LevelAccess {
    /// The level: `read`, `nodes` or `migrate`.
    pub(crate) level: &'static str,
    /// The actions that its permissions allow.
    pub(crate) title: &'static str,
    /// The manifest with all roles of the level.
    pub(crate) file: &'static str,
    /// Its permissions.
    pub(crate) rules: Vec<RuleAccess>,
}

/// A permission on one resource.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub(crate) struct RuleAccess {
    /// The API group; empty for the core group.
    pub(crate) group: &'static str,
    /// The resource, with its subresource.
    pub(crate) resource: &'static str,
    /// The namespace; absent for the whole cluster.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) namespace: Option<&'static str>,
    /// Names of the objects; absent for all objects.
    #[serde(skip_serializing_if = "<[&str]>::is_empty")]
    pub(crate) names: &'static [&'static str],
    /// The verbs, each with its state.
    pub(crate) verbs: Vec<VerbAccess>,
    /// The worst state of the verbs.
    pub(crate) state: AccessState,
    /// The purpose.
    pub(crate) purpose: &'static str,
    /// Names of the commands that use it, the last ones only if they read other nodes.
    pub(crate) commands: Vec<&'static str>,
    #[serde(skip)]
    rule: &'static Rule,
}

/// A verb with its state.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub(crate) struct VerbAccess {
    /// The verb.
    pub(crate) verb: &'static str,
    /// Whether it is allowed, for every name.
    pub(crate) state: AccessState,
}

/// Whether a permission is granted.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub(crate) enum AccessState {
    /// It is granted.
    Allowed,
    /// The API server did not answer.
    Unknown,
    /// It is not granted.
    Missing,
}

/// The answer for one request.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) enum Grant {
    /// It is allowed.
    Allowed,
    /// It is not allowed.
    Missing,
    /// It is unknown, for this reason.
    Unknown(String),
}

impl AccessReport {
    /// Returns the report of the permissions that `selection` selects, all of them unknown.
    pub(crate) fn new(selection: Selection<'_>) -> Self {
        let levels = selection.levels().map(|level| LevelAccess {
            level: level.name(),
            title: level.title(),
            file: level.file(),
            rules: selection.of(level).map(RuleAccess::new).collect(),
        });
        let levels: Vec<LevelAccess> = levels.collect();
        let nodes = levels
            .iter()
            .any(|level| level.level == Level::Nodes.name());
        Self {
            command: selection.command.map(str::to_owned),
            nodes,
            credentials: Vec::new(),
            levels,
            missing: 0,
            unknown: 0,
            reasons: Vec::new(),
        }
    }

    /// Iterates over the requests to review.
    pub(crate) fn requests(&self) -> impl Iterator<Item = Request> {
        let rules = self.levels.iter().flat_map(|level| &level.rules);
        rules.flat_map(|rule| {
            let verbs = rule.rule.verbs.iter();
            verbs.flat_map(|verb| rule.rule.requests(verb))
        })
    }

    /// Records the answers to [`Self::requests`], in their order.
    pub(crate) fn record(&mut self, grants: &[Grant]) {
        let mut grants = grants.iter();
        for rule in self.levels.iter_mut().flat_map(|level| &mut level.rules) {
            for verb in &mut rule.verbs {
                let number = rule.rule.requests(verb.verb).len();
                let answers = grants.by_ref().take(number);
                let states = answers.map(|grant| match grant {
                    Grant::Allowed => AccessState::Allowed,
                    Grant::Missing => AccessState::Missing,
                    Grant::Unknown(why) => {
                        if !self.reasons.contains(why) {
                            self.reasons.push(why.clone());
                        }
                        AccessState::Unknown
                    }
                });
                verb.state = states.max().unwrap_or(AccessState::Unknown);
            }
            let worst = rule.verbs.iter().map(|verb| verb.state).max();
            rule.state = worst.unwrap_or(AccessState::Unknown);
        }
        self.missing = self.number(AccessState::Missing);
        self.unknown = self.number(AccessState::Unknown);
    }

    fn verbs(&self) -> impl Iterator<Item = &VerbAccess> {
        let rules = self.levels.iter().flat_map(|level| &level.rules);
        rules.flat_map(|rule| &rule.verbs)
    }

    /// Returns the number of verbs in `state`.
    fn number(&self, state: AccessState) -> usize {
        self.verbs().filter(|verb| verb.state == state).count()
    }

    /// Returns the command line that the permissions are for.
    fn subject(&self) -> String {
        match &self.command {
            None => "kpx, all commands".to_owned(),
            Some(command) if self.nodes => format!("kpx {command}, on other nodes"),
            Some(command) => format!("kpx {command}"),
        }
    }

    /// Returns the command that prints the manifest.
    fn manifest(&self) -> String {
        let mut words = vec!["kpx access"];
        words.extend(self.command.as_deref());
        words.extend((self.nodes && self.command.is_some()).then_some("--all-nodes"));
        words.push("--manifest --subject user:NAME");
        words.join(" ")
    }
}

impl RuleAccess {
    fn new(rule: &'static Rule) -> Self {
        let verbs = rule.verbs.iter().map(|verb| VerbAccess {
            verb,
            state: AccessState::Unknown,
        });
        Self {
            group: rule.group,
            resource: rule.resource,
            namespace: rule.namespace,
            names: rule.names,
            verbs: verbs.collect(),
            state: AccessState::Unknown,
            purpose: rule.purpose,
            commands: [rule.commands, rule.remote].concat(),
            rule,
        }
    }

    /// Returns the verbs that are in its state, unless all are.
    fn verbs_in_state(&self) -> Option<String> {
        let those = self.verbs.iter().filter(|verb| verb.state == self.state);
        let those: Vec<&str> = those.map(|verb| verb.verb).collect();
        (those.len() < self.verbs.len()).then(|| those.join(", "))
    }

    fn all_verbs(&self) -> String {
        let verbs: Vec<&str> = self.verbs.iter().map(|verb| verb.verb).collect();
        verbs.join(", ")
    }

    /// Returns the resource with the names of its objects.
    fn objects(&self) -> String {
        match self.names {
            [] => self.rule.grouped(),
            names => format!("{} {}", self.rule.grouped(), names.join(", ")),
        }
    }

    /// Returns what it allows, and its purpose.
    fn words(&self) -> String {
        let namespace = self
            .namespace
            .map_or(String::new(), |namespace| format!(" in {namespace}"));
        let those = self.verbs_in_state().map_or(String::new(), |verbs| {
            format!(" ({}: {verbs})", self.state.name())
        });
        let (verbs, objects) = (self.all_verbs(), self.objects());
        format!("{verbs} {objects}{namespace}{those}: {}", self.purpose)
    }

    fn row(&self) -> Vec<String> {
        let state = self.state.name();
        vec![
            self.verbs_in_state()
                .map_or(state.to_owned(), |verbs| format!("{state}: {verbs}")),
            self.objects(),
            self.all_verbs(),
            self.namespace.unwrap_or("all").to_owned(),
            self.purpose.to_owned(),
            self.commands.join(", "),
        ]
    }
}

impl AccessState {
    const fn name(self) -> &'static str {
        match self {
            Self::Allowed => "allowed",
            Self::Unknown => "unknown",
            Self::Missing => "missing",
        }
    }
}

impl Report for AccessReport {
    const KIND: &'static str = "AccessReport";

    fn page(&self, page: &mut Page) {
        page.line(&page.paint(Tone::Strong, &self.subject()));
        if !self.credentials.is_empty() {
            page.para("credentials  ", &self.credentials.join(", "));
        }
        for level in &self.levels {
            page.line("");
            let title = format!("{} ({})", level.title, level.file);
            page.line(&page.paint(Tone::Strong, &title));
            if page.style().wide {
                let columns = ["STATE", "RESOURCE", "VERBS", "NAMESPACE", "FOR", "COMMANDS"];
                let rows: Vec<Vec<String>> = level.rules.iter().map(RuleAccess::row).collect();
                page.grid(&columns.map(|title| (title, 0)), &rows);
                continue;
            }
            for rule in &level.rules {
                page.para(&format!("  {}  ", rule.state.name()), &rule.words());
            }
        }
        page.line("");
        let all = number_of(self.verbs().count(), "permission");
        let result = match (self.missing, self.unknown) {
            (0, 0) => format!("{all}: all allowed"),
            (missing, 0) => format!("{all}: {missing} missing"),
            (0, unknown) => format!("{all}: {unknown} unknown"),
            (missing, unknown) => format!("{all}: {missing} missing, {unknown} unknown"),
        };
        page.line(&result);
        for why in &self.reasons {
            page.para("unknown: ", why);
        }
        if self.missing > 0 {
            let next = format!(
                "an administrator grants them with `{} | kubectl apply -f -`",
                self.manifest()
            );
            page.para("next: ", &next);
        }
    }

    fn exit(&self) -> u8 {
        match (self.missing, self.unknown) {
            (0, 0) => CLEAN,
            (0, _) => UNKNOWN,
            _ => FOUND,
        }
    }
}
