//! KP: what a running kube-proxy says of its syncs.

use super::facts::MODE;
use super::{Check, Facts, Finding, Proof, Severity, Verdict, When};
use crate::backend::Mode;
use crate::cluster::config::go_duration;
use crate::evidence::{Gap, Item, Time};
use crate::net::Family;
use crate::node::runtime::Metrics;

pub(super) const CHECKS: &[Check] = &[
    Check {
        id: "KP05",
        name: "healthy",
        severity: Severity::Error,
        when: When::NowAndFor(&Mode::ALL),
        title: "kube-proxy runs, answers and says that it is healthy",
        symptom: "Changes of Services and endpoints do not reach this node; its rules grow old.",
        why: "kube-proxy answers /healthz with what it knows of its own syncs, for each family since 1.33. One that is \
              not healthy has had a sync on its list for longer than twice the sync period. One that does not answer \
              at all is absent, stopped or hung.",
        verify: "The answer must be 200, with healthy true for each family.",
        commands: &[
            "curl -si http://127.0.0.1:10256/healthz",
            "ps -C kube-proxy -o pid,stat,etime,args",
        ],
        fix: "See in kube-proxy's log what its syncs fail on, then restart it on this node.",
        incidents: &["kubernetes/kubernetes#76338", "kubernetes/kubernetes#77242"],
        needs: &[&[
            Item::Healthz,
            Item::Metrics,
            Item::Processes,
            Item::Links,
            Item::Pods,
            Item::DaemonSets,
            Item::Nodes,
            Item::Addresses,
            Item::ProxyConfig,
        ]],
        caused_by: &["KM01", "KP02"],
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
];

fn healthy(facts: &Facts<'_>) -> Verdict {
    let health = match facts.node.health() {
        Ok(health) => health,
        Err(gap) => return super::silence::silent(facts, gap),
    };
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
pub(super) fn figures(family: Option<Family>) -> String {
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

/// Syncs that took long.
#[derive(Debug)]
pub(super) struct Slow {
    /// Which part of all syncs.
    pub(super) share: f64,
    /// What tells.
    pub(super) proof: Proof,
}

/// Returns, by family, the syncs that took longer than the highest bound of the histogram that is at most `seconds`.
pub(super) fn slower_than(metrics: &Metrics<'_>, seconds: f64) -> Vec<(Option<Family>, Slow)> {
    const NAME: &str = "kubeproxy_sync_proxy_rules_duration_seconds";
    // So few syncs tell of the start alone.
    const FEW: f64 = 20.0;
    let mut all = Vec::new();
    for (family, count) in metrics.by_family(&format!("{NAME}_count")) {
        if count < FEW {
            continue;
        }
        let name = format!("{NAME}_bucket");
        let bounds = metrics
            .of(&name)
            .filter(|sample| sample.family() == family)
            .filter_map(|sample| Some((sample.label("le")?.parse::<f64>().ok()?, sample.value)))
            .filter(|(bound, _)| *bound <= seconds);
        let (bound, quick) =
            bounds.fold((0.0, 0.0), |a: (f64, f64), b| if b.0 > a.0 { b } else { a });
        let slow = Slow {
            share: (count - quick) / count,
            proof: Proof::setting(
                "kube-proxy's metrics",
                NAME,
                format_args!("{} of {count} took more than {bound:.0} s", count - quick),
            ),
        };
        all.push((family, slow));
    }
    all
}

fn slow(facts: &Facts<'_>) -> Verdict {
    let all = slower_than(facts.node.metrics()?, 10.0).into_iter();
    let message = "more than one sync in a hundred takes longer than it should";
    Ok(all
        .filter(|(_, slow)| slow.share > 0.01)
        .map(|(family, slow)| {
            Finding::new(Severity::Warning, figures(family), message).seen([slow.proof])
        })
        .collect())
}
