//! Files that use each other, directly or through others.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use super::{CRATES, below, code, leaves, module_of, sources};

/// The circles: files that use each other, directly or through others, by the module that has all of them. Take one out of this list
/// when it is gone; none may be added.
const CIRCLES: &[&str] = &[
    "kpx command::doctor::report",
    "kpx command::migrate::report",
    "kpx command::report::html",
    "kpx command::shared",
    "kpx command::trace",
    "kpx command::trace::report",
    "kpx render",
    "kpx view::service",
    "kpx-host cluster",
    "kpx-host cluster",
    "kpx-host linux",
    "kpx-host linux::nft",
    "kpx-host remote",
    "kpx-judge check",
    "kpx-judge plan::config",
    "kpx-judge plan::repair",
    "kpx-judge redact",
    "kpx-judge trace",
    "kpx-judge trace",
    "kpx-judge trace::nftables",
    "kpx-judge verdict",
    "kpx-migrate ",
    "kpx-migrate fleet",
    "kpx-migrate fleet::pod",
    "kpx-node access",
    "kpx-node backend::iptables::parse",
    "kpx-node backend::nftables::parse",
    "kpx-node backend::nftables::parse::text",
    "kpx-node evidence",
    "kpx-node evidence::bundle",
    "kpx-node foreign",
    "kpx-node foreign::extras",
    "kpx-node foreign::kubectl",
    "kpx-node foreign::rules",
    "kpx-node node",
];

#[test]
fn no_further_files_use_each_other_in_a_circle() {
    let mut found: Vec<(String, Vec<String>)> = CRATES
        .iter()
        .flat_map(|(name, _)| circles_of(name))
        .collect();
    found.sort();
    let names: Vec<_> = found.iter().map(|(name, _)| name.as_str()).collect();
    let files = found
        .iter()
        .map(|(name, files)| format!("{name}: {}", files.join(" ")));
    assert_eq!(
        names,
        CIRCLES,
        "move what both sides need to a file of its own:\n{}",
        files.collect::<Vec<_>>().join("\n")
    );
}

/// Returns the circles of files of the crate `name`, each with its module and its files.
fn circles_of(name: &str) -> Vec<(String, Vec<String>)> {
    let files = sources().into_iter().map(|(path, _)| path);
    let files: Vec<PathBuf> = files
        .filter(|path| below(path).0 == name && !path.ends_with("src/main.rs"))
        .collect();
    let modules: Vec<Vec<String>> = files.iter().map(|path| module_of(path)).collect();
    let at = |module: &[String]| modules.iter().position(|other| other == module);
    // The file that has `path`, and the names behind it.
    let resolve = |from: &[String], path: &[String]| {
        let ups = path.iter().take_while(|name| *name == "super").count();
        let whole: Vec<String> = match path.first().map(String::as_str) {
            Some("crate") => path[1..].to_vec(),
            Some("super") => [&from[..from.len().checked_sub(ups)?], &path[ups..]].concat(),
            Some(_) => [from, path].concat(),
            None => return None,
        };
        let is_own = path[0] == "crate" || ups > 0 || at(&whole[..=from.len()]).is_some();
        let mut ends = (0..=whole.len()).rev().filter(|_| is_own);
        ends.find_map(|end| Some((at(&whole[..end])?, whole[end..].to_vec())))
    };
    let mut used: Vec<Vec<(usize, Vec<String>)>> = Vec::new();
    let mut passed_on = BTreeMap::new();
    for (file, path) in files.iter().enumerate() {
        let mut all = Vec::new();
        for (is_public, named) in use_statements(&code(path)) {
            for named in named {
                let Some(target) = resolve(&modules[file], &named) else {
                    continue;
                };
                if let Some(last) = named.last().filter(|_| is_public) {
                    passed_on.insert((file, last.clone()), target.clone());
                }
                all.push(target);
            }
        }
        used.push(all);
    }
    let edges: Vec<BTreeSet<usize>> = used
        .into_iter()
        .map(|all| {
            let ends = all.into_iter().map(|mut target| {
                for _ in 0..6 {
                    let name = target.1.first().cloned().unwrap_or_default();
                    match passed_on.get(&(target.0, name)) {
                        Some(next) => target = next.clone(),
                        None => break,
                    }
                }
                target.0
            });
            ends.filter(|end| !modules[*end].is_empty()).collect()
        })
        .collect();
    let reached: Vec<BTreeSet<usize>> = (0..files.len())
        .map(|start| {
            let mut seen = BTreeSet::new();
            let mut next: Vec<usize> = edges[start].iter().copied().collect();
            while let Some(file) = next.pop() {
                if seen.insert(file) {
                    next.extend(&edges[file]);
                }
            }
            seen
        })
        .collect();
    let mut circles = Vec::new();
    for file in 0..files.len() {
        let mut circle = reached[file].clone();
        circle.retain(|other| reached[*other].contains(&file));
        if circle.len() > 1 && circle.first() == Some(&file) {
            let first = &modules[file];
            let is_shared = |end: &usize| {
                let mut all = circle.iter();
                all.all(|file| modules[*file].starts_with(&first[..*end]))
            };
            let shared = (0..=first.len()).rev().find(is_shared).unwrap_or_default();
            let names = circle.iter().map(|file| modules[*file].join("::"));
            circles.push((
                format!("{name} {}", first[..shared].join("::")),
                names.collect(),
            ));
        }
    }
    circles
}

/// Returns the `use` statements of `code`, without its tests: whether others see them, and the paths that they name.
fn use_statements(code: &str) -> Vec<(bool, BTreeSet<Vec<String>>)> {
    let own = code.split("#[cfg(test)]\nmod ").next().unwrap();
    let statements = own.split(';').filter_map(|statement| {
        let line = |start: &str| {
            let at = statement.rfind(&format!("\n{start}"));
            at.map(|at| at + 1)
                .or_else(|| statement.starts_with(start).then_some(0))
        };
        let at = line("pub").max(line("use "))?;
        let is_public = statement[at..].starts_with("pub");
        let (before, tree) = statement[at..].split_once("use ")?;
        let is_use = before.is_empty() || before.starts_with("pub") && !before.contains('\n');
        let mut paths = BTreeSet::new();
        leaves(tree, &[], &mut paths);
        is_use.then_some((is_public, paths))
    });
    statements.collect()
}

#[test]
fn use_statements_are_found() {
    let code = "mod a;\n\nuse std::fmt;\nuse a::{self, B};\npub(crate) use super::c::D as E;\n\npub fn f() {\n    use G;\n}";
    let found = use_statements(code);
    let all: Vec<String> = found
        .iter()
        .flat_map(|(is_public, paths)| {
            let mark = if *is_public { "pub " } else { "" };
            paths
                .iter()
                .map(move |path| format!("{mark}{}", path.join("::")))
        })
        .collect();
    assert_eq!(all, ["std::fmt", "a", "a::B", "pub super::c::D"]);
}
