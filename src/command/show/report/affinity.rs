//! Clients that session affinity binds to a backend.

use crate::render::Page;
use crate::report::backend_status::in_words;
use crate::view::affinity::Row;
use crate::view::conntrack::BackendStatus;

pub(super) fn page(rows: &[Row], page: &mut Page) {
    let cells = rows.iter().map(|row| {
        let left = row.seconds_left.map(|seconds| format!("{seconds}s"));
        vec![
            row.service.to_string(),
            row.protocol.to_string(),
            row.client.to_string(),
            row.backend.to_string(),
            row.backend_status.map_or("?", in_words).to_owned(),
            left.unwrap_or_else(|| "?".to_owned()),
            row.pod.clone().unwrap_or_default(),
        ]
    });
    let cells: Vec<_> = cells.collect();
    page.grid(
        &[
            ("SERVICE", 0),
            ("PROTOCOL", 4),
            ("CLIENT", 0),
            ("BACKEND", 0),
            ("", 0),
            ("FORGOTTEN IN", 3),
            ("POD", 5),
        ],
        &cells,
    );
    if rows
        .iter()
        .any(|row| row.backend_status == Some(BackendStatus::Stale))
    {
        page.para(
            "",
            "STALE: the backend is no longer an endpoint of the Service; if the rules still send the client there, `kpx \
             diff` shows them",
        );
    }
}
