//! Commands over several nodes: `--all-nodes` and `-l`.

use std::collections::BTreeSet;
use std::io;
use std::num::NonZero;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;
use std::thread::available_parallelism;

use color_eyre::eyre::WrapErr as _;

use super::failure::{Failure, Hint as _, advice_on_api};
use super::output::Output;
use super::session::{Session, unreadable};
use crate::cli::nodes::NodesArgs;
use crate::command::shared::io::Io;
use crate::render::{self, Format, Origin, Progress, Report, Stream};
use crate::report::nodes::{NodesReport, Together};
use kpx_host::{Crew, Event, Push};
use kpx_node::cluster::selector::Selector;
use kpx_node::cluster::{self, Node};
use kpx_node::evidence::{self, BundleError, Evidence, Gap, ITEMS, Item};

/// The time for one node, in multiples of `--timeout`.
const LONGER: u32 = 12;

/// A format of one command: its text before the nodes, of a node, of a node that was not read, and after the nodes.
pub(in crate::command) struct NodeFormat<R> {
    pub(in crate::command) name: &'static str,
    pub(in crate::command) head: &'static str,
    pub(in crate::command) node: fn(&str, &R) -> String,
    pub(in crate::command) unread: fn(&str, &str) -> String,
    pub(in crate::command) tail: &'static str,
}

/// How the result of each node is written.
enum Writer<R: 'static> {
    Format(Format),
    Own(&'static NodeFormat<R>),
}

impl<R> Clone for Writer<R> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<R> Copy for Writer<R> {}

impl<R: Report> Writer<R> {
    fn of(session: &Session, formats: &'static [NodeFormat<R>]) -> Result<Self, Failure> {
        match &session.output {
            Some(Output::Format(format)) => Ok(Self::Format(*format)),
            Some(Output::Extra(name)) => {
                let own = formats.iter().find(|format| format.name == *name);
                own.map(Self::Own).ok_or_else(|| {
                    Failure::usage(format!("format {name} is for one node: pass --node NAME"))
                })
            }
            None => Ok(Self::Format(Format::Human)),
        }
    }

    fn entry(self, node: &str, report: &R, origin: Option<&Origin>) -> io::Result<Vec<u8>> {
        match self {
            Self::Format(format) => render::entry(node, report, origin, format),
            Self::Own(own) => Ok((own.node)(node, report).into_bytes()),
        }
    }

    fn unread(self, node: &str, error: &str) -> io::Result<Vec<u8>> {
        match self {
            Self::Format(format) => render::entry_of_error(node, error, format),
            Self::Own(own) => Ok((own.unread)(node, error).into_bytes()),
        }
    }
}

/// Runs `work` for each node that `args` selects, prints the report of all, and returns the exit status.
///
/// Each node's whole report is written as soon as it ends, in formats that have it, and only a small part is kept.
pub(in crate::command) async fn report<T: Together + Default>(
    session: &Session,
    io: &mut Io<'_>,
    args: &NodesArgs,
    formats: &'static [NodeFormat<T::Of>],
    work: impl AsyncFn(Session) -> Result<T::Of, Failure> + Send + Sync + 'static,
) -> Result<u8, Failure> {
    let work = async move |session: Session| Ok((work(session).await?, ()));
    let keep = |_: &str, _: Result<(), &str>| Ok(());
    let collected = collect(session, io, args, T::default(), formats, work, keep);
    let collected = Box::pin(collected).await?;
    collected.print(session, io)
}

/// The reports of all nodes, of which the entries are written.
pub(in crate::command) struct Collected<T: Together>
where
    T::Of: 'static,
{
    all: NodesReport<T>,
    writer: Writer<T::Of>,
    stream: Stream,
}

impl<T: Together> Collected<T> {
    /// Returns what the nodes have in common.
    pub(in crate::command) const fn together(&self) -> &T {
        &self.all.together
    }

    /// Returns the report.
    pub(in crate::command) fn into_report(self) -> NodesReport<T> {
        self.all
    }

