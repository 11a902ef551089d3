//! The keeper: renews the lease of the bridge while kpx does other work.

use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::node::Clock;
use kpx_judge::bridge::{Held, Lease, TABLE};
use kpx_node::apply::StepError;
use kpx_node::backend::nftables::model::Table;
use kpx_node::backend::nftables::parse;
use kpx_node::evidence::Gap;

/// The tables of a node's bridge and their lease.
pub trait LeaseNode: Clock {
    /// Returns the family and name of every nftables table.
    fn tables(&mut self) -> impl Future<Output = Result<Vec<(&'static str, String)>, Gap>>;
    /// Returns the set of the lease in the bridge's table of `family`, as `nft` prints it.
    fn lease_set(&mut self, family: &'static str) -> impl Future<Output = Result<String, Gap>>;
    /// Renews the lease by `input`, a transaction of `nft` that needs no lock.
    fn renew(&mut self, input: &str) -> impl Future<Output = Result<(), StepError>>;
}

/// How often the order is read and the lease is checked.
const TICK: Duration = Duration::from_secs(1);

/// The order of a keeper of the lease.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[repr(u8)]
pub enum Order {
    /// Nothing: the lease expires.
    Rest,
    /// Renews it unless it has expired: an expired bridge may be long out of date.
    Keep,
    /// Renews it even if it has expired.
    Revive,
}

/// A handle on the keeper, which may run on another thread. Clones share it.
#[derive(Clone, Debug)]
pub struct Keeper {
    lease: Lease,
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    order: AtomicU8,
    /// Whether the lease expired although the keeper had to renew it.
    lost: AtomicBool,
    /// The last error that was not reported yet.
    error: Mutex<Option<String>>,
}

impl Keeper {
    /// Returns a keeper of `lease` with an order.
    pub fn new(lease: Lease, order: Order) -> Self {
        let shared = Shared {
            order: AtomicU8::new(order as u8),
            lost: AtomicBool::new(false),
            error: Mutex::default(),
        };
        Self {
            lease,
            shared: Arc::new(shared),
        }
    }

    /// Replaces the order.
    pub fn order(&self, order: Order) {
        self.shared.order.store(order as u8, Ordering::Relaxed);
    }

    /// Returns whether the lease expired since the last call; the bridge must then be loaded again.
    pub fn has_lost(&self) -> bool {
        self.shared.lost.swap(false, Ordering::Relaxed)
    }

    /// Returns why the lease could not be renewed since the last call.
    pub fn error(&self) -> Option<String> {
        self.shared.error.lock().ok()?.take()
    }

    /// Returns the lease that a bridge is loaded with.
    pub const fn lease(&self) -> &Lease {
        &self.lease
    }

    /// Renews the lease of `node`'s bridge as ordered, for as long as this future is polled.
    pub async fn run<N: LeaseNode>(&self, node: &mut N) {
        // The time since the last renewal, if it succeeded.
        let mut since = None;
        loop {
            let order = self.shared.order.load(Ordering::Relaxed);
            if order == Order::Rest as u8 {
                since = None;
            } else if since.is_none_or(|since| since >= self.lease.beat()) {
                let revive = order == Order::Revive as u8;
                // After an error, the next tick tries again.
                since = match renew(node, &self.lease, revive).await {
                    Ok(true) => Some(Duration::ZERO),
                    Ok(false) => {
                        self.shared.lost.store(true, Ordering::Relaxed);
                        None
                    }
                    Err(why) => {
                        if let Ok(mut error) = self.shared.error.lock() {
                            *error = Some(why);
                        }
                        None
                    }
                };
            }
            node.pause(TICK).await;
            since = since.map(|since| since + TICK);
        }
    }
}

/// Renews the lease of every table of the bridge. Returns `false` if one had expired and was not revived.
async fn renew<N: LeaseNode>(node: &mut N, lease: &Lease, revive: bool) -> Result<bool, String> {
    let mut families = Vec::new();
    let mut whole = true;
    for (family, held) in leases(node).await.map_err(|gap| gap.to_string())? {
        match held {
            Held::Endless => {}
            Held::Expired if !revive => whole = false,
            Held::Expired | Held::Left { .. } => families.push(family),
        }
    }
    if !families.is_empty() {
        let renewed = node.renew(&lease.renewal(&families)).await;
        renewed.map_err(|error: StepError| error.to_string())?;
    }
    Ok(whole)
}

/// Returns the lease of each table of the bridge.
async fn leases<N: LeaseNode>(node: &mut N) -> Result<Vec<(&'static str, Held)>, Gap> {
    let tables = node.tables().await?;
    let mut all = Vec::new();
    for (family, _) in tables.into_iter().filter(|(_, name)| name == TABLE) {
        // A table of an older kpx has no such set.
        let table = match node.lease_set(family).await {
            Ok(text) => parse::any(&text)?.tables.into_iter().next(),
            Err(Gap::Failed(..)) => None,
            Err(gap) => return Err(gap),
        };
        all.push((family, Held::of(&table.unwrap_or_else(Table::default))));
    }
    Ok(all)
}

/// Returns the remaining lease of the bridge: of the table that expires first; `None` if there is no bridge.
pub async fn held<N: LeaseNode>(node: &mut N) -> Result<Option<Held>, Gap> {
    let all = leases(node).await?;
    Ok(all.into_iter().map(|(_, held)| held).min())
}
