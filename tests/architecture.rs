//! The dependencies between modules: the table is the architecture.

mod circles;

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use crate::support::root;

/// Each module with the modules of its crate that it may use: rows further up. The compiler holds the walls between crates,
/// and the crates `kpx-host` and `kpx-migrate` are one module each.
const MAY_USE: &[(&str, &str, &str)] = &[
    ("kpx-node", "words", ""),
    ("kpx-node", "access", ""),
    ("kpx-node", "net", ""),
    ("kpx-node", "evidence", "net"),
    ("kpx-node", "action", "evidence net"),
    ("kpx-node", "cluster", "evidence net words"),
    ("kpx-node", "desired", "cluster evidence net"),
    ("kpx-node", "dns", "cluster"),
    ("kpx-node", "backend", "action cluster desired evidence net"),
    ("kpx-node", "node", "backend cluster desired evidence net"),
    (
        "kpx-node",
        "foreign",
        "backend cluster evidence net node words",
    ),
    ("kpx-node", "owner", "backend cluster evidence net node"),
    ("kpx-node", "apply", "action"),
    ("kpx-node", "schema", "backend cluster evidence net owner"),
    ("kpx-judge", "bridge", ""),
    ("kpx-judge", "meter", ""),
    ("kpx-judge", "history", ""),
    ("kpx-judge", "diff", ""),
    ("kpx-judge", "trace", "diff"),
    ("kpx-judge", "verdict", "diff trace"),
    ("kpx-judge", "repair", "diff trace verdict"),
    ("kpx-judge", "proof", "diff trace"),
    ("kpx-judge", "check", "bridge diff proof trace verdict"),
    ("kpx-judge", "why", "check diff repair trace verdict"),
    ("kpx-judge", "plan", "bridge check diff proof"),
    ("kpx-judge", "requirements", "check"),
    ("kpx-judge", "redact", ""),
    ("kpx-judge", "schema", "check verdict"),
    ("kpx", "provider", ""),
    ("kpx", "pages", "provider"),
    ("kpx", "view", ""),
    ("kpx", "render", ""),
    ("kpx", "report", "provider render view"),
    ("kpx", "cli", "pages render view"),
    ("kpx", "command", "cli pages provider render report view"),
    ("kpx", "fuzzing", "cli render"),
];

#[test]
fn the_map_has_every_module_and_what_it_may_use() {
    let map = fs::read_to_string(root().join("ARCHITECTURE.md")).unwrap();
    for (_, module, uses) in MAY_USE {
        let (start, end) = (format!("| `{module}` |"), format!("| {uses} |"));
        let mut lines = map.lines();
        assert!(
            lines.any(|line| line.starts_with(&start) && line.ends_with(&end)),
            "ARCHITECTURE.md has no row for {module} that ends with {end:?}"
        );
    }
}

/// Each outside crate with the only modules that may name it, where a crate of kpx has others.
const ONLY_IN: &[(&str, &[&str])] = &[
    ("clap", &["cli", "command"]),
    ("clap_complete", &["cli", "command"]),
    ("clap_mangen", &["command"]),
    ("color_eyre", &["command"]),
    ("comfy_table", &["render"]),
    ("indicatif", &["render"]),
    ("ratatui", &["command"]),
    ("rmcp", &["command"]),
    ("nix", &["evidence", "host"]),
    (
        "serde_yaml",
        &["check", "cluster", "command", "host", "render"],
    ),
    ("simple_dns", &["dns"]),
    ("tokio", &["host", "main"]),
    ("yaml_edit", &["cluster"]),
];

