//! `nft -j` output.

use kpx::backend::nftables::model::*;
use kpx::backend::nftables::parse::json;
use kpx::evidence::{Gap, Item};

use crate::support::{recorded, recordings};

fn unknown(expr: &Expr) -> bool {
    match expr {
        Expr::Other(_) => true,
        Expr::Prefix { addr, .. } => unknown(addr),
        Expr::Range(a, b) => unknown(a) || unknown(b),
        Expr::Concat(all) | Expr::Set(all) => all.iter().any(unknown),
        Expr::Map(pairs) => pairs.iter().any(|(key, datum)| unknown(key) || odd(datum)),
        Expr::Lookup { key, data } => unknown(key) || unknown(data),
        Expr::Bits { left, right, .. } => unknown(left) || unknown(right),
        _ => false,
    }
}

fn odd(datum: &Datum) -> bool {
    matches!(datum, Datum::Data(expr) if unknown(expr))
}

fn understood(statement: &Statement) -> bool {
    match statement {
        Statement::Other(_) | Statement::Xt { .. } => false,
        Statement::Match { left, right, .. } => !unknown(left) && !unknown(right),
        Statement::Vmap { key, data } => !unknown(key) && !unknown(data),
        Statement::Nat { addr, port, .. } => !addr.iter().any(unknown) && !port.iter().any(unknown),
        Statement::Mangle { key, value } => !unknown(key) && !unknown(value),
        Statement::SetOp { elem, .. } => !unknown(elem),
        _ => true,
    }
}

#[test]
fn every_recording_parses_and_kube_proxy_is_understood() {
    let mut seen = 0;
    for name in recordings() {
        let Some(text) = recorded(&name, Item::Nft.file()) else {
            continue;
        };
        let ruleset = json(&text).unwrap();
        let tables = || ruleset.tables.iter();
        let count = |kind: &str| text.matches(&format!("{{\"{kind}\": {{\"family\"")).count();
        let chains = || tables().flat_map(|table| &table.chains);
        assert_eq!(tables().count(), count("table"), "{name}");
        assert_eq!(chains().count(), count("chain"), "{name}");
        let rules = chains().map(|chain| chain.rules.len()).sum::<usize>();
        assert_eq!(rules, count("rule"), "{name}");
        for table in tables().filter(|table| table.name == "kube-proxy") {
            for rule in table.chains.iter().flat_map(|chain| &chain.rules) {
                assert!(rule.statements.iter().all(understood), "{name}: {rule:?}");
            }
            for element in table.sets.iter().flat_map(|set| &set.elements) {
                assert!(!unknown(&element.key), "{name}: {element:?}");
                assert!(!element.value.iter().any(odd), "{name}: {element:?}");
            }
        }
        seen += 1;
    }
    assert!(seen >= 21, "only {seen} rulesets were there to read");
}

#[test]
fn forms_of_other_releases_are_read() {
    let text = r#"{"nftables":[{"metainfo":{}},{"table":{"family":"ip","name":"t","handle":1}},
        {"set":{"family":"ip","table":"t","name":"s","type":"ipv4_addr","flags":"interval","elem":[
            {"prefix":{"addr":"10.0.0.0","len":8}},{"range":["10.1.0.0","10.2.0.0"]},
            {"elem":{"val":"10.3.0.1","timeout":60,"expires":5,"comment":"c"}}]}},
        {"chain":{"family":"ip","table":"t","name":"c"}},{"counter":{"family":"ip","name":"n","table":"t"}},
        {"rule":{"family":"ip","table":"t","chain":"c","handle":2,"comment":"r","expr":[
            {"xt":null},{"counter":"n"},{"counter":{"packets":1,"bytes":2}},{"masquerade":null},
            {"match":{"left":{"ct":{"key":"status"}},"right":["dnat","snat"]}},
            {"set":{"op":"add","elem":{"elem":{"val":"10.0.0.1","timeout":9}},"set":"@s"}},
            {"log":{"prefix":"x"}},{"accept":null}]}}]}"#;
    let ruleset = json(text).unwrap();
    let table = ruleset.table("ip", "t").unwrap();
    let set = table.set("s").unwrap();
    assert_eq!(set.flags, ["interval"]);
    assert_eq!(
        (set.elements[2].timeout, set.elements[2].expires),
        (Some(60), Some(5))
    );
    assert_eq!(set.elements[2].comment.as_deref(), Some("c"));
    let statements = &table.chain("c").unwrap().rules[0].statements;
    assert!(matches!(&statements[0], Statement::Xt { name, .. } if name.is_empty()));
    assert!(matches!(&statements[1], Statement::Counter { name: Some(n), .. } if n == "n"));
    assert!(matches!(
        &statements[5],
        Statement::SetOp {
            timeout: Some(9),
            ..
        }
    ));
    assert!(matches!(&statements[6], Statement::Other(value) if value.get("log").is_some()));
    assert_eq!(statements[7], Statement::Verdict(Verdict::Accept));
}

#[test]
fn a_broken_object_is_named() {
    let text = r#"{"nftables":[{"table":{"family":"ip","name":"t"}},{"rule":{"family":"ip","table":"t"}}]}"#;
    let why = "object 2: a rule without \"chain\"".to_owned();
    assert_eq!(json(text), Err(Gap::Failed(Item::Nft, why)));
}
