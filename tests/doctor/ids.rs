//! Ids of checks as arguments of `kpx doctor`.

use serde_json::Value;

use crate::support::{kpx, kpx_on};

#[tokio::test]
async fn ids_show_everything_about_their_findings() {
    let one = kpx_on("ir03-missing-rule", &["doctor", "IR03"]).await;
    let only = kpx_on("ir03-missing-rule", &["doctor", "--only", "IR03"]).await;
    assert_eq!((one.code, &one.out), (only.code, &only.out));
    for part in ["ERROR IR03  ", "\n  seen  ", "\n  more  kpx explain IR03\n"] {
        assert!(one.out.contains(part), "{part}: {one}");
    }
    let two = kpx_on("faults-iptables", &["doctor", "ir01", "IR09", "-o", "json"]).await;
    let report: Value = serde_json::from_str(&two.out).unwrap();
    let checks = report["checks"].as_array().unwrap();
    let ids: Vec<_> = checks
        .iter()
        .map(|check| check["id"].as_str().unwrap())
        .collect();
    assert_eq!(ids, ["IR01", "IR09"]);
}

#[tokio::test]
async fn an_unknown_id_is_refused_with_similar_ones() {
    let ran = kpx_on("seed-ipvs", &["doctor", "IR99"]).await;
    assert_eq!(ran.code, 2, "{ran}");
    assert!(ran.err.contains("no check or group named IR99"), "{ran}");
    assert!(ran.err.contains("did you mean IR"), "{ran}");
}

#[tokio::test]
async fn other_words_name_the_node() {
    let ran = kpx_on("seed-ipvs", &["doctor", "node1"]).await;
    assert_eq!(ran.code, 3, "{ran}");
    let ran = kpx_on("seed-ipvs", &["doctor", "node7"]).await;
    assert_eq!(ran.code, 2, "{ran}");
    assert!(ran.err.contains("not of node7"), "{ran}");
    let ran = kpx(&["doctor", "node1", "node2"]).await;
    assert_eq!(ran.code, 2, "{ran}");
}
