//! The loss of a migration: as expected, and as observed.

use serde::{Deserialize, Serialize};

use super::drain::Gauge;
use super::migration::{Leg, Migration, Strategy};
use super::stage;
use kpx_judge::check::first_sync_seconds;
use kpx_judge::plan;
use kpx_node::backend::Mode;
use kpx_node::desired::DesiredState;
use kpx_node::evidence::Gap;
use kpx_node::node::NodeSnapshot;
use kpx_node::node::runtime::Metrics;
use kpx_node::words::number_of;

/// The expected loss of a migration to the new mode.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(feature = "testing", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct Loss {
    /// New connections.
    pub new: New,
    /// Established connections that break.
    pub established: Established,
    /// Pods that are evicted: their connections end with them in every mode.
    pub evicted: Evicted,
    /// About how long endpoints are not updated, in seconds.
    pub unfollowed_seconds: u64,
}

/// The expected loss of new connections.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Serialize)]
#[cfg_attr(feature = "testing", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum New {
    /// None.
    Kept,
    /// Refused until kube-proxy's first sync in the new mode, in about this many seconds.
    Refused(u64),
    /// None, except connections of host processes: the rules cannot distinguish their traffic from traffic of pods.
    HostsAtRisk,
}

/// Pods that are evicted.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(feature = "testing", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case", tag = "kind", content = "detail")]
pub enum Evicted {
    /// None.
    None,
    /// This number.
    Pods(usize),
    /// An unknown number.
    Unknown(Gap),
}

/// Established connections that break.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(feature = "testing", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case", tag = "kind", content = "detail")]
pub enum Established {
    /// None.
    None,
    /// The connections that are still open after the drain.
    AfterDrain(Gauge),
    /// All connections that IPVS forwards, or that kube-proxy's process carries.
    All(Gauge),
    /// An unknown number.
    Unknown(Gap),
}

/// The loss that kpx observed.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[cfg_attr(feature = "testing", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct ObservedLoss {
    /// Connections that were still open when a drain timed out, with `--accept-loss`.
    pub connections: usize,
    /// Probes that failed, of Services that answered before.
    pub failed_probes: usize,
    /// Times that another program deleted the bridge while it served.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub bridge_gaps: usize,
    /// Whether no Service was probed: then nothing measured new connections.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub unmeasured: bool,
}

impl ObservedLoss {
    /// Returns the sum of `self` and `more`.
    #[must_use]
    pub const fn plus(self, more: Self) -> Self {
        Self {
            connections: self.connections + more.connections,
            failed_probes: self.failed_probes + more.failed_probes,
            bridge_gaps: self.bridge_gaps + more.bridge_gaps,
            unmeasured: self.unmeasured || more.unmeasured,
        }
    }

    /// Returns the loss in words.
    pub fn in_words(self) -> String {
        let parts = [
            (self.connections, "connection"),
            (self.failed_probes, "failed probe"),
        ];
        let parts = parts.into_iter().filter(|(count, _)| *count > 0);
        let mut parts: Vec<String> = parts.map(|(count, of)| number_of(count, of)).collect();
        if self.bridge_gaps > 0 {
            parts.push(format!(
                "new connections while the bridge was gone, an unknown number: another program deleted it {}",
                number_of(self.bridge_gaps, "time")
            ));
        }
        match (parts.is_empty(), self.unmeasured) {
            (true, true) => "unknown: no Service was probed".to_owned(),
            (true, false) => "none seen by probes of Services".to_owned(),
            (false, true) => format!(
                "{}; more is unknown: no Service was probed",
                parts.join(", ")
            ),
            (false, false) => parts.join(", "),
        }
    }
}

#[expect(
    clippy::trivially_copy_pass_by_ref,
    reason = "the type that serde wants"
)]
const fn is_zero(count: &usize) -> bool {
    *count == 0
}

/// Returns the expected loss of `migration` on `node`.
pub fn expect(node: &NodeSnapshot<'_>, desired: &DesiredState, migration: &Migration) -> Loss {
    let established = match migration.from {
        Mode::Iptables | Mode::Nftables => Established::None,
        Mode::Userspace => carried(node, desired, migration.strategy),
        Mode::Ipvs => match gauge(node, desired, migration.strategy) {
            Err(gap) => Established::Unknown(gap),
            Ok(gauge) if gauge.count == 0 => Established::None,
            Ok(gauge) => {
                let drains =
                    migration.strategy == Strategy::Bridge || migration.to() == Mode::Iptables;
                if drains {
                    Established::AfterDrain(gauge)
                } else {
                    Established::All(gauge)
                }
            }
        },
    };
    // With the bridge, their source is an address of the node, which stays.
    let bridged = migration.strategy == Strategy::Bridge;
    let hosts = !bridged && migration.to() == Mode::Ipvs && !stage::masquerades(desired);
    let sync = first_sync(node, desired, migration.target(Leg::There));
    let new = if migration.from == Mode::Userspace && !bridged {
        New::Refused(seconds(START + sync))
    } else if hosts {
        New::HostsAtRisk
    } else {
        New::Kept
    };
    let unfollowed = match migration.strategy {
        Strategy::Bridge => 0.0,
        Strategy::InPlace | Strategy::DrainNode => START + sync,
    };
    let evicted = match (migration.strategy, plan::evicted_count(node)) {
        (Strategy::InPlace | Strategy::Bridge, _) => Evicted::None,
        (Strategy::DrainNode, Ok(count)) => Evicted::Pods(count),
        (Strategy::DrainNode, Err(gap)) => Evicted::Unknown(gap),
    };
    Loss {
        new,
        established,
        evicted,
        unfollowed_seconds: seconds(unfollowed),
    }
}

