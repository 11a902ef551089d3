//! Pages of Markdown as text for a terminal: tables look like the tables of reports, paragraphs are as wide as the
//! terminal.

use crate::render::{Page, Tone};

/// Adds the page `text` to `page`.
pub(crate) fn add(text: &str, page: &mut Page) {
    let mut lines = text.lines().peekable();
    // Items of a list have no empty line between them; other blocks do.
    let (mut is_begun, mut was_item) = (false, false);
    while let Some(line) = lines.next() {
        let body = line.trim_start();
        if body.starts_with("<!--") {
            let mut last = line;
            while !last.contains("-->") {
                let Some(next) = lines.next() else { return };
                last = next;
            }
            continue;
        }
        if body.is_empty() {
            continue;
        }
        if is_begun && !(was_item && is_item(body)) {
            page.line("");
        }
        (is_begun, was_item) = (true, is_item(body));
        if body.starts_with("```") {
            for code in lines
                .by_ref()
                .take_while(|line| !line.trim_start().starts_with("```"))
            {
                page.line(&format!("  {code}"));
            }
        } else if body.starts_with('#') {
            let title = inline(body.trim_start_matches('#').trim());
            page.line(&page.paint(Tone::Strong, &title));
        } else if body.starts_with('|') {
            let mut rows = vec![cells(body)];
            while let Some(row) = lines.next_if(|line| line.trim_start().starts_with('|')) {
                rows.push(cells(row));
            }
            table(&rows, page);
        } else {
            let indent = line.len() - body.len();
            let (lead, first) = lead(body);
            let mut whole = first.to_owned();
            while let Some(next) = lines.next_if(|next| goes_on(next)) {
                whole.push(' ');
                whole.push_str(next.trim());
            }
            page.para(&format!("{}{lead}", " ".repeat(indent)), &inline(&whole));
        }
    }
}

/// Returns the mark of an item of a list, and the text behind it; no mark for a paragraph.
fn lead(body: &str) -> (&str, &str) {
    let number = body.find(|c: char| !c.is_ascii_digit()).unwrap_or(0);
    let mark = match body {
        _ if body.starts_with("- ") || body.starts_with("* ") || body.starts_with("> ") => 2,
        _ if number > 0 && body[number..].starts_with(". ") => number + 2,
        _ => 0,
    };
    body.split_at(mark)
}

fn is_item(body: &str) -> bool {
    !lead(body).0.is_empty()
}

/// Returns whether the line belongs to the paragraph above it.
fn goes_on(line: &str) -> bool {
    let body = line.trim_start();
    let begins = ["#", "|", "```", "<!--"];
    !body.is_empty() && !is_item(body) && !begins.iter().any(|begin| body.starts_with(begin))
}

/// Returns the cells of a row; `|` in a command does not end one.
fn cells(row: &str) -> Vec<String> {
    let mut cells = vec![String::new()];
    let (mut is_code, mut is_escaped) = (false, false);
    for c in row.trim().trim_start_matches('|').chars() {
        match c {
            '|' if !is_code && !is_escaped => cells.push(String::new()),
            _ => {
                is_code ^= c == '`';
                if let Some(cell) = cells.last_mut() {
                    cell.push(c);
                }
            }
        }
        is_escaped = c == '\\';
    }
    // Behind the last `|` is nothing.
    if cells.last().is_some_and(|cell| cell.trim().is_empty()) {
        cells.pop();
    }
    let texts = cells.iter();
    texts
        .map(|cell| inline(cell.trim()).replace("\\|", "|"))
        .collect()
}

fn table(rows: &[Vec<String>], page: &mut Page) {
    let Some((titles, rest)) = rows.split_first() else {
        return;
    };
    let is_rule = |row: &&Vec<String>| {
        let mut cells = row.iter();
        cells.all(|cell| !cell.is_empty() && cell.chars().all(|c| matches!(c, '-' | ':')))
    };
    let rest = rest.iter().filter(|row| !is_rule(row));
    let rest: Vec<Vec<String>> = rest.cloned().collect();
    let titles = titles.iter();
    let titles: Vec<String> = titles
        .map(|title| {
            // A command is in lower case.
            if title.contains('`') {
                title.clone()
            } else {
                title.to_uppercase()
            }
        })
        .collect();
    let columns: Vec<(&str, u8)> = titles.iter().map(|title| (title.as_str(), 0)).collect();
    page.grid(&columns, &rest);
}

/// Returns `text` without marks of bold text, and with the addresses of links on the web.
fn inline(text: &str) -> String {
    let mut out = String::new();
    let mut rest = text;
    let mut is_code = false;
    while let Some(c) = rest.chars().next() {
        if c == '`' {
            is_code = !is_code;
        }
        if !is_code && let Some(after) = rest.strip_prefix("**") {
            rest = after;
            continue;
        }
        if !is_code
            && c == '['
            && let Some((label, after)) = rest[1..].split_once("](")
            && let Some((to, after)) = after.split_once(')')
        {
            out.push_str(&inline(label));
            if to.starts_with("http") && to != label {
                out.extend([" (", to, ")"]);
            }
            rest = after;
            continue;
        }
        out.push(c);
        rest = &rest[c.len_utf8()..];
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::render::Style;

    fn shown(text: &str) -> String {
        let mut page = Page::new(Style {
            width: 40,
            color: false,
            ascii: false,
            wide: false,
            verbose: 0,
            program: "kpx",
        });
        add(text, &mut page);
        page.into_text()
    }

    #[test]
    fn a_page_is_text_and_its_tables_are_those_of_reports() {
        let text = "# Modes\n\nA paragraph of two lines that\nare **joined**, with a [page](other.md) and a\n[site](https://k8s.io).\n\n\
                    <!-- recording: x -->\n```console\n$ kpx show services\n```\n\n- one\n  more\n- two\n\n\
                    | mode | look |\n|---|---|\n| ipvs | `a | b` |\n";
        assert_eq!(
            shown(text),
            "Modes\n\nA paragraph of two lines that are\njoined, with a page and a site\n(https://k8s.io).\n\n  $ kpx show services\n\n\
             - one more\n- two\n\nMODE  LOOK\nipvs  `a | b`\n"
        );
    }
}
