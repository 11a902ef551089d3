//! Ports for health checks of load balancers.

use std::net::{IpAddr, SocketAddr};

use super::sockets::{all_sockets_read, is_proxys, socket_proof};
use crate::check::core::{Collector, PATH, Paths, SOCKETS, deciding, ended, own_address};
use crate::check::{
    Because, Check, Example, Facts, Finding, Proof, ServiceRef, Severity, Subject, Text, Verdict,
    When,
};
use crate::trace::{Entry, Flow, Outcome, Verdict as End, mismatch};
use crate::verdict::announces_from_nodes;
use kpx_node::cluster::Service;
use kpx_node::evidence::{Gap, Item};
use kpx_node::net::{Family, Proto};
use kpx_node::node::sockets::Socket;

pub(super) const CHECKS: &[Check] = &[Check {
    id: "NP06",
    name: "health-check-ports",
    severity: Severity::Error,
    when: When::Now,
    title: "Health checks of load balancers reach kube-proxy",
    symptom: "The load balancer considers every node dead, or sends traffic to nodes without endpoints.",
    why: "For a Service with externalTrafficPolicy Local, kube-proxy listens on healthCheckNodePort and reports \
              to the load balancer whether the node has endpoints. Without the listener the node gets no traffic. A rule \
              that takes the packets before the listener has the same effect: that of a NodePort with the same number, \
              or of a firewall. For externalTrafficPolicy Cluster, load balancers of clouds ask for /healthz at the \
              port of healthzBindAddress, 10256 by default.",
    verify: "kube-proxy must listen on the port, and a packet from outside must reach it.",
    commands: &[
        Example::on_node("ss -lntp | grep PORT").with(&["PORT"]),
        Example::kpx(&["trace", "ADDRESS:PORT", "--source", "outside"]).with(&["ADDRESS:PORT"]),
        Example::on_node("curl -s http://ADDRESS:PORT/healthz").with(&["ADDRESS", "PORT"]),
    ],
    fix: Text::plain(
        "Find out in kube-proxy's log why it could not listen (another process may use the port), then restart \
              it.",
    ),
    incidents: &[
        "kubernetes/kubernetes#97225",
        "kubernetes/kubernetes#117621",
        "kubernetes/kubernetes#63617: the port is also a NodePort",
        "kubernetes/enhancements#3458: port 10256 for externalTrafficPolicy Cluster",
    ],
    needs: &[
        SOCKETS,
        PATH,
        &[Item::ProxyConfig, Item::Pods, Item::DaemonSets],
    ],
    caused_by: &[
        Because::Loss("KM01"),
        Because::Services("KP11"),
        Because::Node("AP13"),
        Because::Absence("KP21"),
        Because::Absence("KP02"),
        Because::Absence("KP05"),
    ],
    run: health_checks,
}];

fn health_checks(facts: &Facts<'_>) -> Verdict {
    let balanced = facts.node.services()?.iter().filter(|service| {
        let labels = &service.metadata.labels;
        service.spec.kind == "LoadBalancer"
            && !labels.contains_key("service.kubernetes.io/service-proxy-name")
            && !service.is_labelled_headless()
    });
    let (local, cluster): (Vec<_>, Vec<_>) = balanced
        .partition(|service| service.spec.external_traffic_policy.as_deref() == Some("Local"));
    let wanted: Vec<_> = local
        .into_iter()
        .filter_map(|service| Some((service, service.spec.health_check_node_port?)))
        .filter(|(_, port)| *port != 0)
        .collect();
    let mut findings = Collector::default();
    let mut cluster: Vec<_> = cluster
        .into_iter()
        .filter(|service| may_ask_kube_proxy(service))
        .collect();
    if !cluster.is_empty() {
        match announces_from_nodes(facts.node) {
            Ok(false) => {}
            Ok(true) => cluster.clear(),
            Err(gap) if wanted.is_empty() => return Err(gap),
            Err(gap) => {
                findings.note(gap);
                cluster.clear();
            }
        }
    }
    if wanted.is_empty() && cluster.is_empty() {
        return Err(Gap::NotApplicable(
            "no load balancer asks for the health of this node".to_owned(),
        ));
    }
    let paths = Family::BOTH.map(|family| {
        let mut all = wanted.iter().map(|(service, _)| service).chain(&cluster);
        all.any(|service| has_family(service, family)).then(|| {
            let paths = Paths::of(facts, family);
            paths.note_unread(facts, &mut findings);
            (family, paths)
        })
    });
    let sockets = findings.read(facts.node.sockets());
    let listeners = |number: u16| -> Vec<&Socket> {
        let listeners = sockets.iter().flat_map(|sockets| &sockets.listening);
        listeners
            .filter(|s| s.proto == Proto::Tcp && s.local.port() == number)
            .collect()
    };
    let taken = |port: &HealthPort<'_>, findings: &mut Collector| {
        let of = paths.iter().flatten();
        let mut of = of.filter(|(family, _)| port.services.iter().any(|s| has_family(s, *family)));
        of.find_map(|(family, paths)| port.taken(facts, findings, *family, paths))
    };
    for (service, number) in wanted {
        let listeners = listeners(number);
        let port = HealthPort {
            services: &[service],
            number,
            listeners: &listeners,
            is_shared: false,
        };
        match taken(&port, &mut findings) {
            Some(finding) => findings.push(finding),
            None => {
                findings.add(if sockets.is_some() {
                    listener(facts, service, number, &listeners)
                } else {
                    Ok(Vec::new())
                });
            }
        }
    }
    if !cluster.is_empty()
        && let Some(config) = findings.read(facts.node.proxy_config())
        && let Some(bind) = config.healthz_bind()
    {
        let listeners = listeners(bind.port());
        let port = HealthPort {
            services: &cluster,
            number: bind.port(),
            listeners: &listeners,
            is_shared: true,
        };
        if !bind.ip().is_loopback()
            && let Some(finding) = taken(&port, &mut findings)
        {
            findings.push(finding);
        }
    }
    findings.verdict()
}

