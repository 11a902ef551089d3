//! Kernel modules.

use std::collections::{BTreeMap, BTreeSet};

use crate::evidence::{Evidence, Gap, Item};

/// What is known of kernel modules; names use `_`, never `-`.
#[derive(Clone, Debug, Default)]
pub struct Modules<'a> {
    /// Loaded modules with their use counts; `Err` when the kernel has no module support or it was not read.
    pub loaded: Option<BTreeMap<String, u32>>,
    /// Modules built into the kernel.
    pub builtin: Option<BTreeSet<String>>,
    /// Loadable modules: file below `/lib/modules/RELEASE`, and the names they depend on.
    pub available: Option<BTreeMap<String, Available<'a>>>,
    /// Modules loaded at boot, with the file that says so.
    pub persisted: Option<BTreeMap<String, &'a str>>,
    /// Blacklisted or blocked modules (`install NAME /bin/false`), with the file that says so.
    pub blocked: Option<BTreeMap<String, &'a str>>,
}

/// A loadable module.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Available<'a> {
    /// The file, below `/lib/modules/RELEASE`.
    pub file: &'a str,
    /// Modules that must be loaded first.
    pub needs: Vec<String>,
}

/// Where a module stands.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Standing {
    /// Loaded.
    Loaded,
    /// Part of the kernel.
    BuiltIn,
    /// There to be loaded.
    Loadable,
    /// There, but its loading is blocked.
    Blocked,
    /// Neither loaded nor built in nor there to be loaded.
    Missing,
    /// What would tell was not read.
    Unknown,
}

impl Modules<'_> {
    /// Returns where the module `name` stands.
    pub fn standing(&self, name: &str) -> Standing {
        let name = name.replace('-', "_");
        let in_map = |map: bool, standing| map.then_some(standing);
        self.loaded
            .as_ref()
            .and_then(|m| in_map(m.contains_key(&name), Standing::Loaded))
            .or_else(|| {
                self.builtin
                    .as_ref()
                    .and_then(|m| in_map(m.contains(&name), Standing::BuiltIn))
            })
            .or_else(|| {
                self.blocked
                    .as_ref()
                    .and_then(|m| in_map(m.contains_key(&name), Standing::Blocked))
            })
            .or_else(|| {
                self.available
                    .as_ref()
                    .and_then(|m| in_map(m.contains_key(&name), Standing::Loadable))
            })
            .unwrap_or(
                if self.loaded.is_some() && self.builtin.is_some() && self.available.is_some() {
                    Standing::Missing
                } else {
                    Standing::Unknown
                },
            )
    }
}

/// Reads `/proc/modules`, modules.builtin, modules.dep, modules-load.d and modprobe.d; each may be missing.
pub fn parse(_evidence: &Evidence) -> Result<Modules<'_>, Gap> {
    Err(Gap::Failed(Item::Modules, "not parsed yet".to_owned()))
}
