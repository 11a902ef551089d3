//! Pages about providers on a node that serves: kpx prepares and finishes it, around the change that the page describes.

#[path = "../../page.rs"]
mod text;

use std::thread;
use std::time::Duration;

use kpx::provider::Provider;
use serde_json::json;

use super::{Machine, SHORT_SYNC, judge, picture};
use crate::fake_api::Key;
use crate::kernel::traffic::{Pace, Traffic};

/// Restarts kube-proxy, as the deletion of its pod does.
fn restart(machine: &Machine) {
    let old = machine.api.proxies();
    let (_, name) = &old[0];
    machine.api.with(|cluster| {
        cluster.edit(&Key::new("pods", "kube-system", name), |pod| {
            pod["metadata"]["deletionTimestamp"] = json!("2026-11-20T13:00:00Z");
        });
    });
    while machine.api.proxies() == old {
        thread::sleep(Duration::from_millis(20));
    }
}

/// Runs a command of the page; tools of the provider change the ConfigMap or restart kube-proxy.
fn run(machine: &Machine, command: &str) {
    let words = text::words(command);
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    match words.as_slice() {
        ["kpx", args @ ..] => {
            machine.kpx(&[args, &["--yes"]].concat(), |_| {});
        }
        ["aws", "eks", "update-addon", ..] => {
            let from = machine.api.config();
            let from = from.lines().find(|line| line.starts_with("mode:")).unwrap();
            let to = ["iptables", "nftables"]
                .into_iter()
                .find(|mode| command.contains(&format!("{{\"mode\":\"{mode}\"}}")));
            let to = format!("mode: \"{}\"", to.unwrap());
            assert_ne!(from, to);
            machine.api.reconfigure(from, &to);
        }
        ["aws", "eks", "wait", ..] => {}
        ["kubectl", "-n", "kube-system", "delete", "pod", ..] => restart(machine),
        _ => panic!("{command}"),
    }
}

#[test]
#[ignore = "needs root and network namespaces"]
fn long_the_commands_for_a_managed_add_on_lose_nothing_there_and_back() {
    let machine = Machine::new("iptables", SHORT_SYNC);
    let before = picture(&machine);
    let traffic = Traffic::start(&machine.world, Pace::FULL);
    let page = Provider::named("eks").unwrap().text;
    let mut lines = text::lines(page);
    lines.retain(|line| line.section.ends_with("the managed add-on"));
    assert_eq!(lines.len(), 10);
    for line in &lines[..5] {
        run(&machine, line.command);
    }
    let left = machine.world.network.node.run("iptables-save");
    assert!(!left.contains("KUBE-SERVICES"), "{left}");
    assert!(machine.api.config().contains("mode: \"nftables\""));
    assert!(!machine.has_bridge());
    for line in &lines[5..] {
        run(&machine, line.command);
    }
    assert!(!machine.has_bridge());
    assert_eq!(picture(&machine), before);
    thread::sleep(Duration::from_secs(1));
    judge(&traffic.stop());
}
