//! Permissions of kpx in the cluster, queried with access reviews, which store nothing.

use std::cell::RefCell;

use futures_util::stream::{StreamExt as _, iter};
use serde_json::value::RawValue;
use serde_json::{Map, Value};

use super::refusal::RequestError;
use super::retry::{Patience, Requester, Urgency};
use super::review::{REVIEWS, is_allowed, review};
use super::session::{Objects, Session};
use kpx_node::access::{self, Request};
use kpx_node::evidence::{Gap, Item};

/// Number of reviews at a time.
const AT_ONCE: usize = 8;

/// The reviewed permission, for messages.
const WHAT: &str = "selfsubjectaccessreviews.authorization.k8s.io";

/// The answer to an access review.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Reviewed {
    /// The request is allowed.
    Allowed,
    /// The request is not allowed.
    Denied,
    /// Unknown, for this reason.
    Unknown(String),
}

/// Returns the attributes of `request`, without those that are empty.
fn attributes(request: &Request, name: &str) -> Value {
    let (resource, sub) = request
        .resource
        .split_once('/')
        .unwrap_or((request.resource, ""));
    let all = [
        ("verb", request.verb),
        ("group", request.group),
        ("resource", resource),
        ("subresource", sub),
        ("namespace", request.namespace.unwrap_or_default()),
        ("name", name),
    ];
    let given = all.into_iter().filter(|(_, value)| !value.is_empty());
    let given = given.map(|(key, value)| (key.to_owned(), Value::from(value)));
    Value::Object(given.collect::<Map<_, _>>())
}

/// Queries the permissions of a switch of the mode; returns the answers as one List.
pub(super) async fn read(way: Requester<'_>, item: Item, node: &str) -> Result<String, Gap> {
    let session = way.session;
    let reviews = access::of_preflight().map(|request| {
        // A kubelet may only read and change its own Node.
        let name = match request.resource {
            "nodes" => node,
            _ => request.name.unwrap_or_default(),
        };
        post(session, way.patience(), attributes(&request, name))
    });
    let answers: Vec<_> = iter(reviews).buffered(AT_ONCE).collect().await;
    let mut items = Vec::new();
    for answer in answers {
        items.push(answer.map_err(|trouble| trouble.gap(item, session, "create", WHAT))?);
    }
    let objects = Objects {
        items,
        version: String::new(),
    };
    Ok(super::read::document(&objects, &[]))
}

async fn post(
    session: &Session,
    patience: Patience,
    attributes: Value,
) -> Result<Box<RawValue>, RequestError> {
    let body = review(&attributes);
    let post = async || session.post(REVIEWS, body.clone()).await;
    // A client that may not create reviews cannot query its permissions.
    let mut patience = patience.unless_denied();
    session
        .persist(&mut patience, "create", REVIEWS, post)
        .await
}

/// Queries whether `requests` are allowed to one of `sessions`.
///
/// After a request without an answer, no more are sent with the same credentials.
pub(super) async fn query(sessions: &[Session], requests: &[Request]) -> Vec<Reviewed> {
    let silent: Vec<RefCell<Option<String>>> =
        sessions.iter().map(|_| RefCell::default()).collect();
    let reviews = requests.iter().map(async |request| {
        let mut answer = Reviewed::Denied;
        for (session, silent) in sessions.iter().zip(&silent) {
            match one(session, silent, request).await {
                Reviewed::Allowed => return Reviewed::Allowed,
                Reviewed::Denied => {}
                unknown @ Reviewed::Unknown(_) => answer = unknown,
            }
        }
        answer
    });
    iter(reviews).buffered(AT_ONCE).collect().await
}

async fn one(session: &Session, silent: &RefCell<Option<String>>, request: &Request) -> Reviewed {
    if let Some(why) = silent.borrow().clone() {
        return Reviewed::Unknown(why);
    }
    let name = request.name.unwrap_or_default();
    let patience = Patience::new(Urgency::Look, session.limit);
    match post(session, patience, attributes(request, name)).await {
        Ok(answer) => match is_allowed(&answer) {
            Some(true) => Reviewed::Allowed,
            Some(false) => Reviewed::Denied,
            None => Reviewed::Unknown(format!(
                "{}: the answer is no access review",
                session.server
            )),
        },
        Err(trouble) => {
            let why = match trouble {
                RequestError::Status(401, _) => session.unauthorized().step().to_string(),
                trouble => format!("{}: create {WHAT}: {}", session.server, trouble.words()),
            };
            *silent.borrow_mut() = Some(why.clone());
            Reviewed::Unknown(why)
        }
    }
}
