//! `kpx diff` on recorded nodes: a healthy node has no difference, and every change of it is found and named.

use crate::support::kpx_on;

/// Healthy nodes, by the mode they run in.
const HEALTHY: &[&str] = &[
    "dual-iptables",
    "dual-ipvs",
    "dual-nftables",
    "full-iptables",
    "full-iptables-masqall",
    "full-iptables-v1.30",
    "full-ipvs",
    "full-ipvs-lc-strictarp",
    "full-ipvs-v1.30",
    "full-nftables",
    "scale-2000x10-iptables",
    "scale-2000x10-nftables",
    "seed-iptables",
    "seed-ipvs",
    "seed-nftables",
];

#[tokio::test]
async fn a_healthy_node_has_no_difference() {
    for name in HEALTHY {
        let ran = kpx_on(name, &["diff"]).await;
        assert_eq!(ran.code, 0, "{name}\n{ran}");
        assert!(ran.out.starts_with("no difference: "), "{name}\n{ran}");
    }
}
