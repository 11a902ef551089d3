//! `nft -j` output.

use kpx_node::backend::nftables::model::*;
use kpx_node::backend::nftables::parse::{json, text};
use kpx_node::backend::nftables::print;
use kpx_node::evidence::{Gap, Item};

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
fn every_recording_parses_and_no_rule_of_kube_proxy_has_an_unknown_part() {
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
    assert!(seen >= 21, "only {seen} recorded rulesets");
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
fn an_error_names_the_broken_object() {
    let text = r#"{"nftables":[{"table":{"family":"ip","name":"t"}},{"rule":{"family":"ip","table":"t"}}]}"#;
    let why = "object 2: a rule without \"chain\"".to_owned();
    assert_eq!(json(text), Err(Gap::Failed(Item::Nft, why)));
}

#[test]
fn the_text_and_the_json_of_a_recording_parse_to_the_same_tables() {
    let mut seen = 0;
    for name in recordings() {
        let json_text = recorded(&name, Item::Nft.file());
        let (Some(listed), Some(printed)) = (json_text, recorded(&name, Item::NftText.file()))
        else {
            continue;
        };
        let (listed, printed) = (json(&listed).unwrap(), text(&printed).unwrap());
        let names = |ruleset: &Ruleset| -> Vec<_> {
            let tables = ruleset.tables.iter();
            let counts = |t: &Table| t.chains.iter().map(|c| c.rules.len()).collect::<Vec<_>>();
            tables
                .map(|t| (t.family.clone(), t.name.clone(), counts(t)))
                .collect()
        };
        assert_eq!(names(&listed), names(&printed), "{name}");
        for (listed, printed) in listed.tables.iter().zip(&printed.tables) {
            let (listed, printed) = (comparable(listed), comparable(printed));
            if listed.name == "kube-proxy" {
                same_table(&name, &listed, &printed);
                seen += 1;
            } else {
                same_beside_iptables(&name, &listed, &printed);
            }
        }
    }
    assert!(seen >= 5, "only {seen} recorded tables of kube-proxy");
}

/// Returns `table` without the parts that nft prints only as text or only as JSON.
fn comparable(table: &Table) -> Table {
    let mut table = table.clone();
    // As JSON, nft 1.0.6 prints neither comments of tables and chains nor the flag `dynamic` of sets.
    table.comment = None;
    for set in &mut table.sets {
        set.flags.retain(|flag| flag != "dynamic");
    }
    for chain in &mut table.chains {
        chain.comment = None;
        for rule in &mut chain.rules {
            rule.handle = None;
        }
    }
    table
}

fn same_table(name: &str, listed: &Table, printed: &Table) {
    for (a, b) in listed.chains.iter().zip(&printed.chains) {
        for (a, b) in a.rules.iter().zip(&b.rules) {
            assert_eq!(a, b, "{name}");
        }
        assert_eq!((&a.name, &a.base), (&b.name, &b.base), "{name}");
    }
    for (a, b) in listed.sets.iter().zip(&printed.sets) {
        assert_eq!(a, b, "{name}");
    }
    assert_eq!(listed, printed, "{name}");
}

/// Compares tables with extensions of iptables: for `xt match comment` in JSON, the text has a translation, that name, or
/// nothing.
fn same_beside_iptables(name: &str, listed: &Table, printed: &Table) {
    for (a, b) in listed.chains.iter().zip(&printed.chains) {
        assert_eq!((&a.name, &a.base), (&b.name, &b.base), "{name}");
        for (a, b) in a.rules.iter().zip(&b.rules) {
            let same = |(a, b): (&Statement, &Statement)| match a {
                Statement::Xt { .. } => !matches!(b, Statement::Other(_)),
                _ => a == b,
            };
            let mut pairs = a.statements.iter().zip(&b.statements);
            assert!(pairs.all(same), "{name}: {a:?} {b:?}");
            assert_eq!(a.statements.len(), b.statements.len(), "{name}: {b:?}");
        }
    }
}

/// The recording is the output of nft 1.0.6, in both forms, for a ruleset with every statement that software on nodes is known
/// to use.
#[test]
fn the_text_and_the_json_of_other_software_parse_to_the_same_tables() {
    let dir = crate::support::root().join("testdata/nftables");
    let read = |name: &str| std::fs::read_to_string(dir.join(name)).unwrap();
    let (listed, printed) = (
        json(&read("forms.json")).unwrap(),
        text(&read("forms.txt")).unwrap(),
    );
    assert_eq!(listed.tables.len(), printed.tables.len());
    for (listed, printed) in listed.tables.iter().zip(&printed.tables) {
        let (listed, printed) = (comparable(listed), comparable(printed));
        for (a, b) in listed.chains.iter().zip(&printed.chains) {
            for (a, b) in a.rules.iter().zip(&b.rules) {
                let kinds = |rule: &Rule| rule.statements.iter().map(kind).collect::<Vec<_>>();
                assert_eq!(kinds(a), kinds(b));
                assert_eq!(a.comment, b.comment);
            }
            // In JSON, nft 1.0.6 omits the links of a chain.
            let mut base = a.base.clone();
            if let (Some(base), Some(of)) = (&mut base, &b.base) {
                assert!(base.devices.is_empty());
                assert_eq!(of.devices.is_empty(), of.hook != "ingress", "{}", b.name);
                base.devices.clone_from(&of.devices);
            }
            assert_eq!((&a.name, &base), (&b.name, &b.base));
            assert_eq!(a.rules.len(), b.rules.len());
        }
        assert_eq!(listed.sets, printed.sets);
    }
}

/// Returns `statement` for a comparison: of statements and expressions that are not in the model, both forms have only the
/// name in common.
fn kind(statement: &Statement) -> Statement {
    let name = |value: &serde_json::Value| match value {
        serde_json::Value::Object(object) => object.keys().next().cloned().unwrap_or_default(),
        _ => String::new(),
    };
    let part = |expr: &Expr| match expr {
        Expr::Other(value) => Expr::Word(name(value)),
        // `fib saddr oif 0`: a word in the JSON.
        Expr::Word(word) if word == "0" => Expr::Number(0),
        other => other.clone(),
    };
    match statement {
        Statement::Other(value) => Statement::Other(name(value).into()),
        Statement::Match { left, op, right } => Statement::Match {
            left: part(left),
            op: op.clone(),
            right: part(right),
        },
        Statement::Vmap { key, data } => Statement::Vmap {
            key: part(key),
            data: data.clone(),
        },
        Statement::Mangle { key, value } => Statement::Mangle {
            key: part(key),
            value: value.clone(),
        },
        other => other.clone(),
    }
}

#[test]
fn text_that_is_incomplete_or_no_ruleset_is_a_gap() {
    let cut = text("table ip a {\n\tchain b {\n\t\taccept\n");
    let why = "the text ends within chain b; was it cut short?".to_owned();
    assert_eq!(cut, Err(Gap::Failed(Item::NftText, why)));
    let cut = text("table ip a {\n\tset s {\n\t\telements = { 10.0.0.1,\n");
    let why = "the text ends within the braces of line 3; was it cut short?".to_owned();
    assert_eq!(cut, Err(Gap::Failed(Item::NftText, why)));
    let cut = text("table ip a {\n\tset s {\n\t\telements = { 1 comment \"b }\n\t}\n}\n");
    let why = "line 3: a quote of an element is not closed".to_owned();
    assert_eq!(cut, Err(Gap::Failed(Item::NftText, why)));
    let nested =
        text("table ip a {\n\tset s {\n\t\telements = { 1, mod 2 map { 0 : 1 }\n\t}\n}\n}\n");
    let why = "line 3: an element has a brace".to_owned();
    assert_eq!(nested, Err(Gap::Failed(Item::NftText, why)));
    let empty = text("table ip a {\n\tset s {\n\t\telements = { 1, ) 2 }\n\t}\n}\n");
    let why = "line 3: an element has no value".to_owned();
    assert_eq!(empty, Err(Gap::Failed(Item::NftText, why)));
    let foreign = text("Error: syntax error\n").unwrap_err();
    assert!(foreign.to_string().contains("line 1"), "{foreign}");
    assert_eq!(text(""), Ok(Ruleset::default()));
}

/// Releases of nft print one flag as a word, or all as a list.
#[test]
fn dormant_tables_are_known_in_every_form() {
    for (flags, dormant) in [
        (r#", "flags": "dormant""#, true),
        (r#", "flags": ["owner", "dormant"]"#, true),
        (r#", "flags": "owner""#, false),
        ("", false),
    ] {
        let json = format!(
            r#"{{"nftables": [{{"table": {{"family": "ip", "name": "a", "handle": 1{flags}}}}}]}}"#
        );
        let read = kpx_node::backend::nftables::parse::json(&json).unwrap();
        assert_eq!(read.tables[0].dormant, dormant, "{flags}");
    }
    for (flags, dormant) in [
        ("flags dormant;", true),
        ("flags dormant", true),
        ("flags owner,dormant;", true),
        ("flags owner;", false),
        ("comment \"flags dormant\"", false),
    ] {
        let read = text(&format!("table ip a {{\n\t{flags}\n}}\n")).unwrap();
        assert_eq!(read.tables[0].dormant, dormant, "{flags}");
    }
}

#[test]
fn text_of_other_releases_is_read() {
    let ruleset = text(
        "# Warning: table ip nat is managed by iptables-nft, do not touch!\n\
         table ip nat { # handle 1\n\tflags dormant\n\n\
         \tcounter c {\n\t\tpackets 1 bytes 2\n\t}\n\n\
         \tset s { # handle 4\n\t\ttypeof ip saddr . tcp dport\n\t\tflags timeout\n\
         \t\telements = { 10.0.0.1 . 80 timeout 1h30m expires 1m500ms comment \"a, b\",\n\
         \t\t\t     10.0.0.2 . 81 }\n\t}\n\n\
         \tchain odd { # handle 2\n\
         \t\ttype nat hook prerouting priority -100; policy accept;\n\
         \t\tip daddr 10.0.0.1 frobnicate 5 { a, b } drop comment \"say \"hi\"\" # handle 9\n\
         \t\tmeta mark set mark or 0x4000\n\
         \t\tjump {\n\t\t\taccept\n\t\t}\n\
         \t}\n}\n",
    )
    .unwrap();
    let table = ruleset.table("ip", "nat").unwrap();
    assert!(table.dormant);
    let set = table.set("s").unwrap();
    assert_eq!(set.key, ["ipv4_addr", "inet_service"]);
    let first = &set.elements[0];
    assert_eq!((first.timeout, first.expires), (Some(5400), Some(60)));
    assert_eq!(first.comment.as_deref(), Some("a, b"));
    assert_eq!(set.elements.len(), 2);
    let rules = &table.chain("odd").unwrap().rules;
    assert_eq!(rules.len(), 3);
    assert_eq!(rules[0].handle, Some(9));
    assert_eq!(rules[0].comment.as_deref(), Some("say \"hi\""));
    let kept = serde_json::json!({ "frobnicate": "frobnicate 5 { a, b }" });
    assert_eq!(rules[0].statements[1], Statement::Other(kept));
    assert_eq!(rules[0].statements[2], Statement::Verdict(Verdict::Drop));
    assert!(
        matches!(&rules[1].statements[0], Statement::Mangle { value: Expr::Bits { op, .. }, .. } if op == "|")
    );
    let jump = Verdict::Jump("{ accept }".to_owned());
    assert_eq!(rules[2].statements[0], Statement::Verdict(jump));
    let block = &table.chain("{ accept }").unwrap().rules[0].statements[0];
    assert_eq!(*block, Statement::Verdict(Verdict::Accept));
}

/// The recording is the output of nft 1.0.6, in both forms, of what only some software uses: statements that run for elements,
/// named objects in maps, chains without a name, ranges and maps of translations, logs.
#[test]
fn the_text_and_the_json_of_rare_statements_parse_to_the_same_rules() {
    let dir = crate::support::root().join("testdata/nftables");
    let read = |name: &str| std::fs::read_to_string(dir.join(name)).unwrap();
    let listed = json(&read("rare.json")).unwrap();
    let printed = text(&read("rare.txt")).unwrap();
    let (listed, printed) = (
        comparable(&listed.tables[0]),
        comparable(&printed.tables[0]),
    );
    for (a, b) in listed.chains.iter().zip(&printed.chains) {
        for (a, b) in a.rules.iter().zip(&b.rules) {
            assert_eq!(a, b);
        }
    }
    assert_eq!(listed, printed);
    let others = listed.chains.iter().flat_map(|chain| &chain.rules);
    let others = others.flat_map(|rule| &rule.statements);
    let is_text = |of: &Statement| match of {
        Statement::Other(value) => value
            .as_object()
            .unwrap()
            .values()
            .all(serde_json::Value::is_string),
        _ => true,
    };
    others.for_each(|statement| assert!(is_text(statement), "{statement:?}"));
    let ran = |name: &str| listed.set(name).unwrap().elements[0].conditions.len();
    assert_eq!(["el", "elq", "elc"].map(ran), [1, 1, 0]);
}

#[test]
fn printed_text_is_read_as_it_was_printed() {
    for (line, printed) in [
        (
            "xt match recent xt target \"LOG\" drop",
            "xt match \"recent\" xt target \"LOG\" drop",
        ),
        ("ip saddr 10.0.0.1  drop", "ip saddr 10.0.0.1 xt drop"),
        (
            "update @s { ip saddr, ip daddr }",
            "update @s { ip saddr, ip daddr }",
        ),
        // No element has two values.
        (
            "tcp dport vmap { 1 : drop : drop }",
            "tcp dport vmap { 1 : drop : drop }",
        ),
    ] {
        let read = |line: &str| {
            let read = text(&format!(
                "table ip t {{\n\tchain c {{\n\t\t{line}\n\t}}\n}}\n"
            ));
            read.unwrap().tables[0].chains[0].rules[0].clone()
        };
        let rule = read(line);
        assert_eq!(print::rule(&rule), printed);
        assert_eq!(read(printed), rule);
    }
    let map = "table ip t {\n\tmap m {\n\t\ttype ipv4_addr\n\t}\n}\n";
    let read = text(map).unwrap();
    assert_eq!(print::block(&read.tables[0]), map);
}

#[test]
fn deeply_nested_text_is_refused() {
    let refused = |line: usize| {
        let why = format!("line {line}: an expression is nested deeper than 64 levels");
        Err(Gap::Failed(Item::NftText, why))
    };
    let rule = |value: &str| {
        text(&format!(
            "table ip a {{\n\tchain c {{\n\t\tmeta mark set {value} accept\n\t}}\n}}\n"
        ))
    };
    let set = |value: &str| {
        text(&format!(
            "table ip a {{\n\tset s {{\n\t\ttype mark\n\t\telements = {{ 2,\n{value} }}\n\t}}\n}}\n"
        ))
    };
    let nested = |opens: &str, closes: &str, levels: usize| {
        format!("{}1{}", opens.repeat(levels), closes.repeat(levels))
    };
    for (opens, closes) in [("(", ")"), ("{ ", " }"), ("jhash ", " mod 2"), ("1 | ", "")] {
        let read = rule(&nested(opens, closes, 60)).unwrap();
        let statements = &read.tables[0].chains[0].rules[0].statements;
        assert!(
            matches!(&statements[0], Statement::Mangle { .. }),
            "{opens}"
        );
        assert_eq!(rule(&nested(opens, closes, 100_000)), refused(3), "{opens}");
    }
    assert!(set(&nested("(", ")", 60)).is_ok());
    for (opens, closes) in [("(", ")"), ("{ ", " }")] {
        assert_eq!(set(&nested(opens, closes, 100_000)), refused(4), "{opens}");
    }
}

#[test]
fn deeply_nested_json_is_refused() {
    let ruleset = |value: &str| {
        json(&format!(
            r#"{{"nftables": [{{"table": {{"family": "ip", "name": "a"}}}},
            {{"chain": {{"family": "ip", "table": "a", "name": "c"}}}},
            {{"rule": {{"family": "ip", "table": "a", "chain": "c", "expr": [
            {{"mangle": {{"key": {{"meta": {{"key": "mark"}}}}, "value": {value}}}}}]}}}}]}}"#
        ))
    };
    let nested = |opens: &str, closes: &str, levels: usize| {
        ruleset(&format!(
            "{}1{}",
            opens.repeat(levels),
            closes.repeat(levels)
        ))
    };
    for (opens, closes) in [
        (r#"{"set": "#, "}"),
        (r#"{"|": [1, "#, "]}"),
        // A pair beside a member that is none.
        (r#"{"set": [[1, "#, "], 2]}"),
    ] {
        assert!(nested(opens, closes, 38).is_ok(), "{opens}");
        let Err(Gap::Failed(Item::Nft, why)) = nested(opens, closes, 100_000) else {
            panic!("{opens} was read");
        };
        assert!(
            why.starts_with("recursion limit exceeded at line 4 column "),
            "{why}"
        );
    }
    // Not nested in JSON, but in what it means.
    let read = ruleset(&format!(r#"{{"|": [1{}]}}"#, ", 1".repeat(100_000))).unwrap();
    let statements = &read.tables[0].chains[0].rules[0].statements;
    assert!(matches!(
        &statements[0],
        Statement::Mangle {
            value: Expr::Other(_),
            ..
        }
    ));
}

#[test]
fn a_limit_with_a_name_is_read_as_a_statement() {
    let listed = "table ip guard {\n\tlimit lim {\n\t\trate over 1/minute burst 1 packets\n\t}\n\n\tchain f {\n\t\ttype filter hook \
                  forward priority filter; policy accept;\n\t\ttcp dport 80 limit name \"lim\" drop\n\t}\n}\n";
    let objects = r#"{"nftables": [
        {"table": {"family": "ip", "name": "guard", "handle": 1}},
        {"limit": {"family": "ip", "name": "lim", "table": "guard", "handle": 2, "rate": 1, "per": "minute", "burst": 1, "inv": true}}
    ]}"#;
    for ruleset in [text(listed).unwrap(), json(objects).unwrap()] {
        let limits = &ruleset.tables[0].limits;
        let words = limits.get("lim").map(String::as_str);
        assert_eq!(words, Some("limit rate over 1/minute burst 1 packets"));
    }
}
