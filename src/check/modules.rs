//! KM, AP: what the kernel must bring for the current mode, or for one the node is to be moved to.

use super::ask::{recorded, seen};
use super::facts::MODE;
use super::kernel::OBSERVED;
use super::{Check, Facts, Finding, Proof, Severity, Verdict, When};
use crate::backend::Mode;
use crate::backend::requirements;
use crate::evidence::{Gap, Item};
use crate::net::Family;
use crate::node::modules::{Modules, Standing};

const MODULES: &[Item] = &[
    Item::Modules,
    Item::ModulesBuiltin,
    Item::ModulesDep,
    Item::Modprobe,
];

pub(super) const CHECKS: &[Check] = &[
    Check {
        id: "KM03",
        name: "modules-at-boot",
        severity: Severity::Warning,
        when: When::For(&[Mode::Ipvs]),
        title: "What the ipvs mode needs is loaded at boot, too",
        symptom: "After a reboot kube-proxy restarts over and over with \"can't use the IPVS proxier\".",
        why: "A module that was loaded by hand is gone after the next boot. kube-proxy asks modprobe for ip_vs and its \
              scheduler at its start, but an image without modprobe, or a pod without /lib/modules, cannot.",
        verify: "Each module must be named in /etc/modules or a file of modules-load.d.",
        commands: &[
            "grep -rE 'ip_vs|nf_conntrack' /etc/modules /etc/modules-load.d /usr/lib/modules-load.d",
        ],
        fix: "Name ip_vs, the scheduler's module and nf_conntrack in one file of /etc/modules-load.d.",
        incidents: &["kubernetes-sigs/kubespray#9628: the file was overwritten"],
        needs: &[MODE, MODULES, &[Item::ModulesLoad]],
        caused_by: &["KM01"],
        run: at_boot,
    },
    Check {
        id: "KM04",
        name: "module-tree",
        severity: Severity::Error,
        when: When::For(&[Mode::Ipvs, Mode::Nftables]),
        title: "The modules of the running kernel are still installed",
        symptom: "Loading a module fails: there is no folder for the running kernel below /lib/modules.",
        why: "A package update replaced the kernel and took the old one's modules away, and the node was not rebooted. \
              What is loaded stays, but nothing more can be loaded until the node runs the new kernel.",
        verify: "The folder of the running release must be there.",
        commands: &["ls -d /lib/modules/$(uname -r)"],
        fix: "Reboot the node before the move.",
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
        title: "The kernel lets modules be loaded, where the mode needs more of them",
        symptom: "Loading a module fails with \"Operation not permitted\", for root as well.",
        why: "A hardened host sets kernel.modules_disabled to 1 after boot, which nothing but a reboot takes back. What \
              the mode needs must be loaded before.",
        verify: "The setting must be 0, or everything that is needed loaded.",
        commands: &["sysctl kernel.modules_disabled"],
        fix: "Name the modules in /etc/modules-load.d, so that they are loaded before the setting is made, and reboot.",
        incidents: &["sysctl kernel.modules_disabled is a part of common hardening guides"],
        needs: &[MODE, MODULES, &[Item::Sysctl]],
        caused_by: &[],
        run: loading,
    },
    Check {
        id: "KM09",
        name: "nft-modules",
        severity: Severity::Error,
        when: When::NowAndFor(&[Mode::Nftables]),
        title: "The kernel has what the rules of the nftables mode are made of",
        symptom: "kube-proxy's syncs fail with \"Could not process rule: No such file or directory\", and no Service \
                  answers.",
        why: "Each kind of expression (fib, ct, numgen, masquerade, reject) is a module of its own. Minimal kernels leave \
              some out, and kube-proxy does not look before it writes.",
        verify: "Each must be loaded, built in, or there to be loaded.",
        commands: &[
            "for m in nft_fib_ipv4 nft_ct nft_numgen nft_masq nft_nat nft_reject_ipv4; do modprobe --dry-run $m; done",
        ],
        fix: "Install the package with the kernel's further modules, or choose another mode.",
        incidents: &[
            "siderolabs/pkgs#951: nft_fib",
            "kubernetes/kops#17915",
            "kubernetes/kops#17920: nft_ct",
        ],
        needs: &[
            MODE,
            MODULES,
            OBSERVED,
            &[Item::ProxyConfig, Item::ConfigMaps],
        ],
        caused_by: &["KM08"],
        run: nft_modules,
    },
    Check {
        id: "KM10",
        name: "xt-modules",
        severity: Severity::Error,
        when: When::NowAndFor(&[Mode::Iptables, Mode::Ipvs]),
        title: "The kernel has what the rules of the mode are made of",
        symptom: "kube-proxy's syncs fail: iptables-restore refuses a line with \"Couldn't load match\" or \"No \
                  chain/target/match by that name\".",
        why: "Each match and target of iptables, and each type of set, is a module of its own. Cloud kernels leave some \
              out: without xt_set, say, the ipvs mode cannot write a single rule.",
        verify: "Each must be loaded, built in, or there to be loaded.",
        commands: &[
            "for m in xt_comment xt_mark xt_addrtype xt_conntrack xt_statistic xt_set; do modprobe --dry-run $m; done",
        ],
        fix: "Install the package with the kernel's further modules, or a kernel that is not cut down.",
        incidents: &["cloudnativelabs/kube-router#775: a cloud kernel without xt_set"],
        needs: &[
            MODE,
            MODULES,
            OBSERVED,
            &[Item::ProxyConfig, Item::ConfigMaps],
        ],
        caused_by: &["KM01"],
        run: xt_modules,
    },
    Check {
        id: "KM11",
        name: "legacy-tables",
        severity: Severity::Error,
        when: When::NowAndFor(&[Mode::Iptables, Mode::Ipvs]),
        title: "A kernel without legacy tables has no legacy iptables",
        symptom: "kube-proxy's syncs fail with \"can't initialize iptables table\".",
        why: "Newer distributions build their kernels without ip_tables. The tools of the legacy back end, in an old image \
              or chosen by alternatives, have nothing to talk to there.",
        verify: "Where iptables says (legacy), the module ip_tables must be there.",
        commands: &[
            "iptables --version",
            "modprobe --dry-run ip_tables iptable_nat",
        ],
        fix: "Choose the nft back end of iptables (`update-alternatives --config iptables`, or a newer image), or the \
              nftables mode.",
        incidents: &[
            "kubernetes/kops#17789",
            "kubernetes/kops#18179: RHEL 10 has none",
        ],
        needs: &[MODE, MODULES, &[Item::IptablesVersion]],
        caused_by: &[],
        run: legacy,
    },
    Check {
        id: "KM14",
        name: "ip-vs-stays",
        severity: Severity::Info,
        when: When::For(&[Mode::Iptables, Mode::Nftables]),
        title: "The module ip_vs is not loaded where nothing will use it",
        symptom: "None: a check elsewhere that takes the module for the mode is wrong.",
        why: "Nothing unloads ip_vs after a move. kube-proxy even loads it when it starts in nftables mode, to look what \
              there is to clean up. So that it is loaded does not mean that the mode is ipvs.",
        verify: "Ask kube-proxy for its mode instead of lsmod.",
        commands: &[
            "curl -s http://127.0.0.1:10249/proxyMode",
            "lsmod | grep ip_vs",
        ],
        fix: "Nothing has to be done; let no other tool tell the mode by lsmod.",
        incidents: &["kube-proxy runs modprobe ip_vs in its clean-up"],
        needs: &[&[Item::Modules]],
        caused_by: &[],
        run: stays,
    },
    Check {
        id: "AP11",
        name: "sctp-tracked",
        severity: Severity::Warning,
        when: When::NowAndFor(&Mode::ALL),
        title: "The kernel tracks SCTP where Services use it",
        symptom: "A Service with an SCTP port does not answer, or its connections break.",
        why: "To translate SCTP the kernel must know its connections. That is a part of nf_conntrack, which a kernel can be \
              built without.",
        verify: "The kernel must have timeouts for SCTP connections.",
        commands: &["sysctl -a | grep nf_conntrack_sctp"],
        fix: "Use a kernel that is built with CONFIG_NF_CT_PROTO_SCTP.",
        incidents: &["kubernetes/kubernetes#77265"],
        needs: &[&[Item::Services, Item::Sysctl]],
        caused_by: &[],
        run: sctp,
    },
];

