//! Properties that packets get from earlier packets of their connection, and from the network of their pod: marks, types of service,
//! ports. Also obstacles in a pod for one client.

use super::ends::{EDGE, HEALTHY, PODS, says};
use super::incidents::{answer, copy, write};
use super::meant::{add_rule, with_rule};
use super::pods::in_edge;
use crate::support::kpx;

/// A client in a pod of the node.
const CLIENT: &str = "10.244.1.2";

/// A node with rules of these tables.
fn with_rules(rules: &[(&str, &str)]) -> tempfile::TempDir {
    let dir = copy(HEALTHY);
    for (table, rule) in rules {
        add_rule(&dir, table, rule);
    }
    dir
}

/// Adds to the network of the pod with `address` these rules of table mangle.
fn mangle(dir: &tempfile::TempDir, address: &str, rules: &[&str]) {
    let rules = rules.join("\n");
    in_pod(dir, address, |text| {
        format!(
            "{}\n--- node/iptables-save.txt\n*mangle\n:PREROUTING ACCEPT [0:0]\n:OUTPUT ACCEPT [0:0]\n:POSTROUTING ACCEPT [0:0]\n{rules}\nCOMMIT\n",
            text.trim_end()
        )
    });
}

/// Changes the section of the network of the pod with `address`.
fn in_pod(dir: &tempfile::TempDir, address: &str, change: impl FnOnce(&str) -> String) {
    write(dir, PODS, |text| {
        let at = text.find(&format!("\"local\":\"{address}\"")).unwrap();
        let start = text[..at].rfind("=== ").unwrap();
        let next = text[at..].find("\n=== ");
        let end = next.map_or(text.len(), |offset| at + offset + 1);
        format!(
            "{}{}{}",
            &text[..start],
            change(&text[start..end]),
            &text[end..]
        )
    });
}

/// Returns the kinds of clients of the paths to `service` that do not work, each with its fate.
async fn failing(dir: &tempfile::TempDir, service: &str) -> Vec<(String, String)> {
    let answer = answer(dir.path().to_str().unwrap(), service).await;
    let paths = answer["paths"].as_array().unwrap().iter();
    let failing = paths.filter(|path| path["fate"] != "works");
    let text = |of: &serde_json::Value| of.as_str().unwrap().to_owned();
    let mut all: Vec<_> = failing
        .map(|path| (text(&path["client"]), text(&path["fate"])))
        .collect();
    all.sort();
    all.dedup();
    all
}

#[tokio::test]
#[ignore = "takes long: make test-loops"]
async fn later_packets_have_the_mark_that_those_before_gave_the_connection() {
    let set = "-p tcp -m tcp --sport 8080 -j CONNMARK --set-xmark 0x6/0xffffffff";
    let of_reply = format!("-A PREROUTING -s {EDGE}/32 {set}");
    let to_edge = format!("-A FORWARD -d {EDGE}/32 -p tcp -m tcp --dport 8080");
    let from_edge = format!("-A FORWARD -s {EDGE}/32 -p tcp");
    let of_data = format!("{to_edge} --tcp-flags PSH PSH -j CONNMARK --set-xmark 0x6/0xffffffff");
    let restore =
        format!("{to_edge} -j CONNMARK --restore-mark --nfmask 0xffffffff --ctmask 0xffffffff");
    let drop = format!("{to_edge} -m connmark --mark 0x6 -j DROP");
    for rules in [
        vec![("mangle", &*of_reply), ("filter", &*drop)],
        vec![
            ("mangle", &*of_reply),
            ("mangle", &*restore),
            ("filter", &*format!("{to_edge} -m mark --mark 0x6 -j DROP")),
        ],
        vec![
            ("mangle", &*of_data),
            (
                "filter",
                &*format!("{from_edge} -m connmark --mark 0x6 -j DROP"),
            ),
        ],
    ] {
        let words = ["-D FORWARD"];
        says(&with_rules(&rules), "demo/edge:http", "partly", &words).await;
    }
    for rules in [
        vec![
            ("mangle", &*of_reply),
            (
                "filter",
                &*format!("{to_edge} -m connmark --mark 0x7 -j DROP"),
            ),
        ],
        vec![
            ("mangle", &*of_reply),
            (
                "filter",
                &*format!("{to_edge} -m connmark --mark 0x6 -j ACCEPT"),
            ),
        ],
        vec![("filter", &*drop)],
    ] {
        says(&with_rules(&rules), "demo/edge:http", "works", &[]).await;
    }
}

