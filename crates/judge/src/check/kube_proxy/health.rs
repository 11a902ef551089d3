//! Whether kube-proxy runs and keeps its rules up to date.

use super::silence::{edit_of, health_port_taken, proxy_sets, silent};
use crate::check::core::{
    Collector, MODE, OBSERVED, REPLACEMENT, family_or_proxy, leaving, proxy_metrics, queued,
    runs_here, syncs_slower_than,
};
use crate::check::{
    Because, Check, Example, Facts, Finding, Fix, ProcessState, Proof, Severity, Subject, Text,
    Verdict, When, restart_fix,
};
use kpx_node::backend::Mode;
use kpx_node::cluster::{ContainerStatus, Pod};
use kpx_node::evidence::proxy_log::Kind;
use kpx_node::evidence::{Gap, Item, Time};
use kpx_node::net::Family;
use kpx_node::node::runtime::{Health, Metrics};

pub(super) const CHECKS: &[Check] = &[
    Check {
        id: "KP02",
        name: "restarts",
        severity: Severity::Error,
        when: When::NowAndFor(&Mode::ALL),
        title: "kube-proxy's container stays up",
        symptom: "The node's rules stay as they were; kube-proxy is in CrashLoopBackOff.",
        why: "Since 1.26 kube-proxy exits if it cannot run in the configured mode. Other causes are an invalid \
              setting, too little memory, and an unreachable API server.",
        verify: "The container must not be waiting, nor restart repeatedly.",
        commands: &[
            Example::anywhere("kubectl -n kube-system get pods -l k8s-app=kube-proxy -o wide"),
            Example::anywhere("kubectl -n kube-system logs POD --previous | tail").with(&["POD"]),
        ],
        fix: Text::plain(
            "Run `kubectl -n kube-system logs POD --previous` and fix the error in the last lines.",
        ),
        incidents: &["kubernetes/kubernetes#111806", "kubernetes/kops#17915"],
        needs: &[
            &[
                Item::Pods,
                Item::DaemonSets,
                Item::Nodes,
                Item::Addresses,
                Item::ProxyConfig,
            ],
            &[Item::ProxyLog, Item::ProxyMode],
        ],
        caused_by: &[
            Because::Exit("KM01"),
            Because::Exit("KM08"),
            Because::Exit("KM12"),
            Because::Exit("KP22"),
            Because::Same("KP21"),
        ],
        run: restarts,
    },
    Check {
        id: "KP05",
        name: "healthy",
        severity: Severity::Error,
        when: When::NowAndFor(&Mode::ALL),
        title: "kube-proxy runs, answers and reports that it is healthy",
        symptom: "Changes of Services and endpoints do not reach this node; its rules become outdated.",
        why: "kube-proxy reports the state of its syncs at /healthz, per IP family since 1.33. It is unhealthy if a \
              sync has been pending for longer than twice the sync period. If it does not answer at all, it is not \
              running, stopped or hung. On a node that is about to be removed, /healthz answers 503 so that load \
              balancers send no new connections; kube-proxy itself is healthy then, and /livez answers 200.",
        verify: "The answer must be 200, with healthy true for each family. If only nodeEligible is false, ask /livez.",
        commands: &[
            Example::on_node("curl -si http://127.0.0.1:10256/healthz"),
            Example::on_node("curl -si http://127.0.0.1:10256/livez"),
            Example::on_node("ps -C kube-proxy -o pid,stat,etime,args"),
        ],
        fix: Text::plain(
            "Find the cause of failing syncs in kube-proxy's log, then restart it on this node.",
        ),
        incidents: &[
            "kubernetes/kubernetes#76338",
            "kubernetes/kubernetes#77242",
            "kubernetes/node-problem-detector#1306: false alerts at each scale-down",
            "kubernetes/kubernetes#134648",
        ],
        needs: &[
            &[
                Item::Healthz,
                Item::Metrics,
                Item::Processes,
                Item::Links,
                Item::Pods,
                Item::DaemonSets,
                Item::Nodes,
                Item::Addresses,
                Item::ProxyConfig,
                Item::ConfigMaps,
                Item::EndpointSlices,
                Item::Sockets,
                Item::ProxyLog,
            ],
            OBSERVED,
            REPLACEMENT,
        ],
        caused_by: &[
            Because::Absence("KP21"),
            Because::OutdatedBy("KP21"),
            Because::Waits("KP11"),
            Because::Absence("KP02"),
            Because::Exit("KM01"),
            Because::Exit("KM08"),
            Because::Exit("KM12"),
            Because::Exit("KP22"),
            Because::Same("MX07"),
            Because::Family("MX07"),
            Because::Bug("KB01", "conntrack-memory"),
        ],
        run: healthy,
    },
    Check {
        id: "KP06",
        name: "sync-stuck",
        severity: Severity::Error,
        when: When::NowAndFor(&Mode::ALL),
        title: "kube-proxy has synced since the last change",
        symptom: "Changes of Services and endpoints do not reach this node.",
        why: "kube-proxy records when a change queues a sync and when a sync ends. A sync that was queued more than \
              twice the sync period ago and has not ended is stuck, or fails repeatedly.",
        verify: "The last sync must be younger than the last queued one, or the queued one recent.",
        commands: &[Example::on_node(
            "curl -s http://127.0.0.1:10249/metrics | grep -E 'sync_proxy_rules_last(_queued)?_timestamp'",
        )],
        fix: Text::plain(
            "Find the cause of failing syncs in kube-proxy's log, then restart it on this node.",
        ),
        incidents: &["kubernetes/kubernetes#76338"],
        needs: &[
            MODE,
            &[
                Item::Metrics,
                Item::Healthz,
                Item::Processes,
                Item::Pods,
                Item::DaemonSets,
                Item::Nodes,
                Item::Addresses,
                Item::ProxyConfig,
            ],
        ],
        caused_by: &[
            Because::OutdatedBy("KP21"),
            Because::Same("KP05"),
            Because::Family("KP05"),
            Because::Bug("KB01", "conntrack-memory"),
        ],
        run: stuck,
    },
    Check {
        id: "KP07",
        name: "sync-failures",
        severity: Severity::Warning,
        when: When::Now,
        title: "None of kube-proxy's syncs failed",
        symptom: "Changes reach this node late, or not at all.",
        why: "The tools iptables-restore and nft may refuse kube-proxy's input: because of a lock that is held for \
              too long, a chain that other software uses, a missing set, or a tool that is too old. kube-proxy tries \
              again and counts the failures.",
        verify: "The counters must be 0, or at least not grow.",
        commands: &[
            Example::on_node(
                "curl -s http://127.0.0.1:10249/metrics | grep -E '_(restore|sync)_failures_total'",
            ),
            Example::anywhere("kubectl -n kube-system logs POD | grep -iE 'failed|error'")
                .with(&["POD"]),
        ],
        fix: Text::plain(
            "Find the rejected line in kube-proxy's log, and check whether the counter still grows.",
        ),
        incidents: &[
            "kubernetes/kubernetes#68447",
            "kubernetes/kubernetes#82587",
            "kubernetes/kubernetes#136786",
        ],
        needs: &[&[Item::Metrics]],
        caused_by: &[Because::OutdatedBy("KP21")],
        run: failures,
    },
    Check {
        id: "KP08",
        name: "sync-time",
        severity: Severity::Warning,
        when: When::Now,
        title: "kube-proxy's syncs are fast enough",
        symptom: "Changes of Services and endpoints reach this node tens of seconds late; pods that no longer exist \
              still get traffic.",
        why: "The duration of a full sync grows with the number of Services and endpoints, in iptables and in ipvs \
              mode. Other software that holds the iptables lock makes it longer.",
        verify: "At least 99 of 100 syncs should take less than ten seconds.",
        commands: &[Example::on_node(
            "curl -s http://127.0.0.1:10249/metrics | grep sync_proxy_rules_duration_seconds",
        )],
        fix: Text::plain("Plan the switch to the nftables mode, or find what keeps the node busy."),
        incidents: &[
            "kubernetes/kubernetes#139513",
            "kubernetes/kubernetes#73382",
        ],
        needs: &[&[Item::Metrics]],
        caused_by: &[],
        run: slow,
    },
];

