//! The sysctls that modes require, with their values on the node.

use super::{Area, Need, Status};
use crate::check::Facts;
use kpx_node::backend::Mode;
use kpx_node::backend::ipvs::model::DUMMY;
use kpx_node::backend::requirements::{self, By, Setup, Sysctl};
use kpx_node::cluster::config::ProxyConfig;
use kpx_node::desired::localhost_node_ports;
use kpx_node::net::Family;
use kpx_node::node::modules::Standing;
use kpx_node::node::{NodeSnapshot, sysctl};

/// A sysctl that modes require, with its value on the node.
#[derive(Clone, Debug)]
pub struct Wanted {
    pub sysctl: Sysctl,
    /// The modes that require it.
    pub modes: Vec<Mode>,
    /// The value; `None` if the kernel or the bundle does not have it.
    pub value: Option<String>,
}

impl Wanted {
    /// Returns whether the value is as wanted; `None` if it is unknown or not a number.
    pub fn is_met(&self) -> Option<bool> {
        let value = self.value.as_ref()?.parse().ok()?;
        Some(self.sysctl.want.is_met(value))
    }
}

/// Returns the sysctls that any mode requires, sorted by key and modes.
pub fn sysctls(
    node: &NodeSnapshot<'_>,
    have: &sysctl::Sysctl<'_>,
    config: Option<&ProxyConfig>,
) -> Vec<Wanted> {
    let bridge = have.get("net.bridge.bridge-nf-call-iptables").is_some()
        || node
            .modules()
            .is_ok_and(|all| all.standing("br_netfilter") == Standing::Loaded);
    let setup = Setup {
        config,
        kernel: node.kernel().ok(),
        localhost_node_ports: config.is_some_and(localhost_node_ports),
        ipv6: uses_ipv6(node, config),
        bridge,
    };
    let mut all: Vec<Wanted> = Vec::new();
    for mode in Mode::ALL {
        for sysctl in requirements::sysctls(mode, &setup) {
            if let Some(known) = all.iter_mut().find(|wanted| wanted.sysctl == sysctl) {
                known.modes.push(mode);
                continue;
            }
            all.push(Wanted {
                sysctl,
                modes: vec![mode],
                value: have.get(sysctl.key).map(str::to_owned),
            });
        }
    }
    all.sort_by(|a, b| (a.sysctl.key, &a.modes).cmp(&(b.sysctl.key, &b.modes)));
    all
}

/// Returns whether pods or nodes are known to have IPv6 addresses.
fn uses_ipv6(node: &NodeSnapshot<'_>, config: Option<&ProxyConfig>) -> bool {
    let configured = config.is_some_and(|config| config.cluster_cidr(Family::V6).is_some());
    let addressed = node.addresses().is_ok_and(|all| {
        let own = all.all.iter().filter(|at| at.link != DUMMY);
        let mut global = own.filter(|at| at.scope == "global");
        global.any(|at| at.addr.family() == Family::V6)
    });
    configured || addressed
}

pub(super) fn needs(facts: &Facts<'_>, to: Mode) -> Vec<Need> {
    let have = match facts.node.sysctl().and_then(sysctl::Sysctl::whole) {
        Ok(have) => have,
        Err(gap) => return vec![Need::unknown(Area::Sysctl, "all sysctls", gap.to_string())],
    };
    let config = facts.configuration().ok();
    let all = sysctls(facts.node, have, config.as_ref()).into_iter();
    // A module that is not loaded has its default values when it is loaded, and no recommended value differs from
    // these.
    let absent = |wanted: &Wanted| {
        wanted.value.is_none()
            && wanted.sysctl.by == By::Advice
            && wanted.sysctl.key.starts_with("net.ipv4.vs.")
    };
    let all = all.filter(|wanted| wanted.modes.contains(&to) && !absent(wanted));
    let needs = all.map(|wanted| {
        let Sysctl {
            key, want, purpose, ..
        } = wanted.sysctl;
        let (status, note) = match (wanted.is_met(), wanted.sysctl.by) {
            (Some(true), _) => (Status::Ready, String::new()),
            (_, By::KubeProxy) => (Status::Ready, format!("kube-proxy sets {want}")),
            (None, By::Network) => (Status::Unknown, format!("must be {want}")),
            (Some(false), By::Network) => (Status::Fails, format!("must be {want}")),
            (_, By::Advice) => (Status::Risk, format!("should be {want}")),
        };
        let state = wanted.value.as_deref().unwrap_or("-");
        Need::new(Area::Sysctl, key, status, state, note).purpose(purpose)
    });
    needs.collect()
}
