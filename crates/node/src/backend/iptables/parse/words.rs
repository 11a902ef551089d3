//! Words of a rule, and options of a match or target.

use super::super::model::Text;

/// Options whose next word is text, even if it looks like an option: `--comment -s`.
const TAKES_TEXT: [&str; 4] = ["--comment", "--log-prefix", "--nflog-prefix", "--string"];

/// One word, quotes included, and where it starts in the rule.
#[derive(Clone, Copy, Debug)]
pub(super) struct Word<'a> {
    pub(super) raw: &'a str,
    pub(super) at: usize,
}

impl<'a> Word<'a> {
    /// Returns the word without quotes and escapes.
    pub(super) fn text(self) -> Text<'a> {
        unquote(self.raw)
    }
}

/// Splits `rule` into `words`, which it replaces.
pub(super) fn split<'a>(rule: &'a str, words: &mut Vec<Word<'a>>) -> Result<(), &'static str> {
    words.clear();
    let bytes = rule.as_bytes();
    let mut at = 0;
    loop {
        while at < bytes.len() && bytes[at].is_ascii_whitespace() {
            at += 1;
        }
        if at == bytes.len() {
            return Ok(());
        }
        let start = at;
        let mut quoted = false;
        while at < bytes.len() {
            match bytes[at] {
                b'"' => quoted = !quoted,
                b'\\' if quoted => at += 1,
                byte if byte.is_ascii_whitespace() && !quoted => break,
                _ => {}
            }
            at += 1;
        }
        if quoted || at > bytes.len() {
            return Err("a quote is not closed");
        }
        words.push(Word {
            raw: &rule[start..at],
            at: start,
        });
    }
}

fn unquote(raw: &str) -> Text<'_> {
    if !raw.contains('"') {
        return Text::Borrowed(raw);
    }
    let inner = raw.strip_prefix('"').and_then(|r| r.strip_suffix('"'));
    if let Some(inner) = inner.filter(|inner| !inner.contains(['"', '\\'])) {
        return Text::Borrowed(inner);
    }
    let mut text = String::with_capacity(raw.len());
    let mut quoted = false;
    let mut chars = raw.chars();
    while let Some(c) = chars.next() {
        match c {
            '"' => quoted = !quoted,
            '\\' if quoted => text.extend(chars.next()),
            c => text.push(c),
        }
    }
    Text::Owned(text)
}

/// Returns the text of `rule` from the first to the last of `words`, as written.
pub(super) fn span<'a>(rule: &'a str, words: &[Word<'a>]) -> Text<'a> {
    match (words.first(), words.last()) {
        (Some(first), Some(last)) => Text::Borrowed(&rule[first.at..last.at + last.raw.len()]),
        _ => Text::Borrowed(""),
    }
}

/// Returns how many of `words` belong to a match or target: up to the next option of iptables itself.
pub(super) fn reach(words: &[Word<'_>]) -> usize {
    (0..words.len())
        .find(|&i| {
            let here = words[i].raw;
            let inverted = here == "!" && words.get(i + 1).is_some_and(|w| own(w.raw));
            (own(here) || inverted) && (i == 0 || !TAKES_TEXT.contains(&words[i - 1].raw))
        })
        .unwrap_or(words.len())
}

/// Returns whether `words` end with a `!` that would invert later words.
pub(super) fn ends_open(words: &[Word<'_>]) -> bool {
    let mut back = words.iter().rev().map(|word| word.raw);
    back.next() == Some("!")
        && back
            .next()
            .is_none_or(|before| !TAKES_TEXT.contains(&before))
}

/// Returns whether `word` is an option of iptables itself rather than of an extension.
fn own(word: &str) -> bool {
    matches!(
        word,
        "-s" | "-d" | "-p" | "-i" | "-o" | "-f" | "-m" | "-j" | "-g" | "-c"
    )
}

/// The options of one match or target.
#[derive(Clone, Copy)]
pub(super) struct Options<'w, 'a> {
    pub(super) words: &'w [Word<'a>],
}

impl<'a> Options<'_, 'a> {
    /// Takes the next option: whether `!` precedes it, and its name.
    pub(super) fn next(&mut self) -> Option<(bool, &'a str)> {
        let (mut first, mut rest) = self.words.split_first()?;
        let inverted = first.raw == "!";
        if inverted {
            (first, rest) = rest.split_first()?;
        }
        self.words = rest;
        Some((inverted, first.raw))
    }

    /// Takes the value of an option; a `!` before it (up to iptables 1.4.2) sets `inverted`.
    pub(super) fn value(&mut self, inverted: &mut bool) -> Option<Word<'a>> {
        let (mut first, mut rest) = self.words.split_first()?;
        if first.raw == "!" {
            *inverted = true;
            (first, rest) = rest.split_first()?;
        }
        self.words = rest;
        Some(*first)
    }

    /// Takes the value of an option and reads it.
    pub(super) fn parse<T: std::str::FromStr>(&mut self, inverted: &mut bool) -> Option<T> {
        self.value(inverted)?.text().parse().ok()
    }
}
