//! The ports, families and addresses of a Service that an answer is about.

use std::collections::BTreeSet;
use std::net::IpAddr;

use super::look::Look;
use super::target::{Asked, At as AskedAt, Found};
use super::{endpoints, target};
use crate::trace::mismatch::listed;
use crate::verdict::{self, Judge, Kind, Target};
use kpx_node::cluster::Service;
use kpx_node::desired::Hint;
use kpx_node::evidence::Item;
use kpx_node::net::{Family, Proto};
use kpx_node::node::NodeSnapshot;
use kpx_node::owner::{self, Port};
use kpx_node::words::number_of;

/// Returns the nodes that have the endpoints of `asked`, or an address that it names, from the objects of the cluster; all nodes without
/// endpoints.
pub fn touched<'n>(cluster: &'n NodeSnapshot<'n>, asked: &Asked) -> BTreeSet<String> {
    let (Ok(services), Ok(slices)) = (cluster.services(), cluster.slices()) else {
        return BTreeSet::new();
    };
    let judge = Judge::new(cluster);
    let of = |addr: IpAddr| judge.node_of(addr);
    let mut touched = BTreeSet::new();
    if let Asked::Address(addr, ..) = asked {
        touched.extend(of(*addr));
    }
    let found = target::find(asked, services, slices, |addr| of(addr).is_some());
    let Ok(found) = found else {
        return touched;
    };
    let mut listed = endpoints::slices_of(found.service, slices).flat_map(|slice| &slice.endpoints);
    if found.service.selector().is_some() && listed.next().is_none() {
        // Its pods, which have no address yet, may be on any node.
        let all = cluster.nodes().into_iter().flatten();
        touched.extend(all.map(|node| node.metadata.name.clone()));
    }
    for endpoint in endpoints::slices_of(found.service, slices).flat_map(|slice| &slice.endpoints) {
        if let Some(name) = &endpoint.node_name {
            touched.insert(name.clone());
        } else {
            let addresses = endpoint.addresses.iter().filter_map(|at| at.parse().ok());
            touched.extend(addresses.filter_map(of));
        }
    }
    touched
}

