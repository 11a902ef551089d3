//! The newest migration that kpx began on the node.

use serde::Deserialize;
use serde_json::Value;

use crate::backend::Mode;
use crate::evidence::{Gap, Item, Time};

/// A migration, as far as its journal tells where it stands.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Migration {
    /// Its name.
    pub id: String,
    /// When it began.
    pub began: Time,
    /// The mode it leaves.
    pub from: Mode,
    /// The mode it goes to.
    pub to: Mode,
    /// The stage that was begun last, by its name; none if none was.
    pub stage: Option<String>,
    /// Whether it is over, there or back.
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

/// Reads the journal. Its last line may be torn: what it announces was not begun.
pub fn parse(text: &str) -> Result<Migration, Gap> {
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
