//! The command lines that kpx composes for itself: its own parser takes all of them.

use std::path::Path;

use super::args::{ContinueArgs, JourneyArgs, LEASE, MigratePart};
use super::draft::consent;
use crate::cli::parser::{Cli, Command};
use crate::command::bridge::args::BridgeAction;
use crate::command::shared::identity;
use crate::command::shared::local_bridge::guard_arguments;
use crate::command::shared::output::Output;
use crate::command::shared::session::{Session, parsed};
use crate::render::Format;
use kpx_judge::plan::Consent;
use kpx_judge::verdict::LossClass;
use kpx_migrate::accept;
use kpx_migrate::migration::Strategy;
use kpx_migrate::wire::{NodeCommand, Start, Timeouts};
use kpx_node::backend::Mode;

/// Parses `words` after `kpx` as kpx does.
fn parse(words: &[String]) -> (Cli, Session) {
    let words = words.iter().map(String::as_str);
    let all: Vec<&str> = std::iter::once("kpx").chain(words).collect();
    parsed(&all)
}

fn timeouts(args: &ContinueArgs) -> Timeouts {
    Timeouts::new(
        args.confirm(),
        args.drain(),
        Some(args.lease()).filter(|lease| *lease != LEASE),
        args.drops_connections(),
    )
}

fn start(args: &JourneyArgs) -> Start {
    Start {
        to: args.to.unwrap(),
        left: args.old_mode.unwrap(),
        scheduler: args.scheduler.clone(),
        strict_arp: args.strict_arp,
        strategy: args.strategy,
        evict: consent(args),
        skip: args.skip.clone(),
        accepts: accept::classes(&args.go_on.accept_loss),
        timeouts: timeouts(&args.go_on),
    }
}

/// Returns the command that was parsed, as the coordinator composes it.
fn meaning(cli: &Cli) -> NodeCommand {
    match &cli.command {
        Command::Bridge(args) if args.action == BridgeAction::Guard => NodeCommand::Guard {
            mode: args.mode.unwrap(),
            awaits: args.awaits.as_secs(),
            lease: Some(args.lease.as_secs()).filter(|lease| *lease != LEASE.as_secs()),
        },
        Command::Migrate(args) => match args.part.as_ref().unwrap() {
            MigratePart::Prepare(args) if args.dry_run => {
                assert!(args.brief && !args.go_on.yes);
                NodeCommand::Preview(start(args))
            }
            MigratePart::Prepare(args) => {
                assert!(args.go_on.yes);
                NodeCommand::Prepare(start(args))
            }
            MigratePart::Finish(args) => {
                assert!(args.yes);
                NodeCommand::Finish(timeouts(args))
            }
            MigratePart::Rollback(args) => {
                assert!(args.go_on.yes && !args.all_nodes);
                NodeCommand::Rollback {
                    until_restart: args.until_restart,
                    timeouts: timeouts(&args.go_on),
                }
            }
            part => panic!("{part:?}"),
        },
        command => panic!("{command:?}"),
    }
}

/// Returns whether a command that is run again skips finished work.
fn is_repeatable(cli: &Cli) -> bool {
    let Command::Migrate(args) = &cli.command else {
        return false;
    };
    match args.part.as_ref().unwrap() {
        MigratePart::Prepare(args) => args.go_on.again,
        MigratePart::Finish(args) => args.again,
        MigratePart::Rollback(args) => args.go_on.again,
        _ => false,
    }
}

/// Returns commands for nodes, with every option set and unset.
fn commands() -> Vec<NodeCommand> {
    let timeouts = [(None, false), (Some(90), true)].map(|(lease, accept_loss)| Timeouts {
        confirm: 300,
        drain: 1200,
        lease,
        accept_loss,
    });
    let mut all = Vec::new();
    for timeouts in timeouts {
        for until_restart in [false, true] {
            all.push(NodeCommand::Rollback {
                until_restart,
                timeouts,
            });
        }
        all.push(NodeCommand::Finish(timeouts));
        for to in Mode::ALL {
            all.push(NodeCommand::Guard {
                mode: to,
                awaits: 2100,
                lease: timeouts.lease,
            });
            for strategy in Strategy::ALL.map(Some).into_iter().chain([None]) {
                for is in [false, true] {
                    let start = Start {
                        to,
                        left: Mode::Ipvs,
                        scheduler: is.then(|| "lc".to_owned()),
                        strict_arp: (to != Mode::Iptables).then_some(is),
                        strategy,
                        evict: Consent {
                            bare: is,
                            empty_dir: !is,
                        },
                        skip: if is {
                            vec!["KM01".to_owned(), "proxy".to_owned()]
                        } else {
                            Vec::new()
                        },
                        accepts: LossClass::all().filter(|_| is).collect(),
                        timeouts,
                    };
                    all.push(NodeCommand::Prepare(start.clone()));
                    all.push(NodeCommand::Preview(start));
                }
            }
        }
    }
    all
}

