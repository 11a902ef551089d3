//! kube-proxy's release, its tools and its rollout.

use std::collections::BTreeSet;

use crate::check::core::{
    Collector, KUBE_ROUTER_LINK, MODE, NFT, REPLACEMENT, VERSION, is_kube_router, newer_nft,
    runs_here, sets_of_others, tool_version,
};
use crate::check::{Check, Example, Facts, Finding, Proof, Severity, Subject, Text, Verdict, When};
use kpx_node::backend::Mode;
use kpx_node::cluster::release::Change;
use kpx_node::cluster::version::Version;
use kpx_node::evidence::{Gap, Item};
use kpx_node::node::bpf::Proxy;
use kpx_node::node::ebpf::{Attached, EbpfProxy};
use kpx_node::node::processes::{Process, is_here, kube_proxies};
use kpx_node::words::{listed, number_of};

pub(super) const CHECKS: &[Check] = &[
    Check {
        id: "KP14",
        name: "version-skew",
        severity: Severity::Warning,
        when: When::Now,
        title: "kube-proxy is within three releases of the kubelet",
        symptom: "None at first; rules that a release in between would have cleaned up stay.",
        why: "Upstream tests and supports a kube-proxy up to three minor releases older or newer than the node's \
              kubelet.",
        verify: "Compare the two versions.",
        commands: &[
            Example::anywhere(
                "kubectl get node NAME -o jsonpath='{.status.nodeInfo.kubeletVersion}'",
            )
            .with(&["NAME"]),
            Example::anywhere(
                "kubectl -n kube-system get daemonset kube-proxy -o jsonpath='{..image}'",
            ),
        ],
        fix: Text::plain("Upgrade the older one, at most three releases at a time."),
        incidents: &[
            "kubernetes/kubernetes#132516: old chains broke a sync a month after a jump of releases",
        ],
        needs: &[VERSION],
        caused_by: &[],
        run: skew,
    },
    Check {
        id: "KP15",
        name: "periodic-recheck",
        severity: Severity::Warning,
        when: When::NowAndFor(&[Mode::Ipvs]),
        title: "This kube-proxy release regularly re-checks its virtual servers",
        symptom: "Virtual servers and addresses that other software added or deleted stay like that until kube-proxy \
              restarts.",
        why: "Since 1.34.0 kube-proxy in ipvs mode checked its rules only when Services or endpoints changed; patch \
              releases restored the regular check.",
        verify: "The release must be older than 1.34, or at least 1.34.4 or 1.35.1.",
        commands: &[Example::on_node(
            "curl -s http://127.0.0.1:10249/metrics | grep kubernetes_build_info",
        )],
        fix: Text::plain("Upgrade kube-proxy to the latest patch release."),
        incidents: &[
            "kubernetes/kubernetes#134147",
            "kubernetes/kubernetes#135631: the fix, backported to 1.34 and 1.35 in January 2026",
        ],
        needs: &[MODE, VERSION],
        caused_by: &[],
        run: no_recheck,
    },
    Check {
        id: "KP16",
        name: "nft-version",
        severity: Severity::Warning,
        when: When::NowAndFor(&[Mode::Nftables]),
        title: "The node's nft and kube-proxy's can read each other's rules",
        symptom: "On the node `nft list ruleset` fails or prints wrong rules; or kube-proxy's nft crashes at each sync.",
        why: "kube-proxy's rules need nft 1.0.1. An older nft on the node, used by an administrator or a firewall \
              service, misreads them; a save and restore with it destroys them. The other way round, the nft in \
              kube-proxy's image is older than 1.1.2 up to release 1.36, and crashes on sets that a newer nft wrote in \
              any table.",
        verify: "The node's version must be 1.0.1 or newer. If it is 1.1.2 or newer, only kube-proxy may have sets, or \
                 kube-proxy must be 1.37 or newer.",
        commands: &[
            Example::on_node("nft --version"),
            Example::on_node("nft list sets"),
            Example::anywhere("kubectl -n kube-system exec POD -- nft --version").with(&["POD"]),
        ],
        fix: Text::plain("Upgrade nftables on the node."),
        incidents: &[
            "kubernetes/kubernetes#122743: the oldest nft",
            "kubernetes/kubernetes#136786: the versions that cannot read each other's sets",
            "kubernetes/kubernetes#140898",
            "k0sproject/k0s#7293",
            "kubernetes/kubernetes#140405: the fix, in 1.37",
        ],
        needs: &[MODE, VERSION, NFT, &[Item::NftVersion]],
        caused_by: &[],
        run: nft_version,
    },
    Check {
        id: "KP17",
        name: "one-proxy",
        severity: Severity::Error,
        when: When::NowAndFor(&Mode::ALL),
        title: "Only one service proxy runs on the node",
        symptom: "Services work intermittently, or rules come back after they were removed.",
        why: "kube-router, Cilium, Calico and Antrea can replace kube-proxy. If both run, each treats the other's rules as a \
              fault to correct, or its traffic as already translated. `kubeadm upgrade` brings kube-proxy back after \
              it was removed on purpose.",
        verify: "Only one of them may run with its service proxy enabled.",
        commands: &[
            Example::on_node("pgrep -a 'kube-proxy|kube-router|cilium-agent|antrea-agent'"),
            Example::on_node("ip link show kube-dummy-if"),
        ],
        fix: Text::plain(
            "To keep the service proxy of the network plugin: delete the DaemonSet kube-proxy and clean up its rules on \
             each node.",
        ),
        incidents: &[
            "kubernetes/kubeadm#3137",
            "kubernetes-sigs/kubespray#11227",
            "cloudnativelabs/kube-router#833",
        ],
        needs: &[REPLACEMENT],
        caused_by: &[],
        run: other_proxies,
    },
    Check {
        id: "KP19",
        name: "rollout-paced",
        severity: Severity::Warning,
        when: When::For(&Mode::ALL),
        title: "A rollout of kube-proxy waits for each node's rules",
        symptom: "A change of the DaemonSet reaches all nodes within a minute, before any node has written its rules.",
        why: "A DaemonSet proceeds to the next node when the pod is ready. Without a readiness probe, as with \
              kubeadm, a pod is ready as soon as it runs: before it has removed the rules of the old mode, and long \
              before the first sync ends.",
        verify: "The container must have a readiness probe, or the strategy must be OnDelete.",
        commands: &[Example::anywhere(
            "kubectl -n kube-system get daemonset kube-proxy -o jsonpath='{.spec.updateStrategy}{..readinessProbe}'",
        )],
        fix: Text::plain(
            "Set the strategy to OnDelete before the edit. Switch node by node, and wait on each until its rules \
             are written.",
        ),
        incidents: &[
            "kubeadm's manifest has no probe; the gap was measured in kubernetes/kubernetes#139513",
        ],
        needs: &[&[Item::DaemonSets]],
        caused_by: &[],
        run: pacing,
    },
];

