//! `kpx pod`, the main process of a pod that kpx created on a node.

use std::fs;
use std::io;
use std::path::Path;
use std::pin::pin;
use std::time::Duration;

use color_eyre::eyre::{WrapErr as _, eyre};
use futures_util::future::{Either, select};

use super::args::PodArgs;
use crate::command::shared::change::open_after_guard;
use crate::command::shared::failure::Failure;
use crate::command::shared::io::Io;
use crate::command::shared::session::Session;
use crate::report::{CLEAN, FAILED};
use kpx_host::{self as host, Query, clock};
use kpx_judge::plan::Plan;
use kpx_node::action::{PLAN, START};
use kpx_node::apply::{self, Event, Line, SentPlan};
use kpx_node::net::Proto;

pub(in crate::command) async fn run(
    session: &Session,
    io: &mut Io<'_>,
    args: &PodArgs,
) -> Result<u8, Failure> {
    if args.keep_plan {
        return keep_plan(io);
    }
    if args.apply {
        return apply(session, io).await;
    }
    if let Some(query) = &args.query {
        return answer(session, io, query).await;
    }
    hold(io).await?;
    Ok(CLEAN)
}

/// Time in which the kpx that created the pod has to hold its standard input. If that kpx has ended, the input never ends.
const UNHELD: Duration = Duration::from_secs(10);

/// Waits for the end of standard input; fails if the other kpx does not hold it.
async fn hold(io: &mut Io<'_>) -> Result<(), Failure> {
    let held = pin!(clock::typed());
    if let Either::Right(_) = select(held, pin!(clock::pause(UNHELD))).await {
        return Err(eyre!("the kpx that created this pod does not hold its standard input").into());
    }
    io::copy(io.input, &mut io::sink())?;
    Ok(())
}

/// Prints the answer to `query`.
async fn answer(session: &Session, io: &mut Io<'_>, query: &str) -> Result<u8, Failure> {
    let query = serde_json::from_str(query).wrap_err("cannot read the query")?;
    let answer = match query {
        Query::Probe { target, protocol } => {
            serde_json::to_value(session.probe(target, Proto::from_number(protocol)).await?)
        }
        Query::Dns { server, message } => serde_json::to_value(session.ask(server, message).await?),
    };
    writeln!(io.out, "{}", answer.wrap_err("cannot print the answer")?)?;
    Ok(CLEAN)
}

/// Writes the plan from standard input to a file, and then starts the main process.
fn keep_plan(io: &mut Io<'_>) -> Result<u8, Failure> {
    let mut text = String::new();
    io.input.read_to_string(&mut text)?;
    serde_json::from_str::<SentPlan>(&text).wrap_err("the plan is damaged")?;
    host::replace(Path::new(PLAN), &text).wrap_err_with(|| format!("cannot write {PLAN}"))?;
    host::replace(Path::new(START), "").wrap_err_with(|| format!("cannot write {START}"))?;
    Ok(CLEAN)
}

/// Waits for the plan, carries it out, and prints a line of JSON for each event. kpx that sent the plan may be gone by then.
async fn apply(session: &Session, io: &mut Io<'_>) -> Result<u8, Failure> {
    hold(io).await?;
    if !Path::new(START).exists() {
        return Err(
            eyre!("standard input ended before a plan arrived; nothing was changed").into(),
        );
    }
    let text = fs::read_to_string(PLAN).wrap_err_with(|| format!("cannot read {PLAN}"))?;
    let sent: SentPlan = serde_json::from_str(&text).wrap_err("the plan is damaged")?;
    let plan = Plan::from(sent);
    let mut node = open_after_guard(session).await?;
    let mut print = |line: &Line| -> Result<(), Failure> {
        let text = serde_json::to_string(line).wrap_err("cannot print an event")?;
        writeln!(io.out, "{text}")?;
        io.out.flush()?;
        Ok(())
    };
    let done = apply::run(&plan, &mut node, |event| {
        let line = match event {
            Event::Begins(number, _) => Line::Begins(number),
            Event::Undoes(number, _) => Line::Undoes(number),
        };
        // The change continues even if the log cannot be written.
        print(&line).ok();
    });
    let stopped = done.await.err();
    let code = if stopped.is_some() { FAILED } else { CLEAN };
    print(&Line::Ended(stopped))?;
    Ok(code)
}
