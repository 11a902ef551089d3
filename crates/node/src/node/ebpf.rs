//! Service proxies of eBPF on a node: where their programs are attached, whether they serve Services there, and whether their
//! agents run.
//!
//! A network plugin that runs here need not serve Services: Cilium without kube-proxy replacement fills its maps and attaches its
//! programs, too, but no program at `connect()` and no `NodePort`. Calico attaches programs only for its eBPF data plane.

use std::fmt;

use super::NodeSnapshot;
use super::bpf::{Bpf, Place, Proxy};
use super::processes::kube_proxies;
use super::tc::Side;
use crate::evidence::bpf::Program;
use crate::evidence::{Gap, Item};
use crate::net::Family;

/// The option of Cilium's agent, and the key of its ConfigMap, that says whether it serves Services instead of kube-proxy.
const REPLACEMENT: &str = "kube-proxy-replacement";

/// The hooks at which a program translates connections of processes.
const CONNECT: [&str; 2] = ["cgroup_inet4_connect", "cgroup_inet6_connect"];

/// The items that [`NodeSnapshot::ebpf`] reads.
pub const EBPF_NEEDS: &[Item] = &[
    Item::Bpf,
    Item::Tc,
    Item::Links,
    Item::Processes,
    Item::Pods,
    Item::Nodes,
    Item::ConfigMaps,
    Item::Iptables4,
    Item::Iptables6,
    Item::Nft,
    Item::NftText,
    Item::ProxyMode,
    Item::Addresses,
    Item::ProxyConfig,
];

/// The state of one service proxy of eBPF on a node.
#[derive(Clone, Debug)]
pub struct EbpfProxy {
    /// The proxy.
    pub proxy: Proxy,
    /// Its attached programs that were read.
    pub programs: Vec<Attached>,
    /// Whether its programs translate connections to Services. A gap if they were not read and something on the node hints at them.
    pub serves: Result<bool, Gap>,
    /// Whether its agent runs, and updates these programs.
    pub agent: Result<bool, Gap>,
}

/// A program that is attached.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Attached {
    /// `NAME (id ID)`.
    pub program: String,
    /// Its hook.
    pub at: Hook,
}

/// The hook to which a program is attached.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Hook {
    /// At a hook of a control group.
    Cgroup {
        /// bpftool's word for the hook.
        hook: String,
        /// Path of the group; `/` contains all processes.
        cgroup: String,
    },
    /// At a link.
    Link {
        /// Name of the link.
        link: String,
        /// `tcx_ingress`, `tc egress`, `XDP`, …
        way: String,
    },
}

impl fmt::Display for Attached {
    /// Writes `NAME (id ID) at HOOK of PLACE`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let program = &self.program;
        match &self.at {
            Hook::Cgroup { hook, cgroup } => {
                write!(f, "{program} at {hook} of control group {cgroup}")
            }
            Hook::Link { link, way } => write!(f, "{program} at {way} of {link}"),
        }
    }
}

impl Attached {
    /// Returns whether it translates connections of all processes of the node.
    pub fn is_at_connect(&self) -> bool {
        matches!(&self.at, Hook::Cgroup { hook, cgroup } if cgroup == "/" && CONNECT.contains(&hook.as_str()))
    }

    /// Returns the link that it is attached to.
    pub fn link(&self) -> Option<&str> {
        match &self.at {
            Hook::Link { link, .. } => Some(link),
            Hook::Cgroup { .. } => None,
        }
    }
}

impl EbpfProxy {
    /// Returns whether it serves Services with an agent that runs.
    pub fn is_alive(&self) -> Result<bool, Gap> {
        match (&self.serves, &self.agent) {
            (Ok(false), _) | (_, Ok(false)) => Ok(false),
            (Ok(true), Ok(true)) => Ok(true),
            (Err(gap), _) | (_, Err(gap)) => Err(gap.clone()),
        }
    }

    /// The names of the agent's processes, and of the container in which it runs.
    const fn agents(proxy: Proxy) -> (&'static [&'static str], &'static str) {
        match proxy {
            Proxy::Cilium => (&["cilium-agent"], "cilium-agent"),
            Proxy::Calico => (&["calico-node", "calico-felix"], "calico-node"),
        }
    }
}

