//! Credential plugins: programs named by a kubeconfig that print a token or a client certificate.
//!
//! Source: <https://kubernetes.io/docs/reference/access-authn-authz/authentication/#client-go-credential-plugins>.
//! The client library runs a plugin several times per client, always with a terminal as its input, so kpx runs it.

use std::io::{self, IsTerminal as _};
use std::process::{Output, Stdio};
use std::time::Duration;

use http::HeaderValue;
use http::header::InvalidHeaderValue;
use kube::config::{ExecConfig, ExecInteractiveMode};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::process::Command;
use tokio::sync::Mutex;
use tokio::time::timeout;

use crate::clock;
use kpx_node::evidence::Time;

/// Credentials that end within this time are replaced, in seconds.
const MARGIN: i64 = 60;

/// Credentials of each plugin of this process: a plugin may ask the user, who answers once.
static KEPT: Mutex<Vec<(String, Credential)>> = Mutex::const_new(Vec::new());

/// Credentials that a plugin printed.
#[derive(Clone, Debug)]
pub(super) struct Credential {
    /// Value of `Authorization`.
    pub(super) token: Option<HeaderValue>,
    /// Client certificate and its key, PEM.
    pub(super) certificate: Option<Certificate>,
    /// Time when the credentials expire.
    expires: Option<Time>,
}

/// A client certificate and its key, PEM.
#[derive(Clone)]
pub(super) struct Certificate {
    pub(super) certificate: String,
    pub(super) key: String,
}

impl std::fmt::Debug for Certificate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Certificate").finish_non_exhaustive()
    }
}

