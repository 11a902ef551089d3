//! Kernel settings.

use std::collections::BTreeMap;

use crate::evidence::{Evidence, Gap, Item};

/// Kernel settings by dotted name (`net.ipv4.ip_forward`).
#[derive(Clone, Debug, Default)]
pub struct Sysctl<'a> {
    all: BTreeMap<&'a str, &'a str>,
    /// The missing part, if only some settings were read.
    part: Option<Gap>,
}

impl<'a> Sysctl<'a> {
    /// Parses `key = value` lines, as printed by `sysctl -a`; other lines are ignored.
    pub fn parse(text: &'a str) -> Self {
        let pairs = text.lines().filter_map(|line| line.split_once('='));
        let pairs = pairs.map(|(key, value)| (key.trim(), value.trim()));
        Self {
            all: pairs.collect(),
            part: None,
        }
    }

    /// Parses the settings, and notes the missing part. A text without settings was not read.
    pub(crate) fn read(evidence: &'a Evidence) -> Result<Self, Gap> {
        let settings = Self::parse(evidence.text(Item::Sysctl)?);
        if settings.all.is_empty() {
            return Err(Gap::Failed(Item::Sysctl, "it has no settings".to_owned()));
        }
        Ok(Self {
            part: evidence.part(Item::Sysctl),
            ..settings
        })
    }

    /// Returns the value of `key`; `None` if the kernel or the evidence does not have it.
    pub fn get(&self, key: &str) -> Option<&'a str> {
        self.all.get(key).copied()
    }

    /// Returns the value of `key`; `None` if the kernel does not have it.
    ///
    /// # Errors
    ///
    /// Fails if only some settings were read, and `key` is none of them.
    pub fn known(&self, key: &str) -> Result<Option<&'a str>, Gap> {
        match self.get(key) {
            None => self.whole().map(|_| None),
            value => Ok(value),
        }
    }

    /// Returns the settings if all were read.
    pub fn whole(&self) -> Result<&Self, Gap> {
        self.part.clone().map_or(Ok(self), Err)
    }

    /// Sets `key` to `value`.
    pub fn set(&mut self, key: &'a str, value: &'a str) {
        self.all.insert(key, value);
    }

    /// Sets `key` to 1, as the kernel does: forwarding of a family is then on at each link.
    pub fn turn_on(&mut self, key: &'a str) {
        self.set(key, "1");
        let links = match key {
            "net.ipv4.ip_forward" | "net.ipv4.conf.all.forwarding" => "net.ipv4.",
            "net.ipv6.conf.all.forwarding" => "net.ipv6.",
            _ => return,
        };
        for (of, value) in &mut self.all {
            if of.starts_with(links) && (of.ends_with(".forwarding") || of.ends_with(".ip_forward"))
            {
                *value = "1";
            }
        }
    }

    /// Sets `key` to `value` if the evidence has it.
    pub fn replace(&mut self, key: &str, value: &'a str) {
        if let Some(of) = self.all.get_mut(key) {
            *of = value;
        }
    }

    /// Iterates over the settings, sorted by name.
    pub fn iter(&self) -> impl Iterator<Item = (&'a str, &'a str)> {
        self.all.iter().map(|(&key, &value)| (key, value))
    }
}
