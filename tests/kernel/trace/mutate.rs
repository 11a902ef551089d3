//! Random rulesets: rules removed, moved and changed, and mixed with rules of other software.
//!
//! The seed is fixed, so every failure can be reproduced.

use std::fmt::Write as _;

/// Random numbers (`SplitMix64`).
pub(crate) struct Dice(u64);

impl Dice {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    fn throw(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub(crate) fn below(&mut self, limit: usize) -> usize {
        usize::try_from(self.throw() % limit as u64).unwrap()
    }

    pub(crate) fn pick<'t, T>(&mut self, all: &'t [T]) -> &'t T {
        &all[self.below(all.len())]
    }
}

/// Addresses of Services of the tutorial cluster, with their ports.
const SERVICES: [(&str, u16); 6] = [
    ("10.97.54.248", 80),
    ("10.109.235.134", 80),
    ("10.96.0.10", 9153),
    ("10.106.71.137", 80),
    ("10.100.0.11", 6379),
    ("10.0.2.15", 31082),
];

/// Addresses of pods and clients.
const ADDRESSES: [&str; 8] = [
    "10.244.1.14",
    "10.244.1.16",
    "10.244.1.17",
    "10.244.1.22",
    "10.244.2.3",
    "10.244.1.200",
    "192.0.2.10",
    "10.0.2.15",
];

/// Changes saved rules of iptables `times` times; returns them, and what was done.
pub(crate) fn iptables(dice: &mut Dice, saved: &str, times: usize) -> (String, Vec<String>) {
    let plain = |line: &str| match line.split_once("] -A ") {
        Some((_, rule)) => format!("-A {rule}"),
        None => line.to_owned(),
    };
    let mut lines: Vec<String> = saved.lines().map(plain).collect();
    let mut done = Vec::new();
    for number in 0..times {
        let rules: Vec<usize> = (0..lines.len())
            .filter(|i| lines[*i].starts_with("-A "))
            .collect();
        let at = *dice.pick(&rules);
        let rule = lines[at].clone();
        match dice.below(10) {
            0 => {
                done.push(format!("removed: {rule}"));
                lines.remove(at);
            }
            1 => {
                let chain = rule.split(' ').nth(1).unwrap();
                let lead = format!("-A {chain} ");
                // Lines of one chain of one table stand together.
                let mut first = at;
                while lines[first - 1].starts_with(&lead) {
                    first -= 1;
                }
                let count = lines[first..]
                    .iter()
                    .take_while(|l| l.starts_with(&lead))
                    .count();
                lines.remove(at);
                let to = first + dice.below(count);
                lines.insert(to, rule.clone());
                done.push(format!(
                    "moved by {}: {rule}",
                    to.cast_signed() - at.cast_signed()
                ));
            }
            2 => {
                let chances: Vec<usize> = rules
                    .iter()
                    .copied()
                    .filter(|i| lines[*i].contains("--probability"))
                    .collect();
                let at = *dice.pick(&chances);
                let (lead, tail) = lines[at].split_once("--probability ").unwrap();
                let (_, tail) = tail.split_once(' ').unwrap();
                let chance = dice.pick(&["0.25000000000", "0.50000000000", "0.75000000000"]);
                lines[at] = format!("{lead}--probability {chance} {tail}");
                done.push(format!("changed: {}", lines[at]));
            }
            3 => {
                let turned = [
                    (" -s ", " ! -s "),
                    (" -d ", " ! -d "),
                    ("-m mark ! --mark", "-m mark --mark"),
                    ("-m mark --mark", "-m mark ! --mark"),
                    ("! --dport", "--dport"),
                    (" --dport ", " ! --dport "),
                    (" --ctstate ", " ! --ctstate "),
                    (" --dst-type ", " ! --dst-type "),
                    (" --src-type ", " ! --src-type "),
                ];
                let fits = |(is, not): &&(&str, &str)| {
                    rule.contains(is) && !rule.contains(not) && !rule.contains(&format!("!{is}"))
                };
                if let Some((is, not)) = turned.iter().find(fits) {
                    lines[at] = rule.replacen(is, not, 1);
                    done.push(format!("negated: {}", lines[at]));
                }
            }
            4 => {
                if rule.contains(" -j KUBE-") {
                    lines[at] = rule.replace(" -j KUBE-", " -g KUBE-");
                    done.push(format!("goto: {}", lines[at]));
                }
            }
            _ => done.push(foreign(dice, &mut lines, number)),
        }
    }
    // Refusals must come back, whatever else is dropped.
    let filter = lines.iter().position(|l| l == "*filter").unwrap();
    let first = filter
        + lines[filter..]
            .iter()
            .position(|l| l.starts_with("-A "))
            .unwrap();
    for chain in ["INPUT", "OUTPUT", "FORWARD"] {
        lines.insert(first, format!("-A {chain} -p icmp -j ACCEPT"));
    }
    let mut text = lines.join("\n");
    text.push('\n');
    (text, done)
}

