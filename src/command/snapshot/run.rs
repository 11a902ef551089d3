//! `kpx snapshot`

use std::path::PathBuf;

use super::args::SnapshotArgs;
use super::report::SnapshotReport;
use super::report::nodes::SnapshotOfNodes;
use super::view::files;
use crate::cli::parser::{Cli, Command};
use crate::command::shared::failure::{Failure, Hint as _};
use crate::command::shared::io::Io;
use crate::command::shared::nodes;
use crate::command::shared::redaction;
use crate::command::shared::session::Session;
use kpx_host::{self as host, clock};
use kpx_judge::redact::Redactor;
use kpx_node::evidence::{self, Evidence, ITEMS, Item, Manifest, NodesWriter, UNKNOWN_TIME};
use kpx_node::node::NodeSnapshot;

/// Makes a bundle with standard tools alone.
const SCRIPT: &str = include_str!("snapshot.sh");

pub(in crate::command) fn script(io: &mut Io<'_>) -> Result<u8, Failure> {
    io.out.write_all(SCRIPT.as_bytes())?;
    Ok(crate::report::CLEAN)
}

/// Writes the bundle to standard output.
pub(in crate::command) async fn print(
    session: &Session,
    io: &mut Io<'_>,
    args: &SnapshotArgs,
) -> Result<u8, Failure> {
    if args.nodes.are_several() {
        return Err(Failure::usage(
            "a bundle of all nodes cannot be written to standard output: pass --file PATH",
        ));
    }
    let key = key(args)?;
    let (evidence, manifest) = record(session, &args.items, key).await?;
    evidence::write_to(&evidence, &manifest, &mut io.out)?;
    Ok(crate::report::CLEAN)
}

pub(in crate::command) async fn run(
    session: &Session,
    io: &mut Io<'_>,
    args: &SnapshotArgs,
) -> Result<u8, Failure> {
    let wanted = args.file.clone();
    if let Some(path) = wanted
        .as_ref()
        .filter(|path| path.symlink_metadata().is_ok())
    {
        return Err(evidence::SaveError::Exists(path.clone()).into());
    }
    let key = key(args)?;
    if args.nodes.are_several() {
        return Box::pin(all_nodes(session, io, args, key, wanted)).await;
    }
    let (evidence, manifest) = record(session, &args.items, key).await?;
    let path = wanted.unwrap_or_else(|| {
        let node = manifest.node.as_deref().unwrap_or_default();
        PathBuf::from(default_name(node, &manifest.time))
    });
    evidence::save(&evidence, &manifest, &path).hint("pass another path with --file")?;
    session.finish(io, &report(path, &evidence, manifest))
}

/// Writes a bundle of all nodes: each node as soon as it is read.
async fn all_nodes(
    session: &Session,
    io: &mut Io<'_>,
    args: &SnapshotArgs,
    key: Option<[u8; 32]>,
    wanted: Option<PathBuf>,
) -> Result<u8, Failure> {
    let now = clock::now().to_string();
    let path = wanted.unwrap_or_else(|| PathBuf::from(default_name("all-nodes", &now)));
    let another = "pass another path with --file";
    let mut bundle = NodesWriter::create(&path).hint(another)?;
    let together = SnapshotOfNodes::new(path.clone(), args.redact);
    let mut redactor = key.map(|key| Redactor::new(key, &Evidence::default()));
    let work = async move |session: Session| {
        let (evidence, manifest) = record(&session, &[], key).await?;
        let report = report(path.clone(), &evidence, manifest.clone());
        Ok((report, (evidence, manifest)))
    };
    // A bundle that is written again keeps its time.
    let mut time = (!session.source.is_bundle()).then_some(now.clone());
    let keep = |node: &str, recorded: Result<(Evidence, Manifest), &str>| {
        let name = redactor.as_mut().map(|redactor| redactor.node(node));
        let name = name.as_deref().unwrap_or(node);
        match recorded {
            Ok((evidence, manifest)) => {
                if session.source.is_bundle() {
                    time = time.take().max(Some(manifest.time.clone()));
                }
                bundle.node(name, &evidence, &manifest).hint(another)
            }
            Err(reason) => {
                let reason = match &mut redactor {
                    Some(redactor) => redactor.reason(reason).replace(node, name),
                    None => reason.to_owned(),
                };
                bundle.unread(name, reason);
                Ok(())
            }
        }
    };
    let collected = nodes::collect(session, io, &args.nodes, together, &[], work, keep).await?;
    bundle.finish(time.unwrap_or(now)).hint(another)?;
    collected.print(session, io)
}

