//! KP, DP, KM: how kube-proxy is set up.

use std::collections::BTreeMap;

use super::facts::MODE;
use super::{Check, Facts, Finding, Proof, Severity, Verdict, When};
use crate::backend::Mode;
use crate::cluster::config::go_duration;
use crate::cluster::flags::Flags;
use crate::cluster::version::Version;
use crate::cluster::{Container, DaemonSet, Pod};
use crate::evidence::{Gap, Item};
use crate::node::desired::NEEDS;

/// What [`Facts::version`] reads.
pub(super) const VERSION: &[Item] = &[
    Item::Metrics,
    Item::Pods,
    Item::DaemonSets,
    Item::Nodes,
    Item::Addresses,
    Item::ProxyConfig,
];

pub(super) const CHECKS: &[Check] = &[
    Check {
        id: "KP03",
        name: "flags-ignored",
        severity: Severity::Warning,
        when: When::NowAndFor(&Mode::ALL),
        title: "kube-proxy is not given flags that its file overrides",
        symptom: "A flag in the manifest (the mode, say) has no effect.",
        why: "With --config kube-proxy reads its settings from the file and ignores the flags that say the same, without a \
              word.",
        verify: "Beside --config only flags without a field in the file may be given: --hostname-override, -v.",
        commands: &[
            "kubectl -n kube-system get daemonset kube-proxy -o jsonpath='{.spec.template.spec.containers[0].command}'",
        ],
        fix: "Put the setting into the file, in the ConfigMap, and take the flag away.",
        incidents: &["kubernetes/kubernetes#89126", "aws/containers-roadmap#142"],
        needs: &[&[Item::Pods, Item::DaemonSets]],
        caused_by: &[],
        run: ignored_flags,
    },
    Check {
        id: "KP09",
        name: "local-traffic",
        severity: Severity::Warning,
        when: When::NowAndFor(&Mode::ALL),
        title: "kube-proxy can tell local pods' traffic in every family in use",
        symptom: "Traffic to Service addresses from outside the cluster, or from the node itself, gets no answers.",
        why: "What does not come from local pods is masqueraded on its way to a Service address. How to tell is \
              clusterCIDR, or detectLocalMode with what it names. Where that says nothing for a family, kube-proxy \
              masquerades none of it.",
        verify: "The setting clusterCIDR must have a prefix of each family, or detectLocalMode name another way.",
        commands: &[
            "kubectl -n kube-system get configmap kube-proxy -o yaml | grep -E 'clusterCIDR|detectLocal'",
        ],
        fix: "Set clusterCIDR to the pods' prefixes of each family, or masqueradeAll to true, and restart kube-proxy.",
        incidents: &["aws/containers-roadmap#2826"],
        needs: &[MODE, NEEDS],
        caused_by: &[],
        run: local_traffic,
    },
    Check {
        id: "KP11",
        name: "node-name",
        severity: Severity::Error,
        when: When::Now,
        title: "kube-proxy goes by the name of a Node that there is",
        symptom: "Services with a Local traffic policy get no traffic on this node: no endpoint counts as local.",
        why: "kube-proxy finds its Node, and which endpoints are local, by its name: the flag --hostname-override, or else \
              the setting hostnameOverride, or else the name of the machine. If no Node has it, every endpoint is remote.",
        verify: "The flag, or lacking that the setting, must be the name of the Node.",
        commands: &[
            "kubectl get nodes",
            "kubectl -n kube-system logs POD | grep -i nodeip",
        ],
        fix: "Set hostnameOverride to the Node's name, from the pod's spec.nodeName, and restart kube-proxy.",
        incidents: &["kubernetes/kubernetes#66062"],
        needs: &[&[
            Item::ProxyConfig,
            Item::Nodes,
            Item::Addresses,
            Item::Processes,
            Item::Pods,
        ]],
        caused_by: &[],
        run: node_name,
    },
    Check {
        id: "KP12",
        name: "node-address",
        severity: Severity::Warning,
        when: When::NowAndFor(&Mode::ALL),
        title: "kube-proxy knows an address of the node in every family in use",
        symptom: "NodePorts do not answer, or hairpin and source-range rules name 127.0.0.1.",
        why: "kube-proxy takes the node's addresses from the Node object. Where it has none of a family, it goes by the \
              loopback address and says so in its log.",
        verify: "The Node must have an InternalIP of each family that Services use.",
        commands: &[
            "kubectl get node NAME -o jsonpath='{.status.addresses}'",
            "kubectl -n kube-system logs POD | grep NodeIPs",
        ],
        fix: "Give the kubelet both addresses (--node-ip), or set bindAddress in kube-proxy's configuration.",
        incidents: &["kube-proxy warns of it at its start"],
        needs: &[MODE, NEEDS],
        caused_by: &["KP11"],
        run: node_address,
    },
    Check {
        id: "KP13",
        name: "sync-periods",
        severity: Severity::Info,
        when: When::Now,
        title: "kube-proxy's sync periods are not set to old advice",
        symptom: "Changes reach this node later than they could.",
        why: "Before 1.28 large clusters were told to set minSyncPeriod to 10 seconds or more. kube-proxy now writes only \
              what changed, so that such a value does nothing but delay; and a long syncPeriod delays repairs.",
        verify: "The setting minSyncPeriod should be 1s, or unset, and syncPeriod not above 5 minutes.",
        commands: &["kubectl -n kube-system get configmap kube-proxy -o yaml | grep -i syncPeriod"],
        fix: "Take the settings out of the configuration and restart kube-proxy.",
        incidents: &["the documentation of virtual IPs advises against the old overrides"],
        needs: &[MODE],
        caused_by: &[],
        run: periods,
    },
    Check {
        id: "KP14",
        name: "version-skew",
        severity: Severity::Warning,
        when: When::Now,
        title: "kube-proxy is within three releases of the kubelet",
        symptom: "None at first; rules that the releases in between would have cleaned up stay.",
        why: "Upstream tests and supports a kube-proxy up to three minor releases older or newer than the node's kubelet.",
        verify: "Compare the two versions.",
        commands: &[
            "kubectl get node NAME -o jsonpath='{.status.nodeInfo.kubeletVersion}'",
            "kubectl -n kube-system get daemonset kube-proxy -o jsonpath='{..image}'",
        ],
        fix: "Upgrade the older one, not more than three releases at a time.",
        incidents: &[
            "kubernetes/kubernetes#132516: old chains broke a sync a month after a jump of releases",
        ],
        needs: &[VERSION],
        caused_by: &[],
        run: skew,
    },
    Check {
        id: "DP06",
        name: "kernel-for-nftables",
        severity: Severity::Warning,
        when: When::Now,
        title: "A node in ipvs mode has a kernel that allows the nftables mode",
        symptom: "None yet; the way out of the ipvs mode is the iptables mode, or a new kernel.",
        why: "The ipvs mode is deprecated, and the nftables mode needs kernel 5.13.",
        verify: "The kernel must be 5.13 or newer.",
        commands: &["uname -r"],
        fix: "Plan a newer kernel for this node before the ipvs mode goes, or the move to iptables.",
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
        title: "kube-proxy is not given flags that newer releases do not know",
        symptom: "kube-proxy exits at once after an upgrade: \"unknown flag\".",
        why: "Flags such as --cleanup-ipvs and --cleanup-iptables are gone. A manifest kept from older days still has them.",
        verify: "Compare the flags with `kube-proxy --help` of the release to come.",
        commands: &[
            "kubectl -n kube-system get daemonset kube-proxy -o jsonpath='{.spec.template.spec.containers[0].command}'",
        ],
        fix: "Take the flag out of the manifest.",
        incidents: &["kubernetes/kubernetes#96034"],
        needs: &[&[Item::Pods, Item::DaemonSets]],
        caused_by: &[],
        run: removed_flags,
    },
    Check {
        id: "KM08",
        name: "kernel-for-mode",
        severity: Severity::Error,
        when: When::NowAndFor(&[Mode::Ipvs, Mode::Nftables]),
        title: "The kernel is new enough for the mode",
        symptom: "kube-proxy refuses to start in this mode, or works around what the kernel lacks.",
        why: "The ipvs mode needs kernel 4.1, the nftables mode 5.13: kube-proxy looks at the release and gives up below.",
        verify: "Compare the kernel's release with what the mode needs.",
        commands: &["uname -r"],
        fix: "Go back to the iptables mode on this node, or give it a newer kernel.",
        incidents: &[
            "kubernetes/kubernetes#82065",
            "kubernetes/kubernetes#122743",
        ],
        needs: &[MODE, &[Item::KernelRelease]],
        caused_by: &[],
        run: kernel_for_mode,
    },
];

