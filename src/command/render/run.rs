//! `kpx render`

use super::args::RenderArgs;
use crate::command::shared::failure::Failure;
use crate::command::shared::io::Io;
use crate::command::shared::session::{Readable as _, Session};
use crate::report::program::{PartText, ProgramReport};
use kpx_judge::diff::{self, Layer};
use kpx_node::backend::Mode;
use kpx_node::backend::iptables::portals::unknown_ports;
use kpx_node::backend::program::{self, Part};
use kpx_node::net::Family;

pub(in crate::command) async fn run(
    session: &Session,
    io: &mut Io<'_>,
    args: &RenderArgs,
) -> Result<ProgramReport, Failure> {
    let mode = session.mode(args.mode).await?;
    let evidence = session.gather(&diff::needs(mode)).await?;
    let node = session.node(&evidence);
    let desired = node.desired(mode).readable()?;
    let families: Vec<Family> = session
        .families()
        .iter()
        .copied()
        .filter(|&family| desired.family(family).is_some())
        .collect();
    if mode == Mode::Userspace {
        return Err(unknown_ports()).readable();
    }
    let parts = Part::of(mode, &families);
    let parts: Vec<_> = match args.part {
        None => parts,
        Some(wanted) => {
            let mut of = parts.into_iter().filter(|part| layer(*part) == wanted);
            let Some(first) = of.next() else {
                let all = Part::of(mode, &families);
                let mut names: Vec<_> = all.iter().map(|part| part.name()).collect();
                names.dedup();
                return Err(Failure::usage(format!(
                    "mode {mode} has no such part: use one of {}",
                    names.join(", ")
                )));
            };
            if of.next().is_some() && !session.quiet {
                writeln!(
                    io.err,
                    "kpx: these are the IPv4 rules; pass `--family 6` for the IPv6 rules"
                )?;
            }
            vec![first]
        }
    };
    let cidrs = diff::service_cidrs(&node);
    let texts = parts.into_iter().map(|part| {
        let text = program::text(desired, part, &families, &cidrs)?;
        Ok(PartText::new(part, text))
    });
    let texts: Result<Vec<_>, kpx_node::evidence::Gap> = texts.collect();
    Ok(ProgramReport {
        mode,
        parts: texts?,
        notes: desired.notes.clone(),
        bare: args.part.is_some(),
    })
}

const fn layer(part: Part) -> Layer {
    match part {
        Part::Iptables(_) => Layer::Iptables,
        Part::Ipset => Layer::Ipset,
        Part::Ipvs => Layer::Ipvs,
        Part::Addresses => Layer::Link,
        Part::Nftables => Layer::Nftables,
        Part::Sysctl => Layer::Sysctl,
    }
}
