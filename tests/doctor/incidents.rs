//! Incidents, rebuilt as bundles: the doctor's first finding names the cause, and what follows from it is below.

mod plugins;

use kpx_judge::check::{Finding, Outcome};
use kpx_node::backend::Mode;
use kpx_node::evidence::{self, Evidence, Gap, ITEMS, Item};
use serde_json::{Value, json};

use super::case::{edit, findings as found, replace, run};
use crate::support::{kpx, root};

struct Incident {
    /// The bundle below `testdata/cases`.
    case: &'static str,
    /// The check of the first finding, and words of its message and fix.
    first: (&'static str, &'static str, &'static str),
    /// Checks whose findings follow from it.
    below: &'static [&'static str],
    /// Checks that find nothing there.
    silent: &'static [&'static str],
}

const INCIDENTS: &[Incident] = &[
    Incident {
        case: "ipvs-01-clustercidr-covers-services",
        first: (
            "AP08",
            "clusterCIDR contains addresses of Services",
            "Set clusterCIDR to a prefix",
        ),
        below: &[],
        silent: &["IS05"],
    },
    Incident {
        case: "ipvs-04-k3s-node-address-in-ipvs-ips",
        first: (
            "DV04",
            "rejects connections to the node's own ports at it",
            "--disable=servicelb",
        ),
        below: &["AP12", "KB01"],
        silent: &[],
    },
    Incident {
        case: "ipvs-06-parseip-old-kernel",
        first: ("KP21", "parseIP Error", "Upgrade kube-proxy to v1.18.3"),
        below: &["VS04"],
        silent: &["IS05"],
    },
    Incident {
        case: "ipvs-08-unknown-config-keys",
        first: (
            "KP21",
            "ignores fields of its configuration file that it does not know: kubeProxyIPTablesConfiguration",
            "below iptables, ipvs or nftables",
        ),
        below: &[],
        silent: &[],
    },
    Incident {
        case: "ipvs-10-nf-conntrack-ipv4-kernel-4.19",
        first: (
            "KP21",
            "cannot run in mode ipvs, and runs in mode iptables",
            "v1.13 or newer",
        ),
        below: &["KP01"],
        silent: &["KP04"],
    },
    Incident {
        case: "ipvs-12-ipset-exit-status-1-el10",
        first: ("KM10", "lacks modules", "extra kernel modules"),
        below: &["DV01", "KP01", "KP02", "KP21"],
        silent: &["KM01"],
    },
    Incident {
        case: "ipvs-13-nodeport-missing-on-lb-address",
        first: ("DV04", "serves no NodePorts at it", "IPAddressPool"),
        below: &["KB01", "VS01"],
        silent: &[],
    },
    Incident {
        case: "ipvs-14-clustercidr-is-the-service-range",
        first: (
            "AP08",
            "clusterCIDR contains addresses of Services",
            "(172.30.11.0/24)",
        ),
        below: &[],
        silent: &[],
    },
    Incident {
        case: "more-01-lxc-conntrack-readonly",
        first: (
            "KP21",
            "kube-proxy exits: could not set conntrack parameters",
            "Set conntrack.maxPerCore to 0",
        ),
        below: &["IR03", "IR04", "KP02"],
        silent: &[],
    },
    Incident {
        case: "more-08-tcp-entry-to-a-reused-pod-address",
        first: (
            "CT08",
            "waiting TCP connections lead to shop/payments",
            "nf_conntrack_tcp_timeout_syn_sent",
        ),
        below: &[],
        silent: &["CT02"],
    },
    Incident {
        case: "more-12-no-xt-recent-on-wsl2",
        first: ("KP21", "Couldn't load match `recent'", "xt_recent"),
        below: &["IR04", "KP07"],
        silent: &[],
    },
    Incident {
        case: "rules-01-unreadable-dnat",
        first: (
            "IB03",
            "too old to read the rules of kube-proxy's image",
            "Upgrade iptables",
        ),
        below: &[],
        silent: &["IR04"],
    },
    Incident {
        case: "rules-02-wireguard-mark",
        first: (
            "IR10",
            "the bit by which KUBE-FIREWALL drops packets",
            "without 0xc000",
        ),
        below: &[],
        silent: &[],
    },
    Incident {
        case: "rules-06-ip6-restore-fails",
        first: ("KP21", "unknown option \"--xor-mark\"", "xt_mark"),
        below: &["KP01"],
        silent: &[],
    },
    Incident {
        case: "rules-15-service-cidr-overlap",
        first: ("AP08", "in a range of pods, nodes or links", "link"),
        below: &[],
        silent: &[],
    },
    Incident {
        case: "rules-16-flannel-postrtg-left",
        first: (
            "CN12",
            "1 rule into chains that accept and masquerade packets; the network plugin of the node is Calico",
            "/etc/cni/net.d",
        ),
        below: &[],
        silent: &[],
    },
    Incident {
        case: "seen-05-portmap-duplicate",
        first: (
            "CN06",
            "leads the hostPort to 10.244.1.50, which no pod on this node has",
            "iptables -t nat -D CNI-HOSTPORT-DNAT -p tcp",
        ),
        below: &[],
        silent: &[],
    },
    Incident {
        case: "seen-07-conntrack-close-wait",
        first: (
            "CT01",
            "the conntrack table is full",
            "conntrack.tcpCloseWaitTimeout",
        ),
        below: &["CT05", "SY18"],
        silent: &[],
    },
    Incident {
        case: "seen-09-hostport-udp-stale",
        first: (
            "CT02",
            "translated to 10.244.1.60, which no pod on this node has",
            "--reply-src 10.244.1.60",
        ),
        below: &[],
        silent: &["CN06"],
    },
    Incident {
        case: "seen-11-other-conflist",
        first: (
            "SY16",
            "the podCIDR 10.244.0.0/24 of node cp1 and not in that of this node",
            "Keep the route",
        ),
        below: &[],
        silent: &[],
    },
    Incident {
        case: "seen-17-no-endpointslices",
        first: (
            "AP01",
            "pods match the Service's selector, but it has no EndpointSlice",
            "get lease kube-controller-manager",
        ),
        below: &[],
        silent: &[],
    },
    Incident {
        case: "seen-21-pool-outside-cluster-cidr",
        first: (
            "KP10",
            "not in clusterCIDR",
            "Set clusterCIDR to the prefixes that the pods really have",
        ),
        below: &[],
        silent: &[],
    },
];

