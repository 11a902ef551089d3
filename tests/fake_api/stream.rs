//! Commands in containers, and the standard input of their main process, over the `WebSocket` protocol.
//!
//! Source: `createWebSocketStreams` of the kubelet, and `StreamTranslatorHandler` of the API server since 1.30. The first
//! byte of a message is its channel.

use std::sync::Arc;
use std::thread;

use axum::response::Response;
use futures_util::stream::{SplitSink, SplitStream};
use futures_util::{SinkExt as _, StreamExt as _};
use serde_json::{Value, json};
use tokio::sync::oneshot;
use tokio_tungstenite::tungstenite::Message;

use super::answer::{missing, status};
use super::controller::Task;
use super::rest::Call;
use super::server::{Request, WebSocket, reply};
use super::{Cluster, Exec, Key, Pod, World};

const STDIN: u8 = 0;
const STDOUT: u8 = 1;
const STDERR: u8 = 2;
const STATUS: u8 = 3;
/// Closes the channel that the next byte names.
const CLOSE: u8 = 255;

/// Whose messages can close one channel.
const V5: &str = "v5.channel.k8s.io";
const V4: &str = "v4.channel.k8s.io";

const CHUNK: usize = 32 << 10;

type Sender = SplitSink<WebSocket, Message>;
type Receiver = SplitStream<WebSocket>;

/// A stream that a client asks for.
struct Stream {
    pod: Pod,
    command: Vec<String>,
    /// Whether the client sends standard input.
    stdin: bool,
    stdout: bool,
    closes: bool,
}

impl World {
    /// Answers a request for `pods/exec` and `pods/attach`.
    pub(super) fn connect(self: Arc<Self>, call: &Call, request: Request) -> Response {
        let refuse = |code, message: &str| {
            let (code, body) = status(code, message);
            reply(code, body)
        };
        let Some(upgrade) = request.upgrade else {
            return refuse(400, "Upgrade request required");
        };
        let cluster = self.cluster.lock().unwrap();
        let is_old = cluster.is_old;
        let speaks = |p: &&String| *p == V4 || *p == V5 && !is_old;
        let Some(protocol) = upgrade.protocols.iter().find(speaks).cloned() else {
            return refuse(400, "no protocol of the client is supported");
        };
        let key = call.key();
        let Some(object) = cluster.objects.get(&key) else {
            let (code, body) = missing(&key);
            return reply(code, body);
        };
        let flag = |key: &str| request.query.get(key).is_some_and(|value| value == "true");
        let name = request.query.get("container").map_or("", String::as_str);
        if object["spec"]["containers"][0]["name"] != name {
            let why = format!("container {name} is not valid for pod {}", key.name);
            return refuse(400, &why);
        }
        let is_exec = call.subresource.as_deref() == Some("exec");
        if is_exec && request.command.is_empty() {
            return refuse(
                400,
                "you must specify at least one command for the container",
            );
        }
        let runs = runs(&cluster, &key, &object["metadata"]["uid"]);
        let no_container = format!("unable to upgrade connection: container not found ({name:?})");
        if !runs && is_old {
            return refuse(500, &no_container);
        }
        let stream = Stream {
            pod: cluster.pod(object),
            command: request.command,
            stdin: flag("stdin"),
            stdout: flag("stdout"),
            closes: protocol == V5,
        };
        drop(cluster);
        let (response, socket) = upgrade.accept(&protocol);
        tokio::spawn(async move {
            let Some(socket) = socket.await else {
                return;
            };
            let (mut sender, receiver) = socket.split();
            // A real server notifies the client on its lowest channel.
            let first = if stream.stdout { STDOUT } else { STATUS };
            if send(&mut sender, first, b"").await.is_err() {
                return;
            }
            if !runs {
                let failed = failure("InternalError", &no_container, &[]);
                finish(sender, &failed).await;
            } else if is_exec {
                self.exec(stream, sender, receiver).await;
            } else {
                self.attach(stream, sender, receiver).await;
            }
        });
        response
    }

