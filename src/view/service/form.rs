//! The form of a Service in a mode: the rules, chains, map elements, virtual servers, set members and addresses that
//! implement it.

use serde::Serialize;

use crate::view::tree::Node;
use crate::view::{Gaps, Joined, Query, View, addresses, ipvs, sets, tree};
use kpx_node::backend::Mode;
use kpx_node::backend::chain_owner::hashed;
use kpx_node::backend::ipvs::model::DUMMY;
use kpx_node::evidence::Item;
use kpx_node::net::Family;
use kpx_node::owner::{Owner, Owners};

/// An object that implements the Service.
#[derive(Debug, Eq, PartialEq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub(crate) struct Part {
    pub(crate) family: Family,
    pub(crate) kind: Kind,
    /// `TABLE CHAIN` in iptables, otherwise the name of the chain, map, virtual server, set or link.
    pub(crate) object: String,
    /// The destination, members or endpoint that it serves; `null` for all those that lead to it.
    pub(crate) serves: Option<String>,
    /// Its effect on a packet; `null` if it only lists the destination.
    pub(crate) does: Option<Does>,
}

/// A kind of object.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Kind {
    Rule,
    Chain,
    MapElement,
    SetElement,
    VirtualServer,
    SetMembers,
    Address,
}

/// The effect of an object on a packet.
#[derive(Debug, Eq, PartialEq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case", tag = "kind", content = "value")]
pub(crate) enum Does {
    /// Sends it to this chain.
    Chain(String),
    /// Rejects it.
    Rejects,
    /// Drops it.
    Drops,
    /// The text of the rule.
    Rule(String),
    /// Chooses one of the Service's endpoints.
    Balances,
    /// Chooses one of the Service's endpoints on this node.
    BalancesLocally,
    /// Applies the external traffic policy.
    AppliesPolicy,
    /// Checks the source ranges.
    ChecksSource,
    /// Translates it to an endpoint.
    Translates,
    /// Translates it to an endpoint that the Service does not have now.
    Stale,
    /// Chooses a real server with this scheduler.
    Schedules {
        /// The name of the scheduler.
        scheduler: String,
        /// The real servers that accept connections.
        to: Vec<String>,
        /// The real servers that accept no new ones.
        draining: Vec<String>,
    },
}

/// Returns the objects of the Service `name` in the mode in force; `None` if the mode or its objects are unknown.
pub(super) fn parts(joined: Joined<'_, '_>, name: &str, gaps: &mut Gaps) -> Option<Vec<Part>> {
    let of = |view| Joined {
        query: Query {
            view,
            name: Some(name),
            namespace: None,
            ..joined.query
        },
        ..joined
    };
    // Notes are only for a requested view.
    let mut own = Gaps::default();
    let mut parts = Vec::new();
    match joined.relevant.current()? {
        Mode::Ipvs => {
            parts.extend(ipvs::rows(of(View::Ipvs), &mut own).into_iter().map(server));
            let rows = sets::rows(of(View::Sets), &mut own);
            parts.extend(rows.into_iter().map(members));
            let rows = addresses::rows(of(View::Addresses), &mut own);
            parts.extend(rows.into_iter().map(|row| Part {
                family: Family::of(row.address),
                kind: Kind::Address,
                object: DUMMY.to_owned(),
                serves: Some(row.address.to_string()),
                does: None,
            }));
        }
        mode => {
            let roots = tree::tree(of(View::Chains), &mut own).unwrap_or_default();
            let is_nft = mode == Mode::Nftables;
            let ours = roots.iter().filter(|root| is_of_nft(root) == is_nft);
            let evidence = joined.node.evidence();
            let mut listed = [Item::Services, Item::EndpointSlices].into_iter();
            let shows_all = listed.all(|item| evidence.missing_part(item).is_none());
            for root in ours {
                add(&mut parts, dispatch(root));
                chains(joined.owners, shows_all, root, &mut parts);
            }
            // Chains after what leads to them.
            parts.sort_by_key(|part| (part.family, part.kind == Kind::Chain));
        }
    }
    let (unread, _) = own.sorted();
    let is_known = !parts.is_empty() || unread.is_empty();
    for gap in unread {
        gaps.add(gap);
    }
    is_known.then_some(parts)
}

/// The prefix in the tree for objects in kube-proxy's nftables table.
const NFT: &str = "nft kube-proxy ";

