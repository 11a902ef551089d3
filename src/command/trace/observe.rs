//! `--live`: the kernel traces one packet, and its path is compared with the computed one.

use std::net::SocketAddr;
use std::time::Duration;

use super::args::TraceArgs;
use super::report::{Observation, SourceTrace, TraceReport, row};
use super::run::{aim, trace_on};
use crate::command::shared::failure::Failure;
use crate::command::shared::io::Io;
use crate::command::shared::service_name;
use crate::command::shared::session::Session;
use kpx_host::{self as host, ProbeOutcome};
use kpx_judge::trace::observed::{self, Means, Observed};
use kpx_judge::trace::question::needs;
use kpx_judge::trace::sources::{self, Pods, Source};
use kpx_judge::trace::target::Target;
use kpx_judge::trace::{Entry, Hop, Outcome};
use kpx_node::evidence::traced::{InLegacy, Traced, Wanted};
use kpx_node::net::Proto;
use kpx_node::node::NodeSnapshot;
use kpx_node::owner::Owners;

/// A packet that the kernel traced.
pub(super) struct Seen {
    packet: Observed,
    traced: Traced,
    proto: Proto,
}

/// Waits for a packet of the flow, then traces from where it came.
pub(super) async fn run(
    session: &Session,
    io: &mut Io<'_>,
    args: &TraceArgs,
    limit: Duration,
) -> Result<TraceReport, Failure> {
    if !session.source.is_this_machine() {
        return Err(Failure::usage(
            "--live listens to the kernel of this node: run it there, without --from and --node",
        ));
    }
    if args.nodes.are_several() {
        return Err(Failure::usage(
            "--live works on one node, the one it runs on",
        ));
    }
    let target = Target::parse(&args.target).map_err(Failure::usage)?;
    let (wanted, probed) = {
        let evidence = session.gather(&needs().collect::<Vec<_>>()).await?;
        let node = session.node(&evidence);
        let (found, _, proto) = aim(session, &node, args, &target)?;
        let wanted = wanted(args, &node, SocketAddr::new(found.addr, found.port), proto)?;
        (wanted, args.probe)
    };
    let Wanted {
        destination, proto, ..
    } = wanted;
    let what = if wanted.established {
        "a packet of an open connection"
    } else {
        "a packet that begins a connection"
    };
    if !probed {
        writeln!(
            io.err,
            "kpx: waiting up to {limit:?} for {what} to {destination}/{proto}"
        )?;
    }
    let machine = session.machine()?;
    let probing = async {
        if probed {
            Some(session.probe(destination, proto).await)
        } else {
            None
        }
    };
    let tracing = Box::pin(host::trace_packets(
        machine,
        wanted,
        limit,
        observed::is_complete,
        probing,
    ))
    .await;
    let (traced, probe) = tracing?;
    let probe = probe.flatten().transpose()?;
    let lost = traced.lost;
    let Some(packet) = observed::observed(&traced) else {
        let mut report = trace_on(session, args, None).await?;
        let lost = if lost {
            "; the kernel dropped messages, as there were too many"
        } else {
            ""
        };
        report.live = Some(Observation::not_seen(format!(
            "{what} to {destination}/{proto} did not come by within {limit:?}{lost}"
        )));
        return Ok(report);
    };
    let (changed, generation) = (traced.changed, traced.generation);
    let legacy = traced.legacy.clone();
    let seen = Seen {
        packet,
        traced,
        proto,
    };
    let mut report = trace_on(session, args, Some(&seen)).await?;
    let changed = changed || host::nft_generation(machine).await? != generation;
    if let Some(live) = &mut report.live {
        if let InLegacy::Unknown(gap) = legacy {
            live.notes.push(format!(
                "the legacy tables of iptables are not observed: {gap}"
            ));
        }
        if changed {
            live.notes.push(
                "rules changed while the packet was traced or its path was computed: look again at a difference"
                    .to_owned(),
            );
        }
        if let Some(probe) = probe {
            let answer = match probe.met {
                ProbeOutcome::Answered => "answered".to_owned(),
                ProbeOutcome::Refused => "refused".to_owned(),
                ProbeOutcome::Silence => "no answer".to_owned(),
                ProbeOutcome::Unreachable(why) => why,
            };
            live.notes
                .push(format!("kpx opened the connection itself: {answer}"));
        }
    }
    Ok(report)
}

/// Returns which packets the kernel is to trace.
fn wanted(
    args: &TraceArgs,
    node: &NodeSnapshot<'_>,
    destination: SocketAddr,
    proto: Proto,
) -> Result<Wanted, Failure> {
    let mut wanted = Wanted {
        destination,
        proto,
        source: None,
        from_host: true,
        from_links: true,
        established: args.established,
    };
    match args.source.as_deref() {
        _ if args.probe => wanted.from_links = false,
        None => {}
        Some("outside" | "external") => wanted.from_host = false,
        Some(text) => {
            let slices = node.slices().map_or(&[][..], Vec::as_slice);
            let source = sources::named(text, destination.ip(), node, Pods::of(node, slices))
                .map_err(|why| service_name::no_source(node, &why))?;
            wanted.from_host = source.entry == Entry::Host;
            wanted.from_links = !wanted.from_host;
            wanted.source = source.addr;
        }
    }
    Ok(wanted)
}

impl Seen {
    /// Returns where the packet came from.
    pub(super) fn source(&self, node: &NodeSnapshot<'_>) -> Result<Source, Failure> {
        let slices = node.slices().map_or(&[][..], Vec::as_slice);
        let from = self.packet.sent.source.ip().to_string();
        let to = self.packet.sent.destination.ip();
        Ok(sources::named(&from, to, node, Pods::of(node, slices))?)
    }

    /// Compares the packet with the computed path.
    pub(super) fn compare(
        &self,
        walk: &[Outcome],
        assumed: bool,
        nft_is_other: bool,
        trace: &SourceTrace,
        owners: &Owners,
        node: &NodeSnapshot<'_>,
    ) -> Option<Observation> {
        let means = Means {
            traced: &self.traced,
            numbered: !assumed,
            from_the_beginning: self.proto == Proto::Tcp,
            nft_is_other,
        };
        let compared = observed::compare(walk, &self.packet, &means)?;
        let link = |index: u32| {
            let links = node.links().map_or(&[][..], |links| links.all.as_slice());
            let found = links.iter().find(|link| link.index == index);
            found.map_or_else(|| format!("link {index}"), |link| link.name.clone())
        };
        let row = |hop: &Hop| row(hop, owners);
        Some(Observation::new(
            &self.packet,
            self.proto,
            &compared,
            trace,
            row,
            link,
        ))
    }
}
