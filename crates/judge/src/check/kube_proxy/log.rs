//! What kube-proxy's log says of its work.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use super::log_fixes::{GENERIC, fix, lacks_modules};
use crate::check::drift::restart_fix;
use crate::check::{
    Because, Check, Example, Facts, Finding, Fix, ProcessState, Proof, ServiceRef, Severity,
    Subject, Text, Verdict, When, ipv6_fix,
};
use kpx_node::backend::ipvs::model::DUMMY;
use kpx_node::cluster::Service;
use kpx_node::evidence::kernel_log::{self, Message};
use kpx_node::evidence::proxy_log::{self, Claim, Kind, ProxyLog, Trouble};
use kpx_node::evidence::{Gap, Item, Time};
use kpx_node::net::{Family, Proto};
use kpx_node::node::runtime::Metrics;
use kpx_node::owner::{PortName, addresses};
use kpx_node::words::{listed, number_of};

pub(super) const CHECKS: &[Check] = &[Check {
    id: "KP21",
    name: "log",
    severity: Severity::Error,
    when: When::Now,
    title: "kube-proxy's log reports no trouble that keeps it from its work",
    symptom: "kube-proxy restarts again and again, or runs and changes nothing: rules become outdated, and a restart does not help.",
    why: "kube-proxy says why it exits, why iptables-restore or nft refuses its rules, which objects it cannot read, that it runs \
          in another mode, and which fields of its configuration file it ignores. What is wrong with its rules follows from that.",
    verify: "Its last run must not end with an error, and a refused sync must be followed by one that works.",
    commands: &[
        Example::anywhere("kubectl -n kube-system logs POD | grep -E '^[EF]'").with(&["POD"]),
        Example::anywhere("kubectl -n kube-system logs POD --previous | tail").with(&["POD"]),
    ],
    fix: Text::plain(GENERIC),
    incidents: &["kubernetes/kubernetes#89520", "kubernetes/kubernetes#70304"],
    needs: &[&[
        Item::ProxyLog,
        Item::Metrics,
        Item::Healthz,
        Item::Services,
        Item::EndpointSlices,
        Item::Ipset,
        Item::ModulesDep,
        Item::Addresses,
        Item::ConfigMaps,
        Item::Pods,
        Item::Processes,
        Item::KernelLog,
    ]],
    caused_by: &[
        Because::Loss("KM01"),
        Because::Loss("KM08"),
        Because::Loss("KM10"),
        Because::Exit("KP22"),
    ],
    run: log,
}];

/// Part of the error of an nftables mode whose kernel is too old.
const OLD_KERNEL: &str = "must be 5.13 or later";

fn log(facts: &Facts<'_>) -> Verdict {
    let log = match facts.node.proxy_log() {
        // Troubles in a part of the log are reported; other troubles may be in the rest.
        Err(gap @ Gap::Partial(..)) => {
            let whole = facts.node.evidence().with_all_parts();
            let part = proxy_log::parse(whole.text(Item::ProxyLog)?);
            let found = lasting(facts, &part)?;
            return if found.is_empty() {
                Err(gap)
            } else {
                Ok(found)
            };
        }
        read => read?,
    };
    lasting(facts, log)
}

/// Returns the findings on the troubles of `log` that last.
fn lasting(facts: &Facts<'_>, log: &ProxyLog) -> Verdict {
    let troubles = log.troubles.as_ref().map_err(Clone::clone)?;
    let lasting = troubles
        .iter()
        .filter(|trouble| !is_over(facts, log, trouble));
    let lasting =
        lasting.filter(|lasting| lasting.claim().is_none_or(|claim| is_wanted(facts, &claim)));
    // One cause for all kinds of objects that kube-proxy cannot read, and for all addresses that a link refuses.
    let mut causes: Vec<Vec<&Trouble>> = Vec::new();
    for trouble in lasting {
        let is_same = |known: &&mut Vec<&Trouble>| {
            let known = known[0];
            let is_watch = [known.kind, trouble.kind] == [Kind::Watch; 2]
                && watch_cause(&known.error) == watch_cause(&trouble.error)
                && is_of_ranges(known) == is_of_ranges(trouble);
            is_watch
                || known.family == trouble.family
                    && refuses_address(known)
                    && refuses_address(trouble)
        };
        match causes.iter_mut().find(is_same) {
            Some(cause) => cause.push(trouble),
            None => causes.push(vec![trouble]),
        }
    }
    let found: Vec<Finding> = causes.iter().map(|all| finding(facts, log, all)).collect();
    let is_exit = |trouble: &Trouble| trouble.kind == Kind::Exit;
    if found.is_empty() && !log.of_container && troubles.last().is_some_and(is_exit) {
        let why = "it ends with an error, but kube-proxy runs: it is not the log of this run";
        return Err(Gap::Failed(Item::ProxyLog, why.to_owned()));
    }
    Ok(found)
}

