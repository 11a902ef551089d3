//! The state of the server, as metrics and as health.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::time::Duration;

use super::reading::Reading;
use super::record::Content;
use crate::render::prometheus::{Exposition, Metric};
use crate::report::metrics;
use kpx_judge::meter::totals::Total;
use kpx_node::evidence::Time;

/// The name for the sum of all but the busiest service ports.
const OTHER: &str = "other";

/// The kinds of readings.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub(super) enum Kind {
    /// Counters, which are cheap.
    Counters,
    /// The whole node.
    Node,
    /// A bundle.
    Record,
}

impl Kind {
    const fn name(self) -> &'static str {
        match self {
            Self::Counters => "counters",
            Self::Node => "node",
            Self::Record => "record",
        }
    }
}

/// The readings of a kind.
#[derive(Clone, Debug, Default)]
pub(super) struct Done {
    ok: u32,
    failed: u32,
    /// When the last one that succeeded ended, and how long it took.
    last: Option<(Time, Duration)>,
    /// Why the last one failed, if it did.
    error: Option<String>,
}

/// The state of kube-proxy's syncs.
#[derive(Clone, Debug, Default)]
pub(super) struct Syncs {
    /// The last one by family.
    pub(super) last: Vec<(String, Time)>,
    /// Whether kube-proxy says that its rules are up to date.
    pub(super) is_healthy: Option<bool>,
    /// Why that is unknown, unless this node has no kube-proxy.
    pub(super) unknown: Option<String>,
}

/// A row of a service port: its name, its protocol and the counts.
pub(super) type Row = (String, String, Total);

/// The state of the server.
#[derive(Clone, Debug, Default)]
pub(super) struct State {
    /// The last reading of the whole node.
    pub(super) reading: Option<Reading>,
    pub(super) done: BTreeMap<Kind, Done>,
    /// A reading of the whole node that is older is stale.
    pub(super) stale_after: Duration,
    pub(super) syncs: Syncs,
    pub(super) generation: Option<u32>,
    /// Entries of the connection table, and the most.
    pub(super) conntrack: Option<(u64, u64)>,
    /// Service ports of the cluster.
    pub(super) ports: Option<usize>,
    /// The busiest service ports, and the others.
    pub(super) rows: Option<(Vec<Row>, Total)>,
    /// Whether packets and bytes are counted.
    pub(super) is_accounted: bool,
    /// Whether refused packets are counted.
    pub(super) is_refusal_counted: bool,
    /// Changes that were noticed, by source.
    pub(super) changes: BTreeMap<&'static str, u64>,
    pub(super) record: Option<Content>,
    /// The unknown counters, and why.
    pub(super) unknown: BTreeMap<&'static str, String>,
}

/// The resources that kpx itself uses.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Own {
    pub(super) processor: Duration,
    pub(super) memory: Option<u64>,
    pub(super) peak: Option<u64>,
}

impl State {
    /// Notes the end of a reading that took `time`, or why it failed.
    pub(super) fn end(
        &mut self,
        kind: Kind,
        now: Time,
        time: Duration,
        result: Result<(), String>,
    ) {
        let done = self.done.entry(kind).or_default();
        match result {
            Ok(()) => {
                done.ok += 1;
                done.last = Some((now, time));
                done.error = None;
            }
            Err(why) => {
                done.failed += 1;
                done.error = Some(why);
            }
        }
    }

    /// Returns why the node may not serve; empty if it does.
    pub(super) fn problems(&self, now: Time) -> Vec<String> {
        let mut all = Vec::new();
        let node = self.done.get(&Kind::Node);
        match node.and_then(|done| done.last) {
            None => all.push("the checks have not run yet".to_owned()),
            Some((at, _)) if now.since(at) > self.stale_after => all.push(format!(
                "the checks ran {} s ago, which is too long",
                now.since(at).as_secs()
            )),
            Some(_) => {}
        }
        if let Some(why) = node.and_then(|done| done.error.as_ref()) {
            all.push(format!("the last run of the checks failed: {why}"));
        }
        match (self.syncs.is_healthy, &self.syncs.unknown) {
            (Some(false), _) => all.push("kube-proxy's rules are out of date".to_owned()),
            (None, Some(why)) => all.push(format!("kube-proxy's last sync is unknown: {why}")),
            _ => {}
        }
        let errors = self.reading.iter().flat_map(|reading| &reading.errors);
        all.extend(errors.cloned());
        all
    }

    /// Returns what is not known, and why.
    pub(super) fn unknown(&self) -> BTreeMap<&str, &str> {
        let read = self.reading.iter().flat_map(|reading| &reading.unknown);
        let read = read.map(|(what, why)| (what.as_str(), why.as_str()));
        let mut all: BTreeMap<_, _> = read.collect();
        if self.reading.is_none() {
            all.insert("node", "the checks have not run yet");
        }
        all.extend(self.unknown.iter().map(|(what, why)| (*what, why.as_str())));
        if let Some(why) = &self.syncs.unknown {
            all.insert("sync", why);
        }
        for (kind, done) in &self.done {
            if let (Kind::Record, Some(why)) = (kind, &done.error) {
                all.insert("record", why);
            }
        }
        all
    }

