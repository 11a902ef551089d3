//! The kernel modules that a mode requires.

use super::need::{Area, BRIDGE, Need, Status};
use crate::check::Facts;
use kpx_node::backend::Mode;
use kpx_node::backend::requirements::{self, Condition, Module};
use kpx_node::cluster::Service;
use kpx_node::cluster::release::Change;
use kpx_node::cluster::version::Version;
use kpx_node::evidence::{Item, Kernel};
use kpx_node::net::Family;
use kpx_node::node::modules::{Modules, Standing};

/// The first kernel with one masquerading module for both families.
const ONE_MASQUERADE: Kernel = Kernel(5, 2);

/// The first kernel with one connection tracking module for both families.
const ONE_CONNTRACK: Kernel = Kernel(4, 19);

pub(super) fn needs(facts: &Facts<'_>, to: Mode) -> Vec<Need> {
    let modules = match facts.node.modules() {
        Ok(modules) => modules,
        Err(gap) => return vec![Need::unknown(Area::Module, "all modules", gap.to_string())],
    };
    let config = facts.configuration();
    let scheduler = config.as_ref().map_or("rr", |config| config.scheduler());
    let usage = Usage::new(facts);
    let kernel = facts.node.kernel().ok();
    let older = |than| kernel.is_some_and(|kernel| kernel < than);
    let mut needs = Vec::new();
    for module in requirements::modules(to) {
        let used = module.when.map_or(Some(true), |when| usage.meets(when));
        if used == Some(false) {
            continue;
        }
        let mut name = module.name(scheduler).into_owned();
        if name == "xt_MASQUERADE" && older(ONE_MASQUERADE) {
            "ipt_MASQUERADE".clone_into(&mut name);
        }
        needs.push(need(facts, modules, module, name, used));
    }
    if older(ONE_CONNTRACK) {
        let families = usage.families.unwrap_or_else(|| Family::BOTH.to_vec());
        for family in families {
            let name = match family {
                Family::V4 => "nf_conntrack_ipv4",
                Family::V6 => "nf_conntrack_ipv6",
            };
            let purpose = "tracks connections; part of nf_conntrack since kernel 4.19";
            needs.push(bare(modules, name.to_owned()).purpose(purpose));
        }
    }
    needs.sort_by(|a, b| a.name.cmp(&b.name));
    needs.dedup_by(|a, b| a.name == b.name);
    needs
}

/// Returns the requirement `name` in the state that the module is in.
fn bare(modules: &Modules<'_>, name: String) -> Need {
    let standing = modules.standing(&name);
    let (status, state) = match standing {
        Standing::Loaded => (Status::Ready, "loaded"),
        Standing::BuiltIn => (Status::Ready, "built in"),
        Standing::Loadable => (Status::Loadable, "loadable"),
        Standing::Blocked => (Status::Fails, "blocked"),
        Standing::Missing => (Status::Fails, "missing"),
        Standing::Unknown if modules.loaded.is_some() => (Status::Unknown, "not loaded"),
        Standing::Unknown => (Status::Unknown, "unknown"),
    };
    Need {
        standing: Some(standing),
        ..Need::new(Area::Module, name, status, state, "")
    }
}

/// Returns the requirement of `module`; `used` tells whether the mode uses it here, if known.
fn need(
    facts: &Facts<'_>,
    modules: &Modules<'_>,
    module: &Module,
    name: String,
    used: Option<bool>,
) -> Need {
    let mut need = bare(modules, name).purpose(module.purpose);
    // A module whose function works is part of the kernel, even if no list names it.
    if need.status == Status::Unknown && works(facts, &need.name) {
        (need.status, need.state) = (Status::Ready, "in use".to_owned());
    }
    match (need.status, used, module.when) {
        (Status::Fails, Some(true), Some(Condition::Since(Change::NfacctCounters)))
            if modules.counts_unmatched() =>
        {
            "the kernel has nfnetlink_acct, so kube-proxy writes rules with nfacct, and iptables-restore rejects all"
                .clone_into(&mut need.note);
        }
        (Status::Fails, _, Some(Condition::Since(Change::NfacctCounters))) => {
            need.status = Status::Risk;
            "kube-proxy works without it".clone_into(&mut need.note);
        }
        (Status::Fails | Status::Unknown, None, Some(when)) => {
            need.status = Status::Unknown;
            need.note = format!("only for {when}; unknown whether that is in use");
        }
        (Status::Loadable, Some(true), _) if need.name == BRIDGE => {
            need.status = Status::Risk;
            "not loaded automatically".clone_into(&mut need.note);
        }
        (_, None, Some(when)) => need.note = format!("only for {when}"),
        _ => {}
    }
    if let Some((module, file)) = modules.blocker(&need.name) {
        need.note = format!("{file} forbids {module}");
    }
    need
}

