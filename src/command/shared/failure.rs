//! Errors of commands: the error with its causes, advice, and the exit status.

use std::borrow::Cow;
use std::io::{self, ErrorKind, Write};

use color_eyre::eyre::{Report, eyre};

use crate::cli::global::GlobalArgs;
use crate::report::{FAILED, FOUND, UNKNOWN, USAGE};
use kpx_node::evidence::Gap;

/// How much of an error is printed.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(in crate::command) enum Verbosity {
    /// The error and its causes.
    Quiet,
    /// The same, and advice.
    Normal,
    /// The full report of color-eyre, with the place in the source and the stack.
    Full,
}

impl Verbosity {
    /// Returns the verbosity that `-q` and `-vv` select.
    pub(in crate::command) fn of(global: &GlobalArgs) -> Self {
        match (global.quiet, global.verbose) {
            (_, 2..) => Self::Full,
            (true, _) => Self::Quiet,
            (false, _) => Self::Normal,
        }
    }
}

/// An error of a command.
pub(in crate::command) struct Failure {
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
    /// Returns an error of the command line: exit status 2.
    pub(in crate::command) fn usage(message: impl std::fmt::Display) -> Self {
        Self {
            report: eyre!("{message}"),
            hint: None,
            code: USAGE,
        }
    }

    /// The requested object does not exist: exit status 1.
    pub(in crate::command) fn absent(self) -> Self {
        Self {
            code: FOUND,
            ..self
        }
    }

    /// Says that findings block what was asked for, so that nothing was changed: exit status 1.
    pub(in crate::command) fn blocked(self) -> Self {
        Self {
            code: FOUND,
            ..self
        }
    }

    /// The requested object is unknown: exit status 3.
    pub(in crate::command) fn unknown(self) -> Self {
        Self {
            code: UNKNOWN,
            ..self
        }
    }

    /// Adds advice.
    pub(in crate::command) fn with_hint(self, hint: impl Into<Cow<'static, str>>) -> Self {
        Self {
            hint: Some(hint.into()),
            ..self
        }
    }

    /// Adds advice to the advice that it has.
    pub(in crate::command) fn and_hint(self, more: &str) -> Self {
        let hint = match &self.hint {
            Some(hint) => format!("{hint}; {more}"),
            None => more.to_owned(),
        };
        self.with_hint(hint)
    }
}

/// Adds advice to a failure.
pub(in crate::command) trait Hint<T> {
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

/// Returns the advice for `gap`, the reason why an object of a configured cluster is unknown; `None` if no cluster is configured.
pub(in crate::command) const fn advice_on_api(gap: &Gap) -> Option<&'static str> {
    match gap {
        Gap::Absent(..) | Gap::NotCollected(_) | Gap::NotApplicable(_) => None,
        Gap::Denied(..) | Gap::Forbidden(..) => {
            Some("`kpx access` lists the permissions that are missing")
        }
        Gap::Late(..) => {
            Some("the API server is slow or away: try again, with more time as --timeout 30s")
        }
        _ => Some("check that the API server answers: `kubectl get nodes`"),
    }
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:#}", self.report)
    }
}

impl Failure {
    /// Prints the error to `err`, and returns the exit status.
    pub(in crate::command) fn tell(&self, err: &mut dyn Write, verbosity: Verbosity) -> u8 {
        if self.is_broken_pipe() {
            return 0;
        }
        // If stderr is closed as well, only the exit status is left.
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