fn process(severity: Severity, state: ProcessState, message: impl Into<String>) -> Finding {
    Finding::new(severity, Subject::ProxyProcess { state }, message).called("kube-proxy")
}

/// Words of an error that blames a requirement of a mode.
const BLAMES: &[(Mode, &[&str])] = &[
    (Mode::Iptables, &["iptables", "ip6tables"]),
    (
        Mode::Ipvs,
        &["ipvs", "ip_vs", "ipset", "iptables", "ip6tables"],
    ),
    (Mode::Nftables, &["nftables", "nft", "kernel version"]),
];

/// Parts of errors with which kube-proxy exits because it cannot use a mode.
const UNUSABLE: &[&str] = &[
    "not available",
    "not supported",
    "can't use",
    "cannot use",
    "unable to create proxier",
    "could not find nftables binary",
    "must be 5.13 or later",
];

/// Returns the mode that a switch leaves and the error with which kube-proxy exits, if the error blames this mode and not a
/// requirement of the new one.
fn left_behind(facts: &Facts<'_>) -> Option<(Mode, String)> {
    let (to, from) = (facts.target()?, facts.current().ok()?);
    let log = facts.node.proxy_log().ok()?;
    let mut troubles = log.troubles.iter().flatten();
    let exit = troubles.find(|trouble| trouble.kind == Kind::Exit)?;
    blames(&exit.error, from, to).then(|| (from, exit.error.clone()))
}

