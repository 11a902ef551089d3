//! The signs of each known bug on a node.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};

use super::Shown;
use crate::check::conntrack::{Why, stale_of};
use crate::check::core::{
    Collector, all_rules, connection_proof, is_served, name_of, newer_nft, proto_of,
    sets_of_others, split_addresses, there,
};
use crate::check::{Facts, Proof, ServiceRef, Subject, kube_proxy};
use crate::diff::{self, ChangeKind, Object};
use kpx_node::backend::Mode;
use kpx_node::backend::ipvs::model::Key;
use kpx_node::backend::nftables::expect::TABLE;
use kpx_node::backend::nftables::model::{Datum, Verdict};
use kpx_node::cluster::Service;
use kpx_node::desired::{DesiredState, FamilyState, ServicePort};
use kpx_node::evidence::kernel_log::{self, Message};
use kpx_node::evidence::{Gap, Item};
use kpx_node::net::{Cidr, Family, Proto};
use kpx_node::node::runtime::Metrics;
use kpx_node::owner::PortName;
use kpx_node::owner::chain_owner::is_node_local_dns;
use kpx_node::words::number_of;

type Seen = Result<Shown, Gap>;

const METRICS: &str = "kube-proxy's metrics";
const FAILURES: &str = "kubeproxy_sync_proxy_rules_nftables_sync_failures_total";
const FULL_SYNC: &str = "kubeproxy_sync_full_proxy_rules_duration_seconds";

impl From<Vec<Proof>> for Shown {
    /// Returns facts that concern the whole node.
    fn from(proofs: Vec<Proof>) -> Self {
        Self {
            proofs,
            services: Vec::new(),
            within: Vec::new(),
        }
    }
}

/// Returns the first of `found`, each a fact about a Service, how many more there are, and all their Services.
fn some_of(found: impl IntoIterator<Item = (ServiceRef, Proof)>, what: &str) -> Shown {
    let (services, proofs) = found.into_iter().unzip();
    Shown {
        proofs: some(proofs, what),
        services,
        within: Vec::new(),
    }
}

/// Returns the first of `proofs`, and how many more there are.
fn some(mut proofs: Vec<Proof>, what: &str) -> Vec<Proof> {
    const SHOWN: usize = 3;
    let more = proofs.len().saturating_sub(SHOWN);
    proofs.truncate(SHOWN);
    if more > 0 {
        proofs.push(Proof::Note(format!("and {}", number_of(more, what))));
    }
    proofs
}

/// Returns the UDP flows that no endpoint answers for the reason `why`.
fn udp(facts: &Facts<'_>, why: Why) -> Seen {
    let flows = stale_of(facts.node, None, facts.owners())?.into_iter();
    let flows = flows.filter(|flow| flow.why == why && flow.entry.proto == Proto::Udp);
    let flows = flows.map(|flow| (flow.service.into(), connection_proof(flow.entry)));
    Ok(some_of(flows, "flow"))
}

pub(super) fn stale_udp(facts: &Facts<'_>) -> Seen {
    udp(facts, Why::Gone)
}

pub(super) fn udp_without_endpoints(facts: &Facts<'_>) -> Seen {
    udp(facts, Why::WithoutEndpoints)
}

pub(super) fn udp_of_deleted_service(facts: &Facts<'_>) -> Seen {
    let flows = facts.node.conntrack()?;
    facts.node.services()?;
    let owners = facts.owners();
    let mut ended: Vec<_> = flows.entries.iter().collect();
    ended.retain(|entry| {
        let (to, from) = (entry.original.destination, entry.reply.source);
        entry.proto == Proto::Udp && from != to && owners.served_at(to, entry.proto).is_none()
    });
    if !ended.is_empty() {
        let ranges = facts.node.service_cidrs()?.iter();
        let ranges = ranges.flat_map(|range| &range.spec.cidrs);
        let ranges: Vec<Cidr> = ranges.filter_map(|text| text.parse().ok()).collect();
        ended.retain(|entry| {
            let to = entry.original.destination.ip();
            ranges.iter().any(|range| range.contains(to))
        });
    }
    Ok(some(ended.into_iter().map(connection_proof).collect(), "flow").into())
}

