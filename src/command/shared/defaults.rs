//! Defaults of options from the user's configuration file.

use std::collections::BTreeMap;
use std::env;
use std::ffi::OsString;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use clap::parser::ValueSource;
use clap::{Arg, ArgAction, ArgMatches, Command};
use serde_json::Value;

use super::failure::Failure;
use super::session::home;
use super::unfit::OF_MACHINE;
use crate::cli;
use crate::cli::parser::prints_reports;
use crate::view::did_you_mean::{meant, nearest};
use kpx_judge::check::ignore::Entry;

/// The variable that names the file; empty for none.
const VARIABLE: &str = "KPX_CONFIG";

/// Returns the command line `words` with the options of the configuration file that neither it nor the environment has. There
/// need be no file, unless the environment names it. Fails with exit status 2 if the file cannot be used.
pub(in crate::command) fn completed(words: Vec<OsString>) -> Result<Vec<OsString>, Failure> {
    let (path, is_named) = match env::var_os(VARIABLE) {
        Some(path) => (PathBuf::from(path), true),
        None => (usual_path().unwrap_or_default(), false),
    };
    if path.as_os_str().is_empty() {
        return Ok(words);
    }
    match std::fs::read_to_string(&path) {
        Ok(text) => match with_options(words.clone(), &text) {
            // They say how to correct it.
            Err(_) if only_tells(&words) => Ok(words),
            done => done.map_err(|why| of_file(&path, &why)),
        },
        // The file of another user, as with `sudo -u`, is not read.
        Err(error)
            if !is_named
                && matches!(
                    error.kind(),
                    ErrorKind::NotFound | ErrorKind::PermissionDenied
                ) =>
        {
            Ok(words)
        }
        Err(error) => Err(of_file(&path, &error.into())),
    }
}

/// Returns whether the command line `words` needs no node, such as `help`.
fn only_tells(words: &[OsString]) -> bool {
    match cli::command().try_get_matches_from(words) {
        Ok(matches) => matches!(
            matches.subcommand_name(),
            Some("completions" | "complete" | "explain" | "help" | "man" | "version")
        ),
        Err(answer) => !answer.use_stderr(),
    }
}

/// Returns `kpx/config.yaml` of the user's folder for configuration.
fn usual_path() -> Option<PathBuf> {
    let folder = env::var_os("XDG_CONFIG_HOME").filter(|folder| !folder.is_empty());
    let folder = folder.map(PathBuf::from);
    let folder = folder.or_else(|| Some(home()?.join(".config")))?;
    Some(folder.join("kpx/config.yaml"))
}

fn of_file(path: &Path, why: &Failure) -> Failure {
    Failure::usage(format_args!("{}: {why}", path.display())).with_hint(
        "correct it, or set KPX_CONFIG= to do without; `kpx explain config` describes it",
    )
}

