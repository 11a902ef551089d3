//! Each sample of `testdata/pastes`, and what must hold of any.

use std::fs;
use std::path::PathBuf;

use super::*;
use crate::backend::iptables::model::{IN_PART, NO_LINKS, NOT_SHOWN, Ruleset};
use crate::backend::{ipset, iptables, nftables};
use crate::evidence::Gap;
use crate::net::Family;
use crate::node::NodeSnapshot;

fn folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../testdata/pastes")
}

fn sample(start: &str) -> String {
    let mut all = fs::read_dir(folder())
        .unwrap()
        .map(|entry| entry.unwrap().path());
    let path = all.find(|path| {
        path.file_name()
            .unwrap()
            .to_str()
            .unwrap()
            .starts_with(start)
    });
    fs::read_to_string(path.unwrap_or_else(|| panic!("no sample {start}"))).unwrap()
}

fn read(text: &str) -> Foreign {
    paste(text.as_bytes()).unwrap_or_else(|| panic!("nothing is recognised in {text}"))
}

/// Returns the evidence of the only or best node.
fn evidence(text: &str) -> Evidence {
    read(text).nodes[0].evidence.with_all_parts()
}

fn text(evidence: &Evidence, item: Item) -> String {
    evidence
        .text(item)
        .unwrap_or_else(|gap| panic!("{gap}"))
        .to_owned()
}

fn rules(text: &str) -> Ruleset<'_> {
    iptables::parse::ruleset(Item::Iptables4, text).unwrap()
}

/// Returns the rules without counters, by table and chain.
fn plain(text: &str) -> Vec<String> {
    let rules = rules(text);
    let mut all = Vec::new();
    for table in &rules.tables {
        for chain in &table.chains {
            all.extend(chain.rules.iter().map(|rule| {
                let mut rule = rule.clone();
                rule.counters = None;
                format!("{} {}{rule}", table.name, chain.name)
            }));
        }
    }
    all
}

/// Squeezes the blanks of each line, as web pages do.
fn squeezed(text: &str) -> String {
    let lines = text
        .lines()
        .map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "));
    lines.collect::<Vec<_>>().join("\n")
}

#[test]
fn every_sample_is_read_and_its_items_are_parsed() {
    let without_evidence = ["25-", "29-", "61-", "67-"];
    for entry in fs::read_dir(folder()).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap().to_owned();
        let bytes = fs::read(&path).unwrap();
        let found = paste(&bytes);
        if found.is_none() {
            assert!(
                without_evidence.iter().any(|start| name.starts_with(start)),
                "{name}: nothing is recognised"
            );
            continue;
        }
        for node in found.unwrap().nodes {
            let evidence = node.evidence.with_all_parts();
            let snapshot = NodeSnapshot::new(&evidence);
            let bad = |gap: Gap| {
                matches!(gap, Gap::Failed(..))
                    && !matches!(evidence.text(gap.item().unwrap()), Err(Gap::Failed(..)))
            };
            let mut gaps: Vec<Gap> = Vec::new();
            for family in Family::BOTH {
                gaps.extend(
                    snapshot
                        .iptables(crate::node::IptablesBackend::InUse, family)
                        .err(),
                );
            }
            gaps.extend(snapshot.nft().err());
            gaps.extend(snapshot.ipset().err());
            gaps.extend(snapshot.ipvs().err());
            gaps.extend(snapshot.ipvs_connections().err());
            gaps.extend(snapshot.addresses().err());
            gaps.extend(snapshot.links().err());
            gaps.extend(snapshot.routes().err());
            gaps.extend(snapshot.rules().err());
            gaps.extend(snapshot.sockets().err());
            gaps.extend(snapshot.sysctl().err());
            gaps.extend(snapshot.modules().err());
            gaps.extend(snapshot.conntrack().err());
            gaps.extend(snapshot.services().err());
            gaps.extend(snapshot.slices().err());
            gaps.extend(snapshot.pods().err());
            gaps.extend(snapshot.nodes().err());
            for gap in gaps {
                assert!(!bad(gap.clone()), "{name}: {gap}");
            }
        }
    }
}

