//! Addresses and prefixes of API objects that strict validation refuses (KEP-4858).
//!
//! Source: `IsValidIPForLegacyField` and `IsValidCIDRForLegacyField` in `pkg/util/validation/ip.go` of apimachinery. An object that
//! has such a value keeps it; only a new value, or a change of the field, is refused. Of an `EndpointSlice`, every change of its
//! endpoints is.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::{EndpointSlice, Node, Pod, Service};
use crate::net::Cidr;

const ZEROS: &str = "leading zeros";
const MAPPED: &str = "an IPv4 address in IPv6 form";
const BITS: &str = "bits beyond the prefix length";

/// A value that strict validation refuses.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Refused {
    /// The field of the object.
    pub field: &'static str,
    /// Its value.
    pub value: String,
    /// The reason, as a part of the value: `leading zeros`.
    pub why: &'static str,
}

/// Returns the reason why strict validation refuses the address `text`; `None` also for one that no release accepts.
fn address(text: &str) -> Option<&'static str> {
    if text.contains(':') {
        let addr: Ipv6Addr = text.parse().ok()?;
        return addr.to_ipv4_mapped().map(|_| MAPPED);
    }
    let octets: Vec<&str> = text.split('.').collect();
    let is_number = |octet: &&str| octet.parse::<u8>().is_ok();
    let has_zeros = |octet: &&str| octet.len() > 1 && octet.starts_with('0');
    let is_address = octets.len() == 4 && octets.iter().all(is_number);
    (is_address && octets.iter().any(has_zeros)).then_some(ZEROS)
}

/// Returns the reason why strict validation refuses the prefix `text`; `None` also for one that no release accepts.
fn prefix(text: &str) -> Option<&'static str> {
    let (addr, len) = text.split_once('/')?;
    if let Some(why) = address(addr) {
        return Some(why);
    }
    if len.len() > 1 && len.starts_with('0') {
        return Some(ZEROS);
    }
    let cidr: Cidr = text.parse().ok()?;
    (cidr.normal().addr != cidr.addr).then_some(BITS)
}

/// Values of one object, by the field that has them.
struct Fields(Vec<Refused>);

impl Fields {
    fn all<'v>(
        &mut self,
        field: &'static str,
        values: impl IntoIterator<Item = &'v String>,
        refuses: fn(&str) -> Option<&'static str>,
    ) {
        for value in values {
            let found = |why| Refused {
                field,
                value: value.clone(),
                why,
            };
            self.0.extend(refuses(value.trim()).map(found));
        }
    }
}

/// Returns the values of `service` that are refused. The first cluster IP is in the list of them too.
pub fn of_service(service: &Service) -> Vec<Refused> {
    let (spec, status) = (&service.spec, &service.status.load_balancer);
    let mut fields = Fields(Vec::new());
    if spec.cluster_ips.is_empty() {
        fields.all("clusterIP", [&spec.cluster_ip], address);
    }
    fields.all("clusterIPs", &spec.cluster_ips, address);
    fields.all("externalIPs", &spec.external_ips, address);
    fields.all(
        "loadBalancerSourceRanges",
        &spec.load_balancer_source_ranges,
        prefix,
    );
    let ingress = status
        .ingress
        .iter()
        .filter_map(|ingress| ingress.ip.as_ref());
    fields.all("status.loadBalancer.ingress", ingress, address);
    fields.0
}

/// Returns the addresses of `slice` that are refused.
pub fn of_slice(slice: &EndpointSlice) -> Vec<Refused> {
    let mut fields = Fields(Vec::new());
    let addresses = slice
        .endpoints
        .iter()
        .flat_map(|endpoint| &endpoint.addresses);
    fields.all("endpoints.addresses", addresses, address);
    fields.0
}

/// Returns the values of `pod` that are refused.
pub fn of_pod(pod: &Pod) -> Vec<Refused> {
    let mut fields = Fields(Vec::new());
    let servers = &pod.spec.dns_config.nameservers;
    fields.all("dnsConfig.nameservers", servers, address);
    let aliases = pod
        .spec
        .host_aliases
        .iter()
        .map(|host_alias| &host_alias.ip);
    fields.all("hostAliases", aliases, address);
    fields.all(
        "status.podIPs",
        pod.status.pod_ips.iter().map(|pod_ip| &pod_ip.ip),
        address,
    );
    fields.0
}

/// Returns the values of `node` that are refused.
pub fn of_node(node: &Node) -> Vec<Refused> {
    let mut fields = Fields(Vec::new());
    fields.all("podCIDRs", &node.spec.pod_cidrs, prefix);
    fields.0
}

/// Returns the accepted form of `value` with the same meaning: for a prefix, as Kubernetes has always read it.
pub fn accepted(value: &str) -> Option<String> {
    let (addr, len) = match value.trim().split_once('/') {
        Some((addr, len)) => (addr, Some(len)),
        None => (value.trim(), None),
    };
    let addr = if let Ok(six) = addr.parse::<Ipv6Addr>() {
        six.to_ipv4_mapped().map_or(IpAddr::V6(six), IpAddr::V4)
    } else {
        let octets = addr.split('.').map(|octet| octet.parse().ok());
        let octets: Option<Vec<u8>> = octets.collect();
        IpAddr::V4(Ipv4Addr::from(<[u8; 4]>::try_from(octets?).ok()?))
    };
    let Some(len) = len else {
        return Some(addr.to_string());
    };
    let cidr: Cidr = format!("{addr}/{}", len.parse::<u8>().ok()?).parse().ok()?;
    Some(format!("{}/{}", cidr.normal().addr, cidr.prefix))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strict_validation_refuses_zeros_mapped_addresses_and_host_bits() {
        for (text, why) in [
            ("10.0.0.1", None),
            ("0.0.0.0", None),
            ("010.0.0.1", Some(ZEROS)),
            ("10.0.0.01", Some(ZEROS)),
            ("::ffff:1.2.3.4", Some(MAPPED)),
            ("fd00::1", None),
            // Not in canonical form, which fields of before 1.27 need not have.
            ("FD00:0::0001", None),
            ("None", None),
            ("", None),
            ("10.0.0.256", None),
        ] {
            assert_eq!(address(text), why, "{text}");
        }
        for (text, why) in [
            ("10.0.0.0/8", None),
            ("10.0.0.1/32", None),
            ("10.1.0.0/8", Some(BITS)),
            ("192.168.1.5/24", Some(BITS)),
            ("010.0.0.0/8", Some(ZEROS)),
            ("10.0.0.0/08", Some(ZEROS)),
            ("fd00::1/64", Some(BITS)),
            ("fd00::/64", None),
            ("::ffff:1.2.3.0/120", Some(MAPPED)),
            ("0.0.0.0/0", None),
        ] {
            assert_eq!(prefix(text), why, "{text}");
        }
    }

    #[test]
    fn the_accepted_form_is_the_one_that_kubernetes_reads() {
        let form = |text| accepted(text);
        assert_eq!(form("010.0.02.1").as_deref(), Some("10.0.2.1"));
        assert_eq!(form("::ffff:1.2.3.4").as_deref(), Some("1.2.3.4"));
        assert_eq!(form(" 192.168.1.5/024 ").as_deref(), Some("192.168.1.0/24"));
        assert_eq!(form("fd00::1/64").as_deref(), Some("fd00::/64"));
        assert_eq!(form("elsewhere"), None);
    }
}