impl NodeSnapshot<'_> {
    /// Returns the state of each service proxy of eBPF on this node.
    pub fn ebpf(&self) -> &[EbpfProxy; 2] {
        self.ebpf.get_or_init(|| {
            let seen = Seen::on(self);
            Proxy::ALL.map(|proxy| seen.proxy(self, proxy))
        })
    }

    /// Returns the service proxy of eBPF that serves this node's Services with a running agent, if no kube-proxy runs.
    pub fn served_by_ebpf(&self) -> Result<Option<Proxy>, Gap> {
        let mut unknown = None;
        for of in self.ebpf() {
            match of.is_alive() {
                Ok(true) if self.has_proxy_running()? => return Ok(None),
                Ok(true) => return Ok(Some(of.proxy)),
                Ok(false) => {}
                Err(gap) => unknown = Some(gap),
            }
        }
        unknown.map_or(Ok(None), Err)
    }

    /// Returns why programs that were not read may serve Services here; `None` if none may.
    pub fn unread_ebpf(&self) -> Option<Gap> {
        let bpf = self.bpf().err();
        self.ebpf().iter().find_map(|ebpf| match &ebpf.serves {
            Err(gap) => Some(gap.clone()),
            Ok(true) => bpf.clone(),
            Ok(false) => None,
        })
    }

    /// Returns whether kube-proxy runs here, by its process or else its pod.
    pub fn has_proxy_running(&self) -> Result<bool, Gap> {
        match self.processes() {
            Ok(all) => Ok(kube_proxies(all).next().is_some()),
            Err(gap) => {
                self.pods().map_err(|_| gap)?;
                let here = self.name().ok();
                Ok(self.proxy_pod(here.as_deref()).is_some())
            }
        }
    }

    /// Returns whether anything shows that kube-proxy serves here.
    fn has_kube_proxy(&self) -> bool {
        self.has_proxy_running() == Ok(true)
            || self.reported_mode().is_ok()
            || Family::BOTH
                .iter()
                .any(|family| self.serving(*family).is_ok_and(|all| !all.is_empty()))
    }
}

/// Programs that are attached.
struct Seen {
    all: Vec<(Option<Proxy>, Attached)>,
    /// Whether the name of one is unknown.
    unnamed: bool,
}

impl Seen {
    fn on(node: &NodeSnapshot<'_>) -> Self {
        let mut seen = Self {
            all: Vec::new(),
            unnamed: false,
        };
        let bpf = node.bpf().ok();
        let name_of = |id: u32| Some(bpf?.program(id)?.name.clone());
        let mut add = |name: Option<String>, id: Option<u64>, at: Hook| {
            let name = name.filter(|name| !name.is_empty());
            seen.unnamed |= name.is_none();
            let program = match (&name, id) {
                (Some(name), Some(id)) => format!("{name} (id {id})"),
                (Some(name), None) => name.clone(),
                (None, Some(id)) => format!("program {id}"),
                (None, None) => "a program".to_owned(),
            };
            let proxy = name.as_deref().and_then(Proxy::of_program);
            seen.all.push((proxy, Attached { program, at }));
        };
        if let Some(bpf) = bpf {
            for of in bpf.cgroups().unwrap_or_default() {
                let (hook, cgroup) = (of.attach_type.clone(), of.cgroup.clone());
                let at = Hook::Cgroup { hook, cgroup };
                add(name_of(of.program), Some(of.program.into()), at);
            }
            for of in bpf.links().unwrap_or_default() {
                let (link, way) = (of.dev.clone(), of.attach_type.clone());
                let at = Hook::Link { link, way };
                add(name_of(of.program), Some(of.program.into()), at);
            }
        }
        let filters = node.tc().into_iter().flat_map(|tc| &tc.filters);
        for (link, filters) in filters {
            for of in filters.iter().filter(|filter| filter.kind == "bpf") {
                let side = match of.side {
                    Side::Ingress => "ingress",
                    Side::Egress => "egress",
                };
                let (link, way) = (link.clone(), format!("tc {side}"));
                let (name, id) = match &of.program {
                    Some(program) => (program.name.clone(), program.id),
                    None => (None, None),
                };
                let name = name.or_else(|| name_of(u32::try_from(id?).ok()?));
                add(name, id, Hook::Link { link, way });
            }
        }
        for link in node.links().into_iter().flat_map(|all| &all.all) {
            for of in &link.xdp {
                let name = of.name.clone();
                let name = name.or_else(|| name_of(u32::try_from(of.id).ok()?));
                let (link, way) = (link.name.clone(), "XDP".to_owned());
                add(name, Some(of.id), Hook::Link { link, way });
            }
        }
        seen
    }