/// A question about a Service of an incident, and what the answer says.
struct Asked {
    case: &'static str,
    service: &'static str,
    fate: &'static str,
    /// Words of the first sentence, and of its fix.
    says: &'static [&'static str],
    fix: &'static str,
    /// Whether `kpx reconcile` helps until the fix is done.
    meanwhile: bool,
}

const ASKED: &[Asked] = &[
    Asked {
        case: "more-01-lxc-conntrack-readonly",
        service: "shop/web",
        fate: "lost",
        says: &[
            "kube-proxy exits: could not set conntrack parameters",
            "; therefore nat chain",
        ],
        fix: "Set conntrack.maxPerCore to 0",
        meanwhile: true,
    },
    Asked {
        case: "ipvs-06-parseip-old-kernel",
        service: "default/nginx",
        fate: "lost",
        says: &["parseIP Error", "; therefore virtual server"],
        fix: "Upgrade kube-proxy to v1.18.3",
        meanwhile: false,
    },
    Asked {
        case: "rules-06-ip6-restore-fails",
        service: "edge/web6",
        fate: "lost",
        says: &["unknown option \"--xor-mark\"", "; therefore nat chain"],
        fix: "xt_mark",
        meanwhile: true,
    },
    Asked {
        case: "more-12-no-xt-recent-on-wsl2",
        service: "default/echo",
        fate: "lost",
        says: &["Couldn't load match `recent'", "; therefore nat chain"],
        fix: "xt_recent",
        meanwhile: false,
    },
    Asked {
        case: "ipvs-12-ipset-exit-status-1-el10",
        service: "default/kubernetes",
        fate: "unknown",
        says: &[
            "kube-proxy exits: can't use the IPVS proxier",
            "(the kernel lacks modules",
            "unknown: the virtual servers",
        ],
        fix: "extra kernel modules",
        meanwhile: false,
    },
    Asked {
        case: "rules-03-firewalld-forward-reject",
        service: "kube-system/kube-dns",
        fate: "partly",
        says: &["owner of the rule: firewalld"],
        fix: "--zone=trusted --add-source=10.244.0.0/16",
        meanwhile: false,
    },
    Asked {
        case: "more-10-nlb-hairpin",
        service: "default/login",
        fate: "unknown",
        says: &[
            "kpx cannot see its load balancer k8s-login-",
            "NodePort 31443",
            "choose",
        ],
        fix: "preserve_client_ip.enabled=false",
        meanwhile: false,
    },
];

