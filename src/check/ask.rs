//! Small questions that many checks ask.

use super::Facts;
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
    pub(super) fn configuration(&self) -> Result<ProxyConfig, Gap> {
        match self.node.proxy_config() {
            Ok(config) => Ok(config.clone()),
            Err(gap) => self.config_map().map_err(|_| gap),
        }
    }
}
