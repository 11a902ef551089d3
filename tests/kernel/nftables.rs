//! nftables tables as kpx reads them from the kernel, and as `nft -j list ruleset` prints them.

use std::fmt::Write as _;
use std::fs::{self, File};
use std::io::Read as _;
use std::path::{Path, PathBuf};

use flate2::read::GzDecoder;
use kpx_node::evidence::{Item, load};
use serde_json::{Value, json};

use super::netns::{Netns, run};
use crate::random::Dice;

/// Sets, maps and named objects, in a table of `FAMILY`. `A1` and the like are addresses, `NET` a network.
const OBJECTS: &str = r#"
counter counted { packets 3 bytes 7; comment "a counter"; }
counter other { packets 0 bytes 0; }
quota limited { over 10 mbytes; }
limit slow { rate 5/second; }
limit fast { rate over 1 mbytes/second burst 2 kbytes; }
set plain { type ADDR; comment "some addresses"; elements = { A3, A1 comment "one", A2 }; }
set nets { type ADDR; flags interval; elements = { A4-A8, NET, A9 comment "x" }; }
set ports { type inet_service; flags interval; elements = { 80, 443, 8000-8080, 60000-65535 }; }
set marks { type mark; elements = { 0x10, 0x4000, 1 }; }
set areas { type mark; flags interval; elements = { 0x10-0x1f, 0x4000, 7-9 }; }
set links { type ifname; elements = { "eth0", "lo", "cali1" }; }
set starts { type ifname; flags interval; elements = { "eth*", "lo" }; }
set protocols { type inet_proto; elements = { tcp, udp, 253, icmp }; }
set timed { type ADDR; flags timeout; timeout 1h; gc-interval 10s; size 500; elements = { A7 timeout 2h, A8, A9 timeout 3h expires 2h comment "t" }; }
set clients { type ADDR . inet_service; flags dynamic,timeout; timeout 3h; size 65535; }
set counts { type ADDR; flags dynamic; counter; size 100; }
set counting { type ADDR; counter; elements = { A3 counter packets 5 bytes 9, A1 }; }
set flows { type ADDR . inet_proto . inet_service; elements = { A2 . tcp . 80, A1 . udp . 53, A1 . tcp . 8080 comment "c" }; }
set boxes { type ADDR . inet_service; flags interval; elements = { A2-A5 . 80-90, NET . 53, A1 . 1-65535 }; }
set mixed { type mark . ifname . inet_proto; elements = { 0x10 . "eth0" . tcp, 0x4001 . "lo" . udp }; }
set states { type ct_state; elements = { new, established }; }
set messages { type icmp_type; elements = { echo-request, redirect }; }
set classes { typeof ip dscp; elements = { cs1, af11 }; }
set cards { type ether_addr; elements = { 00:11:22:33:44:55, 02:00:00:00:00:01 }; }
map targets { type inet_service : ADDR; elements = { 80 : A3, 443 comment "d" : A4 }; }
map ends { type ADDR : ADDR . inet_service; elements = { A3 : A7 . 80 }; }
map tags { type ADDR : mark; elements = { A3 : 0x7, A1 : 0x4000 }; }
map verdicts { type ADDR . inet_proto . inet_service : verdict; elements = { A1 . tcp . 80 : goto own1, A2 . udp . 53 comment "v" : drop }; }
map areas-of { type ADDR : verdict; flags interval; elements = { NET : jump own1, A9 : accept, * : drop }; }
map counters { type inet_service : counter; elements = { 80 : "counted", 443 : "other" }; }
"#;

