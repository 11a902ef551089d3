//! The meaning of a request to the API server.

use super::server::Request;

/// The request in the terms of RBAC.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct Call {
    pub(crate) verb: &'static str,
    /// The API's group and version, as in `apiVersion`.
    pub(crate) version: String,
    pub(crate) resource: String,
    pub(crate) namespace: Option<String>,
    pub(crate) name: Option<String>,
    pub(crate) subresource: Option<String>,
}

impl Call {
    /// The resource with its subresource, such as `pods/log`.
    pub(crate) fn full_resource(&self) -> String {
        match &self.subresource {
            Some(sub) => format!("{}/{sub}", self.resource),
            None => self.resource.clone(),
        }
    }

    /// Whether it goes on as a stream of a container.
    pub(crate) fn is_stream(&self) -> bool {
        self.resource == "pods" && matches!(self.subresource.as_deref(), Some("exec" | "attach"))
    }

    /// The requests that a user needs permission for.
    pub(crate) fn authorized(&self) -> Vec<Self> {
        let mut calls = vec![self.clone()];
        if self.is_stream() {
            // The server asks for both since 1.35, whatever the method of the request.
            let verb = "create";
            calls.push(Self {
                verb,
                ..self.clone()
            });
        }
        calls
    }

    /// Reads `/api/VERSION/…` and `/apis/GROUP/VERSION/…`; `None` if it is neither.
    pub(crate) fn of(request: &Request) -> Option<Self> {
        let parts: Vec<&str> = request.path.trim_matches('/').split('/').collect();
        let (version, mut rest) = match *parts.as_slice() {
            ["api", version, ref rest @ ..] => (version.to_owned(), rest),
            ["apis", group, version, ref rest @ ..] => (format!("{group}/{version}"), rest),
            _ => return None,
        };
        let mut namespace = None;
        // The Namespace itself is an object of the cluster.
        if let ["namespaces", inside, further @ ..] = rest
            && !further.is_empty()
        {
            namespace = Some((*inside).to_owned());
            rest = further;
        }
        let mut rest = rest.iter().map(|part| (*part).to_owned());
        let resource = rest.next()?;
        let (name, subresource) = (rest.next(), rest.next());
        let watch = request.query.get("watch");
        let verb = match (request.method.as_str(), &name) {
            ("GET", None) if watch.is_some_and(|w| w == "true" || w == "1") => "watch",
            ("GET", None) => "list",
            ("GET", Some(_)) => "get",
            ("POST", _) => "create",
            ("PUT", Some(_)) => "update",
            ("PATCH", Some(_)) => "patch",
            ("DELETE", Some(_)) => "delete",
            ("DELETE", None) => "deletecollection",
            _ => return None,
        };
        Some(Self {
            verb,
            version,
            resource,
            namespace,
            name,
            subresource,
        })
    }
}
