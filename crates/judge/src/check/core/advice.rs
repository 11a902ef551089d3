//! Fixes as types: a text with commands in it, and the command that carries it out. They become text when a report prints
//! them, as [`Reach`] says.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

use serde::ser::SerializeStruct as _;
use serde::{Serialize, Serializer};

use crate::check::{CONFIG_MAP, Next};

/// How to fix a finding.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Fix {
    /// As sentences.
    pub text: Prose,
    /// As a command, where one is safe.
    pub advice: Option<Advice>,
    /// Whether a person has to decide first, for example because the fix removes an object of another program.
    pub is_to_decide: bool,
    /// How commands reach the node from the machine of the reader.
    reach: Arc<Reach>,
    /// The node to run it on, if it is not the report's.
    there: Option<String>,
}

/// Something to run.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Advice {
    /// A command of kpx: its arguments.
    Kpx(Vec<Word>),
    /// A command line for a shell on the node.
    OnNode(Line),
    /// A command line for a shell that reaches the cluster: kubectl.
    Anywhere(Line),
    /// An edit of an object.
    Edit {
        /// The kind, as kubectl takes it.
        resource: &'static str,
        /// The namespace.
        namespace: String,
        /// Name of the object.
        name: String,
    },
}

/// An argument of a command.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Word {
    /// A word as it is.
    Text(Cow<'static, str>),
    /// A word that stands for a value: `NAMESPACE/NAME`.
    Value(&'static str),
}

/// A command line of a shell.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Line {
    text: Cow<'static, str>,
    /// The words in it that stand for values.
    values: &'static [&'static str],
}

/// A text for people with commands in it.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Prose(Vec<Part>);

#[derive(Clone, Debug, Eq, PartialEq)]
enum Part {
    Text(Cow<'static, str>),
    Command(Advice),
}

/// The program on a node: one that runs as a plugin of kubectl elsewhere rarely does there.
const ON_NODE: &str = "kpx";

/// How commands reach a node and its cluster from the machine of the reader.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Reach {
    /// The program that runs commands of kpx: `kpx`, or `kubectl kpx`.
    pub program: &'static str,
    /// The options that select the node and the cluster.
    pub options: String,
    /// The options that also select the source: a bundle.
    pub to_read: String,
    /// The node, if it is another machine, or may be one.
    pub node: Option<String>,
    /// Whether a recording of the node was read.
    pub is_recorded: bool,
    /// Who reads this machine.
    pub reader: Reader,
}

/// A user of the machine that kpx runs on.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum Reader {
    /// A user without a kubeconfig.
    #[default]
    User,
    /// A user with `~/.kube/config`, which root does not have.
    WithKubeconfig,
    /// Root.
    Root,
}

/// The machine on which a command of kpx runs, and its source.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Runs {
    /// Anywhere, on the same source: it shows more of it.
    OnEvidence,
    /// Anywhere, on the live node: it reads the node again, or plans and makes a change.
    Again,
    /// On the node only.
    OnNode,
    /// Without a node.
    Alone,
}

impl Default for Reach {
    fn default() -> Self {
        Self {
            program: "kpx",
            options: String::new(),
            to_read: String::new(),
            node: None,
            is_recorded: false,
            reader: Reader::default(),
        }
    }
}

impl Fix {
    /// Returns a fix as a text alone.
    pub fn said(text: impl Into<Prose>) -> Self {
        Self {
            text: text.into(),
            advice: None,
            is_to_decide: false,
            reach: Arc::default(),
            there: None,
        }
    }

    /// Returns it as one to decide about.
    #[must_use]
    pub fn to_decide(self) -> Self {
        Self {
            is_to_decide: true,
            ..self
        }
    }

    /// Returns a fix with something to run.
    pub fn new(text: impl Into<Prose>, advice: Advice) -> Self {
        Self {
            advice: Some(advice),
            ..Self::said(text)
        }
    }

    /// Returns a fix with a command of kpx: its arguments.
    pub fn kpx<W: Into<Word>>(text: impl Into<Prose>, words: impl IntoIterator<Item = W>) -> Self {
        Self::new(text, Advice::kpx(words))
    }

