//! DP: settings, flags and drivers that later releases remove.

use crate::check::core::{
    Collector, MODE, VERSION, is_served, kernel_proof, leaves, name_of, plain, with_flags,
};
use crate::check::{Check, Example, Facts, Finding, Proof, Severity, Subject, Text, Verdict, When};
use kpx_node::backend::Mode;
use kpx_node::backend::requirements::oldest_kernel;
use kpx_node::cluster::Service;
use kpx_node::cluster::config::written;
use kpx_node::cluster::release::Change;
use kpx_node::cluster::release::planned::NFTABLES_DEFAULT;
use kpx_node::evidence::kernel_log::{self, Message};
use kpx_node::evidence::{Gap, Item};

pub(super) const CHECKS: &[Check] = &[
    Check {
        id: "DP01",
        name: "ipvs-deprecated",
        severity: Severity::Warning,
        when: When::Now,
        title: "Later releases of kube-proxy support the mode",
        symptom: "kube-proxy logs and records an event that the ipvs mode is deprecated.",
        why: "Upstream abandons the ipvs mode: deprecated since 1.35, off by default in 1.40 and removed in 1.43 \
              (KEP-5495); some vendors are faster. A node that is still on ipvs after its removal has no service \
              proxy.",
        verify: "Compare the mode in use with the release of kube-proxy.",
        commands: &[
            Example::on_node("curl -s http://127.0.0.1:10249/proxyMode"),
            Example::on_node("curl -s http://127.0.0.1:10249/metrics | grep kubernetes_build_info"),
        ],
        fix: Text::with(
            "Plan the switch to the nftables mode (kernel 5.13 or newer), or to iptables if the kernel or the \
             network plugin does not support it, before the upgrade to 1.40. {} lists what blocks it.",
            &[Example::kpx(&["doctor", "--to", "nftables"])],
        ),
        incidents: &[
            "KEP-5495: deprecate the ipvs mode of kube-proxy",
            "kubernetes/kubernetes#134539",
            "aws/containers-roadmap#2826: EKS removes it in 1.36",
        ],
        needs: &[MODE, VERSION],
        caused_by: &[],
        run: ipvs,
    },
    Check {
        id: "DP10",
        name: "userspace-mode",
        severity: Severity::Warning,
        when: When::Now,
        title: "kube-proxy does not run in the userspace mode, which 1.26 removed",
        symptom: "After an upgrade to 1.26 kube-proxy exits at its start: \"userspace\" is no mode any more. Until then, \
              every packet of a Service passes through kube-proxy's process, pods see the node's address as the \
              client's, and all connections break when kube-proxy restarts.",
        why: "The userspace mode was the first one. kube-proxy listens on a random port of the node for each port of \
              a Service (from portRange, if set), and rules called portals lead packets there. Its process accepts \
              the connection, chooses the next ready endpoint in turn, or with session affinity the client's last \
              one, and copies data in both directions. It ignores traffic policies, source ranges and \
              nodePortAddresses, and serves one IP family only. Deprecated since 1.23, it was removed in 1.26.",
        verify: "Ask kube-proxy for its mode, and look for its portals.",
        commands: &[
            Example::on_node("curl -s http://127.0.0.1:10249/proxyMode"),
            Example::kpx(&["show", "portals"]),
        ],
        fix: Text::with(
            "Run {} to see the plan of the switch, before the upgrade to 1.26. Established connections through \
             kube-proxy end with the old process.",
            &[Example::kpx(&["migrate", "--to", "iptables", "--dry-run"])],
        ),
        incidents: &["kubernetes/kubernetes#112133: the removal in 1.26"],
        needs: &[MODE],
        caused_by: &[],
        run: userspace,
    },
    Check {
        id: "DP03",
        name: "ipvs-settings-lost",
        severity: Severity::Warning,
        when: When::For(&[Mode::Iptables, Mode::Nftables]),
        title: "The ipvs mode has no settings that other modes lack",
        symptom: "After the switch, endpoints get other shares of the traffic, and idle connections end at other \
              times.",
        why: "Schedulers, IPVS timeouts and strictARP exist only in ipvs mode. Other modes choose endpoints at \
              random, and conntrack's timeouts apply. In any case, a scheduler balances only the connections of one \
              node.",
        verify: "Read the section ipvs of kube-proxy's configuration.",
        commands: &[Example::anywhere(
            "kubectl -n kube-system get configmap kube-proxy -o yaml | grep -A12 'ipvs:'",
        )],
        fix: Text::plain("Make sure that no application depends on these settings; then switch."),
        incidents: &["KEP-5495: schedulers give no benefit across nodes"],
        needs: &[MODE],
        caused_by: &[],
        run: lost_settings,
    },
    Check {
        id: "DP04",
        name: "unmaintained-drivers",
        severity: Severity::Info,
        when: When::Now,
        title: "The distribution maintains the drivers that kube-proxy uses",
        symptom: "The kernel log warns of an unmaintained driver.",
        why: "Enterprise distributions mark parts of their kernels as unmaintained before they remove them, including \
              ip_set and nft_compat, which iptables-nft needs.",
        verify: "Look for the warning in the kernel log.",
        commands: &[Example::on_node("dmesg | grep -i 'unmaintained driver'")],
        fix: Text::plain("Plan the switch to the nftables mode, which needs neither."),
        incidents: &["kubernetes/enhancements#5343: seen on RHEL 9 and 10"],
        needs: &[&[Item::KernelLog]],
        caused_by: &[],
        run: unmaintained,
    },
    Check {
        id: "DP05",
        name: "removed-settings",
        severity: Severity::Warning,
        when: When::NowAndFor(&Mode::ALL),
        title: "kube-proxy's configuration has no removed fields",
        symptom: "A setting has no effect; some releases do not start with it.",
        why: "Fields were renamed and removed over the years. Depending on the release, kube-proxy reads such a file \
              leniently and logs a warning, or refuses it.",
        verify: "Compare the fields with the reference of kubeproxy.config.k8s.io/v1alpha1.",
        commands: &[
            Example::anywhere("kubectl -n kube-system get configmap kube-proxy -o yaml"),
            Example::anywhere("kubectl -n kube-system logs POD | grep -i strict").with(&["POD"]),
        ],
        fix: Text::plain("Remove the field from the ConfigMap, or use its new name."),
        incidents: &["aws/containers-roadmap#142"],
        needs: &[&[Item::ProxyConfig]],
        caused_by: &[],
        run: removed_fields,
    },
    Check {
        id: "DP06",
        name: "kernel-for-nftables",
        severity: Severity::Warning,
        when: When::Now,
        title: "A node in ipvs mode has a kernel that supports the nftables mode",
        symptom: "None yet; the node can only switch to the iptables mode, or needs a new kernel.",
        why: "The ipvs mode is deprecated, and the nftables mode needs kernel 5.13.",
        verify: "The kernel must be 5.13 or newer.",
        commands: &[Example::on_node("uname -r")],
        fix: Text::plain(
            "Plan a newer kernel for this node before the ipvs mode is removed, or the switch to iptables.",
        ),
        incidents: &["KEP-5495"],
        needs: &[MODE, &[Item::KernelRelease]],
        caused_by: &[],
        run: kernel_for_nftables,
    },
    Check {
        id: "DP07",
        name: "removed-flags",
        severity: Severity::Warning,
        when: When::Now,
        title: "kube-proxy has no flags that newer releases reject",
        symptom: "kube-proxy exits at once after an upgrade: \"unknown flag\".",
        why: "Flags such as --cleanup-ipvs and --cleanup-iptables were removed. An old manifest may still contain \
              them.",
        verify: "Compare the flags with `kube-proxy --help` of the next release.",
        commands: &[Example::anywhere(
            "kubectl -n kube-system get daemonset kube-proxy -o jsonpath='{.spec.template.spec.containers[0].command}'",
        )],
        fix: Text::plain("Remove the flag from the manifest."),
        incidents: &["kubernetes/kubernetes#96034"],
        needs: &[&[Item::Pods, Item::DaemonSets, Item::Nodes, Item::Addresses]],
        caused_by: &[],
        run: removed_flags,
    },
    Check {
        id: "DP08",
        name: "external-ips",
        severity: Severity::Warning,
        when: When::Now,
        title: "No Service uses externalIPs, which later releases ignore",
        symptom: "The API server warns when such a Service is changed. After an upgrade to 1.40, connections to its \
              externalIPs fail.",
        why: "Anyone who may create Services can take over any address with externalIPs (CVE-2020-8554). Upstream \
              therefore removes them from kube-proxy: deprecated since 1.36, off by default in 1.40 and removed in \
              1.43 (KEP-5707). If the feature gate AllowServiceExternalIPs is off, kube-proxy ignores them already.",
        verify: "List the Services with spec.externalIPs, and look for the feature gate in kube-proxy's configuration.",
        commands: &[
            Example::anywhere(
                "kubectl get services -A -o custom-columns=NS:.metadata.namespace,NAME:.metadata.name,IPS:.spec.externalIPs",
            ),
            Example::anywhere(
                "kubectl -n kube-system get configmap kube-proxy -o yaml | grep AllowServiceExternalIPs",
            ),
        ],
        fix: Text::plain(
            "Change the Service to type LoadBalancer with a controller that assigns the same address, for example \
             MetalLB, and remove spec.externalIPs before the upgrade to 1.40.",
        ),
        incidents: &[
            "KEP-5707: deprecate Service.spec.externalIPs",
            "kubernetes/kubernetes#97076: CVE-2020-8554",
            "kubernetes/kubernetes#137293: the gate AllowServiceExternalIPs",
        ],
        needs: &[VERSION, &[Item::Services, Item::ConfigMaps]],
        caused_by: &[],
        run: external_ips,
    },
    Check {
        id: "DP09",
        name: "default-mode",
        severity: Severity::Warning,
        when: When::Now,
        title: "kube-proxy's configuration sets a mode",
        symptom: "None yet; an upgrade of kube-proxy to 1.40 changes the mode of the node.",
        why: "Without a mode kube-proxy uses iptables. KEP-5343 (provisional) makes nftables the default from 1.40: it needs \
              kernel 5.13, and its NodePorts answer on fewer addresses. kubeadm 1.37 writes the mode iptables where none was \
              set.",
        verify: "The field mode must not be empty.",
        commands: &[Example::anywhere(
            "kubectl -n kube-system get configmap kube-proxy -o yaml | grep '^    mode:'",
        )],
        fix: Text::with(
            "Set `mode: iptables` in kube-proxy's configuration; or switch to nftables when the node is ready: {} \
             lists what blocks it. {} examines the upgrade.",
            &[
                Example::kpx(&["doctor", "--to", "nftables"]),
                Example::kpx(&["doctor", "--release", "1.40"]),
            ],
        ),
        incidents: &["KEP-5343: nftables by default"],
        needs: &[MODE, VERSION, &[Item::KernelRelease]],
        caused_by: &[],
        run: default_mode,
    },
];

