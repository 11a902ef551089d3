//! The verdict is one for all commands, and evidence that is missing never makes it better.

use kpx_judge::check::Outcome;
use kpx_node::evidence::{Gap, Item};
use serde_json::{Value, json};

use super::case::{append, load, run};
use super::ends::{HEALTHY, ROUTES, findings, json, says};
use super::incidents::{answer, copy, write};
use crate::support::{every, kpx, kpx_once_on, root};

const RULES: &str = "node/iptables-save.txt";
const NEIGHBOURS: &str = "node/ip-neigh.json";

/// The items of links and pods, which the same release began to read.
const OF_LINKS: [&str; 4] = [
    NEIGHBOURS,
    "node/ip-xfrm-policy.txt",
    "node/tc.json",
    "node/pod-networks.txt",
];

/// The doctor's report, and its exit status.
async fn doctor(dir: &str) -> (Value, u8) {
    let ran = kpx(&["--from", dir, "doctor", "-o", "json"]).await;
    let report = serde_json::from_str(&ran.out).unwrap_or_else(|e| panic!("{e}: {ran}"));
    (report, ran.code)
}

/// The same without the checks that are unknown.
async fn decided(dir: &str) -> (Value, u8) {
    let (report, _) = doctor(dir).await;
    let checks = report["checks"].as_array().unwrap().iter();
    let unknown = checks.filter(|check| check["status"] == "unknown");
    let ids: Vec<&str> = unknown
        .map(|unknown| unknown["id"].as_str().unwrap())
        .collect();
    let ids = ids.join(",");
    let ran = kpx(&["--from", dir, "doctor", "--skip", &ids, "-o", "json"]).await;
    let report: Value = serde_json::from_str(&ran.out).unwrap();
    assert_eq!(report["summary"]["unknown"], 0, "{ran}");
    (report, ran.code)
}

fn path(dir: &tempfile::TempDir) -> &str {
    dir.path().to_str().unwrap()
}

/// Returns whether the list `list` of the doctor's verdict has the Service `name`.
fn has(report: &Value, list: &str, name: &str) -> bool {
    let mut all = report["services"][list].as_array().unwrap().iter();
    all.any(|service| service == name || service["service"] == name)
}

#[tokio::test]
async fn what_kube_proxy_would_not_program_is_no_design_of_a_local_policy() {
    let dir = copy(HEALTHY);
    let (report, _) = doctor(path(&dir)).await;
    assert!(!has(&report, "failing", "demo/edge-balanced"), "{report:#}");
    write(&dir, RULES, |text| {
        let own = "[0:0] -A KUBE-SVL-RERI4PTLTCXCUUOF ";
        let other = "-m statistic --mode random --probability 0.5 -j KUBE-SEP-HXGZQOEJWJKCTG4K";
        text.replacen(own, &format!("{own}{other}\n{own}"), 1)
    });
    let (report, code) = doctor(path(&dir)).await;
    assert!(has(&report, "failing", "demo/edge-balanced"), "{report:#}");
    assert!(!has(&report, "restricted", "demo/edge-balanced"));
    assert_eq!(code, 1);
    let answer = answer(path(&dir), "demo/edge-balanced").await;
    assert_eq!(answer["causes"][0]["byDesign"], false, "{answer:#}");
    // In mode ipvs, kube-proxy sends all clients to other nodes if no endpoint is here.
    let full = root().join("testdata/nodes/full-ipvs");
    let (report, _) = doctor(full.to_str().unwrap()).await;
    assert!(
        has(&report, "restricted", "shop/agent-remote"),
        "{report:#}"
    );
}

#[tokio::test]
async fn a_service_in_doubt_is_inconclusive() {
    let dir = copy(HEALTHY);
    let (_, code) = decided(path(&dir)).await;
    assert_eq!(code, 0);
    // Nothing shows whose address that is.
    let entry = json!({"dst": "10.210.0.17", "dev": "eth0", "lladdr": "02:00:00:00:00:77", "state": ["PERMANENT"]});
    write(
        &dir,
        NEIGHBOURS,
        json(|all| {
            let all = all.as_array_mut().unwrap();
            all.retain(|neighbour| neighbour["dst"] != entry["dst"]);
            all.push(entry);
        }),
    );
    let (report, code) = decided(path(&dir)).await;
    let unknown = report["services"]["unknown"].as_array().unwrap();
    assert!(!unknown.is_empty(), "{report:#}");
    assert_eq!(code, 3);
    assert!(
        report["next"].as_str().unwrap().contains("why demo/"),
        "{report:#}"
    );
}

