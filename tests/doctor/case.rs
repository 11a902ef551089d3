//! Evidence of recorded nodes, changed by tests, and the outcome of a check on it.

use kpx_judge::check::{self, Facts, Finding, Outcome, Question};
use kpx_judge::why;
use kpx_node::evidence::{self, Evidence, ITEMS, Item, Time};
use kpx_node::node::NodeSnapshot;
use serde_json::{Value, json};

use crate::support::root;

/// The time of collection.
const NOW: &str = "2026-11-22T09:00:00Z";

pub(super) fn load(name: &str) -> Evidence {
    evidence::load(&root().join("testdata/nodes").join(name), ITEMS).unwrap()
}

pub(super) fn run(evidence: &Evidence, id: &str, question: impl Into<Question>) -> Outcome {
    let node = NodeSnapshot::new(evidence);
    let now: Time = NOW.parse().unwrap();
    let facts = Facts::new(&node, Some(now))
        .before(question)
        .explained_by(why::rest);
    check::run(check::named(id)[0], &facts)
}

/// Returns the findings; none if the check passes.
pub(super) fn findings(outcome: Outcome) -> Vec<Finding> {
    match outcome {
        Outcome::Fail(findings) => findings,
        Outcome::Pass => Vec::new(),
        other => panic!("{other:?}"),
    }
}

pub(super) fn finding(outcome: Outcome) -> Finding {
    findings(outcome).into_iter().next().unwrap()
}

/// Changes the JSON of `item`.
pub(super) fn edit(evidence: &mut Evidence, item: Item, change: impl FnOnce(&mut Value)) {
    let mut value: Value = serde_json::from_str(evidence.text(item).unwrap()).unwrap();
    change(&mut value);
    evidence.insert(item, Ok(value.to_string()));
}

/// Changes the text of `item`, which must differ afterwards.
pub(super) fn replace(evidence: &mut Evidence, item: Item, from: &str, to: &str) {
    let text = evidence.text(item).unwrap();
    assert!(text.contains(from), "{item} has no {from:?}");
    let text = text.replace(from, to);
    evidence.insert(item, Ok(text));
}

/// Adds lines to `item`.
pub(super) fn append(evidence: &mut Evidence, item: Item, lines: &str) {
    let text = format!(
        "{}\n{lines}\n",
        evidence.text(item).unwrap_or("").trim_end()
    );
    evidence.insert(item, Ok(text));
}

/// Sets the version in kube-proxy's metrics.
pub(super) fn set_version(evidence: &mut Evidence, version: &str) {
    let metrics = evidence.text(Item::Metrics).unwrap();
    let start = metrics.find("git_version=\"").unwrap() + "git_version=\"".len();
    let end = start + metrics[start..].find('"').unwrap();
    let metrics = format!("{}{version}{}", &metrics[..start], &metrics[end..]);
    evidence.insert(Item::Metrics, Ok(metrics));
}

/// Gives a ready endpoint of another node the address of a terminating one.
pub(super) fn reuse_address(evidence: &mut Evidence) {
    edit(evidence, Item::EndpointSlices, |slices| {
        slices["items"][0]["endpoints"] = json!([
            {"addresses": ["10.244.9.9"], "nodeName": "node8",
             "conditions": {"ready": false, "serving": false, "terminating": true}},
            {"addresses": ["10.244.9.9"], "nodeName": "node9", "conditions": {"ready": true}},
        ]);
    });
}

/// Leaves the map `service-ips` without elements, next to an image without `/etc/protocols`.
pub(super) fn empty_map(evidence: &mut Evidence) {
    evidence.insert(Item::ProxyTools, Ok("/usr/sbin/nft\n".to_owned()));
    edit(evidence, Item::Nft, |rules| {
        for object in rules["nftables"].as_array_mut().unwrap() {
            if object["map"]["name"] == "service-ips" {
                object["map"]["elem"] = json!([]);
            }
        }
    });
}
