//! The complaints of the parser in the words of a user: the variable that set a value, and the valid values of an
//! argument.

use std::env;
use std::ffi::OsString;

use clap::builder::{PossibleValue, StyledStr};
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Arg, Command};

use crate::view::did_you_mean::nearest;

/// Returns `error`, the parser's answer to the command line `words` of `root`, as it is printed.
pub(super) fn clear(mut error: clap::Error, words: &[OsString], mut root: Command) -> clap::Error {
    if !error.use_stderr() {
        return error;
    }
    // Completes the names of subcommands in their usage.
    root.build();
    let command = named(&root, words);
    match error.kind() {
        ErrorKind::UnknownArgument => {
            drop_escapes(&mut error);
            drop_far_option(&mut error, command);
            if let Some(ContextValue::String(typed)) = error.get(ContextKind::InvalidArg)
                && matches!(typed.as_str(), "-n" | "--namespace")
            {
                let tip = "this command is about the whole node; `kpx why -n NAMESPACE NAME` is about one Service";
                add_tip(&mut error, tip.to_owned());
            }
        }
        ErrorKind::InvalidSubcommand => lead(&mut error),
        ErrorKind::InvalidValue => drop_far(&mut error),
        ErrorKind::MissingRequiredArgument => offer(&mut error, command),
        _ => {}
    }
    for arg in command.get_arguments().filter(|arg| is_set(arg, words)) {
        let (Some(long), Some(variable)) = (arg.get_long(), arg.get_env()) else {
            continue;
        };
        let option = format!("--{long}");
        let is_it = |text: &str| text.split([' ', '=']).next() == Some(&option);
        for kind in [ContextKind::InvalidArg, ContextKind::PriorArg] {
            if let Some(ContextValue::String(shown)) = error.get(kind)
                && is_it(shown)
            {
                let text = format!("{} ({option})", variable.to_string_lossy());
                error.insert(kind, ContextValue::String(text));
            }
        }
        if let Some(ContextValue::StyledStr(usage)) = error.get(ContextKind::Usage)
            && usage.to_string().split_whitespace().any(is_it)
        {
            let usage = command.clone().render_usage();
            error.insert(ContextKind::Usage, ContextValue::StyledStr(usage));
        }
    }
    error
}

/// Returns the variables that set values of `words`' command which `text` quotes.
pub(crate) fn variables_in(text: &str, words: &[OsString], root: &Command) -> Vec<String> {
    /// A shorter value may occur in a text by chance.
    const LEAST: usize = 3;
    let command = named(root, words);
    let global = root.get_arguments().filter(|arg| arg.is_global_set());
    let mut names: Vec<String> = Vec::new();
    for arg in command.get_arguments().chain(global) {
        let Some(name) = arg.get_env().filter(|_| is_set(arg, words)) else {
            continue;
        };
        let value = env::var_os(name).unwrap_or_default();
        let value = value.to_string_lossy();
        let name = name.to_string_lossy().into_owned();
        if value.len() >= LEAST && text.contains(&*value) && !names.contains(&name) {
            names.push(name);
        }
    }
    names
}

/// Returns the command that `words` name.
fn named<'c>(root: &'c Command, words: &[OsString]) -> &'c Command {
    let words = words.iter().skip(1);
    words.fold(root, |command, word| {
        command.find_subcommand(word).unwrap_or(command)
    })
}

/// Returns whether a variable sets `arg`, and `words` do not.
fn is_set(arg: &Arg, words: &[OsString]) -> bool {
    let long = arg.get_long().map(|long| format!("--{long}"));
    let short = arg.get_short().map(|short| format!("-{short}"));
    let is_it = |word: &OsString| {
        let word = word.to_string_lossy();
        long.as_deref() == word.split('=').next()
            || short.as_ref().is_some_and(|short| word.starts_with(short))
    };
    let is_typed = words.iter().any(is_it);
    !is_typed
        && arg
            .get_env()
            .is_some_and(|name| env::var_os(name).is_some())
}

