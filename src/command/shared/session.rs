//! The global options of one run, resolved once.

use std::ffi::OsString;
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use color_eyre::eyre::eyre;

use super::READABLE;
use super::beside::Others;
use super::failure::{Failure, Hint as _};
use super::origin::Noted;
use super::output::{self, Output};
use super::source::{Source, has_option};
use super::unfit;
use crate::cli::global::GlobalArgs;
use crate::cli::parser::{Cli, Command};
use crate::cli::plugin::program;
use crate::command::shared::io::Io;
use crate::render::Style;
use crate::view::View;
use kpx_host as host;
use kpx_judge::check::ignore::Entry;
use kpx_node::backend::Mode;
use kpx_node::dns::{self, DnsFailure};
use kpx_node::evidence::{self, BundleError, Evidence, Gap, Item};
use kpx_node::net::{Family, Proto};
use kpx_node::node::NodeSnapshot;

/// The partially known evidence that is read.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(in crate::command) enum Parts {
    /// None: each is a gap.
    #[default]
    None,
    /// kube-proxy's configuration, as far as its rules show it.
    Settings,
    /// Items that distinguish missing data from absent objects.
    Marked,
    /// All of it, to show it.
    All,
}

/// The global options of one run: the source, and the form of the output.
#[derive(Clone, Debug)]
pub(crate) struct Session {
    /// The source of the evidence.
    pub(in crate::command) source: Source,
    /// The partially known evidence that is read.
    pub(in crate::command) parts: Parts,
    /// Whether this is the session of one of several nodes.
    pub(in crate::command) one_of_several: bool,
    /// The nodes that `--node` names; only `kpx migrate` takes more than one.
    pub(in crate::command) nodes: Vec<String>,
    /// The origin of the state.
    pub(super) noted: Noted,
    /// The states of other nodes to which connections are followed.
    pub(in crate::command) others: Option<Arc<Others>>,
    /// How to read this machine and the cluster.
    pub(in crate::command) host: host::Options,
    /// The pods through which kpx reads other nodes.
    pub(in crate::command) pods: host::PodOptions,
    /// The format that was asked for, if any.
    pub(in crate::command) output: Option<Output>,
    /// The findings that the configuration file ignores.
    pub(in crate::command) ignored: Vec<Entry>,
    /// How pages look.
    pub(in crate::command) style: Style,
    /// Whether only results and errors are printed.
    pub(in crate::command) quiet: bool,
    /// Whether progress is drawn on standard error.
    pub(in crate::command) progress: bool,
}

impl Parts {
    /// Returns what the command of `cli` reads of a bundle.
    const fn of(cli: &Cli) -> Self {
        match cli.command {
            _ if cli.global.from.is_empty() => Self::None,
            Command::Diff(_) => Self::Settings,
            Command::Trace(_) | Command::Why(_) => Self::Marked,
            // It decides, too.
            Command::Show(ref args) if matches!(args.view, View::Services) => Self::Marked,
            Command::Show(_) | Command::Snapshot(_) => Self::All,
            _ => Self::None,
        }
    }

    /// Returns `evidence`, with these parts.
    pub(super) fn in_evidence(self, evidence: &Evidence) -> Evidence {
        match self {
            Self::None => evidence.clone(),
            Self::Settings => evidence.with_settings(),
            Self::Marked => evidence.with_parts(),
            Self::All => evidence.with_all_parts(),
        }
    }
}

