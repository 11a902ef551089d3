//! Sysctls of forwarding, routing and client ports.

use std::collections::BTreeSet;
use std::net::{Ipv4Addr, SocketAddr};

use crate::check::core::{
    Collector, PATH, Paths, node_ports, port_range_fix, reserved_ports_fix, setting, sysctl_proof,
};
use crate::check::{
    Because, Check, Example, Facts, Finding, Fix, Proof, ServiceRef, Severity, Subject, Text,
    Verdict, When,
};
use crate::trace::{self, Entry, Verdict as End};
use crate::verdict::{Fault, LocalPorts, PORT_RANGE, RESERVED_PORTS, Surveyed, sysctl_of};
use kpx_node::backend::Mode;
use kpx_node::cluster::config::NodePortsAt;
use kpx_node::evidence::{Gap, Item, Kernel};
use kpx_node::net::{Family, Proto};
use kpx_node::node::IptablesBackend;
use kpx_node::node::links::Link;
use kpx_node::words::number_of;

pub(super) const CHECKS: &[Check] = &[
    Check {
        id: "SY01",
        name: "ip-forward",
        severity: Severity::Error,
        when: When::Now,
        title: "The kernel forwards packets between links",
        symptom: "Pods reach neither Services nor other nodes, and NodePorts answer only for endpoints on the node \
              itself.",
        why: "A packet from a pod to a Service, or from outside to a NodePort, arrives on one link and leaves on \
              another. With forwarding off the kernel drops it after translation, and no rule counts it. kube-proxy \
              enables IPv4 forwarding only in ipvs mode; otherwise the distribution and the network plugin are \
              responsible.",
        verify: "Both sysctls must be 1 for the families in use; a file that sets one to 0 applies again at the next \
              boot or `sysctl --system`.",
        commands: &[
            Example::on_node("sysctl net.ipv4.ip_forward net.ipv6.conf.all.forwarding"),
            Example::on_node(
                "grep -rE '(ip_forward|all.forwarding)' /etc/sysctl.conf /etc/sysctl.d /usr/lib/sysctl.d /run/sysctl.d",
            ),
        ],
        fix: Text::plain("Set it to 1 now, and in a file of /etc/sysctl.d to make it persistent."),
        incidents: &[
            "kubeadm refuses to join a node with IPv4 forwarding off (preflight FileContent--proc-sys-net-ipv4-ip_forward)",
        ],
        needs: &[PATH, trace::NOTES_NEEDS],
        caused_by: &[],
        run: ip_forward,
    },
    Check {
        id: "SY08",
        name: "route-localnet",
        severity: Severity::Warning,
        when: When::Now,
        title: "NodePorts work on localhost, which cannot be reached from outside",
        symptom: "Connections of the node to 127.0.0.1:NODEPORT time out. Or there is no symptom: hosts on the \
                  same network can reach daemons that listen on 127.0.0.1.",
        why: "For NodePorts on localhost kube-proxy sets route_localnet when it starts in mode iptables, with which the kernel accepts \
              packets for 127.0.0.0/8 from outside. A rule in KUBE-FIREWALL drops those from other sources.",
        verify: "If route_localnet is 1, KUBE-FIREWALL must drop packets for 127.0.0.0/8 from other sources. If it is 0 in mode iptables, \
                 iptables.localhostNodePorts must be false.",
        commands: &[
            Example::on_node("sysctl net.ipv4.conf.all.route_localnet"),
            Example::on_node("iptables -S KUBE-FIREWALL"),
        ],
        fix: Text::plain(
            "Set iptables.localhostNodePorts to false and route_localnet to 0, or restart kube-proxy, which \
             restores the rule.",
        ),
        incidents: &[
            "kubernetes/kubernetes#90259: CVE-2020-8558",
            "kubernetes/kubernetes#114470",
        ],
        needs: &[PATH],
        caused_by: &[Because::In("IB07")],
        run: localnet,
    },
    Check {
        id: "SY09",
        name: "reverse-path",
        severity: Severity::Warning,
        when: When::Now,
        title: "Tunnels between nodes have no strict reverse path filter",
        symptom: "Connections to NodePorts hang if the endpoint is on another node.",
        why: "With rp_filter 1 the kernel drops a packet if the route back to its source uses another link. For \
              traffic through a tunnel, the route back to a client is the uplink. The higher value of the global \
              sysctl and the link's own applies.",
        verify: "The higher of the two must be 0 or 2 for the links of the network plugin.",
        commands: &[Example::on_node("sysctl -a | grep '\\.rp_filter'")],
        fix: Text::plain(
            "Set rp_filter to 2 for the link with `sysctl -w`, and in a file of /etc/sysctl.d.",
        ),
        incidents: &["KubeSkoop requires 0 with several network plugins"],
        needs: &[&[Item::Sysctl, Item::Links]],
        caused_by: &[Because::In("SY16")],
        run: reverse_path,
    },
    Check {
        id: "SY10",
        name: "invalid-packets",
        severity: Severity::Warning,
        when: When::For(&[Mode::Nftables]),
        title: "Packets that conntrack considers invalid are harmless",
        symptom: "After the switch, under load, clients occasionally reset a connection to a Service.",
        why: "Conntrack considers a packet outside the TCP window invalid and does not translate its source back: the \
              client receives it from an unknown address and resets the connection. The iptables mode drops such \
              packets; the nftables mode has no such rule and relies on the sysctl that accepts them.",
        verify: "The sysctl must be 1, or conntrack.tcpBeLiberal true in kube-proxy's configuration.",
        commands: &[Example::on_node(
            "sysctl net.netfilter.nf_conntrack_tcp_be_liberal",
        )],
        fix: Text::plain(
            "Set conntrack.tcpBeLiberal to true in kube-proxy's configuration together with the switch.",
        ),
        incidents: &[
            "kubernetes/kubernetes#117924",
            "kubernetes/kubernetes#122663",
            "kubermatic/kubermatic#15501",
        ],
        needs: &[&[Item::Sysctl, Item::ProxyConfig, Item::ConfigMaps]],
        caused_by: &[],
        run: liberal,
    },
    Check {
        id: "SY12",
        name: "local-port-range",
        severity: Severity::Warning,
        when: When::Now,
        title: "Clients on the node have enough ports, and none of them is a NodePort",
        symptom: "Occasionally a connection from the node times out: its replies are treated as NodePort traffic. Or it fails \
                  at once: cannot assign requested address.",
        why: "A client socket gets a port of ip_local_port_range. If that is an allocated NodePort, the replies match \
              the rules of the NodePort. The kernel's default range begins above the NodePorts but is often widened. Of a \
              small range, all ports are soon taken.",
        verify: "The range must not contain NodePorts, or ip_local_reserved_ports must contain them; and it must have as many ports \
                 as the node opens connections to one address within a minute.",
        commands: &[Example::on_node(
            "sysctl net.ipv4.ip_local_port_range net.ipv4.ip_local_reserved_ports",
        )],
        fix: Text::plain(
            "Reserve the NodePort range with `sysctl -w net.ipv4.ip_local_reserved_ports=30000-32767`, and in a \
             file of /etc/sysctl.d.",
        ),
        incidents: &[
            "kubernetes/kubernetes#111682",
            "kubernetes/kubernetes#111697",
            "awslabs/amazon-eks-ami#1307",
        ],
        needs: &[&[Item::Sysctl, Item::Services]],
        caused_by: &[],
        run: local_ports,
    },
    Check {
        id: "SY17",
        name: "time-wait-recycling",
        severity: Severity::Error,
        when: When::Now,
        title: "The kernel does not compare the timestamps of clients behind one address",
        symptom: "Some new connections to Services and NodePorts time out, those of some clients far more often, and the endpoint \
                  never sees their first packet answered.",
        why: "With tcp_tw_recycle, the kernel drops a first packet whose TCP timestamp is older than the last one from the same \
              address. kube-proxy and network plugins masquerade clients, so many machines with different clocks share the \
              node's address. Linux 4.12 removed the setting.",
        verify: "The sysctl must be 0, or not exist.",
        commands: &[
            Example::on_node("sysctl net.ipv4.tcp_tw_recycle"),
            Example::on_node("nstat -az TcpExtPAWSPassive"),
        ],
        fix: Text::plain("Set the sysctl to 0, also where it is configured in /etc/sysctl.d."),
        incidents: &["kubernetes/kubernetes#33945"],
        needs: &[&[Item::Sysctl, Item::KernelRelease]],
        caused_by: &[],
        run: recycling,
    },
];

