//! The terminal recording `docs/demo/kpx.cast` is a valid cast, and its first commands print this on the recorded node.
//!
//! The kernel test `demo` makes the whole of it again.

use std::fs;
use std::path::Path;

use serde_json::Value;

use crate::command_lines::misunderstood;
use crate::shell::shell;
use crate::support::root;

/// The prompt, in bold.
const PROMPT: &str = "\u{1b}[1m#\u{1b}[0m ";

/// Returns what appears on the screen; `None` if `text` is not a cast of version 2.
fn screen(text: &str) -> Option<String> {
    let mut lines = text.lines();
    let head: Value = serde_json::from_str(lines.next()?).ok()?;
    let is_size = |key: &str| head[key].as_u64().is_some_and(|size| size > 0);
    if head["version"] != 2 || !is_size("width") || !is_size("height") {
        return None;
    }
    let (mut before, mut seen) = (0.0, String::new());
    for line in lines {
        let (at, kind, data): (f64, String, String) = serde_json::from_str(line).ok()?;
        if at < before || kind != "o" {
            return None;
        }
        before = at;
        seen.push_str(&data);
    }
    Some(seen)
}

#[test]
fn the_demo_is_a_cast_of_what_kpx_prints() {
    let cast = fs::read_to_string(root().join("docs/demo/kpx.cast")).unwrap();
    assert!(cast.len() < 20_000, "{}", cast.len());
    let seen = screen(&cast).expect("a cast of version 2");
    let parts: Vec<(&str, &str)> = seen
        .split(PROMPT)
        .skip(1)
        .map(|part| part.split_once("\r\n").unwrap())
        .collect();
    assert_eq!(parts.len(), 5, "{parts:?}");
    for (command, _) in &parts {
        assert_eq!(misunderstood(command), None);
    }
    let bin = Path::new(env!("CARGO_BIN_EXE_kpx")).parent().unwrap();
    let from = root().join("testdata/nodes/ir03-missing-rule");
    let variables = [
        ("KPX_FROM", from.to_str().unwrap()),
        ("COLUMNS", "100"),
        ("LC_ALL", "C.UTF-8"),
    ];
    for (command, shown) in &parts[..2] {
        let line = command.replacen("kpx ", "kpx --color always ", 1);
        let ran = shell(&line, bin, &root(), &root(), &variables);
        let real = String::from_utf8(ran.stdout).unwrap().replace('\n', "\r\n");
        // The recording has a kube-proxy, whose last sync is named among the reasons.
        let parted = |text: &str| {
            let (before, why) = text.split_once("! why: ").unwrap_or((text, ""));
            let cause = why.split(';').next().unwrap_or_default();
            let words: Vec<&str> = cause.split_whitespace().collect();
            (before.to_owned(), words.join(" "))
        };
        assert_eq!(parted(shown), parted(&real), "{command}");
    }
    assert!(parts[0].1.contains("error IR03"), "{}", parts[0].1);
    assert!(parts[3].1.contains("WORKS"), "{}", parts[3].1);
    assert!(parts[4].1.contains("no difference"), "{}", parts[4].1);
}

#[test]
fn text_that_is_no_cast_is_found() {
    let head = r#"{"version": 2, "width": 80, "height": 24}"#;
    let cast = |events: &str| screen(&format!("{head}\n{events}\n"));
    assert_eq!(cast(r#"[0.5, "o", "a\r\n"]"#).as_deref(), Some("a\r\n"));
    assert_eq!(cast("[0.5, \"o\"]"), None);
    assert_eq!(cast("[0.5, \"o\", \"a\"]\n[0.4, \"o\", \"b\"]"), None);
    assert_eq!(screen("{\"version\": 3}\n"), None);
}