    async fn exec(self: Arc<Self>, stream: Stream, mut sender: Sender, mut receiver: Receiver) {
        let kubelet = Arc::clone(&self.cluster.lock().unwrap().kubelet);
        if !kubelet.finds(&stream.pod, &stream.command) {
            // Its standard input is not read.
            let why = Exec::absent(&stream.command);
            return not_started(sender, &why).await;
        }
        let input = if stream.stdin {
            tokio::select! {
                input = input(&mut receiver, stream.closes) => input,
                () = self.ends(&stream.pod) => return killed(sender).await,
            }
        } else {
            Vec::new()
        };
        let (done, ended) = oneshot::channel();
        let (pod, command) = (stream.pod.clone(), stream.command);
        let world = Arc::clone(&self);
        thread::spawn(move || {
            let mut ended = kubelet.exec(&pod, &command, &input);
            let mut main = None;
            if let Exec::Starts(pod) = ended {
                ended = Exec::Ended(0, Vec::new(), String::new());
                main = Some(*pod);
            }
            drop(done.send(ended));
            if let Some(pod) = main {
                world.carry_out(Task::Start(pod), &*kubelet);
            }
        });
        let ended = tokio::select! {
            ended = ended => ended.unwrap_or(Exec::Killed),
            () = self.ends(&stream.pod) => return killed(sender).await,
        };
        let (code, out, err) = match ended {
            Exec::Ended(code, out, err) => (code, out, err),
            Exec::Starts(_) => unreachable!("it is started above"),
            Exec::NotStarted(why) => return not_started(sender, &why).await,
            Exec::Killed => {
                self.with(|cluster| cluster.exited(&stream.pod.object, 137));
                return killed(sender).await;
            }
        };
        for (channel, text) in [(STDOUT, out.as_slice()), (STDERR, err.as_bytes())] {
            for chunk in text.chunks(CHUNK) {
                // If the client has gone, the command still runs to its end, and its output is lost.
                if send(&mut sender, channel, chunk).await.is_err() {
                    return;
                }
            }
        }
        finish(sender, &exit(code)).await;
    }

    /// Keeps the standard input of the main process open as long as the client does.
    async fn attach(self: Arc<Self>, stream: Stream, sender: Sender, mut receiver: Receiver) {
        let uid = stream.pod.object["metadata"]["uid"].as_str().unwrap();
        self.with(|cluster| cluster.held.insert(uid.to_owned()));
        tokio::select! {
            _ = input(&mut receiver, stream.closes) => {}
            () = self.ends(&stream.pod) => return finish(sender, &exit(137)).await,
        }
        let container = &stream.pod.object["spec"]["containers"][0];
        // Otherwise another client may attach.
        if stream.stdin && container["stdinOnce"] == true {
            let kubelet = Arc::clone(&self.cluster.lock().unwrap().kubelet);
            if let Some(code) = kubelet.at_end_of_input(&stream.pod) {
                self.with(|cluster| cluster.exited(&stream.pod.object, code));
            }
        }
        finish(sender, &exit(0)).await;
    }

    /// Waits until the container of `pod` no longer runs.
    async fn ends(&self, pod: &Pod) {
        let mut changes = self.changes.subscribe();
        loop {
            changes.borrow_and_update();
            if !runs(
                &self.cluster.lock().unwrap(),
                &pod.key,
                &pod.object["metadata"]["uid"],
            ) {
                return;
            }
            if changes.changed().await.is_err() {
                return;
            }
        }
    }
}

/// Whether the container of this pod runs.
fn runs(cluster: &Cluster, key: &Key, uid: &Value) -> bool {
    cluster.objects.get(key).is_some_and(|pod| {
        pod["metadata"]["uid"] == *uid
            && pod["metadata"]["deletionTimestamp"].is_null()
            && pod["status"]["containerStatuses"][0]["state"]["running"].is_object()
    })
}

/// Reads standard input until it or the connection ends.
async fn input(receiver: &mut Receiver, closes: bool) -> Vec<u8> {
    let mut input = Vec::new();
    while let Some(Ok(message)) = receiver.next().await {
        if !message.is_binary() {
            continue;
        }
        match &*message.into_data() {
            [STDIN, chunk @ ..] => input.extend_from_slice(chunk),
            [CLOSE, STDIN] if closes => break,
            _ => {}
        }
    }
    input
}

async fn send(sender: &mut Sender, channel: u8, chunk: &[u8]) -> Result<(), ()> {
    let message = [&[channel], chunk].concat();
    let sent = sender.send(Message::binary(message)).await;
    sent.map_err(drop)
}

/// Sends the status, and ends the connection.
async fn finish(mut sender: Sender, status: &Value) {
    // A client that has gone reads neither.
    send(&mut sender, STATUS, status.to_string().as_bytes())
        .await
        .ok();
    sender.send(Message::Close(None)).await.ok();
}

/// The end of a connection for a command that the runtime could not start.
async fn not_started(sender: Sender, why: &str) {
    let message = format!("Internal error occurred: {why}");
    finish(sender, &failure("InternalError", &message, &[])).await;
}

/// Closes the connection to a container that was killed, without a status.
async fn killed(mut sender: Sender) {
    sender.send(Message::Close(None)).await.ok();
}

/// The status of a command that ended.
fn exit(code: u8) -> Value {
    if code == 0 {
        return json!({"metadata": {}, "status": "Success"});
    }
    let message = format!("command terminated with non-zero exit code: exit status {code}");
    let causes = [json!({"reason": "ExitCode", "message": code.to_string()})];
    failure("NonZeroExitCode", &message, &causes)
}

fn failure(reason: &str, message: &str, causes: &[Value]) -> Value {
    json!({
        "metadata": {}, "status": "Failure", "reason": reason, "message": message, "details": {"causes": causes},
    })
}
