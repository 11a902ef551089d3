//! The last migration that kpx started on the node.

use serde::Deserialize;
use serde_json::Value;

use crate::backend::Mode;
use crate::evidence::{Gap, Item, Time};

/// State of a migration, from its journal.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Migration {
    /// ID of the migration.
    pub id: String,
    /// Start time.
    pub began: Time,
    /// Mode before the migration.
    pub from: Mode,
    /// Target mode.
    pub to: Mode,
    /// Name of the last stage that was started; `None` before the first one.
    pub stage: Option<String>,
    /// Whether the migration is complete or rolled back.
    pub ended: bool,
}

#[derive(Deserialize)]
struct Journey {
    id: String,
    began: Time,
    from: Mode,
    there: There,
}

#[derive(Deserialize)]
struct There {
    mode: Mode,
}

/// Parses the journal. An incomplete last line is ignored: its step was not started.
pub(crate) fn parse(text: &str) -> Result<Migration, Gap> {
    let broken = |e: serde_json::Error| Gap::Failed(Item::Migration, e.to_string());
    let mut lines = text.lines();
    let first: Value = serde_json::from_str(lines.next().unwrap_or_default()).map_err(broken)?;
    let journey: Journey = serde_json::from_value(first["journey"].clone()).map_err(broken)?;
    let mut migration = Migration {
        id: journey.id,
        began: journey.began,
        from: journey.from,
        to: journey.there.mode,
        stage: None,
        ended: false,
    };
    for entry in lines.filter_map(|line| serde_json::from_str::<Value>(line).ok()) {
        if let Some(stage) = entry["stage"].as_str() {
            migration.stage = Some(stage.to_owned());
        }
        migration.ended = entry["entry"] == "ended";
    }
    Ok(migration)
}
