//! What happens on the way, as it happens: for people on standard error, for programs on standard output.

use crate::cli::Global;
use crate::cmd::failure::Failure;
use crate::cmd::{Io, finish};
use crate::migrate::engine::Event;
use crate::render::{self, Report as _};
use crate::report::migrate::{MigrateEvent, MigrateReport};

/// The `kind` of an event.
const EVENT: &str = "MigrateEvent";

/// Tells events.
pub(super) struct Teller<'t, 'io> {
    io: &'t mut Io<'io>,
    lines: bool,
    quiet: bool,
    /// What was told last: what is waited for is told once, not with every look.
    last: String,
}

impl<'t, 'io> Teller<'t, 'io> {
    pub(super) fn new(global: &Global, io: &'t mut Io<'io>) -> Self {
        Self {
            io,
            lines: is_lines(global),
            quiet: global.quiet,
            last: String::new(),
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
            render::write_line(EVENT, &event, self.io.out).ok();
        }
        if let Some(words) = words {
            if !self.quiet && !self.lines {
                writeln!(self.io.err, "kpx: {words}").ok();
            }
            self.last = words;
        }
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
