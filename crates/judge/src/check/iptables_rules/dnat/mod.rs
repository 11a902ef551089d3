//! IR18: DNAT rules of other software that lead to cluster IPs.
//!
//! The kernel translates the destination of a connection once. After a DNAT to a cluster IP, the nat rules of kube-proxy no
//! longer apply, in whichever table, hook or backend both are: the packet leaves the node for an address that no machine has.
//! IPVS does not use the nat tables, so in ipvs mode such a rule works.

mod rules;

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::net::IpAddr;

use crate::check::core::{
    Collector, IDLE, IPVS_TABLE, MODE, NFT, REPLACED, REPLACEMENT, RULES, is_replaced, proof_of,
};
use crate::check::{
    Check, Example, Facts, Finding, Fix, Proof, ServiceRef, Severity, Subject, Text, Verdict, When,
};
use crate::trace::Rule;
use kpx_node::backend::Mode;
use kpx_node::backend::ipvs::model::{DUMMY, Key};
use kpx_node::evidence::{Gap, Item};
use kpx_node::owner::{Port, Role};
use rules::{Destination, in_iptables, in_nftables};

pub(super) const CHECKS: &[Check] = &[Check {
    id: "IR18",
    name: "dnat-to-cluster-ip",
    severity: Severity::Error,
    when: When::NowAndFor(&Mode::ALL),
    title: "No DNAT rule of other software leads to a cluster IP",
    symptom: "An address that other software forwards to a Service does not answer, although the Service's cluster IP does.",
    why: "The kernel translates the destination of a connection once. After a DNAT of other software to a cluster IP, \
          kube-proxy's DNAT no longer applies, and the packet leaves the node by the default route. Only ipvs mode, \
          which does not use the nat table for this, then still leads to an endpoint.",
    verify: "Trace a packet to the address that the rule matches: it must end at a pod.",
    commands: &[
        Example::on_node(
            "iptables-nft-save -t nat | grep DNAT; iptables-legacy-save -t nat | grep DNAT",
        ),
        Example::on_node("nft list ruleset | grep dnat"),
        Example::anywhere("kubectl get services -A -o wide"),
    ],
    fix: Text::plain(
        "Let the rule lead to the Service's endpoints, or replace it with a Service of type LoadBalancer or with \
          externalIPs, which kube-proxy translates itself.",
    ),
    incidents: &["tailscale/tailscale#18338"],
    needs: &[
        MODE,
        RULES,
        IDLE,
        NFT,
        IPVS_TABLE,
        REPLACEMENT,
        &[Item::Services],
    ],
    caused_by: &[],
    run: dnats_to_cluster_ips,
}];

fn dnats_to_cluster_ips(facts: &Facts<'_>) -> Verdict {
    let mut all = Collector::default();
    let mut rules = in_iptables(facts, &mut all);
    rules.extend(in_nftables(facts, &mut all));
    if rules.is_empty() {
        return all.verdict();
    }
    facts.node.services()?;
    if facts.reported().is_err() && is_replaced(facts)? {
        return Err(Gap::NotApplicable(REPLACED.to_owned()));
    }
    let services = Services::of(facts);
    for rule in rules {
        // IR16 reports if this rule takes packets before kube-proxy's rules do.
        if rule.matches.is_some_and(|addr| services.has(addr)) {
            continue;
        }
        let mut led = BTreeMap::new();
        for target in &rule.targets {
            for (addr, ports) in services.cluster_ips(target) {
                if !all
                    .read(is_served(facts, *addr, target.port, ports))
                    .unwrap_or(true)
                {
                    led.insert(*addr, ports);
                }
            }
        }
        if !led.is_empty() {
            all.push(finding(facts, &rule.at, &led));
        }
    }
    all.verdict()
}

/// The Services of kube-proxy.
struct Services<'f> {
    by_cluster_ip: BTreeMap<IpAddr, Vec<&'f Port>>,
    addresses: HashSet<IpAddr>,
}