    /// Returns a fix with a command line for a shell on the node.
    pub fn on_node(text: impl Into<Prose>, line: impl Into<Line>) -> Self {
        Self::new(text, Advice::OnNode(line.into()))
    }

    /// Returns a look at the events of the pod `name`, which does not start.
    pub fn describe_pod(namespace: &str, name: &str) -> Self {
        Self::kubectl(
            "The events of the pod say what it waits for.",
            format!("kubectl -n {namespace} describe pod {name}"),
        )
    }

    /// Returns a fix that deletes `pod`, as `NAMESPACE/NAME`.
    pub fn delete_pod(text: impl Into<Prose>, pod: &str) -> Self {
        let (namespace, name) = pod.split_once('/').unwrap_or(("default", pod));
        Self::kubectl(text, format!("kubectl -n {namespace} delete pod {name}"))
    }

    /// Returns a fix with a command line for a shell that reaches the cluster.
    pub fn kubectl(text: impl Into<Prose>, line: impl Into<Line>) -> Self {
        Self::new(text, Advice::Anywhere(line.into()))
    }

    /// Returns a fix that drains the node `name`, for a reboot. A person decides when.
    pub fn drain(text: impl Into<Prose>, name: Option<&str>) -> Self {
        let line = match name {
            Some(name) => format!("kubectl drain {name} --ignore-daemonsets").into(),
            None => Line::with("kubectl drain NODE --ignore-daemonsets", &["NODE"]),
        };
        Self::kubectl(text, line).to_decide()
    }

    /// Returns the same fix for the node `name`, which is not the report's.
    #[must_use]
    pub fn at(mut self, name: &str) -> Self {
        self.there = Some(name.to_owned());
        self
    }

    /// Returns the node that it is for, if that is another one than the report's.
    pub fn there(&self) -> Option<&str> {
        self.there.as_deref()
    }

    /// Makes it the fix of several nodes: its command is for each of them, unless it names another node.
    pub fn of_several(&mut self) {
        Arc::make_mut(&mut self.reach).node = None;
    }

    /// Makes its commands reach the node from where the report is read.
    pub fn reached_by(&mut self, reach: &Arc<Reach>) {
        self.reach = Arc::clone(reach);
    }

    /// Returns the text as it is printed.
    pub fn text(&self) -> String {
        self.reach.prose(&self.text)
    }

    /// Returns whether its command only reads; the commands that change something are in the text.
    pub fn only_looks(&self) -> bool {
        self.advice.as_ref().is_some_and(|advice| !advice.changes())
    }

    /// Returns whether its command opens an editor.
    pub fn edits(&self) -> bool {
        self.advice.as_ref().is_some_and(Advice::edits)
    }

    /// Returns the word before its command: `fix`, or `look` if the command changes nothing.
    pub fn label(&self) -> &'static str {
        if self.only_looks() { "look" } else { "fix" }
    }

    /// Returns the command as it is typed.
    pub fn command(&self) -> Option<String> {
        Some(self.way().command(self.advice.as_ref()?))
    }

    /// Returns whether it has a command that can run as it is.
    pub fn is_complete(&self) -> bool {
        self.advice.as_ref().is_some_and(Advice::is_complete)
    }

    /// Returns the machine to type the command on, if that is another one.
    pub fn machine(&self) -> Option<String> {
        self.way().machine(self.advice.as_ref()?).map(str::to_owned)
    }

    /// Returns the command as it is printed: behind the machine to type it on, if that is another one.
    pub fn line(&self) -> Option<String> {
        Some(on(self.machine().as_deref(), &self.command()?))
    }

    /// Returns how its commands reach their node.
    fn way(&self) -> Cow<'_, Reach> {
        self.reach.way(self.there())
    }
}

impl From<Prose> for Fix {
    fn from(text: Prose) -> Self {
        Self::said(text)
    }
}

impl From<&'static str> for Fix {
    fn from(text: &'static str) -> Self {
        Self::said(text)
    }
}

impl From<String> for Fix {
    fn from(text: String) -> Self {
        Self::said(text)
    }
}

