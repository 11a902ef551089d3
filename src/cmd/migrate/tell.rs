//! What happens on the way, as it happens: for people on standard error, for programs on standard output.

use std::cell::RefCell;
use std::rc::Rc;

use serde::Serialize;

use crate::cli::Global;
use crate::cmd::failure::Failure;
use crate::cmd::{Io, finish, output};
use crate::evidence::Time;
use crate::host::clock;
use crate::migrate::engine::Event;
use crate::migrate::fleet::engine::Event as FarEvent;
use crate::migrate::fleet::state::{Fleet, Leg, NodeState};
use crate::migrate::fleet::task::Task;
use crate::render::{self, Board, Report as _};
use crate::report::migrate::{FleetEvent, MigrateEvent, MigrateReport};

/// The `kind` of an event of one node.
const EVENT: &str = "MigrateEvent";

/// The `kind` of an event of many.
const FAR_EVENT: &str = "FleetEvent";

/// What no node is about.
const CLUSTER: &str = "cluster";

/// Returns what progress is drawn on.
pub(super) fn board(global: &Global, io: &Io<'_>) -> Board {
    if io.progress && !global.quiet && !is_lines(global) {
        Board::on_terminal(io.width, output::style(global, io).ascii)
    } else {
        Board::default()
    }
}

/// Returns the time for a line in a log: where progress is drawn, each line has its own clock.
fn stamp(board: &Board) -> String {
    if board.is_drawn() {
        return String::new();
    }
    format!("{} ", clock::now())
}

/// Tells events of one node.
pub(super) struct Teller<'t, 'io> {
    io: &'t mut Io<'io>,
    board: Board,
    /// The node.
    name: String,
    lines: bool,
    quiet: bool,
    /// What was told last: what is waited for is told once, not with every look.
    last: String,
    /// The stage that goes on, and how many steps it has.
    stage: (&'static str, usize),
}

/// An event, and what it says to people.
#[derive(Serialize)]
struct Told<'e> {
    #[serde(flatten)]
    event: &'e MigrateEvent<'e>,
    #[serde(skip_serializing_if = "Option::is_none")]
    words: Option<&'e str>,
}

/// An event of many nodes, and when it was.
#[derive(Serialize)]
struct FarTold<'e> {
    time: Time,
    #[serde(flatten)]
    event: FleetEvent<'e>,
}

impl<'t, 'io> Teller<'t, 'io> {
    pub(super) fn new(global: &Global, io: &'t mut Io<'io>, node: Option<&str>) -> Self {
        Self {
            board: board(global, io),
            io,
            name: node.unwrap_or("this node").to_owned(),
            lines: is_lines(global),
            quiet: global.quiet,
            last: String::new(),
            stage: ("", 0),
        }
    }

    /// Tells `event`. Nobody may be listening any more; the journey goes on.
    pub(super) fn tell(&mut self, event: Event<'_>) {
        let event = MigrateEvent::from(event);
        let words = event.in_words();
        if words.as_ref() == Some(&self.last) {
            return;
        }
        if self.lines {
            let told = Told {
                event: &event,
                words: words.as_deref().map(str::trim_start),
            };
            render::write_line(EVENT, &told, self.io.out).ok();
        }
        self.draw(&event, words.as_deref());
        if let Some(words) = words {
            let drawn = self.board.is_drawn() && event.passes();
            if !self.quiet && !self.lines && !drawn {
                let line = format!("kpx: {}{words}", stamp(&self.board));
                self.board.say(&line, self.io.err);
            }
            self.last = words;
        }
    }