/// Returns whether `error` blames mode `from`, and nothing that mode `to` needs.
fn blames(error: &str, from: Mode, to: Mode) -> bool {
    let error = error.to_lowercase();
    let names = |mode: Mode| {
        let words = BLAMES.iter().find(|(of, _)| *of == mode);
        words.is_some_and(|(_, words)| words.iter().any(|word| error.contains(word)))
    };
    from != to && UNUSABLE.iter().any(|part| error.contains(part)) && names(from) && !names(to)
}

fn restarts(facts: &Facts<'_>) -> Verdict {
    /// A smaller number of restarts may come from reboots or an upgrade.
    const MANY: u32 = 5;
    let here = facts.called()?;
    let pods = facts.node.pods()?.iter();
    let pods = pods.filter(|pod| pod.belongs_to(&here));
    let (mut known, mut runs, mut ended) = (false, false, None);
    let mut findings = Vec::new();
    for pod in pods {
        let mut containers = pod.spec.containers.iter();
        let is_proxys = containers.any(|container| container.name == "kube-proxy");
        runs |= is_proxys;
        if is_proxys
            && matches!(pod.status.phase.as_str(), "Pending" | "Failed")
            && pod.status.container_statuses.is_empty()
        {
            ended = Some(pod);
        }
        for status in pod
            .status
            .container_statuses
            .iter()
            .filter(|container_status| container_status.name == "kube-proxy")
        {
            known = true;
            let last = status.last_state.terminated.as_ref();
            let mut seen = vec![Proof::setting(
                format!("pod {}", pod.metadata.name),
                "restartCount",
                status.restart_count,
            )];
            seen.extend(last.map(|exit| {
                let reason = exit.reason.as_deref().unwrap_or("ended");
                Proof::Note(format!("last exit: {reason}, status {}", exit.exit_code))
            }));
            let waiting = status.state.waiting.as_ref();
            // The message of a crash loop repeats the name of the pod.
            let said = waiting.filter(|waiting| waiting.reason.as_deref() != Some(CRASH_LOOP));
            let said = said.and_then(|waiting| waiting.message.clone());
            seen.extend(said.filter(|message| !message.is_empty()).map(Proof::Note));
            let mut finding = match unstarted(facts, pod, status) {
                Some(finding) => finding,
                None if status.restart_count >= MANY
                    && last.is_some_and(|exit| exit.exit_code != 0) =>
                {
                    let message = "kube-proxy's container failed and was restarted repeatedly";
                    process(Severity::Warning, ProcessState::Restarts, message)
                        .fix(exit_fix(facts, pod, status))
                }
                None => continue,
            };
            if finding.severity == Severity::Error
                && let Some((mode, error)) = left_behind(facts)
            {
                finding.severity = Severity::Info;
                let why = format!(", because it cannot use mode {mode}, which the switch leaves");
                finding.message += &why;
                finding = finding
                    .evidence([Proof::Note(error)])
                    .fix("Switch the mode: kube-proxy then starts without what it lacks.");
            }
            findings.push(finding.evidence(seen));
        }
    }
    if !known && let Some(pod) = ended {
        let why = format!("pod {} has no container: KP05 says why", pod.metadata.name);
        return Err(Gap::NotApplicable(why));
    }
    if !known && runs {
        let why = "it has no status of kube-proxy's container on this node";
        return Err(Gap::Absent(Item::Pods, why.to_owned()));
    }
    if !known {
        let why = "kube-proxy does not run in a pod on this node";
        return Err(Gap::NotApplicable(why.to_owned()));
    }
    Ok(findings)
}

