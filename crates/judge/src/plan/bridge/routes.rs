//! Routes that keep host processes from using Service addresses as source addresses.
//!
//! In mode ipvs, the addresses of Services are local addresses of kube-ipvs0. A host process that connects to one of them
//! uses the same address as its source: in IPv4 by the source of the kernel's local route, in IPv6 because the source
//! selection prefers an equal address. Nothing can send from such an address after the link is removed. So while the
//! bridge stands, kpx's own routes set the node's address as the source: in IPv4 in front of the kernel's route, in IPv6
//! in its place. The kernel removes its route with the address; kpx's stays until the bridge is removed, so that
//! connections from such an address last until then.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use kpx_node::action::{Action, Bound, LocalRoute, Plan, ROUTE_PROTOCOL, RouteCommand, Undo};
use kpx_node::backend::ipvs::model::DUMMY;
use kpx_node::desired::DesiredState;
use kpx_node::evidence::{Gap, Item};
use kpx_node::net::Family;
use kpx_node::node::NodeSnapshot;
use kpx_node::node::routes::Route;
use kpx_node::words::number_of;

/// The items of [`routes_up`] and [`routes_down`].
pub const ROUTE_NEEDS: &[Item] = &[Item::Addresses, Item::Routes];

/// The part of the desired state that routes depend on.
#[derive(Clone, Debug, Default)]
pub struct Served {
    /// The node's address in each family that has one.
    node_ips: BTreeMap<Family, IpAddr>,
    /// Every address of a Service.
    addresses: BTreeSet<IpAddr>,
}

impl Served {
    /// Returns that part of `state`.
    pub fn of(state: &DesiredState) -> Self {
        let known = state
            .families
            .iter()
            .filter(|family| !family.node_ip.is_loopback());
        let ports = state.families.iter().flat_map(|family| &family.ports);
        let addresses = ports.flat_map(|port| {
            let more = port.external_ips.iter().chain(&port.lb_ips);
            more.copied().chain([port.cluster_ip])
        });
        Self {
            node_ips: known
                .map(|family_state| (family_state.family, family_state.node_ip))
                .collect(),
            addresses: addresses.collect(),
        }
    }
}

/// Returns the plan that gives every address of `families` on kube-ipvs0 a route of kpx's own; empty if all have one. A route
/// whose address was removed from kube-ipvs0 stays while the address is `served`.
pub fn routes_up(
    node: &NodeSnapshot<'_>,
    served: &Served,
    families: &[Family],
) -> Result<Plan, Gap> {
    let mut plan = Plan::default();
    let have = Have::read(node)?;
    let (mut adds, mut hides, mut deletes) = (Vec::new(), Vec::new(), Vec::new());
    let mut sources = BTreeSet::new();
    for &family in families {
        let held: BTreeSet<IpAddr> = have.held(family).collect();
        let ours: Vec<&LocalRoute> = have.ours(family).collect();
        let still = ours.iter().map(|route| route.addr);
        let still = still.filter(|addr| served.addresses.contains(addr));
        let wanted: BTreeSet<IpAddr> = still.chain(held.iter().copied()).collect();
        let home = home(node, served, family)?;
        if let (None, false) = (&home, held.is_empty()) {
            plan.notes.push(homeless(family, held.len()));
        }
        for &addr in &wanted {
            let Some((device, source)) = &home else { break };
            let route = LocalRoute {
                addr,
                device: device.clone(),
                source: *source,
            };
            sources.insert(*source);
            if !ours.contains(&&route) {
                adds.push(RouteCommand::Add(route));
            }
            if have.kernels.contains(&addr) {
                let link = DUMMY.to_owned();
                hides.push(RouteCommand::Hide(Bound { addr, link }));
            }
        }
        let stale = ours.into_iter().filter(|route| {
            let moved = home
                .as_ref()
                .is_some_and(|home| *home != (route.device.clone(), route.source));
            moved || !wanted.contains(&route.addr)
        });
        deletes.extend(stale.cloned().map(RouteCommand::Delete));
    }
    let (count, gone) = (adds.len().max(hides.len()), deletes.len());
    let commands = [adds, hides, deletes].concat();
    let title = if count > 0 {
        let sources: Vec<_> = sources.iter().map(IpAddr::to_string).collect();
        format!(
            "use source {} for host connections to {} of {DUMMY}",
            sources.join(" and "),
            number_of(count, "address")
        )
    } else {
        format!(
            "remove kpx's routes to {} that no Service has",
            number_of(gone, "address")
        )
    };
    push(&mut plan, title, commands);
    Ok(plan)
}

