//! The program `kpx`: its commands, their reports, and the printing.
//!
//! This library is the program's own; it is not an API and promises nothing to others.
//!
//! A module is public if tests or benchmarks use it. The compiler finds unused code in the others.

pub mod cli;
mod command;
#[cfg(fuzzing)]
pub mod fuzzing;
mod pages;
pub mod provider;
mod render;
mod report;
mod view;

pub use command::{Io, main, run};
