//! `kpx top`

use std::future;
use std::pin::pin;
use std::time::{Duration, Instant};

use color_eyre::eyre::eyre;
use futures_util::future::{Either, select};

use super::args::TopArgs;
use super::report::TopReport;
use super::screen::Screen;
pub(in crate::command) use super::view::Left;
use super::view::Names;
use crate::command::shared::counters::Reader;
use crate::command::shared::display::Display;
use crate::command::shared::failure::{Failure, Hint as _};
use crate::command::shared::io::Io;
use crate::command::shared::output::Output;
use crate::command::shared::service_name;
use crate::command::shared::session::Session;
use crate::render::{self, Format, Report as _, dots};
use crate::report::CLEAN;
use crate::view::View;
use kpx_host::{Watch, clock};
use kpx_node::evidence::{Gap, Item};
use kpx_node::node::desired::NEEDS;
use kpx_node::owner::Owners;

/// The part of one processor that readings may use.
const LIMIT: f64 = 0.03;

/// How often the screen looks for typed keys.
const TICK: Duration = Duration::from_millis(50);

pub(in crate::command) async fn run(
    session: &Session,
    io: &mut Io<'_>,
    args: &TopArgs,
) -> Result<u8, Failure> {
    session.refuse_bundle("`top` watches")?;
    Ok(watch(session, io, args, None).await?.1)
}

/// Shows the traffic of all Services on `display`, as a page of another screen.
pub(in crate::command) async fn page(
    session: &Session,
    io: &mut Io<'_>,
    display: &mut Display,
) -> Result<Left, Failure> {
    Ok(watch(session, io, &TopArgs::default(), Some(display))
        .await?
        .0)
}

/// Shows readings until a key, a signal or a limit ends it; returns which, and the exit status.
async fn watch(
    session: &Session,
    io: &mut Io<'_>,
    args: &TopArgs,
    page: Option<&mut Display>,
) -> Result<(Left, u8), Failure> {
    // The names of Services, and the mode in force.
    let mut items = View::Ipvs.needs();
    items.extend(NEEDS);
    items.sort();
    items.dedup();
    // Verdicts alone need the ranges of Services.
    items.retain(|item| *item != Item::ServiceCidrs);
    let evidence = session.gather(&items).await?;
    let node = session.node(&evidence);
    let mode = node.modes().current();
    let mut args = args.clone();
    if let Some(name) = &args.service {
        args.service = Some(service_name::target(session, name, &args.named).await?);
    }
    let args = &args;
    if let Some(name) = args.service.as_deref() {
        let owners = Owners::new(&node);
        if !owners.ports().iter().any(|port| port.name.answers(name)) {
            return Err(eyre!("{name} not found"))
                .hint("name a Service as NAMESPACE/NAME[:PORT]; `kpx show services` lists them");
        }
    }
    let mut unwatched = None;
    let unseen = |gap: &Gap| format!("later changes of Services are not seen: {gap}");
    let mut watch = None;
    if session.source.cluster_bundle().is_none() {
        match Watch::start(&session.host).await {
            Ok(watched) => watch = Some(watched),
            Err(gap) => unwatched = Some(unseen(&gap)),
        }
    }
    let mut reader = Reader::new(session, mode).await;
    let on_screen =
        io.terminal && io.interactive && args.count.is_none() && session.output.is_none();
    let is_page = page.is_some();
    let mut own = None;
    let display = match page {
        None if on_screen => Some(own.insert(Display::open()?)),
        page => page,
    };
    let mut screen =
        display.map(|display| Screen::new(display, args.sort, dots(session.style.ascii), is_page));
    let mut interrupts = clock::Interrupts::listen();
    let mut left = args.count;
    let mut told = Vec::new();
    let is_for_programs = matches!(
        session.output,
        Some(Output::Format(Format::Json | Format::Yaml))
    );
    let mut due = Instant::now();
    loop {
        let node = match &watch {
            Some(watch) => session
                .node(&evidence)
                .with_services(watch.services(), watch.slices()),
            None => session.node(&evidence),
        };
        let names = Names::new(&node, mode);
        let mut is_stale = false;
        loop {
            match wait(due, &mut interrupts, watch.as_mut(), screen.as_mut()).await? {
                Woken::Stop(left) => return Ok((left, CLEAN)),
                Woken::Changed(result) => {
                    is_stale = true;
                    unwatched = result.err().map(|gap| unseen(&gap));
                    continue;
                }
                Woken::Due => {}
            }
            if is_stale {
                break;
            }
            let begun = Instant::now();
            let spent = reader.read().await?;
            due = begun + args.interval.max(spent.pause(LIMIT));
            let (mut services, elsewhere) =
                names.rows(&reader.meter, spent.time, args.service.as_deref());
            args.sort.sort(&mut services);
            let mut notes = Vec::from_iter(unwatched.clone());
            notes.extend(reader.uncounted());
            notes.extend(reader.unaccounted());
            let mut report = TopReport {
                at: clock::now(),
                mode,
                source: reader.source(),
                seconds: spent.time.as_secs_f64(),
                processor: spent.part(),
                service_ports: names.count(),
                elsewhere,
                services,
                named: args.service.is_some(),
                notes,
            };
            if let Some(screen) = &mut screen {
                screen.show(report)?;
                continue;
            }
            // The first reading only shows open connections.
            if spent.time.is_zero() {
                continue;
            }
            // A page repeats no notes.
            if told == report.notes {
                report.notes.retain(|_| is_for_programs);
            } else {
                told.clone_from(&report.notes);
            }
            print(session, io, &report)?;
            left = left.map(|left| left.saturating_sub(1));
            if left == Some(0) {
                return Ok((Left::End, report.exit()));
            }
        }
    }
}