/// Returns the plan that removes kpx's routes of `families` and restores the kernel's; empty if there are none.
pub fn routes_down(node: &NodeSnapshot<'_>, families: &[Family]) -> Result<Plan, Gap> {
    let mut plan = Plan::default();
    let have = Have::read(node)?;
    let ours: Vec<&LocalRoute> = families
        .iter()
        .flat_map(|&family| have.ours(family))
        .collect();
    let held: BTreeSet<IpAddr> = have.held(Family::V6).collect();
    let hidden = ours.iter().map(|route| route.addr);
    let hidden = hidden.filter(|addr| held.contains(addr) && !have.kernels.contains(addr));
    let renews = hidden.collect::<BTreeSet<_>>().into_iter().map(|addr| {
        let link = DUMMY.to_owned();
        RouteCommand::Renew(Bound { addr, link })
    });
    let deletes = ours
        .iter()
        .map(|&route| RouteCommand::Delete(route.clone()));
    let commands = renews.chain(deletes).collect();
    let title = format!(
        "remove kpx's routes to {} of Services",
        number_of(ours.len(), "address")
    );
    push(&mut plan, title, commands);
    Ok(plan)
}

/// Returns whether kpx has routes on `node`.
pub fn has_routes(node: &NodeSnapshot<'_>) -> Result<bool, Gap> {
    let routes = node.routes()?;
    Ok(routes.all.iter().any(is_ours))
}

fn push(plan: &mut Plan, title: String, commands: Vec<RouteCommand>) {
    if commands.is_empty() {
        return;
    }
    let back = commands.iter().rev().map(RouteCommand::back).collect();
    plan.push(
        title,
        Action::Routes { commands },
        Undo::Do(Action::Routes { commands: back }),
    );
}

/// Returns the node's address of `family`, after its link.
fn home(
    node: &NodeSnapshot<'_>,
    served: &Served,
    family: Family,
) -> Result<Option<(String, IpAddr)>, Gap> {
    let Some(ip) = served.node_ips.get(&family) else {
        return Ok(None);
    };
    let mut all = node.addresses()?.all.iter();
    let at = all.find(|at| at.addr.addr == *ip && at.link != DUMMY);
    Ok(at.map(|at| (at.link.clone(), *ip)))
}

fn homeless(family: Family, count: usize) -> String {
    format!(
        "host processes that connect to Services over {family} use the {} of {DUMMY} as their source, because no link has \
         an {family} address of the Node: these connections break when {DUMMY} is removed",
        number_of(count, "address")
    )
}

/// The live routes and addresses.
struct Have {
    held: Vec<IpAddr>,
    ours: Vec<LocalRoute>,
    /// IPv6 addresses with a route of the kernel.
    kernels: BTreeSet<IpAddr>,
}

impl Have {
    fn read(node: &NodeSnapshot<'_>) -> Result<Self, Gap> {
        let held = node.addresses()?.all.iter().filter(|at| at.link == DUMMY);
        let held = held.filter(|at| at.addr.prefix == at.addr.family().bits());
        let routes = &node.routes()?.all;
        let ours = routes.iter().filter(|route| is_ours(route));
        let ours = ours.filter_map(|route| {
            Some(LocalRoute {
                addr: route.destination.addr,
                device: route.device.clone()?,
                source: route.source?,
            })
        });
        let kernels = routes.iter().filter(|route| {
            is_local(route)
                && route.family == Family::V6
                && route.device.as_deref() == Some(DUMMY)
                && route.protocol.as_deref() == Some("kernel")
        });
        Ok(Self {
            held: held.map(|at| at.addr.addr).collect(),
            ours: ours.collect(),
            kernels: kernels.map(|route| route.destination.addr).collect(),
        })
    }

    fn held(&self, family: Family) -> impl Iterator<Item = IpAddr> {
        let all = self.held.iter().copied();
        all.filter(move |&addr| Family::of(addr) == family)
    }

    fn ours(&self, family: Family) -> impl Iterator<Item = &LocalRoute> {
        let all = self.ours.iter();
        all.filter(move |route| Family::of(route.addr) == family)
    }
}

fn is_local(route: &Route) -> bool {
    let full = route.destination.prefix == route.family.bits();
    route.kind == "local" && route.table == "local" && full
}

fn is_ours(route: &Route) -> bool {
    is_local(route) && route.protocol.as_deref() == Some(&ROUTE_PROTOCOL.to_string())
}
