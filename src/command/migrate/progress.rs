//! Events as they happen: for people on standard error, for programs on standard output.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::{Duration, Instant};

use crate::command::shared::failure::Failure;
use crate::command::shared::io::Io;
use crate::command::shared::output::Output;
use crate::command::shared::session::Session;

use super::report::{FleetEvent, FleetEventLine, MigrateReport};
use crate::render::{self, Board, Format, Report as _};
use kpx_host::clock;
use kpx_migrate::engine::Event;
use kpx_migrate::fleet::engine::Event as TaskEvent;
use kpx_migrate::fleet::state::{Fleet, NodeState};
use kpx_migrate::fleet::task::Task;
use kpx_migrate::migration::Leg;
use kpx_migrate::wire::{self, EventLine, Line};
use kpx_node::words::number_of;

/// The name in front of an event of no node.
const CLUSTER: &str = "cluster";

/// Returns the display of progress; it draws only on a terminal.
pub(super) fn board(session: &Session, io: &Io<'_>) -> Board {
    if io.progress && !session.quiet && !is_lines(session) {
        Board::on_terminal(io.width, session.style.ascii)
    } else {
        Board::default()
    }
}

/// Returns the time for a line in a log; drawn progress has clocks of its own.
pub(super) fn stamp(board: &Board) -> String {
    if board.is_drawn() {
        return String::new();
    }
    format!("{} ", clock::now())
}

/// Returns the time for a line that is printed while nothing is drawn: empty on a terminal.
pub(super) fn time(io: &Io<'_>) -> String {
    if io.progress {
        return String::new();
    }
    stamp(&Board::default())
}

/// Prints the events of this node.
pub(super) struct NodeProgress<'t, 'io> {
    io: &'t mut Io<'io>,
    board: Board,
    /// The name of the node.
    name: String,
    lines: bool,
    quiet: bool,
    /// The last line: one that repeats is not printed again.
    last: String,
    /// The title of the current stage, and the number of its steps.
    stage: (String, usize),
}

impl<'t, 'io> NodeProgress<'t, 'io> {
    pub(super) fn new(session: &Session, io: &'t mut Io<'io>, node: Option<&str>) -> Self {
        Self {
            board: board(session, io),
            io,
            name: node.unwrap_or("this node").to_owned(),
            lines: is_lines(session),
            quiet: session.quiet,
            last: String::new(),
            stage: (String::new(), 0),
        }
    }

    /// Prints `event`. The migration continues even if stderr is closed.
    pub(super) fn show(&mut self, event: Event<'_>) {
        let event = wire::Event::from(event);
        let words = event.in_words();
        if words.as_ref() == Some(&self.last) {
            return;
        }
        if self.lines {
            let line = EventLine::from(event.clone());
            render::write_line(Line::EVENT, &line, self.io.out).ok();
        }
        self.draw(&event, words.as_deref());
        if let Some(words) = words {
            let drawn = self.board.is_drawn() && event.is_transient();
            if !self.quiet && !self.lines && !drawn {
                let line = format!("kpx: {}{words}", stamp(&self.board));
                self.board.say(&line, self.io.err);
            }
            // A condition that still holds is not printed again after its wait.
            if !matches!(event, wire::Event::Waits { .. }) {
                self.last = words;
            }
        }
    }

    /// Draws `event` on a terminal.
    fn draw(&mut self, event: &wire::Event, words: Option<&str>) {
        let (title, steps) = &self.stage;
        match event {
            wire::Event::Begins {
                title,
                steps,
                number,
                of,
                ..
            } => {
                let words = words.unwrap_or(title);
                self.board.begin(&self.name, *number, *of, words);
                self.stage = (title.clone(), *steps);
            }
            wire::Event::Step { step, title } if *steps > 1 => {
                let text = format!("{title} (step {step} of {steps})");
                self.board.show(&self.name, &text);
            }
            wire::Event::Drain {
                connections,
                at_first,
            } => {
                // The count that falls comes first: the end of the line may be cut.
                let text = format!(
                    "{} of {} left: {}",
                    connections.count,
                    number_of(*at_first, "connection"),
                    connections.holders()
                );
                self.board.show(&self.name, &text);
            }
            wire::Event::Done { .. } | wire::Event::Bridge { .. } | wire::Event::Waits { .. } => {}
            _ => {
                let words = words.unwrap_or(title);
                self.board.show(&self.name, words);
            }
        }
    }
}

