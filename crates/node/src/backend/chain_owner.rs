//! The owner of a chain, set, table, rule or link, by its name or its signs.
//!
//! Source: the chain constants of kube-proxy's `pkg/proxy/iptables`, `pkg/proxy/ipvs` and `pkg/proxy/userspace`, and of the kubelet's
//! `kubelet_network_linux.go`; other names as their projects document them.

use serde::Serialize;

use crate::backend::Mode;
use crate::backend::iptables::{names, portals};

/// The maker of an object.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Serialize)]
#[cfg_attr(feature = "testing", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case", tag = "kind", content = "name")]
pub enum Maker {
    /// kube-proxy, in any mode.
    KubeProxy,
    /// kube-proxy and the kubelet both write it.
    Both,
    /// The kubelet.
    Kubelet,
    /// The kernel: a built-in chain.
    Kernel,
    /// Other software, by its name.
    Other(&'static str),
    /// Not known.
    Unknown,
}

const BUILT_IN: [&str; 5] = ["PREROUTING", "INPUT", "FORWARD", "OUTPUT", "POSTROUTING"];

/// Chains that only `iptables` mode writes, in addition to the chains of Services: table, name.
const IPTABLES: [(&str, &str); 4] = [
    ("filter", "KUBE-EXTERNAL-SERVICES"),
    ("filter", "KUBE-NODEPORTS"),
    ("filter", "KUBE-SERVICES"),
    ("nat", "KUBE-NODEPORTS"),
];

/// Chains that `ipvs` mode alone writes: table, name.
const IPVS: [(&str, &str); 6] = [
    ("filter", "KUBE-IPVS-FILTER"),
    ("filter", "KUBE-IPVS-OUT-FILTER"),
    ("filter", "KUBE-NODE-PORT"),
    ("filter", "KUBE-SOURCE-RANGES-FIREWALL"),
    ("nat", "KUBE-LOAD-BALANCER"),
    ("nat", "KUBE-NODE-PORT"),
];

/// Chains that `iptables` and `ipvs` mode both write: table, name.
const SHARED: [(&str, &str); 5] = [
    ("filter", "KUBE-FORWARD"),
    ("filter", "KUBE-PROXY-FIREWALL"),
    ("nat", "KUBE-MARK-MASQ"),
    ("nat", "KUBE-POSTROUTING"),
    ("nat", "KUBE-SERVICES"),
];

/// Other software: by what its objects are known.
#[derive(Debug)]
pub struct Software {
    /// Name of the software.
    pub name: &'static str,
    /// Beginnings of its chains and IP sets.
    names: &'static [&'static str],
    /// Its tables of nftables; a star stands for the rest of a name.
    tables: &'static [&'static str],
    /// Beginnings of comments (ends after a star), marks, and, after an exclamation mark, the matches and target of rules
    /// without a comment.
    signs: &'static [&'static str],
    /// Its links; a star stands for the rest of a name.
    links: &'static [&'static str],
    /// Parts of the names of its containers, images and processes, if it is a network plugin: the programs that write
    /// its rules.
    pub agents: &'static [&'static str],
}

