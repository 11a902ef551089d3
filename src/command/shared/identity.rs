//! The identity of this machine: its Node is determined once, before anything is done in the Node's name.

use std::sync::Arc;

use color_eyre::eyre::eyre;

use super::failure::{Failure, Hint as _, advice_on_api};
use super::session::{Session, home};
use crate::cli::parser::Command;
use crate::command::bridge::args::BridgeAction;
use crate::command::migrate::args::MigratePart;
use kpx_host as host;
use kpx_judge::check::{Advice, Fix, Next, Reach, Reader, Word, on, quoted};
use kpx_node::evidence::{Gap, Item};
use kpx_node::node::NodeSnapshot;
use kpx_node::node::identity::{Claim, Clue, Identity, Mismatch, NEEDS, OF_BUNDLE, OF_MACHINE};
use kpx_node::node::processes::{self, Process};
use kpx_node::words::listed;

/// Returns whether `command` reads this machine, changes it, or sends packets from it, in the name of the Node that `--node`
/// names.
pub(in crate::command) fn claims(session: &Session, command: &Command) -> bool {
    !session.source.is_bundle() && !session.nodes.is_empty() && acts(command)
}

/// Returns whether `command` reads or changes a node, or sends packets from it.
fn acts(command: &Command) -> bool {
    reads(command) || matches!(command, Command::Resolve(_))
}

/// Refuses to read a bundle in the name of a Node that it is not of.
pub(in crate::command) async fn refuse_other_bundle(
    session: &Session,
    command: &Command,
) -> Result<(), Failure> {
    let (Some(path), Some(name)) = (session.source.bundle(), session.name()) else {
        return Ok(());
    };
    if !acts(command) || reads_several(command) {
        return Ok(());
    }
    // Input of other tools has the names of its nodes itself.
    let foreign = session.source.foreign();
    if foreign.is_some_and(|all| all.nodes.iter().any(|node| node.name == name)) {
        return Ok(());
    }
    let evidence = session.gather(OF_BUNDLE).await?;
    // In a bundle of all nodes, the name selects one.
    if evidence.is_one_of_all() {
        return Ok(());
    }
    let Some(Mismatch { of, why }) = NodeSnapshot::new(&evidence).mismatch(name) else {
        return Ok(());
    };
    let path = path.display();
    let (own, hint) = match of.as_slice() {
        [] => (String::new(), "omit --node".to_owned()),
        [own] => (format!(" of {own}"), format!("omit --node to read {own}")),
        several => (
            format!(" of one of {}", several.join(", ")),
            "`--node` takes one of these names".to_owned(),
        ),
    };
    let other = if name == "help" {
        "`--help` prints the options".to_owned()
    } else {
        format!("to read {name}, pass a bundle of it with --from")
    };
    let error = format!("bundle {path} is a recording{own}, not of {name}: {why}");
    Err(Failure::usage(error).with_hint(format!("{hint}; {other}")))
}

/// Returns whether `command` reads this machine, or changes it, as the Node that it is: without `--node` and `--no-api`, and
/// without an option that makes another file system or network namespace of this machine the node.
pub(in crate::command) fn reads_here(session: &Session, command: &Command) -> bool {
    let elsewhere = session.source.is_bundle()
        || !session.nodes.is_empty()
        || session.host.netns.is_some()
        || session.other_root().is_some();
    !elsewhere && !session.host.no_api && reads(command)
}

/// Returns whether `command` reads or changes a machine.
fn reads(command: &Command) -> bool {
    match command {
        Command::Doctor(_)
        | Command::Diff(_)
        | Command::Preflight(_)
        | Command::Reconcile(_)
        | Command::Render(_)
        | Command::Report(_)
        | Command::Screen
        | Command::Serve(_)
        | Command::Show(_)
        | Command::Top(_)
        | Command::Trace(_)
        | Command::Watch(_)
        | Command::Why(_) => true,
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
        | Command::Access(_)
        | Command::Complete(_)
        | Command::Completions(_)
        | Command::Man(_)
        | Command::Mcp(_)
        | Command::Help(_)
        | Command::Version(_)
        | Command::Pod(_) => false,
    }
}

