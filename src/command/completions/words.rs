//! The command line that a shell completes, and the kind of its last word.

use clap::{Arg, ArgAction, Command};

use crate::cli::service::is_kind;

/// The kind of the last word.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) enum Wanted {
    /// One of these words, and no other: of the command line itself.
    Words(Vec<(String, String)>),
    /// One of these commands, as an argument: clap's scripts do not know them there.
    Commands(Vec<String>),
    /// A Service, with the kind in front of it if it has one.
    Service,
    /// A source of a trace.
    Source,
    /// A node, or the id of a check.
    NodeOrCheck,
    /// A node.
    Node,
    /// The id of a check, or ids separated by commas.
    Check,
    /// A context of the kubeconfig.
    Context,
    /// A namespace.
    Namespace,
    /// An object of this view of `kpx show`.
    Object(String),
    /// A file, or a text that only the user knows.
    Other,
}

/// The typed part of the command line.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) struct Typed {
    /// The kind of its last word.
    pub(super) wanted: Wanted,
    /// The beginning of that.
    pub(super) begun: String,
    /// The options that select the source, as a command line of their own.
    pub(super) options: Vec<String>,
    /// The value of `--namespace`.
    pub(super) namespace: Option<String>,
}

/// Options that say what to read.
const READ: [&str; 14] = [
    "from",
    "cluster-from",
    "kubeconfig",
    "context",
    "cluster",
    "user",
    "as",
    "as-group",
    "proxy-credentials",
    "no-api",
    "node",
    "root",
    "netns",
    "timeout",
];

impl Typed {
    /// Parses `words`, those after the name of the program, as a command line of `root`.
    pub(super) fn of(root: &Command, words: &[String]) -> Self {
        let words = joined(words);
        let (last, before) = words
            .split_last()
            .map_or((String::new(), &[][..]), |(last, before)| {
                (last.clone(), before)
            });
        let mut command = root;
        let mut positionals: Vec<String> = Vec::new();
        let mut options = Vec::new();
        let mut namespace = None;
        let mut awaited: Option<&Arg> = None;
        let mut is_over = false;
        for word in before {
            if let Some(arg) = awaited.take() {
                note(arg, Some(word), &mut options, &mut namespace);
            } else if word == "--" {
                is_over = true;
            } else if word.starts_with('-') && !is_over {
                let (name, value) = split(word);
                match option(command, root, name) {
                    Some(arg) if takes_value(arg) && value.is_none() => awaited = Some(arg),
                    Some(arg) => note(arg, value, &mut options, &mut namespace),
                    None => {}
                }
            } else if let Some(sub) = command
                .find_subcommand(word)
                .filter(|_| positionals.is_empty())
            {
                command = sub;
            } else {
                positionals.push(word.clone());
            }
        }
        let typed = |wanted, begun: &str| Self {
            wanted,
            begun: begun.to_owned(),
            options: options.clone(),
            namespace: namespace.clone(),
        };
        if let Some(arg) = awaited {
            return typed(of_arg(command, arg, &positionals), &last);
        }
        if last.starts_with('-') && !is_over {
            let (name, value) = split(&last);
            return match (option(command, root, name), value) {
                (Some(arg), Some(value)) => typed(of_arg(command, arg, &positionals), value),
                _ => typed(Wanted::Words(options_of(command, root)), &last),
            };
        }
        typed(of_position(root, command, &positionals), &last)
    }
}

/// Returns `words` with the values after `=` and the ports after `:` joined: some shells split them into words of their own.
fn joined(words: &[String]) -> Vec<String> {
    let mut all: Vec<String> = Vec::new();
    let mut is_value = false;
    for word in words {
        match all.last_mut() {
            Some(option) if word == "=" && option.starts_with("--") => {
                option.push('=');
                is_value = true;
            }
            Some(service) if word == ":" && !service.starts_with('-') => {
                service.push(':');
                is_value = true;
            }
            Some(option) if is_value => {
                option.push_str(word);
                is_value = false;
            }
            _ => all.push(word.clone()),
        }
    }
    all
}

