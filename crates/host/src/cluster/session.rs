//! Requests to the API server.

use std::error::Error as _;
use std::time::Duration;
use std::{fmt, fs};

use futures_util::StreamExt as _;
use futures_util::stream::BoxStream;
use http::header::{AUTHORIZATION, RETRY_AFTER};
use http::{HeaderMap, StatusCode};
use k8s_openapi::ByteString;
use kube::Client;
use kube::client::Body;
use kube::config::AuthInfo;
use kube::core::{Status, WatchEvent};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::value::RawValue;
use tokio::time::timeout;

use super::access::{Access, root_cause};
use super::client::client;
use super::plugin::{self, Certificate};
use super::refusal::{Refusal, RequestError};
use super::tls;
use super::token::{Token, TokenSource};
use crate::clock;
use crate::machine::Names;

/// Cause in the refusal by a `PodDisruptionBudget`: `DisruptionBudgetCause` of policy/v1.
const BUDGET: &str = "DisruptionBudget";

/// Objects per page of a list.
const PAGE: u32 = 500;

/// A client that reached the API server.
pub(super) struct Session {
    /// The client.
    pub(super) client: Client,
    /// Source of the credentials, for messages.
    pub(super) origin: String,
    /// URL of the API server, for messages.
    pub(super) server: String,
    /// Time limit of one request.
    pub(super) limit: Duration,
    /// Advice for a request that these credentials may not make.
    pub(super) advice: &'static str,
    token: Option<Token>,
    /// Client certificate, PEM.
    certificate: Option<Vec<u8>>,
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Session")
            .field("origin", &self.origin)
            .field("server", &self.server)
            .finish_non_exhaustive()
    }
}

/// Objects as written by the API server.
#[derive(Debug, Default)]
pub(super) struct Objects {
    /// Objects of the list.
    pub(super) items: Vec<Box<RawValue>>,
    /// Resource version of the list.
    pub(super) version: String,
}

#[derive(Deserialize)]
struct Page {
    #[serde(default)]
    metadata: PageMetadata,
    // Go encodes an empty list as null.
    items: Option<Vec<Box<RawValue>>>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct PageMetadata {
    r#continue: Option<String>,
    resource_version: Option<String>,
}

impl Session {
    /// Connects and requests the version, so that a server that is not available is noticed once.
    pub(super) async fn open(mut access: Access, limit: Duration) -> Result<Self, Refusal> {
        let origin = access.origin.clone();
        let unusable =
            |why: String| Refusal::Failed(format!("cannot use the credentials of {origin}: {why}"));
        if let Some(TokenSource::Plugin(plugin)) = &access.token {
            let read = plugin::credential(plugin, limit).await;
            let read = read.map_err(unusable)?;
            if let Some(Certificate { certificate, key }) = &read.certificate {
                let user = &mut access.config.auth_info;
                user.client_certificate_data = Some(plugin::base64(certificate));
                user.client_key_data = Some(plugin::base64(key).into());
            }
            if read.token.is_none() {
                access.token = None;
            }
        }
        let token = match access.token {
            Some(source) => Some(Token::open(source, limit).await.map_err(unusable)?),
            None => None,
        };
        let certificate = certificate(&access.config.auth_info);
        let server = access.config.cluster_url.to_string();
        let server = server.trim_end_matches('/').to_owned();
        let proxy = access.config.proxy_url.as_ref();
        let proxy = proxy.map_or(String::new(), |url| {
            let port = url.port().map_or(String::new(), |port| format!(":{port}"));
            format!(
                " through the proxy {}{port}",
                url.host().unwrap_or_default()
            )
        });
        // Less than a request takes, so that its error is the one of the name.
        let names = Names::below(&access.root, limit * 9 / 10);
        let client = client(access.config, names, limit)
            .await
            .map_err(unusable)?;
        let session = Self {
            client,
            origin: access.origin,
            server,
            limit,
            advice: access.advice,
            token,
            certificate,
        };
        let unreachable = |why: String| {
            Refusal::Away(format!(
                "cannot reach the API server {}{proxy} (configured by {}): {why}",
                session.server, session.origin
            ))
        };
        match session.get("/version").await {
            Err(RequestError::Transport(why)) => Err(unreachable(why)),
            Err(RequestError::Late) => Err(unreachable(session.late())),
            Err(RequestError::Status(401, _)) => Err(session.unauthorized()),
            // A server that answers is available; refusals are reported per item.
            Ok(_) | Err(_) => Ok(session),
        }
    }

