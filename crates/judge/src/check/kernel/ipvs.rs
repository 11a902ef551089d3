//! What the ipvs mode needs of the kernel.

use super::modules::{standing, unread_modules};
use crate::check::core::{IPVS_TABLE, MODE};
use crate::check::{
    Because, Check, Example, Facts, Finding, Fix, Proof, Severity, Subject, Text, Verdict, When,
};
use kpx_node::backend::Mode;
use kpx_node::backend::ipvs::model::DUMMY;
use kpx_node::evidence::{Gap, Item};
use kpx_node::node::modules::Standing;

pub(super) const CHECKS: &[Check] = &[
    Check {
        id: "KM01",
        name: "ip-vs-module",
        severity: Severity::Error,
        when: When::NowAndFor(&[Mode::Ipvs]),
        title: "The kernel provides IPVS if the mode needs it",
        symptom: "kube-proxy restarts repeatedly with \"can't use the IPVS proxier\", and the node's rules stay as \
              they were.",
        why: "In ipvs mode kube-proxy programs the kernel's load balancer, the module ip_vs. It runs modprobe to load \
              it and, since 1.26, exits if that fails; older releases silently continued in iptables mode. Cloud and \
              minimal kernels often lack the module, and a line in modprobe.d can forbid it.",
        verify: "The module must be loaded, built into the kernel, or installed.",
        commands: &[
            Example::on_node("grep '^ip_vs ' /proc/modules"),
            Example::on_node(
                "grep /ip_vs.ko /lib/modules/$(uname -r)/modules.builtin /lib/modules/$(uname -r)/modules.dep",
            ),
            Example::on_node("modprobe --dry-run --verbose ip_vs"),
            Example::on_node("modprobe --showconfig | grep ip_vs"),
        ],
        fix: Text::with(
            "Install the package with extra kernel modules (`linux-modules-extra-$(uname -r)` on Ubuntu, \
             `kernel-modules-extra` on RHEL and Fedora), or choose another mode: {} lists what blocks it.",
            &[Example::kpx(&["doctor", "--to", "nftables"])],
        ),
        incidents: &[
            "kubernetes/kubernetes#63801: built-in modules were reported as missing",
            "kubernetes/kubernetes#54121",
            "kubernetes/kubernetes#111806: no more fallback to iptables mode since 1.26",
        ],
        needs: &[
            MODE,
            &[
                Item::Modules,
                Item::ModulesBuiltin,
                Item::ModulesDep,
                Item::Modprobe,
                Item::Ipvs,
                Item::IpvsSave,
                Item::ProxyLog,
            ],
        ],
        caused_by: &[],
        run: ip_vs,
    },
    Check {
        id: "KM02",
        name: "scheduler-module",
        severity: Severity::Error,
        when: When::NowAndFor(&[Mode::Ipvs]),
        title: "The kernel provides the scheduler of ipvs.scheduler",
        symptom: "kube-proxy exits when it starts, or creates no virtual servers.",
        why: "Each IPVS scheduler is a separate module, ip_vs_rr and so on, and minimal kernels lack some of them.",
        verify: "The module must be loaded, built in, or installed.",
        commands: &[
            Example::on_node("grep '^ip_vs_' /proc/modules"),
            Example::on_node("modprobe --dry-run --verbose ip_vs_rr"),
        ],
        fix: Text::plain(
            "Set ipvs.scheduler to rr, or install the package with extra kernel modules.",
        ),
        incidents: &[
            "replicatedhq/kURL#4298: no ip_vs_wrr",
            "kubernetes-sigs/kubespray#9628",
        ],
        needs: &[
            MODE,
            IPVS_TABLE,
            &[
                Item::Modules,
                Item::ModulesBuiltin,
                Item::ModulesDep,
                Item::Modprobe,
            ],
        ],
        caused_by: &[Because::Loss("KM01")],
        run: scheduler,
    },
    Check {
        id: "KM14",
        name: "ip-vs-stays",
        severity: Severity::Info,
        when: When::For(&[Mode::Iptables, Mode::Nftables]),
        title: "The module ip_vs is not loaded if nothing will use it",
        symptom: "None; other tools that infer the mode from the module are wrong.",
        why: "Nothing unloads ip_vs after a switch. kube-proxy even loads it when it starts in nftables mode, to look \
              for leftovers. A loaded module does not mean that the mode is ipvs.",
        verify: "Ask kube-proxy for its mode instead of running lsmod.",
        commands: &[
            Example::on_node("curl -s http://127.0.0.1:10249/proxyMode"),
            Example::on_node("lsmod | grep ip_vs"),
        ],
        fix: Text::plain(
            "No action is needed; make sure that no other tool infers the mode from lsmod.",
        ),
        incidents: &["kube-proxy runs modprobe ip_vs in its clean-up"],
        needs: &[&[Item::Modules]],
        caused_by: &[],
        run: stays_loaded,
    },
    Check {
        id: "KM15",
        name: "dummy-module",
        severity: Severity::Error,
        when: When::NowAndFor(&[Mode::Ipvs]),
        title: "The kernel can create the link kube-ipvs0",
        symptom: "kube-proxy logs that it cannot create kube-ipvs0, and no Service answers.",
        why: "kube-ipvs0 is a dummy link and needs the module dummy. Minimal kernels lack it.",
        verify: "The module must be loaded, built in, or installed, unless the link exists.",
        commands: &[
            Example::on_node("modprobe --dry-run --verbose dummy"),
            Example::on_node("ip link add kpx-try type dummy && ip link del kpx-try"),
        ],
        fix: Text::plain("Install the package with extra kernel modules, or choose another mode."),
        incidents: &["seen with kernels built for containers"],
        needs: &[
            MODE,
            &[
                Item::Links,
                Item::Modules,
                Item::ModulesBuiltin,
                Item::ModulesDep,
                Item::Modprobe,
            ],
        ],
        caused_by: &[],
        run: dummy_module,
    },
];

