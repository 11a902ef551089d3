//! `kpx doctor`

use std::borrow::Cow;
use std::fs;
use std::io::ErrorKind;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use color_eyre::eyre::WrapErr as _;

use super::args::{DoctorArgs, FailOn};
use super::report::nodes::DoctorOfNodes;
use super::report::{DoctorReport, Frame, HEAD, HEAD_WHOLE, JUNIT_HEAD, JUNIT_TAIL, junit_unread};
use crate::check::ignore::{EXAMPLE, Ignores};
use crate::check::{self, Check, Question, Severity};
use crate::command::explain::report::CheckList;
use crate::command::shared::examine::{Case, Examined, examine};
use crate::command::shared::failure::{Failure, Hint as _};
use crate::command::shared::identity::reach;
use crate::command::shared::io::Io;
use crate::command::shared::nodes;
use crate::command::shared::nodes::NodeFormat;
use crate::command::shared::output::Extra;
use crate::command::shared::session::Session;
use crate::command::watch::run as watch;
use crate::command::watch::run::Follow;
use crate::diff;
use crate::evidence::Item;
use crate::host::{self, clock};
use crate::render::Report as _;
use crate::view::head;
use crate::view::near::{meant, nearest};

/// The pause between two runs of `--wait`.
const PAUSE: Duration = Duration::from_secs(2);

/// The longest time between two readings of `--watch`.
const AT_LEAST: Duration = Duration::from_secs(300);

/// The default ignore file, below the host's root.
const IGNORE_FILE: &str = "etc/kpx/ignore.yaml";

/// The doctor's formats in addition to those of every command.
const FORMATS: &[Extra<DoctorReport>] = &[
    ("short", |report, _| report.short()),
    ("junit", |report, _| report.junit()),
    ("prom", |report, _| report.prom()),
    ("npd", |report, _| report.npd()),
];

/// The formats for several nodes. Prometheus wants the samples of one metric in one place, so `prom` is not one of them.
const NODE_FORMATS: &[NodeFormat<DoctorReport>] = &[
    NodeFormat {
        name: "short",
        head: "",
        node: |node, report| report.short_of(node),
        unread: |node, error| format!("unread {node}: {error}\n"),
        tail: "",
    },
    NodeFormat {
        name: "junit",
        head: JUNIT_HEAD,
        node: |node, report| report.junit_of(node),
        unread: junit_unread,
        tail: JUNIT_TAIL,
    },
];

pub(in crate::command) async fn run(
    session: &Session,
    io: &mut Io<'_>,
    args: &DoctorArgs,
) -> Result<u8, Failure> {
    let checks = select(args)?;
    if args.list {
        return session.finish(io, &CheckList::new(checks));
    }
    let ignores = ignores(
        session,
        args.ignore_file.as_deref(),
        args.nodes.are_several(),
    )?;
    if args.nodes.are_several() {
        let (args, nodes) = (args.clone(), args.nodes.clone());
        let work = async move |session: Session| {
            let asked = Asked::new(&args, &checks, ignores.as_ref());
            examine_node(&session, &asked).await
        };
        return nodes::report::<DoctorOfNodes>(session, io, &nodes, NODE_FORMATS, work).await;
    }
    let asked = Asked::new(args, &checks, ignores.as_ref());
    if let Some(interval) = args.watch {
        let how = Follow {
            interval,
            at_least: AT_LEAST,
            exec: args.exec.as_deref(),
            count: None,
            findings: true,
        };
        return watch::follow(session, io, &asked, how).await;
    }
    let started = Instant::now();
    loop {
        let report = examine_node(session, &asked).await?;
        let waited = started.elapsed();
        match args.wait {
            Some(most) if report.exit() != 0 && waited < most => {
                clock::pause(PAUSE.min(most.saturating_sub(waited))).await;
            }
            _ => {
                if let Some(path) = &args.textfile {
                    host::replace(path, &report.prom())
                        .wrap_err_with(|| format!("cannot write {}", path.display()))
                        .hint("the directory of --textfile must exist and be writable")?;
                }
                return session.finish_as(io, &report, FORMATS);
            }
        }
    }
}

/// What is asked of a node.
pub(in crate::command) struct Asked<'a> {
    checks: Cow<'a, [&'static Check]>,
    ignores: Option<Cow<'a, (String, Ignores)>>,
    question: Question,
    /// Whether no check was chosen.
    is_whole: bool,
    fail_on: Option<Severity>,
}

impl<'a> Asked<'a> {
    fn new(
        args: &DoctorArgs,
        checks: &'a [&'static Check],
        ignores: Option<&'a (String, Ignores)>,
    ) -> Self {
        Self {
            checks: Cow::Borrowed(checks),
            ignores: ignores.map(Cow::Borrowed),
            question: question(args),
            is_whole: args.only.is_empty(),
            fail_on: match args.fail_on {
                FailOn::Error => Some(Severity::Error),
                FailOn::Warning => Some(Severity::Warning),
                FailOn::Never => None,
            },
        }
    }

    /// Returns what `kpx doctor` without options asks.
    pub(in crate::command) fn everything(session: &Session) -> Result<Self, Failure> {
        Ok(Self {
            checks: Cow::Owned(check::asked(None)),
            ignores: ignores(session, None, false)?.map(Cow::Owned),
            question: Question::Now,
            is_whole: true,
            fail_on: None,
        })
    }
}

/// Examines the node of `session`.
pub(in crate::command) async fn examine_node(
    session: &Session,
    asked: &Asked<'_>,
) -> Result<DoctorReport, Failure> {
    Ok(examine_case(session, asked, &[]).await?.0)
}