/// Returns the modules that `mode` needs on any node.
fn needed(facts: &Facts<'_>, mode: Mode) -> Vec<String> {
    let config = facts.configuration();
    let scheduler = config
        .as_ref()
        .map_or("rr", |config| config.scheduler())
        .to_owned();
    let all = requirements::modules_always(mode, &scheduler).into_iter();
    all.map(std::borrow::Cow::into_owned).collect()
}

/// Returns where `name` stands; kernels before 5.2 call the module of masquerading otherwise.
fn standing(modules: &Modules<'_>, name: &str) -> Standing {
    match (name, modules.standing(name)) {
        ("xt_MASQUERADE", Standing::Missing) => modules.standing("ipt_MASQUERADE"),
        (_, standing) => standing,
    }
}

/// Returns what was not read that would tell where a module stands.
fn unread(facts: &Facts<'_>) -> Gap {
    let tells = [Item::ModulesBuiltin, Item::ModulesDep, Item::Modules];
    let gap = tells
        .iter()
        .find_map(|item| facts.node.evidence().text(*item).err());
    gap.unwrap_or(Gap::NotCollected(Item::Modules))
}

/// Whether modules are loaded at all: what is built in cannot need one, and every mode needs this one.
fn is_modular(modules: &Modules<'_>) -> bool {
    let loaded = modules.loaded.as_ref();
    loaded.is_some_and(|loaded| loaded.contains_key("nf_conntrack"))
}

