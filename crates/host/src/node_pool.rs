//! Work on several nodes at a time, each on a thread of its own: a node that is slow or broken delays no other.

use std::collections::BTreeMap;
use std::io;
use std::ops::ControlFlow;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use tokio::runtime::Builder;
use tokio::sync::mpsc::{self, Sender};
use tokio::time::{Instant, timeout, timeout_at};

/// The size of a main thread's stack, in bytes.
const STACK: usize = 8 << 20;

/// The time that work has to stop after its limit, before its thread is abandoned.
const GRACE: Duration = Duration::from_secs(5);

/// How to work.
#[derive(Clone, Copy, Debug)]
pub struct Crew {
    /// The number of nodes at a time.
    pub parallel: usize,
    /// The longest time for one node.
    pub limit: Duration,
}

/// A step of the work on a node.
#[derive(Debug)]
pub enum Event<T> {
    /// The work on it began.
    Begun,
    /// The work on it ended.
    Ended(T),
    /// The work on it took longer than the limit, and was abandoned.
    Late,
    /// The work on it panicked.
    Panicked,
}

enum Message<T, S> {
    Node(usize, String, Event<T>),
    /// The worker has no more work.
    Left(usize),
    /// The source has no more nodes.
    Source(S),
}

/// Functions that add a node with its job, until they break.
pub type Push<'p, J> = dyn FnMut(String, J) -> ControlFlow<()> + 'p;