impl Session {
    /// Resolves the options of `cli`, which was parsed from `words`, for the streams of `io`.
    ///
    /// Fails if options contradict each other or do not fit the command.
    pub(in crate::command) fn new(
        cli: &Cli,
        words: &[OsString],
        io: &Io<'_>,
    ) -> Result<Self, Failure> {
        // Words behind `--` are no options.
        let words = words.split(|word| word == "--").next().unwrap_or(words);
        unfit::refuse_unused(cli, words)?;
        let global = &cli.global;
        let nodes = nodes(cli, words)?;
        let output = match &global.output {
            None => None,
            Some(word) => {
                let is_typed = has_option(words, &["--output"])
                    || words
                        .iter()
                        .any(|word| word.to_string_lossy().starts_with("-o"));
                output::resolve(&cli.command, word, is_typed)?
            }
        };
        let style = Style {
            width: io.width,
            color: global.color.is_on(io.color),
            ascii: global.ascii || io.ascii,
            wide: output == Some(Output::WIDE),
            verbose: global.verbose,
            program: program(words),
        };
        Ok(Self {
            source: Source::new(global, words),
            parts: Parts::of(cli),
            one_of_several: false,
            noted: Noted::default(),
            others: None,
            host: options(global, &nodes),
            pods: host::PodOptions {
                image: global.image.clone(),
                programs: global.programs.clone(),
            },
            nodes,
            output,
            ignored: global.ignore.clone(),
            style,
            quiet: global.quiet,
            progress: io.progress && !global.quiet,
        })
    }

    /// Returns the name of the Node that `--node` names, where it names one.
    pub(in crate::command) fn name(&self) -> Option<&str> {
        self.host.node.as_deref()
    }

    /// Returns whether the bundle is one of all nodes, of which none is named.
    pub(in crate::command) fn is_of_all_nodes(&self) -> bool {
        let path = self.source.bundle().filter(|_| self.name().is_none());
        let read = path.map(|path| evidence::load_node(path, None, &[]));
        matches!(read, Some(Err(BundleError::AllNodes { .. })))
    }

    /// Returns the session for the other machine that is Node `name`, read through a pod on it.
    pub(in crate::command) async fn at(&self, name: &str) -> Result<Self, Failure> {
        let mut session = self.named(Some(name));
        let remote = host::Remote::new(&session.host, self.pods.clone());
        let node = remote.open(name).await.map_err(unreached)?;
        session.source = session.source.through(node);
        session.noted = Noted::default();
        Ok(session)
    }

    /// Starts a pod that changes the other machine.
    pub(in crate::command) async fn changer(&self) -> Result<host::NodeChange, Failure> {
        let node = self.source.pod();
        let node = node.ok_or_else(|| eyre!("no other machine is open"))?;
        node.change().await.map_err(unreached)
    }

    /// Starts a pod on the node `name` that opens connections as any other pod there.
    pub(in crate::command) async fn client(&self, name: &str) -> Result<host::RemoteNode, Failure> {
        let client = if let Some(node) = self.source.pod() {
            node.client().await
        } else {
            let nodes = host::Remote::new(&self.host, self.pods.clone());
            nodes.open_client(name).await
        };
        client.map_err(unreached)
    }

    /// Opens one connection to `target` from the node, or sends one datagram.
    pub(in crate::command) async fn probe(
        &self,
        target: SocketAddr,
        protocol: Proto,
    ) -> Result<host::ProbeResult, Failure> {
        match self.source.pod() {
            None => Ok(host::probe(&self.host, host::Probe::new(target, protocol)).await?),
            Some(node) => node.probe(target, protocol).await.map_err(unreached),
        }
    }

    /// Sends the DNS message `question` to `server` from the node; returns the answer, or why there is none.
    pub(in crate::command) async fn ask(
        &self,
        server: SocketAddr,
        question: Vec<u8>,
    ) -> Result<Result<Vec<u8>, DnsFailure>, Failure> {
        match self.source.pod() {
            None => Ok(host::ask(&self.host, server, question, dns::is_truncated).await),
            Some(node) => node.ask(server, question).await.map_err(unreached),
        }
    }

    /// Deletes the pod through which the node was read.
    pub(in crate::command) async fn close(&self) -> Result<(), Failure> {
        match self.source.pod() {
            None => Ok(()),
            Some(node) => node.close().await.map_err(|why| unreached(why.into())),
        }
    }

