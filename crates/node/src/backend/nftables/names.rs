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
        // The API server allows ASCII alone; a bundle can have anything.
        let mut most = LONGEST - 3;
        while !name.is_char_boundary(most) {
            most -= 1;
        }
        name.truncate(most);
        name.push_str("...");
    }
    name
}

/// Returns the service port that a chain or set is named after.
pub fn service_of(name: &str) -> Option<String> {
    // service-2QRHZV4L-NAMESPACE/SERVICE/PROTO/PORT, and behind that __ADDRESS/PORT for an endpoint.
    let (_, rest) = name.split_once('-')?;
    let (_, path) = rest.split_once('-')?;
    let mut parts = path.split('/');
    let (namespace, service, _proto) = (parts.next()?, parts.next()?, parts.next()?);
    let port = parts.next().unwrap_or("");
    let port = port.split("__").next().unwrap_or("");
    Some(match port {
        "" => format!("{namespace}/{service}"),
        port => format!("{namespace}/{service}:{port}"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_tell_the_service() {
        let of = |name| service_of(name).unwrap_or_default();
        assert_eq!(
            of("service-2QRHZV4L-default/kubernetes/tcp/https"),
            "default/kubernetes:https"
        );
        assert_eq!(of("local-PFISGYVC-default/web/tcp/"), "default/web");
        assert_eq!(
            of("endpoint-EBQUYVBC-shop/cart/tcp/http__10.244.1.30/8080"),
            "shop/cart:http"
        );
        assert_eq!(service_of("nat-prerouting"), None);
    }

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
    fn a_long_name_of_a_bundle_is_cut_between_characters() {
        for more in 0..4 {
            let name = service(
                "n",
                &format!("{}{}", "s".repeat(more), "\u{1d11e}".repeat(90)),
                Proto::Tcp,
                "",
            );
            assert!(
                (237..=240).contains(&name.len()) && name.ends_with("\u{1d11e}..."),
                "{name}"
            );
        }
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