#[test]
fn matches_of_a_listing_are_those_of_the_save() {
    let listed = text(
        &evidence(&sample("14-iptables-matches.nvL")),
        Item::Iptables4,
    );
    let (listed, saved) = (plain(&listed), plain(&sample("14-iptables-matches.save")));
    let odd = |line: &String| {
        line.contains("hashlimit") || line.contains("vrrp") || line.contains(" 112 ")
    };
    let sort = |lines: Vec<String>| {
        let mut lines: Vec<String> = lines.into_iter().filter(|line| !odd(line)).collect();
        lines.sort();
        lines
    };
    assert_eq!(sort(listed), sort(saved));
}

#[test]
fn blanks_do_not_matter() {
    for start in [
        "01-",
        "02-",
        "03-",
        "04-",
        "05-",
        "06-",
        "07-",
        "11-",
        "12-",
        "13-",
        "14-iptables-matches.nvL",
        "22-",
        "33-",
        "36-",
        "41-",
        "52-",
        "55-",
        "59-",
    ] {
        let sample = sample(start);
        let (one, other) = (evidence(&sample), evidence(&squeezed(&sample)));
        for (item, read) in one.iter() {
            let Ok(read) = read else {
                continue;
            };
            assert_eq!(read, text(&other, item), "{start}: {item}");
        }
    }
}

#[test]
fn the_protocol_may_be_a_number_and_the_save_has_the_same_rules() {
    let names = plain(&text(&evidence(&sample("01-")), Item::Iptables4));
    let numbers = plain(&text(&evidence(&sample("02-")), Item::Iptables4));
    for (name, number) in names.iter().zip(&numbers) {
        assert_eq!(name, number);
    }
    assert_eq!(names.len(), numbers.len());
    let saved = plain(&text(&evidence(&sample("09-")), Item::Iptables4));
    for rule in &names {
        assert!(saved.contains(rule), "{rule}");
    }
    let counted = plain(&text(&evidence(&sample("10-")), Item::Iptables4));
    assert!(!counted.is_empty());
    for rule in &counted {
        let is_cut = rule.ends_with(NOT_SHOWN);
        assert!(saved.contains(rule) || is_cut, "{rule}");
    }
}

#[test]
fn a_listing_without_links_leaves_them_open() {
    let rules = text(&evidence(&sample("04-")), Item::Iptables4);
    assert!(
        rules.contains(&format!("-A INPUT {NO_LINKS} -j ACCEPT")),
        "{rules}"
    );
    assert!(rules.starts_with(IN_PART), "{rules}");
    // Chains of kube-proxy have no links.
    let rules = text(&evidence(&sample("03-")), Item::Iptables4);
    assert!(
        !rules
            .lines()
            .any(|line| line.contains("-A KUBE-") && line.contains(NO_LINKS)),
        "{rules}"
    );
}

#[test]
fn what_is_cut_stays_open() {
    let rules = text(&evidence(&sample("18-")), Item::Iptables4);
    let services: Vec<&str> = rules
        .lines()
        .filter(|line| line.contains("-A KUBE-SERVICES"))
        .collect();
    assert_eq!(services.len(), 3, "{rules}");
    assert!(services[1].ends_with("-j KPX-NOT-SHOWN"), "{rules}");
    let of_sample = evidence(&sample("18-"));
    assert!(of_sample.missing_part(Item::Iptables4).is_some());
    assert!(matches!(
        of_sample.without_parts().text(Item::Iptables4),
        Err(Gap::Partial(..))
    ));
}

#[test]
fn broken_lines_are_joined() {
    let wrapped = plain(&text(&evidence(&sample("15-")), Item::Iptables4));
    assert_eq!(wrapped.len(), 8, "{wrapped:#?}");
    assert!(
        wrapped[2].contains("this must be the last rule in this chain"),
        "{wrapped:#?}"
    );
    assert!(
        wrapped[6].contains("--probability 0.33333333349"),
        "{wrapped:#?}"
    );
}

#[test]
fn quotes_and_entities_are_taken_off() {
    let rules = text(&evidence(&sample("16-")), Item::Iptables4);
    assert!(
        rules.contains("default/nginx-svc -> 10.244.1.14:80"),
        "{rules}"
    );
    assert!(rules.contains("--to-destination 10.244.1.14:80"), "{rules}");
}

