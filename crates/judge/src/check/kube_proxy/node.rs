//! The node's name, addresses and prefixes as kube-proxy knows them.

use std::collections::BTreeSet;
use std::net::IpAddr;

use crate::check::core::{Collector, MODE, VERSION, bridges, containers, flags_of};
use crate::check::{
    Because, Check, Example, Facts, Finding, Fix, Proof, ServiceRef, Severity, Subject, Text,
    Verdict, When,
};
use kpx_node::backend::Mode;
use kpx_node::cluster::flags::Flags;
use kpx_node::cluster::release::Change;
use kpx_node::cluster::{Container, Node, Pod, Service};
use kpx_node::evidence::{Gap, Item};
use kpx_node::net::{Cidr, Family};
use kpx_node::node::desired::NEEDS;
use kpx_node::words::listed;

pub(super) const CHECKS: &[Check] = &[
    Check {
        id: "KP09",
        name: "local-traffic",
        severity: Severity::Warning,
        when: When::NowAndFor(&Mode::ALL),
        title: "kube-proxy can detect local pods' traffic in every IP family in use",
        symptom: "Traffic to Service addresses from outside the cluster, or from the node itself, gets no answers.",
        why: "Traffic to a Service address that does not come from local pods is masqueraded. kube-proxy detects it \
              with clusterCIDR, or with detectLocalMode and the setting that it names. If neither covers a family, \
              kube-proxy keeps the source of that family's packets.",
        verify: "The setting clusterCIDR must have a prefix of each family, or detectLocalMode must name another \
              method.",
        commands: &[Example::anywhere(
            "kubectl -n kube-system get configmap kube-proxy -o yaml | grep -E 'clusterCIDR|detectLocal'",
        )],
        fix: Text::plain(
            "Set clusterCIDR to the pods' prefixes of each family, or masqueradeAll to true, and restart kube-proxy.",
        ),
        incidents: &["aws/containers-roadmap#2826"],
        needs: &[MODE, NEEDS],
        caused_by: &[],
        run: local_traffic,
    },
    Check {
        id: "KP10",
        name: "address-families",
        severity: Severity::Error,
        when: When::Now,
        title: "kube-proxy's configuration has the prefixes and links of the pods",
        symptom: "Traffic between pods is masqueraded, or external traffic is not; network policies see wrong source \
              addresses.",
        why: "With clusterCIDR kube-proxy treats traffic from these prefixes as traffic of pods. If this node's pods have other \
              prefixes or another IP family, every masquerading decision is wrong. The same holds if the link that detectLocal \
              names does not exist.",
        verify: "The Node's podCIDRs must lie in clusterCIDR, family by family; the links that detectLocal names must exist.",
        commands: &[
            Example::anywhere("kubectl get node NAME -o jsonpath='{.spec.podCIDRs}'")
                .with(&["NAME"]),
            Example::anywhere(
                "kubectl -n kube-system get configmap kube-proxy -o yaml | grep clusterCIDR",
            ),
        ],
        fix: Text::plain(
            "Set clusterCIDR to the prefixes that the pods really have, and restart kube-proxy.",
        ),
        incidents: &["kube-proxy rejects some of these when it starts"],
        needs: &[&[
            Item::ProxyConfig,
            Item::ConfigMaps,
            Item::Nodes,
            Item::Addresses,
            Item::Pods,
            Item::Services,
            Item::Links,
        ]],
        caused_by: &[],
        run: prefixes,
    },
    Check {
        id: "KP11",
        name: "node-name",
        severity: Severity::Error,
        when: When::Now,
        title: "kube-proxy uses the name of its own Node",
        symptom: "Services with a Local traffic policy get no traffic on this node: its endpoints do not count as local.",
        why: "kube-proxy finds its Node, and its local endpoints, by name: the flag --hostname-override, else the setting \
              hostnameOverride, else the name of the machine. If no Node has this name, every endpoint counts as remote. If \
              another Node has it (all nodes share a ConfigMap with one name), the endpoints of that Node count as local.",
        verify: "The flag, or without it the setting, must be the name of the Node.",
        commands: &[
            Example::anywhere("kubectl get nodes"),
            Example::anywhere("kubectl -n kube-system logs POD | grep -i nodeip").with(&["POD"]),
        ],
        fix: Text::plain(
            "Set hostnameOverride to the Node's name, from the pod's spec.nodeName, and restart kube-proxy.",
        ),
        incidents: &["kubernetes/kubernetes#66062"],
        needs: &[&[
            Item::ProxyConfig,
            Item::Nodes,
            Item::Addresses,
            Item::Processes,
            Item::Pods,
            Item::DaemonSets,
            Item::Host,
            Item::Services,
            Item::EndpointSlices,
        ]],
        caused_by: &[],
        run: node_name,
    },
    Check {
        id: "KP12",
        name: "node-address",
        severity: Severity::Warning,
        when: When::NowAndFor(&Mode::ALL),
        title: "kube-proxy knows an address of the node in every IP family in use",
        symptom: "NodePorts do not answer, or hairpin and source-range rules use 127.0.0.1.",
        why: "kube-proxy takes the node's addresses from the Node object. If the Node has no address of a family, \
              kube-proxy uses the loopback address and logs that.",
        verify: "The Node must have an InternalIP of each family that Services use.",
        commands: &[
            Example::anywhere("kubectl get node NAME -o jsonpath='{.status.addresses}'")
                .with(&["NAME"]),
            Example::anywhere("kubectl -n kube-system logs POD | grep NodeIPs").with(&["POD"]),
        ],
        fix: Text::plain(
            "Give the kubelet both addresses (--node-ip), or set bindAddress in kube-proxy's configuration.",
        ),
        incidents: &["kube-proxy logs a warning when it starts"],
        needs: &[MODE, NEEDS, VERSION],
        caused_by: &[Because::Loss("KP11")],
        run: node_address,
    },
];

