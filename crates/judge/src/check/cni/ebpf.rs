//! Service proxies of eBPF: programs that nothing updates any more, and Services in their maps.

use std::collections::BTreeSet;
use std::net::SocketAddr;

use crate::check::core::{Collector, REPLACEMENT};
use crate::check::{
    Because, Check, Example, Facts, Finding, Fix, Proof, Severity, Subject, Text, Verdict, When,
};
use kpx_node::cluster::Service;
use kpx_node::evidence::{Gap, Item};
use kpx_node::net::{Family, Proto};
use kpx_node::node::bpf::{Bpf, Frontend, Kind, Place, Proxy, Table};
use kpx_node::node::ebpf::EbpfProxy;
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
            "To keep the service proxy, start its agent again. If it was removed, drain and reboot the node: a reboot removes \
             programs and maps.",
        ),
        incidents: &[
            "cilium/cilium-cli#1340: no way back is documented",
            "projectcalico/calico#12476",
        ],
        needs: &[REPLACEMENT],
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
        needs: &[REPLACEMENT, &[Item::Services, Item::EndpointSlices]],
        caused_by: &[Because::Node("CN13")],
        run: services,
    },
];

fn orphans(facts: &Facts<'_>) -> Verdict {
    let (mut findings, mut any) = (Collector::default(), false);
    for of in facts.node.ebpf() {
        let pins = match pins(facts, of.proxy) {
            Ok(pins) => pins,
            Err(gap) => {
                findings.note(gap);
                Vec::new()
            }
        };
        if of.programs.is_empty() && pins.is_empty() {
            if let Err(gap) = &of.serves {
                any = true;
                findings.note(gap.clone());
            }
            continue;
        }
        any = true;
        match &of.agent {
            Ok(true) => {}
            Ok(false) if of.programs.is_empty() => findings.push(pinned(of.proxy, &pins)),
            Ok(false) => findings.push(orphaned(facts, of)),
            Err(gap) => findings.note(gap.clone()),
        }
        if let Ok(bpf) = facts.node.bpf() {
            findings.extend(doubled(bpf, of.proxy, facts.node_name().as_deref())?);
        }
    }
    match findings.verdict() {
        Ok(found) if found.is_empty() && !any => {
            let why = "no program of an eBPF service proxy is attached";
            Err(Gap::NotApplicable(why.to_owned()))
        }
        other => other,
    }
}

/// Returns the finding on programs that nothing updates.
fn orphaned(facts: &Facts<'_>, of: &EbpfProxy) -> Finding {
    let proxy = of.proxy;
    let (count, what) = match of.programs.len() {
        1 => ("1 program".to_owned(), "translates or filters"),
        count => (number_of(count, "program"), "translate or filter"),
    };
    let message = format!(
        "{count} of {proxy} {what} packets, and nothing updates their maps: its agent does not run"
    );
    let seen = of.programs.iter();
    let seen = seen.map(|program| Proof::object("program", program.to_string()));
    let about = Subject::software(proxy.name());
    let finding = Finding::new(Severity::Error, about, message).evidence(seen);
    if facts.node.has_proxy_running() != Ok(true) {
        return finding;
    }
    let beside =
        "kube-proxy serves beside them: these programs see connections before its rules do";
    finding
        .evidence([Proof::Note(beside.to_owned())])
        .fix(Fix::drain(
            format!(
                "To let {proxy} serve Services, start its agent again. If it was removed, drain and reboot the node: a reboot \
                 removes programs and maps, and kube-proxy serves alone."
            ),
            facts.node_name().as_deref(),
        ))
}

/// Returns the files of `proxy` in bpffs; none if its programs were not read.
fn pins(facts: &Facts<'_>, proxy: Proxy) -> Result<Vec<String>, Gap> {
    let Ok(bpf) = facts.node.bpf() else {
        return Ok(Vec::new());
    };
    let all = bpf.pins()?;
    let is_own = |path: &&String| {
        let mut parts = path.split('/');
        parts.any(|part| match proxy {
            Proxy::Cilium => part == "cilium" || part.starts_with("cilium_"),
            Proxy::Calico => part.starts_with("cali"),
        })
    };
    Ok(all.iter().filter(is_own).cloned().collect())
}

/// Returns the finding on files in bpffs that keep maps and programs loaded for no agent.
fn pinned(proxy: Proxy, pins: &[String]) -> Finding {
    let count = number_of(pins.len(), "file");
    let message = format!(
        "{count} of {proxy} in bpffs keep its maps and programs loaded, and its agent does not run"
    );
    let seen = pins.iter().map(|path| Proof::object("file", path.clone()));
    Finding::new(Severity::Warning, Subject::software(proxy.name()), message)
        .evidence(seen)
        .fix(format!(
            "If {proxy} was removed, drain and reboot the node: a reboot removes them."
        ))
}