#[test]
fn sets_are_those_of_the_save() {
    let sets = text(&evidence(&sample("33-")), Item::Ipset);
    assert!(sets.contains("create KUBE-CLUSTER-IP hash:ip,port family inet hashsize 1024 maxelem 65536 comment bucketsize 12 initval 0x9f84f933\n"));
    assert!(
        sets.contains(
            "add KUBE-CLUSTER-IP 10.96.0.10,udp:53 comment \"kube-system/kube-dns:dns\"\n"
        )
    );
    assert!(sets.contains("add KUBE-NODE-PORT-TCP 31082\n"));
    let count = sample("33-").matches("Name: ").count();
    assert_eq!(ipset::parse(&sets).unwrap().sets.len(), count);
    // A set without its members is not shown.
    let terse = evidence(&sample("35-"));
    assert!(
        terse
            .missing_part(Item::Ipset)
            .unwrap()
            .contains("members of set KUBE-CLUSTER-IP are not shown")
    );
    assert!(
        ipset::parse(&text(&terse, Item::Ipset))
            .unwrap()
            .sets
            .is_empty()
    );
}

#[test]
fn virtual_servers_are_those_of_the_save() {
    let servers = text(&evidence(&sample("22-")), Item::IpvsSave);
    assert_eq!(
        servers
            .lines()
            .filter(|line| line.starts_with("-A"))
            .count(),
        5
    );
    assert!(servers.contains("-a -t 10.97.54.248:80 -r 10.244.1.14:8080 -m -w 0\n"));
    assert!(servers.contains("-A -t 192.0.2.10:31082 -s rr -p 10800\n"));
    let forms = text(&evidence(&sample("23-")), Item::IpvsSave);
    for line in [
        "-A -t 10.97.54.250:443 -s wrr -p 600 -M 255.255.255.0 -o",
        "-A -f 11 -6 -s rr",
        "-A -u 10.97.54.253:5060 -s mh -b mh-fallback,mh-port -p 300 --pe sip",
        "-a -t 10.97.54.250:443 -r 10.244.1.31:8443 -i -w 1",
    ] {
        assert!(forms.lines().any(|form| form == line), "{line}\n{forms}");
    }
    // Of one service, the others are unknown.
    assert!(
        evidence(&sample("32-"))
            .missing_part(Item::IpvsSave)
            .is_some()
    );
    assert!(
        evidence(&sample("22-"))
            .missing_part(Item::IpvsSave)
            .is_none()
    );
    let named = text(&evidence(&sample("62-")), Item::IpvsSave);
    assert_eq!(
        named,
        "-A -t 10.96.0.1:443 -s rr\n-a -t 10.96.0.1:443 -r 192.0.2.10:6443 -m -w 1\n"
    );
    let kernel = text(&evidence(&sample("30-")), Item::IpvsSave);
    assert!(
        kernel.contains("-a -t 10.97.54.248:80 -r 10.244.1.16:8080 -m -w 1\n"),
        "{kernel}"
    );
}

#[test]
fn handles_are_taken_off_rules_of_nftables() {
    let sample = sample("49-");
    let without: Vec<&str> = sample
        .lines()
        .map(|line| line.split(" # handle ").next().unwrap())
        .collect();
    let read = text(&evidence(&sample), Item::NftText);
    assert_eq!(read.trim_end(), without.join("\n").trim_end());
    assert!(!nftables::parse::text(&read).unwrap().tables.is_empty());
    // nft's notation of the rules of iptables-nft is not used.
    assert!(matches!(
        evidence(&self::sample("48-")).text(Item::NftText),
        Err(Gap::Partial(..))
    ));
    assert!(matches!(
        evidence(&self::sample("51-")).text(Item::NftText),
        Err(Gap::Partial(..))
    ));
}

