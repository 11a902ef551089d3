//! `kpx watch`, and `kpx diff BUNDLE [BUNDLE]`: what changes on a node.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::time::{Duration, Instant};

use color_eyre::eyre::eyre;
use futures_util::future::{Either, select};

use super::args::WatchArgs;
use crate::command::doctor::examine::{Asked, examine_case};
use crate::command::doctor::report::{DoctorReport, Status};
use crate::command::shared::change_sources;
use crate::command::shared::change_sources::Notices;
use crate::command::shared::failure::{Failure, Hint as _};
use crate::command::shared::identity;
use crate::command::shared::io::Io;
use crate::command::shared::output::Output;
use crate::command::shared::session::Session;
use crate::render::{self, Format};
use crate::report::CLEAN;
use crate::report::history::{ChangeEvent, HistoryReport};
use kpx_host::{self as host, clock};
use kpx_judge::history::{self, Change, State, Topic};
use kpx_node::evidence::{Gap, Item, Time};

/// The least time between two readings of a node whose changes are not all noticed.
const BLIND: Duration = Duration::from_secs(10);

pub(in crate::command) async fn run(
    session: &Session,
    io: &mut Io<'_>,
    args: &WatchArgs,
) -> Result<u8, Failure> {
    let asked = Asked::now(session, &args.checks)?;
    session.refuse_bundle("`watch` follows")?;
    if let Some(program) = &args.exec {
        host::check_hook(program).map_err(|why| {
            let error = format!("--exec {}: {why}", program.display());
            Failure::usage(error)
                .with_hint("pass the path of an executable file, or its name in PATH")
        })?;
    }
    identity::refuse_no_node(session).await?;
    let mut interrupts = clock::Interrupts::listen();
    let mut state = State::default();
    // When each fact began; those of the first reading are older.
    let mut since: BTreeMap<(Topic, String), Time> = BTreeMap::new();
    let mut is_first = true;
    let mut left = args.count;
    let mut notices = Notices::new(session);
    let mut cluster = Err(Gap::NotCollected(Item::Services));
    let mut reported = None;
    loop {
        if cluster.is_err() && notices.watch.is_none() {
            cluster = match notices.watch_cluster().await {
                // Without a cluster, nothing of it changes.
                Err(Gap::NotApplicable(_)) => Ok(()),
                started => started,
            };
        }
        // A change after this point is read again.
        let servers = notices.servers().await;
        let look = notices.look(servers.as_ref().ok().copied().flatten()).await;
        let start = Instant::now();
        let now = read(session, &asked, args.findings).await?;
        let at = clock::now();
        let (mut changes, unknown) = state.changes(&now);
        if is_first {
            // Of the first reading, only findings are printed.
            changes.retain(|change| change.topic == Topic::Finding);
            for (topic, gap) in &unknown {
                writeln!(io.err, "kpx: {topic} unknown: {gap}")?;
            }
        }
        for change in &changes {
            let key = (change.topic, change.name.clone());
            let began = since.insert(key, at).filter(|_| !is_first);
            let after = began.map(|began| at.since(began).as_secs());
            event(session, io, args.exec.as_deref(), at, change, after).await?;
        }
        is_first = false;
        state = now.or(state);
        left = left.map(|left| left.saturating_sub(1));
        if left == Some(0) {
            return Ok(CLEAN);
        }
        let duration = start.elapsed();
        let blind = match &cluster {
            Err(gap) => Some(gap.to_string()),
            Ok(()) => notices.blind(&look, servers.as_ref().err()).await,
        };
        if let Some(why) = blind.as_ref().filter(|_| blind != reported) {
            writeln!(
                io.err,
                "kpx: changes may go unnoticed ({why}): the node is read every {:?}",
                args.interval.max(BLIND)
            )?;
        }
        let wait = Wait {
            // Less than half of the time.
            from: Instant::now() + args.interval.max(duration),
            until: Instant::now()
                + if blind.is_some() {
                    args.interval.max(BLIND)
                } else {
                    args.check_interval
                },
            every: args.interval,
        };
        reported = blind;
        let Some(why) = wait.end(&mut notices, &mut cluster, &mut interrupts).await else {
            return Ok(CLEAN);
        };
        if session.style.verbose > 0 {
            writeln!(io.err, "kpx: reading the node: {why}")?;
        }
    }
}

/// How to wait for a change.
struct Wait {
    /// When the node may be read again, and when it must be.
    from: Instant,
    until: Instant,
    /// Time between two looks.
    every: Duration,
}

