//! The cluster's API objects as plain types, with only the fields that kpx uses.
//!
//! Source: the objects' JSON as the API server prints it (`kubectl get -o json`). Other fields are ignored.

pub mod config;
mod config_map;
pub mod edit;
mod endpoints;
pub mod flags;
mod list;
mod matching;
mod metadata;
mod node;
mod placement;
pub mod pod;
mod readiness;
pub mod release;
pub mod selector;
mod service;
pub mod strict;
pub mod validate;
pub mod version;
mod workload;

pub use config_map::ConfigMap;
pub use endpoints::{
    ByService, CONTROLLER, Conditions, Endpoint, EndpointPort, EndpointSlice, Hints, Named,
    TargetRef,
};
pub use list::{List, list, list_naming, missing, yaml};
pub use matching::{Matching, makes_none};
pub use metadata::{Condition, Labels, ManagedFields, Metadata, Owner};
pub use node::{Node, NodeAddress, NodeInfo, NodeSpec, NodeStatus};
pub use placement::Misplaced;
pub use readiness::{NOT_PULLED, Unready, hosts_without, outdated, silent_nodes};
pub use service::{
    ClientIp, HEADLESS_LABEL, Ingress, LoadBalancerStatus, Service, ServiceCidr, ServiceCidrSpec,
    ServicePort, ServiceSpec, ServiceStatus, SessionAffinityConfig,
};
pub use workload::{
    Container, ContainerState, ContainerStatus, ContainerTerminated, ContainerWaiting, DaemonSet,
    DaemonSetSpec, DeclaredPort, DnsConfig, HostAlias, Pod, PodIp, PodSpec, PodStatus, PodTemplate,
    Workload,
};