fn default_mode(facts: &Facts<'_>) -> Verdict {
    if !facts.configuration()?.mode.is_empty() {
        return Ok(Vec::new());
    }
    let proxy = facts.version().ok();
    if proxy.is_some_and(|proxy| proxy.version.is_at_least(NFTABLES_DEFAULT)) {
        return Ok(Vec::new());
    }
    let setting = Proof::setting("kube-proxy's configuration", "mode", "not set: iptables");
    let mut findings = Collector::default();
    let is_too_old = findings.read(is_too_old_for_nftables(facts));
    let (severity, message) = if is_too_old == Some(true) {
        (
            Severity::Warning,
            "no mode is set: from 1.40 kube-proxy uses nftables then, for which this kernel is too old",
        )
    } else {
        (
            Severity::Info,
            "no mode is set: from 1.40 kube-proxy uses nftables then, instead of iptables",
        )
    };
    findings.push(
        Finding::new(severity, Subject::setting("mode"), message)
            .evidence([setting])
            .evidence(kernel_proof(facts)),
    );
    findings.verdict()
}

/// Returns whether the kernel is too old for the nftables mode.
pub(in crate::check) fn is_too_old_for_nftables(facts: &Facts<'_>) -> Result<bool, Gap> {
    let kernel = facts.node.kernel()?;
    Ok(oldest_kernel(Mode::Nftables).is_some_and(|oldest| kernel < oldest))
}

