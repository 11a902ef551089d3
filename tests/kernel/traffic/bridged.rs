//! The switches of mode that lose connections, with kpx's bridge over them, driven by hand.

use std::fmt::Write as _;
use std::thread;
use std::time::Duration;

use super::{Kind, Line, Pace, Report, Traffic, World};
use crate::kernel::stand_in::KubeProxy;

/// Restarts kube-proxy in `mode` under traffic, with a first sync of 30 seconds and a bridge over it; returns the fate of
/// the traffic, and when the bridge was removed.
fn over_a_bridge(
    world: &World,
    from: KubeProxy,
    mode: &str,
    pace: Pace,
) -> (Report, KubeProxy, Duration) {
    let traffic = Traffic::start(world, pace);
    let mut about = format!("into {mode}:");
    let mut mark = |what: &str| {
        let at = traffic.elapsed();
        write!(about, " {what} at {:.2} s,", at.as_secs_f32()).unwrap();
        at
    };
    mark("bridge asked for");
    world.kpx(&["bridge", "up", "--apply", "--yes"]);
    mark("bridge up");
    thread::sleep(Duration::from_secs(1));
    world.configure(mode);
    from.stop();
    let mut proxy = world.proxy(Duration::from_secs(30));
    mark("kube-proxy restarted");
    proxy.wait_synced(1);
    mark("synced");
    thread::sleep(Duration::from_secs(1));
    let end = mark("bridge asked to go");
    world.kpx(&["bridge", "down", "--apply", "--yes"]);
    mark("bridge down");
    thread::sleep(Duration::from_secs(2));
    (traffic.stop().about(about), proxy, end)
}

#[test]
#[ignore = "needs root and network namespaces"]
fn long_into_nftables_and_back_nothing_fails() {
    let world = World::new("iptables");
    let mut proxy = world.proxy(Duration::ZERO);
    proxy.wait_synced(1);
    for mode in ["nftables", "iptables"] {
        let (report, next, _) = over_a_bridge(&world, proxy, mode, Pace::FULL);
        proxy = next;
        println!("{report}");
        report.unharmed();
    }
    proxy.stop();
}

#[test]
#[ignore = "needs root and ip_vs"]
fn vm_into_and_out_of_ipvs_no_new_connection_fails_and_sockets_that_stay_go_on() {
    let world = World::new("nftables");
    let mut proxy = world.proxy(Duration::ZERO);
    proxy.wait_synced(1);
    for mode in ["ipvs", "nftables"] {
        let (report, next, end) = over_a_bridge(&world, proxy, mode, Pace::EMULATED);
        proxy = next;
        println!("{report}");
        report.busy();
        assert_eq!(report.failed(Line::is_new), 0, "{report}");
        let out = mode == "nftables";
        for line in report.of(|line| line.kind == Kind::LongTcp) {
            // A connection through a virtual server ends with it, and begins again at once.
            assert!(line.failures.len() <= usize::from(out), "{line}\n{report}");
        }
        for line in report.of(|line| line.kind == Kind::LongUdp) {
            let (before, after): (Vec<_>, Vec<_>) =
                line.failures.iter().partition(|failure| failure.at < end);
            // The one datagram that is under way while the kernel forgets its virtual server has no way back.
            assert!(before.len() <= usize::from(out), "{line}\n{report}");
            // A socket that took the Service's address for its own while kube-ipvs0 held it has it as long as the bridge
            // stands: the drain waits for its end, and says so.
            let bound = out && line.from == "host" && line.to != "NodePort";
            assert!(after.is_empty() || bound, "{line}\n{report}");
        }
    }
    proxy.stop();
}
