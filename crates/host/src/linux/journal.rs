//! Reads the journal of the last migration.

use serde_json::Value;

use super::context::{Context, gap};
use crate::Journals;
use kpx_node::evidence::{Gap, Item};

/// Reads the journal of the last migration without its steps, which are long and may be confidential.
pub(super) fn newest(item: Item, context: &Context) -> Result<String, Gap> {
    let journals = Journals::below(&context.options.root);
    let folder = journals.folder.display();
    let all = journals.all().map_err(|e| gap(item, &folder, &e))?;
    for id in all.iter().rev() {
        let text = journals.read(id).map_err(|e| gap(item, &folder, &e))?;
        if text.contains('\n') {
            return Ok(text.lines().map(brief).collect());
        }
    }
    Err(Gap::Absent(
        item,
        "no migration was started on this node".to_owned(),
    ))
}

/// Returns a line without its steps; an invalid line is returned unchanged.
fn brief(line: &str) -> String {
    match serde_json::from_str(line) {
        Ok(Value::Object(mut entry)) => {
            entry.remove("steps");
            Value::Object(entry).to_string() + "\n"
        }
        _ => format!("{line}\n"),
    }
}