fn print(session: &Session, io: &mut Io<'_>, report: &TopReport) -> Result<(), Failure> {
    match session.output {
        Some(Output::Format(Format::Json)) => {
            render::write_line(TopReport::KIND, report, io.out)?;
        }
        Some(Output::Format(Format::Yaml)) => {
            io.out.write_all(b"---\n")?;
            session.finish(io, report)?;
        }
        _ => {
            session.finish(io, report)?;
            io.out.write_all(b"\n")?;
        }
    }
    Ok(io.out.flush()?)
}

/// Why a wait ended.
enum Woken {
    /// A reading is due.
    Due,
    /// Services or endpoints changed, or cannot be watched at the moment.
    Changed(Result<(), Gap>),
    /// The user ends it.
    Stop(Left),
}

/// Waits until `due`, a signal, a change of the cluster, or the key that ends the screen.
async fn wait(
    due: Instant,
    interrupts: &mut clock::Interrupts,
    mut watch: Option<&mut Watch>,
    mut screen: Option<&mut Screen<'_>>,
) -> Result<Woken, Failure> {
    loop {
        if let Some(screen) = &mut screen
            && let Some(left) = screen.look()?
        {
            return Ok(Woken::Stop(left));
        }
        let rest = due.saturating_duration_since(Instant::now());
        if rest.is_zero() {
            return Ok(Woken::Due);
        }
        let tick = if screen.is_some() {
            TICK.min(rest)
        } else {
            rest
        };
        let change = async {
            match &mut watch {
                Some(watch) => watch.next().await,
                None => future::pending().await,
            }
        };
        let signal = pin!(interrupts.next());
        let event = pin!(select(signal, Box::pin(change)));
        match select(event, pin!(clock::pause(tick))).await {
            Either::Left((Either::Left(_), _)) => return Ok(Woken::Stop(Left::End)),
            Either::Left((Either::Right((result, _)), _)) => return Ok(Woken::Changed(result)),
            Either::Right(_) => {}
        }
    }
}
