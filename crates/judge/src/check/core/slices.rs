//! EndpointSlices with endpoints that do not exist: who writes them, and how to correct them.

use kpx_node::cluster::{CONTROLLER, EndpointSlice, Service};
use serde::Serialize;

use crate::check::Fix;

/// The controller that writes the slices of an Endpoints object.
const MIRRORING: &str = "endpointslicemirroring-controller.k8s.io";

/// Returns the rest of a command that shows the slices of Service `service`, where their names are not known.
pub fn get_slices(service: &str) -> String {
    format!("get endpointslices -l kubernetes.io/service-name={service} -o yaml")
}

/// Returns the fix of an address that `slice` of `service` lists, as `NAMESPACE/NAME`, and at which no machine answers.
pub(super) fn listed_fix(slice: &str, service: &str, writer: &str) -> Fix {
    let (namespace, name) = slice.split_once('/').unwrap_or(("default", slice));
    if writer == MIRRORING {
        return Fix::kubectl(
            "If the machine is gone for good, remove its address from the Endpoints object, which the EndpointSlice mirrors; otherwise \
             bring it back.",
            format!("kubectl -n {namespace} edit endpoints {service}"),
        );
    }
    let by = match writer {
        "" => String::new(),
        writer => format!(", which {writer} writes"),
    };
    let edit = match name {
        "" => get_slices(service),
        name => format!("edit endpointslice {name}"),
    };
    Fix::kubectl(
        format!(
            "If the machine is gone for good, remove its address from the EndpointSlice{by}, and from what writes it; otherwise bring the \
             machine back."
        ),
        format!("kubectl -n {namespace} {edit}"),
    )
}

/// Returns the name of a slice that is named like the slices of `service` but belongs to no Service.
pub(crate) fn unlabelled<'s>(service: &Service, slices: &'s [EndpointSlice]) -> Option<&'s str> {
    let (namespace, name) = (&service.metadata.namespace, &service.metadata.name);
    let mut all = slices.iter().map(|slice| (slice, &slice.metadata));
    let (_, meta) = all.find(|(slice, meta)| {
        let rest = meta.name.strip_prefix(name.as_str());
        slice.service().is_none()
            && meta.namespace == *namespace
            && rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('-'))
    })?;
    Some(&meta.name)
}

/// The writer of an EndpointSlice.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Serialize)]
#[cfg_attr(feature = "testing", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum Writer {
    /// The EndpointSlice controller, by the selector of the Service.
    Controller,
    /// The controller, at a time when the Service had a selector: nothing updates the slice any more.
    Former,
    /// The mirroring controller, from an Endpoints object.
    Mirror,
    /// A user or another program.
    Other,
}

impl Writer {
    /// Returns who writes `slice` of `service`; `None` for a Service that is not known.
    pub fn of(slice: &EndpointSlice, service: Option<&Service>) -> Self {
        match slice.managed_by() {
            Some(CONTROLLER) if service.is_some_and(|service| slice.is_orphan(service)) => {
                Self::Former
            }
            Some(CONTROLLER) => Self::Controller,
            Some(MIRRORING) => Self::Mirror,
            _ => Self::Other,
        }
    }

    /// Returns the words for an EndpointSlice of this writer that is not as the cluster is.
    pub const fn behind(self) -> &'static str {
        match self {
            Self::Controller => "the EndpointSlice controller has not updated it",
            Self::Former => {
                "it is left from the time when the Service had a selector, and nothing updates it"
            }
            Self::Mirror => "it mirrors the Service's Endpoints object",
            Self::Other => "the EndpointSlice controller did not write it",
        }
    }

    /// Returns how to correct the slice called `slice`, empty if its name is not shown, of Service `service`, both in `namespace`, one of
    /// whose endpoints does not exist.
    pub fn fix(self, namespace: &str, slice: &str, service: &str) -> Fix {
        let with = |verb: &str| match slice {
            "" => format!("kubectl -n {namespace} {}", get_slices(service)),
            slice => format!("kubectl -n {namespace} {verb} endpointslice {slice}"),
        };
        match self {
            Self::Controller => Fix::kubectl(
                "kube-controller-manager updates EndpointSlices: check that it runs and holds the lease. It recreates a slice \
                 that you delete.",
                "kubectl -n kube-system get lease kube-controller-manager -o yaml",
            ),
            Self::Former => Fix::kubectl(
                "Delete the EndpointSlice: the Service has no selector any more, so nothing updates it or creates it again.",
                with("delete"),
            ),
            Self::Mirror => Fix::kubectl(
                "Correct the Endpoints object: the EndpointSlice mirrors it.",
                format!("kubectl -n {namespace} edit endpoints {service}"),
            ),
            Self::Other => Fix::kubectl(
                "Correct the addresses in the EndpointSlice, or in what writes it.",
                with("edit"),
            ),
        }
    }
}