    fn proxy(&self, node: &NodeSnapshot<'_>, proxy: Proxy) -> EbpfProxy {
        let own = self.all.iter().filter(|(of, _)| *of == Some(proxy));
        let programs: Vec<Attached> = own.map(|(_, attached)| attached.clone()).collect();
        let agent = agent(node, proxy, &programs);
        let serves = by_programs(node, proxy, &programs).or_else(|gap| {
            let set = configured(node, proxy).filter(|_| agent != Ok(false));
            match set {
                Some(known) => Ok(known),
                None if self.unnamed || hints(node, proxy, &programs) => Err(gap),
                None => Ok(false),
            }
        });
        EbpfProxy {
            proxy,
            programs,
            serves,
            agent,
        }
    }
}

/// Returns whether the attached programs of `proxy` serve Services; a gap if that is not read.
fn by_programs(node: &NodeSnapshot<'_>, proxy: Proxy, programs: &[Attached]) -> Result<bool, Gap> {
    if programs.iter().any(Attached::is_at_connect) {
        return Ok(true);
    }
    let links = node.links().map_or(&[][..], |all| all.all.as_slice());
    let is_tunnel = |name: &str| {
        links
            .iter()
            .any(|link| link.name == name && link.is_tunnel())
    };
    let at_links = programs.iter().filter_map(Attached::link);
    let at_links = at_links.filter(|name| !is_tunnel(name)).count() > 0;
    if at_links && proxy == Proxy::Calico {
        return Ok(true);
    }
    let bpf = node.bpf()?;
    if at_links && has_node_ports(bpf, proxy)? {
        return Ok(true);
    }
    let mut loaded = bpf.programs()?.iter();
    if loaded.all(|loaded| Proxy::of_program(&loaded.name) != Some(proxy)) {
        return Ok(false);
    }
    bpf.cgroups()?;
    bpf.links()?;
    if !at_links && (proxy == Proxy::Calico || has_node_ports(bpf, proxy)?) {
        // Its programs are loaded: only the filters can show that none of them is attached.
        node.tc()?;
    }
    Ok(false)
}

/// Returns whether the maps of `proxy` have a NodePort.
fn has_node_ports(bpf: &Bpf, proxy: Proxy) -> Result<bool, Gap> {
    let mut unread = None;
    for family in Family::BOTH {
        match bpf.table(proxy, family) {
            Ok(Some(table))
                if table
                    .frontends
                    .iter()
                    .any(|frontend| frontend.at == Place::AnyNode) =>
            {
                return Ok(true);
            }
            Ok(_) => {}
            Err(gap) => unread = Some(gap),
        }
    }
    unread.map_or(Ok(false), Err)
}

/// Returns whether `proxy` is set up to serve Services, if anything shows that.
fn configured(node: &NodeSnapshot<'_>, proxy: Proxy) -> Option<bool> {
    if proxy == Proxy::Calico {
        return has_link(node, "bpfin.cali").then_some(true);
    }
    let processes = node.processes().into_iter().flat_map(|all| &all.processes);
    let mut agents = processes.filter(|process| process.name == "cilium-agent");
    let argument = agents.find_map(|agent| {
        let mut args = agent.args.iter();
        args.find_map(|arg| {
            arg.strip_prefix("--")?
                .strip_prefix(REPLACEMENT)?
                .strip_prefix('=')
        })
    });
    let mut maps = node.config_maps().into_iter().flatten();
    let in_map = maps.find_map(|map| {
        let data = (map.metadata.name == "cilium-config").then_some(&map.data)?;
        data.get(REPLACEMENT).map(String::as_str)
    });
    match argument.or(in_map)? {
        "true" | "strict" => Some(true),
        "false" | "disabled" => Some(false),
        // It serves only some Services, or those that the kernel supports.
        _ => None,
    }
}

