//! Services on the command line, named as for kubectl.

use clap::Args;

/// The words that kubectl has for Services.
const KINDS: [&str; 3] = ["service", "services", "svc"];

/// Returns whether `word` is one that kubectl has for Services.
pub(crate) fn is_kind(word: &str) -> bool {
    KINDS.iter().any(|kind| kind.eq_ignore_ascii_case(word))
}

/// Words before or after the name of a Service.
#[derive(Args, Clone, Debug, Default)]
pub struct ServiceArgs {
    /// Name of the Service, behind the word `service` or `svc`
    #[arg(value_name = "NAME", hide = true)]
    pub second: Option<String>,

    /// Find the Service in this namespace
    ///
    /// `kpx show` without a name shows the Services of this namespace. Without this option, a name without a namespace is that of the
    /// Service in the namespace of the kubeconfig's context or, if there is none or a bundle is read, that of the only Service with this
    /// name.
    #[arg(long, short = 'n', value_name = "NS", hide_short_help = true)]
    pub namespace: Option<String>,
}

impl ServiceArgs {
    /// Returns whether these words or `word`, the first name, say that a Service is meant.
    pub(crate) fn is_given(&self, word: &str) -> bool {
        let kind = word.split_once('/').map_or(word, |(kind, _)| kind);
        self.namespace.is_some() || self.second.is_some() || is_kind(kind)
    }
}
