//! KM, KP, DP: kube-proxy's pod and configuration.

use super::ask::if_recorded;
use super::facts::MODE;
use super::projected::{COPY, Source, text_of};
use super::proxy::{VERSION, containers};
use super::{Check, Facts, Finding, Proof, Severity, Verdict, When};
use crate::backend::Mode;
use crate::cluster::config::written;
use crate::evidence::{Gap, Item};
use crate::net::{Cidr, Family};

pub(super) const CHECKS: &[Check] = &[
    Check {
        id: "KM06",
        name: "modules-mounted",
        severity: Severity::Warning,
        when: When::NowAndFor(&[Mode::Ipvs]),
        title: "kube-proxy's pod sees the node's modules in ipvs mode",
        symptom: "kube-proxy gives up with \"can't use the IPVS proxier\" on a node where modprobe works.",
        why: "kube-proxy loads ip_vs and its scheduler itself, from /lib/modules. In a pod that is the image's own folder, \
              which is empty, unless the node's is mounted there.",
        verify: "The pod must mount the host's /lib/modules.",
        commands: &[
            "kubectl -n kube-system get daemonset kube-proxy -o jsonpath='{..volumeMounts[*].mountPath}'",
        ],
        fix: "Mount /lib/modules from the host, for reading, or load the modules at boot.",
        incidents: &["kubernetes/kubernetes#55864", "kubernetes/kubernetes#87197"],
        needs: &[MODE, &[Item::Pods, Item::DaemonSets]],
        caused_by: &[],
        run: modules_mount,
    },
    Check {
        id: "KP02",
        name: "restarts",
        severity: Severity::Error,
        when: When::NowAndFor(&Mode::ALL),
        title: "kube-proxy's container stays up",
        symptom: "The node's rules stay as they were; kube-proxy is in CrashLoopBackOff.",
        why: "Since 1.26 kube-proxy exits where it cannot run in the mode it is configured for. Other causes are a wrong \
              setting, too little memory, and the API server out of reach.",
        verify: "The container must not be waiting, nor restart again and again.",
        commands: &[
            "kubectl -n kube-system get pods -l k8s-app=kube-proxy -o wide",
            "kubectl -n kube-system logs POD --previous | tail",
        ],
        fix: "Read its last words in the log of the container before.",
        incidents: &["kubernetes/kubernetes#111806", "kubernetes/kops#17915"],
        needs: &[&[Item::Pods, Item::Nodes, Item::Addresses, Item::ProxyConfig]],
        caused_by: &["KM01", "KM12"],
        run: restarts,
    },
    Check {
        id: "KP04",
        name: "armed-change",
        severity: Severity::Warning,
        when: When::NowAndFor(&Mode::ALL),
        title: "kube-proxy runs with what its ConfigMap says",
        symptom: "A node changes its behaviour when its kube-proxy happens to restart: weeks after somebody's edit.",
        why: "kube-proxy reads its configuration at its start alone. After an edit of the ConfigMap each node changes when \
              its own kube-proxy restarts next, for whatever reason.",
        verify: "Compare the ConfigMap with what the process says it runs with.",
        commands: &[
            "kubectl -n kube-system get configmap kube-proxy -o yaml",
            "curl -s http://127.0.0.1:10249/configz",
        ],
        fix: "Restart kube-proxy node by node at a time of your choosing, or take the edit back.",
        incidents: &[
            "kubernetes/kubernetes#57144",
            "kubernetes/kubernetes#86869",
            "k0sproject/k0s#7556",
        ],
        needs: &[&[
            Item::ConfigMaps,
            Item::Configz,
            Item::Pods,
            Item::Nodes,
            Item::Addresses,
            Item::ProxyConfig,
        ]],
        caused_by: &["KP01"],
        run: armed,
    },
    Check {
        id: "KP10",
        name: "address-families",
        severity: Severity::Error,
        when: When::Now,
        title: "The prefixes that kube-proxy is given are the pods'",
        symptom: "Traffic between pods is masqueraded, or that from outside is not; network policies see wrong sources.",
        why: "With clusterCIDR kube-proxy takes what comes from these prefixes for pods' traffic. If this node's pods are \
              not in them, or they are of another family than the node, every decision on masquerading is wrong.",
        verify: "The Node's podCIDRs must lie in clusterCIDR, family by family.",
        commands: &[
            "kubectl get node NAME -o jsonpath='{.spec.podCIDRs}'",
            "kubectl -n kube-system get configmap kube-proxy -o yaml | grep clusterCIDR",
        ],
        fix: "Set clusterCIDR to the prefixes that pods really have, and restart kube-proxy.",
        incidents: &["kube-proxy itself refuses some of these at its start"],
        needs: &[&[
            Item::ProxyConfig,
            Item::ConfigMaps,
            Item::Nodes,
            Item::Addresses,
        ]],
        caused_by: &[],
        run: prefixes,
    },
    Check {
        id: "KP15",
        name: "stale-virtual-servers-bug",
        severity: Severity::Warning,
        when: When::NowAndFor(&[Mode::Ipvs]),
        title: "kube-proxy's release looks at its virtual servers again and again",
        symptom: "Virtual servers and addresses that somebody else made or deleted stay so until kube-proxy restarts.",
        why: "From 1.34.0 on kube-proxy in ipvs mode looked at its rules only when Services or endpoints change; patch \
              releases went back to looking regularly.",
        verify: "The release must be older than 1.34, or at least 1.34.4 or 1.35.1.",
        commands: &["curl -s http://127.0.0.1:10249/metrics | grep kubernetes_build_info"],
        fix: "Update kube-proxy to the newest patch release.",
        incidents: &[
            "kubernetes/kubernetes#134147",
            "kubernetes/kubernetes#135631: the mend, picked for 1.34 and 1.35 in January 2026",
        ],
        needs: &[MODE, VERSION],
        caused_by: &[],
        run: no_recheck,
    },
    Check {
        id: "DP05",
        name: "removed-settings",
        severity: Severity::Warning,
        when: When::NowAndFor(&Mode::ALL),
        title: "kube-proxy's configuration has no field that is gone",
        symptom: "A setting has no effect; some releases do not start with it.",
        why: "Fields were renamed and dropped over the years. kube-proxy reads such a file leniently and says so in its log, \
              or refuses it, depending on the release.",
        verify: "Compare the fields with the reference of kubeproxy.config.k8s.io/v1alpha1.",
        commands: &[
            "kubectl -n kube-system get configmap kube-proxy -o yaml",
            "kubectl -n kube-system logs POD | grep -i strict",
        ],
        fix: "Take the field out of the ConfigMap, or use its new name.",
        incidents: &["aws/containers-roadmap#142"],
        needs: &[&[Item::ProxyConfig]],
        caused_by: &[],
        run: removed_fields,
    },
];

