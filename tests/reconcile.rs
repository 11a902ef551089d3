//! The plans of `kpx reconcile` on recorded nodes. Kernel tests apply such plans.

use kpx_judge::diff::{self, Layer};
use kpx_judge::plan::{self, Drain, Plan, Programmed, Undo};
use kpx_node::action::{Action, Backend};
use kpx_node::backend::Mode;
use kpx_node::cluster::Service;
use kpx_node::evidence::{Evidence, Gap, ITEMS, Item, load};
use kpx_node::net::Family;
use kpx_node::node::NodeSnapshot;
use serde_json::{Value, json};

use crate::support::{Change, broken, kpx, kpx_on, root, without};

#[tokio::test]
async fn a_healthy_node_needs_no_steps() {
    for name in [
        "seed-iptables",
        "full-nftables",
        "dual-iptables",
        "dual-ipvs",
        "full-ipvs-lc-strictarp",
    ] {
        let ran = kpx_on(name, &["reconcile"]).await;
        assert_eq!(ran.code, 0, "{name}\n{ran}");
        assert!(ran.out.contains("\nno changes needed "), "{name}\n{ran}");
    }
}

#[tokio::test]
async fn a_plan_is_the_commands_with_their_undo() {
    insta::assert_snapshot!(
        "faults_iptables",
        kpx_on("faults-iptables", &["reconcile"]).await
    );
    insta::assert_snapshot!("faults_ipvs", kpx_on("faults-ipvs", &["reconcile"]).await);
    let ran = kpx_on("faults-nftables", &["reconcile", "-o", "wide"]).await;
    insta::assert_snapshot!("faults_nftables_wide", ran);
}

#[tokio::test]
async fn programs_get_the_plan_in_full() {
    let ran = kpx_on("faults-iptables", &["reconcile", "-o", "json"]).await;
    assert_eq!(ran.code, 1, "{ran}");
    let report: Value = serde_json::from_str(&ran.out).unwrap();
    assert_eq!(report["kind"], "PlanReport");
    assert_eq!(report["applied"], false);
    let steps = report["steps"].as_array().unwrap();
    assert!(!steps.is_empty(), "{ran}");
    for step in steps {
        for key in ["title", "action", "undo"] {
            assert!(step[key].as_str().is_some_and(|s| !s.is_empty()), "{step}");
        }
        let action = step["action"].as_str().unwrap();
        assert!(action.ends_with("COMMIT\nEOF"), "{action}");
    }
}

#[tokio::test]
async fn only_the_layers_asked_for_are_changed() {
    let ran = kpx_on("faults-iptables", &["reconcile", "--part", "sysctl"]).await;
    assert!(ran.out.contains("\nno changes needed "), "{ran}");
}

#[tokio::test]
async fn a_bundle_cannot_be_changed() {
    let ran = kpx_on("faults-iptables", &["reconcile", "--apply", "--yes"]).await;
    assert_eq!(ran.code, 2, "{ran}");
    assert!(ran.err.contains("--from reads a bundle"), "{ran}");
}

#[tokio::test]
async fn parts_that_were_not_compared_are_not_changed() {
    let ran = kpx_on("leftover-iptables-to-ipvs", &["reconcile"]).await;
    assert_eq!(ran.code, 4, "{ran}");
    assert!(
        ran.err
            .contains("cannot compare IPv6 with the desired state"),
        "{ran}"
    );
}

#[tokio::test]
async fn a_node_without_ip_vs_has_no_virtual_servers() {
    let args = ["reconcile", "--mode", "ipvs", "--part", "ipvs"];
    let ran = kpx_on("seed-iptables", &args).await;
    assert_eq!(ran.code, 1, "{ran}");
    assert!(
        ran.out.contains("ipvsadm -A -t 10.96.0.1:443 -s rr"),
        "{ran}"
    );
}

#[tokio::test]
async fn connections_in_zones_of_other_software_are_left_alone() {
    let zone = |text: &str| text.replacen(" mark=0", " mark=0 zone=3", 1);
    for (changes, left, steps) in [
        (&[][..], false, "3 steps"),
        (&[("node/conntrack.txt", &zone as _)], true, "2 steps"),
    ] {
        let copied = broken("faults-traffic", changes);
        let from = copied.path().to_str().unwrap();
        let ran = kpx(&["--from", from, "reconcile", "--part", "conntrack"]).await;
        let note = "left alone: 1 stale connection in conntrack zones of other software";
        assert_eq!(ran.out.contains(note), left, "{ran}");
        assert!(ran.out.contains(&format!("\n{steps}")), "{ran}");
    }
}