#[test]
fn addresses_routes_and_rules_are_read() {
    let of = evidence(&sample("36-"));
    let node = NodeSnapshot::new(&of);
    let addresses = node.addresses().unwrap();
    assert_eq!(
        addresses
            .all
            .iter()
            .filter(|at| at.link == "kube-ipvs0")
            .count(),
        3
    );
    assert!(of.missing_part(Item::Addresses).is_none());
    assert!(of.missing_part(Item::Links).unwrap().contains("kinds"));
    let of = evidence(&sample("40-"));
    let node = NodeSnapshot::new(&of);
    let kinds: Vec<&str> = node
        .links()
        .unwrap()
        .all
        .iter()
        .map(|link| link.kind.as_str())
        .collect();
    assert_eq!(kinds, ["dummy", "vxlan"]);
    let of = evidence(&sample("41-"));
    let node = NodeSnapshot::new(&of);
    let routes = &node.routes().unwrap().all;
    assert!(
        routes
            .iter()
            .any(|route| route.kind == "blackhole"
                && route.destination.to_string() == "10.99.0.0/16")
    );
    assert!(routes.iter().any(|route| route.nexthops.len() == 2));
    assert!(
        routes
            .iter()
            .any(|route| route.kind == "unreachable" && route.family == Family::V6)
    );
    assert!(of.missing_part(Item::Routes).is_none());
    // Every local address is in the local table.
    assert!(
        node.addresses()
            .unwrap()
            .all
            .iter()
            .any(|at| at.link == "kube-ipvs0" && at.addr.to_string() == "10.96.0.10/32")
    );
    let of = evidence(&sample("42-"));
    let rules = &NodeSnapshot::new(&of).rules().unwrap().all.len();
    assert!(*rules >= 3, "{rules}");
    let of = evidence(&sample("43-"));
    assert!(
        of.missing_part(Item::Addresses)
            .unwrap()
            .contains("one IPv4 address")
    );
    assert!(
        evidence(&sample("44-"))
            .missing_part(Item::Routes)
            .unwrap()
            .contains("table main")
    );
}

#[test]
fn sockets_of_a_filtered_list_prove_presence_alone() {
    let found = read(&sample("46-"));
    let node1 = found
        .nodes
        .iter()
        .find(|node| node.name == "node1")
        .unwrap();
    assert!(
        node1
            .evidence
            .missing_part(Item::Sockets)
            .unwrap()
            .contains("grep 31082")
    );
    let of = node1.evidence.with_all_parts();
    let node = NodeSnapshot::new(&of);
    assert!(
        node.sockets()
            .unwrap()
            .listening
            .iter()
            .any(|socket| socket.local.port() == 31082 && socket.processes[0].name == "kube-proxy")
    );
}

#[test]
fn services_of_a_table_are_known_in_part() {
    let of = evidence(&sample("52-"));
    let node = NodeSnapshot::new(&of);
    let services = node.services().unwrap();
    let web = services
        .iter()
        .find(|service| service.metadata.name == "web" && service.metadata.namespace == "shop")
        .unwrap();
    assert_eq!(
        (web.spec.cluster_ip.as_str(), web.spec.ports[0].node_port),
        ("10.109.235.134", Some(31082))
    );
    assert!(matches!(
        of.without_parts().text(Item::Services),
        Err(Gap::Partial(..))
    ));
    let list = evidence(&sample("56-"));
    let node = NodeSnapshot::new(&list);
    assert_eq!(node.slices().unwrap()[0].endpoints.len(), 1);
}

#[test]
fn two_hosts_are_two_nodes() {
    let found = read(&sample("24-"));
    let names: Vec<&str> = found.nodes.iter().map(|node| node.name.as_str()).collect();
    assert!(
        names.contains(&"node1") && names.contains(&"master1"),
        "{names:?}"
    );
    let of = |name: &str| found.nodes.iter().find(|node| node.name == name).unwrap();
    assert!(of("node1").evidence.missing_part(Item::IpvsSave).is_none());
    assert!(
        of("master1")
            .evidence
            .missing_part(Item::IpvsSave)
            .is_some()
    );
}

#[test]
fn errors_are_no_empty_tables() {
    let found = read(&sample("20-"));
    let of = &found
        .nodes
        .iter()
        .find(|node| node.name == "node1")
        .unwrap()
        .evidence;
    assert!(of.with_all_parts().text(Item::Iptables4).is_ok());
    assert!(
        of.missing_part(Item::Iptables4)
            .unwrap()
            .contains("not shown")
    );
    assert_eq!(
        paste(b"bash: ipvsadm: command not found\n").map(|found| found.what),
        None
    );
}

#[test]
fn names_of_chains_prove_their_endpoints() {
    let rules = text(&evidence(&sample("90-")), Item::Iptables4);
    for (chain, endpoint) in [
        ("KUBE-SEP-DUL3TOEKR4Q7XNNH", "10.244.1.16:80"),
        ("KUBE-SEP-OJQRYVIILJUTFXOB", "10.244.1.17:80"),
        ("KUBE-SEP-EAEOYSPXP66WOJLO", "10.244.1.17:80"),
    ] {
        let wanted = format!("--to-destination {endpoint}");
        assert!(
            rules
                .lines()
                .any(|line| line.starts_with(&format!("-A {chain} ")) && line.ends_with(&wanted)),
            "{chain}\n{rules}"
        );
    }
    // Rules of both moments.
    assert!(rules.contains("10.97.54.248/32") && rules.contains("10.109.235.134/32"));
}

