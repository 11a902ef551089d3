//! What a mode needs of the kernel.

use super::modules::{MODULES, needed, standing, unread_modules};
use crate::check::core::{
    Collector, MODE, OBSERVED, PODS, TRACKING, VERSION, bridges, is_tracked, kernel_proof,
    link_proof, sysctl_proof,
};
use crate::check::{
    Check, Example, Facts, Finding, Fix, Proof, Severity, Subject, Text, Verdict, When,
};
use kpx_node::backend::Mode;
use kpx_node::backend::requirements::oldest_kernel;
use kpx_node::cluster::release::Change;
use kpx_node::evidence::{Gap, Item};
use kpx_node::net::Family;
use kpx_node::node::modules::{Modules, Standing};

pub(super) const CHECKS: &[Check] = &[
    Check {
        id: "KM08",
        name: "kernel-for-mode",
        severity: Severity::Error,
        when: When::NowAndFor(&[Mode::Ipvs, Mode::Nftables]),
        title: "The kernel is new enough for the mode",
        symptom: "kube-proxy refuses to start in this mode, or works around missing kernel features.",
        why: "The ipvs mode needs kernel 4.1, the nftables mode 5.13: kube-proxy checks the release and exits if it \
              is older.",
        verify: "Compare the kernel's release with the minimum of the mode.",
        commands: &[Example::on_node("uname -r")],
        fix: Text::with(
            "Return to the iptables mode on this node with {}, or upgrade the kernel.",
            &[Example::kpx(&["migrate", "--to", "iptables"])],
        ),
        incidents: &[
            "kubernetes/kubernetes#82065",
            "kubernetes/kubernetes#122743",
        ],
        needs: &[MODE, &[Item::KernelRelease]],
        caused_by: &[],
        run: kernel_for_mode,
    },
    Check {
        id: "KM09",
        name: "nft-modules",
        severity: Severity::Error,
        when: When::NowAndFor(&[Mode::Nftables]),
        title: "The kernel provides the expressions of the nftables mode",
        symptom: "kube-proxy's syncs fail with \"Could not process rule: No such file or directory\", and no Service \
              answers.",
        why: "Each kind of expression (fib, ct, numgen, masquerade, reject) is a separate module. Minimal kernels \
              lack some, and kube-proxy does not check before it writes.",
        verify: "Each must be loaded, built in, or installed.",
        commands: &[Example::on_node(
            "for m in nft_fib_ipv4 nft_ct nft_numgen nft_masq nft_nat nft_reject_ipv4; do modprobe --dry-run $m; done",
        )],
        fix: Text::plain("Install the package with extra kernel modules, or choose another mode."),
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
        caused_by: &[],
        run: nft_modules,
    },
    Check {
        id: "KM10",
        name: "xt-modules",
        severity: Severity::Error,
        when: When::NowAndFor(&[Mode::Iptables, Mode::Ipvs]),
        title: "The kernel provides the matches and targets of the mode",
        symptom: "kube-proxy's syncs fail: iptables-restore rejects a line with \"Couldn't load match\" or \"No \
              chain/target/match by that name\".",
        why: "Each match and target of iptables, and each type of set, is a separate module. Cloud kernels lack some: \
              without xt_set, for example, the ipvs mode cannot write a single rule.",
        verify: "Each must be loaded, built in, or installed.",
        commands: &[Example::on_node(
            "for m in xt_comment xt_mark xt_addrtype xt_conntrack xt_statistic xt_set; do modprobe --dry-run $m; done",
        )],
        fix: Text::with(
            "Install the package with extra kernel modules, or a complete kernel; or choose another mode, which {} examines.",
            &[Example::kpx(&["doctor", "--to", "nftables"])],
        ),
        incidents: &[
            "cloudnativelabs/kube-router#775: a cloud kernel without xt_set",
            "kubernetes/kubernetes#142068: nfnetlink_acct without xt_nfacct",
        ],
        needs: &[
            MODE,
            VERSION,
            MODULES,
            OBSERVED,
            &[Item::ProxyConfig, Item::ConfigMaps],
        ],
        caused_by: &[],
        run: xt_modules,
    },
    Check {
        id: "KM11",
        name: "legacy-tables",
        severity: Severity::Error,
        when: When::NowAndFor(&[Mode::Iptables, Mode::Ipvs]),
        title: "iptables does not use the legacy backend on a kernel without it",
        symptom: "kube-proxy's syncs fail with \"can't initialize iptables table\".",
        why: "Newer distributions build their kernels without ip_tables. Tools of the legacy backend, from an old \
              image or selected by alternatives, cannot work there.",
        verify: "If iptables reports (legacy), the module ip_tables must exist.",
        commands: &[
            Example::on_node("iptables --version"),
            Example::on_node("modprobe --dry-run ip_tables iptable_nat"),
        ],
        fix: Text::plain(
            "Choose the nft backend of iptables (`update-alternatives --config iptables`, or a newer image), or the \
              nftables mode.",
        ),
        incidents: &[
            "kubernetes/kops#17789",
            "kubernetes/kops#18179: RHEL 10 has none",
        ],
        needs: &[MODE, MODULES, &[Item::IptablesVersion]],
        caused_by: &[],
        run: legacy,
    },
    Check {
        id: "KM12",
        name: "conntrack-available",
        severity: Severity::Error,
        when: When::NowAndFor(&Mode::ALL),
        title: "The kernel tracks connections",
        symptom: "kube-proxy restarts repeatedly with an error about nf_conntrack_max.",
        why: "kube-proxy sets net.netfilter.nf_conntrack_max when it starts, and every mode translates addresses with \
              connection tracking. Without the module nf_conntrack both fail.",
        verify: "The sysctl must exist.",
        commands: &[
            Example::on_node("cat /proc/sys/net/netfilter/nf_conntrack_max"),
            Example::on_node("modprobe nf_conntrack"),
        ],
        fix: Text::plain(
            "Load nf_conntrack before kube-proxy starts, and list it in /etc/modules-load.d.",
        ),
        incidents: &["kubernetes/kops#17915"],
        needs: &[TRACKING],
        caused_by: &[],
        run: tracking,
    },
    Check {
        id: "KM13",
        name: "bridge-netfilter",
        severity: Severity::Error,
        when: When::Now,
        title: "Packets between pods on a bridge pass through iptables",
        symptom: "A Service fails exactly when the endpoint is on the client's own node.",
        why: "On a bridge of pods the endpoint's reply goes directly to the client and bypasses the rules that would \
              reverse the translation, unless br_netfilter passes bridged packets to iptables.",
        verify: "The module br_netfilter must be loaded and the sysctl must be 1.",
        commands: &[
            Example::on_node("sysctl net.bridge.bridge-nf-call-iptables"),
            Example::on_node("lsmod | grep br_netfilter"),
        ],
        fix: Text::plain(
            "Run `modprobe br_netfilter` and `sysctl -w net.bridge.bridge-nf-call-iptables=1`, and make both \
             persistent in /etc/modules-load.d and /etc/sysctl.d.",
        ),
        incidents: &[
            "kubernetes/kubernetes#24019",
            "kubernetes/kubernetes#38802",
            "kelseyhightower/kubernetes-the-hard-way#561",
        ],
        needs: &[PODS, TRACKING],
        caused_by: &[],
        run: bridge_netfilter,
    },
];

