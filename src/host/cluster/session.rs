//! Requests to the API server.

use std::error::Error as _;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;
use std::{fmt, fs, io, thread};

use futures_util::StreamExt as _;
use futures_util::stream::BoxStream;
use http::header::{AUTHORIZATION, RETRY_AFTER};
use http::{HeaderMap, HeaderValue};
use kube::client::{AuthError, Body};
use kube::config::ExecConfig;
use kube::core::{Status, WatchEvent};
use kube::{Client, Config};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::value::RawValue;
use tokio::runtime::Handle;
use tokio::sync::oneshot;
use tokio::time::{Instant, timeout};

use super::access::{Access, root_cause};
use super::{Refusal, Trouble};

/// The cause of a refusal that a `PodDisruptionBudget` is: `DisruptionBudgetCause` of policy/v1.
const BUDGET: &str = "DisruptionBudget";

/// Objects per page.
const PAGE: u32 = 500;

/// A client that reached the API server.
pub(super) struct Session {
    client: Client,
    /// Where the credentials come from, for people.
    pub(super) origin: String,
    /// The API server, for people.
    pub(super) server: String,
    /// How long one request may take.
    pub(super) limit: Duration,
    token: Option<Token>,
}

/// A token in a file that somebody replaces now and then.
struct Token {
    path: PathBuf,
    /// What was read last, and when.
    last: Mutex<(HeaderValue, Instant)>,
}

/// How long a token is taken to be the one in its file, as clients of Kubernetes do.
const REFRESH: Duration = Duration::from_secs(60);

impl Token {
    fn open(path: PathBuf) -> Result<Self, String> {
        let read = read_token(&path);
        let header =
            read.map_err(|why| format!("cannot read the token in {}: {why}", path.display()))?;
        Ok(Self {
            path,
            last: Mutex::new((header, Instant::now())),
        })
    }

    /// Returns the value of `Authorization`. One that cannot be read again is used on.
    fn header(&self) -> HeaderValue {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        if last.1.elapsed() >= REFRESH {
            if let Ok(header) = read_token(&self.path) {
                last.0 = header;
            }
            last.1 = Instant::now();
        }
        last.0.clone()
    }
}

/// Reads the token at `path`; what editors and `echo` put behind it is none of it.
fn read_token(path: &Path) -> Result<HeaderValue, String> {
    let text = fs::read_to_string(path).map_err(|e| e.to_string())?;
    let header = HeaderValue::try_from(format!("Bearer {}", text.trim()));
    let mut header = header.map_err(|_| "it is not one line of plain text".to_owned())?;
    header.set_sensitive(true);
    Ok(header)
}

/// Makes the client. A kubeconfig may name a program that gets the credentials, and the client waits for its end: on a
/// thread of its own, so that nobody else has to.
async fn client(config: Config, limit: Duration) -> Result<Client, String> {
    let plugin = config.auth_info.exec.clone();
    let (sender, receiver) = oneshot::channel();
    let runtime = Handle::current();
    let make = move || {
        let _inside = runtime.enter();
        // Whoever asked may have gone.
        sender.send(Client::try_from(config)).ok();
    };
    thread::Builder::new()
        .name("credentials".to_owned())
        .spawn(make)
        .map_err(|e| e.to_string())?;
    match timeout(limit, receiver).await {
        Ok(Ok(client)) => client.map_err(|e| match (&e, plugin) {
            (kube::Error::Auth(AuthError::AuthExecStart(e)), Some(plugin)) => unstarted(&plugin, e),
            _ => root_cause(&e),
        }),
        Ok(Err(_)) => Err("the client stopped early".to_owned()),
        Err(_) => Err(format!(
            "its program for credentials took longer than {limit:?}; --timeout allows more"
        )),
    }
}

/// Returns that the program for credentials cannot be started, and what its kubeconfig says of that.
fn unstarted(plugin: &ExecConfig, error: &io::Error) -> String {
    let command = plugin.command.as_deref().unwrap_or_default();
    let hint = plugin.install_hint.as_deref().map(str::trim);
    let hint = hint.filter(|hint| !hint.is_empty());
    let hint = hint.map_or(String::new(), |hint| {
        format!("; its kubeconfig says: {hint}")
    });
    format!("cannot start the credential plugin {command:?}: {error}{hint}")
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Session")
            .field("origin", &self.origin)
            .field("server", &self.server)
            .finish_non_exhaustive()
    }
}