#[test]
fn a_row_may_have_no_target_and_a_number_for_its_protocol() {
    let text = text(
        &evidence(
            "# iptables -nvL\nChain INPUT (policy ACCEPT 0 packets, 0 bytes)\n pkts bytes target prot opt in out source destination\n\
             0 0 0 -- !eth0 * 0.0.0.0/0 0.0.0.0/0 mark match ! 0x1/0xff /* two \"words\" */\n\
             0 0 ACCEPT 6 -- * * 0.0.0.0/0 0.0.0.0/0 tcp dpt:22\n",
        ),
        Item::Iptables4,
    );
    assert_eq!(
        plain(&text),
        [
            "filter INPUT ! -i eth0 -m mark ! --mark 0x1/0xff -m comment --comment \"two \\\"words\\\"\"",
            "filter INPUT -p tcp -m tcp --dport 22 -j ACCEPT",
        ]
    );
}

#[test]
fn nothing_is_recognised_in_prose() {
    for text in [
        "",
        "\n\n",
        "Hello, my cluster is broken.\nPlease help!\n",
        "1\n2\n3\n",
        "a: b\n",
        "-> nowhere\n",
    ] {
        assert!(paste(text.as_bytes()).is_none(), "{text:?}");
    }
}

/// A bounded number of mutations with a fixed seed: readers return, and what they return is parsed or refused, for any bytes.
#[test]
fn mutated_samples_do_not_panic() {
    let mut state = 0x2545_f491_4f6c_dd1d_u64;
    let mut random = move |below: usize| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        usize::try_from(state % below.max(1) as u64).unwrap()
    };
    let mut all: Vec<PathBuf> = fs::read_dir(folder())
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    all.sort();
    for path in all {
        let bytes = fs::read(&path).unwrap();
        for _ in 0..4 {
            let mut bytes = bytes.clone();
            for _ in 0..=random(6) {
                if bytes.is_empty() {
                    break;
                }
                let at = random(bytes.len());
                match random(4) {
                    0 => bytes.truncate(at),
                    1 => bytes[at] = u8::try_from(random(256)).unwrap(),
                    2 => drop(bytes.remove(at)),
                    _ => bytes.insert(at, b"\n :/-*0A\t\"'(){}"[random(15)]),
                }
            }
            for node in paste(&bytes).into_iter().flat_map(|found| found.nodes) {
                let evidence = node.evidence.with_all_parts();
                let snapshot = NodeSnapshot::new(&evidence);
                for family in Family::BOTH {
                    if let Ok(text) = evidence.text(Item::iptables(family)) {
                        let read = iptables::parse::ruleset(Item::iptables(family), text);
                        assert!(read.is_ok(), "{}: {read:?}", path.display());
                    }
                }
                let _ = (
                    snapshot.ipvs().is_ok(),
                    snapshot.routes().is_ok(),
                    snapshot.addresses().is_ok(),
                    snapshot.services().is_ok(),
                );
            }
        }
    }
}

mod cuts;
mod forms;
mod ports;

const SAVE: &str = "*filter\n:INPUT ACCEPT [0:0]\n:FORWARD ACCEPT [0:0]\n:OUTPUT ACCEPT [0:0]\n-A FORWARD -d 10.42.0.0/16 -j DROP\nCOMMIT\n";

#[test]
fn commands_that_run_elsewhere_name_their_machine() {
    let other = SAVE.replace("DROP", "ACCEPT");
    for [one, two] in [
        ["ssh root@w1 iptables-save", "ssh -q w2 sudo iptables-save"],
        [
            "docker exec -it w1 iptables-save",
            "docker exec w2 iptables-save",
        ],
        [
            "kubectl debug node/w1 -- iptables-save",
            "kubectl debug node/w2 --image busybox -- iptables-save",
        ],
    ] {
        let all = read(&format!("$ {one}\n{SAVE}$ {two}\n{other}"));
        let names: Vec<&str> = all.nodes.iter().map(|node| node.name.as_str()).collect();
        assert_eq!(names.len(), 2, "{one}: {names:?}");
        for (node, verdict) in [("w1", "-j DROP"), ("w2", "-j ACCEPT")] {
            let of = all
                .nodes
                .iter()
                .find(|machine| machine.name == node)
                .unwrap();
            let rules = text(&of.evidence.with_all_parts(), Item::Iptables4);
            assert!(rules.contains(verdict), "{one}: {rules}");
        }
    }
}

