//! An HTTP server whose answers a function computes.

use std::collections::HashMap;
use std::net::{SocketAddr, TcpListener};
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::thread;

use axum::body::{Body, Bytes};
use axum::extract::{Query, State};
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, Uri, header};
use axum::response::{IntoResponse as _, Response};
use axum::{Extension, Router};
use hyper::upgrade::{OnUpgrade, Upgraded};
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::sync::oneshot;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::handshake::derive_accept_key;
use tokio_tungstenite::tungstenite::protocol::Role;

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
    pub(crate) headers: HeaderMap,
    /// The body, or null if it is no JSON.
    pub(crate) body: Value,
    /// The words of a command, in their order.
    pub(crate) command: Vec<String>,
    /// Set if the client wants to go on with a WebSocket; not kept in the list of requests.
    pub(crate) upgrade: Option<Upgrade>,
}

pub(crate) type WebSocket = WebSocketStream<TokioIo<Upgraded>>;

/// The offer of a client to go on with a WebSocket.
#[derive(Clone, Debug)]
pub(crate) struct Upgrade {
    connection: OnUpgrade,
    key: String,
    /// The subprotocols that the client speaks, the best one first.
    pub(crate) protocols: Vec<String>,
}

impl Upgrade {
    /// Accepts one of the protocols: the response, and the connection after it; `None` if the client is gone by then.
    pub(crate) fn accept(
        self,
        protocol: &str,
    ) -> (
        Response,
        impl Future<Output = Option<WebSocket>> + Send + use<>,
    ) {
        let response = Response::builder()
            .status(StatusCode::SWITCHING_PROTOCOLS)
            .header(header::CONNECTION, "Upgrade")
            .header(header::UPGRADE, "websocket")
            .header(
                header::SEC_WEBSOCKET_ACCEPT,
                derive_accept_key(self.key.as_bytes()),
            )
            .header(header::SEC_WEBSOCKET_PROTOCOL, protocol)
            .body(Body::empty());
        let connection = self.connection;
        let socket = async move {
            let stream = TokioIo::new(connection.await.ok()?);
            Some(WebSocketStream::from_raw_socket(stream, Role::Server, None).await)
        };
        (response.unwrap(), socket)
    }
}

pub(crate) type Answer = Pin<Box<dyn Future<Output = Response> + Send>>;

type Handler = Arc<dyn Fn(Request) -> Answer + Send + Sync>;

/// A server on its own thread, also for tests without async. It ends when it is dropped.
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
    /// Starts a server at `listener`, in the network namespace of the listener.
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
    Query(query): Query<Vec<(String, String)>>,
    connection: Option<Extension<OnUpgrade>>,
    headers: HeaderMap,
    body: Bytes,
) -> Response {
    let text = |name| {
        let value = headers.get(name);
        value.map_or(String::new(), |v: &HeaderValue| {
            v.to_str().unwrap().to_owned()
        })
    };
    let protocols = text(header::SEC_WEBSOCKET_PROTOCOL);
    let upgrade = connection.map(|Extension(connection)| Upgrade {
        connection,
        key: text(header::SEC_WEBSOCKET_KEY),
        protocols: protocols.split(',').map(|p| p.trim().to_owned()).collect(),
    });
    let words = query.iter().filter(|(key, _)| key == "command");
    let request = Request {
        method: method.to_string(),
        path: uri.path().to_owned(),
        command: words.map(|(_, word)| word.clone()).collect(),
        query: query.into_iter().collect(),
        uri: uri.to_string(),
        content_type: text(header::CONTENT_TYPE),
        authorization: text(header::AUTHORIZATION),
        headers: headers.clone(),
        body: serde_json::from_slice(&body).unwrap_or_default(),
        upgrade: None,
    };
    shared.asked.lock().unwrap().push(request.clone());
    let request = Request { upgrade, ..request };
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
