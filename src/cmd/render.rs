//! `kpx render`

use super::failure::{Failure, Hint as _};
use super::{Io, families, gather};
use crate::backend::program::{self, Part};
use crate::cli::{Global, PartArg, RenderArgs};
use crate::diff;
use crate::net::Family;
use crate::node::NodeSnapshot;
use crate::report::program::{ProgramReport, Text};

pub(super) async fn run(
    global: &Global,
    io: &mut Io<'_>,
    args: &RenderArgs,
) -> Result<ProgramReport, Failure> {
    let mode = super::diff::mode_of(global, io, args.mode).await?;
    let evidence = gather(global, io, &diff::needs(mode)).await?;
    let node = NodeSnapshot::new(&evidence).called(global.node.as_deref());
    let desired = node
        .desired(mode)
        .hint("`kpx snapshot -v` says what of the node and its cluster can be read")?;
    let families: Vec<Family> = families(global)
        .into_iter()
        .filter(|&family| desired.family(family).is_some())
        .collect();
    let parts = Part::of(mode, &families);
    let parts: Vec<_> = match args.part {
        None => parts,
        Some(wanted) => {
            let mut of = parts.into_iter().filter(|part| part.name() == name(wanted));
            let Some(first) = of.next() else {
                return Err(Failure::usage(format!(
                    "mode {mode} programs nothing of the kind {}",
                    name(wanted)
                )));
            };
            if of.next().is_some() && !global.quiet {
                writeln!(
                    io.err,
                    "kpx: these are the rules of IPv4; `--family 6` gives those of IPv6"
                )?;
            }
            vec![first]
        }
    };
    let cidrs = diff::service_cidrs(&node);
    let texts = parts.into_iter().map(|part| {
        let text = program::text(desired, part, &families, &cidrs)?;
        Ok(Text::new(part, text))
    });
    let texts: Result<Vec<_>, crate::evidence::Gap> = texts.collect();
    Ok(ProgramReport {
        mode,
        parts: texts?,
        notes: desired.notes.clone(),
        bare: args.part.is_some(),
    })
}

const fn name(part: PartArg) -> &'static str {
    match part {
        PartArg::Iptables => "iptables",
        PartArg::Ipset => "ipset",
        PartArg::Ipvs => "ipvs",
        PartArg::Addresses => "addresses",
        PartArg::Nftables => "nftables",
        PartArg::Sysctl => "sysctl",
    }
}