#[test]
fn commands_for_nodes_are_parsed_as_they_were_meant() {
    for command in commands() {
        let (by_hand, _) = parse(&command.arguments());
        assert_eq!(meaning(&by_hand), command);
        let (in_pod, session) = parse(&command.pod_arguments("/host", "worker1"));
        assert_eq!(meaning(&in_pod), command);
        assert_eq!(session.root(), Path::new("/host"));
        assert_eq!(session.name(), Some("worker1"));
        let is_guard = matches!(command, NodeCommand::Guard { .. });
        let json = session.output == Some(Output::Format(Format::Json));
        assert_eq!(json, !is_guard, "{command:?}");
        let changes = !is_guard && !matches!(command, NodeCommand::Preview(_));
        assert_eq!(is_repeatable(&in_pod), changes, "{command:?}");
    }
}

fn session(words: &str) -> Session {
    let words: Vec<String> = words.split(' ').map(str::to_owned).collect();
    parse(&words).1
}

#[test]
fn a_guard_reaches_the_same_node_and_cluster() {
    for words in [
        "explain",
        "explain --kubeconfig /k --context c --root /r --netns n --node w1 --timeout 7s --family 6",
        "explain --kubeconfig /k --cluster c --user u --as a --as-group g --as-group h",
        "explain --proxy-credentials --context c",
        "explain --cluster-from b --no-api --family 4",
    ] {
        let given = session(words);
        let time = std::time::Duration::from_secs(90);
        let (cli, reached) = parse(&guard_arguments(&given, Mode::Nftables, time));
        let guard = NodeCommand::Guard {
            mode: Mode::Nftables,
            awaits: 60,
            lease: Some(90),
        };
        assert_eq!(meaning(&cli), guard);
        let of = |session: &Session| {
            (
                session.source.cluster_bundle().map(Path::to_owned),
                session.host.kubeconfig.clone(),
                session.host.root.clone(),
                session.host.context.clone(),
                session.host.selection.clone(),
                session.host.node.clone(),
                session.host.netns.clone(),
                session.host.no_api,
                session.host.timeout,
                session.host.families.clone(),
            )
        };
        assert_eq!(of(&reached), of(&given), "{words}");
    }
}

fn split(line: &str) -> Vec<String> {
    let words = line.strip_prefix("kpx ").unwrap().split(' ');
    words.map(str::to_owned).collect()
}

#[test]
fn the_next_command_is_parsed() {
    let given = session(
        "explain --kubeconfig /k --context c --cluster d --user u --as a --as-group g --as-group h --root /r --netns n \
         --node w1 --no-api",
    );
    for part in ["finish", "resume", "rollback"] {
        let (_, next) = parse(&split(&identity::migrate_command(&given, part)));
        assert_eq!(next.name(), Some("w1"));
        assert_eq!(next.flags(), given.flags());
    }
    let given = session("explain --proxy-credentials");
    let (_, next) = parse(&split(&identity::migrate_command(&given, "resume")));
    assert!(next.host.selection.proxy_credentials);
    let given = session("explain --kubeconfig /c --image kpx:1");
    for part in ["resume", "rollback"] {
        let line = identity::fleet_command(&given, part);
        let (cli, next) = parse(&split(&line));
        assert_eq!(next.flags(), given.flags());
        let Command::Migrate(args) = &cli.command else {
            panic!("{line}");
        };
        match args.part.as_ref().unwrap() {
            MigratePart::Resume(args) => assert!(args.all_nodes),
            MigratePart::Rollback(args) => assert!(args.all_nodes),
            part => panic!("{part:?}"),
        }
    }
}