fn split(word: &str) -> (&str, Option<&str>) {
    match word.split_once('=') {
        Some((name, value)) => (name, Some(value)),
        None => (word, None),
    }
}

/// Returns the option `name`, as it is typed, of `command` or of every command.
fn option<'c>(command: &'c Command, root: &'c Command, name: &str) -> Option<&'c Arg> {
    let is_it = |arg: &&Arg| match (name.strip_prefix("--"), name.strip_prefix('-')) {
        (Some(long), _) => arg.get_long() == Some(long),
        (None, Some(short)) => arg
            .get_short()
            .is_some_and(|letter| short == letter.to_string()),
        _ => false,
    };
    let global = root.get_arguments().filter(|arg| arg.is_global_set());
    command.get_arguments().chain(global).find(is_it)
}

fn takes_value(arg: &Arg) -> bool {
    matches!(arg.get_action(), ArgAction::Set | ArgAction::Append)
        && arg
            .get_num_args()
            .is_none_or(|count| count.min_values() > 0)
}

/// Keeps `arg` if it selects the source.
fn note(arg: &Arg, value: Option<&str>, options: &mut Vec<String>, namespace: &mut Option<String>) {
    let long = arg.get_long().unwrap_or_default();
    if long == "namespace" {
        *namespace = value.map(str::to_owned);
    }
    if READ.contains(&long) {
        options.push(match value {
            Some(value) => format!("--{long}={}", home(value)),
            None => format!("--{long}"),
        });
    }
}

/// Returns `value` with the user's folder for `~`, which a shell has not replaced yet.
fn home(value: &str) -> String {
    let home = crate::command::shared::session::home();
    match (value.strip_prefix("~/"), home) {
        (Some(rest), Some(home)) => home.join(rest).display().to_string(),
        _ => value.to_owned(),
    }
}

/// Returns the kind of value of the option `arg`.
fn of_arg(command: &Command, arg: &Arg, positionals: &[String]) -> Wanted {
    match arg.get_long() {
        Some("source") => Wanted::Source,
        Some("node") => Wanted::Node,
        Some("namespace") => Wanted::Namespace,
        Some("only" | "skip") => Wanted::Check,
        Some("context") => Wanted::Context,
        Some("trace") => Wanted::Service,
        None if is_target(command, arg, positionals) => Wanted::Service,
        _ => match values(arg) {
            words if words.is_empty() => Wanted::Other,
            words => Wanted::Words(words),
        },
    }
}

/// Returns whether the positional `arg` names a Service.
fn is_target(command: &Command, arg: &Arg, positionals: &[String]) -> bool {
    match arg.get_id().as_str() {
        "target" => true,
        // The name behind the word `service`.
        "second" => positionals.last().is_some_and(|word| is_kind(word)),
        "service" | "name" => matches!(command.get_name(), "top" | "resolve"),
        _ => false,
    }
}

/// Returns what the positional behind `positionals` is.
fn of_position(root: &Command, command: &Command, positionals: &[String]) -> Wanted {
    let below = subcommands(command);
    if !below.is_empty() && positionals.is_empty() {
        return Wanted::Words(below);
    }
    let all: Vec<&Arg> = command.get_positionals().collect();
    let arg = all
        .get(positionals.len())
        .or(all.last().filter(|arg| is_repeated(arg)));
    let Some(arg) = arg else {
        return Wanted::Other;
    };
    match (command.get_name(), positionals) {
        ("doctor", _) => Wanted::NodeOrCheck,
        ("explain", _) => Wanted::Check,
        ("man", []) => Wanted::Commands(names(root)),
        ("help", words) => {
            let of = words
                .iter()
                .try_fold(root, |of, word| of.find_subcommand(word));
            Wanted::Commands(of.map_or_else(Vec::new, names))
        }
        ("show", [view]) => Wanted::Object(view.clone()),
        ("show", [_, kind]) if is_kind(kind) => Wanted::Service,
        _ => of_arg(command, arg, positionals),
    }
}

