//! IP sets, and sets and maps of nftables.

use crate::render::Page;
use crate::view::sets::Row;
use kpx_node::net::Family;
use kpx_node::owner::chain_owner::Maker;
use kpx_node::words::number_of;

pub(super) fn page(rows: &[Row], named: bool, page: &mut Page) {
    let members = page.style().wide || named;
    let shown = rows.iter().filter(|row| members || row.size > 0);
    let mut cells = Vec::new();
    for row in shown {
        let what = match (row.purpose, row.maker) {
            (Some(purpose), _) => purpose,
            (None, Maker::Other(who)) => who,
            (None, _) => "not kube-proxy's",
        };
        // The tables of both families have sets of the same names.
        let both = row.family == Family::V6 && !row.set.starts_with("KUBE-6-");
        let name = if both {
            format!("{} (IPv6)", row.set)
        } else {
            row.set.clone()
        };
        cells.push(vec![name, row.size.to_string(), what.to_owned()]);
        if !members {
            continue;
        }
        for member in &row.members {
            let name = member.service.as_ref().map(ToString::to_string);
            let name = name.unwrap_or_default();
            cells.push(vec![format!("  {}", member.member), String::new(), name]);
        }
    }
    if !cells.is_empty() {
        page.grid(&[("SET", 0), ("MEMBERS", 0), ("PURPOSE", 0)], &cells);
    }
    let empty: Vec<&Row> = rows.iter().filter(|row| row.size == 0).collect();
    if !members && !empty.is_empty() {
        let of = |family| empty.iter().filter(|row| row.family == family).count();
        let (v4, v6) = (of(Family::V4), of(Family::V6));
        let text = format!(
            "hidden: {} ({v4} IPv4, {v6} IPv6); -o wide lists all sets and members",
            number_of(v4 + v6, "empty set")
        );
        page.para("", &text);
    }
}