/// Returns `words` with those options of `text`, a YAML mapping, that neither they nor the environment set.
fn with_options(mut words: Vec<OsString>, text: &str) -> Result<Vec<OsString>, Failure> {
    let all: Option<BTreeMap<String, Value>> = serde_yaml::from_str(text)?;
    let root = cli::command();
    let mut of_all = Vec::new();
    let mut of_command = BTreeMap::new();
    for (key, value) in all.unwrap_or_default() {
        match (root.find_subcommand(&key), value) {
            (None, value) if key == IGNORE => of_all.push(ignored(&value)?),
            (Some(command), Value::Object(options)) => {
                let options = options.into_iter();
                let options = options.map(|(key, value)| option(command, &key, &value));
                let options: Vec<_> = options.collect::<Result<_, Failure>>()?;
                of_command.insert(key, options);
            }
            (Some(_), _) => {
                return Err(Failure::usage(format_args!(
                    "{key} is a command: its options stand below it, indented, each as NAME: VALUE"
                )));
            }
            (None, value) => of_all.push(option(&root, &key, &value)?),
        }
    }
    let parsed = |words: &[OsString]| root.clone().try_get_matches_from(words);
    // Without a command, they are those of the screen.
    let parsed = parsed(&words).or_else(|_| parsed(&[&words[..], &["screen".into()]].concat()));
    let Ok(matches) = parsed else {
        // Their errors are reported when they run.
        return Ok(words);
    };
    if let Some((name, matches)) = matches.subcommand() {
        let options = of_command.remove(name).unwrap_or_default();
        let end = words.iter().position(|word| word == "--");
        let end = end.unwrap_or(words.len());
        words.splice(end..end, open(options, matches));
    }
    let prints_none = matches
        .subcommand_name()
        .is_some_and(|command| !prints_reports(command));
    of_all.retain(|argument| argument.name != "output" || !prints_none);
    // A default for a machine says nothing about a bundle.
    if is_given(&matches, "from") {
        of_all.retain(|argument| !OF_MACHINE.contains(&argument.name.as_str()));
    }
    words.splice(1..1, open(of_all, &matches));
    let checked = root.try_get_matches_from(&words);
    let wrong = checked.err();
    // Without a command, the screen opens.
    let wrong = wrong.filter(|wrong| wrong.kind() != clap::error::ErrorKind::MissingSubcommand);
    wrong.map_or(Ok(()), |wrong| {
        let text = wrong.to_string();
        let first = text.lines().next().unwrap_or_default();
        let first = first.strip_prefix("error: ").unwrap_or(first);
        let values = text.lines().find(|line| line.contains("[possible values:"));
        let values = values.map_or_else(String::new, |line| format!(" {}", line.trim()));
        Err(Failure::usage(format!("{first}{values}")))
    })?;
    Ok(words)
}

/// The key of findings to ignore, and the hidden option that it sets.
const IGNORE: &str = "ignore";

/// Returns the option that sets the findings to ignore: a list of checks, or of entries as in an ignore file.
fn ignored(value: &Value) -> Result<Setting, Failure> {
    let wrong = |why: String| Failure::usage(format_args!("{IGNORE}: {why}"));
    let Value::Array(all) = value else {
        return Err(wrong(format!(
            "expected a list of checks, such as [DP01], found {value}"
        )));
    };
    let words = all.iter().map(|entry| {
        let text = match entry {
            Value::String(text) => text.clone(),
            entry => entry.to_string(),
        };
        Entry::of_settings(&text).map_err(wrong)?;
        Ok(format!("--{IGNORE}={text}").into())
    });
    Ok(Setting {
        id: IGNORE.to_owned(),
        name: IGNORE.to_owned(),
        words: words.collect::<Result<_, Failure>>()?,
    })
}

/// An option, and the words that set it.
struct Setting {
    id: String,
    name: String,
    words: Vec<OsString>,
}

/// Returns the words of the `options` that `matches` do not have.
fn open(options: Vec<Setting>, matches: &ArgMatches) -> Vec<OsString> {
    let open = options.into_iter();
    let open = open.filter(|setting| !is_given(matches, &setting.id));
    open.flat_map(|setting| setting.words).collect()
}

/// Returns whether the command line or the environment has the option `id`.
fn is_given(matches: &ArgMatches, id: &str) -> bool {
    let source = matches.value_source(id);
    source.is_some_and(|source| source != ValueSource::DefaultValue)
}