fn ip_forward(facts: &Facts<'_>) -> Verdict {
    facts.node.sysctl()?;
    let mut findings = Collector::default();
    // Without pods' prefixes, use the families of Service addresses.
    let families = match facts.pod_families() {
        Ok(families) if !families.is_empty() => families,
        _ => facts.families()?,
    };
    for family in families {
        let key = match family {
            Family::V4 => "net.ipv4.ip_forward",
            Family::V6 => "net.ipv6.conf.all.forwarding",
        };
        let Some(value) = findings.read(setting(facts, key)) else {
            continue;
        };
        if value != "0" {
            continue;
        }
        let seen = Proof::Sysctl {
            key: key.to_owned(),
            value: value.to_owned(),
        };
        let finding = if facts.node.has_pod_network() {
            let message = "forwarding is off: packets from and to pods are dropped";
            Finding::new(Severity::Error, Subject::sysctl(key), message).evidence([seen])
        } else {
            let message = "forwarding is off: packets that this node forwards are dropped, though no pod network is seen on it yet";
            let note = "no link of a pod and no route to pod addresses".to_owned();
            Finding::new(Severity::Warning, Subject::sysctl(key), message)
                .evidence([seen, Proof::Note(note)])
        };
        let stopped = stopped_by(facts, &Fault::NotForwarded { key });
        findings.push(finding.services(stopped).fix(Fix::on_node(
            "Set the sysctl, and write it to a file of /etc/sysctl.d to make it persistent.",
            format!("sysctl -w {key}=1"),
        )));
    }
    findings.verdict()
}

