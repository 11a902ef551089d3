//! The migration of one node of a cluster while kube-proxy rewrites rules: the name of the Node, repeated plans, and early
//! rollbacks.

use std::fs;

use kpx_judge::bridge::Lease;
use kpx_migrate::journal::MigrationState;
use kpx_migrate::migration::{Stage, there};
use kpx_migrate::stage;
use kpx_node::action::LinkCommand;
use kpx_node::evidence::{ITEMS, load};
use kpx_node::node::NodeSnapshot;
use kpx_node::node::identity::{Clue, Identity};
use serde_json::{Value, json};

use super::machine::CONFIG;
use super::*;
use crate::fake_api::Api;
use crate::support::{kpx, kpx_on, root, without};

const STRATEGIES: [Strategy; 3] = Strategy::ALL;

/// The recorded cluster `name` with two more Nodes, and kube-proxy from its DaemonSet, as kubeadm deploys it.
fn three(name: &str) -> Evidence {
    let mut evidence = load(&root().join("testdata/nodes").join(name), ITEMS).unwrap();
    let mut nodes: Value = serde_json::from_str(evidence.text(Item::Nodes).unwrap()).unwrap();
    let all = nodes["items"].as_array_mut().unwrap();
    all.truncate(1);
    for number in [2, 3] {
        let mut node = all[0].clone();
        let called = format!("node{number}");
        node["metadata"]["name"] = json!(called);
        node["metadata"]["labels"]["kubernetes.io/hostname"] = json!(called);
        node["status"]["addresses"] =
            json!([{"type": "InternalIP", "address": format!("10.0.2.{}", 14 + number)}]);
        all.push(node);
    }
    evidence.insert(Item::Nodes, Ok(nodes.to_string()));
    let config = evidence.text(Item::ProxyConfig).unwrap();
    let named = "hostnameOverride: node1\n";
    assert!(config.contains(named), "{config}");
    let config = config.replace(named, "hostnameOverride: \"\"\n");
    evidence.insert(Item::ProxyConfig, Ok(config));
    evidence.insert(Item::Modules, Ok(String::new()));
    evidence.insert(Item::ModulesBuiltin, Ok(String::new()));
    evidence.insert(Item::ModulesDep, Ok(String::new()));
    evidence.insert(Item::Processes, Ok("{\"processes\": []}".to_owned()));
    evidence.insert(Item::Routes, Ok("[]".to_owned()));
    evidence
}

#[test]
#[ignore = "takes long: make test-loops"]
fn each_stage_is_planned_from_its_needs_only() {
    for (from, name) in [
        (Mode::Iptables, "full-iptables"),
        (Mode::Ipvs, "full-ipvs"),
        (Mode::Nftables, "full-nftables"),
        (Mode::Userspace, "userspace-1.25"),
    ] {
        let evidence = three(name);
        let found = Identity::Known {
            name: "node1".to_owned(),
            by: Clue::Address,
        };
        assert_eq!(NodeSnapshot::new(&evidence).identity(), found);
        let name = "node1";
        let lease = Lease::of(Duration::from_secs(60));
        for (to, strategy) in Mode::ALL
            .into_iter()
            .filter(|to| *to != from)
            .flat_map(|to| STRATEGIES.map(|strategy| (to, strategy)))
        {
            let mut migration = migration(from, to, strategy);
            migration.evict = Consent {
                bare: true,
                empty_dir: true,
            };
            let state = MigrationState::new(migration);
            for stage in there(from, to, strategy) {
                let known = evidence.only(&stage::needs(&state, stage));
                let planned = stage::plan(&state, stage, &known, name, &[], &lease);
                // The mode in use is not removed before kube-proxy runs in another.
                let serves = matches!(planned, Err(stage::Unplanned::Refused(_)));
                assert!(
                    planned.is_ok() || serves,
                    "{from} to {to} {strategy}: {stage:?}: {planned:?}"
                );
                if matches!(stage, Stage::Configure | Stage::Restart) {
                    assert!(
                        !planned.unwrap().steps.is_empty(),
                        "{from} to {to}: {stage:?}"
                    );
                }
            }
        }
    }
}