impl<'f> Services<'f> {
    fn of(facts: &'f Facts<'_>) -> Self {
        let mut found = Self {
            by_cluster_ip: BTreeMap::new(),
            addresses: HashSet::new(),
        };
        let ports = facts.owners().ports().iter();
        for port in ports.filter(|port| port.left_to.is_none()) {
            for (role, addr) in &port.addresses {
                found.addresses.insert(*addr);
                if *role == Role::ClusterIp {
                    found.by_cluster_ip.entry(*addr).or_default().push(port);
                }
            }
        }
        found
    }

    fn has(&self, addr: IpAddr) -> bool {
        self.addresses.contains(&addr)
    }

    /// Returns the cluster IPs in `to`, with the ports of their Services.
    fn cluster_ips(&self, to: &Destination) -> impl Iterator<Item = (&IpAddr, &Vec<&'f Port>)> {
        let last = to.last.max(to.first);
        self.by_cluster_ip.range(to.first..=last)
    }
}

/// Returns whether packets that a DNAT sends to the cluster IP `addr` are served on this node.
fn is_served(
    facts: &Facts<'_>,
    addr: IpAddr,
    port: Option<u16>,
    ports: &[&Port],
) -> Result<bool, Gap> {
    let here = &facts.node.addresses()?.all;
    let links: Vec<_> = here.iter().filter(|at| at.addr.addr == addr).collect();
    // A program of the node serves the address, such as a cache for DNS.
    if links.iter().any(|at| at.link != DUMMY) {
        return Ok(true);
    }
    if facts.mode()? != Mode::Ipvs {
        return Ok(false);
    }
    if facts.target().is_some() {
        return Ok(port.is_none() || ports.iter().any(|service_port| service_port.port == port));
    }
    let servers = facts.node.ipvs_or_none()?.servers.iter();
    let mut servers = servers.filter_map(|server| match server.key {
        Key::Address { addr: at, port, .. } if at == addr => Some(port),
        _ => None,
    });
    let has_server = servers.any(|at| port.is_none_or(|port| port == at));
    Ok(has_server && !links.is_empty())
}

fn finding(facts: &Facts<'_>, at: &Rule, led: &BTreeMap<IpAddr, &Vec<&Port>>) -> Finding {
    let of = |ports: &[&Port]| -> BTreeSet<ServiceRef> {
        let all = ports.iter();
        all.map(|port| ServiceRef::from(&port.name).whole())
            .collect()
    };
    let services: BTreeSet<_> = led.values().flat_map(|ports| of(ports)).collect();
    let first = services.iter().next().map(ToString::to_string);
    let first = first.unwrap_or_default();
    let which = match services.len() {
        0 | 1 => first,
        several => format!("{first} and {} more Services", several - 1),
    };
    let again = match facts.mode() {
        Ok(Mode::Ipvs) => "but the node has no virtual server for it".to_owned(),
        Ok(mode) => format!("which kube-proxy in mode {mode} cannot translate again"),
        Err(_) => "which kube-proxy cannot translate again".to_owned(),
    };
    let message =
        format!("a DNAT rule of other software leads to the cluster IP of {which}, {again}");
    let named = led.iter().map(|(addr, ports)| {
        let services: Vec<_> = of(ports).iter().map(ToString::to_string).collect();
        Proof::Note(format!(
            "{addr} is the cluster IP of {}",
            services.join(", ")
        ))
    });
    let finding = Finding::new(Severity::Error, Subject::Rule(at.clone()), message)
        .called(at.name(facts.node))
        .services(&services)
        .evidence([proof_of(at)])
        .evidence(named);
    match at.deletion(facts.node) {
        Some(command) => finding.fix(Fix::on_node(REPLACE, command).to_decide()),
        None => finding,
    }
}

/// The fix of a rule that can be deleted.
const REPLACE: &str = "Let the rule lead to the Service's endpoints, or delete it, here and in the configuration that creates it: a Service \
    of type LoadBalancer or with externalIPs has addresses that kube-proxy translates itself.";
