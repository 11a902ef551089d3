//! Overflows of the neighbour tables.

use crate::check::core::{Collector, by_family, neighbours_fix, number, sysctl_proof};
use crate::check::{Check, Example, Facts, Finding, Proof, Severity, Text, Verdict, When};
use kpx_node::evidence::{Gap, Item};
use kpx_node::net::Family;
use kpx_node::node::counters::Counters;

pub(super) const CHECKS: &[Check] = &[Check {
    id: "SY15",
    name: "neighbour-table",
    severity: Severity::Warning,
    when: When::Now,
    title: "The neighbour tables have not overflowed",
    symptom: "Connections to endpoints, pods and nodes fail at random on a node with many neighbours; the kernel log \
              contains \"neighbor table overflow\".",
    why: "The kernel has one neighbour table (ARP or NDP) per IP family for the node and all its pods. If it has \
          gc_thresh3 entries and cannot remove one, it drops packets to addresses without an entry and counts them in \
          table_fulls.",
    verify: "The counter table_fulls, a hexadecimal number per CPU since boot, must not grow. The column entries must \
             be well below gc_thresh3.",
    commands: &[
        Example::on_node("cat /proc/net/stat/arp_cache /proc/net/stat/ndisc_cache"),
        Example::on_node("sysctl -a | grep 'neigh.default.gc_thresh'"),
        Example::on_node("dmesg | grep 'neighbor table overflow'"),
    ],
    fix: Text::plain(
        "If the counter grows, raise gc_thresh2 and gc_thresh3 with `sysctl -w`, and in a file of /etc/sysctl.d. \
         The counter starts at 0 at the next boot.",
    ),
    incidents: &["kubernetes/kops#4533", "e2b-dev/infra#3508"],
    needs: &[&[Item::Neighbours4, Item::Neighbours6, Item::Sysctl]],
    caused_by: &[],
    run: overflowed,
}];

fn overflowed(facts: &Facts<'_>) -> Verdict {
    let mut findings = Collector::default();
    let found = by_family(facts, &mut findings, |family| {
        let counters = facts.node.neighbours(family).map_err(|gap| match gap {
            // Only the host's network namespace has the files.
            Gap::Absent(_, why) if family == Family::V4 => Gap::NotApplicable(why),
            other => other,
        });
        overflow(facts, family, counters?)
    });
    findings.extend(found.into_iter().filter_map(|(_, found)| found));
    findings.verdict()
}

fn overflow(
    facts: &Facts<'_>,
    family: Family,
    counters: &Counters,
) -> Result<Option<Finding>, Gap> {
    let count = counters.sum("table_fulls")?;
    if count == 0 {
        return Ok(None);
    }
    let (file, settings) = match family {
        Family::V4 => ("/proc/net/stat/arp_cache", "net.ipv4.neigh.default"),
        Family::V6 => ("/proc/net/stat/ndisc_cache", "net.ipv6.neigh.default"),
    };
    let entries = counters.last("entries")?;
    let key = format!("{settings}.gc_thresh3");
    let most = number(facts, &key).ok();
    let (severity, message) = if most
        .is_some_and(|most| entries.saturating_mul(10) < most.saturating_mul(8))
    {
        (
            Severity::Info,
            "packets were dropped since boot because the neighbour table was full; it has free entries now",
        )
    } else {
        (
            Severity::Warning,
            "packets were dropped since boot because the neighbour table was full",
        )
    };
    let finding = Finding::new(severity, family, message)
        .evidence(
            [("table_fulls", count), ("entries", entries)]
                .map(|(name, value)| Proof::setting(file, name, value)),
        )
        .evidence(most.map(|most| sysctl_proof(&key, most)));
    Ok(Some(match most {
        Some(most) if severity == Severity::Warning => finding.fix(neighbours_fix(&key, most)),
        _ => finding,
    }))
}
