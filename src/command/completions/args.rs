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

/// Options of `kpx complete`.
#[derive(Args, Debug)]
pub struct CompleteArgs {
    /// Print words of the command line as well, as kubectl expects it
    #[arg(long)]
    pub all: bool,

    /// The words behind the name of the program; the last one is completed
    #[arg(last = true)]
    pub words: Vec<String>,
}
