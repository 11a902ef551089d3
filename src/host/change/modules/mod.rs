//! Kernel modules, loaded and unloaded as modprobe does: what they depend on first, and as modprobe.d says.
//!
//! [`rules`] holds what modprobe.d says, [`tree`] what `/lib/modules` has, [`file`] hands a module to the kernel.
//! Where that is not enough, modprobe itself is asked.

mod file;
mod rules;
mod tree;

use std::collections::BTreeSet;
use std::ffi::CString;
use std::fs;
use std::path::Path;
use std::sync::Arc;

use nix::errno::Errno;
use nix::kmod::{DeleteModuleFlags, delete_module};

use super::super::context::Context;
use super::super::{exec, modules};
use crate::apply::StepError;
use crate::evidence::{Gap, Item};
use rules::{Install, Rules};
use tree::Tree;

/// Why kpx did not load a module.
#[derive(Debug)]
enum Trouble {
    /// Nobody else could, either.
    Final(StepError),
    /// modprobe may know better.
    Unsure(String),
}

impl From<StepError> for Trouble {
    fn from(error: StepError) -> Self {
        Self::Final(error)
    }
}

/// Loads the module `name` with what it depends on. Adds to `loaded` what was not there before, in order.
pub(super) async fn load(
    context: &Arc<Context>,
    name: &str,
    loaded: &mut Vec<String>,
) -> Result<(), StepError> {
    let name = tree::plain(name);
    let asked = name.clone();
    let (new, ended) = context
        .change(async move |context| {
            let mut run = Loader::new(&context)?;
            let ended = run.ask(&asked);
            Ok((run.loaded, ended))
        })
        .await?;
    loaded.extend(new);
    match ended {
        Ok(()) => Ok(()),
        Err(Trouble::Final(error)) => Err(error),
        Err(Trouble::Unsure(why)) => {
            let by_tool = exec::feed(context, "modprobe", vec![name.clone()], String::new()).await;
            by_tool.map_err(|error| {
                let what = format!("cannot load {name}: {why}; nor can modprobe: {error}");
                StepError::Refused(what)
            })?;
            loaded.push(name);
            Ok(())
        }
    }
}

/// Unloads the module `name`, unless something uses it.
pub(super) async fn unload(context: &Arc<Context>, name: &str) -> Result<(), StepError> {
    let name = tree::plain(name);
    context
        .change(async move |context| {
            if !is_loaded(&context, &name)? {
                return Ok(());
            }
            let failed = |why: &str| format!("cannot unload {name}: {why}");
            let name_of_c = CString::new(name.as_str())
                .map_err(|_| StepError::Refused(failed("that is no name")))?;
            match delete_module(&name_of_c, DeleteModuleFlags::O_NONBLOCK) {
                Ok(()) | Err(Errno::ENOENT) => Ok(()),
                Err(Errno::EWOULDBLOCK | Errno::EBUSY) => {
                    let users = users(&context, &name);
                    Err(StepError::Refused(failed(&format!("it is used{users}"))))
                }
                Err(Errno::EPERM) => {
                    let what = "it takes CAP_SYS_MODULE; run kpx as root, outside a container";
                    Err(StepError::Denied(failed(what)))
                }
                Err(errno) => Err(StepError::Refused(failed(errno.desc()))),
            }
        })
        .await
}

/// Returns who uses the module `name`, as the end of a sentence.
fn users(context: &Context, name: &str) -> String {
    let entries = fs::read_dir(context.path("sys/module").join(name).join("holders"));
    let entries = entries.into_iter().flatten().flatten();
    let mut names: Vec<_> = entries
        .filter_map(|entry| entry.file_name().into_string().ok())
        .collect();
    names.sort();
    match names.as_slice() {
        [] => String::new(),
        names => format!(" by {}", names.join(", ")),
    }
}

/// Tells whether the module `name` is loaded.
fn is_loaded(context: &Context, name: &str) -> Result<bool, StepError> {
    match modules::loaded(Item::Modules, context) {
        Ok(text) => Ok(text
            .lines()
            .filter_map(|line| line.split(' ').next())
            .any(|loaded| tree::plain(loaded) == name)),
        // Nothing can be loaded into this kernel.
        Err(Gap::NotApplicable(_)) => Ok(false),
        Err(gap) => Err(StepError::Refused(gap.to_string())),
    }
}

