//! Names of kube-proxy's chains.
//!
//! Source: `portProtoHash` and `servicePortEndpointChainName` in kube-proxy's `pkg/proxy/iptables/proxier.go`,
//! unchanged from 1.20 to 1.36.

use std::net::SocketAddr;

use sha2::{Digest as _, Sha256};

use crate::net::Proto;

/// Balances over the endpoints of the whole cluster.
pub const SVC: &str = "KUBE-SVC-";
/// Balances over the endpoints of this node.
pub const SVL: &str = "KUBE-SVL-";
/// Takes traffic from outside the cluster.
pub const EXT: &str = "KUBE-EXT-";
/// Lets load-balancer source ranges pass.
pub const FW: &str = "KUBE-FW-";
/// Leads to one endpoint.
pub const SEP: &str = "KUBE-SEP-";
/// The name of `EXT` up to 1.23.
pub const XLB: &str = "KUBE-XLB-";

/// Returns the hash in the names of a service port's chains; `spn` is `NS/NAME` or `NS/NAME:PORTNAME`.
pub fn service_hash(spn: &str, proto: Proto) -> String {
    hash(&[spn, &proto.to_string()])
}

/// Returns the hash in the name of an endpoint's chain.
pub fn endpoint_hash(spn: &str, proto: Proto, endpoint: SocketAddr) -> String {
    hash(&[spn, &proto.to_string(), &endpoint.to_string()])
}

fn hash(parts: &[&str]) -> String {
    base32::<16>(parts)
}

/// Returns the first `N` characters, at most 25, of the parts' SHA-256 in base 32.
pub(crate) fn base32<const N: usize>(parts: &[&str]) -> String {
    const ALPHABET: &[u8; 32] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZ234567";
    let mut hasher = Sha256::new();
    for part in parts {
        hasher.update(part.as_bytes());
    }
    let digest = hasher.finalize();
    // 25 characters of 5 bits lie in the first 16 bytes.
    let bits = digest[..16]
        .iter()
        .fold(0u128, |bits, &byte| bits << 8 | u128::from(byte));
    (1..=N)
        .map(|i| char::from(ALPHABET[(bits >> (128 - 5 * i) & 31) as usize]))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hashes_are_those_of_kube_proxy() {
        assert_eq!(
            service_hash("default/kubernetes:https", Proto::Tcp),
            "NPX46M4PTMTKRN6Y"
        );
        assert_eq!(
            service_hash("kube-system/kube-dns:dns", Proto::Udp),
            "TCOU7JCQXEZGVUNU"
        );
        assert_eq!(service_hash("default/web", Proto::Tcp), "LOLE4ISW44XBNF3G");
        let v4 = "10.244.1.10:8080".parse().unwrap();
        assert_eq!(
            endpoint_hash("default/kubernetes:https", Proto::Tcp, v4),
            "JYMEFQB7CEVBIVZQ"
        );
        let v6 = "[fd00:10:244::1]:8080".parse().unwrap();
        assert_eq!(
            endpoint_hash("default/web", Proto::Tcp, v6),
            "3VTJ42QAXORI2WB2"
        );
    }
}