/// Returns whether a Service has the port `claim`, at an address and of a family that this node serves, as far as they are known.
fn is_wanted(facts: &Facts<'_>, claim: &Claim) -> bool {
    let Some(name) = PortName::parse(&claim.service) else {
        return true;
    };
    let is_here = |address: IpAddr| {
        let known = facts.node.addresses();
        known.map_or(true, |known| {
            known
                .all
                .iter()
                .any(|own_address| own_address.addr.addr == address)
        })
    };
    if claim.address.is_some_and(|address| !is_here(address)) {
        return false;
    }
    let Ok(services) = facts.node.services() else {
        return true;
    };
    let is_it = |service: &&Service| {
        *service.metadata.namespace == *name.namespace && *service.metadata.name == *name.name
    };
    services.iter().find(is_it).is_some_and(|service| {
        claim.family.is_none_or(|family| service.has_family(family))
            && service.spec.ports.iter().any(|port| {
                *port.name == *name.port
                    && [port.node_port, Some(port.port)].contains(&Some(claim.port))
            })
    })
}

/// The longest time before a client of the API server retries, doubled: a reflector waits up to 30 s, and with its jitter twice as long.
const RETRY: Duration = Duration::from_secs(120);

/// Returns whether kube-proxy runs, or has written its rules, or has read the objects, since it reported `trouble`.
fn is_over(facts: &Facts<'_>, log: &ProxyLog, trouble: &Trouble) -> bool {
    // A sync goes on without an entry that is refused, and ends.
    if let Some(has) = has_entry(facts, trouble).filter(|_| trouble.kind == Kind::Sync) {
        return has;
    }
    match trouble.kind {
        Kind::Exit | Kind::Range => facts.node.health().is_ok(),
        Kind::Sync => facts.node.metrics().is_ok_and(|metrics| {
            let is_of = |family| trouble.family.is_none() || family == trouble.family;
            let mut syncs = metrics.last_sync().filter(|(family, _)| is_of(*family));
            syncs.any(|(family, at)| {
                family.is_some()
                    && Time::from_epoch(at).is_some_and(|at| {
                        if log.of_container {
                            at.as_logged() > trouble.last
                        } else {
                            is_done(facts, metrics, family, at)
                        }
                    })
            })
        }),
        // Each failed try is a message.
        Kind::Watch | Kind::Port => is_old(facts, log, trouble) && !is_stuck(facts, log, trouble),
        Kind::Fallback | Kind::UnknownFields | Kind::Node => false,
    }
}

/// Returns whether `trouble` was reported so long ago that it would have been reported again if it lasted.
fn is_old(facts: &Facts<'_>, log: &ProxyLog, trouble: &Trouble) -> bool {
    let Some(now) = facts.now.filter(|_| log.of_container) else {
        return false;
    };
    // Lines of a log have no year.
    let (then, now) = (now.before(RETRY).as_logged(), now.as_logged());
    trouble.last < then && (then <= now || trouble.last > now)
}

/// Returns whether kube-proxy, which could not read objects, has written nothing since although the objects have changed: its watch is dead.
fn is_stuck(facts: &Facts<'_>, log: &ProxyLog, trouble: &Trouble) -> bool {
    let Ok(metrics) = facts.node.metrics() else {
        return false;
    };
    let is_before = |at: f64| Time::from_epoch(at).is_some_and(|at| at.as_logged() < trouble.first);
    let mut syncs = metrics.last_sync().peekable();
    trouble.kind == Kind::Watch
        && log.of_container
        && syncs.peek().is_some()
        && syncs.all(|(_, at)| is_before(at))
        && is_old(facts, log, trouble)
        && facts.has_drift()
}

