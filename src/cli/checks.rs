//! Which checks a command runs.

use std::path::PathBuf;

use clap::Args;

use crate::cli::value;

/// Options that choose checks and suppress findings. The default is every check, and the node's own ignore file.
#[derive(Args, Clone, Debug, Default)]
pub struct ChecksArgs {
    /// Run these checks only: ids, names or groups
    ///
    /// Ids, names or groups, separated by commas.
    #[arg(long, value_name = "IDS", value_delimiter = ',', value_parser = value::check(), hide_possible_values = true,
        env = "KPX_ONLY")]
    pub only: Vec<String>,

    /// Skip these checks: ids, names or groups
    ///
    /// Ids, names or groups, separated by commas.
    #[arg(long, value_name = "IDS", value_delimiter = ',', value_parser = value::check(), hide_possible_values = true,
        env = "KPX_SKIP")]
    pub skip: Vec<String>,

    /// Suppress the findings listed in this file
    ///
    /// On a live node /etc/kpx/ignore.yaml is the default.
    ///
    /// The file is a YAML list of entries such as {check: DP01, subject: "mode *", reason: we switch in spring, expires:
    /// 2027-03-31}. `check` is an id or a name. `subject` limits the entry to matching findings; * matches any text. The
    /// entry expires at the end of its last day, in UTC. Suppressed findings are counted, listed with -v and in JSON, and do
    /// not change the exit status.
    #[arg(
        long,
        value_name = "FILE",
        env = "KPX_IGNORE_FILE",
        hide_short_help = true
    )]
    pub ignore_file: Option<PathBuf>,
}
