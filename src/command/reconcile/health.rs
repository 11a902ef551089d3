//! The health servers of kube-proxy, which `kpx reconcile --apply --watch` runs in its place: `/healthz` and `/livez`, and one server
//! for each Service with a `healthCheckNodePort`.
//!
//! Source: `proxy_health.go` and `service_health.go` in kube-proxy's `pkg/proxy/healthcheck`; the texts are those of 1.36.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use http::header::{CONTENT_TYPE, X_CONTENT_TYPE_OPTIONS};
use http::{Response, StatusCode};
use serde_json::{Value, json};

use kpx_host::{HttpServer, Options, clock, listen};
use kpx_node::cluster::Node;
use kpx_node::desired::{DesiredState, FamilyState};
use kpx_node::evidence::{Gap, Time};
use kpx_node::net::Family;

/// The taint of a node that the cluster autoscaler is about to delete.
const TO_BE_DELETED: &str = "ToBeDeletedByClusterAutoscaler";

/// The running servers.
pub(super) struct Health {
    shared: Arc<Mutex<Shared>>,
    main: Option<HttpServer>,
    services: BTreeMap<Place, HttpServer>,
}

/// The state that the servers answer from.
struct Shared {
    /// How long a change may wait for its sync.
    limit: Duration,
    /// When the oldest change that is not in the rules yet arrived.
    queued: Option<Instant>,
    /// Time of the last sync of each family.
    updated: BTreeMap<Family, Time>,
    /// Whether load balancers may use the node.
    eligible: bool,
    /// Number of local endpoints, of each family and Service.
    local: BTreeMap<Service, usize>,
}

/// A Service of one family: the namespace and the name.
type Service = (Family, String, String);

/// A Service, and where the server for it listens.
type Place = (Service, SocketAddr);

impl Health {
    pub(super) fn new() -> Self {
        Self {
            shared: Arc::new(Mutex::new(Shared {
                limit: Duration::MAX,
                queued: None,
                updated: BTreeMap::new(),
                eligible: true,
                local: BTreeMap::new(),
            })),
            main: None,
            services: BTreeMap::new(),
        }
    }

    /// Notes that a change is known that is not in the rules yet.
    pub(super) fn queued(&self) {
        locked(&self.shared).queued.get_or_insert_with(Instant::now);
    }

    /// Notes that the rules on `node` match `state`, and starts and ends servers; returns the health checks that cannot
    /// be served.
    pub(super) async fn synced(
        &mut self,
        state: &DesiredState,
        node: Option<&Node>,
        options: &Options,
    ) -> Option<String> {
        let families = || state.families.iter();
        let families = || families().filter(|family| options.families.contains(&family.family));
        {
            let mut shared = locked(&self.shared);
            shared.limit = 2 * state.config.sync_period(state.mode);
            shared.queued = None;
            shared.updated = families()
                .map(|family| (family.family, clock::now()))
                .collect();
            shared.eligible = node.is_some_and(is_eligible);
            shared.local = families().flat_map(local_endpoints).collect();
        }
        let mut failed = Vec::new();
        if self.main.is_none() {
            let shared = Arc::clone(&self.shared);
            let answer = move |path: &str| match path {
                "/healthz" => locked(&shared).health(clock::now(), true),
                "/livez" => locked(&shared).health(clock::now(), false),
                _ => respond(StatusCode::NOT_FOUND, "404 page not found\n".to_owned()),
            };
            match state.config.healthz_bind() {
                Some(address) => match start(options, address, true, answer).await {
                    Ok(server) => self.main = Some(server),
                    Err(why) => failed.push(format!("/healthz at {why}")),
                },
                None => failed.push("/healthz: healthzBindAddress is not valid".to_owned()),
            }
        }
        let wanted: BTreeSet<Place> = families()
            .flat_map(|family| places(state, family))
            .collect();
        self.services.retain(|place, _| wanted.contains(place));
        for place in wanted {
            if self.services.contains_key(&place) {
                continue;
            }
            let ((family, namespace, name), address) = place.clone();
            let (shared, service) = (Arc::clone(&self.shared), place.0.clone());
            let answer = move |_: &str| locked(&shared).service(&service);
            match start(options, address, false, answer).await {
                Ok(server) => drop(self.services.insert(place, server)),
                Err(why) => failed.push(format!(
                    "the health check node port of {namespace}/{name} ({family}) at {why}"
                )),
            }
        }
        (!failed.is_empty()).then(|| format!("not served: {}", failed.join("; ")))
    }
}