#[test]
fn modules_are_loaded_before_settings_are_changed() {
    let mut evidence = three("full-iptables");
    let dep = "kernel/net/netfilter/ipvs/ip_vs.ko:\n";
    evidence.insert(Item::ModulesDep, Ok(dep.to_owned()));
    let mut migration = migration(Mode::Iptables, Mode::Ipvs, Strategy::InPlace);
    migration.modules = vec!["ip_vs".to_owned()];
    let state = MigrationState::new(migration);
    let lease = Lease::of(Duration::from_secs(60));
    let plan = stage::plan(&state, Stage::Prepare, &evidence, "node1", &[], &lease).unwrap();
    let actions: Vec<_> = plan.steps.iter().map(|step| &step.action).collect();
    let [Action::LoadModules { .. }, rest @ ..] = actions.as_slice() else {
        panic!("{actions:?}");
    };
    let are_settings = rest
        .iter()
        .all(|action| matches!(action, Action::Sysctl { .. }));
    assert!(are_settings && !rest.is_empty(), "{rest:?}");
    // Settings of IPVS need its module, which is loaded once.
    let absent = Gap::Absent(Item::Ipvs, "ip_vs is not loaded".to_owned());
    evidence.insert(Item::Ipvs, Err(absent));
    let loads = |state: &MigrationState, evidence: &Evidence| {
        let plan = stage::plan(state, Stage::Prepare, evidence, "node1", &[], &lease);
        let steps = plan.unwrap().steps.into_iter();
        let loads = steps.filter(|step| matches!(step.action, Action::LoadModules { .. }));
        loads.map(|step| step.title).collect::<Vec<_>>()
    };
    assert_eq!(loads(&state, &evidence), ["load 1 module for mode ipvs"]);
    let mut state = state;
    state.migration.modules.clear();
    for item in [Item::Modules, Item::ModulesBuiltin, Item::ModulesDep] {
        evidence.insert(item, Err(Gap::NotCollected(item)));
    }
    let title = "load the modules ip_vs and ip_vs_rr";
    assert_eq!(loads(&state, &evidence), [title]);
}

#[test]
fn the_rules_of_the_mode_that_runs_are_left_to_kube_proxy() {
    let mut evidence = three("full-iptables");
    let rules = evidence.text(Item::Iptables4).unwrap();
    let rules = without(rules, "-A KUBE-SERVICES -d 10.96.0.1/32");
    evidence.insert(Item::Iptables4, Ok(rules));
    let lease = Lease::of(Duration::from_secs(60));
    let state = MigrationState::new(migration(Mode::Nftables, Mode::Iptables, Strategy::InPlace));
    for (mode, steps) in [(Mode::Iptables, false), (Mode::Nftables, true)] {
        evidence.insert(Item::ProxyMode, Ok(mode.name().to_owned()));
        let plan = stage::plan(&state, Stage::Build, &evidence, "node1", &[], &lease).unwrap();
        assert_eq!(!plan.steps.is_empty(), steps, "{mode}");
    }
}

#[test]
fn addresses_of_services_are_added_where_packets_of_hosts_from_them_are_masqueraded() {
    let lease = Lease::of(Duration::from_secs(60));
    for (name, from, to, adds, notes) in [
        ("full-iptables", Mode::Iptables, Mode::Ipvs, false, true),
        ("seed-iptables", Mode::Iptables, Mode::Ipvs, true, false),
        (
            "full-iptables",
            Mode::Iptables,
            Mode::Nftables,
            false,
            false,
        ),
        ("full-nftables", Mode::Nftables, Mode::Ipvs, true, false),
    ] {
        let state = MigrationState::new(migration(from, to, Strategy::InPlace));
        let evidence = three(name);
        let plan = stage::plan(&state, Stage::Build, &evidence, "node1", &[], &lease).unwrap();
        let added = plan.steps.iter().any(|step| {
            let Action::Link { commands } = &step.action else {
                return false;
            };
            let mut commands = commands.iter();
            commands.any(|command| matches!(command, LinkCommand::AddAddress { .. }))
        });
        let note = "kube-proxy adds the addresses of kube-ipvs0 itself: ";
        let noted = plan.notes.iter().any(|text| text.starts_with(note));
        assert_eq!((added, noted), (adds, notes), "{name} to {to}");
    }
}

