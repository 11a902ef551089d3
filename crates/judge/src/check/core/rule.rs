//! Texts about one rule: the evidence, and how to let packets pass it.

use std::collections::BTreeSet;

use super::{Fix, Line, Proof, tool};
use crate::trace::{Accepted, PODS, Rule};
use crate::verdict::{By, Limit, Pass, PluginAgent};
use kpx_node::net::{Family, Proto};
use kpx_node::node::IptablesBackend;
use kpx_node::node::agents::Agent;
use kpx_node::owner::chain_owner::{ADMINISTRATOR, CSF, Maker, NIXOS};

/// The fix of a rule without a known owner.
const DELETE: &str =
    "If the rule is not needed, delete it here and in the configuration that creates it.";

/// The fix of a rule without a known owner that stops all packets, or all packets of a link, an address or a port, unless a rule before
/// it accepts them.
const KEEP: &str = "The rule closes the node, or what it names, to all packets that no rule before it accepts: keep it. Accept the \
                    packets of pods and Services before it, also in the configuration that creates it.";

/// The fix of a policy without a known owner.
const KEEP_POLICY: &str = "The policy closes the chain to all packets that no rule accepts: keep it. Accept the packets of pods and \
                           Services, also in the configuration that sets it.";

/// How the owner of a rule is configured.
struct Owner {
    /// Its name in [`SOFTWARE`](kpx_node::owner::chain_owner::SOFTWARE), or that of the kubelet.
    name: &'static str,
    /// The permanent change that lets the packets of pods pass a firewall: a text and a command with [`PODS`].
    pass: Option<(&'static str, &'static str)>,
    /// The thing to change, if it is not the rule.
    change: Option<&'static str>,
    /// A command that shows its configuration.
    shown: Place,
}