impl Shared {
    fn is_healthy(&self) -> bool {
        self.queued.is_none_or(|since| since.elapsed() < self.limit)
    }

    /// Returns the answer to `/healthz` and `/livez`; only the first is about the `node`, too.
    fn health(&self, now: Time, node: bool) -> Response<String> {
        let healthy = self.is_healthy();
        let good = healthy && (self.eligible || !node);
        let last = if good {
            Some(now)
        } else {
            self.updated.values().max().copied()
        };
        let zero = "0001-01-01T00:00:00Z".to_owned();
        let mut text = json!({
            "lastUpdated": last.map_or(zero, |time| time.to_string()),
            "currentTime": now.to_string(),
        });
        if node {
            text["nodeEligible"] = self.eligible.into();
        }
        text["healthy"] = healthy.into();
        let status = self.updated.iter().map(|(family, time)| {
            let of = json!({ "lastUpdated": time.to_string(), "healthy": healthy });
            (family.to_string(), of)
        });
        let status: serde_json::Map<String, Value> = status.collect();
        if !status.is_empty() {
            text["status"] = status.into();
        }
        respond(code(good), text.to_string())
    }

    fn service(&self, service: &Service) -> Response<String> {
        let (_, namespace, name) = service;
        let count = self.local.get(service).copied().unwrap_or(0);
        let healthy = self.is_healthy();
        let text = format!(
            "{{\n\t\"service\": {{\n\t\t\"namespace\": {namespace:?},\n\t\t\"name\": {name:?}\n\t}},\n\t\"localEndpoints\": \
             {count},\n\t\"serviceProxyHealthy\": {healthy}\n}}"
        );
        let mut response = respond(code(count > 0 && healthy), text);
        let headers = response.headers_mut();
        headers.insert("x-load-balancing-endpoint-weight", count.into());
        response
    }
}

fn locked(shared: &Mutex<Shared>) -> MutexGuard<'_, Shared> {
    // Each field is whole at any time.
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

const fn code(good: bool) -> StatusCode {
    if good {
        StatusCode::OK
    } else {
        StatusCode::SERVICE_UNAVAILABLE
    }
}

fn respond(status: StatusCode, text: String) -> Response<String> {
    let mut response = Response::new(text);
    *response.status_mut() = status;
    let headers = response.headers_mut();
    let value = |text| http::HeaderValue::from_static(text);
    headers.insert(CONTENT_TYPE, value("application/json"));
    headers.insert(X_CONTENT_TYPE_OPTIONS, value("nosniff"));
    response
}

async fn start(
    options: &Options,
    address: SocketAddr,
    dual: bool,
    answer: impl Fn(&str) -> Response<String> + Send + Sync + 'static,
) -> Result<HttpServer, String> {
    let listener = listen(options, address, dual).await;
    let listener = listener.map_err(|gap| match gap {
        Gap::Failed(_, why) => why,
        gap => gap.to_string(),
    })?;
    HttpServer::serve(listener, answer).map_err(|error| format!("{address}: {error}"))
}

fn is_eligible(node: &Node) -> bool {
    let mut taints = node.spec.taints.iter();
    node.metadata.deletion_timestamp.is_none() && !taints.any(|taint| taint.key == TO_BE_DELETED)
}

/// Returns the number of ready endpoints on this node of each Service of the family: distinct addresses, over all ports.
fn local_endpoints(family: &FamilyState) -> BTreeMap<Service, usize> {
    let mut found: BTreeMap<Service, BTreeSet<IpAddr>> = BTreeMap::new();
    for port in family
        .ports
        .iter()
        .filter(|port| port.health_check.is_some())
    {
        let key = (family.family, port.namespace.clone(), port.service.clone());
        let local = port
            .endpoints
            .iter()
            .filter(|endpoint| endpoint.local && endpoint.ready);
        found
            .entry(key)
            .or_default()
            .extend(local.map(|endpoint| endpoint.addr.ip()));
    }
    found.into_iter().map(|(key, of)| (key, of.len())).collect()
}

