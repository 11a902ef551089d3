//! Every packet: classes with the same fate, and differences between two states of a node.

use std::time::Instant;

use kpx::backend::Mode;
use kpx::evidence::{ITEMS, load};
use kpx::net::Family;
use kpx::node::NodeSnapshot;
use kpx::owner::Owners;
use kpx::proof;
use kpx::trace::Assumed;

use crate::support::root;

#[test]
fn try_it() {
    let name = std::env::var("KPX_TRY").unwrap_or_else(|_| "seed-iptables".to_owned());
    let evidence = load(&root().join("testdata/nodes").join(&name), ITEMS).unwrap();
    let node = NodeSnapshot::new(&evidence);
    let mode: Mode = match std::env::var("KPX_AS") {
        Ok(mode) => match mode.as_str() {
            "iptables" => Mode::Iptables,
            "ipvs" => Mode::Ipvs,
            _ => Mode::Nftables,
        },
        Err(_) => node.configured_mode().unwrap(),
    };
    let begin = Instant::now();
    let assumed = Assumed::new(&node, mode).unwrap();
    let expected = assumed.snapshot();
    println!("assumed {:?}", begin.elapsed());
    let owners = Owners::new(&node);
    let begin = Instant::now();
    let families: Vec<Family> = node.desired(mode).unwrap().families.iter().map(|f| f.family).collect();
    let packets = proof::compare(&node, &expected, &owners, &families).unwrap();
    println!("compared {:?}: {} classes, {} differences", begin.elapsed(), packets.classes, packets.differences.len());
    for proved in packets.differences.iter().take(60) {
        let d = &proved.difference;
        println!("{:?} {} {:?} x{} {:?} -> {}:{} {}\n    is {}\n    should {} {}", d.harm, d.target, d.entries, d.classes, d.witness.source, d.witness.destination, d.witness.port, d.witness.proto, d.fates[0], d.fates[1], if proved.confirmed {""} else {"NOT CONFIRMED"});
    }
}
