//! The fields of kube-proxy's configuration that a mode does not allow.

use super::{Area, Need, Status};
use crate::check::Facts;
use kpx_node::backend::Mode;
use kpx_node::cluster::validate;
use kpx_node::evidence::Item;

/// Returns the fields that kube-proxy refuses when it starts in mode `to`.
pub(super) fn needs(facts: &Facts<'_>, to: Mode) -> Vec<Need> {
    let text = facts.node.evidence().text(Item::ProxyConfig);
    let refused = text.and_then(|text| validate::refused(text, to));
    // A configuration that cannot be read is a finding of the checks.
    let refused = refused.unwrap_or_default().into_iter();
    let refused = refused.filter(|of| of.field != "mode");
    let needs = refused.map(|of| {
        let note = format!(
            "kube-proxy refuses to start with it; allowed: {}",
            of.allowed
        );
        Need::new(Area::Configuration, of.field, Status::Fails, of.value, note)
    });
    needs.collect()
}
