//! The screen that `kpx` without a command opens, on a terminal.

use std::thread;
use std::time::Duration;

use crate::nodes::bundle_of;
use crate::support::{broken, root};
use crate::terminal::{Previous, Session, lines};

/// Starts kpx with `args` on a terminal of its own, so that it asks no other one for its size.
fn start(size: (u16, u16), args: &[&str]) -> Session {
    let kpx = ["--ctty", env!("CARGO_BIN_EXE_kpx")];
    Session::on(size, "setsid", &[], &[&kpx, args].concat())
}

fn node(name: &str) -> String {
    let path = root().join("testdata/nodes").join(name);
    path.to_str().unwrap().to_owned()
}

/// Returns what is on the glass once nothing has been drawn for a while: a frame may come in pieces.
fn shown(session: &Session) -> String {
    let glass = || lines(&session.seen.lock().unwrap().glass).join("\n") + "\n";
    let mut before = glass();
    loop {
        thread::sleep(Duration::from_millis(300));
        let now = glass();
        if now == before && !now.contains("reading the node") && !now.contains("computing") {
            return now;
        }
        before = now;
    }
}

/// The terminal has left the page of the screen.
fn is_left(seen: &Previous) -> bool {
    let bytes = String::from_utf8_lossy(&seen.bytes);
    let (entered, left) = (bytes.rfind("\u{1b}[?1049h"), bytes.rfind("\u{1b}[?1049l"));
    entered.is_some() && entered < left
}

#[test]
fn the_screen_goes_from_the_list_to_the_cause_and_restores_the_terminal() {
    for (size, name) in [((24, 80), "narrow"), ((50, 200), "wide")] {
        let from = node("ir03-missing-rule");
        let mut session = start(size, &["--from", &from]);
        session.wait("list", |line| line.starts_with("default/redis-master"));
        insta::assert_snapshot!(format!("list_{name}"), shown(&session));
        session.type_in("\r");
        session.wait("picture", |line| line.starts_with("client  "));
        insta::assert_snapshot!(format!("picture_{name}"), shown(&session));
        session.type_in("e");
        session.wait("explanation", |line| line == "why default/redis-master");
        session.type_in("p");
        session.wait("plan", |line| line.starts_with("1 step to"));
        session.type_in("?");
        session.wait("keys", |line| line.starts_with("q  "));
        session.type_in("x\u{7f}");
        session.wait("list again", |line| {
            line.starts_with("default/redis-master")
        });
        session.type_in("/kube-dns\r");
        session.wait("filter", |line| line.contains("/ filter: kube-dns"));
        let filtered = shown(&session);
        // The verdict above the list names it still.
        let is_listed = |line: &str| line.starts_with("default/redis-master");
        assert!(!filtered.lines().any(is_listed), "{filtered}");
        session.type_in("q");
        let (status, seen) = session.end();
        assert_eq!(status.code(), Some(0));
        assert!(is_left(&seen));
    }
}

#[test]
fn a_bundle_of_all_nodes_begins_with_their_names() {
    let (_dir, path) = bundle_of(
        ".tar",
        &[("a", Ok("seed-ipvs")), ("b", Ok("seed-iptables"))],
    );
    let mut session = start((24, 80), &["--from", path.to_str().unwrap()]);
    // What is known of a node follows its name.
    let is_of = |line: &str, name: &str| line.split(' ').next() == Some(name);
    session.wait("nodes", |line| is_of(line, "b"));
    session.type_in("j\r");
    session.wait("the second node", |line| {
        line.contains(", recording") && line.ends_with("iptables")
    });
    session.type_in("n");
    session.wait("nodes again", |line| is_of(line, "a"));
    session.type_in("\r");
    session.wait("the first node", |line| {
        line.contains(", recording") && line.ends_with("ipvs")
    });
    session.type_in("\u{3}");
    let (status, seen) = session.end();
    assert_eq!(status.code(), Some(0));
    assert!(is_left(&seen));
}

#[test]
fn a_name_that_a_terminal_would_obey_is_shown() {
    let spoil = |text: &str| text.replace("redis-master", "redis\\u001b]0;x\\u0007\\u202emaster");
    let dir = broken("ir03-missing-rule", &[("cluster/services.json", &spoil)]);
    let mut session = start((24, 100), &["--from", dir.path().to_str().unwrap()]);
    session.wait("list", |line| line.contains("redis\\u{1b}]0;x"));
    session.type_in("q");
    let (_, seen) = session.end();
    let bytes = String::from_utf8_lossy(&seen.bytes);
    assert!(!bytes.contains("\u{1b}]0;x") && !bytes.contains('\u{202e}'));
}

#[test]
fn an_error_leaves_no_screen_behind() {
    let session = start((24, 80), &["--from", "/nonexistent"]);
    let (status, mut seen) = session.end();
    assert_eq!(status.code(), Some(4));
    let kept = seen.kept();
    assert!(
        kept.iter().any(|line| line.starts_with("kpx: ")),
        "{kept:#?}"
    );
}

#[test]
fn a_long_page_goes_through_the_pager_and_its_threads_are_links() {
    let explain = |more: &[&str]| {
        let session = start((24, 80), &[more, &["explain", "KB01"]].concat());
        let (status, mut seen) = session.end();
        assert_eq!(status.code(), Some(0));
        (seen.kept().join("\n"), seen.bytes)
    };
    let (paged, _) = explain(&["--pager", "head -n 2"]);
    assert!(
        paged.contains("KB01") && paged.lines().count() < 4,
        "{paged}"
    );
    let from = node("ir03-missing-rule");
    // A bundle is read without the right to start programs: the pager has begun before.
    let session = start(
        (24, 80),
        &["--from", &from, "--pager", "head -n 1", "show", "services"],
    );
    let (status, mut seen) = session.end();
    assert_eq!(status.code(), Some(0));
    assert_eq!(seen.kept().len(), 1, "{:#?}", seen.kept());
    for whole in [["--no-pager"].as_slice(), &["--pager", ""]] {
        let (text, bytes) = explain(whole);
        assert!(text.contains("  reads      "), "{text}");
        let link = "\u{1b}]8;;https://github.com/kubernetes/kubernetes/issues/";
        assert!(String::from_utf8_lossy(&bytes).contains(link), "{text}");
    }
}
