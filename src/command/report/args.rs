//! `kpx report`

use std::path::PathBuf;

use clap::{Args, ValueHint};

use crate::cli::nodes::NodesArgs;

pub(crate) const EXAMPLES: &str = "\
Examples:
  kpx report                                kpx-report-NODE-TIME.html
  kpx report --trace shop/cart              with the trace of a Service
  kpx --from node1.tar.gz report            the page of a bundle
  kpx report --all-nodes --file all.html    the nodes, the worst finding of each
  kpx watch -o json > changes.json          the changes for --timeline";

/// Options of `kpx report`.
#[derive(Args, Clone, Debug)]
pub struct ReportArgs {
    /// Write the page to this file; - for standard output
    ///
    /// The default is kpx-report-NODE-TIME.html in the current folder.
    #[arg(long, value_name = "FILE", value_parser = page_file, value_hint = ValueHint::FilePath, env = "KPX_FILE")]
    pub file: Option<PathBuf>,

    /// Add the trace to this address, Service or NodePort
    ///
    /// A target of `kpx trace`; the option can be repeated. Without it, the report has the traces of the first Services with
    /// findings or drift.
    #[arg(long, value_name = "TARGET", env = "KPX_TRACE")]
    pub trace: Vec<String>,

    /// Add the changes that `kpx watch -o json` wrote here
    #[arg(long, value_name = "FILE", env = "KPX_TIMELINE")]
    pub timeline: Option<PathBuf>,

    /// The nodes.
    #[command(flatten)]
    pub nodes: NodesArgs,
}

/// Parses the file of a page, which does not have the name of a file of another kind.
fn page_file(word: &str) -> Result<PathBuf, String> {
    let path = PathBuf::from(word);
    let end = path
        .extension()
        .map(|end| end.to_string_lossy().to_lowercase());
    match end.as_deref() {
        None | Some("html" | "htm") => Ok(path),
        Some(end) => {
            let html = path.with_extension("html");
            Err(format!("kpx writes no .{end}; pass {}", html.display()))
        }
    }
}
