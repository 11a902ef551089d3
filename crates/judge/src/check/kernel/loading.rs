//! Whether kernel modules can be loaded, now and at boot.

use super::modules::{MODULES, needed, standing, unread_modules};
use crate::check::core::{Collector, MODE, containers, mounts, setting, sysctl_proof};
use crate::check::{
    Check, Example, Facts, Finding, Fix, Proof, Severity, Subject, Text, Verdict, When,
};
use kpx_node::backend::Mode;
use kpx_node::evidence::{Gap, Item};
use kpx_node::node::modules::{Modules, Standing};

pub(super) const CHECKS: &[Check] = &[
    Check {
        id: "KM03",
        name: "modules-at-boot",
        severity: Severity::Warning,
        when: When::For(&[Mode::Ipvs]),
        title: "The modules of the ipvs mode are loaded at boot",
        symptom: "After a reboot kube-proxy restarts repeatedly with \"can't use the IPVS proxier\".",
        why: "A module that was loaded manually is gone after a reboot. kube-proxy runs modprobe for ip_vs and its \
              scheduler when it starts, but an image without modprobe, or a pod without /lib/modules, cannot load \
              them.",
        verify: "Each module must be listed in /etc/modules or in a file of modules-load.d.",
        commands: &[Example::on_node(
            "grep -rE 'ip_vs|nf_conntrack' /etc/modules /etc/modules-load.d /usr/lib/modules-load.d",
        )],
        fix: Text::plain(
            "List ip_vs, the scheduler's module and nf_conntrack in one file of /etc/modules-load.d.",
        ),
        incidents: &["kubernetes-sigs/kubespray#9628: the file was overwritten"],
        needs: &[MODE, MODULES, &[Item::ModulesLoad]],
        caused_by: &[],
        run: at_boot,
    },
    Check {
        id: "KM04",
        name: "module-tree",
        severity: Severity::Error,
        when: When::For(&[Mode::Ipvs, Mode::Nftables]),
        title: "The modules of the running kernel are still installed",
        symptom: "Loading a module fails: /lib/modules has no directory for the running kernel.",
        why: "A package upgrade replaced the kernel and removed the modules of the old one, and the node was not \
              rebooted. Loaded modules stay, but no others can be loaded until the node runs the new kernel.",
        verify: "The directory of the running release must exist.",
        commands: &[Example::on_node("ls -d /lib/modules/$(uname -r)")],
        fix: Text::plain("Drain and reboot the node before the switch."),
        incidents: &["seen after unattended upgrades"],
        needs: &[MODE, MODULES],
        caused_by: &[],
        run: tree,
    },
    Check {
        id: "KM05",
        name: "module-loading",
        severity: Severity::Error,
        when: When::For(&[Mode::Ipvs, Mode::Nftables]),
        title: "Modules can be loaded if the mode needs more of them",
        symptom: "Loading a module fails with \"Operation not permitted\", even for root.",
        why: "A hardened host sets kernel.modules_disabled to 1 after boot, and only a reboot resets it. The modules \
              of the mode must be loaded before that.",
        verify: "The sysctl must be 0, or all modules of the mode must be loaded.",
        commands: &[Example::on_node("sysctl kernel.modules_disabled")],
        fix: Text::plain(
            "List the modules in /etc/modules-load.d, so that they are loaded before the sysctl is set, and reboot \
             the node.",
        ),
        incidents: &["common hardening guides set kernel.modules_disabled"],
        needs: &[MODE, MODULES, &[Item::Sysctl]],
        caused_by: &[],
        run: loading,
    },
    Check {
        id: "KM06",
        name: "modules-mounted",
        severity: Severity::Warning,
        when: When::NowAndFor(&[Mode::Ipvs]),
        title: "kube-proxy's pod sees the node's modules in ipvs mode",
        symptom: "kube-proxy exits with \"can't use the IPVS proxier\" on a node where modprobe works.",
        why: "kube-proxy loads ip_vs and its scheduler from /lib/modules. In a pod this is the image's own directory, \
              which is empty unless the node's is mounted.",
        verify: "The pod must mount the host's /lib/modules.",
        commands: &[Example::anywhere(
            "kubectl -n kube-system get daemonset kube-proxy -o jsonpath='{..volumeMounts[*].mountPath}'",
        )],
        fix: Text::plain(
            "Mount /lib/modules from the host read-only, or load the modules at boot.",
        ),
        incidents: &["kubernetes/kubernetes#55864", "kubernetes/kubernetes#87197"],
        needs: &[
            MODE,
            &[Item::Pods, Item::DaemonSets, Item::Nodes, Item::Addresses],
        ],
        caused_by: &[],
        run: modules_mount,
    },
    Check {
        id: "KM07",
        name: "tools-in-the-image",
        severity: Severity::Error,
        when: When::NowAndFor(&[Mode::Ipvs]),
        title: "kube-proxy finds the tools that the ipvs mode needs",
        symptom: "kube-proxy exits with \"can't use the IPVS proxier\", or its syncs fail because ipset is missing.",
        why: "In ipvs mode kube-proxy runs ipset for every set and, if ip_vs is not loaded yet, modprobe. Some slim \
              images lack one or the other.",
        verify: "Both must exist in kube-proxy's own file system.",
        commands: &[Example::anywhere(
            "kubectl -n kube-system exec POD -- sh -c 'command -v ipset modprobe'",
        )
        .with(&["POD"])],
        fix: Text::plain(
            "Use an image with the tools, such as registry.k8s.io/kube-proxy; without modprobe, load the modules at \
              boot.",
        ),
        incidents: &["k0sproject/k0s#4626", "kubernetes-retired/kube-aws#977"],
        needs: &[MODE, MODULES, &[Item::ProxyTools]],
        caused_by: &[],
        run: tools,
    },
];

