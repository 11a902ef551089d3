//! The texts of a migration.

use kpx_judge::plan::{Plan, Undo};
use kpx_migrate::drain::{Gauge, Holder};
use kpx_migrate::engine;
use kpx_migrate::evict::{Kept, Leaving};
use kpx_migrate::gates::{Gate, Name, Status};
use kpx_migrate::loss::ObservedLoss;
use kpx_migrate::migration::Strategy;
use kpx_migrate::removal::Removal;
use kpx_migrate::wire::Event;
use kpx_node::action::{Action, Backend, IpvsCommand, IpvsVerb, LinkCommand};
use kpx_node::apply;
use kpx_node::backend::Mode;
use kpx_node::evidence::ipvs::Service;
use kpx_node::net::Family;
use serde_json::json;

#[test]
fn a_step_has_its_number_from_one() {
    let begins = engine::Event::Step(apply::Event::Begins(2, "a step"));
    let undoes = engine::Event::Step(apply::Event::Undoes(4, "a step"));
    let title = || "a step".to_owned();
    let (step, undo) = (Event::from(begins), Event::from(undoes));
    assert_eq!(
        step,
        Event::Step {
            step: 3,
            title: title()
        }
    );
    assert_eq!(
        undo,
        Event::Undo {
            step: 5,
            title: title()
        }
    );
    assert_eq!(undo.in_words().as_deref(), Some("  undo: a step"));
}

#[test]
fn gates_are_reported_with_what_they_wait_for_or_skip() {
    let gates = |all: &[(Name, Status, &str)]| {
        let gates = all.iter().map(|(name, status, reason)| Gate {
            name: *name,
            status: *status,
            reason: (*reason).to_owned(),
        });
        let gates = gates.collect();
        Event::Gates { gates }.in_words().unwrap()
    };
    let passed = (Name::Mode, Status::Passed, "");
    let skipped = (Name::Log, Status::Skipped, "no log");
    let unknown = (Name::Synced, Status::Unknown, "no metrics");
    let waiting = (Name::Desired, Status::Waiting, "a rule is missing");
    assert_eq!(gates(&[passed]), "  all gates are passed");
    assert_eq!(
        gates(&[passed, skipped]),
        "  all gates are passed; skipped without data: log: no log"
    );
    assert_eq!(
        gates(&[passed, skipped, unknown, waiting]),
        "  waiting: synced: no metrics; desired: a rule is missing"
    );
}

#[test]
fn pods_that_leave_are_counted() {
    let leaving = |count, kept: &[&str]| {
        let kept = kept.iter().map(|pod| Kept {
            pod: (*pod).to_owned(),
            why: "budget web".to_owned(),
        });
        let kept = kept.collect();
        Leaving { count, kept }.in_words()
    };
    assert_eq!(leaving(0, &[]), "all evicted pods have left");
    assert_eq!(leaving(1, &[]), "1 pod is terminating");
    assert_eq!(leaving(2, &[]), "2 pods are terminating");
    assert_eq!(
        leaving(3, &["a/b", "c/d"]),
        "waiting for 3 pods to leave; evictions refused: a/b: budget web; c/d: budget web"
    );
}

#[test]
fn the_holders_of_most_connections_are_named() {
    let top = || {
        vec![Holder {
            service: "default/web:http".to_owned(),
            count: 3,
        }]
    };
    let all = Gauge {
        count: 3,
        top: top(),
    };
    assert_eq!(all.holders(), "default/web:http (3)");
    let some = Gauge {
        count: 5,
        top: top(),
    };
    assert_eq!(some.holders(), "default/web:http (3), others (2)");
}

#[test]
fn observed_loss_has_only_what_was_lost() {
    let loss = |connections, failed_probes| ObservedLoss {
        connections,
        failed_probes,
        ..ObservedLoss::default()
    };
    let unknown = ObservedLoss {
        unmeasured: true,
        ..ObservedLoss::default()
    };
    assert_eq!(loss(0, 0).in_words(), "none seen by probes of Services");
    assert_eq!(unknown.in_words(), "unknown: no Service was probed");
    assert_eq!(
        loss(3, 0).plus(unknown).in_words(),
        "3 connections; more is unknown: no Service was probed"
    );
    assert_eq!(loss(0, 2).in_words(), "2 failed probes");
    let gap = ObservedLoss {
        bridge_gaps: 2,
        ..ObservedLoss::default()
    };
    assert!(
        gap.in_words()
            .ends_with("another program deleted it 2 times")
    );
    assert_eq!(loss(3, 0).in_words(), "3 connections");
    assert_eq!(
        loss(3, 2).plus(loss(4, 5)).in_words(),
        "7 connections, 7 failed probes"
    );
}