#[test]
fn modules_use_only_what_the_table_allows() {
    let mut wrong = Vec::new();
    for (path, module) in sources() {
        if ["host", "lib", "main", "migrate"].contains(&module.as_str()) {
            continue;
        }
        let (of, _) = below(&path);
        let row = |(name, row, _): &&(&str, &str, &str)| (*name, *row) == (of, module.as_str());
        let allowed = MAY_USE.iter().find(row);
        let (_, _, allowed) = allowed.unwrap_or_else(|| panic!("{module} is not in MAY_USE"));
        let at = module_of(&path);
        let at: Vec<_> = at.iter().map(String::as_str).collect();
        for used in rows_in(&at, &code(&path)) {
            if used != module && !allowed.split(' ').any(|a| a == used) {
                wrong.push(format!("{}: {module} may not use {used}", path.display()));
            }
        }
    }
    assert!(
        wrong.is_empty(),
        "move the code; or, if the design changes, edit MAY_USE and the table in ARCHITECTURE.md:\n{}",
        wrong.join("\n")
    );
}

/// The compiler does not find unused code in public modules.
#[test]
fn tests_or_benchmarks_use_every_public_module() {
    let mut files = Vec::new();
    for dir in ["tests", "benches", "fuzz"] {
        walk(&root().join(dir), &mut files);
    }
    let used: BTreeSet<_> = files
        .iter()
        .flat_map(|path| paths_in("kpx::", &code(path)))
        .collect();
    let library = fs::read_to_string(root().join("src/lib.rs")).unwrap();
    let public = library
        .lines()
        .filter_map(|line| line.strip_prefix("pub mod ")?.strip_suffix(';'));
    let unused: Vec<_> = public.filter(|name| !used.contains(*name)).collect();
    assert!(
        unused.is_empty(),
        "no test and no benchmark uses {unused:?}: make them private in src/lib.rs"
    );
}

/// Types that reports may not name: views read them.
const READ_BY_VIEWS: [&str; 4] = ["Evidence", "Facts", "NodeSnapshot", "Owners"];

#[test]
fn reports_read_neither_a_node_nor_evidence() {
    let mut wrong = Vec::new();
    for (path, _) in sources().into_iter().filter(|(_, of)| of == "report") {
        // A trace is put together from hops and the owners of their chains.
        let trace = path.ends_with("trace/report.rs");
        let text = code(&path);
        let words = text.split(|c: char| !c.is_alphanumeric() && c != '_');
        for word in words.filter(|word| READ_BY_VIEWS.contains(word)) {
            if !(trace && word == "Owners") {
                wrong.push(format!("{}: {word}", path.display()));
            }
        }
    }
    assert!(
        wrong.is_empty(),
        "a report prints values and reads neither a node nor evidence: compute the value in `view`, and let the command's \
         `run.rs` pass it to the report:\n{}",
        wrong.join("\n")
    );
}

#[test]
fn outside_crates_stay_where_they_belong() {
    let mut wrong = Vec::new();
    for (path, module) in sources() {
        let text = code(&path);
        for (name, homes) in ONLY_IN {
            let named = text.contains(&format!("{name}::"));
            if named && !homes.contains(&module.as_str()) {
                wrong.push(format!("{}: {name} belongs in {homes:?}", path.display()));
            }
        }
    }
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
}

#[test]
fn only_the_edges_are_async() {
    for (path, module) in sources() {
        let waits = ["engine", "engine.rs", "controller"];
        let is_engine = path
            .iter()
            .any(|part| waits.iter().any(|wait| part == *wait));
        let engine = module == "migrate" && is_engine;
        let edge = engine || ["apply", "command", "host", "lib", "main"].contains(&module.as_str());
        let text = code(&path);
        let used = text.contains("async ") || text.contains(".await");
        assert!(
            edge || !used,
            "{} is async: only host, apply, command and the engines and controllers in migrate may be",
            path.display()
        );
    }
}

#[test]
fn only_commands_that_change_a_node_can() {
    let may = ["bridge", "migrate", "preflight", "reconcile"];
    let shared = ["change.rs", "apply_on_nodes.rs", "local_bridge.rs"];
    for (path, module) in sources() {
        let text = code(&path);
        let changes = text.contains("Live") || text.contains("carry_out");
        let file = path.file_name().unwrap().to_str().unwrap();
        let allowed = match module.as_str() {
            "host" => true,
            "command" => match command_of(&path).as_deref() {
                Some("shared") => shared.contains(&file),
                Some(name) => may.contains(&name),
                None => false,
            },
            _ => false,
        };
        assert!(
            !changes || allowed,
            "{} can change a node: if its command may, add it to `may`",
            path.display()
        );
    }
}