/// An `ExecCredential`.
#[derive(Deserialize)]
struct Answer {
    status: Option<Status>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Status {
    expiration_timestamp: Option<String>,
    token: Option<String>,
    client_certificate_data: Option<String>,
    client_key_data: Option<String>,
}

/// Returns the credentials of `plugin`, which runs if there are none yet or they expire.
///
/// `limit` applies to a plugin that cannot ask for input. Errors are reasons for users.
pub(super) async fn credential(plugin: &ExecConfig, limit: Duration) -> Result<Credential, String> {
    let key = key(plugin);
    let mut kept = KEPT.lock().await;
    let lasts = |credential: &Credential| {
        credential
            .expires
            .is_none_or(|end| end.seconds - clock::now().seconds > MARGIN)
    };
    if let Some((_, known)) = kept.iter().find(|(of, known)| *of == key && lasts(known)) {
        return Ok(known.clone());
    }
    let new = run(plugin, limit, io::stdin().is_terminal()).await?;
    kept.retain(|(of, _)| *of != key);
    kept.push((key, new.clone()));
    Ok(new)
}

/// Returns the properties of `plugin` on which its credentials depend, in a fixed order.
fn key(plugin: &ExecConfig) -> String {
    let variables = plugin.env.iter().flatten();
    let variables: Vec<_> = variables
        .map(|variable| (variable.get("name"), variable.get("value")))
        .collect();
    format!(
        "{:?}",
        (
            &plugin.command,
            &plugin.args,
            variables,
            &plugin.api_version,
            &plugin.interactive_mode,
            &plugin.cluster,
        )
    )
}

/// Drops the credentials of `plugin`, which the API server does not accept.
pub(super) async fn forget(plugin: &ExecConfig) {
    let key = key(plugin);
    KEPT.lock().await.retain(|(of, _)| *of != key);
}

/// Returns whether `plugin` may ask for input.
pub(super) fn may_ask(plugin: &ExecConfig) -> bool {
    asks(plugin, io::stdin().is_terminal()).unwrap_or(false)
}

/// Returns whether `plugin` may ask for input, on a `terminal`. Fails if it must and there is none.
fn asks(plugin: &ExecConfig, terminal: bool) -> Result<bool, String> {
    match &plugin.interactive_mode {
        Some(ExecInteractiveMode::Never) => Ok(false),
        Some(ExecInteractiveMode::IfAvailable) | None => Ok(terminal),
        Some(ExecInteractiveMode::Always) if terminal => Ok(true),
        Some(ExecInteractiveMode::Always) => Err(format!(
            "the credential plugin {:?} asks for input (interactiveMode: Always), but standard input is not a terminal; run \
             kpx on a terminal, or use other credentials",
            name(plugin)
        )),
    }
}

fn name(plugin: &ExecConfig) -> &str {
    plugin.command.as_deref().unwrap_or_default()
}

async fn run(plugin: &ExecConfig, limit: Duration, terminal: bool) -> Result<Credential, String> {
    let asks = asks(plugin, terminal)?;
    let mut command = command(plugin, asks)?;
    let child = command.spawn().map_err(|e| unstarted(plugin, &e))?;
    let output = child.wait_with_output();
    let output = if asks {
        // The user may need more time.
        output.await
    } else {
        let late =
            |_| format!("its credential plugin took longer than {limit:?}; increase --timeout");
        timeout(limit, output).await.map_err(late)?
    };
    let output = output.map_err(|e| unstarted(plugin, &e))?;
    if !output.status.success() {
        return Err(failed(plugin, &output));
    }
    parse(&output.stdout).map_err(|why| format!("the credential plugin {:?} {why}", name(plugin)))
}

fn command(plugin: &ExecConfig, asks: bool) -> Result<Command, String> {
    let mut spec = json!({"interactive": asks});
    if plugin.provide_cluster_info {
        spec["cluster"] = serde_json::to_value(&plugin.cluster).map_err(|e| e.to_string())?;
    }
    let info = json!({
        "apiVersion": plugin.api_version,
        "kind": "ExecCredential",
        "spec": spec,
    });
    let mut command = Command::new(name(plugin));
    command
        .args(plugin.args.iter().flatten())
        .env("KUBERNETES_EXEC_INFO", info.to_string())
        .stdout(Stdio::piped())
        .kill_on_drop(true);
    for variable in plugin.env.iter().flatten() {
        if let (Some(name), Some(value)) = (variable.get("name"), variable.get("value")) {
            command.env(name, value);
        }
    }
    if asks {
        command.stdin(Stdio::inherit()).stderr(Stdio::inherit());
    } else {
        command.stdin(Stdio::null()).stderr(Stdio::piped());
    }
    Ok(command)
}

/// Returns the error for a plugin that cannot be started, with the hint of its kubeconfig.
fn unstarted(plugin: &ExecConfig, error: &io::Error) -> String {
    let hint = plugin.install_hint.as_deref().map(str::trim);
    let hint = hint.filter(|hint| !hint.is_empty());
    let hint = hint.map_or(String::new(), |hint| {
        format!("; its kubeconfig says: {hint}")
    });
    format!(
        "cannot start the credential plugin {:?}: {error}{hint}",
        name(plugin)
    )
}

/// Returns the error for a plugin that failed, with the last line that it printed.
fn failed(plugin: &ExecConfig, output: &Output) -> String {
    let text = String::from_utf8_lossy(&output.stderr);
    let last = text.lines().rev().find(|line| !line.trim().is_empty());
    let last = last.map_or(String::new(), |line| format!(": {}", line.trim()));
    let args = plugin.args.iter().flatten().map(String::as_str);
    let line: Vec<&str> = [name(plugin)].into_iter().chain(args).collect();
    format!(
        "the credential plugin {:?} failed ({}){last}; run `{}` to see why",
        name(plugin),
        output.status,
        line.join(" ")
    )
}

/// Parses the output of a plugin. Errors do not quote it, because it contains secrets.
fn parse(output: &[u8]) -> Result<Credential, &'static str> {
    let text = std::str::from_utf8(output).map_err(|_| "printed no text")?;
    // Like client-go, kpx also reads YAML.
    let answer = serde_json::from_str::<Answer>(text)
        .ok()
        .or_else(|| serde_yaml::from_str(text).ok());
    let answer = answer.ok_or("printed no ExecCredential object")?;
    let status = answer
        .status
        .ok_or("printed an ExecCredential without status")?;
    let expires = status.expiration_timestamp.map(|time| time.parse());
    let expires = expires
        .transpose()
        .map_err(|_| "printed an expirationTimestamp that is not a time")?;
    let token = status.token.filter(|token| !token.is_empty());
    let token = token.map(|token| bearer(&token)).transpose();
    let token = token.map_err(|_| "printed a token that is not one line of plain text")?;
    let certificate = match (status.client_certificate_data, status.client_key_data) {
        (Some(certificate), Some(key)) => Some(Certificate { certificate, key }),
        (None, None) => None,
        _ => return Err("printed a client certificate or a key without the other"),
    };
    if token.is_none() && certificate.is_none() {
        return Err("printed neither a token nor a client certificate");
    }
    Ok(Credential {
        token,
        certificate,
        expires,
    })
}

/// Returns `text` in base64, as a kubeconfig has it.
pub(super) fn base64(text: &str) -> String {
    let bytes = k8s_openapi::ByteString(text.as_bytes().to_vec());
    match serde_json::to_value(bytes) {
        Ok(Value::String(text)) => text,
        _ => String::new(),
    }
}