/// Returns the key of the redaction, if one is asked for.
fn key(args: &SnapshotArgs) -> Result<Option<[u8; 32]>, Failure> {
    match &args.redact_key {
        _ if !args.redact => Ok(None),
        Some(path) => redaction::read(path).map(Some),
        None => redaction::random().map(Some),
    }
}

/// Returns whether `cli` asks for a bundle on standard output, which is no text.
pub(in crate::command) fn prints_bundle(cli: &Cli) -> bool {
    matches!(&cli.command, Command::Snapshot(args) if args.prints())
}

/// Reads `items`, or everything if there are none, redacted if there is a key.
async fn record(
    session: &Session,
    items: &[Item],
    key: Option<[u8; 32]>,
) -> Result<(Evidence, Manifest), Failure> {
    let items = if items.is_empty() { ITEMS } else { items };
    let mut evidence = session.gather(items).await?;
    let (time, node) = if session.source.is_bundle() {
        // A bundle that is written again keeps its time.
        let snapshot = NodeSnapshot::new(&evidence);
        let named = evidence
            .manifest()
            .and_then(|manifest| manifest.node.clone());
        let given = session.name_in(&evidence).map(str::to_owned);
        let node = given.or(named).or_else(|| snapshot.name().ok());
        (snapshot.taken(), node)
    } else {
        let snapshot = session.node(&evidence);
        let node = match (snapshot.name(), snapshot.nodes()) {
            (Ok(name), _) => Some(name),
            // Without the Nodes, the name is the one that kube-proxy would use.
            (Err(_), Err(_)) => host::node_name(&session.host).await,
            (Err(_), Ok(_)) => None,
        };
        (None, node)
    };
    let added = evidence.added();
    // A pasted text has no time, and gets none.
    let is_untimed = evidence
        .manifest()
        .is_some_and(|manifest| manifest.time == UNKNOWN_TIME);
    let time = if is_untimed {
        UNKNOWN_TIME.to_owned()
    } else {
        time.unwrap_or_else(clock::now).to_string()
    };
    let redacted_before = evidence
        .manifest()
        .is_some_and(|manifest| manifest.redacted);
    let mut node = node;
    if let Some(key) = key {
        let mut redactor = Redactor::new(key, &evidence);
        evidence = redactor.evidence(&evidence);
        node = node.map(|node| redactor.node(&node));
    }
    let mut manifest = Manifest::of(&evidence, time, node);
    manifest.redacted = key.is_some() || redacted_before;
    manifest.added = added;
    Ok((evidence, manifest))
}

fn report(path: PathBuf, evidence: &Evidence, manifest: Manifest) -> SnapshotReport {
    SnapshotReport::new(
        path,
        manifest.redacted,
        manifest.added,
        files(evidence),
        manifest.gaps,
    )
}

/// Returns the default name of a bundle: sorted by node, then by time.
fn default_name(node: &str, time: &str) -> String {
    file_name("snapshot", node, time, "tar.gz")
}

/// Returns the default name of a file: its kind, the node, the time, and its extension.
pub(in crate::command) fn file_name(kind: &str, node: &str, time: &str, end: &str) -> String {
    let is_plain = |c: &char| c.is_ascii_alphanumeric() || matches!(c, '-' | '.' | '_');
    let node: String = node.chars().filter(is_plain).collect();
    let node = if node.is_empty() { "node" } else { &node };
    let time: String = time.chars().filter(char::is_ascii_alphanumeric).collect();
    format!("kpx-{kind}-{node}-{time}.{end}")
}
