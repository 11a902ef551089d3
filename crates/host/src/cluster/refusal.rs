//! Why the API server cannot be used, and why one request failed.

use std::time::Duration;

use super::session::Session;
use kpx_node::access::{Level, Subject};
use kpx_node::apply::StepError;
use kpx_node::evidence::{Forbidden, Gap, Item};

/// Why the API server cannot be used at all.
#[derive(Clone, Debug)]
pub(super) enum Refusal {
    NotApplicable(String),
    Denied(String),
    Forbidden(Box<Forbidden>),
    Late(String),
    Failed(String),
    /// The server is not available or is starting.
    Away(String),
}

/// Why a request failed.
#[derive(Debug)]
pub(super) enum RequestError {
    /// The server answered with this status code and message.
    Status(u16, String),
    /// The server answered with this status code and message, and a time to retry after.
    Busy(u16, String, Duration),
    /// The server did not answer within the time limit.
    Late,
    /// The connection to the server failed.
    Transport(String),
    /// The answer is not valid.
    Answer(String),
}

impl Refusal {
    pub(super) fn step(self) -> StepError {
        match self {
            Self::NotApplicable(why) => StepError::Absent(why),
            Self::Denied(why) => StepError::Denied(why),
            Self::Forbidden(of) => StepError::Denied(of.why),
            Self::Late(why) | Self::Failed(why) | Self::Away(why) => StepError::Refused(why),
        }
    }

    pub(super) fn gap(&self, item: Item) -> Gap {
        match self {
            Self::NotApplicable(why) => Gap::NotApplicable(why.clone()),
            Self::Denied(why) => Gap::Denied(item, why.clone()),
            Self::Forbidden(of) => Gap::Forbidden(item, of.clone()),
            Self::Late(why) => Gap::Late(item, why.clone()),
            Self::Failed(why) | Self::Away(why) => Gap::Failed(item, why.clone()),
        }
    }
}

impl RequestError {
    /// Returns the gap for a failed attempt to `verb` `what`.
    pub(super) fn gap(self, item: Item, session: &Session, verb: &str, what: &str) -> Gap {
        self.refusal(session, verb, what, "deploy/rbac.yaml")
            .gap(item)
    }

    /// Returns the refusal for a failed attempt to `verb` `what`, which the manifest `roles` allows.
    pub(super) fn refusal(self, session: &Session, verb: &str, what: &str, roles: &str) -> Refusal {
        let Session {
            origin,
            server,
            advice,
            ..
        } = session;
        match self {
            Self::Status(401, _) => session.unauthorized(),
            // Roles do not help.
            Self::Status(403, message) if verb == "create" && is_by_admission(&message) => {
                let advice = refused_pod(&message);
                Refusal::Failed(format!("{verb} {what}: {message}; {advice}"))
            }
            Self::Status(403, message) => {
                let request = Request::refused(&message);
                let grant = request.as_ref().map_or_else(
                    || {
                        format!(
                            "apply {roles}, which has the roles and their bindings, to allow it"
                        )
                    },
                    |request| request.grant(roles),
                );
                let why =
                    format!("{verb} {what}: {message} (credentials: {origin}); {grant}{advice}");
                match request {
                    None => Refusal::Denied(why),
                    Some(Request {
                        user,
                        verb,
                        resource,
                    }) => Refusal::Forbidden(Box::new(Forbidden {
                        why,
                        user: user.to_owned(),
                        verb: verb.to_owned(),
                        resource: resource.to_owned(),
                        credentials: origin.clone(),
                    })),
                }
            }
            Self::Status(code, message) | Self::Busy(code, message, _) => Refusal::Failed(format!(
                "{verb} {what}: {server} answered {code}: {message}"
            )),
            Self::Late => Refusal::Late(format!("{verb} {what}: {server}: {}", session.late())),
            Self::Transport(why) | Self::Answer(why) => {
                Refusal::Failed(format!("{verb} {what}: {server}: {why}"))
            }
        }
    }

    /// Returns the reason without the request.
    pub(super) fn words(self) -> String {
        match self {
            Self::Status(code, message) | Self::Busy(code, message, _) => {
                format!("answered {code}: {message}")
            }
            Self::Late => "no answer within the time limit".to_owned(),
            Self::Transport(why) | Self::Answer(why) => why,
        }
    }

    /// Returns whether these credentials may not make the request.
    pub(super) fn is_forbidden(&self) -> bool {
        matches!(self, Self::Status(403, message) if !is_by_admission(message))
    }

    /// Returns whether the request may succeed later: the server is not available, starting or overloaded.
    pub(super) fn is_passing(&self) -> bool {
        match self {
            Self::Status(code, _) => matches!(code, 429 | 500 | 502 | 503 | 504),
            Self::Late | Self::Transport(_) | Self::Busy(..) => true,
            Self::Answer(_) => false,
        }
    }
}

/// Returns whether `message` is a refusal by admission control: a policy does not allow the object, whoever creates it.
///
/// Sources: `k8s.io/apiserver/pkg/admission/errors.go`, `NewForbidden`; `k8s.io/apiserver/pkg/admission/plugin/webhook/errors`,
/// `ToStatusErr`. The messages of the authorizer and of the plugin `NodeRestriction` name the user: other credentials may
/// help.
pub(crate) fn is_by_admission(message: &str) -> bool {
    let (_, why) = message.split_once(" is forbidden: ").unwrap_or_default();
    let by_user = why.starts_with("User \"") || why.starts_with("node \"");
    (!why.is_empty() && !by_user) || message.contains("admission webhook \"")
}

