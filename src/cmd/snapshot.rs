//! `kpx snapshot`

use std::fs::File;
use std::io::Read as _;
use std::path::PathBuf;

use color_eyre::eyre::WrapErr as _;

use super::failure::{Failure, Hint as _};
use super::{Io, doctor, gather, options};
use crate::cli::{Global, SnapshotArgs};
use crate::evidence::{self, ITEMS, Manifest};
use crate::host::{self, clock};
use crate::node::NodeSnapshot;
use crate::redact::Redactor;
use crate::render::Format;
use crate::report::snapshot::SnapshotReport;
use crate::view::snapshot::files;

/// Makes a bundle with standard tools alone.
const SCRIPT: &str = include_str!("snapshot.sh");

pub(super) fn script(global: &Global, io: &mut Io<'_>) -> Result<u8, Failure> {
    if global.output.is_some() {
        return Err(Failure::usage(
            "--script prints to standard output: redirect it instead of using -o",
        ));
    }
    io.out.write_all(SCRIPT.as_bytes())?;
    Ok(crate::report::CLEAN)
}

pub(super) async fn run(
    global: &Global,
    io: &Io<'_>,
    args: &SnapshotArgs,
) -> Result<SnapshotReport, Failure> {
    let wanted = path(global);
    if let Some(path) = wanted
        .as_ref()
        .filter(|path| path.symlink_metadata().is_ok())
    {
        return Err(evidence::SaveError::Exists(path.clone()).into());
    }
    let mut evidence = gather(global, io, ITEMS).await?;
    let (time, node) = match &global.from {
        // A bundle was taken when it was taken, whenever it is written again.
        Some(_) => {
            let snapshot = NodeSnapshot::new(&evidence);
            let named = evidence
                .manifest()
                .and_then(|manifest| manifest.node.clone());
            let configured = || {
                let config = snapshot.proxy_config().ok()?;
                Some(config.hostname_override.clone()).filter(|name| !name.is_empty())
            };
            let node = global.node.clone().or(named).or_else(configured);
            (doctor::taken(&evidence, &snapshot), node)
        }
        None => (None, Some(host::node_name(&options(global)).await)),
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
    let path = wanted.unwrap_or_else(|| PathBuf::from(default_name(&manifest)));
    evidence::save(&evidence, &manifest, &path).hint("-o names another path")?;
    Ok(SnapshotReport::new(
        path,
        manifest.redacted,
        files(&evidence),
        manifest.gaps,
    ))
}

/// Returns the path that `-o` names; a format's name is a format here too.
fn path(global: &Global) -> Option<PathBuf> {
    let output = global.output.as_ref()?;
    Format::named(output)
        .is_none()
        .then(|| PathBuf::from(output))
}

/// Returns the options with which the report is printed: the path in `-o` is no format.
pub(super) fn printing(global: &Global) -> Global {
    let mut global = global.clone();
    global.output = global
        .output
        .filter(|output| Format::named(output).is_some());
    global
}

/// Returns the name of a bundle that nobody named: sorted by node, then by time.
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

/// Returns a key that nobody knows.
fn key() -> Result<[u8; 32], Failure> {
    let mut key = [0; 32];
    File::open("/dev/urandom")
        .and_then(|mut random| random.read_exact(&mut key))
        .wrap_err("cannot read /dev/urandom, from which the key of redaction comes")?;
    Ok(key)
}
