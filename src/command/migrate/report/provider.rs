//! The provider of a cluster, in a plan.

use serde::Serialize;

use crate::provider::Recognised;
use crate::render::Page;
use kpx_node::evidence::Gap;

/// The provider of a cluster.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub(crate) enum FoundProvider {
    /// The only one that the evidence names.
    Known {
        /// Its short name.
        id: &'static str,
        /// Its full name.
        name: &'static str,
        /// The evidence, in words.
        evidence: Vec<String>,
        /// The path of its page in the repository.
        page: String,
    },
    /// Why it is unknown.
    Unknown(String),
}

impl From<Result<Recognised, Gap>> for FoundProvider {
    fn from(found: Result<Recognised, Gap>) -> Self {
        match found {
            Ok(Recognised { provider, evidence }) => Self::Known {
                id: provider.id,
                name: provider.name,
                evidence,
                page: provider.page(),
            },
            Err(gap) => Self::Unknown(gap.to_string()),
        }
    }
}

impl FoundProvider {
    pub(super) fn page(&self, page: &mut Page) {
        let text = match self {
            Self::Known {
                id,
                name,
                evidence,
                page,
            } => format!(
                "{name}, by {}: `kpx explain {id}` prints its recipe, {page}",
                evidence.join(", ")
            ),
            Self::Unknown(why) => {
                format!("unknown ({why}): `kpx explain providers` lists the recipes")
            }
        };
        page.line("");
        page.para("provider: ", &text);
    }
}
