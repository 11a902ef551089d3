//! The fate of connections.

use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use kpx_node::evidence::{Evidence, Item};
use kpx_node::node::NodeSnapshot;

use super::client::Kind;

/// One thing that went wrong.
#[derive(Clone, Debug)]
pub(crate) struct Failure {
    /// When it began, from the beginning of the traffic on.
    pub(crate) at: Duration,
    pub(crate) reason: String,
}

/// The connections of one client to one target in one way.
#[derive(Clone, Debug)]
pub(crate) struct Line {
    /// `pod`, `host` or `outside`.
    pub(crate) from: &'static str,
    /// `ClusterIP`, `NodePort` or `external`.
    pub(crate) to: &'static str,
    pub(crate) target: SocketAddr,
    pub(crate) kind: Kind,
    /// Connections, or exchanges on the one that stays.
    pub(crate) attempts: usize,
    /// The failed ones; for a connection that stays, its end, and each vain attempt at another.
    pub(crate) failures: Vec<Failure>,
    /// The longest that succeeded.
    pub(crate) slowest: Duration,
}

impl Line {
    pub(super) fn new(
        from: &'static str,
        to: &'static str,
        target: SocketAddr,
        kind: Kind,
    ) -> Self {
        Self {
            from,
            to,
            target,
            kind,
            attempts: 0,
            failures: Vec::new(),
            slowest: Duration::ZERO,
        }
    }

    pub(super) fn note(&mut self, at: Duration, took: Duration, ended: io::Result<()>) {
        self.attempts += 1;
        match ended {
            Ok(()) => self.slowest = self.slowest.max(took),
            Err(error) => self.failures.push(Failure {
                at,
                reason: error.kind().to_string(),
            }),
        }
    }

    /// Returns whether the client opens new connections, rather than using an established one.
    pub(crate) fn is_new(&self) -> bool {
        self.kind.is_new()
    }

    /// From the first failure's beginning to the last one's.
    pub(crate) fn outage(&self) -> Duration {
        match (self.failures.first(), self.failures.last()) {
            (Some(first), Some(last)) => last.at.saturating_sub(first.at),
            _ => Duration::ZERO,
        }
    }
}

impl fmt::Display for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = format!("{:?}", self.kind);
        write!(
            f,
            "{:7} {kind:7} to {:9} {:26} {:5} done, slowest {:4} ms",
            self.from,
            self.to,
            self.target,
            self.attempts,
            self.slowest.as_millis()
        )?;
        if let (Some(first), Some(last)) = (self.failures.first(), self.failures.last()) {
            let mut reasons = BTreeMap::<_, usize>::new();
            for failure in &self.failures {
                *reasons.entry(&failure.reason).or_default() += 1;
            }
            let (first, last) = (first.at.as_secs_f32(), last.at.as_secs_f32());
            write!(f, "; failed from {first:.2} s to {last:.2} s: {reasons:?}")?;
        }
        Ok(())
    }
}

/// The kernel may lose one of this many attempts to a clash of ports.
const PER_CLASH: usize = 100_000;

/// Returns how many new connections conntrack has dropped in this thread's network namespace because another one had just got
/// the same addresses and ports.
///
/// The kernel does that itself where it masquerades to random ports, as kube-proxy has it in every mode: it looks whether a
/// port is free, and takes it only after the last hook.
pub(super) fn clashes() -> usize {
    let text = fs::read_to_string("/proc/thread-self/net/stat/nf_conntrack").unwrap();
    let mut evidence = Evidence::default();
    evidence.insert(Item::ConntrackStat, Ok(text));
    let node = NodeSnapshot::new(&evidence);
    let failed = node.conntrack_stat().unwrap().sum("insert_failed");
    failed.unwrap().try_into().unwrap()
}

/// The fate of all connections.
#[derive(Clone, Debug)]
pub(crate) struct Report {
    pub(super) about: String,
    pub(crate) lines: Vec<Line>,
    /// See [`clashes`].
    pub(super) clashes: usize,
}

impl Report {
    /// Says what was done meanwhile, for whoever reads it.
    pub(crate) fn about(mut self, about: String) -> Self {
        self.about = about;
        self
    }

    /// Iterates over what fits.
    pub(crate) fn of(&self, fits: impl Fn(&Line) -> bool) -> impl Iterator<Item = &Line> {
        self.lines.iter().filter(move |line| fits(line))
    }

    /// How often something failed where it fits.
    pub(crate) fn failed(&self, fits: impl Fn(&Line) -> bool) -> usize {
        self.of(fits).map(|line| line.failures.len()).sum()
    }

    /// Stops the test if anything failed, or hardly anything was tried. New connections that the kernel lost to a clash of
    /// ports pass, if they are as rare as such clashes.
    pub(crate) fn unharmed(&self) {
        self.busy();
        let clashes = self.clashes.min(self.attempts() / PER_CLASH);
        assert!(self.failed(Line::is_new) <= clashes, "{self}");
        assert_eq!(self.failed(|line| !line.is_new()), 0, "{self}");
    }

    fn attempts(&self) -> usize {
        self.lines.iter().map(|line| line.attempts).sum()
    }

    /// Stops the test if some client hardly tried anything.
    pub(crate) fn busy(&self) {
        assert!(self.lines.iter().all(|line| line.attempts >= 10), "{self}");
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", self.about)?;
        for line in &self.lines {
            writeln!(f, "{line}")?;
        }
        write!(
            f,
            "{} in all, {} failed; {} clashes of ports",
            self.attempts(),
            self.failed(|_| true),
            self.clashes
        )
    }
}