/// Objects as the API server wrote them.
#[derive(Debug, Default)]
pub(super) struct Objects {
    /// The objects.
    pub(super) items: Vec<Box<RawValue>>,
    /// The version of the whole list.
    pub(super) version: String,
}

#[derive(Deserialize)]
struct Page {
    #[serde(default)]
    metadata: PageMetadata,
    // Go writes an empty list as null.
    items: Option<Vec<Box<RawValue>>>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct PageMetadata {
    r#continue: Option<String>,
    resource_version: Option<String>,
}

impl Session {
    /// Connects, and asks for the version: so that a server which is away is noticed once.
    pub(super) async fn open(access: Access, limit: Duration) -> Result<Self, Refusal> {
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
        let token = access.token.map(Token::open).transpose();
        let token = token.map_err(|why| Refusal::Failed(format!("{}: {why}", access.origin)))?;
        let client = client(access.config, limit).await.map_err(|why| {
            Refusal::Failed(format!(
                "cannot use the credentials of {}: {why}",
                access.origin
            ))
        })?;
        let session = Self {
            client,
            origin: access.origin,
            server,
            limit,
            token,
        };
        let unreachable = |why: String| {
            Refusal::Away(format!(
                "cannot reach the API server {}{proxy} (from {}): {why}",
                session.server, session.origin
            ))
        };
        match session.get("/version").await {
            Err(Trouble::Transport(why)) => Err(unreachable(why)),
            Err(Trouble::Late) => Err(unreachable(session.late())),
            Err(Trouble::Status(401, _)) => Err(session.unauthorized()),
            // Whoever answers is alive; what it refuses is told for each item.
            Ok(_) | Err(_) => Ok(session),
        }
    }

    /// Returns the refusal for credentials that the API server does not know.
    pub(super) fn unauthorized(&self) -> Refusal {
        Refusal::Denied(format!(
            "the API server {} does not accept the credentials of {} (401 Unauthorized); they may have expired",
            self.server, self.origin
        ))
    }

    /// Returns why a request that took too long failed.
    pub(super) fn late(&self) -> String {
        format!("no answer within {:?}", self.limit)
    }

    /// Returns the body of the answer to a GET of `path`.
    pub(super) async fn get(&self, path: &str) -> Result<String, Trouble> {
        self.request(path, http::Request::get(path).body(Vec::new()))
            .await
    }

    /// Returns the object in the answer to a POST of `body`, which is JSON, to `path`.
    pub(super) async fn post(&self, path: &str, body: String) -> Result<Box<RawValue>, Trouble> {
        self.send("POST", path, "application/json", body).await
    }

    /// Returns the object in the answer to a JSON merge patch of the object at `path`.
    pub(super) async fn patch(&self, path: &str, body: String) -> Result<Box<RawValue>, Trouble> {
        let kind = "application/merge-patch+json";
        self.send("PATCH", path, kind, body).await
    }

    /// Returns the object in the answer to a DELETE of the one at `path`, with `body` for its options.
    pub(super) async fn delete(&self, path: &str, body: String) -> Result<Box<RawValue>, Trouble> {
        self.send("DELETE", path, "application/json", body).await
    }

    async fn send(
        &self,
        method: &str,
        path: &str,
        kind: &str,
        body: String,
    ) -> Result<Box<RawValue>, Trouble> {
        let request = http::Request::builder().method(method).uri(path);
        let request = request.header("content-type", kind);
        let text = self.request(path, request.body(body.into_bytes())).await?;
        RawValue::from_string(text)
            .map_err(|e| Trouble::Answer(format!("the answer is not JSON: {e}")))
    }

    async fn request(
        &self,
        path: &str,
        request: http::Result<http::Request<Vec<u8>>>,
    ) -> Result<String, Trouble> {
        let request =
            request.map_err(|e| Trouble::Answer(format!("{path} cannot be asked for: {e}")))?;
        match timeout(self.limit, self.exchange(request)).await {
            Err(_) => Err(Trouble::Late),
            Ok(answer) => answer,
        }
    }

    fn signed(&self, mut request: http::Request<Vec<u8>>) -> http::Request<Vec<u8>> {
        if let Some(token) = &self.token {
            request.headers_mut().insert(AUTHORIZATION, token.header());
        }
        request
    }

