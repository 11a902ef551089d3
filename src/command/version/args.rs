//! `kpx version`

use clap::Args;

pub(crate) const EXAMPLES: &str = "\
Examples:
  kpx version                            and the releases that kpx knows
  kpx version --digest                   compare two copies of kpx";

/// Options of `kpx version`.
#[derive(Args, Debug)]
pub struct VersionArgs {
    /// Print the SHA-256 digest of this program
    #[arg(long)]
    pub digest: bool,
}