impl Serialize for Fix {
    /// Writes `{"text": …, "command": …, "kind": …, "machine": …}`.
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let (command, machine) = (self.command(), self.machine());
        let count = 1 + 2 * usize::from(command.is_some()) + usize::from(machine.is_some());
        let mut object = serializer.serialize_struct("Fix", count)?;
        object.serialize_field("text", &self.text())?;
        if let Some(command) = command {
            object.serialize_field("command", &command)?;
            object.serialize_field("kind", self.label())?;
        }
        if let Some(machine) = machine {
            object.serialize_field("machine", &machine)?;
        }
        object.end()
    }
}

impl Advice {
    /// Returns a command of kpx with these arguments.
    pub fn kpx<W: Into<Word>>(words: impl IntoIterator<Item = W>) -> Self {
        Self::Kpx(words.into_iter().map(Into::into).collect())
    }

    /// Returns it with the values that are `known`, by the words that stand for them.
    #[must_use]
    pub fn filled(&self, known: &[(&str, String)]) -> Self {
        match self {
            Self::Kpx(words) => Self::Kpx(words.iter().map(|word| word.filled(known)).collect()),
            Self::OnNode(line) => Self::OnNode(line.filled(known)),
            Self::Anywhere(line) => Self::Anywhere(line.filled(known)),
            Self::Edit { .. } => self.clone(),
        }
    }

    /// Returns whether its output decides the next step: the command lists the obstacles to a switch or an upgrade, or reads the
    /// node again.
    pub fn decides(&self) -> bool {
        let Self::Kpx(words) = self else {
            return false;
        };
        let mut words = words.iter().filter_map(Word::text);
        words.any(|word| matches!(word, "--to" | "--release" | "--wait"))
    }

    /// Returns whether it opens an editor.
    pub fn edits(&self) -> bool {
        match self {
            Self::Edit { .. } => true,
            Self::Anywhere(line) => {
                let mut words = line.text.split(' ');
                words.next() == Some("kubectl") && words.any(|word| word == "edit")
            }
            Self::Kpx(_) | Self::OnNode(_) => false,
        }
    }

    /// Returns whether it can run as it is: no word stands for a value.
    pub fn is_complete(&self) -> bool {
        match self {
            Self::Kpx(words) => words.iter().all(|word| matches!(word, Word::Text(_))),
            Self::OnNode(line) | Self::Anywhere(line) => line.values.is_empty(),
            Self::Edit { .. } => true,
        }
    }
}