    /// Returns the refusal for credentials that the API server does not accept.
    pub(super) fn unauthorized(&self) -> Refusal {
        let certificate = self.certificate.as_deref();
        let why = match (&self.token, certificate.and_then(tls::expired)) {
            (Some(token), _) => token.rejected(clock::now()),
            (None, Some(end)) => {
                format!("the client certificate expired at {end}; get a new kubeconfig")
            }
            (None, None) if certificate.is_some() => {
                "the client certificate may be of another cluster or revoked; get a new kubeconfig"
                    .to_owned()
            }
            (None, None) => "they may have expired; log in to the cluster again".to_owned(),
        };
        Refusal::Denied(format!(
            "the API server {} does not accept the credentials of {} (401 Unauthorized): {why}{}",
            self.server, self.origin, self.advice
        ))
    }

    /// Returns the reason for a request that took too long.
    pub(super) fn late(&self) -> String {
        format!("no answer within {:?}", self.limit)
    }

    /// Returns the response body of a GET of `path`.
    pub(super) async fn get(&self, path: &str) -> Result<String, RequestError> {
        self.request(path, http::Request::get(path).body(Vec::new()))
            .await
    }

    /// Returns the object in the response to a POST of `body`, which is JSON, to `path`.
    pub(super) async fn post(
        &self,
        path: &str,
        body: String,
    ) -> Result<Box<RawValue>, RequestError> {
        self.send("POST", path, "application/json", body).await
    }

    /// Returns the object in the response to a JSON merge patch of the object at `path`.
    pub(super) async fn patch(
        &self,
        path: &str,
        body: String,
    ) -> Result<Box<RawValue>, RequestError> {
        let kind = "application/merge-patch+json";
        self.send("PATCH", path, kind, body).await
    }

    /// Returns the object in the response to a DELETE of the object at `path`, with `body` as its options.
    pub(super) async fn delete(
        &self,
        path: &str,
        body: String,
    ) -> Result<Box<RawValue>, RequestError> {
        self.send("DELETE", path, "application/json", body).await
    }

    async fn send(
        &self,
        method: &str,
        path: &str,
        kind: &str,
        body: String,
    ) -> Result<Box<RawValue>, RequestError> {
        let request = http::Request::builder().method(method).uri(path);
        let request = request.header("content-type", kind);
        let text = self.request(path, request.body(body.into_bytes())).await?;
        RawValue::from_string(text)
            .map_err(|e| RequestError::Answer(format!("the answer is not JSON: {e}")))
    }

    async fn request(
        &self,
        path: &str,
        request: http::Result<http::Request<Vec<u8>>>,
    ) -> Result<String, RequestError> {
        let request = request
            .map_err(|e| RequestError::Answer(format!("invalid request for {path}: {e}")))?;
        let request = self.signed(request).await;
        match timeout(self.limit, self.exchange(request)).await {
            Err(_) => Err(RequestError::Late),
            Ok(answer) => answer,
        }
    }

    /// Returns `request` with the token, if there is one.
    pub(super) async fn signed(
        &self,
        mut request: http::Request<Vec<u8>>,
    ) -> http::Request<Vec<u8>> {
        if let Some(token) = &self.token {
            let header = token.header(self.limit).await;
            request.headers_mut().insert(AUTHORIZATION, header);
        }
        request
    }

    /// Sends `request` and reads the whole response.
    async fn exchange(&self, request: http::Request<Vec<u8>>) -> Result<String, RequestError> {
        let response = self.client.send(request.map(Body::from)).await;
        let (head, body) = response.map_err(trouble)?.into_parts();
        let body = body.collect_bytes().await.map_err(trouble)?;
        let text = String::from_utf8(body.to_vec());
        let text = text.map_err(|e| RequestError::Answer(e.to_string()))?;
        if head.status.is_client_error() || head.status.is_server_error() {
            if let (StatusCode::UNAUTHORIZED, Some(token)) = (head.status, &self.token) {
                token.reject().await;
            }
            return Err(refused(head.status.as_u16(), &head.headers, &text));
        }
        Ok(text)
    }

    /// Returns the events of a watch at `path`, until it ends.
    pub(super) async fn watch<T>(
        &self,
        path: &str,
    ) -> Result<BoxStream<'static, Result<WatchEvent<T>, RequestError>>, RequestError>
    where
        T: Clone + DeserializeOwned + Send + 'static,
    {
        let request = http::Request::get(path).body(Vec::new());
        let request = request
            .map_err(|e| RequestError::Answer(format!("invalid request for {path}: {e}")))?;
        let request = self.signed(request).await;
        match timeout(self.limit, self.client.request_events(request)).await {
            Err(_) => Err(RequestError::Late),
            Ok(Err(e)) => Err(trouble(e)),
            Ok(Ok(events)) => Ok(events.map(|event| event.map_err(trouble)).boxed()),
        }
    }

