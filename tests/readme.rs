//! The README keeps its word.

use std::fmt::Write as _;
use std::fs;

use kpx::evidence::{ITEMS, Privilege};

use crate::support::{kpx_on, root};

const BEGIN: &str = "<!-- items: written by the test `readme`; KPX_BLESS=1 cargo test readme -->\n";
const END: &str = "<!-- end of items -->";

#[test]
fn the_table_of_items_is_the_program_s() {
    let path = root().join("README.md");
    let have = fs::read_to_string(&path).unwrap();
    let (head, rest) = have.split_once(BEGIN).unwrap();
    let (_, tail) = rest.split_once(END).unwrap();
    let wanted = format!("{head}{BEGIN}{}{END}{tail}", table());
    #[expect(clippy::disallowed_methods, reason = "the one setting of this test")]
    if std::env::var("KPX_BLESS").is_ok() {
        fs::write(&path, &wanted).unwrap();
    } else {
        assert!(
            have == wanted,
            "README.md is stale: KPX_BLESS=1 cargo test readme"
        );
    }
}

#[tokio::test]
async fn the_first_command_prints_what_the_readme_shows() {
    let ran = kpx_on("seed-leftover-iptables-to-ipvs", &["doctor"]).await;
    let have = fs::read_to_string(root().join("README.md")).unwrap();
    assert!(
        have.contains(&ran.out),
        "README.md shows another output than:\n{}",
        ran.out
    );
}

fn table() -> String {
    let mut text =
        String::from("| file of the bundle | what it is | live, it takes |\n|---|---|---|\n");
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
