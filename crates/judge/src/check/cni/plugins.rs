//! Network plugins: eBPF service proxies, `hostPorts`, bridges, VXLAN and `NodeLocal` DNS.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};

use crate::check::conntrack::connection;
use crate::check::core::{
    Collector, IDLE, MODE, PATH, PODS, Paths, REPLACEMENT, RULES, SOCKETS, address_proof,
    all_rules, bridges, ended, kernel_proof, known_rules, link_proof, own_address, proto_of,
    rule_proof, runs_here, there, tool,
};
use crate::check::{
    Check, Example, Facts, Finding, Fix, Proof, Prose, Severity, Subject, Text, Verdict, When,
    hairpin_fix,
};
use crate::trace::{Effect, Entry, Outcome, Verdict as End, end_tracked_to};
use crate::verdict::{self, WITH_CHECKSUMS};
use kpx_node::backend::Mode;
use kpx_node::backend::iptables::model::{Ruleset, Target};
use kpx_node::cluster::{Pod, Service};
use kpx_node::evidence::{Gap, Item};
use kpx_node::net::{Family, Proto};
use kpx_node::node::IptablesBackend;
use kpx_node::node::conntrack;
use kpx_node::node::links::{Address, Link};
use kpx_node::owner::chain_owner::is_node_local_dns;

/// The port of DNS.
const DNS_PORT: u16 = 53;

