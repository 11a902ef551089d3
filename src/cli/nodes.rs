//! Options of commands that read several nodes.

use clap::Args;
use clap::builder::RangedU64ValueParser;

/// The nodes of a cluster that a command reads.
#[derive(Args, Clone, Debug)]
pub struct NodesArgs {
    /// Run on all nodes of the cluster
    ///
    /// Nodes that cannot be read are named with the reason. With -o json each node has its whole report, on a line of its
    /// own. The exit status is that of the worst node, and 3 if a node cannot be read and no other is worse.
    #[arg(long)]
    pub all_nodes: bool,

    /// Read the nodes with these labels
    ///
    /// Like --all-nodes, but only for the nodes that a label selector matches: a=b, a!=b, a, !a, `a in (b,c)`, `a notin
    /// (b,c)`, separated by commas.
    #[arg(
        long,
        short = 'l',
        value_name = "LABELS",
        env = "KPX_SELECTOR",
        hide_short_help = true
    )]
    pub selector: Option<String>,

    /// Read this many nodes at a time
    ///
    /// A node that takes longer than twelve times --timeout is reported as not read.
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = RangedU64ValueParser::<usize>::new().range(1..=256),
        env = "KPX_PARALLEL", hide_short_help = true)]
    pub parallel: usize,
}

impl NodesArgs {
    /// Returns the options for one node.
    pub const fn one() -> Self {
        Self {
            all_nodes: false,
            selector: None,
            parallel: 1,
        }
    }

    /// Returns the options that select several nodes, as words of a command line.
    pub fn words(&self) -> Vec<String> {
        match &self.selector {
            Some(selector) => vec!["--selector".to_owned(), selector.clone()],
            None if self.all_nodes => vec!["--all-nodes".to_owned()],
            None => Vec::new(),
        }
    }

    /// Returns whether several nodes are read.
    pub const fn are_several(&self) -> bool {
        self.all_nodes || self.selector.is_some()
    }
}