#[test]
fn rules_are_not_built_where_a_part_of_the_node_is_unknown() {
    let mut evidence = three("full-iptables");
    let state = MigrationState::new(migration(Mode::Iptables, Mode::Nftables, Strategy::InPlace));
    let lease = Lease::of(Duration::from_secs(60));
    let plan =
        |evidence: &Evidence| stage::plan(&state, Stage::Build, evidence, "node1", &[], &lease);
    assert!(plan(&evidence).is_ok());
    let denied = Gap::Denied(Item::Nft, "run kpx as root".to_owned());
    for item in [Item::Nft, Item::NftText] {
        evidence.insert(item, Err(denied.clone()));
    }
    let refused = plan(&evidence).map(|plan| plan.steps.len());
    assert_eq!(refused.unwrap_err().to_string(), denied.to_string());
}

#[test]
#[ignore = "takes long: make test-loops"]
fn among_three_nodes_the_node_is_found_without_its_name() {
    for (from, to) in directions() {
        let mut place = bound(from, to);
        assert_eq!(journal::read(&place.journal).unwrap().migration.node, None);
        let before = place.machine.clone();
        assert_eq!(place.go_on(false), Some(Ended::Migrated), "{from} to {to}");
        let ended = place.go_on(true);
        assert!(matches!(ended, Some(Ended::RolledBack(_))), "{ended:?}");
        is_back(&place, &before, from);
    }
}

#[test]
fn without_the_name_of_the_node_nothing_begins() {
    let mut place = bound(Mode::Iptables, Mode::Nftables);
    place.machine.lose_identity();
    let before = place.machine.kernel.clone();
    let Some(Ended::Stopped(why)) = place.go_on(false) else {
        panic!();
    };
    assert!(why.contains("no Node has its address"), "{why}");
    assert_eq!(place.machine.kernel, before);
    assert_eq!(place.journal.lines().count(), 1);
    // With its name in the journal, no evidence is needed.
    let mut named = migration(Mode::Iptables, Mode::Nftables, Strategy::Bridge);
    named.node = Some("node1".to_owned());
    let mut machine = Machine::new(SMALL, Mode::Iptables);
    machine.lose_identity();
    let mut place = Place::new(machine, &named);
    assert_eq!(place.go_on(false), Some(Ended::Migrated));
}

#[test]
#[ignore = "takes long: make test-loops"]
fn rules_that_kube_proxy_rewrites_meanwhile_are_planned_again() {
    rewritten_rules_are_planned_again(CIRCLE);
}

pub(crate) fn rewritten_rules_are_planned_again(
    directions: impl IntoIterator<Item = (Mode, Mode)>,
) {
    for (from, to) in directions {
        let machine = bound(from, to);
        let mut retried = 0;
        for life in [8, 12, 16, 20, 24, 28] {
            let mut place = machine.clone();
            place.life = Some(life);
            place.go_on(false);
            place.life = None;
            // It is rolled back while kube-proxy starts.
            place.machine.restless = 3;
            let before = place.journal.lines().count();
            let ended = place.go_on(true);
            assert!(
                matches!(ended, Some(Ended::RolledBack(_))),
                "{from} to {to}, killed at {life}: {ended:?}"
            );
            assert_eq!(place.machine.proxy.mode, from);
            assert_eq!(place.machine.files, machine.machine.files);
            assert_eq!(place.machine.faults(from), Vec::<String>::new());
            retried += place.again;
            assert!(place.journal.lines().count() > before);
        }
        let mut place = machine.clone();
        place.machine.restless = 4;
        assert_eq!(place.go_on(false), Some(Ended::Migrated), "{from} to {to}");
        assert_eq!(place.machine.faults(to), Vec::<String>::new());
        retried += place.again;
        // nftables tables are replaced as a whole, so they cannot change meanwhile.
        let writes = from != Mode::Nftables && to != Mode::Nftables;
        assert!(retried > 0 || !writes, "{from} to {to}");
    }
}

#[test]
fn a_step_that_always_fails_is_retried_five_times() {
    let mut place = bound(Mode::Iptables, Mode::Ipvs);
    let before = place.machine.clone();
    place.refused = Some("ip addr add");
    let Some(Ended::RolledBack(why)) = place.go_on(false) else {
        panic!();
    };
    assert!(why.ends_with(": because"), "{why}");
    assert_eq!(place.again, 5);
    assert!(place.clock < 10, "{}", place.clock);
    is_back(&place, &before, Mode::Iptables);
}

