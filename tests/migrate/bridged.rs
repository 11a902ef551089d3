//! A node with a bridge whose time is simulated: its controllers run side by side, and each pause takes no time.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use kpx_judge::bridge::Lease;
use kpx_migrate::controller::keep::{Keeper, Order};
use kpx_migrate::controller::{BridgeNode, ControllerError, GuardedNode, LeaseNode};
use kpx_migrate::journal::MigrationState;
use kpx_migrate::node::{Clock, Node};
use kpx_node::action::Action;
use kpx_node::apply::{Apply, StepError};
use kpx_node::backend::Mode;
use kpx_node::cluster::{self, EndpointSlice, Service};
use kpx_node::evidence::{Evidence, Gap, Item, Time};
use kpx_node::net::Family;

use super::SMALL;
use super::machine::Machine;

/// The lease of the bridge, in seconds.
pub(super) const LEASE: u64 = 60;

/// Something that happens at a time, in seconds.
type Happening = (u64, Box<dyn FnOnce(&mut World)>);

/// The node, its cluster, and the time.
#[expect(clippy::struct_excessive_bools, reason = "each is a fact of its own")]
pub(super) struct World {
    pub(super) machine: Machine,
    /// The time, in milliseconds.
    now: u64,
    /// When a pause ends next.
    wakes: Vec<u64>,
    happenings: Vec<Happening>,
    services: Vec<Service>,
    slices: Vec<EndpointSlice>,
    changed: bool,
    /// Whether the cluster cannot be watched.
    pub(super) unwatched: bool,
    /// When the lease expires, in milliseconds.
    expires: u64,
    pub(super) renewals: usize,
    /// The input of every `nft`.
    pub(super) inputs: Vec<String>,
    /// Whether `nft` refuses single elements.
    pub(super) refuses_elements: bool,
    /// Whether another kpx holds the lock of the node, or is its guard.
    pub(super) locked: bool,
    pub(super) guarded: bool,
    /// Whether this process is the guard, and holds the lock.
    pub(super) is_guard: bool,
    holds_lock: bool,
    pub(super) migration: Option<MigrationState>,
    pub(super) is_fixed: bool,
    /// Times that the guard recorded a bridge that was deleted.
    pub(super) gaps: usize,
    /// The part that fails: `tables`, `lease`, `nft`, `routes` or `renewals`.
    pub(super) failing: BTreeSet<&'static str>,
    /// The families whose table has no lease: an older kpx loaded it.
    pub(super) without_lease: Vec<&'static str>,
    /// How often a lease was read.
    pub(super) looks: usize,
    pub(super) notices: Vec<String>,
}

impl World {
    /// Returns whether the bridge has tables, and its lease has not expired.
    pub(super) fn is_served(&self) -> bool {
        self.machine.has_bridge() && self.now < self.expires
    }

    /// Changes the endpoints of the cluster: each address `from` becomes `to`.
    pub(super) fn readdress(&mut self, from: &str, to: &str) {
        for slice in &mut self.slices {
            for endpoint in &mut slice.endpoints {
                for address in &mut endpoint.addresses {
                    if address == from {
                        to.clone_into(address);
                    }
                }
            }
        }
        self.changed = true;
    }

    /// Renews the lease, as another kpx does.
    pub(super) fn renewed_by_another(&mut self) {
        self.expires = self.now + LEASE * 1000;
    }

    /// Removes the tables of the bridge, as an operator would.
    pub(super) fn remove_bridge(&mut self) {
        for family in ["ip", "ip6"] {
            let input = format!("delete table {family} kpx-bridge\n");
            self.machine.apply(&Action::Nft { input }).ok();
        }
    }

    pub(super) fn has_routes(&self) -> bool {
        let routes = self.machine.tell();
        let routes = routes.text(Item::Routes).unwrap_or_default().to_owned();
        routes.contains("107")
    }

    /// Returns the reason why `what` fails, if it does.
    fn failure(&self, what: &'static str) -> Option<String> {
        let fails = self.failing.contains(what);
        fails.then(|| format!("no {what} now"))
    }

    fn load(&mut self, input: &str) -> Result<(), StepError> {
        let refused = |why: String| Err(StepError::Refused(why));
        if let Some(why) = self.failure("nft") {
            return refused(why);
        }
        self.inputs.push(input.to_owned());
        let whole = |line: &str| {
            ["add table ", "delete table "]
                .iter()
                .any(|prefix| line.starts_with(prefix))
        };
        if !input.lines().next().is_some_and(whole) {
            // A change of a loaded bridge: elements and rules.
            return if self.refuses_elements {
                refused("no such element".to_owned())
            } else {
                Ok(())
            };
        }
        self.machine
            .apply(&Action::Nft {
                input: input.to_owned(),
            })
            .or_else(refused)?;
        if input.contains("alive") {
            self.expires = self.now + LEASE * 1000;
        }
        Ok(())
    }
}

