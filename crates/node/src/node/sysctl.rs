//! Kernel settings.

use std::collections::BTreeMap;

use crate::evidence::{Gap, Item};

/// Kernel settings by dotted name (`net.ipv4.ip_forward`).
#[derive(Clone, Debug, Default)]
pub struct Sysctl<'a>(BTreeMap<&'a str, &'a str>);

impl<'a> Sysctl<'a> {
    /// Parses `key = value` lines, as printed by `sysctl -a`; other lines are ignored.
    pub fn parse(text: &'a str) -> Self {
        let pairs = text.lines().filter_map(|line| line.split_once('='));
        Self(
            pairs
                .map(|(key, value)| (key.trim(), value.trim()))
                .collect(),
        )
    }

    /// Parses the settings. A text without any was not read.
    pub(crate) fn read(text: &'a str) -> Result<Self, Gap> {
        let settings = Self::parse(text);
        if settings.0.is_empty() {
            return Err(Gap::Failed(Item::Sysctl, "it has no settings".to_owned()));
        }
        Ok(settings)
    }

    /// Returns the value of `key`; `None` if the kernel or the evidence does not have it.
    pub fn get(&self, key: &str) -> Option<&'a str> {
        self.0.get(key).copied()
    }

    /// Sets `key` to `value`.
    pub fn set(&mut self, key: &'a str, value: &'a str) {
        self.0.insert(key, value);
    }

    /// Sets `key` to `value` if the evidence has it.
    pub fn replace(&mut self, key: &str, value: &'a str) {
        if let Some(of) = self.0.get_mut(key) {
            *of = value;
        }
    }

    /// Iterates over the settings, sorted by name.
    pub fn iter(&self) -> impl Iterator<Item = (&'a str, &'a str)> {
        self.0.iter().map(|(&key, &value)| (key, value))
    }
}
