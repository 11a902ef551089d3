//! Edits of every recorded configuration of kube-proxy: to every mode and back.

use std::collections::BTreeSet;

use kpx_node::backend::Mode;
use kpx_node::cluster::edit::{Fields, set};
use serde_json::Value;

use crate::support::{recorded, recordings};

/// Returns the configurations of the recording `name`: kube-proxy's own, and those in its cluster's `ConfigMaps`.
fn configs(name: &str) -> Vec<String> {
    let mut texts: Vec<_> = recorded(name, "kube-proxy/config.conf")
        .into_iter()
        .collect();
    if let Some(maps) = recorded(name, "cluster/configmaps.json") {
        let maps: Value = serde_json::from_str(&maps).unwrap();
        let maps = maps["items"].as_array().unwrap().iter();
        let data = maps.filter_map(|map| map["data"]["config.conf"].as_str());
        texts.extend(data.map(str::to_owned));
    }
    texts
}

#[test]
fn a_change_of_mode_edits_one_line_and_can_be_undone() {
    let mut seen = BTreeSet::new();
    for name in recordings() {
        for text in configs(&name) {
            if !seen.insert(text.clone()) {
                continue;
            }
            let to = |text: &str, mode| {
                let fields = Fields {
                    mode,
                    scheduler: None,
                    strict_arp: None,
                };
                set(text, &fields).unwrap_or_else(|e| panic!("{name}: {e}"))
            };
            let config: Value = serde_yaml::from_str(&text).unwrap();
            let Some(before) = config["mode"].as_str().and_then(Mode::named) else {
                continue;
            };
            for mode in Mode::ALL {
                let done = to(&text, mode);
                let lines = text.lines().zip(done.lines()).filter(|(a, b)| a != b);
                assert_eq!(
                    lines.count(),
                    usize::from(mode != before),
                    "{name} to {mode}"
                );
                assert_eq!(to(&done, before), text, "{name} to {mode} and back");
            }
        }
    }
    assert!(seen.len() > 8, "{} configurations", seen.len());
}
