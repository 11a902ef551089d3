//! Which Node this machine is: found once, before anything is done in a Node's name.

use color_eyre::eyre::eyre;

use super::failure::{Failure, Hint as _};
use super::{Io, gather};
use crate::cli::{BridgeAct, Command, Global, MigratePart};
use crate::node::NodeSnapshot;
use crate::node::identity::{Clue, Identity, NEEDS};

/// Returns whether `command` reads this machine, or changes it, in the name of the Node that `--node` names.
pub(super) fn claims(global: &Global, command: &Command) -> bool {
    if global.from.is_some() || global.node.is_none() {
        return false;
    }
    match command {
        Command::Doctor(args) => !args.list,
        Command::Diff(_)
        | Command::Cleanup(_)
        | Command::Preflight(_)
        | Command::Reconcile(_)
        | Command::Render(_)
        | Command::Show(_)
        | Command::Trace(_) => true,
        // Whoever started it looked; and it has little time to begin.
        Command::Bridge(args) => args.act != BridgeAct::Guard || args.detach,
        Command::Snapshot(args) => !args.script,
        Command::Migrate(args) => match &args.part {
            None => args.journey.go_on.this_node && !args.fleet.all_nodes,
            Some(MigratePart::Prepare(_) | MigratePart::Finish(_)) => true,
            Some(MigratePart::Resume(args)) => !args.all_nodes,
            Some(MigratePart::Rollback(args)) => !args.all_nodes,
            Some(MigratePart::Status(_)) => false,
        },
        Command::Explain { .. }
        | Command::Resolve(_)
        | Command::Completions { .. }
        | Command::Man { .. } => false,
    }
}

/// Refuses a `--node` that this machine is known not to be. Where nothing is known, it is taken for it.
pub(super) async fn refuse_other(global: &Global, io: &Io<'_>) -> Result<(), Failure> {
    let Some(name) = &global.node else {
        return Ok(());
    };
    let evidence = gather(global, io, NEEDS).await?;
    match NodeSnapshot::new(&evidence).contradiction(name) {
        None => Ok(()),
        Some(why) => Err(
            Failure::from(eyre!("this machine is not node {name}: {why}")).with_hint(format!(
                "run kpx on node {name}; without --node, it finds the Node that this machine is"
            )),
        ),
    }
}

/// A command line with the name of this machine's Node, and what tells it.
pub(super) struct Named {
    /// The command line, with `--node`.
    pub(super) global: Global,
    /// The name.
    pub(super) name: String,
    /// What tells it.
    pub(super) by: Clue,
}

/// Finds the Node that this machine, or the bundle of `--from`, is.
pub(super) async fn named(global: &Global, io: &Io<'_>) -> Result<Named, Failure> {
    let identity = if let Some(name) = &global.node {
        Identity::Known {
            name: name.clone(),
            by: Clue::Given,
        }
    } else {
        let evidence = gather(global, io, NEEDS).await?;
        NodeSnapshot::new(&evidence).identity()
    };
    let by = match &identity {
        Identity::Known { by, .. } | Identity::Ambiguous { by, .. } => *by,
        Identity::Unknown(_) => Clue::Only,
    };
    let name = identity.name().hint(
        "--node NAME --this-node names this machine's Node; `kubectl get nodes -o wide` lists them",
    )?;
    Ok(Named {
        global: Global {
            node: Some(name.clone()),
            ..global.clone()
        },
        name,
        by,
    })
}

/// Returns the command `kpx migrate PART`, with the options of this command line that it takes to reach the same node and
/// the same cluster.
pub(super) fn migrate_command(global: &Global, part: &str) -> String {
    let mut words = vec!["kpx migrate".to_owned(), part.to_owned()];
    let path = |path: &std::path::PathBuf| path.display().to_string();
    for (flag, value) in [
        ("--kubeconfig", global.kubeconfig.as_ref().map(path)),
        ("--context", global.context.clone()),
        ("--cluster-from", global.cluster_from.as_ref().map(path)),
        ("--root", global.root.as_ref().map(path)),
        ("--netns", global.netns.clone()),
        ("--node", global.node.clone()),
    ] {
        if let Some(value) = value {
            words.push(format!("{flag} {}", quoted(&value)));
        }
    }
    if global.node.is_some() {
        words.push("--this-node".to_owned());
    }
    if global.no_api {
        words.push("--no-api".to_owned());
    }
    words.join(" ")
}

/// Quotes a word for a shell, where it needs that.
fn quoted(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./:@%+=,".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        return word.to_owned();
    }
    format!("'{}'", word.replace('\'', "'\\''"))
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;
    use crate::cli::Cli;

    fn cli(args: &[&str]) -> Cli {
        let words: Vec<_> = args.iter().map(Into::into).collect();
        let mut cli = Cli::try_parse_from(args).unwrap();
        cli.gather(&words).unwrap();
        cli
    }

    #[test]
    fn the_next_command_reaches_the_same_node_and_cluster() {
        let plain = cli(&["kpx", "migrate", "--to", "ipvs"]);
        assert_eq!(
            migrate_command(&plain.global, "resume"),
            "kpx migrate resume"
        );
        let full = cli(&[
            "kpx",
            "migrate",
            "--to",
            "ipvs",
            "--node",
            "w1",
            "--this-node",
            "--kubeconfig",
            "/a b/c",
            "--context",
            "x",
            "--no-api",
        ]);
        let next = migrate_command(&full.global, "rollback");
        assert_eq!(
            next,
            "kpx migrate rollback --kubeconfig '/a b/c' --context x --node w1 --this-node --no-api"
        );
        // It is understood.
        let words = next.replace("'/a b/c'", "/c");
        let words: Vec<&str> = words.split(' ').collect();
        let again = cli(&words);
        assert_eq!(again.global.node.as_deref(), Some("w1"));
    }

    #[test]
    fn whoever_reads_or_changes_this_machine_in_a_name_claims_it() {
        let claim = |line: &str| {
            let words: Vec<&str> = line.split(' ').collect();
            let cli = cli(&words);
            claims(&cli.global, &cli.command)
        };
        for line in [
            "kpx doctor",
            "kpx diff",
            "kpx show services",
            "kpx trace a/b",
            "kpx reconcile",
            "kpx cleanup --mode ipvs",
            "kpx bridge up",
            "kpx snapshot",
            "kpx preflight --to ipvs",
            "kpx migrate --to ipvs --this-node",
            "kpx migrate prepare --to ipvs",
            "kpx migrate finish",
            "kpx migrate resume",
            "kpx migrate rollback --this-node",
        ] {
            assert!(claim(&format!("{line} --node w1")), "{line}");
            assert!(!claim(line), "{line}");
            assert!(!claim(&format!("{line} --node w1 --from bundle")), "{line}");
        }
        for line in [
            "kpx migrate --to ipvs",
            "kpx migrate resume --all-nodes",
            "kpx bridge guard",
            "kpx explain",
            "kpx doctor --list",
        ] {
            assert!(!claim(&format!("{line} --node w1")), "{line}");
        }
    }
}
