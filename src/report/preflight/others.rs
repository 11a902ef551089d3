//! What a mode needs on this node beside modules.

use serde::Deserialize;

use super::{Area, Need, Status};
use crate::backend::Mode;
use crate::check::Facts;
use crate::cluster::validate;
use crate::cluster::version::Version;
use crate::evidence::{Gap, Item};
use crate::report::show::sysctls::{By, wished};

fn need(area: Area, name: &str, status: Status, state: &str, note: &str) -> Need {
    Need {
        area,
        name: name.to_owned(),
        status,
        state: state.to_owned(),
        purpose: "",
        note: note.to_owned(),
    }
}

impl Need {
    fn for_what(self, purpose: &'static str) -> Self {
        Self { purpose, ..self }
    }
}

/// Returns the least kernel that kube-proxy starts on in the mode.
const fn least_kernel(to: Mode) -> Option<(u16, u16)> {
    match to {
        Mode::Iptables => None,
        Mode::Ipvs => Some((4, 1)),
        Mode::Nftables => Some((5, 13)),
    }
}

pub(super) fn kernel(facts: &Facts<'_>, to: Mode) -> Vec<Need> {
    let row =
        |status, state: &str, note: &str| vec![need(Area::Kernel, "release", status, state, note)];
    let release = match facts.node.kernel_release() {
        Ok(release) => release,
        Err(gap) => return row(Status::Unknown, "unknown", &gap.to_string()),
    };
    let Some((major, minor)) = least_kernel(to) else {
        return row(Status::Ready, release, "any will do");
    };
    let note = format!("{major}.{minor} or newer");
    match release.parse::<Version>() {
        Ok(version) if version.at_least(major, minor) => row(Status::Ready, release, &note),
        Ok(_) => row(Status::Fails, release, &note),
        Err(_) => row(
            Status::Unknown,
            release,
            &format!("{note}; this is no release"),
        ),
    }
}

