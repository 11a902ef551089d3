//! The controllers of the bridge on a fake node: the follower, the guard, and the keeper of the lease.

use std::cell::Cell;
use std::pin::pin;
use std::rc::Rc;
use std::time::Duration;

use futures_util::FutureExt as _;
use kpx_judge::bridge::Held;
use kpx_migrate::controller::follow::Follower;
use kpx_migrate::controller::guard::{self, GuardError};
use kpx_migrate::controller::keep::{self, Order};
use kpx_migrate::journal::MigrationState;
use kpx_migrate::migration::{Stage, Strategy};
use kpx_node::action::{Action, Backend, LinkCommand};
use kpx_node::backend::Mode;
use kpx_node::evidence::Item;
use kpx_node::net::Family;

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
    // A quarter of the lease lies between two renewals.
    let renewals = look(&node, |world| world.renewals);
    assert!((38..=41).contains(&renewals), "{renewals}");
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
fn a_migration_loads_a_bridge_again_that_another_program_deletes() {
    let node = Bridged::new(Mode::Ipvs, Order::Keep);
    let gaps = Rc::new(Cell::new(0));
    let mut follower = follower(&node, Mode::Ipvs).that_stays(Rc::clone(&gaps));
    node.at(5, World::remove_bridge);
    assert!(!follow(&node, &mut follower, 60, true));
    assert!(look(&node, World::is_served) && look(&node, World::has_routes));
    assert_eq!(gaps.get(), 1);
    let all = notices(&node);
    assert_eq!(
        all,
        "another program deleted the bridge, so new connections may have failed; it is loaded again"
    );
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
    // The lock is tried more often than the lease of both tables is read.
    let looks = look(&node, |world| world.looks);
    assert!((590..=610).contains(&looks), "{looks}");
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
    assert!(!look(&node, |world| world.is_guard));
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
fn a_guard_loads_a_bridge_again_that_another_program_deletes() {
    let mut prepared = migration(Mode::Iptables, Mode::Nftables, Strategy::Bridge);
    prepared.external = true;
    let mut prepared = MigrationState::new(prepared);
    while prepared.next() != Some(Stage::Configure) {
        prepared.done += 1;
    }
    let node = bridged(Order::Rest);
    node.world.borrow_mut().migration = Some(prepared);
    node.at(20, World::remove_bridge);
    assert!(!guard(&node, 60, Duration::ZERO));
    assert!(look(&node, World::is_served));
    let all = notices(&node);
    assert!(all.contains("another program deleted the bridge"), "{all}");
    assert_eq!(look(&node, |world| world.gaps), 1);
    // Without a migration, the bridge was removed on purpose.
    node.world.borrow_mut().migration = None;
    restart_slowly(&node);
    node.at(70, World::remove_bridge);
    assert!(guard(&node, 120, Duration::ZERO));
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
    assert!(!look(&node, |world| world.is_guard));
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
    let waits = "another guard runs: waiting for it to end";
    assert!(
        all.starts_with(waits) && all.matches(waits).count() == 1,
        "{all}"
    );
    // A process that only looks for a guard holds the claim for a moment.
    let node = bridged(Order::Rest);
    node.world.borrow_mut().guarded = true;
    node.at(1, |world| world.guarded = false);
    assert!(guard(&node, 60, Duration::ZERO));
    let all = notices(&node);
    assert!(!all.contains("another guard"), "{all}");
}

#[test]
fn a_change_of_the_cluster_that_does_not_concern_the_bridge_is_not_reported() {
    let node = Bridged::new(Mode::Iptables, Order::Keep);
    let mut follower = follower(&node, Mode::Iptables);
    node.at(5, |world| world.readdress("192.0.2.1", "192.0.2.2"));
    assert!(!follow(&node, &mut follower, 10, true));
    assert_eq!(look(&node, |world| world.inputs.len()), 1);
    assert_eq!(notices(&node), "");
}

#[test]
fn a_follower_that_is_to_end_makes_no_further_change() {
    let node = Bridged::new(Mode::Iptables, Order::Keep);
    let mut follower = follower(&node, Mode::Iptables);
    let (ends, mut lines) = (Cell::new(true), Vec::new());
    let mut notify = |line: String| lines.push(line);
    node.at(0, |world| world.readdress("10.244.1.22", "10.244.9.9"));
    {
        let controller = pin!(follower.follow(&ends, &mut notify));
        assert!(node.run_until(5, controller, None));
    }
    assert_eq!(lines, [""; 0]);
    assert_eq!(look(&node, |world| world.inputs.len()), 1);
}

#[test]
fn a_follower_reports_what_fails_and_tries_again() {
    let node = Bridged::new(Mode::Ipvs, Order::Keep);
    let mut follower = follower(&node, Mode::Ipvs);
    node.fails("nft", 20, 25);
    node.at(21, |world| world.readdress("10.244.1.22", "10.244.9.9"));
    // The next change of any kind.
    node.at(30, |world| world.readdress("192.0.2.1", "192.0.2.2"));
    node.fails("tables", 40, 45);
    node.at(41, |world| world.readdress("192.0.2.1", "192.0.2.2"));
    node.at(50, |world| world.unwatched = true);
    node.at(55, |world| world.unwatched = false);
    node.fails("lease", 70, 90);
    node.fails("renewals", 110, 130);
    assert!(!follow(&node, &mut follower, 150, true));
    let all = notices(&node);
    for tells in [
        "the bridge is unchanged: no nft now; retrying at the next change",
        "the cluster changed: ",
        "cannot check whether the bridge still exists: permission denied reading ",
        "no API server; retrying",
        "cannot renew the lease of the bridge: permission denied reading ",
        "cannot renew the lease of the bridge: no renewals now; retrying",
    ] {
        assert!(all.contains(tells), "{tells}: {all}");
    }
    assert!(look(&node, World::is_served));
    // After a failure, nothing is known about the live tables: the whole bridge is loaded.
    let inputs = look(&node, |world| world.inputs.clone());
    let [first, second] = inputs.as_slice() else {
        panic!("{inputs:#?}");
    };
    assert!(first.contains("table ip kpx-bridge {") && first.contains("10.244.1.22"));
    assert!(second.contains("table ip kpx-bridge {") && second.contains("10.244.9.9"));
}

#[test]
fn routes_follow_the_addresses_of_kube_ipvs0_while_the_bridge_stands() {
    let address = |world: &mut World, adds: bool| {
        let (link, addr) = ("kube-ipvs0".to_owned(), "10.96.0.1".parse().unwrap());
        let command = if adds {
            LinkCommand::AddAddress { link, addr }
        } else {
            LinkCommand::DeleteAddress { link, addr }
        };
        let commands = vec![command];
        world.machine.apply(&Action::Link { commands }).unwrap();
    };
    let route = |world: &World| {
        let evidence = world.machine.tell();
        let routes = evidence.text(Item::Routes).unwrap();
        let ours = |line: &str| line.contains("107") && line.contains("\"10.96.0.1\"");
        routes.replace("},", "},\n").lines().any(ours)
    };
    let node = Bridged::new(Mode::Ipvs, Order::Keep);
    address(&mut node.world.borrow_mut(), false);
    let mut follower = follower(&node, Mode::Ipvs);
    assert!(!look(&node, route));
    node.fails("routes", 4, 8);
    node.at(5, move |world| address(world, true));
    assert!(!follow(&node, &mut follower, 7, true));
    let all = notices(&node);
    assert!(
        all.starts_with("cannot update kpx's routes: no routes now"),
        "{all}"
    );
    assert!(!look(&node, route));
    assert!(!follow(&node, &mut follower, 10, true));
    assert!(look(&node, route));
    let all = notices(&node);
    assert!(
        all.contains("for host connections to 1 address of kube-ipvs0"),
        "{all}"
    );
    // Without the bridge, kube-proxy's rules serve with the kernel's routes.
    let node = Bridged::new(Mode::Ipvs, Order::Keep);
    address(&mut node.world.borrow_mut(), false);
    let mut follower = self::follower(&node, Mode::Ipvs);
    node.at(5, move |world| {
        world.remove_bridge();
        address(world, true);
    });
    assert!(!follow(&node, &mut follower, 10, true));
    assert!(!look(&node, route));
    // Its routes cannot be removed.
    node.world.borrow_mut().failing.insert("routes");
    node.at(12, |world| world.readdress("192.0.2.1", "192.0.2.2"));
    assert!(follow(&node, &mut follower, 20, true));
    let all = notices(&node);
    assert!(
        all.ends_with("cannot remove kpx's routes: no routes now"),
        "{all}"
    );
}

#[test]
fn the_lease_of_a_bridge_is_that_of_the_table_that_expires_first() {
    let held = |node: &Bridged| keep::held(&mut node.clone()).now_or_never().unwrap();
    let node = Bridged::new(Mode::Iptables, Order::Rest);
    assert_eq!(held(&node), Ok(None));
    drop(follower(&node, Mode::Iptables));
    node.suspend(10);
    let left = Held::Left {
        seconds: LEASE - 10,
        of: LEASE,
        keeper: None,
    };
    assert_eq!(held(&node), Ok(Some(left.clone())));
    // A table of an older kpx has no lease.
    node.world.borrow_mut().without_lease = vec!["ip6"];
    assert_eq!(held(&node), Ok(Some(left)));
    node.world.borrow_mut().without_lease = vec!["ip", "ip6"];
    assert_eq!(held(&node), Ok(Some(Held::Endless)));
    node.suspend(LEASE);
    node.world.borrow_mut().without_lease = vec!["ip"];
    assert_eq!(held(&node), Ok(Some(Held::Expired)));
    node.world.borrow_mut().failing.insert("lease");
    assert!(held(&node).is_err());
}

#[test]
fn a_bridge_without_a_lease_is_not_renewed() {
    let node = Bridged::new(Mode::Iptables, Order::Keep);
    let mut follower = follower(&node, Mode::Iptables);
    node.world.borrow_mut().without_lease = vec!["ip", "ip6"];
    assert!(!follow(&node, &mut follower, 60, true));
    assert_eq!(look(&node, |world| world.renewals), 0);
    assert_eq!(notices(&node), "");
}

/// Restarts kube-proxy in mode iptables; its first sync takes very long.
fn restart_slowly(node: &Bridged) {
    let mut world = node.world.borrow_mut();
    world.machine.proxy.slow = 99_999;
    world.machine.restart_as(Mode::Iptables);
}

#[test]
fn a_guard_keeps_the_lease_of_a_kpx_that_does_not_renew_it_while_kube_proxy_does_not_serve() {
    let node = bridged(Order::Rest);
    node.world.borrow_mut().locked = true;
    restart_slowly(&node);
    assert!(!guard(&node, 25, Duration::ZERO));
    assert_eq!(look(&node, |world| world.renewals), 0, "it may still come");
    assert!(!guard(&node, 600, Duration::ZERO));
    assert!(look(&node, World::is_served));
    node.world.borrow_mut().machine.proxy.busy = 1;
    assert!(!guard(&node, 600 + LEASE + 30, Duration::ZERO));
    assert!(!look(&node, World::is_served));
}

#[test]
fn a_guard_that_has_seen_the_bridge_does_not_wait_for_another() {
    let node = bridged(Order::Rest);
    node.world.borrow_mut().locked = true;
    node.at(10, |world| {
        world.remove_bridge();
        world.locked = false;
    });
    assert!(guard(&node, 20, Duration::from_secs(999)));
    assert!(notices(&node).ends_with("no bridge to guard"));
}

#[test]
#[ignore = "takes long: make test-loops"]
fn a_guard_that_loses_its_watch_of_the_cluster_rests_once_kube_proxy_serves() {
    let node = bridged(Order::Rest);
    restart_slowly(&node);
    node.at(10, |world| world.unwatched = true);
    assert!(!guard(&node, 200, Duration::ZERO));
    assert!(look(&node, World::is_served), "{}", notices(&node));
    assert!(notices(&node).contains("kube-proxy has not synced since it started"));
    // It serves, but lacks a rule.
    {
        let mut world = node.world.borrow_mut();
        world.machine.proxy.busy = 1;
        world.machine.pass();
        let evidence = world.machine.tell();
        let rules = evidence.text(Item::Iptables4).unwrap();
        let jump =
            |line: &&str| line.starts_with("-A OUTPUT") && line.ends_with("-j KUBE-SERVICES");
        // The table nat is the last one.
        let jump = rules.lines().rfind(jump);
        let action = Action::Iptables {
            backend: Backend::Nft,
            family: Family::V4,
            input: format!("*nat\n{}\nCOMMIT\n", jump.unwrap().replacen("-A", "-D", 1)),
        };
        world.machine.apply(&action).unwrap();
    }
    assert!(!guard(&node, 200 + LEASE + 30, Duration::ZERO));
    let all = notices(&node);
    assert!(
        all.ends_with(
            "the bridge stays: mode iptables is not complete: 1 difference; its lease is not renewed, because kpx cannot \
             watch the cluster and kube-proxy serves"
        ),
        "{all}"
    );
    assert!(!look(&node, World::is_served));
    // When it can watch again, the bridge is loaded again.
    let loads = look(&node, |world| world.inputs.len());
    node.at(300, |world| {
        world.unwatched = false;
        world.readdress("10.244.1.22", "10.244.9.9");
    });
    assert!(!guard(&node, 400, Duration::ZERO));
    assert!(look(&node, World::is_served));
    let inputs = look(&node, |world| world.inputs.clone());
    assert!(inputs.len() > loads && inputs.last().unwrap().contains("10.244.9.9"));
}

#[test]
fn a_guard_follows_the_cluster() {
    let node = bridged(Order::Rest);
    restart_slowly(&node);
    node.at(20, |world| world.readdress("10.244.1.22", "10.244.9.9"));
    assert!(!guard(&node, 40, Duration::ZERO));
    // The bridge is loaded at the start of the guard, and after the change.
    let inputs = look(&node, |world| world.inputs.clone());
    assert_eq!(inputs.len(), 3);
    assert!(inputs[1].contains("10.244.1.22") && inputs[2].contains("10.244.9.9"));
}

#[test]
fn a_setting_that_differs_does_not_keep_the_bridge() {
    let node = bridged(Order::Rest);
    let set = |value: &str| Action::Sysctl {
        key: "net.ipv4.conf.all.route_localnet".to_owned(),
        value: value.to_owned(),
    };
    node.world.borrow_mut().machine.apply(&set("0")).unwrap();
    let faults = look(&node, |world| world.machine.faults(Mode::Iptables));
    assert_eq!(faults.len(), 1, "{faults:?}");
    assert!(guard(&node, 30, Duration::ZERO), "{}", notices(&node));
    assert!(!look(&node, |world| world.machine.has_bridge()));
}

#[test]
fn a_guard_of_a_cluster_that_cannot_be_watched_at_all_revives_the_lease() {
    let node = bridged(Order::Rest);
    node.world.borrow_mut().is_fixed = true;
    restart_slowly(&node);
    node.suspend(LEASE + 1);
    assert!(!look(&node, World::is_served));
    assert!(!guard(&node, 200, Duration::ZERO));
    assert!(look(&node, World::is_served));
    // Nothing but the lease is renewed.
    assert_eq!(look(&node, |world| world.inputs.len()), 1);
}

#[test]
fn a_guard_serves_as_the_mode_of_the_migration_that_runs() {
    let serving = |mode| {
        let node = Bridged::new(Mode::Iptables, Order::Rest);
        drop(follower(&node, mode));
        look(&node, |world| world.inputs[0].clone())
    };
    assert_ne!(serving(Mode::Ipvs), serving(Mode::Iptables));
    for (ended, mode) in [(false, Mode::Ipvs), (true, Mode::Iptables)] {
        let node = bridged(Order::Rest);
        restart_slowly(&node);
        let mut state =
            MigrationState::new(migration(Mode::Ipvs, Mode::Iptables, Strategy::Bridge));
        state.ended = ended;
        node.world.borrow_mut().migration = Some(state);
        assert!(!guard(&node, 30, Duration::ZERO));
        let last = look(&node, |world| world.inputs.last().cloned().unwrap());
        assert_eq!(last, serving(mode), "{ended}");
    }
}

#[test]
fn a_guard_reports_what_fails_and_goes_on() {
    let node = bridged(Order::Rest);
    restart_slowly(&node);
    node.fails("tables", 20, 50);
    node.fails("renewals", 60, 90);
    assert!(!guard(&node, 100, Duration::ZERO));
    let all = notices(&node);
    for tells in [
        "cannot check whether the bridge exists: permission denied reading ",
        "cannot renew the lease of the bridge: no renewals now; retrying",
    ] {
        assert!(all.contains(tells), "{tells}: {all}");
    }
    // A line that was the last one is not repeated.
    let stays = "the bridge stays: kube-proxy has not synced since it started";
    assert_eq!(all.matches(stays).count(), 2, "{all}");
    assert!(look(&node, World::is_served));
}