fn evidence(name: &str) -> Evidence {
    load(&root().join("testdata/nodes").join(name), ITEMS).unwrap()
}

/// Changes the text of `item` in `evidence`.
fn edit(evidence: &mut Evidence, item: Item, change: impl Fn(&str) -> String) {
    let text = change(evidence.text(item).unwrap());
    evidence.insert(item, Ok(text));
}

/// Returns the plan for `layers` of `node`.
fn repair(node: &NodeSnapshot<'_>, mode: Mode, layers: &[Layer], drain: Drain) -> Plan {
    let found = diff::compare(node, mode, &Family::BOTH).unwrap();
    plan::repair(node, mode, &Family::BOTH, &found, layers, drain).unwrap()
}

fn titles(plan: &Plan) -> Vec<&str> {
    plan.steps.iter().map(|step| step.title.as_str()).collect()
}

/// Returns the lines of every action.
fn lines(plan: &Plan) -> Vec<String> {
    let actions = plan.steps.iter().map(|step| step.action.to_string());
    actions
        .flat_map(|text| text.lines().map(str::to_owned).collect::<Vec<_>>())
        .collect()
}

#[test]
fn removed_real_servers_of_tcp_drain_and_the_others_are_deleted() {
    let mut evidence = evidence("dual-ipvs");
    edit(&mut evidence, Item::IpvsSave, |text| {
        format!(
            "{text}-a -t 10.96.0.1:443 -r 10.244.9.1:443 -m -w 1\n\
             -a -u 10.100.3.14:53 -r 10.244.9.2:53 -m -w 1\n\
             -a -t 10.100.3.10:80 -r 10.244.9.3:80 -m -w 0\n\
             -a -t [fd00:10:96::320]:80 -r [fd00:10:244:9::1]:80 -m -w 2\n"
        )
    });
    let node = NodeSnapshot::new(&evidence);
    let of = |drain| repair(&node, Mode::Ipvs, &[Layer::Ipvs], drain);
    let draining = of(Drain::First);
    assert_eq!(
        titles(&draining),
        [
            "IPv4 IPVS: remove 3 real servers",
            "IPv6 IPVS: remove 1 real server"
        ]
    );
    assert_eq!(
        lines(&draining),
        [
            "ipvsadm -e -t 10.96.0.1:443 -r 10.244.9.1:443 -m -w 0",
            "ipvsadm -d -u 10.100.3.14:53 -r 10.244.9.2:53",
            "ipvsadm -d -t 10.96.0.1:443 -r 10.244.9.1:443 # unless it has connections",
            "ipvsadm -d -t 10.100.3.10:80 -r 10.244.9.3:80 # unless it has connections",
            "ipvsadm -e -t [fd00:10:96::320]:80 -r [fd00:10:244:9::1]:80 -m -w 0",
            "ipvsadm -d -t [fd00:10:96::320]:80 -r [fd00:10:244:9::1]:80 # unless it has connections",
        ]
    );
    let [said] = draining.notes.as_slice() else {
        panic!("{:?}", draining.notes);
    };
    assert!(
        said.starts_with("removed TCP real servers drain: "),
        "{said}"
    );

    let deleted = of(Drain::No);
    assert_eq!(
        lines(&deleted),
        [
            "ipvsadm -d -t 10.96.0.1:443 -r 10.244.9.1:443",
            "ipvsadm -d -u 10.100.3.14:53 -r 10.244.9.2:53",
            "ipvsadm -d -t 10.100.3.10:80 -r 10.244.9.3:80",
            "ipvsadm -d -t [fd00:10:96::320]:80 -r [fd00:10:244:9::1]:80",
        ]
    );
    assert_eq!(deleted.notes, [""; 0]);
}

#[test]
fn a_drained_real_server_is_deleted_when_it_is_idle() {
    let mut evidence = evidence("dual-ipvs");
    let original = evidence.clone();
    let of = |address: &str, weight: u8, [active, inactive]: [u8; 2]| {
        json!({
            "address": address, "port": 6443, "weight": weight, "forwarding": "masq", "upper": 0, "lower": 0,
            "active": active, "inactive": inactive,
        })
    };
    for (connections, is_idle) in [([0, 0], true), ([1, 0], false), ([0, 1], false)] {
        let server = json!({
            "family": "IPv4", "protocol": "tcp", "address": "10.96.0.1", "port": 443, "scheduler": "rr", "prefix": 32,
            "destinations": [of("10.0.2.2", 1, [1, 1]), of("10.0.2.9", 0, connections)],
        });
        let table = json!({ "services": [server] });
        evidence.insert(Item::Ipvs, Ok(table.to_string()));
        let all = NodeSnapshot::new(&original);
        let mut services = all.services().unwrap().clone();
        services.retain(|service| service.metadata.name == "kubernetes");
        let node = NodeSnapshot::new(&evidence);
        let node = node.with_services(services, all.slices().unwrap().clone());
        let plan = repair(&node, Mode::Ipvs, &[Layer::Ipvs], Drain::First);
        let line = "ipvsadm -d -t 10.96.0.1:443 -r 10.0.2.9:6443 # unless it has connections";
        let want = if is_idle { &[line][..] } else { &[] };
        assert_eq!(lines(&plan), want, "{connections:?}");
    }
}

