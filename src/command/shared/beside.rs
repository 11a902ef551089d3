//! The states of the other nodes that connections go to, read before the examined nodes.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};

use super::failure::Failure;
use super::nodes::{Touched, visit};
use super::session::Session;
use crate::cli::nodes::NodesArgs;
use crate::view::head;
use kpx_judge::check;
use kpx_judge::trace::question::whole_needs;
use kpx_judge::verdict::Across;
use kpx_judge::why;
use kpx_node::evidence::{Evidence, Item};
use kpx_node::node::NodeSnapshot;

/// Other nodes whose states are kept in memory.
const MOST: usize = 64;

/// The states of other nodes, shared by all examined nodes until kpx ends.
#[derive(Debug)]
pub(in crate::command) struct Others {
    /// The evidence of each, or the reason why it was not read.
    nodes: BTreeMap<String, Result<&'static Evidence, String>>,
    /// The same, parsed on first use.
    across: &'static Across<'static>,
    /// Whether the evidence is all that the command reads of a node.
    is_whole: bool,
}

impl Others {
    /// Returns the states of `nodes`; of more nodes, those in `left_out` were not read.
    fn new(
        nodes: BTreeMap<String, Result<Evidence, String>>,
        left_out: BTreeSet<String>,
        is_whole: bool,
    ) -> Self {
        let nodes = nodes.into_iter().map(|(name, read)| {
            let read = read.map(|evidence| &*Box::leak(Box::new(evidence)));
            (name, read)
        });
        let nodes: BTreeMap<String, Result<&'static Evidence, String>> = nodes.collect();
        let too_many = format!("connections are followed to {MOST} nodes at most");
        let left_out = left_out
            .into_iter()
            .map(|name| (name, Err(too_many.clone())));
        Self {
            across: Box::leak(Box::new(Across::new(
                nodes.clone().into_iter().chain(left_out),
            ))),
            nodes,
            is_whole,
        }
    }

    /// Returns the states, parsed on first use.
    pub(in crate::command) const fn across(&self) -> &'static Across<'static> {
        self.across
    }

    /// Returns the evidence of the node `name` if it need not be read again: it has all items of the command, or the node
    /// cannot be read.
    pub(super) fn read(&self, name: &str) -> Option<Result<&'static Evidence, &str>> {
        match self.nodes.get(name)? {
            Ok(evidence) => self.is_whole.then_some(Ok(*evidence)),
            Err(reason) => Some(Err(reason)),
        }
    }
}

/// Nodes of a cluster of which all states are kept in memory.
const MOST_JOINED: usize = 32;

/// The items that the verdict on all Services reads of other nodes.
fn of_all_services() -> Reading {
    let items: BTreeSet<Item> = head::judged().chain(whole_needs()).collect();
    Reading {
        items: items.into_iter().collect(),
        is_whole: false,
    }
}

/// Returns the nodes of `cluster`: each of them has endpoints. The states of more nodes take too much memory.
fn every_node(cluster: &Evidence) -> BTreeSet<String> {
    let cluster = NodeSnapshot::new(cluster);
    let nodes = cluster.nodes().map_or(&[][..], Vec::as_slice);
    let few = nodes.iter().filter(|_| nodes.len() <= MOST_JOINED);
    few.map(|node| node.metadata.name.clone()).collect()
}

/// Returns the session with the states of other nodes of its bundle, if it is a bundle of all nodes and `--node` names one.
pub(in crate::command) async fn in_bundle(
    session: &Session,
    reading: Reading,
    touched: impl Fn(&Evidence) -> BTreeSet<String> + Send + Sync + 'static,
) -> Session {
    let is_asked = session.source.is_bundle() && session.name().is_some();
    if !is_asked || session.one_of_several || session.others.is_some() {
        return session.clone();
    }
    let all = NodesArgs {
        all_nodes: true,
        ..NodesArgs::one()
    };
    match beside(&session.named(None), &all, reading, touched).await {
        Ok(read) => session.beside(read.others),
        // It is a bundle of one node, or cannot be read, which the command reports.
        Err(_) => session.clone(),
    }
}

/// Returns the session in which connections to every Service are followed to the other nodes of its bundle, if it is a bundle of
/// all nodes and `--node` names one: for commands that judge all Services.
pub(in crate::command) async fn in_whole_bundle(session: &Session) -> Session {
    let mut items = check::needs(&check::asked(None));
    items.extend(why::needs());
    items.extend(of_all_services().items);
    let reading = Reading {
        items: items.into_iter().collect(),
        is_whole: false,
    };
    in_bundle(session, reading, every_node).await
}

/// Returns the session in which connections to every Service are followed to the nodes that `args` selects.
pub(in crate::command) async fn beside_all(
    session: &Session,
    args: &NodesArgs,
) -> Result<Session, Failure> {
    beside(session, args, of_all_services(), every_node).await
}

/// The items that are read of other nodes.
pub(in crate::command) struct Reading {
    pub(in crate::command) items: Vec<Item>,
    /// Whether that is all that the command reads of a node.
    pub(in crate::command) is_whole: bool,
}

/// Returns the session that has the states of the nodes that `touched` returns for the objects of the cluster, as far as `args`
/// selects them.
pub(in crate::command) async fn beside(
    session: &Session,
    args: &NodesArgs,
    reading: Reading,
    touched: impl Fn(&Evidence) -> BTreeSet<String> + Send + Sync + 'static,
) -> Result<Session, Failure> {
    let Reading { items, is_whole } = reading;
    let work = async move |session: Session, _: String| session.gather(&items).await;
    let mut nodes: BTreeMap<String, Result<Evidence, String>> = BTreeMap::new();
    let left_out = Arc::new(Mutex::new(BTreeSet::new()));
    let wanted: Arc<Touched> = {
        let left_out = Arc::clone(&left_out);
        Arc::new(move |cluster| {
            let mut all = touched(cluster);
            let rest = all.iter().nth(MOST).cloned();
            let rest = rest.map_or_else(BTreeSet::new, |first| all.split_off(&first));
            *left_out.lock().unwrap_or_else(PoisonError::into_inner) = rest;
            all
        })
    };
    visit(session, args, Some(wanted), work, |name, read| {
        nodes.insert(name.to_owned(), read);
        Ok(())
    })
    .await?;
    let left_out = std::mem::take(&mut *left_out.lock().unwrap_or_else(PoisonError::into_inner));
    let others = Others::new(nodes, left_out, is_whole);
    Ok(session.beside(Some(Arc::new(others))))
}
