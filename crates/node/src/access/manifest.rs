//! Roles and bindings as YAML.

use std::fmt::Write as _;

use super::{Level, RULES, Rule, Subject};

/// Columns of a comment.
const WIDTH: usize = 120;

/// The permissions of a manifest.
#[derive(Clone, Copy, Debug)]
pub struct Selection<'s> {
    /// The command that needs them; `None` for all commands.
    pub command: Option<&'s str>,
    /// Whether nodes are read through pods; for all commands, they always are.
    pub nodes: bool,
}

impl Selection<'_> {
    /// All permissions.
    pub const ALL: Self = Self {
        command: None,
        nodes: true,
    };

    /// Returns the selected permissions of `level`.
    pub fn of(&self, level: Level) -> impl Iterator<Item = &'static Rule> {
        let Self { command, nodes } = *self;
        let skipped = level == Level::Nodes && command.is_some() && !nodes;
        RULES.iter().filter(move |rule| {
            let used = command.is_none_or(|command| {
                rule.commands.contains(&command) || nodes && rule.remote.contains(&command)
            });
            !skipped && rule.level == level && used
        })
    }

    /// Returns the levels with selected permissions.
    pub fn levels(&self) -> impl Iterator<Item = Level> {
        let has = |level: &Level| self.of(*level).next().is_some();
        Level::ALL.into_iter().filter(has)
    }
}

/// Returns the manifest of `level` in `deploy/`.
pub fn deployed(level: Level) -> String {
    let mut text = comment("", header(level));
    objects(&mut text, level, Selection::ALL, &Subject::default());
    text
}

/// Returns the manifest of the permissions that `selection` selects, bound to `subject`.
///
/// The names of roles contain the command, and the names of bindings the subject: applying the manifest changes no other roles
/// and bindings of kpx.
pub fn manifest(selection: Selection<'_>, subject: &Subject) -> String {
    let levels: Vec<String> = selection
        .levels()
        .map(|level| {
            let mut text = comment("", &format!("Permissions to {}.", level.title()));
            objects(&mut text, level, selection, subject);
            text
        })
        .collect();
    levels.join("---\n")
}

const fn header(level: Level) -> &'static str {
    match level {
        Level::Read => {
            "Permissions of kpx's commands that change nothing in the cluster. They allow no writes and no access to Secrets. \
             Both roles are bound to the service account kube-system/kpx; `kpx access --manifest` prints them for another user \
             or account, or for one command."
        }
        Level::Nodes => {
            "Permissions of kpx for nodes that are other machines, in addition to deploy/rbac.yaml: kpx creates a pod on the \
             node. The pod sees the node's processes and files, but cannot change them; with --apply, a second, privileged pod \
             changes the node. Whoever may create pods in kube-system may do that, too: bind this role to administrators \
             only. Here it is bound to the service account kube-system/kpx."
        }
        Level::Migrate => {
            "Permissions of `kpx migrate`, in addition to those of deploy/rbac.yaml: it writes kube-proxy's configuration and \
             replaces kube-proxy's pods. Apply this file before a migration and delete it afterwards. It binds the permissions \
             to the service account kube-system/kpx; `kpx access migrate --manifest --subject user:NAME` prints them for another \
             user or account. RBAC cannot restrict `create` by name."
        }
    }
}

/// Adds the objects of `level`.
fn objects(text: &mut String, level: Level, selection: Selection<'_>, subject: &Subject) {
    let role = match (selection.command, level) {
        (Some(command), level) => format!("kpx:{command}:{}", level.name()),
        (None, Level::Read) => "kpx".to_owned(),
        (None, level) => format!("kpx-{}", level.name()),
    };
    let is_own = *subject == Subject::default();
    let mut all = Vec::new();
    if level == Level::Read && is_own {
        all.push(account());
    }
    let (cluster, system): (Vec<&Rule>, Vec<&Rule>) = selection
        .of(level)
        .partition(|rule| rule.namespace.is_none());
    let scopes = [("ClusterRole", cluster), ("Role", system)];
    let scopes = scopes.iter().filter(|(_, rules)| !rules.is_empty());
    all.extend(
        scopes
            .clone()
            .map(|(kind, rules)| role_of(kind, &role, rules)),
    );
    let binding = if is_own {
        role.clone()
    } else {
        // A name of RBAC may be any segment of a path.
        format!("{role}:{subject}").replace(['/', '%'], "-")
    };
    all.extend(scopes.map(|(kind, _)| binding_of(kind, &role, &binding, subject)));
    *text += &all.join("---\n");
}

