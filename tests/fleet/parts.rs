//! The parts of a fleet's migration that need no cluster: its Lease, its tasks, the order of nodes, and the status of pods.

use kpx_migrate::fleet::lease::{self, Claim};
use kpx_migrate::fleet::order::choose;
use kpx_migrate::fleet::pod::{self, Finished, Job, Phase};
use kpx_migrate::fleet::staged::{self, Copies};
use kpx_migrate::fleet::state::{Fleet, NodeState, Part};
use kpx_migrate::fleet::task::Task;
use kpx_migrate::migration::Leg;
use kpx_node::action::{KubeCommand, waits_for_copy};
use kpx_node::cluster::{Node, Pod};
use kpx_node::evidence::Time;
use serde_json::{Value, json};

use super::verifies;

#[test]
fn a_lease_belongs_to_its_holder_until_it_is_long_expired() {
    let now: Time = "2026-01-01T01:00:00Z".parse().unwrap();
    let lease = |holder: Value, renewed: &str| json!({"spec": {"holderIdentity": holder, "renewTime": renewed}});
    let claim = |lease: Value| lease::claim(Some(&lease), "me", now);
    assert_eq!(lease::claim(None, "me", now), Claim::Missing);
    // Clocks differ: ten minutes are twenty times the duration of the Lease.
    let (held, old) = ("2026-01-01T00:50:00.000000Z", "2026-01-01T00:49:59.000000Z");
    let theirs = |renewed: &str| Claim::Theirs {
        holder: "other".to_owned(),
        renewed: renewed.to_owned(),
    };
    assert_eq!(claim(lease(json!("other"), held)), theirs(held));
    let ahead = "2026-01-01T09:00:00.000000Z";
    assert_eq!(claim(lease(json!("other"), ahead)), theirs(ahead));
    assert_eq!(claim(lease(json!("other"), old)), Claim::Free);
    assert_eq!(claim(lease(json!("other"), "soon")), Claim::Free);
    assert_eq!(claim(lease(Value::Null, held)), Claim::Free);
    assert_eq!(claim(lease(json!("me"), old)), Claim::Ours);
}

#[test]
fn a_lease_is_created_taken_and_released() {
    let now: Time = "2026-01-01T01:00:00Z".parse().unwrap();
    let KubeCommand::Create { object, body } = lease::create("me", now) else {
        panic!();
    };
    assert_eq!(object.to_string(), "Lease kube-system/kpx-migrate");
    let renewed = "2026-01-01T01:00:00.000000Z";
    assert_eq!(
        body["spec"],
        json!({
            "holderIdentity": "me", "leaseDurationSeconds": 30, "acquireTime": renewed, "renewTime": renewed,
        })
    );
    let fields = |command| match command {
        KubeCommand::Set { fields, .. } => fields
            .into_iter()
            .map(|field| (field.path.join("."), field.from, field.to))
            .collect::<Vec<_>>(),
        other => panic!("{other:?}"),
    };
    let old = json!({"spec": {"holderIdentity": "other", "renewTime": null}});
    let (holder, renew) = (
        "spec.holderIdentity".to_owned(),
        "spec.renewTime".to_owned(),
    );
    assert_eq!(
        fields(lease::take(&old, "me", now)),
        [
            (holder.clone(), Some(json!("other")), Some(json!("me"))),
            (renew.clone(), None, Some(json!(renewed))),
        ]
    );
    assert_eq!(
        fields(lease::release(&body)),
        [
            (holder, Some(json!("me")), None),
            (renew, Some(json!(renewed)), None),
        ]
    );
}

fn node(name: &str, labels: &Value, condition: &Value) -> Node {
    serde_json::from_value(json!({
        "metadata": {"name": name, "labels": labels}, "status": {"conditions": [condition]},
    }))
    .unwrap()
}

fn proxies(nodes: &[Node]) -> Vec<Pod> {
    let pods = nodes
        .iter()
        .map(|node| json!({"spec": {"nodeName": node.metadata.name}}));
    pods.map(|pod| serde_json::from_value(pod).unwrap())
        .collect()
}