    /// Prints the rest of the report, and returns the exit status.
    pub(in crate::command) fn print(
        self,
        session: &Session,
        io: &mut Io<'_>,
    ) -> Result<u8, Failure> {
        match self.writer {
            Writer::Format(format @ (Format::Human | Format::Wide)) => {
                render::write(&self.all, None, format, session.style, io.out)?;
            }
            Writer::Format(_) => self.stream.end(&self.all, io.out)?,
            Writer::Own(own) => io.out.write_all(own.tail.as_bytes())?,
        }
        Ok(self.all.exit())
    }
}

/// Runs `work` for each node that `args` selects, and writes its entry. Calls `keep` with the rest of the result of
/// `work`, or with the reason why the node was not read.
pub(in crate::command) async fn collect<T: Together, P: Send + 'static>(
    session: &Session,
    io: &mut Io<'_>,
    args: &NodesArgs,
    together: T,
    formats: &'static [NodeFormat<T::Of>],
    work: impl AsyncFn(Session) -> Result<(T::Of, P), Failure> + Send + Sync + 'static,
    mut keep: impl FnMut(&str, Result<P, &str>) -> Result<(), Failure>,
) -> Result<Collected<T>, Failure> {
    let writer = Writer::of(session, formats)?;
    let mut all = NodesReport::new(together);
    let mut begun = None;
    let work = async move |session: Session, node: String| -> Result<_, Failure> {
        let (report, kept) = work(session.clone()).await?;
        let origin = session.origin();
        let (exit, entry) = (
            report.exit(),
            writer.entry(&node, &report, origin.as_ref())?,
        );
        Ok((T::part(report), exit, entry, origin, kept))
    };
    let incomplete = visit(session, args, None, work, |node, result| {
        let stream = match &mut begun {
            Some(stream) => stream,
            none => none.insert(begin(writer, io)?),
        };
        let entry = match result {
            Ok((part, exit, entry, origin, kept)) => {
                keep(node, Ok(kept))?;
                all.origins.extend(origin);
                all.add(node, part, exit);
                entry
            }
            Err(error) => {
                keep(node, Err(&error))?;
                let entry = writer.unread(node, &error)?;
                all.add_unread(node, error);
                entry
            }
        };
        match writer {
            Writer::Format(_) => stream.add(&entry, io.out)?,
            Writer::Own(_) => io.out.write_all(&entry)?,
        }
        Ok(())
    })
    .await?;
    all.finish(incomplete);
    if all.nodes == 0 {
        return Err(no_nodes(args));
    }
    let stream = match begun {
        Some(stream) => stream,
        None => begin(writer, io)?,
    };
    Ok(Collected {
        all,
        writer,
        stream,
    })
}

fn begin<R>(writer: Writer<R>, io: &mut Io<'_>) -> io::Result<Stream> {
    match writer {
        Writer::Format(format) => Stream::begin(format, io.out),
        Writer::Own(own) => {
            io.out.write_all(own.head.as_bytes())?;
            Stream::begin(Format::Human, io.out)
        }
    }
}

/// Returns the error for a selection without nodes.
fn no_nodes(args: &NodesArgs) -> Failure {
    Failure::usage(match &args.selector {
        Some(selector) => format!("no node has the labels {selector}"),
        None => "there are no nodes".to_owned(),
    })
    .with_hint("`kubectl get nodes --show-labels` lists the nodes")
}

/// Returns the names of nodes, from the objects of the cluster.
pub(super) type Touched = dyn Fn(&Evidence) -> BTreeSet<String> + Send + Sync;

