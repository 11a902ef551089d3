//! The conntrack table: size, timeouts and losses.

use crate::check::core::{Collector, SHORT_IDLE, TRACKING, number, of_tcp, sysctl_proof, tracking};
use crate::check::{
    Because, Check, Example, Facts, Finding, Fix, Proof, Severity, Subject, Text, Verdict, When,
};
use crate::verdict::MOST_TRACKED;
use kpx_node::evidence::{Gap, Item};
use kpx_node::node::crowd::Crowd;

pub(super) const CHECKS: &[Check] = &[
    Check {
        id: "CT01",
        name: "conntrack-table",
        severity: Severity::Error,
        when: When::Now,
        title: "The conntrack table has free entries",
        symptom: "New connections fail at random under load; the kernel log contains \"nf_conntrack: table full, \
              dropping packet\".",
        why: "Every connection to a Service uses an entry. If the table is full, the kernel drops the first packet of \
              every new connection, to a Service or not.",
        verify: "Compare the count with the maximum.",
        commands: &[
            Example::on_node(
                "sysctl net.netfilter.nf_conntrack_count net.netfilter.nf_conntrack_max",
            ),
            Example::on_node("dmesg | grep 'nf_conntrack: table full'"),
        ],
        fix: Text::plain(
            "Raise conntrack.maxPerCore in kube-proxy's configuration and restart it, and find out what opens so \
             many connections.",
        ),
        incidents: &["kubernetes/kubernetes#18604"],
        needs: &[TRACKING, &[Item::Conntrack]],
        caused_by: &[],
        run: table_full,
    },
    Check {
        id: "CT05",
        name: "lost-entries",
        severity: Severity::Warning,
        when: When::Now,
        title: "Conntrack has not dropped packets",
        symptom: "New connections, and especially UDP queries, are occasionally lost.",
        why: "Conntrack counts packets that it dropped because the table was full, and entries that it could not \
              insert because another packet of the same flow, or another flow with the same translation, came first.",
        verify: "The counters drop, early_drop and insert_failed must not grow.",
        commands: &[
            Example::on_node("conntrack -S"),
            Example::on_node("cat /proc/net/stat/nf_conntrack"),
        ],
        fix: Text::plain(
            "For drop: raise conntrack.maxPerCore. For insert_failed: make sure that masquerading uses \
             --random-fully, and that DNS clients do not send two queries from one port.",
        ),
        incidents: &["kubernetes/kubernetes#117924", "kubeflow/pipelines#13729"],
        needs: &[&[Item::ConntrackStat]],
        caused_by: &[Because::Same("CT01")],
        run: lost_entries,
    },
    Check {
        id: "CT07",
        name: "conntrack-timeouts",
        severity: Severity::Warning,
        when: When::Now,
        title: "Conntrack timeouts are the configured ones, and idle connections last",
        symptom: "Idle connections break with a reset, or the table grows larger than the configuration suggests.",
        why: "Conntrack forgets a connection that is idle for longer than the timeout: its next packet is not translated. kube-proxy sets two TCP timeouts when it starts. Values that other software sets later (sysctl.d, \
              tuned, another agent) override them.",
        verify: "Compare with conntrack.tcpEstablishedTimeout and conntrack.tcpCloseWaitTimeout.",
        commands: &[Example::on_node(
            "sysctl -a | grep nf_conntrack_tcp_timeout_",
        )],
        fix: Text::plain(
            "Decide on one value, and set it in only one place: kube-proxy's configuration or /etc/sysctl.d.",
        ),
        incidents: &["seen with tuned and kube-proxy setting it"],
        needs: &[TRACKING, &[Item::ProxyConfig]],
        caused_by: &[],
        run: timeouts,
    },
];

fn table_full(facts: &Facts<'_>) -> Verdict {
    const COUNT: &str = "net.netfilter.nf_conntrack_count";
    const MOST: &str = "net.netfilter.nf_conntrack_max";
    tracking(facts)?;
    let (count, most) = (number(facts, COUNT)?, number(facts, MOST)?);
    // 0 means unlimited.
    if most == 0 || count * 10 <= most * 8 {
        return Ok(Vec::new());
    }
    let percent = count * 100 / most;
    let (severity, message) = if percent >= 95 {
        (
            Severity::Error,
            "the conntrack table is full or nearly full: new connections are dropped",
        )
    } else {
        (Severity::Warning, "the conntrack table is filling up")
    };
    let crowd = facts.node.crowd();
    let seen = crowd.as_ref().map(|crowd| Proof::Note(crowd.to_string()));
    Ok(vec![
        Finding::new(severity, Subject::Conntrack, message)
            .called(format!("conntrack {percent} %"))
            .evidence([sysctl_proof(COUNT, count), sysctl_proof(MOST, most)])
            .evidence(seen)
            .fix(room_fix(most, crowd.as_ref())),
    ])
}

