//! EndpointSlices.

use std::collections::HashMap;

use serde::Deserialize;

use super::HEADLESS_LABEL;
use super::metadata::null_is_default;
use super::{Metadata, Service};

/// The controller that writes the slices of Services with a selector.
pub const CONTROLLER: &str = "endpointslice-controller.k8s.io";

/// An EndpointSlice.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct EndpointSlice {
    /// Name, namespace, labels (`kubernetes.io/service-name`). The name is empty if a text shows endpoints of the Service, and not the
    /// slice that has them.
    pub metadata: Metadata,
    /// Whether a text shows only some of its endpoints, or not the names and protocols of its ports: `ports` are then all that the
    /// Service's ports may lead to.
    pub in_part: bool,
    /// `IPv4`, `IPv6` or `FQDN`.
    pub address_type: String,
    /// Endpoints of the slice.
    #[serde(deserialize_with = "null_is_default")]
    pub endpoints: Vec<Endpoint>,
    /// Ports of every endpoint.
    #[serde(deserialize_with = "null_is_default")]
    pub ports: Vec<EndpointPort>,
}

/// EndpointSlices by namespace and name of their Service.
pub type ByService<'s> = HashMap<(&'s str, &'s str), Vec<&'s EndpointSlice>>;

impl EndpointSlice {
    /// Returns who writes it, by its label.
    pub fn managed_by(&self) -> Option<&str> {
        let label = self
            .metadata
            .labels
            .get("endpointslice.kubernetes.io/managed-by");
        label.map(String::as_str)
    }

    /// Returns whether the EndpointSlice controller made it for a selector that `service`, its Service, has no more: nothing updates it.
    pub fn is_orphan(&self, service: &Service) -> bool {
        self.managed_by() == Some(CONTROLLER) && service.selector().is_none()
    }

    /// Returns namespace and name of its Service, if its label names one.
    pub fn service(&self) -> Option<(&str, &str)> {
        let name = self.metadata.labels.get("kubernetes.io/service-name")?;
        (!name.is_empty()).then_some((&self.metadata.namespace, name))
    }

    /// Returns the label for which kube-proxy does not read it: the label of headless Services, or of another proxy.
    pub fn unread_for(&self) -> Option<&'static str> {
        let labels = [HEADLESS_LABEL, "service.kubernetes.io/service-proxy-name"];
        labels
            .into_iter()
            .find(|label| self.metadata.labels.contains_key(*label))
    }

    /// Returns `slices` by their Service, without those that have none.
    pub fn by_service<'s>(slices: impl IntoIterator<Item = &'s Self>) -> ByService<'s> {
        let mut found = ByService::new();
        for slice in slices {
            if let Some(service) = slice.service() {
                found.entry(service).or_default().push(slice);
            }
        }
        found
    }
}

/// One endpoint of a slice.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Endpoint {
    /// IP addresses; only the first one is used.
    #[serde(deserialize_with = "null_is_default")]
    pub addresses: Vec<String>,
    /// Host name in DNS.
    pub hostname: Option<String>,
    /// State of the endpoint: ready, serving, terminating.
    pub conditions: Conditions,
    /// Name of the node it runs on.
    pub node_name: Option<String>,
    /// Zone it runs in.
    pub zone: Option<String>,
    /// Topology hints.
    pub hints: Option<Hints>,
    /// Number among the endpoints of the Service, in the order of their addresses before redaction; 0 without redaction.
    pub order: u64,
    /// The pod behind it.
    pub target_ref: Option<TargetRef>,
}

/// Conditions of an endpoint; an unset condition has the API's default.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Conditions {
    /// Unset means ready.
    pub ready: Option<bool>,
    /// Unset means serving.
    pub serving: Option<bool>,
    /// Unset means not terminating.
    pub terminating: Option<bool>,
}

/// Topology hints.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Hints {
    /// Zones that the endpoint is meant for.
    #[serde(deserialize_with = "null_is_default")]
    pub for_zones: Vec<Named>,
    /// Nodes that the endpoint is meant for.
    #[serde(deserialize_with = "null_is_default")]
    pub for_nodes: Vec<Named>,
}

/// A reference to an object by name.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Named {
    /// Name of the object.
    pub name: String,
}

/// The object behind an endpoint.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct TargetRef {
    /// Kind of the object, usually `Pod`.
    pub kind: String,
    /// Name of the object.
    pub name: String,
    /// Namespace of the object.
    pub namespace: String,
}

/// A port of a slice.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct EndpointPort {
    /// Name of the port; unset and empty are different.
    pub name: Option<String>,
    /// `TCP`, `UDP` or `SCTP`; unset means `TCP`.
    pub protocol: Option<String>,
    /// Port number; unset means all ports.
    pub port: Option<u16>,
}