pub(super) const CHECKS: &[Check] = &[
    Check {
        id: "CN04",
        name: "cilium-leftovers",
        severity: Severity::Warning,
        when: When::Now,
        title: "No rules of kube-proxy are left over next to an eBPF service proxy",
        symptom: "Some connections to Services go to pods that no longer exist, on nodes that are older than the \
              replacement of kube-proxy. After the ipvs mode, even SSH to the node can fail.",
        why: "Cilium and Calico's eBPF data plane can replace kube-proxy. kube-proxy's rules stay on each node until it \
              reboots, and apply to traffic that the replacement does not handle. Leftovers of the ipvs mode also keep \
              Service addresses on kube-ipvs0, and virtual servers at NodePorts of the node's own addresses.",
        verify: "If the replacement runs and kube-proxy does not, there may be no KUBE-SVC chain, no virtual server and no \
              kube-ipvs0.",
        commands: &[
            Example::on_node("iptables-save | grep -c KUBE-SVC"),
            Example::on_node("cilium-dbg status | grep KubeProxyReplacement"),
            Example::on_node("ipvsadm -Ln; ip addr show dev kube-ipvs0"),
        ],
        fix: Text::with(
            "Drain and reboot the node. Or run {}: it shows the plan that removes what kube-proxy wrote and nothing of \
              other software, and asks first. Do not flush tables by hand.",
            &[Example::kpx(&["reconcile", "--cleanup", "MODE", "--apply"]).with(&["MODE"])],
        ),
        incidents: &[
            "kube-hetzner/terraform-hcloud-kube-hetzner#1210",
            "projectcalico/calico#12476: SSH was cut",
            "kubernetes-sigs/kubespray#12116",
            "cilium/cilium#34524",
        ],
        needs: &[
            REPLACEMENT,
            &[
                Item::Addresses,
                Item::Ipset,
                Item::Ipvs,
                Item::IpvsSave,
                Item::IpvsTimeout,
                Item::Modules,
                Item::Services,
            ],
        ],
        caused_by: &[],
        run: cilium_leftovers,
    },
    Check {
        id: "CN06",
        name: "host-ports",
        severity: Severity::Error,
        when: When::Now,
        title: "The hostPorts of running pods lead to them",
        symptom: "A hostPort, for example of an ingress controller, no longer answers, although the pod is healthy.",
        why: "A plugin writes the rules for a pod's hostPorts only when the pod starts. If table nat is flushed, they \
              are lost; kube-proxy restores only its own rules.",
        verify: "For each hostPort there must be a rule that translates to the pod's address.",
        commands: &[Example::on_node(
            "iptables-save -t nat | grep -E 'CNI-(DN|HOSTPORT)'",
        )],
        fix: Text::plain(
            "Run `kubectl -n NAMESPACE delete pod POD`, so that a new one starts; and find out what flushed the \
             table.",
        ),
        incidents: &[
            "rancher/rke2#10469",
            "containernetworking/plugins#512",
            "projectcalico/calico#3412: the rule of a removed pod comes first",
        ],
        needs: &[PATH, &[Item::Conntrack]],
        caused_by: &[],
        run: host_ports,
    },
    Check {
        id: "CN07",
        name: "hairpin",
        severity: Severity::Warning,
        when: When::Now,
        title: "Pods on a bridge can reach themselves through a Service",
        symptom: "A pod cannot reach its own Service, in one of n attempts with n endpoints.",
        why: "The translated packet must leave the bridge by the port it came from, which a bridge allows only with \
              hairpin_mode on that port, or while it is promiscuous.",
        verify: "The flag hairpin must be on for the ports of the pods' bridge.",
        commands: &[Example::on_node(
            "bridge -d link show | grep -E 'master|hairpin'",
        )],
        fix: Text::plain(
            "Set hairpinMode to true in the configuration of the bridge plugin; for running pods run `bridge link \
             set dev PORT hairpin on`.",
        ),
        incidents: &[
            "kubernetes/kubernetes#20475",
            "cloudnativelabs/kube-router#637",
        ],
        needs: &[PODS],
        caused_by: &[],
        run: hairpin,
    },
    Check {
        id: "CN08",
        name: "local-dns-address",
        severity: Severity::Error,
        when: When::For(&[Mode::Ipvs]),
        title: "NodeLocal DNS does not listen on a Service's address",
        symptom: "After the switch pods cannot resolve names, or the DNS cache cannot reach its upstream.",
        why: "In iptables mode NodeLocal DNS may have the address of Service kube-dns on its own link. In ipvs mode \
              the same address is also on kube-ipvs0, and the packets go to either: the cache that queries kube-dns \
              queries itself.",
        verify: "The link nodelocaldns must have only the link-local address.",
        commands: &[
            Example::on_node("ip addr show dev nodelocaldns"),
            Example::anywhere("kubectl -n kube-system get service kube-dns"),
        ],
        fix: Text::plain(
            "Install the ipvs variant of NodeLocal DNS, which listens only on 169.254.20.10, and set this address \
             as the kubelet's clusterDNS.",
        ),
        incidents: &["kubernetes/website#18716", "rancher/rke#2093"],
        needs: &[&[Item::Addresses, Item::Services]],
        caused_by: &[],
        run: local_dns,
    },
    Check {
        id: "CN10",
        name: "local-dns-tracked",
        severity: Severity::Error,
        when: When::NowAndFor(&[Mode::Nftables]),
        title: "NodeLocal DNS gets the queries to its addresses",
        symptom: "The DNS cache of the node gets no queries, and each of them goes to a pod of the cluster's DNS; or pods cannot \
                  resolve names.",
        why: "NodeLocal DNS may have the address of Service kube-dns on its own link. It gets the queries to this address \
              only if they are not tracked: kube-proxy translates every tracked packet to a Service in nftables mode, as \
              in iptables mode. NodeLocal DNS writes the rules for that to table raw of iptables. It puts \
              its addresses on the link nodelocaldns; no other machine has the one of its own.",
        verify: "Table raw must have a rule with target CT --notrack for the address, in PREROUTING and OUTPUT.",
        commands: &[
            Example::on_node("iptables-save -t raw | grep -i notrack"),
            Example::on_node("ip addr show dev nodelocaldns"),
        ],
        fix: Text::plain(
            "Set -setupiptables=true on NodeLocal DNS, with an image whose iptables uses the same backend as the \
             node, and restart it. Or let pods use 169.254.20.10 as the kubelet's clusterDNS.",
        ),
        incidents: &["kubernetes/dns#682"],
        needs: &[MODE, PATH, SOCKETS, &[Item::Pods]],
        caused_by: &[],
        run: local_dns_tracked,
    },
    Check {
        id: "CN11",
        name: "vxlan-checksum",
        severity: Severity::Warning,
        when: When::Now,
        title: "The kernel does not corrupt checksums of masqueraded VXLAN traffic",
        symptom: "Connections from the node, or through a NodePort, to pods of other nodes take 1, 3 or 63 seconds, and datagrams are \
                  lost.",
        why: "Kernels before 5.7 miscalculate the UDP checksum of VXLAN packets whose inner packet is masqueraded, if the \
              link offloads checksums. The receiver drops them, until a retry happens to get through. Masquerading with \
              --random-fully makes it frequent.",
        verify: "The offload tx-checksum-ip-generic of the VXLAN link must be off; bundles do not have it.",
        commands: &[
            Example::on_node("ethtool -k LINK | grep tx-checksum-ip-generic").with(&["LINK"]),
            Example::on_node("uname -r"),
        ],
        fix: Text::plain(
            "Run `ethtool -K LINK tx-checksum-ip-generic off`, and make it persistent with a udev rule; or upgrade \
             the kernel to 5.7 or newer.",
        ),
        incidents: &[
            "kubernetes/kubernetes#88986: 63 seconds",
            "projectcalico/calico#3145",
            "k3s-io/k3s#2013: the kernel's fix is in 5.7",
        ],
        needs: &[RULES, IDLE, &[Item::KernelRelease, Item::Links]],
        caused_by: &[],
        run: vxlan_checksum,
    },
];

