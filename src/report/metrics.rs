//! The metrics of `kpx serve` and `kpx doctor -o prom`: the one table of them, from which kpx-metrics(7) is written.

use crate::render::prometheus::Metric;

/// Findings by check.
pub(crate) const FINDINGS: Metric = Metric::gauge(
    "kpx_doctor_findings",
    &["id", "name", "severity"],
    "Findings of a check; 0 when it passes.",
);
/// Checks without data.
pub(crate) const CHECK_UNKNOWN: Metric = Metric::gauge(
    "kpx_doctor_check_unknown",
    &["id", "name"],
    "1 for a check whose data is missing.",
);
/// Hidden findings.
pub(crate) const IGNORED: Metric = Metric::gauge(
    "kpx_doctor_ignored_findings",
    &[],
    "Findings that the ignore file hides.",
);
/// Checks by status.
pub(crate) const CHECKS: Metric =
    Metric::gauge("kpx_doctor_checks", &["status"], "Checks by status.");
/// Services by the verdict on their connections.
pub(crate) const SERVICES: Metric = Metric::gauge(
    "kpx_services",
    &["verdict"],
    "Services by the verdict on connections to them from this node: works, failing, without-endpoints, restricted (by their own settings), unknown.",
);
/// Time of the evidence.
pub(crate) const TAKEN: Metric = Metric::gauge(
    "kpx_doctor_timestamp_seconds",
    &[],
    "When the evidence was collected.",
);
/// The version.
pub(crate) const BUILD: Metric =
    Metric::gauge("kpx_build_info", &["version"], "1; the version of kpx.");
