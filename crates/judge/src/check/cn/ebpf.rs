//! Service proxies of eBPF: programs that nothing updates any more, and Services in their maps.

use std::collections::BTreeSet;
use std::net::SocketAddr;

use crate::check::core::{Collector, REPLACEMENT, bpf_of};
use crate::check::{Check, Example, Facts, Finding, Proof, Severity, Subject, Text, Verdict, When};
use kpx_node::cluster::Service;
use kpx_node::evidence::{Gap, Item};
use kpx_node::net::{Family, Proto};
use kpx_node::node::bpf::{Bpf, Frontend, Place, Proxy, Table};
use kpx_node::owner::{EndpointState, Port, Role, Source};
use kpx_node::words::{listed, number_of};

pub(super) const CHECKS: &[Check] = &[
    Check {
        id: "CN13",
        name: "orphaned-programs",
        severity: Severity::Error,
        when: When::Now,
        title: "eBPF programs of a service proxy have a running agent",
        symptom: "Connections to Services go to pods that no longer exist, or to nothing, although the rules and the maps of \
                  the running service proxy are right.",
        why: "Programs of eBPF and their maps stay in the kernel when Cilium's or Calico's agent ends, and go on translating \
              connections by the Services of that time. If an agent starts again with another control group or another mount of \
              bpffs, the programs of both run, one after the other, and the first one decides.",
        verify: "Each hook of the root control group may have one program of a service proxy, and its agent must run.",
        commands: &[
            Example::on_node("bpftool cgroup tree; bpftool net"),
            Example::on_node("pgrep -a 'cilium-agent|calico-node|calico-felix'"),
        ],
        fix: Text::plain(
            "If the service proxy is to stay, start its agent again. If it was removed, drain and reboot the node: a reboot \
             removes programs and maps.",
        ),
        incidents: &[
            "cilium/cilium-cli#1340: no way back is documented",
            "projectcalico/calico#12476",
        ],
        needs: &[REPLACEMENT, &[Item::Bpf]],
        caused_by: &[],
        run: orphans,
    },
    Check {
        id: "CN14",
        name: "service-maps",
        severity: Severity::Error,
        when: When::Now,
        title: "Maps of an eBPF service proxy match the cluster's Services",
        symptom: "Some connections to a Service time out or are refused, on this node alone.",
        why: "Cilium and Calico translate connections by maps that their agent writes. An agent that ended, hangs or lost the \
              API server leaves Services and backends of an earlier time in them.",
        verify: "Each address of a Service must have a front end, whose backends are the Service's endpoints.",
        commands: &[
            Example::on_node("cilium-dbg bpf lb list"),
            Example::on_node("calico-node -bpf nat dump"),
            Example::anywhere("kubectl get endpointslices -A"),
        ],
        fix: Text::plain(
            "Look at the log of the agent on this node (`kubectl logs` of its cilium or calico-node pod), and delete the pod: \
             its agent writes the maps again when it starts.",
        ),
        incidents: &["cilium/cilium#34524", "cilium/cilium#39204"],
        needs: &[
            REPLACEMENT,
            &[Item::Bpf, Item::Services, Item::EndpointSlices],
        ],
        caused_by: &[],
        run: services,
    },
];

/// The processes of the agents, and the containers in which they run.
const fn agents(proxy: Proxy) -> (&'static [&'static str], &'static str) {
    match proxy {
        Proxy::Cilium => (&["cilium-agent"], "cilium-agent"),
        Proxy::Calico => (&["calico-node", "calico-felix"], "calico-node"),
    }
}

/// Returns the proxies whose programs are attached, each with programs in words.
fn attached(bpf: &Bpf) -> Result<Vec<(Proxy, Vec<Proof>)>, Gap> {
    bpf.programs()?;
    let owner = |id: u32| Proxy::of_program(&bpf.program(id)?.name);
    let mut found = Vec::new();
    for proxy in Proxy::ALL {
        let cgroups = bpf.cgroups()?.iter();
        let cgroups = cgroups.filter(|of| owner(of.program) == Some(proxy));
        let mut seen: Vec<Proof> = cgroups
            .map(|of| {
                let name = bpf.called(of.program);
                let place = format!(
                    "{name} at {} of control group {}",
                    of.attach_type, of.cgroup
                );
                Proof::object("program", place)
            })
            .collect();
        let links = bpf.links()?.iter();
        let links = links.filter(|of| owner(of.program) == Some(proxy));
        seen.extend(links.map(|of| {
            let name = bpf.called(of.program);
            Proof::object(
                "program",
                format!("{name} at {} of {}", of.attach_type, of.dev),
            )
        }));
        if !seen.is_empty() {
            found.push((proxy, seen));
        }
    }
    Ok(found)
}