/// Whether the container has `path` of the host, or a folder above it.
pub(super) fn mounts(container: &crate::cluster::Container, path: &str) -> bool {
    let mut paths = container
        .volume_mounts
        .iter()
        .filter_map(|mount| mount.get("mountPath")?.as_str());
    // A folder above it is as good.
    paths.any(|at| path == at || path.starts_with(&format!("{}/", at.trim_end_matches('/'))))
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
    let message = "kube-proxy's pod does not see the node's modules, and cannot load any";
    Ok(vec![
        Finding::new(Severity::Warning, "kube-proxy", message).seen(without),
    ])
}

fn restarts(facts: &Facts<'_>) -> Verdict {
    /// Fewer are the node's reboots, or an update.
    const MANY: u32 = 5;
    let here = facts.node_name();
    let pods = facts.node.pods()?.iter();
    let mut known = false;
    let mut findings = Vec::new();
    for pod in pods.filter(|pod| pod.spec.node_name == here) {
        for status in pod
            .status
            .container_statuses
            .iter()
            .filter(|of| of.name == "kube-proxy")
        {
            known = true;
            let waiting = status
                .state
                .waiting
                .as_ref()
                .and_then(|of| of.reason.clone());
            let last = status.last_state.terminated.as_ref();
            let mut seen = vec![Proof::setting(
                format!("pod {}", pod.metadata.name),
                "restartCount",
                status.restart_count,
            )];
            seen.extend(last.map(|of| {
                let reason = of.reason.as_deref().unwrap_or("ended");
                Proof::Note(format!("last: {reason}, exit status {}", of.exit_code))
            }));
            match waiting.as_deref() {
                Some(
                    reason @ ("CrashLoopBackOff"
                    | "ImagePullBackOff"
                    | "ErrImagePull"
                    | "CreateContainerConfigError"),
                ) => {
                    let message =
                        format!("kube-proxy does not run: its container waits in {reason}");
                    findings.push(Finding::new(Severity::Error, "kube-proxy", message).seen(seen));
                }
                _ if status.restart_count >= MANY && last.is_some_and(|of| of.exit_code != 0) => {
                    let message = "kube-proxy's container failed and was restarted again and again";
                    findings
                        .push(Finding::new(Severity::Warning, "kube-proxy", message).seen(seen));
                }
                _ => {}
            }
        }
    }
    if !known {
        let why = "no pod of kube-proxy on this node tells its state";
        return Err(Gap::NotApplicable(why.to_owned()));
    }
    Ok(findings)
}