fn account() -> String {
    "apiVersion: v1\nkind: ServiceAccount\nmetadata:\n  name: kpx\n  namespace: kube-system\n"
        .to_owned()
}

/// Returns the first lines of an object of RBAC.
fn head(kind: &str, name: &str) -> String {
    let namespace = if kind.starts_with("Cluster") {
        ""
    } else {
        "  namespace: kube-system\n"
    };
    format!(
        "apiVersion: rbac.authorization.k8s.io/v1\nkind: {kind}\nmetadata:\n  name: {}\n{namespace}",
        quoted(name)
    )
}

fn role_of(kind: &str, name: &str, rules: &[&Rule]) -> String {
    let mut text = head(kind, name) + "rules:\n";
    for rule in rules {
        text += &comment("  ", &capital(rule.purpose));
        let group = if rule.group.is_empty() {
            "\"\""
        } else {
            rule.group
        };
        let _ = writeln!(
            text,
            "  - apiGroups: [{group}]\n    resources: [{}]",
            rule.resource
        );
        if !rule.names.is_empty() {
            let _ = writeln!(text, "    resourceNames: [{}]", rule.names.join(", "));
        }
        let _ = writeln!(text, "    verbs: [{}]", rule.verbs.join(", "));
    }
    text
}

fn binding_of(kind: &str, role: &str, name: &str, subject: &Subject) -> String {
    let subject = match subject {
        Subject::User(name) => format!(
            "  - apiGroup: rbac.authorization.k8s.io\n    kind: User\n    name: {}\n",
            quoted(name)
        ),
        Subject::Group(name) => format!(
            "  - apiGroup: rbac.authorization.k8s.io\n    kind: Group\n    name: {}\n",
            quoted(name)
        ),
        Subject::ServiceAccount { namespace, name } => format!(
            "  - kind: ServiceAccount\n    name: {}\n    namespace: {}\n",
            quoted(name),
            quoted(namespace)
        ),
    };
    format!(
        "{}roleRef:\n  apiGroup: rbac.authorization.k8s.io\n  kind: {kind}\n  name: {}\nsubjects:\n{subject}",
        head(&format!("{kind}Binding"), name),
        quoted(role)
    )
}

/// Returns `text` as a YAML scalar: as it is if it is a plain word, else in double quotes.
fn quoted(text: &str) -> String {
    let plain = |c: char| c.is_ascii_lowercase() || c == '-';
    let is_word = text.starts_with(|c: char| c.is_ascii_lowercase()) && text.chars().all(plain);
    if is_word && !["true", "false", "null", "yes", "no", "on", "off", "y", "n"].contains(&text) {
        return text.to_owned();
    }
    format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\""))
}

fn capital(text: &str) -> String {
    let mut letters = text.chars();
    let first = letters.next().map(|c| c.to_ascii_uppercase());
    // Names of options and objects stay.
    let keeps = text.starts_with("kube") || text.starts_with("kpx");
    match first {
        Some(first) if !keeps => format!("{first}{}.", letters.as_str()),
        _ => format!("{text}."),
    }
}

/// Returns `text` as a comment, wrapped.
fn comment(indent: &str, text: &str) -> String {
    let mut lines = String::new();
    let mut line = format!("{indent}#");
    for word in text.split_ascii_whitespace() {
        if line.len() + 1 + word.len() > WIDTH {
            lines += &line;
            lines.push('\n');
            line = format!("{indent}#");
        }
        line.push(' ');
        line += word;
    }
    lines + &line + "\n"
}
