//! `kpx show`

use color_eyre::eyre::eyre;

use super::args::ShowArgs;
use super::report::ShowReport;
use super::report::nodes::ShowOfNodes;
use crate::command::shared::beside::{Others, beside_all, in_whole_bundle};
use crate::command::shared::failure::Failure;
use crate::command::shared::identity::{next_command, reach_all};
use crate::command::shared::io::Io;
use crate::command::shared::nodes;
use crate::command::shared::run_checks::examine_with;
use crate::command::shared::service_name;
use crate::command::shared::session::Session;
use crate::view::did_you_mean::meant;
use crate::view::{self, Query, Shown, View};
use kpx_judge::why::{self, Look};
use kpx_node::evidence::Item;

pub(in crate::command) async fn run(
    session: &Session,
    io: &mut Io<'_>,
    args: &ShowArgs,
) -> Result<u8, Failure> {
    let args = &named(session, args).await?;
    if let Some(namespace) = args.namespace().filter(|_| !args.view.joins_names()) {
        return Err(Failure::usage(format!(
            "the view of {} has nothing of namespace {namespace}: omit --namespace",
            args.view.name()
        )));
    }
    let judges = matches!(args.view, View::Services | View::Nodeports);
    if args.nodes.are_several() {
        let (args, nodes) = (args.clone(), args.nodes.clone());
        let session = if judges {
            &beside_all(session, &nodes).await?
        } else {
            session
        };
        let work = async move |session: Session| view(&session, &args).await;
        return nodes::report::<ShowOfNodes>(session, io, &nodes, &[], work).await;
    }
    let session = if judges {
        &in_whole_bundle(session).await
    } else {
        session
    };
    let report = view(session, args).await?;
    found(args, &report)?;
    inhabited(args, &report)?;
    session.finish(io, &report)
}

/// Returns `args` with the full name of the Service, if a Service is named.
async fn named(session: &Session, args: &ShowArgs) -> Result<ShowArgs, Failure> {
    let mut args = args.clone();
    if let Some(name) = &args.name
        && (args.view == View::Services || args.service.is_given(name))
    {
        args.name = Some(service_name::target(session, name, &args.service).await?);
    }
    Ok(args)
}

/// The view of all Services.
const SERVICES: Query<'static> = Query {
    view: View::Services,
    name: None,
    namespace: None,
    family: None,
    across: None,
};

/// Returns the items that [`services`] reads.
pub(in crate::command) fn services_need() -> Vec<Item> {
    SERVICES.needs().into_iter().chain(why::needs()).collect()
}

/// Returns the query for all Services.
fn all(session: &Session) -> Query<'static> {
    Query {
        family: session.family(),
        across: session.others.as_deref().map(Others::across),
        ..SERVICES
    }
}

/// Returns the view of all Services; of those that fail, with the cause.
pub(in crate::command) async fn services(session: &Session) -> Result<ShowReport, Failure> {
    let query = all(session);
    let evidence = session.gather(&query.needs()).await?;
    let mut shown = view::show(&session.node(&evidence), query);
    if shown.has_failing() {
        let (case, outcomes) = examine_with(session, services_need()).await?;
        let node = session.node(&case.evidence);
        let look = Look::of_rules(&node, session.families(), &outcomes);
        shown.explain(&match query.across {
            Some(across) => look.beside(across),
            None => look,
        });
    }
    Ok(ShowReport::new(shown))
}

async fn view(session: &Session, args: &ShowArgs) -> Result<ShowReport, Failure> {
    let query = Query {
        view: args.view,
        name: args.name.as_deref(),
        namespace: args.namespace(),
        family: session.family(),
        across: session.others.as_deref().map(Others::across),
    };
    // Of several nodes, only the rows are compared.
    if query.may_be_page() && !session.one_of_several {
        let items = why::needs().into_iter().chain(query.needs());
        let (case, outcomes) = examine_with(session, items).await?;
        let node = session.node(&case.evidence);
        let mut shown = view::show(&node, query);
        shown.assess(&node, session.families(), &outcomes);
        reach_all(session, shown.fixes_mut());
        lead(session, &mut shown);
        return Ok(ShowReport::new(shown));
    }
    let evidence = session.gather(&query.needs()).await?;
    let node = session.node(&evidence);
    let mut shown = view::show(&node, query);
    if !session.one_of_several {
        lead(session, &mut shown);
    }
    Ok(ShowReport::new(shown))
}