/// The answer of `/healthz`.
pub(crate) const HEALTHY: Metric = Metric::gauge(
    "kpx_healthy",
    &[],
    "1 if /healthz answers 200: no error is known, rules are in sync and readings are fresh; else 0.",
);
/// The unknown part.
pub(crate) const UNKNOWN: Metric = Metric::gauge(
    "kpx_unknown",
    &["what"],
    "1 for each part that is not known; its metrics are absent. /healthz lists the reasons.",
);
/// The three views of the mode.
pub(crate) const MODE: Metric = Metric::gauge(
    "kpx_mode",
    &["view", "family", "mode"],
    "1 for the mode by view: configured, reported by kube-proxy, observed in the kernel (by IP family; none without rules).",
);
/// Drift.
pub(crate) const DRIFT: Metric = Metric::gauge(
    "kpx_drift_objects",
    &["type"],
    "Rules and other objects that differ from the desired ones, by the type of their Service; none for those of no Service.",
);
/// The age of the last sync.
pub(crate) const SYNC_AGE: Metric = Metric::gauge(
    "kpx_sync_age_seconds",
    &["family"],
    "Time since kube-proxy's last sync; before 1.33, one for both families.",
);
/// kube-proxy's own verdict.
pub(crate) const SYNC_HEALTHY: Metric = Metric::gauge(
    "kpx_sync_healthy",
    &[],
    "1 if kube-proxy reports that its rules are up to date, else 0.",
);
/// Rules.
pub(crate) const RULES: Metric = Metric::gauge(
    "kpx_rules",
    &["backend", "family"],
    "Rules of iptables, and of kube-proxy's table in nftables.",
);
/// Virtual servers.
pub(crate) const VIRTUAL_SERVERS: Metric = Metric::gauge(
    "kpx_virtual_servers",
    &["family"],
    "Virtual servers of IPVS.",
);
/// The generation of nftables.
pub(crate) const GENERATION: Metric = Metric::gauge(
    "kpx_nftables_generation",
    &[],
    "Number of the generation of all rules of nftables and iptables-nft: it changes with them.",
);
/// Entries of the connection table.
pub(crate) const CONNTRACK: Metric = Metric::gauge(
    "kpx_conntrack_entries",
    &[],
    "Entries of the connection table.",
);
/// The limit of the connection table.
pub(crate) const CONNTRACK_LIMIT: Metric = Metric::gauge(
    "kpx_conntrack_entries_limit",
    &[],
    "Most entries of the connection table.",
);
/// Service ports.
pub(crate) const PORTS: Metric = Metric::gauge(
    "kpx_service_ports",
    &[],
    "Service ports of the cluster that the node serves.",
);
/// Open connections.
pub(crate) const OPEN: Metric = Metric::gauge(
    "kpx_service_connections_open",
    &["service", "protocol"],
    "Open connections of a service port; those of Services without a series of their own are in service=\"other\".",
);
/// New connections.
pub(crate) const NEW: Metric = Metric::counter(
    "kpx_service_connections_total",
    &["service", "protocol"],
    "New connections of a service port since kpx began.",
);
/// Packets.
pub(crate) const PACKETS: Metric = Metric::counter(
    "kpx_service_packets_total",
    &["service", "protocol"],
    "Packets of both directions, where the kernel accounts for connections.",
);
/// Bytes.
pub(crate) const BYTES: Metric = Metric::counter(
    "kpx_service_bytes_total",
    &["service", "protocol"],
    "Bytes of both directions, where the kernel accounts for connections.",
);
/// Refused packets.
pub(crate) const REFUSED: Metric = Metric::counter(
    "kpx_service_refused_packets_total",
    &["service", "protocol"],
    "First packets that rules rejected or dropped, in iptables mode.",
);
/// Noticed changes.
pub(crate) const CHANGES: Metric = Metric::counter(
    "kpx_changes_total",
    &["source"],
    "Changes that were noticed, each maybe of several objects: of the cluster (API), nftables (rules), ipvs (servers), settings or kube-proxy (process, health).",
);
/// Readings.
pub(crate) const READINGS: Metric = Metric::counter(
    "kpx_readings_total",
    &["reading", "result"],
    "Readings by result: ok or failed. counters: cheap ones; node: all checks; record: bundles.",
);
/// The time of the last reading.
pub(crate) const READ_AT: Metric = Metric::gauge(
    "kpx_reading_timestamp_seconds",
    &["reading"],
    "When the last successful reading ended.",
);
/// The duration of the last reading.
pub(crate) const READ_TIME: Metric = Metric::gauge(
    "kpx_reading_duration_seconds",
    &["reading"],
    "How long the last successful reading took.",
);
/// Processor time.
pub(crate) const PROCESSOR: Metric = Metric::counter(
    "kpx_processor_seconds_total",
    &[],
    "Processor time of kpx and the programs that it ran.",
);
/// Memory.
pub(crate) const MEMORY: Metric = Metric::gauge(
    "kpx_resident_memory_bytes",
    &[],
    "Resident memory of kpx, without the process of a reading.",
);
/// Memory of readings.
pub(crate) const READ_MEMORY: Metric = Metric::gauge(
    "kpx_reading_memory_peak_bytes",
    &[],
    "Most resident memory of any process of a reading so far.",
);
/// Bundles.
pub(crate) const BUNDLES: Metric = Metric::gauge(
    "kpx_record_bundles",
    &[],
    "Bundles in the folder of --record.",
);
/// Their size.
pub(crate) const BUNDLE_BYTES: Metric =
    Metric::gauge("kpx_record_bytes", &[], "Size of these bundles.");

/// All metrics, in the order of kpx-metrics(7).
pub(crate) const METRICS: &[Metric] = &[
    HEALTHY,
    UNKNOWN,
    FINDINGS,
    CHECK_UNKNOWN,
    IGNORED,
    CHECKS,
    SERVICES,
    TAKEN,
    MODE,
    DRIFT,
    SYNC_AGE,
    SYNC_HEALTHY,
    RULES,
    VIRTUAL_SERVERS,
    GENERATION,
    CONNTRACK,
    CONNTRACK_LIMIT,
    PORTS,
    OPEN,
    NEW,
    PACKETS,
    BYTES,
    REFUSED,
    CHANGES,
    READINGS,
    READ_AT,
    READ_TIME,
    PROCESSOR,
    MEMORY,
    READ_MEMORY,
    BUNDLES,
    BUNDLE_BYTES,
    BUILD,
];