#[test]
fn one_node_of_each_zone_migrates_in_turn() {
    let ready = json!({"type": "Ready", "status": "True"});
    let zone = |zone: &str| json!({"topology.kubernetes.io/zone": zone});
    let with = |label: &str, zone: &str| json!({label: "", "topology.kubernetes.io/zone": zone});
    let nodes = [
        node("z3", &zone("1"), &ready),
        node("z1", &zone("1"), &ready),
        node("y", &zone("2"), &ready),
        node("z2", &zone("1"), &ready),
        node("m", &with("node-role.kubernetes.io/master", "4"), &ready),
        node(
            "c",
            &with("node-role.kubernetes.io/control-plane", "4"),
            &ready,
        ),
        node(
            "e",
            &with(
                "node.kubernetes.io/exclude-from-external-load-balancers",
                "5",
            ),
            &ready,
        ),
        node(
            "l",
            &json!({"kubernetes.io/os": "linux", "topology.kubernetes.io/zone": "6"}),
            &ready,
        ),
        // It has no condition Ready.
        node(
            "w",
            &zone("3"),
            &json!({"type": "DiskPressure", "status": "False"}),
        ),
        node("x", &json!({"kubernetes.io/os": "windows"}), &ready),
    ];
    let pods = proxies(&nodes[..9]);
    assert_eq!(
        choose(&nodes, &pods, None).unwrap(),
        ["e", "z1", "y", "w", "l", "z2", "z3", "c", "m"]
    );
    let why = |condition: Value| {
        let nodes = [node("a", &json!({}), &condition)];
        choose(&nodes, &proxies(&nodes), None)
            .unwrap_err()
            .to_string()
    };
    assert_eq!(
        why(json!({"type": "Ready", "status": "False", "message": "no CNI plugin"})),
        "node a is not ready: no CNI plugin"
    );
    assert_eq!(
        why(json!({"type": "Ready", "status": "Unknown"})),
        "node a is not ready: its condition Ready is Unknown"
    );
}

/// Returns the start of a migration of two nodes.
fn fleet(staged: bool, whole: bool) -> Fleet {
    let fields = |mode| json!({"mode": mode, "scheduler": null, "strictArp": null});
    let state = json!({
        "plan": {
            "id": "x", "began": "2026-01-01T00:00:00Z", "from": "ipvs", "there": fields("iptables"),
            "back": fields("ipvs"), "nodes": ["a", "b"], "whole": whole, "staged": staged,
            "serviceAccount": "kpx", "soak": 1, "ready": 1, "timeouts": {"confirm": 1, "drain": 1}, "limit": 60,
        },
        "leg": "there", "done": 0, "reached": 0, "ended": false,
    });
    Fleet::parse(&state.to_string()).unwrap()
}

/// Returns the tasks of `fleet`, each with its node.
fn tasks(fleet: &Fleet) -> Vec<String> {
    let tasks = fleet.tasks().into_iter();
    let words = tasks.map(|task| {
        let name = format!("{task:?}");
        let name = name.split('(').next().unwrap().to_lowercase();
        task.node()
            .map_or_else(|| name.clone(), |node| format!("{name} {node}"))
    });
    words.collect()
}

#[test]
fn the_configuration_changes_after_the_first_node_is_prepared_or_at_the_end() {
    let nodes = [
        "move a",
        "check a",
        "finish a",
        "soak a",
        "prepare b",
        "move b",
        "check b",
        "finish b",
        "soak b",
    ];
    for whole in [false, true] {
        assert_eq!(
            tasks(&fleet(false, whole)),
            [&["prepare a", "configure"], &nodes[..]].concat()
        );
    }
    let copied = [&["copy", "prepare a"], &nodes[..]].concat();
    assert_eq!(tasks(&fleet(true, false)), copied);
    let merged = [
        "configure",
        "return a",
        "check a",
        "return b",
        "check b",
        "merge",
    ];
    assert_eq!(
        tasks(&fleet(true, true)),
        [&copied[..], &merged[..]].concat()
    );
}

