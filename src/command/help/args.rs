//! `kpx help`

use clap::Args;

pub(crate) const EXAMPLES: &str = "\
Examples:
  kpx help doctor                        the same as kpx doctor --help
  kpx help migrate status";

/// Options of `kpx help`.
#[derive(Args, Debug)]
pub struct HelpArgs {
    /// Print the help of this command
    #[arg(value_name = "COMMAND")]
    pub command: Vec<String>,
}