fn at_boot(facts: &Facts<'_>) -> Verdict {
    let modules = facts.node.modules()?;
    let loaded = modules
        .loaded
        .as_ref()
        .ok_or_else(|| unread_modules(facts))?;
    let mut findings = Collector::default();
    let config = findings.read(facts.configuration());
    let scheduler = config.map(|config| format!("ip_vs_{}", config.scheduler()));
    let mut needed = vec!["ip_vs".to_owned()];
    needed.extend(scheduler);
    needed.push("nf_conntrack".to_owned());
    let wanted: Vec<_> = needed.iter().filter(|m| loaded.contains_key(*m)).collect();
    if wanted.is_empty() {
        let why = "none of the modules is loaded";
        return Err(Gap::NotApplicable(why.to_owned()));
    }
    let boot = modules.persisted.as_ref();
    let boot = boot.ok_or_else(|| {
        let gap = facts.node.evidence().text(Item::ModulesLoad).err();
        gap.unwrap_or(Gap::NotCollected(Item::ModulesLoad))
    })?;
    let missing: Vec<_> = wanted
        .into_iter()
        .filter(|m| !boot.contains_key(*m))
        .collect();
    if missing.is_empty() {
        return findings.verdict();
    }
    let message = "modules of the ipvs mode are loaded now, but nothing loads them at boot";
    // The command overwrites the file, so it must list all modules, not only the missing ones.
    let names: Vec<_> = needed
        .iter()
        .filter(|name| !matches!(standing(modules, name), Standing::BuiltIn))
        .map(String::as_str)
        .collect();
    let command = format!(
        "printf '%s\\n' {} > /etc/modules-load.d/kube-proxy.conf",
        names.join(" ")
    );
    let seen = missing
        .iter()
        .map(|name| Proof::module(*name, "loaded, in no file of modules-load.d"));
    findings.push(
        Finding::new(Severity::Warning, Subject::Modules, message)
            .evidence(seen)
            .fix(Fix::on_node(
                "List all modules of the mode in one file of modules-load.d.",
                command,
            )),
    );
    findings.verdict()
}

/// Returns the modules of the target mode that are neither loaded nor built in.
fn not_there(facts: &Facts<'_>) -> Result<Vec<String>, Gap> {
    let modules = facts.node.modules()?;
    if modules.loaded.is_none() {
        return Err(unread_modules(facts));
    }
    if modules.builtin.is_none() && !is_modular(modules) {
        return Err(unread_modules(facts));
    }
    let there = |name: &String| {
        matches!(
            standing(modules, name),
            Standing::Loaded | Standing::BuiltIn
        )
    };
    let mode = facts.mode()?;
    if mode == Mode::Ipvs {
        // It names the scheduler.
        facts.configuration()?;
    }
    let mut missing = needed(facts, mode);
    missing.retain(|name| !there(name));
    Ok(missing)
}

