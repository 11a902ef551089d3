//! SY18: messages of the kernel about packets that it drops and processes that it kills.

use std::collections::BTreeSet;

use crate::check::core::{MODE, wireguard_fix};
use crate::check::{
    Because, Check, Example, Facts, Finding, Fix, ProcessState, Proof, ServiceRef, Severity,
    Subject, Text, Verdict, When,
};
use crate::verdict::{Corrupted, MOST_TRACKED, sysctl_of};
use kpx_node::backend::Mode;
use kpx_node::cluster::Pod;
use kpx_node::evidence::Item;
use kpx_node::evidence::kernel_log::{self, Entry, Martian, Message};
use kpx_node::net::{Family, Proto};
use kpx_node::owner::Port;
use kpx_node::words::number_of;

pub(super) const CHECKS: &[Check] = &[Check {
    id: "SY18",
    name: "kernel-log",
    severity: Severity::Warning,
    when: When::Now,
    title: "The kernel's log does not say that it drops packets",
    symptom: "Connections fail at random, or while the node is under load.",
    why: "The kernel logs when a table is full, when it refuses packets for their source, when a listener's queue is full, and when \
          it kills a process for want of memory. An old message shows what happened, not what is wrong now.",
    verify: "The messages must not go on.",
    commands: &[Example::on_node("dmesg -T | tail -n 100")],
    fix: Text::plain("Find out what filled the table or the memory at that time."),
    incidents: &[
        "kubernetes/kubernetes#18604: table full",
        "kubernetes/kops#4533: neighbor table overflow",
        "siderolabs/talos#8935: NETDEV WATCHDOG, transmit queue timed out",
        "kubernetes/kubernetes#62334: TCP out of memory",
        "moby/moby#5618: unregister_netdevice",
        "couchbase/sync_gateway#1193: skb rides the rocket",
        "kubernetes/node-problem-detector: file system made read-only",
        "coreos/bugs#2515: links that flap",
        "easzlab/kubeasz#300: soft lockup",
        "coreos/bugs#1106: page allocation failure",
    ],
    needs: &[
        MODE,
        &[
            Item::KernelLog,
            Item::Services,
            Item::Links,
            Item::Nodes,
            Item::Pods,
            Item::Routes,
        ],
    ],
    caused_by: &[
        Because::Same("CT01"),
        Because::Same("CT05"),
        Because::Same("SY15"),
        Because::Same("SY09"),
        Because::Same("AP01"),
        Because::Services("VS07"),
        Because::Same("KP02"),
    ],
    run: messages,
}];

/// The meaning of a message of the kernel.
struct Meaning {
    about: Subject,
    severity: Severity,
    message: String,
    fix: Option<Fix>,
    services: Vec<ServiceRef>,
    /// The fewest messages that are no accident.
    least: usize,
}

impl Meaning {
    fn new(about: Subject, severity: Severity, message: impl Into<String>) -> Self {
        Self {
            about,
            severity,
            message: message.into(),
            fix: None,
            services: Vec::new(),
            least: 1,
        }
    }

    fn fix(self, text: &'static str, command: String) -> Self {
        Self {
            fix: Some(Fix::on_node(text, command)),
            ..self
        }
    }
}

