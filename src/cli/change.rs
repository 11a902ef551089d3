//! Options that all commands that change a node share.

use clap::Args;

use kpx_judge::diff::Layer;

/// Options of every command that can change a node.
///
/// They have no environment variables: consent is typed.
#[derive(Args, Clone, Copy, Debug)]
pub struct ApplyArgs {
    /// Apply the plan, after confirmation
    #[arg(long)]
    pub apply: bool,

    /// Do not ask for confirmation
    #[arg(long, short)]
    pub yes: bool,
}

/// A part of a node that `kpx reconcile` changes.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Part {
    /// The objects that kube-proxy programs.
    Layer(Layer),
    /// Tracked connections.
    Conntrack,
}

impl Part {
    /// Returns the layer that it is, if it is one.
    pub const fn layer(self) -> Option<Layer> {
        match self {
            Self::Layer(layer) => Some(layer),
            Self::Conntrack => None,
        }
    }
}
