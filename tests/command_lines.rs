//! kpx understands every command line that it prints as advice, or that its documents show.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use clap::error::ErrorKind;

use crate::support::{parse, root};

/// Words that stand for values, with a value for each.
const PLACEHOLDERS: &[(&str, &str)] = &[
    ("BUNDLE", "node1.tar.gz"),
    ("COMMAND", "doctor"),
    ("DIR", "/mnt"),
    ("DURATION", "10s"),
    ("CLASS", "pod-to-cluster-ip"),
    ("FILE", "file"),
    ("ID", "MX01"),
    ("IDS", "MX01,DP01"),
    ("IMAGE", "registry.example/kpx:1"),
    ("IP:PORT", "10.96.0.10:53"),
    ("MODE", "nftables"),
    ("NAME", "web"),
    ("NAMESPACE", "demo"),
    ("NODE", "worker1"),
    ("PART", "iptables"),
    ("PATH", "node1.tar.gz"),
    ("RELEASE", "1.40"),
    ("SERVICE", "demo/web"),
    ("STRATEGY", "bridge"),
    ("SUBCOMMAND", "resume"),
    ("TARGET", "demo/web"),
    ("TIME", "10s"),
];

/// Returns `text` with values in the place of placeholders: words in capitals, and `{…}` of a format string.
fn with_values(text: &str) -> String {
    let mut out = String::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once('{') {
        out.push_str(before);
        let (name, after) = after.split_once('}').unwrap_or((after, ""));
        let value = match name {
            "" | "mode" | "to" | "from" | "target" | "other" => "nftables",
            "id" => "MX01",
            "goal" => "1.40",
            _ => "web",
        };
        out.push_str(value);
        rest = after;
    }
    out.push_str(rest);
    let words = out.split(' ').map(|word| {
        let parts = word.split_inclusive([',', '=']).map(|part| {
            let name = part.trim_end_matches([',', '=']);
            let found = PLACEHOLDERS
                .iter()
                .find(|(placeholder, _)| *placeholder == name);
            found.map_or(part.to_owned(), |(_, value)| part.replacen(name, value, 1))
        });
        parts.collect::<String>()
    });
    words.collect::<Vec<_>>().join(" ")
}

/// Returns why kpx does not understand `line`. A command that is only named, without options, may lack arguments.
pub(crate) fn misunderstood(line: &str) -> Option<String> {
    let line = with_values(line);
    let words: Vec<&str> = line
        .split_ascii_whitespace()
        .filter(|word| *word != "...")
        .collect();
    let error = parse(&words).err()?;
    let is_name = words.iter().all(|word| !word.starts_with('-'));
    match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => None,
        ErrorKind::MissingRequiredArgument
        | ErrorKind::MissingSubcommand
        | ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand
            if is_name =>
        {
            None
        }
        _ => Some(format!("`{line}`: {error}")),
    }
}

/// The command lines in a text: `kpx …` between backticks, and lines that are one, as in examples.
fn command_lines(text: &str) -> Vec<String> {
    let mut found = Vec::new();
    let paragraphs = text.split("\n\n").map(|text| text.replace('\n', " "));
    let spans = paragraphs.map(|text| text.split('`').map(str::to_owned).collect::<Vec<_>>());
    for (at, span) in spans.flat_map(|spans| spans.into_iter().enumerate()) {
        // A command that is itself a placeholder has a test where it is composed.
        if at % 2 == 1 && span.starts_with("kpx ") && !span.starts_with("kpx {") {
            found.push(span);
        }
    }
    for line in text.lines() {
        let prompts = ["$ kpx ", "# kpx ", "  kpx "];
        let command = prompts.iter().find_map(|prompt| line.strip_prefix(prompt));
        // A command, and after two spaces or a number sign what it does.
        if let Some(line) = command {
            let line = line.split("  ").next().unwrap_or_default();
            let line = line.split(" #").next().unwrap_or_default();
            found.push(format!("kpx {line}"));
        }
    }
    let of_shell = |line: String| {
        let ends = [" | ", " > ", " && ", ";"];
        let end = ends.iter().filter_map(|end| line.find(end)).min();
        line[..end.unwrap_or(line.len())].trim().to_owned()
    };
    found.into_iter().map(of_shell).collect()
}

/// The text of string literals and documentation of a source file: continued lines are one.
fn text_of_source(source: &str) -> String {
    let mut text = String::new();
    for line in source.lines() {
        let line = line.trim();
        let doc = line
            .strip_prefix("/// ")
            .or(line.strip_prefix("//! "))
            .or(line.strip_prefix("// "));
        match (doc, line.strip_suffix('\\')) {
            (Some(doc), _) => {
                text.push_str(doc);
                text.push(' ');
            }
            (None, Some(line)) => {
                text.push_str(line);
                text.push(' ');
            }
            (None, None) => {
                text.push_str(line);
                text.push_str("\n\n");
            }
        }
    }
    text.replace("\\\"", "\"")
        .replace("{{", "{")
        .replace("}}", "}")
}

/// The command lines whose words are the arguments of a function called `kpx`, a list: `Fix::kpx("Do it.", ["diff"])`. A word
/// that is no literal stands for a Service, or for a mode if it is called so.
fn lists_of_words(source: &str) -> Vec<String> {
    let code = source
        .lines()
        .filter(|line| !line.trim_start().starts_with("//"));
    let code = code.collect::<Vec<_>>().join(" ");
    let calls = code
        .match_indices("kpx(")
        .map(|(at, call)| &code[at + call.len()..]);
    calls.filter_map(list_of_words).collect()
}

