//! The answers of kube-proxy on its two ports.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::future::ready;
use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, SystemTime};

use kpx_node::backend::Mode;
use kpx_node::evidence::Time;
use kpx_node::net::Family;
use serde_json::{Value, json};

use crate::fake_api::{Server, reply};

/// The state that the answers show.
#[derive(Debug)]
pub(super) struct Status {
    pub(super) mode: Mode,
    /// `/configz`.
    pub(super) config: Value,
    pub(super) started: SystemTime,
    /// When a sync was last asked for.
    pub(super) queued: BTreeMap<Family, SystemTime>,
    /// When one was last done.
    pub(super) synced: BTreeMap<Family, SystemTime>,
}

/// Serves at kube-proxy's own two addresses until the process ends.
pub(super) fn start(status: &Arc<Mutex<Status>>, metrics: SocketAddr, healthz: SocketAddr) {
    for address in [metrics, healthz] {
        let listener = loop {
            match TcpListener::bind(address) {
                Ok(listener) => break listener,
                // The one before is about to go.
                Err(_) => thread::sleep(Duration::from_millis(50)),
            }
        };
        let status = Arc::clone(status);
        let server = Server::start(listener, move |request| {
            let status = status.lock().unwrap();
            let (code, body) = status.answer(&request.path, address == healthz);
            Box::pin(ready(reply(code, body)))
        });
        std::mem::forget(server);
    }
}

impl Status {
    fn answer(&self, path: &str, health: bool) -> (u16, Value) {
        match (path, health) {
            ("/healthz" | "/livez", true) => (200, self.health(path == "/healthz")),
            ("/healthz", false) => (200, "ok".into()),
            ("/proxyMode", false) => (200, self.mode.name().into()),
            ("/metrics", false) => (200, self.metrics().into()),
            ("/configz", false) => (200, json!({"kubeproxy.config.k8s.io": self.config})),
            _ => (404, "404 page not found\n".into()),
        }
    }

    fn health(&self, eligible: bool) -> Value {
        let now = stamp(now());
        let families = self.synced.iter().map(|(family, at)| {
            let status = json!({"lastUpdated": stamp(*at), "healthy": true});
            (family.to_string(), status)
        });
        let families: serde_json::Map<_, _> = families.collect();
        let mut health = json!({"lastUpdated": now, "currentTime": now});
        if eligible {
            health["nodeEligible"] = json!(true);
        }
        health["healthy"] = json!(true);
        health["status"] = families.into();
        health
    }

    /// The recorded metrics of this mode, with the figures of this process. What was never done has none.
    fn metrics(&self) -> String {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata/nodes");
        let file = format!("dual-{}/kube-proxy/metrics.txt", self.mode.name());
        let recorded = std::fs::read_to_string(folder.join(file)).unwrap();
        let mut text = String::new();
        for line in recorded.lines() {
            let at = |times: &BTreeMap<Family, SystemTime>| {
                let family = times.iter().find(|(f, _)| line.contains(&f.to_string()));
                family.map(|(_, at)| *at)
            };
            let value = if line.starts_with("process_start_time_seconds ") {
                Some(self.started)
            } else if line.starts_with("kubeproxy_sync_proxy_rules_last_timestamp_seconds{") {
                at(&self.synced)
            } else if line.starts_with("kubeproxy_sync_proxy_rules_last_queued_timestamp_seconds{")
            {
                at(&self.queued)
            } else {
                text.push_str(line);
                text.push('\n');
                continue;
            };
            if let Some(value) = value {
                let (name, _) = line.rsplit_once(' ').unwrap();
                let seconds = since_epoch(value).as_secs_f64();
                writeln!(text, "{name} {seconds:e}").unwrap();
            }
        }
        text
    }
}

#[expect(clippy::disallowed_methods, reason = "kube-proxy tells the time")]
pub(super) fn now() -> SystemTime {
    SystemTime::now()
}

fn since_epoch(time: SystemTime) -> Duration {
    time.duration_since(SystemTime::UNIX_EPOCH).unwrap()
}

/// RFC 3339 with nanoseconds.
pub(super) fn stamp(time: SystemTime) -> String {
    let since = since_epoch(time);
    let seconds = Time {
        seconds: since.as_secs().cast_signed(),
    }
    .to_string();
    format!(
        "{}.{:09}Z",
        seconds.trim_end_matches('Z'),
        since.subsec_nanos()
    )
}
