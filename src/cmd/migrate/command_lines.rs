//! The command lines that kpx composes for itself or prints as advice: its own parser takes all of them.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};

use clap::Parser as _;
use clap::error::ErrorKind;

use super::draft::{consent, strategy};
use super::fleet::{GO_BACK, GO_ON};
use crate::backend::Mode;
use crate::cli::{BridgeAct, Cli, Command, Global, GoOnArgs, JourneyArgs, MigratePart};
use crate::cmd::local_bridge::guard_arguments;
use crate::cmd::{identity, mode, output};
use crate::migrate::migration::Strategy;
use crate::migrate::wire::{NodeCommand, Start, Timeouts};
use crate::plan::Consent;

/// The default of `--lease`.
const LEASE: u64 = 60;

/// Parses `words` behind `kpx` as kpx does.
fn parse(words: &[String]) -> Cli {
    let mut all = vec![OsString::from("kpx")];
    all.extend(words.iter().map(OsString::from));
    let cli = Cli::try_parse_from(&all);
    let mut cli = cli.unwrap_or_else(|error| panic!("{words:?}: {error}"));
    cli.gather(&all).unwrap();
    assert!(output::check(&cli).is_ok(), "{words:?}");
    cli
}

fn timeouts(args: &GoOnArgs) -> Timeouts {
    let lease = (args.lease.as_secs() != LEASE).then_some(args.lease);
    Timeouts::new(
        args.confirm_timeout,
        args.drain_timeout,
        lease,
        args.accept_loss,
    )
}

fn start(args: &JourneyArgs) -> Start {
    Start {
        to: mode(args.to.unwrap()),
        left: mode(args.left.unwrap()),
        scheduler: args.scheduler.clone(),
        strict_arp: args.strict_arp,
        strategy: args.strategy.map(strategy),
        evict: consent(args),
        skip: args.skip.clone(),
        timeouts: timeouts(&args.go_on),
    }
}

/// Returns the command that was parsed, as the coordinator composes it.
fn meaning(cli: &Cli) -> NodeCommand {
    match &cli.command {
        Command::Bridge(args) if args.act == BridgeAct::Guard => NodeCommand::Guard {
            mode: mode(args.mode.unwrap()),
            awaits: args.awaits.as_secs(),
            lease: Some(args.lease.as_secs()).filter(|lease| *lease != LEASE),
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

/// Returns whether a command that is run again skips what is done.
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
        let by_hand = parse(&command.arguments());
        assert_eq!(meaning(&by_hand), command);
        let in_pod = parse(&command.pod_arguments("/host", "worker1"));
        assert_eq!(meaning(&in_pod), command);
        let global = &in_pod.global;
        assert_eq!(global.root.as_deref(), Some(Path::new("/host")));
        assert_eq!(global.node.as_deref(), Some("worker1"));
        let is_guard = matches!(command, NodeCommand::Guard { .. });
        let json = global.output.as_deref() == Some("json");
        assert_eq!(json, !is_guard, "{command:?}");
        let changes = !is_guard && !matches!(command, NodeCommand::Preview(_));
        assert_eq!(is_repeatable(&in_pod), changes, "{command:?}");
    }
}

fn globals(words: &str) -> Global {
    let words: Vec<String> = words.split(' ').map(str::to_owned).collect();
    parse(&words).global
}

#[test]
fn a_guard_reaches_the_same_node_and_cluster() {
    for words in [
        "explain",
        "explain --kubeconfig /k --context c --root /r --netns n --node w1 --timeout 7s --family 6",
        "explain --cluster-from b --no-api --family 4",
    ] {
        let given = globals(words);
        let time = std::time::Duration::from_secs(90);
        let cli = parse(&guard_arguments(&given, Mode::Nftables, time));
        let guard = NodeCommand::Guard {
            mode: Mode::Nftables,
            awaits: 60,
            lease: Some(90),
        };
        assert_eq!(meaning(&cli), guard);
        let of = |global: &Global| {
            (
                global.cluster_from.clone(),
                global.kubeconfig.clone(),
                global.root.clone(),
                global.context.clone(),
                global.node.clone(),
                global.netns.clone(),
                global.no_api,
                global.timeout,
                crate::cmd::families(global),
            )
        };
        assert_eq!(of(&cli.global), of(&given), "{words}");
    }
}

fn split(line: &str) -> Vec<String> {
    let words = line.strip_prefix("kpx ").unwrap().split(' ');
    words.map(str::to_owned).collect()
}

#[test]
fn the_next_command_is_parsed() {
    let global =
        globals("explain --kubeconfig /k --context c --root /r --netns n --node w1 --no-api");
    for part in ["finish", "resume", "rollback"] {
        let cli = parse(&split(&identity::migrate_command(&global, part)));
        assert_eq!(cli.global.node.as_deref(), Some("w1"));
        assert!(cli.global.no_api);
    }
    for line in [GO_ON, GO_BACK] {
        let cli = parse(&split(line));
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

/// Returns the source files below `folder`.
fn sources(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path());
    let (folders, mut files): (Vec<_>, Vec<_>) = entries.partition(|path| path.is_dir());
    files.retain(|path| path.extension().is_some_and(|of| of == "rs"));
    files.extend(folders.iter().flat_map(|folder| sources(folder)));
    files
}

/// Returns the commands in backticks in the strings of `code`, with values for their placeholders.
fn advice(code: &str) -> Vec<String> {
    let lines = code.lines().map(str::trim_start);
    let lines = lines.filter(|line| !line.starts_with("//"));
    let code: Vec<&str> = lines.map(|line| line.trim_end_matches('\\')).collect();
    let code = code.join(" ");
    let parts = code.split('`').skip(1);
    let commands = parts.filter(|part| part.starts_with("kpx ") && !part.contains("PART"));
    commands.map(filled).collect()
}

/// Replaces the placeholders of `command` by values that the parser takes.
fn filled(command: &str) -> String {
    let mut words: Vec<String> = Vec::new();
    for word in command.split_whitespace() {
        let before = words.last().map_or("", String::as_str);
        let value = match (before, word) {
            ("--mode" | "--to" | "--for" | "--left" | "--as", _) => "nftables",
            ("preflight" | "explain", _) if word.starts_with('{') => "KM01",
            (_, "ID") => "KM01",
            (_, "NAMESPACE/SERVICE") => "a/b",
            _ if word.starts_with('{') => "x",
            _ => word,
        };
        words.push(value.to_owned());
    }
    words.join(" ")
}

#[test]
fn commands_in_advice_are_parsed() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut count = 0;
    for path in sources(&root) {
        for line in advice(&fs::read_to_string(&path).unwrap()) {
            count += 1;
            let words: Vec<&str> = line.split(' ').collect();
            let Err(error) = Cli::try_parse_from(&words) else {
                continue;
            };
            // A command that is only named has no arguments, or asks for help.
            let named = match error.kind() {
                ErrorKind::MissingRequiredArgument
                | ErrorKind::DisplayHelp
                | ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand
                | ErrorKind::MissingSubcommand => true,
                ErrorKind::InvalidValue => error.to_string().contains("a value is required"),
                _ => false,
            };
            assert!(named, "{}: `{line}`: {error}", path.display());
        }
    }
    assert!(count > 40, "{count} commands");
}