#[tokio::test]
#[ignore = "takes long: make test-loops"]
async fn an_item_of_the_links_is_missing_alike_whether_it_is_removed_or_unreadable() {
    let items = OF_LINKS.map(|item| (item, item.rsplit('/').next().unwrap()));
    for (item, name) in items {
        for text in [None, Some("bash: tool: command not found\n")] {
            let dir = copy(HEALTHY);
            match text {
                None => std::fs::remove_file(dir.path().join(item)).unwrap(),
                Some(text) => std::fs::write(dir.path().join(item), text).unwrap(),
            }
            says(&dir, "demo/web:http", "unknown", &[name]).await;
            let (report, code) = doctor(path(&dir)).await;
            assert!(has(&report, "unknown", "demo/web"), "{item}: {report:#}");
            assert_eq!(code, 3, "{item}");
        }
    }
    // A recording that is older than all of them says what it does not show.
    let dir = copy(HEALTHY);
    for item in OF_LINKS {
        std::fs::remove_file(dir.path().join(item)).unwrap();
    }
    says(&dir, "demo/web:http", "works", &[]).await;
    let ran = kpx(&["--from", path(&dir), "doctor", "-v"]).await;
    let said = ran.out.replace("\n  ", " ");
    assert!(
        said.contains("not checked: neighbours, filters of traffic control, IPsec policies"),
        "{ran}"
    );
    let ran = kpx(&["--from", path(&copy(HEALTHY)), "doctor"]).await;
    assert!(!ran.out.contains("not checked: neighbours"), "{ran}");
}

#[tokio::test]
async fn one_table_of_iptables_is_not_all_rules() {
    let dir = copy(HEALTHY);
    write(&dir, RULES, |text| {
        let nat = &text[text.find("*nat").unwrap()..];
        nat[..=nat.find("COMMIT\n").unwrap() + 6].to_owned()
    });
    says(
        &dir,
        "demo/web:http",
        "unknown",
        &["it has table nat alone"],
    )
    .await;
    let found = findings(&dir).await;
    assert!(found.iter().all(|finding| finding.0 != "IB07"), "{found:?}");
    // All three are listed; one that was flushed is.
    let dir = copy(HEALTHY);
    write(&dir, RULES, |text| {
        text.replacen(":KUBE-PROXY-CANARY - [0:0]\n", "", 1)
    });
    let found = findings(&dir).await;
    assert!(found.iter().any(|finding| finding.0 == "IB07"), "{found:?}");
}

#[test]
fn a_list_of_ip_sets_that_was_cut_short_lacks_no_sets() {
    let whole = load("full-ipvs");
    let sets = whole.text(Item::Ipset).unwrap();
    for id in ["IS03", "IS05"] {
        assert_eq!(run(&whole, id, None), Outcome::Pass, "{id}");
        let half = &sets[..sets.len() / 2];
        let begin = &half[..=half.rfind('\n').unwrap()];
        for text in [half, begin, ""] {
            let mut cut = whole.clone();
            cut.insert(Item::Ipset, Ok(text.to_owned()));
            let outcome = run(&cut, id, None);
            assert!(matches!(outcome, Outcome::Unknown(_)), "{id}: {outcome:?}");
        }
    }
}

#[test]
fn timeouts_of_ipvs_decide_no_path() {
    let mut evidence = load("full-ipvs");
    evidence.insert(Item::Ipvs, Err(Gap::NotCollected(Item::Ipvs)));
    append(
        &mut evidence,
        Item::Sysctl,
        "net.ipv4.tcp_keepalive_time = 600",
    );
    assert_eq!(run(&evidence, "VS01", None), Outcome::Pass);
    for item in [Item::IpvsTimeout, Item::IpvsStats] {
        evidence.insert(item, Ok("bash: ipvsadm: command not found\n".to_owned()));
    }
    assert_eq!(run(&evidence, "VS01", None), Outcome::Pass);
    for (id, item) in [("SY11", Item::IpvsTimeout), ("VS10", Item::IpvsStats)] {
        match run(&evidence, id, None) {
            Outcome::Unknown(why) => assert!(why.to_string().contains(item.file()), "{id}: {why}"),
            other => panic!("{id}: {other:?}"),
        }
    }
}