/// The reason of the kubelet for a container that it starts again later.
const CRASH_LOOP: &str = "CrashLoopBackOff";

/// The reason of the kubelet for a container that exceeded its limit of memory.
const OUT_OF_MEMORY: &str = "OOMKilled";

/// Why a container does not start.
struct Unstarted {
    /// The kubelet's reasons.
    reasons: &'static [&'static str],
    severity: Severity,
    why: &'static str,
    /// The advice; the events of the pod have the details.
    fix: &'static str,
}

const UNSTARTED: &[Unstarted] = &[
    Unstarted {
        reasons: &[
            "ImagePullBackOff",
            "ErrImagePull",
            "ErrImageNeverPull",
            "InvalidImageName",
            "ImageInspectError",
            "RegistryUnavailable",
        ],
        severity: Severity::Error,
        why: "its image cannot be pulled",
        fix: "Correct the image in the DaemonSet, or let the node reach the registry with the credentials that it needs: the events \
              of the pod have the registry's answer.",
    },
    Unstarted {
        reasons: &["CreateContainerConfigError"],
        severity: Severity::Error,
        why: "its pod refers to an object that does not exist",
        fix: "Create the ConfigMap, the Secret or the key that the events of the pod name, or correct the DaemonSet.",
    },
    Unstarted {
        reasons: &[
            "CreateContainerError",
            "RunContainerError",
            "PreCreateHookError",
            "PreStartHookError",
            "PostStartHookError",
        ],
        severity: Severity::Error,
        why: "the container runtime cannot start its container",
        fix: "Correct what the events of the pod name: a mount, a command or a hook of the container, or the runtime.",
    },
    Unstarted {
        reasons: &["ContainerCreating", "PodInitializing"],
        severity: Severity::Warning,
        why: "its container is not created yet",
        fix: "Wait. If it lasts, the events of the pod name the reason: a volume, a ConfigMap or the container runtime.",
    },
];

/// Returns the finding that the container of kube-proxy in `pod` does not start.
fn unstarted(facts: &Facts<'_>, pod: &Pod, status: &ContainerStatus) -> Option<Finding> {
    let reason = status.state.waiting.as_ref()?.reason.as_deref()?;
    if reason == CRASH_LOOP {
        let why = if was_killed(status) {
            format!("it exceeds its memory limit and is killed ({OUT_OF_MEMORY}, {reason})")
        } else {
            format!("its container is in {reason}")
        };
        let message = format!("kube-proxy does not run: {why}");
        let finding = process(Severity::Error, ProcessState::Crashes, message);
        return Some(finding.fix(exit_fix(facts, pod, status)));
    }
    let of = UNSTARTED
        .iter()
        .find(|unstarted| unstarted.reasons.contains(&reason))?;
    let waiting = status.state.waiting.as_ref()?;
    let said = waiting.message.as_deref().map(last_words);
    let said = said.filter(|said| !said.is_empty());
    let said = said.map_or_else(String::new, |said| format!(": {said}"));
    let message = format!("kube-proxy does not run: {} ({reason}{said})", of.why);
    let finding = process(of.severity, ProcessState::Unstarted, message);
    let meta = &pod.metadata;
    let events = format!("kubectl -n {} describe pod {}", meta.namespace, meta.name);
    Some(finding.fix(Fix::kubectl(of.fix, events)))
}

/// Returns the end of `said`, what a container runtime says of a failure, which has the reason: `… caused: apply caps: operation not
/// permitted: unknown`.
fn last_words(said: &str) -> &str {
    let ends = ["process: ", "caused: ", "caused \"", "error: "];
    let starts = ends
        .iter()
        .filter_map(|end| Some(said.rfind(end)? + end.len()));
    let rest = starts.max().map_or(said, |start| &said[start..]);
    rest.trim_end_matches(": unknown")
        .trim_matches(['"', ' ', '\n', '\\'])
}

/// Returns whether the container ended because it exceeded its memory limit.
fn was_killed(status: &ContainerStatus) -> bool {
    let last = status.last_state.terminated.as_ref();
    last.is_some_and(|exit| exit.reason.as_deref() == Some(OUT_OF_MEMORY))
}

