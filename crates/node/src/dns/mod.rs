//! Service discovery: the names in cluster DNS, the names that a pod's resolver queries, and the Service variables in a
//! container's environment; the configuration of a machine's resolver.
//!
//! Sources: Kubernetes DNS-Based Service Discovery, version 1.1.0; the `kubernetes` plugin of `CoreDNS` where the
//! specification is silent; pkg/kubelet/envvars of Kubernetes; hosts(5) and resolv.conf(5).

mod hosts;
mod message;
mod records;
mod resolv_conf;
mod search;
mod variables;
mod zone;

pub use hosts::in_hosts;
pub use message::{Question, Reply, is_truncated};
pub use records::{DnsFailure, Records, Server};
pub use resolv_conf::ResolvConf;
pub use search::candidates;
pub use variables::{Variable, variables};
pub use zone::{Expected, Zone};