impl Reach {
    /// Returns how commands reach the node that they are for: `there`, if that is another one.
    fn way(&self, there: Option<&str>) -> Cow<'_, Self> {
        there.map_or(Cow::Borrowed(self), |node| Cow::Owned(self.at(node)))
    }

    /// Returns how commands reach the other node `name`.
    fn at(&self, name: &str) -> Self {
        let to = |options: &str| {
            let words = options.split(' ').collect::<Vec<_>>();
            let mut kept: Vec<&str> = Vec::new();
            let mut words = words.into_iter();
            while let Some(word) = words.next() {
                match word {
                    "--node" => drop(words.next()),
                    word if word.is_empty() || word.starts_with("--node=") => {}
                    word => kept.push(word),
                }
            }
            kept.extend(["--node", name]);
            kept.join(" ")
        };
        Self {
            program: self.program,
            options: to(&self.options),
            to_read: to(&self.to_read),
            node: Some(name.to_owned()),
            is_recorded: self.is_recorded,
            reader: self.reader,
        }
    }

    /// Returns the machine to type `advice` on, if that is another one.
    pub fn machine(&self, advice: &Advice) -> Option<&str> {
        let is_there = match advice {
            Advice::Kpx(words) => match runs(words) {
                Runs::OnNode => true,
                // From a recording alone, the live node is not reached.
                Runs::Again => self.is_recorded && !self.names_node() && !reads_several(words),
                Runs::OnEvidence | Runs::Alone => false,
            },
            Advice::OnNode(_) => true,
            Advice::Anywhere(_) | Advice::Edit { .. } => false,
        };
        self.node.as_deref().filter(|_| is_there)
    }

    /// Returns whether the options name the node, which is then reached through the cluster.
    fn names_node(&self) -> bool {
        self.options.split(' ').any(|word| word == "--node")
    }

    /// Returns `advice` as a command line.
    pub fn command(&self, advice: &Advice) -> String {
        match advice {
            Advice::Kpx(words) => {
                let options = match runs(words) {
                    Runs::OnEvidence => self.to_read.as_str(),
                    Runs::Again => &self.options,
                    Runs::OnNode | Runs::Alone => "",
                };
                let program = match self.machine(advice) {
                    Some(_) => ON_NODE,
                    None => self.program,
                };
                let given = [program, options];
                let given = given.into_iter().filter(|word| !word.is_empty());
                let given = given.map(str::to_owned);
                given
                    .chain(words.iter().map(Word::quoted))
                    .collect::<Vec<_>>()
                    .join(" ")
            }
            Advice::OnNode(line) | Advice::Anywhere(line) => line.text.to_string(),
            Advice::Edit {
                resource,
                namespace,
                name,
            } => format!("kubectl -n {namespace} edit {resource} {name}"),
        }
    }

    /// Returns the command to run next as it is typed, and the machine to type it on, if that is another one.
    pub fn next(&self, next: &Next) -> (String, Option<String>) {
        let (advice, there) = match next {
            Next::Run(advice, there) => (Cow::Borrowed(advice), there.as_deref()),
            Next::DryRun(to) => {
                let words = ["migrate", "--to", to.name(), "--dry-run"];
                (Cow::Owned(Advice::kpx(words)), None)
            }
            Next::Read => (Cow::Owned(self.reading()), None),
        };
        let way = self.way(there);
        (
            way.command(&advice),
            way.machine(&advice).map(str::to_owned),
        )
    }

    /// Returns the command that reads the node again, with all rights.
    fn reading(&self) -> Advice {
        let program = self.program;
        let options = match self.options.as_str() {
            "" => String::new(),
            options => format!(" {options}"),
        };
        let is_given = self.options.contains("--kubeconfig");
        Advice::OnNode(match self.reader {
            _ if self.is_recorded => format!("{ON_NODE} snapshot").into(),
            // It lists what cannot be read.
            Reader::Root => return Advice::kpx(["snapshot", "-v"]),
            Reader::WithKubeconfig if !is_given => {
                format!("sudo {program}{options} doctor --kubeconfig ~/.kube/config").into()
            }
            Reader::WithKubeconfig | Reader::User => {
                format!("sudo {program}{options} doctor").into()
            }
        })
    }

    /// Returns `prose` with its commands as command lines.
    pub fn prose(&self, prose: &Prose) -> String {
        let parts = prose.0.iter().map(|part| match part {
            Part::Text(text) => text.to_string(),
            Part::Command(advice) => format!("`{}`", self.command(advice)),
        });
        parts.collect()
    }
}

/// Returns whether the command of kpx with the arguments `words` reads several nodes, each through the cluster.
fn reads_several(words: &[Word]) -> bool {
    let mut words = words.iter().filter_map(Word::text);
    words.any(|word| matches!(word, "--all-nodes" | "--selector"))
}

/// Returns where the command of kpx with the arguments `words` runs.
pub fn runs(words: &[Word]) -> Runs {
    let has = |word: &str| words.iter().any(|argument| argument.text() == Some(word));
    let here = |is_here: bool, elsewhere| if is_here { Runs::OnNode } else { elsewhere };
    match words.first().and_then(Word::text).unwrap_or_default() {
        "migrate" if has("--dry-run") => Runs::OnEvidence,
        // Only the node opens a connection.
        "trace" | "why" if has("--probe") => Runs::Again,
        "doctor" if has("--wait") => Runs::Again,
        "report" | "resolve" | "show" | "trace" | "why" => Runs::OnEvidence,
        // It asks more of what was read.
        "doctor" if words.len() > 1 => Runs::OnEvidence,
        "diff" | "doctor" | "reconcile" | "snapshot" => Runs::Again,
        "preflight" => here(has("--load") || has("--persist"), Runs::Again),
        "migrate" => {
            let parts = ["finish", "prepare", "resume", "rollback"];
            let is_of_node = parts.into_iter().any(has) || has("--to");
            here(is_of_node && !has("--all-nodes"), Runs::Alone)
        }
        "bridge" | "render" | "serve" | "top" | "watch" => Runs::OnNode,
        _ => Runs::Alone,
    }
}