/// Returns the fix for a container of kube-proxy in `pod` that ends repeatedly.
fn exit_fix(facts: &Facts<'_>, pod: &Pod, status: &ContainerStatus) -> Fix {
    let meta = &pod.metadata;
    if was_killed(status) {
        let text =
            "Raise resources.limits.memory of the container kube-proxy, or remove the limit.";
        return match proxy_sets(facts).next() {
            Some(set) => Fix::new(text, edit_of(set)),
            None => Fix::said(text),
        };
    }
    Fix::kubectl(
        "Fix the error in the last lines of kube-proxy's log.",
        format!(
            "kubectl -n {} logs {} --previous",
            meta.namespace, meta.name
        ),
    )
}

fn healthy(facts: &Facts<'_>) -> Verdict {
    let health = match facts.node.health() {
        Ok(health) => health,
        Err(gap) => return silent(facts, gap),
    };
    // That of another proxy may answer like it.
    if runs_here(facts).is_ok_and(|runs| runs)
        && let Some(found) = health_port_taken(facts)
    {
        return Ok(vec![found]);
    }
    let seen = |value: String| {
        [Proof::Setting {
            source: "/healthz".to_owned(),
            key: "healthy".to_owned(),
            value,
        }]
    };
    let message = "kube-proxy reports that its rules are not up to date";
    let mut findings: Vec<_> = health
        .status
        .iter()
        .filter(|(_, family)| !family.healthy)
        .map(|(name, family)| {
            let last = family.last_updated.as_deref().unwrap_or("never");
            let about = name
                .parse::<Family>()
                .map_or_else(|_| Subject::setting(name), Subject::from);
            Finding::new(Severity::Error, about, message)
                .evidence(seen(format!("false, last written {last}")))
                .fix(revive(facts))
        })
        .collect();
    if findings.is_empty() && health.healthy == Some(false) {
        findings.push(
            Finding::new(Severity::Error, Subject::Proxy, message)
                .evidence(seen("false".to_owned()))
                .fix(revive(facts)),
        );
    }
    if health.status.is_empty() && health.healthy.is_none() {
        let older = older_health(health)?;
        findings.extend(older.map(|finding| finding.fix(revive(facts))));
    }
    if findings.is_empty() && health.node_eligible == Some(false) {
        findings.push(not_eligible(facts));
    }
    Ok(findings)
}

/// Returns the fix of a kube-proxy whose syncs do not end, for no reason that its log shows.
fn revive(facts: &Facts<'_>) -> Fix {
    restart_fix(
        facts.node,
        "Read the end of kube-proxy's log, which may show what its sync waits for, then restart kube-proxy on this node: it \
         writes all its rules again.",
    )
}

/// Returns the finding for an unhealthy kube-proxy before 1.33, which reports two times: they are equal if it is healthy,
/// else at least two sync periods apart.
fn older_health(health: &Health) -> Result<Option<Finding>, Gap> {
    /// Two periods of the default, in seconds.
    const TIMEOUT: u64 = 60;
    let unknown = || {
        let why = "it does not say whether kube-proxy is healthy";
        Gap::Absent(Item::Healthz, why.to_owned())
    };
    let times = health.last_updated.as_deref();
    let (last, now) = times
        .zip(health.current_time.as_deref())
        .ok_or_else(unknown)?;
    let time = |text: &str| text.parse::<Time>().map_err(|_| unknown());
    match time(now)?.since(time(last)?).as_secs() {
        0 | 1 => return Ok(None),
        2..TIMEOUT => return Err(unknown()),
        _ => {}
    }
    let seen = [("lastUpdated", last), ("currentTime", now)];
    let seen = seen.map(|(key, value)| Proof::setting("/healthz", key, value));
    let message = "kube-proxy reports that its rules are not up to date";
    Ok(Some(
        Finding::new(Severity::Error, Subject::Proxy, message).evidence(seen),
    ))
}

