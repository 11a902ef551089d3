//! Kernel modules.

use std::collections::{BTreeMap, BTreeSet};

use crate::evidence::{Evidence, Gap, Item};

/// State of kernel modules; names use `_`, never `-`.
#[derive(Clone, Debug, Default)]
pub struct Modules<'a> {
    /// Loaded modules with their use counts; `None` if unknown or the kernel has no module support.
    pub loaded: Option<BTreeMap<String, u32>>,
    /// Modules built into the kernel.
    pub builtin: Option<BTreeSet<String>>,
    /// Loadable modules by name.
    pub available: Option<BTreeMap<String, Available<'a>>>,
    /// Modules loaded at boot, with the file that lists them.
    pub persisted: Option<BTreeMap<String, &'a str>>,
    /// Modules that cannot be loaded (`install NAME /bin/false`), with the file that forbids it.
    pub blocked: Option<BTreeMap<String, &'a str>>,
}

/// A loadable module.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Available<'a> {
    /// File relative to `/lib/modules/RELEASE`.
    pub file: &'a str,
    /// Modules that must be loaded first.
    pub needs: Vec<String>,
}

/// State of a module.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Standing {
    /// Loaded.
    Loaded,
    /// Built into the kernel.
    BuiltIn,
    /// Not loaded, but installed.
    Loadable,
    /// Installed, but loading it is forbidden.
    Blocked,
    /// Neither loaded, built in nor installed.
    Missing,
    /// The evidence is missing.
    Unknown,
}

impl Modules<'_> {
    /// Returns whether the kernel counts for nfacct, but has no match for rules: `nfnetlink_acct` without `xt_nfacct`.
    pub fn counts_unmatched(&self) -> bool {
        let lacks = matches!(
            self.standing("xt_nfacct"),
            Standing::Missing | Standing::Blocked
        );
        let counts = matches!(
            self.standing("nfnetlink_acct"),
            Standing::Loaded | Standing::BuiltIn | Standing::Loadable
        );
        lacks && counts
    }

    /// Returns the state of the module `name`.
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
                let blocked = self.blocker(&name).is_some();
                in_map(blocked, Standing::Blocked)
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

impl<'a> Modules<'a> {
    /// Returns the module that cannot be loaded, `name` itself or one of its dependencies, and the file that forbids
    /// it.
    pub fn blocker(&self, name: &str) -> Option<(String, &'a str)> {
        let name = name.replace('-', "_");
        let blocked = self.blocked.as_ref()?;
        let available = self.available.as_ref().and_then(|all| all.get(&name));
        let needs = available.map_or(&[][..], |module| module.needs.as_slice());
        let there = |name: &String| {
            let loaded = self.loaded.as_ref();
            let builtin = self.builtin.as_ref();
            loaded.is_some_and(|all| all.contains_key(name))
                || builtin.is_some_and(|all| all.contains(name))
        };
        let names = std::iter::once(&name).chain(needs);
        names
            .filter(|name| !there(name))
            .find_map(|name| Some((name.clone(), *blocked.get(name)?)))
    }

    /// Returns which of `names` and their dependencies are installed but not loaded, in loading order.
    pub fn to_load(&self, names: &[String]) -> Vec<String> {
        let mut order: Vec<String> = Vec::new();
        for name in names {
            let name = name.replace('-', "_");
            let available = self.available.as_ref().and_then(|all| all.get(&name));
            let needs = available.map_or(&[][..], |module| module.needs.as_slice());
            // modules.dep lists the nearest dependency first.
            for name in needs.iter().rev().chain([&name]) {
                if !order.contains(name) && self.standing(name) == Standing::Loadable {
                    order.push(name.clone());
                }
            }
        }
        order
    }
}

/// Parses `/proc/modules`, modules.builtin, modules.dep, modules-load.d and modprobe.d; each may be missing.
pub fn parse(evidence: &Evidence) -> Result<Modules<'_>, Gap> {
    let read = |item| evidence.text(item);
    let modules = Modules {
        loaded: read(Item::Modules).ok().map(loaded).transpose()?,
        builtin: read(Item::ModulesBuiltin).ok().map(|text| {
            let files = text.lines().map(str::trim).filter(|line| !line.is_empty());
            files.map(name_of_file).collect()
        }),
        available: read(Item::ModulesDep).ok().map(available),
        persisted: read(Item::ModulesLoad).ok().map(|text| {
            let lines = filed(text).filter_map(|(file, line)| {
                let name = line.split_ascii_whitespace().next()?;
                Some((name.replace('-', "_"), file))
            });
            lines.collect()
        }),
        blocked: read(Item::Modprobe)
            .ok()
            .map(|text| filed(text).filter_map(blocked).collect()),
    };
    let nothing = modules.loaded.is_none()
        && modules.builtin.is_none()
        && modules.available.is_none()
        && modules.persisted.is_none()
        && modules.blocked.is_none();
    match read(Item::Modules) {
        Err(gap) if nothing => Err(gap),
        _ => Ok(modules),
    }
}

/// Parses lines of `NAME SIZE USES NEEDS STATE ADDRESS`.
fn loaded(text: &str) -> Result<BTreeMap<String, u32>, Gap> {
    let mut modules = BTreeMap::new();
    for (number, line) in (1..).zip(text.lines()) {
        let mut words = line.split_ascii_whitespace();
        let Some(name) = words.next() else {
            continue;
        };
        // `-` in a kernel that cannot unload modules.
        let uses = match words.nth(1) {
            Some("-") => Some(0),
            Some(uses) => uses.parse().ok(),
            None => None,
        };
        let uses = uses.ok_or_else(|| {
            let why = format!("line {number}: {name} has no use count");
            Gap::Failed(Item::Modules, why)
        })?;
        modules.insert(name.replace('-', "_"), uses);
    }
    Ok(modules)
}

/// Parses lines of `FILE: FILE…`.
fn available(text: &str) -> BTreeMap<String, Available<'_>> {
    let lines = text.lines().filter_map(|line| line.split_once(':'));
    let modules = lines.map(|(file, needs)| {
        let needs = needs.split_ascii_whitespace().map(name_of_file);
        let available = Available {
            file: file.trim(),
            needs: needs.collect(),
        };
        (name_of_file(file), available)
    });
    modules.collect()
}

/// Returns `ip_vs` for `kernel/net/netfilter/ipvs/ip_vs.ko.xz`.
fn name_of_file(file: &str) -> String {
    let name = file.trim().rsplit('/').next().unwrap_or(file);
    let name = name.split_once(".ko").map_or(name, |(name, _)| name);
    name.replace('-', "_")
}

/// Iterates over lines of `FILE: LINE` as pairs; comments are skipped.
pub fn filed(text: &str) -> impl Iterator<Item = (&str, &str)> {
    text.lines()
        .filter_map(|line| line.split_once(": "))
        .map(|(file, line)| (file, line.trim()))
        .filter(|(_, line)| !line.is_empty() && !line.starts_with(['#', ';']))
}

fn blocked<'a>((file, line): (&'a str, &'a str)) -> Option<(String, &'a str)> {
    let mut words = line.strip_prefix("install ")?.split_ascii_whitespace();
    let name = words.next()?.replace('-', "_");
    let command = words.next()?;
    // Whether the command fails or succeeds, it does not load the module.
    let blocks = command.ends_with("/false") || command.ends_with("/true");
    blocks.then_some((name, file))
}