fn at_boot(facts: &Facts<'_>) -> Verdict {
    let modules = facts.node.modules()?;
    let loaded = modules.loaded.as_ref().ok_or_else(|| unread(facts))?;
    let config = facts.configuration();
    let scheduler = config.as_ref().map_or("rr", |config| config.scheduler());
    let needed = [
        "ip_vs".to_owned(),
        format!("ip_vs_{scheduler}"),
        "nf_conntrack".to_owned(),
    ];
    let wanted: Vec<_> = needed.iter().filter(|m| loaded.contains_key(*m)).collect();
    if wanted.is_empty() {
        let why = "none of them is loaded as a module";
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
        return Ok(Vec::new());
    }
    let message = "modules that the ipvs mode needs are loaded now, but nothing loads them at boot";
    // The file is written anew: it has to name all of them, and not those alone that are missing now.
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
    Ok(vec![
        Finding::new(Severity::Warning, "modules", message)
            .seen(seen)
            .mend_by(
                "Name all that the mode needs in one file of modules-load.d.",
                command,
            ),
    ])
}

/// Returns the modules of the target mode that are neither loaded nor built in, as far as that is known.
fn not_there(facts: &Facts<'_>) -> Result<Vec<String>, Gap> {
    let modules = facts.node.modules()?;
    if modules.loaded.is_none() {
        return Err(unread(facts));
    }
    if modules.builtin.is_none() && !is_modular(modules) {
        return Err(unread(facts));
    }
    let there = |name: &String| {
        matches!(
            standing(modules, name),
            Standing::Loaded | Standing::BuiltIn
        )
    };
    let mut missing = needed(facts, facts.mode()?);
    missing.retain(|name| !there(name));
    Ok(missing)
}

fn tree(facts: &Facts<'_>) -> Verdict {
    let why = match facts.node.evidence().text(Item::ModulesDep) {
        Ok(_) => return Ok(Vec::new()),
        Err(Gap::Absent(_, why)) => why,
        Err(gap) => return Err(gap),
    };
    let missing = not_there(facts)?;
    let message = "the modules of the running kernel are not installed any more: none can be loaded until a reboot";
    let severity = if missing.is_empty() {
        Severity::Warning
    } else {
        Severity::Error
    };
    let not_loaded = missing
        .iter()
        .map(|name| Proof::module(name.as_str(), "not loaded"));
    Ok(vec![
        Finding::new(severity, "modules", message)
            .seen([Proof::Note(why)])
            .seen(not_loaded),
    ])
}

fn loading(facts: &Facts<'_>) -> Verdict {
    const KEY: &str = "kernel.modules_disabled";
    if recorded(facts, KEY)? == "0" {
        return Ok(Vec::new());
    }
    let missing = not_there(facts)?;
    if missing.is_empty() {
        return Ok(Vec::new());
    }
    let message = "the kernel refuses to load modules, and some that the mode needs are not loaded";
    let not_loaded = missing
        .iter()
        .map(|name| Proof::module(name.as_str(), "not loaded"));
    Ok(vec![
        Finding::new(Severity::Error, "modules", message)
            .seen([seen(KEY, 1)])
            .seen(not_loaded),
    ])
}

