//! Commands and texts of tables: the constant forms of [`Advice`] and [`Prose`].

use std::fmt;

use super::advice::{Advice, Fix, Line, Prose, Word};

/// A command in a table.
#[derive(Clone, Copy, Debug)]
pub struct Example {
    form: Form,
    /// The words that stand for values.
    values: &'static [&'static str],
}

#[derive(Clone, Copy, Debug)]
enum Form {
    Kpx(&'static [&'static str]),
    OnNode(&'static str),
    Anywhere(&'static str),
}

impl Example {
    /// Returns a command of kpx: its arguments.
    pub const fn kpx(words: &'static [&'static str]) -> Self {
        Self {
            form: Form::Kpx(words),
            values: &[],
        }
    }

    /// Returns a command line for a shell on the node.
    pub const fn on_node(line: &'static str) -> Self {
        Self {
            form: Form::OnNode(line),
            values: &[],
        }
    }

    /// Returns a command line for a shell that reaches the cluster.
    pub const fn anywhere(line: &'static str) -> Self {
        Self {
            form: Form::Anywhere(line),
            values: &[],
        }
    }

    /// Returns the same command, in which `values` stand for values; of kpx, each is a whole argument.
    #[must_use]
    pub const fn with(self, values: &'static [&'static str]) -> Self {
        Self { values, ..self }
    }

    /// Returns the command to run.
    pub fn advice(self) -> Advice {
        let word = |word: &&'static str| {
            if self.values.contains(word) {
                Word::Value(word)
            } else {
                Word::from(*word)
            }
        };
        match self.form {
            Form::Kpx(words) => Advice::Kpx(words.iter().map(word).collect()),
            Form::OnNode(line) => Advice::OnNode(Line::with(line, self.values)),
            Form::Anywhere(line) => Advice::Anywhere(Line::with(line, self.values)),
        }
    }
}

impl fmt::Display for Example {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.advice())
    }
}

/// A text in a table, in which each `{}` stands for the next of its commands.
#[derive(Clone, Copy, Debug)]
pub struct Text {
    template: &'static str,
    commands: &'static [Example],
}

impl Text {
    /// Returns a text without commands of kpx.
    pub const fn plain(text: &'static str) -> Self {
        Self::with(text, &[])
    }

    /// Returns a text with `commands` in its holes.
    pub const fn with(template: &'static str, commands: &'static [Example]) -> Self {
        Self { template, commands }
    }

    /// Returns the text with its commands.
    pub fn prose(self) -> Prose {
        let mut commands = self.commands.iter();
        let mut prose = Prose::default();
        for (at, text) in self.template.split("{}").enumerate() {
            if at > 0
                && let Some(command) = commands.next()
            {
                prose = prose.command(command.advice());
            }
            prose = prose.and(text);
        }
        prose
    }
}

impl fmt::Display for Text {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.prose())
    }
}

impl From<Text> for Prose {
    fn from(text: Text) -> Self {
        text.prose()
    }
}

impl From<Text> for Fix {
    fn from(text: Text) -> Self {
        Self::said(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check;

    /// Words that stand for values in the commands of checks.
    const VALUES: &[&str] = &[
        "ADDRESS",
        "BUNDLE",
        "CHAIN",
        "FILE",
        "ID",
        "KEY",
        "LINK",
        "MODE",
        "NAME",
        "NAMESPACE",
        "NODE",
        "PID",
        "POD",
        "PORT",
        "RELEASE",
        "RULE",
        "SELECTOR",
        "SERVICE",
        "SERVICE-ADDRESS",
        "SET",
    ];

    /// Returns the words of a command that look like values.
    fn suspects(command: &str) -> Vec<&str> {
        let words = command.split(|c: char| !c.is_ascii_alphanumeric() && c != '_' && c != '-');
        words.filter(|word| VALUES.contains(word)).collect()
    }

    #[test]
    fn every_word_of_a_check_that_stands_for_a_value_is_declared() {
        for check in check::all() {
            for example in check.commands.iter().chain(check.fix.commands) {
                let line = example.to_string();
                let declared = example.values.join(" ");
                for value in example.values {
                    assert!(line.contains(value), "{}: {line}: no {value}", check.id);
                }
                // A column of kubectl has such a name, too.
                for suspect in suspects(&line.replace(",NAME:", "")) {
                    let is_declared = suspects(&declared).contains(&suspect);
                    assert!(
                        is_declared,
                        "{}: {line}: {suspect} is not declared",
                        check.id
                    );
                }
                assert_eq!(example.advice().is_complete(), example.values.is_empty());
            }
        }
    }

    #[test]
    fn every_hole_of_a_text_has_its_command() {
        for check in check::all() {
            let holes = check.fix.template.matches("{}").count();
            assert_eq!(holes, check.fix.commands.len(), "{}", check.id);
            let mut spans = check.fix.template.split('`').skip(1).step_by(2);
            let plain = spans.find(|span| span.starts_with("kpx "));
            assert_eq!(plain, None, "{}: a command of kpx is a hole", check.id);
        }
    }

    #[test]
    fn a_text_is_printed_with_its_commands() {
        const COMMANDS: &[Example] = &[
            Example::kpx(&["reconcile", "--cleanup", "MODE"]).with(&["MODE"]),
            Example::kpx(&["doctor"]),
        ];
        let text = Text::with("Run {}, then {}.", COMMANDS);
        assert_eq!(
            text.to_string(),
            "Run `kpx reconcile --cleanup MODE`, then `kpx doctor`."
        );
        let prose = text.prose();
        let complete: Vec<bool> = prose.commands().map(Advice::is_complete).collect();
        assert_eq!(complete, [false, true]);
    }
}