/// Drops the advice to write `-- -w`, which users hardly ever mean.
fn drop_escapes(error: &mut clap::Error) {
    if let Some(ContextValue::StyledStrs(tips)) = error.remove(ContextKind::Suggested) {
        let kept = tips.into_iter();
        let kept: Vec<StyledStr> = kept
            .filter(|tip| !tip.to_string().contains(" as a value, use "))
            .collect();
        if !kept.is_empty() {
            error.insert(ContextKind::Suggested, ContextValue::StyledStrs(kept));
        }
    }
}

/// Words of other tools, each with the command of kpx for it.
const OF_OTHERS: [(&[&str], &str); 6] = [
    (
        &["describe", "get", "list", "ls", "services", "svc"],
        "show services",
    ),
    (&["check", "health", "status"], "doctor"),
    (&["clean", "cleanup", "fix", "repair", "sync"], "reconcile"),
    (&["debug"], "why"),
    (&["dump", "record"], "snapshot"),
    (&["rollback", "switch"], "migrate"),
];

/// Adds the command that the user may mean, or how to list all.
fn lead(error: &mut clap::Error) {
    let Some(ContextValue::String(typed)) = error.get(ContextKind::InvalidSubcommand) else {
        return;
    };
    let mut others = OF_OTHERS.iter();
    let meant = others.find(|(words, _)| words.contains(&typed.as_str()));
    let tip = match meant {
        Some((_, command)) => format!("`kpx {command}` does this; `kpx help` lists the commands"),
        None => "`kpx help` lists the commands".to_owned(),
    };
    add_tip(error, tip);
}

/// Adds `tip` to those of the error.
fn add_tip(error: &mut clap::Error, tip: String) {
    let mut tips = match error.remove(ContextKind::Suggested) {
        Some(ContextValue::StyledStrs(tips)) => tips,
        _ => Vec::new(),
    };
    tips.push(tip.into());
    error.insert(ContextKind::Suggested, ContextValue::StyledStrs(tips));
}

/// Drops the suggestion of an option that is not similar, with its usage: the parser takes `--file` for `--family`.
fn drop_far_option(error: &mut clap::Error, command: &Command) {
    if let (Some(ContextValue::String(typed)), Some(ContextValue::String(meant))) = (
        error.get(ContextKind::InvalidArg),
        error.get(ContextKind::SuggestedArg),
    ) && nearest(typed, [meant.clone()]).is_empty()
    {
        error.remove(ContextKind::SuggestedArg);
        let usage = command.clone().render_usage();
        error.insert(ContextKind::Usage, ContextValue::StyledStr(usage));
    }
}

/// Drops a suggestion that is not similar: the parser takes `zsh` for `tcsh`.
fn drop_far(error: &mut clap::Error) {
    if let (Some(ContextValue::String(typed)), Some(ContextValue::String(meant))) = (
        error.get(ContextKind::InvalidValue),
        error.get(ContextKind::SuggestedValue),
    ) && nearest(typed, [meant.clone()]).is_empty()
    {
        error.remove(ContextKind::SuggestedValue);
    }
}

/// Adds what the missing arguments may be.
fn offer(error: &mut clap::Error, command: &Command) {
    let Some(ContextValue::Strings(missing)) = error.get(ContextKind::InvalidArg) else {
        return;
    };
    let of = |arg: &Arg| {
        let value = arg.get_value_names()?.first()?;
        let shown = match arg.get_long() {
            Some(long) => format!("--{long} <{value}>"),
            None => format!("<{value}>"),
        };
        let values = arg.get_possible_values();
        let values: Vec<&str> = values
            .iter()
            .filter(|value| !value.is_hide_set())
            .map(PossibleValue::get_name)
            .collect();
        let is_missing = missing.contains(&shown) && !values.is_empty();
        is_missing.then(|| format!("{value} is one of {}", values.join(", ")).into())
    };
    let is_target = missing.iter().any(|missing| missing == "<TARGET>");
    let mut offers: Vec<StyledStr> = command.get_arguments().filter_map(of).collect();
    if is_target {
        let tip = "TARGET is a Service, such as shop/cart, or an IP:PORT; `kpx show services` lists Services";
        offers.push(tip.into());
    }
    if !offers.is_empty() {
        error.insert(ContextKind::Suggested, ContextValue::StyledStrs(offers));
    }
}