fn local_traffic(facts: &Facts<'_>) -> Verdict {
    let mode = facts.mode()?;
    let desired = facts.node.desired(mode)?;
    if desired.masquerade_all {
        return Err(Gap::NotApplicable("masqueradeAll is set".to_owned()));
    }
    let config = &desired.config;
    let blind = desired.families.iter();
    let mut blind = blind
        .filter(|state| !state.ports.is_empty() && state.detector.is_none())
        .peekable();
    if blind.peek().is_some() && config.detect_local_mode == "NodeCIDR" {
        // The Node has the prefix.
        facts.this_node()?;
    }
    Ok(blind
        .map(|state| {
            let message = "kube-proxy cannot tell pods from clients outside, so it keeps all source IPs: replies may be lost";
            Finding::new(Severity::Warning, state.family, message).evidence([
                Proof::Setting {
                    source: "kube-proxy's configuration".to_owned(),
                    key: "clusterCIDR".to_owned(),
                    value: format!("{:?}", config.cluster_cidr),
                },
                Proof::Setting {
                    source: "kube-proxy's configuration".to_owned(),
                    key: "detectLocalMode".to_owned(),
                    value: format!("{:?}", config.detect_local_mode),
                },
            ])
        })
        .collect())
}

/// A name that kube-proxy uses for its node.
struct Called {
    source: String,
    key: &'static str,
    value: String,
}

fn node_name(facts: &Facts<'_>) -> Verdict {
    let Some(Called { source, key, value }) = called(facts)? else {
        // The kubelet fills in the name of the node itself.
        return Ok(Vec::new());
    };
    let name = value.trim().to_lowercase();
    let nodes = facts.node.nodes()?;
    if nodes.is_empty() {
        return Err(Gap::Absent(Item::Nodes, "it has no Node".to_owned()));
    }
    if nodes.iter().any(|node| node.metadata.name == name) {
        let setting = Proof::setting(source, key, &value);
        return Ok(another(facts, &name, setting).into_iter().collect());
    }
    let names = nodes.iter().map(|node| node.metadata.name.as_str());
    let names: Vec<_> = names.collect();
    let message = "kube-proxy uses this name, but no Node has it: no endpoint counts as local";
    let flag = key.starts_with("--");
    let finding = Finding::new(Severity::Error, Subject::Node { name: Some(name) }, message)
        .evidence([
            Proof::setting(source, key, &value),
            Proof::Note(format!("the Nodes are {}", listed(&names))),
        ])
        .services(of_local_endpoints(facts));
    Ok(vec![if flag {
        finding.fix(
            "Set --hostname-override to the Node's name, from the pod's spec.nodeName, or remove the flag: it overrides \
             hostnameOverride in the file.",
        )
    } else {
        finding
    }])
}