/// A command that shows how software is configured.
#[derive(Clone, Copy)]
enum Place {
    /// On the node.
    Node(&'static str),
    /// In the cluster.
    Cluster(&'static str),
}

const fn node(name: &'static str, shown: &'static str) -> Owner {
    Owner {
        name,
        pass: None,
        change: None,
        shown: Place::Node(shown),
    }
}

const fn cluster(name: &'static str, shown: &'static str) -> Owner {
    Owner {
        name,
        pass: None,
        change: None,
        shown: Place::Cluster(shown),
    }
}

/// The fix for a ban.
const BANNED: &str = "The address is banned: unban it (`fail2ban-client unban ADDRESS`, `cscli decisions delete --ip ADDRESS`), and put the \
    ranges of nodes, pods and Services on the program's list of exceptions.";

/// The fix for firewalld's rule for packets that others translate.
const FORWARD_PORTS: &str = "firewalld forwards only translated packets that it has translated itself (StrictForwardPorts): set it to no, which \
    kube-proxy needs. A trusted zone does not help.";

/// The fix for a rule that drops a range of sources with networks of the cluster.
const SPARE: &str = "The rule drops a range of source addresses in which networks of the cluster are: accept those before it, here and in the \
    configuration that creates it. The rest of the range may be meant.";

/// The fix for a rule that translates all packets to a port.
const LOCALIZE: &str = "The rule is for packets to this machine, but names no address, so that it takes those to Services, too: restrict it to \
    local addresses, here and in the configuration that creates it.";

/// The fix for a rule that stops addresses in a set.
const OF_SET: &str = "The rule stops what is in the set: take the address out of it, here and in what fills it, rather than delete the rule.";

/// The fix for a rule that stops addresses outside a set.
const BUT_OF_SET: &str = "The rule stops addresses that are not in the set: keep it, and add the address to the set, here and \
     where the set is configured.";

const POLICIES: &str = "kubectl get networkpolicies -A";
/// The fix for Calico's rule for addresses of Services.
const CIDR_BLOCK: &str = "Calico drops packets to ranges of Services that nothing translates, and one of the ranges in its \
    BGPConfiguration (serviceClusterIPs, serviceExternalIPs, serviceLoadBalancerIPs) has other addresses, too: remove that \
    range, or make it smaller.";
const BGP_CONFIGURATION: &str =
    "kubectl get bgpconfigurations.crd.projectcalico.org default -o yaml";
/// The fix for Calico's rules for a link of the node.
const HOST_ENDPOINT: &str = "A HostEndpoint of Calico covers the link, and its GlobalNetworkPolicies, those with applyOnForward \
    or preDNAT in particular, decide what passes: to let these packets pass, allow them in one. A NetworkPolicy has no effect \
    here.";
const HOST_ENDPOINTS: &str = "kubectl get hostendpoints.crd.projectcalico.org,globalnetworkpolicies.crd.projectcalico.org -o yaml";
/// The fix for the rule that Calico makes of this setting.
const TO_HOST: &str = "defaultEndpointToHostAction in Calico's FelixConfiguration decides what pods may send to their own node: set it to Accept, \
    or to Return to leave that to other rules. Calico restores the rule when it is deleted, and no NetworkPolicy changes it.";
const TO_HOST_ACCEPT: &str = "kubectl patch felixconfigurations.crd.projectcalico.org default --type=merge -p \
    '{\"spec\":{\"defaultEndpointToHostAction\":\"Accept\"}}'";
/// Part of the comments of Calico's rules for tunnels: "Drop IPIP packets from non-Calico hosts", "Drop IPv4 VXLAN packets from
/// non-allowed hosts".
const OTHER_HOSTS: &str = "packets from non-";
const TUNNEL_HOSTS: &str = "Calico takes tunnel packets only from the hosts in its IP set, and the sender is not in it: restart \
    calico-node on this node, and read its log. No NetworkPolicy changes it.";
/// The fix for kube-router's mark, which clears that of kube-proxy.
const CLEARS_MARK: &str = "kube-router clears the bit 0x4000 of the mark, with which kube-proxy says what to masquerade: upgrade kube-router \
    to 1.1 or newer, which leaves other bits of the mark alone. No NetworkPolicy changes it.";
/// The fix for a rule of a hostPort.
const HOST_PORT: &str = "The rule is that of a pod with a hostPort, which has the address that it leads to: give the hostPort a hostIP or \
    another number, or remove it. If no pod has that address, the rule is left: CN06 shows how to remove it.";
const PODS_WIDE: &str = "kubectl get pods -A -o wide";

/// The fix for firewalld's reverse path filter.
const RPFILTER: &str = "It is firewalld's reverse path filter (IPv6_rpfilter in firewalld.conf; `firewall-cmd` does not show it): turn it off \
    there, or let the packets come in by the link of their way back.";
const RPFILTER_OFF: &str = "sed -i 's/^IPv6_rpfilter=.*/IPv6_rpfilter=no/' /etc/firewalld/firewalld.conf && firewall-cmd --reload";
/// The fix for the end of a list of what may pass.
const OF_LIST: &str = "The rule drops what an earlier rule of its chain does not accept by its set: add the cluster's addresses and ports to the \
    set, also in the configuration that fills it. Its elements:";

/// The fix for a rule that gives packets a source that is no address of the node.
const OWN_SOURCE: &str = "The node does not have the address, so replies do not come back to it: let the rule use the node's own, here and in the \
    configuration that creates it. If the address moves between nodes, load the rule only where the address is.";

/// The software whose rules may stop packets, and where each is configured.
const OWNERS: &[Owner] = &[
    Owner {
        pass: Some((
            "Let firewalld trust the network of the pods, now and after a restart. Its rules protect the node, and a reload, \
             which restores those that are deleted, flushes kube-proxy's as well.",
            "firewall-cmd --zone=trusted --add-source=PODS && firewall-cmd --permanent --zone=trusted --add-source=PODS",
        )),
        ..node("firewalld", "firewall-cmd --list-all-zones")
    },
    Owner {
        pass: Some((
            "Let ufw route the packets of the pods. Its rules protect the node, and a reload restores those that are deleted.",
            "ufw route allow from PODS && ufw route allow to PODS && ufw allow from PODS",
        )),
        ..node("ufw", "ufw status verbose")
    },
    Owner {
        pass: Some((
            "Accept the packets of the pods before the rules of CSF, which protect the node and come back with each restart of it: repeat the \
             commands in /etc/csf/csfpost.sh, which it runs then.",
            "iptables -I INPUT -s PODS -j ACCEPT && iptables -I FORWARD -s PODS -j ACCEPT && iptables -I FORWARD -d PODS -j ACCEPT && \
             iptables -I OUTPUT -d PODS -j ACCEPT",
        )),
        ..node(CSF, "grep -n . /etc/csf/csf.conf")
    },
    Owner {
        pass: Some((
            "Accept the packets of the pods in DOCKER-USER, which Docker leaves to the administrator; it restores its own rules \
             and the policy. Repeat it at boot.",
            "iptables -I DOCKER-USER -s PODS -j ACCEPT && iptables -I DOCKER-USER -d PODS -j ACCEPT",
        )),
        ..node("Docker", "docker ps")
    },
    Owner {
        change: Some(BANNED),
        ..node("fail2ban", "fail2ban-client status")
    },
    Owner {
        change: Some(BANNED),
        ..node("CrowdSec", "cscli decisions list")
    },
    node(ADMINISTRATOR, "iptables -S DOCKER-USER"),
    Owner {
        change: Some(
            "NetBird restores rules that are deleted. Packets of peers that kube-proxy translates lack its mark 0x1bd20: set that in a table of \
             your own before its rules (`type filter hook forward priority -160`, `iifname wt0 ct status dnat meta mark set 0x1bd20`), or allow \
             the traffic in NetBird's policies.",
        ),
        ..node("NetBird", "netbird status --detail")
    },
    node("libvirt", "virsh net-list --all"),
    node("nerdctl", "nerdctl ps"),
    node("Podman", "podman ps"),
    node("Tailscale", "tailscale debug prefs"),
    Owner {
        change: Some(
            "The Mullvad app lets pass only what its own rules accept, DNS to its own resolver in particular, and makes them again. Mark \
             the connections of pods, also those to the cluster's DNS, so that it leaves them alone: a table of nftables with a chain at \
             priority -100 that sets `ct mark 0x00000f41` and `meta mark 0x6d6f6c65` for the range of pods; or disconnect the app on this \
             node (`mullvad disconnect`, with lockdown mode off).",
        ),
        ..node(
            "Mullvad VPN",
            "mullvad status && nft list table inet mullvad",
        )
    },
    Owner {
        change: Some(
            "NordVPN's firewall and kill switch close the node but for its tunnel, and come back when they are deleted: allow the ranges of \
             nodes, pods and Services (`nordvpn allowlist add subnet RANGE`), or turn them off (`nordvpn set killswitch off`, `nordvpn set \
             firewall off`).",
        ),
        ..node("NordVPN", "nordvpn settings")
    },
    Owner {
        change: Some(
            "Change the NixOS configuration, and run `nixos-rebuild switch`: a change by hand is gone with the next one. \
             networking.firewall.trustedInterfaces takes the links of the pods, allowedTCPPorts and allowedUDPPorts what others ask \
             for, and checkReversePath turns off the filter of reverse paths.",
        ),
        ..node(NIXOS, "grep -rn networking.firewall /etc/nixos")
    },
    node("WireGuard", "grep -n . /etc/wireguard/*.conf"),
    Owner {
        change: Some(
            "keepalived drops packets for its virtual addresses where vrrp_strict is set: remove vrrp_strict from global_defs, or write `accept` \
             into the vrrp_instance, and reload keepalived, which restores rules that are deleted.",
        ),
        ..node("keepalived", "grep -n . /etc/keepalived/keepalived.conf")
    },
    node("NetworkManager", "nmcli connection show"),
    node("systemd-networkd", "networkctl cat"),
    node("a CNI plugin", "grep -rn . /etc/cni/net.d"),
    cluster("Talos", "talosctl get networkruleconfigs"),
    cluster("Istio", "kubectl get pods -A -l security.istio.io/tlsMode"),
    cluster("Linkerd", PODS_WIDE),
    cluster("Antrea", POLICIES),
    cluster("Calico", POLICIES),
    cluster("Cilium", POLICIES),
    cluster("kube-router", POLICIES),
    cluster("Weave Net", POLICIES),
    cluster("OVN", POLICIES),
    cluster("kindnet", POLICIES),
    cluster("Azure CNI", POLICIES),
    cluster(
        "AWS VPC CNI",
        "kubectl -n kube-system get daemonset aws-node -o yaml",
    ),
    cluster(
        "flannel",
        "kubectl get configmaps -A -l app=flannel -o yaml",
    ),
    cluster(
        "ip-masq-agent",
        "kubectl -n kube-system get configmap ip-masq-agent -o yaml",
    ),
    Owner {
        change: Some(
            "Start NodeLocal DNS on the node: it answers these queries itself. Where it was removed, remove its link and its rules, \
             too.",
        ),
        ..cluster(
            "NodeLocal DNS",
            "kubectl -n kube-system get pods -l k8s-app=node-local-dns -o wide",
        )
    },
    Owner {
        change: Some(
            "kube-vip accepts at the address only the ports of the Service (its setting enable_service_security): to reach others, or to \
             reach the address from the node itself, turn that off. It restores rules that are deleted.",
        ),
        ..cluster("kube-vip", PODS_WIDE)
    },
    Owner {
        change: Some(HOST_PORT),
        ..cluster("host ports", PODS_WIDE)
    },
    Owner {
        change: Some(HOST_PORT),
        ..cluster("portmap", PODS_WIDE)
    },
];

fn owner_of(name: &str) -> Option<&'static Owner> {
    OWNERS.iter().find(|owner| owner.name == name)
}

/// Returns `rule` as evidence.
pub(in crate::check) fn proof_of(rule: &Rule) -> Proof {
    let text = match (rule.number, rule.is_nft()) {
        (0, true) => format!("{} policy drop", rule.chain),
        (0, false) => format!("-P {} DROP", rule.chain),
        (_, true) => format!("{}: {}", rule.chain, rule.rule),
        (_, false) => format!("-A {} {}", rule.chain, rule.rule),
    };
    Proof::rule(rule.family, rule.table.as_str(), text)
}

/// Returns how to let the packets of pods and Services pass: a change in the configuration of the rule's owner; for a rule that
/// closes the node, the command that accepts them before it; else the command that deletes it.
pub fn rule_fix(by: &By) -> Fix {
    if let Some(fix) = source_fix(by) {
        return fix;
    }
    let who = match by.maker {
        Maker::Other(ADMINISTRATOR) => return without_owner(by),
        Maker::Other(who) => who,
        Maker::Kubelet => "the kubelet",
        _ => return without_owner(by),
    };
    if who == "Calico" && is_of_host_endpoint(&by.rule.chain) {
        return Fix::kubectl(HOST_ENDPOINT, HOST_ENDPOINTS);
    }
    if who == "Calico" && by.rule.rule.contains("DefaultEndpointToHostAction") {
        return Fix::kubectl(TO_HOST, TO_HOST_ACCEPT);
    }
    if who == "Calico" && by.rule.rule.contains(OTHER_HOSTS) {
        return Fix::on_node(TUNNEL_HOSTS, "ipset list | grep -A 20 'cali40all-.*-net'");
    }
    if who == "kube-router" && by.rule.rule.contains("-j MARK") {
        return Fix::kubectl(CLEARS_MARK, "kubectl get daemonsets -A -o wide");
    }
    if let Some(pod) = &by.meshed_pod {
        return of_mesh(who, pod, &by.rule);
    }
    if let Some(agent) = &by.behind {
        let text = format!(
            "The agent of {who} on this node has no rules for the pod yet, and drops its packets until then; no NetworkPolicy does. \
             Restart the agent, and read its log."
        );
        return match agent {
            PluginAgent::Pod { namespace, name } => {
                Fix::kubectl(text, format!("kubectl -n {namespace} delete pod {name}"))
            }
            PluginAgent::Unit(unit) => Fix::on_node(text, format!("systemctl restart {unit}")),
            PluginAgent::Unknown => Fix::kubectl(text, "kubectl get pods -A -o wide"),
        };
    }
    if let Some(policies) = &by.policies {
        let text = "A NetworkPolicy applies to the pod, and no rule of one lets these packets pass: allow them in a policy. If one allows them \
                    already, or none selects the pod, the rules or IP sets of this node are behind: restart the agent that writes them.";
        let line = match policies.iter().find_map(|policy| policy.split_once('/')) {
            Some((namespace, name)) => format!("kubectl -n {namespace} edit networkpolicy {name}"),
            None => POLICIES.to_owned(),
        };
        return Fix::kubectl(text, line);
    }
    if let Some(pod) = &by.pod_of_host {
        return of_host(who, pod);
    }
    if by.agent == Some(Agent::Gone)
        && let Some(undo) = &by.undo
    {
        let text = format!(
            "{who} left the rule behind: it does not run on this node, and nothing restores the rule. CN12 lists what else is left."
        );
        return Fix::on_node(text, undo.clone());
    }
    if by.rule.chain.ends_with("cali-cidr-block") {
        return Fix::kubectl(CIDR_BLOCK, BGP_CONFIGURATION);
    }
    let owner = owner_of(who);
    // Packets from outside to pods are translated.
    let is_from_outside = || {
        let chain = &by.rule.chain;
        let mut passes = by.passes.iter();
        (chain.contains("FORWARD") || chain.contains("FWD"))
            && passes.all(|pass| pass.packets == Accepted::ToPods)
    };
    if who == "firewalld"
        && (by.rule.chain.ends_with("FORWARD_dnat") || by.is_strict && is_from_outside())
    {
        return Fix::on_node(
            FORWARD_PORTS,
            "sed -i 's/^StrictForwardPorts=.*/StrictForwardPorts=no/' /etc/firewalld/firewalld.conf && firewall-cmd --reload",
        );
    }
    if who == "firewalld" && by.rule.rule.contains("fib saddr") {
        return Fix::on_node(RPFILTER, RPFILTER_OFF);
    }
    if let Some((text, command)) = owner.and_then(|owner| owner.pass)
        && by.closes
    {
        let program = match (by.program.as_str(), by.rule.family) {
            ("nft", Family::V4) => "iptables",
            ("nft", Family::V6) => "ip6tables",
            (program, _) => program,
        };
        let of_family = command.replace("iptables ", &format!("{program} "));
        let (outside, ranges): (Vec<&Pass>, Vec<&Pass>) = by
            .passes
            .iter()
            .partition(|pass| matches!(pass.packets, Accepted::To(..)));
        // Commands that name the pods run for each range of pods, the others once.
        let parts = of_family.split(" && ").flat_map(|part| {
            let times = if part.contains(PODS) { usize::MAX } else { 1 };
            let passes = ranges.iter().take(times);
            passes.map(move |pass| with_range(part, pass))
        });
        let text = match ranges.as_slice() {
            [] => format!(
                "Let {who} accept these packets from outside, also after a restart. It restores rules of its own that are deleted."
            ),
            _ => text.to_owned(),
        };
        let parts = parts.chain(outside.into_iter().map(|pass| opening(who, pass)));
        return Fix::on_node(text, line(parts.collect()));
    }
    let text = match owner.and_then(|owner| owner.change) {
        Some(text) => text.to_owned(),
        None => format!(
            "Change the rule in the configuration of {who}, which would otherwise restore it."
        ),
    };
    match owner.map(|owner| owner.shown) {
        Some(Place::Node(command)) => Fix::on_node(text, command),
        Some(Place::Cluster(command)) => Fix::kubectl(text, command),
        None => Fix::on_node(text, by.listing.clone()),
    }
}

/// Returns how the firewall that made the rule of `by` lets packets to `port` of `proto` pass for good; `None` if it is not known.
pub(super) fn port_fix(by: &By, proto: Proto, port: u16) -> Option<Fix> {
    let Maker::Other(who) = by.maker else {
        return None;
    };
    let command = match who {
        "ufw" => format!("ufw allow {port}/{proto}"),
        "firewalld" => {
            let port = format!("--add-port={port}/{proto}");
            format!("firewall-cmd {port} && firewall-cmd --permanent {port}")
        }
        NIXOS => {
            let option = match proto {
                Proto::Udp => "allowedUDPPorts",
                _ => "allowedTCPPorts",
            };
            return Some(Fix::on_node(
                format!(
                    "Open the port in the NixOS configuration of each node, networking.firewall.{option} = [ {port} ], and run \
                     `nixos-rebuild switch`: a change by hand is gone with the next one."
                ),
                "grep -rn networking.firewall /etc/nixos",
            ));
        }
        _ => return None,
    };
    Some(Fix::on_node(
        format!(
            "Let {who} accept the packets of the tunnel on each node, now and after a restart."
        ),
        command,
    ))
}

/// Returns the command that lets packets from outside to one address and port pass the firewall `who`.
fn opening(who: &str, pass: &Pass) -> String {
    match (who, pass.packets) {
        ("ufw", Accepted::To(at, proto)) => {
            format!("ufw allow proto {proto} to {} port {}", at.ip(), at.port())
        }
        ("firewalld", Accepted::To(at, proto)) => {
            let port = format!("--add-port={}/{proto}", at.port());
            format!("firewall-cmd {port} && firewall-cmd --permanent {port}")
        }
        _ => pass.before.clone(),
    }
}

/// How to exclude the ranges of pods from the masquerading of software, and the command for it.
const SOURCES: &[(&str, &str, Place)] = &[
    (
        "ip-masq-agent",
        "Add the ranges of pods and nodes to nonMasqueradeCIDRs in ip-masq-agent's ConfigMap; it reads it within a minute. Without one, \
         only 10.0.0.0/8, 172.16.0.0/12 and 192.168.0.0/16 are left out.",
        Place::Cluster("kubectl -n kube-system edit configmap ip-masq-agent"),
    ),
    (
        "flannel",
        "flannel spares Network of its net-conf.json: set it to the range of all pods, and restart flannel on each node. After that, \
         delete rules with the old range, which it does not know.",
        Place::Cluster("kubectl get configmaps -A -l app=flannel -o yaml"),
    ),
    (
        "Calico",
        "Calico masquerades what the pods of an IPPool with natOutgoing send to addresses in no IPPool: create one with the range of the \
         other pods, with `disabled: true` if Calico is not to assign its addresses.",
        Place::Cluster("kubectl get ippools.crd.projectcalico.org -o yaml"),
    ),
    (
        "AWS VPC CNI",
        "Add the ranges of the other pods to AWS_VPC_K8S_CNI_EXCLUDE_SNAT_CIDRS of the DaemonSet aws-node, which spares those of the VPC.",
        Place::Cluster("kubectl -n kube-system edit daemonset aws-node"),
    ),
    (
        "a CNI plugin",
        "ipMasq of the plugin spares its own network alone: set it to false, and let a rule masquerade that spares the range of all \
         pods.",
        Place::Node("grep -rn ipMasq /etc/cni/net.d"),
    ),
    (
        "firewalld",
        "Take masquerading out of the zone by which packets to pods leave (also with --permanent), or restrict it to other destinations \
         with a rich rule.",
        Place::Node("firewall-cmd --list-all-zones"),
    ),
];

/// Returns how to let packets to pods keep their source, if the rule of `by` replaces it; `None` if only its owner's configuration tells.
fn source_fix(by: &By) -> Option<Fix> {
    let who = match by.maker {
        _ if !by.rule.replaces_source() || by.agent == Some(Agent::Gone) => return None,
        Maker::Other(ADMINISTRATOR) | Maker::Unknown => {
            if let Some(command) = &by.masquerading {
                return Some(Fix::on_node(OWN_SOURCE, command.clone()));
            }
            let command = by.excepting.as_ref()?;
            let command = by
                .passes
                .first()
                .map_or_else(|| command.clone(), |pass| with_range(command, pass));
            let text = "Leave the range of the pods out of the rule, here and in the configuration that creates it.";
            return Some(Fix::on_node(text, line(vec![command])));
        }
        Maker::Other(who) => who,
        _ => return None,
    };
    let (_, text, place) = SOURCES.iter().find(|(name, ..)| *name == who)?;
    Some(match *place {
        Place::Cluster(command) => Fix::kubectl(*text, command),
        Place::Node(command) => Fix::on_node(*text, command),
    })
}

/// Returns the fix for `limit`, beyond which the rule drops connections.
pub fn limit_fix(limit: &Limit, by: &By) -> Fix {
    let text = if limit.is_shared {
        "All clients share the limit, so it does not protect from one client that floods. Where the rule is configured, raise \
         the limit, or give each client its own. Until then, remove the rule."
    } else {
        "Raise the limit where the rule is configured, if it is not to stop these clients. Until then, remove the rule."
    };
    match &by.undo {
        Some(command) => Fix::on_node(text, command.clone()).to_decide(),
        None => Fix::on_node(text, by.listing.clone()).to_decide(),
    }
}

/// Returns the fix of a rule with which `who` applies the policies of `pod`, which uses the host's network, to the whole node.
fn of_host(who: &str, pod: &str) -> Fix {
    let (namespace, name) = match pod.split_once('/') {
        Some((namespace, _)) => (format!("-n {namespace}"), pod),
        None => ("-A".to_owned(), "a pod"),
    };
    let text = format!(
        "{who} applies the policies of {name}, which uses the host's network, to the whole node: exclude the pod from their \
         podSelector, or upgrade {who} (k3s contains it) to a release that ignores such pods."
    );
    Fix::kubectl(text, format!("kubectl {namespace} get networkpolicies"))
}

/// Returns whether `chain` is one of Calico for packets that enter or leave the node by a link.
fn is_of_host_endpoint(chain: &str) -> bool {
    let Some((_, rest)) = chain.split_once("cali-") else {
        return false;
    };
    rest.starts_with("fh") || rest.starts_with("th")
}

/// Returns the fix of a rule that `who`, a service mesh, wrote into the node's own network for `pod`, which uses that
/// network.
fn of_mesh(who: &str, pod: &str, rule: &Rule) -> Fix {
    let text = format!(
        "{who} set up its proxy for {pod}, which uses the host's network, and so for the whole node: take the pod out of the \
         mesh (linkerd.io/inject: disabled, sidecar.istio.io/inject: \"false\"), restart it, and remove the rules: nothing else \
         removes them before the node restarts."
    );
    let tool = tool(IptablesBackend::InUse, rule.family);
    Fix::on_node(text, format!("{tool} -t {} -F {}", rule.table, rule.chain))
}

fn without_owner(by: &By) -> Fix {
    let is_policy = by.rule.number == 0;
    match by.rule.listing_of_set().filter(|_| !by.is_filled) {
        Some((listing, false)) => {
            return Fix::on_node(OF_SET, by.release.clone().unwrap_or(listing));
        }
        Some((listing, true)) => return Fix::on_node(BUT_OF_SET, listing),
        None => {}
    }
    if let Some(command) = &by.sparing {
        return Fix::on_node(SPARE, command.clone());
    }
    if let Some(command) = &by.localized {
        return Fix::on_node(LOCALIZE, command.clone());
    }
    if by.closes {
        let commands = by.passes.iter().map(|pass| with_range(&pass.before, pass));
        let text = if is_policy { KEEP_POLICY } else { KEEP };
        let files = files_of(&by.rule);
        return Fix::on_node(format!("{text} {files}"), line(commands.collect()));
    }
    if let Some(listing) = &by.allowed {
        return Fix::on_node(OF_LIST, listing.clone());
    }
    match &by.undo {
        Some(command) => Fix::on_node(DELETE, command.clone()).to_decide(),
        None => Fix::said(DELETE),
    }
}

/// Returns the files from which the services of distributions load such a rule at boot.
fn files_of(rule: &Rule) -> &'static str {
    match (rule.is_nft(), rule.family) {
        (true, _) => "nftables.service loads /etc/nftables.conf, or /etc/sysconfig/nftables.conf.",
        (false, Family::V4) => {
            "netfilter-persistent loads /etc/iptables/rules.v4, iptables.service /etc/sysconfig/iptables."
        }
        (false, Family::V6) => {
            "netfilter-persistent loads /etc/iptables/rules.v6, ip6tables.service /etc/sysconfig/ip6tables."
        }
    }
}

/// Returns `command` with the range of the pods, if kube-proxy's configuration has it.
fn with_range(command: &str, pass: &Pass) -> String {
    match pass.pods {
        Some(range) => command.replace(PODS, &range.to_string()),
        None => command.to_owned(),
    }
}

/// Returns `commands` as one line, without duplicates.
fn line(mut commands: Vec<String>) -> Line {
    let mut seen = BTreeSet::new();
    commands.retain(|command| seen.insert(command.clone()));
    let line = commands.join(" && ");
    if line.contains(PODS) {
        Line::with(line, &[PODS])
    } else {
        Line::from(line)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kpx_node::owner::chain_owner;

    #[test]
    fn every_known_software_is_configured_somewhere() {
        for of in chain_owner::SOFTWARE {
            assert!(owner_of(of.name).is_some(), "{}", of.name);
        }
        for of in OWNERS {
            let mut all = chain_owner::SOFTWARE.iter();
            assert!(all.any(|known| known.name == of.name), "{}", of.name);
        }
    }
}
