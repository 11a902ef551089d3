//! Maps an address, NodePort, chain or endpoint to its Service and pod.
//!
//! Built from the cluster's objects or, without those, from the names in kube-proxy's rules.

mod api;
mod nft_name;
mod owners;
mod port;
mod rules;

pub use crate::backend::chain_owner;
pub use api::{addresses, ports_of};
pub use nft_name::NftName;
pub use owners::{Owner, Owners, Source};
pub use port::{Endpoint, EndpointState, Port, PortName, Role};
