//! Retries of requests to the API server, and when a refusal is final.
//!
//! A restarting API server first refuses connections, then answers 500 and 503, and 403 until it has loaded the
//! cluster's roles. None of these alone is final.

use std::time::Duration;

use serde_json::Value;
use serde_json::value::RawValue;
use tokio::time::{Instant, sleep};

use super::refusal::RequestError;
use super::review::{self, REVIEWS};
use super::session::{Objects, Session};

/// Time limit of a change, as a multiple of one request's: enough for a restart of the API server.
const CHANGE: u32 = 6;

/// First pause before a retry; each pause doubles, up to the longest.
const PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// Number of access reviews that must confirm a denied change, within this fraction of a request's time limit.
const CONFIRMED: u32 = 3;
const CONFIRM_WITHIN: u32 = 5;

/// Purpose of a request.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Urgency {
    /// A report, in which a missing answer is a gap.
    Look,
    /// A change in progress, which waits for a restarting API server.
    Change,
}

/// Retry state of a request.
#[derive(Debug)]
pub(super) struct Patience {
    end: Instant,
    pause: Duration,
    denial: Denial,
}

/// When a 403 is final.
#[derive(Clone, Copy, Debug)]
enum Denial {
    /// Immediately, because other credentials are tried next.
    Final,
    /// After `reviews` access reviews confirmed it for at least `least`; in any case after `most`.
    Confirmed {
        reviews: u32,
        least: Duration,
        most: Duration,
        seen: Option<(Instant, u32)>,
    },
}

/// Result of an access review.
enum Review {
    /// The request is allowed: the 403 is outdated.
    Allowed,
    /// The request is forbidden.
    Forbidden,
    /// The server does not support access reviews.
    Unknown,
    /// The server does not answer or forbids the review, which happens before it has loaded its roles.
    None,
}

impl Patience {
    /// Returns the retry state for `urgency`, with an API server that answers within `limit`.
    pub(super) fn new(urgency: Urgency, limit: Duration) -> Self {
        let (total, denial) = match urgency {
            Urgency::Look => {
                let denial = Denial::Confirmed {
                    reviews: 1,
                    least: Duration::ZERO,
                    most: limit / CONFIRM_WITHIN,
                    seen: None,
                };
                (limit, denial)
            }
            Urgency::Change => {
                let denial = Denial::Confirmed {
                    reviews: CONFIRMED,
                    least: limit / CONFIRM_WITHIN,
                    most: limit,
                    seen: None,
                };
                (limit * CHANGE, denial)
            }
        };
        Self {
            end: Instant::now() + total,
            pause: PAUSE,
            denial,
        }
    }

    /// Returns the same state, with an immediately final 403.
    #[must_use]
    pub(super) fn unless_denied(mut self) -> Self {
        self.denial = Denial::Final;
        self
    }

    /// Returns the same state, ending no later than `end`.
    #[must_use]
    pub(super) fn until(mut self, end: Instant) -> Self {
        self.end = self.end.min(end);
        self
    }

    /// Waits before the next attempt; returns whether there is time for one.
    pub(super) async fn wait(&mut self) -> bool {
        let pause = self.pause;
        self.pause = (pause * 2).min(LONGEST_PAUSE);
        self.wait_for(pause).await
    }

    async fn wait_for(&self, pause: Duration) -> bool {
        if Instant::now() + pause >= self.end {
            return false;
        }
        sleep(pause).await;
        true
    }

    /// Waits before a retry of the request to `verb` `path` that failed with `trouble`; returns whether to retry.
    pub(super) async fn again(
        &mut self,
        session: &Session,
        verb: &str,
        path: &str,
        trouble: &RequestError,
    ) -> bool {
        if trouble.is_forbidden() {
            return !self.is_final(session, verb, path).await && self.wait().await;
        }
        self.forget_denial();
        match trouble {
            RequestError::Busy(_, _, after) => self.wait_for((*after).max(PAUSE)).await,
            trouble => trouble.is_passing() && self.wait().await,
        }
    }

    fn forget_denial(&mut self) {
        if let Denial::Confirmed { seen, .. } = &mut self.denial {
            *seen = None;
        }
    }

    /// Returns whether a 403 is final.
    async fn is_final(&mut self, session: &Session, verb: &str, path: &str) -> bool {
        let Denial::Confirmed {
            reviews,
            least,
            most,
            seen,
        } = &mut self.denial
        else {
            return true;
        };
        let (since, confirmed) = seen.get_or_insert((Instant::now(), 0));
        match review(session, verb, path).await {
            Review::Forbidden => *confirmed += 1,
            Review::Allowed => *confirmed = 0,
            Review::Unknown => return true,
            Review::None => {}
        }
        let stayed = since.elapsed();
        (*confirmed >= *reviews && stayed >= *least) || stayed >= *most
    }
}