/// Calls `each` with every field of `value` that is set, by its dotted name. Zero values mean the default.
fn leaves(value: &serde_json::Value, name: &str, each: &mut impl FnMut(&str, &serde_json::Value)) {
    use serde_json::Value;
    match value {
        Value::Object(fields) => {
            for (key, value) in fields {
                let dot = if name.is_empty() { "" } else { "." };
                leaves(value, &format!("{name}{dot}{key}"), each);
            }
        }
        Value::Null | Value::Bool(false) => {}
        Value::String(text) if matches!(text.as_str(), "" | "0" | "0s") => {}
        Value::Array(all) if all.is_empty() => {}
        Value::Number(number) if number.as_f64() == Some(0.0) => {}
        set => each(name, set),
    }
}

/// Returns `value` as one would write it in the file.
fn plain(value: &serde_json::Value) -> String {
    match value.as_str() {
        // 60s and 1m0s are the same.
        Some(text) => crate::cluster::config::go_duration(text).map_or_else(
            || text.to_owned(),
            |time| format!("{}s", time.as_secs_f64()),
        ),
        None => value.to_string(),
    }
}

fn armed(facts: &Facts<'_>) -> Verdict {
    // These are each node's own, or say what the file is.
    const OWN: [&str; 5] = [
        "apiVersion",
        "kind",
        "hostnameOverride",
        "nodeIPOverride",
        "clientConnection",
    ];
    let running = if_recorded(facts.node.evidence().text(Item::Configz))?;
    let bad = |why: String| Gap::Failed(Item::Configz, why);
    let running: serde_json::Value =
        serde_json::from_str(running).map_err(|error| bad(error.to_string()))?;
    let running = running
        .get("kubeproxy.config.k8s.io")
        .ok_or_else(|| bad("it has no kubeproxy.config.k8s.io".to_owned()))?;
    let source = facts.source();
    // A copy of the ConfigMap that was not read is on the node, as the kubelet wrote it.
    let (source_name, text) = match &source {
        Source::Map(map) => (
            format!("ConfigMap {}", map.metadata.name),
            text_of(map).unwrap_or_default(),
        ),
        Source::Unread(name) => {
            let unread = || {
                let why = format!("ConfigMap {name}, which kube-proxy mounts here, is not in it");
                Gap::Absent(Item::ConfigMaps, why)
            };
            let file = facts.file().ok_or_else(unread)?;
            (format!("the node's file of ConfigMap {name}"), file)
        }
        Source::Unknown => ("ConfigMap kube-proxy".to_owned(), facts.config_map_text()?),
    };
    let wanted = written(text).map_err(|gap| gap.about(Item::ConfigMaps))?;
    let mut seen = Vec::new();
    leaves(&wanted, "", &mut |name, value| {
        if OWN.iter().any(|own| name.split('.').next() == Some(own)) {
            return;
        }
        let have = name.split('.').try_fold(running, |at, key| at.get(key));
        // What the running release does not tell, it does not know.
        if let Some(have) = have
            && plain(have) != plain(value)
        {
            seen.push(Proof::setting(
                source_name.as_str(),
                name,
                format_args!("{}, running with {}", plain(value), plain(have)),
            ));
        }
    });
    if seen.is_empty() {
        return Ok(Vec::new());
    }
    if let Source::Map(map) = &source
        && let Some(age) = facts.pending(map)
    {
        let message = format!(
            "the ConfigMap was edited {age} s ago, and the kubelet has not written that to the node yet"
        );
        let finding = Finding::new(Severity::Info, "kube-proxy", message).seen(seen);
        return Ok(vec![finding.mend(
            "Wait: the kubelet writes it within two minutes. A kube-proxy that restarts before that reads the old file.",
        )]);
    }
    let message = "the ConfigMap says otherwise than what kube-proxy runs with: its next restart changes that";
    let finding = Finding::new(Severity::Warning, "kube-proxy", message).seen(seen);
    Ok(vec![if source_name.contains(COPY) {
        finding.mend(
            "kpx made this copy for a migration: finish it with `kpx migrate resume`, or take it back with `kpx migrate rollback`.",
        )
    } else {
        finding
    }])
}