#[test]
fn a_node_port_of_a_deleted_service_is_deleted_and_foreign_servers_are_left_alone() {
    let mut evidence = evidence("dual-ipvs");
    edit(&mut evidence, Item::IpvsSave, |text| {
        format!(
            "{text}-A -t 10.0.2.15:30999 -s rr\n-A -t 10.0.2.15:8443 -s rr\n-A -t 192.0.2.50:30999 -s rr\n"
        )
    });
    let node = NodeSnapshot::new(&evidence);
    let plan = repair(&node, Mode::Ipvs, &[Layer::Ipvs], Drain::First);
    assert_eq!(lines(&plan), ["ipvsadm -D -t 10.0.2.15:30999"]);
    let [said] = plan.notes.as_slice() else {
        panic!("{:?}", plan.notes);
    };
    let foreign = "has the address: tcp 10.0.2.15:8443, tcp 192.0.2.50:30999. ";
    assert!(said.contains(foreign), "{said}");
}

#[test]
fn sets_are_replaced_where_most_of_them_changes() {
    let mut evidence = evidence("dual-ipvs");
    edit(&mut evidence, Item::Ipset, |text| {
        let small = text.replacen("maxelem 65536", "maxelem 1000", 1);
        assert!(small.starts_with(
            "create KUBE-EXTERNAL-IP hash:ip,port family inet hashsize 1024 maxelem 1000 "
        ));
        let few = without(&small, "add KUBE-LOAD-BALANCER 203.0.113.3");
        format!("{few}add KUBE-NODE-PORT-TCP 31999\nadd KUBE-IPVS-IPS 10.9.9.9\n")
    });
    let node = NodeSnapshot::new(&evidence);
    let plan = repair(&node, Mode::Ipvs, &[Layer::Ipset], Drain::First);
    assert_eq!(
        titles(&plan),
        [
            "IPv4 sets: replace 2 sets, delete 1 member",
            "IPv4 sets: delete 1 member"
        ]
    );
}

/// The evidence of a node where `ip_vs` is not loaded.
fn without_ip_vs() -> Evidence {
    let mut evidence = evidence("dual-ipvs");
    let absent = Gap::Absent(Item::Ipvs, "ip_vs is not loaded".to_owned());
    evidence.insert(Item::Ipvs, Err(absent));
    evidence.insert(Item::IpvsSave, Err(Gap::NotCollected(Item::IpvsSave)));
    edit(&mut evidence, Item::Sysctl, |text| {
        without(&without(text, "net.ipv4.vs."), "net.ipv4.ip_forward =")
    });
    evidence.insert(Item::KernelRelease, Ok("5.4.0-1-amd64\n".to_owned()));
    evidence
}

#[test]
fn ip_vs_is_loaded_for_virtual_servers_and_their_settings() {
    let evidence = without_ip_vs();
    let node = NodeSnapshot::new(&evidence);
    for (mode, layers, loads) in [
        (Mode::Ipvs, &[Layer::Ipvs][..], true),
        (Mode::Ipvs, &[Layer::Sysctl], true),
        (Mode::Ipvs, &[Layer::Ipset], false),
        (Mode::Iptables, &Layer::ALL, false),
    ] {
        let plan = repair(&node, mode, layers, Drain::First);
        let title = "load the modules ip_vs and ip_vs_rr";
        let found = plan.steps.iter().position(|step| step.title == title);
        assert_eq!(found, loads.then_some(0), "{mode} {layers:?}");
        if loads {
            let names = vec!["ip_vs_rr".to_owned(), "ip_vs".to_owned()];
            let undo = Undo::Do(Action::UnloadModules { names });
            assert_eq!(plan.steps[0].undo, undo);
        }
    }
}

