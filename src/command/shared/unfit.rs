//! Options without a meaning here: refused before anything is read, instead of a gap in every item.

use std::ffi::OsString;

use color_eyre::eyre::eyre;

use super::failure::{Failure, advice_on_api};
use super::session::Session;
use super::source::{has_option, option_of_bundle};
use crate::cli::parser::{Cli, Command};
use kpx_host as host;
use kpx_node::evidence::Gap;

/// Options that select a machine or how to reach one, which a bundle does not need.
pub(super) const OF_MACHINE: [&str; 5] =
    ["root", "netns", "image", "programs", "proxy-credentials"];

/// Refuses options in `words`, the command line of `cli`, that change nothing with `--from`.
pub(super) fn refuse_unused(cli: &Cli, words: &[OsString]) -> Result<(), Failure> {
    let global = &cli.global;
    if global.from.is_empty() {
        return Ok(());
    }
    let is_typed = |name: &str| has_option(words, &[&format!("--{name}")]);
    let unused = OF_MACHINE.into_iter().find(|name| is_typed(name));
    // If the cluster completes the bundle, the credentials matter.
    let asks = ["kubeconfig", "context", "cluster", "user"]
        .into_iter()
        .any(is_typed);
    let unused = unused.or_else(|| {
        let as_user = ["as", "as-group"].into_iter().find(|name| is_typed(name));
        as_user.filter(|_| !asks || global.no_api)
    });
    let Some(unused) = unused else {
        return Ok(());
    };
    let (bundle, omit) = option_of_bundle(has_option(words, &["--from"]));
    Err(Failure::usage(format!(
        "--{unused} has no effect on a bundle, which {bundle} reads"
    ))
    .with_hint(omit))
}

/// Refuses a root that is no folder, and a kubeconfig that is named and cannot be used.
pub(in crate::command) async fn refuse_unusable(
    session: &Session,
    command: &Command,
) -> Result<(), Failure> {
    if let Some(root) = session.other_root()
        && !session.source.is_bundle()
        && !root.is_dir()
    {
        let why = match std::fs::metadata(root) {
            Ok(_) => "it is no folder".to_owned(),
            Err(why) => why.to_string(),
        };
        return Err(
            Failure::usage(format!("cannot use --root {}: {why}", root.display()))
                .with_hint("--root takes the folder where the host's root file system is mounted"),
        );
    }
    let selection = &session.host.selection;
    let is_named = session.host.kubeconfig.is_some()
        || session.host.context.is_some()
        || selection.cluster.is_some()
        || selection.user.is_some();
    let is_unread = session.source.is_bundle() && !session.source.is_completed();
    if !is_named || is_unread || !asks(command) {
        return Ok(());
    }
    let Some(why) = host::unusable_kubeconfig(&session.host).await else {
        return Ok(());
    };
    let mut unselected = session.host.clone();
    unselected.context = None;
    unselected.selection = host::Selection::default();
    let is_file_good = host::unusable_kubeconfig(&unselected).await.is_none();
    let path = session.host.kubeconfig.as_ref();
    let hint = match path.filter(|path| !path.exists()) {
        Some(_) => "--kubeconfig takes the path of a file, such as ~/.kube/config",
        None if is_file_good => {
            "choose an available one with --context, --cluster or --user; `kubectl config get-contexts` lists contexts"
        }
        None => {
            "correct the file, or pass another one with --kubeconfig; `kubectl config view` reads it, too"
        }
    };
    Err(Failure::from(eyre!(why)).with_hint(hint))
}

/// Returns whether `command` asks the API server as its options say, and has nothing to do without. A migration goes on, or back,
/// without it.
const fn asks(command: &Command) -> bool {
    match command {
        Command::Snapshot(args) => !args.script,
        Command::Doctor(_)
        | Command::Diff(_)
        | Command::Preflight(_)
        | Command::Reconcile(_)
        | Command::Render(_)
        | Command::Report(_)
        | Command::Resolve(_)
        | Command::Access(_)
        | Command::Screen
        | Command::Show(_)
        | Command::Top(_)
        | Command::Trace(_)
        | Command::Watch(_)
        | Command::Why(_) => true,
        _ => false,
    }
}

/// Returns the advice for `gap`, the reason why the Services are unknown.
pub(in crate::command) fn without_services(session: &Session, gap: &Gap) -> &'static str {
    if session.source.is_text() {
        return "paste `kubectl get services,endpointslices -A -o yaml`, too";
    }
    if session.source.is_bundle() {
        return "the bundle lacks them: record the node again as root with `kpx snapshot`, or add them with --kubeconfig FILE";
    }
    advice_on_api(gap).unwrap_or("pass --kubeconfig FILE to read the cluster's objects")
}
