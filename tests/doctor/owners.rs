//! Whose a table is: MX13, IR10.

use kpx_judge::check::{Outcome, Question};
use kpx_judge::plan;
use kpx_node::backend::Mode;
use kpx_node::evidence::{Evidence, Gap, Item};
use kpx_node::net::Family;
use kpx_node::node::NodeSnapshot;

use super::case::{findings, load, run};

/// Returns a node in mode iptables with `tables`, as `nft list ruleset` prints them.
fn with_tables(tables: &str) -> Evidence {
    let mut evidence = load("full-iptables");
    let item = Item::Nft;
    evidence.insert(item, Err(Gap::NotCollected(item)));
    evidence.insert(Item::NftText, Ok(tables.to_owned()));
    evidence
}

/// Returns what is found before a switch to mode nftables.
fn before_a_switch(evidence: &Evidence) -> Vec<String> {
    let outcome = run(evidence, "MX13", Question::Switch(Mode::Nftables));
    if outcome == Outcome::Pass {
        return Vec::new();
    }
    let findings = findings(outcome).into_iter();
    findings.map(|finding| finding.message).collect()
}

/// Returns the steps that remove what mode nftables leaves.
fn clean_up(evidence: &Evidence) -> Vec<String> {
    let node = NodeSnapshot::new(evidence);
    let plan = plan::cleanup(&node, Mode::Nftables, &Family::BOTH, false).unwrap();
    plan.steps.into_iter().map(|step| step.title).collect()
}

#[test]
fn a_table_of_another_program_blocks_the_switch_and_is_not_kpx_s_to_delete() {
    for (head, tells) in [
        (
            "{ # progname nft\n\tflags owner\n",
            "nft owns the table (flag owner)",
        ),
        (
            "{\n\tflags owner\n",
            "another program owns the table (flag owner)",
        ),
        (
            "{\n\tcomment \"sets of a scanner\"\n",
            "by its comment \"sets of a scanner\"",
        ),
    ] {
        let text = format!("table ip kube-proxy {head}\n\tchain mine {{\n\t}}\n}}\n");
        let evidence = with_tables(&text);
        let [found] = before_a_switch(&evidence).try_into().unwrap();
        assert!(found.contains(tells), "{found}");
        assert_eq!(clean_up(&evidence), [""; 0], "{head}");
        assert_eq!(run(&evidence, "MX03", Question::Now), Outcome::Pass);
    }
}

#[test]
fn a_table_of_kube_proxy_blocks_nothing() {
    for head in ["", "\tcomment \"rules for kube-proxy\"\n"] {
        let text = format!("table ip kube-proxy {{\n{head}\tchain services {{\n\t}}\n}}\n");
        let evidence = with_tables(&text);
        assert_eq!(before_a_switch(&evidence), [""; 0]);
        assert_eq!(clean_up(&evidence).len(), 1);
    }
}

#[test]
fn an_owner_is_read_from_json() {
    let mut evidence = load("full-iptables");
    let table = r#"{"table": {"family": "ip", "name": "kube-proxy", "handle": 9, "flags": "owner", "progname": "blocker"}}"#;
    let text = format!(r#"{{"nftables": [{table}]}}"#);
    evidence.insert(Item::Nft, Ok(text));
    let [found] = before_a_switch(&evidence).try_into().unwrap();
    assert!(found.starts_with("blocker owns the table"), "{found}");
}

#[test]
fn the_bit_of_kube_proxys_mark_is_kpx_s_own_in_the_bridge() {
    for (name, uses) in [("kpx-bridge", 0), ("guard", 1)] {
        let tables = format!(
            "table ip {name} {{\n\tchain mark {{\n\t\tmeta mark set meta mark | 0x00004000\n\t}}\n}}\n"
        );
        let outcome = run(&with_tables(&tables), "IR10", Question::Now);
        let found = match outcome {
            Outcome::Fail(found) => found.len(),
            _ => 0,
        };
        assert_eq!(found, uses, "{name}");
    }
}