/// Adds the next command.
fn lead(session: &Session, shown: &mut Shown) {
    shown.lead(|name| next_command(session, ["why".to_owned(), name]));
}

/// Fails if nothing has the name that was asked for.
fn found(args: &ShowArgs, report: &ShowReport) -> Result<(), Failure> {
    let (Some(name), Some(near)) = (&args.name, report.not_found()) else {
        return Ok(());
    };
    let meant = meant(near).map_or_else(String::new, |meant| format!(": {meant}"));
    let what = format!("{name} not found{meant}");
    // A part that was not read may have it.
    let failure = match report.gaps().first() {
        Some(gap) => Failure::from(eyre!("unknown: {gap}").wrap_err(what)).unknown(),
        None => Failure::from(eyre!(what)).absent(),
    };
    let is_port = args.view == View::Services && name.contains(':');
    Err(
        failure.with_hint(match name.rsplit_once(':').filter(|_| is_port) {
            Some((service, _)) => format!("`kpx show services {service}` shows its ports"),
            None => format!(
                "without a name, the view of {} lists all rows",
                args.view.name()
            ),
        }),
    )
}

/// Fails if the view of Services has none in the namespace that was asked for.
fn inhabited(args: &ShowArgs, report: &ShowReport) -> Result<(), Failure> {
    let Some(namespace) = args.namespace() else {
        return Ok(());
    };
    if args.view != View::Services || !report.services().is_empty() || !report.gaps().is_empty() {
        return Ok(());
    }
    Err(Failure::from(eyre!(
        "namespace {namespace} has no Services that the node knows"
    ))
    .absent()
    .with_hint("`kpx show services` lists those of all namespaces"))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use super::*;
    use crate::render::{self, Format, Report as _, Style};
    use kpx_node::evidence::{self, ITEMS};
    use kpx_node::node::NodeSnapshot;

    const VIEWS: [View; 12] = [
        View::Services,
        View::Chains,
        View::Ipvs,
        View::Sets,
        View::Addresses,
        View::Nodeports,
        View::Portals,
        View::Conntrack,
        View::Affinity,
        View::Modules,
        View::Sysctls,
        View::Config,
    ];

    /// Returns `report` in `format`, at 80 columns.
    fn printed(report: &ShowReport, format: Format) -> String {
        let style = Style {
            width: 80,
            color: false,
            ascii: false,
            wide: false,
            verbose: 0,
            program: "kpx",
        };
        let mut out = Vec::new();
        render::write(report, None, format, style, &mut out).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn every_view_shows_every_recording() {
        let recordings = Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata/nodes");
        for recording in fs::read_dir(recordings).unwrap() {
            let path = recording.unwrap().path();
            let evidence = evidence::load(&path, ITEMS).unwrap();
            // One node for all views: each section is parsed once.
            let node = NodeSnapshot::new(&evidence);
            for view in VIEWS {
                let query = Query {
                    view,
                    name: None,
                    namespace: None,
                    family: None,
                    across: None,
                };
                let report = ShowReport::new(view::show(&node, query));
                let what = format!("{} {view:?}", path.display());
                let text = printed(&report, Format::Human);
                let is_unknown = text.contains("unknown: ");
                assert_eq!(report.exit() == 3, is_unknown, "{what}: {text}");
                assert!(matches!(report.exit(), 0 | 3), "{what}: {text}");
                assert!(!text.is_empty(), "{what} prints nothing");
                let wide = text.lines().find(|line| line.chars().count() > 80);
                assert_eq!(wide, None, "{what}");
                let json = printed(&report, Format::Json);
                let json: serde_json::Value = serde_json::from_str(&json).unwrap();
                assert_eq!(json["kind"], "ShowReport", "{what}");
            }
        }
    }
}
