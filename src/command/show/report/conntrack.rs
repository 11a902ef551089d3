//! Tracked connections of Services.

use crate::render::Page;
use crate::report::backend_status::in_words;
use crate::view::conntrack::{BackendStatus, Count, Row};

pub(super) fn page(rows: &[Row], by_backend: &[Count], page: &mut Page) {
    if !by_backend.is_empty() {
        counts(by_backend, page);
        page.line("");
    }
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
    let has = |status| rows.iter().any(|row| row.backend_status == Some(status));
    if has(BackendStatus::Stale) {
        page.para(
            "",
            "STALE: the backend is no longer an endpoint of the Service; packets of the connection go there until its \
             entry expires; `kpx reconcile --part conntrack`, with --apply, deletes those that no backend answers",
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

/// Adds the connections of a Service by backend.
pub(super) fn counts(all: &[Count], page: &mut Page) {
    let cells = all.iter().map(|tally| {
        vec![
            tally.service.to_string(),
            tally.backend.map_or("-".to_owned(), |at| at.to_string()),
            tally.backend_status.map_or("?", in_words).to_owned(),
            tally.connections.to_string(),
            tally.waiting.to_string(),
            tally
                .transit
                .map_or("?".to_owned(), |count| count.to_string()),
            tally.pod.clone().unwrap_or_default(),
        ]
    });
    let cells: Vec<_> = cells.collect();
    page.grid(
        &[
            ("SERVICE", 0),
            ("BACKEND", 0),
            ("", 0),
            ("CONNECTIONS", 0),
            ("WAITING", 2),
            ("IN TRANSIT", 0),
            ("POD", 5),
        ],
        &cells,
    );
    if all.iter().any(|tally| tally.transit > Some(0)) {
        page.para(
            "",
            "IN TRANSIT: the clients are not on this node, but their packets are routed through it; they lose their \
             connections if it goes",
        );
    }
}
