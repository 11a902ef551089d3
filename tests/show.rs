//! `kpx show` over the recorded nodes.

use crate::support::{kpx_on, recordings};

const VIEWS: [&str; 10] = [
    "services",
    "chains",
    "ipvs",
    "sets",
    "addresses",
    "nodeports",
    "conntrack",
    "modules",
    "sysctls",
    "config",
];

#[tokio::test]
async fn every_view_shows_every_recording() {
    for name in recordings() {
        for view in VIEWS {
            let ran = kpx_on(&name, &["show", view]).await;
            let stated = ran.out.contains("not known: ");
            assert_eq!(ran.code == 3, stated, "{name} {view}: {ran}");
            assert!(matches!(ran.code, 0 | 3), "{name} {view}: {ran}");
            assert!(!ran.out.is_empty(), "{name} {view} says nothing");
            let json = kpx_on(&name, &["show", view, "-o", "json"]).await;
            let read: serde_json::Value = serde_json::from_str(&json.out).unwrap();
            assert_eq!(read["kind"], "ShowReport", "{name} {view}");
        }
    }
}

#[tokio::test]
async fn services_in_each_mode() {
    insta::assert_snapshot!(
        "services-seed-iptables",
        kpx_on("seed-iptables", &["show", "services"]).await
    );
    insta::assert_snapshot!(
        "services-seed-ipvs",
        kpx_on("seed-ipvs", &["show", "services"]).await
    );
    insta::assert_snapshot!(
        "services-seed-nftables",
        kpx_on("seed-nftables", &["show", "services"]).await
    );
    insta::assert_snapshot!(
        "services-full-iptables",
        kpx_on("full-iptables", &["show", "services"]).await
    );
    insta::assert_snapshot!(
        "services-full-nftables",
        kpx_on("full-nftables", &["show", "services"]).await
    );
    insta::assert_snapshot!(
        "services-leftover",
        kpx_on("leftover-iptables-to-ipvs", &["show", "services"]).await
    );
    insta::assert_snapshot!(
        "services-v1.30",
        kpx_on("full-ipvs-v1.30", &["show", "services"]).await
    );
}

#[tokio::test]
async fn other_views() {
    insta::assert_snapshot!(
        "tree",
        kpx_on("seed-iptables", &["show", "chains", "default/nginx-svc"]).await
    );
    insta::assert_snapshot!("ipvs", kpx_on("seed-ipvs", &["show", "ipvs"]).await);
    insta::assert_snapshot!("sets", kpx_on("seed-ipvs", &["show", "sets"]).await);
    insta::assert_snapshot!(
        "addresses",
        kpx_on("dual-ipvs", &["show", "addresses"]).await
    );
    insta::assert_snapshot!(
        "nodeports",
        kpx_on("full-iptables", &["show", "nodeports"]).await
    );
    insta::assert_snapshot!(
        "config",
        kpx_on("leftover-iptables-to-ipvs", &["show", "config"]).await
    );
    insta::assert_snapshot!("sysctls", kpx_on("full-ipvs", &["show", "sysctls"]).await);
}

#[tokio::test]
async fn a_name_that_is_not_there_is_a_failure() {
    let ran = kpx_on("seed-iptables", &["show", "sysctls", "net.none"]).await;
    assert_eq!(ran.code, 4);
    assert!(ran.err.contains("nothing here is called net.none"), "{ran}");
}