/// Cases of a patched or an old release, whose rules are right: checks that find nothing there.
const RIGHT: &[(&str, &[&str])] = &[
    ("ipvs-16-backported-return-rule", &["DV08"]),
    ("more-07-endpoints-without-node-name", &["IR06"]),
];

async fn report(case: &str) -> Value {
    let dir = format!("testdata/cases/{case}");
    let ran = kpx(&["--from", &dir, "doctor", "-o", "json"]).await;
    serde_json::from_str(&ran.out).unwrap()
}

fn findings(of: &Value) -> impl Iterator<Item = &Value> {
    of.as_array().into_iter().flatten()
}

fn is_silent(report: &Value, id: &str) -> bool {
    let mut all = findings(&report["findings"]);
    all.all(|parent| {
        parent["id"] != id && findings(&parent["consequences"]).all(|finding| finding["id"] != id)
    })
}

#[tokio::test]
async fn the_first_finding_names_the_cause() {
    for of in INCIDENTS {
        let report = report(of.case).await;
        let first = findings(&report["findings"]).next().unwrap();
        let (id, message, fix) = of.first;
        assert_eq!(first["id"], id, "{}", of.case);
        for (key, words) in [("message", message), ("fix", fix)] {
            let text = first[key].to_string().replace("\\\"", "\"");
            assert!(text.contains(words), "{}: {text}", of.case);
        }
        let mut below: Vec<_> = findings(&first["consequences"])
            .map(|finding| finding["id"].as_str().unwrap())
            .collect();
        below.dedup();
        assert_eq!(below, of.below, "{}", of.case);
        for id in of.silent {
            assert!(is_silent(&report, id), "{}: {id}", of.case);
        }
    }
}

#[tokio::test]
async fn what_a_release_writes_is_no_finding() {
    for (case, ids) in RIGHT {
        let report = report(case).await;
        for id in *ids {
            assert!(is_silent(&report, id), "{case}: {id}");
        }
    }
}

#[tokio::test]
async fn pods_that_a_slice_places_nowhere_are_named() {
    let dir = "testdata/cases/more-07-endpoints-without-node-name";
    let ran = kpx(&["--from", dir, "why", "web/front", "-o", "json"]).await;
    let report: Value = serde_json::from_str(&ran.out).unwrap();
    let cause = &report["causes"][0];
    assert_eq!(cause["unnamed"], json!(["web/front-1"]), "{ran}");
    assert_eq!(ran.code, 1);
    let fix = cause["fix"].to_string();
    assert!(fix.contains("delete endpointslices"), "{fix}");
}

pub(super) async fn answer(dir: &str, service: &str) -> Value {
    let ran = kpx(&["--from", dir, "why", service, "-o", "json"]).await;
    serde_json::from_str(&ran.out).unwrap_or_else(|e| panic!("{e}: {ran}"))
}

#[tokio::test]
async fn the_answer_names_the_cause_and_its_fix_first() {
    for of in ASKED {
        let answer = answer(&format!("testdata/cases/{}", of.case), of.service).await;
        assert_eq!(answer["fate"], of.fate, "{}", of.case);
        let sentence = answer["sentence"].as_str().unwrap();
        for words in of.says {
            assert!(sentence.contains(words), "{}: {sentence}", of.case);
        }
        let fix = answer["fix"].to_string();
        assert!(fix.contains(of.fix), "{}: {fix}", of.case);
        let meanwhile = answer["causes"][0]["meanwhile"]["command"].as_str();
        let expected = of.meanwhile.then_some("kpx reconcile --apply");
        let command = meanwhile.map(|meanwhile| meanwhile.split(" --from").next().unwrap());
        assert_eq!(
            command.is_some(),
            expected.is_some(),
            "{}: {command:?}",
            of.case
        );
        assert!(
            command.is_none_or(|command| command.contains("reconcile")),
            "{command:?}"
        );
    }
}

