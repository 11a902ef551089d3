//! `kpx snapshot`

use std::path::PathBuf;

use clap::Args;

use crate::cli::nodes::NodesArgs;
use crate::cli::value;
use kpx_node::evidence::Item;

pub(crate) const EXAMPLES: &str = "\
Examples:
  kpx snapshot                                    kpx-snapshot-NODE-TIME.tar.gz
  kpx snapshot --redact -o bug.tar.gz             safe to share
  kpx --from node1 snapshot --redact -o bug.tgz   redact an existing bundle
  kpx snapshot --script > snapshot.sh             for a node without kpx";

/// Options of `kpx snapshot`.
#[derive(Args, Clone, Debug)]
pub struct SnapshotArgs {
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
    #[arg(long, conflicts_with_all = ["redact", "all_nodes", "selector"])]
    pub script: bool,

    /// Record only these items, by their files in a bundle
    #[arg(long, value_name = "FILE", value_delimiter = ',', value_parser = value::item, hide = true)]
    pub items: Vec<Item>,

    /// The nodes to read.
    #[command(flatten)]
    pub nodes: NodesArgs,
}