/// Returns whether `command` reads several nodes.
pub(in crate::command) const fn reads_several(command: &Command) -> bool {
    match command {
        Command::Doctor(args) => args.nodes.are_several(),
        Command::Diff(args) => args.nodes.are_several(),
        Command::Reconcile(args) => args.nodes.are_several(),
        Command::Preflight(args) => args.nodes.are_several(),
        Command::Resolve(args) => args.nodes.are_several(),
        Command::Show(args) => args.nodes.are_several(),
        Command::Snapshot(args) => args.nodes.are_several(),
        Command::Trace(args) => args.nodes.are_several(),
        Command::Why(args) => args.nodes.are_several(),
        _ => false,
    }
}

/// Returns whether `command` works on another machine, through a pod on it.
fn reaches_others(command: &Command) -> bool {
    match command {
        Command::Doctor(_)
        | Command::Diff(_)
        | Command::Show(_)
        | Command::Trace(_)
        | Command::Why(_)
        | Command::Snapshot(_)
        | Command::Report(_)
        | Command::Resolve(_)
        | Command::Screen
        | Command::Reconcile(_) => true,
        Command::Preflight(args) => !(args.load || args.persist),
        _ => false,
    }
}

/// Refuses `command` if it reads or changes this machine, which is no node.
pub(in crate::command) fn refuse_other_systems(
    session: &Session,
    command: &Command,
) -> Result<(), Failure> {
    let given = session.other_root().is_some() || session.host.netns.is_some();
    let reaches = !session.nodes.is_empty() && !given && reaches_others(command);
    if host::MAY_BE_NODE
        || !session.source.is_this_machine()
        || !reads(command)
        || reads_several(command)
        || reaches
    {
        return Ok(());
    }
    Err(Failure::usage(host::ONLY_LINUX).with_hint(if reaches_others(command) {
        "pass `--node NODE` or `--all-nodes` to read nodes over the API, or `--from BUNDLE` to read a bundle"
    } else {
        "run the command on the node, or pass `--from BUNDLE` to read a bundle"
    }))
}

/// Finds the machine that `--node` names: returns the session that reaches another machine through a pod, or `None` if it
/// is, or may be, this one.
///
/// Fails if `command` changes this machine and the node is another one.
pub(in crate::command) async fn locate(
    session: &Session,
    command: &Command,
) -> Result<Option<Session>, Failure> {
    let Some(name) = session.name() else {
        return Ok(None);
    };
    if !host::MAY_BE_NODE {
        return Box::pin(session.at(name)).await.map(Some);
    }
    let evidence = session.gather(NEEDS).await?;
    let node = NodeSnapshot::new(&evidence);
    // With --root or --netns, the machine is given.
    let given = session.other_root().is_some() || session.host.netns.is_some();
    if given || !reaches_others(command) {
        if let Some(why) = node.contradiction(name) {
            return Err(
                Failure::from(eyre!("this machine is not node {name}: {why}")).with_hint(format!(
                    "run kpx on node {name}, or omit --node: kpx then finds the name of this machine's Node"
                )),
            );
        }
        return match node.claim(name) {
            Claim::Unknown(gap) if !given => Err(unproved(&node, name, &gap)),
            _ => Ok(None),
        };
    }
    match node.claim(name) {
        Claim::Same => Ok(None),
        Claim::Unknown(gap) => Err(unproved(&node, name, &gap)),
        Claim::Other(_) => Box::pin(session.at(name)).await.map(Some),
        Claim::NoNode(names) => Err(Failure::usage(format!("the cluster has no Node {name}"))
            .with_hint(format!("its Nodes are {}", listed(&names)))),
    }
}

/// Returns the failure for a machine that does not prove to be node `name`.
fn unproved(machine: &NodeSnapshot<'_>, name: &str, gap: &Gap) -> Failure {
    let names = machine.own_names();
    let names: Vec<String> = names
        .iter()
        .map(|(own, by)| format!("{by} is {own}"))
        .collect();
    let names = if names.is_empty() {
        "its names are unknown".to_owned()
    } else {
        names.join(", ")
    };
    let error = eyre!(
        "cannot tell whether this machine is node {name}: {names}, and the cluster's Nodes are not known ({gap})"
    );
    let proxies = machine
        .processes()
        .map(|all| processes::kube_proxies(all).any(is_certain));
    Failure::from(error).with_hint(match (proxies, advice_on_api(gap)) {
        (Ok(false), Some(advice)) => format!(
            "no kube-proxy runs on this machine, and another one is read through the API server: {advice}"
        ),
        (Ok(false), None) => format!(
            "no kube-proxy runs on this machine: to read {name} from here, kpx needs the API server (--kubeconfig); \
             --from reads a bundle of {name} without it"
        ),
        _ => "omit --node to read this machine as the node that it is; to read another one, give kpx a cluster with \
              --kubeconfig or --cluster-from"
            .to_owned(),
    })
}

