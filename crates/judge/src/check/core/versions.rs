//! Versions and releases.

use crate::check::{Facts, Proof};
use kpx_node::evidence::{Gap, Item};

/// The items that [`Facts::version`] reads.
pub(in crate::check) const VERSION: &[Item] = &[
    Item::Metrics,
    Item::Pods,
    Item::DaemonSets,
    Item::Nodes,
    Item::Addresses,
    Item::ProxyConfig,
    Item::Processes,
];

pub(in crate::check) fn kernel_proof(facts: &Facts<'_>) -> Result<Proof, Gap> {
    Ok(Proof::Note(format!(
        "kernel {}",
        facts.node.kernel_release()?
    )))
}

pub(in crate::check) fn tool_version(
    facts: &Facts<'_>,
    item: Item,
) -> Result<((u16, u16, u16), String), Gap> {
    let text = facts.node.evidence().text(item)?.trim();
    let found = version_in(text);
    let found = found.ok_or_else(|| Gap::Failed(item, format!("no version in {text:?}")))?;
    Ok((found, text.to_owned()))
}

/// Returns the version of the node's nft, if it writes sets on which the nft in kube-proxy's image crashes up to 1.36.
pub(in crate::check) fn newer_nft(facts: &Facts<'_>) -> Result<Option<String>, Gap> {
    let (found, text) = match tool_version(facts, Item::NftVersion) {
        // Without nft on the node, its rules are written by programs whose version is unknown.
        Err(Gap::Absent(..)) => return Ok(None),
        read => read?,
    };
    Ok((found >= (1, 1, 2) || text.contains("v1.0.6.1")).then_some(text))
}

/// Returns the version in `text`, such as `v1.8.9`.
pub(in crate::check) fn version_in(text: &str) -> Option<(u16, u16, u16)> {
    let mut words = text.split(|c: char| c.is_whitespace() || c == ',');
    words.find_map(|word| {
        let mut parts = word
            .trim_start_matches('v')
            .split('.')
            .map(|part| part.parse().ok());
        Some((
            parts.next()??,
            parts.next()??,
            parts.next().flatten().unwrap_or(0),
        ))
    })
}
