//! The questions of the doctor to a node, and the report of the answers.

use std::borrow::Cow;
use std::fs;
use std::io::ErrorKind;
use std::path::Path;
use std::sync::Arc;

use color_eyre::eyre::WrapErr as _;

use super::args::{DoctorArgs, FailOn};
use super::report::{DoctorReport, Frame, HEAD, HEAD_WHOLE};
use crate::cli::checks::ChecksArgs;
use crate::command::shared::failure::{Failure, Hint as _};
use crate::command::shared::identity::{is_no_node, reach};
use crate::command::shared::named_checks::selected;
use crate::command::shared::run_checks::{Case, Examined, examine};
use crate::command::shared::session::Session;
use crate::view::head;
use kpx_host::clock;
use kpx_judge::check::ignore::{EXAMPLE, Ignores};
use kpx_judge::check::{self, Check, Facts, Question, ServiceRef, Severity};
use kpx_judge::diff;
use kpx_node::evidence::Item;
use kpx_node::node::NodeSnapshot;

/// The default ignore file, below the host's root.
const IGNORE_FILE: &str = "etc/kpx/ignore.yaml";

/// The questions to a node.
pub(in crate::command) struct Asked<'a> {
    checks: Cow<'a, [&'static Check]>,
    ignores: Cow<'a, Ignored>,
    question: Question,
    /// Whether no check was chosen.
    is_whole: bool,
    fail_on: Option<Severity>,
    /// The arguments of the command that shows everything about the findings.
    details: Vec<String>,
}

impl<'a> Asked<'a> {
    pub(super) fn new(
        args: &DoctorArgs,
        checks: &'a [&'static Check],
        ignores: &'a Ignored,
    ) -> Self {
        Self {
            checks: Cow::Borrowed(checks),
            ignores: Cow::Borrowed(ignores),
            question: question(args),
            is_whole: args.chosen().is_empty(),
            fail_on: match args.fail_on {
                FailOn::Error => Some(Severity::Error),
                FailOn::Warning => Some(Severity::Warning),
                FailOn::Never => None,
            },
            details: details(args),
        }
    }

    /// Returns what `kpx doctor` without options asks.
    pub(in crate::command) fn everything(session: &Session) -> Result<Self, Failure> {
        Self::now(session, &ChecksArgs::default())
    }

    /// Returns the question of `kpx doctor` with only the options `args`.
    pub(in crate::command) fn now(session: &Session, args: &ChecksArgs) -> Result<Self, Failure> {
        let checks = selected(&args.only, &args.skip, check::asked(None))?;
        Ok(Self {
            checks: Cow::Owned(checks),
            ignores: Cow::Owned(Ignored::read(session, args.ignore_file.as_deref(), false)?),
            question: Question::Now,
            is_whole: args.only.is_empty(),
            fail_on: None,
            details: ["doctor", "-v"].map(str::to_owned).to_vec(),
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

/// Examines the node of `session`; also returns its evidence with the items `more`, and the last reading that drift was
/// compared with.
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
    if !session.source.is_bundle() && may_sync && !drifted.is_empty() {
        clock::pause(case.settles_after()).await;
        let items = check::needs(&drifted);
        let (again, later) = examine(session, items, &drifted, asked.question, false).await?;
        // Drift that could not be compared again stays a finding.
        if check::is_as_complete(&case.evidence, &again.evidence) {
            check::keep_persistent(&mut outcomes, later.outcomes);
            last = again;
        }
    }
    if let Some(tally) = &head.services {
        let works = |service: &ServiceRef| tally.working.contains(&service.whole().to_string());
        let all_work = tally.failing.is_empty() && tally.doubts.is_empty();
        check::temper(&mut outcomes, works, all_work);
    }
    let ignored = &asked.ignores;
    // Entries expire by the time of the bundle, if it has one.
    let now = case.now.unwrap_or_else(clock::now);
    let diagnosis = check::diagnose(
        outcomes,
        Some((&ignored.all, now)),
        asked.question,
        head.services.as_ref(),
        &known(&case),
    );
    let frame = Frame {
        head,
        taken: case.now,
        question: asked.question,
        by_tool: case.evidence.by_tool(),
        ignore_file: ignored.file.clone(),
        fail_on: asked.fail_on,
        details: asked.details.clone(),
        is_chosen: !asked.is_whole,
    };
    let has_rules = frame
        .head
        .mode
        .observed_by_family
        .values()
        .any(Option::is_some);
    let is_no_node =
        asked.is_whole && !has_rules && is_no_node(session, &session.node(&case.evidence));
    let mut report = DoctorReport::new(diagnosis, &reach(session), frame);
    if is_no_node && report.findings.is_empty() {
        report.leads_to_node(session.style.program);
    }
    Ok((report, case, last))
}

/// Returns values for commands, by the words that stand for them.
fn known(case: &Case) -> Vec<(&'static str, String)> {
    let node = NodeSnapshot::new(&case.evidence).called(case.name.as_deref());
    check::names(&Facts::new(&node, case.now))
}

/// The findings to ignore.
#[derive(Clone, Debug, Default)]
pub(super) struct Ignored {
    /// The path of the ignore file, if there is one.
    file: Option<String>,
    /// The entries of this file, then those of the configuration file.
    all: Ignores,
}

impl Ignored {
    /// Reads the ignore file: the named one or, on a live node, the default one if it exists.
    pub(super) fn read(
        session: &Session,
        named: Option<&Path>,
        are_several: bool,
    ) -> Result<Self, Failure> {
        let path = match named {
            Some(path) => Some(path.to_owned()),
            None if session.source.is_this_machine() && !are_several => {
                Some(session.root().join(IGNORE_FILE))
            }
            None => None,
        };
        let mut ignored = Self::default();
        if let Some(path) = path {
            let name = path.display().to_string();
            match fs::read_to_string(&path) {
                Err(error) if named.is_none() && error.kind() == ErrorKind::NotFound => {}
                read => {
                    let text = read
                        .wrap_err_with(|| format!("cannot read the ignore file {name}"))
                        .hint("`kpx doctor --help` describes the format of ignore files")?;
                    ignored.all = Ignores::parse(&text)
                        .wrap_err_with(|| format!("cannot use the ignore file {name}"))
                        .hint(EXAMPLE)?;
                    ignored.file = Some(name);
                }
            }
        }
        let of_config = session.ignored.iter().cloned();
        ignored.all.entries.extend(of_config);
        Ok(ignored)
    }
}

/// Returns the question that the options ask.
pub(super) fn question(args: &DoctorArgs) -> Question {
    match args.release {
        Some(goal) => Question::Upgrade(goal),
        None => Question::from(args.to),
    }
}

/// Returns the arguments of the command that asks the same, and shows everything about the findings.
fn details(args: &DoctorArgs) -> Vec<String> {
    let mut words = vec!["doctor".to_owned(), "-v".to_owned()];
    if let Some(mode) = args.to {
        words.extend(["--to".to_owned(), mode.name().to_owned()]);
    }
    if let Some(goal) = args.release {
        words.extend(["--release".to_owned(), goal.to_string()]);
    }
    if !args.checks.skip.is_empty() {
        words.extend(["--skip".to_owned(), args.checks.skip.join(",")]);
    }
    if let Some(file) = &args.checks.ignore_file {
        words.extend(["--ignore-file".to_owned(), file.display().to_string()]);
    }
    words
}