/// Returns whether the load balancer of `service`, with externalTrafficPolicy Cluster, may ask for the health of kube-proxy, if it is a
/// machine outside of the cluster: its annotations name no other port for health checks.
fn may_ask_kube_proxy(service: &Service) -> bool {
    let is_other = |key: &str| key.contains("health") && key.contains("port");
    !service.status.load_balancer.ingress.is_empty()
        && !service.metadata.annotations.keys().any(|key| is_other(key))
}

/// Returns whether a Service has an address of `family`.
fn has_family(service: &Service, family: Family) -> bool {
    let mut ips = service.spec.cluster_ips.iter();
    ips.any(|ip| ip.parse().is_ok_and(|ip| Family::of(ip) == family))
}

/// Returns the finding on the process that listens on a healthCheckNodePort, if it is not kube-proxy.
fn listener(facts: &Facts<'_>, service: &Service, number: u16, here: &[&Socket]) -> Verdict {
    let about = Subject::HealthCheckPort {
        service: service.into(),
        number,
    };
    if here.is_empty() {
        all_sockets_read(facts)?;
        let message =
            "no process listens on the healthCheckNodePort: load balancers consider the node dead";
        let seen = Proof::Socket {
            socket: format!("tcp port {number}"),
            process: "no listener".to_owned(),
        };
        return Ok(vec![
            Finding::new(Severity::Error, about, message)
                .loss()
                .evidence([seen]),
        ]);
    }
    if here.iter().any(|socket| is_proxys(socket)) {
        return Ok(Vec::new());
    }
    let known = here.iter().filter(|socket| !socket.processes.is_empty());
    let others: Vec<_> = known.map(|socket| socket_proof(socket)).collect();
    if others.is_empty() {
        let why = format!("it does not say which process listens on port {number}");
        return Err(Gap::Absent(Item::Sockets, why));
    }
    let message = "a process other than kube-proxy listens on the healthCheckNodePort";
    Ok(vec![
        Finding::new(Severity::Error, about, message).evidence(others),
    ])
}

/// A port for health checks of load balancers.
struct HealthPort<'a> {
    /// The Services of which load balancers ask; never empty.
    services: &'a [&'a Service],
    number: u16,
    listeners: &'a [&'a Socket],
    /// Whether it is the port at which kube-proxy tells its own health.
    is_shared: bool,
}