/// Code that compares a release of kube-proxy with a number.
const COMPARISONS: &[&str] = &["at_least(1,", "Version::new(1,", "(1,", "since("];

#[test]
fn only_the_list_of_releases_compares_with_a_release() {
    let mut wrong = Vec::new();
    for (path, _) in sources() {
        if path.ends_with("cluster/release.rs") {
            continue;
        }
        let text = code(&path);
        let text = text.split("#[cfg(test)]").next().unwrap();
        for line in text.lines() {
            // Minor releases of Kubernetes since 1.20.
            let is_release = |tail: &str| {
                let digits: String = tail.trim_start().chars().take(2).collect();
                digits
                    .parse()
                    .is_ok_and(|minor: u8| (20..=99).contains(&minor))
            };
            let compares = |pattern: &&str| line.split(*pattern).skip(1).any(is_release);
            if COMPARISONS.iter().any(compares) {
                wrong.push(format!("{}: {}", path.display(), line.trim()));
            }
        }
    }
    assert!(
        wrong.is_empty(),
        "name the change in `cluster/release.rs` instead:\n{}",
        wrong.join("\n")
    );
}

/// Calls that decide by a text for people: the reason of a gap, or the message of a finding.
const BY_TEXT: &[&str] = &["why.", "reason.", ".message.", "gap.to_string()."];

#[test]
fn nothing_decides_by_a_text_for_people() {
    const TESTS: [&str; 4] = ["contains(", "starts_with(", "ends_with(", "split_once("];
    let mut wrong = Vec::new();
    for (path, module) in sources() {
        // The messages of tools are texts, which only the readers may interpret.
        if module == "host" {
            continue;
        }
        let text = code(&path);
        let text = text.split("#[cfg(test)]").next().unwrap();
        let calls = BY_TEXT
            .iter()
            .flat_map(|word| TESTS.map(|test| format!("{word}{test}")));
        let found = calls.filter(|call| text.contains(call.as_str()));
        wrong.extend(found.map(|call| format!("{}: {call}…)", path.display())));
    }
    assert!(
        wrong.is_empty(),
        "decide by a variant of Gap, or by another type:\n{}",
        wrong.join("\n")
    );
}

/// Fields that hold a text for people, calls that return one, and the names of variables with one.
const PRINTED: &[&str] = &[
    ".command",
    ".command()",
    ".message",
    ".result",
    ".sentence",
    ".subject",
    ".text()",
    "command",
    "evidence.to_string()",
    "message",
    "proof.to_string()",
    "question",
    "question.to_string()",
    "sentence",
    "subject",
];

/// Calls that look for something in a text.
const READERS: &[&str] = &[
    "contains",
    "ends_with",
    "find",
    "lines",
    "matches",
    "parse",
    "rfind",
    "rsplit",
    "rsplit_once",
    "split",
    "split_at",
    "split_once",
    "split_whitespace",
    "starts_with",
    "strip_prefix",
    "strip_suffix",
    "trim_start_matches",
];

/// Calls between a text and its reader that change nothing.
const BETWEEN: &[&str] = &[
    ".as_deref()",
    ".as_ref()",
    ".as_str()",
    ".clone()",
    ".trim()",
    ".unwrap()",
    ".unwrap_or_default()",
];

/// Modules that read texts of others: of the API server, of tools, of files.
const PARSERS: &[&str] = &["backend", "cluster", "evidence", "host", "node", "redact"];

