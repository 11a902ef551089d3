//! DV, VS, IS, KM: what the ipvs mode asks of links, sets, modules and Services, beside the difference.

use std::collections::BTreeSet;
use std::net::IpAddr;

use super::facts::MODE;
use super::{Check, Facts, Finding, Proof, Severity, Verdict, When};
use crate::backend::Mode;
use crate::backend::ipvs::model::{DUMMY, Key};
use crate::backend::ipvs::print;
use crate::backend::software::set_purpose;
use crate::cluster::config::go_duration;
use crate::evidence::{Gap, Item};
use crate::node::links::Address;
use crate::node::modules::Standing;

const TABLE: &[Item] = &[Item::Ipvs, Item::IpvsSave, Item::IpvsTimeout];

pub(super) const CHECKS: &[Check] = &[
    Check {
        id: "DV04",
        name: "address-conflict",
        severity: Severity::Error,
        when: When::Now,
        title: "No Service address on kube-ipvs0 is a node's own address",
        symptom: "The whole node, or every other node, is cut off: packets for that address never leave this one.",
        why: "Whatever is on kube-ipvs0 is local. A Service with an externalIP that is a node's address, or the API \
              server's, takes that address away from its owner on every node in ipvs mode. The same Service does no \
              harm in iptables mode.",
        verify: "No address on kube-ipvs0 may be on another link, or among the addresses of a Node.",
        commands: &[
            "ip -br addr",
            "kubectl get nodes -o wide",
            "kubectl get services -A -o wide | grep ADDRESS",
        ],
        fix: "Take the address out of the Service's externalIPs; kube-proxy then takes it from the link.",
        incidents: &[
            "kubernetes/kubernetes#127410",
            "kubernetes/kubernetes#75290",
            "kubernetes/kubernetes#104679",
            "kubernetes/kubernetes#66966",
            "kubernetes-sigs/kubespray#4993: whole nodes lost",
        ],
        needs: &[MODE, &[Item::Addresses, Item::Nodes, Item::Services]],
        caused_by: &[],
        run: conflict,
    },
    Check {
        id: "DV05",
        name: "node-local-dns",
        severity: Severity::Error,
        when: When::Now,
        title: "NodeLocal DNS does not share an address with kube-ipvs0",
        symptom: "DNS works or not depending on which link got the address first, and breaks when kube-proxy restarts.",
        why: "In iptables mode NodeLocal DNS listens on the address of kube-dns itself. In ipvs mode kube-proxy puts that \
              address on kube-ipvs0 and IPVS takes the packets, so NodeLocal DNS must use its link-local address alone.",
        verify: "No address may be on both links.",
        commands: &["ip -br addr show dev nodelocaldns; ip -br addr show dev kube-ipvs0"],
        fix: "Configure NodeLocal DNS for the ipvs mode: -localip 169.254.20.10 alone, and the kubelet's clusterDNS to that.",
        incidents: &["kubernetes/website#18716", "deliveryhero/helm-charts#663"],
        needs: &[MODE, &[Item::Addresses]],
        caused_by: &[],
        run: local_dns,
    },
    Check {
        id: "DV07",
        name: "dummy-no-arp",
        severity: Severity::Warning,
        when: When::Now,
        title: "kube-ipvs0 does not take part in ARP",
        symptom: "Neighbours learn Service addresses from the wrong machine.",
        why: "kube-proxy makes the link with the flag NOARP. Somebody who \"repairs\" its state DOWN by hand, or a network \
              manager that takes it over, may clear the flag. The state DOWN is right and needs no repair.",
        verify: "NOARP must be among the flags.",
        commands: &["ip link show kube-ipvs0"],
        fix: "Set the flag again, and keep NetworkManager and systemd-networkd away from the link.",
        incidents: &[
            "kubernetes/kubernetes#107662",
            "kubernetes-sigs/kubespray#6950",
        ],
        needs: &[MODE, &[Item::Links]],
        caused_by: &["DV01"],
        run: no_arp,
    },
    Check {
        id: "VS09",
        name: "ipvs-timeouts",
        severity: Severity::Warning,
        when: When::Now,
        title: "IPVS has the timeouts that kube-proxy is configured for",
        symptom: "Connections that are idle for a while break with a reset.",
        why: "IPVS forgets an idle TCP connection after 900 seconds unless ipvs.tcpTimeout says otherwise. kube-proxy sets \
              the timeouts at its start; `ipvsadm --set` by somebody else wins after that.",
        verify: "Compare with ipvs.tcpTimeout, tcpFinTimeout and udpTimeout.",
        commands: &["ipvsadm -L --timeout"],
        fix: "Restart kube-proxy on this node, and find out who else sets them.",
        incidents: &["kubelb#539", "terraform-aws-modules/terraform-aws-eks#3367"],
        needs: &[MODE, TABLE],
        caused_by: &["KM01"],
        run: timeouts,
    },
    Check {
        id: "VS11",
        name: "node-port-addresses",
        severity: Severity::Warning,
        when: When::Now,
        title: "NodePorts are not on bridges and tunnels of the node",
        symptom: "NodePorts answer on docker0, tunnels and other inner addresses, some of which every node has alike.",
        why: "Without nodePortAddresses kube-proxy makes a virtual server for each NodePort on each local address, with \
              those of docker0 and of overlay links among them.",
        verify: "Compare the addresses of NodePort virtual servers with the links they are on.",
        commands: &["ipvsadm -Ln", "ip -br addr"],
        fix: "Set nodePortAddresses to [\"primary\"], or to the prefixes that should take NodePort traffic.",
        incidents: &["kubernetes/kubernetes#72236"],
        needs: &[MODE, TABLE, &[Item::Addresses, Item::Services]],
        caused_by: &["KM01"],
        run: inner_addresses,
    },
    Check {
        id: "VS12",
        name: "port-is-node-port",
        severity: Severity::Warning,
        when: When::NowAndFor(&[Mode::Ipvs]),
        title: "No Service port has the number of a NodePort",
        symptom: "One Service sees this node's address as every client's, or is not reached from some pods.",
        why: "In ipvs mode Service addresses are local, so packets for such a Service port match the rule for the NodePort \
              of the same number as well, and are marked for masquerading.",
        verify: "Compare the ports of the Services with the NodePorts.",
        commands: &[
            "kubectl get services -A -o wide",
            "ipset list KUBE-NODE-PORT-TCP",
        ],
        fix: "Give the Service another port, or leave the ipvs mode.",
        incidents: &["kubernetes/kubernetes#132068"],
        needs: &[MODE, &[Item::Services]],
        caused_by: &[],
        run: port_is_node_port,
    },
    Check {
        id: "IS04",
        name: "set-size",
        severity: Severity::Error,
        when: When::Now,
        title: "kube-proxy's IP sets have room for more members",
        symptom: "New Services do nothing on any node, and kube-proxy logs that an ipset is full.",
        why: "A set takes a fixed number of members, 65536 unless it was made otherwise, and kube-proxy has no option for \
              it. KUBE-LOOP-BACK grows with the endpoints of the node, the others with Service ports.",
        verify: "Compare the number of members with maxelem.",
        commands: &["ipset list -t | grep -E '^(Name|Header|Number)'"],
        fix: "Move to the nftables mode, which has no such limit, or spread the Services over clusters.",
        incidents: &["kubernetes/kubernetes#129389: new Services silently did nothing"],
        needs: &[MODE, &[Item::Ipset]],
        caused_by: &[],
        run: set_size,
    },
    Check {
        id: "KM02",
        name: "scheduler-module",
        severity: Severity::Error,
        when: When::NowAndFor(&[Mode::Ipvs]),
        title: "The kernel has the scheduler that ipvs.scheduler names",
        symptom: "kube-proxy exits at its start, or makes no virtual servers.",
        why: "Each scheduler of IPVS is a module of its own, ip_vs_rr and so on, and minimal kernels lack some.",
        verify: "The module must be loaded, built in, or there to be loaded.",
        commands: &[
            "grep '^ip_vs_' /proc/modules",
            "modprobe --dry-run --verbose ip_vs_rr",
        ],
        fix: "Set ipvs.scheduler to rr, or install the package with the kernel's further modules.",
        incidents: &[
            "replicatedhq/kURL#4298: no ip_vs_wrr",
            "kubernetes-sigs/kubespray#9628",
        ],
        needs: &[
            MODE,
            TABLE,
            &[
                Item::Modules,
                Item::ModulesBuiltin,
                Item::ModulesDep,
                Item::Modprobe,
            ],
        ],
        caused_by: &["KM01"],
        run: scheduler,
    },
    Check {
        id: "KM15",
        name: "dummy-module",
        severity: Severity::Error,
        when: When::NowAndFor(&[Mode::Ipvs]),
        title: "The kernel can make the link kube-ipvs0",
        symptom: "kube-proxy logs that it cannot make kube-ipvs0, and no Service answers.",
        why: "kube-ipvs0 is a dummy link, which takes the module dummy. Minimal kernels lack it.",
        verify: "The module must be loaded, built in, or there to be loaded; a link that is there is proof enough.",
        commands: &[
            "modprobe --dry-run --verbose dummy",
            "ip link add kpx-try type dummy && ip link del kpx-try",
        ],
        fix: "Install the package with the kernel's further modules, or choose another mode.",
        incidents: &["seen with kernels built for containers only"],
        needs: &[
            MODE,
            &[
                Item::Links,
                Item::Modules,
                Item::ModulesBuiltin,
                Item::ModulesDep,
                Item::Modprobe,
            ],
        ],
        caused_by: &[],
        run: dummy_module,
    },
];

