//! `kpx doctor`

use std::time::{Duration, Instant};

use color_eyre::eyre::WrapErr as _;

use super::args::DoctorArgs;
use super::examine::{Asked, Ignored, examine_node, question};
use super::report::nodes::DoctorOfNodes;
use super::report::{DoctorReport, JUNIT_HEAD, JUNIT_TAIL, junit_unread};
use crate::command::shared::beside::{beside_all, in_whole_bundle};
use crate::command::shared::failure::{Failure, Hint as _};
use crate::command::shared::io::Io;
use crate::command::shared::named_checks::selected;
use crate::command::shared::nodes;
use crate::command::shared::nodes::NodeFormat;
use crate::command::shared::output::Extra;
use crate::command::shared::session::Session;
use crate::render::Report as _;
use kpx_host::{self as host, clock};
use kpx_judge::check::{self, Check, Question};

/// The pause between two runs of `--wait`.
const PAUSE: Duration = Duration::from_secs(2);

/// The doctor's formats in addition to those of every command.
const FORMATS: &[Extra<DoctorReport>] = &[
    ("short", |report, _| report.short()),
    ("junit", |report, _| report.junit()),
    ("prom", |report, _| report.prom()),
    ("npd", |report, _| report.npd()),
];

/// The formats for several nodes. Prometheus wants the samples of one metric in one place, so `prom` is not available.
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
    if args.wait.is_some() {
        session.refuse_bundle("--wait reads")?;
    }
    let ignored = Ignored::read(
        session,
        args.checks.ignore_file.as_deref(),
        args.nodes.are_several(),
    )?;
    let judges = args.chosen().is_empty() && question(args) == Question::Now;
    if args.nodes.are_several() {
        let (args, nodes) = (args.clone(), args.nodes.clone());
        let session = if judges {
            &beside_all(session, &nodes).await?
        } else {
            session
        };
        let work = async move |session: Session| {
            let asked = Asked::new(&args, &checks, &ignored);
            examine_node(&session, &asked).await
        };
        return nodes::report::<DoctorOfNodes>(session, io, &nodes, NODE_FORMATS, work).await;
    }
    let session = if judges {
        &in_whole_bundle(session).await
    } else {
        session
    };
    let asked = Asked::new(args, &checks, &ignored);
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

fn select(args: &DoctorArgs) -> Result<Vec<&'static Check>, Failure> {
    let question = question(args);
    let chosen = selected(&args.chosen(), &args.checks.skip, check::asked(question))?;
    let refused = |only: &Check| match question {
        Question::Now => None,
        Question::Switch(target) => Some((
            format!("{} does not run before a switch to {target}", only.id),
            format!("`kpx explain --to {target}` lists the checks that do"),
        )),
        Question::Upgrade(goal) => Some((
            format!("{} does not run before an upgrade to {goal}", only.id),
            format!("`kpx explain --release {goal}` lists the checks that do"),
        )),
    };
    if let [only] = chosen.as_slice()
        && !only.is_asked(question)
        && let Some((complaint, hint)) = refused(only)
    {
        return Err(Failure::usage(complaint).with_hint(hint));
    }
    Ok(chosen)
}