    /// Returns the text of `/healthz`.
    pub(super) fn health(&self, now: Time) -> (bool, String) {
        let problems = self.problems(now);
        let is_healthy = problems.is_empty();
        let mut text = if is_healthy {
            "ok\n".to_owned()
        } else {
            problems.join("\n") + "\n"
        };
        for (what, why) in self.unknown() {
            writeln!(text, "unknown {what}: {why}").expect("memory");
        }
        (is_healthy, text)
    }

    /// Returns all metrics as text.
    pub(super) fn metrics(&self, now: Time, own: Own) -> String {
        let mut text = Exposition::default();
        let is_healthy = self.problems(now).is_empty();
        text.one(&metrics::HEALTHY, Some(f64::from(u8::from(is_healthy))));
        let unknown = self.unknown().into_keys().map(|what| (vec![what], 1.0));
        text.add(&metrics::UNKNOWN, unknown);
        if let Some(reading) = &self.reading {
            node(reading, &mut text);
        }
        let syncs = self.syncs.last.iter();
        let syncs = syncs.map(|(family, at)| (vec![family], now.since(*at).as_secs_f64()));
        text.add(&metrics::SYNC_AGE, syncs);
        let is_healthy = self.syncs.is_healthy.map(|is| f64::from(u8::from(is)));
        text.one(&metrics::SYNC_HEALTHY, is_healthy);
        text.one(&metrics::GENERATION, self.generation.map(f64::from));
        let conntrack = self.conntrack;
        text.one(
            &metrics::CONNTRACK,
            conntrack.map(|conntrack| number(conntrack.0)),
        );
        text.one(
            &metrics::CONNTRACK_LIMIT,
            conntrack.map(|conntrack| number(conntrack.1)),
        );
        text.one(
            &metrics::PORTS,
            self.ports.map(|count| number(count as u64)),
        );
        self.services(&mut text);
        let changes = self.changes.iter();
        let changes = changes.map(|(source, count)| (vec![*source], number(*count)));
        text.add(&metrics::CHANGES, changes);
        self.readings(&mut text);
        text.one(&metrics::PROCESSOR, Some(own.processor.as_secs_f64()));
        text.one(&metrics::MEMORY, own.memory.map(number));
        text.one(&metrics::READ_MEMORY, own.peak.map(number));
        let record = self.record;
        text.one(
            &metrics::BUNDLES,
            record.map(|record| number(record.bundles as u64)),
        );
        text.one(
            &metrics::BUNDLE_BYTES,
            record.map(|record| number(record.bytes)),
        );
        text.add(&metrics::BUILD, [(vec![env!("CARGO_PKG_VERSION")], 1.0)]);
        text.0
    }

    fn services(&self, text: &mut Exposition) {
        let Some((rows, others)) = &self.rows else {
            return;
        };
        let mut add = |metric: &Metric, is_known: bool, of: fn(&Total) -> u64| {
            let named = rows.iter();
            let named = named.map(|(name, proto, total)| (vec![name.as_str(), proto], of(total)));
            let all = named.chain([(vec![OTHER, OTHER], of(others))]);
            let all = all.filter(|_| is_known);
            text.add(metric, all.map(|(labels, count)| (labels, number(count))));
        };
        add(&metrics::OPEN, true, |total| total.open);
        add(&metrics::NEW, true, |total| total.new);
        add(&metrics::PACKETS, self.is_accounted, |total| total.packets);
        add(&metrics::BYTES, self.is_accounted, |total| total.bytes);
        add(&metrics::REFUSED, self.is_refusal_counted, |total| {
            total.refused
        });
    }

    fn readings(&self, text: &mut Exposition) {
        let done = || self.done.iter().map(|(kind, done)| (kind.name(), done));
        let counts = done().flat_map(|(name, done)| {
            [
                (vec![name, "ok"], f64::from(done.ok)),
                (vec![name, "failed"], f64::from(done.failed)),
            ]
        });
        text.add(&metrics::READINGS, counts);
        let last = || done().filter_map(|(name, done)| Some((vec![name], done.last?)));
        #[expect(clippy::cast_precision_loss, reason = "times are far below 2^52")]
        let times = last().map(|(labels, (at, _))| (labels, at.seconds as f64));
        text.add(&metrics::READ_AT, times);
        let took = last().map(|(labels, (_, time))| (labels, time.as_secs_f64()));
        text.add(&metrics::READ_TIME, took);
    }
}

#[expect(clippy::cast_precision_loss, reason = "counts are far below 2^52")]
const fn number(count: u64) -> f64 {
    count as f64
}

