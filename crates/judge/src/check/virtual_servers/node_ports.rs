//! NodePorts in ipvs mode.

use std::collections::{BTreeMap, HashMap};

use crate::check::core::{
    Collector, IDLE, IPVS_TABLE, MODE, RULES, VERSION, all_rules, is_open, name_of, node_ports,
    rule_proof, split_addresses, there,
};
use crate::check::{
    Check, Example, Facts, Finding, Proof, ServiceRef, Severity, Subject, Text, Verdict, When,
};
use kpx_node::backend::Mode;
use kpx_node::backend::iptables::model::{Chain, Match, Policy, States, Table, Target};
use kpx_node::backend::ipvs::model::Key;
use kpx_node::backend::ipvs::print;
use kpx_node::cluster::release::Change;
use kpx_node::evidence::{Gap, Item};
use kpx_node::net::Proto;

pub(super) const CHECKS: &[Check] = &[
    Check {
        id: "VS11",
        name: "node-port-addresses",
        severity: Severity::Warning,
        when: When::Now,
        title: "NodePorts do not answer on the node's bridges and tunnels",
        symptom: "NodePorts answer on docker0, tunnels and other internal addresses, some of which are the same on \
              every node.",
        why: "Without nodePortAddresses kube-proxy creates a virtual server for each NodePort on each local address, \
              including those of docker0 and of overlay links.",
        verify: "Compare the addresses of NodePort virtual servers with their links.",
        commands: &[
            Example::on_node("ipvsadm -Ln"),
            Example::on_node("ip -br addr"),
        ],
        fix: Text::plain(
            "Set nodePortAddresses to [\"primary\"] (since 1.30), or to the prefixes that should accept NodePort traffic.",
        ),
        incidents: &["kubernetes/kubernetes#72236"],
        needs: &[
            MODE,
            IPVS_TABLE,
            &[Item::Addresses, Item::Services],
            VERSION,
        ],
        caused_by: &[],
        run: inner_addresses,
    },
    Check {
        id: "VS12",
        name: "port-is-node-port",
        severity: Severity::Warning,
        when: When::NowAndFor(&[Mode::Ipvs]),
        title: "No Service port has the same number as a NodePort",
        symptom: "One Service sees this node's address as every client's, or some pods cannot reach it.",
        why: "In ipvs mode Service addresses are local, so packets for such a Service port also match the rule of the \
              NodePort with the same number, and are marked for masquerading.",
        verify: "Compare the ports of the Services with the NodePorts.",
        commands: &[
            Example::anywhere("kubectl get services -A -o wide"),
            Example::on_node("ipset list KUBE-NODE-PORT-TCP"),
        ],
        fix: Text::with(
            "Give the Service another port, or switch to another mode with {}.",
            &[Example::kpx(&["migrate", "--to", "MODE"]).with(&["MODE"])],
        ),
        incidents: &["kubernetes/kubernetes#132068"],
        needs: &[MODE, &[Item::Services]],
        caused_by: &[],
        run: port_is_node_port,
    },
    Check {
        id: "VS14",
        name: "input-drops",
        severity: Severity::Error,
        when: When::NowAndFor(&[Mode::Ipvs]),
        title: "The local packet filter accepts traffic for IPVS",
        symptom: "NodePorts that answered in iptables mode do not answer in ipvs mode.",
        why: "IPVS takes packets on local delivery, after chain INPUT of table filter. A host firewall that drops \
              unknown packets there never accepted NodePorts, and in iptables mode did not have to: they are \
              translated before and pass through FORWARD.",
        verify: "With policy DROP, or a final rule that drops, INPUT must accept the NodePorts.",
        commands: &[Example::on_node("iptables -S INPUT")],
        fix: Text::plain(
            "Accept the NodePort range in chain INPUT, in the firewall's own configuration.",
        ),
        incidents: &["kubernetes/kubernetes#98465"],
        needs: &[MODE, RULES, IDLE, &[Item::Services]],
        caused_by: &[],
        run: input,
    },
];

fn inner_addresses(facts: &Facts<'_>) -> Verdict {
    // Links that lead to containers or other nodes, never to clients.
    const INNER: [&str; 9] = [
        "docker", "br-", "cni", "cbr", "flannel", "tunl", "vxlan", "cali", "virbr",
    ];
    facts.only_in(&[Mode::Ipvs])?;
    let node_ports = node_ports(facts)?;
    let (_, others) = split_addresses(facts)?;
    let mut by_link: BTreeMap<&str, Vec<(ServiceRef, Proof)>> = BTreeMap::new();
    for server in &facts.node.ipvs()?.servers {
        let Key::Address { proto, addr, port } = server.key else {
            continue;
        };
        if let Some(at) = others.iter().find(|at| at.addr.addr == addr)
            && let Some(service) = node_ports.get(&(proto.number(), port))
            && INNER.iter().any(|prefix| at.link.starts_with(prefix))
        {
            let seen = Proof::object("virtual-server", print::name(server.key));
            let there = by_link.entry(&at.link).or_default();
            there.push((service.clone(), seen));
        }
    }
    let message = "NodePorts are served on an inner address of the node";
    let takes_primary = facts
        .version()
        .is_ok_and(|found| found.version.has(Change::NodePortPrimary));
    let fix = if takes_primary {
        "Set nodePortAddresses to [\"primary\"], or to the prefixes that should accept NodePort traffic."
    } else {
        "Set nodePortAddresses to the prefixes that should accept NodePort traffic, such as that of the network of the nodes."
    };
    Ok(by_link
        .into_iter()
        .map(|(link, there)| {
            let (services, seen): (Vec<_>, Vec<_>) = there.into_iter().unzip();
            Finding::new(Severity::Warning, Subject::link(link), message)
                .services(services)
                .evidence(seen)
                .fix(fix)
        })
        .collect())
}

