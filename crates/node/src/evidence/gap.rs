//! The reasons why an item is missing. Programs decide by the variant; the text is for people.

use std::fmt;

use serde::de::IgnoredAny;
use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::Item;

/// Why an item is missing.
///
/// A bundle records a gap as `{"kind": …, "detail": …}`; a kpx that does not know the kind reads it as `failed`.
#[derive(Clone, Debug, Deserialize, Eq, Error, PartialEq, Serialize)]
#[cfg_attr(feature = "testing", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case", tag = "kind", content = "detail")]
pub enum Gap {
    /// The item does not apply to this node.
    #[error("{0}")]
    NotApplicable(String),
    /// The bundle does not contain the item, or the run did not read it.
    #[error("{0} was not collected")]
    NotCollected(Item),
    /// The node does not have it; the text names the missing object.
    #[error("{0}: {1}")]
    Absent(Item, String),
    /// Nothing listens at the address of the server that has it.
    #[error("{0}: {1}")]
    Unreachable(Item, String),
    /// The kernel or the API server denied access; the text names the required permission.
    #[error("permission denied reading {0}: {1}")]
    Denied(Item, String),
    /// The API server refused the request because its user lacks a permission.
    #[error("permission denied reading {0}: {1}")]
    Forbidden(Item, Box<Forbidden>),
    /// Reading did not end within the time limit.
    #[error("{0}: {1}")]
    Late(Item, String),
    /// The program that reads it is too old for the kernel, or was built without the required feature.
    #[error("{0}: {1}")]
    Unsupported(Item, String),
    /// Only a part of it was read, from a text that shows no more; the rest is unknown.
    #[error("{0} is shown in part: {1}")]
    Partial(Item, String),
    /// Reading or parsing failed for another reason.
    #[error("{0}: {1}")]
    Failed(Item, String),
}

/// A request that the API server refused with status 403.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[cfg_attr(feature = "testing", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct Forbidden {
    /// Reason as text for users.
    pub why: String,
    /// User of the request.
    pub user: String,
    /// Verb of the request, such as `list`.
    pub verb: String,
    /// Resource of the request, without its API group, such as `endpointslices`.
    pub resource: String,
    /// Source of the credentials: the path of a kubeconfig, or a description.
    pub credentials: String,
}

impl fmt::Display for Forbidden {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.why)
    }
}

impl Gap {
    /// Returns why `text` of `item` could not be parsed as JSON. The message of a shell or a tool in its place is
    /// quoted.
    pub fn of_json(item: Item, text: &str, error: &serde_json::Error) -> Self {
        /// Characters of the text that are quoted.
        const QUOTED: usize = 60;
        let first = text.trim_start().lines().next().unwrap_or_default();
        if error.is_syntax() && !first.starts_with(['{', '[', '"']) {
            let begin: String = first.chars().take(QUOTED).collect();
            return Self::Failed(item, format!("it is not JSON: it begins with {begin:?}"));
        }
        let whole: Result<IgnoredAny, _> = serde_json::from_str(text);
        if whole.is_err_and(|error| error.is_eof()) {
            return Self::Failed(item, "it is cut short: collect it again".to_owned());
        }
        Self::Failed(item, error.to_string())
    }

    /// Returns the same reason for another item that depends on this one.
    #[must_use]
    pub fn about(self, item: Item) -> Self {
        match self {
            Self::NotApplicable(why) => Self::NotApplicable(why),
            Self::NotCollected(_) => Self::NotCollected(item),
            Self::Absent(_, why) => Self::Absent(item, why),
            Self::Unreachable(_, why) => Self::Unreachable(item, why),
            Self::Denied(_, why) => Self::Denied(item, why),
            Self::Forbidden(_, why) => Self::Forbidden(item, why),
            Self::Late(_, why) => Self::Late(item, why),
            Self::Unsupported(_, why) => Self::Unsupported(item, why),
            Self::Partial(_, why) => Self::Partial(item, why),
            Self::Failed(_, why) => Self::Failed(item, why),
        }
    }