/// Returns the addresses of kube-ipvs0 and those of the other links.
fn split<'a>(facts: &Facts<'a>) -> Result<(Vec<&'a Address>, Vec<&'a Address>), Gap> {
    let all = &facts.node.addresses()?.all;
    Ok(all.iter().partition(|address| address.link == DUMMY))
}

fn on(address: &Address) -> Proof {
    Proof::Address {
        link: address.link.clone(),
        address: address.addr.addr,
    }
}

/// Whether the link is the local DNS cache's.
pub(super) fn is_dns(link: &str) -> bool {
    link.starts_with("nodelocaldns") || link == "node-local-dns"
}

fn conflict(facts: &Facts<'_>) -> Verdict {
    facts.only_in(&[Mode::Ipvs])?;
    let (ours, others) = split(facts)?;
    let nodes = facts.node.nodes();
    let mut findings = Vec::new();
    for address in ours.iter().filter(|address| address.scope != "link") {
        let ip = address.addr.addr;
        let mut seen = vec![on(address)];
        let link = others
            .iter()
            .find(|o| o.addr.addr == ip && !is_dns(&o.link));
        seen.extend(link.map(|other| on(other)));
        let node = nodes.iter().flat_map(|nodes| nodes.iter()).find(|node| {
            let theirs = &node.status.addresses;
            theirs.iter().any(|a| a.address.parse() == Ok(ip))
        });
        seen.extend(node.map(|node| Proof::Object {
            what: "node",
            name: node.metadata.name.clone(),
        }));
        if seen.len() < 2 {
            continue;
        }
        seen.extend(services_with(facts, ip).map(|name| Proof::Object {
            what: "service",
            name,
        }));
        let message = "the address of a node is on kube-ipvs0: its packets never reach that node";
        findings.push(Finding::new(Severity::Error, ip.to_string(), message).seen(seen));
    }
    match nodes {
        // Other nodes' addresses are not known.
        Err(gap) if findings.is_empty() => Err(gap),
        _ => Ok(findings),
    }
}

