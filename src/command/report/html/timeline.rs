//! The changes that `kpx watch` printed, in their order.

use super::{Section, para, table};
use crate::report::history::ChangeEvent;

/// The file with the changes, and these.
type Timeline = (String, Vec<ChangeEvent<'static>>);

pub(super) fn section(timeline: Option<&Timeline>) -> Section<'_> {
    let count = timeline.map(|(_, events)| events.len());
    Section::new("timeline", "Time line", count, move |markup| {
        let Some((file, events)) = timeline else {
            let text = "No time line. `kpx watch -o json` writes one, and `kpx report --timeline FILE` shows it here.";
            return para(markup, text);
        };
        if events.is_empty() {
            return markup.leaf("p", &[], &format!("No changes in {file}."));
        }
        let rows = events.iter().map(|event| {
            let after = event.after_seconds.map(|seconds| format!("{seconds} s"));
            vec![
                event.at.to_string(),
                event.verb().to_owned(),
                event.subject(),
                event.details(),
                after.unwrap_or_else(|| "-".to_owned()),
            ]
        });
        let rows: Vec<_> = rows.collect();
        let columns = ["Time", "Change", "Object", "Details", "After"];
        table(markup, &format!("Changes in {file}"), &columns, &rows);
    })
}