/// Finds what the rules of `mode` are made of and the kernel does not have.
fn rules(facts: &Facts<'_>, mode: Mode, of: impl Fn(&str) -> bool) -> Verdict {
    // Rules that are there are proof enough.
    if facts.current().is_ok_and(|current| current == mode)
        && facts
            .observed(Family::V4)
            .is_ok_and(|held| held == Some(mode))
    {
        return Ok(Vec::new());
    }
    let modules = facts.node.modules()?;
    let mut absent = Vec::new();
    let mut unsure = false;
    for name in needed(facts, mode).into_iter().filter(|name| of(name)) {
        match standing(modules, &name) {
            Standing::Missing => absent.push(Proof::module(name, "missing")),
            Standing::Blocked => absent.push(Proof::module(name, "blocked by modprobe.d")),
            Standing::Unknown => unsure = true,
            Standing::Loaded | Standing::BuiltIn | Standing::Loadable => {}
        }
    }
    if absent.is_empty() {
        return if unsure {
            Err(unread(facts))
        } else {
            Ok(Vec::new())
        };
    }
    let message = format!("the kernel lacks what the rules of the {mode} mode are made of");
    Ok(vec![
        Finding::new(Severity::Error, "modules", message).seen(absent),
    ])
}

fn nft_modules(facts: &Facts<'_>) -> Verdict {
    let mode = facts.only_in(&[Mode::Nftables])?;
    rules(facts, mode, |name| name.starts_with("nf"))
}

fn xt_modules(facts: &Facts<'_>) -> Verdict {
    let mode = facts.only_in(&[Mode::Iptables, Mode::Ipvs])?;
    // What IPVS itself needs is another check's.
    let of = ["xt_", "ipt_", "ip_set"];
    rules(facts, mode, |name| {
        of.iter().any(|prefix| name.starts_with(prefix))
    })
}

fn legacy(facts: &Facts<'_>) -> Verdict {
    facts.only_in(&[Mode::Iptables, Mode::Ipvs])?;
    let version = facts.node.evidence().text(Item::IptablesVersion)?.trim();
    if version.contains("nf_tables") {
        return Ok(Vec::new());
    }
    let modules = facts.node.modules()?;
    let standing = match modules.standing("ip_tables") {
        Standing::Loaded | Standing::BuiltIn | Standing::Loadable => return Ok(Vec::new()),
        Standing::Unknown => return Err(unread(facts)),
        Standing::Blocked => "blocked by modprobe.d",
        Standing::Missing => "missing",
    };
    let message = "iptables is of the legacy back end, and the kernel has no legacy tables";
    Ok(vec![
        Finding::new(Severity::Error, "iptables", message).seen([
            Proof::Note(version.to_owned()),
            Proof::module("ip_tables", standing),
        ]),
    ])
}

fn stays(facts: &Facts<'_>) -> Verdict {
    let modules = facts.node.modules()?;
    let loaded = modules.loaded.as_ref().ok_or_else(|| unread(facts))?;
    if !loaded.contains_key("ip_vs") {
        return Ok(Vec::new());
    }
    let message = "the module is loaded and stays so: that does not mean the ipvs mode";
    Ok(vec![
        Finding::new(Severity::Info, "ip_vs", message).seen([Proof::module("ip_vs", "loaded")]),
    ])
}

fn sctp(facts: &Facts<'_>) -> Verdict {
    let services = facts.node.services()?.iter();
    let with: Vec<_> = services
        .filter(|service| {
            service
                .spec
                .ports
                .iter()
                .any(|port| port.protocol == "SCTP")
        })
        .map(|service| {
            Proof::object(
                "service",
                format!("{}/{}", service.metadata.namespace, service.metadata.name),
            )
        })
        .collect();
    if with.is_empty() {
        return Err(Gap::NotApplicable("no Service has an SCTP port".to_owned()));
    }
    // A recording may leave all of these out.
    recorded(facts, "net.netfilter.nf_conntrack_icmp_timeout")?;
    let key = "net.netfilter.nf_conntrack_sctp_timeout_established";
    if facts.node.sysctl()?.get(key).is_some() {
        return Ok(Vec::new());
    }
    let message = "Services have SCTP ports, and the kernel does not track SCTP";
    Ok(vec![
        Finding::new(Severity::Warning, "SCTP", message)
            .seen([seen(key, "missing")])
            .seen(with),
    ])
}