/// Returns the connections that end with kube-proxy's process, after the evictions of `strategy`.
fn carried(node: &NodeSnapshot<'_>, desired: &DesiredState, strategy: Strategy) -> Established {
    let gone = match strategy {
        Strategy::InPlace | Strategy::Bridge => Ok(Vec::new()),
        Strategy::DrainNode => plan::evicted_addresses(node),
    };
    match gone.and_then(|gone| Gauge::carried(node, desired, &gone)) {
        Err(gap) => Established::Unknown(gap),
        Ok(gauge) if gauge.count == 0 => Established::None,
        Ok(gauge) => Established::All(gauge),
    }
}

/// Counts the connections through virtual servers that are still open after the evictions of `strategy`.
fn gauge(
    node: &NodeSnapshot<'_>,
    desired: &DesiredState,
    strategy: Strategy,
) -> Result<Gauge, Gap> {
    let gone = match strategy {
        Strategy::InPlace | Strategy::Bridge => Vec::new(),
        Strategy::DrainNode => plan::evicted_addresses(node)?,
    };
    Gauge::read_without(node, Some(desired), &gone)
}

/// The expected loss of a plain restart of kube-proxy in the new mode.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(feature = "testing", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct Plain {
    /// For about how long new connections to Services fail, in seconds.
    pub unserved_seconds: u64,
    /// Established connections that break.
    pub established: Established,
}

/// Returns the expected loss of an unprepared restart of `node`'s kube-proxy in another mode.
///
/// A kube-proxy that starts in mode nftables first deletes the rules of the other modes, and one that starts in another
/// mode deletes the table of mode nftables; modes iptables and ipvs do not delete each other's rules
/// (`platformCleanup`, cmd/kube-proxy/app/server_linux.go). The rules of mode userspace lead to the process that ends.
pub fn plain(node: &NodeSnapshot<'_>, desired: &DesiredState, from: Mode, to: Mode) -> Plain {
    let deletes = from == Mode::Nftables || to == Mode::Nftables;
    let unserved = if deletes || from == Mode::Userspace {
        START + first_sync(node, desired, to)
    } else {
        0.0
    };
    let established = match (from, to) {
        (Mode::Ipvs, Mode::Nftables) => match Gauge::read(node, Some(desired)) {
            Err(gap) => Established::Unknown(gap),
            Ok(gauge) if gauge.count == 0 => Established::None,
            Ok(gauge) => Established::All(gauge),
        },
        (Mode::Userspace, _) => carried(node, desired, Strategy::InPlace),
        _ => Established::None,
    };
    Plain {
        unserved_seconds: seconds(unserved),
        established,
    }
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "an estimate of seconds is neither negative nor large"
)]
fn seconds(estimate: f64) -> u64 {
    estimate.ceil() as u64
}

/// The time from the end of the old kube-proxy to the first sync of the new one, in seconds: its start, and the lists of
/// Services and endpoints.
const START: f64 = 3.0;

