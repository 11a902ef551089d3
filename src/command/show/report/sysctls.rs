//! Sysctls.

use crate::render::Page;
use crate::view::sysctls::Row;
use kpx_node::backend::Mode;
use kpx_node::backend::requirements::By;

pub(super) fn page(rows: &[Row], current: Option<Mode>, named: bool, page: &mut Page) {
    let all = page.style().wide || named;
    let shown = rows.iter().filter(|row| all || row.in_force);
    let cells = shown.map(|row| {
        let note = match (row.as_wanted, row.by) {
            _ if !row.in_force => "",
            (Some(true), _) => "",
            (Some(false), By::Advice) => "ADVISED",
            (Some(false), _) => "DIFFERS",
            (None, _) => "?",
        };
        let by = match row.by {
            By::KubeProxy => "kube-proxy",
            By::Network => "pod network",
            By::Advice => "advice",
        };
        let modes: Vec<&str> = row.modes.iter().map(|mode| mode.name()).collect();
        let modes = match modes.len() {
            _ if !all && current.is_some() => String::new(),
            3 => "all".to_owned(),
            _ => modes.join(","),
        };
        let value = row.value.as_deref().unwrap_or("?");
        let cells = [
            row.sysctl,
            value,
            &row.wanted,
            note,
            by,
            &modes,
            row.purpose,
        ];
        cells.map(str::to_owned).to_vec()
    });
    let cells: Vec<_> = cells.collect();
    page.grid(
        &[
            ("SYSCTL", 0),
            ("VALUE", 0),
            ("WANTED", 0),
            ("", 0),
            ("SET BY", 2),
            ("MODES", 1),
            ("PURPOSE", 3),
        ],
        &cells,
    );
    let differs = rows.iter().filter(|row| row.in_force);
    for row in differs.filter(|row| row.as_wanted == Some(false)) {
        let why = match row.by {
            By::KubeProxy => "kube-proxy sets it when it starts; another program changed it",
            By::Network => "the pod network requires it; kube-proxy does not set it",
            By::Advice => advice(row.sysctl),
        };
        page.para(
            &format!("{}: ", row.sysctl),
            &format!("{}; {why}", row.purpose),
        );
    }
    let hidden = rows.iter().filter(|row| !row.in_force).count();
    if !all && hidden > 0 {
        let text = format!(
            "{hidden} more matter only in other modes; -o wide lists them, and the purpose of each"
        );
        page.para("", &text);
    }
}

/// Returns how to set a sysctl that kpx recommends.
fn advice(sysctl: &str) -> &'static str {
    if sysctl.ends_with("tcp_be_liberal") {
        "set `conntrack.tcpBeLiberal`"
    } else {
        "set it with `sysctl -w`"
    }
}
