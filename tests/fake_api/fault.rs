//! Injected faults.

use std::sync::Arc;
use std::time::Duration;

use super::Cluster;
use super::rest::Call;

/// The effect of a fault on a request, instead of an answer or before it.
#[derive(Clone)]
pub(crate) enum What {
    /// A status, and nothing is done.
    Status(u16, &'static str),
    /// Too many requests: come again after so many seconds.
    Busy(u64),
    /// The connection breaks, and nothing is done.
    Broken,
    /// It is done, and the connection breaks before the answer.
    AnswerLost,
    /// It is done after a while.
    Slow(Duration),
    /// Something else happens just before.
    Meanwhile(Arc<dyn Fn(&mut Cluster) + Send + Sync>),
}

/// A fault of requests of one kind.
#[derive(Clone)]
pub(crate) struct Fault {
    verb: &'static str,
    resource: &'static str,
    name: Option<String>,
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
            skip: 0,
            times: usize::MAX,
            what,
        }
    }

    /// A missing permission: 403, also in a self-review.
    pub(crate) fn forbidden(verb: &'static str, resource: &'static str) -> Self {
        Self::of(verb, resource, What::Status(403, "not for you"))
    }

    /// Only of the object of this name.
    pub(crate) fn named(mut self, name: &str) -> Self {
        self.name = Some(name.to_owned());
        self
    }

    /// Only the first `times` times.
    pub(crate) fn times(mut self, times: usize) -> Self {
        self.times = times;
        self
    }

    /// Only after `skip` requests went well.
    pub(crate) fn after(mut self, skip: usize) -> Self {
        self.skip = skip;
        self
    }

    /// Returns whether it applies to `call`; counts it.
    pub(super) fn strikes(&mut self, call: &Call) -> bool {
        let named = self.name.is_none() || self.name == call.name;
        if !named || !self.covers(call.verb, &call.full_resource()) || self.times == 0 {
            return false;
        }
        if self.skip > 0 {
            self.skip -= 1;
            return false;
        }
        self.times -= 1;
        true
    }

    /// Whether this forbids `verb` for `resource`.
    pub(super) fn forbids(&self, verb: &str, resource: &str) -> bool {
        matches!(self.what, What::Status(403, _)) && self.covers(verb, resource)
    }

    fn covers(&self, verb: &str, resource: &str) -> bool {
        [(self.verb, verb), (self.resource, resource)]
            .iter()
            .all(|(ours, theirs)| *ours == "*" || ours == theirs)
    }
}
