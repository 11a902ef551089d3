//! Recordings and random clusters with other legal settings, flags and options: redaction keeps each of them.

use std::iter;
use std::net::IpAddr;

use kpx_judge::diff;
use kpx_judge::redact::Redactor;
use kpx_node::backend::Mode;
use kpx_node::backend::program::{self, Part};
use kpx_node::evidence::{Evidence, ITEMS, Item, load};
use kpx_node::net::Family;
use kpx_node::node::NodeSnapshot;
use serde_json::{Value, json};

use super::{Pair, each};
use crate::random::{self, Dice};
use crate::support::root;

/// Schedulers of the kernel.
const SCHEDULERS: &[&str] = &[
    "rr", "wrr", "lc", "wlc", "lblc", "lblcr", "sh", "dh", "sed", "nq", "mh", "fo", "ovf", "twos",
];

/// Settings of kube-proxy with legal values, in YAML.
const SETTINGS: &[(&str, &[&str])] = &[
    ("ipvs.scheduler", SCHEDULERS),
    ("ipvs.strictARP", &["true", "false"]),
    (
        "ipvs.excludeCIDRs",
        &[
            "[]",
            "[10.96.0.0/28]",
            "['192.0.2.0/24', 'fd00:10:96::/64']",
        ],
    ),
    ("ipvs.tcpTimeout", &["0s", "15m0s", "1h30m"]),
    ("ipvs.tcpFinTimeout", &["0s", "120s", "1m30.5s"]),
    ("ipvs.udpTimeout", &["0s", "300s", "500ms"]),
    ("ipvs.syncPeriod", &["30s", "1m0s", "1h"]),
    ("ipvs.minSyncPeriod", &["0s", "1s", "100ms"]),
    ("iptables.masqueradeBit", &["14", "0", "15", "31"]),
    ("iptables.masqueradeAll", &["false", "true"]),
    ("iptables.localhostNodePorts", &["true", "false"]),
    ("iptables.syncPeriod", &["30s", "45s"]),
    ("iptables.minSyncPeriod", &["1s", "250ms"]),
    ("nftables.masqueradeBit", &["14", "0", "15", "31"]),
    ("nftables.masqueradeAll", &["false", "true"]),
    ("nftables.syncPeriod", &["30s", "45s"]),
    ("nftables.minSyncPeriod", &["1s", "250ms"]),
    ("conntrack.maxPerCore", &["32768", "0", "65536"]),
    ("conntrack.min", &["131072", "0", "1000000"]),
    ("conntrack.tcpEstablishedTimeout", &["24h0m0s", "1h", "0s"]),
    ("conntrack.tcpCloseWaitTimeout", &["1h0m0s", "10s"]),
    ("conntrack.tcpBeLiberal", &["false", "true"]),
    ("conntrack.udpTimeout", &["30s", "0s", "1m"]),
    ("conntrack.udpStreamTimeout", &["180s", "0s"]),
    ("bindAddress", &["0.0.0.0", "'::'", "10.0.2.15"]),
    (
        "healthzBindAddress",
        &["''", "0.0.0.0:10256", "'[::]:10256'", "127.0.0.1:10300"],
    ),
    (
        "metricsBindAddress",
        &["''", "127.0.0.1:10249", "0.0.0.0:10249", "'[::]:10249'"],
    ),
    (
        "clusterCIDR",
        &[
            "10.244.0.0/16",
            "''",
            "10.244.0.0/16,fd00:10:244::/48",
            "fd00:10:244::/48, 10.244.0.0/16",
        ],
    ),
    (
        "detectLocalMode",
        &[
            "''",
            "ClusterCIDR",
            "NodeCIDR",
            "BridgeInterface",
            "InterfaceNamePrefix",
        ],
    ),
    (
        "detectLocal.bridgeInterface",
        &["cni0", "''", "br-pods", "lan", "podnet.100"],
    ),
    (
        "detectLocal.interfaceNamePrefix",
        &["veth", "''", "cali", "pod", "ve", "vethpod", "en"],
    ),
    (
        "nodePortAddresses",
        &[
            "[]",
            "[primary]",
            "[127.0.0.0/8]",
            "[10.0.2.0/24, '::1/128']",
            "[0.0.0.0/0, '::/0']",
        ],
    ),
    ("hostnameOverride", &["node1", "''", "worker-7.example.com"]),
    ("portRange", &["''", "30000-32767", "1024+100"]),
    ("oomScoreAdj", &["-999", "0"]),
    ("configSyncPeriod", &["15m0s", "1m"]),
    (
        "featureGates",
        &[
            "{}",
            "{NFTablesProxyMode: true}",
            "{SupportIPVSProxyMode: false, AllAlpha: true}",
        ],
    ),
    (
        "clientConnection.kubeconfig",
        &[
            "''",
            "/var/lib/kube-proxy/kubeconfig.conf",
            "/etc/our/proxy.yaml",
        ],
    ),
    ("clientConnection.qps", &["5", "12.5"]),
    ("logging.format", &["text", "json"]),
    ("logging.verbosity", &["0", "4"]),
    ("mode", &["''", "ipvs", "iptables", "nftables"]),
];

