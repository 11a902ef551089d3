//! EndpointSlices with endpoints that do not exist: who writes them, and how to correct them.

use kpx_node::cluster::{EndpointSlice, Service};
use serde::Serialize;

use crate::check::Fix;

/// The label that names who writes a slice.
const MANAGED_BY: &str = "endpointslice.kubernetes.io/managed-by";

/// Who writes an EndpointSlice.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Serialize)]
#[cfg_attr(feature = "testing", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum Writer {
    /// The EndpointSlice controller, by the selector of the Service.
    Controller,
    /// No controller any more: it was written while the Service had a selector.
    Nobody,
    /// The mirroring controller, from an Endpoints object.
    Mirror,
    /// A user or another program.
    Other,
}

impl Writer {
    /// Returns who writes `slice` of `service`; `None` for a Service that is not known.
    pub fn of(slice: &EndpointSlice, service: Option<&Service>) -> Self {
        let label = slice.metadata.labels.get(MANAGED_BY).map(String::as_str);
        match label {
            Some("endpointslice-controller.k8s.io") => match service {
                Some(service) if service.selector().is_none() => Self::Nobody,
                _ => Self::Controller,
            },
            Some("endpointslicemirroring-controller.k8s.io") => Self::Mirror,
            _ => Self::Other,
        }
    }

    /// Returns how to correct the slice called `slice` of Service `service`, both in `namespace`, one of whose endpoints does not
    /// exist.
    pub fn fix(self, namespace: &str, slice: &str, service: &str) -> Fix {
        match self {
            Self::Controller => Fix::kubectl(
                "kube-controller-manager updates EndpointSlices: check that it runs and leads. It creates a slice that is deleted \
                 again.",
                "kubectl -n kube-system get lease kube-controller-manager -o yaml",
            ),
            Self::Nobody => Fix::kubectl(
                "Delete the EndpointSlice: the Service has no selector any more, so nothing updates it or creates it again.",
                format!("kubectl -n {namespace} delete endpointslice {slice}"),
            ),
            Self::Mirror => Fix::kubectl(
                "Correct the Endpoints object, of which the EndpointSlice is a mirror.",
                format!("kubectl -n {namespace} edit endpoints {service}"),
            ),
            Self::Other => Fix::kubectl(
                "Correct the addresses in the EndpointSlice, or in what writes it.",
                format!("kubectl -n {namespace} edit endpointslice {slice}"),
            ),
        }
    }
}
