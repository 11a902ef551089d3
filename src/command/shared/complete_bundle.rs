//! Completes a bundle with the cluster's objects that it lacks.

use std::path::Path;

use color_eyre::eyre::eyre;

use super::failure::Failure;
use super::session::Session;
use crate::render::Progress;
use kpx_host::{self as host, Connection};
use kpx_node::evidence::{self, Evidence, Gap, Item};
use kpx_node::node::NodeSnapshot;
use kpx_node::node::identity::NEEDS;

/// Items that the API server has for one node.
const OF_NODE: [Item; 2] = [Item::Pods, Item::Access];

/// Adds the `items` that describe the cluster and are not in `evidence`, which is from the bundle `path`.
pub(super) async fn complete(
    session: &Session,
    path: &Path,
    evidence: &mut Evidence,
    items: &[Item],
    progress: &Progress,
) -> Result<(), Failure> {
    let lacks = |item: &Item| item.is_of_cluster() && evidence.text(*item).is_err();
    let missing: Vec<Item> = items.iter().copied().filter(lacks).collect();
    if missing.is_empty() {
        return Ok(());
    }
    if evidence
        .manifest()
        .is_some_and(|manifest| manifest.redacted)
    {
        let error = eyre!(
            "cannot add the cluster's objects to {}: the bundle is redacted, so its names and addresses are not those of the \
             cluster",
            path.display()
        );
        return Err(Failure::from(error).with_hint(
            "use the bundle before its redaction, or omit the options that select a cluster",
        ));
    }
    let api = Connection::default();
    let (of_node, of_all): (Vec<Item>, Vec<Item>) =
        missing.iter().partition(|item| OF_NODE.contains(item));
    let done = |item: Item| progress.done(item.file());
    evidence.add(host::collect_cluster(&api, &of_all, "", &session.host, done).await);
    if of_node.is_empty() {
        return Ok(());
    }
    if let Some(name) = name(session, &api, path).await? {
        evidence.add(host::collect_cluster(&api, &of_node, &name, &session.host, done).await);
        return Ok(());
    }
    for item in of_node {
        let why = "the bundle does not name its node; pass --node NAME";
        evidence.insert(item, Err(Gap::Failed(item, why.to_owned())));
    }
    Ok(())
}

/// Returns the name of the bundle's node; `None` if it is unknown.
async fn name(session: &Session, api: &Connection, path: &Path) -> Result<Option<String>, Failure> {
    if let Some(name) = session.name() {
        return Ok(Some(name.to_owned()));
    }
    let mut bundle = evidence::load(path, NEEDS)?;
    if let Some(name) = bundle.manifest().and_then(|manifest| manifest.node.clone()) {
        return Ok(Some(name));
    }
    if bundle.text(Item::Nodes).is_err() {
        let nodes = host::collect_cluster(api, &[Item::Nodes], "", &session.host, |_| {}).await;
        bundle.extend(nodes);
    }
    Ok(NodeSnapshot::new(&bundle).name().ok())
}
