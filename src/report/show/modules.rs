//! Kernel modules: what each mode uses, and where it stands.

use serde::Serialize;

use super::{Asked, Gaps, modes::Relevant};
use crate::backend::Mode;
use crate::evidence::{Gap, Item};
use crate::node::NodeSnapshot;
use crate::node::modules::Standing;
use crate::node::wanted::{self, Wanted};
use crate::render::Page;

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Row {
    pub(super) module: String,
    standing: &'static str,
    /// Whether it is loaded at boot; `null` if that was not read.
    at_boot: Option<bool>,
    /// The modes that use it.
    modes: Vec<Mode>,
    /// Whether the mode in force is one of them; true if that mode is not known.
    in_force: bool,
    /// Where it is needed at all; empty for everywhere.
    only: &'static str,
    purpose: &'static str,
}

pub(super) fn rows(
    node: &NodeSnapshot<'_>,
    asked: Asked<'_>,
    relevant: &Relevant,
    gaps: &mut Gaps,
) -> Vec<Row> {
    let Some(modules) = gaps.take(node.modules()) else {
        return Vec::new();
    };
    let current = relevant.current();
    let scheduler = match node.proxy_config() {
        Ok(config) => config.scheduler().to_owned(),
        Err(gap) => {
            if current.is_none_or(|mode| mode == Mode::Ipvs) {
                gaps.add(gap);
            }
            "rr".to_owned()
        }
    };
    let version = node.proxy_version(None).ok().map(|of| of.version);
    let newer = version.is_some_and(|version| version.at_least(1, 27));
    let wanted = wanted::MODULES
        .iter()
        .filter(|of| !(newer && of.only == "before 1.27"));
    let rows = wanted.filter_map(|of| {
        let &Wanted {
            modes,
            only,
            purpose,
            ..
        } = of;
        let module = of.name(&scheduler);
        if !asked.wants(None, &[&module]) {
            return None;
        }
        let standing = modules.standing(&module);
        let persisted = modules.persisted.as_ref();
        Some(Row {
            at_boot: persisted.map(|all| all.contains_key(module.as_ref())),
            module: module.into_owned(),
            standing: match standing {
                Standing::Loaded => "loaded",
                Standing::BuiltIn => "built-in",
                Standing::Loadable => "loadable",
                Standing::Blocked => "blocked",
                Standing::Missing => "missing",
                Standing::Unknown if modules.loaded.is_some() => "not-loaded",
                Standing::Unknown => "unknown",
            },
            modes: modes.to_vec(),
            in_force: current.is_none_or(|current| modes.contains(&current)),
            only,
            purpose,
        })
    });
    let mut rows: Vec<_> = rows.collect();
    rows.sort_by(|a, b| a.module.cmp(&b.module));
    rows.dedup_by(|a, b| a.module == b.module);
    // A module that is not loaded may be there for the asking; what would tell is missed only then.
    let unsure = |row: &Row| matches!(row.standing, "not-loaded" | "unknown");
    if rows.iter().any(|row| row.in_force && unsure(row)) {
        let parts = [
            (modules.loaded.is_none(), Item::Modules),
            (modules.builtin.is_none(), Item::ModulesBuiltin),
            (modules.available.is_none(), Item::ModulesDep),
        ];
        for (_, item) in parts.into_iter().filter(|(missing, _)| *missing) {
            let why = node.evidence().text(item).err();
            gaps.add(why.unwrap_or(Gap::NotCollected(item)));
        }
    }
    rows
}

fn names(modes: &[Mode]) -> String {
    if modes.len() == Mode::ALL.len() {
        return "all".to_owned();
    }
    let names: Vec<_> = modes.iter().map(|mode| mode.name()).collect();
    names.join(",")
}

pub(super) fn page(rows: &[Row], current: Option<Mode>, named: bool, page: &mut Page) {
    let all = page.style().wide || named;
    let shown = rows.iter().filter(|row| all || row.in_force);
    let cells = shown.map(|row| {
        let standing = match row.standing {
            "built-in" => "built in",
            // Where it is needed everywhere, or somebody forbade it.
            "missing" if row.only.is_empty() => "MISSING",
            "blocked" => "BLOCKED",
            "not-loaded" => "not loaded",
            other => other,
        };
        let boot = match row.at_boot {
            Some(true) => "yes",
            Some(false) => "-",
            None => "",
        };
        let purpose = if row.only.is_empty() {
            row.purpose.to_owned()
        } else {
            format!("{} (only: {})", row.purpose, row.only)
        };
        let modes = if all || current.is_none() {
            names(&row.modes)
        } else {
            String::new()
        };
        let cells = [row.module.as_str(), standing, boot, &modes, &purpose];
        cells.map(str::to_owned).to_vec()
    });
    let cells: Vec<_> = cells.collect();
    let columns = [
        ("MODULE", 0),
        ("STANDING", 0),
        ("AT BOOT", 2),
        ("MODES", 0),
        ("FOR", 0),
    ];
    page.grid(&columns, &cells);
    if rows
        .iter()
        .any(|row| row.standing == "not-loaded" && (all || row.in_force))
    {
        page.para("", "not loaded: whether it could be is not known");
    }
    if rows
        .iter()
        .any(|row| row.standing == "blocked" && (all || row.in_force))
    {
        page.para("", "BLOCKED: a line in modprobe.d forbids loading it");
    }
    if all {
        return;
    }
    for mode in Mode::ALL.into_iter().filter(|mode| Some(*mode) != current) {
        let more = rows
            .iter()
            .filter(|row| !row.in_force && row.modes.contains(&mode));
        let more: Vec<&Row> = more.collect();
        let there = |row: &&&Row| matches!(row.standing, "loaded" | "built-in");
        let loaded = more.iter().filter(there).count();
        if !more.is_empty() {
            page.para(
                "",
                &format!(
                    "{mode} mode would use {} more, {loaded} of them loaded (-o wide lists them)",
                    more.len()
                ),
            );
        }
    }
}