const fn named(name: &'static str, names: &'static [&'static str]) -> Software {
    Software {
        name,
        names,
        tables: &[],
        signs: &[],
        links: &[],
        agents: &[],
    }
}

/// The cache that answers queries to the cluster's DNS on the node itself.
const NODE_LOCAL_DNS: &str = "NodeLocal DNS";

/// Docker.
const DOCKER: &str = "Docker";

/// The owner of rules in a chain that Docker creates but does not fill.
pub const ADMINISTRATOR: &str = "the administrator (DOCKER-USER)";

/// The firewall that NixOS makes of its configuration.
pub const NIXOS: &str = "the NixOS firewall";

/// A firewall: `ConfigServer` Security & Firewall.
pub const CSF: &str = "CSF";

/// Other software; the first match counts.
pub const SOFTWARE: &[Software] = &[
    Software {
        links: &["kube-bridge", "kube-dummy-if"],
        agents: &["kube-router"],
        ..named(
            "kube-router",
            &[
                "KUBE-ROUTER-",
                "KUBE-NWPLCY-",
                "KUBE-POD-FW-",
                "KUBE-SRC-",
                "KUBE-DST-",
            ],
        )
    },
    Software {
        signs: &["* kube-vip load balancer IP"],
        ..named("kube-vip", &["KUBE-VIP-"])
    },
    named("host ports", &["KUBE-HOSTPORTS", "KUBE-HP-"]),
    Software {
        tables: &["cni_hostport"],
        ..named("portmap", &["CNI-HOSTPORT-", "CNI-DN-", "CNI-SN-"])
    },
    Software {
        links: &["nerdctl*"],
        ..named("nerdctl", &["CNI-ISOLATION-"])
    },
    Software {
        tables: &["cni_plugins_masquerade"],
        ..named("a CNI plugin", &["CNI-"])
    },
    Software {
        tables: &["calico"],
        signs: &["cali:"],
        links: &[
            "cali*",
            "vxlan.calico",
            "vxlan-v6.calico",
            "wireguard.cali",
            "wg-v6.cali",
        ],
        agents: &["calico-node", "calico/node"],
        ..named("Calico", &["cali"])
    },
    Software {
        signs: &["cilium: ", "cilium-feeder: "],
        links: &["cilium_*"],
        agents: &["cilium-agent", "cilium/cilium"],
        ..named("Cilium", &["CILIUM_", "OLD_CILIUM_", "cilium_"])
    },
    Software {
        tables: &["flannel-ipv4", "flannel-ipv6"],
        // Older releases give their rule of masquerading no comment.
        signs: &["flanneld ", "! -d 224.0.0.0/4 -j MASQUERADE"],
        links: &["flannel.*", "flannel-*"],
        agents: &["flannel"],
        ..named("flannel", &["FLANNEL-"])
    },
    Software {
        links: &["weave", "vethwe-*"],
        agents: &["weave-net", "weave-kube", "weave-npc", "weaver"],
        ..named("Weave Net", &["WEAVE", "weave"])
    },
    Software {
        signs: &["Antrea: "],
        links: &["antrea-*"],
        agents: &["antrea-agent"],
        ..named("Antrea", &["ANTREA-"])
    },
    Software {
        signs: &["AWS SNAT CHAIN", "AWS, "],
        agents: &["aws-node"],
        ..named("AWS VPC CNI", &["AWS-SNAT-CHAIN-", "AWS-CONNMARK-CHAIN-"])
    },
    Software {
        agents: &["azure-cns", "azure-npm"],
        ..named("Azure CNI", &["AZURE-NPM", "SWIFT"])
    },
    named("ip-masq-agent", &["IP-MASQ"]),
    Software {
        tables: &["kindnet*"],
        agents: &["kindnet"],
        ..named("kindnet", &["KIND-MASQ-AGENT"])
    },
    Software {
        links: &["ovn0", "ovn-k8s-*"],
        agents: &["kube-ovn", "ovnkube"],
        ..named("OVN", &["OVN-"])
    },
    named(ADMINISTRATOR, &["DOCKER-USER"]),
    Software {
        tables: &["docker-bridges"],
        links: &["docker0", "docker_gwbridge"],
        ..named(DOCKER, &["DOCKER"])
    },
    Software {
        tables: &["netavark"],
        links: &["podman*"],
        ..named("Podman", &["NETAVARK"])
    },
    Software {
        tables: &["libvirt_network"],
        links: &["virbr*"],
        ..named("libvirt", &["LIBVIRT_"])
    },
    Software {
        tables: &["f2b-table"],
        ..named("fail2ban", &["f2b-"])
    },
    Software {
        tables: &["crowdsec", "crowdsec6"],
        ..named("CrowdSec", &["CROWDSEC_CHAIN", "crowdsec-chain"])
    },
    Software {
        tables: &["netbird"],
        signs: &["0x1bd00", "0x1bd20"],
        links: &["wt0"],
        ..named("NetBird", &["NETBIRD-"])
    },
    named("ufw", &["ufw"]),
    named(
        CSF,
        &[
            "LOCALINPUT",
            "LOCALOUTPUT",
            "LOGDROPIN",
            "LOGDROPOUT",
            "ALLOWIN",
            "ALLOWOUT",
            "DENYIN",
            "DENYOUT",
        ],
    ),
    Software {
        tables: &["firewalld"],
        ..named(
            "firewalld",
            &[
                "INPUT_ZONES",
                "INPUT_direct",
                "FORWARD_IN_ZONES",
                "FORWARD_OUT_ZONES",
                "FORWARD_direct",
                "OUTPUT_direct",
                "PREROUTING_ZONES",
                "PREROUTING_direct",
                "POSTROUTING_ZONES",
                "POSTROUTING_direct",
                "IN_public",
                "FWDI_",
                "FWDO_",
            ],
        )
    },
    Software {
        // Its marks use eight bits that no other known software uses.
        signs: &["0x40000/0xff0000", "0x80000/0xff0000"],
        links: &["tailscale*"],
        ..named("Tailscale", &["ts-"])
    },
    Software {
        tables: &["mullvad"],
        links: &["wg0-mullvad", "wg-mullvad"],
        ..named("Mullvad VPN", &[])
    },
    Software {
        tables: &["nordvpn*"],
        signs: &["nordvpn"],
        links: &["nordlynx*", "nordtun*"],
        ..named("NordVPN", &[])
    },
    Software {
        tables: &["nixos-fw"],
        ..named(NIXOS, &["nixos-fw"])
    },
    Software {
        tables: &["wg-quick-*"],
        signs: &["wg-quick(8) rule"],
        links: &["wg*"],
        ..named("WireGuard", &[])
    },
    Software {
        tables: &["istio-proxy*"],
        ..named("Istio", &["ISTIO_"])
    },
    named("Linkerd", &["PROXY_INIT_"]),
    Software {
        tables: &["talos"],
        ..named("Talos", &[])
    },
    Software {
        signs: &["NodeLocal DNS Cache:"],
        links: &["nodelocaldns*", "node-local-dns"],
        ..named(NODE_LOCAL_DNS, &[])
    },
    Software {
        tables: &["keepalived"],
        ..named("keepalived", &["keepalived"])
    },
    Software {
        tables: &["io.systemd.nat"],
        ..named("systemd-networkd", &[])
    },
    Software {
        tables: &["nm-shared-*"],
        signs: &["nm-shared-"],
        ..named("NetworkManager", &["nm-sh-"])
    },
];

impl Software {
    /// Returns whether `link` is one of its links.
    pub fn has_link(&self, link: &str) -> bool {
        self.links.iter().any(|pattern| fits(pattern, link))
            || self.name == DOCKER && docker_network(link).is_some()
    }

    /// Returns whether `name` is one of its chains or IP sets.
    pub fn has_name(&self, name: &str) -> bool {
        self.names.iter().any(|prefix| name.starts_with(prefix))
            && other(name) == Maker::Other(self.name)
    }

    /// Returns whether `name` is one of its tables of nftables.
    pub fn has_table(&self, name: &str) -> bool {
        maker_of_table(name) == Maker::Other(self.name)
    }

    /// Returns whether `rule`, whose comment is that text if it has one, is of this software.
    pub fn has_rule(&self, rule: &str, comment: Option<&str>) -> bool {
        self.signs.iter().any(|sign| match comment {
            Some(comment) if comment.starts_with(sign) => true,
            None if sign.starts_with('!') => rule.contains(sign),
            Some(comment)
                if sign
                    .strip_prefix('*')
                    .is_some_and(|end| comment.ends_with(end)) =>
            {
                true
            }
            _ => sign.starts_with("0x") && rule.split(' ').any(|word| word == *sign),
        }) || self.name == NODE_LOCAL_DNS && untracks_dns(rule)
    }

    /// Returns whether `name`, of a container, an image or a process, belongs to its agent.
    pub fn is_agent(&self, name: &str) -> bool {
        self.agents.iter().any(|agent| name.contains(agent))
    }
}

/// Returns whether `link` is the link of `NodeLocal` DNS, which has the addresses that it answers at.
pub fn is_node_local_dns(link: &str) -> bool {
    maker_of_link(link) == Maker::Other(NODE_LOCAL_DNS)
}

/// Returns whether `link` is the network card that the AWS VPC CNI gives to a pod with security groups of its own.
pub fn is_aws_branch(link: &str) -> bool {
    link.starts_with("vlan.eth")
}

/// Returns the first digits of the id of the Docker network whose bridge is `link`.
pub fn docker_network(link: &str) -> Option<&str> {
    let id = link.strip_prefix("br-")?;
    let is_hex = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
    (id.len() == 12 && id.bytes().all(is_hex)).then_some(id)
}

/// Returns whether `rule` keeps queries to the cluster's DNS, or its answers, out of connection tracking for one address: `NodeLocal` DNS
/// writes such rules, in older releases without a comment.
fn untracks_dns(rule: &str) -> bool {
    let words: Vec<&str> = rule.split_whitespace().collect();
    let has = |option: &str, value: &dyn Fn(&str) -> bool| {
        words
            .windows(2)
            .any(|pair| pair[0] == option && value(pair[1]))
    };
    let is_one = |address: &str| address.ends_with("/32") || address.ends_with("/128");
    let is_dns = |port: &str| port == "53";
    let untracks = has("-j", &|target| target == "NOTRACK") || words.contains(&"--notrack");
    untracks
        && (has("-d", &is_one) && has("--dport", &is_dns)
            || has("-s", &is_one) && has("--sport", &is_dns))
}

/// Returns whether `name` is `pattern`, in which a star at the end stands for the rest.
fn fits(pattern: &str, name: &str) -> bool {
    match pattern.strip_suffix('*') {
        Some(start) => name.starts_with(start),
        None => name == pattern,
    }
}

/// Returns the prefix of `name` and its hash, if it is the chain of a Service or of an endpoint.
pub fn hashed(name: &str) -> Option<(&'static str, &str)> {
    let prefixes = [
        names::SVC,
        names::SVL,
        names::EXT,
        names::FW,
        names::SEP,
        names::XLB,
    ];
    prefixes.into_iter().find_map(|prefix| {
        let hash = name.strip_prefix(prefix)?;
        let fits = hash.len() == 16 && hash.bytes().all(|b| matches!(b, b'A'..=b'Z' | b'2'..=b'7'));
        fits.then_some((prefix, hash))
    })
}

/// Returns the modes that write `chain` of `table`; none if it is not kube-proxy's, or common to all modes.
pub fn modes_of(table: &str, chain: &str) -> &'static [Mode] {
    if hashed(chain).is_some() || IPTABLES.contains(&(table, chain)) {
        &[Mode::Iptables]
    } else if IPVS.contains(&(table, chain)) {
        &[Mode::Ipvs]
    } else if SHARED.contains(&(table, chain)) {
        &[Mode::Iptables, Mode::Ipvs]
    } else if portals::CHAINS.contains(&(table, chain)) {
        &[Mode::Userspace]
    } else {
        &[]
    }
}