impl fmt::Display for Advice {
    /// Writes the command line where kpx itself runs on the node.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&Reach::default().command(self))
    }
}

impl Prose {
    /// Adds a text.
    #[must_use]
    pub fn and(mut self, text: impl Into<Cow<'static, str>>) -> Self {
        self.0.push(Part::Text(text.into()));
        self
    }

    /// Adds a command of kpx: its arguments.
    #[must_use]
    pub fn kpx<W: Into<Word>>(self, words: impl IntoIterator<Item = W>) -> Self {
        self.command(Advice::kpx(words))
    }

    /// Adds a command.
    #[must_use]
    pub fn command(mut self, advice: Advice) -> Self {
        self.0.push(Part::Command(advice));
        self
    }

    /// Adds another text with commands.
    #[must_use]
    pub fn then(mut self, other: impl Into<Self>) -> Self {
        self.0.extend(other.into().0);
        self
    }

    /// Iterates over its commands.
    pub fn commands(&self) -> impl Iterator<Item = &Advice> {
        self.0.iter().filter_map(|part| match part {
            Part::Text(_) => None,
            Part::Command(advice) => Some(advice),
        })
    }
}

impl fmt::Display for Prose {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&Reach::default().prose(self))
    }
}

impl From<&'static str> for Prose {
    fn from(text: &'static str) -> Self {
        Self::default().and(text)
    }
}

impl From<String> for Prose {
    fn from(text: String) -> Self {
        Self::default().and(text)
    }
}

impl Word {
    /// Returns the word, quoted for a shell where it needs that.
    fn quoted(&self) -> String {
        match self {
            Self::Text(text) => quoted(text),
            Self::Value(value) => (*value).to_owned(),
        }
    }

    fn filled(&self, known: &[(&str, String)]) -> Self {
        let value = match self {
            Self::Value(name) => known.iter().find(|(of, _)| of == name),
            Self::Text(_) => None,
        };
        value.map_or_else(|| self.clone(), |(_, value)| value.clone().into())
    }

    /// Returns the word, unless it stands for a value.
    pub fn text(&self) -> Option<&str> {
        match self {
            Self::Text(text) => Some(text),
            Self::Value(_) => None,
        }
    }
}

impl From<&'static str> for Word {
    fn from(word: &'static str) -> Self {
        Self::Text(word.into())
    }
}

impl From<String> for Word {
    fn from(word: String) -> Self {
        Self::Text(word.into())
    }
}

impl Line {
    /// Returns a command line in which `values` stand for values.
    pub fn with(text: impl Into<Cow<'static, str>>, values: &'static [&'static str]) -> Self {
        Self {
            text: text.into(),
            values,
        }
    }

    /// Returns the line as it is typed.
    pub(super) fn as_typed(&self) -> &str {
        &self.text
    }

    /// Returns the line with its values, if all are known.
    fn filled(&self, known: &[(&str, String)]) -> Self {
        let value = |name: &&str| known.iter().find(|(of, _)| of == name);
        let values: Option<Vec<_>> = self.values.iter().map(value).collect();
        let Some(values) = values else {
            return self.clone();
        };
        let text = values
            .iter()
            .fold(self.text.to_string(), |text, (name, value)| {
                text.replace(name, value)
            });
        match known.iter().find(|(of, _)| *of == CONFIG_MAP) {
            Some((_, map)) => {
                let words =
                    format!("{text} ").replace(&format!("{CONFIG_MAP} "), &format!("{map} "));
                words.trim_end().to_owned().into()
            }
            None => text.into(),
        }
    }
}

impl From<&'static str> for Line {
    fn from(text: &'static str) -> Self {
        Self::with(text, &[])
    }
}

impl From<String> for Line {
    fn from(text: String) -> Self {
        Self::with(text, &[])
    }
}

/// Returns `command` as it is printed: behind the `machine` to type it on, if that is another one.
pub fn on(machine: Option<&str>, command: &str) -> String {
    match machine {
        Some(machine) => format!("on {machine}: {command}"),
        None => command.to_owned(),
    }
}

/// Quotes a word for a shell, where it needs that.
pub fn quoted(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./:@%+=,[]".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        return word.to_owned();
    }
    format!("'{}'", word.replace('\'', "'\\''"))
}