/// Returns the Services of which connections fail with `fault`.
fn stopped_by(facts: &Facts<'_>, fault: &Fault) -> BTreeSet<ServiceRef> {
    let ports = facts.surveyed().into_iter().flatten();
    let is_stopped = |port: &&Surveyed| {
        let mut failing = port.cells.iter().filter(|cell| !cell.by_design);
        failing.any(|cell| cell.fault.as_ref() == Some(fault))
    };
    let stopped = ports.filter(is_stopped);
    stopped.map(|port| ServiceRef::from(&port.name)).collect()
}

/// Returns the finding of NodePorts on localhost that kube-proxy is to serve, but the sysctl `key` keeps from working.
fn localhost_node_ports(facts: &Facts<'_>, key: &'static str) -> Verdict {
    if facts.node.configured_mode() != Ok(Mode::Iptables) {
        return Ok(Vec::new());
    }
    let config = facts.node.proxy_config()?;
    let serves = |at: &NodePortsAt| match at {
        NodePortsAt::All | NodePortsAt::Localhost => true,
        NodePortsAt::Prefix(range) => range.contains(Ipv4Addr::LOCALHOST.into()),
        NodePortsAt::Primary => false,
    };
    let is_wanted = config.iptables.localhost_node_ports != Some(false)
        && config.node_ports_at(Mode::Iptables).iter().any(serves);
    let links = &facts.node.links()?.all;
    let is_on = |link: &Link| setting(facts, &sysctl_of(&link.name, "route_localnet"));
    if !is_wanted
        || links
            .iter()
            .any(|link| is_on(link).is_ok_and(|value| value == "1"))
    {
        return Ok(Vec::new());
    }
    let ports = facts.owners().ports().iter();
    let with_node_port = ports.filter(|port| {
        let mut endpoints = port.endpoints.iter();
        port.node_port.is_some() && endpoints.any(|endpoint| endpoint.addr.is_ipv4())
    });
    let services: BTreeSet<ServiceRef> = with_node_port
        .map(|port| ServiceRef::from(&port.name))
        .collect();
    if services.is_empty() {
        return Ok(Vec::new());
    }
    let message = "NodePorts do not work at 127.0.0.1, although kube-proxy is configured to serve them \
                   (iptables.localhostNodePorts): packets from 127.0.0.0/8 do not leave the node";
    Ok(vec![
        Finding::new(Severity::Warning, Subject::sysctl(key), message)
            .evidence([sysctl_proof(key, 0)])
            .services(services)
            .fix(Fix::on_node(
                "Set the sysctl again, and find out what changed it: kube-proxy writes it only when it starts. Or set \
                 iptables.localhostNodePorts to false, if nothing on the node uses NodePorts at 127.0.0.1.",
                format!("sysctl -w {key}=1"),
            )),
    ])
}