fn vxlan_checksum(facts: &Facts<'_>) -> Verdict {
    if facts.node.kernel()? >= WITH_CHECKSUMS {
        return Ok(Vec::new());
    }
    let links = facts.node.links()?.all.iter();
    let vxlan: Vec<_> = links.filter(|link| link.kind == "vxlan").collect();
    if vxlan.is_empty() {
        return Err(Gap::NotApplicable("no link is a VXLAN tunnel".to_owned()));
    }
    let mut findings = Collector::default();
    let mut random = None;
    for (family, _, rules) in all_rules(facts, &mut findings) {
        let Some(table) = rules.table("nat") else {
            continue;
        };
        for chain in &table.chains {
            let mut found = chain.rules.iter();
            let found = found.find(|rule| {
                matches!(
                    rule.target,
                    Some(Target::Masquerade {
                        random_fully: true,
                        ..
                    })
                )
            });
            random = random.or(found.map(|rule| rule_proof(family, table, chain, rule)));
        }
    }
    let Some(random) = random else {
        return findings.verdict();
    };
    let message = "this kernel may corrupt masqueraded packets in the VXLAN tunnel, which delays connections and loses datagrams";
    let finding = |link: &Link| {
        let device = &link.name;
        Ok(
            Finding::new(Severity::Warning, Subject::link(device), message)
                .evidence([
                    link_proof(link, "vxlan"),
                    kernel_proof(facts)?,
                    random.clone(),
                ])
                .fix(Fix::on_node(
                    "Switch the offload off; make it persistent with a udev rule.",
                    format!("ethtool -K {device} tx-checksum-ip-generic off"),
                )),
        )
    };
    vxlan.into_iter().map(finding).collect()
}

/// Returns a finding for each address of `NodeLocal` DNS that no link of the node has, or at which nothing listens as its pod does not
/// run.
fn lost_dns(facts: &Facts<'_>) -> Verdict {
    let lost = verdict::lost_dns(facts.node)?;
    let sockets = facts.node.sockets().ok();
    let is_silent = |address: IpAddr| {
        sockets.is_some_and(|all| all.taking(Proto::Udp, address, DNS_PORT).next().is_none())
    };
    let mut all = verdict::local_dns(facts.node)?;
    all.retain(|(pod, address)| {
        lost.iter().any(|(_, other)| other == address)
            || pod.unready().is_some() && is_silent(*address)
    });
    let finding = |(pod, address): (&Pod, IpAddr)| {
        let meta = &pod.metadata;
        let lack = if lost.iter().any(|(_, other)| *other == address) {
            "no link of the node has this address of NodeLocal DNS"
        } else {
            "nothing listens at this address of NodeLocal DNS"
        };
        let why = pod.unready();
        let message = format!(
            "{lack}, so queries to it get no answer: pod {}{}",
            meta.name,
            why.map_or_else(String::new, |why| format!(": {why}"))
        );
        let fix = Fix::kubectl(
            "Find out in the log of NodeLocal DNS why it does not take queries at the address, then restart it. Until then, pods need the \
             cluster DNS as their resolver.",
            format!("kubectl -n {} logs {}", meta.namespace, meta.name),
        );
        Finding::new(Severity::Error, address, message).fix(fix)
    };
    Ok(all.into_iter().map(finding).collect())
}

