//! A program on a terminal: its screen, and the keys typed.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::num::NonZeroU16;
use std::os::fd::{AsFd as _, OwnedFd};
use std::process::{Child, Command, ExitStatus};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use nix::fcntl::{FcntlArg, FdFlag, fcntl};
use nix::pty::{OpenptyResult, Winsize, openpty};
use nix::sys::termios::{Termios, tcgetattr};

use crate::support::profile;

/// How long anything may take that is waited for.
const PATIENCE: Duration = Duration::from_secs(240);

/// A terminal, and kpx on it.
pub(crate) struct Session {
    pub(crate) kpx: Child,
    /// The operator's side.
    keys: File,
    /// The side of the programs, kept open.
    line: OwnedFd,
    before: Termios,
    pub(crate) seen: Arc<Mutex<Previous>>,
    reader: JoinHandle<()>,
}

/// The screens.
pub(crate) struct Previous {
    pub(crate) glass: vt100::Parser,
    /// Every byte.
    pub(crate) bytes: Vec<u8>,
    /// The glass, whenever something had been written.
    pub(crate) all: Vec<Vec<String>>,
}

/// Returns the rows of the glass that have text, without trailing spaces.
pub(crate) fn lines(glass: &vt100::Parser) -> Vec<String> {
    let rows = glass.screen().rows(0, glass.screen().size().1.get());
    let mut rows: Vec<_> = rows.map(|row| row.trim_end().to_owned()).collect();
    let used = rows.iter().rposition(|row| !row.is_empty());
    rows.truncate(used.map_or(0, |last| last + 1));
    rows
}

impl Session {
    /// Starts `program`, which is kpx or starts it, on a terminal of these rows and columns.
    pub(crate) fn on(
        (rows, columns): (u16, u16),
        program: &str,
        env: &[(&str, &str)],
        args: &[&str],
    ) -> Self {
        let size = Winsize {
            ws_row: rows,
            ws_col: columns,
            ws_xpixel: 0,
            ws_ypixel: 0,
        };
        let OpenptyResult { master, slave } = openpty(Some(&size), None).unwrap();
        // Not inherited by the kpx of other tests: the end is reached when all copies are closed.
        for end in [&master, &slave] {
            fcntl(end, FcntlArg::F_SETFD(FdFlag::FD_CLOEXEC)).unwrap();
        }
        let before = tcgetattr(slave.as_fd()).unwrap();
        let end = || slave.try_clone().unwrap();
        #[expect(
            clippy::disallowed_methods,
            reason = "the terminal is that of the whole process"
        )]
        let mut command = Command::new(program);
        command
            .args(args)
            .env_clear()
            .envs(profile())
            .envs([("TERM", "xterm"), ("LANG", "C.UTF-8")])
            .envs(env.iter().copied())
            .stdin(end())
            .stdout(end())
            .stderr(end());
        let kpx = command.spawn().unwrap();
        let size = |size| NonZeroU16::new(size).unwrap();
        let seen = Arc::new(Mutex::new(Previous {
            glass: vt100::Parser::new(size(rows), size(columns), 10_000),
            bytes: Vec::new(),
            all: Vec::new(),
        }));
        let keys = File::from(master);
        let mut screen = keys.try_clone().unwrap();
        let shared = Arc::clone(&seen);
        let reader = thread::spawn(move || {
            let mut buffer = [0; 4096];
            // After the other side is closed, reading fails.
            while let Ok(length @ 1..) = screen.read(&mut buffer) {
                let mut seen = shared.lock().unwrap();
                seen.glass.process(&buffer[..length]);
                seen.bytes.extend(&buffer[..length]);
                let now = lines(&seen.glass);
                seen.all.push(now);
            }
        });
        Self {
            kpx,
            keys,
            line: slave,
            before,
            seen,
            reader,
        }
    }

    /// Waits until a line on the glass meets `is`.
    pub(crate) fn wait(&self, what: &str, is: impl Fn(&str) -> bool) {
        let began = Instant::now();
        loop {
            let now = lines(&self.seen.lock().unwrap().glass);
            if now.iter().any(|line| is(line)) {
                return;
            }
            assert!(began.elapsed() < PATIENCE, "no {what}: {now:#?}");
            thread::sleep(Duration::from_millis(20));
        }
    }

    pub(crate) fn type_in(&mut self, keys: &str) {
        self.keys.write_all(keys.as_bytes()).unwrap();
    }

    /// Waits for the end of kpx; returns its status, and what was to be seen.
    pub(crate) fn end(mut self) -> (ExitStatus, Previous) {
        let status = self.kpx.wait().unwrap();
        let after = tcgetattr(self.line.as_fd()).unwrap();
        assert_eq!(
            (after.local_flags, after.input_flags, after.output_flags),
            (
                self.before.local_flags,
                self.before.input_flags,
                self.before.output_flags
            ),
            "the terminal is as it was"
        );
        drop(self.line);
        self.reader.join().unwrap();
        let seen = Arc::try_unwrap(self.seen).ok().unwrap();
        (status, seen.into_inner().unwrap())
    }
}

impl Previous {
    /// Returns all that was written, as lines: first the lines that scrolled away, then the screen.
    pub(crate) fn kept(&mut self) -> Vec<String> {
        let size = self.glass.screen().size();
        let tall = NonZeroU16::new(2000).unwrap();
        // The same bytes on a terminal where nothing scrolls away.
        let mut glass = vt100::Parser::new(tall, size.1, 0);
        glass.process(&self.bytes);
        lines(&glass)
    }

    /// Returns whether something was on the glass that meets `is`.
    pub(crate) fn ever(&self, is: impl Fn(&[String]) -> bool) -> bool {
        self.all.iter().any(|glass| is(glass))
    }
}