pub(super) fn memory(facts: &Facts<'_>) -> Seen {
    const NAME: &str = "process_resident_memory_bytes";
    const MUCH: f64 = 1_073_741_824.0;
    let here = facts.node_name();
    let pods = facts.node.pods();
    let mut seen = Vec::new();
    for pod in pods.iter().flat_map(|pods| pods.iter()) {
        let statuses = pod.status.container_statuses.iter();
        let killed = statuses.filter(|status| {
            let last = status.last_state.terminated.as_ref();
            status.name == "kube-proxy"
                && last.is_some_and(|exit| exit.reason.as_deref() == Some("OOMKilled"))
        });
        if pod.spec.node_name == here {
            seen.extend(killed.map(|killed| {
                let source = format!("pod {}", pod.metadata.name);
                Proof::setting(
                    source,
                    "last exit",
                    format!("OOMKilled, {} restarts", killed.restart_count),
                )
            }));
        }
    }
    let metrics = facts.node.metrics();
    let large = metrics.iter().flat_map(|metric| metric.of(NAME));
    let large = large.filter(|sample| sample.value > MUCH);
    seen.extend(large.map(|sample| Proof::setting(METRICS, NAME, sample.value)));
    if seen.is_empty() {
        pods?;
        metrics?;
    }
    Ok(seen.into())
}

/// Returns the average of the histogram `name`, if it is longer than `most` seconds.
fn slow(metrics: &Metrics<'_>, name: &str, most: f64) -> Vec<Proof> {
    let average = metrics.average(name).filter(|average| *average > most);
    let proof =
        average.map(|average| Proof::setting(METRICS, name, format!("{average:.1} s on average")));
    proof.into_iter().collect()
}

pub(super) fn slow_conntrack(facts: &Facts<'_>) -> Seen {
    const NAME: &str = "kubeproxy_conntrack_reconciler_sync_duration_seconds";
    Ok(slow(facts.node.metrics()?, NAME, 1.0).into())
}

pub(super) fn slow_full_sync(facts: &Facts<'_>) -> Seen {
    Ok(slow(facts.node.metrics()?, FULL_SYNC, 60.0).into())
}

pub(super) fn slow_full_sync_of_large_cluster(facts: &Facts<'_>) -> Seen {
    // From this number of endpoints on, kube-proxy treats a cluster as large.
    const LARGE: usize = 1000;
    let slices = facts.node.slices()?.iter();
    let endpoints: usize = slices.map(|slice| slice.endpoints.len()).sum();
    if endpoints <= LARGE {
        return Ok(Shown::default());
    }
    let mut seen = slow(facts.node.metrics()?, FULL_SYNC, 10.0);
    if seen.is_empty() {
        return Ok(Shown::default());
    }
    seen.push(Proof::Note(number_of(endpoints, "endpoint")));
    Ok(seen.into())
}

pub(super) fn reused_address(facts: &Facts<'_>) -> Seen {
    let here = facts.node_name();
    let (mut seen, mut services) = (Vec::new(), Vec::new());
    for slice in facts.node.slices()? {
        let mut first: BTreeMap<&str, bool> = BTreeMap::new();
        for endpoint in &slice.endpoints {
            let conditions = &endpoint.conditions;
            let Some(address) = endpoint.addresses.first() else {
                continue;
            };
            let leaves =
                conditions.terminating.unwrap_or(false) && !conditions.serving.unwrap_or(true);
            let Some(was_leaving) = first.insert(address, leaves) else {
                continue;
            };
            let is_local = here.is_some() && endpoint.node_name == here;
            if was_leaving && conditions.ready.unwrap_or(true) && !is_local {
                let source = format!(
                    "EndpointSlice {}/{}",
                    slice.metadata.namespace, slice.metadata.name
                );
                let value = format!("{address} of a terminating and of a ready pod");
                seen.push(Proof::setting(source, "endpoints", value));
                let of = slice.service();
                services.extend(of.map(|(namespace, name)| ServiceRef::new(namespace, name)));
            }
        }
    }
    Ok(Shown {
        proofs: some(seen, "endpoint"),
        services,
        within: Vec::new(),
    })
}