#[test]
fn a_crash_loop_rolls_back_at_once_and_its_last_log_line_is_reported() {
    for (from, to) in directions() {
        let mut place = bound(from, to);
        let before = place.machine.clone();
        place.machine.in_pod = true;
        place.machine.proxy.broken = vec![to];
        place.limits.confirm = Duration::from_secs(300);
        let Some(Ended::RolledBack(why)) = place.go_on(false) else {
            panic!("{from} to {to}");
        };
        for words in [
            "crash loop: container kube-proxy ended with exit status 1",
            "its log ends: E1 \"Error running ProxyServer\" err=\"no such bit\"",
        ] {
            assert!(why.contains(words), "{why}");
        }
        assert!(place.clock < 30, "{from} to {to}: {} s", place.clock);
        place.machine.proxy.broken.clear();
        place.machine.in_pod = false;
        is_back(&place, &before, from);
    }
}

#[test]
fn a_rollback_waits_for_a_kube_proxy_in_a_crash_loop() {
    let mut place = bound(Mode::Iptables, Mode::Ipvs);
    place.machine.in_pod = true;
    place.machine.proxy.broken = vec![Mode::Ipvs, Mode::Iptables];
    let Some(Ended::Stopped(why)) = place.go_on(false) else {
        panic!();
    };
    let waited = "timed out after 30 s: running: crash loop: ";
    assert!(why.starts_with(waited), "{why}");
    // It starts after all.
    place.machine.proxy.broken.clear();
    place.machine.in_pod = false;
    assert!(matches!(place.go_on(false), Some(Ended::RolledBack(_))));
}

/// Returns the configuration of `place` with the mode left empty, which means iptables.
fn with_empty_mode(place: &mut Place) -> String {
    let text = place
        .machine
        .files
        .get_mut(std::path::Path::new(CONFIG))
        .unwrap();
    let line = text.lines().find(|line| line.starts_with("mode:")).unwrap();
    *text = text.replacen(&line.to_owned(), "mode: \"\"", 1);
    text.clone()
}

#[test]
fn the_exact_configuration_is_restored_and_other_changes_stay() {
    let path = std::path::Path::new(CONFIG);
    for to in [Mode::Ipvs, Mode::Nftables] {
        let mut place = bound(Mode::Iptables, to);
        let text = with_empty_mode(&mut place);
        assert_eq!(place.go_on(false), Some(Ended::Migrated));
        let mut edited = place.clone();
        assert!(matches!(place.go_on(true), Some(Ended::RolledBack(_))));
        assert_eq!(place.machine.files[path], text);
        // The configuration was also changed externally.
        edited
            .machine
            .files
            .get_mut(path)
            .unwrap()
            .push_str("# by hand\n");
        assert!(matches!(edited.go_on(true), Some(Ended::RolledBack(_))));
        assert_eq!(edited.machine.files[path], format!("{text}# by hand\n"));
        let notes = journal::read(&edited.journal).unwrap().notes.join("\n");
        assert!(
            notes.contains("was changed after kpx wrote it: only the mode is restored"),
            "{notes}"
        );
    }
}

#[tokio::test]
#[ignore = "takes long: make test-loops"]
async fn a_configuration_that_kube_proxy_rejects_is_refused_first() {
    let dir = tempfile::tempdir().unwrap();
    let bundle = dir.path().join("bundle");
    copy(&root().join("testdata/nodes/full-iptables"), &bundle);
    let config = bundle.join("kube-proxy/config.conf");
    let text = fs::read_to_string(&config).unwrap();
    assert!(!text.contains("nftables:"), "{text}");
    fs::write(&config, format!("{text}nftables:\n  masqueradeBit: 99\n")).unwrap();
    let bundle = bundle.to_str().unwrap();
    let ran = kpx(&["--from", bundle, "migrate", "--to", "nftables", "--dry-run"]).await;
    assert_eq!(ran.code, 4, "{ran}");
    assert!(
        ran.err.contains(
            "nftables.masqueradeBit: kube-proxy refuses 99: it must be a number from 0 to 31"
        ),
        "{ran}"
    );
    let ran = kpx(&["--from", bundle, "preflight", "--to", "nftables"]).await;
    assert!(
        ran.code == 1 && ran.out.contains("nftables.masqueradeBit"),
        "{ran}"
    );
    // The other mode does not read that section.
    let ran = kpx(&[
        "--from",
        bundle,
        "migrate",
        "--to",
        "ipvs",
        "--dry-run",
        "--brief",
    ])
    .await;
    assert!(!ran.err.contains("masqueradeBit"), "{ran}");
}