    /// Returns the object at `path`; `None` if it does not exist.
    pub(super) async fn object(&self, path: &str) -> Result<Option<Box<RawValue>>, RequestError> {
        match self.get(path).await {
            Ok(text) => RawValue::from_string(text)
                .map(Some)
                .map_err(|e| RequestError::Answer(format!("the answer is not JSON: {e}"))),
            Err(RequestError::Status(404, _)) => Ok(None),
            Err(trouble) => Err(trouble),
        }
    }

    /// Returns all objects of the collection at `path` that match `query`.
    pub(super) async fn list(&self, path: &str, query: &str) -> Result<Objects, RequestError> {
        match self.pages(path, query, Some(PAGE)).await {
            // The list expired on the server while it was read. A single page cannot expire.
            Err(RequestError::Status(410, _)) => self.pages(path, query, None).await,
            read => read,
        }
    }

    async fn pages(
        &self,
        path: &str,
        query: &str,
        size: Option<u32>,
    ) -> Result<Objects, RequestError> {
        let mut all = Objects::default();
        let mut next = None;
        loop {
            let mut parameters: Vec<String> = Vec::new();
            parameters.extend((!query.is_empty()).then(|| query.to_owned()));
            parameters.extend(size.map(|size| format!("limit={size}")));
            parameters.extend(
                next.as_deref()
                    .map(|token| format!("continue={}", quote(token))),
            );
            let text = self
                .get(&format!("{path}?{}", parameters.join("&")))
                .await?;
            let page: Page = serde_json::from_str(&text)
                .map_err(|e| RequestError::Answer(format!("the answer is not a list: {e}")))?;
            all.items.extend(page.items.unwrap_or_default());
            all.version = page.metadata.resource_version.unwrap_or(all.version);
            let token = page.metadata.r#continue.filter(|token| !token.is_empty());
            if token.is_some() && token == next {
                let why = "the server sent the same continue token twice".to_owned();
                return Err(RequestError::Answer(why));
            }
            match token {
                Some(token) => next = Some(token),
                None => return Ok(all),
            }
        }
    }
}

/// Returns the client certificate of `user`, PEM.
fn certificate(user: &AuthInfo) -> Option<Vec<u8>> {
    match (&user.client_certificate_data, &user.client_certificate) {
        (Some(text), _) => {
            let ByteString(pem) = serde_json::from_value(text.as_str().into()).ok()?;
            Some(pem)
        }
        (None, Some(path)) => fs::read(path).ok(),
        (None, None) => None,
    }
}

/// Converts an error response with `code` and `text`, which is a `Status` or a proxy's message.
fn refused(code: u16, headers: &HeaderMap, text: &str) -> RequestError {
    let status: Option<Status> = serde_json::from_str(text).ok();
    let header = headers
        .get(RETRY_AFTER)
        .and_then(|value| value.to_str().ok());
    let header = header.and_then(|value| value.trim().parse::<u64>().ok());
    let details = status.as_ref().and_then(|status| status.details.as_ref());
    let body = details.map_or(0, |details| u64::from(details.retry_after_seconds));
    let message = status
        .as_ref()
        .map_or_else(|| text.trim().to_owned(), words);
    match header.or((body > 0).then_some(body)) {
        Some(after) if matches!(code, 429 | 503) => {
            RequestError::Busy(code, message, Duration::from_secs(after))
        }
        _ => RequestError::Status(code, message),
    }
}

/// Converts an error of the client.
pub(super) fn trouble(error: kube::Error) -> RequestError {
    match error {
        kube::Error::Api(status) => RequestError::Status(status.code, words(&status)),
        e @ (kube::Error::FromUtf8(_) | kube::Error::SerdeError(_)) => {
            RequestError::Answer(root_cause(&e))
        }
        e => RequestError::Transport(match (tls::in_words(&e), e.source()) {
            (Some(why), _) => why,
            (None, Some(inner)) => root_cause(inner),
            (None, None) => e.to_string(),
        }),
    }
}

/// Returns the message of `status`. Only the causes name the disruption budget.
fn words(status: &Status) -> String {
    let causes = status.details.iter().flat_map(|details| &details.causes);
    let budgets = causes.filter(|cause| cause.reason == BUDGET);
    let parts = budgets.map(|cause| cause.message.as_str());
    let parts: Vec<&str> = [status.message.as_str()].into_iter().chain(parts).collect();
    parts.join(" ")
}

/// Returns `text` encoded as the value of a query parameter.
pub(super) fn quote(text: &str) -> String {
    let mut quoted = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => {
                quoted.push(char::from(byte));
            }
            _ => quoted.extend(format!("%{byte:02X}").chars()),
        }
    }
    quoted
}
