//! Rules of which lines are missing: what they hide is unknown.

use super::*;

/// Each chain has a rule, but for `INPUT` and `EMPTY`.
const NAT: [&str; 16] = [
    "*nat",
    ":PREROUTING ACCEPT [0:0]",
    ":INPUT ACCEPT [0:0]",
    ":OUTPUT ACCEPT [0:0]",
    ":POSTROUTING ACCEPT [0:0]",
    ":EMPTY - [0:0]",
    ":KUBE-SERVICES - [0:0]",
    ":KUBE-SVC-A - [0:0]",
    ":KUBE-SVC-B - [0:0]",
    "-A PREROUTING -j KUBE-SERVICES",
    "-A OUTPUT -j KUBE-SERVICES",
    "-A POSTROUTING -o eth0 -j MASQUERADE",
    "-A KUBE-SERVICES -d 10.96.0.1/32 -p tcp -j KUBE-SVC-A",
    "-A KUBE-SVC-A -j RETURN",
    "-A KUBE-SVC-B -j RETURN",
    "COMMIT",
];

const FILTER: &str =
    "*filter\n:INPUT ACCEPT [0:0]\n:FORWARD ACCEPT [0:0]\n:OUTPUT ACCEPT [0:0]\nCOMMIT\n";

/// Returns the chains of nat that are shown in part, and the remark about whole tables.
fn open(text: &str) -> (Vec<String>, Vec<String>) {
    let evidence = evidence(text);
    let text = evidence.text(Item::Iptables4).unwrap_or_default();
    let remark = text.lines().find_map(|line| line.strip_prefix(IN_PART));
    let nat = rules(text)
        .tables
        .into_iter()
        .find(|table| table.name == "nat");
    let is_open = |chain: &iptables::model::Chain<'_>| {
        let mut rules = chain.rules.iter().map(ToString::to_string);
        rules.any(|rule| rule.contains(NOT_SHOWN))
    };
    let chains = nat.into_iter().flat_map(|table| table.chains);
    let open = chains
        .filter(is_open)
        .map(|chain| chain.name.to_string())
        .collect();
    let whole = remark.unwrap_or("all").split_whitespace();
    (open, whole.map(str::to_owned).collect())
}

fn session(nat: &[&str]) -> String {
    format!("root@w1:~# iptables-save\n{FILTER}{}\n", nat.join("\n"))
}

#[test]
fn a_save_that_ends_early_hides_the_rules_of_all_chains_from_the_last_one_on() {
    assert_eq!(open(&session(&NAT)).0, Vec::<String>::new());
    let all = [
        "PREROUTING",
        "INPUT",
        "OUTPUT",
        "POSTROUTING",
        "EMPTY",
        "KUBE-SERVICES",
        "KUBE-SVC-A",
        "KUBE-SVC-B",
    ];
    for (end, first) in [(9, 0), (11, 2), (12, 3), (13, 5), (15, 7)] {
        let (chains, whole) = open(&session(&NAT[..end]));
        assert_eq!(chains, all[first..], "cut at {end}");
        assert_eq!(whole, ["filter"], "cut at {end}");
    }
    // A row that ends in the middle is no rule.
    for row in [
        "-A KUBE-SERVICES -d 10.96.0.1/32 -p",
        "-A KUBE-SERVICES -d 10.96.0.1/32 -p tcp",
        "-A KUBE-SERVICES -j KUBE-SV",
        "-A KUBE-SERVICES -d 10.96.0.1/3 -",
        "-A",
        "[1:2",
    ] {
        let first = if row.contains("KUBE") { 5 } else { 3 };
        let mut cut = NAT[..12].to_vec();
        cut.push(row);
        let (chains, whole) = open(&session(&cut));
        assert_eq!(chains, all[first..], "{row}");
        assert_eq!(whole, ["filter"], "{row}");
    }
}

#[test]
fn a_mark_between_rules_hides_those_of_the_chains_around_it() {
    for mark in [
        "...",
        "[...]",
        "# ...",
        "(output truncated)",
        "*** 20 lines skipped ***",
        "---- snip ----",
        "and so on",
        "the others are like these",
    ] {
        let mut cut = NAT[..11].to_vec();
        cut.push(mark);
        cut.extend(&NAT[13..]);
        let (chains, whole) = open(&session(&cut));
        assert_eq!(
            chains,
            [
                "OUTPUT",
                "POSTROUTING",
                "EMPTY",
                "KUBE-SERVICES",
                "KUBE-SVC-A"
            ],
            "{mark}"
        );
        assert_eq!(whole, ["filter"], "{mark}");
    }
    // Between declarations, it hides no rules.
    let mut cut = NAT.to_vec();
    cut[5] = "...";
    assert_eq!(open(&session(&cut)).0, Vec::<String>::new());
    // A row in the middle that cannot be read.
    let mut cut = NAT.to_vec();
    cut[12] = "-A KUBE-SERVICES -d 10.96.0.1/32 -p tcp !";
    assert_eq!(open(&session(&cut)).0, ["KUBE-SERVICES", "KUBE-SVC-A"]);
}

#[test]
fn a_list_of_commands_that_ends_early_hides_rules_if_that_shows() {
    let commands: Vec<String> = NAT[1..15]
        .iter()
        .map(|line| {
            let words: Vec<&str> = line.split_whitespace().collect();
            match words[..] {
                [name, "-", _] => format!("-N {}", &name[1..]),
                [name, policy, _] if name.starts_with(':') => format!("-P {} {policy}", &name[1..]),
                _ => (*line).to_owned(),
            }
        })
        .collect();
    let listed = |lines: &[String], more: &str| {
        open(&format!(
            "root@w1:~# iptables -t nat -S\n{}\n{more}",
            lines.join("\n")
        ))
        .0
    };
    assert_eq!(listed(&commands, ""), Vec::<String>::new());
    // Chains of Services have rules.
    assert_eq!(
        listed(&commands[..12], ""),
        ["KUBE-SERVICES", "KUBE-SVC-A", "KUBE-SVC-B"]
    );
    assert_eq!(listed(&commands[..13], ""), ["KUBE-SVC-A", "KUBE-SVC-B"]);
    for row in [
        "-A KUBE-SERVICES -d 10.96.0.1/32 -",
        "-A KUBE-SERVICES -d 10.96.0.1/32 -p tcp",
        "-A KUBE-SERVICES -j KUBE-SV",
    ] {
        assert_eq!(
            listed(&commands[..11], row),
            ["KUBE-SERVICES", "KUBE-SVC-A", "KUBE-SVC-B"],
            "{row}"
        );
    }
}

#[test]
fn tables_after_a_cut_are_unknown() {
    let nat = NAT.join("\n");
    let (_, whole) = open(&format!("# Generated by iptables-save v1.8.9\n{nat}\n"));
    assert_eq!(whole, ["nat"], "one table may be what `-t` chose");
    let cut = format!(
        "# Generated by iptables-save v1.8.9\n{FILTER}# Completed on\n# Generated by iptables-save v1.8.9\n{}\n",
        NAT[..12].join("\n")
    );
    assert_eq!(open(&cut).1, ["filter"]);
    // The head is missing: the first chains, and their first rules.
    let (chains, whole) = open(&format!("{}\n{FILTER}", NAT[9..].join("\n")));
    assert_eq!(chains.len(), 6);
    assert_eq!(whole, ["filter"]);
}