#[test]
fn a_rollback_returns_the_nodes_that_began_the_last_one_first() {
    for (staged, reached, back) in [
        (false, 1, &["revert a"][..]),
        (false, 2, &["unconfigure", "revert a"]),
        (false, 6, &["unconfigure", "revert a"]),
        (false, 7, &["unconfigure", "revert b", "revert a"]),
        (true, 1, &["merge"]),
        (true, 2, &["revert a", "merge"]),
        (true, 12, &["unconfigure", "revert b", "revert a", "merge"]),
    ] {
        let mut fleet = fleet(staged, true);
        fleet.reached = reached;
        fleet.turn("no ip_vs");
        assert_eq!(tasks(&fleet), back, "{staged} {reached}");
        assert_eq!((fleet.leg, fleet.done), (Leg::Back, 0));
        assert_eq!(fleet.why.as_deref(), Some("no ip_vs"));
    }
}

#[test]
fn the_state_of_a_fleet_adds_up() {
    let mut all = fleet(true, true);
    let prepare = Task::Prepare("b".to_owned());
    while all.next() != Some(prepare.clone()) {
        let last = all.done;
        all.begin();
        all.finish();
        assert_eq!(all.done, last + 1);
    }
    assert_eq!((all.done, all.reached), (6, 6));
    assert!(!all.began(&prepare) && all.began(&Task::Prepare("a".to_owned())));
    all.before = Some(vec!["old".to_owned()]);
    all.begin();
    assert!(all.began(&prepare) && all.returns_alone());
    all.give_back("b");
    assert_eq!(
        (all.before.clone(), all.returning.as_deref()),
        (None, Some("b"))
    );
    all.finish();
    all.given_back("b");
    assert_eq!((all.done, all.reached, all.returning.clone()), (6, 6, None));
    // A node that is resumed has reached as much as before.
    all.done = 2;
    all.begin();
    assert_eq!(all.reached, 6);
    // From the change of the configuration, none returns alone, and the others change when they restart.
    assert!(!all.is_armed());
    all.reached = 12;
    assert!(!all.returns_alone() && all.is_armed());
    all.nodes.insert("a".to_owned(), NodeState::Already);
    all.nodes.insert("b".to_owned(), NodeState::Prepared);
    assert_eq!((all.migrated(), all.is_armed()), (1, true));
    all.nodes.insert("b".to_owned(), NodeState::Migrated);
    assert_eq!((all.migrated(), all.is_armed()), (2, false));
    all.nodes.insert("b".to_owned(), NodeState::RolledBack);
    all.turn("requested");
    assert!(!all.is_armed() && !all.returns_alone());
    assert!(!fleet(false, true).returns_alone());
}

#[test]
fn the_time_of_a_node_is_that_of_its_tasks() {
    let mut all = fleet(true, true);
    let node = || "a".to_owned();
    for (task, seconds) in [
        (Task::Copy, 1),
        (Task::Prepare(node()), 2),
        (Task::Move(node()), 4),
        (Task::Check(node()), 8),
        (Task::Finish(node()), 16),
        (Task::Soak(node()), 32),
        (Task::Configure, 64),
        (Task::Return(node()), 128),
        (Task::Merge, 256),
        (Task::Revert(node()), 512),
        (Task::Unconfigure, 1024),
    ] {
        all.spend(&task, seconds);
    }
    let took = all.took["a"].iter();
    let took: Vec<_> = took
        .map(|(part, seconds)| (part.name(), *seconds))
        .collect();
    assert_eq!(
        took,
        [
            ("prepare", 2),
            ("restart", 132),
            ("verify", 24),
            ("watch", 32),
            ("rollback", 512)
        ]
    );
    assert_eq!(all.took.len(), 1);
    assert_eq!(Part::of(&Task::Merge), None);
    all.turn("requested");
    assert!(all.took.is_empty());
}