/// Returns whether `chain` is a built-in one, by its name.
pub fn is_built_in(chain: &str) -> bool {
    BUILT_IN.contains(&chain)
}

/// Returns who made `chain` of `table`.
pub fn maker_of_chain(table: &str, chain: &str) -> Maker {
    if BUILT_IN.contains(&chain) {
        return Maker::Kernel;
    }
    match chain {
        "KUBE-FIREWALL" => return Maker::Both,
        "KUBE-PROXY-CANARY" => return Maker::KubeProxy,
        "KUBE-KUBELET-CANARY" | "KUBE-IPTABLES-HINT" | "KUBE-MARK-DROP" => return Maker::Kubelet,
        _ => {}
    }
    if !modes_of(table, chain).is_empty() {
        return Maker::KubeProxy;
    }
    other(chain)
}

/// Returns who made the IP set `name`.
pub fn maker_of_set(name: &str) -> Maker {
    if set_purpose(name).is_some() {
        Maker::KubeProxy
    } else {
        other(name)
    }
}

/// The nftables table with which kpx serves Services while kube-proxy does not.
pub const BRIDGE: &str = "kpx-bridge";

/// Returns who made the nftables table `name`.
pub fn maker_of_table(name: &str) -> Maker {
    if name == "kube-proxy" {
        return Maker::KubeProxy;
    }
    let mut all = SOFTWARE.iter();
    match all.find(|software| software.tables.iter().any(|table| fits(table, name))) {
        Some(of) => Maker::Other(of.name),
        // iptables-nft keeps its rules here; the chains show their owner.
        None => other(name),
    }
}