pub(super) fn missing_rules(facts: &Facts<'_>) -> Seen {
    let held = |family: &Family| {
        facts
            .observed(*family)
            .is_ok_and(|held| held == Some(Mode::Iptables))
    };
    let families: Vec<_> = Family::BOTH.into_iter().filter(held).collect();
    if families.is_empty() {
        facts.written(Mode::Iptables)?;
        return Ok(Shown::default());
    }
    let found = diff::compare(facts.node, Mode::Iptables, &families)?;
    // Only chains with endpoints: the rules that lead to them may differ from release to release.
    let of_endpoints =
        |chain: &str| chain.starts_with("KUBE-SVC-") || chain.starts_with("KUBE-SEP-");
    let missing = found.changes.iter().filter(|change| {
        let (Object::IptablesChain { chain, .. } | Object::IptablesRule { chain, .. }) =
            &change.object
        else {
            return false;
        };
        // A change that is queued is not lost.
        let is_queued = kube_proxy::queued_sync(facts, change.family).is_some();
        change.kind() == ChangeKind::Missing && of_endpoints(chain) && !is_queued
    });
    let missing: Vec<_> = missing.collect();
    let names = missing
        .iter()
        .filter_map(|change| change.service.as_deref());
    let services = names.filter_map(PortName::parse).map(Into::into);
    Ok(match missing.len() {
        0 => {
            facts.written(Mode::Iptables)?;
            let unknown = found.unknown.into_iter().next();
            return unknown.map_or_else(|| Ok(Shown::default()), |part| Err(part.gap));
        }
        count => Shown {
            proofs: vec![Proof::Note(format!("{} missing", number_of(count, "rule")))],
            services: services.collect(),
            within: Vec::new(),
        },
    })
}

/// Returns the Services that kube-proxy serves and `wanted` chooses.
fn services(facts: &Facts<'_>, wanted: fn(&Service) -> bool) -> Result<Vec<ServiceRef>, Gap> {
    let all = facts.node.services()?.iter();
    let all = all.filter(|service| is_served(service) && wanted(service));
    Ok(all.map(ServiceRef::from).collect())
}

fn is_local(service: &Service) -> bool {
    service.spec.external_traffic_policy.as_deref() == Some("Local")
}

/// Returns the Services in `names`, if the chain KUBE-IPVS-FILTER exists and none of its rules names the set `set`: its name
/// without the prefix, which differs by family.
fn not_let_pass(facts: &Facts<'_>, services: Vec<ServiceRef>, set: &str) -> Seen {
    if services.is_empty() {
        return Ok(Shown::default());
    }
    let (mut seen, mut all) = (Vec::new(), Collector::default());
    for (family, store, rules) in all_rules(facts, &mut all) {
        let Some(chain) = rules.chain("filter", "KUBE-IPVS-FILTER") else {
            continue;
        };
        if !chain
            .rules
            .iter()
            .any(|rule| rule.to_string().contains(set))
        {
            seen.push(Proof::Note(format!(
                "{family}: no rule of KUBE-IPVS-FILTER{} names a set {set}",
                there(store)
            )));
        }
    }
    if seen.is_empty() {
        return all.verdict().map(|_| Shown::default());
    }
    let proof = |service: &ServiceRef| Proof::object("service", service.to_string());
    seen.extend(services.iter().map(proof));
    Ok(Shown {
        proofs: some(seen, "Service"),
        services,
        within: Vec::new(),
    })
}

/// Returns the Services with NodePorts of SCTP and policy Local, if the rule that masquerades comes before the one for that policy.
pub(super) fn sctp_source_replaced(facts: &Facts<'_>) -> Seen {
    let services = services(facts, |service| {
        let mut ports = service.spec.ports.iter();
        let has_one = ports.any(|port| {
            proto_of(&port.protocol) == Proto::Sctp
                && port.node_port.is_some_and(|number| number != 0)
        });
        is_local(service) && has_one
    })?;
    if services.is_empty() {
        return Ok(Shown::default());
    }
    let mut all = Collector::default();
    for (_, _, rules) in all_rules(facts, &mut all) {
        let Some(chain) = rules.chain("nat", "KUBE-NODE-PORT") else {
            continue;
        };
        let at = |set: &str| {
            let mut rules = chain.rules.iter();
            rules.position(|rule| rule.to_string().contains(set))
        };
        let (Some(masked), Some(local)) = (at("-NODE-PORT-SCTP"), at("-NODE-PORT-LOCAL-SCTP"))
        else {
            continue;
        };
        if masked < local {
            let rule = Proof::Note(chain.rules[masked].to_string());
            let proof = |service: &ServiceRef| Proof::object("service", service.to_string());
            let proofs = std::iter::once(rule)
                .chain(services.iter().map(proof))
                .collect();
            return Ok(Shown {
                proofs: some(proofs, "Service"),
                services,
                within: Vec::new(),
            });
        }
    }
    all.verdict().map(|_| Shown::default())
}