#[tokio::test]
async fn an_error_of_the_doctor_about_the_address_is_the_cause_of_what_nothing_repairs() {
    for (case, service, check, words) in [
        (
            "ipvs-05-externalip-local-rejected",
            "web/front",
            "KB01",
            "known bug of kube-proxy",
        ),
        (
            "ipvs-04-k3s-node-address-in-ipvs-ips",
            "kube-system/traefik",
            "DV04",
            "has this node's own address",
        ),
    ] {
        let dir = copy(case);
        says(&dir, service, "partly", &[words]).await;
        let answer = answer(path(&dir), service).await;
        assert_eq!(answer["causes"][0]["check"], check, "{answer:#}");
        assert_eq!(answer["causes"][0]["byDesign"], false, "{answer:#}");
    }
    // The Service has the port at which its packets are rejected.
    let dir = copy("ipvs-05-externalip-local-rejected");
    let args = ["trace", "198.51.100.40:80", "--source", "outside"];
    let ran = kpx(&[&["--from", path(&dir)], &args[..]].concat()).await;
    assert!(!ran.out.contains("has port 80"), "{ran}");
}

#[tokio::test]
async fn works_counts_the_endpoints_that_packets_reach() {
    let dir = copy(HEALTHY);
    says(&dir, "demo/web:http", "works", &["reach 4 endpoints"]).await;
    write(&dir, RULES, |text| {
        let all = text.lines().filter(|line| {
            !line.contains("-A KUBE-SVC-XRY76EGRC3BSCIIJ -m comment --comment \"demo/web:http -> 10.244.0.3:8080\"")
        });
        all.collect::<Vec<_>>().join("\n") + "\n"
    });
    says(&dir, "demo/web:http", "works", &["reach 3 of 4 endpoints"]).await;
}

#[tokio::test]
async fn the_words_of_a_shell_are_quoted_where_json_is_missing() {
    let dir = copy(HEALTHY);
    write(&dir, ROUTES, |_| "bash: ip: command not found\n".to_owned());
    let words = [
        "ip-route.json: it is not JSON: it begins with",
        "bash: ip: command not found",
    ];
    says(&dir, "demo/web:http", "unknown", &words).await;
    // A mark that editors on Windows put first is no part of the text.
    let dir = copy(HEALTHY);
    write(&dir, ROUTES, |text| format!("\u{feff}{text}"));
    says(&dir, "demo/web:http", "works", &[]).await;
}

#[tokio::test]
async fn in_mode_ipvs_its_own_table_decides_about_udp() {
    let name = "edge/syslog:syslog";
    let dir = copy("full-ipvs");
    std::fs::remove_file(dir.path().join("node/conntrack.txt")).unwrap();
    says(&dir, name, "works", &[]).await;
    // Entries whose real server has gone are kept.
    write(&dir, "node/sysctl.txt", |text| {
        text.replace("expire_nodest_conn = 1", "expire_nodest_conn = 0")
    });
    says(
        &dir,
        name,
        "unknown",
        &["the connections of IPVS are unknown"],
    )
    .await;
    let table = |real: &str| {
        let text = format!(
            "Pro FromIP   FPrt ToIP     TPrt DestIP   DPrt State       Expires PEName PEData\n\
             UDP 0AF40109 9C40 0A640208 0202 {real} 0202 UDP             287\n"
        );
        std::fs::write(dir.path().join("node/ip_vs_conn.txt"), text).unwrap();
    };
    table("0AF40163");
    says(&dir, name, "partly", &[]).await;
    // Mode iptables has no other table.
    let dir = copy("full-iptables");
    std::fs::remove_file(dir.path().join("node/conntrack.txt")).unwrap();
    says(
        &dir,
        name,
        "unknown",
        &["the tracked connections are unknown"],
    )
    .await;
}