    /// Returns the same reason with its text replaced by `edit`.
    #[must_use]
    pub fn reworded(self, edit: impl FnOnce(&str) -> String) -> Self {
        match self {
            Self::NotCollected(item) => Self::NotCollected(item),
            Self::NotApplicable(why) => Self::NotApplicable(edit(&why)),
            Self::Absent(item, why) => Self::Absent(item, edit(&why)),
            Self::Unreachable(item, why) => Self::Unreachable(item, edit(&why)),
            Self::Denied(item, why) => Self::Denied(item, edit(&why)),
            Self::Forbidden(item, of) => {
                let why = edit(&of.why);
                Self::Forbidden(item, Box::new(Forbidden { why, ..*of }))
            }
            Self::Late(item, why) => Self::Late(item, edit(&why)),
            Self::Unsupported(item, why) => Self::Unsupported(item, edit(&why)),
            Self::Partial(item, why) => Self::Partial(item, edit(&why)),
            Self::Failed(item, why) => Self::Failed(item, edit(&why)),
        }
    }

    /// Returns the missing item; `None` if it does not apply.
    pub const fn item(&self) -> Option<Item> {
        match self {
            Self::NotApplicable(_) => None,
            Self::NotCollected(item)
            | Self::Absent(item, _)
            | Self::Unreachable(item, _)
            | Self::Denied(item, _)
            | Self::Forbidden(item, _)
            | Self::Late(item, _)
            | Self::Unsupported(item, _)
            | Self::Partial(item, _)
            | Self::Failed(item, _) => Some(*item),
        }
    }

    /// Returns the text of the reason, without the item; `None` if the item was not collected.
    pub fn reason(&self) -> Option<&str> {
        match self {
            Self::NotCollected(_) => None,
            Self::NotApplicable(why)
            | Self::Absent(_, why)
            | Self::Unreachable(_, why)
            | Self::Denied(_, why)
            | Self::Late(_, why)
            | Self::Unsupported(_, why)
            | Self::Partial(_, why)
            | Self::Failed(_, why) => Some(why),
            Self::Forbidden(_, of) => Some(&of.why),
        }
    }

    /// Returns whether the item does not exist or does not apply here: the gap itself is an answer.
    pub const fn is_absence(&self) -> bool {
        matches!(
            self,
            Self::NotApplicable(_) | Self::Absent(..) | Self::Unreachable(..)
        )
    }

    /// Returns whether a permission is missing.
    pub const fn is_denial(&self) -> bool {
        matches!(self, Self::Denied(..) | Self::Forbidden(..))
    }

    /// Returns whether the server that has the item did not answer, or not in time.
    pub const fn is_silence(&self) -> bool {
        matches!(self, Self::Unreachable(..) | Self::Late(..))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gaps_of_earlier_bundles_are_read() {
        for (text, gap) in [
            (
                r#"{"kind":"denied","detail":["cluster/services.json","list services: no"]}"#,
                Gap::Denied(Item::Services, "list services: no".to_owned()),
            ),
            (
                r#"{"kind":"failed","detail":["kube-proxy/healthz.json","no answer"]}"#,
                Gap::Failed(Item::Healthz, "no answer".to_owned()),
            ),
        ] {
            assert_eq!(serde_json::from_str::<Gap>(text).unwrap(), gap);
        }
    }

    #[test]
    fn a_refused_request_is_recorded_with_its_parts() {
        let word = str::to_owned;
        let gap = Gap::Forbidden(
            Item::Services,
            Box::new(Forbidden {
                why: word("list services: no"),
                user: word("system:node:w1"),
                verb: word("list"),
                resource: word("services"),
                credentials: word("/etc/kubernetes/kubelet.conf"),
            }),
        );
        let text = serde_json::to_string(&gap).unwrap();
        assert_eq!(
            text,
            "{\"kind\":\"forbidden\",\"detail\":[\"cluster/services.json\",{\"why\":\"list services: no\",\
             \"user\":\"system:node:w1\",\"verb\":\"list\",\"resource\":\"services\",\
             \"credentials\":\"/etc/kubernetes/kubelet.conf\"}]}"
        );
        assert_eq!(serde_json::from_str::<Gap>(&text).unwrap(), gap);
    }
}