/// Logs of kube-proxy on the node of `more-01`, whose rules lack a Service, the check whose finding explains that, words of it, and
/// whether rules that kpx writes last.
const LOGS: &[(&str, &str, &str, bool)] = &[
    (
        "E0908 10:14:02.104290 1 run.go:72] \"command failed\" err=\"unknown flag: --proxy-mod\"\n",
        "KP21",
        "exits: unknown flag",
        true,
    ),
    (
        "I0908 10:14:02.104290 1 server.go:1] \"Version info\"\npanic: runtime error: invalid memory address\n\ngoroutine 1:\n",
        "KP21",
        "exits: runtime error",
        true,
    ),
    (
        "I0908 10:14:02.104290 1 server_linux.go:131] \"Watching for node, awaiting podCIDR allocation\" node=\"w1\"\n",
        "KP21",
        "waits for a range of pods",
        true,
    ),
    (
        "E0908 10:14:02.104290 1 proxier.go:747] \"Failed to ensure chain jumps\" err=\"error checking rule: exit status 3: Error: cmp sreg \
         undef\\niptables v1.8.9 (nf_tables): Parsing nftables rule failed\\n\" ipFamily=\"IPv4\"\nE0908 10:15:02.104290 1 proxier.go:747] \
         \"Failed to ensure chain jumps\" err=\"error checking rule: exit status 3: Error: cmp sreg undef\\niptables v1.8.9 (nf_tables): Parsing \
         nftables rule failed\\n\" ipFamily=\"IPv4\"\n",
        "KP21",
        "cannot read a rule that another program wrote into its tables with nftables (cmp sreg undef)",
        true,
    ),
    (
        "exec /usr/local/bin/kube-proxy: exec format error\n",
        "KP21",
        "exec format error",
        true,
    ),
    (
        "{\"ts\":1788862442104.0,\"caller\":\"app/run.go:72\",\"msg\":\"command failed\",\"err\":\"listen tcp: bind: address already in use\"}\n",
        "KP21",
        "address already in use",
        true,
    ),
    // The pod's state alone says that it does not run.
    (
        "I0908 10:14:02.104290 1 server.go:1] \"Version info\"\n",
        "KP02",
        "CrashLoopBackOff",
        true,
    ),
];

/// A copy of a case, or of a recorded node.
pub(super) fn copy(name: &str) -> tempfile::TempDir {
    let dir = tempfile::TempDir::new().unwrap();
    let folders = ["cases", "nodes"].map(|folder| root().join("testdata").join(folder).join(name));
    let from = folders.iter().find(|folder| folder.exists()).unwrap();
    for folder in ["cluster", "kube-proxy", "node"] {
        std::fs::create_dir(dir.path().join(folder)).unwrap();
        for file in std::fs::read_dir(from.join(folder)).unwrap() {
            let file = file.unwrap();
            std::fs::copy(file.path(), dir.path().join(folder).join(file.file_name())).unwrap();
        }
    }
    dir
}

pub(super) fn write(dir: &tempfile::TempDir, file: &str, change: impl FnOnce(&str) -> String) {
    let path = dir.path().join(file);
    let text = std::fs::read_to_string(&path).unwrap();
    let new = change(&text);
    assert_ne!(text, new, "{file}");
    std::fs::write(path, new).unwrap();
}

#[tokio::test]
async fn missing_rules_follow_from_what_keeps_kube_proxy_from_its_work() {
    for (log, check, words, lasts) in LOGS {
        let dir = copy("more-01-lxc-conntrack-readonly");
        write(&dir, "kube-proxy/kube-proxy.log", |_| (*log).to_owned());
        let answer = answer(dir.path().to_str().unwrap(), "shop/web").await;
        let cause = &answer["causes"][0];
        assert_eq!(cause["cause"], "rules", "{log}");
        assert_eq!(cause["proxy"]["check"], *check, "{log}");
        let sentence = answer["sentence"].as_str().unwrap();
        assert!(sentence.contains(words), "{sentence}");
        assert_eq!(!cause["meanwhile"].is_null(), *lasts, "{log}");
    }
}

/// Lets kube-proxy's container run.
fn running(text: &str) -> String {
    let mut list: Value = serde_json::from_str(text).unwrap();
    for pod in list["items"].as_array_mut().unwrap() {
        let statuses = pod["status"]["containerStatuses"].as_array_mut();
        for of in statuses.into_iter().flatten() {
            of["state"] = serde_json::json!({"running": {}});
            of["restartCount"] = 0.into();
        }
    }
    list.to_string()
}