/// Returns whether anything on the node hints at programs of `proxy` that serve Services. Calico runs beside kube-proxy, too, and
/// has no programs then.
fn hints(node: &NodeSnapshot<'_>, proxy: Proxy, programs: &[Attached]) -> bool {
    if !programs.is_empty() {
        return true;
    }
    let (names, container) = EbpfProxy::agents(proxy);
    let (link, chains) = match proxy {
        Proxy::Cilium => ("cilium_host", "CILIUM_"),
        Proxy::Calico => ("bpfin.cali", "cali-"),
    };
    if has_link(node, link) {
        return true;
    }
    let mut processes = node.processes().into_iter().flat_map(|all| &all.processes);
    let here = node.name().ok();
    let mut pods =
        node.pods().into_iter().flatten().filter(|pod| {
            here.is_none() || pod.spec.node_name.is_none() || pod.spec.node_name == here
        });
    // The text is cheaper than its rules.
    let chain = format!("\n:{chains}");
    let mut rules = [Item::Iptables4, Item::Iptables6].into_iter();
    let is_hinted = processes.any(|process| names.contains(&process.name.as_str()))
        || pods.any(|pod| {
            pod.spec
                .containers
                .iter()
                .any(|pod_container| pod_container.name == container)
        })
        || rules.any(|item| {
            node.evidence()
                .text(item)
                .is_ok_and(|text| text.contains(&chain))
        });
    is_hinted && !(proxy == Proxy::Calico && node.has_kube_proxy())
}

fn has_link(node: &NodeSnapshot<'_>, name: &str) -> bool {
    let mut links = node.links().into_iter().flat_map(|all| &all.all);
    links.any(|link| link.name == name)
}

/// Returns whether the agent of `proxy` runs on this node, and updates its `programs`: Calico's agent runs without eBPF, too, and
/// attaches no program to a link then.
fn agent(node: &NodeSnapshot<'_>, proxy: Proxy, programs: &[Attached]) -> Result<bool, Gap> {
    let (names, container) = EbpfProxy::agents(proxy);
    let runs = match node.processes() {
        Ok(all) => {
            let mut all = all.processes.iter();
            all.any(|process| names.contains(&process.name.as_str()))
        }
        Err(gap) => {
            let here = node.name().map_err(|_| gap.clone())?;
            let mut pods = node.pods().map_err(|_| gap)?.iter().filter(|pod| {
                pod.spec.node_name.as_deref() == Some(here.as_str())
                    && pod.status.phase == "Running"
            });
            pods.any(|pod| {
                pod.spec
                    .containers
                    .iter()
                    .any(|pod_container| pod_container.name == container)
            })
        }
    };
    if !runs || proxy == Proxy::Cilium {
        return Ok(runs);
    }
    if has_link(node, "bpfin.cali") || programs.iter().any(|program| program.link().is_some()) {
        return Ok(true);
    }
    node.links()?;
    // Without a program for links, none is attached.
    let is_for_links = |program: &Program| {
        Proxy::of_program(&program.name) == Some(proxy)
            && matches!(program.r#type.as_str(), "sched_cls" | "xdp")
    };
    let loaded = node.bpf().and_then(|bpf| bpf.programs());
    if loaded.is_ok_and(|all| !all.iter().any(is_for_links)) {
        return Ok(false);
    }
    match (node.tc(), node.bpf()) {
        (Err(gap), _) | (_, Err(gap)) => Err(gap),
        (Ok(_), Ok(bpf)) => bpf.links().map(|_| false),
    }
}