/// Prints the events of a fleet's migration.
pub(super) struct FleetProgress<'t, 'f, 'io> {
    io: &'t RefCell<&'f mut Io<'io>>,
    board: Rc<RefCell<Board>>,
    lines: bool,
    quiet: bool,
    /// The tasks of its direction, in order; none after it has turned to its rollback.
    tasks: Vec<Task>,
    /// The index of the current task.
    at: usize,
    /// The number of nodes that are done.
    done: usize,
    /// When the last line was printed, and how long a wait is not printed after it.
    silence: (Instant, Duration),
}

/// How long a wait is not printed, and then how often it is.
const SILENCE: (Duration, Duration) = (Duration::from_secs(5), Duration::from_secs(30));

impl<'t, 'f, 'io> FleetProgress<'t, 'f, 'io> {
    /// Returns the progress of `fleet` from now on.
    pub(super) fn new(
        session: &Session,
        io: &'t RefCell<&'f mut Io<'io>>,
        board: Rc<RefCell<Board>>,
        fleet: &Fleet,
    ) -> Self {
        let over = |state: &&NodeState| match fleet.leg {
            Leg::There => matches!(state, NodeState::Migrated | NodeState::Already),
            Leg::Back => **state == NodeState::RolledBack,
        };
        let tasks = fleet.tasks();
        let of = |name: &str| {
            tasks
                .iter()
                .filter(|task| task.node() == Some(name))
                .count()
        };
        let names = fleet.plan.nodes.iter();
        let rows: Vec<_> = names.map(|name| (name.as_str(), of(name))).collect();
        board.borrow_mut().add(&rows, CLUSTER);
        Self {
            io,
            board,
            lines: is_lines(session),
            quiet: session.quiet,
            at: fleet.done,
            done: fleet.nodes.values().filter(over).count(),
            silence: (Instant::now(), SILENCE.0),
            tasks,
        }
    }

    /// Prints `event`. The migration continues even if stderr is closed.
    pub(super) fn show(&mut self, event: TaskEvent<'_>) {
        if self.lines {
            let mut io = self.io.borrow_mut();
            let line = FleetEventLine {
                time: clock::now(),
                event: FleetEvent::from(event),
            };
            render::write_line(FleetEventLine::KIND, &line, io.out).ok();
            return;
        }
        self.draw(event);
        let (name, text) = match event {
            TaskEvent::Begins(leg, task) => (name(task), in_words(leg, task)),
            TaskEvent::Reports(node, text) => (node, format!("  {text}")),
            TaskEvent::Done(
                _,
                task @ (Task::Soak(_) | Task::Revert(_) | Task::Merge | Task::Unconfigure),
            ) => (name(task), "done".to_owned()),
            TaskEvent::Waits(node, text) if self.is_due() => {
                (node, format!("  {}", text.trim_start()))
            }
            TaskEvent::Done(..) | TaskEvent::Waits(..) => return,
            TaskEvent::RollsBack(why) => (CLUSTER, format!("{why}: rolling back to the old mode")),
        };
        let is_wait = matches!(event, TaskEvent::Waits(..));
        self.silence = (Instant::now(), if is_wait { SILENCE.1 } else { SILENCE.0 });
        if !self.quiet {
            let board = self.board.borrow();
            let line = format!("kpx: {}{name}: {text}", stamp(&board));
            board.say(&line, self.io.borrow_mut().err);
        }
    }

    /// Returns whether a wait is printed now: nothing else was for a time, and nothing is drawn.
    fn is_due(&self) -> bool {
        let (last, silence) = self.silence;
        !self.board.borrow().is_drawn() && last.elapsed() >= silence
    }

    /// Draws `event` on a terminal.
    fn draw(&mut self, event: TaskEvent<'_>) {
        let mut board = self.board.borrow_mut();
        match event {
            TaskEvent::Begins(leg, task) => {
                let text = in_words(leg, task);
                match task.node() {
                    None => board.total(self.done, &text),
                    Some(node) => {
                        let (step, of) = self.step(node);
                        board.total(self.done, "");
                        board.begin(node, step, of, &text);
                    }
                }
            }
            TaskEvent::Reports(node, text) | TaskEvent::Waits(node, text) => board.show(node, text),
            TaskEvent::Done(_, task) => {
                let node = task.node().filter(|node| {
                    let (step, of) = self.step(node);
                    step == of
                });
                self.at += 1;
                if let Some(node) = node {
                    self.done += 1;
                    board.end(node, "done");
                    board.total(self.done, "");
                }
            }
            TaskEvent::RollsBack(why) => {
                self.tasks.clear();
                self.done = 0;
                board.total(0, why);
            }
        }
    }

