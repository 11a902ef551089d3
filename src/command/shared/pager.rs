//! A pager for pages that may be longer than the terminal. It starts before the command works, as the pager of git does: a command
//! that reads a bundle gives up the right to start programs.

use std::io::{self, Write};
use std::process::{Child, Command as Program, Stdio};

use clap::error::ErrorKind;

use super::terminal;
use crate::cli::parser::{Cli, Command};
use kpx_host::clock;

/// Options of less: quit if one screen has the whole page, and pass colours.
const LESS: &str = "FRX";

/// The first release of less that passes links.
const LINKS_SINCE: u32 = 581;

/// A pager, which waits for a page.
#[derive(Debug)]
pub(in crate::command) struct Pager {
    process: Child,
    text: Vec<u8>,
    /// Whether it passes links.
    pub(in crate::command) has_links: bool,
}

impl Pager {
    /// Starts the pager for the page of `cli`, if that has one. Without the program there is no pager.
    pub(in crate::command) fn start(cli: &Cli) -> Option<Self> {
        if cli.global.no_pager || !is_paged(cli) {
            return None;
        }
        Self::run(cli.global.pager.clone())
    }

    /// Starts the pager for the help of `answer`, the parser's answer to a command line, if it is one.
    pub(in crate::command) fn of_help(answer: &clap::Error) -> Option<Self> {
        let is_help = answer.kind() == ErrorKind::DisplayHelp;
        is_help.then(|| Self::run(terminal::own_pager())).flatten()
    }

    /// Starts the program `pager` or, without one, the usual one.
    fn run(pager: Option<String>) -> Option<Self> {
        let line = pager.or_else(terminal::pager);
        let line = line.unwrap_or_else(|| "less".to_owned());
        let mut words = line.split_whitespace();
        let name = words.next().filter(|name| *name != "cat")?;
        let mut program = program(name);
        program.args(words).stdin(Stdio::piped());
        // A user who may run kpx as root must not get a shell as root by it.
        program.env("LESSSECURE", "1");
        if !terminal::has_less_options() {
            program.env("LESS", LESS);
        }
        Some(Self {
            process: program.spawn().ok()?,
            text: Vec::new(),
            has_links: name == "less" && passes_links(),
        })
    }

    /// Shows the page, and waits until the reader has left it.
    pub(in crate::command) fn end(mut self) {
        // Ctrl-C is the pager's.
        let interrupts = clock::Interrupts::listen();
        if let Some(mut input) = self.process.stdin.take() {
            // The reader may leave before the end.
            input.write_all(&self.text).ok();
        }
        self.process.wait().ok();
        drop(interrupts);
    }
}

impl Write for Pager {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.text.extend(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[expect(
    clippy::disallowed_methods,
    reason = "a pager is no tool that reads the node"
)]
fn program(name: &str) -> Program {
    Program::new(name)
}

/// Returns whether less passes links.
fn passes_links() -> bool {
    let version = program("less").arg("--version").output();
    version.is_ok_and(|version| {
        let text = String::from_utf8_lossy(&version.stdout).into_owned();
        release(&text).is_some_and(|release| release >= LINKS_SINCE)
    })
}

/// Returns the release in `text`, as `less 590 (GNU regular expressions)`.
fn release(text: &str) -> Option<u32> {
    let word = text.split_whitespace().nth(1)?;
    word.split('.').next()?.parse().ok()
}

/// Returns whether the output of the command is for people, not for programs.
pub(in crate::command) fn is_for_people(cli: &Cli) -> bool {
    let format = cli.global.output.as_deref();
    format.is_none_or(|format| ["human", "wide", "picture"].contains(&format))
}

/// Returns whether the command prints a page that may be long; a command that asks or keeps running does not.
fn is_paged(cli: &Cli) -> bool {
    is_for_people(cli)
        && match &cli.command {
            Command::Doctor(args) => {
                args.wait.is_none() && (cli.global.verbose > 0 || !args.chosen().is_empty())
            }
            Command::Trace(args) => args.live.is_none(),
            Command::Reconcile(args) => !args.change.apply,
            Command::Migrate(args) => args.part.is_none() && args.journey.dry_run,
            Command::Explain(_)
            | Command::Help(_)
            | Command::Show(_)
            | Command::Why(_)
            | Command::Diff(_) => true,
            _ => false,
        }
}

#[cfg(test)]
mod tests {
    use super::super::session::parsed;
    use super::*;

    #[test]
    fn only_long_pages_for_people_have_a_pager() {
        let is_paged = |line: &str| {
            let words: Vec<&str> = line.split(' ').collect();
            is_paged(&parsed(&words).0)
        };
        for line in [
            "kpx doctor -v",
            "kpx doctor IR01",
            "kpx explain IR01",
            "kpx help doctor",
            "kpx show services",
            "kpx trace 10.0.0.1:80",
            "kpx why a/b -o picture",
            "kpx diff",
            "kpx reconcile",
            "kpx migrate --to nftables --dry-run",
        ] {
            assert!(is_paged(line), "{line}");
        }
        for line in [
            "kpx doctor",
            "kpx doctor -v -o json",
            "kpx doctor -v --wait 1m",
            "kpx trace 10.0.0.1:80 --live",
            "kpx why a/b -o svg",
            "kpx reconcile --apply",
            "kpx migrate --to nftables",
            "kpx watch",
            "kpx top",
        ] {
            assert!(!is_paged(line), "{line}");
        }
    }

    #[test]
    fn the_release_of_less_is_its_second_word() {
        assert_eq!(release("less 590 (GNU regular expressions)\n"), Some(590));
        assert_eq!(release("less 581.2 (POSIX)\n"), Some(581));
        assert_eq!(release("BusyBox v1.36"), None);
    }
}