/// Returns the option `key` of `command` with `value`. Those that consent to a change have no variable, and no default.
fn option(command: &Command, key: &str, value: &Value) -> Result<Setting, Failure> {
    let is_default =
        |arg: &&Arg| arg.get_env().is_some() && !matches!(arg.get_action(), ArgAction::Count);
    let arg = command
        .get_arguments()
        .find(|arg| arg.get_long() == Some(key));
    let Some(arg) = arg else {
        let names = command.get_arguments().filter(is_default);
        let names = names.filter_map(|arg| Some(arg.get_long()?.to_owned()));
        let unknown = Failure::usage(format_args!(
            "{key:?} is no option of {}",
            command.get_name()
        ));
        return Err(match meant(&nearest(key, names)) {
            Some(near) => Failure::usage(format_args!("{unknown}; {near}")),
            None => unknown,
        });
    };
    if !is_default(&arg) {
        return Err(Failure::usage(format_args!(
            "--{key} has no default: it is typed each time"
        )));
    }
    let is_switch = matches!(arg.get_action(), ArgAction::SetTrue);
    let wrong = || {
        let wanted = if is_switch {
            "true or false"
        } else {
            "a text, a number, or a list of them"
        };
        Failure::usage(format_args!("{key}: expected {wanted}, found {value}"))
    };
    let text = |value: &Value| match value {
        Value::String(text) => Ok(text.clone()),
        Value::Number(number) => Ok(number.to_string()),
        _ => Err(wrong()),
    };
    let words = match value {
        Value::Bool(set) if is_switch => set.then(|| format!("--{key}")).into_iter().collect(),
        _ if is_switch => return Err(wrong()),
        Value::Array(all) => {
            let all = all
                .iter()
                .map(|value| Ok(format!("--{key}={}", text(value)?)));
            all.collect::<Result<_, Failure>>()?
        }
        value => vec![format!("--{key}={}", text(value)?)],
    };
    Ok(Setting {
        id: arg.get_id().to_string(),
        name: key.to_owned(),
        words: words.iter().map(OsString::from).collect(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn completed(words: &str, text: &str) -> Result<String, String> {
        let words = words.split(' ').map(OsString::from).collect();
        match with_options(words, text) {
            Ok(words) => Ok(words.join(&OsString::from(" ")).into_string().unwrap()),
            Err(failure) => Err(failure.to_string()),
        }
    }

    #[test]
    fn what_the_command_line_leaves_open_comes_from_the_file() {
        let text = "context: prod\ntimeout: 20s\nno-api: true\nascii: false\n\
                    doctor: {skip: [DP01, DP02], fail-on: error}\ntrace: {output: picture}\n";
        for (words, all) in [
            (
                "kpx doctor",
                "kpx --context=prod --no-api --timeout=20s doctor --skip=DP01 --skip=DP02 --fail-on=error",
            ),
            (
                "kpx doctor --context test --fail-on warning --skip=",
                "kpx --no-api --timeout=20s doctor --context test --fail-on warning --skip=",
            ),
            (
                "kpx trace --no-api -- 10.0.0.1:80",
                "kpx --context=prod --timeout=20s trace --no-api --output=picture -- 10.0.0.1:80",
            ),
            ("kpx", "kpx --context=prod --no-api --timeout=20s"),
            ("kpx nonsense", "kpx nonsense"),
        ] {
            assert_eq!(completed(words, text), Ok(all.to_owned()));
        }
        assert_eq!(
            completed("kpx version", "# nothing\n"),
            Ok("kpx version".to_owned())
        );
    }

    #[test]
    fn findings_to_ignore_are_a_list() {
        let text = "ignore: [DP01, {check: sy01, subject: net.*}]\n";
        assert_eq!(
            completed("kpx doctor", text),
            Ok(
                "kpx --ignore=DP01 --ignore={\"check\":\"sy01\",\"subject\":\"net.*\"} doctor"
                    .to_owned()
            )
        );
    }

    #[test]
    fn a_key_that_sets_nothing_is_an_error() {
        for (text, why) in [
            ("ignore: DP01", "ignore: expected a list of checks"),
            (
                "ignore: [DP1]",
                "ignore: no check has the id or name \"DP1\"",
            ),
            (
                "colour: never",
                "\"colour\" is no option of kpx; did you mean color?",
            ),
            (
                "contxt: prod",
                "\"contxt\" is no option of kpx; did you mean context?",
            ),
            ("doctor: {fail-onn: error}", "did you mean fail-on?"),
            (
                "reconcile: {apply: true}",
                "--apply has no default: it is typed each time",
            ),
            (
                "no-api: perhaps",
                "no-api: expected true or false, found \"perhaps\"",
            ),
            ("context: {a: b}", "context: expected a text"),
            (
                "doctor: now",
                "doctor is a command: its options stand below it",
            ),
            ("- context", "expected"),
        ] {
            let failure = completed("kpx version", text).unwrap_err();
            assert!(failure.contains(why), "{text}: {failure}");
        }
    }
}
