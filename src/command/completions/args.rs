//! `kpx completions`

use clap::Args;
use clap_complete::Shell;

pub(crate) const EXAMPLES: &str = "\
Examples:
  kpx completions bash > /etc/bash_completion.d/kpx
  kpx completions zsh > /usr/local/share/zsh/site-functions/_kpx
  kpx completions fish > ~/.config/fish/completions/kpx.fish";

/// Options of `kpx completions`.
#[derive(Args, Debug)]
pub struct CompletionsArgs {
    /// Write for this shell
    pub shell: Shell,
}
