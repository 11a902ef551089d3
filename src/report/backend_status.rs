//! The status of a backend in its Service, in words.

use crate::view::conntrack::BackendStatus;

/// Returns `status` in words: none for an endpoint.
pub(crate) const fn in_words(status: BackendStatus) -> &'static str {
    match status {
        BackendStatus::Endpoint => "",
        BackendStatus::Terminating => "terminating",
        BackendStatus::NotReady => "not ready",
        BackendStatus::Process => "kube-proxy",
        BackendStatus::Stale => "STALE",
        BackendStatus::NotTranslated => "NOT TRANSLATED",
    }
}