/// Returns the value of the `round` of a row; rows with few values repeat them.
fn value<'a>(values: &[&'a str], round: usize) -> &'a str {
    values[round % values.len()]
}

/// Writes the settings of `round` over those of `text`.
fn configured(text: &str, round: usize) -> Value {
    let mut config = kpx_node::cluster::config::written(text).unwrap_or_else(|_| json!({}));
    for (path, values) in SETTINGS {
        // The mode of the recording decides what is compared: it changes seldom.
        if *path == "mode" && round % 4 != 3 {
            continue;
        }
        let yaml = format!("of: {}", value(values, round));
        let value = kpx_node::cluster::config::written(&yaml).unwrap()["of"].take();
        let mut at = &mut config;
        for key in path.split('.') {
            if !at[key].is_object() {
                at[key] = json!({});
            }
            at = &mut at[key];
        }
        *at = value;
    }
    config
}

/// Flags of kube-proxy with legal values.
const FLAGS: &[(&str, &[&str])] = &[
    ("proxy-mode", &["iptables", "ipvs", "nftables"]),
    ("ipvs-scheduler", SCHEDULERS),
    (
        "ipvs-exclude-cidrs",
        &["10.96.0.0/28", "192.0.2.0/24,fd00:10:96::/64"],
    ),
    ("ipvs-strict-arp", &["true", "false"]),
    ("ipvs-tcp-timeout", &["15m0s", "0s"]),
    ("ipvs-sync-period", &["30s", "1m"]),
    ("iptables-masquerade-bit", &["14", "0", "15", "31"]),
    ("iptables-localhost-nodeports", &["true", "false"]),
    ("iptables-min-sync-period", &["1s", "100ms"]),
    ("masquerade-all", &["true", "false"]),
    (
        "cluster-cidr",
        &["10.244.0.0/16", "fd00:10:244::/48,10.244.0.0/16"],
    ),
    (
        "detect-local-mode",
        &[
            "ClusterCIDR",
            "NodeCIDR",
            "BridgeInterface",
            "InterfaceNamePrefix",
        ],
    ),
    ("pod-bridge-interface", &["cni0", "lan"]),
    ("pod-interface-name-prefix", &["veth", "pod"]),
    ("nodeport-addresses", &["primary", "10.0.2.0/24,::1/128"]),
    ("hostname-override", &["node1", "worker-7.example.com"]),
    ("conntrack-max-per-core", &["0", "32768"]),
    ("conntrack-min", &["131072", "0"]),
    ("conntrack-tcp-be-liberal", &["true", "false"]),
    ("conntrack-tcp-timeout-established", &["24h0m0s", "0s"]),
    ("conntrack-udp-timeout-stream", &["180s", "0s"]),
    ("healthz-bind-address", &["0.0.0.0:10256", "[::]:10256"]),
    ("metrics-bind-address", &["127.0.0.1:10249", "[::]:10249"]),
    ("bind-address", &["0.0.0.0", "::"]),
    (
        "feature-gates",
        &[
            "NFTablesProxyMode=true",
            "SupportIPVSProxyMode=false,AllAlpha=true",
        ],
    ),
    ("config-sync-period", &["15m0s", "1m"]),
    ("oom-score-adj", &["-999", "0"]),
    ("v", &["2", "4"]),
];

