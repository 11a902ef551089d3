//! The kernel modules that each mode uses.

use std::borrow::Cow;

use crate::backend::Mode;

/// A module that a mode uses.
#[derive(Clone, Copy, Debug)]
pub struct Wanted {
    /// The name; see [`Wanted::name`].
    module: &'static str,
    /// The modes that use it.
    pub modes: &'static [Mode],
    /// Where it is needed at all; empty for everywhere.
    pub only: &'static str,
    /// What for.
    pub purpose: &'static str,
}

impl Wanted {
    /// Returns the module's name, where virtual servers are to have `scheduler`.
    pub fn name(&self, scheduler: &str) -> Cow<'static, str> {
        if self.module == SCHEDULER {
            Cow::Owned(format!("{SCHEDULER}{scheduler}"))
        } else {
            Cow::Borrowed(self.module)
        }
    }
}

/// Returns the names of the modules that `mode` cannot do without on any node, where virtual servers are to have
/// `scheduler`.
pub fn always(mode: Mode, scheduler: &str) -> Vec<Cow<'static, str>> {
    let wanted = MODULES.iter().filter(|of| of.modes.contains(&mode));
    let wanted = wanted.filter(|of| matches!(of.only, "" | "IPv4"));
    wanted.map(|of| of.name(scheduler)).collect()
}

const fn wanted(
    module: &'static str,
    modes: &'static [Mode],
    only: &'static str,
    purpose: &'static str,
) -> Wanted {
    Wanted {
        module,
        modes,
        only,
        purpose,
    }
}

const ALL: &[Mode] = &Mode::ALL;
const RULES: &[Mode] = &[Mode::Iptables, Mode::Ipvs];
const IPTABLES: &[Mode] = &[Mode::Iptables];
const IPVS: &[Mode] = &[Mode::Ipvs];
const NFT: &[Mode] = &[Mode::Nftables];

/// Stands for the scheduler's module.
const SCHEDULER: &str = "ip_vs_";

/// What is loaded, by the modes that use it, with where it matters and what for. Most load by themselves where loading is
/// allowed.
///
/// Source: the matches, targets, expressions and links that kube-proxy's `pkg/proxy` asks for.
#[rustfmt::skip]
pub const MODULES: &[Wanted] = &[
    wanted("br_netfilter", ALL, "pods on a Linux bridge", "shows bridged packets to the rules"),
    wanted("dummy", IPVS, "", "kube-ipvs0, which holds Service addresses"),
    wanted("ip_set", IPVS, "", "IP sets"),
    wanted("ip_set_bitmap_port", IPVS, "", "sets of NodePorts"),
    wanted("ip_set_hash_ip", IPVS, "", "sets of addresses"),
    wanted("ip_set_hash_ipport", IPVS, "", "sets of addresses and ports"),
    wanted("ip_set_hash_ipportip", IPVS, "", "sets of endpoints that reach themselves"),
    wanted("ip_set_hash_ipportnet", IPVS, "", "sets of source ranges"),
    wanted("ip_vs", IPVS, "", "virtual servers"),
    wanted(SCHEDULER, IPVS, "", "the scheduler kube-proxy is configured for"),
    wanted("ip_vs_sh", IPVS, "before 1.27", "a scheduler that older releases insist on"),
    wanted("ip_vs_wrr", IPVS, "before 1.27", "a scheduler that older releases insist on"),
    wanted("ipt_REJECT", RULES, "IPv4", "refuses packets"),
    wanted("ip6t_REJECT", RULES, "IPv6", "refuses packets"),
    wanted("nf_conntrack", ALL, "", "tracks connections; every translation needs it"),
    wanted("nf_nat", ALL, "", "translates addresses"),
    wanted("nf_tables", NFT, "", "the nftables table"),
    wanted("nft_chain_nat", NFT, "", "chains that translate"),
    wanted("nft_ct", NFT, "", "asks for the state of a connection"),
    wanted("nft_fib", NFT, "", "asks whether an address is the node's"),
    wanted("nft_fib_ipv4", NFT, "IPv4", "asks whether an address is the node's"),
    wanted("nft_fib_ipv6", NFT, "IPv6", "asks whether an address is the node's"),
    wanted("nft_masq", NFT, "", "masquerades"),
    wanted("nft_nat", NFT, "", "translates to an endpoint"),
    wanted("nft_numgen", NFT, "", "chooses an endpoint by chance"),
    wanted("nft_reject", NFT, "", "refuses packets"),
    wanted("nft_reject_ipv4", NFT, "IPv4", "refuses packets"),
    wanted("nft_reject_ipv6", NFT, "IPv6", "refuses packets"),
    wanted("xt_MASQUERADE", RULES, "", "masquerades"),
    wanted("xt_addrtype", RULES, "", "asks whether an address is the node's"),
    wanted("xt_comment", RULES, "", "names the Services beside the rules"),
    wanted("xt_conntrack", RULES, "", "asks for the state of a connection"),
    wanted("xt_ipvs", IPVS, "source ranges", "asks for the virtual server of a packet"),
    wanted("xt_mark", RULES, "", "marks what is to be masqueraded"),
    wanted("xt_nat", IPTABLES, "", "translates to an endpoint"),
    wanted("xt_nfacct", IPTABLES, "1.32 and newer", "counts dropped packets"),
    wanted("xt_physdev", IPVS, "external IPs", "asks for the port of a bridge"),
    wanted("xt_recent", IPTABLES, "session affinity", "remembers clients"),
    wanted("xt_set", IPVS, "", "lets rules ask IP sets"),
    wanted("xt_statistic", IPTABLES, "", "chooses an endpoint by chance"),
];