    /// Returns the position of the current task among the tasks of `node`, from 1, and their number.
    fn step(&self, node: &str) -> (usize, usize) {
        let of = |tasks: &[Task]| {
            tasks
                .iter()
                .filter(|task| task.node() == Some(node))
                .count()
        };
        let so_far = self.tasks.len().min(self.at + 1);
        // A rollback has one task for each node.
        (of(&self.tasks[..so_far]).max(1), of(&self.tasks).max(1))
    }
}

fn name(task: &Task) -> &str {
    task.node().unwrap_or(CLUSTER)
}

fn in_words(leg: Leg, task: &Task) -> String {
    match leg {
        Leg::There => task.to_string(),
        Leg::Back => format!("rollback: {task}"),
    }
}

/// Returns whether events are lines of JSON and the report is the last of them.
pub(super) fn is_lines(session: &Session) -> bool {
    session.output == Some(Output::Format(Format::Json))
}

/// Prints `report` and returns the exit status.
pub(super) fn report(
    session: &Session,
    io: &mut Io<'_>,
    report: &MigrateReport,
) -> Result<u8, Failure> {
    if is_lines(session) && report.plan.is_none() {
        render::write_line(MigrateReport::KIND, report, io.out)?;
        return Ok(report.exit());
    }
    session.finish(io, report)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::shared::session::parsed;
    use crate::render::glass::Glass;
    use kpx_judge::plan::Plan;
    use kpx_migrate::drain::{Gauge, Holder};
    use kpx_migrate::migration::Stage;
    use kpx_node::apply;

    fn gauge(count: usize) -> Gauge {
        let holder = |service: &str, count| Holder {
            service: service.to_owned(),
            count,
        };
        let top = match count {
            0 => Vec::new(),
            count => vec![
                holder("shop/cart:http", count - 1),
                holder("shop/db:sql", 1),
            ],
        };
        Gauge { count, top }
    }

    /// Shows the events of a drain; returns the screen after each.
    fn drain(glass: &Glass, width: u16) -> Vec<Vec<String>> {
        let (mut out, mut err) = (Vec::new(), glass.clone());
        let mut io = Io {
            out: &mut out,
            err: &mut err,
            input: &mut std::io::empty(),
            interactive: false,
            width,
            err_width: None,
            terminal: true,
            color: false,
            ascii: true,
            progress: false,
            confine: false,
        };
        let (_, session) = parsed(&["kpx", "explain"]);
        let mut progress = NodeProgress::new(&session, &mut io, Some("worker1"));
        progress.board = glass.board(true);
        let plan = Plan::default();
        let (first, last, none) = (gauge(400), gauge(12), gauge(0));
        let events = [
            Event::Begins(Leg::There, Stage::Prepare, &plan, (3, 12)),
            Event::Step(apply::Event::Begins(0, "load ip_vs")),
            Event::Begins(Leg::There, Stage::Drain, &plan, (4, 12)),
            Event::Drain(&first, 400),
            Event::Drain(&last, 400),
            Event::Drain(&none, 400),
            Event::Done(Leg::There, Stage::Drain),
        ];
        let screens = events.map(|event| {
            progress.show(event);
            glass.seen()
        });
        screens.to_vec()
    }

    #[test]
    fn the_gauge_falls_on_one_line() {
        let glass = Glass::new(12, 80);
        let seen = drain(&glass, 80);
        let said = [
            "kpx: load kernel modules and set sysctls",
            "kpx:   load ip_vs",
            "kpx: drain connections through virtual servers",
            "kpx:   400 of 400 connections open: shop/cart:http (399), shop/db:sql (1)",
        ];
        let line =
            "worker1  ==>-------   4/12   0:00  12 of 400 connections left: shop/cart:http (1";
        assert_eq!(seen[4][..4], said);
        assert_eq!(seen[4][4..], [line]);
        assert_eq!(seen[5][4], "kpx:   no connections are open");
        // At the end, every printed line remains and nothing that was drawn.
        let end = glass.seen();
        assert_eq!(end[..4], said);
        assert_eq!(end[4], seen[5][4]);
        assert_eq!(end.len(), 5, "{end:#?}");
    }

    #[test]
    fn few_columns_show_what_falls_first() {
        let glass = Glass::new(12, 44);
        let seen = drain(&glass, 44);
        let line = "worker1  4/12   0:00 12 of 400 connections l";
        assert_eq!(seen[4].last().unwrap(), line);
    }
}