fn kernel_for_mode(facts: &Facts<'_>) -> Verdict {
    let mode = facts.mode()?;
    let Some(oldest) = oldest_kernel(mode) else {
        return Err(Gap::NotApplicable(format!("the mode is {mode}")));
    };
    if facts.node.kernel()? >= oldest {
        return Ok(Vec::new());
    }
    let runs = has_rules(facts, mode);
    let message = if runs {
        format!("the {mode} mode runs here, but it is made for kernel {oldest} or newer")
    } else {
        format!("the {mode} mode needs kernel {oldest} or newer")
    };
    let severity = if runs {
        Severity::Warning
    } else {
        Severity::Error
    };
    Ok(vec![
        Finding::new(severity, Subject::Kernel, message).evidence([kernel_proof(facts)?]),
    ])
}

/// Returns whether kube-proxy runs in `mode` and has written its IPv4 rules.
fn has_rules(facts: &Facts<'_>, mode: Mode) -> bool {
    let is_it = |held: Option<Mode>| held == Some(mode);
    facts.current().is_ok_and(|current| current == mode)
        && facts.observed(Family::V4).is_ok_and(is_it)
}

/// Finds modules that the rules of `mode` need and the kernel lacks.
fn rules(facts: &Facts<'_>, mode: Mode, of: impl Fn(&str) -> bool) -> Verdict {
    // Existing rules prove that the kernel has the modules.
    if has_rules(facts, mode) {
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
            Err(unread_modules(facts))
        } else {
            Ok(Vec::new())
        };
    }
    let message = format!("the kernel lacks modules that the rules of the {mode} mode need");
    Ok(vec![
        Finding::new(Severity::Error, Subject::Modules, message).evidence(absent),
    ])
}

fn nft_modules(facts: &Facts<'_>) -> Verdict {
    let mode = facts.only_in(&[Mode::Nftables])?;
    rules(facts, mode, |name| name.starts_with("nf"))
}

/// Returns whether kube-proxy writes rules with nfacct, which the kernel then refuses: kube-proxy asks only for `nfnetlink_acct`.
fn counters_without_match(facts: &Facts<'_>, mode: Mode) -> bool {
    let version = facts.version();
    mode == Mode::Iptables
        && version.is_ok_and(|version| version.version.has(Change::NfacctCounters))
        && facts.node.modules().is_ok_and(Modules::counts_unmatched)
}