/// Puts a chain of other software in.
fn foreign(dice: &mut Dice, lines: &mut Vec<String>, number: usize) -> String {
    let (vip, port) = *dice.pick(&SERVICES);
    let addr = *dice.pick(&ADDRESSES);
    let (table, chain, rule) = match dice.below(8) {
        0..=2 => {
            let rule = match dice.below(9) {
                0 => format!("-d {addr}/32 -p tcp -j DROP"),
                1 => format!("-s {addr}/32 -p tcp -j REJECT"),
                2 => format!("-d {addr}/32 -j ACCEPT"),
                3 => "-m mark --mark 0x4000/0x4000 -p tcp -j DROP".to_owned(),
                4 => format!("-m conntrack --ctstate DNAT -d {addr}/32 -p tcp -j REJECT"),
                5 => "-i cni0 -o eth0 -p tcp -j DROP".to_owned(),
                6 => "! -i cni0 -p tcp -m multiport --dports 53,80,6379 -j DROP".to_owned(),
                7 => "-m addrtype --src-type LOCAL -p udp -j REJECT".to_owned(),
                _ => format!(
                    "-m iprange --dst-range 10.244.1.15-10.244.1.22 ! -s {addr}/32 -p tcp -j DROP"
                ),
            };
            (
                "filter",
                *dice.pick(&["INPUT", "FORWARD", "OUTPUT", "KUBE-FORWARD"]),
                rule,
            )
        }
        3..=4 => {
            let rule = match dice.below(8) {
                0 => format!(
                    "-d {vip}/32 -p tcp --dport {port} -j DNAT --to-destination 10.244.1.22:6380"
                ),
                1 => format!("-d {vip}/32 -p tcp -j RETURN"),
                2 => format!("-d {vip}/32 -p tcp -j ACCEPT"),
                3 => "-j MARK --set-xmark 0x4000/0x4000".to_owned(),
                4 => format!("-s {addr}/32 -j MARK --set-xmark 0x100/0xf00"),
                5 => format!("-d {vip}/32 -p tcp --dport {port} -j REDIRECT --to-ports 30999"),
                6 => format!(
                    "-d {vip}/32 -p tcp -m statistic --mode random --probability 0.5 -j DNAT --to-destination {addr}"
                ),
                _ => "-p tcp -m addrtype --dst-type LOCAL -j KUBE-MARK-MASQ".to_owned(),
            };
            (
                "nat",
                *dice.pick(&["PREROUTING", "OUTPUT", "KUBE-SERVICES"]),
                rule,
            )
        }
        5 => {
            let rule = match dice.below(6) {
                0 => "-s 10.244.0.0/16 ! -d 10.244.0.0/16 -j MASQUERADE".to_owned(),
                1 => "-o cni0 -j RETURN".to_owned(),
                2 => format!("-d {addr}/32 -j SNAT --to-source 10.0.2.115"),
                3 => "-o eth0 -s 10.0.2.0/24 -j ACCEPT".to_owned(),
                4 => "-m conntrack --ctstate DNAT -j MASQUERADE".to_owned(),
                _ => "-m mark ! --mark 0x4000/0x4000 -p tcp -j MASQUERADE".to_owned(),
            };
            ("nat", "POSTROUTING", rule)
        }
        _ => {
            let rule = match dice.below(4) {
                0 => format!("-s {addr}/32 -j MARK --set-xmark 0x4000/0x4000"),
                1 => format!("-d {vip}/32 -j MARK --set-xmark 0x4000/0xffffffff"),
                2 => format!("-d {addr}/32 -p tcp --tcp-flags SYN,ACK SYN -j DROP"),
                _ => "-m mark --mark 0x4000/0x4000 -j MARK --set-xmark 0x0/0x4000".to_owned(),
            };
            let chain = *dice.pick(&["PREROUTING", "INPUT", "FORWARD", "OUTPUT", "POSTROUTING"]);
            ("mangle", chain, rule)
        }
    };
    let head = lines
        .iter()
        .position(|l| *l == format!("*{table}"))
        .unwrap();
    let end = head + lines[head..].iter().position(|l| l == "COMMIT").unwrap();
    let lead = format!("-A {chain} ");
    let mut places: Vec<usize> = (head..end)
        .filter(|i| lines[*i].starts_with(&lead))
        .collect();
    places.push(end);
    let at = *dice.pick(&places);
    let name = format!("OTHER-{number}");
    let jump = if dice.below(4) == 0 { "-g" } else { "-j" };
    // The chain's own rules first, at the end of the table, where they move nothing.
    lines.insert(end, format!("-A {name} {rule}"));
    lines.insert(at, format!("-A {chain} {jump} {name}"));
    lines.insert(head + 1, format!(":{name} - [0:0]"));
    format!("{table} {chain} {jump} {name}: {rule}")
}

