//! The fields of kube-proxy's configuration that a mode does not allow.

use super::{Area, Need, Status};
use crate::check::Facts;
use kpx_node::backend::Mode;
use kpx_node::backend::requirements::{NFTABLES_GATE, Refusal, refusal};
use kpx_node::cluster::validate;
use kpx_node::evidence::Item;

/// Returns the fields that kube-proxy refuses when it starts in mode `to`.
pub(super) fn needs(facts: &Facts<'_>, to: Mode) -> Vec<Need> {
    let text = facts.node.evidence().text(Item::ProxyConfig);
    let version = facts.version().ok().map(|version| version.version);
    let refused = text.and_then(|text| validate::refused(text, to, version));
    // A configuration that cannot be read is a finding of the checks.
    let refused = refused.unwrap_or_default().into_iter();
    let refused = refused.filter(|refused| refused.field != "mode");
    let mut needs: Vec<Need> = refused
        .map(|refused| {
            let note = format!(
                "kube-proxy refuses to start with it; allowed: {}",
                refused.allowed
            );
            Need::new(
                Area::Configuration,
                refused.field,
                Status::Fails,
                refused.value,
                note,
            )
        })
        .collect();
    needs.extend(supported(facts, to));
    needs
}

/// Returns what the mode requires of kube-proxy's release and its feature gates.
fn supported(facts: &Facts<'_>, to: Mode) -> Option<Need> {
    if to != Mode::Nftables {
        return None;
    }
    let row = |status, state: String, note: &str| {
        Some(Need::new(
            Area::Configuration,
            NFTABLES_GATE,
            status,
            state,
            note,
        ))
    };
    let note = "kube-proxy 1.29 or newer, and up to 1.30 the feature gate";
    let version = match facts.version() {
        Ok(found) => found.version,
        Err(gap) => return row(Status::Unknown, "unknown".to_owned(), &gap.to_string()),
    };
    let config = match facts.configuration() {
        Ok(config) => config,
        Err(gap) => return row(Status::Unknown, "unknown".to_owned(), &gap.to_string()),
    };
    let on = |status, state: &str| row(status, format!("{state} in {version}"), note);
    match refusal(to, version, &config) {
        None => on(Status::Ready, "on"),
        Some(Refusal::GateOff { .. }) => on(Status::Fails, "off"),
        Some(Refusal::TooOld { .. }) => on(Status::Fails, "missing"),
    }
}