impl Crew {
    /// Runs `work` for every node that `source` pushes, and calls `each` with each event, in order, until it breaks. Returns
    /// the result of `source`; `None` if it did not end.
    ///
    /// `source` runs on a thread of its own, and waits if it is ahead of the workers.
    pub async fn visit<J, T, S>(
        self,
        source: impl FnOnce(&mut Push<'_, J>) -> S + Send + 'static,
        work: impl AsyncFn(String, J) -> T + Send + Sync + 'static,
        mut each: impl FnMut(&str, Event<T>) -> ControlFlow<()>,
    ) -> io::Result<Option<S>>
    where
        J: Send + 'static,
        T: Send + 'static,
        S: Send + 'static,
    {
        let (tell, mut messages) = mpsc::channel(self.parallel);
        let (push, jobs) = sync_channel(1);
        let last = tell.clone();
        spawn("nodes", move || {
            let ended = source(&mut |name, job| match push.send((name, job)) {
                Ok(()) => ControlFlow::Continue(()),
                Err(_) => ControlFlow::Break(()),
            });
            drop(push);
            last.blocking_send(Message::Source(ended)).ok();
        })?;
        let team = Team {
            jobs: Arc::new(Mutex::new(jobs)),
            work: Arc::new(work),
            tell,
            limit: self.limit,
        };
        let mut abandoned = Vec::new();
        for id in 0..self.parallel.max(1) {
            abandoned.push(team.hire(id)?);
        }
        let mut present = abandoned.len();
        let mut running: BTreeMap<usize, (String, Instant)> = BTreeMap::new();
        let mut ended = None;
        while present > 0 || ended.is_none() {
            let first = running.values().map(|(_, until)| *until).min();
            let until = first.unwrap_or_else(|| Instant::now() + self.limit);
            let flow = match timeout_at(until, messages.recv()).await {
                Ok(Some(Message::Node(id, name, event))) => match event {
                    Event::Begun => {
                        let until = Instant::now() + self.limit + GRACE;
                        let flow = each(&name, Event::Begun);
                        running.insert(id, (name, until));
                        flow
                    }
                    // An abandoned worker may still answer.
                    event if running.remove(&id).is_some() => each(&name, event),
                    _ => ControlFlow::Continue(()),
                },
                Ok(Some(Message::Left(id))) => {
                    present -= usize::from(!abandoned[id].load(Ordering::Relaxed));
                    ControlFlow::Continue(())
                }
                Ok(Some(Message::Source(value))) => {
                    ended = Some(value);
                    ControlFlow::Continue(())
                }
                Ok(None) => break,
                Err(_) => {
                    let now = Instant::now();
                    let late: Vec<usize> = running
                        .iter()
                        .filter(|(_, (_, until))| *until <= now)
                        .map(|(&id, _)| id)
                        .collect();
                    let mut flow = ControlFlow::Continue(());
                    for id in late {
                        abandoned[id].store(true, Ordering::Relaxed);
                        let replacement = team.hire(abandoned.len())?;
                        abandoned.push(replacement);
                        if let Some((name, _)) = running.remove(&id)
                            && flow.is_continue()
                        {
                            flow = each(&name, Event::Late);
                        }
                    }
                    flow
                }
            };
            if flow.is_break() {
                break;
            }
        }
        Ok(ended)
    }
}

/// The state that the workers share.
struct Team<J, T, S, W> {
    jobs: Arc<Mutex<Receiver<(String, J)>>>,
    work: Arc<W>,
    tell: Sender<Message<T, S>>,
    limit: Duration,
}

impl<J, T, S, W> Team<J, T, S, W>
where
    J: Send + 'static,
    T: Send + 'static,
    S: Send + 'static,
    W: AsyncFn(String, J) -> T + Send + Sync + 'static,
{
    /// Starts worker `id`. It leaves after its current node once the returned flag is set.
    fn hire(&self, id: usize) -> io::Result<Arc<AtomicBool>> {
        let abandoned = Arc::new(AtomicBool::new(false));
        let (jobs, work) = (Arc::clone(&self.jobs), Arc::clone(&self.work));
        let (tell, limit, leave) = (self.tell.clone(), self.limit, Arc::clone(&abandoned));
        // A runtime of its own: the work may block.
        let runtime = Builder::new_current_thread().enable_all().build()?;
        spawn("node", move || {
            while !leave.load(Ordering::Relaxed) {
                let next = jobs.lock().unwrap_or_else(PoisonError::into_inner).recv();
                let Ok((name, job)) = next else { break };
                let begun = Message::Node(id, name.clone(), Event::Begun);
                if tell.blocking_send(begun).is_err() {
                    break;
                }
                let run =
                    || runtime.block_on(async { timeout(limit, work(name.clone(), job)).await });
                let event = match catch_unwind(AssertUnwindSafe(run)) {
                    Ok(Ok(value)) => Event::Ended(value),
                    Ok(Err(_)) => Event::Late,
                    Err(_) => Event::Panicked,
                };
                if tell.blocking_send(Message::Node(id, name, event)).is_err() {
                    break;
                }
            }
            tell.blocking_send(Message::Left(id)).ok();
            runtime.shutdown_background();
        })?;
        Ok(abandoned)
    }
}

fn spawn(name: &str, run: impl FnOnce() + Send + 'static) -> io::Result<()> {
    let thread = thread::Builder::new().name(name.to_owned());
    thread.stack_size(STACK).spawn(run).map(drop)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::clock;

    async fn visited(
        crew: Crew,
        names: &'static [&'static str],
        work: impl AsyncFn(String, usize) -> usize + Send + Sync + 'static,
    ) -> (Option<&'static str>, BTreeSet<String>) {
        let mut seen = BTreeSet::new();
        let source = move |push: &mut Push<'_, usize>| {
            for (at, name) in names.iter().enumerate() {
                if push((*name).to_owned(), at).is_break() {
                    return "stopped";
                }
            }
            "all"
        };
        let each = |name: &str, event: Event<usize>| {
            if !matches!(event, Event::Begun) {
                seen.insert(format!("{name} {event:?}"));
            }
            ControlFlow::Continue(())
        };
        let ended = crew.visit(source, work, each).await.unwrap();
        (ended, seen)
    }

    fn set(texts: &[&str]) -> BTreeSet<String> {
        texts.iter().map(|text| (*text).to_owned()).collect()
    }

    #[tokio::test]
    async fn a_slow_or_broken_node_delays_no_other() {
        let crew = Crew {
            parallel: 2,
            limit: Duration::from_millis(300),
        };
        let work = async |name: String, at: usize| {
            match name.as_str() {
                "waits" => clock::pause(Duration::from_secs(3600)).await,
                "panics" => panic!("made up"),
                _ => {}
            }
            at
        };
        let (ended, seen) = visited(crew, &["waits", "panics", "c", "d", "e"], work).await;
        assert_eq!(ended, Some("all"));
        let expected = [
            "waits Late",
            "panics Panicked",
            "c Ended(2)",
            "d Ended(3)",
            "e Ended(4)",
        ];
        assert_eq!(seen, set(&expected));
    }

    #[tokio::test]
    async fn work_that_never_yields_is_abandoned() {
        let crew = Crew {
            parallel: 1,
            limit: Duration::from_millis(1),
        };
        let work = async |name: String, at: usize| {
            if name == "parks" {
                loop {
                    thread::park();
                }
            }
            at
        };
        let (ended, seen) = visited(crew, &["parks", "b"], work).await;
        assert_eq!(ended, Some("all"));
        assert_eq!(seen, set(&["parks Late", "b Ended(1)"]));
    }

    #[tokio::test]
    async fn only_so_many_nodes_at_a_time_and_none_after_a_break() {
        let crew = Crew {
            parallel: 3,
            limit: Duration::from_secs(60),
        };
        let source = |push: &mut Push<'_, ()>| {
            let mut pushed = 0;
            while push(format!("n{pushed}"), ()).is_continue() {
                pushed += 1;
            }
            pushed
        };
        let (mut running, mut most, mut done) = (0_i32, 0, 0);
        let each = |_: &str, event: Event<()>| {
            running += if matches!(event, Event::Begun) { 1 } else { -1 };
            most = most.max(running);
            done += i32::from(!matches!(event, Event::Begun));
            if done == 20 {
                ControlFlow::Break(())
            } else {
                ControlFlow::Continue(())
            }
        };
        let work = async |_, ()| clock::pause(Duration::from_millis(1)).await;
        crew.visit(source, work, each).await.unwrap();
        assert_eq!(done, 20);
        assert!(most <= 3, "{most}");
    }
}
