//! The chains of iptables to read next, for a walk over rules that are read chain by chain.

use std::collections::{BTreeMap, BTreeSet};

use super::Need;
use kpx_node::backend::iptables::model::{Chain, Target};
use kpx_node::backend::iptables::names;

/// Chains, as far as they are read; `None` for one that does not exist.
pub type Parts<'a> = BTreeMap<Need, Option<Chain<'a>>>;

/// Returns `need` and the chains that are likely to be needed next: those that built-in chains jump to and, if `need` is an
/// endpoint, the other endpoints of its Service. Reading many chains at once takes hardly longer than reading one.
pub fn nearby(parts: &Parts<'_>, need: Need) -> BTreeSet<Need> {
    let endpoint = need.chain.starts_with(names::SEP);
    let mut wanted = led_to(parts, |chain| {
        chain.policy.is_some() || endpoint && leads(chain).any(|to| *to == *need.chain)
    });
    wanted.insert(need);
    wanted
}

/// Returns the chains that are not read yet and are jumped to by a chain of `parts` for which `is_meant` holds.
pub fn led_to(parts: &Parts<'_>, is_meant: impl Fn(&Chain<'_>) -> bool) -> BTreeSet<Need> {
    let mut wanted = BTreeSet::new();
    for (at, chain) in parts {
        let Some(chain) = chain.as_ref().filter(|chain| is_meant(chain)) else {
            continue;
        };
        let more = leads(chain).map(|to| Need {
            table: at.table.clone(),
            chain: to.to_owned(),
        });
        wanted.extend(more.filter(|need| !parts.contains_key(need)));
    }
    wanted
}

/// Returns the chains that `chain` jumps to.
fn leads<'c>(chain: &'c Chain<'_>) -> impl Iterator<Item = &'c str> {
    chain.rules.iter().filter_map(|rule| match &rule.target {
        Some(Target::Jump(to) | Target::Goto(to)) if is_chain(to) => Some(&**to),
        _ => None,
    })
}

/// Returns whether a rule that jumps to `name` means a chain that is not built in: the targets of modules have no dash.
pub fn is_chain(name: &str) -> bool {
    name.contains('-')
}
