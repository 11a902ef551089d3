//! KP, MX, CN, IB: others who write rules beside kube-proxy, and who is left of them.

use std::collections::BTreeMap;

use super::ask::if_recorded;
use super::facts::MODE;
use super::projected::{COPY, mounted, text_of};
use super::proxy::{VERSION, containers};
use super::setup::mounts;
use super::{Check, Facts, Finding, Proof, Severity, Verdict, When};
use crate::backend::Mode;
use crate::cluster::config::ProxyConfig;
use crate::evidence::{Gap, Item};
use crate::net::Family;
use crate::node::Store;

pub(super) const CHECKS: &[Check] = &[
    Check {
        id: "KP17",
        name: "one-proxy",
        severity: Severity::Error,
        when: When::NowAndFor(&Mode::ALL),
        title: "One service proxy alone works on the node",
        symptom: "Services work now and then, or rules that were just removed come back.",
        why: "kube-router, Cilium and Antrea can take kube-proxy's place. Where both run, each of them sees the other's work \
              as something to put right, or traffic as already translated. kubeadm upgrade brings kube-proxy back where it \
              was removed on purpose.",
        verify: "Only one of them may run with its service proxy on.",
        commands: &[
            "pgrep -a 'kube-proxy|kube-router|cilium-agent|antrea-agent'",
            "ip link show kube-dummy-if",
        ],
        fix: "Decide for one. For the other plug-in's: delete the DaemonSet kube-proxy and clean its rules on each node.",
        incidents: &[
            "kubernetes/kubeadm#3137",
            "kubernetes-sigs/kubespray#11227",
            "cloudnativelabs/kube-router#833",
        ],
        needs: &[&[Item::Processes, Item::Links]],
        caused_by: &[],
        run: others,
    },
    Check {
        id: "MX04",
        name: "nobody-s-rules",
        severity: Severity::Warning,
        when: When::Now,
        title: "Where kube-proxy's rules are, kube-proxy runs",
        symptom: "Services answer from old endpoints, or not at all; nothing follows a change.",
        why: "Rules stay when kube-proxy goes: stopped, removed in favour of another service proxy, or moved off this node. \
              From then on they are what they were that day.",
        verify: "Where there are KUBE chains, a kube-proxy process must run.",
        commands: &["pgrep -a kube-proxy", "iptables-save | grep -c '^:KUBE-'"],
        fix: "Start kube-proxy again; or, if another service proxy took over, remove what it left: `kpx doctor` names it.",
        incidents: &["kubernetes/kubernetes#119265: a move to another service proxy"],
        needs: &[&[
            Item::Processes,
            Item::Links,
            Item::Iptables4,
            Item::Iptables6,
            Item::Nft,
            Item::NftText,
        ]],
        caused_by: &["KP05"],
        run: nobody,
    },
    Check {
        id: "CN04",
        name: "cilium-beside-rules",
        severity: Severity::Warning,
        when: When::Now,
        title: "No rules of kube-proxy are left where Cilium took its place",
        symptom: "Some connections to Services go to pods that are long gone, on nodes that are older than the change.",
        why: "Cilium can replace kube-proxy. What kube-proxy wrote before stays on each node until its next boot, and what \
              Cilium lets through still meets it.",
        verify: "Where Cilium runs and kube-proxy does not, there may be no KUBE-SVC chain.",
        commands: &[
            "iptables-save | grep -c KUBE-SVC",
            "cilium-dbg status | grep KubeProxyReplacement",
        ],
        fix: "Drain and reboot the node, or remove the rules node by node.",
        incidents: &["kube-hetzner/terraform-hcloud-kube-hetzner#1210"],
        needs: &[&[
            Item::Processes,
            Item::Links,
            Item::Iptables4,
            Item::Iptables6,
            Item::Nft,
            Item::NftText,
        ]],
        caused_by: &[],
        run: cilium_leftovers,
    },
    Check {
        id: "IB02",
        name: "backend-agrees",
        severity: Severity::Error,
        when: When::Now,
        title: "kube-proxy, the kubelet and the node's tools use one back end",
        symptom: "iptables on the node shows no rule of kube-proxy, though Services work; or rules of the two work against \
                  each other.",
        why: "iptables has two back ends with rules of their own. kube-proxy's image chooses by the kubelet's hint, a chain \
              in table mangle, or by where it finds rules. Chosen otherwise than by the node's own tools, what one writes \
              the other does not see.",
        verify: "The hint, kube-proxy's chains and the node's tools must be of one back end.",
        commands: &[
            "iptables --version",
            "iptables-legacy-save | grep -c KUBE-",
            "iptables-nft-save | grep -c KUBE-",
        ],
        fix: "Set the node's tools to the back end that kube-proxy uses (`update-alternatives --config iptables`), and \
              restart kube-proxy and the kubelet.",
        incidents: &[
            "kubernetes/kubernetes#71305",
            "Azure/azure-container-networking#3094",
        ],
        needs: &[&[
            Item::IptablesVersion,
            Item::Iptables4,
            Item::IptablesLegacy4,
            Item::IptablesNft4,
        ]],
        caused_by: &["IB01"],
        run: backends,
    },
    Check {
        id: "IB03",
        name: "iptables-age",
        severity: Severity::Warning,
        when: When::Now,
        title: "The node's iptables is as new as the one in kube-proxy's image",
        symptom: "Rules lose a match: a bare DROP or ACCEPT stands where a mark was asked for.",
        why: "With the nft back end, 1.8.8 and newer write some matches in a form that older versions cannot read. An old \
              tool that saves and restores the rules leaves the match out and keeps the rest.",
        verify: "The node's version must be 1.8.8 or newer, as images of kube-proxy since 1.29 have it.",
        commands: &[
            "iptables --version",
            "kubectl -n kube-system exec POD -- iptables --version",
        ],
        fix: "Update iptables on the node; until then let nothing there save and restore rules.",
        incidents: &[
            "kubernetes/kubernetes#112477",
            "cloudnativelabs/kube-router#1588",
        ],
        needs: &[VERSION, &[Item::IptablesVersion]],
        caused_by: &[],
        run: old_tools,
    },
    Check {
        id: "IB05",
        name: "shared-lock",
        severity: Severity::Warning,
        when: When::Now,
        title: "All who write rules share the lock of iptables",
        symptom: "Rules vanish or syncs fail now and then: two programs wrote the same table at once.",
        why: "The legacy back end keeps writers apart by a lock on /run/xtables.lock. A pod that does not mount this file \
              locks one of its own. And a program that holds the lock for seconds makes kube-proxy's sync fail.",
        verify: "The pod must mount the file, and its log not complain of the lock.",
        commands: &[
            "kubectl -n kube-system get daemonset kube-proxy -o jsonpath='{..volumeMounts[*].mountPath}'",
            "kubectl -n kube-system logs POD | grep -i 'xtables lock'",
            "lslocks | grep xtables",
        ],
        fix: "Mount /run/xtables.lock from the host (FileOrCreate) in every pod that writes rules; find who holds it long.",
        incidents: &[
            "kubernetes/kubernetes#57428",
            "k3s-io/k3s#11098",
            "kubernetes-sigs/kind#944",
        ],
        needs: &[MODE, &[Item::Pods, Item::DaemonSets, Item::ProxyLog]],
        caused_by: &[],
        run: lock,
    },
    Check {
        id: "MX05",
        name: "modes-of-the-fleet",
        severity: Severity::Warning,
        when: When::Now,
        title: "kube-proxy is configured for one mode on all nodes",
        symptom: "The same Service behaves differently from node to node.",
        why: "Several DaemonSets, each with a ConfigMap of its own, let nodes run in different modes. That is right in the \
              middle of a move, and a trap when it stays.",
        verify: "The ConfigMaps that kube-proxy's pods mount must name the same mode.",
        commands: &[
            "kubectl -n kube-system get configmaps -o yaml | grep -E '^    mode:|  name: kube-proxy'",
        ],
        fix: "Finish the move, or take it back.",
        incidents: &["kubernetes/kubernetes#66509", "rancher/rancher#29719"],
        needs: &[&[Item::ConfigMaps, Item::Pods]],
        caused_by: &[],
        run: fleet,
    },
];