    /// Returns the session for Node `name`.
    pub(in crate::command) fn named(&self, name: Option<&str>) -> Self {
        let mut session = self.clone();
        session.nodes = name.iter().map(|name| (*name).to_owned()).collect();
        session.host.node = name.map(str::to_owned);
        session
    }

    /// Returns the same session, which draws no progress.
    pub(in crate::command) fn silent(&self) -> Self {
        Self {
            progress: false,
            ..self.clone()
        }
    }

    /// Returns the session for Node `name`, of which nothing is known yet.
    pub(in crate::command) fn anew(&self, name: &str) -> Self {
        Self {
            noted: Noted::default(),
            ..self.named(Some(name))
        }
    }

    /// Returns the session for Node `name` of several.
    pub(in crate::command) fn for_node(&self, name: &str) -> Self {
        Self {
            one_of_several: true,
            noted: Noted::default(),
            progress: false,
            ..self.named(Some(name))
        }
    }

    /// Returns the session that has the states of `others`.
    pub(in crate::command) fn beside(&self, others: Option<Arc<Others>>) -> Self {
        Self {
            others,
            ..self.clone()
        }
    }

    /// Returns the session that has read its node already, as `evidence`.
    pub(in crate::command) fn in_memory(&self, evidence: Evidence) -> Self {
        Self {
            source: self.source.in_memory(evidence),
            ..self.clone()
        }
    }

    /// Returns the session that reads the bundle at `path`.
    pub(in crate::command) fn in_bundle(&self, path: &Path) -> Self {
        Self {
            source: self.source.in_bundle(path),
            noted: Noted::default(),
            ..self.clone()
        }
    }

    /// Returns the session that has the objects of `cluster` already.
    pub(in crate::command) fn sharing(&self, cluster: Evidence) -> Self {
        Self {
            source: self.source.sharing(cluster),
            ..self.clone()
        }
    }

    /// Returns the families that are asked for.
    pub(in crate::command) fn families(&self) -> &[Family] {
        &self.host.families
    }

    /// Returns the one family that is asked for; `None` for both.
    pub(in crate::command) fn family(&self) -> Option<Family> {
        match self.families() {
            [only] => Some(*only),
            _ => None,
        }
    }

    /// Returns the folder where the host's root file system is mounted.
    pub(in crate::command) fn root(&self) -> &Path {
        &self.host.root
    }

    /// Returns the options that select the node and the cluster, for a command line that reaches the same ones: each with
    /// its value, or without for a switch.
    pub(in crate::command) fn flags(&self) -> Vec<(&'static str, Option<String>)> {
        let path = |path: &Path| path.display().to_string();
        let host = &self.host;
        let host::Selection {
            cluster,
            user,
            impersonate,
            groups,
            proxy_credentials,
        } = &host.selection;
        let one = [
            ("--kubeconfig", host.kubeconfig.as_deref().map(path)),
            ("--context", host.context.clone()),
            ("--cluster", cluster.clone()),
            ("--user", user.clone()),
            ("--as", impersonate.clone()),
        ];
        let groups = groups
            .iter()
            .map(|group| ("--as-group", Some(group.clone())));
        let rest = [
            ("--cluster-from", self.source.cluster_bundle().map(path)),
            ("--root", self.other_root().map(|root| path(root))),
            ("--netns", host.netns.clone()),
            ("--node", host.node.clone()),
            ("--image", self.pods.image.clone()),
            ("--programs", self.pods.programs.as_deref().map(path)),
        ];
        let switches = [
            ("--proxy-credentials", *proxy_credentials),
            ("--no-api", host.no_api),
        ];
        let given = one.into_iter().chain(groups).chain(rest);
        let given = given.filter(|(_, value)| value.is_some());
        let switches = switches.into_iter().filter(|(_, is_set)| *is_set);
        given
            .chain(switches.map(|(name, _)| (name, None)))
            .collect()
    }

