//! Rules without a kube-proxy, and nodes between two modes.

use std::collections::{BTreeMap, BTreeSet};

use crate::check::core::{
    COPY, Collector, MODE, REPLACEMENT, VERSION, family_or_proxy, first_sync_seconds, kernel_proof,
    left_to, mounted, queued, runs_here, still_held, text_of,
};
use crate::check::{
    Because, Check, Example, Facts, Finding, ProcessState, Proof, Severity, Subject, Text, Verdict,
    When,
};
use kpx_node::backend::Mode;
use kpx_node::cluster::config::ProxyConfig;
use kpx_node::evidence::{Gap, Item, Time};
use kpx_node::words::number_of;

pub(super) const CHECKS: &[Check] = &[
    Check {
        id: "MX04",
        name: "rules-without-proxy",
        severity: Severity::Warning,
        when: When::Now,
        title: "kube-proxy runs wherever its rules exist",
        symptom: "Services answer from old endpoints, or not at all; changes have no effect.",
        why: "Rules stay when kube-proxy goes: when it is stopped, replaced by another service proxy, or no longer \
              scheduled on the node. From then on they are outdated.",
        verify: "If there are KUBE chains, a kube-proxy process must run.",
        commands: &[
            Example::on_node("pgrep -a kube-proxy"),
            Example::on_node("iptables-save | grep -c '^:KUBE-'"),
        ],
        fix: Text::plain(
            "Start kube-proxy again: only these rules are seen to lead packets to Services. If another service proxy \
             has replaced it, drain and reboot the node.",
        ),
        incidents: &["kubernetes/kubernetes#119265: a switch to another service proxy"],
        needs: &[REPLACEMENT],
        caused_by: &[Because::Same("KP05"), Because::Absence("KP02")],
        run: rules_without_proxy,
    },
    Check {
        id: "MX05",
        name: "one-mode",
        severity: Severity::Warning,
        when: When::Now,
        title: "kube-proxy has the same mode on all nodes",
        symptom: "The same Service behaves differently from node to node.",
        why: "Several DaemonSets, each with its own ConfigMap, let nodes run in different modes; so does an edit of the \
              ConfigMap while kube-proxy on some nodes is not restarted. This is expected during a migration and a trap \
              afterwards.",
        verify: "The ConfigMaps that kube-proxy's pods mount must name the same mode.",
        commands: &[Example::anywhere(
            "kubectl -n kube-system get configmaps -o yaml | grep -E '^    mode:|  name: kube-proxy'",
        )],
        fix: Text::with(
            "Finish the migration with {}, or undo it with {}. Without a migration, set the same mode in every \
             ConfigMap of kube-proxy.",
            &[
                Example::kpx(&["migrate", "resume"]),
                Example::kpx(&["migrate", "rollback"]),
            ],
        ),
        incidents: &["kubernetes/kubernetes#66509", "rancher/rancher#29719"],
        needs: &[&[
            Item::ConfigMaps,
            Item::Pods,
            Item::ProxyMode,
            Item::ProxyConfig,
            Item::Nodes,
            Item::Addresses,
        ]],
        caused_by: &[Because::Same("KP01")],
        run: modes_of_nodes,
    },
    Check {
        id: "MX07",
        name: "first-sync",
        severity: Severity::Error,
        when: When::Now,
        title: "The first sync in nftables mode does not take minutes",
        symptom: "After a restart of kube-proxy no Service answers on the node, for minutes.",
        why: "When kube-proxy starts in nftables mode, it removes the rules of other modes and writes all its own in \
              one transaction. With tens of thousands of endpoints this took more than a quarter of an hour, while \
              the health and readiness endpoints reported success.",
        verify: "The metric of the last sync must exist and be younger than the process.",
        commands: &[
            Example::on_node(
                "curl -s http://127.0.0.1:10249/metrics | grep -E 'last_timestamp|process_start_time'",
            ),
            Example::on_node("nft list map ip kube-proxy service-ips | wc -l"),
        ],
        fix: Text::with(
            "Wait if the sync is in progress, or return to the previous mode with {}. In large clusters, upgrade \
             kube-proxy first.",
            &[Example::kpx(&["migrate", "--to", "MODE"]).with(&["MODE"])],
        ),
        incidents: &[
            "kubernetes/kubernetes#139513",
            "kubernetes/kubernetes#135639",
        ],
        needs: &[MODE, &[Item::Metrics, Item::Healthz]],
        caused_by: &[],
        run: first_sync,
    },
    Check {
        id: "MX10",
        name: "first-sync-expected",
        severity: Severity::Warning,
        when: When::For(&[Mode::Nftables]),
        title: "The first sync in nftables mode will take less than a minute",
        symptom: "After the switch no Service answers on the node, for minutes; the kernel may log soft lockups of nft.",
        why: "kube-proxy writes all rules of the nftables mode in one transaction, whose duration grows faster than the \
              number of endpoints: 2 seconds for 20,000, but a quarter of an hour for 250,000. Releases before 1.36 need \
              more of the processor.",
        verify: "Count the endpoints of all Services.",
        commands: &[
            Example::anywhere(
                "kubectl get endpointslices -A -o json | jq '[.items[].endpoints[]?] | length'",
            ),
            Example::on_node("uname -r"),
        ],
        fix: Text::with(
            "Switch with a bridge, which serves new connections meanwhile: {}. Upgrade kube-proxy to 1.36 or newer \
             first.",
            &[Example::kpx(&[
                "migrate",
                "--to",
                "nftables",
                "--strategy",
                "bridge",
            ])],
        ),
        incidents: &[
            "kubernetes/kubernetes#135639: 13 minutes for 250,011 endpoints",
            "kubernetes/kubernetes#139513",
        ],
        needs: &[VERSION, &[Item::EndpointSlices, Item::KernelRelease]],
        caused_by: &[],
        run: expected_sync,
    },
    Check {
        id: "MX13",
        name: "others-table",
        severity: Severity::Error,
        when: When::NowAndFor(&[Mode::Nftables]),
        title: "The tables called kube-proxy belong to kube-proxy",
        symptom: "kube-proxy's syncs in nftables mode fail with \"Operation not permitted\", or the table's chains vanish.",
        why: "In nftables mode, kube-proxy writes the tables ip kube-proxy and ip6 kube-proxy. Only the owner of a table with \
              the flag owner may change it, for as long as the owner's process lives. Another program's table without the \
              flag is changed by kube-proxy, and deleted when it starts in another mode.",
        verify: "The tables must have no flag owner, and no comment of another program.",
        commands: &[Example::on_node(
            "nft list ruleset | grep -A 3 -E '^table ip6? kube-proxy'",
        )],
        fix: Text::plain("End the program, or give its table another name."),
        incidents: &["seen in a test: kube-proxy in nftables mode never syncs"],
        needs: &[MODE, &[Item::Nft, Item::NftText]],
        caused_by: &[],
        run: others_table,
    },
];

