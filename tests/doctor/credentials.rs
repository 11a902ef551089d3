//! The doctor's hint for permissions that the API server denies.

use std::fs;

use kpx_node::evidence::{self, Evidence, Forbidden, Gap, ITEMS, Item, Manifest};
use serde_json::Value;

use crate::support::{kpx, root};

/// Items that a worker's kubelet may not read.
const REFUSED: [(Item, &str, &str); 3] = [
    (Item::Services, "list", "services"),
    (Item::EndpointSlices, "list", "endpointslices"),
    (Item::DaemonSets, "get", "daemonsets"),
];

/// Writes a bundle of a worker that was collected with its kubelet's credentials.
fn worker(dir: &std::path::Path) {
    let whole = evidence::load(&root().join("testdata/nodes/seed-iptables"), ITEMS).unwrap();
    let mut refused = Evidence::default();
    for (item, verb, what) in REFUSED {
        let request = Forbidden {
            why: format!("{verb} {what}: not for you"),
            user: "system:node:w1".to_owned(),
            verb: verb.to_owned(),
            resource: what.to_owned(),
            credentials: "/etc/kubernetes/kubelet.conf".to_owned(),
        };
        refused.insert(item, Err(Gap::Forbidden(item, Box::new(request))));
    }
    let manifest = Manifest::of(&refused, "2026-11-22T09:00:00Z".to_owned(), None);
    let path = |file: &str| dir.join(file);
    fs::write(
        path("manifest.json"),
        serde_json::to_string(&manifest).unwrap(),
    )
    .unwrap();
    for &item in ITEMS {
        if REFUSED.iter().any(|(of, ..)| *of == item) {
            continue;
        }
        if let Ok(text) = whole.text(item) {
            let file = path(item.file());
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(file, text).unwrap();
        }
    }
}

#[tokio::test]
async fn refusals_become_one_hint_with_a_remedy() {
    let dir = tempfile::tempdir().unwrap();
    worker(dir.path());
    let from = ["--from", dir.path().to_str().unwrap(), "doctor"];
    let ran = kpx(&from).await;
    let words: Vec<_> = ran.out.split_ascii_whitespace().collect();
    let page = words.join(" ");
    assert!(
        page.contains(
            "credentials the API server does not allow system:node:w1 (/etc/kubernetes/kubelet.conf) to list \
             endpointslices, list services."
        ),
        "{ran}"
    );
    assert!(
        page.contains("`--kubeconfig FILE`")
            && page.contains("`kubectl apply -f deploy/rbac.yaml`"),
        "{ran}"
    );
    let ran = kpx(&[&from[..], &["-o", "json"]].concat()).await;
    let report: Value = serde_json::from_str(&ran.out).unwrap();
    assert!(
        report["credentials"]
            .as_str()
            .unwrap()
            .contains("system:node:w1")
    );
}