fn ip_vs(facts: &Facts<'_>) -> Verdict {
    let mode = facts.mode()?;
    if mode != Mode::Ipvs {
        let reason = format!("the mode is {mode}, which does not need ip_vs");
        return Err(Gap::NotApplicable(reason));
    }
    // Readable virtual servers prove that IPVS is available.
    if facts.node.ipvs().is_ok() {
        return Ok(Vec::new());
    }
    let modules = facts.node.modules()?;
    let (message, standing) = match standing(modules, "ip_vs") {
        Standing::Loaded | Standing::BuiltIn | Standing::Loadable => return Ok(Vec::new()),
        Standing::Blocked => (
            "the kernel module of the ipvs mode is installed, but modprobe.d forbids loading it",
            "blocked by modprobe.d",
        ),
        Standing::Missing => (
            "the kernel module of the ipvs mode is neither loaded, built in nor installed",
            "missing",
        ),
        Standing::Unknown => match refusal(facts) {
            Some(_) => (
                "the kernel module of the ipvs mode is not loaded, and kube-proxy exited without it",
                "not loaded",
            ),
            None => return Err(unread_modules(facts)),
        },
    };
    let module = Proof::Module {
        module: "ip_vs".to_owned(),
        standing: standing.to_owned(),
    };
    let finding = Finding::new(Severity::Error, Subject::module("ip_vs"), message)
        .evidence([module])
        .evidence(refusal(facts).map(Proof::Log));
    Ok(vec![
        match modules.blocked.as_ref().and_then(|m| m.get("ip_vs")) {
            Some(file) => finding.fix(Fix::on_node(
                "Remove the line that forbids the module, and load it; or choose another mode.",
                format!("sed -Ei '/^ *(blacklist|install) +ip_vs( |$)/d' {file} && modprobe ip_vs"),
            )),
            None => finding,
        },
    ])
}

/// Returns the last line of kube-proxy's log that reports missing IPVS.
fn refusal(facts: &Facts<'_>) -> Option<String> {
    let line = facts.node.proxy_log().ok()?.no_ipvs.as_ref()?;
    Some(format!("kube-proxy.log: {line}"))
}

fn scheduler(facts: &Facts<'_>) -> Verdict {
    facts.only_in(&[Mode::Ipvs])?;
    let config = facts.configuration()?;
    let name = config.scheduler();
    // A virtual server that uses the scheduler proves it.
    let table = facts.node.ipvs();
    if table.is_ok_and(|table| table.servers.iter().any(|server| server.scheduler == name)) {
        return Ok(Vec::new());
    }
    let module = format!("ip_vs_{name}");
    let mut findings = module_there(
        facts,
        &module,
        "this kernel lacks the scheduler that kube-proxy is configured for",
    )?;
    let modules = facts.node.modules()?;
    // A kernel without IPVS has no scheduler of it, and none can be loaded where ip_vs is forbidden.
    let are_missing = |name: &str| modules.standing(name) == Standing::Missing;
    let blocker = modules.blocker(&module);
    let is_blocked = blocker.is_some_and(|(name, _)| name == "ip_vs");
    if is_blocked || (are_missing("ip_vs") && are_missing(&module)) {
        findings = findings.into_iter().map(Finding::loss).collect();
    }
    Ok(findings)
}

fn dummy_module(facts: &Facts<'_>) -> Verdict {
    facts.only_in(&[Mode::Ipvs])?;
    let links = facts.node.links();
    if links.is_ok_and(|links| links.all.iter().any(|link| link.name == DUMMY)) {
        return Ok(Vec::new());
    }
    module_there(
        facts,
        "dummy",
        "this kernel lacks the module for kube-ipvs0",
    )
}

fn module_there(facts: &Facts<'_>, module: &str, message: &str) -> Verdict {
    let modules = facts.node.modules()?;
    let standing = match standing(modules, module) {
        Standing::Loaded | Standing::BuiltIn | Standing::Loadable => return Ok(Vec::new()),
        Standing::Blocked => "blocked by modprobe.d",
        Standing::Missing => "missing",
        Standing::Unknown => return Err(unread_modules(facts)),
    };
    Ok(vec![
        Finding::new(Severity::Error, Subject::module(module), message).evidence([Proof::Module {
            module: module.to_owned(),
            standing: standing.to_owned(),
        }]),
    ])
}

fn stays_loaded(facts: &Facts<'_>) -> Verdict {
    let modules = facts.node.modules()?;
    let loaded = modules
        .loaded
        .as_ref()
        .ok_or_else(|| unread_modules(facts))?;
    if !loaded.contains_key("ip_vs") {
        return Ok(Vec::new());
    }
    let message = "the module is loaded and stays loaded: this does not mean that the mode is ipvs";
    Ok(vec![
        Finding::new(Severity::Info, Subject::module("ip_vs"), message)
            .evidence([Proof::module("ip_vs", "loaded")]),
    ])
}
