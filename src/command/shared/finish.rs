//! Printing a report: the only place that does.

use std::io::{self, Write};

use super::failure::Failure;
use super::io::Io;
use super::output::{Extra, Output};
use super::session::Session;
use crate::render::{self, Format, Report};

impl Session {
    /// Prints `report` in the format asked for, and returns the exit status.
    pub(in crate::command) fn finish<R: Report>(
        &self,
        io: &mut Io<'_>,
        report: &R,
    ) -> Result<u8, Failure> {
        self.finish_as(io, report, &[])
    }

    /// Prints `report` in the format asked for, which may be one of `extra`, and returns the exit status.
    pub(in crate::command) fn finish_as<R: Report>(
        &self,
        io: &mut Io<'_>,
        report: &R,
        extra: &[Extra<R>],
    ) -> Result<u8, Failure> {
        let format = match &self.output {
            Some(Output::Format(format)) => *format,
            Some(Output::Extra(name)) => {
                let (_, text) = extra
                    .iter()
                    .find(|(extra, _)| extra == name)
                    .ok_or_else(|| Failure::usage(format!("this report has no format {name:?}")))?;
                io.out.write_all(text(report, self.style).as_bytes())?;
                return Ok(report.exit());
            }
            None => Format::Human,
        };
        self.write(report, format, io.out)?;
        Ok(report.exit())
    }

    /// Writes the separator between two reports of one command: in JSON, nothing.
    pub(in crate::command) fn separate(&self, io: &mut Io<'_>) -> io::Result<()> {
        match self.output {
            Some(Output::Format(Format::Json)) => Ok(()),
            Some(Output::Format(Format::Yaml)) => io.out.write_all(b"---\n"),
            _ => io.out.write_all(b"\n"),
        }
    }

    /// Writes `report` to `out` in `format`, with whose state it is about.
    pub(in crate::command) fn write<R: Report>(
        &self,
        report: &R,
        format: Format,
        out: &mut dyn Write,
    ) -> io::Result<()> {
        render::write(report, self.origin().as_ref(), format, self.style, out)
    }
}
