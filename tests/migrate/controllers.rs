//! The controllers of the bridge on a fake node: the follower, the guard, and the keeper of the lease.

use std::cell::Cell;
use std::pin::pin;
use std::rc::Rc;
use std::time::Duration;

use futures_util::FutureExt as _;
use kpx::backend::Mode;
use kpx::migrate::controller::follow::Follower;
use kpx::migrate::controller::guard::{self, GuardError};
use kpx::migrate::controller::keep::Order;
use kpx::migrate::journal::MigrationState;
use kpx::migrate::migration::{Stage, Strategy};

use super::bridged::{Bridged, LEASE, World};
use super::migration;

/// Starts a follower of `node`'s bridge.
fn follower(node: &Bridged, mode: Mode) -> Follower<Bridged> {
    let started = Follower::start(node.clone(), mode).now_or_never();
    started.expect("nothing waits").unwrap()
}

/// Follows until `seconds`, with a living keeper or without; returns whether the follower has ended.
fn follow(node: &Bridged, follower: &mut Follower<Bridged>, seconds: u64, kept: bool) -> bool {
    let world = Rc::clone(&node.world);
    let mut notify = |line: String| world.borrow_mut().notices.push(line);
    let never = Cell::new(false);
    let controller = pin!(follower.follow(&never, &mut notify));
    let (keeper, mut lease) = (node.keeper.clone(), node.clone());
    let keeper = pin!(keeper.run(&mut lease));
    node.run_until(seconds, controller, kept.then_some(keeper))
}

/// Guards until `seconds` a bridge that serves as iptables; returns whether the guard has ended.
fn guard(node: &Bridged, seconds: u64, awaits: Duration) -> bool {
    let world = Rc::clone(&node.world);
    let mut notify = |line: &str| world.borrow_mut().notices.push(line.to_owned());
    let guard = guard::run(node.clone(), Mode::Iptables, awaits, &mut notify);
    let controller = pin!(guard.map(|ended| ended.unwrap()));
    let (keeper, mut lease) = (node.keeper.clone(), node.clone());
    let keeper = pin!(keeper.run(&mut lease));
    node.run_until(seconds, controller, Some(keeper))
}

fn notices(node: &Bridged) -> String {
    node.world.borrow().notices.join("\n")
}

fn look<T>(node: &Bridged, of: impl FnOnce(&World) -> T) -> T {
    of(&node.world.borrow())
}

/// Returns a node in mode iptables whose bridge a follower has loaded.
fn bridged(order: Order) -> Bridged {
    let node = Bridged::new(Mode::Iptables, order);
    drop(follower(&node, Mode::Iptables));
    node
}

#[test]
fn an_endpoint_that_changes_is_an_element_that_changes() {
    let node = Bridged::new(Mode::Iptables, Order::Keep);
    let mut follower = follower(&node, Mode::Iptables);
    assert!(look(&node, World::is_served));
    assert!(look(&node, |world| world.inputs[0].contains("10.244.1.22")));
    node.at(5, |world| world.readdress("10.244.1.22", "10.244.9.9"));
    assert!(!follow(&node, &mut follower, 10, true));
    let inputs = look(&node, |world| world.inputs.clone());
    assert_eq!(inputs.len(), 2, "{inputs:#?}");
    assert!(
        inputs[1].contains("add element ip kpx-bridge"),
        "{}",
        inputs[1]
    );
    assert!(inputs[1].contains("10.244.9.9"), "{}", inputs[1]);
    assert!(
        !inputs[1].contains("table ip kpx-bridge {"),
        "{}",
        inputs[1]
    );
    assert!(notices(&node).contains("the cluster changed: "));
}

#[test]
fn where_nft_refuses_an_element_the_whole_bridge_is_loaded() {
    let node = Bridged::new(Mode::Iptables, Order::Keep);
    let mut follower = follower(&node, Mode::Iptables);
    node.world.borrow_mut().refuses_elements = true;
    node.at(5, |world| world.readdress("10.244.1.22", "10.244.9.9"));
    assert!(!follow(&node, &mut follower, 10, true));
    let last = look(&node, |world| world.inputs.last().cloned().unwrap());
    assert!(
        last.contains("table ip kpx-bridge {") && last.contains("10.244.9.9"),
        "{last}"
    );
}

#[test]
fn a_bridge_that_is_followed_keeps_its_lease_and_one_whose_kpx_was_killed_does_not() {
    let node = Bridged::new(Mode::Iptables, Order::Keep);
    let mut follower = follower(&node, Mode::Iptables);
    assert!(!follow(&node, &mut follower, 600, true));
    assert!(look(&node, World::is_served));
    assert!(look(&node, |world| world.renewals) >= 600 / 15 - 2);
    // Killed: neither follows nor keeps.
    drop(follower);
    node.suspend(LEASE + 1);
    assert!(!look(&node, World::is_served));
}

#[test]
fn a_follower_that_was_suspended_loads_the_bridge_again() {
    let node = Bridged::new(Mode::Iptables, Order::Keep);
    let mut follower = follower(&node, Mode::Iptables);
    node.suspend(LEASE + 30);
    assert!(!look(&node, World::is_served));
    assert!(!follow(&node, &mut follower, LEASE + 40, true));
    assert!(look(&node, World::is_served));
    let last = look(&node, |world| world.inputs.last().cloned().unwrap());
    assert!(last.contains("table ip kpx-bridge {"), "{last}");
    assert!(notices(&node).contains("had expired: loading it again"));
}