/// Returns the Services of which only local endpoints may serve some clients. Where kube-proxy masquerades connections of local
/// endpoints to themselves by their address, also returns the Services with a local endpoint.
fn of_local_endpoints(facts: &Facts<'_>) -> BTreeSet<ServiceRef> {
    let by_address = matches!(facts.current(), Ok(Mode::Ipvs | Mode::Nftables));
    let services = facts.node.services().into_iter().flatten();
    let is_local = |service: &&Service| {
        let spec = &service.spec;
        let policies = [&spec.external_traffic_policy, &spec.internal_traffic_policy];
        policies
            .iter()
            .any(|policy| policy.as_deref() == Some("Local"))
    };
    let names: BTreeSet<_> = services
        .filter(is_local)
        .map(|service| (&*service.metadata.namespace, &*service.metadata.name))
        .collect();
    let ports = facts.owners().ports().iter();
    let ours = ports.filter(|port| {
        let has_own = || {
            port.endpoints
                .iter()
                .any(|endpoint| endpoint.local == Some(true))
        };
        names.contains(&(&*port.name.namespace, &*port.name.name)) || by_address && has_own()
    });
    ours.map(|port| ServiceRef::from(&port.name)).collect()
}

/// Returns the finding that `name`, kube-proxy's name of its Node, belongs to another Node.
fn another(facts: &Facts<'_>, name: &str, setting: Proof) -> Option<Finding> {
    let why = facts.node.contradiction(name)?;
    let own = facts.node.by_clues().name().ok()?;
    let message = format!(
        "kube-proxy uses the name of another Node, {name}: the endpoints there count as local, and those on {own} do not"
    );
    let finding = Finding::new(Severity::Error, Subject::Node { name: Some(own) }, message)
        .services(of_local_endpoints(facts));
    Some(finding.evidence([setting, Proof::Note(why)]).fix(
        "Remove hostnameOverride from the configuration that nodes share, give each kube-proxy the name of its own Node \
         (--hostname-override from the pod's spec.nodeName), and restart kube-proxy.",
    ))
}

/// Returns the name that kube-proxy uses: of its flag, else of its configuration, else of the machine; `None` if the kubelet
/// fills in the name of the node.
fn called(facts: &Facts<'_>) -> Result<Option<Called>, Gap> {
    match hostname_flag(facts)? {
        Flag::Value(given) => return Ok(Some(given)),
        Flag::NodeName => return Ok(None),
        Flag::None => {}
    }
    let value = &facts.node.proxy_config()?.hostname_override;
    if !value.trim().is_empty() {
        return Ok(Some(Called {
            source: "kube-proxy's configuration".to_owned(),
            key: "hostnameOverride",
            value: value.clone(),
        }));
    }
    let mut host = facts.node.evidence().text(Item::Host)?.lines();
    let name = host.find_map(|line| line.strip_prefix("host-name = "));
    let unknown = || Gap::Absent(Item::Host, "it has no host name".to_owned());
    Ok(Some(Called {
        source: "the machine".to_owned(),
        key: "host name",
        value: name.ok_or_else(unknown)?.to_owned(),
    }))
}

/// kube-proxy's flag --hostname-override, which overrides the file.
enum Flag {
    /// Its value.
    Value(Called),
    /// The kubelet fills in the name of the pod's node.
    NodeName,
    /// It is not set.
    None,
}