/// Parses any output of a plugin, for the fuzzer.
#[cfg(fuzzing)]
pub fn fuzz(bytes: &[u8]) {
    parse(bytes).ok();
}

/// Returns the value of `Authorization` for `token`.
pub(super) fn bearer(token: &str) -> Result<HeaderValue, InvalidHeaderValue> {
    let mut header = HeaderValue::try_from(format!("Bearer {token}"))?;
    header.set_sensitive(true);
    Ok(header)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Duration = Duration::from_secs(10);

    /// Returns a plugin that runs `script`, with `mode`.
    fn plugin(script: &str, mode: Option<ExecInteractiveMode>) -> ExecConfig {
        ExecConfig {
            api_version: Some("client.authentication.k8s.io/v1".to_owned()),
            command: Some("sh".to_owned()),
            args: Some(vec!["-c".to_owned(), script.to_owned()]),
            interactive_mode: mode,
            ..ExecConfig::default()
        }
    }

    /// Returns a script that prints an `ExecCredential` with `status`.
    fn prints(status: &str) -> String {
        format!("echo '{{\"kind\": \"ExecCredential\", \"status\": {status}}}'")
    }

    #[tokio::test]
    async fn a_plugin_without_a_terminal_gets_no_input() {
        // It would wait for its input forever, and it prints whether it may ask.
        let script = "read line && exit 3; case $KUBERNETES_EXEC_INFO in *'\"interactive\":false'*) \
                      echo 'status: {token: abc}';; esac";
        let read = run(&plugin(script, None), LIMIT, false).await.unwrap();
        assert_eq!(read.token.unwrap(), "Bearer abc");
        let always = plugin(script, Some(ExecInteractiveMode::Always));
        let why = run(&always, LIMIT, false).await.unwrap_err();
        assert!(
            why.contains("asks for input (interactiveMode: Always), but standard input is not"),
            "{why}"
        );
    }

    #[test]
    fn only_a_plugin_that_may_ask_gets_the_terminal() {
        use ExecInteractiveMode::{Always, IfAvailable, Never};
        for (mode, terminal, expected) in [
            (None, true, Ok(true)),
            (None, false, Ok(false)),
            (Some(IfAvailable), true, Ok(true)),
            (Some(Never), true, Ok(false)),
            (Some(Always), true, Ok(true)),
            (Some(Always), false, Err(())),
        ] {
            let asks = asks(&plugin("", mode.clone()), terminal).map_err(drop);
            assert_eq!(asks, expected, "{mode:?} {terminal}");
        }
    }

    #[tokio::test]
    async fn a_plugin_that_fails_is_reported_without_its_secrets() {
        for (script, expected) in [
            (
                "echo secret; echo 'Token has expired' >&2; echo >&2; exit 255".to_owned(),
                "failed (exit status: 255): Token has expired; run `sh -c",
            ),
            ("echo secret".to_owned(), "printed no ExecCredential object"),
            ("echo '{}'".to_owned(), "without status"),
            (prints("{}"), "neither a token nor a client certificate"),
            (
                prints(r#"{"clientKeyData": "secret"}"#),
                "a client certificate or a key without the other",
            ),
            (
                prints(r#"{"token": "a", "expirationTimestamp": "secret"}"#),
                "an expirationTimestamp that is not a time",
            ),
        ] {
            let why = run(&plugin(&script, None), LIMIT, false).await.unwrap_err();
            assert!(why.contains(expected), "{why}");
            let why = why.split("; run `").next().unwrap();
            assert!(!why.contains("secret"), "{why}");
        }
    }

    #[tokio::test]
    async fn a_plugin_runs_once_until_its_credentials_expire() {
        let folder = tempfile::tempdir().unwrap();
        let runs = folder.path().join("runs");
        let count = || std::fs::read_to_string(&runs).unwrap().lines().count();
        let script = |end: &str| {
            let status = format!(r#"{{"token": "a", "expirationTimestamp": "{end}"}}"#);
            format!("echo >>{}; {}", runs.display(), prints(&status))
        };
        let lasting = plugin(&script("2999-01-01T00:00:00Z"), None);
        credential(&lasting, LIMIT).await.unwrap();
        credential(&lasting, LIMIT).await.unwrap();
        assert_eq!(count(), 1);
        forget(&lasting).await;
        credential(&lasting, LIMIT).await.unwrap();
        assert_eq!(count(), 2);
        let ending = plugin(&script("2020-01-01T00:00:00Z"), None);
        credential(&ending, LIMIT).await.unwrap();
        credential(&ending, LIMIT).await.unwrap();
        assert_eq!(count(), 4);
    }
}