/// Returns every container that runs kube-proxy, and what it belongs to.
pub(super) fn containers<'a>(facts: &Facts<'a>) -> Result<Vec<(String, &'a Container)>, Gap> {
    let of_pod = |pod: &'a Pod| {
        let name = format!("pod {}", pod.metadata.name);
        pod.spec.containers.iter().map(move |c| (name.clone(), c))
    };
    let of_set = |set: &'a DaemonSet| {
        let name = format!("DaemonSet {}", set.metadata.name);
        let all = set.spec.template.spec.containers.iter();
        all.map(move |c| (name.clone(), c))
    };
    let (sets, pods) = (facts.node.daemon_sets(), facts.node.pods());
    let mut found: Vec<_> = match (&sets, &pods) {
        (Err(gap), Err(_)) => return Err(gap.clone()),
        (sets, pods) => {
            let sets = sets.iter().flat_map(|sets| sets.iter()).flat_map(of_set);
            let pods = pods.iter().flat_map(|pods| pods.iter()).flat_map(of_pod);
            sets.chain(pods).collect()
        }
    };
    found.retain(|(_, container)| container.name == "kube-proxy");
    if found.is_empty() {
        let why = "kube-proxy does not run as a pod that the cluster knows of";
        return Err(Gap::NotApplicable(why.to_owned()));
    }
    Ok(found)
}

