//! Proves that the traffic notices faults, and measures kube-proxy's own switches of mode by hand: a migration must be
//! better.

use std::thread;
use std::time::Duration;

use super::{Kind, KubeProxy, Line, Pace, Report, Traffic, World};

#[test]
#[ignore = "needs root and network namespaces"]
fn what_goes_wrong_is_noticed() {
    let mut world = World::new("iptables");
    let mut proxy = world.proxy(Duration::ZERO);
    proxy.wait_synced(1);
    let traffic = Traffic::start(&world, Pace::FULL);
    thread::sleep(Duration::from_secs(1));
    let report = traffic.stop();
    report.unharmed();

    // A pod dies, and is an endpoint for another second.
    let traffic = Traffic::start(&world, Pace::FULL);
    world.kill(1);
    thread::sleep(Duration::from_secs(1));
    world.endpoints(&[0, 2]);
    proxy.wait_synced(2);
    let gone = traffic.elapsed();
    thread::sleep(Duration::from_secs(1));
    let report = traffic.stop();
    for line in report.of(Line::is_new) {
        let some = line.failures.len();
        assert!(some > 0 && some < line.attempts, "{report}");
        // A connection that was being opened may fail later.
        let last = &line.failures.last().unwrap().at;
        assert!(*last < gone + Duration::from_millis(500), "{report}");
    }
    let broken = report.failed(|line| line.kind == Kind::LongTcp);
    assert!(broken > 0, "{report}");

    // Without rules, established connections stay and new ones fail.
    let traffic = Traffic::start(&world, Pace::FULL);
    thread::sleep(Duration::from_millis(500));
    let before = traffic.elapsed();
    for command in ["iptables", "ip6tables"] {
        world
            .network
            .node
            .run(&format!("{command} -t nat -F KUBE-SERVICES"));
    }
    thread::sleep(Duration::from_secs(1));
    let report = traffic.stop();
    report.busy();
    for line in report.of(Line::is_new) {
        assert!(!line.failures.is_empty(), "{report}");
        assert!(
            line.failures[0].at + Duration::from_secs(1) > before,
            "{report}"
        );
    }
    assert_eq!(
        report.failed(|line| line.kind == Kind::LongTcp),
        0,
        "{report}"
    );

    proxy.stop();
}

/// Restarts kube-proxy in `mode`, under traffic, with a first sync of `first_sync`; returns the fate of the traffic.
fn switch(
    world: &World,
    from: KubeProxy,
    mode: &str,
    first_sync: Duration,
    pace: Pace,
) -> (Report, KubeProxy) {
    let traffic = Traffic::start(world, pace);
    thread::sleep(Duration::from_secs(1));
    world.configure(mode);
    from.stop();
    let mut proxy = world.proxy(first_sync);
    proxy.wait_synced(1);
    thread::sleep(Duration::from_secs(2));
    (traffic.stop(), proxy)
}

#[test]
#[ignore = "needs root and network namespaces"]
fn long_into_nftables_and_back_new_connections_fail_for_a_first_sync() {
    let world = World::new("iptables");
    let mut proxy = world.proxy(Duration::ZERO);
    proxy.wait_synced(1);
    let first_sync = Duration::from_secs(5);
    for mode in ["nftables", "iptables"] {
        let (report, next) = switch(&world, proxy, mode, first_sync, Pace::FULL);
        proxy = next;
        report.busy();
        for line in report.of(Line::is_new) {
            // A connection that waits for its answer begins early, and fails late.
            let outage = line.outage();
            assert!(outage > Duration::from_secs(2), "{mode}: {line}\n{report}");
            // A datagram may find what conntrack remembers of an earlier one from its port, for longer.
            let short = line.kind == Kind::NewUdp || outage < Duration::from_secs(8);
            assert!(short, "{mode}: {line}\n{report}");
        }
        let broken = report.failed(|line| line.kind == Kind::LongTcp);
        assert_eq!(broken, 0, "{mode}: {report}");
    }
}

#[test]
#[ignore = "needs root and ip_vs"]
fn vm_into_ipvs_and_back_nothing_fails_and_into_nftables_everything_does() {
    let world = World::new("iptables");
    let mut proxy = world.proxy(Duration::ZERO);
    proxy.wait_synced(1);
    for mode in ["ipvs", "iptables"] {
        let (report, next) = switch(&world, proxy, mode, Duration::ZERO, Pace::EMULATED);
        proxy = next;
        println!("{mode}: {report}");
        report.unharmed();
    }
    let (report, proxy) = switch(&world, proxy, "ipvs", Duration::ZERO, Pace::EMULATED);
    report.unharmed();
    // Without what the iptables mode left behind, IPVS alone serves.
    let (report, next) = switch(
        &world,
        proxy,
        "nftables",
        Duration::from_secs(10),
        Pace::EMULATED,
    );
    println!("nftables: {report}");
    for line in report.of(Line::is_new) {
        assert!(line.outage() > Duration::from_secs(5), "{line}\n{report}");
    }
    for line in report.of(|line| line.kind == Kind::LongTcp) {
        assert!(!line.failures.is_empty(), "{line}\n{report}");
    }
    next.stop();
}