/// Returns the places of `code` that look for something in a text for people.
fn read_again(code: &str) -> Vec<String> {
    // A chain of calls may be on several lines.
    let mut lines = code.lines().map(str::trim);
    let mut flat = lines.next().unwrap_or_default().to_owned();
    for line in lines {
        if !line.starts_with('.') {
            flat.push('\n');
        }
        flat.push_str(line);
    }
    let start = |at: usize| flat[..at].rfind('\n').map_or(0, |at| at + 1);
    let line_at = |at: usize| {
        flat[start(at)..]
            .lines()
            .next()
            .unwrap_or_default()
            .to_owned()
    };
    let is_word = |c: char| c.is_alphanumeric() || c == '_';
    let mut found = Vec::new();
    for printed in PRINTED {
        for (at, _) in flat.match_indices(printed) {
            // The name of a variable is a word of its own.
            let is_part = flat[..at].ends_with(|c: char| is_word(c) || c == '.');
            if is_part && !printed.starts_with('.') {
                continue;
            }
            let mut rest = &flat[at + printed.len()..];
            while let Some(next) = BETWEEN.iter().find_map(|call| rest.strip_prefix(call)) {
                rest = next;
            }
            let call = rest
                .strip_prefix('.')
                .and_then(|rest| rest.split_once(['(', ':']));
            let read_by = call.is_some_and(|(name, _)| READERS.contains(&name));
            // `match row.result.as_str() { "answered" => …`
            let is_text = rest.len() < flat[at + printed.len()..].len();
            let is_matched = flat[start(at)..at].contains("match ") && rest.starts_with(" {");
            // `parse(&finding.subject)`
            let before = flat[..at].trim_end_matches(|c| is_word(c) || "&*.[]".contains(c));
            let is_field = printed.starts_with('.') && !rest.starts_with(is_word);
            let is_argument = is_field && before.ends_with("parse(");
            // `names_it(&proof.to_string())`
            let is_proof = printed.ends_with("to_string()");
            let is_given = is_proof && before.ends_with('(') && rest.starts_with(')');
            if read_by || is_argument || is_given || (is_text && is_matched) {
                found.push(line_at(at));
            }
        }
    }
    found
}

#[test]
fn nothing_reads_a_text_for_people_again() {
    let mut wrong = Vec::new();
    for (path, module) in sources() {
        if PARSERS.contains(&module.as_str()) {
            continue;
        }
        let code = code(&path);
        // Tests look at texts.
        let code = code.split("#[cfg(test)]\nmod ").next().unwrap();
        let lines = read_again(code).into_iter();
        wrong.extend(lines.map(|line| format!("{}: {line}", path.display())));
    }
    assert!(
        wrong.is_empty(),
        "these look for something in a text for people: decide by a type, such as `check::Subject` or `check::Advice`\n{}",
        wrong.join("\n")
    );
}

#[test]
fn what_reads_a_text_for_people_again_is_found() {
    for code in [
        "let (namespace, name) = at.subject.split_once('/')?;",
        "finding\n    .message\n    .split([' ', ','])\n    .next()",
        "let name = PortName::parse(&finding.subject);",
        "if row.result.as_str().starts_with(\"no \") {}",
        "let command = fix.command.as_deref().unwrap_or_default().contains(\"kpx\");",
        "let first = fix.command().unwrap_or_default().strip_prefix(\"kpx \");",
        "let names = proof.to_string().contains(rule);",
        "answer.sentence.ends_with('.')",
        "let (program, rest) = command.split_once(' ').unwrap_or((command, \"\"));",
        "let is_it = |of: &&Finding| of.evidence.iter().any(|proof| names_it(&proof.to_string()));",
        "match row.result.as_str() {\n\"answered\" => false,",
        "let at = of.message.parse::<u16>()",
        "let is_open = question.starts_with(\"what \");",
    ] {
        assert_eq!(read_again(code).len(), 1, "{code}");
    }
    for code in [
        "let key = (&finding.subject, finding.message.len());",
        "names.contains(&finding.subject)",
        "finding.subject == *name",
        "let parsed = parse(&command.subject_of)",
        "answer.sentence.clone()",
        "match row.result {\nEnd::Answered => false,",
        "session.commands.find(|command| command.is_complete())",
    ] {
        assert!(read_again(code).is_empty(), "{code}");
    }
}

