//! `kpx snapshot`

use std::path::{Path, PathBuf};

use clap::{Args, ValueHint};

use crate::cli::nodes::NodesArgs;
use crate::cli::value;
use kpx_node::evidence::Item;

pub(crate) const EXAMPLES: &str = "\
Examples:
  kpx snapshot                                    kpx-snapshot-NODE-TIME.tar.gz
  kpx snapshot --redact --file bug.tar.gz         safe to share
  kpx --from node1 snapshot --redact              redact an existing bundle
  kpx snapshot --script > snapshot.sh             for a node without kpx";

/// Options of `kpx snapshot`.
#[derive(Args, Clone, Debug)]
pub struct SnapshotArgs {
    /// Write the bundle to this path; - for standard output
    ///
    /// A path that ends in .tar.gz, .tgz or .tar is an archive, any other path a folder. The default is
    /// kpx-snapshot-NODE-TIME.tar.gz in the current folder.
    #[arg(long, value_name = "PATH", value_parser = bundle_path, value_hint = ValueHint::AnyPath, env = "KPX_FILE")]
    pub file: Option<PathBuf>,

    /// Replace names and addresses; omit secrets
    ///
    /// Each name and address has the same replacement everywhere in the bundle, under a random key that is not kept. Addresses
    /// keep their common prefixes, and the names of chains are those of the new names, so kpx reports the same findings,
    /// differences and traces. Of logs, only the lines that kpx looks for are kept.
    #[arg(long, env = "KPX_REDACT")]
    pub redact: bool,

    /// Use the key in this file, so that bundles match
    ///
    /// Bundles with the same key have the same replacements, so `kpx diff` compares them. The file has 32 random bytes or more;
    /// who has it can reverse the replacement of addresses.
    #[arg(
        long,
        value_name = "FILE",
        requires = "redact",
        env = "KPX_REDACT_KEY",
        hide_short_help = true
    )]
    pub redact_key: Option<PathBuf>,

    /// Print a shell script that records a bundle
    ///
    /// The script is POSIX shell and uses standard tools only.
    #[arg(long, conflicts_with_all = ["file", "redact", "all_nodes", "selector"])]
    pub script: bool,

    /// Record only these items, by their files in a bundle
    #[arg(long, value_name = "FILE", value_delimiter = ',', value_parser = value::item, hide = true)]
    pub items: Vec<Item>,

    /// The nodes to read.
    #[command(flatten)]
    pub nodes: NodesArgs,
}

impl SnapshotArgs {
    /// Returns whether the bundle goes to standard output.
    pub(crate) fn prints(&self) -> bool {
        !self.script && self.file.as_deref() == Some(Path::new("-"))
    }
}

/// Parses the path of a bundle: an archive of tar, or else a folder, which does not have the name of a file of another kind.
fn bundle_path(word: &str) -> Result<PathBuf, String> {
    const OTHERS: [&str; 14] = [
        ".zip", ".7z", ".rar", ".gz", ".bz2", ".xz", ".zst", ".tbz", ".txz", ".json", ".yaml",
        ".yml", ".html", ".txt",
    ];
    let low = word.to_lowercase();
    let other = OTHERS.into_iter().find(|end| low.ends_with(end));
    match other.filter(|_| !low.ends_with(".tar.gz")) {
        None => Ok(PathBuf::from(word)),
        Some(end) => {
            let stem = &word[..word.len() - end.len()];
            let stem = stem.strip_suffix(".tar").unwrap_or(stem);
            Err(format!(
                "kpx writes no {end}; pass {stem}.tar.gz for an archive, or {stem} for a folder"
            ))
        }
    }
}