fn local_dns_tracked(facts: &Facts<'_>) -> Verdict {
    let lost = lost_dns(facts);
    if let Ok(all) = &lost
        && !all.is_empty()
        && facts.target().is_none()
    {
        return lost;
    }
    facts.only_in(&[Mode::Nftables])?;
    let mut links = facts.node.addresses()?.all.iter();
    if !links.any(|at| is_node_local_dns(&at.link)) {
        let why = "NodeLocal DNS does not run on this node";
        return Err(Gap::NotApplicable(why.to_owned()));
    }
    let message = "NodeLocal DNS has the Service's address, but kube-proxy translates the queries before they reach it";
    let mut findings = Collector::default();
    findings.read(lost);
    for (service, at) in taken_by_dns(facts)? {
        let ip = at.addr.addr;
        let family = Family::of(ip);
        let rules = facts.node.saved(IptablesBackend::InUse, family);
        if findings.read(rules).is_none() {
            continue;
        }
        let paths = Paths::of(facts, family);
        let queries = service.spec.ports.iter().flat_map(|port| {
            let (to, proto) = (SocketAddr::new(ip, port.port), proto_of(&port.protocol));
            let entries = [Entry::Pod, Entry::Host].into_iter();
            entries
                .filter_map(|entry| paths.packet(entry, to, proto))
                .collect::<Vec<_>>()
        });
        let mut tracked = false;
        for query in queries {
            tracked |= !paths.astray(&mut findings, &query, is_untracked).is_empty();
        }
        if tracked {
            findings.push(
                Finding::new(Severity::Warning, service, message).evidence([address_proof(at)]),
            );
        }
    }
    findings.verdict()
}

/// Returns whether nothing can translate the packet.
fn is_untracked(outcome: &Outcome) -> bool {
    let mut hops = outcome.hops.iter();
    hops.any(|hop| hop.effect == Effect::Untrack)
}

/// Returns the Services of which `NodeLocal` DNS has a cluster IP, with that address on its link.
pub(in crate::check) fn taken_by_dns<'f>(
    facts: &'f Facts<'_>,
) -> Result<Vec<(&'f Service, &'f Address)>, Gap> {
    let links = facts.node.addresses()?.all.iter();
    let dns: Vec<_> = links.filter(|at| is_node_local_dns(&at.link)).collect();
    let mut taken = Vec::new();
    for service in facts.node.services()? {
        let ips = service.spec.cluster_ips.iter();
        for ip in ips.filter_map(|text| text.parse::<IpAddr>().ok()) {
            let at = dns.iter().find(|at| at.addr.addr == ip);
            taken.extend(at.map(|at| (service, *at)));
        }
    }
    Ok(taken)
}

