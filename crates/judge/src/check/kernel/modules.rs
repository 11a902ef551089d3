//! Kernel modules that a mode needs.

use crate::check::Facts;
use kpx_node::backend::{Mode, requirements};
use kpx_node::evidence::{Gap, Item};
use kpx_node::node::modules::{Modules, Standing};

pub(super) const MODULES: &[Item] = &[
    Item::Modules,
    Item::ModulesBuiltin,
    Item::ModulesDep,
    Item::Modprobe,
];

/// Returns the modules that `mode` needs on every node.
pub(super) fn needed(facts: &Facts<'_>, mode: Mode) -> Vec<String> {
    let config = facts.configuration();
    let scheduler = config
        .as_ref()
        .map_or("rr", |config| config.scheduler())
        .to_owned();
    let all = requirements::modules_always(mode, &scheduler).into_iter();
    all.map(std::borrow::Cow::into_owned).collect()
}

/// Returns the state of `name`; before kernel 5.2 `xt_MASQUERADE` was `ipt_MASQUERADE`. A module that modprobe.d may forbid is
/// unknown.
pub(super) fn standing(modules: &Modules<'_>, name: &str) -> Standing {
    let standing = match (name, modules.standing(name)) {
        ("xt_MASQUERADE", Standing::Missing) => modules.standing("ipt_MASQUERADE"),
        (_, standing) => standing,
    };
    match standing {
        Standing::Loadable if modules.blocked.is_none() => Standing::Unknown,
        standing => standing,
    }
}

/// Returns the gap that hides the state of a module.
pub(super) fn unread_modules(facts: &Facts<'_>) -> Gap {
    let tells = [
        Item::ModulesBuiltin,
        Item::ModulesDep,
        Item::Modules,
        Item::Modprobe,
    ];
    let gaps = tells.map(|item| (item, facts.node.evidence().text(item).err()));
    let mut gaps = gaps
        .into_iter()
        .filter_map(|(item, gap)| Some((item, gap?)));
    match gaps.next() {
        // Without loadable modules only built-in ones count, so the check still applies.
        Some((item, Gap::NotApplicable(why))) => {
            Gap::Absent(item, format!("{why}, and it is unknown what is built in"))
        }
        Some((_, gap)) => gap,
        None => Gap::NotCollected(Item::Modules),
    }
}
