//! Bearer tokens: from a kubeconfig, a file that is replaced regularly, or a credential plugin.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use http::HeaderValue;
use k8s_openapi::ByteString;
use kube::config::ExecConfig;
use serde::Deserialize;
use serde_json::Value;
use tokio::time::Instant;

use super::plugin::{self, bearer};
use kpx_node::evidence::Time;

/// Interval between reads of the token file, as in other Kubernetes clients.
const REFRESH: Duration = Duration::from_secs(60);

/// Source of a token.
#[derive(Clone, Debug)]
pub(super) enum TokenSource {
    /// The kubeconfig; the value of `Authorization`.
    Kubeconfig(HeaderValue),
    /// A file.
    File(PathBuf),
    /// A credential plugin.
    Plugin(Box<ExecConfig>),
}

/// A token and its source.
pub(super) struct Token {
    source: TokenSource,
    /// Last value and the time when it was read.
    last: Mutex<(HeaderValue, Instant)>,
}

impl Token {
    /// Reads the token of `source`. `limit` is the time limit of a plugin.
    pub(super) async fn open(source: TokenSource, limit: Duration) -> Result<Self, String> {
        let header = match &source {
            TokenSource::Kubeconfig(header) => header.clone(),
            TokenSource::File(path) => read(path)
                .map_err(|why| format!("cannot read the token in {}: {why}", path.display()))?,
            TokenSource::Plugin(plugin) => {
                let read = plugin::credential(plugin, limit).await?;
                read.token.ok_or("its credential plugin printed no token")?
            }
        };
        Ok(Self {
            source,
            last: Mutex::new((header, Instant::now())),
        })
    }

    /// Returns the value of `Authorization`. If the source cannot be read again, the previous value is used.
    pub(super) async fn header(&self, limit: Duration) -> HeaderValue {
        let (mut header, since) = self.last();
        let new = match &self.source {
            TokenSource::File(path) if since.elapsed() >= REFRESH => Some(read(path).ok()),
            TokenSource::Kubeconfig(_) | TokenSource::File(_) => None,
            TokenSource::Plugin(plugin) => {
                let read = plugin::credential(plugin, limit).await;
                Some(read.ok().and_then(|read| read.token))
            }
        };
        if let Some(read) = new {
            header = read.unwrap_or(header);
            *self.last.lock().unwrap_or_else(PoisonError::into_inner) =
                (header.clone(), Instant::now());
        }
        header
    }

    fn last(&self) -> (HeaderValue, Instant) {
        let last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        last.clone()
    }

    /// Notes that the API server did not accept the token: a plugin runs again for the next request.
    pub(super) async fn reject(&self) {
        if let TokenSource::Plugin(plugin) = &self.source {
            plugin::forget(plugin).await;
        }
    }

    /// Returns the likely reason why the API server does not accept the token at `now`, and the remedy.
    pub(super) fn rejected(&self, now: Time) -> String {
        let (header, _) = self.last();
        let why = match header.to_str().ok().and_then(expiry) {
            Some(end) if end <= now => format!("the token expired at {end}"),
            Some(end) => {
                format!("the token is valid until {end}, but may be of another cluster or revoked")
            }
            None => "the token may have expired, be revoked or be of another cluster".to_owned(),
        };
        let remedy = match &self.source {
            TokenSource::Kubeconfig(_) => {
                "log in to the cluster again, or get a new kubeconfig".to_owned()
            }
            TokenSource::File(path) => format!("write a new token to {}", path.display()),
            TokenSource::Plugin(plugin) => format!(
                "log in again: the token is from the credential plugin {:?}",
                plugin.command.as_deref().unwrap_or_default()
            ),
        };
        format!("{why}; {remedy}")
    }
}

/// Reads the token in `path` without the white space at its end.
fn read(path: &Path) -> Result<HeaderValue, String> {
    let text = fs::read_to_string(path).map_err(|e| e.to_string())?;
    bearer(text.trim()).map_err(|_| "it is not one line of plain text".to_owned())
}

/// Returns the time when a JSON Web Token (RFC 7519) expires; `None` for other tokens, and for one without an end.
fn expiry(header: &str) -> Option<Time> {
    #[derive(Deserialize)]
    struct Claims {
        exp: f64,
    }
    let token = header.strip_prefix("Bearer ")?;
    let mut parts = token.split('.');
    let (Some(_), Some(claims), Some(_), None) =
        (parts.next(), parts.next(), parts.next(), parts.next())
    else {
        return None;
    };
    // The token has the URL's alphabet and no padding.
    let mut text = claims.replace('-', "+").replace('_', "/");
    while text.len() % 4 != 0 {
        text.push('=');
    }
    let ByteString(bytes) = serde_json::from_value(Value::String(text)).ok()?;
    let claims: Claims = serde_json::from_slice(&bytes).ok()?;
    Time::from_epoch(claims.exp)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a token with `claims`.
    fn jwt(claims: &str) -> String {
        let part = plugin::base64(claims).replace('+', "-").replace('/', "_");
        format!("eyJhbGciOiJSUzI1NiJ9.{}.c2ln", part.trim_end_matches('='))
    }

    fn time(text: &str) -> Time {
        text.parse().unwrap()
    }

    async fn rejected(token: &str) -> String {
        let source = TokenSource::Kubeconfig(bearer(token).unwrap());
        let token = Token::open(source, REFRESH).await.unwrap();
        token.rejected(time("2026-11-22T12:00:00Z"))
    }

    #[tokio::test]
    async fn the_end_of_a_rejected_token_is_reported() {
        // Both alphabets of base64 differ in these characters.
        for (name, end, expected) in [
            (
                "a",
                "1795348799",
                "the token expired at 2026-11-22T11:59:59Z;",
            ),
            (
                "\u{3ff}\u{3fe}>?",
                "1795348800",
                "the token expired at 2026-11-22T12:00:00Z;",
            ),
            (
                "abc",
                "1795348801.5",
                "the token is valid until 2026-11-22T12:00:01Z, but",
            ),
        ] {
            let claims = format!(r#"{{"sub": "{name}", "exp": {end}}}"#);
            let why = rejected(&jwt(&claims)).await;
            assert!(why.starts_with(expected), "{claims}: {why}");
            assert!(why.ends_with("log in to the cluster again, or get a new kubeconfig"));
        }
        for token in ["abc", "a.b.c", "a.b.c.d", &jwt("{}"), &jwt("no JSON")] {
            let why = rejected(token).await;
            assert!(
                why.starts_with("the token may have expired"),
                "{token}: {why}"
            );
        }
    }

    #[tokio::test]
    async fn the_remedy_names_the_file_of_a_token() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("token");
        fs::write(&path, "abc\n").unwrap();
        let token = Token::open(TokenSource::File(path.clone()), REFRESH).await;
        let token = token.unwrap();
        assert_eq!(token.header(REFRESH).await, "Bearer abc");
        let why = token.rejected(time("2026-11-22T12:00:00Z"));
        assert!(why.ends_with(&format!("write a new token to {}", path.display())));
    }
}
