//! Tracked connections of Services.

use crate::render::Page;
use crate::view::conntrack::{BackendStatus, Row};

pub(super) fn page(rows: &[Row], page: &mut Page) {
    let cells = rows.iter().map(|row| {
        let status = row.backend_status.map_or("?", in_words);
        let expires = row.timeout.map(|seconds| format!("{seconds}s"));
        vec![
            row.service.to_string(),
            row.source.to_string(),
            format!("{}/{}", row.destination, row.protocol),
            row.backend.map_or("-".to_owned(), |at| at.to_string()),
            status.to_owned(),
            row.state.clone().unwrap_or_else(|| "-".to_owned()),
            expires.unwrap_or_else(|| "?".to_owned()),
            row.pod.clone().unwrap_or_default(),
        ]
    });
    let cells: Vec<_> = cells.collect();
    page.grid(
        &[
            ("SERVICE", 0),
            ("FROM", 0),
            ("TO", 3),
            ("BACKEND", 0),
            ("", 0),
            ("STATE", 4),
            ("EXPIRES", 5),
            ("POD", 6),
        ],
        &cells,
    );
    let has = |of| rows.iter().any(|row| row.backend_status == Some(of));
    if has(BackendStatus::Stale) {
        page.para(
            "",
            "STALE: the backend is no longer an endpoint of the Service; delete the entry with `conntrack -D`, or packets \
             of the connection go there until it expires",
        );
    }
    if has(BackendStatus::NotTranslated) {
        page.para(
            "",
            "NOT TRANSLATED: the connection started before the rules of the Service existed, and bypasses them until \
             its entry expires",
        );
    }
}

pub(super) const fn in_words(status: BackendStatus) -> &'static str {
    match status {
        BackendStatus::Endpoint => "",
        BackendStatus::Terminating => "terminating",
        BackendStatus::NotReady => "not ready",
        BackendStatus::Stale => "STALE",
        BackendStatus::NotTranslated => "NOT TRANSLATED",
    }
}
