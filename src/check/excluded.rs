//! VS03 before a move to the ipvs mode: virtual servers of other software that kube-proxy would delete.

use std::collections::BTreeSet;

use super::projected::{Source, text_of};
use super::{Facts, Finding, Proof, Severity, Verdict};
use crate::backend::Mode;
use crate::backend::ipvs::model::Key;
use crate::backend::ipvs::print;
use crate::evidence::Gap;
use crate::net::{Cidr, Family};
use crate::node::objects::Object;

/// Returns the virtual servers of the node that are not kube-proxy's; `None` where IPVS is not loaded.
pub(super) fn foreign_servers(facts: &Facts<'_>) -> Result<Option<Vec<Key>>, Gap> {
    if facts.node.has_no_ipvs() {
        return Ok(None);
    }
    let table = match facts.node.ipvs() {
        Ok(table) => table,
        Err(Gap::Absent(..)) => return Ok(None),
        Err(gap) => return Err(gap),
    };
    // What tells kube-proxy's servers from others'.
    facts.node.services()?;
    let ours: BTreeSet<_> = facts
        .node
        .objects_of(Mode::Ipvs)
        .unwrap_or_default()
        .iter()
        .filter_map(|of| match of.object {
            Object::Server { proto, at } => Some(format!("{proto} {at}")),
            _ => None,
        })
        .collect();
    let keys = table.servers.iter().map(|server| server.key);
    let foreign = keys.filter(|key| !ours.contains(&print::name(*key)));
    Ok(Some(foreign.collect()))
}

/// Finds the virtual servers that are not kube-proxy's and that excludeCIDRs does not name.
pub(super) fn unprotected_servers(facts: &Facts<'_>) -> Verdict {
    let Some(foreign) = foreign_servers(facts)? else {
        return Ok(Vec::new());
    };
    let config = facts.configuration()?;
    let excluded = config.exclude_cidrs();
    let mut seen = Vec::new();
    let mut wanted: BTreeSet<String> = config.ipvs.exclude_cidrs.iter().cloned().collect();
    for key in foreign {
        // One that goes by a mark of the firewall has no address, and kube-proxy passes it over.
        let Key::Address { addr, .. } = key else {
            continue;
        };
        let kept = |cidr: &Cidr| cidr.contains(addr);
        if !excluded.iter().any(kept) {
            wanted.insert(format!("{addr}/{}", Family::of(addr).bits()));
            seen.push(Proof::object("virtual-server", print::name(key)));
        }
    }
    if seen.is_empty() {
        return Ok(Vec::new());
    }
    let list: Vec<_> = wanted.iter().map(String::as_str).collect();
    let list = format!("[{}]", list.join(", "));
    let message = "kube-proxy in ipvs mode deletes virtual servers of other software unless excludeCIDRs names them";
    let finding = Finding::new(Severity::Warning, "virtual servers", message).seen(seen);
    let when = "kube-proxy reads it when it starts in the new mode.";
    Ok(vec![match command(facts, &list) {
        Some(command) => finding.mend_by(format!("Name them before the move; {when}"), command),
        None => finding.mend(format!(
            "Set ipvs.excludeCIDRs to {list} in kube-proxy's configuration before the move; {when}"
        )),
    }])
}

/// Returns the command that sets ipvs.excludeCIDRs to `list` where it is empty, as kubeadm writes it.
fn command(facts: &Facts<'_>, list: &str) -> Option<String> {
    const EMPTY: [(&str, &str); 2] = [
        ("excludeCIDRs: null", "excludeCIDRs: null"),
        ("excludeCIDRs: []", r"excludeCIDRs: \[\]"),
    ];
    let (name, text) = match facts.source() {
        Source::Map(map) => (map.metadata.name.as_str(), text_of(map)?),
        Source::Unread(_) => return None,
        Source::Unknown => ("kube-proxy", facts.config_map_text().ok()?),
    };
    let lines = |empty: &str| text.lines().filter(|line| line.trim() == empty).count();
    let (_, pattern) = EMPTY.iter().find(|(empty, _)| lines(empty) == 1)?;
    Some(format!(
        "kubectl -n kube-system get configmap {name} -o yaml | sed 's|{pattern}|excludeCIDRs: {list}|' | kubectl replace -f -"
    ))
}