/// A node as one controller sees it.
#[derive(Clone)]
pub(super) struct Bridged {
    pub(super) world: Rc<RefCell<World>>,
    pub(super) keeper: Keeper,
    families: Vec<Family>,
}

impl Bridged {
    /// Returns a node in mode `mode`, without a bridge.
    pub(super) fn new(mode: Mode, order: Order) -> Self {
        let machine = Machine::new(SMALL, mode);
        let evidence = machine.tell();
        let world = World {
            services: cluster::list(&evidence, Item::Services).unwrap(),
            slices: cluster::list(&evidence, Item::EndpointSlices).unwrap(),
            machine,
            now: 0,
            wakes: Vec::new(),
            happenings: Vec::new(),
            changed: false,
            unwatched: false,
            expires: 0,
            renewals: 0,
            inputs: Vec::new(),
            refuses_elements: false,
            locked: false,
            guarded: false,
            is_guard: false,
            holds_lock: false,
            migration: None,
            is_fixed: false,
            gaps: 0,
            failing: BTreeSet::new(),
            without_lease: Vec::new(),
            looks: 0,
            notices: Vec::new(),
        };
        Self {
            world: Rc::new(RefCell::new(world)),
            keeper: Keeper::new(Lease::of(Duration::from_secs(LEASE)), order),
            families: Family::BOTH.to_vec(),
        }
    }

    /// Schedules `happening` for `seconds` after the start.
    pub(super) fn at(&self, seconds: u64, happening: impl FnOnce(&mut World) + 'static) {
        let mut world = self.world.borrow_mut();
        world.happenings.push((seconds, Box::new(happening)));
    }

    /// Makes `what` fail from `from` until `to`, in seconds after the start.
    pub(super) fn fails(&self, what: &'static str, from: u64, to: u64) {
        self.at(from, move |world| {
            world.failing.insert(what);
        });
        self.at(to, move |world| {
            world.failing.remove(what);
        });
    }

    /// Runs the controllers, and the keeper unless it was killed, until `seconds` after the start; returns whether the first
    /// controller has ended.
    pub(super) fn run_until(
        &self,
        seconds: u64,
        controller: Pin<&mut dyn Future<Output = ()>>,
        keeper: Option<Pin<&mut dyn Future<Output = ()>>>,
    ) -> bool {
        let mut context = Context::from_waker(Waker::noop());
        let (mut controller, mut keeper) = (controller, keeper);
        loop {
            if controller.as_mut().poll(&mut context).is_ready() {
                return true;
            }
            if let Some(keeper) = &mut keeper {
                assert!(keeper.as_mut().poll(&mut context).is_pending());
            }
            let mut world = self.world.borrow_mut();
            let next = world.happenings.iter().map(|(at, _)| at * 1000);
            let next = next.chain(world.wakes.iter().copied()).min();
            let next = next.unwrap_or(u64::MAX);
            if next > seconds * 1000 {
                world.now = seconds * 1000;
                return false;
            }
            world.now = next.max(world.now);
            let now = world.now;
            world.wakes.retain(|at| *at > now);
            let due: Vec<usize> = (0..world.happenings.len())
                .filter(|&at| world.happenings[at].0 * 1000 <= now)
                .collect();
            for at in due.into_iter().rev() {
                let (_, happening) = world.happenings.remove(at);
                happening(&mut world);
            }
        }
    }

    /// Lets time pass while no controller runs, as in a process that is suspended.
    pub(super) fn suspend(&self, seconds: u64) {
        self.world.borrow_mut().now += seconds * 1000;
    }

    fn sleep(&self, duration: Duration) -> Sleep {
        let now = self.world.borrow().now;
        Sleep {
            world: Rc::clone(&self.world),
            until: now + u64::try_from(duration.as_millis()).unwrap(),
            wants_change: false,
        }
    }
}

/// A pause, which a change of the cluster may end.
struct Sleep {
    world: Rc<RefCell<World>>,
    until: u64,
    wants_change: bool,
}

impl Future for Sleep {
    /// Whether the cluster has changed.
    type Output = bool;

    fn poll(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<bool> {
        let mut world = self.world.borrow_mut();
        if self.wants_change && std::mem::take(&mut world.changed) {
            return Poll::Ready(true);
        }
        if world.now >= self.until {
            return Poll::Ready(false);
        }
        let until = self.until;
        world.wakes.push(until);
        Poll::Pending
    }
}

impl Apply for Bridged {
    async fn apply(&mut self, action: &Action) -> Result<(), StepError> {
        let mut world = self.world.borrow_mut();
        assert!(!world.locked, "another kpx holds the lock: {action}");
        match action {
            Action::Nft { input } => world.load(input),
            Action::Routes { .. } if world.failing.contains("routes") => {
                Err(StepError::Refused("no routes now".to_owned()))
            }
            action => world.machine.apply(action).map_err(StepError::Refused),
        }
    }
}

impl Clock for Bridged {
    fn now(&self) -> Time {
        Time {
            seconds: i64::try_from(self.world.borrow().now / 1000).unwrap(),
        }
    }

