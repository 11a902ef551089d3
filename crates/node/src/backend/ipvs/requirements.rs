//! What the ipvs mode requires of a node.

use crate::backend::requirements::{By, Condition, Module, Setup, Sysctl, Want};
use crate::cluster::release::Change;
use crate::evidence::Kernel;

/// The oldest kernel that kube-proxy supports in ipvs mode.
pub(in crate::backend) const OLDEST_KERNEL: Kernel = Kernel(4, 1);

/// The first kernel that reschedules connections from reused client ports without delay.
const REUSE_FIXED: Kernel = Kernel(5, 9);

/// Modules of virtual servers, sets and the rules that ask for them.
pub(in crate::backend) const MODULES: &[Module] = &[
    Module::new("dummy", "kube-ipvs0, which holds the Service addresses"),
    Module::new("ip_set", "IP sets"),
    Module::new("ip_set_bitmap_port", "sets of NodePorts"),
    Module::new("ip_set_hash_ip", "sets of addresses"),
    Module::new("ip_set_hash_ipport", "sets of addresses and ports"),
    Module::new(
        "ip_set_hash_ipportip",
        "sets of endpoints, for hairpin traffic",
    ),
    Module::new("ip_set_hash_ipportnet", "sets of source ranges"),
    Module::new("ip_vs", "virtual servers"),
    Module::scheduler("the configured scheduler"),
    Module::new("ip_vs_sh", "scheduler sh").when(Condition::Before(Change::AnyScheduler)),
    Module::new("ip_vs_wrr", "scheduler wrr").when(Condition::Before(Change::AnyScheduler)),
    Module::new("xt_ipvs", "matches the virtual server of a packet").when(Condition::SourceRanges),
    Module::new("xt_physdev", "matches bridge ports").when(Condition::ExternalIps),
    Module::new("xt_set", "matches IP sets"),
];

/// Returns the sysctls of the mode: the ones that kube-proxy's `NewProxier` sets, and the one that it leaves alone.
pub(crate) fn sysctls(setup: &Setup<'_>) -> Vec<Sysctl> {
    let is = |key, value, purpose| Sysctl {
        key,
        want: Want::Is(value),
        by: By::KubeProxy,
        purpose,
    };
    let mut all = vec![
        is("net.ipv4.ip_forward", 1, "forwards packets between links"),
        is(
            "net.ipv4.vs.conntrack",
            1,
            "tracks IPVS connections, which masquerading needs",
        ),
        is(
            "net.ipv4.vs.expire_nodest_conn",
            1,
            "ends connections to removed real servers",
        ),
        is(
            "net.ipv4.vs.expire_quiescent_template",
            1,
            "ends affinity to real servers of weight 0",
        ),
    ];
    all.extend(setup.kernel.and_then(conn_reuse_mode));
    if setup.config.is_some_and(|config| config.ipvs.strict_arp) {
        let ignore = "strictARP: answers only for addresses of the receiving link";
        all.push(is("net.ipv4.conf.all.arp_ignore", 1, ignore));
        let announce = "strictARP: announces only addresses of the sending link";
        all.push(is("net.ipv4.conf.all.arp_announce", 2, announce));
    }
    all
}

/// Returns how `kernel` should treat a client port that is used again: kube-proxy sets 0 on kernels that would delay
/// such connections by a second, and leaves newer ones at their default of 1. Kernels before 4.1 lack the sysctl.
///
/// Source: `connReuseMinSupportedKernelVersion` and `connReuseFixedKernelVersion` in kube-proxy.
pub fn conn_reuse_mode(kernel: Kernel) -> Option<Sysctl> {
    let (value, by, purpose) = if kernel < OLDEST_KERNEL {
        return None;
    } else if kernel < REUSE_FIXED {
        let purpose = "avoids delays for reused client ports";
        (0, By::KubeProxy, purpose)
    } else {
        (1, By::Advice, "reschedules reused client ports")
    };
    Some(Sysctl {
        key: "net.ipv4.vs.conn_reuse_mode",
        want: Want::Is(value),
        by,
        purpose,
    })
}