/// Returns the hooks at which two programs of one proxy run that were not loaded together.
fn doubled(bpf: &Bpf, proxy: Proxy, here: Option<&str>) -> Result<Vec<Finding>, Gap> {
    let hooks: BTreeSet<&str> = bpf
        .cgroups()?
        .iter()
        .map(|cgroup| cgroup.attach_type.as_str())
        .collect();
    let mut seen = Vec::new();
    for hook in hooks {
        let programs: Vec<_> = bpf
            .at_root(hook)?
            .into_iter()
            .filter_map(|id| bpf.program(id))
            .filter(|id| Proxy::of_program(&id.name) == Some(proxy))
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
            .fix(Fix::drain(
                "Then reboot the node: that removes the programs of the earlier agent.",
                here,
            )),
    ])
}

fn services(facts: &Facts<'_>) -> Verdict {
    let (mut findings, mut serving) = (Collector::default(), Vec::new());
    for of in facts.node.ebpf() {
        match &of.serves {
            Ok(true) => serving.push(of.proxy),
            Ok(false) => {}
            Err(gap) => findings.note(gap.clone()),
        }
    }
    if serving.is_empty() {
        return match findings.verdict() {
            Ok(_) => {
                let why = "no eBPF service proxy serves Services of this node";
                Err(Gap::NotApplicable(why.to_owned()))
            }
            unknown => unknown,
        };
    }
    let bpf = facts.node.bpf()?;
    let all = facts.node.services()?;
    facts.node.slices()?;
    let owners = facts.owners();
    if owners.source != Source::Api {
        return Err(Gap::NotCollected(Item::Services));
    }
    for (proxy, family) in serving
        .iter()
        .flat_map(|proxy| Family::BOTH.map(|family| (*proxy, family)))
    {
        let Some(Some(table)) = findings.read(bpf.table(proxy, family)) else {
            continue;
        };
        for port in owners.ports() {
            let mut all = all.iter();
            let service = all.find(|service| {
                service.metadata.namespace == *port.name.namespace
                    && service.metadata.name == *port.name.name
            });
            if let Some(service) = service.filter(|service| is_served(service, port)) {
                findings.extend(compared(table, owners.ports(), port, service));
            }
        }
    }
    findings.verdict()
}

/// Annotations that make a proxy of eBPF serve a Service differently from kube-proxy, or not at all: they choose kinds of
/// addresses, nodes and backends.
const OTHERWISE: [&str; 3] = [
    "service.cilium.io/",
    "io.cilium/",
    "projectcalico.org/natExcludeService",
];

/// Returns whether a proxy of eBPF serves the port as kube-proxy would.
fn is_served(service: &Service, port: &Port) -> bool {
    let mut annotations = service.metadata.annotations.keys();
    port.left_to.is_none()
        && matches!(port.proto, Proto::Tcp | Proto::Udp)
        && !annotations.any(|key| OTHERWISE.iter().any(|prefix| key.starts_with(prefix)))
}