fn cilium_leftovers(facts: &Facts<'_>) -> Verdict {
    let serving = facts
        .node
        .ebpf()
        .iter()
        .find(|ebpf| ebpf.serves == Ok(true));
    let Some(serving) = serving else {
        let mut all = facts.node.ebpf().iter();
        let why = "no eBPF service proxy serves Services of this node";
        let gap = all.find_map(|ebpf| ebpf.serves.clone().err());
        return Err(gap.unwrap_or_else(|| Gap::NotApplicable(why.to_owned())));
    };
    if runs_here(facts)? {
        return Ok(Vec::new());
    }
    let name = serving.proxy.name();
    if !serving.agent.clone()? {
        let why = format!("the agent of {name} does not run: see CN13");
        return Err(Gap::NotApplicable(why));
    }
    let mut findings = Collector::default();
    for mode in Mode::EVER {
        let Some(left) = findings.read(facts.leftovers(mode)) else {
            continue;
        };
        if left.is_empty() {
            continue;
        }
        let addresses = left
            .iter()
            .filter(|proof| matches!(proof, Proof::Address { .. }));
        let addresses = match addresses.count() {
            0 => String::new(),
            1 => ": 1 address of a Service is one of the node's own".to_owned(),
            count => format!(": {count} addresses of Services are the node's own"),
        };
        let severity = if addresses.is_empty() {
            Severity::Warning
        } else {
            Severity::Error
        };
        let message = format!(
            "{name} serves Services here and kube-proxy does not run, but objects of mode {mode} are left over{addresses}"
        );
        let fix = Prose::from("Drain and reboot the node. Or run ")
            .kpx(["reconcile", "--cleanup", mode.name(), "--apply"])
            .and(
                ": it shows the plan that removes what kube-proxy wrote and nothing of other software, and asks first. Do not \
                 flush tables by hand.",
            );
        findings.push(
            Finding::new(severity, mode, message)
                .called(format!("{mode} mode"))
                .evidence(left)
                .fix(fix),
        );
    }
    findings.verdict()
}

/// A hostPort of a running pod.
struct HostPort<'f> {
    pod: &'f Pod,
    /// The address of the pod.
    ip: IpAddr,
    number: u16,
    proto: Proto,
    /// The address of the node that has the port; `None` for all of them.
    at: Option<IpAddr>,
}

/// Returns the hostPorts of pods that run on the node called `here`.
fn host_ports_of<'f>(pods: &'f [Pod], here: &str) -> Vec<HostPort<'f>> {
    let pods = pods.iter().filter(|pod| {
        pod.spec.node_name.as_deref() == Some(here)
            && !pod.spec.host_network
            && pod.status.phase == "Running"
    });
    let mut found = Vec::new();
    for pod in pods {
        let ip = pod.status.pod_ip.as_deref();
        let Some(ip) = ip.and_then(|ip| ip.parse::<IpAddr>().ok()) else {
            continue;
        };
        let containers = pod.spec.containers.iter();
        for port in containers.flat_map(|container| &container.ports) {
            let text = |key: &str| port.get(key).and_then(serde_json::Value::as_str);
            let number = port.get("hostPort").and_then(serde_json::Value::as_u64);
            let number = number.and_then(|number| u16::try_from(number).ok());
            let Some(number) = number.filter(|number| *number != 0) else {
                continue;
            };
            let at = text("hostIP").and_then(|ip| ip.parse().ok());
            found.push(HostPort {
                pod,
                ip,
                number,
                proto: proto_of(text("protocol").unwrap_or("TCP")),
                at: at.filter(|at: &IpAddr| !at.is_unspecified()),
            });
        }
    }
    found
}

/// Returns the fix of a hostPort of `pod` without a rule: no plugin writes such rules, or they are lost.
fn unserved(facts: &Facts<'_>, family: Family, pod: &Pod) -> Fix {
    let rules = facts.node.iptables(IptablesBackend::InUse, family);
    let nat = rules.ok().and_then(|rules| rules.table("nat"));
    let mut chains = nat.into_iter().flat_map(|table| &table.chains);
    let is_of_plugin = |name: &str| name.starts_with("CNI-") || name == "KUBE-HOSTPORTS";
    if nat.is_some() && !chains.any(|chain| is_of_plugin(&chain.name)) {
        return Fix::on_node(
            "No plugin serves hostPorts on this node: add portmap with the capability portMappings to the network plugin's configuration, \
             or turn hostPorts on in the network plugin, then start the pod again.",
            "grep -rn portmap /etc/cni/net.d",
        );
    }
    let meta = &pod.metadata;
    Fix::kubectl(
        "Delete the pod, so that a new one starts, and find out what flushed the table.",
        format!("kubectl -n {} delete pod {}", meta.namespace, meta.name),
    )
}

