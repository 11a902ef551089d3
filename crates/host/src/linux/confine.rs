//! Fewer rights for a process that reads files of a stranger.

use std::path::PathBuf;

use landlock::{
    ABI, Access as _, AccessFs, AccessNet, PathBeneath, PathFd, Ruleset, RulesetAttr as _,
    RulesetCreatedAttr as _, RulesetError, RulesetStatus, Scope,
};

/// Removes from this thread, and from threads that it starts, the rights to start programs, to write files outside of
/// `folders`, to open TCP connections, and to signal other processes. Open files and connections stay open.
///
/// Returns whether the kernel has Landlock (since Linux 5.13; for TCP since 6.7, for signals since 6.12). A folder that
/// cannot be opened gets no rights. Fails if the kernel refuses.
pub fn confine(folders: &[PathBuf]) -> Result<bool, RulesetError> {
    let writes = AccessFs::from_write(ABI::V4);
    let open = folders.iter().filter_map(|folder| PathFd::new(folder).ok());
    let confined = Ruleset::default()
        .handle_access(writes | AccessFs::Execute)?
        .handle_access(AccessNet::from_all(ABI::V4))?
        .scope(Scope::from_all(ABI::V6))?
        .create()?
        .add_rules(open.map(|folder| Ok::<_, RulesetError>(PathBeneath::new(folder, writes))))?
        .restrict_self()?;
    Ok(confined.ruleset != RulesetStatus::NotEnforced)
}
