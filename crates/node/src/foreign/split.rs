//! Finds the outputs of commands in a pasted text.

use super::command::{Command, prompt};
use super::prefixes::{self, Line};
use super::wraps;
use super::{ipvs, kubectl, links, rules};

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

impl Section {
    fn is_journal(&self) -> bool {
        self.command.as_ref().is_some_and(Command::is_of_journal)
    }
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
        let Line { text, host: marked } = line;
        if marked.is_some() && marked != host {
            host = marked;
            match sections.last_mut() {
                // The prompt named no host, but the lines of the journal do.
                Some(of) if of.host.is_none() && of.is_journal() => of.host.clone_from(&host),
                _ => sections.push(Section {
                    host: host.clone(),
                    ..Section::default()
                }),
            }
        }
        if let Some(prompt) = prompt(&text) {
            if prompt.host.is_some() {
                host.clone_from(&prompt.host);
            } else if text.trim_start().starts_with('$') {
                // A bare prompt names no host.
                host = None;
            }
            let debugged = prompt.command.as_ref().and_then(Command::debugged_node);
            if let Some(node) = debugged {
                host = Some(node.to_owned());
            }
            sections.push(Section {
                host: host.clone(),
                command: prompt.command,
                lines: Vec::new(),
            });
        } else if let Some(section) = sections.last_mut() {
            section.lines.push(text);
        }
    }
    for section in &mut sections {
        let lines = without_pager(std::mem::take(&mut section.lines));
        section.lines = wraps::unwrapped(outdented(lines));
    }
    // Without a prompt behind it, nothing shows that the last output is complete.
    if let Some(last) = sections.last_mut() {
        end(&mut last.lines);
    }
    sections.retain(|section| section.lines.iter().any(|line| !line.trim().is_empty()));
    sections
}

/// Marks a cut at the end of `lines` if the last one is a title whose rows are missing, or a row that ends in the middle.
fn end(lines: &mut Vec<String>) {
    let is_filled = |line: &String| !line.trim().is_empty();
    let mut filled = lines.iter().rev().filter(|line| is_filled(line));
    let (Some(last), before) = (filled.next(), filled.next()) else {
        return;
    };
    let before = before.map_or("", String::as_str);
    let is_half = links::is_half_link(before, last) || links::is_half_route(before, last);
    if is_half || ipvs::is_server(last) || rules::is_chain_line(last) {
        if is_half {
            lines.truncate(lines.iter().rposition(is_filled).unwrap_or_default());
        }
        lines.push("...".to_owned());
    }
}

/// Returns the lines without the additions of chats, mails, pages and logs.
fn clean(text: &str) -> Vec<Line> {
    let text = if text.contains('\n') {
        text.to_owned()
    } else {
        text.replace('\r', "\n")
    };
    // Preformatted text of a page may begin and end within a line.
    let text = text.replace("<pre", "\n<pre").replace("</pre>", "</pre>\n");
    let lines: Vec<String> = text.lines().map(plain).collect();
    let lines = unfenced(unquoted(lines));
    prefixes::without(without_gutter(&lines))
}

/// Takes the marks of quotes off, `>` of a mail and `|` of a page, of each level.
fn unquoted(mut lines: Vec<String>) -> Vec<String> {
    for _ in 0..8 {
        let is_filled = |line: &&String| !line.trim().is_empty();
        let filled = lines.iter().filter(is_filled).count();
        let quoted = |mark: char| {
            let is_quoted = |line: &&String| {
                let mut chars = line.trim_start().chars();
                // `|` stands alone: rules of tables have several.
                chars.next() == Some(mark) && (mark == '>' || chars.next().is_none_or(|c| c == ' '))
            };
            lines.iter().filter(is_quoted).count()
        };
        let Some(mark) = ['>', '|']
            .into_iter()
            .find(|mark| filled > 2 && quoted(*mark) * 10 > filled * 6)
        else {
            break;
        };
        let is_blank = |line: &&String| {
            let rest = line.trim_start().strip_prefix(mark);
            rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(' '))
        };
        let takes_blank = lines.iter().filter(is_blank).count() * 2 > quoted(mark);
        for line in &mut lines {
            if let Some(rest) = line.trim_start().strip_prefix(mark) {
                let rest = rest
                    .strip_prefix(' ')
                    .filter(|_| takes_blank)
                    .unwrap_or(rest);
                *line = rest.to_owned();
            }
        }
    }
    lines
}

/// Empties the lines of fences, and removes their indentation from the lines between them.
fn unfenced(mut lines: Vec<String>) -> Vec<String> {
    let mut open: Option<(usize, &str)> = None;
    for line in &mut lines {
        let indent = indentation(line);
        let mark = ["```", "~~~"]
            .into_iter()
            .find(|mark| line.trim_start().starts_with(mark));
        match (mark, open) {
            (Some(mark), None) => {
                open = Some((indent, mark));
                // A chat puts the first line right after the fence.
                let rest = line.trim_start().trim_start_matches(['`', '~']);
                if prompt(rest).is_some() {
                    *line = rest.to_owned();
                    continue;
                }
            }
            (Some(mark), Some((_, before))) if mark == before => open = None,
            (_, Some((depth, _))) => {
                let taken = depth.min(indent);
                line.drain(..taken);
                continue;
            }
            (None, None) => continue,
        }
        line.clear();
    }
    lines
}