/// Changes an nftables ruleset `times` times; returns it, and what was done.
pub(crate) fn nftables(dice: &mut Dice, listed: &str, times: usize) -> (String, Vec<String>) {
    let mut lines: Vec<String> = listed.lines().map(str::to_owned).collect();
    let mut done = Vec::new();
    for _ in 0..times {
        // The rules of IPv4, each with whether one of the same chain follows.
        let end = lines.iter().position(|l| l == "}").unwrap();
        let mut inside = false;
        let mut rules = Vec::new();
        for (i, line) in lines[..end].iter().enumerate() {
            let line = line.trim_start();
            match line {
                "}" => inside = false,
                _ if line.starts_with("chain ") => inside = true,
                _ if line.starts_with("type ") || line.starts_with("comment ") => {}
                _ if inside => rules.push(i),
                _ => {}
            }
        }
        let at = *dice.pick(&rules);
        let rule = lines[at].trim_start().to_owned();
        match dice.below(6) {
            0 => {
                lines.remove(at);
                done.push(format!("removed: {rule}"));
            }
            1 if rules.contains(&(at + 1)) => {
                lines.swap(at, at + 1);
                done.push(format!("moved down: {rule}"));
            }
            2 => {
                let even: Vec<usize> = rules
                    .iter()
                    .copied()
                    .filter(|i| lines[*i].contains("mod 3") || lines[*i].contains("mod 2"))
                    .collect();
                let at = *dice.pick(&even);
                // A number that no backend has, or one backend with two.
                let line = &lines[at];
                lines[at] = match line.contains("mod 2") {
                    true if dice.below(2) == 0 => {
                        line.replace("mod 2", "mod 3").replace("1 : ", "1-2 : ")
                    }
                    true => line.replace("mod 2", "mod 3"),
                    false => line.replace("mod 3", "mod 4"),
                };
                done.push(format!("changed: {}", lines[at].trim_start()));
            }
            3 => {
                let elements: Vec<usize> = (0..end)
                    .filter(|i| lines[*i].ends_with(',') && !lines[*i].contains("elements"))
                    .collect();
                let at = *dice.pick(&elements);
                done.push(format!("removed: {}", lines.remove(at).trim_start()));
            }
            _ => {
                let (vip, port) = *dice.pick(&SERVICES);
                let addr = *dice.pick(&ADDRESSES);
                let own = match dice.below(11) {
                    0 => format!("ip daddr {vip} return"),
                    1 => format!("ip daddr {addr} tcp flags & (syn|ack) == syn drop"),
                    2 => format!("ip saddr {addr} accept"),
                    3 => "meta mark set meta mark ^ 0x00004000".to_owned(),
                    4 => "ip daddr != 10.244.0.0/16 tcp dport 80 return".to_owned(),
                    5 => "iifname \"cni0\" th dport { 53, 80, 6379-6400 } return".to_owned(),
                    6 => {
                        format!("fib daddr type local ip saddr != {addr} meta mark set 0x00004000")
                    }
                    7 => format!("ip daddr . tcp dport {{ {vip} . {port} }} return"),
                    8 => "ct status dnat meta l4proto tcp numgen random mod 2 vmap { 0 : drop }"
                        .to_owned(),
                    9 => {
                        "ct state new oifname { \"eth0\", \"lo\" } tcp dport 80-443 drop".to_owned()
                    }
                    _ => format!("ip saddr . ip daddr {{ {addr} . 10.0.0.0/8 }} accept"),
                };
                lines.insert(at, format!("\t\t{own}"));
                done.push(format!("added before {rule}: {own}"));
            }
        }
    }
    let mut text = lines.join("\n");
    text.push('\n');
    let (table, about) = foreign_table(dice);
    text.push_str(&table);
    done.push(about);
    (text, done)
}