/// Returns the finding of tracked UDP flows to the hostPort `port` of a pod that began before its rule: they pass it by as long as
/// their clients go on sending.
fn older_flows(facts: &Facts<'_>, port: &HostPort<'_>) -> Option<Finding> {
    let own = &facts.node.addresses().ok()?.all;
    let is_own =
        |at: SocketAddr| at.port() == port.number && own.iter().any(|own| own.addr.addr == at.ip());
    let entries = facts.node.conntrack().ok()?.entries.iter();
    let older: Vec<&conntrack::Entry> = entries
        .filter(|entry| {
            let to = entry.original.destination;
            entry.proto == Proto::Udp
                && port.proto == Proto::Udp
                && is_own(to)
                && entry.is_untranslated_to(to)
        })
        .collect();
    if older.is_empty() {
        return None;
    }
    let to: BTreeSet<SocketAddr> = older
        .iter()
        .map(|entry| entry.original.destination)
        .collect();
    let ends = to.iter().map(|to| end_tracked_to(Proto::Udp, *to, &[*to]));
    let ends: Vec<String> = ends.collect();
    let meta = &port.pod.metadata;
    let about = Subject::object("Pod", &meta.namespace, &meta.name);
    let subject = format!("{about} {}", port.number);
    let message = "UDP flows to the hostPort are older than its rule, and pass it by: they do not reach the pod";
    let seen = older.iter().map(|entry| connection(entry));
    Some(
        Finding::new(Severity::Error, about, message)
            .called(subject)
            .evidence(seen)
            .fix(Fix::on_node(
                "End the flows: the next packet of each begins a new one, which the rule translates.",
                ends.join("; "),
            )),
    )
}

fn host_ports(facts: &Facts<'_>) -> Verdict {
    let here = facts.called()?;
    let pods = facts.node.pods()?;
    let wanted = host_ports_of(pods, &here);
    let left = leftover_host_ports(facts, pods, &here);
    if wanted.is_empty() && left.is_empty() {
        return Err(Gap::NotApplicable(
            "no pod on this node has a hostPort".to_owned(),
        ));
    }
    let links = facts.node.links()?.all.iter();
    let mut names = links.map(|link| link.name.as_str());
    if names.any(|name| name.starts_with("cilium_")) {
        let why = "Cilium serves hostPorts with eBPF";
        return Err(Gap::NotApplicable(why.to_owned()));
    }
    let mut findings = Collector::default();
    let mut shadowing: Vec<String> = Vec::new();
    for family in Family::BOTH {
        let mut wanted = wanted
            .iter()
            .filter(|host_port| Family::of(host_port.ip) == family)
            .peekable();
        if wanted.peek().is_none() {
            continue;
        }
        let paths = Paths::of(facts, family);
        // Rules that were not read may lead there.
        if !paths.note_unread(facts, &mut findings) {
            continue;
        }
        for port in wanted {
            let own = port.at.map_or_else(|| own_address(facts, family), Ok);
            let Some(own) = findings.read(own) else {
                continue;
            };
            let to = SocketAddr::new(own, port.number);
            let packet = paths.packet(Entry::Outside, to, port.proto);
            let astray = packet.map(|packet| {
                paths.astray(&mut findings, &packet, |end| {
                    leads_to(end, port.ip)
                        || is_lost(end)
                            && led_elsewhere(end, port.ip).is_none()
                            && is_translated_to(facts, port.ip)
                })
            });
            let Some(end) = astray.and_then(|ends| ends.into_iter().next()) else {
                findings.extend(older_flows(facts, port));
                continue;
            };
            // A Service with this address and port takes the packets first: NP03 names a NodePort, and k3s makes pods with hostPorts
            // for load balancers whose addresses are those of its nodes.
            if facts.owners().served_at(to, port.proto).is_some() {
                continue;
            }
            let meta = &port.pod.metadata;
            let about = Subject::object("Pod", &meta.namespace, &meta.name);
            let subject = format!("{about} {}", port.number);
            let seen = Proof::Note(format!("a packet from outside to {to}: {}", ended(&end)));
            let Some((chain, other)) = led_elsewhere(&end, port.ip) else {
                let message = "no rule leads from the hostPort to the pod";
                findings.push(
                    Finding::new(Severity::Error, about, message)
                        .called(subject)
                        .evidence([seen])
                        .fix(unserved(facts, family, port.pod)),
                );
                continue;
            };
            shadowing.push(chain.clone());
            let holder = match pods
                .iter()
                .find(|pod| pod.addresses().any(|ip| ip == other))
            {
                Some(of) => format!("pod {}/{}", of.metadata.namespace, of.metadata.name),
                None => "which no pod on this node has".to_owned(),
            };
            let message = format!(
                "chain {chain} leads the hostPort to {other}, {holder}, before the rule of the pod, {}, applies",
                port.ip
            );
            findings.push(
                Finding::new(Severity::Error, about, message)
                    .called(subject)
                    .evidence([seen])
                    .fix(removal_fix(facts, family, &chain)),
            );
        }
    }
    for of in left
        .iter()
        .filter(|leftover| !shadowing.contains(&leftover.chain))
    {
        let message = format!(
            "a rule of the portmap plugin{} leads packets to {}, which no pod on this node has",
            there(of.store),
            of.to
        );
        findings.push(
            Finding::new(
                Severity::Warning,
                Subject::chain(of.family, "nat", &of.chain),
                message,
            )
            .fix(removal_fix(facts, of.family, &of.chain)),
        );
    }
    findings.verdict()
}

