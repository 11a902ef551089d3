//! The words of a rule or of a list of elements.

use super::super::super::model::Chain;

/// A piece of the text.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Token<'t> {
    /// Anything between blanks.
    Word(&'t str),
    /// A quoted string.
    Quoted(&'t str),
    /// A brace, parenthesis, comma or semicolon.
    Mark(&'static str),
    /// An empty statement: nft prints it for matches of iptables that it cannot show.
    Nothing,
}

/// The pieces of a text, and how far they are read.
pub(super) struct Tokens<'t> {
    text: &'t str,
    /// Each with where it starts and ends.
    all: Vec<(Token<'t>, usize, usize)>,
    at: usize,
    /// Number of open expressions.
    pub(super) depth: usize,
    pub(super) too_deep: bool,
    /// The family of the table.
    pub(super) family: String,
    /// Anonymous chains that were read so far.
    pub(super) blocks: Vec<Chain>,
}

impl<'t> Tokens<'t> {
    /// Cuts `text` into pieces.
    pub(super) fn new(text: &'t str) -> Self {
        let mut all = Vec::new();
        let bytes = text.as_bytes();
        let (mut at, mut depth) = (0, 0_u32);
        // A blank without a word before it is superfluous.
        let mut blank = true;
        while at < bytes.len() {
            let start = at;
            let byte = bytes[at];
            at += 1;
            let token = match byte {
                b' ' if blank && depth == 0 => Token::Nothing,
                b' ' => {
                    blank = true;
                    continue;
                }
                b'\t' | b'\n' | b'\r' => continue,
                b'"' => {
                    let end = text[at..].find('"').map_or(bytes.len(), |end| at + end);
                    let inner = &text[at..end];
                    at = (end + 1).min(bytes.len());
                    Token::Quoted(inner)
                }
                _ => {
                    if let Some(mark) = mark(byte) {
                        match byte {
                            b'{' => depth += 1,
                            b'}' => depth = depth.saturating_sub(1),
                            _ => {}
                        }
                        Token::Mark(mark)
                    } else {
                        let ends = |&byte: &u8| {
                            byte.is_ascii_whitespace() || byte == b'"' || mark(byte).is_some()
                        };
                        let rest = &bytes[at..];
                        // nft writes `to :meta mark map` without a blank behind the colon.
                        let is_colon =
                            byte == b':' && rest.first().is_some_and(u8::is_ascii_alphabetic);
                        if !is_colon {
                            at += rest.iter().position(ends).unwrap_or(rest.len());
                        }
                        Token::Word(&text[start..at])
                    }
                }
            };
            blank = token == Token::Nothing;
            all.push((token, start, at));
        }
        if blank && !all.is_empty() && text.ends_with(' ') {
            all.push((Token::Nothing, at, at));
        }
        Self {
            text,
            all,
            at: 0,
            depth: 0,
            too_deep: false,
            family: String::new(),
            blocks: Vec::new(),
        }
    }

    /// Cuts the next piece, a word, in two after its first `at` bytes.
    pub(super) fn cut(&mut self, at: usize) {
        if let Some(&(Token::Word(word), start, end)) = self.all.get(self.at)
            && let Some((first, last)) = word.split_at_checked(at)
        {
            let middle = start + at;
            let parts = [
                (Token::Word(first), start, middle),
                (Token::Word(last), middle, end),
            ];
            self.all.splice(self.at..=self.at, parts);
        }
    }

    /// Takes a block in braces, the next piece being the first of them; returns the text within.
    pub(super) fn braced(&mut self) -> Option<&'t str> {
        let (start, mut depth) = (self.all.get(self.at)?.2, 0_u32);
        loop {
            let &(token, end, _) = self.all.get(self.at)?;
            match token {
                Token::Mark("{") => depth += 1,
                Token::Mark("}") => depth = depth.checked_sub(1)?,
                Token::Word(_) | Token::Quoted(_) | Token::Mark(_) | Token::Nothing => {}
            }
            if depth == 0 {
                return self.text.get(start..end);
            }
            self.at += 1;
        }
    }

    /// Returns the next piece without taking it.
    pub(super) fn peek(&self) -> Option<Token<'t>> {
        self.ahead(0)
    }

    /// Returns the piece `by` places after the next.
    pub(super) fn ahead(&self, by: usize) -> Option<Token<'t>> {
        self.all.get(self.at + by).map(|&(token, ..)| token)
    }

    /// Takes the next piece.
    pub(super) fn next(&mut self) -> Option<Token<'t>> {
        let next = self.peek()?;
        self.at += 1;
        Some(next)
    }

    /// Returns the next piece if it is a word.
    pub(super) fn peek_word(&self) -> Option<&'t str> {
        match self.peek() {
            Some(Token::Word(word)) => Some(word),
            _ => None,
        }
    }

    /// Takes the next piece if it is a word.
    pub(super) fn word(&mut self) -> Option<&'t str> {
        let word = self.peek_word()?;
        self.at += 1;
        Some(word)
    }

    /// Takes the next piece if it is this word.
    pub(super) fn take(&mut self, word: &str) -> bool {
        let is = self.peek_word() == Some(word);
        self.at += usize::from(is);
        is
    }

    /// Takes the next piece if it is this mark.
    pub(super) fn take_mark(&mut self, mark: &str) -> bool {
        let is = matches!(self.peek(), Some(Token::Mark(is)) if is == mark);
        self.at += usize::from(is);
        is
    }

    /// Reads a part of an expression with `read`; `None` if it is nested too deeply.
    pub(super) fn within<T>(&mut self, read: impl FnOnce(&mut Self) -> Option<T>) -> Option<T> {
        if self.depth == DEEPEST {
            self.too_deep = true;
            return None;
        }
        self.depth += 1;
        let part = read(self);
        self.depth -= 1;
        part
    }

    /// Returns an error if a part was nested too deeply, and so was not read.
    pub(super) fn check_depth(&self) -> Result<(), String> {
        if self.too_deep {
            return Err(format!(
                "an expression is nested deeper than {DEEPEST} levels"
            ));
        }
        Ok(())
    }

    /// Returns the current position, to return to it.
    pub(super) fn place(&self) -> usize {
        self.at
    }

    /// Goes back to `place`.
    pub(super) fn back_to(&mut self, place: usize) {
        self.at = place;
    }

    /// Returns the text from `place` to the current position.
    pub(super) fn since(&self, place: usize) -> &'t str {
        match (self.all.get(place), self.at.checked_sub(1)) {
            (Some(&(_, start, _)), Some(last)) if last >= place => {
                &self.text[start..self.all[last].2]
            }
            _ => "",
        }
    }
}

fn mark(byte: u8) -> Option<&'static str> {
    Some(match byte {
        b'{' => "{",
        b'}' => "}",
        b'(' => "(",
        b')' => ")",
        b',' => ",",
        b';' => ";",
        _ => return None,
    })
}

/// Maximum nesting of expressions. The kernel's rules have a few levels, but a bundle may have any number, and an
/// expression is read, printed and dropped by recursion. `serde_json` limits the nesting of its text itself.
pub(in crate::backend::nftables::parse) const DEEPEST: usize = 64;
