//! The command lines of a page.

/// A command line of a page.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) struct Line<'a> {
    /// The heading above it.
    pub(super) section: &'a str,
    /// The command, without prompt and comment.
    pub(super) command: &'a str,
}

/// Returns the command lines in the `console` blocks of `text`, in order.
pub(super) fn lines(text: &str) -> Vec<Line<'_>> {
    let (mut section, mut inside) = ("", false);
    let mut found = Vec::new();
    for line in text.lines() {
        if let Some(info) = line.strip_prefix("```") {
            assert!(inside || info == "console", "a block that no test runs");
            inside = !inside;
        } else if inside {
            let command = line.strip_prefix("$ ").or(line.strip_prefix("# "));
            let command = command.unwrap_or_else(|| panic!("{line:?} has no prompt"));
            let command = command.split("  #").next().unwrap_or_default().trim_end();
            found.push(Line { section, command });
        } else if let Some(heading) = line.strip_prefix("## ") {
            section = heading;
        }
    }
    found
}

/// Splits a command into words, as a shell does with single quotes.
pub(super) fn words(command: &str) -> Vec<String> {
    let mut words: Vec<String> = Vec::new();
    let mut word: Option<String> = None;
    let mut quoted = false;
    for letter in command.chars() {
        match letter {
            '\'' => {
                quoted = !quoted;
                word.get_or_insert_default();
            }
            ' ' if !quoted => words.extend(word.take()),
            letter => word.get_or_insert_default().push(letter),
        }
    }
    words.extend(word);
    words
}

#[test]
fn lines_have_their_section_and_no_prompt() {
    let text = "# A\n\n## Check\n\n```console\n# kpx doctor  # look\n$ b 'c d'\n```\n\n## Go back\n\n```console\n$ e\n```\n";
    let line = |section, command| Line { section, command };
    let wanted = [
        line("Check", "kpx doctor"),
        line("Check", "b 'c d'"),
        line("Go back", "e"),
    ];
    assert_eq!(lines(text), wanted);
    assert_eq!(words("a -p '{\"b\": 1}' c"), ["a", "-p", "{\"b\": 1}", "c"]);
    assert_eq!(
        words("a -o jsonpath='{.x y}'"),
        ["a", "-o", "jsonpath={.x y}"]
    );
}