fn ipvs(facts: &Facts<'_>) -> Verdict {
    let mode = facts.mode()?;
    if mode != Mode::Ipvs {
        return Err(Gap::NotApplicable(format!("the mode is {mode}")));
    }
    let found = facts.version()?;
    if !found.version.has(Change::IpvsDeprecated) {
        return Ok(Vec::new());
    }
    let message =
        "the ipvs mode is deprecated since 1.35, off by default in 1.40 and removed in 1.43";
    let seen = Proof::Setting {
        source: found.source.to_string(),
        key: "version".to_owned(),
        value: found.version.to_string(),
    };
    Ok(vec![
        Finding::new(Severity::Warning, Mode::Ipvs, message).evidence([seen]),
    ])
}

fn userspace(facts: &Facts<'_>) -> Verdict {
    let mode = facts.mode()?;
    if mode != Mode::Userspace {
        return Ok(Vec::new());
    }
    let message =
        "the userspace mode is removed in 1.26: kube-proxy would not start after the upgrade";
    let (source, key) = match facts.reported() {
        Ok(_) => ("kube-proxy", "/proxyMode"),
        Err(_) => ("kube-proxy's configuration", "mode"),
    };
    Ok(vec![
        Finding::new(Severity::Warning, Mode::Userspace, message)
            .evidence([Proof::setting(source, key, mode)]),
    ])
}