#[tokio::test]
async fn a_trouble_that_is_over_or_of_the_other_family_explains_nothing() {
    let fails = "E0908 10:14:02.104290 1 proxier.go:1] \"Failed to execute iptables-restore\" err=\"exit status 2: bad\" \
                 ipFamily=\"IPv4\"\n"
        .repeat(2);
    let over = format!(
        "{fails}I0908 10:20:02.104290 1 proxier.go:1] \"SyncProxyRules complete\" ipFamily=\"IPv4\"\n"
    );
    let watch = "E0908 10:14:02.104290 1 reflector.go:1] \"Failed to watch\" err=\"failed to list *v1.Service: Unauthorized\"\n"
        .repeat(2);
    for (log, check, lasts) in [
        (fails.clone(), Some("KP21"), true),
        (fails.replace("IPv4", "IPv6"), None, false),
        (over, None, false),
        // It writes what it knows again and again.
        (watch, Some("KP21"), false),
    ] {
        let dir = copy("more-01-lxc-conntrack-readonly");
        write(&dir, "kube-proxy/kube-proxy.log", |_| log.clone());
        write(&dir, "cluster/pods.json", running);
        let answer = answer(dir.path().to_str().unwrap(), "shop/web").await;
        let cause = &answer["causes"][0];
        assert_eq!(cause["proxy"]["check"].as_str(), check, "{log}");
        assert_eq!(!cause["meanwhile"].is_null(), lasts, "{log}");
    }
}

#[tokio::test]
async fn a_kube_proxy_that_exits_breaks_no_service_whose_rules_are_right() {
    let answer = answer(
        "testdata/cases/ipvs-10-nf-conntrack-ipv4-kernel-4.19",
        "default/nginx",
    );
    let answer = answer.await;
    assert_eq!(answer["fate"], "works");
    let of = |at: usize, key: &str| answer["findings"][at][key].as_str();
    assert_eq!((of(0, "id"), of(0, "because")), (Some("KP21"), None));
    assert_eq!(
        (of(1, "id"), of(1, "because")),
        (Some("KP01"), Some("KP21"))
    );
}

async fn text(case: &str, args: &[&str]) -> String {
    let dir = format!("testdata/cases/{case}");
    let ran = kpx(&[&["--from", dir.as_str()], args].concat()).await;
    ran.out.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// A case, a command, words of its output, and words that must not be in it.
type Said = (
    &'static str,
    &'static [&'static str],
    &'static [&'static str],
    &'static [&'static str],
);

/// The outputs of commands about incidents.
const SAID: &[Said] = &[
    (
        "seen-07-conntrack-close-wait",
        &["doctor"],
        &["3 Services: 0 work; 3 fail from pods"],
        &["restricted"],
    ),
    (
        "seen-07-conntrack-close-wait",
        &["why", "default/web"],
        &["79 % of the 401 entries", "CLOSE_WAIT", "kept for 3600 s"],
        &[],
    ),
    (
        "seen-10-ipvs-affinity-template",
        &["why", "default/sticky"],
        &[
            "PARTLY:",
            "binds client 10.244.1.30 of 10.96.20.40:80 to 10.244.1.70:8080",
            "expire_quiescent_template=1 && ipvsadm -d -t 10.96.20.40:80 -r 10.244.1.70:8080",
        ],
        &["WORKS"],
    ),
    (
        "seen-10-ipvs-affinity-template",
        &["doctor"],
        &["1 fails from pods", "session affinity binds client"],
        &["15 minutes"],
    ),
    (
        "seen-11-other-conflist",
        &["why", "default/web"],
        &["another network configuration"],
        &["ip route del"],
    ),
    (
        "seen-17-no-endpointslices",
        &["why", "default/web"],
        &[
            "no EndpointSlice exists for default/web, although ready pods match its selector (default/web-a)",
            "no Service with a selector has one",
        ],
        &["no pod"],
    ),
    (
        "seen-23-no-xt-nfacct",
        &["preflight", "--to", "iptables"],
        &[
            "ERROR KM10",
            "nfnetlink_acct without xt_nfacct",
            "xt_nfacct MISSING",
        ],
        &["works without it"],
    ),
    (
        "seen-27-no-ip-tables-module",
        &["preflight", "--to", "nftables"],
        &["inconclusive for mode nftables"],
        &["ERROR KP02", "blocker"],
    ),
    (
        "seen-27-no-ip-tables-module",
        &["preflight", "--to", "iptables"],
        &["ERROR KP02", "ERROR KM11"],
        &[],
    ),
    (
        "seen-30-ipv6-localhost-nodeport",
        &["trace", "[::1]:30080", "--source", "host"],
        &["REFUSED", "kube-proxy serves no NodePort on ::1, by design"],
        &["nothing listens"],
    ),
];