/// Refuses to read a machine that is no node of the cluster, as far as that is known.
///
/// The API server is contacted only if no kube-proxy runs here; the command does not read the Nodes again.
pub(in crate::command) async fn refuse_stranger(session: &Session) -> Result<(), Failure> {
    let mut evidence = session.gather(OF_MACHINE).await?;
    let proxy = NodeSnapshot::new(&evidence);
    let runs = proxy
        .processes()
        .map(|all| processes::kube_proxies(all).any(is_certain));
    if runs.unwrap_or(true) {
        return Ok(());
    }
    evidence.extend(session.nodes_ahead().await?);
    stranger(&NodeSnapshot::new(&evidence))
}

/// Fails if `machine` is no node of the cluster, as far as that is known.
fn stranger(machine: &NodeSnapshot<'_>) -> Result<(), Failure> {
    let Some(stranger) = machine.stranger() else {
        return Ok(());
    };
    let here = match stranger.container {
        None => "no kube-proxy runs here".to_owned(),
        Some(pid) => {
            format!("kube-proxy (process {pid}) runs in a container with a network of its own")
        }
    };
    let names = &stranger.nodes;
    let error = eyre!(
        "this machine is not a node of the cluster: no Node ({}) has an address or ID of this machine, and {here}",
        listed(names)
    );
    let inside = stranger.container.map_or(String::new(), |pid| {
        format!(", `--netns /proc/{pid}/ns/net` for that container")
    });
    Err(Failure::from(error).with_hint(format!(
        "pass `--node NAME` or `--all-nodes` to read nodes from here, or `--from BUNDLE` to read a bundle{inside}; `--no-api` \
         reads this machine without the cluster"
    )))
}

/// Fails on a machine that is no node and has no cluster: there would be nothing to show.
pub(in crate::command) async fn refuse_no_node(session: &Session) -> Result<(), Failure> {
    if !session.source.is_this_machine() || session.name().is_some() {
        return Ok(());
    }
    let evidence = session.gather(&[Item::Processes, Item::Services]).await?;
    if !is_no_node(session, &session.node(&evidence)) {
        return Ok(());
    }
    let error = eyre!("no kube-proxy, no kubelet and no kubeconfig on this machine");
    Err(Failure::from(error).unknown().with_hint(
        "--from opens a recording, and --kubeconfig with --node a node; `kpx snapshot --script > snapshot.sh` writes a script that \
         records one",
    ))
}

/// Returns whether the session reads this machine, `node`, and it runs no part of Kubernetes and has no cluster, as a laptop.
pub(in crate::command) fn is_no_node(session: &Session, node: &NodeSnapshot<'_>) -> bool {
    let is_machine = session.source.is_this_machine()
        && session.other_root().is_none()
        && session.host.netns.is_none();
    is_machine && has_no_kubernetes(node)
}

fn has_no_kubernetes(node: &NodeSnapshot<'_>) -> bool {
    // A cluster in containers has networks of its own.
    let runs = |process: &Process| {
        let is_part = process.name == "kubelet" || processes::is_proxy_name(&process.name);
        is_part && process.same_network != Some(false)
    };
    let runs_any = node.processes().map(|all| all.processes.iter().any(runs));
    matches!(runs_any, Ok(false)) && matches!(node.services(), Err(Gap::NotApplicable(_)))
}

/// Returns whether `process` is known to share this network namespace.
fn is_certain(process: &Process) -> bool {
    process.same_network == Some(true)
}

/// A session with the name of this machine's Node.
pub(in crate::command) struct Named {
    /// The session, for this Node.
    pub(in crate::command) session: Session,
    /// The Node's name.
    pub(in crate::command) name: String,
    /// The source of the name.
    pub(in crate::command) by: Clue,
}