    /// Returns the options of a kpx that reads the same node and cluster in the same way.
    pub(in crate::command) fn arguments(&self) -> Vec<String> {
        let mut args = vec![format!("--timeout={}ms", self.host.timeout.as_millis())];
        let flags = self.flags().into_iter();
        args.extend(flags.map(|(name, value)| match value {
            Some(value) => format!("{name}={value}"),
            None => name.to_owned(),
        }));
        if let Some(one) = self.family() {
            let bits = if one == Family::V4 { 4 } else { 6 };
            args.push(format!("--family={bits}"));
        }
        args
    }

    /// Returns the same folder, unless it is `/`.
    pub(in crate::command) fn other_root(&self) -> Option<&PathBuf> {
        Some(&self.host.root).filter(|root| *root != Path::new("/"))
    }

    /// Returns `evidence`, parsed on first use, as evidence of the Node that `--node` names.
    pub(in crate::command) fn node<'e>(&self, evidence: &'e Evidence) -> NodeSnapshot<'e> {
        NodeSnapshot::new(evidence).called(self.name_in(evidence))
    }

    /// Returns the name of the Node that `evidence` is of, as far as it is given.
    ///
    /// In a bundle of all nodes, `--node` selects the folder, and the manifest in it has the name.
    pub(in crate::command) fn name_in<'e>(&'e self, evidence: &'e Evidence) -> Option<&'e str> {
        if evidence.is_one_of_all() {
            return evidence.manifest()?.node.as_deref();
        }
        self.name()
    }

    /// Returns `asked`, or else the mode of kube-proxy.
    pub(in crate::command) async fn mode(&self, asked: Option<Mode>) -> Result<Mode, Failure> {
        self.current(asked).await?.hint("pass `--mode MODE`")
    }

    /// Returns `asked`, or else the mode in which kube-proxy runs, or without that the one it is configured for, or why both are unknown.
    /// Its configuration may have changed since it started.
    pub(in crate::command) async fn current(
        &self,
        asked: Option<Mode>,
    ) -> Result<Result<Mode, Gap>, Failure> {
        if let Some(mode) = asked {
            return Ok(Ok(mode));
        }
        let items = [Item::ProxyMode, Item::ProxyConfig];
        let evidence = self.gather(&items).await?;
        let node = NodeSnapshot::new(&evidence);
        Ok(node.reported_mode().or_else(|_| node.configured_mode()))
    }

    /// Returns how to read this machine. Fails if the network namespace does not exist, which every item would report.
    pub(in crate::command) fn machine(&self) -> Result<&host::Options, Failure> {
        host::check(&self.host).map_err(|none| {
            let hint = match none.names.as_slice() {
                [] => "`ip netns` lists none; pass a path such as /proc/PID/ns/net".to_owned(),
                names => format!("existing network namespaces: {}", names.join(", ")),
            };
            Failure::from(none).with_hint(hint)
        })?;
        Ok(&self.host)
    }

    /// Refuses `--from` for a command that works on this node.
    pub(in crate::command) fn refuse_bundle(&self, what: &str) -> Result<(), Failure> {
        if !self.source.is_bundle() {
            return Ok(());
        }
        let (option, omit) = self.source.option_of_bundle();
        Err(
            Failure::usage(format!("{what} this node, but {option} reads a bundle"))
                .with_hint(omit),
        )
    }
}

