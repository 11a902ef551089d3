//! KP, DP, MX: kube-proxy as it runs.

use std::collections::BTreeMap;

use super::facts::MODE;
use super::{Check, Facts, Finding, Proof, Severity, Verdict, When};
use crate::backend::Mode;
use crate::backend::iptables::model::Target;
use crate::cluster::config::go_duration;
use crate::cluster::flags::Flags;
use crate::cluster::version::Version;
use crate::cluster::{Container, DaemonSet, Pod};
use crate::evidence::{Gap, Item, Time};
use crate::net::Family;
use crate::node::Store;
use crate::node::desired::NEEDS;

const VERSION: &[Item] = &[
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
        id: "KP05",
        name: "healthy",
        severity: Severity::Error,
        when: When::NowAndFor(&Mode::ALL),
        title: "kube-proxy says that it is healthy",
        symptom: "Changes of Services and endpoints do not reach this node; its rules grow old.",
        why: "kube-proxy answers /healthz with what it knows of its own syncs, for each family since 1.33. One that is \
              not healthy has had a sync on its list for longer than twice the sync period.",
        verify: "The answer must be 200, with healthy true for each family.",
        commands: &["curl -si http://127.0.0.1:10256/healthz"],
        fix: "See in kube-proxy's log what its syncs fail on, then restart it on this node.",
        incidents: &["kubernetes/kubernetes#76338", "kubernetes/kubernetes#77242"],
        needs: &[&[Item::Healthz]],
        caused_by: &["KM01"],
        run: healthy,
    },
    Check {
        id: "KP06",
        name: "sync-stuck",
        severity: Severity::Error,
        when: When::NowAndFor(&Mode::ALL),
        title: "kube-proxy has written its rules since they were last asked for",
        symptom: "Changes of Services and endpoints do not reach this node.",
        why: "kube-proxy notes when a change asks for a sync and when a sync ends. One that was asked for more than twice \
              the sync period ago and has not ended is stuck, or fails over and over.",
        verify: "The last sync must be younger than the last request, or the request young.",
        commands: &[
            "curl -s http://127.0.0.1:10249/metrics | grep -E 'sync_proxy_rules_last(_queued)?_timestamp'",
        ],
        fix: "See in kube-proxy's log what its syncs fail on, then restart it on this node.",
        incidents: &["kubernetes/kubernetes#76338"],
        needs: &[MODE, &[Item::Metrics, Item::Healthz]],
        caused_by: &["KP05", "KM01"],
        run: stuck,
    },
    Check {
        id: "KP07",
        name: "sync-failures",
        severity: Severity::Warning,
        when: When::Now,
        title: "None of kube-proxy's syncs failed",
        symptom: "Changes reach this node late, or not at all.",
        why: "The tools, iptables-restore or nft, may refuse what kube-proxy writes: a lock held for too long, a chain that somebody \
              else uses, a set that is missing, a tool too old. kube-proxy tries again and counts the failures.",
        verify: "The counters must be 0, or at least not grow.",
        commands: &[
            "curl -s http://127.0.0.1:10249/metrics | grep -E '_(restore|sync)_failures_total'",
            "kubectl -n kube-system logs POD | grep -iE 'failed|error'",
        ],
        fix: "See in kube-proxy's log which line is refused, and whether the counter still grows.",
        incidents: &[
            "kubernetes/kubernetes#68447",
            "kubernetes/kubernetes#82587",
            "kubernetes/kubernetes#136786",
        ],
        needs: &[&[Item::Metrics]],
        caused_by: &[],
        run: failures,
    },
    Check {
        id: "KP08",
        name: "sync-time",
        severity: Severity::Warning,
        when: When::Now,
        title: "kube-proxy writes its rules in good time",
        symptom: "Changes of Services and endpoints reach this node tens of seconds late; pods that are gone still get \
                  traffic.",
        why: "In iptables mode a full sync takes time with the number of Services and endpoints, in ipvs mode with each \
              of them. Others who hold the iptables lock make it longer.",
        verify: "Of a hundred syncs ninety-nine should take less than ten seconds.",
        commands: &[
            "curl -s http://127.0.0.1:10249/metrics | grep sync_proxy_rules_duration_seconds",
        ],
        fix: "Plan the move to the nftables mode, or look for what keeps the node busy.",
        incidents: &[
            "kubernetes/kubernetes#139513",
            "kubernetes/kubernetes#73382",
        ],
        needs: &[&[Item::Metrics]],
        caused_by: &[],
        run: slow,
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
        why: "kube-proxy finds its Node, and which endpoints are local, by its name: hostnameOverride, or else the name of \
              the machine. If no Node has it, every endpoint is remote.",
        verify: "The setting hostnameOverride must be the name of the Node.",
        commands: &[
            "kubectl get nodes",
            "kubectl -n kube-system logs POD | grep -i nodeip",
        ],
        fix: "Set hostnameOverride to the Node's name, from the pod's spec.nodeName, and restart kube-proxy.",
        incidents: &["kubernetes/kubernetes#66062"],
        needs: &[&[Item::ProxyConfig, Item::Nodes]],
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
    Check {
        id: "MX03",
        name: "nftables-leftovers",
        severity: Severity::Warning,
        when: When::Now,
        title: "Nothing of the nftables mode is left where another mode runs",
        symptom: "Services are translated by rules that nobody keeps up to date, or rejected though they have endpoints.",
        why: "kube-proxy removes its nftables table when it starts in another mode, if its image has nft and the kernel \
              lets it. A table that stays sees every packet beside the rules of the running mode.",
        verify: "There may be no table kube-proxy in iptables or ipvs mode.",
        commands: &["nft list tables | grep kube-proxy"],
        fix: "Delete the table of each family.",
        incidents: &["seen after a change of mode together with a downgrade of the image"],
        needs: &[MODE, &[Item::Nft]],
        caused_by: &[],
        run: nft_leftovers,
    },
    Check {
        id: "MX08",
        name: "jumps-of-two-modes",
        severity: Severity::Warning,
        when: When::Now,
        title: "Chains that two modes share are entered by one mode's rules alone",
        symptom: "Firewall rules of load balancers are passed twice, or at another place than they should be.",
        why: "The iptables and ipvs modes both have KUBE-PROXY-FIREWALL, but lead to it by rules with other words and \
              conditions. After a change of mode the old ones stay beside the new ones.",
        verify: "INPUT, FORWARD and OUTPUT may lead to KUBE-PROXY-FIREWALL only by the rule of the running mode.",
        commands: &["iptables-save -t filter | grep -- '-j KUBE-PROXY-FIREWALL'"],
        fix: "Delete the rules with the other mode's comment, with `iptables -D`.",
        incidents: &["both modes use the name since 1.26"],
        needs: &[MODE, &[Item::Iptables4, Item::Iptables6]],
        caused_by: &["MX01", "MX02"],
        run: two_modes,
    },
];