/// Credentials and retry policy of a request.
#[derive(Clone, Copy, Debug)]
pub(super) struct Requester<'s> {
    /// The client.
    pub(super) session: &'s Session,
    /// Purpose of the request.
    pub(super) urgency: Urgency,
    /// Whether a 403 is final immediately because other credentials are available.
    pub(super) others: bool,
}

impl Requester<'_> {
    /// Returns the retry state for one change or read.
    pub(super) fn patience(&self) -> Patience {
        let patience = Patience::new(self.urgency, self.session.limit);
        if self.others {
            patience.unless_denied()
        } else {
            patience
        }
    }

    /// Returns the response body of a GET of `path`.
    pub(super) async fn get(&self, path: &str) -> Result<String, RequestError> {
        let get = async || self.session.get(path).await;
        let session = self.session;
        session
            .persist(&mut self.patience(), "get", path, get)
            .await
    }

    /// Returns the object at `path`; `None` if it does not exist.
    pub(super) async fn object(&self, path: &str) -> Result<Option<Box<RawValue>>, RequestError> {
        let get = async || self.session.object(path).await;
        let session = self.session;
        session
            .persist(&mut self.patience(), "get", path, get)
            .await
    }

    /// Returns all objects of the collection at `path` that match `query`.
    pub(super) async fn list(&self, path: &str, query: &str) -> Result<Objects, RequestError> {
        let list = async || self.session.list(path, query).await;
        let session = self.session;
        session
            .persist(&mut self.patience(), "list", path, list)
            .await
    }
}

impl Session {
    /// Calls `ask`, a request to `verb` `path`, until the answer is final or `patience` ends.
    pub(super) async fn persist<T>(
        &self,
        patience: &mut Patience,
        verb: &str,
        path: &str,
        ask: impl AsyncFn() -> Result<T, RequestError>,
    ) -> Result<T, RequestError> {
        loop {
            match ask().await {
                Err(trouble) if patience.again(self, verb, path, &trouble).await => {}
                answer => {
                    patience.forget_denial();
                    return answer;
                }
            }
        }
    }
}

/// Asks the API server whether it allows to `verb` `path`.
async fn review(session: &Session, verb: &str, path: &str) -> Review {
    let Some(attributes) = attributes(verb, path) else {
        return Review::Unknown;
    };
    match session.post(REVIEWS, review::review(&attributes)).await {
        Ok(answer) => match review::is_allowed(&answer) {
            Some(true) => Review::Allowed,
            Some(false) => Review::Forbidden,
            None => Review::Unknown,
        },
        Err(trouble) if trouble.is_passing() || trouble.is_forbidden() => Review::None,
        Err(_) => Review::Unknown,
    }
}

/// Returns the access review attributes of a request to `verb` `path`.
fn attributes(verb: &str, path: &str) -> Option<Value> {
    let path = path.split('?').next().unwrap_or_default();
    let parts: Vec<&str> = path.trim_matches('/').split('/').collect();
    let (group, rest) = match parts.as_slice() {
        ["api", _, rest @ ..] => ("", rest),
        ["apis", group, _, rest @ ..] => (*group, rest),
        _ => return None,
    };
    let (namespace, rest) = match rest {
        ["namespaces", namespace, rest @ ..] if !rest.is_empty() => (*namespace, rest),
        rest => ("", rest),
    };
    let part = |at: usize| rest.get(at).copied().unwrap_or_default();
    let all = [
        ("verb", verb),
        ("group", group),
        ("resource", part(0)),
        ("subresource", part(2)),
        ("namespace", namespace),
        ("name", part(1)),
    ];
    let given = all.into_iter().filter(|(_, value)| !value.is_empty());
    Some(
        given
            .map(|(key, value)| (key, Value::from(value)))
            .collect(),
    )
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_path_becomes_the_attributes_of_a_review() {
        for (verb, path, expected) in [
            (
                "list",
                "/api/v1/nodes?limit=500",
                json!({"verb": "list", "resource": "nodes"}),
            ),
            (
                "patch",
                "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/kpx",
                json!({"verb": "patch", "group": "coordination.k8s.io", "resource": "leases",
                       "namespace": "kube-system", "name": "kpx"}),
            ),
            (
                "create",
                "/api/v1/namespaces/a/pods/b/eviction",
                json!({"verb": "create", "resource": "pods", "subresource": "eviction",
                       "namespace": "a", "name": "b"}),
            ),
        ] {
            assert_eq!(attributes(verb, path), Some(expected), "{path}");
        }
        assert_eq!(attributes("get", "/version"), None);
    }
}