/// Returns the flag, from the process or else from the pod or the DaemonSet.
fn hostname_flag(facts: &Facts<'_>) -> Result<Flag, Gap> {
    const FLAG: &str = "hostname-override";
    let named = |source: String, value: &str| {
        Flag::Value(Called {
            source,
            key: "--hostname-override",
            value: value.to_owned(),
        })
    };
    let processes = facts.node.processes();
    let mut proxies = processes.iter().flat_map(|all| all.kube_proxies());
    if let Some(proxy) = proxies.find(|proxy| proxy.same_network != Some(false)) {
        let flags = Flags::parse(&proxy.args);
        let value = flags.value(FLAG);
        return Ok(value.map_or(Flag::None, |value| {
            named(format!("process {}", proxy.pid), value)
        }));
    }
    let containers = match containers(facts) {
        // It is no pod: a distribution's process, whose configuration has the name.
        Err(Gap::NotApplicable(_)) => Vec::new(),
        read => read?,
    };
    // The pod of this node comes after the DaemonSet.
    let Some((source, container)) = containers.last() else {
        return Ok(Flag::None);
    };
    let flags = flags_of(container);
    let Some(value) = flags.value(FLAG) else {
        return Ok(Flag::None);
    };
    let Some((_, rest)) = value.split_once("$(") else {
        return Ok(named(source.clone(), value));
    };
    // The kubelet expands $(VAR) from the pod's environment.
    let variable = rest.split(')').next().unwrap_or(rest);
    if value == format!("$({variable})") && is_node_name(container, variable) {
        return Ok(Flag::NodeName);
    }
    let why = "--hostname-override comes from the pod's environment, and no kube-proxy process is visible";
    Err(processes
        .err()
        .unwrap_or_else(|| Gap::Absent(Item::Processes, why.to_owned())))
}

/// Returns whether the variable of `container` is the name of the pod's node.
fn is_node_name(container: &Container, variable: &str) -> bool {
    let mut all = container.env.iter();
    all.any(|entry| {
        let field = entry.pointer("/valueFrom/fieldRef/fieldPath");
        entry["name"] == variable && field.is_some_and(|path| path == "spec.nodeName")
    })
}

fn node_address(facts: &Facts<'_>) -> Verdict {
    let mode = facts.mode()?;
    if mode == Mode::Userspace {
        let why = "the mode is userspace, in which kube-proxy takes its address from a link";
        return Err(Gap::NotApplicable(why.to_owned()));
    }
    let desired = facts.node.desired(mode)?;
    let blind = desired.families.iter();
    let mut blind = blind
        .filter(|state| !state.ports.is_empty() && state.node_ip.is_loopback())
        .peekable();
    if blind.peek().is_some() {
        facts.this_node()?;
        // Whether a family is in use.
        facts.node.sysctl()?.whole()?;
        if !facts.version()?.version.has(Change::NodeAddresses) {
            let why = "kube-proxy before 1.28 does not take its addresses from the Node";
            return Err(Gap::NotApplicable(why.to_owned()));
        }
    }
    // kube-proxy finds an address under its name, whichever Node this machine is.
    let nodes = facts.node.nodes()?;
    let all_have = |family: Family| {
        let has = |node: &Node| {
            let mut addresses = node.status.addresses.iter();
            addresses.any(|address| {
                address
                    .address
                    .parse()
                    .is_ok_and(|ip| Family::of(ip) == family)
            })
        };
        !nodes.is_empty() && nodes.iter().all(has)
    };
    let bound = facts.node.proxy_config()?.bind_address();
    let bound = bound.filter(IpAddr::is_loopback);
    Ok(blind
        .map(|state| {
            if let Some(bound) = bound.filter(|bound| Family::of(*bound) == state.family) {
                let message = format!(
                    "kube-proxy takes {bound}, its bindAddress, for the address of the node"
                );
                return Finding::new(Severity::Warning, state.family, message)
                    .evidence([Proof::setting("kube-proxy", "bindAddress", bound)])
                    .fix("Set bindAddress to 0.0.0.0 in kube-proxy's configuration, or to an address of the Node, and restart kube-proxy.");
            }
            let message = "the Node has no address of this family, so kube-proxy uses the loopback address: NodePorts may fail";
            let seen = Proof::object("node", desired.node.clone());
            let finding = Finding::new(Severity::Warning, state.family, message).evidence([seen]);
            if all_have(state.family) {
                finding.loss()
            } else {
                finding
            }
        })
        .collect())
}