impl Wait {
    /// Waits until the node is to be read, and returns why; `None` after a signal. Updates why `cluster` is not watched.
    async fn end(
        &self,
        notices: &mut Notices<'_>,
        cluster: &mut Result<(), Gap>,
        interrupts: &mut clock::Interrupts,
    ) -> Option<String> {
        let mut changed: Vec<&str> = Vec::new();
        let mut look_at = Instant::now() + self.every;
        let mut until = self.until;
        loop {
            let now = Instant::now();
            if now >= self.from && !changed.is_empty() {
                return Some(format!("{} changed", changed.join(" and ")));
            }
            if now >= until {
                return Some("it is due".to_owned());
            }
            if now >= look_at {
                let layout = notices.servers().await.ok().flatten();
                for source in notices.look(layout).await.changed {
                    note(&mut changed, source);
                }
                look_at = Instant::now() + self.every;
                continue;
            }
            let due = if changed.is_empty() {
                look_at.min(until)
            } else {
                look_at.min(self.from)
            };
            let rest = due.saturating_duration_since(now);
            let event = {
                let signal = pin!(interrupts.next());
                let change = pin!(notices.cluster());
                let event = pin!(select(signal, change));
                match select(event, pin!(clock::pause(rest))).await {
                    Either::Left((Either::Left(_), _)) => return None,
                    Either::Left((Either::Right((result, _)), _)) => Some(result),
                    Either::Right(_) => None,
                }
            };
            match event {
                None => {}
                Some(Ok(())) => {
                    note(&mut changed, change_sources::CLUSTER);
                    *cluster = Ok(());
                }
                Some(Err(gap)) => {
                    until = until.min(now + self.every.max(BLIND));
                    *cluster = Err(gap);
                }
            }
        }
    }
}

fn note<'s>(sources: &mut Vec<&'s str>, source: &'s str) {
    if !sources.contains(&source) {
        sources.push(source);
    }
}

/// Prints an event, and passes it to the program of `--exec`.
async fn event(
    session: &Session,
    io: &mut Io<'_>,
    exec: Option<&Path>,
    at: Time,
    change: &Change,
    after_seconds: Option<u64>,
) -> Result<(), Failure> {
    let event = ChangeEvent {
        at,
        change: Cow::Borrowed(change),
        after_seconds,
    };
    if session.output == Some(Output::Format(Format::Json)) {
        render::write_line(ChangeEvent::KIND, &event, io.out)?;
    } else {
        writeln!(io.out, "{}", event.line())?;
        io.out.flush()?;
    }
    if let Some(program) = exec {
        let mut input = Vec::new();
        render::write_line(ChangeEvent::KIND, &event, &mut input)?;
        if let Err(why) = host::run_hook(program, input).await {
            writeln!(io.err, "kpx: --exec {}: {why}", program.display())?;
        }
    }
    Ok(())
}

/// Returns the state of the node of `session`.
async fn read(session: &Session, asked: &Asked<'_>, findings: bool) -> Result<State, Failure> {
    let more = if findings { &[] } else { history::NEEDS };
    let (report, case, _) = examine_case(session, asked, more).await?;
    let mut state = if findings {
        State::default()
    } else {
        State::of(&session.node(&case.evidence))
    };
    find(&mut state, &report);
    Ok(state)
}

/// Adds the findings of `report`, and which checks have no result.
fn find(state: &mut State, report: &DoctorReport) {
    for of in &report.findings {
        let message = format!("{}: {}", of.severity.name(), of.message);
        state.find(of.id, &of.subject, message);
    }
    for check in report.with(Status::Unknown) {
        state.undecided(check.id);
    }
}

/// Refuses to compare redacted evidence with evidence that is not: every name and address differs.
async fn refuse_redacted(earlier: &Session, later: &Session) -> Result<(), Failure> {
    let is_redacted = async |session: &Session| -> Result<bool, Failure> {
        let evidence = session.gather(&[]).await?;
        Ok(evidence
            .manifest()
            .is_some_and(|manifest| manifest.redacted))
    };
    let redacted = match (is_redacted(earlier).await?, is_redacted(later).await?) {
        (true, false) => earlier,
        (false, true) => later,
        _ => return Ok(()),
    };
    let path = redacted.source.bundle().unwrap_or(Path::new("the node"));
    let error = eyre!(
        "cannot compare a redacted bundle with evidence that is not redacted: all names and addresses in {} are replaced, so \
         it describes no node of the other",
        path.display()
    );
    Err(Failure::from(error).with_hint("compare the bundles from before the redaction"))
}

/// Compares two bundles, or a bundle and the node of `session`; also returns the session of the later state.
pub(in crate::command) async fn compare(
    session: &Session,
    before: &PathBuf,
    after: Option<&PathBuf>,
) -> Result<(Session, HistoryReport), Failure> {
    let at = |path: &PathBuf| session.in_bundle(path);
    let (earlier, later) = (at(before), after.map_or_else(|| session.clone(), at));
    refuse_redacted(&earlier, &later).await?;
    let was = read(&earlier, &Asked::everything(&earlier)?, false).await?;
    let is = read(&later, &Asked::everything(&later)?, false)
        .await
        .hint("name two bundles, or one to compare it with this node")?;
    let (changes, unknown) = was.changes(&is);
    let report = HistoryReport {
        from: before.display().to_string(),
        to: later
            .source
            .bundle()
            .map_or_else(|| "now".to_owned(), |path| path.display().to_string()),
        changes,
        unknown,
    };
    Ok((later, report))
}
