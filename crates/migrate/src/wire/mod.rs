//! The messages between the coordinator of a fleet and kpx on a node.
//!
//! The coordinator composes a [`NodeCommand`] and starts it in a pod on the node. With `--output json`, that kpx prints
//! [`Line`]s: events, and a report at the end. The coordinator reads them back from the pod's log as the same types.

mod command;
mod event;
mod report;

use serde::{Deserialize, Serialize};

pub use command::{NodeCommand, Start, Timeouts};
pub use event::{Event, EventLine};
pub use report::{NodeReport, Outcome};

/// One line that kpx prints on a node: a JSON object, with its `kind`.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[serde(tag = "kind")]
pub enum Line {
    /// An event, as it happens.
    MigrateEvent(EventLine),
    /// The result: the last line.
    MigrateReport(Box<NodeReport>),
}

impl Line {
    /// The `kind` of an event.
    pub const EVENT: &str = "MigrateEvent";

    /// The `kind` of a report.
    pub const REPORT: &str = "MigrateReport";

    /// Reads a line of a pod's log; `None` for any other text.
    pub fn parse(text: &str) -> Option<Self> {
        serde_json::from_str(text).ok()
    }

    /// Returns the line as kpx prints it.
    pub fn to_text(&self) -> String {
        // Every field can be written as JSON.
        serde_json::to_string(self).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::migration::{Leg, Stage};

    #[test]
    fn a_line_is_read_back_as_it_was_written() {
        let event = Event::Begins {
            leg: Leg::Back,
            stage: Stage::Verify,
            title: "t".to_owned(),
            steps: 2,
            number: 3,
            of: 9,
        };
        let event = Line::MigrateEvent(EventLine::from(event));
        let report = NodeReport {
            why: Some("no ip_vs".to_owned()),
            ..NodeReport::already(kpx_node::backend::Mode::Ipvs)
        };
        let report = Line::MigrateReport(Box::new(report));
        for (line, kind) in [(event, Line::EVENT), (report, Line::REPORT)] {
            let text = line.to_text();
            let value: serde_json::Value = serde_json::from_str(&text).unwrap();
            assert_eq!(value["kind"], kind);
            assert_eq!(Line::parse(&text), Some(line));
        }
        assert_eq!(Line::parse("kpx: cannot open"), None);
    }
}