/// Finds the Node that this machine, or the bundle of `--from`, is.
pub(in crate::command) async fn named(session: &Session) -> Result<Named, Failure> {
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
pub(in crate::command) fn migrate_command(session: &Session, part: &str) -> String {
    let mut words = vec![
        format!("{} migrate", session.style.program),
        part.to_owned(),
    ];
    for (flag, word) in options(session) {
        words.push(word);
        if flag == "--node" {
            words.push("--this-node".to_owned());
        }
    }
    words.join(" ")
}

/// Returns the command `kpx migrate SUBCOMMAND --all-nodes`, with the options of `session` that select the cluster and its pods.
pub(in crate::command) fn fleet_command(session: &Session, part: &str) -> String {
    let mut words = vec![format!(
        "{} migrate {part} --all-nodes",
        session.style.program
    )];
    let all = options(session);
    // The state in the cluster has the nodes.
    words.extend(all.filter_map(|(flag, word)| (flag != "--node").then_some(word)));
    words.join(" ")
}

/// Returns the command `kpx migrate` with the options `part` for the nodes of `session`.
pub(in crate::command) fn migrate_of_nodes(session: &Session, part: &str) -> String {
    let all = options(session).filter(|(flag, _)| *flag != "--node");
    let nodes = (!session.nodes.is_empty()).then(|| format!("--node {}", session.nodes.join(",")));
    let words = [format!("{} migrate {part}", session.style.program)].into_iter();
    let words: Vec<String> = words
        .chain(nodes)
        .chain(all.map(|(_, word)| word))
        .collect();
    words.join(" ")
}

/// Makes `fixes` work on this machine, for the node and the cluster of `session`.
pub(in crate::command) fn reach_all<'f>(
    session: &Session,
    fixes: impl Iterator<Item = &'f mut Fix>,
) {
    let reach = reach(session);
    for fix in fixes {
        fix.reached_by(&reach);
    }
}

/// Returns how commands reach the node and the cluster of `session` from this machine.
pub(in crate::command) fn reach(session: &Session) -> Arc<Reach> {
    // In a report of several nodes, each fix is below the names of its nodes.
    let is_recorded = session.source.is_bundle();
    let node = if is_recorded {
        // In a bundle of all nodes, `--node` selects the folder.
        let node = session.origin().and_then(|origin| origin.node);
        node.or_else(|| (!session.one_of_several).then(|| "the node".to_owned()))
    } else {
        let name = session.name().filter(|_| session.source.is_pod());
        name.map(str::to_owned)
    };
    let options = options_text(session);
    let to_read = if session.source.names_bundle() {
        options_to_read(session)
    } else {
        options.clone()
    };
    Arc::new(Reach {
        program: session.style.program,
        to_read,
        options,
        node,
        is_recorded,
        reader: match home() {
            _ if host::is_root() => Reader::Root,
            Some(home) if home.join(".kube/config").exists() => Reader::WithKubeconfig,
            _ => Reader::User,
        },
    })
}

/// Returns the command of kpx with the arguments `words` as it reaches the node of `session`, behind the machine to type it on if that
/// is another one.
pub(in crate::command) fn next_command<W: Into<Word>>(
    session: &Session,
    words: impl IntoIterator<Item = W>,
) -> String {
    next_line(session, &Next::Run(Advice::kpx(words), None))
}

/// Returns `next` as it is printed.
pub(in crate::command) fn next_line(session: &Session, next: &Next) -> String {
    let (command, machine) = reach(session).next(next);
    on(machine.as_deref(), &command)
}

/// Returns the options of `session` that select the node and the cluster, as words of a command line.
fn options_text(session: &Session) -> String {
    let options: Vec<_> = options(session).map(|(_, word)| word).collect();
    options.join(" ")
}

/// Returns kpx with the options that read what `session` reads, as words of a command line.
pub(in crate::command) fn program_to_read(session: &Session) -> String {
    let words = [session.style.program.to_owned(), options_to_read(session)];
    let words = words.into_iter().filter(|word| !word.is_empty());
    words.collect::<Vec<_>>().join(" ")
}

/// Returns the options of another command that reads what `session` reads.
fn options_to_read(session: &Session) -> String {
    let paths = session.source.paths_to_read().into_iter();
    let bundle = paths.map(|path| match path.to_str() {
        // Standard input is read once.
        Some("-") => "--from FILE".to_owned(),
        _ => format!("--from {}", quoted(&path.display().to_string())),
    });
    let options = options(session).map(|(_, word)| word);
    bundle.chain(options).collect::<Vec<_>>().join(" ")
}

