//! Commands in containers, and the standard input of their main process, over the `WebSocket` protocol.
//!
//! Source of the protocol: `v4.channel.k8s.io` and `v5.channel.k8s.io`. The first byte of a message is its channel.

use std::future::ready;
use std::pin::{Pin, pin};
use std::time::Duration;

use futures_util::stream::BoxStream;
use futures_util::{Sink, SinkExt as _, StreamExt as _};
use kube::core::Status;
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};
use tokio_tungstenite::tungstenite::{self, Message};

use super::change::NODE_ROLES;
use super::proxy::PODS;
use super::refusal::RequestError;
use super::session::{Session, quote, trouble};
use kpx_node::apply::StepError;

type Sender = Pin<Box<dyn Sink<Message, Error = tungstenite::Error> + Send>>;
type Receiver = BoxStream<'static, Result<Message, tungstenite::Error>>;

const STDIN: u8 = 0;
const STDOUT: u8 = 1;
const STDERR: u8 = 2;
const STATUS: u8 = 3;
/// Closes the channel that the next byte names; since v5.
const CLOSE: u8 = 255;

/// Size of a message, in bytes.
const CHUNK: usize = 32 << 10;

/// Interval of messages to a container that is held: shorter than the idle timeouts of proxies.
const BEAT: Duration = Duration::from_secs(10);

/// Name of the container of a node pod.
pub(crate) const CONTAINER: &str = "kpx";

/// How a command ended.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub(crate) struct Ended {
    /// Its exit status; `None` if unknown, because an API server older than 1.30 cannot close standard input alone.
    pub code: Option<i32>,
    /// Its standard output.
    pub stdout: Vec<u8>,
    /// Its standard error; if it did not start, the reason.
    pub stderr: String,
}

/// A container whose main process reads an open standard input until this is dropped or kpx ends.
#[derive(Debug)]
pub(crate) struct Held(JoinHandle<()>);

impl Drop for Held {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Session {
    /// Runs `command` in the container `kpx` of the pod `name` with `input`.
    ///
    /// `quiet` limits the time without a message.
    pub(super) async fn exec(
        &self,
        name: &str,
        command: &[String],
        input: Option<&[u8]>,
        quiet: Duration,
    ) -> Result<Ended, RequestError> {
        let words = command
            .iter()
            .map(|word| format!("&command={}", quote(word)));
        let path = format!(
            "{PODS}/{}/exec?container={CONTAINER}&stdin={}&stdout=true&stderr=true{}",
            quote(name),
            input.is_some(),
            words.collect::<String>()
        );
        let (mut sender, mut receiver, closes) = self.connect(&path).await?;
        let Some(input) = input else {
            return receive(receiver, quiet, ready(Ok(()))).await;
        };
        if !closes {
            // Only the end of the connection ends standard input. It ends at the server: input on its way would be lost.
            send(&mut sender, input, Message::Close(None), quiet).await?;
            while let Ok(Some(Ok(_))) = timeout(quiet, receiver.next()).await {}
            return Ok(Ended::default());
        }
        let end = Message::binary(vec![CLOSE, STDIN]);
        receive(receiver, quiet, send(&mut sender, input, end, quiet)).await
    }

    /// Attaches to the standard input of the pod `name` and keeps it open.
    pub(super) async fn hold(&self, name: &str) -> Result<Held, RequestError> {
        let path = format!(
            "{PODS}/{}/attach?container={CONTAINER}&stdin=true",
            quote(name)
        );
        let (mut sender, mut receiver, _) = self.connect(&path).await?;
        let beat = async move {
            let line = || Message::binary(vec![STDIN, b'\n']);
            while sender.send(line()).await.is_ok() {
                sleep(BEAT).await;
            }
        };
        let read = async move { while let Some(Ok(_)) = receiver.next().await {} };
        Ok(Held(tokio::spawn(async move {
            tokio::select! {
                () = beat => {}
                () = read => {}
            }
        })))
    }