/// Calls `each` with every container that runs kube-proxy and what it belongs to.
fn containers<'a>(facts: &Facts<'a>) -> Result<Vec<(String, &'a Container)>, Gap> {
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

fn healthy(facts: &Facts<'_>) -> Verdict {
    let health = facts.node.health()?;
    let seen = |value: String| {
        [Proof::Setting {
            source: "/healthz".to_owned(),
            key: "healthy".to_owned(),
            value,
        }]
    };
    let message = "kube-proxy says that its rules are not up to date";
    let mut findings: Vec<_> = health
        .status
        .iter()
        .filter(|(_, family)| !family.healthy)
        .map(|(name, family)| {
            let last = family.last_updated.as_deref().unwrap_or("never");
            Finding::new(Severity::Error, name, message)
                .seen(seen(format!("false, last written {last}")))
        })
        .collect();
    if findings.is_empty() && health.healthy == Some(false) {
        findings.push(
            Finding::new(Severity::Error, "kube-proxy", message).seen(seen("false".to_owned())),
        );
    }
    Ok(findings)
}

/// Returns what to call the figures of `family`.
fn figures(family: Option<Family>) -> String {
    family.map_or_else(|| "kube-proxy".to_owned(), |family| family.to_string())
}

fn stuck(facts: &Facts<'_>) -> Verdict {
    let metrics = facts.node.metrics()?;
    let config = facts.configuration();
    let period = config.ok().and_then(|config| {
        let mode = facts.mode().ok()?;
        let text = match mode {
            Mode::Iptables => config.iptables.sync_period,
            Mode::Ipvs => config.ipvs.sync_period,
            Mode::Nftables => config.nftables.sync_period,
        };
        Some(go_duration(&text)?.as_secs()).filter(|seconds| *seconds > 0)
    });
    let most = 2 * period.unwrap_or(30);
    let clock = || {
        let health = facts.node.health().ok()?;
        health.current_time.as_deref()?.parse::<Time>().ok()
    };
    let mut findings = Vec::new();
    for (family, queued) in metrics.last_queued() {
        let last = metrics.last_sync().find(|(of, _)| *of == family);
        let last = last.map_or(0.0, |(_, at)| at);
        if queued <= last || queued <= 0.0 {
            continue;
        }
        let now = facts.now.or_else(clock).ok_or_else(|| {
            let why = "when the node was looked at is not known";
            Gap::Absent(Item::Healthz, why.to_owned())
        })?;
        let Some(asked) = Time::from_epoch(queued) else {
            continue;
        };
        let age = now.since(asked).as_secs();
        if age > most {
            let message = "a sync was asked for long ago and has not ended";
            let value = Time::from_epoch(last).filter(|_| last > 0.0);
            let value = value.map_or_else(|| "never".to_owned(), |time| time.to_string());
            findings.push(
                Finding::new(Severity::Error, figures(family), message).seen([
                    Proof::Setting {
                        source: "kube-proxy's metrics".to_owned(),
                        key: "asked for".to_owned(),
                        value: format!("{asked}, {age} s before"),
                    },
                    Proof::Setting {
                        source: "kube-proxy's metrics".to_owned(),
                        key: "last sync".to_owned(),
                        value,
                    },
                ]),
            );
        }
    }
    Ok(findings)
}

fn failures(facts: &Facts<'_>) -> Verdict {
    const COUNTERS: [(&str, &str); 3] = [
        (
            "kubeproxy_sync_proxy_rules_iptables_restore_failures_total",
            "iptables-restore refused what kube-proxy wrote",
        ),
        (
            "kubeproxy_sync_proxy_rules_iptables_partial_restore_failures_total",
            "a partial sync failed, and kube-proxy fell back to a full one",
        ),
        (
            "kubeproxy_sync_proxy_rules_nftables_sync_failures_total",
            "nft refused what kube-proxy wrote",
        ),
    ];
    let metrics = facts.node.metrics()?;
    let mut findings = Vec::new();
    for (name, message) in COUNTERS {
        for (family, count) in metrics.by_family(name).filter(|(_, count)| *count > 0.0) {
            findings.push(
                Finding::new(Severity::Warning, figures(family), message).seen([Proof::Setting {
                    source: "kube-proxy's metrics".to_owned(),
                    key: name.to_owned(),
                    value: format!("{count} since its start"),
                }]),
            );
        }
    }
    Ok(findings)
}

fn slow(facts: &Facts<'_>) -> Verdict {
    const NAME: &str = "kubeproxy_sync_proxy_rules_duration_seconds";
    // So few syncs tell of the start alone.
    const FEW: f64 = 20.0;
    const MOST: f64 = 10.0;
    let metrics = facts.node.metrics()?;
    let mut findings = Vec::new();
    for (family, count) in metrics.by_family(&format!("{NAME}_count")) {
        if count < FEW {
            continue;
        }
        let quick = metrics
            .of(&format!("{NAME}_bucket"))
            .filter(|sample| sample.family() == family)
            .filter(|sample| {
                let limit = sample.label("le").and_then(|le| le.parse::<f64>().ok());
                limit.is_some_and(|limit| limit <= MOST)
            })
            .map(|sample| sample.value)
            .fold(0.0, f64::max);
        if quick < count * 0.99 {
            let message = "more than one sync in a hundred takes longer than it should";
            findings.push(
                Finding::new(Severity::Warning, figures(family), message).seen([Proof::Setting {
                    source: "kube-proxy's metrics".to_owned(),
                    key: NAME.to_owned(),
                    value: format!("{} of {count} took more than 8 s", count - quick),
                }]),
            );
        }
    }
    Ok(findings)
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
    let name = facts
        .node
        .proxy_config()?
        .hostname_override
        .trim()
        .to_lowercase();
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
    Ok(vec![Finding::new(Severity::Error, name, message).seen([
        Proof::Note(format!("the Nodes are {}", names.join(", "))),
    ])])
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

fn nft_leftovers(facts: &Facts<'_>) -> Verdict {
    let mode = facts.only_in(&[Mode::Iptables, Mode::Ipvs])?;
    let tables = facts.node.nft()?.tables.iter();
    let tables = tables.filter(|table| table.name == "kube-proxy");
    Ok(tables
        .map(|table| {
            let name = format!("{} {}", table.family, table.name);
            let message = format!("the table is left, though the mode is {mode}");
            let command = format!("nft delete table {name}");
            Finding::new(Severity::Warning, format!("table {name}"), message)
                .seen([Proof::Object {
                    what: "nft-table",
                    name,
                }])
                .mend_by(
                    "Delete the table: nothing of the running mode is in it.",
                    command,
                )
        })
        .collect())
}

fn two_modes(facts: &Facts<'_>) -> Verdict {
    let mode = facts.only_in(&[Mode::Iptables, Mode::Ipvs])?;
    let other = match mode {
        Mode::Ipvs => "kubernetes load balancer firewall",
        _ => "kube-proxy firewall rules",
    };
    let mut findings = Vec::new();
    for family in Family::BOTH {
        let rules = match facts.node.iptables(Store::InUse, family) {
            Ok(rules) => rules,
            Err(Gap::Absent(..)) if family == Family::V6 => continue,
            Err(gap) => return Err(gap),
        };
        let chains = rules
            .table("filter")
            .into_iter()
            .flat_map(|table| &table.chains);
        let seen: Vec<_> = chains
            .filter(|chain| chain.policy.is_some())
            .flat_map(|chain| chain.rules.iter().map(move |rule| (chain, rule)))
            .filter(|(_, rule)| {
                let to = Target::Jump("KUBE-PROXY-FIREWALL".into());
                rule.target.as_ref() == Some(&to) && rule.comment() == Some(other)
            })
            .map(|(chain, _)| Proof::Rule {
                family,
                table: "filter".to_owned(),
                rule: format!(
                    "{} --comment \"{other}\" -j KUBE-PROXY-FIREWALL",
                    chain.name
                ),
            })
            .collect();
        if !seen.is_empty() {
            let message =
                format!("rules of another mode than {mode} lead to a chain that both use");
            findings.push(Finding::new(Severity::Warning, family.to_string(), message).seen(seen));
        }
    }
    Ok(findings)
}