/// Returns who made the link `name`; unknown if it is of no software that kpx knows.
pub fn maker_of_link(name: &str) -> Maker {
    let mut all = SOFTWARE.iter();
    let found = all.find(|software| software.has_link(name));
    found.map_or(Maker::Unknown, |software| Maker::Other(software.name))
}

/// Returns who made `rule`, by its comment and its marks.
pub fn maker_of_rule(rule: &str, comment: Option<&str>) -> Maker {
    let mut all = SOFTWARE.iter();
    let found = all.find(|software| software.has_rule(rule, comment));
    found.map_or(Maker::Unknown, |software| Maker::Other(software.name))
}

/// Returns the beginning of `name` that shows other software as its maker.
pub fn prefix_of(name: &str) -> Option<&'static str> {
    let mut prefixes = SOFTWARE.iter().flat_map(|software| software.names);
    prefixes.find(|prefix| name.starts_with(**prefix)).copied()
}

fn other(name: &str) -> Maker {
    let mut all = SOFTWARE.iter();
    let found = all.find(|software| software.names.iter().any(|prefix| name.starts_with(prefix)));
    found.map_or(Maker::Unknown, |software| Maker::Other(software.name))
}

/// Returns the purpose of the IP set `name` in kube-proxy's ipvs mode; `None` if the set is not kube-proxy's.
pub fn set_purpose(name: &str) -> Option<&'static str> {
    let rest = name.strip_prefix("KUBE-")?;
    Some(match rest.strip_prefix("6-").unwrap_or(rest) {
        "LOOP-BACK" => "endpoints of this node, to masquerade a pod that reaches itself",
        "CLUSTER-IP" => "cluster IPs, to masquerade and let pass",
        "EXTERNAL-IP" => "external IPs of Services, to masquerade",
        "EXTERNAL-IP-LOCAL" => "external IPs whose traffic stays on this node",
        "LOAD-BALANCER" => "load-balancer addresses",
        "LOAD-BALANCER-FW" => "load-balancer addresses with source ranges",
        "LOAD-BALANCER-LOCAL" => "load-balancer addresses whose traffic stays on this node",
        "LOAD-BALANCER-SOURCE-IP" => "load-balancer addresses that may call themselves",
        "LOAD-BALANCER-SOURCE-CIDR" | "LOAD-BALANCER-SOURCE-CID" => {
            "source ranges that may use a load-balancer address"
        }
        "NODE-PORT-TCP" => "TCP NodePorts, to masquerade",
        "NODE-PORT-LOCAL-TCP" => "TCP NodePorts whose traffic stays on this node",
        "NODE-PORT-UDP" => "UDP NodePorts, to masquerade",
        "NODE-PORT-LOCAL-UDP" => "UDP NodePorts whose traffic stays on this node",
        "NODE-PORT-SCTP-HASH" => "SCTP NodePorts, to masquerade",
        "NODE-PORT-LOCAL-SCTP-HASH" | "NODE-PORT-LOCAL-SCTP-HAS" => {
            "SCTP NodePorts whose traffic stays on this node"
        }
        "HEALTH-CHECK-NODE-PORT" => "health-check ports, to let in",
        "IPVS-IPS" => "addresses of kube-ipvs0; rules against other ports of them use it",
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_only_look_like_kube_proxys_are_not_its_own() {
        assert_eq!(
            maker_of_chain("filter", "KUBE-ROUTER-INPUT"),
            Maker::Other("kube-router")
        );
        assert_eq!(maker_of_chain("nat", "KUBE-SVC-TOOSHORT"), Maker::Unknown);
        assert_eq!(
            maker_of_chain("nat", "KUBE-SVC-NPX46M4PTMTKRN6Y"),
            Maker::KubeProxy
        );
        assert_eq!(
            maker_of_chain("mangle", "KUBE-KUBELET-CANARY"),
            Maker::Kubelet
        );
        assert_eq!(maker_of_set("KUBE-SRC-ABC"), Maker::Other("kube-router"));
        assert_eq!(maker_of_set("KUBE-6-LOOP-BACK"), Maker::KubeProxy);
    }

    #[test]
    fn other_software_is_known_by_its_objects() {
        let chain = |name: &str| maker_of_chain("filter", name);
        for (made, who) in [
            (chain("FWDI_public"), "firewalld"),
            (chain("ufw-before-input"), "ufw"),
            (chain("DOCKER-USER"), ADMINISTRATOR),
            (chain("DOCKER-ISOLATION-STAGE-1"), "Docker"),
            (chain("CNI-ISOLATION-STAGE-1"), "nerdctl"),
            (chain("CNI-HOSTPORT-DNAT"), "portmap"),
            (chain("cali-FORWARD"), "Calico"),
            (chain("ts-forward"), "Tailscale"),
            (chain("AWS-SNAT-CHAIN-0"), "AWS VPC CNI"),
            (chain("ISTIO_REDIRECT"), "Istio"),
            (chain("f2b-sshd"), "fail2ban"),
            (chain("LOGDROPOUT"), CSF),
            (maker_of_table("talos"), "Talos"),
            (maker_of_table("mullvad"), "Mullvad VPN"),
            (maker_of_link("wg0-mullvad"), "Mullvad VPN"),
            (chain("nixos-fw-log-refuse"), NIXOS),
            (maker_of_table("nixos-fw"), NIXOS),
            (maker_of_rule("-i eth0 -j DROP", Some("nordvpn")), "NordVPN"),
            (maker_of_table("io.systemd.nat"), "systemd-networkd"),
            (maker_of_table("nm-shared-eth1"), "NetworkManager"),
            (maker_of_table("wg-quick-wg0"), "WireGuard"),
            (maker_of_link("cali0a1b2c3d4e5"), "Calico"),
            (maker_of_link("flannel.1"), "flannel"),
            (maker_of_link("tailscale0"), "Tailscale"),
            (
                maker_of_rule("-j ACCEPT", Some("flanneld forward")),
                "flannel",
            ),
            (
                maker_of_rule("-s 10.244.0.0/16 ! -d 224.0.0.0/4 -j MASQUERADE", None),
                "flannel",
            ),
            (
                maker_of_rule("-j ACCEPT", Some("cali:S93hcgKJrXEqnTfs")),
                "Calico",
            ),
            (
                maker_of_rule("-m mark --mark 0x40000/0xff0000 -j ACCEPT", None),
                "Tailscale",
            ),
        ] {
            assert_eq!(made, Maker::Other(who));
        }
        assert_eq!(maker_of_link("eth0"), Maker::Unknown);
        assert_eq!(
            maker_of_rule("-j ACCEPT", Some("corp: allow")),
            Maker::Unknown
        );
    }

    #[test]
    fn a_shared_name_tells_no_mode() {
        assert_eq!(modes_of("nat", "KUBE-SERVICES").len(), 2);
        assert_eq!(modes_of("filter", "KUBE-SERVICES"), [Mode::Iptables]);
        assert!(modes_of("nat", "KUBE-PROXY-CANARY").is_empty());
    }

    #[test]
    fn only_the_five_chains_of_portals_are_the_userspace_modes() {
        assert_eq!(modes_of("nat", "KUBE-PORTALS-HOST"), [Mode::Userspace]);
        assert_eq!(
            modes_of("filter", "KUBE-NODEPORT-NON-LOCAL"),
            [Mode::Userspace]
        );
        for (table, chain) in [
            ("filter", "KUBE-PORTALS-HOST"),
            ("nat", "KUBE-NODEPORT-NON-LOCAL"),
            ("nat", "KUBE-PORTALS-MINE"),
        ] {
            assert_eq!(
                maker_of_chain(table, chain),
                Maker::Unknown,
                "{table} {chain}"
            );
        }
    }

    #[test]
    fn rules_of_node_local_dns_and_bridges_of_docker_are_known_by_their_form() {
        let dns = Maker::Other(NODE_LOCAL_DNS);
        for (rule, maker) in [
            (
                "-A PREROUTING -d 10.96.0.10/32 -p udp -m udp --dport 53 -j NOTRACK",
                dns,
            ),
            (
                "-A OUTPUT -s 169.254.20.10/32 -p tcp -m tcp --sport 53 -j CT --notrack",
                dns,
            ),
            (
                "-A PREROUTING -d 10.96.0.0/12 -p udp -m udp --dport 53 -j NOTRACK",
                Maker::Unknown,
            ),
            (
                "-A PREROUTING -d 10.96.0.10/32 -p udp -m udp --dport 53 -j DROP",
                Maker::Unknown,
            ),
            (
                "-A PREROUTING -d 10.96.0.10/32 -p udp -m udp --dport 123 -j NOTRACK",
                Maker::Unknown,
            ),
        ] {
            assert_eq!(maker_of_rule(rule, None), maker, "{rule}");
        }
        assert_eq!(docker_network("br-5f3c0a1e22aa"), Some("5f3c0a1e22aa"));
        for other in ["br-lan", "br-5f3c0a1e22aaff", "br-5F3C0A1E22AA", "docker0"] {
            assert_eq!(docker_network(other), None, "{other}");
        }
        assert_eq!(maker_of_link("br-5f3c0a1e22aa"), Maker::Other(DOCKER));
    }
}