/// Whether kube-proxy runs here, by itself or within a distribution's own process.
pub(super) fn runs_here(facts: &Facts<'_>) -> Result<bool, Gap> {
    const WITHIN: [&str; 8] = [
        "hyperkube",
        "k0s",
        "k3s",
        "k3s-agent",
        "k3s-server",
        "kube-proxy",
        "kubelite",
        "rke2",
    ];
    let processes = &if_recorded(facts.node.processes())?.processes;
    let mut here = processes.iter().filter(|of| of.same_network != Some(false));
    Ok(here.any(|of| WITHIN.contains(&of.name.as_str())))
}

fn others(facts: &Facts<'_>) -> Verdict {
    if !runs_here(facts)? {
        let why = "kube-proxy does not run here";
        return Err(Gap::NotApplicable(why.to_owned()));
    }
    let mut seen = Vec::new();
    let processes = &if_recorded(facts.node.processes())?.processes;
    for process in processes.iter().filter(|of| of.same_network != Some(false)) {
        let says = |flag: &str, values: &[&str]| {
            let mut args = process.args.iter();
            args.any(|arg| {
                values
                    .iter()
                    .any(|value| *arg == format!("--{flag}={value}"))
            })
        };
        let serves = match process.name.as_str() {
            "kube-router" => !says("run-service-proxy", &["false"]),
            "cilium-agent" => says("kube-proxy-replacement", &["true", "strict"]),
            _ => false,
        };
        if serves {
            seen.push(Proof::Note(format!(
                "process {} {}",
                process.pid, process.name
            )));
        }
    }
    let links = facts.node.links()?.all.iter();
    seen.extend(
        links
            .filter(|link| link.name == "kube-dummy-if")
            .map(|link| Proof::Link {
                link: link.name.clone(),
                state: "kube-router's link for Service addresses".to_owned(),
            }),
    );
    if seen.is_empty() {
        return Ok(Vec::new());
    }
    let message = "another service proxy works beside kube-proxy";
    Ok(vec![
        Finding::new(Severity::Error, "kube-proxy", message).seen(seen),
    ])
}