/// Adds the results of a reading of the whole node.
fn node(reading: &Reading, text: &mut Exposition) {
    text.0.push_str(&reading.doctor);
    let modes = reading.modes.iter();
    text.add(&metrics::MODE, modes.map(|labels| (labels.to_vec(), 1.0)));
    let drift = reading.drift.iter();
    let drift = drift.map(|(kind, count)| (vec![kind], number(*count as u64)));
    text.add(&metrics::DRIFT, drift);
    let rules = reading.rules.iter();
    let rules = rules
        .map(|(backend, family, count)| (vec![backend.as_str(), family], number(*count as u64)));
    text.add(&metrics::RULES, rules);
    let servers = reading.servers.iter();
    let servers = servers.map(|(family, count)| (vec![family], number(*count as u64)));
    text.add(&metrics::VIRTUAL_SERVERS, servers);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::metrics::METRICS;

    const NOW: Time = Time { seconds: 1_000_000 };

    /// A node of which everything is known.
    fn known() -> State {
        let mut doctor = Exposition::default();
        for metric in [
            metrics::FINDINGS,
            metrics::CHECK_UNKNOWN,
            metrics::IGNORED,
            metrics::CHECKS,
            metrics::SERVICES,
            metrics::TAKEN,
        ] {
            doctor.add(&metric, [(metric.labels.to_vec(), 0.0)]);
        }
        let reading = Reading {
            doctor: doctor.0,
            modes: vec![["configured", "both", "nftables"].map(str::to_owned)],
            rules: vec![("iptables".to_owned(), "IPv4".to_owned(), 7)],
            servers: vec![("IPv4".to_owned(), 0)],
            drift: [("ClusterIP".to_owned(), 0)].into(),
            ..Reading::default()
        };
        let mut state = State {
            reading: Some(reading),
            stale_after: Duration::from_secs(600),
            syncs: Syncs {
                last: vec![("IPv4".to_owned(), Time { seconds: 999_990 })],
                is_healthy: Some(true),
                unknown: None,
            },
            generation: Some(3),
            conntrack: Some((10, 100)),
            ports: Some(4),
            rows: Some((Vec::new(), Total::default())),
            is_accounted: true,
            is_refusal_counted: true,
            changes: [("nftables", 1)].into(),
            record: Some(Content::default()),
            ..State::default()
        };
        state.end(Kind::Node, NOW, Duration::from_secs(1), Ok(()));
        state
    }

    fn served(state: &State) -> String {
        let own = Own {
            processor: Duration::from_secs(1),
            memory: Some(1),
            peak: Some(1),
        };
        state.metrics(NOW, own)
    }

    #[test]
    fn every_metric_of_the_table_is_served_and_no_other() {
        let mut state = known();
        state.unknown.insert("cluster", "not asked".to_owned());
        let text = served(&state);
        let heads = text.lines().filter_map(|line| line.strip_prefix("# TYPE "));
        let mut heads: Vec<_> = heads.filter_map(|line| line.split(' ').next()).collect();
        heads.sort_unstable();
        let mut names: Vec<_> = METRICS.iter().map(|metric| metric.name).collect();
        names.sort_unstable();
        assert_eq!(heads, names);
    }

    #[test]
    fn names_follow_the_conventions() {
        for metric in METRICS {
            let name = metric.name;
            assert!(name.starts_with("kpx_"), "{name}");
            assert_eq!(name.ends_with("_total"), metric.kind == "counter", "{name}");
            assert!(
                metric.help.ends_with('.') && !metric.help.contains('\\'),
                "{name}"
            );
        }
    }

    #[test]
    fn what_is_not_known_is_absent_and_not_zero() {
        let text = State::default().metrics(NOW, Own::default());
        assert!(text.contains("kpx_unknown{what=\"node\"} 1\n"), "{text}");
        for absent in [
            "kpx_mode",
            "kpx_drift",
            "kpx_sync",
            "kpx_conntrack",
            "kpx_service",
        ] {
            assert!(!text.contains(absent), "{text}");
        }
        assert!(text.contains("kpx_healthy 0\n"), "{text}");
    }

    #[test]
    fn health_is_that_of_the_data_path() {
        let mut state = known();
        assert_eq!(state.health(NOW), (true, "ok\n".to_owned()));
        let later = Time {
            seconds: NOW.seconds + 601,
        };
        assert_eq!(
            state.problems(later),
            ["the checks ran 601 s ago, which is too long"]
        );
        state.syncs.is_healthy = Some(false);
        assert_eq!(state.problems(NOW), ["kube-proxy's rules are out of date"]);
        state.syncs.is_healthy = Some(true);
        let failed = Err("out of memory".to_owned());
        state.end(Kind::Node, NOW, Duration::ZERO, failed);
        assert_eq!(
            state.problems(NOW),
            ["the last run of the checks failed: out of memory"]
        );
        state.end(Kind::Node, NOW, Duration::ZERO, Ok(()));
        if let Some(reading) = &mut state.reading {
            reading.errors.push("IR01 IPv4: no jump".to_owned());
        }
        let (is_healthy, text) = state.health(NOW);
        assert!(!is_healthy && text == "IR01 IPv4: no jump\n", "{text}");
    }
}