    /// Shows `event` where what goes on is drawn.
    fn draw(&mut self, event: &MigrateEvent<'_>, words: Option<&str>) {
        let (title, steps) = self.stage;
        match event {
            MigrateEvent::Begins {
                title,
                steps,
                number,
                of,
                ..
            } => {
                self.stage = (title, *steps);
                let words = words.unwrap_or(title);
                self.board.begin(&self.name, *number, *of, words);
            }
            MigrateEvent::Step { step, title } if steps > 1 => {
                let text = format!("{title} (step {step} of {steps})");
                self.board.show(&self.name, &text);
            }
            MigrateEvent::Drain {
                connections,
                at_first,
            } => {
                // In front, what falls; behind, who holds it up.
                let text = format!(
                    "{} of {at_first} connections left: {}",
                    connections.count,
                    connections.holders()
                );
                self.board.show(&self.name, &text);
            }
            MigrateEvent::Done { .. } | MigrateEvent::Bridge { .. } => {}
            _ => {
                let words = words.unwrap_or(title);
                self.board.show(&self.name, words);
            }
        }
    }
}

/// Tells events of many nodes.
pub(super) struct FarTeller<'t, 'f, 'io> {
    io: &'t RefCell<&'f mut Io<'io>>,
    board: Rc<RefCell<Board>>,
    lines: bool,
    quiet: bool,
    /// The tasks of the way that it goes, in order; none once it has turned.
    tasks: Vec<Task>,
    /// Which of them goes on.
    at: usize,
    /// How many nodes are through.
    through: usize,
}

impl<'t, 'f, 'io> FarTeller<'t, 'f, 'io> {
    /// Tells what happens to `fleet` from now on.
    pub(super) fn new(
        global: &Global,
        io: &'t RefCell<&'f mut Io<'io>>,
        board: Rc<RefCell<Board>>,
        fleet: &Fleet,
    ) -> Self {
        let over = |state: &&NodeState| match fleet.leg {
            Leg::There => matches!(state, NodeState::Migrated | NodeState::Already),
            Leg::Back => **state == NodeState::RolledBack,
        };
        let tasks = fleet.tasks();
        let of = |name: &str| tasks.iter().filter(|of| of.node() == Some(name)).count();
        let names = fleet.plan.nodes.iter();
        let rows: Vec<_> = names.map(|name| (name.as_str(), of(name))).collect();
        board.borrow_mut().add(&rows, CLUSTER);
        Self {
            io,
            board,
            lines: is_lines(global),
            quiet: global.quiet,
            at: fleet.done,
            through: fleet.nodes.values().filter(over).count(),
            tasks,
        }
    }

    /// Tells `event`. Nobody may be listening any more; the move goes on.
    pub(super) fn tell(&mut self, event: FarEvent<'_>) {
        if self.lines {
            let mut io = self.io.borrow_mut();
            let told = FarTold {
                time: clock::now(),
                event: FleetEvent::from(event),
            };
            render::write_line(FAR_EVENT, &told, io.out).ok();
            return;
        }
        self.draw(event);
        let (name, text) = match event {
            FarEvent::Begins(leg, task) => (name(task), on_the_way(leg, task)),
            FarEvent::Says(node, text) => (node, format!("  {text}")),
            FarEvent::Done(
                _,
                task @ (Task::Soak(_) | Task::Revert(_) | Task::Merge | Task::Unconfigure),
            ) => (name(task), "done".to_owned()),
            FarEvent::Done(..) | FarEvent::Waits(..) => return,
            FarEvent::Turns(why) => (CLUSTER, format!("{why}: back to the old mode")),
        };
        if !self.quiet {
            let board = self.board.borrow();
            let line = format!("kpx: {}{name}: {text}", stamp(&board));
            board.say(&line, self.io.borrow_mut().err);
        }
    }

    /// Shows `event` where what goes on is drawn.
    fn draw(&mut self, event: FarEvent<'_>) {
        let mut board = self.board.borrow_mut();
        match event {
            FarEvent::Begins(leg, task) => {
                let text = on_the_way(leg, task);
                match task.node() {
                    None => board.total(self.through, &text),
                    Some(node) => {
                        let (step, of) = self.step(node);
                        board.total(self.through, "");
                        board.begin(node, step, of, &text);
                    }
                }
            }
            FarEvent::Says(node, text) | FarEvent::Waits(node, text) => board.show(node, text),
            FarEvent::Done(_, task) => {
                let node = task.node().filter(|node| {
                    let (step, of) = self.step(node);
                    step == of
                });
                self.at += 1;
                if let Some(node) = node {
                    self.through += 1;
                    board.end(node, "done");
                    board.total(self.through, "");
                }
            }
            FarEvent::Turns(why) => {
                self.tasks.clear();
                self.through = 0;
                board.total(0, why);
            }
        }
    }