fn services_with<'a>(facts: &Facts<'a>, ip: IpAddr) -> impl Iterator<Item = String> + use<'a> {
    let services = facts.node.services().ok();
    let all = services.into_iter().flatten();
    all.filter(move |service| {
        let ingress = service.status.load_balancer.ingress.iter();
        let ingress = ingress.filter_map(|ingress| ingress.ip.as_ref());
        let mut of = service.spec.external_ips.iter().chain(ingress);
        of.any(|text| text.parse() == Ok(ip))
    })
    .map(|service| format!("{}/{}", service.metadata.namespace, service.metadata.name))
}

fn local_dns(facts: &Facts<'_>) -> Verdict {
    facts.only_in(&[Mode::Ipvs])?;
    let (ours, others) = split(facts)?;
    let message = "the address is on kube-ipvs0 and on the link of NodeLocal DNS";
    Ok(others
        .iter()
        .filter(|other| is_dns(&other.link))
        .filter_map(|other| {
            let mine = ours.iter().find(|a| a.addr.addr == other.addr.addr)?;
            let ip = mine.addr.addr.to_string();
            Some(Finding::new(Severity::Error, ip, message).seen([on(mine), on(other)]))
        })
        .collect())
}

fn no_arp(facts: &Facts<'_>) -> Verdict {
    facts.only_in(&[Mode::Ipvs])?;
    let links = facts.node.links()?;
    let Some(link) = links.all.iter().find(|link| link.name == DUMMY) else {
        return Err(Gap::NotApplicable(format!("there is no {DUMMY}")));
    };
    if link.flags.iter().any(|flag| flag == "NOARP") {
        return Ok(Vec::new());
    }
    Ok(vec![
        Finding::new(Severity::Warning, DUMMY, "the link takes part in ARP")
            .seen([Proof::Link {
                link: link.name.clone(),
                state: link.flags.join(","),
            }])
            .mend_by(
                "Set the flag again, and keep network managers away from the link.",
                format!("ip link set dev {DUMMY} arp off"),
            ),
    ])
}

