//! `kpx show` on recorded nodes.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::support::{Change, Ran, broken, kpx, kpx_on, root, without};

const VIEWS: [&str; 11] = [
    "services",
    "chains",
    "ipvs",
    "sets",
    "addresses",
    "nodeports",
    "conntrack",
    "affinity",
    "modules",
    "sysctls",
    "config",
];

/// Snapshots `kpx ARGS` on a recording, under `name`.
macro_rules! shown {
    ($($name:literal: $recording:literal $args:expr;)+) => {
        $(insta::assert_snapshot!($name, kpx_on($recording, &$args).await);)+
    };
}

#[tokio::test]
async fn services_in_each_mode() {
    shown! {
        "services-seed-iptables": "seed-iptables" ["show", "services"];
        "services-seed-ipvs": "seed-ipvs" ["show", "services"];
        "services-seed-nftables": "seed-nftables" ["show", "services"];
        "services-full-iptables": "full-iptables" ["show", "services"];
        "services-full-ipvs": "full-ipvs" ["show", "services"];
        "services-full-nftables": "full-nftables" ["show", "services"];
        "services-leftover": "leftover-iptables-to-ipvs" ["show", "services"];
        "services-v1.30": "full-ipvs-v1.30" ["show", "services"];
        "services-unread": "fallback-no-ipvs-modules" ["show", "services", "default/nginx-svc"];
        "services-wide": "full-nftables" ["show", "services", "edge/web-remote-only", "-o", "wide"];
    }
}

#[tokio::test]
async fn chains_of_each_mode() {
    shown! {
        "chains-iptables": "seed-iptables" ["show", "chains"];
        "chains-nftables": "seed-nftables" ["show", "chains"];
        "tree": "seed-iptables" ["show", "chains", "default/nginx-svc"];
        "tree-iptables": "full-iptables" ["show", "chains", "edge/web-restricted"];
        "tree-nftables": "seed-nftables" ["show", "chains", "default/nginx-svc-nodeport"];
        "tree-nftables-local": "full-nftables" ["show", "chains", "edge/web-local"];
        "tree-nftables-affinity": "dual-nftables" ["--family", "6", "show", "chains", "shop/sticky"];
        "tree-nftables-refused": "full-nftables" ["show", "chains", "shop/empty-np"];
        "tree-ipvs": "full-ipvs" ["show", "chains", "shop/cart"];
        "tree-ascii": "dual-iptables" ["--family", "4", "--ascii", "show", "chains", "shop/sticky"];
    }
}

#[tokio::test]
async fn other_views() {
    shown! {
        "ipvs": "seed-ipvs" ["show", "ipvs"];
        "ipvs-full": "full-ipvs" ["--family", "4", "show", "ipvs"];
        "ipvs-none": "full-iptables" ["show", "ipvs"];
        "sets": "seed-ipvs" ["show", "sets"];
        "sets-named": "full-ipvs" ["show", "sets", "edge/web-restricted"];
        "addresses": "dual-ipvs" ["show", "addresses"];
        "nodeports": "full-iptables" ["show", "nodeports"];
        "nodeports-ipvs": "full-ipvs" ["show", "nodeports"];
        "nodeports-nftables": "full-nftables" ["show", "nodeports"];
        "conntrack-none": "seed-iptables" ["show", "conntrack"];
        "modules-ipvs": "full-ipvs" ["show", "modules"];
        "modules-nftables": "full-nftables" ["show", "modules"];
        "modules-missing": "km01-ip-vs-missing" ["show", "modules"];
        "sysctls": "full-ipvs" ["show", "sysctls"];
        "sysctls-wide": "full-ipvs-lc-strictarp" ["show", "sysctls", "-o", "wide"];
        "sysctls-nftables": "full-nftables" ["show", "sysctls"];
        "config": "leftover-iptables-to-ipvs" ["show", "config"];
        "config-unknown": "fallback-no-ipvs-modules" ["show", "config"];
    }
}

#[tokio::test]
async fn json() {
    shown! {
        "services-json": "full-nftables" ["show", "services", "edge/web-remote-only", "-o", "json"];
        "chains-json": "seed-nftables" ["show", "chains", "default/nginx-svc", "-o", "json"];
        "ipvs-json": "seed-ipvs" ["show", "ipvs", "default/nginx-svc", "-o", "json"];
        "nodeports-json": "full-iptables" ["show", "nodeports", "edge/web-local", "-o", "json"];
    }
}

