//! Kernel modules and settings, and why they matter.

use serde::Serialize;

use super::{Asked, Gaps};
use crate::backend::Mode;
use crate::node::NodeSnapshot;
use crate::node::modules::Standing;
use crate::render::Page;

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct ModuleRow {
    module: &'static str,
    standing: &'static str,
    modes: &'static [Mode],
    why: &'static str,
}

const ALL: &[Mode] = &Mode::ALL;
const RULES: &[Mode] = &[Mode::Iptables, Mode::Ipvs];
const IPVS: &[Mode] = &[Mode::Ipvs];
const NFT: &[Mode] = &[Mode::Nftables];

/// Modules by name, with the modes that need them.
const MODULES: [(&str, &[Mode], &str); 15] = [
    (
        "br_netfilter",
        ALL,
        "shows packets inside a bridge to the rules",
    ),
    ("dummy", IPVS, "kube-ipvs0, which holds Service addresses"),
    ("ip_set", IPVS, "IP sets"),
    ("ip_set_bitmap_port", IPVS, "sets of NodePorts"),
    ("ip_set_hash_ip", IPVS, "sets of addresses"),
    ("ip_set_hash_ipport", IPVS, "sets of addresses and ports"),
    ("ip_tables", RULES, "rules of the legacy back end"),
    ("ip_vs", IPVS, "virtual servers"),
    ("ip_vs_rr", IPVS, "the default scheduler"),
    ("ip_vs_sh", IPVS, "the scheduler kube-proxy also asks for"),
    ("ip_vs_wrr", IPVS, "the scheduler kube-proxy also asks for"),
    (
        "nf_conntrack",
        ALL,
        "tracks connections; every translation needs it",
    ),
    ("nf_nat", ALL, "translates addresses"),
    (
        "nf_tables",
        NFT,
        "the nftables table; also rules of the nft back end",
    ),
    ("xt_set", IPVS, "lets rules ask IP sets"),
];

pub(super) fn modules(
    node: &NodeSnapshot<'_>,
    asked: Asked<'_>,
    gaps: &mut Gaps,
) -> Vec<ModuleRow> {
    let Some(modules) = gaps.take(node.modules()) else {
        return Vec::new();
    };
    let wanted = MODULES.iter().filter(|of| asked.wants(None, &[of.0]));
    let rows = wanted.map(|&(module, modes, why)| ModuleRow {
        module,
        standing: match modules.standing(module) {
            Standing::Loaded => "loaded",
            Standing::BuiltIn => "built-in",
            Standing::Loadable => "loadable",
            Standing::Blocked => "blocked",
            Standing::Missing => "missing",
            Standing::Unknown => "unknown",
        },
        modes,
        why,
    });
    rows.collect()
}

fn names(modes: &[Mode]) -> String {
    if modes.len() == Mode::ALL.len() {
        return "all".to_owned();
    }
    let names: Vec<_> = modes.iter().map(|mode| mode.name()).collect();
    names.join(",")
}

pub(super) fn page_modules(rows: &[ModuleRow], page: &mut Page) {
    let cells = rows.iter().map(|row| {
        let (standing, why) = (row.standing.to_owned(), row.why.to_owned());
        vec![row.module.to_owned(), standing, names(row.modes), why]
    });
    let cells: Vec<_> = cells.collect();
    page.grid(
        &[("MODULE", 0), ("STANDING", 0), ("MODES", 1), ("FOR", 2)],
        &cells,
    );
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct SysctlRow {
    sysctl: &'static str,
    value: Option<String>,
    wanted: &'static str,
    modes: &'static [Mode],
    as_wanted: Option<bool>,
}

/// Settings by name: the value wanted, and the modes that want it.
const SYSCTLS: [(&str, &str, &[Mode]); 9] = [
    ("net.bridge.bridge-nf-call-ip6tables", "1", ALL),
    ("net.bridge.bridge-nf-call-iptables", "1", ALL),
    ("net.ipv4.conf.all.route_localnet", "1", &[Mode::Iptables]),
    ("net.ipv4.ip_forward", "1", ALL),
    ("net.ipv4.vs.conn_reuse_mode", "0", IPVS),
    ("net.ipv4.vs.conntrack", "1", IPVS),
    ("net.ipv4.vs.expire_nodest_conn", "1", IPVS),
    ("net.ipv4.vs.expire_quiescent_template", "1", IPVS),
    ("net.ipv6.conf.all.forwarding", "1", ALL),
];

pub(super) fn sysctls(
    node: &NodeSnapshot<'_>,
    asked: Asked<'_>,
    gaps: &mut Gaps,
) -> Vec<SysctlRow> {
    let Some(sysctl) = gaps.take(node.sysctl()) else {
        return Vec::new();
    };
    let named = SYSCTLS.iter().filter(|of| asked.wants(None, &[of.0]));
    let rows = named.map(|&(name, wanted, modes)| {
        let value = sysctl.get(name);
        SysctlRow {
            sysctl: name,
            value: value.map(str::to_owned),
            wanted,
            modes,
            as_wanted: value.map(|value| value == wanted),
        }
    });
    rows.collect()
}

pub(super) fn page_sysctls(rows: &[SysctlRow], page: &mut Page) {
    let cells = rows.iter().map(|row| {
        let note = match row.as_wanted {
            Some(true) => "",
            Some(false) => "differs",
            None => "not there",
        };
        vec![
            row.sysctl.to_owned(),
            row.value.clone().unwrap_or_else(|| "-".to_owned()),
            row.wanted.to_owned(),
            names(row.modes),
            note.to_owned(),
        ]
    });
    let cells: Vec<_> = cells.collect();
    page.grid(
        &[
            ("SYSCTL", 0),
            ("VALUE", 0),
            ("WANTED", 0),
            ("BY MODE", 1),
            ("", 2),
        ],
        &cells,
    );
}