    /// Returns the how manieth task of `node` goes on, and of how many.
    fn step(&self, node: &str) -> (usize, usize) {
        let of = |tasks: &[Task]| tasks.iter().filter(|of| of.node() == Some(node)).count();
        let so_far = self.tasks.len().min(self.at + 1);
        // On a way that it has turned to, each node has one.
        (of(&self.tasks[..so_far]).max(1), of(&self.tasks).max(1))
    }
}

fn name(task: &Task) -> &str {
    task.node().unwrap_or(CLUSTER)
}

fn on_the_way(leg: Leg, task: &Task) -> String {
    match leg {
        Leg::There => task.to_string(),
        Leg::Back => format!("on the way back: {task}"),
    }
}

/// Whether events are lines of JSON, and the report the last of them.
pub(super) fn is_lines(global: &Global) -> bool {
    global.output.as_deref() == Some("json")
}

/// Prints `report`, and returns the exit status.
pub(super) fn report(
    global: &Global,
    io: &mut Io<'_>,
    report: &MigrateReport,
) -> Result<u8, Failure> {
    if is_lines(global) && report.plan.is_none() {
        render::write_line(MigrateReport::KIND, report, io.out)?;
        return Ok(report.exit());
    }
    finish(global, io, report)
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;
    use crate::apply;
    use crate::cli::Cli;
    use crate::migrate::drain::{Gauge, Holder};
    use crate::migrate::journey::{Leg as Way, Stage};
    use crate::plan::Plan;
    use crate::render::glass::Glass;

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

    /// Tells a node's way through the wait for its connections; returns what was to be seen after each event.
    fn drain(glass: &Glass, width: u16) -> Vec<Vec<String>> {
        let (mut out, mut err) = (Vec::new(), glass.clone());
        let mut io = Io {
            out: &mut out,
            err: &mut err,
            input: &mut std::io::empty(),
            interactive: false,
            width,
            terminal: true,
            color: false,
            ascii: true,
            progress: false,
        };
        let cli = Cli::try_parse_from(["kpx", "explain"]).unwrap();
        let mut teller = Teller::new(&cli.global, &mut io, Some("worker1"));
        teller.board = glass.board(true);
        let plan = Plan::default();
        let (first, last, none) = (gauge(400), gauge(12), gauge(0));
        let events = [
            Event::Begins(Way::There, Stage::Prepare, &plan, (3, 12)),
            Event::Step(apply::Event::Begins(0, "load ip_vs")),
            Event::Begins(Way::There, Stage::Drain, &plan, (4, 12)),
            Event::Drain(&first, 400),
            Event::Drain(&last, 400),
            Event::Drain(&none, 400),
            Event::Done(Way::There, Stage::Drain),
        ];
        let seen = events.map(|event| {
            teller.tell(event);
            glass.seen()
        });
        seen.to_vec()
    }

    #[test]
    fn the_gauge_falls_on_one_line() {
        let glass = Glass::new(12, 80);
        let seen = drain(&glass, 80);
        let said = [
            "kpx: prepare the kernel",
            "kpx:   load ip_vs",
            "kpx: wait for connections through virtual servers to end",
            "kpx:   400 of 400 connections are open: shop/cart:http (399), shop/db:sql (1)",
        ];
        let line =
            "worker1  ==>-------   4/12   0:00  12 of 400 connections left: shop/cart:http (1";
        assert_eq!(seen[4][..4], said);
        assert_eq!(seen[4][4..], [line]);
        assert_eq!(seen[5][4], "kpx:   no connections are open");
        // At the end, all that was said, and nothing that was drawn.
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