#[test]
fn each_mode_has_the_same_files() {
    for mode in ["iptables", "ipvs", "nftables"] {
        for file in ["model", "parse", "print", "expect", "change"] {
            let path = root().join(format!("crates/node/src/backend/{mode}/{file}.rs"));
            assert!(path.exists(), "{}", path.display());
        }
        for module in ["diff", "trace"] {
            let path = root().join("crates/judge/src").join(module).join(mode);
            let exists = path.is_dir() || path.with_extension("rs").exists();
            assert!(exists, "{}", path.display());
        }
    }
}

#[test]
fn the_modes_have_one_name_each() {
    let mut wrong = Vec::new();
    for (path, module) in sources() {
        let modes = ["backend", "check", "diff", "plan", "trace"].contains(&module.as_str());
        let mut names = path
            .iter()
            .map(|name| name.to_str().unwrap().trim_end_matches(".rs"));
        let other =
            |name: &str| ["ipt", "nft", "ipt_chain", "nft_chain", "xtables"].contains(&name);
        if modes && names.any(other) {
            wrong.push(path.display().to_string());
        }
    }
    assert!(
        wrong.is_empty(),
        "iptables, ipvs, nftables:\n{}",
        wrong.join("\n")
    );
}

/// Adds the source files below `dir`.
fn walk(dir: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            walk(&path, found);
        } else if path.extension().is_some_and(|e| e == "rs") {
            found.push(path);
        }
    }
}

/// Returns each source file with its row of `MAY_USE`, or the name of a crate that is one module.
fn sources() -> Vec<(PathBuf, String)> {
    let mut found = Vec::new();
    for (_, folder) in CRATES {
        walk(&root().join(folder), &mut found);
    }
    let with_row = |path: PathBuf| {
        let row = match below(&path) {
            ("kpx-host", _) => "host".to_owned(),
            ("kpx-migrate", _) => "migrate".to_owned(),
            (_, below) => {
                let below = below.with_extension("");
                let names: Vec<_> = below.iter().map(|name| name.to_str().unwrap()).collect();
                row_of(&names).to_owned()
            }
        };
        (path, row)
    };
    found.into_iter().map(with_row).collect()
}

/// The crates with their folders of sources.
const CRATES: [(&str, &str); 5] = [
    ("kpx-node", "crates/node/src"),
    ("kpx-host", "crates/host/src"),
    ("kpx-judge", "crates/judge/src"),
    ("kpx-migrate", "crates/migrate/src"),
    ("kpx", "src"),
];

/// Returns the crate of a source file, and its path in the crate's folder.
fn below(path: &Path) -> (&'static str, &Path) {
    let place = |(name, folder): &(&'static str, &str)| {
        let below = path.strip_prefix(root().join(folder)).ok()?;
        Some((*name, below))
    };
    CRATES.iter().find_map(place).unwrap()
}

/// The parts of a command's folder that are not of row `command`: a file, or a folder with all its files.
const PARTS: &[(&str, &str)] = &[
    ("args", "cli"),
    ("report", "report"),
    ("html", "report"),
    ("view", "view"),
];

/// Returns the row of `MAY_USE` of a module of this crate: `command::doctor::report` is a report.
fn row_of<'m>(path: &[&'m str]) -> &'m str {
    match path {
        ["command", _, part, ..] => PARTS
            .iter()
            .find(|(name, _)| name == part)
            .map_or("command", |(_, row)| *row),
        _ => path[0],
    }
}

/// Returns the module of a source file, in pieces.
fn module_of(path: &Path) -> Vec<String> {
    let below = below(path).1.with_extension("");
    let names = below.iter().map(|name| name.to_str().unwrap().to_owned());
    names
        .filter(|name| !["lib", "main", "mod"].contains(&name.as_str()))
        .collect()
}