/// Returns whether the node uses something that only the module `name` provides.
fn works(facts: &Facts<'_>, name: &str) -> bool {
    let scheduler = name.strip_prefix("ip_vs_");
    match (name, scheduler) {
        ("nf_conntrack", _) => {
            let sysctl = facts.node.sysctl();
            sysctl.is_ok_and(|all| all.get("net.netfilter.nf_conntrack_max").is_some())
        }
        ("ip_vs", _) => facts.node.ipvs().is_ok(),
        (_, Some(scheduler)) => facts.node.ipvs().is_ok_and(|table| {
            let mut servers = table.servers.iter();
            servers.any(|server| server.scheduler == scheduler)
        }),
        _ => false,
    }
}

/// The facts that decide when a mode uses a module; `None` for unknown.
struct Usage {
    /// kube-proxy's version.
    version: Option<Version>,
    families: Option<Vec<Family>>,
    bridge: Option<bool>,
    external_ips: Option<bool>,
    source_ranges: Option<bool>,
    affinity: Option<bool>,
}

impl Usage {
    fn new(facts: &Facts<'_>) -> Self {
        let services = facts.node.services().ok();
        let any = |test: fn(&Service) -> bool| services.map(|services| services.iter().any(test));
        let links = facts.node.links().ok();
        Self {
            version: facts.version().ok().map(|version| version.version),
            families: facts.families().ok(),
            bridge: links.map(|links| {
                let bridges = links.all.iter().filter(|link| link.kind == "bridge");
                let mut names = bridges.map(|link| link.name.as_str());
                let has_ports = |name| {
                    let mut all = links.all.iter();
                    all.any(|link| link.master.as_deref() == Some(name))
                };
                names.any(has_ports)
            }),
            external_ips: any(|service| !service.spec.external_ips.is_empty()),
            source_ranges: any(|service| !service.spec.load_balancer_source_ranges.is_empty()),
            affinity: any(|service| service.spec.session_affinity.as_deref() == Some("ClientIP")),
        }
    }

    /// Returns whether `condition` holds on the node; `None` if unknown.
    fn meets(&self, condition: Condition) -> Option<bool> {
        let uses = |family| self.families.as_ref().map(|all| all.contains(&family));
        match condition {
            Condition::Ipv4 => uses(Family::V4),
            Condition::Ipv6 => uses(Family::V6),
            Condition::Before(change) => self.version.map(|version| !version.has(change)),
            Condition::Since(change) => self.version.map(|version| version.has(change)),
            Condition::LinuxBridge => self.bridge,
            Condition::ExternalIps => self.external_ips,
            Condition::SourceRanges => self.source_ranges,
            Condition::SessionAffinity => self.affinity,
        }
    }
}

/// The items that list modules.
const LISTS: &[Item] = &[Item::Modules, Item::ModulesBuiltin, Item::ModulesDep];

/// Returns why the state of modules is unknown, if that of any of `needs` is.
pub(super) fn gaps(facts: &Facts<'_>, needs: &[Need]) -> Vec<String> {
    let mut modules = needs.iter().filter(|need| need.area == Area::Module);
    if !modules.any(|need| need.status == Status::Unknown) {
        return Vec::new();
    }
    let missing = LISTS
        .iter()
        .filter_map(|&item| facts.node.evidence().text(item).err());
    missing.map(|gap| gap.to_string()).collect()
}