#[tokio::test]
async fn an_unknown_name_is_an_error() {
    shown! {
        "unknown-sysctl": "seed-iptables" ["show", "sysctls", "net.ipv4.ip_foward"];
        "unknown-service": "seed-iptables" ["show", "services", "nginx-svc"];
        "unknown-beside-gaps": "fallback-no-ipvs-modules" ["show", "ipvs", "default/ngnix-svc"];
    }
    let ran = kpx_on("seed-iptables", &["show", "sysctls", "net.none"]).await;
    assert_eq!(ran.code, 1);
    assert!(ran.err.contains("net.none not found\n"), "{ran}");
}

/// A copy of a recording that a test may change.
struct Copied(tempfile::TempDir);

impl Copied {
    fn of(name: &str) -> Self {
        fn copy(from: &Path, to: &Path) {
            fs::create_dir_all(to).unwrap();
            for entry in fs::read_dir(from).unwrap() {
                let (path, to) = entry.map(|e| (e.path(), to.join(e.file_name()))).unwrap();
                if path.is_dir() {
                    copy(&path, &to);
                } else {
                    fs::copy(&path, &to).unwrap();
                }
            }
        }
        let dir = tempfile::tempdir().unwrap();
        copy(&root().join("testdata/nodes").join(name), dir.path());
        Self(dir)
    }