#[tokio::test]
#[ignore = "takes long: make test-loops"]
async fn sets_that_were_not_read_are_one_short_reason() {
    for name in ["full-ipvs", "dual-ipvs", "full-ipvs-v1.30"] {
        let dir = copy(name);
        std::fs::remove_file(dir.path().join("node/ipset-save.txt")).unwrap();
        let (report, _) = doctor(path(&dir)).await;
        let reason = report["services"]["reason"].as_str().unwrap();
        let words = "the IP sets that the rules match were not read (`ipset save` lists them): node/ipset-save.txt";
        assert!(
            reason.starts_with(words) && reason.len() < 150,
            "{name}: {reason}"
        );
    }
    let dir = copy("full-ipvs");
    std::fs::remove_file(dir.path().join("node/ipset-save.txt")).unwrap();
    let answer = answer(path(&dir), "shop/cart:http").await;
    let sentence = answer["sentence"].as_str().unwrap();
    assert!(
        !sentence.contains("loadBalancerSourceRanges") && !sentence.contains('%'),
        "{sentence}"
    );
}

#[tokio::test]
async fn what_differs_and_stops_no_connection_is_no_error() {
    let dir = copy("full-iptables");
    // One of two endpoints gets no connections; the other one takes all.
    write(&dir, RULES, |text| {
        let own = text
            .lines()
            .find(|line| line.contains("edge/web:https -> ") && line.contains("--probability"));
        text.replace(&format!("{}\n", own.unwrap()), "")
    });
    let (report, _) = doctor(path(&dir)).await;
    assert_eq!(report["summary"]["errors"], 0, "{report:#}");
    let answer = answer(path(&dir), "edge/web:https").await;
    assert_eq!(answer["fate"], "works", "{answer:#}");
    let all = answer["findings"].as_array().unwrap();
    assert!(
        all.iter().all(|finding| finding["severity"] != "error"),
        "{answer:#}"
    );
}

/// Errors about Services of which all connections work, and why they stay errors.
const BESIDE_THE_CONNECTIONS: &[(&str, &str, &str)] = &[
    (
        "NP06",
        "",
        "the load balancer's own requests to the port for health checks are no connections to the Service",
    ),
    (
        "IR03",
        "rules exist for a Service port that no longer exists",
        "no connection is to a port that the Service does not have",
    ),
];

#[tokio::test]
#[ignore = "takes long: make test-loops"]
async fn no_error_is_about_a_service_that_works() {
    for name in every() {
        let ran = kpx_once_on(&name, &["doctor", "-o", "json"]).await;
        let report: Value = serde_json::from_str(&ran.out).unwrap();
        let lists = ["failing", "withoutEndpoints", "restricted", "unknown"];
        let stands = |service: &str| lists.iter().any(|list| has(&report, list, service));
        if report["services"].is_null() {
            continue;
        }
        let findings = report["findings"].as_array().unwrap();
        // Rules are left of a Service that another proxy serves: its connections are not kube-proxy's.
        let is_of_another_proxy = |service: &Value| {
            let mut ignored = findings.iter().filter(|finding| finding["id"] == "AP07");
            ignored.any(|finding| finding["services"].as_array().unwrap().contains(service))
        };
        for finding in findings {
            let (id, message) = (&finding["id"], finding["message"].as_str().unwrap());
            let mut beside = BESIDE_THE_CONNECTIONS.iter();
            let is_beside = beside.any(|(of, words, _)| id == of && message.contains(words));
            if finding["severity"] != "error" || is_beside {
                continue;
            }
            for of in finding["services"].as_array().into_iter().flatten() {
                let [namespace, name] = ["namespace", "name"].map(|key| of[key].as_str().unwrap());
                let service = format!("{namespace}/{name}");
                assert!(
                    stands(&service) || is_of_another_proxy(of),
                    "{service}: {finding:#}"
                );
            }
        }
    }
}

#[tokio::test]
async fn a_load_balancer_that_no_node_shows_keeps_a_service_unknown() {
    let (report, _) = doctor("testdata/nodes/full-iptables").await;
    assert!(has(&report, "unknown", "edge/lb-proxy"), "{report:#}");
    // Clients that the Service's settings keep out come before what is not known.
    let (report, _) = doctor("testdata/cases/rules-09-source-ranges-pods").await;
    let restricted = report["services"]["restricted"].as_array().unwrap();
    let open = report["services"]["restrictedAndUnknown"].as_array();
    for name in open.into_iter().flatten() {
        assert!(restricted.contains(name), "{report:#}");
    }
    assert!(!restricted.is_empty(), "{report:#}");
}