#[tokio::test]
async fn commands_say_what_is_wrong_and_nothing_that_was_not_seen() {
    for (case, args, says, not) in SAID {
        let out = text(case, args).await;
        for words in *says {
            assert!(out.contains(words), "{case} {args:?}: no {words:?}: {out}");
        }
        for words in *not {
            assert!(!out.contains(words), "{case} {args:?}: {words:?}: {out}");
        }
    }
}

fn load(case: &str) -> Evidence {
    evidence::load(&root().join("testdata/cases").join(case), ITEMS).unwrap()
}

/// Returns the findings of a check as texts, sorted.
fn texts(evidence: &Evidence, id: &str) -> Vec<String> {
    let text = |of: Finding| format!("{of:?}");
    let mut all: Vec<String> = found(run(evidence, id, None))
        .into_iter()
        .map(text)
        .collect();
    all.sort();
    all
}

/// Whatever leads to the other Node, and whatever more special route takes one pod's packets, no route is removed.
#[test]
fn routes_to_the_pods_of_another_node_are_kept() {
    let special = json!({
        "dst": "10.244.0.16/28", "gateway": "192.168.50.99", "dev": "eth0", "flags": [],
    });
    for change in ["host gateway", "special route"] {
        let mut evidence = load("seen-11-other-conflist");
        match change {
            "host gateway" => replace(
                &mut evidence,
                Item::Routes,
                r#""gateway": "10.244.0.0", "dev": "flannel.1""#,
                r#""gateway": "192.168.50.10", "dev": "eth0""#,
            ),
            _ => edit(&mut evidence, Item::Routes, |all| {
                all.as_array_mut().unwrap().push(special.clone());
            }),
        }
        let all = texts(&evidence, "SY16");
        assert!(
            all.iter().any(|text| text.contains("of node cp1")),
            "{change}: {all:?}"
        );
        assert!(
            !all.iter().any(|text| text.contains("route del")),
            "{change}: {all:?}"
        );
    }
}

#[test]
fn a_selector_is_called_unmatched_only_after_a_comparison() {
    let mut evidence = load("seen-17-no-endpointslices");
    edit(&mut evidence, Item::Services, |all| {
        for service in all["items"].as_array_mut().unwrap() {
            if service["metadata"]["name"] == "web" {
                service["spec"]["selector"] = json!({"app": "web", "tier": "front"});
            }
        }
    });
    let all = texts(&evidence, "AP01").join("\n");
    assert!(
        all.contains("default/web: no EndpointSlice exists, and no pod of this node matches"),
        "{all}"
    );
    assert!(all.contains("coredns-a"), "{all}");
    let gap = Gap::Absent(Item::Pods, "not collected".to_owned());
    evidence.insert(Item::Pods, Err(gap));
    let all = texts(&evidence, "AP01").join("\n");
    assert!(
        all.contains("default/web: no EndpointSlice exists, and the pods were not read"),
        "{all}"
    );
    assert!(!all.contains("no pod"), "{all}");
}

#[test]
fn without_the_counters_kube_proxy_does_without_their_match() {
    let mut evidence = load("seen-23-no-xt-nfacct");
    let of = |evidence: &Evidence| run(evidence, "KM10", Some(Mode::Iptables));
    assert!(matches!(of(&evidence), Outcome::Fail(_)));
    for item in [Item::Modules, Item::ModulesDep] {
        replace(&mut evidence, item, "nfnetlink_acct", "nfnetlink_other");
    }
    assert!(
        matches!(of(&evidence), Outcome::Pass),
        "{:?}",
        of(&evidence)
    );
}