/// Returns the fix of a table that is full at `most` entries, with advice against the entries of `crowd`.
pub fn room_fix(most: u64, crowd: Option<&Crowd>) -> Fix {
    let now = format!("sysctl -w {MOST_TRACKED}={}", most.saturating_mul(2));
    let Some(crowd) = crowd else {
        let text =
            "Raise the maximum now, then raise conntrack.maxPerCore in kube-proxy's configuration.";
        return Fix::on_node(text, now);
    };
    let text = format!("Raise the maximum now. {}", crowd.advice());
    match crowd.shorter() {
        Some(shorter) => Fix::on_node(text, format!("{now} {shorter}")),
        None => Fix::on_node(text, now),
    }
}

fn timeouts(facts: &Facts<'_>) -> Verdict {
    let config = &facts.node.proxy_config()?.conntrack;
    tracking(facts)?;
    let mut findings = Collector::default();
    for (key, configured, default) in [
        (
            "net.netfilter.nf_conntrack_tcp_timeout_established",
            &config.tcp_established_timeout,
            86_400,
        ),
        (
            "net.netfilter.nf_conntrack_tcp_timeout_close_wait",
            &config.tcp_close_wait_timeout,
            3_600,
        ),
    ] {
        let want = match configured.as_deref().map(str::trim) {
            None | Some("") => default,
            Some(text) => {
                let Some(time) = kpx_node::cluster::config::go_duration(text) else {
                    let why = format!("{text:?} is not a duration");
                    findings.note(Gap::Failed(Item::ProxyConfig, why));
                    continue;
                };
                time.as_secs()
            }
        };
        let Some(have) = findings.read(number(facts, key)) else {
            continue;
        };
        let is_idle = key.ends_with("established");
        if is_idle && (1..SHORT_IDLE).contains(&have) {
            let own = if want == have {
                ""
            } else {
                " (kube-proxy is configured for another)"
            };
            let message = format!(
                "connections that are idle for {have} s break: conntrack forgets them then{own}"
            );
            findings.push(
                Finding::new(Severity::Warning, Subject::sysctl(key), message)
                    .evidence([sysctl_proof(key, have)])
                    .services(of_tcp(facts))
                    .fix(Fix::on_node(
                        "Set a longer timeout in kube-proxy's configuration (conntrack.tcpEstablishedTimeout), and remove the other one \
                         from /etc/sysctl.d. Until then:",
                        format!("sysctl -w {key}=86400"),
                    )),
            );
            continue;
        }
        // 0 keeps the kernel's value.
        if want != 0 && have != want {
            let message =
                format!("the timeout is {have} s, but kube-proxy is configured for {want} s");
            findings.push(
                Finding::new(Severity::Info, Subject::sysctl(key), message)
                    .evidence([sysctl_proof(key, have)]),
            );
        }
    }
    findings.verdict()
}

fn lost_entries(facts: &Facts<'_>) -> Verdict {
    /// Busy nodes have some of these races.
    const FEW: u64 = 1_000;
    let stat = facts.node.conntrack_stat()?;
    let mut findings = Collector::default();
    for (about, names, most, message) in [
        (
            Subject::Conntrack,
            &["drop", "early_drop"][..],
            0,
            "packets were dropped since boot because the conntrack table was full",
        ),
        (
            Subject::counter("insert_failed"),
            &["insert_failed"][..],
            FEW,
            "many packets were dropped since boot because another one created the same entry first",
        ),
    ] {
        let mut seen = Vec::new();
        for &name in names {
            let Some(count) = findings.read(stat.sum(name)) else {
                continue;
            };
            // The counter also has packets that lost a race for the same entry.
            let others = match name {
                "drop" => stat.sum("insert_failed").unwrap_or_default(),
                _ => 0,
            };
            if count.saturating_sub(others) > most {
                seen.push(Proof::setting("/proc/net/stat/nf_conntrack", name, count));
            }
        }
        if !seen.is_empty() {
            findings.push(
                Finding::new(Severity::Warning, about, message)
                    .called(names[0])
                    .evidence(seen),
            );
        }
    }
    findings.verdict()
}
