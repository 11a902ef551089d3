//! HTTP to a function: what a server of the tests is, whatever it answers.

use std::collections::HashMap;
use std::net::{SocketAddr, TcpListener};
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::thread;

use axum::Router;
use axum::body::Bytes;
use axum::extract::{Query, State};
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, Uri, header};
use axum::response::{IntoResponse as _, Response};
use serde_json::Value;
use tokio::sync::oneshot;

/// A request.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    pub(crate) method: String,
    pub(crate) path: String,
    pub(crate) query: HashMap<String, String>,
    /// Path and query as they were sent.
    pub(crate) uri: String,
    pub(crate) content_type: String,
    /// The credentials, as they were sent.
    pub(crate) authorization: String,
    /// The body, or null if it is no JSON.
    pub(crate) body: Value,
}

pub(crate) type Answer = Pin<Box<dyn Future<Output = Response> + Send>>;

type Handler = Arc<dyn Fn(Request) -> Answer + Send + Sync>;

/// A server on a thread of its own, so that tests without async can have one; ended when dropped.
pub(crate) struct Server {
    pub(crate) address: SocketAddr,
    asked: Arc<Mutex<Vec<Request>>>,
    end: Option<oneshot::Sender<()>>,
    thread: Option<thread::JoinHandle<()>>,
}

#[derive(Clone)]
struct Shared {
    handler: Handler,
    asked: Arc<Mutex<Vec<Request>>>,
}

impl Server {
    /// Answers at `listener`, in whose network namespace it stays.
    pub(crate) fn start(
        listener: TcpListener,
        handler: impl Fn(Request) -> Answer + Send + Sync + 'static,
    ) -> Self {
        let address = listener.local_addr().unwrap();
        listener.set_nonblocking(true).unwrap();
        let shared = Shared {
            handler: Arc::new(handler),
            asked: Arc::default(),
        };
        let asked = Arc::clone(&shared.asked);
        let (end, ended) = oneshot::channel();
        let thread = thread::spawn(move || serve(listener, shared, ended));
        Self {
            address,
            asked,
            end: Some(end),
            thread: Some(thread),
        }
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Returns every request so far, in their order.
    pub(crate) fn asked(&self) -> Vec<Request> {
        self.asked.lock().unwrap().clone()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Every connection ends with the runtime.
        drop(self.end.take());
        let ended = self.thread.take().map(thread::JoinHandle::join);
        assert!(matches!(ended, Some(Ok(()))) || thread::panicking());
    }
}

fn serve(listener: TcpListener, shared: Shared, ended: oneshot::Receiver<()>) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async move {
        let listener = tokio::net::TcpListener::from_std(listener).unwrap();
        let router = Router::new().fallback(answer).with_state(shared);
        tokio::select! {
            served = axum::serve(listener, router) => served.unwrap(),
            _ = ended => (),
        }
    });
}

async fn answer(
    State(shared): State<Shared>,
    method: Method,
    uri: Uri,
    Query(query): Query<HashMap<String, String>>,
    headers: HeaderMap,
    body: Bytes,
) -> Response {
    let text = |name| {
        let value = headers.get(name);
        value.map_or(String::new(), |v: &HeaderValue| {
            v.to_str().unwrap().to_owned()
        })
    };
    let request = Request {
        method: method.to_string(),
        path: uri.path().to_owned(),
        query,
        uri: uri.to_string(),
        content_type: text(header::CONTENT_TYPE),
        authorization: text(header::AUTHORIZATION),
        body: serde_json::from_slice(&body).unwrap_or_default(),
    };
    shared.asked.lock().unwrap().push(request.clone());
    // Like a real server, it carries the request out even if the client no longer waits.
    let answer = tokio::spawn((shared.handler)(request));
    answer.await.unwrap()
}

/// A text as it is, anything else as JSON.
pub(crate) fn reply(status: u16, body: Value) -> Response {
    let status = StatusCode::from_u16(status).unwrap();
    match body {
        Value::String(text) => (status, text).into_response(),
        body => {
            let json = [(header::CONTENT_TYPE, "application/json")];
            (status, json, body.to_string()).into_response()
        }
    }
}