/// Options of virtual servers behind their scheduler, as `ipvsadm -Sn` prints them.
const SERVERS: &[&str] = &[
    "",
    "-p 10800",
    "-p 300 -M 255.255.255.0",
    "-o",
    "-b flag-1",
    "-b flag-2",
    "-b flag-1,flag-2",
    "-b flag-3",
    "-p 60 --pe sip",
    "-p 360 -o -b flag-1",
];

/// Options of real servers.
const REALS: &[&str] = &[
    "-m -w 1",
    "-m -w 0",
    "-m -w 100",
    "-g -w 1",
    "-i -w 1",
    "-m -w 1 -x 100 -y 50",
    "-i -w 2 --tun-type gue --tun-port 6080 --tun-nocsum",
    "-m -w 65535 -x 1",
];

/// Options of sets.
const SETS: &[&str] = &[
    "hashsize 1024 maxelem 65536",
    "hashsize 64 maxelem 1000",
    "hashsize 4096 maxelem 1048576 bucketsize 12 initval 0xcafe00ad",
    "hashsize 1024 maxelem 65536 timeout 600",
    "hashsize 1024 maxelem 65536 counters comment",
    "hashsize 1024 maxelem 65536 skbinfo forceadd",
];

/// Rules of the kinds that kube-proxy, network plugins and administrators write, for any table.
const MATCHES: &[&str] = &[
    "-m mark --mark 0x4000/0x4000",
    "-m mark ! --mark 0x8/0xff",
    "-m connmark --mark 0x20/0x20",
    "-m statistic --mode random --probability 0.33333333349",
    "-m statistic --mode nth --every 3 --packet 1",
    "-m conntrack --ctstate RELATED,ESTABLISHED",
    "-m conntrack ! --ctstate INVALID --ctdir ORIGINAL",
    "-m conntrack --ctstate DNAT --ctorigdst 10.96.0.10/32 --ctorigdstport 53",
    "-m state --state NEW",
    "-m addrtype --dst-type LOCAL",
    "-m addrtype ! --src-type UNICAST --limit-iface-in",
    "-m limit --limit 10/sec --limit-burst 20",
    "-m hashlimit --hashlimit-upto 5/min --hashlimit-burst 10 --hashlimit-mode srcip,dstport --hashlimit-name perip --hashlimit-htable-expire 60000",
    "-m recent --rcheck --seconds 10800 --reap --name KUBE-SEP-AAAAAAAAAAAAAAAA --mask 255.255.255.255 --rsource",
    "-m recent --update --seconds 60 --hitcount 4 --rttl --name bad --mask 255.255.255.0 --rdest",
    "-m set --match-set KUBE-CLUSTER-IP dst,dst",
    "-m set ! --match-set clients src --return-nomatch",
    "-m multiport --dports 80,443,8000:8080",
    "-p tcp -m multiport ! --sports 1:1023",
    "-p tcp -m tcp --dport 30000:32767 --tcp-flags FIN,SYN,RST,ACK SYN",
    "-p udp -m udp ! --sport 53",
    "-p icmp -m icmp --icmp-type 3/4",
    "-p sctp -m sctp --dport 2905 --chunk-types any INIT",
    "-m physdev --physdev-in veth+ --physdev-is-bridged",
    "-m physdev ! --physdev-out lan0",
    "-i cni0 ! -o eth0",
    "-i lan+ -o cali+",
    "-m iprange --src-range 10.0.0.1-10.0.0.9 ! --dst-range 192.0.2.1-192.0.2.5",
    "-m owner --uid-owner 1000 --gid-owner 0-999",
    "-m owner ! --socket-exists",
    "-m rpfilter --loose --validmark --invert",
    "-m socket --transparent --nowildcard",
    "-m pkttype --pkt-type broadcast",
    "-m realm --realm 0x1/0xff",
    "-m time --timestart 08:00:00 --timestop 18:00:00 --weekdays Mon,Fri --kerneltz",
    "-m length --length 0:1400",
    "-m tcpmss --mss 536:1460",
    "-m ttl --ttl-lt 5",
    "-m tos --tos 0x10/0x3f",
    "-m dscp --dscp 0x2e",
    "-m u32 --u32 0x0&0xff00=0x100",
    "-m bpf --bytecode \"1,6 0 0 1\"",
    "-m string --string \"GET /\" --algo bm --to 65535",
    "-m connlimit --connlimit-upto 10 --connlimit-mask 24 --connlimit-saddr",
    "-m connbytes --connbytes 1000:2000 --connbytes-mode bytes --connbytes-dir both",
    "-m nfacct --nfacct-name ct_state_invalid_dropped_pkts",
    "-m ipvs --vaddr 10.96.0.10/32 --vport 53 --vdir REPLY",
    "-m ipvs --ipvs --vmethod MASQ",
    "-m cgroup --cgroup 1048577",
    "-m devgroup --src-group 0x2",
    "-m policy --dir in --pol ipsec --proto esp --mode tunnel",
    "-m cpu --cpu 0",
    "-m quota --quota 1000000",
    "-m helper --helper ftp",
    "-m mac --mac-source 52:55:0a:00:02:02",
    "-m comment --comment \"shop/cart:http cluster IP\"",
    "! -f",
    "-s 10.244.0.0/255.255.0.255",
    "! -s 10.244.0.0/16 ! -d 10.96.0.0/12",
];