/// Returns about how many seconds the first sync of mode `to` takes on `node`.
fn first_sync(node: &NodeSnapshot<'_>, desired: &DesiredState, to: Mode) -> f64 {
    let ports = desired.families.iter().flat_map(|state| &state.ports);
    let count: usize = ports.map(|port| port.endpoints.len()).sum();
    let count = u32::try_from(count).unwrap_or(u32::MAX);
    // On a slow machine, the last full sync took longer.
    let now = node.metrics().ok().and_then(Metrics::full_sync);
    first_sync_seconds(count, to).max(now.unwrap_or(0.0))
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::drain::Holder;
    use kpx_node::evidence::{self, Evidence, ITEMS, Item};

    fn recording(name: &str) -> Evidence {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/nodes");
        evidence::load(&root.join(name), ITEMS).unwrap()
    }

    fn near(reckoned: f64, measured: f64) -> bool {
        (reckoned / measured - 1.0).abs() < 0.05
    }

    #[test]
    fn the_estimate_fits_the_measurements() {
        assert!(near(first_sync_seconds(20_000, Mode::Iptables), 32.0));
        assert!(near(first_sync_seconds(20_000, Mode::Nftables), 2.0));
        assert!(near(first_sync_seconds(250_011, Mode::Nftables), 795.0));
    }

    #[test]
    fn it_is_not_far_from_first_syncs_that_were_recorded() {
        for (name, mode) in [
            ("scale-2000x10-iptables", Mode::Iptables),
            ("scale-2000x10-nftables", Mode::Nftables),
        ] {
            let evidence = recording(name);
            let node = NodeSnapshot::new(&evidence);
            let measured = node.metrics().unwrap().full_sync().unwrap();
            let ratio = first_sync_seconds(20_000, mode) / measured;
            // Too long is better than too short: operators choose the time of day by the estimate.
            assert!((0.9..5.0).contains(&ratio), "{name}: {measured} {ratio}");
        }
    }

    #[test]
    fn more_endpoints_never_take_less_time() {
        for mode in Mode::ALL {
            let counts = (0..60).map(|power| 1.3_f64.powi(power));
            #[expect(
                clippy::cast_possible_truncation,
                clippy::cast_sign_loss,
                reason = "positive, and below seven million"
            )]
            let times = counts.map(|count| first_sync_seconds(count as u32, mode));
            let times: Vec<f64> = times.collect();
            assert!(times.is_sorted(), "{mode}: {times:?}");
            assert!(times[59] > 60.0 * times[30], "{mode}: {times:?}");
        }
    }

    #[test]
    fn a_slow_machine_takes_longer() {
        let mut evidence = recording("full-iptables");
        let unfollowed = |evidence: &Evidence, from: Mode, to: Mode| {
            let node = NodeSnapshot::new(evidence);
            let desired = node.desired(to).unwrap();
            plain(&node, desired, from, to).unserved_seconds
        };
        let metrics = |seconds: u32| {
            let name = "kubeproxy_sync_full_proxy_rules_duration_seconds";
            Ok(format!(
                "{name}_sum{{ip_family=\"IPv4\"}} {seconds}\n{name}_count{{ip_family=\"IPv4\"}} 2\n"
            ))
        };
        let mut last = 0;
        for (sum, expected) in [(1, 4), (20, 13), (600, 303)] {
            evidence.insert(Item::Metrics, metrics(sum));
            let now = unfollowed(&evidence, Mode::Iptables, Mode::Nftables);
            assert_eq!(now, expected);
            assert!(now > last);
            last = now;
        }
        // Modes iptables and ipvs do not delete each other's rules.
        assert_eq!(unfollowed(&evidence, Mode::Iptables, Mode::Ipvs), 0);
        assert_eq!(unfollowed(&evidence, Mode::Nftables, Mode::Ipvs), 303);
    }

    /// A line of `/proc/net/ip_vs_conn` of an established connection to `to`, hexadecimal, from port `port`.
    fn connection(to: &str, port: u16) -> String {
        format!("TCP 0AF40105 {port:04X} {to} 0AF40006 1F90 ESTABLISHED     800\n")
    }

    #[test]
    fn established_connections_are_counted_by_service() {
        let mut evidence = recording("full-ipvs");
        let (web, api) = {
            let node = NodeSnapshot::new(&evidence);
            let desired = node.desired(Mode::Ipvs).unwrap();
            let ports = desired.families.iter().flat_map(|family| &family.ports);
            let tcp = ports.filter(|port| port.proto == kpx_node::net::Proto::Tcp);
            let server = |spn: &str| {
                let port = tcp.clone().find(|tcp| tcp.spn.as_str() == spn).unwrap();
                let std::net::IpAddr::V4(ip) = port.cluster_ip else {
                    panic!("{spn} has no IPv4 address");
                };
                format!("{:08X} {:04X}", u32::from(ip), port.port)
            };
            (
                server("default/kubernetes:https"),
                server("kube-system/kube-dns:dns-tcp"),
            )
        };
        let mut text =
            "Pro FromIP   FPrt ToIP     TPrt DestIP   DPrt State       Expires\n".to_owned();
        text.extend((0..30).map(|port| connection(&web, 1000 + port)));
        text.extend((0..12).map(|port| connection(&api, 2000 + port)));
        evidence.insert(Item::IpvsConnections, Ok(text));
        let node = NodeSnapshot::new(&evidence);
        let desired = node.desired(Mode::Nftables).unwrap();
        let gauge = match plain(&node, desired, Mode::Ipvs, Mode::Nftables).established {
            Established::All(gauge) => gauge,
            other => panic!("{other:?}"),
        };
        let holder = |service: &str, count| Holder {
            service: service.to_owned(),
            count,
        };
        assert_eq!(gauge.count, 42);
        let most = holder("default/kubernetes:https", 30);
        assert_eq!(
            gauge.top,
            [most, holder("kube-system/kube-dns:dns-tcp", 12)]
        );
        // In mode iptables, virtual servers stay until they are removed.
        let stays = plain(&node, desired, Mode::Ipvs, Mode::Iptables).established;
        assert_eq!(stays, Established::None);
    }

    #[test]
    fn recorded_connections_are_those_of_their_services() {
        for (name, count, holders) in [
            ("faults-setup", 2100, "10.96.0.1:443 (2100)"),
            ("healthy-ipvs", 0, ""),
        ] {
            let evidence = recording(name);
            let gauge = Gauge::read(&NodeSnapshot::new(&evidence), None).unwrap();
            assert_eq!(
                (gauge.count, gauge.holders().as_str()),
                (count, holders),
                "{name}"
            );
        }
    }
}
