//! `kpx mcp`

use clap::Args;

pub(crate) const EXAMPLES: &str = "\
Examples:
  kpx mcp                                for the node that kpx runs on
  kpx --node node1 mcp                   for another node
  kpx --from node1.tar.gz mcp            for a bundle
  kpx --from node1.tar.gz mcp --no-redact";

/// Options of `kpx mcp`.
#[derive(Args, Clone, Debug)]
pub struct McpArgs {
    /// Do not replace names and addresses in answers
    ///
    /// Without it, answers are about a redacted recording, as of `kpx snapshot --redact`, under one key for the whole session.
    #[arg(long)]
    pub no_redact: bool,
}