fn given(container: &Container) -> Flags {
    let words: Vec<_> = container.command.iter().chain(&container.args).collect();
    Flags::parse(&words)
}

fn with_flags(
    facts: &Facts<'_>,
    flags: &[&str],
    message: &str,
    ask: impl Fn(&Flags) -> bool,
) -> Verdict {
    let mut by_flag: BTreeMap<String, Vec<Proof>> = BTreeMap::new();
    for (name, container) in containers(facts)? {
        let given = given(container);
        if !ask(&given) {
            continue;
        }
        for flag in flags {
            if let Some(value) = given.value(flag) {
                by_flag
                    .entry(format!("--{flag}"))
                    .or_default()
                    .push(Proof::Setting {
                        source: name.clone(),
                        key: format!("--{flag}"),
                        value: value.to_owned(),
                    });
            }
        }
    }
    Ok(by_flag
        .into_iter()
        .map(|(flag, seen)| Finding::new(Severity::Warning, flag, message).seen(seen))
        .collect())
}

fn ignored_flags(facts: &Facts<'_>) -> Verdict {
    const FLAGS: [&str; 12] = [
        "bind-address",
        "cluster-cidr",
        "conntrack-max-per-core",
        "detect-local-mode",
        "healthz-bind-address",
        "ipvs-scheduler",
        "ipvs-strict-arp",
        "ipvs-exclude-cidrs",
        "masquerade-all",
        "metrics-bind-address",
        "nodeport-addresses",
        "proxy-mode",
    ];
    let message = "the flag is ignored, as --config names a file";
    with_flags(facts, &FLAGS, message, |flags| {
        flags.value("config").is_some()
    })
}

fn removed_flags(facts: &Facts<'_>) -> Verdict {
    const FLAGS: [&str; 4] = [
        "cleanup-ipvs",
        "cleanup-iptables",
        "resource-container",
        "udp-timeout",
    ];
    let message = "newer releases of kube-proxy do not know the flag, and exit";
    with_flags(facts, &FLAGS, message, |_| true)
}