pub(super) fn health_checks_rejected(facts: &Facts<'_>) -> Seen {
    let names = services(facts, |service| {
        service
            .spec
            .health_check_node_port
            .is_some_and(|port| port != 0)
    })?;
    not_let_pass(facts, names, "HEALTH-CHECK-NODE-PORT")
}

pub(super) fn local_external_ips_rejected(facts: &Facts<'_>) -> Seen {
    let names = services(facts, |service| {
        is_local(service) && !service.spec.external_ips.is_empty()
    })?;
    not_let_pass(facts, names, "EXTERNAL-IP-LOCAL")
}

/// Returns the addresses that kube-ipvs0 shares with another link of the node.
pub(in crate::check) fn shared_addresses(facts: &Facts<'_>) -> Result<Vec<IpAddr>, Gap> {
    let (ours, others) = split_addresses(facts)?;
    let is_shared = |ip: &IpAddr| {
        let mut others = others.iter();
        others.any(|address| address.addr.addr == *ip && !is_node_local_dns(&address.link))
    };
    let ours = ours.iter().map(|address| address.addr.addr);
    Ok(ours.filter(is_shared).collect())
}

pub(super) fn node_ports_missing(facts: &Facts<'_>) -> Seen {
    let shared = shared_addresses(facts)?;
    if shared.is_empty() {
        return Ok(Shown::default());
    }
    let servers = &facts.node.ipvs()?.servers;
    let mut shown = Shown::default();
    let mut missing = Vec::new();
    for service in facts
        .node
        .services()?
        .iter()
        .filter(|service| is_served(service))
    {
        for port in &service.spec.ports {
            let Some(number) = port.node_port.filter(|number| *number != 0) else {
                continue;
            };
            for addr in &shared {
                let key = Key::Address {
                    proto: proto_of(&port.protocol),
                    addr: *addr,
                    port: number,
                };
                if servers.iter().any(|server| server.key == key) {
                    continue;
                }
                let at = SocketAddr::new(*addr, number);
                missing.push(Proof::Note(format!(
                    "no virtual server at {at}, a NodePort of {}",
                    name_of(service)
                )));
                shown.services.push(service.into());
                let about = Subject::from(*addr);
                if !shown.within.contains(&about) {
                    shown.within.push(about);
                }
            }
        }
    }
    shown.proofs = some(missing, "NodePort");
    Ok(shown)
}

pub(super) fn own_address_in_set(facts: &Facts<'_>) -> Seen {
    let sets = facts.node.evidence().text(Item::Ipset)?;
    let node = facts.this_node()?;
    let ours = node.status.addresses.iter().map(|address| &address.address);
    let held = ours.filter(|address| {
        sets.lines().any(|line| {
            ["KUBE-IPVS-IPS", "KUBE-6-IPVS-IPS"]
                .iter()
                .any(|set| line.trim() == format!("add {set} {address}"))
        })
    });
    let held: Vec<&String> = held.collect();
    let within = held.iter().filter_map(|text| text.parse::<IpAddr>().ok());
    let proof =
        |address: &&String| Proof::setting("set KUBE-IPVS-IPS", "the node's own address", *address);
    Ok(Shown {
        within: within.map(Subject::from).collect(),
        ..held.iter().map(proof).collect::<Vec<_>>().into()
    })
}

pub(super) fn newer_sets(facts: &Facts<'_>) -> Seen {
    let failed = facts.node.metrics()?.of(FAILURES);
    let failed: Vec<_> = failed
        .filter(|sample| sample.value > 0.0)
        .map(|sample| Proof::setting(METRICS, FAILURES, sample.value))
        .collect();
    if failed.is_empty() {
        return Ok(Shown::default());
    }
    let Some(version) = newer_nft(facts)? else {
        return Ok(Shown::default());
    };
    let sets = sets_of_others(facts)?;
    if sets.is_empty() {
        return Ok(Shown::default());
    }
    let mut seen = some(sets, "set");
    seen.extend(failed);
    seen.push(Proof::Note(format!("the node's {version}")));
    Ok(seen.into())
}

pub(super) fn soft_lockup(facts: &Facts<'_>) -> Seen {
    let log = kernel_log::parse(facts.node.evidence().text(Item::KernelLog)?);
    let log = log.iter();
    let stuck = log.filter(|entry| entry.message() == Some(Message::HeldByNft));
    let stuck = stuck.map(|entry| Proof::Log(entry.line.to_owned()));
    Ok(some(stuck.collect(), "line").into())
}