/// Returns the fix for a pod on a node, or its Job, that admission control refuses with `message`.
pub(crate) fn refused_pod(message: &str) -> &'static str {
    if message.contains("error looking up service account") {
        "the service account of the pod does not exist: `kpx access migrate --manifest | kubectl apply -f -` creates \
         kube-system/kpx with its permissions; `--service-account NAME` uses another account"
    } else if message.contains("PodSecurity") {
        "the pod uses the node's network, processes and files: run `kubectl label namespace kube-system \
         pod-security.kubernetes.io/enforce=privileged --overwrite`"
    } else {
        "the pod uses the node's network, processes and files: exempt namespace kube-system from the policy that the message \
         names"
    }
}

/// A request, as the API server's authorizer describes it in a refusal.
#[derive(Debug, Eq, PartialEq)]
struct Request<'m> {
    user: &'m str,
    verb: &'m str,
    resource: &'m str,
}

impl<'m> Request<'m> {
    /// Parses `services is forbidden: User "X" cannot list resource "services" in API group "" …`; `None` for the message of
    /// another authorizer.
    ///
    /// Source: `k8s.io/apiserver/pkg/endpoints/handlers/responsewriters`, `forbiddenMessage`.
    fn refused(message: &'m str) -> Option<Self> {
        let (_, rest) = message.split_once("User \"")?;
        let (user, rest) = rest.split_once("\" cannot ")?;
        let (verb, rest) = rest.split_once(" resource \"")?;
        let (resource, _) = rest.split_once('"')?;
        Some(Self {
            user,
            verb,
            resource,
        })
    }

    /// Returns the command that binds the permissions of the manifest `roles` to the user.
    fn grant(&self, roles: &str) -> String {
        let account = self.user.strip_prefix("system:serviceaccount:");
        let subject = match account.and_then(|account| account.split_once(':')) {
            Some((namespace, name)) => Subject::ServiceAccount {
                namespace: namespace.to_owned(),
                name: name.to_owned(),
            },
            None => Subject::User(self.user.to_owned()),
        };
        if subject == Subject::default() {
            return format!("`kubectl apply -f {roles}` restores the roles and their bindings");
        }
        let command = if roles == Level::Migrate.file() {
            "migrate "
        } else {
            ""
        };
        format!(
            "an administrator grants it: `kpx access {command}--manifest --subject {subject} | kubectl apply -f -` creates the roles and \
             their bindings"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::{Request, is_by_admission, refused_pod};

    #[test]
    fn the_message_of_a_refusal_has_user_verb_and_resource() {
        let message = "endpointslices.discovery.k8s.io is forbidden: User \"system:node:w1\" cannot list resource \
                       \"endpointslices\" in API group \"discovery.k8s.io\" at the cluster scope: can only access own Node";
        let request = Request {
            user: "system:node:w1",
            verb: "list",
            resource: "endpointslices",
        };
        let refused = Request::refused(message).unwrap();
        assert_eq!(refused, request);
        assert_eq!(
            refused.grant("deploy/rbac-migrate.yaml"),
            "an administrator grants it: `kpx access migrate --manifest --subject user:system:node:w1 | kubectl apply -f -` creates \
             the roles and their bindings"
        );
        let account = |user| Request { user, ..request };
        let own = account("system:serviceaccount:kube-system:kpx");
        assert_eq!(
            own.grant("deploy/rbac-migrate.yaml"),
            "`kubectl apply -f deploy/rbac-migrate.yaml` restores the roles and their bindings"
        );
        let other = account("system:serviceaccount:ops:bot").grant("deploy/rbac.yaml");
        assert!(
            other.contains("`kpx access --manifest --subject serviceaccount:ops/bot |"),
            "{other}"
        );
        assert_eq!(Request::refused("not for you"), None);
    }

    #[test]
    fn a_refusal_by_a_policy_is_not_one_by_the_authorizer() {
        for by_policy in [
            "pods \"x\" is forbidden: violates PodSecurity \"restricted:latest\": host namespaces (hostNetwork=true)",
            "Error creating: pods \"x\" is forbidden: exceeded quota: pods, requested: pods=1, used: pods=1, limited: pods=1",
            "admission webhook \"validate.kyverno.svc-fail\" denied the request: no host paths",
        ] {
            assert!(is_by_admission(by_policy), "{by_policy}");
        }
        for other in [
            "pods is forbidden: User \"jane\" cannot create resource \"pods\" in API group \"\" in the namespace \"kube-system\"",
            "pods \"x\" is forbidden: node \"w1\" can only create mirror pods",
            "forbidden: User \"kpx\" cannot do that: RBAC: clusterrole.rbac.authorization.k8s.io not found",
            "Error creating: Internal error occurred: failed calling webhook",
        ] {
            assert!(!is_by_admission(other), "{other}");
        }
        assert!(refused_pod("violates PodSecurity").contains("enforce=privileged --overwrite"));
        assert!(refused_pod("exceeded quota").contains("exempt"));
        let missing = "pods \"kpx-prepare-1\" is forbidden: error looking up service account kube-system/kpx: serviceaccount \
                       \"kpx\" not found";
        assert!(is_by_admission(missing));
        assert!(
            refused_pod(missing).contains("kpx access migrate --manifest | kubectl apply -f -")
        );
    }
}
