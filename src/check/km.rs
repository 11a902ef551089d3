//! KM: the kernel and its modules.

use super::facts::MODE;
use super::{Check, Facts, Finding, Proof, Severity, Verdict, When};
use crate::backend::Mode;
use crate::evidence::{Gap, Item};
use crate::node::modules::{Modules, Standing};

pub(super) const CHECKS: &[Check] = &[Check {
    id: "KM01",
    name: "ip-vs-module",
    severity: Severity::Error,
    when: When::NowAndFor(&[Mode::Ipvs]),
    title: "The kernel has IPVS where the mode needs it",
    symptom: "kube-proxy restarts over and over with \"can't use the IPVS proxier\", and the node's rules stay as they were.",
    why: "In ipvs mode kube-proxy programs the kernel's load balancer, the module ip_vs. It asks modprobe to load it and, \
          since 1.26, exits if that fails; older releases went on in iptables mode without a word. Cloud and minimal \
          kernels often lack the module, and a line in modprobe.d can forbid it.",
    verify: "The module must be loaded, built into the kernel, or there to be loaded.",
    commands: &[
        "grep '^ip_vs ' /proc/modules",
        "grep /ip_vs.ko /lib/modules/$(uname -r)/modules.builtin /lib/modules/$(uname -r)/modules.dep",
        "modprobe --dry-run --verbose ip_vs",
        "modprobe --showconfig | grep ip_vs",
    ],
    fix: "Install the package with the kernel's further modules (linux-modules-extra-$(uname -r) on Ubuntu, \
          kernel-modules-extra on RHEL and Fedora), or choose another mode.",
    incidents: &[
        "kubernetes/kubernetes#63801: modules built into the kernel were taken to be missing",
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
}];

/// What kube-proxy logs on its way out.
const REFUSAL: &str = "can't use the IPVS proxier";

fn ip_vs(facts: &Facts<'_>) -> Verdict {
    let mode = facts.mode()?;
    if mode != Mode::Ipvs {
        let reason = format!("the mode is {mode}, which does not need ip_vs");
        return Err(Gap::NotApplicable(reason));
    }
    // Virtual servers that can be read are proof enough.
    if facts.node.ipvs().is_ok() {
        return Ok(Vec::new());
    }
    let modules = facts.node.modules()?;
    let (message, standing) = match modules.standing("ip_vs") {
        Standing::Loaded | Standing::BuiltIn | Standing::Loadable => return Ok(Vec::new()),
        Standing::Blocked => (
            "the kernel module that ipvs mode needs is there, but its loading is forbidden",
            "blocked by modprobe.d",
        ),
        Standing::Missing => (
            "the kernel module that ipvs mode needs is neither loaded nor built in nor installed",
            "missing",
        ),
        Standing::Unknown => match refusal(facts) {
            Some(_) => (
                "the kernel module that ipvs mode needs is not loaded, and kube-proxy gave up for want of it",
                "not loaded",
            ),
            None => return Err(unread(facts, modules)),
        },
    };
    let module = Proof::Module {
        module: "ip_vs".to_owned(),
        standing: standing.to_owned(),
    };
    let finding = Finding::new(Severity::Error, "ip_vs", message)
        .seen([module])
        .seen(refusal(facts).map(Proof::Log));
    Ok(vec![match modules.blocked.as_ref().and_then(|m| m.get("ip_vs")) {
        Some(file) => finding.mend(format!(
            "Take the line about ip_vs out of {file}, then run `modprobe ip_vs`; or choose another mode."
        )),
        None => finding,
    }])
}

/// Returns kube-proxy's last word, if its log says that it gave up for want of IPVS.
fn refusal(facts: &Facts<'_>) -> Option<String> {
    let log = facts.node.evidence().text(Item::ProxyLog).ok()?;
    let line = log.lines().rfind(|line| line.contains(REFUSAL))?;
    Some(format!("kube-proxy.log: {}", line.trim()))
}

/// Returns what was not read that would tell where the module stands.
fn unread(facts: &Facts<'_>, modules: &Modules<'_>) -> Gap {
    let item = if modules.loaded.is_none() {
        Item::Modules
    } else if modules.builtin.is_none() {
        Item::ModulesBuiltin
    } else {
        Item::ModulesDep
    };
    match facts.node.evidence().text(item) {
        // Without loadable modules only what is built in counts, and that question does arise.
        Err(Gap::NotApplicable(why)) => Gap::Absent(
            item,
            format!("{why}, and whether ip_vs is built in is not known"),
        ),
        Err(gap) => gap,
        Ok(_) => Gap::NotCollected(item),
    }
}