/// The chain from which the portmap plugin leads to the chains of pods.
const PORTMAP: &str = "CNI-HOSTPORT-DNAT";

/// A chain of a hostPort whose pod is gone.
struct Leftover {
    family: Family,
    store: IptablesBackend,
    chain: String,
    to: IpAddr,
}

/// Returns the chains of the portmap plugin that translate to an address of no pod; none if pods may be missing, or have no
/// address yet.
fn leftover_host_ports(facts: &Facts<'_>, pods: &[Pod], here: &str) -> Vec<Leftover> {
    let pods = pods
        .iter()
        .filter(|pod| pod.spec.node_name.as_deref() == Some(here) && !pod.spec.host_network);
    let known: Vec<Vec<IpAddr>> = pods.map(|pod| pod.addresses().collect()).collect();
    if known.is_empty() || known.iter().any(Vec::is_empty) {
        return Vec::new();
    }
    let mut found = Vec::new();
    for (family, store, rules) in all_rules(facts, &mut Collector::default()) {
        let chains = rules.table("nat").into_iter().flat_map(|nat| &nat.chains);
        for chain in chains.filter(|chain| chain.name.starts_with("CNI-DN-")) {
            if jump_to(rules, &chain.name).is_none() {
                continue;
            }
            let to = chain.rules.iter().find_map(|rule| match &rule.target {
                Some(Target::Dnat(to)) => to.addrs.map(|(first, _)| first),
                _ => None,
            });
            if let Some(to) = to.filter(|to| !known.iter().flatten().any(|ip| ip == to)) {
                found.push(Leftover {
                    family,
                    store,
                    chain: chain.name.to_string(),
                    to,
                });
            }
        }
    }
    found
}

/// Returns the portmap plugin's rule that leads to `chain`, as `iptables -D` takes it.
fn jump_to(rules: &Ruleset<'_>, chain: &str) -> Option<String> {
    let mut rules = rules.chain("nat", PORTMAP)?.rules.iter();
    let leads =
        |rule: &Option<Target<'_>>| matches!(rule, Some(Target::Jump(to)) if **to == *chain);
    rules
        .find(|rule| leads(&rule.target))
        .map(|rule| rule.to_string().trim().to_owned())
}