/// Returns whether the kernel loads `nf_conntrack`, which every mode needs, as a module.
fn is_modular(modules: &Modules<'_>) -> bool {
    let loaded = modules.loaded.as_ref();
    loaded.is_some_and(|loaded| loaded.contains_key("nf_conntrack"))
}

fn tree(facts: &Facts<'_>) -> Verdict {
    let why = match facts.node.evidence().text(Item::ModulesDep) {
        Ok(_) => return Ok(Vec::new()),
        Err(Gap::Absent(_, why)) => why,
        Err(gap) => return Err(gap),
    };
    let mut findings = Collector::default();
    let missing = findings.read(not_there(facts)).unwrap_or_default();
    let message = "the modules of the running kernel are no longer installed: none can be loaded until a reboot";
    let severity = if missing.is_empty() {
        Severity::Warning
    } else {
        Severity::Error
    };
    let not_loaded = missing
        .iter()
        .map(|name| Proof::module(name.as_str(), "not loaded"));
    findings.push(
        Finding::new(severity, Subject::Modules, message)
            .evidence([Proof::Note(why)])
            .evidence(not_loaded),
    );
    findings.verdict()
}

fn loading(facts: &Facts<'_>) -> Verdict {
    const KEY: &str = "kernel.modules_disabled";
    if setting(facts, KEY)? == "0" {
        return Ok(Vec::new());
    }
    let missing = not_there(facts)?;
    if missing.is_empty() {
        return Ok(Vec::new());
    }
    let message = "the kernel refuses to load modules, and some modules of the mode are not loaded";
    let not_loaded = missing
        .iter()
        .map(|name| Proof::module(name.as_str(), "not loaded"));
    Ok(vec![
        Finding::new(Severity::Error, Subject::Modules, message)
            .evidence([sysctl_proof(KEY, 1)])
            .evidence(not_loaded),
    ])
}

fn modules_mount(facts: &Facts<'_>) -> Verdict {
    facts.only_in(&[Mode::Ipvs])?;
    let without: Vec<_> = containers(facts)?
        .into_iter()
        .filter(|(_, container)| !mounts(container, "/lib/modules"))
        .map(|(name, _)| Proof::setting(name, "volumeMounts", "no /lib/modules"))
        .collect();
    if without.is_empty() {
        return Ok(Vec::new());
    }
    let message = "kube-proxy's pod does not mount the node's modules, and cannot load any";
    Ok(vec![
        Finding::new(Severity::Warning, Subject::Proxy, message).evidence(without),
    ])
}

fn tools(facts: &Facts<'_>) -> Verdict {
    facts.only_in(&[Mode::Ipvs])?;
    let text = facts.node.evidence().text(Item::ProxyTools)?;
    let has = |name: &str| {
        let mut paths = text.lines();
        paths.any(|path| path.rsplit('/').next() == Some(name))
    };
    let missing = |name: &str| Proof::object("tool", format!("{name} not found"));
    let mut findings = Collector::default();
    findings.add(Ok(Vec::new()));
    if !has("ipset") {
        let message = "kube-proxy does not find ipset, which the ipvs mode needs";
        findings.push(
            Finding::new(Severity::Error, Subject::tool("ipset"), message)
                .evidence([missing("ipset")]),
        );
    }
    if !has("modprobe") {
        let modules = findings.read(facts.node.modules());
        let standing = modules.map(|modules| modules.standing("ip_vs"));
        if standing == Some(Standing::Unknown) {
            findings.note(unread_modules(facts));
        } else if !matches!(standing, None | Some(Standing::Loaded | Standing::BuiltIn)) {
            let message = "kube-proxy does not find modprobe, and ip_vs is not loaded";
            findings.push(
                Finding::new(Severity::Error, Subject::tool("modprobe"), message)
                    .evidence([missing("modprobe")]),
            );
        }
    }
    findings.verdict()
}
