//! Values as YAML, in the style of a hand-written file.

use std::fmt::Write as _;

use serde_json::Value;

/// Returns `value` as YAML, with multi-line texts as literal blocks.
pub(super) fn yaml(value: &Value) -> String {
    let mut text = String::new();
    block(&mut text, value, 0);
    text
}

fn block(text: &mut String, value: &Value, depth: usize) {
    let indent = "  ".repeat(depth);
    match value {
        Value::Object(map) if !map.is_empty() => {
            for (key, value) in map {
                write!(text, "{indent}{}:", plain_key(key)).ok();
                entry(text, value, depth);
            }
        }
        Value::Array(items) if !items.is_empty() => {
            for item in items {
                write!(text, "{indent}-").ok();
                entry(text, item, depth);
            }
        }
        scalar => {
            writeln!(text, "{indent}{scalar}").ok();
        }
    }
}

/// Writes a value after a key or a dash.
fn entry(text: &mut String, value: &Value, depth: usize) {
    match value {
        Value::Object(map) if !map.is_empty() => {
            text.push('\n');
            block(text, value, depth + 1);
        }
        Value::Array(items) if !items.is_empty() => {
            text.push('\n');
            block(text, value, depth + 1);
        }
        Value::String(lines) if is_literal(lines) => {
            text.push_str(" |\n");
            for line in lines.lines() {
                let indent = if line.is_empty() { 0 } else { 2 * (depth + 1) };
                writeln!(text, "{:indent$}{line}", "").ok();
            }
        }
        scalar => {
            writeln!(text, " {scalar}").ok();
        }
    }
}

/// Returns whether `text` fits a literal block: whole lines without odd characters, the first one not indented.
fn is_literal(text: &str) -> bool {
    let odd = |c: char| c.is_control() && c != '\n' && c != '\t';
    text.ends_with('\n')
        && !text.ends_with("\n\n")
        && !text.starts_with([' ', '\n', '\t'])
        && !text.contains(odd)
}

fn plain_key(key: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_./".contains(c);
    if key.starts_with(|c: char| c.is_ascii_alphabetic()) && key.chars().all(is_plain) {
        key.to_owned()
    } else {
        Value::from(key).to_string()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_a_block_cannot_say_is_quoted() {
        for text in ["a", "a\n\n", " a\n", "a\r\nb\n", ""] {
            let said = yaml(&json!({ "k": text }));
            assert_eq!(said, format!("k: {}\n", json!(text)));
        }
    }
}