    async fn pause(&mut self, duration: Duration) {
        self.sleep(duration).await;
    }
}

impl Node for Bridged {
    async fn read(&mut self, items: &[Item]) -> Evidence {
        let mut world = self.world.borrow_mut();
        world.machine.pass();
        let mut evidence = world.machine.tell();
        // Before the last sync, once there is one.
        if let Ok(metrics) = evidence.text(Item::Metrics) {
            let metrics = format!("{metrics}process_start_time_seconds 1.7951801e9\n");
            evidence.insert(Item::Metrics, Ok(metrics));
        }
        evidence.only(items)
    }
}

impl LeaseNode for Bridged {
    async fn tables(&mut self) -> Result<Vec<(&'static str, String)>, Gap> {
        let world = self.world.borrow();
        if let Some(why) = world.failure("tables") {
            return Err(Gap::Denied(Item::Nft, why));
        }
        let bridged = world.machine.has_bridge();
        let tables = ["ip", "ip6"].map(|family| (family, "kpx-bridge".to_owned()));
        Ok(if bridged { tables.into() } else { Vec::new() })
    }

    async fn lease_set(&mut self, family: &'static str) -> Result<String, Gap> {
        let mut world = self.world.borrow_mut();
        world.looks += 1;
        if let Some(why) = world.failure("lease") {
            return Err(Gap::Denied(Item::Nft, why));
        }
        if world.without_lease.contains(&family) {
            return Err(Gap::Failed(Item::Nft, "no such set".to_owned()));
        }
        let left = world.expires.saturating_sub(world.now) / 1000;
        let element = |proto| format!("{proto} timeout {LEASE}s expires {left}s");
        let elements = ["tcp", "udp", "sctp"].map(element).join(", ");
        let elements = if world.now < world.expires {
            format!("\t\telements = {{ {elements} }}\n")
        } else {
            String::new()
        };
        Ok(format!(
            "table {family} kpx-bridge {{\n\tset alive {{\n\t\ttype inet_proto\n\t\tflags timeout\n{elements}\t}}\n}}\n"
        ))
    }

    async fn renew(&mut self, input: &str) -> Result<(), StepError> {
        assert!(input.contains("add element ip kpx-bridge alive"), "{input}");
        let mut world = self.world.borrow_mut();
        if let Some(why) = world.failure("renewals") {
            return Err(StepError::Refused(why));
        }
        world.expires = world.now + LEASE * 1000;
        world.renewals += 1;
        Ok(())
    }
}

impl BridgeNode for Bridged {
    fn name(&self) -> Option<&str> {
        Some("node1")
    }

    fn families(&self) -> &[Family] {
        &self.families
    }

    fn keeper(&self) -> &Keeper {
        &self.keeper
    }

    async fn watch(&mut self) -> Result<(), Gap> {
        if self.world.borrow().unwatched {
            return Err(Gap::Failed(Item::Services, "no API server".to_owned()));
        }
        Ok(())
    }

    fn objects(&mut self) -> (Vec<Service>, Vec<EndpointSlice>) {
        let world = self.world.borrow();
        (world.services.clone(), world.slices.clone())
    }

    async fn change(&mut self, limit: Duration) -> Option<Result<(), Gap>> {
        let mut sleep = self.sleep(limit);
        sleep.wants_change = true;
        let changed = sleep.await;
        if self.world.borrow().unwatched {
            return Some(Err(Gap::Failed(Item::Services, "no API server".to_owned())));
        }
        changed.then_some(Ok(()))
    }
}

impl GuardedNode for Bridged {
    fn claim(&mut self) -> Result<bool, ControllerError> {
        let mut world = self.world.borrow_mut();
        world.is_guard = !world.guarded;
        Ok(world.is_guard)
    }

    fn disclaim(&mut self) {
        let mut world = self.world.borrow_mut();
        // The next process that locks the node must not find this guard.
        assert!(world.holds_lock);
        world.is_guard = false;
    }

    fn lock(&mut self) -> Result<bool, ControllerError> {
        let mut world = self.world.borrow_mut();
        world.holds_lock = !world.locked;
        Ok(world.holds_lock)
    }

    fn unlock(&mut self) {
        self.world.borrow_mut().holds_lock = false;
    }

    fn migration(&mut self) -> Result<Option<MigrationState>, ControllerError> {
        Ok(self.world.borrow().migration.clone())
    }

    fn record_gap(&mut self) -> Result<(), ControllerError> {
        self.world.borrow_mut().gaps += 1;
        Ok(())
    }

    fn is_fixed(&self) -> bool {
        self.world.borrow().is_fixed
    }
}