/// Returns whether the IP set of `trouble` has the entry that was refused; `None` if it is about none, or the sets are unknown.
fn has_entry(facts: &Facts<'_>, trouble: &Trouble) -> Option<bool> {
    let (set, entry) = trouble.refused_entry()?;
    let sets = facts.node.ipset_or_none().ok()?;
    let set = sets.sets.iter().find(|ip_set| ip_set.name == set);
    Some(set.is_some_and(|set| set.members.iter().any(|member| member.element == entry)))
}

/// Returns whether the sync of `family` that ended at `at` is recent, and no later one was requested. A journal has the times of the
/// node's clock, so they are not compared.
fn is_done(facts: &Facts<'_>, metrics: &Metrics<'_>, family: Option<Family>, at: Time) -> bool {
    let mut queued = metrics.last_queued().filter(|(of, _)| *of == family);
    let is_last = queued.all(|(_, asked)| Time::from_epoch(asked).is_none_or(|asked| asked <= at));
    is_last && facts.now.is_some_and(|now| now.before(RETRY) < at)
}

/// Returns the Service of which the address in `error` is, to which a connection failed.
fn own_service(facts: &Facts<'_>, error: &str) -> Option<String> {
    let (_, rest) = error.split_once("dial tcp ")?;
    let at: SocketAddr = rest.split(": ").next()?.parse().ok()?;
    let services = facts.node.services().ok()?.iter();
    let mut its =
        services.filter(|service| addresses(service).iter().any(|(_, addr)| *addr == at.ip()));
    its.next()
        .map(|service| format!("{}/{}", service.metadata.namespace, service.metadata.name))
}

/// Returns whether no Service and no Node has an address of `family`.
fn is_unused(facts: &Facts<'_>, family: Family) -> bool {
    let is_of = |text: &String| text.parse().is_ok_and(|addr| Family::of(addr) == family);
    let (Ok(services), Ok(nodes)) = (facts.node.services(), facts.node.nodes()) else {
        return false;
    };
    let mut all = services
        .iter()
        .flat_map(|service| &service.spec.cluster_ips);
    let mut own = nodes.iter().flat_map(|node| &node.status.addresses);
    !nodes.is_empty() && !all.any(is_of) && !own.any(|address| is_of(&address.address))
}

/// Returns whether `trouble` is about the ranges of Services, which kube-proxy needs for little.
fn is_of_ranges(trouble: &Trouble) -> bool {
    trouble.error.contains("ServiceCIDR")
}

/// Returns why objects cannot be read, without the kind of object and the time: the same for all kinds.
fn watch_cause(error: &str) -> &str {
    // `failed to list *v1.Service: Get "URL": WHY`
    let rest = match error.split_once("Get \"") {
        Some((_, rest)) => rest.split_once("\": ").map_or(rest, |(_, why)| why),
        None => error.split_once("*v1.").map_or(error, |(_, rest)| rest),
    };
    let rest = match rest.split_once("forbidden: User \"") {
        Some((_, rest)) => rest.split('"').next().unwrap_or(rest),
        None => rest
            .split_once(": ")
            .filter(|_| !error.contains("Get \""))
            .map_or(rest, |(_, why)| why),
    };
    rest.split(": current time").next().unwrap_or(rest)
}

/// An option of target MARK that older releases of `xt_mark`, and kernels without it, do not have.
const XOR_MARK: &str = "\"--xor-mark\"";

/// Returns whether the kernel refused an address of kube-ipvs0 because IPv6 is off there: whoever may not add addresses gets
/// "operation not permitted".
fn refuses_address(trouble: &Trouble) -> bool {
    let mut words = ["bind address: ", DUMMY, "permission denied"].into_iter();
    words.all(|word| trouble.error.contains(word))
}

/// Returns the address in `error` that kube-proxy asks, and the address of the API server, if they differ.
fn other_server(facts: &Facts<'_>, error: &str) -> Option<(SocketAddr, SocketAddr)> {
    let (_, rest) = error.split_once("dial tcp ")?;
    differs(facts, rest.split(": ").next()?.parse().ok()?)
}

