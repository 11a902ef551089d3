//! The command lines of a document: its `console` blocks, with the quoted outputs.

/// A command line of a document.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct Line<'a> {
    /// The heading above it.
    pub(crate) section: &'a str,
    /// The value of the last comment `<!-- recording: … -->` above it.
    pub(crate) recording: Option<&'a str>,
    /// The command, without prompt and comment.
    pub(crate) command: &'a str,
    /// The quoted output, with line ends.
    pub(crate) output: &'a str,
}

/// Returns the command lines in the `console` blocks of `text`, in order.
pub(crate) fn lines(text: &str) -> Vec<Line<'_>> {
    let (mut section, mut recording, mut block) = ("", None, None);
    let mut found: Vec<Line<'_>> = Vec::new();
    let mut rest = text;
    while let Some((line, after)) = rest.split_once('\n') {
        if let Some(info) = line.strip_prefix("```") {
            block = block.is_none().then_some(info);
        } else if block == Some("console") {
            let prompt = line.strip_prefix("$ ").or(line.strip_prefix("# "));
            if let Some(command) = prompt {
                // Pages of kpx print its commands without `sudo`, too.
                let is_plain = !line.starts_with("# kpx") && !line.contains("sudo kpx");
                assert!(is_plain, "{line:?}: write `$ kpx`");
                let command = command.split("  #").next().unwrap_or_default().trim_end();
                let output = &after[..0];
                found.push(Line {
                    section,
                    recording,
                    command,
                    output,
                });
            } else {
                let last = found.last_mut();
                let last = last.unwrap_or_else(|| panic!("{line:?} has no prompt"));
                // Output is a piece of the text: it ends where this line ends.
                let start = last.output.as_ptr() as usize - text.as_ptr() as usize;
                last.output = &text[start..text.len() - after.len()];
            }
        } else if block.is_none() {
            if let Some(heading) = line.strip_prefix("## ") {
                section = heading;
            } else if let Some(value) = line.strip_prefix("<!-- recording: ") {
                recording = value.strip_suffix(" -->");
            }
        }
        rest = after;
    }
    assert_eq!(block, None, "a block does not end");
    found
}

/// Splits a command into words, as a shell does with single quotes.
pub(crate) fn words(command: &str) -> Vec<String> {
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
fn lines_have_their_section_recording_and_output() {
    let text = "# A\n\n## Check\n\n```console\n$ kpx doctor  # look\n$ b 'c d'\n```\n\n## Go back\n\n<!-- recording: x -->\n```console\n$ e\nf\n\ng\n$ h\n```\n\n```yaml\n$ i\n```\n";
    let line = |section, recording, command, output| Line {
        section,
        recording,
        command,
        output,
    };
    let wanted = [
        line("Check", None, "kpx doctor", ""),
        line("Check", None, "b 'c d'", ""),
        line("Go back", Some("x"), "e", "f\n\ng\n"),
        line("Go back", Some("x"), "h", ""),
    ];
    assert_eq!(lines(text), wanted);
    assert_eq!(words("a -p '{\"b\": 1}' c"), ["a", "-p", "{\"b\": 1}", "c"]);
    assert_eq!(
        words("a -o jsonpath='{.x y}'"),
        ["a", "-o", "jsonpath={.x y}"]
    );
}
