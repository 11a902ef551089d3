//! Kernel modules: the modes that use each, and its state.

use serde::Serialize;

use super::{Gaps, Joined};
use kpx_node::backend::Mode;
use kpx_node::backend::requirements::{self, Condition};
use kpx_node::evidence::{Gap, Item};
use kpx_node::node::modules::{Modules, Standing};

/// A module.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub(crate) struct Row {
    pub(crate) module: String,
    /// `null` if unknown.
    pub(crate) state: Option<ModuleState>,
    /// Whether it is loaded at boot; `null` if unknown.
    pub(crate) at_boot: Option<bool>,
    /// The modes that use it.
    pub(crate) modes: Vec<Mode>,
    /// Whether they include the mode in force; true if it is unknown.
    pub(crate) in_force: bool,
    /// When these modes use it; absent for always.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) when: Option<Condition>,
    pub(crate) purpose: &'static str,
}

/// The state of a module.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub(crate) enum ModuleState {
    Loaded,
    BuiltIn,
    /// Not loaded, but installed.
    Loadable,
    /// Not loaded, and a line in modprobe.d forbids loading it.
    Blocked,
    /// Neither loaded, built in nor installed.
    Missing,
    /// Not loaded; whether it can be is unknown.
    NotLoaded,
}

impl ModuleState {
    fn of(modules: &Modules<'_>, name: &str) -> Option<Self> {
        match modules.standing(name) {
            Standing::Loaded => Some(Self::Loaded),
            Standing::BuiltIn => Some(Self::BuiltIn),
            Standing::Loadable => Some(Self::Loadable),
            Standing::Blocked => Some(Self::Blocked),
            Standing::Missing => Some(Self::Missing),
            Standing::Unknown => modules.loaded.is_some().then_some(Self::NotLoaded),
        }
    }
}

pub(crate) fn rows(joined: Joined<'_, '_>, gaps: &mut Gaps) -> Vec<Row> {
    let Some(modules) = gaps.take(joined.node.modules()) else {
        return Vec::new();
    };
    let current = joined.relevant.current();
    let scheduler = match joined.node.proxy_config() {
        Ok(config) => config.scheduler(),
        Err(gap) => {
            if current.is_none_or(|mode| mode == Mode::Ipvs) {
                gaps.add(gap);
            }
            "rr"
        }
    };
    let version = joined
        .node
        .proxy_version(None)
        .ok()
        .map(|proxy_version| proxy_version.version);
    let is_over = |when| match when {
        Some(Condition::Before(change)) => version.is_some_and(|version| version.has(change)),
        _ => false,
    };
    let mut rows: Vec<Row> = Vec::new();
    for mode in Mode::ALL {
        let used = requirements::modules(mode);
        for module in used.filter(|module| !is_over(module.when)) {
            let name = module.name(scheduler);
            if !joined.query.wants(None, &[&name]) {
                continue;
            }
            if let Some(row) = rows.iter_mut().find(|row| row.module == name) {
                if !row.modes.contains(&mode) {
                    row.modes.push(mode);
                }
                continue;
            }
            let persisted = modules.persisted.as_ref();
            rows.push(Row {
                state: ModuleState::of(modules, &name),
                at_boot: persisted.map(|all| all.contains_key(name.as_ref())),
                module: name.into_owned(),
                modes: vec![mode],
                in_force: false,
                when: module.when,
                purpose: module.purpose,
            });
        }
    }
    for row in &mut rows {
        row.in_force = current.is_none_or(|current| row.modes.contains(&current));
    }
    rows.sort_by(|a, b| a.module.cmp(&b.module));
    // Only for a module that is not loaded does it matter whether it is built in or installed.
    let unsure = |row: &Row| matches!(row.state, None | Some(ModuleState::NotLoaded));
    if rows.iter().any(|row| row.in_force && unsure(row)) {
        let parts = [
            (modules.loaded.is_none(), Item::Modules),
            (modules.builtin.is_none(), Item::ModulesBuiltin),
            (modules.available.is_none(), Item::ModulesDep),
        ];
        for (_, item) in parts.into_iter().filter(|(missing, _)| *missing) {
            let why = joined.node.evidence().text(item).err();
            gaps.add(why.unwrap_or(Gap::NotCollected(item)));
        }
    }
    rows
}
