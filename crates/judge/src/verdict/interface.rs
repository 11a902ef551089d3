//! Pods whose addresses belong to one of several interfaces of the machine, as in AWS: the cloud drops what has an address of another
//! interface.

use std::net::IpAddr;

use super::judge::Judge;
use super::{Fault, Missing};
use crate::trace::Outcome;
use kpx_node::backend::chain_owner::Maker;
use kpx_node::cluster::Pod;
use kpx_node::net::Cidr;
use kpx_node::node::NodeSnapshot;
use kpx_node::node::agents::Agent;
use kpx_node::node::routes::Route;

impl Judge<'_> {
    /// Returns the doubt about a packet with the address of a pod of this node that leaves by another interface than the one whose routing
    /// table is for that pod.
    pub(super) fn off_interface(&self, outcome: &Outcome) -> Option<Fault> {
        let (pod, out) = (outcome.source, outcome.leaves_by()?);
        if self.ends_here(outcome)
            || self.places.is_pod_here(pod) != Some(true)
            || !self.places.links_of_node().contains(out)
        {
            return None;
        }
        let rules = &self.node.rules().ok()?.all;
        let own = rules.iter().find(|rule| rule.from == Some(Cidr::host(pod)));
        let lost = match own {
            Some(_) => &[][..],
            None if self.is_kept_apart(pod) => return None,
            None => self.without_rules()?,
        };
        let in_table = |route: &&Route| {
            let of_rule = own.and_then(|rule| rule.table.as_ref());
            route.destination.prefix == 0 && of_rule == Some(&route.table)
        };
        let routes = &self.node.routes().ok()?.all;
        let mut meant = routes.iter().filter(in_table).chain(lost.iter().copied());
        let is_other = |link: &&str| *link != out && self.is_in_network_of(pod, link);
        let link = meant.find_map(|route| route.devices().into_iter().find(is_other))?;
        let why = match own {
            Some(rule) => format!(
                "routing policy rule {} ({rule}) is for {link}, so that address is one of {link}",
                rule.priority
            ),
            None => format!(
                "the rules that lead packets of pods to {link} are gone, and that address may be one of {link}"
            ),
        };
        Some(Fault::Unknown(Missing::Unmodelled(format!(
            "packets of pod {pod} leave by {out} with its address: {why}, and a cloud drops what another interface sends"
        ))))
    }

    /// Returns [`tables_without_rules`], found once.
    pub(super) fn without_rules(&self) -> Option<&[&Route]> {
        let found = self
            .without_rules
            .get_or_init(|| tables_without_rules(self.node));
        found.as_deref()
    }

    /// Returns whether `link` has an address in whose network `addr` is.
    fn is_in_network_of(&self, addr: IpAddr, link: &str) -> bool {
        let own = self.node.addresses().map_or(&[][..], |known| &known.all);
        own.iter().any(|address| {
            address.link == link && !address.addr.is_host() && address.addr.contains(addr)
        })
    }
}

/// Returns the default routes of the tables to which no routing policy rule leads, where the AWS VPC CNI runs and the rules of all pods
/// have gone: an interface without pods, kept for new ones, has a table and no rule. `None` if they are not gone, or if it is unknown.
pub fn tables_without_rules<'n>(node: &'n NodeSnapshot<'_>) -> Option<Vec<&'n Route>> {
    if node.agent_of(Maker::Other("AWS VPC CNI")) != Some(Agent::Runs) {
        return None;
    }
    let rules = &node.rules().ok()?.all;
    let here = node.object_name().ok();
    let own = node.pods().ok()?.iter();
    let own = own.filter(|pod| pod.spec.node_name == here && !pod.spec.host_network);
    let has_rule = |addr| rules.iter().any(|rule| rule.to == Some(Cidr::host(addr)));
    let mut addresses = own.flat_map(Pod::addresses).peekable();
    addresses.peek()?;
    if addresses.any(has_rule) {
        return None;
    }
    let is_unused = |route: &&Route| {
        let is_common = ["main", "default", "local"].contains(&route.table.as_str());
        let mut leading = rules.iter();
        !is_common
            && route.kind == "unicast"
            && route.destination.prefix == 0
            && !leading.any(|rule| rule.table.as_ref() == Some(&route.table))
    };
    Some(node.routes().ok()?.all.iter().filter(is_unused).collect())
}
