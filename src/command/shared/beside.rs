//! The states of the other nodes that connections go to, read before the nodes that are asked.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::failure::Failure;
use super::nodes::{Wanted, visit};
use super::session::Session;
use crate::cli::nodes::NodesArgs;
use crate::evidence::{Evidence, Item};
use crate::verdict::Across;

/// Other nodes whose states are kept in memory.
const MOST: usize = 64;

/// The states of other nodes.
#[derive(Debug, Default)]
pub(in crate::command) struct Others {
    /// The evidence of each, or the reason why it was not read.
    nodes: BTreeMap<String, Result<Evidence, String>>,
    /// Whether the evidence is all that the command reads of a node.
    is_whole: bool,
}

impl Others {
    /// Returns the states, parsed on first use.
    pub(in crate::command) fn across(&self) -> Across<'_> {
        let all = self.nodes.iter();
        Across::new(all.map(|(name, read)| (name.clone(), read.as_ref().map_err(Clone::clone))))
    }

    /// Returns the evidence of the node `name`, if it is all that the command reads.
    pub(super) fn whole(&self, name: &str) -> Option<&Evidence> {
        let read = self.nodes.get(name).filter(|_| self.is_whole)?;
        read.as_ref().ok()
    }
}

/// Returns the session that has the states of other nodes of its bundle, if that is one of all nodes of which `--node` names one.
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
        Ok(read) => Session {
            others: read.others,
            ..session.clone()
        },
        // It is a bundle of one node, or cannot be read, which the command reports.
        Err(_) => session.clone(),
    }
}

/// What is read of other nodes.
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
    let wanted = Wanted {
        touched: Arc::new(touched),
        most: MOST,
    };
    visit(session, args, Some(wanted), work, |name, read| {
        nodes.insert(name.to_owned(), read);
        Ok(())
    })
    .await?;
    Ok(Session {
        others: Some(Arc::new(Others { nodes, is_whole })),
        ..session.clone()
    })
}
