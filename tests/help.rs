//! Help is short, complete and consistent.

use clap::{Arg, ArgAction, Command};
use kpx::cli;

use crate::support::{kpx, parse};

/// Every command with its words: `["migrate", "status"]`.
fn commands() -> Vec<(Vec<String>, Command)> {
    fn walk(command: &Command, words: &[String], all: &mut Vec<(Vec<String>, Command)>) {
        all.push((words.to_vec(), command.clone()));
        for sub in command.get_subcommands().filter(|sub| !sub.is_hide_set()) {
            let words = [words, &[sub.get_name().to_owned()]].concat();
            walk(sub, &words, all);
        }
    }
    let mut root = cli::command();
    root.build();
    let mut all = Vec::new();
    walk(&root, &[], &mut all);
    all
}

#[test]
fn the_command_line_is_sound() {
    cli::command().debug_assert();
}

#[test]
fn a_plugin_of_kubectl_shows_how_kubectl_runs_it() {
    for (words, command) in commands() {
        if words == ["help"] {
            continue;
        }
        for (option, examples) in [
            ("-h", command.get_after_help()),
            ("--help", command.get_after_long_help()),
        ] {
            // The short help of kpx itself is the list of commands.
            if words.is_empty() && option == "-h" {
                continue;
            }
            let examples = examples.or(command.get_after_help()).unwrap();
            let lines = examples.to_string();
            let lines: Vec<_> = lines
                .lines()
                .filter_map(|line| line.strip_prefix("  kpx "))
                .collect();
            assert!(!lines.is_empty(), "{words:?}");
            let of = |program: &str| {
                let mut line = vec![program];
                line.extend(words.iter().map(String::as_str));
                line.push(option);
                parse(&line).unwrap_err().to_string()
            };
            let name = |program: &str| [&[program.to_owned()], &words[..]].concat().join(" ");
            let help = of("/usr/bin/kubectl-kpx");
            let usage = format!("Usage: {}", name("kubectl kpx"));
            assert!(help.contains(&usage), "{help}");
            for line in lines {
                assert!(
                    help.contains(&format!("\n  kubectl kpx {line}\n")),
                    "{line}: {help}"
                );
            }
            assert!(!help.contains("\n  kpx "), "{help}");
            let help = of("kpx");
            assert!(help.contains(&format!("Usage: {}", name("kpx"))), "{help}");
        }
    }
    let wrong = parse(&["kubectl-kpx", "doctor", "--nosuch"]).unwrap_err();
    let wrong = wrong.to_string();
    assert!(wrong.contains("Usage: kubectl kpx doctor"), "{wrong}");
}

#[test]
fn every_command_has_examples_of_at_most_80_columns() {
    for (words, command) in commands() {
        let help = command.get_after_help().or(command.get_after_long_help());
        let help = help.map(ToString::to_string).unwrap_or_default();
        assert!(help.contains("Examples:"), "{words:?} has no examples");
        for line in help.lines() {
            assert!(line.chars().count() <= 80, "{words:?}: {line}");
        }
    }
}

/// The first words of help lines.
const VERBS: &[&str] = &[
    "Accept",
    "Add",
    "Apply",
    "Check",
    "Compare",
    "Continue",
    "Copy",
    "Delete",
    "Do",
    "Drain",
    "Drop",
    "Evict",
    "Explain",
    "Find",
    "Handle",
    "Ignore",
    "Impersonate",
    "Inspect",
    "Limit",
    "List",
    "Load",
    "Name",
    "Open",
    "Print",
    "Query",
    "Re-check",
    "Read",
    "Record",
    "Remove",
    "Repair",
    "Replace",
    "Resolve",
    "Roll",
    "Run",
    "Serve",
    "Set",
    "Show",
    "Skip",
    "Sort",
    "Stop",
    "Suppress",
    "Switch",
    "Trace",
    "Use",
    "Wait",
    "Watch",
    "Work",
    "Write",
    "Change",
];

fn is_help_line(line: &str) -> bool {
    let verb = line.split([' ', ',']).next().unwrap_or_default();
    line.chars().count() <= 60 && !line.ends_with('.') && VERBS.contains(&verb)
}

#[test]
fn a_help_line_begins_with_a_verb_and_fits_60_columns() {
    for (words, command) in commands() {
        let about = command.get_about().unwrap().to_string();
        assert!(is_help_line(&about), "{words:?}: {about}");
        for arg in command.get_arguments() {
            let help = arg.get_help().map(ToString::to_string).unwrap_or_default();
            assert!(is_help_line(&help), "{words:?} {}: {help}", arg.get_id());
        }
    }
}

#[test]
fn short_help_fits_a_screen() {
    for (words, command) in commands() {
        let help = command.term_width(80).render_help().to_string();
        let words = words.join(" ");
        let lines = help.trim_end().lines().count();
        assert!(lines <= 24, "kpx {words} -h has {lines} lines:\n{help}");
        for line in help.lines() {
            assert!(line.chars().count() <= 80, "kpx {words} -h: {line}");
        }
    }
}