fn timeouts(facts: &Facts<'_>) -> Verdict {
    facts.only_in(&[Mode::Ipvs])?;
    let config = facts.configuration()?.ipvs;
    let wanted = [
        ("tcpTimeout", &config.tcp_timeout),
        ("tcpFinTimeout", &config.tcp_fin_timeout),
        ("udpTimeout", &config.udp_timeout),
    ];
    let wanted = wanted.map(|(key, text)| (key, go_duration(text).map_or(0, |t| t.as_secs())));
    if wanted.iter().all(|(_, seconds)| *seconds == 0) {
        let why = "kube-proxy is not configured to set the timeouts of IPVS";
        return Err(Gap::NotApplicable(why.to_owned()));
    }
    let timeouts = facts
        .node
        .ipvs()?
        .timeouts
        .ok_or(Gap::NotCollected(Item::IpvsTimeout))?;
    let have = [timeouts.tcp, timeouts.tcp_fin, timeouts.udp];
    Ok(wanted
        .into_iter()
        .zip(have)
        .filter(|((_, want), have)| *want != 0 && *want != u64::from(*have))
        .map(|((key, want), have)| {
            let message = format!("IPVS has {have} s, while kube-proxy is configured for {want} s");
            Finding::new(Severity::Warning, key, message).seen([Proof::Setting {
                source: "IPVS".to_owned(),
                key: key.to_owned(),
                value: have.to_string(),
            }])
        })
        .collect())
}

fn inner_addresses(facts: &Facts<'_>) -> Verdict {
    // Links that lead to containers or other nodes, never to clients.
    const INNER: [&str; 9] = [
        "docker", "br-", "cni", "cbr", "flannel", "tunl", "vxlan", "cali", "virbr",
    ];
    facts.only_in(&[Mode::Ipvs])?;
    let numbers: BTreeSet<u16> = facts
        .node
        .services()?
        .iter()
        .flat_map(|service| &service.spec.ports)
        .filter_map(|port| port.node_port)
        .collect();
    let (_, others) = split(facts)?;
    let mut by_link: std::collections::BTreeMap<&str, Vec<Proof>> =
        std::collections::BTreeMap::new();
    for server in &facts.node.ipvs()?.servers {
        let Key::Address { addr, port, .. } = server.key else {
            continue;
        };
        if let Some(at) = others.iter().find(|at| at.addr.addr == addr)
            && numbers.contains(&port)
            && INNER.iter().any(|prefix| at.link.starts_with(prefix))
        {
            by_link.entry(&at.link).or_default().push(Proof::Object {
                what: "virtual-server",
                name: print::name(server.key),
            });
        }
    }
    let message = "NodePorts are served on an inner address of the node";
    Ok(by_link
        .into_iter()
        .map(|(link, seen)| Finding::new(Severity::Warning, link, message).seen(seen))
        .collect())
}