/// Returns the finding for a healthy kube-proxy whose `/healthz` answers 503.
fn not_eligible(facts: &Facts<'_>) -> Finding {
    let eligible = Proof::setting("/healthz", "nodeEligible", false);
    let node = facts.this_node();
    let leaving = node.as_ref().ok().and_then(|node| leaving(node));
    match (leaving, node) {
        (Some(why), _) => {
            let message = "/healthz answers 503 because this node is about to be removed; kube-proxy is healthy";
            Finding::new(Severity::Info, Subject::Node { name: None }, message)
                .evidence([eligible, why])
                .fix("Nothing to fix. Point probes and alerts for kube-proxy itself at /livez.")
        }
        (None, Ok(_)) => {
            let message = "/healthz answers 503: kube-proxy does not see its Node object, so load balancers avoid the node";
            Finding::new(Severity::Warning, Subject::Node { name: None }, message)
                .evidence([eligible, Proof::Note("the Node is not about to be removed".to_owned())])
                .fix("Compare the name in kube-proxy's log with `kubectl get nodes`, then restart kube-proxy.")
        }
        (None, Err(gap)) => {
            let message = "/healthz answers 503 to load balancers: the node is about to be removed, or unknown to kube-proxy";
            Finding::new(Severity::Warning, Subject::Node { name: None }, message)
                .evidence([eligible, Proof::Note(format!("the Node object is unknown: {gap}"))])
                .fix("Run `kubectl describe node NAME`: the taint ToBeDeletedByClusterAutoscaler or a deletion explains it.")
        }
    }
}

/// Returns the time of collection.
fn now(facts: &Facts<'_>) -> Option<Time> {
    let clock = || {
        let health = facts.node.health().ok()?;
        health.current_time.as_deref()?.parse::<Time>().ok()
    };
    facts.now.or_else(clock)
}

/// Returns when kube-proxy queued a sync of `family` that has not ended yet and is not stuck.
pub(in crate::check) fn queued_sync(facts: &Facts<'_>, family: Option<Family>) -> Option<Time> {
    let is_of = |other: Option<Family>| other.is_none() || family.is_none() || other == family;
    let metrics = facts.node.metrics().ok()?;
    let (of, at) = metrics.last_queued().find(|(of, _)| is_of(*of))?;
    let (_, last) = metrics.last_sync().find(|(other, _)| *other == of)?;
    let asked = Time::from_epoch(at).filter(|_| at > last)?;
    let period = facts.configuration().ok()?.sync_period(facts.mode().ok()?);
    let age = now(facts)?.since(asked);
    (age <= 2 * period).then_some(asked)
}

/// Returns the finding on a kube-proxy that has not finished its first sync, and may ask the API server seldom.
fn kept_waiting(facts: &Facts<'_>, metrics: &Metrics<'_>) -> Option<Finding> {
    let connection = &facts.node.proxy_config().ok()?.client_connection;
    let seconds = connection.seconds_between()?;
    let (family, _) = metrics.last_queued().find(|(of, _)| {
        let mut synced = metrics.last_sync();
        synced.all(|(other, at)| other != *of || at <= 0.0)
    })?;
    let message = format!(
        "kube-proxy has not finished its first sync: its configuration allows one request to the API server in {seconds:.0} s"
    );
    let finding = Finding::new(Severity::Error, family_or_proxy(family), message);
    let proof = |key: &str, value: String| Proof::Setting {
        source: "kube-proxy's configuration".to_owned(),
        key: format!("clientConnection.{key}"),
        value,
    };
    let proofs = [
        proof("qps", connection.qps.to_string()),
        proof("burst", connection.burst.to_string()),
    ];
    Some(finding.evidence(proofs).fix(Fix::kubectl(
        "Remove qps and burst from clientConnection in kube-proxy's configuration, and restart kube-proxy.",
        "kubectl -n kube-system edit configmap kube-proxy",
    )))
}

