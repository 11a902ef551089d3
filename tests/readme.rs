//! The outputs and tables in README.md are current.

use std::fmt::Write as _;
use std::fs;

use kpx::evidence::{ITEMS, Privilege};

use crate::support::{kpx_on, root};

const BEGIN: &str =
    "<!-- items: written by the test `readme`; KPX_BLESS=1 cargo test --test suite readme -->\n";
const END: &str = "<!-- end of items -->";

/// The first command of the README, and the end of its output.
const FIRST: &str = "$ cargo run -- --from testdata/nodes/seed-leftover-iptables-to-ipvs doctor\n";
const FENCE: &str = "```\n";

#[tokio::test(flavor = "current_thread")]
async fn the_table_of_items_and_the_first_output_are_current() {
    let path = root().join("README.md");
    let have = fs::read_to_string(&path).unwrap();
    let ran = kpx_on("seed-leftover-iptables-to-ipvs", &["doctor"]).await;
    let wanted = replaced(&have, FIRST, &ran.out, FENCE);
    let wanted = replaced(&wanted, BEGIN, &table(), END);
    #[expect(clippy::disallowed_methods, reason = "the one setting of this test")]
    if std::env::var("KPX_BLESS").is_ok() {
        fs::write(&path, &wanted).unwrap();
    } else {
        assert!(
            have == wanted,
            "README.md is stale. Run `KPX_BLESS=1 cargo test --test suite readme` and commit the file."
        );
    }
}

/// Returns `text` with `between` after `begin`, up to the next `end`.
fn replaced(text: &str, begin: &str, between: &str, end: &str) -> String {
    let (head, rest) = text.split_once(begin).unwrap();
    let (_, tail) = rest.split_once(end).unwrap();
    format!("{head}{begin}{between}{end}{tail}")
}

fn table() -> String {
    let mut text =
        String::from("| file of the bundle | contents | needs, on a live node |\n|---|---|---|\n");
    for item in ITEMS {
        let takes = match item.privilege() {
            Privilege::None => "nothing",
            Privilege::NetAdmin => "CAP_NET_ADMIN",
            Privilege::Root => "root",
            Privilege::Api => "the API",
        };
        let what = item.what().trim().trim_end_matches('.');
        writeln!(text, "| `{}` | {what} | {takes} |", item.file()).unwrap();
    }
    text
}
