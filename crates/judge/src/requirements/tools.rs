//! The tools of the host that write a mode's state.

use super::{Area, Need, Status};
use crate::check::Facts;
use kpx_node::backend::Mode;
use kpx_node::cluster::release::Change;
use kpx_node::cluster::version::Version;
use kpx_node::evidence::{Gap, Item};

/// A program that writes a mode's state.
struct Tool {
    name: &'static str,
    item: Item,
    modes: &'static [Mode],
    /// The oldest version that works.
    oldest: Option<Version>,
    purpose: &'static str,
}

const TOOLS: &[Tool] = &[
    Tool {
        name: "iptables",
        item: Item::IptablesVersion,
        modes: &[Mode::Iptables, Mode::Ipvs],
        oldest: None,
        purpose: "writes rules",
    },
    Tool {
        name: "ipset",
        item: Item::IpsetVersion,
        modes: &[Mode::Ipvs],
        oldest: Some(Version::new(6, 0, 0)),
        purpose: "writes IP sets",
    },
    Tool {
        name: "nft",
        item: Item::NftVersion,
        modes: &[Mode::Nftables],
        oldest: Some(Version::new(1, 0, 1)),
        purpose: "writes tables",
    },
    Tool {
        name: "conntrack",
        item: Item::ConntrackVersion,
        modes: &Mode::ALL,
        oldest: None,
        purpose: "deletes UDP connections, before kube-proxy 1.32",
    },
];

pub(super) fn needs(facts: &Facts<'_>, to: Mode) -> Vec<Need> {
    // Newer releases delete connections with netlink.
    let newer = facts
        .version()
        .is_ok_and(|version| version.version.has(Change::ConntrackByNetlink));
    // kpx uses the tools of the host, and so does a kube-proxy that does not run in a pod.
    let own = "kube-proxy's image has its own";
    let tools = TOOLS.iter().filter(|tool| tool.modes.contains(&to));
    let tools = tools.filter(|tool| !(newer && tool.name == "conntrack"));
    let rows = tools.map(|tool| {
        let row = |status, state: &str, note: &str| {
            Need::new(Area::Tool, tool.name, status, state, note).purpose(tool.purpose)
        };
        let text = match facts.node.evidence().text(tool.item) {
            Ok(text) => text,
            Err(Gap::Absent(..)) => return row(Status::Risk, "missing", own),
            Err(Gap::NotCollected(_)) => return row(Status::Risk, "not in the bundle", own),
            Err(Gap::NotApplicable(why)) => return row(Status::Risk, "not checked", &why),
            Err(gap) => return row(Status::Risk, "unknown", &format!("{gap}; {own}")),
        };
        let Some(shown) = version(text) else {
            let note = format!("{:?} has no version; {own}", text.trim());
            return row(Status::Risk, "unknown", &note);
        };
        let Some(oldest) = tool.oldest else {
            return row(Status::Ready, &shown, "");
        };
        let (major, minor, patch) = (oldest.major, oldest.minor, oldest.patch);
        let mut needed = format!("{major}.{minor}");
        if patch > 0 {
            needed = format!("{needed}.{patch}");
        }
        if shown.parse().is_ok_and(|version: Version| version < oldest) {
            let note = format!("must be {needed} or newer; {own}");
            return row(Status::Risk, &shown, &note);
        }
        row(Status::Ready, &shown, &format!("{needed} or newer"))
    });
    rows.collect()
}

/// Returns `v7.17` of `ipset v7.17, protocol version: 7`; of iptables the back end too.
fn version(text: &str) -> Option<String> {
    let mut words = text.split_ascii_whitespace().skip(1);
    let version = words.next()?.trim_end_matches(',');
    let version = version.strip_prefix('v')?;
    let kind = words
        .next()
        .filter(|word| matches!(*word, "(nf_tables)" | "(legacy)"));
    Some(match kind {
        Some(kind) => format!("{version} {kind}"),
        None => version.to_owned(),
    })
}
