//! One requirement, and whether the node meets it.

use serde::Serialize;

use kpx_node::node::modules::Standing;

/// The module that passes bridged packets to the rules. The kernel does not load it automatically.
pub(super) const BRIDGE: &str = "br_netfilter";

/// A requirement of a mode.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(feature = "testing", derive(schemars::JsonSchema))]
pub struct Need {
    /// The area.
    pub area: Area,
    /// The module, tool, sysctl, path, field or right.
    pub name: String,
    /// Whether it is met.
    pub status: Status,
    /// The state on the node: a word, a version or a value.
    pub state: String,
    /// Its purpose in the mode.
    pub purpose: &'static str,
    /// Details, such as the required value.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub note: String,
    /// The state of a module.
    #[serde(skip)]
    pub standing: Option<Standing>,
}

/// An area of requirements.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd, Serialize)]
#[cfg_attr(feature = "testing", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum Area {
    /// The kernel's release.
    Kernel,
    /// A kernel module.
    Module,
    /// A program of the host.
    Tool,
    /// A sysctl.
    Sysctl,
    /// A path of the host that kube-proxy's pod mounts.
    Mount,
    /// A field of kube-proxy's configuration.
    Configuration,
    /// A right at the API server.
    Access,
}

/// Whether a requirement is met.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Serialize)]
#[cfg_attr(feature = "testing", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum Status {
    /// Met.
    Ready,
    /// Met as soon as the module is loaded.
    Loadable,
    /// Not met, but the mode works without it or creates it.
    Risk,
    /// Not met.
    Fails,
    /// Unknown.
    Unknown,
}

impl Need {
    pub(super) fn new(
        area: Area,
        name: impl Into<String>,
        status: Status,
        state: impl Into<String>,
        note: impl Into<String>,
    ) -> Self {
        Self {
            area,
            name: name.into(),
            status,
            state: state.into(),
            purpose: "",
            note: note.into(),
            standing: None,
        }
    }

    /// Returns a requirement with an unknown state, and why.
    pub(super) fn unknown(area: Area, name: &str, why: impl Into<String>) -> Self {
        Self::new(area, name, Status::Unknown, "unknown", why)
    }

    pub(super) fn purpose(self, purpose: &'static str) -> Self {
        Self { purpose, ..self }
    }

    /// Returns whether kpx loads the module; whether bridged packets pass the rules is for the pod network to decide.
    pub fn is_loaded_by_kpx(&self) -> bool {
        self.area == Area::Module && self.name != BRIDGE
    }
}
