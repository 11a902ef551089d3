//! Injected faults.

use std::sync::Arc;
use std::time::Duration;

use super::Cluster;
use super::rest::Call;

/// The effect of a fault on a request, instead of an answer or before it.
#[derive(Clone)]
pub(crate) enum What {
    /// An error status; the request is not carried out.
    Status(u16, &'static str),
    /// Admission control refuses the object with this message; a self-review allows the request.
    Refused(&'static str),
    /// Too many requests: the client must retry after this many seconds.
    Busy(u64),
    /// The connection breaks; the request is not carried out.
    Broken,
    /// The request is carried out, and the connection breaks before the answer.
    AnswerLost,
    /// The request is carried out after this time.
    Slow(Duration),
    /// Another change is made just before the request.
    Meanwhile(Arc<dyn Fn(&mut Cluster) + Send + Sync>),
}

/// A fault of requests of one kind.
#[derive(Clone)]
pub(crate) struct Fault {
    verb: &'static str,
    resource: &'static str,
    name: Option<String>,
    start: &'static str,
    skip: usize,
    times: usize,
    pub(super) what: What,
}

impl Fault {
    /// A fault of every request with `verb` for `resource`, in the words of RBAC: `pods`, `pods/log`; `*` is any.
    pub(crate) fn of(verb: &'static str, resource: &'static str, what: What) -> Self {
        Self {
            verb,
            resource,
            name: None,
            start: "",
            skip: 0,
            times: usize::MAX,
            what,
        }
    }

    /// A missing permission: 403, also in a self-review.
    pub(crate) fn forbidden(verb: &'static str, resource: &'static str) -> Self {
        Self::of(verb, resource, What::Status(403, "not for you"))
    }

    /// Restricts the fault to the object with this name.
    pub(crate) fn named(mut self, name: &str) -> Self {
        self.name = Some(name.to_owned());
        self
    }

    /// Restricts the fault to the objects whose name begins with `start`.
    pub(crate) fn starting(mut self, start: &'static str) -> Self {
        self.start = start;
        self
    }

    /// Restricts the fault to the first `times` requests.
    pub(crate) fn times(mut self, times: usize) -> Self {
        self.times = times;
        self
    }

    /// Lets the first `skip` requests succeed.
    pub(crate) fn after(mut self, skip: usize) -> Self {
        self.skip = skip;
        self
    }

    /// Returns whether the fault applies to `call`, and counts the request.
    pub(super) fn strikes(&mut self, call: &Call) -> bool {
        let name = call.name.as_deref().unwrap_or_default();
        let named = self.name.as_deref().is_none_or(|only| only == name);
        if !named
            || !name.starts_with(self.start)
            || !self.covers(call.verb, &call.full_resource())
            || self.times == 0
        {
            return false;
        }
        if self.skip > 0 {
            self.skip -= 1;
            return false;
        }
        self.times -= 1;
        true
    }

    /// Returns whether the fault forbids `verb` on `resource`.
    pub(super) fn forbids(&self, verb: &str, resource: &str) -> bool {
        matches!(self.what, What::Status(403, _)) && self.covers(verb, resource)
    }

    fn covers(&self, verb: &str, resource: &str) -> bool {
        [(self.verb, verb), (self.resource, resource)]
            .iter()
            .all(|(ours, theirs)| *ours == "*" || ours == theirs)
    }
}