/// Targets of rules.
const TARGETS: &[&str] = &[
    "-j DROP",
    "-j ACCEPT",
    "-j RETURN",
    "-j REJECT --reject-with icmp-host-prohibited",
    "-j REJECT --reject-with tcp-reset",
    "-j MARK --set-xmark 0x4000/0x4000",
    "-j MARK --and-mark 0xffffbfff",
    "-j CONNMARK --restore-mark --nfmask 0xffff --ctmask 0xffff",
    "-j LOG --log-prefix \"blocked: \" --log-level 4 --log-ip-options",
    "-j NFLOG --nflog-prefix our --nflog-group 5 --nflog-threshold 20",
    "-j TCPMSS --clamp-mss-to-pmtu",
    "-j NOTRACK",
    "-j CT --zone 5",
    "-j CT --helper ftp --ctevents new,destroy",
    "-j TPROXY --on-port 15001 --on-ip 127.0.0.1 --tproxy-mark 0x1/0xffffffff",
    "-j DSCP --set-dscp 0x2e",
    "-j TEE --gateway 10.0.2.9",
    "-j CLASSIFY --set-class 0001:0010",
    "-j NFQUEUE --queue-balance 0:3 --queue-bypass",
    "-j SET --add-set banned src --exist --timeout 60",
];

/// Targets of rules in the table nat.
const NAT: &[&str] = &[
    "-j MASQUERADE",
    "-j MASQUERADE --random-fully",
    "-j MASQUERADE --to-ports 1024-31000 --random",
    "-j SNAT --to-source 192.0.2.9",
    "-j SNAT --to-source 10.0.2.15-10.0.2.16:1024-65535 --random --persistent",
    "-j DNAT --to-destination 10.244.1.9:8080",
    "-j DNAT --to-destination 10.244.1.9-10.244.1.12 --random --persistent",
    "-j DNAT --to-destination :8443",
    "-j REDIRECT --to-ports 15001 --random",
    "-j NETMAP --to 10.9.0.0/16",
];