fn port_is_node_port(facts: &Facts<'_>) -> Verdict {
    facts.only_in(&[Mode::Ipvs])?;
    let services = facts.node.services()?;
    let ports = || {
        services.iter().flat_map(|service| {
            let name = format!("{}/{}", service.metadata.namespace, service.metadata.name);
            service
                .spec
                .ports
                .iter()
                .map(move |port| (name.clone(), port))
        })
    };
    let mut findings = Vec::new();
    for (name, port) in ports() {
        let same = ports().find(|(_, other)| {
            other.node_port == Some(port.port) && other.protocol == port.protocol
        });
        if let Some((of, _)) = same {
            let seen = Proof::Object {
                what: "service",
                name: format!("{of} has the NodePort {}", port.port),
            };
            let message =
                "a port of the Service has the number of a NodePort: its clients are masqueraded";
            findings.push(Finding::new(Severity::Warning, name, message).seen([seen]));
        }
    }
    Ok(findings)
}

fn set_size(facts: &Facts<'_>) -> Verdict {
    facts.only_in(&[Mode::Ipvs])?;
    let mut findings = Vec::new();
    for set in facts
        .node
        .ipset()?
        .sets
        .iter()
        .filter(|set| set_purpose(&set.name).is_some())
    {
        let most: Option<usize> = set.option("maxelem").and_then(|text| text.parse().ok());
        let (Some(most), count) = (most, set.members.len()) else {
            continue;
        };
        if count * 10 <= most * 8 {
            continue;
        }
        let (severity, message) = if count >= most {
            (
                Severity::Error,
                "the IP set is full: what is new does nothing",
            )
        } else {
            (
                Severity::Warning,
                "the IP set is nearly full: soon what is new does nothing",
            )
        };
        let seen = Proof::Object {
            what: "ipset",
            name: format!("{}: {count} members of at most {most}", set.name),
        };
        findings.push(Finding::new(severity, set.name.to_string(), message).seen([seen]));
    }
    Ok(findings)
}

fn scheduler(facts: &Facts<'_>) -> Verdict {
    facts.only_in(&[Mode::Ipvs])?;
    let config = facts.configuration()?;
    let name = config.scheduler();
    // A virtual server that uses it is proof enough.
    let table = facts.node.ipvs();
    if table.is_ok_and(|table| table.servers.iter().any(|server| server.scheduler == name)) {
        return Ok(Vec::new());
    }
    let module = format!("ip_vs_{name}");
    module_there(
        facts,
        &module,
        "the scheduler that kube-proxy is configured for is not in this kernel",
    )
}

fn dummy_module(facts: &Facts<'_>) -> Verdict {
    facts.only_in(&[Mode::Ipvs])?;
    let links = facts.node.links();
    if links.is_ok_and(|links| links.all.iter().any(|link| link.name == DUMMY)) {
        return Ok(Vec::new());
    }
    module_there(
        facts,
        "dummy",
        "the module for kube-ipvs0 is not in this kernel",
    )
}

fn module_there(facts: &Facts<'_>, module: &str, message: &str) -> Verdict {
    let modules = facts.node.modules()?;
    let standing = match modules.standing(module) {
        Standing::Loaded | Standing::BuiltIn | Standing::Loadable => return Ok(Vec::new()),
        Standing::Blocked => "blocked by modprobe.d",
        Standing::Missing => "missing",
        Standing::Unknown if modules.builtin.is_none() => {
            return Err(Gap::NotCollected(Item::ModulesBuiltin));
        }
        Standing::Unknown if modules.available.is_none() => {
            return Err(Gap::NotCollected(Item::ModulesDep));
        }
        Standing::Unknown => return Err(Gap::NotCollected(Item::Modules)),
    };
    Ok(vec![Finding::new(Severity::Error, module, message).seen([
        Proof::Module {
            module: module.to_owned(),
            standing: standing.to_owned(),
        },
    ])])
}
