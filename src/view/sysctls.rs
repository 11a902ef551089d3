//! Sysctls with the values that the modes require.

use serde::Serialize;

use super::{Gaps, Joined};
use kpx_judge::requirements;
use kpx_node::backend::Mode;
use kpx_node::backend::requirements::By;
use kpx_node::evidence::{Gap, Item};
use kpx_node::net::Family;

/// A sysctl.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub(crate) struct Row {
    pub(crate) sysctl: &'static str,
    /// `null` if unknown.
    pub(crate) value: Option<String>,
    /// The value, or `>=VALUE`.
    pub(crate) wanted: String,
    /// The program that sets it, or should.
    pub(crate) by: By,
    /// The modes that want it.
    pub(crate) modes: Vec<Mode>,
    /// Whether they include the mode in force; true if it is unknown.
    pub(crate) in_force: bool,
    /// `null` if unknown.
    pub(crate) as_wanted: Option<bool>,
    pub(crate) purpose: &'static str,
}

pub(crate) fn rows(joined: Joined<'_, '_>, gaps: &mut Gaps) -> Vec<Row> {
    let Some(sysctl) = gaps.take(joined.node.sysctl()) else {
        return Vec::new();
    };
    let current = joined.relevant.current();
    let config = gaps.take(joined.node.proxy_config());
    if current.is_none_or(|mode| mode == Mode::Ipvs) {
        gaps.take(joined.node.kernel());
    }
    let wanted = requirements::sysctls(joined.node, sysctl, config).into_iter();
    let wanted = wanted.filter(|wanted| {
        let key = wanted.sysctl.key;
        let v6 = key.contains("ipv6") || key.ends_with("ip6tables");
        let family = if v6 { Family::V6 } else { Family::V4 };
        let of_both = key.starts_with("net.netfilter");
        joined.query.wants(None, &[key]) && (of_both || joined.query.takes(family))
    });
    let rows = wanted.map(|wanted| Row {
        sysctl: wanted.sysctl.key,
        as_wanted: wanted.is_met(),
        value: wanted.value,
        wanted: wanted.sysctl.want.to_string(),
        by: wanted.sysctl.by,
        in_force: current.is_none_or(|current| wanted.modes.contains(&current)),
        modes: wanted.modes,
        purpose: wanted.sysctl.purpose,
    });
    let rows: Vec<_> = rows.collect();
    let unknown = rows
        .iter()
        .filter(|row| row.in_force && row.value.is_none());
    for row in unknown {
        let why = format!("{} is missing", row.sysctl);
        gaps.add(Gap::Absent(Item::Sysctl, why));
    }
    rows
}