/// Returns a finding if no link matches `value` of the setting `key` (a name, or its beginning), and pods run here.
fn links_of_pods(facts: &Facts<'_>, key: &'static str, value: &str) -> Verdict {
    let here = Some(facts.called()?);
    let mut pods = facts.node.pods()?.iter();
    if !pods.any(|pod| pod.spec.node_name == here && !pod.spec.host_network) {
        let why = "no pod with a network of its own runs on this node";
        return Err(Gap::NotApplicable(why.to_owned()));
    }
    let is_it = |name: &str| match key {
        "bridgeInterface" => name == value,
        _ => name.starts_with(value),
    };
    if facts.node.links()?.all.iter().any(|link| is_it(&link.name)) {
        return Ok(Vec::new());
    }
    let (message, known) = match key {
        "bridgeInterface" => {
            let bridges = bridges(facts).unwrap_or_default();
            let names: Vec<&str> = bridges.iter().map(|link| link.name.as_str()).collect();
            let known = match names.as_slice() {
                [] => String::new(),
                names => format!(" The bridges with pods are {}.", listed(names)),
            };
            (format!("the node has no link {value}"), known)
        }
        _ => (
            format!("no link of the node begins with {value}"),
            String::new(),
        ),
    };
    let message = format!(
        "{message}, so kube-proxy treats local pods as clients outside: it masquerades their packets to Services, and sends them \
         to local endpoints only where a policy is Local"
    );
    let seen = Proof::setting(
        "kube-proxy's configuration",
        format!("detectLocal.{key}"),
        value,
    );
    Ok(vec![
        Finding::new(Severity::Error, Subject::setting(key), message)
            .evidence([seen])
            .fix(Fix::said(format!(
                "Set detectLocal.{key} to the links of this node's pods, and restart kube-proxy.{known}"
            ))),
    ])
}

fn prefixes(facts: &Facts<'_>) -> Verdict {
    let config = facts.configuration()?;
    let links = &config.detect_local;
    match config.detect_local_mode.as_str() {
        "BridgeInterface" if !links.bridge_interface.is_empty() => {
            return links_of_pods(facts, "bridgeInterface", &links.bridge_interface);
        }
        "InterfaceNamePrefix" if !links.interface_name_prefix.is_empty() => {
            return links_of_pods(facts, "interfaceNamePrefix", &links.interface_name_prefix);
        }
        _ => {}
    }
    if !matches!(config.detect_local_mode.as_str(), "" | "ClusterCIDR")
        || config.cluster_cidr.is_empty()
    {
        let why = "kube-proxy does not use clusterCIDR to detect pods' traffic";
        return Err(Gap::NotApplicable(why.to_owned()));
    }
    let node = facts.this_node()?;
    let ours = Family::BOTH.map(|family| config.cluster_cidr(family));
    let setting = || {
        Proof::setting(
            "kube-proxy's configuration",
            "clusterCIDR",
            &config.cluster_cidr,
        )
    };
    let mut all = Collector::default();
    let internal = node.status.addresses.iter();
    let internal = internal.filter(|internal| internal.kind == "InternalIP");
    for address in internal.filter_map(|internal| internal.address.parse::<IpAddr>().ok()) {
        let covers = |range: &&Cidr| range.contains(address);
        let Some(range) = ours.iter().flatten().find(covers) else {
            continue;
        };
        let message = format!(
            "clusterCIDR contains {address}, the node's own address: machines of its network count as pods, so their connections are not \
             masqueraded"
        );
        all.push(
            Finding::new(
                Severity::Warning,
                Subject::Prefix { prefix: *range },
                message,
            )
            .evidence([Proof::setting("the Node", "InternalIP", address), setting()]),
        );
    }
    let outside = || pods_outside(facts, &ours, setting(), &config.cluster_cidr);
    if node.spec.pod_cidrs.is_empty() {
        all.add(outside());
        return all.verdict();
    }
    let own = own_addresses(facts).unwrap_or_default();
    let mut findings = Vec::new();
    for text in &node.spec.pod_cidrs {
        let Ok(pods) = text.parse::<Cidr>() else {
            continue;
        };
        // The network plugin may have ranges of its own, and leave this one unused.
        if !own.is_empty() && !own.iter().any(|(_, ip)| pods.contains(*ip)) {
            continue;
        }
        let same = ours
            .iter()
            .flatten()
            .find(|range| range.family() == pods.family());
        if same.is_some_and(|range| range.contains(pods.addr) && range.prefix <= pods.prefix) {
            continue;
        }
        // KP09 reports a family without any prefix.
        if same.is_none() && ours.iter().any(Option::is_some) && node.spec.pod_cidrs.len() > 1 {
            continue;
        }
        findings.push(
            Finding::new(
                Severity::Error,
                Subject::Prefix { prefix: pods },
                outside_message(&config.cluster_cidr),
            )
            .called(text)
            .services(at_cluster_ips(facts, pods.family()))
            .evidence([Proof::setting("the Node", "podCIDR", text), setting()]),
        );
    }
    if findings.is_empty() {
        // The network plugin may give pods addresses of a range of its own.
        findings = match outside() {
            Err(Gap::NotApplicable(_)) => Vec::new(),
            Err(gap) => {
                all.note(gap);
                return all.verdict();
            }
            Ok(found) => found,
        };
    }
    all.add(Ok(findings));
    all.verdict()
}