    /// Opens a WebSocket; returns with its two halves whether a single channel can be closed.
    async fn connect(&self, path: &str) -> Result<(Sender, Receiver, bool), RequestError> {
        let request = http::Request::get(path).body(Vec::new());
        let request = request
            .map_err(|e| RequestError::Answer(format!("invalid request for {path}: {e}")))?;
        let request = self.signed(request).await;
        match timeout(self.limit, self.client.connect(request)).await {
            Err(_) => Err(RequestError::Late),
            Ok(Err(e)) => Err(trouble(e)),
            Ok(Ok(connection)) => {
                let closes = connection.supports_stream_close();
                let (sender, receiver) = connection.into_stream().split();
                Ok((Box::pin(sender), receiver.boxed(), closes))
            }
        }
    }
}

/// Sends `input` to standard input, then `end`; `limit` is for each message.
async fn send(
    sender: &mut Sender,
    input: &[u8],
    end: Message,
    limit: Duration,
) -> Result<(), RequestError> {
    let chunks = input.chunks(CHUNK);
    let messages = chunks.map(|chunk| Message::binary([&[STDIN], chunk].concat()));
    for message in messages.chain([end]) {
        match timeout(limit, sender.send(message)).await {
            Err(_) => return Err(RequestError::Late),
            Ok(Err(e)) => return Err(RequestError::Transport(format!("standard input: {e}"))),
            Ok(Ok(())) => {}
        }
    }
    Ok(())
}

/// Receives until the status of the command arrives, while `sends` sends its input.
///
/// A command may end before it has read all input, so that a failure to send is no error if the status arrives.
async fn receive(
    mut receiver: Receiver,
    quiet: Duration,
    sends: impl Future<Output = Result<(), RequestError>>,
) -> Result<Ended, RequestError> {
    let (mut stdout, mut stderr) = (Vec::new(), Vec::new());
    let mut sends = pin!(sends);
    let mut sent = None;
    loop {
        let message = tokio::select! {
            done = &mut sends, if sent.is_none() => {
                sent = Some(done);
                continue;
            }
            message = timeout(quiet, receiver.next()) => message,
        };
        let message = match message {
            // A long input has no answer before its end.
            Err(_) if sent.is_none() => continue,
            Err(_) => Err(RequestError::Late),
            Ok(None) => {
                let why = "the connection ended before the command";
                Err(RequestError::Transport(why.to_owned()))
            }
            Ok(Some(Err(e))) => Err(RequestError::Transport(e.to_string())),
            Ok(Some(Ok(message))) => Ok(message.into_data()),
        };
        let message = match (message, sent.take()) {
            (Ok(message), done) => {
                sent = done;
                message
            }
            // The first error is the cause.
            (Err(_), Some(Err(first))) => return Err(first),
            (Err(lost), _) => return Err(lost),
        };
        match message.split_first() {
            Some((&STDOUT, text)) => stdout.extend_from_slice(text),
            Some((&STDERR, text)) => stderr.extend_from_slice(text),
            // A server opens a connection with an empty message, on this channel if it has no other.
            Some((&STATUS, text)) if !text.is_empty() => {
                let status: Status = serde_json::from_slice(text)
                    .map_err(|e| RequestError::Answer(format!("invalid exit status: {e}")))?;
                return Ok(ended(&status, stdout, &String::from_utf8_lossy(&stderr)));
            }
            // Pings, and channels that close.
            _ => {}
        }
    }
}

/// Returns the error of a request for `what` of the pod `name`.
pub(super) fn failed(
    session: &Session,
    what: &str,
    name: &str,
    trouble: RequestError,
) -> StepError {
    let what = format!("{what} {name} in namespace kube-system");
    trouble.refusal(session, "create", &what, NODE_ROLES).step()
}

/// Returns the end of a command that printed `stdout` and `stderr`.
fn ended(status: &Status, stdout: Vec<u8>, stderr: &str) -> Ended {
    let causes = status.details.iter().flat_map(|details| &details.causes);
    let mut codes = causes.filter(|cause| cause.reason == "ExitCode");
    let code = match codes.next() {
        Some(cause) => cause.message.parse().ok(),
        None if status.is_success() => Some(0),
        None => None,
    };
    let stderr = match (code, stderr.trim()) {
        (None, "") => status.message.clone(),
        (_, said) => said.to_owned(),
    };
    Ended {
        code: Some(code.unwrap_or(NOT_STARTED)),
        stdout,
        stderr,
    }
}

/// Exit status of a command that the container runtime could not start.
const NOT_STARTED: i32 = 126;

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_exit_status_is_a_cause_of_a_failure() {
        let of = |status: serde_json::Value| {
            ended(&serde_json::from_value(status).unwrap(), Vec::new(), "").code
        };
        assert_eq!(of(json!({"status": "Success"})), Some(0));
        let failed = json!({"status": "Failure", "reason": "NonZeroExitCode", "message": "exit code 3",
            "details": {"causes": [{"reason": "ExitCode", "message": "3"}]}});
        assert_eq!(of(failed), Some(3));
        let absent =
            json!({"status": "Failure", "reason": "InternalError", "message": "no such file"});
        let absent: Status = serde_json::from_value(absent).unwrap();
        let absent = ended(&absent, Vec::new(), "\n");
        assert_eq!(
            (absent.code, absent.stderr.as_str()),
            (Some(NOT_STARTED), "no such file")
        );
    }
}