fn skew(facts: &Facts<'_>) -> Verdict {
    let proxy = facts.version()?;
    let node = facts.this_node()?;
    let text = node.status.node_info.kubelet_version.as_str();
    if text.is_empty() {
        let why = "the Node object has no kubelet version";
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
        Finding::new(Severity::Warning, Subject::setting("version"), message).evidence([
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

fn no_recheck(facts: &Facts<'_>) -> Verdict {
    facts.only_in(&[Mode::Ipvs])?;
    let found = facts.version()?;
    let version = found.version;
    if !version.lacks_ipvs_resync() {
        return Ok(Vec::new());
    }
    let message =
        "this release does not re-check its virtual servers until a Service or endpoint changes";
    let seen = Proof::setting(found.source.to_string(), "version", version);
    Ok(vec![
        Finding::new(Severity::Warning, Subject::Proxy, message).evidence([seen]),
    ])
}

fn nft_version(facts: &Facts<'_>) -> Verdict {
    facts.only_in(&[Mode::Nftables])?;
    let (found, text) = match tool_version(facts, Item::NftVersion) {
        // Without nft on the node, no program there misreads the rules.
        Err(Gap::Absent(..)) => return Ok(Vec::new()),
        read => read?,
    };
    if found >= (1, 0, 1) {
        return unread_sets(facts);
    }
    let message = "the node's nft is too old to read kube-proxy's rules";
    Ok(vec![
        Finding::new(Severity::Warning, Subject::tool("nft"), message)
            .evidence([Proof::Note(text)]),
    ])
}

/// Returns a finding if other software has sets on which the nft in kube-proxy's image may crash. Once syncs fail for it, the
/// known bug of the release is reported.
fn unread_sets(facts: &Facts<'_>) -> Verdict {
    const FAILURES: &str = "kubeproxy_sync_proxy_rules_nftables_sync_failures_total";
    let Some(text) = newer_nft(facts)? else {
        return Ok(Vec::new());
    };
    let sets = sets_of_others(facts)?;
    if sets.is_empty() {
        return Ok(Vec::new());
    }
    let proxy = facts.version()?;
    let metrics = facts.node.metrics();
    let mut counts = metrics.iter().flat_map(|metrics| metrics.of(FAILURES));
    if proxy.version.has(Change::ReadsNewerSets) || counts.any(|sample| sample.value > 0.0) {
        return Ok(Vec::new());
    }
    let message = "the nft in kube-proxy's image may crash on sets that the node's newer nft wrote";
    Ok(vec![
        Finding::new(Severity::Warning, Subject::tool("nft"), message)
            .evidence(sets)
            .evidence([
                Proof::Note(format!("the node's {text}")),
                Proof::setting(proxy.source.to_string(), "kube-proxy", proxy.version),
            ])
            .fix("Remove these sets, or upgrade kube-proxy to 1.37, whose image reads them."),
    ])
}

fn other_proxies(facts: &Facts<'_>) -> Verdict {
    if !runs_here(facts)? {
        let why = "kube-proxy does not run on this node";
        return Err(Gap::NotApplicable(why.to_owned()));
    }
    let (mut findings, mut seen) = (Collector::default(), Vec::new());
    let lasting = |process: &&Process| !process.args.iter().any(|arg| arg.starts_with("--cleanup"));
    let own: Vec<_> = kube_proxies(facts.node.processes()?)
        .filter(lasting)
        .collect();
    // One process may be the child of another; those of two pods or services are in different control groups.
    let groups: BTreeSet<&str> = own
        .iter()
        .filter_map(|process| process.cgroup.as_deref())
        .collect();
    if groups.len() > 1 {
        let message = format!(
            "{} of kube-proxy run at once: each undoes what the other writes, unless their settings are the same",
            number_of(own.len(), "process")
        );
        let seen = own.iter().map(|process| {
            let args = process.args.join(" ");
            Proof::Note(format!("process {}: {args}", process.pid))
        });
        findings.push(
            Finding::new(Severity::Error, Subject::Proxy, message)
                .called("kube-proxy twice")
                .evidence(seen)
                .fix("Keep one: delete the DaemonSet kube-proxy, or the static pod or the service unit that starts the other."),
        );
    }
    let processes = facts.node.processes()?.processes.iter();
    let routers = processes.filter(|process| is_here(process) && is_kube_router(process));
    seen.extend(
        routers.map(|router| Proof::Note(format!("process {} {}", router.pid, router.name))),
    );
    let links = findings.read(facts.node.links());
    let links = links.into_iter().flat_map(|links| &links.all);
    seen.extend(
        links
            .filter(|link| link.name == KUBE_ROUTER_LINK)
            .map(|link| Proof::Link {
                link: link.name.clone(),
                state: "kube-router's link for Service addresses".to_owned(),
            }),
    );
    for of in facts.node.ebpf() {
        // Programs without an agent are left over: CN13 reports them.
        match of.is_alive() {
            Ok(true) => seen.extend(served(of)),
            Ok(false) => {}
            Err(gap) => findings.note(gap),
        }
    }
    if !seen.is_empty() {
        let message = "another service proxy runs next to kube-proxy";
        let mut ebpf = facts.node.ebpf().iter();
        let living = ebpf.find(|of| of.is_alive() == Ok(true));
        let name = living.map_or_else(|| "kube-router".to_owned(), |of| of.proxy.to_string());
        let about = Subject::software(name);
        findings.push(Finding::new(Severity::Error, about, message).evidence(seen));
    }
    findings.verdict()
}

/// Returns what shows that a service proxy of eBPF serves here.
fn served(of: &EbpfProxy) -> Vec<Proof> {
    let proxy = of.proxy;
    let at_connect = of.programs.iter().any(Attached::is_at_connect);
    let links: BTreeSet<&str> = of.programs.iter().filter_map(Attached::link).collect();
    let links: Vec<&str> = links.into_iter().collect();
    let mut seen = Vec::new();
    if at_connect {
        seen.push(format!("programs of {proxy} translate connect()"));
    } else if links.is_empty() {
        seen.push(format!("{proxy} is set up to serve Services"));
    } else {
        let links = listed(&links);
        seen.push(format!("programs of {proxy} translate packets at {links}"));
    }
    if proxy == Proxy::Calico {
        seen.push("Felix, Calico's agent, deletes kube-proxy's rules".to_owned());
    }
    seen.into_iter().map(Proof::Note).collect()
}

fn pacing(facts: &Facts<'_>) -> Verdict {
    let sets = facts.node.daemon_sets()?;
    let ours = sets.iter().find(|set| set.metadata.name == "kube-proxy");
    let Some(set) = ours else {
        let why = "the DaemonSet kube-proxy does not exist";
        return Err(Gap::NotApplicable(why.to_owned()));
    };
    let strategy = set.spec.update_strategy.get("type");
    let strategy = strategy
        .and_then(serde_json::Value::as_str)
        .unwrap_or("RollingUpdate");
    let mut containers = set.spec.template.spec.containers.iter();
    if strategy != "RollingUpdate"
        || containers.any(|container| container.readiness_probe.is_some())
    {
        return Ok(Vec::new());
    }
    let message =
        "a rollout does not wait for a node's rules: the container has no readiness probe";
    let source = "DaemonSet kube-proxy";
    let meta = &set.metadata;
    let daemon_set = Subject::object("DaemonSet", &meta.namespace, &meta.name);
    Ok(vec![
        Finding::new(Severity::Warning, daemon_set, message)
            .called(source)
            .evidence([
                Proof::setting(source, "updateStrategy", strategy),
                Proof::setting(source, "readinessProbe", "none"),
            ]),
    ])
}