fn outside_message(cluster_cidr: &str) -> String {
    format!(
        "the node's pods are not in clusterCIDR ({cluster_cidr}): their traffic is treated as external"
    )
}

/// Returns the Services with a cluster IP of `family`.
fn at_cluster_ips(facts: &Facts<'_>, family: Family) -> Vec<ServiceRef> {
    let services = facts.node.services().ok();
    let has_one = |service: &&Service| {
        let ips = service.spec.cluster_ips.iter();
        let mut ips = ips.filter_map(|ip| ip.parse::<IpAddr>().ok());
        ips.any(|ip| Family::of(ip) == family)
    };
    let all = services.into_iter().flatten().filter(has_one);
    all.map(ServiceRef::from).collect()
}

/// Returns the pods of this node that have addresses of their own, with these.
fn own_addresses<'f>(facts: &'f Facts<'_>) -> Result<Vec<(&'f Pod, IpAddr)>, Gap> {
    let here = Some(facts.called()?);
    let pods = facts.node.pods()?.iter();
    let pods = pods.filter(|pod| pod.spec.node_name == here && !pod.spec.host_network);
    Ok(pods
        .flat_map(|pod| pod.addresses().map(move |ip| (pod, ip)))
        .collect())
}

/// Returns a warning if pods of this node have addresses outside `ours`: the network plugin of a Node without podCIDR chooses
/// them.
fn pods_outside(
    facts: &Facts<'_>,
    ours: &[Option<Cidr>; 2],
    setting: Proof,
    cluster_cidr: &str,
) -> Verdict {
    let addresses = own_addresses(facts)?;
    if addresses.is_empty() {
        let why = "the Node has no podCIDR, and no pod of it has an address of its own";
        return Err(Gap::NotApplicable(why.to_owned()));
    }
    let outside = addresses.into_iter().find(|(_, ip)| {
        let mut same = ours.iter().flatten();
        same.find(|range| range.family() == Family::of(*ip))
            .is_some_and(|range| !range.contains(*ip))
    });
    let Some((pod, ip)) = outside else {
        return Ok(Vec::new());
    };
    let (name, meta) = (ip.to_string(), &pod.metadata);
    let seen = Proof::setting(
        format!("pod {}/{}", meta.namespace, meta.name),
        "podIP",
        name,
    );
    Ok(vec![
        Finding::new(Severity::Warning, ip, outside_message(cluster_cidr))
            .services(at_cluster_ips(facts, Family::of(ip)))
            .evidence([seen, setting])
            .evidence([Proof::Note(
                "their connections to cluster IPs are masqueraded as the node: NetworkPolicies that select pods do not match them"
                    .to_owned(),
            )]),
    ])
}
