//! `kpx reconcile`

use super::args::ReconcileArgs;
use super::cleanup;
use super::follow;
use super::plan::{Scope, applying, goal, plan};
use crate::cli::change::Part;
use crate::command::shared::apply_on_nodes;
use crate::command::shared::apply_on_nodes::Planned;
use crate::command::shared::change::{carry_out, verified};
use crate::command::shared::failure::Failure;
use crate::command::shared::io::Io;
use crate::command::shared::session::Session;
use crate::report::plan::CONNECTIONS;

pub(in crate::command) async fn run(
    session: &Session,
    io: &mut Io<'_>,
    args: &ReconcileArgs,
) -> Result<u8, Failure> {
    if args.watch {
        return Box::pin(follow::run(session, io, args)).await;
    }
    if let Some(mode) = args.cleanup {
        return cleanup::run(session, io, args, mode).await;
    }
    if args.nodes.are_several() {
        let all = args.clone();
        let make = async move |session: &Session| -> Result<Planned, Failure> {
            let mode = session.mode(all.mode).await?;
            Ok((goal(mode), plan(session, &Scope::of(&all), mode).await?))
        };
        let next = applying(session, args);
        let done = apply_on_nodes::carry_out(session, io, &args.nodes, args.change, next, make);
        return done.await;
    }
    let mode = session.mode(args.mode).await?;
    let make = async || plan(session, &Scope::of(args), mode).await;
    let report = carry_out(session, io, &args.change, &goal(mode), &make).await?;
    let mut report = verified(report, make).await;
    report.next = Some(applying(session, args));
    if report.is_done() && !args.part.contains(&Part::Conntrack) {
        report.notes.push(CONNECTIONS.to_owned());
    }
    session.finish(io, &report)
}
