//! A permission, and who needs it.

use std::fmt::{self, Display, Formatter};
use std::str::FromStr;

use super::rules::RULES;

/// A group of permissions that are granted together: each needs those before it.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub enum Level {
    /// Reading the cluster's objects.
    Read,
    /// Reading nodes through a pod on each.
    Nodes,
    /// Migrating nodes.
    Migrate,
}

impl Level {
    /// All levels, in order.
    pub const ALL: [Self; 3] = [Self::Read, Self::Nodes, Self::Migrate];

    /// Returns the name, as in JSON.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Nodes => "nodes",
            Self::Migrate => "migrate",
        }
    }

    /// Returns what the permissions allow.
    pub const fn title(self) -> &'static str {
        match self {
            Self::Read => "read the cluster's objects",
            Self::Nodes => "read nodes through a pod on each",
            Self::Migrate => "migrate nodes",
        }
    }

    /// Returns the manifest with all roles of the level.
    pub const fn file(self) -> &'static str {
        match self {
            Self::Read => "deploy/rbac.yaml",
            Self::Nodes => "deploy/rbac-nodes.yaml",
            Self::Migrate => "deploy/rbac-migrate.yaml",
        }
    }
}

/// A permission on one resource, and its purpose.
#[derive(Clone, Copy, Debug)]
pub struct Rule {
    /// The level that it belongs to.
    pub level: Level,
    /// The namespace; `None` for the whole cluster.
    pub namespace: Option<&'static str>,
    /// The API group; empty for the core group.
    pub group: &'static str,
    /// The resource, with its subresource: `pods/log`.
    pub resource: &'static str,
    /// Names of the objects; empty for all objects.
    pub names: &'static [&'static str],
    /// The verbs.
    pub verbs: &'static [&'static str],
    /// The purpose.
    pub purpose: &'static str,
    /// Names of the commands that use it.
    pub commands: &'static [&'static str],
    /// Names of the commands that use it only if they read other nodes.
    pub remote: &'static [&'static str],
    /// The verbs that `kpx preflight` reviews before a switch of the mode.
    pub preflight: &'static [&'static str],
}

impl Rule {
    /// Returns the resource with its API group, as errors of the API server have it.
    pub fn grouped(&self) -> String {
        if self.group.is_empty() {
            return self.resource.to_owned();
        }
        format!("{}.{}", self.resource, self.group)
    }

    /// Returns one request for `verb` per name, or one for all objects.
    pub fn requests(&self, verb: &'static str) -> Vec<Request> {
        let request = |name| Request {
            verb,
            group: self.group,
            resource: self.resource,
            namespace: self.namespace,
            name,
        };
        if self.names.is_empty() {
            return vec![request(None)];
        }
        self.names.iter().map(|&name| request(Some(name))).collect()
    }
}

/// A request in the terms of an access review.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Request {
    /// The verb.
    pub verb: &'static str,
    /// The API group; empty for the core group.
    pub group: &'static str,
    /// The resource, with its subresource.
    pub resource: &'static str,
    /// The namespace; `None` for the whole cluster.
    pub namespace: Option<&'static str>,
    /// The name of the object; `None` for all objects.
    pub name: Option<&'static str>,
}

/// Returns the requests that `kpx preflight` reviews.
pub fn of_preflight() -> impl Iterator<Item = Request> {
    // Of several names, the first is the usual one.
    let first = |rule: &'static Rule, verb| rule.requests(verb).into_iter().next();
    RULES.iter().flat_map(move |rule| {
        rule.preflight
            .iter()
            .filter_map(move |verb| first(rule, *verb))
    })
}

/// An account to which roles are bound.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Subject {
    /// A user, by name.
    User(String),
    /// A group, by name.
    Group(String),
    /// A service account.
    ServiceAccount {
        /// Namespace of the account.
        namespace: String,
        /// Name of the account.
        name: String,
    },
}

impl Default for Subject {
    fn default() -> Self {
        Self::ServiceAccount {
            namespace: "kube-system".to_owned(),
            name: "kpx".to_owned(),
        }
    }
}

impl Display for Subject {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::User(name) => write!(f, "user:{name}"),
            Self::Group(name) => write!(f, "group:{name}"),
            Self::ServiceAccount { namespace, name } => {
                write!(f, "serviceaccount:{namespace}/{name}")
            }
        }
    }
}

impl FromStr for Subject {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let unknown = || "use user:NAME, group:NAME or serviceaccount:NAMESPACE/NAME".to_owned();
        let (kind, name) = text.split_once(':').ok_or_else(unknown)?;
        if name.is_empty() || name.contains(char::is_control) {
            return Err(unknown());
        }
        match (kind, name.split_once('/')) {
            ("user", _) => Ok(Self::User(name.to_owned())),
            ("group", _) => Ok(Self::Group(name.to_owned())),
            ("serviceaccount", Some((namespace, name)))
                if !namespace.is_empty() && !name.is_empty() && !name.contains('/') =>
            {
                Ok(Self::ServiceAccount {
                    namespace: namespace.to_owned(),
                    name: name.to_owned(),
                })
            }
            _ => Err(unknown()),
        }
    }
}