/// Returns the options of `session` that select the node and the cluster: the flag, and it with its value.
fn options(session: &Session) -> impl Iterator<Item = (&'static str, String)> {
    session
        .flags()
        .into_iter()
        .map(|(flag, value)| match value {
            Some(value) => (flag, format!("{flag} {}", quoted(&value))),
            None => (flag, flag.to_owned()),
        })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::shared::failure::Verbosity;
    use crate::command::shared::session::parsed;
    use kpx_judge::check::{Runs, runs};
    use kpx_node::evidence::Evidence;

    #[test]
    fn a_machine_without_kubernetes_is_no_node() {
        let of = |process: &str, services: Result<&str, Gap>| {
            let mut evidence = Evidence::default();
            let processes = format!(r#"{{"processes": [{{"pid": 7, "name": "{process}"}}]}}"#);
            evidence.insert(Item::Processes, Ok(processes));
            evidence.insert(Item::Services, services.map(str::to_owned));
            has_no_kubernetes(&NodeSnapshot::new(&evidence))
        };
        let none = || Err(Gap::NotApplicable("no cluster is configured".to_owned()));
        assert!(of("firefox", none()));
        assert!(!of("kubelet", none()));
        assert!(!of("kube-proxy", none()));
        assert!(!of("k3s-agent", none()));
        assert!(!of("firefox", Ok(r#"{"items": []}"#)));
    }

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
    fn a_machine_of_no_node_is_refused_with_the_way_out() {
        let refused = |processes: &str, node: &str| {
            let mut evidence = Evidence::default();
            let host = "host-name = laptop\nmachine-id = aa\n";
            let own = r#"[{"ifname": "eth0", "addr_info": [{"family": "inet", "local": "192.0.2.7", "prefixlen": 24, "scope": "global"}]}]"#;
            let nodes = format!(
                r#"{{"items": [{{"metadata": {{"name": "w1"}}, "status": {{"addresses": [{{"type": "InternalIP", "address": "{node}"}}]}}}}]}}"#
            );
            for (item, text) in [
                (Item::Host, host),
                (Item::Addresses, own),
                (Item::Processes, processes),
                (Item::ProxyFiles, r#"{"files": []}"#),
                (Item::Nodes, &nodes),
            ] {
                evidence.insert(item, Ok(text.to_owned()));
            }
            let refused = stranger(&NodeSnapshot::new(&evidence)).err()?;
            let mut text = Vec::new();
            assert_eq!(refused.tell(&mut text, Verbosity::Normal), 4);
            String::from_utf8(text).ok()
        };
        let none = r#"{"processes": []}"#;
        assert_eq!(
            refused(none, "203.0.113.1").unwrap(),
            "kpx: this machine is not a node of the cluster: no Node (w1) has an address or ID of this machine, and no \
             kube-proxy runs here\n  \
             hint: pass `--node NAME` or `--all-nodes` to read nodes from here, or `--from BUNDLE` to read a bundle; \
             `--no-api` reads this machine without the cluster\n"
        );
        let inside = r#"{"processes": [{"pid": 77, "name": "kube-proxy", "args": ["kube-proxy"], "sameNetwork": false}]}"#;
        let text = refused(inside, "203.0.113.1").unwrap();
        for part in [
            "and kube-proxy (process 77) runs in a container with a network of its own\n",
            "`--netns /proc/77/ns/net` for that container",
        ] {
            assert!(text.contains(part), "{text}");
        }
        assert_eq!(refused(none, "192.0.2.7"), None);
    }

    #[test]
    fn whoever_reads_or_changes_this_machine_in_a_name_claims_it() {
        let claim = |line: &str| {
            let words: Vec<&str> = line.split(' ').collect();
            let (cli, session) = parsed(&words);
            claims(&session, &cli.command)
        };
        let here = |line: &str| {
            let words: Vec<&str> = line.split(' ').collect();
            let (cli, session) = parsed(&words);
            reads_here(&session, &cli.command)
        };
        for line in [
            "kpx doctor",
            "kpx diff",
            "kpx show services",
            "kpx trace a/b",
            "kpx why a/b",
            "kpx reconcile",
            "kpx reconcile --cleanup ipvs",
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
            assert!(here(line), "{line}");
            assert!(here(&format!("{line} --cluster-from b")), "{line}");
            for elsewhere in [
                "--node w1",
                "--from bundle",
                "--netns n",
                "--root /host",
                "--no-api",
            ] {
                assert!(!here(&format!("{line} {elsewhere}")), "{line} {elsewhere}");
            }
        }
        for line in [
            "kpx migrate --to ipvs",
            "kpx migrate resume --all-nodes",
            "kpx bridge guard",
            "kpx explain",
        ] {
            assert!(!claim(&format!("{line} --node w1")), "{line}");
            assert!(!here(line), "{line}");
        }
    }

    /// The commands of kpx that fixes have, and where they run.
    const ADVISED: &[(&str, Runs)] = &[
        ("bridge down --apply --yes", Runs::OnNode),
        ("bridge follow", Runs::OnNode),
        ("reconcile --cleanup ipvs", Runs::Again),
        ("reconcile --cleanup ipvs --apply", Runs::Again),
        ("diff", Runs::Again),
        ("doctor --only KB01", Runs::OnEvidence),
        ("doctor --to nftables", Runs::OnEvidence),
        ("explain CT01", Runs::Alone),
        ("migrate resume", Runs::OnNode),
        ("migrate resume --all-nodes", Runs::Alone),
        ("migrate rollback", Runs::OnNode),
        ("migrate status", Runs::Alone),
        ("migrate --to nftables", Runs::OnNode),
        ("migrate --to nftables --this-node", Runs::OnNode),
        ("preflight --to ipvs", Runs::Again),
        ("preflight --to ipvs --load", Runs::OnNode),
        ("reconcile", Runs::Again),
        ("reconcile --apply", Runs::Again),
        ("reconcile --part conntrack --apply --yes", Runs::Again),
        ("resolve a --namespace b", Runs::OnEvidence),
        ("show services", Runs::OnEvidence),
        ("snapshot", Runs::Again),
        ("trace a/b --source host", Runs::OnEvidence),
        ("why a/b", Runs::OnEvidence),
    ];

    #[test]
    fn an_advised_command_runs_where_the_parsed_one_does() {
        for (line, expected) in ADVISED {
            let words: Vec<Word> = line.split(' ').map(Word::from).collect();
            assert_eq!(runs(&words), *expected, "{line}");
            let (cli, _) = parsed(&format!("kpx {line}").split(' ').collect::<Vec<_>>());
            let command = cli.command;
            let reaches = matches!(expected, Runs::OnEvidence | Runs::Again);
            assert_eq!(reaches_others(&command), reaches, "{line}");
            // Without a name, it is the machine that it runs on.
            let begins = matches!(&command, Command::Migrate(args) if args.part.is_none());
            assert_eq!(
                (reads(&command) || begins) && !reaches_others(&command),
                *expected == Runs::OnNode,
                "{line}"
            );
        }
    }

    #[test]
    fn a_fix_reaches_the_node_from_another_machine() {
        let reached = |advice: &Advice, options: &str, node: Option<&str>| {
            let mut fix = Fix::new("Do it.", advice.clone());
            fix.reached_by(&Arc::new(Reach {
                options: options.to_owned(),
                to_read: options.to_owned(),
                node: node.map(str::to_owned),
                ..Reach::default()
            }));
            (fix.command().unwrap(), fix.machine())
        };
        let kpx = |line: &'static str| Advice::kpx(line.split(' '));
        let own = kpx("reconcile --apply");
        let sysctl = Advice::OnNode("sysctl -w a=1".into());
        let pods = Advice::Anywhere("kubectl get pods".into());
        let there = Some("w1");
        for (advice, options, node, expected) in [
            (&own, "", None, ("kpx reconcile --apply", None)),
            (
                &own,
                "--node w1",
                Some("w1"),
                ("kpx --node w1 reconcile --apply", None),
            ),
            (&sysctl, "--node w1", None, ("sysctl -w a=1", None)),
            (&sysctl, "--node w1", Some("w1"), ("sysctl -w a=1", there)),
            (&pods, "--node w1", Some("w1"), ("kubectl get pods", None)),
            (
                &kpx("bridge down"),
                "--node w1",
                Some("w1"),
                ("kpx bridge down", there),
            ),
            (
                &kpx("preflight --to ipvs --load"),
                "--node w1",
                Some("w1"),
                ("kpx preflight --to ipvs --load", there),
            ),
            (
                &kpx("explain CT01"),
                "--node w1",
                Some("w1"),
                ("kpx explain CT01", None),
            ),
        ] {
            let (command, machine) = reached(advice, options, node);
            assert_eq!((command.as_str(), machine.as_deref()), expected);
        }
    }
}
