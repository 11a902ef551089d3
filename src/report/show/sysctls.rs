//! Kernel settings: what kube-proxy writes at its start, and what Services need besides.

use std::time::Duration;

use serde::Serialize;

use super::{Asked, Gaps, modes::Relevant};
use crate::backend::Mode;
use crate::backend::ipvs::model::DUMMY;
use crate::cluster::config::{ProxyConfig, go_duration};
use crate::cluster::version::Version;
use crate::evidence::{Gap, Item};
use crate::net::Family;
use crate::node::NodeSnapshot;
use crate::node::modules::Standing;
use crate::node::sysctl::Sysctl;
use crate::render::Page;

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(in crate::report) struct Row {
    pub(in crate::report) sysctl: &'static str,
    /// `null` if the kernel, or the bundle, does not have it.
    pub(in crate::report) value: Option<String>,
    pub(in crate::report) wanted: String,
    pub(in crate::report) by: By,
    pub(in crate::report) modes: Vec<Mode>,
    /// Whether the mode in force is one of them; true if that mode is not known.
    in_force: bool,
    pub(in crate::report) as_wanted: Option<bool>,
    pub(in crate::report) purpose: &'static str,
}

/// Who wants the value.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(in crate::report) enum By {
    /// kube-proxy writes it at its start.
    KubeProxy,
    /// The pod network needs it; kube-proxy leaves it alone.
    Network,
    /// It is better so.
    Advice,
}

/// A value that is wanted.
struct Wish {
    sysctl: &'static str,
    wanted: Wanted,
    by: By,
    modes: &'static [Mode],
    purpose: &'static str,
}

enum Wanted {
    Is(u64),
    AtLeast(u64),
}

const ALL: &[Mode] = &Mode::ALL;
const IPTABLES: &[Mode] = &[Mode::Iptables];
const IPVS: &[Mode] = &[Mode::Ipvs];
const NFT: &[Mode] = &[Mode::Nftables];

/// What is known of the node that wishes depend on.
struct Facts<'n> {
    config: Option<&'n ProxyConfig>,
    kernel: Option<Version>,
    v6: bool,
    bridge: bool,
}