impl Look<'_> {
    /// Returns whether `port` is known to have no usable endpoint of `family`.
    pub(super) fn lacks_endpoints(&self, port: &Port, family: Family) -> bool {
        verdict::lacks_endpoints(self.node, port, family)
    }

    /// Returns the ports that are asked for.
    pub(super) fn ports(&self, found: &Found<'_>) -> Vec<Port> {
        let slices = endpoints::slices_of(found.service, self.slices);
        let slices: Vec<_> = slices
            .filter(|slice| endpoints::is_read(found.service, slice))
            .collect();
        let mut ports = owner::ports_of(found.service, &slices, self.name.as_deref());
        ports.retain(|port| {
            found.only.as_ref().is_none_or(|only| {
                let number = port.port.unwrap_or_default();
                let endpoints = port.endpoints.iter().map(|endpoint| endpoint.addr);
                only.selects(&port.name.port, number, port.node_port, endpoints)
            })
        });
        ports
    }

    /// Returns which ready endpoints of `port` kube-proxy omits because of topology hints.
    pub(super) fn left_out_by_hints(&self, port: &Port, families: &[Family]) -> Option<String> {
        let desired = self.node.desired(self.node.configured_mode().ok()?).ok()?;
        let name = port.name.to_string();
        families.iter().find_map(|family| {
            let mut all = desired.family(*family)?.ports.iter();
            let of = all.find(|desired_port| desired_port.spn == name && desired_port.proto == port.proto)?;
            let used: BTreeSet<usize> = of.cluster_at().iter().map(|at| *at as usize).collect();
            let ready = of.endpoints.iter().enumerate().filter(|(_, of)| of.ready);
            let (kept, left): (Vec<_>, Vec<_>) = ready.partition(|(at, _)| used.contains(at));
            let by_node = kept.iter().all(|(_, of)| of.node == Hint::Us);
            let by_zone = kept.iter().all(|(_, of)| of.zone == Hint::Us);
            if kept.is_empty() || left.is_empty() || !by_node && !by_zone {
                return None;
            }
            let place = if by_node { "node" } else { "zone" };
            let left: Vec<String> = left.iter().map(|(_, of)| of.text.clone()).collect();
            Some(format!(
                "the topology hints of {name} leave {} of {} to this {place} (not {}): without trafficDistribution and \
                 the annotation service.kubernetes.io/topology-mode of the Service, connections reach all",
                kept.len(),
                number_of(kept.len() + left.len(), "endpoint"),
                listed(&left)
            ))
        })
    }

    /// Returns the needs of `port` in addition to kube-proxy's rules, if its protocol opens connections that the rules do
    /// not translate.
    pub(super) fn needs_helper(&self, port: &Port) -> Option<String> {
        let (helper, what) = match (port.port, port.proto) {
            (Some(69), Proto::Udp) => ("tftp", "TFTP answers from a port of its own"),
            (Some(21), Proto::Tcp) => ("ftp", "FTP opens a further connection for data"),
            _ => return None,
        };
        let evidence = self.node.evidence();
        let has_helper = |item| {
            let rules = evidence.text(item);
            rules.is_ok_and(|rules| rules.contains(&format!("--helper {helper}")))
        };
        let is_there = [Item::Iptables4, Item::Iptables6]
            .into_iter()
            .any(has_helper);
        (!is_there).then(|| {
            format!(
                "{}: {what}, which passes a translated address only with the kernel's helper: modules nf_conntrack_{helper} and \
                 nf_nat_{helper}, and a rule of table raw with `-j CT --helper {helper}`",
                port.name
            )
        })
    }

    /// Returns the addresses that are asked for.
    pub(super) fn targets<'p>(
        &self,
        port: &'p Port,
        family: Family,
        found: &Found<'_>,
    ) -> Vec<Target<'p>> {
        let mut all = verdict::targets(self.node, port, family);
        match found.at {
            AskedAt::All => {}
            AskedAt::Address(addr) => {
                all.retain(|target| target.at.ip() == addr && target.kind != Kind::NodePort);
            }
            AskedAt::NodePort(addr) => {
                all.retain(|target| target.kind == Kind::NodePort);
                if let Some(addr) = addr {
                    for of in &mut all {
                        of.at.set_ip(addr);
                    }
                }
                all.retain(|target| Family::of(target.at.ip()) == family);
            }
            AskedAt::Endpoint(addr) => {
                let its = endpoints::usable(port, family).filter(|usable| usable.addr.ip() == addr);
                all = its
                    .map(|endpoint| Target {
                        port,
                        kind: Kind::Endpoint,
                        at: endpoint.addr,
                    })
                    .collect();
            }
        }
        all
    }

    /// Returns the families in which `service` has addresses or, if it is headless, endpoints.
    pub(super) fn families_of(&self, service: &Service) -> Vec<Family> {
        let spec = &service.spec;
        let mut found: Vec<Family> = owner::addresses(service)
            .iter()
            .map(|(_, addr)| Family::of(*addr))
            .collect();
        found.extend(spec.ip_families.iter().filter_map(|text| {
            let mut both = Family::BOTH.into_iter();
            both.find(|family| family.to_string() == *text)
        }));
        if found.is_empty() {
            let slices = endpoints::slices_of(service, self.slices);
            let kinds: Vec<_> = slices.map(|slice| slice.address_type.clone()).collect();
            let both = Family::BOTH.into_iter();
            found = both
                .filter(|family| kinds.contains(&family.to_string()))
                .collect();
        }
        if found.is_empty() {
            found.push(Family::V4);
        }
        let mut families = self.families.clone();
        families.retain(|family| found.contains(family));
        families
    }
}