#[test]
fn a_follower_ends_when_the_bridge_is_removed_and_takes_its_routes_with_it() {
    let node = Bridged::new(Mode::Ipvs, Order::Keep);
    let mut follower = follower(&node, Mode::Ipvs);
    assert!(look(&node, World::has_routes));
    node.at(5, World::remove_bridge);
    node.at(6, |world| world.readdress("10.244.1.22", "10.244.9.9"));
    assert!(follow(&node, &mut follower, 60, true));
    assert!(!look(&node, World::has_routes));
    assert!(notices(&node).contains("no longer following the cluster"));
}

#[test]
fn a_guard_leaves_the_bridge_to_the_kpx_that_keeps_it() {
    let node = bridged(Order::Rest);
    node.world.borrow_mut().locked = true;
    for seconds in (15..600).step_by(15) {
        node.at(seconds, World::renewed_by_another);
    }
    assert!(!guard(&node, 600, Duration::ZERO));
    assert!(look(&node, World::is_served));
    assert_eq!(look(&node, |world| world.renewals), 0);
    let all = notices(&node);
    assert_eq!(all, "the bridge stays: another kpx is changing this node");
}

#[test]
fn a_guard_takes_over_from_a_kpx_that_was_killed_and_removes_the_bridge_in_the_end() {
    let node = Bridged::new(Mode::Ipvs, Order::Rest);
    drop(follower(&node, Mode::Ipvs));
    assert!(look(&node, World::has_routes));
    {
        // kube-proxy is restarted, and its first sync takes long.
        let mut world = node.world.borrow_mut();
        world.locked = true;
        world.machine.proxy.slow = 400;
        world.machine.restart_as(Mode::Iptables);
    }
    node.at(20, |world| world.locked = false);
    assert!(!guard(&node, 100, Duration::ZERO), "{}", notices(&node));
    assert!(look(&node, World::is_served));
    assert!(look(&node, |world| world.renewals) > 2);
    assert!(
        notices(&node).contains("has not synced"),
        "{}",
        notices(&node)
    );
    node.world.borrow_mut().machine.proxy.busy = 1;
    assert!(guard(&node, 200, Duration::ZERO), "{}", notices(&node));
    assert!(!look(&node, |world| world.machine.has_bridge()));
    assert!(!look(&node, World::has_routes));
    let all = notices(&node);
    assert!(
        all.ends_with("the bridge is removed: kube-proxy's rules are complete"),
        "{all}"
    );
}

#[test]
fn a_guard_removes_the_routes_that_a_killed_kpx_left_and_loads_no_bridge() {
    let node = Bridged::new(Mode::Ipvs, Order::Rest);
    drop(follower(&node, Mode::Ipvs));
    {
        let mut world = node.world.borrow_mut();
        world.remove_bridge();
        world.machine.proxy.slow = 400;
        world.machine.restart_as(Mode::Iptables);
    }
    assert!(!guard(&node, 100, Duration::ZERO), "{}", notices(&node));
    assert!(look(&node, World::has_routes));
    assert!(!look(&node, |world| world.machine.has_bridge()));
    node.world.borrow_mut().machine.proxy.busy = 1;
    assert!(guard(&node, 200, Duration::ZERO), "{}", notices(&node));
    assert!(!look(&node, World::has_routes));
}

#[test]
fn a_guard_keeps_the_bridge_of_a_migration_that_is_prepared() {
    let node = bridged(Order::Rest);
    let mut prepared = migration(Mode::Iptables, Mode::Nftables, Strategy::Bridge);
    prepared.external = true;
    let mut prepared = MigrationState::new(prepared);
    while prepared.next() != Some(Stage::Configure) {
        prepared.done += 1;
    }
    node.world.borrow_mut().migration = Some(prepared);
    assert!(!guard(&node, 600, Duration::ZERO));
    assert!(look(&node, World::is_served));
    assert!(notices(&node).contains("a migration is prepared"));
    node.world.borrow_mut().migration = None;
    assert!(guard(&node, 700, Duration::ZERO));
    assert!(!look(&node, |world| world.machine.has_bridge()));
}

#[test]
fn a_guard_that_cannot_watch_the_cluster_lets_the_lease_expire_while_kube_proxy_serves() {
    let node = bridged(Order::Rest);
    {
        let mut world = node.world.borrow_mut();
        world.unwatched = true;
        // kube-proxy serves, but is configured for another mode.
        let files = &mut world.machine.files;
        let text = files.values_mut().next().unwrap();
        *text = text.replace("mode: \"iptables\"", "mode: \"nftables\"");
        *text = text.replace("mode: iptables", "mode: nftables");
    }
    assert!(!guard(&node, LEASE + 30, Duration::ZERO));
    assert!(!look(&node, World::is_served));
    assert!(
        notices(&node).contains("its lease is not renewed"),
        "{}",
        notices(&node)
    );
}

#[test]
fn a_guard_ends_where_there_is_no_bridge_after_it_has_waited() {
    let node = Bridged::new(Mode::Iptables, Order::Rest);
    assert!(!guard(&node, 25, Duration::from_secs(30)));
    assert!(guard(&node, 40, Duration::from_secs(10)));
    assert!(notices(&node).ends_with("no bridge to guard"));
}

#[test]
fn there_is_one_guard() {
    let node = bridged(Order::Rest);
    node.world.borrow_mut().guarded = true;
    let mut lines = Vec::new();
    let mut notify = |line: &str| lines.push(line.to_owned());
    {
        let second = guard::run(node.clone(), Mode::Iptables, Duration::ZERO, &mut notify);
        let controller = pin!(second.map(|ended| {
            assert!(matches!(ended, Err(GuardError::Another)));
        }));
        assert!(node.run_until(10, controller, None));
    }
    // With --await, it waits for the end of the other one.
    node.at(20, |world| world.guarded = false);
    assert!(guard(&node, 60, Duration::from_secs(30)));
    let all = notices(&node);
    assert!(all.starts_with("another guard runs"), "{all}");
}