fn copy(from: &std::path::Path, to: &std::path::Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap().map(Result::unwrap) {
        let target = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            copy(&entry.path(), &target);
        } else {
            fs::copy(entry.path(), target).unwrap();
        }
    }
}

#[tokio::test]
#[ignore = "takes long: make test-loops"]
async fn the_dry_run_counts_what_is_removed_of_the_old_mode() {
    for (name, to, words) in [
        (
            "full-iptables",
            "nftables",
            &[
                "removes ",
                " chains, ",
                " rules of other chains",
                "sets net.ipv4.conf.all.route_localnet = 0",
            ][..],
        ),
        (
            "full-ipvs",
            "iptables",
            &["IP sets, ", " virtual servers, ", " addresses, 1 link"],
        ),
        ("full-nftables", "iptables", &["removes 2 nftables tables"]),
        (
            "userspace-1.25",
            "iptables",
            &["removes 5 chains, 5 rules of other chains that jump there"],
        ),
    ] {
        let ran = kpx_on(name, &["migrate", "--to", to, "--dry-run"]).await;
        let part = ran.out.split("remove the previous mode's leftovers").nth(1);
        let part = part.unwrap().split("check the result").next().unwrap();
        let part = part.split_whitespace().collect::<Vec<_>>().join(" ");
        for word in words {
            let word = word.split_whitespace().collect::<Vec<_>>().join(" ");
            assert!(part.contains(&word), "{name}: {word}: {part}");
        }
    }
}

/// A machine whose Node is `w2`, in a cluster of three.
struct RemoteCluster {
    _api: Api,
    dir: tempfile::TempDir,
}

impl RemoteCluster {
    fn new() -> Self {
        let api = Api::new();
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("kubeconfig"), api.kubeconfig()).unwrap();
        for folder in ["etc", "run", "proc"] {
            fs::create_dir(dir.path().join(folder)).unwrap();
        }
        fs::write(dir.path().join("etc/machine-id"), "ee02\n").unwrap();
        fs::write(dir.path().join("etc/hostname"), "w2\n").unwrap();
        api.with(|cluster| {
            for number in 1..=3 {
                cluster.put(json!({
                    "kind": "Node", "apiVersion": "v1",
                    "metadata": {"name": format!("w{number}")}, "spec": {},
                    "status": {
                        "addresses": [{"type": "InternalIP", "address": format!("2001:db8:7777::{number}")}],
                        "nodeInfo": {"machineID": format!("ee0{number}")},
                    },
                }));
            }
        });
        Self { _api: api, dir }
    }

    async fn kpx(&self, args: &[&str]) -> crate::support::Ran {
        let kubeconfig = self.dir.path().join("kubeconfig");
        let mut all = vec![
            "--root",
            self.dir.path().to_str().unwrap(),
            "--kubeconfig",
            kubeconfig.to_str().unwrap(),
        ];
        all.extend(args);
        kpx(&all).await
    }
}

#[tokio::test]
async fn a_command_in_the_name_of_another_node_is_refused() {
    let far = RemoteCluster::new();
    for command in [
        &["doctor"][..],
        &["show", "services"],
        &["diff"],
        &["trace", "10.96.0.1:443"],
        &["reconcile", "--apply", "--yes"],
        &["reconcile", "--cleanup", "ipvs"],
        &["bridge", "up"],
        &["migrate", "--to", "ipvs", "--this-node", "--yes"],
        &["migrate", "prepare", "--to", "ipvs", "--yes"],
        &["migrate", "finish"],
        &["migrate", "resume"],
        &["migrate", "rollback", "--this-node"],
    ] {
        let args = [command, &["--node", "w1"]].concat();
        let ran = far.kpx(&args).await;
        assert_eq!(ran.code, 4, "{args:?}: {ran}");
        assert!(
            ran.err.starts_with("kpx: this machine is not node w1: "),
            "{args:?}: {ran}"
        );
        assert!(ran.err.contains("its machine ID is ee01"), "{ran}");
        let args = [command, &["--node", "w2"]].concat();
        let ran = far.kpx(&args).await;
        assert!(!ran.err.contains("is not node"), "{args:?}: {ran}");
    }
}