/// Returns the differences between the endpoints of a port and the backends that the map has for it.
fn compared(table: &Table, ports: &[Port], port: &Port, service: &Service) -> Option<Finding> {
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
    let of_family = |port: &Port| {
        let all = port.endpoints.clone().into_iter();
        all.filter(|endpoint| Family::of(endpoint.addr.ip()) == family)
            .collect::<Vec<_>>()
    };
    let mut known: BTreeSet<SocketAddr> = of_family(port)
        .iter()
        .map(|endpoint| endpoint.addr)
        .collect();
    // An entry for all protocols has the backends of every port with this number.
    let mut twins = ports.iter().filter(|twin| {
        twin.name.namespace == port.name.namespace
            && twin.name.name == port.name.name
            && twin.port == port.port
            && twin.proto != port.proto
    });
    let twin = twins.next();
    let of_twin: Vec<SocketAddr> = twin.map_or_else(Vec::new, |twin| {
        of_family(twin)
            .iter()
            .map(|endpoint| endpoint.addr)
            .collect()
    });
    let all = of_family(port);
    let ready = all
        .iter()
        .filter(|endpoint| endpoint.state == Some(EndpointState::Ready));
    let ready: BTreeSet<SocketAddr> = ready.map(|endpoint| endpoint.addr).collect();
    let mut missing = Vec::new();
    let (mut stale, mut lacking, mut quarantined) =
        (BTreeSet::new(), BTreeSet::new(), BTreeSet::new());
    let mut empty = 0;
    for (place, number) in places(table, ports, port) {
        let at = |front: &&Frontend| {
            (front.at, front.port) == (place, number) && front.is_for(port.proto)
        };
        let all: Vec<&Frontend> = table.frontends.iter().filter(at).collect();
        let is_exact = |front: &&Frontend| front.proto == port.proto;
        let has_exact = all.iter().any(is_exact);
        let used: Vec<&Frontend> = all
            .into_iter()
            .filter(|frontend| !has_exact || is_exact(frontend))
            .collect();
        if used.is_empty() {
            missing.push(match place {
                Place::Address(address) => SocketAddr::new(address, number).to_string(),
                Place::AnyNode => format!("NodePort {number}"),
            });
            continue;
        }
        // A CiliumLocalRedirectPolicy leads to pods of the node that are no endpoints.
        let is_own = |front: &&&Frontend| {
            !front.l7_proxy && !front.drops && front.kind != Kind::LocalRedirect
        };
        for front in used.iter().filter(is_own) {
            empty += front.missing;
            let active: BTreeSet<SocketAddr> = front.active().map(|backend| backend.addr).collect();
            let shared = front.is_for_any() && twin.is_some();
            if shared {
                known.extend(of_twin.iter().copied());
            }
            stale.extend(active.difference(&known).copied());
            if in_part || shared || front.missing > 0 {
                continue;
            }
            let idle = front.backends.iter().filter(|backend| !backend.active);
            let idle: BTreeSet<SocketAddr> = idle.map(|idle| idle.addr).collect();
            for of in ready.difference(&active) {
                if idle.contains(of) {
                    quarantined.insert(*of);
                } else {
                    lacking.insert(*of);
                }
            }
        }
    }
    let map = Proof::object("map", format!("{} of {}, {family}", table.map, table.proxy));
    let list = |all: &BTreeSet<SocketAddr>| {
        let texts: Vec<String> = all.iter().map(ToString::to_string).collect();
        listed(&texts)
    };
    let mut words = Vec::new();
    if !missing.is_empty() {
        words.push(format!("has no front end for {}", listed(&missing)));
    }
    if !stale.is_empty() {
        words.push(format!(
            "leads {} to {}, which no endpoint has",
            port.name,
            list(&stale)
        ));
    }
    if !lacking.is_empty() {
        words.push(format!(
            "does not lead {} to {}, which {} ready",
            port.name,
            list(&lacking),
            if lacking.len() == 1 { "is" } else { "are" }
        ));
    }
    if !quarantined.is_empty() {
        let all = list(&quarantined);
        words.push(format!("has {all} in quarantine for {}", port.name));
    }
    if empty > 0 {
        let slots = number_of(empty, "slot");
        words.push(format!("has {slots} without a backend for {}", port.name));
    }
    if words.is_empty() {
        return None;
    }
    let message = format!("the map of {} {}", table.proxy, words.join("; it "));
    let is_kept = words.len() == 1 && !quarantined.is_empty();
    let severity = if is_kept {
        Severity::Warning
    } else {
        Severity::Error
    };
    let finding = Finding::new(severity, service, message)
        .called(format!("{} {family}", port.name))
        .services([&port.name])
        .evidence([map]);
    Some(if is_kept {
        finding.fix(format!(
            "{} keeps new connections from them on purpose: look for the reason in its agent's log.",
            table.proxy
        ))
    } else {
        finding
    })
}

/// Returns the addresses and the NodePort of `port` for which the map must have a front end.
fn places(table: &Table, ports: &[Port], port: &Port) -> Vec<(Place, u16)> {
    let addresses = port.addresses.iter();
    let addresses = addresses.filter(|(role, address)| {
        // The addresses of one family that both proxies serve.
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
    // The Service has an address of the family.
    let Some(number) = port.node_port.filter(|_| !all.is_empty()) else {
        return all;
    };
    // A setting of the proxy chooses the node's addresses with NodePorts: an address has all NodePorts or none.
    let is_service = |address| {
        let mut all = ports.iter().flat_map(|port| &port.addresses);
        all.any(|(_, of)| *of == address)
    };
    let node_ports: BTreeSet<u16> = ports.iter().filter_map(|port| port.node_port).collect();
    let serving = table.frontends.iter().filter(|frontend| match frontend.at {
        Place::AnyNode => true,
        Place::Address(address) => node_ports.contains(&frontend.port) && !is_service(address),
    });
    let serving: BTreeSet<Place> = serving.map(|frontend| frontend.at).collect();
    all.extend(serving.into_iter().map(|place| (place, number)));
    all
}