/// One load with all that it draws in.
struct Loader<'a> {
    context: &'a Context,
    tree: Result<Tree, String>,
    rules: Rules,
    /// What was looked at already; soft dependencies may run in circles.
    seen: BTreeSet<String>,
    loaded: Vec<String>,
}

impl<'a> Loader<'a> {
    fn new(context: &'a Context) -> Result<Self, StepError> {
        let mut rules = Rules::read(context).map_err(StepError::Refused)?;
        let tree = Tree::read(context, &mut rules);
        Ok(Self {
            context,
            tree,
            rules,
            seen: BTreeSet::new(),
            loaded: Vec::new(),
        })
    }

    /// Loads what `name` stands for: a module, or those that an alias names.
    fn ask(&mut self, name: &str) -> Result<(), Trouble> {
        if self.is_there(name)? {
            return Ok(());
        }
        let tree = self
            .tree
            .as_ref()
            .map_err(|why| Trouble::Unsure(why.clone()))?;
        let aliased = self.rules.aliased(name);
        let modules = if !aliased.is_empty() {
            aliased
        } else if tree.has(name) || self.rules.install(name).is_some() {
            vec![name.to_owned()]
        } else {
            tree.aliased(name, &self.rules)
        };
        if modules.is_empty() {
            let what = format!(
                "there is no module {name} for this kernel ({})",
                tree.folder()
            );
            return Err(StepError::Absent(what).into());
        }
        modules.iter().try_for_each(|module| self.module(module))
    }

    /// Loads one module, behind what it depends on.
    fn module(&mut self, name: &str) -> Result<(), Trouble> {
        if self.is_there(name)? {
            return Ok(());
        }
        let tree = self
            .tree
            .as_ref()
            .map_err(|why| Trouble::Unsure(why.clone()))?;
        // modules.dep names the nearest first.
        let needs: Vec<_> = tree.needs(name).into_iter().rev().collect();
        for need in needs {
            self.insert(&need)?;
        }
        self.insert(name)
    }

    /// Loads one module whose dependencies are there, between its soft dependencies.
    fn insert(&mut self, name: &str) -> Result<(), Trouble> {
        if !self.seen.insert(name.to_owned()) || self.is_there(name)? {
            return Ok(());
        }
        match self.rules.install(name) {
            Some(Install::Blocked(place)) => {
                let what = format!("{name} must not be loaded: {place} says so");
                return Err(StepError::Refused(what).into());
            }
            Some(Install::Command(place)) => {
                return Err(Trouble::Unsure(format!("{place} has a command for {name}")));
            }
            None => {}
        }
        let soft = self.rules.soft(name);
        for name in &soft.before {
            self.try_soft(name);
        }
        let tree = self
            .tree
            .as_ref()
            .map_err(|why| Trouble::Unsure(why.clone()))?;
        let Some(path) = tree.path(name) else {
            let what = format!(
                "there is no module {name} for this kernel ({})",
                tree.folder()
            );
            return Err(StepError::Absent(what).into());
        };
        if file::insert(&path, &self.rules.options(name), || self.locked())? {
            self.loaded.push(name.to_owned());
        }
        for name in &soft.after {
            self.try_soft(name);
        }
        Ok(())
    }

    /// Loads a soft dependency. modprobe goes on without it, too.
    fn try_soft(&mut self, name: &str) {
        self.ask(name).ok();
    }

    /// Tells whether the module is loaded or part of the kernel.
    fn is_there(&self, name: &str) -> Result<bool, StepError> {
        let built_in = self.tree.as_ref().is_ok_and(|tree| tree.has_builtin(name));
        Ok(built_in || is_loaded(self.context, name)?)
    }

    /// Tells whether the kernel takes no modules any more.
    fn locked(&self) -> bool {
        let path = self
            .context
            .path(Path::new("proc/sys/kernel/modules_disabled"));
        fs::read_to_string(path).is_ok_and(|text| text.trim() == "1")
    }
}

#[cfg(test)]
mod tests;
