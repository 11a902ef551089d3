//! `kpx access`

use super::args::AccessArgs;
use super::report::{AccessReport, Grant};
use crate::command::shared::failure::Failure;
use crate::command::shared::io::Io;
use crate::command::shared::session::Session;
use crate::report::CLEAN;
use kpx_host::{self as host, Reviewed};
use kpx_node::access::{self, Request, Selection};

pub(in crate::command) async fn run(
    session: &Session,
    io: &mut Io<'_>,
    args: &AccessArgs,
) -> Result<u8, Failure> {
    let selection = Selection {
        command: args.command.as_deref(),
        nodes: args.all_nodes || session.name().is_some(),
    };
    if args.manifest {
        if session.output.is_some() {
            let what = "--manifest prints YAML for `kubectl apply`, not a report: omit -o";
            return Err(Failure::usage(what));
        }
        let text = access::manifest(selection, &args.subject);
        io.out.write_all(text.as_bytes())?;
        return Ok(CLEAN);
    }
    if session.source.is_bundle() {
        let what = "the API server reports the permissions, but --from reads a bundle: omit --from";
        return Err(Failure::usage(what));
    }
    let mut report = AccessReport::new(selection);
    let asked: Vec<Request> = report.requests().collect();
    let grants = match host::review(&asked, &session.host).await {
        Ok(reviewed) => {
            report.credentials = reviewed.credentials;
            reviewed.answers.into_iter().map(grant).collect()
        }
        Err(why) => vec![Grant::Unknown(why); asked.len()],
    };
    report.record(&grants);
    session.finish(io, &report)
}

fn grant(answer: Reviewed) -> Grant {
    match answer {
        Reviewed::Allowed => Grant::Allowed,
        Reviewed::Denied => Grant::Missing,
        Reviewed::Unknown(why) => Grant::Unknown(why),
    }
}