/// Returns the number of blanks that `line` begins with.
fn indentation(line: &str) -> usize {
    line.bytes().take_while(|byte| *byte == b' ').count()
}

/// Removes the indentation of outputs that a page indents as a whole.
fn outdented(mut lines: Vec<String>) -> Vec<String> {
    let (mut before, mut after_blank, mut taken) = (0, true, 0);
    for line in &mut lines {
        if line.trim().is_empty() {
            after_blank = true;
            continue;
        }
        let indent = indentation(line);
        if indent < taken {
            taken = 0;
        }
        let text = line.trim_start();
        let begins = || {
            kubectl::is_yaml(text)
                || kubectl::is_title(text.trim_end())
                || text.starts_with("Name:")
                || text.trim_end() == "{"
                || text.starts_with("table ")
        };
        if taken == 0 && after_blank && indent > before && begins() {
            taken = indent;
        }
        (before, after_blank) = (indent, false);
        line.drain(..taken);
    }
    lines
}

/// Drops the marks of `less` and `more` between the rows of an output. If the user quit, the last page is cut.
fn without_pager(lines: Vec<String>) -> Vec<String> {
    let mut kept: Vec<String> = Vec::with_capacity(lines.len());
    let mut is_open = false;
    for line in lines {
        let line = match line.trim_start().strip_prefix("--More--") {
            Some(rest) => {
                let rest = rest.trim_start();
                let inside = rest.strip_prefix('(').and_then(|rest| rest.split_once(')'));
                is_open = true;
                match inside {
                    Some((_, rest)) => rest.trim_start().to_owned(),
                    None => rest.to_owned(),
                }
            }
            None => line,
        };
        let text = line.trim();
        let words: Vec<&str> = text.split_whitespace().collect();
        let is_page = || {
            let number = |text: &str| !text.is_empty() && text.bytes().all(|c| c.is_ascii_digit());
            let range = |text: &str| {
                let ends = text.split_once('-');
                ends.is_some_and(|(from, to)| number(from) && to.split('/').all(number))
            };
            words.first() == Some(&"lines") && words.get(1).is_some_and(|word| range(word))
        };
        if text.ends_with("(END)") && (text == "(END)" || is_page()) || text == "~" {
            is_open = false;
        } else if text == ":" || is_page() || text.starts_with("Manual page ") {
            is_open = true;
        } else if !text.is_empty() {
            is_open = false;
            kept.push(line);
        } else {
            kept.push(line);
        }
    }
    if is_open {
        kept.push("...".to_owned());
    }
    kept
}

/// Removes colours, titles of terminals, deleted input, tags, entities and typography from a line.
fn plain(line: &str) -> String {
    // Text that a program wrote over is gone.
    let line = line.trim_end_matches('\r');
    let line = line
        .rsplit('\r')
        .find(|part| !part.trim().is_empty())
        .unwrap_or_default();
    let mut new = String::with_capacity(line.len());
    let mut chars = line.chars().peekable();
    while let Some(c) = chars.next() {
        match c {
            '\u{1b}' => match chars.next() {
                Some('[') => {
                    let is_end = |c: &char| c.is_ascii_alphabetic() || *c == '~' || *c == '@';
                    chars.by_ref().find(is_end);
                }
                Some(']') => {
                    let mut before = ' ';
                    for c in chars.by_ref() {
                        if c == '\u{7}' || before == '\u{1b}' && c == '\\' {
                            break;
                        }
                        before = c;
                    }
                }
                Some('(' | ')') => drop(chars.next()),
                _ => {}
            },
            '\u{8}' => drop(new.pop()),
            '\u{a0}' | '\u{2002}'..='\u{200a}' | '\u{202f}' | '\u{3000}' => new.push(' '),
            '\u{200b}'..='\u{200f}' | '\u{2060}' | '\u{feff}' => {}
            '\t' => new.push(c),
            c if c.is_control() => {}
            '\u{201c}'..='\u{201f}' => new.push('"'),
            '\u{2018}'..='\u{201b}' => new.push('\''),
            '\u{2026}' => new.push_str("..."),
            '\u{2010}' | '\u{2011}' | '\u{2212}' => new.push('-'),
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
    let mut new = untagged(&new);
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

/// Removes the tags of a page from a line, also those with attributes.
fn untagged(line: &str) -> String {
    const TAGS: [&str; 10] = [
        "br", "pre", "code", "p", "details", "summary", "span", "div", "b", "a",
    ];
    let mut new = String::with_capacity(line.len());
    let mut rest = line;
    while let Some((before, after)) = rest.split_once('<') {
        new.push_str(before);
        let name = after.strip_prefix('/').unwrap_or(after);
        let end = name.find(|c: char| !c.is_ascii_alphanumeric());
        let name = &name[..end.unwrap_or(name.len())];
        match after.split_once('>') {
            Some((inside, after)) if TAGS.contains(&name) && !inside.contains('<') => rest = after,
            _ => {
                new.push('<');
                rest = after;
            }
        }
    }
    new.push_str(rest);
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