/// Replaces the text of `item`, where there is one.
fn change(evidence: &mut Evidence, item: Item, change: impl FnOnce(&str) -> String) {
    if let Ok(text) = evidence.text(item) {
        let new = change(text);
        evidence.insert(item, Ok(new));
    }
}

/// Gives kube-proxy the settings of `round`: as YAML in its file, as JSON in the `ConfigMap` and its answer.
fn set(evidence: &mut Evidence, round: usize) {
    change(evidence, Item::ProxyConfig, |text| {
        let config = configured(text, round);
        if round.is_multiple_of(2) {
            serde_yaml::to_string(&config).unwrap()
        } else {
            config.to_string()
        }
    });
    change(evidence, Item::Configz, |text| {
        let mut all: Value = serde_json::from_str(text).unwrap();
        let own = all.get_mut("kubeproxy.config.k8s.io");
        if let Some(own) = own {
            *own = configured(&own.to_string(), round);
        }
        all.to_string()
    });
}

/// Returns kube-proxy's command line of `round`: values behind `=`, or as words of their own.
fn command_line(round: usize) -> Vec<String> {
    let flags = FLAGS.iter().flat_map(|(name, values)| {
        let value = value(values, round);
        if round.is_multiple_of(2) || matches!(value, "true" | "false") {
            vec![format!("--{name}={value}")]
        } else {
            vec![format!("--{name}"), value.to_owned()]
        }
    });
    iter::once("/usr/local/bin/kube-proxy".to_owned())
        .chain(flags)
        .collect()
}

/// Starts kube-proxy with the flags of `round`: its process, its `DaemonSet`, and a static pod.
fn start(evidence: &mut Evidence, round: usize) {
    let args = command_line(round);
    let process = json!({ "pid": 900, "name": "kube-proxy", "args": args, "started": 1_795_176_000, "sameNetwork": true });
    evidence.insert(
        Item::Processes,
        Ok(json!({ "processes": [process] }).to_string()),
    );
    change(evidence, Item::DaemonSets, |text| {
        let mut all: Value = serde_json::from_str(text).unwrap();
        for of in all["items"].as_array_mut().into_iter().flatten() {
            let containers = of.pointer_mut("/spec/template/spec/containers");
            for of in containers
                .and_then(Value::as_array_mut)
                .into_iter()
                .flatten()
            {
                of["command"] = json!(args);
            }
        }
        all.to_string()
    });
}

/// Rewrites virtual servers, sets and rules with the options of `round`, each line with the next.
fn program(evidence: &mut Evidence, round: usize) {
    let mut number = round;
    let mut next = |values: &[&'static str]| {
        number += 1;
        values[number % values.len()]
    };
    change(evidence, Item::IpvsSave, |text| {
        let line = |line: &str| match line.split_once(" -s ") {
            Some((key, _)) => format!("{key} -s {} {}\n", value(SCHEDULERS, round), next(SERVERS)),
            None => match line.split_once(" -m ") {
                Some((real, _)) => format!("{real} {}\n", next(REALS)),
                None => format!("{line}\n"),
            },
        };
        text.lines().map(line).collect()
    });
    change(evidence, Item::Ipvs, |text| {
        let mut all: Value = serde_json::from_str(text).unwrap();
        all["timeouts"] = json!({ "tcp": 900 + round, "tcpFin": 7 * round, "udp": 300 });
        for (at, service) in all["services"]
            .as_array_mut()
            .into_iter()
            .flatten()
            .enumerate()
        {
            service["scheduler"] = value(SCHEDULERS, round).into();
            service["flags"] = (2 + (round * 5 + at) % 64).into();
            service["timeout"] = (60 * round).into();
            service["prefix"] = [32, 24, 16][(round + at) % 3].into();
            for real in service["destinations"].as_array_mut().into_iter().flatten() {
                real["weight"] = (round % 4 * 50).into();
                real["forwarding"] = ["masq", "route", "tunnel", "local"][round % 4].into();
                real["upper"] = (round % 3 * 100).into();
                real["lower"] = (round % 3 * 50).into();
            }
        }
        all.to_string()
    });
    change(evidence, Item::IpvsTimeout, |_| {
        format!(
            "Timeout (tcp tcpfin udp): {} {} 300\n",
            900 + round,
            7 * round
        )
    });
    change(evidence, Item::Ipset, |text| {
        let line = |line: &str| match line.split_once(" hashsize ") {
            Some((kind, _)) => format!("{kind} {}\n", next(SETS)),
            None => format!("{line}\n"),
        };
        text.lines().map(line).collect()
    });
    for item in [Item::Iptables4, Item::IptablesLegacy4] {
        change(evidence, item, |text| {
            let mut table = String::new();
            let line = |line: &str| {
                if let Some(name) = line.strip_prefix('*') {
                    name.clone_into(&mut table);
                }
                if line != "COMMIT" {
                    return format!("{line}\n");
                }
                let chain = if table == "filter" {
                    "FORWARD"
                } else {
                    "PREROUTING"
                };
                let rules = (0..6).map(|_| {
                    let target = if table == "nat" {
                        next(NAT)
                    } else {
                        next(TARGETS)
                    };
                    format!("-A {chain} {} {target}\n", next(MATCHES))
                });
                rules.collect::<String>() + "COMMIT\n"
            };
            text.lines().map(line).collect()
        });
    }
}