/// Returns every wish; sources are `NewProxier` of each mode and `setupConntrack`.
#[rustfmt::skip]
fn wishes(facts: &Facts<'_>) -> Vec<Wish> {
    use Wanted::{AtLeast, Is};
    let wish = |sysctl, wanted, by, modes, purpose| Wish { sysctl, wanted, by, modes, purpose };
    let mut all = vec![
        wish("net.ipv4.ip_forward", Is(1), By::KubeProxy, IPVS, "lets packets pass from link to link"),
        wish("net.ipv4.ip_forward", Is(1), By::Network, &[Mode::Iptables, Mode::Nftables], "lets packets pass from link to link"),
        wish("net.ipv4.vs.conntrack", Is(1), By::KubeProxy, IPVS, "tracks what IPVS forwards; masquerading needs it"),
        wish("net.ipv4.vs.expire_nodest_conn", Is(1), By::KubeProxy, IPVS, "ends connections to a real server that is gone"),
        wish("net.ipv4.vs.expire_quiescent_template", Is(1), By::KubeProxy, IPVS, "ends affinity to a real server of weight 0"),
    ];
    if facts.v6 {
        all.push(wish("net.ipv6.conf.all.forwarding", Is(1), By::Network, ALL, "lets packets pass from link to link"));
    }
    if facts.bridge {
        all.push(wish("net.bridge.bridge-nf-call-iptables", Is(1), By::Network, ALL, "shows bridged packets to the rules"));
        if facts.v6 {
            all.push(wish("net.bridge.bridge-nf-call-ip6tables", Is(1), By::Network, ALL, "shows bridged packets to the rules"));
        }
    }
    // Newer kernels do right by it without help, and kube-proxy leaves it.
    if facts.kernel.is_none_or(|kernel| kernel.at_least(4, 1) && !kernel.at_least(5, 9)) && facts.kernel.is_some() {
        all.push(wish("net.ipv4.vs.conn_reuse_mode", Is(0), By::KubeProxy, IPVS, "keeps reused client ports from stalling"));
    }
    let Some(config) = facts.config else { return all };
    if config.iptables.localhost_node_ports.unwrap_or(true) {
        all.push(wish("net.ipv4.conf.all.route_localnet", Is(1), By::KubeProxy, IPTABLES, "lets NodePorts answer on 127.0.0.1"));
    }
    if config.ipvs.strict_arp {
        all.push(wish("net.ipv4.conf.all.arp_ignore", Is(1), By::KubeProxy, IPVS, "strictARP: answers for a link's own addresses alone"));
        all.push(wish("net.ipv4.conf.all.arp_announce", Is(2), By::KubeProxy, IPVS, "strictARP: announces a link's own addresses alone"));
    }
    let conntrack = &config.conntrack;
    if conntrack.max_per_core != Some(0) {
        let least = u64::from(conntrack.min.unwrap_or(131_072));
        all.push(wish("net.netfilter.nf_conntrack_max", AtLeast(least), By::KubeProxy, ALL, "connections at most; also a figure per CPU"));
    }
    let seconds = |text: Option<&str>, default: u64| match text.and_then(go_duration) {
        None => Some(default).filter(|&seconds| seconds > 0),
        Some(Duration::ZERO) => None,
        Some(time) => Some(time.as_secs()),
    };
    let timeouts = [
        ("net.netfilter.nf_conntrack_tcp_timeout_established", conntrack.tcp_established_timeout.as_deref(), 86400, "forgets an idle connection"),
        ("net.netfilter.nf_conntrack_tcp_timeout_close_wait", conntrack.tcp_close_wait_timeout.as_deref(), 3600, "forgets a half-closed connection"),
        ("net.netfilter.nf_conntrack_udp_timeout", conntrack.udp_timeout.as_deref(), 0, "forgets an idle UDP flow"),
        ("net.netfilter.nf_conntrack_udp_timeout_stream", conntrack.udp_stream_timeout.as_deref(), 0, "forgets an idle UDP flow"),
    ];
    for (sysctl, text, default, purpose) in timeouts {
        if let Some(seconds) = seconds(text, default) {
            all.push(wish(sysctl, Is(seconds), By::KubeProxy, ALL, purpose));
        }
    }
    let liberal = "net.netfilter.nf_conntrack_tcp_be_liberal";
    if conntrack.tcp_be_liberal {
        all.push(wish(liberal, Is(1), By::KubeProxy, ALL, "bears with packets out of window"));
    } else {
        all.push(wish(liberal, Is(1), By::Advice, NFT, "no rule drops invalid packets in this mode: they reset connections"));
    }
    all
}

pub(super) fn rows(
    node: &NodeSnapshot<'_>,
    asked: Asked<'_>,
    relevant: &Relevant,
    gaps: &mut Gaps,
) -> Vec<Row> {
    let Some(sysctl) = gaps.take(node.sysctl()) else {
        return Vec::new();
    };
    let current = relevant.current();
    let config = gaps.take(node.proxy_config());
    let kernel = node.kernel_release();
    if current.is_none_or(|mode| mode == Mode::Ipvs)
        && let Err(gap) = &kernel
    {
        gaps.add(gap.clone());
    }
    let mut rows = wished(node, sysctl, config, current);
    rows.retain(|row| {
        let v6 = row.sysctl.contains("ipv6") || row.sysctl.ends_with("ip6tables");
        let family = if v6 { Family::V6 } else { Family::V4 };
        let of_both = row.sysctl.starts_with("net.netfilter");
        asked.wants(None, &[row.sysctl]) && (of_both || asked.takes(family))
    });
    for row in rows
        .iter()
        .filter(|row| row.in_force && row.value.is_none())
    {
        gaps.add(Gap::Absent(
            Item::Sysctl,
            format!("{} is not in it", row.sysctl),
        ));
    }
    rows
}