    fn file(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    async fn kpx(&self, args: &[&str]) -> Ran {
        let path = self.0.path().to_str().unwrap();
        let ran = kpx(&[&["--from", path], args].concat()).await;
        Ran {
            out: ran.out.replace(path, "BUNDLE"),
            ..ran
        }
    }

    async fn json(&self, view: &str) -> Value {
        let ran = self.kpx(&["show", view, "-o", "json"]).await;
        serde_json::from_str(&ran.out).unwrap_or_else(|e| panic!("{view}: {e}: {ran}"))
    }
}

#[tokio::test]
async fn stale_connections_are_marked() {
    let node = Copied::of("seed-iptables");
    let entry = |proto: &str, to: &str, port: u16, from: &str, from_port: u16| {
        let (number, state) = if proto == "tcp" {
            (6, " ESTABLISHED")
        } else {
            (17, "")
        };
        format!(
            "{proto} {number} 300{state} src=10.244.1.9 dst={to} sport=4000 dport={port} src={from} dst=10.244.1.9 \
             sport={from_port} dport=4000 [ASSURED] mark=0 use=1\n"
        )
    };
    let text = [
        entry("tcp", "10.97.54.248", 80, "10.244.1.14", 80),
        entry("tcp", "10.97.54.248", 80, "10.244.1.99", 80),
        entry("udp", "10.96.0.10", 53, "10.96.0.10", 53),
        entry("tcp", "10.0.2.15", 31082, "10.244.1.16", 80),
        entry("tcp", "1.2.3.4", 443, "1.2.3.4", 443),
    ];
    fs::write(node.file("node/conntrack.txt"), text.concat()).unwrap();
    insta::assert_snapshot!("conntrack", node.kpx(&["show", "conntrack"]).await);
    // Without EndpointSlices, no backend can be called stale.
    fs::remove_file(node.file("cluster/endpointslices.json")).unwrap();
    let ran = node.kpx(&["show", "conntrack"]).await;
    assert!(!ran.out.contains("STALE"), "{ran}");
    assert_eq!(ran.code, 3, "{ran}");
}

#[tokio::test]
async fn a_service_has_a_page() {
    let sticky = with_clients("ipvs");
    let page = sticky.kpx(&["show", "services", "shop/cart"]).await;
    insta::assert_snapshot!("page_sticky", page);
    let node = Copied::of("seed-iptables");
    let entry = "udp 17 20 src=10.244.1.9 dst=10.96.0.10 sport=4000 dport=53 src=10.244.1.2 dst=10.244.1.9 sport=53 \
                 dport=4000 mark=0 use=1\n";
    fs::write(node.file("node/conntrack.txt"), entry).unwrap();
    let dns = node
        .kpx(&["show", "services", "kube-system/kube-dns"])
        .await;
    insta::assert_snapshot!("page_of_several_ports", dns);
    let exposed = "default/nginx-svc-nodeport";
    insta::assert_snapshot!(
        "page_with_node_port",
        node.kpx(&["show", "services", exposed]).await
    );
    shown! {
        "page_rejected": "full-iptables" ["show", "services", "shop/empty-np"];
        "page_restricted": "full-iptables" ["show", "services", "edge/web-restricted"];
        "page_nftables": "full-nftables" ["show", "services", "edge/web-local"];
        "page_dual": "dual-nftables" ["show", "services", "shop/sticky"];
        "page_ipvs": "full-ipvs" ["show", "services", "edge/web-restricted"];
    }
    let ran = node.kpx(&["show", "services", exposed, "-o", "json"]).await;
    let report: Value = serde_json::from_str(&ran.out).unwrap();
    let spec = &report["service"]["spec"];
    assert_eq!(spec["externalTrafficPolicy"], "Cluster", "{ran}");
    assert_eq!(spec["affinitySeconds"], Value::Null, "{ran}");

    // Without the API, the rules still name the endpoints.
    for objects in ["services", "endpointslices"] {
        fs::remove_file(node.file(&format!("cluster/{objects}.json"))).unwrap();
    }
    let ran = node.kpx(&["show", "services", exposed, "-o", "json"]).await;
    let report: Value = serde_json::from_str(&ran.out).unwrap();
    assert_eq!(report["service"]["spec"], Value::Null, "{ran}");
    let endpoints = report["service"]["endpoints"].as_array().unwrap();
    assert_eq!(endpoints.len(), 3, "{ran}");
    assert_eq!(ran.code, 3, "{ran}");
    // An object that cannot be compared or traced is unknown, and not fine.
    let page = &report["service"];
    assert_eq!(page["drift"]["changes"], Value::Null, "{ran}");
    assert!(
        page["drift"]["unknown"][0]
            .as_str()
            .unwrap()
            .contains("services.json"),
        "{ran}"
    );
    assert_eq!(page["findings"]["found"], Value::Null, "{ran}");
    for traced in page["traces"].as_array().unwrap() {
        assert_eq!(traced["ends"].as_array().unwrap().len(), 0, "{ran}");
        assert!(traced["untraced"].is_string(), "{ran}");
    }
}

#[tokio::test]
async fn the_page_of_a_service_says_what_is_wrong_with_it() {
    let node = Copied::of("seed-iptables");
    let service = "default/nginx-svc";
    let page = async |node: &Copied| {
        let ran = node.kpx(&["show", "services", service, "-o", "json"]).await;
        let report: Value = serde_json::from_str(&ran.out).unwrap();
        (report["service"].clone(), ran)
    };
    let (fine, ran) = page(&node).await;
    assert_eq!(fine["drift"]["changes"], json!([]), "{ran}");
    assert_eq!(fine["findings"]["found"], json!([]), "{ran}");
    let backends = &fine["traces"][0]["ends"][0]["backends"];
    assert_eq!(backends.as_array().unwrap().len(), 3, "{ran}");
    let clients: Vec<_> = fine["traces"]
        .as_array()
        .unwrap()
        .iter()
        .map(|path| &path["client"])
        .collect();
    assert_eq!(clients, ["pod", "host", "outside"], "{ran}");
    assert!(
        fine["traces"][2]["untraced"]
            .as_str()
            .unwrap()
            .contains("outside the cluster"),
        "{ran}"
    );

    // The rule that leads to the Service is gone, and packets to it are dropped.
    let path = node.file("node/iptables-save.txt");
    let rules = fs::read_to_string(&path).unwrap();
    let ours = |line: &&str| line.contains("-A KUBE-SERVICES -d 10.97.54.248/32");
    let line = rules.lines().find(ours).unwrap();
    fs::write(
        &path,
        rules.replace(line, "-A OUTPUT -d 10.97.54.248/32 -j DROP"),
    )
    .unwrap();
    let (broken, ran) = page(&node).await;
    let changes = broken["drift"]["changes"].as_array().unwrap();
    let missing = changes
        .iter()
        .find(|change| change["action"] == "missing")
        .unwrap();
    assert!(
        missing["object"]
            .as_str()
            .unwrap()
            .starts_with("nat chain KUBE-SERVICES"),
        "{ran}"
    );
    assert!(
        changes
            .iter()
            .all(|change| change["service"].as_str().unwrap().starts_with(service)),
        "{ran}"
    );
    let found = broken["findings"]["found"].as_array().unwrap();
    assert!(
        found
            .iter()
            .any(|finding| finding["id"].as_str().unwrap().starts_with("IR")),
        "{ran}"
    );
    let from_host = &broken["traces"][1]["ends"][0];
    assert_eq!(from_host["fate"], "lost", "{ran}");
    assert_eq!(
        from_host["reason"], "dropped by rule 2 of nat OUTPUT",
        "{ran}"
    );
    let text = node.kpx(&["show", "services", service]).await;
    insta::assert_snapshot!("page_broken", text);
}

#[tokio::test]
async fn the_objects_of_a_service_are_those_of_the_mode_in_force() {
    let objects = async |recording: &str, service: &str| {
        let ran = kpx_on(recording, &["show", "services", service, "-o", "json"]).await;
        let report: Value = serde_json::from_str(&ran.out).unwrap();
        let form = report["service"]["form"].as_array().unwrap().clone();
        let form = form.into_iter().map(|form| {
            format!(
                "{} {}",
                form["kind"].as_str().unwrap(),
                form["object"].as_str().unwrap()
            )
        });
        form.collect::<BTreeSet<String>>()
    };
    let seed = objects("seed-iptables", "default/nginx-svc").await;
    let kinds = |all: &BTreeSet<String>, kind: &str| {
        all.iter().filter(|line| line.starts_with(kind)).count()
    };
    assert_eq!(
        (
            kinds(&seed, "rule "),
            kinds(&seed, "chain nat KUBE-SVC-"),
            kinds(&seed, "chain nat KUBE-SEP-")
        ),
        (1, 1, 3),
        "{seed:?}"
    );
    let seed = objects("seed-nftables", "default/nginx-svc").await;
    assert!(seed.contains("map-element service-ips"), "{seed:?}");
    assert_eq!(kinds(&seed, "chain service-"), 1, "{seed:?}");
    let seed = objects("seed-ipvs", "default/nginx-svc").await;
    assert!(
        seed.contains("virtual-server 10.97.54.248:80/tcp"),
        "{seed:?}"
    );
    assert!(seed.contains("set-members KUBE-CLUSTER-IP"), "{seed:?}");
    assert!(seed.contains("address kube-ipvs0"), "{seed:?}");
    // Chains that another mode left are no part of it.
    let left = objects("leftover-iptables-to-ipvs", "default/nginx-svc").await;
    assert_eq!(kinds(&left, "chain "), 0, "{left:?}");
    assert!(kinds(&left, "virtual-server ") > 0, "{left:?}");
}

/// `show services` of a recording with `change` applied to a file.
async fn services_with(name: &str, file: &str, change: Change<'_>) -> String {
    let changed = broken(name, &[(file, change)]);
    let args = [
        "--from",
        changed.path().to_str().unwrap(),
        "show",
        "services",
    ];
    kpx(&args).await.out
}

#[tokio::test]
async fn a_service_whose_rules_lead_to_no_endpoint_is_lost() {
    let chains = |text: &str| without(text, "-A KUBE-SVC-XKWTKZBTDCMU3FHC ");
    let endpoint = |text: &str| without(text, "--to-destination 10.244.1.17:80");
    let rules = |text: &str| {
        let mut all: Value = serde_json::from_str(text).unwrap();
        let kept = |object: &Value| {
            object["rule"]["chain"] != "service-PWHLL22A-default/nginx-svc-nodeport/tcp/"
        };
        all["nftables"].as_array_mut().unwrap().retain(kept);
        all.to_string()
    };
    let saved = "node/iptables-save.txt";
    let lines = |text: &str, words: &str| {
        let of = text.lines().filter(|line| line.ends_with(words));
        of.map(|line| line.split(' ').next().unwrap().to_owned())
            .collect::<Vec<_>>()
    };
    // In mode nftables, kube-proxy rejects what none of its chains translates.
    for (fate, out) in [
        ("lost", services_with("seed-iptables", saved, &chains).await),
        (
            "refused",
            services_with("seed-nftables", "node/nft.json", &rules).await,
        ),
    ] {
        assert_eq!(lines(&out, fate), ["default/nginx-svc-nodeport"], "{out}");
        let works = lines(&out, "works");
        assert!(works.contains(&"default/nginx-svc".to_owned()), "{out}");
        assert_eq!(works.len(), 7, "{out}");
    }
    // The other endpoints are reached.
    let out = services_with("seed-iptables", saved, &endpoint).await;
    let partly = ["default/nginx-svc", "default/nginx-svc-nodeport"];
    assert_eq!(lines(&out, "partly"), partly, "{out}");
    assert_eq!(lines(&out, "works").len(), 6, "{out}");
}

#[tokio::test]
async fn connections_of_a_service_are_counted_by_backend_and_stale_ones_forgotten() {
    let node = Copied::of("seed-iptables");
    let entry = |kind: &str, client: &str, to: (&str, u16), from: (&str, u16)| {
        format!(
            "{kind} src={client} dst={} sport=4000 dport={} src={} dst={client} sport={} dport=4000 mark=0 use=1\n",
            to.0, to.1, from.0, from.1
        )
    };
    let (open, new, udp) = ("tcp 6 300 ESTABLISHED", "tcp 6 100 SYN_SENT", "udp 17 20");
    let (web, dns) = (("10.97.54.248", 80), ("10.96.0.10", 53));
    let text = [
        entry(open, "10.244.1.9", web, ("10.244.1.14", 80)),
        entry(open, "203.0.113.9", web, ("10.244.1.14", 80)),
        // Its backend may still answer.
        entry(open, "10.244.1.9", web, ("10.244.1.99", 80)),
        entry(new, "10.244.1.10", web, ("10.244.1.99", 80)),
        entry(new, "10.244.1.11", web, web),
        entry(new, "10.244.1.12", web, ("10.244.1.14", 80)),
        entry(udp, "10.244.1.9", dns, ("10.244.1.2", 53)),
        entry(udp, "10.244.1.9", dns, ("10.244.1.98", 53)),
        entry(udp, "10.244.1.10", dns, dns),
    ];
    fs::write(node.file("node/conntrack.txt"), text.concat()).unwrap();
    let file = node.file("node/ip-route.json");
    let mut routes: Value = serde_json::from_str(&fs::read_to_string(&file).unwrap()).unwrap();
    let pods = json!({"dst": "10.244.1.0/24", "dev": "cni0", "scope": "link", "flags": []});
    routes.as_array_mut().unwrap().push(pods);
    fs::write(&file, routes.to_string()).unwrap();
    let shown = node.kpx(&["show", "conntrack", "default/nginx-svc"]).await;
    insta::assert_snapshot!("conntrack_of_a_service", shown);
    let plan = node.kpx(&["reconcile", "--part", "conntrack"]).await;
    insta::assert_snapshot!("forget_connections", plan);

    // A connection is stale only if the endpoints are known.
    fs::remove_file(node.file("cluster/endpointslices.json")).unwrap();
    let plan = node.kpx(&["reconcile", "--part", "conntrack"]).await;
    assert_eq!(plan.code, 4, "{plan}");
}

/// Adds clients that each mode remembers of shop/cart: one bound, one whose backend is gone.
fn with_clients(mode: &str) -> Copied {
    let node = Copied::of(&format!("full-{mode}"));
    match mode {
        "iptables" => {
            let list = "/proc/net/xt_recent/KUBE-SEP-3ZEI2ZNS3OA4Y2Z4: src=";
            let text = format!(
                "{list}10.244.1.77 ttl: 64 last_seen: 4313748180 oldest_pkt: 1 4313748180\n\
                 {list}10.244.1.78 ttl: 64 last_seen: 4313590000 oldest_pkt: 1 4313590000\n\
                 /proc/uptime: 75424.85 51816.23\n/proc/timer_list: jiffies: 4313748430\n"
            );
            fs::write(node.file("node/xt_recent.txt"), text).unwrap();
        }
        "ipvs" => {
            let text = "Pro FromIP FPrt ToIP TPrt DestIP DPrt State Expires PEName PEData\n\
                        TCP 0AF4014D 0000 0A640101 1F90 0AF4011E 1F90 NONE 599\n\
                        TCP 0AF4014E 0000 0A640101 1F90 0AF40163 1F90 NONE 30\n\
                        TCP 0AF4014D 9C40 0A640101 1F90 0AF4011E 1F90 ESTABLISHED 899\n";
            fs::write(node.file("node/ip_vs_conn.txt"), text).unwrap();
        }
        _ => {
            let path = node.file("node/nft.json");
            let text = fs::read_to_string(&path).unwrap();
            let set = r#""name": "affinity-EBQUYVBC-shop/cart/tcp/http__10.244.1.30/8080""#;
            let elements = r#", "elem": [{"elem": {"val": "10.244.1.77", "expires": 599}}]"#;
            assert!(text.contains(set), "{text}");
            fs::write(&path, text.replacen(set, &format!("{set}{elements}"), 1)).unwrap();
        }
    }
    node
}

#[tokio::test]
async fn clients_are_bound_in_each_mode() {
    for mode in ["iptables", "ipvs", "nftables"] {
        let node = with_clients(mode);
        let shown = node.json("affinity").await;
        let row = &shown["affinity"][0];
        assert_eq!(row["client"], "10.244.1.77", "{mode}: {shown}");
        assert_eq!(row["backend"], "10.244.1.30:8080", "{mode}");
        assert_eq!(row["secondsLeft"], 599, "{mode}");
        assert_eq!(row["backendStatus"], "endpoint", "{mode}");
        let of_client = node.kpx(&["show", "affinity", "10.244.1.77"]).await;
        assert_eq!(
            (of_client.code, of_client.out.contains("10.244.1.78")),
            (0, false),
            "{of_client}"
        );
    }
    let ipvs = with_clients("ipvs");
    insta::assert_snapshot!("affinity", ipvs.kpx(&["show", "affinity"]).await);
    // The second one was seen eleven minutes ago, and kube-proxy remembers for ten.
    let iptables = with_clients("iptables");
    insta::assert_snapshot!(
        "affinity-iptables",
        iptables.kpx(&["show", "affinity", "shop/cart"]).await
    );
    let path = iptables.file("node/xt_recent.txt");
    let text = fs::read_to_string(&path).unwrap();
    fs::write(
        &path,
        text.replace("/proc/timer_list: jiffies: 4313748430\n", ""),
    )
    .unwrap();
    let ran = iptables.json("affinity").await;
    assert!(ran.to_string().contains(r#""secondsLeft":null"#), "{ran}");
}

#[tokio::test]
async fn a_client_is_traced_to_the_backend_that_the_node_remembers() {
    for mode in ["iptables", "ipvs", "nftables"] {
        let node = with_clients(mode);
        let backends = async |source: &str| {
            let args = ["trace", "shop/cart:http", "--source", source, "-o", "json"];
            let ran = node.kpx(&args).await;
            let report: Value = serde_json::from_str(&ran.out).unwrap();
            let outcomes = report["outcomes"].as_array();
            let outcomes = outcomes.unwrap_or_else(|| panic!("{report}"));
            let notes = report["notes"].to_string();
            (outcomes.len(), notes.contains("remembers this client"))
        };
        assert_eq!(backends("10.244.1.77").await, (1, true), "{mode}");
        // No client is remembered for longer than the Service says.
        let (count, is_known) = backends("10.244.1.78").await;
        assert!(count > 1 && !is_known, "{mode}: {count}");
    }
}

#[tokio::test]
async fn a_foreign_listener_on_a_node_port_is_marked() {
    let node = Copied::of("full-iptables");
    let ss = "tcp LISTEN 0 4096 0.0.0.0:30080 0.0.0.0:* users:((\"nginx\",pid=77,fd=5))\n\
              tcp LISTEN 0 4096 0.0.0.0:30081 0.0.0.0:*\n\
              tcp LISTEN 0 4096 0.0.0.0:32001 0.0.0.0:* users:((\"kube-proxy\",pid=142,fd=13))\n";
    fs::write(node.file("node/ss.txt"), ss).unwrap();
    let rules = node.file("node/iptables-save.txt");
    let text = fs::read_to_string(&rules).unwrap();
    let text = text.replacen("--dport 30443", "--dport 30999", 2);
    fs::write(&rules, text).unwrap();
    insta::assert_snapshot!("nodeports-foreign", node.kpx(&["show", "nodeports"]).await);
}

#[tokio::test]
async fn an_extra_address_is_marked() {
    let node = Copied::of("seed-ipvs");
    let services = node.file("cluster/services.json");
    let text = fs::read_to_string(&services).unwrap();
    fs::write(&services, text.replace("10.97.54.248", "10.97.54.249")).unwrap();
    insta::assert_snapshot!("addresses-extra", node.kpx(&["show", "addresses"]).await);
    let ran = node.kpx(&["show", "ipvs", "10.97.54.248"]).await;
    assert!(ran.out.contains("EXTRA: no Service has it"), "{ran}");
    fs::remove_dir_all(node.file("cluster")).unwrap();
    insta::assert_snapshot!(
        "ipvs-no-api",
        node.kpx(&["show", "ipvs", "10.97.54.248"]).await
    );
}

#[tokio::test]
async fn rules_and_the_api_show_the_same_services() {
    for name in [
        "seed-iptables",
        "full-iptables",
        "dual-iptables",
        "seed-nftables",
        "full-nftables",
        "dual-nftables",
    ] {
        let node = Copied::of(name);
        let names = |report: &Value| -> BTreeSet<(String, String)> {
            let rows = report["services"].as_array().unwrap().iter();
            // A Service of another proxy has no rules.
            rows.filter(|row| row["leftTo"].is_null())
                .map(|row| (row["service"].to_string(), row["protocol"].to_string()))
                .collect()
        };
        let by_api = node.json("services").await;
        fs::remove_dir_all(node.file("cluster")).unwrap();
        let by_rules = node.json("services").await;
        assert_eq!(by_api["namesFrom"], "api");
        assert_eq!(by_rules["namesFrom"], "rules");
        assert_eq!(names(&by_api), names(&by_rules), "{name}");
        let ran = node.kpx(&["show", "services"]).await;
        assert!(ran.out.contains("unknown: cluster/services.json"), "{ran}");
        assert!(!ran.out.contains("missing"), "{ran}");
    }
}

#[tokio::test]
async fn missing_data_is_never_an_empty_table() {
    let parts = [
        ("services", "node/iptables-save.txt"),
        ("chains", "node/iptables-save.txt"),
        ("ipvs", "node/ipvsadm-save.txt"),
        ("sets", "node/ipset-save.txt"),
        ("addresses", "node/ip-addr.json"),
        ("nodeports", "node/ss.txt"),
        ("conntrack", "node/conntrack.txt"),
        ("affinity", "node/ip_vs_conn.txt"),
        ("modules", "node/proc-modules.txt"),
        ("sysctls", "node/sysctl.txt"),
        ("config", "kube-proxy/config.conf"),
    ];
    for (view, file) in parts {
        let node = Copied::of("full-ipvs");
        // Recordings are older than this item.
        assert!(fs::remove_file(node.file(file)).is_ok() || view == "affinity");
        for more in ["tcp", "tcp6", "udp", "udp6"]
            .iter()
            .filter(|_| view == "nodeports")
        {
            fs::remove_file(node.file(&format!("node/proc-net-{more}.txt"))).ok();
        }
        let ran = node.kpx(&["show", view]).await;
        // In mode ipvs, the view of Services also reads virtual servers.
        let of_mode = view == "services";
        assert_eq!(ran.code, 3, "{view} without {file}: {ran}");
        assert!(
            ran.out.contains("unknown: "),
            "{view} without {file}: {ran}"
        );
        assert!(!ran.out.contains("nothing to show"), "{view}: {ran}");
        assert!(of_mode || !ran.out.contains("missing"), "{view}: {ran}");
    }
    let node = Copied::of("full-ipvs");
    fs::remove_file(node.file("node/ipvsadm-save.txt")).unwrap();
    let ran = node.kpx(&["show", "services"]).await;
    assert!(!ran.out.contains("missing"), "{ran}");
    assert_eq!(ran.code, 3);
}

/// Returns the structure of the value, which redaction keeps: the type of every text and number, lists sorted.
fn shape(value: &Value) -> String {
    match value {
        Value::Array(all) => {
            let mut all: Vec<String> = all.iter().map(shape).collect();
            all.sort();
            format!("[{}]", all.join(","))
        }
        Value::Object(all) => {
            let all = all.iter().map(|(key, value)| match (key.as_str(), value) {
                ("state" | "standing" | "mode" | "role", Value::String(text)) => {
                    format!("{key}={text}")
                }
                _ => format!("{key}:{}", shape(value)),
            });
            format!("{{{}}}", all.collect::<Vec<_>>().join(","))
        }
        Value::Bool(of) => of.to_string(),
        Value::Null => "null".to_owned(),
        Value::Number(_) => "0".to_owned(),
        Value::String(_) => "text".to_owned(),
    }
}

#[tokio::test]
#[ignore = "takes long: make test-loops"]
async fn a_redacted_bundle_shows_as_much() {
    for name in ["full-iptables", "full-ipvs", "full-nftables"] {
        let before = Copied::of(name);
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("redacted");
        let path = path.to_str().unwrap();
        let ran = before.kpx(&["snapshot", "--redact", "--file", path]).await;
        assert!(matches!(ran.code, 0 | 3), "{ran}");
        for view in VIEWS {
            let after = kpx(&["--from", path, "show", view, "-o", "json"]).await;
            let after: Value = serde_json::from_str(&after.out).unwrap();
            let before = before.json(view).await;
            assert_alike(&shape(&before), &shape(&after), &format!("{name} {view}"));
        }
    }
}

/// Compares long texts; the error shows only the first difference.
fn assert_alike(before: &str, after: &str, what: &str) {
    let same = before
        .chars()
        .zip(after.chars())
        .take_while(|(a, b)| a == b);
    let at = same.count();
    let near = |text: &str| -> String {
        text.chars()
            .skip(at.saturating_sub(200))
            .take(300)
            .collect()
    };
    assert!(
        before == after,
        "{what}:\n{}\n{}",
        near(before),
        near(after)
    );
}

#[tokio::test]
async fn sets_and_maps_of_nftables_are_shown_with_their_services() {
    let ran = kpx_on("full-nftables", &["show", "sets"]).await;
    for name in ["cluster-ips", "service-ips", "no-endpoint-services"] {
        assert!(ran.out.contains(name), "{ran}");
    }
    assert!(!ran.out.contains("unknown: "), "{ran}");
    let ran = kpx_on(
        "full-nftables",
        &["show", "sets", "shop/empty", "-o", "json"],
    )
    .await;
    let report: Value = serde_json::from_str(&ran.out).unwrap();
    let sets = report["sets"].as_array().unwrap();
    let names: Vec<_> = sets
        .iter()
        .map(|set| set["set"].as_str().unwrap())
        .collect();
    assert!(names.contains(&"no-endpoint-services"), "{report:#}");
    for member in sets
        .iter()
        .flat_map(|set| set["members"].as_array().unwrap())
    {
        assert_eq!(member["service"], "shop/empty:http", "{member}");
    }
}

#[tokio::test]
async fn the_migration_of_a_bundle_is_shown_with_its_stages() {
    let ran = kpx_on("mx06-unfinished-migration", &["migrate", "status"]).await;
    assert_eq!(ran.code, 1, "{ran}");
    assert!(
        ran.out
            .contains("unfinished: from mode iptables to mode ipvs"),
        "{ran}"
    );
    assert!(ran.out.contains("  running  build"), "{ran}");
    assert!(
        ran.out.contains("next: on node1: kpx migrate resume"),
        "{ran}"
    );
    // A bundle without a journal is not a node without a migration.
    let ran = kpx_on("seed-ipvs", &["migrate", "status"]).await;
    assert_eq!((ran.code, ran.out.as_str()), (4, ""), "{ran}");
}

#[tokio::test]
async fn a_planned_migration_begins_with_its_loss() {
    let args = ["migrate", "--to", "nftables", "--dry-run"];
    let ran = kpx_on("full-iptables", &args).await;
    let at = |text: &str| {
        ran.out
            .find(text)
            .unwrap_or_else(|| panic!("{text}: {ran}"))
    };
    assert!(at("cost of the switch: lost connections") < at("WARNING KP09"));
    assert!(at("WARNING KP09") < at("configuration: "));
}

#[tokio::test]
async fn a_mistyped_check_is_answered_with_similar_ids() {
    for (word, meant) in [("IR101", "IR01"), ("servce-chains", "service-chains")] {
        let ran = kpx(&["doctor", "--only", word]).await;
        assert!(ran.err.contains("did you mean"), "{ran}");
        assert!(ran.err.contains(meant), "{ran}");
    }
}