/// A program that a mode is programmed with.
struct Tool {
    name: &'static str,
    item: Item,
    modes: &'static [Mode],
    /// The least version, and who says so.
    least: Option<(Version, &'static str)>,
    purpose: &'static str,
}

const TOOLS: &[Tool] = &[
    Tool {
        name: "iptables",
        item: Item::IptablesVersion,
        modes: &[Mode::Iptables, Mode::Ipvs],
        least: None,
        purpose: "writes the rules",
    },
    Tool {
        name: "ipset",
        item: Item::IpsetVersion,
        modes: &[Mode::Ipvs],
        least: Some((Version::new(6, 0, 0), "6.0 or newer")),
        purpose: "writes the sets",
    },
    Tool {
        name: "nft",
        item: Item::NftVersion,
        modes: &[Mode::Nftables],
        least: Some((Version::new(1, 0, 1), "1.0.1 or newer")),
        purpose: "writes the table",
    },
    Tool {
        name: "conntrack",
        item: Item::ConntrackVersion,
        modes: &Mode::ALL,
        least: None,
        purpose: "ends UDP flows, before kube-proxy 1.32",
    },
];

pub(super) fn tools(facts: &Facts<'_>, to: Mode) -> Vec<Need> {
    // Newer releases end flows by netlink.
    let newer = facts.version().is_ok_and(|of| of.version.at_least(1, 32));
    // kube-proxy's image brings tools of its own; those of the host are kpx's, and those of a kube-proxy without an image.
    let own = "kube-proxy's image has its own";
    let tools = TOOLS.iter().filter(|tool| tool.modes.contains(&to));
    let tools = tools.filter(|tool| !(newer && tool.name == "conntrack"));
    let rows = tools.map(|tool| {
        let row = |status, state: &str, note: &str| {
            need(Area::Tool, tool.name, status, state, note).for_what(tool.purpose)
        };
        let text = match facts.node.evidence().text(tool.item) {
            Ok(text) => text,
            Err(Gap::Absent(..)) => return row(Status::Risk, "missing", own),
            Err(Gap::NotCollected(_)) => return row(Status::Risk, "not recorded", own),
            Err(Gap::NotApplicable(why)) => return row(Status::Risk, "not asked", &why),
            Err(gap) => return row(Status::Risk, "unknown", &format!("{gap}; {own}")),
        };
        let Some(shown) = version(text) else {
            let note = format!("{:?} names no version; {own}", text.trim());
            return row(Status::Risk, "unknown", &note);
        };
        match tool.least {
            Some((least, words)) if shown.parse().is_ok_and(|of: Version| of < least) => {
                row(Status::Risk, &shown, &format!("{words} is needed; {own}"))
            }
            Some((_, words)) => row(Status::Ready, &shown, words),
            None => row(Status::Ready, &shown, ""),
        }
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

pub(super) fn sysctls(facts: &Facts<'_>, to: Mode) -> Vec<Need> {
    let sysctl = match facts.node.sysctl() {
        Ok(sysctl) => sysctl,
        Err(gap) => {
            let all = "all of them";
            return vec![need(
                Area::Sysctl,
                all,
                Status::Unknown,
                "unknown",
                &gap.to_string(),
            )];
        }
    };
    let config = facts.configuration().ok();
    let rows = wished(facts.node, sysctl, config.as_ref(), Some(to)).into_iter();
    let rows = rows.filter(|row| row.modes.contains(&to)).map(|row| {
        let (status, note) = match (row.as_wanted, row.by) {
            (Some(true), _) => (Status::Ready, String::new()),
            (_, By::KubeProxy) => (Status::Ready, format!("kube-proxy writes {}", row.wanted)),
            (None, By::Network) => (Status::Unknown, format!("{} is needed", row.wanted)),
            (Some(false), By::Network) => (Status::Fails, format!("{} is needed", row.wanted)),
            (_, By::Advice) => (Status::Risk, format!("{} is better", row.wanted)),
        };
        let state = row.value.as_deref().unwrap_or("-");
        need(Area::Sysctl, row.sysctl, status, state, &note).for_what(row.purpose)
    });
    rows.collect()
}

/// What of the host kube-proxy's pod must see, in which modes.
const MOUNTS: &[(&str, &[Mode], &str)] = &[
    (
        "/run/xtables.lock",
        &[Mode::Iptables, Mode::Ipvs],
        "the lock that all writers of rules share",
    ),
    (
        "/lib/modules",
        &[Mode::Ipvs],
        "lets kube-proxy load ip_vs by itself",
    ),
];

pub(super) fn mounts(facts: &Facts<'_>, to: Mode) -> Vec<Need> {
    let sets = match facts.node.daemon_sets() {
        Ok(sets) => sets,
        // Without a cluster there is no pod to look at.
        Err(Gap::NotApplicable(_)) => return Vec::new(),
        Err(gap) => {
            let note = gap.to_string();
            return vec![need(
                Area::Mount,
                "DaemonSet",
                Status::Unknown,
                "unknown",
                &note,
            )];
        }
    };
    let set = sets
        .iter()
        .find(|set| set.metadata.name.starts_with("kube-proxy"));
    let Some(set) = set else {
        return Vec::new();
    };
    let volumes = &set.spec.template.spec.volumes;
    let mounts = |path: &str| {
        let mut paths = volumes
            .iter()
            .filter_map(|of| of.pointer("/hostPath/path")?.as_str());
        paths.any(|mounted| mounted == path || format!("/var{path}") == mounted)
    };
    let rows = MOUNTS.iter().filter(|(_, modes, _)| modes.contains(&to));
    let rows = rows.map(|(path, _, purpose)| {
        if mounts(path) {
            return need(Area::Mount, path, Status::Ready, "mounted", "").for_what(purpose);
        }
        need(Area::Mount, path, Status::Risk, "not mounted", "").for_what(purpose)
    });
    rows.collect()
}

#[derive(Deserialize)]
struct Reviews {
    items: Vec<Review>,
}

#[derive(Deserialize)]
struct Review {
    spec: ReviewSpec,
    #[serde(default)]
    status: ReviewStatus,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ReviewSpec {
    resource_attributes: Attributes,
}

#[derive(Deserialize)]
#[serde(default)]
#[derive(Default)]
struct Attributes {
    verb: String,
    group: String,
    resource: String,
    namespace: String,
    name: String,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct ReviewStatus {
    allowed: bool,
    reason: String,
}

/// Returns the fields that kube-proxy refuses when it starts in mode `to`.
pub(super) fn configuration(facts: &Facts<'_>, to: Mode) -> Vec<Need> {
    let text = facts.node.evidence().text(Item::ProxyConfig);
    let refused = text.and_then(|text| validate::refused(text, to));
    // What cannot be read is told by what reads it.
    let refused = refused.unwrap_or_default().into_iter();
    let refused = refused.filter(|of| of.field != "mode");
    let needs = refused.map(|of| {
        let state = of.value.clone();
        let note = format!("kube-proxy does not start with it: {}", of.allowed);
        need(Area::Configuration, &of.field, Status::Fails, &state, &note)
    });
    needs.collect()
}

pub(super) fn access(facts: &Facts<'_>) -> Vec<Need> {
    let unknown = |note: &str| {
        let status = Status::Unknown;
        vec![need(Area::Access, "all of it", status, "unknown", note)]
    };
    let text = match facts.node.evidence().text(Item::Access) {
        Ok(text) => text,
        // Without a cluster there are no rights, and recordings seldom have them.
        Err(Gap::NotApplicable(_) | Gap::NotCollected(_)) => return Vec::new(),
        Err(gap) => return unknown(&gap.to_string()),
    };
    let reviews: Reviews = match serde_json::from_str(text) {
        Ok(reviews) => reviews,
        Err(e) => return unknown(&format!("{} cannot be read: {e}", Item::Access)),
    };
    let rows = reviews.items.into_iter().map(|review| {
        let of = review.spec.resource_attributes;
        let mut name = format!("{} {}", of.verb, of.resource);
        if !of.group.is_empty() {
            name = format!("{name}.{}", of.group);
        }
        if !of.name.is_empty() {
            name = format!("{name} {}", of.name);
        }
        if !of.namespace.is_empty() {
            name = format!("{name} in {}", of.namespace);
        }
        let looks = matches!(of.verb.as_str(), "get" | "list");
        let purpose = if looks {
            "to look"
        } else {
            "to change the mode"
        };
        let (status, state) = if review.status.allowed {
            (Status::Ready, "allowed")
        } else {
            (Status::Risk, "denied")
        };
        need(Area::Access, &name, status, state, &review.status.reason).for_what(purpose)
    });
    rows.collect()
}