/// Matches that say nothing about the transport header.
const MATCHES: &[&str] = &[
    "IP saddr A1",
    "IP daddr NET",
    "IP saddr != NET",
    "IP daddr { A1, A3, A2 }",
    "IP saddr A1-A9",
    "IP saddr != A1-A9",
    "IP saddr @plain",
    "IP daddr != @plain",
    "IP saddr @nets",
    "IP saddr . IP daddr { A1 . A2, A3 . A4 }",
    "IP saddr . meta l4proto . th dport @flows",
    "IP daddr . th dport @boxes",
    "IP saddr A1 IP daddr A2",
    "IP dscp cs1",
    "IP dscp != af11",
    "IP ecn ce",
    "IP length 100-200",
    "meta mark 0x4000",
    "meta mark & 0x4000 == 0x4000",
    "meta mark & 0x4000 != 0",
    "meta mark & 0xffff0000 == 0x10000",
    "meta mark 0x1-0x5",
    "meta mark != 3-9",
    "meta mark @marks",
    "meta mark @areas",
    "meta mark { 1, 5, 9 }",
    "meta mark > 5",
    "meta mark . iifname . meta l4proto @mixed",
    "iifname \"eth0\"",
    "oifname != \"cali*\"",
    "iifname { \"lo\", \"eth1\" }",
    "iifname @links",
    "oifname @starts",
    "iif \"lo\"",
    "oif != \"lo\"",
    "ct state new",
    "ct state established,related",
    "ct state != invalid",
    "ct state { new, untracked }",
    "ct state @states",
    "ct state vmap { new : accept, invalid : drop, established : continue }",
    "ct status dnat",
    "ct status snat,dnat",
    "ct status != confirmed",
    "ct mark & 0xff == 7",
    "ct direction original",
    "ct original IP saddr A3",
    "ct reply IP daddr NET",
    "ct expiration 30s-1h",
    "ct original packets > 5",
    "ct helper \"ftp\"",
    "fib daddr type local",
    "fib saddr type != unicast",
    "fib daddr . iif type { local, broadcast }",
    "fib saddr . iif oif exists",
    "fib saddr . mark . iif oif missing",
    "meta pkttype broadcast",
    "meta skuid 0",
    "meta length 100-200",
    "meta priority 1:10",
    "meta iiftype loopback",
    "meta day \"Monday\"",
    "limit rate 5/minute",
    "limit rate over 10/second burst 3 packets",
    "limit rate 1 mbytes/second",
    "limit rate 10 kbytes/hour burst 5 kbytes",
    "quota over 5 bytes used 3 bytes",
    "ct count over 5",
    "counter packets 7 bytes 99",
    "counter name \"counted\"",
    "quota name \"limited\"",
    "limit name \"slow\"",
    "numgen random mod 3 vmap { 0 : jump own1, 1 : jump own2, 2 : accept }",
    "numgen inc mod 10 offset 5 < 8",
    "jhash IP saddr . IP daddr mod 7 seed 0x5 2-3",
    "symhash mod 2 1",
    "IP daddr . meta l4proto . th dport vmap @verdicts",
    "IP saddr vmap @areas-of",
    "IP saddr vmap { A1 : drop, A3 : jump own2 }",
    "iifname vmap { \"lo\" : accept, \"eth0\" : drop }",
    "@nh,8,8 0x10",
    "ether saddr 00:11:22:33:44:55",
    "ether saddr @cards",
    "add @plain { IP saddr }",
    "update @timed { IP saddr timeout 10s }",
    "update @clients { IP saddr . th dport }",
    "add @counts { IP saddr counter }",
    "delete @timed { IP saddr }",
    "meta l4proto { tcp, udp } th dport @ports",
    "th dport 53",
];

/// Matches of the transport header.
const OF_TRANSPORT: &[&str] = &[
    "meta l4proto tcp",
    "meta l4proto != icmp",
    "meta l4proto @protocols",
    "meta l4proto tcp ct original proto-dst 80",
    "tcp dport 80",
    "tcp sport != 1024-65535",
    "tcp dport { 80, 443, 8000-8080 }",
    "tcp dport @ports",
    "tcp flags syn",
    "tcp flags & (fin|syn|rst|ack) == syn",
    "tcp flags & (syn|ack) == syn|ack",
    "tcp flags & syn != 0",
    "tcp flags ! fin,rst",
    "tcp dport 80 tcp sport 90",
    "tcp sport 5-9 tcp dport 80",
    "tcp doff 5",
    "tcp dport < 1024",
    "tcp dport vmap { 80 : jump own1, 443 : drop }",
    "tcp dport 1-5 tcp sport 1-5",
    "udp dport 53",
    "udp sport . udp dport { 1 . 2, 3 . 4 }",
    "udp length > 8",
    "sctp vtag 5",
    "esp spi 5",
    "ip protocol tcp",
    "ip protocol { tcp, udp }",
    "ip6 nexthdr udp",
    "ip ttl 64",
    "ip6 hoplimit < 5",
    "ip frag-off & 0x1fff != 0",
    "icmp type echo-request",
    "icmp type { echo-request, redirect }",
    "icmp type redirect icmp gateway 5",
    "icmp id 7",
    "icmp mtu 500",
    "icmp type @messages",
    "icmpv6 type nd-neighbor-solicit",
    "icmpv6 mtu 5",
    "icmpv6 type { nd-router-advert, echo-reply }",
];