fn lost_settings(facts: &Facts<'_>) -> Verdict {
    let current = facts.current()?;
    if current != Mode::Ipvs {
        return Err(Gap::NotApplicable(format!("the mode is {current} now")));
    }
    let ipvs = facts.configuration()?.ipvs;
    let strict = if ipvs.strict_arp { "true" } else { "" };
    let set = [
        ("ipvs.scheduler", ipvs.scheduler.as_str()),
        ("ipvs.tcpTimeout", &ipvs.tcp_timeout),
        ("ipvs.tcpFinTimeout", &ipvs.tcp_fin_timeout),
        ("ipvs.udpTimeout", &ipvs.udp_timeout),
        ("ipvs.strictARP", strict),
    ];
    let seen: Vec<_> = set
        .into_iter()
        .filter(|(_, value)| !matches!(*value, "" | "rr" | "0s" | "0"))
        .map(|(key, value)| Proof::setting("kube-proxy's configuration", key, value))
        .collect();
    if seen.is_empty() {
        return Ok(Vec::new());
    }
    let message = "these settings have no effect in the target mode";
    Ok(vec![
        Finding::new(Severity::Warning, Subject::setting("ipvs"), message).evidence(seen),
    ])
}

fn unmaintained(facts: &Facts<'_>) -> Verdict {
    const DRIVERS: [&str; 3] = ["nft_compat", "ip_set", "ip_tables"];
    let log = kernel_log::parse(facts.node.evidence().text(Item::KernelLog)?);
    let seen: Vec<_> = log
        .iter()
        .filter(|entry| entry.message() == Some(Message::Unmaintained))
        .filter(|entry| DRIVERS.iter().any(|driver| entry.text.contains(driver)))
        .map(|entry| Proof::Log(entry.line.to_owned()))
        .collect();
    if seen.is_empty() {
        return Ok(Vec::new());
    }
    let message = "the distribution no longer maintains drivers that kube-proxy uses";
    Ok(vec![
        Finding::new(Severity::Info, Subject::Kernel, message).evidence(seen),
    ])
}