fn stuck(facts: &Facts<'_>) -> Verdict {
    let metrics = facts.node.metrics()?;
    if let Some(finding) = kept_waiting(facts, metrics) {
        return Ok(vec![finding]);
    }
    let period = || Ok(facts.configuration()?.sync_period(facts.mode()?).as_secs());
    let mut findings = Collector::default();
    for (family, queued) in queued(metrics)? {
        findings.add(Ok(Vec::new()));
        let last = metrics.last_sync().find(|(of, _)| *of == family);
        let last = last.map_or(0.0, |(_, at)| at);
        if queued <= last || queued <= 0.0 {
            continue;
        }
        let now = now(facts).ok_or_else(|| {
            let why = "the time of collection is unknown";
            Gap::Absent(Item::Healthz, why.to_owned())
        })?;
        let Some(asked) = Time::from_epoch(queued) else {
            continue;
        };
        let age = now.since(asked).as_secs();
        let Some(period) = findings.read(period()) else {
            continue;
        };
        if age > 2 * period {
            let message = "a sync was queued long ago and has not ended";
            let value = Time::from_epoch(last).filter(|_| last > 0.0);
            let value = value.map_or_else(|| "never".to_owned(), |time| time.to_string());
            findings.push(
                Finding::new(Severity::Error, family_or_proxy(family), message)
                    .evidence([
                        Proof::Setting {
                            source: "kube-proxy's metrics".to_owned(),
                            key: "queued".to_owned(),
                            value: format!("{asked}, {age} s ago"),
                        },
                        Proof::Setting {
                            source: "kube-proxy's metrics".to_owned(),
                            key: "last sync".to_owned(),
                            value,
                        },
                    ])
                    .fix(revive(facts)),
            );
        }
    }
    findings.verdict()
}

fn failures(facts: &Facts<'_>) -> Verdict {
    const COUNTERS: [(&str, &str); 3] = [
        (
            "kubeproxy_sync_proxy_rules_iptables_restore_failures_total",
            "iptables-restore rejected kube-proxy's rules",
        ),
        (
            "kubeproxy_sync_proxy_rules_iptables_partial_restore_failures_total",
            "a partial sync failed, so kube-proxy did a full one",
        ),
        (
            "kubeproxy_sync_proxy_rules_nftables_sync_failures_total",
            "nft rejected kube-proxy's rules",
        ),
    ];
    // The counters of a release with one for each family appear with the first failure.
    let metrics = proxy_metrics(facts)?;
    let mut findings = Vec::new();
    for (name, message) in COUNTERS {
        for (family, count) in metrics.by_family(name).filter(|(_, count)| *count > 0.0) {
            findings.push(
                Finding::new(Severity::Warning, family_or_proxy(family), message).evidence([
                    Proof::Setting {
                        source: "kube-proxy's metrics".to_owned(),
                        key: name.to_owned(),
                        value: format!("{count} since kube-proxy started"),
                    },
                ]),
            );
        }
    }
    Ok(findings)
}

fn slow(facts: &Facts<'_>) -> Verdict {
    let all = syncs_slower_than(facts, 10.0)?.into_iter();
    let message = "more than 1 % of kube-proxy's syncs take longer than ten seconds";
    Ok(all
        .filter(|(_, slow)| slow.share > 0.01)
        .map(|(family, slow)| {
            Finding::new(Severity::Warning, family_or_proxy(family), message).evidence([slow.proof])
        })
        .collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reason_is_at_the_end_of_what_a_container_runtime_says() {
        for (said, reason) in [
            (
                "container create failed: time=\"2026-11-20T12:43:40Z\" level=error msg=\"container_linux.go:380: starting container process \
                 caused: apply caps: operation not permitted\"",
                "apply caps: operation not permitted",
            ),
            (
                "OCI runtime create failed: unable to start container process: error during container init: no such device: unknown",
                "error during container init: no such device",
            ),
            ("no command specified", "no command specified"),
        ] {
            assert_eq!(last_words(said), reason, "{said}");
        }
    }

    #[test]
    fn an_exit_is_left_behind_only_if_it_blames_what_the_new_mode_does_without() {
        use Mode::{Iptables, Ipvs, Nftables};
        let no_iptables = "iptables is not available on this host";
        let no_ipvs = "can't use the IPVS proxier: ipset v7.5: Kernel error received";
        let no_nft = "unable to create proxier: could not find nftables binary: exec: \"nft\"";
        let conntrack = "open /proc/sys/net/netfilter/nf_conntrack_max: permission denied";
        let field = "iptables.syncPeriod: Invalid value: must be greater than 0";
        for (error, from, to, expected) in [
            (no_iptables, Iptables, Nftables, true),
            (no_iptables, Iptables, Ipvs, false),
            (no_iptables, Iptables, Iptables, false),
            (no_iptables, Ipvs, Nftables, true),
            (no_ipvs, Ipvs, Iptables, true),
            (no_ipvs, Ipvs, Nftables, true),
            (no_nft, Nftables, Iptables, true),
            (conntrack, Iptables, Nftables, false),
            (field, Iptables, Nftables, false),
        ] {
            assert_eq!(blames(error, from, to), expected, "{error} {from} {to}");
        }
    }
}
