//! Expected records in cluster DNS, derived from the cluster's objects.

use std::net::IpAddr;

use super::{Records, Server};
use crate::cluster::{Endpoint, EndpointSlice, Service};

/// The DNS zone of a cluster.
#[derive(Clone, Copy, Debug)]
pub struct Zone<'c> {
    /// Cluster domain, without a trailing dot.
    pub domain: &'c str,
    /// Services of all namespaces.
    pub services: &'c [Service],
    /// EndpointSlices of all namespaces.
    pub slices: &'c [EndpointSlice],
}

/// Expected result of a query.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Expected {
    /// Expected records; empty if the name should not exist.
    Records(Records),
    /// The cluster's objects do not determine the result; the reason.
    Unknown(&'static str),
}

impl<'c> Zone<'c> {
    /// Returns the expected records of all types for `name`, which has no trailing dot.
    pub fn expect(&self, name: &str) -> Expected {
        let Some(within) = name
            .strip_suffix(self.domain)
            .and_then(|rest| rest.strip_suffix('.'))
        else {
            return Expected::Unknown("outside the cluster");
        };
        let labels: Vec<&str> = within.rsplit('.').collect();
        let records = match labels[..] {
            ["pod", ..] => {
                return Expected::Unknown("depends on CoreDNS's configuration");
            }
            ["svc", namespace, service] => self.service(namespace, service),
            ["svc", namespace, service, host] => self.host(namespace, service, host),
            ["svc", namespace, service, proto, port] => {
                match (proto.strip_prefix('_'), port.strip_prefix('_')) {
                    (Some(proto), Some(port)) => self.port(namespace, service, proto, port),
                    _ => None,
                }
            }
            _ => None,
        };
        Expected::Records(records.unwrap_or_default())
    }

    /// Returns the Service that `name`, a name in the cluster domain, belongs to.
    pub fn of(&self, name: &str) -> Option<&'c Service> {
        let within = name.strip_suffix(self.domain)?.strip_suffix(".svc.")?;
        let mut labels = within.rsplit('.');
        let (namespace, service) = (labels.next()?, labels.next()?);
        self.find(namespace, service)
    }

    fn find(&self, namespace: &str, name: &str) -> Option<&'c Service> {
        let mut all = self.services.iter();
        all.find(|service| service.metadata.namespace == namespace && service.metadata.name == name)
    }

    fn service(&self, namespace: &str, name: &str) -> Option<Records> {
        let service = self.find(namespace, name)?;
        let mut records = Records::default();
        if service.spec.kind == "ExternalName" {
            let target = service.spec.external_name.as_deref()?;
            records.alias = Some(target.trim_end_matches('.').to_lowercase());
        } else if is_headless(service) {
            records.addresses = self
                .endpoints(service)
                .filter_map(|(_, of)| address(of))
                .collect();
        } else {
            records.addresses = cluster_ips(service).collect();
        }
        Some(records)
    }

    fn host(&self, namespace: &str, name: &str, host: &str) -> Option<Records> {
        let service = self.find(namespace, name)?;
        let endpoints = self.endpoints(service).map(|(_, endpoint)| endpoint);
        let named =
            endpoints.filter(|endpoint| host_name(endpoint).is_some_and(|name| name == host));
        Some(Records {
            addresses: named.filter_map(address).collect(),
            ..Records::default()
        })
    }

    fn port(&self, namespace: &str, name: &str, proto: &str, port: &str) -> Option<Records> {
        let service = self.find(namespace, name)?;
        let whole = format!("{name}.{namespace}.svc.{}", self.domain);
        let mut records = Records::default();
        if is_headless(service) {
            for (slice, endpoint) in self.endpoints(service) {
                let ports = slice.ports.iter().filter(|slice_port| {
                    let same = slice_port
                        .protocol
                        .as_deref()
                        .unwrap_or("TCP")
                        .eq_ignore_ascii_case(proto);
                    same && slice_port.name.as_deref() == Some(port)
                });
                for number in ports.filter_map(|port| port.port) {
                    let Some(host) = host_name(endpoint) else {
                        continue;
                    };
                    records.servers.insert(Server {
                        host: format!("{host}.{whole}"),
                        port: number,
                    });
                }
            }
        } else if cluster_ips(service).next().is_some() {
            let ports = service.spec.ports.iter().filter(|service_port| {
                let of_proto = if service_port.protocol.is_empty() {
                    "TCP"
                } else {
                    &service_port.protocol
                };
                service_port.name == port && of_proto.eq_ignore_ascii_case(proto)
            });
            records.servers = ports
                .map(|port| Server {
                    host: whole.clone(),
                    port: port.port,
                })
                .collect();
        }
        Some(records)
    }

    /// Iterates over the ready endpoints of `service`, or all endpoints if it publishes them before they are ready.
    fn endpoints(
        &self,
        service: &'c Service,
    ) -> impl Iterator<Item = (&'c EndpointSlice, &'c Endpoint)> {
        let slices = self.slices.iter().filter(|slice| {
            let meta = &service.metadata;
            slice.service() == Some((&meta.namespace, &meta.name))
        });
        let all = slices.flat_map(|slice| {
            slice
                .endpoints
                .iter()
                .map(move |endpoint| (slice, endpoint))
        });
        all.filter(|(_, endpoint)| endpoint.conditions.ready.unwrap_or(true))
    }
}