#[test]
fn the_command_of_a_job_is_that_of_an_operator() {
    let plan = fleet(false, true).plan;
    for (job, command) in [
        (
            Job::Finish,
            "kpx migrate finish --confirm-timeout 1s --drain-timeout 1s --yes",
        ),
        (
            Job::Rollback,
            "kpx migrate rollback --confirm-timeout 1s --drain-timeout 1s --yes",
        ),
        (
            Job::RollbackUntilRestart,
            "kpx migrate rollback --until-restart --confirm-timeout 1s --drain-timeout 1s --yes",
        ),
        (Job::Guard, "kpx bridge guard --await 60s --mode ipvs"),
    ] {
        assert_eq!(pod::command_line(&plan, job), command);
    }
}

/// A guard that exits with another status is restarted, and would wait for a copy again.
#[test]
fn a_pod_into_which_kpx_was_not_copied_ends_as_if_it_was_killed() {
    let mut plan = fleet(false, true).plan;
    plan.copies = true;
    for (job, status) in [(Job::Guard, 0), (Job::Prepare, 143)] {
        let KubeCommand::Create { body, .. } = pod::create(&plan, "proxy:1", "a", job) else {
            panic!();
        };
        let command = body["spec"]["containers"][0]["command"].as_array().unwrap();
        let waits = waits_for_copy(status);
        assert_eq!(command[..waits.len()], waits, "{body}");
    }
}

#[test]
fn the_status_of_a_pod_has_its_reasons() {
    let pod = |status: Value| json!({"metadata": {"uid": "u"}, "status": status});
    let container = |phase: &str, state: Value| {
        pod(json!({"phase": phase, "containerStatuses": [{"state": state}]}))
    };
    let waits = |of: &str| Phase::Waits(of.to_owned());
    let over = |code, why: &str| Phase::Over(code, why.to_owned());
    for (status, phase) in [
        (pod(json!({})), waits("Pending")),
        (pod(json!({"phase": "Unknown"})), waits("Unknown")),
        (
            container("Pending", json!({"waiting": {"reason": "ErrImagePull"}})),
            waits("ErrImagePull"),
        ),
        (
            container(
                "Pending",
                json!({"waiting": {"reason": "ErrImagePull", "message": "denied"}}),
            ),
            waits("ErrImagePull: denied"),
        ),
        (container("Running", json!({"running": {}})), Phase::Runs),
        (
            container("Succeeded", json!({"terminated": {"exitCode": 0}})),
            over(Some(0), ""),
        ),
        (
            container(
                "Failed",
                json!({"terminated": {"exitCode": 4, "reason": "Error"}}),
            ),
            over(Some(4), ""),
        ),
        (
            container(
                "Failed",
                json!({"terminated": {"exitCode": 137, "reason": "OOMKilled"}}),
            ),
            over(Some(137), "OOMKilled"),
        ),
        (
            pod(json!({"phase": "Failed", "reason": "Evicted", "message": "no memory"})),
            over(None, "Evicted: no memory"),
        ),
    ] {
        assert_eq!(pod::phase(&status), phase, "{status}");
        assert_eq!(pod::uid(&status), "u");
    }
    let waiting = |reason: &str| container("Pending", json!({"waiting": {"reason": reason}}));
    for (reason, hopeless, pulled) in [
        ("InvalidImageName", true, true),
        ("ErrImagePull", false, false),
        ("ImagePullBackOff", false, false),
        ("ContainerCreating", false, true),
    ] {
        let pod = waiting(reason);
        assert_eq!(pod::is_hopeless(&pod), hopeless, "{reason}");
        assert_eq!(pod::not_pulled(&pod).is_none(), pulled, "{reason}");
    }
}