/// Compares what kpx says of `before` and of its redacted copy.
fn kept(name: &str, before: Evidence, round: usize) -> Vec<String> {
    let mut pair = Pair::new(name, before, [u8::try_from(round).unwrap(); 32]);
    let commands: [&[&str]; 3] = [&["doctor"], &["diff"], &["show", "services"]];
    let compared = commands.iter().map(|args| {
        let (before, after) = pair.reports(args, args);
        pair.same(&args.join(" "), &judged(before), &judged(after))
    });
    let mut errors: Vec<String> = compared.filter_map(Result::err).collect();
    errors.extend(restored(name, &mut pair));
    errors
}

/// Items whose text is the same after redaction and back: all in them is kept, or replaced consistently.
const WHOLE: &[Item] = &[
    Item::ProxyConfig,
    Item::Processes,
    Item::Sysctl,
    Item::Ipvs,
    Item::IpvsSave,
    Item::IpvsTimeout,
    Item::Ipset,
    Item::Iptables4,
    Item::Iptables6,
    Item::IptablesLegacy4,
    Item::NftText,
];

/// Finds lines of redacted items that do not have their original back.
fn restored(name: &str, pair: &mut Pair) -> Vec<String> {
    let after = pair.redactor.evidence(&pair.before);
    let mut errors = Vec::new();
    for item in WHOLE {
        let (Ok(before), Ok(after)) = (pair.before.text(*item), after.text(*item)) else {
            continue;
        };
        let words = |text: &str| -> Vec<String> { text.lines().map(str::to_owned).collect() };
        let back = words(&pair.redactor.restore(after));
        let before = words(before);
        let differ = before.iter().zip(&back).filter(|(a, b)| a != b);
        errors.extend(
            differ
                .take(5)
                .map(|(a, b)| format!("{name} {item}: {}\n   {}", near(a, b), near(b, a))),
        );
        if before.len() != back.len() {
            errors.push(format!(
                "{name} {item}: {} lines, not {}",
                back.len(),
                before.len()
            ));
        }
    }
    errors
}

/// Returns `text` around its first difference from `other`.
fn near(text: &str, other: &str) -> String {
    let same = text.chars().zip(other.chars()).take_while(|(a, b)| a == b);
    let start = same.count().saturating_sub(40);
    text.chars().skip(start).take(120).collect()
}