pub(super) fn is_cilium(facts: &Facts<'_>) -> Result<bool, Gap> {
    let links = facts.node.links()?.all.iter();
    let mut links = links.map(|link| link.name.as_str());
    let processes = &if_recorded(facts.node.processes())?.processes;
    Ok(links.any(|name| name == "cilium_host")
        || processes.iter().any(|of| of.name == "cilium-agent"))
}

/// Returns what serves Services by rules of kube-proxy, by family.
fn held(facts: &Facts<'_>) -> Result<Vec<Proof>, Gap> {
    let mut seen = Vec::new();
    for family in Family::BOTH {
        let modes = match facts.node.serving(family) {
            Ok(modes) => modes,
            Err(Gap::Absent(..)) if family == Family::V6 => continue,
            Err(gap) => return Err(gap),
        };
        seen.extend(
            modes
                .into_iter()
                .map(|mode| Proof::setting(format!("kernel, {family}"), "rules of mode", mode)),
        );
    }
    Ok(seen)
}

fn nobody(facts: &Facts<'_>) -> Verdict {
    if runs_here(facts)? {
        return Ok(Vec::new());
    }
    if is_cilium(facts)? {
        return Err(Gap::NotApplicable(
            "Cilium runs here: CN04 tells".to_owned(),
        ));
    }
    let message = "the rules are there, and nobody keeps them up to date: no kube-proxy runs";
    still_held(facts, message)
}

fn cilium_leftovers(facts: &Facts<'_>) -> Verdict {
    if !is_cilium(facts)? {
        return Err(Gap::NotApplicable("Cilium does not run here".to_owned()));
    }
    if runs_here(facts)? {
        return Ok(Vec::new());
    }
    let message = "Cilium runs here and kube-proxy does not, but its rules are still in place";
    still_held(facts, message)
}

/// Warns with `message` of what kube-proxy wrote, if any of it is there.
fn still_held(facts: &Facts<'_>, message: &str) -> Verdict {
    let seen = held(facts)?;
    if seen.is_empty() {
        return Ok(Vec::new());
    }
    Ok(vec![
        Finding::new(Severity::Warning, "kube-proxy", message).seen(seen),
    ])
}

fn backends(facts: &Facts<'_>) -> Verdict {
    let version = facts.node.evidence().text(Item::IptablesVersion)?.trim();
    let nft = version.contains("nf_tables");
    let (used, idle) = if nft {
        ("nft", "legacy")
    } else {
        ("legacy", "nft")
    };
    let other = if nft { Store::Legacy } else { Store::Nft };
    let has = |store: Store, table: &str, name: &str| {
        facts
            .node
            .iptables(store, Family::V4)
            .map(|rules| rules.chain(table, name).is_some())
    };
    let ours = has(Store::InUse, "nat", "KUBE-SERVICES")?;
    let hint = has(Store::InUse, "mangle", "KUBE-IPTABLES-HINT")?;
    // A back end that holds nothing is not collected.
    let there = has(other, "nat", "KUBE-SERVICES").unwrap_or(false);
    let hint_there = has(other, "mangle", "KUBE-IPTABLES-HINT").unwrap_or(false);
    let tools = Proof::Note(format!("the node's tools: {version}"));
    let mut findings = Vec::new();
    if there && !ours {
        let message = format!(
            "kube-proxy writes its rules to the {idle} back end, the node's tools use {used}"
        );
        let seen = Proof::Note(format!("KUBE-SERVICES is in {idle}, not in {used}"));
        findings
            .push(Finding::new(Severity::Error, "iptables", message).seen([tools.clone(), seen]));
    }
    if (hint_there && !hint && ours) || (hint && !hint_there && there && !ours) {
        let (kubelet, proxy) = if hint_there {
            (idle, used)
        } else {
            (used, idle)
        };
        let message = format!("the kubelet uses the {kubelet} back end, kube-proxy {proxy}");
        let seen = Proof::Note(format!("KUBE-IPTABLES-HINT is in {kubelet}"));
        findings.push(Finding::new(Severity::Error, "kubelet", message).seen([tools, seen]));
    }
    Ok(findings)
}

