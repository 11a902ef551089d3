//! The owner of a chain or set, by its name.
//!
//! Source: the chain constants of kube-proxy's `pkg/proxy/iptables`, `pkg/proxy/ipvs` and `pkg/proxy/userspace`, and of the kubelet's
//! `kubelet_network_linux.go`; other names as their projects document them.

use serde::Serialize;

use crate::backend::Mode;
use crate::backend::iptables::{names, portals};

/// Who made an object.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
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

/// Chains that `iptables` mode alone writes, beside those of Services: table, name.
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

/// Beginnings of other software's names; the first that fits counts.
const OTHERS: [(&str, &str); 19] = [
    ("KUBE-ROUTER-", "kube-router"),
    ("KUBE-NWPLCY-", "kube-router"),
    ("KUBE-POD-FW-", "kube-router"),
    ("KUBE-SRC-", "kube-router"),
    ("KUBE-DST-", "kube-router"),
    ("KUBE-HOSTPORTS", "host ports"),
    ("KUBE-HP-", "host ports"),
    ("CNI-", "a CNI plugin"),
    ("cali", "Calico"),
    ("CILIUM_", "Cilium"),
    ("OLD_CILIUM_", "Cilium"),
    ("FLANNEL-", "flannel"),
    ("WEAVE", "Weave Net"),
    ("weave", "Weave Net"),
    ("ANTREA-", "Antrea"),
    ("DOCKER", "Docker"),
    ("LIBVIRT_", "libvirt"),
    ("f2b-", "fail2ban"),
    ("ufw", "ufw"),
];

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
    match name {
        "kube-proxy" => Maker::KubeProxy,
        "cni_hostport" | "cni_plugins_masquerade" => Maker::Other("a CNI plugin"),
        "firewalld" => Maker::Other("firewalld"),
        // iptables-nft keeps its rules here; the chains show their owner.
        _ => other(name),
    }
}

/// Returns the beginning of `name` that shows other software as its maker.
pub fn prefix_of(name: &str) -> Option<&'static str> {
    let mut prefixes = OTHERS.iter().map(|(prefix, _)| *prefix);
    prefixes.find(|prefix| name.starts_with(prefix))
}

fn other(name: &str) -> Maker {
    OTHERS
        .iter()
        .find(|(prefix, _)| name.starts_with(prefix))
        .map_or(Maker::Unknown, |&(_, who)| Maker::Other(who))
}

/// Returns what kube-proxy's ipvs mode uses the IP set `name` for; `None` if the set is not kube-proxy's.
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
}