/// Examines the node of `session`; also returns its evidence with the items `more`, and what drift was compared with last.
pub(in crate::command) async fn examine_case(
    session: &Session,
    asked: &Asked<'_>,
    more: &[Item],
) -> Result<(DoctorReport, Arc<Case>, Arc<Case>), Failure> {
    let mut items = check::needs(&asked.checks);
    items.extend(HEAD);
    items.extend(more);
    if asked.is_whole {
        items.extend(HEAD_WHOLE);
        items.extend(head::judged());
        items.extend(asked.question.target().into_iter().flat_map(diff::needs));
    }
    let (case, examined) = examine(
        session,
        items,
        &asked.checks,
        asked.question,
        asked.is_whole,
    )
    .await?;
    let Examined { mut outcomes, head } = examined;
    let drifted = check::drifted(&outcomes);
    let mut last = Arc::clone(&case);
    // Without a kube-proxy, nothing removes drift.
    let may_sync = session.node(&case.evidence).runs_kube_proxy() != Some(false);
    if session.from.is_none() && may_sync && !drifted.is_empty() {
        clock::pause(case.settles_after()).await;
        let items = check::needs(&drifted);
        let (again, later) = examine(session, items, &drifted, asked.question, false).await?;
        // Drift that could not be compared again stays a finding.
        if check::is_as_complete(&case.evidence, &again.evidence) {
            check::keep_persistent(&mut outcomes, later.outcomes);
            last = again;
        }
    }
    let ignores = asked.ignores.as_deref();
    // Entries expire by the time of the bundle, if it has one.
    let now = case.now.unwrap_or_else(clock::now);
    let diagnosis = check::diagnose(
        outcomes,
        ignores.map(|(_, all)| (all, now)),
        asked.question,
        head.services.as_ref(),
    );
    let frame = Frame {
        head,
        taken: case.now,
        question: asked.question,
        by_tool: case.evidence.by_tool(),
        ignore_file: ignores.map(|(path, _)| path.clone()),
        fail_on: asked.fail_on,
    };
    let report = DoctorReport::new(diagnosis, &reach(session), frame);
    Ok((report, case, last))
}

/// Reads the ignore file: the named one or, on a live node, the default one if it exists.
fn ignores(
    session: &Session,
    named: Option<&Path>,
    are_several: bool,
) -> Result<Option<(String, Ignores)>, Failure> {
    let path = match named {
        Some(path) => path.to_owned(),
        None if session.is_here() && !are_several => session.root().join(IGNORE_FILE),
        None => return Ok(None),
    };
    let name = path.display().to_string();
    let text = match fs::read_to_string(&path) {
        Err(error) if named.is_none() && error.kind() == ErrorKind::NotFound => {
            return Ok(None);
        }
        read => read
            .wrap_err_with(|| format!("cannot read the ignore file {name}"))
            .hint("`kpx doctor --help` describes the format of ignore files")?,
    };
    let ignores = Ignores::parse(&text)
        .wrap_err_with(|| format!("cannot use the ignore file {name}"))
        .hint(EXAMPLE)?;
    Ok(Some((name, ignores)))
}

/// Returns the question that the options ask.
fn question(args: &DoctorArgs) -> Question {
    match args.release {
        Some(goal) => Question::Upgrade(goal),
        None => Question::from(args.to),
    }
}

fn select(args: &DoctorArgs) -> Result<Vec<&'static Check>, Failure> {
    let question = question(args);
    let chosen = match args.only.as_slice() {
        [] if args.list && question == Question::Now => check::all().collect(),
        [] => check::asked(question),
        words => named(words)?,
    };
    let refused = |only: &Check| match question {
        Question::Now => None,
        Question::Switch(target) => Some((
            format!("{} does not run before a switch to {target}", only.id),
            format!("`kpx doctor --list --to {target}` lists the checks that do"),
        )),
        Question::Upgrade(goal) => Some((
            format!("{} does not run before an upgrade to {goal}", only.id),
            format!("`kpx doctor --list --release {goal}` lists the checks that do"),
        )),
    };
    if let [only] = chosen.as_slice()
        && !only.is_asked(question)
        && let Some((complaint, hint)) = refused(only)
    {
        return Err(Failure::usage(complaint).with_hint(hint));
    }
    let skipped = named(&args.skip)?;
    let left: Vec<_> = chosen
        .into_iter()
        .filter(|check| skipped.iter().all(|skipped| skipped.id != check.id))
        .collect();
    if left.is_empty() {
        return Err(Failure::usage(
            "no check to run: --only and --skip exclude all",
        ));
    }
    Ok(left)
}

/// Returns the checks that `words` name, in the doctor's order.
pub(in crate::command) fn named(words: &[String]) -> Result<Vec<&'static Check>, Failure> {
    let mut ids = Vec::new();
    for word in words {
        let found = check::named(word.trim());
        if found.is_empty() {
            return Err(unknown_check(word));
        }
        ids.extend(found.iter().map(|check| check.id));
    }
    Ok(check::all()
        .filter(|check| ids.contains(&check.id))
        .collect())
}

/// Returns the error for a check that does not exist.
pub(in crate::command) fn unknown_check(word: &str) -> Failure {
    let names = check::all().flat_map(|check| [check.id, check.name, check.group()]);
    let near = nearest(word, names.map(str::to_owned));
    let meant = meant(&near).map_or_else(String::new, |meant| format!("{meant} "));
    Failure::usage(format!("no check or group named {word}"))
        .with_hint(format!("{meant}`kpx doctor --list` lists them"))
}