#[test]
fn what_a_plan_removes_is_counted() {
    let mut plan = Plan::default();
    let service = json!({"family": "IPv4", "fwmark": 1, "scheduler": "rr", "prefix": 32});
    let service: Service = serde_json::from_value(service).unwrap();
    let server = |verb| IpvsCommand {
        verb,
        server: service.clone(),
        real: None,
        line: String::new(),
    };
    let link = || "kube-ipvs0".to_owned();
    let addr = "10.96.0.1".parse().unwrap();
    for action in [
        Action::Iptables {
            backend: Backend::Plain,
            family: Family::V4,
            input: "*nat\n-D OUTPUT -j A\n-F A\n-X A\n-X B\n-X C\nCOMMIT\n".to_owned(),
        },
        Action::Iptables {
            backend: Backend::Plain,
            family: Family::V6,
            input: "*nat\n-D OUTPUT -j A\n-X A\nCOMMIT\n".to_owned(),
        },
        Action::Ipset {
            input: "flush S\ndestroy S\ndestroy T\n".to_owned(),
        },
        Action::Ipvs {
            commands: vec![
                server(IpvsVerb::DeleteServer),
                server(IpvsVerb::DeleteReal),
                server(IpvsVerb::DeleteServer),
            ],
        },
        Action::Link {
            commands: vec![
                LinkCommand::DeleteAddress { link: link(), addr },
                LinkCommand::AddAddress { link: link(), addr },
                LinkCommand::DeleteAddress { link: link(), addr },
                LinkCommand::Delete { name: link() },
            ],
        },
        Action::Nft {
            input: "delete table ip kube-proxy\ndelete table ip6 kube-proxy\n".to_owned(),
        },
        Action::Sysctl {
            key: "a".to_owned(),
            value: "0".to_owned(),
        },
        Action::Sysctl {
            key: "b".to_owned(),
            value: "1".to_owned(),
        },
    ] {
        let removal = Removal::of(&plan);
        plan.push("a step", action, Undo::never("a test"));
        assert_ne!(Removal::of(&plan), removal);
    }
    let removal = Removal::of(&plan);
    assert_eq!(
        removal.to_string(),
        "removes 4 chains, 2 rules of other chains that jump there, 2 IP sets, 2 virtual servers, 2 addresses, 1 link, \
         2 nftables tables; sets a = 0; sets b = 1"
    );
    assert_eq!(Removal::default().to_string(), "no leftovers to remove");
    let one = Removal {
        rules: 1,
        ..Removal::default()
    };
    let words = "removes 1 rule of other chains that jumps there";
    assert_eq!(one.to_string(), words);
}

#[test]
fn the_usual_strategy_has_its_reason() {
    let (iptables, ipvs) = (Mode::Iptables, Mode::Ipvs);
    let (nftables, userspace) = (Mode::Nftables, Mode::Userspace);
    for (from, to, strategy, why) in [
        (
            iptables,
            nftables,
            Strategy::Bridge,
            "deletes the old mode's rules",
        ),
        (
            ipvs,
            nftables,
            Strategy::Bridge,
            "deletes the old mode's rules",
        ),
        (
            userspace,
            nftables,
            Strategy::Bridge,
            "deletes the old mode's rules",
        ),
        (
            userspace,
            iptables,
            Strategy::Bridge,
            "ports of the old process",
        ),
        (
            userspace,
            ipvs,
            Strategy::Bridge,
            "ports of the old process",
        ),
        (
            ipvs,
            iptables,
            Strategy::Bridge,
            "connections through virtual servers must end",
        ),
        (
            iptables,
            ipvs,
            Strategy::InPlace,
            "the old mode's rules serve",
        ),
        (
            nftables,
            iptables,
            Strategy::InPlace,
            "the old mode's rules serve",
        ),
        (
            nftables,
            ipvs,
            Strategy::InPlace,
            "the old mode's rules serve",
        ),
    ] {
        assert_eq!(Strategy::usual(from, to), strategy, "{from} to {to}");
        let words = Strategy::why_usual(from, to);
        assert!(words.contains(why), "{from} to {to}: {words}");
    }
}
