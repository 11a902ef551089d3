//! The keeper: renews the lease of the bridge as long as it is told to, whatever else kpx is busy with.

use std::io;
use std::process;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use color_eyre::eyre::Report;

use crate::backend::nftables::model::Table;
use crate::backend::nftables::parse;
use crate::bridge::{Held, LEASE, Lease, TABLE};
use crate::cli::Global;
use crate::cmd::options;
use crate::evidence::Gap;
use crate::host::{self, Aside, Options, clock};

/// Between two looks at what is to be done.
const TICK: Duration = Duration::from_secs(1);

/// What a keeper does about the lease.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[repr(u8)]
pub(in crate::cmd) enum Order {
    /// Nothing.
    Rest,
    /// Renews it, as long as it is not over: what stands then may be long out of date.
    Keep,
    /// Renews it, even one that is over.
    Revive,
}

/// Renews the lease until the last of its clones is dropped.
#[derive(Clone, Debug)]
pub(in crate::cmd) struct Keeper {
    lease: Lease,
    shared: Arc<Shared>,
    _aside: Arc<Aside>,
}

#[derive(Debug)]
struct Shared {
    order: AtomicU8,
    /// Whether a lease that was to be kept was found to be over.
    lost: AtomicBool,
    /// Why it cannot be renewed, where that was not told.
    trouble: Mutex<Option<String>>,
}

impl Keeper {
    /// Begins to do what `order` says about a lease of `time`, as `who`.
    pub(in crate::cmd) fn start(
        global: &Global,
        time: Duration,
        who: &str,
        order: Order,
    ) -> io::Result<Self> {
        let lease = Lease::of(time).kept_by(&format!("{who}, pid {}", process::id()));
        let shared = Arc::new(Shared {
            order: AtomicU8::new(order as u8),
            lost: AtomicBool::new(false),
            trouble: Mutex::default(),
        });
        let (options, theirs, told) = (options(global), lease.clone(), Arc::clone(&shared));
        let work = async move || keep(&options, &theirs, &told).await;
        let aside = Aside::start("bridge lease", work)?;
        Ok(Self {
            lease,
            shared,
            _aside: Arc::new(aside),
        })
    }

    /// Has it do what `order` says from now on.
    pub(super) fn order(&self, order: Order) {
        self.shared.order.store(order as u8, Ordering::Relaxed);
    }

    /// Returns whether the lease was over, and so the bridge has to be loaded anew, since this was asked last.
    pub(super) fn has_lost(&self) -> bool {
        self.shared.lost.swap(false, Ordering::Relaxed)
    }

    /// Returns why the lease cannot be renewed, since this was asked last.
    pub(super) fn trouble(&self) -> Option<String> {
        self.shared.trouble.lock().ok()?.take()
    }

    /// Returns the lease to load the bridge with.
    pub(super) const fn lease(&self) -> &Lease {
        &self.lease
    }
}

async fn keep(options: &Options, lease: &Lease, shared: &Shared) {
    // How long ago the lease was renewed, where it was.
    let mut since = None;
    loop {
        let order = shared.order.load(Ordering::Relaxed);
        if order == Order::Rest as u8 {
            since = None;
        } else if since.is_none_or(|since| since >= lease.beat()) {
            let revive = order == Order::Revive as u8;
            // What went wrong is tried again at once.
            since = match renew(options, lease, revive).await {
                Ok(true) => Some(Duration::ZERO),
                Ok(false) => {
                    shared.lost.store(true, Ordering::Relaxed);
                    None
                }
                Err(error) => {
                    if let Ok(mut trouble) = shared.trouble.lock() {
                        *trouble = Some(format!("{error:#}"));
                    }
                    None
                }
            };
        }
        clock::pause(TICK).await;
        since = since.map(|since| since + TICK);
    }
}

/// Renews the lease of every table of the bridge; returns whether there was none whose lease is over, and stays so.
async fn renew(options: &Options, lease: &Lease, revive: bool) -> Result<bool, Report> {
    let mut families = Vec::new();
    let mut whole = true;
    for (family, held) in leases(options).await? {
        match held {
            Held::Endless => {}
            Held::Expired if !revive => whole = false,
            Held::Expired | Held::Left { .. } => families.push(family),
        }
    }
    if !families.is_empty() {
        host::renew(options, &lease.renewal(&families)).await?;
    }
    Ok(whole)
}

/// Returns the lease of each table of the bridge.
async fn leases(options: &Options) -> Result<Vec<(&'static str, Held)>, Gap> {
    let tables = host::nft_tables(options).await?;
    let mut all = Vec::new();
    for (family, _) in tables.into_iter().filter(|(_, name)| name == TABLE) {
        // A table of an earlier kpx has no such set.
        let text = host::nft_set(options, family, TABLE, LEASE).await;
        let table = match text {
            Ok(text) => parse::text(&text)?.tables.into_iter().next(),
            Err(Gap::Failed(..)) => None,
            Err(gap) => return Err(gap),
        };
        all.push((family, Held::of(&table.unwrap_or_else(Table::default))));
    }
    Ok(all)
}

/// Returns how long the bridge serves if nobody renews its lease: the first of its tables to end; `None` where there is no
/// bridge.
pub(super) async fn held(global: &Global) -> Result<Option<Held>, Gap> {
    let all = leases(&options(global)).await?;
    Ok(all.into_iter().map(|(_, held)| held).min())
}