/// Returns `report` without the examples in it, such as the packet that a rule drops: which of several is named depends on
/// the order of names and addresses.
fn judged(report: Value) -> Value {
    const EXAMPLES: &[&str] = &["next", "reason"];
    match report {
        Value::Array(all) => {
            let is_example = |of: &Value| of["kind"] == "note";
            all.into_iter()
                .filter(|item| !is_example(item))
                .map(judged)
                .collect()
        }
        Value::Object(all) => {
            let kept = all
                .into_iter()
                .filter(|(key, _)| !EXAMPLES.contains(&key.as_str()));
            kept.map(|(key, value)| (key, judged(value)))
                .collect::<serde_json::Map<_, _>>()
                .into()
        }
        // An address in another spelling.
        Value::String(text) if text.contains("::") => {
            let words = text.split(' ').map(|word| match word.parse::<IpAddr>() {
                Ok(addr) => addr.to_string(),
                Err(_) => word.to_owned(),
            });
            words.collect::<Vec<_>>().join(" ").into()
        }
        // The target of an advised trace.
        Value::String(text) if text.contains("trace") => {
            let words = text.split(' ').filter(|word| !word.contains(':'));
            words.collect::<Vec<_>>().join(" ").into()
        }
        // Sums in another order.
        Value::Number(number) if number.is_f64() => {
            json!(number.as_f64().map(|as_f64| (as_f64 * 1e6).round()))
        }
        other => other,
    }
}

/// Changes `names` in each of `rounds` by `change`, and compares each with its redacted copy.
fn varied(names: &[&str], rounds: usize, change: fn(&mut Evidence, usize)) {
    let cases: Vec<String> = (0..rounds)
        .flat_map(|round| names.iter().map(move |name| format!("{round} {name}")))
        .collect();
    each(&cases, |case| {
        let (round, name) = case.split_once(' ').unwrap();
        let round = round.parse().unwrap();
        let folder = root().join("testdata/nodes").join(name);
        let mut evidence = load(&folder, ITEMS).unwrap();
        change(&mut evidence, round);
        kept(case, evidence, round)
    });
}

/// Changes `rounds` times the settings of kube-proxy; see [`ALL`].
pub(crate) fn settings_are_kept(rounds: usize) {
    varied(
        &["seed-ipvs", "seed-iptables", "seed-nftables"],
        rounds,
        set,
    );
}

pub(crate) fn flags_are_kept(rounds: usize) {
    varied(&["seed-ipvs", "seed-iptables"], rounds, start);
}

pub(crate) fn options_are_kept(rounds: usize) {
    varied(
        &["healthy-ipvs", "dual-ipvs", "seed-iptables"],
        rounds,
        program,
    );
}

/// The rounds after which each value of a setting or flag was there, and each option.
pub(crate) const ALL: (usize, usize) = (SCHEDULERS.len(), MATCHES.len() / 4);

#[test]
#[ignore = "takes long: make test-loops"]
fn every_setting_of_kube_proxy_is_kept() {
    settings_are_kept(1);
}

#[test]
#[ignore = "takes long: make test-loops"]
fn every_flag_of_kube_proxy_is_kept() {
    flags_are_kept(1);
}

#[test]
#[ignore = "takes long: make test-loops"]
fn options_of_servers_sets_and_rules_are_kept() {
    options_are_kept(1);
}

