//! `kpx show`

use clap::Args;

use crate::cli::nodes::NodesArgs;
use crate::cli::service::ServiceArgs;
use crate::cli::value;
use crate::view::View;

pub(crate) const EXAMPLES: &str = "\
Examples:
  kpx show services                    how this node handles each Service
  kpx show services default/nginx-svc  objects, drift, traces of one
  kpx show svc nginx-svc               the same, as for kubectl
  kpx show chains default/nginx-svc    its rules, as a tree
  kpx show config                      mode and settings, with their sources";

impl ShowArgs {
    /// Returns the namespace whose Services are shown, if no single one is.
    pub(crate) fn namespace(&self) -> Option<&str> {
        let given = self.service.namespace.as_deref();
        given.filter(|_| self.name.is_none())
    }
}

/// Options of `kpx show`.
#[derive(Args, Clone, Debug)]
pub struct ShowArgs {
    /// Show this view
    #[arg(value_parser = value::ViewParser, value_name = "VIEW")]
    pub view: View,

    /// Show this object only
    ///
    /// Show this object only: a Service (NAMESPACE/NAME[:PORT]), chain, set, address, port, module or setting. A Service is also
    /// svc/NAME or, in the view of Services, NAME alone.
    pub name: Option<String>,

    /// How the Service is named.
    #[command(flatten)]
    pub service: ServiceArgs,

    /// The nodes to read.
    #[command(flatten)]
    pub nodes: NodesArgs,
}