pub(super) fn local_load_balancer_dropped(facts: &Facts<'_>) -> Seen {
    let mut seen = Vec::new();
    for service in facts
        .node
        .services()?
        .iter()
        .filter(|service| is_local(service))
    {
        let rules = facts.node.nft()?;
        let ingress = service.status.load_balancer.ingress.iter();
        for ip in ingress.filter_map(|ingress| ingress.ip.as_deref()) {
            let family = if ip.contains(':') {
                Family::V6
            } else {
                Family::V4
            };
            let table = rules.table(family.nft_name(), TABLE);
            let map = table.and_then(|table| table.set("no-endpoint-services"));
            let mut elements = map.iter().flat_map(|map| &map.elements);
            // `Debug` quotes the address, so it cannot be part of another.
            let quoted = format!("{ip:?}");
            let drops = elements.any(|element| {
                element.value == Some(Datum::Verdict(Verdict::Drop))
                    && format!("{:?}", element.key).contains(&quoted)
            });
            if drops {
                let value = format!("{ip} is dropped in map no-endpoint-services");
                let proof = Proof::setting(name_of(service), "load balancer", value);
                seen.push((service.into(), proof));
            }
        }
    }
    Ok(some_of(seen, "address"))
}

pub(super) fn local_by_interface(facts: &Facts<'_>) -> Seen {
    let mode = facts.configuration()?.detect_local_mode;
    Ok(match mode.as_str() {
        "BridgeInterface" | "InterfaceNamePrefix" => vec![Proof::setting(
            "kube-proxy's configuration",
            "detectLocalMode",
            mode,
        )]
        .into(),
        _ => Shown::default(),
    })
}

pub(super) fn no_protocols(facts: &Facts<'_>) -> Seen {
    let served = services(facts, |_| true)?;
    let rules = facts.node.nft()?;
    let tables = Family::BOTH.map(|family| rules.table(family.nft_name(), TABLE));
    let mut maps = tables
        .iter()
        .flatten()
        .filter_map(|table| table.set("service-ips"));
    let empty = maps.clone().next().is_some() && maps.all(|map| map.elements.is_empty());
    if served.is_empty() || !empty {
        return Ok(Shown::default());
    }
    let tools = facts.node.evidence().text(Item::ProxyTools)?;
    let has = |end: &str| tools.lines().any(|path| path.ends_with(end));
    if !has("/nft") || has("/etc/protocols") {
        return Ok(Shown::default());
    }
    let proofs = vec![
        Proof::object("map", "service-ips: no elements"),
        Proof::Note("/etc/protocols is not in kube-proxy's file system".to_owned()),
        Proof::Note(number_of(served.len(), "Service")),
    ];
    Ok(Shown {
        proofs,
        services: served,
        within: Vec::new(),
    })
}

/// Returns the Services with a NodePort for which kube-proxy should listen on a loopback address; a Service without endpoints
/// has no listener.
fn listened_on_loopback(state: &DesiredState) -> Vec<ServiceRef> {
    let families = state.families.iter();
    let families = families.filter(|family| state.listens_on_loopback(family.family));
    let ports = families.flat_map(|state: &FamilyState| &state.ports);
    let listens = |port: &&ServicePort| {
        let at = if port.external_local {
            port.local_at()
        } else {
            port.cluster_at()
        };
        port.proto == Proto::Tcp && port.node_port.is_some() && !at.is_empty()
    };
    let services = ports
        .filter(listens)
        .map(|port| ServiceRef::new(&port.namespace, &port.service));
    services.collect::<BTreeSet<_>>().into_iter().collect()
}

pub(super) fn localhost_closed(facts: &Facts<'_>) -> Seen {
    const NAME: &str = "kubeproxy_nftables_localhost_nodeport_listeners";
    let state = facts.node.desired(Mode::Nftables)?;
    let with = listened_on_loopback(state);
    if with.is_empty() {
        return Ok(Shown::default());
    }
    let listeners: Vec<_> = facts.node.metrics()?.of(NAME).collect();
    if listeners.is_empty() || listeners.iter().any(|listener| listener.value > 0.0) {
        return Ok(Shown::default());
    }
    let words = state.config.node_port_addresses.join(", ");
    let proofs = vec![
        Proof::setting("kube-proxy's configuration", "nodePortAddresses", words),
        Proof::setting(METRICS, NAME, 0),
        Proof::Note(format!(
            "{} with NodePorts",
            number_of(with.len(), "Service")
        )),
    ];
    Ok(Shown {
        proofs,
        services: with,
        within: Vec::new(),
    })
}
