//! Which Node this machine is: found once, before anything is done in a Node's name.

use std::path::PathBuf;

use color_eyre::eyre::eyre;

use super::failure::{Failure, Hint as _};
use super::session::Session;
use crate::cli::{BridgeAction, Command, MigratePart};
use crate::evidence::Gap;
use crate::node::NodeSnapshot;
use crate::node::identity::{Claim, Clue, Identity, NEEDS};

/// Returns whether `command` reads this machine, or changes it, in the name of the Node that `--node` names.
pub(in crate::cmd) fn claims(session: &Session, command: &Command) -> bool {
    if session.from.is_some() || session.nodes.is_empty() {
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
        // The process that started the guard has checked the name, and the guard has little time to begin.
        Command::Bridge(args) => args.action != BridgeAction::Guard || args.detach,
        Command::Snapshot(args) => !args.script,
        Command::Migrate(args) => match &args.part {
            None => args.journey.go_on.this_node && !args.fleet.all_nodes,
            Some(MigratePart::Prepare(_) | MigratePart::Finish(_)) => true,
            Some(MigratePart::Resume(args)) => !args.all_nodes,
            Some(MigratePart::Rollback(args)) => !args.all_nodes,
            Some(MigratePart::Status(_)) => false,
        },
        Command::Explain(_)
        | Command::Resolve(_)
        | Command::Completions(_)
        | Command::Man(_)
        | Command::Help(_)
        | Command::Version(_)
        | Command::Pod => false,
    }
}

/// Returns whether `command` only reads, so that another machine can be read through a pod.
fn only_reads(command: &Command) -> bool {
    match command {
        Command::Doctor(_)
        | Command::Diff(_)
        | Command::Show(_)
        | Command::Trace(_)
        | Command::Snapshot(_) => true,
        Command::Preflight(args) => !(args.load || args.persist),
        Command::Reconcile(args) => !args.change.apply,
        Command::Cleanup(args) => !args.change.apply,
        _ => false,
    }
}

/// Finds the machine that `--node` names: returns the session that reads it through a pod if it is another one, and `None`
/// if it is this one, as far as that is known.
///
/// Fails if `command` changes this machine and the node is another one.
pub(in crate::cmd) async fn locate(
    session: &Session,
    command: &Command,
) -> Result<Option<Session>, Failure> {
    let Some(name) = session.name() else {
        return Ok(None);
    };
    let evidence = session.gather(NEEDS).await?;
    let node = NodeSnapshot::new(&evidence);
    // With --root or --netns, the machine is given.
    let given = session.other_root().is_some() || session.host.netns.is_some();
    if given || !only_reads(command) {
        return match node.contradiction(name) {
            None => Ok(None),
            Some(why) => Err(
                Failure::from(eyre!("this machine is not node {name}: {why}")).with_hint(format!(
                    "run kpx on node {name}, or omit --node: kpx then finds the name of this machine's Node"
                )),
            ),
        };
    }
    match node.claim(name) {
        // Without an API server, the operator's word is all there is.
        Claim::Same | Claim::Unknown(Gap::NotApplicable(_)) => Ok(None),
        Claim::Unknown(gap) => Err(Failure::from(eyre!(
            "cannot tell whether this machine is node {name}: {gap}"
        ))
        .with_hint("omit --node to read this machine, or pass --no-api if it is that node")),
        Claim::Other(_) => Box::pin(session.at(name)).await.map(Some),
        Claim::NoNode(names) => Err(Failure::from(eyre!("the cluster has no Node {name}"))
            .with_hint(format!("its Nodes are {}", listed(&names)))),
    }
}

/// Lists the first of `names`.
fn listed(names: &[String]) -> String {
    const FIRST: usize = 10;
    let first = names[..names.len().min(FIRST)].join(", ");
    match names.len().checked_sub(FIRST) {
        None | Some(0) => first,
        Some(more) => format!("{first} and {more} more"),
    }
}

/// A session with the name of this machine's Node.
pub(in crate::cmd) struct Named {
    /// The session, for this Node.
    pub(in crate::cmd) session: Session,
    /// The Node's name.
    pub(in crate::cmd) name: String,
    /// The source of the name.
    pub(in crate::cmd) by: Clue,
}

/// Finds the Node that this machine, or the bundle of `--from`, is.
pub(in crate::cmd) async fn named(session: &Session) -> Result<Named, Failure> {
    let identity = if let Some(name) = session.name() {
        Identity::Known {
            name: name.to_owned(),
            by: Clue::Given,
        }
    } else {
        let evidence = session.gather(NEEDS).await?;
        NodeSnapshot::new(&evidence).identity()
    };
    let by = match &identity {
        Identity::Known { by, .. } | Identity::Ambiguous { by, .. } => *by,
        Identity::Unknown(_) => Clue::Only,
    };
    let name = identity.name().hint(
        "pass the name with --node NAME --this-node; `kubectl get nodes -o wide` lists the Nodes",
    )?;
    Ok(Named {
        session: session.named(Some(&name)),
        name,
        by,
    })
}

/// Returns the command `kpx migrate SUBCOMMAND`, with the options of `session` that select the node and the cluster.
pub(in crate::cmd) fn migrate_command(session: &Session, part: &str) -> String {
    let mut words = vec!["kpx migrate".to_owned(), part.to_owned()];
    let path = |path: &PathBuf| path.display().to_string();
    let host = &session.host;
    for (flag, value) in [
        ("--kubeconfig", host.kubeconfig.as_ref().map(path)),
        ("--context", host.context.clone()),
        ("--cluster-from", session.cluster_from.as_ref().map(path)),
        ("--root", session.other_root().map(path)),
        ("--netns", host.netns.clone()),
        ("--node", host.node.clone()),
    ] {
        if let Some(value) = value {
            words.push(format!("{flag} {}", quoted(&value)));
        }
    }
    if host.node.is_some() {
        words.push("--this-node".to_owned());
    }
    if session.host.no_api {
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
    use super::*;
    use crate::cmd::shared::session::parsed;

    #[test]
    fn the_next_command_reaches_the_same_node_and_cluster() {
        let (_, plain) = parsed(&["kpx", "migrate", "--to", "ipvs"]);
        assert_eq!(migrate_command(&plain, "resume"), "kpx migrate resume");
        let (_, full) = parsed(&[
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
        let next = migrate_command(&full, "rollback");
        assert_eq!(
            next,
            "kpx migrate rollback --kubeconfig '/a b/c' --context x --node w1 --this-node --no-api"
        );
        // It is understood.
        let words = next.replace("'/a b/c'", "/c");
        let words: Vec<&str> = words.split(' ').collect();
        let (_, again) = parsed(&words);
        assert_eq!(again.name(), Some("w1"));
    }

    #[test]
    fn whoever_reads_or_changes_this_machine_in_a_name_claims_it() {
        let claim = |line: &str| {
            let words: Vec<&str> = line.split(' ').collect();
            let (cli, session) = parsed(&words);
            claims(&session, &cli.command)
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