/// Returns the failure for a bundle that cannot be read.
pub(in crate::command) fn unreadable(error: BundleError) -> Failure {
    let hint = match &error {
        BundleError::AllNodes { .. } => "choose one with --node NAME, or read all with --all-nodes",
        BundleError::NoNode { .. } => "--node takes one of these names",
        BundleError::Several { .. } => "choose one: add its name to the path after --from",
        BundleError::Unread { .. } => "read the node again with `kpx --node NAME snapshot`",
        BundleError::Manifest { .. } => {
            "copy the bundle again; without its manifest.json it can be read, but the reasons why items are missing are lost"
        }
        BundleError::OneNode { .. } => {
            "omit --all-nodes and -l; `kpx snapshot --all-nodes` writes a bundle of all nodes"
        }
        BundleError::Open { path, source } if is_missing(source) && is_named(path) => {
            "--from takes the path of a bundle, which `kpx snapshot --file PATH` writes; --node takes the name of a node"
        }
        BundleError::Open { source, .. } if source.kind() == io::ErrorKind::PermissionDenied => {
            "read it as the user who may, or change its permissions"
        }
        BundleError::Open { source, .. } if is_missing(source) => {
            "check the path: --from takes a bundle of `kpx snapshot`, a support bundle, or a file with outputs of commands"
        }
        _ => {
            "--from takes a bundle of `kpx snapshot`, a support bundle, or a file with outputs of commands"
        }
    };
    let failure = match error {
        // The name on the command line is wrong, not the bundle.
        BundleError::NoNode { .. } => Failure::usage(error),
        error => Failure::from(error),
    };
    failure.with_hint(hint)
}

fn is_missing(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::NotFound
}

/// Returns whether `path` may be meant as the name of a node.
fn is_named(path: &Path) -> bool {
    let text = path.to_str().unwrap_or_default();
    is_node_name(text)
        && ![".gz", ".tgz", ".tar"]
            .iter()
            .any(|end| text.ends_with(end))
}

/// Adds the advice for missing evidence.
pub(in crate::command) trait Readable<T> {
    /// Adds the advice to a failure.
    fn readable(self) -> Result<T, Failure>;
}

impl<T, E: Into<Failure>> Readable<T> for Result<T, E> {
    fn readable(self) -> Result<T, Failure> {
        self.hint(READABLE)
    }
}

/// Returns the names from `--node`, which may be repeated or separated by commas, or the name in `kpx doctor NODE`.
fn nodes(cli: &Cli, words: &[OsString]) -> Result<Vec<String>, Failure> {
    let is_node = |word: &&OsString| {
        let word = word.to_string_lossy();
        word == "--node" || word.starts_with("--node=")
    };
    let options = words.iter().filter(is_node).count();
    // A node on the command line replaces the one of KPX_NODE.
    let argument = match &cli.command {
        Command::Doctor(args) => args.named_nodes().cloned().collect(),
        _ => Vec::new(),
    };
    if !argument.is_empty() && options > 0 {
        return Err(Failure::usage(
            "the node is given twice, with --node and as an argument: give it once",
        ));
    }
    let given = if argument.is_empty() {
        &cli.global.nodes
    } else {
        &argument
    };
    // The parser replaces the values in front of the command by the values behind it.
    if options > given.len() {
        return Err(Failure::usage(
            "--node is given both before and after the command: give all names on one side",
        ));
    }
    let names = given.iter().flat_map(|names| names.split(','));
    let names: Vec<String> = names.map(|name| name.trim().to_owned()).collect();
    names.iter().try_for_each(|name| valid(name))?;
    let fleet = matches!(
        &cli.command,
        Command::Migrate(args) if args.part.is_none() && !args.journey.go_on.this_node
    );
    if names.len() > 1 && !fleet {
        return Err(Failure::usage(
            "more than one --node is given: only `kpx migrate --to MODE` takes several",
        ));
    }
    Ok(names)
}

