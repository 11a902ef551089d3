//! The switches of mode that lose connections, with kpx's bridge over them, driven by hand.

use std::thread;
use std::time::Duration;

use super::{Kind, Line, Pace, Report, Traffic, World};
use crate::kernel::stand_in::KubeProxy;

/// Restarts kube-proxy in `mode` under traffic, with a first sync of 30 seconds and a bridge over it; returns what became
/// of the traffic.
fn over_a_bridge(world: &World, from: KubeProxy, mode: &str, pace: Pace) -> (Report, KubeProxy) {
    let traffic = Traffic::start(world, pace);
    world.kpx(&["bridge", "up", "--apply", "--yes"]);
    thread::sleep(Duration::from_secs(1));
    world.configure(mode);
    from.stop();
    let mut proxy = world.proxy(Duration::from_secs(30));
    proxy.wait_synced(1);
    thread::sleep(Duration::from_secs(1));
    world.kpx(&["bridge", "down", "--apply", "--yes"]);
    thread::sleep(Duration::from_secs(2));
    (traffic.stop(), proxy)
}

#[test]
#[ignore = "needs root and network namespaces"]
fn into_nftables_and_back_nothing_fails() {
    let world = World::new("iptables");
    let mut proxy = world.proxy(Duration::ZERO);
    proxy.wait_synced(1);
    for mode in ["nftables", "iptables"] {
        let (report, next) = over_a_bridge(&world, proxy, mode, Pace::FULL);
        proxy = next;
        println!("into {mode}: {report}");
        report.unharmed();
    }
    proxy.stop();
}

#[test]
#[ignore = "needs root and ip_vs"]
fn vm_into_and_out_of_ipvs_no_new_connection_fails() {
    let world = World::new("nftables");
    let mut proxy = world.proxy(Duration::ZERO);
    proxy.wait_synced(1);
    for mode in ["ipvs", "nftables"] {
        let (report, next) = over_a_bridge(&world, proxy, mode, Pace::EMULATED);
        proxy = next;
        println!("into {mode}: {report}");
        report.busy();
        assert_eq!(report.failed(Line::is_new), 0, "{report}");
        let out = mode == "nftables";
        for line in report.of(|line| line.kind == Kind::LongTcp) {
            // What goes through a virtual server ends with it, and begins again at once.
            assert!(line.failures.len() <= usize::from(out), "{line}\n{report}");
        }
    }
    proxy.stop();
}