fn local_traffic(facts: &Facts<'_>) -> Verdict {
    let mode = facts.mode()?;
    let desired = facts.node.desired(mode)?;
    if desired.masquerade_all {
        return Err(Gap::NotApplicable("masqueradeAll is set".to_owned()));
    }
    let config = &desired.config;
    let blind = desired.families.iter();
    let blind = blind.filter(|state| !state.ports.is_empty() && state.detector.is_none());
    Ok(blind
        .map(|state| {
            let message = "kube-proxy cannot tell which traffic is local pods', and masquerades none by its source";
            Finding::new(Severity::Warning, state.family.to_string(), message).seen([
                Proof::Setting {
                    source: "kube-proxy's configuration".to_owned(),
                    key: "clusterCIDR".to_owned(),
                    value: format!("{:?}", config.cluster_cidr),
                },
                Proof::Setting {
                    source: "kube-proxy's configuration".to_owned(),
                    key: "detectLocalMode".to_owned(),
                    value: format!("{:?}", config.detect_local_mode),
                },
            ])
        })
        .collect())
}

fn node_name(facts: &Facts<'_>) -> Verdict {
    let flag = hostname_flag(facts);
    // The kubelet fills in what the pod's environment has: the name of its node, as a rule.
    let filled_in = |(_, _, value): &(String, &str, String)| value.contains("$(");
    let is_filled_in = flag.as_ref().is_some_and(filled_in);
    let (source, key, value) = match flag.filter(|_| !is_filled_in) {
        Some(given) => given,
        None => (
            "kube-proxy's configuration".to_owned(),
            "hostnameOverride",
            facts.node.proxy_config()?.hostname_override.clone(),
        ),
    };
    let name = value.trim().to_lowercase();
    if name.is_empty() && is_filled_in {
        let why = "--hostname-override comes from the pod's environment, and no process of kube-proxy is seen";
        return Err(Gap::NotApplicable(why.to_owned()));
    }
    if name.is_empty() {
        let why = "hostnameOverride is not set: the name is the machine's";
        return Err(Gap::NotApplicable(why.to_owned()));
    }
    let nodes = facts.node.nodes()?;
    if nodes.is_empty() || nodes.iter().any(|node| node.metadata.name == name) {
        return Ok(Vec::new());
    }
    let names: Vec<_> = nodes
        .iter()
        .map(|node| node.metadata.name.as_str())
        .collect();
    let message = "kube-proxy goes by a name that no Node has: no endpoint counts as local";
    let flag = key.starts_with("--");
    let finding = Finding::new(Severity::Error, name, message).seen([
        Proof::setting(source, key, &value),
        Proof::Note(format!("the Nodes are {}", names.join(", "))),
    ]);
    Ok(vec![if flag {
        finding.mend(
            "Set --hostname-override to the Node's name, from the pod's spec.nodeName, or take the flag away: it overrides \
             hostnameOverride in the file.",
        )
    } else {
        finding
    }])
}

/// Returns where kube-proxy is given --hostname-override, the flag, and its value: it overrides the file.
fn hostname_flag(facts: &Facts<'_>) -> Option<(String, &'static str, String)> {
    const FLAG: &str = "hostname-override";
    let named = |source: String, flags: &Flags| {
        let value = flags.value(FLAG)?;
        Some((source, "--hostname-override", value.to_owned()))
    };
    if let Ok(processes) = facts.node.processes() {
        let mut proxies = processes.processes.iter();
        let mut proxies = proxies
            .by_ref()
            .filter(|of| of.name.starts_with("kube-proxy") && of.same_network != Some(false));
        if let Some(proxy) = proxies.next() {
            return named(format!("process {}", proxy.pid), &Flags::parse(&proxy.args));
        }
    }
    let here = facts.node_name();
    let mut pods = facts.node.pods().ok()?.iter();
    let pod = pods.find(|pod| {
        pod.spec.node_name == here && pod.spec.containers.iter().any(|of| of.name == "kube-proxy")
    })?;
    let mut all = pod.spec.containers.iter();
    let container = all.find(|of| of.name == "kube-proxy")?;
    named(format!("pod {}", pod.metadata.name), &given(container))
}