/// Refuses `name` if no Node can have it.
fn valid(name: &str) -> Result<(), Failure> {
    let hint = match (
        name,
        name.strip_prefix("node/").or(name.strip_prefix("nodes/")),
    ) {
        _ if is_node_name(name) => return Ok(()),
        (_, Some(rest)) if is_node_name(rest) => format!("type `--node {rest}`"),
        _ if is_node_name(&name.to_lowercase()) => {
            format!(
                "names of Nodes are in lower case: type `--node {}`",
                name.to_lowercase()
            )
        }
        _ if name.contains(['/', '\\']) && Path::new(name).exists() => {
            format!("to read a bundle, type `--from {name}`")
        }
        _ if name.contains('/') => {
            format!(
                "a node has no namespace; `kpx why {name}` explains why a Service does not work"
            )
        }
        _ => "`--node` takes the name of one Node; `kubectl get nodes` lists them".to_owned(),
    };
    Err(Failure::usage(format!("{name:?} is not the name of a node")).with_hint(hint))
}

/// Returns whether `text` has the form of a Node's name: labels of lower-case letters, digits and `-`, between dots.
fn is_node_name(text: &str) -> bool {
    let is_inner = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
    let is_label = |label: &str| {
        let ends = !label.starts_with('-') && !label.ends_with('-');
        !label.is_empty() && ends && label.bytes().all(is_inner)
    };
    text.len() <= 253 && text.split('.').all(is_label)
}

/// Returns how to read, for the one Node of `nodes`.
fn options(global: &GlobalArgs, nodes: &[String]) -> host::Options {
    let text = |value: OsString| value.into_string().ok();
    host::Options {
        netns: global.netns.clone(),
        root: global.root.clone().unwrap_or_else(|| PathBuf::from("/")),
        node: match nodes {
            [one] => Some(one.clone()),
            _ => None,
        },
        families: global
            .family
            .map_or_else(|| Family::BOTH.to_vec(), |family| vec![family]),
        timeout: global.timeout,
        kubeconfig: global.kubeconfig.clone(),
        context: global.context.clone(),
        selection: host::Selection {
            cluster: global.cluster.clone(),
            user: global.user.clone(),
            impersonate: global.impersonate.clone(),
            groups: global.groups.clone(),
            proxy_credentials: global.proxy_credentials,
        },
        no_api: global.no_api,
        environment: host::Environment {
            kubeconfig: std::env::var_os("KUBECONFIG"),
            home: home(),
            service_host: std::env::var_os("KUBERNETES_SERVICE_HOST").and_then(text),
            service_port: std::env::var_os("KUBERNETES_SERVICE_PORT").and_then(text),
        },
    }
}

/// Returns the user's folder, which Windows has in a variable of its own.
pub(in crate::command) fn home() -> Option<PathBuf> {
    let home = std::env::var_os("HOME");
    let home = home.or_else(|| std::env::var_os("USERPROFILE").filter(|_| cfg!(windows)));
    home.map(PathBuf::from)
}

/// Returns the failure for a node that cannot be reached.
pub(in crate::command) fn unreached(why: host::Unreached) -> Failure {
    match why.hint() {
        Some(hint) => Failure::from(why).with_hint(hint),
        None => Failure::from(why),
    }
}

/// Returns the command line `args`, parsed and resolved, for tests.
#[cfg(test)]
pub(in crate::command) fn parsed(args: &[&str]) -> (Cli, Session) {
    let words: Vec<OsString> = args.iter().map(Into::into).collect();
    let cli = Cli::parse_from_words(&words).unwrap();
    let io = Io {
        out: &mut Vec::new(),
        err: &mut Vec::new(),
        input: &mut io::empty(),
        interactive: false,
        width: 80,
        err_width: None,
        terminal: false,
        color: false,
        ascii: false,
        progress: false,
        confine: false,
    };
    let session = Session::new(&cli, &words, &io);
    (
        cli,
        session.unwrap_or_else(|failure| panic!("{args:?}: {failure}")),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_node_of_the_doctor_replaces_the_variable() {
        let words = ["kpx", "doctor", "a"].map(OsString::from);
        let mut cli = Cli::parse_from_words(&words).unwrap();
        cli.global.nodes = vec!["of-the-variable".to_owned()];
        assert_eq!(nodes(&cli, &words).ok(), Some(vec!["a".to_owned()]));
    }
}