#[tokio::test]
#[ignore = "takes long: make test-loops"]
async fn a_type_of_service_that_a_pod_gives_its_packets_meets_the_rules_of_the_node() {
    for (sets, matches) in [
        ("OUTPUT -j TOS --set-tos 0x08/0x3f", "tos --tos 0x08/0x3f"),
        ("POSTROUTING -j DSCP --set-dscp 0x2e", "dscp --dscp 0x2e"),
    ] {
        let rule = format!("-A FORWARD -m {matches} -j DROP");
        let dir = with_rule("filter", &rule);
        assert_eq!(failing(&dir, "demo/edge:http").await, []);
        let client = with_rule("filter", &rule);
        mangle(&client, CLIENT, &[&format!("-A {sets}")]);
        let single = ("single".to_owned(), "lost".to_owned());
        assert_eq!(failing(&client, "demo/edge:http").await, [single]);
        let server = with_rule("filter", &rule);
        mangle(&server, EDGE, &[&format!("-A {sets}")]);
        let words = ["in table filter drops the"];
        says(&server, "demo/edge:http", "partly", &words).await;
        // Another type.
        mangle(&dir, CLIENT, &["-A OUTPUT -j TOS --set-tos 0x10/0x3f"]);
        assert_eq!(failing(&dir, "demo/edge:http").await, []);
    }
}