/// Returns the fix of a chain that leads to a pod that is gone.
fn removal_fix(facts: &Facts<'_>, family: Family, chain: &str) -> Fix {
    let text =
        "Remove the rule and its chain: the pod for which the portmap plugin wrote them is gone.";
    let all = all_rules(facts, &mut Collector::default());
    let of_family = all.into_iter().filter(|(of, ..)| *of == family);
    let mut jumps = of_family.filter_map(|(_, store, rules)| Some((store, jump_to(rules, chain)?)));
    let command = if let Some((store, rule)) = jumps.next() {
        let tool = tool(store, family);
        format!(
            "{tool} -t nat -D {PORTMAP} {rule} && {tool} -t nat -F {chain} && {tool} -t nat -X {chain}"
        )
    } else {
        let tool = tool(IptablesBackend::InUse, family);
        format!("{tool} -t nat -S {chain}")
    };
    Fix::on_node(text, command)
}

/// Returns the chain of the portmap plugin that translates a packet to another address than `ip`, and the address.
fn led_elsewhere(end: &Outcome, ip: IpAddr) -> Option<(String, IpAddr)> {
    let mut hops = end.hops.iter();
    hops.find_map(|hop| match hop.effect {
        Effect::Dnat { address, .. } if address != ip && hop.chain.starts_with("CNI-") => {
            Some((hop.chain.clone(), address))
        }
        _ => None,
    })
}

/// Returns whether a packet is translated to `ip`.
fn leads_to(end: &Outcome, ip: IpAddr) -> bool {
    let mut hops = end.hops.iter();
    end.destination.0 == ip
        || hops.any(|hop| matches!(hop.effect, Effect::Dnat { address, .. } if address == ip))
}

/// Returns whether a packet is dropped or rejected, as a firewall may do with some clients outside.
const fn is_lost(end: &Outcome) -> bool {
    matches!(end.verdict, End::Drop | End::Reject)
}

/// Returns whether a rule of a plugin translates to `ip`.
fn is_translated_to(facts: &Facts<'_>, ip: IpAddr) -> bool {
    let nat = known_rules(facts, Family::of(ip)).filter_map(|rules| rules.table("nat"));
    let chains = nat.flat_map(|table| &table.chains);
    let ours = chains.filter(|chain| !chain.name.starts_with("KUBE-"));
    let mut rules = ours.flat_map(|chain| &chain.rules);
    rules.any(|rule| match &rule.target {
        Some(Target::Dnat(to)) => to
            .addrs
            .is_some_and(|(first, last)| first <= ip && ip <= last),
        _ => false,
    })
}

fn hairpin(facts: &Facts<'_>) -> Verdict {
    let links = &facts.node.links()?.all;
    let mut findings = Collector::default();
    for bridge in bridges(facts)? {
        if bridge.flags.iter().any(|flag| flag == "PROMISC") {
            continue;
        }
        let ports: Vec<_> = links
            .iter()
            .filter(|port| port.master.as_ref() == Some(&bridge.name) && port.kind == "veth")
            .collect();
        if ports.iter().any(|port| port.hairpin.is_none()) {
            let why = format!("the hairpin mode of ports of {} is unknown", bridge.name);
            findings.note(Gap::Absent(Item::Links, why));
        }
        let off = ports.iter().filter(|port| port.hairpin == Some(false));
        let seen: Vec<_> = off.map(|port| link_proof(port, "hairpin off")).collect();
        if !seen.is_empty() {
            let message = "hairpin mode is off on these bridge ports: a pod cannot reach itself through its Service";
            findings.push(
                Finding::new(Severity::Warning, Subject::link(&bridge.name), message)
                    .evidence(seen)
                    .fix(hairpin_fix(&bridge.name)),
            );
        }
    }
    findings.verdict()
}

fn local_dns(facts: &Facts<'_>) -> Verdict {
    let message =
        "NodeLocal DNS has the Service's address, which in ipvs mode is also on kube-ipvs0";
    let finding = |(service, at): (&Service, &Address)| {
        Finding::new(Severity::Error, service, message).evidence([address_proof(at)])
    };
    Ok(taken_by_dns(facts)?.into_iter().map(finding).collect())
}