fn localnet(facts: &Facts<'_>) -> Verdict {
    /// The port of kube-proxy's metrics, which are on 127.0.0.1.
    const PORT: u16 = 10249;
    let key = "net.ipv4.conf.all.route_localnet";
    if setting(facts, key)? != "1" {
        return localhost_node_ports(facts, key);
    }
    let rules = facts.node.iptables(IptablesBackend::InUse, Family::V4)?;
    let chain = rules.chain("filter", "KUBE-FIREWALL");
    let mut findings = Collector::default();
    let paths = Paths::of(facts, Family::V4);
    let to = SocketAddr::from((Ipv4Addr::LOCALHOST, PORT));
    let packet = paths.packet(Entry::Outside, to, Proto::Tcp);
    let accepted =
        packet.map(|packet| paths.astray(&mut findings, &packet, |end| end.verdict != End::Local));
    if accepted.is_some_and(|ends| !ends.is_empty()) {
        // Rules that were not read may drop them.
        paths.note_unread(facts, &mut findings);
        let message = "packets for 127.0.0.0/8 from outside are accepted: no rule drops them";
        let finding = Finding::new(Severity::Warning, Subject::sysctl(key), message)
            .lost_in([Subject::table(Family::V4, "filter")])
            .evidence([
                sysctl_proof(key, 1),
                Proof::Chain {
                    family: Family::V4,
                    table: "filter".to_owned(),
                    chain: "KUBE-FIREWALL".to_owned(),
                    rules: chain.map_or(0, |chain| chain.rules.len()),
                },
            ]);
        findings.push(match facts.node.configured_mode() {
            Ok(Mode::Ipvs | Mode::Nftables) => finding.fix(Fix::on_node(
                "Turn the sysctl off, also in /etc/sysctl.d: kube-proxy needs it in mode iptables alone.",
                format!("sysctl -w {key}=0"),
            )),
            _ => finding,
        });
    }
    findings.verdict()
}

/// Fewer ports than this are soon used up: a client's port waits for 60 s after its connection.
const FEW: usize = 1024;

fn local_ports(facts: &Facts<'_>) -> Verdict {
    let ports = LocalPorts::read(facts.node)?;
    let proofs = || {
        let keys = [PORT_RANGE, RESERVED_PORTS].into_iter();
        keys.filter_map(|key| Some(sysctl_proof(key, setting(facts, key).ok()?)))
    };
    let mut findings = Collector::default();
    let count = ports.count();
    if count < FEW {
        let message = format!(
            "clients on the node have {} for all connections to one address; a port waits for 60 s after its connection",
            number_of(count, "port")
        );
        // The range is large enough without the reserved ones.
        let (key, fix) = if usize::from(ports.last - ports.first) < FEW {
            (PORT_RANGE, port_range_fix())
        } else {
            (RESERVED_PORTS, reserved_ports_fix())
        };
        findings.push(
            Finding::new(Severity::Warning, Subject::sysctl(key), message)
                .evidence(proofs())
                .fix(fix),
        );
    }
    let Some(node_ports) = findings.read(node_ports(facts)) else {
        return findings.verdict();
    };
    let within = node_ports
        .into_iter()
        .filter(|((_, number), _)| ports.contains(*number));
    let (numbers, services): (BTreeSet<u16>, Vec<_>) = within
        .map(|((_, number), service)| (number, service))
        .unzip();
    if !numbers.is_empty() {
        let names: Vec<_> = numbers.iter().take(5).map(ToString::to_string).collect();
        let message = "client sockets of the node may use the number of an allocated NodePort";
        findings.push(
            Finding::new(Severity::Warning, Subject::sysctl(PORT_RANGE), message)
                .evidence(proofs())
                .evidence([Proof::Note(format!(
                    "{} NodePorts in the range, for example {}",
                    numbers.len(),
                    names.join(", ")
                ))])
                .services(services)
                .fix(Fix::on_node(
                    "Reserve the NodePort range, and write the sysctl to a file of /etc/sysctl.d to make it persistent.",
                    format!("sysctl -w {RESERVED_PORTS}=30000-32767"),
                )),
        );
    }
    findings.verdict()
}