fn xt_modules(facts: &Facts<'_>) -> Verdict {
    let mode = facts.only_in(&[Mode::Iptables, Mode::Ipvs])?;
    if counters_without_match(facts, mode) {
        let message = "the kernel has nfnetlink_acct without xt_nfacct: kube-proxy writes rules with nfacct, and \
                       iptables-restore rejects all of them";
        let seen = [
            Proof::module("xt_nfacct", "missing"),
            Proof::module("nfnetlink_acct", "present"),
        ];
        return Ok(vec![
            Finding::new(Severity::Error, Subject::Modules, message)
                .evidence(seen)
                .fix(Fix::on_node(
                    "Use a kernel with xt_nfacct (CONFIG_NETFILTER_XT_MATCH_NFACCT), or forbid nfnetlink_acct: kube-proxy then \
                     writes no such rules. Restart kube-proxy afterwards.",
                    "echo install nfnetlink_acct /bin/false >/etc/modprobe.d/nfacct.conf && rmmod nfnetlink_acct",
                )),
        ]);
    }
    // KM01 and KM02 check the modules of IPVS.
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
    let standing = match standing(modules, "ip_tables") {
        Standing::Loaded | Standing::BuiltIn | Standing::Loadable => return Ok(Vec::new()),
        Standing::Unknown => return Err(unread_modules(facts)),
        Standing::Blocked => "blocked by modprobe.d",
        Standing::Missing => "missing",
    };
    let message = "iptables uses the legacy backend, but the kernel has no legacy tables";
    Ok(vec![
        Finding::new(Severity::Error, Subject::tool("iptables"), message).evidence([
            Proof::Note(version.to_owned()),
            Proof::module("ip_tables", standing),
        ]),
    ])
}

fn tracking(facts: &Facts<'_>) -> Verdict {
    if is_tracked(facts)? {
        return Ok(Vec::new());
    }
    let key = "net.netfilter.nf_conntrack_max";
    let message = "the kernel does not track connections, but every mode needs that";
    Ok(vec![
        Finding::new(Severity::Error, Subject::module("nf_conntrack"), message)
            .evidence([sysctl_proof(key, "missing")])
            .fix(Fix::on_node(
                "Load the module, and list it in /etc/modules-load.d so that it is loaded before kube-proxy starts.",
                "modprobe nf_conntrack",
            )),
    ])
}

fn bridge_netfilter(facts: &Facts<'_>) -> Verdict {
    let bridges = bridges(facts)?;
    let mut findings = Collector::default();
    for family in facts.pod_families()? {
        let value = findings.read(bridge_call(facts, family));
        let Some(value) = value.filter(|value| value.is_none_or(|value| value == "0")) else {
            continue;
        };
        let mut bypassed = bridges
            .iter()
            .filter(|link| !link.calls_iptables(family))
            .peekable();
        if bypassed.peek().is_none() {
            continue;
        }
        let key = call_key(family);
        let message =
            "bridged packets bypass iptables: replies from pods on the same node are lost";
        let seen = Proof::Sysctl {
            key: key.to_owned(),
            value: value.unwrap_or("missing").to_owned(),
        };
        findings.push(
            Finding::new(Severity::Error, Subject::sysctl(key), message)
                .evidence([seen])
                .evidence(bypassed.map(|link| link_proof(link, "a bridge of pods")))
                .fix(Fix::on_node(
                    "Load the module and set the sysctl; make both persistent in /etc/modules-load.d and /etc/sysctl.d.",
                    match value {
                        // The sysctl exists if the module is loaded or built in; modprobe may not know a built-in one.
                        Some(_) => format!("sysctl -w {key}=1"),
                        None => format!("modprobe br_netfilter && sysctl -w {key}=1"),
                    },
                )),
        );
    }
    findings.verdict()
}

/// Returns the sysctl that passes bridged packets of `family` to iptables.
const fn call_key(family: Family) -> &'static str {
    match family {
        Family::V4 => "net.bridge.bridge-nf-call-iptables",
        Family::V6 => "net.bridge.bridge-nf-call-ip6tables",
    }
}

/// Returns the value of that sysctl; `None` if the kernel does not have it, without the module `br_netfilter`.
fn bridge_call<'f>(facts: &'f Facts<'_>, family: Family) -> Result<Option<&'f str>, Gap> {
    let (key, sysctl) = (call_key(family), facts.node.sysctl()?);
    if let Some(value) = sysctl.get(key) {
        return Ok(Some(value));
    }
    // The list of sysctls may be partial; the list of modules is complete.
    let modules = facts.node.modules()?;
    match (&modules.loaded, modules.standing("br_netfilter")) {
        (Some(_), Standing::Loadable | Standing::Blocked | Standing::Missing) => Ok(None),
        _ => Err(Gap::Absent(Item::Sysctl, format!("it has no {key}"))),
    }
}