/// Returns the address in kube-proxy's kubeconfig in its ConfigMap, and the address of the API server, if they differ.
pub(super) fn configured_server(facts: &Facts<'_>) -> Option<(SocketAddr, SocketAddr)> {
    differs(facts, kubeconfig_server(facts)?)
}

/// Returns the address of the API server in kube-proxy's kubeconfig in its ConfigMap.
fn kubeconfig_server(facts: &Facts<'_>) -> Option<SocketAddr> {
    let mut maps = facts.node.config_maps().ok()?.iter();
    let text = maps.find_map(|map| map.data.get("kubeconfig.conf"))?;
    let servers = text
        .lines()
        .filter_map(|line| line.trim().strip_prefix("server:"));
    let server = servers.map(str::trim).next()?.trim_matches('"');
    let (_, address) = server.split_once("://")?;
    address.trim_end_matches('/').parse().ok()
}

/// Returns why kube-proxy does not find its Node, if its log says so.
pub(super) fn without_node<'n>(facts: &Facts<'n>) -> Option<&'n str> {
    let troubles = facts.node.proxy_log().ok()?.troubles.as_ref().ok()?;
    let mut of_node = troubles.iter().filter(|trouble| trouble.kind == Kind::Node);
    Some(&of_node.next()?.error)
}

/// Returns `asked` and the address of the API server, if they differ.
fn differs(facts: &Facts<'_>, asked: SocketAddr) -> Option<(SocketAddr, SocketAddr)> {
    let slices = facts.node.slices().ok()?.iter();
    let own = slices.filter(|slice| slice.service() == Some(("default", "kubernetes")));
    let mut all = own
        .flat_map(|slice| {
            let ports = slice.ports.iter().filter_map(|port| port.port);
            let addresses = slice
                .endpoints
                .iter()
                .flat_map(|endpoint| &endpoint.addresses);
            let addresses: Vec<IpAddr> = addresses
                .filter_map(|address| address.parse().ok())
                .collect();
            ports.flat_map(move |port| {
                addresses
                    .clone()
                    .into_iter()
                    .map(move |address| SocketAddr::new(address, port))
            })
        })
        .peekable();
    let first = *all.peek()?;
    (!all.any(|at| at == asked)).then_some((asked, first))
}