    /// Sends `request`, and reads the answer to its end.
    async fn exchange(&self, request: http::Request<Vec<u8>>) -> Result<String, Trouble> {
        let request = self.signed(request);
        let response = self.client.send(request.map(Body::from)).await;
        let (head, body) = response.map_err(trouble)?.into_parts();
        let body = body.collect_bytes().await.map_err(trouble)?;
        let text = String::from_utf8(body.to_vec());
        let text = text.map_err(|e| Trouble::Answer(e.to_string()))?;
        if head.status.is_client_error() || head.status.is_server_error() {
            return Err(refused(head.status.as_u16(), &head.headers, &text));
        }
        Ok(text)
    }

    /// Returns the changes that a watch at `path` tells, until it ends.
    pub(super) async fn watch<T>(
        &self,
        path: &str,
    ) -> Result<BoxStream<'static, Result<WatchEvent<T>, Trouble>>, Trouble>
    where
        T: Clone + DeserializeOwned + Send + 'static,
    {
        let request = http::Request::get(path).body(Vec::new());
        let request =
            request.map_err(|e| Trouble::Answer(format!("{path} cannot be asked for: {e}")))?;
        match timeout(self.limit, self.client.request_events(self.signed(request))).await {
            Err(_) => Err(Trouble::Late),
            Ok(Err(e)) => Err(trouble(e)),
            Ok(Ok(events)) => Ok(events.map(|event| event.map_err(trouble)).boxed()),
        }
    }

    /// Returns the object at `path`, or `None` where there is none.
    pub(super) async fn object(&self, path: &str) -> Result<Option<Box<RawValue>>, Trouble> {
        match self.get(path).await {
            Ok(text) => RawValue::from_string(text)
                .map(Some)
                .map_err(|e| Trouble::Answer(format!("the answer is not JSON: {e}"))),
            Err(Trouble::Status(404, _)) => Ok(None),
            Err(trouble) => Err(trouble),
        }
    }

    /// Returns all objects of the collection at `path`, chosen by `query`.
    pub(super) async fn list(&self, path: &str, query: &str) -> Result<Objects, Trouble> {
        match self.pages(path, query, Some(PAGE)).await {
            // The server forgot the list while it was read. Read as one page, it cannot be forgotten again.
            Err(Trouble::Status(410, _)) => self.pages(path, query, None).await,
            read => read,
        }
    }

    async fn pages(&self, path: &str, query: &str, size: Option<u32>) -> Result<Objects, Trouble> {
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
                .map_err(|e| Trouble::Answer(format!("the answer is not a list: {e}")))?;
            all.items.extend(page.items.unwrap_or_default());
            all.version = page.metadata.resource_version.unwrap_or(all.version);
            let token = page.metadata.r#continue.filter(|token| !token.is_empty());
            if token.is_some() && token == next {
                let why = "the server sent the same continue token twice".to_owned();
                return Err(Trouble::Answer(why));
            }
            match token {
                Some(token) => next = Some(token),
                None => return Ok(all),
            }
        }
    }
}

/// Returns what it means that the server answered with `code` and `text`, which is a `Status` or what a proxy says.
fn refused(code: u16, headers: &HeaderMap, text: &str) -> Trouble {
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
            Trouble::Busy(code, message, Duration::from_secs(after))
        }
        _ => Trouble::Status(code, message),
    }
}

/// Returns what `error` of the client means.
fn trouble(error: kube::Error) -> Trouble {
    match error {
        kube::Error::Api(status) => Trouble::Status(status.code, words(&status)),
        e @ (kube::Error::FromUtf8(_) | kube::Error::SerdeError(_)) => {
            Trouble::Answer(root_cause(&e))
        }
        e => Trouble::Transport(match e.source() {
            Some(inner) => root_cause(inner),
            None => e.to_string(),
        }),
    }
}

/// Returns what `status` says. Which budget keeps a pod is told among the causes alone.
fn words(status: &Status) -> String {
    let causes = status.details.iter().flat_map(|details| &details.causes);
    let budgets = causes.filter(|cause| cause.reason == BUDGET);
    let parts = budgets.map(|cause| cause.message.as_str());
    let parts: Vec<&str> = [status.message.as_str()].into_iter().chain(parts).collect();
    parts.join(" ")
}

/// Returns `text` as the value of a query parameter.
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