fn node_address(facts: &Facts<'_>) -> Verdict {
    let mode = facts.mode()?;
    facts.node.nodes()?;
    let desired = facts.node.desired(mode)?;
    let blind = desired.families.iter();
    let blind = blind.filter(|state| !state.ports.is_empty() && state.node_ip.is_loopback());
    Ok(blind
        .map(|state| {
            let message = "the Node has no address of this family, so kube-proxy goes by the loopback address";
            Finding::new(Severity::Warning, state.family.to_string(), message).seen([Proof::Object {
                what: "node",
                name: desired.node.clone(),
            }])
        })
        .collect())
}

fn periods(facts: &Facts<'_>) -> Verdict {
    let mode = facts.mode()?;
    let config = facts.configuration()?;
    let (least, period) = match mode {
        Mode::Iptables => (
            &config.iptables.min_sync_period,
            &config.iptables.sync_period,
        ),
        Mode::Ipvs => (&config.ipvs.min_sync_period, &config.ipvs.sync_period),
        Mode::Nftables => (
            &config.nftables.min_sync_period,
            &config.nftables.sync_period,
        ),
    };
    let mut findings = Vec::new();
    for (key, text, most, message) in [
        (
            "minSyncPeriod",
            least,
            5,
            "the least time between two syncs delays every change",
        ),
        (
            "syncPeriod",
            period,
            300,
            "the time between two full syncs delays repairs",
        ),
    ] {
        if go_duration(text).is_some_and(|time| time.as_secs() > most) {
            findings.push(
                Finding::new(Severity::Info, key, message).seen([Proof::Setting {
                    source: "kube-proxy's configuration".to_owned(),
                    key: format!("{mode}.{key}"),
                    value: text.clone(),
                }]),
            );
        }
    }
    Ok(findings)
}

fn skew(facts: &Facts<'_>) -> Verdict {
    let proxy = facts.version()?;
    let node = facts.this_node()?;
    let text = node.status.node_info.kubelet_version.as_str();
    if text.is_empty() {
        let why = "the Node does not tell its kubelet's version";
        return Err(Gap::NotApplicable(why.to_owned()));
    }
    let kubelet: Version = text
        .parse()
        .map_err(|e| Gap::Failed(Item::Nodes, format!("kubeletVersion: {e}")))?;
    let (a, b) = (proxy.version, kubelet);
    if a.major == b.major && a.minor.abs_diff(b.minor) <= 3 {
        return Ok(Vec::new());
    }
    let message = "kube-proxy and the kubelet are more than three releases apart";
    Ok(vec![
        Finding::new(Severity::Warning, "version", message).seen([
            Proof::Setting {
                source: proxy.source.to_string(),
                key: "kube-proxy".to_owned(),
                value: a.to_string(),
            },
            Proof::Setting {
                source: "the Node".to_owned(),
                key: "kubelet".to_owned(),
                value: b.to_string(),
            },
        ]),
    ])
}

fn release(facts: &Facts<'_>) -> Result<Proof, Gap> {
    Ok(Proof::Note(format!(
        "kernel {}",
        facts.node.kernel_release()?
    )))
}

fn kernel_for_nftables(facts: &Facts<'_>) -> Verdict {
    facts.only_in(&[Mode::Ipvs])?;
    if facts.kernel()? >= (5, 13) {
        return Ok(Vec::new());
    }
    let message = "the kernel is too old for the nftables mode, and the ipvs mode will go";
    Ok(vec![
        Finding::new(Severity::Warning, "kernel", message).seen([release(facts)?]),
    ])
}

fn kernel_for_mode(facts: &Facts<'_>) -> Verdict {
    let mode = facts.mode()?;
    let least = match mode {
        Mode::Iptables => return Err(Gap::NotApplicable(format!("the mode is {mode}"))),
        Mode::Ipvs => (4, 1),
        Mode::Nftables => (5, 13),
    };
    if facts.kernel()? >= least {
        return Ok(Vec::new());
    }
    let message = format!(
        "the {mode} mode needs kernel {}.{} or newer",
        least.0, least.1
    );
    Ok(vec![
        Finding::new(Severity::Error, "kernel", message).seen([release(facts)?]),
    ])
}