/// Returns where the health checks of Services of the `family` are served.
fn places(state: &DesiredState, family: &FamilyState) -> Vec<Place> {
    let wildcard = match family.family {
        Family::V4 => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
        Family::V6 => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
    };
    // As kube-proxy does if the node's addresses are not known.
    let listed = family.node_port_addresses(&state.facts, true);
    let addresses = match listed {
        Ok(listed) if !family.node_ports.all => listed,
        _ => vec![wildcard],
    };
    let mut places = Vec::new();
    for of in &family.ports {
        if let Some(port) = of.health_check {
            let service = (family.family, of.namespace.clone(), of.service.clone());
            let at = |&addr| (service.clone(), SocketAddr::new(addr, port));
            places.extend(addresses.iter().map(at));
        }
    }
    places
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shared() -> Shared {
        Shared {
            limit: Duration::from_secs(60),
            queued: None,
            updated: BTreeMap::from([(
                Family::V4,
                Time {
                    seconds: 1_000_000_000,
                },
            )]),
            eligible: true,
            local: BTreeMap::from([(web(), 2)]),
        }
    }

    fn web() -> Service {
        (Family::V4, "demo".to_owned(), "web".to_owned())
    }

    const NOW: Time = Time {
        seconds: 1_000_000_009,
    };

    #[test]
    fn a_node_is_healthy_while_no_change_waits_too_long() {
        let mut shared = shared();
        let of = shared.health(NOW, true);
        assert_eq!(of.status(), 200);
        assert_eq!(
            of.body(),
            r#"{"lastUpdated":"2001-09-09T01:46:49Z","currentTime":"2001-09-09T01:46:49Z","nodeEligible":true,"healthy":true,"status":{"IPv4":{"lastUpdated":"2001-09-09T01:46:40Z","healthy":true}}}"#
        );
        shared.queued = Instant::now().checked_sub(Duration::from_secs(59));
        assert_eq!(shared.health(NOW, false).status(), 200);
        shared.queued = Instant::now().checked_sub(Duration::from_secs(61));
        let of = shared.health(NOW, false);
        assert_eq!(of.status(), 503);
        assert_eq!(
            of.body(),
            r#"{"lastUpdated":"2001-09-09T01:46:40Z","currentTime":"2001-09-09T01:46:49Z","healthy":false,"status":{"IPv4":{"lastUpdated":"2001-09-09T01:46:40Z","healthy":false}}}"#
        );
        assert_eq!(shared.service(&web()).status(), 503);
    }

    #[test]
    fn a_node_about_to_be_deleted_gets_no_new_connections_but_lives() {
        let mut shared = shared();
        shared.eligible = false;
        assert_eq!(shared.health(NOW, true).status(), 503);
        assert_eq!(shared.health(NOW, false).status(), 200);
        let node = |text: &str| serde_json::from_str::<Node>(text).unwrap();
        assert!(is_eligible(&node(
            r#"{"spec":{"taints":[{"key":"other"}]}}"#
        )));
        let tainted = r#"{"spec":{"taints":[{"key":"ToBeDeletedByClusterAutoscaler"}]}}"#;
        assert!(!is_eligible(&node(tainted)));
        let ending = r#"{"metadata":{"deletionTimestamp":"2001-09-09T01:46:40Z"}}"#;
        assert!(!is_eligible(&node(ending)));
    }

    #[test]
    fn a_service_without_local_endpoints_fails_its_check() {
        let mut shared = shared();
        let of = shared.service(&web());
        assert_eq!(of.status(), 200);
        assert_eq!(of.headers()["x-load-balancing-endpoint-weight"], "2");
        assert_eq!(
            of.body(),
            "{\n\t\"service\": {\n\t\t\"namespace\": \"demo\",\n\t\t\"name\": \"web\"\n\t},\n\t\"localEndpoints\": 2,\n\t\"serviceProxyHealthy\": true\n}"
        );
        shared.local.clear();
        let of = shared.service(&web());
        assert_eq!(of.status(), 503);
        assert_eq!(of.headers()["x-load-balancing-endpoint-weight"], "0");
    }
}
