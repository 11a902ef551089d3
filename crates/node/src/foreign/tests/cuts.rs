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

/// Returns the virtual servers or sets that are shown, and what is missing.
fn names(text: &str, item: Item, command: &str) -> (Vec<String>, String) {
    let evidence = evidence(text);
    let missing = evidence.missing_part(item).unwrap_or_default().to_owned();
    let lines = evidence.text(item).unwrap_or_default().lines();
    let of_command = lines.filter(|line| line.starts_with(command));
    let names = of_command.filter_map(|line| {
        line.split_whitespace()
            .find(|word| word.contains(['.', 'S']))
    });
    (names.map(str::to_owned).collect(), missing)
}

#[test]
fn a_virtual_server_that_is_cut_is_not_shown() {
    let head = "w1:~# ipvsadm -Ln\nIP Virtual Server version 1.2.1 (size=4096)\nProt LocalAddress:Port Scheduler Flags\n  -> RemoteAddress:Port           Forward Weight ActiveConn InActConn\n";
    let one =
        "TCP  10.96.0.1:443 rr\n  -> 192.0.2.10:6443              Masq    1      4          0\n";
    let two =
        "TCP  10.96.0.10:53 rr\n  -> 10.244.0.2:53                Masq    1      0          0\n";
    let read = |rest: &str| names(&format!("{head}{rest}"), Item::IpvsSave, "-A");
    assert_eq!(
        read(&format!("{one}{two}")),
        (
            vec!["10.96.0.1:443".to_owned(), "10.96.0.10:53".to_owned()],
            String::new()
        )
    );
    for rest in [
        "...",
        "  -",
        "  -> 10.244.0.3:5",
        "  -> 10.244.0.3:53                Masq    1      0",
        "  -> 10.244.0.3:53                Mas",
        "...\n  -> 10.244.0.9:80 Masq 1 0 0",
    ] {
        let (shown, missing) = read(&format!("{one}{two}{rest}"));
        assert_eq!(shown, ["10.96.0.1:443"], "{rest}");
        assert!(
            missing.contains("10.96.0.10:53 is cut"),
            "{rest}: {missing}"
        );
    }
    for rest in ["TCP  10.96.0.10:5", "TCP", "TCP 10.96.0.10:53 r"] {
        let (shown, missing) = read(&format!("{one}{rest}"));
        assert_eq!(shown, ["10.96.0.1:443"], "{rest}");
        assert!(
            missing.contains("only some virtual servers are shown"),
            "{rest}"
        );
    }
    let saved = "w1:~# ipvsadm -Sn\n-A -t 10.96.0.1:443 -s rr\n-a -t 10.96.0.1:443 -r 192.0.2.10:6443 -m -w 1\n-A -t 10.96.0.10:53 -s rr\n-a -t 10.96.0.10:53 -r 10.244.0.2:53 -m";
    let (shown, missing) = names(saved, Item::IpvsSave, "-A");
    assert_eq!(shown, ["10.96.0.1:443"]);
    assert!(missing.contains("10.96.0.10:53 is cut"), "{missing}");
}

#[test]
fn a_set_that_is_cut_is_not_shown() {
    let set = |name: &str, members: &str| {
        format!(
            "Name: {name}\nType: hash:ip,port\nHeader: family inet hashsize 1024 maxelem 65536\nMembers:\n{members}\n"
        )
    };
    let members = "10.96.0.1,tcp:443\n10.96.0.10,udp:53";
    let read = |text: &str| names(&format!("w1:~# ipset list\n{text}"), Item::Ipset, "create");
    let both = set("SET-A", members) + &set("SET-B", members);
    assert_eq!(read(&both).0, ["SET-A", "SET-B"]);
    let (shown, missing) =
        read(&(set("SET-A", &format!("...\n{members}")) + &set("SET-B", members)));
    assert_eq!(shown, ["SET-B"]);
    assert!(missing.contains("set SET-A is cut"), "{missing}");
    // Sets of two listings, and members without their set.
    let saved = |name: &str| {
        format!("w1:~# ipset save {name}\ncreate {name} hash:ip family inet\nadd {name} 10.0.0.1\n")
    };
    let (shown, _) = names(&(saved("SET-A") + &saved("SET-B")), Item::Ipset, "create");
    assert_eq!(shown, ["SET-A", "SET-B"]);
    let cut = saved("SET-A") + "...\nadd SET-B 10.0.0.2\n";
    assert!(
        names(&cut, Item::Ipset, "create")
            .1
            .contains("set SET-B is cut")
    );
}

