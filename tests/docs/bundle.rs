//! The table of items in `docs/bundle.md` is current.

use std::fmt::Write as _;
use std::fs;

use kpx_node::evidence::{ITEMS, Privilege};

use super::settle;
use crate::support::root;

const BEGIN: &str =
    "<!-- items: written by the test `docs`; KPX_BLESS=1 cargo test --test suite docs -->\n";
const END: &str = "<!-- end of items -->";

#[test]
fn the_table_of_items_is_current() {
    let path = "docs/bundle.md";
    let have = fs::read_to_string(root().join(path)).unwrap();
    let (head, rest) = have.split_once(BEGIN).unwrap();
    let (_, tail) = rest.split_once(END).unwrap();
    settle(path, &have, &format!("{head}{BEGIN}{}{END}{tail}", table()));
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