impl HealthPort<'_> {
    /// Returns the addresses of the node to which health checks of `family` are sent: kube-proxy listens on them.
    fn addresses(&self, facts: &Facts<'_>, family: Family) -> Result<Vec<IpAddr>, Gap> {
        let here = self.listeners.iter().filter(|socket| is_proxys(socket));
        let here = here.map(|socket| socket.local.ip());
        let named: Vec<_> = here
            .filter(|ip| Family::of(*ip) == family && !ip.is_unspecified() && !ip.is_loopback())
            .collect();
        if named.is_empty() {
            return Ok(vec![own_address(facts, family)?]);
        }
        Ok(named)
    }

    /// Returns the finding on a rule that takes the packets of health checks before the listener.
    fn taken(
        &self,
        facts: &Facts<'_>,
        findings: &mut Collector,
        family: Family,
        paths: &Paths<'_>,
    ) -> Option<Finding> {
        // Whether an address is the node's own decides what happens to packets for it.
        findings.read(facts.node.addresses())?;
        let addresses = findings.read(self.addresses(facts, family))?;
        let mut found = None;
        for address in addresses {
            let to = SocketAddr::new(address, self.number);
            let packet = paths.packet(Entry::Outside, to, Proto::Tcp)?;
            let is_fine = |end: &Outcome| end.verdict == End::Local;
            let ends = paths.astray(findings, &packet, is_fine);
            // Most load balancers are near: a firewall may admit them.
            let near = probers(facts, family);
            let is_stopped = |source| {
                let source = Some(source);
                let of = paths.astray(
                    findings,
                    &Flow {
                        source,
                        ..packet.clone()
                    },
                    is_fine,
                );
                of.iter().any(is_stop)
            };
            let is_sure = !near.is_empty() && near.into_iter().all(is_stopped);
            let told = ends.first();
            // Load balancers of Services with externalTrafficPolicy Cluster may ask at another port.
            let told = told.filter(|_| is_sure || !self.is_shared);
            let finding = |end| self.finding(facts, family, to, end, is_sure);
            found = found.or_else(|| told.map(finding));
        }
        found
    }

    /// Returns the finding on these packets; `is_sure` if packets from nearby end in the same way.
    fn finding(
        &self,
        facts: &Facts<'_>,
        family: Family,
        to: SocketAddr,
        end: &Outcome,
        is_sure: bool,
    ) -> Finding {
        let about = Subject::HealthCheckPort {
            service: self.services[0].into(),
            number: self.number,
        };
        let seen = Proof::Note(format!("a packet from outside to {to}: {}", ended(end)));
        let seen = [seen].into_iter().chain(deciding(family, end));
        let services = || {
            self.services
                .iter()
                .map(|service| ServiceRef::from(*service))
        };
        if let Some(other) = facts.owners().node_port(self.number, Proto::Tcp) {
            let message =
                "health checks reach another Service, whose NodePort is the healthCheckNodePort";
            let whose = Proof::Note(format!("{} is the NodePort of {}", self.number, other.name));
            return Finding::new(Severity::Error, about, message)
                .services([ServiceRef::from(&other.name)])
                .evidence(seen)
                .evidence([whose])
                .fix("Delete one of the two Services and create it again: it gets another port.");
        }
        // A firewall may close the node to clients outside that are not load balancers.
        let is_stopped = is_stop(end);
        let is_closed = is_stopped && (self.is_shared || !is_of_port(end));
        let text = if is_stopped {
            "Change the rule in the configuration of its software, so that load balancers' packets reach the port."
        } else {
            "Find out why the packet does not end at the node itself: its address, its routes, or a rule that translates it."
        };
        let (severity, message) = if is_closed && is_sure {
            (
                Severity::Warning,
                "the node's firewall keeps health checks from kube-proxy: load balancers consider the node dead, unless it accepts \
                 their addresses",
            )
        } else if is_closed {
            (
                Severity::Info,
                "the node's firewall may keep health checks from kube-proxy",
            )
        } else {
            let message = if is_stopped {
                "a rule keeps health checks from kube-proxy: load balancers consider the node dead"
            } else {
                "health checks do not reach kube-proxy: load balancers consider the node dead"
            };
            (Severity::Error, message)
        };
        Finding::new(severity, about, message)
            .services(services())
            .evidence(seen)
            .fix(text)
    }
}

/// Returns whether a rule stops the packet.
const fn is_stop(end: &Outcome) -> bool {
    matches!(end.verdict, End::Drop | End::Reject)
}

/// Beginnings of the providerID of nodes in clouds, and the addresses from which their load balancers ask.
const PROBERS: &[(&str, &[[u8; 4]])] = &[
    ("azure:", &[[168, 63, 129, 16]]),
    ("gce:", &[[35, 191, 0, 1], [130, 211, 0, 1]]),
];

/// Returns addresses of `family` outside of this node from which a load balancer may ask: those of its cloud, or of other nodes.
fn probers(facts: &Facts<'_>, family: Family) -> Vec<IpAddr> {
    let this = facts.this_node().ok();
    let id = this.and_then(|node| node.spec.provider_id.as_deref());
    let of_cloud = PROBERS
        .iter()
        .find(|(scheme, _)| id.is_some_and(|id| id.starts_with(scheme)));
    if family == Family::V4
        && let Some((_, addresses)) = of_cloud
    {
        return addresses.iter().copied().map(IpAddr::from).collect();
    }
    let own = own_address(facts, family).ok();
    let nodes = facts.node.nodes().map_or(&[][..], Vec::as_slice).iter();
    let nodes = nodes.flat_map(|node| &node.status.addresses);
    let nodes = nodes.filter(|node| node.kind == "InternalIP");
    let nodes = nodes.filter_map(|node| node.address.parse::<IpAddr>().ok());
    nodes
        .filter(|node| Family::of(*node) == family && Some(*node) != own)
        .take(2)
        .collect()
}

/// Returns whether the rule that ends a packet is about its destination or port.
fn is_of_port(end: &Outcome) -> bool {
    let last = end.hops.last();
    last.is_some_and(|hop| mismatch::is_particular(hop.number, &hop.rule))
}
