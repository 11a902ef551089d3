//! Modules installed for the running kernel: `/lib/modules/RELEASE`.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use super::super::super::context::Context;
use super::super::super::{modules, root_path};
use super::rules::{Rules, matches, plain};
use kpx_node::evidence::Item;

/// Module tree of the running kernel.
#[derive(Debug)]
pub(super) struct Tree {
    root: PathBuf,
    /// Path relative to the root.
    folder: PathBuf,
    modules: BTreeMap<String, Module>,
    builtin: BTreeSet<String>,
}

#[derive(Debug)]
struct Module {
    file: String,
    needs: Vec<String>,
}

/// Returns `ip_vs` for `kernel/net/netfilter/ipvs/ip_vs.ko.xz`.
fn name_of(file: &str) -> String {
    let name = file.rsplit('/').next().unwrap_or(file);
    plain(name.split_once(".ko").map_or(name, |(name, _)| name))
}

impl Tree {
    /// Reads modules.dep and modules.builtin, and adds modules.softdep to `rules`; the error is the reason.
    pub(super) fn read(context: &Context, rules: &mut Rules) -> Result<Self, String> {
        let folder = modules::tree(Item::ModulesDep, context).map_err(|gap| gap.to_string())?;
        let text =
            modules::dependencies(Item::ModulesDep, context).map_err(|gap| gap.to_string())?;
        let lines = text.lines().filter_map(|line| line.split_once(':'));
        let modules = lines.map(|(file, needs)| {
            let needs = needs.split_ascii_whitespace().map(name_of).collect();
            let file = file.trim().to_owned();
            (name_of(&file), Module { file, needs })
        });
        let modules = modules.collect();
        // A kernel without built-in modules may have no such file.
        let builtin = modules::builtin(Item::ModulesBuiltin, context).unwrap_or_default();
        let tree = Self {
            root: context.options.root.clone(),
            folder,
            modules,
            builtin: builtin.lines().map(str::trim).map(name_of).collect(),
        };
        // depmod writes this file; a tree without it has no soft dependencies.
        let soft = tree.text("modules.softdep").unwrap_or_default();
        for line in soft.lines() {
            rules.add("modules.softdep", line);
        }
        Ok(tree)
    }

    fn text(&self, name: &str) -> Option<String> {
        fs::read_to_string(self.at(name)).ok()
    }

    /// Returns the path of the tree's file `name` for this process.
    fn at(&self, name: &str) -> PathBuf {
        let path = self.folder.join(name);
        root_path::resolve(&self.root, &path).unwrap_or_else(|_| self.root.join(path))
    }

    /// Returns the path of the tree on the host.
    pub(super) fn folder(&self) -> String {
        Path::new("/").join(&self.folder).display().to_string()
    }

    /// Returns whether the module has a file.
    pub(super) fn has(&self, name: &str) -> bool {
        self.modules.contains_key(name)
    }

    /// Returns whether the module is built into the kernel.
    pub(super) fn has_builtin(&self, name: &str) -> bool {
        self.builtin.contains(name)
    }

    /// Returns the dependencies of the module, nearest first.
    pub(super) fn needs(&self, name: &str) -> Vec<String> {
        let module = self.modules.get(name);
        module.map_or_else(Vec::new, |module| module.needs.clone())
    }

    /// Returns the path of the module's file.
    pub(super) fn path(&self, name: &str) -> Option<PathBuf> {
        Some(self.at(&self.modules.get(name)?.file))
    }

    /// Returns the modules that declare the alias `name`, except blacklisted ones.
    pub(super) fn aliased(&self, name: &str, rules: &Rules) -> Vec<String> {
        let text = self.text("modules.alias").unwrap_or_default();
        let lines = text.lines().filter_map(|line| line.strip_prefix("alias "));
        let pairs = lines.filter_map(|line| line.rsplit_once(' '));
        let found = pairs.filter(|(pattern, _)| matches(&plain(pattern), name));
        let modules = found.map(|(_, module)| plain(module));
        modules
            .filter(|module| !rules.is_blacklisted(module))
            .collect()
    }
}