#[test]
fn settings_of_a_module_that_was_not_loaded_return_to_its_defaults() {
    let evidence = without_ip_vs();
    let node = NodeSnapshot::new(&evidence);
    let plan = repair(&node, Mode::Ipvs, &[Layer::Sysctl], Drain::First);
    let [_, settings @ ..] = plan.steps.as_slice() else {
        panic!("{plan:?}");
    };
    let settings: Vec<_> = settings
        .iter()
        .map(|step| (step.title.as_str(), step.undo.to_string()))
        .collect();
    let mut want = Vec::new();
    for (title, undo) in [
        ("set net.ipv4.vs.conn_reuse_mode to 0", "conn_reuse_mode=1"),
        ("set net.ipv4.vs.conntrack to 1", "conntrack=0"),
        (
            "set net.ipv4.vs.expire_nodest_conn to 1",
            "expire_nodest_conn=0",
        ),
        (
            "set net.ipv4.vs.expire_quiescent_template to 1",
            "expire_quiescent_template=0",
        ),
    ] {
        want.push((title, format!("sysctl -w net.ipv4.vs.{undo}")));
    }
    want.push((
        "set net.ipv4.ip_forward to 1",
        "its value could not be read before".to_owned(),
    ));
    assert_eq!(settings, want);
}

