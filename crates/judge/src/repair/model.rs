//! A repair, and a node with it.

use std::net::{IpAddr, SocketAddr};

use crate::diff::Change;
use crate::trace::{Rule, Subsystem};
use kpx_node::net::{Cidr, Family, Proto};
use kpx_node::node::IptablesBackend;
use kpx_node::node::routes::{PolicyRule, Route};
use kpx_node::node::tc::Filter;
use kpx_node::node::xfrm::Policy;

/// One repair of a node or of its cluster.
#[derive(Clone, Debug, PartialEq)]
pub enum Repair {
    /// kube-proxy's object is brought to its desired state.
    Program(Box<Change>),
    /// A rule of other software is removed, or the policy of its chain accepts.
    Pass(RulePlace),
    /// A rule that replaces the source of packets uses the address of the link by which they leave.
    Masquerade(RulePlace),
    /// The nftables table of this family and name is no longer dormant.
    Wake(String, String),
    /// A sysctl is set to 1.
    TurnOn(&'static str),
    /// A route is removed.
    RemoveRoute(Box<Route>),
    /// A routing policy rule is removed.
    RemovePolicyRule(Box<PolicyRule>),
    /// A routing policy rule is added.
    AddPolicyRule(Box<PolicyRule>),
    /// An address is removed from a link of the node.
    RemoveAddress(IpAddr, String),
    /// The pods of this node are reached by their own link.
    RoutePodsHere(Cidr),
    /// The pods of another node, in this range, are reached by its address, through a link.
    RoutePodsThere(Cidr, IpAddr, String),
    /// The table of tracked connections has room.
    MakeRoom,
    /// The tracked connections to an address end.
    EndTracked(SocketAddr, Proto),
    /// Hairpin mode is on at the ports of a bridge.
    Hairpin(String),
    /// A sysctl that the evidence has is set.
    Set(String, &'static str),
    /// A policy of IPsec is removed.
    RemoveXfrm(Box<Policy>),
    /// A filter is removed from a link; `None` for its qdisc.
    RemoveFilter(String, Option<Box<Filter>>),
    /// The ports of a bridge are not isolated.
    JoinPorts(String),
    /// A link is up and forwards; as a port of this bridge, if one is given.
    RaiseLink(String, Option<String>),
    /// The network of the pod with this address takes and answers packets.
    OpenPod(IpAddr),
    /// The object of the cluster is edited, and kube-proxy programs the change.
    Edit(Box<Edited>),
}

/// The place of a rule.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct RulePlace {
    /// The back end of iptables; `None` for nftables.
    pub store: Option<IptablesBackend>,
    /// The IP family of the packet.
    pub family: Family,
    /// The table; of nftables with its family.
    pub table: String,
    /// The chain.
    pub chain: String,
    /// The number of the rule in its chain, from 1; 0 for the policy.
    pub number: usize,
}

impl RulePlace {
    /// Returns the place of `rule`; `None` if it is not known which of the back ends of iptables has it.
    pub fn of(rule: &Rule) -> Option<Self> {
        let store = match rule.subsystem {
            Subsystem::Iptables => Some(IptablesBackend::InUse),
            Subsystem::Nftables => None,
            _ => return None,
        };
        Some(Self {
            store,
            family: rule.family,
            table: rule.table.clone(),
            chain: rule.chain.clone(),
            number: rule.number,
        })
    }
}

/// The cluster after an edit of an object, and what kube-proxy then programs.
#[derive(Clone, Debug, PartialEq)]
pub struct Edited {
    /// The edited object.
    pub what: Edit,
    /// The changes of kube-proxy for the Service.
    pub changes: Vec<Change>,
    /// The address of the pod that it adds.
    pub pod: Option<IpAddr>,
}

/// An edit of an object of the cluster.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Edit {
    /// The Service port gets a ready endpoint on this node.
    Endpoint,
    /// Every client may use the load balancer.
    SourceRanges,
    /// The traffic policies of the Service are Cluster.
    Policies,
    /// kube-proxy knows which packets come from pods, and masquerades the others.
    ClusterCidr,
}
