//! How a command fails: what went wrong, what to try, how to exit.

use std::borrow::Cow;
use std::io::{self, ErrorKind, Write};

use color_eyre::eyre::{Report, eyre};

use crate::cli::Global;
use crate::report::{FAILED, USAGE};

/// How much to tell.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Verbosity {
    /// No advice.
    Quiet,
    /// Causes and advice.
    Normal,
    /// Everything color-eyre knows, the place in the source and the stack included.
    Full,
}

impl Verbosity {
    /// Returns what `-q` and `-vv` ask for.
    pub(super) fn of(global: &Global) -> Self {
        match (global.quiet, global.verbose) {
            (_, 2..) => Self::Full,
            (true, _) => Self::Quiet,
            (false, _) => Self::Normal,
        }
    }
}

/// An error on its way out of the program.
pub(super) struct Failure {
    report: Report,
    hint: Option<Cow<'static, str>>,
    code: u8,
}

impl<E: Into<Report>> From<E> for Failure {
    fn from(error: E) -> Self {
        Self {
            report: error.into(),
            hint: None,
            code: FAILED,
        }
    }
}

impl Failure {
    /// Returns a complaint about the command line.
    pub(super) fn usage(message: impl std::fmt::Display) -> Self {
        Self {
            report: eyre!("{message}"),
            hint: None,
            code: USAGE,
        }
    }

    /// Adds advice.
    pub(super) fn with_hint(self, hint: impl Into<Cow<'static, str>>) -> Self {
        Self {
            hint: Some(hint.into()),
            ..self
        }
    }
}

/// Adds advice to a failure.
pub(super) trait Hint<T> {
    fn hint(self, hint: &'static str) -> Result<T, Failure>;
}

impl<T, E: Into<Failure>> Hint<T> for Result<T, E> {
    fn hint(self, hint: &'static str) -> Result<T, Failure> {
        self.map_err(|error| Failure {
            hint: Some(hint.into()),
            ..error.into()
        })
    }
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:#}", self.report)
    }
}

impl Failure {
    /// Tells the user, and returns the exit status.
    pub(super) fn tell(&self, err: &mut dyn Write, verbosity: Verbosity) -> u8 {
        if self.is_broken_pipe() {
            return 0;
        }
        // When standard error is gone too, the status is all that is left.
        self.write(err, verbosity).ok();
        self.code
    }

    fn write(&self, err: &mut dyn Write, verbosity: Verbosity) -> io::Result<()> {
        if verbosity == Verbosity::Full {
            writeln!(err, "kpx: {:?}", self.report)?;
            return self
                .hint
                .as_ref()
                .map_or(Ok(()), |hint| writeln!(err, "  hint: {hint}"));
        }
        for (depth, cause) in self.report.chain().enumerate() {
            let lead = if depth == 0 { "kpx:" } else { "  because" };
            writeln!(err, "{lead} {cause}")?;
        }
        if let (Some(hint), Verbosity::Normal) = (&self.hint, verbosity) {
            writeln!(err, "  hint: {hint}")?;
        }
        Ok(())
    }

    fn is_broken_pipe(&self) -> bool {
        let mut causes = self.report.chain();
        causes.any(|cause| {
            cause
                .downcast_ref::<io::Error>()
                .is_some_and(|e| e.kind() == ErrorKind::BrokenPipe)
        })
    }
}