/// Returns whether `service` is headless.
fn is_headless(service: &Service) -> bool {
    service.spec.cluster_ip == "None"
}

fn cluster_ips(service: &Service) -> impl Iterator<Item = IpAddr> {
    let all = service.spec.cluster_ips.iter();
    let all = all.chain([&service.spec.cluster_ip]);
    all.filter_map(|ip| ip.parse().ok())
}

fn address(endpoint: &Endpoint) -> Option<IpAddr> {
    endpoint.addresses.first()?.parse().ok()
}

/// Returns the host name of an endpoint: its own, or its address with dashes, as `CoreDNS` does.
fn host_name(endpoint: &Endpoint) -> Option<String> {
    match &endpoint.hostname {
        Some(name) if !name.is_empty() => Some(name.clone()),
        _ => Some(endpoint.addresses.first()?.replace(['.', ':'], "-")),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn service(name: &str, spec: &Value) -> Service {
        serde_json::from_value(
            json!({"metadata": {"name": name, "namespace": "demo"}, "spec": spec}),
        )
        .unwrap()
    }

    fn told(services: &[Service], name: &str) -> String {
        let slice: EndpointSlice = serde_json::from_value(json!({
            "metadata": {"name": "db-1", "namespace": "demo", "labels": {"kubernetes.io/service-name": "db"}},
            "addressType": "IPv4",
            "ports": [{"name": "sql", "port": 5432}],
            "endpoints": [
                {"addresses": ["10.1.0.1"], "hostname": "db-0", "conditions": {"ready": true}},
                {"addresses": ["10.1.0.2"]},
                {"addresses": ["10.1.0.3"], "conditions": {"ready": false}},
            ],
        }))
        .unwrap();
        let zone = Zone {
            domain: "cluster.local",
            services,
            slices: &[slice],
        };
        match zone.expect(name) {
            Expected::Unknown(why) => why.to_owned(),
            Expected::Records(records) => {
                let addresses = records.addresses.iter().map(ToString::to_string);
                let servers = records
                    .servers
                    .iter()
                    .map(|server| format!("{}:{}", server.host, server.port));
                let all = addresses.chain(records.alias.clone()).chain(servers);
                all.collect::<Vec<_>>().join(" ")
            }
        }
    }

    /// The examples of the specification, 2.3 to 2.5.
    #[test]
    fn names_resolve_as_in_the_specification() {
        let services = [
            service(
                "web",
                &json!({"clusterIP": "10.96.0.9", "clusterIPs": ["10.96.0.9", "fd00::9"], "ports": [{"name": "http", "port": 80}]}),
            ),
            service(
                "db",
                &json!({"clusterIP": "None", "ports": [{"name": "sql", "port": 5432}]}),
            ),
            service(
                "ext",
                &json!({"type": "ExternalName", "externalName": "Foo.example."}),
            ),
        ];
        let of = |name: &str| told(&services, &format!("{name}.demo.svc.cluster.local"));
        assert_eq!(of("web"), "10.96.0.9 fd00::9");
        assert_eq!(of("_http._tcp.web"), "web.demo.svc.cluster.local:80");
        assert_eq!(of("_http._udp.web"), "");
        assert_eq!(of("db"), "10.1.0.1 10.1.0.2");
        assert_eq!(of("db-0.db"), "10.1.0.1");
        assert_eq!(of("10-1-0-2.db"), "10.1.0.2");
        assert_eq!(of("10-1-0-3.db"), "");
        let sql = "10-1-0-2.db.demo.svc.cluster.local:5432 db-0.db.demo.svc.cluster.local:5432";
        assert_eq!(of("_sql._tcp.db"), sql);
        assert_eq!(of("ext"), "foo.example");
        assert_eq!(of("gone"), "");
        assert_eq!(told(&services, "demo.svc.cluster.local"), "");
        assert!(told(&services, "example.org").contains("outside the cluster"));
        assert!(told(&services, "notcluster.local").contains("outside"));
        assert!(told(&services, "10-1-0-1.demo.pod.cluster.local").contains("CoreDNS"));
    }
}