fn rules_without_proxy(facts: &Facts<'_>) -> Verdict {
    if runs_here(facts)? {
        return Ok(Vec::new());
    }
    if let Some(proxy) = facts.node.served_by_ebpf()? {
        return Err(Gap::NotApplicable(left_to(proxy)));
    }
    let message = "rules of kube-proxy exist but no kube-proxy runs: nothing updates them";
    let about = Subject::ProxyProcess {
        state: ProcessState::Absent,
    };
    still_held(facts, about, message)
}

fn modes_of_nodes(facts: &Facts<'_>) -> Verdict {
    let maps = facts.node.config_maps()?;
    let pods = facts.node.pods()?.iter();
    let mut findings = Collector::default();
    findings.read(facts.node.all_pods());
    let (here, reported) = (facts.node_name(), facts.reported().ok());
    let mut by_mode: BTreeMap<Mode, Vec<String>> = BTreeMap::new();
    let mut copies = false;
    // After a restart, the process on this node has its configured mode.
    let mut after_restart: BTreeSet<Mode> = BTreeSet::new();
    for pod in pods.filter(|pod| pod.spec.containers.iter().any(|c| c.name == "kube-proxy")) {
        // A copy belongs to a migration in progress.
        if mounted(pod).any(|name| name.starts_with(COPY)) {
            copies = true;
            continue;
        }
        let mode = mounted(pod)
            .filter_map(|name| maps.iter().find(|map| map.metadata.name == name))
            .filter_map(text_of)
            .find_map(|text| ProxyConfig::parse(text).ok()?.mode_asked());
        // The process on this node may have started before the last edit.
        let running = reported.filter(|_| here.is_some() && pod.spec.node_name == here);
        after_restart.extend(mode);
        let node = pod.spec.node_name.clone().unwrap_or_default();
        match (running.or(mode), mounted(pod).next()) {
            (Some(mode), _) => by_mode.entry(mode).or_default().push(node),
            (None, Some(name)) => {
                let why =
                    format!("the configuration in ConfigMap {name}, of node {node}, is unknown");
                findings.note(Gap::Absent(Item::ConfigMaps, why));
            }
            (None, None) => {}
        }
    }
    if by_mode.is_empty() && copies {
        let why = "kube-proxy's pods use a copy of the ConfigMap that kpx made for a migration";
        return Err(Gap::NotApplicable(why.to_owned()));
    }
    if by_mode.is_empty() {
        let why = "no kube-proxy pod mounts a ConfigMap with a mode";
        findings.verdict()?;
        return Err(Gap::NotApplicable(why.to_owned()));
    }
    if by_mode.len() == 1 {
        return findings.verdict();
    }
    let seen = by_mode.iter().map(|(mode, nodes)| {
        Proof::setting(
            number_of(nodes.len(), "node"),
            mode.name(),
            nodes.join(", "),
        )
    });
    let about = match after_restart.len() {
        1 => Subject::setting("mode"),
        _ => Subject::Modes,
    };
    let message = "kube-proxy has different modes on different nodes";
    findings.push(
        Finding::new(Severity::Warning, about, message)
            .called("modes")
            .evidence(seen),
    );
    findings.verdict()
}