fn prefixes(facts: &Facts<'_>) -> Verdict {
    let config = facts.configuration()?;
    if !matches!(config.detect_local_mode.as_str(), "" | "ClusterCIDR")
        || config.cluster_cidr.is_empty()
    {
        let why = "kube-proxy does not tell pods' traffic by clusterCIDR";
        return Err(Gap::NotApplicable(why.to_owned()));
    }
    let node = facts.this_node()?;
    let ours = Family::BOTH.map(|family| config.cluster_cidr(family));
    let setting = || {
        Proof::setting(
            "kube-proxy's configuration",
            "clusterCIDR",
            &config.cluster_cidr,
        )
    };
    let mut findings = Vec::new();
    for text in &node.spec.pod_cidrs {
        let Ok(pods) = text.parse::<Cidr>() else {
            continue;
        };
        let same = ours
            .iter()
            .flatten()
            .find(|of| of.family() == pods.family());
        if same.is_some_and(|of| of.contains(pods.addr) && of.prefix <= pods.prefix) {
            continue;
        }
        // That a family has no prefix at all is KP09's.
        if same.is_none() && ours.iter().any(Option::is_some) && node.spec.pod_cidrs.len() > 1 {
            continue;
        }
        let message =
            "the node's pods are not in clusterCIDR: their traffic is taken for a stranger's";
        findings.push(
            Finding::new(Severity::Error, text.clone(), message)
                .seen([Proof::setting("the Node", "podCIDR", text), setting()]),
        );
    }
    Ok(findings)
}

fn no_recheck(facts: &Facts<'_>) -> Verdict {
    facts.only_in(&[Mode::Ipvs])?;
    let found = facts.version()?;
    let version = found.version;
    let bad = (version.major, version.minor) == (1, 34) && version.patch < 4
        || (version.major, version.minor) == (1, 35) && version.patch < 1;
    if !bad {
        return Ok(Vec::new());
    }
    let message = "this release does not look at its virtual servers again until something changes";
    let seen = Proof::setting(found.source.to_string(), "version", version);
    Ok(vec![
        Finding::new(Severity::Warning, "kube-proxy", message).seen([seen]),
    ])
}

fn removed_fields(facts: &Facts<'_>) -> Verdict {
    const GONE: [(&str, &str); 7] = [
        ("udpIdleTimeout", "it was for the userspace mode"),
        ("udpTimeoutMilliseconds", "it was for the userspace mode"),
        ("resourceContainer", "it is gone since 1.16"),
        ("portRange", "it was for the userspace mode"),
        (
            "conntrack.max",
            "it is conntrack.maxPerCore and conntrack.min now",
        ),
        (
            "conntrackMax",
            "it is conntrack.maxPerCore and conntrack.min now",
        ),
        (
            "iptables.localhostNodePort",
            "it is iptables.localhostNodePorts",
        ),
    ];
    let text = facts.node.evidence().text(Item::ProxyConfig)?;
    let fields = written(text)?;
    let mut seen = Vec::new();
    leaves(&fields, "", &mut |name, value| {
        if let Some((_, why)) = GONE.iter().find(|(gone, _)| *gone == name) {
            let value = format!("{} ({why})", plain(value));
            seen.push(Proof::setting("kube-proxy's configuration", name, value));
        }
    });
    if seen.is_empty() {
        return Ok(Vec::new());
    }
    let message = "the configuration has fields that kube-proxy does not know any more";
    Ok(vec![
        Finding::new(Severity::Warning, "configuration", message).seen(seen),
    ])
}