/// Returns the rows of `MAY_USE` that `code`, the text of module `at`, uses.
fn rows_in(at: &[&str], code: &str) -> BTreeSet<String> {
    let mut rows = BTreeSet::new();
    for path in modules_in(at, code) {
        let path: Vec<_> = path.iter().map(String::as_str).collect();
        rows.insert(row_of(&path).to_owned());
    }
    rows
}

#[test]
fn the_row_of_a_part_of_a_command_is_known() {
    let at = ["command", "why", "run"];
    for (code, rows) in [
        (
            "use crate::command::doctor::report::DoctorReport;",
            "report",
        ),
        (
            "use crate::command::doctor::args::{DoctorArgs, FailOn};",
            "cli",
        ),
        ("let page = crate::command::report::html::page();", "report"),
        ("use crate::command::top::view::SortKey;", "view"),
        ("use crate::command::watch::run as watch;", "command"),
        (
            "use crate::{cli, view::{self, View}};\nuse crate::render::*;",
            "cli render view",
        ),
        (
            "use crate::command::{doctor::{args::{DoctorArgs as Args, FailOn}, run}, why::report};",
            "cli command report",
        ),
        ("use super::report::WhyReport;", "report"),
        ("use super::{args, report::nodes};", "cli report"),
        ("fn f(of: super::super::top::view::Row) {}", "view"),
        (
            "pub(in crate::command) struct Case {\n    at: crate::pages::Page,",
            "pages",
        ),
        ("#[cfg(test)]\nmod tests {\n    use super::*;", ""),
    ] {
        let found: Vec<_> = rows_in(&at, code).into_iter().collect();
        assert_eq!(found.join(" "), rows, "{code}");
    }
}

/// Returns the name of the folder of commands that `path` is in.
fn command_of(path: &Path) -> Option<String> {
    let below = path.strip_prefix(root().join("src/command")).ok()?;
    let mut names = below.iter().map(|name| name.to_str().unwrap());
    let first = names.next()?;
    names.next().map(|_| first.to_owned())
}

/// Returns the text of a file without its comments.
fn code(path: &Path) -> String {
    let text = fs::read_to_string(path).unwrap();
    let lines = text
        .lines()
        .filter(|line| !line.trim_start().starts_with("//"));
    lines.collect::<Vec<_>>().join("\n")
}

/// Returns the first segment after each `start` of a path, including those in braces.
fn paths_in(start: &str, code: &str) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for tail in code.split(start).skip(1) {
        let group = tail.strip_prefix('{').map(|t| t.split('}').next().unwrap());
        for path in
            group
                .unwrap_or(tail)
                .split(',')
                .take(if group.is_some() { usize::MAX } else { 1 })
        {
            let name: String = path
                .trim()
                .chars()
                .take_while(|c| c.is_alphanumeric() || *c == '_')
                .collect();
            if !name.is_empty() {
                found.insert(name);
            }
        }
    }
    found
}

/// Returns each path of this crate that `code` names, in pieces: those in braces, too. `at` is the module of `code`.
fn modules_in(at: &[&str], code: &str) -> BTreeSet<Vec<String>> {
    // Below, `super` has another meaning.
    let own = code.split("#[cfg(test)]\nmod ").next().unwrap().len();
    let (own, tests) = code.split_at(own);
    let mut own = own.to_owned();
    for depth in (1..=at.len()).rev() {
        let above = at[..at.len() - depth].iter().chain([&""]);
        let above: Vec<_> = above.copied().collect();
        own = own.replace(
            &"super::".repeat(depth),
            &format!("crate::{}", above.join("::")),
        );
    }
    // The scope of a visibility is no use.
    let code = (own + tests).replace("in crate::", "in ");
    let mut found = BTreeSet::new();
    for tail in code.split("crate::").skip(1) {
        leaves(tail, &[], &mut found);
    }
    found.remove(&Vec::new());
    found
}