fn others_table(facts: &Facts<'_>) -> Verdict {
    facts.only_in(&[Mode::Nftables])?;
    let tables = match facts.node.nft() {
        Ok(rules) => rules.tables.iter(),
        // Without nftables, the kernel has no table.
        Err(Gap::NotApplicable(_)) => return Ok(Vec::new()),
        Err(gap) => return Err(gap),
    };
    let others = tables.filter(|table| table.is_others());
    Ok(others
        .map(|table| {
            let name = format!("{} {}", table.family, table.name);
            let message = match (&table.owner, &table.comment) {
                (Some(owner), _) if !owner.is_empty() => format!(
                    "{owner} owns the table (flag owner): kube-proxy cannot change it, nor can kpx"
                ),
                (Some(_), _) => "another program owns the table (flag owner): kube-proxy cannot change it, nor can kpx"
                    .to_owned(),
                (None, comment) => format!(
                    "the table is another program's, by its comment {:?}: kube-proxy changes and deletes it",
                    comment.as_deref().unwrap_or_default()
                ),
            };
            Finding::new(Severity::Error, Subject::table(None, &*name), message).evidence([
                Proof::Object {
                    what: "nft-table",
                    name,
                },
            ])
        })
        .collect())
}

fn expected_sync(facts: &Facts<'_>) -> Verdict {
    /// Seconds.
    const MOST: f64 = 60.0;
    let slices = facts.node.slices()?.iter();
    let endpoints: usize = slices
        .map(|slice| slice.endpoints.len() * slice.ports.len().max(1))
        .sum();
    let endpoints = u32::try_from(endpoints).unwrap_or(u32::MAX);
    let seconds = first_sync_seconds(endpoints, Mode::Nftables);
    if seconds <= MOST {
        return Ok(Vec::new());
    }
    let message = format!(
        "the first sync in nftables mode takes about {} minutes, in which no Service answers",
        (seconds / 60.0).ceil()
    );
    let version = facts.version().ok();
    let version = version
        .map(|version| Proof::setting(version.source.to_string(), "version", version.version));
    Ok(vec![
        Finding::new(Severity::Warning, Subject::Proxy, message)
            .evidence([Proof::Note(number_of(endpoints, "endpoint"))])
            .evidence(version)
            .evidence(kernel_proof(facts)),
    ])
}

fn first_sync(facts: &Facts<'_>) -> Verdict {
    /// Seconds; smaller clusters need a few.
    const MOST: u64 = 60;
    facts.only_in(&[Mode::Nftables])?;
    let metrics = facts.node.metrics()?;
    let waiting: Vec<_> = queued(metrics)?
        .into_iter()
        .filter(|(family, _)| {
            let last = metrics.last_sync().find(|(of, _)| of == family);
            last.is_none_or(|(_, at)| at <= 0.0)
        })
        .map(|(family, _)| family)
        .collect();
    if waiting.is_empty() {
        return Ok(Vec::new());
    }
    let started = metrics.of("process_start_time_seconds").next();
    let started = started.and_then(|sample| Time::from_epoch(sample.value));
    let clock = || {
        let health = facts.node.health().ok()?;
        health.current_time.as_deref()?.parse::<Time>().ok()
    };
    let now = facts.now.or_else(clock);
    let (Some(started), Some(now)) = (started, now) else {
        let why = "kube-proxy's start time or the current time is unknown";
        return Err(Gap::Absent(Item::Metrics, why.to_owned()));
    };
    let age = now.since(started).as_secs();
    if age <= MOST {
        return Ok(Vec::new());
    }
    let message =
        "kube-proxy's first sync has not finished: new connections to Services are not translated";
    Ok(waiting
        .into_iter()
        .map(|family| {
            let seen = Proof::setting(
                "kube-proxy's metrics",
                "started",
                format_args!("{age} s ago"),
            );
            Finding::new(Severity::Error, family_or_proxy(family), message).evidence([seen])
        })
        .collect())
}