#[test]
fn a_pod_is_lost_only_if_it_was_ended_from_outside_before_its_job_was_done() {
    let over = |code: Option<i64>, reason: &str, container: &str, deleted: bool| {
        json!({
            "metadata": {"deletionTimestamp": deleted.then_some("2026-01-01T00:00:00Z")},
            "status": {
                "phase": "Failed", "reason": reason,
                "containerStatuses": [{"state": {"terminated": {"exitCode": code, "reason": container}}}],
            },
        })
    };
    for (pod, lost) in [
        (over(Some(4), "", "Error", false), None),
        (over(Some(4), "DeadlineExceeded", "Error", false), None),
        (
            over(Some(4), "Evicted", "", false),
            Some("Evicted; exit status 4"),
        ),
        (over(None, "NodeLost", "", false), Some("NodeLost")),
        (
            over(Some(1), "", "OOMKilled", false),
            Some("OOMKilled; exit status 1"),
        ),
        (over(Some(137), "", "", false), Some("exit status 137")),
        (over(Some(143), "", "", false), Some("exit status 143")),
        (over(None, "", "", true), Some("it was deleted")),
        // Its job is done.
        (over(Some(0), "", "", true), None),
        (
            json!({"status": {"phase": "Running", "reason": "Evicted"}}),
            None,
        ),
    ] {
        assert_eq!(pod::lost(&pod, "").as_deref(), lost, "{pod}");
    }
    let reverted = super::report(super::Outcome::Reverted, |_| {});
    let stopped = super::report(super::Outcome::Stopped, |_| {});
    let evicted = over(Some(4), "Evicted", "", false);
    assert_eq!(pod::lost(&evicted, &reverted), None);
    assert!(pod::lost(&evicted, &stopped).is_some());
}

#[test]
fn an_error_repeats_the_last_lines_for_people() {
    let ended = |log: &str| {
        let finished = Finished {
            code: Some(4),
            reason: "OOMKilled".to_owned(),
            log: log.to_owned(),
        };
        pod::ended(&finished)
    };
    let failed = |why: &str| pod::Ended::Failed(why.to_owned());
    let log = format!("a\nb\n\n{}  c\nd\n{}e\nf\n", verifies(), verifies());
    assert_eq!(ended(&log), failed("exit status 4; OOMKilled; b c d e f"));
    assert_eq!(ended(&verifies()), failed("exit status 4; OOMKilled"));
}

#[test]
fn a_copy_has_all_that_the_original_has() {
    let map = json!({
        "metadata": {"name": "kube-proxy", "labels": {"app": "kube-proxy"}},
        "data": {"config.conf": "old"}, "binaryData": {"ca": "AA=="},
    });
    let set = json!({
        "metadata": {"name": "kube-proxy"},
        "spec": {"template": {"spec": {"nodeSelector": {"kubernetes.io/os": "linux"}}}},
    });
    let copies = Copies::of(&map, &set, "config.conf", "new");
    // Named after the text, of which it has the first digits of the SHA-256 digest.
    assert_eq!(copies.name, "kube-proxy-kpx-11507a0e2f");
    let body = |command| match command {
        KubeCommand::Create { object, body } => {
            assert_eq!(object.name, copies.name);
            body
        }
        other => panic!("{other:?}"),
    };
    let (map, set) = (body(copies.create_map()), body(copies.create_set()));
    assert_eq!(map["binaryData"], json!({"ca": "AA=="}));
    assert_eq!(map["data"], json!({"config.conf": "new"}));
    assert_eq!(map["metadata"]["labels"]["app"], "kube-proxy");
    let spec = &set["spec"]["template"]["spec"];
    assert_eq!(spec["nodeSelector"], json!({"kubernetes.io/os": "linux"}));
    let without = json!({"metadata": {"name": "kube-proxy"}, "data": {}});
    let copies = Copies::of(&without, &set, "config.conf", "new");
    let KubeCommand::Create { body, .. } = copies.create_map() else {
        panic!();
    };
    assert!(body.get("binaryData").is_none(), "{body}");
    // The original is unchanged without a second one.
    assert_eq!(staged::original(&set), set);
}
