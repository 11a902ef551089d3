//! `kpx bridge` on recorded nodes: what would be loaded, and when that cannot be told.

use std::path::Path;

use kpx::action::Action;
use kpx::backend::Mode;
use kpx::bridge::{self, Unbuildable};
use kpx::diff;
use kpx::evidence::{self, Evidence, Gap, Item};
use kpx::net::Family;
use kpx::node::NodeSnapshot;
use kpx::plan::{self, Undo};

use crate::support::{kpx_on, root};

fn recorded(name: &str) -> Evidence {
    let path = root().join("testdata/nodes").join(name);
    evidence::load(Path::new(&path), &diff::needs(Mode::Nftables)).unwrap()
}

/// Returns the bit that the bridge of `evidence` has for itself.
fn bit(evidence: &Evidence) -> Result<u32, Unbuildable> {
    let node = NodeSnapshot::new(evidence);
    let state = node.desired(Mode::Iptables).unwrap();
    bridge::marks(&node, state).map(|marks| marks.masquerade)
}

fn mangle(rule: &str) -> String {
    format!("*mangle\n:FORWARD ACCEPT [0:0]\n{rule}\nCOMMIT\n")
}

#[tokio::test]
async fn the_bridge_of_the_tutorial() {
    insta::assert_snapshot!(kpx_on("seed-iptables", &["bridge", "show"]).await);
}

#[tokio::test]
async fn a_bundle_is_not_changed() {
    let ran = kpx_on("seed-iptables", &["bridge", "up", "--apply", "--yes"]).await;
    assert_eq!(ran.code, 2, "{ran}");
}

#[test]
fn the_bit_is_one_that_no_rule_uses() {
    let mut evidence = recorded("seed-iptables");
    assert_eq!(bit(&evidence).unwrap(), 0x1000);
    for (item, text) in [
        (
            Item::IptablesLegacy4,
            mangle("-A FORWARD -m mark --mark 0x1000/0x1000 -j ACCEPT"),
        ),
        (
            Item::Iptables6,
            mangle("-A FORWARD -j CONNMARK --set-xmark 0x40/0x60"),
        ),
        (
            Item::NftText,
            "table inet vpn {\n\tchain c {\n\t\tmeta mark set meta mark & 0xffffffef\n\t}\n}\n"
                .to_owned(),
        ),
        (
            Item::Rules,
            r#"[{"priority":9,"src":"all","fwmark":"0x8","fwmask":"0xc","table":"100"}]"#
                .to_owned(),
        ),
    ] {
        evidence.insert(item, Ok(text));
    }
    evidence.insert(Item::Nft, Err(Gap::NotCollected(Item::Nft)));
    assert_eq!(bit(&evidence).unwrap(), 0x2);
    let all = mangle("-A FORWARD -j MARK --set-xmark 0x0/0xfffff");
    evidence.insert(Item::Iptables6, Ok(all));
    assert!(matches!(bit(&evidence), Err(Unbuildable::NoBit(_))));
    let denied = Gap::Denied(Item::Iptables6, "run kpx as root".to_owned());
    evidence.insert(Item::Iptables6, Err(denied));
    assert!(matches!(bit(&evidence), Err(Unbuildable::Unknown(_))));
}

#[test]
fn nothing_is_changed_where_nothing_differs() {
    let evidence = recorded("full-iptables");
    let node = NodeSnapshot::new(&evidence);
    let state = node.desired(Mode::Iptables).unwrap();
    let marks = bridge::marks(&node, state).unwrap();
    let tables = bridge::tables(state, &Family::BOTH, marks).unwrap();
    assert_eq!(tables.len(), 2);
    for table in &tables {
        assert_eq!(bridge::change(table, table), "");
    }
}

#[test]
fn one_that_stands_is_taken_down_and_can_be_put_back() {
    let mut evidence = recorded("full-iptables");
    let built = |evidence: &Evidence| {
        let node = NodeSnapshot::new(evidence);
        let state = node.desired(Mode::Iptables).unwrap();
        let marks = bridge::marks(&node, state).unwrap();
        bridge::text(&bridge::tables(state, &Family::BOTH, marks).unwrap())
    };
    let down = |evidence: &Evidence| {
        plan::bridge_down(&NodeSnapshot::new(evidence), &Family::BOTH).unwrap()
    };
    assert_eq!(down(&evidence).steps, []);
    let text = built(&evidence);
    let verbs = ["add table", "delete table"];
    let lines = text.lines();
    let lines = lines.filter(|line| !verbs.iter().any(|verb| line.starts_with(verb)));
    let listed: Vec<_> = lines.collect();
    evidence.insert(Item::Nft, Err(Gap::NotCollected(Item::Nft)));
    evidence.insert(Item::NftText, Ok(listed.join("\n")));
    let steps = down(&evidence).steps;
    let [step] = steps.as_slice() else {
        panic!("{steps:?}");
    };
    let input = "delete table ip kpx-bridge\ndelete table ip6 kpx-bridge\n".to_owned();
    assert_eq!(step.action, Action::Nft { input });
    assert_eq!(
        step.undo,
        Undo::Do(Action::Nft {
            input: text.clone()
        })
    );
    // The bit it uses is its own.
    assert_eq!(built(&evidence), text);
}