/// Last statements of a rule.
const STATEMENTS: &[&str] = &[
    "accept",
    "drop",
    "return",
    "continue",
    "jump own1",
    "goto own2",
    "notrack",
    "meta mark set 0x10",
    "meta mark set meta mark | 0x4000",
    "meta mark set mark and 0xfff xor 0x7",
    "meta mark set ct mark",
    "ct mark set meta mark",
    "meta priority set 1:5",
    "meta nftrace set 1",
    "meta mark set IP saddr map @tags",
    "meta mark set IP saddr map { A1 : 5, A2 : 7 }",
    "meta mark set numgen inc mod 3",
    "log",
    "log prefix \"a b: \" level info flags all",
    "log flags tcp sequence,options",
    "log group 5 prefix \"g\" snaplen 64 queue-threshold 10",
    "reject",
    "reject with tcp reset",
    "counter accept",
    "counter name tcp dport map @counters",
];

/// Statements that translate addresses.
const TRANSLATIONS: &[&str] = &[
    "masquerade",
    "masquerade fully-random",
    "masquerade random,persistent",
    "meta l4proto tcp masquerade to :1024-2048",
    "meta l4proto tcp dnat TO [A3]:8080",
    "dnat TO A3",
    "dnat TO A3-A5 random",
    "snat TO A3 persistent",
    "redirect",
    "meta l4proto udp redirect to :80-90 random",
    "meta l4proto tcp dnat IP addr . port to numgen random mod 2 map { 0 : A1 . 80, 1 : A2 . 90 }",
    "dnat TO tcp dport map @targets",
    "dnat TO numgen random mod 2 map { 0 : A1, 1 : A2 }",
    "meta l4proto tcp dnat IP addr . port to IP daddr map @ends",
];

/// Fills in what depends on the family.
fn of_family(text: &str, family: &str) -> String {
    let (is_v6, ip) = (family == "ip6", if family == "ip6" { "ip6" } else { "ip" });
    let to = if family == "inet" {
        format!("{ip} to")
    } else {
        "to".to_owned()
    };
    let mut text = text.replace("IP ", &format!("{ip} ")).replace("TO", &to);
    for number in 1..=9 {
        let (name, address) = (format!("A{number}"), number.to_string());
        let address = if is_v6 {
            format!("fd00::{address}")
        } else {
            text = text.replace(&format!("[{name}]"), &name);
            format!("10.0.{address}.1")
        };
        text = text.replace(&name, &address);
    }
    let (kind, net) = if is_v6 {
        ("ipv6_addr", "fd09::/32")
    } else {
        ("ipv4_addr", "10.9.0.0/16")
    };
    text.replace("ADDR", kind).replace("NET", net)
}

/// Objects of a listing without the head, with the times that pass between two listings left out.
fn objects(text: &str) -> Vec<Value> {
    fn still(value: &mut Value) {
        match value {
            Value::Object(object) => {
                if let Some(expires) = object.get_mut("expires") {
                    *expires = json!(0);
                }
                object.values_mut().for_each(still);
            }
            Value::Array(list) => list.iter_mut().for_each(still),
            _ => {}
        }
    }
    let mut document: Value = serde_json::from_str(text).unwrap();
    let mut objects = std::mem::take(document["nftables"].as_array_mut().unwrap());
    objects.retain(|object| object.get("metainfo").is_none());
    objects.iter_mut().for_each(still);
    objects
}

/// Returns the tables that `nft` had to read, with the reasons.
fn by_tool(text: &str) -> Vec<Value> {
    let document: Value = serde_json::from_str(text).unwrap();
    let tables = &document["nftables"][0]["metainfo"]["read_by_nft"];
    tables.as_array().cloned().unwrap_or_default()
}

/// Compares the ruleset of `netns` with the tool's output; returns the ruleset that kpx read.
async fn same(netns: &Netns, what: &str) -> String {
    let evidence = netns.collect(&[Item::Nft]).await;
    let own = evidence.text(Item::Nft).unwrap();
    let tool = netns.run("nft -j list ruleset");
    let (left, right) = (objects(own), objects(&tool));
    for (own, tool) in left.iter().zip(&right) {
        // Keys are in the same order, too.
        assert_eq!(own.to_string(), tool.to_string(), "{what}");
    }
    assert_eq!(left.len(), right.len(), "{what}");
    own.to_owned()
}