/// Returns whether the agent of `proxy` runs on this node.
fn runs(facts: &Facts<'_>, proxy: Proxy) -> Result<bool, Gap> {
    let (names, container) = agents(proxy);
    let processes = match facts.node.processes() {
        Ok(all) => {
            let mut all = all.processes.iter();
            if all.any(|of| names.contains(&of.name.as_str())) {
                return Ok(true);
            }
            return Ok(false);
        }
        Err(gap) => gap,
    };
    let here = facts.called().map_err(|_| processes.clone())?;
    let pods = facts.node.pods().map_err(|_| processes)?;
    let mut pods = pods.iter().filter(|pod| {
        pod.spec.node_name.as_deref() == Some(here.as_str()) && pod.status.phase == "Running"
    });
    Ok(pods.any(|pod| pod.spec.containers.iter().any(|of| of.name == container)))
}

fn orphans(facts: &Facts<'_>) -> Verdict {
    let bpf = bpf_of(facts)?;
    let attached = attached(bpf)?;
    if attached.is_empty() {
        let why = "no program of an eBPF service proxy is attached";
        return Err(Gap::NotApplicable(why.to_owned()));
    }
    let mut findings = Collector::default();
    for (proxy, seen) in attached {
        match runs(facts, proxy) {
            Ok(true) => {}
            Ok(false) => {
                let count = number_of(seen.len(), "program");
                let message = format!(
                    "{count} of {proxy} translate or filter packets, and nothing updates their maps: its agent does not run"
                );
                let about = Subject::software(proxy.name());
                findings.push(Finding::new(Severity::Error, about, message).evidence(seen));
            }
            Err(gap) => findings.note(gap),
        }
        findings.extend(doubled(bpf, proxy)?);
    }
    findings.verdict()
}

/// Returns the hooks at which two programs of one proxy run that were not loaded together.
fn doubled(bpf: &Bpf, proxy: Proxy) -> Result<Vec<Finding>, Gap> {
    let hooks: BTreeSet<&str> = bpf
        .cgroups()?
        .iter()
        .map(|of| of.attach_type.as_str())
        .collect();
    let mut seen = Vec::new();
    for hook in hooks {
        let programs: Vec<_> = bpf
            .at_root(hook)?
            .into_iter()
            .filter_map(|id| bpf.program(id))
            .filter(|of| Proxy::of_program(&of.name) == Some(proxy))
            .collect();
        if programs.len() > 1 {
            let names: Vec<String> = programs.iter().map(ToString::to_string).collect();
            seen.push(Proof::object(
                "program",
                format!("{} at {hook}", listed(&names)),
            ));
        }
    }
    if seen.is_empty() {
        return Ok(Vec::new());
    }
    let message = format!(
        "two programs of {proxy} run one after the other for each connection: those of an earlier agent were left attached"
    );
    let about = Subject::software(proxy.name());
    Ok(vec![
        Finding::new(Severity::Error, about, message)
            .called(format!("{proxy} twice"))
            .evidence(seen)
            .fix("Drain and reboot the node: a reboot removes the programs of the earlier agent."),
    ])
}

fn services(facts: &Facts<'_>) -> Verdict {
    let bpf = bpf_of(facts)?;
    let serving = bpf.socket_proxies()?;
    if serving.is_empty() {
        let why = "no eBPF service proxy translates connections of this node";
        return Err(Gap::NotApplicable(why.to_owned()));
    }
    let tables = bpf.tables()?;
    let all = facts.node.services()?;
    facts.node.slices()?;
    let owners = facts.owners();
    if owners.source != Source::Api {
        return Err(Gap::NotCollected(Item::Services));
    }
    let mut findings = Collector::default();
    for table in tables.iter().filter(|of| serving.contains(&of.proxy)) {
        for port in owners.ports() {
            let mut all = all.iter();
            let service = all.find(|of| {
                of.metadata.namespace == *port.name.namespace && of.metadata.name == *port.name.name
            });
            if let Some(service) = service.filter(|of| is_served(of, port)) {
                findings.extend(compared(table, port, service));
            }
        }
    }
    findings.verdict()
}