/// Adds the paths of the use tree that `rest` begins with, below `path`; returns the text behind it.
fn leaves<'t>(rest: &'t str, path: &[String], found: &mut BTreeSet<Vec<String>>) -> &'t str {
    let rest = rest.trim_start();
    if let Some(mut rest) = rest.strip_prefix('{') {
        loop {
            rest = leaves(rest, path, found).trim_start();
            let next = rest.strip_prefix(',').unwrap_or(rest).trim_start();
            if next.len() == rest.len() || next.starts_with('}') {
                return next.strip_prefix('}').unwrap_or(next);
            }
            rest = next;
        }
    }
    let end = rest.find(|c: char| !c.is_alphanumeric() && c != '_');
    let (name, after) = rest.split_at(end.unwrap_or(rest.len()));
    let mut path = path.to_vec();
    if !name.is_empty() && name != "self" {
        path.push(name.to_owned());
    }
    let below = after.strip_prefix("::");
    if let Some(below) = below.filter(|below| !below.starts_with('<')) {
        return leaves(below, &path, found);
    }
    found.insert(path);
    let after = after.strip_prefix('*').unwrap_or(after);
    match after.trim_start().strip_prefix("as ") {
        Some(name) => name.trim_start_matches(|c: char| c.is_alphanumeric() || c == '_'),
        None => after,
    }
}

/// The parts of a command that another one uses: what both need belongs in `command/shared`, `report` or `view`.
const USED_BY_OTHERS: &[(&str, &str)] = &[
    ("diff", "watch::run"),
    ("migrate", "bridge::args"),
    ("migrate", "diff::run"),
    ("migrate", "doctor::report"),
    ("migrate", "preflight::report"),
    ("migrate", "preflight::run"),
    ("preflight", "doctor::report"),
    ("report", "diff::report"),
    ("report", "diff::run"),
    ("report", "doctor::examine"),
    ("report", "doctor::report"),
    ("report", "explain::report"),
    ("report", "reconcile::plan"),
    ("report", "show::report"),
    ("report", "show::run"),
    ("report", "snapshot::run"),
    ("report", "trace::report"),
    ("report", "trace::run"),
    ("screen", "doctor::examine"),
    ("screen", "explain::run"),
    ("screen", "reconcile::plan"),
    ("screen", "show::run"),
    ("screen", "top::run"),
    ("screen", "why::report"),
    ("screen", "why::run"),
    ("serve", "doctor::examine"),
    ("show", "diff::report"),
    ("watch", "doctor::examine"),
    ("watch", "doctor::report"),
    ("why", "resolve::run"),
];

/// A command can be read, changed and removed alone.
#[test]
fn commands_use_only_the_named_parts_of_others() {
    let mut used = BTreeSet::new();
    for (path, _) in sources() {
        let module = module_of(&path);
        let module: Vec<_> = module.iter().map(String::as_str).collect();
        let (asking, may_use_args) = match module[..] {
            // They choose a command, and list all reports.
            [] | ["command", "dispatch"] | ["report", "schema", ..] => continue,
            ["command", name, ..] => (name, name == "shared"),
            [name, ..] => (name, true),
        };
        for named in modules_in(&module, &code(&path)) {
            let named: Vec<_> = named.iter().map(String::as_str).collect();
            if let ["command", other, part, ..] = named[..] {
                let is_free = [asking, "shared", "dispatch"].contains(&other);
                let is_option = may_use_args && part == "args";
                if !is_free && !is_option {
                    used.insert((asking.to_owned(), format!("{other}::{part}")));
                }
            }
        }
    }
    let known = USED_BY_OTHERS
        .iter()
        .map(|(user, part)| ((*user).to_owned(), (*part).to_owned()));
    let known: BTreeSet<_> = known.collect();
    let new: Vec<_> = used.difference(&known).collect();
    assert!(
        new.is_empty(),
        "move what both need to command/shared, report or view: {new:?}"
    );
    let gone: Vec<_> = known.difference(&used).collect();
    assert!(
        gone.is_empty(),
        "take these out of USED_BY_OTHERS: {gone:?}"
    );
}
