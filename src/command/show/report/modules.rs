//! Kernel modules.

use crate::render::Page;
use crate::view::modules::{ModuleState, Row};
use kpx_node::backend::Mode;

pub(super) fn page(rows: &[Row], current: Option<Mode>, named: bool, page: &mut Page) {
    let all = page.style().wide || named;
    let shown: Vec<&Row> = rows.iter().filter(|row| all || row.in_force).collect();
    let cells = shown.iter().map(|row| {
        let boot = match row.at_boot {
            Some(true) => "yes",
            Some(false) => "-",
            None => "",
        };
        let purpose = match row.when {
            None => row.purpose.to_owned(),
            Some(when) => format!("{} (only for {when})", row.purpose),
        };
        let modes = if all || current.is_none() {
            names(&row.modes)
        } else {
            String::new()
        };
        let cells = [row.module.as_str(), in_words(row), boot, &modes, &purpose];
        cells.map(str::to_owned).to_vec()
    });
    let cells: Vec<_> = cells.collect();
    let columns = [
        ("MODULE", 0),
        ("STATE", 0),
        ("AT BOOT", 2),
        ("MODES", 0),
        ("PURPOSE", 0),
    ];
    page.grid(&columns, &cells);
    let has = |state| shown.iter().any(|row| row.state == Some(state));
    if has(ModuleState::NotLoaded) {
        page.para("", "not loaded: whether it can be loaded is unknown");
    }
    if has(ModuleState::Blocked) {
        page.para("", "BLOCKED: a line in modprobe.d forbids loading it");
    }
    if !all {
        others(rows, current, page);
    }
}

/// Adds how many modules the other modes would use.
fn others(rows: &[Row], current: Option<Mode>, page: &mut Page) {
    for mode in Mode::ALL.into_iter().filter(|mode| Some(*mode) != current) {
        let more = rows.iter().filter(|row| !row.in_force);
        let more: Vec<&Row> = more.filter(|row| row.modes.contains(&mode)).collect();
        if more.is_empty() {
            continue;
        }
        let present = [Some(ModuleState::Loaded), Some(ModuleState::BuiltIn)];
        let loaded = more.iter().filter(|row| present.contains(&row.state));
        let (count, loaded) = (more.len(), loaded.count());
        let text =
            format!("mode {mode} uses {count} more, {loaded} of them loaded; -o wide lists them");
        page.para("", &text);
    }
}

fn names(modes: &[Mode]) -> String {
    if modes.len() == Mode::ALL.len() {
        return "all".to_owned();
    }
    let names: Vec<_> = modes.iter().map(|mode| mode.name()).collect();
    names.join(",")
}

/// Returns the state of a module, in capitals if the mode cannot work.
pub(super) const fn in_words(row: &Row) -> &'static str {
    match row.state {
        Some(ModuleState::Loaded) => "loaded",
        Some(ModuleState::BuiltIn) => "built in",
        Some(ModuleState::Loadable) => "loadable",
        Some(ModuleState::Blocked) => "BLOCKED",
        Some(ModuleState::Missing) if row.when.is_none() => "MISSING",
        Some(ModuleState::Missing) => "missing",
        Some(ModuleState::NotLoaded) => "not loaded",
        None => "?",
    }
}