fn removed_fields(facts: &Facts<'_>) -> Verdict {
    const GONE: [(&str, &str); 7] = [
        ("udpIdleTimeout", "for the removed userspace mode"),
        ("udpTimeoutMilliseconds", "for the removed userspace mode"),
        ("resourceContainer", "removed in 1.16"),
        ("portRange", "for the removed userspace mode"),
        (
            "conntrack.max",
            "now conntrack.maxPerCore and conntrack.min",
        ),
        ("conntrackMax", "now conntrack.maxPerCore and conntrack.min"),
        (
            "iptables.localhostNodePort",
            "the field is iptables.localhostNodePorts",
        ),
    ];
    let text = facts.node.evidence().text(Item::ProxyConfig)?;
    let fields = written(text)?;
    let keeps = facts.mode() == Ok(Mode::Userspace);
    let mut seen = Vec::new();
    leaves(&fields, "", &mut |name, value| {
        let own = keeps && ["udpIdleTimeout", "portRange"].contains(&name);
        let gone = GONE.iter().find(|(gone, _)| *gone == name && !own);
        if let Some((_, why)) = gone {
            let value = format!("{} ({why})", plain(value));
            seen.push(Proof::setting("kube-proxy's configuration", name, value));
        }
    });
    if seen.is_empty() {
        return Ok(Vec::new());
    }
    let message = "the configuration has fields that kube-proxy no longer knows";
    Ok(vec![
        Finding::new(
            Severity::Warning,
            Subject::setting("configuration"),
            message,
        )
        .evidence(seen),
    ])
}

fn kernel_for_nftables(facts: &Facts<'_>) -> Verdict {
    facts.only_in(&[Mode::Ipvs])?;
    if !is_too_old_for_nftables(facts)? {
        return Ok(Vec::new());
    }
    let message = "the kernel is too old for the nftables mode, and the ipvs mode will be removed";
    Ok(vec![
        Finding::new(Severity::Warning, Subject::Kernel, message).evidence([kernel_proof(facts)?]),
    ])
}

pub(in crate::check) fn removed_flags(facts: &Facts<'_>) -> Verdict {
    const FLAGS: [&str; 4] = [
        "cleanup-ipvs",
        "cleanup-iptables",
        "resource-container",
        "udp-timeout",
    ];
    let message = "newer releases of kube-proxy reject the flag and exit";
    with_flags(facts, &FLAGS, message, |_| true)
}

/// The feature gate for externalIPs.
pub(in crate::check) const EXTERNAL_IPS_GATE: &str = "AllowServiceExternalIPs";

/// Returns the Services with externalIPs that kube-proxy serves.
pub(in crate::check) fn with_external_ips<'a>(facts: &Facts<'a>) -> Result<Vec<&'a Service>, Gap> {
    let services = facts.node.services()?.iter();
    Ok(services
        .filter(|service| is_served(service) && !service.spec.external_ips.is_empty())
        .collect())
}

/// Returns the externalIPs of `service` as evidence.
pub(in crate::check) fn addresses_proof(service: &Service) -> Proof {
    let addresses = service.spec.external_ips.join(", ");
    Proof::setting(name_of(service), "spec.externalIPs", addresses)
}

fn external_ips(facts: &Facts<'_>) -> Verdict {
    let with = with_external_ips(facts)?;
    let finding = |service: &Service, message: &str| {
        Finding::new(Severity::Warning, service, message).evidence([addresses_proof(service)])
    };
    if with.is_empty() || !facts.version()?.version.has(Change::ExternalIpsDeprecated) {
        return Ok(Vec::new());
    }
    if facts.configuration()?.gate(EXTERNAL_IPS_GATE, true) {
        let message =
            "externalIPs are deprecated since 1.36, off by default in 1.40 and removed in 1.43";
        return Ok(with
            .into_iter()
            .map(|service| finding(service, message))
            .collect());
    }
    let message = "kube-proxy ignores externalIPs: its feature gate AllowServiceExternalIPs is off";
    let off = |service| {
        let gate = Proof::setting(
            "kube-proxy's configuration",
            format!("featureGates.{EXTERNAL_IPS_GATE}"),
            false,
        );
        finding(service, message).evidence([gate]).fix(
            "Change the Service to type LoadBalancer with a controller that assigns the same address. Until then, \
             remove the gate from kube-proxy's configuration and restart kube-proxy.",
        )
    };
    Ok(with.into_iter().map(off).collect())
}
