//! Names of chains and sets in the nftables table `kube-proxy`.

use std::net::{IpAddr, SocketAddr};

use super::port::PortName;
use crate::net::Proto;

/// Parsed name of a chain or set in the nftables table `kube-proxy`.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct NftName {
    /// `service-`, `local-`, `external-`, `firewall-`, `endpoint-` or `affinity-`.
    pub prefix: &'static str,
    /// Name of the service port.
    pub name: PortName,
    /// Transport protocol of the service port.
    pub proto: Proto,
    /// Address and port of the endpoint.
    pub endpoint: Option<SocketAddr>,
}

impl NftName {
    /// Parses `PREFIX-HASH-NS/NAME/PROTO/PORT`, followed by `__ADDR/PORT` for an endpoint; `None` for other and for
    /// truncated names.
    pub fn parse(name: &str) -> Option<Self> {
        let prefixes = [
            "service-",
            "local-",
            "external-",
            "firewall-",
            "endpoint-",
            "affinity-",
        ];
        let prefix = prefixes.into_iter().find(|p| name.starts_with(p))?;
        let (hash, rest) = name[prefix.len()..].split_once('-')?;
        if hash.len() != 8 {
            return None;
        }
        let (service, endpoint) = match rest.rsplit_once("__") {
            Some((service, endpoint)) => (service, Some(endpoint)),
            None => (rest, None),
        };
        let mut parts = service.splitn(4, '/');
        let (namespace, name) = (parts.next()?, parts.next()?);
        let proto = parts.next()?.parse().ok()?;
        let port = parts.next()?;
        Some(Self {
            prefix,
            name: PortName {
                namespace: namespace.into(),
                name: name.into(),
                port: port.into(),
            },
            proto,
            endpoint: match endpoint {
                None => None,
                Some(text) => Some(endpoint_of(text)?),
            },
        })
    }
}

/// Parses `10.0.0.1/80`, or `fd00..1/80` with dots instead of colons.
fn endpoint_of(text: &str) -> Option<SocketAddr> {
    let (addr, port) = text.rsplit_once('/')?;
    let addr: IpAddr = addr
        .parse()
        .or_else(|_| addr.replace('.', ":").parse())
        .ok()?;
    Some(SocketAddr::new(addr, port.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chain_name_is_parsed_into_port_and_endpoint() {
        let name =
            NftName::parse("endpoint-A5QXRN6X-default/kubernetes/tcp/https__fd00.10.244..1/8080");
        let name = name.unwrap();
        assert_eq!(name.name.to_string(), "default/kubernetes:https");
        assert_eq!(
            name.endpoint,
            Some("[fd00:10:244::1]:8080".parse().unwrap())
        );
        let plain = NftName::parse("service-PFISGYVC-default/web/tcp/").unwrap();
        assert_eq!(plain.name.to_string(), "default/web");
        assert_eq!(NftName::parse("service-endpoints-check"), None);
    }
}
