//! The report of `kpx version`.

use serde::Serialize;

use crate::render::{Page, Report};
use crate::report::CLEAN;

/// The version of this program.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub(crate) struct VersionReport {
    /// The version of kpx.
    pub version: &'static str,
    /// The commit that was built, if it is known.
    pub commit: Option<&'static str>,
    /// The releases of kube-proxy that it knows.
    pub kube_proxy: Releases,
    /// The SHA-256 digest of the program, if it was asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub digest: Option<String>,
}

/// Releases of kube-proxy.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub(crate) struct Releases {
    /// The oldest one.
    pub oldest: String,
    /// The newest one.
    pub newest: String,
    /// The newest one of which kpx has recordings.
    pub recorded: String,
}

impl Report for VersionReport {
    const KIND: &'static str = "VersionReport";

    fn page(&self, page: &mut Page) {
        if let Some(digest) = &self.digest {
            page.line(digest);
            return;
        }
        let Releases {
            oldest,
            newest,
            recorded,
        } = &self.kube_proxy;
        page.line(&format!("kpx {}", self.version));
        page.line(&format!("commit {}", self.commit.unwrap_or("unknown")));
        page.line(&format!(
            "kube-proxy {oldest} to {newest}, with recordings up to {recorded}"
        ));
    }

    fn exit(&self) -> u8 {
        CLEAN
    }
}
