//! Names of kube-proxy's chains and sets for service ports.
//!
//! Source: `servicePortChainNameBase` and its siblings in kube-proxy's `pkg/proxy/nftables/proxier.go`.

use std::net::SocketAddr;

use crate::backend::iptables::names::base32;
use crate::net::Proto;

/// The longest name behind a prefix.
const LONGEST: usize = 240;

/// Returns the base of the names of a service port's chains.
pub fn service(namespace: &str, service: &str, proto: Proto, port: &str) -> String {
    base(&format!("{namespace}/{service}/{proto}/{port}"))
}

/// Returns the base of the names of an endpoint's chain and set.
pub fn endpoint(
    namespace: &str,
    service: &str,
    proto: Proto,
    port: &str,
    endpoint: SocketAddr,
) -> String {
    let ip = endpoint.ip().to_string().replace(':', ".");
    let number = endpoint.port();
    base(&format!(
        "{namespace}/{service}/{proto}/{port}__{ip}/{number}"
    ))
}

fn base(text: &str) -> String {
    let mut name = format!("{}-{text}", base32::<8>(&[text]));
    if name.len() > LONGEST {
        name.truncate(LONGEST - 3);
        name.push_str("...");
    }
    name
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_kube_proxy() {
        assert_eq!(
            service("default", "kubernetes", Proto::Tcp, "https"),
            "2QRHZV4L-default/kubernetes/tcp/https"
        );
        assert_eq!(
            service("default", "web", Proto::Tcp, ""),
            "PFISGYVC-default/web/tcp/"
        );
        let of = |addr: &str| {
            endpoint(
                "default",
                "kubernetes",
                Proto::Tcp,
                "https",
                addr.parse().unwrap(),
            )
        };
        assert_eq!(
            of("10.244.1.10:8080"),
            "SB3SWZXG-default/kubernetes/tcp/https__10.244.1.10/8080"
        );
        assert_eq!(
            of("[fd00:10:244::1]:8080"),
            "A5QXRN6X-default/kubernetes/tcp/https__fd00.10.244..1/8080"
        );
    }

    #[test]
    fn long_names_are_cut() {
        let name = endpoint(
            &"n".repeat(63),
            &"s".repeat(63),
            Proto::Sctp,
            &"p".repeat(63),
            "[fd00:1111:2222:3333:4444:5555:6666:7777]:65535"
                .parse()
                .unwrap(),
        );
        assert!(name.starts_with("4OOVRNZV-nnn"), "{name}");
        assert!(
            name.ends_with("__fd00.1111.2222.3333.4444.5555...."),
            "{name}"
        );
        assert_eq!(name.len(), 240);
    }
}
