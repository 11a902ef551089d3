//! Joins lines that a terminal broke at its right edge.

use super::{kubectl, links, lists, reader, rules};

/// The fewest columns of a terminal.
const NARROWEST: usize = 60;

/// Returns the lines of an output, with those joined that a terminal broke.
pub(super) fn unwrapped(mut lines: Vec<String>) -> Vec<String> {
    lines = joined(lines, starts_listed);
    lines = joined(lines, starts_saved);
    if lines.iter().any(|line| kubectl::is_yaml(line)) {
        lines = joined(lines, starts_yaml);
    }
    if let Some(at) = lines.iter().position(|line| links::is_link(line)) {
        let mut block = lines.split_off(at);
        let end = block.iter().position(|line| line.trim().is_empty());
        let rest = block.split_off(end.unwrap_or(block.len()));
        lines.extend(joined(block, links::is_of_links));
        lines.extend(rest);
    }
    tables(&nftables(lines))
}

fn width_of(line: &str) -> usize {
    line.chars().count()
}

/// Joins lines as wide as the terminal with the next ones, up to one that `starts` a row.
fn joined(lines: Vec<String>, starts: fn(&str) -> bool) -> Vec<String> {
    let rows = lines.iter().filter(|line| starts(line));
    let width = rows.map(|line| width_of(line)).max().unwrap_or_default();
    if width < NARROWEST {
        return lines;
    }
    let is_rest = |line: &str| !line.trim().is_empty() && !starts(line) && !rules::is_cut(line);
    let pairs = lines
        .windows(2)
        .filter(|pair| width_of(&pair[0]) == width && starts(&pair[0]));
    let (full, broken) = pairs.fold((0, 0), |(full, broken), pair| {
        (full + 1, broken + usize::from(is_rest(&pair[1])))
    });
    if broken == 0 || broken == 1 && full > 1 {
        return lines;
    }
    let mut joined: Vec<String> = Vec::with_capacity(lines.len());
    let (mut last, mut in_row) = (0, false);
    for line in lines {
        let (length, goes_on) = (width_of(&line), in_row && is_rest(&line));
        match joined.last_mut() {
            Some(before) if goes_on && last == width => before.push_str(&line),
            // The blank at the edge was taken off.
            Some(before) if goes_on && last + 1 == width && !line.starts_with(' ') => {
                before.push(' ');
                before.push_str(&line);
            }
            _ => {
                in_row = starts(&line);
                joined.push(line);
            }
        }
        last = length;
    }
    joined
}

/// Returns whether `line` begins a row of a listing, or is one.
fn starts_listed(line: &str) -> bool {
    rules::starts_row(line) || rules::is_of_listing(line)
}

/// Returns whether `line` begins a line of `iptables-save` or `iptables -S`.
fn starts_saved(line: &str) -> bool {
    let line = line.trim_start();
    let starts = ["-A ", "-P ", "-N ", ":KUBE-", "# ", "["];
    starts.iter().any(|start| line.starts_with(start))
        || line == "COMMIT"
        || rules::is_of_save(line)
}

/// Returns whether `line` may begin a line of YAML of the API.
fn starts_yaml(line: &str) -> bool {
    const KEYS: [&str; 12] = [
        "apiVersion",
        "kind",
        "metadata",
        "items",
        "spec",
        "status",
        "data",
        "subsets",
        "addressType",
        "endpoints",
        "ports",
        "immutable",
    ];
    line.starts_with([' ', '-', '#'])
        || line
            .split_once(':')
            .is_some_and(|(key, _)| KEYS.contains(&key))
}

/// Joins the lines within a table of nftables that begin at the left edge: `nft` indents all.
fn nftables(lines: Vec<String>) -> Vec<String> {
    if !lines.iter().any(|line| lists::is_table(line)) {
        return lines;
    }
    let indents = lines.iter().any(|line| line.starts_with(['\t', ' ']));
    let mut joined: Vec<String> = Vec::with_capacity(lines.len());
    let mut depth = 0;
    for line in lines {
        let is_rest = indents
            && depth > 0
            && !line.is_empty()
            && !line.starts_with(['\t', ' ', '}', '#'])
            && !rules::is_cut(&line);
        depth += reader::braces(&line);
        match joined.last_mut() {
            Some(before) if is_rest => before.push_str(&line),
            _ => joined.push(line),
        }
    }
    joined
}

/// Joins the rows of tables of kubectl whose titles are broken.
fn tables(lines: &[String]) -> Vec<String> {
    let mut new: Vec<String> = Vec::with_capacity(lines.len());
    let mut at = 0;
    while at < lines.len() {
        let is_title = kubectl::is_title(lines[at].trim());
        let block = lines[at..]
            .iter()
            .take_while(|line| !line.trim().is_empty())
            .count();
        if !is_title || block < 3 {
            new.push(lines[at].clone());
            at += 1;
            continue;
        }
        new.extend(table(&lines[at..at + block]));
        at += block;
    }
    new
}

fn table(lines: &[String]) -> Vec<String> {
    let is_upper = |line: &String| {
        !line.trim().is_empty()
            && line
                .chars()
                .all(|c| c.is_ascii_uppercase() || "-_() ".contains(c))
    };
    let titles = lines.iter().take_while(|line| is_upper(line)).count();
    let width = lines.iter().map(|line| width_of(line)).max();
    let width = width.unwrap_or_default();
    if titles < 2 || width < NARROWEST {
        return lines.to_vec();
    }
    let padded = |line: &String| format!("{line}{}", " ".repeat(width - width_of(line)));
    let join = |lines: &[String]| {
        let (last, first) = lines
            .split_last()
            .map_or(("", &[][..]), |(last, first)| (last.as_str(), first));
        first.iter().map(padded).collect::<String>() + last
    };
    let title = join(&lines[..titles]);
    let last = title.trim_end().rfind(' ').map_or(0, |at| at + 1);
    let mut new = vec![title];
    let mut rest = &lines[titles..];
    while !rest.is_empty() {
        // The last column has a value in every row.
        let fewest = (last / width + 1).min(rest.len());
        let full = rest[fewest - 1..]
            .iter()
            .take_while(|line| width_of(line) == width)
            .count();
        let count = (fewest + full).min(rest.len());
        new.push(join(&rest[..count]));
        rest = &rest[count..];
    }
    new
}