fn reverse_path(facts: &Facts<'_>) -> Verdict {
    /// Prefixes of links that network plugins use to reach other nodes.
    const TUNNELS: [&str; 6] = ["flannel", "tunl", "vxlan", "cilium_", "geneve", "wireguard"];
    let links = facts.node.links()?.all.iter();
    let tunnels: Vec<_> = links
        .map(|link| link.name.as_str())
        .filter(|name| TUNNELS.iter().any(|start| name.starts_with(start)))
        .collect();
    if tunnels.is_empty() {
        return Err(Gap::NotApplicable(
            "the node has no tunnel to other nodes".to_owned(),
        ));
    }
    let of_all = setting(facts, "net.ipv4.conf.all.rp_filter")?;
    let mut findings = Collector::default();
    for link in tunnels {
        let key = format!("net.ipv4.conf.{}.rp_filter", link.replace('.', "/"));
        let Some(own) = findings.read(setting(facts, &key)) else {
            continue;
        };
        if own.max(of_all) == "1" {
            let message =
                "the strict reverse path filter drops packets whose route back uses another link";
            findings.push(
                Finding::new(Severity::Warning, Subject::link(link), message)
                    .evidence([
                        sysctl_proof(&key, own),
                        sysctl_proof("net.ipv4.conf.all.rp_filter", of_all),
                    ])
                    .through([Subject::sysctl(&key)])
                    .fix(Fix::on_node(
                        "Set the sysctl to 2, now and in a file of /etc/sysctl.d.",
                        format!("sysctl -w {key}=2"),
                    )),
            );
        }
    }
    findings.verdict()
}

fn recycling(facts: &Facts<'_>) -> Verdict {
    const KEY: &str = "net.ipv4.tcp_tw_recycle";
    const REMOVED_IN: Kernel = Kernel(4, 12);
    let value = match setting(facts, KEY) {
        Ok(value) => value,
        Err(gap) => {
            let kernel = facts.node.kernel()?;
            if kernel >= REMOVED_IN {
                return Err(Gap::NotApplicable(format!(
                    "kernel {kernel} does not have {KEY}"
                )));
            }
            return Err(gap);
        }
    };
    if value == "0" {
        return Ok(Vec::new());
    }
    let message = "the kernel drops new connections of clients that share an address, such as masqueraded ones";
    Ok(vec![
        Finding::new(Severity::Error, Subject::sysctl(KEY), message)
            .evidence([sysctl_proof(KEY, value)])
            .fix(Fix::on_node(
                "Set the sysctl to 0, and remove it from the files of /etc/sysctl.d.",
                format!("sysctl -w {KEY}=0"),
            )),
    ])
}

fn liberal(facts: &Facts<'_>) -> Verdict {
    const KEY: &str = "net.netfilter.nf_conntrack_tcp_be_liberal";
    // One of them is enough.
    let is_liberal = setting(facts, KEY).map(|value| value != "0");
    if is_liberal == Ok(true) || facts.configuration()?.conntrack.tcp_be_liberal || is_liberal? {
        return Ok(Vec::new());
    }
    let message = "conntrack considers packets outside the TCP window invalid, and the nftables mode does not drop them";
    Ok(vec![
        Finding::new(Severity::Warning, Subject::sysctl(KEY), message).evidence([
            sysctl_proof(KEY, 0),
            Proof::setting(
                "kube-proxy's configuration",
                "conntrack.tcpBeLiberal",
                false,
            ),
        ]),
    ])
}