/// Returns the numbers of a version such as `v1.8.9`.
pub(super) fn numbers(text: &str) -> Option<(u16, u16, u16)> {
    let mut words = text.split(|c: char| c.is_whitespace() || c == ',');
    words.find_map(|word| {
        let mut parts = word
            .trim_start_matches('v')
            .split('.')
            .map(|part| part.parse().ok());
        Some((
            parts.next()??,
            parts.next()??,
            parts.next().flatten().unwrap_or(0),
        ))
    })
}

fn old_tools(facts: &Facts<'_>) -> Verdict {
    let version = facts.node.evidence().text(Item::IptablesVersion)?.trim();
    if !version.contains("nf_tables") {
        let why = "iptables is of the legacy back end, which has no such forms";
        return Err(Gap::NotApplicable(why.to_owned()));
    }
    let here = numbers(version).ok_or_else(|| {
        Gap::Failed(
            Item::IptablesVersion,
            format!("{version:?} has no version in it"),
        )
    })?;
    let proxy = facts.version()?;
    if here >= (1, 8, 8) || !proxy.version.at_least(1, 29) {
        return Ok(Vec::new());
    }
    let message = "the node's iptables is too old to read what kube-proxy's image writes";
    Ok(vec![
        Finding::new(Severity::Warning, "iptables", message).seen([
            Proof::Note(version.to_owned()),
            Proof::setting(proxy.source.to_string(), "kube-proxy", proxy.version),
        ]),
    ])
}

fn lock(facts: &Facts<'_>) -> Verdict {
    facts.only_in(&[Mode::Iptables, Mode::Ipvs])?;
    let mut findings = Vec::new();
    let all = containers(facts);
    let without: Vec<_> = all
        .iter()
        .flatten()
        .filter(|(_, container)| !mounts(container, "/run/xtables.lock"))
        .map(|(name, _)| Proof::setting(name, "volumeMounts", "no /run/xtables.lock"))
        .collect();
    if !without.is_empty() {
        let message = "kube-proxy's pod does not share the lock of iptables with the node";
        findings.push(Finding::new(Severity::Warning, "kube-proxy", message).seen(without));
    }
    let log = facts.node.evidence().text(Item::ProxyLog);
    if let Ok(log) = log {
        let held = log
            .lines()
            .filter(|line| line.contains("holding the xtables lock"));
        let held: Vec<_> = held.collect();
        if let Some(last) = held.last() {
            let message = "somebody else holds the lock of iptables so long that kube-proxy's syncs wait or fail";
            let times = Proof::Note(format!("{} times in the log", held.len()));
            findings.push(
                Finding::new(Severity::Warning, "xtables.lock", message)
                    .seen([times, Proof::Log(last.trim().to_owned())]),
            );
        }
    }
    match (all, log) {
        (Err(_), Err(gap)) if findings.is_empty() => Err(gap),
        _ => Ok(findings),
    }
}

fn fleet(facts: &Facts<'_>) -> Verdict {
    let maps = facts.node.config_maps()?;
    let pods = facts.node.all_pods()?.iter();
    let mut by_mode: BTreeMap<Mode, Vec<String>> = BTreeMap::new();
    let mut copies = false;
    for pod in pods.filter(|pod| pod.spec.containers.iter().any(|c| c.name == "kube-proxy")) {
        // A copy is for the nodes that kpx moves, which is not over as long as there is one.
        if mounted(pod).any(|name| name.starts_with(COPY)) {
            copies = true;
            continue;
        }
        let mode = mounted(pod)
            .filter_map(|name| maps.iter().find(|map| map.metadata.name == name))
            .filter_map(text_of)
            .find_map(|text| ProxyConfig::parse(text).ok()?.mode_asked());
        if let Some(mode) = mode {
            let node = pod.spec.node_name.clone().unwrap_or_default();
            by_mode.entry(mode).or_default().push(node);
        }
    }
    if by_mode.is_empty() && copies {
        let why = "the pods of kube-proxy run from a copy of its ConfigMap that kpx made";
        return Err(Gap::NotApplicable(why.to_owned()));
    }
    if by_mode.is_empty() {
        let why = "no pod of kube-proxy mounts a ConfigMap that names a mode";
        return Err(Gap::NotApplicable(why.to_owned()));
    }
    if by_mode.len() == 1 {
        return Ok(Vec::new());
    }
    let seen = by_mode.iter().map(|(mode, nodes)| {
        let s = if nodes.len() == 1 { "" } else { "s" };
        Proof::setting(
            format!("{} node{s}", nodes.len()),
            mode.name(),
            nodes.join(", "),
        )
    });
    let message = "kube-proxy is configured for different modes on different nodes";
    Ok(vec![
        Finding::new(Severity::Warning, "modes", message).seen(seen),
    ])
}