#[test]
fn the_network_of_a_pod_is_not_that_of_the_node() {
    let address = |addr: &str| {
        format!("2: eth0: <BROADCAST,UP> mtu 1500 state UP\n    inet {addr}/24 scope global eth0\n")
    };
    let all = evidence(&format!(
        "root@w1:~# ip addr\n{}root@w1:~# kubectl exec netshoot -- ip addr\n{}\
         root@w1:~# kubectl -n kube-system exec ds/kube-proxy -c kube-proxy -- iptables-save\n{SAVE}",
        address("192.0.2.11"),
        address("10.42.2.99")
    ));
    let addresses = text(&all, Item::Addresses);
    assert!(addresses.contains("192.0.2.11"), "{addresses}");
    assert!(!addresses.contains("10.42.2.99"), "{addresses}");
    assert!(text(&all, Item::Iptables4).contains("-j DROP"));
}

#[test]
fn a_later_save_replaces_an_earlier_one() {
    let later = SAVE.replace("-A FORWARD -d 10.42.0.0/16 -j DROP\n", "");
    let all = evidence(&format!(
        "root@w1:~# iptables-save\n{SAVE}root@w1:~# iptables-save\n{later}"
    ));
    assert!(!text(&all, Item::Iptables4).contains("DROP"));
}

#[test]
fn pods_of_a_table_with_an_address_of_the_node_are_in_its_network() {
    let table = "NAME READY STATUS RESTARTS AGE IP NODE\n\
                 proxy-a 1/1 Running 0 1d 192.0.2.11 w1\nweb-b 1/1 Running 0 1d 10.42.1.5 w1\n";
    let all = evidence(&format!(
        "root@w1:~# ip addr\n2: eth0: <BROADCAST,UP> mtu 1500 state UP\n    inet 192.0.2.11/24 scope global eth0\n\
         root@w1:~# kubectl get pods -o wide\n{table}"
    ));
    let pods = NodeSnapshot::new(&all).pods().unwrap().clone();
    let of_host: Vec<&str> = pods
        .iter()
        .filter(|pod| pod.spec.host_network)
        .map(|pod| pod.metadata.name.as_str())
        .collect();
    assert_eq!(of_host, ["proxy-a"]);
}

#[test]
fn a_table_without_endpoints_says_that_there_are_none() {
    let all = evidence("$ kubectl get endpoints -n shop\nNAME ENDPOINTS AGE\npayments <none> 1d\n");
    let node = NodeSnapshot::new(&all);
    let slices = node.slices().unwrap();
    assert_eq!(slices.len(), 1);
    assert!(slices[0].endpoints.is_empty());
    assert_eq!(slices[0].service(), Some(("shop", "payments")));
}

#[test]
fn a_log_without_a_command_is_no_other_output_above_it() {
    let line = "E0502 07:09:07.788271     214 proxier.go:168] \"Sync failed\"\n";
    let status = "● kube-proxy.service - Kubernetes Proxy\n   Loaded: loaded (/lib/systemd/system/kube-proxy.service; static)\n   \
        Active: active (running)\n Main PID: 214 (kube-proxy)\n   CGroup: /system.slice/kube-proxy.service\n           \
        └─214 /usr/bin/kube-proxy --proxy-mode=ipvs\n\n";
    let log = |text: &str| read(text).nodes[0].evidence.text(Item::ProxyLog).is_ok();
    assert!(log(&format!("{status}{line}{line}")));
    assert!(log(&format!("kubectl logs kube-proxy-x\n{line}{line}")));
    let pods = "NAME               READY   STATUS    RESTARTS   AGE   IP            NODE\n\
                kube-proxy-7bxk7   1/1     Running   0          9d    192.0.2.10    node1\n";
    assert!(!log(&format!("{pods}{line}{line}")));
}
