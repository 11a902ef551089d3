//! `kpx completions`, and the hidden `kpx complete`, which the scripts ask for names of Services.

use std::pin::pin;
use std::time::Duration;

use clap_complete::Shell;
use futures_util::future::{Either, select};

use crate::cli;
use crate::command::shared::failure::Failure;
use crate::command::shared::io::Io;
use crate::command::shared::session::Session;
use crate::report::CLEAN;
use kpx_host::clock;
use kpx_node::evidence::Item;
use kpx_node::node::NodeSnapshot;

/// The longest time to wait for the API server: a person waits for the shell.
const SOON: Duration = Duration::from_secs(1);

/// What the scripts add to clap's, by shell.
const BASH: &str = include_str!("services.bash");
const ZSH: &str = include_str!("services.zsh");
const FISH: &str = include_str!("services.fish");

/// Returns the script for `shell`.
pub(in crate::command) fn script(shell: Shell) -> Vec<u8> {
    // clap_complete panics when a write fails.
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut cli::command(), "kpx", &mut script);
    match shell {
        Shell::Bash => script.extend(BASH.as_bytes()),
        Shell::Fish => script.extend(FISH.as_bytes()),
        Shell::Zsh => return zsh(&String::from_utf8_lossy(&script)).into_bytes(),
        _ => {}
    }
    script
}

/// Returns the script of zsh, in which arguments that take Services ask for their names.
fn zsh(script: &str) -> String {
    /// The beginnings of these arguments.
    const TAKES: [&str; 3] = [
        "':target -- ",
        "'::service -- ",
        "'::name -- Show this object",
    ];
    /// The last lines, which call the function.
    const CALL: &str = "\nif [ \"$funcstack[1]\" = \"_kpx\" ]";
    let lines = script.lines().map(|line| {
        let asks = TAKES.iter().any(|begin| line.starts_with(begin));
        let head = line.strip_suffix(":_default' \\").filter(|_| asks);
        head.map_or_else(
            || format!("{line}\n"),
            |head| format!("{head}:_kpx_services' \\\n"),
        )
    });
    let text: String = lines.collect();
    match text.rfind(CALL) {
        Some(at) => format!("{}\n{ZSH}{}", &text[..at], &text[at..]),
        None => text,
    }
}

/// Prints the names of the Services, one a line; nothing if they cannot be read soon.
pub(in crate::command) async fn services(
    session: &Session,
    io: &mut Io<'_>,
) -> Result<u8, Failure> {
    let mut quick = session.clone();
    quick.progress = false;
    quick.host.timeout = quick.host.timeout.min(SOON);
    let read = pin!(quick.gather(&[Item::Services]));
    let read = match select(read, pin!(clock::pause(SOON))).await {
        Either::Left((read, _)) => read.ok(),
        Either::Right(_) => None,
    };
    let Some(evidence) = read else {
        return Ok(CLEAN);
    };
    let node = NodeSnapshot::new(&evidence);
    for service in node.services().map_or(&[][..], Vec::as_slice) {
        let of = &service.metadata;
        writeln!(io.out, "{}/{}", of.namespace, of.name)?;
    }
    Ok(CLEAN)
}
