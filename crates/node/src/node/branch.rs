//! Pods with a network card of their own: on AWS, those with security groups of their own.

use std::collections::BTreeSet;
use std::net::IpAddr;

use super::NodeSnapshot;
use crate::backend::chain_owner::is_aws_branch;
use crate::net::Cidr;

/// With it the kernel looks for the socket of a packet before it routes the packet.
const EARLY_DEMUX: &str = "net.ipv4.tcp_early_demux";

impl NodeSnapshot<'_> {
    /// Returns whether packets to `address` come in by the network card that the AWS VPC CNI gives to a pod with security groups of its own:
    /// the table that a rule for this card looks up has the route to the pod.
    pub fn has_branch_card(&self, address: IpAddr) -> bool {
        let rules = self.rules().into_iter().flat_map(|all| &all.all);
        let of_card = rules.filter(|rule| rule.iif.as_deref().is_some_and(is_aws_branch));
        let tables: BTreeSet<&str> = of_card.filter_map(|rule| rule.table.as_deref()).collect();
        let mut routes = self.routes().into_iter().flat_map(|all| &all.all);
        !tables.is_empty()
            && routes.any(|route| {
                tables.contains(route.table.as_str())
                    && route.destination == Cidr::host(address)
                    && !route.device.as_deref().is_some_and(is_aws_branch)
            })
    }

    /// Returns why the kubelet does not get what the pod with `address` answers to its probes of TCP; `None` if that is not known.
    pub fn loses_answers(&self, address: IpAddr) -> Option<String> {
        let value = self.sysctl().ok()?.known(EARLY_DEMUX).ok()??;
        (value == "1" && self.has_branch_card(address)).then(|| {
            format!(
                "{EARLY_DEMUX} is 1, with which the kernel drops what the pod answers to the kubelet by a network card of its own (security \
                 groups)"
            )
        })
    }
}