/// Returns the native tables of all recordings, with their files.
fn recordings() -> Vec<(PathBuf, Vec<Value>)> {
    let nodes = Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata/nodes");
    let mut all = Vec::new();
    for node in fs::read_dir(nodes).unwrap() {
        let folder = node.unwrap().path().join("node");
        for (name, is_packed) in [("nft.json", false), ("nft.json.gz", true)] {
            let path = folder.join(name);
            let Ok(mut file) = File::open(&path) else {
                continue;
            };
            let mut text = String::new();
            if is_packed {
                GzDecoder::new(file).read_to_string(&mut text).unwrap();
            } else {
                file.read_to_string(&mut text).unwrap();
            }
            let mut objects = objects(&text);
            // Tables of iptables: `nft` cannot restore them.
            let native = ["kube-proxy", "kpx-bridge", "firewalld", "host", "corp"];
            objects.retain(|object| {
                let (kind, body) = object.as_object().unwrap().iter().next().unwrap();
                let table = if kind == "table" { "name" } else { "table" };
                native.contains(&body[table].as_str().unwrap())
            });
            // A map names chains that are listed after it.
            objects.sort_by_key(|object| {
                let rank = |kind: &str| object.get(kind).is_some();
                match (rank("table"), rank("chain"), rank("rule")) {
                    (true, ..) => 0,
                    (_, true, _) => 1,
                    (_, _, true) => 3,
                    _ => 2,
                }
            });
            if objects.iter().any(|object| object.get("rule").is_some()) {
                all.push((path, objects));
            }
        }
    }
    all.sort_by(|one, other| one.0.cmp(&other.0));
    all
}

#[tokio::test]
#[ignore = "needs root and a network namespace"]
async fn long_tables_of_every_recording_are_read_as_nft_lists_them() {
    let recordings = recordings();
    assert!(recordings.len() >= 9, "{} recordings", recordings.len());
    for (path, objects) in recordings {
        let netns = Netns::new();
        let document = json!({ "nftables": objects });
        netns.feed("nft -j -f -", &document.to_string());
        let own = same(&netns, &path.display().to_string()).await;
        assert_eq!(by_tool(&own), Vec::<Value>::new(), "{}", path.display());
    }
}

fn pick<'a>(dice: &mut Dice, of: &[&'a str]) -> &'a str {
    of[usize::try_from(dice.below(of.len() as u64)).unwrap()]
}

/// A rule of random parts, some of which contradict each other: `nft` refuses it then.
fn rule(dice: &mut Dice, chain: &str) -> String {
    let mut words = Vec::new();
    for _ in 0..dice.below(3) {
        words.push(pick(dice, MATCHES));
    }
    if dice.below(2) == 0 || words.is_empty() {
        words.push(pick(dice, OF_TRANSPORT));
    }
    match (chain, dice.below(3)) {
        (_, 0) => {}
        ("before" | "after", _) => words.push(pick(dice, TRANSLATIONS)),
        _ => words.push(pick(dice, STATEMENTS)),
    }
    if dice.below(5) == 0 {
        words.push("comment \"two words\"");
    }
    words.join(" ")
}

#[tokio::test]
#[ignore = "needs root and a network namespace"]
async fn long_random_rules_are_read_as_nft_lists_them() {
    for seed in 0..4 {
        let mut dice = Dice::new(seed);
        let netns = Netns::new();
        let mut script = String::new();
        for family in ["ip", "ip6", "inet"] {
            let objects = of_family(OBJECTS, family);
            netns.feed(
                "nft -f -",
                &format!(
                    "table {family} t {{ {objects}
                     chain own1 {{ }}; chain own2 {{ }};
                     chain on {{ type filter hook forward priority -150; policy drop; }};
                     chain before {{ type nat hook prerouting priority -100; }};
                     chain after {{ type nat hook postrouting priority 100; }};
                     chain out {{ type route hook output priority 10; }}; }}"
                ),
            );
            for _ in 0..70 {
                let chain = pick(&mut dice, &["own1", "own2", "on", "before", "after", "out"]);
                let rule = of_family(&rule(&mut dice, chain), family);
                writeln!(
                    script,
                    "nft 'add rule {family} t {chain} {rule}' 2>/dev/null || :"
                )
                .unwrap();
            }
        }
        netns.feed("sh", &script);
        let own = same(&netns, &format!("seed {seed}")).await;
        assert_eq!(by_tool(&own), Vec::<Value>::new(), "seed {seed}");
        let rules = objects(&own);
        let rules = rules.iter().filter(|object| object.get("rule").is_some());
        let rules = rules.count();
        assert!(rules > 100, "seed {seed}: {rules} rules");
    }
}

