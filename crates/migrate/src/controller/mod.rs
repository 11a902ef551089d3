//! Controllers of the bridge: they keep it up to date, keep its lease, and remove it when it is no longer needed.
//!
//! - [`follow`] updates the bridge when Services or endpoints change.
//! - [`guard`] does the same while no other kpx works on the node, and removes the bridge once kube-proxy serves alone.
//! - [`keep`] renews the lease of the bridge. It runs at the same time as the others, on a thread of its own.

pub mod follow;
pub mod guard;
pub mod keep;

use thiserror::Error;

use super::journal::MigrationState;
use super::node::Node;
use keep::Keeper;
pub use keep::LeaseNode;
use kpx_judge::bridge::{self, Lease, Marks, TABLE, Unbuildable};
use kpx_judge::plan::{self, Plan, Served};
use kpx_node::apply::StepError;
use kpx_node::backend::Mode;
use kpx_node::backend::nftables::model::Table;
use kpx_node::cluster::{EndpointSlice, Service};
use kpx_node::evidence::{Gap, Item};
use kpx_node::net::Family;
use kpx_node::node::NodeSnapshot;
use kpx_node::node::desired::{self, Basis};

/// A node with a bridge, and its cluster, which is watched.
pub trait BridgeNode: Node + LeaseNode {
    /// Returns the name of the Node, where it is known.
    fn name(&self) -> Option<&str>;
    /// Returns the families that the bridge serves.
    fn families(&self) -> &[Family];
    /// Returns the keeper of the bridge's lease.
    fn keeper(&self) -> &Keeper;
    /// Lists Services and EndpointSlices, and watches them from then on.
    fn watch(&mut self) -> impl Future<Output = Result<(), Gap>>;
    /// Returns the Services and EndpointSlices as of the last change.
    fn objects(&mut self) -> (Vec<Service>, Vec<EndpointSlice>);
    /// Waits for a change of the cluster, at most for `limit`: `None` if there was none. After an error, the next call
    /// watches again.
    fn change(
        &mut self,
        limit: std::time::Duration,
    ) -> impl Future<Output = Option<Result<(), Gap>>>;
}

/// A node that a guard works on: other kpx processes may work on it, too.
pub trait GuardedNode: BridgeNode {
    /// Becomes the node's only guard; `false` if another process is.
    fn claim(&mut self) -> Result<bool, ControllerError>;
    /// Stops being the node's guard.
    fn disclaim(&mut self);
    /// Locks the node for changes; `false` if another process holds the lock.
    fn lock(&mut self) -> Result<bool, ControllerError>;
    /// Releases the lock.
    fn unlock(&mut self);
    /// Returns the newest migration of the node; `None` if there is none.
    fn migration(&mut self) -> Result<Option<MigrationState>, ControllerError>;
    /// Records that another program deleted the bridge of the newest migration, whose loss is not known.
    fn record_gap(&mut self) -> Result<(), ControllerError>;
    /// Returns whether the cluster's objects cannot change, because they are read from a bundle or not at all.
    fn is_fixed(&self) -> bool;
}

/// Why a controller failed.
#[derive(Debug, Error)]
pub enum ControllerError {
    /// Data is missing.
    #[error(transparent)]
    Gap(#[from] Gap),
    /// The bridge cannot be built.
    #[error(transparent)]
    Unbuildable(#[from] Unbuildable),
    /// The cluster cannot be watched.
    #[error(transparent)]
    Watch(Gap),
    /// A change failed.
    #[error(transparent)]
    Step(#[from] StepError),
    /// The bridge could not be updated.
    #[error("the bridge is unchanged")]
    Update(#[source] StepError),
    /// The journal or a lock cannot be read.
    #[error("{0}")]
    Local(String),
}

impl ControllerError {
    /// Returns the error and its cause in one line.
    fn in_full(&self) -> String {
        match self {
            Self::Update(cause) => format!("{self}: {cause}"),
            _ => self.to_string(),
        }
    }
}

/// The input of a bridge.
pub fn needs() -> Vec<Item> {
    [desired::NEEDS, plan::BRIDGE_RULES].concat()
}

/// Returns whether the node has a bridge in at least one family.
pub async fn has_bridge(node: &mut impl LeaseNode) -> Result<bool, Gap> {
    let tables = node.tables().await?;
    Ok(tables.iter().any(|(_, name)| name == TABLE))
}

/// Adds and removes kpx's routes until they match the addresses of kube-ipvs0, while the bridge stands; returns the
/// titles of the steps.
async fn keep_routes<N: BridgeNode>(
    node: &mut N,
    served: &Served,
) -> Result<Vec<String>, ControllerError> {
    let evidence = node.read(plan::ROUTE_NEEDS).await;
    let plan = plan::routes_up(&NodeSnapshot::new(&evidence), served, node.families())?;
    if plan.steps.is_empty() || !has_bridge(node).await? {
        return Ok(Vec::new());
    }
    apply_steps(&plan, node).await
}

/// Removes kpx's routes; returns the titles of the steps.
async fn remove_routes<N: BridgeNode>(node: &mut N) -> Result<Vec<String>, ControllerError> {
    let evidence = node.read(plan::ROUTE_NEEDS).await;
    let plan = plan::routes_down(&NodeSnapshot::new(&evidence), node.families())?;
    apply_steps(&plan, node).await
}

async fn apply_steps<N: BridgeNode>(
    plan: &Plan,
    node: &mut N,
) -> Result<Vec<String>, ControllerError> {
    for step in &plan.steps {
        node.apply(&step.action).await?;
    }
    Ok(plan.steps.iter().map(|step| step.title.clone()).collect())
}

/// The part of the bridge's input that is read once; the rest is the watched cluster.
#[derive(Debug)]
struct Picture {
    basis: Basis,
    marks: Marks,
}

impl Picture {
    /// Reads the node for a bridge that serves as `mode`, and starts to watch the cluster.
    async fn take<N: BridgeNode>(node: &mut N, mode: Mode) -> Result<Self, ControllerError> {
        let mut items = needs();
        items.retain(|item| !matches!(item, Item::Services | Item::EndpointSlices));
        let evidence = node.read(&items).await;
        let snapshot = NodeSnapshot::new(&evidence).called(node.name());
        let known = || -> Result<_, Unbuildable> {
            snapshot.nodes()?;
            let basis = snapshot.basis(mode)?;
            let marks = bridge::marks(&snapshot, &basis.desired(&[], &[]))?;
            Ok((basis, marks))
        };
        let (basis, marks) = known()?;
        node.watch().await.map_err(ControllerError::Watch)?;
        Ok(Self { basis, marks })
    }

    /// Returns the tables that the node should have now, with `lease`, and the input of its routes.
    fn tables<N: BridgeNode>(
        &self,
        node: &mut N,
        lease: &Lease,
    ) -> Result<(Vec<Table>, Served), Gap> {
        let (services, slices) = node.objects();
        let state = self.basis.desired(&services, &slices);
        let tables = bridge::tables(&state, node.families(), self.marks, lease)?;
        Ok((tables, Served::of(&state)))
    }
}
