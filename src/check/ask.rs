//! Small questions that many checks ask.

use super::{Facts, Proof};
use crate::cluster::config::ProxyConfig;
use crate::evidence::{Gap, Item};

impl Facts<'_> {
    /// Returns the kernel's release, as major and minor number.
    pub(super) fn kernel(&self) -> Result<(u16, u16), Gap> {
        let release = self.node.kernel_release()?;
        let mut parts = release.split(|c: char| !c.is_ascii_digit());
        let mut next = || parts.next()?.parse().ok();
        next().zip(next()).ok_or_else(|| {
            let why = format!("{release:?} is not a release such as 6.1.0");
            Gap::Failed(Item::KernelRelease, why)
        })
    }

    /// Returns kube-proxy's configuration: the file it runs with, or the ConfigMap.
    pub fn configuration(&self) -> Result<ProxyConfig, Gap> {
        match self.node.proxy_config() {
            Ok(config) => Ok(config.clone()),
            Err(gap) => self.config_map().map_err(|_| gap),
        }
    }
}

/// Returns the value of `key`; a kernel that was asked and does not have it is a gap.
pub(super) fn setting<'a>(facts: &Facts<'a>, key: &str) -> Result<&'a str, Gap> {
    let value = facts.node.sysctl()?.get(key);
    value.ok_or_else(|| Gap::Absent(Item::Sysctl, format!("{key} is not in it")))
}

/// Returns the value of `key`, which a recording may have left out: then the question is skipped, with that reason.
pub(super) fn recorded<'a>(facts: &Facts<'a>, key: &str) -> Result<&'a str, Gap> {
    let left_out =
        || Gap::NotApplicable(format!("the settings that were recorded leave out {key}"));
    facts.node.sysctl()?.get(key).ok_or_else(left_out)
}

/// Returns the value of `key` as a number.
pub(super) fn number(facts: &Facts<'_>, key: &str) -> Result<u64, Gap> {
    let text = setting(facts, key)?;
    text.parse()
        .map_err(|_| Gap::Failed(Item::Sysctl, format!("{key} = {text:?} is not a number")))
}

/// Returns the setting as something a finding was seen in.
pub(super) fn seen(key: &str, value: impl std::fmt::Display) -> Proof {
    Proof::Sysctl {
        key: key.to_owned(),
        value: value.to_string(),
    }
}

/// Returns what was read; the question is skipped where a recording leaves it out, as those made by hand do with what
/// no standard tool prints.
pub(super) fn if_recorded<T>(read: Result<T, Gap>) -> Result<T, Gap> {
    read.map_err(|gap| match gap {
        Gap::NotCollected(item) => {
            Gap::NotApplicable(format!("what was recorded leaves out {item}"))
        }
        other => other,
    })
}