#[test]
fn an_nftables_table_is_changed_in_place_where_the_kernel_can() {
    let chain = "external-HRERZ4JW-shop/front/tcp/http";
    let old = "affinity-2LHB233D-shop/gone/tcp/http__10.244.1.99/80";
    let without_chain = |text: &str| {
        let (before, rest) = text.split_once(&format!("\tchain {chain} {{\n")).unwrap();
        let (_, after) = rest.split_once("\t}\n").unwrap();
        format!("{before}{after}")
    };
    let with_set = |text: &str| {
        let set = format!(
            "\tset {old} {{\n\t\ttype ipv4_addr\n\t\tflags dynamic,timeout\n\t\ttimeout 10s\n\t}}\n"
        );
        text.replacen(
            "\tchain nat-prerouting",
            &format!("{set}\tchain nat-prerouting"),
            1,
        )
    };
    let cases: [(Change<'_>, &str, &str, bool); 5] = [
        (
            &|text| text.replacen(", 10.100.3.14 }", " }", 1),
            "IPv4: 1 change in table kube-proxy",
            "add element ip kube-proxy cluster-ips { 10.100.3.14 }",
            false,
        ),
        (
            &without_chain,
            "IPv4: 1 change in table kube-proxy",
            &format!("\tchain {chain} {{"),
            false,
        ),
        (
            &with_set,
            "IPv4: 1 change in table kube-proxy",
            &format!("delete set ip kube-proxy {old}"),
            false,
        ),
        (
            &|text| text.replacen("priority dstnat", "priority filter", 1),
            "IPv4: 1 change in table kube-proxy",
            "type nat hook prerouting priority -100",
            true,
        ),
        (
            &|text| text[text.find("table ip6 kube-proxy").unwrap()..].to_owned(),
            "IPv4: create table kube-proxy",
            "table ip kube-proxy {",
            true,
        ),
    ];
    for (change, title, line, is_whole) in cases {
        let mut evidence = evidence("dual-nftables");
        evidence.insert(Item::Nft, Err(Gap::NotCollected(Item::Nft)));
        edit(&mut evidence, Item::NftText, change);
        let node = NodeSnapshot::new(&evidence);
        let plan = repair(&node, Mode::Nftables, &Layer::ALL, Drain::First);
        assert_eq!(titles(&plan), [title], "{line}");
        let Action::Nft { input } = &plan.steps[0].action else {
            panic!("{plan:?}");
        };
        assert!(input.contains(line), "{line}: {input}");
        assert_eq!(
            input.contains("delete table ip kube-proxy"),
            is_whole,
            "{line}: {input}"
        );
    }
}

#[test]
fn rules_are_written_to_the_back_end_of_their_family() {
    let mut evidence = evidence("dual-iptables");
    edit(&mut evidence, Item::Iptables6, |text| {
        text.replace("(nf_tables)", "(legacy)")
    });
    let node = NodeSnapshot::new(&evidence);
    let desired = node.desired(Mode::Iptables).unwrap();
    let only = |keep: &dyn Fn(&Service) -> bool| {
        let mut services = node.services().unwrap().clone();
        services.retain(keep);
        NodeSnapshot::new(&evidence).with_services(services, node.slices().unwrap().clone())
    };
    let known = Programmed::new(&node, desired.clone()).unwrap();
    let has_udp = |of: &Service| of.spec.ports.iter().any(|port| port.protocol == "UDP");
    for (kept, changes_udp) in [(true, false), (false, true)] {
        let next = only(&|service| has_udp(service) == kept);
        let to = next.desired(Mode::Iptables).unwrap();
        assert_eq!(known.changes_udp(to), changes_udp);
        let plan = known.advance(to, &Family::BOTH).unwrap();
        let backends: Vec<_> = plan
            .steps
            .iter()
            .map(|step| match step.action {
                Action::Iptables {
                    family, backend, ..
                } => (family, backend),
                _ => panic!("{step:?}"),
            })
            .collect();
        assert!(
            backends.contains(&(Family::V4, Backend::Nft)),
            "{backends:?}"
        );
        assert!(
            backends.contains(&(Family::V6, Backend::Legacy)),
            "{backends:?}"
        );
        assert!(
            !backends.contains(&(Family::V4, Backend::Legacy)),
            "{backends:?}"
        );
        assert!(
            !backends.contains(&(Family::V6, Backend::Nft)),
            "{backends:?}"
        );
    }
}

/// The evidence of a node with these processes.
fn running(processes: &Value) -> Evidence {
    let mut evidence = Evidence::default();
    let text = json!({ "processes": processes }).to_string();
    evidence.insert(Item::Processes, Ok(text));
    evidence
}

#[test]
fn a_node_with_another_service_proxy_is_refused() {
    let process = |name: &str, args: &[&str]| json!({"pid": 7, "name": name, "args": args});
    let proxy = process("kube-proxy", &[]);
    let mut elsewhere = process("kpng", &[]);
    elsewhere["sameNetwork"] = json!(false);
    for (processes, owner) in [
        (json!([process("kpng", &[]), proxy]), Some("kpng")),
        (json!([elsewhere]), None),
        (
            json!([process("kube-router", &["kube-router", "--run-router"])]),
            Some("kube-router"),
        ),
        (
            json!([process(
                "kube-router",
                &["kube-router", "--run-service-proxy=false"]
            )]),
            None,
        ),
        (json!([process("cilium-agent", &[])]), Some("cilium-agent")),
        (json!([process("cilium-agent", &[]), proxy]), None),
        (json!([process("kubelet", &[])]), None),
    ] {
        let evidence = running(&processes);
        let refused = plan::refuse_other(&NodeSnapshot::new(&evidence));
        let refused = refused.err().map(|why| why.to_string());
        let want = owner.map(|name| {
            format!(
                "{name} (pid 7) serves this node's Services: rules written by kpx would conflict with its own"
            )
        });
        assert_eq!(refused, want, "{processes}");
    }
}

#[test]
fn a_note_tells_whether_kube_proxy_keeps_the_rules() {
    let mut evidence = running(&json!([{"pid": 7, "name": "kube-proxy"}]));
    evidence.insert(Item::ProxyMode, Ok("iptables".to_owned()));
    let node = NodeSnapshot::new(&evidence);
    for (mode, note) in [
        (
            Mode::Iptables,
            "kube-proxy runs (pid 7) in mode iptables: it fixes drift when it next syncs a Service, ",
        ),
        (
            Mode::Ipvs,
            "kube-proxy runs (pid 7) in mode iptables, so nothing updates the rules of mode ipvs ",
        ),
    ] {
        let found = plan::running(&node, mode);
        assert!(found.starts_with(note), "{found}");
    }
}

#[test]
fn a_kube_proxy_hangs_if_it_is_stopped_or_does_not_answer_or_is_outdated() {
    let late = || Gap::Late(Item::Healthz, "no answer within 1s".to_owned());
    let refused = || Gap::Unreachable(Item::Healthz, "connection refused".to_owned());
    let outdated = "it reports that its rules are not up to date";
    let health = |text: Value| Ok(text.to_string());
    for (state, health, why) in [
        ("T", Err(refused()), Some("it is stopped (state T)")),
        (
            "S",
            Err(late()),
            Some("it does not answer: no answer within 1s"),
        ),
        ("S", Err(refused()), None),
        ("S", health(json!({"healthy": true})), None),
        ("S", health(json!({"healthy": false})), Some(outdated)),
        (
            "S",
            health(json!({"status": {"IPv4": {"healthy": true}}})),
            None,
        ),
        (
            "S",
            health(json!({"status": {"IPv4": {"healthy": true}, "IPv6": {"healthy": false}}})),
            Some(outdated),
        ),
    ] {
        let mut evidence = running(&json!([{"pid": 7, "name": "kube-proxy", "state": state}]));
        let case = format!("{state} {health:?}");
        evidence.insert(Item::Healthz, health);
        let node = NodeSnapshot::new(&evidence);
        let process = plan::kube_proxy(&node).unwrap().unwrap();
        assert_eq!(plan::hangs(&node, process).as_deref(), why, "{case}");
    }
}