/// Returns the finding on troubles with one cause.
fn finding(facts: &Facts<'_>, log: &ProxyLog, all: &[&Trouble]) -> Finding {
    let trouble = all[0];
    let is_stuck = is_stuck(facts, log, trouble);
    let Trouble { kind, error, .. } = trouble;
    let is_once = all.iter().all(|trouble| trouble.count == 1);
    let (severity, about, message) = match kind {
        Kind::Exit => {
            let state = ProcessState::Crashes;
            let message = format!("kube-proxy exits: {error}");
            (Severity::Error, Subject::ProxyProcess { state }, message)
        }
        Kind::Sync
            if trouble
                .family
                .is_some_and(|family| is_unused(facts, family)) =>
        {
            (
                Severity::Info,
                Subject::Proxy,
                format!(
                    "kube-proxy cannot write rules of a family that no Service and no Node has: {error}"
                ),
            )
        }
        Kind::Sync if is_once => (
            Severity::Warning,
            Subject::Proxy,
            format!("a sync of kube-proxy failed: {error}"),
        ),
        Kind::Sync => (
            Severity::Error,
            Subject::Proxy,
            format!("kube-proxy's syncs fail, so its rules become outdated: {error}"),
        ),
        // kube-proxy needs these only for metrics, and for packets to addresses of no Service.
        Kind::Watch if is_of_ranges(trouble) => (
            Severity::Warning,
            Subject::Proxy,
            format!("kube-proxy cannot read the ranges of Services, but has the Services: {error}"),
        ),
        Kind::Watch if is_stuck => (
            Severity::Error,
            Subject::Proxy,
            format!(
                "kube-proxy could not read objects of the cluster, and has written no rules since, although they have changed: {error}"
            ),
        ),
        Kind::Watch => (
            if is_once {
                Severity::Warning
            } else {
                Severity::Error
            },
            Subject::Proxy,
            format!("kube-proxy cannot read objects of the cluster: {error}"),
        ),
        Kind::Fallback => (
            Severity::Error,
            Subject::setting("mode"),
            format!("kube-proxy cannot run in mode ipvs, and runs in mode iptables: {error}"),
        ),
        Kind::Node => (
            Severity::Error,
            Subject::Node { name: None },
            format!(
                "kube-proxy does not find its Node, so no endpoint counts as local, and it takes 127.0.0.1 for the node's \
                 address: {error}"
            ),
        ),
        Kind::Range => (
            Severity::Error,
            Subject::Proxy,
            "kube-proxy has not started: it waits for a range of pods in its Node object (detectLocalMode: NodeCIDR)"
                .to_owned(),
        ),
        Kind::Port => {
            let claim = trouble.claim();
            let about = claim.as_ref().and_then(|claim| {
                let service = ServiceRef::from(&PortName::parse(&claim.service)?);
                Some(match claim.address {
                    Some(address) => Subject::ServiceAddress {
                        service,
                        address,
                        port: Some(claim.port),
                    },
                    None => Subject::NodePort {
                        service,
                        number: claim.port,
                    },
                })
            });
            let family = claim.as_ref().and_then(|claim| claim.family);
            let family = family.map_or_else(String::new, |family| format!(" ({family})"));
            let port = claim
                .as_ref()
                .map_or_else(String::new, |claim| format!(" {}", claim.port));
            let service = claim
                .as_ref()
                .map_or_else(String::new, |claim| format!(" of {}", claim.service));
            let why = if error.contains("address already in use") {
                "on which another process listens"
            } else {
                "which it cannot open"
            };
            (
                Severity::Error,
                about.unwrap_or(Subject::Proxy),
                format!("kube-proxy does not serve port{port}{service}{family}, {why}: {error}"),
            )
        }
        Kind::UnknownFields => (
            Severity::Warning,
            Subject::setting("fields"),
            format!(
                "kube-proxy ignores fields of its configuration file that it does not know: {}",
                fields(error)
            ),
        ),
    };
    let denied = denied(facts, error);
    let message = match denied {
        Some((by, _)) => format!("{message}; {by} denies it"),
        None => message,
    };
    let times = match trouble.count {
        1 => format!("once, at {}", trouble.first),
        count if trouble.first == trouble.last => format!("{count} times at {}", trouble.first),
        count => format!(
            "{}, {} to {}",
            number_of(count, "time"),
            trouble.first,
            trouble.last
        ),
    };
    let finding = Finding::new(severity, about, message)
        .called("kube-proxy")
        .evidence(
            all.iter()
                .map(|trouble| Proof::Log(format!("kube-proxy.log: {}", trouble.line)))
                .chain(denied.map(|(_, line)| Proof::Log(format!("dmesg: {line}"))))
                .chain([Proof::Note(times)]),
        )
        .fix(match (own_service(facts, error), rights(facts, all)) {
            _ if is_stuck => restart_fix(facts.node, "Restart kube-proxy: it then reads the objects again."),
            (Some(service), _) => Fix::said(format!(
                "Set the server in kube-proxy's kubeconfig to the API server's own address: the one that it has is the address of Service \
                 {service}, which kube-proxy itself is to serve."
            )),
            (None, Some(rights)) => rights,
            (None, None) if lacks_modules(facts, error) => Fix::said(
                "Drain the node and reboot it: the modules of the kernel that runs are no longer installed (/lib/modules has another \
                 release), so the one that kube-proxy needs cannot be loaded.",
            ),
            (None, None) if refuses_address(trouble) => ipv6_fix(DUMMY),
            (None, None) if error.contains(XOR_MARK) => {
                Fix::on_node(fix(*kind, error), "modprobe xt_mark")
            }
            (None, None) => match other_server(facts, error).filter(|_| *kind == Kind::Watch) {
                Some((asked, own)) => match kubeconfig_server(facts) {
                    Some(server) if server != asked => restart_fix(
                        facts.node,
                        format!(
                            "Restart kube-proxy: it still asks {asked}, and the kubeconfig in its ConfigMap has {server} by now."
                        ),
                    ),
                    _ => own_server_fix(facts, asked, own).unwrap_or_else(|| server_fix(asked, own)),
                },
                None => Fix::said(fix(*kind, error)),
            },
        });
    let finding = match trouble.family.or_else(|| trouble.claim()?.family) {
        Some(family) => finding.of_family(family),
        None => finding,
    };
    // The checks of modules explain its errors about IPVS and IP sets, and the check of the kernel those about the
    // kernel's release.
    let is_of_kernel = [proxy_log::NO_IPVS, OLD_KERNEL];
    if *kind == Kind::Exit && is_of_kernel.iter().any(|part| error.contains(part)) {
        finding.loss()
    } else {
        finding
    }
}

