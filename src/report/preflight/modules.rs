//! The kernel modules that a mode needs on this node.

use super::{Area, Need, Status};
use crate::backend::Mode;
use crate::check::Facts;
use crate::cluster::version::Version;
use crate::evidence::Item;
use crate::net::Family;
use crate::node::modules::{Modules, Standing};
use crate::node::wanted::{MODULES, Wanted};

/// The state of a module that is loaded.
pub(super) const LOADED: &str = "loaded";

/// The module that shows bridged packets to the rules. Nothing loads it by itself.
pub(super) const BRIDGE: &str = "br_netfilter";

/// What says where a module is needed at all.
struct Uses {
    /// kube-proxy's version.
    version: Option<Version>,
    families: Option<Vec<Family>>,
    bridge: Option<bool>,
    external: Option<bool>,
    ranges: Option<bool>,
    affinity: Option<bool>,
}

pub(super) fn needs(facts: &Facts<'_>, to: Mode) -> Vec<Need> {
    let modules = match facts.node.modules() {
        Ok(modules) => modules,
        Err(gap) => {
            return vec![Need {
                area: Area::Module,
                name: "all of them".to_owned(),
                status: Status::Unknown,
                state: "unknown".to_owned(),
                purpose: "",
                note: gap.to_string(),
            }];
        }
    };
    let config = facts.configuration();
    let scheduler = config.as_ref().map_or("rr", |config| config.scheduler());
    let uses = Uses::new(facts);
    let kernel: Option<Version> = facts
        .node
        .kernel_release()
        .ok()
        .and_then(|of| of.parse().ok());
    let mut needs = Vec::new();
    for wanted in MODULES.iter().filter(|of| of.modes.contains(&to)) {
        let here = uses.of(wanted.only);
        if here == Some(false) {
            continue;
        }
        let mut name = wanted.name(scheduler).into_owned();
        // Masquerading was a module of each family before 5.2.
        if name == "xt_MASQUERADE" && kernel.is_some_and(|kernel| !kernel.at_least(5, 2)) {
            "ipt_MASQUERADE".clone_into(&mut name);
        }
        needs.push(row(facts, modules, wanted, name, here));
    }
    // Tracking was a module of each family, too.
    if kernel.is_some_and(|kernel| !kernel.at_least(4, 19)) {
        let families = uses.families.unwrap_or_else(|| Family::BOTH.to_vec());
        for family in families {
            let name = match family {
                Family::V4 => "nf_conntrack_ipv4",
                Family::V6 => "nf_conntrack_ipv6",
            };
            let (status, state) = standing(modules, name);
            needs.push(Need {
                area: Area::Module,
                name: name.to_owned(),
                status,
                state: state.to_owned(),
                purpose: "tracks connections; part of nf_conntrack since kernel 4.19",
                note: String::new(),
            });
        }
    }
    needs.sort_by(|a, b| a.name.cmp(&b.name));
    needs.dedup_by(|a, b| a.name == b.name);
    needs
}

fn row(
    facts: &Facts<'_>,
    modules: &Modules<'_>,
    wanted: &Wanted,
    name: String,
    used: Option<bool>,
) -> Need {
    let (mut status, mut state) = standing(modules, &name);
    // What works is there, whether or not anything names its module.
    if status == Status::Unknown && works(facts, &name) {
        (status, state) = (Status::Ready, "in use");
    }
    let mut note = String::new();
    match (status, used) {
        (Status::Fails, _) if wanted.only == COUNTERS => {
            status = Status::Risk;
            "kube-proxy does without".clone_into(&mut note);
        }
        (Status::Fails | Status::Unknown, None) => {
            status = Status::Unknown;
            note = format!(
                "only for {}, and whether that is used is not known",
                wanted.only
            );
        }
        (Status::Loadable, Some(true)) if name == BRIDGE => {
            status = Status::Risk;
            "nothing loads it by itself".clone_into(&mut note);
        }
        (_, None) => note = format!("only for {}", wanted.only),
        _ => {}
    }
    if let Some((module, file)) = modules.blocker(&name) {
        note = format!("{file} forbids {module}");
    }
    Need {
        area: Area::Module,
        name,
        status,
        state: state.to_owned(),
        purpose: wanted.purpose,
        note,
    }
}

fn standing(modules: &Modules<'_>, name: &str) -> (Status, &'static str) {
    match modules.standing(name) {
        Standing::Loaded => (Status::Ready, LOADED),
        Standing::BuiltIn => (Status::Ready, "built in"),
        Standing::Loadable => (Status::Loadable, "loadable"),
        Standing::Blocked => (Status::Fails, "blocked"),
        Standing::Missing => (Status::Fails, "missing"),
        Standing::Unknown if modules.loaded.is_some() => (Status::Unknown, "not loaded"),
        Standing::Unknown => (Status::Unknown, "unknown"),
    }
}

/// Tells whether something that only this module does is seen to be done.
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

/// Where the module that counts for metrics matters.
const COUNTERS: &str = "1.32 and newer";

impl Uses {
    fn new(facts: &Facts<'_>) -> Self {
        let services = facts.node.services().ok();
        let any = |test: fn(&crate::cluster::Service) -> bool| {
            services.map(|services| services.iter().any(test))
        };
        let links = facts.node.links().ok();
        Self {
            version: facts.version().ok().map(|of| of.version),
            families: facts.families().ok(),
            bridge: links.map(|links| {
                let bridges = links.all.iter().filter(|link| link.kind == "bridge");
                let mut names = bridges.map(|link| link.name.as_str());
                let ports = |name| {
                    links
                        .all
                        .iter()
                        .any(|of| of.master.as_deref() == Some(name))
                };
                names.any(ports)
            }),
            external: any(|service| !service.spec.external_ips.is_empty()),
            ranges: any(|service| !service.spec.load_balancer_source_ranges.is_empty()),
            affinity: any(|of| of.spec.session_affinity.as_deref() == Some("ClientIP")),
        }
    }

    /// Tells whether what is needed `only` there is needed here.
    fn of(&self, only: &str) -> Option<bool> {
        let uses = |family| self.families.as_ref().map(|all| all.contains(&family));
        match only {
            "IPv4" => uses(Family::V4),
            "IPv6" => uses(Family::V6),
            "before 1.27" => self.version.map(|version| !version.at_least(1, 27)),
            COUNTERS => self.version.map(|version| version.at_least(1, 32)),
            "pods on a Linux bridge" => self.bridge,
            "external IPs" => self.external,
            "source ranges" => self.ranges,
            "session affinity" => self.affinity,
            _ => Some(true),
        }
    }
}

/// What says which modules there are.
const TELLS: &[Item] = &[Item::Modules, Item::ModulesBuiltin, Item::ModulesDep];

/// Returns why the state of modules is not known, if that of any of `needs` is not.
pub(super) fn gaps(facts: &Facts<'_>, needs: &[Need]) -> Vec<String> {
    let mut modules = needs.iter().filter(|need| need.area == Area::Module);
    if !modules.any(|need| need.status == Status::Unknown) {
        return Vec::new();
    }
    let missing = TELLS
        .iter()
        .filter_map(|&item| facts.node.evidence().text(item).err());
    missing.map(|gap| gap.to_string()).collect()
}
