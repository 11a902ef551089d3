//! `kpx snapshot`

use std::fs::File;
use std::io::Read as _;
use std::path::{Path, PathBuf};

use color_eyre::eyre::WrapErr as _;

use super::Io;
use super::shared::examine;
use super::shared::failure::{Failure, Hint as _};
use super::shared::output::Output;
use super::shared::session::Session;
use crate::cli::SnapshotArgs;
use crate::evidence::{self, Evidence, ITEMS, Manifest};
use crate::host::{self, clock};
use crate::node::NodeSnapshot;
use crate::redact::Redactor;
use crate::report::snapshot::SnapshotReport;
use crate::view::snapshot::files;

/// Makes a bundle with standard tools alone.
const SCRIPT: &str = include_str!("snapshot.sh");

pub(super) fn script(session: &Session, io: &mut Io<'_>) -> Result<u8, Failure> {
    if let Some(Output::Path(_)) = session.output {
        return Err(Failure::usage(
            "--script prints to standard output: redirect it, and do not pass -o",
        ));
    }
    io.out.write_all(SCRIPT.as_bytes())?;
    Ok(crate::report::CLEAN)
}

/// Writes the bundle to standard output.
pub(super) async fn print(
    session: &Session,
    io: &mut Io<'_>,
    args: &SnapshotArgs,
) -> Result<u8, Failure> {
    let (evidence, manifest) = record(session, args).await?;
    evidence::write_to(&evidence, &manifest, &mut io.out)?;
    Ok(crate::report::CLEAN)
}

pub(super) async fn run(session: &Session, args: &SnapshotArgs) -> Result<SnapshotReport, Failure> {
    let wanted = match &session.output {
        Some(Output::Path(path)) => Some(path.clone()),
        _ => None,
    };
    if let Some(path) = wanted
        .as_ref()
        .filter(|path| path.symlink_metadata().is_ok())
    {
        return Err(evidence::SaveError::Exists(path.clone()).into());
    }
    let (evidence, manifest) = record(session, args).await?;
    let path = wanted.unwrap_or_else(|| PathBuf::from(default_name(&manifest)));
    evidence::save(&evidence, &manifest, &path).hint("pass another path with -o")?;
    Ok(SnapshotReport::new(
        path,
        manifest.redacted,
        files(&evidence),
        manifest.gaps,
    ))
}

/// Returns whether the bundle goes to standard output.
pub(super) fn prints(session: &Session) -> bool {
    matches!(&session.output, Some(Output::Path(path)) if path == Path::new("-"))
}

async fn record(session: &Session, args: &SnapshotArgs) -> Result<(Evidence, Manifest), Failure> {
    let items = if args.items.is_empty() {
        ITEMS
    } else {
        &args.items
    };
    let mut evidence = session.gather(items).await?;
    let (time, node) = match &session.from {
        // A bundle that is written again keeps its time.
        Some(_) => {
            let snapshot = NodeSnapshot::new(&evidence);
            let named = evidence
                .manifest()
                .and_then(|manifest| manifest.node.clone());
            let configured = || {
                let config = snapshot.proxy_config().ok()?;
                Some(config.hostname_override.clone()).filter(|name| !name.is_empty())
            };
            let node = session.host.node.clone().or(named).or_else(configured);
            (examine::taken(&evidence, &snapshot), node)
        }
        None => match session.name() {
            Some(name) => (None, Some(name.to_owned())),
            None => (None, Some(host::node_name(&session.host).await)),
        },
    };
    let time = time.unwrap_or_else(clock::now).to_string();
    let redacted_before = evidence
        .manifest()
        .is_some_and(|manifest| manifest.redacted);
    let mut node = node;
    if args.redact {
        let mut redactor = Redactor::new(key()?, &evidence);
        evidence = redactor.evidence(&evidence);
        node = node.map(|node| redactor.node(&node));
    }
    let mut manifest = Manifest::of(&evidence, time, node);
    manifest.redacted = args.redact || redacted_before;
    Ok((evidence, manifest))
}

/// Returns the default name of a bundle: sorted by node, then by time.
fn default_name(manifest: &Manifest) -> String {
    let is_plain = |c: &char| c.is_ascii_alphanumeric() || matches!(c, '-' | '.' | '_');
    let node: String = manifest
        .node
        .iter()
        .flat_map(|node| node.chars())
        .filter(is_plain)
        .collect();
    let node = if node.is_empty() { "node" } else { &node };
    let time: String = manifest
        .time
        .chars()
        .filter(char::is_ascii_alphanumeric)
        .collect();
    format!("kpx-snapshot-{node}-{time}.tar.gz")
}

/// Returns a random key.
fn key() -> Result<[u8; 32], Failure> {
    let mut key = [0; 32];
    File::open("/dev/urandom")
        .and_then(|mut random| random.read_exact(&mut key))
        .wrap_err("cannot read the key of the redaction from /dev/urandom")?;
    Ok(key)
}