/// Returns what each mode wants of the kernel settings, beside what is set, where the mode in force is `current`.
pub(in crate::report) fn wished(
    node: &NodeSnapshot<'_>,
    sysctl: &Sysctl<'_>,
    config: Option<&ProxyConfig>,
    current: Option<Mode>,
) -> Vec<Row> {
    let bridged = sysctl.get("net.bridge.bridge-nf-call-iptables").is_some()
        || node
            .modules()
            .is_ok_and(|all| all.standing("br_netfilter") == Standing::Loaded);
    let facts = Facts {
        config,
        kernel: node
            .kernel_release()
            .ok()
            .and_then(|release| release.parse().ok()),
        v6: takes_v6(node, config),
        bridge: bridged,
    };
    let rows = wishes(&facts).into_iter().map(|wish| {
        let value = sysctl.get(wish.sysctl);
        let number = value.and_then(|value| value.parse::<u64>().ok());
        let (wanted, as_wanted) = match wish.wanted {
            Wanted::Is(is) => (is.to_string(), number.map(|of| of == is)),
            Wanted::AtLeast(least) => (format!(">={least}"), number.map(|of| of >= least)),
        };
        Row {
            sysctl: wish.sysctl,
            value: value.map(str::to_owned),
            wanted,
            by: wish.by,
            modes: wish.modes.to_vec(),
            in_force: current.is_none_or(|current| wish.modes.contains(&current)),
            as_wanted,
            purpose: wish.purpose,
        }
    });
    let mut rows: Vec<_> = rows.collect();
    rows.sort_by(|a, b| (a.sysctl, &a.modes).cmp(&(b.sysctl, &b.modes)));
    rows
}

/// Returns whether pods or nodes have IPv6 addresses, as far as anything says so.
fn takes_v6(node: &NodeSnapshot<'_>, config: Option<&ProxyConfig>) -> bool {
    let configured = config.is_some_and(|of| of.cluster_cidr(Family::V6).is_some());
    let addressed = node.addresses().is_ok_and(|all| {
        let own = all.all.iter().filter(|at| at.link != DUMMY);
        let global = own.filter(|at| at.scope == "global");
        global
            .map(|at| at.addr.family())
            .any(|family| family == Family::V6)
    });
    configured || addressed
}

pub(super) fn page(rows: &[Row], current: Option<Mode>, named: bool, page: &mut Page) {
    let all = page.style().wide || named;
    let shown = rows.iter().filter(|row| all || row.in_force);
    let cells = shown.map(|row| {
        let note = match (row.as_wanted, row.by) {
            _ if !row.in_force => "",
            (Some(true), _) => "",
            (Some(false), By::Advice) => "ADVISED",
            (Some(false), _) => "DIFFERS",
            (None, _) => "?",
        };
        let by = match row.by {
            By::KubeProxy => "kube-proxy",
            By::Network => "the network",
            By::Advice => "kpx",
        };
        let modes: Vec<&str> = row.modes.iter().map(|mode| mode.name()).collect();
        let modes = match modes.len() {
            _ if !all && current.is_some() => String::new(),
            3 => "all".to_owned(),
            _ => modes.join(","),
        };
        let value = row.value.as_deref().unwrap_or("?");
        let cells = [
            row.sysctl,
            value,
            &row.wanted,
            note,
            by,
            &modes,
            row.purpose,
        ];
        cells.map(str::to_owned).to_vec()
    });
    let cells: Vec<_> = cells.collect();
    page.grid(
        &[
            ("SYSCTL", 0),
            ("VALUE", 0),
            ("WANTED", 0),
            ("", 0),
            ("BY", 2),
            ("MODES", 1),
            ("FOR", 3),
        ],
        &cells,
    );
    for row in rows
        .iter()
        .filter(|row| row.in_force && row.as_wanted == Some(false))
    {
        let by = match row.by {
            By::KubeProxy => "kube-proxy writes it at its start, and somebody else did since",
            By::Network => "the pod network needs it, and kube-proxy leaves it alone",
            By::Advice => "`conntrack.tcpBeLiberal` sets it",
        };
        page.para(
            &format!("{}: ", row.sysctl),
            &format!("{}; {by}", row.purpose),
        );
    }
    let hidden = rows.iter().filter(|row| !row.in_force).count();
    if !all && hidden > 0 {
        page.para("", &format!("{hidden} more matter in other modes alone (-o wide lists them, and what each is for)"));
    }
}
