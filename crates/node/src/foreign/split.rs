//! Finds the outputs of commands in a pasted text.

use super::command::{Command, prompt};
use super::rules;

/// The output of one command, as far as it is shown.
#[derive(Clone, Debug, Default)]
pub(super) struct Section {
    /// The host, if a prompt names it.
    pub(super) host: Option<String>,
    /// The command, if it is known.
    pub(super) command: Option<Command>,
    /// The lines.
    pub(super) lines: Vec<String>,
}

/// Returns the text of `bytes`: UTF-8 or UTF-16.
pub(super) fn decode(bytes: &[u8]) -> String {
    let wide = |from: fn([u8; 2]) -> u16, bytes: &[u8]| {
        let units: Vec<u16> = bytes
            .chunks_exact(2)
            .map(|two| from([two[0], two[1]]))
            .collect();
        String::from_utf16_lossy(&units)
    };
    match bytes {
        [0xff, 0xfe, rest @ ..] => wide(u16::from_le_bytes, rest),
        [0xfe, 0xff, rest @ ..] => wide(u16::from_be_bytes, rest),
        [0xef, 0xbb, 0xbf, rest @ ..] => String::from_utf8_lossy(rest).into_owned(),
        _ => String::from_utf8_lossy(bytes).into_owned(),
    }
}

/// Splits a text at prompts. Lines before the first one have no command.
pub(super) fn sections(text: &str) -> Vec<Section> {
    let mut sections = vec![Section::default()];
    let mut host: Option<String> = None;
    for line in clean(text) {
        if let Some(prompt) = prompt(&line) {
            if prompt.host.is_some() {
                host.clone_from(&prompt.host);
            } else if line.trim_start().starts_with('$') {
                // A bare prompt names no host.
                host = None;
            }
            sections.push(Section {
                host: host.clone(),
                command: prompt.command,
                lines: Vec::new(),
            });
        } else if let Some(section) = sections.last_mut() {
            section.lines.push(line);
        }
    }
    for section in &mut sections {
        if section.lines.iter().any(|line| rules::is_chain_line(line)) {
            section.lines = unwrapped(&section.lines);
        }
    }
    sections.retain(|section| section.lines.iter().any(|line| !line.trim().is_empty()));
    sections
}

/// Returns the lines without what chats, mails and pages add.
fn clean(text: &str) -> Vec<String> {
    let mut lines: Vec<String> = text.replace('\r', "").lines().map(plain).collect();
    for _ in 0..3 {
        let filled = lines.iter().filter(|line| !line.trim().is_empty()).count();
        let Some(mark) = ["> ", "| "].into_iter().find(|mark| {
            let quoted = lines
                .iter()
                .filter(|line| line.starts_with(mark) || line.trim_end() == mark.trim_end())
                .count();
            filled > 2 && quoted * 10 > filled * 6
        }) else {
            break;
        };
        for line in &mut lines {
            if let Some(rest) = line.strip_prefix(mark) {
                *line = rest.to_owned();
            } else if line.trim_end() == mark.trim_end() {
                line.clear();
            }
        }
    }
    let is_fence = |line: &String| {
        let line = line.trim_start();
        line.starts_with("```") || line.starts_with("~~~")
    };
    for line in lines.iter_mut().filter(|line| is_fence(line)) {
        line.clear();
    }
    without_gutter(&lines)
}

/// Takes colours, tags, entities and typography out of a line.
fn plain(line: &str) -> String {
    let mut new = String::with_capacity(line.len());
    let mut chars = line.chars().peekable();
    while let Some(c) = chars.next() {
        match c {
            '\u{1b}' => {
                if chars.next_if_eq(&'[').is_some() {
                    for c in chars.by_ref() {
                        if c.is_ascii_alphabetic() {
                            break;
                        }
                    }
                }
            }
            '\u{a0}' | '\u{2007}' | '\u{2009}' | '\u{202f}' => new.push(' '),
            '\u{200b}' | '\u{feff}' => {}
            '\u{201c}' | '\u{201d}' => new.push('"'),
            '\u{2018}' | '\u{2019}' => new.push('\''),
            '\u{2026}' => new.push_str("..."),
            '\u{2013}' | '\u{2014}' => {
                // `–>` is `->`; a dash before a letter is `--`, and so is one that stands alone.
                match chars.peek() {
                    Some('>') => new.push('-'),
                    _ => new.push_str("--"),
                }
            }
            c => new.push(c),
        }
    }
    for tag in [
        "<br>",
        "<br/>",
        "<br />",
        "<pre>",
        "</pre>",
        "<code>",
        "</code>",
        "<p>",
        "</p>",
        "<details>",
        "</details>",
    ] {
        if new.contains(tag) {
            new = new.replace(tag, "");
        }
    }
    if new.contains('&') {
        for (entity, c) in [
            ("&lt;", "<"),
            ("&gt;", ">"),
            ("&quot;", "\""),
            ("&#39;", "'"),
            ("&nbsp;", " "),
            ("&amp;", "&"),
        ] {
            new = new.replace(entity, c);
        }
    }
    new
}

/// Drops lines of digits that count from 1: the line numbers of a page.
fn without_gutter(lines: &[String]) -> Vec<String> {
    let number = |line: &String| line.trim().parse::<usize>().ok();
    let mut kept = Vec::with_capacity(lines.len());
    let mut at = 0;
    while at < lines.len() {
        if number(&lines[at]) == Some(1) {
            let run = lines[at..]
                .iter()
                .enumerate()
                .take_while(|(place, line)| number(line) == Some(place + 1))
                .count();
            if run > 1 {
                at += run;
                continue;
            }
        }
        kept.push(lines[at].clone());
        at += 1;
    }
    kept
}

/// Joins the lines of a listing that a terminal broke.
fn unwrapped(lines: &[String]) -> Vec<String> {
    let width = lines
        .iter()
        .map(|line| line.chars().count())
        .max()
        .unwrap_or_default();
    let full = lines
        .iter()
        .filter(|line| line.chars().count() == width)
        .count();
    let breaks = full > 2
        && width >= 60
        && lines
            .iter()
            .any(|line| !line.trim().is_empty() && !rules::is_of_listing(line));
    if !breaks {
        return lines.to_vec();
    }
    let mut joined: Vec<String> = Vec::new();
    let mut last = 0;
    for line in lines {
        let length = line.chars().count();
        match joined.last_mut() {
            Some(before) if last == width && !rules::starts_row(line) => before.push_str(line),
            _ => joined.push(line.clone()),
        }
        last = length;
    }
    joined
}