/// Returns whether a proxy of eBPF serves the port as kube-proxy would.
fn is_served(service: &Service, port: &Port) -> bool {
    let mut annotations = service.metadata.annotations.keys();
    port.left_to.is_none()
        && matches!(port.proto, Proto::Tcp | Proto::Udp)
        // They choose kinds of addresses, nodes and backends.
        && !annotations.any(|key| key.starts_with("service.cilium.io/"))
}

/// Returns the differences between the endpoints of a port and the backends that the map has for it.
fn compared(table: &Table, port: &Port, service: &Service) -> Option<Finding> {
    let spec = &service.spec;
    let is_local = |policy: &Option<String>| policy.as_deref() == Some("Local");
    let in_part = is_local(&spec.internal_traffic_policy)
        || is_local(&spec.external_traffic_policy)
        || spec.traffic_distribution.is_some()
        || service
            .metadata
            .annotations
            .keys()
            .any(|key| key.starts_with("service.kubernetes.io/topology"));
    let family = table.family;
    let of_family = port.endpoints.iter();
    let of_family = of_family.filter(|of| Family::of(of.addr.ip()) == family);
    let known: BTreeSet<SocketAddr> = of_family.clone().map(|of| of.addr).collect();
    let ready = of_family.filter(|of| of.state == Some(EndpointState::Ready));
    let ready: BTreeSet<SocketAddr> = ready.map(|of| of.addr).collect();
    let mut missing = Vec::new();
    let (mut stale, mut lacking) = (BTreeSet::new(), BTreeSet::new());
    for (place, number) in places(table, port) {
        let all: Vec<&Frontend> = table
            .frontends
            .iter()
            .filter(|of| (of.at, of.port, of.proto) == (place, number, port.proto))
            .collect();
        if all.is_empty() {
            missing.push(match place {
                Place::Address(address) => SocketAddr::new(address, number).to_string(),
                Place::AnyNode => format!("NodePort {number}"),
            });
            continue;
        }
        for front in all.iter().filter(|of| !of.l7_proxy && !of.drops) {
            let active: BTreeSet<SocketAddr> = front.active().map(|of| of.addr).collect();
            stale.extend(active.difference(&known).copied());
            if !in_part {
                lacking.extend(ready.difference(&active).copied());
            }
        }
    }
    let map = Proof::object("map", format!("{} of {}, {family}", table.map, table.proxy));
    let list = |all: &BTreeSet<SocketAddr>| {
        let texts: Vec<String> = all.iter().map(ToString::to_string).collect();
        listed(&texts)
    };
    let mut parts = Vec::new();
    if !missing.is_empty() {
        parts.push(format!("has no front end for {}", listed(&missing)));
    }
    if !stale.is_empty() {
        parts.push(format!(
            "leads {} to {}, which no endpoint has",
            port.name,
            list(&stale)
        ));
    }
    if !lacking.is_empty() {
        parts.push(format!(
            "does not lead {} to {}, which are ready endpoints",
            port.name,
            list(&lacking)
        ));
    }
    if parts.is_empty() {
        return None;
    }
    let message = format!("the map of {} {}", table.proxy, parts.join("; it "));
    Some(
        Finding::new(Severity::Error, service, message)
            .called(format!("{} {family}", port.name))
            .services([&port.name])
            .evidence([map]),
    )
}

/// Returns the addresses and the NodePort of `port` for which the map must have a front end.
fn places(table: &Table, port: &Port) -> Vec<(Place, u16)> {
    let addresses = port.addresses.iter();
    let addresses = addresses.filter(|(role, address)| {
        // Of a family, and only what both proxies serve.
        Family::of(*address) == table.family
            && matches!(
                role,
                Role::ClusterIp | Role::ExternalIp | Role::LoadBalancerIp
            )
    });
    let number = port.port;
    let mut all: Vec<(Place, u16)> = addresses
        .filter_map(|(_, address)| Some((Place::Address(*address), number?)))
        .collect();
    let serves_node_ports = table.frontends.iter().any(|of| of.at == Place::AnyNode);
    // The Service has an address of the family.
    if let Some(number) = port
        .node_port
        .filter(|_| serves_node_ports && !all.is_empty())
    {
        all.push((Place::AnyNode, number));
    }
    all
}