#[tokio::test]
async fn kpx_alone_lists_its_commands_on_one_screen() {
    let ran = kpx(&[]).await;
    assert_eq!(ran.code, 2, "{ran}");
    assert!(ran.err.lines().count() <= 22, "{ran}");
    assert!(
        ran.err.contains("Diagnose:") && !ran.err.contains("--kubeconfig"),
        "{ran}"
    );
}

#[test]
fn long_help_describes_every_global_option_and_short_help_leads_to_it() {
    for (words, mut command) in commands() {
        let globals: Vec<String> = command
            .get_arguments()
            .filter(|arg| arg.is_global_set() && !arg.is_hide_set())
            .filter_map(|arg| arg.get_long().map(|long| format!("--{long}")))
            .collect();
        assert!(globals.len() >= 14, "{words:?}: {globals:?}");
        let (short, long) = (
            command.render_help().to_string(),
            command.render_long_help().to_string(),
        );
        assert!(short.contains("--help"), "{words:?}:\n{short}");
        for global in globals {
            assert!(long.contains(&global), "{words:?} {global}:\n{long}");
        }
    }
}

#[test]
fn each_command_offers_its_own_formats() {
    let formats = |name: &str| -> Vec<String> {
        let all = commands();
        let (_, command) = all
            .iter()
            .find(|(words, _)| words.join(" ") == name)
            .unwrap();
        let output = command
            .get_arguments()
            .find(|arg| arg.get_id() == "output")
            .unwrap();
        let values = output.get_possible_values();
        values
            .iter()
            .map(|value| value.get_name().to_owned())
            .collect()
    };
    let common = ["human", "wide", "json", "yaml"];
    assert_eq!(formats("diff"), common);
    assert_eq!(formats("migrate status"), common);
    assert_eq!(
        formats("doctor"),
        [&common[..], &["short", "junit", "prom", "npd"]].concat()
    );
    assert_eq!(
        formats("trace"),
        [&common[..], &["picture", "svg", "mermaid", "dot"]].concat()
    );
    assert_eq!(formats("snapshot"), common);
    assert_eq!(formats("report"), ["html"]);
    assert!(formats("man").is_empty());
}

/// Options that consent to a change, or make it larger.
const CONSENT: &[&str] = &[
    "accept_loss",
    "again",
    "all_nodes",
    "apply",
    "delete_bare_pods",
    "delete_emptydir_data",
    "detach",
    "force",
    "load",
    "no_drain",
    "persist",
    "probe",
    "staged",
    "until_restart",
    "yes",
];

#[test]
fn consent_has_no_environment_variable() {
    let mut seen = Vec::new();
    for (words, command) in commands() {
        for arg in command.get_arguments() {
            let id = arg.get_id().as_str();
            let goes_on =
                words.first().is_some_and(|word| word == "migrate") && ["skip", "to"].contains(&id);
            if CONSENT.contains(&id) || goes_on {
                assert_eq!(arg.get_env(), None, "{words:?} --{id}");
                seen.push(id.to_owned());
            }
        }
    }
    for id in CONSENT {
        assert!(seen.iter().any(|seen| seen == id), "no command has {id}");
    }
}

#[test]
fn a_variable_has_the_name_of_its_option_and_is_in_its_long_help() {
    for (words, command) in commands() {
        for arg in command.get_arguments() {
            let Some(variable) = arg.get_env() else {
                continue;
            };
            let variable = variable.to_str().unwrap();
            let long = arg.get_long().unwrap_or_default();
            let wanted = format!("KPX_{}", long.to_uppercase().replace('-', "_"));
            assert_eq!(variable, wanted, "{words:?}");
            let help = arg.get_long_help().unwrap().to_string();
            assert!(
                help.contains(&format!("[env: {variable}]")),
                "{words:?}: {help}"
            );
        }
    }
}

#[test]
fn a_switch_reads_its_variable_as_people_write_it() {
    let is_switch =
        |arg: &Arg| matches!(arg.get_action(), ArgAction::SetTrue) && arg.get_env().is_some();
    let mut seen = 0;
    for (words, command) in commands() {
        for arg in command.get_arguments().filter(|arg| is_switch(arg)) {
            seen += 1;
            let parser = arg.get_value_parser();
            let is_boolish = format!("{parser:?}").contains("Boolish")
                || parser.type_id() == clap::builder::ValueParser::bool().type_id();
            assert!(is_boolish, "{words:?} {}: {parser:?}", arg.get_id());
        }
    }
    assert!(seen > 10, "{seen}");
}

#[tokio::test(flavor = "current_thread")]
async fn help_and_version_are_commands() {
    let by_flag = kpx(&["migrate", "status", "--help"]).await;
    let by_command = kpx(&["help", "migrate", "status"]).await;
    assert_eq!(by_flag.out, by_command.out);
    assert_eq!(by_command.code, 0);
    assert_eq!(kpx(&["help"]).await.out, kpx(&["--help"]).await.out);
    let (version, all) = (kpx(&["--version"]).await.out, kpx(&["version"]).await.out);
    let releases = all.strip_prefix(&version).unwrap();
    assert!(releases.contains("kube-proxy 1."), "{all}");
    let ran = kpx(&["help", "no-such"]).await;
    assert_eq!(ran.code, 2, "{ran}");
    assert!(ran.err.contains("kpx has no command \"no-such\""), "{ran}");
}
