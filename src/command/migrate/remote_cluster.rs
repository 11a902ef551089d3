//! The remote cluster, for the engine of a fleet's migration.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::rc::Rc;
use std::time::Duration;

use futures_util::future::{Either, select};
use serde_json::Value;

use crate::command::shared::io::Io;
use crate::command::shared::session::Session;
use kpx_node::action::{Action, KubeCommand, Object, Only, Resource};
use kpx_node::apply::{Apply, StepError};

use crate::render::Board;
use kpx_host::{LiveCluster, Remote, Unreached, clock};
use kpx_migrate::fleet::engine::Cluster;
use kpx_migrate::fleet::pod::{self, MIGRATION};
use kpx_migrate::node::Clock;
use kpx_node::evidence::{Evidence, Item, Time};

/// The remote cluster, and the operator at the terminal.
pub(super) struct RemoteCluster<'c, 'f, 'io> {
    pub(super) live: LiveCluster,
    io: &'c RefCell<&'f mut Io<'io>>,
    /// The display of progress.
    pub(super) board: Rc<RefCell<Board>>,
    /// Whether a stop is requested.
    pub(super) stop: Rc<Cell<bool>>,
    remote: Remote,
    /// The unique ids of the pods in which a copy of kpx runs.
    copied: BTreeSet<String>,
}

impl<'c, 'f, 'io> RemoteCluster<'c, 'f, 'io> {
    pub(super) fn new(session: &Session, io: &'c RefCell<&'f mut Io<'io>>) -> Self {
        Self {
            live: LiveCluster::new(&session.host),
            io,
            board: Rc::default(),
            stop: Rc::default(),
            remote: Remote::new(&session.host, session.pods.clone()),
            copied: BTreeSet::new(),
        }
    }

    /// Deletes pods that an earlier run left, except those of the migration `id`.
    pub(super) async fn sweep(&mut self, id: &str) -> Result<(), StepError> {
        for pod in self.live.own_pods().await? {
            let metadata = &pod["metadata"];
            let word = |value: &Value| value.as_str().unwrap_or_default().to_owned();
            let of = &metadata["labels"][MIGRATION];
            if of.is_null() || of == id {
                continue;
            }
            let command = KubeCommand::Delete {
                object: Object::of_system(Resource::Pod, word(&metadata["name"])),
                only: Only::Uid(word(&metadata["uid"])),
            };
            self.live.apply(&Action::Kube { command }).await?;
        }
        Ok(())
    }
}

impl RemoteCluster<'_, '_, '_> {
    /// Asks whether `command` was run on `node`, and waits for an answer or for a request to stop.
    async fn asked(&self, node: &str, command: &str) -> Result<(), String> {
        ask(&mut self.io.borrow_mut(), node, command)?;
        // While the question is open, the Lease is renewed and signals arrive.
        let mut typed = Box::pin(clock::typed());
        loop {
            typed = match select(typed, Box::pin(clock::pause(LISTEN))).await {
                Either::Left(_) => break,
                Either::Right(((), typed)) => typed,
            };
            if self.stop.get() {
                writeln!(self.io.borrow_mut().err).ok();
                return Err(not_done(command));
            }
        }
        let answer = answer(&mut self.io.borrow_mut(), command)?;
        if answer.is_none() {
            // The next question would have no answer either.
            self.stop.set(true);
        }
        answer.ok_or_else(|| not_done(command))
    }
}

fn not_done(command: &str) -> String {
    format!("`{command}` was not run there")
}

impl Apply for RemoteCluster<'_, '_, '_> {
    async fn apply(&mut self, action: &Action) -> Result<(), StepError> {
        self.live.apply(action).await
    }
}

impl Clock for RemoteCluster<'_, '_, '_> {
    fn now(&self) -> Time {
        clock::steady()
    }

    async fn pause(&mut self, duration: Duration) {
        clock::pause(duration).await;
    }
}

impl Cluster for RemoteCluster<'_, '_, '_> {
    type Beside = LiveCluster;

    async fn read(&mut self, items: &[Item], node: &str) -> Evidence {
        self.live.read(items, node).await
    }

    async fn object(&mut self, object: &Object) -> Result<Option<Value>, StepError> {
        self.live.object(object).await
    }

    async fn log(&mut self, pod: &str) -> Result<String, StepError> {
        self.live.log(pod).await
    }

    async fn copy_kpx(&mut self, node: &str, pod: &Value) -> Result<(), StepError> {
        let uid = pod::uid(pod);
        if self.copied.contains(&uid) {
            return Ok(());
        }
        let name = pod["metadata"]["name"].as_str().unwrap_or_default();
        let image = pod["spec"]["containers"][0]["image"].as_str();
        let copied = self
            .remote
            .start_copy(node, name, image.unwrap_or_default())
            .await;
        let Err(why) = copied else {
            self.copied.insert(uid);
            return Ok(());
        };
        let hint = why.hint().map_or(String::new(), |hint| format!("; {hint}"));
        let held = StepError::Held(format!("cannot copy kpx into it: {why}"));
        match why {
            Unreached::Request(why @ StepError::Denied(_)) => Err(why),
            Unreached::Program(..) | Unreached::Processor(..) | Unreached::File(..) => {
                Err(StepError::Refused(format!("{why}{hint}")))
            }
            _ => Err(held),
        }
    }

    fn beside(&self) -> LiveCluster {
        self.live.clone()
    }

    async fn by_hand(&mut self, node: &str, command: &str) -> Result<(), String> {
        self.board.borrow().hide();
        let done = self.asked(node, command).await;
        self.board.borrow().reveal();
        done
    }
}

/// How often a request to stop is checked while a question is open.
const LISTEN: Duration = Duration::from_millis(200);

/// Prints the command to run on `node`, and asks whether it was run.
fn ask(io: &mut Io<'_>, node: &str, command: &str) -> Result<(), String> {
    if !io.interactive {
        return Err(format!(
            "cannot ask an operator to run `{command}`: standard input is not a terminal"
        ));
    }
    let ask = |io: &mut Io<'_>| {
        writeln!(io.err, "kpx: run this on node {node}:")?;
        // A command is on a line of its own, which is not wrapped, so that it can be copied.
        writeln!(io.err, "$ {command}")?;
        write!(io.err, "Done? [y/N] ")?;
        io.err.flush()
    };
    ask(io).map_err(|e| e.to_string())
}

/// Reads the answer; `None` if standard input has ended.
fn answer(io: &mut Io<'_>, command: &str) -> Result<Option<()>, String> {
    let mut answer = String::new();
    let read = io.input.read_line(&mut answer).map_err(|e| e.to_string())?;
    match answer.trim() {
        "y" | "Y" | "yes" => Ok(Some(())),
        _ if read == 0 => Ok(None),
        _ => Err(not_done(command)),
    }
}