/// Runs `work` for each `wanted` node that `args` selects, `--parallel` at a time. Calls `each` with the result, or with the reason why
/// there is none, in the order in which the nodes end. Returns the reason why nodes are missing, if so.
///
/// `work` runs on threads of their own, so it may block. A node that takes too long is abandoned.
pub(super) async fn visit<T: Send + 'static>(
    session: &Session,
    args: &NodesArgs,
    wanted: Option<Arc<Touched>>,
    work: impl AsyncFn(Session, String) -> Result<T, Failure> + Send + Sync + 'static,
    mut each: impl FnMut(&str, Result<T, String>) -> Result<(), Failure>,
) -> Result<Option<String>, Failure> {
    let selector = args.selector.as_deref().map(Selector::parse).transpose();
    let selector = selector.map_err(|part| {
        Failure::usage(format!("{part:?} is not a requirement on a label"))
            .with_hint("pass -l a=b, a!=b, a, !a, 'a in (b,c)' or 'a notin (b,c)'")
    })?;
    if !session.nodes.is_empty() {
        return Err(Failure::usage(
            "--node names one node, but --all-nodes and -l read several: use one of them",
        ));
    }
    let live = match session.source.bundle() {
        Some(_) => None,
        None => Some(ClusterNodes::read(session, selector.as_ref(), wanted.as_ref()).await?),
    };
    let limit = session.host.timeout * LONGER;
    // A bundle is work for processors alone. More threads would only hold more memory.
    let processors = match session.source.bundle() {
        Some(_) => available_parallelism().map_or(usize::MAX, NonZero::get),
        None => usize::MAX,
    };
    let crew = Crew {
        parallel: args.parallel.min(processors),
        limit,
    };
    let progress = if session.progress {
        Progress::of_nodes(None, session.style.ascii)
    } else {
        Progress::silent()
    };
    let base = session.clone();
    let mut failed = None;
    let source = move |push: &mut Push<'_, Job>| match (live, base.source.bundle()) {
        (Some(live), _) => Ok(live.push(push)),
        (None, Some(_)) if base.source.foreign().is_some() => {
            foreign(selector.as_ref(), &base, push)
        }
        (None, Some(path)) => bundle(path, selector.as_ref(), wanted.as_ref(), &base, push),
        (None, None) => Ok(None),
    };
    let work = async move |name: String, job: Job| {
        let session = *job?;
        let done = if session.source.is_bundle() || session.source.is_in_memory() {
            work(session, name).await
        } else {
            through_pod(&session, name, &work).await
        };
        done.map_err(|failure| failure.to_string())
    };
    let visited = crew.visit(source, work, |name, event| {
        let result = match event {
            Event::Begun => {
                progress.begin(name);
                return ControlFlow::Continue(());
            }
            Event::Ended(result) => result,
            Event::Late => Err(format!(
                "it took longer than {limit:?}; a longer --timeout allows more"
            )),
            Event::Panicked => Err("kpx panicked: this is a bug in kpx".to_owned()),
        };
        progress.done(name);
        match each(name, result) {
            Ok(()) => ControlFlow::Continue(()),
            Err(failure) => {
                failed = Some(failure);
                ControlFlow::Break(())
            }
        }
    });
    let ended = visited.await.wrap_err("cannot start a thread for a node")?;
    match (failed, ended) {
        (Some(failure), _) => Err(failure),
        (None, Some(ended)) => ended,
        (None, None) => Ok(Some("the reading of the nodes stopped".to_owned())),
    }
}

/// Runs `work` with the node `name`, read through a pod on it.
async fn through_pod<T>(
    session: &Session,
    name: String,
    work: &impl AsyncFn(Session, String) -> Result<T, Failure>,
) -> Result<T, Failure> {
    let remote = Box::pin(session.at(&name)).await?;
    let done = work(remote.clone(), name).await;
    // A pod that cannot be deleted ends with kpx, and the node was read.
    remote.close().await.ok();
    done
}

/// The nodes of a live cluster, and the objects that all of them need.
struct ClusterNodes {
    names: Vec<String>,
    session: Session,
}