#[test]
fn addresses_and_routes_that_are_cut_are_a_part() {
    let links = "w1:~# ip addr\n1: lo: <LOOPBACK,UP> mtu 65536 qdisc noqueue state UNKNOWN group default qlen 1000\n    link/loopback 00:00:00:00:00:00 brd 00:00:00:00:00:00\n    inet 127.0.0.1/8 scope host lo\n       valid_lft forever preferred_lft forever\n2: eth0: <BROADCAST,UP> mtu 1500 qdisc fq state UP group default qlen 1000\n    link/ether 02:42:ac:12:00:03 brd ff:ff:ff:ff:ff:ff\n    inet 172.18.0.3/16 brd 172.18.255.255 scope global eth0\n       valid_lft forever preferred_lft forever\n";
    let missing = |text: &str, item: Item| evidence(text).missing_part(item).map(str::to_owned);
    assert_eq!(missing(links, Item::Addresses), None);
    let cut = Some("the list is cut".to_owned());
    for rest in [
        "...",
        "    inet 10.96.",
        "    inet6 fe80::1",
        "3: kube-ip",
        "3: kube-ipvs0: <BROADCAST,NOARP> mtu 1500",
    ] {
        assert_eq!(
            missing(&format!("{links}{rest}"), Item::Addresses),
            cut,
            "{rest}"
        );
        let more = format!("{links}{rest}\nw1:~# true\n");
        assert!(
            rest != "..." || missing(&more, Item::Addresses) == cut,
            "{rest}"
        );
    }
    let routes = "w1:~# ip route show table all\ndefault via 172.18.0.1 dev eth0\nlocal 172.18.0.3 dev eth0 table local proto kernel scope host src 172.18.0.3\n";
    assert_eq!(missing(routes, Item::Routes), None);
    for rest in [
        "...",
        "10.244.1.0/24 via 172.18",
        "10.244.1.0/24 via",
        "local 10.96.0.1 dev",
        "10.244.1.0/24",
    ] {
        for item in [Item::Routes, Item::Addresses] {
            assert_eq!(missing(&format!("{routes}{rest}"), item), cut, "{rest}");
        }
    }
}

#[test]
fn the_last_chain_of_a_listing_without_the_others_is_open() {
    let row = |chain: &str, more: &str| {
        format!(
            "Chain {chain} (1 references)\ntarget     prot opt source               destination\n{more}"
        )
    };
    let part = |comment: &str| {
        format!(
            "KUBE-SEP-A  all  --  0.0.0.0/0            0.0.0.0/0            /* default/web */ {comment}\n"
        )
    };
    let first = row(
        "KUBE-SVC-A",
        &(part("statistic mode random probability 0.50000000000") + &part("")),
    );
    let head = "w1:~# iptables -t nat -nL\n";
    assert_eq!(
        open(&format!("{head}{first}{}", row("KUBE-SVC-B", ""))).0,
        ["KUBE-SVC-B"]
    );
    let short = row(
        "KUBE-SVC-A",
        &part("statistic mode random probability 0.50000000000"),
    );
    assert_eq!(
        open(&format!("{head}{short}{}", first.replace("SVC-A", "SVC-B"))).0,
        ["KUBE-SVC-A"]
    );
}

#[test]
fn a_save_without_titles_of_tables_is_no_table_filter() {
    let text = "w1:~# iptables-save | grep -e KUBE -e CILIUM\n:KUBE-FORWARD - [0:0]\n:KUBE-SERVICES - [0:0]\n-A FORWARD -j KUBE-FORWARD\n:KUBE-SERVICES - [0:0]\n:KUBE-SVC-A - [0:0]\n-A KUBE-SERVICES -d 10.96.0.1/32 -p tcp -j KUBE-SVC-A\n";
    let evidence = evidence(text);
    let rules = rules(evidence.text(Item::Iptables4).unwrap());
    let names: Vec<_> = rules
        .tables
        .iter()
        .map(|table| table.name.to_string())
        .collect();
    assert_eq!(names, ["filter", "nat"]);
    let two = read(
        "w1:~# iptables-save | grep CILIUM\n-A PREROUTING -j CILIUM_PRE_raw\n-A OUTPUT -j CILIUM_OUTPUT_raw\n-A PREROUTING -j CILIUM_PRE_nat\n-A POSTROUTING -j CILIUM_POST_nat\n-A FORWARD -j CILIUM_FORWARD\n",
    );
    assert!(
        two.nodes[0]
            .evidence
            .with_all_parts()
            .text(Item::Iptables4)
            .is_ok_and(|text| !text.contains("*filter"))
            || two.nodes[0].evidence.text(Item::Iptables4).is_err()
    );
}
