//! The script of `kpx snapshot --script`, run for real.

use kpx_node::evidence::{ITEMS, Item, load};

use super::netns::Netns;

#[test]
#[ignore = "needs root, for a network namespace"]
fn the_script_makes_a_bundle_that_loads() {
    let netns = Netns::new();
    netns.run("iptables -t nat -N KUBE-SERVICES");
    netns.run("ipset create KUBE-CLUSTER-IP hash:ip,port");
    netns.run("ip addr add 10.1.2.3/32 dev lo");
    netns.run("tc qdisc add dev lo clsact");
    netns.run("tc filter add dev lo ingress protocol ip u32 match ip dst 10.2.2.2/32 flowid 1:1");
    netns.run("ip xfrm policy add src 10.1.2.0/24 dst 10.1.3.0/24 dir out action block");
    // Has the module loaded that the script does not load.
    netns.run("conntrack -L");
    let scratch = tempfile::tempdir().unwrap();
    let target = scratch.path().join("node1");
    let script = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/src/command/snapshot/snapshot.sh"
    );
    let printed = netns.run(&format!("sh {script} {}", target.display()));
    let archive = format!("{}.tar.gz", target.display());
    assert_eq!(printed.trim(), archive);
    let bundle = load(archive.as_ref(), ITEMS).unwrap();
    for (item, part) in [
        (Item::KernelRelease, "."),
        (Item::Iptables4, ":KUBE-SERVICES"),
        (Item::Nft, "KUBE-SERVICES"),
        (Item::Ipset, "create KUBE-CLUSTER-IP"),
        (Item::Addresses, "10.1.2.3"),
        (Item::Links, "LOOPBACK"),
        (Item::Routes, "10.1.2.3"),
        (Item::Rules, "main"),
        (Item::NeighbourTable, "["),
        (Item::Tc, "\"hook\":\"ingress\",\"filters\":[{"),
        (Item::XfrmPolicies, "dir out action block"),
        (Item::Tcp4, "local_address"),
        (Item::Sysctl, "net.ipv4.ip_forward"),
        (Item::Conntrack, ""),
        (Item::Sockets, ""),
    ] {
        let text = bundle.text(item).unwrap();
        assert!(text.contains(part), "{item}: {text}");
    }
}