fn port_is_node_port(facts: &Facts<'_>) -> Verdict {
    facts.only_in(&[Mode::Ipvs])?;
    let services = facts.node.services()?;
    let ports = || {
        let of = |service| move |port| (service, port);
        services
            .iter()
            .flat_map(move |service| service.spec.ports.iter().map(of(service)))
    };
    // Of several Services with the same NodePort, the first counts.
    let mut node_ports = HashMap::new();
    for (service, port) in ports() {
        if let Some(number) = port.node_port {
            node_ports
                .entry((number, &port.protocol))
                .or_insert(service);
        }
    }
    let mut findings = Vec::new();
    for (service, port) in ports() {
        if let Some(of) = node_ports.get(&(port.port, &port.protocol)) {
            let seen = Proof::Object {
                what: "service",
                name: format!("{} has the NodePort {}", name_of(of), port.port),
            };
            let message = "a port of the Service has the same number as a NodePort: its clients are masqueraded";
            findings.push(
                Finding::new(Severity::Warning, service, message)
                    .services([*of])
                    .evidence([seen]),
            );
        }
    }
    Ok(findings)
}

/// Returns whether a rule of `chain`, or of a chain it jumps to, accepts new connections to `port`.
fn accepts(table: &Table<'_>, chain: &Chain<'_>, port: u16, depth: u8) -> bool {
    chain.rules.iter().any(|rule| {
        let fits = rule.matches.iter().all(|matched| match matched {
            Match::State { states, .. } => states.inverted != (states.value.0 & States::NEW != 0),
            Match::In(link) => link.value != "lo",
            Match::Ports { destination, .. } => destination.is_none_or(|range| {
                range.inverted != (range.value.first..=range.value.last).contains(&port)
            }),
            Match::Multiport { ports, .. } => {
                ports.inverted
                    != ports
                        .value
                        .iter()
                        .any(|r| (r.first..=r.last).contains(&port))
            }
            Match::Icmp { .. } | Match::Rt(_) => false,
            Match::Protocol(proto) => matches!(proto.value, Proto::Tcp),
            // A condition on the source is the decision of the firewall; unknown matches count as matching.
            Match::Source(_)
            | Match::Destination(_)
            | Match::Out(_)
            | Match::TcpFlags(_)
            | Match::Comment(_)
            | Match::AddrType { .. }
            | Match::Mark(_)
            | Match::Connmark(_)
            | Match::Random(_)
            | Match::Nth { .. }
            | Match::Set { .. }
            | Match::Recent(_)
            | Match::Physdev(_)
            | Match::Nfacct(_)
            | Match::Ipvs(_)
            | Match::Limit { .. }
            | Match::IpRange(_)
            | Match::Owner(_)
            | Match::Rpfilter(_)
            | Match::Socket(_)
            | Match::PktType(_)
            | Match::Conntrack(_)
            | Match::Policy(_)
            | Match::Unknown(_) => true,
        });
        fits && match &rule.target {
            Some(Target::Accept) => true,
            Some(Target::Jump(to) | Target::Goto(to)) if depth > 0 && !to.starts_with("KUBE-") => {
                table
                    .chain(to)
                    .is_some_and(|next| accepts(table, next, port, depth - 1))
            }
            _ => false,
        }
    })
}

fn input(facts: &Facts<'_>) -> Verdict {
    facts.only_in(&[Mode::Ipvs])?;
    let services = facts.node.services()?.iter();
    let ports = services.flat_map(|service| &service.spec.ports);
    let Some(port) = ports.filter_map(|port| port.node_port).min() else {
        return Err(Gap::NotApplicable("no Service has a NodePort".to_owned()));
    };
    let mut findings = Collector::default();
    for (family, store, rules) in all_rules(facts, &mut findings) {
        let Some(table) = rules.table("filter") else {
            continue;
        };
        let Some(chain) = table.chain("INPUT") else {
            continue;
        };
        let last = chain.rules.iter().find(|rule| {
            let refuses = matches!(rule.target, Some(Target::Drop | Target::Reject { .. }));
            refuses && rule.matches.iter().all(is_open)
        });
        let closed = chain.policy == Some(Policy::Drop) || last.is_some();
        if !closed || accepts(table, chain, port, 5) {
            continue;
        }
        let message = format!(
            "the chain{} drops locally delivered packets by default, and does not accept NodePorts",
            there(store)
        );
        let seen = match last {
            Some(rule) => rule_proof(family, table, chain, rule),
            None => Proof::rule(family, "filter", "-P INPUT DROP"),
        };
        let refused = node_ports(facts)?.into_iter();
        let refused = refused.filter(|((_, port), _)| !accepts(table, chain, *port, 5));
        findings.push(
            Finding::new(
                Severity::Error,
                Subject::chain(family, "filter", "INPUT"),
                message,
            )
            .called(format!("{family} INPUT"))
            .services(refused.map(|(_, service)| service))
            .evidence([seen]),
        );
    }
    findings.verdict()
}