fn messages(facts: &Facts<'_>) -> Verdict {
    let evidence = facts.node.evidence();
    let log = evidence.shown(Item::KernelLog)?;
    let entries = kernel_log::parse(log);
    let new: Vec<&Entry<'_>> = kernel_log::of_last_hour(&entries).collect();
    let mut found: Vec<(Meaning, Vec<&Entry<'_>>)> = Vec::new();
    for entry in &entries {
        let Some(meaning) = meaning(facts, entry) else {
            continue;
        };
        let same = |(of, _): &&mut (Meaning, Vec<_>)| {
            (&of.about, &of.message) == (&meaning.about, &meaning.message)
        };
        match found.iter_mut().find(same) {
            Some((_, lines)) => lines.push(entry),
            None => found.push((meaning, vec![entry])),
        }
    }
    found.retain(|(of, lines)| lines.len() >= of.least);
    let findings = found.into_iter().filter_map(|(of, lines)| {
        let newest = *lines.last()?;
        let recent = lines.iter().filter(|line| new.contains(line)).count();
        let severity = if recent >= of.least {
            of.severity
        } else {
            Severity::Info
        };
        let when = match newest.at {
            "" => String::new(),
            at if at.parse::<f64>().is_ok() => {
                format!(", the last {at} s after the start of the kernel")
            }
            at => format!(", the last at {at}"),
        };
        let count = number_of(lines.len(), "message");
        let finding = Finding::new(severity, of.about, of.message)
            .services(of.services)
            .evidence([
                Proof::Log(newest.line.to_owned()),
                Proof::Note(format!("{count}{when}")),
            ]);
        Some(match of.fix.filter(|_| severity >= Severity::Warning) {
            // Packets are lost now: that comes before plans.
            Some(fix) => finding.fix(fix).first(),
            None => finding,
        })
    });
    let findings: Vec<Finding> = findings.collect();
    match evidence.part(Item::KernelLog) {
        Some(gap) if findings.is_empty() => Err(gap),
        _ => Ok(findings),
    }
}

/// Returns what `entry` means for Services; `None` if nothing.
fn meaning(facts: &Facts<'_>, entry: &Entry<'_>) -> Option<Meaning> {
    use Severity::{Error, Info, Warning};
    let found = match entry.message()? {
        Message::Start | Message::Unmaintained | Message::HeldByNft | Message::Denied { .. } => {
            return None;
        }
        Message::ConntrackFull => {
            let text =
                "the kernel dropped packets of new connections: the conntrack table was full";
            Meaning::new(Subject::Conntrack, Warning, text).fix(
                "Compare the count with the maximum. If the table fills again, raise conntrack.maxPerCore in kube-proxy's configuration.",
                format!("sysctl net.netfilter.nf_conntrack_count {MOST_TRACKED}"),
            )
        }
        Message::NeighboursFull(family) => {
            let key = match family {
                Family::V4 => "net.ipv4.neigh.default.gc_thresh3",
                Family::V6 => "net.ipv6.neigh.default.gc_thresh3",
            };
            let text = "the kernel dropped packets: the neighbour table was full";
            Meaning::new(family.into(), Warning, text).fix(
                "Raise gc_thresh2 and gc_thresh3, also in a file of /etc/sysctl.d, if the number of neighbours comes near it.",
                format!("sysctl {key}; ip neigh | wc -l"),
            )
        }
        Message::RoutesFull => {
            let key = "net.ipv6.route.max_size";
            let text = "the kernel sent no packets of new IPv6 connections: it kept as many routes as it may";
            Meaning::new(Subject::sysctl(key), Warning, text).fix(
                "Raise the limit, also in a file of /etc/sysctl.d. Kernels from 6.3 on have none.",
                format!("sysctl -w {key}=1048576"),
            )
        }
        Message::Martian(Martian { source, link, .. }) => {
            let text = format!(
                "the kernel dropped packets from {source} that came in by {link}: its routes lead to this source by another link"
            );
            let key = sysctl_of(link, "rp_filter");
            Meaning::new(Subject::link(link), Warning, text).fix(
                "Compare the route back with the link: correct the route, or set rp_filter of the link to 2.",
                format!("ip route get {source}; sysctl {key}"),
            )
        }
        Message::BadChecksum { .. } => {
            let Corrupted {
                link,
                node,
                address,
            } = Corrupted::of(facts.node, entry)?;
            let text = format!(
                "the kernel dropped what node {node} ({address}) sent by its tunnel: its checksum was wrong"
            );
            let fix = Fix::on_node(
                "Turn the offload of checksums off at the tunnel's link of that node, and make it persistent with a udev rule: its network \
                 card, or its hypervisor's, gets them wrong.",
                format!("ethtool -K {link} tx-checksum-ip-generic off"),
            );
            Meaning {
                fix: Some(fix.at(&node)),
                ..Meaning::new(Subject::link(link), Warning, text)
            }
        }
        Message::NotAllowed { link, source, peer } => {
            let text = format!(
                "{link} dropped packets from {source} of peer {peer}: WireGuard takes only the allowed IPs of a peer"
            );
            let ports = facts.owners().ports().iter();
            let of_source = ports.filter(|port| {
                let mut all = port.endpoints.iter();
                all.any(|endpoint| endpoint.addr.ip() == source)
            });
            let services: Vec<_> = of_source.map(|port| ServiceRef::from(&port.name)).collect();
            let mut of_plugins = ["wireguard.cali", "wg-v6.cali", "flannel-wg"].into_iter();
            let is_of_pods = !services.is_empty() || of_plugins.any(|name| link.starts_with(name));
            let severity = if is_of_pods { Warning } else { Info };
            Meaning {
                fix: Some(wireguard_fix(link)),
                services,
                ..Meaning::new(Subject::link(link), severity, text)
            }
        }
        Message::CardHangs(device) => {
            let text = format!("{device} did not send packets for seconds: its driver reset it");
            Meaning::new(Subject::link(device), Warning, text).fix(
                "Look for the driver's messages before it, and update the driver, the firmware or the kernel. Turning offloads off may help \
                 until then (`ethtool -K`).",
                format!("ethtool -i {device}; ip -s link show {device}"),
            )
        }
        Message::TooManyParts => {
            let card = default_link(facts)?;
            let text = "the kernel dropped packets of more parts than the card of this virtual machine takes (xen_netfront)";
            Meaning::new(Subject::link(&card), Warning, text).fix(
                "Turn scatter-gather off at the card, also with a udev rule, or use a type of machine with another card (on AWS one with ENA).",
                format!("ethtool -K {card} sg off"),
            )
        }
        Message::DeviceInUse(device) => {
            let text = "the kernel waits for a network device of a pod that is gone, and makes and removes no networks of pods until then";
            let services = with_pods_here(facts, Pod::is_starting);
            let severity = if services.is_empty() { Warning } else { Error };
            let node = facts.called().unwrap_or_else(|_| "NODE".to_owned());
            Meaning {
                services,
                fix: Some(Fix::kubectl(
                    "Drain the node and restart it: nothing else ends the wait, which is a bug of the kernel. Then update the kernel.",
                    format!("kubectl drain {node} --ignore-daemonsets"),
                )),
                ..Meaning::new(Subject::link(device), severity, text)
            }
        }
        Message::CarrierLost(device) => {
            let mut links = facts.node.links().ok()?.all.iter();
            if !links.any(|link| link.name == device && link.kind != "veth") {
                return None;
            }
            let text = format!(
                "{device} lost its carrier again and again: packets are lost until it is back"
            );
            Meaning {
                least: 3,
                ..Meaning::new(Subject::link(device), Warning, text).fix(
                    "Look at the cable, at the port of the switch and its settings (LACP), and at the driver.",
                    format!("ethtool {device}; ip -s -s link show {device}"),
                )
            }
        }
        Message::Held => {
            let text = "a processor of the node was stuck for many seconds: packets and programs on it waited";
            Meaning::new(Subject::tool("CPU"), Warning, text).fix(
                "The lines below the message name what held it: a driver, or a hypervisor that gives the machine too little time (column st of \
                 vmstat). Update the kernel, or move the machine.",
                "dmesg -T | grep -A 20 -E 'soft lockup|stall'; vmstat 1 5".to_owned(),
            )
        }
        Message::NoMemoryForPackets => {
            let key = "vm.min_free_kbytes";
            let text = "the kernel found no memory for packets that came in, and dropped them";
            Meaning::new(Subject::sysctl(key), Warning, text).fix(
                "Raise the memory that the kernel keeps free, also in a file of /etc/sysctl.d, and find what uses the node's memory.",
                format!("sysctl {key}; free -m"),
            )
        }
        Message::ReadOnly(disk) => {
            let text = "the kernel made this file system read-only after an error of its disk: containers that write do not start, and programs fail";
            let services = with_pods_here(facts, Pod::is_stopped);
            let severity = if services.is_empty() { Warning } else { Error };
            let node = facts.called().unwrap_or_else(|_| "NODE".to_owned());
            Meaning {
                services,
                fix: Some(Fix::kubectl(
                    "Drain the node, then check the disk and its file system (fsck), or replace the machine: the messages before it have the error.",
                    format!("kubectl drain {node} --ignore-daemonsets"),
                )),
                ..Meaning::new(Subject::setting(disk), severity, text)
            }
        }
        Message::ListenerFull(port) => {
            let text = format!(
                "more connections were waiting at port {port} than its program accepted in time (possible SYN flooding)"
            );
            Meaning::new(Subject::counter("TcpExtTCPReqQFullDrop"), Info, text)
        }
        Message::TcpMemory => {
            let text = "the kernel dropped packets: its memory for TCP was used up";
            let of_tcp = |port: &&Port| port.proto == Proto::Tcp;
            let ports = facts.owners().ports().iter().filter(of_tcp);
            let services: BTreeSet<ServiceRef> =
                ports.map(|port| ServiceRef::from(&port.name)).collect();
            Meaning {
                services: services.into_iter().collect(),
                ..Meaning::new(Subject::sysctl("net.ipv4.tcp_mem"), Warning, text).fix(
                    "Find the program with the largest queues; raise tcp_mem if all of them are needed.",
                    "ss -tm | sort -k2 -n | tail; cat /proc/net/sockstat".to_owned(),
                )
            }
        }
        Message::KubeProxyKilled { by_its_limit } => {
            let about = Subject::ProxyProcess {
                state: ProcessState::Restarts,
            };
            let (text, fix) = if by_its_limit {
                (
                    "the kernel killed kube-proxy, which had reached its memory limit",
                    "Raise resources.limits.memory of the container kube-proxy in its DaemonSet.",
                )
            } else {
                (
                    "the kernel killed kube-proxy: the node was out of memory",
                    "Find what uses the node's memory. oomScoreAdj of kube-proxy's configuration, -999 by default, spares it.",
                )
            };
            Meaning::new(about, Warning, text)
                .fix(fix, "dmesg -T | grep -i 'killed process'".to_owned())
        }
        Message::NoRealServer(at) => {
            if facts.current() != Ok(Mode::Ipvs) {
                return None;
            }
            let mut services = facts.node.services().into_iter().flatten();
            let service = services.find(|service| {
                let mut all = service.spec.cluster_ips.iter();
                all.any(|text| text.parse() == Ok(at.ip()))
            })?;
            let text = "connections were refused: the virtual server had no real server then";
            Meaning::new(Subject::service(service), Info, text)
        }
    };
    Some(found)
}

/// Returns the link of the node's default route.
fn default_link(facts: &Facts<'_>) -> Option<String> {
    let mut routes = facts.node.routes().ok()?.all.iter();
    let default = routes.find(|route| route.destination.prefix == 0 && route.table == "main")?;
    default.device.clone()
}

/// Returns the Services with pods on this node for which `is_it` holds.
fn with_pods_here(facts: &Facts<'_>, is_it: impl Fn(&Pod) -> bool) -> Vec<ServiceRef> {
    let here = facts.called().ok();
    let pods = facts.node.pods().into_iter().flatten();
    let starting = pods.filter(|pod| here.is_some() && pod.spec.node_name == here);
    let starting: Vec<&Pod> = starting.filter(|pod| is_it(pod)).collect();
    let services = facts.node.services().into_iter().flatten();
    let of = services.filter(|service| starting.iter().any(|pod| service.selects(pod)));
    of.map(ServiceRef::from).collect()
}