/// A table of other software.
pub(crate) fn foreign_table(dice: &mut Dice) -> (String, String) {
    let (vip, port) = *dice.pick(&SERVICES);
    let (other, _) = *dice.pick(&SERVICES);
    let addr = *dice.pick(&ADDRESSES);
    let family = *dice.pick(&["ip", "inet"]);
    let mut text = format!("table {family} other {{\n");
    for hook in ["prerouting", "output"] {
        let priority = dice.pick(&[-120, -110, -90, -80]);
        let rule = match dice.below(4) {
            0 => format!("ip daddr {vip} tcp dport {port} dnat ip to 10.244.1.22:6380"),
            1 => format!("ip daddr {vip} tcp dport {port} redirect to :30999"),
            2 => format!("ip daddr {{ {vip}, {other} }} accept"),
            _ => format!(
                "ip daddr {vip} meta l4proto tcp dnat ip to numgen random mod 2 map {{ 0 : 10.244.1.16, 1 : {addr} }}"
            ),
        };
        writeln!(
            text,
            "chain nat-{hook} {{ type nat hook {hook} priority {priority}; {rule}; }}"
        )
        .unwrap();
    }
    let priority = dice.pick(&[80, 90, 110]);
    let rule = match dice.below(3) {
        0 => format!("ip daddr {addr} masquerade"),
        1 => format!("oifname \"eth0\" ip saddr {addr} snat ip to 10.0.2.115"),
        _ => "meta mark & 0x00004000 == 0x00004000 return".to_owned(),
    };
    writeln!(
        text,
        "chain nat-post {{ type nat hook postrouting priority {priority}; {rule}; }}"
    )
    .unwrap();
    let hook = *dice.pick(&["forward", "input", "output", "prerouting", "postrouting"]);
    let priority = dice.pick(&[-310, -160, -120, -10, 10, 200]);
    let rule = match dice.below(4) {
        0 => format!("ip daddr {addr} tcp flags & (syn|ack) == syn drop"),
        1 => format!("ip daddr {vip} meta mark set meta mark | 0x00004000"),
        2 => format!("ip saddr {addr} meta l4proto tcp ct state new drop"),
        _ => "meta mark & 0x00004000 == 0x00004000 meta l4proto udp drop".to_owned(),
    };
    writeln!(
        text,
        "chain filter-{hook} {{ type filter hook {hook} priority {priority}; {rule}; }}"
    )
    .unwrap();
    text.push_str("}\n");
    let about = format!("beside it: {}", text.replace('\n', " "));
    (text, about)
}
