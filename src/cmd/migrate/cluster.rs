//! The cluster, as the move of its nodes sees it.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use serde_json::Value;

use crate::action::{Action, KubeCommand, Object, Only, Resource};
use crate::apply::{Apply, StepError};
use crate::cli::Global;
use crate::cmd::{Io, options};
use crate::evidence::{Evidence, Item, Time};
use crate::host::{LiveCluster, clock};
use crate::migrate::fleet::engine::Cluster;
use crate::migrate::fleet::pod::MIGRATION;
use crate::render::Board;

/// The cluster, and whoever can be asked.
pub(super) struct Far<'c, 'f, 'io> {
    pub(super) live: LiveCluster,
    io: &'c RefCell<&'f mut Io<'io>>,
    /// Where progress is drawn meanwhile.
    pub(super) board: Rc<RefCell<Board>>,
}

impl<'c, 'f, 'io> Far<'c, 'f, 'io> {
    pub(super) fn new(global: &Global, io: &'c RefCell<&'f mut Io<'io>>) -> Self {
        Self {
            live: LiveCluster::new(&options(global)),
            io,
            board: Rc::default(),
        }
    }

    /// Deletes pods that another run of kpx left, unless they belong to the migration `id`.
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

impl Apply for Far<'_, '_, '_> {
    async fn apply(&mut self, action: &Action) -> Result<(), StepError> {
        self.live.apply(action).await
    }
}

impl Cluster for Far<'_, '_, '_> {
    async fn read(&mut self, items: &[Item], node: &str) -> Evidence {
        self.live.read(items, node).await
    }

    async fn object(&mut self, object: &Object) -> Result<Option<Value>, StepError> {
        self.live.object(object).await
    }

    async fn log(&mut self, pod: &str) -> Result<String, StepError> {
        self.live.log(pod).await
    }

    async fn by_hand(&mut self, node: &str, command: &str) -> Result<(), String> {
        let mut io = self.io.borrow_mut();
        self.board.borrow().aside(|| ask(&mut io, node, command))
    }

    fn now(&self) -> Time {
        clock::now()
    }

    async fn pause(&mut self, duration: Duration) {
        clock::pause(duration).await;
    }
}

/// Tells whoever is there what to run on `node`, and waits until that is done.
fn ask(io: &mut Io<'_>, node: &str, command: &str) -> Result<(), String> {
    writeln!(io.err, "kpx: on node {node}, run: {command}").map_err(|e| e.to_string())?;
    if !io.interactive {
        return Ok(());
    }
    write!(io.err, "Is that done? [y/N] ").map_err(|e| e.to_string())?;
    io.err.flush().map_err(|e| e.to_string())?;
    let mut answer = String::new();
    io.input.read_line(&mut answer).map_err(|e| e.to_string())?;
    match answer.trim() {
        "y" | "Y" | "yes" => Ok(()),
        _ => Err(format!("`{command}` was not done there")),
    }
}