impl ClusterNodes {
    /// Reads the objects, and the names of the nodes that `selector` selects.
    async fn read(
        session: &Session,
        selector: Option<&Selector>,
        wanted: Option<&Arc<Touched>>,
    ) -> Result<Self, Failure> {
        let cluster = session.gather(OBJECTS).await?;
        let readable = "reading all nodes needs the API server: pass --kubeconfig FILE, or a bundle of all nodes with --from";
        let advice = |gap: Gap| {
            let advice = advice_on_api(&gap).unwrap_or(readable);
            Failure::from(gap).with_hint(advice)
        };
        let nodes: Vec<Node> = cluster::list(&cluster, Item::Nodes).map_err(advice)?;
        let names = match selector {
            Some(selector) => select(selector, &cluster).hint(readable)?,
            None => nodes.into_iter().map(|node| node.metadata.name).collect(),
        };
        let touched = wanted.map(|wanted| wanted(&cluster));
        let is_wanted = |name: &String| touched.as_ref().is_none_or(|all| all.contains(name));
        Ok(Self {
            names: names.into_iter().filter(is_wanted).collect(),
            session: session.sharing(cluster),
        })
    }

    /// Pushes the nodes; returns the reason why some are missing.
    fn push(self, push: &mut Push<'_, Job>) -> Option<String> {
        for name in self.names {
            let session = self.session.for_node(&name);
            let others = session.others.clone();
            let job = match others.as_ref().and_then(|others| others.read(&name)) {
                Some(Ok(evidence)) => Ok(Box::new(session.in_memory(evidence.clone()))),
                Some(Err(reason)) => Err(reason.to_owned()),
                None => Ok(Box::new(session)),
            };
            if push(name, job).is_break() {
                break;
            }
        }
        None
    }
}

/// Objects that are the same for all nodes.
const OBJECTS: &[Item] = &[
    Item::Services,
    Item::EndpointSlices,
    Item::Nodes,
    Item::ConfigMaps,
    Item::DaemonSets,
    Item::ServiceCidrs,
];

/// The session of a node, or the reason why it was not read.
type Job = Result<Box<Session>, String>;

/// Pushes the nodes of the bundle at `path`; returns the reason why nodes are missing.
fn bundle(
    path: &Path,
    selector: Option<&Selector>,
    wanted: Option<&Arc<Touched>>,
    session: &Session,
    push: &mut Push<'_, Job>,
) -> Result<Option<String>, Failure> {
    let mut selected = None;
    let mut touched = None;
    let ended = evidence::each_node(path, ITEMS, &mut |cluster, name, read| {
        if let Some(selector) = selector {
            let names = selected.get_or_insert_with(|| select(selector, cluster));
            match names {
                Ok(names) if !names.contains(name) => return ControlFlow::Continue(()),
                Ok(_) => {}
                Err(_) => return ControlFlow::Break(()),
            }
        }
        if let Some(wanted) = wanted
            && !touched
                .get_or_insert_with(|| wanted(cluster))
                .contains(name)
        {
            return ControlFlow::Continue(());
        }
        let job = read.map(|evidence| Box::new(session.for_node(name).in_memory(evidence)));
        push(name.to_owned(), job)
    });
    if let Some(Err(gap)) = selected {
        return Err(gap).hint("the labels of nodes come from the API objects: omit -l");
    }
    ended.map_err(|error: BundleError| unreadable(error))
}

/// Pushes the nodes of input that is no bundle of kpx.
fn foreign(
    selector: Option<&Selector>,
    session: &Session,
    push: &mut Push<'_, Job>,
) -> Result<Option<String>, Failure> {
    let all = session.source.foreign();
    for node in all.iter().flat_map(|foreign| &foreign.nodes) {
        let is_selected = match selector {
            None => true,
            Some(selector) => select(selector, &node.evidence)
                .hint("the labels of nodes come from the API objects: omit -l")?
                .contains(&node.name),
        };
        let name = if node.name.is_empty() {
            "node"
        } else {
            &node.name
        };
        let job = session.for_node(name).in_memory(node.evidence.clone());
        if is_selected && push(name.to_owned(), Ok(Box::new(job))).is_break() {
            break;
        }
    }
    Ok(None)
}

/// Returns the names of the nodes that `selector` selects.
fn select(selector: &Selector, cluster: &Evidence) -> Result<BTreeSet<String>, Gap> {
    let nodes: Vec<Node> = cluster::list(cluster, Item::Nodes)?;
    let selected = nodes
        .into_iter()
        .filter(|node| selector.matches(&node.metadata.labels));
    Ok(selected.map(|node| node.metadata.name).collect())
}
