//! Service variables in the environment of a container.

use std::net::IpAddr;

use serde::Serialize;

use crate::cluster::Service;

/// An environment variable.
#[derive(Clone, Debug, Eq, PartialEq, Serialize)]
#[cfg_attr(feature = "testing", derive(schemars::JsonSchema))]
pub struct Variable {
    /// Name of the variable.
    pub name: String,
    /// Value of the variable.
    pub value: String,
}

/// Returns the variables that describe `service`; none if it has no cluster IP.
///
/// Same names and order as `FromServices` of pkg/kubelet/envvars.
pub fn variables(service: &Service) -> Vec<Variable> {
    let Ok(ip) = service.spec.cluster_ip.parse::<IpAddr>() else {
        return Vec::new();
    };
    let mut all = Vec::new();
    let mut add = |name: String, value: String| all.push(Variable { name, value });
    let name = upper(&service.metadata.name);
    let ports = &service.spec.ports;
    add(format!("{name}_SERVICE_HOST"), ip.to_string());
    if let Some(first) = ports.first() {
        add(format!("{name}_SERVICE_PORT"), first.port.to_string());
    }
    for port in ports.iter().filter(|port| !port.name.is_empty()) {
        let named = upper(&port.name);
        add(
            format!("{name}_SERVICE_PORT_{named}"),
            port.port.to_string(),
        );
    }
    for (at, port) in ports.iter().enumerate() {
        let proto = match port.protocol.as_str() {
            "" => "TCP",
            proto => proto,
        };
        let low = proto.to_lowercase();
        let url = match ip {
            IpAddr::V4(ip) => format!("{low}://{ip}:{}", port.port),
            IpAddr::V6(ip) => format!("{low}://[{ip}]:{}", port.port),
        };
        if at == 0 {
            add(format!("{name}_PORT"), url.clone());
        }
        let prefix = format!("{name}_PORT_{}_{}", port.port, proto.to_uppercase());
        add(prefix.clone(), url);
        add(format!("{prefix}_PROTO"), low);
        add(format!("{prefix}_PORT"), port.port.to_string());
        add(format!("{prefix}_ADDR"), ip.to_string());
    }
    all
}

fn upper(name: &str) -> String {
    name.replace('-', "_").to_uppercase()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The example of kubernetes.io, "Discovering services", in the order of the kubelet.
    #[test]
    fn the_documented_example() {
        let service: Service = serde_json::from_str(
            r#"{"metadata": {"name": "redis-primary"}, "spec": {"clusterIP": "10.0.0.11", "ports": [{"port": 6379}]}}"#,
        )
        .unwrap();
        let lines: Vec<String> = variables(&service)
            .into_iter()
            .map(|variable| format!("{}={}", variable.name, variable.value))
            .collect();
        assert_eq!(
            lines,
            [
                "REDIS_PRIMARY_SERVICE_HOST=10.0.0.11",
                "REDIS_PRIMARY_SERVICE_PORT=6379",
                "REDIS_PRIMARY_PORT=tcp://10.0.0.11:6379",
                "REDIS_PRIMARY_PORT_6379_TCP=tcp://10.0.0.11:6379",
                "REDIS_PRIMARY_PORT_6379_TCP_PROTO=tcp",
                "REDIS_PRIMARY_PORT_6379_TCP_PORT=6379",
                "REDIS_PRIMARY_PORT_6379_TCP_ADDR=10.0.0.11",
            ]
        );
    }

    #[test]
    fn every_named_port_has_variables_and_a_headless_service_has_none() {
        let service = |ip: &str| -> Service {
            let ports = r#"[{"name": "dns-tcp", "port": 53, "protocol": "TCP"}, {"name": "dns", "port": 53, "protocol": "UDP"}]"#;
            serde_json::from_str(&format!(
                r#"{{"metadata": {{"name": "d"}}, "spec": {{"clusterIP": "{ip}", "ports": {ports}}}}}"#
            ))
            .unwrap()
        };
        assert_eq!(variables(&service("None")), []);
        assert_eq!(variables(&service("")), []);
        let all = variables(&service("fd00::1"));
        let value = |name: &str| {
            &all.iter()
                .find(|variable| variable.name == name)
                .unwrap()
                .value
        };
        assert_eq!(value("D_SERVICE_PORT_DNS_TCP"), "53");
        assert_eq!(value("D_PORT_53_UDP"), "udp://[fd00::1]:53");
        assert_eq!(value("D_PORT"), "tcp://[fd00::1]:53");
    }
}