/// Tools that kube-proxy runs, and itself, as the kernel's log of refused accesses names them, cut to 15 characters.
const TOOLS: [&str; 7] = [
    "iptables",
    "ip6tables",
    "xtables",
    "ipset",
    "nft",
    "conntrack",
    "kube-proxy",
];

/// Returns what refused kube-proxy the access of `error`, `SELinux` or `AppArmor`, and the kernel's message about that.
fn denied<'n>(facts: &Facts<'n>, error: &str) -> Option<(&'static str, &'n str)> {
    if !error.to_lowercase().contains("permission denied") {
        return None;
    }
    let log = facts.node.evidence().text(Item::KernelLog).ok()?;
    let entries = kernel_log::parse(log);
    entries.iter().rev().find_map(|entry| {
        let Message::Denied { by, program: comm } = entry.message()? else {
            return None;
        };
        let is_proxys = TOOLS.iter().any(|tool| comm.starts_with(tool));
        is_proxys.then_some((by, entry.line))
    })
}

/// Returns the fix of a kube-proxy that asks for objects at `asked`, if a route that something else than the kernel made keeps the packets
/// at this node, as on the backends of a load balancer that passes packets through.
fn own_server_fix(facts: &Facts<'_>, asked: SocketAddr, own: SocketAddr) -> Option<Fix> {
    let mut routes = facts.node.routes().ok()?.all.iter();
    let kept = routes.find(|route| {
        route.kind == "local"
            && route.protocol.as_deref() != Some("kernel")
            && route.destination.contains(asked.ip())
    })?;
    let sockets = facts.node.sockets().ok()?;
    let is_heard = sockets
        .taking(Proto::Tcp, asked.ip(), asked.port())
        .next()
        .is_some();
    (!is_heard).then(|| {
        Fix::on_node(
            format!(
                "Let kube-proxy ask {own}, or start this node's API server: the route {kept} keeps packets for {asked} at this node, where \
                 nothing listens, as a cloud's agent sets it on the backends of a load balancer."
            ),
            format!("ip route show table local {}", asked.ip()),
        )
    })
}

/// Returns the fix of a kube-proxy that asks for objects at `asked`, where the API server is at `own`.
pub(super) fn server_fix(asked: SocketAddr, own: SocketAddr) -> Fix {
    Fix::kubectl(
        format!(
            "Correct the server in kube-proxy's kubeconfig, then restart kube-proxy: it asks {asked}, and the API server is at {own} (the \
             endpoint of default/kubernetes). If {asked} is a load balancer before the API server, repair that."
        ),
        "kubectl -n kube-system edit configmap kube-proxy",
    )
}

