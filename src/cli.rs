//! The command line: the one definition behind parsing, help, man pages and completions. The options of a command are in its
//! folder.

pub(crate) mod change;
pub(crate) mod checks;
pub(crate) mod complaint;
pub(crate) mod global;
pub(crate) mod nodes;
pub(crate) mod parser;
pub(crate) mod plugin;
pub(crate) mod service;
pub(crate) mod value;

pub use parser::{Cli, Command, command};
#[cfg(fuzzing)]
pub(crate) use value::fuzz;