/// Returns the commands below `command`, with their descriptions.
fn subcommands(command: &Command) -> Vec<(String, String)> {
    let shown = command.get_subcommands().filter(|sub| !sub.is_hide_set());
    shown
        .map(|sub| (sub.get_name().to_owned(), about(sub.get_about())))
        .collect()
}

fn names(command: &Command) -> Vec<String> {
    let all = subcommands(command).into_iter();
    all.map(|(name, _)| name).collect()
}

fn is_repeated(arg: &Arg) -> bool {
    matches!(arg.get_action(), ArgAction::Append)
        || arg
            .get_num_args()
            .is_some_and(|count| count.max_values() > 1)
}

fn values(arg: &Arg) -> Vec<(String, String)> {
    let values = arg.get_possible_values();
    let shown = values.iter().filter(|value| !value.is_hide_set());
    shown
        .map(|value| (value.get_name().to_owned(), about(value.get_help())))
        .collect()
}

fn options_of(command: &Command, root: &Command) -> Vec<(String, String)> {
    let global = root.get_arguments().filter(|arg| arg.is_global_set());
    let all = command.get_arguments().chain(global);
    let shown = all.filter(|arg| !arg.is_hide_set());
    let mut named: Vec<(String, String)> = shown
        .filter_map(|arg| Some((format!("--{}", arg.get_long()?), about(arg.get_help()))))
        .collect();
    named.sort();
    named.dedup();
    named
}

/// Returns the first line of a help text.
fn about(text: Option<&clap::builder::StyledStr>) -> String {
    let text = text.map(ToString::to_string).unwrap_or_default();
    text.lines().next().unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli;

    #[test]
    fn the_last_word_is_what_the_command_line_says() {
        let mut root = cli::command();
        root.build();
        let of = |line: &str| {
            let words: Vec<String> = line.split(' ').map(str::to_owned).collect();
            Typed::of(&root, &words)
        };
        for (line, wanted, begun) in [
            ("why ca", Wanted::Service, "ca"),
            ("why svc ca", Wanted::Service, "ca"),
            ("trace -n shop ca", Wanted::Service, "ca"),
            ("trace shop/cart --source ", Wanted::Source, ""),
            ("trace shop/cart --source=h", Wanted::Source, "h"),
            ("trace shop/cart --source = h", Wanted::Source, "h"),
            ("--node n", Wanted::Node, "n"),
            (
                "show chains KUBE-",
                Wanted::Object("chains".to_owned()),
                "KUBE-",
            ),
            ("show svc ca", Wanted::Object("svc".to_owned()), "ca"),
            ("doctor w", Wanted::NodeOrCheck, "w"),
            ("why -n s", Wanted::Namespace, "s"),
            ("report --trace s", Wanted::Service, "s"),
            ("why shop/cart : ht", Wanted::Service, "shop/cart:ht"),
            ("doctor --only IR03,IR", Wanted::Check, "IR03,IR"),
            ("explain ir0", Wanted::Check, "ir0"),
            ("--context p", Wanted::Context, "p"),
            ("--from x", Wanted::Other, "x"),
        ] {
            let typed = of(line);
            assert_eq!(
                (typed.wanted, typed.begun.as_str()),
                (wanted, begun),
                "{line}"
            );
        }
        let Wanted::Words(words) = of("sc").wanted else {
            panic!("no commands");
        };
        assert!(
            words
                .iter()
                .all(|(word, _)| word != "screen" && word != "pod")
        );
        for (line, has) in [
            ("help re", "reconcile"),
            ("help migrate ", "status"),
            ("man ", "why"),
        ] {
            let Wanted::Commands(words) = of(line).wanted else {
                panic!("{line}");
            };
            assert!(words.iter().any(|word| word == has), "{line}");
        }
        let typed = of("--from a.tar why -n shop c");
        assert_eq!(typed.options, ["--from=a.tar"]);
        assert_eq!(typed.namespace.as_deref(), Some("shop"));
    }
}