/// Returns the last list in the arguments of a call, `rest` without its opening parenthesis.
fn list_of_words(rest: &str) -> Option<String> {
    let (mut depth, mut quoted, mut escaped) = (0_i32, false, false);
    let mut list: Option<Vec<String>> = None;
    let mut word = String::new();
    for c in rest.chars() {
        if c == '"' && !escaped {
            quoted = !quoted;
        }
        escaped = quoted && !escaped && c == '\\';
        match c {
            _ if quoted => word.push(c),
            '(' | '{' => depth += 1,
            ')' | '}' if depth == 0 => break,
            ')' | '}' => depth -= 1,
            '[' => {
                list = Some(Vec::new());
                word.clear();
            }
            ',' | ']' => {
                if let Some(list) = list.as_mut().filter(|_| !word.trim().is_empty()) {
                    list.push(word.trim().to_owned());
                }
                word.clear();
                if c == ']' {
                    break;
                }
            }
            _ => word.push(c),
        }
    }
    // Types of parameters are no words.
    let list = list.filter(|list| list.first().is_some_and(|word| word.contains('"')))?;
    let words = list.into_iter().map(|word| match word.split_once('"') {
        Some((_, literal)) => literal.split('"').next().unwrap_or_default().to_owned(),
        None if word.starts_with("mode.") || word.starts_with("configured.") => "ipvs".to_owned(),
        None if word.starts_with("class.") => "pod-to-cluster-ip".to_owned(),
        None => "demo/web".to_owned(),
    });
    Some(format!("kpx {}", words.collect::<Vec<_>>().join(" ")))
}

#[test]
fn words_of_typed_advice_are_read() {
    for (code, line) in [
        (
            r#"Example::kpx(&["reconcile", "--cleanup", "ipvs"])"#,
            "kpx reconcile --cleanup ipvs",
        ),
        (
            r#"Fix::kpx("Read [it], then (try) it.", ["why", name])"#,
            "kpx why demo/web",
        ),
        (
            r#"text.kpx(["trace".to_owned(), to.to_string(), "--source".to_owned(), from.clone()])"#,
            "kpx trace demo/web --source demo/web",
        ),
        (
            r#"Prose::from("a").kpx([Word::from("diff"), Word::Value("BUNDLE")])"#,
            "kpx diff BUNDLE",
        ),
    ] {
        assert_eq!(lists_of_words(code), [line], "{code}");
    }
    assert!(lists_of_words("Example::kpx(words)").is_empty());
}

fn files(folder: &Path, ending: &str, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            files(&path, ending, found);
        } else if path.to_str().unwrap().ends_with(ending) {
            found.push(path);
        }
    }
}

#[test]
#[ignore = "takes long: make test-loops"]
fn every_command_line_in_sources_and_documents_is_understood() {
    let mut paths = Vec::new();
    for folder in ["src", "crates"] {
        files(&root().join(folder), ".rs", &mut paths);
    }
    files(&root().join("deploy"), ".yaml", &mut paths);
    for name in [
        "README.md",
        "CONTRIBUTING.md",
        "ARCHITECTURE.md",
        "CHANGELOG.md",
    ] {
        paths.push(root().join(name));
    }
    files(&root().join("docs"), ".md", &mut paths);
    let (mut seen, mut wrong) = (BTreeSet::new(), Vec::new());
    for path in paths {
        let mut text = fs::read_to_string(&path).unwrap();
        let mut lines = Vec::new();
        if path.extension().is_some_and(|extension| extension == "rs") {
            lines = lists_of_words(&text);
            text = text_of_source(&text);
        }
        for line in command_lines(&text).into_iter().chain(lines) {
            if let Some(why) = misunderstood(&line) {
                wrong.push(format!(
                    "{}: {why}",
                    path.strip_prefix(root()).unwrap().display()
                ));
            }
            seen.insert(line);
        }
    }
    assert!(
        wrong.is_empty(),
        "{} command lines:\n{}",
        wrong.len(),
        wrong.join("\n")
    );
    assert!(seen.len() > 80, "{}: {seen:#?}", seen.len());
}

#[test]
fn every_command_line_in_help_is_understood() {
    fn look(command: &clap::Command, seen: &mut usize, wrong: &mut Vec<String>) {
        let texts = [
            command.get_after_help(),
            command.get_after_long_help(),
            command.get_long_about(),
        ];
        for text in texts.into_iter().flatten() {
            for line in command_lines(&text.to_string()) {
                *seen += 1;
                wrong.extend(misunderstood(&line));
            }
        }
        for sub in command.get_subcommands().filter(|sub| !sub.is_hide_set()) {
            look(sub, seen, wrong);
        }
    }
    let (mut seen, mut wrong) = (0, Vec::new());
    look(&kpx::cli::command(), &mut seen, &mut wrong);
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(seen > 60, "{seen}");
}

#[test]
fn invalid_command_lines_are_found() {
    for line in [
        "kpx doctor --for nftables",
        "kpx reconcile --cleanup ipvs --mode iptables",
        "kpx migrate --mode ipvs",
        "kpx show services three extra words",
        "kpx repair",
    ] {
        assert!(misunderstood(line).is_some(), "{line}");
    }
    assert_eq!(
        misunderstood("kpx migrate --to {to} --node NAME,NAME"),
        None
    );
    let text =
        "x `kpx doctor --to MODE` y\n$ kpx man | man -l -   # a page\n  kpx diff    differences";
    assert_eq!(
        command_lines(text),
        ["kpx doctor --to MODE", "kpx man", "kpx diff"]
    );
}
