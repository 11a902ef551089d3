//! Loads and unloads kernel modules like modprobe: dependencies first, and according to modprobe.d.
//!
//! [`rules`] parses modprobe.d, [`tree`] `/lib/modules`, and [`file`] loads a module file. In cases that need more, kpx
//! runs modprobe.

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
use kpx_node::apply::StepError;
use kpx_node::evidence::{Gap, Item};
use rules::{Install, Rules};
use tree::Tree;

/// Why kpx did not load a module.
#[derive(Debug)]
enum LoadError {
    /// The module cannot be loaded at all.
    Final(StepError),
    /// modprobe may succeed.
    Unsure(String),
}

impl From<StepError> for LoadError {
    fn from(error: StepError) -> Self {
        Self::Final(error)
    }
}

/// Loads the module `name` with its dependencies. Appends newly loaded modules to `loaded`, in order.
pub(super) async fn load(
    context: &Arc<Context>,
    name: &str,
    loaded: &mut Vec<String>,
) -> Result<(), StepError> {
    let name = rules::plain(name);
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
        Err(LoadError::Final(error)) => Err(error),
        Err(LoadError::Unsure(why)) => {
            let by_tool = exec::feed(context, "modprobe", vec![name.clone()], String::new()).await;
            by_tool.map_err(|error| {
                let what = format!("cannot load {name}: {why}; modprobe failed as well: {error}");
                StepError::Refused(what)
            })?;
            loaded.push(name);
            Ok(())
        }
    }
}

/// Unloads the module `name`, unless it is in use.
pub(super) async fn unload(context: &Arc<Context>, name: &str) -> Result<(), StepError> {
    let name = rules::plain(name);
    context
        .change(async move |context| {
            if !is_loaded(&context, &name)? {
                return Ok(());
            }
            let failed = |why: &str| format!("cannot unload {name}: {why}");
            let name_of_c = CString::new(name.as_str())
                .map_err(|_| StepError::Refused(failed("its name is not valid")))?;
            match delete_module(&name_of_c, DeleteModuleFlags::O_NONBLOCK) {
                Ok(()) | Err(Errno::ENOENT) => Ok(()),
                Err(Errno::EWOULDBLOCK | Errno::EBUSY) => {
                    let users = users(&context, &name);
                    Err(StepError::Refused(failed(&format!("it is in use{users}"))))
                }
                Err(Errno::EPERM) => {
                    let what = "CAP_SYS_MODULE is required; run kpx as root, outside a container";
                    Err(StepError::Denied(failed(what)))
                }
                Err(errno) => Err(StepError::Refused(failed(errno.desc()))),
            }
        })
        .await
}

/// Returns the users of the module `name`, as the end of a sentence.
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

/// Returns whether the module `name` is loaded.
fn is_loaded(context: &Context, name: &str) -> Result<bool, StepError> {
    match modules::loaded(Item::Modules, context) {
        Ok(text) => Ok(text
            .lines()
            .filter_map(|line| line.split(' ').next())
            .any(|loaded| rules::plain(loaded) == name)),
        // A kernel without loadable modules.
        Err(Gap::NotApplicable(_)) => Ok(false),
        Err(gap) => Err(StepError::Refused(gap.to_string())),
    }
}

/// Loads one module with its dependencies.
struct Loader<'a> {
    context: &'a Context,
    tree: Result<Tree, String>,
    rules: Rules,
    /// Modules handled already; soft dependencies may form cycles.
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

    /// Loads `name`: a module, or the modules that an alias names.
    fn ask(&mut self, name: &str) -> Result<(), LoadError> {
        if self.is_there(name)? {
            return Ok(());
        }
        let tree = self
            .tree
            .as_ref()
            .map_err(|why| LoadError::Unsure(why.clone()))?;
        let aliased = self.rules.aliased(name);
        let modules = if !aliased.is_empty() {
            aliased
        } else if tree.has(name) || self.rules.install(name).is_some() {
            vec![name.to_owned()]
        } else {
            tree.aliased(name, &self.rules)
        };
        if modules.is_empty() {
            let what = format!("this kernel has no module {name} ({})", tree.folder());
            return Err(StepError::Absent(what).into());
        }
        modules.iter().try_for_each(|module| self.module(module))
    }

    /// Loads one module after its dependencies.
    fn module(&mut self, name: &str) -> Result<(), LoadError> {
        if self.is_there(name)? {
            return Ok(());
        }
        let tree = self
            .tree
            .as_ref()
            .map_err(|why| LoadError::Unsure(why.clone()))?;
        // modules.dep lists the nearest dependency first.
        let needs: Vec<_> = tree.needs(name).into_iter().rev().collect();
        for need in needs {
            self.insert(&need)?;
        }
        self.insert(name)
    }

    /// Loads one module, whose dependencies are loaded, between its soft dependencies.
    fn insert(&mut self, name: &str) -> Result<(), LoadError> {
        if !self.seen.insert(name.to_owned()) || self.is_there(name)? {
            return Ok(());
        }
        match self.rules.install(name) {
            Some(Install::Blocked(place)) => {
                let what = format!("loading {name} is forbidden by {place}");
                return Err(StepError::Refused(what).into());
            }
            Some(Install::Command(place)) => {
                return Err(LoadError::Unsure(format!(
                    "{place} has an install command for {name}"
                )));
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
            .map_err(|why| LoadError::Unsure(why.clone()))?;
        let Some(path) = tree.path(name) else {
            let what = format!("this kernel has no module {name} ({})", tree.folder());
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

    /// Loads a soft dependency. Like modprobe, it ignores errors.
    fn try_soft(&mut self, name: &str) {
        self.ask(name).ok();
    }

    /// Returns whether the module is loaded or built into the kernel.
    fn is_there(&self, name: &str) -> Result<bool, StepError> {
        let built_in = self.tree.as_ref().is_ok_and(|tree| tree.has_builtin(name));
        Ok(built_in || is_loaded(self.context, name)?)
    }

    /// Returns whether the kernel accepts no more modules.
    fn locked(&self) -> bool {
        let path = self
            .context
            .path(Path::new("proc/sys/kernel/modules_disabled"));
        fs::read_to_string(path).is_ok_and(|text| text.trim() == "1")
    }
}

#[cfg(test)]
mod tests;