/// A random cluster with everything that kube-proxy would program.
fn programmed(seed: u64, families: &[&str], mode: Mode, version: &str) -> Evidence {
    let mut evidence = random::evidence(seed, families, mode.name(), version);
    let texts: Vec<(Part, String)> = {
        let node = NodeSnapshot::new(&evidence);
        let desired = node.desired(mode).unwrap();
        let cidrs = diff::service_cidrs(&node);
        let text = |part| program::text(desired, part, &Family::BOTH, &cidrs).unwrap();
        Part::of(mode, &Family::BOTH)
            .into_iter()
            .map(|part| (part, text(part)))
            .collect()
    };
    for (part, text) in texts {
        match part {
            Part::Sysctl => evidence.insert(Item::Sysctl, Ok(text)),
            Part::Iptables(Family::V4) => evidence.insert(Item::Iptables4, Ok(saved(&text))),
            Part::Iptables(Family::V6) => evidence.insert(Item::Iptables6, Ok(saved(&text))),
            Part::Ipset => evidence.insert(Item::Ipset, Ok(text.replace(" -exist", ""))),
            Part::Ipvs => evidence.insert(Item::IpvsSave, Ok(text)),
            Part::Addresses => change(&mut evidence, Item::Addresses, |own| {
                let mut own: Value = serde_json::from_str(own).unwrap();
                let all = text.lines().filter_map(|line| {
                    let (addr, _) = line.strip_prefix("addr add ")?.split_once('/')?;
                    let v6 = addr.contains(':');
                    let (family, length) = if v6 { ("inet6", 128) } else { ("inet", 32) };
                    Some(json!({ "family": family, "local": addr, "prefixlen": length, "scope": "global" }))
                });
                let link = json!({ "ifname": "kube-ipvs0", "addr_info": all.collect::<Vec<_>>() });
                own.as_array_mut().unwrap().push(link);
                own.to_string()
            }),
            // Only the kernel lists its JSON.
            Part::Nftables => evidence.insert(Item::NftText, Ok(text)),
        }
    }
    evidence
}

/// Returns the text for `iptables-restore` as `iptables-save` would list it.
fn saved(text: &str) -> String {
    let mut new = String::new();
    let mut inserted: Vec<String> = Vec::new();
    let mut appended = String::new();
    for line in text.lines() {
        if let Some(rule) = line.strip_prefix("-I ") {
            inserted.insert(0, format!("-A {rule}\n"));
        } else if line == "COMMIT" {
            let mut chains: Vec<&str> = inserted
                .iter()
                .filter_map(|rule| rule.split(' ').nth(1))
                .collect();
            chains.dedup();
            new.extend(
                chains
                    .iter()
                    .map(|chain| format!(":{chain} ACCEPT [0:0]\n")),
            );
            new.extend(inserted.drain(..));
            new += &std::mem::take(&mut appended);
            new += "COMMIT\n";
        } else if line.starts_with("-A ") {
            appended += line;
            appended.push('\n');
        } else {
            new += line;
            new.push('\n');
        }
    }
    new
}

#[test]
#[ignore = "takes long: make test-loops"]
fn random_clusters_without_a_difference_have_none_after_redaction() {
    random_clusters_stay_without(2..5);
}

/// Redacts a random cluster in each mode for each of `seeds`.
pub(crate) fn random_clusters_stay_without(seeds: std::ops::Range<u64>) {
    let mut cases = Vec::new();
    for seed in seeds {
        for mode in [Mode::Iptables, Mode::Ipvs, Mode::Nftables] {
            cases.push((seed, mode));
        }
    }
    let names: Vec<String> = (0..cases.len()).map(|at| at.to_string()).collect();
    each(&names, |name| {
        let at: usize = name.parse().unwrap();
        let (seed, mode) = cases[at];
        let mut dice = Dice::new(seed);
        let old = if mode == Mode::Nftables { 2 } else { 0 };
        let versions = &["v1.26.0", "v1.28.0", "v1.31.0", "v1.34.0", "v1.36.0"][old..];
        let version = versions[usize::try_from(dice.below(versions.len() as u64)).unwrap()];
        let families = if seed % 4 == 3 {
            random::ONLY_V6
        } else {
            random::DUAL
        };
        let before = programmed(seed, families, mode, version);
        let what = format!("seed {seed}, {mode:?}, {version}");
        let count = |evidence: &Evidence| {
            let node = NodeSnapshot::new(evidence);
            diff::compare(&node, mode, &Family::BOTH)
                .unwrap()
                .changes
                .len()
        };
        assert_eq!(count(&before), 0, "{what}");
        let after = Redactor::new([u8::try_from(at).unwrap(); 32], &before).evidence(&before);
        let mut errors = kept(&what, before, at);
        let changes = count(&after);
        if changes > 0 {
            errors.push(format!("{what}: {changes} differences"));
        }
        errors
    });
}