fn is_of_nft(node: &Node) -> bool {
    node.at.starts_with(NFT)
}

fn add(parts: &mut Vec<Part>, part: Part) {
    if !parts.contains(&part) {
        parts.push(part);
    }
}

/// Returns the rule or element that takes packets to a destination of the Service.
fn dispatch(root: &Node) -> Part {
    let inside = root.at.strip_prefix(NFT);
    let (kind, object) = match inside.and_then(|name| name.split_once(' ')) {
        Some(("map", name)) => (Kind::MapElement, name),
        Some((_, name)) => (Kind::SetElement, name),
        None => (Kind::Rule, root.at.as_str()),
    };
    let does = match root.leads_to.as_deref() {
        Some(to) if to == "reject-chain" || to.starts_with("localhost-nodeport-reject-") => {
            Some(Does::Rejects)
        }
        Some(to) => Some(Does::Chain(to.to_owned())),
        None if root.rule.contains("-j REJECT") => Some(Does::Rejects),
        None if root.rule.ends_with("-j DROP") || root.rule.ends_with(": drop") => {
            Some(Does::Drops)
        }
        None if kind == Kind::SetElement => None,
        None => Some(Does::Rule(root.rule.clone())),
    };
    Part {
        family: root.family,
        kind,
        object: object.to_owned(),
        serves: root.destination.clone(),
        does,
    }
}

/// Adds the Service's own chains below `node`; `shows_all` unless endpoints may exist that are not shown.
fn chains(owners: &Owners, shows_all: bool, node: &Node, parts: &mut Vec<Part>) {
    if let Some(name) = &node.leads_to
        && let Some(does) = does(name)
    {
        let is_nft = is_of_nft(node);
        let owner = if is_nft {
            owners.nft_chain(name)
        } else {
            owners.chain(name)
        };
        let endpoint = match owner {
            Owner::Endpoint(_, endpoint) => Some(endpoint.addr.to_string()),
            _ => None,
        };
        let is_gone = shows_all && does == Does::Translates && matches!(owner, Owner::Gone(_));
        let table = node.at.split(' ').next().unwrap_or_default();
        let part = Part {
            family: node.family,
            kind: Kind::Chain,
            object: if is_nft {
                name.clone()
            } else {
                format!("{table} {name}")
            },
            serves: endpoint,
            does: Some(if is_gone { Does::Stale } else { does }),
        };
        add(parts, part);
    }
    for child in &node.children {
        chains(owners, shows_all, child, parts);
    }
}

/// Returns the effect of a chain of a Service; `None` for a chain that all Services share.
fn does(chain: &str) -> Option<Does> {
    let prefix = match hashed(chain) {
        Some((prefix, _)) => prefix,
        None => chain.split_once('-')?.0,
    };
    Some(match prefix.trim_end_matches('-') {
        "KUBE-SVC" | "service" => Does::Balances,
        "KUBE-SVL" | "KUBE-XLB" | "local" => Does::BalancesLocally,
        "KUBE-EXT" | "external" => Does::AppliesPolicy,
        "KUBE-FW" | "firewall" => Does::ChecksSource,
        "KUBE-SEP" | "endpoint" => Does::Translates,
        _ => return None,
    })
}

fn server(row: ipvs::Row) -> Part {
    let (to, draining): (Vec<_>, Vec<_>) = row
        .real_servers
        .iter()
        .partition(|real_server| real_server.weight > 0);
    let names = |all: Vec<&ipvs::Real>| {
        let all = all
            .into_iter()
            .map(|real_server| real_server.address.to_string());
        all.collect()
    };
    let is_v6 = row.server.starts_with('[');
    Part {
        family: if is_v6 { Family::V6 } else { Family::V4 },
        kind: Kind::VirtualServer,
        serves: None,
        does: Some(if to.is_empty() {
            Does::Rejects
        } else {
            Does::Schedules {
                scheduler: row.scheduler,
                to: names(to),
                draining: names(draining),
            }
        }),
        object: row.server,
    }
}

fn members(row: sets::Row) -> Part {
    let members: Vec<_> = row
        .members
        .into_iter()
        .map(|member| member.member)
        .collect();
    Part {
        family: row.family,
        kind: Kind::SetMembers,
        object: row.set,
        serves: Some(members.join(" ")),
        does: None,
    }
}