#[tokio::test]
async fn the_name_of_the_node_is_found_or_required_first() {
    let far = RemoteCluster::new();
    // The name of the Node was found: the only error is that kube-proxy does not run.
    let ran = far.kpx(&["migrate", "--to", "ipvs", "--dry-run"]).await;
    assert_eq!(ran.code, 4, "{ran}");
    assert!(!ran.err.contains("which Node"), "{ran}");
    fs::remove_file(far.dir.path().join("etc/machine-id")).unwrap();
    fs::write(far.dir.path().join("etc/hostname"), "laptop\n").unwrap();
    let ran = far.kpx(&["migrate", "--to", "ipvs", "--dry-run"]).await;
    assert_eq!(ran.code, 4, "{ran}");
    assert!(
        ran.err
            .contains("no Node has its address, IDs or host name"),
        "{ran}"
    );
    assert!(ran.err.contains("--node NAME --this-node"), "{ran}");
}

/// Without a journal, only the cluster knows whether a migration has begun: a node of which it does not answer is left alone.
#[tokio::test]
async fn without_a_journal_and_the_cluster_nothing_is_touched() {
    let far = RemoteCluster::new();
    let kubeconfig = far.dir.path().join("dead");
    let dead = "apiVersion: v1\nkind: Config\ncurrent-context: c\ncontexts: [{name: c, context: {cluster: c, user: u}}]\n\
                clusters: [{name: c, cluster: {server: 'http://127.0.0.1:1'}}]\nusers: [{name: u, user: {token: t}}]\n";
    fs::write(&kubeconfig, dead).unwrap();
    let root = far.dir.path().to_str().unwrap();
    let options = [
        "--root",
        root,
        "--kubeconfig",
        kubeconfig.to_str().unwrap(),
        "--timeout",
        "1s",
    ];
    for part in ["rollback", "finish", "resume"] {
        let args = [&options[..], &["migrate", part, "--again", "--yes"]].concat();
        let ran = kpx(&args).await;
        assert_eq!(ran.code, 4, "{part}: {ran}");
        let text = ran.err.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(text.contains("nothing was changed"), "{part}: {ran}");
        assert!(
            text.contains("no journal of its migration"),
            "{part}: {ran}"
        );
    }
    assert!(!far.dir.path().join("var/lib/kpx/migrate").exists());
}

#[test]
#[ignore = "takes long: make test-loops"]
fn in_a_rollback_the_configuration_may_be_restored_externally() {
    for (from, to) in directions() {
        let mut place = bound(from, to);
        let before = place.machine.clone();
        assert_eq!(place.go_on(false), Some(Ended::Migrated), "{from} to {to}");
        let there = place.machine.files.clone();
        let mut state = journal::read(&place.journal).unwrap();
        let limits = place.limits;
        let mut on_event = |_: Event<'_>| {};
        let mut engine = Engine {
            node: &mut place,
            limits,
            on_event: &mut on_event,
        };
        let ended = async {
            engine.roll_back(&mut state, true).await.unwrap();
            Box::pin(engine.run(&mut state)).await
        };
        assert_eq!(
            ended.now_or_never(),
            Some(Ended::Prepared),
            "{from} to {to}"
        );
        // kube-proxy still runs in the new mode, and the rules of the old mode are built beside it.
        assert_eq!(place.machine.files, there);
        assert_eq!(place.machine.proxy.mode, to);
        assert_eq!(
            journal::read(&place.journal).unwrap().next(),
            Some(Stage::Configure)
        );
        // After the external restart, `kpx migrate finish` continues.
        place.machine.files.clone_from(&before.files);
        place.machine.restart();
        place.limits.configured = true;
        let ended = place.go_on(false);
        assert!(
            matches!(ended, Some(Ended::RolledBack(_))),
            "{from} to {to}: {ended:?}"
        );
        is_back(&place, &before, from);
    }
}