#[tokio::test]
#[ignore = "takes long: make test-loops"]
async fn what_a_pod_has_against_one_client_is_found_without_asking_for_it() {
    let rule = |more: &str| {
        let dir = copy(HEALTHY);
        in_edge(&dir, |text| {
            let own = r#"[{"priority":0,"src":"all","table":"local"},"#;
            let new = format!(
                "{own}{{\"priority\":80,\"src\":\"all\",\"dst\":\"{CLIENT}\"{more},\"action\":\"prohibit\"}},"
            );
            text.replacen(own, &new, 1)
        });
        dir
    };
    let single = ("single".to_owned(), "partly".to_owned());
    for more in ["", r#","ipproto":"tcp","sport":8080"#] {
        let dir = rule(more);
        assert_eq!(
            failing(&dir, "demo/edge:http").await,
            std::slice::from_ref(&single),
            "{more}"
        );
        says(
            &dir,
            "demo/edge:http",
            "partly",
            &["prohibit", "ip rule del"],
        )
        .await;
    }
    let dir = rule(r#","ipproto":"tcp","sport":9000"#);
    assert_eq!(failing(&dir, "demo/edge:http").await, []);

    let neighbour = |mac: &str| {
        let dir = copy(HEALTHY);
        in_edge(&dir, |text| {
            let entry = format!(
                "[{{\"dst\":\"{CLIENT}\",\"dev\":\"eth0\",\"lladdr\":\"{mac}\",\"state\":[\"PERMANENT\"]}}]"
            );
            format!("{}\n--- node/ip-neigh.json\n{entry}\n", text.trim_end())
        });
        dir
    };
    let dir = neighbour("02:00:00:00:00:95");
    assert_eq!(
        failing(&dir, "demo/edge:http").await,
        std::slice::from_ref(&single)
    );
    says(&dir, "demo/edge:http", "partly", &["ip neigh del"]).await;
    assert_eq!(
        failing(&neighbour("f2:46:ea:0e:55:ff"), "demo/edge:http").await,
        []
    );

    // The route leads one client astray, and is no fault of all pods.
    let dir = copy(HEALTHY);
    in_edge(&dir, |text| {
        let first = r#"[{"dst":"default","gateway":"10.244.1.1","dev":"eth0","flags":[]},"#;
        let own = format!("{{\"type\":\"blackhole\",\"dst\":\"{CLIENT}\",\"flags\":[]}},");
        text.replacen(first, &format!("{first}{own}"), 1)
    });
    assert_eq!(failing(&dir, "demo/edge:http").await, [single]);

    let dir = copy(HEALTHY);
    in_edge(&dir, |text| {
        let lo = r#"{"family":"inet","local":"127.0.0.1""#;
        let own = format!(
            "{{\"family\":\"inet\",\"local\":\"{CLIENT}\",\"prefixlen\":32,\"scope\":\"global\"}},"
        );
        assert!(text.contains(lo), "{text}");
        text.replacen(lo, &format!("{own}{lo}"), 1)
    });
    let single = ("single".to_owned(), "unknown".to_owned());
    assert_eq!(failing(&dir, "demo/edge:http").await, [single]);
    in_edge(&dir, |text| {
        let settings = "net.ipv4.conf.all.accept_local = 0\nnet.ipv4.conf.eth0.accept_local = 0";
        format!("{}\n--- node/sysctl.txt\n{settings}\n", text.trim_end())
    });
    let single = ("single".to_owned(), "partly".to_owned());
    assert_eq!(failing(&dir, "demo/edge:http").await, [single]);
    let words = [
        "has the address 10.244.1.2 of the client",
        "ip addr del 10.244.1.2 dev lo",
    ];
    says(&dir, "demo/edge:http", "partly", &words).await;
}

/// The first datagram opens the flow.
#[tokio::test]
async fn later_datagrams_from_a_port_are_followed() {
    let established = "-p udp -m udp --dport 9001 -m conntrack --ctstate ESTABLISHED -j DROP";
    let dir = with_rule("filter", &format!("-A FORWARD {established}"));
    let words = ["later datagrams from each port", "-D FORWARD"];
    says(&dir, "demo/web:datagrams", "partly", &words).await;
    says(&dir, "demo/web:http", "works", &[]).await;
    let reply = established.replace("--dport", "--sport");
    let dir = with_rule("filter", &format!("-A FORWARD {reply}"));
    says(&dir, "demo/web:datagrams", "partly", &["drops the replies"]).await;
    let inside = copy(HEALTHY);
    in_pod(&inside, "10.244.1.3", |text| {
        format!(
            "{}\n--- node/iptables-save.txt\n*filter\n:INPUT ACCEPT [0:0]\n-A INPUT {established}\nCOMMIT\n",
            text.trim_end()
        )
    });
    let words = ["whether datagrams after the first one arrive"];
    says(&inside, "demo/web:datagrams", "unknown", &words).await;
    let accept = established.replace("DROP", "ACCEPT");
    let dir = with_rule("filter", &format!("-A FORWARD {accept}"));
    says(&dir, "demo/web:datagrams", "works", &[]).await;
}

#[tokio::test]
#[ignore = "takes long: make test-loops"]
async fn settings_of_a_pod_decide_about_what_it_sends() {
    let with = |setting: &str, rule: &str| {
        let dir = with_rule("filter", rule);
        in_pod(&dir, CLIENT, |text| {
            format!("{}\n--- node/sysctl.txt\n{setting}\n", text.trim_end())
        });
        dir
    };
    let ports = "net.ipv4.ip_local_port_range = 40000\t40999\nnet.ipv4.ip_local_reserved_ports = ";
    let low = "-A FORWARD -p tcp -m tcp --sport 40000:40999 -j DROP";
    let dir = with(ports, low);
    let path = dir.path().to_str().unwrap();
    let ran = kpx(&["--from", path, "why", "demo/edge:http", "--source", CLIENT]).await;
    assert!(ran.out.contains("\nLOST: "), "{}", ran.out);
    let single = ("single".to_owned(), "lost".to_owned());
    assert!(failing(&dir, "demo/edge:http").await.contains(&single));
    let high = "-A FORWARD -p tcp -m tcp --sport 41000:65535 -j DROP";
    let dir = with(ports, high);
    let path = dir.path().to_str().unwrap();
    let ran = kpx(&["--from", path, "why", "demo/edge:http", "--source", CLIENT]).await;
    assert!(ran.out.contains("\nWORKS: "), "{}", ran.out);

    // They are no ports of the replies.
    let dir = with(
        ports,
        &format!("-A FORWARD -s {EDGE}/32 -p tcp -m tcp --sport 8080 -j DROP"),
    );
    says(&dir, "demo/edge:http", "partly", &["drops the replies"]).await;
    assert!(
        failing(&dir, "demo/edge:http")
            .await
            .contains(&("single".to_owned(), "partly".to_owned()))
    );

    // Packets that are sent again do not ask for it.
    let ecn = "-A FORWARD -p tcp -m ecn --ecn-tcp-cwr -j DROP";
    let single = ("single".to_owned(), "unknown".to_owned());
    let dir = with("net.ipv4.tcp_ecn = 1", ecn);
    assert_eq!(failing(&dir, "demo/edge:http").await, [single]);
    let dir = with("net.ipv4.tcp_ecn = 2", ecn);
    assert_eq!(failing(&dir, "demo/edge:http").await, []);
}

/// Whatever it connects to, and whether it has connected before.
#[tokio::test]
async fn a_pod_whose_ports_are_all_reserved_connects_to_nothing() {
    for (reserved, fate) in [("32768-60999", "refused"), ("32768-60998", "works")] {
        let dir = copy(HEALTHY);
        in_pod(&dir, CLIENT, |text| {
            format!(
                "{}\n--- node/sysctl.txt\nnet.ipv4.ip_local_port_range = 32768\t60999\n\
                 net.ipv4.ip_local_reserved_ports = {reserved}\n",
                text.trim_end()
            )
        });
        let failing = failing(&dir, "demo/edge:http").await;
        let expected: &[_] = match fate {
            "refused" => &[("single".to_owned(), fate.to_owned())],
            _ => &[],
        };
        assert_eq!(failing, expected, "{reserved}");
        if fate == "refused" {
            let words = ["is reserved", "sysctl -w net.ipv4.ip_local_reserved_ports="];
            says(&dir, "demo/edge:http", "partly", &words).await;
        }
    }
}

/// The first packet is not in the set yet.
#[tokio::test]
async fn what_the_first_packet_adds_to_a_set_later_packets_find_there() {
    let with = |rules: &[&str]| {
        let dir = copy(HEALTHY);
        write(&dir, "node/ipset-save.txt", |text| {
            let set = "create ban hash:ip family inet hashsize 1024 maxelem 65536 timeout 60";
            format!("{}\n{set}\n", text.trim_end())
        });
        for rule in rules {
            add_rule(&dir, "filter", rule);
        }
        dir
    };
    let to_edge = format!("-A FORWARD -d {EDGE}/32 -p tcp");
    let add = format!("{to_edge} -j SET --add-set ban src");
    let stop = format!("{to_edge} -m set --match-set ban src -j DROP");
    // The first one in the list is the last one in the chain.
    let dir = with(&[&add, &stop]);
    says(
        &dir,
        "demo/edge:http",
        "partly",
        &["later packets", "-D FORWARD"],
    )
    .await;
    let dir = with(&[&stop, &add]);
    says(&dir, "demo/edge:http", "partly", &["-D FORWARD"]).await;
    let other = format!("{to_edge} -m tcp --dport 9000 -m set --match-set ban src -j DROP");
    for rules in [&[&*add, &*other][..], &[&*stop][..], &[&*add][..]] {
        says(&with(rules), "demo/edge:http", "works", &[]).await;
    }
}
