//! Routes that keep the node's own processes from taking addresses of Services for their source.
//!
//! In mode ipvs, kube-ipvs0 holds the addresses of Services, so they are local, and what a process of the node sends to
//! one of them it sends from that same address: in IPv4 the kernel's route to a local address says so, in IPv6 nothing is
//! nearer to an address than itself. When the link goes, nobody can send from there any more. So while the bridge
//! stands, a route of kpx's own says that the source is the node's address: in IPv4 before the kernel's route, which
//! stays as it is behind it, in IPv6 in its place. The kernel's own goes with its address, and kpx's stays until the
//! bridge goes: what was open from such an address before lives on as long.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use crate::action::{Action, Bound, LocalRoute, ROUTE_PROTOCOL, RouteCommand};
use crate::backend::ipvs::model::DUMMY;
use crate::desired::DesiredState;
use crate::evidence::{Gap, Item};
use crate::net::Family;
use crate::node::NodeSnapshot;
use crate::node::routes::Route;
use crate::plan::{Plan, Undo};

/// What [`routes_up`] and [`routes_down`] look at.
pub const ROUTE_NEEDS: &[Item] = &[Item::Addresses, Item::Routes];

/// What routes depend on of what kube-proxy serves.
#[derive(Clone, Debug, Default)]
pub struct Served {
    /// The node's address in each family that has one.
    node_ips: BTreeMap<Family, IpAddr>,
    /// Every address of a Service.
    addresses: BTreeSet<IpAddr>,
}

impl Served {
    /// Returns what matters of `state`.
    pub fn of(state: &DesiredState) -> Self {
        let known = state.families.iter().filter(|of| !of.node_ip.is_loopback());
        let ports = state.families.iter().flat_map(|of| &of.ports);
        let addresses = ports.flat_map(|port| {
            let more = port.external_ips.iter().chain(&port.lb_ips);
            more.copied().chain([port.cluster_ip])
        });
        Self {
            node_ips: known.map(|of| (of.family, of.node_ip)).collect(),
            addresses: addresses.collect(),
        }
    }
}

/// Returns the step after which every address of `families` that kube-ipvs0 holds has a route of kpx's own; none where
/// that is so. Those stay that have one and that nothing holds any more, as long as they are `served`.
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
            "have this node's own processes send from {} to {count} addresses that {DUMMY} holds",
            sources.join(" and ")
        )
    } else {
        format!("remove kpx's routes to {gone} addresses that no Service has any more")
    };
    push(&mut plan, title, commands);
    Ok(plan)
}

/// Returns the step after which there is no route of kpx's own of `families`, and the kernel's are as they were; none
/// where there is none.
pub fn routes_down(node: &NodeSnapshot<'_>, families: &[Family]) -> Result<Plan, Gap> {
    let mut plan = Plan::default();
    let have = Have::read(node)?;
    let ours: Vec<&LocalRoute> = families.iter().flat_map(|&of| have.ours(of)).collect();
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
        "remove kpx's routes to {} addresses of Services",
        ours.len()
    );
    push(&mut plan, title, commands);
    Ok(plan)
}

/// Returns whether routes of kpx's own are there.
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

/// Returns the node's address of `family`, behind the link that holds it.
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
        "what this node's own processes send over {family} to the {count} addresses that {DUMMY} holds, they send from \
         these: no link has an address of the Node in that family to send from; so what they open breaks when {DUMMY} goes"
    )
}

/// What of it is there.
struct Have {
    held: Vec<IpAddr>,
    ours: Vec<LocalRoute>,
    /// Addresses of IPv6 to which the kernel's route is there.
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
