//! Redacted evidence, fit for publication: each address and name is replaced consistently, so that relations are
//! preserved, and data that may be secret is removed.
//!
//! The key is random and not stored, so no one can reverse the replacement.

mod address;
mod bpf;
mod config;
mod document;
mod json;
mod learn;
mod logs;
mod names;
mod order;
mod question;
mod redactor;
mod restore;
mod rules;
mod text;
mod words;

pub use question::Named;
pub use redactor::Redactor;