/// Returns the fix of requests that are refused, for want of the `ClusterRole`, or of some of its rules if other requests are
/// not.
fn rights(facts: &Facts<'_>, all: &[&Trouble]) -> Option<Fix> {
    let first = all.first()?;
    let bound = binding(&first.error)?;
    let refused: BTreeSet<_> = all
        .iter()
        .filter_map(|trouble| refused(&trouble.error))
        .collect();
    let log = facts.node.proxy_log().ok();
    let troubles = log
        .and_then(|log| log.troubles.as_ref().ok())
        .into_iter()
        .flatten();
    let unlisted: BTreeSet<_> = all
        .iter()
        .copied()
        .chain(troubles)
        .filter_map(|trouble| self::refused(&trouble.error))
        .filter(|(verb, ..)| *verb == "list")
        .map(|(_, resource, _)| resource)
        .collect();
    // Without its binding, kube-proxy may list nothing of what it needs.
    if refused.is_empty() || unlisted.len() > 1 {
        return Some(Fix::kubectl(fix(first.kind, &first.error), bound));
    }
    let rules: Vec<String> = refused
        .iter()
        .map(|(verb, resource, group)| {
            // What is listed is then watched.
            let verbs = match *verb {
                "list" => "\"list\",\"watch\"".to_owned(),
                verb => format!("\"{verb}\""),
            };
            format!(
                "{{\"op\":\"add\",\"path\":\"/rules/-\",\"value\":{{\"apiGroups\":[\"{group}\"],\"resources\":[\"{resource}\"],\"verbs\":[{verbs}]}}}}"
            )
        })
        .collect();
    let patch = format!(
        "kubectl patch clusterrole system:node-proxier --type=json -p '[{}]'",
        rules.join(",")
    );
    // The default role has these rights; what is watched since before a binding went is refused only when it is asked for anew.
    if refused.iter().any(|(_, resource, _)| *resource == "nodes") {
        return Some(Fix::kubectl(
            "Bind kube-proxy's ClusterRole, and give it the rights that it lacks: either the binding is gone, or the role was changed. The API \
             server restores the default rules of system:node-proxier when it starts.",
            format!("{bound}; {patch}"),
        ));
    }
    Some(Fix::kubectl(
        "Give kube-proxy's ClusterRole the rights that it lacks: other requests of kube-proxy are not refused, so the role is \
         bound. The API server restores the default rules of system:node-proxier when it starts.",
        patch,
    ))
}

/// Returns the verb, the resource and its API group of a request that was refused.
fn refused(error: &str) -> Option<(&str, &str, &str)> {
    let (_, rest) = error.split_once("\" cannot ")?;
    let (verb, rest) = rest.split_once(" resource \"")?;
    let (resource, rest) = rest.split_once('"')?;
    let (_, rest) = rest.split_once("in API group \"")?;
    Some((verb, resource, rest.split('"').next()?))
}

/// Returns the command that gives the user of a refused request the rights of kube-proxy.
fn binding(error: &str) -> Option<String> {
    let (_, rest) = error.split_once("forbidden: User \"")?;
    let user = rest.split('"').next()?;
    let subject = match user.strip_prefix("system:serviceaccount:") {
        Some(account) => format!("--serviceaccount={account}"),
        None => format!("--user={user}"),
    };
    Some(format!(
        "kubectl create clusterrolebinding kube-proxy-node-proxier --clusterrole=system:node-proxier {subject}"
    ))
}

/// Returns the names in an error of a decoder: `unknown field: NAME, …` until 1.22, `unknown field "NAME"` since.
fn fields(error: &str) -> String {
    let names = error.split("unknown field").skip(1);
    let names = names.filter_map(|rest| {
        let rest = rest.trim_start_matches([':', ' ', '"']);
        rest.split([',', '"', ' ']).next()
    });
    let names: Vec<&str> = names.filter(|name| !name.is_empty()).collect();
    match names.as_slice() {
        [] => error.to_owned(),
        names => listed(names),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_without_rights_is_bound() {
        let line = |user: &str| {
            binding(&format!(
                "services is forbidden: User \"{user}\" cannot list resource \"services\""
            ))
        };
        let account = line("system:serviceaccount:kube-system:kube-proxy").unwrap();
        assert!(
            account.ends_with(" --serviceaccount=kube-system:kube-proxy"),
            "{account}"
        );
        assert!(
            line("system:kube-proxy")
                .unwrap()
                .ends_with(" --user=system:kube-proxy")
        );
        assert_eq!(binding("unauthorized"), None);
    }

    #[test]
    fn unknown_fields_are_named_in_both_forms() {
        let old = "strict decoder error for kind: KubeProxyConfiguration: v1alpha1.KubeProxyConfiguration.ReadObject: found \
                   unknown field: kubeProxyIPTablesConfiguration, error found in #10 byte of ...|x|...";
        assert_eq!(fields(old), "kubeProxyIPTablesConfiguration");
        let new = "strict decoding error: unknown field \"ipvs.strictArp\", unknown field \"x\"";
        assert_eq!(fields(new), "ipvs.strictArp, x");
        let duplicate = "yaml: line 3: key \"mode\" already set in map";
        assert_eq!(fields(duplicate), duplicate);
    }
}
