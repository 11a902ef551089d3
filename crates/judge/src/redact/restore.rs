//! The originals of replacements; this needs the key.

use super::Redactor;

impl Redactor {
    /// Returns `text`, a report on evidence that this redactor redacted, with the original names and addresses.
    pub fn restore(&mut self, text: &str) -> String {
        self.addresses.turn(true);
        let text = self.addresses(text);
        self.addresses.turn(false);
        let originals = self.names.originals();
        let is_word = |c: char| c.is_ascii_alphanumeric();
        let mut new = String::with_capacity(text.len());
        let mut rest = text.as_str();
        while let Some(start) = rest.find(is_word) {
            let (before, tail) = rest.split_at(start);
            new.push_str(before);
            // The longest name that begins here.
            let end = tail
                .find(|c| !is_word(c) && !matches!(c, '-' | '_' | '.' | ':' | '/'))
                .unwrap_or(tail.len());
            let run = &tail[..end];
            let ends = run
                .char_indices()
                .filter(|(_, c)| !is_word(*c))
                .flat_map(|(at, _)| [at, at + 1])
                .chain([run.len()]);
            let found = ends
                .rev()
                .find_map(|at| Some((at, originals.get(&run[..at])?)));
            let next = if let Some((at, original)) = found {
                new.push_str(original);
                at
            } else {
                let at = tail.find(|c| !is_word(c)).unwrap_or(tail.len());
                new.push_str(&tail[..at]);
                at
            };
            rest = &tail[next..];
        }
        new.push_str(rest);
        new
    }
}