/// Each part alone: none is refused, and none is left to the tool.
#[tokio::test]
#[ignore = "needs root and a network namespace"]
async fn every_match_and_statement_is_read_as_nft_lists_it() {
    for family in ["ip", "ip6", "inet"] {
        let netns = Netns::new();
        let mut rules = String::new();
        for (chain, list) in [
            ("on", MATCHES),
            ("on", OF_TRANSPORT),
            ("on", STATEMENTS),
            ("nat", TRANSLATIONS),
        ] {
            for part in list {
                let other = if family == "ip" { "ip6 " } else { "ip " };
                let is_foreign = part.starts_with(other)
                    || part.starts_with(if family == "ip" { "icmpv6" } else { "icmp " });
                if is_foreign && family != "inet" {
                    continue;
                }
                let chain = match (chain, part.contains("masq") || part.contains("snat")) {
                    ("nat", true) => "after",
                    ("nat", false) => "before",
                    (chain, _) => chain,
                };
                let part = of_family(part, family);
                writeln!(rules, "add rule {family} t {chain} {part}").unwrap();
            }
        }
        let objects = of_family(OBJECTS, family);
        netns.feed(
            "nft -f -",
            &format!(
                "table {family} t {{ {objects}
                 chain own1 {{ }}; chain own2 {{ }};
                 chain on {{ type filter hook forward priority 0; }};
                 chain before {{ type nat hook prerouting priority -100; }};
                 chain after {{ type nat hook postrouting priority 100; }}; }}\n{rules}"
            ),
        );
        let own = same(&netns, family).await;
        assert_eq!(by_tool(&own), Vec::<Value>::new(), "{family}");
    }
}

const KUBE_PROXY: &str = "table ip kube-proxy {
    comment \"rules for kube-proxy\";
    set affinity { type ipv4_addr; flags dynamic,timeout; timeout 3h; elements = { 10.0.0.1 }; };
    map service-ips { type ipv4_addr . inet_proto . inet_service : verdict; elements = { 10.96.0.1 . tcp . 443 : goto service }; };
    chain service { update @affinity { ip saddr }; meta l4proto tcp dnat to 10.0.0.7:6443; };
    chain services { ip daddr . meta l4proto . th dport vmap @service-ips; };
    chain nat { type nat hook prerouting priority dstnat; jump services; }; }";

#[tokio::test]
#[ignore = "needs root and a network namespace"]
async fn a_table_that_kpx_does_not_decode_is_read_by_nft_and_no_other() {
    let netns = Netns::new();
    netns.feed("nft -f -", KUBE_PROXY);
    netns.feed(
        "nft -f -",
        "table inet other { chain forward { type filter hook forward priority 0;
            tcp flags syn tcp option maxseg size set rt mtu; }; }",
    );
    let own = same(&netns, "unknown").await;
    let by_tool = by_tool(&own);
    let [table] = by_tool.as_slice() else {
        panic!("{by_tool:?}");
    };
    assert_eq!(table["family"], "inet");
    assert_eq!(table["name"], "other");
    let why = table["why"].as_str().unwrap();
    assert!(why.contains("chain forward") && why.contains("rt"), "{why}");
    let ends = own.matches("\"map\": {").count();
    assert!(own.contains("\"service-ips\"") && ends == 1, "{own}");
}

/// Takes a bundle of `netns` on a machine without `nft`; returns its ruleset, or why there is none.
fn without_nft(netns: &Netns) -> Result<String, String> {
    let dir = tempfile::tempdir().unwrap();
    let bundle = dir.path().join("bundle");
    let script = format!(
        "mount --bind /dev/null \"$(readlink -f \"$(which nft)\")\" && ! nft -v 2>/dev/null &&
         {} --netns {} --no-api snapshot --file {} >/dev/null; test -d {}\n",
        env!("CARGO_BIN_EXE_kpx"),
        netns.options().netns.unwrap(),
        bundle.display(),
        bundle.display()
    );
    run(&["unshare", "--mount", "sh"], &script);
    let evidence = load(&bundle, &[Item::Nft]).unwrap();
    evidence
        .text(Item::Nft)
        .map(str::to_owned)
        .map_err(|gap| gap.to_string())
}

#[test]
#[ignore = "needs root and a network namespace"]
fn no_nft_is_needed_to_read_the_rules_of_kube_proxy() {
    let netns = Netns::new();
    netns.feed("nft -f -", KUBE_PROXY);
    let own = without_nft(&netns).unwrap();
    let tool = netns.run("nft -j list ruleset");
    assert_eq!(objects(&own), objects(&tool));

    // Parts that kpx cannot read alone are unknown, and not omitted.
    netns.run("nft add table bridge other");
    let why = without_nft(&netns).unwrap_err();
    assert!(
        why.contains("`nft` not found") && why.contains("table bridge other"),
        "{why}"
    );
}
